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
  rounds = 1 + (uint64_t)((double)ns * leaf->speed);

  begin = cpu_time();
  from = now();
  call_guest(rounds, path);
  to = now();
  took = cpu_time() - begin;
  truth_run(from, to, text);

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
  do {
    run_stack(&stacks[random_in(0, count)], slice());
  } while (cpu_time() < end);
}

/* One of the codes whose kind lies in [from, to), of which there is at least one. */
static struct code *any(struct code *codes, unsigned count, enum kind from, enum kind to) {
  for (;;) {
    struct code *code = &codes[random_in(0, count)];
    if (code->kind >= from && code->kind < to) {
      return code;
    }
  }
}

void run_any(struct code *codes, unsigned count, double seconds) {
  uint64_t end = cpu_time() + (uint64_t)(seconds * 1e9);
  do {
    struct stack stack;
    unsigned depth = 0;
    for (uint64_t callers = random_in(1, 6); callers > 0; callers--) {
      stack.path[depth++] = any(codes, count, MID_FP, MID_KINDS);
    }
    stack.path[depth++] = any(codes, count, LEAF_FP, LEAF_KINDS);
    stack.path[depth] = NULL;
    run_stack(&stack, slice());
  } while (cpu_time() < end);
}
