/* Frames go to groups, groups to segments: room, key frames, records. */
#include "format.h"
#include "frames.h"

#include <string.h>

enum {
    LOOK_AFTER = 1000, /* segments are looked through again once a thousandth of them is new */
    SMALL_LOG = 128,   /* in a log of fewer segments one counts for something, */
    LOOKS = 4,         /* so they are looked through each time that another quarter of the newest is full */
};
/* -- room ----------------------------------------------------------------------------------------------------------------- */

static fl_segment *current_segment(const fl_store *store) {
    return &store->log.segments[store->log.order[store->log.in_use - 1]];
}

static bool has_room(const fl_store *store, const fl_segment *segment, size_t bytes) {
    return bytes <= store->log.segment_bytes - segment->used - segment->reserved;
}

/* Make sure that the current segment has room for some bytes. */
static int find_segment(fl_store *store, size_t bytes) {
    fl_log *log = &store->log;
    if (log->in_use > 0 && has_room(store, current_segment(store), bytes)) {
        return FL_OK;
    }
    if (LOOK_AFTER * log->opened >= log->in_use) {
        fl_reclaim(store);
    }
    return fl_log_open_segment(log);
}

/* A ring leaves a segment while it fills another: see whether it has left one. */
static void release_early(fl_store *store) {
    fl_log *log = &store->log;
    if (log->in_use == 0 || log->in_use >= SMALL_LOG) {
        return;
    }
    const size_t quarters = current_segment(store)->used * LOOKS / log->segment_bytes;
    if (quarters > log->looks) {
        fl_reclaim(store);
        log->looks = quarters;
    }
}

/* Make sure that a group has a place in the directory. */
static int find_place(fl_store *store, size_t i, int64_t group) {
    release_early(store);
    fl_directory *directory = &store->directory;
    if ((uint64_t)(group - directory->oldest[i]) < directory->capacity) {
        return FL_OK;
    }
    fl_reclaim(store);
    /* Room for a good number of others after it, else the same would be asked again soon. */
    const size_t nearly_full = directory->capacity - directory->capacity / 16;
    int grown = FL_OK;
    if (directory->capacity < directory->most && (uint64_t)(group - directory->oldest[i]) >= nearly_full) {
        grown = fl_directory_grow(directory, store->n_streams);
    }
    if ((uint64_t)(group - directory->oldest[i]) < directory->capacity) {
        return FL_OK;
    }
    return grown != FL_OK ? grown : FL_NO_NUMBERS;
}

void fl_set_location(fl_store *store, size_t i, int64_t group, uint64_t location) {
    const size_t capacity = store->directory.capacity;
    store->directory.locations[i * capacity + (uint64_t)group % capacity] = location;
}

static uint64_t append_record(fl_store *store, size_t i, int64_t group, uint32_t number, size_t length, uint32_t frames) {
    fl_segment *segment = &store->log.segments[number];
    const uint64_t location = (uint64_t)number << 32 | segment->used;
    segment->used += length;
    segment->frames += frames;
    segment->last_group[i] = group;
    fl_set_location(store, i, group, location);
    return location;
}

/* -- codecs ---------------------------------------------------------------------------------------------------------------- */

/* Code a frame by itself. Red, green and blue of a pixel have more to do with each other than neighbours have, so codecs get
 * them side by side. */
static int encode_frame(fl_store *store, const uint8_t *frame, const fl_codecs *codecs, const uint8_t **blob, size_t *size) {
    const fl_layout *layout = &store->layout;
    if (layout->interleave) {
        uint8_t *pixels = store->frames + 2 * layout->depth * store->stride;
        fl_active->transpose(frame, pixels, layout->planes, fl_pixels(layout), layout->item);
        frame = pixels;
    }
    return codecs->encode(codecs->context, FL_FRAME_CODEC, frame, store->frame_bytes, blob, size);
}

/* -- groups ---------------------------------------------------------------------------------------------------------------- */

void fl_end_group(fl_store *store, size_t i, const uint8_t *blob, size_t blob_size) {
    fl_stream *stream = &store->streams[i];
    fl_segment *segment = &store->log.segments[stream->segment];
    uint8_t *record = segment->bytes + segment->used;
    const size_t body = stream->staged - RECORD_HEADER;
    size_t length = stream->staged;
    if (blob != NULL) {
        length = RECORD_PATCHES + blob_size;
        put_header(record, RECORD_NUMBER + blob_size, PACKED, stream->frames);
        put_u32(record + RECORD_HEADER, body);
        memcpy(record + RECORD_PATCHES, blob, blob_size);
    } else {
        put_header(stream->staging, body, stream->staging[4], stream->frames);
        fl_active->copy(record, stream->staging, length);
    }
    if (stream->ended_at < 0) {
        stream->ended_at = (int64_t)segment->used;
    }
    segment->reserved -= stream->staged;
    append_record(store, i, stream->group, stream->segment, length, stream->frames);
    const bool is_short = stream->frames < 1u << store->method.shift >> 1;
    stream->short_groups = !is_short ? 0 : fl_references_pay(stream) ? stream->short_groups + 1 : FL_MANY_SHORT;
    stream->frames = 0;
}

/* Have a stream's open group coded, and moved to the log. */
static int close_group(fl_store *store, size_t i, const fl_codecs *codecs) {
    fl_stream *stream = &store->streams[i];
    if (stream->frames == 0) {
        return FL_OK;
    }
    const size_t body = stream->staged - RECORD_HEADER;
    const uint8_t *blob = NULL;
    size_t blob_size = 0;
    if (store->method.packs && stream->staging[4] == KEYED) {
        const int coded =
            codecs->encode(codecs->context, FL_GROUP_CODEC, stream->staging + RECORD_HEADER, body, &blob, &blob_size);
        if (coded != FL_OK) {
            return coded;
        }
        if (blob_size + RECORD_NUMBER >= body) {
            blob = NULL;
        }
    }
    fl_end_group(store, i, blob, blob_size);
    return FL_OK;
}

static size_t encode_patch(fl_store *store, fl_stream *stream, const uint8_t *before, const uint8_t *frame, size_t start,
                           size_t limit) {
    const size_t most = store->staging_bytes - FL_READ_AHEAD;
    return fl_active->encode(before, frame, store->frame_bytes, store->layout.row, store->zeros, &stream->row_above,
                             stream->staging, start, start + limit < most ? start + limit : most);
}

/* Begin a group with a patch on a key frame that is there. */
static bool begin_with_patch(fl_store *store, fl_stream *stream, int64_t number, const fl_segment *segment,
                             const uint8_t *frame) {
    const bool own = stream->key_segment == number;
    if (!own && segment->newest_key < 0) {
        return false;
    }
    const size_t offset = own ? stream->key_offset : (size_t)segment->newest_key;
    const size_t limit = fl_references_pay(stream) ? store->frame_bytes / 2 : store->patch_limit;
    const size_t end = encode_patch(store, stream, segment->bytes + offset, frame, RECORD_PATCHES, limit);
    if (end == FL_NO_PATCH || !has_room(store, segment, end)) {
        return false;
    }
    /* A new key frame is stored once patches on the old one have cost half as much again as it does: that is never far from the best
     * possible, and where a game goes on as it was, the smallest in practice. */
    const size_t cost = (own ? stream->key_cost : 0) + end - RECORD_PATCHES;
    if (cost > store->frame_bytes + store->frame_bytes / 2) {
        return false;
    }
    stream->key_segment = number;
    stream->key_offset = offset;
    stream->key_cost = cost;
    stream->staged = end;
    put_header(stream->staging, 0, KEYED, 0);
    put_u32(stream->staging + RECORD_HEADER, offset);
    return true;
}

/* Begin a group with the blob of a codec, in a stream whose frames have nothing to do with each other. */
static void begin_with_blob(fl_stream *stream, const uint8_t *blob, size_t size) {
    put_header(stream->staging, 0, CODED, 0);
    put_u32(stream->staging + RECORD_HEADER, size);
    memcpy(stream->staging + RECORD_PATCHES, blob, size);
    stream->staged = RECORD_PATCHES + size;
}

static size_t key_place(const fl_segment *segment) {
    return (segment->used + FL_KEY_ALIGNMENT - 1) / FL_KEY_ALIGNMENT * FL_KEY_ALIGNMENT;
}

static void begin_with_key(fl_store *store, fl_stream *stream, int64_t number, fl_segment *segment, const uint8_t *frame) {
    const size_t offset = key_place(segment);
    fl_active->copy(segment->bytes + offset, frame, store->frame_bytes);
    segment->used = offset + store->frame_bytes;
    segment->newest_key = (int64_t)offset;
    stream->key_segment = number;
    stream->key_offset = offset;
    stream->key_cost = 0;
    put_header(stream->staging, 0, KEYED, 0);
    put_u32(stream->staging + RECORD_HEADER, offset);
    stream->staging[RECORD_PATCHES] = stream->staging[RECORD_PATCHES + 1] = 0; /* a patch that changes nothing */
    stream->staged = RECORD_PATCHES + PATCH_PREFIX;
}

static int open_group(fl_store *store, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    fl_stream *stream = &store->streams[i];
    const int64_t group = stream->group + 1;
    int result = find_place(store, i, group);
    if (result != FL_OK) {
        return result;
    }
    bool begun = false;
    if (store->log.in_use > 0) {
        begun = begin_with_patch(store, stream, store->log.order[store->log.in_use - 1], current_segment(store), frame);
    }
    if (!begun) {
        const uint8_t *blob = NULL;
        size_t size = store->frame_bytes;
        if (!fl_references_pay(stream)) {
            result = encode_frame(store, frame, codecs, &blob, &size);
        }
        const bool coded = size < store->frame_bytes;
        if (result == FL_OK) {
            const size_t key = FL_KEY_ALIGNMENT + store->frame_bytes + RECORD_PATCHES + PATCH_PREFIX;
            result = find_segment(store, coded ? RECORD_PATCHES + size : key);
        }
        if (result != FL_OK) {
            return result;
        }
        if (coded) {
            begin_with_blob(stream, blob, size);
        } else {
            begin_with_key(store, stream, store->log.order[store->log.in_use - 1], current_segment(store), frame);
        }
    }
    stream->segment = store->log.order[store->log.in_use - 1];
    current_segment(store)->reserved += stream->staged;
    stream->group = group;
    stream->frames = 1;
    fl_set_location(store, i, group, FL_OPEN_BIT | i);
    return FL_OK;
}

/* -- frames ---------------------------------------------------------------------------------------------------------------- */

static int store_alone(fl_store *store, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    fl_stream *stream = &store->streams[i];
    const uint8_t *blob;
    size_t size;
    int kind = BLOB;
    const int coded = encode_frame(store, frame, codecs, &blob, &size);
    if (coded != FL_OK) {
        return coded;
    }
    if (size >= store->frame_bytes) {
        blob = frame;
        size = store->frame_bytes;
        kind = RAW;
    }
    int found = find_place(store, i, stream->head + 1);
    if (found == FL_OK) {
        found = find_segment(store, RECORD_HEADER + size);
    }
    if (found != FL_OK) {
        return found;
    }
    fl_segment *segment = current_segment(store);
    put_header(segment->bytes + segment->used, size, kind, 1);
    memcpy(segment->bytes + segment->used + RECORD_HEADER, blob, size);
    append_record(store, i, stream->head + 1, store->log.order[store->log.in_use - 1], RECORD_HEADER + size, 1);
    stream->head++;
    return FL_OK;
}

static int store_in_group(fl_store *store, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    fl_stream *stream = &store->streams[i];
    if (stream->frames > 0 && stream->frames < 1u << store->method.shift) {
        fl_segment *segment = &store->log.segments[stream->segment];
        const size_t end = encode_patch(store, stream, stream->tail, frame, stream->staged, store->patch_limit);
        if (end != FL_NO_PATCH && has_room(store, segment, end - stream->staged)) {
            segment->reserved += end - stream->staged;
            stream->staged = end;
            stream->frames++;
            stream->head++;
            return FL_OK;
        }
    }
    int result = close_group(store, i, codecs);
    if (result == FL_OK) {
        result = open_group(store, i, frame, codecs);
    }
    if (result == FL_OK) {
        stream->head = stream->group << store->method.shift;
    }
    return result;
}

int fl_store_frame(fl_store *store, size_t i, const uint8_t *frame, const fl_codecs *codecs) {
    const int result = store->method.references ? store_in_group(store, i, frame, codecs)
                                                : store_alone(store, i, frame, codecs);
    if (result == FL_OK) {
        fl_active->copy(store->streams[i].tail, frame, store->frame_bytes);
    }
    return result;
}
