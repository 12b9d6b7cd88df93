/* The log: segments, and the directory that tells where groups are in them. */
#include "framelog.h"

#include <string.h>

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
    log->kept = -1;
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
    log->looks = 0;
    return FL_OK;
}

/* Give memory of idle segments back, also of the one that is needed next: new pages take memory only once they are written to,
 * and to have them anew takes little against filling them. */
static void give_back(fl_log *log) {
    for (size_t i = 0; i < log->n_idle; i++) {
        fl_segment *segment = &log->segments[log->idle[i]];
        fl_free_pages(segment->block, block_bytes(log));
        memset(segment, 0, sizeof *segment);
    }
}

static void close_after(fl_log *log, int64_t last) {
    while (log->in_use > 0 && log->order[log->in_use - 1] != last) {
        const uint32_t number = log->order[--log->in_use];
        clear_segment(log, &log->segments[number]);
        log->idle[log->n_idle++] = number;
    }
}

void fl_log_close_after(fl_log *log, int64_t segment) {
    close_after(log, segment);
    give_back(log);
}

void fl_log_clear(fl_log *log) {
    close_after(log, -1); /* the newest first, so that the oldest, whose memory has been touched, is next */
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
        if (i + 1 < log->in_use && number != log->kept && is_dead(log, segment, oldest_group)) {
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
