/* Which kernels this processor can run, and what is told of a patch without running it. */
#include "framelog.h"
#include "format.h"

#include <string.h>

extern const fl_kernels fl_kernels_baseline;
#if defined(__x86_64__) || defined(_M_X64)
extern const fl_kernels fl_kernels_avx2;

#if defined(_MSC_VER) && !defined(__clang__)
#include <immintrin.h>
#include <intrin.h>
static bool has_avx2(void) {
    int info[4];
    __cpuid(info, 0);
    if (info[0] < 7) {
        return false;
    }
    __cpuid(info, 1);
    const bool saves_registers = (info[2] & (1 << 27)) != 0 && (_xgetbv(0) & 6) == 6;
    __cpuidex(info, 7, 0);
    const int avx2_bmi_bmi2 = 1 << 5 | 1 << 3 | 1 << 8;
    if (!saves_registers || (info[1] & avx2_bmi_bmi2) != avx2_bmi_bmi2) {
        return false;
    }
    __cpuid(info, (int)0x80000001);
    return (info[2] & (1 << 5)) != 0; /* lzcnt */
}
#else
static bool has_avx2(void) {
    __builtin_cpu_init();
    /* Every processor with BMI2 has LZCNT, which older compilers cannot be asked for. */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif
#endif

const fl_kernels *fl_active = &fl_kernels_baseline;

const fl_kernels *fl_kernels_named(const char *name) {
    if (strcmp(name, "baseline") == 0) {
        return &fl_kernels_baseline;
    }
#if defined(__x86_64__) || defined(_M_X64)
    if (strcmp(name, "avx2") == 0 && has_avx2()) {
        return &fl_kernels_avx2;
    }
#endif
    return NULL;
}

const fl_kernels *fl_best_kernels(void) {
    const fl_kernels *avx2 = fl_kernels_named("avx2");
    return avx2 != NULL ? avx2 : &fl_kernels_baseline;
}

size_t fl_patch_length(const uint8_t *patch, size_t size) {
    if (size < PATCH_PREFIX) {
        return 0;
    }
    const size_t length = PATCH_PREFIX + (size_t)(patch[0] | patch[1] << 8);
    return length <= size ? length : 0;
}

bool fl_patch_stands_alone(const uint8_t *patch, size_t length) {
    return length > PATCH_PREFIX && patch[PATCH_PREFIX] == PATCH_UP;
}
