/*
 * Crashes in compiled code without frame pointers, and writes the stack in the signal handler, on an alternate stack of the size
 * that the header promises to be enough. The second argument says how: "read", "call" or "caller" (no crash).
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "chain.h"
#include "testing.h"

enum { LINKS = 3, LINK_SIZE = 64, STACK_SIZE = 32 << 10 };

static void on_crash(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  errno = 4711;
  jitsym_status status = jitsym_print_stack(STDOUT_FILENO, context);
  _exit(status == JITSYM_OK && errno == 4711 ? 0 : 3);
}

static void on_call(void) {
  CHECK_OK(jitsym_print_stack(STDOUT_FILENO, NULL));
}

/* A stack for the handler between two pages that nobody may touch. */
static void use_small_stack(void) {
  char *memory = mmap(NULL, STACK_SIZE + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED && mprotect(memory + 4096, STACK_SIZE, PROT_READ | PROT_WRITE) == 0);
  stack_t stack;
  memset(&stack, 0, sizeof stack);
  stack.ss_sp = memory + 4096;
  stack.ss_size = STACK_SIZE;
  CHECK(sigaltstack(&stack, NULL) == 0);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
}

__attribute__((noinline)) void run_compiled_code(const void *code) {
  void (*compiled)(void);
  memcpy(&compiled, &code, sizeof compiled);
  compiled();
  __asm__ volatile("");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc > 2);
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_LOOKUP;
  jitsym *session = test_init(&options);
  unsigned char *links = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(links != MAP_FAILED);
  uint64_t innermost = strcmp(argv[2], "caller") == 0 ? (uint64_t)(uintptr_t)on_call : 16;
  for (int link = 0; link < LINKS; link++) {
    static const char *names[LINKS] = {"add", "map", "script"};
    static const jitsym_line lines[] = {{0, 10, 0, 0, "prog.js"}, {CHAIN_WHOLE, 12, 0, 0, "prog.js"}};
    static const jitsym_inline inlines[] = {{CHAIN_WHOLE, CHAIN_DROPPED, "each", 0, "main.js", 7, 0, UINT32_MAX, 0}};
    unsigned char *code = links + link * LINK_SIZE;
    size_t size = chain_emit(code, link == 0 ? innermost : (uint64_t)(uintptr_t)(code - LINK_SIZE));
    if (link == 0 && strcmp(argv[2], "read") == 0) {
      /* mov al, [rax] in place of call rax. */
      static const unsigned char read_instruction[] = {0x8a, 0x00};
      memcpy(code + CHAIN_RETURNED - 2, read_instruction, sizeof read_instruction);
    }
    jitsym_unwind_row rows[4];
    jitsym_unwind unwind = chain_unwind(rows);
    jitsym_code registered = JITSYM_CODE((uintptr_t)code, size, names[link]);
    registered.unwind = &unwind;
    registered.lines = lines;
    registered.line_count = 2;
    registered.inlines = inlines;
    registered.inline_count = link == 1;
    /* No flush follows: the handler's call makes the names known. */
    CHECK_OK(jitsym_register(session, &registered, NULL));
  }
  use_small_stack();
  run_compiled_code(links + (LINKS - 1) * LINK_SIZE);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
