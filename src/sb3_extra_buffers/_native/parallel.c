/*
 * Some work shared by two threads, the caller's and a helper. Who is ready takes another piece, the caller from the front and the
 * helper from the back, so that a thread that starts late, or is held up, takes less, and each has what it takes side by side.
 *
 * The helper is started when it is first needed and waits for more after that. A new thread may begin on the core of the one
 * that has made it, where it is of no help (Linux was seen to do that after a pause); one that is woken up gets an idle core.
 * Waking up takes about as long as decoding a small batch, so a caller that knows of work to come has it woken up before.
 */
#include "parallel.h"

#include "frametable.h"

enum {
    SPINS = 4000,        /* looks at a helper that is not done yet: some 50 microseconds, as long as falling asleep and waking up */
    WAITS = 2 * SPINS,   /* looks of a helper at work that is to come */
};

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
static void wake_up(event *what) { WakeConditionVariable(what); }
static size_t take(counter *taken) { return (size_t)InterlockedExchangeAdd64(taken, 1); }
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
static void wake_up(event *what) { pthread_cond_signal(what); }
static size_t take(counter *taken) { return __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED); }
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
    size_t count, piece, pieces;
    counter taken; /* pieces */
} job;

/* There is one helper in a process. A caller that comes while it helps another one works alone. */
typedef struct helper {
    lock guard;          /* of all but `helps` and `offers`, which are only set under it */
    event offer, answer;
    job *offered;        /* what it has not begun to help with */
    bool started, taken; /* whether there is one, and whether a caller has it */
    bool awake;          /* it was called, and looks for an offer */
    flag offers;         /* whether there is one */
    flag helps;
} helper;
#define NOBODY {NEW_LOCK, NEW_EVENT, NEW_EVENT, NULL, false, false, false, false, false}
static helper one = NOBODY;
static unsigned forks; /* counted up in a child, which has no helper, nor what it was about to do */

static void work_on(job *of, int worker) {
    for (size_t mine = 0; take(&of->taken) < of->pieces; mine++) {
        const size_t first = (worker == 0 ? mine : of->pieces - 1 - mine) * of->piece, left = of->count - first;
        if (!of->work(of->context, worker, first, first + (left < of->piece ? left : of->piece))) {
            return;
        }
    }
}

/* The caller must hold the guard, which is released meanwhile. */
static void look_for_an_offer(void) {
    release(&one.guard);
    for (int k = 0; k < WAITS && !is_set(&one.offers); k++) {
        spin();
    }
    acquire(&one.guard);
    one.awake = false;
}

static void help_for_ever(void) {
    acquire(&one.guard);
    for (;;) {
        while (one.offered == NULL) {
            if (one.awake) {
                look_for_an_offer();
            } else {
                wait_for(&one.offer, &one.guard);
            }
        }
        job *of = one.offered;
        one.offered = NULL;
        set(&one.offers, false);
        one.awake = false;
        set(&one.helps, true);
        release(&one.guard);
        work_on(of, 1);
        acquire(&one.guard);
        set(&one.helps, false);
        wake_up(&one.answer);
    }
}

#if defined(_WIN32)

static unsigned __stdcall run(void *unused) {
    (void)unused;
    help_for_ever();
    return 0;
}

bool ft_watch_forks(void) { return true; } /* there are none */

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
    static const helper nobody = NOBODY;
    one = nobody;
    forks++;
}

bool ft_watch_forks(void) {
    static bool watches;
    watches = watches || pthread_atfork(NULL, NULL, begin_anew) == 0;
    return watches;
}

static bool start(void) {
    if (!ft_watch_forks()) {
        return false;
    }
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

/* Whether there is a helper that no caller has. The caller must hold the guard. */
static bool is_free(void) {
    one.started = one.started || (!one.taken && start());
    return one.started && !one.taken;
}

void ft_wake_helper(void) {
    acquire(&one.guard);
    const bool calls = is_free() && !one.awake;
    one.awake = one.awake || calls;
    release(&one.guard);
    if (calls) {
        wake_up(&one.offer);
    }
}

/* Let the helper help, unless it helps another caller, or sleeps and is not to be woken up. */
static bool offer(job *of, bool wake) {
    acquire(&one.guard);
    const bool sleeps = !one.awake, helps = (wake || !sleeps) && is_free();
    if (helps) {
        one.taken = true;
        one.offered = of;
        set(&one.offers, true);
    }
    release(&one.guard);
    if (helps && sleeps) {
        wake_up(&one.offer);
    }
    return helps;
}

/* Wait until it has done what it has begun. */
static void withdraw(void) {
    for (int k = 0; k < SPINS && is_set(&one.helps); k++) {
        spin();
    }
    acquire(&one.guard);
    one.offered = NULL;
    set(&one.offers, false);
    while (is_set(&one.helps)) {
        wait_for(&one.answer, &one.guard);
    }
    one.taken = false;
    release(&one.guard);
}

void ft_work_on_two(bool (*work)(void *, int, size_t, size_t), void *context, size_t count, size_t piece, bool wake) {
    job of = {work, context, count, piece, (count + piece - 1) / piece, 0};
    const unsigned before = forks;
    const bool shared = offer(&of, wake);
    if (shared) {
        work_on(&of, 0);
    }
    if (shared && before == forks) {
        withdraw();
    } else { /* nobody helps, or a codec has forked, and this is the child */
        work(context, 0, 0, count);
    }
}
