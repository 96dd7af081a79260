/*
 * The perf map of jitsym_map.h, where no library is found: what happens to the file, and to the host. Takes a directory, the
 * name of a test, and for some tests more.
 */
#define _GNU_SOURCE
#include "jitsym_dl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "files.h"
#include "plugin.h"

static jitsym_options options;
static jitsym *session;

static const char *path_of(int pid) {
  static char path[JITSYM_DIR_MAX + 64];
  snprintf(path, sizeof path, "%s/perf-%d.map", options.map_dir, pid);
  return path;
}

static jitsym_status add(uint64_t addr, const char *name) {
  jitsym_code code = JITSYM_CODE(addr, 16, name);
  return jitsym_register(session, &code, NULL);
}

static jitsym_stats stats_now(void) {
  jitsym_stats stats = JITSYM_STATS;
  CHECK_OK(jitsym_get_stats(session, &stats));
  return stats;
}

static void has(const char *text) {
  file_check(path_of((int)getpid()), text);
}

/* How many descriptors this process has. */
static int descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

static void test_calls(void) {
  char text[2000];
  struct stat status;
  jitsym *other;
  jitsym_id id = 0;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "fib");
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x2000);
  jitsym_region region = JITSYM_REGION;
  int open_before = descriptors();
  errno = 77;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(jitsym_version_number() == 0 && jitsym_wanted(session) == JITSYM_WANT_CODE);
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
  CHECK(strcmp(text, path_of((int)getpid())) == 0);
  CHECK(stat(text, &status) == 0 && (status.st_mode & 07777) == 0644);
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK_OK(jitsym_move(session, id, &target));
  target.addr = 0x3000;
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + 1, &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + (UINT64_C(1) << 16), &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + (UINT64_C(1) << 40), &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, 0, &target));
  CHECK_OK(jitsym_unregister(session, id));
  CHECK_OK(jitsym_unregister_range(session, 0x1000, 16, JITSYM_RANGE_UNMAP));
  CHECK_OK(jitsym_flush(session, 0));
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
  CHECK(errno == 77 && descriptors() == open_before);
  has("1000 10 fib\n2000 10 fib\n3000 10 fib\n");
  jitsym_stats stats = stats_now();
  CHECK(stats.sinks_running == JITSYM_SINK_MAP && stats.sinks_failed == 0 && stats.threads == 0 && stats.write_errors == 0);
  CHECK(stats.registered == 1 && stats.moved == 2);
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "No such file") != NULL && strstr(text, "; a map is written without it") != NULL);
  CHECK_OK(jitsym_last_error(NULL, text, 8));
  CHECK(strlen(text) == 7);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_alloc(session, 64, 0, 0, &region));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_adopt(session, text, 4096));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_enable(session, JITSYM_SINK_JITDUMP));
  CHECK_STATUS(JITSYM_ERR_CONFLICT, jitsym_dl_load(NULL));

  /* Sessions share a handle, and the last one ends the calls. */
  CHECK_OK(jitsym_init(&options, &other));
  CHECK_OK(jitsym_close(session));
  CHECK_OK(jitsym_register(other, &code, NULL));
  CHECK_OK(jitsym_close(other));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(other));
  CHECK_STATUS(JITSYM_ERR_CLOSED, add(0x5000, "closed"));
  CHECK(jitsym_wanted(other) == 0);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_dl_load("/nowhere/it.so"));
  /* A session that is opened later continues the file. */
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x6000, "again"));
  has("1000 10 fib\n2000 10 fib\n3000 10 fib\n1000 10 fib\n6000 10 again\n");
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_flush((jitsym *)text, 0));
  options.map_dir = "/tmp";
  CHECK_STATUS(JITSYM_ERR_CONFLICT, jitsym_init(&options, &other));
}

/* Whether options and environment ask for a map. Prints the status, and whether the map runs. */
static void test_configurations(void) {
  static const char *const variables[] = {NULL, "on", "map", "MAP", "jitdump", "jitdump, map", " yes ", "off", "0", "bridge",
                                          "bridge,gdb", "gdb,on", "foo", "foo,map", ",", "mapp", "ma", "true\t", "1,foo", "bridge,map"};
  static const unsigned flags[] = {0, JITSYM_INIT_OFF_BY_DEFAULT, JITSYM_INIT_ENV_WINS};
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    if (variables[i] != NULL) setenv("JITSYM", variables[i], 1);
    else unsetenv("JITSYM");
    for (size_t k = 0; k < 3; k++) {
      for (unsigned sinks = 0; sinks < 4; sinks++) {
        jitsym_stats stats = JITSYM_STATS;
        options.sinks = sinks;
        options.flags = flags[k] | JITSYM_INIT_NO_THREADS | JITSYM_INIT_NO_SPOOL;
        jitsym_status status = jitsym_init(&options, &session);
        CHECK(status == JITSYM_OK || status == JITSYM_ERR_LIBRARY);
        if (status == JITSYM_OK) CHECK_OK(jitsym_get_stats(session, &stats));
        if (status == JITSYM_OK) CHECK_OK(jitsym_close(session));
        printf("%s %u %u: %u\n", variables[i] == NULL ? "-" : variables[i], flags[k], sinks, stats.sinks_running & JITSYM_SINK_MAP);
      }
    }
  }
}

/* Nothing but a file of this user with one name is opened: a FIFO has no reader to wait for, and the host's lock stays. */
static void test_names(void) {
  char other[JITSYM_DIR_MAX + 64], why[2000], expected[JITSYM_DIR_MAX + 128];
  const char *path = path_of((int)getpid());
  snprintf(expected, sizeof expected, "; %s: error %d", path, EEXIST);
  snprintf(other, sizeof other, "%s/other", options.map_dir);
  file_write(other, "not a map\n");
  int host = open(other, O_RDWR);
  struct flock lock = {.l_type = F_WRLCK}, found = lock;
  CHECK(host >= 0 && fcntl(host, F_SETLK, &lock) == 0);
  for (int kind = 0; kind < 4; kind++) {
    switch (kind) {
      case 0: CHECK(symlink(other, path) == 0); break;
      case 1: CHECK(link(other, path) == 0); break;
      case 2: CHECK(mkfifo(path, 0600) == 0); break;
      case 3: CHECK(mkdir(path, 0700) == 0); break;
    }
    CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_init(&options, &session));
    CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
    CHECK(strstr(why, expected) != NULL);
    CHECK(file_exists(path) && remove(path) == 0);
  }
  pid_t child = fork();
  if (child == 0) {
    CHECK(fcntl(host, F_GETLK, &found) == 0 && found.l_type == F_WRLCK);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  file_check(other, "not a map\n");
  /* Another runtime in this process has made the map, and is within a line. */
  file_write(path, "1000 10 another\n3000 10 unfin");
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x2000, "ours"));
  CHECK_OK(add(0x4000, "next"));
  has("1000 10 another\n3000 10 unfin\n2000 10 ours\n4000 10 next\n");
}

enum { THREADS = 4 };
static int arrived;

/* Threads that make their first call at the same time. */
static void *first_call(void *unused) {
  __atomic_fetch_add(&arrived, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < THREADS) sched_yield();
  CHECK_OK(add(0x1000, "of a thread"));
  return unused;
}

/* A file that an earlier process has left is replaced once, whichever thread comes first, and no line is lost or there twice. */
static void test_left(void) {
  const struct timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  CHECK_OK(jitsym_init(&options, &session));
  for (uint64_t i = 1; i <= 1000; i++) CHECK_OK(add(0x100 * i, "of the parent"));
  for (int round = 0; round < 100; round++) {
    pid_t child = fork();
    if (child == 0) {
      const char *path = path_of((int)getpid());
      pthread_t threads[THREADS];
      int lines = 0;
      size_t size;
      file_write(path, "1000 10 long ago\n");
      CHECK(utimensat(AT_FDCWD, path, long_ago, 0) == 0);
      for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, first_call, NULL) == 0);
      for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
      char *text = (char *)file_read(path, &size);
      for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
      CHECK(lines == 1000 + THREADS && strstr(text, "long ago") == NULL);
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
}

static void *add_long(void *unused) {
  for (int i = 0; i < 200; i++) {
    jitsym_status status = add(0x10000, "a name that many threads write at the limit");
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED);
  }
  return unused;
}

/* A limit costs lines, and no signal. SIGXFSZ would end the process. */
static void test_limits(void) {
  struct rlimit limit = {29, RLIM_INFINITY};
  sigset_t pending;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "first"));
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_OK(add(0x2000, "second"));
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x3000, "third"));
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  jitsym_stats stats = stats_now();
  CHECK(stats.write_errors == 1 && stats.sinks_running == 0 && stats.sinks_failed == JITSYM_SINK_MAP && stats.registered == 2);
  /* A part of a line is written, and taken back. */
  limit.rlim_cur = 35;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x4000, "fourth"));
  has("1000 10 first\n2000 10 second\n");
  /* A child cannot write its parent's lines. */
  limit.rlim_cur = 10;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  pid_t child = fork();
  if (child == 0) {
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x5000, "of a child"));
    has("");
    CHECK(add(0x5000, "x") == JITSYM_ERR_SINK_FAILED);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  pthread_t threads[4];
  limit.rlim_cur = 4000;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, add_long, NULL) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0);
  limit.rlim_cur = RLIM_INFINITY;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_OK(add(0x6000, "last"));
  CHECK_OK(jitsym_flush(session, 0));
  size_t size, lines = 0;
  char *text = (char *)file_read(path_of((int)getpid()), &size);
  for (char *line = strstr(text, "10000 10 "); strncmp(line, "6000", 4) != 0; line = strchr(line, '\n') + 1, lines++)
    CHECK(strncmp(line, "10000 10 a name that many threads write at the limit\n", 53) == 0);
  CHECK(lines > 50);
}

/* The host closes all descriptors, and gets the numbers for files of its own. */
static void test_closed(void) {
  char other[JITSYM_DIR_MAX + 64];
  snprintf(other, sizeof other, "%s/other", options.map_dir);
  file_write(other, "");
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "before"));
  int flags[64];
  for (int fd = 3; fd < 64; fd++) {
    close(fd);
    CHECK(open(other, O_RDWR) == fd);
    flags[fd] = fcntl(fd, F_GETFL);
  }
  CHECK_OK(add(0x2000, "after"));
  for (int fd = 3; fd < 64; fd++) CHECK(fcntl(fd, F_GETFL) == flags[fd] && lseek(fd, 0, SEEK_CUR) == 0);
  for (int fd = 0; fd < 64; fd++)
    if (fd != 2) close(fd);
  CHECK_OK(add(0x3000, "daemon"));
  has("1000 10 before\n2000 10 after\n3000 10 daemon\n");
  file_check(other, "");
}

/* A map that was removed begins again. A map that was truncated goes on. */
static void test_removed(void) {
  jitsym_id id = 0;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "before");
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x3000);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(unlink(path_of((int)getpid())) == 0);
  CHECK_OK(add(0x2000, "after"));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id, &target));
  has("2000 10 after\n");
  FILE *other = fopen(path_of((int)getpid()), "a");
  CHECK(other != NULL && ftruncate(fileno(other), 0) == 0 && fprintf(other, "4000 10 other\n") > 0 && fflush(other) == 0);
  CHECK_OK(add(0x5000, "ours"));
  CHECK(fprintf(other, "6000 10 other again\n") > 0 && fflush(other) == 0);
  CHECK_OK(add(0x7000, "ours again"));
  has("4000 10 other\n5000 10 ours\n6000 10 other again\n7000 10 ours again\n");
  /* A directory that is not there is an error of its own. */
  char why[2000], moved[JITSYM_DIR_MAX + 64];
  snprintf(moved, sizeof moved, "%s.moved", options.map_dir);
  CHECK(rename(options.map_dir, moved) == 0);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x8000, "nowhere"));
  CHECK_OK(jitsym_last_error(session, why, sizeof why));
  CHECK(strstr(why, ".map: error 2") != NULL);
  CHECK(rename(moved, options.map_dir) == 0);
  CHECK_OK(add(0x9000, "there"));
}

static void wait_for(pid_t child) {
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void test_fork(void) {
  jitsym_id id = 0;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "of the parent");
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x3000);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(jitsym_register(session, &code, &id));
  int ready[2];
  char byte;
  CHECK(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    /* What the parent registers after the fork is not the child's. */
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(jitsym_wanted(session) != 0 && !file_exists(path_of((int)getpid())));
    CHECK_OK(add(0x2000, "of the child"));
    CHECK_OK(jitsym_move(session, id, &target));
    has("1000 10 of the parent\n2000 10 of the child\n3000 10 of the parent\n");
    if (fork() == 0) {
      CHECK_OK(jitsym_flush(session, 0));
      has("1000 10 of the parent\n2000 10 of the child\n3000 10 of the parent\n");
      if (fork() == 0) {
        for (int fd = 0; fd < 64; fd++)
          if (fd != 2) close(fd);
        CHECK_OK(add(0x8000, "daemon"));
        has("1000 10 of the parent\n2000 10 of the child\n3000 10 of the parent\n8000 10 daemon\n");
        _exit(0);
      }
      int status;
      CHECK(wait(&status) > 0 && status == 0);
      _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    _exit(0);
  }
  CHECK_OK(add(0x5000, "parent again"));
  CHECK(write(ready[1], "x", 1) == 1);
  wait_for(child);
  /* A child that makes no call, or only closes its session, has no file. A session of its own has the parent's lines. */
  child = fork();
  if (child == 0) {
    CHECK_OK(jitsym_close(session));
    CHECK(!file_exists(path_of((int)getpid())));
    options.flags = JITSYM_INIT_FORK_ALONE;
    CHECK_OK(jitsym_init(&options, &session));
    CHECK_OK(add(0x4000, "own"));
    has("1000 10 of the parent\n5000 10 parent again\n4000 10 own\n");
    _exit(0);
  }
  wait_for(child);
  has("1000 10 of the parent\n5000 10 parent again\n");
}

/* A child that cannot copy its parent's lines reports a failure, and copies them once it can. Others may have written long lines. */
static void test_inherited(void) {
  enum { LONG = 20000 };
  char *expected = (char *)malloc(LONG + 100);
  CHECK(expected != NULL);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "first"));
  int used = sprintf(expected, "1000 10 first\n5000 10 ");
  memset(expected + used, 'x', LONG);
  strcpy(expected + used + LONG, "\n");
  FILE *map = fopen(path_of((int)getpid()), "a");
  CHECK(map != NULL && fputs(strchr(expected, '\n') + 1, map) >= 0 && fclose(map) == 0);
  CHECK_OK(add(0x2000, "last"));
  pid_t child = fork();
  if (child == 0) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = LONG;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x3000, "without room"));
    limit.rlim_cur = before;
    CHECK(stats_now().write_errors == 1 && setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_OK(add(0x4000, "of the child"));
    strcat(expected, "2000 10 last\n4000 10 of the child\n");
    has(expected);
    _exit(0);
  }
  wait_for(child);
  free(expected);
}

/* A child that changes its user reads the parent's map. */
static void test_user(void) {
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "of root"));
  pid_t child = fork();
  if (child == 0) {
    CHECK(setuid(65534) == 0);
    CHECK_OK(add(0x4000, "of nobody"));
    has("1000 10 of root\n4000 10 of nobody\n");
    _exit(0);
  }
  wait_for(child);
}

static void *add_cancelled(void *unused) {
  jitsym *own;
  CHECK(pthread_cancel(pthread_self()) == 0);
  CHECK_OK(jitsym_init(&options, &own));
  CHECK_OK(add(0x2000, "cancelled"));
  CHECK_OK(jitsym_close(own));
  /* The control. */
  pthread_testcancel();
  return unused;
}

/* A thread that is to be cancelled finishes its calls. */
static void test_cancel(void) {
  pthread_t thread;
  void *result;
  int unused;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "first"));
  CHECK(unlink(path_of((int)getpid())) == 0);
  CHECK(pthread_create(&thread, NULL, add_cancelled, &unused) == 0);
  CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
  has("2000 10 cancelled\n");
}

static int is_over;

static void *add_always(void *unused) {
  for (uint64_t i = 1; !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++) CHECK_OK(add(i * 16, "of a thread"));
  return unused;
}

/* Forks at any moment of another thread's calls. */
static void test_forks(void) {
  pthread_t threads[2];
  CHECK_OK(jitsym_init(&options, &session));
  for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, add_always, NULL) == 0);
  for (int i = 0; i < 100; i++) {
    pid_t child = fork();
    if (child == 0) {
      CHECK_OK(add(0x7f0000000000, "of the child"));
      size_t size;
      char *text = (char *)file_read(path_of((int)getpid()), &size);
      CHECK(size >= 29 && strcmp(text + size - 29, "7f0000000000 10 of the child\n") == 0);
      for (char *line = text; *line != 0; line = strchr(line, '\n') + 1)
        CHECK(strstr(line, "0 10 of a thread\n") != NULL || strstr(line, " of the child\n") != NULL);
      unlink(path_of((int)getpid()));
      _exit(0);
    }
    wait_for(child);
  }
  __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Somebody else holds a lock on the map. */
static void test_locked(void) {
  const char *path = path_of((int)getpid());
  file_write(path, "");
  int theirs = open(path, O_RDONLY);
  CHECK(theirs >= 0 && flock(theirs, LOCK_EX) == 0);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "locked"));
  has("1000 10 locked\n");
}

/* Another copy in a plugin: of this header, or of the library. Other descriptors have all numbers below 1,100. */
static void test_copies(const char *library) {
  struct rlimit limit = {4096, 4096};
  void *loaded = dlopen(library, RTLD_NOW);
  CHECK(loaded != NULL);
  const struct plugin *plugin = (const struct plugin *)dlsym(loaded, "plugin_functions");
  jitsym *other;
  jitsym_code code = JITSYM_CODE(0x2000, 16, "of the plugin");
  CHECK(plugin != NULL);
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
    while (open("/dev/null", O_RDONLY) < 1100) continue;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "ours"));
  CHECK_OK(plugin->jitsym_init(&options, &other));
  CHECK_OK(plugin->jitsym_register(other, &code, NULL));
  CHECK_OK(plugin->jitsym_flush(other, 0));
  CHECK_OK(add(0x3000, "ours again"));
  code.addr = 0x4000;
  CHECK_OK(plugin->jitsym_register(other, &code, NULL));
  CHECK_OK(plugin->jitsym_flush(other, 0));
  pid_t child = fork();
  if (child == 0) {
    CHECK_OK(add(0x6000, "of the child"));
    code.addr = 0x7000;
    CHECK_OK(plugin->jitsym_register(other, &code, NULL));
    CHECK_OK(plugin->jitsym_flush(other, 0));
    size_t size;
    char *text = (char *)file_read(path_of((int)getpid()), &size);
    char *line = strstr(text, "1000 10 ours\n");
    CHECK(line != NULL && strstr(line + 1, "1000 10 ours\n") == NULL && strstr(text, "7000 10 of the plugin\n") != NULL);
    _exit(0);
  }
  wait_for(child);
  CHECK_OK(plugin->jitsym_close(other));
  CHECK_OK(add(0x5000, "ours at last"));
  has("1000 10 ours\n2000 10 of the plugin\n3000 10 ours again\n4000 10 of the plugin\n5000 10 ours at last\n");
}

static void test_chroot(void) {
  CHECK(chdir(options.map_dir) == 0 && chroot(".") == 0 && mkdir("/inside", 0700) == 0);
  options.map_dir = "/inside";
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "in a jail"));
  has("1000 10 in a jail\n");
}

/* Of a program with more rights than its caller. */
static void test_rights(void) {
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_init(&options, &session));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, add(0x1000, "secret"));
}

/* A file system without room. */
static void test_full(void) {
  CHECK_OK(jitsym_init(&options, &session));
  char name[JITSYM_NAME_MAX + 1];
  int failed = 0;
  memset(name, 'x', JITSYM_NAME_MAX);
  name[JITSYM_NAME_MAX] = 0;
  for (uint64_t i = 1; i < 1000 && failed < 3; i++) failed += add(i * 16, name) == JITSYM_ERR_SINK_FAILED;
  CHECK(failed == 3 && stats_now().write_errors == 3);
  size_t size;
  char *text = (char *)file_read(path_of((int)getpid()), &size);
  CHECK(size > 0 && text[size - 1] == '\n');
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  options.struct_size = sizeof options;
  options.map_dir = options.jitdump_dir = options.spool_dir = argv[1];
  options.sinks = JITSYM_SINK_MAP;
  if (strcmp(argv[2], "calls") == 0) test_calls();
  else if (strcmp(argv[2], "configurations") == 0) test_configurations();
  else if (strcmp(argv[2], "names") == 0) test_names();
  else if (strcmp(argv[2], "left") == 0) test_left();
  else if (strcmp(argv[2], "limits") == 0) test_limits();
  else if (strcmp(argv[2], "closed") == 0) test_closed();
  else if (strcmp(argv[2], "removed") == 0) test_removed();
  else if (strcmp(argv[2], "fork") == 0) test_fork();
  else if (strcmp(argv[2], "inherited") == 0) test_inherited();
  else if (strcmp(argv[2], "user") == 0) test_user();
  else if (strcmp(argv[2], "cancel") == 0) test_cancel();
  else if (strcmp(argv[2], "forks") == 0) test_forks();
  else if (strcmp(argv[2], "locked") == 0) test_locked();
  else if (strcmp(argv[2], "copies") == 0) test_copies(argv[3]);
  else if (strcmp(argv[2], "chroot") == 0) test_chroot();
  else if (strcmp(argv[2], "rights") == 0) test_rights();
  else if (strcmp(argv[2], "full") == 0) test_full();
  else CHECK(0);
  return 0;
}
