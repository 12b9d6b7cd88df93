/* Frames in groups: each is a patch on the one before it, the first of them on a key frame, or coded by itself. */
#include "builder.h"
#include "coders.h"

#include <string.h>

enum { BLOCK_STEP = 1 << 14 }; /* bytes that the block grows by at least */

size_t ft_measure_record(const ft_rows *rows, size_t patch_limit) {
    const size_t frame = rows->frame_bytes;
    if (!rows->method.references) {
        return RECORD_HEADER + frame + FT_READ_AHEAD;
    }
    const size_t full = frame + (((size_t)1 << rows->method.shift) - 1) * patch_limit;
    const size_t most = 3 * frame + 64, least = frame + 64 + RECORD_NUMBER, patches = full < most ? full : most;
    return RECORD_PATCHES + (patches > least ? patches : least) + FT_READ_AHEAD;
}

/* -- room for more -------------------------------------------------------------------------------------------------------- */

bool ft_make_room(uint8_t **memory, size_t *room, size_t used, size_t bytes, size_t first, const uint8_t **seen) {
    if (bytes <= *room && used <= *room - bytes) {
        return true;
    }
    size_t larger = *room > 0 ? *room + *room / 2 : first;
    larger = larger > used + bytes ? larger : used + bytes;
    uint8_t *moved = ft_resize(*memory, larger, 1);
    if (moved == NULL) {
        return false;
    }
    *memory = moved;
    *room = larger;
    *seen = moved;
    return true;
}

bool ft_resize_block(ft_builder *builder, size_t bytes) {
    uint8_t *block = ft_resize_pages(builder->block, builder->block_bytes, bytes);
    if (block == NULL) {
        return false;
    }
    builder->block = block;
    builder->block_bytes = bytes;
    builder->data = block + FT_CHUNK_HEADER;
    builder->rows.data = builder->data;
    return true;
}

bool ft_make_room_for_data(ft_builder *builder, size_t bytes) {
    const size_t wanted = FT_CHUNK_HEADER + builder->data_bytes + bytes + FT_READ_AHEAD;
    if (wanted <= builder->block_bytes) {
        return true;
    }
    const size_t quarter = builder->block_bytes / 4, larger = builder->block_bytes + (quarter > BLOCK_STEP ? quarter : BLOCK_STEP);
    return ft_resize_block(builder, ((larger > wanted ? larger : wanted) + FT_PAGE - 1) / FT_PAGE * FT_PAGE);
}

/* -- groups --------------------------------------------------------------------------------------------------------------- */

void ft_put_record_header(uint8_t *record, size_t body, size_t i, int coder, uint32_t frames) {
    put_u32(record, body);
    put_u16(record + 4, i & 0xFFFF);
    record[RECORD_CODER] = (uint8_t)coder;
    record[RECORD_CODER + 1] = (uint8_t)frames;
}

/* Note where the record of a stream's newest group lies. */
static void set_group(ft_builder *builder, size_t i, size_t group, size_t offset, size_t first) {
    uint8_t *entry = builder->rooms[i].groups + group * FT_GROUP_BYTES;
    put_u32(entry, offset);
    put_u16(entry + 4, first);
}

static bool room_for_group(ft_builder *builder, size_t i) {
    stream_memory *of = &builder->rooms[i];
    return ft_make_room(&of->groups, &of->groups_room, builder->streams[i].n_groups * FT_GROUP_BYTES, FT_GROUP_BYTES,
                     FT_FIRST_ROOM * FT_GROUP_BYTES, &builder->lanes[i].groups);
}

/* Red, green and blue of a pixel have more to do with each other than neighbours have, so codecs get them side by side. */
int ft_encode_frame(ft_builder *builder, const uint8_t *frame, const ft_codecs *codecs, const uint8_t **blob, size_t *size) {
    const ft_layout *layout = &builder->rows.layout;
    if (layout->interleave) {
        ft_active->transpose(frame, builder->pixels, layout->planes, ft_count_pixels(layout), layout->item);
        frame = builder->pixels;
    }
    return codecs->encode(codecs->context, FT_FRAME_CODEC, frame, builder->rows.frame_bytes, blob, size);
}

/* Write the record of a stream's open group with objects. `*bytes` are those of it, or 0 where that would be no smaller. */
static int write_objects(ft_builder *builder, size_t i, const uint8_t *record, size_t *bytes) {
    const stream *of = &builder->streams[i];
    const bool keyed = record[RECORD_CODER] == KEYED;
    *bytes = 0;
    if (!finds_objects(builder) || (!keyed && record[RECORD_CODER] != OBJECTS)) {
        return FT_OK;
    }
    const uint8_t *body = record + RECORD_HEADER, *patches = body + (keyed ? RECORD_NUMBER : OBJECTS_REFERENCES);
    const size_t key = keyed ? get_u32(body) : get_u24(body), base = keyed ? OBJECTS_NO_BASE : get_u24(body + OBJECTS_BASE);
    const size_t length = of->staged - (size_t)(patches - record);
    if (!ft_make_room_for_data(builder, of->staged + ft_measure_objects(length)) ||
        !ft_grow_catalogue(&builder->catalogue, builder->data, builder->data_bytes)) {
        return FT_NO_MEMORY;
    }
    *bytes = ft_write_objects(&builder->catalogue, builder->data, builder->data_bytes, key, base, patches, length,
                              builder->rows.layout.row, of->staged);
    return FT_OK;
}

int ft_close_group(ft_builder *builder, size_t i, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (of->group_frames == 0) {
        return FT_OK;
    }
    uint8_t *record = builder->rooms[i].records[of->which];
    const size_t body = of->staged - RECORD_HEADER;
    const uint8_t *blob = NULL;
    size_t size = 0;
    if (builder->rows.method.packs && record[RECORD_CODER] == KEYED) {
        const int coded = codecs->encode(codecs->context, FT_GROUP_CODEC, record + RECORD_HEADER, body, &blob, &size);
        if (coded != FT_OK) {
            return coded;
        }
        if (size + RECORD_NUMBER >= body) {
            blob = NULL;
        }
    }
    size_t objects;
    const int found = write_objects(builder, i, record, &objects);
    if (found != FT_OK) {
        return found;
    }
    const size_t length = objects > 0 ? objects : blob != NULL ? RECORD_PATCHES + size : of->staged;
    if (!ft_make_room_for_data(builder, length)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    if (objects > 0) {
        ft_put_record_header(target, length - RECORD_HEADER, i, OBJECTS, of->group_frames);
    } else if (blob != NULL) {
        ft_put_record_header(target, RECORD_NUMBER + size, i, PACKED, of->group_frames);
        put_u32(target + RECORD_HEADER, body);
        memcpy(target + RECORD_PATCHES, blob, size);
    } else {
        ft_active->copy(target, record, length);
        ft_put_record_header(target, body, i, record[RECORD_CODER], of->group_frames);
    }
    set_group(builder, i, of->n_groups - 1, builder->data_bytes, of->frames - of->group_frames);
    builder->data_bytes += length;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    of->group_frames = 0;
    of->which = builder->saved[i].which ^ 1; /* the other record is there until the row is committed */
    return FT_OK;
}

static size_t encode_patch(ft_builder *builder, size_t i, const uint8_t *before, const uint8_t *frame, size_t start, size_t limit) {
    const size_t most = builder->record_bytes - FT_READ_AHEAD, stop = start + limit < most ? start + limit : most;
    return ft_active->encode(before, frame, builder->rows.frame_bytes, builder->rows.layout.row, builder->zeros,
                             &builder->streams[i].row_above, builder->rooms[i].records[builder->streams[i].which], start, stop);
}

static void begin_record(ft_builder *builder, size_t i, int coder, size_t number, size_t staged) {
    uint8_t *record = builder->rooms[i].records[builder->streams[i].which];
    ft_put_record_header(record, 0, i, coder, 0);
    put_u32(record + RECORD_HEADER, number);
    builder->streams[i].staged = staged;
}

/* Write the first patch of a group, on a key frame. */
static size_t encode_first(ft_builder *builder, size_t i, int64_t key, const uint8_t *frame) {
    const stream *of = &builder->streams[i];
    if (!ft_expects_patch(builder, i, builder->data + key, frame)) {
        return FT_NO_PATCH;
    }
    const size_t limit = references_pay(of) ? builder->rows.frame_bytes / 2 : builder->patch_limit;
    return encode_patch(builder, i, builder->data + key, frame, RECORD_PATCHES, ft_limit_patch(of, limit));
}

/* Begin a group with a patch on the first frame of an earlier group, which costs nothing but time. That is a patch on the key frame
 * itself, so that there is one step in between at most. */
static bool begin_on_base(ft_builder *builder, size_t i, const uint8_t *frame) {
    enum { LEAST = 64 }; /* bytes of a patch that is worth such a step */
    stream *of = &builder->streams[i];
    const size_t patches = RECORD_HEADER + OBJECTS_REFERENCES;
    if (of->first_patch > LEAST && finds_objects(builder)) {
        const size_t last = get_u32(builder->rooms[i].groups + (of->n_groups - 1) * FT_GROUP_BYTES);
        of->base = builder->data[last + RECORD_CODER] == OBJECTS ? (int64_t)last : -1;
        of->base_cost = 2 * of->first_patch;
    }
    of->first_patch = 0;
    if (of->base < 0) {
        return false;
    }
    const int64_t base = of->base;
    of->base = -1;
    ft_rows rows = builder->rows; /* with what is staged */
    rows.data_bytes = builder->data_bytes;
    if (ft_make_base(&rows, builder->data + of->key, (size_t)base, builder->base) != FT_OK) {
        return false;
    }
    const size_t end = encode_patch(builder, i, builder->base, frame, patches, builder->patch_limit);
    const uint8_t *patch = builder->rooms[i].records[of->which] + patches;
    if (end == FT_NO_PATCH || end - patches > of->base_cost || ft_patch_stands_alone(patch, end - patches)) {
        return false;
    }
    of->base = base;
    of->base_cost -= end - patches;
    begin_record(builder, i, OBJECTS, 0, end);
    uint8_t *body = builder->rooms[i].records[of->which] + RECORD_HEADER;
    put_u24(body, (size_t)of->key);
    put_u24(body + OBJECTS_BASE, (size_t)base);
    put_u16(body + OBJECTS_COUNT, OBJECTS_PLAIN);
    return true;
}

/* Begin a group with a patch on a key frame that is there. */
static bool begin_with_patch(ft_builder *builder, size_t i, const uint8_t *frame) {
    stream *of = &builder->streams[i];
    const size_t patches = RECORD_PATCHES, frame_bytes = builder->rows.frame_bytes;
    const int64_t newest = builder->newest_key;
    /* A key frame is given up once patches on it have cost as much as two and a half frames: that is never far from the best
     * possible, and with several streams, the smallest in practice. */
    const size_t most = 2 * frame_bytes + frame_bytes / 2;
    int64_t key = of->key;
    size_t end = key >= 0 ? encode_first(builder, i, key, frame) : FT_NO_PATCH;
    size_t cost = end != FT_NO_PATCH ? of->key_cost + end - patches : SIZE_MAX;
    if (cost > most && newest >= 0 && newest != key) {
        /* Before another one is stored, the newest one is taken, which may be another stream's: environments of one game look
         * alike. It is as good as a new one, unless it is a different scene. */
        const size_t other = encode_first(builder, i, newest, frame);
        if (other != FT_NO_PATCH && (end == FT_NO_PATCH || other - patches <= 2 * (end - patches))) {
            key = newest;
            end = other;
            cost = end - patches;
        }
    }
    if (cost > most) {
        return false;
    }
    of->key = key;
    of->key_cost = cost;
    of->first_patch = end - patches;
    begin_record(builder, i, KEYED, (size_t)key, end);
    return true;
}

static int begin_with_key(ft_builder *builder, size_t i, const uint8_t *frame) {
    stream *of = &builder->streams[i];
    const size_t frame_bytes = builder->rows.frame_bytes, patches = RECORD_PATCHES;
    if (!ft_make_room_for_data(builder, RECORD_HEADER + frame_bytes)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    ft_put_record_header(target, frame_bytes, i, KEY, 0);
    ft_active->copy(target + RECORD_HEADER, frame, frame_bytes);
    builder->newest_key = of->key = (int64_t)(builder->data_bytes + RECORD_HEADER);
    of->key_cost = 0;
    builder->data_bytes += RECORD_HEADER + frame_bytes;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    begin_record(builder, i, KEYED, (size_t)of->key, patches + PATCH_PREFIX);
    memset(builder->rooms[i].records[of->which] + patches, 0, PATCH_PREFIX); /* a patch that changes nothing */
    return FT_OK;
}

static int open_group(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (!room_for_group(builder, i)) {
        return FT_NO_MEMORY;
    }
    of->coded[KEYED]++;
    if ((ft_codes_pictures(of) || !begin_on_base(builder, i, frame)) && !begin_with_patch(builder, i, frame)) {
        of->coded[KEYED]--;
        int coder = 0, result = FT_OK;
        size_t end = 0;
        if (!references_pay(of) || ft_codes_pictures(of)) {
            result = ft_begin_picture(builder, i, frame, codecs, &coder, &end);
        }
        if (result == FT_OK && coder != 0) {
            ft_put_record_header(builder->rooms[i].records[of->which], 0, i, coder, 0);
            of->staged = end;
        } else if (result == FT_OK) {
            coder = KEY;
            result = begin_with_key(builder, i, frame);
        }
        of->coded[coder]++;
        if (result != FT_OK) {
            return result;
        }
    }
    set_group(builder, i, of->n_groups++, 0, of->frames);
    of->group_frames = 1;
    return FT_OK;
}

/* Store a frame by itself, with the codec. */
static int store_alone(ft_builder *builder, size_t i, const uint8_t *frame, const ft_codecs *codecs) {
    const uint8_t *blob;
    size_t size;
    int coder = BLOB;
    const int coded = ft_encode_frame(builder, frame, codecs, &blob, &size);
    if (coded != FT_OK) {
        return coded;
    }
    if (size >= builder->rows.frame_bytes) {
        blob = frame;
        size = builder->rows.frame_bytes;
        coder = RAW;
    }
    if (!room_for_group(builder, i) || !ft_make_room_for_data(builder, RECORD_HEADER + size)) {
        return FT_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    ft_put_record_header(target, size, i, coder, 1);
    memcpy(target + RECORD_HEADER, blob, size);
    set_group(builder, i, builder->streams[i].n_groups++, builder->data_bytes, builder->streams[i].frames);
    builder->data_bytes += RECORD_HEADER + size;
    builder->streams[i].coded[coder]++;
    memset(builder->data + builder->data_bytes, 0, FT_READ_AHEAD);
    return FT_OK;
}

/* Write the patch on the last frame behind the open group, to which it does not belong yet. Returns where it ends. */
static size_t encode_next(ft_builder *builder, size_t i, const uint8_t *frame) {
    const stream *of = &builder->streams[i];
    const bool goes_on = builder->rows.method.references && of->tail_holds && of->group_frames > 0 &&
                         of->group_frames < 1u << builder->rows.method.shift;
    if (!goes_on || !ft_expects_patch(builder, i, builder->rooms[i].tail, frame)) {
        return FT_NO_PATCH;
    }
    return encode_patch(builder, i, builder->rooms[i].tail, frame, of->staged, ft_limit_patch(of, builder->patch_limit));
}

static int store_in_group(ft_builder *builder, size_t i, const uint8_t *frame, size_t end, const ft_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (end != FT_NO_PATCH) {
        of->staged = end;
        of->group_frames++;
        of->coded[KEYED]++;
        return FT_OK;
    }
    if (of->group_frames > 0) { /* a group that ends with its chunk is not counted */
        const bool is_short = of->group_frames < 1u << builder->rows.method.shift >> 1;
        ft_note_group(of, is_short);
        of->short_groups = !is_short ? 0 : references_pay(of) ? of->short_groups + 1 : FT_MANY_SHORT;
    }
    const int result = ft_close_group(builder, i, codecs);
    return result == FT_OK ? open_group(builder, i, frame, codecs) : result;
}

/* -- frames that the chunk holds already ---------------------------------------------------------------------------------- */

enum {
    FIRST_PLACES = 64,
    MOST_PLACES = 1 << 12, /* from there on, older frames are forgotten */
    PROBES = 4,
    CHEAP = 16,   /* a patch of less than this part of a frame takes less time to read than another group */
    /* Searches in vain until a stream is searched for 32 of 512 frames only; one that finds a frame makes up for eight. */
    PATIENCE = 64,
    FOUND = 8,
    SELDOM = 512,
    TRIED = 32,
};

void ft_describe_lane(const ft_builder *builder, size_t i, ft_lane *lane) {
    const stream *of = &builder->streams[i];
    lane->n_groups = (uint32_t)of->n_groups;
    lane->n_exceptions = (uint32_t)of->n_exceptions;
    lane->frames = of->frames;
    lane->open = of->group_frames > 0 ? builder->rooms[i].records[of->which] : NULL;
    lane->open_bytes = of->group_frames > 0 ? (uint32_t)of->staged : 0;
}

void ft_clear_places(frame_places *known) {
    known->count = 0;
    if (known->slots != NULL) {
        memset(known->slots, 0, known->n_slots * sizeof *known->slots);
    }
}

/* Eight words at a time, as a multiplication takes several steps. */
static uint32_t hash_frame(const uint8_t *frame, size_t size, size_t stream) {
    enum { WORDS = 8, WORD = 8 };
    const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t sums[WORDS] = {0}, sum = stream;
    size_t at = 0;
    for (; at + WORDS * WORD <= size; at += WORDS * WORD) {
        for (size_t j = 0; j < WORDS; j++) {
            uint64_t word;
            memcpy(&word, frame + at + j * WORD, WORD);
            word ^= sums[j];
            sums[j] = (word << 32 | word >> 32) * odd;
        }
    }
    for (; at < size; at++) {
        sums[0] = (sums[0] ^ frame[at]) * odd;
    }
    for (size_t j = 0; j < WORDS; j++) {
        sum = (sum ^ sums[j]) * odd;
        sum ^= sum >> 32;
    }
    return (uint32_t)sum;
}

static void add_place(frame_places *known, uint64_t slot) {
    const size_t mask = known->n_slots - 1, first = (size_t)(slot >> 32);
    size_t k = first & mask;
    for (size_t probe = 0; probe < PROBES; probe++) {
        if (known->slots[(first + probe) & mask] == 0) {
            k = (first + probe) & mask;
            known->count++;
            break;
        }
    }
    known->slots[k] = slot;
}

static bool room_for_place(frame_places *known) {
    if (2 * known->count < known->n_slots || known->n_slots >= MOST_PLACES) {
        return true;
    }
    const size_t n_slots = known->n_slots > 0 ? 4 * known->n_slots : FIRST_PLACES;
    frame_places larger = {ft_alloc(n_slots, sizeof *larger.slots), n_slots, 0};
    if (larger.slots == NULL) {
        return false;
    }
    for (size_t k = 0; k < known->n_slots; k++) {
        if (known->slots[k] != 0) {
            add_place(&larger, known->slots[k]);
        }
    }
    ft_free(known->slots);
    *known = larger;
    return true;
}

/* Whether a frame of a stream is this one, which its hash suggests. */
static int compare_stored(ft_builder *builder, size_t i, frame_number number, const uint8_t *frame, const ft_codecs *codecs, bool *same) {
    ft_lane lane = builder->lanes[i];
    ft_describe_lane(builder, i, &lane);
    ft_rows rows = builder->rows;
    rows.data_bytes = builder->data_bytes;
    ft_free(builder->compared); /* a codec has not returned then */
    builder->compared = ft_resize(NULL, 1, ft_measure_scratch(&rows));
    if (builder->compared == NULL) {
        return FT_NO_MEMORY;
    }
    const int result = ft_decode_frame(&rows, &lane, (size_t)number, builder->compared, codecs);
    *same = result == FT_OK && ft_active->same(frame, builder->compared, rows.frame_bytes);
    ft_free(builder->compared);
    builder->compared = NULL;
    return result;
}

/* Look for a frame among those that the chunk holds; `*number` is -1 where it is none of them. */
static int find_stored(ft_builder *builder, size_t i, const uint8_t *frame, uint32_t hash, const ft_codecs *codecs, frame_number *number) {
    const stream *of = &builder->streams[i];
    const frame_places *known = &builder->places;
    *number = -1;
    for (size_t probe = 0; probe < PROBES && known->n_slots > 0; probe++) {
        const uint64_t slot = known->slots[(hash + probe) & (known->n_slots - 1)];
        const frame_number other = (frame_number)(slot & 0xFFFFFFFF) - 1;
        if (other < 0) {
            break;
        }
        if (slot >> 32 != hash || (uint32_t)other >= of->frames || of->frames - (uint32_t)other >= FT_FAR) {
            continue;
        }
        bool same = false;
        const int result = compare_stored(builder, i, other, frame, codecs, &same);
        if (result != FT_OK || same) {
            *number = same ? other : -1;
            return result;
        }
    }
    return FT_OK;
}

/* Whether to look for a frame, of which the patch that would be stored ends at `end`. Without a stack alone: an observation of several
 * frames would have to be read from as many groups. */
static bool is_worth_search(const ft_builder *builder, size_t i, size_t end) {
    const stream *of = &builder->streams[i];
    const bool is_cheap = end != FT_NO_PATCH && (end - of->staged) * CHEAP < builder->rows.frame_bytes;
    return builder->rows.layout.depth == 1 && !is_cheap && (of->vain < PATIENCE || of->frames % SELDOM < TRIED);
}

int ft_store_frame(ft_builder *builder, size_t i, const uint8_t *given, const ft_codecs *codecs, frame_number *number) {
    stream *of = &builder->streams[i];
    const ft_rows *rows = &builder->rows;
    const uint8_t *frame = given;
    if (builder->values != NULL) {
        const uint8_t *before = of->tail_holds ? builder->rooms[i].given_tail : NULL;
        const int mapped = ft_map_values(builder->values, given, rows->frame_bytes, before, builder->rooms[i].tail, builder->coded);
        if (mapped != FT_OK) {
            return mapped;
        }
        frame = builder->coded;
    }
    const size_t end = encode_next(builder, i, frame);
    const bool unchanged = end != FT_NO_PATCH ? end == of->staged + PATCH_PREFIX
                                              : of->tail_holds && ft_active->same(frame, builder->rooms[i].tail, rows->frame_bytes);
    if (unchanged && rows->layout.depth == 1) {
        *number = (frame_number)of->frames - 1;
        return FT_OK;
    }
    const bool searches = is_worth_search(builder, i, end);
    uint32_t hash = 0;
    if (searches) {
        hash = hash_frame(frame, rows->frame_bytes, i);
        const int found = room_for_place(&builder->places) ? find_stored(builder, i, frame, hash, codecs, number) : FT_NO_MEMORY;
        if (found != FT_OK || *number >= 0) {
            of->vain = of->vain > FOUND ? of->vain - FOUND : 0;
            return found;
        }
        of->vain += of->vain < PATIENCE;
    }
    const int result = rows->method.references ? store_in_group(builder, i, frame, end, codecs) : store_alone(builder, i, frame, codecs);
    if (result == FT_OK) {
        ft_active->copy(builder->rooms[i].tail, frame, rows->frame_bytes);
        if (builder->values != NULL) {
            ft_active->copy(builder->rooms[i].given_tail, given, rows->given_bytes);
        }
        of->tail_holds = true;
        *number = (frame_number)of->frames++;
        if (searches) {
            add_place(&builder->places, (uint64_t)hash << 32 | of->frames);
        }
    }
    return result;
}
