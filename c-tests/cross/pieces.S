/*
 * Code that main.c copies to where compiled code would lie, with what the assembler is told of the frames. Each piece is called
 * with a pointer to a table of addresses, goes on with the first of them, and returns one more than that has returned. The first
 * one gets the rest of the table.
 *
 * What stands between `begin` and `end` with `NAME_` before them is a piece; further names are places in it.
 */

.macro piece name
  .globl \name\()_begin
  .type \name\()_begin, %function
\name\()_begin:
  .cfi_startproc
.endm

.macro place name
  .globl \name
\name:
.endm

.macro piece_end name
  .cfi_endproc
  .size \name\()_begin, . - \name\()_begin
  .globl \name\()_end
\name\()_end:
.endm

.section .note.GNU-stack, "", %progbits
.text

#if defined(__aarch64__)

/* A frame pointer, a frame that is larger than what the prologue needs, and a saved register. */
piece framed
  stp x29, x30, [sp, #-32]!
  .cfi_def_cfa_offset 32
  .cfi_offset 29, -32
  .cfi_offset 30, -24
  mov x29, sp
  .cfi_def_cfa_register 29
  str x19, [sp, #16]
place framed_saved
  .cfi_offset 19, -16
  mov x19, #0
  ldr x16, [x0], #8
  blr x16
  add x0, x0, #1
  ldr x19, [sp, #16]
  ldp x29, x30, [sp], #32
place framed_epilogue
  .cfi_def_cfa 31, 0
  .cfi_restore 19
  .cfi_restore 29
  .cfi_restore 30
  ret
piece_end framed

/* A frame by another register, and nothing left of the chain of frame pointers. */
piece rows
  sub sp, sp, #48
place rows_lowered
  .cfi_def_cfa_offset 48
  str x30, [sp, #40]
place rows_return
  .cfi_offset 30, -8
  stp x19, x29, [sp, #8]
place rows_saved
  .cfi_offset 19, -40
  .cfi_offset 29, -32
  mov x19, sp
place rows_other
  .cfi_def_cfa_register 19
  mov x29, #0
  ldr x16, [x0], #8
  blr x16
  add x0, x0, #1
  ldp x19, x29, [sp, #8]
place rows_restored
  .cfi_def_cfa_register 31
  .cfi_restore 19
  .cfi_restore 29
  ldr x30, [sp, #40]
place rows_in_register
  .cfi_restore 30
  add sp, sp, #48
place rows_raised
  .cfi_def_cfa_offset 0
  ret
piece_end rows

/* Makes the frame of what it jumps to, as an interpreter does. */
piece entry
  sub sp, sp, #32
place entry_lowered
  .cfi_def_cfa_offset 32
  str x30, [sp, #24]
place entry_saved
  .cfi_offset 30, -8
  adr x17, 1f
  str x17, [sp, #16]
  ldr x16, [x0], #8
  br x16
1:
  ldr x30, [sp, #24]
place entry_restored
  .cfi_restore 30
  add sp, sp, #32
place entry_raised
  .cfi_def_cfa_offset 0
  ret
piece_end entry

/* Jumped to, in a frame that is there. */
piece fixed
  .cfi_def_cfa_offset 32
  .cfi_offset 30, -8
  ldr x16, [x0], #8
  blr x16
  add x0, x0, #1
  ldr x17, [sp, #16]
  br x17
piece_end fixed

#elif defined(__riscv)

.option norvc

piece framed
  addi sp, sp, -16
  .cfi_def_cfa_offset 16
  sd ra, 8(sp)
  sd s0, 0(sp)
  addi s0, sp, 16
  .cfi_def_cfa 8, 0
  .cfi_offset 1, -8
  .cfi_offset 8, -16
  addi sp, sp, -16
  sd s1, 8(sp)
place framed_saved
  .cfi_offset 9, -24
  li s1, 0
  ld t0, 0(a0)
  addi a0, a0, 8
  jalr t0
  addi a0, a0, 1
  ld s1, 8(sp)
  addi sp, sp, 16
  ld ra, 8(sp)
  .cfi_restore 1
  .cfi_restore 9
  ld s0, 0(sp)
place framed_epilogue
  .cfi_def_cfa 2, 16
  .cfi_restore 8
  addi sp, sp, 16
  .cfi_def_cfa_offset 0
  ret
piece_end framed

piece rows
  addi sp, sp, -48
place rows_lowered
  .cfi_def_cfa_offset 48
  sd ra, 40(sp)
place rows_return
  .cfi_offset 1, -8
  sd s1, 8(sp)
  sd s0, 16(sp)
place rows_saved
  .cfi_offset 9, -40
  .cfi_offset 8, -32
  mv s1, sp
place rows_other
  .cfi_def_cfa_register 9
  li s0, 0
  ld t0, 0(a0)
  addi a0, a0, 8
  jalr t0
  addi a0, a0, 1
  ld s0, 16(sp)
  ld s1, 8(sp)
place rows_restored
  .cfi_def_cfa_register 2
  .cfi_restore 9
  .cfi_restore 8
  ld ra, 40(sp)
place rows_in_register
  .cfi_restore 1
  addi sp, sp, 48
place rows_raised
  .cfi_def_cfa_offset 0
  ret
piece_end rows

piece entry
  addi sp, sp, -32
place entry_lowered
  .cfi_def_cfa_offset 32
  sd ra, 24(sp)
place entry_saved
  .cfi_offset 1, -8
  auipc t1, 0
  addi t1, t1, 24
  sd t1, 16(sp)
  ld t0, 0(a0)
  addi a0, a0, 8
  jr t0
  ld ra, 24(sp)
place entry_restored
  .cfi_restore 1
  addi sp, sp, 32
place entry_raised
  .cfi_def_cfa_offset 0
  ret
piece_end entry

piece fixed
  .cfi_def_cfa_offset 32
  .cfi_offset 1, -8
  ld t0, 0(a0)
  addi a0, a0, 8
  jalr t0
  addi a0, a0, 1
  ld t1, 16(sp)
  jr t1
piece_end fixed

#endif
