/*
 * The functions of the guest in the ground-truth programs: each one's code, its unwind description, which holds at every
 * byte, and the lines of source that it comes from.
 *
 * Every function takes a number of rounds to burn, and a path: the functions that it and its callees are to call. So any
 * function can stand anywhere in a stack, and the stack is known by construction.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GUEST_CODE_H
#define GUEST_CODE_H

#include "guest_function.h"

static inline void leaf_fp(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  line(f, "  burn");
  x_burn(&f->code);
  line(f, "end");
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

/* The last line covers all of the time: whoever loses the end of a line table loses it. */
static inline void leaf_fixed(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  f->unwind.cfa_offset = 8;
  line(f, "fn: burn; end");
  x_burn(&f->code);
  x_ret(&f->code);
}

static inline void leaf_rows(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_ROWS;
  line(f, "fn");
  x_push_rbx(&f->code);
  row(f, DW_RSP, 16), row_saved(f, DW_RBX, -16);
  x_sub_rsp(&f->code, 32);
  row(f, DW_RSP, 48);
  x_zero_rbx(&f->code);
  line(f, "  burn");
  x_burn(&f->code);
  line(f, "end");
  x_add_rsp(&f->code, 32);
  row(f, DW_RSP, 16);
  x_pop_rbx(&f->code);
  row(f, DW_RSP, 8), row_restored(f);
  x_ret(&f->code);
}

/* Burns in every state that a frame pointer's frame goes through: none of them is a matter of a single instruction. */
static inline void steps_fp(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn, no frame: burn");
  x_burn_again(&f->code);
  line(f, "  frame pointer pushed: burn");
  x_push_rbp(&f->code);
  f->unwind.fp_pushed = f->code.size;
  x_burn_again(&f->code);
  line(f, "  frame pointer set: burn");
  x_mov_rbp_rsp(&f->code);
  f->unwind.fp_set = f->code.size;
  x_burn_again(&f->code);
  line(f, "  register saved: burn");
  x_push_rbx(&f->code);
  f->unwind.saved_from = f->code.size;
  x_zero_rbx(&f->code);
  x_burn_again(&f->code);
  line(f, "  frame gone: burn");
  x_pop_rbx(&f->code);
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_burn_again(&f->code);
  line(f, "end");
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
  f->saved[0][0].reg = DW_RBX;
  f->saved[0][0].offset = -24;
  f->unwind.saved = f->saved[0];
  f->unwind.saved_count = 1;
}

static inline void steps_rows(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_ROWS;
  line(f, "fn, no frame: burn");
  x_burn_again(&f->code);
  x_push_rbp(&f->code);
  row(f, DW_RSP, 16), row_saved(f, DW_RBP, -16);
  x_zero_rbp(&f->code);
  line(f, "  pushed: burn");
  x_burn_again(&f->code);
  x_push_rbx(&f->code);
  row(f, DW_RSP, 24), row_saved(f, DW_RBX, -24);
  x_zero_rbx(&f->code);
  line(f, "  pushed twice: burn");
  x_burn_again(&f->code);
  x_sub_rsp(&f->code, 40);
  row(f, DW_RSP, 64);
  line(f, "  whole frame: burn");
  x_burn_again(&f->code);
  x_add_rsp(&f->code, 40);
  row(f, DW_RSP, 24);
  x_pop_rbx(&f->code);
  row(f, DW_RSP, 16), row_restored(f);
  line(f, "  popped: burn");
  x_burn_again(&f->code);
  x_pop_rbp(&f->code);
  row(f, DW_RSP, 8), row_restored(f);
  line(f, "  popped twice: burn; end");
  x_burn_again(&f->code);
  x_ret(&f->code);
}

/* Burns near its two ends, with a hole between them that other code can be put over while both ends stay named. */
enum { WIDE_HOLE = 384 };

static inline void wide(struct function *f) {
  uint32_t jump;
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn: burn at the head");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  x_burn_again(&f->code);
  PUT(&f->code, 0xe9, 0, 0, 0, 0);
  jump = f->code.size;
  for (int i = 0; i < WIDE_HOLE; i++) {
    PUT(&f->code, 0xcc);
  }
  set_u32(&f->code, jump - 4, f->code.size - jump);
  line(f, "  burn at the tail; end");
  x_burn_again(&f->code);
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

static inline void mid_fp(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  line(f, "  call the next from");
  x_call_next(&f->code);
  line(f, "end");
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

/* Returns in its middle: behind the return instruction the frame is standing again. */
static inline void mid_fp_early(struct function *f) {
  uint32_t jump, leave;
  struct frame standing;
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  jump = x_jmp_forward(&f->code);
  standing = f->code.frame;
  line(f, "end");
  leave = f->code.size;
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
  set_frame(&f->code, standing);
  x_land(&f->code, jump);
  line(f, "  call the next from");
  x_call_next(&f->code);
  x_jmp_back(&f->code, leave);
}

/* Saves rbx and destroys it: whoever counts its frame from rbx is found only if the saved value is. */
static inline void mid_fp_saves(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  f->unwind.fp_pushed = 1;
  f->unwind.fp_set = f->code.size;
  x_push_rbx(&f->code);
  f->unwind.saved_from = f->code.size;
  x_sub_rsp(&f->code, 8);
  x_zero_rbx(&f->code);
  line(f, "  call the next from");
  x_call_next(&f->code);
  line(f, "end");
  x_add_rsp(&f->code, 8);
  x_pop_rbx(&f->code);
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
  f->saved[0][0].reg = DW_RBX;
  f->saved[0][0].offset = -24;
  f->unwind.saved = f->saved[0];
  f->unwind.saved_count = 1;
}

/* No frame pointer: rbp is saved and destroyed, so that a reader that follows rbp loses the stack. */
static inline void mid_rows(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_ROWS;
  line(f, "fn");
  x_push_rbp(&f->code);
  row(f, DW_RSP, 16), row_saved(f, DW_RBP, -16);
  x_push_rbx(&f->code);
  row(f, DW_RSP, 24), row_saved(f, DW_RBX, -24);
  x_sub_rsp(&f->code, 24);
  row(f, DW_RSP, 48);
  x_zero_rbp(&f->code);
  x_zero_rbx(&f->code);
  line(f, "  call the next from");
  x_call_next(&f->code);
  line(f, "end");
  x_add_rsp(&f->code, 24);
  row(f, DW_RSP, 24);
  x_pop_rbx(&f->code);
  row(f, DW_RSP, 16), row_restored(f);
  x_pop_rbp(&f->code);
  row(f, DW_RSP, 8), row_restored(f);
  x_ret(&f->code);
}

/* A frame pointer that is saved and set, and has anything after that: the frame is found by the stack pointer alone. */
static inline void mid_fixed(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  f->unwind.cfa_offset = 48;
  line(f, "fn");
  x_push_rbp(&f->code);
  f->unwind.fp_pushed = f->code.size;
  x_mov_rbp_rsp(&f->code);
  x_sub_rsp(&f->code, 32);
  f->unwind.sp_set = f->code.size;
  x_zero_rbp(&f->code);
  line(f, "  call the next from");
  x_call_next(&f->code);
  line(f, "end");
  x_add_rsp(&f->code, 32);
  f->unwind.sp_reset = f->code.size;
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

/* Aligns its stack, so that only rbx knows where the frame begins. */
static inline void mid_realign(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_ROWS;
  line(f, "fn");
  x_push_rbx(&f->code);
  row(f, DW_RSP, 16), row_saved(f, DW_RBX, -16);
  x_mov_rbx_rsp(&f->code);
  row(f, DW_RBX, 16);
  x_align_rsp_64(&f->code);
  x_sub_rsp(&f->code, 64);
  line(f, "  call the next from");
  x_call_next(&f->code);
  line(f, "end");
  x_mov_rsp_rbx(&f->code);
  row(f, DW_RSP, 16);
  x_pop_rbx(&f->code);
  row(f, DW_RSP, 8), row_restored(f);
  x_ret(&f->code);
}

/* The way into a trace: a stub that makes the frame and jumps, so that it does not appear in the stack. */
static inline void trace_entry(struct function *f) {
  uint32_t exit;
  f->unwind.kind = JITSYM_UNWIND_ROWS;
  line(f, "enter a trace from");
  x_push_rbx(&f->code);
  row(f, DW_RSP, 16), row_saved(f, DW_RBX, -16);
  x_sub_rsp(&f->code, 32);
  row(f, DW_RSP, 48);
  exit = x_lea_rbx(&f->code);
  x_jmp_next(&f->code);
  x_land_rbx(&f->code, exit);
  line(f, "leave a trace to");
  x_add_rsp(&f->code, 32);
  row(f, DW_RSP, 16);
  x_pop_rbx(&f->code);
  row(f, DW_RSP, 8), row_restored(f);
  x_ret(&f->code);
}

static inline void trace_frame(struct function *f) {
  struct frame frame = f->code.frame;
  frame.depth = 48;
  frame.saved[DW_RBX].at = 16;
  frame.saved[DW_RBX].lost = 1;
  f->code.frame_count = 0;
  set_frame(&f->code, frame);
  f->unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  f->unwind.cfa_offset = 48;
  f->saved[0][0].reg = DW_RBX;
  f->saved[0][0].offset = -16;
  f->unwind.saved = f->saved[0];
  f->unwind.saved_count = 1;
}

static inline void trace_leaf(struct function *f) {
  trace_frame(f);
  line(f, "trace: burn");
  x_burn(&f->code);
  x_jmp_rbx(&f->code);
}

static inline void trace_mid(struct function *f) {
  trace_frame(f);
  line(f, "trace: call the next from");
  x_call_next(&f->code);
  x_jmp_rbx(&f->code);
}

static inline void comparator(struct function *f) {
  f->unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  line(f, "fn compares");
  x_push_rbp(&f->code);
  x_mov_rbp_rsp(&f->code);
  x_load_rdi_rsi(&f->code, (uint64_t)(uintptr_t)f->arguments);
  x_call_next(&f->code);
  x_zero_eax(&f->code);
  line(f, "end");
  x_pop_rbp(&f->code);
  f->unwind.epilogue_begin = f->code.size;
  x_ret(&f->code);
  f->unwind.epilogue_end = f->code.size;
}

#endif
