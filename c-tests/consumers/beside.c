/* Uses libjitsym and another library that is written in Rust. */
#include <inttypes.h>
#include <jitsym.h>
#include <stddef.h>
#include <stdio.h>

int another(int number);

static const unsigned char code_bytes[64];

int main(void) {
  printf("another: %d, caught %d\n", another(1), -another(5));

  jitsym *session = NULL;
  jitsym_status status = jitsym_init(NULL, &session);
  jitsym_code code = {.struct_size = sizeof code};
  code.addr = (uint64_t)(uintptr_t)code_bytes;
  code.size = sizeof code_bytes;
  code.bytes = code_bytes;
  code.name = "beside";
  if (status == JITSYM_OK) {
    status = jitsym_register(session, &code, NULL);
  }
  if (status == JITSYM_OK) {
    status = jitsym_flush(session, 10000);
  }
  jitsym_stats stats = {.struct_size = sizeof stats};
  jitsym_get_stats(session, &stats);
  printf("jitsym: %d, %" PRIu64 " registered\n", (int)status, stats.registered);
  jitsym_close(session);
  return 0;
}
