/* Where a value is looked for in the table: what values.c and the kernels have in common. */
#ifndef FT_SLOTS_H
#define FT_SLOTS_H

#include "values.h"

#include <string.h>

/* Elements as numbers, in the machine's byte order: only equality counts. */
static inline uint64_t ft_get_two(const uint8_t *at) {
    uint16_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

static inline uint64_t ft_get_four(const uint8_t *at) {
    uint32_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

static inline uint64_t ft_get_eight(const uint8_t *at) {
    uint64_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

static inline size_t ft_find_slot(uint64_t number, uint64_t multiplier) { return (size_t)(number * multiplier >> (64 - FT_SLOT_BITS)); }

#endif
