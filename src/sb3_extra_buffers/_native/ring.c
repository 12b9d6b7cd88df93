/*
 * The ring: which chunk holds which rows, and how rows are written.
 *
 *     spans   [ chunk 4 ][ chunk 1       ][ chunk 2 ]      [ chunk 3 ]   sealed: sorted, disjoint
 *     open                  [=====>                                      begins anywhere; the next row goes behind it
 *
 * - A committed row is cut out of the span that held it, which may split that: the newest chunk wins. A chunk is freed with its last
 *   span or reader, and never crosses the end of the ring.
 * - Only the last row of the open chunk may lack cells that a span has. That span keeps the row, and readers find the cells there.
 *   They are copied before another row is begun or the chunk is sealed.
 * - A row that does not come next, another layout, and one value too many seal the open chunk, and begin another. For the latter
 *   two, a chunk of less than YOUNG rows is coded again instead.
 * - With more than 2 * rows / chunk_rows + MANY_SPANS spans, the two shortest neighbours are coded as one chunk, unless that were
 *   a large one.
 */
#include "ring.h"
#include "values.h"

#include <string.h>

enum {
    PATIENCE = 16,
    YOUNG = 64,            /* rows; an open chunk of fewer is rather coded again than sealed */
    MANY_SPANS = 64,
    LARGE_CHUNK = 1 << 19, /* bytes of a chunk that is not worth being merged with another */
    MORE_SPANS = 4,        /* that a row may add: completed, sealed, split by the next row, and sealed at the end of the ring */
    LONGEST_PAUSE = 64,
};

static const ft_rows *open_rows(const ft_column *column) { return ft_builder_get_rows(column->open); }

/* A codec alone finds repeated elements by itself. */
static int find_transform(const ft_schema *schema) {
    return schema->method.references && ft_can_have_values(&schema->layout) ? VALUES : NO_TRANSFORM;
}

/* -- spans ---------------------------------------------------------------------------------------------------------------- */

/* The first span that ends behind a row. */
static size_t find_place(const ft_column *column, uint64_t row) {
    size_t low = 0, high = column->n_spans;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const ft_span *span = &column->spans[middle];
        if (span->first_row + span->rows > row) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

const ft_span *ft_find_span(const ft_column *column, uint64_t row) {
    const size_t k = find_place(column, row);
    return k < column->n_spans && column->spans[k].first_row <= row ? &column->spans[k] : NULL;
}

const ft_rows *ft_find_row(const ft_column *column, uint64_t row, size_t *chunk_row, ft_chunk **chunk) {
    const ft_rows *open = open_rows(column);
    *chunk = NULL;
    if (row >= column->open_first && row - column->open_first < open->rows) {
        *chunk_row = (size_t)(row - column->open_first);
        return open;
    }
    const ft_span *span = ft_find_span(column, row);
    if (span == NULL) {
        return NULL;
    }
    *chunk_row = ft_row_in_chunk(span, row);
    *chunk = span->chunk;
    return &span->chunk->rows;
}

const ft_span *ft_find_older(const ft_column *column) {
    const size_t rows = open_rows(column)->rows;
    return rows > 0 ? ft_find_span(column, column->open_first + rows - 1) : NULL;
}

/* Have room for so many more spans. */
static bool make_room(ft_column *column, size_t more) {
    if (column->n_spans + more > column->spans_room) {
        const size_t room = 2 * column->n_spans + more;
        ft_span *spans = ft_resize(column->spans, room, sizeof *spans);
        if (spans == NULL) {
            return false;
        }
        column->spans = spans;
        column->spans_room = room;
    }
    return true;
}

/* The share of a span in the bytes of its chunk. */
static uint64_t count_bytes(const ft_span *span) { return span->chunk->size / span->chunk->rows.rows * span->rows; }

static void insert_span(ft_column *column, ft_span span) {
    const size_t k = find_place(column, span.first_row);
    memmove(&column->spans[k + 1], &column->spans[k], (column->n_spans++ - k) * sizeof span);
    column->spans[k] = span;
    ft_chunk_keep(span.chunk);
}

static void remove_span(ft_column *column, size_t k) {
    ft_chunk_drop(column->spans[k].chunk);
    memmove(&column->spans[k], &column->spans[k + 1], (--column->n_spans - k) * sizeof *column->spans);
}

/* Cut rows out of all spans: a newer chunk holds them. */
static void cut(ft_column *column, uint64_t first, uint64_t stop) {
    for (size_t k = find_place(column, first); k < column->n_spans && column->spans[k].first_row < stop;) {
        ft_span *span = &column->spans[k];
        const uint64_t end = span->first_row + span->rows;
        const ft_span rest = {stop, end - stop, span->chunk, ft_row_in_chunk(span, stop)};
        if (span->first_row < first) {
            span->rows = first - span->first_row;
            if (end > stop) {
                insert_span(column, rest);
            }
            k++;
        } else if (end > stop) {
            *span = rest;
        } else {
            remove_span(column, k);
        }
    }
}

/* Put a chunk that was made here where its rows belong; its span owns it then. */
static void put_chunk(ft_column *column, ft_span span) {
    cut(column, span.first_row, span.first_row + span.rows);
    insert_span(column, span);
    column->sealed_bytes += span.chunk->size;
    ft_chunk_drop(span.chunk);
}

const ft_span *ft_column_get_spans(const ft_column *column, size_t *count) {
    *count = column->n_spans;
    return column->spans;
}

/* -- making a column ------------------------------------------------------------------------------------------------------ */

int ft_column_new(const ft_schema *schema, size_t rows, size_t chunk_rows, ft_column **made) {
    *made = NULL;
    chunk_rows = chunk_rows > 0 ? chunk_rows : 1;
    chunk_rows = chunk_rows < rows ? chunk_rows : rows;
    if (rows < 1 || rows > (size_t)INT64_MAX / 8 || chunk_rows > UINT16_MAX - FT_BLOCK_ROWS) {
        return FT_INVALID;
    }
    ft_column *column = ft_alloc(1, sizeof *column);
    if (column == NULL) {
        return FT_NO_MEMORY;
    }
    column->schema = *schema;
    column->patience = PATIENCE;
    column->next_pause = 1;
    column->rows = rows;
    column->chunk_rows = chunk_rows;
    const int result = ft_builder_new(schema, find_transform(schema), chunk_rows, &column->open);
    if (result != FT_OK) {
        ft_column_free(column);
        return result;
    }
    *made = column;
    return FT_OK;
}

static void discard_draft(ft_column *column) {
    ft_builder_free(column->draft);
    column->draft = NULL;
}

static void forget_spans(ft_column *column) {
    while (column->n_spans > 0) {
        remove_span(column, column->n_spans - 1);
    }
}

void ft_column_free(ft_column *column) {
    if (column == NULL) {
        return;
    }
    forget_spans(column);
    discard_draft(column);
    ft_builder_free(column->open);
    ft_free(column->spans);
    ft_free(column);
}

void ft_column_clear(ft_column *column) {
    discard_draft(column);
    forget_spans(column);
    ft_builder_begin(column->open);
    column->open_first = 0;
}

/* -- rows that are coded again -------------------------------------------------------------------------------------------- */

/* Rows that are copied, after so many unwritten ones. */
typedef struct piece {
    size_t gap;
    const ft_rows *from;
    size_t first, count;
} piece;

static int make_draft(ft_column *column, const ft_schema *schema, int transform, const piece *pieces, size_t n_pieces,
                      const ft_codecs *codecs) {
    const size_t rows = column->chunk_rows > pieces[0].count ? column->chunk_rows : pieces[0].count;
    int result = ft_builder_new(schema, transform, rows, &column->draft);
    if (result == FT_OK && ft_builder_get_rows(column->draft)->obs_bytes != pieces[0].from->obs_bytes) {
        result = FT_INVALID;
    }
    for (size_t k = 0; k < n_pieces && result == FT_OK; k++) {
        const piece *of = &pieces[k];
        result = ft_builder_skip_rows(column->draft, of->gap, codecs);
        if (result == FT_OK) {
            result = ft_builder_copy_rows(column->draft, ft_builder_get_rows(column->draft)->rows, of->from, of->first, of->count, codecs);
        }
    }
    if (result != FT_OK) {
        discard_draft(column);
    }
    return result;
}

/* Code rows again, as a draft, which has a table of values if that is wanted and large enough. */
static int rewrite(ft_column *column, const ft_schema *schema, int transform, const piece *pieces, size_t n_pieces,
                   const ft_codecs *codecs) {
    const int result = make_draft(column, schema, transform, pieces, n_pieces, codecs);
    return result == FT_MANY_VALUES ? make_draft(column, schema, NO_TRANSFORM, pieces, n_pieces, codecs) : result;
}

static void use_draft(ft_column *column) {
    if (open_rows(column)->transform == VALUES && ft_builder_get_rows(column->draft)->transform == NO_TRANSFORM) {
        column->pause = column->next_pause;
        column->next_pause = column->next_pause < LONGEST_PAUSE ? 2 * column->next_pause : LONGEST_PAUSE;
    }
    ft_builder_free(column->open);
    column->open = column->draft;
    column->draft = NULL;
}

/* Where there are too many spans, code the two shortest neighbours as one chunk. */
static int merge_spans(ft_column *column, const ft_codecs *codecs) {
    const size_t most = FT_MOST_FRAMES / (column->schema.views * column->schema.layout.depth);
    size_t best = column->n_spans;
    uint64_t fewest = 1 + (most < column->chunk_rows ? most : column->chunk_rows);
    if (column->n_spans <= 2 * (column->rows / column->chunk_rows) + MANY_SPANS) {
        return FT_OK;
    }
    for (size_t k = 0; k + 1 < column->n_spans; k++) {
        const ft_span *one = &column->spans[k], *two = one + 1;
        const uint64_t rows = two->first_row + two->rows - one->first_row;
        if (rows < fewest && count_bytes(one) + count_bytes(two) < LARGE_CHUNK) {
            best = k;
            fewest = rows;
        }
    }
    if (best == column->n_spans) {
        return FT_OK;
    }
    const ft_span one = column->spans[best], two = column->spans[best + 1];
    const piece pieces[] = {{0, &one.chunk->rows, (size_t)one.chunk_row, (size_t)one.rows},
                            {(size_t)(fewest - one.rows - two.rows), &two.chunk->rows, (size_t)two.chunk_row, (size_t)two.rows}};
    ft_chunk *chunk = NULL;
    int result = rewrite(column, &column->schema, find_transform(&column->schema), pieces, 2, codecs);
    if (result == FT_OK) {
        result = ft_builder_pack(column->draft, codecs);
    }
    if (result == FT_OK) {
        result = ft_builder_seal(column->draft, one.first_row, &chunk);
    }
    discard_draft(column);
    if (result != FT_OK) {
        return result == FT_DAMAGED ? FT_OK : result; /* then they stay as they are */
    }
    put_chunk(column, (ft_span){one.first_row, fewest, chunk, 0});
    return FT_OK;
}

/* -- sealing -------------------------------------------------------------------------------------------------------------- */

/* Seal the open chunk, the last row of which is complete. */
static int seal(ft_column *column) {
    const size_t rows = open_rows(column)->rows;
    ft_chunk *chunk;
    const int result = make_room(column, 1) ? ft_builder_seal(column->open, column->open_first, &chunk) : FT_NO_MEMORY;
    if (result != FT_OK) {
        return result;
    }
    column->pause -= column->pause > 0;
    column->next_pause = chunk->rows.transform == VALUES ? 1 : column->next_pause;
    put_chunk(column, (ft_span){column->open_first, rows, chunk, 0});
    column->open_first = (column->open_first + rows) % column->rows;
    return FT_OK;
}

static int pack_and_seal(ft_column *column, const ft_codecs *codecs) {
    const int result = ft_builder_pack(column->open, codecs);
    return result == FT_OK ? seal(column) : result;
}

/* Copy what the last row of the open chunk lacks. */
static int complete_row(ft_column *column, const ft_codecs *codecs) {
    const ft_span *older = ft_find_older(column);
    if (older == NULL) {
        return FT_OK;
    }
    const size_t last = open_rows(column)->rows - 1;
    const uint64_t row = column->open_first + last;
    const int result = ft_builder_copy_rows(column->open, last, &older->chunk->rows, ft_row_in_chunk(older, row), 1, codecs);
    if (result == FT_OK) {
        cut(column, row, row + 1);
    }
    return result;
}

/* Have the next row be a certain one: seal what is open, and begin another chunk there. */
static int begin_at(ft_column *column, uint64_t row, const ft_codecs *codecs) {
    int result = complete_row(column, codecs);
    if (result == FT_OK && open_rows(column)->rows > 0) {
        result = pack_and_seal(column, codecs);
    }
    for (int k = 0; k < 2 && result == FT_OK; k++) { /* that many spans may have come */
        result = merge_spans(column, codecs);
    }
    if (result == FT_OK) {
        column->open_first = row;
    }
    return result;
}

/* Have the open chunk go on with another layout or transform: a young one is coded again, and after any other begins a new one. */
static int renew(ft_column *column, const ft_schema *schema, int transform, const ft_codecs *codecs) {
    int result = FT_OK;
    if (open_rows(column)->rows >= YOUNG && ft_find_older(column) == NULL) {
        result = pack_and_seal(column, codecs);
    }
    if (result == FT_OK) {
        const piece all = {0, open_rows(column), 0, open_rows(column)->rows};
        result = rewrite(column, schema, transform, &all, 1, codecs);
    }
    return result;
}

int ft_column_snapshot(const ft_column *column, ft_chunk **chunk) {
    *chunk = NULL;
    return open_rows(column)->rows > 0 ? ft_copy_chunk(open_rows(column), column->open_first, chunk) : FT_OK;
}

uint64_t ft_column_count_sealed_bytes(const ft_column *column) { return column->sealed_bytes; }

bool ft_column_get_last(const ft_column *column, size_t stream, uint8_t *out) { return ft_builder_get_last(column->open, stream, out); }

/* -- another layout, with a table of values or without -------------------------------------------------------------------- */

/* Have the open chunk be coded with another transform. */
static int set_transform(ft_column *column, int transform, const ft_codecs *codecs) {
    const int result = renew(column, &column->schema, transform, codecs);
    if (result == FT_OK) {
        *ft_builder_get_doubt(column->draft) = *ft_builder_get_doubt(column->open);
        use_draft(column);
    }
    return result;
}

int ft_column_set_layout(ft_column *column, const ft_layout *layout, const ft_codecs *codecs) {
    ft_schema schema = column->schema;
    schema.layout = *layout;
    int result = complete_row(column, codecs);
    if (result == FT_MANY_VALUES) {
        result = set_transform(column, NO_TRANSFORM, codecs);
        result = result == FT_OK ? complete_row(column, codecs) : result;
    }
    if (result == FT_OK) {
        result = renew(column, &schema, open_rows(column)->transform == VALUES ? find_transform(&schema) : NO_TRANSFORM, codecs);
    }
    if (result == FT_OK) {
        use_draft(column);
        column->schema = schema;
    }
    return result;
}

/* Begin a chunk with a table of values again, if it is time to try. */
static int try_values(ft_column *column, const ft_codecs *codecs) {
    const int transform = find_transform(&column->schema);
    const bool now = open_rows(column)->rows == 0 && column->pause == 0 && open_rows(column)->transform != transform;
    return now ? set_transform(column, transform, codecs) : FT_OK;
}

void ft_column_set_patience(ft_column *column, uint64_t observations) { column->patience = observations; }

bool ft_column_doubts_layout(const ft_column *column) { return ft_builder_doubts_layout(column->open, column->patience); }

/* -- writing -------------------------------------------------------------------------------------------------------------- */

static int stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs) {
    const ft_rows *open = open_rows(column);
    const uint64_t next = column->open_first + open->rows;
    int result = make_room(column, MORE_SPANS) ? FT_OK : FT_NO_MEMORY;
    if (result == FT_OK && (open->rows == 0 || row + 1 != next || ft_builder_has_much_in_vain(column->open))) {
        result = row != next || ft_builder_is_full(column->open) ? begin_at(column, row, codecs) : complete_row(column, codecs);
    }
    if (result == FT_OK) {
        result = try_values(column, codecs);
    }
    if (result == FT_OK) {
        result = ft_builder_stage(column->open, (size_t)(row - column->open_first), parts, n_parts, codecs);
    }
    /* A row that is written in parts stays open for the next part. */
    column->completes = result == FT_OK && column->is_whole && row + 1 == column->rows;
    return column->completes ? ft_builder_pack_staged(column->open, codecs) : result;
}

int ft_column_stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs) {
    size_t cells;
    int result = row < column->rows ? ft_builder_check_parts(column->open, parts, n_parts, &cells) : FT_OUTSIDE;
    if (result != FT_OK) {
        return result;
    }
    column->completes = false;
    column->is_whole = cells == column->schema.views * column->schema.n_streams;
    result = stage(column, row, parts, n_parts, codecs);
    while (result == FT_MANY_VALUES) { /* once more; again if that has begun another chunk, but not in one that is empty */
        result = set_transform(column, NO_TRANSFORM, codecs);
        result = result == FT_OK ? stage(column, row, parts, n_parts, codecs) : result;
    }
    return result;
}

/* Cut the last row of the open chunk out of the span that held it, unless that still has cells which the row lacks. */
static void replace_row(ft_column *column) {
    const ft_rows *open = open_rows(column);
    const uint64_t row = column->open_first + open->rows - 1;
    const ft_span *older = ft_find_older(column);
    for (size_t i = 0; older != NULL && !column->is_whole && i < open->n_streams; i++) {
        const unsigned written = ft_find_written_views(open, open->rows - 1, i);
        if (ft_find_written_views(&older->chunk->rows, ft_row_in_chunk(older, row), i) & ~written) {
            return;
        }
    }
    if (older != NULL) {
        cut(column, row, row + 1);
    }
}

void ft_column_commit(ft_column *column) {
    ft_builder_commit(column->open);
    replace_row(column);
    if (column->completes) {
        seal(column); /* where that cannot be, the chunk stays open until the next row */
    }
}

void ft_column_abort(ft_column *column) {
    discard_draft(column);
    ft_builder_abort(column->open);
}

/* -- chunks from elsewhere ------------------------------------------------------------------------------------------------ */

static bool fits(const ft_column *column, const ft_chunk *chunk, uint64_t chunk_row, uint64_t row, uint64_t rows) {
    const ft_rows *own = open_rows(column), *other = &chunk->rows;
    return own->obs_bytes == other->obs_bytes && own->given.item == other->given.item && own->n_streams == other->n_streams &&
           own->views == other->views && own->method.references == other->method.references &&
           own->method.packs == other->method.packs && rows > 0 && row < column->rows && rows <= column->rows - row &&
           chunk_row < other->rows && rows <= other->rows - chunk_row;
}

int ft_column_adopt(ft_column *column, ft_chunk *chunk, uint64_t chunk_row, uint64_t row, uint64_t rows) {
    if (!fits(column, chunk, chunk_row, row, rows) ||
        (row < column->open_first + open_rows(column)->rows && column->open_first < row + rows && open_rows(column)->rows > 0)) {
        return FT_INVALID;
    }
    if (!make_room(column, 2)) {
        return FT_NO_MEMORY;
    }
    cut(column, row, row + rows);
    insert_span(column, (ft_span){row, rows, chunk, chunk_row});
    return FT_OK;
}

int ft_column_adopt_row(ft_column *column, const ft_chunk *chunk, uint64_t chunk_row, uint64_t row, const ft_codecs *codecs) {
    if (!fits(column, chunk, chunk_row, row, 1) || open_rows(column)->rows > 0) {
        return FT_INVALID;
    }
    const piece one = {0, &chunk->rows, (size_t)chunk_row, 1};
    const int result = make_room(column, 1) ? rewrite(column, &column->schema, open_rows(column)->transform, &one, 1, codecs)
                                            : FT_NO_MEMORY;
    if (result == FT_OK) {
        use_draft(column);
        column->open_first = row;
        column->is_whole = false;
        replace_row(column);
    }
    return result;
}

void ft_column_put_arranged(ft_column *column, const ft_chunk *chunk, ft_chunk *arranged) {
    for (size_t k = 0; k < column->n_spans; k++) {
        if (column->spans[k].chunk == chunk) {
            ft_chunk_keep(arranged);
            ft_chunk_drop(column->spans[k].chunk); /* the caller has it, too */
            column->spans[k].chunk = arranged;
        }
    }
}

int ft_column_exchange(ft_column *column, const ft_chunk *chunk, ft_chunk *copy) {
    if (copy->size != chunk->size || memcmp(copy->bytes, chunk->bytes, chunk->size) != 0) {
        return FT_INVALID;
    }
    ft_column_put_arranged(column, chunk, copy);
    return FT_OK;
}
