/* Pictures that no patch helps: by palette, by joint deltas, damaged, without memory, and by every set of kernels. */
#include "test_core.h"

#include "../../src/sb3_extra_buffers/_native/codebooks.h"

enum { CHUNK_ROWS = 32, AT_DATA = 120, AT_DATA_SUM = 128, AT_HEADER_SUM = 148 };

static const named_layout PICTURES[] = {
    {"gray, 52x40", {1, 1, 1, 52 * 40, 1, 52, true, false, 1}},
    {"colours in planes, 24x29", {1, 1, 1, 3 * 24 * 29, 3, 24, true, true, 1}},
    {"colours side by side, 24x29", {1, 1, 1, 3 * 24 * 29, 29, 3 * 24, false, false, 3}},
    {"colours in planes, odd rows, 37x21", {1, 1, 1, 3 * 37 * 21, 3, 37, true, true, 1}},
    {"colours side by side, a stack of 2, 31x23", {1, 31 * 23, 2, 3, 3, 3 * 31, false, false, 3}},
    {"colours and labels in planes, 24x22", {1, 1, 1, 4 * 24 * 22, 4, 24, true, true, 1}},
    {"colours and labels side by side, 33x17", {1, 1, 1, 4 * 33 * 17, 17, 4 * 33, false, false, 4}},
    {"two planes, a stack of 3, 32x33", {1, 1, 3, 2 * 32 * 33, 2, 32, true, true, 1}},
    {"two planes, a stack of 2, 32x33", {1, 1, 2, 2 * 32 * 33, 2, 32, true, true, 1}},
    {"colours and labels, a stack of 2, 24x22", {1, 1, 2, 4 * 24 * 22, 4, 24, true, true, 1}},
};
enum { N_PICTURES = sizeof PICTURES / sizeof *PICTURES };

/* -- pictures ------------------------------------------------------------------------------------------------------------- */

static size_t n_colours;  /* that pictures may have */
static size_t most_noise; /* of shades; 0 for pictures of a few colours */

static size_t pixel_of(const ft_layout *layout) { return layout->interleave ? layout->planes : layout->pixel; }

static void put_pixel(const ft_layout *layout, uint8_t *frame, size_t at, uint32_t value) {
    const size_t pixel = pixel_of(layout), pixels = frame_bytes_of(layout) / pixel;
    for (size_t p = 0; p < pixel; p++) {
        frame[layout->interleave ? p * pixels + at : at * pixel + p] = (uint8_t)(value >> (8 * p));
    }
}

/* A texture: a pixel is mostly that above or beside it, or what comes after that. */
static void draw_texture(chance *from, const ft_layout *layout, uint8_t *frame) {
    const size_t pixel = pixel_of(layout), width = layout->row / (layout->interleave ? 1 : pixel);
    const size_t pixels = frame_bytes_of(layout) / pixel;
    size_t *numbers = grab(pixels * sizeof *numbers);
    for (size_t i = 0; i < pixels; i++) {
        const size_t kind = below(from, 16);
        numbers[i] = kind < 8 && i >= width ? numbers[i - width] : kind < 12 && i > 0 ? numbers[i - 1] : below(from, n_colours);
        numbers[i] = kind == 13 && i >= width ? (numbers[i - width] + 1) % n_colours : numbers[i];
        put_pixel(layout, frame, i, (uint32_t)((numbers[i] + 1) * UINT64_C(0x9E3779B1)));
    }
    free(numbers);
}

/* Light that falls off, and a little noise. */
static void draw_shades(chance *from, const ft_layout *layout, uint8_t *frame) {
    const size_t pixel = pixel_of(layout), width = layout->row / (layout->interleave ? 1 : pixel);
    const size_t pixels = frame_bytes_of(layout) / pixel, first = below(from, 256), steep = below(from, 5);
    for (size_t i = 0; i < pixels; i++) {
        uint32_t value = 0;
        for (size_t p = 0; p < pixel; p++) {
            const size_t shade = first + 40 * p + i % width * steep / 2 + i / width * (4 - steep) + below(from, most_noise);
            value |= (uint32_t)(shade & 255) << (8 * p);
        }
        put_pixel(layout, frame, i, value);
    }
}

static void play_pictures(chance *from, const ft_layout *layout, uint8_t *obs) {
    const size_t size = frame_bytes_of(layout);
    uint8_t *frame = grab(size), *older = grab(size);
    if (!one_in(from, 24)) {
        if (most_noise > 0) {
            draw_shades(from, layout, frame);
        } else {
            draw_texture(from, layout, frame);
        }
        for (size_t j = 0; j + 1 < layout->depth; j++) {
            take_from_stack(layout, obs, j + 1, older);
            put_in_stack(layout, older, j, obs);
        }
        put_in_stack(layout, frame, layout->depth - 1, obs);
    }
    free(frame);
    free(older);
}

static pair *new_pair(size_t layout, size_t colours, size_t noise, uint64_t seed) {
    const ft_schema schema = {PICTURES[layout].layout, METHODS[0], 2, 1 + seed % 2};
    pair *both = pair_new(&schema, 80, CHUNK_ROWS, seed);
    both->play = play_pictures;
    n_colours = colours;
    most_noise = noise;
    return both;
}

/* -- what goes in comes out ----------------------------------------------------------------------------------------------- */

static void write_rows(pair *both, size_t count) {
    for (size_t k = 0; k < count; k++) {
        CHECK(write_row(both, both->next_row, true) == FT_OK);
    }
}

static void test_kinds(size_t layout) {
    pair *both = new_pair(layout, 12, 0, layout);
    write_rows(both, 50);
    CHECK(ft_column_get_usage(both->column).coded[PALETTE] > 50);
    check_all(both, both->column);
    n_colours = 300; /* the table of colours fills in the middle, and overflows */
    write_rows(both, 50);
    check_all(both, both->column);
    most_noise = 4;
    write_rows(both, 60);
    CHECK(layout == 0 || ft_column_get_usage(both->column).coded[JOINT] > 0);
    check_all(both, both->column);
    most_noise = 256; /* nothing helps */
    write_rows(both, 20);
    most_noise = 0;
    n_colours = 5;
    write_rows(both, 90);
    check_all(both, both->column);
    send_chunks(both);
    const ft_usage usage = ft_column_get_usage(both->column);
    uint64_t all = 0;
    for (size_t k = 0; k < FT_MOST_CODERS; k++) {
        all += usage.coded[k];
    }
    CHECK(all == usage.frames);
    pair_free(both);
}

static void test_numbers_of_colours(void) {
    for (size_t colours = 254; colours <= 258; colours++) {
        for (size_t layout = 1; layout < N_PICTURES; layout += 2) {
            pair *both = new_pair(layout, colours, 0, colours + layout);
            write_rows(both, 40);
            check_all(both, both->column);
            pair_free(both);
        }
    }
}

/* A rank that a list does not have, which no coder writes, is a pixel of zeros: docs/format.md. */
static void test_missing_ranks(void) {
    enum { SIDE = 16, SYMBOLS = SIDE * SIDE / 2, BEFORE = 4 * FT_STREAMS };
    for (size_t pixel = 1; pixel <= FT_MOST_PIXEL; pixel++) {
        const size_t bytes = SIDE * SIDE * pixel, size = BEFORE + SYMBOLS;
        ft_book *book = grab(sizeof *book);
        ft_tables *tables = grab(sizeof *tables);
        book->kind = PALETTE;
        book->shape = (ft_shape){SIDE, SIDE, pixel, false};
        book->n = pixel == 1 ? 0 : 1;
        book->values[0] = 0x01020304;
        memset(book->lengths, 8, FT_PAIRS); /* so a symbol is a byte, the other way round */
        ft_make_tables(book, tables);
        uint8_t *picture = grab(size + FT_READ_AHEAD), *frame = grab(bytes), *scratch = grab(ft_measure_picture_scratch(bytes));
        for (int s = 0; s < FT_STREAMS; s++) {
            put_u32(picture + 4 * s, SYMBOLS / FT_STREAMS);
        }
        memset(picture + BEFORE, 0x77, SYMBOLS); /* rank 14 each */
        memset(frame, 9, bytes);
        CHECK(ft_active->decode_palette(tables, picture, size, frame, scratch));
        for (size_t at = 0; at < bytes; at++) {
            CHECK(frame[at] == 0);
        }
        picture[BEFORE] = 0xF7; /* an escape that has no bytes */
        CHECK(!ft_active->decode_palette(tables, picture, size, frame, scratch));
        free(book);
        free(tables);
        free(picture);
        free(frame);
        free(scratch);
    }
}

/* Chunks that were coded by the same codebook have the same tables, for as long as one of them is there; those from elsewhere do not. */
static void test_shared_tables(void) {
    enum { CHUNKS = 6 };
    const ft_schema schema = {PICTURES[1].layout, METHODS[0], 2, 1};
    pair *both = pair_new(&schema, CHUNKS * CHUNK_ROWS, CHUNK_ROWS, 3);
    both->play = play_pictures;
    n_colours = 12;
    most_noise = 0;
    write_rows(both, CHUNKS * CHUNK_ROWS + 1); /* the first chunk is gone then */
    ft_chunk *last = chunk_at(both->column, (CHUNKS - 1) * CHUNK_ROWS);
    ft_chunk *before = chunk_at(both->column, (CHUNKS - 2) * CHUNK_ROWS);
    CHECK(last != before && last->shelf.first != NULL && before->shelf.first != NULL);
    CHECK(last->shelf.first != before->shelf.first && last->shelf.first->tables == before->shelf.first->tables);
    CHECK(last->shelf.first->tables->owners > 2); /* and whoever codes the next one */
    check_all(both, both->column);
    ft_chunk_keep(last);
    pair_free(both);
    CHECK(last->shelf.first->tables->owners == 1);
    ft_chunk_drop(last);
}

/* -- damage --------------------------------------------------------------------------------------------------------------- */

static void put_sum(uint8_t *at, const uint8_t *bytes, size_t size) { put_u32(at, ft_compute_checksum(bytes, size)); }

/* Codebooks and pictures that are damaged in spite of right sums are errors, or show as other bytes: nothing worse. */
static void test_damaged_pictures(size_t layout, size_t noise) {
    pair *both = new_pair(layout, 30, noise, layout + 9);
    write_rows(both, CHUNK_ROWS);
    CHECK(write_row(both, both->next_row, false) == FT_OK);
    const ft_chunk_info of = ft_chunk_get_info(chunk_at(both->column, 0));
    uint8_t *copy = grab(of.size), *outs[FT_MAX_VIEWS] = {grab(both->obs_bytes), grab(both->obs_bytes)};
    size_t damaged = 0;
    const size_t data = (size_t)get_u64(of.bytes + AT_DATA);
    for (size_t k = 0; k < 120; k++) {
        ft_column *column;
        ft_chunk *chunk;
        const char *what;
        memcpy(copy, of.bytes, of.size);
        size_t at = 0, books = 0; /* of one codebook, or anywhere */
        while (k % 2 == 0 && at + RECORD_HEADER < data && (copy[FT_CHUNK_HEADER + at + RECORD_CODER] != BOOK || books++ < k % 3)) {
            at += RECORD_HEADER + get_u32(copy + FT_CHUNK_HEADER + at);
        }
        const bool in_book = k % 2 == 0 && at + RECORD_HEADER < data;
        const size_t room = in_book ? RECORD_HEADER + get_u32(copy + FT_CHUNK_HEADER + at) : data, first = in_book ? at : 0;
        for (size_t i = 1 + below(&both->chance, 3); i > 0; i--) {
            const size_t place = in_book && one_in(&both->chance, 2) ? below(&both->chance, 20) : below(&both->chance, room);
            copy[FT_CHUNK_HEADER + first + place] ^= (uint8_t)(1 << below(&both->chance, 8));
        }
        put_sum(copy + AT_DATA_SUM, copy + FT_CHUNK_HEADER, data + FT_READ_AHEAD);
        put_sum(copy + AT_HEADER_SUM, copy, AT_HEADER_SUM);
        CHECK(ft_column_new(&both->schema, CHUNK_ROWS, CHUNK_ROWS, &column) == FT_OK);
        CHECK(ft_chunk_open(copy, of.size, keep_bytes, NULL, &chunk, &what) == FT_OK && give_chunk(column, chunk, 0) == FT_OK);
        for (int64_t row = 0; row < CHUNK_ROWS; row++) {
            const int64_t stream = row % 2;
            ft_read *read;
            CHECK(ft_read_begin(column, &row, &stream, 1, outs, &both->codecs, &read) == FT_OK);
            const int result = ft_read_run(read, 1, &both->codecs);
            CHECK(result == FT_OK || result == FT_DAMAGED);
            damaged += result == FT_DAMAGED;
            ft_read_end(read);
        }
        ft_column_free(column);
    }
    CHECK(damaged > 0);
    free(copy);
    free(outs[0]);
    free(outs[1]);
    pair_free(both);
}

/* -- without memory ------------------------------------------------------------------------------------------------------- */

static void test_refused_memory(size_t layout) {
    pair *both = new_pair(layout, 20, layout % 2 ? 3 : 0, layout + 40);
    const size_t count = 60;
    size_t refused = 0;
    int64_t rows[4] = {0, 9, 18, 27}, streams[4] = {0, 1, 0, 1};
    for (size_t k = 0; k < count;) {
        const int64_t after = (int64_t)below(&both->chance, 12);
        ft_refuse_allocation(after);
        const int result = write_row(both, both->next_row, false);
        ft_refuse_allocation(-1);
        CHECK(result == FT_OK || result == FT_NO_MEMORY);
        refused += result == FT_NO_MEMORY;
        k += result == FT_OK;
        if (result == FT_NO_MEMORY) {
            check_all(both, both->column);
        }
    }
    /* Tables of a codebook that there is no memory for: nothing has changed, and the next read makes them. */
    uint8_t *outs[FT_MAX_VIEWS] = {grab(4 * both->obs_bytes), grab(4 * both->obs_bytes)};
    for (int64_t after = 0; after < 12; after++) {
        ft_read *read;
        CHECK(ft_read_begin(both->column, rows, streams, 4, outs, &both->codecs, &read) == FT_OK);
        ft_refuse_allocation(after % 3);
        const int result = ft_read_run(read, 1, &both->codecs);
        ft_refuse_allocation(-1);
        CHECK(result == FT_OK || result == FT_NO_MEMORY);
        refused += result == FT_NO_MEMORY;
        ft_read_end(read);
    }
    CHECK(refused > 0);
    check_all(both, both->column);
    free(outs[0]);
    free(outs[1]);
    pair_free(both);
}

/* -- codes ---------------------------------------------------------------------------------------------------------------- */

static void test_codes(void) {
    chance from = {3};
    uint32_t counts[FT_MOST_SYMBOLS];
    uint8_t lengths[FT_MOST_SYMBOLS];
    for (size_t k = 0; k < 400; k++) {
        const size_t n = 2 + below(&from, k % 2 ? FT_MOST_SYMBOLS - 1 : 255), steep = below(&from, 33);
        const unsigned longest = n <= 256 && one_in(&from, 2) ? FT_PAIR_BITS : FT_DELTA_BITS;
        for (size_t i = 0; i < n; i++) { /* from all alike to a few that are nearly all */
            counts[i] = (uint32_t)(draw(&from) >> (32 + below(&from, steep + 1) % 32));
        }
        ft_find_lengths(counts, n, longest, lengths);
        CHECK(ft_check_lengths(lengths, n, longest));
        lengths[below(&from, n)] ^= 1;
        CHECK(!ft_check_lengths(lengths, n, longest));
    }
}

void test_pictures(void) {
    test_codes();
    for (size_t layout = 0; layout < N_PICTURES; layout++) {
        test_kinds(layout);
        test_damaged_pictures(layout, 0);
        test_damaged_pictures(layout, 4);
        test_refused_memory(layout);
    }
    test_numbers_of_colours();
    test_missing_ranks();
    test_shared_tables();
}

void test_picture_kernels_agree(void) {
    const char *const names[] = {"baseline", "avx2"};
    for (size_t layout = 0; layout < N_PICTURES; layout++) {
        for (size_t noise = 0; noise < 6; noise += 3) {
            uint8_t *first = NULL;
            for (size_t k = 0; k < 2 && ft_find_kernels(names[k]) != NULL; k++) {
                ft_active = ft_find_kernels(names[k]);
                pair *both = new_pair(layout, 40, noise, 77);
                write_rows(both, 25);
                ft_chunk *chunk;
                CHECK(ft_column_snapshot(both->column, &chunk) == FT_OK);
                const ft_chunk_info of = ft_chunk_get_info(chunk);
                if (first == NULL) {
                    first = grab(of.size);
                    memcpy(first, of.bytes, of.size);
                } else {
                    CHECK(memcmp(first, of.bytes, of.size) == 0);
                }
                ft_chunk_drop(chunk);
                pair_free(both);
            }
            free(first);
        }
    }
    ft_active = ft_find_best_kernels();
}
