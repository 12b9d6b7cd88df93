/* The table of values of a chunk: elements as bytes, and back. */
#include "values.h"

#include "slots.h"

#include <string.h>

enum { MOST_TRIES = 64 }; /* of multipliers; a third of them will do for the most values, and nearly all for a hundred */

bool ft_can_have_values(const ft_layout *layout) {
    const size_t item = layout->item;
    return (item == 2 || item == 4 || item == 8) && layout->part % item == 0 && layout->row % item == 0;
}

ft_layout ft_find_coded_layout(const ft_layout *layout) {
    ft_layout coded = *layout;
    coded.item = 1;
    coded.part /= layout->item;
    coded.row /= layout->item;
    coded.pixel = (uint32_t)(layout->pixel / layout->item);
    return coded;
}

/* -- slots ---------------------------------------------------------------------------------------------------------------- */

static size_t slot_of(const ft_values *values, size_t k) {
    const uint8_t *value = values->bytes + k * values->item;
    const uint64_t number = values->item == 2 ? ft_get_two(value) : values->item == 4 ? ft_get_four(value) : ft_get_eight(value);
    return ft_find_slot(number, values->multiplier);
}

/* Give the value at place `k` its slot. Returns whether that was free; those of values before it are taken. */
static bool take_slot(ft_values *values, size_t k) {
    const size_t slot = slot_of(values, k);
    if (values->slots[slot] != 0 || (k > 0 && slot == slot_of(values, 0))) {
        return false;
    }
    values->slots[slot] = (uint8_t)k;
    return true;
}

static bool take_all_slots(ft_values *values, uint64_t multiplier) {
    values->multiplier = multiplier;
    memset(values->slots, 0, sizeof values->slots);
    for (size_t k = 0; k < values->count; k++) {
        if (!take_slot(values, k)) {
            return false;
        }
    }
    return true;
}

void ft_init_values(ft_values *values, size_t item) {
    values->item = item;
    values->count = 0;
    take_all_slots(values, UINT64_C(0x9E3779B97F4A7C15));
}

bool ft_add_value(ft_values *values, const uint8_t *value) {
    if (values->count == FT_MOST_VALUES) {
        return false;
    }
    const size_t k = values->count;
    const uint64_t before = values->multiplier;
    memcpy(values->bytes + k * values->item, value, values->item);
    values->count++;
    if (take_slot(values, k)) {
        return true;
    }
    uint64_t state = before;
    for (int i = 0; i < MOST_TRIES; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        if (take_all_slots(values, (state ^ state >> 29) | 1)) {
            return true;
        }
    }
    values->count--;
    take_all_slots(values, before);
    return false;
}

void ft_cut_values(ft_values *values, size_t count) {
    for (; values->count > count; values->count--) {
        values->slots[slot_of(values, values->count - 1)] = 0;
    }
}

/* -- frames --------------------------------------------------------------------------------------------------------------- */

int ft_map_values(ft_values *values, const uint8_t *elements, size_t count, const uint8_t *before, const uint8_t *before_coded,
                  uint8_t *coded) {
    for (size_t done = 0;;) {
        if (values->count > 0) {
            done = ft_active->map_values(values, elements, done, count, before, before_coded, coded);
        }
        if (done == count) {
            return FT_OK;
        }
        if (!ft_add_value(values, elements + done * values->item)) {
            return FT_MANY_VALUES;
        }
    }
}

bool ft_put_values(const ft_rows *rows, const uint8_t *coded, size_t j, uint8_t *obs, ft_put *last) {
    const ft_layout *layout = &rows->given;
    const size_t item = layout->item, block = layout->depth * layout->part, count = rows->frame_bytes;
    uint8_t *out = obs + j * layout->part;
    if (!ft_active->are_below(coded, count, rows->n_values)) {
        return false;
    }
    if (layout->outer > 1) {
        ft_active->put_apart(rows->values, item, coded, layout->outer, layout->part / item, block, out);
        return true;
    }
    ft_active->put_values(rows->values, item, coded, count, last->at, last->coded, out);
    ft_active->copy(last->coded, coded, count);
    last->at = out;
    return true;
}
