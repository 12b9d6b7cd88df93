/* Objects: the tokens of a patch that are neighbours in the picture, found again where the same change happens once more. */
#include "objects.h"

#include <string.h>

enum {
    MOST_TOKENS = 1024,   /* of a patch; others stay as they are */
    MOST_OBJECTS = 1024,  /* of a group */
    LEAST_SHARED = 4,     /* bytes of an object that is worth a reference */
    NEAR = 1,             /* bytes between two tokens of an object in a row, at most */
    NEAR_ROWS = 1,        /* and from one row to the next */
    FIRST_SLOTS = 256,
    MOST_SLOTS = 1 << 13,
    PROBES = 4,
};

/* A patch gets longer by a head and a length for each object, and by what skips take within one, before it gets shorter. */
size_t ft_measure_objects(size_t length) {
    return OBJECTS_REFERENCES + length + (9 + 4) * MOST_TOKENS + MOST_OBJECTS * REFERENCE_BYTES + 3;
}

/* -- tokens --------------------------------------------------------------------------------------------------------------- */

/* A token, and the object it belongs to. */
typedef struct piece {
    uint32_t begin, end;     /* in the frame */
    uint32_t row, last_row;
    uint32_t left, right;    /* columns */
    uint16_t change, stop;   /* in the patch: from behind the skip on */
    uint16_t parent;         /* a token of the same object, or itself; see `root_of` */
    uint16_t next;           /* the next token of the object */
} piece;

typedef struct pieces {
    size_t count;
    piece all[MOST_TOKENS];
} pieces;

static uint16_t root_of(pieces *of, uint16_t k) {
    while (of->all[k].parent != k) {
        of->all[k].parent = of->all[of->all[k].parent].parent;
        k = of->all[k].parent;
    }
    return k;
}

/* Take a patch apart that was made here, so nothing of it needs to be checked. Returns whether that is possible. */
static bool take_apart(const uint8_t *patch, size_t length, size_t row, pieces *to) {
    size_t pos = PATCH_PREFIX, done = 0, line = 0, line_begin = 0;
    to->count = 0;
    if (length > UINT16_MAX) {
        return false;
    }
    while (pos < length) {
        if (to->count == MOST_TOKENS) {
            return false;
        }
        size_t skip = patch[pos++];
        if (skip >= PATCH_WIDE) {
            const size_t bytes = skip == PATCH_WIDE ? 2 : 4;
            skip = bytes == 2 ? get_u16(patch + pos) : get_u32(patch + pos);
            pos += bytes;
        }
        piece *token = &to->all[to->count];
        token->change = (uint16_t)pos;
        const uint32_t code = patch[pos++];
        const bool fill = code >= PATCH_FILL;
        const uint32_t short_count = fill ? code & PATCH_FILL_LONGER : code;
        size_t count = short_count + 1;
        if (fill && short_count == PATCH_FILL_LONG) {
            count = (size_t)patch[pos++] + PATCH_FILL_LONG + 1;
        } else if (short_count == (fill ? PATCH_FILL_LONGER : PATCH_LONG)) {
            count = get_u32(patch + pos);
            pos += 4;
        }
        pos += !fill ? count : (code >> 5 & 3) == PATCH_GIVEN;
        const size_t begin = done + skip;
        done = begin + count;
        token->begin = (uint32_t)begin;
        token->end = (uint32_t)done;
        token->stop = (uint16_t)pos;
        token->parent = (uint16_t)to->count++;
        for (; begin - line_begin >= row; line++) {
            line_begin += row;
        }
        token->row = token->last_row = (uint32_t)line;
        token->left = (uint32_t)(begin - line_begin);
        token->right = token->left + (uint32_t)count;
        if (token->right > row) { /* goes on in the next row */
            token->last_row += (token->right - 1) / (uint32_t)row;
            token->left = 0;
            token->right = (uint32_t)row;
        }
    }
    return true;
}

/* Have tokens that are neighbours belong to one object. */
static void join_neighbours(pieces *of) {
    size_t first = 0; /* the first one that may be a neighbour */
    for (size_t k = 1; k < of->count; k++) {
        const piece *token = &of->all[k];
        while (of->all[first].last_row + NEAR_ROWS < token->row) {
            first++;
        }
        for (size_t j = first; j < k; j++) {
            const piece *other = &of->all[j];
            /* What a token fills with may be the last byte of the one right before it. */
            const bool near = other->last_row + NEAR_ROWS >= token->row && other->left <= token->right + NEAR && token->left <= other->right + NEAR;
            if (near || other->end == token->begin) {
                const uint16_t one = root_of(of, (uint16_t)j), two = root_of(of, (uint16_t)k);
                of->all[one > two ? one : two].parent = one > two ? two : one;
            }
        }
    }
}

/* -- where objects are ---------------------------------------------------------------------------------------------------- */

void ft_clear_catalogue(ft_catalogue *known) {
    known->count = 0;
    if (known->slots != NULL) {
        memset(known->slots, 0, known->n_slots * sizeof *known->slots);
    }
}

static uint32_t hash_of(const uint8_t *object, size_t size) {
    uint64_t hash = size;
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t word;
        memcpy(&word, object + i, 8);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    uint64_t rest = 0;
    memcpy(&rest, object + i, size - i);
    hash = (hash ^ rest) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(hash >> 32);
}

/* Bytes of the object at `at`, with what says how many these are. */
static size_t size_of_object(const uint8_t *at) { return *at > 0 ? 1 + (size_t)*at : 3 + (size_t)get_u16(at + 1); }

static size_t add_place(ft_catalogue *known, uint32_t hash, size_t offset) {
    const size_t mask = known->n_slots - 1;
    size_t k = hash & mask;
    for (size_t probe = 0; probe < PROBES; probe++) {
        const size_t other = (hash + probe) & mask;
        if (known->slots[other] == 0) {
            k = other;
            known->count++;
            break;
        }
    }
    known->slots[k] = (hash >> 24) << 24 | (uint32_t)offset;
    return k;
}

bool ft_grow_catalogue(ft_catalogue *known, const uint8_t *data, size_t data_bytes) {
    if (2 * known->count < known->n_slots || known->n_slots >= MOST_SLOTS) {
        return true;
    }
    const size_t n_slots = known->n_slots > 0 ? 4 * known->n_slots : FIRST_SLOTS;
    ft_catalogue larger = {ft_alloc(n_slots, sizeof *larger.slots), n_slots, 0};
    if (larger.slots == NULL) {
        return false;
    }
    for (size_t k = 0; k < known->n_slots; k++) {
        const size_t offset = known->slots[k] & OBJECTS_NO_BASE;
        if (offset > 0 && offset + 3 < data_bytes && offset + size_of_object(data + offset) <= data_bytes) {
            add_place(&larger, hash_of(data + offset, size_of_object(data + offset)), offset);
        }
    }
    ft_free(known->slots);
    *known = larger;
    return true;
}

/* -- writing them --------------------------------------------------------------------------------------------------------- */

/* A record that is being written. References are put before patches at last, so what lies in the record itself moves then. */
typedef struct draft {
    ft_catalogue *known;
    uint8_t *data;
    size_t data_bytes, pos; /* where the record begins, and where the next byte goes */
    size_t n_references, n_added;
    uint32_t references[MOST_OBJECTS];
    struct {
        size_t slot;
        uint32_t value;
    } added[MOST_OBJECTS];
} draft;

/* Where the first patch is written before it is moved. */
static size_t first_of(const draft *to) { return to->data_bytes + RECORD_HEADER + OBJECTS_REFERENCES; }

/* The offset of an object that is the same as the one at `offset`; 0 for none. */
static size_t find_same(const draft *to, uint32_t hash, size_t offset, size_t size) {
    const ft_catalogue *known = to->known;
    for (size_t probe = 0; probe < PROBES && known->n_slots > 0; probe++) {
        const uint32_t slot = known->slots[(hash + probe) & (known->n_slots - 1)];
        const size_t other = slot & OBJECTS_NO_BASE;
        if (slot == 0) {
            return 0;
        }
        const bool is_there = other + size <= to->data_bytes || (other >= first_of(to) && other + size <= offset);
        if (slot >> 24 == hash >> 24 && is_there && memcmp(to->data + other, to->data + offset, size) == 0) {
            return other;
        }
    }
    return 0;
}

/* Write the tokens of an object. */
static size_t put_tokens(const pieces *of, const uint8_t *patch, size_t first, uint8_t *out) {
    size_t pos = 0, done = 0;
    for (size_t k = first; k != MOST_TOKENS; k = of->all[k].next) {
        const piece *token = &of->all[k];
        if (k != first) {
            const size_t skip = token->begin - done;
            if (skip < PATCH_UP) {
                out[pos++] = (uint8_t)skip;
            } else if (skip <= UINT16_MAX) {
                out[pos] = PATCH_WIDE;
                put_u16(out + pos + 1, skip);
                pos += 3;
            } else {
                out[pos] = PATCH_ESCAPE;
                put_u32(out + pos + 1, skip);
                pos += 5;
            }
        }
        memcpy(out + pos, patch + token->change, (size_t)(token->stop - token->change));
        pos += (size_t)(token->stop - token->change);
        done = token->end;
    }
    return pos;
}

/* Write the object that begins with a token, or refer to one that is there. */
static void put_object(draft *to, const pieces *of, const uint8_t *patch, size_t first, size_t way) {
    uint8_t *head = to->data + to->pos;
    size_t at = to->pos + 2;
    put_u16(head, (way < OBJECTS_FAR ? way : OBJECTS_FAR) << 1);
    if (way >= OBJECTS_FAR) {
        put_u32(head + 2, way);
        at += 4;
    }
    uint8_t *object = to->data + at;
    const size_t length = put_tokens(of, patch, first, object + 1), more = length > 255 ? 2 : 0;
    if (more) {
        memmove(object + 3, object + 1, length);
        put_u16(object + 1, length);
    }
    *object = more ? 0 : (uint8_t)length;
    const size_t size = 1 + more + length;
    to->pos = at + size;
    if (length < LEAST_SHARED) {
        return;
    }
    const uint32_t hash = hash_of(object, size);
    const size_t same = find_same(to, hash, at, size);
    if (same > 0) {
        head[0] |= 1;
        to->references[to->n_references++] = (uint32_t)same;
        to->pos = at;
    } else if (to->known->n_slots > 0) {
        const size_t slot = add_place(to->known, hash, at);
        to->added[to->n_added].slot = slot;
        to->added[to->n_added++].value = to->known->slots[slot];
    }
}

/* Write a patch as it is. */
static void put_alone(draft *to, const uint8_t *patch, size_t length) {
    to->data[to->pos] = OBJECTS_NONE;
    memcpy(to->data + to->pos + 1, patch, length);
    to->pos += 1 + length;
}

/* Write a patch of objects. Returns whether there are not too many. */
static bool put_patch(draft *to, pieces *of, const uint8_t *patch) {
    uint16_t last[MOST_TOKENS];
    size_t n_objects = 0;
    for (size_t k = 0; k < of->count; k++) {
        const uint16_t root = root_of(of, (uint16_t)k);
        of->all[k].next = MOST_TOKENS;
        if (root == k) {
            n_objects++;
        } else {
            of->all[last[root]].next = (uint16_t)k;
        }
        last[root] = (uint16_t)k;
    }
    if (to->n_references + n_objects > MOST_OBJECTS || to->n_added + n_objects > MOST_OBJECTS) {
        return false;
    }
    if (n_objects < OBJECTS_NONE) {
        to->data[to->pos++] = (uint8_t)n_objects;
    } else {
        to->data[to->pos] = OBJECTS_MANY;
        put_u16(to->data + to->pos + 1, n_objects);
        to->pos += 3;
    }
    for (size_t k = 0, done = 0; k < of->count; k++) {
        if (of->all[k].parent == k) {
            put_object(to, of, patch, k, of->all[k].begin - done);
            done = of->all[k].begin;
        }
    }
    return true;
}

/* Give the slots of objects in this record another offset, or free them. */
static void move_added(const draft *to, size_t moved, bool forget) {
    for (size_t k = 0; k < to->n_added; k++) {
        uint32_t *slot = &to->known->slots[to->added[k].slot];
        if (*slot == to->added[k].value) { /* else another object has got the slot */
            *slot = forget ? 0 : *slot + (uint32_t)moved;
            to->known->count -= forget;
        }
    }
}

/* Have the record be what it is for good. */
static size_t finish(const draft *to, size_t key, size_t base) {
    const size_t first = first_of(to), moved = to->n_references * REFERENCE_BYTES;
    uint8_t *body = to->data + to->data_bytes + RECORD_HEADER;
    memmove(to->data + first + moved, to->data + first, to->pos - first);
    put_u24(body, key);
    put_u24(body + OBJECTS_BASE, base);
    put_u16(body + OBJECTS_COUNT, to->n_references);
    for (size_t k = 0; k < to->n_references; k++) {
        const size_t offset = to->references[k];
        put_u24(body + OBJECTS_REFERENCES + k * REFERENCE_BYTES, offset >= first ? offset + moved : offset);
    }
    move_added(to, moved, false);
    return to->pos - to->data_bytes + moved;
}

size_t ft_write_objects(ft_catalogue *known, uint8_t *data, size_t data_bytes, size_t key, size_t base, const uint8_t *patches,
                        size_t length, size_t row, size_t most) {
    draft to;
    pieces found;
    to.known = known;
    to.data = data;
    to.data_bytes = data_bytes;
    to.pos = data_bytes + RECORD_HEADER + OBJECTS_REFERENCES;
    to.n_references = to.n_added = 0;
    if (data_bytes + most + ft_measure_objects(length) >= OBJECTS_NO_BASE) {
        return 0;
    }
    for (size_t pos = 0, end; pos < length; pos = end) {
        const uint8_t *patch = patches + pos;
        end = pos + ft_measure_patch(patch, length - pos);
        const bool alone = ft_patch_stands_alone(patch, end - pos);
        bool fits = true;
        if (alone && pos == 0) {
            put_alone(&to, patch, end);
        } else if (alone || !take_apart(patch, end - pos, row > 0 ? row : SIZE_MAX / 2, &found)) {
            fits = false; /* reading such a group can begin at that patch, and shall */
        } else {
            join_neighbours(&found);
            fits = put_patch(&to, &found, patch);
        }
        if (!fits || to.pos - data_bytes + to.n_references * REFERENCE_BYTES >= most) {
            move_added(&to, 0, true);
            return 0;
        }
    }
    return finish(&to, key, base);
}
