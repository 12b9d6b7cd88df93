/*
 * A ring of rows of pictures, one of each environment, kept in chunks of consecutive rows.
 *
 * This is the public header of the core: opaque types, and one convention for results. A function that can fail returns FL_OK
 * (0) or one of the negative `enum fl_result`; one that makes something returns NULL and stores the reason in `*result`. Whatever
 * fails has changed nothing.
 *
 * Words: a *stream* is one environment. A *cell* is a place (row, stream), and holds one observation in each *view*: the
 * observation itself and, where there are two views, the one that followed. A *chunk* holds some consecutive rows of all streams.
 * One chunk is open and being written. All others are *sealed*: one block of bytes, never changed, complete in itself, without
 * pointers, with a checksum for each part. docs/format.md describes every byte.
 *
 * A column is not safe for threads by itself: the caller must hold a lock for every call that takes one, except ft_read_run.
 *
 * It is being built beside framelog.h, and is going to replace the store there. Nothing but its tests uses it yet.
 */
#ifndef FRAMETABLE_H
#define FRAMETABLE_H

#include "framelog.h"

enum {
    FT_MAX_VIEWS = 2,
    FT_BLOCK_ROWS = 16, /* chunks begin and end at multiples of it, unless the ring ends */
};

/* What all cells of a column have in common. */
typedef struct ft_schema {
    fl_layout layout; /* how an observation splits into frames; each chunk has its own, of the same observation */
    fl_method method;
    size_t n_streams;
    size_t views;     /* 1 or FT_MAX_VIEWS */
} ft_schema;

typedef struct ft_column ft_column;
typedef struct ft_chunk ft_chunk;
typedef struct ft_read ft_read;

/* -- checksum.c ---------------------------------------------------------------------------------------------------- */

/* Call it once before any other function. */
void ft_checksum_init(void);
/* CRC-32C of some bytes; `plain` without the processor's instruction, for tests. */
uint32_t ft_checksum(const uint8_t *data, size_t size);
uint32_t ft_checksum_plain(const uint8_t *data, size_t size);

/* -- chunk.c: sealed chunks ---------------------------------------------------------------------------------------- */

/* Take over a chunk that lies in `size` bytes at `bytes`, which must stay as they are until `release(context, bytes, size)` is
 * called. Everything in it is checked first: whatever the bytes are, reading it is safe then. On failure `*what` says in plain
 * words what is wrong, or is NULL where memory was refused, and nothing is released. The chunk has one owner, the caller. */
ft_chunk *ft_chunk_open(const uint8_t *bytes, size_t size, void (*release)(void *context, const uint8_t *bytes, size_t size),
                        void *context, int *result, const char **what);
/* Go through all records, from front to back, and compare the index with them; returns what is wrong in plain words, NULL where all
 * is well. Reading is safe without it: it is for whoever writes chunks, or wants to know why one cannot be read. */
const char *ft_chunk_verify(const ft_chunk *chunk);
/* One owner more, or one fewer; the last one frees it. */
void ft_chunk_keep(ft_chunk *chunk);
void ft_chunk_drop(ft_chunk *chunk);
/* The bytes of a chunk, which may be written to a file or sent as they are. */
const uint8_t *ft_chunk_bytes(const ft_chunk *chunk, size_t *size);
/* Its number of rows, its first row in the ring, and in which lap of the ring it was written, counted from 0. */
size_t ft_chunk_rows(const ft_chunk *chunk);
uint64_t ft_chunk_first_row(const ft_chunk *chunk);
uint64_t ft_chunk_lap(const ft_chunk *chunk);

/* -- column.c: the ring -------------------------------------------------------------------------------------------- */

/* Make an empty column of `rows` rows in chunks of at most `chunk_rows`, which is rounded up to blocks. */
ft_column *ft_column_new(const ft_schema *schema, size_t rows, size_t chunk_rows, int *result);
void ft_column_free(ft_column *column);
/* Forget all rows. */
void ft_column_clear(ft_column *column);

/* What is written to a row: observations of one view, one after the other, as they lie in memory. */
typedef struct ft_part {
    size_t view;
    const uint8_t *obs;
    bool turned;           /* whether the stack is the last axis in memory */
    const size_t *streams; /* whose they are; NULL for the first `count` ones, in order */
    size_t count;
} ft_part;

/* Prepare a row: code the observations of up to FT_MAX_VIEWS parts of different views. Nothing of it can be read before
 * ft_column_commit, which cannot fail; ft_column_abort forgets it. One of the two must follow before anything else is written. Rows
 * in the order of the ring are fast; any other order is right, but codes a chunk again for each row. */
int ft_column_stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const fl_codecs *codecs);
void ft_column_commit(ft_column *column);
void ft_column_abort(ft_column *column);

/* Split observations into frames in another way from now on. The open chunk is coded again; sealed ones stay as they are. */
int ft_column_set_layout(ft_column *column, const fl_layout *layout, const fl_codecs *codecs);

/* The last observation that a stream has seen, in C order; false where that is not known. */
bool ft_column_last(const ft_column *column, size_t stream, uint8_t *out);

/* Whether observations keep coming that neither follow from the last one nor begin an episode, so that a layout with one frame an
 * observation would be smaller and faster; never for one that has one. `observations` of that kind are no reason: 16 unless told. */
bool ft_column_layout_in_doubt(const ft_column *column);
void ft_column_set_patience(ft_column *column, uint64_t observations);

/* The chunk that holds a row, for the caller to keep; NULL where the row is unwritten or in the open chunk. */
ft_chunk *ft_column_chunk(const ft_column *column, uint64_t row);
/* A sealed copy of the open chunk, which the caller owns; NULL with FL_OK where no row is open. */
ft_chunk *ft_column_snapshot(const ft_column *column, int *result);
/* Put a chunk of the same schema, which nobody else owns, where its rows belong, without decoding it; the column takes it over.
 * Chunks begin at multiples of FT_BLOCK_ROWS and end there, or where the ring ends. */
int ft_column_adopt(ft_column *column, ft_chunk *chunk, uint64_t first_row);
/* Go on with rows of a chunk that may end anywhere, as a snapshot does: they are decoded and become the open chunk. The next row is
 * the one after them. */
int ft_column_resume(ft_column *column, const ft_chunk *chunk, uint64_t first_row, uint64_t lap, const fl_codecs *codecs);

/* Reading, in two steps. The first finds the cells, keeps their chunks, and decodes those of the open chunk: under the lock. The
 * second decodes the others, and needs no lock: chunks do not change. Outputs hold `count` observations in C order, NULL where a
 * view is not wanted. ft_read_end must follow a successful ft_read_begin. */
ft_read *ft_read_begin(const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count,
                       uint8_t *const outputs[FT_MAX_VIEWS], const fl_codecs *codecs, int *result);
int ft_read_run(ft_read *read, int threads, const fl_codecs *codecs);
void ft_read_end(ft_read *read);
/* Whether a read of so many bytes may be shared by two threads. */
bool ft_column_shares(const ft_column *column, size_t bytes);

/* Cells of a plain array of rows x streams x `cell_bytes`, one after the other. The caller has checked the indices. */
void ft_gather(const uint8_t *data, size_t cell_bytes, size_t n_streams, const int64_t *rows, const int64_t *streams, size_t count,
               uint8_t *out);

/* What a column holds. */
typedef struct ft_usage {
    uint64_t frames;      /* stored ones */
    uint64_t frame_bytes; /* records, key frames, groups that are open */
    uint64_t index_bytes; /* what it takes to find them, headers and checksums included */
    uint64_t held_bytes;  /* all memory of chunks, sealed or open */
    uint64_t cells;       /* written ones, of all views */
} ft_usage;
ft_usage ft_column_usage(const ft_column *column);

#endif
