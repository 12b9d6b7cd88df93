/* Decoding cells: from rows to frames to groups, each group walked once for all that a cell wants of it. */
#include "coders.h"
#include "values.h"

#include <string.h>

/* -- which frames a cell is made of --------------------------------------------------------------------------------------- */

/* The last exception of a stream up to a row; there is always one. */
static const uint8_t *exception_at(const ft_lane *lane, size_t row) {
    size_t k = get_u16(lane->counts + row / FT_BLOCK_ROWS * FT_COUNT_BYTES);
    while (k < lane->n_exceptions && get_u16(lane->exceptions + k * FT_EXCEPTION_BYTES) <= row) {
        k++;
    }
    return k > 0 ? lane->exceptions + (k - 1) * FT_EXCEPTION_BYTES : NULL;
}

/* The frames of a view that a class lists, by number; a negative number stands for none. False where they make no sense. */
static bool frames_of_class(const ft_rows *rows, const ft_lane *lane, const uint8_t *exception, size_t view, int32_t *frames) {
    const size_t depth = rows->layout.depth, before = get_u16(exception + 2), class = get_u32(exception + 4);
    if (class >= rows->n_classes) {
        return false;
    }
    const uint8_t *relative = rows->classes + class * ft_count_class_bytes(rows) + 2 + 2 * view * depth;
    for (size_t j = 0; j < depth; j++) {
        const int16_t from = (int16_t)get_u16(relative + 2 * j);
        frames[j] = from;
        if (from > FT_UNWRITTEN) {
            frames[j] += (int32_t)before;
            if (frames[j] < 0 || (size_t)frames[j] >= lane->frames) {
                return false;
            }
        }
    }
    return true;
}

/* The frames of a view of a cell. */
static bool frames_of_cell(const ft_rows *rows, const ft_lane *lane, size_t row, size_t view, int32_t *frames) {
    const size_t depth = rows->layout.depth;
    const uint8_t *exception = exception_at(lane, row);
    if (exception == NULL) {
        return false;
    }
    const size_t since = row - get_u16(exception);
    if (since == 0) {
        return frames_of_class(rows, lane, exception, view, frames);
    }
    /* Since then, all rows follow by the rule: a view is the last one of the exception's row, moved on so many times. */
    int32_t last[FT_MAX_DEPTH];
    const size_t moves = since - (view + 1 < rows->views);
    if (!frames_of_class(rows, lane, exception, rows->views - 1, last)) {
        return false;
    }
    const uint8_t *class = rows->classes + get_u32(exception + 4) * ft_count_class_bytes(rows);
    const size_t next = (size_t)get_u16(exception + 2) + get_u16(class); /* the first frame after that row */
    if (moves > 0 && next + moves - 1 >= lane->frames) {
        return false;
    }
    for (size_t j = 0; j < depth; j++) {
        frames[j] = j + moves < depth ? last[j + moves] : (int32_t)(next + (j + moves - depth));
    }
    return true;
}

unsigned ft_find_written_views(const ft_rows *rows, size_t row, size_t i) {
    unsigned written = 0;
    int32_t frames[FT_MAX_DEPTH];
    for (size_t view = 0; view < rows->views; view++) {
        const bool is_there = frames_of_cell(rows, &rows->lanes[i], row, view, frames) && frames[0] != FT_UNWRITTEN;
        written |= (unsigned)is_there << view;
    }
    return written;
}

uint64_t ft_count_written_cells(const ft_rows *rows, size_t first, size_t stop) {
    if (first >= stop) {
        return 0;
    }
    uint64_t cells = (uint64_t)(stop - first) * rows->n_streams * rows->views;
    for (size_t i = 0; i < rows->n_streams; i++) {
        const ft_lane *lane = &rows->lanes[i];
        size_t k = get_u16(lane->counts + first / FT_BLOCK_ROWS * FT_COUNT_BYTES);
        for (; k < lane->n_exceptions; k++) { /* a row that follows from the one before is written */
            const uint8_t *exception = lane->exceptions + k * FT_EXCEPTION_BYTES;
            const size_t row = get_u16(exception), class = get_u32(exception + 4);
            if (row >= stop) {
                break;
            }
            const uint8_t *frames = rows->classes + class * ft_count_class_bytes(rows) + 2;
            for (size_t view = 0; row >= first && view < rows->views; view++) {
                cells -= (int16_t)get_u16(frames + 2 * view * rows->layout.depth) == FT_UNWRITTEN;
            }
        }
    }
    return cells;
}

/* -- where they are ------------------------------------------------------------------------------------------------------- */

static size_t first_of(const ft_lane *lane, size_t k) { return get_u16(lane->groups + k * FT_GROUP_BYTES + 4); }

/* The group that a frame is in: no group has more than so many frames, so it is not before that place. */
static size_t group_of(const ft_rows *rows, const ft_lane *lane, size_t frame) {
    size_t low = frame >> rows->method.shift, high = lane->n_groups;
    if (low >= high) {
        return high - 1;
    }
    for (int k = 0; k < 2 && low + 1 < high && first_of(lane, low + 1) <= frame; k++) {
        low++; /* mostly it is just there, or close by */
    }
    while (low + 1 < high && first_of(lane, low + 1) <= frame) {
        const size_t middle = low + (high - low) / 2;
        if (first_of(lane, middle) <= frame) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The record of a lane's group, and its length. */
static const uint8_t *record_of(const ft_rows *rows, const ft_lane *lane, size_t k, size_t *length) {
    if (lane->open != NULL && k + 1 == lane->n_groups) {
        *length = lane->open_bytes;
        return lane->open;
    }
    const size_t offset = get_u32(lane->groups + k * FT_GROUP_BYTES);
    if (offset > rows->data_bytes || rows->data_bytes - offset < RECORD_HEADER) {
        return NULL;
    }
    *length = RECORD_HEADER + (size_t)get_u32(rows->data + offset);
    return *length <= rows->data_bytes - offset ? rows->data + offset : NULL;
}

/* Find the group of a frame. */
static int find_group(const ft_rows *rows, const ft_lane *lane, size_t frame, const ft_scratch *own, const ft_codecs *codecs,
                      ft_group *found) {
    if (lane->n_groups == 0) {
        return FT_DAMAGED;
    }
    const size_t k = group_of(rows, lane, frame);
    size_t length;
    const uint8_t *record = record_of(rows, lane, k, &length);
    if (record == NULL) {
        return FT_DAMAGED;
    }
    found->first = first_of(lane, k);
    found->stop = k + 1 < lane->n_groups ? first_of(lane, k + 1) : lane->frames;
    if (frame < found->first || frame >= found->stop) {
        return FT_DAMAGED;
    }
    return ft_open_record(rows, record, length, own, codecs, found);
}

/* -- fetching what is needed soon: in a large ring nearly nothing is in a cache ------------------------------------------- */

/* Where a list is made for a disk, ask for all of a group at once, and for those before it: its base is mostly one of them. */
static void fetch_rest(const ft_rows *rows, const ft_lane *lane, size_t k, ft_asked *asked) {
    enum { BEFORE = 2, MOST = 1 << 14 };
    if (asked == NULL || !rows->arranged) {
        return;
    }
    const size_t first = get_u32(lane->groups + (k > BEFORE ? k - BEFORE : 0) * FT_GROUP_BYTES);
    const size_t stop = k + 1 < lane->n_groups ? get_u32(lane->groups + (k + 1) * FT_GROUP_BYTES) : rows->data_bytes;
    for (size_t at = first; at < stop && stop <= rows->data_bytes && stop - first <= MOST; at += FT_LINE) {
        ft_fetch(rows->data + at, asked);
    }
}

void ft_fetch_cell(const ft_rows *rows, size_t row, size_t i, const bool wanted[FT_MAX_VIEWS], int step,
                   ft_asked *asked) {
    const ft_lane *lane = &rows->lanes[i];
    if (step == FT_FETCH_INDEX) {
        /* Most streams have as many frames as rows, and groups that are full, about; lists of exceptions are short. */
        const size_t likely = row >> rows->method.shift;
        ft_fetch(lane->counts + row / FT_BLOCK_ROWS * FT_COUNT_BYTES, asked);
        ft_fetch(lane->exceptions, asked);
        ft_fetch(lane->groups + (likely < lane->n_groups ? likely * FT_GROUP_BYTES : 0), asked);
        return;
    }
    for (size_t at = 0; step == FT_FETCH_FRAMES && at < rows->n_values * rows->given.item; at += FT_LINE) {
        ft_fetch(rows->values + at, asked);
    }
    size_t low = SIZE_MAX, high = 0; /* the groups that are done: those of a pair lie side by side */
    for (size_t view = 0; view < rows->views && lane->n_groups > 0; view++) {
        int32_t frames[FT_MAX_DEPTH];
        if (!wanted[view] || !frames_of_cell(rows, lane, row, view, frames)) {
            continue;
        }
        for (size_t j = 0; j < rows->layout.depth; j++) {
            const size_t k = frames[j] < 0 ? low : group_of(rows, lane, (size_t)frames[j]);
            if (frames[j] < 0 || (low <= k && k <= high)) {
                continue;
            }
            low = k < low ? k : low;
            high = k > high ? k : high;
            const size_t offset = get_u32(lane->groups + k * FT_GROUP_BYTES);
            if (step == FT_FETCH_FRAMES) {
                ft_fetch_record(rows, offset, asked);
            } else if (step == FT_FETCH_OBJECTS) {
                ft_fetch_objects(rows, offset, asked);
            } else if (offset < rows->data_bytes) {
                ft_fetch(rows->data + offset, asked);
                fetch_rest(rows, lane, k, asked);
            }
        }
    }
}

/* -- the walk ------------------------------------------------------------------------------------------------------------- */

/* On the way to a frame, leave out what comes before the last patch that stands alone; `*alone` is whether there is one, so that
 * nothing is needed of the frames before it. `*next` is the frame that the next patch makes. Returns whether the patches are whole. */
static bool leave_out(ft_group *of, size_t until, size_t *next, bool *alone) {
    const uint8_t *patch = of->patches;
    size_t rest = of->length;
    *alone = false;
    for (size_t frame = *next; patch != NULL && frame <= until; frame++) {
        const size_t length = ft_measure_patch(patch, rest);
        if (length == 0) {
            return false;
        }
        if (ft_patch_stands_alone(patch, length)) {
            of->patches = patch;
            of->length = rest;
            *next = frame;
            *alone = true;
        }
        patch += length;
        rest -= length;
    }
    return true;
}

/* Make a frame of a group out of one before it, or out of its base. `*next` is the frame that the next patch makes. */
static int walk_to(const ft_rows *rows, ft_group *group, size_t wanted, size_t *next, const uint8_t *before, uint8_t *frame) {
    bool alone;
    if (!leave_out(group, wanted, next, &alone)) {
        return FT_DAMAGED;
    }
    if (!alone && before != frame) {
        ft_active->copy(frame, before, rows->frame_bytes);
    }
    for (; *next <= wanted; ++*next) {
        if (!ft_apply_next(rows, group, frame)) {
            return FT_DAMAGED;
        }
    }
    return FT_OK;
}

int ft_decode_frame(const ft_rows *rows, const ft_lane *lane, size_t frame, uint8_t *memory, const ft_codecs *codecs) {
    const ft_scratch own = ft_split_scratch(rows, memory);
    ft_group found;
    const int result = find_group(rows, lane, frame, &own, codecs, &found);
    size_t next = found.first + !found.keyed;
    return result == FT_OK ? walk_to(rows, &found, frame, &next, found.base, own.frame) : result;
}

int ft_decode_cell(const ft_rows *rows, size_t row, size_t i, uint8_t *const outputs[FT_MAX_VIEWS], const size_t room[FT_MAX_VIEWS],
              uint8_t *memory, const ft_codecs *codecs) {
    const ft_lane *lane = &rows->lanes[i];
    ft_scratch own = ft_split_scratch(rows, memory);
    uint8_t *const first = own.first;
    const size_t depth = rows->layout.depth, size = rows->frame_bytes;
    int32_t wanted[FT_MAX_VIEWS * FT_MAX_DEPTH];
    size_t order[FT_MAX_VIEWS * FT_MAX_DEPTH], count = 0;
    ft_put last = {NULL, own.put};
    bool in_order = rows->layout.outer == 1 && rows->transform == NO_TRANSFORM;
    for (size_t view = 0; view < rows->views; view++) {
        if (outputs[view] == NULL) {
            continue;
        }
        int32_t *frames = wanted + view * depth;
        if (!frames_of_cell(rows, lane, row, view, frames)) {
            return FT_DAMAGED;
        }
        for (size_t j = 0; j < depth; j++) {
            in_order = in_order && (j == 0 || frames[j] >= frames[j - 1]);
            if (frames[j] < 0) {
                ft_put_frame(&rows->given, NULL, j, outputs[view]);
                continue;
            }
            size_t k = count++;
            for (; k > 0 && wanted[order[k - 1]] > frames[j]; k--) {
                order[k] = order[k - 1];
            }
            order[k] = view * depth + j;
        }
    }
    for (size_t k = 0; k < count;) {
        ft_group found;
        const size_t next_view = order[k] / depth, next_j = order[k] % depth;
        const bool comes_in_place = in_order && room[next_view] + (depth - 1 - next_j) * size >= FT_WRITE_AHEAD;
        own.first = comes_in_place ? outputs[next_view] + next_j * size : first; /* what is decoded whole is where it goes to then */
        const int result = find_group(rows, lane, (size_t)wanted[order[k]], &own, codecs, &found);
        if (result != FT_OK) {
            return result;
        }
        const uint8_t *before = found.base;
        size_t next = found.first + !found.keyed; /* the frame that the next patch makes */
        for (; k < count && (size_t)wanted[order[k]] < found.stop; k++) {
            const size_t view = order[k] / depth, j = order[k] % depth, until = (size_t)wanted[order[k]];
            /* A frame that lies in one piece is decoded where it goes to, if what that writes beyond it is put later. */
            const bool in_place = in_order && room[view] + (depth - 1 - j) * size >= FT_WRITE_AHEAD;
            uint8_t *frame = in_place ? outputs[view] + j * size : own.frame;
            const int walked = walk_to(rows, &found, until, &next, before, frame);
            if (walked != FT_OK) {
                return walked;
            }
            if (rows->transform == VALUES) {
                if (!ft_put_values(rows, frame, j, outputs[view], &last)) {
                    return FT_DAMAGED;
                }
            } else if (!in_place) {
                ft_put_frame(&rows->layout, frame, j, outputs[view]);
            }
            before = frame;
        }
    }
    return FT_OK;
}
