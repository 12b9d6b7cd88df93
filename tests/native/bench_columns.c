/*
 * Columns against the store that they replace, on real frames: bytes a transition, time of a row, time of a batch.
 *
 *     bench_columns FILE N_STREAMS CHUNK_ROWS [TIMES]
 *
 * FILE holds rows of 84x84 stacks of four, channels last: the observations of all streams, then those that followed. The ring has
 * TIMES as many rows (4 unless told): what is read is in no cache then. Both take turns, and medians are shown, then first deciles, which other
 * programs on the machine disturb less.
 */
#include "support.h"

#include "../../src/sb3_extra_buffers/_native/frametable.h"

#include <time.h>

enum { OBS = 4 * 84 * 84, ROUNDS = 300 };

static double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return 1e6 * (double)at.tv_sec + (double)at.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    FILE *file = fopen(argv[1], "rb");
    CHECK(file != NULL);
    const size_t n = (size_t)atoi(argv[2]), chunk_rows = (size_t)atoi(argv[3]), times = argc > 4 ? (size_t)atoi(argv[4]) : 4;
    fseek(file, 0, SEEK_END);
    const size_t played = (size_t)ftell(file) / (2 * n * OBS), rows = played * times;
    fl_active = fl_best_kernels();
    ft_checksum_init();
    const fl_layout layout = {1, 1, 4, 84 * 84, 1, 84, true, false};
    const fl_method method = {true, false, 3};
    const ft_schema schema = {layout, method, n, 2};
    run_codec codec = {.fail_after = -1};
    const fl_codecs codecs = codecs_of(&codec);
    int result;
    fl_store *store = fl_store_new(&layout, &method, n, &result);
    CHECK(store != NULL && fl_new_index(store, rows * n) == 0 && fl_new_index(store, rows * n) == 1);
    ft_column *column = ft_column_new(&schema, rows, chunk_rows, &result);
    CHECK(column != NULL);
    uint8_t *pair = grab(2 * n * OBS);
    double *spent[2] = {grab(rows * sizeof(double)), grab(rows * sizeof(double))}, all[2] = {0, 0};
    for (size_t row = 0; row < rows; row++) {
        if (row % played == 0) {
            rewind(file);
        }
        CHECK(fread(pair, 2 * n * OBS, 1, file) == 1);
        for (size_t k = 0; k < 2; k++) {
            const size_t which = (row + k) % 2;
            const double begun = now_us();
            if (which == 0) {
                const fl_write_part parts[2] = {{store->indexes[0], pair, true}, {store->indexes[1], pair + n * OBS, true}};
                CHECK(fl_write(store, parts, 2, (int64_t)(row * n), NULL, n, &codecs) == FL_OK);
            } else {
                const ft_part parts[2] = {{0, pair, true, NULL, n}, {1, pair + n * OBS, true, NULL, n}};
                CHECK(ft_column_stage(column, row, parts, 2, &codecs) == FL_OK);
                ft_column_commit(column);
            }
            spent[which][row] = now_us() - begun;
            all[which] += spent[which][row];
        }
    }
    const double cells = (double)(rows * n);
    const ft_usage usage = ft_column_usage(column);
    printf("%s, %zu rows in chunks of %zu\n", argv[1], rows, chunk_rows);
    printf("  bytes a transition   old %7.2f + %5.2f held %7.2f   new %7.2f + %5.2f held %7.2f\n", (double)fl_stored_bytes(store) / cells,
           (double)fl_index_bytes(store) / cells, (double)fl_held_bytes(store) / cells, (double)usage.frame_bytes / cells,
           (double)usage.index_bytes / cells, (double)usage.held_bytes / cells);
    printf("  write a row          old %7.2f (mean %6.2f) us       new %7.2f (mean %6.2f) us\n", median(spent[0], rows), all[0] / (double)rows,
           median(spent[1], rows), all[1] / (double)rows);
    chance draws = {1};
    static const size_t COUNTS[] = {32, 256};
    uint8_t *outs[2] = {grab(256 * OBS), grab(256 * OBS)};
    for (size_t c = 0; c < 2; c++) {
        for (int threads = 1; threads <= 2; threads++) {
            const size_t count = COUNTS[c];
            int64_t at[256], streams[256];
            for (size_t round = 0; round < ROUNDS; round++) {
                for (size_t k = 0; k < 2; k++) {
                    const size_t which = (round + k) % 2;
                    for (size_t i = 0; i < count; i++) {
                        at[i] = (int64_t)below(&draws, rows);
                        streams[i] = (int64_t)below(&draws, n);
                    }
                    const double begun = now_us();
                    if (which == 0) {
                        const fl_read_part parts[2] = {{store->indexes[0], outs[0]}, {store->indexes[1], outs[1]}};
                        CHECK(fl_read(store, parts, 2, at, streams, count, threads, &codecs) == FL_OK);
                    } else {
                        ft_read *read = ft_read_begin(column, at, streams, count, outs, &codecs, &result);
                        CHECK(read != NULL && ft_read_run(read, threads, &codecs) == FL_OK);
                        ft_read_end(read);
                    }
                    spent[which][round] = now_us() - begun;
                }
            }
            const double old = median(spent[0], ROUNDS), new = median(spent[1], ROUNDS); /* sorted then */
            printf("  read %3zu, %d thread%s   old %7.1f us   new %7.1f us   %.3f   decile %.3f\n", count, threads, threads > 1 ? "s" : " ",
                   old, new, new / old, spent[1][ROUNDS / 10] / spent[0][ROUNDS / 10]);
        }
    }
    fl_store_free(store);
    ft_column_free(column);
    free(outs[0]);
    free(outs[1]);
    free(spent[0]);
    free(spent[1]);
    free(pair);
    free(codec.blob);
    fclose(file);
    return 0;
}
