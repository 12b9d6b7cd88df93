/* Sums for prioritized replay. */
#include "frametable.h"

void ft_tree_set_leaves(double *sums, size_t first_leaf, const int64_t *leaves, const double *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t node = first_leaf + (size_t)leaves[i];
        sums[node] = values[i];
        /* Added up anew, never by a difference: rounding errors do not pile up over millions of updates. */
        for (node >>= 1; node > 0; node >>= 1) {
            sums[node] = sums[2 * node] + sums[2 * node + 1];
        }
    }
}

void ft_tree_find_leaves(const double *sums, size_t first_leaf, const double *targets, int64_t *leaves, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double target = targets[i];
        size_t node = 1;
        while (node < first_leaf) {
            node *= 2;
            /* Rounding may put a target past the last leaf that is not empty; an empty branch is never taken. */
            if (target >= sums[node] && sums[node + 1] > 0.0) {
                target -= sums[node];
                node++;
            }
        }
        leaves[i] = (int64_t)(node - first_leaf);
    }
}
