/*
 * Loads and stores of any alignment, and 64 bytes compared at once. Included by kernels.inc once for each set of
 * instructions: FT_AVX2 says which.
 */
#ifndef FT_SIMD_H
#define FT_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(FT_AVX2)
#include <immintrin.h>
#elif defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#elif defined(__aarch64__) || defined(_M_ARM64)
#include <arm_neon.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
static inline uint32_t lowest_bit(uint64_t word) {
    unsigned long place;
    _BitScanForward64(&place, word);
    return place;
}
static inline uint32_t highest_bit(uint64_t word) {
    unsigned long place;
    _BitScanReverse64(&place, word);
    return place;
}
static inline uint32_t count_bits(uint64_t word) {
    word -= word >> 1 & UINT64_C(0x5555555555555555);
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    return (uint32_t)(((word + (word >> 4)) & UINT64_C(0x0F0F0F0F0F0F0F0F)) * UINT64_C(0x0101010101010101) >> 56);
}
#else
static inline uint32_t lowest_bit(uint64_t word) { return (uint32_t)__builtin_ctzll(word); }
static inline uint32_t highest_bit(uint64_t word) { return 63u - (uint32_t)__builtin_clzll(word); }
static inline uint32_t count_bits(uint64_t word) { return (uint32_t)__builtin_popcountll(word); }
#endif

/* What an environment hands over lies in no cache yet; fetching it this far ahead hides most of the wait. Any address will do. */
enum { FETCH_AHEAD = 1024 };
#if defined(_MSC_VER) && !defined(__clang__)
#if defined(_M_X64)
#define FETCH(address) _mm_prefetch((const char *)(address), _MM_HINT_T0)
#else
#define FETCH(address) ((void)(address))
#endif
#else
#define FETCH(address) __builtin_prefetch(address)
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define RARELY(condition) (condition)
#else
#define RARELY(condition) __builtin_expect((condition), 0)
#endif

/* What is rare is kept out of a loop that needs all registers. */
#if defined(_MSC_VER) && !defined(__clang__)
#define NEVER_INLINE __declspec(noinline)
#else
#define NEVER_INLINE __attribute__((noinline))
#endif

#define EVERY_BYTE UINT64_C(0x0101010101010101)

/* Eight bytes as a number whose lowest byte is the first, on every machine. */
static inline uint64_t load_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline void store_word(uint8_t *at, uint64_t word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(at, &word, 8);
}

static inline void store_four(uint8_t *at, uint32_t word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    memcpy(at, &word, 4);
}

static inline uint32_t load_four(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    return word;
}

static inline void store_two(uint8_t *at, uint32_t word) {
    const uint16_t half = (uint16_t)(word & 0xFFFF);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    const uint16_t turned = __builtin_bswap16(half);
    memcpy(at, &turned, 2);
#else
    memcpy(at, &half, 2);
#endif
}

/* As many bytes at once as may be written after a frame. */
enum { BLOCK = 32 };
#if defined(FT_AVX2)
typedef __m256i block;
static inline block load_block(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)(const void *)at); }
static inline void store_block(uint8_t *at, block of) { _mm256_storeu_si256((__m256i *)(void *)at, of); }
static inline block xor_blocks(block a, block b) { return _mm256_xor_si256(a, b); }
static inline block and_blocks(block a, block b) { return _mm256_and_si256(a, b); }
static inline block or_blocks(block a, block b) { return _mm256_or_si256(a, b); }
static inline bool is_zero_block(block of) { return _mm256_testz_si256(of, of) != 0; }
static inline block block_of(uint8_t value) { return _mm256_set1_epi8((char)value); }
#else
/* Compilers make vectors of this. */
typedef struct block {
    uint64_t words[BLOCK / 8];
} block;
static inline block load_block(const uint8_t *at) {
    block of;
    memcpy(&of, at, BLOCK);
    return of;
}
static inline void store_block(uint8_t *at, block of) { memcpy(at, &of, BLOCK); }
static inline block xor_blocks(block a, block b) {
    for (int i = 0; i < BLOCK / 8; i++) {
        a.words[i] ^= b.words[i];
    }
    return a;
}
static inline block and_blocks(block a, block b) {
    for (int i = 0; i < BLOCK / 8; i++) {
        a.words[i] &= b.words[i];
    }
    return a;
}
static inline block or_blocks(block a, block b) {
    for (int i = 0; i < BLOCK / 8; i++) {
        a.words[i] |= b.words[i];
    }
    return a;
}
static inline bool is_zero_block(block of) {
    uint64_t any = 0;
    for (int i = 0; i < BLOCK / 8; i++) {
        any |= of.words[i];
    }
    return any == 0;
}
static inline block block_of(uint8_t value) {
    block of;
    for (int i = 0; i < BLOCK / 8; i++) {
        of.words[i] = value * EVERY_BYTE;
    }
    return of;
}
#endif

/* A block whose first `count` bytes have all bits set, and the others none. */
static inline block first_bytes(size_t count) {
    static const uint8_t ones_and_zeros[2 * BLOCK] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    };
    return load_block(ones_and_zeros + BLOCK - count);
}

/* Bit `i` is set where byte `i` of 64 differs. */
static inline uint64_t different_bytes(const uint8_t *a, const uint8_t *b) {
#if defined(FT_AVX2)
    const __m256i low = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(const void *)a),
                                          _mm256_loadu_si256((const __m256i *)(const void *)b));
    const __m256i high = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(a + 32)),
                                           _mm256_loadu_si256((const __m256i *)(const void *)(b + 32)));
    const uint64_t same = (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
    return ~same;
#elif defined(__SSE2__) || defined(_M_X64)
    uint64_t same = 0;
    for (int i = 0; i < 4; i++) {
        const __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(const void *)(a + 16 * i)),
                                             _mm_loadu_si128((const __m128i *)(const void *)(b + 16 * i)));
        same |= (uint64_t)(uint32_t)_mm_movemask_epi8(equal) << (16 * i);
    }
    return ~same;
#elif defined(__aarch64__) || defined(_M_ARM64)
    const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t marked[4];
    for (int i = 0; i < 4; i++) {
        marked[i] = vandq_u8(vceqq_u8(vld1q_u8(a + 16 * i), vld1q_u8(b + 16 * i)), bits);
    }
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(marked[0], marked[1]), vpaddq_u8(marked[2], marked[3]));
    sum = vpaddq_u8(sum, sum);
    return ~vgetq_lane_u64(vreinterpretq_u64_u8(sum), 0);
#else
    uint64_t different = 0;
    for (int i = 0; i < 64; i++) {
        different |= (uint64_t)(a[i] != b[i]) << i;
    }
    return different;
#endif
}

#endif
