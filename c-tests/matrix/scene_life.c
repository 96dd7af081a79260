/*
 * Scenarios of code that changes while it is watched: moved, removed and replaced, told of late.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "matrix.h"

enum { REGION_SIZE = 1 << 16, CODES = 12, ROUNDS = 8 };

/*
 * At one address the frame is in different states at different times. libunwind remembers the first one: perf builds with it
 * cut some of these stacks off, whatever a producer does.
 */
static void frames_change_with_time(void) {
  truth_option("stale-frames", "yes");
}

static const enum kind mixed[CODES] = {
    MID_FP, LEAF_FP, MID_ROWS, LEAF_FIXED, MID_EH, LEAF_ROWS, MID_REALIGN, LEAF_EH, MID_FP_SAVES, STEPS_ROWS, MID_FP, LEAF_FP,
};

static struct code codes[CODES];

static size_t put_mixed(const struct region *region, size_t at) {
  for (unsigned i = 0; i < CODES; i++) {
    at = put_code(&codes[i], mixed[i], i + 1, name_of("moved", i), region, at, WITH_GAP);
  }
  return at;
}

/* All of the code goes from one region to another and back; there it comes to lie where other code of it was. */
static void moves(void) {
  struct region regions[2] = {new_region(REGION_RWX, REGION_SIZE), new_region(REGION_RWX, REGION_SIZE)};
  frames_change_with_time();
  put_mixed(&regions[0], 0);
  run_any(codes, CODES, option.seconds / (ROUNDS + 1));
  for (unsigned round = 1; round <= ROUNDS; round++) {
    const struct region *region = &regions[round % 2];
    size_t at = 64 * round;
    for (unsigned n = 0; n < CODES; n++) {
      struct code *code = &codes[(n + round) % CODES];
      move_code(code, region, at);
      at += code->size + gap_behind(WITH_GAP);
    }
    run_any(codes, CODES, option.seconds / (ROUNDS + 1));
  }
}

/* A code cache that is flushed at once and filled anew, sometimes in new memory at the same place. */
static void cache_flush(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  frames_change_with_time();
  for (unsigned round = 0; round < ROUNDS; round++) {
    size_t at = 16 * round;
    for (unsigned i = 0; i < CODES; i++) {
      unsigned number = round * CODES + i;
      at = put_code(&codes[i], mixed[(i + round) % CODES], number + 1, name_of("cached", number), &region, at, WITH_GAP);
    }
    run_any(codes, CODES, option.seconds / ROUNDS);
    remove_all(codes, CODES, &region);
    if (round % 2) {
      map_anew(&region);
    }
  }
}

/*
 * A compacting collector: all code is moved by less than its size, up (the highest first) and down (the lowest first), so
 * that the new place of each overlaps its old one.
 */
static void moves_overlapping(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t begin = REGION_SIZE / 2;
  frames_change_with_time();
  put_mixed(&region, begin);
  run_any(codes, CODES, option.seconds / (ROUNDS + 1));
  for (unsigned round = 0; round < ROUNDS; round++) {
    int up = round % 4 < 2;
    for (unsigned n = 0; n < CODES; n++) {
      struct code *code = &codes[up ? CODES - 1 - n : n];
      size_t offset = (size_t)(code->addr - (uint64_t)(uintptr_t)region.run);
      move_code(code, &region, up ? offset + 5 : offset - 5);
    }
    run_any(codes, CODES, option.seconds / (ROUNDS + 1));
  }
}

/* One place holds one piece of code after another, each for a slice or two. */
static void reuse_by(const enum kind *kinds, unsigned count) {
  enum { PLACES = 3 };

  struct region region = new_region(REGION_RWX, REGION_SIZE);
  static struct function *functions[16];
  struct code caller, at[PLACES];
  uint64_t end = cpu_time() + (uint64_t)(option.seconds * 1e9);
  double speed[16] = {0};

  put_code(&caller, MID_FP, 1, "caller_of_reused", &region, 0, WITH_GAP);
  for (unsigned i = 0; i < count; i++) {
    functions[i] = compile(kinds[i], i + 2, "", NULL);
  }
  for (unsigned n = 0; goes_on(end, n, 6 * count * PLACES); n++) {
    struct code *code = &at[n % PLACES];
    unsigned which = n / PLACES % count;
    if (n >= PLACES) {
      remove_code(code);
    }
    write_code(code, functions[which], kinds[which], name_of("reused", n), &region, 1024 + n % PLACES * 1024);
    code->speed = speed[which];
    announce(code);
    const struct stack stack = STACK(&caller, code);
    run_stack(&stack, random_in(500000, 1500000));
    speed[which] = code->speed;
  }
}

/* The frame is in the same state at each address, whatever lies there: libunwind remembers it and does not ask again. */
static void reuse(void) {
  static const enum kind kinds[] = {LEAF_FP, LEAF_FP, LEAF_FP, LEAF_FP};
  reuse_by(kinds, COUNT(kinds));
}

static void reuse_other_frames(void) {
  static const enum kind kinds[] = {LEAF_FP, LEAF_ROWS, LEAF_FIXED, STEPS_ROWS, LEAF_EH};
  frames_change_with_time();
  reuse_by(kinds, COUNT(kinds));
}

/* Newer code over the head of older that nobody said was gone. */
static void overwrite(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  struct code caller, code = {0};
  frames_change_with_time();
  put_code(&caller, MID_FP, 1, "caller_of_overwritten", &region, 0, WITH_GAP);
  for (unsigned n = 0; n < 20; n++) {
    if (n > 0) {
      truth_code_ends(code.number, now());
    }
    put_code(&code, LEAF_FP, n + 2, name_of("newest", n), &region, 1024 - 3 * n, WITH_GAP);
    const struct stack stack = STACK(&caller, &code);
    /* The hottest is one that is overwritten. */
    run_stacks(&stack, 1, option.seconds / 21 * (n == 0 ? 2 : 1));
  }
}

/* Code that runs before the library is told of it: what was sampled before cannot have a name, what comes later has. */
static void late(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  struct code caller;
  size_t at = put_code(&caller, MID_FP, 1, "caller_of_late", &region, 0, WITH_GAP);
  for (unsigned i = 0; i < CODES; i++) {
    struct function *function = compile(LEAF_FP, i + 2, name_of("late", i), NULL);
    uint64_t path[] = {caller.addr, 0}, from, end;
    unsigned turns = 0;
    write_code(&codes[i], function, LEAF_FP, function->name, &region, at);
    at += function->code.size + gap_behind(WITH_GAP);
    path[1] = codes[i].addr;
    from = now();
    end = cpu_time() + (uint64_t)(option.seconds * 0.25e9 / CODES);
    do {
      call_guest(rounds_of(100000), path);
    } while (goes_on(end, ++turns, 2));
    announce(&codes[i]);
    truth_unnamed(from, now());
    const struct stack stack = STACK(&caller, &codes[i]);
    run_stacks(&stack, 1, option.seconds * 0.75 / CODES);
  }
}

const struct scenario life_scenarios[] = {
    {"moves", moves, "dwarf", WITH_GAP, 0},
    {"moves-overlapping", moves_overlapping, "dwarf", WITH_GAP, 0},
    {"cache-flush", cache_flush, "dwarf", WITH_GAP, 0},
    {"reuse", reuse, "fp", WITH_GAP, 0},
    {"reuse-other-frames", reuse_other_frames, "dwarf", WITH_GAP, 0},
    {"overwrite", overwrite, "fp", WITH_GAP, 0},
    {"late", late, "fp", WITH_GAP, 0},
    SCENARIOS_END,
};
