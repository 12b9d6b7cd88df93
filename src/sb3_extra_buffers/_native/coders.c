/* Coders: from the body of a record to a first frame and patches. A new coder is a function here, and a row in the table. */
#include "coders.h"

#include "format.h"

#include <string.h>

/* Bytes that a packed group may have once it is unpacked. */
static size_t most_body(const ft_rows *rows) { return 3 * rows->frame_bytes + ((size_t)64 << rows->method.shift); }

size_t ft_measure_scratch(const ft_rows *rows) {
    return 4 * rows->stride + 2 * FT_WRITE_AHEAD + ft_measure_picture_scratch(rows->frame_bytes) +
           (rows->method.packs ? most_body(rows) + FT_READ_AHEAD : 0);
}

ft_scratch ft_split_scratch(const ft_rows *rows, uint8_t *memory) {
    ft_scratch own = {.frame = memory, .first = memory + rows->stride + FT_WRITE_AHEAD};
    own.pixels = own.first + rows->stride + FT_WRITE_AHEAD;
    own.put = own.pixels + rows->stride;
    own.work = own.put + rows->stride;
    own.body = own.work + ft_measure_picture_scratch(rows->frame_bytes);
    return own;
}

/* A record that is being opened. Every number that comes from stored bytes is checked before it is used. */
typedef struct source {
    const ft_rows *rows;
    const uint8_t *body;
    size_t length;
    const ft_scratch *own;
    const ft_codecs *codecs;
} source;

static int decode_frame(const source *from, const uint8_t *blob, size_t size) {
    const ft_rows *rows = from->rows;
    const ft_layout *layout = &rows->layout;
    const ft_scratch *own = from->own;
    uint8_t *out = layout->interleave ? own->pixels : own->first;
    const int result = from->codecs->decode(from->codecs->context, FT_FRAME_CODEC, blob, size, out, rows->frame_bytes);
    if (result == FT_OK && layout->interleave) {
        ft_active->transpose(own->pixels, own->first, ft_count_pixels(layout), layout->planes, layout->item);
    }
    return result;
}

/* A key frame, which is a record of its own somewhere in the data, and patches on it. */
static int open_patches(const ft_rows *rows, const uint8_t *body, size_t length, ft_group *group) {
    const size_t key = get_u32(body);
    if (key > rows->data_bytes || rows->frame_bytes > rows->data_bytes - key) {
        return FT_DAMAGED;
    }
    group->base = rows->data + key;
    group->keyed = true;
    group->patches = body + RECORD_NUMBER;
    group->length = length - RECORD_NUMBER;
    return FT_OK;
}

static int open_keyed(const source *from, ft_group *group) {
    return from->length < RECORD_NUMBER ? FT_DAMAGED : open_patches(from->rows, from->body, from->length, group);
}

static int open_coded(const source *from, ft_group *group) {
    if (from->length < RECORD_NUMBER || get_u32(from->body) > from->length - RECORD_NUMBER) {
        return FT_DAMAGED;
    }
    const size_t size = get_u32(from->body);
    group->patches = from->body + RECORD_NUMBER + size;
    group->length = from->length - RECORD_NUMBER - size;
    return decode_frame(from, from->body + RECORD_NUMBER, size);
}

static int open_packed(const source *from, ft_group *group) {
    if (!from->rows->method.packs || from->length < RECORD_NUMBER) {
        return FT_DAMAGED;
    }
    const size_t size = get_u32(from->body);
    if (size > most_body(from->rows) || size < RECORD_NUMBER) {
        return FT_DAMAGED;
    }
    uint8_t *body = from->own->body;
    const int result = from->codecs->decode(from->codecs->context, FT_GROUP_CODEC, from->body + RECORD_NUMBER,
                                            from->length - RECORD_NUMBER, body, size);
    if (result != FT_OK) {
        return result;
    }
    memset(body + size, 0, FT_READ_AHEAD);
    return open_patches(from->rows, body, size, group);
}

/* Take the body of an OBJECTS record apart, but for its base. */
static int open_objects_on_key(const ft_rows *rows, const uint8_t *body, size_t length, ft_group *group) {
    if (length < OBJECTS_REFERENCES) {
        return FT_DAMAGED;
    }
    const size_t key = get_u24(body), count = get_u16(body + OBJECTS_COUNT), rest = length - OBJECTS_REFERENCES;
    if (key > rows->data_bytes || rows->frame_bytes > rows->data_bytes - key) {
        return FT_DAMAGED;
    }
    group->base = rows->data + key;
    group->keyed = true;
    group->patches = body + OBJECTS_REFERENCES;
    group->length = rest;
    if (count == OBJECTS_PLAIN) {
        return FT_OK;
    }
    if (count * REFERENCE_BYTES > rest) {
        return FT_DAMAGED;
    }
    const uint8_t *references = group->patches, *patches = references + count * REFERENCE_BYTES;
    group->objects = (ft_objects){rows->data, rows->data_bytes, references, patches, patches, body + length};
    group->patches = NULL;
    return FT_OK;
}

/* Open the record that another one begins with: one that has no such base itself. */
static int open_base(const ft_rows *rows, size_t offset, ft_group *group) {
    if (offset > rows->data_bytes || rows->data_bytes - offset < RECORD_HEADER) {
        return FT_DAMAGED;
    }
    const uint8_t *record = rows->data + offset, *body = record + RECORD_HEADER;
    const size_t length = get_u32(record);
    if (length > rows->data_bytes - offset - RECORD_HEADER) {
        return FT_DAMAGED;
    }
    if (record[RECORD_CODER] == KEYED && length >= RECORD_NUMBER) {
        return open_patches(rows, body, length, group);
    }
    const bool sound = record[RECORD_CODER] == OBJECTS && length >= OBJECTS_REFERENCES && get_u24(body + OBJECTS_BASE) == OBJECTS_NO_BASE;
    return sound ? open_objects_on_key(rows, body, length, group) : FT_DAMAGED;
}

int ft_make_base(const ft_rows *rows, const uint8_t *key, size_t offset, uint8_t *frame) {
    ft_group group = {0};
    const int result = open_base(rows, offset, &group);
    if (result != FT_OK) {
        return result;
    }
    ft_active->copy(frame, key, rows->frame_bytes);
    return ft_apply_next(rows, &group, frame) ? FT_OK : FT_DAMAGED;
}

bool ft_apply_next(const ft_rows *rows, ft_group *group, uint8_t *frame) {
    if (group->patches == NULL) {
        return ft_active->apply_objects(&group->objects, frame, rows->frame_bytes, rows->layout.row);
    }
    const size_t length = ft_measure_patch(group->patches, group->length);
    if (length == 0 || !ft_active->apply(group->patches, length, frame, rows->frame_bytes, rows->layout.row)) {
        return false;
    }
    group->patches += length;
    group->length -= length;
    return true;
}

static int open_objects(const source *from, ft_group *group) {
    const int result = open_objects_on_key(from->rows, from->body, from->length, group);
    const size_t base = result == FT_OK ? get_u24(from->body + OBJECTS_BASE) : OBJECTS_NO_BASE;
    if (base == OBJECTS_NO_BASE) {
        return result;
    }
    const uint8_t *key = group->base;
    group->base = from->own->first;
    return ft_make_base(from->rows, key, base, from->own->first);
}

static int open_raw(const source *from, ft_group *group) {
    group->base = from->body;
    return from->length == from->rows->frame_bytes ? FT_OK : FT_DAMAGED;
}

static int open_blob(const source *from, ft_group *group) {
    (void)group; /* the codec's frame is its first one, and there are no patches */
    return decode_frame(from, from->body, from->length);
}

/* A codebook, which is a record of its own somewhere in the data, a picture that was coded by it, and patches. */
static int open_picture(const source *from, int kind, ft_group *group) {
    enum { BEFORE = 2 * RECORD_NUMBER };
    if (from->length < BEFORE || get_u32(from->body + RECORD_NUMBER) > from->length - BEFORE) {
        return FT_DAMAGED;
    }
    const uint8_t *picture = from->body + BEFORE;
    const size_t size = get_u32(from->body + RECORD_NUMBER);
    const ft_tables *tables;
    const int result = ft_find_tables(from->rows, get_u32(from->body), &tables);
    if (result != FT_OK || tables->kind != kind) {
        return result != FT_OK ? result : FT_DAMAGED;
    }
    group->patches = picture + size;
    group->length = from->length - BEFORE - size;
    const bool sound = kind == PALETTE
                           ? ft_active->decode_palette(tables, picture, size, from->own->first, from->own->work)
                           : ft_active->decode_joint(tables, picture, size, from->own->first, from->own->work);
    return sound ? FT_OK : FT_DAMAGED;
}

static int open_palette(const source *from, ft_group *group) { return open_picture(from, PALETTE, group); }

static int open_joint(const source *from, ft_group *group) { return open_picture(from, JOINT, group); }

/* Fetch the key frame, unless the first patch takes nothing from it. */
static void fetch_key(const ft_rows *rows, const uint8_t *body, size_t length, ft_asked *asked) {
    const size_t key = length > RECORD_NUMBER + PATCH_PREFIX ? get_u32(body) : SIZE_MAX;
    if (key < rows->data_bytes && rows->frame_bytes <= rows->data_bytes - key && body[RECORD_NUMBER + PATCH_PREFIX] != PATCH_UP) {
        for (size_t at = 0; at < rows->frame_bytes; at += FT_LINE) {
            ft_fetch(rows->data + key + at, asked);
        }
    }
}

static void fetch_lines(const ft_rows *rows, size_t offset, size_t bytes, ft_asked *asked) {
    const size_t rest = offset < rows->data_bytes ? rows->data_bytes - offset : 0, stop = bytes < rest ? bytes : rest;
    for (size_t at = 0; at < stop; at += FT_LINE) {
        ft_fetch(rows->data + offset + at, asked);
    }
}

static void fetch_objects_on_key(const ft_rows *rows, const uint8_t *body, size_t length, ft_asked *asked) {
    enum { FIRST_PATCH = 4 * FT_LINE }; /* bytes in which most of them end */
    if (length < OBJECTS_REFERENCES) {
        return;
    }
    fetch_lines(rows, get_u24(body), rows->frame_bytes, asked);
    if (get_u24(body + OBJECTS_BASE) != OBJECTS_NO_BASE) {
        fetch_lines(rows, get_u24(body + OBJECTS_BASE), FIRST_PATCH, asked);
    }
}

/* What there is to know of a coder: how to open a record, and how to fetch what that is going to need beside the record itself;
 * NULL where it needs nothing. */
typedef struct coder {
    int (*open)(const source *from, ft_group *group);
    void (*fetch)(const ft_rows *rows, const uint8_t *body, size_t length, ft_asked *asked);
} coder;

static const coder CODERS[] = {
    [KEYED] = {open_keyed, fetch_key},
    [CODED] = {open_coded, NULL},
    [PACKED] = {open_packed, NULL},
    [RAW] = {open_raw, NULL},
    [BLOB] = {open_blob, NULL},
    [KEY] = {NULL, NULL}, /* is referred to, and no group by itself */
    [PALETTE] = {open_palette, NULL},
    [JOINT] = {open_joint, NULL},
    [BOOK] = {NULL, NULL}, /* likewise */
    [OBJECTS] = {open_objects, fetch_objects_on_key},
    [CATALOGUE] = {NULL, NULL}, /* its objects are referred to */
};

enum { N_CODERS = sizeof CODERS / sizeof *CODERS };

bool ft_knows_coder(int coder) { return coder >= 0 && coder < N_CODERS; }

int ft_open_record(const ft_rows *rows, const uint8_t *record, size_t length, const ft_scratch *own, const ft_codecs *codecs,
                   ft_group *group) {
    const int coder = record[RECORD_CODER];
    if (!ft_knows_coder(coder) || CODERS[coder].open == NULL) {
        return FT_DAMAGED;
    }
    const source from = {rows, record + RECORD_HEADER, length - RECORD_HEADER, own, codecs};
    group->base = own->first;
    group->keyed = false;
    group->patches = from.body;
    group->length = 0;
    return CODERS[coder].open(&from, group);
}

void ft_fetch_record(const ft_rows *rows, size_t offset, ft_asked *asked) {
    if (offset > rows->data_bytes || rows->data_bytes - offset < RECORD_HEADER) {
        return;
    }
    const uint8_t *record = rows->data + offset;
    const size_t rest = rows->data_bytes - offset - RECORD_HEADER, length = get_u32(record) < rest ? get_u32(record) : rest;
    for (size_t at = FT_LINE; at < RECORD_HEADER + length; at += FT_LINE) {
        ft_fetch(record + at, asked);
    }
    const int coder = record[RECORD_CODER];
    if (ft_knows_coder(coder) && CODERS[coder].fetch != NULL) {
        CODERS[coder].fetch(rows, record + RECORD_HEADER, length, asked);
    }
}

void ft_fetch_objects(const ft_rows *rows, size_t offset, ft_asked *asked) {
    if (offset > rows->data_bytes || rows->data_bytes - offset < RECORD_HEADER + OBJECTS_REFERENCES) {
        return;
    }
    const uint8_t *record = rows->data + offset, *body = record + RECORD_HEADER;
    if (record[RECORD_CODER] != OBJECTS || get_u16(body + OBJECTS_COUNT) == OBJECTS_PLAIN) {
        return;
    }
    const size_t count = get_u16(body + OBJECTS_COUNT), room = (rows->data_bytes - offset - RECORD_HEADER - OBJECTS_REFERENCES) / REFERENCE_BYTES;
    const uint8_t *at = body + OBJECTS_REFERENCES, *stop = at + (count < room ? count : room) * REFERENCE_BYTES;
    for (; at < stop; at += REFERENCE_BYTES) {
        const size_t object = get_u24(at);
        ft_fetch(rows->data + (object < rows->data_bytes ? object : 0), asked);
    }
}
