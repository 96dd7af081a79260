/*
 * The program of README.md, which registers its two functions rightly, or with the mistake that the first argument names. It computes
 * for so many milliseconds as the second one says.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <jitsym.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static jitsym *session;
static const char *mistake = "none";

static int is(const char *name) {
  return strcmp(mistake, name) == 0;
}

static void compiled(const char *name, char *start, uint64_t size) {
  jitsym_unwind frame = JITSYM_UNWIND(is("frame-pointer") ? JITSYM_UNWIND_FRAME_POINTER : JITSYM_UNWIND_FIXED_FRAME);
  frame.cfa_offset = is("cfa") ? 16 : 8;
  jitsym_code code = JITSYM_CODE(start, size, name);
  char other[4096];
  memset(other, 0x90, sizeof other);
  code.bytes = is("bytes") ? other : start;
  code.unwind = &frame;
  if (is("struct-size"))
    code.struct_size = 0;
  if (is("address"))
    code.addr += 64;
  jitsym_register(session, &code, NULL);
}

/* What the processor has spent on this program, in milliseconds. */
static long spent(void) {
  return (long)(clock() / (CLOCKS_PER_SEC / 1000));
}

int main(int count, char **arguments) {
  static const char made[] = "\x48\x89\xf8\x48\xd1\xe8\xc3\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc"
                             "\x31\xc9\x48\x83\xff\x01\x74\x19\xff\xc1\x40\xf6\xc7\x01\x75\x0a\xe8\xdb\xff\xff\xff"
                             "\x48\x89\xc7\xeb\xe8\x48\x8d\x7c\x7f\x01\xeb\xe1\x89\xc8\xc3";
  if (count > 1)
    mistake = arguments[1];
  /* As .NET has it. */
  int file = is("memfd") ? memfd_create("doublemapper", 0) : -1;
  if (file >= 0 && ftruncate(file, 4096) != 0)
    return 1;
  char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    return 1;
  memcpy(memory, made, sizeof made);
  mprotect(memory, 4096, PROT_READ | PROT_EXEC);
  if (is("session") || jitsym_init(NULL, &session) != JITSYM_OK)
    session = NULL;
  int (*collatz)(long) = (int (*)(long))(uintptr_t)(memory + 16);
  long begin = spent(), end = begin + (count > 2 ? atol(arguments[2]) : 150), late = begin + (is("late") ? 250 : 0);
  int registered = 0, forked = 0, wrong = 0;
  for (long n = 1; spent() < end || !registered; n++) {
    if (!registered && spent() >= late) {
      compiled("collatz", memory + 16, sizeof made - 17);
      compiled("halve", memory, is("size") ? sizeof made - 1 : 7);
      registered = 1;
    }
    if (is("fork") && spent() >= end - 50 && !forked) {
      pid_t child = fork();
      forked = 1;
      printf("process %d\n", (int)getpid());
      fflush(stdout);
      if (child != 0) {
        waitpid(child, NULL, 0);
        break;
      }
      end = spent() + 150;
      compiled("collatz_of_child", memory + 16, sizeof made - 17);
      compiled("halve_of_child", memory, 7);
    }
    for (long more = 0; more < 100; more++)
      wrong |= collatz(n + more) < 0;
  }
  jitsym_close(session);
  return wrong;
}
