/* What is still in use, and taking back what is not. */
#include "framelog.h"

#include <string.h>

enum { FEW_SEGMENTS = 3 };

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
