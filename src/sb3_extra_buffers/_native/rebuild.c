/* Storing everything again, by another layout or to be rid of what is not in use. */
#include "format.h"
#include "frames.h"

#include <stdlib.h>
#include <string.h>

/* A written cell, and when it was written. */
typedef struct written {
    int64_t number;
    uint32_t index;
    uint64_t cell;
} written;

static int by_number(const void *a, const void *b) {
    const written *left = a, *right = b;
    if (left->number != right->number) {
        return left->number < right->number ? -1 : 1;
    }
    if (left->index != right->index) {
        return left->index < right->index ? -1 : 1;
    }
    return left->cell < right->cell ? -1 : left->cell > right->cell;
}

/* All written cells, in the order of their frames. */
static written *chronicle(const fl_store *store, size_t *count) {
    const size_t total = (size_t)fl_written_cells(store);
    written *list = fl_resize(NULL, total, sizeof *list);
    *count = 0;
    for (size_t i = 0; list != NULL && i < store->n_indexes; i++) {
        const fl_index *index = store->indexes[i];
        const uint16_t *narrow = index->patterns;
        const uint32_t *wide = index->patterns;
        for (size_t cell = 0; cell < index->cells; cell++) {
            if (index->wide ? wide[cell] : narrow[cell]) {
                const int64_t head = store->streams[cell % store->n_streams].head;
                const int64_t number = head - (int64_t)((uint32_t)head - index->newest[cell]);
                list[(*count)++] = (written){number, (uint32_t)i, cell};
            }
        }
    }
    if (list != NULL) {
        qsort(list, *count, sizeof *list, by_number);
    }
    return list;
}

static int copy_observations(const fl_store *store, fl_store *fresh, const written *list, size_t count, uint8_t *obs,
                             const fl_codecs *codecs) {
    for (size_t k = 0; k < count; k++) {
        const int64_t cell = (int64_t)list[k].cell;
        const fl_read_part from = {store->indexes[list[k].index], obs};
        int result = fl_read(store, &from, 1, &cell, NULL, 1, 1, codecs);
        if (result == FL_OK) {
            const fl_write_part to = {fresh->indexes[list[k].index], obs, false};
            result = fl_write(fresh, &to, 1, 0, &cell, 1, codecs);
        }
        if (result != FL_OK) {
            return result;
        }
    }
    return FL_OK;
}

/* The last observation of a stream is what the next one is compared with, in a new store, too. */
static int copy_last(const fl_store *store, fl_store *fresh, uint8_t *obs, const fl_codecs *codecs) {
    const int aside = fl_new_index(fresh, store->n_streams);
    if (aside < 0) {
        return aside;
    }
    int result = FL_OK;
    for (size_t i = 0; i < store->n_streams && result == FL_OK; i++) {
        if (fl_last_observation(store, i, obs)) {
            const int64_t cell = (int64_t)i;
            const fl_write_part to = {fresh->indexes[aside], obs, false};
            result = fl_write(fresh, &to, 1, 0, &cell, 1, codecs);
        }
    }
    fl_index_free(fresh->indexes[aside]);
    fl_free(fresh->indexes[aside]);
    fresh->n_indexes--;
    return result;
}

/* Make `store` what `fresh` is; the indexes stay where they are. Nothing can fail here. */
static void become(fl_store *store, fl_store *fresh) {
    for (size_t i = 0; i < store->n_indexes; i++) {
        const fl_index old = *store->indexes[i];
        *store->indexes[i] = *fresh->indexes[i];
        *fresh->indexes[i] = old;
    }
    fl_index **indexes = store->indexes;
    const size_t n_indexes = store->n_indexes;
    const fl_store old = *store;
    *store = *fresh;
    *fresh = old;
    fresh->indexes = store->indexes;
    fresh->n_indexes = store->n_indexes;
    store->indexes = indexes;
    store->n_indexes = n_indexes;
    store->writes = old.writes;
    store->patience = old.patience;
    store->work = old.work;
    store->work.rebuilds++;
}

int fl_rebuild(fl_store *store, const fl_layout *layout, const fl_codecs *codecs) {
    int result;
    const bool same_layout = layout->outer == store->layout.outer && layout->depth == store->layout.depth;
    fl_store *fresh = fl_store_new(layout, &store->method, store->n_streams, &result);
    if (fresh == NULL) {
        return result;
    }
    result = fresh->obs_bytes == store->obs_bytes ? FL_OK : FL_INVALID;
    for (size_t i = 0; i < store->n_indexes && result == FL_OK; i++) {
        const int made = fl_new_index(fresh, store->indexes[i]->cells);
        result = made < 0 ? made : FL_OK;
    }
    size_t count = 0;
    written *list = NULL;
    uint8_t *obs = NULL;
    if (result == FL_OK) {
        list = chronicle(store, &count);
        obs = fl_alloc(store->obs_bytes, 1);
        result = list && obs ? FL_OK : FL_NO_MEMORY;
    }
    if (result == FL_OK) {
        fresh->pattern_limit = SIZE_MAX / 4; /* not to compact while compacting */
        result = copy_observations(store, fresh, list, count, obs, codecs);
    }
    if (result == FL_OK) {
        result = copy_last(store, fresh, obs, codecs);
    }
    if (result == FL_OK) {
        const size_t patterns = fresh->patterns.count, held = 2 * fl_stored_frames(fresh);
        const size_t narrow = fl_limits_in_use.narrow_patterns, first = fl_limits_in_use.first_check;
        fresh->pattern_limit = 2 * patterns <= narrow ? narrow : 2 * patterns + 4 * store->n_streams;
        fresh->frames_before_check = held > first ? held : first; /* not before there is as much to gain */
        fresh->wants_compaction = false;
        fresh->strays = same_layout ? store->strays : 0;
        fresh->strays_since = same_layout ? store->strays_since : store->writes;
        become(store, fresh);
    }
    fl_free(list);
    fl_free(obs);
    fl_store_free(fresh);
    return result;
}
