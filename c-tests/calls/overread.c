/* Says that a line table is longer than it is: what reads behind its end is the library's own code, and a sanitizer finds it. */
#include <stdlib.h>

#include "testing.h"

int main(int argc, char **argv) {
  test_begin(argc, argv);
  jitsym_line *lines = calloc(2, sizeof *lines);
  CHECK(lines != NULL);
  lines[0].file = lines[1].file = "overread.c";
  lines[0].line = lines[1].line = 1;
  jitsym_code code = test_code(0x7000000000, 64, "overread");
  code.lines = lines;
  code.line_count = 3;
  jitsym_register(test_open(), &code, NULL);
  free(lines);
  return test_end();
}
