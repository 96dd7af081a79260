/*
 * A parent and its child, for profilers that come before the fork, after it, or when the child's files have its parent's code
 * too. Each function is called by another compiled one, of the parent or of the child. Some of the child's functions lie in
 * memory of its own, some where its parent has, had or later gets other code. The program prints which code lived where and
 * what ran, below which caller, for a test to hold against what a profiler says.
 *
 * Usage: inherited SECONDS STOPS, of processor time for each pair. STOPS are words with commas between them. At `forked`,
 * `late` and `last` the child waits until it may read a byte. With `short` the child does not wait for its parent's code.
 * x86-64 only.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>

#include "pace.h"
#include "testing.h"

enum { SPAN = 1 << 16, PLACE = 512, WIDE = 256, PLACES = 32 };
/* The places: in memory of the parent, and behind them in memory that the child makes. */
enum { OUTER, LEAF, REPLACED, DEAD, FREE, CUT, INSIDE, OWN = 16, OWN_OUTER };

static unsigned char *memories[2];
static jitsym *session;
/* The parent goes on when the child has registered its code. */
static int registered[2];
static struct {
  jitsym_id id;
  uint64_t since;
  unsigned size;
  char name[40];
} codes[PLACES];

static unsigned char *place(int number) {
  return number == INSIDE ? place(CUT) + WIDE / 2 : memories[number >= OWN] + PLACE * (number % OWN);
}

/* One write, so that lines of both processes do not mix. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
  char line[200];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  CHECK(write(1, line, (size_t)length) == length);
}

static void compile(int number, unsigned size, const char *name) {
  /* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; nop; pop rbp; ret */
  static const unsigned char leaf[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,
                                       0,    0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3};
  /* push rbp; mov rbp, rsp; call rdi; nops; pop rbp; ret */
  static const unsigned char outer[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x90, 0x90,
                                        0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x5d, 0xc3};
  memcpy(place(number), number == OUTER || number == OWN_OUTER ? outer : leaf, 16);
  snprintf(codes[number].name, sizeof codes[number].name, "%s", name);
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FRAME_POINTER);
  unwind.epilogue_begin = 15;
  jitsym_code code = test_code((uint64_t)(uintptr_t)place(number), size, name);
  code.bytes = place(number);
  code.unwind = &unwind;
  code.flags = JITSYM_CODE_GAP;
  CHECK_OK(jitsym_register(session, &code, &codes[number].id));
  codes[number].since = test_now();
  codes[number].size = size;
}

static void say_life(int number) {
  say("life %d %llx %u %llu %llu %s\n", (int)getpid(), (unsigned long long)(uintptr_t)place(number), codes[number].size,
      (unsigned long long)codes[number].since, (unsigned long long)test_now(), codes[number].name);
}

static void say_lives(void) {
  for (int i = 0; i < PLACES; i++) {
    if (codes[i].size != 0) {
      say_life(i);
    }
  }
}

static void forget(int number) {
  say_life(number);
  CHECK_OK(jitsym_unregister(session, codes[number].id));
  codes[number].size = 0;
}

/* What this thread has had of a processor, so that there are as many samples on a busy machine. */
static uint64_t time_spent(void) {
  struct timespec time;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

__attribute__((noinline)) static void run(int outer, int number, double seconds) {
  uint64_t begin = test_now(), end = time_spent() + (uint64_t)(seconds * 1e9);
  while (time_spent() < end) {
    ((void (*)(void *))(uintptr_t)place(outer))(place(number));
  }
  say("run %d %llu %llu %s %s\n", (int)getpid(), (unsigned long long)begin, (unsigned long long)test_now(), codes[outer].name,
      codes[number].name);
}

/* Whether a file of this process has the parent's code, or is not there. */
static int has_inherited(const char *format) {
  static char path[64], text[1 << 16];
  snprintf(path, sizeof path, format, (int)getpid());
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return 1;
  }
  size_t length = fread(text, 1, sizeof text, file);
  fclose(file);
  return memmem(text, length, codes[LEAF].name, strlen(codes[LEAF].name)) != NULL;
}

static void stop(const char *stops, const char *name) {
  char byte;
  if (strstr(stops, name) != NULL) {
    say("%s %d\n", name, (int)getpid());
    CHECK(read(0, &byte, 1) == 1);
  }
}

static void run_all(double seconds) {
  run(OUTER, LEAF, seconds);
  run(OUTER, OWN, seconds);
  run(OWN_OUTER, LEAF, seconds);
  run(OWN_OUTER, OWN, seconds);
  run(OUTER, DEAD, seconds);
  run(OUTER, FREE, seconds);
}

static void child(double seconds, const char *stops) {
  for (int i = 0; i < PLACES; i++) {
    codes[i].since = test_now();
  }
  /* So far the child has not called the library. */
  stop(stops, "forked");
  run(OUTER, LEAF, seconds);
  memories[1] = mmap(NULL, SPAN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memories[1] != MAP_FAILED);
  compile(OWN, 16, "own_elsewhere");
  compile(OWN_OUTER, 16, "own_outer");
  compile(DEAD, 16, "own_over_dead");
  compile(FREE, 16, "own_at_free");
  CHECK_OK(test_flush(session));
  CHECK(write(registered[1], "", 1) == 1);
  run_all(seconds);
  if (strstr(stops, "short") == NULL) {
    TEST_AWAIT(has_inherited("/tmp/perf-%d.map") && has_inherited("/tmp/jit-%d.dump"));
    stop(stops, "late");
    run_all(seconds);
    /* Lines that its map has already are no longer true. */
    say_life(REPLACED);
    compile(REPLACED, 16, "own_over_live");
    forget(CUT);
    compile(INSIDE, 16, "own_inside");
    run(OUTER, REPLACED, seconds);
    run(OUTER, INSIDE, seconds);
  }
  say_lives();
  stop(stops, "last");
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  double seconds = atof(argv[1]) * test_pace();
  memories[0] = mmap(NULL, SPAN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memories[0] != MAP_FAILED);
  CHECK_OK(jitsym_init(NULL, &session));
  compile(OUTER, 16, "outer_of_parent");
  compile(LEAF, 16, "leaf_of_parent");
  compile(REPLACED, 16, "replaced_of_parent");
  compile(DEAD, 16, "dead_of_parent");
  compile(CUT, WIDE, "wide_of_parent");
  say("pid %d\n", (int)getpid());
  for (int i = LEAF; i <= DEAD; i++) {
    run(OUTER, i, seconds);
  }
  run(OUTER, CUT, seconds);
  forget(DEAD);
  CHECK_OK(test_flush(session));
  CHECK(pipe(registered) == 0);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    say("worker %d\n", (int)getpid());
    child(seconds, argv[2]);
    _exit(0);
  }
  char byte;
  CHECK(read(registered[0], &byte, 1) == 1);
  compile(FREE, 16, "later_of_parent");
  run(OUTER, FREE, seconds);
  run(OUTER, LEAF, seconds);
  test_wait_ok(pid);
  say_lives();
  CHECK_OK(jitsym_close(session));
  puts("end");
  return 0;
}
