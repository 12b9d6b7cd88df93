/* What pictures are like, counted, and the codebooks that follow from it. */
#ifndef FT_STUDY_H
#define FT_STUDY_H

#include "codebooks.h"

typedef struct ft_study ft_study;

ft_study *ft_study_new(const ft_shape *shape); /* NULL where there is no memory */
void ft_study_free(ft_study *study);
/* Have a frame count for codebooks of a kind that are to come. */
void ft_study_frame(ft_study *study, int kind, const uint8_t *frame);
/* Have what was counted so far count half of what is to come. */
void ft_study_forget(ft_study *study, int kind);
/* Make a codebook; that of P has codes of one length. */
void ft_study_make_book(ft_study *study, int kind, ft_book *book);

#endif
