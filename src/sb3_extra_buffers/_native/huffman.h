/* Huffman codes of limited length, lowest bit first. */
#ifndef FT_HUFFMAN_H
#define FT_HUFFMAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FT_MOST_SYMBOLS = 1024 };

/* Lengths of the codes of `n` symbols, 2 to FT_MOST_SYMBOLS, each 1 to `longest` bits: a symbol that was never counted has a code,
 * too, so that what was not seen yet can be written. No bit pattern is left over. */
void ft_find_lengths(const uint32_t *counts, size_t n, unsigned longest, uint8_t *lengths);
/* Whether lengths are 1 to `longest`, and leave no bit pattern over, nor use one twice. */
bool ft_check_lengths(const uint8_t *lengths, size_t n, unsigned longest);
/* The codes that follow from such lengths. */
void ft_make_codes(const uint8_t *lengths, size_t n, unsigned longest, uint16_t *codes);

#endif
