/*
 * Chunks: an input is one, whose sums are made right, so that changes get further than that. Whatever is opened can be checked, read,
 * and coded again.
 */
#include "fuzz.h"

#include "../../src/sb3_extra_buffers/_native/chunk.h"

enum { AT_SIZE = 16, AT_ROWS = 40, AT_STREAMS = 44, AT_VIEWS = 48, AT_DEPTH = 64, AT_TABLES = 100, AT_GROUPS = 104, AT_EXCEPTIONS = 108, AT_CLASSES = 112 };
enum { LANE = 12, FOOTER = 16 };
enum { AT_DATA = 120, AT_DATA_SUM = 128, AT_INDEX_SUM = 132, AT_HEADER_SUM = 148, MOST_OBS = 1 << 12, MOST_CELLS = 1 << 10 };
enum { GO_ON_ONE_IN = 8 };

static void keep_bytes(void *context, const uint8_t *bytes, size_t size) {
    (void)context;
    (void)bytes;
    (void)size;
}

static void make_sums_right(uint8_t *bytes, size_t size) {
    if (size < FT_CHUNK_HEADER + FT_READ_AHEAD) {
        return;
    }
    if (size % 8 != 0 && size >= FT_CHUNK_HEADER + FT_READ_AHEAD + FOOTER) { /* have the data be what the rest leaves, mostly */
        const uint64_t blocks = ((uint64_t)get_u32(bytes + AT_ROWS) + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS;
        const uint64_t index = get_u32(bytes + AT_STREAMS) * (LANE + blocks * FT_COUNT_BYTES) +
                               (uint64_t)get_u32(bytes + AT_GROUPS) * FT_GROUP_BYTES +
                               (uint64_t)get_u32(bytes + AT_EXCEPTIONS) * FT_EXCEPTION_BYTES +
                               get_u32(bytes + AT_TABLES) +
                               get_u32(bytes + AT_CLASSES) * (2 + 2 * (uint64_t)get_u32(bytes + AT_VIEWS) * get_u32(bytes + AT_DEPTH));
        put_u64(bytes + AT_SIZE, size);
        put_u64(bytes + AT_DATA, size - FT_CHUNK_HEADER - FT_READ_AHEAD - FOOTER - index);
        put_u64(bytes + size - FOOTER, size);
        memcpy(bytes + size - 8, "SB3XCEND", 8);
    }
    const uint64_t data = get_u64(bytes + AT_DATA), rest = size - FT_CHUNK_HEADER - FT_READ_AHEAD;
    if (data <= rest) {
        put_u32(bytes + AT_DATA_SUM, ft_compute_checksum(bytes + FT_CHUNK_HEADER, (size_t)data + FT_READ_AHEAD));
        put_u32(bytes + AT_INDEX_SUM, ft_compute_checksum(bytes + size - (rest - data), (size_t)(rest - data)));
    }
    put_u32(bytes + AT_HEADER_SUM, ft_compute_checksum(bytes, AT_HEADER_SUM));
}

/* Decode all cells to memory of their exact size. */
static void read_all(const ft_chunk *chunk, const ft_codecs *codecs) {
    const ft_rows *rows = &chunk->rows;
    uint8_t *outputs[FT_MAX_VIEWS] = {grab(rows->obs_bytes), grab(rows->obs_bytes)}, *scratch = grab(ft_measure_scratch(rows));
    const size_t room[FT_MAX_VIEWS] = {0, 0};
    const bool wanted[FT_MAX_VIEWS] = {true, true};
    for (size_t cell = 0; cell < rows->rows * rows->n_streams && cell < MOST_CELLS; cell++) {
        const size_t row = cell / rows->n_streams, i = cell % rows->n_streams;
        for (int step = FT_FETCH_INDEX; step < FT_FETCH_STEPS; step++) {
            ft_fetch_cell(rows, row, i, wanted, step, NULL);
        }
        const int result = ft_decode_cell(rows, row, i, outputs, room, scratch, codecs);
        CHECK(result == FT_OK || result == FT_DAMAGED);
        CHECK(ft_find_written_views(rows, row, i) < 1u << rows->views);
    }
    free(outputs[0]);
    free(outputs[1]);
    free(scratch);
}

/* Have another column take its rows, and go on after one of them. */
static void go_on(ft_chunk *chunk, const ft_codecs *codecs) {
    const ft_rows *rows = &chunk->rows;
    const ft_schema schema = {rows->given, rows->method, rows->n_streams, rows->views};
    ft_column *column;
    if (ft_column_new(&schema, rows->rows, rows->rows, &column) != FT_OK) {
        return;
    }
    CHECK(ft_column_adopt(column, chunk, 0, 0, rows->rows) == FT_OK);
    const int result = ft_column_adopt_row(column, chunk, rows->rows / 2, rows->rows / 3, codecs);
    CHECK(result == FT_OK || result == FT_DAMAGED || result == FT_INVALID);
    CHECK(ft_column_adopt(column, chunk, 1, 0, rows->rows) == FT_INVALID);
    ft_column_free(column);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static run_codec codec;
    static ft_codecs codecs;
    if (codecs.encode == NULL) {
        ft_init();
        codec.fail_after = -1;
        codecs = codecs_of(&codec);
    }
    use_kernels(size % 2 == 0);
    uint8_t *bytes = copy_of(data, size, 0);
    make_sums_right(bytes, size);
    const char *what;
    ft_chunk *chunk;
    const int result = ft_chunk_open(bytes, size, keep_bytes, NULL, &chunk, &what);
    CHECK((chunk == NULL) == (result != FT_OK));
    if (chunk != NULL) {
        ft_chunk_verify(chunk);
        CHECK(ft_count_written_cells(&chunk->rows, 0, chunk->rows.rows) < UINT64_MAX / 2);
        if (chunk->rows.obs_bytes <= MOST_OBS) {
            read_all(chunk, &codecs);
        }
        /* Coding takes much longer than decoding, and what it is given is sound by then: some do. */
        const bool codes = get_u32(bytes + AT_HEADER_SUM) % GO_ON_ONE_IN == 0;
        if (codes && chunk->rows.obs_bytes <= MOST_OBS && chunk->rows.rows * chunk->rows.n_streams <= MOST_CELLS) {
            go_on(chunk, &codecs);
        }
        ft_chunk *arranged = NULL; /* whatever the bytes are, reading what is made of them is as safe as reading them */
        const bool is_arranged = ft_chunk_arrange(chunk, &arranged) == FT_OK;
        CHECK(is_arranged == (arranged != NULL));
        if (is_arranged && chunk->rows.obs_bytes <= MOST_OBS) {
            read_all(arranged, &codecs);
        }
        ft_chunk_drop(arranged);
        ft_chunk_drop(chunk);
    }
    free(bytes);
    return 0;
}

/* A picture that no patch helps, for the end of a stack: a texture of a few colours, or of many, or shades. */
static void draw_picture(chance *from, const ft_layout *layout, uint8_t *stack) {
    uint8_t *frame = stack + (layout->depth - 1) * layout->part;
    memmove(stack, stack + layout->part, (size_t)(frame - stack));
    const size_t side_by_side = layout->pixel, channels = layout->planes * side_by_side;
    const size_t pixels = layout->part / channels, width = layout->row / side_by_side;
    const size_t colours = one_in(from, 8) ? 256 : 3 + below(from, 20), first = below(from, 256), shades = below(from, 2);
    for (size_t at = 0; at < pixels; at++) {
        const size_t y = at / width, noise = one_in(from, 12) ? below(from, 4) : 0;
        const size_t number = (at * 5 + y * 11 + first + noise) % colours;
        for (size_t p = 0; p < channels; p++) {
            uint8_t *byte = layout->planes > 1 ? frame + p * pixels + at : frame + at * channels + p;
            *byte = (uint8_t)(shades ? first + 40 * p + y * 3 + below(from, 3) : number * (9 + 14 * p) + 3 * p);
        }
    }
}

/* The next picture of a game in which a thing jumps over a pattern, so that the same changes happen again and again. */
static void move_thing(chance *from, const ft_layout *layout, uint8_t *frame) {
    enum { THING = 3 };
    const size_t width = layout->row, height = layout->part / width;
    const size_t x = below(from, (width - THING) / 5) * 5, y = below(from, (height - THING) / 4) * 4;
    for (size_t i = 0; i < layout->part; i++) {
        frame[i] = (uint8_t)(i % width % 5 * 3 + i / width % 4);
    }
    for (size_t i = 0; i < THING * THING; i++) {
        frame[(y + i / THING) * width + x + i % THING] = (uint8_t)(100 + i);
    }
}

size_t fuzz_seed(uint64_t number, uint8_t *out) {
    ft_layout layout;
    ft_method method;
    chance from = {number};
    run_codec codec = {.fail_after = -1};
    const ft_codecs codecs = codecs_of(&codec);
    ft_init();
    use_kernels(true);
    small_kind(number, &layout, &method);
    const bool draws = number % N_SMALL > MOVING;
    const size_t bytes = obs_bytes_of(&layout), n = draws ? 1 : 2; /* pictures are large: changes have to find the place that counts */
    const ft_schema schema = {layout, method, n, 1 + number / N_SMALL % 2};
    ft_column *column;
    uint8_t *now = grab(n * bytes), *next = grab(n * bytes);
    CHECK(ft_column_new(&schema, 48, 48, &column) == FT_OK);
    for (size_t row = 0; row < (draws ? 4 + number % 5 : 20 + number % 28); row++) {
        memcpy(next, now, n * bytes);
        for (size_t i = 0; i < n; i++) {
            if (draws) {
                draw_picture(&from, &layout, next + i * bytes);
            } else if (number % N_SMALL == MOVING) {
                move_thing(&from, &layout, next + i * bytes);
            } else {
                play(&from, &layout, next + i * bytes);
                limit_values(&layout, number % 3 == 0 ? 0 : 20 * (number % 16), next + i * bytes);
            }
        }
        const ft_part parts[] = {{0, now, false, NULL, n}, {1, next, false, NULL, one_in(&from, 4) ? 1 : n}};
        CHECK(ft_column_stage(column, row, parts, schema.views, &codecs) == FT_OK);
        ft_column_commit(column);
        memcpy(now, next, n * bytes);
    }
    ft_chunk *chunk;
    CHECK(ft_column_snapshot(column, &chunk) == FT_OK && chunk != NULL);
    const size_t size = ft_chunk_get_info(chunk).size;
    CHECK(size <= MOST_INPUT);
    memcpy(out, ft_chunk_get_info(chunk).bytes, size);
    ft_chunk_drop(chunk);
    ft_column_free(column);
    free(now);
    free(next);
    free(codec.blob);
    return size;
}
