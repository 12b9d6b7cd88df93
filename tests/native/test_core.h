#ifndef TEST_CORE_H
#define TEST_CORE_H

#include "support.h"

/* With the kernels that are active. */
void test_kernels(void);
void test_columns(void);
void test_apart(void);
void test_chunks(void);
void test_objects(void);
void test_failures(void);
void test_pictures(void);
void test_values(void);
/* Whether all kernels of this processor make the same of the same. */
void test_kernels_agree(void);
void test_picture_kernels_agree(void);
void test_tree(void);

/* -- column_kit.c --------------------------------------------------------------------------------------------------------- */

/* A column, and beside it what it has to hold. */
typedef struct pair {
    ft_column *column;
    ft_schema schema;
    size_t rows, obs_bytes, next_row;
    size_t values; /* that elements may have; 0 for all there are */
    uint8_t *plain[FT_MAX_VIEWS];
    uint8_t *written[FT_MAX_VIEWS]; /* for each cell */
    uint8_t *now, *next, *lying;
    run_codec codec;
    ft_codecs codecs;
    chance chance;
    void (*play)(chance *from, const ft_layout *layout, uint8_t *obs); /* what comes next */
} pair;

pair *pair_new(const ft_schema *schema, size_t rows, size_t chunk_rows, uint64_t seed);
void pair_free(pair *both);
/* Observations as they lie in memory, in one order or the other. */
ft_part lay(pair *both, size_t view, const uint8_t *obs, size_t count);
/* Write a row of all streams; half of those that could be committed are aborted first if `hesitates`. */
int write_row(pair *both, size_t row, bool hesitates);
/* Write one view of a row of all streams, as code does that knows of two arrays: the last one is what follows. */
int write_view(pair *both, size_t row, size_t view);
/* Write one view of one cell. */
int write_cell(pair *both, size_t row, size_t stream, size_t view);
/* Go on to the observation that follows. */
void play_on(pair *both, uint8_t *obs);
/* Whether cells of a column, or all of them, are what they have to be. */
void check_cells(pair *both, const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count);
void check_all(pair *both, const ft_column *column);
/* For chunks in memory that is freed by others. */
void keep_bytes(void *context, const uint8_t *bytes, size_t size);
/* Make another column of copies of all chunks, as a file does; count those, and those of them that are freed. */
ft_column *load_column(pair *both, size_t chunk_rows, size_t *sent, size_t *dropped);
/* Send all chunks to another column, which has to hold the same. */
void send_chunks(pair *both);

#endif
