/* Memory, and code for it, for the programs that test regions on x86-64. */
#ifndef REGION_CODE_H
#define REGION_CODE_H

#include <sys/mman.h>

#include "jitsym_region.h"
#include "testing.h"

enum { PAGE = 4096, SIZE = 16 * PAGE, RWX = PROT_READ | PROT_WRITE | PROT_EXEC };

/* mov eax, value; ret */
enum { CODE_SIZE = 6 };

static inline void put_code(unsigned char *at, uint32_t value) {
  at[0] = 0xb8;
  memcpy(at + 1, &value, sizeof value);
  at[5] = 0xc3;
}

static inline uint32_t run_code(const void *at) {
  return ((uint32_t(*)(void))(uintptr_t)at)();
}

static inline unsigned char *memory_of(size_t size, int protection) {
  unsigned char *memory = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

/* Registers code that has these bytes. */
static inline jitsym_id announce_bytes(jitsym *session, const void *at, const void *bytes, const char *name) {
  jitsym_code code = test_code((uintptr_t)at, CODE_SIZE, name);
  code.bytes = bytes;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id != 0);
  return id;
}

/* Registers code as it lies there. */
static inline jitsym_id announce(jitsym *session, const void *at, const char *name) {
  return announce_bytes(session, at, at, name);
}

/* Registers code with a frame, a line of /left.toy, and a function that is inlined there. */
static inline jitsym_id announce_whole(jitsym *session, const void *at, const void *bytes, const char *name) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = 8;
  jitsym_line line = {0, 7, 1, 0, "/left.toy"};
  jitsym_inline inlined = {2, 6, "inlined", 0, "/left.toy", 8, 0, UINT32_MAX, 0};
  jitsym_code code = test_code((uintptr_t)at, CODE_SIZE, name);
  code.bytes = bytes;
  code.unwind = &unwind;
  code.lines = &line;
  code.line_count = 1;
  code.inlines = &inlined;
  code.inline_count = 1;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

/* In a child: waits until its parent has closed a pipe. */
static inline void await_close(const int pipe[2]) {
  char byte;
  CHECK(close(pipe[1]) == 0 && read(pipe[0], &byte, 1) == 0);
}

static inline jitsym *open_regions(void) {
  return test_open_flags(JITSYM_SINK_REGION, 0);
}

#endif
