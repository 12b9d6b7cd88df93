#include "chunk.h"
#include <string.h>
void ft_gather(const uint8_t *data, size_t cell_bytes, size_t n_streams, const int64_t *rows, const int64_t *streams, size_t count, uint8_t *out) {
    for (size_t k = 0; k < count; k++) { memcpy(out + k * cell_bytes, data + ((size_t)rows[k] * n_streams + (size_t)streams[k]) * cell_bytes, cell_bytes); }
}
bool ft_column_layout_in_doubt(const ft_column *column) { (void)column; return false; }
void ft_column_set_patience(ft_column *column, uint64_t observations) { (void)column; (void)observations; }
bool ft_column_shares(const ft_column *column, size_t bytes) { (void)column; return bytes >= FL_WORTH_SHARING; }
