/* Objects: changes that happen again, wherever they are, and whatever has become of the place that they were first seen at. */
#include "test_core.h"

#include "../../src/sb3_extra_buffers/_native/coders.h"
#include "../../src/sb3_extra_buffers/_native/objects.h"

enum { WIDTH = 48, HEIGHT = 40, SIZE = WIDTH * HEIGHT, STREAMS = 2, THINGS = 4, THING = 4 };
enum { PLAIN_GROUND = 5 }; /* a seed */

/* -- a small game --------------------------------------------------------------------------------------------------------- */

/* Things that move over a pattern, one step at a time, so that the same pixels change again and again. */
typedef struct game {
    chance chance;
    uint8_t ground[SIZE];
    size_t x[THINGS], y[THINGS];
} game;

static void begin_game(game *of, uint64_t seed, bool plain) {
    of->chance = (chance){seed};
    for (size_t i = 0; i < SIZE; i++) {
        of->ground[i] = plain ? 7 : (uint8_t)(i % WIDTH % 5 + i / WIDTH % 4);
    }
    for (size_t k = 0; k < THINGS; k++) {
        of->x[k] = below(&of->chance, WIDTH - THING + 1);
        of->y[k] = below(&of->chance, HEIGHT - THING + 1);
    }
}

static void draw_game(game *of, uint8_t *frame) {
    memcpy(frame, of->ground, SIZE);
    for (size_t k = 0; k < THINGS; k++) {
        if (one_in(&of->chance, 2)) {
            of->x[k] = (of->x[k] + 1) % (WIDTH - THING + 1); /* at the edges, too */
        } else if (one_in(&of->chance, 3)) {
            of->y[k] = (of->y[k] + 1) % (HEIGHT - THING + 1);
        }
        for (size_t y = 0; y < THING; y++) {
            for (size_t x = 0; x < THING; x++) {
                frame[(of->y[k] + y) * WIDTH + of->x[k] + x] = (uint8_t)(100 + 20 * k + (x ^ y));
            }
        }
    }
}

static const ft_layout LAYOUT = {1, 1, 1, SIZE, 1, WIDTH, false, false, 0};
static const ft_method DELTA = {true, false, 3};

/* A column of such games, and what it has to hold. */
typedef struct world {
    ft_column *column;
    uint8_t *plain;
    size_t rows;
    game games[STREAMS];
    run_codec codec;
    ft_codecs codecs;
} world;

static world *make_world(size_t rows, size_t chunk_rows, size_t row_bytes, uint64_t seed) {
    world *of = grab(sizeof *of);
    ft_schema schema = {LAYOUT, DELTA, STREAMS, 1};
    schema.layout.row = row_bytes;
    of->rows = rows;
    of->codecs = codecs_of(&of->codec);
    of->plain = grab(rows * STREAMS * SIZE);
    CHECK(ft_column_new(&schema, rows, chunk_rows, &of->column) == FT_OK);
    for (size_t i = 0; i < STREAMS; i++) {
        begin_game(&of->games[i], seed + i, seed == PLAIN_GROUND);
    }
    return of;
}

static void free_world(world *of) {
    ft_column_free(of->column);
    free(of->plain);
    free(of->codec.blob);
    free(of);
}

static int stage(world *of, size_t row) {
    uint8_t *obs = of->plain + row * STREAMS * SIZE;
    const ft_part part = {0, obs, false, NULL, STREAMS};
    return ft_column_stage(of->column, row, &part, 1, &of->codecs);
}

static void play_row(world *of, size_t row) {
    for (size_t i = 0; i < STREAMS; i++) {
        draw_game(&of->games[i], of->plain + (row * STREAMS + i) * SIZE);
    }
}

static void check_rows(world *of, size_t rows) {
    uint8_t *frame = grab(SIZE);
    for (size_t cell = 0; cell < rows * STREAMS; cell++) {
        const int64_t row = (int64_t)(cell / STREAMS), i = (int64_t)(cell % STREAMS);
        uint8_t *outs[FT_MAX_VIEWS] = {frame, NULL};
        ft_read *read;
        CHECK(ft_read_begin(of->column, &row, &i, 1, outs, &of->codecs, &read) == FT_OK);
        CHECK(ft_read_run(read, 1, &of->codecs) == FT_OK);
        ft_read_end(read);
        CHECK(memcmp(frame, of->plain + cell * SIZE, SIZE) == 0);
    }
    free(frame);
}

/* What the records of sealed chunks are. */
typedef struct census {
    size_t objects, references, based;
} census;

static census count_records(const world *of) {
    census found = {0};
    const ft_chunk *last = NULL;
    for (size_t row = 0; row < of->rows; row += FT_BLOCK_ROWS) {
        ft_chunk *chunk = chunk_at(of->column, row);
        if (chunk == NULL || chunk == last) {
            continue;
        }
        last = chunk;
        CHECK(ft_chunk_verify(chunk) == NULL);
        const ft_rows *rows = &chunk->rows;
        for (size_t at = 0; at < rows->data_bytes; at += RECORD_HEADER + get_u32(rows->data + at)) {
            const uint8_t *record = rows->data + at, *body = record + RECORD_HEADER;
            if (record[RECORD_CODER] != OBJECTS) {
                continue;
            }
            const size_t count = get_u16(body + OBJECTS_COUNT), base = get_u24(body + OBJECTS_BASE);
            found.objects++;
            found.based += base != OBJECTS_NO_BASE;
            CHECK(base == OBJECTS_NO_BASE || base < at);
            for (size_t k = 0; count != OBJECTS_PLAIN && k < count; k++) {
                /* Whatever was taken back in between, nothing is referred to but what lies before its end. */
                CHECK(get_u24(body + OBJECTS_REFERENCES + k * REFERENCE_BYTES) < at + RECORD_HEADER + get_u32(record));
                found.references++;
            }
        }
    }
    return found;
}

/* -- what is stored, and what comes back ---------------------------------------------------------------------------------- */

static void test_games(void) {
    size_t based = 0;
    for (uint64_t seed = 0; seed < 6; seed++) {
        world *of = make_world(96, seed < 3 ? 96 : 32, seed % 3 == 2 ? 0 : WIDTH, seed);
        for (size_t lap = 0; lap < 2; lap++) {
            for (size_t row = 0; row < of->rows; row++) {
                play_row(of, row);
                CHECK(stage(of, row) == FT_OK);
                ft_column_commit(of->column);
            }
            check_rows(of, of->rows);
        }
        const census found = count_records(of);
        CHECK(seed % 3 == 2 || found.references > found.objects);
        based += found.based;
        free_world(of);
    }
    CHECK(based > 0);
}

/* Arranged for a disk, a chunk begins with the objects that are used often, and no record refers to anything else but what is before
 * it in its own stream. */
static void test_arranged_games(void) {
    size_t references = 0;
    for (uint64_t seed = 0; seed < 4; seed++) {
        world *of = make_world(512, 256, seed == 3 ? 0 : WIDTH, seed);
        for (size_t row = 0; row < of->rows; row++) {
            play_row(of, row);
            CHECK(stage(of, row) == FT_OK);
            ft_column_commit(of->column);
        }
        for (size_t row = 0; row < of->rows; row += FT_BLOCK_ROWS) {
            ft_chunk *chunk = chunk_at(of->column, row), *arranged;
            if (chunk == NULL || chunk->first_row != row) {
                continue;
            }
            ft_chunk_keep(chunk);
            CHECK(ft_chunk_arrange(chunk, &arranged) == FT_OK && arranged->rows.arranged && !chunk->rows.arranged);
            ft_column_put_arranged(of->column, chunk, arranged);
            const ft_rows *rows = &arranged->rows;
            const size_t catalogue = RECORD_HEADER + get_u32(rows->data);
            CHECK(rows->data[RECORD_CODER] == CATALOGUE && ft_chunk_verify(arranged) == NULL);
            for (size_t at = 0; at < rows->data_bytes; at += RECORD_HEADER + get_u32(rows->data + at)) {
                const uint8_t *body = rows->data + at + RECORD_HEADER;
                const bool refers = rows->data[at + RECORD_CODER] == OBJECTS && get_u16(body + OBJECTS_COUNT) != OBJECTS_PLAIN;
                for (size_t k = 0; refers && k < get_u16(body + OBJECTS_COUNT); k++) {
                    CHECK(get_u24(body + OBJECTS_REFERENCES + k * REFERENCE_BYTES) < catalogue);
                    references++;
                }
            }
            ft_chunk_drop(arranged);
            ft_chunk_drop(chunk);
        }
        check_rows(of, of->rows);
        free_world(of);
    }
    CHECK(references > 0);
}

/* Rows that are taken back, with other pictures each time, and allocations that are refused: what is remembered of them does no harm. */
static void test_taken_back(void) {
    size_t references = 0;
    for (uint64_t seed = 0; seed < 6; seed++) {
        world *of = make_world(64, 64, WIDTH, seed);
        chance draws = {seed};
        for (size_t row = 0; row < of->rows; row++) {
            for (size_t tries = one_in(&draws, 6) ? 1 + below(&draws, 3) : 0; tries > 0; tries--) {
                if (one_in(&draws, 3)) {
                    game other; /* of which nothing is seen again */
                    begin_game(&other, draw(&draws), false);
                    draw_game(&other, of->plain + row * STREAMS * SIZE);
                    draw_game(&other, of->plain + (row * STREAMS + 1) * SIZE);
                } else {
                    play_row(of, row);
                }
                ft_refuse_allocation(one_in(&draws, 2) ? (int64_t)below(&draws, 3) : -1);
                const int result = stage(of, row);
                ft_refuse_allocation(-1);
                CHECK(result == FT_OK || result == FT_NO_MEMORY);
                ft_column_abort(of->column);
            }
            play_row(of, row);
            CHECK(stage(of, row) == FT_OK);
            ft_column_commit(of->column);
            check_rows(of, row % 8 == 7 ? row + 1 : 0);
        }
        check_rows(of, of->rows);
        references += count_records(of).references;
        free_world(of);
    }
    CHECK(references > 0);
}

/* -- records by hand ------------------------------------------------------------------------------------------------------ */

static ft_rows rows_of(const uint8_t *data, size_t bytes) {
    ft_rows rows;
    const ft_schema schema = {LAYOUT, DELTA, 1, 1};
    CHECK(ft_init_rows(&rows, &schema, NO_TRANSFORM));
    rows.data = data;
    rows.data_bytes = bytes;
    return rows;
}

/* Apply the patches of a record that ends where `bytes` do; how many of `count` are sound. */
static size_t apply_record(const uint8_t *bytes, size_t size, size_t at, size_t count, uint8_t *frame) {
    uint8_t *data = grab(size + FT_READ_AHEAD), *scratch;
    memcpy(data, bytes, size);
    const ft_rows rows = rows_of(data, size);
    scratch = grab(ft_measure_scratch(&rows));
    const ft_scratch own = ft_split_scratch(&rows, scratch);
    ft_group group = {0};
    size_t done = 0;
    if (ft_open_record(&rows, data + at, size - at, &own, NULL, &group) == FT_OK) {
        memcpy(own.frame, group.base, SIZE);
        while (done < count && ft_apply_next(&rows, &group, own.frame)) {
            done++;
        }
        memcpy(frame, own.frame, SIZE);
    }
    ft_fetch_record(&rows, at, NULL);
    ft_fetch_objects(&rows, at, NULL);
    free(data);
    free(scratch);
    return done;
}

/* A key frame of zeros, and behind it a record: two patches, with an object each, of which the second refers to the first. */
typedef struct written {
    uint8_t bytes[2 * SIZE];
    size_t record, references, patches, size;
} written;

static written write_by_hand(void) {
    written of = {{0}, RECORD_HEADER + SIZE, 0, 0, 0};
    put_u32(of.bytes, SIZE);
    of.bytes[RECORD_CODER] = KEY;
    uint8_t *body = of.bytes + of.record + RECORD_HEADER;
    put_u24(body, RECORD_HEADER);
    put_u24(body + OBJECTS_BASE, OBJECTS_NO_BASE);
    put_u16(body + OBJECTS_COUNT, 1);
    of.references = of.record + RECORD_HEADER + OBJECTS_REFERENCES;
    of.patches = of.references + REFERENCE_BYTES;
    /* At byte 3: copy 5, 6; skip 4; fill 2 with 9. At byte 100: the same. */
    static const uint8_t patches[] = {1, 3 << 1, 0, 6, 1, 5, 6, 4, 0x81, 9, 1, 100 << 1 | 1, 0};
    memcpy(of.bytes + of.patches, patches, sizeof patches);
    put_u24(of.bytes + of.references, of.patches + 3);
    of.size = of.patches + sizeof patches;
    put_u32(of.bytes + of.record, of.size - of.record - RECORD_HEADER);
    of.bytes[of.record + RECORD_CODER] = OBJECTS;
    of.bytes[of.record + RECORD_CODER + 1] = 2;
    return of;
}

static void test_by_hand(void) {
    written of = write_by_hand();
    uint8_t frame[SIZE], expected[SIZE] = {0};
    static const uint8_t object[] = {5, 6, 0, 0, 0, 0, 9, 9};
    memcpy(expected + 3, object, sizeof object);
    CHECK(apply_record(of.bytes, of.size, of.record, 1, frame) == 1 && memcmp(frame, expected, SIZE) == 0);
    memcpy(expected + 100, object, sizeof object);
    CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 2 && memcmp(frame, expected, SIZE) == 0);
    CHECK(apply_record(of.bytes, of.size, of.record, 3, frame) == 2); /* there is no third */
    /* Right at the end of the frame; one byte further is too far. */
    put_u16(of.bytes + of.size - 2, (SIZE - sizeof object) << 1 | 1);
    CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 2 && frame[SIZE - 1] == 9);
    put_u16(of.bytes + of.size - 2, (SIZE - sizeof object + 1) << 1 | 1);
    CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 1);
}

/* Each of these is wrong. */
static void test_damaged(void) {
    uint8_t frame[SIZE];
    static const size_t offsets[] = {0, 1, OBJECTS_NO_BASE, OBJECTS_NO_BASE - 1, 1 << 16};
    for (size_t k = 0; k < sizeof offsets / sizeof *offsets; k++) {
        written of = write_by_hand();
        put_u24(of.bytes + of.references, offsets[k] > 1 ? offsets[k] : of.size - offsets[k]);
        CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 1);
        of = write_by_hand();
        put_u24(of.bytes + of.record + RECORD_HEADER, offsets[k] > 1 ? offsets[k] : of.size - SIZE + 1);
        CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 0);
        of = write_by_hand();
        if (offsets[k] != OBJECTS_NO_BASE) { /* a base that is not there, or is a key frame, or the record itself with its base */
            put_u24(of.bytes + of.record + RECORD_HEADER + OBJECTS_BASE, offsets[k] > 1 ? offsets[k] : offsets[k] * of.record);
            CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 0);
        }
    }
    written of = write_by_hand();
    put_u16(of.bytes + of.record + RECORD_HEADER + OBJECTS_COUNT, 0); /* more are used than there are */
    CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 0);
    put_u16(of.bytes + of.record + RECORD_HEADER + OBJECTS_COUNT, 1000);
    CHECK(apply_record(of.bytes, of.size, of.record, 2, frame) == 0);
    for (size_t size = of.record + RECORD_HEADER; size < of.size; size++) { /* cut short */
        of = write_by_hand();
        CHECK(apply_record(of.bytes, size, of.record, 2, frame) < 2);
    }
    chance from = {3};
    for (size_t k = 0; k < 40000; k++) { /* whatever the bytes are */
        of = write_by_hand();
        for (size_t changes = 1 + below(&from, 3); changes > 0; changes--) {
            of.bytes[of.record + RECORD_HEADER + below(&from, of.size - of.record - RECORD_HEADER)] = (uint8_t)draw(&from);
        }
        apply_record(of.bytes, of.size, of.record, 3, frame);
    }
}

/* Objects of all sizes, in frames where they are far apart. */
static void test_long_forms(void) {
    enum { LARGE = 300000 };
    static const size_t lengths[] = {1, 2, 3, 4, 126, 127, 128, 250, 251, 252, 253, 254, 255, 256, 257, 600, 30000};
    const ft_layout layout = {1, 1, 1, LARGE, 1, 0, false, false, 0};
    uint8_t *data = grab(LARGE), *frame = grab(LARGE);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const ft_schema schema = {layout, DELTA, 1, 1};
        run_codec codec;
        const ft_codecs codecs = codecs_of(&codec);
        chance from = {k};
        ft_column *column;
        CHECK(ft_column_new(&schema, 16, 16, &column) == FT_OK);
        uint8_t *all = grab((size_t)16 * LARGE);
        for (size_t i = 0; i < lengths[k]; i++) {
            data[i] = (uint8_t)(1 + draw(&from) % 250);
        }
        for (size_t row = 0; row < 16; row++) {
            uint8_t *now = all + row * LARGE;
            memcpy(now, row > 0 ? now - LARGE : now, LARGE);
            static const size_t ways[] = {0, 32766, 32767, 65536, 140000};
            for (size_t j = 0; row > 0 && j < sizeof ways / sizeof *ways; j++) {
                memcpy(now + ways[j] + row * (lengths[k] + 5 < 1800 ? lengths[k] + 5 : 1800), data, lengths[k]);
            }
            const ft_part part = {0, now, false, NULL, 1};
            CHECK(ft_column_stage(column, row, &part, 1, &codecs) == FT_OK);
            ft_column_commit(column);
        }
        for (int64_t row = 0; row < 16; row++) {
            uint8_t *outs[FT_MAX_VIEWS] = {frame, NULL};
            const int64_t stream = 0;
            ft_read *read;
            CHECK(ft_read_begin(column, &row, &stream, 1, outs, &codecs, &read) == FT_OK && ft_read_run(read, 1, &codecs) == FT_OK);
            ft_read_end(read);
            CHECK(memcmp(frame, all + row * LARGE, LARGE) == 0);
        }
        free(all);
        free(codec.blob);
        ft_column_free(column);
    }
    free(data);
    free(frame);
}

void test_objects(void) {
    test_arranged_games();
    test_games();
    test_taken_back();
    test_by_hand();
    test_damaged();
    test_long_forms();
}
