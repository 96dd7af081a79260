/*
 * Two compiled functions, registered rightly or with one mistake, which the argument names. Prints what they compute.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <jitsym.h>

enum { RBX = 3, RBP = 6, RSP = 7, OUTER = 64, SIZE = 4096 };

/* push rbx; lea rbx, [rdi+1]; mov rax, rbx; pop rbx; ret */
static const char inner_code[] = "\x53\x48\x8d\x5f\x01\x48\x89\xd8\x5b\xc3";
/* push rbp; mov rbp, rsp; push rbx; sub rsp, 8; mov rbx, rdi; mov rax, inner; call rax; add rax, rbx; add rsp, 8; pop rbx;
 * pop rbp; ret */
static char outer_code[] = "\x55\x48\x89\xe5\x53\x48\x83\xec\x08\x48\x89\xfb\x48\xb8........\xff\xd0"
                           "\x48\x01\xd8\x48\x83\xc4\x08\x5b\x5d\xc3";
enum { INNER_SIZE = sizeof inner_code - 1, OUTER_SIZE = sizeof outer_code - 1, POINTER = 14, AFTER_POINTER = 22 };

static jitsym *session;
static const char *mistake;

static int is(const char *name) {
  return strcmp(mistake, name) == 0;
}

static void check(int status) {
  if (status != JITSYM_OK) {
    fprintf(stderr, "status %d\n", status);
    exit(1);
  }
}

static void put(const char *name, char *at, uint64_t size, const void *bytes, const jitsym_unwind *unwind) {
  jitsym_code code = JITSYM_CODE(at, size, name);
  code.bytes = bytes;
  code.unwind = unwind;
  check(jitsym_register(session, &code, NULL));
}

/* Tables that the library's own descriptions cannot say: for so many bytes, with the return address this far below the CFA. */
static void put_raw(char *at, unsigned covered, unsigned return_address) {
  unsigned char table[] = {
      /* CIE: version 1, "zR", code factor 1, data factor -8, return address 16, pcrel|sdata4; CFA = rsp + 8 */
      20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 0, 0, 0,
      /* FDE: where, how long, no augmentation; behind push: CFA = rsp + 16, rbx at CFA - 16; behind pop: rsp + 8 */
      24, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x83, 2, 0x48, 0x0e, 8, 0xc3, 0, 0, 0, 0, 0, 0};
  table[21] = (unsigned char)(return_address / 8);
  table[36] = (unsigned char)covered;
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_EH_FRAME);
  unwind.eh_frame = table;
  unwind.eh_frame_size = sizeof table;
  /* So that the pointer, which is 0, is that to the code. */
  unwind.eh_frame_addr = (uint64_t)(uintptr_t)at - 32;
  put("inner", at, INNER_SIZE, at, &unwind);
}

static void put_inner(char *at) {
  if (is("return-address"))
    put_raw(at, INNER_SIZE, 16);
  else if (is("no-row"))
    put_raw(at, 5, 8);
  else if (is("raw"))
    put_raw(at, INNER_SIZE, 8);
  else {
    const jitsym_saved_register rbx = {RBX, -16};
    const jitsym_unwind_row rows[] = {
        {1, RSP, is("cfa") ? 24 : 16, !is("saved-register"), &rbx}, {9, RSP, 8, 0, NULL}};
    jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);
    unwind.rows = rows;
    unwind.row_count = 2;
    char other[SIZE];
    memset(other, 0x90, sizeof other);
    uint64_t size = is("size") ? OUTER + OUTER_SIZE : INNER_SIZE;
    put("inner", at + (is("address") ? 64 : 0), size, is("bytes") ? other : at, &unwind);
  }
}

static void put_outer(char *at) {
  const jitsym_saved_register rbp = {RBP, -16};
  const jitsym_saved_register both[] = {{RBP, -16}, {RBX, is("saved-place") ? -32 : -24}};
  const jitsym_unwind_row rows[] = {
      {1, RSP, 16, 1, &rbp}, {4, RBP, 16, 1, &rbp}, {5, RBP, 16, 2, both}, {32, RBP, 16, 1, &rbp}, {33, RSP, 8, 0, NULL}};
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);
  unwind.rows = rows;
  unwind.row_count = is("short") ? 3 : 5;
  put("outer", at, is("short") ? AFTER_POINTER : OUTER_SIZE, at, &unwind);
}

int main(int count, char **arguments) {
  mistake = count > 1 ? arguments[1] : "none";
  /* In a wrong place there is more than nothing. */
  char *code = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(code, 0xcc, SIZE);
  char *inner = code + (is("size") ? 0 : 256), *outer = code + OUTER;
  memcpy(inner, inner_code, INNER_SIZE);
  memcpy(outer_code + POINTER, &inner, sizeof inner);
  memcpy(outer, outer_code, OUTER_SIZE);
  if (mprotect(code, SIZE, PROT_READ | PROT_EXEC) != 0)
    return 1;
  check(jitsym_init(NULL, &session));
  if (!is("unregistered") && !is("late"))
    put_inner(inner);
  put_outer(outer);
  check(jitsym_flush(session, 0));
  long sum = 0;
  for (long n = 1; n <= 5; n++)
    sum += ((long (*)(long))(uintptr_t)outer)(n);
  if (is("late"))
    put_inner(inner);
  printf("%ld\n", sum);
  return jitsym_close(session) == JITSYM_OK ? 0 : 1;
}
