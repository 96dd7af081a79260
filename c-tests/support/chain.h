/* Code without frame pointers that calls other code, and its unwind table. x86-64. */
#ifndef CHAIN_H
#define CHAIN_H

#include <jitsym.h>
#include <stdint.h>
#include <string.h>

/* Where something is different: offsets in the code. */
enum { CHAIN_PUSHED = 1, CHAIN_WHOLE = 5, CHAIN_RETURNED = 17, CHAIN_DROPPED = 21, CHAIN_POPPED = 22 };

/*
 * push rbx; sub rsp, 32; mov rax, next; call rax; add rsp, 32; pop rbx; ret. Where each of these begins and the next one
 * would is told to nobody: the tables have a row for each change of the stack pointer.
 */
static inline size_t chain_emit(unsigned char *at, uint64_t next) {
  static const unsigned char before[] = {0x53, 0x48, 0x83, 0xec, 32, 0x48, 0xb8};
  static const unsigned char after[] = {0xff, 0xd0, 0x48, 0x83, 0xc4, 32, 0x5b, 0xc3};
  memcpy(at, before, sizeof before);
  memcpy(at + sizeof before, &next, sizeof next);
  memcpy(at + sizeof before + sizeof next, after, sizeof after);
  return sizeof before + sizeof next + sizeof after;
}

/* The table of such code. `rows` has room for it. */
static inline jitsym_unwind chain_unwind(jitsym_unwind_row rows[4]) {
  enum { RBX = 3, RSP = 7 };
  static const jitsym_saved_register rbx[] = {{RBX, -16}};
  static const struct { uint32_t offset; int32_t cfa_offset; uint32_t saved_count; } states[] = {
    {CHAIN_PUSHED, 16, 1}, {CHAIN_WHOLE, 48, 1}, {CHAIN_DROPPED, 16, 1}, {CHAIN_POPPED, 8, 0}};
  memset(rows, 0, 4 * sizeof *rows);
  for (int i = 0; i < 4; i++) {
    rows[i].offset = states[i].offset;
    rows[i].cfa_reg = RSP;
    rows[i].cfa_offset = states[i].cfa_offset;
    rows[i].saved = rbx;
    rows[i].saved_count = states[i].saved_count;
  }
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_ROWS;
  unwind.rows = rows;
  unwind.row_count = 4;
  return unwind;
}

#endif
