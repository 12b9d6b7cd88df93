/* Columns against plain arrays: rings, single cells, any order, both memory orders, failures, chunks that are sent and damaged. */
#include "test_core.h"

#include "../../src/sb3_extra_buffers/_native/frametable.h"

/* A column, and beside it what it has to hold. */
typedef struct pair {
    ft_column *column;
    ft_schema schema;
    size_t rows, obs_bytes, next_row;
    uint8_t *plain[FT_MAX_VIEWS];
    uint8_t *written[FT_MAX_VIEWS]; /* for each cell */
    uint8_t *now, *next, *lying;
    run_codec codec;
    fl_codecs codecs;
    chance chance;
} pair;

static pair *pair_new(const ft_schema *schema, size_t rows, size_t chunk_rows, uint64_t seed) {
    int result;
    pair *both = grab(sizeof *both);
    both->schema = *schema;
    both->rows = rows;
    both->obs_bytes = obs_bytes_of(&schema->layout);
    both->chance = (chance){seed};
    both->codecs = codecs_of(&both->codec);
    both->column = ft_column_new(schema, rows, chunk_rows, &result);
    CHECK(both->column != NULL && result == FL_OK);
    for (size_t view = 0; view < schema->views; view++) {
        both->plain[view] = grab(rows * schema->n_streams * both->obs_bytes);
        both->written[view] = grab(rows * schema->n_streams);
    }
    both->now = grab(schema->n_streams * both->obs_bytes);
    both->next = grab(schema->n_streams * both->obs_bytes);
    both->lying = grab(FT_MAX_VIEWS * schema->n_streams * both->obs_bytes);
    return both;
}

static void pair_free(pair *both) {
    ft_column_free(both->column);
    free(both->plain[0]);
    free(both->plain[1]);
    free(both->written[0]);
    free(both->written[1]);
    free(both->now);
    free(both->next);
    free(both->lying);
    free(both->codec.blob);
    free(both);
}

static ft_part lay(pair *both, size_t view, const uint8_t *obs, size_t count) {
    uint8_t *lying = both->lying + view * both->schema.n_streams * both->obs_bytes;
    const bool turned = both->schema.layout.can_turn && one_in(&both->chance, 3);
    for (size_t i = 0; i < count; i++) {
        if (turned) {
            turn_plainly(&both->schema.layout, obs + i * both->obs_bytes, lying + i * both->obs_bytes);
        } else {
            memcpy(lying + i * both->obs_bytes, obs + i * both->obs_bytes, both->obs_bytes);
        }
    }
    return (ft_part){view, lying, turned, NULL, count};
}

/* Write a row of all streams; half of those that could be committed are aborted first if `hesitates`. */
static int write_row(pair *both, size_t row, bool hesitates) {
    const size_t n = both->schema.n_streams, bytes = n * both->obs_bytes, views = both->schema.views;
    memcpy(both->next, both->now, bytes);
    for (size_t i = 0; i < n; i++) {
        play(&both->chance, &both->schema.layout, both->next + i * both->obs_bytes);
    }
    ft_part parts[FT_MAX_VIEWS];
    parts[0] = lay(both, 0, views == 2 ? both->now : both->next, n);
    if (views == 2) {
        parts[1] = lay(both, 1, both->next, n);
    }
    for (;;) {
        const int result = ft_column_stage(both->column, row, parts, views, &both->codecs);
        if (result != FL_OK) {
            return result;
        }
        if (!hesitates || one_in(&both->chance, 2)) {
            break;
        }
        ft_column_abort(both->column);
    }
    ft_column_commit(both->column);
    memcpy(both->plain[0] + row * bytes, views == 2 ? both->now : both->next, bytes);
    memset(both->written[0] + row * n, 1, n);
    if (views == 2) {
        memcpy(both->plain[1] + row * bytes, both->next, bytes);
        memset(both->written[1] + row * n, 1, n);
    }
    memcpy(both->now, both->next, bytes);
    both->next_row = (row + 1) % both->rows;
    return FL_OK;
}

/* Write one view of one cell. */
static int write_cell(pair *both, size_t row, size_t stream, size_t view) {
    uint8_t *obs = both->now + stream * both->obs_bytes;
    memcpy(both->next, obs, both->obs_bytes);
    play(&both->chance, &both->schema.layout, both->next);
    ft_part part = lay(both, view, both->next, 1);
    part.streams = &stream;
    const int result = ft_column_stage(both->column, row, &part, 1, &both->codecs);
    if (result == FL_OK) {
        ft_column_commit(both->column);
        memcpy(both->plain[view] + (row * both->schema.n_streams + stream) * both->obs_bytes, both->next, both->obs_bytes);
        memcpy(obs, both->next, both->obs_bytes);
        both->written[view][row * both->schema.n_streams + stream] = 1;
    }
    return result;
}

static void check_cells(pair *both, const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count) {
    const size_t n = both->schema.n_streams;
    uint8_t *outs[FT_MAX_VIEWS] = {grab(count * both->obs_bytes), NULL};
    if (both->schema.views == 2) {
        outs[1] = grab(count * both->obs_bytes);
    }
    int result;
    ft_read *read = ft_read_begin(column, rows, streams, count, outs, &both->codecs, &result);
    CHECK(read != NULL && result == FL_OK);
    CHECK(ft_read_run(read, 2, &both->codecs) == FL_OK);
    ft_read_end(read);
    for (size_t k = 0; k < count; k++) {
        const size_t cell = (size_t)rows[k] * n + (size_t)streams[k];
        for (size_t view = 0; view < both->schema.views; view++) {
            CHECK(memcmp(outs[view] + k * both->obs_bytes, both->plain[view] + cell * both->obs_bytes, both->obs_bytes) == 0);
        }
    }
    free(outs[0]);
    free(outs[1]);
}

static void check_all(pair *both, const ft_column *column) {
    const size_t n = both->schema.n_streams, count = both->rows * n;
    uint64_t written = 0;
    for (size_t k = 0; k < both->schema.views * count; k++) {
        written += both->written[k / count][k % count];
    }
    CHECK(ft_column_usage(column).cells == written);
    int64_t *rows = grab(count * sizeof *rows), *streams = grab(count * sizeof *streams);
    for (size_t k = 0; k < count; k++) { /* in some order */
        rows[k] = (int64_t)(k * 7919 % count / n);
        streams[k] = (int64_t)(k * 7919 % count % n);
    }
    check_cells(both, column, rows, streams, count);
    for (size_t k = 0; k < count; k++) {
        rows[k] = (int64_t)(k / n);
        streams[k] = (int64_t)(k % n);
    }
    check_cells(both, column, rows, streams, count);
    free(rows);
    free(streams);
}

static void drop_bytes(void *context, const uint8_t *bytes, size_t size) {
    (void)size;
    ++*(size_t *)context;
    free((void *)(uintptr_t)bytes);
}

/* A chunk as it comes out of a file. */
static ft_chunk *copy_of(const ft_chunk *chunk, size_t *dropped) {
    size_t size;
    const uint8_t *bytes = ft_chunk_bytes(chunk, &size);
    uint8_t *copy = grab(size);
    memcpy(copy, bytes, size);
    int result;
    const char *what;
    ft_chunk *other = ft_chunk_open(copy, size, drop_bytes, dropped, &result, &what);
    CHECK(other != NULL && result == FL_OK && what == NULL && ft_chunk_verify(other) == NULL);
    return other;
}

/* Send all chunks to another column, which has to hold the same. */
static void send_chunks(pair *both) {
    int result;
    size_t sent = 0, dropped = 0;
    ft_column *other = ft_column_new(&both->schema, both->rows, both->rows < 48 ? both->rows : 48, &result);
    CHECK(other != NULL);
    ft_chunk *open = ft_column_snapshot(both->column, &result), *last = NULL;
    CHECK(result == FL_OK);
    if (open != NULL) {
        ft_chunk *copy = copy_of(open, &dropped);
        sent++;
        if (ft_chunk_rows(open) <= 48) {
            CHECK(ft_column_resume(other, copy, ft_chunk_first_row(copy), ft_chunk_lap(copy), &both->codecs) == FL_OK);
        }
        const bool fits = ft_chunk_rows(open) <= 48;
        ft_chunk_drop(copy);
        if (!fits) {
            ft_chunk_drop(open);
            ft_column_free(other);
            return;
        }
    }
    for (size_t row = 0; row < both->rows; row += FT_BLOCK_ROWS) {
        ft_chunk *chunk = ft_column_chunk(both->column, row);
        if (chunk == NULL || chunk == last) {
            continue;
        }
        last = chunk;
        ft_chunk *copy = copy_of(chunk, &dropped);
        sent++;
        if (ft_column_adopt(other, copy, ft_chunk_first_row(copy)) != FL_OK) { /* the ring is writing over it */
            ft_chunk_drop(copy);
            ft_chunk_drop(open);
            ft_column_free(other);
            CHECK(dropped == sent);
            return;
        }
    }
    check_all(both, other);
    ft_chunk_drop(open);
    ft_column_free(other);
    CHECK(dropped == sent);
}

static void test_rings(const ft_schema *schema, uint64_t seed) {
    static const size_t ROWS[] = {1, 3, 16, 40, 64, 100}, CHUNKS[] = {1, 16, 32, 48};
    chance draws = {seed};
    pair *both = pair_new(schema, ROWS[below(&draws, 6)], CHUNKS[below(&draws, 4)], seed);
    check_all(both, both->column);
    for (size_t k = 0; k < 2 * both->rows + 7; k++) {
        CHECK(write_row(both, both->next_row, one_in(&draws, 4)) == FL_OK);
        if (one_in(&draws, 20)) {
            check_all(both, both->column);
        }
    }
    check_all(both, both->column);
    send_chunks(both);
    ft_column_clear(both->column);
    for (size_t view = 0; view < schema->views; view++) {
        memset(both->plain[view], 0, both->rows * schema->n_streams * both->obs_bytes);
        memset(both->written[view], 0, both->rows * schema->n_streams);
    }
    const ft_usage cleared = ft_column_usage(both->column);
    CHECK(cleared.frames == 0 && cleared.frame_bytes == 0 && cleared.cells == 0);
    check_all(both, both->column);
    CHECK(write_row(both, 0, false) == FL_OK);
    check_all(both, both->column);
    pair_free(both);
}

/* A ring that is complete has no open chunk, unless memory for that is refused; then it is read, and goes on, as it is. */
static void test_completion(const ft_schema *schema, uint64_t seed) {
    chance draws = {seed};
    int result;
    pair *both = pair_new(schema, 1 + below(&draws, 70), 16 + below(&draws, 30), seed);
    for (size_t lap = 0; lap < 4; lap++) {
        const bool refuses = lap == 2;
        for (size_t row = 0; row + 1 < both->rows; row++) {
            CHECK(write_row(both, row, false) == FL_OK);
        }
        ft_part parts[FT_MAX_VIEWS];
        for (size_t view = 0; view < schema->views; view++) {
            parts[view] = lay(both, view, both->now, schema->n_streams);
            const size_t cells = (both->rows - 1) * schema->n_streams;
            memcpy(both->plain[view] + cells * both->obs_bytes, both->now, schema->n_streams * both->obs_bytes);
            memset(both->written[view] + cells, 1, schema->n_streams);
        }
        CHECK(ft_column_stage(both->column, both->rows - 1, parts, schema->views, &both->codecs) == FL_OK);
        fl_refuse_allocation(refuses ? (int64_t)(seed % 2) : -1);
        ft_column_commit(both->column);
        fl_refuse_allocation(-1);
        check_all(both, both->column);
        ft_chunk *open = ft_column_snapshot(both->column, &result), *last = NULL;
        CHECK((open != NULL) == refuses && result == FL_OK);
        ft_chunk_drop(open);
        uint64_t bytes = 0;
        for (size_t row = 0; row < both->rows; row++) {
            ft_chunk *chunk = ft_column_chunk(both->column, row);
            size_t size = 0;
            CHECK(chunk != NULL || refuses);
            if (chunk != NULL && chunk != last) {
                ft_chunk_bytes(chunk, &size);
                CHECK(ft_chunk_lap(chunk) == lap % 2);
            }
            bytes += size;
            last = chunk;
        }
        /* Beside sealed chunks there is nothing but lists of some entries a stream. */
        CHECK(refuses || ft_column_usage(both->column).held_bytes < bytes + (schema->n_streams + 1) * 8192);
        if (lap % 2 == 1) { /* as a rollout is */
            ft_column_clear(both->column);
            for (size_t view = 0; view < schema->views; view++) {
                memset(both->plain[view], 0, both->rows * schema->n_streams * both->obs_bytes);
                memset(both->written[view], 0, both->rows * schema->n_streams);
            }
            CHECK(ft_column_usage(both->column).held_bytes < (schema->n_streams + 1) * 8192);
        }
    }
    pair_free(both);
}

static void test_any_order(const ft_schema *schema, uint64_t seed) {
    chance draws = {seed};
    pair *both = pair_new(schema, 1 + below(&draws, 80), 16 + below(&draws, 30), seed);
    for (size_t k = 0; k < 40; k++) {
        const size_t row = below(&draws, both->rows);
        if (one_in(&draws, 3)) {
            CHECK(write_cell(both, row, below(&draws, schema->n_streams), below(&draws, schema->views)) == FL_OK);
        } else if (one_in(&draws, 2)) {
            CHECK(write_row(both, row, one_in(&draws, 4)) == FL_OK);
        } else {
            for (size_t m = below(&draws, 20); m > 0; m--) {
                CHECK(write_row(both, both->next_row, false) == FL_OK);
            }
        }
        if (one_in(&draws, 5)) {
            check_all(both, both->column);
        }
    }
    check_all(both, both->column);
    send_chunks(both);
    pair_free(both);
}

/* Codecs and allocations that fail leave everything as it was. */
static void test_failing_rows(const ft_schema *schema, uint64_t seed) {
    chance draws = {seed};
    pair *both = pair_new(schema, 40, 16, seed);
    size_t failed = 0;
    for (size_t k = 0; k < 150; k++) {
        const bool codec = one_in(&draws, 2);
        both->codec.fail_after = codec ? (int64_t)below(&draws, 6) : -1;
        fl_refuse_allocation(codec ? -1 : (int64_t)below(&draws, 6));
        const size_t row = one_in(&draws, 10) ? below(&draws, both->rows) : both->next_row;
        const int result = write_row(both, row, false);
        fl_refuse_allocation(-1);
        both->codec.fail_after = -1;
        CHECK(result == FL_OK || result == FL_CODEC || result == FL_NO_MEMORY);
        failed += result != FL_OK;
        if (result != FL_OK || one_in(&draws, 8)) {
            check_all(both, both->column);
        }
    }
    CHECK(failed > 0);
    /* What fails again and again takes no more memory. */
    if (!schema->method.references) {
        const ft_usage before = ft_column_usage(both->column);
        for (size_t k = 0; k < 50; k++) {
            both->codec.fail_after = 0;
            const int result = write_row(both, both->next_row, false);
            CHECK(result == FL_CODEC || result == FL_OK);
            if (result == FL_OK) {
                break; /* nothing in it had to be coded */
            }
            CHECK(ft_column_usage(both->column).frame_bytes == before.frame_bytes);
        }
    }
    both->codec.fail_after = -1;
    check_all(both, both->column);
    pair_free(both);
}

static void keep_bytes(void *context, const uint8_t *bytes, size_t size) {
    (void)context;
    (void)bytes;
    (void)size;
}

/* Every flipped bit of a chunk, every shorter one, and a longer one is refused. */
static void test_damage(const ft_schema *schema, uint64_t seed) {
    int result;
    const char *what;
    pair *both = pair_new(schema, 16, 16, seed);
    for (size_t k = 0; k < 9; k++) {
        CHECK(write_row(both, k, false) == FL_OK);
    }
    ft_chunk *chunk = ft_column_snapshot(both->column, &result);
    CHECK(chunk != NULL);
    size_t size;
    const uint8_t *bytes = ft_chunk_bytes(chunk, &size);
    uint8_t *copy = grab(size + 1);
    memcpy(copy, bytes, size);
    for (size_t bit = 0; bit < 8 * size; bit += size > 4096 ? 61 : 1) {
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(ft_chunk_open(copy, size, keep_bytes, NULL, &result, &what) == NULL && result == FL_DAMAGED && what != NULL);
        copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t length = 0; length <= size + 1; length++) {
        ft_chunk *other = ft_chunk_open(copy, length, keep_bytes, NULL, &result, &what);
        CHECK((other != NULL) == (length == size) && (other == NULL) == (what != NULL));
        ft_chunk_drop(other);
    }
    free(copy);
    ft_chunk_drop(chunk);
    pair_free(both);
}

/* Observations that are no stacks, though they look like some: the layout is doubted, and another one takes over. */
static void test_doubts(void) {
    const fl_layout stack = {1, 1, 4, 100, 1, 10, true, false}, whole = {1, 1, 1, 400, 4, 10, true, false};
    const ft_schema schema = {stack, METHODS[0], 2, 1};
    pair *both = pair_new(&schema, 200, 64, 13);
    ft_column_set_patience(both->column, 1000);
    size_t doubted = 0;
    for (size_t step = 0; step < 100 && doubted == 0; step++) {
        for (size_t i = 0; i < 2 * both->obs_bytes; i++) {
            both->now[i] = (uint8_t)draw(&both->chance);
        }
        CHECK(write_row(both, step, true) == FL_OK);
        if (step == 50) {
            CHECK(!ft_column_layout_in_doubt(both->column)); /* who is patient does not doubt */
            ft_column_set_patience(both->column, 16);
        }
        doubted = ft_column_layout_in_doubt(both->column) ? step : 0;
    }
    CHECK(doubted > 0 && doubted < 70); /* at the latest when a chunk has just begun */
    CHECK(ft_column_set_layout(both->column, &whole, &both->codecs) == FL_OK && !ft_column_layout_in_doubt(both->column));
    both->schema.layout = whole;
    check_all(both, both->column);
    for (size_t step = 0; step < 300; step++) {
        CHECK(write_row(both, step % 200, false) == FL_OK);
        CHECK(!ft_column_layout_in_doubt(both->column));
    }
    check_all(both, both->column);
    pair_free(both);
    /* Rows that are coded again are no new reason, and those that follow never are. */
    both = pair_new(&schema, 100, 100, 14);
    memset(both->now, 1, 2 * both->obs_bytes);
    for (size_t step = 0; step < 99; step++) {
        for (size_t i = 0; i < 2; i++) {
            uint8_t *obs = both->now + i * both->obs_bytes;
            memmove(obs, obs + 100, 300);
            obs[300 + below(&both->chance, 100)] ^= 1;
        }
        ft_part part = lay(both, 0, both->now, 2);
        CHECK(ft_column_stage(both->column, step, &part, 1, &both->codecs) == FL_OK);
        ft_column_commit(both->column);
    }
    ft_column_set_patience(both->column, 0);
    for (size_t k = 0; k < 3; k++) {
        CHECK(write_cell(both, k, 0, 0) == FL_OK);
        CHECK(!ft_column_layout_in_doubt(both->column));
    }
    pair_free(both);
}

static void test_gathering(void) {
    static const size_t SIZES[] = {0, 1, 2, 4, 7, 8, 12, 200};
    chance draws = {11};
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
        const size_t size = SIZES[s], n_rows = 50, n = 3;
        uint8_t *data = grab(n_rows * n * size), *out = grab(100 * size);
        for (size_t k = 0; k < n_rows * n * size; k++) {
            data[k] = (uint8_t)draw(&draws);
        }
        for (size_t count = 0; count <= 100; count += 20) {
            int64_t rows[100], streams[100];
            for (size_t k = 0; k < count; k++) {
                rows[k] = (int64_t)below(&draws, n_rows);
                streams[k] = (int64_t)below(&draws, n);
            }
            ft_gather(data, size, n, rows, streams, count, out);
            for (size_t k = 0; k < count; k++) {
                CHECK(memcmp(out + k * size, data + ((size_t)rows[k] * n + (size_t)streams[k]) * size, size) == 0);
            }
        }
        free(data);
        free(out);
    }
}

static void test_sharing(void) {
    const ft_schema native = {LAYOUTS[0].layout, {true, false, 3}, 2, 2}, packed = {LAYOUTS[0].layout, {true, true, 3}, 2, 2};
    pair *both = pair_new(&native, 20, 16, 1);
    CHECK(ft_column_shares(both->column, (size_t)1 << 22) && !ft_column_shares(both->column, 1000));
    pair_free(both);
    both = pair_new(&packed, 20, 16, 1);
    CHECK(!ft_column_shares(both->column, (size_t)1 << 22)); /* codecs are Python's, which lets one thread work at a time */
    pair_free(both);
}

/* What a newer version may write is refused as such; an index that does not fit is found. */
static void test_newer_chunks(void) {
    enum { AT_TRANSFORM = 96, AT_DATA = 120, AT_DATA_SUM = 128, AT_HEADER_SUM = 148, HEADER = 152, AT_CODER = 6 };
    const ft_schema schema = {LAYOUTS[0].layout, METHODS[0], 2, 2};
    int result;
    const char *what;
    pair *both = pair_new(&schema, 16, 16, 5);
    for (size_t k = 0; k < 9; k++) {
        CHECK(write_row(both, k, false) == FL_OK);
    }
    ft_chunk *chunk = ft_column_snapshot(both->column, &result);
    CHECK(chunk != NULL && ft_chunk_verify(chunk) == NULL);
    size_t size, data;
    const uint8_t *bytes = ft_chunk_bytes(chunk, &size);
    uint8_t *copy = grab(size);
    memcpy(copy, bytes, size);
    data = copy[AT_DATA] | (size_t)copy[AT_DATA + 1] << 8 | (size_t)copy[AT_DATA + 2] << 16;
    copy[AT_TRANSFORM] = 1;
    uint32_t sum = ft_checksum(copy, AT_HEADER_SUM);
    memcpy(copy + AT_HEADER_SUM, &sum, 4); /* tests run on little-endian processors */
    CHECK(ft_chunk_open(copy, size, keep_bytes, NULL, &result, &what) == NULL && strstr(what, "transformed") != NULL);
    copy[AT_TRANSFORM] = 0;
    copy[HEADER + AT_CODER] = 77;
    sum = ft_checksum(copy + HEADER, data + FL_READ_AHEAD);
    memcpy(copy + AT_DATA_SUM, &sum, 4);
    sum = ft_checksum(copy, AT_HEADER_SUM);
    memcpy(copy + AT_HEADER_SUM, &sum, 4);
    ft_chunk *other = ft_chunk_open(copy, size, keep_bytes, NULL, &result, &what);
    CHECK(other != NULL && strstr(ft_chunk_verify(other), "coder") != NULL);
    ft_chunk_drop(other);
    free(copy);
    ft_chunk_drop(chunk);
    pair_free(both);
}

static void test_checksums(void) {
    ft_checksum_init();
    CHECK(ft_checksum((const uint8_t *)"123456789", 9) == UINT32_C(0xE3069283)); /* the value that CRC-32C is known by */
    chance draws = {7};
    uint8_t bytes[300];
    for (size_t k = 0; k < 2000; k++) {
        const size_t first = below(&draws, 20), size = below(&draws, sizeof bytes - first);
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)draw(&draws);
        }
        CHECK(ft_checksum(bytes + first, size) == ft_checksum_plain(bytes + first, size));
    }
}

void test_columns(void) {
    test_checksums();
    test_gathering();
    test_sharing();
    test_doubts();
    test_newer_chunks();
    for (size_t layout = 0; layout < N_LAYOUTS; layout++) {
        for (size_t method = 0; method < N_METHODS; method++) {
            for (uint64_t seed = 0; seed < 4; seed++) {
                const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 1 + seed % 3, 1 + seed % 2};
                const uint64_t own = 1000 * layout + 100 * method + seed;
                test_rings(&schema, own);
                test_completion(&schema, own);
                test_any_order(&schema, own);
                test_failing_rows(&schema, own);
            }
            const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 2, 2};
            test_damage(&schema, layout + method);
        }
    }
}
