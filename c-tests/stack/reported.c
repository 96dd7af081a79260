/*
 * Three compiled functions without frame pointers call a C function, whose stack tools report: jit_script calls jit_map, which
 * calls jit_add. Usage: reported MEMORY WHAT. MEMORY is "plain", "region" or "adopted". WHAT is "dladdr" (prints names),
 * "overread" (reads beyond a block of memory), "allocate" (keeps 10 MB) or "rust" (prints Rust's backtrace). x86-64.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "chain.h"
#include "check.h"
#include "jitsym_region.h"

enum { LINKS = 3, LINK_SIZE = 64, SIZE = 4096, BLOCKS = 1000, BLOCK_SIZE = 10000 };

static const char *what;
static unsigned char *code;
volatile int zero;
void *volatile kept[BLOCKS];

/* tests/in_process.rs links it. */
void print_backtrace(void) __attribute__((weak));

__attribute__((noinline)) void called_by_code(void) {
  if (strcmp(what, "dladdr") == 0) {
    for (int link = 0; link < LINKS; link++) {
      Dl_info info;
      int is_found = dladdr(code + link * LINK_SIZE + CHAIN_RETURNED, &info);
      printf("%s in %s\n", is_found ? info.dli_sname : "nothing", is_found ? info.dli_fname : "nothing");
    }
    Dl_info info;
    CHECK(dladdr((const void *)(uintptr_t)malloc, &info) != 0);
    printf("%s\n", info.dli_sname);
  } else if (strcmp(what, "overread") == 0) {
    volatile char *block = calloc(1, 16);
    CHECK(block != NULL);
    zero = block[16 + zero];
    free((void *)(uintptr_t)block);
  } else if (strcmp(what, "allocate") == 0) {
    for (int number = 0; number < BLOCKS; number++) {
      kept[number] = malloc(BLOCK_SIZE);
    }
  } else {
    CHECK(strcmp(what, "rust") == 0 && print_backtrace != NULL);
    print_backtrace();
  }
}

__attribute__((noinline)) void run_compiled_code(const void *at) {
  void (*compiled)(void);
  memcpy(&compiled, &at, sizeof compiled);
  compiled();
  __asm__ volatile("");
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  what = argv[2];
  if (strcmp(argv[1], "adopted") == 0) {
    setenv("JITSYM_ADOPT", "1", 1);
  }
  jitsym_options options = JITSYM_OPTIONS;
  options.sinks = JITSYM_SINK_REGION | JITSYM_SINK_LOOKUP | JITSYM_SINK_UNWINDER;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  unsigned char *writable;
  if (strcmp(argv[1], "region") == 0) {
    jitsym_region region = JITSYM_REGION;
    CHECK_OK(jitsym_alloc(session, SIZE, 64, 0, &region));
    code = region.exec;
    writable = region.write;
  } else {
    code = writable = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(code != MAP_FAILED);
  }
  size_t size = 0;
  for (int link = 0; link < LINKS; link++) {
    uint64_t next = (uint64_t)(uintptr_t)(code + (link - 1) * LINK_SIZE);
    size = chain_emit(writable + link * LINK_SIZE, link == 0 ? (uint64_t)(uintptr_t)called_by_code : next);
  }
  CHECK(writable != code || mprotect(code, SIZE, PROT_READ | PROT_EXEC) == 0);
  for (int link = 0; link < LINKS; link++) {
    static const char *names[LINKS] = {"jit_add", "jit_map", "jit_script"};
    static const jitsym_line lines[] = {{0, 10, 0, 0, "prog.js"}, {CHAIN_WHOLE, 12, 0, 0, "prog.js"}};
    jitsym_code registered = JITSYM_CODE((uintptr_t)(code + link * LINK_SIZE), size, names[link]);
    jitsym_unwind_row rows[4];
    jitsym_unwind unwind = chain_unwind(rows);
    registered.unwind = &unwind;
    registered.lines = lines;
    registered.line_count = 2;
    CHECK_OK(jitsym_register(session, &registered, NULL));
  }
  CHECK_OK(jitsym_flush(session, 0));
  /* After each call of dlopen, heaptrack reads the list of libraries again. */
  CHECK(dlopen(NULL, RTLD_LAZY) != NULL);
  run_compiled_code(code + (LINKS - 1) * LINK_SIZE);
  CHECK_OK(jitsym_close(session));
  return 0;
}
