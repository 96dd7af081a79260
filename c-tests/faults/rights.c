/*
 * A process that may do more than others of its user. Such another one (`attack`) writes into each file that this process maps and
 * that it can open, and cuts it. DIR WAY; nothing of that may reach the process.
 */
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7100000000;
enum { CODES = 2000, THREADS = 2, OTHER = 65534 };

static char spools[TEST_PATH_MAX];
static const char *const WHY = "more rights";

static int is_mapped_file(const char *name) {
  return strncmp(name, "jitsym-", 7) == 0 || (strncmp(name, "jit", 3) == 0 && strstr(name, ".so") != NULL);
}

/* Opens each such file of a directory to write to it, and overwrites it, or removes it. Returns how many there are. */
enum what { LOOK, SPOIL, REMOVE };
static int attack_in(const char *path, enum what what) {
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  static char junk[1 << 16];
  memset(junk, 0xcc, sizeof junk);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (!is_mapped_file(entry->d_name)) {
      continue;
    }
    int file = openat(dirfd(dir), entry->d_name, O_RDWR | O_NOFOLLOW);
    struct stat data;
    if (file >= 0 && fstat(file, &data) == 0) {
      count++;
      for (off_t at = 0; what == SPOIL && at < data.st_size && at < 16 << 20; at += (off_t)sizeof junk) {
        (void)!pwrite(file, junk, sizeof junk, at);
      }
      (void)!(what == SPOIL && ftruncate(file, 0));
      (void)!(what == REMOVE && unlinkat(dirfd(dir), entry->d_name, 0));
      close(file);
    }
  }
  closedir(dir);
  return count;
}

/* Another process of this user, with no other rights. Returns how many files it could write to. */
static int attack(enum what what) {
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    /* Not by the wrapper, which may have other threads to tell. */
    CHECK(syscall(SYS_setresgid, getgid(), getgid(), getgid()) == 0);
    CHECK(syscall(SYS_setresuid, getuid(), getuid(), getuid()) == 0);
    _exit(attack_in(spools, what) + attack_in(test_dir, what));
  }
  int status = test_wait(child);
  CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static jitsym *start(void) {
  jitsym_options options = test_options();
  /* The environment has no say where the program has more rights than its caller. */
  options.spool_dir = spools;
  options.sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  return session;
}

static void put(jitsym *session, unsigned first, unsigned count) {
  for (unsigned i = first; i < first + count; i++) {
    char name[32];
    snprintf(name, sizeof name, "code %u", i);
    test_register(session, ADDR + 0x100 * (uint64_t)i, 0x100, name);
  }
}

static void check_map(unsigned count) {
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  for (unsigned i = 0; i < count; i++) {
    char name[32];
    snprintf(name, sizeof name, "code %u", i);
    CHECK(strcmp(map_name(&map, ADDR + 0x100 * (uint64_t)i), name) == 0);
  }
  map_free(&map);
}

static void check_error(jitsym *session, const char *part) {
  char text[4096];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, part) != NULL);
}

#if defined __x86_64__
/* mov eax, 42; ret */
static const unsigned char CODE[] = {0xb8, 42, 0, 0, 0, 0xc3};

static void fill(const jitsym_region *region) {
  memcpy(region->write, CODE, sizeof CODE);
}

static void check_runs(const jitsym_region *region) {
  CHECK(((int (*)(void))(uintptr_t)region->exec)() == 42);
}
#else
static void fill(const jitsym_region *region) {
  memset(region->write, 7, 64);
}

static void check_runs(const jitsym_region *region) {
  CHECK(((volatile unsigned char *)region->exec)[63] == 7);
}
#endif

/* A process with more rights from the beginning has no file that could be attacked, and everything works. */
static void guarded(void) {
  jitsym *session = start();
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_NONE);
  check_error(session, WHY);
  put(session, 0, CODES);
  jitsym_region two = test_region(session, 1 << 16, 0);
  check_error(session, WHY);
  fill(&two);
  void *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED && mprotect(memory, 1 << 16, PROT_READ | PROT_EXEC) == 0);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_region_adopt(session, memory, 1 << 16));
  check_error(session, WHY);
  CHECK(test_stats(session).region_refused == 2 && test_stats(session).regions == 0);
  CHECK(attack(SPOIL) == 0);
  check_runs(&two);
  put(session, CODES, CODES);
  CHECK_OK(test_flush(session));
  check_map(2 * CODES);
  CHECK_OK(jitsym_region_release(session, two.exec));
  CHECK_OK(jitsym_close(session));
}

/* The control: without more rights there are files. */
static void open_to_all(void) {
  jitsym *session = start();
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_SHARED);
  test_region(session, 1 << 16, 0);
  /* With that of the other process, which is a forked child. */
  CHECK(attack(LOOK) == 3);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ ways to more rights */

/* So that no other sign of more rights is left. */
static void allow_dumps(void) {
  CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}

static void become_other(void) {
  CHECK(setgroups(0, NULL) == 0 && setgid(OTHER) == 0 && setuid(OTHER) == 0);
}

/* It was root, whom the kernel remembers. */
static void after_setuid(void) {
  become_other();
  guarded();
}

/* It can become root again. */
static void after_seteuid(void) {
  CHECK(setresuid(OTHER, OTHER, 0) == 0);
  allow_dumps();
  guarded();
}

static void after_setegid(void) {
  CHECK(setresgid(0, OTHER, 0) == 0);
  allow_dumps();
  guarded();
}

static void with_capabilities(void) {
  CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
  become_other();
  allow_dumps();
  guarded();
}

static void not_dumpable(void) {
  CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
  guarded();
}

/* ------------------------------------------------------------------------------------------------ later */

static jitsym *shared;
static volatile int stop;
static volatile unsigned registered[THREADS];

static void *register_all_the_time(void *argument) {
  unsigned thread = *(unsigned *)argument;
  for (unsigned i = 0; !stop && i < 1000 * CODES; i++) {
    test_register(shared, 2 * ADDR + ((uint64_t)thread << 36) + 0x100 * (uint64_t)(i % CODES), 0x100, "busy");
    registered[thread]++;
    if (i % CODES == CODES - 1) {
      /* As fast as the library writes, so that there is always room. */
      TEST_AWAIT(test_flush(shared) == JITSYM_OK);
    }
  }
  return NULL;
}

/* A process that has its memory hidden later, while threads register: nothing is lost, and nothing can be attacked from then on. */
static int has_mapped_spool(void) {
  size_t size;
  char *maps = (char *)file_read("/proc/self/maps", &size);
  int is_there = strstr(maps, ".spool") != NULL;
  free(maps);
  return is_there;
}

static void hidden_later(void) {
  jitsym *session = shared = start();
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_SHARED && has_mapped_spool());
  jitsym_region two = test_region(session, 1 << 16, 0), one = test_region(session, 1 << 16, JITSYM_REGION_ONE_VIEW);
  fill(&two);
  CHECK(test_stats(session).regions == 2);
  put(session, 0, CODES);
  pthread_t threads[THREADS];
  unsigned numbers[THREADS] = {0, 1};
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, register_all_the_time, &numbers[i]) == 0);
  }
  CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
  put(session, CODES, CODES);
  TEST_AWAIT(test_flush(session) == JITSYM_OK && attack(SPOIL) == 0);
  CHECK(test_stats_now(session).spool == JITSYM_SPOOL_NONE);
  TEST_AWAIT(registered[0] > CODES && registered[1] > CODES);
  TEST_AWAIT(test_flush(session) == JITSYM_OK && !has_mapped_spool());
  stop = 1;
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  check_runs(&two);
  memset(one.write, 1, 100);
  put(session, 2 * CODES, CODES);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.registered == 3 * CODES + registered[0] + registered[1] && stats.dropped == 0);
  check_map(3 * CODES);
  CHECK_OK(jitsym_close(session));
  CHECK(test_files_in(spools) == 0);
}

/* What such a process leaves when it is killed: no spool, from which something might be written a second time. */
static void killed_when_hidden(void) {
  jitsym *session = start();
  put(session, 0, CODES);
  CHECK_OK(test_flush(session));
  CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
  TEST_AWAIT(test_flush(session) == JITSYM_OK && test_files_in(spools) == 0);
  put(session, CODES, CODES);
  CHECK_OK(test_flush(session));
  check_map(2 * CODES);
  raise(SIGKILL);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(snprintf(spools, sizeof spools, "%s-spools", test_dir) < (int)sizeof spools);
  if (argc > 2 && strcmp(argv[2], "started") == 0) {
    guarded();
    return test_end();
  }
  /* Where another user can make files, too. */
  CHECK(chmod(test_dir, 0777) == 0 && chmod(spools, 0777) == 0);
  test_child(open_to_all);
  CHECK(attack_in(test_dir, REMOVE) == 2);
  test_child(not_dumpable);
  test_child(hidden_later);
  pid_t child = test_start(killed_when_hidden);
  int status = test_wait(child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  if (geteuid() == 0) {
    test_child(after_setuid);
    test_child(after_seteuid);
    test_child(after_setegid);
    test_child(with_capabilities);
  }
  return test_end();
}
