/* Each initialiser of the header gives its struct a size, what it names, and 0 in all other fields. C and C++. */
#include <stdio.h>
#include <string.h>

#include "jitsym.h"
#include "jitsym_region.h"

#ifdef __cplusplus
#define ADDRESS(pointer) reinterpret_cast<uintptr_t>(pointer)
#else
#define ADDRESS(pointer) (uintptr_t)(pointer)
#endif

/* Where a struct differs from one of zeros with these fields, the program ends with this line. */
#define IS(value, type, fields)                      \
  do {                                               \
    type expected;                                   \
    memset(&expected, 0, sizeof expected);           \
    expected.struct_size = sizeof expected;          \
    fields;                                          \
    if (memcmp(&(value), &expected, sizeof expected) != 0) { \
      return __LINE__;                               \
    }                                                \
  } while (0)

int main(void) {
  static const char name[] = "name";
  static char code_bytes[16];
  int size = 16; /* a signed variable, as compilers have them */
  jitsym_code code = JITSYM_CODE(code_bytes, size, name);
  IS(code, jitsym_code, expected.addr = ADDRESS(code_bytes); expected.size = 16; expected.name = name);
  jitsym_code number = JITSYM_CODE(0x1000u, 1, "n");
  if (number.addr != 0x1000 || number.size != 1) {
    return __LINE__;
  }
  /* A constant, where the language has it. A function has an address too. */
  static jitsym_unwind constant = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);
  IS(constant, jitsym_unwind, expected.kind = JITSYM_UNWIND_ROWS);
  jitsym_code function = JITSYM_CODE(&puts, 1, "puts");
  if (function.addr != ADDRESS(&puts)) {
    return __LINE__;
  }
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FIXED_FRAME);
  IS(unwind, jitsym_unwind, expected.kind = JITSYM_UNWIND_FIXED_FRAME);
  jitsym_move_target target = JITSYM_MOVE_TARGET(code_bytes);
  IS(target, jitsym_move_target, expected.addr = ADDRESS(code_bytes));
  jitsym_options options = JITSYM_OPTIONS;
  IS(options, jitsym_options, );
  jitsym_region_options wanted = JITSYM_REGION_OPTIONS(size);
  IS(wanted, jitsym_region_options, expected.size = 16);
  jitsym_region region = JITSYM_REGION;
  IS(region, jitsym_region, );
  jitsym_stats stats = JITSYM_STATS;
  IS(stats, jitsym_stats, );
  puts("ok");
  return 0;
}
