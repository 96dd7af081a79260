/*
 * A server that forks its workers ahead. The parent compiles functions that all run; each worker runs them before it has made
 * a call of its own to the library, then compiles its own, at addresses where the others have other code. What ran where, when
 * and in which process is printed, for a test to hold against what perf says.
 *
 * Usage: prefork WORKERS SECONDS [wait], of processor time. The workers begin when there is nothing more to read, if they are to
 * wait. x86-64 only.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "pace.h"
#include "testing.h"

enum { SPAN = 1 << 16, PLACE = 512, SIZE = 18, COMMON = 2, OWN = 2 };

static unsigned char *memory;
static jitsym *session;
static jitsym_id ids[COMMON + OWN];
static uint64_t since[COMMON + OWN];
static char names[COMMON + OWN][64];

static unsigned char *place(int number) {
  return memory + PLACE * number;
}

/* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; pop rbp; ret */
static void compile(int number, const char *name) {
  static const unsigned char bytes[SIZE] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,    0,
                                            0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3, 0xcc, 0xcc};
  memcpy(place(number), bytes, SIZE);
  snprintf(names[number], sizeof names[number], "%s", name);
  const char *file = "/src/server.guest";
  jitsym_line lines[] = {{0, 1 + (uint32_t)number, 0, 0, file}, {9, 2 + (uint32_t)number, 0, 0, file}};
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  unwind.epilogue_begin = 15;
  jitsym_code code = test_code((uint64_t)(uintptr_t)place(number), SIZE, name);
  code.bytes = place(number);
  code.unwind = &unwind;
  code.flags = JITSYM_CODE_GAP;
  code.lines = lines;
  code.line_count = 2;
  CHECK_OK(jitsym_register(session, &code, &ids[number]));
  since[number] = test_now();
}

/* One write, so that lines of several processes do not mix. */
static void say_life(int number) {
  char line[200];
  int length = snprintf(line, sizeof line, "life %d %llx %d %llu %llu %s\n", (int)getpid(),
                        (unsigned long long)(uintptr_t)place(number), SIZE, (unsigned long long)since[number],
                        (unsigned long long)test_now(), names[number]);
  CHECK(write(1, line, (size_t)length) == length);
}

/* What this thread has had of a processor, so that there are as many samples on a busy machine. */
static uint64_t time_spent(void) {
  struct timespec time;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void run(int number, double seconds) {
  uint64_t end = time_spent() + (uint64_t)(seconds * 1e9);
  while (time_spent() < end) {
    ((void (*)(void))(uintptr_t)place(number))();
  }
}

static void work(int worker, double seconds, int waits) {
  char name[64];
  while (waits && read(0, name, sizeof name) > 0)
    ;
  for (int i = 0; i < COMMON; i++) {
    since[i] = test_now();
  }
  /* So far the worker has not called the library. */
  run(0, seconds);
  for (int i = 0; i < OWN; i++) {
    snprintf(name, sizeof name, "own_%d_of_worker_%d", i, worker);
    compile(COMMON + i, name);
    run(COMMON + i, seconds / 2);
  }
  run(0, seconds / 2);
  say_life(1);
  CHECK_OK(jitsym_unregister(session, ids[1]));
  snprintf(name, sizeof name, "reused_by_worker_%d", worker);
  compile(1, name);
  run(1, seconds / 2);
  for (int i = 0; i < COMMON + OWN; i++) {
    say_life(i);
  }
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  CHECK(argc == 3 || argc == 4);
  int workers = atoi(argv[1]);
  double seconds = atof(argv[2]) * test_pace();
  memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  CHECK_OK(jitsym_init(NULL, &session));
  compile(0, "common_0");
  compile(1, "common_1");
  printf("pid %d\n", (int)getpid());
  fflush(stdout);
  run(0, seconds / 4);
  CHECK_OK(test_flush(session));
  pid_t pids[64];
  CHECK(workers <= 64);
  for (int i = 0; i < workers; i++) {
    pids[i] = fork();
    CHECK(pids[i] >= 0);
    if (pids[i] == 0) {
      work(i, seconds, argc == 4);
      _exit(0);
    }
    printf("worker %d\n", (int)pids[i]);
    fflush(stdout);
  }
  compile(COMMON, "own_of_the_parent");
  for (int turn = 0; turn < 4; turn++) {
    run(1, seconds / 4);
    run(COMMON, seconds / 4);
  }
  for (int i = 0; i < workers; i++) {
    test_wait_ok(pids[i]);
  }
  for (int i = 0; i < COMMON + 1; i++) {
    say_life(i);
  }
  CHECK_OK(jitsym_close(session));
  puts("end");
  return 0;
}
