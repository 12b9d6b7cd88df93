/* Two halves of some work on two cores. */
#include "framelog.h"

typedef struct half {
    void (*work)(void *, int, size_t, size_t);
    void *context;
    size_t first, stop;
} half;

#if defined(_WIN32)
#include <process.h>
#include <windows.h>

static unsigned __stdcall run_second(void *argument) {
    half *second = argument;
    second->work(second->context, 1, second->first, second->stop);
    return 0;
}

void fl_run_halves(void (*work)(void *, int, size_t, size_t), void *context, size_t count) {
    half second = {work, context, count / 2, count};
    HANDLE thread = (HANDLE)_beginthreadex(NULL, 0, run_second, &second, 0, NULL);
    work(context, 0, 0, second.first);
    if (thread == NULL) {
        run_second(&second);
        return;
    }
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

#else
#include <pthread.h>
#include <signal.h>

static void *run_second(void *argument) {
    half *second = argument;
    second->work(second->context, 1, second->first, second->stop);
    return NULL;
}

void fl_run_halves(void (*work)(void *, int, size_t, size_t), void *context, size_t count) {
    half second = {work, context, count / 2, count};
    pthread_t thread;
    /* Signals are for threads that the program knows of. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, run_second, &second) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(context, 0, 0, second.first);
    if (started) {
        pthread_join(thread, NULL);
    } else {
        run_second(&second);
    }
}
#endif
