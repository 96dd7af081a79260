/*
 * An interpreter of three functions, each of which is entered through a trampoline. Prints `TRAMPOLINE NAME ENTRY SIZE` for
 * each trampoline (hexadecimal numbers), then runs its script.
 *
 * The stack is known: main, run, [module], enter, [outer], interpret, [middle], interpret, then DEPTH times [inner] and
 * interpret, and at last `reached`. The names in brackets are trampolines. In each of its functions, the interpreter spends time in
 * `work_outer`, `work_middle` or `work_inner`.
 *
 * Usage: interpreter DIR [spin MILLISECONDS | times COUNT | once | throw]
 */
#define _GNU_SOURCE
#include "testing.h"

#define NOINLINE __attribute__((noinline, noclone))
/* A call that nothing follows would be a jump. */
#define KEEP(value) __asm__ volatile("" : "+r"(value))

enum { FUNCTIONS = 3, DEPTH = 3 };

struct function;
/* Two arguments are on the stack. */
typedef long interpreter(const struct function *, long, long, long, long, long, long, long);

struct function {
  const char *name;
  uint32_t line, stack_words;
  long (*work)(long rounds);
  const struct function *next;
  interpreter *entry;
};

static long rounds = 2;

#ifdef THROWS
void throw_number(int number);
int call_and_catch(int (*function)(int), int argument, int *left);
#endif
static int throws;

static inline long burn(long count) {
  long value = 0;
  for (long i = 0; i < count; i++) {
    value += i;
    KEEP(value);
  }
  return value;
}

NOINLINE long work_outer(long count) {
  return burn(count);
}
NOINLINE long work_middle(long count) {
  return burn(2 * count);
}
NOINLINE long work_inner(long count) {
  return burn(3 * count);
}

/* Where a debugger has a breakpoint. */
NOINLINE long reached(long value) {
#ifdef THROWS
  if (throws) {
    throw_number((int)value);
  }
#endif
  KEEP(value);
  return value + 1;
}

NOINLINE long interpret(const struct function *function, long depth, long c, long d, long e, long f, long g, long h) {
  CHECK(c == 3 && d == 4 && e == 5 && f == 6 && g == 7 && h == 8);
  long value = function->work(rounds), result;
  const struct function *next = function->next == function && depth == 1 ? NULL : function->next;
  if (next == NULL) {
    result = reached(17);
  } else {
    result = next->entry(next, function->next == function ? depth - 1 : depth, c, d, e, f, g, h);
  }
  KEEP(result);
  KEEP(value);
  return result + 1;
}

NOINLINE long enter(const struct function *function, long depth) {
  long result = function->entry(function, depth, 3, 4, 5, 6, 7, 8);
  KEEP(result);
  return result + 1;
}

static struct function functions[FUNCTIONS] = {
    {"outer", 10, 2, work_outer, &functions[1], NULL},
    {"middle", 20, 3, work_middle, &functions[2], NULL},
    {"inner", 30, 2, work_inner, &functions[2], NULL},
};

NOINLINE long run(long (*module)(const struct function *, long), long depth) {
  long result = module(&functions[0], depth);
  KEEP(result);
  return result + 1;
}

static long (*module_entry)(const struct function *, long);

#ifdef THROWS
/* Calls through the whole script. */
static int through_all(int depth) {
  return (int)run(module_entry, depth);
}
#endif

static char source[600];

static void *trampoline(jitsym *session, void *target, uint32_t words, const char *name, uint32_t line) {
  jitsym_code code = JITSYM_CODE(NULL, 0, name);
  void *entry = NULL;
  code.file = source;
  code.line = line;
  CHECK_OK(jitsym_trampoline(session, target, words, &code, &entry));
  CHECK(entry != target);
  printf("TRAMPOLINE %s %llx %x\n", name, (unsigned long long)(uintptr_t)entry, words == 0 ? 64 : 128);
  return entry;
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *what = argv[2];
  snprintf(source, sizeof source, "%s/script.toy", argv[1]);
  FILE *file = fopen(source, "w");
  CHECK(file != NULL);
  for (int i = 1; i <= 40; i++) {
    fprintf(file, "toy line %d\n", i);
  }
  CHECK(fclose(file) == 0);
  jitsym *session;
  CHECK_OK(jitsym_init(NULL, &session));
  for (int i = 0; i < FUNCTIONS; i++) {
    struct function *function = &functions[i];
    function->entry = (interpreter *)(uintptr_t)trampoline(session, (void *)(uintptr_t)interpret, function->stack_words,
                                                           function->name, function->line);
  }
  void *module = trampoline(session, (void *)(uintptr_t)enter, 0, "module", 1);
  module_entry = (long (*)(const struct function *, long))(uintptr_t)module;
  fflush(stdout);
  /* Whoever steps through the script reads the files. */
  CHECK_OK(test_flush(session));

  enum { RESULT = 18 + 2 + DEPTH + 1 + 1 };
  if (strcmp(what, "spin") == 0) {
    rounds = 20000;
    for (uint64_t end = test_now() + (uint64_t)atoi(argv[3]) * 1000000; test_now() < end;) {
      CHECK(run(module_entry, DEPTH) == RESULT);
    }
  } else if (strcmp(what, "throw") == 0) {
#ifdef THROWS
    int left = 0;
    CHECK(call_and_catch(through_all, DEPTH, &left) == RESULT && left == 1);
    throws = 1;
    for (int i = 2; i < 100; i++) {
      CHECK(call_and_catch(through_all, DEPTH, &left) == 1017 && left == i);
    }
#endif
  } else {
    for (int left = strcmp(what, "times") == 0 ? atoi(argv[3]) : 1; left > 0; left--) {
      CHECK(run(module_entry, DEPTH) == RESULT);
    }
  }
  (void)throws;
  CHECK_OK(jitsym_close(session));
  puts("ok");
  return 0;
}
