/* Which kernels this processor can run, and what can be said of a patch without running it. */
#include "kernels.h"

#include "checksum.h"
#include "format.h"
#include "frametable.h"
#include "parallel.h"

#include <string.h>

extern const ft_kernels ft_kernels_baseline;
#if defined(__x86_64__) || defined(_M_X64)
extern const ft_kernels ft_kernels_avx2;

/* Read from the processor itself: what compilers offer for it needs a library that not all of them link (zig does not). */
#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
static void read_cpuid(unsigned leaf, unsigned *answer) { __cpuidex((int *)answer, (int)leaf, 0); }
static uint64_t saved_registers(void) { return _xgetbv(0); }
#else
#include <cpuid.h>
static void read_cpuid(unsigned leaf, unsigned *answer) {
    __cpuid_count(leaf, 0, answer[0], answer[1], answer[2], answer[3]);
}
static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

enum { EAX, EBX, ECX };

bool ft_has_sse42(void) {
    unsigned answer[4];
    read_cpuid(1, answer);
    return (answer[ECX] >> 20 & 1) != 0;
}

static bool has_avx2(void) {
    const unsigned xsave_popcnt = 1u << 27 | 1u << 23, avx2_bmi_bmi2 = 1u << 5 | 1u << 3 | 1u << 8, lzcnt = 1u << 5;
    unsigned answer[4];
    read_cpuid(0, answer);
    if (answer[EAX] < 7) {
        return false;
    }
    read_cpuid(1, answer);
    if ((answer[ECX] & xsave_popcnt) != xsave_popcnt || (saved_registers() & 6) != 6) {
        return false; /* the latter: the system does not save the wide registers */
    }
    read_cpuid(7, answer);
    if ((answer[EBX] & avx2_bmi_bmi2) != avx2_bmi_bmi2) {
        return false;
    }
    read_cpuid(0x80000001, answer);
    return (answer[ECX] & lzcnt) != 0;
}
#endif

const ft_kernels *ft_active = &ft_kernels_baseline;

const ft_kernels *ft_find_kernels(const char *name) {
    if (strcmp(name, "baseline") == 0) {
        return &ft_kernels_baseline;
    }
#if defined(__x86_64__) || defined(_M_X64)
    if (strcmp(name, "avx2") == 0 && has_avx2()) {
        return &ft_kernels_avx2;
    }
#endif
    return NULL;
}

const ft_kernels *ft_find_best_kernels(void) {
    const ft_kernels *avx2 = ft_find_kernels("avx2");
    return avx2 != NULL ? avx2 : &ft_kernels_baseline;
}

void ft_init(void) {
    ft_active = ft_find_best_kernels();
    ft_init_checksums();
    ft_watch_forks(); /* if it cannot, there is no helper */
}

size_t ft_measure_patch(const uint8_t *patch, size_t size) {
    if (size < PATCH_PREFIX) {
        return 0;
    }
    const size_t length = PATCH_PREFIX + (size_t)(patch[0] | patch[1] << 8);
    return length <= size ? length : 0;
}

bool ft_patch_stands_alone(const uint8_t *patch, size_t length) {
    return length > PATCH_PREFIX && patch[PATCH_PREFIX] == PATCH_UP;
}
