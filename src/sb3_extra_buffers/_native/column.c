/* The ring: which chunk holds which rows, and rows that are written. */
#include "column.h"

#include <string.h>

enum {
    WRITTEN_AGAIN = 4, /* observations that a row may hold in vain before its chunk is coded again without them */
    PATIENCE = 16,
};

static size_t round_up(size_t rows) { return (rows + FT_BLOCK_ROWS - 1) / FT_BLOCK_ROWS * FT_BLOCK_ROWS; }

/* -- making one ----------------------------------------------------------------------------------------------------------- */

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
    column->chunk_rows = round_up(chunk_rows);
    column->blocks = round_up(rows) / FT_BLOCK_ROWS;
    column->by_block = ft_alloc(column->blocks, sizeof *column->by_block);
    const int result = column->by_block != NULL ? ft_builder_new(schema, ft_find_transform(schema), column->chunk_rows, &column->open)
                                                  : FT_NO_MEMORY;
    if (result != FT_OK) {
        ft_column_free(column);
        return result;
    }
    *made = column;
    return FT_OK;
}

/* Count a chunk that comes to the ring, or forget one that leaves it, so that nobody has to look at all of them. */
static void count_chunk(ft_column *column, const ft_chunk *chunk, bool comes) {
    ft_usage *usage = &column->sealed_usage;
    const uint64_t sign = comes ? 1 : UINT64_MAX;
    for (size_t i = 0; i < chunk->rows.n_streams; i++) {
        usage->frames += sign * chunk->lanes[i].frames;
    }
    for (size_t k = 0; k < FT_MOST_CODERS; k++) {
        usage->coded[k] += sign * chunk->coded[k];
    }
    usage->frame_bytes += sign * chunk->rows.data_bytes;
    usage->index_bytes += sign * ft_chunk_count_index_bytes(chunk);
    usage->held_bytes += sign * ft_chunk_count_held_bytes(chunk);
}

static void set_block(ft_column *column, size_t block, ft_chunk *chunk) {
    ft_chunk *before = column->by_block[block];
    if (before == chunk) {
        return; /* a ring that was never filled has pages that were never touched, and they stay so when it is freed */
    }
    column->by_block[block] = chunk;
    if (chunk != NULL) {
        ft_chunk_keep(chunk);
        if (chunk->blocks++ == 0) {
            count_chunk(column, chunk, true);
        }
    }
    if (before != NULL && --before->blocks == 0) {
        count_chunk(column, before, false);
    }
    ft_chunk_drop(before);
}

static void forget_chunks(ft_column *column) {
    for (size_t block = 0; block < column->blocks; block++) {
        set_block(column, block, NULL);
    }
}

/* Free what a change has made, but for what the open chunk keeps of it. */
static void discard_change(ft_column *column) {
    ft_discard_draft(column);
    ft_free_row_copy(&column->copy);
    ft_chunk_drop(column->sealed);
    column->sealed = NULL;
}

void ft_column_free(ft_column *column) {
    if (column == NULL) {
        return;
    }
    if (column->by_block != NULL) {
        forget_chunks(column);
    }
    discard_change(column);
    ft_builder_free(column->open);
    ft_free(column->by_block);
    ft_free(column);
}

void ft_column_clear(ft_column *column) {
    discard_change(column);
    forget_chunks(column);
    ft_builder_begin(column->open);
    column->open_first = column->lap = 0;
    column->missing = 0;
}

/* -- sealing -------------------------------------------------------------------------------------------------------------- */

static void put_chunk(ft_column *column, ft_chunk *chunk, uint64_t first_row) {
    for (size_t k = 0; k < chunk->rows.rows; k += FT_BLOCK_ROWS) {
        set_block(column, (size_t)(first_row + k) / FT_BLOCK_ROWS, chunk);
    }
}

static int seal(ft_column *column) {
    const size_t rows = ft_builder_get_rows(column->open)->rows;
    ft_chunk *chunk;
    const int result = ft_builder_seal(column->open, column->open_first, column->lap, &chunk);
    if (result != FT_OK) {
        return result;
    }
    column->pause -= column->pause > 0;
    column->next_pause = chunk->rows.transform == VALUES ? 1 : column->next_pause;
    put_chunk(column, chunk, column->open_first);
    column->sealed_bytes += chunk->size;
    ft_chunk_drop(chunk); /* its blocks own it now */
    column->open_first += rows;
    if (column->open_first >= column->rows) {
        column->open_first = 0;
        column->lap++;
    }
    return FT_OK;
}

int ft_seal_open(ft_column *column, const ft_codecs *codecs) {
    const int result = ft_builder_pack(column->open, codecs);
    return result == FT_OK ? seal(column) : result;
}

int ft_column_snapshot(const ft_column *column, ft_chunk **made) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    const size_t size = ft_measure_chunk(open);
    *made = NULL;
    if (open->rows == 0) {
        return FT_OK;
    }
    ft_chunk *chunk = ft_alloc_chunk(open->n_streams);
    uint8_t *pages = chunk != NULL ? ft_alloc_pages(size) : NULL;
    if (pages == NULL) {
        ft_free(chunk);
        return FT_NO_MEMORY;
    }
    ft_write_chunk(open, column->open_first, column->lap, pages);
    ft_set_up_chunk(chunk, pages, size);
    *made = chunk;
    return FT_OK;
}

uint64_t ft_column_count_sealed_bytes(const ft_column *column) { return column->sealed_bytes; }

ft_chunk *ft_column_get_chunk(const ft_column *column, uint64_t row) {
    return row < column->rows ? column->by_block[row / FT_BLOCK_ROWS] : NULL;
}

bool ft_column_get_last(const ft_column *column, size_t stream, uint8_t *out) { return ft_builder_get_last(column->open, stream, out); }

/* -- where a row is ------------------------------------------------------------------------------------------------------- */

const ft_rows *ft_find_row(const ft_column *column, uint64_t row, size_t *place, ft_chunk **chunk) {
    const ft_rows *open = ft_builder_get_rows(column->open);
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

const ft_rows *ft_find_missing(const ft_column *column, size_t *place) {
    if (column->missing == 0) {
        return NULL;
    }
    const uint64_t row = column->open_first + ft_builder_get_rows(column->open)->rows - 1;
    const ft_chunk *chunk = column->by_block[row / FT_BLOCK_ROWS];
    *place = (size_t)(row - chunk->first_row);
    return &chunk->rows;
}

/* -- another layout ------------------------------------------------------------------------------------------------------- */

int ft_column_set_layout(ft_column *column, const ft_layout *layout, const ft_codecs *codecs) {
    ft_schema schema = column->schema;
    schema.layout = *layout;
    const int result = ft_make_draft(column, &schema, ft_builder_get_rows(column->open), NULL, codecs);
    if (result == FT_OK) {
        ft_use_draft(column);
        column->schema = schema;
    }
    return result;
}

void ft_column_set_patience(ft_column *column, uint64_t observations) { column->patience = observations; }

bool ft_column_doubts_layout(const ft_column *column) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    /* Giving a layout up means coding the open chunk again, so that is done once strays have cost as much: at worst, time is spent
     * twice, and where a chunk has just begun, it costs nothing. All streams may begin an episode at the same time. */
    const uint64_t held = (uint64_t)open->rows * open->n_streams * open->views, strays = ft_builder_get_doubt(column->open)->strays;
    return open->layout.depth > 1 && strays > column->patience &&
           strays - column->patience > 2 * open->n_streams + held / open->layout.depth;
}

/* -- writing -------------------------------------------------------------------------------------------------------------- */

static bool has_little_in_vain(const ft_column *column) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    const size_t most = WRITTEN_AGAIN * open->views * open->layout.depth;
    for (size_t i = 0; i < open->n_streams; i++) {
        if (ft_builder_count_last_frames(column->open, i) > most) {
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
            return FT_INVALID;
        }
        for (size_t k = 0; parts[part].streams != NULL && k < parts[part].count; k++) {
            if (parts[part].streams[k] >= open->n_streams) {
                return FT_OUTSIDE;
            }
        }
        *cells += parts[part].count;
    }
    return n_parts <= open->views ? FT_OK : FT_INVALID;
}

/* Once rows are written to the end of a block, or of the ring, forget what it held before: nothing is read from it any more. */
static void forget_last_lap(ft_column *column) {
    const uint64_t next = column->open_first + ft_builder_get_rows(column->open)->rows;
    if (column->missing == 0 && (next % FT_BLOCK_ROWS == 0 || next >= column->rows)) {
        set_block(column, (size_t)(next - 1) / FT_BLOCK_ROWS, NULL);
    }
}

/* Whether parts go to the row that lacks a view, and either bring all of that or nothing of it. */
static bool belong_to_last_row(const ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    bool belong = column->missing != 0 && row + 1 == column->open_first + open->rows;
    for (size_t part = 0; part < n_parts; part++) {
        belong = belong && (parts[part].count == open->n_streams || !(column->missing >> parts[part].view & 1));
    }
    return belong;
}

/* Have nothing be missing, before anything else is written: the rest of the row is copied after all. */
static int complete_row(ft_column *column, const ft_codecs *codecs) {
    const int result = column->missing != 0 ? ft_copy_missing(column, codecs) : FT_OK;
    if (result == FT_OK && column->missing != 0) {
        column->missing = 0;
        forget_last_lap(column);
    }
    return result;
}

static int stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    size_t cells;
    column->completes = false;
    const int sound = row < column->rows ? check_parts(open, parts, n_parts, &cells) : FT_OUTSIDE;
    if (sound != FT_OK) {
        return sound;
    }
    const bool belong = belong_to_last_row(column, row, parts, n_parts);
    const int whole = belong ? FT_OK : complete_row(column, codecs);
    if (whole != FT_OK) {
        return whole;
    }
    column->staged_missing = column->missing;
    for (size_t part = 0; part < n_parts; part++) {
        column->staged_missing &= ~(1u << parts[part].view);
    }
    uint64_t next = column->open_first + open->rows;
    const bool ends = open->rows > 0 && (next >= column->rows || (next % FT_BLOCK_ROWS == 0 && ft_builder_is_full(column->open)));
    /* A chunk that ends, but not with the row before, stays open: its last rows may be written again, which is easier then. */
    const bool goes_on = !belong && ends && row == (next >= column->rows ? 0 : next);
    /* A whole row 0, before the ring has ended, begins another lap: that is what follows a reset. */
    const bool begins_again = !goes_on && row == 0 && next > 1 && open->views > 1 && cells == open->views * open->n_streams;
    if (goes_on || begins_again) {
        int result = goes_on ? ft_seal_open(column, codecs) : ft_skip_to_row(column, 0, codecs);
        if (result == FT_OK) {
            result = ft_try_values(column, codecs);
            open = ft_builder_get_rows(column->open);
        }
        if (result != FT_OK) {
            return result;
        }
        next = column->open_first;
    }
    size_t place;
    ft_chunk *chunk;
    const ft_rows *from = ft_find_row(column, row, &place, &chunk);
    if (row == next && from != NULL && n_parts == 1 && cells == open->n_streams && open->views > 1 && column->rows > 1) {
        /* The other view is likely to come next, so it is not copied, only to be written over at once: that would store many frames
         * in vain, and what comes next would not follow from the last observation. (In a ring of one row, the other view begins the
         * next lap.) */
        column->staged_missing = ((1u << open->views) - 1) & ~(1u << parts[0].view);
    } else if (row == next && from != NULL && cells < open->views * open->n_streams) {
        /* What is not written stays as it was in the last lap; what is follows from the row before. */
        int result = ft_builder_set_last_aside(column->open);
        if (result == FT_OK) {
            result = ft_copy_rows(column, from, place, 1, column->open, NULL, codecs);
        }
        if (result != FT_OK) {
            return result;
        }
        ft_builder_restore_last(column->open);
        next++;
    }
    const bool again = open->rows > 0 && row + 1 == next && has_little_in_vain(column);
    if (row != next && !again) {
        if (from != NULL) {
            const ft_change what = {place, parts, n_parts};
            return ft_stage_again(column, from, chunk, &what, codecs);
        }
        const int result = ft_skip_to_row(column, row, codecs);
        if (result != FT_OK) {
            return result;
        }
    }
    const int result = ft_builder_stage(column->open, (size_t)(row - column->open_first), parts, n_parts, codecs);
    /* Rows that are written in parts had better stay open: the next part would have to code the chunk again. */
    column->completes = result == FT_OK && row + 1 == column->rows && cells == open->views * open->n_streams;
    return column->completes ? ft_builder_pack_staged(column->open, codecs) : result;
}

int ft_column_stage(ft_column *column, uint64_t row, const ft_part *parts, size_t n_parts, const ft_codecs *codecs) {
    int result = ft_try_values(column, codecs);
    if (result == FT_OK) {
        result = stage(column, row, parts, n_parts, codecs);
    }
    while (result == FT_MANY_VALUES) { /* once more; again if that has begun another chunk, but not in one that is empty */
        result = ft_give_up_values(column, codecs);
        result = result == FT_OK ? stage(column, row, parts, n_parts, codecs) : result;
    }
    return result;
}

void ft_column_commit(ft_column *column) {
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
    if (column->draft != NULL) {
        ft_use_draft(column);
    } else {
        ft_builder_commit(column->open);
    }
    column->missing = column->staged_missing;
    forget_last_lap(column);
    if (column->completes) {
        seal(column); /* where that cannot be, the chunk stays open until the next row */
    }
}

void ft_column_abort(ft_column *column) {
    discard_change(column);
    ft_builder_abort(column->open);
}

/* -- chunks from elsewhere ------------------------------------------------------------------------------------------------ */

static bool fits(const ft_column *column, const ft_chunk *chunk) {
    const ft_rows *own = ft_builder_get_rows(column->open), *other = &chunk->rows;
    return own->obs_bytes == other->obs_bytes && own->given.item == other->given.item && own->n_streams == other->n_streams &&
           own->views == other->views && own->method.references == other->method.references &&
           own->method.packs == other->method.packs;
}

int ft_column_adopt(ft_column *column, ft_chunk *chunk, uint64_t first_row) {
    const uint64_t rows = chunk->rows.rows, open = ft_builder_get_rows(column->open)->rows;
    if (!fits(column, chunk) || chunk->owners != 1 || first_row % FT_BLOCK_ROWS != 0 || first_row >= column->rows ||
        rows > column->rows - first_row || ((first_row + rows) % FT_BLOCK_ROWS != 0 && first_row + rows != column->rows)) {
        return FT_INVALID;
    }
    if (open > 0 && first_row < round_up((size_t)(column->open_first + open)) && column->open_first < first_row + rows) {
        return FT_INVALID; /* rows that are being written */
    }
    chunk->first_row = first_row;
    if (open == 0 && chunk->lap >= column->lap && chunk->lap < UINT64_MAX) {
        column->lap = chunk->lap + 1; /* of chunks that overlap, the newer one has the higher lap */
    }
    put_chunk(column, chunk, first_row);
    ft_chunk_drop(chunk);
    return FT_OK;
}

void ft_column_put_arranged(ft_column *column, const ft_chunk *chunk, ft_chunk *copy) {
    copy->first_row = chunk->first_row; /* it may have been adopted elsewhere than it says */
    const uint64_t stop = chunk->first_row + chunk->rows.rows;
    for (uint64_t row = chunk->first_row; row < stop && row < column->rows; row += FT_BLOCK_ROWS) {
        if (column->by_block[row / FT_BLOCK_ROWS] == chunk) {
            set_block(column, (size_t)(row / FT_BLOCK_ROWS), copy);
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

/* What the last row of the open chunk lacks though it was written in the last lap. What is written is never unwritten again, so where
 * a chunk of the last lap holds the row, a view that all streams lack is to be read from there. */
static unsigned find_missing_views(const ft_column *column) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    const uint64_t next = column->open_first + open->rows;
    const ft_chunk *older = open->rows > 0 ? column->by_block[(next - 1) / FT_BLOCK_ROWS] : NULL;
    if (older == NULL || next <= older->first_row || next > older->first_row + older->rows.rows) {
        return 0;
    }
    unsigned written = 0;
    for (size_t i = 0; i < open->n_streams; i++) {
        written |= ft_find_written_views(open, open->rows - 1, i);
    }
    return written != 0 ? ((1u << open->views) - 1) & ~written : 0;
}

int ft_column_resume(ft_column *column, const ft_chunk *chunk, uint64_t first_row, uint64_t lap, const ft_codecs *codecs) {
    const ft_rows *from = &chunk->rows;
    if (!fits(column, chunk) || ft_builder_get_rows(column->open)->rows > 0 || first_row % FT_BLOCK_ROWS != 0 ||
        first_row >= column->rows || from->rows > column->rows - first_row || from->rows > column->chunk_rows) {
        return FT_INVALID;
    }
    const int result = ft_make_draft(column, &column->schema, from, NULL, codecs);
    if (result != FT_OK) {
        return result;
    }
    *ft_builder_get_doubt(column->draft) = *ft_builder_get_doubt(column->open);
    ft_use_draft(column);
    column->open_first = first_row;
    column->lap = lap;
    column->missing = find_missing_views(column);
    const uint64_t whole = from->rows - (column->missing != 0);
    for (uint64_t row = first_row; row + FT_BLOCK_ROWS <= first_row + whole; row += FT_BLOCK_ROWS) {
        set_block(column, (size_t)row / FT_BLOCK_ROWS, NULL);
    }
    return FT_OK;
}
