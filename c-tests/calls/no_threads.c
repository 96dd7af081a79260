/*
 * A host that wants no thread of the library (JITSYM_INIT_NO_THREADS). Its calls write: nothing is lost at a flush, a close, an exit,
 * a fork, a kill, and after the host has closed all descriptors. Prints "ok".
 *
 * In the scenarios with one thread the kernel ends the process if anything starts a thread or makes a second table of descriptors. In
 * the others the threads of the process are counted again and again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "testing.h"

enum { CODES = 500, HOST_THREADS = 4, SIZE = 64, FORKS = 10, HOST_FILES = 64, BOTH = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP };
static const uint64_t ADDR = 0x7000000000;

static jitsym *session;

static void put_many(unsigned from, unsigned count, const char *what) {
  for (unsigned number = from; number < from + count; number++) {
    char name[64];
    snprintf(name, sizeof name, "%s %u", what, number);
    test_register(session, ADDR + (uint64_t)SIZE * number, SIZE, name);
  }
}

/* The files of a process have the codes from `from` on, under their names. */
static void check_map(const char *path, unsigned from, unsigned count, const char *what) {
  struct map map = map_read(path);
  for (unsigned number = from; number < from + count; number++) {
    char name[64];
    snprintf(name, sizeof name, "%s %u", what, number);
    const char *found = map_name(&map, ADDR + (uint64_t)SIZE * number);
    CHECK(found != NULL && strcmp(found, name) == 0);
  }
  map_free(&map);
}

static void check_files(pid_t pid, unsigned from, unsigned count, const char *what, size_t in_all) {
  struct map map = map_read(test_path_of(pid, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  if (map.count != in_all || dump_count(&dump, DUMP_LOAD) != in_all) {
    fprintf(stderr, "%s: %zu in the map, %zu in the jitdump, expected %zu\n", what, map.count, dump_count(&dump, DUMP_LOAD), in_all);
  }
  CHECK(map.count == in_all && dump_count(&dump, DUMP_LOAD) == in_all);
  map_free(&map);
  dump_free(&dump);
  check_map(test_path_of(pid, JITSYM_SINK_MAP).text, from, count, what);
}

/* What the kernel says, and what the library says. */
static void count_threads(int of_host) {
  size_t size;
  char expected[32], *status = (char *)file_read("/proc/self/status", &size);
  snprintf(expected, sizeof expected, "\nThreads:\t%d\n", of_host + test_threads_of_others);
  CHECK(test_threads() == of_host && strstr(status, expected) != NULL);
  free(status);
  CHECK(session == NULL || test_stats_now(session).threads == 0);
}

/* From now on, a thread or a second table of descriptors ends the process. An emulator or a valgrind may need either. */
static void allow_no_thread(void) {
#define REFUSE(number) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      REFUSE(SYS_unshare),
      /* The C library then calls clone, whose flags the filter can read. */
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 2, 0, 4),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
  if (!test_slow && test_threads_of_others == 0) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  }
}

static void begin(uint32_t sinks, uint32_t flags) {
  allow_no_thread();
  count_threads(1);
  session = test_open_flags(sinks, flags | JITSYM_INIT_NO_THREADS);
  count_threads(1);
}

/* A life with one thread: each call that writes does so itself. */
static void all_calls(void) {
  begin(BOTH | JITSYM_SINK_REGION, 0);
  put_many(0, CODES, "code");
  jitsym_region region = test_region(session, 1 << 16, 0);
  jitsym_code code = test_code((uint64_t)(uintptr_t)region.exec, SIZE, "in a region");
  code.bytes = region.write;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(jitsym_flush(session, 10000));
  CHECK(test_stats_now(session).region_code == 1 && test_stats_now(session).regions == 1);
  check_files(getpid(), 0, CODES, "code", CODES);
  CHECK_OK(jitsym_region_release(session, region.exec));
  /* A signal handler may have interrupted the writer, which runs on the threads of the host. */
  CHECK_STATUS(JITSYM_ERR_WRITER, jitsym_flush_from_signal(1000));
  /* A session without the flag joins. */
  jitsym *other = test_open();
  count_threads(1);
  CHECK_OK(jitsym_close(other));
  CHECK_OK(jitsym_disable(session, 0));
  CHECK_OK(jitsym_enable(session, BOTH));
  put_many(CODES, CODES, "later code");
  CHECK_OK(jitsym_close(session));
  session = NULL;
  count_threads(1);
  check_map(test_path_of(getpid(), JITSYM_SINK_MAP).text, CODES, CODES, "later code");
  /* And so does each later session. */
  session = test_open();
  put_many(0, CODES, "again");
  CHECK_OK(jitsym_flush(session, 10000));
  count_threads(1);
  check_map(test_path(session, JITSYM_SINK_MAP).text, 0, CODES, "again");
}

static void late(void) {
  begin(0, JITSYM_INIT_OFF_BY_DEFAULT | JITSYM_INIT_REMEMBER);
  put_many(0, CODES, "early");
  CHECK_OK(jitsym_enable(session, BOTH));
  count_threads(1);
  CHECK_OK(jitsym_flush(session, 10000));
  check_files(getpid(), 0, CODES, "early", CODES);
  CHECK_OK(jitsym_disable(session, BOTH));
  CHECK_OK(jitsym_enable(session, BOTH));
  put_many(CODES, 1, "late");
  CHECK_OK(jitsym_close(session));
  session = NULL;
  check_map(test_path_of(getpid(), JITSYM_SINK_MAP).text, 0, CODES, "early");
  check_map(test_path_of(getpid(), JITSYM_SINK_MAP).text, CODES, 1, "late");
}

/* Calls write full chunks: the files grow before anybody asks, and memory stays within its bound. */
static void write_chunks(uint64_t max_memory) {
  allow_no_thread();
  jitsym_options options = test_options();
  options.sinks = BOTH;
  options.flags = JITSYM_INIT_NO_THREADS;
  options.max_memory = max_memory;
  session = test_init(&options);
  for (unsigned round = 0; round < 100; round++) {
    put_many(round * CODES, CODES, "many");
    CHECK(test_stats_now(session).memory_held <= options.max_memory);
  }
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.dropped == 0 && stats.registered > 90 * CODES && stats.map_entries > 90 * CODES);
  exit(0);
}

static void no_flush(void) {
  write_chunks(1 << 20);
}

static void no_flush_in_much_memory(void) {
  write_chunks(64 << 20);
}

static void flush_and_end(void) {
  begin(BOTH, 0);
  put_many(0, CODES, "flushed");
  CHECK_OK(jitsym_flush(session, 10000));
  _exit(0);
}

static void end(void) {
  begin(BOTH, 0);
  put_many(0, CODES, "at exit");
  exit(0);
}

static void be_killed(void) {
  begin(BOTH, 0);
  put_many(0, CODES, "in the spool");
  kill(getpid(), SIGKILL);
}

static void recover(void) {
  begin(BOTH, JITSYM_INIT_RECOVER);
  CHECK_OK(jitsym_close(session));
  session = NULL;
}

static void fork_again_and_again(void) {
  begin(BOTH, 0);
  for (unsigned round = 0; round < FORKS; round++) {
    /* Unwritten at the fork. */
    put_many(round * CODES, CODES, "parent");
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      count_threads(1);
      unsigned inherited = (round + 1) * CODES;
      put_many(inherited, CODES, "child");
      CHECK_OK(jitsym_flush(session, 10000));
      CHECK(test_stats_now(session).inherited == inherited && getppid() == parent);
      check_files(getpid(), inherited, CODES, "child", inherited + CODES);
      check_map(test_path(session, JITSYM_SINK_MAP).text, 0, inherited, "parent");
      count_threads(1);
      if (round % 2 == 0) {
        put_many(inherited + CODES, 1, "child");
        exit(0);
      }
      _exit(0);
    }
    test_wait_ok(child);
    CHECK(map_read(test_path_of(child, JITSYM_SINK_MAP).text).count == (size_t)(round + 2) * CODES + (round % 2 == 0));
  }
  CHECK_OK(jitsym_close(session));
  session = NULL;
  check_files(getpid(), 0, FORKS * CODES, "parent", FORKS * CODES);
}

/* Inherited code that may come late is written by a call that writes. */
static void inherit_late(void) {
  setenv("JITSYM_FORK", "late", 1);
  begin(BOTH, 0);
  put_many(0, CODES, "parent");
  CHECK_OK(jitsym_flush(session, 10000));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    put_many(CODES, 1, "child");
    CHECK_OK(jitsym_flush(session, 10000));
    check_files(getpid(), CODES, 1, "child", 1);
    TEST_AWAIT(jitsym_flush(session, 10000) == JITSYM_OK && map_read(test_path(session, JITSYM_SINK_MAP).text).count > CODES);
    CHECK_OK(jitsym_close(session));
    check_files(getpid(), 0, CODES, "parent", CODES + 1);
    _exit(0);
  }
  test_wait_ok(child);
}

/* A daemon: its own files get the numbers that the library's had. */
static void close_all(void) {
  begin(BOTH | JITSYM_SINK_REGION, 0);
  jitsym_region region = test_region(session, 1 << 16, 0);
  char path[TEST_PATH_MAX + 32];
  for (unsigned round = 0; round < 3; round++) {
    put_many(round * CODES, CODES, "daemon");
    CHECK_OK(jitsym_flush(session, 10000));
    for (int number = 3; number < 128; number++) {
      close(number);
    }
    for (int i = 0; i < HOST_FILES; i++) {
      snprintf(path, sizeof path, "%s/host-%d-%d", test_dir, (int)getpid(), i);
      CHECK(open(path, O_RDWR | O_CREAT, 0600) >= 3);
    }
  }
  jitsym_code code = test_code((uint64_t)(uintptr_t)region.exec, SIZE, "in a region");
  code.bytes = region.write;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(jitsym_flush(session, 10000));
  CHECK(test_stats_now(session).region_code == 1);
  CHECK_OK(jitsym_close(session));
  session = NULL;
  check_files(getpid(), 0, 3 * CODES, "daemon", 3 * CODES);
  /* All of them are open, and nobody has written to them. */
  for (int number = 3; number < 3 + HOST_FILES; number++) {
    struct stat status;
    CHECK(fstat(number, &status) == 0 && status.st_size == 0);
  }
}

/* Calls that must not return before a sink knows. */
static void waits(void) {
  begin(JITSYM_SINK_UNWINDER | JITSYM_SINK_GDB | JITSYM_SINK_MAP, 0);
  for (unsigned number = 0; number < CODES; number++) {
    jitsym_id id = test_register(session, ADDR + (uint64_t)SIZE * number, SIZE, "waits");
    if (number % 2 == 0) {
      CHECK_OK(jitsym_unregister(session, id));
    }
  }
  CHECK_OK(jitsym_flush(session, 10000));
  CHECK(test_stats_now(session).live == CODES / 2);
  CHECK_OK(jitsym_close(session));
}

static atomic_int at_work;

static void *work(void *number) {
  unsigned own = (unsigned)(uintptr_t)number, each = test_slow ? 1000 : 25000;
  put_many(own * each, each / 2, "thread");
  CHECK_OK(jitsym_flush(session, 60000));
  put_many(own * each + each / 2, each / 2, "thread");
  at_work--;
  return NULL;
}

/* Threads of the host write for each other, and one of them forks. */
static void threads(void) {
  session = test_open_flags(BOTH, JITSYM_INIT_NO_THREADS | JITSYM_INIT_RECOVER);
  unsigned each = test_slow ? 1000 : 25000;
  pthread_t all[HOST_THREADS];
  at_work = HOST_THREADS;
  for (uintptr_t i = 0; i < HOST_THREADS; i++) {
    CHECK(pthread_create(&all[i], NULL, work, (void *)i) == 0);
  }
  while (at_work > 0) {
    CHECK(test_threads() <= HOST_THREADS + 1 && test_stats_now(session).threads == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      test_inherits_threads = 1;
      jitsym_status status = jitsym_flush(session, 60000);
      /* The fork does not wait for ever for a thread that writes. */
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_FORKED);
      CHECK(test_threads() == 1);
      _exit(0);
    }
    test_wait_ok(child);
    test_sleep_ms(5);
  }
  for (int i = 0; i < HOST_THREADS; i++) {
    CHECK(pthread_join(all[i], NULL) == 0);
  }
  CHECK_OK(jitsym_flush(session, 60000));
  check_files(getpid(), 0, HOST_THREADS * each, "thread", (size_t)HOST_THREADS * each);
  CHECK_OK(jitsym_close(session));
  check_files(getpid(), 0, HOST_THREADS * each, "thread", (size_t)HOST_THREADS * each);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  pid_t late_child = test_start(inherit_late);
  test_child(all_calls);
  test_child(late);
  test_child(no_flush);
  test_child(no_flush_in_much_memory);
  check_files(test_child(flush_and_end), 0, CODES, "flushed", CODES);
  check_files(test_child(end), 0, CODES, "at exit", CODES);
  pid_t killed = test_start(be_killed);
  int status = test_wait(killed);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && test_files_in(getenv("JITSYM_SPOOL_DIR")) > 0);
  test_child(recover);
  check_files(killed, 0, CODES, "in the spool", CODES);
  test_child(fork_again_and_again);
  test_child(close_all);
  test_child(waits);
  test_child(threads);
  test_wait_ok(late_child);
  return test_end();
}
