/* Registers, for a tool that counts instructions in jitsym_register: DIR COUNT SIZE LINES NAME-LENGTH. */
#define _GNU_SOURCE
#include "testing.h"

enum { LINES_MAX = 64 };

static uint64_t argument(char **argv, int index, uint64_t max) {
  char *end;
  uint64_t value = strtoull(argv[index], &end, 10);
  CHECK(*end == 0 && value <= max);
  return value;
}

int main(int argc, char **argv) {
  CHECK(argc == 6);
  test_dir = argv[1];
  uint64_t count = argument(argv, 2, 1 << 20), size = argument(argv, 3, TEST_CODE_MAX);
  size_t line_count = argument(argv, 4, LINES_MAX), name_len = argument(argv, 5, JITSYM_NAME_MAX);

  /* Memory for all records at once: what a registration costs must not depend on how far the writer has got. */
  jitsym_options options = test_options();
  options.max_memory = 1 << 30;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));

  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  char name[JITSYM_NAME_MAX];
  memset(name, 'n', sizeof name);
  jitsym_line lines[LINES_MAX];
  for (uint32_t i = 0; i < LINES_MAX; i++) {
    jitsym_line line = {i, i + 1, 1, 0, "/guest/a_source_file"};
    lines[i] = line;
  }
  jitsym_code code = test_code(0x7000000000, size, name);
  code.name_len = name_len;
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = line_count;
  for (uint64_t i = 0; i < count; i++) {
    jitsym_id id;
    CHECK_OK(jitsym_register(session, &code, &id));
    code.addr += size;
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
