/*
 * The ground truth for the tests that run real profilers: a small JIT whose functions burn known shares of time in
 * known call stacks, and which prints what a profiler ought to find.
 *
 *   truth_jit [scenario=stacks|walk|move|reuse|free|many|late] [layout=gap|packed] [sinks=map|jitdump|both]
 *             [seconds=S] [dir=DIR] [count=N] [wait=0|1] [step=0|1] [inlined=0|1]
 *
 * Every function takes a number of rounds to burn, and a path: the functions that it and its callees are to call. So
 * any function can stand anywhere in a stack, and the stack is known by construction. The time of a stack is not planned
 * but measured: stacks are run in slices of random length (so that no sampling clock can beat with them), each slice's
 * CPU time is added up and printed.
 *
 * With step=1 somebody steps through `run_slice`: each stack of a phase runs once, for two rounds, and `seconds` means nothing.
 *
 * With inlined=1 the jitdump has records of inlined functions: each piece of code is from its second line on one of `outer`, and
 * in its last line one of `inner`, which was inlined into that. Calls are in the line before.
 *
 * `layout` says what lies behind the code: the free bytes that JITSYM_CODE_GAP declares, or no free byte.
 *
 * The truth is printed as lines of fields separated by tabs:
 *   pid N | source FILE | path SINK FILE
 *   arena ADDR SIZE
 *   function INDEX NAME SIZE | code INDEX HEX | row INDEX OFFSET LINE COLUMN
 *   frame INDEX OFFSET DEPTH RBP RBX REGISTER:AT:LOST...       the frame from OFFSET on, see struct frame
 *   place INDEX NAME ADDR SIZE FROM DONE TO HOW                in CLOCK_MONOTONIC ns; TO 0: to the end
 *   phase NAME FROM TO | stack PHASE NS NAME...                innermost first; * stands for frames of the C library
 *   stat NAME N | end
 * FROM is before the call that announces the place and DONE after it; HOW is `register` or `move`.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "guest_eh.h"
#include "jitsym_control.h"
#include "jitsym_region.h"
#include "pace.h"

#define NOINLINE __attribute__((noinline))

enum { ARENA_SIZE = 1 << 16, PATH_MAX_LEN = 16 };

/* ------------------------------------------------------------------------------------------------ small things */

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now(void) {
  return clock_ns(CLOCK_MONOTONIC);
}

static uint64_t cpu_time(void) {
  return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static uint64_t random_number(void) {
  static uint64_t state = 0x9e3779b97f4a7c15u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state >> 11;
}

static jitsym *session;

/* No call of this program has a reason to fail, so that the truth holds only if none does. */
static void check(enum jitsym_status status, const char *call) {
  char text[512] = "";
  if (status == JITSYM_OK) {
    return;
  }
  jitsym_last_error(session, text, sizeof text);
  fprintf(stderr, "truth_jit: %s: %s; %s\n", call, jitsym_status_name(status), text);
  exit(1);
}

/* What is known on the way is printed at the end, with everything else, lest the printing shows in the profile. */
static char *report;
static size_t report_size;
static FILE *report_file;

enum layout { GAP, PACKED };

/* The free bytes behind each piece of code with layout=gap. */
enum { GAP_SIZE = JITSYM_CODE_GAP_SIZE };

static struct {
  const char *scenario, *dir;
  enum layout layout;
  uint32_t sinks;
  double seconds;
  unsigned count;
  int wait, step, inlined;
} option = {"stacks", "/tmp", GAP, JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, 1.0, 4000, 0, 0, 0};

/* ------------------------------------------------------------------------------------- all functions of the guest */

/* Names as runtimes have them: with spaces, brackets, letters beyond ASCII. */
#define FUNCTIONS(X)                                              \
  X(LEAF_FP, leaf_fp, "leaf_fp")                                  \
  X(LEAF_FIXED, leaf_fixed, "leaf fixed (no frame at all)")       \
  X(LEAF_ROWS, leaf_rows, "guest::Leaf<int, 3>::rows(int) const") \
  X(LEAF_EH, leaf_eh, "leaf_eh")                                  \
  X(STEPS_FP, steps_fp, "größe_steps_fp")                         \
  X(STEPS_ROWS, steps_rows, "steps_rows")                         \
  X(WIDE, wide, "wide")                                           \
  X(MID_FP, mid_fp, "mid_fp")                                     \
  X(MID_FP_EARLY, mid_fp_early, "mid_fp_early")                   \
  X(MID_FP_SAVES, mid_fp_saves, "mid_fp_saves")                   \
  X(MID_ROWS, mid_rows, "mid_rows")                               \
  X(MID_REALIGN, mid_realign, "mid_realign")                      \
  X(MID_EH, mid_eh, "mid_eh")                                     \
  X(OUTER_FP, mid_fp, "outer_fp")                                 \
  X(OUTER_FIXED, mid_fixed, "outer fixed")                        \
  X(TRACE_ENTRY, trace_entry, "trace_entry")                      \
  X(TRACE_LEAF, trace_leaf, "TRACE_7 guest.toy:3")                \
  X(TRACE_MID, trace_mid, "TRACE_8 guest.toy:5")                  \
  X(COMPARE, comparator, "compare")                               \
  X(COMPARE_LEAF, leaf_rows, "compare_leaf")                      \
  X(CALLED_BACK, leaf_fp, "called_back")                          \
  X(SECOND, leaf_rows, "second")                                  \
  X(THIRD, leaf_fp, "third")                                      \
  X(FOURTH, leaf_fixed, "fourth")                                 \
  X(FIFTH, wide, "fifth")                                         \
  X(SIXTH, leaf_eh, "sixth")

#define AS_INDEX(index, emit, name) index,
#define AS_FUNCTION(index, emit, name) {name, emit},

enum { FUNCTIONS(AS_INDEX) FUNCTION_COUNT, SORT_IN_C, CALL_IN_C, BURN_IN_C, NONE };

static const struct {
  const char *name;
  void (*emit)(struct function *);
} guest[FUNCTION_COUNT] = {FUNCTIONS(AS_FUNCTION)};

static struct function functions[FUNCTION_COUNT];
static struct source source;

/* What the comparator of qsort finds in place of arguments. */
static struct arguments pending;

/* Where a function runs now, the index in `places`, and the library's id. */
struct placed {
  uint64_t addr;
  size_t place;
  jitsym_id id;
};

static struct placed placed[FUNCTION_COUNT];

static struct placed *where(const struct function *f) {
  return &placed[f - functions];
}

static void compile_guest(void) {
  for (int i = 0; i < FUNCTION_COUNT; i++) {
    struct function *f = &functions[i];
    f->name = guest[i].name;
    f->source = &source;
    f->arguments = &pending;
    f->unwind.struct_size = sizeof f->unwind;
    x_begin(&f->code, 8);
    guest[i].emit(f);
  }
  write_source(&source);
}

/* ------------------------------------------------------------------------------------------------- C in the stacks */

uint64_t sort_in_c(uint64_t rounds, const uint64_t *path);
uint64_t call_in_c(uint64_t rounds, const uint64_t *path);
uint64_t burn_in_c(uint64_t rounds, const uint64_t *path);

/* Two values take one comparison. */
NOINLINE uint64_t sort_in_c(uint64_t rounds, const uint64_t *path) {
  int values[2] = {2, 1};
  pending.rounds = rounds;
  pending.path = path + 1;
  qsort(values, 2, sizeof *values, (int (*)(const void *, const void *))(uintptr_t)path[0]);
  return rounds + (uint64_t)values[0];
}

NOINLINE uint64_t call_in_c(uint64_t rounds, const uint64_t *path) {
  uint64_t result = ((jit_function *)(uintptr_t)path[0])(rounds, path + 1);
  __asm__ volatile("" ::: "memory");
  return result + 1;
}

NOINLINE uint64_t burn_in_c(uint64_t rounds, const uint64_t *path) {
  while (rounds-- > 0) {
    __asm__ volatile("" ::"r"(path));
  }
  return 0;
}

/* ------------------------------------------------------------------------------------------- places of the code */

struct place {
  int function;
  const char *name;
  uint64_t addr, size, from, done, to;
  const char *how;
};

static struct place *places;
static size_t place_count;

static struct place *new_place(int function, const char *name, uint64_t addr, uint64_t size, const char *how) {
  if (place_count % 1024 == 0) {
    places = realloc(places, (place_count + 1024) * sizeof *places);
    if (!places) {
      fail("out of memory");
    }
  }
  struct place *p = &places[place_count++];
  memset(p, 0, sizeof *p);
  p->function = function;
  p->name = name;
  p->addr = addr;
  p->size = size;
  p->how = how;
  p->from = now();
  return p;
}

/* Whatever lived where the newest place is lives no more. */
static void retire_overlapped(void) {
  struct place *newest = &places[place_count - 1];
  for (struct place *p = places; p < newest; p++) {
    if (p->to == 0 && p->addr < newest->addr + newest->size && newest->addr < p->addr + p->size) {
      p->to = newest->from;
    }
  }
}

static uint8_t *new_arena(size_t size) {
  void *arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) {
    fail("mmap");
  }
  fprintf(report_file, "arena\t%" PRIxPTR "\t%zu\n", (uintptr_t)arena, size);
  return arena;
}

/* W^X: code memory is writable or executable, never both. */
static void protect(void *arena, int writable) {
  if (mprotect(arena, ARENA_SIZE, PROT_READ | (writable ? PROT_WRITE : PROT_EXEC)) != 0) {
    fail("mprotect");
  }
}

/* Puts the bytes there; returns where the next code may begin. */
static uint8_t *copy_code(struct function *f, uint8_t *at) {
  where(f)->addr = (uint64_t)(uintptr_t)at;
  memcpy(at, f->code.data, f->code.size);
  return at + f->code.size + (option.layout == GAP ? GAP_SIZE : 0);
}

/* The part of a function that begins with this line. */
static jitsym_inline inlined_from(const struct function *f, uint32_t number, const char *name, uint32_t parent) {
  jitsym_inline inlined;
  memset(&inlined, 0, sizeof inlined);
  inlined.begin = f->lines[number].offset;
  inlined.end = f->code.size;
  inlined.name = name;
  inlined.call_file = f->lines[number - 1].file;
  inlined.call_line = f->lines[number - 1].line;
  inlined.parent = parent;
  return inlined;
}

static void announce(int index) {
  struct function *f = &functions[index];
  jitsym_inline inlines[2];
  jitsym_code code;

  memset(&code, 0, sizeof code);
  code.struct_size = sizeof code;
  code.addr = where(f)->addr;
  code.size = f->code.size;
  code.name = f->name;
  /* Both ways to hand over the bytes have to come to the same. */
  code.bytes = index % 3 == 2 ? NULL : (const void *)(uintptr_t)where(f)->addr;
  if (f->eh_style != EH_NONE) {
    describe_eh(f, where(f)->addr);
  }
  code.unwind = &f->unwind;
  code.lines = f->lines;
  code.line_count = f->line_count;
  code.line_size = sizeof *f->lines;
  if (option.inlined && f->line_count > 2) {
    inlines[0] = inlined_from(f, 1, "outer", UINT32_MAX);
    inlines[1] = inlined_from(f, f->line_count - 1, "inner", 0);
    code.inlines = inlines;
    code.inline_count = 2;
    code.inline_size = sizeof inlines[0];
  }
  code.flags = option.layout == GAP ? JITSYM_CODE_GAP : 0;

  struct place *p = new_place(index, f->name, where(f)->addr, f->code.size, "register");
  check(jitsym_register(session, &code, &where(f)->id), "jitsym_register");
  p->done = now();
  where(f)->place = place_count - 1;
  retire_overlapped();
}

/* One function at a place of the caller's choice, in an arena that holds other code already. */
static void put_at(int index, uint8_t *arena, size_t offset) {
  protect(arena, 1);
  copy_code(&functions[index], arena + offset);
  protect(arena, 0);
  announce(index);
}

/*
 * Functions one behind the other. They are registered from the highest address down, then the others up, because that
 * decides which of two overlapping mappings a reader believes.
 */
static void put_all(const int *list, int count, uint8_t *arena) {
  uint8_t *at = arena;

  protect(arena, 1);
  for (int i = 0; i < count; i++) {
    at = copy_code(&functions[list[i]], at);
  }
  if (at > arena + ARENA_SIZE) {
    fail("arena too small");
  }
  protect(arena, 0);
  for (int i = count - 1; i >= 0; i--) {
    if (i % 2 == 1) {
      announce(list[i]);
    }
  }
  for (int i = 0; i < count; i++) {
    if (i % 2 == 0) {
      announce(list[i]);
    }
  }
}

static uint8_t *move_to(int index, uint8_t *at) {
  struct function *f = &functions[index];
  jitsym_move_target target;

  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  uint8_t *next = copy_code(f, at);
  target.addr = where(f)->addr;
  target.bytes = index % 3 == 2 ? NULL : at;
  target.flags = option.layout == GAP ? JITSYM_CODE_GAP : 0;
  struct place *p = new_place(index, f->name, where(f)->addr, f->code.size, "move");
  check(jitsym_move(session, where(f)->id, &target), "jitsym_move");
  p->done = now();
  places[where(f)->place].to = p->from;
  where(f)->place = place_count - 1;
  retire_overlapped();
  return next;
}

static void remove_code(int index) {
  struct function *f = &functions[index];
  places[where(f)->place].to = now();
  check(jitsym_unregister(session, where(f)->id), "jitsym_unregister");
}

static void remove_range(const uint8_t *from, uint64_t size) {
  uint64_t addr = (uint64_t)(uintptr_t)from, time = now();
  for (struct place *p = places; p < places + place_count; p++) {
    if (p->to == 0 && p->addr < addr + size && addr < p->addr + p->size) {
      p->to = time;
    }
  }
  check(jitsym_unregister_range(session, addr, size, 0), "jitsym_unregister_range");
}

/* ------------------------------------------------------------------------------------------------- stacks and time */

/* From the outermost function to the innermost; the weight is the share of slices, roughly. */
struct stack {
  int path[PATH_MAX_LEN];
  unsigned weight;
  double rounds_per_ns;
  uint64_t ns;
};

#define STACK(weight, ...) {{__VA_ARGS__, NONE}, weight, 0, 0}

uint64_t run_slice(uint64_t rounds, const uint64_t *path);
void run_stack(struct stack *s, uint64_t target_ns);
void run_phase(const char *name, struct stack *stacks, int count, double seconds);

NOINLINE uint64_t run_slice(uint64_t rounds, const uint64_t *path) {
  uint64_t result = ((jit_function *)(uintptr_t)path[0])(rounds, path + 1);
  __asm__ volatile("" ::: "memory");
  return result + 1;
}

static uint64_t address_of(int index) {
  switch (index) {
    case SORT_IN_C:
      return (uint64_t)(uintptr_t)sort_in_c;
    case CALL_IN_C:
      return (uint64_t)(uintptr_t)call_in_c;
    case BURN_IN_C:
      return (uint64_t)(uintptr_t)burn_in_c;
    default:
      return placed[index].addr;
  }
}

static const char *name_of(int index) {
  switch (index) {
    case SORT_IN_C:
      return "sort_in_c";
    case CALL_IN_C:
      return "call_in_c";
    case BURN_IN_C:
      return "burn_in_c";
    default:
      return functions[index].name;
  }
}

static void report_frames(const char *phase, const struct stack *s, int innermost, uint64_t ns) {
  fprintf(report_file, "stack\t%s\t%" PRIu64, phase, ns);
  for (int i = innermost; i >= 0; i--) {
    /* The entry of a trace jumps, so that it is in a stack only while it runs itself. */
    if (s->path[i] == TRACE_ENTRY && i != innermost) {
      continue;
    }
    fprintf(report_file, "\t%s", name_of(s->path[i]));
    if (s->path[i] == COMPARE) {
      fprintf(report_file, "\t*");
    }
  }
  fprintf(report_file, "\trun_slice\trun_stack\trun_phase\tscenario_%s\tmain\n", option.scenario);
}

static void report_stack(const char *phase, const struct stack *s) {
  int depth = 0;
  while (s->path[depth] != NONE) {
    depth++;
  }
  report_frames(phase, s, depth - 1, s->ns);
  for (int i = 0; i < depth; i++) {
    if (s->path[i] == TRACE_ENTRY) {
      report_frames(phase, s, i, 0);
    }
  }
}

NOINLINE void run_stack(struct stack *s, uint64_t target_ns) {
  uint64_t path[PATH_MAX_LEN], rounds, begin, took;
  for (int i = 0; s->path[i] != NONE; i++) {
    path[i] = address_of(s->path[i]);
  }
  if (s->rounds_per_ns == 0) {
    s->rounds_per_ns = 0.05;
  }
  rounds = option.step ? 2 : 1 + (uint64_t)((double)target_ns * s->rounds_per_ns);
  begin = cpu_time();
  run_slice(rounds, path);
  took = cpu_time() - begin;
  s->ns += took;
  /* A slice that was much too short says little about the speed. */
  if (took * 4 < target_ns) {
    s->rounds_per_ns *= 4;
  } else {
    s->rounds_per_ns = (s->rounds_per_ns + (double)rounds / (double)took) / 2;
  }
}

NOINLINE void run_phase(const char *name, struct stack *stacks, int count, double seconds) {
  uint64_t from = now(), end = cpu_time() + (uint64_t)(seconds * 1e9);
  unsigned total = 0;

  for (int i = 0; i < count; i++) {
    total += stacks[i].weight;
    stacks[i].ns = 0;
    run_stack(&stacks[i], 1000);
  }
  while (!option.step && cpu_time() < end) {
    unsigned pick = (unsigned)(random_number() % total);
    int i = 0;
    while (pick >= stacks[i].weight) {
      pick -= stacks[i++].weight;
    }
    run_stack(&stacks[i], 100000 + random_number() % 500000);
  }
  fprintf(report_file, "phase\t%s\t%" PRIu64 "\t%" PRIu64 "\n", name, from, now());
  for (int i = 0; i < count; i++) {
    report_stack(name, &stacks[i]);
  }
}

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ------------------------------------------------------------------------------------------------- scenarios */

void scenario_stacks(void);
void scenario_walk(void);
void scenario_move(void);
void scenario_reuse(void);
void scenario_free(void);
void scenario_many(void);
void scenario_late(void);
static void print_paths(void);

NOINLINE void scenario_stacks(void) {
  static struct stack stacks[] = {
      STACK(16, OUTER_FP, MID_FP, LEAF_FP),
      STACK(8, OUTER_FP, MID_ROWS, LEAF_FIXED),
      STACK(10, MID_REALIGN, MID_FP_SAVES, LEAF_ROWS),
      STACK(10, MID_REALIGN, MID_FP_EARLY, MID_FP_SAVES, STEPS_FP),
      STACK(10, MID_REALIGN, OUTER_FP, MID_EH, STEPS_ROWS),
      STACK(8, MID_EH, OUTER_FIXED, LEAF_EH),
      STACK(6, OUTER_FIXED, TRACE_ENTRY, TRACE_LEAF),
      STACK(6, MID_REALIGN, TRACE_ENTRY, TRACE_MID, MID_ROWS, LEAF_FP),
      STACK(8, OUTER_FIXED, SORT_IN_C, COMPARE, MID_ROWS, COMPARE_LEAF),
      STACK(8, OUTER_FP, MID_ROWS, CALL_IN_C, MID_FP, MID_REALIGN, CALL_IN_C, MID_EH, CALLED_BACK),
      STACK(6, OUTER_FP, MID_EH, BURN_IN_C),
      STACK(4, MID_FP, MID_FP, MID_FP, MID_ROWS, MID_ROWS, MID_FP_SAVES, MID_FP, MID_EH, MID_EH, LEAF_FIXED),
  };
  static const int order[] = {
      MID_FP,     LEAF_FIXED, MID_EH,      LEAF_ROWS,   STEPS_ROWS,   MID_ROWS,     OUTER_FIXED,
      TRACE_LEAF, TRACE_MID,  TRACE_ENTRY, LEAF_FP,     MID_FP_SAVES, COMPARE,      STEPS_FP,
      OUTER_FP,   LEAF_EH,    CALLED_BACK, MID_REALIGN, MID_FP_EARLY, COMPARE_LEAF,
  };
  put_all(order, COUNT(order), new_arena(ARENA_SIZE));
  run_phase("all", stacks, COUNT(stacks), option.seconds);
}

/*
 * `count` random stacks, recursive ones too, each run once with next to nothing to burn, for those who follow every
 * instruction. On the way functions are moved. Whenever `run_slice` is entered, the files are complete.
 */
NOINLINE void scenario_walk(void) {
  enum { DEPTH = 12, STACKS_PER_MOVE = 16, MOVED_SIZE = 1024 };

  static const int callers[] = {MID_FP,   MID_FP_EARLY, MID_FP_SAVES, MID_ROWS,  MID_REALIGN, MID_EH,
                                OUTER_FP, OUTER_FIXED,  SORT_IN_C,    CALL_IN_C, TRACE_ENTRY};
  static const int leaves[] = {LEAF_FP, LEAF_FIXED, LEAF_ROWS, LEAF_EH, STEPS_FP, STEPS_ROWS, WIDE, BURN_IN_C};
  static const int order[] = {
      MID_ROWS,    LEAF_FP,   MID_FP,     MID_EH,      MID_FP_SAVES, TRACE_MID,  LEAF_EH,
      MID_REALIGN, STEPS_FP,  COMPARE,    WIDE,        OUTER_FP,     STEPS_ROWS, OUTER_FIXED,
      LEAF_FIXED,  LEAF_ROWS, TRACE_LEAF, TRACE_ENTRY, MID_FP_EARLY,
  };
  uint8_t *arena = new_arena(ARENA_SIZE), *at = arena;

  put_all(order, COUNT(order), new_arena(ARENA_SIZE));
  check(jitsym_flush(session, 60000), "jitsym_flush");
  for (unsigned stack = 0; stack < option.count; stack++) {
    uint64_t path[PATH_MAX_LEN];
    int depth = (int)(random_number() % DEPTH), size = 0, trace = 0;

    if (stack % STACKS_PER_MOVE == STACKS_PER_MOVE - 1 && at + MOVED_SIZE <= arena + ARENA_SIZE) {
      protect(arena, 1);
      move_to(order[random_number() % COUNT(order)], at);
      protect(arena, 0);
      at += MOVED_SIZE;
      check(jitsym_flush(session, 60000), "jitsym_flush");
    }
    while (size < depth) {
      int next = callers[random_number() % COUNT(callers)];
      path[size++] = address_of(next);
      if (next == SORT_IN_C) {
        path[size++] = address_of(COMPARE);
      }
      trace = next == TRACE_ENTRY;
      if (trace && size < depth) {
        path[size++] = address_of(TRACE_MID);
        trace = 0;
      }
    }
    path[size++] = address_of(trace ? TRACE_LEAF : leaves[random_number() % COUNT(leaves)]);
    run_slice(1 + random_number() % 3, path);
  }
}

NOINLINE void scenario_move(void) {
  static struct stack stacks[] = {
      STACK(4, OUTER_FP, LEAF_FP),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_EH),
      STACK(3, MID_REALIGN, MID_EH, WIDE),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_FIXED),
  };
  static struct stack reused[] = {
      STACK(3, OUTER_FP, LEAF_FP),
      STACK(3, MID_REALIGN, MID_EH, SECOND),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_EH),
      STACK(3, OUTER_FP, THIRD),
  };
  static const int order[] = {OUTER_FP, LEAF_FP, MID_ROWS, LEAF_EH, MID_REALIGN, MID_EH, WIDE, LEAF_FIXED};
  static const int moved[] = {WIDE, LEAF_EH, MID_EH, LEAF_FP, MID_ROWS, LEAF_FIXED};
  uint8_t *first = new_arena(ARENA_SIZE), *second = new_arena(ARENA_SIZE), *at = second;
  uint64_t old_leaf, old_wide;

  put_all(order, COUNT(order), first);
  run_phase("before move", stacks, COUNT(stacks), option.seconds / 4);

  old_leaf = placed[LEAF_FP].addr;
  old_wide = placed[WIDE].addr;
  for (int i = 0; i < COUNT(moved); i++) {
    protect(second, 1);
    at = move_to(moved[i], at);
    protect(second, 0);
  }
  /* What runs at an old place by mistake shall not go unnoticed. */
  protect(first, 1);
  for (int i = 0; i < COUNT(moved); i++) {
    const struct function *f = &functions[moved[i]];
    for (size_t p = 0; p < place_count; p++) {
      if (places[p].function == moved[i] && places[p].to != 0) {
        memset((void *)(uintptr_t)places[p].addr, 0xcc, f->code.size);
      }
    }
  }
  protect(first, 0);
  run_phase("after move", stacks, COUNT(stacks), option.seconds / 4);

  /* New code where code was moved away: one over the whole old place, one over a part in its middle. */
  put_at(THIRD, first, (size_t)(old_leaf - (uint64_t)(uintptr_t)first));
  put_at(SECOND, first, (size_t)(old_wide - (uint64_t)(uintptr_t)first) + 64);
  run_phase("old place reused", reused, COUNT(reused), option.seconds / 4);

  /* Moved once more, and other moved code removed by the id that it kept. */
  protect(first, 1);
  move_to(LEAF_EH, first + ARENA_SIZE / 2);
  protect(first, 0);
  remove_code(LEAF_FIXED);
  run_phase("after second move", reused, COUNT(reused), option.seconds / 4);
}

NOINLINE void scenario_reuse(void) {
  static struct stack one[] = {STACK(4, OUTER_FP, WIDE), STACK(1, OUTER_FP, LEAF_FP)};
  static struct stack two[] = {STACK(4, OUTER_FP, SECOND), STACK(1, OUTER_FP, LEAF_FP)};
  static struct stack three[] = {STACK(2, OUTER_FP, THIRD), STACK(2, OUTER_FP, SECOND)};
  static struct stack four[] = {STACK(2, OUTER_FP, FOURTH), STACK(2, OUTER_FP, THIRD)};
  static struct stack five[] = {STACK(2, OUTER_FP, FIFTH), STACK(2, OUTER_FP, LEAF_FP)};
  uint8_t *callers = new_arena(ARENA_SIZE), *first = new_arena(ARENA_SIZE), *second = new_arena(ARENA_SIZE);

  put_at(OUTER_FP, callers, 0);
  put_at(LEAF_FP, second, 96);
  put_at(WIDE, first, 0);
  run_phase("wide", one, COUNT(one), option.seconds / 5);

  /* Over the head of what was freed. */
  remove_code(WIDE);
  put_at(SECOND, first, 0);
  run_phase("second at the head", two, COUNT(two), option.seconds / 5);

  /* Into the hole in the middle, which is free for 250 bytes on. */
  put_at(THIRD, first, 200);
  run_phase("third in the hole", three, COUNT(three), option.seconds / 5);

  /* Over live code, with no word said: the newest wins. */
  put_at(FOURTH, first, 0);
  run_phase("fourth over second", four, COUNT(four), option.seconds / 5);

  /* The whole cache flushed at once, then code over all of what was there, and the same function anew. */
  remove_range(second, ARENA_SIZE);
  put_at(FIFTH, second, 0);
  put_at(LEAF_FP, second, 4096);
  run_phase("fifth over all", five, COUNT(five), option.seconds / 5);
}

NOINLINE void scenario_free(void) {
  static struct stack stacks[] = {
      STACK(3, OUTER_FP, LEAF_FP),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_ROWS),
      STACK(3, OUTER_FP, MID_EH, LEAF_EH),
      STACK(2, OUTER_FP, LEAF_FIXED),
  };
  static const int kept[] = {OUTER_FP, LEAF_FP};
  static const int ranged[] = {LEAF_ROWS, MID_ROWS};
  static const int unmapped[] = {LEAF_EH, MID_EH, LEAF_FIXED};
  uint8_t *arena[3] = {new_arena(ARENA_SIZE), new_arena(ARENA_SIZE), new_arena(ARENA_SIZE)};

  put_all(kept, COUNT(kept), arena[0]);
  put_all(ranged, COUNT(ranged), arena[1]);
  put_all(unmapped, COUNT(unmapped), arena[2]);
  run_phase("before free", stacks, COUNT(stacks), option.seconds * 3 / 4);
  remove_range(arena[1], ARENA_SIZE);
  for (int i = 0; i < COUNT(unmapped); i++) {
    remove_code(unmapped[i]);
  }
  munmap(arena[2], ARENA_SIZE);
  run_phase("after free", stacks, 1, option.seconds / 4);
}

/*
 * Sinks are started and stopped while the guest runs; only in the phases called "on" it is to be seen. On the way code comes, goes
 * and moves while nothing is written. With wait=1 the first such phase begins when somebody has written a line.
 */
NOINLINE void scenario_late(void) {
  static struct stack stacks[] = {
      STACK(4, OUTER_FP, LEAF_FP),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_EH),
      STACK(3, MID_REALIGN, MID_EH, WIDE),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_FIXED),
  };
  static struct stack later[] = {
      STACK(3, OUTER_FP, LEAF_FP),
      STACK(3, MID_REALIGN, MID_EH, SECOND),
      STACK(3, OUTER_FP, MID_ROWS, LEAF_EH),
      STACK(3, OUTER_FP, THIRD),
  };
  static const int order[] = {OUTER_FP, LEAF_FP, MID_ROWS, LEAF_EH, MID_REALIGN, MID_EH, WIDE, LEAF_FIXED};
  uint8_t *first = new_arena(ARENA_SIZE), *second = new_arena(ARENA_SIZE);

  put_all(order, COUNT(order), first);
  run_phase("off", stacks, COUNT(stacks), option.seconds / 8);
  check(jitsym_enable(session, 0), "jitsym_enable");
  print_paths();
  fflush(stdout);
  if (option.wait) {
    getchar();
  }
  run_phase("on", stacks, COUNT(stacks), option.seconds * 3 / 8);
  check(jitsym_disable(session, 0), "jitsym_disable");

  uint64_t old_wide = placed[WIDE].addr, old_fixed = placed[LEAF_FIXED].addr;
  remove_code(WIDE);
  remove_code(LEAF_FIXED);
  protect(second, 1);
  move_to(LEAF_EH, second);
  protect(second, 0);
  put_at(SECOND, first, (size_t)(old_wide - (uint64_t)(uintptr_t)first));
  put_at(THIRD, first, (size_t)(old_fixed - (uint64_t)(uintptr_t)first));
  run_phase("off", later, COUNT(later), option.seconds / 8);
  check(jitsym_enable(session, 0), "jitsym_enable");
  run_phase("on", later, COUNT(later), option.seconds * 3 / 8);
}

static void announce_name(const char *name, uint64_t addr, uint64_t size) {
  jitsym_code code;
  memset(&code, 0, sizeof code);
  code.struct_size = sizeof code;
  code.addr = addr;
  code.size = size;
  code.name = name;
  code.bytes = (const void *)(uintptr_t)addr;
  struct place *p = new_place(-1, name, addr, size, "register");
  check(jitsym_register(session, &code, NULL), "jitsym_register");
  p->done = now();
  retire_overlapped();
}

/* A name of a length that differs from one to the next, so that lines end at all offsets of a block. */
static char *long_name(const char *what, unsigned number) {
  char *name = malloc(400);
  if (!name) {
    fail("out of memory");
  }
  int size = snprintf(name, 400, "%s_%u ", what, number);
  for (unsigned i = 0; i < number * 37 % 300; i++) {
    name[size++] = (char)('a' + (number + i) % 26);
  }
  name[size++] = '.';
  name[size] = 0;
  return name;
}

/* Thousands of small functions, spread over the time, for those who watch the files grow; later ones lie across earlier. */
NOINLINE void scenario_many(void) {
  enum { STEP = 32, BURST = 50 };

  size_t size = ((size_t)option.count * STEP + STEP) / 4096 * 4096 + 4096;
  uint8_t *arena = new_arena(size);
  uint64_t base = (uint64_t)(uintptr_t)arena;
  struct timespec pause = {0, (long)(option.seconds * 1e9 * BURST / option.count)};

  memset(arena, 0xc3, size);
  if (mprotect(arena, size, PROT_READ | PROT_EXEC) != 0) {
    fail("mprotect");
  }
  for (unsigned i = 0; i < option.count; i++) {
    announce_name(long_name("many", i), base + (uint64_t)i * STEP, 24);
    if (i % 4 == 3) {
      announce_name(long_name("across", i), base + (uint64_t)(i - 2) * STEP + 16, 24);
    }
    if (i % 64 == 63) {
      remove_range(arena + (size_t)(i - 16) * STEP, 4 * STEP);
    }
    if (i % 256 == 255) {
      announce_name(long_name("over", i), base + (uint64_t)(i - 100) * STEP + 4, 40 * STEP);
    }
    if (i % BURST == 0) {
      nanosleep(&pause, NULL);
    }
  }
  check(jitsym_flush(session, 60000), "jitsym_flush");
}

/* ------------------------------------------------------------------------------------------------- the truth */

static void print_paths(void) {
  static const struct {
    uint32_t sink;
    const char *name;
  } sinks[] = {{JITSYM_SINK_MAP, "map"}, {JITSYM_SINK_JITDUMP, "jitdump"}};

  char path[JITSYM_DIR_MAX + 33];

  printf("pid\t%ld\n", (long)getpid());
  printf("source\t%s\n", source.path);
  for (int i = 0; i < COUNT(sinks); i++) {
    if (option.sinks & sinks[i].sink) {
      check(jitsym_path(session, sinks[i].sink, path, sizeof path), "jitsym_path");
      printf("path\t%s\t%s\n", sinks[i].name, path);
    }
  }
  fflush(stdout);
}

static void print_truth(void) {
  for (int i = 0; i < FUNCTION_COUNT; i++) {
    const struct function *f = &functions[i];
    printf("function\t%d\t%s\t%u\n", i, f->name, f->code.size);
    for (uint32_t l = 0; l < f->line_count; l++) {
      printf("row\t%d\t%u\t%u\t%u\n", i, f->lines[l].offset, f->lines[l].line, f->lines[l].column);
    }
    for (uint32_t r = 0; r < f->code.frame_count; r++) {
      const struct frame *frame = &f->code.frames[r].frame;
      printf("frame\t%d\t%u\t%u\t%u\t%u", i, f->code.frames[r].offset, frame->depth, frame->rbp, frame->rbx);
      for (int reg = 0; reg < DW_RA; reg++) {
        if (frame->saved[reg].at != 0 || frame->saved[reg].lost) {
          printf("\t%d:%u:%d", reg, frame->saved[reg].at, frame->saved[reg].lost);
        }
      }
      printf("\n");
    }
    printf("code\t%d\t", i);
    for (uint32_t b = 0; b < f->code.size; b++) {
      printf("%02x", f->code.data[b]);
    }
    printf("\n");
  }
  for (const struct place *p = places; p < places + place_count; p++) {
    printf("place\t%d\t%s\t%" PRIx64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\n",
           p->function, p->name, p->addr, p->size, p->from, p->done, p->to, p->how);
  }
  fclose(report_file);
  fputs(report, stdout);
  free(report);
}

static void print_stats(void) {
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  check(jitsym_get_stats(session, &stats), "jitsym_get_stats");

  const struct {
    const char *name;
    uint64_t value;
  } list[] = {
      {"sinks_running", stats.sinks_running},
      {"sinks_failed", stats.sinks_failed},
      {"registered", stats.registered},
      {"moved", stats.moved},
      {"unregistered", stats.unregistered},
      {"overwritten", stats.overwritten},
      {"live", stats.live},
      {"dropped", stats.dropped},
      {"unreadable", stats.unreadable},
      {"names_changed", stats.names_changed},
      {"jitdump_bytes", stats.jitdump_bytes},
      {"jitdump_records", stats.jitdump_records},
      {"map_bytes", stats.map_bytes},
      {"map_entries", stats.map_entries},
      {"map_rewrites", stats.map_rewrites},
      {"map_forgotten", stats.map_forgotten},
      {"write_errors", stats.write_errors},
  };

  for (int i = 0; i < COUNT(list); i++) {
    printf("stat\t%s\t%" PRIu64 "\n", list[i].name, list[i].value);
  }
}

static int option_value(const char *argument, const char *name, const char **value) {
  size_t size = strlen(name);
  if (strncmp(argument, name, size) != 0 || argument[size] != '=') {
    return 0;
  }
  *value = argument + size + 1;
  return 1;
}

static uint32_t choice(const char *value, const char *const *names, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(value, names[i]) == 0) {
      return i;
    }
  }
  fail("unknown value of an option");
  return 0;
}

static void parse_options(int argc, char **argv) {
  static const char *const layouts[] = {"gap", "packed"};
  static const char *const sinks[] = {"map", "jitdump", "both"};
  static const uint32_t bits[] = {JITSYM_SINK_MAP, JITSYM_SINK_JITDUMP, JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP};
  const char *value;

  for (int i = 1; i < argc; i++) {
    if (option_value(argv[i], "scenario", &option.scenario) || option_value(argv[i], "dir", &option.dir)) {
      continue;
    }
    if (option_value(argv[i], "layout", &value)) {
      option.layout = (enum layout)choice(value, layouts, 2);
    } else if (option_value(argv[i], "sinks", &value)) {
      option.sinks = bits[choice(value, sinks, 3)];
    } else if (option_value(argv[i], "seconds", &value)) {
      option.seconds = strtod(value, NULL) * test_pace();
    } else if (option_value(argv[i], "count", &value)) {
      option.count = (unsigned)strtoul(value, NULL, 10);
    } else if (option_value(argv[i], "wait", &value)) {
      option.wait = *value == '1';
    } else if (option_value(argv[i], "step", &value)) {
      option.step = *value == '1';
    } else if (option_value(argv[i], "inlined", &value)) {
      option.inlined = *value == '1';
    } else {
      fail("unknown option");
    }
  }
  if (snprintf(source.path, sizeof source.path, "%s/guest.toy", option.dir) >= (int)sizeof source.path) {
    fail("directory name too long");
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } scenarios[] = {
      {"stacks", scenario_stacks}, {"walk", scenario_walk}, {"move", scenario_move},
      {"reuse", scenario_reuse},   {"free", scenario_free}, {"many", scenario_many},
      {"late", scenario_late},
  };

  void (*scenario)(void) = NULL;
  jitsym_options options;

  parse_options(argc, argv);
  for (int i = 0; i < COUNT(scenarios); i++) {
    if (strcmp(option.scenario, scenarios[i].name) == 0) {
      scenario = scenarios[i].run;
    }
  }
  if (!scenario) {
    fail("unknown scenario");
  }
  report_file = open_memstream(&report, &report_size);
  if (!report_file) {
    fail("out of memory");
  }

  if (option.inlined && setenv("JITSYM_JITDUMP_INLINES", "1", 1) != 0) {
    fail("setenv");
  }
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  if (scenario == scenario_late) {
    options.flags = JITSYM_INIT_OFF_BY_DEFAULT | JITSYM_INIT_REMEMBER;
  } else {
    options.sinks = option.sinks;
  }
  check(jitsym_init(&options, &session), "jitsym_init");
  if (scenario != scenario_late) {
    print_paths();
  }
  compile_guest();
  scenario();

  check(jitsym_flush(session, 60000), "jitsym_flush");
  print_truth();
  print_stats();
  printf("end\n");
  fflush(stdout);
  /* Somebody may want to look at the process before it ends. */
  if (option.wait) {
    while (getchar() != EOF)
      ;
  }
  check(jitsym_close(session), "jitsym_close");
  return 0;
}
