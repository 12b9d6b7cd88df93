/* The chunk that is open: what is new in an observation, frames in groups, rows that do not follow from the row before. */
#include "chunk.h"

#include <string.h>

enum {
    FIRST_ROOM = 16,
    FIRST_DATA = 1 << 14,
    FIRST_HASHES = 64,
    MOST_CLASSES = 1 << 12, /* after which a chunk is full */
    MOST_DATA = 1 << 23,    /* bytes, likewise */
};

/* The frames of an observation, by number, oldest first; FT_ZEROS for zeros. */
typedef int32_t number;

/* One environment. What is in here is kept aside before a row is written, and put back if that fails. */
typedef struct stream {
    bool known;          /* whether `last` is the last observation, and `numbers` are its frames */
    bool tail_holds;     /* whether `tail` is the last stored frame */
    bool follows;        /* whether `before` are the frames of the last view of the row before */
    uint32_t frames;     /* stored ones */
    size_t n_groups, n_exceptions;
    /* The group that is being written. */
    unsigned which;      /* of the two records */
    size_t staged;       /* bytes of it */
    uint32_t group_frames; /* 0 while there is none */
    /* The key frame that patches of this stream are on. */
    int64_t key;         /* its offset, -1 for none */
    size_t key_cost;     /* bytes of all patches on it so far */
    uint32_t short_groups, row_above;
    /* The row that was written last. */
    uint32_t frames_before;
    unsigned written;    /* views, as bits */
    uint8_t exception[FT_EXCEPTION_BYTES]; /* only of what is kept aside: the last one, which a row that is written again replaces */
} stream;

/* What belongs to a stream and grows; counts are in `stream`, so nothing of it has to be put back. */
typedef struct room {
    uint8_t *tail, *last, *records[2];
    uint8_t *groups, *exceptions;
    size_t groups_room, exceptions_room;
    number *numbers;     /* of the last observation */
    number *cell;        /* of the row that was written last, view by view */
    number *before;      /* of the last view of the row before that */
} room;

struct ft_builder {
    ft_rows rows;        /* up to the last commit */
    size_t most_rows;
    size_t patch_limit;  /* a longer patch does not pay */
    size_t record_bytes; /* of a group that is being written */
    ft_lane *lanes;
    stream *streams, *saved;
    room *rooms;
    uint8_t *memory, *counts;
    number *number_memory;
    number *saved_numbers;
    uint8_t *data;
    size_t data_bytes, data_room, saved_data_bytes;
    int64_t newest_key, saved_newest_key;
    uint8_t *classes;
    size_t n_classes, classes_room;
    uint32_t *hashes;    /* class + 1, 0 for free */
    size_t n_hashes;     /* a power of two, more than twice the classes */
    size_t staged_row;
    bool turned;         /* memory order of the last observations */
    uint8_t *frames;     /* scratch: 2 x depth + 2 padded frames */
    uint8_t *spare;      /* where the next observation of a stream goes: it changes places with `last` of that */
    uint8_t *zeros;
};

static bool references_pay(const stream *of) { return of->short_groups < FL_MANY_SHORT; }

/* -- making one ----------------------------------------------------------------------------------------------------------- */

static size_t record_bytes_for(const ft_rows *rows, size_t patch_limit) {
    const size_t frame = rows->frame_bytes;
    if (!rows->method.references) {
        return FT_RECORD_HEADER + frame + FL_READ_AHEAD;
    }
    const size_t full = frame + (((size_t)1 << rows->method.shift) - 1) * patch_limit;
    const size_t most = 3 * frame + 64, least = frame + 64, patches = full < most ? full : most;
    return FT_RECORD_HEADER + RECORD_NUMBER + (patches > least ? patches : least) + FL_READ_AHEAD;
}

static size_t numbers_of(const ft_builder *builder) { return (2 + builder->rows.views) * builder->rows.layout.depth; }

static bool make_streams(ft_builder *builder) {
    const ft_rows *rows = &builder->rows;
    const size_t n = rows->n_streams, depth = rows->layout.depth, blocks = (builder->most_rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS;
    const size_t last = fl_padded(rows->obs_bytes), each = rows->stride + last + 2 * builder->record_bytes;
    const size_t scratch = (2 * depth + 2) * rows->stride + last + fl_padded(rows->layout.row) + FL_WRITE_AHEAD;
    if (each > SIZE_MAX / 4 / n) {
        return false;
    }
    builder->streams = fl_alloc(n, sizeof *builder->streams);
    builder->saved = fl_alloc(n, sizeof *builder->saved);
    builder->rooms = fl_alloc(n, sizeof *builder->rooms);
    builder->lanes = fl_alloc(n, sizeof *builder->lanes);
    builder->counts = fl_alloc(n * blocks, FT_COUNT_BYTES);
    builder->number_memory = fl_alloc(n * numbers_of(builder), sizeof(number));
    builder->saved_numbers = fl_alloc(n * numbers_of(builder), sizeof(number));
    builder->memory = fl_alloc(n * each + scratch, 1);
    builder->hashes = fl_alloc(FIRST_HASHES, sizeof *builder->hashes);
    builder->n_hashes = FIRST_HASHES;
    if (!builder->streams || !builder->saved || !builder->rooms || !builder->lanes || !builder->counts ||
        !builder->number_memory || !builder->saved_numbers || !builder->memory || !builder->hashes) {
        return false;
    }
    for (size_t i = 0; i < n; i++) { /* all tails, then all last observations, then all records */
        room *of = &builder->rooms[i];
        of->tail = builder->memory + i * rows->stride;
        of->last = builder->memory + n * rows->stride + i * last;
        of->records[0] = builder->memory + n * (rows->stride + last) + 2 * i * builder->record_bytes;
        of->records[1] = of->records[0] + builder->record_bytes;
        of->numbers = builder->number_memory + i * numbers_of(builder);
        of->before = of->numbers + depth;
        of->cell = of->before + depth;
        builder->lanes[i].counts = builder->counts + i * blocks * FT_COUNT_BYTES;
    }
    builder->spare = builder->memory + n * each;
    builder->frames = builder->spare + last;
    builder->zeros = builder->frames + (2 * depth + 2) * rows->stride;
    return true;
}

ft_builder *ft_builder_new(const ft_schema *schema, size_t most_rows, int *result) {
    ft_builder *builder = fl_alloc(1, sizeof *builder);
    *result = FL_NO_MEMORY;
    if (builder == NULL) {
        return NULL;
    }
    if (!ft_rows_init(&builder->rows, schema)) {
        *result = FL_INVALID;
        ft_builder_free(builder);
        return NULL;
    }
    const size_t eighth = builder->rows.frame_bytes / 8;
    builder->patch_limit = eighth > 32 ? eighth : 32;
    builder->record_bytes = record_bytes_for(&builder->rows, builder->patch_limit);
    builder->most_rows = most_rows;
    if (!make_streams(builder)) {
        ft_builder_free(builder);
        return NULL;
    }
    builder->rows.lanes = builder->lanes;
    ft_builder_begin(builder);
    *result = FL_OK;
    return builder;
}

void ft_builder_free(ft_builder *builder) {
    if (builder == NULL) {
        return;
    }
    for (size_t i = 0; builder->rooms != NULL && i < builder->rows.n_streams; i++) {
        fl_free(builder->rooms[i].groups);
        fl_free(builder->rooms[i].exceptions);
    }
    void *parts[] = {builder->streams, builder->saved, builder->rooms, builder->lanes, builder->counts, builder->number_memory,
                     builder->saved_numbers, builder->memory, builder->hashes, builder->data, builder->classes};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        fl_free(parts[i]);
    }
    fl_free(builder);
}

void ft_builder_begin(ft_builder *builder) {
    builder->rows.rows = builder->rows.data_bytes = builder->rows.n_classes = 0;
    builder->data_bytes = builder->n_classes = 0;
    builder->newest_key = -1;
    memset(builder->hashes, 0, builder->n_hashes * sizeof *builder->hashes);
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        stream *of = &builder->streams[i];
        *of = (stream){.key = -1, .short_groups = of->short_groups, .row_above = of->row_above};
        ft_lane *lane = &builder->lanes[i];
        lane->n_groups = lane->n_exceptions = lane->frames = lane->open_bytes = 0;
        lane->open = NULL;
    }
}

const ft_rows *ft_builder_rows(const ft_builder *builder) { return &builder->rows; }

bool ft_builder_is_full(const ft_builder *builder) {
    bool full = builder->rows.rows >= builder->most_rows || builder->data_bytes >= MOST_DATA ||
                builder->n_classes >= MOST_CLASSES;
    for (size_t i = 0; i < builder->rows.n_streams && !full; i++) {
        full = builder->streams[i].frames >= FT_MOST_FRAMES;
    }
    return full;
}

size_t ft_builder_last_added(const ft_builder *builder, size_t i) {
    return builder->streams[i].frames - builder->streams[i].frames_before;
}

bool ft_builder_last(const ft_builder *builder, size_t i, uint8_t *out) {
    const ft_rows *rows = &builder->rows;
    if (!builder->streams[i].known) {
        return false;
    }
    if (builder->turned) {
        fl_turn(&rows->layout, builder->rooms[i].last, true, out);
    } else {
        memcpy(out, builder->rooms[i].last, rows->obs_bytes);
    }
    return true;
}

/* -- room for more ----------------------------------------------------------------------------------------------------------- */

/* Make sure that `bytes` more fit behind `used`; what readers see of it moves along. */
static bool make_room(uint8_t **memory, size_t *room, size_t used, size_t bytes, size_t first, const uint8_t **seen) {
    if (bytes <= *room && used <= *room - bytes) {
        return true;
    }
    size_t larger = *room > 0 ? *room + *room / 2 : first;
    larger = larger > used + bytes ? larger : used + bytes;
    uint8_t *moved = fl_resize(*memory, larger, 1);
    if (moved == NULL) {
        return false;
    }
    *memory = moved;
    *room = larger;
    *seen = moved;
    return true;
}

static bool room_for_data(ft_builder *builder, size_t bytes) {
    return make_room(&builder->data, &builder->data_room, builder->data_bytes, bytes + FL_READ_AHEAD, FIRST_DATA,
                     &builder->rows.data);
}

/* -- groups ------------------------------------------------------------------------------------------------------------------- */

static void put_record_header(uint8_t *record, size_t body, size_t i, int coder, uint32_t frames) {
    put_u32(record, body);
    put_u16(record + 4, i & 0xFFFF);
    record[FT_RECORD_CODER] = (uint8_t)coder;
    record[FT_RECORD_CODER + 1] = (uint8_t)frames;
}

/* Note where the record of a stream's newest group lies. */
static void set_group(ft_builder *builder, size_t i, size_t group, size_t offset, size_t first) {
    uint8_t *entry = builder->rooms[i].groups + group * FT_GROUP_BYTES;
    put_u32(entry, offset);
    put_u16(entry + 4, first);
}

static bool room_for_group(ft_builder *builder, size_t i) {
    room *of = &builder->rooms[i];
    return make_room(&of->groups, &of->groups_room, builder->streams[i].n_groups * FT_GROUP_BYTES, FT_GROUP_BYTES,
                     FIRST_ROOM * FT_GROUP_BYTES, &builder->lanes[i].groups);
}

/* Red, green and blue of a pixel have more to do with each other than neighbours have, so codecs get them side by side. */
static int encode_frame(ft_builder *builder, const uint8_t *frame, const fl_codecs *codecs, const uint8_t **blob, size_t *size) {
    const fl_layout *layout = &builder->rows.layout;
    if (layout->interleave) {
        uint8_t *pixels = builder->frames + (2 * layout->depth + 1) * builder->rows.stride;
        fl_active->transpose(frame, pixels, layout->planes, fl_pixels(layout), layout->item);
        frame = pixels;
    }
    return codecs->encode(codecs->context, FL_FRAME_CODEC, frame, builder->rows.frame_bytes, blob, size);
}

/* Move the record of a stream's open group to the data. */
static int close_group(ft_builder *builder, size_t i, const fl_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (of->group_frames == 0) {
        return FL_OK;
    }
    uint8_t *record = builder->rooms[i].records[of->which];
    const size_t body = of->staged - FT_RECORD_HEADER;
    const uint8_t *blob = NULL;
    size_t size = 0;
    if (builder->rows.method.packs && record[FT_RECORD_CODER] == KEYED) {
        const int coded = codecs->encode(codecs->context, FL_GROUP_CODEC, record + FT_RECORD_HEADER, body, &blob, &size);
        if (coded != FL_OK) {
            return coded;
        }
        if (size + RECORD_NUMBER >= body) {
            blob = NULL;
        }
    }
    const size_t length = blob != NULL ? FT_RECORD_HEADER + RECORD_NUMBER + size : of->staged;
    if (!room_for_data(builder, length)) {
        return FL_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    if (blob != NULL) {
        put_record_header(target, RECORD_NUMBER + size, i, PACKED, of->group_frames);
        put_u32(target + FT_RECORD_HEADER, body);
        memcpy(target + FT_RECORD_HEADER + RECORD_NUMBER, blob, size);
    } else {
        fl_active->copy(target, record, length);
        put_record_header(target, body, i, record[FT_RECORD_CODER], of->group_frames);
    }
    set_group(builder, i, of->n_groups - 1, builder->data_bytes, of->frames - of->group_frames);
    builder->data_bytes += length;
    memset(builder->data + builder->data_bytes, 0, FL_READ_AHEAD);
    const bool is_short = of->group_frames < 1u << builder->rows.method.shift >> 1;
    of->short_groups = !is_short ? 0 : references_pay(of) ? of->short_groups + 1 : FL_MANY_SHORT;
    of->group_frames = 0;
    of->which = builder->saved[i].which ^ 1; /* the other record is there until the row is committed */
    return FL_OK;
}

static size_t encode_patch(ft_builder *builder, size_t i, const uint8_t *before, const uint8_t *frame, size_t start, size_t limit) {
    const size_t most = builder->record_bytes - FL_READ_AHEAD, stop = start + limit < most ? start + limit : most;
    return fl_active->encode(before, frame, builder->rows.frame_bytes, builder->rows.layout.row, builder->zeros,
                             &builder->streams[i].row_above, builder->rooms[i].records[builder->streams[i].which], start, stop);
}

static void begin_record(ft_builder *builder, size_t i, int coder, size_t number, size_t staged) {
    uint8_t *record = builder->rooms[i].records[builder->streams[i].which];
    put_record_header(record, 0, i, coder, 0);
    put_u32(record + FT_RECORD_HEADER, number);
    builder->streams[i].staged = staged;
}

/* Begin a group with a patch on a key frame that is there. */
static bool begin_with_patch(ft_builder *builder, size_t i, const uint8_t *frame) {
    stream *of = &builder->streams[i];
    const bool own = of->key >= 0;
    const int64_t key = own ? of->key : builder->newest_key;
    if (key < 0) {
        return false;
    }
    const size_t frame_bytes = builder->rows.frame_bytes, patches = FT_RECORD_HEADER + RECORD_NUMBER;
    const size_t limit = references_pay(of) ? frame_bytes / 2 : builder->patch_limit;
    const size_t end = encode_patch(builder, i, builder->data + key, frame, patches, limit);
    if (end == FL_NO_PATCH) {
        return false;
    }
    /* A new key frame is stored once patches on the old one have cost half as much again as it does: that is never far from the
     * best possible, and where a game goes on as it was, the smallest in practice. */
    const size_t cost = (own ? of->key_cost : 0) + end - patches;
    if (cost > frame_bytes + frame_bytes / 2) {
        return false;
    }
    of->key = key;
    of->key_cost = cost;
    begin_record(builder, i, KEYED, (size_t)key, end);
    return true;
}

static int begin_with_key(ft_builder *builder, size_t i, const uint8_t *frame) {
    stream *of = &builder->streams[i];
    const size_t frame_bytes = builder->rows.frame_bytes, patches = FT_RECORD_HEADER + RECORD_NUMBER;
    if (!room_for_data(builder, FT_RECORD_HEADER + frame_bytes)) {
        return FL_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    put_record_header(target, frame_bytes, i, KEY, 0);
    fl_active->copy(target + FT_RECORD_HEADER, frame, frame_bytes);
    builder->newest_key = of->key = (int64_t)(builder->data_bytes + FT_RECORD_HEADER);
    of->key_cost = 0;
    builder->data_bytes += FT_RECORD_HEADER + frame_bytes;
    memset(builder->data + builder->data_bytes, 0, FL_READ_AHEAD);
    begin_record(builder, i, KEYED, (size_t)of->key, patches + PATCH_PREFIX);
    memset(builder->rooms[i].records[of->which] + patches, 0, PATCH_PREFIX); /* a patch that changes nothing */
    return FL_OK;
}

static int open_group(ft_builder *builder, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    stream *of = &builder->streams[i];
    const size_t frame_bytes = builder->rows.frame_bytes;
    if (!room_for_group(builder, i)) {
        return FL_NO_MEMORY;
    }
    if (!begin_with_patch(builder, i, frame)) {
        const uint8_t *blob = NULL;
        size_t size = frame_bytes;
        int result = references_pay(of) ? FL_OK : encode_frame(builder, frame, codecs, &blob, &size);
        if (result == FL_OK && size < frame_bytes) {
            begin_record(builder, i, CODED, size, FT_RECORD_HEADER + RECORD_NUMBER + size);
            memcpy(builder->rooms[i].records[of->which] + FT_RECORD_HEADER + RECORD_NUMBER, blob, size);
        } else if (result == FL_OK) {
            result = begin_with_key(builder, i, frame);
        }
        if (result != FL_OK) {
            return result;
        }
    }
    set_group(builder, i, of->n_groups++, 0, of->frames);
    of->group_frames = 1;
    return FL_OK;
}

/* Store a frame by itself, with the codec. */
static int store_alone(ft_builder *builder, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    const uint8_t *blob;
    size_t size;
    int coder = BLOB;
    const int coded = encode_frame(builder, frame, codecs, &blob, &size);
    if (coded != FL_OK) {
        return coded;
    }
    if (size >= builder->rows.frame_bytes) {
        blob = frame;
        size = builder->rows.frame_bytes;
        coder = RAW;
    }
    if (!room_for_group(builder, i) || !room_for_data(builder, FT_RECORD_HEADER + size)) {
        return FL_NO_MEMORY;
    }
    uint8_t *target = builder->data + builder->data_bytes;
    put_record_header(target, size, i, coder, 1);
    memcpy(target + FT_RECORD_HEADER, blob, size);
    set_group(builder, i, builder->streams[i].n_groups++, builder->data_bytes, builder->streams[i].frames);
    builder->data_bytes += FT_RECORD_HEADER + size;
    memset(builder->data + builder->data_bytes, 0, FL_READ_AHEAD);
    return FL_OK;
}

static int store_in_group(ft_builder *builder, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    stream *of = &builder->streams[i];
    if (of->tail_holds && of->group_frames > 0 && of->group_frames < 1u << builder->rows.method.shift) {
        const size_t end = encode_patch(builder, i, builder->rooms[i].tail, frame, of->staged, builder->patch_limit);
        if (end != FL_NO_PATCH) {
            of->staged = end;
            of->group_frames++;
            return FL_OK;
        }
    }
    const int result = close_group(builder, i, codecs);
    return result == FL_OK ? open_group(builder, i, frame, codecs) : result;
}

/* Store a frame: it is the stream's last one then. */
static int store_frame(ft_builder *builder, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    stream *of = &builder->streams[i];
    const int result = builder->rows.method.references ? store_in_group(builder, i, frame, codecs)
                                                       : store_alone(builder, i, frame, codecs);
    if (result == FL_OK) {
        fl_active->copy(builder->rooms[i].tail, frame, builder->rows.frame_bytes);
        of->tail_holds = true;
        of->frames++;
    }
    return result;
}

/* -- observations ---------------------------------------------------------------------------------------------------------------- */

static bool is_zeros(const uint8_t *frame, size_t size) { return frame[0] == 0 && memcmp(frame, frame + 1, size - 1) == 0; }

/* An observation that does not follow from the last one: look for each of its frames. */
static int write_other(ft_builder *builder, size_t i, const uint8_t *obs, const fl_codecs *codecs) {
    const ft_rows *rows = &builder->rows;
    const size_t depth = rows->layout.depth, size = rows->frame_bytes, stride = rows->stride;
    stream *of = &builder->streams[i];
    number *numbers = builder->rooms[i].numbers, found[FL_MAX_DEPTH];
    uint8_t *now = builder->frames, *before = now + depth * stride, *scratch = before + depth * stride;
    const uint8_t *known[2 * FL_MAX_DEPTH];
    number known_as[2 * FL_MAX_DEPTH];
    size_t count = 0;
    for (size_t j = 0; j < depth; j++) {
        fl_take_frame(&rows->layout, obs, builder->turned, j, now + j * stride, scratch);
    }
    for (size_t j = 0; of->known && j < depth; j++) {
        if (numbers[j] >= 0 && of->frames - (uint32_t)numbers[j] < FT_FAR) {
            fl_take_frame(&rows->layout, builder->rooms[i].last, builder->turned, j, before + j * stride, scratch);
            known[count] = before + j * stride;
            known_as[count++] = numbers[j];
        }
    }
    of->known = false;
    for (size_t j = 0; j < depth; j++) {
        const uint8_t *frame = now + j * stride;
        found[j] = FT_ZEROS;
        if (is_zeros(frame, size)) {
            continue;
        }
        for (size_t k = 0; k < count && found[j] < 0; k++) {
            found[j] = memcmp(frame, known[k], size) == 0 ? known_as[k] : FT_ZEROS;
        }
        if (found[j] < 0) {
            found[j] = (number)of->frames;
            const int stored = store_frame(builder, i, frame, codecs);
            if (stored != FL_OK) {
                return stored;
            }
            known[count] = frame;
            known_as[count++] = found[j];
        }
    }
    memcpy(numbers, found, depth * sizeof *numbers);
    fl_active->copy(builder->rooms[i].last, obs, rows->obs_bytes);
    of->known = true;
    return FL_OK;
}

/* Find out which frames an observation is made of, and store those that are new. `moves` tells whether one that is moved on by a
 * frame is expected, rather than the last one again. */
static int write_observation(ft_builder *builder, size_t i, const uint8_t *obs, bool moves, const fl_codecs *codecs) {
    const ft_rows *rows = &builder->rows;
    const fl_layout *layout = &rows->layout;
    const size_t depth = layout->depth;
    stream *of = &builder->streams[i];
    room *at = &builder->rooms[i];
    if (of->known && !moves && fl_active->same(obs, at->last, rows->obs_bytes)) {
        return FL_OK;
    }
    uint8_t *scratch = builder->frames + 2 * depth * rows->stride;
    const bool moved = of->known && (depth == 1 || fl_moved_on(layout, obs, at->last, builder->turned, builder->frames,
                                                               builder->spare, scratch));
    if (!moved) {
        const bool same = of->known && moves && fl_active->same(obs, at->last, rows->obs_bytes);
        return same ? FL_OK : write_other(builder, i, obs, codecs);
    }
    const uint8_t *frame = builder->frames;
    if (depth == 1 && builder->turned) {
        fl_take_frame(layout, obs, true, 0, builder->frames, scratch);
    } else if (depth == 1) {
        frame = obs;
    }
    const number newest = (number)of->frames;
    of->known = false;
    const int stored = store_frame(builder, i, frame, codecs);
    if (stored != FL_OK) {
        return stored;
    }
    of->known = true;
    if (depth == 1) {
        fl_active->copy(at->last, obs, rows->obs_bytes);
    } else {
        uint8_t *last = at->last;
        at->last = builder->spare;
        builder->spare = last;
    }
    memmove(at->numbers, at->numbers + 1, (depth - 1) * sizeof *at->numbers);
    at->numbers[depth - 1] = newest;
    return FL_OK;
}

/* Bring the last observations into another memory order. */
static void set_order(ft_builder *builder, bool turned) {
    if (builder->turned == turned) {
        return;
    }
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        if (builder->streams[i].known) {
            memcpy(builder->frames, builder->rooms[i].last, builder->rows.obs_bytes);
            fl_turn(&builder->rows.layout, builder->frames, builder->turned, builder->rooms[i].last);
        }
    }
    builder->turned = turned;
}

/* -- rows ------------------------------------------------------------------------------------------------------------------------ */

/* Whether the row that was written last follows from the one before by the rule that most rows follow. */
static bool is_regular(const ft_builder *builder, size_t i) {
    const stream *of = &builder->streams[i];
    const size_t depth = builder->rows.layout.depth, views = builder->rows.views;
    const number *before = builder->rooms[i].before, *cell = builder->rooms[i].cell, *moved = cell + (views - 1) * depth;
    if (!of->follows || of->written != (1u << views) - 1 || of->frames - of->frames_before != 1 ||
        moved[depth - 1] != (number)of->frames_before || memcmp(moved, before + 1, (depth - 1) * sizeof *moved) != 0) {
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
    const size_t size = ft_class_bytes(&builder->rows);
    for (size_t place = hash_of(wanted, size);; place++) {
        uint32_t *entry = &builder->hashes[place & (builder->n_hashes - 1)];
        if (*entry == 0 || memcmp(builder->classes + (*entry - 1) * size, wanted, size) == 0) {
            return entry;
        }
    }
}

static bool room_for_class(ft_builder *builder) {
    const size_t size = ft_class_bytes(&builder->rows);
    if (2 * (builder->n_classes + 1) > builder->n_hashes) {
        uint32_t *hashes = fl_alloc(2 * builder->n_hashes, sizeof *hashes);
        if (hashes == NULL) {
            return false;
        }
        fl_free(builder->hashes);
        builder->hashes = hashes;
        builder->n_hashes *= 2;
        for (uint32_t k = 0; k < builder->n_classes; k++) {
            *find_hash(builder, builder->classes + k * size) = k + 1;
        }
    }
    return make_room(&builder->classes, &builder->classes_room, builder->n_classes * size, size, FIRST_ROOM * size,
                     &builder->rows.classes);
}

/* The number of the class of the row that was written last, or an error. */
static int64_t find_class(ft_builder *builder, size_t i) {
    const stream *of = &builder->streams[i];
    const size_t depth = builder->rows.layout.depth;
    if (!room_for_class(builder)) {
        return FL_NO_MEMORY;
    }
    uint8_t *wanted = builder->classes + builder->n_classes * ft_class_bytes(&builder->rows); /* if it is new, it is there already */
    put_u16(wanted, of->frames - of->frames_before);
    for (size_t k = 0; k < builder->rows.views * depth; k++) {
        const number frame = builder->rooms[i].cell[k];
        const number relative = frame < 0 ? frame : frame - (number)of->frames_before;
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
    room *at = &builder->rooms[i];
    if (!make_room(&at->exceptions, &at->exceptions_room, of->n_exceptions * FT_EXCEPTION_BYTES, FT_EXCEPTION_BYTES,
                   FIRST_ROOM * FT_EXCEPTION_BYTES, &builder->lanes[i].exceptions)) {
        return FL_NO_MEMORY;
    }
    uint8_t *entry = at->exceptions + of->n_exceptions++ * FT_EXCEPTION_BYTES;
    put_u16(entry, row);
    put_u16(entry + 2, of->frames_before);
    put_u32(entry + 4, (size_t)class);
    return FL_OK;
}

/* Begin a row of a stream in which nothing is written yet. */
static void begin_cell(ft_builder *builder, size_t i, size_t row) {
    stream *of = &builder->streams[i];
    room *at = &builder->rooms[i];
    const size_t depth = builder->rows.layout.depth, views = builder->rows.views;
    of->follows = of->written >> (views - 1) & 1;
    memcpy(at->before, at->cell + (views - 1) * depth, depth * sizeof *at->before);
    for (size_t k = 0; k < views * depth; k++) {
        at->cell[k] = FT_UNWRITTEN;
    }
    of->written = 0;
    of->frames_before = of->frames;
    if (row % FT_BLOCK_ROWS == 0) {
        put_u16((uint8_t *)builder->lanes[i].counts + row / FT_BLOCK_ROWS * FT_COUNT_BYTES, of->n_exceptions);
    }
}

static uint8_t *last_exception(const ft_builder *builder, size_t i) {
    return builder->rooms[i].exceptions + (builder->streams[i].n_exceptions - 1) * FT_EXCEPTION_BYTES;
}

/* Keep the state of all streams, to be put back if a row fails. */
static void save(ft_builder *builder) {
    const size_t n = builder->rows.n_streams;
    memcpy(builder->saved, builder->streams, n * sizeof *builder->saved);
    for (size_t i = 0; i < n; i++) {
        if (builder->saved[i].n_exceptions > 0) {
            memcpy(builder->saved[i].exception, last_exception(builder, i), FT_EXCEPTION_BYTES);
        }
    }
    memcpy(builder->saved_numbers, builder->number_memory, n * numbers_of(builder) * sizeof(number));
    builder->saved_data_bytes = builder->data_bytes;
    builder->saved_newest_key = builder->newest_key;
}

void ft_builder_abort(ft_builder *builder) {
    const size_t n = builder->rows.n_streams;
    for (size_t i = 0; i < n; i++) {
        const bool tail_holds = builder->saved[i].tail_holds && builder->streams[i].frames == builder->saved[i].frames;
        builder->streams[i] = builder->saved[i];
        builder->streams[i].tail_holds = tail_holds;
        builder->streams[i].known = false; /* the last observation may have been written over */
        if (builder->saved[i].n_exceptions > 0) {
            memcpy(last_exception(builder, i), builder->saved[i].exception, FT_EXCEPTION_BYTES);
        }
    }
    memcpy(builder->number_memory, builder->saved_numbers, n * numbers_of(builder) * sizeof(number));
    builder->data_bytes = builder->saved_data_bytes;
    builder->newest_key = builder->saved_newest_key;
}

/* Let readers see what has been written. */
static void publish(ft_builder *builder, size_t rows) {
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        const stream *of = &builder->streams[i];
        ft_lane *lane = &builder->lanes[i];
        lane->n_groups = of->n_groups;
        lane->n_exceptions = of->n_exceptions;
        lane->frames = of->frames;
        lane->open = of->group_frames > 0 ? builder->rooms[i].records[of->which] : NULL;
        lane->open_bytes = of->group_frames > 0 ? of->staged : 0;
    }
    builder->rows.data_bytes = builder->data_bytes;
    builder->rows.n_classes = builder->n_classes;
    builder->rows.rows = rows;
}

void ft_builder_commit(ft_builder *builder) { publish(builder, builder->staged_row + 1); }

int ft_builder_close_groups(ft_builder *builder, const fl_codecs *codecs) {
    int result = FL_OK;
    for (size_t i = 0; i < builder->rows.n_streams && result == FL_OK; i++) {
        result = close_group(builder, i, codecs);
    }
    publish(builder, builder->rows.rows);
    return result;
}

static int write_parts(ft_builder *builder, const ft_part *parts, size_t n_parts, const fl_codecs *codecs) {
    const size_t depth = builder->rows.layout.depth, views = builder->rows.views;
    /* Both observations of a stream, then those of the next: what the second is compared with is still in a cache. */
    const bool alike = n_parts == 2 && parts[0].turned == parts[1].turned && parts[0].streams == parts[1].streams &&
                       parts[0].count == parts[1].count;
    const size_t together = alike ? 2 : 1;
    for (size_t done = 0; done < n_parts; done += together) {
        set_order(builder, parts[done].turned);
        for (size_t k = 0; k < parts[done].count * together; k++) {
            const ft_part *part = &parts[done + k % together];
            const size_t i = part->streams ? part->streams[k / together] : k / together;
            const uint8_t *obs = part->obs + k / together * builder->rows.obs_bytes;
            const int result = write_observation(builder, i, obs, part->view + 1 == views, codecs);
            if (result != FL_OK) {
                return result;
            }
            memcpy(builder->rooms[i].cell + part->view * depth, builder->rooms[i].numbers, depth * sizeof(number));
            builder->streams[i].written |= 1u << part->view;
        }
    }
    return FL_OK;
}

/* Note which streams do not follow from the row before. */
static int note_exceptions(ft_builder *builder, size_t row) {
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
        if (result != FL_OK) {
            return result;
        }
    }
    return FL_OK;
}

int ft_builder_stage(ft_builder *builder, size_t row, const ft_part *parts, size_t n_parts, const fl_codecs *codecs) {
    save(builder);
    for (size_t i = 0; row == builder->rows.rows && i < builder->rows.n_streams; i++) {
        begin_cell(builder, i, row);
    }
    builder->staged_row = row;
    int result = write_parts(builder, parts, n_parts, codecs);
    if (result == FL_OK) {
        result = note_exceptions(builder, row);
    }
    if (result != FL_OK) {
        ft_builder_abort(builder);
    }
    return result;
}

/* -- what it takes ---------------------------------------------------------------------------------------------------------------- */

size_t ft_builder_index_bytes(const ft_builder *builder) {
    const ft_rows *rows = &builder->rows;
    size_t bytes = rows->n_classes * ft_class_bytes(rows);
    for (size_t i = 0; i < rows->n_streams; i++) {
        bytes += builder->lanes[i].n_groups * FT_GROUP_BYTES + builder->lanes[i].n_exceptions * FT_EXCEPTION_BYTES;
    }
    return bytes + rows->n_streams * ((rows->rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS) * FT_COUNT_BYTES;
}

size_t ft_builder_held_bytes(const ft_builder *builder) {
    size_t bytes = builder->data_room + builder->classes_room;
    for (size_t i = 0; i < builder->rows.n_streams; i++) {
        bytes += builder->rooms[i].groups_room + builder->rooms[i].exceptions_room;
    }
    return bytes;
}
