/* Patterns of frames, and indexes: from cells to frames. */
#include "framelog.h"

#include <string.h>

/* -- patterns ------------------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const int32_t *offsets, size_t depth) {
    uint64_t hash = UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < depth; i++) {
        hash = (hash ^ (uint32_t)offsets[i]) * UINT64_C(0xBF58476D1CE4E5B9);
        hash ^= hash >> 29;
    }
    return hash;
}

static void enter_pattern(uint32_t *table, size_t room, const fl_patterns *patterns, size_t number) {
    size_t place = (size_t)hash_of(patterns->offsets + number * patterns->depth, patterns->depth) & (room - 1);
    while (table[place]) {
        place = (place + 1) & (room - 1);
    }
    table[place] = (uint32_t)number;
}

int fl_patterns_init(fl_patterns *patterns, size_t depth) {
    memset(patterns, 0, sizeof *patterns);
    patterns->depth = depth;
    patterns->room = 8;
    patterns->table_room = 32;
    patterns->offsets = fl_alloc(patterns->room * depth, sizeof *patterns->offsets);
    patterns->reach = fl_alloc(patterns->room, sizeof *patterns->reach);
    patterns->table = fl_alloc(patterns->table_room, sizeof *patterns->table);
    if (!patterns->offsets || !patterns->reach || !patterns->table) {
        return FL_NO_MEMORY;
    }
    for (size_t i = 0; i < depth; i++) {
        patterns->offsets[i] = FL_ZERO;
    }
    patterns->reach[FL_UNWRITTEN] = FL_ZERO;
    patterns->count = 1;
    int32_t run[FL_MAX_DEPTH];
    for (size_t i = 0; i < depth; i++) {
        run[i] = (int32_t)(depth - 1 - i);
    }
    return fl_patterns_intern(patterns, run) == FL_RUN ? FL_OK : FL_NO_MEMORY;
}

void fl_patterns_free(fl_patterns *patterns) {
    fl_free(patterns->offsets);
    fl_free(patterns->reach);
    fl_free(patterns->table);
    memset(patterns, 0, sizeof *patterns);
}

static int grow_patterns(fl_patterns *patterns) {
    const size_t room = 2 * patterns->room;
    int32_t *offsets = fl_resize(patterns->offsets, room * patterns->depth, sizeof *offsets);
    if (offsets == NULL) {
        return FL_NO_MEMORY;
    }
    patterns->offsets = offsets;
    int32_t *reach = fl_resize(patterns->reach, room, sizeof *reach);
    if (reach == NULL) {
        return FL_NO_MEMORY;
    }
    patterns->reach = reach;
    const size_t table_room = 4 * room;
    uint32_t *table = fl_alloc(table_room, sizeof *table);
    if (table == NULL) {
        return FL_NO_MEMORY;
    }
    for (size_t i = 1; i < patterns->count; i++) {
        enter_pattern(table, table_room, patterns, i);
    }
    fl_free(patterns->table);
    patterns->table = table;
    patterns->table_room = table_room;
    patterns->room = room;
    return FL_OK;
}

int64_t fl_patterns_intern(fl_patterns *patterns, const int32_t *offsets) {
    const size_t depth = patterns->depth, bytes = depth * sizeof *offsets;
    size_t place = (size_t)hash_of(offsets, depth) & (patterns->table_room - 1);
    for (; patterns->table[place]; place = (place + 1) & (patterns->table_room - 1)) {
        const uint32_t number = patterns->table[place];
        if (memcmp(patterns->offsets + number * depth, offsets, bytes) == 0) {
            return number;
        }
    }
    if (patterns->count == UINT32_MAX) {
        return FL_NO_NUMBERS;
    }
    if (patterns->count == patterns->room && grow_patterns(patterns) != FL_OK) {
        return FL_NO_MEMORY;
    }
    const size_t number = patterns->count;
    memcpy(patterns->offsets + number * depth, offsets, bytes);
    int32_t reach = FL_ZERO;
    for (size_t i = 0; i < depth; i++) {
        reach = offsets[i] > reach ? offsets[i] : reach;
    }
    patterns->reach[number] = reach;
    patterns->count++;
    enter_pattern(patterns->table, patterns->table_room, patterns, number);
    return (int64_t)number;
}

void fl_patterns_shorten(fl_patterns *patterns, size_t count) {
    while (patterns->count > count) { /* the last one first: none was entered past it */
        const uint32_t number = (uint32_t)--patterns->count;
        size_t place = (size_t)hash_of(patterns->offsets + number * patterns->depth, patterns->depth);
        while (patterns->table[place &= patterns->table_room - 1] != number) {
            place++;
        }
        patterns->table[place] = 0;
    }
}

/* -- indexes -------------------------------------------------------------------------------------------------------------- */

int fl_index_init(fl_index *index, size_t cells, size_t n_streams) {
    memset(index, 0, sizeof *index);
    index->cells = cells;
    index->block_cells = fl_limits_in_use.block_rows * n_streams;
    index->blocks = (cells + index->block_cells - 1) / index->block_cells;
    /* The largest first, so that it is the one which is told to have been refused. */
    if ((index->newest = fl_alloc(cells, sizeof *index->newest)) == NULL ||
        (index->patterns = fl_alloc(cells, sizeof(uint16_t))) == NULL ||
        (index->oldest = fl_alloc(index->blocks * n_streams, sizeof *index->oldest)) == NULL ||
        (index->written = fl_alloc(index->blocks, 1)) == NULL) {
        fl_index_free(index);
        return FL_NO_MEMORY;
    }
    for (size_t i = 0; i < index->blocks * n_streams; i++) {
        index->oldest[i] = FL_NO_FRAME;
    }
    return FL_OK;
}

void fl_index_free(fl_index *index) {
    fl_free(index->newest);
    fl_free(index->patterns);
    fl_free(index->oldest);
    fl_free(index->written);
    memset(index, 0, sizeof *index);
}

int fl_index_widen(fl_index *index) {
    uint32_t *wide = fl_alloc(index->cells, sizeof *wide);
    if (wide == NULL) {
        return FL_NO_MEMORY;
    }
    const uint16_t *narrow = index->patterns;
    for (size_t i = 0; i < index->cells; i++) {
        wide[i] = narrow[i];
    }
    fl_free(index->patterns);
    index->patterns = wide;
    index->wide = true;
    return FL_OK;
}

void fl_index_clear(fl_index *index, size_t n_streams) {
    memset(index->newest, 0, index->cells * sizeof *index->newest);
    memset(index->patterns, 0, index->cells * (index->wide ? sizeof(uint32_t) : sizeof(uint16_t)));
    memset(index->written, 0, index->blocks);
    for (size_t i = 0; i < index->blocks * n_streams; i++) {
        index->oldest[i] = FL_NO_FRAME;
    }
    index->overwritten = 0;
}
