/*
 * A process that runs compiled code in several programs, one after another: each program executes the next one. Prints which code lived
 * where, as prefork.c does. x86-64 only.
 *
 * Usage: executes SECONDS, of processor time for each program.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "pace.h"
#include "testing.h"

enum { PROGRAMS = 3 };

int main(int argc, char **argv) {
  CHECK(argc == 2 || argc == 3);
  int number = argc == 3 ? atoi(argv[2]) : 0;
  if (number == 0) {
    printf("pid %d\n", (int)getpid());
  }
  /* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; nop; pop rbp; ret */
  static const unsigned char loop[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,
                                       0,    0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3};
  /* Each program has its code elsewhere, even if the kernel does not choose addresses at random. */
  void *hint = (void *)(0x6f0000000000 + 0x10000000 * (uintptr_t)number);
  void *memory = mmap(hint, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memcpy(memory, loop, sizeof loop);
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(NULL, &session));
  char name[32];
  snprintf(name, sizeof name, "of_program_%d", number);
  uint64_t begin = test_now();
  test_register(session, (uint64_t)(uintptr_t)memory, sizeof loop, name);
  /* The clock does not restart with a program. */
  clock_t end = clock() + (clock_t)(atof(argv[1]) * test_pace() * CLOCKS_PER_SEC);
  while (clock() < end) {
    ((void (*)(void))memory)();
  }
  printf("life %d %llx %d %llu %llu %s\n", (int)getpid(), (unsigned long long)(uintptr_t)memory, (int)sizeof loop,
         (unsigned long long)begin, (unsigned long long)test_now(), name);
  fflush(stdout);
  if (number + 1 < PROGRAMS) {
    CHECK_OK(test_flush(session));
    char next[16];
    snprintf(next, sizeof next, "%d", number + 1);
    execl("/proc/self/exe", argv[0], argv[1], next, NULL);
    CHECK(!"the program can be executed");
  }
  CHECK_OK(jitsym_close(session));
  puts("end");
  return 0;
}
