/*
 * Waits for what comes in the end.
 *
 * What a wait allows is counted in turns and not in seconds. A turn is a millisecond of sleep, and the time until the machine lets this
 * thread run again: on a busy machine turns are longer, by as much as everything else is slower.
 */
#ifndef WAIT_H
#define WAIT_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "jitsym.h"

enum {
  /* After so many turns something hangs: five minutes on a machine that has nothing else to do. */
  TEST_TURNS = 300000,
  /* A whole scenario. */
  TEST_SCENARIO_TURNS = 12 * TEST_TURNS,
};

static inline void test_sleep_ms(unsigned ms) {
  struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
  if (nanosleep(&time, NULL) != 0 && errno != EINTR) {
    /* A sandbox refuses it. Without sleep all turns of a wait are over within a second. */
    poll(NULL, 0, (int)ms);
  }
}

/* Takes a turn, of so many that are allowed. Returns whether there are any left. */
static inline int test_turn_of(unsigned *turns, unsigned allowed) {
  test_sleep_ms(1);
  return ++*turns < allowed;
}

/* Waits until the condition holds. */
#define TEST_AWAIT(condition)                                                                                         \
  do {                                                                                                                \
    unsigned turns_ = 0;                                                                                              \
    while (!(condition)) {                                                                                            \
      if (!test_turn_of(&turns_, TEST_TURNS)) {                                                                       \
        fprintf(stderr, "%s:%d: pid %d: never came: %s\n", __FILE__, __LINE__, (int)getpid(), #condition);            \
        _exit(1);                                                                                                     \
      }                                                                                                               \
    }                                                                                                                 \
  } while (0)

/* Flushes, however slow the machine is. One that hangs is ended with the scenario that it is in. */
static inline jitsym_status test_flush(jitsym *session) {
  return jitsym_flush(session, UINT32_MAX);
}

#endif
