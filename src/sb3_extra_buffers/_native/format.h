/* The numbers of the format, which docs/format.md describes: records, and patches (kernels.inc). */
#ifndef FT_FORMAT_H
#define FT_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* A record is a group or a key frame: u32 length of the body, u16 stream (its lower bits), u8 coder, u8 frames, body. */
enum {
    RECORD_CODER = 6,
    RECORD_HEADER = 8,
    RECORD_NUMBER = 4, /* the u32 that a body of KEYED, CODED or PACKED begins with */
    RECORD_PATCHES = RECORD_HEADER + RECORD_NUMBER,
};

enum {
    KEYED = 0,  /* u32 offset of the key frame in the data, patch on it, further patches */
    CODED = 1,  /* u32 length, blob of the frame codec (the first frame), further patches */
    PACKED = 2, /* u32 length of what follows once decoded, blob of the group codec: the body of a KEYED */
    RAW = 3,    /* the bytes of one frame, when no codec makes them fewer */
    BLOB = 4,   /* blob of the frame codec: one frame */
    KEY = 5,    /* the bytes of a frame that patches are on */
    PALETTE = 6, /* u32 offset of a codebook, u32 length, a picture coded by it (the first frame), further patches */
    JOINT = 7,   /* likewise */
    BOOK = 8,    /* a codebook */
    OBJECTS = 9, /* u24 key frame, u24 base, u16 count of references, u24 each; a patch of objects for each frame */
    CATALOGUE = 10, /* objects that records refer to; first in the data of a chunk that is arranged for a disk */
};

/* The body of OBJECTS. A reference is the offset of an object in the data. The base is a record whose first patch comes before the
 * group's own. */
enum {
    OBJECTS_BASE = 3,
    OBJECTS_COUNT = 6,
    OBJECTS_REFERENCES = 8,
    OBJECTS_PLAIN = 0xFFFF,    /* in place of the count: patches are those of KEYED */
    OBJECTS_MANY = 255,        /* in place of the number of objects in a patch: a u16 follows */
    OBJECTS_NONE = 254,        /* likewise: a patch of KEYED follows */
    OBJECTS_FAR = 0x7FFF,      /* in place of the way from one object to the next: a u32 follows */
    OBJECTS_NO_BASE = 0xFFFFFF,
    REFERENCE_BYTES = 3,
};

/* What is done to frames before they are coded. */
enum {
    NO_TRANSFORM = 0,
    VALUES = 1, /* elements become places in a table of values */
};

enum {
    PATCH_PREFIX = 2,
    PATCH_MOST = (1 << 16) - 1,
    PATCH_UP = 253,
    PATCH_WIDE = 254,
    PATCH_ESCAPE = 255,
    PATCH_LONG = 127,
    PATCH_FILL = 128,
    PATCH_GIVEN = 0,
    PATCH_LEFT = 1,
    PATCH_RIGHT = 2,
    PATCH_FILL_LONG = 30,
    PATCH_FILL_LONGER = 31,
};

static inline void put_u32(uint8_t *out, size_t value) {
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(value >> (8 * i) & 255);
    }
}

static inline uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint16_t get_u16(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static inline uint32_t get_u24(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16; }

static inline void put_u24(uint8_t *out, size_t value) {
    out[0] = (uint8_t)(value & 255);
    out[1] = (uint8_t)(value >> 8 & 255);
    out[2] = (uint8_t)(value >> 16 & 255);
}

static inline void put_u16(uint8_t *out, size_t value) {
    out[0] = (uint8_t)(value & 255);
    out[1] = (uint8_t)(value >> 8 & 255);
}

static inline uint64_t get_u64(const uint8_t *at) { return get_u32(at) | (uint64_t)get_u32(at + 4) << 32; }

static inline void put_u64(uint8_t *out, uint64_t value) {
    put_u32(out, (size_t)(value & 0xFFFFFFFF));
    put_u32(out + 4, (size_t)(value >> 32));
}

#endif
