/*
 * Scenarios of threads and processes: several threads, namespaces, a profiler that comes later.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <pthread.h>

#include "matrix.h"

enum { REGION_SIZE = 1 << 16, CODES = 16 };

/* ------------------------------------------------------------------------------------------------ threads */

enum { THREADS = 4, EACH = 24, ALL = THREADS * EACH };

/* What all threads have compiled. Who takes a piece from here knows that it is registered. */
static struct {
  pthread_mutex_t lock;
  struct region region;
  size_t at;
  struct code codes[ALL];
  unsigned count;
} board = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void compile_one(unsigned number) {
  static const enum kind kinds[] = {LEAF_FP, MID_FP, LEAF_ROWS, MID_ROWS, LEAF_FIXED, MID_FP_SAVES};
  enum kind kind = kinds[number % COUNT(kinds)];
  struct function *function = compile(kind, number + 1, name_of("of_threads", number), NULL);
  struct code code;
  size_t at, size = function->code.size + gap_behind(WITH_GAP);

  pthread_mutex_lock(&board.lock);
  at = board.at;
  board.at += size;
  pthread_mutex_unlock(&board.lock);

  write_code(&code, function, kind, function->name, &board.region, at);
  announce(&code);

  pthread_mutex_lock(&board.lock);
  board.codes[board.count++] = code;
  pthread_mutex_unlock(&board.lock);
}

static void *one_thread(void *number) {
  /* Copies, in which each thread learns the speeds for itself. */
  struct code known[ALL];
  unsigned count = 0;
  for (unsigned i = 0; i < EACH / 2; i++) {
    compile_one(*(unsigned *)number * EACH + 2 * i);
    compile_one(*(unsigned *)number * EACH + 2 * i + 1);
    pthread_mutex_lock(&board.lock);
    for (; count < board.count; count++) {
      known[count] = board.codes[count];
    }
    pthread_mutex_unlock(&board.lock);
    /* Stepped, each turn runs all that is known, so that a few are enough. */
    if (!option.step || i % 4 == 3) {
      run_any(known, count, option.seconds / THREADS / (EACH / 2.0));
    }
  }
  return NULL;
}

static void threads(void) {
  pthread_t handles[THREADS];
  unsigned numbers[THREADS];
  board.region = new_region(REGION_RWX, REGION_SIZE);
  for (unsigned i = 0; i < THREADS; i++) {
    numbers[i] = i;
    if (pthread_create(&handles[i], NULL, one_thread, &numbers[i]) != 0) {
      fail("pthread_create");
    }
  }
  for (unsigned i = 0; i < THREADS; i++) {
    pthread_join(handles[i], NULL);
  }
}

/* ------------------------------------------------------------------------------------------------ processes */

static struct code codes[CODES];

static void put_some(void) {
  static const enum kind kinds[] = {LEAF_FP, MID_FP, LEAF_FP, MID_FP_SAVES};
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    at = put_code(&codes[i], kinds[i % COUNT(kinds)], i + 1, name_of("some", i), &region, at, WITH_GAP);
  }
}

/* A profiler that attaches finds code that has been there for a while, and more comes. */
static void attach_late(void) {
  put_some();
  run_any(codes, CODES, option.seconds / 4);
  ready();
  run_any(codes, CODES, option.seconds / 2);
  put_some();
  run_any(codes, CODES, option.seconds / 4);
}

static void own_namespace(void) {
  put_some();
  run_any(codes, CODES, option.seconds);
}

const struct scenario process_scenarios[] = {
    {"threads", threads, "dwarf", WITH_GAP, 0},
    {"attach-late", attach_late, "fp", WITH_GAP, READY_LATER},
    {"namespace", own_namespace, "fp", WITH_GAP, IN_NAMESPACE},
    SCENARIOS_END,
};
