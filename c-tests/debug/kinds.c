/*
 * Code without frame pointers in each kind of memory, for a debugger to stop and step in. DIR KIND. x86-64.
 *
 * The stack is known: main, call_through, jit_outer, jit_middle, jit_inner, reached. Between the calls, jit_inner is replaced by
 * code that begins with another instruction, at the same address.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "chain.h"
#include "jitsym_region.h"
#include "maps.h"
#include "testing.h"

enum { PIECES = 3, INNER = 2, PAGE = 4096, MEMORY = 16 * PAGE, CALLS = 10 };

static jitsym *session;
/* Where code runs, the distance to where it is written, and the distance from one piece to the next. */
static unsigned char *memory;
static ptrdiff_t to_write;
static size_t stride = 128;
/* Whether the protection is changed for each piece. */
static int flips;
static char source[600];
/* Changes in each call. A debugger watches it. */
int watched;

__attribute__((noinline)) int reached(int value) {
  watched++;
  return value + 1;
}

__attribute__((noinline)) int call_through(const void *at) {
  int result = ((int (*)(int))(uintptr_t)at)(41);
  __asm__ volatile("" : "+r"(result));
  return result;
}

static unsigned char *mapped(int protection) {
  unsigned char *at = mmap(NULL, MEMORY, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static void open_memory(const char *kind) {
  jitsym_region region = JITSYM_REGION;
  jitsym_region_options options = JITSYM_REGION_OPTIONS(MEMORY);
  if (strcmp(kind, "plain") == 0 || strcmp(kind, "adopted") == 0) {
    memory = mapped(PROT_READ | PROT_WRITE | PROT_EXEC);
  } else if (strcmp(kind, "adopted-flips") == 0) {
    memory = mapped(PROT_READ | PROT_WRITE);
    flips = 1;
  } else if (strcmp(kind, "group") == 0) {
    /* Each piece has a mapping of its own. */
    memory = mapped(PROT_NONE);
    stride = 2 * PAGE;
    flips = 1;
  } else if (strcmp(kind, "one-view") == 0) {
    options.flags = JITSYM_REGION_ONE_VIEW;
    CHECK_OK(jitsym_region_create(session, &options, &region));
    memory = region.exec;
    flips = 1;
  } else {
    if (strcmp(kind, "alloc") == 0) {
      CHECK_OK(jitsym_alloc(session, MEMORY, 0, 0, &region));
    } else {
      CHECK(strcmp(kind, "two-views") == 0);
      CHECK_OK(jitsym_region_create(session, &options, &region));
    }
    memory = region.exec;
    to_write = (unsigned char *)region.write - memory;
  }
}

/* Writes a piece, behind so many instructions that do nothing, and registers it. */
static jitsym_id make(int piece, size_t nops) {
  static const char *const names[PIECES] = {"jit_outer", "jit_middle", "jit_inner"};
  unsigned char *at = memory + stride * (size_t)piece;
  uint64_t next = piece == INNER ? (uint64_t)(uintptr_t)reached : (uint64_t)(uintptr_t)(at + stride);
  unsigned char *page = memory + stride * (size_t)piece / PAGE * PAGE;
  CHECK(!flips || mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
  memset(at + to_write, 0x90, nops);
  size_t size = nops + chain_emit(at + to_write + nops, next);
  CHECK(!flips || mprotect(page, PAGE, PROT_READ | PROT_EXEC) == 0);
  jitsym_unwind_row rows[4];
  jitsym_unwind unwind = chain_unwind(rows);
  for (int row = 0; row < 4; row++) {
    rows[row].offset += (uint32_t)nops;
  }
  jitsym_line lines[] = {{0, 10 * (unsigned)(piece + 1), 1, 0, source}};
  jitsym_code code = test_code((uintptr_t)at, size, names[piece]);
  code.bytes = at;
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = 1;
  jitsym_id id;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 3);
  const char *kind = argv[2];
  snprintf(source, sizeof source, "%s/chain.toy", argv[1]);
  session = test_open_flags(0, strcmp(kind, "plain") == 0 ? 0 : JITSYM_INIT_ADOPT);
  open_memory(kind);
  jitsym_id inner = 0;
  for (int piece = 0; piece < PIECES; piece++) {
    inner = make(piece, 0);
  }
  CHECK_OK(test_flush(session));
  CHECK(is_of_file(memory, "/jit-") == (strcmp(kind, "plain") != 0));
  for (size_t call = 0; call < CALLS; call++) {
    CHECK(call_through(memory) == 42);
    CHECK_OK(jitsym_unregister(session, inner));
    inner = make(INNER, call % 3);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
