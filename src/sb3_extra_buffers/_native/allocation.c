/* Memory of the core, from the C library or straight from the system. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* for mremap */
#endif
#include "allocation.h"
#include "frametable.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if !defined(FT_PLAIN_MEMORY) && (defined(__unix__) || defined(__APPLE__))
#define HAS_MMAP 1
#include <sys/mman.h>
#if !defined(MAP_ANONYMOUS) && defined(MAP_ANON)
#define MAP_ANONYMOUS MAP_ANON
#endif
#endif

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* Of this thread: two threads that work on two stores must not see each other's. */
static THREAD_LOCAL size_t refused_bytes;
static THREAD_LOCAL int64_t refuse_after = -1;

static bool is_refused(size_t size) {
    if (refuse_after >= 0 && refuse_after-- == 0) {
        refused_bytes = size;
        return true;
    }
    return false;
}

static bool product(size_t count, size_t size, size_t *bytes) {
    if (size != 0 && count > SIZE_MAX / 2 / size) {
        refused_bytes = FT_MORE_THAN_ALL;
        return false;
    }
    *bytes = count * size;
    return true;
}

void *ft_alloc(size_t count, size_t size) {
    size_t bytes;
    if (!product(count, size, &bytes) || is_refused(bytes)) {
        return NULL;
    }
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (memory == NULL) {
        refused_bytes = bytes;
    }
    return memory;
}

void *ft_resize(void *memory, size_t count, size_t size) {
    size_t bytes;
    if (!product(count, size, &bytes) || is_refused(bytes)) {
        return NULL;
    }
    void *larger = realloc(memory, bytes ? bytes : 1);
    if (larger == NULL) {
        refused_bytes = bytes;
    }
    return larger;
}

void ft_free(void *memory) { free(memory); }

void *ft_alloc_pages(size_t size) {
    if (is_refused(size)) {
        return NULL;
    }
#ifdef HAS_MMAP
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        memory = NULL;
    }
#else
    void *memory = calloc(size, 1);
#endif
    if (memory == NULL) {
        refused_bytes = size;
    }
    return memory;
}

void ft_free_pages(void *memory, size_t size) {
    if (memory == NULL) {
        return;
    }
#ifdef HAS_MMAP
    munmap(memory, size);
#else
    (void)size;
    free(memory);
#endif
}

void *ft_resize_pages(void *memory, size_t size, size_t wanted) {
    if (memory == NULL) {
        return ft_alloc_pages(wanted);
    }
    if (is_refused(wanted)) {
        return NULL;
    }
#if defined(HAS_MMAP) && defined(__linux__)
    void *moved = mremap(memory, size, wanted, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        moved = NULL;
    }
#elif defined(HAS_MMAP)
    void *moved = mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (moved == MAP_FAILED) {
        moved = NULL;
    } else {
        memcpy(moved, memory, size < wanted ? size : wanted);
        munmap(memory, size);
    }
#else
    (void)size;
    void *moved = realloc(memory, wanted);
#endif
    if (moved == NULL) {
        refused_bytes = wanted;
    }
    return moved;
}

size_t ft_get_refused_bytes(void) { return refused_bytes; }

int64_t ft_refuse_allocation(int64_t after) {
    const int64_t left = refuse_after;
    refuse_after = after;
    return left;
}

size_t ft_pad_size(size_t size) { return (size + 7) / 8 * 8 + 8; }
