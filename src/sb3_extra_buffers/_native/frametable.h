/*
 * A ring of rows of pictures, one of each environment, kept in chunks of consecutive rows: the public header of the core.
 *
 * Words: a *stream* is one environment. A *cell* is a place (row, stream), and holds one observation in each *view*: the
 * observation itself and, where there are two views, the one that followed. A *chunk* holds some consecutive rows of all streams.
 * One chunk is open and being written. All others are *sealed*: one block of bytes, never changed, complete in itself, without
 * pointers, with a checksum for each part. docs/format.md describes every byte. A *column* is the ring.
 *
 * Results: a function that can fail returns FT_OK or a negative `enum ft_result`, and stores what it makes in its last arguments.
 * What has failed has changed nothing that can be read, and stores NULL there.
 *
 * Threads: the caller must hold the lock of a column for every call that takes the column, whatever the call does. Functions that
 * take a chunk or a read need no lock, but a read is for one thread at a time. Different columns are independent of each other.
 * Codecs are called with that lock held, except by ft_read_run; they may read from the column, but not change it.
 */
#ifndef FRAMETABLE_H
#define FRAMETABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ft_result {
    FT_OK = 0,
    FT_DAMAGED = -1,   /* stored bytes do not make sense */
    FT_NO_MEMORY = -2, /* see ft_get_refused_bytes */
    FT_OUTSIDE = -3,   /* there is no such row or stream */
    FT_CODEC = -4,     /* a codec has failed; the caller knows how */
    FT_INVALID = -5,   /* sizes that make no sense together */
};

enum {
    FT_MAX_DEPTH = 64,
    FT_MAX_VIEWS = 2,
    FT_BLOCK_ROWS = 16, /* of a chunk, that its index counts together */
};

/* Make the core ready for this processor. Must be called once before any other function, while there is one thread. */
void ft_init(void);

/* Bytes of the allocation that was refused last in this thread, FT_MORE_THAN_ALL where the number has no room. */
#define FT_MORE_THAN_ALL SIZE_MAX
size_t ft_get_refused_bytes(void);

/* CRC-32C of `size` bytes. */
uint32_t ft_compute_checksum(const uint8_t *data, size_t size);

/* -- what a caller brings ------------------------------------------------------------------------------------------------- */

/* How an observation splits into frames. In C order it is `outer` blocks of `depth` parts of `part` bytes; a frame is the
 * `outer` parts of one of them. Where `can_turn`, the stack may also be the last axis in memory (channels last).
 * Limits: an observation has at most 2^28 bytes, an element 64. */
typedef struct ft_layout {
    size_t item;     /* bytes an element */
    size_t outer;
    size_t depth;    /* frames in an observation, FT_MAX_DEPTH at most */
    size_t part;
    size_t planes;   /* planes of the stack's axis that make one frame */
    size_t row;      /* bytes of a row of a frame; 0 where it has only one */
    bool can_turn;   /* needs `outer` of 1, and whole planes in a part */
    bool interleave; /* codecs get the planes of a frame pixel by pixel; needs the same */
    uint32_t pixel;  /* bytes of a pixel that lie side by side in a frame; 0 where that is not known. Only coders want to know */
} ft_layout;

typedef struct ft_method {
    bool references; /* frames are coded against others; else each by itself, by the codec */
    bool packs;      /* a second codec works on whole groups; needs references */
    uint32_t shift;  /* two to this power is the most frames in a group: 7 at most, 0 without references */
} ft_method;

/* What all cells of a column have in common. */
typedef struct ft_schema {
    ft_layout layout; /* each chunk has its own, of observations of the same size */
    ft_method method;
    size_t n_streams; /* 1 to 2^31 - 1 */
    size_t views;     /* 1 to FT_MAX_VIEWS */
} ft_schema;

/* The only way out of the core. Both return FT_OK, FT_DAMAGED, FT_NO_MEMORY or FT_CODEC; `decode` fills `size` bytes. A blob must
 * stay valid until the next `encode` with the same context. */
enum { FT_FRAME_CODEC = 0, FT_GROUP_CODEC = 1 };
typedef struct ft_codecs {
    void *context;
    int (*encode)(void *context, int which, const uint8_t *data, size_t size, const uint8_t **blob, size_t *blob_size);
    int (*decode)(void *context, int which, const uint8_t *blob, size_t blob_size, uint8_t *data, size_t size);
} ft_codecs;

typedef struct ft_column ft_column;
typedef struct ft_chunk ft_chunk;
typedef struct ft_read ft_read;

/* -- sealed chunks -------------------------------------------------------------------------------------------------------- */

/* Open the chunk that lies in `size` bytes at `bytes`, at any address. They must stay as they are until `release(context, bytes,
 * size)` is called, by the thread that drops the chunk last. Everything that leads somewhere, and every checksum, is checked:
 * whatever the bytes are, reading the chunk is safe then. The caller owns it, and ft_chunk_drop must follow.
 * Returns FT_OK; FT_DAMAGED, and `*what` says in plain words what is wrong; FT_NO_MEMORY. On failure nothing is released. */
int ft_chunk_open(const uint8_t *bytes, size_t size, void (*release)(void *context, const uint8_t *bytes, size_t size),
                  void *context, ft_chunk **chunk, const char **what);

/* Walk through all records, from front to back, and compare the index with them. Reading is safe without it: it is for programs
 * that write chunks, or have to explain why one cannot be read.
 * Returns what is wrong in plain words, NULL where nothing is. */
const char *ft_chunk_verify(const ft_chunk *chunk);

/* Make a chunk of the same rows that takes fewer pages to read a cell of, for a disk: arrange.c. The caller owns it.
 * Returns FT_OK; FT_INVALID where it is to stay as it is: it is arranged, or in memory of others, or odd; FT_NO_MEMORY. */
int ft_chunk_arrange(const ft_chunk *chunk, ft_chunk **arranged);

/* Add an owner, or remove one; the last one frees the chunk. NULL may be dropped. Safe in any thread. */
void ft_chunk_keep(ft_chunk *chunk);
void ft_chunk_drop(ft_chunk *chunk);

typedef struct ft_chunk_info {
    const uint8_t *bytes; /* all of it: they may be written to a file or sent as they are, while the chunk is owned */
    size_t size;
    size_t rows;
    uint64_t first_row;   /* in the ring in which it was sealed */
} ft_chunk_info;
ft_chunk_info ft_chunk_get_info(const ft_chunk *chunk);

/* -- columns -------------------------------------------------------------------------------------------------------------- */

/* Make an empty column of `rows` rows, 1 to 2^60, in chunks of at most `chunk_rows`, which are at most 65,519. A chunk may end before
 * that: where it is large, or where rows do not follow each other.
 * Returns FT_OK, FT_INVALID or FT_NO_MEMORY. */
int ft_column_new(const ft_schema *schema, size_t rows, size_t chunk_rows, ft_column **column);
void ft_column_free(ft_column *column); /* NULL may be freed */

/* Forget all rows, and what is staged. Chunks that others own stay. */
void ft_column_clear(ft_column *column);

/* What is written to a row: observations of one view, one after the other, as they lie in memory. */
typedef struct ft_part {
    size_t view;
    const uint8_t *obs;
    bool turned;           /* whether the stack is the last axis in memory; only where the layout can be turned */
    const size_t *streams; /* whose they are, each once; NULL for the first `count` ones, in order */
    size_t count;
} ft_part;

/* Prepare a row: code the observations of up to `views` parts of different views. Nothing of it can be read before
 * ft_column_commit, which cannot fail. A commit or an abort must follow a success before anything else is changed. Cells that are
 * in no part stay as they are. A row that does not follow the last one begins another chunk, which takes time and some memory.
 * Returns FT_OK, FT_OUTSIDE, FT_INVALID, FT_NO_MEMORY, FT_DAMAGED (of rows that are coded again) or FT_CODEC. */
int ft_column_stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs);
void ft_column_commit(ft_column *column);

/* Take back what is staged, and whatever else is under way: where a codec has never returned to ft_column_stage,
 * ft_column_set_layout or ft_column_adopt_row, as in the child of a fork, what can be read is as it was before that call, and anything
 * may follow. Does nothing where nothing is under way. */
void ft_column_abort(ft_column *column);

/* Split observations into frames in another way from now on. The open chunk is coded again or sealed; sealed ones stay as they are.
 * Returns as ft_column_stage; FT_INVALID where observations would be of another size. */
int ft_column_set_layout(ft_column *column, const ft_layout *layout, const ft_codecs *codecs);

/* Copy the last observation of a stream to `out`, in C order. Returns whether it is known: not after an abort, for instance. */
bool ft_column_get_last(const ft_column *column, size_t stream, uint8_t *out);

/* Whether observations keep coming that neither follow from the last one nor begin an episode, so that a layout with one frame an
 * observation would be smaller and faster; never for one that has one. The first `observations` of that kind are no reason: 16 by
 * default. */
bool ft_column_doubts_layout(const ft_column *column);
void ft_column_set_patience(ft_column *column, uint64_t observations);

/* Consecutive rows of the ring of which a sealed chunk is the newest holder. */
typedef struct ft_span {
    uint64_t first_row, rows; /* of the ring */
    ft_chunk *chunk;          /* the column owns it: the caller must keep it before the lock is released */
    uint64_t chunk_row;       /* which of the chunk's rows is the first of these */
} ft_span;

/* All spans, sorted by row and disjoint; `*count` are how many. They stay so until the column is changed. */
const ft_span *ft_column_get_spans(const ft_column *column, size_t *count);

/* Bytes of all chunks that have ever been sealed here: whenever it is another number, another chunk is full. */
uint64_t ft_column_count_sealed_bytes(const ft_column *column);

/* Make a sealed copy of the open chunk, which the caller owns; NULL with FT_OK where no row is open. A span may hold its last row, too:
 * the copy lacks some cells of that then, which are in the span's chunk.
 * Returns FT_OK or FT_NO_MEMORY. */
int ft_column_snapshot(const ft_column *column, ft_chunk **chunk);

/* Put rows of a chunk in a place of the ring, without decoding them, over those that sealed chunks hold. The column becomes an owner,
 * beside the caller. The chunk must have the same streams, views and sizes. Rows of the open chunk cannot be replaced.
 * Returns FT_OK, FT_INVALID or FT_NO_MEMORY. */
int ft_column_adopt(ft_column *column, ft_chunk *chunk, uint64_t chunk_row, uint64_t first_row, uint64_t rows);

/* Write the cells of one row of a chunk, and go on behind it; its other cells stay as they are. It is for the last row of a snapshot,
 * where another chunk holds some of its cells. No row may be open.
 * Returns FT_OK, FT_INVALID, FT_NO_MEMORY, FT_DAMAGED or FT_CODEC. */
int ft_column_adopt_row(ft_column *column, const ft_chunk *chunk, uint64_t chunk_row, uint64_t row, const ft_codecs *codecs);

/* Put a copy of a sealed chunk, whose bytes are elsewhere, in its place: in all rows of the ring that it still holds. The caller
 * owns both, as before. Returns FT_OK, or FT_INVALID where it is no copy. */
int ft_column_exchange(ft_column *column, const ft_chunk *chunk, ft_chunk *copy);
/* The same for a chunk that ft_chunk_arrange has made of it. */
void ft_column_put_arranged(ft_column *column, const ft_chunk *chunk, ft_chunk *arranged);

/* Coders that the format has; docs/format.md lists them. */
enum { FT_MOST_CODERS = 10 };

typedef struct ft_usage {
    uint64_t frames;      /* stored ones */
    uint64_t frame_bytes; /* records, key frames, groups that are open */
    uint64_t index_bytes; /* what it takes to find them, headers and checksums included */
    uint64_t held_bytes;  /* all memory of chunks, sealed or open */
    uint64_t cells;       /* written ones, of all views */
    uint64_t coded[FT_MOST_CODERS]; /* frames by what they were coded by: KEYED for all patches, and KEY for key frames themselves */
} ft_usage;
ft_usage ft_column_get_usage(const ft_column *column);

/* -- reading -------------------------------------------------------------------------------------------------------------- */

/* Find `count` cells, keep their chunks, and decode those of the open chunk: under the lock. `outputs[view]` holds `count`
 * observations in C order, or is NULL where a view is not wanted; unwritten cells are zeros. ft_read_end must follow a success.
 * Returns FT_OK, FT_OUTSIDE, FT_NO_MEMORY, FT_DAMAGED or FT_CODEC. */
int ft_read_begin(const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count,
                  uint8_t *const outputs[FT_MAX_VIEWS], const ft_codecs *codecs, ft_read **read);
/* Whether the rest takes no longer than handing a lock to another thread and getting it back: a caller may as well keep the lock of
 * its interpreter. The helper takes no part in such a read. */
bool ft_read_is_small(const ft_read *read);
/* Decode the rest, once: without the lock, as chunks do not change. With `threads` of 2, a helper thread takes part where the
 * output is large; codecs may be called by both. `codecs` must not be those of another call that is under way.
 * Returns FT_OK, FT_NO_MEMORY, FT_DAMAGED or FT_CODEC; outputs are unspecified then. */
int ft_read_run(ft_read *read, int threads, const ft_codecs *codecs);
void ft_read_end(ft_read *read);

/* Whether a read of so many bytes can be shared by two threads; then a read that is to come may be announced by ft_wake_helper, as
 * waking up takes a moment. The helper sleeps again if none comes. Safe in any thread. */
bool ft_column_can_share(const ft_column *column, size_t bytes);
void ft_wake_helper(void);

/* -- what lies beside the frames ------------------------------------------------------------------------------------------ */

/* Copy `count` cells of a plain array of rows x streams x `cell_bytes` to `out`. The caller has checked the indices. */
void ft_gather_cells(const uint8_t *data, size_t cell_bytes, size_t n_streams, const int64_t *rows, const int64_t *streams,
                     size_t count, uint8_t *out);
/* The same where the array lies in pieces of `piece_rows` rows, and the last one may be shorter. */
void ft_gather_pieces(const uint8_t *const *pieces, size_t piece_rows, size_t cell_bytes, size_t n_streams, const int64_t *rows,
                      const int64_t *streams, size_t count, uint8_t *out);

/* Sums for prioritized replay: a full binary tree in one array, the root at 1, leaves from `first_leaf` on, a power of two. Set
 * `count` leaves and the sums above them; find the leaves in which prefix sums fall. The caller has checked the leaves. */
void ft_tree_set_leaves(double *sums, size_t first_leaf, const int64_t *leaves, const double *values, size_t count);
void ft_tree_find_leaves(const double *sums, size_t first_leaf, const double *targets, int64_t *leaves, size_t count);

#endif
