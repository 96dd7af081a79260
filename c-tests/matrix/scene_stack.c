/*
 * Scenarios of what stands in the stack: frames of every kind, deep recursion, C in between.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "matrix.h"

enum { REGION_SIZE = 1 << 16, CODES = 24, DEPTH = 100 };

static struct code codes[CODES];

/* Code of these kinds in turn, and any of it run. */
static void run_kinds(const enum kind *kinds, unsigned count, const char *name) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    at = put_code(&codes[i], kinds[i % count], i + 1, name_of(name, i), &region, at, WITH_GAP);
  }
  run_any(codes, CODES, option.seconds);
}

static void frame_pointers(void) {
  static const enum kind kinds[] = {MID_FP, LEAF_FP, MID_FP_SAVES};
  run_kinds(kinds, COUNT(kinds), "with_frame_pointer");
}

static void row_tables(void) {
  static const enum kind kinds[] = {MID_ROWS, LEAF_ROWS, MID_REALIGN, STEPS_ROWS};
  run_kinds(kinds, COUNT(kinds), "with_rows");
}

static void ready_eh_frame(void) {
  static const enum kind kinds[] = {MID_EH, LEAF_EH};
  run_kinds(kinds, COUNT(kinds), "with_eh_frame");
}

/* Of which nothing is said but where it is and what it is called. */
static void no_unwind(void) {
  static const enum kind kinds[] = {MID_ROWS, LEAF_ROWS, MID_FP, LEAF_FP};
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    struct function *function = compile(kinds[i % COUNT(kinds)], i + 1, name_of("no_unwind", i), NULL);
    function->unwind.kind = JITSYM_UNWIND_NONE;
    write_code(&codes[i], function, kinds[i % COUNT(kinds)], function->name, &region, at);
    announce(&codes[i]);
    at += function->code.size;
  }
  run_any(codes, CODES, option.seconds);
}

/* A frame that is as large in all of the code, as traces have it: a stub makes it and jumps there. */
static void fixed_frame(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  struct code *entry = &codes[0], *trace = &codes[1], *last = &codes[2], *leaf = &codes[3], *caller = &codes[4];
  size_t at = put_code(entry, TRACE_ENTRY, 1, "trace_entry", &region, 0, WITH_GAP);
  at = put_code(trace, TRACE_MID, 2, "TRACE_7 guest.toy:3", &region, at, WITH_GAP);
  at = put_code(last, TRACE_LEAF, 3, "TRACE_8 guest.toy:5", &region, at, WITH_GAP);
  at = put_code(leaf, LEAF_FIXED, 4, "no_frame_at_all", &region, at, WITH_GAP);
  at = put_code(caller, MID_ROWS, 5, "caller_of_traces", &region, at, WITH_GAP);
  const struct stack stacks[] = {
      STACK(caller, entry, last),
      STACK(caller, entry, trace, leaf),
      STACK(entry, trace, caller, entry, trace, leaf),
      STACK(caller, entry, trace, entry, last),
  };
  run_stacks(stacks, COUNT(stacks), option.seconds);
}

/* Called right from C, and by nobody else. */
static void leaf_functions(void) {
  static const enum kind kinds[] = {LEAF_FP, LEAF_FIXED, LEAF_ROWS, LEAF_EH, STEPS_ROWS, STEPS_FP};
  static struct stack stacks[CODES];
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    at = put_code(&codes[i], kinds[i % COUNT(kinds)], i + 1, name_of("leaf", i), &region, at, WITH_GAP);
    stacks[i].path[0] = &codes[i];
  }
  run_stacks(stacks, CODES, option.seconds);
}

/* `depth` callers of the same code below a leaf. */
static struct stack tower(struct code *caller, unsigned depth, struct code *leaf) {
  struct stack stack;
  memset(&stack, 0, sizeof stack);
  for (unsigned i = 0; i < depth; i++) {
    stack.path[i] = caller;
  }
  stack.path[depth] = leaf;
  return stack;
}

static void recursion(enum kind caller, enum kind leaf) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = put_code(&codes[0], caller, 1, "recursive", &region, 0, WITH_GAP);
  put_code(&codes[1], leaf, 2, "end_of_recursion", &region, at, WITH_GAP);
  const struct stack stacks[] = {
      tower(&codes[0], DEPTH, &codes[1]),
      tower(&codes[0], DEPTH / 2, &codes[1]),
      tower(&codes[0], 10, &codes[1]),
      tower(&codes[0], 1, &codes[1]),
  };
  run_stacks(stacks, COUNT(stacks), option.seconds);
}

static void deep_recursion(void) {
  recursion(MID_FP, LEAF_FP);
}

static void deep_recursion_rows(void) {
  recursion(MID_ROWS, LEAF_ROWS);
}

/* C calls back into the guest: qsort, whose frames only tables can tell, and a function of the host. */
static void callbacks(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  struct code *compare = &codes[0], *leaf = &codes[1], *outer = &codes[2], *rows = &codes[3];
  size_t at = put_code(compare, COMPARE, 1, "compare", &region, 0, WITH_GAP);
  at = put_code(leaf, LEAF_ROWS, 2, "compare_leaf", &region, at, WITH_GAP);
  at = put_code(outer, MID_FP, 3, "sorts", &region, at, WITH_GAP);
  at = put_code(rows, MID_ROWS, 4, "calls", &region, at, WITH_GAP);
  const struct stack stacks[] = {
      STACK(outer, &sort_code, compare, leaf),
      STACK(outer, rows, &sort_code, compare, rows, leaf),
      STACK(rows, &call_code, outer, leaf),
      STACK(outer, &call_code, rows, &sort_code, compare, &call_code, leaf),
  };
  run_stacks(stacks, COUNT(stacks), option.seconds);
}

/* The same without the C library in between. */
static void host_calls(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = put_code(&codes[0], MID_FP, 1, "calls_host", &region, 0, WITH_GAP);
  at = put_code(&codes[1], LEAF_FP, 2, "called_by_host", &region, at, WITH_GAP);
  const struct stack stacks[] = {
      STACK(&codes[0], &call_code, &codes[1]),
      STACK(&codes[0], &codes[0], &call_code, &codes[0], &call_code, &codes[1]),
  };
  run_stacks(stacks, COUNT(stacks), option.seconds);
}

/* The return address is that of what follows: other code, and where memory ends something else. */
static void ends_with_calls(void) {
  enum { CALLERS = 4, ENDS = 300 };

  static struct code ends[ENDS];
  static struct stack stacks[ENDS];
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  struct code *drops = &codes[CALLERS];
  size_t at = put_code(drops, DROPS_FRAME, 0, "drops_frame", &region, REGION_SIZE / 2, NO_GAP);
  for (unsigned i = 0; i < CALLERS; i++) {
    at = put_code(&codes[i], i % 2 ? MID_FP : MID_ROWS, i + 1, name_of("caller", i), &region, at, NO_GAP);
  }
  for (unsigned i = 0; i < ENDS; i++) {
    struct function *function = compile(ENDS_WITH_CALL, 0, name_of("ends_with_call", i), NULL);
    write_code(&ends[i], function, ENDS_WITH_CALL, function->name, &region,
               i == ENDS - 1 ? REGION_SIZE - function->code.size : at);
    announce(&ends[i]);
    at += function->code.size;
    stacks[i] = (struct stack)STACK(&codes[i % CALLERS], &codes[(i + 1) % CALLERS], &ends[i], drops);
  }
  run_stacks(stacks, ENDS, option.seconds);
}

const struct scenario stack_scenarios[] = {
    {"frame-pointers", frame_pointers, "fp", WITH_GAP, 0},
    {"row-tables", row_tables, "dwarf", WITH_GAP, 0},
    {"fixed-frame", fixed_frame, "dwarf", WITH_GAP, 0},
    {"ready-eh-frame", ready_eh_frame, "dwarf", WITH_GAP, 0},
    {"no-unwind", no_unwind, "none", NO_GAP, 0},
    {"leaf-functions", leaf_functions, "dwarf", WITH_GAP, 0},
    {"deep-recursion", deep_recursion, "fp", WITH_GAP, 0},
    {"deep-recursion-rows", deep_recursion_rows, "dwarf", WITH_GAP, 0},
    {"callbacks", callbacks, "dwarf", WITH_GAP, 0},
    {"host-calls", host_calls, "fp", WITH_GAP, 0},
    {"ends-with-call", ends_with_calls, "dwarf", NO_GAP, 0},
    SCENARIOS_END,
};
