#ifndef TEST_CORE_H
#define TEST_CORE_H

#include "support.h"

/* With the kernels that are active. */
void test_kernels(void);
void test_stores(void);
void test_failures(void);
void test_columns(void);
/* Whether all kernels of this processor make the same of the same. */
void test_kernels_agree(void);
void test_tree(void);

/* A store, and beside it what it has to hold, in plain arrays. */
typedef struct twin {
    fl_store *store;
    fl_layout layout;
    size_t n_streams, rows, obs_bytes, n_indexes;
    uint8_t **plain;   /* for each index: rows x n_streams observations */
    uint8_t *now;      /* the last observation of each stream, in C order */
    uint8_t *next;
    uint8_t *lying;    /* both of them as they lie in memory when they are written */
    run_codec codec;
    fl_codecs codecs;
    chance chance;
} twin;

twin twin_new(const fl_layout *layout, const fl_method *method, size_t n_streams, size_t rows, size_t n_indexes, uint64_t seed);
void twin_free(twin *both);
/* Play on and write the pair, or where there is one index the observation, to a row. On success the plain arrays follow. */
int twin_write_row(twin *both, size_t row);
/* Write one observation to one cell of an index. */
int twin_write_cell(twin *both, size_t index, size_t cell);
/* Whether every cell of every index reads as it must: one by one, and in batches of pairs. */
void twin_check(twin *both);
/* A few cells, for where all of them would take too long. */
void twin_check_some(twin *both, size_t count);

#endif
