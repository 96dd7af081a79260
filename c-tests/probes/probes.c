/* Makes known numbers of calls, once a line has come on standard input. */
#include "testing.h"

enum { TURNS = 25 };

int main(int argc, char **argv) {
  test_begin(argc, argv);
  jitsym *session = test_open();
  printf("ready\n");
  fflush(stdout);
  CHECK(getchar() == '\n');
  for (int turn = 0; turn < TURNS; turn++) {
    jitsym_id id = test_register(session, 0x100000, 64, "first");
    jitsym_code code = test_code(0x200000, 32, "second, cut");
    code.name_len = strlen("second");
    CHECK_OK(jitsym_register(session, &code, NULL));
    static const jitsym_line line = {0, 3, 0, 0, "a.js"};
    code = test_code(0x300000, 16, "third");
    code.lines = &line;
    code.line_count = 1;
    CHECK_OK(jitsym_register(session, &code, NULL));
    jitsym_move_target target = test_target(0x400000);
    CHECK_OK(jitsym_move(session, id, &target));
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, id));
    CHECK_OK(jitsym_unregister_range(session, 0x200000, 0x200000, 0));
    code.size = 0;
    CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_register(session, &code, NULL));
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
