/* A program with more thread-local storage than the library's threads need for themselves: the C library takes it from their stacks. */
#include "testing.h"

static _Thread_local volatile char large[600 << 10];

static void starts(void) {
  large[sizeof large - 1] = 1;
  jitsym *session = test_open();
  static unsigned char code[64 << 10];
  for (uint64_t i = 0; i < 100; i++) {
    jitsym_code piece = test_code(0x7200000000 + i * 0x100000, sizeof code, "any");
    piece.bytes = code;
    CHECK_OK(jitsym_register(session, &piece, NULL));
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.registered == 100 && stats.sinks_failed == 0 && large[sizeof large - 1] == 1);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(starts);
  return test_end();
}
