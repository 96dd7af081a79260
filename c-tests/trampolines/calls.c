/*
 * Trampolines as the program that uses them sees them: what a call through one does, what the calls that make and free them
 * refuse, and what they do if nobody wants symbols. tests/trampolines.rs has other types of functions, and what readers see.
 *
 * Usage: calls DIR [light]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/prctl.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

#define ADDRESS(function) ((void *)(uintptr_t)(function))

static jitsym *session;

static void *entry_of(void *target, uint32_t stack_words, const char *name) {
  jitsym_code code = JITSYM_CODE(NULL, 0, name);
  void *entry = NULL;
  code.file = "/script.toy";
  code.line = 7;
  CHECK_OK(jitsym_trampoline(session, target, stack_words, &code, &entry));
  CHECK(entry != NULL);
  return entry;
}

static void *made(void *target, uint32_t stack_words, const char *name) {
  void *entry = entry_of(target, stack_words, name);
  CHECK(entry != target && (uintptr_t)entry % 64 == 0);
  return entry;
}

static void open_session(void) {
  session = test_open_flags(TEST_DEFAULT_SINKS, 0);
}

static void close_session(void) {
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ arguments and results */

typedef struct {
  double x, y;
} point;
typedef struct {
  long words[5];
} large;

static long many(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k;
}

static double floats(double a, float b, double c, double d, double e, double f, double g, double h, double i, double j) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}

static point turned(point p, int n) {
  point q = {-p.y * n, p.x * n};
  return q;
}

static large enlarged(long n, large l) {
  for (int i = 0; i < 5; i++) {
    l.words[i] += n * i;
  }
  return l;
}

static long double precise(int n, long double x) {
  return x * n + 0.25L;
}

static double sum(int count, ...) {
  va_list list;
  double all = 0;
  va_start(list, count);
  for (int i = 0; i < count; i++) {
    all = all * 3 + (i % 2 ? va_arg(list, double) : (double)va_arg(list, long));
  }
  va_end(list);
  return all;
}

static void arguments(void) {
  open_session();
  /* The number of words that are on the stack, or more. */
  for (uint32_t more = 0; more < 3; more++) {
    long (*through)(long, long, long, long, long, long, long, long, long, long, long) =
        (long (*)(long, long, long, long, long, long, long, long, long, long, long))(uintptr_t)made(ADDRESS(many), 5 + more,
                                                                                                   "many");
    CHECK(through(1, 20, 3, 40, 5, 60, 7, 80, 9, 100, 11) == many(1, 20, 3, 40, 5, 60, 7, 80, 9, 100, 11));
    double (*reals)(double, float, double, double, double, double, double, double, double, double) =
        (double (*)(double, float, double, double, double, double, double, double, double, double))(uintptr_t)made(
            ADDRESS(floats), 2 + more, "floats");
    CHECK(reals(1, 2, 3, 4, 5, 6, 7, 8, 9, 10) == floats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    long double (*exact)(int, long double) =
        (long double (*)(int, long double))(uintptr_t)made(ADDRESS(precise), 2 + more, "precise");
    CHECK(exact(3, 1e18L + 0.5L) == precise(3, 1e18L + 0.5L));
    large l = {{1, 2, 3, 4, 5}}, there, here = enlarged(9, l);
    large (*grow)(long, large) = (large (*)(long, large))(uintptr_t)made(ADDRESS(enlarged), 5 + more, "enlarged");
    there = grow(9, l);
    CHECK(memcmp(&there, &here, sizeof here) == 0);
    double (*any)(int, ...) = (double (*)(int, ...))(uintptr_t)made(ADDRESS(sum), 10 + more, "sum");
    CHECK(any(2, 1L, 2.5) == sum(2, 1L, 2.5) && any(1, 7L) == sum(1, 7L));
    double direct = sum(12, 1L, 2., 3L, 4., 5L, 6., 7L, 8., 9L, 10., 11L, 12.);
    CHECK(any(12, 1L, 2., 3L, 4., 5L, 6., 7L, 8., 9L, 10., 11L, 12.) == direct);
  }
  point (*turn)(point, int) = (point (*)(point, int))(uintptr_t)made(ADDRESS(turned), 0, "turned");
  point p = turn((point){2, 3}, 4);
  CHECK(p.x == -12 && p.y == 8);
  close_session();
}

#if defined(__x86_64__)
/* Adds up all registers that can have arguments, each with a weight of its own; among them al and r10, the static chain. */
unsigned long weigh(void);
__asm__(
    ".text\nweigh:\n"
    ".irp register, rax, r10, rdi, rsi, rdx, rcx, r8, r9\n imul $31, %rax, %rax\n add %\\register, %rax\n.endr\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7\n imul $31, %rax, %rax\n movq %xmm\\number, %r11\n add %r11, %rax\n.endr\n"
    " mov %rsp, %rdx\n and $15, %rdx\n ret\n");
/* Gives all of them a value, and calls. Returns the result in rax, and in `rest` that in rdx. */
unsigned long call_with_all(void *function, unsigned long *rest);
__asm__(
    ".text\ncall_with_all:\n push %rbx\n push %r12\n push %rsi\n mov %rdi, %rbx\n movabs $0x9e3779b97f4a7c15, %r12\n"
    ".irp register, rdi, rsi, rdx, rcx, r8, r9, r10, rax\n mov %r12, %\\register\n rol $7, %r12\n.endr\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7\n movq %r12, %xmm\\number\n rol $7, %r12\n.endr\n"
    " call *%rbx\n pop %rsi\n mov %rdx, (%rsi)\n pop %r12\n pop %rbx\n ret\n");
enum { SP_AT_ENTRY = 8 };
#elif defined(__aarch64__)
/* The same: x8 is the address of a result, x18 the static chain. */
unsigned long weigh(void);
__asm__(
    ".text\n.balign 4\nweigh:\n mov x16, #31\n mov x17, #0\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 18\n madd x17, x17, x16, x\\number\n.endr\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7\n fmov x9, d\\number\n madd x17, x17, x16, x9\n.endr\n"
    " mov x0, x17\n mov x1, sp\n and x1, x1, #15\n ret\n");
unsigned long call_with_all(void *function, unsigned long *rest);
__asm__(
    ".text\n.balign 4\ncall_with_all:\n stp x29, x30, [sp, #-32]!\n stp x19, x20, [sp, #16]\n"
    " mov x19, x0\n mov x20, x1\n ldr x16, =0x9e3779b97f4a7c15\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 18\n mov x\\number, x16\n ror x16, x16, #57\n.endr\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7\n fmov d\\number, x16\n ror x16, x16, #57\n.endr\n"
    " blr x19\n str x1, [x20]\n ldp x19, x20, [sp, #16]\n ldp x29, x30, [sp], #32\n ret\n.ltorg\n");
enum { SP_AT_ENTRY = 0 };
#elif defined(__riscv)
/* The same: t2 is the static chain, or the label of a landing pad. */
unsigned long weigh(void);
__asm__(
    ".text\n.balign 4\nweigh:\n li t4, 31\n li t5, 0\n"
    ".irp register, a0, a1, a2, a3, a4, a5, a6, a7, t2\n mul t5, t5, t4\n add t5, t5, \\register\n.endr\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7\n fmv.x.d t6, fa\\number\n mul t5, t5, t4\n add t5, t5, t6\n.endr\n"
    " mv a0, t5\n andi a1, sp, 15\n ret\n");
unsigned long call_with_all(void *function, unsigned long *rest);
__asm__(
    ".text\n.balign 4\ncall_with_all:\n addi sp, sp, -32\n sd ra, 24(sp)\n sd s1, 16(sp)\n sd s2, 8(sp)\n"
    " mv s1, a0\n mv s2, a1\n li t3, 0x9e3779b97f4a7c15\n"
    ".macro next\n slli t4, t3, 7\n srli t3, t3, 57\n or t3, t3, t4\n.endm\n"
    ".irp register, a0, a1, a2, a3, a4, a5, a6, a7, t2\n mv \\register, t3\n next\n.endr\n"
    ".irp number, 0, 1, 2, 3, 4, 5, 6, 7\n fmv.d.x fa\\number, t3\n next\n.endr\n"
    " jalr s1\n sd a1, 0(s2)\n ld ra, 24(sp)\n ld s1, 16(sp)\n ld s2, 8(sp)\n addi sp, sp, 32\n ret\n");
enum { SP_AT_ENTRY = 0 };
#endif

static void registers(void) {
  open_session();
  unsigned long rests[2];
  unsigned long direct = call_with_all(ADDRESS(weigh), &rests[0]);
  unsigned long through = call_with_all(made(ADDRESS(weigh), 0, "weigh"), &rests[1]);
  /* The stack is aligned as after every call. */
  CHECK(direct == through && rests[0] == SP_AT_ENTRY && rests[1] == SP_AT_ENTRY);
  close_session();
}

/* ------------------------------------------------------------------------------------------------ other ways out */

static jmp_buf back;
static int cleaned, handled;

static void leaps(int value) {
  longjmp(back, value);
}

static void ends(void *result) {
  pthread_exit(result);
}

static void clean(void *unused) {
  (void)unused;
  cleaned++;
}

static void *thread(void *entry) {
  pthread_cleanup_push(clean, NULL);
  ((void (*)(void *))(uintptr_t)entry)(&cleaned);
  pthread_cleanup_pop(0);
  return NULL;
}

static void *reached_in_handler;

static void handler(int number) {
  handled += ((int (*)(int))(uintptr_t)reached_in_handler)(number);
}

static int twice(int value) {
  return 2 * value;
}

static int raises(int number) {
  raise(number);
  return number + 1;
}

static void ways_out(void) {
  open_session();
  volatile int times = 0;
  void (*leap)(int) = (void (*)(int))(uintptr_t)made(ADDRESS(leaps), 0, "leaps");
  int got = setjmp(back);
  if (got < 5) {
    times++;
    leap(got + 1);
  }
  CHECK(times == 5);

  void *end = made(ADDRESS(ends), 0, "ends"), *result = NULL;
  pthread_t running;
  CHECK(pthread_create(&running, NULL, thread, end) == 0 && pthread_join(running, &result) == 0);
  CHECK(result == &cleaned && cleaned == 1);

  reached_in_handler = made(ADDRESS(twice), 0, "twice");
  CHECK(signal(SIGUSR1, handler) != SIG_ERR);
  CHECK(((int (*)(int))(uintptr_t)made(ADDRESS(raises), 0, "raises"))(SIGUSR1) == SIGUSR1 + 1 && handled == 2 * SIGUSR1);
  close_session();
}

/* ------------------------------------------------------------------------------------------------ processes and sessions */

static void forks(void) {
  open_session();
  int (*before)(int) = (int (*)(int))(uintptr_t)made(ADDRESS(twice), 0, "before");
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(before(21) == 42);
    int (*own)(int) = (int (*)(int))(uintptr_t)made(ADDRESS(twice), 0, "own");
    CHECK(own != before && own(4) == 8);
    CHECK_OK(jitsym_trampoline_free(session, ADDRESS(before)));
    CHECK_OK(jitsym_trampoline_free(session, ADDRESS(own)));
    CHECK(test_stats(session).live == 0);
    close_session();
    _exit(0);
  }
  test_wait_ok(child);
  CHECK(before(30) == 60 && test_stats(session).live == 1);
  close_session();
  CHECK(before(31) == 62);
}

/* Nobody wants symbols: entries are the targets, and nothing has to be freed. */
static void hands_back(void) {
  CHECK(session == NULL && entry_of(ADDRESS(twice), 0, "none") == ADDRESS(twice));
  CHECK_OK(jitsym_trampoline_free(NULL, ADDRESS(twice)));
  session = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT);
  jitsym *other = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT), *first = session;
  for (int i = 0; i < 2; i++) {
    CHECK(!(jitsym_wanted(session) & JITSYM_WANT_CODE));
    CHECK(entry_of(ADDRESS(twice), 0, "off") == ADDRESS(twice));
    /* The code is not read. */
    void *entry;
    CHECK_OK(jitsym_trampoline(session, ADDRESS(twice), 0, NULL, &entry));
    CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(session, ADDRESS(twice), 0, NULL, NULL));
    CHECK_OK(jitsym_trampoline_free(session, entry));
    session = other;
  }
  session = first;
  CHECK(test_stats_now(session).regions == 0);
  /* Later on somebody wants them. */
  CHECK_OK(jitsym_enable(session, TEST_DEFAULT_SINKS));
  CHECK(jitsym_wanted(session) & JITSYM_WANT_CODE);
  int (*late)(int) = (int (*)(int))(uintptr_t)made(ADDRESS(twice), 0, "late");
  CHECK(test_stats(session).live == 1);
  CHECK_OK(jitsym_trampoline_free(session, ADDRESS(twice)));
  CHECK(test_stats(session).live == 1);
  CHECK_OK(jitsym_disable(session, 0));
  CHECK(entry_of(ADDRESS(twice), 0, "off again") == ADDRESS(twice));
  CHECK(late(5) == 10);
  CHECK_OK(jitsym_trampoline_free(session, ADDRESS(late)));
  CHECK_OK(jitsym_close(other));
  close_session();
}

/* With code that is remembered, nothing has to be made again. */
static void remembers(void) {
  session = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT | JITSYM_INIT_REMEMBER);
  int (*early)(int) = (int (*)(int))(uintptr_t)made(ADDRESS(twice), 0, "early");
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP));
  CHECK(early(6) == 12 && test_stats(session).map_entries == 1);
  close_session();
}

static void refuses(void) {
  open_session();
  jitsym_code code = JITSYM_CODE(NULL, 0, "refused"), bad;
  void *entry = &code;
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(session, NULL, 0, &code, &entry));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(session, ADDRESS(twice), 0, NULL, &entry));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(session, ADDRESS(twice), 0, &code, NULL));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(NULL, ADDRESS(twice), 0, &code, NULL));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_trampoline(session, ADDRESS(twice), 33, &code, &entry));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_trampoline(session, ADDRESS(twice), UINT32_MAX, &code, &entry));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_trampoline((jitsym *)&code, ADDRESS(twice), 0, &code, &entry));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_trampoline_free((jitsym *)&code, ADDRESS(twice)));
  jitsym_line line = {4000, 1, 0, 0, "/script.toy"};
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FRAME_POINTER);
#define BAD(field, value) (bad = code, bad.field = (value), jitsym_trampoline(session, ADDRESS(twice), 0, &bad, &entry))
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, BAD(struct_size, 8));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(flags, JITSYM_CODE_STABLE));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(flags, JITSYM_CODE_GAP));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(reserved, 1));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(reserved2, 1));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(addr, 1));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(size, 1));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(bytes, &code));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(unwind, &unwind));
  CHECK_STATUS(JITSYM_ERR_NULL, BAD(line_count, 1));
  CHECK_STATUS(JITSYM_ERR_FLAGS, BAD(inline_count, 1));
  CHECK(entry == &code && test_stats(session).registered == 0 && test_stats(session).regions == 0);
  char text[500];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "trampoline") != NULL);
  code.lines = &line;
  CHECK_STATUS(JITSYM_ERR_LINE_OFFSET, BAD(line_count, 1));
  CHECK(entry == &code && test_stats(session).registered == 0);
  line.offset = 0;
  CHECK_OK(BAD(line_count, 1));
  CHECK_OK(jitsym_trampoline_free(session, entry));
  CHECK_OK(BAD(flags, JITSYM_CODE_MORE));
  CHECK_OK(jitsym_trampoline(session, ADDRESS(twice), 32, &code, &entry));
  /* Memory of jitsym_alloc is not freed as a trampoline. */
  jitsym_region piece = JITSYM_REGION;
  CHECK_OK(jitsym_alloc(session, 64, 0, 0, &piece));
  CHECK_OK(jitsym_trampoline_free(session, piece.exec));
  CHECK_OK(jitsym_trampoline_free(session, (char *)entry + 64));
  CHECK_OK(jitsym_trampoline_free(session, NULL));
  CHECK_OK(jitsym_free(session, piece.exec));
  CHECK(test_stats(session).live == 2);
  CHECK_OK(jitsym_trampoline_free(session, entry));
  CHECK_OK(jitsym_trampoline_free(session, entry));
  CHECK(test_stats(session).live == 1);
  close_session();
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_trampoline(session, ADDRESS(twice), 0, &code, &entry));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_trampoline_free(session, entry));
}

/* Where memory that was writable must not become executable, trampolines have two views. Linux before 6.3 cannot forbid it. */
static void forbidden(void) {
  enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 };

  session = test_open_flags(JITSYM_SINK_MAP, 0);
  int (*before)(int) = (int (*)(int))(uintptr_t)made(ADDRESS(twice), 0, "before");
  prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0);
  for (int i = 0; i < 200; i++) {
    int (*after)(int) = (int (*)(int))(uintptr_t)made(ADDRESS(twice), 0, "after");
    CHECK(after(i) == twice(i) && before(i) == twice(i));
    CHECK_OK(jitsym_trampoline_free(session, (void *)(uintptr_t)after));
  }
  close_session();
}

/* ------------------------------------------------------------------------------------------------ many */

static int answers(int value) {
  return value ^ 0x55;
}

static void *some(unsigned number) {
  char name[40];
  snprintf(name, sizeof name, "number_%u", number);
  jitsym_code code = JITSYM_CODE(NULL, 0, name);
  code.flags = JITSYM_CODE_MORE;
  void *entry;
  /* The queue has room for so many, however late the writer is. */
  if (number % 4096 == 0) {
    CHECK_OK(jitsym_flush(session, 60000));
  }
  CHECK_OK(jitsym_trampoline(session, number % 2 ? ADDRESS(answers) : ADDRESS(twice), 0, &code, &entry));
  return entry;
}

static void check_some(void *entry, unsigned number) {
  int value = ((int (*)(int))(uintptr_t)entry)((int)number);
  CHECK(value == (number % 2 ? answers((int)number) : twice((int)number)));
}

static void millions(void) {
  unsigned count = test_light ? 20000 : 1000000;
  void **entries = calloc(count, sizeof *entries);
  CHECK(entries != NULL);
  session = test_open_flags(JITSYM_SINK_REGION, 0);
  for (unsigned i = 0; i < count; i++) {
    entries[i] = some(i);
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.live == count && stats.dropped == 0);
  for (unsigned i = 0; i < count; i++) {
    check_some(entries[i], i);
  }
  /* Freed memory is used again. */
  for (unsigned i = 0; i < count; i += 2) {
    CHECK_OK(jitsym_trampoline_free(session, entries[i]));
  }
  CHECK(test_stats(session).live == count / 2);
  for (unsigned i = 0; i < count; i += 2) {
    entries[i] = some(i);
  }
  for (unsigned i = 0; i < count; i++) {
    check_some(entries[i], i);
  }
  uint64_t regions = test_stats(session).regions;
  CHECK(regions <= (count < 1000000 ? 1 : 2));
  for (unsigned i = 0; i < count; i++) {
    CHECK_OK(jitsym_trampoline_free(session, entries[i]));
  }
  CHECK(test_stats(session).live == 0);
  free(entries);
  close_session();
}

static void *churn(void *base) {
  enum { LIVE = 50 };

  void *entries[LIVE] = {NULL};
  unsigned numbers[LIVE] = {0};
  for (unsigned i = 0; i < (test_light ? 2000u : 20000u); i++) {
    unsigned place = i * 7 % LIVE;
    if (entries[place] != NULL) {
      check_some(entries[place], numbers[place]);
      CHECK_OK(jitsym_trampoline_free(session, entries[place]));
    }
    numbers[place] = i + (unsigned)(uintptr_t)base;
    entries[place] = some(numbers[place]);
    check_some(entries[place], numbers[place]);
  }
  return NULL;
}

static void threads(void) {
  enum { THREADS = 4 };

  pthread_t running[THREADS];
  open_session();
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&running[i], NULL, churn, (void *)(i << 20)) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(running[i], NULL) == 0);
  }
  close_session();
}

/* Where the library makes none, the target takes the place of its trampoline. */
static void makes_none(void) {
  open_session();
  CHECK(jitsym_wanted(session) & JITSYM_WANT_CODE);
  CHECK(entry_of(ADDRESS(twice), 0, "twice") == ADDRESS(twice));
  CHECK(entry_of(ADDRESS(many), 5, "many") == ADDRESS(many));
  CHECK_OK(jitsym_trampoline_free(session, ADDRESS(twice)));
  CHECK(test_stats(session).live == 0 && test_stats(session).regions == 0);
  void *entry;
  jitsym_code code = JITSYM_CODE(NULL, 0, "refused");
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(session, NULL, 0, &code, &entry));
  close_session();
}

#if defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)
enum { MAKES_NONE = 0 };
#else
enum { MAKES_NONE = 1 };
#endif

int main(int argc, char **argv) {
  static void (*const parts[])(void) = {
      arguments, registers, ways_out, forks, hands_back, remembers, refuses, forbidden, millions, threads,
  };

  test_begin(argc, argv);
  if (MAKES_NONE) {
    test_child(makes_none);
    return test_end();
  }
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    test_child(parts[i]);
  }
  return test_end();
}
