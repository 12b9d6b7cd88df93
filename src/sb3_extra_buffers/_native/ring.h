/* The ring, as the files know it that read from it: ring.c, gather.c, usage.c. */
#ifndef FT_RING_H
#define FT_RING_H

#include "chunk.h"

struct ft_column {
    ft_schema schema;
    size_t rows, chunk_rows;
    ft_builder *open;
    uint64_t open_first;   /* row of the ring that the open chunk begins with; the next row while that has none */
    ft_span *spans;        /* sealed chunks: sorted by row, disjoint */
    size_t n_spans, spans_room;
    uint64_t patience;     /* strays that are no reason to doubt the layout */
    bool is_whole;         /* whether all cells of the row that is staged are written */
    bool completes;        /* whether it is the last one of the ring, too: its chunk is sealed at once then, so that rollouts are read
                            * without a lock */
    /* Where a table of values has proved too small, chunks are coded without one for a while: ever longer, until it pays again. */
    uint32_t pause;        /* chunks that are still coded without one, the open one included */
    uint32_t next_pause;
    uint64_t sealed_bytes; /* of all chunks that were ever sealed here */
    ft_builder *draft;     /* rows that are being coded again; only while that is under way */
};

/* The span that holds a row; NULL for none. */
const ft_span *ft_find_span(const ft_column *column, uint64_t row);
/* The rows that a row of the ring is among, and which it is there; NULL where it is unwritten. `*chunk` is NULL for the open one. */
const ft_rows *ft_find_row(const ft_column *column, uint64_t row, size_t *chunk_row, ft_chunk **chunk);
/* The span that has what the last row of the open chunk lacks; NULL where it lacks nothing. */
const ft_span *ft_find_older(const ft_column *column);
/* Which row of the chunk of a span a row of the ring is. */
static inline size_t ft_row_in_chunk(const ft_span *span, uint64_t row) { return (size_t)(span->chunk_row + (row - span->first_row)); }

#endif
