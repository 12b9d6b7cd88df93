/* Tables of values: elements as bytes and back, and columns in which there are few values, or too many from some moment on. */
#include "test_core.h"

#include "../../src/sb3_extra_buffers/_native/values.h"

static const size_t ITEMS[] = {2, 4, 8};

/* A different value for each number below 2^16. */
static void make_value(uint8_t *at, size_t item, size_t number, uint64_t salt) {
    const uint64_t mixed = (number + 1) * (salt | 1) << (item == 8 ? 20 : 0);
    for (size_t k = 0; k < item; k++) {
        at[k] = (uint8_t)(mixed >> 8 * k);
    }
}

/* -- the table itself ----------------------------------------------------------------------------------------------------- */

/* Code elements with what was before and without, and put them back in one piece and apart. */
static void test_one_table(chance *from, size_t item, size_t most) {
    const size_t count = 1 + below(from, 1000), width = 1 + below(from, 3), depth = 1 + below(from, 3);
    const uint64_t salt = draw(from);
    ft_values *values = grab(sizeof *values);
    ft_init_values(values, item);
    uint8_t *before = grab(count * item), *before_coded = grab(count), *elements = grab(count * item), *coded = grab(count);
    for (size_t i = 0; i < count; i++) {
        make_value(before + i * item, item, below(from, most), salt);
    }
    CHECK(ft_map_values(values, before, count, NULL, NULL, before_coded) == FT_OK && values->count <= most);
    memcpy(elements, before, count * item);
    for (size_t k = below(from, 2) * below(from, count); k > 0; k--) {
        make_value(elements + below(from, count) * item, item, below(from, most), salt);
    }
    CHECK(ft_map_values(values, elements, count, one_in(from, 4) ? NULL : before, before_coded, coded) == FT_OK);
    CHECK(values->count <= most && ft_active->are_below(coded, count, values->count));
    for (size_t i = 0; i < count; i++) {
        CHECK(memcmp(values->bytes + coded[i] * item, elements + i * item, item) == 0);
        CHECK(memcmp(values->bytes + before_coded[i] * item, before + i * item, item) == 0);
    }
    uint8_t *table = grab(values->count * item), *out = grab(count * item); /* of their exact sizes */
    memcpy(table, values->bytes, values->count * item);
    ft_active->put_values(table, item, coded, count, one_in(from, 3) ? NULL : before, before_coded, out);
    CHECK(memcmp(out, elements, count * item) == 0);
    const size_t blocks = count / width, block = width * depth * item;
    uint8_t *apart = grab(blocks * block);
    ft_active->put_apart(table, item, coded, blocks, width, block, apart + (depth - 1) * width * item);
    for (size_t i = 0; i < blocks; i++) {
        CHECK(memcmp(apart + (i + 1) * block - width * item, elements + i * width * item, width * item) == 0);
        for (size_t k = 0; k < block - width * item; k++) {
            CHECK(apart[i * block + k] == 0);
        }
    }
    void *all[] = {values, before, before_coded, elements, coded, table, out, apart};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        free(all[k]);
    }
}

/* There is room for so many values and no more; those that are taken back make room for others. */
static void test_limits(chance *from, size_t item) {
    const uint64_t salt = draw(from);
    uint8_t value[FT_MOST_ITEM], coded;
    ft_values *values = grab(sizeof *values);
    ft_init_values(values, item);
    for (size_t round = 0; round < 20; round++) {
        const size_t kept = round == 0 ? 0 : below(from, FT_MOST_VALUES + 1);
        ft_cut_values(values, kept);
        CHECK(values->count == kept);
        for (size_t number = kept; number < FT_MOST_VALUES; number++) { /* which is known, what was cut is not */
            make_value(value, item, number, salt);
            CHECK(number == 0 || ft_active->map_values(values, value, 0, 1, NULL, NULL, &coded) == 0);
            CHECK(ft_map_values(values, value, 1, NULL, NULL, &coded) == FT_OK && coded == number);
        }
        make_value(value, item, FT_MOST_VALUES + round, salt);
        CHECK(ft_map_values(values, value, 1, NULL, NULL, &coded) == FT_MANY_VALUES && values->count == FT_MOST_VALUES);
        for (size_t number = 0; number < FT_MOST_VALUES; number++) {
            make_value(value, item, number, salt);
            CHECK(ft_map_values(values, value, 1, NULL, NULL, &coded) == FT_OK && coded == number);
        }
    }
    uint8_t places[300];
    for (size_t k = 0; k < 500; k++) {
        const size_t count = below(from, sizeof places), limit = 1 + below(from, 256);
        bool below_it = true;
        for (size_t i = 0; i < count; i++) {
            places[i] = (uint8_t)below(from, one_in(from, 50) ? 256 : limit);
            below_it = below_it && places[i] < limit;
        }
        CHECK(ft_active->are_below(places, count, limit) == below_it);
    }
    free(values);
}

/* Frames side by side in small blocks: whether one stack is another moved on. */
static void test_moved_blocks(chance *from) {
    static const size_t BLOCKS[] = {2, 4, 8, 16, 32};
    for (size_t k = 0; k < 2000; k++) {
        const size_t block = BLOCKS[below(from, 5)], part = (size_t)1 << below(from, 5), count = 1 + below(from, 200);
        if (part >= block) {
            continue;
        }
        const size_t size = count * block;
        uint8_t *now = grab(size), *before = grab(size), *newest = grab(count * part), *copy = grab(size);
        for (size_t i = 0; i < size; i++) {
            before[i] = (uint8_t)draw(from);
        }
        for (size_t i = 0; i < count; i++) {
            memcpy(now + i * block, before + i * block + part, block - part);
            for (size_t j = block - part; j < block; j++) {
                now[i * block + j] = (uint8_t)draw(from);
            }
        }
        const size_t at = below(from, size);
        const bool same = at % block >= block - part || one_in(from, 2);
        now[at] ^= (uint8_t)(same ? 0 : 1 << below(from, 8));
        CHECK(ft_active->moved_blocks(now, before, size, block, part, newest, copy) == same);
        for (size_t i = 0; same && i < count; i++) {
            CHECK(memcmp(newest + i * part, now + (i + 1) * block - part, part) == 0);
        }
        CHECK(!same || memcmp(copy, now, size) == 0);
        free(now);
        free(before);
        free(newest);
        free(copy);
    }
}

/* -- columns -------------------------------------------------------------------------------------------------------------- */

enum { AT_TRANSFORM = 96, AT_TABLES = 100, AT_DATA_SUM = 128, AT_INDEX_SUM = 132, AT_HEADER_SUM = 148 };

static bool has_values(const ft_chunk *chunk) { return get_u32(ft_chunk_get_info(chunk).bytes + AT_TRANSFORM) == VALUES; }

static size_t count_values(pair *both) {
    ft_chunk *chunk;
    CHECK(ft_column_snapshot(both->column, &chunk) == FT_OK);
    const size_t bytes = chunk != NULL ? get_u32(ft_chunk_get_info(chunk).bytes + AT_TABLES) : 0;
    CHECK(bytes % both->schema.layout.item == 0 && (bytes > 0) == (chunk != NULL && has_values(chunk)));
    ft_chunk_drop(chunk);
    return bytes / both->schema.layout.item;
}

/* Few values, then too many, then few again, whenever that is; whole rows, single cells, rows again, and rows that are aborted. */
static void test_changing_values(const ft_schema *schema, uint64_t seed) {
    static const size_t AMOUNTS[] = {1, 2, 5, 100, 255, 256, 0};
    chance draws = {seed};
    const bool any_order = one_in(&draws, 2);
    pair *both = pair_new(schema, 1 + below(&draws, 80), 16 + below(&draws, 20), seed);
    both->values = AMOUNTS[below(&draws, 6)];
    for (size_t k = 0; k < 3 * both->rows; k++) {
        if (one_in(&draws, 25)) {
            both->values = AMOUNTS[below(&draws, 7)];
        }
        if (any_order && one_in(&draws, 12)) {
            CHECK(write_cell(both, below(&draws, both->rows), below(&draws, schema->n_streams), below(&draws, schema->views)) == FT_OK);
        } else {
            CHECK(write_row(both, any_order && one_in(&draws, 12) ? below(&draws, both->rows) : both->next_row, one_in(&draws, 4)) == FT_OK);
        }
        if (one_in(&draws, 30)) {
            check_all(both, both->column);
        }
    }
    check_all(both, both->column);
    if (!any_order) {
        send_chunks(both);
    }
    pair_free(both);
}

/* With at most so many values, chunks have a table, and without references none has. */
static void test_that_they_are_used(const ft_schema *schema) {
    pair *both = pair_new(schema, 64, 16, 9);
    const bool can = schema->method.references && schema->layout.item > 1;
    both->values = 256;
    for (size_t row = 0; row < 70; row++) {
        CHECK(write_row(both, row % 64, false) == FT_OK);
    }
    for (size_t row = 16; row < 64; row += 16) {
        CHECK(has_values(chunk_at(both->column, row)) == can);
    }
    check_all(both, both->column);
    pair_free(both);
}

/* Write one observation of noise, which has too many values, to a row. */
static void write_noise(pair *both, size_t row) {
    for (size_t i = 0; i < both->schema.n_streams * both->obs_bytes; i++) {
        both->now[i] = (uint8_t)draw(&both->chance);
    }
    const ft_part part = {0, both->now, false, NULL, both->schema.n_streams};
    CHECK(ft_column_stage(both->column, row, &part, 1, &both->codecs) == FT_OK);
    ft_column_commit(both->column);
    memcpy(both->plain[0] + row * both->schema.n_streams * both->obs_bytes, both->now, both->schema.n_streams * both->obs_bytes);
    memset(both->written[0] + row * both->schema.n_streams, 1, both->schema.n_streams);
}

/* Where a table has proved too small, it is tried again, ever more rarely; once it does, it is back. */
static void test_pauses(void) {
    enum { CHUNK = 16, CHUNKS = 200 };
    const ft_schema schema = {{4, 1, 1, 4 * 400, 1, 0, false, false, 0}, METHODS[0], 1, 1};
    pair *both = pair_new(&schema, CHUNK * CHUNKS, CHUNK, 4);
    both->values = 9;
    size_t tried = 0;
    for (size_t row = 0; row < CHUNK * CHUNKS; row++) {
        const size_t chunk = row / CHUNK;
        if (chunk < 100 && row % CHUNK == CHUNK - 1) {
            tried += count_values(both) > 0; /* it was begun with a table */
            write_noise(both, row);
            CHECK(count_values(both) == 0);
        } else {
            CHECK(write_row(both, row, false) == FT_OK);
            if (row % CHUNK == 0) {
                memset(both->now, 0, both->obs_bytes); /* after noise, which is among no few values */
            }
        }
    }
    CHECK(tried >= 5 && tried <= 8);
    size_t with = 0;
    for (size_t chunk = 0; chunk < CHUNKS; chunk++) {
        const bool has = has_values(chunk_at(both->column, chunk * CHUNK));
        CHECK(chunk >= 100 || !has);
        with += has;
    }
    CHECK(with >= 100 - 64 && has_values(chunk_at(both->column, CHUNK * CHUNKS - 1)));
    check_all(both, both->column);
    pair_free(both);
}

/* One value too many ends a chunk that has many rows; those keep their table. */
static void test_one_value_too_many(void) {
    const ft_schema schema = {{4, 1, 1, 4 * 400, 1, 0, false, false, 0}, METHODS[0], 1, 1};
    pair *both = pair_new(&schema, 400, 200, 4);
    both->values = 9;
    for (size_t row = 0; row < 360; row++) {
        if (row == 150) {
            write_noise(both, row);
            CHECK(has_values(chunk_at(both->column, row - 1)) && ft_chunk_get_info(chunk_at(both->column, 0)).rows == row);
            CHECK(count_values(both) == 0);
            memset(both->now, 0, both->obs_bytes);
        } else {
            CHECK(write_row(both, row, false) == FT_OK);
        }
    }
    CHECK(!has_values(chunk_at(both->column, 150)) && count_values(both) > 0); /* and the next chunk has one again */
    check_all(both, both->column);
    pair_free(both);
}

/* What a row that is aborted has added is gone. */
static void test_aborted_values(void) {
    const ft_schema schema = {{4, 1, 1, 4 * 400, 1, 0, false, false, 0}, METHODS[0], 1, 1};
    pair *both = pair_new(&schema, 64, 64, 4);
    both->values = 5;
    CHECK(write_row(both, 0, false) == FT_OK && write_row(both, 1, false) == FT_OK);
    const size_t before = count_values(both);
    CHECK(before > 0 && before <= 5);
    uint8_t *obs = grab(both->obs_bytes);
    for (size_t round = 0; round < 10; round++) { /* together they would be too many */
        for (size_t i = 0; i < both->obs_bytes; i += 4) {
            make_value(obs + i, 4, 200 * round + i % 199, 0x1234567);
        }
        const ft_part part = {0, obs, false, NULL, 1};
        CHECK(ft_column_stage(both->column, 2, &part, 1, &both->codecs) == FT_OK);
        ft_column_abort(both->column);
        CHECK(count_values(both) == before);
        check_all(both, both->column);
    }
    free(obs);
    CHECK(write_row(both, 2, false) == FT_OK && count_values(both) <= 5);
    check_all(both, both->column);
    pair_free(both);
}

/* Bytes that stand for no value of the table, and tables that make no sense. */
static void test_damaged_tables(void) {
    const ft_schema schema = {{4, 1, 1, 4 * 50, 1, 0, false, false, 0}, METHODS[0], 1, 1};
    pair *both = pair_new(&schema, 16, 16, 4);
    both->values = 5;
    CHECK(write_row(both, 0, false) == FT_OK);
    while (count_values(both) < 3) {
        CHECK(write_row(both, 0, false) == FT_OK);
    }
    ft_chunk *chunk, *other;
    const char *what;
    CHECK(ft_column_snapshot(both->column, &chunk) == FT_OK);
    const ft_chunk_info of = ft_chunk_get_info(chunk);
    const size_t tables = get_u32(of.bytes + AT_TABLES);
    uint8_t *copy = grab(of.size), *out = grab(both->obs_bytes), *scratch = grab(ft_measure_scratch(&chunk->rows));
    uint8_t *const outputs[FT_MAX_VIEWS] = {out, NULL};
    const size_t room[FT_MAX_VIEWS] = {0, 0};
    for (size_t place = 0; place < 256; place++) { /* in the key frame, which is the first record */
        memcpy(copy, of.bytes, of.size);
        memset(copy + FT_CHUNK_HEADER + RECORD_HEADER, (int)place, 50);
        put_u32(copy + AT_DATA_SUM, ft_compute_checksum(copy + FT_CHUNK_HEADER, chunk->rows.data_bytes + FT_READ_AHEAD));
        put_u32(copy + AT_HEADER_SUM, ft_compute_checksum(copy, AT_HEADER_SUM));
        CHECK(ft_chunk_open(copy, of.size, keep_bytes, NULL, &other, &what) == FT_OK);
        const int result = ft_decode_cell(&other->rows, 0, 0, outputs, room, scratch, &both->codecs);
        CHECK(result == FT_OK || result == FT_DAMAGED);
        CHECK(result == FT_DAMAGED || place < tables / 4 || get_u16(copy + FT_CHUNK_HEADER + RECORD_HEADER + 50 + RECORD_PATCHES) > 2);
        ft_chunk_drop(other);
    }
    for (size_t bytes = 0; bytes < 4 * 300; bytes++) { /* the sizes that the header may claim */
        memcpy(copy, of.bytes, of.size);
        put_u32(copy + AT_TABLES, bytes);
        put_u32(copy + AT_HEADER_SUM, ft_compute_checksum(copy, AT_HEADER_SUM));
        CHECK(ft_chunk_open(copy, of.size, keep_bytes, NULL, &other, &what) == (bytes == tables ? FT_OK : FT_DAMAGED));
        ft_chunk_drop(other);
    }
    free(copy);
    free(out);
    free(scratch);
    ft_chunk_drop(chunk);
    pair_free(both);
}

void test_values(void) {
    chance from = {11};
    for (size_t k = 0; k < sizeof ITEMS / sizeof *ITEMS; k++) {
        for (size_t round = 0; round < 60; round++) {
            test_one_table(&from, ITEMS[k], 1 + below(&from, FT_MOST_VALUES));
        }
        test_limits(&from, ITEMS[k]);
    }
    test_moved_blocks(&from);
    test_pauses();
    test_one_value_too_many();
    test_aborted_values();
    test_damaged_tables();
    for (size_t layout = 0; layout < N_LAYOUTS; layout++) {
        for (size_t method = 0; method < N_METHODS && LAYOUTS[layout].layout.item > 1; method++) {
            for (uint64_t seed = 0; seed < 3; seed++) {
                const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 1 + seed % 3, 1 + seed % 2};
                test_changing_values(&schema, 1000 * layout + 100 * method + seed);
                test_that_they_are_used(&schema);
            }
        }
    }
}
