/*
 * One thread writes to a column while others read: the lock is held to find cells, not to decode them. What is read was written, and
 * never half of two, though chunks are sealed, written over and freed meanwhile. Run with ThreadSanitizer.
 */
#include "support.h"

#include "../../src/sb3_extra_buffers/_native/chunk.h"

#include <pthread.h>

enum { STREAMS = 2, ROWS = 100, CHUNK_ROWS = 32, READERS = 3, BATCH = 160, STEPS = 1200, SIDE = 64, OBS = 4 * SIDE * SIDE };

static const ft_layout LAYOUT = {1, 1, 4, SIDE * SIDE, 1, SIDE, true, false, 1};
static ft_column *column;
static run_codec codec;
static ft_codecs codecs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t written[ROWS]; /* the step of each row, under the lock */
static bool done, draws_pictures;

/* A frame that tells its step: a pattern, a mark that moves and carries the number, and a thing that blinks, always in the same way. */
static void draw_frame(int64_t step, size_t stream, uint8_t *frame) {
    for (size_t i = 0; draws_pictures && step >= 0 && i < SIDE * SIDE; i++) { /* nothing of it is like the frame before */
        frame[i] = (uint8_t)((i % SIDE / 2 * 5 + i / SIDE / 2 * 11 + (size_t)step * 17 + stream) % 61 * 4);
    }
    if (draws_pictures && step >= 0) {
        return;
    }
    enum { THING = 6 };
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        frame[i] = step < 0 ? 0 : (uint8_t)(stream + i * 7 % 11);
    }
    for (size_t i = 0; step >= 0 && step % 2 == 0 && i < THING * THING; i++) {
        frame[(50 + i / THING) * SIDE + 40 + i % THING] = (uint8_t)(100 + i);
    }
    for (int i = 0; step >= 0 && i < 8; i++) {
        frame[(size_t)(step * 37) % (SIDE * SIDE - 8) + (size_t)i] = (uint8_t)(step >> (8 * i));
    }
}

static void draw_stack(int64_t step, size_t stream, uint8_t *obs) {
    for (size_t j = 0; j < 4; j++) {
        draw_frame(step - 3 + (int64_t)j, stream, obs + j * SIDE * SIDE);
    }
}

static void *write_all(void *unused) {
    uint8_t *now = grab(STREAMS * OBS), *next = grab(STREAMS * OBS);
    for (int64_t step = 0; step < (draws_pictures ? STEPS / 4 : STEPS); step++) {
        for (size_t i = 0; i < STREAMS; i++) {
            draw_stack(step, i, now + i * OBS);
            draw_stack(step + 1, i, next + i * OBS);
        }
        /* Now and then a row that was written before, so that its chunk is coded again. */
        const uint64_t row = (uint64_t)(step % 97 == 96 ? step * 7 : step) % ROWS;
        const ft_part parts[] = {{0, now, false, NULL, STREAMS}, {1, next, false, NULL, STREAMS}};
        CHECK(pthread_mutex_lock(&lock) == 0);
        if (step % 500 == 499) {
            ft_column_clear(column);
            for (size_t k = 0; k < ROWS; k++) {
                written[k] = -1;
            }
        }
        CHECK(ft_column_stage(column, row, parts, 2, &codecs) == FT_OK);
        ft_column_commit(column);
        written[row] = step;
        CHECK(pthread_mutex_unlock(&lock) == 0);
    }
    CHECK(pthread_mutex_lock(&lock) == 0);
    done = true;
    CHECK(pthread_mutex_unlock(&lock) == 0);
    free(now);
    free(next);
    return unused;
}

static void *read_some(void *argument) {
    uint8_t *outs[2] = {grab(BATCH * OBS), grab(BATCH * OBS)}, *expected = grab(OBS);
    chance from = {*(const uint64_t *)argument};
    for (bool go_on = true; go_on;) {
        int64_t rows[BATCH], streams[BATCH], steps[BATCH];
        const size_t count = one_in(&from, 4) ? BATCH : 1 + below(&from, 60); /* by two threads, or by one */
        for (size_t i = 0; i < count; i++) {
            rows[i] = (int64_t)below(&from, ROWS);
            streams[i] = (int64_t)below(&from, STREAMS);
        }
        ft_read *read;
        if (one_in(&from, 2)) {
            ft_wake_helper();
        }
        CHECK(pthread_mutex_lock(&lock) == 0);
        CHECK(ft_read_begin(column, rows, streams, count, outs, &codecs, &read) == FT_OK);
        for (size_t i = 0; i < count; i++) {
            steps[i] = written[rows[i]];
        }
        go_on = !done;
        CHECK(pthread_mutex_unlock(&lock) == 0);
        CHECK(ft_read_run(read, 2, &codecs) == FT_OK);
        ft_read_end(read);
        for (size_t i = 0; i < 2 * count; i++) {
            const int64_t step = steps[i / 2];
            memset(expected, 0, OBS);
            if (step >= 0) {
                draw_stack(step + (int64_t)(i % 2), (size_t)streams[i / 2], expected);
            }
            CHECK(memcmp(outs[i % 2] + i / 2 * OBS, expected, OBS) == 0);
        }
    }
    free(outs[0]);
    free(outs[1]);
    free(expected);
    return NULL;
}

/* References from records to objects, in sealed chunks. */
static size_t count_references(void) {
    size_t references = 0;
    for (size_t row = 0; row < ROWS; row += FT_BLOCK_ROWS) {
        const ft_chunk *chunk = chunk_at(column, row);
        for (size_t at = 0; chunk != NULL && at < chunk->rows.data_bytes; at += RECORD_HEADER + get_u32(chunk->rows.data + at)) {
            const uint8_t *record = chunk->rows.data + at;
            references += record[RECORD_CODER] == OBJECTS ? get_u16(record + RECORD_HEADER + OBJECTS_COUNT) % OBJECTS_PLAIN : 0;
        }
    }
    return references;
}

int main(void) {
    static const ft_method methods[] = {{true, false, 3}, {true, true, 6}, {false, false, 0}, {true, false, 3}};
    codecs = codecs_of(&codec);
    ft_init();
    for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
        pthread_t writer, readers[READERS];
        uint64_t seeds[READERS];
        const ft_schema schema = {LAYOUT, methods[k], STREAMS, 2};
        codec.fail_after = -1;
        draws_pictures = k == 3;
        CHECK(ft_column_new(&schema, ROWS, CHUNK_ROWS, &column) == FT_OK);
        done = false;
        for (size_t i = 0; i < ROWS; i++) {
            written[i] = -1;
        }
        for (size_t i = 0; i < READERS; i++) {
            seeds[i] = i + 1;
            CHECK(pthread_create(&readers[i], NULL, read_some, &seeds[i]) == 0);
        }
        CHECK(pthread_create(&writer, NULL, write_all, NULL) == 0);
        CHECK(pthread_join(writer, NULL) == 0);
        for (size_t i = 0; i < READERS; i++) {
            CHECK(pthread_join(readers[i], NULL) == 0);
        }
        CHECK(!draws_pictures || ft_column_get_usage(column).coded[6] > 0);
        CHECK(k > 0 || count_references() > 0);
        ft_column_free(column);
    }
    free(codec.blob);
    printf("readers: passed\n");
    return 0;
}
