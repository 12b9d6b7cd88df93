/* Whatever fails on the way - memory, a codec, numbers - what was stored stays, and the store goes on. */
#include "test_core.h"

/* Try a write again and again, each time with another allocation refused, until it needs no more of them. Some allocations only
 * save space, and are not missed: the write succeeds, and those after them have their turn in other writes. */
static size_t write_with_refusals(twin *both, size_t row) {
    size_t refused = 0;
    for (int64_t after = (int64_t)below(&both->chance, 3);; after++) {
        const uint64_t written = fl_written_cells(both->store);
        fl_refuse_allocation(after);
        const int result = twin_write_row(both, row);
        fl_refuse_allocation(-1);
        if (result == FL_OK) {
            return refused;
        }
        refused++;
        CHECK(result == FL_NO_MEMORY && fl_refused_bytes() > 0);
        CHECK(fl_written_cells(both->store) == written);
        if (after % 4 == 0) {
            twin_check(both);
        }
        CHECK(after < 1000);
    }
}

static void test_memory(const fl_layout *layout, const fl_method *method) {
    const size_t rows = 60;
    twin both = twin_new(layout, method, 2, rows, 2, 21);
    size_t refused = 0;
    for (size_t step = 0; step < 5 * rows; step++) {
        refused += write_with_refusals(&both, step % rows);
        if (step % 9 == 0) {
            twin_check(&both);
        }
        if (step % 50 == 49) {
            both.store->wants_compaction = true; /* nothing is lost either when storing everything again fails half-way */
        }
    }
    CHECK(refused >= 2);
    twin_check(&both);
    twin_free(&both);
}

static void test_memory_elsewhere(const fl_layout *layout, const fl_method *method) {
    twin both = twin_new(layout, method, 2, 30, 2, 22);
    for (size_t row = 0; row < 45; row++) {
        CHECK(twin_write_row(&both, row % 30) == FL_OK);
    }
    const fl_codecs codecs = {&both.codec, run_encode, run_decode};
    int result = FL_NO_MEMORY;
    for (int64_t after = 0; result != FL_OK; after++) {
        fl_refuse_allocation(after);
        result = fl_rebuild(both.store, layout, &codecs);
        fl_refuse_allocation(-1);
        CHECK(result == FL_OK || result == FL_NO_MEMORY);
        if (after % 8 == 0) {
            twin_check(&both);
        }
    }
    twin_check(&both);

    const size_t size = fl_image_bytes(both.store, -1);
    uint8_t *image = grab(size), *again = grab(size);
    fl_image_save(both.store, -1, image);
    fl_refuse_allocation(0);
    fl_image_save(both.store, -1, again); /* saving cannot fail: it only takes longer */
    fl_refuse_allocation(-1);
    CHECK(memcmp(image, again, size) == 0);
    fl_store *loaded = NULL;
    for (int64_t after = 0; loaded == NULL; after++) {
        const char *what = NULL;
        fl_refuse_allocation(after);
        loaded = fl_image_load(image, size, &result, &what);
        fl_refuse_allocation(-1);
        CHECK(what == NULL && (loaded != NULL ? result == FL_OK : result == FL_NO_MEMORY));
    }
    fl_store_free(loaded);
    free(image);
    free(again);

    fl_store *fresh = NULL;
    for (int64_t after = 0; fresh == NULL; after++) {
        fl_refuse_allocation(after);
        fresh = fl_store_new(layout, method, 2, &result);
        fl_refuse_allocation(-1);
        CHECK(fresh != NULL ? result == FL_OK : result == FL_NO_MEMORY);
    }
    result = -1;
    for (int64_t after = 0; result < 0; after++) {
        fl_refuse_allocation(after);
        result = fl_new_index(fresh, 50);
        fl_refuse_allocation(-1);
        CHECK(result == 0 || (result == FL_NO_MEMORY && fresh->n_indexes == 0));
    }
    fl_store_free(fresh);

    for (int64_t after = 0; after < 4; after++) {
        fl_refuse_allocation(after);
        result = fl_clear(both.store);
        fl_refuse_allocation(-1);
        if (result == FL_OK) {
            break;
        }
        CHECK(result == FL_NO_MEMORY);
        twin_check(&both);
    }
    CHECK(result == FL_OK && fl_written_cells(both.store) == 0);
    fl_refuse_allocation(0);
    uint8_t *obs = grab(both.obs_bytes);
    const fl_read_part part = {both.store->indexes[0], obs};
    const int64_t cell = 0;
    CHECK(fl_read(both.store, &part, 1, &cell, NULL, 1, 1, &codecs) == FL_NO_MEMORY);
    fl_refuse_allocation(-1);
    free(obs);
    twin_free(&both);
}

static void test_codec(const fl_layout *layout, const fl_method *method) {
    const size_t rows = 20;
    twin both = twin_new(layout, method, 2, rows, 2, 23);
    for (size_t step = 0; step < 4 * rows; step++) {
        int result = FL_CODEC;
        both.store->wants_compaction = step % 25 == 24;
        for (int64_t after = 0; result != FL_OK; after++) {
            const uint64_t written = fl_written_cells(both.store);
            both.codec.fail_after = after;
            result = twin_write_row(&both, step % rows);
            both.codec.fail_after = -1;
            CHECK(result == FL_OK || (result == FL_CODEC && fl_written_cells(both.store) == written));
            if (after % 5 == 0) {
                twin_check(&both);
            }
        }
    }
    twin_check(&both);
    twin_free(&both);
}

static void make_noise(twin *both) {
    for (size_t i = 0; i < both->n_streams * both->obs_bytes; i++) {
        both->now[i] = (uint8_t)draw(&both->chance);
    }
}

/* A write that fails gives back what it has stored: many in a row take no more than one, whichever stream fails. */
static void test_flat(const fl_layout *layout, const fl_method *method) {
    enum { STREAMS = 5, ROWS = 40, FAILURES = 60 };
    twin both = twin_new(layout, method, STREAMS, ROWS, 2, 26);
    size_t most = 0;
    for (size_t row = 0; row < ROWS; row++) {
        if (row % 8 < 3) { /* codecs are asked only where frames have nothing to do with each other */
            make_noise(&both);
        }
        CHECK(twin_write_row(&both, row) == FL_OK);
        const fl_store *store = both.store;
        const size_t frames = fl_stored_frames(store), bytes = fl_stored_bytes(store), segments = store->log.in_use;
        const size_t patterns = store->patterns.count;
        size_t failed = 0;
        for (; failed < FAILURES; failed++) {
            make_noise(&both);
            both.codec.fail_after = (int64_t)below(&both.chance, STREAMS);
            if (twin_write_row(&both, row) == FL_OK) {
                break;
            }
            /* At most the last group of each stream is stored otherwise than before. */
            CHECK(store->patterns.count == patterns && store->log.in_use == segments);
            CHECK(fl_stored_frames(store) <= frames + STREAMS * 2 * layout->depth);
            CHECK(fl_stored_bytes(store) <= bytes + STREAMS * both.obs_bytes / 2);
            if (failed % 7 == 0) {
                twin_check(&both);
            }
        }
        most = failed > most ? failed : most;
        both.codec.fail_after = -1;
        twin_check(&both);
    }
    CHECK(most > 20);
    twin_free(&both);
}

/* A stream may run out of numbers; where old cells are overwritten it goes on. */
static void test_numbers(void) {
    twin both = twin_new(&LAYOUTS[0].layout, &METHODS[2], 1, 200, 1, 24);
    both.store->directory.most = 64;
    size_t written = 0;
    int result = FL_OK;
    while ((result = twin_write_row(&both, written)) == FL_OK) {
        CHECK(++written < 200);
    }
    CHECK(result == FL_NO_NUMBERS && written > 10);
    twin_check(&both);
    for (size_t step = 0; step < 500; step++) { /* the oldest first, as a ring does it */
        result = twin_write_row(&both, step % 10);
        CHECK(result == FL_OK || result == FL_NO_NUMBERS);
    }
    twin_check(&both);
    CHECK(fl_clear(both.store) == FL_OK);
    memset(both.plain[0], 0, 200 * both.obs_bytes);
    CHECK(twin_write_row(&both, 7) == FL_OK);
    twin_check(&both);
    twin_free(&both);
}

/* Damage to what is stored is told, or shows as other bytes: nothing worse. */
static void test_damage(const fl_layout *layout, const fl_method *method) {
    twin both = twin_new(layout, method, 2, 40, 2, 25);
    for (size_t row = 0; row < 60; row++) {
        CHECK(twin_write_row(&both, row % 40) == FL_OK);
    }
    const fl_codecs codecs = {&both.codec, run_encode, run_decode};
    fl_store *store = both.store;
    fl_segment *segment = &store->log.segments[store->log.order[0]];
    uint8_t *saved = grab(segment->used), *out = grab(80 * both.obs_bytes);
    memcpy(saved, segment->bytes, segment->used);
    for (int k = 0; k < 400; k++) {
        for (size_t i = 1 + below(&both.chance, 6); i > 0; i--) {
            segment->bytes[below(&both.chance, segment->used)] = (uint8_t)draw(&both.chance);
        }
        for (int64_t cell = 0; cell < 80; cell++) {
            const fl_read_part part = {store->indexes[cell & 1], out};
            const int result = fl_read(store, &part, 1, &cell, NULL, 1, 1, &codecs);
            CHECK(result == FL_OK || result == FL_DAMAGED);
        }
        memcpy(segment->bytes, saved, segment->used);
    }
    twin_check(&both);
    free(saved);
    free(out);
    twin_free(&both);
}

void test_failures(void) {
    static const size_t layouts[] = {0, 2, 4, 7, 10};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const fl_layout *layout = &LAYOUTS[layouts[i]].layout;
        for (size_t j = 0; j < 3; j++) {
            test_memory(layout, &METHODS[j]);
            test_memory_elsewhere(layout, &METHODS[j]);
            test_codec(layout, &METHODS[j]);
            test_flat(layout, &METHODS[j]);
            test_damage(layout, &METHODS[j]);
        }
    }
    test_numbers();
    const fl_limits usual = fl_limits_in_use;
    fl_limits_in_use = SMALL_LIMITS; /* many more allocations */
    for (size_t j = 0; j < 3; j++) {
        test_memory(&LAYOUTS[0].layout, &METHODS[j]);
        test_memory_elsewhere(&LAYOUTS[0].layout, &METHODS[j]);
        test_codec(&LAYOUTS[2].layout, &METHODS[j]);
        test_flat(&LAYOUTS[0].layout, &METHODS[j]);
        test_flat(&LAYOUTS[2].layout, &METHODS[j]);
    }
    fl_limits_in_use = usual;
}
