/* The part of ends.c that takes C++: an exception that nobody catches. */
#include <stdexcept>

extern "C" void ends_throw(void);

void ends_throw(void) {
  throw std::runtime_error("nobody catches it");
}
