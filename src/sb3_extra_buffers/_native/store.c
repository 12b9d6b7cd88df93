/* The life of a store: making it, clearing it, what it holds. */
#include "format.h"
#include "frames.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SEGMENT ((size_t)1 << 28)
#define MOST_STREAMS ((size_t)1 << 31)
#define MOST_BYTES ((size_t)1 << 28) /* of an observation: a segment holds 8 frames and more, and offsets in it have 32 bits */
enum { PATIENCE = 16 };

/* -- sizes -------------------------------------------------------------------------------------------------------------------- */

bool fl_layout_makes_sense(const fl_layout *layout) {
    if (layout->item < 1 || layout->outer < 1 || layout->depth < 1 || layout->part < 1 || layout->planes < 1 ||
        layout->depth > FL_MAX_DEPTH || layout->planes > MOST_BYTES || layout->item > 64) {
        return false;
    }
    const size_t limits[] = {layout->part, layout->outer, layout->depth};
    size_t bytes = 1;
    for (int i = 0; i < 3; i++) {
        if (limits[i] > MOST_BYTES / bytes) {
            return false;
        }
        bytes *= limits[i];
    }
    if (layout->can_turn && (layout->outer != 1 || layout->part % (layout->planes * layout->item) != 0)) {
        return false;
    }
    if (layout->interleave && (layout->outer != 1 || layout->part % (layout->planes * layout->item) != 0)) {
        return false;
    }
    return layout->row < layout->outer * layout->part;
}

static size_t power_of_two(size_t size) {
    size_t power = 1;
    while (power < size) {
        power *= 2;
    }
    return power;
}

/* Small against a buffer, as whole segments are used again; large against what is stored once a segment. With what lies before
 * and behind them, segments are whole pages. */
static size_t segment_bytes_for(const fl_store *store) {
    const size_t frame = store->frame_bytes + 64;
    size_t size = power_of_two(8 * frame);
    size = size > fl_limits_in_use.min_segment ? size : fl_limits_in_use.min_segment;
    const size_t group = power_of_two(2 * (store->staging_bytes + frame));
    size = size > group ? size : group;
    if (store->method.references) {
        size_t all = store->n_streams > MAX_SEGMENT / (4 * frame) ? MAX_SEGMENT : power_of_two(4 * store->n_streams * frame);
        all = all < MAX_SEGMENT ? all : MAX_SEGMENT;
        size = size > all ? size : all;
    }
    const size_t aside = FL_READ_AHEAD + store->n_streams * sizeof(int64_t);
    return size > 2 * aside ? size - aside : size;
}

static size_t staging_bytes_for(const fl_store *store) {
    if (!store->method.references) {
        return 0;
    }
    const size_t frame = store->frame_bytes;
    const size_t full = frame + (((size_t)1 << store->method.shift) - 1) * store->patch_limit;
    const size_t most = 3 * frame + 64;
    const size_t least = frame + 64;
    const size_t patches = full < most ? full : most;
    return RECORD_PATCHES + (patches > least ? patches : least) + FL_READ_AHEAD;
}

/* -- making one ----------------------------------------------------------------------------------------------------------------- */

static int make_streams(fl_store *store) {
    const size_t n = store->n_streams, depth = store->layout.depth;
    const size_t last = fl_padded(store->obs_bytes);
    const size_t each = store->stride + last + store->staging_bytes;
    const size_t scratch = (2 * depth + 2) * store->stride + fl_padded(store->layout.row) + FL_WRITE_AHEAD;
    const size_t spare = depth > 1 ? last : 0;
    if (each > SIZE_MAX / 4 / n) {
        return FL_NO_MEMORY;
    }
    store->streams = fl_alloc(n, sizeof *store->streams);
    store->numbers = fl_alloc(2 * n * depth, sizeof *store->numbers);
    store->entries = fl_alloc(FL_MAX_PARTS * n, sizeof *store->entries);
    store->memory = fl_alloc(n * each + spare + scratch, 1);
    store->before.streams = fl_alloc(n, sizeof *store->streams);
    store->before.moved = fl_alloc(n, sizeof *store->before.moved);
    if (!store->streams || !store->numbers || !store->entries || !store->memory || !store->before.streams ||
        !store->before.moved) {
        return FL_NO_MEMORY;
    }
    store->before.numbers = store->numbers + n * depth;
    uint8_t *memory = store->memory;
    for (size_t i = 0; i < n; i++) { /* all tails, then all last observations, then all staging */
        fl_stream *stream = &store->streams[i];
        stream->tail = memory + i * store->stride;
        stream->last = memory + n * store->stride + i * last;
        stream->staging = memory + n * (store->stride + last) + i * store->staging_bytes;
        stream->numbers = store->numbers + i * depth;
    }
    store->spare = memory + n * each;
    store->frames = store->spare + spare;
    store->zeros = store->frames + (2 * depth + 2) * store->stride;
    return FL_OK;
}

static void forget_streams(fl_store *store) {
    for (size_t i = 0; i < store->n_streams; i++) {
        fl_stream *stream = &store->streams[i];
        stream->head = -1;
        stream->entry = (fl_entry){0, FL_UNWRITTEN};
        stream->pinned = FL_NO_FRAME;
        stream->run = 0;
        stream->known = stream->tail_is_newest = false;
        stream->staged = 0;
        stream->frames = stream->segment = 0;
        stream->group = -1;
        stream->key_segment = -1;
        stream->key_offset = stream->key_cost = 0;
        stream->row_above = 0;
        for (size_t j = 0; j < store->layout.depth; j++) {
            stream->numbers[j] = FL_ZERO;
        }
    }
    store->turned = false;
}

fl_store *fl_store_new(const fl_layout *layout, const fl_method *method, size_t n_streams, int *result) {
    *result = FL_INVALID;
    if (!fl_layout_makes_sense(layout) || n_streams < 1 || n_streams > MOST_STREAMS || method->shift > 7 ||
        (!method->references && (method->shift > 0 || method->packs))) {
        return NULL;
    }
    fl_store *store = fl_alloc(1, sizeof *store);
    *result = FL_NO_MEMORY;
    if (store == NULL) {
        return NULL;
    }
    store->layout = *layout;
    store->method = *method;
    store->n_streams = n_streams;
    store->frame_bytes = layout->outer * layout->part;
    store->obs_bytes = layout->depth * store->frame_bytes;
    store->stride = fl_padded(store->frame_bytes);
    store->patch_limit = store->frame_bytes / 8 > 32 ? store->frame_bytes / 8 : 32;
    store->staging_bytes = staging_bytes_for(store);
    store->frames_before_check = fl_limits_in_use.first_check;
    store->pattern_limit = fl_limits_in_use.narrow_patterns;
    store->patience = PATIENCE;
    if (make_streams(store) != FL_OK || fl_directory_init(&store->directory, n_streams, method->shift) != FL_OK ||
        fl_patterns_init(&store->patterns, layout->depth) != FL_OK) {
        fl_store_free(store);
        return NULL;
    }
    fl_log_init(&store->log, segment_bytes_for(store), n_streams);
    forget_streams(store);
    *result = FL_OK;
    return store;
}

void fl_store_free(fl_store *store) {
    if (store == NULL) {
        return;
    }
    for (size_t i = 0; i < store->n_indexes; i++) {
        fl_index_free(store->indexes[i]);
        fl_free(store->indexes[i]);
    }
    fl_free(store->indexes);
    fl_log_free(&store->log);
    fl_free(store->directory.locations);
    fl_free(store->directory.oldest);
    fl_patterns_free(&store->patterns);
    fl_free(store->streams);
    fl_free(store->numbers);
    fl_free(store->entries);
    fl_free(store->before.streams);
    fl_free(store->before.moved);
    fl_free(store->memory);
    fl_free(store);
}

int fl_new_index(fl_store *store, size_t cells) {
    if (store->n_indexes >= INT32_MAX) {
        return FL_INVALID;
    }
    fl_index **indexes = fl_resize(store->indexes, store->n_indexes + 1, sizeof *indexes);
    if (indexes == NULL) {
        return FL_NO_MEMORY;
    }
    store->indexes = indexes;
    fl_index *index = fl_alloc(1, sizeof *index);
    if (index == NULL || fl_index_init(index, cells, store->n_streams) != FL_OK) {
        fl_free(index);
        return FL_NO_MEMORY;
    }
    store->indexes[store->n_indexes] = index;
    return (int)store->n_indexes++;
}

int fl_clear(fl_store *store) {
    fl_patterns patterns;
    if (fl_patterns_init(&patterns, store->layout.depth) != FL_OK) { /* all that could fail comes first */
        fl_patterns_free(&patterns);
        return FL_NO_MEMORY;
    }
    fl_patterns_free(&store->patterns);
    store->patterns = patterns;
    for (size_t i = 0; i < store->n_indexes; i++) {
        fl_index_clear(store->indexes[i], store->n_streams);
    }
    fl_log_clear(&store->log);
    memset(store->directory.oldest, 0, store->n_streams * sizeof *store->directory.oldest);
    forget_streams(store);
    store->frames_before_check = fl_limits_in_use.first_check;
    store->pattern_limit = fl_limits_in_use.narrow_patterns;
    store->wants_compaction = false;
    return FL_OK; /* strays and short groups stay: a rollout may be too short to show what does not pay */
}

/* -- what it holds ---------------------------------------------------------------------------------------------------------------- */

bool fl_last_observation(const fl_store *store, size_t i, uint8_t *out) {
    const fl_stream *stream = &store->streams[i];
    if (!stream->known) {
        return false;
    }
    if (store->turned) {
        fl_turn(&store->layout, stream->last, true, out);
    } else {
        memcpy(out, store->layout.depth == 1 ? stream->tail : stream->last, store->obs_bytes);
    }
    return true;
}

bool fl_layout_in_doubt(const fl_store *store) {
    if (store->layout.depth == 1) {
        return false;
    }
    uint64_t cells = 0;
    for (size_t i = 0; i < store->n_indexes; i++) {
        cells += store->indexes[i]->cells;
    }
    /* Going back means storing again what is held, so that is done once strays have cost as much: at worst, time is spent
     * twice. No fewer observations are held than this; and all streams may begin an episode at the same time. */
    const uint64_t written = store->writes * store->n_streams;
    const uint64_t held = written < cells ? written : cells;
    return store->strays > store->patience &&
           store->strays - store->patience > 2 * store->n_streams + held / store->layout.depth;
}

uint64_t fl_written_cells(const fl_store *store) {
    uint64_t count = 0;
    for (size_t i = 0; i < store->n_indexes; i++) {
        const fl_index *index = store->indexes[i];
        const uint16_t *narrow = index->patterns;
        const uint32_t *wide = index->patterns;
        for (size_t cell = 0; cell < index->cells; cell++) {
            count += index->wide ? wide[cell] != 0 : narrow[cell] != 0;
        }
    }
    return count;
}

size_t fl_stored_frames(const fl_store *store) {
    size_t frames = 0;
    for (size_t i = 0; i < store->log.in_use; i++) {
        frames += store->log.segments[store->log.order[i]].frames;
    }
    for (size_t i = 0; i < store->n_streams; i++) {
        frames += store->streams[i].frames;
    }
    return frames;
}

size_t fl_stored_bytes(const fl_store *store) {
    size_t bytes = 0;
    for (size_t i = 0; i < store->log.in_use; i++) {
        bytes += store->log.segments[store->log.order[i]].used;
    }
    for (size_t i = 0; i < store->n_streams; i++) {
        bytes += store->streams[i].frames > 0 ? store->streams[i].staged : 0;
    }
    return bytes;
}

size_t fl_index_bytes(const fl_store *store) {
    const fl_patterns *patterns = &store->patterns;
    size_t cell = 0;
    for (size_t i = 0; i < store->n_indexes; i++) {
        const size_t own = sizeof(uint32_t) + (store->indexes[i]->wide ? sizeof(uint32_t) : sizeof(uint16_t));
        cell = own > cell ? own : cell;
    }
    return (size_t)fl_written_cells(store) * cell + store->n_streams * store->directory.capacity * sizeof(uint64_t) +
           patterns->room * (patterns->depth + 1) * sizeof(int32_t) + patterns->table_room * sizeof(uint32_t);
}

size_t fl_held_bytes(const fl_store *store) {
    size_t bytes = 0;
    for (size_t i = 0; i < store->log.count; i++) {
        bytes += store->log.segments[i].block != NULL ? store->log.segment_bytes : 0;
    }
    return bytes;
}
