/* The log: segments, the directory of groups, patterns, indexes; what is still in use, and taking back what is not. */
#include "framelog.h"

#include <string.h>

enum { FEW_SEGMENTS = 3 };

fl_limits fl_limits_in_use = {
    .first_room = 64,
    .block_rows = 256,
    .min_segment = (size_t)1 << 17,
    .first_check = (size_t)1 << 10,
    .narrow_patterns = (size_t)UINT16_MAX + 1,
    .frame_numbers = UINT64_C(1) << 32,
};

/* -- segments ----------------------------------------------------------------------------------------------------------- */

static size_t block_bytes(const fl_log *log) {
    /* Its numbers lie in the same block: small allocations that live as long as a segment would lie scattered among the
     * tensors of a training process and keep their memory from being reused. */
    return log->n_streams * sizeof(int64_t) + log->segment_bytes + FL_READ_AHEAD;
}

static void clear_segment(const fl_log *log, fl_segment *segment) {
    segment->used = segment->reserved = segment->frames = 0;
    segment->newest_key = -1;
    for (size_t i = 0; i < log->n_streams; i++) {
        segment->last_group[i] = -1;
    }
}

int fl_log_init(fl_log *log, size_t segment_bytes, size_t n_streams) {
    memset(log, 0, sizeof *log);
    log->segment_bytes = segment_bytes;
    log->n_streams = n_streams;
    return FL_OK;
}

void fl_log_free(fl_log *log) {
    for (size_t i = 0; i < log->count; i++) {
        fl_free_pages(log->segments[i].block, block_bytes(log));
    }
    fl_free(log->segments);
    fl_free(log->order);
    fl_free(log->idle);
    memset(log, 0, sizeof *log);
}

static int make_room(fl_log *log) {
    if (log->count < log->room) {
        return FL_OK;
    }
    const size_t room = log->room ? 2 * log->room : fl_limits_in_use.first_room;
    fl_segment *segments = fl_resize(log->segments, room, sizeof *segments);
    if (segments == NULL) {
        return FL_NO_MEMORY;
    }
    log->segments = segments;
    uint32_t *order = fl_resize(log->order, room, sizeof *order);
    if (order == NULL) {
        return FL_NO_MEMORY;
    }
    log->order = order;
    uint32_t *idle = fl_resize(log->idle, room, sizeof *idle);
    if (idle == NULL) {
        return FL_NO_MEMORY;
    }
    log->idle = idle;
    log->room = room;
    return FL_OK;
}

/* Give a segment its memory, if it has none. */
static int furnish(fl_log *log, fl_segment *segment) {
    if (segment->block != NULL) {
        return FL_OK;
    }
    uint8_t *block = fl_alloc_pages(block_bytes(log));
    if (block == NULL) {
        return FL_NO_MEMORY;
    }
    segment->block = block;
    segment->last_group = (int64_t *)(void *)block;
    segment->bytes = block + log->n_streams * sizeof(int64_t);
    clear_segment(log, segment);
    return FL_OK;
}

static int add_segment(fl_log *log) {
    if (log->count >= INT32_MAX) {
        return FL_NO_NUMBERS;
    }
    if (make_room(log) != FL_OK) {
        return FL_NO_MEMORY;
    }
    memset(&log->segments[log->count], 0, sizeof *log->segments);
    log->idle[log->n_idle++] = (uint32_t)log->count++;
    return FL_OK;
}

int fl_log_open_segment(fl_log *log) {
    if (log->n_idle == 0) {
        const int added = add_segment(log);
        if (added != FL_OK) {
            return added;
        }
    }
    const uint32_t number = log->idle[log->n_idle - 1];
    if (furnish(log, &log->segments[number]) != FL_OK) {
        return FL_NO_MEMORY;
    }
    log->n_idle--;
    log->order[log->in_use++] = number;
    log->opened++;
    return FL_OK;
}

/* Give memory of idle segments back, but for one, which is needed next. */
static void give_back(fl_log *log) {
    for (size_t i = 0; i + 1 < log->n_idle; i++) {
        fl_segment *segment = &log->segments[log->idle[i]];
        fl_free_pages(segment->block, block_bytes(log));
        memset(segment, 0, sizeof *segment);
    }
}

void fl_log_clear(fl_log *log) {
    while (log->in_use > 0) { /* the newest first, so that the oldest, whose memory has been touched, is next */
        const uint32_t number = log->order[--log->in_use];
        clear_segment(log, &log->segments[number]);
        log->idle[log->n_idle++] = number;
    }
}

static bool is_dead(const fl_log *log, const fl_segment *segment, const int64_t *oldest_group) {
    if (segment->reserved > 0) {
        return false;
    }
    for (size_t i = 0; i < log->n_streams; i++) {
        if (segment->last_group[i] >= oldest_group[i]) {
            return false;
        }
    }
    return true;
}

void fl_log_release(fl_log *log, const int64_t *oldest_group) {
    size_t kept = 0;
    log->opened = 0;
    for (size_t i = 0; i < log->in_use; i++) {
        const uint32_t number = log->order[i];
        fl_segment *segment = &log->segments[number];
        if (i + 1 < log->in_use && is_dead(log, segment, oldest_group)) {
            clear_segment(log, segment);
            log->idle[log->n_idle++] = number;
        } else {
            log->order[kept++] = number;
        }
    }
    log->in_use = kept;
    give_back(log);
}

bool fl_log_is_idle(const fl_log *log, int64_t segment) {
    for (size_t i = 0; i < log->n_idle; i++) {
        if (log->idle[i] == segment) {
            return true;
        }
    }
    return false;
}

/* -- the directory -------------------------------------------------------------------------------------------------------- */

int fl_directory_init(fl_directory *directory, size_t n_streams, uint32_t shift) {
    memset(directory, 0, sizeof *directory);
    directory->most = (size_t)(fl_limits_in_use.frame_numbers >> shift);
    directory->capacity = fl_limits_in_use.first_room < directory->most ? fl_limits_in_use.first_room : directory->most;
    directory->locations = fl_alloc(n_streams * directory->capacity, sizeof *directory->locations);
    directory->oldest = fl_alloc(n_streams, sizeof *directory->oldest);
    return directory->locations && directory->oldest ? FL_OK : FL_NO_MEMORY;
}

int fl_directory_grow(fl_directory *directory, size_t n_streams) {
    /* By a quarter: the index is what is left to pay once frames are small. */
    const size_t least = fl_limits_in_use.first_room, quarter = directory->capacity / 4;
    const size_t step = quarter > least ? quarter : least;
    const size_t old = directory->capacity;
    const size_t capacity = directory->most - old < step ? directory->most : old + step;
    uint64_t *locations = fl_alloc(n_streams * capacity, sizeof *locations);
    if (locations == NULL) {
        return FL_NO_MEMORY;
    }
    for (size_t stream = 0; stream < n_streams; stream++) {
        for (size_t i = 0; i < old; i++) {
            const uint64_t group = (uint64_t)directory->oldest[stream] + i;
            locations[stream * capacity + group % capacity] = directory->locations[stream * old + group % old];
        }
    }
    fl_free(directory->locations);
    directory->locations = locations;
    directory->capacity = capacity;
    return FL_OK;
}

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

/* -- indexes -------------------------------------------------------------------------------------------------------------- */

int fl_index_init(fl_index *index, size_t cells, size_t n_streams) {
    memset(index, 0, sizeof *index);
    index->cells = cells;
    index->block_cells = fl_limits_in_use.block_rows * n_streams;
    index->blocks = (cells + index->block_cells - 1) / index->block_cells;
    index->newest = fl_alloc(cells, sizeof *index->newest);
    index->patterns = fl_alloc(cells, sizeof(uint16_t));
    index->oldest = fl_alloc(index->blocks * n_streams, sizeof *index->oldest);
    index->written = fl_alloc(index->blocks, 1);
    if (!index->newest || !index->patterns || !index->oldest || !index->written) {
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

/* -- what is in use -------------------------------------------------------------------------------------------------------- */

static uint32_t pattern_at(const fl_index *index, size_t cell) {
    return index->wide ? ((const uint32_t *)index->patterns)[cell] : ((const uint16_t *)index->patterns)[cell];
}

static int64_t number_of(const fl_stream *stream, uint32_t newest) {
    return stream->head - (int64_t)((uint32_t)stream->head - newest);
}

/* The oldest frame that an entry needs; FL_NO_FRAME where it needs none. */
static int64_t oldest_of(const fl_store *store, const fl_stream *stream, fl_entry entry) {
    if (entry.pattern >= store->patterns.count || store->patterns.reach[entry.pattern] < 0) {
        return FL_NO_FRAME;
    }
    return number_of(stream, entry.newest) - store->patterns.reach[entry.pattern];
}

static void scan_block(const fl_store *store, fl_index *index, size_t block) {
    const size_t n = store->n_streams;
    int64_t *oldest = index->oldest + block * n;
    for (size_t i = 0; i < n; i++) {
        oldest[i] = FL_NO_FRAME;
    }
    size_t stop = (block + 1) * index->block_cells;
    stop = stop < index->cells ? stop : index->cells;
    for (size_t cell = block * index->block_cells, stream = 0; cell < stop; cell++) {
        const fl_entry entry = {index->newest[cell], pattern_at(index, cell)};
        const int64_t number = oldest_of(store, &store->streams[stream], entry);
        oldest[stream] = number < oldest[stream] ? number : oldest[stream];
        stream = stream + 1 == n ? 0 : stream + 1;
    }
    index->written[block] = 0;
}

void fl_oldest_frames(fl_store *store, int64_t *oldest) {
    const size_t n = store->n_streams, depth = store->layout.depth;
    for (size_t i = 0; i < n; i++) {
        const fl_stream *stream = &store->streams[i];
        int64_t lowest = stream->pinned;
        for (size_t j = 0; j < depth; j++) {
            if (stream->numbers[j] != FL_ZERO && stream->numbers[j] < lowest) {
                lowest = stream->numbers[j];
            }
        }
        oldest[i] = lowest < stream->head ? lowest : stream->head;
    }
    for (size_t i = 0; i < store->n_entries; i++) {
        const size_t which = i % n;
        const int64_t number = oldest_of(store, &store->streams[which], store->entries[i]);
        oldest[which] = number < oldest[which] ? number : oldest[which];
    }
    for (size_t i = 0; i < store->n_indexes; i++) {
        fl_index *index = store->indexes[i];
        for (size_t block = 0; block < index->blocks; block++) {
            if (index->written[block]) {
                scan_block(store, index, block);
            }
            for (size_t j = 0; j < n; j++) {
                const int64_t number = index->oldest[block * n + j];
                oldest[j] = number < oldest[j] ? number : oldest[j];
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        oldest[i] = oldest[i] > 0 ? oldest[i] : 0;
    }
}

/* The frames in use, about: each observation counts for its newest one, and those are most of them. 0 where that cannot be
 * found out for lack of memory. */
static size_t count_live(const fl_store *store) {
    const size_t n = store->n_streams;
    size_t *first = fl_alloc(n + 1, sizeof *first);
    if (first == NULL) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t oldest = store->directory.oldest[i] << store->method.shift;
        first[i + 1] = first[i] + (size_t)(store->streams[i].head - oldest + 1);
    }
    size_t live = 0;
    uint8_t *seen = fl_alloc(first[n] / 8 + 1, 1);
    for (size_t i = 0; seen != NULL && i < store->n_indexes; i++) {
        const fl_index *index = store->indexes[i];
        for (size_t cell = 0, stream = 0; cell < index->cells; cell++, stream = stream + 1 == n ? 0 : stream + 1) {
            const fl_entry entry = {index->newest[cell], pattern_at(index, cell)};
            if (oldest_of(store, &store->streams[stream], entry) == FL_NO_FRAME) {
                continue;
            }
            const size_t age = (uint32_t)store->streams[stream].head - entry.newest;
            if (age >= first[stream + 1] - first[stream]) {
                continue; /* a damaged entry */
            }
            const size_t place = first[stream + 1] - 1 - age;
            const uint8_t bit = (uint8_t)(1u << (place & 7));
            live += (seen[place >> 3] & bit) == 0;
            seen[place >> 3] |= bit;
        }
    }
    fl_free(seen);
    fl_free(first);
    return live;
}

/* Take back what overwritten cells have left behind. */
void fl_reclaim(fl_store *store) {
    uint64_t overwritten = 0;
    for (size_t i = 0; i < store->n_indexes; i++) {
        overwritten += store->indexes[i]->overwritten;
    }
    if (overwritten == 0) {
        return;
    }
    int64_t *oldest = fl_alloc(store->n_streams, sizeof *oldest);
    if (oldest == NULL) {
        return; /* there will be another time */
    }
    for (size_t i = 0; i < store->n_indexes; i++) {
        store->indexes[i]->overwritten = 0;
    }
    store->work.reclaims++;
    store->work.segments_looked_at += store->log.in_use;
    fl_oldest_frames(store, oldest);
    for (size_t i = 0; i < store->n_streams; i++) {
        oldest[i] >>= store->method.shift;
    }
    fl_log_release(&store->log, oldest);
    memcpy(store->directory.oldest, oldest, store->n_streams * sizeof *oldest);
    fl_free(oldest);
    for (size_t i = 0; i < store->n_streams; i++) {
        /* A segment that is used again holds none of the key frames that it held. */
        if (fl_log_is_idle(&store->log, store->streams[i].key_segment)) {
            store->streams[i].key_segment = -1;
        }
    }
    /* A ring leaves frames behind in the segment that it is about to leave and in the one that it fills. They go by
     * themselves, and a log of so few segments would not be smaller without them. */
    if (store->log.in_use <= FEW_SEGMENTS) {
        return;
    }
    const size_t held = fl_stored_frames(store);
    if (held > store->frames_before_check) {
        /* Cells may be overwritten in any order; then old segments stay for the sake of a few frames. */
        const size_t live = count_live(store);
        if (live > 0 || store->writes > 0) {
            store->wants_compaction = live > 0 && 2 * live < held;
            const size_t first = fl_limits_in_use.first_check;
            store->frames_before_check = 2 * live > first ? 2 * live : first;
        }
    }
}
