/* The ring, as the files know it that write to it and read from it: column.c, recode.c, gather.c, usage.c. */
#ifndef FT_COLUMN_H
#define FT_COLUMN_H

#include "chunk.h"

/* Memory for a row that is copied. */
typedef struct ft_row_copy {
    uint8_t *obs; /* of each view, of each stream */
    size_t *streams[FT_MAX_VIEWS];
    uint8_t *scratch;
} ft_row_copy;

struct ft_column {
    ft_schema schema;
    size_t rows, chunk_rows, blocks;
    ft_builder *open;
    uint64_t open_first;  /* row of the ring that the open chunk begins with */
    uint64_t lap;
    uint64_t patience;    /* strays that are no reason to doubt the layout */
    ft_chunk **by_block;  /* the sealed chunk that holds the rows of each block, as far as the open one does not */
    bool completes;       /* whether the row that is staged is the last of the ring, and whole: its chunk is sealed at once then, so that
                           * rollouts are read without a lock */
    /* Views that the last row of the open chunk lacks in all streams, as bits: the others were written by themselves. Until the rest
     * is, it is read from the chunk of the last lap, which `by_block` goes on holding; so nothing has to be copied in between. */
    unsigned missing;
    unsigned staged_missing; /* what that is once the row that is staged is committed */
    /* Where a table of values has proved too small, chunks are coded without one for a while: ever longer, until it pays again. */
    uint32_t pause;      /* chunks that are still coded without one, the open one included */
    uint32_t next_pause;
    ft_usage sealed_usage; /* of all sealed chunks, but for the cells */
    uint64_t sealed_bytes; /* of all chunks that were ever sealed here */
    /* What a change that is under way has made so far, beside what the open chunk keeps of it: ft_column_abort frees it all. */
    ft_builder *draft;    /* rows that are coded again; if they are staged, what takes the place of the open chunk */
    ft_row_copy copy;
    ft_chunk *sealed;     /* what takes the place of a sealed chunk, */
    ft_chunk *replaced;   /* which is this one */
};

/* -- column.c ------------------------------------------------------------------------------------------------------------- */

/* The rows that a row of the ring is among, and its place there; NULL where it is unwritten. `*chunk` is NULL for the open one. */
const ft_rows *ft_find_row(const ft_column *column, uint64_t row, size_t *place, ft_chunk **chunk);
/* The rows of the last lap that have what the last row of the open chunk lacks, and its place there; NULL where it lacks nothing. */
const ft_rows *ft_find_missing(const ft_column *column, size_t *place);
/* Seal the open chunk, which ends where a block or the ring ends. */
int ft_seal_open(ft_column *column, const ft_codecs *codecs);

/* -- recode.c: rows out of order ------------------------------------------------------------------------------------------ */

/* What is to be written to one row while rows are copied. */
typedef struct ft_change {
    size_t place; /* of the row; SIZE_MAX for none */
    const ft_part *parts;
    size_t n_parts;
} ft_change;

void ft_free_row_copy(ft_row_copy *copy);
/* Add `count` rows of other rows to a builder, and make a change on the way; NULL for none. */
int ft_copy_rows(ft_column *column, const ft_rows *from, size_t first, size_t count, ft_builder *to, const ft_change *what,
                 const ft_codecs *codecs);
/* Copy what the last row of the open chunk lacks from the last lap. Does nothing where it lacks nothing. */
int ft_copy_missing(ft_column *column, const ft_codecs *codecs);
/* Make a draft of some rows, by a layout, with a change on the way; NULL for none. The caller uses it, or discards it. It has a table of
 * values where these rows have one that is large enough. */
int ft_make_draft(ft_column *column, const ft_schema *schema, const ft_rows *from, const ft_change *what, const ft_codecs *codecs);
void ft_discard_draft(ft_column *column);
void ft_use_draft(ft_column *column);
/* The transform to begin with. */
int ft_find_transform(const ft_schema *schema);
/* Have the open chunk, in which there is nothing yet, be coded by a table of values again, if it is time to try. */
int ft_try_values(ft_column *column, const ft_codecs *codecs);
/* Code the open chunk again, without its table of values. */
int ft_give_up_values(ft_column *column, const ft_codecs *codecs);
/* Stage a row that is in a chunk already, by coding that chunk again. */
int ft_stage_again(ft_column *column, const ft_rows *from, ft_chunk *chunk, const ft_change *what, const ft_codecs *codecs);
/* Have the next row of the open chunk be an unwritten one further on, and those before it unwritten, too. */
int ft_skip_to_row(ft_column *column, uint64_t row, const ft_codecs *codecs);

#endif
