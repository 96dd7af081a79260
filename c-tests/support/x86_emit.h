/*
 * The few x86-64 instructions that the ground-truth JIT needs, and an encoder for `.eh_frame`.
 *
 * Everything emitted is position independent, so that code can be placed, moved and copied as bytes.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef X86_EMIT_H
#define X86_EMIT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EMIT_MAX = 640, FRAMES_MAX = 24 };

/* Registers by their DWARF numbers. */
enum { DW_RBX = 3, DW_RBP = 6, DW_RSP = 7, DW_R12 = 12, DW_RA = 16 };

/*
 * The frame as the instructions really make it, followed from one to the next and quite apart from any unwind
 * description: the truth that descriptions are measured by. A distance is CFA minus value, in bytes.
 */
struct frame {
  /* The stack pointer's distance; 0: not known, after an alignment. */
  uint32_t depth;
  /* The distances of rbp and rbx, where they hold a known place in this frame; 0: they do not. */
  uint32_t rbp, rbx;

  /* Where the caller's value of a register was pushed (0: nowhere), and whether the register has another value now. */
  struct {
    uint32_t at;
    int lost;
  } saved[DW_RA];
};

struct frame_row {
  uint32_t offset;
  struct frame frame;
};

/* A buffer of bytes: machine code with its frames, or a table. */
struct bytes {
  uint8_t data[EMIT_MAX];
  uint32_t size;
  struct frame frame;
  struct frame_row frames[FRAMES_MAX];
  uint32_t frame_count;
};

static inline void put(struct bytes *out, const void *data, size_t size) {
  if (size > EMIT_MAX - out->size) {
    fprintf(stderr, "x86_emit: buffer too small\n");
    exit(1);
  }
  memcpy(out->data + out->size, data, size);
  out->size += (uint32_t)size;
}

#define PUT(out, ...) put((out), (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static inline void put_u32(struct bytes *out, uint32_t value) {
  put(out, &value, sizeof value);
}

static inline void put_u64(struct bytes *out, uint64_t value) {
  put(out, &value, sizeof value);
}

static inline void set_u32(struct bytes *out, uint32_t at, uint32_t value) {
  memcpy(out->data + at, &value, sizeof value);
}

/* The frame is now this one: to be called behind the instruction that changed it. */
static inline void set_frame(struct bytes *out, struct frame frame) {
  if (out->frame_count == FRAMES_MAX) {
    fprintf(stderr, "x86_emit: too many frames\n");
    exit(1);
  }
  out->frame = frame;
  out->frames[out->frame_count].offset = out->size;
  out->frames[out->frame_count++].frame = frame;
}

/* Code begins, with the stack pointer `depth` bytes below the CFA: 8 behind a call. */
static inline void x_begin(struct bytes *out, uint32_t depth) {
  struct frame frame;
  memset(&frame, 0, sizeof frame);
  frame.depth = depth;
  set_frame(out, frame);
}

static inline void pushed(struct bytes *out, uint32_t reg) {
  struct frame frame = out->frame;
  frame.depth += 8;
  frame.saved[reg].at = frame.depth;
  set_frame(out, frame);
}

static inline void popped(struct bytes *out, uint32_t reg) {
  struct frame frame = out->frame;
  frame.depth -= 8;
  frame.saved[reg].at = 0;
  frame.saved[reg].lost = 0;
  if (reg == DW_RBP) {
    frame.rbp = 0;
  }
  if (reg == DW_RBX) {
    frame.rbx = 0;
  }
  set_frame(out, frame);
}

static inline void set_depth(struct bytes *out, uint32_t depth) {
  struct frame frame = out->frame;
  frame.depth = depth;
  set_frame(out, frame);
}

/* The register has a value of its own, `distance` below the CFA or (0) none of the frame. */
static inline void overwritten(struct bytes *out, uint32_t reg, uint32_t distance) {
  struct frame frame = out->frame;
  frame.saved[reg].lost = 1;
  if (reg == DW_RBP) {
    frame.rbp = distance;
  }
  if (reg == DW_RBX) {
    frame.rbx = distance;
  }
  set_frame(out, frame);
}

static inline void x_push_rbp(struct bytes *out) {
  PUT(out, 0x55), pushed(out, DW_RBP);
}

static inline void x_pop_rbp(struct bytes *out) {
  PUT(out, 0x5d), popped(out, DW_RBP);
}

static inline void x_push_rbx(struct bytes *out) {
  PUT(out, 0x53), pushed(out, DW_RBX);
}

static inline void x_pop_rbx(struct bytes *out) {
  PUT(out, 0x5b), popped(out, DW_RBX);
}

static inline void x_push_r12(struct bytes *out) {
  PUT(out, 0x41, 0x54), pushed(out, DW_R12);
}

static inline void x_pop_r12(struct bytes *out) {
  PUT(out, 0x41, 0x5c), popped(out, DW_R12);
}

static inline void x_mov_rbp_rsp(struct bytes *out) {
  PUT(out, 0x48, 0x89, 0xe5), overwritten(out, DW_RBP, out->frame.depth);
}

static inline void x_mov_rbx_rsp(struct bytes *out) {
  PUT(out, 0x48, 0x89, 0xe3), overwritten(out, DW_RBX, out->frame.depth);
}

static inline void x_mov_rsp_rbx(struct bytes *out) {
  PUT(out, 0x48, 0x89, 0xdc), set_depth(out, out->frame.rbx);
}

static inline void x_zero_rbx(struct bytes *out) {
  PUT(out, 0x31, 0xdb), overwritten(out, DW_RBX, 0);
}

static inline void x_zero_rbp(struct bytes *out) {
  PUT(out, 0x31, 0xed), overwritten(out, DW_RBP, 0);
}

static inline void x_zero_r12(struct bytes *out) {
  PUT(out, 0x45, 0x31, 0xe4), overwritten(out, DW_R12, 0);
}

static inline void x_zero_eax(struct bytes *out) {
  PUT(out, 0x31, 0xc0);
}

static inline void x_align_rsp_64(struct bytes *out) {
  PUT(out, 0x48, 0x83, 0xe4, 0xc0), set_depth(out, 0);
}

static inline void x_ret(struct bytes *out) {
  PUT(out, 0xc3);
}

static inline void x_jmp_rbx(struct bytes *out) {
  PUT(out, 0xff, 0xe3);
}

static inline void x_sub_rsp(struct bytes *out, uint8_t n) {
  PUT(out, 0x48, 0x83, 0xec, n);
  if (out->frame.depth != 0) {
    set_depth(out, out->frame.depth + n);
  }
}

static inline void x_add_rsp(struct bytes *out, uint8_t n) {
  PUT(out, 0x48, 0x83, 0xc4, n);
  set_depth(out, out->frame.depth - n);
}

/* A loop of `rdi` rounds, which counts rdi down: for code that burns once. */
static inline void x_burn(struct bytes *out) {
  PUT(out, 0x48, 0xff, 0xcf, 0x75, 0xfb);
}

/* The same, rdi kept: for code that burns at several places. */
static inline void x_burn_again(struct bytes *out) {
  PUT(out, 0x48, 0x89, 0xf9, 0x48, 0xff, 0xc9, 0x75, 0xfb);
}

/* Takes the next function of the path that rsi points to. */
static inline void x_next(struct bytes *out) {
  PUT(out, 0x48, 0x8b, 0x06, 0x48, 0x83, 0xc6, 0x08);
}

static inline void x_call_next(struct bytes *out) {
  x_next(out), PUT(out, 0xff, 0xd0);
}

static inline void x_jmp_next(struct bytes *out) {
  x_next(out), PUT(out, 0xff, 0xe0);
}

/* Short forward and backward jumps, by the offset of the instruction behind. */
static inline uint32_t x_jmp_forward(struct bytes *out) {
  PUT(out, 0xeb, 0);
  return out->size;
}

static inline void x_land(struct bytes *out, uint32_t jump) {
  out->data[jump - 1] = (uint8_t)(out->size - jump);
}

static inline void x_jmp_back(struct bytes *out, uint32_t target) {
  PUT(out, 0xeb, (uint8_t)(target - (out->size + 2)));
}

/* lea rbx, [rip + ...]; the target is given later by `x_land_rbx`. */
static inline uint32_t x_lea_rbx(struct bytes *out) {
  PUT(out, 0x48, 0x8d, 0x1d, 0, 0, 0, 0);
  overwritten(out, DW_RBX, 0);
  return out->size;
}

static inline void x_land_rbx(struct bytes *out, uint32_t lea) {
  set_u32(out, lea - 4, out->size - lea);
}

/* mov rax, address; mov rdi, [rax]; mov rsi, [rax + 8] */
static inline void x_load_rdi_rsi(struct bytes *out, uint64_t address) {
  PUT(out, 0x48, 0xb8);
  put_u64(out, address);
  PUT(out, 0x48, 0x8b, 0x38, 0x48, 0x8b, 0x70, 0x08);
}

/*
 * `.eh_frame`, byte by byte. A CIE is begun, entries for code follow; both are closed by `eh_end`, which pads with
 * DW_CFA_nop and fills in the length.
 */
static inline uint32_t eh_begin(struct bytes *out, uint32_t cie) {
  uint32_t start = out->size;
  put_u32(out, 0);
  put_u32(out, cie == UINT32_MAX ? 0 : start + 4 - cie);
  return start;
}

static inline void eh_end(struct bytes *out, uint32_t start) {
  while ((out->size - start) % 8 != 0) {
    PUT(out, 0);
  }
  set_u32(out, start, out->size - start - 4);
}

/* The state at a call's target: CFA = rsp + 8, return address at CFA - 8. */
static inline void eh_initial(struct bytes *out) {
  PUT(out, 0x0c, DW_RSP, 8, 0x80 | DW_RA, 1);
}

static inline void eh_advance(struct bytes *out, uint32_t n) {
  PUT(out, (uint8_t)(0x40 | n));
}

static inline void eh_cfa_offset(struct bytes *out, uint8_t n) {
  PUT(out, 0x0e, n);
}

/* Saved at CFA - 8 * slots. */
static inline void eh_saved(struct bytes *out, uint8_t reg, uint8_t slots) {
  PUT(out, (uint8_t)(0x80 | reg), slots);
}

static inline void eh_restored(struct bytes *out, uint8_t reg) {
  PUT(out, (uint8_t)(0xc0 | reg));
}

#endif
