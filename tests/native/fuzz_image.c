/*
 * Images: any bytes are loaded. If that gives a store, all of it is read, more is written to it, everything is stored again, and
 * it is saved once more. An input is an image and one more byte: the kernels.
 */
#include "fuzz.h"

enum { MOST_CELLS = 400, MOST_BYTES = 1 << 16 };

static bool is_answer(int result) {
    return result == FL_OK || result == FL_DAMAGED || result == FL_NO_MEMORY || result == FL_NO_NUMBERS;
}

static void read_all(const fl_store *store, const fl_codecs *codecs) {
    uint8_t *obs = grab(store->obs_bytes);
    for (size_t i = 0; i < store->n_indexes && i < 4; i++) {
        const fl_index *index = store->indexes[i];
        for (size_t cell = 0; cell < index->cells && cell < MOST_CELLS; cell++) {
            const fl_read_part part = {index, obs};
            const int64_t where = (int64_t)cell;
            CHECK(is_answer(fl_read(store, &part, 1, &where, NULL, 1, 1, codecs)));
        }
    }
    for (size_t i = 0; i < store->n_streams && i < 8; i++) {
        fl_last_observation(store, i, obs);
    }
    free(obs);
}

static void write_more(fl_store *store, chance *from, const fl_codecs *codecs) {
    uint8_t *obs = grab(store->obs_bytes), *turned = grab(store->obs_bytes);
    for (size_t step = 0; step < 24; step++) {
        fl_index *index = store->indexes[below(from, store->n_indexes)];
        if (index->cells == 0) {
            continue;
        }
        const int64_t cell = (int64_t)below(from, index->cells);
        const bool turn = store->layout.can_turn && one_in(from, 5);
        fl_last_observation(store, (size_t)cell % store->n_streams, obs);
        play(from, &store->layout, obs);
        if (turn) {
            turn_plainly(&store->layout, obs, turned);
        }
        const fl_write_part part = {index, turn ? turned : obs, turn};
        CHECK(is_answer(fl_write(store, &part, 1, 0, &cell, 1, codecs)));
    }
    free(obs);
    free(turned);
}

static void save_again(const fl_store *store) {
    const size_t size = fl_image_bytes(store, -1);
    uint8_t *image = grab(size);
    int result;
    const char *what;
    fl_image_save(store, -1, image);
    fl_store *again = fl_image_load(image, size, &result, &what);
    CHECK(is_answer(result) && (again != NULL) == (result == FL_OK));
    fl_store_free(again);
    free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    int result;
    const char *what = NULL;
    use_kernels(data[size - 1] & 1);
    fl_limits_in_use = SMALL_LIMITS;
    uint8_t *image = copy_of(data, size - 1, 0);
    fl_store *store = fl_image_load(image, size - 1, &result, &what);
    free(image);
    if (store == NULL) {
        CHECK((result == FL_DAMAGED && what != NULL) || (result == FL_NO_MEMORY && what == NULL));
        return 0;
    }
    CHECK(result == FL_OK && what == NULL);
    run_codec codec;
    const fl_codecs codecs = codecs_of(&codec);
    size_t cells = 0;
    for (size_t i = 0; i < store->n_indexes; i++) {
        cells += store->indexes[i]->cells;
    }
    if (store->obs_bytes <= MOST_BYTES) {
        read_all(store, &codecs);
        if (store->n_indexes > 0) {
            chance from = {checksum(data, size)};
            write_more(store, &from, &codecs);
            read_all(store, &codecs);
        }
        if (cells <= MOST_CELLS) {
            CHECK(is_answer(fl_rebuild(store, &store->layout, &codecs)));
            read_all(store, &codecs);
        }
        save_again(store);
        CHECK(is_answer(fl_clear(store)));
        read_all(store, &codecs);
    }
    CHECK(fl_stored_frames(store) + fl_stored_bytes(store) + fl_index_bytes(store) < SIZE_MAX);
    fl_store_free(store);
    free(codec.blob);
    return 0;
}

size_t fuzz_seed(uint64_t number, uint8_t *out) {
    run_codec codec;
    const fl_codecs codecs = codecs_of(&codec);
    fl_store *store = small_store((size_t)number, number, 1 + (size_t)(number * 7 % 40), &codecs);
    const size_t size = fl_image_bytes(store, number % 5 == 0 ? 1 : -1);
    CHECK(size < MOST_INPUT);
    fl_image_save(store, number % 5 == 0 ? 1 : -1, out);
    out[size] = (uint8_t)number;
    fl_store_free(store);
    free(codec.blob);
    return size + 1;
}
