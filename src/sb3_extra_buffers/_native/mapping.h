/* Files that are mapped to memory, to be read. Windows has no such thing here: there, files are read. */
#ifndef FT_MAPPING_H
#define FT_MAPPING_H

#include <stddef.h>
#include <stdint.h>

/* Map the first `size` bytes of an open file, which may be closed after that. NULL where that cannot be. */
const uint8_t *ft_map_file(int file, size_t size);
void ft_unmap_file(const uint8_t *bytes, size_t size);

/* Ask for some bytes of a mapping to be read from disk, without waiting for them. */
void ft_will_need(const uint8_t *bytes, size_t size);
/* Have some bytes of a mapping no longer count as memory of this process. The system keeps their pages for as long as it likes. */
void ft_leave_pages(const uint8_t *bytes, size_t size);

#endif
