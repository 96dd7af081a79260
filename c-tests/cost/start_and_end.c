/*
 * What it takes to start the library and to end it again, in a program that registers ten functions. It prints page faults, memory
 * and threads, and calls getppid before and after each of the two calls, for a tracer that counts system calls. DIR MODE.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/resource.h>

#include "testing.h"

enum { FUNCTIONS = 10, WORKERS = 60, SIZE = 64, BUSY = 20000 };

static jitsym *session;
static pthread_barrier_t all_there, all_seen;

static long faults(void) {
  struct rusage usage;
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt + usage.ru_majflt;
}

/* Memory of the process in KiB that can be written to: not that of code, which depends on the compiler. */
static long memory(void) {
  FILE *file = fopen("/proc/self/smaps", "r");
  CHECK(file != NULL);
  char line[4096], rights[5];
  long sum = 0, kib = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "Rss: %ld", &kib) == 1) {
      sum += rights[1] == 'w' ? kib : 0;
    } else {
      sscanf(line, "%*x-%*x %4s", rights);
    }
  }
  fclose(file);
  return sum;
}

static void ten(void) {
  /* Memory that the C library needs to answer. */
  memory();
  long faults_before = faults(), memory_before = memory();
  getppid();
  session = test_open();
  getppid();
  for (unsigned i = 0; i < FUNCTIONS; i++) {
    test_register(session, 0x7000000000 + SIZE * i, SIZE, "a function");
  }
  CHECK_OK(test_flush(session));
  printf("memory=%ld\n", memory() - memory_before);
  printf("threads=%d\n", test_threads() - 1);
  getppid();
  CHECK_OK(jitsym_close(session));
  getppid();
  printf("faults=%ld\n", faults() - faults_before);
  /* A thread that was waited for is listed a little longer. */
  for (int i = 0; test_threads() != 1; i++) {
    CHECK(i < 1000);
    test_sleep_ms(10);
  }
}

static void *waits(void *unused) {
  (void)unused;
  pthread_barrier_wait(&all_seen);
  return NULL;
}

/* A program with several threads, which ends soon or after a second. It prints for how many milliseconds there was a session. */
static void beside(uint32_t lives_for_ms) {
  pthread_t thread;
  CHECK(pthread_barrier_init(&all_seen, NULL, 2) == 0 && pthread_create(&thread, NULL, waits, NULL) == 0);
  getppid();
  uint64_t begin = test_now();
  session = test_open();
  getppid();
  test_register(session, 0x7000000000, SIZE, "a function");
  test_sleep_ms(lives_for_ms);
  CHECK_OK(jitsym_close(session));
  printf("lived_for=%llu\n", (unsigned long long)(test_now() - begin) / 1000000);
  pthread_barrier_wait(&all_seen);
  CHECK(pthread_join(thread, NULL) == 0);
}

static void *worker(void *number) {
  test_register(session, 0x7100000000 + SIZE * (uint64_t)(uintptr_t)number, SIZE, "of a thread");
  pthread_barrier_wait(&all_there);
  pthread_barrier_wait(&all_seen);
  return NULL;
}

static uint64_t held(void) {
  return test_stats(session).memory_held >> 10;
}

/* Threads that have registered something hold little, and so does a process that was busy. */
static void workers(void) {
  session = test_open();
  pthread_t threads[WORKERS];
  CHECK(pthread_barrier_init(&all_there, NULL, WORKERS + 1) == 0 && pthread_barrier_init(&all_seen, NULL, WORKERS + 1) == 0);
  for (intptr_t i = 0; i < WORKERS; i++) {
    CHECK(pthread_create(&threads[i], NULL, worker, (void *)i) == 0);
  }
  pthread_barrier_wait(&all_there);
  printf("held_by_each=%llu\n", (unsigned long long)held() / WORKERS);
  for (unsigned i = 0; i < BUSY; i++) {
    test_register(session, 0x7000000000 + SIZE * i, SIZE, "a function");
  }
  printf("held_when_busy=%llu\n", (unsigned long long)held());
  uint64_t begin = test_now();
  while (held() > 1024 && test_now() - begin < 60000000000) {
    test_sleep_ms(100);
  }
  printf("held_when_idle=%llu\n", (unsigned long long)held());
  pthread_barrier_wait(&all_seen);
  for (int i = 0; i < WORKERS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 3);
  if (strcmp(argv[2], "ten") == 0) {
    ten();
  } else if (strcmp(argv[2], "beside") == 0) {
    /* The writer gets ready for barriers when nobody waits for it. */
    beside(1000);
  } else if (strcmp(argv[2], "short") == 0) {
    beside(20);
  } else {
    CHECK(strcmp(argv[2], "workers") == 0);
    workers();
  }
  return test_end();
}
