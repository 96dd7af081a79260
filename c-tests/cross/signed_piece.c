/*
 * What the C compiler makes of a function that signs its return address, for signed.c to copy: compiled once for each key, in a
 * section of its own, whose ends the linker names.
 */
#include "pieces.h"

long FUNCTION(const piece *next);
__attribute__((section(SECTION))) long FUNCTION(const piece *next) {
  return next->call(next + 1) + 1;
}
