/*
 * Names and stacks that a program looks up in itself: at every address, from signal handlers, beside threads that register, in
 * forked children, and after the close.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "chain.h"
#include "testing.h"

static char name_room[64], file_room[64];

static jitsym_function room(void) {
  jitsym_function function = JITSYM_FUNCTION(name_room, sizeof name_room, file_room, sizeof file_room);
  memset(name_room, '?', sizeof name_room);
  memset(file_room, '?', sizeof file_room);
  return function;
}

static const void *at(uint64_t addr) {
  return (const void *)(uintptr_t)addr;
}

static void check_function(uint64_t pc, uint32_t number, const char *name, const char *file, uint32_t line, uint32_t is_inlined) {
  jitsym_function function = room();
  CHECK_OK(jitsym_lookup(at(pc), number, &function));
  CHECK(strcmp(name_room, name) == 0 && function.name_length == strlen(name));
  CHECK(strcmp(file_room, file) == 0 && function.file_length == strlen(file));
  CHECK(function.line == line && function.is_inlined == is_inlined);
}

static int is_found(uint64_t pc) {
  jitsym_function function = room();
  jitsym_status status = jitsym_lookup(at(pc), 0, &function);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_NOT_FOUND);
  CHECK(status == JITSYM_OK || name_room[0] == '?');
  return status == JITSYM_OK;
}

/* What code has at each of its addresses, while it is where it was registered and after moves. */
static void names_lines_and_inlined_functions(jitsym *session) {
  static const jitsym_line lines[] = {{0, 1, 2, 0, "a.js"}, {8, 2, 0, 0, "a.js"}, {16, 7, 0, 0, "lib/b.js"}, {24, 3, 9, 0, "a.js"}};
  static const jitsym_inline inlines[] = {
    {8, 24, "middle", 0, "a.js", 22, 0, UINT32_MAX, 0},
    {16, 24, "inner", 0, "m.js", 33, 4, 0, 0},
    {40, 48, "other", 0, "a.js", 44, 0, UINT32_MAX, 0},
  };
  jitsym_code code = test_code(0x100000, 64, "outer");
  code.lines = lines;
  code.line_count = 4;
  code.inlines = inlines;
  code.inline_count = 3;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK_OK(test_flush(session));
  for (uint64_t start = 0x100000;; start += 0x40) {
    CHECK(!is_found(start - 1) && !is_found(start + 64));
    for (uint64_t offset = 0; offset < 64; offset++) {
      uint64_t pc = start + offset;
      uint32_t line = offset < 8 ? 1 : offset < 16 ? 2 : offset < 24 ? 7 : 3;
      const char *file = line == 7 ? "lib/b.js" : "a.js";
      uint32_t depth = 0;
      if (offset >= 16 && offset < 24) {
        check_function(pc, depth++, "inner", file, line, 1);
        file = "m.js", line = 33;
      }
      if (offset >= 8 && offset < 24) {
        check_function(pc, depth++, "middle", file, line, 1);
        file = "a.js", line = 22;
      }
      if (offset >= 40 && offset < 48) {
        check_function(pc, depth++, "other", file, line, 1);
        line = 44;
      }
      check_function(pc, depth++, "outer", file, line, 0);
      jitsym_function function = room();
      CHECK_STATUS(JITSYM_ERR_NOT_FOUND, jitsym_lookup(at(pc), depth, &function));
      CHECK_STATUS(JITSYM_ERR_NOT_FOUND, jitsym_lookup(at(pc), UINT32_MAX, &function));
      CHECK_OK(jitsym_lookup(at(pc), depth - 1, &function));
      CHECK(function.addr == start && function.size == 64);
    }
    if (start == 0x100080) {
      break;
    }
    /* The first move is of code that is published, the second of code that is not. */
    for (int again = start == 0x100000 ? 1 : 2; again > 0; again--) {
      jitsym_move_target target = test_target(start + (again == 2 ? 0x400 : 0x40));
      CHECK_OK(jitsym_move(session, id, &target));
    }
    CHECK_OK(test_flush(session));
  }
  jitsym_function function = room();
  CHECK_OK(jitsym_lookup(at(0x100080), 0, &function));
  CHECK(function.column == 2);
  /* Room for a part, for nothing, and none. */
  function = room();
  function.name_size = 3;
  function.file_size = 1;
  CHECK_OK(jitsym_lookup(at(0x100080), 0, &function));
  CHECK(strcmp(name_room, "ou") == 0 && name_room[3] == '?' && function.name_length == 5);
  CHECK(file_room[0] == '\0' && file_room[1] == '?' && function.file_length == 4);
  function = room();
  function.name_size = 0;
  function.file = NULL;
  CHECK_OK(jitsym_lookup(at(0x100080), 0, &function));
  CHECK(name_room[0] == '?' && file_room[0] == '?' && function.name_length == 5);
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_lookup(at(0x100080), 0, NULL));
  function.struct_size = sizeof function - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_lookup(at(0x100080), 0, &function));
  /* Other code in its place, then nothing. */
  test_register(session, 0x1000a0, 32, "\xc3\xa9t\xc3\xa9");
  CHECK_OK(test_flush(session));
  CHECK(!is_found(0x100080) && !is_found(0x10009f) && is_found(0x1000a0) && is_found(0x1000bf));
  function = room();
  function.name_size = 5;
  CHECK_OK(jitsym_lookup(at(0x1000a0), 0, &function));
  CHECK(strcmp(name_room, "\xc3\xa9t") == 0);
  CHECK_OK(jitsym_unregister_range(session, 0x100000, 0x1000, 0));
  CHECK_OK(test_flush(session));
  CHECK(!is_found(0x1000a0) && !is_found(0) && !is_found(UINT64_MAX));
}

/* So much code that there are runs of several sizes, ended in another order than registered. */
static void much_code(jitsym *session) {
  enum { STEP = 48 };
  const uint32_t count = test_light ? 3000 : 100000;
  const uint64_t base = 0x200000;
  jitsym_id *ids = calloc(count, sizeof *ids);
  CHECK(ids != NULL);
  for (uint32_t turn = 0; turn < 2; turn++) {
    for (uint32_t number = 0; number < count; number++) {
      uint32_t place = (uint32_t)((uint64_t)number * 7919 % count);
      char name[32];
      snprintf(name, sizeof name, "f%u.%u", place, turn);
      ids[place] = test_register(session, base + (uint64_t)place * STEP, 32, name);
      if (number % (count / 30) == 0) {
        CHECK_OK(test_flush(session));
      }
    }
    for (uint32_t place = turn; place < count; place += 3) {
      CHECK_OK(jitsym_unregister(session, ids[place]));
    }
    CHECK_OK(test_flush(session));
    for (uint32_t place = 0; place < count; place++) {
      uint64_t start = base + (uint64_t)place * STEP;
      CHECK(!is_found(start + 32));
      if (place % 3 == turn) {
        CHECK(!is_found(start));
        continue;
      }
      char name[32];
      snprintf(name, sizeof name, "f%u.%u", place, turn);
      check_function(start + place % 32, 0, name, "", 0, 0);
    }
  }
  CHECK_OK(jitsym_unregister_range(session, base, (uint64_t)count * STEP, 0));
  CHECK_OK(test_flush(session));
  CHECK(!is_found(base + STEP));
  free(ids);
}

static int stop;

/* Registers and ends code at other addresses than `stays_found` looks at, and all around them. */
static void *churn(void *session) {
  for (uint32_t turn = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); turn++) {
    for (uint64_t number = 0; number < 64; number++) {
      uint64_t addr = 0x300000 + number * 64 + (uint64_t)(number >= 32) * 64;
      test_register(session, addr, turn % 2 ? 64 : 32, "churn");
    }
    CHECK_OK(jitsym_unregister_range(session, 0x300000, 16 * 64, 0));
    CHECK_OK(test_flush(session));
  }
  return NULL;
}

static int looked_up;

static void look_up_in_handler(int signal) {
  (void)signal;
  char name[16];
  jitsym_function function = JITSYM_FUNCTION(name, sizeof name, NULL, 0);
  CHECK_OK(jitsym_lookup(at(0x300000 + 32 * 64 + 5), 0, &function));
  CHECK(strcmp(name, "stays") == 0);
  __atomic_add_fetch(&looked_up, 1, __ATOMIC_RELAXED);
}

static void *look_up(void *unused) {
  (void)unused;
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    look_up_in_handler(0);
  }
  return NULL;
}

/* Code that stays is found at every moment, whatever happens beside it, by threads and by handlers that interrupt anything. */
static void beside_threads(jitsym *session) {
  const int lookups = test_slow ? 200 : test_light ? 20000 : 200000;
  test_register(session, 0x300000 + 32 * 64, 64, "stays");
  CHECK_OK(test_flush(session));
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = look_up_in_handler;
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  pthread_t threads[4];
  for (int number = 0; number < 4; number++) {
    CHECK(pthread_create(&threads[number], NULL, number < 2 ? churn : look_up, session) == 0);
  }
  __atomic_store_n(&looked_up, 0, __ATOMIC_RELAXED);
  while (__atomic_load_n(&looked_up, __ATOMIC_RELAXED) < lookups) {
    for (int number = 0; number < 4; number++) {
      CHECK(pthread_kill(threads[number], SIGUSR1) == 0);
    }
    sched_yield();
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  for (int number = 0; number < 4; number++) {
    CHECK(pthread_join(threads[number], NULL) == 0);
  }
  CHECK_OK(jitsym_unregister_range(session, 0x300000, 0x10000, 0));
}

#ifdef __x86_64__

enum { LINKS = 3, LINK_SIZE = 64 };

static unsigned char *links;
static jitsym_unwind_row rows[4];

/* The chain calls this function. It must be found above the chain, and the chain's caller below it. */
static void check_stack(jitsym_registers frame) {
  for (int link = 0; link < LINKS; link++) {
    CHECK_OK(jitsym_step(&frame));
    uint64_t start = (uint64_t)(uintptr_t)links + (uint64_t)link * LINK_SIZE;
    CHECK(frame.is_return == 1 && frame.pc == start + CHAIN_RETURNED);
    char expected[16];
    snprintf(expected, sizeof expected, "link%d", link);
    check_function(frame.pc - 1, 0, expected, "", 0, 0);
  }
}

static int calls;

static __attribute__((noinline)) void called(void) {
  jitsym_registers frame = JITSYM_REGISTERS;
  CHECK_OK(jitsym_get_registers(NULL, &frame));
  CHECK(frame.is_return == 1 && !is_found(frame.pc));
  check_stack(frame);
  calls++;
}

static uint64_t outermost_pc, outermost_sp;
static int stepped;

/* After each instruction of the chain, the stack leads to the function that has called the chain. */
static void on_step(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  uint64_t pc = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
  uint64_t start = (uint64_t)(uintptr_t)links;
  if (pc < start || pc >= start + LINKS * LINK_SIZE) {
    return;
  }
  jitsym_registers frame = JITSYM_REGISTERS;
  CHECK_OK(jitsym_get_registers(context, &frame));
  CHECK(frame.pc == pc && frame.is_return == 0);
  for (uint64_t link = (pc - start) / LINK_SIZE; link < LINKS; link++) {
    CHECK((frame.pc - frame.is_return - start) / LINK_SIZE == link);
    CHECK_OK(jitsym_step(&frame));
  }
  enum { RSP = 7, RBX = 3 };
  CHECK(frame.is_return == 1 && frame.values[RSP] == outermost_sp);
  CHECK((frame.known & (1u << RBX)) && frame.values[RBX] == 0x1234);
  outermost_pc = outermost_pc ? outermost_pc : frame.pc;
  CHECK(frame.pc == outermost_pc);
  /* The handler's own stack leads through the frame that the kernel has made to the chain. */
  jitsym_registers own = JITSYM_REGISTERS;
  CHECK_OK(jitsym_get_registers(NULL, &own));
  while (own.is_return) {
    CHECK_OK(jitsym_step(&own));
  }
  CHECK(own.pc == pc);
  stepped++;
}

/* Calls the chain with the trap flag, which makes a signal of each instruction, and with a value in rbx. */
static __attribute__((noinline)) void call_stepped(const void *chain) {
  __asm__ volatile(
    "sub $128, %%rsp\n\tmov $0x1234, %%ebx\n\tmov %%rsp, %[sp]\n\t"
    "pushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\t"
    "call *%[chain]\n\t"
    "pushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tadd $128, %%rsp"
    : [sp] "=m"(outermost_sp), [chain] "+a"(chain)
    :
    : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "cc", "memory");
}

static void do_nothing(void) {
}

static void emit_chain(jitsym *session, void (*last)(void)) {
  for (int link = 0; link < LINKS; link++) {
    unsigned char *code = links + link * LINK_SIZE;
    chain_emit(code, link == 0 ? (uint64_t)(uintptr_t)last : (uint64_t)(uintptr_t)(code - LINK_SIZE));
    char name[16];
    snprintf(name, sizeof name, "link%d", link);
    jitsym_code registered = JITSYM_CODE((uintptr_t)code, CHAIN_POPPED + 1, name);
    jitsym_unwind unwind = chain_unwind(rows);
    registered.unwind = &unwind;
    CHECK_OK(jitsym_register(session, &registered, NULL));
  }
  CHECK_OK(test_flush(session));
}

static jmp_buf left;

static void called_last(void) {
  jitsym_registers frame = JITSYM_REGISTERS;
  CHECK_OK(jitsym_get_registers(NULL, &frame));
  CHECK_OK(jitsym_step(&frame));
  check_function(frame.pc, 0, "after", "", 0, 0);
  check_function(frame.pc - 1, 0, "calls_last", "", 0, 0);
  CHECK_OK(jitsym_step(&frame));
  CHECK(!is_found(frame.pc));
  CHECK_OK(jitsym_step(&frame));
  longjmp(left, 1);
}

/* The return address of a call at the end of a function is the address of other code, whose frame is another. */
static void call_at_the_end(jitsym *session) {
  enum { SIZE = 18, CALLED_AT = 8 };
  /* Three times push 0; mov rax, called_last; call rax. */
  static const unsigned char bytes[SIZE] = {0x6a, 0, 0x6a, 0, 0x6a, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0};
  unsigned char *code = links + 2048;
  uint64_t target = (uint64_t)(uintptr_t)called_last;
  memcpy(code, bytes, SIZE);
  memcpy(code + CALLED_AT, &target, sizeof target);
  memset(rows, 0, sizeof rows);
  for (uint32_t number = 0; number < 3; number++) {
    rows[number].offset = 2 * (number + 1);
    rows[number].cfa_reg = 7;
    rows[number].cfa_offset = 16 + 8 * (int32_t)number;
  }
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);
  unwind.rows = rows;
  unwind.row_count = 3;
  jitsym_code registered = JITSYM_CODE((uintptr_t)code, SIZE, "calls_last");
  registered.unwind = &unwind;
  CHECK_OK(jitsym_register(session, &registered, NULL));
  jitsym_unwind fixed = JITSYM_UNWIND(JITSYM_UNWIND_FIXED_FRAME);
  fixed.cfa_offset = 8;
  registered = (jitsym_code)JITSYM_CODE((uintptr_t)code + SIZE, 16, "after");
  registered.unwind = &fixed;
  CHECK_OK(jitsym_register(session, &registered, NULL));
  CHECK_OK(test_flush(session));
  void (*function)(void);
  memcpy(&function, &code, sizeof function);
  if (setjmp(left) == 0) {
    function();
  }
}

static void stacks(jitsym *session) {
  links = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(links != MAP_FAILED);
  emit_chain(session, called);
  void (*chain)(void);
  unsigned char *last = links + (LINKS - 1) * LINK_SIZE;
  memcpy(&chain, &last, sizeof chain);
  chain();
  CHECK(calls == 1);
  if (!test_slow) {
    emit_chain(session, do_nothing);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_step;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    call_stepped(last);
    CHECK(stepped == 7 * LINKS);
  }
  call_at_the_end(session);
}

/* A frame that is its own caller: the frame pointer points to itself, in code whose table counts from the frame pointer. */
static void frame_in_a_circle(jitsym *session) {
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FRAME_POINTER);
  jitsym_code code = test_code(0x500000, 64, "circle");
  code.unwind = &unwind;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  uint64_t record[2] = {(uint64_t)(uintptr_t)record, 0x500010};
  jitsym_registers frame = JITSYM_REGISTERS;
  frame.pc = 0x500010;
  frame.known = 0xffff;
  frame.values[6] = (uint64_t)(uintptr_t)record;
  frame.values[7] = (uint64_t)(uintptr_t)record;
  int steps = 0;
  while (jitsym_step(&frame) == JITSYM_OK) {
    CHECK(steps++ < 10);
  }
}

/* Frames that cannot be: nothing is read that is not there, and every walk ends. */
static void bad_frames(void) {
  uint64_t values[] = {0, 1, 7, 8, UINT64_MAX, UINT64_MAX - 7, (uint64_t)(uintptr_t)links, (uint64_t)(uintptr_t)&values, 1ull << 63};
  enum { COUNT = sizeof values / sizeof *values, RBP = 6, RSP = 7 };
  for (int number = 0; number < COUNT * COUNT * COUNT * 2; number++) {
    jitsym_registers frame = JITSYM_REGISTERS;
    frame.known = number % 2 ? 0xffff : 0;
    frame.pc = values[number / 2 % COUNT];
    frame.values[RSP] = values[number / 2 / COUNT % COUNT];
    frame.values[RBP] = values[number / 2 / COUNT / COUNT];
    for (int steps = 0;; steps++) {
      CHECK(steps < 1000);
      jitsym_registers before = frame;
      if (jitsym_step(&frame) != JITSYM_OK) {
        CHECK(memcmp(&before, &frame, sizeof frame) == 0);
        break;
      }
    }
  }
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_step(NULL));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_get_registers(NULL, NULL));
  jitsym_registers frame = JITSYM_REGISTERS;
  frame.struct_size--;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_step(&frame));
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_get_registers(NULL, &frame));
}

#else

static void stacks(jitsym *session) {
  (void)session;
}

static void bad_frames(void) {
}

static void frame_in_a_circle(jitsym *session) {
  (void)session;
}

#endif

static void in_children(jitsym *session) {
  jitsym_id id = test_register(session, 0x400000, 16, "inherited");
  CHECK_OK(test_flush(session));
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    test_inherits_threads = 1;
    check_function(0x400000, 0, "inherited", "", 0, 0);
    test_register(session, 0x400040, 16, "of_child");
    CHECK_OK(test_flush(session));
    check_function(0x400040, 0, "of_child", "", 0, 0);
    check_function(0x40000f, 0, "inherited", "", 0, 0);
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_OK(test_flush(session));
    CHECK(!is_found(0x400000));
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(is_found(0x400000) && !is_found(0x400040));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(!is_found(0x100000));
  jitsym *session = test_open_flags(JITSYM_SINK_JITDUMP | JITSYM_SINK_LOOKUP, 0);
  names_lines_and_inlined_functions(session);
  much_code(session);
  beside_threads(session);
  stacks(session);
  bad_frames();
  frame_in_a_circle(session);
  in_children(session);

  /* Disabled, and enabled again. */
  CHECK_OK(jitsym_disable(session, JITSYM_SINK_LOOKUP));
  CHECK(!is_found(0x400000));
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_LOOKUP));
  check_function(0x400000, 0, "inherited", "", 0, 0);

  /* After the close, until the next session. */
  CHECK_OK(jitsym_close(session));
  check_function(0x400000, 0, "inherited", "", 0, 0);
  session = test_open_flags(JITSYM_SINK_LOOKUP, 0);
  CHECK(!is_found(0x400000));
  test_register(session, 0x400000, 16, "again");
  CHECK_OK(test_flush(session));
  check_function(0x400000, 0, "again", "", 0, 0);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
