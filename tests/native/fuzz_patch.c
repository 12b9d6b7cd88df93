/*
 * Patches: any bytes applied to a frame, and any two frames coded and decoded again. All kernels must do the same.
 *
 * An input is: u8 options, u16 size of the frame, u16 bytes of a row, then the frame before and the patch, or both frames, or, for a
 * patch of objects, u16 place of the references, u8 how many, and data that ends with the patch.
 */
#include "fuzz.h"

#include "../../src/sb3_extra_buffers/_native/objects.h"

enum { HEAD = 5, MOST_FRAME = 2048 };

static bool apply_by(bool best, const uint8_t *patch, size_t length, uint8_t *frame, size_t size, size_t row) {
    use_kernels(best);
    return ft_active->apply(patch, length, frame, size, row);
}

static void apply_any(const uint8_t *before, size_t size, size_t row, const uint8_t *bytes, size_t count) {
    uint8_t *patch = copy_of(bytes, count, FT_READ_AHEAD);
    const size_t length = ft_measure_patch(patch, count);
    uint8_t *one = copy_of(before, size, FT_WRITE_AHEAD), *other = copy_of(before, size, FT_WRITE_AHEAD);
    if (length > 0) {
        /* What lies behind the patch may be read, but must not matter. */
        uint8_t *alone = copy_of(bytes, length, FT_READ_AHEAD);
        memset(alone + length, 0xFF, FT_READ_AHEAD);
        const bool sound = apply_by(false, patch, length, one, size, row);
        CHECK(apply_by(true, alone, length, other, size, row) == sound);
        CHECK(!sound || memcmp(one, other, size) == 0);
        free(alone);
    } else {
        apply_by(true, patch, count, one, size, row); /* not what a store does, but harmless too */
    }
    free(patch);
    free(one);
    free(other);
}

static void apply_any_objects(const uint8_t *before, size_t size, size_t row, const uint8_t *bytes, size_t count) {
    if (count < 3) {
        return;
    }
    const size_t data_bytes = count - 3, place = get_u16(bytes) % (data_bytes + 1), room = (data_bytes - place) / REFERENCE_BYTES;
    const size_t references = bytes[2] < room ? bytes[2] : room;
    uint8_t *data[2] = {copy_of(bytes + 3, data_bytes, FT_READ_AHEAD), copy_of(bytes + 3, data_bytes, FT_READ_AHEAD)};
    uint8_t *frames[2] = {copy_of(before, size, FT_WRITE_AHEAD), copy_of(before, size, FT_WRITE_AHEAD)};
    bool sound[2];
    size_t read[2];
    memset(data[1] + data_bytes, 0xFF, FT_READ_AHEAD); /* must not matter */
    for (size_t i = 0; i < 2; i++) {
        const uint8_t *first = data[i] + place, *stop = first + references * REFERENCE_BYTES;
        ft_objects next = {data[i], data_bytes, first, stop, stop, data[i] + data_bytes};
        use_kernels(i == 1);
        sound[i] = ft_active->apply_objects(&next, frames[i], size, row);
        read[i] = (size_t)(next.at - data[i]);
        CHECK(next.at <= next.stop && next.references <= next.references_stop);
    }
    CHECK(sound[0] == sound[1] && (!sound[0] || (read[0] == read[1] && memcmp(frames[0], frames[1], size) == 0)));
    for (size_t i = 0; i < 2; i++) {
        free(data[i]);
        free(frames[i]);
    }
}

static void code_and_decode(const uint8_t *before, const uint8_t *now, size_t size, size_t row, size_t room, uint32_t row_above) {
    uint8_t *zeros = grab(row + 1), *reference = copy_of(before, size, 0), *frame = copy_of(now, size, 0);
    uint8_t *patches[2] = {grab(room + FT_READ_AHEAD), grab(room + FT_READ_AHEAD)};
    size_t ends[2];
    for (size_t i = 0; i < 2; i++) {
        uint32_t left = row_above;
        use_kernels(i == 1);
        ends[i] = ft_active->encode(reference, frame, size, row, zeros, &left, patches[i], 0, room);
    }
    CHECK(ends[0] == ends[1]);
    if (ends[0] != FT_NO_PATCH) {
        CHECK(ends[0] <= room && ft_measure_patch(patches[0], room) == ends[0]);
        CHECK(memcmp(patches[0], patches[1], ends[0]) == 0);
        uint8_t *made = ft_patch_stands_alone(patches[0], ends[0]) ? grab(size + FT_WRITE_AHEAD)
                                                                   : copy_of(before, size, FT_WRITE_AHEAD);
        CHECK(ft_active->apply(patches[0], ends[0], made, size, row) && memcmp(made, now, size) == 0);
        free(made);
    } else {
        CHECK(room < 2 * size + 16);
    }
    free(zeros);
    free(reference);
    free(frame);
    free(patches[0]);
    free(patches[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size <= HEAD) {
        return 0;
    }
    const size_t frame = 1 + (size_t)(data[1] | data[2] << 8) % MOST_FRAME;
    const size_t row = (size_t)(data[3] | data[4] << 8) % (frame + (data[0] & 1 ? 2 : 0)); /* sometimes too long */
    uint8_t *before = grab(frame), *now = grab(frame);
    const uint8_t *rest = data + HEAD;
    size_t left = size - HEAD;
    const size_t first = left < frame ? left : frame;
    memcpy(before, rest, first);
    rest += first;
    left -= first;
    if (data[0] & 2) {
        memcpy(now, before, frame); /* what follows is written over a part of it */
        const size_t second = left < frame ? left : frame, place = data[0] & 4 ? frame - second : 0;
        memcpy(now + place, rest, second);
        code_and_decode(before, now, frame, row < frame ? row : 0, data[0] & 8 ? 2 * frame + 16 : frame / 2 + 2, data[0] >> 4 & 3);
    } else if (data[0] & 4) {
        apply_any_objects(before, frame, row, rest, left);
    } else {
        apply_any(before, frame, row, rest, left);
    }
    free(before);
    free(now);
    return 0;
}

/* Write a patch twice, as objects: the second time, it refers to the first. Returns the bytes, or 0 where there are none. */
static size_t write_objects(const uint8_t *patch, size_t length, size_t row, uint8_t *out, size_t room) {
    enum { BEGIN = 8 }; /* nothing is at 0 */
    ft_catalogue known = {NULL, 0, 0};
    const size_t most = 4 * length + 100;
    uint8_t *data = grab(BEGIN + 2 * (most + ft_measure_objects(length)));
    CHECK(ft_grow_catalogue(&known, data, BEGIN));
    const size_t first = ft_write_objects(&known, data, BEGIN, 0, OBJECTS_NO_BASE, patch, length, row, most);
    const size_t second = first ? ft_write_objects(&known, data, BEGIN + first, 0, OBJECTS_NO_BASE, patch, length, row, most) : 0;
    const size_t end = BEGIN + first + second, place = BEGIN + first + RECORD_HEADER + OBJECTS_REFERENCES;
    const bool fits = second > 0 && 3 + end <= room;
    if (fits) {
        put_u16(out, place);
        out[2] = data[place - 2];
        memcpy(out + 3, data, end);
    }
    free(data);
    ft_free(known.slots);
    return fits ? 3 + end : 0;
}

size_t fuzz_seed(uint64_t number, uint8_t *out) {
    chance from = {number};
    const size_t size = 1 + below(&from, one_in(&from, 4) ? MOST_FRAME : 200), row = one_in(&from, 3) ? 0 : below(&from, size);
    uint8_t *before = out + HEAD, *after = before + size, *now = grab(size), *zeros = grab(row + 1);
    for (size_t i = 0; i < size; i++) {
        before[i] = i && !one_in(&from, 5) ? before[i - 1] : (uint8_t)draw(&from);
    }
    memcpy(now, before, size);
    change_frame(&from, now, size, row);
    out[0] = (uint8_t)draw(&from);
    out[1] = (uint8_t)((size - 1) & 255);
    out[2] = (uint8_t)((size - 1) >> 8);
    out[3] = (uint8_t)(row & 255);
    out[4] = (uint8_t)(row >> 8);
    size_t end = size;
    if (out[0] & 2) {
        memcpy(after, now, size);
    } else {
        uint32_t row_above = (uint32_t)below(&from, 3);
        use_kernels(true);
        end = ft_active->encode(before, now, size, row, zeros, &row_above, after, 0, 2 * size + 16);
        CHECK(end != FT_NO_PATCH);
        uint8_t *patch = copy_of(after, end, FT_READ_AHEAD);
        const size_t written = out[0] & 4 ? write_objects(patch, end, row, after, MOST_INPUT - HEAD - size) : 0;
        end = written > 0 ? written : end;
        free(patch);
    }
    free(now);
    free(zeros);
    return HEAD + size + end;
}
