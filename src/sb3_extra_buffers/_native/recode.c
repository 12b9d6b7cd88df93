/* Rows out of order: chunks are coded again, which is slow, and right. */
#include "column.h"

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

int ft_copy_rows(const ft_rows *from, size_t first, size_t count, ft_builder *to, const ft_change *what, const fl_codecs *codecs) {
    row_copy copy = {NULL, {NULL, NULL}, NULL};
    const ft_doubt before = *ft_builder_doubt(to);
    int result = make_row_copy(from, &copy) ? FL_OK : FL_NO_MEMORY;
    for (size_t place = first; place < first + count && result == FL_OK; place++) {
        result = copy_row(from, place, to, &copy, codecs);
        if (result == FL_OK && what != NULL && place == what->place) {
            result = ft_builder_stage(to, ft_builder_rows(to)->rows - 1, what->parts, what->n_parts, codecs);
            if (result == FL_OK) {
                ft_builder_commit(to);
            }
        }
    }
    free_row_copy(&copy);
    *ft_builder_doubt(to) = before; /* what was seen already says nothing new */
    return result;
}

int ft_stage_again(ft_column *column, const ft_rows *from, ft_chunk *chunk, const ft_change *what, const fl_codecs *codecs) {
    int result;
    ft_builder *fresh = ft_builder_new(&column->schema, column->chunk_rows > from->rows ? column->chunk_rows : from->rows, &result);
    if (fresh == NULL) {
        return result;
    }
    result = ft_copy_rows(from, 0, from->rows, fresh, what, codecs);
    if (result == FL_OK && chunk == NULL) {
        *ft_builder_doubt(fresh) = *ft_builder_doubt(column->open);
        column->other = fresh;
        return FL_OK;
    }
    if (result == FL_OK) {
        result = ft_builder_pack(fresh, codecs);
    }
    if (result == FL_OK) {
        column->sealed = ft_builder_seal(fresh, chunk->first_row, chunk->lap, &result);
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
        const ft_rows *from = ft_find_row(column, row, &place, &chunk);
        result = from != NULL ? ft_copy_rows(from, place, 1, column->open, NULL, codecs)
                              : skip_row(column->open, codecs);
    }
    return result == FL_OK ? ft_seal_open(column, codecs) : result;
}

int ft_go_on_at(ft_column *column, uint64_t row, const fl_codecs *codecs) {
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
