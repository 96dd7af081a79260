/*
 * A process in time namespaces, where CLOCK_MONOTONIC is ahead of the host's or behind it: it begins in one, forks a child into
 * another, and goes to a third itself while no sink runs. What ran where, when by the host's clock and in which process is printed,
 * for a test to hold against what perf says (tests/fork_perf.rs).
 *
 * Usage: time_namespace SECONDS, of processor time. Takes root, and x86-64.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>

#include "jitsym_control.h"
#include "pace.h"
#include "testing.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { SPAN = 1 << 16, PLACE = 512, SIZE = 18, PLACES = 3, NO_NAMESPACES = 77 };

static unsigned char *memory;
static jitsym *session;
static double seconds;
/* Of this process, in nanoseconds. */
static int64_t ahead;

static uint64_t host_now(void) {
  return test_now() - (uint64_t)ahead;
}

/* Children get a namespace of their own, so much ahead of the host. */
static int64_t unshare_time(int64_t by_seconds, int64_t by_nanoseconds) {
  if (unshare(CLONE_NEWTIME) != 0) {
    perror("no time namespace to be had");
    _exit(NO_NAMESPACES);
  }
  FILE *offsets = fopen("/proc/self/timens_offsets", "we");
  CHECK(offsets != NULL);
  /* What goes by this clock is not that of the stamps. */
  CHECK(fprintf(offsets, "monotonic %lld %lld\nboottime 12345 0\n", (long long)by_seconds, (long long)by_nanoseconds) > 0);
  CHECK(fclose(offsets) == 0);
  return by_seconds * 1000000000 + by_nanoseconds;
}

/* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; pop rbp; ret */
static void compile(int number, const char *name) {
  static const unsigned char bytes[SIZE] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,    0,
                                            0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3, 0xcc, 0xcc};
  unsigned char *place = memory + PLACE * number;
  memcpy(place, bytes, SIZE);
  jitsym_code code = test_code((uint64_t)(uintptr_t)place, SIZE, name);
  code.bytes = place;
  CHECK_OK(jitsym_register(session, &code, NULL));
}

static uint64_t time_spent(void) {
  struct timespec time;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Runs a function from now on for a while, and says so. */
static void run(int number, const char *name) {
  unsigned char *place = memory + PLACE * number;
  uint64_t from = host_now(), end = time_spent() + (uint64_t)(seconds * 1e9);
  while (time_spent() < end) {
    ((void (*)(void))(uintptr_t)place)();
  }
  char line[200];
  int length = snprintf(line, sizeof line, "life %d %llx %d %llu %llu %s\n", (int)getpid(),
                        (unsigned long long)(uintptr_t)place, SIZE, (unsigned long long)from,
                        (unsigned long long)host_now(), name);
  CHECK(write(1, line, (size_t)length) == length);
}

static void go_on_in_child(void) {
  run(0, "in_the_first");
  compile(0, "of_the_child");
  run(0, "of_the_child");
  compile(1, "other_of_the_child");
  run(1, "other_of_the_child");
  CHECK_OK(jitsym_close(session));
  _exit(0);
}

static void go_on(void) {
  printf("pid %d\n", (int)getpid());
  fflush(stdout);
  CHECK_OK(jitsym_init(NULL, &session));
  compile(0, "in_the_first");
  run(0, "in_the_first");

  int64_t own = ahead;
  ahead = unshare_time(-3, 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    go_on_in_child();
  }
  ahead = own;
  printf("worker %d\n", (int)child);
  fflush(stdout);
  compile(1, "beside_the_child");
  run(1, "beside_the_child");
  test_wait_ok(child);

  /* Only a process with a single thread may change its own. */
  CHECK_OK(jitsym_disable(session, 0));
  test_wait_for_end_of_thread();
  own = unshare_time(77, 999999999);
  int namespace = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
  CHECK(namespace >= 0 && setns(namespace, CLONE_NEWTIME) == 0 && close(namespace) == 0);
  ahead = own;
  CHECK_OK(jitsym_enable(session, 0));
  compile(2, "in_the_third");
  run(2, "in_the_third");
  CHECK_OK(jitsym_close(session));
  puts("end");
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  seconds = atof(argv[1]) * test_pace();
  memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  ahead = unshare_time(1000000, 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    go_on();
    exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
