/*
 * How much of its stack each call needs. Runtimes run compiled code, and what compiles it, on small stacks of their own.
 *
 * Each call runs on a stack that was painted. The lowest byte that has another colour afterwards says how deep the call went.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <ucontext.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

enum {
  /* What the header promises. */
  REGISTERING = 24 << 10,
  OTHERS = 32 << 10,
  STACK = 256 << 10,
  COLOUR = 0xa5,
};

static unsigned char *stack;
static ucontext_t here, there;
static jitsym *session;
static unsigned char *memory;
static jitsym_id id;
static jitsym_region region;

/* Returns how many bytes it takes to do this, and to come to it. */
static size_t depth_of(void (*body)(void)) {
  memset(stack, COLOUR, STACK);
  CHECK(getcontext(&there) == 0);
  there.uc_stack.ss_sp = stack;
  there.uc_stack.ss_size = STACK;
  there.uc_link = &here;
  makecontext(&there, body, 0);
  CHECK(swapcontext(&here, &there) == 0);
  size_t untouched = 0;
  while (untouched < STACK && stack[untouched] == COLOUR) {
    untouched++;
  }
  return STACK - untouched;
}

static void nothing(void) {
}

static void init(void) {
  session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
}

static void register_plain(void) {
  id = test_register(session, 0x7000000000, 64, "plain");
}

/* With everything that there is. */
static void register_all(void) {
  enum { COUNT = 50 };
  static jitsym_line lines[COUNT];
  static jitsym_inline inlines[COUNT];
  jitsym_saved_register saved = {3, -24};
  jitsym_unwind_row rows[] = {{0, 7, 8, 0, NULL}, {2, 6, 16, 1, &saved}};
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);
  unwind.rows = rows;
  unwind.row_count = 2;
  unwind.row_size = sizeof rows[0];
  for (uint32_t i = 0; i < COUNT; i++) {
    lines[i].offset = i;
    lines[i].line = i + 1;
    lines[i].file = i % 2 == 0 ? "a.src" : "b.src";
    inlines[i].begin = i;
    inlines[i].end = 200 - i;
    inlines[i].name = "inlined";
    inlines[i].parent = i == 0 ? UINT32_MAX : i - 1;
    inlines[i].call_file = "c.src";
    inlines[i].call_line = i + 1;
  }
  jitsym_code code = test_code((uintptr_t)memory + 4096, 200, "a name with \x01 control characters\xff, to be cleaned");
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = COUNT;
  code.line_size = sizeof lines[0];
  code.inlines = inlines;
  code.inline_count = COUNT;
  code.inline_size = sizeof inlines[0];
  code.file = "c.src";
  code.line = 7;
  CHECK_OK(jitsym_register(session, &code, NULL));
}

static void register_large(void) {
  jitsym_code code = test_code((uintptr_t)memory, 1 << 20, "large");
  code.bytes = memory;
  CHECK_OK(jitsym_register(session, &code, NULL));
}

static void move(void) {
  jitsym_move_target target = test_target(0x7000010000);
  CHECK_OK(jitsym_move(session, id, &target));
}

static void unregister(void) {
  CHECK_OK(jitsym_unregister(session, id));
}

static void unregister_range(void) {
  CHECK_OK(jitsym_unregister_range(session, 0x7000000000, 1 << 20, 0));
}

static void flush(void) {
  CHECK_OK(jitsym_flush(session, 0));
}

static void ask(void) {
  char text[TEST_PATH_MAX];
  (void)jitsym_wanted(session);
  (void)test_stats_now(session);
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
}

static void create(void) {
  region = test_region(session, 1 << 16, 0);
}

static void register_in_region(void) {
  jitsym_code code = test_code((uintptr_t)region.exec, 64, "in a region");
  memset(region.write, 0xc3, 64);
  code.bytes = region.exec;
  CHECK_OK(jitsym_register(session, &code, NULL));
}

static void release(void) {
  CHECK_OK(jitsym_region_release(session, region.exec));
}

static void adopt(void) {
  CHECK_OK(jitsym_region_adopt(session, memory, 1 << 20));
}

static void allocate(void) {
  jitsym_region piece = JITSYM_REGION;
  CHECK_OK(jitsym_alloc(session, 100, 0, 0, &piece));
  CHECK_OK(jitsym_free(session, piece.exec));
}

static void disable(void) {
  CHECK_OK(jitsym_disable(session, 0));
}

static void enable(void) {
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
}

static void close_it(void) {
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED && memory != MAP_FAILED);
  static const struct {
    const char *name;
    void (*body)(void);
    size_t most;
  } calls[] = {
      {"jitsym_init", init, OTHERS},
      {"jitsym_register", register_plain, REGISTERING},
      {"jitsym_register", register_all, REGISTERING},
      {"jitsym_register", register_large, REGISTERING},
      {"jitsym_move", move, REGISTERING},
      {"jitsym_flush", flush, REGISTERING},
      {"jitsym_unregister", unregister, REGISTERING},
      {"jitsym_unregister_range", unregister_range, REGISTERING},
      {"the calls that ask", ask, REGISTERING},
      {"jitsym_region_create", create, OTHERS},
      {"jitsym_register", register_in_region, REGISTERING},
      {"jitsym_region_adopt", adopt, OTHERS},
      {"jitsym_register", register_all, REGISTERING},
      {"jitsym_region_release", release, OTHERS},
      {"jitsym_alloc, jitsym_free", allocate, OTHERS},
      {"jitsym_disable", disable, OTHERS},
      {"jitsym_enable", enable, OTHERS},
      {"jitsym_close", close_it, OTHERS},
  };
  size_t before = depth_of(nothing);
  int is_right = 1;
  for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    size_t depth = depth_of(calls[i].body) - before;
    is_right &= depth <= calls[i].most;
    fprintf(stderr, "%s: %zu of %zu bytes\n", calls[i].name, depth, calls[i].most);
  }
  CHECK(is_right);
  return test_end();
}
