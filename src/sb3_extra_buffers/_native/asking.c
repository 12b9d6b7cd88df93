/* See asking.h. Where the system has no such calls, pages come when they are touched. */
#if defined(__linux__)
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RUSAGE_THREAD, mincore */
#endif
#endif
#include "asking.h"

#include <stdlib.h>

enum {
    STAYS = 64, /* batches after the last one that had to wait for the disk */
    CLOSE = 3,  /* pages between two that are read along with them: the disk takes longer to find a page than to read it */
    MOST_PAGES = 1 << 16,
    FAR = 4,    /* pages from one to the next that one look finds out about: a call takes longer than some pages more */
    MOST_LOOKED_AT = 512,
};

#if defined(__linux__)

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static int asks; /* batches that still ask; changed by atomic steps only */

bool ft_reads_from_disk(void) { return __atomic_load_n(&asks, __ATOMIC_RELAXED) > 0; }

void ft_note_disk(bool was_absent) {
    const int now = __atomic_load_n(&asks, __ATOMIC_RELAXED);
    if (was_absent || now > 0) {
        __atomic_store_n(&asks, was_absent ? STAYS : now - 1, __ATOMIC_RELAXED);
    }
}

static uintptr_t page_bytes(void) {
    static uintptr_t known; /* whoever comes first finds it out, and all find the same */
    uintptr_t bytes = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (bytes == 0) {
        bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&known, bytes, __ATOMIC_RELAXED);
    }
    return bytes;
}

uint64_t ft_count_waits(void) {
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? (uint64_t)used.ru_majflt : 0;
}

void ft_note_page(ft_asked *asked, const uint8_t *address) {
    const uint8_t *page = (const uint8_t *)((uintptr_t)address / page_bytes() * page_bytes());
    if (asked->count > 0 && asked->pages[asked->count - 1] == page) {
        return; /* most lines are in the page of the one before */
    }
    if (asked->count == asked->room) {
        const size_t room = asked->room > 0 ? 2 * asked->room : 256;
        const uint8_t **larger = room <= MOST_PAGES ? ft_resize(asked->pages, room, sizeof *larger) : NULL;
        if (larger == NULL) {
            return; /* it comes when it is touched */
        }
        asked->pages = larger;
        asked->room = room;
    }
    asked->pages[asked->count++] = page;
}

static int compare(const void *left, const void *right) {
    const uintptr_t a = (uintptr_t) * (const uint8_t *const *)left, b = (uintptr_t) * (const uint8_t *const *)right;
    return (a > b) - (a < b);
}

/* Find out which of some pages, in their order, are in memory: `is_there` has a byte for each page from the first to the last. Returns
 * how many of them it is about. */
static size_t look(const uint8_t *const *pages, size_t count, uintptr_t page, unsigned char is_there[MOST_LOOKED_AT]) {
    size_t n = 1;
    while (n < count && (size_t)(pages[n] - pages[0]) / page < MOST_LOOKED_AT && (size_t)(pages[n] - pages[n - 1]) / page <= FAR) {
        n++;
    }
    if (mincore((void *)(uintptr_t)pages[0], (size_t)(pages[n - 1] - pages[0]) + page, is_there) == 0) {
        return n;
    }
    /* What is between two files is not mapped. */
    is_there[0] = 1;
    (void)mincore((void *)(uintptr_t)pages[0], page, is_there);
    return 1;
}

void ft_ask_for_pages(ft_asked *asked) {
    const uintptr_t page = page_bytes();
    unsigned char is_there[MOST_LOOKED_AT];
    const uint8_t *first = NULL, *stop = NULL;
    if (asked->count > 0) {
        qsort(asked->pages, asked->count, sizeof *asked->pages, compare);
    }
    for (size_t k = 0, n; k < asked->count; k += n) {
        const uint8_t *const *pages = asked->pages + k;
        n = look(pages, asked->count - k, page, is_there);
        for (size_t j = 0; j < n; j++) {
            if (pages[j] < stop || (is_there[(size_t)(pages[j] - pages[0]) / page] & 1)) {
                continue;
            }
            asked->absent++;
            if (first < stop && (size_t)(pages[j] - stop) <= CLOSE * page) {
                stop = pages[j] + page;
                continue;
            }
            if (first < stop) {
                (void)madvise((void *)(uintptr_t)first, (size_t)(stop - first), MADV_WILLNEED);
            }
            first = pages[j];
            stop = first + page;
        }
    }
    if (first < stop) {
        (void)madvise((void *)(uintptr_t)first, (size_t)(stop - first), MADV_WILLNEED);
    }
    asked->count = 0;
}

#else

bool ft_reads_from_disk(void) { return false; }

void ft_note_disk(bool was_absent) { (void)was_absent; }

uint64_t ft_count_waits(void) { return 0; }

void ft_note_page(ft_asked *asked, const uint8_t *address) { (void)asked, (void)address; }

void ft_ask_for_pages(ft_asked *asked) { asked->count = 0; }

#endif

void ft_end_asking(ft_asked *asked) {
    ft_free(asked->pages);
    *asked = (ft_asked){0};
}
