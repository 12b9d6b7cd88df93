/* Undoing a write that failed: what it has stored is given back. */
#include "format.h"
#include "frames.h"

#include <stdlib.h>
#include <string.h>

static size_t stream_of(const fl_store *store, const fl_written *what, size_t row) {
    return (size_t)(what->cells ? what->cells[row] : what->first + (int64_t)row) % store->n_streams;
}

void fl_remember(fl_store *store, const fl_written *what) {
    fl_before *before = &store->before;
    fl_log *log = &store->log;
    const size_t depth = store->layout.depth;
    log->kept = log->in_use > 0 ? (int64_t)log->order[log->in_use - 1] : -1;
    if (log->kept >= 0) {
        const fl_segment *segment = &log->segments[log->kept];
        before->used = segment->used;
        before->frames = segment->frames;
        before->newest_key = segment->newest_key;
    }
    before->patterns = store->patterns.count;
    before->writes = store->writes;
    before->strays = store->strays;
    before->strays_since = store->strays_since;
    for (size_t row = 0; row < what->count; row++) {
        const size_t i = stream_of(store, what, row);
        fl_stream *stream = &store->streams[i];
        before->streams[i] = *stream;
        memcpy(before->numbers + i * depth, stream->numbers, depth * sizeof *stream->numbers);
        stream->ended_at = -1;
        stream->pinned = stream->head;
        for (size_t j = 0; j < depth; j++) {
            if (stream->numbers[j] != FL_ZERO && stream->numbers[j] < stream->pinned) {
                stream->pinned = stream->numbers[j];
            }
        }
    }
}

void fl_forget(fl_store *store) {
    store->log.kept = -1;
    for (size_t i = 0; i < store->n_streams; i++) {
        store->streams[i].pinned = FL_NO_FRAME;
    }
}

/* -- the log ---------------------------------------------------------------------------------------------------------------- */

/* Give back what open groups have reserved. A group that was open before and has been closed stays so: nothing of it is new but
 * where it lies. Returns how many of these lie behind what else was stored in the segment that was the newest. */
static size_t leave_groups(fl_store *store, const fl_written *what) {
    const fl_before *before = &store->before;
    size_t count = 0;
    for (size_t row = 0; row < what->count; row++) {
        const size_t i = stream_of(store, what, row);
        const fl_stream *stream = &store->streams[i];
        fl_stream *old = &before->streams[i];
        if (stream->frames > 0) {
            store->log.segments[stream->segment].reserved -= stream->staged;
        }
        if (old->frames == 0) {
            continue;
        }
        if (stream->frames > 0 && stream->group == old->group) {
            store->log.segments[old->segment].reserved += old->staged;
            continue;
        }
        old->frames = 0;
        if (old->segment == store->log.kept) {
            before->moved[count++] = (uint64_t)stream->ended_at << 32 | i; /* where it is, and whose */
        }
    }
    return count;
}

static int by_offset(const void *a, const void *b) {
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* Take back what was appended to the segment that was the newest, but keep the groups that are told. */
static void shorten_segment(fl_store *store, const fl_written *what, size_t count) {
    const fl_before *before = &store->before;
    fl_segment *segment = &store->log.segments[store->log.kept];
    segment->used = before->used;
    segment->frames = before->frames;
    segment->newest_key = before->newest_key;
    qsort(before->moved, count, sizeof *before->moved, by_offset);
    for (size_t k = 0; k < count; k++) {
        const size_t i = (size_t)(before->moved[k] & 0xFFFFFFFF);
        const uint8_t *record = segment->bytes + (before->moved[k] >> 32);
        const size_t length = RECORD_HEADER + get_u32(record);
        memmove(segment->bytes + segment->used, record, length);
        fl_set_location(store, i, before->streams[i].group, (uint64_t)store->log.kept << 32 | segment->used);
        segment->frames += segment->bytes[segment->used + 5];
        segment->used += length;
    }
    for (size_t row = 0; row < what->count; row++) {
        const size_t i = stream_of(store, what, row);
        const int64_t newest = store->method.references ? before->streams[i].group : before->streams[i].head;
        if (segment->last_group[i] > newest) {
            segment->last_group[i] = newest;
        }
    }
}

/* -- streams ---------------------------------------------------------------------------------------------------------------- */

static int no_codec(void *context, int which, const uint8_t *blob, size_t blob_size, uint8_t *data, size_t size) {
    (void)context, (void)which, (void)blob, (void)blob_size, (void)data, (void)size;
    return FL_CODEC;
}

/* Read the last observation of a stream anew, as what is in memory of it has been overwritten. Tells whether it could be read. */
static bool recall(fl_store *store, size_t i, const fl_codecs *codecs) {
    const fl_layout *layout = &store->layout;
    fl_stream *stream = &store->streams[i];
    uint8_t *obs = store->frames;
    uint32_t *newest = fl_alloc(store->n_streams, sizeof *newest), *pattern = fl_alloc(store->n_streams, sizeof *pattern);
    int result = FL_NO_MEMORY;
    if (newest != NULL && pattern != NULL) {
        newest[i] = stream->entry.newest;
        pattern[i] = stream->entry.pattern;
        const fl_index aside = {.cells = store->n_streams, .newest = newest, .patterns = pattern, .wide = true};
        const fl_read_part part = {&aside, obs};
        const int64_t cell = (int64_t)i;
        result = fl_read(store, &part, 1, &cell, NULL, 1, 1, codecs);
    }
    fl_free(newest);
    fl_free(pattern);
    if (result != FL_OK) {
        return false;
    }
    if (store->turned) {
        fl_turn(layout, obs, false, stream->last);
    } else if (layout->depth > 1) {
        memcpy(stream->last, obs, store->obs_bytes);
    }
    stream->tail_is_newest = store->before.streams[i].tail_is_newest;
    if (stream->tail_is_newest || layout->depth == 1) {
        fl_take_frame(layout, obs, false, layout->depth - 1, stream->tail, NULL);
    }
    stream->known = true;
    return true;
}

/* Make a stream what it was, but for what has to be recalled. Patches go on from the tail: without it, its group ends here. */
static void restore(fl_store *store, size_t i) {
    static const fl_codecs none = {NULL, NULL, no_codec};
    const size_t depth = store->layout.depth;
    fl_stream *stream = &store->streams[i], *old = &store->before.streams[i];
    const int64_t *numbers = store->before.numbers + i * depth;
    uint8_t *last = stream->last; /* these are exchanged between streams */
    const bool moved = memcmp(stream->numbers, numbers, depth * sizeof *numbers) != 0, stored = stream->head != old->head;
    *stream = *old;
    stream->last = last;
    memcpy(stream->numbers, numbers, depth * sizeof *numbers);
    if (fl_log_is_idle(&store->log, stream->key_segment)) {
        stream->key_segment = -1;
    }
    if (!moved && !stored) {
        return;
    }
    stream->known = stream->tail_is_newest = false;
    const bool recalled = old->known && recall(store, i, &none);
    const bool tail_is_right = !stored || (recalled && (stream->tail_is_newest || depth == 1));
    if (!tail_is_right && stream->frames > 0) {
        fl_end_group(store, i, NULL, 0);
    }
}

void fl_undo(fl_store *store, const fl_written *what, const fl_codecs *codecs) {
    const fl_before *before = &store->before;
    const size_t closed = leave_groups(store, what);
    if (store->log.kept >= 0) {
        shorten_segment(store, what, closed);
    }
    fl_log_close_after(&store->log, store->log.kept);
    for (size_t row = 0; row < what->count; row++) {
        restore(store, stream_of(store, what, row));
    }
    fl_patterns_shorten(&store->patterns, before->patterns);
    store->writes = before->writes;
    store->strays = before->strays;
    store->strays_since = before->strays_since;
    /* From here on all is sound, and codecs may be called. */
    for (size_t row = 0; codecs != NULL && row < what->count; row++) {
        const size_t i = stream_of(store, what, row);
        if (before->streams[i].known && !store->streams[i].known && !recall(store, i, codecs)) {
            return;
        }
    }
}
