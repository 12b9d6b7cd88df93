/* Sealed chunks: damaged ones, ones of newer versions, and their checksums. */
#include "test_core.h"

#include "../../src/sb3_extra_buffers/_native/allocation.h"

/* Every flipped bit of a chunk, every shorter one, and a longer one is refused. */
static void test_damage(const ft_schema *schema, size_t values, uint64_t seed) {
    const char *what;
    pair *both = pair_new(schema, 16, 16, seed);
    both->values = values;
    for (size_t k = 0; k < 9; k++) {
        CHECK(write_row(both, k, false) == FT_OK);
    }
    ft_chunk *chunk, *other;
    CHECK(ft_column_snapshot(both->column, &chunk) == FT_OK);
    const size_t size = ft_chunk_get_info(chunk).size;
    uint8_t *copy = grab(size + 1);
    memcpy(copy, ft_chunk_get_info(chunk).bytes, size);
    for (size_t bit = 0; bit < 8 * size; bit += size > 4096 ? 61 : 1) {
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(ft_chunk_open(copy, size, keep_bytes, NULL, &other, &what) == FT_DAMAGED && other == NULL && what != NULL);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t length = 0; length <= size + 1; length++) {
        CHECK(ft_chunk_open(copy, length, keep_bytes, NULL, &other, &what) == (length == size ? FT_OK : FT_DAMAGED));
        CHECK((other != NULL) == (length == size) && (other == NULL) == (what != NULL));
        ft_chunk_drop(other);
    }
    free(copy);
    ft_chunk_drop(chunk);
    pair_free(both);
}

enum { AT_TRANSFORM = 96, AT_DATA = 120, AT_DATA_SUM = 128, AT_HEADER_SUM = 148, HEADER = 152, AT_CODER = 6 };

static void put_sum(uint8_t *at, const uint8_t *bytes, size_t size) {
    const uint32_t sum = ft_compute_checksum(bytes, size);
    memcpy(at, &sum, 4); /* tests run on little-endian processors */
}

static size_t data_bytes_of(const uint8_t *chunk) {
    return chunk[AT_DATA] | (size_t)chunk[AT_DATA + 1] << 8 | (size_t)chunk[AT_DATA + 2] << 16;
}

static void make_sums_right(uint8_t *chunk) {
    put_sum(chunk + AT_DATA_SUM, chunk + HEADER, data_bytes_of(chunk) + FT_READ_AHEAD);
    put_sum(chunk + AT_HEADER_SUM, chunk, AT_HEADER_SUM);
}

/* Records and patches that are damaged in spite of right sums are errors, or show as other bytes: nothing worse. */
static void test_damaged_records(const ft_schema *schema, size_t values, uint64_t seed) {
    pair *both = pair_new(schema, 16, 16, seed);
    both->values = values;
    for (size_t row = 0; row < 16; row++) {
        CHECK(write_row(both, row, false) == FT_OK);
    }
    const ft_chunk_info of = ft_chunk_get_info(chunk_at(both->column, 0));
    uint8_t *copy = grab(of.size), *outs[FT_MAX_VIEWS] = {grab(both->obs_bytes), grab(both->obs_bytes)};
    for (size_t k = 0; k < 60 && data_bytes_of(of.bytes) > 0; k++) {
        ft_column *column;
        ft_chunk *chunk;
        const char *what;
        memcpy(copy, of.bytes, of.size);
        for (size_t i = 1 + below(&both->chance, 6); i > 0; i--) {
            copy[HEADER + below(&both->chance, data_bytes_of(copy))] = (uint8_t)draw(&both->chance);
        }
        make_sums_right(copy);
        CHECK(ft_column_new(schema, 16, 16, &column) == FT_OK);
        CHECK(ft_chunk_open(copy, of.size, keep_bytes, NULL, &chunk, &what) == FT_OK && give_chunk(column, chunk, 0) == FT_OK);
        for (int64_t row = 0; row < 16; row++) {
            const int64_t stream = row % (int64_t)schema->n_streams;
            ft_read *read;
            CHECK(ft_read_begin(column, &row, &stream, 1, outs, &both->codecs, &read) == FT_OK);
            const int result = ft_read_run(read, 1, &both->codecs);
            CHECK(result == FT_OK || result == FT_DAMAGED);
            ft_read_end(read);
        }
        const ft_part part = {0, both->now, false, NULL, 1};
        const int result = ft_column_stage(column, 7, &part, 1, &both->codecs); /* all of it is decoded, and coded again */
        CHECK(result == FT_OK || result == FT_DAMAGED);
        ft_column_free(column);
    }
    free(copy);
    free(outs[0]);
    free(outs[1]);
    pair_free(both);
}

/* What a newer version may write is refused as such; an index that does not fit is found. */
static void test_newer_chunks(void) {
    const ft_schema schema = {LAYOUTS[0].layout, METHODS[0], 2, 2};
    const char *what;
    pair *both = pair_new(&schema, 16, 16, 5);
    for (size_t k = 0; k < 9; k++) {
        CHECK(write_row(both, k, false) == FT_OK);
    }
    ft_chunk *chunk, *other;
    CHECK(ft_column_snapshot(both->column, &chunk) == FT_OK && ft_chunk_verify(chunk) == NULL);
    const size_t size = ft_chunk_get_info(chunk).size;
    uint8_t *copy = grab(size);
    memcpy(copy, ft_chunk_get_info(chunk).bytes, size);
    copy[AT_TRANSFORM] = 2;
    make_sums_right(copy);
    CHECK(ft_chunk_open(copy, size, keep_bytes, NULL, &other, &what) == FT_DAMAGED && strstr(what, "transformed") != NULL);
    copy[AT_TRANSFORM] = 0;
    copy[HEADER + AT_CODER] = 77;
    make_sums_right(copy);
    CHECK(ft_chunk_open(copy, size, keep_bytes, NULL, &other, &what) == FT_OK && strstr(ft_chunk_verify(other), "coder") != NULL);
    ft_chunk_drop(other);
    free(copy);
    ft_chunk_drop(chunk);
    pair_free(both);
}

/* A copy takes the place of a chunk where the ring still has it, and nowhere else; something else does not. */
static void test_exchange(const ft_schema *schema, uint64_t seed) {
    const char *what;
    pair *both = pair_new(schema, 64, 16, seed);
    for (size_t k = 0; k < 64 + 24; k++) { /* the first chunk is of the second lap then, the second one half gone */
        CHECK(write_row(both, k % 64, false) == FT_OK);
    }
    for (uint64_t row = 0; row < 64; row += FT_BLOCK_ROWS) {
        ft_chunk *chunk = chunk_at(both->column, row), *copy;
        if (chunk == NULL) {
            continue;
        }
        ft_chunk_keep(chunk);
        const ft_chunk_info of = ft_chunk_get_info(chunk);
        uint8_t *bytes = grab(of.size);
        memcpy(bytes, of.bytes, of.size);
        CHECK(ft_chunk_open(bytes, of.size, keep_bytes, NULL, &copy, &what) == FT_OK);
        CHECK(ft_column_exchange(both->column, chunk, copy) == FT_OK);
        CHECK(chunk_at(both->column, row) == copy);
        check_all(both, both->column);
        CHECK(ft_column_exchange(both->column, chunk, copy) == FT_OK && chunk_at(both->column, row) == copy);
        ft_chunk *other = chunk_at(both->column, (row + 32) % 64);
        CHECK(other == NULL || ft_column_exchange(both->column, copy, other) == FT_INVALID);
        ft_column_clear(both->column); /* the copy is not put where its rows are gone */
        CHECK(ft_column_exchange(both->column, chunk, copy) == FT_OK && chunk_at(both->column, row) == NULL);
        ft_chunk_drop(copy);
        ft_chunk_drop(chunk);
        free(bytes);
        break;
    }
    pair_free(both);
}

/* A chunk that is arranged for a disk holds the same, lies where the ring still has it, and stays as it is after that. */
static void test_arranged(const ft_schema *schema, uint64_t seed) {
    pair *both = pair_new(schema, 64, 32, seed);
    for (size_t k = 0; k < 64 + 24; k++) {
        CHECK(write_row(both, k % 64, false) == FT_OK);
    }
    for (uint64_t row = 0; row < 64; row += FT_BLOCK_ROWS) {
        ft_chunk *chunk = chunk_at(both->column, row), *arranged = NULL, *again;
        int result = FT_NO_MEMORY;
        if (chunk == NULL) {
            continue;
        }
        ft_chunk_keep(chunk);
        for (int64_t after = 0; result == FT_NO_MEMORY; after++) { /* refuse each allocation in its turn */
            ft_refuse_allocation(after);
            result = ft_chunk_arrange(chunk, &arranged);
            ft_refuse_allocation(-1);
            CHECK(result == FT_OK || arranged == NULL);
        }
        if (result == FT_OK) {
            CHECK(ft_chunk_verify(arranged) == NULL && ft_chunk_arrange(arranged, &again) == FT_INVALID);
            ft_column_put_arranged(both->column, chunk, arranged);
            CHECK(chunk_at(both->column, row) == arranged);
        } else {
            CHECK(result == FT_INVALID);
        }
        check_all(both, both->column);
        ft_chunk_drop(arranged);
        ft_chunk_drop(chunk);
    }
    send_chunks(both);
    pair_free(both);
}

static void test_checksums(void) {
    CHECK(ft_compute_checksum((const uint8_t *)"123456789", 9) == UINT32_C(0xE3069283)); /* the value that CRC-32C is known by */
    chance draws = {7};
    uint8_t bytes[300];
    for (size_t k = 0; k < 2000; k++) {
        const size_t first = below(&draws, 20), size = below(&draws, sizeof bytes - first);
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)draw(&draws);
        }
        CHECK(ft_compute_checksum(bytes + first, size) == ft_compute_checksum_plainly(bytes + first, size));
    }
}

void test_chunks(void) {
    test_checksums();
    test_newer_chunks();
    for (size_t layout = 0; layout < N_LAYOUTS; layout++) {
        for (size_t method = 0; method < N_METHODS; method++) {
            const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 2, 2};
            for (size_t values = 0; values <= (schema.layout.item > 1 ? 5 : 0); values += 5) {
                test_damage(&schema, values, layout + method);
                test_damaged_records(&schema, values, layout + method);
            }
            test_exchange(&schema, layout + method);
            test_arranged(&schema, layout + method);
        }
    }
}
