/* CRC-32C, as its tests know it; consumers call ft_compute_checksum. */
#ifndef FT_CHECKSUM_H
#define FT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

void ft_init_checksums(void);
/* Without the processor's instruction. */
uint32_t ft_compute_checksum_plainly(const uint8_t *data, size_t size);

#endif
