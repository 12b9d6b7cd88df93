/*
 * Pictures that no other frame helps, coded by themselves: by a palette (P) or by joint deltas (D).
 *
 * P: a pixel is one of 255 colours, and mostly one of the 15 that most often lie below the colour above it; its *rank* in that list is
 * written. D: the difference to what is left, above or both, of all channels at once, is one symbol. Both go through a Huffman code,
 * in four streams: row `y` is in stream `y % 4`. What has no symbol escapes to bytes of its own. The lists and codes are a *codebook*,
 * a record in the chunk. docs/format.md describes every byte.
 */
#ifndef FT_PICTURES_H
#define FT_PICTURES_H

#include "frametable.h"

enum {
    FT_STREAMS = 4,        /* of bits */
    FT_RANKS = 16,         /* of colours below a colour; the last one stands for any other */
    FT_LITERAL = 255,      /* in place of the number of a colour: it has none, and its bytes follow */
    FT_PAIRS = 256,        /* symbols of P: two ranks */
    FT_PAIR_BITS = 11,     /* of the longest code of P */
    FT_DELTA_BITS = 12,    /* of the longest code of D */
    FT_MOST_DELTAS = 1023, /* that have a symbol */
    FT_LEAST_HEIGHT = 16,  /* of a picture; fewer rows are not worth a codebook */
    FT_MOST_PIXEL = 4,
    FT_COLOUR_SLOT_BITS = 11,
    FT_COLOUR_SLOTS = 1 << FT_COLOUR_SLOT_BITS,
    FT_DELTA_SLOT_BITS = 12,
    FT_DELTA_SLOTS = 1 << FT_DELTA_SLOT_BITS,
};

enum ft_predictor { FT_LEFT = 0, FT_ABOVE = 1, FT_GRADIENT = 2, FT_PREDICTORS = 3 };

/* What a frame looks like: rows of pixels, whose bytes lie side by side, or in planes one after the other. */
typedef struct ft_shape {
    size_t width, height;
    size_t pixel; /* bytes, 1 to FT_MOST_PIXEL */
    bool planar;
} ft_shape;

#define FT_NO_PICTURE ((size_t)-1)

/* A table of 32-bit numbers and what they stand for, with room for many more than it has: a free place ends a search. */
static inline uint32_t ft_find_place(uint32_t value, unsigned bits) { return value * 0x9E3779B1u >> (32 - bits); }

/* A codebook as a coder needs it, of P */
typedef struct ft_palette_codes {
    ft_shape shape;
    uint32_t keys[FT_COLOUR_SLOTS];
    uint8_t colours[FT_COLOUR_SLOTS]; /* FT_LITERAL where a place is free */
    uint8_t ranks[256 * 256];         /* of a colour below another */
    uint32_t codes[FT_PAIRS];         /* bits, and from bit 16 on, how many */
} ft_palette_codes;

/* ... and of D. */
typedef struct ft_joint_codes {
    ft_shape shape;
    enum ft_predictor predictor;
    uint32_t n_deltas; /* which is also the symbol of any other */
    uint32_t keys[FT_DELTA_SLOTS];
    uint16_t symbols[FT_DELTA_SLOTS]; /* `n_deltas` where a place is free */
    uint32_t codes[FT_MOST_DELTAS + 1];
} ft_joint_codes;

/* Where a coder writes to before it knows how long the parts are. */
typedef struct ft_desk {
    uint8_t *streams[FT_STREAMS]; /* each has room for its rows, whatever they are */
    uint8_t *escapes;
    size_t escape_room;
    uint8_t *rows;                /* of pixels, see FT_DESK_ROWS */
} ft_desk;
#define FT_DESK_ROWS(width) ((width) * 20 + 256)

/* A codebook as a decoder needs it. */
typedef struct ft_tables {
    uint64_t owners;      /* changed by atomic steps only */
    int kind;             /* PALETTE or JOINT */
    ft_shape shape;
    uint32_t n_colours;   /* or deltas */
    enum ft_predictor predictor;
    uint32_t values[FT_MOST_DELTAS + 1]; /* colours or deltas */
    union {
        struct {
            uint32_t pairs[1 << FT_PAIR_BITS]; /* bits of one or two symbols, the symbols, bits of the first, how many they are */
            union {
                uint32_t cells[256 * FT_RANKS]; /* pixel, if it has fewer than 4 bytes, and from bit 24 on number of the colour */
                uint8_t grays[256 * FT_RANKS];  /* instead, if it has one byte */
            };
        };
        uint32_t deltas[1 << FT_DELTA_BITS]; /* bits of a symbol, whether it is an escape, its delta or, if pixels have 4 bytes, number */
    };
} ft_tables;

enum { FT_PAIR_SYMBOLS = 8, FT_PAIR_FIRST = 26, FT_PAIR_COUNT = 30 };
enum { FT_DELTA_ESCAPES = 64, FT_DELTA_VALUE = 8 };
#define FT_CELL_ESCAPES UINT32_C(0xFF000000)

/* Memory that decoding a picture takes. */
size_t ft_measure_picture_scratch(size_t frame_bytes);

#endif
