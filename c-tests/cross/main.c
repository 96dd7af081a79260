/*
 * Code for another machine than that of the person who runs the tests: copies of what lies in pieces.S and compiled.c are laid
 * down as a compiler would, registered with the kinds of unwind description that there are, and run. They call each other, and
 * the last one `reached`, so that a debugger finds all of them on the stack. See tests/cross.rs.
 *
 * Usage: jit DIR [gdb]
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include <link.h>

#include "frames.h"
#include "testing.h"

/* Named by the linker. */
PLACE(__start_compiled);
PLACE(__stop_compiled);

enum { PIECES = 6, ROOM = 512 };

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

/* The `.eh_frame` of the program, which ends with a word that is 0. */
static struct {
  const unsigned char *begin;
  size_t size;
} eh_frame;

static int find_eh_frame(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME) {
      const unsigned char *hdr = (const unsigned char *)(uintptr_t)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
      int32_t distance;
      /* The distance to the section is relative to its own address. */
      CHECK(hdr[1] == 0x1b);
      memcpy(&distance, hdr + 4, sizeof distance);
      eh_frame.begin = hdr + 4 + distance;
      uint32_t length;
      do {
        memcpy(&length, eh_frame.begin + eh_frame.size, sizeof length);
        eh_frame.size += sizeof length + length;
      } while (length != 0);
    }
  }
  /* The first object is the program. */
  return 1;
}

/* With the tables that the compiler or the assembler has made of the original: distances in them lead from the section to code. */
static jitsym_unwind ready_tables(const unsigned char *at, const unsigned char *original) {
  jitsym_unwind unwind = none;
  unwind.kind = JITSYM_UNWIND_EH_FRAME;
  unwind.eh_frame = eh_frame.begin;
  unwind.eh_frame_size = eh_frame.size;
  unwind.eh_frame_addr = (uint64_t)(uintptr_t)eh_frame.begin + (uint64_t)(uintptr_t)at - (uint64_t)(uintptr_t)original;
  return unwind;
}

static void describe_all(jitsym *session, const unsigned char *at, const size_t *sizes) {
  struct frames made = frames();
#ifdef HAS_PRESET
  jitsym_unwind unwind = none;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  unwind.epilogue_begin = (uint32_t)sizes[0] - LEFT;
  describe(session, "jit_compiled", at, sizes[0], unwind);

  const jitsym_saved_register in_framed[] = {{OTHER, SAVED}};
  unwind.cfa_offset = FRAMED;
  unwind.saved = in_framed;
  unwind.saved_count = 1;
  unwind.saved_from = (uint32_t)(framed_saved - framed_begin);
  unwind.epilogue_begin = (uint32_t)(framed_epilogue - framed_begin);
  describe(session, "jit_framed", at + ROOM, sizes[1], unwind);
#else
  jitsym_unwind unwind = ready_tables(at, __start_compiled);
  describe(session, "jit_compiled", at, sizes[0], unwind);
  describe(session, "jit_framed", at + ROOM, sizes[1], ready_tables(at + ROOM, framed_begin));
#endif
  describe(session, "jit_ready", at + 2 * ROOM, sizes[2], ready_tables(at + 2 * ROOM, framed_begin));

  unwind = none;
  unwind.kind = JITSYM_UNWIND_ROWS;
  unwind.rows = made.rows;
  unwind.row_count = made.row_count;
  describe(session, "jit_rows", at + 3 * ROOM, sizes[3], unwind);

  unwind.rows = made.entry;
  unwind.row_count = made.entry_count;
  describe(session, "jit_entry", at + 4 * ROOM, sizes[4], unwind);

  unwind = none;
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = made.fixed_offset;
  unwind.saved = saved;
  unwind.saved_count = made.fixed_count;
  describe(session, "jit_fixed", at + 5 * ROOM, sizes[5], unwind);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  uint32_t sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, flags = 0;
  if (argc > 2 && strcmp(argv[2], "gdb") == 0) {
    sinks |= JITSYM_SINK_GDB;
    /* The library's threads have descriptors of their own, where the emulator does not find its connection to the debugger. */
    flags = JITSYM_INIT_NO_THREADS;
  }
  jitsym *session = test_open_flags(sinks, flags);

  const unsigned char *begins[] = {__start_compiled, framed_begin, framed_begin, rows_begin, entry_begin, fixed_begin};
  const unsigned char *ends[] = {__stop_compiled, framed_end, framed_end, rows_end, entry_end, fixed_end};
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
  dl_iterate_phdr(find_eh_frame, NULL);
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
