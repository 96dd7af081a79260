/*
 * What the C compiler makes of a function with a frame pointer, for main.c to copy: the prologue that the library takes for the
 * usual one. Compiled with frame pointers, and in a section of its own, whose ends the linker names.
 */
#include "pieces.h"

#ifdef __arm__
/* Otherwise gcc has no tables here, or only those for debuggers. */
__asm__(".cfi_sections .eh_frame");
#endif

long compiled_begin(const piece *next);
__attribute__((section("compiled"))) long compiled_begin(const piece *next) {
  return next->call(next + 1) + 1;
}
