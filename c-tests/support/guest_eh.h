/*
 * Functions of the guest whose unwind description is a ready `.eh_frame`, as compilers make it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GUEST_EH_H
#define GUEST_EH_H

#include "guest_code.h"

static inline void eh_body(struct function *f, int calls) {
  f->unwind.kind = JITSYM_UNWIND_EH_FRAME;
  line(f, "fn");
  x_push_r12(&f->code);
  f->eh_at[0] = f->code.size;
  x_sub_rsp(&f->code, 32);
  f->eh_at[1] = f->code.size;
  x_zero_r12(&f->code);
  line(f, calls ? "  call the next from" : "  burn");
  if (calls) {
    x_call_next(&f->code);
  } else {
    x_burn(&f->code);
  }
  line(f, "end");
  x_add_rsp(&f->code, 32);
  f->eh_at[2] = f->code.size;
  x_pop_r12(&f->code);
  f->eh_at[3] = f->code.size;
  x_ret(&f->code);
}

static inline void leaf_eh(struct function *f) {
  f->eh_style = EH_BARE, eh_body(f, 0);
}

static inline void mid_eh(struct function *f) {
  f->eh_style = EH_COMPILER, eh_body(f, 1);
}

/* The entry of `.eh_frame` for code at `addr`, with its pointers counted from `base`, the address of the table. */
static inline void eh_entry(const struct function *f, struct bytes *out, uint32_t cie, uint64_t addr, uint64_t base,
                     int compiler) {
  uint32_t fde = eh_begin(out, cie), at = 0;
  if (compiler) {
    put_u32(out, (uint32_t)(addr - (base + out->size)));
    put_u32(out, f->code.size);
    PUT(out, 0);
  } else {
    put_u64(out, addr - (base + out->size));
    put_u64(out, f->code.size);
    PUT(out, 8);
    put_u64(out, (uint64_t)(uintptr_t)f);
  }
  static const uint8_t offsets[4] = {16, 48, 16, 8};
  for (int i = 0; i < 4; i++) {
    eh_advance(out, f->eh_at[i] - at);
    at = f->eh_at[i];
    eh_cfa_offset(out, offsets[i]);
    if (i == 0) {
      eh_saved(out, DW_R12, 2);
    }
    if (i == 3) {
      eh_restored(out, DW_R12);
    }
  }
  eh_end(out, fde);
}

/*
 * A ready table, which names the code's address. EH_COMPILER: as in a section that a compiler put right behind the
 * code, with entries for other code and a terminator. EH_BARE: one entry with wide pointers that lies where it lies,
 * with a personality routine and its data, as C++ has them.
 */
static inline void describe_eh(struct function *f, uint64_t addr) {
  struct bytes *out = &f->eh_frame;
  int compiler = f->eh_style == EH_COMPILER;
  uint64_t base = compiler ? addr + f->code.size : (uint64_t)(uintptr_t)out->data;
  uint32_t cie;

  out->size = 0;
  cie = eh_begin(out, UINT32_MAX);
  if (compiler) {
    PUT(out, 1, 'z', 'R', 0, 1, 0x78, DW_RA, 1, 0x1b);
  } else {
    PUT(out, 1, 'z', 'P', 'L', 'R', 0, 1, 0x78, DW_RA, 11, 0x00);
    put_u64(out, (uint64_t)(uintptr_t)abort);
    PUT(out, 0x00, 0x1c);
  }
  eh_initial(out);
  eh_end(out, cie);
  if (compiler) {
    eh_entry(f, out, cie, addr - 4096, base, compiler);
  }
  eh_entry(f, out, cie, addr, base, compiler);
  if (compiler) {
    eh_entry(f, out, cie, addr + 4096, base, compiler);
    put_u32(out, 0);
  }
  f->unwind.eh_frame = out->data;
  f->unwind.eh_frame_size = out->size;
  f->unwind.eh_frame_addr = compiler ? base : 0;
}

#endif
