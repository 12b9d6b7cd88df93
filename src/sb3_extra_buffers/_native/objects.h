/* Objects: changes that belong together, stored once in a chunk. What coding.c needs of objects.c. */
#ifndef FT_OBJECTS_H
#define FT_OBJECTS_H

#include "chunk.h"

/* Where the objects of the open chunk are, found by what they are. It may know places that have been taken back, or be short of some:
 * whatever it finds is compared byte by byte before it is referred to. */
typedef struct ft_catalogue {
    uint32_t *slots; /* a byte of the hash, and the offset in the data; 0 for free */
    size_t n_slots;  /* a power of two; 0 before the first object */
    size_t count;
} ft_catalogue;

/* Bytes that an attempt may take beyond `most`. */
size_t ft_measure_objects(size_t length);
/* Write the record of a group, of which patches are given as KEYED has them, with objects, behind `data_bytes` of the data. Returns its
 * bytes, or 0 where it would be no smaller than `most`; nothing is written then that matters. */
size_t ft_write_objects(ft_catalogue *known, uint8_t *data, size_t data_bytes, size_t key, size_t base, const uint8_t *patches,
                        size_t length, size_t row, size_t most);
/* Have room for the objects of another record; false where there is no memory. From a certain size on, older ones are forgotten. */
bool ft_grow_catalogue(ft_catalogue *known, const uint8_t *data, size_t data_bytes);
void ft_clear_catalogue(ft_catalogue *known);

#endif
