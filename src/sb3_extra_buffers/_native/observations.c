/* Which frames an observation is made of, and rows that do not follow from the row before. */
#include "builder.h"

#include <string.h>

enum { STRAY_COST = 8 }; /* observations that make up for one that does not follow */

/* -- observations --------------------------------------------------------------------------------------------------------- */

static void change_places(uint8_t **one, uint8_t **other) {
    uint8_t *before = *one;
    *one = *other;
    *other = before;
}

static bool is_zeros(const uint8_t *frame, size_t size) { return frame[0] == 0 && memcmp(frame, frame + 1, size - 1) == 0; }

/* Whether an observation looks like the first of an episode: what is older than the newest frame was made up. */
static bool is_padded(const ft_rows *rows, const uint8_t *frames) {
    const size_t depth = rows->layout.depth, size = rows->given_bytes;
    const uint8_t *newest = frames + (depth - 1) * rows->given_stride;
    bool zeros = true, repeated = true;
    for (size_t j = 0; j + 1 < depth && (zeros || repeated); j++) {
        const uint8_t *frame = frames + j * rows->given_stride;
        zeros = zeros && is_zeros(frame, size);
        repeated = repeated && memcmp(frame, newest, size) == 0;
    }
    return zeros || repeated;
}

static void note_stray(ft_doubt *doubt) {
    const uint64_t made_up = (doubt->observations - doubt->since) / STRAY_COST;
    doubt->strays = (doubt->strays > made_up ? doubt->strays - made_up : 0) + 1;
    if (made_up > 0) {
        doubt->since = doubt->observations;
    }
}

/* Note where a frame is among those that have not been found. */
static void find_frame(const ft_rows *rows, const uint8_t *among, size_t depth, const uint8_t *frame, frame_number number,
                       frame_number *found) {
    for (size_t j = 0; j < depth; j++) {
        if (found[j] == FT_UNWRITTEN && memcmp(among + j * rows->given_stride, frame, rows->given_bytes) == 0) {
            found[j] = number;
        }
    }
}

void ft_straighten_last(ft_builder *builder, size_t i) {
    stream_memory *at = &builder->rooms[i];
    if (at->oldest > 0) {
        ft_copy_last(builder, i, builder->spare);
        change_places(&at->last, &builder->spare);
        at->oldest = 0;
    }
}

void ft_copy_last(const ft_builder *builder, size_t i, uint8_t *out) {
    const stream_memory *at = &builder->rooms[i];
    const size_t first = builder->rows.obs_bytes - at->oldest;
    memcpy(out, at->last + at->oldest, first);
    memcpy(out + first, at->last, at->oldest);
}

/* An observation that does not follow from the last one: look for each of its frames. */
static int write_other(ft_builder *builder, size_t i, const uint8_t *obs, const ft_codecs *codecs) {
    const ft_rows *rows = &builder->rows;
    const size_t depth = rows->layout.depth, size = rows->given_bytes, stride = rows->given_stride;
    stream *of = &builder->streams[i];
    frame_number *numbers = builder->rooms[i].numbers, found[FT_MAX_DEPTH];
    if (of->known) {
        ft_straighten_last(builder, i);
    }
    uint8_t *now = builder->spare, *before = builder->frame;
    for (size_t j = 0; j < depth; j++) {
        ft_take_frame(&rows->given, obs, builder->turned, j, now + j * stride, builder->pixels);
        found[j] = is_zeros(now + j * stride, size) ? FT_ZEROS : FT_UNWRITTEN;
    }
    if (of->known && !is_padded(rows, now)) {
        note_stray(&builder->doubt);
    }
    for (size_t k = 0; of->known && k < depth; k++) { /* the frames of the last observation, */
        if (numbers[k] >= 0 && of->frames - (uint32_t)numbers[k] < FT_FAR) {
            ft_take_frame(&rows->given, builder->rooms[i].last, builder->turned, k, before, builder->pixels);
            find_frame(rows, now, depth, before, numbers[k], found);
        }
    }
    of->known = false;
    for (size_t j = 0; j < depth; j++) { /* and then each frame that is new */
        if (found[j] == FT_UNWRITTEN) {
            frame_number number;
            const int stored = ft_store_frame(builder, i, now + j * stride, codecs, &number);
            if (stored != FT_OK) {
                return stored;
            }
            find_frame(rows, now, depth, now + j * stride, number, found);
        }
    }
    memcpy(numbers, found, depth * sizeof *numbers);
    ft_active->copy(builder->rooms[i].last, obs, rows->obs_bytes);
    builder->rooms[i].oldest = 0;
    of->known = true;
    return FT_OK;
}

/* Whether an observation is the last one again. */
static bool is_last(const ft_rows *rows, const stream_memory *at, const uint8_t *obs) {
    const size_t first = rows->obs_bytes - at->oldest;
    return ft_active->same(obs, at->last + at->oldest, first) && ft_active->same(obs + first, at->last, at->oldest);
}

/* Whether an observation is the last one moved on by a frame; of observations that lie in memory frame by frame. */
static bool is_moved(const ft_rows *rows, const stream_memory *at, const uint8_t *obs) {
    const size_t kept = rows->obs_bytes - rows->given_bytes, second = (at->oldest + rows->given_bytes) % rows->obs_bytes;
    const size_t first = rows->obs_bytes - second < kept ? rows->obs_bytes - second : kept;
    return ft_active->same(obs, at->last + second, first) && ft_active->same(obs + first, at->last, kept - first);
}

int ft_write_observation(ft_builder *builder, size_t i, const uint8_t *obs, bool moves, const ft_codecs *codecs) {
    const ft_rows *rows = &builder->rows;
    const ft_layout *layout = &rows->given;
    const size_t depth = layout->depth;
    stream *of = &builder->streams[i];
    stream_memory *at = &builder->rooms[i];
    /* Without a stack, an observation may be the last one again, too; where that is the last frame that was stored, coding finds it. */
    const bool may_stay = !moves || (depth == 1 && at->numbers[0] != (frame_number)of->frames - 1);
    if (of->known && may_stay && is_last(rows, at, obs)) {
        return FT_OK;
    }
    const bool in_pieces = !builder->turned && (layout->outer == 1 || depth == 1); /* frames lie in memory one after the other */
    const bool moved = of->known && (in_pieces ? is_moved(rows, at, obs)
                                     : depth == 1 || ft_take_moved(layout, obs, at->last, builder->turned, builder->frame,
                                                                   builder->spare, builder->pixels));
    if (!moved) {
        const bool same = of->known && moves && is_last(rows, at, obs);
        return same ? FT_OK : write_other(builder, i, obs, codecs);
    }
    const uint8_t *frame = in_pieces ? obs + rows->obs_bytes - rows->given_bytes : builder->frame;
    if (depth == 1 && !in_pieces) {
        ft_take_frame(layout, obs, builder->turned, 0, builder->frame, builder->pixels);
    }
    frame_number newest;
    of->known = false;
    const int stored = ft_store_frame(builder, i, frame, codecs, &newest);
    if (stored != FT_OK) {
        return stored;
    }
    of->known = true;
    if (in_pieces) {
        ft_active->copy(at->last + at->oldest, frame, rows->given_bytes); /* the oldest one is not needed any more */
        at->oldest = (at->oldest + rows->given_bytes) % rows->obs_bytes;
    } else if (depth == 1) {
        ft_active->copy(at->last, obs, rows->obs_bytes);
    } else {
        change_places(&at->last, &builder->spare);
    }
    memmove(at->numbers, at->numbers + 1, (depth - 1) * sizeof *at->numbers);
    at->numbers[depth - 1] = newest;
    return FT_OK;
}

void ft_set_order(ft_builder *builder, bool turned) {
    if (builder->turned == turned) {
        return;
    }
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        if (builder->streams[i].known) {
            ft_straighten_last(builder, i);
            ft_turn_observation(&builder->rows.given, builder->rooms[i].last, builder->turned, builder->spare);
            change_places(&builder->rooms[i].last, &builder->spare);
        }
    }
    builder->turned = turned;
}

/* -- rows that do not follow ---------------------------------------------------------------------------------------------- */

/* Whether the row that was written last follows from the one before by the rule that most rows follow. */
static bool is_regular(const ft_builder *builder, size_t i) {
    const stream *of = &builder->streams[i];
    const size_t depth = builder->rows.layout.depth, views = builder->rows.views;
    const frame_number *before = builder->rooms[i].before, *cell = builder->rooms[i].cell, *moved = cell + (views - 1) * depth;
    if (!of->follows || of->written != (1u << views) - 1 || of->frames - of->frames_before != 1 ||
        moved[depth - 1] != (frame_number)of->frames_before || memcmp(moved, before + 1, (depth - 1) * sizeof *moved) != 0) {
        return false;
    }
    return views == 1 || memcmp(cell, before, depth * sizeof *cell) == 0;
}

static uint32_t hash_of(const uint8_t *bytes, size_t size) {
    uint32_t sum = 2166136261u;
    for (size_t k = 0; k < size; k++) {
        sum = (sum ^ bytes[k]) * 16777619u;
    }
    return sum;
}

static uint32_t *find_hash(ft_builder *builder, const uint8_t *wanted) {
    const size_t size = ft_count_class_bytes(&builder->rows);
    for (size_t place = hash_of(wanted, size);; place++) {
        uint32_t *entry = &builder->hashes[place & (builder->n_hashes - 1)];
        if (*entry == 0 || memcmp(builder->classes + (*entry - 1) * size, wanted, size) == 0) {
            return entry;
        }
    }
}

static bool room_for_class(ft_builder *builder) {
    const size_t size = ft_count_class_bytes(&builder->rows);
    if (2 * (builder->n_classes + 1) > builder->n_hashes) {
        uint32_t *hashes = ft_alloc(2 * builder->n_hashes, sizeof *hashes);
        if (hashes == NULL) {
            return false;
        }
        ft_free(builder->hashes);
        builder->hashes = hashes;
        builder->n_hashes *= 2;
        for (uint32_t k = 0; k < builder->n_classes; k++) {
            *find_hash(builder, builder->classes + k * size) = k + 1;
        }
    }
    return ft_make_room(&builder->classes, &builder->classes_room, builder->n_classes * size, size, FT_FIRST_ROOM * size,
                     &builder->rows.classes);
}

/* The number of the class of the row that was written last, or an error. */
static int64_t find_class(ft_builder *builder, size_t i) {
    const stream *of = &builder->streams[i];
    const size_t depth = builder->rows.layout.depth;
    if (!room_for_class(builder)) {
        return FT_NO_MEMORY;
    }
    uint8_t *wanted = builder->classes + builder->n_classes * ft_count_class_bytes(&builder->rows); /* if it is new, it is there already */
    put_u16(wanted, of->frames - of->frames_before);
    for (size_t k = 0; k < builder->rows.views * depth; k++) {
        const frame_number frame = builder->rooms[i].cell[k];
        const frame_number relative = frame < 0 ? frame : frame - (frame_number)of->frames_before;
        put_u16(wanted + 2 + 2 * k, (size_t)(uint16_t)(int16_t)relative);
    }
    uint32_t *entry = find_hash(builder, wanted);
    if (*entry == 0) {
        *entry = (uint32_t)++builder->n_classes;
    }
    return (int64_t)*entry - 1;
}

static int note_exception(ft_builder *builder, size_t i, size_t row, int64_t class) {
    stream *of = &builder->streams[i];
    stream_memory *at = &builder->rooms[i];
    if (!ft_make_room(&at->exceptions, &at->exceptions_room, of->n_exceptions * FT_EXCEPTION_BYTES, FT_EXCEPTION_BYTES,
                   FT_FIRST_ROOM * FT_EXCEPTION_BYTES, &builder->lanes[i].exceptions)) {
        return FT_NO_MEMORY;
    }
    uint8_t *entry = at->exceptions + of->n_exceptions++ * FT_EXCEPTION_BYTES;
    put_u16(entry, row);
    put_u16(entry + 2, of->frames_before);
    put_u32(entry + 4, (size_t)class);
    return FT_OK;
}

int ft_note_exceptions(ft_builder *builder, size_t row) {
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        stream *of = &builder->streams[i];
        if (of->n_exceptions > 0 && get_u16(last_exception(builder, i)) == row) {
            of->n_exceptions--; /* written before, and now again */
        }
        if (is_regular(builder, i)) {
            continue;
        }
        const int64_t class = find_class(builder, i);
        const int result = class < 0 ? (int)class : note_exception(builder, i, row, class);
        if (result != FT_OK) {
            return result;
        }
    }
    return FT_OK;
}
