/* What a column holds, counted. */
#include "column.h"

static uint64_t count_rows(const ft_chunk *chunk, uint64_t first, uint64_t stop) {
    return first < stop ? ft_count_written_cells(&chunk->rows, (size_t)(first - chunk->first_row), (size_t)(stop - chunk->first_row)) : 0;
}

ft_usage ft_column_get_usage(const ft_column *column) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    ft_usage usage = column->sealed_usage;
    usage.frame_bytes += open->data_bytes;
    usage.index_bytes += ft_builder_count_index_bytes(column->open) + column->blocks * sizeof *column->by_block;
    usage.held_bytes += ft_builder_count_held_bytes(column->open);
    for (size_t i = 0; i < open->n_streams; i++) {
        usage.frames += open->lanes[i].frames;
        usage.frame_bytes += open->lanes[i].open_bytes;
    }
    ft_builder_count_coded(column->open, usage.coded);
    usage.cells = ft_count_written_cells(open, 0, open->rows);
    size_t place;
    const ft_rows *older = ft_find_missing(column, &place);
    for (size_t i = 0; older != NULL && i < open->n_streams; i++) {
        const unsigned there = ft_find_written_views(older, place, i) & column->missing;
        usage.cells += (there & 1) + (there >> 1 & 1);
    }
    const uint64_t open_stop = column->open_first + open->rows;
    for (size_t block = 0, after; block < column->blocks; block = after) {
        const ft_chunk *chunk = column->by_block[block];
        for (after = block + 1; after < column->blocks && column->by_block[after] == chunk; after++) {
        }
        if (chunk == NULL) {
            continue;
        }
        uint64_t first = block * FT_BLOCK_ROWS, stop = after * FT_BLOCK_ROWS;
        first = first > chunk->first_row ? first : chunk->first_row;
        stop = stop < chunk->first_row + chunk->rows.rows ? stop : chunk->first_row + chunk->rows.rows;
        usage.cells += count_rows(chunk, first, stop < column->open_first ? stop : column->open_first);
        usage.cells += count_rows(chunk, first > open_stop ? first : open_stop, stop);
    }
    return usage;
}
