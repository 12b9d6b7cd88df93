/* What the tests and the fuzz targets of the core share: chance, a codec, layouts, and plays to be stored. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include "../../src/sb3_extra_buffers/_native/allocation.h"
#include "../../src/sb3_extra_buffers/_native/checksum.h"
#include "../../src/sb3_extra_buffers/_native/frametable.h"
#include "../../src/sb3_extra_buffers/_native/kernels.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not assert(): it has to work in every build, and to say where. */
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

/* -- chunks of a column ----------------------------------------------------------------------------------------------------- */

/* The sealed chunk that is the newest to hold a row; NULL for none. */
static inline ft_chunk *chunk_at(const ft_column *column, uint64_t row) {
    size_t count;
    const ft_span *spans = ft_column_get_spans(column, &count);
    for (size_t k = 0; k < count; k++) {
        if (row >= spans[k].first_row && row - spans[k].first_row < spans[k].rows) {
            return spans[k].chunk;
        }
    }
    return NULL;
}

/* Have a column adopt all rows of a chunk, and be its only owner. */
static inline int give_chunk(ft_column *column, ft_chunk *chunk, uint64_t row) {
    const int result = ft_column_adopt(column, chunk, 0, row, ft_chunk_get_info(chunk).rows);
    if (result == FT_OK) {
        ft_chunk_drop(chunk);
    }
    return result;
}

/* -- chance: the same everywhere ------------------------------------------------------------------------------------------ */

typedef struct chance {
    uint64_t state;
} chance;

static inline uint64_t draw(chance *from) {
    from->state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t word = from->state;
    word = (word ^ word >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    word = (word ^ word >> 27) * UINT64_C(0x94D049BB133111EB);
    return word ^ word >> 31;
}

static inline size_t below(chance *from, size_t limit) { return (size_t)(draw(from) % limit); }

static inline bool one_in(chance *from, size_t times) { return below(from, times) == 0; }

/* -- memory for tests, which must not be refused -------------------------------------------------------------------------- */

static inline void *grab(size_t size) {
    void *memory = calloc(size ? size : 1, 1);
    CHECK(memory != NULL);
    return memory;
}

/* -- a codec: run lengths behind a checksum, as codecs of the package have one -------------------------------------------- */

typedef struct run_codec {
    uint8_t *blob;
    size_t room;
    int64_t fail_after; /* calls; negative for never */
    jmp_buf *leave_to;  /* where to go instead of failing: the call never returns; NULL for none */
} run_codec;

static inline bool run_fails(run_codec *codec) {
    const bool fails = codec->fail_after >= 0 && codec->fail_after-- == 0;
    if (fails && codec->leave_to != NULL) {
        longjmp(*codec->leave_to, 1);
    }
    return fails;
}

static inline uint32_t checksum(const uint8_t *data, size_t size) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < size; i++) {
        sum = (sum ^ data[i]) * 16777619u;
    }
    return sum;
}

static inline int run_encode(void *context, int which, const uint8_t *data, size_t size, const uint8_t **blob,
                             size_t *blob_size) {
    run_codec *codec = context;
    (void)which;
    if (run_fails(codec)) {
        return FT_CODEC;
    }
    if (codec->room < 2 * size + 4) {
        free(codec->blob);
        codec->room = 2 * size + 4;
        codec->blob = grab(codec->room);
    }
    size_t end = 4;
    for (size_t i = 0; i < size;) {
        size_t count = 1;
        while (count < 255 && i + count < size && data[i + count] == data[i]) {
            count++;
        }
        codec->blob[end++] = (uint8_t)count;
        codec->blob[end++] = data[i];
        i += count;
    }
    const uint32_t sum = checksum(codec->blob + 4, end - 4);
    memcpy(codec->blob, &sum, 4);
    *blob = codec->blob;
    *blob_size = end;
    return FT_OK;
}

static inline int run_decode(void *context, int which, const uint8_t *blob, size_t blob_size, uint8_t *data, size_t size) {
    (void)which;
    uint32_t sum;
    if (run_fails(context)) {
        return FT_CODEC;
    }
    if (blob_size < 4 || blob_size % 2 != 0) {
        return FT_DAMAGED;
    }
    memcpy(&sum, blob, 4);
    if (sum != checksum(blob + 4, blob_size - 4)) {
        return FT_DAMAGED;
    }
    size_t done = 0;
    for (size_t i = 4; i < blob_size; i += 2) {
        if (blob[i] > size - done) {
            return FT_DAMAGED;
        }
        memset(data + done, blob[i + 1], blob[i]);
        done += blob[i];
    }
    return done == size ? FT_OK : FT_DAMAGED;
}

static inline ft_codecs codecs_of(run_codec *codec) {
    *codec = (run_codec){NULL, 0, -1, NULL};
    return (ft_codecs){codec, run_encode, run_decode};
}

/* -- layouts and methods -------------------------------------------------------------------------------------------------- */

typedef struct named_layout {
    const char *name;
    ft_layout layout;
} named_layout;

/* item, outer, depth, part, planes, row, can_turn, interleave */
static const named_layout LAYOUTS[] = {
    {"a game: 4 planes of 12x11, channels first", {1, 1, 4, 132, 1, 11, true, false, 0}},
    {"the same with channels last", {1, 132, 4, 1, 1, 11, false, false, 0}},
    {"colours: 2 frames of 3 planes, 8x10", {1, 1, 2, 240, 3, 10, true, true, 0}},
    {"colours, channels last", {1, 80, 2, 3, 1, 30, false, false, 0}},
    {"one picture of 3 planes, 9x7", {1, 1, 1, 189, 3, 7, true, true, 0}},
    {"floats: 3 frames of 6x5", {4, 1, 3, 120, 1, 20, true, false, 0}},
    {"doubles in the last axis: 30 of 2 frames", {8, 30, 2, 8, 1, 0, false, false, 0}},
    {"a vector", {4, 1, 1, 68, 1, 0, false, false, 0}},
    {"single bytes, a deep stack", {1, 1, 9, 1, 1, 0, true, false, 0}},
    {"a single byte", {1, 1, 1, 1, 1, 0, false, false, 0}},
    {"rows of 40", {1, 1, 4, 1600, 1, 40, true, false, 0}},
    {"the deepest stack", {1, 1, FT_MAX_DEPTH, 5, 1, 0, true, false, 0}},
};
enum { N_LAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS };

/* references, packs, shift */
static const ft_method METHODS[] = {
    {true, false, 3}, {true, true, 6}, {false, false, 0}, {true, false, 0}, {true, true, 1}, {true, false, 7},
};
enum { N_METHODS = sizeof METHODS / sizeof *METHODS };

/* -- plays: observations as environments make them ------------------------------------------------------------------------ */

static inline size_t frame_bytes_of(const ft_layout *layout) { return layout->outer * layout->part; }

static inline size_t obs_bytes_of(const ft_layout *layout) { return layout->depth * frame_bytes_of(layout); }

static inline void put_in_stack(const ft_layout *layout, const uint8_t *frame, size_t j, uint8_t *obs) {
    for (size_t i = 0; i < layout->outer; i++) {
        memcpy(obs + (i * layout->depth + j) * layout->part, frame + i * layout->part, layout->part);
    }
}

static inline void take_from_stack(const ft_layout *layout, const uint8_t *obs, size_t j, uint8_t *frame) {
    for (size_t i = 0; i < layout->outer; i++) {
        memcpy(frame + i * layout->part, obs + (i * layout->depth + j) * layout->part, layout->part);
    }
}

/* The next picture of a game: a few bytes differ, or a block has moved, or all is new. */
static inline void change_frame(chance *from, uint8_t *frame, size_t size, size_t row) {
    const size_t kind = below(from, 16);
    if (kind == 0) {
        for (size_t i = 0; i < size; i++) {
            frame[i] = (uint8_t)draw(from);
        }
    } else if (kind == 1) { /* flat areas */
        const size_t width = row ? row : size;
        uint8_t value = (uint8_t)draw(from);
        for (size_t i = 0; i < size; i++) {
            value = one_in(from, 20) ? (uint8_t)below(from, 4) : value;
            frame[i] = i >= width && !one_in(from, 30) ? frame[i - width] : value;
        }
    } else if (kind < 5) { /* a stretch of one value */
        const size_t begin = below(from, size), length = 1 + below(from, size - begin);
        memset(frame + begin, (int)below(from, 256), length);
    } else {
        for (size_t k = below(from, 5); k > 0; k--) {
            const size_t begin = below(from, size);
            for (size_t i = begin; i < size && i < begin + below(from, 12); i++) {
                frame[i] = (uint8_t)draw(from);
            }
        }
    }
}

/* Make the observation that follows `obs`: in C order, in place. */
static inline void play(chance *from, const ft_layout *layout, uint8_t *obs) {
    const size_t size = frame_bytes_of(layout), depth = layout->depth;
    uint8_t *frame = grab(size);
    const size_t kind = below(from, 40);
    take_from_stack(layout, obs, depth - 1, frame);
    if (kind == 0) { /* something else altogether */
        for (size_t i = 0; i < depth * size; i++) {
            obs[i] = (uint8_t)draw(from);
        }
    } else if (kind < 4) { /* an episode begins: zeros, or the first frame again and again; sometimes all zeros */
        change_frame(from, frame, size, layout->row);
        memset(obs, 0, depth * size);
        for (size_t j = kind == 1 ? 0 : depth - 1; kind < 3 && j < depth; j++) {
            put_in_stack(layout, frame, j, obs);
        }
    } else if (kind > 5) { /* the stack moves on */
        for (size_t j = 0; j + 1 < depth; j++) {
            uint8_t *older = grab(size);
            take_from_stack(layout, obs, j + 1, older);
            put_in_stack(layout, older, j, obs);
            free(older);
        }
        change_frame(from, frame, size, layout->row);
        put_in_stack(layout, frame, depth - 1, obs);
    } /* else nothing has changed */
    free(frame);
}

/* Have all elements be among `count` values, in place: zeros, and others whose first byte says which. Does nothing to such elements. */
static inline void limit_values(const ft_layout *layout, size_t count, uint8_t *obs) {
    for (uint8_t *at = obs; count > 0 && at < obs + obs_bytes_of(layout); at += layout->item) {
        const size_t which = at[0] % count;
        for (size_t k = 0; k < layout->item; k++) {
            at[k] = (uint8_t)(which * (1 + 36 * k));
        }
    }
}

/* An observation with the stack as the last axis in memory, by plain loops. */
static inline void turn_plainly(const ft_layout *layout, const uint8_t *obs, uint8_t *turned) {
    const size_t length = layout->depth * layout->planes, item = layout->item;
    const size_t pixels = layout->part / layout->planes / item;
    for (size_t c = 0; c < length; c++) {
        for (size_t p = 0; p < pixels; p++) {
            memcpy(turned + (p * length + c) * item, obs + (c * pixels + p) * item, item);
        }
    }
}

#endif
