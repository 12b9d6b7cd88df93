/*
 * The table of values of a chunk. Elements of 2, 4 or 8 bytes that take few different values, such as gray levels as floats, are
 * coded as one byte each: their place in the table. Values are compared as bytes, so that NaNs, negative zeros and either byte order
 * come back as they were.
 */
#ifndef FT_VALUES_H
#define FT_VALUES_H

#include "chunk.h"

enum {
    FT_MOST_VALUES = 256,
    FT_MOST_ITEM = 8,
    FT_SLOT_BITS = 15, /* so many slots that a multiplier that takes each value to one of its own is soon found */
};

typedef struct ft_values {
    size_t item;         /* bytes of a value */
    size_t count;
    uint64_t multiplier; /* takes each value to a slot of its own */
    uint8_t slots[1 << FT_SLOT_BITS]; /* the place of the value that belongs there; 0, if it is none */
    uint8_t bytes[FT_MOST_VALUES * FT_MOST_ITEM];
} ft_values;

/* Whether frames of a layout can be coded by values. */
bool ft_can_have_values(const ft_layout *layout);
/* The layout of such frames once they are coded: that of elements of one byte. */
ft_layout ft_find_coded_layout(const ft_layout *layout);

void ft_init_values(ft_values *values, size_t item);
/* Values that a chunk has not seen are added as they come; false where there are too many. Others stay where they are. */
bool ft_add_value(ft_values *values, const uint8_t *value);
/* Forget all values but the first `count`. */
void ft_cut_values(ft_values *values, size_t count);
/* Code `count` elements as bytes; `before` are others that are likely to be much the same, NULL for none, and `before_coded` what they
 * were coded as. Returns FT_OK or FT_MANY_VALUES. */
int ft_map_values(ft_values *values, const uint8_t *elements, size_t count, const uint8_t *before, const uint8_t *before_coded,
                  uint8_t *coded);

/* A frame that has been put somewhere in one piece. */
typedef struct ft_put {
    const uint8_t *at; /* its values; NULL for none */
    uint8_t *coded;
} ft_put;
/* Put a coded frame where frame `j` of an observation in C order goes. `last` is the one before, and this one then. Returns whether its
 * values are in the table. */
bool ft_put_values(const ft_rows *rows, const uint8_t *coded, size_t j, uint8_t *obs, ft_put *last);

#endif
