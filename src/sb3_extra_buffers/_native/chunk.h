/* What the files of the core know of chunks, open or sealed. Private: consumers include frametable.h. */
#ifndef FT_CHUNK_H
#define FT_CHUNK_H

#include "allocation.h"
#include "format.h"
#include "frames.h"

enum {
    FT_CHUNK_HEADER = 152,  /* bytes before the data */
    FT_GROUP_BYTES = 6,     /* u32 offset of its record in the data, u16 number of its first frame */
    FT_EXCEPTION_BYTES = 8, /* u16 row, u16 frames of the stream before it, u32 class */
    FT_COUNT_BYTES = 2,     /* u16 exceptions before the first row of a block */
    FT_MOST_FRAMES = 50000, /* of a stream; the row that is begun below that ends below 2^16 */
    FT_FAR = 4096,          /* older frames are stored again rather than referred to */
    FT_ZEROS = INT16_MIN,   /* in a class, in place of a frame: zeros, which are not stored */
    FT_UNWRITTEN = INT16_MIN + 1,
};

/* A result that does not leave the core: there are more values in a chunk than its table has room for, so it has to be coded again
 * without one. */
enum { FT_MANY_VALUES = -6 };

enum { FT_LINE = 64 }; /* bytes that come to a cache together */

#if defined(_MSC_VER) && !defined(__clang__)
#if defined(_M_X64)
#include <intrin.h>
#define FT_FETCH(address) _mm_prefetch((const char *)(address), _MM_HINT_T1)
#else
#define FT_FETCH(address) ((void)(address))
#endif
#else
#define FT_FETCH(address) __builtin_prefetch((address), 0, 2)
#endif

/* Pages of mapped files that are going to be needed, to be asked for all at once: asking.c. */
typedef struct ft_asked ft_asked;
void ft_note_page(ft_asked *asked, const uint8_t *address);

/* Have a line come to a cache; or, where there is a list, note that its page will be needed. */
static inline void ft_fetch(const uint8_t *address, ft_asked *asked) {
    if (asked == NULL) {
        FT_FETCH(address);
    } else {
        ft_note_page(asked, address);
    }
}

/* The rows of one stream. Numbers lie there in little endian, whether a chunk is open or sealed. */
typedef struct ft_lane {
    const uint8_t *groups;
    const uint8_t *exceptions; /* in the order of rows; the first is at row 0 */
    const uint8_t *counts;     /* one for each FT_BLOCK_ROWS rows */
    const uint8_t *open;       /* the record of the last group, if it is not in the data yet */
    uint32_t n_groups, n_exceptions, frames;
    uint32_t open_bytes;
} ft_lane;

/* The tables of codebooks that something was decoded by, the latest first. Chunks share tables, never places. */
typedef struct ft_place {
    struct ft_place *next;
    ft_tables *tables;
    uint32_t offset; /* of the codebook in the data */
    uint32_t number; /* how many there are from here on */
} ft_place;
typedef struct ft_shelf {
    ft_place *first; /* changed by atomic steps only */
} ft_shelf;

/*
 * Some rows of all streams, to be read.
 *
 * Most cells follow from the row before: the observation is the one that followed last time, and what followed is that one,
 * moved on by one frame, which is new. Such a row is *regular*, and nothing is stored for it but the frame. All others are
 * exceptions, and refer to a *class*, which lists for each view which frames it is made of, relative to the number of frames
 * that the stream had before the row: u16 frames added, then for each view `depth` i16.
 */
typedef struct ft_rows {
    ft_layout given;  /* of observations as they come and go */
    ft_layout layout; /* of frames as they are coded: another one where elements are coded by a table of values */
    ft_method method;
    int transform;
    size_t n_streams, views;
    size_t frame_bytes, given_bytes; /* of a frame as it is coded, and as it is in an observation */
    size_t obs_bytes;
    size_t stride, given_stride; /* bytes from one padded frame to the next */
    size_t rows;
    const uint8_t *data;
    size_t data_bytes; /* FT_READ_AHEAD more may be read */
    bool arranged;     /* for a disk: a record ends where the next one of its stream begins */
    const uint8_t *classes;
    size_t n_classes;
    const uint8_t *values;
    size_t n_values;
    const ft_lane *lanes;
    ft_shelf *shelf;
} ft_rows;

struct ft_chunk {
    ft_rows rows;
    const uint8_t *bytes;
    size_t size;
    void (*release)(void *context, const uint8_t *bytes, size_t size);
    void *context;
    uint64_t first_row; /* of the ring, when it was sealed */
    uint64_t owners; /* changed by atomic steps only */
    uint32_t coded[FT_MOST_CODERS]; /* frames, see ft_usage */
    ft_shelf shelf;
    ft_lane lanes[];
};

static inline size_t ft_count_class_bytes(const ft_rows *rows) { return 2 + 2 * rows->views * rows->layout.depth; }

/* Fill in what follows from layout, method, sizes and a transform; false where they make no sense. */
bool ft_init_rows(ft_rows *rows, const ft_schema *schema, int transform);

/* -- builder.c: the chunk that is open ------------------------------------------------------------------------------------ */

typedef struct ft_builder ft_builder;

/* What speaks against a layout of several frames: observations that neither follow from the last one nor begin an episode. Their
 * frames have to be looked for one by one, and are stored by themselves. */
typedef struct ft_doubt {
    uint64_t observations; /* all of them */
    uint64_t strays;       /* such ones, less those that have been made up for */
    uint64_t since;        /* observations when some were last made up for */
} ft_doubt;

/* Where there is a table of values, whatever stores frames may return FT_MANY_VALUES. */
int ft_builder_new(const ft_schema *schema, int transform, size_t most_rows, ft_builder **builder);
void ft_builder_free(ft_builder *builder);
/* Begin another chunk; what is known of streams stays, but for what lies in chunks. */
void ft_builder_begin(ft_builder *builder);
/* Make a sealed chunk of what has been committed, and begin another one. The records stay where they are: their memory is the
 * chunk's. Where that cannot be, nothing has changed. */
int ft_builder_seal(ft_builder *builder, uint64_t first_row, ft_chunk **chunk);
/* What is there to be read, up to the last commit. */
const ft_rows *ft_builder_get_rows(const ft_builder *builder);
/* Whether the next row has to go to another chunk. */
bool ft_builder_is_full(const ft_builder *builder);
/* Whether the last row has been written over so often that another chunk had better begin with it. */
bool ft_builder_has_much_in_vain(const ft_builder *builder);
/* As ft_column_doubts_layout. */
bool ft_builder_doubts_layout(const ft_builder *builder, uint64_t patience);
/* Whether parts make sense, FT_INVALID or FT_OUTSIDE; `*cells` are how many observations they have. */
int ft_builder_check_parts(const ft_builder *builder, const ft_part *parts, size_t n_parts, size_t *cells);
/* As ft_column_stage, for the row after the last one, or the last one again. */
int ft_builder_stage(ft_builder *builder, size_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs);
void ft_builder_commit(ft_builder *builder);
/* Put back what was there at the last commit, wherever a codec was called that has not returned; does nothing right after one. */
void ft_builder_abort(ft_builder *builder);
/* The last observation that a stream has seen, in C order; false where there is none. */
bool ft_builder_get_last(const ft_builder *builder, size_t stream, uint8_t *out);
/* Decode rows of another chunk and commit them here one by one, from a row on that comes next; or one to the last row, which gets the
 * cells that it lacks. What was seen that way is no reason to doubt the layout. On failure, some rows may have been copied. */
int ft_builder_copy_rows(ft_builder *builder, size_t row, const ft_rows *from, size_t first, size_t count, const ft_codecs *codecs);
/* Commit rows in which nothing is written. */
int ft_builder_skip_rows(ft_builder *builder, size_t count, const ft_codecs *codecs);
/* Have the group codec, if there is one, work on the groups that are still open, as nothing is going to be added to them. The first
 * is for a row that is staged, which is aborted if that fails; the other one for what has been committed, and commits that. */
int ft_builder_pack_staged(ft_builder *builder, const ft_codecs *codecs);
int ft_builder_pack(ft_builder *builder, const ft_codecs *codecs);
/* What has been seen so far. */
ft_doubt *ft_builder_get_doubt(ft_builder *builder);
/* Whether most frames have to be decoded by a codec. */
bool ft_builder_needs_codecs(const ft_builder *builder);
/* Add the frames of the open chunk to what was coded how. */
void ft_builder_count_coded(const ft_builder *builder, uint64_t coded[FT_MOST_CODERS]);
size_t ft_builder_count_index_bytes(const ft_builder *builder);
size_t ft_builder_count_held_bytes(const ft_builder *builder);

/* -- chunk.c -------------------------------------------------------------------------------------------------------------- */

/* Bytes of the sealed chunk that would be made of some rows, and that chunk, with as many bytes at `out`. The data may be where it
 * goes to already. */
size_t ft_measure_chunk(const ft_rows *rows);
void ft_write_chunk(const ft_rows *rows, uint64_t first_row, uint8_t *out);
/* Make that chunk, in memory of its own. Returns FT_OK or FT_NO_MEMORY. */
int ft_copy_chunk(const ft_rows *rows, uint64_t first_row, ft_chunk **chunk);
/* Memory for a chunk that is not there yet, and, once ft_write_chunk has written its pages, that chunk, which frees them. A
 * caller that wants none after all must free the memory with ft_free. */
ft_chunk *ft_alloc_chunk(size_t n_streams);
void ft_set_up_chunk(ft_chunk *chunk, const uint8_t *pages, size_t size);
/* Count owners of something, which is changed by atomic steps only; returns how many there are then. */
uint64_t ft_add_owners(uint64_t *owners, int64_t by);
/* Memory that it takes, and what of it is not records. */
size_t ft_chunk_count_held_bytes(const ft_chunk *chunk);
size_t ft_chunk_count_index_bytes(const ft_chunk *chunk);

/* -- codebooks.c ---------------------------------------------------------------------------------------------------------- */

/* The tables of the codebook at an offset, made if they are not there yet. Safe in any thread.
 * Returns FT_OK, FT_DAMAGED or FT_NO_MEMORY. */
int ft_find_tables(const ft_rows *rows, size_t offset, const ft_tables **found);
void ft_clear_shelf(ft_shelf *shelf);
/* Put tables on a shelf that no other thread sees yet, unless it has some for the codebook at that offset; it owns them, too, then.
 * Without memory it does not, and they are made once more when they are needed. */
void ft_put_on_shelf(ft_shelf *shelf, size_t offset, ft_tables *tables);
/* The tables of a shelf, or NULL. */
ft_tables *ft_look_on_shelf(ft_shelf *shelf, size_t offset);
/* Tables have several owners. */
void ft_keep_tables(ft_tables *tables);
void ft_drop_tables(ft_tables *tables);

/* -- coders.c, decode.c --------------------------------------------------------------------------------------------------- */

/* Memory of one thread that decodes: `ft_measure_scratch` of it. */
size_t ft_measure_scratch(const ft_rows *rows);
/* Decode a cell. Outputs hold one observation each; `room[view]` bytes after them may be written to and are decoded later. */
int ft_decode_cell(const ft_rows *rows, size_t row, size_t stream, uint8_t *const outputs[FT_MAX_VIEWS],
              const size_t room[FT_MAX_VIEWS], uint8_t *scratch, const ft_codecs *codecs);
/* Decode a frame, as it is coded, to the beginning of the scratch. */
int ft_decode_frame(const ft_rows *rows, const ft_lane *lane, size_t frame, uint8_t *scratch, const ft_codecs *codecs);
/* Have what it takes to decode a cell come to a cache, step by step, each of which needs what the one before it has fetched; or note
 * its pages, where there is a list for them. */
enum { FT_FETCH_INDEX, FT_FETCH_HEADERS, FT_FETCH_FRAMES, FT_FETCH_OBJECTS, FT_FETCH_STEPS };
void ft_fetch_cell(const ft_rows *rows, size_t row, size_t stream, const bool wanted[FT_MAX_VIEWS], int step, ft_asked *asked);
/* Which views of a cell are written, as bits. */
unsigned ft_find_written_views(const ft_rows *rows, size_t row, size_t stream);
/* How many cells of some rows are written, each view for itself. Looks at exceptions only. */
uint64_t ft_count_written_cells(const ft_rows *rows, size_t first, size_t stop);

#endif
