/* From observations to frames and back, in both memory orders. */
#include "frames.h"

#include <string.h>

size_t fl_length(const fl_layout *layout) { return layout->depth * layout->planes; }

size_t fl_pixels(const fl_layout *layout) { return layout->part / layout->planes / layout->item; }

fl_geometry fl_geometry_of(const fl_layout *layout, bool turned) {
    if (turned) {
        return (fl_geometry){fl_pixels(layout), fl_length(layout) * layout->item, layout->planes * layout->item};
    }
    return (fl_geometry){layout->outer, layout->depth * layout->part, layout->part};
}

void fl_take_frame(const fl_layout *layout, const uint8_t *obs, bool turned, size_t j, uint8_t *frame, uint8_t *scratch) {
    const fl_geometry of = fl_geometry_of(layout, turned);
    if (!turned || layout->planes == 1) {
        fl_active->gather(obs, of.blocks, of.block, j * of.part, of.part, frame);
        return;
    }
    fl_active->gather(obs, of.blocks, of.block, j * of.part, of.part, scratch);
    fl_active->transpose(scratch, frame, of.blocks, layout->planes, layout->item);
}

bool fl_moved_on(const fl_layout *layout, const uint8_t *now, const uint8_t *before, bool turned, uint8_t *newest,
                 uint8_t *copy, uint8_t *scratch) {
    const fl_geometry of = fl_geometry_of(layout, turned);
    const size_t kept = of.block - of.part;
    if (of.part == 1 && of.block == 4) {
        return fl_active->moved_words(now, before, of.blocks, newest, copy);
    }
    if (kept >= 64 || of.blocks == 1) {
        for (size_t i = 0; i < of.blocks; i++) {
            if (memcmp(now + i * of.block, before + i * of.block + of.part, kept) != 0) {
                return false;
            }
        }
    } else {
        for (size_t i = 0; i < of.blocks; i++) {
            uint8_t difference = 0;
            for (size_t j = 0; j < kept; j++) {
                difference |= now[i * of.block + j] ^ before[i * of.block + of.part + j];
            }
            if (difference) {
                return false;
            }
        }
    }
    fl_take_frame(layout, now, turned, layout->depth - 1, newest, scratch);
    fl_active->copy(copy, now, of.blocks * of.block);
    return true;
}

void fl_put_frame(const fl_layout *layout, const uint8_t *frame, size_t j, uint8_t *obs) {
    const size_t part = layout->part, block = layout->depth * part;
    if (frame == NULL) {
        for (size_t i = 0; i < layout->outer; i++) {
            memset(obs + i * block + j * part, 0, part);
        }
    } else if (layout->outer == 1) {
        fl_active->copy(obs + j * part, frame, part);
    } else {
        fl_active->scatter(frame, layout->outer, block, j * part, part, obs);
    }
}

void fl_turn(const fl_layout *layout, const uint8_t *obs, bool turned, uint8_t *other) {
    const size_t length = fl_length(layout), pixels = fl_pixels(layout);
    if (turned) {
        fl_active->transpose(obs, other, pixels, length, layout->item);
    } else {
        fl_active->transpose(obs, other, length, pixels, layout->item);
    }
}
