/*
 * Runs stacks of functions in slices of random length, so that no sampling clock can beat with them, and notes each slice.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "matrix.h"

/* The innermost first. */
static void describe(const struct stack *stack, unsigned depth, char *text, size_t room) {
  size_t size = 0;
  text[0] = 0;
  for (unsigned i = depth; i-- > 0;) {
    const struct code *code = stack->path[i];
    if (code->is_c) {
      size += (size_t)snprintf(text + size, room - size, "%s*%s,", code->calls_by_libc ? "?," : "", code->name);
    } else if (code->kind != TRACE_ENTRY) {
      size += (size_t)snprintf(text + size, room - size, "%u,", code->number);
    }
    if (size + 2 >= room) {
      fail("stack too deep");
    }
  }
  strcpy(text + size, "?");
}

NOINLINE uint64_t call_guest(uint64_t rounds, const uint64_t *path) {
  uint64_t result = ((jit_function *)(uintptr_t)path[0])(rounds, path + 1);
  __asm__ volatile("" ::: "memory");
  return result + 1;
}

uint64_t rounds_of(uint64_t rounds) {
  return option.step ? 2 : rounds;
}

int goes_on(uint64_t end, unsigned turns, unsigned stepped) {
  return option.step ? turns < stepped : cpu_time() < end;
}

static uint64_t address_of(const struct code *code) {
  if (code == &sort_code) {
    return (uint64_t)(uintptr_t)sort_in_c;
  }
  return code->is_c ? (uint64_t)(uintptr_t)call_in_c : code->addr;
}

void run_stack(const struct stack *stack, uint64_t ns) {
  uint64_t path[PATH_LEN], rounds, begin, from, to, took;
  char text[PATH_LEN * 12];
  unsigned depth = 0;

  for (; stack->path[depth]; depth++) {
    path[depth] = address_of(stack->path[depth]);
  }
  describe(stack, depth, text, sizeof text);
  struct code *leaf = stack->path[depth - 1];
  if (leaf->speed == 0) {
    leaf->speed = 0.05;
  }
  rounds = rounds_of(1 + (uint64_t)((double)ns * leaf->speed));

  begin = cpu_time();
  from = now();
  call_guest(rounds, path);
  to = now();
  took = cpu_time() - begin;
  truth_run(from, to, text);
  if (option.step) {
    return;
  }

  /* A slice that was much too short says little about the speed. */
  if (took * 4 < ns) {
    leaf->speed *= 4;
  } else {
    leaf->speed = (leaf->speed + (double)rounds / (double)took) / 2;
  }
}

static uint64_t slice(void) {
  return random_in(500000, 3000000);
}

void run_stacks(const struct stack *stacks, unsigned count, double seconds) {
  uint64_t end = cpu_time() + (uint64_t)(seconds * 1e9);
  unsigned turns = 0;
  do {
    run_stack(&stacks[option.step ? turns : random_in(0, count)], slice());
  } while (goes_on(end, ++turns, count));
}

/* Codes of a range of kinds, of which there is at least one. */
struct choice {
  struct code *codes;
  unsigned count;
  enum kind from, to;
  /* Stepped: they are taken in turn. How many of them were, and which is the next to look at. */
  unsigned taken, next;
};

static int is_of(const struct choice *choice, unsigned index) {
  return choice->codes[index].kind >= choice->from && choice->codes[index].kind < choice->to;
}

static unsigned number_of(const struct choice *choice) {
  unsigned number = 0;
  for (unsigned i = 0; i < choice->count; i++) {
    number += is_of(choice, i);
  }
  return number;
}

static struct code *any(struct choice *choice) {
  for (;;) {
    unsigned index = option.step ? choice->next++ % choice->count : (unsigned)random_in(0, choice->count);
    if (is_of(choice, index)) {
      choice->taken++;
      return &choice->codes[index];
    }
  }
}

void run_any(struct code *codes, unsigned count, double seconds) {
  uint64_t end = cpu_time() + (uint64_t)(seconds * 1e9);
  struct choice callers = {codes, count, MID_FP, MID_KINDS, 0, 0}, leaves = {codes, count, LEAF_FP, LEAF_KINDS, 0, 0};
  do {
    struct stack stack;
    unsigned depth = 0;
    for (uint64_t more = random_in(1, 6); more > 0; more--) {
      stack.path[depth++] = any(&callers);
    }
    stack.path[depth++] = any(&leaves);
    stack.path[depth] = NULL;
    run_stack(&stack, slice());
  } while (option.step ? callers.taken < number_of(&callers) || leaves.taken < number_of(&leaves) : cpu_time() < end);
}
