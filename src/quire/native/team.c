/* Threads that work together on the chunks of one phase after another.

     word   number of the phase (32 bits) │ its chunks (16) │ the next chunk to take (16)

   Whoever takes a chunk adds one to the word. Whoever completes the last one begins the next phase; without chunks it is
   the end, and storing that word is the last that this thread does to the team. Nobody waits for a thread that has no
   processor, unless it has a chunk. Who waits spins for a few microseconds, then sleeps on the number. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include "quire.h"
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define SPINS 1000

struct Team {
    _Alignas(64) atomic_uint_fast64_t word;
    _Alignas(64) atomic_int_fast64_t done;
    _Alignas(64) atomic_int sleeping;
    int threads;
    pthread_mutex_t in_use;
    Work work;
    Chunks chunks;
    void *own;
    int64_t phase, phases;
};

static void pause_shortly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static uint32_t number_of(uint64_t word) { return (uint32_t)(word >> 32); }
static uint64_t chunks_of(uint64_t word) { return word >> 16 & 0xffff; }
static uint64_t next_of(uint64_t word) { return word & 0xffff; }

#if defined(__linux__)
static uint32_t *number_in(Team *team) { /* the upper half of the word */
    return (uint32_t *)&team->word + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
}
#endif

static void sleep_on(Team *team, uint32_t number) {
    atomic_fetch_add(&team->sleeping, 1);
#if defined(__linux__)
    syscall(SYS_futex, number_in(team), FUTEX_WAIT_PRIVATE, number, NULL, NULL, 0);
#else
    if (number_of(atomic_load(&team->word)) == number) nanosleep(&(struct timespec){0, 50000}, NULL);
#endif
    atomic_fetch_sub(&team->sleeping, 1);
}

static void publish(Team *team, uint64_t chunks) {
    const uint64_t number = number_of(atomic_load(&team->word)) + 1u;
    atomic_store(&team->word, number << 32 | chunks << 16);
#if defined(__linux__)
    if (atomic_load(&team->sleeping)) syscall(SYS_futex, number_in(team), FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#endif
}

/* Begins the next phase with chunks for several threads; completes those before it that have one. */
static void advance(Team *team) {
    while (++team->phase < team->phases) {
        const int64_t chunks = team->chunks(team->own, team->phase);
        if (chunks > 1) {
            atomic_store(&team->done, 0);
            publish(team, (uint64_t)chunks);
            return;
        }
        if (chunks) team->work(team->own, team->phase, 0);
    }
    publish(team, 0);
}

static int take(Team *team) {
    uint64_t word = atomic_load(&team->word);
    if (next_of(word) >= chunks_of(word)) return 0;
    word = atomic_fetch_add(&team->word, 1);
    const uint64_t chunks = chunks_of(word), chunk = next_of(word);
    if (chunk >= chunks) return 0;
    team->work(team->own, team->phase, (int64_t)chunk);
    if (atomic_fetch_add(&team->done, 1) + 1 == (int64_t)chunks) advance(team);
    return 1;
}

static void wait_for(Team *team, uint32_t number) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (number_of(atomic_load_explicit(&team->word, memory_order_acquire)) != number) return;
        pause_shortly();
    }
    sleep_on(team, number);
}

/* Takes chunks while there are some, then waits for the next phase. Returns 0 behind the end. */
static int help_once(Team *team, int until_end) {
    const uint64_t word = atomic_load(&team->word);
    if (until_end && !chunks_of(word)) return 0;
    if (!take(team)) wait_for(team, number_of(word));
    return 1;
}

static void *help(void *own) {
    while (help_once(own, 0)) {}
    return NULL;
}

Team *quire_team(int threads) {
    Team *team = aligned_alloc(64, (sizeof(Team) + 63) / 64 * 64);
    pthread_t other;
    *team = (Team){.threads = 1};
    pthread_mutex_init(&team->in_use, NULL);
    for (; team->threads < threads; team->threads++) {
        if (pthread_create(&other, NULL, help, team)) break;
        pthread_detach(other);
    }
    return team;
}

static void run_alone(Work work, Chunks chunks, void *own, int64_t phases) {
    for (int64_t phase = 0; phase < phases; phase++)
        for (int64_t chunk = 0, count = chunks(own, phase); chunk < count; chunk++) work(own, phase, chunk);
}

void quire_run(Team *team, Work work, Chunks chunks, void *own, int64_t phases) {
    if (team->threads == 1) {
        run_alone(work, chunks, own, phases);
        return;
    }
    pthread_mutex_lock(&team->in_use); /* by another thread of Python's */
    team->work = work, team->chunks = chunks, team->own = own, team->phase = -1, team->phases = phases;
    advance(team);
    while (help_once(team, 1)) {}
    pthread_mutex_unlock(&team->in_use);
}
