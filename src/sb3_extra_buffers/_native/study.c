/* What pictures are like, counted, and the codebooks that follow from it. */
#include "study.h"

#include <stdlib.h>
#include <string.h>

enum {
    VALUE_BITS = 13,
    VALUE_SLOTS = 1 << VALUE_BITS,
    MOST_VALUES = VALUE_SLOTS / 4 * 3, /* further ones are not counted */
    NO_VALUE = 0,                      /* a count of values that are not there */
    NOTICED = 16,                      /* a colour that takes the place of another one has been seen that much more often */
};

/* Colours or deltas, and how often they were seen. */
typedef struct census {
    uint32_t keys[VALUE_SLOTS], counts[VALUE_SLOTS];
    uint8_t numbers[VALUE_SLOTS]; /* of colours that have one; FT_LITERAL for none */
    uint32_t used;
    uint64_t missed; /* values that were not counted */
} census;

struct ft_study {
    ft_shape shape;
    census colours, deltas, spare;
    uint64_t sorted[VALUE_SLOTS];
    uint32_t n_colours;
    uint32_t palette[FT_LITERAL];
    uint32_t pairs[256 * 256]; /* a colour below another */
    bool has_predictor;
    enum ft_predictor predictor;
    uint32_t *rows;
};

ft_study *ft_study_new(const ft_shape *shape) {
    ft_study *study = ft_alloc(1, sizeof *study);
    if (study == NULL || (study->rows = ft_alloc(3 * (shape->width + 8), sizeof *study->rows)) == NULL) {
        ft_free(study);
        return NULL;
    }
    study->shape = *shape;
    memset(study->colours.numbers, FT_LITERAL, sizeof study->colours.numbers);
    return study;
}

void ft_study_free(ft_study *study) {
    if (study != NULL) {
        ft_free(study->rows);
    }
    ft_free(study);
}

/* -- counting ------------------------------------------------------------------------------------------------------------- */

/* The place of a value, counted; VALUE_SLOTS where there is none left. */
static inline uint32_t count_value(census *of, uint32_t value) {
    uint32_t slot = ft_find_place(value, VALUE_BITS);
    while (of->counts[slot] != NO_VALUE && of->keys[slot] != value) {
        slot = (slot + 1) & (VALUE_SLOTS - 1);
    }
    if (of->counts[slot] == NO_VALUE) {
        if (of->used == MOST_VALUES) {
            of->missed++;
            return VALUE_SLOTS;
        }
        of->keys[slot] = value;
        of->used++;
    }
    of->counts[slot]++;
    return slot;
}

static void study_colours(ft_study *study, const uint8_t *frame) {
    const size_t width = study->shape.width;
    uint32_t *row = study->rows;
    uint8_t *above = (uint8_t *)(study->rows + width + 8);
    const bool is_gray = study->shape.pixel == 1;
    memset(above, is_gray ? 0 : FT_LITERAL, width);
    for (size_t y = 0; y < study->shape.height; y++) {
        ft_active->take_pixels(&study->shape, frame, y, row);
        for (size_t x = 0; x < width; x++) {
            uint8_t number = (uint8_t)row[x];
            if (!is_gray) {
                const uint32_t slot = count_value(&study->colours, row[x]);
                number = slot < VALUE_SLOTS ? study->colours.numbers[slot] : FT_LITERAL;
                if (number == FT_LITERAL && slot < VALUE_SLOTS && study->n_colours < FT_LITERAL) {
                    number = study->colours.numbers[slot] = (uint8_t)study->n_colours;
                    study->palette[study->n_colours++] = row[x];
                }
            }
            study->pairs[(size_t)above[x] << 8 | number]++;
            above[x] = number;
        }
    }
}

/* The binary logarithm of a count, about, in 256ths; the same on every machine. */
static uint64_t logarithm(uint32_t count) {
    unsigned bits = 0;
    while (count >> bits > 1) {
        bits++;
    }
    return 256 * (uint64_t)bits + (((uint64_t)count << 8 >> bits) - 256);
}

/* Which prediction leaves differences that are worth the fewest bits, each channel for itself. */
static enum ft_predictor choose_predictor(ft_study *study, const uint8_t *frame) {
    const size_t width = study->shape.width;
    enum ft_predictor best = FT_LEFT;
    uint64_t most = 0;
    for (int which = 0; which < FT_PREDICTORS; which++) {
        uint32_t counts[FT_MOST_PIXEL][256] = {{0}};
        uint32_t *above = study->rows + 1, *row = above + width + 1, *deltas = row + width + 1;
        memset(above, 0, 4 * width);
        for (size_t y = 0; y < study->shape.height; y++) {
            ft_active->take_pixels(&study->shape, frame, y, row);
            ft_active->find_deltas(row, above, width, (enum ft_predictor)which, deltas);
            for (size_t x = 0; x < width; x++) {
                for (size_t p = 0; p < study->shape.pixel; p++) {
                    counts[p][deltas[x] >> (8 * p) & 255]++;
                }
            }
            uint32_t *done = above;
            above = row;
            row = done;
        }
        uint64_t saved = 0; /* bits, compared with differences that are all different */
        for (size_t p = 0; p < study->shape.pixel; p++) {
            for (size_t k = 0; k < 256; k++) {
                saved += counts[p][k] > 0 ? counts[p][k] * logarithm(counts[p][k]) : 0;
            }
        }
        if (which == 0 || saved > most) {
            most = saved;
            best = (enum ft_predictor)which;
        }
    }
    return best;
}

static void study_deltas(ft_study *study, const uint8_t *frame) {
    const size_t width = study->shape.width;
    if (!study->has_predictor) {
        const enum ft_predictor before = study->predictor;
        study->predictor = choose_predictor(study, frame);
        study->has_predictor = true;
        if (study->predictor != before) { /* what was counted says nothing of its differences */
            memset(&study->deltas, 0, sizeof study->deltas);
        }
    }
    uint32_t *above = study->rows + 1, *row = above + width + 1, *deltas = row + width + 1;
    memset(above, 0, 4 * width);
    for (size_t y = 0; y < study->shape.height; y++) {
        ft_active->take_pixels(&study->shape, frame, y, row);
        ft_active->find_deltas(row, above, width, study->predictor, deltas);
        for (size_t x = 0; x < width; x++) {
            count_value(&study->deltas, deltas[x]);
        }
        uint32_t *done = above;
        above = row;
        row = done;
    }
}

void ft_study_frame(ft_study *study, int kind, const uint8_t *frame) {
    if (kind == PALETTE) {
        study_colours(study, frame);
    } else {
        study_deltas(study, frame);
    }
}

/* Halve all counts; what was seen once is forgotten, unless it has a number. */
static void forget_values(census *of, census *spare) {
    memset(spare->counts, 0, sizeof spare->counts);
    memset(spare->numbers, FT_LITERAL, sizeof spare->numbers);
    spare->used = 0;
    spare->missed = of->missed / 2;
    for (size_t k = 0; k < VALUE_SLOTS; k++) {
        const uint32_t count = of->counts[k] / 2;
        if (of->counts[k] == NO_VALUE || (count == 0 && of->numbers[k] == FT_LITERAL)) {
            continue;
        }
        uint32_t slot = ft_find_place(of->keys[k], VALUE_BITS);
        while (spare->counts[slot] != NO_VALUE) {
            slot = (slot + 1) & (VALUE_SLOTS - 1);
        }
        spare->keys[slot] = of->keys[k];
        spare->counts[slot] = count > 0 ? count : 1;
        spare->numbers[slot] = of->numbers[k];
        spare->used++;
    }
    *of = *spare;
}

void ft_study_forget(ft_study *study, int kind) {
    if (kind == JOINT) {
        forget_values(&study->deltas, &study->spare);
        study->has_predictor = false;
        return;
    }
    forget_values(&study->colours, &study->spare);
    for (size_t k = 0; k < 256 * 256; k++) {
        study->pairs[k] /= 2;
    }
}

/* -- codebooks ------------------------------------------------------------------------------------------------------------ */

/* Colours that are seen often take the numbers of those that are not any more. */
static void exchange_colours(ft_study *study) {
    census *of = &study->colours;
    for (uint32_t done = 0; study->n_colours == FT_LITERAL && done < FT_LITERAL; done++) {
        size_t most = VALUE_SLOTS, least = VALUE_SLOTS;
        for (size_t slot = 0; slot < VALUE_SLOTS; slot++) {
            if (of->counts[slot] == NO_VALUE) {
                continue;
            }
            size_t *which = of->numbers[slot] == FT_LITERAL ? &most : &least;
            const bool better = *which == VALUE_SLOTS || (which == &most ? of->counts[slot] > of->counts[most]
                                                                         : of->counts[slot] < of->counts[least]);
            *which = better ? slot : *which;
        }
        if (most == VALUE_SLOTS || least == VALUE_SLOTS || of->counts[most] < 2 * of->counts[least] + NOTICED) {
            return;
        }
        const uint8_t number = of->numbers[least];
        of->numbers[least] = FT_LITERAL;
        of->numbers[most] = number;
        study->palette[number] = of->keys[most];
        memset(study->pairs + (size_t)number * 256, 0, 256 * sizeof *study->pairs);
        for (size_t k = 0; k < 256; k++) {
            study->pairs[k * 256 + number] = 0;
        }
    }
}

/* The colours that are most often below another one, the most frequent first. */
static void list_below(const uint32_t *counts, size_t n, uint8_t *list) {
    uint32_t least[FT_RANKS];
    uint8_t length = 0;
    for (size_t k = 0; k < n; k++) {
        if (counts[k] == 0 || (length == FT_RANKS - 1 && counts[k] <= least[length - 1])) {
            continue;
        }
        uint8_t at = length < FT_RANKS - 1 ? length++ : (uint8_t)(length - 1);
        for (; at > 0 && least[at - 1] < counts[k]; at--) {
            least[at] = least[at - 1];
            list[1 + at] = list[at];
        }
        least[at] = counts[k];
        list[1 + at] = (uint8_t)k;
    }
    list[0] = length;
}

static void make_palette(ft_study *study, ft_book *book) {
    exchange_colours(study);
    const bool is_gray = study->shape.pixel == 1;
    book->n = study->n_colours;
    memcpy(book->values, study->palette, book->n * sizeof *book->values);
    for (size_t k = 0; k < 256; k++) {
        if (ft_has_list(book, k)) {
            list_below(study->pairs + k * 256, is_gray ? 256 : book->n, book->below[k]);
        }
    }
    memset(book->lengths, 8, FT_PAIRS);
}

/* A value and its count, as numbers that are sorted: most frequent first, and of equal ones the smallest first. */
static int compare_counts(const void *one, const void *other) {
    const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a < b) - (a > b);
}

static void make_deltas(ft_study *study, ft_book *book) {
    const census *of = &study->deltas;
    uint64_t *sorted = study->sorted;
    size_t n = 0;
    for (size_t slot = 0; slot < VALUE_SLOTS; slot++) {
        if (of->counts[slot] != NO_VALUE) {
            sorted[n++] = (uint64_t)of->counts[slot] << 32 | (uint32_t)~of->keys[slot];
        }
    }
    qsort(sorted, n, sizeof *sorted, compare_counts);
    uint32_t counts[FT_MOST_DELTAS + 1];
    uint64_t others = of->missed;
    for (size_t k = 0; k < n; k++) {
        if (k < FT_MOST_DELTAS) {
            book->values[k] = ~(uint32_t)(sorted[k] & UINT32_MAX);
            counts[k] = (uint32_t)(sorted[k] >> 32);
        } else {
            others += sorted[k] >> 32;
        }
    }
    book->n = (uint32_t)(n < FT_MOST_DELTAS ? n : FT_MOST_DELTAS);
    counts[book->n] = others < UINT32_MAX ? (uint32_t)others : UINT32_MAX;
    book->predictor = study->predictor;
    ft_find_lengths(counts, book->n + 1, FT_DELTA_BITS, book->lengths);
}

void ft_study_make_book(ft_study *study, int kind, ft_book *book) {
    memset(book, 0, sizeof *book);
    book->kind = kind;
    book->shape = study->shape;
    if (kind == PALETTE) {
        make_palette(study, book);
    } else {
        make_deltas(study, book);
    }
}
