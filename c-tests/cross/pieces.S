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
/* Where the ABI has tables of another kind, too. */
.cfi_sections .eh_frame

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

#elif defined(__s390x__)

/* The caller's frame has room for what is saved, 160 bytes at its stack pointer. */
piece framed
  stmg %r11, %r15, 88(%r15)
  .cfi_offset 11, -72
  .cfi_offset 12, -64
  .cfi_offset 13, -56
  .cfi_offset 14, -48
  .cfi_offset 15, -40
  aghi %r15, -176
  .cfi_def_cfa_offset 336
  lgr %r11, %r15
  .cfi_def_cfa_register 11
  stg %r10, 160(%r11)
  .cfi_offset 10, -176
  lghi %r10, 0
  lg %r1, 0(%r2)
  aghi %r2, 8
  basr %r14, %r1
  aghi %r2, 1
  lg %r10, 160(%r11)
  .cfi_restore 10
  lmg %r11, %r15, 264(%r11)
  .cfi_def_cfa 15, 160
  .cfi_restore 11
  .cfi_restore 12
  .cfi_restore 13
  .cfi_restore 14
  .cfi_restore 15
  br %r14
piece_end framed

piece rows
  stmg %r14, %r15, 112(%r15)
place rows_return
  .cfi_offset 14, -48
  .cfi_offset 15, -40
  aghi %r15, -208
place rows_lowered
  .cfi_def_cfa_offset 368
  stmg %r10, %r11, 160(%r15)
place rows_saved
  .cfi_offset 10, -208
  .cfi_offset 11, -200
  lgr %r10, %r15
place rows_other
  .cfi_def_cfa_register 10
  lghi %r11, 0
  lg %r1, 0(%r2)
  aghi %r2, 8
  basr %r14, %r1
  aghi %r2, 1
  lmg %r10, %r11, 160(%r15)
place rows_restored
  .cfi_def_cfa_register 15
  .cfi_restore 10
  .cfi_restore 11
  lmg %r14, %r15, 320(%r15)
place rows_raised
  .cfi_restore 14
  .cfi_restore 15
  .cfi_def_cfa_offset 160
  br %r14
piece_end rows

piece entry
  stmg %r14, %r15, 112(%r15)
place entry_saved
  .cfi_offset 14, -48
  .cfi_offset 15, -40
  aghi %r15, -176
place entry_lowered
  .cfi_def_cfa_offset 336
  larl %r1, 1f
  stg %r1, 160(%r15)
  lg %r1, 0(%r2)
  aghi %r2, 8
  br %r1
1:
  lmg %r14, %r15, 288(%r15)
place entry_raised
  .cfi_restore 14
  .cfi_restore 15
  .cfi_def_cfa_offset 160
  br %r14
piece_end entry

piece fixed
  .cfi_def_cfa_offset 336
  .cfi_offset 14, -48
  .cfi_offset 15, -40
  lg %r1, 0(%r2)
  aghi %r2, 8
  basr %r14, %r1
  aghi %r2, 1
  lg %r1, 160(%r15)
  br %r1
piece_end fixed

#elif defined(__i386__)

/* The pointer to the table is on the stack, where the CFA is. */
piece framed
  push %ebp
  .cfi_def_cfa_offset 8
  .cfi_offset 5, -8
  mov %esp, %ebp
  .cfi_def_cfa_register 5
  push %ebx
place framed_saved
  .cfi_offset 3, -12
  mov 8(%ebp), %edx
  lea 4(%edx), %eax
  push %eax
  call *(%edx)
  add $4, %esp
  add $1, %eax
  pop %ebx
  pop %ebp
place framed_epilogue
  .cfi_def_cfa 4, 4
  .cfi_restore 3
  .cfi_restore 5
  ret
piece_end framed

piece rows
  sub $20, %esp
place rows_lowered
  .cfi_def_cfa_offset 24
  mov %ebx, 4(%esp)
  mov %ebp, 8(%esp)
place rows_saved
  .cfi_offset 3, -20
  .cfi_offset 5, -16
  mov %esp, %ebx
place rows_other
  .cfi_def_cfa_register 3
  xor %ebp, %ebp
  mov 24(%ebx), %edx
  lea 4(%edx), %eax
  mov %eax, (%esp)
  call *(%edx)
  add $1, %eax
  mov 8(%esp), %ebp
  mov 4(%esp), %ebx
place rows_restored
  .cfi_def_cfa_register 4
  .cfi_restore 3
  .cfi_restore 5
  add $20, %esp
place rows_raised
  .cfi_def_cfa_offset 4
  ret
piece_end rows

/* What it jumps to gets its pointer in eax. The entry of the table before that pointer has the address of this code. */
piece entry
  sub $12, %esp
place entry_lowered
  .cfi_def_cfa_offset 16
  mov 16(%esp), %edx
  mov -4(%edx), %ecx
  lea 1f - entry_begin(%ecx), %ecx
  mov %ecx, 8(%esp)
  lea 4(%edx), %eax
  jmp *(%edx)
1:
  add $12, %esp
place entry_raised
  .cfi_def_cfa_offset 4
  ret
piece_end entry

piece fixed
  .cfi_def_cfa_offset 16
  lea 4(%eax), %ecx
  mov %ecx, (%esp)
  call *(%eax)
  add $1, %eax
  mov 8(%esp), %ecx
  jmp *%ecx
piece_end fixed

#elif defined(__arm__)

.arm
.syntax unified

piece framed
  push {r4, r5, r11, lr}
  .cfi_def_cfa_offset 16
  .cfi_offset 4, -16
  .cfi_offset 5, -12
  .cfi_offset 11, -8
  .cfi_offset 14, -4
  add r11, sp, #12
  .cfi_def_cfa 11, 4
  mov r4, #0
  ldr r12, [r0], #4
  blx r12
  add r0, r0, #1
  sub sp, r11, #12
  .cfi_def_cfa 13, 16
  pop {r4, r5, r11, lr}
  .cfi_restore 4
  .cfi_restore 5
  .cfi_restore 11
  .cfi_restore 14
  .cfi_def_cfa_offset 0
  bx lr
piece_end framed

piece rows
  sub sp, sp, #24
place rows_lowered
  .cfi_def_cfa_offset 24
  str lr, [sp, #20]
place rows_return
  .cfi_offset 14, -4
  str r4, [sp, #4]
  str r11, [sp, #8]
place rows_saved
  .cfi_offset 4, -20
  .cfi_offset 11, -16
  mov r4, sp
place rows_other
  .cfi_def_cfa_register 4
  mov r11, #0
  ldr r12, [r0], #4
  blx r12
  add r0, r0, #1
  ldr r11, [sp, #8]
  ldr r4, [sp, #4]
place rows_restored
  .cfi_def_cfa_register 13
  .cfi_restore 4
  .cfi_restore 11
  ldr lr, [sp, #20]
place rows_in_register
  .cfi_restore 14
  add sp, sp, #24
place rows_raised
  .cfi_def_cfa_offset 0
  bx lr
piece_end rows

piece entry
  sub sp, sp, #16
place entry_lowered
  .cfi_def_cfa_offset 16
  str lr, [sp, #12]
place entry_saved
  .cfi_offset 14, -4
  adr r3, 1f
  str r3, [sp, #8]
  ldr r12, [r0], #4
  bx r12
1:
  ldr lr, [sp, #12]
place entry_restored
  .cfi_restore 14
  add sp, sp, #16
place entry_raised
  .cfi_def_cfa_offset 0
  bx lr
piece_end entry

piece fixed
  .cfi_def_cfa_offset 16
  .cfi_offset 14, -4
  ldr r12, [r0], #4
  blx r12
  add r0, r0, #1
  ldr r3, [sp, #8]
  bx r3
piece_end fixed

#elif defined(__powerpc64__)

/* The return address is saved in the caller's frame, above the CFA. Code is called with its address in r12. */
piece framed
  mflr 0
  std 31, -8(1)
  std 0, 16(1)
  .cfi_offset 31, -8
  .cfi_offset 65, 16
  stdu 1, -64(1)
  .cfi_def_cfa_offset 64
  mr 31, 1
  .cfi_def_cfa_register 31
  ld 12, 0(3)
  addi 3, 3, 8
  mtctr 12
  bctrl
  addi 3, 3, 1
  addi 1, 31, 64
  .cfi_def_cfa 1, 0
  ld 0, 16(1)
  mtlr 0
  .cfi_restore 65
  ld 31, -8(1)
  .cfi_restore 31
  blr
piece_end framed

piece rows
  mflr 0
  std 0, 16(1)
place rows_return
  .cfi_offset 65, 16
  stdu 1, -80(1)
place rows_lowered
  .cfi_def_cfa_offset 80
  std 30, 56(1)
  std 31, 64(1)
place rows_saved
  .cfi_offset 30, -24
  .cfi_offset 31, -16
  mr 30, 1
place rows_other
  .cfi_def_cfa_register 30
  li 31, 0
  ld 12, 0(3)
  addi 3, 3, 8
  mtctr 12
  bctrl
  addi 3, 3, 1
  ld 31, 64(1)
  ld 30, 56(1)
place rows_restored
  .cfi_def_cfa_register 1
  .cfi_restore 30
  .cfi_restore 31
  addi 1, 1, 80
place rows_raised
  .cfi_def_cfa_offset 0
  ld 0, 16(1)
  mtlr 0
place rows_in_register
  .cfi_restore 65
  blr
piece_end rows

piece entry
  mflr 0
  std 0, 16(1)
place entry_saved
  .cfi_offset 65, 16
  stdu 1, -64(1)
place entry_lowered
  .cfi_def_cfa_offset 64
  addi 11, 12, 1f - entry_begin
  std 11, 48(1)
  ld 12, 0(3)
  addi 3, 3, 8
  mtctr 12
  bctr
1:
  addi 1, 1, 64
place entry_raised
  .cfi_def_cfa_offset 0
  ld 0, 16(1)
  mtlr 0
place entry_restored
  .cfi_restore 65
  blr
piece_end entry

piece fixed
  .cfi_def_cfa_offset 64
  .cfi_offset 65, 16
  ld 12, 0(3)
  addi 3, 3, 8
  mtctr 12
  bctrl
  addi 3, 3, 1
  ld 11, 48(1)
  mtctr 11
  bctr
piece_end fixed

#endif
