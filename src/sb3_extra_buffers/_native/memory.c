/* Memory: every allocation of the core goes through here, so that tests can refuse any of them. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* for mremap */
#endif
#include "framelog.h"

#include <stdlib.h>
#include <string.h>

#if !defined(FL_PLAIN_MEMORY) && (defined(__unix__) || defined(__APPLE__))
#define FL_MMAP 1
#include <sys/mman.h>
#if !defined(MAP_ANONYMOUS) && defined(MAP_ANON)
#define MAP_ANONYMOUS MAP_ANON
#endif
#endif

#if defined(_MSC_VER)
#define FL_THREAD_LOCAL __declspec(thread)
#else
#define FL_THREAD_LOCAL _Thread_local
#endif

/* Of this thread: two threads that work on two stores must not see each other's. */
static FL_THREAD_LOCAL size_t refused_bytes;
static FL_THREAD_LOCAL int64_t refuse_after = -1;

static bool is_refused(size_t size) {
    if (refuse_after >= 0 && refuse_after-- == 0) {
        refused_bytes = size;
        return true;
    }
    return false;
}

static bool product(size_t count, size_t size, size_t *bytes) {
    if (size != 0 && count > SIZE_MAX / 2 / size) {
        refused_bytes = FL_MORE_THAN_ALL;
        return false;
    }
    *bytes = count * size;
    return true;
}

void *fl_alloc(size_t count, size_t size) {
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

void *fl_resize(void *memory, size_t count, size_t size) {
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

void fl_free(void *memory) { free(memory); }

void *fl_alloc_pages(size_t size) {
    if (is_refused(size)) {
        return NULL;
    }
#ifdef FL_MMAP
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

void fl_free_pages(void *memory, size_t size) {
    if (memory == NULL) {
        return;
    }
#ifdef FL_MMAP
    munmap(memory, size);
#else
    (void)size;
    free(memory);
#endif
}

void *fl_resize_pages(void *memory, size_t size, size_t wanted) {
    if (memory == NULL) {
        return fl_alloc_pages(wanted);
    }
    if (is_refused(wanted)) {
        return NULL;
    }
#if defined(FL_MMAP) && defined(__linux__)
    void *moved = mremap(memory, size, wanted, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) {
        moved = NULL;
    }
#elif defined(FL_MMAP)
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

size_t fl_refused_bytes(void) { return refused_bytes; }

int64_t fl_refuse_allocation(int64_t after) {
    const int64_t left = refuse_after;
    refuse_after = after;
    return left;
}

size_t fl_padded(size_t size) { return (size + 7) / 8 * 8 + 8; }
