/*
 * A process that cannot look itself up in /proc: no_proc DIR KIND SCENE. Kinds of /proc:
 *
 *   shown      as it is
 *   none       not mounted
 *   forbidden  may not be looked into, by a user who is not root
 *   elsewhere  of a pid namespace in which the process has no number
 *   outer      of the pid namespace around that of the process: its numbers are others there
 *   unlisted   of which no directory may be listed
 *   other-time as it is, but the children are in another time namespace, by whose clock /proc tells them when a process began
 *   hidden     mounted so that the processes of other users are hidden, for a user who is not root
 *
 * All in a mount namespace of its own. Takes root; prints "ok".
 */
#define _GNU_SOURCE
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "testing.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static const uint64_t ADDR = 0x7000000000;
enum { SOMEBODY = 65534 };

static int kind_is(const char *kind, const char *name) {
  return strcmp(kind, name) == 0;
}

static void become_somebody(void) {
  CHECK(setgroups(0, NULL) == 0 && setgid(SOMEBODY) == 0 && setuid(SOMEBODY) == 0);
  /* As a process of this user that was never anything else. */
  CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}

/* Goes on in a child, and does not come back from the parent. `flags`: namespaces of the child's own. */
static void go_on_in_child(int flags) {
  CHECK(unshare(flags) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child > 0) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void mount_proc(const char *options) {
  CHECK(mount("proc", "/proc", "proc", 0, options) == 0);
}

/* Mounts the /proc of a pid namespace that ends with this. */
static void mount_proc_of_another(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(unshare(CLONE_NEWPID) == 0);
    pid_t first = fork();
    CHECK(first >= 0);
    if (first == 0) {
      mount_proc(NULL);
      _exit(0);
    }
    int status;
    CHECK(waitpid(first, &status, 0) == first && status == 0);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void forbid_listing(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getdents64, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void have_proc(const char *kind) {
  char text[64];
  CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
  /* Where those that hide it may write too. */
  CHECK(chmod(test_dir, 0777) == 0 && chmod(getenv("JITSYM_SPOOL_DIR"), 0777) == 0);
  if (kind_is(kind, "none")) {
    CHECK(umount2("/proc", MNT_DETACH) == 0);
  } else if (kind_is(kind, "forbidden")) {
    CHECK(mount("none", "/proc", "tmpfs", 0, "mode=0700") == 0);
    become_somebody();
  } else if (kind_is(kind, "elsewhere")) {
    mount_proc_of_another();
  } else if (kind_is(kind, "outer")) {
    go_on_in_child(CLONE_NEWPID);
    ssize_t length = readlink("/proc/self", text, sizeof text - 1);
    CHECK(length > 0);
    text[length] = 0;
    CHECK(getpid() == 1 && atoi(text) > 1);
  } else if (kind_is(kind, "hidden")) {
    go_on_in_child(CLONE_NEWPID);
    mount_proc("hidepid=2");
    become_somebody();
  } else if (kind_is(kind, "other-time")) {
    CHECK(unshare(CLONE_NEWTIME) == 0);
    file_write("/proc/self/timens_offsets", "monotonic 1000 0\nboottime 1000 0\n");
  } else if (kind_is(kind, "unlisted")) {
    forbid_listing();
  } else {
    CHECK(kind_is(kind, "shown"));
  }
  int has_none = kind_is(kind, "none") || kind_is(kind, "forbidden") || kind_is(kind, "elsewhere");
  CHECK(has_none == (access("/proc/self/stat", R_OK) != 0));
}

static void put(jitsym *session, unsigned number) {
  char name[64];
  snprintf(name, sizeof name, "code %u", number);
  test_register(session, ADDR + 0x1000 * number, 0x400, name);
}

/* The files of a process that has ended have codes [0, count). */
static void check_files(pid_t pid, unsigned count) {
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path_of(pid, JITSYM_SINK_MAP).text);
  for (unsigned i = 0; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, "code %u", i);
    CHECK(dump_load(&dump, name, 0) != NULL && strcmp(map_name(&map, ADDR + 0x1000 * i), name) == 0);
  }
  map_free(&map);
  dump_free(&dump);
}

/* ------------------------------------------------------------------------------------------------ the last thread */

static jitsym *session;
static pthread_t first;
/* What happens, in its order. */
static int events[2];

static void say(char event) {
  CHECK(write(events[1], &event, 1) == 1);
}

static void says_exit(void) {
  say('x');
}

static void *outlives(void *uses) {
  CHECK(pthread_join(first, NULL) == 0);
  /* The library's thread goes to sleep, and looks around more than once. */
  test_sleep_ms(uses != NULL ? 4000 : 12000);
  if (uses != NULL) {
    static unsigned char code_bytes[64] = {0xab};
    jitsym_code code = test_code((uint64_t)(uintptr_t)code_bytes, sizeof code_bytes, "read at its place");
    code.bytes = NULL;
    CHECK_OK(jitsym_register(session, &code, NULL));
    CHECK(test_stats(session).unreadable == 0);
    put(session, 100);
  }
  say('t');
  return NULL;
}

static void *hands_over(void *left) {
  pthread_t next;
  uintptr_t count = (uintptr_t)left;
  usleep(100);
  if (count == 0) {
    say('t');
  } else if (pthread_create(&next, NULL, hands_over, (void *)(count - 1)) == 0) {
    pthread_detach(next);
  }
  return NULL;
}

static void opens_and_ends_first(void *(*body)(void *), void *argument) {
  pthread_t other;
  CHECK(atexit(says_exit) == 0);
  session = test_open();
  for (unsigned i = 0; i < 100; i++) {
    put(session, i);
  }
  first = pthread_self();
  CHECK(pthread_create(&other, NULL, body, argument) == 0 && pthread_detach(other) == 0);
  pthread_exit(NULL);
}

static void uses_and_outlives(void) {
  opens_and_ends_first(outlives, &first);
}

static void only_outlives(void) {
  opens_and_ends_first(outlives, NULL);
}

/* No thread lives long, and each is another one. */
static void hand_over(void) {
  opens_and_ends_first(hands_over, (void *)3000);
}

static void *opens(void *unused) {
  (void)unused;
  session = test_open();
  for (unsigned i = 0; i < 100; i++) {
    put(session, i);
  }
  return NULL;
}

/* The first thread, which has nothing to do with the library, is the last one. */
static void stay_without_use(void) {
  pthread_t other;
  CHECK(atexit(says_exit) == 0);
  CHECK(pthread_create(&other, NULL, opens, NULL) == 0 && pthread_join(other, NULL) == 0);
  test_sleep_ms(4000);
  say('t');
  pthread_exit(NULL);
}

/* Where threads are not shown, the process does not end with its last one. */
static void stays(void) {
  char seen;
  CHECK(pipe2(events, O_CLOEXEC) == 0);
  pid_t child = test_start(uses_and_outlives);
  close(events[1]);
  CHECK(read(events[0], &seen, 1) == 1 && seen == 't');
  test_sleep_ms(3000);
  CHECK(waitpid(child, NULL, WNOHANG) == 0);
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child && read(events[0], &seen, 1) == 0);
  close(events[0]);
  check_files(child, 101);
}

/* The process ends with its last thread, not before, and not as if it had been killed. */
static void last_thread(void) {
  enum { WAYS = 4 };
  static const struct {
    void (*run)(void);
    unsigned count;
  } ways[WAYS] = {{uses_and_outlives, 101}, {only_outlives, 100}, {hand_over, 100}, {stay_without_use, 100}};
  pid_t children[WAYS];
  int from[WAYS];
  for (int i = 0; i < WAYS; i++) {
    CHECK(pipe2(events, O_CLOEXEC) == 0);
    children[i] = test_start(ways[i].run);
    close(events[1]);
    from[i] = events[0];
  }
  for (int i = 0; i < WAYS; i++) {
    char seen[3] = "";
    test_wait_ok(children[i]);
    CHECK(read(from[i], seen, sizeof seen) == 2 && memcmp(seen, "tx", 2) == 0);
    close(from[i]);
    check_files(children[i], ways[i].count);
  }
}

/* ------------------------------------------------------------------------------------------------ files of others */

static const char LINE[] = "1000 100 of another runtime\n";

static int write_foreign(const char *path, const char *text) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
  return file;
}

static ino_t inode_of(const char *path) {
  struct stat status;
  CHECK(stat(path, &status) == 0);
  return status.st_ino;
}

static void beside_another_that(int closes, int high) {
  struct test_path map = test_path_of(getpid(), JITSYM_SINK_MAP), dump = test_path_of(getpid(), JITSYM_SINK_JITDUMP);
  int map_file = write_foreign(map.text, LINE), dump_file = write_foreign(dump.text, "JiTD, or nearly");
  if (high) {
    /* As if there were no /proc to learn of it: far behind all others. */
    int moved = fcntl(map_file, F_DUPFD_CLOEXEC, 600);
    CHECK(moved >= 600 && close(map_file) == 0);
    map_file = moved;
  }
  ino_t map_inode = inode_of(map.text), dump_inode = inode_of(dump.text);
  if (closes) {
    CHECK(close(map_file) == 0 && close(dump_file) == 0);
  }
  jitsym *own = test_open();
  for (unsigned i = 0; i < 20; i++) {
    put(own, i % 10);
    CHECK_OK(test_flush(own));
  }
  jitsym_stats stats = test_stats_now(own);
  CHECK(stats.sinks_running == (JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP) && stats.sinks_failed == 0);
  CHECK_OK(jitsym_close(own));
  CHECK(inode_of(map.text) == map_inode && inode_of(dump.text) == dump_inode);
  size_t size;
  char *text = (char *)file_read(map.text, &size);
  CHECK(strncmp(text, LINE, strlen(LINE)) == 0 && strstr(text, " code 0\n") != NULL && strstr(text, " code 9\n") != NULL);
  free(text);
  text = (char *)file_read(dump.text, &size);
  CHECK(strcmp(text, "JiTD, or nearly") == 0);
  free(text);
  if (!closes) {
    /* Nor is anything written over. */
    CHECK(write(map_file, LINE, strlen(LINE)) == (ssize_t)strlen(LINE));
    text = (char *)file_read(map.text, &size);
    CHECK(strcmp(text + size - strlen(LINE), LINE) == 0 && strstr(text, " code 9\n") != NULL);
    free(text);
  }
}

static void beside_one_that_writes(void) {
  beside_another_that(0, 0);
}

static void beside_one_far_behind(void) {
  beside_another_that(0, 1);
}

static void beside_one_that_has_closed(void) {
  beside_another_that(1, 0);
}

/* A leftover of this library that is older than the process is replaced, as everywhere. */
static void after_a_dead_one(void) {
  struct test_path map = test_path_of(getpid(), JITSYM_SINK_MAP);
  CHECK(close(write_foreign(map.text, LINE)) == 0 && chmod(map.text, 01644) == 0);
  struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  CHECK(utimensat(AT_FDCWD, map.text, times, 0) == 0);
  jitsym *own = test_open();
  put(own, 0);
  CHECK_OK(jitsym_close(own));
  size_t size;
  char *text = (char *)file_read(map.text, &size);
  CHECK(strstr(text, "another") == NULL && strstr(text, " code 0\n") != NULL);
  free(text);
}

static void other_files(void) {
  test_child(beside_one_that_writes);
  test_child(beside_one_far_behind);
  /* However near the process's start is to a tick of the clock that files are stamped with. */
  for (int i = 0; i < 50; i++) {
    test_child(beside_one_that_has_closed);
  }
  test_child(after_a_dead_one);
}

/* ------------------------------------------------------------------------------------------------ spools */

static int spools_of(pid_t pid) {
  char prefix[32];
  int length = snprintf(prefix, sizeof prefix, "jitsym-%d-", (int)pid), count = 0;
  DIR *dir = opendir(getenv("JITSYM_SPOOL_DIR"));
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    count += strncmp(entry->d_name, prefix, (size_t)length) == 0;
  }
  closedir(dir);
  return count;
}

/* As a daemon, which loses the lock on its spool with that. */
static void closes_all_descriptors(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  session = test_open();
  for (unsigned i = 0; i < 100; i++) {
    put(session, i);
  }
  CHECK_OK(test_flush(session));
  for (int descriptor = 3; descriptor < 256; descriptor++) {
    if (descriptor != events[1]) {
      close(descriptor);
    }
  }
  say('c');
  for (;;) {
    pause();
  }
}

static void recover(void) {
  CHECK_OK(jitsym_close(test_open_flags(JITSYM_SINK_MAP, JITSYM_INIT_RECOVER)));
}

/* A spool is that of a living process as long as that may be, and its own is not recovered by a process either. */
static void spools(void) {
  char event;
  CHECK(pipe(events) == 0);
  pid_t child = test_start(closes_all_descriptors);
  CHECK(read(events[0], &event, 1) == 1 && spools_of(child) == 1);
  recover();
  CHECK(spools_of(child) == 1);
  session = test_open();
  recover();
  CHECK(spools_of(getpid()) == 1);
  CHECK_OK(jitsym_close(session));
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
  recover();
  CHECK(spools_of(child) == 0);
  check_files(child, 100);
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  test_begin(argc, argv);
  have_proc(argv[2]);
  if (strcmp(argv[3], "last-thread") == 0) {
    (access("/proc/self/stat", R_OK) == 0 && !kind_is(argv[2], "unlisted") ? last_thread : stays)();
  } else if (strcmp(argv[3], "files") == 0) {
    other_files();
  } else {
    CHECK(strcmp(argv[3], "spools") == 0);
    spools();
  }
  return test_end();
}
