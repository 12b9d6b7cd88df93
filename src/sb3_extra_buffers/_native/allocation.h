/* Memory: every allocation of the core goes through here, so that tests can refuse any of them. */
#ifndef FT_ALLOCATION_H
#define FT_ALLOCATION_H

#include <stddef.h>
#include <stdint.h>

enum { FT_PAGE = 4096 }; /* bytes that most systems find memory for at a time, once they are written to */

void *ft_alloc(size_t count, size_t size);                /* zeroed; NULL where there is none, see ft_get_refused_bytes */
void *ft_resize(void *memory, size_t count, size_t size); /* what is new is not zeroed */
void ft_free(void *memory);
void *ft_alloc_pages(size_t size);                        /* zeroed, straight from the system */
void ft_free_pages(void *memory, size_t size);
/* Make such memory larger or smaller; it may move, and what is new is not zeroed. NULL where that cannot be: it is as it was then. */
void *ft_resize_pages(void *memory, size_t size, size_t wanted);
/* For tests: refuse one allocation of this thread, after so many; negative for none. Returns how many were left. */
int64_t ft_refuse_allocation(int64_t after);
size_t ft_pad_size(size_t size); /* whole words and one more */

#endif
