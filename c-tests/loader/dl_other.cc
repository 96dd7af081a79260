// The other file of the program dl.c, in C++: it never loads the library, and has it all the same.
#include "dl.h"

jitsym_status other_file_registers(jitsym *session, const jitsym_code *code) {
  return jitsym_register(session, code, nullptr);
}

jitsym_status other_file_asks_why(char *buffer, size_t size) {
  return jitsym_last_error(nullptr, buffer, size);
}
