/* The kernels with what every processor of this kind has: SSE2 on x86-64, NEON on arm64. */
#define FT_KERNELS ft_kernels_baseline
#define FT_KERNELS_NAME "baseline"
#include "kernels.inc"
