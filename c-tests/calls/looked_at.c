/*
 * A program that others look at while it runs: DIR [NAME=VALUE]... Each letter on its standard input is a thing to do, which it
 * repeats when that is done: r registers code, u unregisters the oldest, x is refused, f flushes.
 */
#include "testing.h"

int main(int argc, char **argv) {
  test_begin(argc, argv);
  for (int i = 2; i < argc; i++) {
    CHECK(putenv(argv[i]) == 0);
  }
  jitsym *session = test_open_flags(getenv("JITSYM") != NULL ? 0 : JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, 0);
  jitsym_id ids[1000];
  size_t registered = 0, unregistered = 0;
  for (int c; (c = getchar()) != EOF;) {
    if (c == 'r') {
      CHECK(registered < 1000);
      ids[registered] = test_register(session, 0x7000000000 + 0x100 * registered, 16, "looked_at");
      registered++;
    } else if (c == 'u') {
      CHECK_OK(jitsym_unregister(session, ids[unregistered++]));
    } else if (c == 'x') {
      CHECK_STATUS(jitsym_unregister(session, 77), JITSYM_ERR_UNKNOWN_ID);
    } else {
      jitsym_status status = jitsym_flush(session, 10000);
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED);
    }
    putchar(c);
    fflush(stdout);
  }
  return 0;
}
