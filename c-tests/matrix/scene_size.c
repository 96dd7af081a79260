/*
 * Scenarios of how much there is: one byte, a mebibyte, tens of thousands of functions, lines of source.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <unistd.h>

#include "matrix.h"

/*
 * A function that is nothing but `ret`. A loop calls it all the time, so that a good part of the samples is in it; the runs
 * tell the stack of those.
 */
static void one_byte(void) {
  struct region region = new_region(REGION_RWX, 4096);
  struct code ret, loop, caller;
  size_t at = put_code(&loop, CALLS_IN_LOOP, 1, "calls_one_byte", &region, 0, WITH_GAP);
  at = put_code(&ret, BARE_RET, 0, "one_byte", &region, at, WITH_GAP);
  put_code(&caller, MID_ROWS, 2, "caller_of_loop", &region, at, WITH_GAP);
  const struct stack stacks[] = {STACK(&loop, &ret), STACK(&caller, &loop, &ret)};
  run_stacks(stacks, COUNT(stacks), option.seconds);
}

/* Instructions that depend on one another, in no order, until the size is reached. */
static void put_work(uint8_t *bytes, size_t *at, size_t end) {
  static const uint8_t work[][4] = {
      {0x48, 0x8d, 0x40, 0x07}, /* lea rax, [rax + 7] */
      {0x48, 0xc1, 0xc0, 0x03}, /* rol rax, 3 */
      {0x48, 0x6b, 0xc0, 0x05}, /* imul rax, rax, 5 */
      {0x48, 0x83, 0xf0, 0x11}, /* xor rax, 17 */
  };
  for (; *at + 4 <= end; *at += 4) {
    memcpy(bytes + *at, work[random_in(0, COUNT(work))], 4);
  }
}

/* All of it is run through, again and again, so that samples are everywhere. */
static void one_mebibyte(void) {
  enum { SIZE = 1 << 20 };

  struct region region = new_region(REGION_RWX, 2 * SIZE);
  struct function *function = compile(LEAF_FP, 0, "one_mebibyte", NULL);
  /* push rbp; mov rbp, rsp */
  static const uint8_t prologue[] = {0x55, 0x48, 0x89, 0xe5};
  /* dec rdi; jnz back; pop rbp; ret */
  uint8_t epilogue[] = {0x48, 0xff, 0xcf, 0x0f, 0x85, 0, 0, 0, 0, 0x5d, 0xc3};
  uint8_t *bytes = malloc(SIZE);
  size_t at = sizeof prologue, end = SIZE - sizeof epilogue;
  struct code large, caller, leaf;
  if (!bytes) {
    fail("out of memory");
  }
  memcpy(bytes, prologue, sizeof prologue);
  put_work(bytes, &at, end);
  memset(bytes + at, 0x90, end - at);
  if (option.step) {
    /* jmp, from near the beginning to near the end: not all of it can be stepped through. */
    const size_t near = 4096;
    int32_t over = (int32_t)(SIZE - 2 * near) - 5;
    bytes[near] = 0xe9;
    memcpy(bytes + near + 1, &over, sizeof over);
  }
  int32_t back = (int32_t)sizeof prologue - (int32_t)(end + 9);
  memcpy(epilogue + 5, &back, sizeof back);
  memcpy(bytes + end, epilogue, sizeof epilogue);
  function->unwind.epilogue_begin = SIZE - 1;
  function->unwind.epilogue_end = SIZE;

  write_bytes(&large, function, bytes, SIZE, "one_mebibyte", &region, 64);
  free(bytes);
  announce(&large);
  /* A round takes half a millisecond or so. */
  large.speed = 2e-6;
  at = 64 + SIZE + gap_behind(WITH_GAP);
  at = put_code(&caller, MID_FP, 1, "caller_of_large", &region, at, WITH_GAP);
  put_code(&leaf, LEAF_FP, 2, "small_one_behind", &region, at, WITH_GAP);
  const struct stack stacks[] = {STACK(&large), STACK(&caller, &large), STACK(&caller, &caller, &leaf)};
  run_stacks(stacks, COUNT(stacks), option.seconds);
}

/* Many are registered while a hundred are hot. */
static void many(void) {
  enum { HOT = 100, ROOM = 320 };

  const unsigned bursts = option.step ? 5 : 100;

  struct region region = new_region(REGION_RWX, (size_t)(option.count + 1) * ROOM);
  static struct code hot[HOT];
  unsigned hot_count = 0, step = option.count / HOT;
  size_t at = 0;
  if (step == 0) {
    fail("count is too small");
  }
  for (unsigned i = 0; i < option.count; i++) {
    struct code cold, *code = i % step == 0 && hot_count < HOT ? &hot[hot_count++] : &cold;
    enum kind kind = hot_count % 4 == 1 ? MID_FP : LEAF_FP;
    at = put_code(code, kind, i + 1, name_of(code == &cold ? "cold" : "hot", i), &region, at, WITH_GAP);
    if (code == &cold) {
      free(cold.function);
    }
    if (hot_count >= 2 && i % (option.count / bursts) == 0) {
      run_any(hot, hot_count, option.seconds / bursts);
    }
  }
}

/* Line tables whose hot line is the last one. */
static void last_line(void) {
  enum { CODES = 8 };

  static struct source source;
  static struct code codes[CODES];
  struct region region = new_region(REGION_RWX, 1 << 16);
  size_t at = 0;
  snprintf(source.path, sizeof source.path, "%s/matrix-%ld.toy", option.dir ? option.dir : "/tmp", (long)getpid());
  truth_path("source", source.path);
  for (unsigned i = 0; i < CODES; i++) {
    enum kind kind = i % 2 ? MID_FP : LAST_LINE_HOT;
    const char *name = name_of(i % 2 ? "caller_with_lines" : "last_line_is_hot", i);
    struct function *function = compile(kind, i + 1, name, &source);
    write_code(&codes[i], function, kind, name, &region, at);
    announce(&codes[i]);
    at += function->code.size + gap_behind(WITH_GAP);
    if (kind == LAST_LINE_HOT) {
      truth_hot_line(codes[i].number, function->lines[function->line_count - 1].line);
    }
  }
  write_source(&source);
  run_any(codes, CODES, option.seconds);
}

const struct scenario size_scenarios[] = {
    {"one-byte", one_byte, "dwarf", WITH_GAP, 0},
    {"one-mebibyte", one_mebibyte, "fp", WITH_GAP, 0},
    {"many", many, "fp", WITH_GAP, 0},
    {"last-line", last_line, "fp", WITH_GAP, 0},
    SCENARIOS_END,
};
