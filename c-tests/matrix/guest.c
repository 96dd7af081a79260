/*
 * The functions of the guest, made from the parts that all ground-truth programs share, and the C functions in its stacks.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "guest_eh.h"
#include "matrix.h"

/* What the comparator of qsort finds in place of arguments: one thread at a time sorts. */
static struct arguments pending;

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

struct code sort_code = {.kind = KINDS, .name = "sort_in_c", .is_c = 1, .calls_by_libc = 1};
struct code call_code = {.kind = KINDS, .name = "call_in_c", .is_c = 1};

static void bare_ret(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  f->unwind.cfa_offset = 8;
  line(f, "fn: end");
  x_ret(&f->code);
}

/* Calls the next of the path `rdi` times. */
static void calls_in_loop(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  x_next(&f->code);
  line(f, "  call the next again and again from");
  /* call rax; dec rdi; jnz */
  PUT(&f->code, 0xff, 0xd0, 0x48, 0xff, 0xcf, 0x75, 0xf9);
  line(f, "end");
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

/* Its return address lies where it ends. */
static void ends_with_call(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_ROWS;
  x_sub_rsp(&f->code, 8);
  row(f, DW_RSP, 16);
  x_call_next(&f->code);
}

static void drops_frame(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  f->unwind.cfa_offset = 8;
  x_burn(&f->code);
  /* add rsp, 16 */
  PUT(&f->code, 0x48, 0x83, 0xc4, 16);
  x_ret(&f->code);
}

/* A loop of the last line follows lines that take no time: whoever loses the end of a line table loses all of it. */
static void last_line_hot(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  line(f, "  begin");
  x_zero_eax(&f->code);
  line(f, "  go on");
  x_zero_eax(&f->code);
  line(f, "  burn; end");
  x_burn(&f->code);
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

static void (*const emitters[KINDS])(struct function *) = {
    [LEAF_FP] = leaf_fp,
    [LEAF_FIXED] = leaf_fixed,
    [LEAF_ROWS] = leaf_rows,
    [LEAF_EH] = leaf_eh,
    [STEPS_FP] = steps_fp,
    [STEPS_ROWS] = steps_rows,
    [LAST_LINE_HOT] = last_line_hot,
    [MID_FP] = mid_fp,
    [MID_FP_EARLY] = mid_fp_early,
    [MID_FP_SAVES] = mid_fp_saves,
    [MID_ROWS] = mid_rows,
    [MID_REALIGN] = mid_realign,
    [MID_EH] = mid_eh,
    [TRACE_ENTRY] = trace_entry,
    [TRACE_LEAF] = trace_leaf,
    [TRACE_MID] = trace_mid,
    [COMPARE] = comparator,
    [BARE_RET] = bare_ret,
    [CALLS_IN_LOOP] = calls_in_loop,
    [ENDS_WITH_CALL] = ends_with_call,
    [DROPS_FRAME] = drops_frame,
};

/* Instructions that are never reached, behind the end, so that no frame changes. */
static void put_salt(struct function *f, unsigned salt) {
  PUT(&f->code, 0xb8);
  put_u32(&f->code, salt);
  for (unsigned i = salt * 7 % 19; i > 0; i--) {
    PUT(&f->code, 0xcc);
  }
}

struct function *compile(enum kind kind, unsigned salt, const char *name, struct source *source) {
  struct function *f = calloc(1, sizeof *f);
  if (!f) {
    fail("out of memory");
  }
  f->name = name;
  f->source = source;
  f->arguments = &pending;
  f->unwind.struct_size = sizeof f->unwind;
  x_begin(&f->code, 8);
  emitters[kind](f);
  if (salt != 0) {
    put_salt(f, salt);
  }
  return f;
}
