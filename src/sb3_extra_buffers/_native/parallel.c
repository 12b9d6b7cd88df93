/* Some work shared by two cores. Who is ready takes the next piece, so that a thread that starts late, or is held up, takes less. */
#include "framelog.h"

#if defined(_WIN32)
#include <process.h>
#include <windows.h>

typedef volatile LONG64 counter;
static size_t take(counter *next, size_t piece) { return (size_t)InterlockedExchangeAdd64(next, (LONG64)piece); }
#else
#include <pthread.h>
#include <signal.h>

typedef size_t counter;
static size_t take(counter *next, size_t piece) { return __atomic_fetch_add(next, piece, __ATOMIC_RELAXED); }
#endif

typedef struct job {
    bool (*work)(void *, int, size_t, size_t);
    void *context;
    size_t count, piece;
    counter next; /* the first that nobody has taken */
} job;

static void work_on(job *of, int worker) {
    for (;;) {
        const size_t first = take(&of->next, of->piece);
        if (first >= of->count) {
            return;
        }
        const size_t left = of->count - first;
        if (!of->work(of->context, worker, first, first + (left < of->piece ? left : of->piece))) {
            return;
        }
    }
}

#if defined(_WIN32)

static unsigned __stdcall help(void *argument) {
    work_on(argument, 1);
    return 0;
}

void fl_work_on_two(bool (*work)(void *, int, size_t, size_t), void *context, size_t count, size_t piece) {
    job of = {work, context, count, piece, 0};
    HANDLE helper = (HANDLE)_beginthreadex(NULL, 0, help, &of, 0, NULL);
    work_on(&of, 0);
    if (helper != NULL) {
        WaitForSingleObject(helper, INFINITE);
        CloseHandle(helper);
    }
}

#else

static void *help(void *argument) {
    work_on(argument, 1);
    return NULL;
}

void fl_work_on_two(bool (*work)(void *, int, size_t, size_t), void *context, size_t count, size_t piece) {
    job of = {work, context, count, piece, 0};
    pthread_t helper;
    /* Signals are for threads that the program knows of. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool helped = pthread_create(&helper, NULL, help, &of) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work_on(&of, 0);
    if (helped) {
        pthread_join(helper, NULL);
    }
}
#endif
