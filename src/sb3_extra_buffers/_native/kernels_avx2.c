/* The kernels with AVX2, for processors that have it; kernels.c looks before it takes them. */
#if defined(__x86_64__) || defined(_M_X64)

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif

#define FT_AVX2 1
#define FT_KERNELS ft_kernels_avx2
#define FT_KERNELS_NAME "avx2"
#include "kernels.inc"

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif

#else
typedef int ft_no_avx2; /* an empty file is no C */
#endif
