/* What the fuzz targets share. A target is one function of bytes, as libFuzzer wants it, and one that makes sound ones. */
#ifndef FUZZ_H
#define FUZZ_H

#include "support.h"

enum { MOST_INPUT = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t fuzz_seed(uint64_t number, uint8_t *out); /* to MOST_INPUT bytes; its size */
/* Change some of `size` bytes; the new size, at most `room`. */
size_t fuzz_mutate(chance *from, uint8_t *data, size_t size, size_t room);

/* Choose between the kernels of this processor. */
static inline void use_kernels(bool best) { ft_active = best ? ft_find_best_kernels() : ft_find_kernels("baseline"); }

/* Memory that ends where the bytes do, so that the sanitizer sees who reads on. */
static inline uint8_t *copy_of(const uint8_t *data, size_t size, size_t more) {
    uint8_t *copy = grab(size + more);
    if (size > 0) {
        memcpy(copy, data, size);
    }
    return copy;
}

enum { N_SMALL = 14, MOVING = 8 }; /* that one is for things that move, those after it for pictures */
/* The layout and the method of one of N_SMALL kinds of columns. */
void small_kind(size_t kind, ft_layout *layout, ft_method *method);

#endif
