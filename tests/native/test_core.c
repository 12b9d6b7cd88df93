/* Tests of the core without Python: `make core-test`, and `make cross-test` on another processor. Silent but for a summary. */
#include "test_core.h"

static const char *const ALL_KERNELS[] = {"baseline", "avx2"};

int main(void) {
    size_t runs = 0;
    ft_init();
    for (size_t i = 0; i < sizeof ALL_KERNELS / sizeof *ALL_KERNELS; i++) {
        const ft_kernels *kernels = ft_find_kernels(ALL_KERNELS[i]);
        if (kernels == NULL) {
            printf("%s: this processor has none\n", ALL_KERNELS[i]);
            continue;
        }
        ft_active = kernels;
        test_kernels();
        test_columns();
        test_apart();
        test_chunks();
        test_objects();
        test_failures();
        test_pictures();
        test_values();
        printf("%s: passed\n", kernels->name);
        runs++;
    }
    test_kernels_agree();
    test_picture_kernels_agree();
    test_tree();
    CHECK(runs > 0 && ft_find_kernels("none of the kind") == NULL);
    return 0;
}
