/*
 * Workers that run code which they have inherited in adopted memory, while their parent puts other code at the addresses of that
 * code and of theirs. One worker never calls the library, one registers nothing, one registers code elsewhere, and one registers
 * code in the adopted memory. What ran where, when and in which process is printed, for a test to hold against what perf says.
 *
 * Usage: lent SECONDS rwx|flips [WORKER], of processor time. With `flips`, the memory is never writable and executable at once.
 * The worker with this number waits for a byte when its parent has replaced the code and it has made its next call. x86-64 only.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "pace.h"
#include "testing.h"

enum { SPAN = 1 << 16, PLACE = 512, SIZE = 16, PLACES = 8, WORKERS = 4 };
enum { SILENT, FLUSHES, ELSEWHERE, INSIDE };
/* The places: code that the parent replaces, code that stays, and free places. The last two are in other memory. */
enum { REPLACED, STAYS, FREE, OTHER = 6, OTHER_LATER };

static unsigned char *memories[2];
static jitsym *session;
static int flips;
static struct {
  jitsym_id id;
  uint64_t since;
  char name[64];
} codes[PLACES];

static unsigned char *place(int number) {
  return memories[number >= OTHER] + PLACE * number;
}

static void protect(int number, int protection) {
  CHECK(!flips || mprotect(memories[number >= OTHER], SPAN, PROT_READ | protection) == 0);
}

/* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; pop rbp; ret */
static void compile(int number, const char *name, int worker) {
  static const unsigned char bytes[SIZE] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,
                                            0,    0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3};
  protect(number, PROT_WRITE);
  memcpy(place(number), bytes, SIZE);
  protect(number, PROT_EXEC);
  snprintf(codes[number].name, sizeof codes[number].name, "%s_%d", name, worker);
  jitsym_code code = test_code((uint64_t)(uintptr_t)place(number), SIZE, codes[number].name);
  code.bytes = place(number);
  CHECK_OK(jitsym_register(session, &code, &codes[number].id));
  codes[number].since = test_now();
}

/* One write, so that lines of several processes do not mix. */
static void say_life(int number) {
  char line[200];
  int length = snprintf(line, sizeof line, "life %d %llx %d %llu %llu %s\n", (int)getpid(),
                        (unsigned long long)(uintptr_t)place(number), SIZE, (unsigned long long)codes[number].since,
                        (unsigned long long)test_now(), codes[number].name);
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

static void run_all(double seconds) {
  for (int i = 0; i < PLACES; i++) {
    if (codes[i].name[0] != 0) {
      run(i, seconds);
    }
  }
}

static void map(int number) {
  int protection = PROT_READ | PROT_WRITE | (flips ? 0 : PROT_EXEC);
  memories[number] = mmap(NULL, SPAN, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memories[number] != MAP_FAILED);
  if (flips) {
    CHECK(mprotect(memories[number], SPAN, PROT_READ | PROT_EXEC) == 0);
  }
  CHECK_OK(jitsym_region_adopt(session, memories[number], SPAN));
}

static void work(int worker, double seconds, const int *ran, const int *replaced, int stops) {
  char byte;
  codes[REPLACED].since = codes[STAYS].since = test_now();
  if (worker == FLUSHES) {
    CHECK_OK(test_flush(session));
  }
  if (worker == ELSEWHERE) {
    map(1);
    compile(OTHER, "elsewhere", worker);
  }
  if (worker == INSIDE) {
    compile(FREE, "inside", worker);
  }
  run_all(seconds);
  CHECK(write(ran[1], "", 1) == 1);
  CHECK(read(replaced[0], &byte, 1) == 1);
  if (worker == FLUSHES) {
    CHECK_OK(test_flush(session));
  }
  if (worker == ELSEWHERE) {
    compile(OTHER_LATER, "elsewhere_later", worker);
  }
  if (stops) {
    CHECK_OK(test_flush(session));
    printf("waits %d\n", (int)getpid());
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
  }
  run_all(seconds);
  for (int i = 0; i < PLACES; i++) {
    if (codes[i].name[0] != 0) {
      say_life(i);
    }
  }
  _exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  double seconds = atof(argv[1]) * test_pace();
  flips = strcmp(argv[2], "flips") == 0;
  int stops = argc > 3 ? atoi(argv[3]) : -1;
  CHECK_OK(jitsym_init(NULL, &session));
  map(0);
  compile(REPLACED, "replaced_of_parent", 0);
  compile(STAYS, "stays_of_parent", 0);
  printf("pid %d\n", (int)getpid());
  CHECK_OK(test_flush(session));
  int ran[2], replaced[2];
  CHECK(pipe(ran) == 0 && pipe(replaced) == 0);
  pid_t pids[WORKERS];
  fflush(stdout);
  for (int i = 0; i < WORKERS; i++) {
    pids[i] = fork();
    CHECK(pids[i] >= 0);
    if (pids[i] == 0) {
      work(i, seconds, ran, replaced, i == stops);
    }
    printf("worker %d\n", (int)pids[i]);
    fflush(stdout);
  }
  compile(FREE, "added_by_parent", 0);
  run_all(seconds);
  for (int i = 0; i < WORKERS; i++) {
    char byte;
    CHECK(read(ran[0], &byte, 1) == 1);
  }
  say_life(REPLACED);
  CHECK_OK(jitsym_unregister(session, codes[REPLACED].id));
  compile(REPLACED, "replaces_of_parent", 0);
  CHECK_OK(test_flush(session));
  CHECK(write(replaced[1], "four", WORKERS) == WORKERS);
  run_all(seconds);
  for (int i = 0; i < WORKERS; i++) {
    test_wait_ok(pids[i]);
  }
  for (int i = 0; i <= FREE; i++) {
    say_life(i);
  }
  CHECK_OK(jitsym_close(session));
  puts("end");
  return 0;
}
