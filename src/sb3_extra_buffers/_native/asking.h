/* Pages of mapped files that a batch needs, asked for before it is decoded, so that the disk works on all of them at once. */
#ifndef FT_ASKING_H
#define FT_ASKING_H

#include "chunk.h"

struct ft_asked {
    const uint8_t **pages; /* first bytes of pages */
    size_t count, room;
    size_t absent;         /* pages that had to be read, so far */
};

/* Whether this process has waited for the disk lately, so that it pays to ask. Safe in any thread, as the next two are. */
bool ft_reads_from_disk(void);
/* How often this thread has waited for a page so far; where that cannot be known, 0. */
uint64_t ft_count_waits(void);
/* Tell what came of a batch of mapped chunks: whether something of it was not in memory. */
void ft_note_disk(bool was_absent);

/* Ask for all pages that have been noted, without waiting for them, and forget the list. */
void ft_ask_for_pages(ft_asked *asked);
void ft_end_asking(ft_asked *asked);

#endif
