// See double_include_a.cc.
#include <cstdint>

#include "jitsym.h"
#include "jitsym.h"

uint32_t version_in_b();

uint32_t version_in_b() {
  return jitsym_version_number() == JITSYM_VERSION_NUMBER ? JITSYM_VERSION_NUMBER : 0;
}
