/*
 * What the C tests share: arguments, options, codes, children.
 *
 * Every program takes a directory for its files as its first argument, and a second one: "light" for a small workload, or "slow"
 * for the same under valgrind or an emulator (valgrind runs one thread at a time, about 30 times slower). On success it prints
 * "ok" and nothing else.
 */
#ifndef TESTING_H
#define TESTING_H

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "files.h"
#include "jitdump_read.h"
#include "jitsym_control.h"
#include "jitsym_region.h"
#include "wait.h"

static const char *test_dir;
static int test_light, test_slow;
/* An emulator that runs the program (qemu) has threads of its own in the process. */
static int test_threads_of_others;

/* Numbers of files that somebody left in a directory. */
static inline int test_files_in(const char *path) {
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    count += entry->d_name[0] != '.';
  }
  closedir(dir);
  return count;
}

/* A fork of which the C library does not know. */
static inline pid_t test_clone(void) {
#ifdef __s390x__
  return (pid_t)syscall(SYS_clone, 0, SIGCHLD, 0, 0, 0);
#else
  return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

/* How many threads the program has. */
static inline int test_threads(void) {
  return test_files_in("/proc/self/task") - test_threads_of_others;
}

static inline void test_begin(int argc, char **argv) {
  CHECK(argc >= 2 && argv[1][0] == '/');
  test_dir = argv[1];
  test_slow = argc >= 3 && strcmp(argv[2], "slow") == 0;
  test_light = test_slow || (argc >= 3 && strcmp(argv[2], "light") == 0);
  test_threads_of_others = test_files_in("/proc/self/task") - 1;
  /* What the person who runs the tests has set must not decide them. */
  unsetenv("JITSYM");
  unsetenv("JITSYM_DIR");
  unsetenv("JITSYM_SPOOL");
  unsetenv("JITSYM_THREADS");
  unsetenv("JITSYM_RECOVER");
  /* The files of children are complete after a flush. */
  setenv("JITSYM_FORK", "on", 1);
  unsetenv("JITSYM_REMOVE");
  unsetenv("JITSYM_LATE");
  unsetenv("JITSYM_ADOPT");
  unsetenv("JITSYM_MAP_MAX");
  unsetenv("JITSYM_JITDUMP_MAX");
  /* tests/valgrind.rs has programs for that. */
  setenv("JITSYM_VALGRIND", "0", 1);
  unsetenv("JITDUMPDIR");
  unsetenv("JITDUMP_USE_ARCH_TIMESTAMP");
  umask(022);
  /* Beside the directory: processes that end without a word leave their spools behind, and not where the system has its own. */
  static char spools[4096];
  snprintf(spools, sizeof spools, "%s-spools", test_dir);
  CHECK(mkdir(spools, 0700) == 0 || errno == EEXIST);
  setenv("JITSYM_SPOOL_DIR", spools, 1);
}

static inline int test_end(void) {
  puts("ok");
  return 0;
}

/*
 * LeakSanitizer asks this at exit. A process that was forked while other threads ran has their memory, but no longer their
 * stacks, which are where it would find the owners: it would report what the parent's threads still use.
 */
static int test_inherits_threads;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
  return test_inherits_threads;
}

/* Options with both files in the test's directory. */
static inline jitsym_options test_options(void) {
  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.map_dir = test_dir;
  options.jitdump_dir = test_dir;
  return options;
}

/* A start may take longer than 10 seconds, for instance under valgrind on a busy machine. It goes on, and the next call finishes it. */
static inline jitsym *test_init(const jitsym_options *options) {
  jitsym *session = NULL;
  jitsym_status status;
  do {
    status = jitsym_init(options, &session);
  } while (status == JITSYM_ERR_TIMEOUT);
  CHECK_STATUS(JITSYM_OK, status);
  CHECK(session != NULL);
  return session;
}

static inline jitsym *test_open_flags(uint32_t sinks, uint32_t flags) {
  jitsym_options options = test_options();
  options.sinks = sinks;
  options.flags = flags;
  return test_init(&options);
}

/* The sinks that run if options and environment name none. */
enum { TEST_DEFAULT_SINKS = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION };

static inline jitsym *test_open(void) {
  return test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, 0);
}

enum {
  TEST_CODE_MAX = 1 << 16,
  /* A thread changes to other memory when it has laid down so much (see docs/design.md). */
  TEST_CHUNK_SIZE = 256 << 10,
};
static const unsigned char test_bytes[TEST_CODE_MAX] = {0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3};

/* Code at an address where nothing needs to be, with its bytes elsewhere. */
static inline jitsym_code test_code(uint64_t addr, uint64_t size, const char *name) {
  jitsym_code code;
  memset(&code, 0, sizeof code);
  code.struct_size = sizeof code;
  code.addr = addr;
  code.size = size;
  code.bytes = size <= sizeof test_bytes ? test_bytes : NULL;
  code.name = name;
  return code;
}

/*
 * The frame of most code of this machine, for code of at least 16 bytes. Where there is no preset for frame pointers: a frame that
 * stands from the start.
 */
static inline jitsym_unwind test_unwind(void) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
#if defined(__x86_64__) || defined(__i386__) || defined(__aarch64__) || defined(__riscv)
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
#else
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = 320;
#endif
  return unwind;
}

static inline jitsym_id test_register(jitsym *session, uint64_t addr, uint64_t size, const char *name) {
  jitsym_code code = test_code(addr, size, name);
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id != 0);
  return id;
}

static inline jitsym_region test_region(jitsym *session, uint64_t size, uint32_t flags) {
  jitsym_region_options options = JITSYM_REGION_OPTIONS(size);
  options.flags = flags;
  jitsym_region region = JITSYM_REGION;
  CHECK_OK(jitsym_region_create(session, &options, &region));
  return region;
}

static inline jitsym_move_target test_target(uint64_t addr) {
  jitsym_move_target target;
  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  target.addr = addr;
  target.bytes = test_bytes;
  return target;
}

/* The counters as they are, while the writer may be at work. */
static inline jitsym_stats test_stats_now(jitsym *session) {
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  return stats;
}

/* The counters, exact ones. */
static inline jitsym_stats test_stats(jitsym *session) {
  CHECK_OK(test_flush(session));
  return test_stats_now(session);
}

enum { TEST_PATH_MAX = JITSYM_DIR_MAX + 33 };

struct test_path {
  char text[TEST_PATH_MAX];
};

/* The usual name of the jitdump is taken. */
static int test_jitdump_is_elsewhere;

/* The path of a file that the library writes: as it says itself, after a check that it is the one that profilers open. */
static inline struct test_path test_path_in(jitsym *session, uint32_t sink, const char *dir) {
  struct test_path path, expected;
  const char *dump = test_jitdump_is_elsewhere ? "%s/jit-0%d.dump" : "%s/jit-%d.dump";
  int length = snprintf(expected.text, sizeof expected.text, sink == JITSYM_SINK_MAP ? "%s/perf-%d.map" : dump, dir, (int)getpid());
  CHECK(length > 0 && (size_t)length < sizeof expected.text);
  CHECK_OK(jitsym_path(session, sink, path.text, sizeof path.text));
  CHECK(strcmp(path.text, expected.text) == 0);
  return path;
}

static inline struct test_path test_path(jitsym *session, uint32_t sink) {
  return test_path_in(session, sink, test_dir);
}

/* Where the files of a process are, for when there is no session to ask. */
static inline struct test_path test_path_of(pid_t pid, uint32_t sink) {
  struct test_path path;
  const char *format = sink == JITSYM_SINK_MAP ? "%s/perf-%d.map" : "%s/jit-%d.dump";
  snprintf(path.text, sizeof path.text, format, test_dir, (int)pid);
  return path;
}

/* A directory below that of the test, made if `make` is set. */
static inline struct test_path test_subdir(const char *name, int make) {
  struct test_path path;
  snprintf(path.text, sizeof path.text, "%s/%s", test_dir, name);
  CHECK(!make || mkdir(path.text, 0755) == 0 || errno == EEXIST);
  return path;
}

/* By how many nanoseconds the time of a record may differ from the clock (src/sys/tsc). */
enum { TEST_CLOCK_ERROR = 1000 };

static inline uint64_t test_now(void) {
  struct timespec now;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * Whether a line of /proc/self/maps is of this file, or of a file whose path has this in it. qemu writes that list itself, and
 * has "[heap]" there as the name of whatever lies where the heap would begin: then the inode says it.
 */
static inline int test_maps_line_is_of(const char *line, const char *path) {
  unsigned long long inode;
  struct stat status;
  if (strstr(line, "[heap]") == NULL) {
    return strstr(line, path) != NULL;
  }
  return sscanf(line, "%*s %*s %*s %*s %llu", &inode) == 1 && stat(path, &status) == 0 && inode == status.st_ino;
}

/* How many mappings there are by which perf finds the dump: executable ones, of the file that has the name now. */
static inline unsigned test_markers(const char *path) {
  size_t size;
  unsigned count = 0;
  char *maps = (char *)file_read("/proc/self/maps", &size), *rest = NULL;
  for (char *line = strtok_r(maps, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    if (test_maps_line_is_of(line, path)) {
      /* The other one is for forked children. */
      int marks = strstr(line, " r-x") != NULL;
      CHECK(strstr(line, "(deleted)") == NULL && (marks || strstr(line, " r--s") != NULL));
      count += marks;
    }
  }
  free(maps);
  return count;
}

/* The library's threads end with the last session; the kernel may take a moment to say so. */
static inline void test_wait_for_end_of_thread(void) {
  TEST_AWAIT(test_threads() == 1);
}

/*
 * Waits for a child, for so many turns, and returns its wait status. A child that hangs is the failure that is looked for: it is
 * killed, so that nothing is left behind.
 */
static inline int test_wait_for(pid_t child, unsigned allowed) {
  int status = 0;
  unsigned turns = 0;
  do {
    pid_t got = waitpid(child, &status, WNOHANG);
    CHECK(got == 0 || got == child);
    if (got == child) {
      return status;
    }
  } while (test_turn_of(&turns, allowed));
  fprintf(stderr, "child %d hangs\n", (int)child);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  CHECK(!"child hangs");
  return status;
}

static inline int test_wait(pid_t child) {
  return test_wait_for(child, TEST_TURNS);
}

/* That a child ended well: normally, and with no finding of a sanitizer or valgrind (they change the exit status). */
static inline void test_ended_well(pid_t child, int status) {
  if (status != 0) {
    fprintf(stderr, "child %d: wait status %#x\n", (int)child, (unsigned)status);
  }
  CHECK(status == 0);
}

static inline void test_wait_ok(pid_t child) {
  test_ended_well(child, test_wait(child));
}

/* Starts a scenario in a process of its own, which leaves by exit. */
static inline pid_t test_start(void (*scenario)(void)) {
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    scenario();
    exit(0);
  }
  return child;
}

/*
 * Runs a scenario in a process of its own, so that what one leaves behind (open files, registered code, the environment)
 * is not there in the next. It leaves by exit, as a program does. Returns its pid, by which its files are named.
 */
static inline pid_t test_child(void (*scenario)(void)) {
  pid_t child = test_start(scenario);
  test_ended_well(child, test_wait_for(child, TEST_SCENARIO_TURNS));
  return child;
}

#endif
