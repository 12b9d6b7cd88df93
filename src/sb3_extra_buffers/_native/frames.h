/* From observations to frames and back, in both memory orders. */
#ifndef FL_FRAMES_H
#define FL_FRAMES_H

#include "framelog.h"

/* Blocks of bytes that an observation consists of as it lies in memory; frame `j` has `part` bytes of each. */
typedef struct fl_geometry {
    size_t blocks, block, part;
} fl_geometry;

fl_geometry fl_geometry_of(const fl_layout *layout, bool turned);
size_t fl_pixels(const fl_layout *layout);  /* elements of one plane */
size_t fl_length(const fl_layout *layout);  /* planes along the stack's axis */

/* Frame `j` of an observation that lies in memory order; `scratch` holds a frame. */
void fl_take_frame(const fl_layout *layout, const uint8_t *obs, bool turned, size_t j, uint8_t *frame, uint8_t *scratch);
/* Whether an observation is another one moved on by a frame; then `newest` is its newest frame, and `copy` is like `now`. */
bool fl_moved_on(const fl_layout *layout, const uint8_t *now, const uint8_t *before, bool turned, uint8_t *newest, uint8_t *copy,
                 uint8_t *scratch);
/* Put a frame (NULL for zeros) where frame `j` of an observation in C order goes. */
void fl_put_frame(const fl_layout *layout, const uint8_t *frame, size_t j, uint8_t *obs);
/* An observation from one memory order to the other. */
void fl_turn(const fl_layout *layout, const uint8_t *obs, bool turned, uint8_t *other);

#endif
