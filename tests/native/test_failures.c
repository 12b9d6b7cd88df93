/* Whatever fails on the way, memory or a codec, what was committed stays, and the column goes on. */
#include "test_core.h"

/* Codecs and allocations that fail leave everything as it was. */
static void test_failing_rows(const ft_schema *schema, uint64_t seed) {
    chance draws = {seed};
    pair *both = pair_new(schema, 40, 16, seed);
    size_t failed = 0;
    for (size_t k = 0; k < 150; k++) {
        const bool codec = one_in(&draws, 2);
        both->codec.fail_after = codec ? (int64_t)below(&draws, 6) : -1;
        ft_refuse_allocation(codec ? -1 : (int64_t)below(&draws, 6));
        const size_t row = one_in(&draws, 10) ? below(&draws, both->rows) : both->next_row;
        const int result = write_row(both, row, false);
        ft_refuse_allocation(-1);
        both->codec.fail_after = -1;
        CHECK(result == FT_OK || result == FT_CODEC || result == FT_NO_MEMORY);
        failed += result != FT_OK;
        if (result != FT_OK || one_in(&draws, 8)) {
            check_all(both, both->column);
        }
    }
    CHECK(failed > 0);
    /* What fails again and again takes no more memory. */
    if (!schema->method.references) {
        const ft_usage before = ft_column_get_usage(both->column);
        for (size_t k = 0; k < 50; k++) {
            both->codec.fail_after = 0;
            const int result = write_row(both, both->next_row, false);
            CHECK(result == FT_CODEC || result == FT_OK);
            if (result == FT_OK) {
                break; /* nothing in it had to be coded */
            }
            CHECK(ft_column_get_usage(both->column).frame_bytes == before.frame_bytes);
        }
    }
    both->codec.fail_after = -1;
    check_all(both, both->column);
    pair_free(both);
}

/* -- one change after the other, in trouble at every allocation, or at every call of a codec ------------------------------ */

typedef enum trouble { MEMORY_IS_REFUSED, CODEC_FAILS, CODEC_NEVER_RETURNS, N_TROUBLES } trouble;

/* Something that is done to a column. */
typedef struct change {
    int (*make)(pair *both, const struct change *what);
    size_t row, view;
    ft_column *other;
    const ft_chunk *chunk;
    ft_layout layout;
} change;

static int make_row(pair *both, const change *what) { return write_row(both, what->row, false); }

static int make_cell(pair *both, const change *what) { return write_cell(both, what->row, 0, both->schema.views - 1); }

static int make_view(pair *both, const change *what) { return write_view(both, what->row, what->view); }

static int make_layout(pair *both, const change *what) { return ft_column_set_layout(both->column, &what->layout, &both->codecs); }

static int make_adopted_row(pair *both, const change *what) {
    const ft_chunk_info of = ft_chunk_get_info(what->chunk);
    return ft_column_adopt_row(what->other, what->chunk, of.rows - 1, of.first_row + of.rows - 1, &both->codecs);
}

static int make_read(pair *both, const change *what) {
    uint8_t *outs[FT_MAX_VIEWS] = {both->next, NULL};
    const int64_t row = (int64_t)what->row, stream = 0;
    ft_read *read;
    int result = ft_read_begin(both->column, &row, &stream, 1, outs, &both->codecs, &read);
    if (result == FT_OK) {
        result = ft_read_run(read, 2, &both->codecs);
        ft_read_end(read);
    }
    return result;
}

/* Make a change, with trouble after so many allocations or calls; whether there was any. */
static bool is_troubled(pair *both, const change *what, trouble kind, int64_t after) {
    jmp_buf left;
    both->codec.leave_to = kind == CODEC_NEVER_RETURNS ? &left : NULL;
    both->codec.fail_after = kind == MEMORY_IS_REFUSED ? -1 : after;
    ft_refuse_allocation(kind == MEMORY_IS_REFUSED ? after : -1);
    volatile int result = FT_CODEC;
    if (setjmp(left) == 0) {
        result = what->make(both, what);
    }
    if (both->codec.leave_to != NULL && result != FT_OK) {
        ft_column_abort(both->column);
        if (what->other != NULL) {
            ft_column_abort(what->other);
        }
    }
    both->codec.leave_to = NULL;
    both->codec.fail_after = -1;
    ft_refuse_allocation(-1);
    CHECK(result == FT_OK || result == (kind == MEMORY_IS_REFUSED ? FT_NO_MEMORY : FT_CODEC));
    return result != FT_OK;
}

static size_t make_with_trouble(pair *both, const change *what, trouble kind) {
    size_t troubles = 0;
    for (int64_t after = 0; is_troubled(both, what, kind, after); after += 1 + after / 8) {
        check_all(both, both->column);
        CHECK(++troubles < 1000);
    }
    return troubles;
}

static size_t make_rows(pair *both, size_t first, size_t stop, trouble kind) {
    size_t troubles = 0;
    for (size_t row = first; row < stop; row++) {
        const change what = {.make = make_row, .row = row % both->rows};
        troubles += make_with_trouble(both, &what, kind);
    }
    return troubles;
}

/* Have another column adopt all but the last row, and go on with that. */
static void test_loading(pair *both, trouble kind) {
    size_t count;
    const ft_span *spans = ft_column_get_spans(both->column, &count);
    ft_column *other;
    ft_chunk *open;
    CHECK(ft_column_new(&both->schema, both->rows, 16, &other) == FT_OK && ft_column_snapshot(both->column, &open) == FT_OK);
    const ft_chunk_info of = ft_chunk_get_info(open);
    const bool refuses = kind == MEMORY_IS_REFUSED;
    for (size_t k = 0; k < count; k++) {
        const uint64_t row = spans[k].first_row, chunk_row = spans[k].chunk_row, rows = spans[k].rows;
        ft_refuse_allocation(refuses ? 0 : -1);
        const int result = ft_column_adopt(other, spans[k].chunk, chunk_row, row, rows);
        ft_refuse_allocation(-1);
        CHECK(result == FT_OK || (refuses && result == FT_NO_MEMORY));
        CHECK(result == FT_OK || ft_column_adopt(other, spans[k].chunk, chunk_row, row, rows) == FT_OK);
    }
    CHECK(of.rows == 1 || ft_column_adopt(other, open, 0, of.first_row, of.rows - 1) == FT_OK);
    const change what = {.make = make_adopted_row, .other = other, .chunk = open};
    make_with_trouble(both, &what, kind);
    check_all(both, other);
    ft_chunk_drop(open);
    ft_column_free(other);
}

/* Rows of a second lap whose views are written one after the other, or only one of them, and whatever may come in between. */
static size_t make_views_apart(pair *both, size_t first, size_t stop, trouble kind) {
    const ft_layout layout = both->schema.layout, whole = {layout.item, 1, 1, both->obs_bytes, 1, 0, false, false, 0};
    const change to_whole = {.make = make_layout, .layout = whole}, back = {.make = make_layout, .layout = layout};
    size_t troubles = 0;
    for (size_t row = first; row < stop; row++) {
        const size_t view = row % 4 == 0;
        const change part = {.make = make_view, .row = row, .view = view}, rest = {.make = make_view, .row = row, .view = !view};
        const change cell = {.make = make_cell, .row = row}, read = {.make = make_read, .row = row};
        troubles += make_with_trouble(both, &part, kind);
        check_all(both, both->column);
        if (kind != CODEC_NEVER_RETURNS) {
            make_with_trouble(both, &read, kind);
        }
        if (row % 7 == 2) {
            troubles += make_with_trouble(both, &to_whole, kind) + make_with_trouble(both, &back, kind);
        } else if (row % 7 == 4) { /* some streams of what is missing */
            troubles += make_with_trouble(both, &cell, kind);
        } else if (row % 7 == 6) { /* another row */
            troubles += make_rows(both, row - 9, row - 8, kind);
        }
        check_all(both, both->column);
        if (row % 5 != 1) { /* else never: row 31, for one, is the last of its block */
            troubles += make_with_trouble(both, &rest, kind);
        }
    }
    return troubles;
}

static void test_troubles(const ft_schema *schema, trouble kind, uint64_t seed) {
    pair *both = pair_new(schema, 56, 16, seed);
    size_t troubles = make_rows(both, 0, 26, kind); /* a chunk is sealed on the way */
    static const size_t AGAIN[] = {3, 20, 25, 47};  /* sealed, open, the last one, and one in another block further on */
    for (size_t k = 0; k < sizeof AGAIN / sizeof *AGAIN; k++) {
        if (AGAIN[k] == 47) {
            test_loading(both, kind);
        }
        troubles += make_rows(both, AGAIN[k], AGAIN[k] + 1, kind);
    }
    const ft_layout whole = {schema->layout.item, 1, 1, both->obs_bytes, 1, 0, false, false, 0};
    const change to_whole = {.make = make_layout, .layout = whole}, back = {.make = make_layout, .layout = schema->layout};
    troubles += make_with_trouble(both, &to_whole, kind);
    both->schema.layout = whole;
    troubles += make_rows(both, 48, 51, kind);
    troubles += make_with_trouble(both, &back, kind);
    both->schema.layout = schema->layout;
    troubles += make_rows(both, 51, 58, kind); /* the ring is complete on the way */
    const change part = {.make = make_cell, .row = 2}, read = {.make = make_read, .row = 4}, read_open = {.make = make_read, .row = 1};
    troubles += make_with_trouble(both, &part, kind); /* the rest of that row stays as it was in the last lap */
    if (kind != CODEC_NEVER_RETURNS) { /* a read that is given up is never ended */
        make_with_trouble(both, &read, kind);
        make_with_trouble(both, &read_open, kind);
    }
    troubles += make_rows(both, 3, 20, kind);
    if (schema->views == 2) {
        troubles += make_views_apart(both, 20, 36, kind);
    }
    check_all(both, both->column);
    CHECK(troubles > 5 || (schema->method.references && kind != MEMORY_IS_REFUSED));
    pair_free(both);
}

/* What cannot be made, or opened, for want of memory. */
static void test_making(const ft_schema *schema) {
    int result = FT_NO_MEMORY;
    pair *both = pair_new(schema, 20, 16, 3);
    for (size_t row = 0; row < 9; row++) {
        CHECK(write_row(both, row, false) == FT_OK);
    }
    for (int64_t after = 0; result != FT_OK; after++) {
        ft_column *column;
        ft_refuse_allocation(after);
        result = ft_column_new(schema, 20, 16, &column);
        CHECK((column != NULL) == (result == FT_OK) && (result == FT_OK || (result == FT_NO_MEMORY && ft_get_refused_bytes() > 0)));
        ft_column_free(column);
    }
    result = FT_NO_MEMORY;
    for (int64_t after = 0; result != FT_OK; after++) {
        ft_chunk *chunk, *other;
        const char *what;
        ft_refuse_allocation(after);
        result = ft_column_snapshot(both->column, &chunk);
        CHECK((chunk != NULL) == (result == FT_OK) && (result == FT_OK || result == FT_NO_MEMORY));
        if (chunk != NULL) {
            const ft_chunk_info of = ft_chunk_get_info(chunk);
            ft_refuse_allocation(0);
            CHECK(ft_chunk_open(of.bytes, of.size, keep_bytes, NULL, &other, &what) == FT_NO_MEMORY && other == NULL && what == NULL);
        }
        ft_chunk_drop(chunk);
    }
    ft_refuse_allocation(-1);
    check_all(both, both->column);
    pair_free(both);
}

void test_failures(void) {
    static const size_t layouts[] = {0, 2, 4, 7, 10};
    for (size_t layout = 0; layout < N_LAYOUTS; layout++) {
        for (size_t method = 0; method < N_METHODS; method++) {
            for (uint64_t seed = 0; seed < 4; seed++) {
                const ft_schema schema = {LAYOUTS[layout].layout, METHODS[method], 1 + seed % 3, 1 + seed % 2};
                test_failing_rows(&schema, 1000 * layout + 100 * method + seed);
            }
        }
    }
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        for (size_t method = 0; method < N_METHODS; method++) {
            const ft_schema schema = {LAYOUTS[layouts[k]].layout, METHODS[method], 2, 1 + (k + method) % 2};
            test_making(&schema);
            for (trouble kind = 0; kind < N_TROUBLES; kind++) {
                test_troubles(&schema, kind, 10 * k + method);
            }
        }
    }
}
