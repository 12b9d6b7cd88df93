/* Columns against plain arrays: rings, single cells, any order, both memory orders, other layouts. */
#include "test_core.h"

static void test_rings(const ft_schema *schema, uint64_t seed) {
    static const size_t ROWS[] = {1, 3, 16, 40, 64, 100}, CHUNKS[] = {1, 16, 32, 48};
    chance draws = {seed};
    pair *both = pair_new(schema, ROWS[below(&draws, 6)], CHUNKS[below(&draws, 4)], seed);
    check_all(both, both->column);
    for (size_t k = 0; k < 2 * both->rows + 7; k++) {
        CHECK(write_row(both, both->next_row, one_in(&draws, 4)) == FT_OK);
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
    const ft_usage cleared = ft_column_get_usage(both->column);
    CHECK(cleared.frames == 0 && cleared.frame_bytes == 0 && cleared.cells == 0);
    check_all(both, both->column);
    CHECK(write_row(both, 0, false) == FT_OK);
    check_all(both, both->column);
    pair_free(both);
}

/* A ring that is complete has no open chunk, unless memory for that is refused; then it is read, and goes on, as it is. */
static void test_completion(const ft_schema *schema, uint64_t seed) {
    chance draws = {seed};
    pair *both = pair_new(schema, 1 + below(&draws, 70), 16 + below(&draws, 30), seed);
    for (size_t lap = 0; lap < 4; lap++) {
        const bool refuses = lap == 2;
        for (size_t row = 0; row + 1 < both->rows; row++) {
            CHECK(write_row(both, row, false) == FT_OK);
        }
        ft_part parts[FT_MAX_VIEWS];
        for (size_t view = 0; view < schema->views; view++) {
            parts[view] = lay(both, view, both->now, schema->n_streams);
            const size_t cells = (both->rows - 1) * schema->n_streams;
            memcpy(both->plain[view] + cells * both->obs_bytes, both->now, schema->n_streams * both->obs_bytes);
            memset(both->written[view] + cells, 1, schema->n_streams);
        }
        CHECK(ft_column_stage(both->column, both->rows - 1, parts, schema->views, &both->codecs) == FT_OK);
        ft_refuse_allocation(refuses ? (int64_t)(seed % 2) : -1);
        ft_column_commit(both->column);
        ft_refuse_allocation(-1);
        check_all(both, both->column);
        ft_chunk *open, *last = NULL;
        CHECK(ft_column_snapshot(both->column, &open) == FT_OK && (open != NULL) == refuses);
        ft_chunk_drop(open);
        uint64_t bytes = 0;
        for (size_t row = 0; row < both->rows; row++) {
            ft_chunk *chunk = chunk_at(both->column, row);
            CHECK(chunk != NULL || refuses);
            if (chunk != NULL && chunk != last) {
                bytes += ft_chunk_get_info(chunk).size;
            }
            last = chunk;
        }
        /* Beside sealed chunks there is nothing but lists of some entries a stream. */
        CHECK(refuses || ft_column_get_usage(both->column).held_bytes < bytes + (schema->n_streams + 1) * 8192);
        if (lap % 2 == 1) { /* as a rollout is */
            ft_column_clear(both->column);
            for (size_t view = 0; view < schema->views; view++) {
                memset(both->plain[view], 0, both->rows * schema->n_streams * both->obs_bytes);
                memset(both->written[view], 0, both->rows * schema->n_streams);
            }
            CHECK(ft_column_get_usage(both->column).held_bytes < (schema->n_streams + 1) * 8192);
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
            CHECK(write_cell(both, row, below(&draws, schema->n_streams), below(&draws, schema->views)) == FT_OK);
        } else if (one_in(&draws, 2)) {
            CHECK(write_row(both, row, one_in(&draws, 4)) == FT_OK);
        } else {
            for (size_t m = below(&draws, 20); m > 0; m--) {
                CHECK(write_row(both, both->next_row, false) == FT_OK);
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

/* Spans are sorted, disjoint, within the ring and their chunks, and no more than there may be. */
static size_t check_spans(const ft_column *column, size_t rows, size_t chunk_rows) {
    size_t count;
    const ft_span *spans = ft_column_get_spans(column, &count);
    uint64_t stop = 0;
    for (size_t k = 0; k < count; k++) {
        CHECK(spans[k].rows > 0 && spans[k].first_row >= stop);
        CHECK(spans[k].chunk_row + spans[k].rows <= ft_chunk_get_info(spans[k].chunk).rows);
        stop = spans[k].first_row + spans[k].rows;
    }
    CHECK(stop <= rows && count <= 2 * (rows / chunk_rows) + 64 + 4);
    return count;
}

/* Rows anywhere, each of which begins a chunk: the shortest ones become longer ones, and hold the same. */
static void test_many_jumps(const ft_schema *schema, uint64_t seed) {
    enum { ROWS = 400, CHUNK_ROWS = 64 };
    chance draws = {seed};
    pair *both = pair_new(schema, ROWS, CHUNK_ROWS, seed);
    size_t most = 0;
    for (size_t k = 0; k < 300; k++) {
        const size_t row = below(&draws, ROWS), rows = one_in(&draws, 30) ? below(&draws, 100) : 1 + below(&draws, 3);
        CHECK(write_row(both, row, one_in(&draws, 4)) == FT_OK);
        for (size_t m = 1; m < rows; m++) {
            CHECK(write_row(both, both->next_row, false) == FT_OK);
        }
        const size_t count = check_spans(both->column, ROWS, CHUNK_ROWS);
        most = count > most ? count : most;
        if (one_in(&draws, 40)) {
            check_all(both, both->column);
        }
    }
    CHECK(most > 64);
    check_all(both, both->column);
    send_chunks(both);
    pair_free(both);
}

/* After a reset, rows are written from the first one on. All others stay until it is their turn, and none is coded again. */
static void test_reset(const ft_schema *schema, uint64_t seed) {
    enum { ROWS = 300, CHUNK_ROWS = 100 };
    for (size_t before = 20; before < 700; before += 170) {
        pair *both = pair_new(schema, ROWS, CHUNK_ROWS, seed + before);
        for (size_t k = 0; k < before; k++) {
            CHECK(write_row(both, both->next_row, false) == FT_OK);
        }
        for (size_t row = 0; row < ROWS + 50; row++) {
            CHECK(write_row(both, row % ROWS, false) == FT_OK);
            if (row % 37 == 0) {
                check_all(both, both->column);
            }
        }
        CHECK(check_spans(both->column, ROWS, CHUNK_ROWS) <= 6);
        check_all(both, both->column);
        pair_free(both);
    }
}

/* One chunk may be in several columns, and in several places of one. */
static void test_shared_chunks(void) {
    const ft_schema schema = {LAYOUTS[0].layout, METHODS[0], 2, 2};
    pair *both = pair_new(&schema, 40, 40, 5);
    for (size_t row = 0; row < 40; row++) {
        CHECK(write_row(both, row, false) == FT_OK);
    }
    ft_chunk *chunk = chunk_at(both->column, 0);
    ft_column *other;
    CHECK(ft_column_new(&schema, 100, 16, &other) == FT_OK);
    CHECK(ft_column_adopt(other, chunk, 0, 50, 40) == FT_OK && ft_column_adopt(other, chunk, 7, 3, 20) == FT_OK);
    CHECK(ft_column_adopt(other, chunk, 30, 60, 5) == FT_OK); /* in the middle of the first one */
    size_t count;
    const ft_span *spans = ft_column_get_spans(other, &count);
    CHECK(count == 4 && check_spans(other, 100, 16) == 4);
    CHECK(spans[1].rows == 10 && spans[3].first_row == 65 && spans[3].chunk_row == 15 && spans[3].rows == 25);
    const ft_usage one = ft_column_get_usage(both->column), two = ft_column_get_usage(other);
    CHECK(one.frames == two.frames && two.cells == 60 * 2 * 2);
    CHECK(ft_column_adopt(other, chunk, 0, 61, 40) == FT_INVALID && ft_column_adopt(other, chunk, 1, 0, 40) == FT_INVALID);
    CHECK(ft_column_adopt(other, chunk, 0, 0, 0) == FT_INVALID && ft_column_adopt(other, chunk, UINT64_MAX, 0, 1) == FT_INVALID);
    CHECK(ft_column_adopt(other, chunk, 0, UINT64_MAX, 2) == FT_INVALID);
    uint8_t *outs[FT_MAX_VIEWS] = {grab(both->obs_bytes), grab(both->obs_bytes)};
    for (int64_t row = 0; row < 100; row++) {
        const int64_t from = row >= 60 && row < 65 ? row - 30 : row >= 50 && row < 90 ? row - 50 : row >= 3 && row < 23 ? row + 4 : -1;
        const int64_t stream = row % 2;
        ft_read *read;
        CHECK(ft_read_begin(other, &row, &stream, 1, outs, &both->codecs, &read) == FT_OK);
        CHECK(ft_read_run(read, 1, &both->codecs) == FT_OK);
        ft_read_end(read);
        for (size_t i = 0; i < both->obs_bytes; i++) {
            CHECK(outs[1][i] == (from < 0 ? 0 : both->plain[1][(size_t)(from * 2 + stream) * both->obs_bytes + i]));
        }
    }
    free(outs[0]);
    free(outs[1]);
    ft_column_free(other);
    check_all(both, both->column);
    pair_free(both);
}

/* Rows from row 0 on, wherever the last lap has ended: another lap, in which a chunk is coded once. */
static void test_beginning_again(const ft_schema *schema, uint64_t seed) {
    chance draws = {seed};
    pair *both = pair_new(schema, 30 + below(&draws, 120), 16 + below(&draws, 30), seed);
    for (size_t k = 0; k < 8; k++) {
        for (size_t m = 1 + below(&draws, k % 2 ? 20 : 2 * both->rows); m > 0; m--) {
            CHECK(write_row(both, both->next_row, false) == FT_OK);
        }
        if (one_in(&draws, 3)) {
            CHECK(write_cell(both, below(&draws, both->rows), below(&draws, schema->n_streams), below(&draws, schema->views)) == FT_OK);
        }
        if (one_in(&draws, 4)) { /* one view of a row is there, the other one of the lap before */
            CHECK(write_view(both, both->next_row, 0) == FT_OK);
        }
        CHECK(write_row(both, 0, one_in(&draws, 2)) == FT_OK);
        check_all(both, both->column);
        send_chunks(both);
    }
    pair_free(both);
}

/* Observations that are no stacks, though they look like some: the layout is doubted, and another one takes over. */
static void test_doubts(void) {
    const ft_layout stack = {1, 1, 4, 100, 1, 10, true, false, 0}, whole = {1, 1, 1, 400, 4, 10, true, false, 0};
    const ft_schema schema = {stack, METHODS[0], 2, 1};
    pair *both = pair_new(&schema, 200, 64, 13);
    ft_column_set_patience(both->column, 1000);
    size_t doubted = 0;
    for (size_t step = 0; step < 100 && doubted == 0; step++) {
        for (size_t i = 0; i < 2 * both->obs_bytes; i++) {
            both->now[i] = (uint8_t)draw(&both->chance);
        }
        CHECK(write_row(both, step, true) == FT_OK);
        if (step == 50) {
            CHECK(!ft_column_doubts_layout(both->column)); /* who is patient does not doubt */
            ft_column_set_patience(both->column, 16);
        }
        doubted = ft_column_doubts_layout(both->column) ? step : 0;
    }
    CHECK(doubted > 0 && doubted < 70); /* at the latest when a chunk has just begun */
    CHECK(ft_column_set_layout(both->column, &whole, &both->codecs) == FT_OK && !ft_column_doubts_layout(both->column));
    both->schema.layout = whole;
    check_all(both, both->column);
    for (size_t step = 0; step < 300; step++) {
        CHECK(write_row(both, step % 200, false) == FT_OK);
        CHECK(!ft_column_doubts_layout(both->column));
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
        CHECK(ft_column_stage(both->column, step, &part, 1, &both->codecs) == FT_OK);
        ft_column_commit(both->column);
    }
    ft_column_set_patience(both->column, 0);
    for (size_t k = 0; k < 3; k++) {
        CHECK(write_cell(both, k, 0, 0) == FT_OK);
        CHECK(!ft_column_doubts_layout(both->column));
    }
    pair_free(both);
}

/* A ring of stacks whose views are written one after the other, so that rows of the last lap are copied, is never doubted. */
static void test_views_apart(const ft_method *method) {
    const ft_schema schema = {{1, 1, 4, 100, 1, 10, true, false, 0}, *method, 2, 2};
    pair *both = pair_new(&schema, 40, 16, 16);
    uint64_t frames = 0;
    for (size_t step = 0; step < 160; step++) {
        for (size_t view = 0; view < 2; view++) {
            for (size_t i = 0; view == 1 && i < 2; i++) {
                uint8_t *obs = both->now + i * both->obs_bytes;
                memmove(obs, obs + 100, 300);
                obs[300 + below(&both->chance, 100)] ^= (uint8_t)(1 + step % 250);
            }
            const ft_part part = lay(both, view, both->now, 2);
            CHECK(ft_column_stage(both->column, step % 40, &part, 1, &both->codecs) == FT_OK);
            ft_column_commit(both->column);
            memcpy(both->plain[view] + step % 40 * 2 * both->obs_bytes, both->now, 2 * both->obs_bytes);
            memset(both->written[view] + step % 40 * 2, 1, 2);
            ft_column_set_patience(both->column, 0);
            CHECK(!ft_column_doubts_layout(both->column));
        }
        frames = step == 79 ? ft_column_get_usage(both->column).frames : frames;
    }
    CHECK(ft_column_get_usage(both->column).frames <= frames + frames / 8);
    check_all(both, both->column);
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
            ft_gather_cells(data, size, n, rows, streams, count, out);
            for (size_t k = 0; k < count; k++) {
                CHECK(memcmp(out + k * size, data + ((size_t)rows[k] * n + (size_t)streams[k]) * size, size) == 0);
            }
            for (size_t piece_rows = 1; piece_rows <= 64; piece_rows *= 4) { /* each piece as large as it is, wherever that is */
                uint8_t *pieces[50];
                const size_t n_pieces = (n_rows + piece_rows - 1) / piece_rows;
                for (size_t p = 0; p < n_pieces; p++) {
                    const size_t first = p * piece_rows, left = n_rows - first;
                    const size_t bytes = (left < piece_rows ? left : piece_rows) * n * size;
                    pieces[p] = grab(bytes);
                    memcpy(pieces[p], data + first * n * size, bytes);
                }
                uint8_t *other = grab(100 * size);
                ft_gather_pieces((const uint8_t *const *)pieces, piece_rows, size, n, rows, streams, count, other);
                CHECK(memcmp(out, other, count * size) == 0);
                free(other);
                for (size_t p = 0; p < n_pieces; p++) {
                    free(pieces[p]);
                }
            }
        }
        free(data);
        free(out);
    }
}

static void test_sharing(void) {
    const ft_schema native = {LAYOUTS[0].layout, {true, false, 3}, 2, 2}, packed = {LAYOUTS[0].layout, {true, true, 3}, 2, 2};
    pair *both = pair_new(&native, 20, 16, 1);
    CHECK(ft_column_can_share(both->column, (size_t)1 << 22) && !ft_column_can_share(both->column, 1000));
    pair_free(both);
    both = pair_new(&packed, 20, 16, 1);
    CHECK(!ft_column_can_share(both->column, (size_t)1 << 22)); /* codecs are Python's, which lets one thread work at a time */
    pair_free(both);
}

/* A ring stays as large as it is over its laps, and is read by two threads, ahead of what is in no cache. */
static void test_large_ring(const ft_method *method) {
    const ft_schema schema = {{1, 1, 2, 4096, 1, 64, true, false, 0}, *method, 2, 2};
    pair *both = pair_new(&schema, 400, 64, 12);
    uint64_t held = 0;
    for (size_t step = 0; step < 1400; step++) {
        for (size_t i = 0; i < both->obs_bytes; i += 16) {
            both->now[i] ^= (uint8_t)draw(&both->chance);
        }
        CHECK(write_row(both, step % 400, false) == FT_OK);
        held = step == 600 ? ft_column_get_usage(both->column).held_bytes : held;
    }
    CHECK(held > (uint64_t)1 << 20 && ft_column_get_usage(both->column).held_bytes < held + held / 8);
    check_all(both, both->column);
    pair_free(both);
}

/* Sizes that make no sense, and places that are not there, are refused, and change nothing. */
static void test_refusals(void) {
    enum { BAD = 11 };
    const ft_layout good = LAYOUTS[0].layout;
    const ft_method methods[] = {{true, false, 8}, {false, true, 0}, {false, false, 1}};
    ft_layout bad[BAD];
    ft_column *column;
    for (size_t i = 0; i < BAD; i++) {
        bad[i] = good;
    }
    bad[0].depth = 0;
    bad[1].depth = FT_MAX_DEPTH + 1;
    bad[2].part = 0;
    bad[3].part = SIZE_MAX / 2;
    bad[4].planes = 5; /* does not divide a frame */
    bad[5].outer = 3;  /* cannot be turned */
    bad[6].row = 132;
    bad[7].item = 0;
    bad[8].planes = SIZE_MAX / 2 + 1;
    bad[8].item = 2;
    bad[9].item = SIZE_MAX;
    bad[10].part = (size_t)1 << 29;
    for (size_t i = 0; i < BAD; i++) {
        const ft_schema schema = {bad[i], METHODS[0], 1, 1};
        CHECK(ft_column_new(&schema, 20, 16, &column) == FT_INVALID && column == NULL);
    }
    for (size_t i = 0; i < 3; i++) {
        const ft_schema schema = {good, methods[i], 1, 1};
        CHECK(ft_column_new(&schema, 20, 16, &column) == FT_INVALID);
    }
    const ft_schema schema = {good, METHODS[0], 2, 2}, none = {good, METHODS[0], 0, 1}, many = {good, METHODS[0], SIZE_MAX, 1};
    const ft_schema views = {good, METHODS[0], 1, FT_MAX_VIEWS + 1};
    CHECK(ft_column_new(&none, 20, 16, &column) == FT_INVALID && ft_column_new(&many, 20, 16, &column) == FT_INVALID);
    CHECK(ft_column_new(&views, 20, 16, &column) == FT_INVALID && ft_column_new(&schema, 0, 16, &column) == FT_INVALID);
    CHECK(ft_column_new(&schema, SIZE_MAX, 16, &column) == FT_INVALID);

    pair *both = pair_new(&schema, 5, 16, 15);
    for (size_t row = 0; row < 5; row++) {
        CHECK(write_row(both, row, false) == FT_OK);
    }
    const size_t third = 2;
    const ft_part part = {0, both->now, false, NULL, 2}, outside = {0, both->now, false, &third, 1};
    const ft_part view = {2, both->now, false, NULL, 2};
    const ft_part twice[] = {part, part};
    CHECK(ft_column_stage(both->column, 5, &part, 1, &both->codecs) == FT_OUTSIDE);
    CHECK(ft_column_stage(both->column, UINT64_MAX, &part, 1, &both->codecs) == FT_OUTSIDE);
    CHECK(ft_column_stage(both->column, 0, &outside, 1, &both->codecs) == FT_OUTSIDE);
    CHECK(ft_column_stage(both->column, 0, &view, 1, &both->codecs) == FT_INVALID);
    CHECK(ft_column_stage(both->column, 0, twice, 2, &both->codecs) == FT_INVALID);
    ft_column_abort(both->column);
    const int64_t places[][2] = {{0, 2}, {0, -1}, {5, 0}, {-1, 0}, {INT64_MAX, 1}, {INT64_MIN, 0}, {0, INT64_MAX}};
    uint8_t *outs[FT_MAX_VIEWS] = {both->lying, NULL};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ft_read *read;
        CHECK(ft_read_begin(both->column, &places[i][0], &places[i][1], 1, outs, &both->codecs, &read) == FT_OUTSIDE && read == NULL);
    }
    const ft_layout larger = {1, 1, 4, 144, 1, 12, true, false, 0};
    CHECK(ft_column_set_layout(both->column, &larger, &both->codecs) == FT_INVALID);
    CHECK(chunk_at(both->column, 5) == NULL);
    check_all(both, both->column);
    pair_free(both);
}

void test_columns(void) {
    test_refusals();
    for (size_t method = 0; method < 3; method++) {
        test_large_ring(&METHODS[method]);
        test_views_apart(&METHODS[method]);
    }
    test_gathering();
    test_sharing();
    test_shared_chunks();
    test_doubts();
    for (size_t layout = 0; layout < N_LAYOUTS; layout++) {
        for (size_t method = 0; method < N_METHODS; method++) {
            for (uint64_t seed = 0; seed < 4; seed++) {
                const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 1 + seed % 3, 1 + seed % 2};
                const uint64_t own = 1000 * layout + 100 * method + seed;
                test_rings(&schema, own);
                test_completion(&schema, own);
                test_any_order(&schema, own);
                if (seed == (layout + method) % 4) {
                    test_many_jumps(&schema, own);
                    test_reset(&schema, own);
                }
                test_beginning_again(&schema, own);
            }
        }
    }
}
