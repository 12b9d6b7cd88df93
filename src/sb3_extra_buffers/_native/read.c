/* Reading: from cells to frames to groups, each group walked once for all that an observation, or a pair, wants of it. */
#include "format.h"
#include "frames.h"

#include <string.h>

enum {
    LINE = 64,
    /* How many observations before its turn each part of one is fetched; each is found by means of the one before it. */
    FETCH_ENTRIES = 7,
    FETCH_DIRECTORY = 5,
    FETCH_HEADERS = 3,
    FETCH_FRAMES = 1,
    PIECE = 4, /* observations that one of two takes at a time */
};
#ifndef CACHED
#define CACHED ((size_t)1 << 19)   /* a log of fewer bytes is in the processor's second-level cache, about */
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#if defined(_M_X64)
#include <intrin.h>
#define FETCH(address) _mm_prefetch((const char *)(address), _MM_HINT_T1)
#else
#define FETCH(address) ((void)(address))
#endif
#else
#define FETCH(address) __builtin_prefetch((address), 0, 2)
#endif

/* One call of fl_read. */
typedef struct request {
    const fl_store *store;
    const fl_read_part *parts;
    size_t n_parts;
    const int64_t *rows, *columns;
    size_t count;
    const fl_codecs *codecs;
    bool ahead;    /* whether to fetch what is needed next; takes longer where all is in a cache anyway */
    uint8_t *scratch;
    size_t scratch_bytes; /* of each worker */
    int results[2];
} request;

/* Memory of one thread. */
typedef struct scratch {
    uint8_t *frame;  /* the frame that patches are applied to, and FL_WRITE_AHEAD */
    uint8_t *first;  /* what a codec made of a blob */
    uint8_t *pixels;
    uint8_t *body;   /* what the group codec made of one, and FL_READ_AHEAD */
} scratch;

/* A group, ready to be walked. */
typedef struct group {
    const uint8_t *base;    /* the key frame, or the first frame itself */
    bool keyed;             /* which of them */
    const uint8_t *patches;
    size_t length;
} group;

/* -- where things are --------------------------------------------------------------------------------------------------------- */

/* The cell of the batch's observation; -1 where there is none. */
static int64_t cell_of(const request *of, size_t row) {
    const int64_t n = (int64_t)of->store->n_streams;
    int64_t cell = of->rows[row];
    if (of->columns != NULL) {
        const int64_t column = of->columns[row];
        if (column < 0 || column >= n || cell < 0 || cell > (INT64_MAX - n) / n) {
            return -1;
        }
        cell = cell * n + column;
    }
    for (size_t part = 0; part < of->n_parts; part++) {
        if (cell < 0 || (uint64_t)cell >= of->parts[part].index->cells) {
            return -1;
        }
    }
    return cell;
}

/* Work out which frames an observation is made of, FL_ZERO for zeros; tells whether the entry makes sense. */
static bool locate(const fl_store *store, const fl_index *index, size_t cell, const fl_stream *stream, int64_t *wanted) {
    const size_t depth = store->layout.depth;
    const uint32_t pattern =
        index->wide ? ((const uint32_t *)index->patterns)[cell] : ((const uint16_t *)index->patterns)[cell];
    if (pattern >= store->patterns.count) {
        return false;
    }
    const int64_t number = stream->head - (int64_t)((uint32_t)stream->head - index->newest[cell]);
    const int32_t *offsets = store->patterns.offsets + pattern * depth;
    for (size_t j = 0; j < depth; j++) {
        wanted[j] = offsets[j] < 0 ? FL_ZERO : number - offsets[j];
        if (offsets[j] >= 0 && wanted[j] < 0) {
            return false;
        }
    }
    return true;
}

static const uint64_t *directory_entry(const fl_store *store, size_t i, int64_t group) {
    const size_t capacity = store->directory.capacity;
    return &store->directory.locations[i * capacity + (uint64_t)group % capacity];
}

/* Whether there is such a segment, with memory. */
static bool is_there(const fl_store *store, size_t segment) {
    return segment < store->log.count && store->log.segments[segment].block != NULL;
}

static int decode(const request *of, int which, const uint8_t *blob, size_t size, uint8_t *out, size_t out_size) {
    return of->codecs->decode(of->codecs->context, which, blob, size, out, out_size);
}

static int decode_frame(const request *of, const uint8_t *blob, size_t size, const scratch *own) {
    const fl_layout *layout = &of->store->layout;
    if (!layout->interleave) {
        return decode(of, FL_FRAME_CODEC, blob, size, own->first, of->store->frame_bytes);
    }
    const int result = decode(of, FL_FRAME_CODEC, blob, size, own->pixels, of->store->frame_bytes);
    if (result == FL_OK) {
        fl_active->transpose(own->pixels, own->first, fl_pixels(layout), layout->planes, layout->item);
    }
    return result;
}

/* Find a group. Every number that comes from stored bytes is checked before it is used. */
static int find_group(const request *of, size_t i, int64_t number, const scratch *own, group *found) {
    const fl_store *store = of->store;
    const fl_stream *stream = &store->streams[i];
    if (number < store->directory.oldest[i] || number - store->directory.oldest[i] >= (int64_t)store->directory.capacity) {
        return FL_DAMAGED;
    }
    const uint64_t location = *directory_entry(store, i, number);
    const size_t segment_bytes = store->log.segment_bytes;
    size_t segment, length;
    const uint8_t *record;
    if (location & FL_OPEN_BIT) {
        if ((location ^ FL_OPEN_BIT) != i || stream->frames == 0 || stream->group != number) {
            return FL_DAMAGED;
        }
        segment = stream->segment;
        record = stream->staging;
        length = stream->staged - RECORD_HEADER;
    } else {
        segment = (size_t)(location >> 32);
        const size_t offset = (size_t)(location & 0xFFFFFFFF);
        if (!is_there(store, segment) || offset + RECORD_HEADER > segment_bytes) {
            return FL_DAMAGED;
        }
        record = store->log.segments[segment].bytes + offset;
        length = get_u32(record);
        if (length > segment_bytes - offset - RECORD_HEADER) {
            return FL_DAMAGED;
        }
    }
    const uint8_t *body = record + RECORD_HEADER;
    int kind = record[4];
    *found = (group){own->first, false, body, 0};
    if (kind == RAW) {
        found->base = body;
        return length == store->frame_bytes ? FL_OK : FL_DAMAGED;
    }
    if (kind == BLOB) {
        return decode_frame(of, body, length, own);
    }
    if (kind > PACKED || length < RECORD_NUMBER) {
        return FL_DAMAGED;
    }
    if (kind == CODED) {
        const size_t size = get_u32(body);
        if (size > length - RECORD_NUMBER) {
            return FL_DAMAGED;
        }
        found->patches = body + RECORD_NUMBER + size;
        found->length = length - RECORD_NUMBER - size;
        return decode_frame(of, body + RECORD_NUMBER, size, own);
    }
    if (kind == PACKED) {
        const size_t size = get_u32(body);
        if (!store->method.packs || size > store->staging_bytes || size < RECORD_NUMBER) {
            return FL_DAMAGED;
        }
        const int result = decode(of, FL_GROUP_CODEC, body + RECORD_NUMBER, length - RECORD_NUMBER, own->body, size);
        if (result != FL_OK) {
            return result;
        }
        body = own->body;
        length = size;
    }
    const size_t key = get_u32(body);
    if (!is_there(store, segment) || key > segment_bytes || store->frame_bytes > segment_bytes - key) {
        return FL_DAMAGED;
    }
    found->base = store->log.segments[segment].bytes + key;
    found->keyed = true;
    found->patches = body + RECORD_NUMBER;
    found->length = length - RECORD_NUMBER;
    return FL_OK;
}

/* -- fetching what is needed soon: in a large log nearly nothing is in a cache --------------------------------------------------- */

static void fetch_entry(const fl_index *index, size_t cell) {
    FETCH(index->newest + cell);
    FETCH((const uint8_t *)index->patterns + cell * (index->wide ? 4 : 2));
}

static void fetch_group(const fl_store *store, const uint64_t *entry, int distance) {
    if (distance == FETCH_DIRECTORY) {
        FETCH(entry);
        return;
    }
    const size_t segment = (size_t)(*entry >> 32), offset = (size_t)(*entry & 0xFFFFFFFF);
    const size_t segment_bytes = store->log.segment_bytes;
    if (!is_there(store, segment) || offset + RECORD_PATCHES + PATCH_PREFIX + 1 > segment_bytes) {
        return;
    }
    const uint8_t *memory = store->log.segments[segment].bytes, *record = memory + offset;
    if (distance == FETCH_HEADERS) {
        FETCH(record);
        return;
    }
    const size_t length = get_u32(record), rest = segment_bytes - offset;
    for (size_t at = LINE; at < (length < rest ? length : rest); at += LINE) {
        FETCH(record + at);
    }
    const bool needs_key = record[RECORD_PATCHES + PATCH_PREFIX] != PATCH_UP;
    const size_t key = get_u32(record + RECORD_HEADER);
    if (needs_key && record[4] == KEYED && key < segment_bytes) {
        for (size_t at = 0; at < store->frame_bytes && key + at < segment_bytes; at += LINE) {
            FETCH(memory + key + at);
        }
    }
}

static void fetch(const request *of, size_t row, int distance) {
    const fl_store *store = of->store;
    const int64_t cell = cell_of(of, row);
    if (cell < 0) {
        return;
    }
    if (distance == FETCH_ENTRIES) {
        for (size_t part = 0; part < of->n_parts; part++) {
            fetch_entry(of->parts[part].index, (size_t)cell);
        }
        return;
    }
    const size_t i = (size_t)cell % store->n_streams, depth = store->layout.depth;
    int64_t wanted[FL_MAX_PARTS * FL_MAX_DEPTH];
    for (size_t part = 0; part < of->n_parts; part++) {
        if (!locate(store, of->parts[part].index, (size_t)cell, &store->streams[i], wanted + part * depth)) {
            return;
        }
    }
    int64_t low = -1, high = -1; /* the groups that are done: those of a pair lie side by side */
    for (size_t j = 0; j < of->n_parts * depth; j++) {
        if (wanted[j] < 0) {
            continue;
        }
        const int64_t number = wanted[j] >> store->method.shift;
        if (low >= 0 && low <= number && number <= high) {
            continue;
        }
        low = low < 0 || number < low ? number : low;
        high = number > high ? number : high;
        fetch_group(store, directory_entry(store, i, number), distance);
    }
}

/* -- the walk ------------------------------------------------------------------------------------------------------------------- */

/* How far a group has been walked. */
typedef struct walk {
    size_t at;     /* the byte of the next patch */
    int64_t place; /* the frame that it makes */
} walk;

/* On the way to the frame at place `until`, leave out what comes before the last patch that stands alone; `*alone` tells whether
 * there is one, so that nothing is needed of the frames before it. Tells whether the patches are whole. */
static bool leave_out(const group *of, int64_t until, walk *next, bool *alone) {
    walk seen = *next;
    *alone = false;
    for (; seen.place <= until; seen.place++) {
        const size_t length = fl_patch_length(of->patches + seen.at, of->length - seen.at);
        if (length == 0) {
            return false;
        }
        if (fl_patch_stands_alone(of->patches + seen.at, length)) {
            *next = seen;
            *alone = true;
        }
        seen.at += length;
    }
    return true;
}

/* Make the frame at place `until` of the one before the walk's next. */
static bool walk_to(const request *of, const group *in, int64_t until, walk *next, uint8_t *frame) {
    const fl_store *store = of->store;
    for (; next->place <= until; next->place++) {
        const uint8_t *patch = in->patches + next->at;
        const size_t length = fl_patch_length(patch, in->length - next->at);
        if (length == 0 || !fl_active->apply(patch, length, frame, store->frame_bytes, store->layout.row)) {
            return false;
        }
        next->at += length;
    }
    return true;
}

/* Decode one observation, or a pair of them. Rows that follow this one up to `stop` have not been written yet. */
static int read_one(const request *of, size_t row, size_t stop, const scratch *own) {
    const fl_store *store = of->store;
    const size_t depth = store->layout.depth, size = store->frame_bytes, total = of->n_parts * depth;
    const uint32_t shift = store->method.shift;
    const int64_t cell = cell_of(of, row), mask = ((int64_t)1 << shift) - 1;
    if (cell < 0) {
        return FL_OUTSIDE;
    }
    const size_t i = (size_t)cell % store->n_streams;
    int64_t wanted[FL_MAX_PARTS * FL_MAX_DEPTH];
    size_t order[FL_MAX_PARTS * FL_MAX_DEPTH], count = 0;
    uint8_t *outs[FL_MAX_PARTS];
    for (size_t part = 0; part < of->n_parts; part++) {
        outs[part] = of->parts[part].out + row * store->obs_bytes;
        if (!locate(store, of->parts[part].index, (size_t)cell, &store->streams[i], wanted + part * depth)) {
            return FL_DAMAGED;
        }
    }
    for (size_t j = 0; j < total; j++) {
        if (wanted[j] == FL_ZERO) {
            fl_put_frame(&store->layout, NULL, j % depth, outs[j / depth]);
            continue;
        }
        size_t k = count++;
        for (; k > 0 && wanted[order[k - 1]] > wanted[j]; k--) {
            order[k] = order[k - 1];
        }
        order[k] = j;
    }
    /* A frame that lies in one piece is decoded where it goes to, if what that writes beyond it is put later. */
    bool in_order = store->layout.outer == 1;
    for (size_t j = 1; in_order && j < total; j++) {
        in_order = j % depth == 0 || wanted[j] >= wanted[j - 1];
    }
    const size_t rows_after = (stop - row - 1) * store->obs_bytes;
    for (size_t k = 0; k < count;) {
        const int64_t number = wanted[order[k]] >> shift;
        group found;
        const int result = find_group(of, i, number, own, &found);
        if (result != FL_OK) {
            return result;
        }
        const uint8_t *before = found.base;
        walk next = {0, found.keyed ? 0 : 1};
        for (; k < count && wanted[order[k]] >> shift == number; k++) {
            const size_t j = order[k];
            const int64_t until = wanted[j] & mask;
            const bool in_place = in_order && rows_after + (depth - 1 - j % depth) * size >= FL_WRITE_AHEAD;
            uint8_t *frame = in_place ? outs[j / depth] + j % depth * size : own->frame;
            bool alone;
            if (!leave_out(&found, until, &next, &alone)) {
                return FL_DAMAGED;
            }
            if (!alone && before != frame) {
                fl_active->copy(frame, before, size);
            }
            if (!walk_to(of, &found, until, &next, frame)) {
                return FL_DAMAGED;
            }
            if (!in_place) {
                fl_put_frame(&store->layout, frame, j % depth, outs[j / depth]);
            }
            before = frame;
        }
    }
    return FL_OK;
}

/* The row whose turn comes so many rows after this one, `of->count` where there is none: a helper goes on with the piece before its
 * own. What the other of two takes in the end is fetched for nothing, but that is little. */
static size_t row_ahead(const request *of, int worker, size_t first, size_t stop, size_t row) {
    for (; worker == 1 && row >= stop; first -= PIECE) {
        if (first < PIECE) {
            return of->count;
        }
        row = first - PIECE + (row - stop);
        stop = first;
    }
    return row < of->count ? row : of->count;
}

static bool read_rows(void *context, int worker, size_t first, size_t stop) {
    request *of = context;
    const fl_store *store = of->store;
    uint8_t *memory = of->scratch + (size_t)worker * of->scratch_bytes;
    scratch own = {memory, NULL, NULL, NULL};
    own.first = own.frame + store->stride + FL_WRITE_AHEAD;
    own.pixels = own.first + store->stride;
    own.body = own.pixels + store->stride;
    static const int distances[] = {FETCH_ENTRIES, FETCH_DIRECTORY, FETCH_HEADERS, FETCH_FRAMES};
    const bool begins = worker == 0 ? first == 0 : stop == of->count;
    for (size_t k = 0; of->ahead && begins && k < FETCH_ENTRIES; k++) {
        const size_t row = row_ahead(of, worker, first, stop, first + k);
        if (row < of->count) {
            fetch(of, row, FETCH_ENTRIES);
        }
    }
    for (size_t row = first; row < stop; row++) {
        for (size_t k = 0; of->ahead && k < 4; k++) {
            const size_t other = row_ahead(of, worker, first, stop, row + (size_t)distances[k]);
            if (other < of->count) {
                fetch(of, other, distances[k]);
            }
        }
        const int result = read_one(of, row, stop, &own);
        if (result != FL_OK) {
            of->results[worker] = result;
            return false;
        }
    }
    return true;
}

/* Whether most frames have to be decoded by a codec: two threads would spend their time waiting for each other, as codecs are
 * Python's, which lets one thread work at a time. */
static bool is_for_codecs(const fl_store *store) {
    if (store->method.packs || !store->method.references) {
        return true;
    }
    size_t coded = 0;
    for (size_t i = 0; i < store->n_streams; i++) {
        coded += !fl_references_pay(&store->streams[i]);
    }
    return 2 * coded > store->n_streams;
}

bool fl_shares(const fl_store *store, size_t bytes) { return bytes >= FL_WORTH_SHARING && !is_for_codecs(store); }

int fl_read(const fl_store *store, const fl_read_part *parts, size_t n_parts, const int64_t *rows, const int64_t *columns,
            size_t count, int threads, const fl_codecs *codecs) {
    if (n_parts < 1 || n_parts > FL_MAX_PARTS) {
        return FL_INVALID;
    }
    request of = {store, parts, n_parts, rows, columns, count, codecs, false, NULL, 0, {FL_OK, FL_OK}};
    of.ahead = store->log.in_use * store->log.segment_bytes > CACHED;
    const size_t packed = store->method.packs ? store->staging_bytes + FL_READ_AHEAD : 0;
    of.scratch_bytes = 3 * store->stride + FL_WRITE_AHEAD + packed;
    const size_t bytes = count * n_parts * store->obs_bytes;
    const bool shared = threads > 1 && count > PIECE && fl_shares(store, bytes);
    of.scratch = fl_resize(NULL, shared ? 2 : 1, of.scratch_bytes);
    if (of.scratch == NULL) {
        return FL_NO_MEMORY;
    }
    if (shared) {
        fl_work_on_two(read_rows, &of, count, PIECE, bytes >= FL_WORTH_WAKING);
    } else {
        read_rows(&of, 0, 0, count);
    }
    fl_free(of.scratch);
    return of.results[0] != FL_OK ? of.results[0] : of.results[1];
}
