/* Rows out of order: chunks are coded again, which is slow, and right. */
#include "column.h"
#include "values.h"

#include <limits.h>

enum { LONGEST_PAUSE = 64 };

static bool make_row_copy(const ft_rows *of, ft_row_copy *copy) {
    copy->obs = ft_alloc(of->views * of->n_streams, of->obs_bytes);
    copy->streams[0] = ft_alloc(FT_MAX_VIEWS * of->n_streams, sizeof(size_t));
    copy->scratch = ft_alloc(1, ft_measure_scratch(of));
    copy->streams[1] = copy->streams[0] != NULL ? copy->streams[0] + of->n_streams : NULL;
    return copy->obs && copy->streams[0] && copy->scratch;
}

void ft_free_row_copy(ft_row_copy *copy) {
    ft_free(copy->obs);
    ft_free(copy->streams[0]);
    ft_free(copy->scratch);
    *copy = (ft_row_copy){NULL, {NULL, NULL}, NULL};
}

/* Decode those of the wanted views of a row that are written; each view makes a part, which may be empty. */
static int decode_row(const ft_rows *from, size_t place, unsigned wanted, ft_row_copy *copy, ft_part parts[FT_MAX_VIEWS],
                      size_t *n_views, const ft_codecs *codecs) {
    const size_t views = from->views < FT_MAX_VIEWS ? from->views : FT_MAX_VIEWS; /* never more, but compilers cannot know */
    *n_views = views;
    for (size_t view = 0; view < views; view++) {
        parts[view] = (ft_part){view, copy->obs + view * from->n_streams * from->obs_bytes, false, copy->streams[view], 0};
    }
    for (size_t i = 0; i < from->n_streams; i++) {
        const unsigned written = ft_find_written_views(from, place, i) & wanted;
        uint8_t *outputs[FT_MAX_VIEWS] = {NULL, NULL};
        const size_t room[FT_MAX_VIEWS] = {0, 0};
        for (size_t view = 0; view < views; view++) {
            if (written >> view & 1) {
                outputs[view] = copy->obs + (view * from->n_streams + parts[view].count) * from->obs_bytes;
                copy->streams[view][parts[view].count++] = i;
            }
        }
        const int result = ft_decode_cell(from, place, i, outputs, room, copy->scratch, codecs);
        if (result != FT_OK) {
            return result;
        }
    }
    return FT_OK;
}

/* Add a row of other rows to a builder, whole or not at all. */
static int copy_row(const ft_rows *from, size_t place, ft_builder *to, ft_row_copy *copy, const ft_codecs *codecs) {
    ft_part parts[FT_MAX_VIEWS];
    size_t views;
    int result = decode_row(from, place, UINT_MAX, copy, parts, &views, codecs);
    if (result == FT_OK) {
        result = ft_builder_stage(to, ft_builder_get_rows(to)->rows, parts, views, codecs);
    }
    if (result == FT_OK) {
        ft_builder_commit(to);
    }
    return result;
}

/* Add a row in which nothing is written. */
static int skip_row(ft_builder *to, const ft_codecs *codecs) {
    const int result = ft_builder_stage(to, ft_builder_get_rows(to)->rows, NULL, 0, codecs);
    if (result == FT_OK) {
        ft_builder_commit(to);
    }
    return result;
}

int ft_copy_rows(ft_column *column, const ft_rows *from, size_t first, size_t count, ft_builder *to, const ft_change *what,
                 const ft_codecs *codecs) {
    const ft_doubt before = *ft_builder_get_doubt(to);
    int result = make_row_copy(from, &column->copy) ? FT_OK : FT_NO_MEMORY;
    for (size_t place = first; place < first + count && result == FT_OK; place++) {
        result = copy_row(from, place, to, &column->copy, codecs);
        if (result == FT_OK && what != NULL && place == what->place) {
            result = ft_builder_stage(to, ft_builder_get_rows(to)->rows - 1, what->parts, what->n_parts, codecs);
            if (result == FT_OK) {
                ft_builder_commit(to);
            }
        }
    }
    ft_free_row_copy(&column->copy);
    *ft_builder_get_doubt(to) = before; /* what was seen already says nothing new */
    return result;
}

int ft_copy_missing(ft_column *column, const ft_codecs *codecs) {
    size_t place, views;
    const ft_rows *from = ft_find_missing(column, &place);
    if (from == NULL) {
        return FT_OK;
    }
    const ft_doubt before = *ft_builder_get_doubt(column->open);
    ft_part parts[FT_MAX_VIEWS];
    int result = make_row_copy(from, &column->copy) ? FT_OK : FT_NO_MEMORY;
    if (result == FT_OK) {
        result = decode_row(from, place, column->missing, &column->copy, parts, &views, codecs);
    }
    if (result == FT_OK) { /* a part of a view that is there has no observations */
        result = ft_builder_stage(column->open, ft_builder_get_rows(column->open)->rows - 1, parts, views, codecs);
    }
    if (result == FT_OK) {
        ft_builder_commit(column->open);
    }
    ft_free_row_copy(&column->copy);
    *ft_builder_get_doubt(column->open) = before; /* what was seen in the last lap says nothing new */
    return result;
}

static int make_draft(ft_column *column, const ft_schema *schema, int transform, const ft_rows *from, const ft_change *what,
                      const ft_codecs *codecs) {
    const size_t most_rows = column->chunk_rows > from->rows ? column->chunk_rows : from->rows;
    int result = ft_builder_new(schema, transform, most_rows, &column->draft);
    if (result == FT_OK && ft_builder_get_rows(column->draft)->obs_bytes != from->obs_bytes) {
        result = FT_INVALID;
    }
    if (result == FT_OK && from->rows > 0) {
        result = ft_copy_rows(column, from, 0, from->rows, column->draft, what, codecs);
    }
    if (result != FT_OK) {
        ft_discard_draft(column);
    }
    return result;
}

int ft_make_draft(ft_column *column, const ft_schema *schema, const ft_rows *from, const ft_change *what, const ft_codecs *codecs) {
    const int transform = from->transform == VALUES ? ft_find_transform(schema) : NO_TRANSFORM;
    const int result = make_draft(column, schema, transform, from, what, codecs);
    return result == FT_MANY_VALUES ? make_draft(column, schema, NO_TRANSFORM, from, what, codecs) : result;
}

void ft_discard_draft(ft_column *column) {
    ft_builder_free(column->draft);
    column->draft = NULL;
}

void ft_use_draft(ft_column *column) {
    const int before = ft_builder_get_rows(column->open)->transform, after = ft_builder_get_rows(column->draft)->transform;
    if (before == VALUES && after == NO_TRANSFORM) {
        column->pause = column->next_pause;
        column->next_pause = column->next_pause < LONGEST_PAUSE ? 2 * column->next_pause : LONGEST_PAUSE;
    }
    ft_builder_free(column->open);
    column->open = column->draft;
    column->draft = NULL;
}

/* -- with a table of values, or without ----------------------------------------------------------------------------------- */

/* A codec alone finds repeated elements by itself. */
int ft_find_transform(const ft_schema *schema) {
    return schema->method.references && ft_can_have_values(&schema->layout) ? VALUES : NO_TRANSFORM;
}

/* Have the open chunk be coded with another transform. */
static int set_transform(ft_column *column, int transform, const ft_codecs *codecs) {
    const int result = make_draft(column, &column->schema, transform, ft_builder_get_rows(column->open), NULL, codecs);
    if (result == FT_OK) {
        *ft_builder_get_doubt(column->draft) = *ft_builder_get_doubt(column->open);
        ft_use_draft(column);
    }
    return result;
}

int ft_try_values(ft_column *column, const ft_codecs *codecs) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    const int transform = ft_find_transform(&column->schema);
    const bool now = open->rows == 0 && column->pause == 0 && open->transform != transform;
    return now ? set_transform(column, transform, codecs) : FT_OK;
}

int ft_give_up_values(ft_column *column, const ft_codecs *codecs) { return set_transform(column, NO_TRANSFORM, codecs); }

int ft_stage_again(ft_column *column, const ft_rows *from, ft_chunk *chunk, const ft_change *what, const ft_codecs *codecs) {
    int result = ft_make_draft(column, &column->schema, from, what, codecs);
    if (result == FT_OK && chunk == NULL) {
        *ft_builder_get_doubt(column->draft) = *ft_builder_get_doubt(column->open);
        return FT_OK;
    }
    if (result == FT_OK) {
        result = ft_builder_pack(column->draft, codecs);
    }
    if (result == FT_OK) {
        result = ft_builder_seal(column->draft, chunk->first_row, chunk->lap, &column->sealed);
        column->replaced = chunk;
    }
    ft_discard_draft(column);
    return result;
}

/* Have the open chunk end where its block ends: rows that follow are taken from the chunk that holds them, or are unwritten. */
static int finish_block(ft_column *column, const ft_codecs *codecs) {
    int result = FT_OK;
    for (;;) {
        const uint64_t row = column->open_first + ft_builder_get_rows(column->open)->rows;
        if (result != FT_OK || row % FT_BLOCK_ROWS == 0 || row >= column->rows) {
            break;
        }
        size_t place;
        ft_chunk *chunk;
        const ft_rows *from = ft_find_row(column, row, &place, &chunk);
        result = from != NULL ? ft_copy_rows(column, from, place, 1, column->open, NULL, codecs)
                              : skip_row(column->open, codecs);
    }
    return result == FT_OK ? ft_seal_open(column, codecs) : result;
}

int ft_skip_to_row(ft_column *column, uint64_t row, const ft_codecs *codecs) {
    const uint64_t next = column->open_first + ft_builder_get_rows(column->open)->rows;
    const bool is_begun = next % FT_BLOCK_ROWS != 0 && next / FT_BLOCK_ROWS == row / FT_BLOCK_ROWS && next < row;
    int result = FT_OK;
    if (!is_begun) {
        result = next > column->open_first ? finish_block(column, codecs) : FT_OK;
        if (result != FT_OK) {
            return result;
        }
        const uint64_t first = row / FT_BLOCK_ROWS * FT_BLOCK_ROWS;
        column->lap += first < column->open_first; /* of chunks that overlap, the newer one has the higher lap */
        column->open_first = first;
    }
    while (result == FT_OK && column->open_first + ft_builder_get_rows(column->open)->rows < row) {
        result = skip_row(column->open, codecs);
    }
    return result;
}
