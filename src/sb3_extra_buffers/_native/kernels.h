/* Kernels: all that runs over whole frames, compiled for several sets of instructions. */
#ifndef FT_KERNELS_H
#define FT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pictures.h"

enum {
    FT_READ_AHEAD = 8,   /* bytes after a patch that may be read, though they mean nothing */
    FT_MOVED_BLOCK = 32, /* blocks of `moved_blocks` are this large, or a half, a quarter … of it */
    FT_WRITE_AHEAD = 32, /* bytes after a frame that may be written while it is decoded */
};

#define FT_NO_PATCH ((size_t)-1)

struct ft_values;

/* Patches of objects, one after the other, and what they refer to. Everything else is behind `data_bytes`, but FT_READ_AHEAD more may
 * be read, as behind `stop`. */
typedef struct ft_objects {
    const uint8_t *data;
    size_t data_bytes;
    const uint8_t *references, *references_stop; /* from the next one on */
    const uint8_t *at, *stop;                    /* from the next patch on */
} ft_objects;

typedef struct ft_kernels {
    const char *name;
    /* Write the patch that makes `now`, on `before` or on itself one row up, whichever is smaller. Returns where it ends,
     * or FT_NO_PATCH where it does not fit before `stop`. */
    size_t (*encode)(const uint8_t *before, const uint8_t *now, size_t size, size_t row, const uint8_t *zeros,
                     uint32_t *row_above, uint8_t *out, size_t pos, size_t stop);
    /* Change a frame as a patch of `length` bytes says. FT_READ_AHEAD after the patch are read, FT_WRITE_AHEAD after the
     * frame are written; of the frame only `size` bytes change for good. Returns whether the patch is sound. */
    bool (*apply)(const uint8_t *patch, size_t length, uint8_t *frame, size_t size, size_t row);
    /* Change a frame as the next patch of objects says, and go on to the one after it. As `apply`, otherwise. */
    bool (*apply_objects)(ft_objects *next, uint8_t *frame, size_t size, size_t row);
    /* Copy bytes to somewhere else. */
    void (*copy)(uint8_t *target, const uint8_t *source, size_t size);
    /* Whether bytes are equal; `a` is what comes from outside. */
    bool (*same)(const uint8_t *a, const uint8_t *b, size_t size);
    /* A stack of four one-byte frames side by side: whether it is the old one moved on by a frame. Then `newest` is that frame, and
     * `copy` is the same as `now`. */
    bool (*moved_words)(const uint8_t *now, const uint8_t *before, size_t pixels, uint8_t *newest, uint8_t *copy);
    /* The same for frames of `part` bytes side by side, in blocks of which FT_MOVED_BLOCK is a multiple; `size` bytes of them. */
    bool (*moved_blocks)(const uint8_t *now, const uint8_t *before, size_t size, size_t block, size_t part, uint8_t *newest,
                         uint8_t *copy);
    /* Bytes `first` to `first + width` of each block of a row of blocks, to or from packed memory. */
    void (*gather)(const uint8_t *blocks, size_t count, size_t block, size_t first, size_t width, uint8_t *packed);
    void (*scatter)(const uint8_t *packed, size_t count, size_t block, size_t first, size_t width, uint8_t *blocks);
    /* Rows of values are made columns. */
    void (*transpose)(const uint8_t *source, uint8_t *target, size_t rows, size_t columns, size_t item);
    /* The pixels of row `y` of a frame as numbers. */
    void (*take_pixels)(const ft_shape *shape, const uint8_t *frame, size_t y, uint32_t *row);
    /* Differences of a row to what is predicted; both rows have a pixel before them that is written to. */
    void (*find_deltas)(uint32_t *row, uint32_t *above, size_t width, enum ft_predictor predictor, uint32_t *deltas);
    /* Code a picture by a codebook. `counts`, where it is not NULL, counts symbols. Returns the bytes at `out`, or FT_NO_PICTURE where
     * they are more than `limit`, or are going to be. */
    size_t (*encode_palette)(const ft_palette_codes *with, const uint8_t *frame, const ft_desk *desk, uint8_t *out, size_t limit,
                             uint32_t *counts);
    size_t (*encode_joint)(const ft_joint_codes *with, const uint8_t *frame, const ft_desk *desk, uint8_t *out, size_t limit);
    /* Decode one: FT_READ_AHEAD after it are read, and exactly one frame is written. `scratch` has ft_measure_picture_scratch. Returns
     * whether the picture is sound. */
    bool (*decode_palette)(const ft_tables *with, const uint8_t *picture, size_t size, uint8_t *frame, uint8_t *scratch);
    bool (*decode_joint)(const ft_tables *with, const uint8_t *picture, size_t size, uint8_t *frame, uint8_t *scratch);
    /* Elements from `first` to `count` as places in a table of values that is not empty; other elements that have been coded help
     * where they are the same, NULL for none. Returns the first element that is not in the table, or `count`. */
    size_t (*map_values)(const struct ft_values *values, const uint8_t *elements, size_t first, size_t count, const uint8_t *before,
                         const uint8_t *before_coded, uint8_t *coded);
    /* Whether all bytes are below a limit. */
    bool (*are_below)(const uint8_t *bytes, size_t count, size_t limit);
    /* Values of `item` bytes from their places in a table; others that have been put somewhere help likewise. */
    void (*put_values)(const uint8_t *table, size_t item, const uint8_t *coded, size_t count, const uint8_t *before,
                       const uint8_t *before_coded, uint8_t *out);
    /* The same, `width` of them at the beginning of each of `count` blocks of bytes. */
    void (*put_apart)(const uint8_t *table, size_t item, const uint8_t *coded, size_t count, size_t width, size_t block, uint8_t *out);
} ft_kernels;

const ft_kernels *ft_find_best_kernels(void);
const ft_kernels *ft_find_kernels(const char *name); /* NULL where this processor has none of that name */
extern const ft_kernels *ft_active;                   /* those in use; only tests change them, while nothing else runs */

/* Bytes of the patch at `patch`, 0 where there is no whole one in `size` bytes; whether it needs no reference. */
size_t ft_measure_patch(const uint8_t *patch, size_t size);
bool ft_patch_stands_alone(const uint8_t *patch, size_t length);

#if defined(__x86_64__) || defined(_M_X64)
/* Whether the processor has the instruction for checksums. */
bool ft_has_sse42(void);
#endif

#endif
