/* Registers, moves and ends code in a function of its own: DIR. */
#include "testing.h"

static const uint64_t ADDR = 0x7100000000;

__attribute__((noinline)) void calls_the_library(jitsym *session) {
  static const unsigned char bytes[64];
  jitsym_id id;
  jitsym_code code = test_code(ADDR, sizeof bytes, "of the guest");
  code.bytes = bytes;
  CHECK_OK(jitsym_register(session, &code, &id));
  jitsym_move_target target = test_target(ADDR + 0x1000);
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK_OK(jitsym_unregister(session, id));
}

__attribute__((noinline)) void calls(jitsym *session) {
  calls_the_library(session);
  __asm__ volatile(""); /* No sibling call. */
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  jitsym *session = test_open();
  calls(session);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
