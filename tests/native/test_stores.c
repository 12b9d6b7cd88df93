/* Stores against plain arrays: rings, single cells, both memory orders, images, storing again, clearing. */
#include "test_core.h"

/* -- a store and its twin ---------------------------------------------------------------------------------------------------- */

twin twin_new(const fl_layout *layout, const fl_method *method, size_t n_streams, size_t rows, size_t n_indexes, uint64_t seed) {
    int result;
    twin both = {0};
    both.store = fl_store_new(layout, method, n_streams, &result);
    CHECK(both.store != NULL && result == FL_OK);
    both.layout = *layout;
    both.n_streams = n_streams;
    both.rows = rows;
    both.obs_bytes = obs_bytes_of(layout);
    both.n_indexes = n_indexes;
    both.plain = grab(n_indexes * sizeof *both.plain);
    for (size_t i = 0; i < n_indexes; i++) {
        both.plain[i] = grab(rows * n_streams * both.obs_bytes);
        CHECK(fl_new_index(both.store, rows * n_streams) == (int)i);
    }
    both.now = grab(n_streams * both.obs_bytes);
    both.next = grab(n_streams * both.obs_bytes);
    both.lying = grab(FL_MAX_PARTS * n_streams * both.obs_bytes);
    both.chance = (chance){seed};
    both.codec = (run_codec){NULL, 0, -1, 0};
    return both;
}

void twin_free(twin *both) {
    fl_store_free(both->store);
    for (size_t i = 0; i < both->n_indexes; i++) {
        free(both->plain[i]);
    }
    free(both->plain);
    free(both->now);
    free(both->next);
    free(both->lying);
    free(both->codec.blob);
}

static const fl_codecs *codecs_for(twin *both) {
    both->codecs = (fl_codecs){&both->codec, run_encode, run_decode};
    return &both->codecs;
}

/* Lay observations in memory as an environment may hand them over. */
static fl_write_part lay(twin *both, size_t index, const uint8_t *obs, size_t count) {
    uint8_t *lying = both->lying + index % FL_MAX_PARTS * both->n_streams * both->obs_bytes;
    const bool turned = both->layout.can_turn && one_in(&both->chance, 3);
    for (size_t i = 0; i < count; i++) {
        if (turned) {
            turn_plainly(&both->layout, obs + i * both->obs_bytes, lying + i * both->obs_bytes);
        } else {
            memcpy(lying + i * both->obs_bytes, obs + i * both->obs_bytes, both->obs_bytes);
        }
    }
    return (fl_write_part){both->store->indexes[index], lying, turned};
}

int twin_write_row(twin *both, size_t row) {
    const size_t n = both->n_streams, bytes = n * both->obs_bytes, pair = both->n_indexes > 1 ? 2 : 1;
    memcpy(both->next, both->now, bytes);
    for (size_t i = 0; i < n; i++) {
        play(&both->chance, &both->layout, both->next + i * both->obs_bytes);
    }
    fl_write_part parts[FL_MAX_PARTS];
    parts[0] = lay(both, 0, pair == 2 ? both->now : both->next, n);
    if (pair == 2) {
        parts[1] = lay(both, 1, both->next, n);
    }
    const int result = fl_write(both->store, parts, pair, (int64_t)(row * n), NULL, n, codecs_for(both));
    if (result == FL_OK) {
        memcpy(both->plain[0] + row * bytes, pair == 2 ? both->now : both->next, bytes);
        if (pair == 2) {
            memcpy(both->plain[1] + row * bytes, both->next, bytes);
        }
        memcpy(both->now, both->next, bytes);
    }
    return result;
}

int twin_write_cell(twin *both, size_t index, size_t cell) {
    uint8_t *obs = both->now + cell % both->n_streams * both->obs_bytes;
    memcpy(both->next, obs, both->obs_bytes);
    play(&both->chance, &both->layout, both->next);
    const fl_write_part part = lay(both, index, both->next, 1);
    const int64_t where = (int64_t)cell;
    const int result = fl_write(both->store, &part, 1, 0, &where, 1, codecs_for(both));
    if (result == FL_OK) {
        memcpy(both->plain[index] + cell * both->obs_bytes, both->next, both->obs_bytes);
        memcpy(obs, both->next, both->obs_bytes);
    }
    return result;
}

void twin_check_some(twin *both, size_t count) {
    const size_t n = both->n_streams, pair = both->n_indexes > 1 ? 2 : 1;
    int64_t *rows = grab(count * sizeof *rows), *columns = grab(count * sizeof *columns);
    uint8_t *outs[FL_MAX_PARTS] = {grab(count * both->obs_bytes), grab(count * both->obs_bytes)};
    for (size_t i = 0; i < count; i++) {
        rows[i] = (int64_t)below(&both->chance, both->rows);
        columns[i] = (int64_t)below(&both->chance, n);
    }
    fl_read_part parts[FL_MAX_PARTS];
    for (size_t part = 0; part < pair; part++) {
        parts[part] = (fl_read_part){both->store->indexes[part], outs[part]};
    }
    CHECK(fl_read(both->store, parts, pair, rows, columns, count, 2, codecs_for(both)) == FL_OK);
    for (size_t i = 0; i < count; i++) {
        const size_t cell = (size_t)(rows[i] * (int64_t)n + columns[i]);
        for (size_t part = 0; part < pair; part++) {
            CHECK(memcmp(outs[part] + i * both->obs_bytes, both->plain[part] + cell * both->obs_bytes, both->obs_bytes) == 0);
        }
    }
    free(rows);
    free(columns);
    free(outs[0]);
    free(outs[1]);
}

void twin_check(twin *both) {
    const size_t cells = both->rows * both->n_streams;
    int64_t *all = grab(cells * sizeof *all);
    uint8_t *out = grab(cells * both->obs_bytes);
    for (size_t i = 0; i < cells; i++) {
        all[i] = (int64_t)i;
    }
    for (size_t index = 0; index < both->n_indexes; index++) {
        const fl_read_part part = {both->store->indexes[index], out};
        CHECK(fl_read(both->store, &part, 1, all, NULL, cells, 1, codecs_for(both)) == FL_OK);
        CHECK(memcmp(out, both->plain[index], cells * both->obs_bytes) == 0);
    }
    free(all);
    free(out);
    twin_check_some(both, 1 + below(&both->chance, 40));
}

/* -- images -------------------------------------------------------------------------------------------------------------------- */

static uint8_t *image_of(const fl_store *store, size_t *size) {
    *size = fl_image_bytes(store, -1);
    uint8_t *image = grab(*size);
    fl_image_save(store, -1, image);
    return image;
}

/* Go on with a store that has been saved and loaded: it must not be told from the first. */
static void exchange_for_image(twin *both) {
    size_t size, again_size;
    int result;
    const char *what = "";
    for (size_t i = 0; i < both->n_streams; i++) { /* more than the deepest stack is as good as that */
        fl_stream *stream = &both->store->streams[i];
        stream->run = stream->run < FL_MAX_DEPTH ? stream->run : FL_MAX_DEPTH;
    }
    uint8_t *image = image_of(both->store, &size);
    fl_store *loaded = fl_image_load(image, size, &result, &what);
    CHECK(loaded != NULL && result == FL_OK && what == NULL);
    uint8_t *again = image_of(loaded, &again_size);
    CHECK(again_size == size && memcmp(again, image, size) == 0);
    CHECK(fl_stored_frames(loaded) == fl_stored_frames(both->store));
    CHECK(fl_stored_bytes(loaded) == fl_stored_bytes(both->store));
    fl_store_free(both->store);
    both->store = loaded;
    for (size_t cut = 0; cut < 40 && cut < size; cut++) { /* what is not whole is not loaded */
        CHECK(fl_image_load(image, size - 1 - cut * (size / 40), &result, &what) == NULL && result == FL_DAMAGED && what != NULL);
    }
    free(image);
    free(again);
}

static void test_image_of_one_index(void) {
    twin both = twin_new(&LAYOUTS[0].layout, &METHODS[0], 2, 20, 2, 8);
    for (size_t row = 0; row < 30; row++) {
        CHECK(twin_write_row(&both, row % 20) == FL_OK);
    }
    for (size_t index = 0; index < 2; index++) {
        int result;
        const char *what;
        const size_t size = fl_image_bytes(both.store, (int64_t)index);
        uint8_t *image = grab(size);
        fl_image_save(both.store, (int64_t)index, image);
        fl_store *loaded = fl_image_load(image, size, &result, &what);
        CHECK(loaded != NULL && loaded->n_indexes == 1);
        uint8_t *obs = grab(both.obs_bytes);
        for (int64_t cell = 0; cell < 40; cell++) {
            const fl_read_part part = {loaded->indexes[0], obs};
            CHECK(fl_read(loaded, &part, 1, &cell, NULL, 1, 1, codecs_for(&both)) == FL_OK);
            CHECK(memcmp(obs, both.plain[index] + (size_t)cell * both.obs_bytes, both.obs_bytes) == 0);
        }
        fl_store_free(loaded);
        free(image);
        free(obs);
    }
    twin_free(&both);
}

/* -- tests ---------------------------------------------------------------------------------------------------------------------- */

static void check_last(twin *both) {
    uint8_t *last = grab(both->obs_bytes);
    for (size_t i = 0; i < both->n_streams; i++) {
        CHECK(fl_last_observation(both->store, i, last));
        CHECK(memcmp(last, both->now + i * both->obs_bytes, both->obs_bytes) == 0);
    }
    free(last);
}

/* A ring that is filled again and again, saved and loaded in between, stored again, and cleared. */
static void test_ring(const named_layout *named, const fl_method *method, size_t n_streams, size_t n_indexes, uint64_t seed) {
    const size_t rows = 30;
    twin both = twin_new(&named->layout, method, n_streams, rows, n_indexes, seed);
    CHECK(fl_written_cells(both.store) == 0);
    twin_check(&both);
    for (size_t step = 0; step < 4 * rows; step++) {
        CHECK(twin_write_row(&both, step % rows) == FL_OK);
        if (step % 17 == 0 || step == rows - 1) {
            twin_check(&both);
            check_last(&both);
        }
        if (step == rows + 5 || step == 2 * rows) {
            exchange_for_image(&both);
        }
        if (step == 2 * rows + 11) {
            CHECK(fl_rebuild(both.store, &named->layout, codecs_for(&both)) == FL_OK);
            twin_check(&both);
            check_last(&both);
        }
    }
    twin_check(&both);
    CHECK(fl_written_cells(both.store) == rows * n_streams * n_indexes);
    CHECK(fl_stored_frames(both.store) > 0 && fl_held_bytes(both.store) >= fl_stored_bytes(both.store) / 2);
    CHECK(fl_index_bytes(both.store) > 0);

    CHECK(fl_clear(both.store) == FL_OK && fl_written_cells(both.store) == 0 && fl_stored_frames(both.store) == 0);
    for (size_t i = 0; i < n_indexes; i++) {
        memset(both.plain[i], 0, rows * n_streams * both.obs_bytes);
    }
    twin_check(&both);
    for (size_t step = 0; step < rows / 2; step++) {
        CHECK(twin_write_row(&both, step) == FL_OK);
    }
    twin_check(&both);
    twin_free(&both);
}

/* Cells in any order: old segments would stay for the sake of a few frames, so they are stored again. */
static void test_any_order(const named_layout *named, const fl_method *method, uint64_t seed) {
    twin both = twin_new(&named->layout, method, 3, 25, 2, seed);
    for (int step = 0; step < 600; step++) {
        CHECK(twin_write_cell(&both, below(&both.chance, 2), below(&both.chance, 75)) == FL_OK);
        if (step % 150 == 149) {
            twin_check(&both);
        }
        if (step == 300) {
            exchange_for_image(&both);
        }
    }
    twin_free(&both);
}

/* Frames that have little to do with each other, so that there are many segments: the ring must not grow over its wraps, and
 * what holds a few old cells must be stored again. */
static void test_long_run(const fl_method *method) {
    const fl_layout layout = {1, 1, 4, 1600, 1, 40, true, false};
    twin both = twin_new(&layout, method, 2, 400, 2, 11);
    size_t held = 0;
    for (size_t step = 0; step < 5 * 400; step++) {
        CHECK(twin_write_row(&both, step % 400) == FL_OK);
        if (step == 2 * 400) {
            held = fl_held_bytes(both.store);
        }
    }
    twin_check_some(&both, 200);
    CHECK(fl_held_bytes(both.store) <= held + held / 4 + 3 * both.store->log.segment_bytes);
    for (size_t step = 0; step < 6000; step++) { /* rows of the second half alone; those of the first keep their segments */
        CHECK(twin_write_cell(&both, 0, 400 + below(&both.chance, 400)) == FL_OK);
    }
    twin_check(&both);
    CHECK(fl_held_bytes(both.store) < 4 * held);
    twin_free(&both);
}

/* A log that is not in any cache is read by other code: it fetches ahead. */
static void test_large_log(const fl_method *method) {
    const fl_layout layout = {1, 1, 2, 4096, 1, 64, true, false};
    twin both = twin_new(&layout, method, 2, 2600, 2, 12);
    for (size_t step = 0; step < 2600; step++) {
        for (size_t i = 0; i < 2 * both.obs_bytes; i++) {
            both.now[i] ^= (uint8_t)draw(&both.chance);
        }
        CHECK(twin_write_row(&both, step) == FL_OK);
    }
    CHECK(both.store->log.in_use * both.store->log.segment_bytes > (size_t)1 << 24);
    twin_check_some(&both, 700); /* large enough for two threads */
    twin_check_some(&both, 3);
    twin_free(&both);
}

/* Observations that are no stacks, though they look like some: the layout is doubted, and another one takes over. */
static void test_doubt(void) {
    const fl_layout stack = {1, 1, 4, 100, 1, 10, true, false}, whole = {1, 1, 1, 400, 4, 10, true, false};
    twin both = twin_new(&stack, &METHODS[0], 2, 200, 1, 13);
    bool doubted = false;
    for (size_t step = 0; step < 200 && !doubted; step++) {
        for (size_t i = 0; i < 2 * both.obs_bytes; i++) {
            both.now[i] = (uint8_t)draw(&both.chance);
        }
        CHECK(twin_write_row(&both, step) == FL_OK);
        doubted = fl_layout_in_doubt(both.store);
    }
    CHECK(doubted);
    CHECK(fl_rebuild(both.store, &whole, codecs_for(&both)) == FL_OK && !fl_layout_in_doubt(both.store));
    both.layout = whole;
    twin_check(&both);
    for (size_t step = 0; step < 300; step++) {
        CHECK(twin_write_row(&both, step % 200) == FL_OK);
    }
    twin_check(&both);
    twin_free(&both);
}

/* Numbers of frames are kept as 32 bits; nobody may see where they begin again. */
static void test_numbers_wrap(const fl_method *method) {
    twin both = twin_new(&LAYOUTS[0].layout, method, 2, 20, 2, 14);
    const int64_t head = (((int64_t)1 << 32) - 128) | (((int64_t)1 << method->shift) - 1);
    for (size_t i = 0; i < 2; i++) { /* as if so many had been stored and overwritten */
        both.store->streams[i].head = head;
        both.store->streams[i].group = head >> method->shift;
        both.store->directory.oldest[i] = (head >> method->shift) + 1;
    }
    for (size_t step = 0; step < 400; step++) {
        CHECK(twin_write_row(&both, step % 20) == FL_OK);
        if (step % 10 == 0) {
            twin_check(&both);
        }
        if (step == 57) {
            exchange_for_image(&both);
        }
    }
    CHECK(both.store->streams[0].head > (int64_t)1 << 32);
    twin_free(&both);
}

static void test_refusals(void) {
    int result;
    const fl_method *method = &METHODS[0];
    const fl_layout good = LAYOUTS[0].layout;
    enum { BAD = 11 };
    fl_layout bad[BAD];
    for (size_t i = 0; i < BAD; i++) {
        bad[i] = good;
    }
    bad[0].depth = 0;
    bad[1].depth = FL_MAX_DEPTH + 1;
    bad[2].part = 0;
    bad[3].part = SIZE_MAX / 2;
    bad[4].planes = 5; /* does not divide a frame */
    bad[5].outer = 3;  /* cannot be turned */
    bad[6].row = 132;
    bad[7].item = 0;
    bad[8].planes = SIZE_MAX / 2 + 1;
    bad[8].item = 2;
    bad[9].item = SIZE_MAX;
    bad[10].part = (size_t)1 << 29; /* more than a segment can hold and offsets can tell */
    for (size_t i = 0; i < BAD; i++) {
        CHECK(fl_store_new(&bad[i], method, 1, &result) == NULL && result == FL_INVALID);
    }
    const fl_method methods[] = {{true, false, 8}, {false, true, 0}, {false, false, 1}};
    for (size_t i = 0; i < 3; i++) {
        CHECK(fl_store_new(&good, &methods[i], 1, &result) == NULL && result == FL_INVALID);
    }
    CHECK(fl_store_new(&good, method, 0, &result) == NULL && result == FL_INVALID);
    CHECK(fl_store_new(&good, method, SIZE_MAX, &result) == NULL && result == FL_INVALID);

    twin both = twin_new(&good, method, 2, 5, 2, 15);
    CHECK(fl_new_index(both.store, SIZE_MAX) == FL_NO_MEMORY);
    for (size_t row = 0; row < 5; row++) {
        CHECK(twin_write_row(&both, row) == FL_OK);
    }
    const fl_codecs *codecs = codecs_for(&both);
    uint8_t *obs = grab(2 * both.obs_bytes);
    const fl_write_part to = {both.store->indexes[0], obs, false};
    const int64_t cells[] = {10, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < 4; i++) {
        CHECK(fl_write(both.store, &to, 1, 0, &cells[i], 1, codecs) == FL_OUTSIDE);
        const fl_read_part from = {both.store->indexes[0], obs};
        CHECK(fl_read(both.store, &from, 1, &cells[i], NULL, 1, 1, codecs) == FL_OUTSIDE);
    }
    CHECK(fl_write(both.store, &to, 1, 9, NULL, 2, codecs) == FL_OUTSIDE);
    const int64_t places[][2] = {{0, 2}, {0, -1}, {5, 0}, {-1, 0}, {INT64_MAX, 1}, {INT64_MAX / 2, 0}};
    for (size_t i = 0; i < 6; i++) {
        const fl_read_part from = {both.store->indexes[0], obs};
        CHECK(fl_read(both.store, &from, 1, &places[i][0], &places[i][1], 1, 1, codecs) == FL_OUTSIDE);
    }
    const fl_layout larger = {1, 1, 4, 144, 1, 12, true, false};
    CHECK(fl_rebuild(both.store, &larger, codecs) == FL_INVALID);
    free(obs);
    twin_check(&both);
    twin_free(&both);
}

void test_stores(void) {
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        for (size_t j = 0; j < N_METHODS; j++) {
            test_ring(&LAYOUTS[i], &METHODS[j], 1 + (i + j) % 3, 1 + (i + j) % 2, 100 * i + j);
            test_any_order(&LAYOUTS[i], &METHODS[j], 100 * i + j);
        }
    }
    const fl_limits usual = fl_limits_in_use;
    fl_limits_in_use = SMALL_LIMITS;
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        for (size_t j = 0; j < N_METHODS; j++) {
            test_ring(&LAYOUTS[i], &METHODS[j], 1 + (i + j) % 2, 2 - (i + j) % 2, 7 * i + j);
            test_any_order(&LAYOUTS[i], &METHODS[j], 7 * i + j);
        }
    }
    fl_limits_in_use = usual;
    for (size_t j = 0; j < 3; j++) { /* what the package uses: delta, delta behind a codec, each frame alone */
        test_long_run(&METHODS[j]);
        test_large_log(&METHODS[j]);
        test_numbers_wrap(&METHODS[j]);
    }
    test_image_of_one_index();
    test_doubt();
    test_refusals();
}
