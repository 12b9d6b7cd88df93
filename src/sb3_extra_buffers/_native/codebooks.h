/* Codebooks: what pictures are coded by, as records and as tables. */
#ifndef FT_CODEBOOKS_H
#define FT_CODEBOOKS_H

#include "chunk.h"
#include "huffman.h"
#include "pictures.h"

enum {
    FT_MOST_BOOKS = 64,  /* in a chunk: each takes memory once something is read that was coded by it */
    FT_MOST_BOOK = 10 + 255 * FT_MOST_PIXEL + 256 * FT_RANKS + FT_PAIRS / 2, /* bytes of one */
};

/* A codebook, taken apart. */
typedef struct ft_book {
    int kind; /* PALETTE or JOINT */
    ft_shape shape;
    enum ft_predictor predictor;
    uint32_t n;                          /* colours or deltas */
    uint32_t values[FT_MOST_DELTAS + 1]; /* they */
    uint8_t below[256][FT_RANKS];        /* how many colours are listed that lie below one, and these */
    uint8_t lengths[FT_MOST_DELTAS + 1]; /* bits of each symbol */
} ft_book;

/* The context of colours that have no number, and of the first row; one-byte pixels are their own numbers, below zeros. */
static inline bool ft_has_list(const ft_book *book, size_t colour) {
    return book->shape.pixel == 1 || colour < book->n || colour == FT_LITERAL;
}

/* The body of a codebook's record, FT_MOST_BOOK at most; returns its bytes. */
size_t ft_write_book(const ft_book *book, uint8_t *out);
/* Take one apart that is for frames of so many bytes; false where it makes no sense. */
bool ft_read_book(const uint8_t *body, size_t size, size_t frame_bytes, ft_book *book);

void ft_make_palette_codes(const ft_book *book, ft_palette_codes *codes);
void ft_make_joint_codes(const ft_book *book, ft_joint_codes *codes);
void ft_make_tables(const ft_book *book, ft_tables *tables);
/* The tables of the body of a codebook, for frames of so many bytes. Returns FT_OK, FT_DAMAGED or FT_NO_MEMORY. */
int ft_tables_new(const uint8_t *body, size_t size, size_t frame_bytes, ft_tables **made);

#endif
