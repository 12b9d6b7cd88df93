/* CRC-32C, by the processor's own instruction where it has one. */
#include "checksum.h"

#include "frametable.h"
#include "kernels.h"

#include <string.h>

enum { POLYNOMIAL_BYTES = 8 };
#define POLYNOMIAL UINT32_C(0x82F63B78)

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define HAS_INSTRUCTION 1
#include <nmmintrin.h>

static bool is_supported(void) { return ft_has_sse42(); }

__attribute__((target("sse4.2"))) static uint32_t with_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t sum = crc;
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        sum = _mm_crc32_u64(sum, word);
    }
    crc = (uint32_t)sum;
    for (; size > 0; size--, data++) {
        crc = _mm_crc32_u8(crc, *data);
    }
    return crc;
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define HAS_INSTRUCTION 1
#include <arm_acle.h>

static bool is_supported(void) { return true; }

static uint32_t with_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size >= 8; size -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; size > 0; size--, data++) {
        crc = __crc32cb(crc, *data);
    }
    return crc;
}
#endif

/* Row `k` holds what a byte does that is followed by `k` zeros. */
static uint32_t tables[POLYNOMIAL_BYTES][256];
#ifdef HAS_INSTRUCTION
static bool has_instruction;
#endif

void ft_init_checksums(void) {
#ifdef HAS_INSTRUCTION
    has_instruction = is_supported();
#endif
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        }
        tables[0][byte] = crc;
    }
    for (int k = 1; k < POLYNOMIAL_BYTES; k++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
        }
    }
}

uint32_t ft_compute_checksum_plainly(const uint8_t *data, size_t size) {
    uint32_t crc = ~UINT32_C(0);
    for (; size >= 8; size -= 8, data += 8) {
        const uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^ tables[4][low >> 24] ^
              tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; size > 0; size--, data++) {
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
    }
    return ~crc;
}

uint32_t ft_compute_checksum(const uint8_t *data, size_t size) {
#ifdef HAS_INSTRUCTION
    if (has_instruction) {
        return ~with_instruction(~UINT32_C(0), data, size);
    }
#endif
    return ft_compute_checksum_plainly(data, size);
}
