/* Small columns, changes that get somewhere, and a driver for where there is no libFuzzer. */
#include "fuzz.h"

static const struct {
    ft_layout layout;
    ft_method method;
} SMALL[N_SMALL] = {
    {{1, 1, 4, 72, 1, 9, true, false, 0}, {true, false, 3}},   /* delta */
    {{1, 1, 2, 75, 3, 5, true, true, 0}, {true, true, 4}},     /* delta behind a codec, colours */
    {{1, 1, 3, 40, 1, 8, true, false, 0}, {false, false, 0}},  /* each frame alone */
    {{4, 1, 1, 64, 1, 0, false, false, 0}, {true, true, 6}},   /* no stack */
    {{1, 48, 4, 1, 1, 6, false, false, 0}, {true, false, 2}},  /* channels last */
    {{1, 1, 1, 96, 1, 12, false, false, 0}, {false, false, 0}},
    {{8, 1, 1, 96, 1, 0, false, false, 0}, {true, false, 3}},     /* states */
    {{2, 1, 3, 96, 1, 24, true, false, 0}, {true, false, 3}},     /* few values */
    {{1, 1, 1, 640, 1, 32, false, false, 0}, {true, false, 3}},   /* things that move */
    {{1, 1, 1, 2079, 1, 33, false, false, 1}, {true, false, 3}},  /* pictures, gray */
    {{1, 1, 1, 2088, 3, 24, true, true, 1}, {true, false, 2}},    /* in colour, */
    {{1, 1, 1, 864, 1, 48, false, false, 3}, {true, false, 3}},   /* pixel by pixel, */
    {{1, 1, 1, 1088, 1, 64, false, false, 4}, {true, false, 3}},  /* with four bytes each, */
    {{1, 1, 2, 768, 3, 16, true, true, 1}, {true, false, 2}},     /* and in stacks */
};

void small_kind(size_t kind, ft_layout *layout, ft_method *method) {
    *layout = SMALL[kind % N_SMALL].layout;
    *method = SMALL[kind % N_SMALL].method;
}

/* Numbers that are off by one from something, or are too large for something. */
static uint64_t telling_number(chance *from) {
    static const uint64_t numbers[] = {0, 1, 2, 7, 8, 63, 64, 255, 256, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    const uint64_t one = numbers[below(from, sizeof numbers / sizeof *numbers)];
    switch (below(from, 6)) {
        case 0: return ~one;
        case 1: return one << 32;
        case 2: return UINT64_C(1) << below(from, 64);
        case 3: return below(from, 5000);
        default: return one;
    }
}

size_t fuzz_mutate(chance *from, uint8_t *data, size_t size, size_t room) {
    for (size_t k = 1 + below(from, one_in(from, 4) ? 12 : 3); k > 0; k--) {
        const size_t at = size ? below(from, size) : 0, word = at & ~(size_t)7, rest = size - at;
        const size_t kind = below(from, 10);
        if (size == 0 || (kind == 0 && size < room)) {
            size = size < room ? size + 1 : size;
            memmove(data + at + 1, data + at, size - at - 1);
            data[at] = (uint8_t)draw(from);
        } else if (kind == 1) {
            memmove(data + at, data + at + 1, rest - 1);
            size--;
        } else if (kind == 2) {
            data[at] ^= (uint8_t)(1 << below(from, 8));
        } else if (kind == 3 && word + 8 <= size) { /* large numbers of a chunk are eight bytes each */
            const uint64_t value = telling_number(from);
            for (size_t i = 0; i < 8; i++) {
                data[word + i] = (uint8_t)(value >> (8 * i));
            }
        } else if (kind == 4 && word + 8 <= size) {
            data[word] = (uint8_t)(data[word] + below(from, 5) - 2);
        } else if (kind == 5 && rest >= 4) {
            const uint64_t value = telling_number(from);
            memcpy(data + at, &value, 4);
        } else if (kind == 6) { /* a stretch from elsewhere */
            const size_t other = below(from, size), longest = size - (other > at ? other : at);
            memmove(data + at, data + other, 1 + below(from, longest < 64 ? longest : 64));
        } else if (kind == 7 && one_in(from, 8)) {
            size = at + 1;
        } else {
            data[at] = (uint8_t)draw(from);
        }
    }
    return size;
}

#ifdef FUZZ_LIBFUZZER
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed);

/* Its own changes, which follow what they have led to, and ours in turn. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned seed) {
    chance from = {seed};
    return one_in(&from, 2) ? fuzz_mutate(&from, data, size, room) : LLVMFuzzerMutate(data, size, room);
}
#else
static void write_seeds(const char *folder, uint64_t count) {
    uint8_t *data = grab(MOST_INPUT);
    for (uint64_t i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%04u", folder, (unsigned)i);
        FILE *file = fopen(path, "wb");
        CHECK(file != NULL);
        const size_t size = fuzz_seed(i, data);
        CHECK(fwrite(data, 1, size, file) == size && fclose(file) == 0);
    }
    free(data);
}

/* `program INPUTS SEED` runs so many inputs; `program --seeds FOLDER COUNT` writes sound ones to files; `program FILE` runs one. */
int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--seeds") == 0) {
        write_seeds(argv[2], strtoull(argv[3], NULL, 10));
        return 0;
    }
    uint8_t *data = grab(MOST_INPUT), *seed = grab(MOST_INPUT);
    if (argc == 2) {
        FILE *file = fopen(argv[1], "rb");
        CHECK(file != NULL);
        const size_t size = fread(data, 1, MOST_INPUT, file);
        fclose(file);
        uint8_t *exact = copy_of(data, size, 0);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        free(data);
        free(seed);
        return 0;
    }
    CHECK(argc == 3);
    const uint64_t inputs = strtoull(argv[1], NULL, 10);
    chance from = {strtoull(argv[2], NULL, 10)};
    size_t seed_size = 0, size = 0;
    for (uint64_t i = 0; i < inputs; i++) {
        if (i % 256 == 0) {
            seed_size = fuzz_seed(i / 256, seed);
        }
        if (i % 8 == 0) { /* else change upon change */
            memcpy(data, seed, seed_size);
            size = seed_size;
        }
        size = i % 256 == 0 ? size : fuzz_mutate(&from, data, size, MOST_INPUT);
        uint8_t *exact = copy_of(data, size, 0);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    free(data);
    free(seed);
    printf("%llu inputs\n", (unsigned long long)inputs);
    return 0;
}
#endif
