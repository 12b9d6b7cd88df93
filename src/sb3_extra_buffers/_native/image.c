/*
 * A store as bytes, and back; docs/format.md describes them. Loading trusts nothing: whatever the bytes are, no number among them
 * is used before it is known to fit. What observations they hold is not checked here; that shows when they are read.
 */
#include "format.h"
#include "framelog.h"

#include <string.h>

static const uint8_t MAGIC[8] = {'S', 'B', '3', 'X', 'B', 'S', 'T', '2'};
#define HIGHEST ((int64_t)1 << 56) /* of a frame's number */

/* -- saving ---------------------------------------------------------------------------------------------------------------------- */

/* Where bytes go; without `out` they are only counted. */
typedef struct sink {
    uint8_t *out;
    size_t size;
} sink;

static void put(sink *to, const void *data, size_t size) {
    if (to->out != NULL) {
        memcpy(to->out + to->size, data, size);
    }
    to->size += size;
}

static void put_number(sink *to, uint64_t value) {
    uint8_t bytes[8];
    put_u32(bytes, (size_t)(value & 0xFFFFFFFF));
    put_u32(bytes + 4, (size_t)(value >> 32));
    put(to, bytes, 8);
}

static void put_words(sink *to, const uint32_t *words, size_t count) {
    for (size_t i = 0; to->out != NULL && i < count; i++) {
        put_u32(to->out + to->size + 4 * i, words[i]);
    }
    to->size += 4 * count;
}

static void put_halves(sink *to, const uint16_t *words, size_t count) {
    for (size_t i = 0; to->out != NULL && i < count; i++) {
        to->out[to->size + 2 * i] = (uint8_t)(words[i] & 255);
        to->out[to->size + 2 * i + 1] = (uint8_t)(words[i] >> 8);
    }
    to->size += 2 * count;
}

/* Segments in use are numbered by age in an image. */
static int64_t place_of(const fl_store *store, int64_t segment) {
    for (size_t i = 0; i < store->log.in_use; i++) {
        if (store->log.order[i] == segment) {
            return (int64_t)i;
        }
    }
    return -1;
}

static int64_t newest_group(const fl_store *store, const fl_stream *stream) {
    return store->method.references ? stream->group : stream->head;
}

/* The most groups that any stream has in the directory. */
static uint64_t groups_in_use(const fl_store *store) {
    int64_t most = 0;
    for (size_t i = 0; i < store->n_streams; i++) {
        const int64_t groups = newest_group(store, &store->streams[i]) + 1 - store->directory.oldest[i];
        most = groups > most ? groups : most;
    }
    return (uint64_t)most;
}

static bool has_own_last(const fl_store *store) { return store->layout.depth > 1 || store->turned; }

static void save_stream(sink *to, const fl_store *store, size_t i) {
    const fl_stream *stream = &store->streams[i];
    const bool open = stream->frames > 0;
    const int64_t key = stream->key_segment < 0 ? -1 : place_of(store, stream->key_segment);
    const int flags = stream->known | stream->tail_is_newest << 1 | (int)stream->short_groups << 2;
    put_number(to, (uint64_t)stream->head);
    put_number(to, (uint64_t)stream->group);
    put_number(to, (uint64_t)flags);
    put_number(to, stream->run);
    put_number(to, stream->row_above);
    put_number(to, stream->entry.newest);
    put_number(to, stream->entry.pattern);
    put_number(to, (uint64_t)key);
    put_number(to, key < 0 ? 0 : stream->key_offset);
    put_number(to, key < 0 ? 0 : stream->key_cost);
    put_number(to, stream->frames);
    put_number(to, open ? (uint64_t)place_of(store, stream->segment) : 0);
    put_number(to, open ? stream->staged : 0);
    for (size_t j = 0; j < store->layout.depth; j++) {
        put_number(to, (uint64_t)stream->numbers[j]);
    }
    put(to, stream->tail, store->frame_bytes);
    if (has_own_last(store)) {
        put(to, stream->last, store->obs_bytes);
    }
    if (open) {
        put(to, stream->staging, stream->staged);
    }
}

static void save_directory(sink *to, const fl_store *store) {
    const fl_directory *directory = &store->directory;
    /* Where segments of the log are in the image; asked for each group, so it is looked up in a table where there is one. */
    uint32_t *places = fl_alloc(store->log.count, sizeof *places);
    for (size_t i = 0; places != NULL && i < store->log.in_use; i++) {
        places[store->log.order[i]] = (uint32_t)i;
    }
    for (size_t i = 0; i < store->n_streams; i++) {
        const int64_t newest = newest_group(store, &store->streams[i]);
        put_number(to, (uint64_t)directory->oldest[i]);
        for (int64_t group = directory->oldest[i]; group <= newest; group++) {
            uint64_t location = directory->locations[i * directory->capacity + (uint64_t)group % directory->capacity];
            if (!(location & FL_OPEN_BIT)) {
                const size_t segment = (size_t)(location >> 32);
                const int64_t place = segment >= store->log.count ? 0
                                      : places != NULL            ? places[segment]
                                                                  : place_of(store, (int64_t)segment);
                location = (location & 0xFFFFFFFF) | (uint64_t)(place < 0 ? 0 : place) << 32;
            }
            put_number(to, location);
        }
    }
    fl_free(places);
}

static size_t save(const fl_store *store, int64_t only_index, uint8_t *out) {
    sink to = {out, 0};
    const fl_layout *layout = &store->layout;
    const int flags = layout->can_turn | layout->interleave << 1 | store->method.references << 2 | store->method.packs << 3 |
                      store->turned << 4 | store->wants_compaction << 5;
    put(&to, MAGIC, sizeof MAGIC);
    const uint64_t head[] = {
        layout->item,       layout->outer,          layout->depth,
        layout->part,       layout->planes,         layout->row,
        (uint64_t)flags,    store->method.shift,    store->n_streams,
        store->log.in_use,  groups_in_use(store),   store->patterns.count,
        only_index < 0 ? store->n_indexes : 1,
        store->writes,      store->frames_before_check, store->pattern_limit,
        store->strays,      store->strays_since,    store->patience,
        store->log.segment_bytes,
    };
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) {
        put_number(&to, head[i]);
    }
    for (size_t i = 0; i < store->log.in_use; i++) {
        const fl_segment *segment = &store->log.segments[store->log.order[i]];
        put_number(&to, segment->used);
        put_number(&to, segment->frames);
        put_number(&to, (uint64_t)segment->newest_key);
        for (size_t j = 0; j < store->n_streams; j++) {
            put_number(&to, (uint64_t)segment->last_group[j]);
        }
        put(&to, segment->bytes, segment->used);
    }
    for (size_t i = layout->depth; i < store->patterns.count * layout->depth; i++) {
        put_number(&to, (uint64_t)(int64_t)store->patterns.offsets[i]);
    }
    for (size_t i = 0; i < store->n_streams; i++) {
        save_stream(&to, store, i);
    }
    save_directory(&to, store);
    for (size_t i = 0; i < store->n_indexes; i++) {
        const fl_index *index = store->indexes[i];
        if (only_index >= 0 && (size_t)only_index != i) {
            continue;
        }
        put_number(&to, index->cells);
        put_number(&to, index->wide);
        put_number(&to, index->overwritten);
        put_words(&to, index->newest, index->cells);
        if (index->wide) {
            put_words(&to, index->patterns, index->cells);
        } else {
            put_halves(&to, index->patterns, index->cells);
        }
    }
    return to.size;
}

size_t fl_image_bytes(const fl_store *store, int64_t only_index) { return save(store, only_index, NULL); }

void fl_image_save(const fl_store *store, int64_t only_index, uint8_t *out) { save(store, only_index, out); }

/* -- loading --------------------------------------------------------------------------------------------------------------------- */

/* Where bytes come from. Once something is wrong, `what` says so, and nothing but zeros comes. */
typedef struct source {
    const uint8_t *image;
    size_t size, pos;
    const char *what;
} source;

static bool demand(source *from, bool condition, const char *what) {
    if (!condition && from->what == NULL) {
        from->what = what;
    }
    return from->what == NULL;
}

static const uint8_t *take(source *from, size_t count, size_t size) {
    const bool fits = size == 0 || count <= (from->size - from->pos) / size;
    if (!demand(from, fits, "it ends too early")) {
        return NULL;
    }
    const uint8_t *at = from->image + from->pos;
    from->pos += count * size;
    return at;
}

static uint64_t number(source *from) {
    const uint8_t *at = take(from, 8, 1);
    return at == NULL ? 0 : get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

static uint64_t number_up_to(source *from, uint64_t most, const char *what) {
    const uint64_t value = number(from);
    return demand(from, value <= most, what) ? value : 0;
}

static int64_t signed_within(source *from, int64_t least, int64_t most, const char *what) {
    const int64_t value = (int64_t)number(from);
    return demand(from, least <= value && value <= most, what) ? value : least;
}

static int load_segments(source *from, fl_store *store, size_t count) {
    fl_log *log = &store->log;
    const int64_t last_key = (int64_t)log->segment_bytes - (int64_t)store->frame_bytes;
    for (size_t i = 0; i < count && from->what == NULL; i++) {
        const int opened = fl_log_open_segment(log);
        if (opened != FL_OK) {
            return opened;
        }
        fl_segment *segment = &log->segments[log->order[i]];
        const size_t used = (size_t)number_up_to(from, log->segment_bytes, "a segment is overfull");
        segment->frames = (size_t)number_up_to(from, SIZE_MAX / 4, "a segment's frames");
        segment->newest_key = signed_within(from, -1, last_key, "a segment's key frame lies outside");
        for (size_t j = 0; j < store->n_streams; j++) {
            segment->last_group[j] = signed_within(from, -1, HIGHEST, "a group's number");
        }
        const uint8_t *bytes = take(from, used, 1);
        if (bytes != NULL) {
            memcpy(segment->bytes, bytes, used);
            segment->used = used;
        }
    }
    log->opened = 0;
    return FL_OK;
}

static int load_patterns(source *from, fl_store *store, size_t count) {
    int32_t offsets[FL_MAX_DEPTH];
    for (size_t i = 1; i < count && from->what == NULL; i++) {
        for (size_t j = 0; j < store->layout.depth; j++) {
            offsets[j] = (int32_t)signed_within(from, FL_ZERO, INT32_MAX / 2, "a pattern's distance");
        }
        const int64_t interned = fl_patterns_intern(&store->patterns, offsets);
        if (interned == FL_NO_MEMORY) {
            return FL_NO_MEMORY;
        }
        demand(from, interned == (int64_t)i, "a pattern is there twice");
    }
    return FL_OK;
}

static void load_stream(source *from, fl_store *store, size_t i) {
    fl_stream *stream = &store->streams[i];
    const uint32_t shift = store->method.shift;
    const size_t segments = store->log.in_use, key_room = store->log.segment_bytes - store->frame_bytes;
    stream->head = signed_within(from, -1, HIGHEST, "a frame's number");
    stream->group = signed_within(from, -1, HIGHEST, "a group's number");
    if (store->method.references) {
        demand(from, stream->head >> shift == stream->group, "a frame's number is not of its group");
    }
    const uint64_t flags = number_up_to(from, 4 * FL_MANY_SHORT + 3, "what is known of an environment");
    stream->known = flags & 1;
    stream->tail_is_newest = flags >> 1 & 1;
    stream->short_groups = (uint32_t)flags >> 2;
    const uint64_t run = number(from);
    stream->run = run < FL_MAX_DEPTH ? (size_t)run : FL_MAX_DEPTH;
    stream->row_above = (uint32_t)number_up_to(from, UINT32_MAX, "how patches are made");
    stream->entry.newest = (uint32_t)number_up_to(from, UINT32_MAX, "an entry");
    stream->entry.pattern = (uint32_t)number_up_to(from, store->patterns.count - 1, "the pattern of an entry");
    stream->key_segment = signed_within(from, -1, (int64_t)segments - 1, "the segment of a key frame");
    stream->key_offset = (size_t)number_up_to(from, key_room, "a key frame's place");
    stream->key_cost = (size_t)number_up_to(from, SIZE_MAX / 4, "what a key frame has cost");
    const uint64_t frames = number_up_to(from, (uint64_t)1 << shift, "the length of an open group");
    const uint64_t segment = number_up_to(from, segments ? segments - 1 : 0, "the segment of an open group");
    const size_t staged = (size_t)number_up_to(from, store->staging_bytes, "the size of an open group");
    for (size_t j = 0; j < store->layout.depth; j++) {
        stream->numbers[j] = signed_within(from, FL_ZERO, stream->head, "the number of a frame in use");
    }
    const uint8_t *tail = take(from, store->frame_bytes, 1);
    const uint8_t *last = store->layout.depth > 1 || store->turned ? take(from, store->obs_bytes, 1) : tail;
    if (frames > 0) {
        const bool fits = store->method.references && segments > 0 && staged >= RECORD_PATCHES &&
                          staged + FL_READ_AHEAD <= store->staging_bytes;
        demand(from, fits, "the size of an open group");
        /* Else numbers would run on into the next group, and be given out twice. */
        demand(from, (stream->head & (((int64_t)1 << shift) - 1)) == (int64_t)frames - 1, "the length of an open group");
    }
    const uint8_t *staging = frames > 0 ? take(from, staged, 1) : NULL;
    if (from->what != NULL) {
        return;
    }
    memcpy(stream->tail, tail, store->frame_bytes);
    if (last != tail) {
        memcpy(stream->last, last, store->obs_bytes);
    }
    if (frames > 0) {
        memcpy(stream->staging, staging, staged);
        demand(from, staging[4] <= CODED, "the kind of an open group");
        stream->frames = (uint32_t)frames;
        stream->segment = store->log.order[segment];
        stream->staged = staged;
        fl_segment *home = &store->log.segments[stream->segment];
        home->reserved += staged;
        demand(from, home->reserved <= store->log.segment_bytes - home->used, "an open group has no room in its segment");
    }
}

static int load_directory(source *from, fl_store *store, size_t groups) {
    fl_directory *directory = &store->directory;
    size_t capacity = groups + groups / 16 + directory->capacity;
    capacity = capacity < directory->most ? capacity : directory->most;
    uint64_t *locations = fl_alloc(store->n_streams * capacity, sizeof *locations);
    if (locations == NULL) {
        return FL_NO_MEMORY;
    }
    fl_free(directory->locations);
    directory->locations = locations;
    directory->capacity = capacity;
    for (size_t i = 0; i < store->n_streams; i++) {
        const int64_t newest = newest_group(store, &store->streams[i]);
        const int64_t oldest = signed_within(from, 0, newest + 1, "the directory");
        if (!demand(from, (uint64_t)(newest - oldest + 1) <= capacity, "the directory")) {
            return FL_OK;
        }
        directory->oldest[i] = oldest;
        for (int64_t group = oldest; group <= newest; group++) {
            locations[i * capacity + (uint64_t)group % capacity] = number(from);
        }
    }
    return FL_OK;
}

static int load_index(source *from, fl_store *store) {
    const uint64_t cells = number_up_to(from, (from->size - from->pos) / 6, "the size of an index");
    const bool wide = number_up_to(from, 1, "the form of an index") == 1;
    const uint64_t overwritten = number(from);
    const uint8_t *newest = take(from, (size_t)cells, 4);
    const uint8_t *patterns = take(from, (size_t)cells, wide ? 4 : 2);
    if (from->what != NULL) {
        return FL_OK;
    }
    const int made = fl_new_index(store, (size_t)cells);
    if (made < 0) {
        return made;
    }
    fl_index *index = store->indexes[made];
    if (wide && fl_index_widen(index) != FL_OK) {
        return FL_NO_MEMORY;
    }
    uint16_t *narrow_patterns = index->patterns;
    uint32_t *wide_patterns = index->patterns;
    for (size_t i = 0; i < index->cells; i++) {
        index->newest[i] = get_u32(newest + 4 * i);
        if (wide) {
            wide_patterns[i] = get_u32(patterns + 4 * i);
        } else {
            narrow_patterns[i] = (uint16_t)(patterns[2 * i] | patterns[2 * i + 1] << 8);
        }
    }
    memset(index->written, 1, index->blocks);
    index->overwritten = overwritten;
    return FL_OK;
}

static fl_store *load_head(source *from, size_t *counts, int *result) {
    const uint8_t *magic = take(from, sizeof MAGIC, 1);
    if (!demand(from, magic != NULL && memcmp(magic, MAGIC, sizeof MAGIC) == 0, "it is not of this format")) {
        return NULL;
    }
    fl_layout layout;
    memset(&layout, 0, sizeof layout);
    const char *sizes = "the sizes of observations";
    size_t *fields[] = {&layout.item, &layout.outer, &layout.depth, &layout.part, &layout.planes, &layout.row};
    for (size_t i = 0; i < 6; i++) {
        *fields[i] = (size_t)number_up_to(from, (uint64_t)1 << 31, sizes);
    }
    const uint64_t flags = number_up_to(from, 63, "its options");
    const uint64_t shift = number_up_to(from, 7, "its options");
    const uint64_t n_streams = number_up_to(from, (uint64_t)1 << 31, "the number of environments");
    layout.can_turn = flags & 1;
    layout.interleave = flags >> 1 & 1;
    const fl_method method = {(flags >> 2 & 1) != 0, (flags >> 3 & 1) != 0, (uint32_t)shift};
    /* The last frame of each environment follows, so there is an end to what may be asked for. */
    const bool plausible = layout.part > 0 && layout.outer > 0 && layout.outer <= from->size / layout.part &&
                           n_streams <= from->size / (layout.outer * layout.part);
    if (!demand(from, plausible, sizes)) {
        return NULL;
    }
    fl_store *store = fl_store_new(&layout, &method, (size_t)n_streams, result);
    if (store == NULL) {
        demand(from, *result == FL_NO_MEMORY, sizes);
        return NULL;
    }
    store->turned = flags >> 4 & 1;
    store->wants_compaction = flags >> 5 & 1;
    demand(from, !store->turned || layout.can_turn, "the memory order");
    const char *amounts = "an amount is out of range";
    counts[0] = (size_t)number_up_to(from, from->size / 8, amounts);
    counts[1] = (size_t)number_up_to(from, from->size / 8, amounts);
    counts[2] = (size_t)number_up_to(from, from->size, amounts);
    counts[3] = (size_t)number_up_to(from, from->size / 8, amounts);
    demand(from, counts[1] <= store->directory.most && counts[2] >= 2, amounts);
    store->writes = number_up_to(from, UINT64_MAX / 2 / n_streams, amounts);
    store->frames_before_check = (size_t)number_up_to(from, SIZE_MAX, amounts);
    store->pattern_limit = (size_t)number_up_to(from, SIZE_MAX / 4, amounts);
    store->strays = number_up_to(from, UINT64_MAX / 2, amounts);
    store->strays_since = number_up_to(from, store->writes, amounts);
    store->patience = number_up_to(from, UINT64_MAX / 4, amounts);
    /* Whoever wrote the image may have made segments of another size, but a group and its key frame must fit. */
    const size_t least = store->staging_bytes + 2 * store->frame_bytes + 64, usual = store->log.segment_bytes;
    const size_t segment_bytes = (size_t)number_up_to(from, 4 * (uint64_t)usual, "the size of segments");
    if (demand(from, segment_bytes >= least, "the size of segments")) {
        store->log.segment_bytes = segment_bytes;
    }
    return store;
}

fl_store *fl_image_load(const uint8_t *image, size_t size, int *result, const char **what) {
    source from = {image, size, 0, NULL};
    size_t counts[4] = {0, 0, 0, 0};
    *result = FL_DAMAGED;
    fl_store *store = load_head(&from, counts, result);
    int loaded = store == NULL ? FL_NO_MEMORY : FL_OK;
    if (loaded == FL_OK && from.what == NULL) {
        loaded = load_segments(&from, store, counts[0]);
    }
    if (loaded == FL_OK && from.what == NULL) {
        loaded = load_patterns(&from, store, counts[2]);
    }
    for (size_t i = 0; loaded == FL_OK && from.what == NULL && i < store->n_streams; i++) {
        load_stream(&from, store, i);
    }
    if (loaded == FL_OK && from.what == NULL) {
        loaded = load_directory(&from, store, counts[1]);
    }
    for (size_t i = 0; loaded == FL_OK && from.what == NULL && i < counts[3]; i++) {
        loaded = load_index(&from, store);
    }
    demand(&from, loaded != FL_OK || from.pos == size, "there is more than belongs to it");
    *what = from.what;
    *result = from.what != NULL ? FL_DAMAGED : loaded;
    if (*result != FL_OK) {
        fl_store_free(store);
        return NULL;
    }
    return store;
}
