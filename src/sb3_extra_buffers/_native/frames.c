/* From observations to frames and back, in both memory orders. */
#include "frames.h"

#include <string.h>

#define MOST_BYTES ((size_t)1 << 28) /* of an observation: offsets in a chunk have 32 bits */

bool ft_check_layout(const ft_layout *layout) {
    if (layout->item < 1 || layout->outer < 1 || layout->depth < 1 || layout->part < 1 || layout->planes < 1 ||
        layout->depth > FT_MAX_DEPTH || layout->planes > MOST_BYTES || layout->item > 64) {
        return false;
    }
    const size_t factors[] = {layout->part, layout->outer, layout->depth};
    size_t bytes = 1;
    for (int i = 0; i < 3; i++) {
        if (factors[i] > MOST_BYTES / bytes) {
            return false;
        }
        bytes *= factors[i];
    }
    if ((layout->can_turn || layout->interleave) && (layout->outer != 1 || layout->part % (layout->planes * layout->item) != 0)) {
        return false;
    }
    return layout->row < layout->outer * layout->part;
}

size_t ft_count_planes(const ft_layout *layout) { return layout->depth * layout->planes; }

size_t ft_count_pixels(const ft_layout *layout) { return layout->part / layout->planes / layout->item; }

ft_geometry ft_find_geometry(const ft_layout *layout, bool turned) {
    if (turned) {
        return (ft_geometry){ft_count_pixels(layout), ft_count_planes(layout) * layout->item, layout->planes * layout->item};
    }
    return (ft_geometry){layout->outer, layout->depth * layout->part, layout->part};
}

void ft_take_frame(const ft_layout *layout, const uint8_t *obs, bool turned, size_t j, uint8_t *frame, uint8_t *scratch) {
    const ft_geometry of = ft_find_geometry(layout, turned);
    if (!turned || layout->planes == 1) {
        ft_active->gather(obs, of.blocks, of.block, j * of.part, of.part, frame);
        return;
    }
    if (of.part == of.block) { /* nothing lies in between */
        ft_active->transpose(obs, frame, of.blocks, layout->planes, layout->item);
        return;
    }
    if (layout->item == 1) {
        for (size_t p = 0; p < layout->planes; p++) {
            ft_active->gather(obs, of.blocks, of.block, j * of.part + p, 1, frame + p * of.blocks);
        }
        return;
    }
    ft_active->gather(obs, of.blocks, of.block, j * of.part, of.part, scratch);
    ft_active->transpose(scratch, frame, of.blocks, layout->planes, layout->item);
}

bool ft_take_moved(const ft_layout *layout, const uint8_t *now, const uint8_t *before, bool turned, uint8_t *newest,
                 uint8_t *copy, uint8_t *scratch) {
    const ft_geometry of = ft_find_geometry(layout, turned);
    const size_t kept = of.block - of.part;
    if (of.part == 1 && of.block == 4) {
        return ft_active->moved_words(now, before, of.blocks, newest, copy);
    }
    const bool in_planes = turned && layout->planes > 1; /* those are side by side in memory, and apart in a frame */
    if (!in_planes && of.block > of.part && FT_MOVED_BLOCK % of.block == 0) {
        return ft_active->moved_blocks(now, before, of.blocks * of.block, of.block, of.part, newest, copy);
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
    ft_take_frame(layout, now, turned, layout->depth - 1, newest, scratch);
    ft_active->copy(copy, now, of.blocks * of.block);
    return true;
}

void ft_put_frame(const ft_layout *layout, const uint8_t *frame, size_t j, uint8_t *obs) {
    const size_t part = layout->part, block = layout->depth * part;
    if (frame == NULL) {
        for (size_t i = 0; i < layout->outer; i++) {
            memset(obs + i * block + j * part, 0, part);
        }
    } else if (layout->outer == 1) {
        ft_active->copy(obs + j * part, frame, part);
    } else {
        ft_active->scatter(frame, layout->outer, block, j * part, part, obs);
    }
}

void ft_turn_observation(const ft_layout *layout, const uint8_t *obs, bool turned, uint8_t *other) {
    const size_t length = ft_count_planes(layout), pixels = ft_count_pixels(layout);
    if (turned) {
        ft_active->transpose(obs, other, pixels, length, layout->item);
    } else {
        ft_active->transpose(obs, other, length, pixels, layout->item);
    }
}
