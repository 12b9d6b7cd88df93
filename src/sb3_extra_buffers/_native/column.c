/* The ring: which chunk holds which rows, rows in any order, and reading from many cells at once. */
#include "chunk.h"

#include <string.h>

enum {
    WRITTEN_AGAIN = 4, /* observations that a row may hold in vain before its chunk is coded again without them */
    PIECE = 4,         /* cells that one of two threads takes at a time */
};

struct ft_column {
    ft_schema schema;
    size_t rows, chunk_rows, blocks;
    ft_builder *open;
    uint64_t open_first;  /* row of the ring that the open chunk begins with */
    uint64_t lap;
    ft_chunk **by_block;  /* the sealed chunk that holds the rows of each block, as far as the open one does not */
    /* While a row is staged that is not the next, what takes the place of its chunk: */
    ft_builder *other;    /* of the open one, */
    ft_chunk *sealed;     /* or of a sealed one, */
    ft_chunk *replaced;   /* which is this one */
};

static size_t round_up(size_t rows) { return (rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS * FT_BLOCK_ROWS; }

/* -- making one -------------------------------------------------------------------------------------------------------------- */

ft_column *ft_column_new(const ft_schema *schema, size_t rows, size_t chunk_rows, int *result) {
    *result = FL_INVALID;
    chunk_rows = chunk_rows > 0 ? chunk_rows : 1;
    chunk_rows = chunk_rows < rows ? chunk_rows : rows;
    if (rows < 1 || rows > (size_t)INT64_MAX / 8 || chunk_rows > UINT16_MAX - FT_BLOCK_ROWS) {
        return NULL;
    }
    *result = FL_NO_MEMORY;
    ft_column *column = fl_alloc(1, sizeof *column);
    if (column == NULL) {
        return NULL;
    }
    column->schema = *schema;
    column->rows = rows;
    column->chunk_rows = round_up(chunk_rows);
    column->blocks = round_up(rows) / FT_BLOCK_ROWS;
    column->by_block = fl_alloc(column->blocks, sizeof *column->by_block);
    if (column->by_block != NULL) {
        column->open = ft_builder_new(schema, column->chunk_rows, result);
    }
    if (column->open == NULL) {
        ft_column_free(column);
        return NULL;
    }
    return column;
}

static void set_block(ft_column *column, size_t block, ft_chunk *chunk) {
    ft_chunk *before = column->by_block[block];
    column->by_block[block] = chunk;
    if (chunk != NULL) {
        ft_chunk_keep(chunk);
    }
    ft_chunk_drop(before);
}

static void forget_chunks(ft_column *column) {
    for (size_t block = 0; block < column->blocks; block++) {
        set_block(column, block, NULL);
    }
}

void ft_column_free(ft_column *column) {
    if (column == NULL) {
        return;
    }
    if (column->by_block != NULL) {
        forget_chunks(column);
    }
    ft_builder_free(column->open);
    ft_builder_free(column->other);
    ft_chunk_drop(column->sealed);
    fl_free(column->by_block);
    fl_free(column);
}

void ft_column_clear(ft_column *column) {
    forget_chunks(column);
    ft_builder_begin(column->open);
    column->open_first = column->lap = 0;
}

/* -- sealing ------------------------------------------------------------------------------------------------------------------ */

static void free_bytes(void *context, const uint8_t *bytes, size_t size) {
    (void)context;
    fl_free_pages((void *)(uintptr_t)bytes, size);
}

/* Make a sealed chunk of what has been committed to a builder. */
static ft_chunk *seal(const ft_builder *builder, uint64_t first_row, uint64_t lap, int *result) {
    const ft_rows *rows = ft_builder_rows(builder);
    const size_t size = ft_chunk_size(rows);
    uint8_t *bytes = fl_alloc_pages(size);
    *result = FL_NO_MEMORY;
    if (bytes == NULL) {
        return NULL;
    }
    ft_chunk_write(rows, first_row, lap, bytes);
    const char *what;
    ft_chunk *chunk = ft_chunk_open(bytes, size, free_bytes, NULL, result, &what);
    if (chunk == NULL) {
        fl_free_pages(bytes, size);
    }
    return chunk;
}

static void put_chunk(ft_column *column, ft_chunk *chunk, uint64_t first_row) {
    for (size_t k = 0; k < chunk->rows.rows; k += FT_BLOCK_ROWS) {
        set_block(column, (size_t)(first_row + k) / FT_BLOCK_ROWS, chunk);
    }
}

/* Seal the open chunk, which ends where a block or the ring ends. */
static int seal_open(ft_column *column, const fl_codecs *codecs) {
    const size_t rows = ft_builder_rows(column->open)->rows;
    int result = ft_builder_close_groups(column->open, codecs);
    if (result != FL_OK) {
        return result;
    }
    ft_chunk *chunk = seal(column->open, column->open_first, column->lap, &result);
    if (chunk == NULL) {
        return result;
    }
    put_chunk(column, chunk, column->open_first);
    ft_chunk_drop(chunk); /* its blocks own it now */
    column->open_first += rows;
    if (column->open_first >= column->rows) {
        column->open_first = 0;
        column->lap++;
    }
    ft_builder_begin(column->open);
    return FL_OK;
}

ft_chunk *ft_column_snapshot(const ft_column *column, int *result) {
    *result = FL_OK;
    return ft_builder_rows(column->open)->rows > 0 ? seal(column->open, column->open_first, column->lap, result) : NULL;
}

ft_chunk *ft_column_chunk(const ft_column *column, uint64_t row) {
    return row < column->rows ? column->by_block[row / FT_BLOCK_ROWS] : NULL;
}

bool ft_column_last(const ft_column *column, size_t stream, uint8_t *out) { return ft_builder_last(column->open, stream, out); }

/* -- where a row is ------------------------------------------------------------------------------------------------------------ */

/* The rows that a row of the ring is among, and its place there; NULL where it is unwritten. */
static const ft_rows *find_row(const ft_column *column, uint64_t row, size_t *place, ft_chunk **chunk) {
    const ft_rows *open = ft_builder_rows(column->open);
    *chunk = NULL;
    if (row >= column->open_first && row - column->open_first < open->rows) {
        *place = (size_t)(row - column->open_first);
        return open;
    }
    ft_chunk *found = column->by_block[row / FT_BLOCK_ROWS];
    if (found == NULL || row < found->first_row || row - found->first_row >= found->rows.rows) {
        return NULL;
    }
    *place = (size_t)(row - found->first_row);
    *chunk = found;
    return &found->rows;
}

/* -- rows out of order: chunks are coded again ------------------------------------------------------------------------------------ */

/* Memory for a row that is copied. */
typedef struct row_copy {
    uint8_t *obs; /* of each view, of each stream */
    size_t *streams[FT_MAX_VIEWS];
    uint8_t *scratch;
} row_copy;

static bool make_row_copy(const ft_rows *of, row_copy *copy) {
    copy->obs = fl_alloc(of->views * of->n_streams, of->obs_bytes);
    copy->streams[0] = fl_alloc(FT_MAX_VIEWS * of->n_streams, sizeof(size_t));
    copy->scratch = fl_alloc(1, ft_scratch_bytes(of));
    copy->streams[1] = copy->streams[0] != NULL ? copy->streams[0] + of->n_streams : NULL;
    return copy->obs && copy->streams[0] && copy->scratch;
}

static void free_row_copy(row_copy *copy) {
    fl_free(copy->obs);
    fl_free(copy->streams[0]);
    fl_free(copy->scratch);
}

/* Add a row of other rows to a builder, whole or not at all. */
static int copy_row(const ft_rows *from, size_t place, ft_builder *to, row_copy *copy, const fl_codecs *codecs) {
    const size_t views = from->views < FT_MAX_VIEWS ? from->views : FT_MAX_VIEWS; /* never more, but compilers cannot know */
    ft_part parts[FT_MAX_VIEWS];
    for (size_t view = 0; view < views; view++) {
        parts[view] = (ft_part){view, copy->obs + view * from->n_streams * from->obs_bytes, false, copy->streams[view], 0};
    }
    for (size_t i = 0; i < from->n_streams; i++) {
        const unsigned written = ft_written(from, place, i);
        uint8_t *outputs[FT_MAX_VIEWS] = {NULL, NULL};
        const size_t room[FT_MAX_VIEWS] = {0, 0};
        for (size_t view = 0; view < views; view++) {
            if (written >> view & 1) {
                outputs[view] = copy->obs + (view * from->n_streams + parts[view].count) * from->obs_bytes;
                copy->streams[view][parts[view].count++] = i;
            }
        }
        const int result = ft_decode(from, place, i, outputs, room, copy->scratch, codecs);
        if (result != FL_OK) {
            return result;
        }
    }
    const int result = ft_builder_stage(to, ft_builder_rows(to)->rows, parts, views, codecs);
    if (result == FL_OK) {
        ft_builder_commit(to);
    }
    return result;
}

/* Add a row in which nothing is written. */
static int skip_row(ft_builder *to, const fl_codecs *codecs) {
    const int result = ft_builder_stage(to, ft_builder_rows(to)->rows, NULL, 0, codecs);
    if (result == FL_OK) {
        ft_builder_commit(to);
    }
    return result;
}

/* What is to be written to one row while rows are copied. */
typedef struct change {
    size_t place; /* of the row; SIZE_MAX for none */
    const ft_part *parts;
    size_t n_parts;
} change;

/* Add `count` rows of other rows to a builder, and make a change on the way. */
static int copy_rows(const ft_rows *from, size_t first, size_t count, ft_builder *to, const change *what, const fl_codecs *codecs) {
    row_copy copy = {NULL, {NULL, NULL}, NULL};
    int result = make_row_copy(from, &copy) ? FL_OK : FL_NO_MEMORY;
    for (size_t place = first; place < first + count && result == FL_OK; place++) {
        result = copy_row(from, place, to, &copy, codecs);
        if (result == FL_OK && place == what->place) {
            result = ft_builder_stage(to, ft_builder_rows(to)->rows - 1, what->parts, what->n_parts, codecs);
            if (result == FL_OK) {
                ft_builder_commit(to);
            }
        }
    }
    free_row_copy(&copy);
    return result;
}

static const change NO_CHANGE = {SIZE_MAX, NULL, 0};

/* Stage a row that is in a chunk already, by coding that chunk again. */
static int stage_again(ft_column *column, const ft_rows *from, ft_chunk *chunk, const change *what, const fl_codecs *codecs) {
    int result;
    ft_builder *fresh = ft_builder_new(&column->schema, column->chunk_rows > from->rows ? column->chunk_rows : from->rows, &result);
    if (fresh == NULL) {
        return result;
    }
    result = copy_rows(from, 0, from->rows, fresh, what, codecs);
    if (result == FL_OK && chunk == NULL) {
        column->other = fresh;
        return FL_OK;
    }
    if (result == FL_OK) {
        result = ft_builder_close_groups(fresh, codecs);
    }
    if (result == FL_OK) {
        column->sealed = seal(fresh, chunk->first_row, chunk->lap, &result);
        column->replaced = chunk;
    }
    ft_builder_free(fresh);
    return result;
}

/* Have the open chunk end where its block ends: rows that follow are taken from the chunk that holds them, or are unwritten. */
static int finish_block(ft_column *column, const fl_codecs *codecs) {
    int result = FL_OK;
    for (;;) {
        const uint64_t row = column->open_first + ft_builder_rows(column->open)->rows;
        if (result != FL_OK || row % FT_BLOCK_ROWS == 0 || row >= column->rows) {
            break;
        }
        size_t place;
        ft_chunk *chunk;
        const ft_rows *from = find_row(column, row, &place, &chunk);
        result = from != NULL ? copy_rows(from, place, 1, column->open, &NO_CHANGE, codecs)
                              : skip_row(column->open, codecs);
    }
    return result == FL_OK ? seal_open(column, codecs) : result;
}

/* Have the next row of the open chunk be an unwritten one further on, and those before it unwritten, too. */
static int go_on_at(ft_column *column, uint64_t row, const fl_codecs *codecs) {
    const uint64_t next = column->open_first + ft_builder_rows(column->open)->rows;
    const bool is_begun = next % FT_BLOCK_ROWS != 0 && next / FT_BLOCK_ROWS == row / FT_BLOCK_ROWS && next < row;
    int result = FL_OK;
    if (!is_begun) {
        result = next > column->open_first ? finish_block(column, codecs) : FL_OK;
        if (result != FL_OK) {
            return result;
        }
        column->open_first = row / FT_BLOCK_ROWS * FT_BLOCK_ROWS;
    }
    while (result == FL_OK && column->open_first + ft_builder_rows(column->open)->rows < row) {
        result = skip_row(column->open, codecs);
    }
    return result;
}

int ft_column_set_layout(ft_column *column, const fl_layout *layout, const fl_codecs *codecs) {
    int result;
    ft_schema schema = column->schema;
    schema.layout = *layout;
    ft_builder *fresh = ft_builder_new(&schema, column->chunk_rows, &result);
    if (fresh == NULL) {
        return result;
    }
    const ft_rows *open = ft_builder_rows(column->open);
    if (ft_builder_rows(fresh)->obs_bytes != open->obs_bytes) {
        result = FL_INVALID;
    } else {
        result = copy_rows(open, 0, open->rows, fresh, &NO_CHANGE, codecs);
    }
    if (result != FL_OK) {
        ft_builder_free(fresh);
        return result;
    }
    ft_builder_free(column->open);
    column->open = fresh;
    column->schema = schema;
    return FL_OK;
}

/* -- writing -------------------------------------------------------------------------------------------------------------------- */

static bool has_little_in_vain(const ft_column *column) {
    const ft_rows *open = ft_builder_rows(column->open);
    const size_t most = WRITTEN_AGAIN * open->views * open->layout.depth;
    for (size_t i = 0; i < open->n_streams; i++) {
        if (ft_builder_last_added(column->open, i) > most) {
            return false;
        }
    }
    return true;
}

/* Whether parts make sense; `*cells` are how many observations they have. */
static int check_parts(const ft_rows *open, const ft_part *parts, size_t n_parts, size_t *cells) {
    *cells = 0;
    for (size_t part = 0; part < n_parts; part++) {
        if (parts[part].view >= open->views || (parts[part].turned && !open->layout.can_turn) || parts[part].count > open->n_streams ||
            (part > 0 && parts[part].view == parts[0].view)) {
            return FL_INVALID;
        }
        for (size_t k = 0; parts[part].streams != NULL && k < parts[part].count; k++) {
            if (parts[part].streams[k] >= open->n_streams) {
                return FL_OUTSIDE;
            }
        }
        *cells += parts[part].count;
    }
    return n_parts <= open->views ? FL_OK : FL_INVALID;
}

int ft_column_stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const fl_codecs *codecs) {
    const ft_rows *open = ft_builder_rows(column->open);
    size_t cells;
    const int sound = row < column->rows ? check_parts(open, parts, n_parts, &cells) : FL_OUTSIDE;
    if (sound != FL_OK) {
        return sound;
    }
    uint64_t next = column->open_first + open->rows;
    if (open->rows > 0 && (next >= column->rows || (next % FT_BLOCK_ROWS == 0 && ft_builder_is_full(column->open)))) {
        const bool goes_on = row == (next >= column->rows ? 0 : next);
        if (goes_on) { /* else the last rows may be written again, which is easier while they are open */
            const int result = seal_open(column, codecs);
            if (result != FL_OK) {
                return result;
            }
            next = column->open_first;
        }
    }
    size_t place;
    ft_chunk *chunk;
    const ft_rows *from = find_row(column, row, &place, &chunk);
    if (row == next && from != NULL && cells < open->views * open->n_streams) {
        /* What is not written stays as it was in the last lap. */
        const int result = copy_rows(from, place, 1, column->open, &NO_CHANGE, codecs);
        if (result != FL_OK) {
            return result;
        }
        next++;
    }
    const bool again = open->rows > 0 && row + 1 == next && has_little_in_vain(column);
    if (row != next && !again) {
        if (from != NULL) {
            const change what = {place, parts, n_parts};
            return stage_again(column, from, chunk, &what, codecs);
        }
        const int result = go_on_at(column, row, codecs);
        if (result != FL_OK) {
            return result;
        }
    }
    return ft_builder_stage(column->open, (size_t)(row - column->open_first), parts, n_parts, codecs);
}

void ft_column_commit(ft_column *column) {
    if (column->other != NULL) {
        ft_builder_free(column->open);
        column->open = column->other;
        column->other = NULL;
        return;
    }
    if (column->sealed != NULL) {
        const size_t first = (size_t)column->sealed->first_row / FT_BLOCK_ROWS;
        const ft_chunk *before = column->replaced;
        for (size_t block = first; block * FT_BLOCK_ROWS < column->sealed->first_row + column->sealed->rows.rows; block++) {
            if (column->by_block[block] == before) { /* others of its rows may have been written over by the ring */
                set_block(column, block, column->sealed);
            }
        }
        ft_chunk_drop(column->sealed);
        column->sealed = NULL;
        return;
    }
    ft_builder_commit(column->open);
    const uint64_t next = column->open_first + ft_builder_rows(column->open)->rows;
    if (next % FT_BLOCK_ROWS == 0 || next >= column->rows) {
        set_block(column, (size_t)(next - 1) / FT_BLOCK_ROWS, NULL); /* what it held before is written over */
    }
}

void ft_column_abort(ft_column *column) {
    if (column->other == NULL && column->sealed == NULL) {
        ft_builder_abort(column->open);
    }
    ft_builder_free(column->other);
    ft_chunk_drop(column->sealed);
    column->other = NULL;
    column->sealed = NULL;
}

/* -- chunks from elsewhere ---------------------------------------------------------------------------------------------------------- */

static bool fits(const ft_column *column, const ft_chunk *chunk) {
    const ft_rows *own = ft_builder_rows(column->open), *other = &chunk->rows;
    return own->obs_bytes == other->obs_bytes && own->layout.item == other->layout.item && own->n_streams == other->n_streams &&
           own->views == other->views && own->method.references == other->method.references &&
           own->method.packs == other->method.packs;
}

int ft_column_adopt(ft_column *column, ft_chunk *chunk, uint64_t first_row) {
    const uint64_t rows = chunk->rows.rows, open = ft_builder_rows(column->open)->rows;
    if (!fits(column, chunk) || chunk->owners != 1 || first_row % FT_BLOCK_ROWS != 0 || first_row >= column->rows ||
        rows > column->rows - first_row || ((first_row + rows) % FT_BLOCK_ROWS != 0 && first_row + rows != column->rows)) {
        return FL_INVALID;
    }
    if (open > 0 && first_row < round_up((size_t)(column->open_first + open)) && column->open_first < first_row + rows) {
        return FL_INVALID; /* rows that are being written */
    }
    chunk->first_row = first_row;
    put_chunk(column, chunk, first_row);
    ft_chunk_drop(chunk);
    return FL_OK;
}

int ft_column_resume(ft_column *column, const ft_chunk *chunk, uint64_t first_row, uint64_t lap, const fl_codecs *codecs) {
    const ft_rows *from = &chunk->rows;
    if (!fits(column, chunk) || ft_builder_rows(column->open)->rows > 0 || first_row % FT_BLOCK_ROWS != 0 ||
        first_row >= column->rows || from->rows > column->rows - first_row || from->rows > column->chunk_rows) {
        return FL_INVALID;
    }
    const int result = copy_rows(from, 0, from->rows, column->open, &NO_CHANGE, codecs);
    if (result != FL_OK) {
        ft_builder_begin(column->open);
        return result;
    }
    column->open_first = first_row;
    column->lap = lap;
    for (uint64_t row = first_row; row + FT_BLOCK_ROWS <= first_row + from->rows; row += FT_BLOCK_ROWS) {
        set_block(column, (size_t)row / FT_BLOCK_ROWS, NULL);
    }
    return FL_OK;
}

/* -- what it holds ------------------------------------------------------------------------------------------------------------------ */

static void count_cells(const ft_rows *rows, size_t first, size_t stop, ft_usage *usage) {
    for (size_t row = first; row < stop; row++) {
        for (size_t i = 0; i < rows->n_streams; i++) {
            const unsigned written = ft_written(rows, row, i);
            usage->cells += (written & 1) + (written >> 1 & 1);
        }
    }
}

ft_usage ft_column_usage(const ft_column *column) {
    const ft_rows *open = ft_builder_rows(column->open);
    ft_usage usage = {0, open->data_bytes, ft_builder_index_bytes(column->open), ft_builder_held_bytes(column->open), 0};
    for (size_t i = 0; i < open->n_streams; i++) {
        usage.frames += open->lanes[i].frames;
        usage.frame_bytes += open->lanes[i].open_bytes;
    }
    count_cells(open, 0, open->rows, &usage);
    const ft_chunk *last = NULL;
    for (size_t block = 0; block < column->blocks; block++) {
        const ft_chunk *chunk = column->by_block[block];
        if (chunk == NULL) {
            continue;
        }
        if (chunk != last) { /* the blocks of a chunk lie side by side */
            usage.frame_bytes += chunk->rows.data_bytes;
            usage.index_bytes += ft_chunk_index_bytes(chunk);
            usage.held_bytes += chunk->size;
            for (size_t i = 0; i < chunk->rows.n_streams; i++) {
                usage.frames += chunk->lanes[i].frames;
            }
        }
        last = chunk;
        for (uint64_t row = block * FT_BLOCK_ROWS; row < (block + 1) * FT_BLOCK_ROWS && row < column->rows; row++) {
            size_t place;
            ft_chunk *holds;
            if (find_row(column, row, &place, &holds) == &chunk->rows) {
                count_cells(&chunk->rows, place, place + 1, &usage);
            }
        }
    }
    usage.index_bytes += column->blocks * sizeof *column->by_block;
    return usage;
}

/* -- reading ------------------------------------------------------------------------------------------------------------------------ */

/* A cell of a sealed chunk, to be decoded. */
typedef struct task {
    ft_chunk *chunk; /* kept until the end */
    uint32_t place, stream;
    size_t output;   /* which of the outputs' observations it is */
} task;

struct ft_read {
    task *tasks;
    size_t count;
    uint8_t *outputs[FT_MAX_VIEWS];
    size_t obs_bytes, views;
    size_t scratch_bytes; /* of each worker */
    const fl_codecs *codecs;
    uint8_t *scratch;
    bool for_codecs; /* whether a codec does most of the work: two threads would wait for each other, as codecs are Python's */
    int results[2];
};

/* Decode a cell of the open chunk, or of none. */
static int read_now(const ft_rows *rows, size_t place, size_t i, const ft_read *read, size_t output, uint8_t **scratch) {
    uint8_t *outputs[FT_MAX_VIEWS] = {NULL, NULL};
    const size_t room[FT_MAX_VIEWS] = {0, 0};
    for (size_t view = 0; view < read->views; view++) {
        outputs[view] = read->outputs[view] == NULL ? NULL : read->outputs[view] + output * read->obs_bytes;
        if (rows == NULL && outputs[view] != NULL) {
            memset(outputs[view], 0, read->obs_bytes);
        }
    }
    if (rows == NULL) {
        return FL_OK;
    }
    if (*scratch == NULL && (*scratch = fl_alloc(1, ft_scratch_bytes(rows))) == NULL) {
        return FL_NO_MEMORY;
    }
    return ft_decode(rows, place, i, outputs, room, *scratch, read->codecs);
}

ft_read *ft_read_begin(const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count,
                       uint8_t *const outputs[FT_MAX_VIEWS], const fl_codecs *codecs, int *result) {
    const ft_rows *open = ft_builder_rows(column->open);
    ft_read *read = fl_alloc(1, sizeof *read);
    *result = FL_NO_MEMORY;
    if (read == NULL) {
        return NULL;
    }
    *read = (ft_read){.obs_bytes = open->obs_bytes, .views = open->views, .codecs = codecs};
    memcpy(read->outputs, outputs, sizeof read->outputs);
    read->for_codecs = open->method.packs || !open->method.references;
    read->tasks = fl_resize(NULL, count, sizeof *read->tasks);
    uint8_t *scratch = NULL;
    *result = read->tasks != NULL ? FL_OK : FL_NO_MEMORY;
    for (size_t k = 0; k < count && *result == FL_OK; k++) {
        if (rows[k] < 0 || (uint64_t)rows[k] >= column->rows || streams[k] < 0 || (uint64_t)streams[k] >= open->n_streams) {
            *result = FL_OUTSIDE;
            break;
        }
        size_t place;
        ft_chunk *chunk;
        const ft_rows *found = find_row(column, (uint64_t)rows[k], &place, &chunk);
        if (chunk == NULL) {
            *result = read_now(found, place, (size_t)streams[k], read, k, &scratch);
            continue;
        }
        ft_chunk_keep(chunk);
        read->tasks[read->count++] = (task){chunk, (uint32_t)place, (uint32_t)streams[k], k};
        const size_t bytes = ft_scratch_bytes(found);
        read->scratch_bytes = bytes > read->scratch_bytes ? bytes : read->scratch_bytes;
    }
    fl_free(scratch);
    if (*result != FL_OK) {
        ft_read_end(read);
        return NULL;
    }
    return read;
}

static bool run_tasks(void *context, int worker, size_t first, size_t stop) {
    ft_read *read = context;
    uint8_t *scratch = read->scratch + (size_t)worker * read->scratch_bytes;
    for (size_t k = first; k < stop; k++) {
        const task *of = &read->tasks[k];
        const bool before_another = k + 1 < stop && read->tasks[k + 1].output == of->output + 1;
        const size_t after = before_another ? read->obs_bytes : 0, room[FT_MAX_VIEWS] = {after, after};
        uint8_t *outputs[FT_MAX_VIEWS];
        for (size_t view = 0; view < FT_MAX_VIEWS; view++) {
            outputs[view] = read->outputs[view] == NULL ? NULL : read->outputs[view] + of->output * read->obs_bytes;
        }
        const int result = ft_decode(&of->chunk->rows, of->place, of->stream, outputs, room, scratch, read->codecs);
        if (result != FL_OK) {
            read->results[worker] = result;
            return false;
        }
    }
    return true;
}

int ft_read_run(ft_read *read, int threads, const fl_codecs *codecs) {
    read->codecs = codecs;
    if (read->count == 0) {
        return FL_OK;
    }
    const size_t wanted = (read->outputs[0] != NULL ? 1u : 0u) + (read->outputs[1] != NULL ? 1u : 0u);
    const size_t bytes = read->count * read->obs_bytes * wanted;
    const bool shared = threads > 1 && read->count > PIECE && bytes >= FL_WORTH_SHARING && !read->for_codecs;
    read->scratch = fl_resize(NULL, shared ? 2 : 1, read->scratch_bytes);
    if (read->scratch == NULL) {
        return FL_NO_MEMORY;
    }
    if (shared) {
        fl_work_on_two(run_tasks, read, read->count, PIECE, bytes >= FL_WORTH_WAKING);
    } else {
        run_tasks(read, 0, 0, read->count);
    }
    return read->results[0] != FL_OK ? read->results[0] : read->results[1];
}

void ft_read_end(ft_read *read) {
    for (size_t k = 0; k < read->count; k++) {
        ft_chunk_drop(read->tasks[k].chunk);
    }
    fl_free(read->tasks);
    fl_free(read->scratch);
    fl_free(read);
}
