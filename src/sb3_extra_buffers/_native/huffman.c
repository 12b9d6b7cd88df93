/* Huffman codes of limited length. */
#include "huffman.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BITS = 40 }; /* deeper than any tree over 32-bit counts that are added up in 64 bits: Fibonacci numbers grow faster */

static int compare_words(const void *one, const void *other) {
    const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* How many codes there are of each length, given counts in ascending order; Moffat and Katajainen's way, in place. */
static void count_lengths(uint64_t *of, size_t n, uint32_t *amounts) {
    of[0] += of[1];
    size_t root = 0, leaf = 2;
    for (size_t next = 1; next + 1 < n; next++) {
        for (int k = 0; k < 2; k++) {
            const bool from_root = leaf >= n || (root < next && of[root] < of[leaf]);
            const uint64_t value = from_root ? of[root] : of[leaf++];
            of[next] = k == 0 ? value : of[next] + value;
            if (from_root) {
                of[root++] = next;
            }
        }
    }
    of[n - 2] = 0;
    for (size_t next = n - 2; next-- > 0;) {
        of[next] = of[of[next]] + 1;
    }
    size_t available = 1, used = 0, inner = n - 1;
    for (uint64_t depth = 0; available > 0; depth++) {
        while (inner > 0 && of[inner - 1] == depth) {
            used++;
            inner--;
        }
        amounts[depth < MOST_BITS ? depth : MOST_BITS] += (uint32_t)(available - used);
        available = 2 * used;
        used = 0;
    }
}

/* Have no code be longer than that, at the least cost that is easily found. */
static void limit_lengths(uint32_t *amounts, unsigned longest) {
    uint64_t taken = 0; /* of 2^longest patterns */
    for (unsigned bits = longest + 1; bits <= MOST_BITS; bits++) {
        amounts[longest] += amounts[bits];
        amounts[bits] = 0;
    }
    for (unsigned bits = 1; bits <= longest; bits++) {
        taken += (uint64_t)amounts[bits] << (longest - bits);
    }
    while (taken > UINT64_C(1) << longest) { /* a code that is a bit longer gives half of its patterns back */
        unsigned bits = longest - 1;
        while (amounts[bits] == 0) {
            bits--;
        }
        amounts[bits]--;
        amounts[bits + 1]++;
        taken -= UINT64_C(1) << (longest - bits - 1);
    }
    while (taken < UINT64_C(1) << longest) { /* one that is a bit shorter takes as many again */
        unsigned bits = 2;
        while (amounts[bits] == 0 || UINT64_C(1) << (longest - bits) > (UINT64_C(1) << longest) - taken) {
            bits++;
        }
        amounts[bits]--;
        amounts[bits - 1]++;
        taken += UINT64_C(1) << (longest - bits);
    }
}

void ft_find_lengths(const uint32_t *counts, size_t n, unsigned longest, uint8_t *lengths) {
    uint64_t sorted[FT_MOST_SYMBOLS], sums[FT_MOST_SYMBOLS] = {0};
    uint32_t amounts[MOST_BITS + 1] = {0};
    for (size_t k = 0; k < n; k++) {
        sorted[k] = ((uint64_t)counts[k] + 1) << 10 | k;
    }
    qsort(sorted, n, sizeof *sorted, compare_words);
    for (size_t k = 0; k < n; k++) {
        sums[k] = sorted[k] >> 10;
    }
    count_lengths(sums, n, amounts);
    limit_lengths(amounts, longest);
    size_t k = 0;
    for (unsigned bits = longest; bits > 0; bits--) {
        for (uint32_t left = amounts[bits]; left > 0; left--) {
            lengths[sorted[k++] & 1023] = (uint8_t)bits;
        }
    }
}

bool ft_check_lengths(const uint8_t *lengths, size_t n, unsigned longest) {
    uint64_t taken = 0;
    for (size_t k = 0; k < n; k++) {
        if (lengths[k] < 1 || lengths[k] > longest) {
            return false;
        }
        taken += UINT64_C(1) << (longest - lengths[k]);
    }
    return taken == UINT64_C(1) << longest;
}

void ft_make_codes(const uint8_t *lengths, size_t n, unsigned longest, uint16_t *codes) {
    uint32_t next = 0;
    for (unsigned bits = 1; bits <= longest; bits++) {
        next <<= 1;
        for (size_t k = 0; k < n; k++) {
            if (lengths[k] == bits) {
                uint32_t turned = 0; /* the first bit of a code is the lowest one */
                for (unsigned b = 0; b < bits; b++) {
                    turned |= (next >> b & 1) << (bits - 1 - b);
                }
                codes[k] = (uint16_t)turned;
                next++;
            }
        }
    }
}
