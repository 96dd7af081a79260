/*
 * Random functions for x86-64 with frames of all shapes, and their descriptions.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "random.h"

/* DWARF numbers. */
enum { RAX = 0, RBX = 3, RBP = 6, RSP = 7, RA = 16 };

const char *const shape_names[SHAPES] = {"bare",      "pointer",    "fixed",      "rows",
                                         "realigned", "expression", "ends_call", "drops"};

static void put(struct piece *piece, const void *bytes, uint32_t size) {
  if (size > CODE_MAX - piece->size) {
    fail("code too long");
  }
  memcpy(piece->bytes + piece->size, bytes, size);
  piece->size += size;
}

#define PUT(piece, ...) put((piece), (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static void put_u32(struct piece *piece, uint32_t value) {
  put(piece, &value, sizeof value);
}

static struct part *part(struct piece *piece) {
  return &piece->parts[piece->part_count - 1];
}

static void begin_part(struct piece *piece, uint32_t kind) {
  struct part *begun = &piece->parts[piece->part_count++];
  memset(begun, 0, sizeof *begun);
  begun->at = piece->size;
  begun->unwind.struct_size = sizeof begun->unwind;
  begun->unwind.kind = kind;
  begun->unwind.rows = begun->rows;
  begun->unwind.row_size = sizeof *begun->rows;
}

static void end_part(struct piece *piece) {
  part(piece)->size = piece->size - part(piece)->at;
}

/* From here on CFA = `reg` + `offset`. Registers stay saved as in the row before, except for the last `restored`. */
static void row(struct piece *piece, uint32_t reg, uint32_t offset, uint32_t restored) {
  struct part *of = part(piece);
  uint32_t index = of->unwind.row_count++;
  if (index == ROWS_MAX) {
    fail("too many rows");
  }
  jitsym_unwind_row *new = &of->rows[index];
  new->offset = piece->size - of->at;
  new->cfa_reg = reg;
  new->cfa_offset = (int32_t)offset;
  new->saved = of->saved[index];
  if (index > 0) {
    new->saved_count = of->rows[index - 1].saved_count - restored;
    memcpy(of->saved[index], of->saved[index - 1], sizeof of->saved[index]);
  }
}

/* The newest row has one more register saved, at CFA - `below_cfa`. */
static void row_saves(struct piece *piece, uint32_t reg, uint32_t below_cfa) {
  uint32_t index = part(piece)->unwind.row_count - 1;
  jitsym_unwind_row *newest = &part(piece)->rows[index];
  part(piece)->saved[index][newest->saved_count++] = (jitsym_saved_register){reg, -(int32_t)below_cfa};
}

static void sub_rsp(struct piece *piece, uint32_t n) {
  PUT(piece, 0x48, 0x81, 0xec), put_u32(piece, n);
}

static void add_rsp(struct piece *piece, uint32_t n) {
  PUT(piece, 0x48, 0x81, 0xc4), put_u32(piece, n);
}

/* mov rcx, rdi; again: dec rcx; jnz again */
static void go_round(struct piece *piece) {
  PUT(piece, 0x48, 0x89, 0xf9, 0x48, 0xff, 0xc9, 0x75, 0xfb);
}

/* mov rax, [rsi]; add rsi, 8 */
static void take_next(struct piece *piece) {
  PUT(piece, 0x48, 0x8b, 0x06, 0x48, 0x83, 0xc6, 0x08);
}

/* Makes functions differ in size: instructions without effect, and rarely bytes that never run. */
static void fill(struct piece *piece, struct rng *rng) {
  for (uint32_t n = below(rng, 12); n > 0; n--) {
    PUT(piece, 0x0f, 0x1f, 0x40, 0x00);
  }
  if (one_in(rng, 24)) {
    uint32_t cold = 1 + below(rng, 4096);
    PUT(piece, 0xe9), put_u32(piece, cold);
    while (cold-- > 0) {
      PUT(piece, 0xcc);
    }
  }
}

static void body(struct piece *piece, struct rng *rng) {
  fill(piece, rng);
  go_round(piece);
  take_next(piece);
  /* test rax, rax; jz over; call rax; over: */
  PUT(piece, 0x48, 0x85, 0xc0, 0x74, 0x02, 0xff, 0xd0);
  go_round(piece);
}

static void bare(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_FIXED_FRAME);
  part(piece)->unwind.cfa_offset = 8;
  piece->frame = 0;
  body(piece, rng);
  PUT(piece, 0xc3);
  end_part(piece);
}

static void pointer(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_FRAME_POINTER);
  /* push rbp; mov rbp, rsp */
  PUT(piece, 0x55, 0x48, 0x89, 0xe5);
  sub_rsp(piece, piece->frame);
  body(piece, rng);
  /* leave; ret */
  PUT(piece, 0xc9);
  part(piece)->unwind.epilogue_begin = piece->size;
  PUT(piece, 0xc3);
  part(piece)->unwind.epilogue_end = piece->size;
  piece->frame += 8;
  end_part(piece);
}

/* As a trace: one piece of code makes the frame, the next has it in all of its code, and a third takes it down. */
static void fixed(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_ROWS);
  sub_rsp(piece, piece->frame);
  row(piece, RSP, piece->frame + 8, 0);
  PUT(piece, 0xeb, 0);
  end_part(piece);
  piece->main = piece->part_count;
  begin_part(piece, JITSYM_UNWIND_FIXED_FRAME);
  part(piece)->unwind.cfa_offset = (int32_t)piece->frame + 8;
  body(piece, rng);
  PUT(piece, 0xeb, 0);
  end_part(piece);
  begin_part(piece, JITSYM_UNWIND_ROWS);
  row(piece, RSP, piece->frame + 8, 0);
  add_rsp(piece, piece->frame);
  row(piece, RSP, 8, 0);
  PUT(piece, 0xc3);
  end_part(piece);
}

/* Registers in any number and order are pushed and destroyed, so that a reader that follows one of them goes wrong. */
static void rows(struct piece *piece, struct rng *rng) {
  static const struct {
    uint32_t reg, size;
    uint8_t push[2], pop[2], zero[3];
  } saved[SAVED_MAX] = {
      {RBX, 1, {0x53}, {0x5b}, {0x48, 0x31, 0xdb}},
      {RBP, 1, {0x55}, {0x5d}, {0x48, 0x31, 0xed}},
      {12, 2, {0x41, 0x54}, {0x41, 0x5c}, {0x4d, 0x31, 0xe4}},
      {13, 2, {0x41, 0x55}, {0x41, 0x5d}, {0x4d, 0x31, 0xed}},
      {14, 2, {0x41, 0x56}, {0x41, 0x5e}, {0x4d, 0x31, 0xf6}},
      {15, 2, {0x41, 0x57}, {0x41, 0x5f}, {0x4d, 0x31, 0xff}},
  };
  uint32_t order[SAVED_MAX] = {0, 1, 2, 3, 4, 5}, count = below(rng, SAVED_MAX + 1);
  for (uint32_t i = SAVED_MAX - 1; i > 0; i--) {
    uint32_t other = below(rng, i + 1), kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
  begin_part(piece, JITSYM_UNWIND_ROWS);
  uint32_t depth = 8;
  for (uint32_t i = 0; i < count; i++) {
    put(piece, saved[order[i]].push, saved[order[i]].size);
    depth += 8;
    row(piece, RSP, depth, 0);
    row_saves(piece, saved[order[i]].reg, depth);
  }
  sub_rsp(piece, piece->frame);
  row(piece, RSP, depth + piece->frame, 0);
  for (uint32_t i = 0; i < count; i++) {
    put(piece, saved[order[i]].zero, 3);
  }
  body(piece, rng);
  add_rsp(piece, piece->frame);
  row(piece, RSP, depth, 0);
  for (uint32_t i = count; i > 0; i--) {
    put(piece, saved[order[i - 1]].pop, saved[order[i - 1]].size);
    depth -= 8;
    row(piece, RSP, depth, 1);
  }
  PUT(piece, 0xc3);
  piece->frame += 8 * count;
  end_part(piece);
}

/* Only rbx knows where the frame begins. */
static void realigned(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_ROWS);
  PUT(piece, 0x53);
  row(piece, RSP, 16, 0), row_saves(piece, RBX, 16);
  /* mov rbx, rsp; and rsp, -64 */
  PUT(piece, 0x48, 0x89, 0xe3);
  row(piece, RBX, 16, 0);
  PUT(piece, 0x48, 0x83, 0xe4, 0xc0);
  sub_rsp(piece, piece->frame);
  body(piece, rng);
  /* mov rsp, rbx; pop rbx; ret */
  PUT(piece, 0x48, 0x89, 0xdc);
  row(piece, RSP, 16, 0);
  PUT(piece, 0x5b);
  row(piece, RSP, 8, 1);
  PUT(piece, 0xc3);
  piece->frame += 8 + 64;
  end_part(piece);
}

struct section {
  uint8_t *bytes;
  uint32_t size;
};

#define EH(section, ...) eh((section), (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

static void eh(struct section *section, const void *bytes, uint32_t size) {
  if (size > EH_MAX - section->size) {
    fail("section too long");
  }
  memcpy(section->bytes + section->size, bytes, size);
  section->size += size;
}

static void eh_u32(struct section *section, uint32_t value) {
  eh(section, &value, sizeof value);
}

/* From `at` on: DW_CFA_advance_loc4. `from` is where the state before began. */
static void eh_advance(struct section *section, uint32_t from, uint32_t at) {
  EH(section, 0x04), eh_u32(section, at - from);
}

static void eh_close(struct section *section, uint32_t start) {
  while ((section->size - start) % 8 != 4) {
    EH(section, 0);
  }
  uint32_t length = section->size - start - 4;
  memcpy(section->bytes + start, &length, sizeof length);
}

/* The caller's stack pointer lies in the frame, at a place that only an expression tells. The section has its address at 64 KiB. */
static void expression(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_EH_FRAME);
  uint32_t disp = 8 * below(rng, piece->frame / 8);
  /* mov rax, rsp; and rsp, -64 */
  PUT(piece, 0x48, 0x89, 0xe0);
  uint32_t copied = piece->size;
  PUT(piece, 0x48, 0x83, 0xe4, 0xc0);
  sub_rsp(piece, piece->frame);
  /* mov [rsp + disp], rax */
  PUT(piece, 0x48, 0x89, 0x84, 0x24), put_u32(piece, disp);
  uint32_t stored = piece->size;
  body(piece, rng);
  /* mov rsp, [rsp + disp]; ret */
  PUT(piece, 0x48, 0x8b, 0xa4, 0x24), put_u32(piece, disp);
  uint32_t loaded = piece->size;
  PUT(piece, 0xc3);
  end_part(piece);

  struct section section = {part(piece)->eh_frame, 0};
  eh_u32(&section, 0), eh_u32(&section, 0);
  /* Version, "zR", alignment of code 1 and of data -8, return address, pointers of four bytes relative to their place. */
  EH(&section, 1, 'z', 'R', 0, 1, 0x78, RA, 1, 0x1b);
  /* CFA = rsp + 8, return address at CFA - 8. */
  EH(&section, 0x0c, RSP, 8, 0x80 | RA, 1);
  eh_close(&section, 0);
  uint32_t start = section.size;
  eh_u32(&section, 0), eh_u32(&section, start + 4);
  eh_u32(&section, 0u - (0x10000 + section.size)), eh_u32(&section, part(piece)->size);
  EH(&section, 0);
  eh_advance(&section, 0, copied);
  EH(&section, 0x0c, RAX, 8);
  eh_advance(&section, copied, stored);
  /* CFA = *(rsp + disp) + 8: DW_OP_breg7, DW_OP_deref, DW_OP_plus_uconst, with `disp` in four bytes. */
  EH(&section, 0x0f, 8, 0x70 + RSP, 0x80 | (disp & 0x7f), 0x80 | (disp >> 7 & 0x7f), 0x80 | (disp >> 14 & 0x7f), 0,
     0x06, 0x23, 8);
  eh_advance(&section, stored, loaded);
  EH(&section, 0x0c, RSP, 8);
  eh_close(&section, start);
  part(piece)->unwind.eh_frame = section.bytes;
  part(piece)->unwind.eh_frame_size = section.size;
  piece->frame += 64;
}

/* The function that it calls never returns, so that its return address is that of the next function. */
static void ends_with_call(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_ROWS);
  sub_rsp(piece, piece->frame);
  row(piece, RSP, piece->frame + 8, 0);
  fill(piece, rng);
  go_round(piece);
  take_next(piece);
  PUT(piece, 0xff, 0xd0);
  end_part(piece);
}

/* What it calls: returns to the caller of its caller, whose frame the next word tells. */
static void drops_frame(struct piece *piece, struct rng *rng) {
  begin_part(piece, JITSYM_UNWIND_FIXED_FRAME);
  part(piece)->unwind.cfa_offset = 8;
  piece->frame = 0;
  fill(piece, rng);
  go_round(piece);
  take_next(piece);
  /* add rsp, rax; ret */
  PUT(piece, 0x48, 0x01, 0xc4, 0xc3);
  end_part(piece);
}

void make_piece(struct piece *piece, struct rng *rng, enum shape shape, uint32_t room) {
  static void (*const makers[SHAPES])(struct piece *, struct rng *) = {
      bare, pointer, fixed, rows, realigned, expression, ends_with_call, drops_frame,
  };

  piece->shape = shape;
  piece->size = piece->part_count = piece->main = 0;
  /* Most frames are small, some are as large as there is room for. */
  uint32_t least = 64, most = one_in(rng, 8) ? room : least + 512;
  piece->frame = 64 * (1 + below(rng, (most > least ? most : least) / 64));
  makers[shape](piece, rng);
}
