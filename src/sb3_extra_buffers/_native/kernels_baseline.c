/* The kernels with what every processor of this kind has: SSE2 on x86-64, NEON on arm64. */
#define FL_KERNELS fl_kernels_baseline
#define FL_KERNELS_NAME "baseline"
#include "kernels.inc"
