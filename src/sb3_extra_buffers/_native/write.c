/* Writing: what is new in an observation, and index entries. */
#include "format.h"
#include "frames.h"

#include <string.h>

enum {
    MAX_DISTANCE = 4096, /* older frames are stored again rather than referred to: they need not be kept for ever */
    STRAY_COST = 8,      /* observations that make up for one that does not follow */
};
/* -- observations ------------------------------------------------------------------------------------------------------------ */

/* Make the entry of a stream's last observation from the numbers of its frames. */
static int make_entry(fl_store *store, fl_stream *stream) {
    const size_t depth = store->layout.depth;
    int64_t newest = FL_ZERO;
    for (size_t j = 0; j < depth; j++) {
        newest = stream->numbers[j] > newest ? stream->numbers[j] : newest;
    }
    int32_t offsets[FL_MAX_DEPTH];
    for (size_t j = 0; j < depth; j++) {
        offsets[j] = stream->numbers[j] == FL_ZERO ? FL_ZERO : (int32_t)(newest - stream->numbers[j]);
    }
    const int64_t pattern = fl_patterns_intern(&store->patterns, offsets);
    if (pattern < 0) {
        return (int)pattern;
    }
    stream->entry = (fl_entry){newest < 0 ? 0 : (uint32_t)newest, (uint32_t)pattern};
    return FL_OK;
}

/* The last observation of a stream, less its oldest frame, plus this one. */
static int move_on(fl_store *store, fl_stream *stream, int64_t number) {
    const size_t depth = store->layout.depth;
    stream->run = number == stream->numbers[depth - 1] + 1 ? stream->run + 1 : 1;
    memmove(stream->numbers, stream->numbers + 1, (depth - 1) * sizeof *stream->numbers);
    stream->numbers[depth - 1] = number;
    stream->tail_is_newest = true;
    if (stream->run >= depth) {
        stream->entry = (fl_entry){(uint32_t)number, FL_RUN};
        return FL_OK;
    }
    return make_entry(store, stream);
}

/* Whether an observation looks like the first of an episode: what is older than the newest frame was made up. */
static bool is_padded(const fl_store *store, const uint8_t *frames) {
    const size_t depth = store->layout.depth, size = store->frame_bytes;
    const uint8_t *newest = frames + (depth - 1) * store->stride;
    bool zeros = true, repeated = true;
    for (size_t j = 0; j + 1 < depth && (zeros || repeated); j++) {
        const uint8_t *frame = frames + j * store->stride;
        zeros = zeros && frame[0] == 0 && memcmp(frame, frame + 1, size - 1) == 0;
        repeated = repeated && memcmp(frame, newest, size) == 0;
    }
    return zeros || repeated;
}

static void note_stray(fl_store *store) {
    const uint64_t made_up = (store->writes - store->strays_since) * store->n_streams / STRAY_COST;
    store->strays = (store->strays > made_up ? store->strays - made_up : 0) + 1;
    if (made_up) {
        store->strays_since = store->writes;
    }
}

/* An observation that does not follow from the last one: look for each of its frames. */
static int write_other(fl_store *store, size_t i, const uint8_t *obs, const fl_codecs *codecs) {
    const fl_layout *layout = &store->layout;
    const size_t depth = layout->depth, size = store->frame_bytes, stride = store->stride;
    fl_stream *stream = &store->streams[i];
    uint8_t *now = store->frames, *before = now + depth * stride, *scratch = before + depth * stride;
    const uint8_t *known[2 * FL_MAX_DEPTH];
    int64_t known_as[2 * FL_MAX_DEPTH], numbers[FL_MAX_DEPTH];
    size_t count = 0;
    for (size_t j = 0; j < depth; j++) {
        fl_take_frame(layout, obs, store->turned, j, now + j * stride, scratch);
    }
    if (stream->known) {
        if (!is_padded(store, now)) {
            note_stray(store);
        }
        for (size_t j = 0; j < depth; j++) {
            if (stream->numbers[j] != FL_ZERO && stream->head - stream->numbers[j] < MAX_DISTANCE) {
                fl_take_frame(layout, stream->last, store->turned, j, before + j * stride, scratch);
                known[count] = before + j * stride;
                known_as[count++] = stream->numbers[j];
            }
        }
    }
    for (size_t j = 0; j < depth; j++) {
        const uint8_t *frame = now + j * stride;
        numbers[j] = FL_ZERO;
        if (frame[0] == 0 && memcmp(frame, frame + 1, size - 1) == 0) {
            continue;
        }
        for (size_t k = 0; k < count && numbers[j] == FL_ZERO; k++) {
            if (memcmp(frame, known[k], size) == 0) {
                numbers[j] = known_as[k];
            }
        }
        if (numbers[j] == FL_ZERO) {
            const int stored = fl_store_frame(store, i, frame, codecs);
            if (stored != FL_OK) {
                return stored;
            }
            stream->tail_is_newest = false; /* of what is saved while a codec works on the next frame */
            numbers[j] = stream->head;
            known[count] = frame;
            known_as[count++] = stream->head;
        }
    }
    memcpy(stream->numbers, numbers, depth * sizeof *numbers);
    stream->run = 0;
    stream->tail_is_newest = numbers[depth - 1] != FL_ZERO && numbers[depth - 1] == stream->head; /* both -1 before the first frame */
    fl_active->copy(stream->last, obs, store->obs_bytes);
    return make_entry(store, stream);
}

static int write_observation(fl_store *store, size_t i, const uint8_t *obs, const fl_codecs *codecs) {
    const fl_layout *layout = &store->layout;
    const size_t depth = layout->depth;
    fl_stream *stream = &store->streams[i];
    /* Without a stack the last observation is the last frame, and needs no copy of its own. */
    const bool whole = depth == 1 && !store->turned;
    if (stream->known && fl_active->same(obs, whole ? stream->tail : stream->last, store->obs_bytes)) {
        return FL_OK;
    }
    uint8_t *scratch = store->frames + 2 * depth * store->stride;
    const uint8_t *frame = obs;
    if (depth > 1) {
        if (!stream->known || !fl_moved_on(layout, obs, stream->last, store->turned, store->frames, store->spare, scratch)) {
            return write_other(store, i, obs, codecs);
        }
        frame = store->frames;
    } else if (!whole) {
        fl_take_frame(layout, obs, true, 0, store->frames, scratch);
        frame = store->frames;
    }
    int64_t number = stream->numbers[depth - 1];
    const bool repeated = depth > 1 && stream->tail_is_newest && memcmp(frame, stream->tail, store->frame_bytes) == 0;
    if (!repeated) {
        const int stored = fl_store_frame(store, i, frame, codecs);
        if (stored != FL_OK) {
            return stored;
        }
        number = stream->head;
    }
    if (depth > 1) {
        uint8_t *last = stream->last;
        stream->last = store->spare;
        store->spare = last;
    } else if (!whole) {
        fl_active->copy(stream->last, obs, store->obs_bytes);
    }
    return move_on(store, stream, number);
}

/* -- a write ----------------------------------------------------------------------------------------------------------------- */

static void set_order(fl_store *store, bool turned) {
    if (store->turned == turned) {
        return;
    }
    for (size_t i = 0; i < store->n_streams; i++) {
        fl_stream *stream = &store->streams[i];
        if (!stream->known) {
            continue;
        }
        if (store->layout.depth == 1) { /* the tail is it, in C order */
            if (turned) {
                fl_turn(&store->layout, stream->tail, false, stream->last);
            }
        } else {
            memcpy(store->frames, stream->last, store->obs_bytes);
            fl_turn(&store->layout, store->frames, store->turned, stream->last);
        }
    }
    store->turned = turned;
}

static void enter(fl_store *store, fl_index *index, int64_t first, const int64_t *cells, size_t count, const fl_entry *entries) {
    const size_t n = store->n_streams;
    uint16_t *narrow = index->patterns;
    uint32_t *wide = index->patterns;
    for (size_t row = 0; row < count; row++) {
        const size_t cell = (size_t)(cells ? cells[row] : first + (int64_t)row);
        const fl_entry entry = entries[cell % n];
        index->newest[cell] = entry.newest;
        if (index->wide) {
            index->overwritten += wide[cell] != FL_UNWRITTEN;
            wide[cell] = entry.pattern;
        } else {
            index->overwritten += narrow[cell] != FL_UNWRITTEN;
            narrow[cell] = (uint16_t)entry.pattern;
        }
        index->written[cell / index->block_cells] = 1;
    }
}

/* Have the log stored again without what is not in use. If that cannot be now, it is tried again later. */
static int compact(fl_store *store, const fl_codecs *codecs) {
    const int result = fl_rebuild(store, &store->layout, codecs);
    if (result == FL_CODEC) {
        return result;
    }
    if (result != FL_OK) {
        store->wants_compaction = false;
        store->frames_before_check = 2 * fl_stored_frames(store);
        store->pattern_limit *= 2;
    }
    return FL_OK;
}

static int write_parts(fl_store *store, const fl_write_part *parts, size_t n_parts, int64_t first, const int64_t *cells,
                       size_t count, const fl_codecs *codecs) {
    const size_t n = store->n_streams;
    /* Both observations of a stream, then those of the next: what the second is compared with is still in a cache. */
    const size_t together = n_parts == 2 && parts[0].turned == parts[1].turned ? 2 : 1;
    for (size_t done = 0; done < n_parts; done += together) {
        set_order(store, parts[done].turned);
        for (size_t k = 0; k < count * together; k++) {
            const size_t row = k / together, part = done + k % together;
            const size_t i = (size_t)(cells ? cells[row] : first + (int64_t)row) % n;
            fl_stream *stream = &store->streams[i];
            const int result = write_observation(store, i, parts[part].obs + row * store->obs_bytes, codecs);
            if (result != FL_OK) {
                return result;
            }
            stream->known = true;
            store->entries[part * n + i] = stream->entry;
        }
        store->writes += together;
    }
    if (store->patterns.count > fl_limits_in_use.narrow_patterns) {
        for (size_t part = 0; part < n_parts; part++) {
            if (!parts[part].index->wide && fl_index_widen(parts[part].index) != FL_OK) {
                return FL_NO_MEMORY;
            }
        }
    }
    return FL_OK;
}

int fl_write(fl_store *store, const fl_write_part *parts, size_t n_parts, int64_t first, const int64_t *cells, size_t count,
             const fl_codecs *codecs) {
    if (n_parts > FL_MAX_PARTS || count > store->n_streams) {
        return FL_INVALID;
    }
    for (size_t part = 0; part < n_parts; part++) {
        if (parts[part].turned && !store->layout.can_turn) {
            return FL_INVALID;
        }
        for (size_t row = 0; row < count; row++) {
            const int64_t cell = cells ? cells[row] : first + (int64_t)row;
            if (cell < 0 || (uint64_t)cell >= parts[part].index->cells) {
                return FL_OUTSIDE;
            }
        }
    }
    if (store->wants_compaction) {
        const int compacted = compact(store, codecs);
        if (compacted != FL_OK) {
            return compacted;
        }
    }
    store->n_entries = n_parts * store->n_streams;
    memset(store->entries, 0, store->n_entries * sizeof *store->entries);
    const fl_written what = {first, cells, count};
    fl_remember(store, &what);
    const int result = write_parts(store, parts, n_parts, first, cells, count, codecs);
    store->n_entries = 0;
    if (result != FL_OK) {
        fl_undo(store, &what, result == FL_NO_MEMORY ? NULL : codecs); /* not to ask for more of what there is none of */
    }
    fl_forget(store);
    if (result != FL_OK) {
        return result;
    }
    /* Nothing can fail from here on. */
    for (size_t part = 0; part < n_parts; part++) {
        enter(store, parts[part].index, first, cells, count, store->entries + part * store->n_streams);
    }
    if (store->patterns.count + 2 * store->n_streams > store->pattern_limit) {
        store->wants_compaction = true;
    }
    return FL_OK;
}
