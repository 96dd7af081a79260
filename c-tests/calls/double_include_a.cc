// The header twice in one unit, first of all headers, and in a second unit: double_include_b.cc.
#include "jitsym.h"
#include "jitsym.h"

#include <cstdio>

uint32_t version_in_b();

int main() {
  if (jitsym_version_number() != JITSYM_VERSION_NUMBER || version_in_b() != jitsym_version_number()) {
    return 1;
  }
  std::puts("ok");
  return 0;
}
