/*
 * A sandbox that refuses system calls, by an error or by SIGSYS with a handler that returns one, before a session is opened or
 * afterwards: each system call that the library makes, one at a time. The host goes on; what cannot be written is named, and the
 * rest is in the files.
 *
 * The C library blocks all signals at the beginning and at the end of a thread. What it calls there kills any program in a sandbox
 * with SIGSYS; so a small program without the library is asked first, and nothing is tried that kills that.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;
enum {
  MAP = JITSYM_SINK_MAP,
  JITDUMP = JITSYM_SINK_JITDUMP,
  BOTH = MAP | JITDUMP,
  /* No session can be opened. */
  ALL = BOTH | JITSYM_SINK_REGION,
  CODES = 100,
  PAGE = 1 << 16,
  WORKERS = 5,
};

struct call {
  const char *name;
  long number;
  /* The sinks that may fail if it is refused before the session is opened, and if it is afterwards. */
  uint32_t before, after;
};

#define CALL(name, before, after) {#name, SYS_##name, before, after}
static const struct call calls[] = {
    CALL(clock_nanosleep, 0, 0),
    CALL(fallocate, 0, 0),
    CALL(fcntl, 0, 0),
    CALL(flock, 0, 0),
    CALL(fstatfs, 0, 0),
    CALL(getdents64, 0, 0),
    CALL(geteuid, 0, 0),
    CALL(getrandom, 0, 0),
    CALL(gettid, 0, 0),
    CALL(kill, 0, 0),
    CALL(lseek, 0, 0),
    CALL(madvise, 0, 0),
    CALL(membarrier, 0, 0),
    CALL(memfd_create, 0, 0),
    CALL(mkdirat, 0, 0),
    CALL(mremap, 0, 0),
    CALL(munmap, 0, 0),
    CALL(prctl, 0, 0),
    CALL(process_vm_readv, 0, 0),
    CALL(read, 0, 0),
    CALL(readlinkat, 0, 0),
    CALL(renameat2, 0, 0),
    CALL(rt_sigaction, 0, 0),
    CALL(rt_sigprocmask, 0, 0),
    CALL(rt_sigtimedwait, 0, 0),
    CALL(sched_getaffinity, 0, 0),
    CALL(sched_yield, 0, 0),
    CALL(statx, 0, 0),
    CALL(close_range, 0, 0),
    CALL(munlock, 0, 0),
    CALL(statfs, 0, 0),
#if defined(__x86_64__)
    CALL(readlink, 0, 0),
    CALL(newfstatat, 0, 0),
    CALL(unlink, 0, 0),
#endif
    CALL(pwrite64, 0, 0),
    CALL(ftruncate, JITDUMP, JITDUMP),
    CALL(renameat, MAP, MAP),
    CALL(unlinkat, MAP, MAP),
    CALL(writev, JITDUMP, JITDUMP),
    CALL(write, BOTH, MAP),
    CALL(pread64, BOTH, BOTH),
    CALL(openat, ALL, MAP),
    /* What the C library needs for a thread. */
    CALL(clone, ALL, 0),
    /* A child cannot start its writer. */
    CALL(clone3, ALL, ALL),
    CALL(rseq, ALL, 0),
    CALL(set_robust_list, ALL, 0),
};

static struct call call;
static int refusal, by_signal, afterwards;

/* What a child has found out. */
static struct result {
  int is_open;
  pid_t pid;
  /* The sinks that have failed. */
  uint32_t failed;
} *result;

static uint32_t may_fail(void) {
  return afterwards ? call.after : call.before;
}

/* As the handlers of sandboxes do: the system call has answered, with an error. */
static void answer(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)info;
  mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
#if defined(__x86_64__)
  machine->gregs[REG_RAX] = -refusal;
#elif defined(__aarch64__)
  machine->regs[0] = (unsigned long long)-refusal;
#elif defined(__riscv)
  machine->__gregs[REG_A0] = (unsigned long)-refusal;
#endif
}

static void refuse(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call.number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, by_signal ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO | (unsigned)refusal),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  CHECK(sigaction(SIGSYS, &action, NULL) == 0);
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  /* For all threads, the library's too. */
  CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

static void *does_nothing(void *unused) {
  return unused;
}

/* A host without the library: a thread with a stack like that of the library's, and a child. */
static void without_the_library(void) {
  /* The C library may have something to say. */
  CHECK(freopen("/dev/null", "w", stderr) != NULL);
  refuse();
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  if (pthread_create(&thread, &attributes, does_nothing, NULL) == 0) {
    pthread_join(thread, NULL);
  }
  pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  if (child > 0) {
    waitpid(child, NULL, 0);
  }
}

/* A process that leaves something for a recovery. */
static pid_t killed;

static void is_killed(void) {
  jitsym *session = test_open();
  test_register(session, ADDR, 0x40, "first");
  CHECK_OK(test_flush(session));
  test_register(session, ADDR + 0x1000, 0x40, "pending");
  kill(getpid(), SIGKILL);
}

/* A status that names what is refused, if anything may be. */
static void check_status(jitsym_status status) {
  int is_named = status == JITSYM_ERR_NO_SINK || status == JITSYM_ERR_SINK_FAILED || status == JITSYM_ERR_NO_MEMORY ||
                 status == JITSYM_ERR_THREAD;
  if (status != JITSYM_OK && !(is_named && may_fail() != 0)) {
    fprintf(stderr, "%s\n", jitsym_status_name((int32_t)status));
  }
  CHECK(status == JITSYM_OK || (is_named && may_fail() != 0));
}

/* A file system may keep the writer for longer than a call waits: closing a removed file waits for a busy disk. */
static jitsym_status check_call(jitsym_status (*function)(jitsym *, uint32_t), jitsym *session, uint32_t argument) {
  jitsym_status status;
  unsigned turns = 0;
  do {
    status = function(session, argument);
  } while (status == JITSYM_ERR_TIMEOUT && test_turn_of(&turns, TEST_TURNS));
  check_status(status);
  return status;
}

static void put(jitsym *session, unsigned number, const char *kind) {
  char name[64];
  snprintf(name, sizeof name, "%s %u", kind, number);
  jitsym_code code = test_code(ADDR + 0x1000 * number, 0x400, name);
  CHECK_OK(jitsym_register(session, &code, NULL));
}

/* More than the memory for records holds: threads wait for the writer. */
static void *registers_much(void *session) {
  for (unsigned i = 0; i < 300; i++) {
    jitsym_code code = test_code(ADDR + 0x1000000 + 0x10000 * i, i % 5 == 0 ? 0x10000 : 0x800, "beside");
    jitsym_status status = jitsym_register(session, &code, NULL);
    /* Memory that cannot be made usable does not grow. */
    int is_full = status == JITSYM_ERR_DROPPED || status == JITSYM_ERR_NO_MEMORY;
    CHECK(status == JITSYM_OK || (is_full && may_fail() == ALL));
  }
  return NULL;
}

static void register_much(jitsym *session) {
  pthread_t threads[2];
  int started = 0;
  while (started < 2 && pthread_create(&threads[started], NULL, registers_much, session) == 0) {
    started++;
  }
  registers_much(session);
  while (started > 0) {
    CHECK(pthread_join(threads[--started], NULL) == 0);
  }
}

/* A child that cannot take over the session: the fork has not waited for a writer that a busy disk kept. */
enum { DISTURBED = 9 };

/* Continues in a forked child, which has the same sandbox. It leaves by its exit handlers. */
static void fork_child(jitsym *session) {
  int status = 0;
  unsigned turns = 0;
  do {
    pid_t child = fork();
    if (child < 0) {
      return;
    }
    if (child == 0) {
      jitsym_code code = test_code(ADDR + 0x1000 * CODES, 0x400, "child");
      jitsym_status registered = jitsym_register(session, &code, NULL);
      if (registered == JITSYM_ERR_FORKED) {
        _exit(DISTURBED);
      }
      /* Where no sink of a child can start. */
      CHECK(registered == JITSYM_OK ||
            (registered == JITSYM_ERR_SINK_FAILED && test_stats_now(session).sinks_running == 0));
      check_call(jitsym_flush, session, 0);
      exit(0);
    }
    status = test_wait(child);
    CHECK(WIFEXITED(status) && (status == 0 || WEXITSTATUS(status) == DISTURBED));
  } while (status != 0 && test_turn_of(&turns, TEST_TURNS));
  CHECK(status == 0);
}

static void use_regions(jitsym *session, unsigned char *memory) {
  jitsym_region_options options = {.struct_size = sizeof options, .size = PAGE, .max_size = 2 * PAGE};
  jitsym_region region = {.struct_size = sizeof region};
  jitsym_status status = jitsym_region_create(session, &options, &region);
  CHECK(status == JITSYM_OK || (status == JITSYM_ERR_NO_MEMORY && may_fail() != 0));
  if (status == JITSYM_OK) {
    jitsym_code code = test_code((uintptr_t)region.exec, 64, "in a region");
    memcpy(region.write, test_bytes, 64);
    CHECK_OK(jitsym_register(session, &code, NULL));
    status = jitsym_region_grow(session, region.exec, 2 * PAGE);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_NO_MEMORY);
    CHECK(memcmp(region.exec, test_bytes, 64) == 0);
    (void)jitsym_region_release(session, region.exec);
  }
  /* It is adopted, or is what it was. */
  status = jitsym_region_adopt(session, memory, PAGE);
  CHECK(memory[0] == 0xab && memory[PAGE - 1] == 0xab);
  if (status == JITSYM_OK) {
    (void)jitsym_region_release(session, memory);
  }
  CHECK(memory[0] == 0xab && memory[PAGE - 1] == 0xab);
}

static void sandboxed(void) {
  unsigned char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 0xab, PAGE);
  jitsym_options options = test_options();
  options.sinks = ALL;
  options.flags = JITSYM_INIT_RECOVER;
  options.max_memory = 4 << 20;
  options.max_wait_ms = 60000;
  jitsym *session = NULL;
  sigset_t every, before, now;
  sigfillset(&every);
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
  if (afterwards) {
    /* What the library's thread blocks is not what this one does. */
    CHECK(pthread_sigmask(SIG_SETMASK, &every, NULL) == 0);
  } else {
    refuse();
  }
  jitsym_status status = jitsym_init(&options, &session);
  if (afterwards) {
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    put(session, 0, "first");
    CHECK_OK(test_flush(session));
    refuse();
  } else if (status != JITSYM_OK) {
    char text[256];
    CHECK(may_fail() == ALL);
    check_status(status);
    CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
    CHECK(text[0] != 0);
    return;
  }
  result->is_open = 1;
  result->pid = getpid();
  /* Everything that asks the system for something: reading code, writing anew, growing, a new thread. */
  for (unsigned i = 0; i < CODES; i++) {
    put(session, i, "old");
    put(session, i, "new");
  }
  jitsym_code code = test_code((uintptr_t)memory, 0x100, "read by the kernel");
  code.bytes = NULL;
  CHECK_OK(jitsym_register(session, &code, NULL));
  code = test_code(0x20000, 0x100, "nowhere");
  code.bytes = NULL;
  CHECK_OK(jitsym_register(session, &code, NULL));
  static unsigned char large[600000];
  code = test_code(ADDR - 0x1000000, sizeof large, "large");
  code.bytes = large;
  CHECK_OK(jitsym_register(session, &code, NULL));
  register_much(session);
  use_regions(session, memory);
  for (unsigned i = 0; i < CODES; i++) {
    put(session, i, "last");
  }
  if (call.number == SYS_membarrier) {
    /* The writer goes to sleep, and is woken. */
    test_sleep_ms(1500);
    put(session, 0, "last");
    test_sleep_ms(200);
  }
  status = check_call(jitsym_flush, session, 0);
  jitsym_stats stats = test_stats_now(session);
  CHECK((status == JITSYM_OK) == (stats.sinks_failed == 0));
  fork_child(session);
  check_call(jitsym_disable, session, MAP);
  check_call(jitsym_enable, session, 0);
  result->failed = stats.sinks_failed | test_stats_now(session).sinks_failed;
  status = jitsym_close(session);
  if (status == JITSYM_ERR_TIMEOUT) {
    /* The files are not looked at: this process ends before they are complete. */
    result->is_open = 0;
  } else {
    check_status(status);
  }
  int is_known = pthread_sigmask(SIG_SETMASK, NULL, &now) == 0;
  CHECK(is_known || call.number == SYS_rt_sigprocmask);
  for (int signal = 1; is_known && signal < NSIG; signal++) {
    CHECK(sigismember(&now, signal) == sigismember(&before, signal));
  }
}

/* The files of the process: what has not failed is whole. What could not be recovered is left for another time. */
static void check_files(void) {
  CHECK((result->failed & ~may_fail()) == 0);
  /* Without statx nobody knows when a file was made, and nothing is recovered. */
  if (test_files_in(getenv("JITSYM_SPOOL_DIR")) == 0 && call.number != SYS_statx) {
    struct dump dump = dump_read(test_path_of(killed, JITDUMP).text);
    CHECK(dump_load(&dump, "pending", 0) != NULL);
    dump_free(&dump);
  }
  if ((result->failed & JITDUMP) == 0) {
    struct dump dump = dump_read(test_path_of(result->pid, JITDUMP).text);
    const struct dump_record *load = dump_load(&dump, "read by the kernel", 0);
    CHECK(load != NULL && load->code[0] == 0xab && load->code[0xff] == 0xab);
    CHECK(dump_load(&dump, "nowhere", 0) != NULL && dump_load(&dump, "large", 0) != NULL);
    for (unsigned i = 0; i < CODES; i++) {
      char name[64];
      snprintf(name, sizeof name, "last %u", i);
      CHECK(dump_load(&dump, name, 0) != NULL);
    }
    dump_free(&dump);
  }
  if ((result->failed & MAP) == 0) {
    struct map map = map_read(test_path_of(result->pid, MAP).text);
    for (unsigned i = 0; i < CODES; i++) {
      char name[64];
      snprintf(name, sizeof name, "last %u", i);
      CHECK(strcmp(map_name(&map, ADDR + 0x1000 * i), name) == 0);
    }
    map_free(&map);
  }
}

static void empty(const char *path) {
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    CHECK(entry->d_name[0] == '.' || unlinkat(dirfd(dir), entry->d_name, 0) == 0);
  }
  closedir(dir);
}

static int wait_for(void (*scenario)(void)) {
  return test_wait(test_start(scenario));
}

static void try_call(void) {
  /* It cannot live there itself: killed by SIGSYS, or ended by its C library. */
  if (!WIFEXITED(wait_for(without_the_library))) {
    return;
  }
  killed = test_start(is_killed);
  CHECK(WIFSIGNALED(test_wait(killed)));
  memset(result, 0, sizeof *result);
  int status = wait_for(sandboxed);
  if (status == 0 && result->is_open) {
    status = wait_for(check_files);
  }
  if (status != 0) {
    fprintf(stderr, "%s is refused by %s %d, %s: wait status %#x, failed %u\n", call.name, by_signal ? "signal" : "error",
            refusal, afterwards ? "afterwards" : "before", (unsigned)status, result->failed);
    CHECK(0);
  }
  empty(test_dir);
  empty(getenv("JITSYM_SPOOL_DIR"));
}

/* Most of the time is spent with waiting; so several of them go through the calls together, each in directories of its own. */
static int worker;
static int is_light;

static void try_calls(void) {
  char name[16];
  static struct test_path dir, spools;
  snprintf(name, sizeof name, "%d", worker);
  dir = test_subdir(name, 1);
  snprintf(name, sizeof name, "%d-spools", worker);
  spools = test_subdir(name, 1);
  test_dir = dir.text;
  setenv("JITSYM_SPOOL_DIR", spools.text, 1);
  result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(result != MAP_FAILED);
  static const struct {
    int refusal, by_signal;
  } ways[] = {{EPERM, 0}, {ENOSYS, 0}, {EACCES, 0}, {EPERM, 1}, {ENOSYS, 1}};
  const char *only = getenv("TEST_ONLY");
  /* A small workload has one error and one signal. */
  size_t step = is_light ? 4 : 1;
  for (size_t i = (size_t)worker; i < sizeof calls / sizeof calls[0]; i += WORKERS) {
    call = calls[i];
    for (size_t way = 0; way < sizeof ways / sizeof ways[0] && (only == NULL || strcmp(only, call.name) == 0); way += step) {
      refusal = ways[way].refusal;
      by_signal = ways[way].by_signal;
      /* Rust's standard library panics at other answers of getrandom than EPERM and ENOSYS. */
      int is_lived_with = call.number != SYS_getrandom || refusal != EACCES;
      for (afterwards = 0; afterwards < 2 && is_lived_with; afterwards++) {
        try_call();
      }
    }
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  is_light = argc > 2 && strcmp(argv[2], "light") == 0;
  pid_t workers[WORKERS];
  for (worker = 0; worker < WORKERS; worker++) {
    workers[worker] = test_start(try_calls);
  }
  for (worker = 0; worker < WORKERS; worker++) {
    test_wait_ok(workers[worker]);
  }
  return test_end();
}
