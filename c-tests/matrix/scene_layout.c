/*
 * Scenarios of where code lies: packed in both directions, with free bytes between, in memory of every kind.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/mman.h>

#include "matrix.h"

enum { CODES = 48, BURST = 4, REGION_SIZE = 1 << 16 };

static const enum kind mixed[] = {
    MID_FP, LEAF_FP,      MID_ROWS,    LEAF_FIXED, MID_FP_SAVES, LEAF_ROWS, MID_REALIGN,
    MID_EH, MID_FP_EARLY, STEPS_ROWS,  LEAF_EH,    STEPS_FP,
};

static const char *name_of_kind(unsigned i) {
  return name_of(mixed[i % COUNT(mixed)] < LEAF_KINDS ? "leaf" : "caller", i);
}

/* Code is added bit by bit, each behind the one before, and all that is there is run in between. */
static void grow_up(enum region_kind kind, enum gap gap) {
  static struct code codes[CODES];
  struct region region = new_region(kind, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    if (kind == REGION_W_XOR_X) {
      protect(&region, 1);
    }
    struct function *function = compile(mixed[i % COUNT(mixed)], i + 1, name_of_kind(i), NULL);
    write_code(&codes[i], function, mixed[i % COUNT(mixed)], function->name, &region, at);
    at += function->code.size + gap_behind(gap);
    if (kind == REGION_W_XOR_X) {
      protect(&region, 0);
    }
    announce(&codes[i]);
    if (i % BURST == BURST - 1) {
      run_any(codes, i + 1, option.seconds * BURST / CODES);
    }
  }
}

static void packed_up(void) {
  grow_up(REGION_RWX, NO_GAP);
}

static void gaps(void) {
  grow_up(REGION_RWX, WITH_GAP);
}

static void w_xor_x(void) {
  grow_up(REGION_W_XOR_X, WITH_GAP);
}

static void memfd(void) {
  truth_option("memory", "memfd");
  grow_up(REGION_MEMFD, WITH_GAP);
}

/* The library gets the bytes in all ways that there are. */
static void ways_to_hand_over(void) {
  static struct code codes[CODES];
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    enum kind kind = mixed[i % COUNT(mixed)];
    struct function *function = compile(kind, i + 1, name_of_kind(i), NULL);
    write_code(&codes[i], function, kind, function->name, &region, at);
    codes[i].handing_over = (enum handing_over)(i % 3);
    announce(&codes[i]);
    at += function->code.size + gap_behind(WITH_GAP);
  }
  run_any(codes, CODES, option.seconds);
}

/* Each right before the one before, so that a claim beyond the end of one would be upon an older one. */
static void packed_down(void) {
  static struct code codes[CODES];
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = REGION_SIZE;
  for (unsigned i = 0; i < CODES; i++) {
    enum kind kind = mixed[i % COUNT(mixed)];
    struct function *function = compile(kind, i + 1, name_of_kind(i), NULL);
    at -= function->code.size;
    write_code(&codes[i], function, kind, function->name, &region, at);
    announce(&codes[i]);
    if (i % BURST == BURST - 1) {
      run_any(codes, i + 1, option.seconds * BURST / CODES);
    }
  }
}

/* Where a library lay, which ran and is unloaded. */
static void after_library(void) {
  static struct code codes[CODES / 2];
  struct region region;
  void *library = dlopen("libthread_db.so.1", RTLD_LAZY), *function = library ? dlsym(library, "td_init") : NULL;
  if (!function) {
    fail("no library of glibc");
  }
  for (uint64_t end = cpu_time() + 50000000; cpu_time() < end;) {
    ((int (*)(void))(uintptr_t)function)();
  }
  dlclose(library);
  memset(&region, 0, sizeof region);
  region.size = 4 * 4096;
  void *text = (void *)((uintptr_t)function / 4096 * 4096);
  region.run = mmap(text, region.size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                    -1, 0);
  region.write = region.run;
  if (region.run != text) {
    fail("the library lies there still");
  }
  if (option.memory != PLAIN_MEMORY) {
    adopt_region(&region);
  }
  size_t at = 4096;
  for (unsigned i = 0; i < CODES / 2; i++) {
    at = put_code(&codes[i], mixed[i % COUNT(mixed)], i + 1, name_of_kind(i), &region, at, WITH_GAP);
  }
  run_any(codes, CODES / 2, option.seconds);
}

const struct scenario layout_scenarios[] = {
    {"packed-up", packed_up, "dwarf", NO_GAP, 0},
    {"packed-down", packed_down, "dwarf", NO_GAP, 0},
    {"gaps", gaps, "dwarf", WITH_GAP, 0},
    {"w-xor-x", w_xor_x, "dwarf", WITH_GAP, 0},
    {"memfd", memfd, "dwarf", WITH_GAP, 0},
    {"after-library", after_library, "dwarf", WITH_GAP, 0},
    {"ways-to-hand-over", ways_to_hand_over, "dwarf", WITH_GAP, 0},
    SCENARIOS_END,
};
