/*
 * The last thread of a program ends where no thread can be started any more: the process ends as the C library ends it with its last
 * thread. Exit handlers run, as on any thread of the program, the exit status is 0, and the files have everything.
 *
 * A filter in the kernel refuses clone and clone3. Prints "ok".
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;
enum {
  CODES = 100,
  /* What exit handlers may take of the stack, in KiB. */
  DEEP = 400,
};

static jitsym *session;
static int closes_in_handler, is_beside_another, events[2];

static void say(char event) {
  CHECK(write(events[1], &event, 1) == 1);
}

static void put(unsigned number) {
  char name[64];
  snprintf(name, sizeof name, "code %u", number);
  test_register(session, ADDR + 0x1000 * number, 0x400, name);
}

/* For all threads, the library's too, as all of these. */
static void refuse(const unsigned *numbers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
  }
}

static void refuse_threads(void) {
  static const unsigned numbers[] = {SYS_clone, SYS_clone3};
  refuse(numbers, 2);
}

/* Then the library's threads share the descriptors of the program's. */
static void refuse_tables(void) {
  static const unsigned numbers[] = {SYS_close_range, SYS_unshare};
  refuse(numbers, 2);
}

/* Opens the map as if it were new, and leaves it open: the library looks in the program's table for who has it, and writes it again. */
static void open_map(void) {
  FILE *map = fopen(test_path_of(getpid(), JITSYM_SINK_MAP).text, "w");
  CHECK(map != NULL && fputs("1000 100 of another runtime\n", map) >= 0 && fflush(map) == 0);
}

/* The handler runs on a thread with a name, a stack and signals like those of the program's threads. */
static void handler(void) {
  char deep[DEEP << 10], name[16] = "";
  memset(deep, 1, sizeof deep);
  __asm__ volatile("" : : "r"(deep) : "memory");
  sigset_t blocked;
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0 && sigismember(&blocked, SIGTERM) == 0);
  CHECK(prctl(PR_GET_NAME, name) == 0 && strcmp(name, "jitsym-exit") == 0);
  if (is_beside_another) {
    open_map();
  }
  if (session != NULL) {
    put(CODES);
    CHECK_OK(test_flush(session));
    put(CODES + 1);
  }
  if (closes_in_handler) {
    CHECK_OK(jitsym_close(session));
  }
  say('x');
}

static void ends(void) {
  CHECK(atexit(handler) == 0);
  refuse_threads();
  say('t');
  pthread_exit(NULL);
}

static void opens_and_ends(void) {
  session = test_open();
  for (unsigned i = 0; i < CODES; i++) {
    put(i);
  }
  ends();
}

static void with_one_table(void) {
  refuse_tables();
  opens_and_ends();
}

/* Before and in the handler. */
static void beside_another(void) {
  is_beside_another = 1;
  open_map();
  opens_and_ends();
}

static void closes(void) {
  closes_in_handler = 1;
  opens_and_ends();
}

/* The descriptors of regions are the program's, and are closed at the end. */
static void with_a_region(void) {
  session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
  for (unsigned i = 0; i < CODES; i++) {
    put(i);
  }
  jitsym_region region = test_region(session, 1 << 16, 0);
  test_register(session, (uint64_t)(uintptr_t)region.exec, 64, "in a region");
  CHECK_OK(test_flush(session));
  ends();
}

/* Only the thread is left that looks at the lists of debuggers. */
static void by_the_bridge(void) {
  session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, JITSYM_INIT_BRIDGE);
  for (unsigned i = 0; i < CODES + 2; i++) {
    put(i);
  }
  CHECK_OK(jitsym_close(session));
  session = NULL;
  ends();
}

static void check_files(pid_t pid) {
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path_of(pid, JITSYM_SINK_MAP).text);
  for (unsigned i = 0; i < CODES + 2; i++) {
    char name[64];
    snprintf(name, sizeof name, "code %u", i);
    CHECK(dump_load(&dump, name, 0) != NULL && strcmp(map_name(&map, ADDR + 0x1000 * i), name) == 0);
  }
  map_free(&map);
  dump_free(&dump);
}

int main(int argc, char **argv) {
  static void (*const ways[])(void) = {opens_and_ends, with_one_table, beside_another,
                                       closes,         with_a_region,  by_the_bridge};
  enum { WAYS = sizeof ways / sizeof ways[0] };
  pid_t children[WAYS];
  int from[WAYS];
  test_begin(argc, argv);
  for (int i = 0; i < WAYS; i++) {
    CHECK(pipe2(events, O_CLOEXEC) == 0);
    children[i] = test_start(ways[i]);
    close(events[1]);
    from[i] = events[0];
  }
  for (int i = 0; i < WAYS; i++) {
    char seen[3] = "";
    test_wait_ok(children[i]);
    CHECK(read(from[i], seen, sizeof seen) == 2 && memcmp(seen, "tx", 2) == 0);
    close(from[i]);
    check_files(children[i]);
  }
  CHECK(test_files_in(getenv("JITSYM_SPOOL_DIR")) == 0);
  return test_end();
}
