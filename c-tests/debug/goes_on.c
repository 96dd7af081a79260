/*
 * Registers a function for each line that it reads, calls what a debugger may have a breakpoint in, and says so: DIR.
 */
#define _GNU_SOURCE
#include <sys/prctl.h>

#include "testing.h"

__attribute__((noinline)) void reached(unsigned number) {
  __asm__ volatile("" : : "r"(number));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  /* Any tracer of this user may come. */
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  jitsym *session = test_open_flags(0, 0);
  test_register(session, 0x7000000000, 64, "first");
  CHECK_OK(test_flush(session));
  puts("waiting");
  fflush(stdout);
  for (unsigned number = 0; getchar() != EOF; number++) {
    char name[64];
    snprintf(name, sizeof name, "late_%u", number);
    test_register(session, 0x7100000000 + 64 * number, 64, name);
    CHECK_OK(test_flush(session));
    reached(number);
    printf("late_%u\n", number);
    fflush(stdout);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
