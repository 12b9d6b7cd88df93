/*
 * One thread writes while others read, under a lock as the binding has one: what is read was written, and never half of two.
 * Run with ThreadSanitizer, it also shows that reads change nothing: they go on side by side, and large ones in two halves.
 */
#include "support.h"

#include <pthread.h>

enum { STREAMS = 2, ROWS = 64, READERS = 3, BATCH = 160, STEPS = 1200, SIDE = 64 };

static const fl_layout LAYOUT = {1, 1, 4, SIDE * SIDE, 1, SIDE, true, false};
static fl_store *store;
static run_codec codec;
static fl_codecs codecs;
/* Writers first: readers would else never let the one writer in. */
static pthread_rwlock_t lock;
static int64_t written[ROWS * STREAMS]; /* the step of each cell, under the lock */
static bool done;

/* A frame that tells its step: mostly flat, with a mark that moves and carries the number. */
static void draw_frame(int64_t step, size_t stream, uint8_t *frame) {
    memset(frame, (int)stream, SIDE * SIDE);
    if (step < 0) {
        memset(frame, 0, SIDE * SIDE);
        return;
    }
    for (int i = 0; i < 8; i++) {
        frame[(size_t)(step * 37) % (SIDE * SIDE - 8) + (size_t)i] = (uint8_t)(step >> (8 * i));
    }
    frame[SIDE * SIDE - 1] = (uint8_t)(step * 101);
}

static void draw_stack(int64_t step, size_t stream, uint8_t *obs) {
    for (size_t j = 0; j < 4; j++) {
        draw_frame(step - 3 + (int64_t)j, stream, obs + j * SIDE * SIDE);
    }
}

static void *write_all(void *unused) {
    const size_t bytes = 4 * SIDE * SIDE;
    uint8_t *now = grab(STREAMS * bytes), *next = grab(STREAMS * bytes);
    (void)unused;
    for (int64_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < STREAMS; i++) {
            draw_stack(step, i, now + i * bytes);
            draw_stack(step + 1, i, next + i * bytes);
        }
        const int64_t first = step % ROWS * STREAMS;
        CHECK(pthread_rwlock_wrlock(&lock) == 0);
        const fl_write_part parts[] = {{store->indexes[0], now, false}, {store->indexes[1], next, false}};
        CHECK(fl_write(store, parts, 2, first, NULL, STREAMS, &codecs) == FL_OK);
        for (size_t i = 0; i < STREAMS; i++) {
            written[first + (int64_t)i] = step;
        }
        if (step % 500 == 499) {
            CHECK(fl_rebuild(store, &LAYOUT, &codecs) == FL_OK);
        }
        CHECK(pthread_rwlock_unlock(&lock) == 0);
    }
    CHECK(pthread_rwlock_wrlock(&lock) == 0);
    done = true;
    CHECK(pthread_rwlock_unlock(&lock) == 0);
    free(now);
    free(next);
    return NULL;
}

static void *read_some(void *argument) {
    const size_t bytes = 4 * SIDE * SIDE;
    uint8_t *outs[2] = {grab(BATCH * bytes), grab(BATCH * bytes)}, *expected = grab(bytes);
    chance from = {*(const uint64_t *)argument};
    for (bool go_on = true; go_on;) {
        int64_t rows[BATCH], columns[BATCH], steps[BATCH];
        /* Read in halves always, if the helper is awake, and never. */
        const size_t count = one_in(&from, 4) ? BATCH : 1 + below(&from, 60);
        if (one_in(&from, 2)) {
            fl_call_helper();
        }
        for (size_t i = 0; i < count; i++) {
            rows[i] = (int64_t)below(&from, ROWS);
            columns[i] = (int64_t)below(&from, STREAMS);
        }
        CHECK(pthread_rwlock_rdlock(&lock) == 0);
        const fl_read_part parts[] = {{store->indexes[0], outs[0]}, {store->indexes[1], outs[1]}};
        CHECK(fl_read(store, parts, 2, rows, columns, count, 2, &codecs) == FL_OK);
        for (size_t i = 0; i < count; i++) {
            steps[i] = written[rows[i] * STREAMS + columns[i]];
        }
        const size_t size = one_in(&from, 50) ? fl_image_bytes(store, -1) : 0;
        go_on = !done;
        CHECK(pthread_rwlock_unlock(&lock) == 0);
        CHECK(size < SIZE_MAX / 2);
        for (size_t i = 0; i < count; i++) {
            for (int64_t part = 0; part < 2; part++) {
                if (steps[i] < 0) {
                    memset(expected, 0, bytes);
                } else {
                    draw_stack(steps[i] + part, (size_t)columns[i], expected);
                }
                CHECK(memcmp(outs[part] + i * bytes, expected, bytes) == 0);
            }
        }
    }
    free(outs[0]);
    free(outs[1]);
    free(expected);
    return NULL;
}

int main(void) {
    static const fl_method methods[] = {{true, false, 3}, {true, true, 6}, {false, false, 0}};
    for (size_t k = 0; k < sizeof methods / sizeof *methods; k++) {
        int result;
        pthread_t writer, readers[READERS];
        uint64_t seeds[READERS];
        pthread_rwlockattr_t kind;
        CHECK(pthread_rwlockattr_init(&kind) == 0);
#ifdef __GLIBC__
        CHECK(pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP) == 0);
#endif
        CHECK(pthread_rwlock_init(&lock, &kind) == 0);
        CHECK(pthread_rwlockattr_destroy(&kind) == 0);
        codecs = codecs_of(&codec);
        fl_active = fl_best_kernels();
        store = fl_store_new(&LAYOUT, &methods[k], STREAMS, &result);
        CHECK(store != NULL && fl_new_index(store, ROWS * STREAMS) == 0 && fl_new_index(store, ROWS * STREAMS) == 1);
        done = false;
        for (size_t i = 0; i < ROWS * STREAMS; i++) {
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
        fl_store_free(store);
        free(codec.blob);
        CHECK(pthread_rwlock_destroy(&lock) == 0);
    }
    printf("threads: passed\n");
    return 0;
}
