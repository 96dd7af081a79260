/* A host for continuous profilers: two chains of three functions before the profiler attaches, and two later.
 *
 * profiled DIR KIND: KIND is two-views, one-view, adopted or alloc. Prints "ready". At SIGUSR1, compiles the late chains and prints
 * "late". Runs until it is killed. Functions: early_fp_outer calls early_fp_middle, which calls early_fp_inner, and so on for early_sp, late_fp and
 * late_sp. The functions with fp have a frame pointer; the functions with sp have only a frame of fixed size. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#include "jitsym_region.h"
#include "testing.h"

enum { SIZE = 256 << 10, CHAINS = 4, TURNS = 1000000 };

static jitsym *session;
static const char *kind;
static unsigned char *exec_view, *write_view;
static size_t used;
static volatile sig_atomic_t is_late;

static void on_signal(int number) {
  (void)number;
  is_late = 1;
}

static int is_kind(const char *name) {
  return strcmp(kind, name) == 0;
}

static int flips(void) {
  return is_kind("one-view") || is_kind("adopted");
}

static void make_memory(void) {
  if (is_kind("two-views") || is_kind("one-view")) {
    jitsym_region_options options = JITSYM_REGION_OPTIONS(SIZE);
    options.flags = is_kind("one-view") ? JITSYM_REGION_ONE_VIEW : 0;
    jitsym_region region = JITSYM_REGION;
    CHECK_OK(jitsym_region_create(session, &options, &region));
    exec_view = region.exec;
    write_view = region.write;
  } else if (is_kind("adopted")) {
    exec_view = mmap(NULL, SIZE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(exec_view != MAP_FAILED);
    write_view = exec_view;
    CHECK_OK(jitsym_region_adopt(session, exec_view, SIZE));
  }
}

/* Copies code to new memory and registers it. */
static void *add_code(const unsigned char *bytes, size_t size, const char *name, int has_fp) {
  unsigned char *to, *at;
  if (is_kind("alloc")) {
    jitsym_region piece = JITSYM_REGION;
    CHECK_OK(jitsym_alloc(session, size, 0, 0, &piece));
    at = piece.exec;
    to = piece.write;
  } else {
    at = exec_view + used;
    to = write_view + used;
    used += 64;
  }
  if (flips()) {
    CHECK(mprotect(exec_view, SIZE, PROT_READ | PROT_WRITE) == 0);
  }
  memcpy(to, bytes, size);
  if (flips()) {
    CHECK(mprotect(exec_view, SIZE, PROT_READ | PROT_EXEC) == 0);
  }
  jitsym_unwind unwind = JITSYM_UNWIND(has_fp ? JITSYM_UNWIND_FRAME_POINTER : JITSYM_UNWIND_FIXED_FRAME);
  unwind.fp_pushed = has_fp ? 1 : 0;
  unwind.fp_set = has_fp ? 4 : 0;
  unwind.sp_set = has_fp ? 0 : 4;
  unwind.cfa_offset = has_fp ? 16 : 32;
  unwind.epilogue_begin = (uint32_t)size - 1;
  jitsym_code code = JITSYM_CODE(at, size, name);
  code.bytes = bytes;
  code.unwind = &unwind;
  CHECK_OK(jitsym_register(session, &code, NULL));
  return at;
}

/* Makes a chain, and returns its outer function. The inner function counts its argument down to 0. */
static void *make_chain(const char *name, int has_fp) {
  static const char *const parts[] = {"inner", "middle", "outer"};
  static const unsigned char enter_fp[4] = {0x55, 0x48, 0x89, 0xe5}, enter_sp[4] = {0x48, 0x83, 0xec, 0x18};
  static const unsigned char leave_fp[2] = {0x5d, 0xc3}, leave_sp[5] = {0x48, 0x83, 0xc4, 0x18, 0xc3};
  static const unsigned char count_down[5] = {0x48, 0xff, 0xcf, 0x75, 0xfb};
  void *callee = NULL;
  for (int part = 0; part < 3; part++) {
    unsigned char bytes[32];
    size_t size = 4;
    memcpy(bytes, has_fp ? enter_fp : enter_sp, size);
    if (part == 0) {
      memcpy(bytes + size, count_down, sizeof count_down);
      size += sizeof count_down;
    } else {
      /* mov rax, callee; call rax */
      memcpy(bytes + size, "\x48\xb8", 2);
      memcpy(bytes + size + 2, &callee, 8);
      memcpy(bytes + size + 10, "\xff\xd0", 2);
      size += 12;
    }
    memcpy(bytes + size, has_fp ? leave_fp : leave_sp, has_fp ? sizeof leave_fp : sizeof leave_sp);
    size += has_fp ? sizeof leave_fp : sizeof leave_sp;
    char whole[64];
    snprintf(whole, sizeof whole, "%s_%s", name, parts[part]);
    callee = add_code(bytes, size, whole, has_fp);
  }
  return callee;
}

/* Not inlined, so that stacks have it. */
__attribute__((noinline)) void run_chain(void *outer) {
  ((void (*)(uint64_t))(uintptr_t)outer)(TURNS);
  __asm__ volatile("" ::: "memory");
}

int main(int count, char **arguments) {
  test_begin(count, arguments);
  CHECK(count == 3);
  kind = arguments[2];
  CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
  session = test_open_flags(JITSYM_SINK_REGION, 0);
  make_memory();
  void *chains[CHAINS] = {make_chain("early_fp", 1), make_chain("early_sp", 0)};
  int made = 2;
  CHECK_OK(jitsym_flush(session, 0));
  puts("ready");
  fflush(stdout);
  for (;;) {
    if (is_late && made == 2) {
      chains[made++] = make_chain("late_fp", 1);
      chains[made++] = make_chain("late_sp", 0);
      CHECK_OK(jitsym_flush(session, 0));
      puts("late");
      fflush(stdout);
    }
    for (int chain = 0; chain < made; chain++) {
      run_chain(chains[chain]);
    }
  }
}
