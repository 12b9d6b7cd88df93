/* Rows whose two views are written one after the other, lap after lap: nothing of the last lap is lost, or copied in vain. */
#include "test_core.h"

enum { CHUNK_ROWS = 48 };

/* Save the column and go on with what is loaded. */
static void save_and_load(pair *both) {
    size_t sent = 0, dropped = 0;
    ft_column *other = load_column(both, CHUNK_ROWS, &sent, &dropped);
    check_all(both, other);
    /* It goes on as the first one does. */
    ft_column *first = both->column;
    both->column = other;
    pair before = *both;
    for (size_t view = 0; view < 2; view++) {
        const size_t bytes = both->rows * both->schema.n_streams * both->obs_bytes;
        both->plain[view] = memcpy(grab(bytes), before.plain[view], bytes);
        both->written[view] = memcpy(grab(both->rows * both->schema.n_streams), before.written[view],
                                     both->rows * both->schema.n_streams);
    }
    const size_t last = (both->next_row + both->rows - 1) % both->rows;
    for (size_t k = 0; k < 5; k++) {
        CHECK(write_view(both, (last + k) % both->rows, (k + before.chance.state) % 2) == FT_OK);
        check_all(both, both->column);
    }
    for (size_t view = 0; view < 2; view++) {
        free(both->plain[view]);
        free(both->written[view]);
        both->plain[view] = before.plain[view];
        both->written[view] = before.written[view];
    }
    both->next_row = before.next_row;
    both->column = first;
    ft_column_free(other);
    CHECK(dropped == sent);
}

/* What may come between the two parts of a row. */
static void interrupt(pair *both, chance *draws, size_t row) {
    const size_t n = both->schema.n_streams;
    const ft_part part = lay(both, below(draws, 2), both->now, n);
    switch (below(draws, 12)) {
    case 0: /* the other one, or the same one again, but taken back */
        CHECK(ft_column_stage(both->column, row, &part, 1, &both->codecs) == FT_OK);
        ft_column_abort(both->column);
        break;
    case 1: /* the next row, but taken back */
        CHECK(ft_column_stage(both->column, (row + 1) % both->rows, &part, 1, &both->codecs) == FT_OK);
        ft_column_abort(both->column);
        break;
    case 2:
        save_and_load(both);
        break;
    case 3:
        CHECK(ft_column_set_layout(both->column, &both->schema.layout, &both->codecs) == FT_OK);
        break;
    case 4:
        CHECK(write_cell(both, row, below(draws, n), below(draws, 2)) == FT_OK);
        break;
    case 5: /* so often that the chunk is coded again */
        for (size_t k = 0, view = below(draws, 2); k < 12; k++) {
            CHECK(write_view(both, row, view) == FT_OK);
        }
        break;
    case 6: /* any other row */
        CHECK(write_view(both, below(draws, both->rows), below(draws, 2)) == FT_OK);
        break;
    default:
        break;
    }
    if (one_in(draws, 3)) {
        check_all(both, both->column);
    }
}

static void test_laps(const ft_schema *schema, uint64_t seed) {
    static const size_t ROWS[] = {1, 3, 16, 37, 64, 70}, CHUNKS[] = {1, 16, 32, CHUNK_ROWS};
    chance draws = {seed};
    pair *both = pair_new(schema, ROWS[below(&draws, 6)], CHUNKS[below(&draws, 4)], seed);
    const bool only_one = one_in(&draws, 4); /* from the second lap on */
    for (size_t k = 0; k < 3 * both->rows + 5; k++) {
        const size_t row = k % both->rows, first = one_in(&draws, 5);
        if (one_in(&draws, 6)) {
            CHECK(write_row(both, row, one_in(&draws, 2)) == FT_OK);
            continue;
        }
        CHECK(write_view(both, row, first) == FT_OK);
        if (one_in(&draws, 2)) {
            interrupt(both, &draws, row);
        }
        if (k < both->rows || !(only_one || one_in(&draws, 8))) {
            CHECK(write_view(both, row, !first) == FT_OK);
        }
        if (one_in(&draws, 10)) {
            check_all(both, both->column);
        }
    }
    check_all(both, both->column);
    save_and_load(both);
    pair_free(both);
}

/* It takes no more frames than if both views were written at once, and the stack is never doubted. */
static void test_costs(const ft_method *method) {
    const ft_schema schema = {{1, 1, 4, 100, 1, 10, true, false, 0}, *method, 2, 2};
    static const size_t ROWS[] = {16, 40, 75};
    for (size_t k = 0; k < 3; k++) {
        pair *apart = pair_new(&schema, ROWS[k], 32, k), *together = pair_new(&schema, ROWS[k], 32, k);
        const size_t bytes = 2 * apart->obs_bytes;
        for (size_t step = 0; step < 4 * ROWS[k]; step++) {
            memcpy(apart->next, apart->now, bytes);
            for (size_t i = 0; i < 2; i++) {
                uint8_t *obs = apart->next + i * apart->obs_bytes;
                memmove(obs, obs + 100, 300);
                obs[300 + below(&apart->chance, 100)] ^= 1;
            }
            const ft_part parts[] = {{0, apart->now, false, NULL, 2}, {1, apart->next, false, NULL, 2}};
            for (size_t view = 0; view < 2; view++) {
                CHECK(ft_column_stage(apart->column, step % ROWS[k], &parts[view], 1, &apart->codecs) == FT_OK);
                ft_column_commit(apart->column);
            }
            CHECK(ft_column_stage(together->column, step % ROWS[k], parts, 2, &together->codecs) == FT_OK);
            ft_column_commit(together->column);
            const ft_usage one = ft_column_get_usage(apart->column), other = ft_column_get_usage(together->column);
            CHECK(one.frames == other.frames && one.cells == other.cells && !ft_column_doubts_layout(apart->column));
            memcpy(apart->now, apart->next, bytes);
        }
        pair_free(apart);
        pair_free(together);
    }
}

void test_apart(void) {
    for (size_t method = 0; method < N_METHODS; method++) {
        test_costs(&METHODS[method]);
        for (size_t layout = 0; layout < N_LAYOUTS; layout++) {
            for (uint64_t seed = 0; seed < 3; seed++) {
                const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 1 + seed % 3, 2};
                test_laps(&schema, 1000 * layout + 100 * method + seed);
            }
        }
    }
}
