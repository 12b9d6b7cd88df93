/* From observations to frames and back, in both memory orders. */
#ifndef FT_FRAMES_H
#define FT_FRAMES_H

#include "frametable.h"

#include "kernels.h"

/* Blocks of bytes that an observation consists of as it lies in memory; frame `j` has `part` bytes of each. */
typedef struct ft_geometry {
    size_t blocks, block, part;
} ft_geometry;

ft_geometry ft_find_geometry(const ft_layout *layout, bool turned);
/* Whether the sizes of a layout make sense together, and are within their limits. */
bool ft_check_layout(const ft_layout *layout);
size_t ft_count_pixels(const ft_layout *layout);  /* elements of one plane */
size_t ft_count_planes(const ft_layout *layout);  /* planes along the stack's axis */

/* Frame `j` of an observation that lies in memory order; `scratch` holds a frame. */
void ft_take_frame(const ft_layout *layout, const uint8_t *obs, bool turned, size_t j, uint8_t *frame, uint8_t *scratch);
/* Whether an observation is another one moved on by a frame; then `newest` is its newest frame, and `copy` is like `now`. */
bool ft_take_moved(const ft_layout *layout, const uint8_t *now, const uint8_t *before, bool turned, uint8_t *newest, uint8_t *copy,
                 uint8_t *scratch);
/* Put a frame (NULL for zeros) where frame `j` of an observation in C order goes. */
void ft_put_frame(const ft_layout *layout, const uint8_t *frame, size_t j, uint8_t *obs);
/* An observation from one memory order to the other. */
void ft_turn_observation(const ft_layout *layout, const uint8_t *obs, bool turned, uint8_t *other);

#endif
