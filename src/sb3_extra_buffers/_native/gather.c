/* Reading from many cells at once: observations of a column, and values of a plain array. */
#include "asking.h"
#include "ring.h"
#include "parallel.h"

#include <string.h>

enum {
    PIECE = 4, /* cells that one of two threads takes at a time */
    /* How many cells before its turn each part of one is fetched; each is found by means of the one before it. */
    AHEAD_INDEX = 6,
    AHEAD_HEADERS = 4,
    AHEAD_FRAMES = 2,
    AHEAD_OBJECTS = 1,
    AHEAD_VALUES = 16, /* in a plain array, where there is less to do between two cells */
};
/* Having a smaller output decoded by two takes longer than it saves; waking a helper up for it takes longer still. */
#define WORTH_SHARING ((size_t)1 << 20)
#define WORTH_WAKING ((size_t)1 << 21)
#ifndef CACHED
#define CACHED ((size_t)1 << 19) /* a ring of fewer bytes is in the processor's second-level cache, about */
#endif

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
    bool wanted[FT_MAX_VIEWS];
    size_t obs_bytes, views;
    size_t scratch_bytes; /* of each worker */
    const ft_codecs *codecs;
    uint8_t *scratch;
    bool for_codecs; /* whether a codec does most of the work: two threads would wait for each other, as codecs are Python's */
    bool from_files; /* whether some of the chunks are not in memory of our own, so that they may be on a disk */
    bool ahead;      /* whether to fetch what is needed next; takes longer where all is in a cache anyway */
    int results[2];
};

/* -- finding the cells ---------------------------------------------------------------------------------------------------- */

/* Memory for decoding what is read at once. */
static uint8_t *alloc_scratch(const ft_column *column) {
    const size_t bytes = ft_measure_scratch(ft_builder_get_rows(column->open));
    const ft_span *older = ft_find_older(column);
    const size_t other = older != NULL ? ft_measure_scratch(&older->chunk->rows) : 0; /* its layout may be another one */
    return ft_alloc(1, bytes > other ? bytes : other);
}

/* Whether chunks are larger than what is in a cache anyway. */
static bool are_large(const ft_column *column) {
    size_t bytes = 0;
    for (size_t k = 0; k < column->n_spans && bytes <= CACHED; k++) {
        bytes += column->spans[k].chunk->size;
    }
    return bytes > CACHED;
}

/* Decode a cell of the open chunk, or of none. */
static int read_now(const ft_column *column, const ft_rows *rows, size_t place, size_t i, const ft_read *read, size_t output,
                    uint8_t **scratch) {
    uint8_t *outputs[FT_MAX_VIEWS] = {NULL, NULL}, *missing[FT_MAX_VIEWS] = {NULL, NULL};
    const size_t room[FT_MAX_VIEWS] = {0, 0};
    for (size_t view = 0; view < read->views; view++) {
        outputs[view] = read->outputs[view] == NULL ? NULL : read->outputs[view] + output * read->obs_bytes;
        if (rows == NULL && outputs[view] != NULL) {
            memset(outputs[view], 0, read->obs_bytes);
        }
    }
    if (rows == NULL) {
        return FT_OK;
    }
    if (*scratch == NULL && (*scratch = alloc_scratch(column)) == NULL) {
        return FT_NO_MEMORY;
    }
    const ft_span *older = place + 1 == rows->rows ? ft_find_older(column) : NULL;
    if (older != NULL) {
        const unsigned written = ft_find_written_views(rows, place, i);
        for (size_t view = 0; view < read->views; view++) {
            if (!(written >> view & 1)) {
                missing[view] = outputs[view];
                outputs[view] = NULL;
            }
        }
        const size_t older_row = ft_row_in_chunk(older, column->open_first + place);
        const int result = ft_decode_cell(&older->chunk->rows, older_row, i, missing, room, *scratch, read->codecs);
        if (result != FT_OK) {
            return result;
        }
    }
    return ft_decode_cell(rows, place, i, outputs, room, *scratch, read->codecs);
}

int ft_read_begin(const ft_column *column, const int64_t *rows, const int64_t *streams, size_t count,
                  uint8_t *const outputs[FT_MAX_VIEWS], const ft_codecs *codecs, ft_read **begun) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    ft_read *read = ft_alloc(1, sizeof *read);
    *begun = NULL;
    if (read == NULL) {
        return FT_NO_MEMORY;
    }
    *read = (ft_read){.obs_bytes = open->obs_bytes, .views = open->views, .codecs = codecs};
    for (size_t view = 0; view < FT_MAX_VIEWS; view++) {
        read->outputs[view] = view < open->views ? outputs[view] : NULL;
        read->wanted[view] = read->outputs[view] != NULL;
    }
    read->for_codecs = ft_builder_needs_codecs(column->open);
    read->ahead = are_large(column);
    read->tasks = ft_resize(NULL, count, sizeof *read->tasks);
    uint8_t *scratch = NULL;
    int result = read->tasks != NULL ? FT_OK : FT_NO_MEMORY;
    for (size_t k = 0; k < count && result == FT_OK; k++) {
        if (rows[k] < 0 || (uint64_t)rows[k] >= column->rows || streams[k] < 0 || (uint64_t)streams[k] >= open->n_streams) {
            result = FT_OUTSIDE;
            break;
        }
        size_t place;
        ft_chunk *chunk;
        const ft_rows *found = ft_find_row(column, (uint64_t)rows[k], &place, &chunk);
        if (chunk == NULL) {
            result = read_now(column, found, place, (size_t)streams[k], read, k, &scratch);
            continue;
        }
        ft_chunk_keep(chunk);
        FT_FETCH(&chunk->lanes[streams[k]]);
        read->from_files = read->from_files || chunk->context != NULL;
        read->tasks[read->count++] = (task){chunk, (uint32_t)place, (uint32_t)streams[k], k};
        const size_t bytes = ft_measure_scratch(found);
        read->scratch_bytes = bytes > read->scratch_bytes ? bytes : read->scratch_bytes;
    }
    ft_free(scratch);
    if (result != FT_OK) {
        ft_read_end(read);
        return result;
    }
    *begun = read;
    return FT_OK;
}

/* -- decoding them -------------------------------------------------------------------------------------------------------- */

/* The cell whose turn comes so many after those from `first` to `stop` have begun, `read->count` where there is none: a helper goes
 * on with the piece before its own. What the other of two takes in the end is fetched for nothing, but that is little. */
static size_t task_ahead(const ft_read *read, int worker, size_t first, size_t stop, size_t k) {
    for (; worker == 1 && k >= stop; first -= PIECE) {
        if (first < PIECE) {
            return read->count;
        }
        k = first - PIECE + (k - stop);
        stop = first;
    }
    return k < read->count ? k : read->count;
}

static void fetch_ahead(const ft_read *read, int worker, size_t first, size_t stop, size_t k, int step) {
    const size_t other = task_ahead(read, worker, first, stop, k);
    if (other < read->count) {
        const task *of = &read->tasks[other];
        ft_fetch_cell(&of->chunk->rows, of->place, of->stream, read->wanted, step, NULL);
    }
}

static bool run_tasks(void *context, int worker, size_t first, size_t stop) {
    ft_read *read = context;
    uint8_t *scratch = read->scratch + (size_t)worker * read->scratch_bytes;
    const bool begins = worker == 0 ? first == 0 : stop == read->count;
    for (size_t k = 0; read->ahead && begins && k < AHEAD_INDEX; k++) {
        fetch_ahead(read, worker, first, stop, first + k, FT_FETCH_INDEX);
    }
    for (size_t k = first; k < stop; k++) {
        if (read->ahead) {
            fetch_ahead(read, worker, first, stop, k + AHEAD_INDEX, FT_FETCH_INDEX);
            fetch_ahead(read, worker, first, stop, k + AHEAD_HEADERS, FT_FETCH_HEADERS);
            fetch_ahead(read, worker, first, stop, k + AHEAD_FRAMES, FT_FETCH_FRAMES);
            fetch_ahead(read, worker, first, stop, k + AHEAD_OBJECTS, FT_FETCH_OBJECTS);
        }
        const task *of = &read->tasks[k];
        const bool before_another = k + 1 < stop && read->tasks[k + 1].output == of->output + 1;
        const size_t after = before_another ? read->obs_bytes : 0, room[FT_MAX_VIEWS] = {after, after};
        uint8_t *outputs[FT_MAX_VIEWS];
        for (size_t view = 0; view < FT_MAX_VIEWS; view++) {
            outputs[view] = read->outputs[view] == NULL ? NULL : read->outputs[view] + of->output * read->obs_bytes;
        }
        const int result = ft_decode_cell(&of->chunk->rows, of->place, of->stream, outputs, room, scratch, read->codecs);
        if (result != FT_OK) {
            read->results[worker] = result;
            return false;
        }
    }
    return true;
}

/* Ask for everything that cells on a disk need, one step after the other: each step is for all cells at once, and waits for the pages
 * of the one before it. */
static void ask_for_tasks(const ft_read *read, ft_asked *asked) {
    for (int step = 0; step < FT_FETCH_STEPS; step++) {
        for (size_t k = 0; k < read->count; k++) {
            const task *of = &read->tasks[k];
            if (of->chunk->context != NULL) {
                ft_fetch_cell(&of->chunk->rows, of->place, of->stream, read->wanted, step, asked);
            }
        }
        ft_ask_for_pages(asked);
    }
}

bool ft_column_can_share(const ft_column *column, size_t bytes) {
    return bytes >= WORTH_SHARING && !ft_builder_needs_codecs(column->open);
}

static size_t count_bytes(const ft_read *read) {
    return read->count * read->obs_bytes * (read->wanted[0] + (size_t)read->wanted[1]);
}

bool ft_read_is_small(const ft_read *read) { return count_bytes(read) < WORTH_SHARING; }

int ft_read_run(ft_read *read, int threads, const ft_codecs *codecs) {
    read->codecs = codecs;
    if (read->count == 0) {
        return FT_OK;
    }
    const size_t bytes = count_bytes(read);
    const bool shared = threads > 1 && read->count > PIECE && bytes >= WORTH_SHARING && !read->for_codecs;
    read->scratch = ft_resize(NULL, shared ? 2 : 1, read->scratch_bytes);
    if (read->scratch == NULL) {
        return FT_NO_MEMORY;
    }
    const bool asks = read->from_files && ft_reads_from_disk();
    const uint64_t waits = read->from_files && !asks ? ft_count_waits() : 0;
    ft_asked asked = {0};
    if (asks) {
        ask_for_tasks(read, &asked);
    }
    if (shared) {
        ft_work_on_two(run_tasks, read, read->count, PIECE, bytes >= WORTH_WAKING);
    } else {
        run_tasks(read, 0, 0, read->count);
    }
    if (read->from_files) {
        ft_note_disk(asks ? asked.absent > 0 : ft_count_waits() > waits);
    }
    ft_end_asking(&asked);
    return read->results[0] != FT_OK ? read->results[0] : read->results[1];
}

void ft_read_end(ft_read *read) {
    for (size_t k = 0; k < read->count; k++) {
        ft_chunk_drop(read->tasks[k].chunk);
    }
    ft_free(read->tasks);
    ft_free(read->scratch);
    ft_free(read);
}

/* -- plain arrays --------------------------------------------------------------------------------------------------------- */

/* One loop for each size that is common: the copy of so few bytes is one instruction then. */
#define GATHER(bytes)                                                                                                  \
    for (size_t k = 0; k < count; k++) {                                                                               \
        if (k + AHEAD_VALUES < count) {                                                                                \
            FT_FETCH(data + ((size_t)rows[k + AHEAD_VALUES] * n_streams + (size_t)streams[k + AHEAD_VALUES]) * (bytes)); \
        }                                                                                                              \
        memcpy(out + k * (bytes), data + ((size_t)rows[k] * n_streams + (size_t)streams[k]) * (bytes), (bytes));        \
    }

void ft_gather_cells(const uint8_t *data, size_t cell_bytes, size_t n_streams, const int64_t *rows, const int64_t *streams,
                     size_t count, uint8_t *out) {
    switch (cell_bytes) {
    case 1:
        GATHER(1)
        break;
    case 4:
        GATHER(4)
        break;
    case 8:
        GATHER(8)
        break;
    default:
        GATHER(cell_bytes)
    }
}

void ft_gather_pieces(const uint8_t *const *pieces, size_t piece_rows, size_t cell_bytes, size_t n_streams, const int64_t *rows,
                      const int64_t *streams, size_t count, uint8_t *out) {
    for (size_t k = 0; k < count; k++) {
        const size_t row = (size_t)rows[k], cell = row % piece_rows * n_streams + (size_t)streams[k];
        memcpy(out + k * cell_bytes, pieces[row / piece_rows] + cell * cell_bytes, cell_bytes);
    }
}
