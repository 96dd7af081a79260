/*
 * Scenarios of the code allocator: a virtual machine that asks for memory for each function, frees it, and gets it again.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "jitsym_region.h"
#include "matrix.h"

enum { CALLERS = 16, LEAVES = 200 };

static const enum kind leaves[] = {LEAF_FP, LEAF_ROWS, LEAF_FIXED, STEPS_ROWS, LEAF_EH, STEPS_FP};
static const enum kind callers[] = {MID_ROWS, MID_FP, MID_EH, MID_REALIGN, MID_FP_SAVES};

static struct code called[LEAVES], calling[CALLERS];
static unsigned made;

/* A function in memory of its own, in which its constants follow it. */
static void make(struct code *code, enum kind kind, const char *prefix) {
  jitsym_region piece;
  struct region region;
  double speed = code->kind == kind ? code->speed : 0;
  made++;
  struct function *function = compile(kind, made, name_of(prefix, made), NULL);
  size_t size = function->code.size + random_in(0, 4000), guess = size + random_in(0, 2) * 4000;

  memset(&piece, 0, sizeof piece);
  piece.struct_size = sizeof piece;
  check(jitsym_alloc(session, guess, 16, (uint64_t)(uintptr_t)&make, &piece), "jitsym_alloc");
  if (guess > size) {
    check(jitsym_shrink(session, piece.exec, size), "jitsym_shrink");
  }
  region.run = piece.exec;
  region.write = piece.write;
  region.size = size;
  memset(region.write, 0xcc, size);
  write_code(code, function, kind, function->name, &region, 0);
  code->speed = speed;
  announce(code);
}

/* In half of the cases the allocator is the one that ends the registration. */
static void destroy(struct code *code) {
  if (random_in(0, 2)) {
    remove_code(code);
  } else {
    truth_code_ends(code->number, now());
  }
  check(jitsym_free(session, (void *)(uintptr_t)code->addr), "jitsym_free");
}

static void make_all(void) {
  for (unsigned i = 0; i < CALLERS; i++) {
    make(&calling[i], callers[i % COUNT(callers)], "caller");
  }
  for (unsigned i = 0; i < LEAVES; i++) {
    make(&called[i], leaves[i % COUNT(leaves)], "leaf");
  }
}

/* Each slice runs code that may be new, in the place of older code as soon as much was freed. */
static void run_and_replace(double seconds, unsigned from) {
  uint64_t end = cpu_time() + (uint64_t)(seconds * 1e9);
  for (unsigned n = 0; goes_on(end, n, 4 * LEAVES); n++) {
    struct code *leaf = &called[random_in(from, LEAVES)], *caller = &calling[random_in(0, CALLERS)];
    if (n % 4 != 0) {
      enum kind kind = leaves[random_in(0, COUNT(leaves))];
      destroy(leaf);
      make(leaf, kind, "leaf");
    } else if (from == 0 && n % 32 == 0) {
      destroy(caller);
      make(caller, callers[random_in(0, COUNT(callers))], "caller");
    }
    const struct stack stack = STACK(&calling[random_in(0, CALLERS)], caller, leaf);
    /* Memory has to be used again and again, and code need not run each time to be stepped through. */
    if (!option.step || n % 8 == 0) {
      run_stack(&stack, random_in(150000, 450000));
    }
  }
}

static void check_reuse(void) {
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  check(jitsym_get_stats(session, &stats), "jitsym_get_stats");
  /* Memory was used again, and much of it at once. */
  if (stats.region_generations == 0 || stats.region_generations > made / 100 || stats.region_late > 0) {
    fprintf(stderr, "%u functions, %" PRIu64 " generations, %" PRIu64 " functions late\n", made, stats.region_generations,
            stats.region_late);
    fail("the allocator has begun too many generations, or none");
  }
}

static void allocated(void) {
  truth_option("stale-frames", "yes");
  make_all();
  run_and_replace(option.seconds, 0);
  check_reuse();
}

/*
 * A child goes on with what it has inherited, and gets memory that the parent gets too, later, as the truth tells code by address
 * and time alone. It frees its own code, so that the truth of inherited code is the parent's.
 */
static void allocated_forked(void) {
  enum { OWN = LEAVES / 2 };

  truth_option("stale-frames", "yes");
  make_all();
  run_and_replace(option.seconds / 3, 0);
  /* A fork waits a while for the background thread, and not for ever. */
  check(jitsym_flush(session, 60000), "jitsym_flush");
  pid_t child = fork();
  if (child < 0) {
    fail("fork");
  }
  if (child == 0) {
    truth_forked();
    for (unsigned i = OWN; i < LEAVES; i++) {
      make(&called[i], leaves[i % COUNT(leaves)], "of_child");
    }
    run_and_replace(option.seconds / 3, OWN);
    for (unsigned i = OWN; i < LEAVES; i++) {
      destroy(&called[i]);
    }
    check(jitsym_flush(session, 60000), "jitsym_flush");
    _exit(0);
  }
  int status;
  if (waitpid(child, &status, 0) != child || status != 0) {
    fail("the child has failed");
  }
  run_and_replace(option.seconds / 3, 0);
}

const struct scenario alloc_scenarios[] = {
    {"region-allocated", allocated, "dwarf", NO_GAP, 0},
    {"region-allocated-forked", allocated_forked, "dwarf", NO_GAP, 0},
    SCENARIOS_END,
};
