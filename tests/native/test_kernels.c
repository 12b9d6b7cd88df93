/* The kernels against plain loops, the patches against what they have to make, and the tree of sums against adding up. */
#include "test_core.h"

enum { BEYOND = 64, MARK = 0xA5 };

/* Where memory ends exactly where the kernels may not go on. */
static uint8_t *exactly(size_t size) { return grab(size); }

static void fill_by_chance(chance *from, uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        data[i] = (uint8_t)draw(from);
    }
}

/* Make a patch of one frame on another, and apply it; the frames end where their memory does. */
static void test_one_patch(chance *from, size_t size, size_t row) {
    uint8_t *before = exactly(size), *now = exactly(size), *zeros = exactly(row + 1);
    fill_by_chance(from, before, one_in(from, 3) ? size : 1 + below(from, size));
    memcpy(now, before, size);
    for (size_t k = 1 + below(from, 3); k > 0; k--) {
        change_frame(from, now, size, row);
    }
    const size_t room = 2 + below(from, 2 * size + 40), pos = below(from, 9);
    uint8_t *patch = exactly(pos + room + FT_READ_AHEAD);
    uint32_t row_above = (uint32_t)below(from, 3);
    const size_t end = ft_active->encode(before, now, size, row, zeros, &row_above, patch, pos, pos + room);
    if (end == FT_NO_PATCH) {
        CHECK(room < 2 * size + 16 || size > 40000); /* else there would have been room for a copy of the frame */
    } else {
        const size_t length = ft_measure_patch(patch + pos, end - pos);
        CHECK(end <= pos + room && length == end - pos);
        CHECK(ft_measure_patch(patch + pos, length - 1) == 0);
        uint8_t *frame = exactly(size + FT_WRITE_AHEAD);
        const bool alone = ft_patch_stands_alone(patch + pos, length);
        CHECK(!alone || row > 0);
        if (alone) {
            fill_by_chance(from, frame, size);
        } else {
            memcpy(frame, before, size);
        }
        CHECK(ft_active->apply(patch + pos, length, frame, size, row));
        CHECK(memcmp(frame, now, size) == 0);
        free(frame);
    }
    free(before);
    free(now);
    free(zeros);
    free(patch);
}

static void test_patches(void) {
    chance from = {1};
    for (size_t size = 1; size < 200; size++) {
        for (size_t row = 0; row < size && row < 80; row += 1 + row / 7) {
            for (int k = 0; k < 4; k++) {
                test_one_patch(&from, size, row);
            }
        }
    }
    for (int k = 0; k < 3000; k++) {
        const size_t size = 200 + below(&from, 6000);
        test_one_patch(&from, size, one_in(&from, 3) ? 0 : 1 + below(&from, size - 1));
    }
    for (int k = 0; k < 20; k++) { /* more than a patch can say */
        test_one_patch(&from, 70000 + below(&from, 1000), 100);
    }
}

static void test_moving_bytes(void) {
    chance from = {2};
    for (int k = 0; k < 2000; k++) {
        const size_t count = 1 + below(&from, 70), width = 1 + below(&from, 20), block = width + below(&from, 30);
        const size_t first = below(&from, block - width + 1);
        uint8_t *blocks = exactly(count * block), *packed = exactly(count * width), *again = exactly(count * block);
        fill_by_chance(&from, blocks, count * block);
        ft_active->gather(blocks, count, block, first, width, packed);
        for (size_t i = 0; i < count; i++) {
            CHECK(memcmp(packed + i * width, blocks + i * block + first, width) == 0);
        }
        memcpy(again, blocks, count * block);
        fill_by_chance(&from, packed, count * width);
        ft_active->scatter(packed, count, block, first, width, again);
        for (size_t i = 0; i < count; i++) {
            CHECK(memcmp(packed + i * width, again + i * block + first, width) == 0);
            memcpy(again + i * block + first, blocks + i * block + first, width);
        }
        CHECK(memcmp(again, blocks, count * block) == 0);
        free(blocks);
        free(packed);
        free(again);
    }
    static const size_t items[] = {1, 2, 4, 8};
    for (int k = 0; k < 1000; k++) {
        const size_t rows = 1 + below(&from, 40), columns = 1 + below(&from, 40), item = items[below(&from, 4)];
        uint8_t *source = exactly(rows * columns * item), *target = exactly(rows * columns * item);
        fill_by_chance(&from, source, rows * columns * item);
        ft_active->transpose(source, target, rows, columns, item);
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < columns; c++) {
                CHECK(memcmp(target + (c * rows + r) * item, source + (r * columns + c) * item, item) == 0);
            }
        }
        free(source);
        free(target);
    }
}

static void test_moved_words(void) {
    chance from = {3};
    for (int k = 0; k < 2000; k++) {
        const size_t pixels = 1 + below(&from, 900);
        uint8_t *before = exactly(4 * pixels), *now = exactly(4 * pixels), *newest = exactly(pixels), *same = exactly(4 * pixels);
        fill_by_chance(&from, before, 4 * pixels);
        for (size_t i = 0; i < pixels; i++) {
            memcpy(now + 4 * i, before + 4 * i + 1, 3);
            now[4 * i + 3] = (uint8_t)draw(&from);
        }
        CHECK(ft_active->moved_words(now, before, pixels, newest, same));
        CHECK(memcmp(same, now, 4 * pixels) == 0);
        for (size_t i = 0; i < pixels; i++) {
            CHECK(newest[i] == now[4 * i + 3]);
        }
        now[4 * below(&from, pixels) + below(&from, 3)] ^= (uint8_t)(1 + below(&from, 255));
        CHECK(!ft_active->moved_words(now, before, pixels, newest, same));
        free(before);
        free(now);
        free(newest);
        free(same);
    }
}

static void test_copy(void) {
    chance from = {4};
    for (int k = 0; k < 2000; k++) {
        const size_t size = below(&from, 600), source_at = below(&from, 70), target_at = below(&from, 70);
        uint8_t *source = exactly(source_at + size), *target = exactly(target_at + size);
        fill_by_chance(&from, source, source_at + size);
        memset(target, MARK, target_at + size);
        ft_active->copy(target + target_at, source + source_at, size);
        CHECK(memcmp(target + target_at, source + source_at, size) == 0);
        for (size_t i = 0; i < target_at; i++) {
            CHECK(target[i] == MARK);
        }
        free(source);
        free(target);
    }
}

/* Bytes that make no sense: told as such or not, nothing beyond the frame's own memory is touched. */
static void test_nonsense(void) {
    chance from = {4};
    for (int k = 0; k < 20000; k++) {
        const size_t size = 1 + below(&from, 300), row = one_in(&from, 2) ? 0 : below(&from, size + 3);
        const size_t length = below(&from, 40);
        uint8_t *patch = exactly(length + FT_READ_AHEAD), *frame = exactly(size + FT_WRITE_AHEAD + BEYOND);
        fill_by_chance(&from, patch, length);
        if (length > 2 && one_in(&from, 2)) {
            patch[2] = 253;
        }
        memset(frame + size + FT_WRITE_AHEAD, MARK, BEYOND);
        ft_active->apply(patch, length, frame, size, row);
        for (size_t i = 0; i < BEYOND; i++) {
            CHECK(frame[size + FT_WRITE_AHEAD + i] == MARK);
        }
        free(patch);
        free(frame);
    }
}

void test_kernels(void) {
    test_patches();
    test_moving_bytes();
    test_moved_words();
    test_copy();
    test_nonsense();
}

void test_kernels_agree(void) {
    const ft_kernels *one = ft_find_kernels("baseline"), *other = ft_find_best_kernels();
    chance from = {5};
    for (int k = 0; k < 3000; k++) {
        const size_t size = 1 + below(&from, 3000), row = one_in(&from, 3) ? 0 : below(&from, size);
        uint8_t *before = exactly(size), *now = exactly(size), *zeros = exactly(row + 1);
        uint8_t *patches[2] = {exactly(2 * size + 50), exactly(2 * size + 50)};
        uint32_t row_above[2] = {(uint32_t)(k % 3), (uint32_t)(k % 3)};
        fill_by_chance(&from, before, size);
        memcpy(now, before, size);
        change_frame(&from, now, size, row);
        const size_t ends[2] = {
            one->encode(before, now, size, row, zeros, &row_above[0], patches[0], 0, 2 * size + 40),
            other->encode(before, now, size, row, zeros, &row_above[1], patches[1], 0, 2 * size + 40),
        };
        CHECK(ends[0] == ends[1] && row_above[0] == row_above[1] && ends[0] != FT_NO_PATCH);
        CHECK(memcmp(patches[0], patches[1], ends[0]) == 0);
        free(before);
        free(now);
        free(zeros);
        free(patches[0]);
        free(patches[1]);
    }
}

void test_tree(void) {
    enum { LEAVES = 64 };
    double sums[2 * LEAVES] = {0}, plain[LEAVES] = {0};
    chance from = {6};
    for (int k = 0; k < 2000; k++) {
        int64_t leaves[8];
        double values[8];
        const size_t count = 1 + below(&from, 8);
        for (size_t i = 0; i < count; i++) {
            leaves[i] = (int64_t)below(&from, LEAVES);
            values[i] = one_in(&from, 3) ? 0.0 : (double)below(&from, 1000);
            plain[leaves[i]] = values[i];
        }
        ft_tree_set_leaves(sums, LEAVES, leaves, values, count);
        double total = 0.0;
        for (size_t i = 0; i < LEAVES; i++) {
            total += plain[i];
        }
        CHECK(sums[1] == total); /* whole numbers: no rounding */
        if (total > 0.0) {
            const double target = (double)below(&from, (size_t)total);
            int64_t found;
            double sum = 0.0;
            int64_t expected = 0;
            while (sum + plain[expected] <= target) {
                sum += plain[expected++];
            }
            ft_tree_find_leaves(sums, LEAVES, &target, &found, 1);
            CHECK(found == expected);
        }
    }
}
