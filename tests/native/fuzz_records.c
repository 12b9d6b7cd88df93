/*
 * Records: a small store is made once of each kind; an input changes bytes of its segments and of the groups that are being
 * written. Then every cell is read: what comes out is an observation, or that it is damaged.
 *
 * An input is: u8 which store, then u16 place and u8 value, again and again.
 */
#include "fuzz.h"

static run_codec codec;
static fl_codecs codecs;
static fl_store *stores[N_SMALL];
static uint8_t *sound[N_SMALL]; /* the bytes that may be changed, as they were */
static size_t total[N_SMALL];

/* The byte at a place of all that is stored. */
static uint8_t *byte_at(const fl_store *store, size_t place) {
    for (size_t i = 0; i < store->log.in_use; i++) {
        const fl_segment *segment = &store->log.segments[store->log.order[i]];
        if (place < segment->used) {
            return segment->bytes + place;
        }
        place -= segment->used;
    }
    for (size_t i = 0; i < store->n_streams; i++) {
        const fl_stream *stream = &store->streams[i];
        const size_t staged = stream->frames > 0 ? stream->staged : 0;
        if (place < staged) {
            return stream->staging + place;
        }
        place -= staged;
    }
    return NULL;
}

static void make_stores(void) {
    codecs = codecs_of(&codec);
    for (size_t kind = 0; kind < N_SMALL; kind++) {
        stores[kind] = small_store(kind, kind, 31, &codecs);
        total[kind] = fl_stored_bytes(stores[kind]);
        sound[kind] = grab(total[kind]);
        for (size_t i = 0; i < total[kind]; i++) {
            sound[kind][i] = *byte_at(stores[kind], i);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (stores[0] == NULL) {
        make_stores();
    }
    if (size < 1) {
        return 0;
    }
    const size_t kind = data[0] % N_SMALL;
    fl_store *store = stores[kind];
    use_kernels(data[0] & 128);
    for (size_t at = 1; at + 3 <= size; at += 3) {
        *byte_at(store, (size_t)(data[at] | data[at + 1] << 8) % total[kind]) = data[at + 2];
    }
    const size_t cells = store->indexes[0]->cells, n = store->n_streams;
    uint8_t *obs[2] = {grab(store->obs_bytes), grab(store->obs_bytes)};
    for (size_t cell = 0; cell < cells; cell++) {
        const int64_t row = (int64_t)(cell / n), column = (int64_t)(cell % n);
        const fl_read_part parts[] = {{store->indexes[0], obs[0]}, {store->indexes[1], obs[1]}};
        const int result = fl_read(store, parts, 2, &row, &column, 1, 1, &codecs);
        CHECK(result == FL_OK || result == FL_DAMAGED);
    }
    uint8_t *all = grab(cells * store->obs_bytes); /* in one batch, which decodes in place where it can, and fetches ahead */
    int64_t *rows = grab(cells * sizeof *rows);
    for (size_t i = 0; i < cells; i++) {
        rows[i] = (int64_t)i;
    }
    const fl_read_part part = {store->indexes[0], all};
    const int result = fl_read(store, &part, 1, rows, NULL, cells, 1, &codecs);
    CHECK(result == FL_OK || result == FL_DAMAGED);
    for (size_t at = 1; at + 3 <= size; at += 3) {
        const size_t place = (size_t)(data[at] | data[at + 1] << 8) % total[kind];
        *byte_at(store, place) = sound[kind][place];
    }
    free(obs[0]);
    free(obs[1]);
    free(all);
    free(rows);
    return 0;
}

size_t fuzz_seed(uint64_t number, uint8_t *out) {
    chance from = {number};
    const size_t changes = 1 + below(&from, 12);
    out[0] = (uint8_t)draw(&from);
    for (size_t i = 1; i <= 3 * changes; i++) {
        out[i] = (uint8_t)draw(&from);
    }
    return 1 + 3 * changes;
}
