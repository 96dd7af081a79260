/*
 * The perf map of jitsym_map.h, where no library is found: what happens to the file, and to the host. Takes a directory, the
 * name of a test, and for some tests more.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* How many bytes the next write may write; all if it is negative. */
static long allowed = -1;

static ssize_t limited_write(int file, const void *from, size_t size) {
  size_t part = allowed < 0 || (size_t)allowed > size ? size : (size_t)allowed;
  if (part == 0) errno = ENOSPC;
  return part == 0 ? -1 : write(file, from, part);
}

#define write limited_write
#include "jitsym_dl.h"
#undef write

#include "check.h"
#include "files.h"
#include "plugin.h"

static jitsym_options options;
static jitsym *session;
static const unsigned char bytes[64];

static const char *path_of(int pid) {
  static char path[JITSYM_DIR_MAX + 64];
  snprintf(path, sizeof path, "%s/perf-%d.map", options.map_dir, pid);
  return path;
}

static jitsym_status add(uint64_t addr, const char *name) {
  jitsym_code code = JITSYM_CODE(addr, 16, name);
  code.bytes = bytes;
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

/* A descriptor of the map that the host has, or -1. */
static int map_descriptor(void) {
  char link[64], path[JITSYM_DIR_MAX + 64];
  for (int fd = 0; fd < 64; fd++) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size > 0) path[size] = 0;
    if (size > 0 && strcmp(path, path_of((int)getpid())) == 0) return fd;
  }
  return -1;
}

static void test_calls(void) {
  char text[2000];
  struct stat status;
  jitsym *other;
  jitsym_id id = 0;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "fib");
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x2000);
  jitsym_region region = JITSYM_REGION;
  errno = 77;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(jitsym_version_number() == 0 && jitsym_wanted(session) == JITSYM_WANT_CODE);
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
  CHECK(strcmp(text, path_of((int)getpid())) == 0);
  CHECK(stat(text, &status) == 0 && (status.st_mode & 07777) == 01644);
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK_OK(jitsym_move(session, id, &target));
  target.addr = 0x3000;
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + 1, &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + (UINT64_C(1) << 24), &target));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + (UINT64_C(1) << 40), &target));
  CHECK_OK(jitsym_unregister(session, id));
  CHECK_OK(jitsym_unregister_range(session, 0x1000, 16, JITSYM_RANGE_UNMAP));
  CHECK_OK(jitsym_flush(session, 0));
  CHECK_OK(jitsym_flush_from_signal(0));
  CHECK(errno == 77);
  has("1000 10 fib\n2000 10 fib\n3000 10 fib\n");
  jitsym_stats stats = stats_now();
  CHECK(stats.sinks_running == JITSYM_SINK_MAP && stats.sinks_failed == 0 && stats.threads == 0 && stats.write_errors == 0);
  CHECK(stats.registered == 1 && stats.moved == 2 && stats.map_entries == 3 && stats.map_bytes == 36);
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "No such file") != NULL && strstr(text, path_of((int)getpid())) != NULL && strstr(text, "without") != NULL);
  CHECK_OK(jitsym_last_error(NULL, text, 8));
  CHECK(strlen(text) == 7);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_alloc(session, 64, 0, 0, &region));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_adopt(session, text, 4096));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_enable(session, JITSYM_SINK_JITDUMP));
  CHECK_STATUS(JITSYM_ERR_CONFLICT, jitsym_dl_load(NULL));

  CHECK_OK(jitsym_disable(session, JITSYM_SINK_JITDUMP));
  CHECK(jitsym_wanted(session) != 0);
  CHECK_OK(jitsym_disable(session, 0));
  CHECK(jitsym_wanted(session) == 0);
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_flush_from_signal(0));
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id == 0);
  CHECK_OK(jitsym_enable(session, 0));
  CHECK_OK(add(0x4000, "later"));

  CHECK_OK(jitsym_init(&options, &other));
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, add(0x5000, "closed"));
  CHECK_OK(jitsym_register(other, &code, &id));
  CHECK_OK(jitsym_close(other));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(other));
  CHECK(jitsym_wanted(other) == 0);
  /* A session that is opened later continues the file. */
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x6000, "again"));
  has("1000 10 fib\n2000 10 fib\n3000 10 fib\n4000 10 later\n1000 10 fib\n6000 10 again\n");
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_dl_load("/nowhere/it.so"));

  jitsym *sessions[64];
  for (int i = 0; i < 64; i++) CHECK_OK(jitsym_init(&options, &sessions[i]));
  CHECK_STATUS(JITSYM_ERR_TOO_MANY_SESSIONS, jitsym_init(&options, &session));
  for (int i = 0; i < 64; i++) CHECK_OK(jitsym_close(sessions[i]));
  int before = map_descriptor();
  CHECK(before > 2 && fcntl(before, F_GETFD) == FD_CLOEXEC);
}

/* Whether options and environment ask for a map. Prints the status, and whether the map runs. */
static void test_configurations(void) {
  static const char *const variables[] = {NULL, "on", "map", "MAP", "jitdump", "jitdump, map", " yes ", "off", "0", "bridge",
                                          "bridge,gdb", "gdb,on", "foo", "foo,map", ",", "mapp", "ma", "true\t", "1,foo", "bridge,map"};
  static const unsigned flags[] = {0, JITSYM_INIT_OFF_BY_DEFAULT, JITSYM_INIT_ENV_WINS};
  static const char *const adopt[] = {NULL, "0", "1"};
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    if (variables[i] != NULL) setenv("JITSYM", variables[i], 1);
    else unsetenv("JITSYM");
    for (size_t j = 0; j < 3; j++) {
      if (adopt[j] != NULL) setenv("JITSYM_ADOPT", adopt[j], 1);
      else unsetenv("JITSYM_ADOPT");
      for (size_t k = 0; k < 3; k++) {
        for (unsigned sinks = 0; sinks < 4; sinks++) {
          jitsym_stats stats = JITSYM_STATS;
          options.sinks = sinks;
          options.flags = flags[k] | JITSYM_INIT_NO_THREADS | JITSYM_INIT_NO_SPOOL;
          jitsym_status status = jitsym_init(&options, &session);
          CHECK(status == JITSYM_OK || status == JITSYM_ERR_LIBRARY);
          if (status == JITSYM_OK) CHECK_OK(jitsym_get_stats(session, &stats));
          if (status == JITSYM_OK) CHECK_OK(jitsym_close(session));
          printf("%s %zu %u %u: %u\n", variables[i] == NULL ? "-" : variables[i], j, flags[k], sinks,
                 stats.sinks_running & JITSYM_SINK_MAP);
        }
      }
    }
  }
}

/* What has the map's name already. */
static void test_names(void) {
  char other[JITSYM_DIR_MAX + 64], why[2000];
  const char *path = path_of((int)getpid());
  snprintf(other, sizeof other, "%s/other", options.map_dir);
  file_write(other, "not a map\n");
  for (int kind = 0; kind < 4; kind++) {
    switch (kind) {
      case 0: CHECK(symlink(other, path) == 0); break;
      case 1: CHECK(link(other, path) == 0); break;
      case 2: CHECK(mkfifo(path, 0600) == 0); break;
      case 3: CHECK(mkdir(path, 0700) == 0); break;
    }
    CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_init(&options, &session));
    CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
    CHECK(strstr(why, "cannot be written") != NULL);
    file_check(other, "not a map\n");
    CHECK(file_exists(path) && remove(path) == 0);
  }
  /* Of another runtime in this process, which has closed it. */
  file_write(path, "1000 10 another\n");
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x2000, "ours"));
  has("1000 10 another\n2000 10 ours\n");
  CHECK_OK(jitsym_close(session));
}

/* Files that earlier processes have left. */
static void test_left(void) {
  const char *path = path_of((int)getpid());
  const struct timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  file_write(path, "1000 10 long ago\n");
  CHECK(utimensat(AT_FDCWD, path, long_ago, 0) == 0);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x2000, "new"));
  has("2000 10 new\n");
}

/* A process that executes another program has the same pid. */
static void test_exec(char **argv, const char *round) {
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, round));
  if (strcmp(round, "one") == 0) {
    char *words[] = {argv[0], argv[1], argv[2], (char *)"two", NULL};
    execv(argv[0], words);
    CHECK(0);
  }
  has("1000 10 two\n");
}

static void test_limits(void) {
  struct rlimit limit = {29, RLIM_INFINITY};
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "first"));
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_OK(add(0x2000, "second"));
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x3000, "third"));
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  jitsym_stats stats = stats_now();
  CHECK(stats.write_errors == 1 && stats.sinks_running == 0 && stats.sinks_failed == JITSYM_SINK_MAP && stats.registered == 2);
  limit.rlim_cur = RLIM_INFINITY;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_OK(add(0x4000, "fourth"));
  CHECK_OK(jitsym_flush(session, 0));
  CHECK(stats_now().sinks_running == JITSYM_SINK_MAP);
  /* A full disk writes nothing, or a part of a line. */
  allowed = 0;
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x5000, "fifth"));
  allowed = 5;
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, add(0x6000, "sixth"));
  allowed = -1;
  CHECK_OK(add(0x7000, "seventh"));
  has("1000 10 first\n2000 10 second\n4000 10 fourth\n7000 10 seventh\n");
  CHECK(stats_now().write_errors == 3);
  CHECK_OK(jitsym_close(session));
  setenv("JITSYM_MAP_MAX", "4k", 1);
  CHECK_OK(jitsym_init(&options, &session));
  for (int i = 0; i < 300; i++) (void)add(0x10000 + 16 * (uint64_t)i, "bounded");
  struct stat status;
  CHECK(stat(path_of((int)getpid()), &status) == 0 && status.st_size <= 4096 && status.st_size > 4096 - 20);
}

static void test_removed(void) {
  jitsym_id id = 0;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "before");
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x3000);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(unlink(path_of((int)getpid())) == 0);
  CHECK_OK(add(0x2000, "after"));
  CHECK_OK(jitsym_move(session, id, &target));
  has("1000 10 before\n2000 10 after\n3000 10 before\n");
}

/* The host closes all descriptors, and gets the numbers for files of its own. */
static void test_closed(void) {
  char other[JITSYM_DIR_MAX + 64];
  snprintf(other, sizeof other, "%s/other", options.map_dir);
  file_write(other, "");
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "before"));
  int descriptor = map_descriptor();
  CHECK(descriptor > 2);
  close(descriptor);
  int mine = open(other, O_RDWR | O_APPEND);
  CHECK(mine == descriptor || dup2(mine, descriptor) == descriptor);
  CHECK_OK(add(0x2000, "after"));
  has("1000 10 before\n2000 10 after\n");
  file_check(other, "");
  CHECK(fcntl(descriptor, F_GETFD) >= 0);
  /* All descriptors, and standard ones: the map takes no number of these. */
  for (int fd = 0; fd < 64; fd++)
    if (fd != 2) close(fd);
  CHECK_OK(add(0x3000, "daemon"));
  has("1000 10 before\n2000 10 after\n3000 10 daemon\n");
  CHECK(map_descriptor() > 2);
}

/* Another runtime that opens the map as if it were new. */
static void test_truncated(void) {
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "lost"));
  FILE *other = fopen(path_of((int)getpid()), "w");
  CHECK(other != NULL && fprintf(other, "2000 10 other\n") > 0 && fflush(other) == 0);
  errno = 77;
  CHECK_OK(add(0x3000, "ours"));
  CHECK(errno == 77);
  CHECK(fprintf(other, "4000 10 other again\n") > 0 && fflush(other) == 0);
  CHECK_OK(add(0x5000, "ours again"));
  has("2000 10 other\n3000 10 ours\n4000 10 other again\n5000 10 ours again\n");
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
  pid_t child = fork();
  if (child == 0) {
    CHECK(jitsym_wanted(session) != 0);
    CHECK_OK(add(0x2000, "of the child"));
    CHECK_OK(jitsym_move(session, id, &target));
    has("1000 10 of the parent\n2000 10 of the child\n3000 10 of the parent\n");
    CHECK(stats_now().registered == 1);
    if (fork() == 0) {
      CHECK_OK(jitsym_flush(session, 0));
      has("1000 10 of the parent\n2000 10 of the child\n3000 10 of the parent\n");
      _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    _exit(0);
  }
  wait_for(child);
  CHECK(file_exists(path_of(child)));
  /* One that only closes, and opens a session of its own afterwards. */
  child = fork();
  if (child == 0) {
    CHECK_OK(jitsym_close(session));
    CHECK(!file_exists(path_of((int)getpid())));
    CHECK_OK(jitsym_init(&options, &session));
    CHECK_OK(add(0x4000, "own"));
    CHECK(file_exists(path_of((int)getpid())));
    _exit(0);
  }
  wait_for(child);
  CHECK_OK(add(0x5000, "parent again"));
  has("1000 10 of the parent\n5000 10 parent again\n");
  CHECK_OK(jitsym_close(session));
  /* Children that take over nothing. */
  setenv("JITSYM_FORK", "off", 1);
  CHECK_OK(jitsym_init(&options, &session));
  child = fork();
  if (child == 0) {
    CHECK_STATUS(JITSYM_ERR_FORKED, add(0x6000, "not inherited"));
    CHECK(!file_exists(path_of((int)getpid())));
    CHECK_OK(jitsym_init(&options, &session));
    CHECK_OK(add(0x7000, "own"));
    has("7000 10 own\n");
    _exit(0);
  }
  wait_for(child);
}

/* Other threads may write many lines before a thread knows where its own line is. */
static void test_distant(void) {
  jitsym_id id = 0, last = 0;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "distant");
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x2000);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(jitsym_register(session, &code, &id));
  code.name = "another";
  for (uint64_t i = 1; i < 4000; i++) {
    code.addr = 0x10000 * i;
    CHECK_OK(jitsym_register(session, &code, &last));
  }
  CHECK_OK(jitsym_move(session, (last & ~UINT64_C(0xffffff)) | (id & 0xffffff), &target));
  size_t size;
  char *text = (char *)file_read(path_of((int)getpid()), &size);
  CHECK(size > 4 << 14 && strcmp(text + size - 16, "2000 10 distant\n") == 0);
  free(text);
}

/* A daemon: a child that closes all descriptors. */
static void test_daemon(void) {
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "before"));
  pid_t child = fork();
  if (child == 0) {
    for (int fd = 0; fd < 64; fd++)
      if (fd != 2) close(fd);
    CHECK_OK(add(0x2000, "daemon"));
    has("1000 10 before\n2000 10 daemon\n");
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
  has("1000 10 first\n2000 10 cancelled\n");
  CHECK_OK(jitsym_close(session));
}

static int is_over;

static void *add_always(void *unused) {
  (void)unused;
  for (uint64_t i = 1; !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++) {
    CHECK_OK(add(i * 16, "of a thread"));
    /* Takes the lock now and then. */
    if (i % 64 == 0) CHECK_OK(jitsym_enable(session, 0));
  }
  return NULL;
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
      CHECK(size > 0 && text[size - 1] == '\n' && strcmp(text + size - 29, "7f0000000000 10 of the child\n") == 0);
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

static void *open_and_close(void *barrier) {
  jitsym *own = NULL;
  jitsym_code code = JITSYM_CODE(0x1000, 16, "racing");
  pthread_barrier_wait((pthread_barrier_t *)barrier);
  for (int i = 0; i < 50; i++) {
    CHECK_OK(jitsym_init(&options, &own));
    CHECK_OK(jitsym_register(own, &code, NULL));
    CHECK_OK(jitsym_close(own));
  }
  return NULL;
}

static void test_openers(void) {
  enum { COUNT = 4 };
  pthread_t threads[COUNT];
  pthread_barrier_t barrier;
  size_t size, lines = 0;
  CHECK(pthread_barrier_init(&barrier, NULL, COUNT) == 0);
  for (int i = 0; i < COUNT; i++) CHECK(pthread_create(&threads[i], NULL, open_and_close, &barrier) == 0);
  for (int i = 0; i < COUNT; i++) CHECK(pthread_join(threads[i], NULL) == 0);
  char *text = (char *)file_read(path_of((int)getpid()), &size);
  for (char *line = text; *line != 0; line += strlen("1000 10 racing\n"), lines++)
    CHECK(strncmp(line, "1000 10 racing\n", strlen("1000 10 racing\n")) == 0);
  CHECK(lines == 50 * COUNT);
  free(text);
}

/* Another copy in a plugin: of these headers, or of the library. */
static void test_copies(const char *library) {
  void *loaded = dlopen(library, RTLD_NOW);
  CHECK(loaded != NULL);
  const struct plugin *plugin = (const struct plugin *)dlsym(loaded, "plugin_functions");
  jitsym *other;
  jitsym_code code = JITSYM_CODE(0x2000, 16, "of the plugin");
  code.bytes = bytes;
  CHECK(plugin != NULL);
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x1000, "ours"));
  CHECK_OK(plugin->jitsym_init(&options, &other));
  CHECK_OK(plugin->jitsym_register(other, &code, NULL));
  CHECK_OK(plugin->jitsym_flush(other, 0));
  CHECK_OK(add(0x3000, "ours again"));
  code.addr = 0x4000;
  CHECK_OK(plugin->jitsym_register(other, &code, NULL));
  CHECK_OK(plugin->jitsym_flush(other, 0));
  CHECK_OK(plugin->jitsym_close(other));
  CHECK_OK(add(0x5000, "ours at last"));
  has("1000 10 ours\n2000 10 of the plugin\n3000 10 ours again\n4000 10 of the plugin\n5000 10 ours at last\n");
  /* The other copy comes first. */
  CHECK_OK(plugin->jitsym_init(&options, &other));
  CHECK_OK(jitsym_close(session));
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(add(0x6000, "later"));
  code.addr = 0x7000;
  CHECK_OK(plugin->jitsym_register(other, &code, NULL));
  CHECK_OK(plugin->jitsym_flush(other, 0));
  CHECK_OK(plugin->jitsym_close(other));
  has("1000 10 ours\n2000 10 of the plugin\n3000 10 ours again\n4000 10 of the plugin\n5000 10 ours at last\n6000 10 later\n"
      "7000 10 of the plugin\n");
}

static void test_chroot(void) {
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(chdir(options.map_dir) == 0 && chroot("/proc") == 0);
  CHECK_OK(add(0x1000, "in a jail"));
  char path[64];
  snprintf(path, sizeof path, "perf-%d.map", (int)getpid());
  file_check(path, "1000 10 in a jail\n");
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
  free(text);
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
  else if (strcmp(argv[2], "exec") == 0) test_exec(argv, argc > 3 ? argv[3] : "one");
  else if (strcmp(argv[2], "limits") == 0) test_limits();
  else if (strcmp(argv[2], "removed") == 0) test_removed();
  else if (strcmp(argv[2], "closed") == 0) test_closed();
  else if (strcmp(argv[2], "truncated") == 0) test_truncated();
  else if (strcmp(argv[2], "fork") == 0) test_fork();
  else if (strcmp(argv[2], "distant") == 0) test_distant();
  else if (strcmp(argv[2], "daemon") == 0) test_daemon();
  else if (strcmp(argv[2], "cancel") == 0) test_cancel();
  else if (strcmp(argv[2], "forks") == 0) test_forks();
  else if (strcmp(argv[2], "openers") == 0) test_openers();
  else if (strcmp(argv[2], "copies") == 0) test_copies(argv[3]);
  else if (strcmp(argv[2], "chroot") == 0) test_chroot();
  else if (strcmp(argv[2], "rights") == 0) test_rights();
  else if (strcmp(argv[2], "full") == 0) test_full();
  else CHECK(0);
  return 0;
}
