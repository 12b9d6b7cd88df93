/* What a column holds, counted. */
#include "ring.h"

/* Count a chunk, unless an earlier span has done so. */
static void count_chunk(const ft_column *column, size_t place, ft_usage *usage) {
    const ft_chunk *chunk = column->spans[place].chunk;
    for (size_t k = 0; k < place; k++) {
        if (column->spans[k].chunk == chunk) {
            return;
        }
    }
    for (size_t i = 0; i < chunk->rows.n_streams; i++) {
        usage->frames += chunk->lanes[i].frames;
    }
    for (size_t k = 0; k < FT_MOST_CODERS; k++) {
        usage->coded[k] += chunk->coded[k];
    }
    usage->frame_bytes += chunk->rows.data_bytes;
    usage->index_bytes += ft_chunk_count_index_bytes(chunk);
    usage->held_bytes += ft_chunk_count_held_bytes(chunk);
}

ft_usage ft_column_get_usage(const ft_column *column) {
    const ft_rows *open = ft_builder_get_rows(column->open);
    ft_usage usage = {
        .frame_bytes = open->data_bytes,
        .index_bytes = ft_builder_count_index_bytes(column->open) + column->spans_room * sizeof *column->spans,
        .held_bytes = ft_builder_count_held_bytes(column->open),
        .cells = ft_count_written_cells(open, 0, open->rows),
    };
    for (size_t i = 0; i < open->n_streams; i++) {
        usage.frames += open->lanes[i].frames;
        usage.frame_bytes += open->lanes[i].open_bytes;
    }
    ft_builder_count_coded(column->open, usage.coded);
    for (size_t k = 0; k < column->n_spans; k++) {
        const ft_span *span = &column->spans[k];
        const size_t first = (size_t)span->chunk_row;
        count_chunk(column, k, &usage);
        usage.cells += ft_count_written_cells(&span->chunk->rows, first, first + (size_t)span->rows);
    }
    const ft_span *older = ft_find_older(column);
    const uint64_t row = column->open_first + open->rows - 1; /* of which some cells are in both */
    for (size_t i = 0; older != NULL && i < open->n_streams; i++) {
        const unsigned both = ft_find_written_views(&older->chunk->rows, ft_row_in_chunk(older, row), i) &
                              ft_find_written_views(open, open->rows - 1, i);
        usage.cells -= (both & 1) + (both >> 1 & 1);
    }
    return usage;
}
