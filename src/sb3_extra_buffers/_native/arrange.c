/*
 * Arranging a sealed chunk for a disk: what many rows need lies at its front, and what one row needs lies in one piece.
 *
 * A group refers to a key frame, to the first patch of an earlier group, and to objects all over the chunk. In memory that costs
 * nothing, but on a disk each of them is a page to be read. So objects that are used often move to a catalogue at the front, behind it
 * come key frames and codebooks; together they are a few pages that stay in memory, as every batch needs some of them. All other
 * objects are copied to where they are used. The groups of a stream follow each other then, so that a cell and the base of its groups are
 * in one or two pages side by side.
 *
 * What comes out is a chunk like any other, a little larger. A chunk that is odd in any way stays as it is.
 */
#include "coders.h"
#include "frametable.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_USES = 6, /* of an object that gets into the catalogue, beside the one where it was first seen */
    MOST_REFERENCES = OBJECTS_PLAIN - 1,
};
#define NOWHERE UINT32_MAX

/* A record: where it is, and where it gets to. */
typedef struct moved {
    uint32_t from, to;
} moved;

/* An object that is referred to. */
typedef struct object {
    uint32_t from, to; /* `to` is NOWHERE where it is copied to all its places */
    uint32_t uses, size;
} object;

typedef struct arrangement {
    const ft_rows *rows;
    moved *records; /* in their order */
    size_t n_records;
    object *objects; /* by `from` */
    size_t n_objects;
    uint8_t *out;   /* the data of the new chunk */
    size_t pos, room;
} arrangement;

/* -- what there is -------------------------------------------------------------------------------------------------------- */

/* The record after the one at `at`; 0 where it does not end within the data. */
static size_t record_after(const ft_rows *rows, size_t at) {
    const size_t rest = rows->data_bytes - at;
    return rest >= RECORD_HEADER && get_u32(rows->data + at) <= rest - RECORD_HEADER ? at + RECORD_HEADER + get_u32(rows->data + at) : 0;
}

/* The references of an OBJECTS record that begins at `at`, and their number; false where they do not end within it. */
static bool find_references(const ft_rows *rows, size_t at, const uint8_t **references, size_t *count) {
    const uint8_t *record = rows->data + at, *body = record + RECORD_HEADER;
    const size_t length = get_u32(record);
    *count = 0;
    if (record[RECORD_CODER] != OBJECTS) {
        return true;
    }
    if (length < OBJECTS_REFERENCES) {
        return false;
    }
    *references = body + OBJECTS_REFERENCES;
    *count = get_u16(body + OBJECTS_COUNT) == OBJECTS_PLAIN ? 0 : get_u16(body + OBJECTS_COUNT);
    return *count <= (length - OBJECTS_REFERENCES) / REFERENCE_BYTES;
}

/* Bytes of the object at `at`, with what says how many these are; 0 where it does not end before `stop`. */
static size_t measure_object(const uint8_t *at, const uint8_t *stop) {
    const size_t rest = (size_t)(stop - at);
    if (rest < 1 || (at[0] == 0 && rest < 3)) {
        return 0;
    }
    const size_t before = at[0] > 0 ? 1 : 3, length = at[0] > 0 ? at[0] : get_u16(at + 1);
    return length > 0 && length <= rest - before ? before + length : 0;
}

static int by_place(const void *left, const void *right) {
    const uint32_t a = ((const object *)left)->from, b = ((const object *)right)->from;
    return (a > b) - (a < b);
}

/* Those that are used most first, so that what is hardly needed does not share a page with them. */
static int by_uses(const void *left, const void *right) {
    const object *a = left, *b = right;
    return a->uses != b->uses ? (a->uses < b->uses) - (a->uses > b->uses) : by_place(left, right);
}

/* Find all records, and all objects that they refer to. */
static int take_stock(arrangement *of) {
    const ft_rows *rows = of->rows;
    const uint8_t *references = NULL;
    size_t n_references = 0, count;
    for (size_t at = 0, next; at < rows->data_bytes; at = next) {
        next = record_after(rows, at);
        const int coder = next > 0 ? rows->data[at + RECORD_CODER] : PACKED;
        if (!ft_knows_coder(coder) || coder == PACKED || coder == CATALOGUE || !find_references(rows, at, &references, &count)) {
            return FT_INVALID; /* what is packed refers to a key frame, too, and cannot be changed */
        }
        n_references += count;
        of->n_records++;
    }
    of->records = ft_resize(NULL, of->n_records, sizeof *of->records);
    of->objects = ft_resize(NULL, n_references, sizeof *of->objects);
    if (of->records == NULL || of->objects == NULL) {
        return FT_NO_MEMORY;
    }
    for (size_t at = 0, k = 0; at < rows->data_bytes; at = record_after(rows, at)) {
        of->records[k++] = (moved){(uint32_t)at, NOWHERE};
        find_references(rows, at, &references, &count);
        for (; count > 0; count--, references += REFERENCE_BYTES) {
            const size_t from = get_u24(references);
            const uint8_t *stop = rows->data + rows->data_bytes;
            const size_t size = from < rows->data_bytes ? measure_object(rows->data + from, stop) : 0;
            if (size == 0) {
                return FT_INVALID;
            }
            of->objects[of->n_objects++] = (object){(uint32_t)from, NOWHERE, 1, (uint32_t)size};
        }
    }
    return FT_OK;
}

/* Have each object there once, by its place, and know how often it is used. */
static void join_same(arrangement *of) {
    size_t kept = 0;
    if (of->n_objects > 0) {
        qsort(of->objects, of->n_objects, sizeof *of->objects, by_place);
    }
    for (size_t k = 1; k < of->n_objects; k++) {
        if (of->objects[k].from == of->objects[kept].from) {
            of->objects[kept].uses++;
        } else {
            of->objects[++kept] = of->objects[k];
        }
    }
    of->n_objects = of->n_objects > 0 ? kept + 1 : 0;
}

/* Bytes that the data may have in the end. */
static size_t measure_data(const arrangement *of) {
    size_t bytes = RECORD_HEADER + of->rows->data_bytes;
    for (size_t k = 0; k < of->n_objects; k++) {
        const object *one = &of->objects[k];
        bytes += one->uses >= LEAST_USES ? one->size + REFERENCE_BYTES : (size_t)one->uses * one->size;
    }
    return bytes;
}

/* -- what becomes of it --------------------------------------------------------------------------------------------------- */

static uint8_t *begin_record(arrangement *to, const uint8_t *header) {
    uint8_t *record = to->out + to->pos;
    memcpy(record, header, RECORD_HEADER);
    to->pos += RECORD_HEADER;
    return record;
}

static void append(arrangement *to, const uint8_t *bytes, size_t size) {
    memcpy(to->out + to->pos, bytes, size);
    to->pos += size;
}

/* Begin the data with the objects that are used often. */
static void put_catalogue(arrangement *to) {
    static const uint8_t HEADER[RECORD_HEADER] = {[RECORD_CODER] = CATALOGUE};
    uint8_t *record = begin_record(to, HEADER);
    if (to->n_objects > 0) {
        qsort(to->objects, to->n_objects, sizeof *to->objects, by_uses);
    }
    for (size_t k = 0; k < to->n_objects && to->objects[k].uses >= LEAST_USES; k++) {
        to->objects[k].to = (uint32_t)to->pos;
        append(to, to->rows->data + to->objects[k].from, to->objects[k].size);
    }
    put_u32(record, to->pos - RECORD_HEADER);
    if (to->n_objects > 0) {
        qsort(to->objects, to->n_objects, sizeof *to->objects, by_place);
    }
}

static int compare_moved(const void *left, const void *right) {
    const uint32_t a = ((const moved *)left)->from, b = ((const moved *)right)->from;
    return (a > b) - (a < b);
}

static moved *find_record(const arrangement *of, size_t from) {
    const moved wanted = {(uint32_t)from, 0};
    return from < of->rows->data_bytes ? bsearch(&wanted, of->records, of->n_records, sizeof wanted, compare_moved) : NULL;
}

/* Where the record of a kind that begins at `from` has got to; NOWHERE where there is none, or it comes later. */
static size_t find_moved(const arrangement *of, size_t from, int coder) {
    const moved *record = find_record(of, from);
    return record != NULL && (coder < 0 || of->rows->data[from + RECORD_CODER] == coder) ? record->to : NOWHERE;
}

/* The new offset of a key frame or codebook, whose offset is that of its bytes. */
static size_t find_body(const arrangement *of, size_t body, int coder) {
    const size_t at = body >= RECORD_HEADER ? find_moved(of, body - RECORD_HEADER, coder) : NOWHERE;
    return at == NOWHERE ? NOWHERE : at + RECORD_HEADER;
}

/* Write the objects of a record's patches. Those in the catalogue are referred to, and their places are put to `references`, at most so
 * many as a record may have. Returns whether all was as it should be. */
static bool put_patches(arrangement *to, const uint8_t *given, const uint8_t *at, const uint8_t *stop, uint8_t *references, size_t *count) {
    const uint8_t *const given_stop = at, *const data = to->rows->data;
    while (at < stop) {
        const uint8_t *begin = at;
        size_t n_objects = *at++;
        if (n_objects == OBJECTS_NONE) {
            const size_t length = ft_measure_patch(at, (size_t)(stop - at));
            if (length == 0) {
                return false;
            }
            append(to, begin, 1 + length);
            at += length;
            continue;
        }
        if (n_objects == OBJECTS_MANY) {
            if (stop - at < 2) {
                return false;
            }
            n_objects = get_u16(at);
            at += 2;
        }
        append(to, begin, (size_t)(at - begin));
        for (; n_objects > 0; n_objects--) {
            const size_t head = stop - at >= 2 && get_u16(at) >> 1 == OBJECTS_FAR ? 6 : 2;
            if ((size_t)(stop - at) < head) {
                return false;
            }
            const bool refers = *at & 1;
            if (refers && given == given_stop) {
                return false;
            }
            const uint8_t *found = refers ? data + get_u24(given) : at + head;
            const size_t size = measure_object(found, refers ? data + to->rows->data_bytes : stop);
            const object wanted = {(uint32_t)(found - data), 0, 0, 0};
            const object *known = bsearch(&wanted, to->objects, to->n_objects, sizeof wanted, by_place);
            const bool is_listed = known != NULL && known->to != NOWHERE;
            if (size == 0 || (is_listed && *count == MOST_REFERENCES)) {
                return false;
            }
            append(to, at, head);
            to->out[to->pos - head] = (uint8_t)((*at & ~1u) | is_listed);
            if (is_listed) {
                put_u24(references + REFERENCE_BYTES * (*count)++, known->to);
            } else {
                append(to, found, size);
            }
            at += refers ? head : head + size;
            given += refers ? REFERENCE_BYTES : 0;
        }
    }
    return given == given_stop;
}

static bool put_objects(arrangement *to, const uint8_t *record, uint8_t *references) {
    const uint8_t *body = record + RECORD_HEADER, *given = body + OBJECTS_REFERENCES;
    const size_t length = get_u32(record), count = get_u16(body + OBJECTS_COUNT), old_base = get_u24(body + OBJECTS_BASE);
    const size_t key = find_body(to, get_u24(body), KEY);
    const size_t base = old_base == OBJECTS_NO_BASE ? OBJECTS_NO_BASE : find_moved(to, old_base, -1);
    if (key == NOWHERE || base == NOWHERE) {
        return false;
    }
    uint8_t *out = begin_record(to, record), *to_body = out + RECORD_HEADER;
    append(to, body, OBJECTS_REFERENCES);
    put_u24(to_body, key);
    put_u24(to_body + OBJECTS_BASE, base);
    if (count == OBJECTS_PLAIN) {
        append(to, given, length - OBJECTS_REFERENCES);
        return true;
    }
    const size_t first = to->pos;
    size_t n_references = 0;
    if (!put_patches(to, given, given + count * REFERENCE_BYTES, body + length, references, &n_references)) {
        return false;
    }
    const size_t before = n_references * REFERENCE_BYTES;
    memmove(to->out + first + before, to->out + first, to->pos - first);
    memcpy(to->out + first, references, before);
    to->pos += before;
    put_u16(to_body + OBJECTS_COUNT, n_references);
    put_u32(out, to->pos - (size_t)(to_body - to->out));
    return true;
}

/* Write a record of any kind. */
static bool put_record(arrangement *to, moved *of, uint8_t *references) {
    const uint8_t *record = to->rows->data + of->from, *body = record + RECORD_HEADER;
    const size_t length = get_u32(record);
    const int coder = record[RECORD_CODER];
    if (of->to != NOWHERE) {
        return false; /* two groups would be one record */
    }
    of->to = (uint32_t)to->pos;
    if (coder == OBJECTS) {
        return put_objects(to, record, references);
    }
    uint8_t *out = begin_record(to, record) + RECORD_HEADER;
    append(to, body, length);
    if (coder == KEYED || coder == PALETTE || coder == JOINT) {
        const size_t at = length >= RECORD_NUMBER ? find_body(to, get_u32(body), coder == KEYED ? KEY : BOOK) : NOWHERE;
        if (at == NOWHERE) {
            return false;
        }
        put_u32(out, at);
    }
    return true;
}

/* Write all of it, and where groups are now. Returns whether that was possible. */
static bool put_all(arrangement *to, uint8_t *groups, uint8_t *references) {
    const ft_rows *rows = to->rows;
    put_catalogue(to);
    for (size_t k = 0; k < to->n_records; k++) {
        const int coder = rows->data[to->records[k].from + RECORD_CODER];
        if ((coder == KEY || coder == BOOK) && !put_record(to, &to->records[k], references)) {
            return false;
        }
    }
    for (size_t i = 0; i < rows->n_streams; i++) {
        for (size_t k = 0; k < rows->lanes[i].n_groups; k++, groups += FT_GROUP_BYTES) {
            const uint8_t *entry = rows->lanes[i].groups + k * FT_GROUP_BYTES;
            moved *record = find_record(to, get_u32(entry));
            if (record == NULL || !put_record(to, record, references)) {
                return false;
            }
            memcpy(groups, entry, FT_GROUP_BYTES);
            put_u32(groups, record->to);
        }
    }
    return to->pos <= to->room;
}

/* Make the chunk, of an arrangement whose stock is taken. */
static int make_chunk(arrangement *of, const ft_chunk *chunk, ft_chunk **made) {
    ft_rows rows = chunk->rows;
    size_t n_groups = 0;
    for (size_t i = 0; i < rows.n_streams; i++) {
        n_groups += rows.lanes[i].n_groups;
    }
    of->room = measure_data(of);
    const size_t room = FT_CHUNK_HEADER + of->room + ft_measure_chunk(&rows) - rows.data_bytes;
    if (of->room >= OBJECTS_NO_BASE) {
        return FT_INVALID;
    }
    uint8_t *groups = ft_resize(NULL, n_groups, FT_GROUP_BYTES), *references = ft_resize(NULL, MOST_REFERENCES, REFERENCE_BYTES);
    uint8_t *pages = ft_alloc_pages(room);
    ft_lane *lanes = ft_resize(NULL, rows.n_streams, sizeof *lanes);
    ft_chunk *new = ft_alloc_chunk(rows.n_streams);
    int result = groups == NULL || references == NULL || pages == NULL || lanes == NULL || new == NULL ? FT_NO_MEMORY : FT_OK;
    if (result == FT_OK) {
        of->out = pages + FT_CHUNK_HEADER;
        result = put_all(of, groups, references) ? FT_OK : FT_INVALID;
    }
    if (result == FT_OK) {
        rows.data = of->out;
        rows.data_bytes = of->pos;
        rows.lanes = lanes;
        const uint8_t *next = groups;
        for (size_t i = 0; i < rows.n_streams; i++) {
            lanes[i] = chunk->rows.lanes[i];
            lanes[i].groups = next;
            next += lanes[i].n_groups * FT_GROUP_BYTES;
        }
        const size_t size = ft_measure_chunk(&rows);
        ft_write_chunk(&rows, chunk->first_row, pages);
        uint8_t *fitting = ft_resize_pages(pages, room, size);
        result = fitting == NULL ? FT_NO_MEMORY : FT_OK;
        if (fitting != NULL) {
            ft_set_up_chunk(new, fitting, size);
            *made = new;
        }
    }
    if (result != FT_OK) {
        if (pages != NULL) {
            ft_free_pages(pages, room);
        }
        ft_free(new);
    }
    ft_free(groups);
    ft_free(references);
    ft_free(lanes);
    return result;
}

int ft_chunk_arrange(const ft_chunk *chunk, ft_chunk **made) {
    arrangement of = {.rows = &chunk->rows};
    *made = NULL;
    if (chunk->context != NULL || chunk->rows.data_bytes >= OBJECTS_NO_BASE) {
        return FT_INVALID; /* it is in a file already, or too large for references */
    }
    int result = take_stock(&of);
    if (result == FT_OK) {
        join_same(&of);
        result = make_chunk(&of, chunk, made);
    }
    ft_free(of.records);
    ft_free(of.objects);
    return result;
}
