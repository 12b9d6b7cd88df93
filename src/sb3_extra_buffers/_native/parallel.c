/*
 * Some work shared by two threads, the caller's and a helper. Who is ready takes the next piece, so that whoever starts late, or
 * is held up, takes less.
 *
 * The helper is started when it is first needed and waits for more after that. A new thread may begin on the core of the one
 * that has made it, where it is of no help (Linux was seen to do that after a pause); one that is woken up gets an idle core.
 */
#include "framelog.h"

enum { SPINS = 4000 }; /* looks at a helper that is not done yet: some 50 microseconds, as long as falling asleep and waking up */

#if defined(_WIN32)
#include <process.h>
#include <windows.h>

typedef SRWLOCK lock;
typedef CONDITION_VARIABLE event;
typedef volatile LONG64 counter;
typedef volatile LONG flag;
#define NEW_LOCK SRWLOCK_INIT
#define NEW_EVENT CONDITION_VARIABLE_INIT
static void acquire(lock *of) { AcquireSRWLockExclusive(of); }
static void release(lock *of) { ReleaseSRWLockExclusive(of); }
static void wait_for(event *what, lock *of) { SleepConditionVariableSRW(what, of, INFINITE, 0); }
static void tell(event *what) { WakeConditionVariable(what); }
static size_t take(counter *next, size_t piece) { return (size_t)InterlockedExchangeAdd64(next, (LONG64)piece); }
static bool is_set(flag *of) { return *of != 0; }
static void set(flag *of, bool value) { InterlockedExchange(of, value); }
static void spin(void) { YieldProcessor(); }
#else
#include <pthread.h>
#include <signal.h>

typedef pthread_mutex_t lock;
typedef pthread_cond_t event;
typedef size_t counter;
typedef bool flag;
#define NEW_LOCK PTHREAD_MUTEX_INITIALIZER
#define NEW_EVENT PTHREAD_COND_INITIALIZER
static void acquire(lock *of) { pthread_mutex_lock(of); }
static void release(lock *of) { pthread_mutex_unlock(of); }
static void wait_for(event *what, lock *of) { pthread_cond_wait(what, of); }
static void tell(event *what) { pthread_cond_signal(what); }
static size_t take(counter *next, size_t piece) { return __atomic_fetch_add(next, piece, __ATOMIC_RELAXED); }
static bool is_set(flag *of) { return __atomic_load_n(of, __ATOMIC_ACQUIRE); }
static void set(flag *of, bool value) { __atomic_store_n(of, value, __ATOMIC_RELEASE); }
#if defined(__x86_64__) || defined(__i386__)
static void spin(void) { __builtin_ia32_pause(); }
#else
static void spin(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
#endif
#endif

typedef struct job {
    bool (*work)(void *, int, size_t, size_t);
    void *context;
    size_t count, piece;
    counter next; /* the first that nobody has taken */
} job;

/* There is one helper in a process. Whoever comes while it helps somebody else works alone. */
typedef struct helper {
    lock guard;          /* of all but `helps`, which is only set under it */
    event offer, answer;
    job *offered;        /* what it has not begun to help with */
    bool started, taken; /* whether there is one, and whether somebody has it */
    flag helps;
} helper;
static helper one = {NEW_LOCK, NEW_EVENT, NEW_EVENT, NULL, false, false, false};
static unsigned forks; /* counted up in a child, which has no helper, nor what it was about to do */

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

static void help_for_ever(void) {
    acquire(&one.guard);
    for (;;) {
        while (one.offered == NULL) {
            wait_for(&one.offer, &one.guard);
        }
        job *of = one.offered;
        one.offered = NULL;
        set(&one.helps, true);
        release(&one.guard);
        work_on(of, 1);
        acquire(&one.guard);
        set(&one.helps, false);
        tell(&one.answer);
    }
}

#if defined(_WIN32)

static unsigned __stdcall run(void *unused) {
    (void)unused;
    help_for_ever();
    return 0;
}

static bool start(void) {
    HANDLE thread = (HANDLE)_beginthreadex(NULL, 0, run, NULL, 0, NULL);
    if (thread != NULL) {
        CloseHandle(thread);
    }
    return thread != NULL;
}

#else

static void *run(void *unused) {
    help_for_ever();
    return unused;
}

static void begin_anew(void) {
    static const helper nobody = {NEW_LOCK, NEW_EVENT, NEW_EVENT, NULL, false, false, false};
    one = nobody;
    forks++;
}

static bool start(void) {
    static bool watches_forks;
    if (!watches_forks && pthread_atfork(NULL, NULL, begin_anew) != 0) {
        return false;
    }
    watches_forks = true;
    pthread_t thread;
    /* Signals are for threads that the program knows of. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_detach(thread); /* nobody waits for its end: it has none */
    }
    return started;
}
#endif

/* Let the helper help, unless it helps somebody else. */
static bool offer(job *of) {
    acquire(&one.guard);
    one.started = one.started || (!one.taken && start());
    const bool free = one.started && !one.taken;
    if (free) {
        one.taken = true;
        one.offered = of;
    }
    release(&one.guard);
    if (free) {
        tell(&one.offer);
    }
    return free;
}

/* Wait until it has done what it has begun. */
static void withdraw(void) {
    for (int k = 0; k < SPINS && is_set(&one.helps); k++) {
        spin();
    }
    acquire(&one.guard);
    one.offered = NULL;
    while (is_set(&one.helps)) {
        wait_for(&one.answer, &one.guard);
    }
    one.taken = false;
    release(&one.guard);
}

void fl_work_on_two(bool (*work)(void *, int, size_t, size_t), void *context, size_t count, size_t piece) {
    job of = {work, context, count, piece, 0};
    const unsigned before = forks;
    const bool shared = offer(&of);
    work_on(&of, 0);
    if (shared && before == forks) {
        withdraw();
    } else if (shared) { /* a codec has forked, and this is the child */
        of.next = 0;
        work_on(&of, 0);
    }
}
