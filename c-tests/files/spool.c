/* The spool as others treat it: programs that execute themselves, cleaners, memory that is to be locked, namespaces that go. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "jitsym_control.h"
#include "testing.h"

static const uint64_t ADDR = 0x7100000000;
enum { CODES = 1000, TIMES = 20, LEFT_ALONE = 16 };

static const char *program;

static const char *spool_dir(void) {
  return getenv("JITSYM_SPOOL_DIR");
}

/* How many spools there are whose names begin so; the last one's path. */
static unsigned spools_of(const char *prefix, struct test_path *last) {
  DIR *dir = opendir(spool_dir());
  CHECK(dir != NULL);
  unsigned count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0) {
      count++;
      if (last != NULL) {
        CHECK(snprintf(last->text, sizeof last->text, "%s/%s", spool_dir(), entry->d_name) < (int)sizeof last->text);
      }
    }
  }
  closedir(dir);
  return count;
}

static unsigned own_spools(struct test_path *last) {
  char prefix[64];
  snprintf(prefix, sizeof prefix, "jitsym-%d-", (int)getpid());
  return spools_of(prefix, last);
}

static void put(jitsym *session, unsigned count, const char *name) {
  for (unsigned i = 0; i < count; i++) {
    test_register(session, ADDR + i * 0x100, 0x100, name);
  }
}

static void spools_apart(const char *name) {
  static char dir[TEST_PATH_MAX];
  CHECK(snprintf(dir, sizeof dir, "%s/%s", test_dir, name) < (int)sizeof dir);
  CHECK(mkdir(dir, 0700) == 0 && setenv("JITSYM_SPOOL_DIR", dir, 1) == 0);
}

/* ------------------------------------------------------------------------------------------------ exec */

/*
 * A program that executes itself has left records of the program before. They are written to the files of that program, which lie in
 * another directory than those of the new one, and take no room any more.
 */
static void execute(const char *what, int time) {
  char number[16];
  snprintf(number, sizeof number, "%d", time);
  execl(program, program, test_dir, test_light ? "light" : "full", what, number, NULL);
  CHECK(!"the program can be executed");
}

static void executed(int time) {
  char dirs[2][TEST_PATH_MAX], name[32];
  for (int i = 0; i < 2; i++) {
    CHECK(snprintf(dirs[i], sizeof dirs[i], "%s/executed-%d", test_dir, i) < (int)sizeof dirs[i]);
    CHECK(mkdir(dirs[i], 0700) == 0 || errno == EEXIST);
  }
  jitsym_options options = test_options();
  options.map_dir = options.jitdump_dir = dirs[time % 2];
  options.sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  /* On a slow machine the session does not wait for it. */
  TEST_AWAIT(own_spools(NULL) == 1);
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_SHARED);
  if (time > 0) {
    char path[TEST_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/perf-%d.map", dirs[(time - 1) % 2], (int)getpid());
    snprintf(name, sizeof name, "program %d", time - 1);
    struct map map = map_read(path);
    for (unsigned i = 0; i < CODES; i++) {
      CHECK(strcmp(map_name(&map, ADDR + i * 0x100), name) == 0);
    }
    map_free(&map);
  }
  snprintf(name, sizeof name, "program %d", time);
  put(session, CODES, name);
  if (time < TIMES) {
    execute("executes", time + 1);
  }
  CHECK_OK(jitsym_close(session));
}

static void executes_itself(void) {
  spools_apart("executes");
  execute("executes", 0);
}

/* The map names the code of all programs of the process. Where a later program has code, the map has the later name. */
enum { PROGRAMS = 4, WAYS = 4 };

static jitsym *open_map(int way) {
  if (way < 3) {
    unsigned sinks = JITSYM_SINK_MAP | (way == 0 ? JITSYM_SINK_JITDUMP : 0);
    return test_open_flags(sinks, way == 2 ? JITSYM_INIT_NO_THREADS : 0);
  }
  jitsym *session = test_open_flags(JITSYM_SINK_JITDUMP, 0);
  test_register(session, ADDR - 0x1000, 0x100, "before the map");
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
  return session;
}

/* The time since the start of this process, in clock ticks (proc(5), field 22 of /proc/PID/stat). */
static long long age(void) {
  char text[1024] = "";
  FILE *file = fopen("/proc/self/stat", "r");
  CHECK(file != NULL && fgets(text, sizeof text, file) != NULL && fclose(file) == 0);
  char *field = strrchr(text, ')');
  for (int i = 2; i < 22; i++) {
    field = strchr(field + 1, ' ');
  }
  struct timespec now;
  CHECK(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
  long long per_second = sysconf(_SC_CLK_TCK);
  return now.tv_sec * per_second + now.tv_nsec * per_second / 1000000000 - atoll(field);
}

static void mapped(int number) {
  int way = number / PROGRAMS, program_number = number % PROGRAMS;
  char name[32], shared[32];
  snprintf(name, sizeof name, "alone %d", program_number);
  snprintf(shared, sizeof shared, "shared %d", program_number);
  if (program_number == 0) {
    /* A file from the first moments of a process may be of an earlier process with its pid. */
    TEST_AWAIT(age() > 4);
  }
  jitsym *session = open_map(way);
  test_register(session, ADDR, 0x100, shared);
  for (int i = 0; i < 10; i++) {
    test_register(session, ADDR + 0x10000 * (1 + (uint64_t)program_number) + 0x100 * (uint64_t)i, 0x100, name);
  }
  if (program_number == 0) {
    CHECK_OK(test_flush(session));
  } else if (program_number == 1) {
    CHECK_OK(jitsym_disable(session, JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP));
  } else {
    CHECK_OK(jitsym_close(session));
  }
  if (program_number + 1 < PROGRAMS) {
    if (way == 1 && program_number == 2) {
      /* As other runtimes write: a name with a newline, two lines for an address, and a line that was not completed. */
      FILE *file = fopen(test_path_of(getpid(), JITSYM_SINK_MAP).text, "a");
      const char *lines = "1000 10 a name\nand its second line\n2000 10 the older name\n2000 10 the newer name\n3000 10 torn";
      CHECK(file != NULL && fputs(lines, file) >= 0 && fclose(file) == 0);
    }
    execute("maps", number + 1);
  }
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  CHECK(map.count == 1u + 10 * PROGRAMS + (way == 3) + 2 * (way == 1));
  CHECK(way != 1 || strcmp(map_name(&map, 0x2000), "the newer name") == 0);
  CHECK(strcmp(map_name(&map, ADDR), shared) == 0);
  for (int i = 0; i < 10 * PROGRAMS; i++) {
    snprintf(name, sizeof name, "alone %d", i / 10);
    CHECK(strcmp(map_name(&map, ADDR + 0x10000 * (1 + (uint64_t)(i / 10)) + 0x100 * (uint64_t)(i % 10)), name) == 0);
  }
  map_free(&map);
}

static int map_way;

static void maps_of_programs(void) {
  execute("maps", map_way * PROGRAMS);
}

/* ------------------------------------------------------------------------------------------------ cleaners */

/* No file can be opened or made. */
static void set_openable(int is_openable) {
  struct rlimit limit;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = is_openable ? limit.rlim_max : 0;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* Whether the library has tried in vain to make a spool. */
static int has_failed(jitsym *session) {
  char error[TEST_PATH_MAX];
  put(session, 1, "another");
  /* Without descriptors it may be said that something is left to be written. */
  (void)test_flush(session);
  CHECK_OK(jitsym_last_error(session, error, sizeof error));
  return strstr(error, "cannot make a spool") != NULL;
}

/* A cleaner removes it: that is said, and there is another one as soon as that can be, each time. Every other time there can be none
   at first. */
static void removed(void) {
  spools_apart("removed");
  jitsym *session = test_open();
  put(session, CODES, "first");
  CHECK_OK(test_flush(session));
  for (int i = 0; i < 4; i++) {
    struct test_path path;
    CHECK(own_spools(&path) == 1 && test_stats_now(session).spool == JITSYM_SPOOL_SHARED);
    CHECK(unlink(path.text) == 0 && test_stats_now(session).spool == JITSYM_SPOOL_NONE);
    /* valgrind makes the file before it refuses the descriptor. */
    if (i % 2 == 1 && !test_slow) {
      set_openable(0);
      TEST_AWAIT(has_failed(session));
      set_openable(1);
    }
    for (unsigned turns = 0; test_stats_now(session).spool != JITSYM_SPOOL_SHARED;) {
      CHECK(test_turn_of(&turns, TEST_TURNS));
      put(session, 1, "another");
      CHECK_OK(test_flush(session));
    }
  }
  put(session, CODES, "last");
  raise(SIGKILL);
}

static void cleaned(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    removed();
  }
  int status = test_wait(child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  char dir[TEST_PATH_MAX];
  CHECK(snprintf(dir, sizeof dir, "%s/removed", test_dir) < (int)sizeof dir && setenv("JITSYM_SPOOL_DIR", dir, 1) == 0);
  /* What lay in the second one is completed from it. */
  jitsym *session = test_open_flags(0, JITSYM_INIT_RECOVER);
  CHECK(spools_of("jitsym-", NULL) == 1);
  struct map map = map_read(test_path_of(child, JITSYM_SINK_MAP).text);
  for (unsigned i = 0; i < CODES; i++) {
    CHECK(strcmp(map_name(&map, ADDR + i * 0x100), "last") == 0);
  }
  map_free(&map);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ namespaces */

/* Spools of containers that are gone can be completed by nobody. */
static void in_namespace(void) {
  if (unshare(CLONE_NEWNS) != 0) {
    CHECK(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0);
  }
  jitsym *session = test_open();
  put(session, CODES, "in a container");
  raise(SIGKILL);
}

static void namespaces_that_are_gone(void) {
  spools_apart("namespaces");
  /* A namespace that came since may have the number of one that has gone: what lay in that goes when there is more. */
  unsigned most = 2 * LEFT_ALONE;
  for (unsigned i = 1; i <= most + 6; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      in_namespace();
    }
    int status = test_wait(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(spools_of("jitsym-", NULL) <= most);
    /* Nobody completes them. */
    unlink(test_path_of(child, JITSYM_SINK_MAP).text);
    unlink(test_path_of(child, JITSYM_SINK_JITDUMP).text);
  }
  jitsym *session = test_open();
  CHECK(own_spools(NULL) == 1 && spools_of("jitsym-", NULL) <= most);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ children */

/* Children that have written everything and end without a word leave few spools while the parent forks, and none when it has closed. */
static void children_without_a_word(void) {
  enum { CHILDREN = 100, EVERY = 16 };
  spools_apart("children");
  jitsym *session = test_open();
  put(session, 10, "parent's");
  for (unsigned i = 0; i < CHILDREN; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      jitsym_code code = test_code(ADDR, 0x40, "child's");
      /* On a busy machine the parent's writer may be too late for the fork. */
      if (jitsym_register(session, &code, NULL) != JITSYM_ERR_FORKED) {
        put(session, 10, "child's");
        CHECK_OK(test_flush(session));
        CHECK(own_spools(NULL) == 1);
      }
      _exit(0);
    }
    test_wait_ok(child);
    unlink(test_path_of(child, JITSYM_SINK_MAP).text);
    unlink(test_path_of(child, JITSYM_SINK_JITDUMP).text);
  }
  /* That of the parent, and those since it has looked last. */
  TEST_AWAIT(spools_of("jitsym-", NULL) <= 1 + EVERY);
  CHECK_OK(jitsym_close(session));
  CHECK(spools_of("jitsym-", NULL) == own_spools(NULL));
}

/* ------------------------------------------------------------------------------------------------ others that live */

static int others_may_end[2];

static void lives_beside(void) {
  char byte;
  jitsym *session = test_open();
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_SHARED);
  CHECK(write(others_may_end[1], "", 1) == 1 && read(others_may_end[0], &byte, 1) == 0);
  CHECK_OK(jitsym_close(session));
}

/* A process that starts beside many others opens none of their spools. */
static void starts_beside_others(void) {
  enum { OTHERS = LEFT_ALONE + 4 };
  spools_apart("beside");
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  others_may_end[0] = others_may_end[1] = ends[1];
  pid_t others[OTHERS];
  for (int i = 0; i < OTHERS; i++) {
    char byte;
    others[i] = test_start(lives_beside);
    CHECK(read(ends[0], &byte, 1) == 1);
  }
  CHECK(close(ends[1]) == 0);
  /* No start opens a spool of the last second, whoever lives. */
  CHECK(usleep(1100000) == 0);
  int watch = inotify_init1(IN_NONBLOCK);
  CHECK(watch >= 0);
  for (int i = 0; i < OTHERS; i++) {
    struct test_path path;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "jitsym-%d-", (int)others[i]);
    CHECK(spools_of(prefix, &path) == 1 && inotify_add_watch(watch, path.text, IN_OPEN) >= 0);
  }
  jitsym *session = test_open();
  put(session, 1, "beside");
  CHECK_OK(test_flush(session));
  CHECK(own_spools(NULL) == 1);
  char event[1024];
  CHECK(read(watch, event, sizeof event) == -1 && errno == EAGAIN);
  CHECK(shutdown(ends[0], SHUT_WR) == 0);
  for (int i = 0; i < OTHERS; i++) {
    test_wait_ok(others[i]);
  }
  CHECK_OK(jitsym_close(session));
}

/* Spools of another version, whose processes are dead, do not cost each start something. */
static void of_another_version(void) {
  spools_apart("version");
  pid_t dead = fork();
  CHECK(dead >= 0);
  if (dead == 0) {
    _exit(0);
  }
  test_wait_ok(dead);
  static const struct {
    char magic[8];
    uint32_t version;
    char rest[1 << 16];
  } spool = {"jitspool", 1, {0}};
  for (int i = 0; i < LEFT_ALONE + 4; i++) {
    char path[TEST_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/jitsym-%d-1-%x.spool", spool_dir(), (int)dead, i + 1);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(file >= 0 && write(file, &spool, sizeof spool) == sizeof spool && close(file) == 0);
  }
  CHECK_OK(jitsym_close(test_open()));
  char prefix[64];
  struct test_path path;
  snprintf(prefix, sizeof prefix, "jitsym-%d-", (int)dead);
  CHECK(spools_of(prefix, &path) == LEFT_ALONE);
  int watch = inotify_init1(IN_NONBLOCK);
  CHECK(watch >= 0 && inotify_add_watch(watch, path.text, IN_OPEN) >= 0);
  CHECK_OK(jitsym_close(test_open()));
  char event[1024];
  CHECK(read(watch, event, sizeof event) == -1 && errno == EAGAIN);
}

/* ------------------------------------------------------------------------------------------------ locked memory */

/* A line of /proc/self/status, in KiB. */
static unsigned long long status_kib(const char *name) {
  size_t size;
  char *text = (char *)file_read("/proc/self/status", &size), *line = strstr(text, name);
  CHECK(line != NULL);
  unsigned long long value = strtoull(line + strlen(name), NULL, 10);
  free(text);
  return value;
}

/* How much of the spool is locked, in KiB; few pages have memory behind them. */
static unsigned long locked_in_spool(void) {
  struct test_path path;
  struct stat data;
  CHECK(own_spools(&path) == 1 && stat(path.text, &data) == 0 && data.st_blocks < (16 << 20) / 512);
  FILE *maps = fopen("/proc/self/smaps", "r");
  CHECK(maps != NULL);
  unsigned in_spool = 0, found = 0;
  unsigned long locked = 0;
  for (char line[TEST_PATH_MAX + 128]; fgets(line, sizeof line, maps) != NULL;) {
    if (strchr("0123456789abcdef", line[0]) != NULL) {
      in_spool = strstr(line, path.text) != NULL;
      found += in_spool;
    }
    if (in_spool && strncmp(line, "Locked:", 7) == 0) {
      locked += strtoul(line + 7, NULL, 10);
    }
  }
  fclose(maps);
  CHECK(found >= 2);
  return locked;
}

static struct {
  int flags;
  int before;
  rlim_t limit;
} locking;

/*
 * Most of the memory that records may take is never used. It is neither locked nor made because the host locks what it maps; nor
 * does a limit on that keep it from being mapped.
 */
static void locks_memory(void) {
  jitsym *session = locking.before ? test_open() : NULL;
  if (locking.limit != 0) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (limit.rlim_max > locking.limit) {
      limit.rlim_max = locking.limit;
    }
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() == 0) {
      CHECK(setresuid(65534, 65534, 65534) == 0);
      /* It is to be a process as any other of this user. */
      CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
    }
  }
  CHECK(mlockall(locking.flags) == 0);
  unsigned long long resident = status_kib("VmRSS:");
  if (session == NULL) {
    session = test_open();
  }
  put(session, CODES, "any");
  CHECK_OK(test_flush(session));
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_SHARED);
  /* The stacks of two threads, and what they allocate. */
  CHECK(status_kib("VmRSS:") < resident + (24 << 10));
  /* What it had in use when the host locked all there was, is. */
  CHECK(locked_in_spool() <= (locking.before ? 16 << 10 : 0));
  CHECK_OK(jitsym_close(session));
}

static void locked_memory(void) {
  locking.flags = MCL_FUTURE;
  test_child(locks_memory);
  locking.flags = MCL_CURRENT | MCL_FUTURE;
  test_child(locks_memory);
  locking.before = 1;
  test_child(locks_memory);
  if (geteuid() == 0) {
    /* Another user has to be able to make files. */
    CHECK(chmod(test_dir, 0777) == 0);
    spools_apart("limited");
    CHECK(chmod(spool_dir(), 0777) == 0);
    locking.before = 0;
    locking.flags = MCL_FUTURE;
    locking.limit = 32 << 20;
    test_child(locks_memory);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  program = argv[0];
  if (argc == 5) {
    char dir[TEST_PATH_MAX];
    CHECK(snprintf(dir, sizeof dir, "%s/%s", test_dir, argv[3]) < (int)sizeof dir && setenv("JITSYM_SPOOL_DIR", dir, 1) == 0);
    (strcmp(argv[3], "maps") == 0 ? mapped : executed)(atoi(argv[4]));
    return 0;
  }
  test_child(executes_itself);
  spools_apart("maps");
  for (map_way = 0; map_way < WAYS; map_way++) {
    test_child(maps_of_programs);
  }
  test_child(cleaned);
  test_child(namespaces_that_are_gone);
  test_child(children_without_a_word);
  test_child(starts_beside_others);
  test_child(of_another_version);
  if (!test_light) {
    /* Sanitizers and valgrind map far more than the program. */
    locked_memory();
  }
  return test_end();
}
