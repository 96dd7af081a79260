/*
 * Code for another machine than that of the person who runs the tests: copies of what lies in pieces.S and compiled.c are laid
 * down as a compiler would, registered with the kinds of unwind description that there are, and run. They call each other, and
 * the last one `reached`, so that a debugger finds all of them on the stack. See tests/cross.rs.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "testing.h"
#include "pieces.h"

/* DWARF's numbers of registers, and what differs of the frames; LEFT: bytes behind the place where compiled.c's is taken down. */
#if defined(__aarch64__)
enum { FP = 29, RETURN = 30, OTHER = 19, SP = 31, FRAMED = 32, SAVED = -16, LEFT = 4 };
#elif defined(__riscv)
enum { FP = 8, RETURN = 1, OTHER = 9, SP = 2, FRAMED = 0, SAVED = -24, LEFT = 8 };
#endif

/* Begin and end of the pieces, and the places in them. */
#define PIECE(name) extern const unsigned char name##_begin[], name##_end[]
#define PLACE(name) extern const unsigned char name[]
PIECE(framed);
PIECE(rows);
PIECE(entry);
PIECE(fixed);
PLACE(framed_saved);
PLACE(framed_epilogue);
PLACE(rows_lowered);
PLACE(rows_return);
PLACE(rows_saved);
PLACE(rows_other);
PLACE(rows_restored);
PLACE(rows_in_register);
PLACE(rows_raised);
PLACE(entry_lowered);
PLACE(entry_saved);
PLACE(entry_restored);
PLACE(entry_raised);
/* Named by the linker. */
PLACE(__start_compiled);
PLACE(__stop_compiled);

enum { PIECES = 5, ROOM = 512 };

static uint32_t offset(const unsigned char *place, const unsigned char *begin) {
  return (uint32_t)(place - begin);
}

/* Where a debugger stops. */
__attribute__((noinline)) void ready(void);
void ready(void) {
  __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) long reached(const piece *next);
long reached(const piece *next) {
  __asm__ volatile("" ::"r"(next) : "memory");
  return 100;
}

__attribute__((noinline)) long run(const piece *table);
long run(const piece *table) {
  return table->call(table + 1) + 1;
}

/* Registers a piece where it has been copied to. */
static void describe(jitsym *session, const char *name, const unsigned char *at, size_t size, jitsym_unwind unwind) {
  unwind.struct_size = sizeof unwind;
  jitsym_code code = test_code((uintptr_t)at, size, name);
  code.bytes = at;
  code.unwind = &unwind;
  jitsym_id id;
  CHECK_OK(jitsym_register(session, &code, &id));
}

static const jitsym_unwind none;

static void describe_all(jitsym *session, const unsigned char *at, const size_t *sizes) {
  jitsym_unwind unwind = none;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  unwind.epilogue_begin = (uint32_t)sizes[0] - LEFT;
  describe(session, "jit_compiled", at, sizes[0], unwind);

  const jitsym_saved_register saved[] = {{OTHER, SAVED}};
  unwind.cfa_offset = FRAMED;
  unwind.saved = saved;
  unwind.saved_count = 1;
  unwind.saved_from = offset(framed_saved, framed_begin);
  unwind.epilogue_begin = offset(framed_epilogue, framed_begin);
  describe(session, "jit_framed", at + ROOM, sizes[1], unwind);

  const jitsym_saved_register in_rows[] = {{RETURN, -8}, {OTHER, -40}, {FP, -32}};
  const jitsym_unwind_row rows[] = {
      {offset(rows_lowered, rows_begin), SP, 48, 0, NULL},
      {offset(rows_return, rows_begin), SP, 48, 1, in_rows},
      {offset(rows_saved, rows_begin), SP, 48, 3, in_rows},
      {offset(rows_other, rows_begin), OTHER, 48, 3, in_rows},
      {offset(rows_restored, rows_begin), SP, 48, 1, in_rows},
      {offset(rows_in_register, rows_begin), SP, 48, 0, NULL},
      {offset(rows_raised, rows_begin), SP, 0, 0, NULL},
  };
  unwind = none;
  unwind.kind = JITSYM_UNWIND_ROWS;
  unwind.rows = rows;
  unwind.row_count = sizeof rows / sizeof rows[0];
  describe(session, "jit_rows", at + 2 * ROOM, sizes[2], unwind);

  const jitsym_unwind_row in_entry[] = {
      {offset(entry_lowered, entry_begin), SP, 32, 0, NULL},
      {offset(entry_saved, entry_begin), SP, 32, 1, in_rows},
      {offset(entry_restored, entry_begin), SP, 32, 0, NULL},
      {offset(entry_raised, entry_begin), SP, 0, 0, NULL},
  };
  unwind.rows = in_entry;
  unwind.row_count = sizeof in_entry / sizeof in_entry[0];
  describe(session, "jit_entry", at + 3 * ROOM, sizes[3], unwind);

  unwind = none;
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = 32;
  unwind.saved = in_rows;
  unwind.saved_count = 1;
  describe(session, "jit_fixed", at + 4 * ROOM, sizes[4], unwind);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  jitsym *session = test_open();

  const unsigned char *begins[] = {__start_compiled, framed_begin, rows_begin, entry_begin, fixed_begin};
  const unsigned char *ends[] = {__stop_compiled, framed_end, rows_end, entry_end, fixed_end};
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t size = (PIECES * ROOM + page - 1) / page * page;
  unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  piece table[PIECES + 1];
  size_t sizes[PIECES];
  for (int i = 0; i < PIECES; i++) {
    sizes[i] = (size_t)(ends[i] - begins[i]);
    memcpy(memory + i * ROOM, begins[i], sizes[i]);
    table[i].call = (long (*)(const piece *))(uintptr_t)(memory + i * ROOM);
  }
  table[PIECES].call = reached;
  CHECK(mprotect(memory, size, PROT_READ | PROT_EXEC) == 0);
  __builtin___clear_cache((char *)memory, (char *)memory + size);
  describe_all(session, memory, sizes);
  CHECK_OK(test_flush(session));

  /* Once without and once with what a debugger is told meanwhile. */
  for (int i = 0; i < 2; i++) {
    ready();
    /* Each of them adds one, and `run` does, but the one that only jumps does not. */
    CHECK(run(table) == 100 + PIECES);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
