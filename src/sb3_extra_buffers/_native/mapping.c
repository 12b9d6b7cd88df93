#if defined(__linux__) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "mapping.h"

#if defined(_WIN32)

const uint8_t *ft_map_file(int file, size_t size) {
    (void)file, (void)size;
    return NULL;
}

void ft_unmap_file(const uint8_t *bytes, size_t size) { (void)bytes, (void)size; }

void ft_will_need(const uint8_t *bytes, size_t size) { (void)bytes, (void)size; }

void ft_leave_pages(const uint8_t *bytes, size_t size) { (void)bytes, (void)size; }

#else

#include <sys/mman.h>
#include <unistd.h>

const uint8_t *ft_map_file(int file, size_t size) {
    /* Shared, so that what another process has mapped is in memory once. */
    void *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) {
        return NULL;
    }
    /* Samples come from anywhere. Else the system would read some megabytes around each page that is touched, and throw out others for
     * that. */
    (void)posix_madvise(bytes, size, POSIX_MADV_RANDOM);
    return (const uint8_t *)bytes;
}

void ft_unmap_file(const uint8_t *bytes, size_t size) { munmap((void *)(uintptr_t)bytes, size); }

void ft_will_need(const uint8_t *bytes, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)bytes / page * page;
    /* If it fails, the pages come when they are touched. */
    (void)posix_madvise((void *)first, (uintptr_t)bytes - first + size, POSIX_MADV_WILLNEED);
}

void ft_leave_pages(const uint8_t *bytes, size_t size) {
#if defined(__linux__)
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)bytes / page * page;
    (void)madvise((void *)first, (uintptr_t)bytes - first + size, MADV_DONTNEED); /* nothing is lost: the file has it */
#else
    (void)bytes, (void)size;
#endif
}

#endif
