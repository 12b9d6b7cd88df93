/* Codebooks: as the body of a record, as a coder and as a decoder need them, and those of a chunk. */
#include "codebooks.h"

#include <string.h>

/* In the body of a record. */
enum { AT_KIND = 0, AT_PIXEL = 1, AT_PLANAR = 2, AT_PREDICTOR = 3, AT_WIDTH = 4, AT_COUNT = 8, AT_VALUES = 10 };

size_t ft_measure_picture_scratch(size_t frame_bytes) { return 2 * frame_bytes + 512; }

static size_t count_symbols(const ft_book *book) { return book->kind == PALETTE ? FT_PAIRS : book->n + 1; }

static unsigned longest_of(const ft_book *book) { return book->kind == PALETTE ? FT_PAIR_BITS : FT_DELTA_BITS; }

size_t ft_write_book(const ft_book *book, uint8_t *out) {
    const size_t symbols = count_symbols(book);
    uint8_t *at = out + AT_VALUES;
    out[AT_KIND] = (uint8_t)book->kind;
    out[AT_PIXEL] = (uint8_t)book->shape.pixel;
    out[AT_PLANAR] = book->shape.planar;
    out[AT_PREDICTOR] = (uint8_t)book->predictor;
    put_u32(out + AT_WIDTH, book->shape.width);
    put_u16(out + AT_COUNT, book->n);
    for (uint32_t k = 0; k < book->n; k++) {
        for (size_t p = 0; p < book->shape.pixel; p++) {
            *at++ = (uint8_t)(book->values[k] >> (8 * p));
        }
    }
    for (size_t k = 0; book->kind == PALETTE && k < 256; k++) {
        if (ft_has_list(book, k)) {
            memcpy(at, book->below[k], (size_t)1 + book->below[k][0]);
            at += 1 + book->below[k][0];
        }
    }
    for (size_t k = 0; k < symbols; k += 2) {
        *at++ = (uint8_t)(book->lengths[k] | (k + 1 < symbols ? book->lengths[k + 1] << 4 : 0));
    }
    return (size_t)(at - out);
}

static bool read_shape(const uint8_t *body, size_t frame_bytes, ft_book *book) {
    const size_t width = get_u32(body + AT_WIDTH), pixel = body[AT_PIXEL];
    if (pixel < 1 || pixel > FT_MOST_PIXEL || width < 1 || width > frame_bytes || frame_bytes % (width * pixel) != 0) {
        return false;
    }
    book->shape = (ft_shape){width, frame_bytes / (width * pixel), pixel, body[AT_PLANAR] != 0};
    return book->shape.height >= FT_LEAST_HEIGHT && body[AT_PLANAR] <= 1;
}

bool ft_read_book(const uint8_t *body, size_t size, size_t frame_bytes, ft_book *book) {
    memset(book, 0, sizeof *book);
    if (size < AT_VALUES || !read_shape(body, frame_bytes, book) || body[AT_PREDICTOR] >= FT_PREDICTORS) {
        return false;
    }
    const size_t pixel = book->shape.pixel;
    book->kind = body[AT_KIND];
    book->predictor = (enum ft_predictor)body[AT_PREDICTOR];
    book->n = get_u16(body + AT_COUNT);
    const bool is_palette = book->kind == PALETTE;
    const uint32_t most = !is_palette ? FT_MOST_DELTAS : pixel == 1 ? 0 : FT_LITERAL;
    if ((!is_palette && (book->kind != JOINT || book->n == 0)) || book->n > most || size - AT_VALUES < book->n * pixel) {
        return false;
    }
    const uint8_t *at = body + AT_VALUES, *end = body + size;
    for (uint32_t k = 0; k < book->n; k++) {
        for (size_t p = 0; p < pixel; p++) {
            book->values[k] |= (uint32_t)*at++ << (8 * p);
        }
    }
    for (size_t k = 0; is_palette && k < 256; k++) {
        if (!ft_has_list(book, k)) {
            continue;
        }
        if (at == end || *at >= FT_RANKS || (size_t)(end - at) < (size_t)1 + *at) {
            return false;
        }
        memcpy(book->below[k], at, (size_t)1 + *at);
        at += 1 + *at;
        for (size_t rank = 0; pixel > 1 && rank < book->below[k][0]; rank++) {
            if (book->below[k][1 + rank] >= book->n) {
                return false;
            }
        }
    }
    const size_t symbols = count_symbols(book);
    if ((size_t)(end - at) != (symbols + 1) / 2) {
        return false;
    }
    for (size_t k = 0; k < symbols; k++) {
        book->lengths[k] = at[k / 2] >> (k % 2 * 4) & 15;
    }
    return ft_check_lengths(book->lengths, symbols, longest_of(book));
}

/* -- for a coder ---------------------------------------------------------------------------------------------------------- */

static void make_codes(const ft_book *book, uint32_t *codes) {
    uint16_t bits[FT_MOST_SYMBOLS];
    const size_t symbols = count_symbols(book);
    ft_make_codes(book->lengths, symbols, longest_of(book), bits);
    for (size_t k = 0; k < symbols; k++) {
        codes[k] = bits[k] | (uint32_t)book->lengths[k] << 16;
    }
}

void ft_make_palette_codes(const ft_book *book, ft_palette_codes *codes) {
    codes->shape = book->shape;
    memset(codes->colours, FT_LITERAL, sizeof codes->colours);
    memset(codes->keys, 0, sizeof codes->keys);
    memset(codes->ranks, FT_RANKS - 1, sizeof codes->ranks);
    for (uint32_t k = 0; k < book->n; k++) {
        uint32_t slot = ft_find_place(book->values[k], FT_COLOUR_SLOT_BITS);
        while (codes->colours[slot] != FT_LITERAL) {
            slot = (slot + 1) & (FT_COLOUR_SLOTS - 1);
        }
        codes->keys[slot] = book->values[k];
        codes->colours[slot] = (uint8_t)k;
    }
    for (size_t k = 0; k < 256; k++) {
        for (uint8_t rank = 0; rank < book->below[k][0]; rank++) {
            codes->ranks[k << 8 | book->below[k][1 + rank]] = rank;
        }
    }
    make_codes(book, codes->codes);
}

void ft_make_joint_codes(const ft_book *book, ft_joint_codes *codes) {
    codes->shape = book->shape;
    codes->predictor = book->predictor;
    codes->n_deltas = book->n;
    memset(codes->keys, 0, sizeof codes->keys);
    for (size_t slot = 0; slot < FT_DELTA_SLOTS; slot++) {
        codes->symbols[slot] = (uint16_t)book->n;
    }
    for (uint32_t k = 0; k < book->n; k++) {
        uint32_t slot = ft_find_place(book->values[k], FT_DELTA_SLOT_BITS);
        while (codes->symbols[slot] != book->n) {
            slot = (slot + 1) & (FT_DELTA_SLOTS - 1);
        }
        codes->keys[slot] = book->values[k];
        codes->symbols[slot] = (uint16_t)k;
    }
    make_codes(book, codes->codes);
}

/* -- for a decoder -------------------------------------------------------------------------------------------------------- */

/* For every pattern of `longest` bits the symbol that it begins with, and from bit 12 on, how many bits that has. */
static void make_patterns(const ft_book *book, uint16_t *patterns) {
    const unsigned longest = longest_of(book);
    const size_t symbols = count_symbols(book);
    uint16_t codes[FT_MOST_SYMBOLS];
    ft_make_codes(book->lengths, symbols, longest, codes);
    for (size_t k = 0; k < symbols; k++) {
        for (size_t pattern = codes[k]; pattern < (size_t)1 << longest; pattern += (size_t)1 << book->lengths[k]) {
            patterns[pattern] = (uint16_t)(k | (size_t)book->lengths[k] << 12);
        }
    }
}

static void make_pairs(const ft_book *book, ft_tables *tables) {
    uint16_t single[1 << FT_PAIR_BITS];
    make_patterns(book, single);
    for (uint32_t pattern = 0; pattern < 1 << FT_PAIR_BITS; pattern++) {
        const uint32_t first = single[pattern] & 255, bits = single[pattern] >> 12, other = single[pattern >> bits];
        const bool both = bits + (other >> 12) <= FT_PAIR_BITS;
        tables->pairs[pattern] = (bits + (both ? other >> 12 : 0)) | (first | (both ? (other & 255) << 8 : 0)) << FT_PAIR_SYMBOLS |
                                 bits << FT_PAIR_FIRST | (both ? 2u : 1u) << FT_PAIR_COUNT;
    }
}

static void make_deltas(const ft_book *book, ft_tables *tables) {
    uint16_t single[1 << FT_DELTA_BITS];
    make_patterns(book, single);
    for (uint32_t pattern = 0; pattern < 1 << FT_DELTA_BITS; pattern++) {
        const uint32_t symbol = single[pattern] & 0xFFF, escapes = symbol == book->n ? FT_DELTA_ESCAPES : 0;
        const uint32_t value = book->shape.pixel == 4 ? symbol : book->values[symbol];
        tables->deltas[pattern] = single[pattern] >> 12 | escapes | value << FT_DELTA_VALUE;
    }
}

void ft_make_tables(const ft_book *book, ft_tables *tables) {
    tables->kind = book->kind;
    tables->shape = book->shape;
    tables->predictor = book->predictor;
    tables->n_colours = book->n;
    memcpy(tables->values, book->values, sizeof tables->values);
    if (book->kind == JOINT) {
        make_deltas(book, tables);
        return;
    }
    make_pairs(book, tables);
    for (size_t k = 0; k < 256; k++) {
        for (size_t rank = 0; rank < FT_RANKS; rank++) {
            const bool listed = rank < book->below[k][0];
            const uint32_t colour = listed ? book->below[k][1 + rank] : FT_LITERAL;
            if (book->shape.pixel == 1) {
                tables->grays[k * FT_RANKS + rank] = listed ? book->below[k][1 + rank] : 0;
            } else {
                tables->cells[k * FT_RANKS + rank] = colour << 24 | (book->shape.pixel == 4 ? 0 : book->values[colour]);
            }
        }
    }
}

int ft_tables_new(const uint8_t *body, size_t size, size_t frame_bytes, ft_tables **made) {
    ft_book book;
    *made = NULL;
    if (!ft_read_book(body, size, frame_bytes, &book)) {
        return FT_DAMAGED;
    }
    ft_tables *tables = ft_alloc(1, sizeof *tables);
    if (tables == NULL) {
        return FT_NO_MEMORY;
    }
    ft_make_tables(&book, tables);
    tables->owners = 1;
    *made = tables;
    return FT_OK;
}

void ft_keep_tables(ft_tables *tables) { ft_add_owners(&tables->owners, 1); }

void ft_drop_tables(ft_tables *tables) {
    if (tables != NULL && ft_add_owners(&tables->owners, -1) == 0) {
        ft_free(tables);
    }
}

/* -- those of a chunk ----------------------------------------------------------------------------------------------------- */

/* Readers hold no lock, and there may be several. A list that only grows, at its front, needs none. */
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
static ft_place *load_first(ft_shelf *shelf) { return _InterlockedCompareExchangePointer((void *volatile *)&shelf->first, NULL, NULL); }
static bool put_first(ft_shelf *shelf, ft_place **expected, ft_place *place) {
    ft_place *before = _InterlockedCompareExchangePointer((void *volatile *)&shelf->first, place, *expected);
    const bool done = before == *expected;
    *expected = before;
    return done;
}
#else
static ft_place *load_first(ft_shelf *shelf) { return __atomic_load_n(&shelf->first, __ATOMIC_ACQUIRE); }
static bool put_first(ft_shelf *shelf, ft_place **expected, ft_place *place) {
    return __atomic_compare_exchange_n(&shelf->first, expected, place, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
#endif

static ft_tables *find_on_shelf(const ft_place *from, size_t offset) {
    while (from != NULL && from->offset != offset) {
        from = from->next;
    }
    return from != NULL ? from->tables : NULL;
}

ft_tables *ft_look_on_shelf(ft_shelf *shelf, size_t offset) { return find_on_shelf(load_first(shelf), offset); }

/* Put tables on a shelf, which owns them then, unless another thread was faster, or it is full. `*found` are those that are there. */
static int shelve(ft_shelf *shelf, size_t offset, ft_tables *tables, const ft_tables **found) {
    ft_place *place = ft_alloc(1, sizeof *place), *first = load_first(shelf);
    if (place == NULL) {
        return FT_NO_MEMORY;
    }
    *place = (ft_place){.tables = tables, .offset = (uint32_t)offset};
    do {
        *found = find_on_shelf(first, offset);
        const bool full = first != NULL && first->number >= FT_MOST_BOOKS;
        if (*found != NULL || full) {
            ft_free(place);
            return *found != NULL ? FT_OK : FT_DAMAGED;
        }
        place->next = first;
        place->number = first != NULL ? first->number + 1 : 1;
    } while (!put_first(shelf, &first, place));
    *found = tables;
    return FT_OK;
}

void ft_put_on_shelf(ft_shelf *shelf, size_t offset, ft_tables *tables) {
    const ft_tables *found = NULL;
    if (ft_look_on_shelf(shelf, offset) != NULL) { /* maybe these very ones, which it owns already */
        return;
    }
    ft_keep_tables(tables);
    if (shelve(shelf, offset, tables, &found) != FT_OK || found != tables) {
        ft_drop_tables(tables);
    }
}

/* The body of a codebook's record; NULL where there is none at that place. */
static const uint8_t *find_book(const ft_rows *rows, size_t offset, size_t *size) {
    if (offset < RECORD_HEADER || offset > rows->data_bytes) {
        return NULL;
    }
    const uint8_t *record = rows->data + offset - RECORD_HEADER;
    *size = get_u32(record);
    return record[RECORD_CODER] == BOOK && *size <= rows->data_bytes - offset ? rows->data + offset : NULL;
}

int ft_find_tables(const ft_rows *rows, size_t offset, const ft_tables **found) {
    *found = ft_look_on_shelf(rows->shelf, offset);
    if (*found != NULL) {
        return FT_OK;
    }
    size_t size;
    ft_tables *tables;
    const uint8_t *body = find_book(rows, offset, &size);
    const int made = body != NULL ? ft_tables_new(body, size, rows->frame_bytes, &tables) : FT_DAMAGED;
    if (made != FT_OK) {
        return made;
    }
    const int result = shelve(rows->shelf, offset, tables, found);
    if (result != FT_OK || *found != tables) {
        ft_drop_tables(tables);
    }
    return result;
}

void ft_clear_shelf(ft_shelf *shelf) {
    ft_place *place = shelf->first;
    shelf->first = NULL;
    while (place != NULL) {
        ft_place *next = place->next;
        ft_drop_tables(place->tables);
        ft_free(place);
        place = next;
    }
}
