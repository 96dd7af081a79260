/*
 * A disk that does not answer any more: files cannot be made on it, or directories on it cannot be opened. Whoever tries waits until
 * the disk is back. The calls of the library end all the same, each in its time, and go on when the disk is back.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "../sources/runtime.h"
#include "testing.h"

/* Not in the header, and hidden in the static library. */
__attribute__((weak)) unsigned Initialize(void);
__attribute__((weak)) unsigned NotifyEvent(unsigned event, void *data);

/* ------------------------------------------------------------------------------------------------ the disk */

/* What hangs, and in which process; and how many have come to that. */
static const char *dead_dir;
static int no_new_files, no_writes;
static pid_t dead_for;
static unsigned waiting;

/* For a process whose disk another one brings back: whether it is back, and whether the process exits. */
static struct {
  int is_back, exits;
} *shared;

static int is_dead(void) {
  return __atomic_load_n(&dead_for, __ATOMIC_SEQ_CST) == getpid() &&
         (shared == NULL || !__atomic_load_n(&shared->is_back, __ATOMIC_SEQ_CST));
}

static void wait_for_disk(void) {
  __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
  while (is_dead()) {
    usleep(1000);
  }
}

static int has_name_of_ours(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
  return strncmp(name, "perf-", 5) == 0 || strncmp(name, "jit", 3) == 0;
}

static int open_at(int dir, const char *path, int flags, va_list more) {
  mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  int is_new = no_new_files && (flags & O_CREAT) != 0 && has_name_of_ours(path);
  if (is_dead() && (is_new || (dead_dir != NULL && strstr(path, dead_dir) != NULL))) {
    wait_for_disk();
  }
  return (int)syscall(SYS_openat, dir, path, flags, mode);
}

#define OPEN(name, parameters, dir)                \
  int name parameters {                            \
    va_list more;                                  \
    va_start(more, flags);                         \
    int file = open_at(dir, path, flags, more);    \
    va_end(more);                                  \
    return file;                                   \
  }

OPEN(open, (const char *path, int flags, ...), AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD)
OPEN(openat, (int dir, const char *path, int flags, ...), dir)
OPEN(openat64, (int dir, const char *path, int flags, ...), dir)

ssize_t writev(int file, const struct iovec *parts, int count) {
  if (is_dead() && no_writes) {
    wait_for_disk();
  }
  return syscall(SYS_writev, file, parts, count);
}

static void disk_dies(void) {
  waiting = 0;
  __atomic_store_n(&dead_for, getpid(), __ATOMIC_SEQ_CST);
}

static void disk_is_back(void) {
  __atomic_store_n(&dead_for, 0, __ATOMIC_SEQ_CST);
}

static void await_waiting(void) {
  TEST_AWAIT(__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) > 0);
}

/* ------------------------------------------------------------------------------------------------ a call on another thread */

static struct {
  jitsym *session;
  jitsym_status status;
  int done;
  pthread_t thread;
} call;

static void *begin_to(void *function) {
  call.status = ((jitsym_status(*)(void))function)();
  __atomic_store_n(&call.done, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void call_elsewhere(jitsym_status (*function)(void)) {
  call.done = 0;
  CHECK(pthread_create(&call.thread, NULL, begin_to, (void *)function) == 0);
}

/* The call comes back by itself, or when the disk does. */
static jitsym_status await_call(void) {
  TEST_AWAIT(__atomic_load_n(&call.done, __ATOMIC_SEQ_CST));
  CHECK(pthread_join(call.thread, NULL) == 0);
  return call.status;
}

static void works(jitsym *session) {
  test_register(session, 0x7000000000, 64, "registered when the disk is back");
  CHECK_OK(test_flush(session));
  CHECK(test_stats_now(session).map_entries == 1);
}

/* ------------------------------------------------------------------------------------------------ opening and closing */

static jitsym_status opens(void) {
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP;
  return jitsym_init(&options, &call.session);
}

/* The first session opens its files, and another one waits for that. */
static void first_session(void) {
  jitsym_options options = test_options();
  jitsym *session = NULL;
  options.sinks = JITSYM_SINK_MAP;
  no_new_files = 1;
  disk_dies();
  call_elsewhere(opens);
  await_waiting();
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_init(&options, &session));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, await_call());
  CHECK(call.session == NULL && session == NULL);
  disk_is_back();
  CHECK_OK(jitsym_init(&options, &session));
  works(session);
  CHECK_OK(jitsym_close(session));
}

static jitsym_status enables(void) {
  return jitsym_enable(call.session, JITSYM_SINK_MAP);
}

/* Sinks start later, while other sessions end. They start when the disk is back, although nobody waits for them any more. */
static void late_sinks(void) {
  char text[TEST_PATH_MAX];
  jitsym_id id = 0;
  call.session = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT);
  jitsym *other = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT);
  no_new_files = 1;
  disk_dies();
  call_elsewhere(enables);
  await_waiting();
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(call.session, JITSYM_SINK_MAP, text, sizeof text));
  /* It may come to its turn in the last moment, and has written nothing. */
  jitsym_status closed = jitsym_close(other);
  CHECK(closed == JITSYM_ERR_TIMEOUT || closed == JITSYM_OK);
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_flush(other, 1));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, await_call());
  jitsym_code code = test_code(0x7000000000, 64, "before");
  CHECK_OK(jitsym_register(call.session, &code, &id));
  CHECK(id == 0);
  disk_is_back();
  TEST_AWAIT(test_stats_now(call.session).sinks_running == JITSYM_SINK_MAP);
  works(call.session);
  CHECK_OK(jitsym_close(call.session));
}

/* The last session is closed while its sinks start. They end as soon as they have started. */
static void closed_meanwhile(void) {
  call.session = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT);
  int threads = test_threads();
  no_new_files = 1;
  disk_dies();
  call_elsewhere(enables);
  await_waiting();
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_close(call.session));
  jitsym_status enabled = await_call();
  CHECK(enabled == JITSYM_ERR_TIMEOUT || enabled == JITSYM_ERR_CLOSED);
  disk_is_back();
  TEST_AWAIT(test_threads() == threads);
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  works(session);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ ends that take longer */

/* A session that has a record on its way to the disk when that dies. */
static jitsym *open_and_die(uint32_t flags) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, flags);
  no_writes = 1;
  disk_dies();
  test_register(session, 0x7000001000, 64, "on its way");
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush(session, 1));
  await_waiting();
  return session;
}

static int map_has(pid_t process, const char *text) {
  size_t size;
  unsigned char *map = file_read(test_path_of(process, JITSYM_SINK_MAP).text, &size);
  int found = memmem(map, size, text, strlen(text)) != NULL;
  free(map);
  return found;
}

/* Sinks end later, one of two or both. Nobody can start them before. Then they have their files again. */
static void late_ends(uint32_t off) {
  jitsym *session = open_and_die(0);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_disable(session, off));
  /* Nor has it ended for another call. */
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_disable(session, off));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_enable(session, JITSYM_SINK_MAP));
  disk_is_back();
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
  test_register(session, 0x7000000000, 64, "in a map again");
  CHECK_OK(test_flush(session));
  CHECK(map_has(getpid(), "in a map again"));
  CHECK_OK(jitsym_close(session));
}

static void late_end_of_one(void) {
  late_ends(JITSYM_SINK_MAP);
}

static void late_end_of_all(void) {
  late_ends(0);
}

static jitsym_status disables(jitsym *session) {
  return jitsym_disable(session, 0);
}

static jitsym_status opens_without_files(jitsym **session) {
  jitsym_options options = test_options();
  options.flags = JITSYM_INIT_OFF_BY_DEFAULT;
  return jitsym_init(&options, session);
}

/* A session that writes no files is not opened before either: it would say that there is nothing to write. */
static void opened_without_files(jitsym_status (*ends)(jitsym *)) {
  jitsym *session = NULL;
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, ends(open_and_die(0)));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, opens_without_files(&session));
  CHECK(session == NULL);
  disk_is_back();
  CHECK_OK(opens_without_files(&session));
  CHECK(map_has(getpid(), "on its way"));
  CHECK_OK(jitsym_close(session));
}

static void opened_after_disable(void) {
  opened_without_files(disables);
}

static void opened_after_close(void) {
  opened_without_files(jitsym_close);
}

/* Runs a process that exits, with a directory of its own for spools. Returns its number, and how many spools it has left. */
static pid_t exited(const char *spools, void (*body)(void), int *left) {
  struct test_path dir = test_subdir(spools, 1);
  CHECK(setenv("JITSYM_SPOOL_DIR", dir.text, 1) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    exit(0);
  }
  test_wait_ok(child);
  *left = test_files_in(dir.text);
  return child;
}

/* The process exits while the disk is dead. The spool has what was on its way. */
static void is_in_spool(const char *spools, void (*body)(void)) {
  int left;
  pid_t process = exited(spools, body, &left);
  CHECK(left == 1);
  jitsym *session = test_open_flags(0, JITSYM_INIT_RECOVER);
  CHECK(test_stats_now(session).recovered == 1);
  CHECK(map_has(process, "on its way"));
  CHECK_OK(jitsym_close(session));
}

static void opens_too_early(void) {
  jitsym *session = NULL;
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_disable(open_and_die(0), 0));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, opens_without_files(&session));
}

static void opened_before_exit(void) {
  is_in_spool("spools_opened", opens_too_early);
}

static void would_remove(void) {
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_disable(open_and_die(JITSYM_INIT_REMOVE_FILES), 0));
}

static void not_removed_at_exit(void) {
  is_in_spool("spools_not_removed", would_remove);
}

/* Files that are to be removed go when the writer has ended, however late that is: with the last session, or at the exit. */
static void is_removed(const char *spools, void (*body)(void)) {
  int left;
  pid_t process = exited(spools, body, &left);
  CHECK(left == 0);
  CHECK(access(test_path_of(process, JITSYM_SINK_MAP).text, F_OK) != 0 && errno == ENOENT);
  CHECK(access(test_path_of(process, JITSYM_SINK_JITDUMP).text, F_OK) != 0 && errno == ENOENT);
}

static void closes_in_vain(void) {
  jitsym *session = open_and_die(JITSYM_INIT_REMOVE_FILES);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_disable(session, 0));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_close(session));
  disk_is_back();
}

static void removed_at_exit(void) {
  is_removed("spools_removed_at_exit", closes_in_vain);
}

static void closes_in_time(void) {
  jitsym *session = open_and_die(JITSYM_INIT_REMOVE_FILES);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_disable(session, 0));
  disk_is_back();
  CHECK_OK(jitsym_close(session));
  CHECK(access(test_path_of(getpid(), JITSYM_SINK_MAP).text, F_OK) != 0 && errno == ENOENT);
}

static void removed_at_close(void) {
  is_removed("spools_removed_at_close", closes_in_time);
}

/* ------------------------------------------------------------------------------------------------ the end */

/* Files of adopted memory are made anew at the exit. */
static void exits(void) {
  void *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, 0);
  CHECK_OK(jitsym_region_adopt(session, memory, 1 << 16));
  test_register(session, (uintptr_t)memory, 64, "adopted");
  CHECK_OK(test_flush(session));
  no_new_files = 1;
  disk_dies();
  exit(0);
}

/* Files are removed at the exit. */
static void says_that_it_exits(void) {
  __atomic_store_n(&shared->exits, 1, __ATOMIC_SEQ_CST);
}

static void exits_with_two(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, JITSYM_INIT_NO_SPOOL);
  CHECK_OK(test_flush(session));
  CHECK(atexit(says_that_it_exits) == 0);
  no_writes = 1;
  disk_dies();
  test_register(session, 0x7000000000, 64, "in hand");
  await_waiting();
  test_register(session, 0x7000001000, 64, "behind it");
}

/* A process that is stopped in its exit, for longer than it waits, still has its time when it goes on. */
static void stopped_in_its_exit(void) {
  int status;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  pid_t child = test_start(exits_with_two);
  TEST_AWAIT(__atomic_load_n(&shared->exits, __ATOMIC_SEQ_CST));
  CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
  test_sleep_ms(21000);
  CHECK(kill(child, SIGCONT) == 0);
  /* Whoever has no time left gives up now. */
  test_sleep_ms(500);
  __atomic_store_n(&shared->is_back, 1, __ATOMIC_SEQ_CST);
  test_wait_ok(child);
  struct map map = map_read(test_path_of(child, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, 0x7000000000), "in hand") == 0 && strcmp(map_name(&map, 0x7000001000), "behind it") == 0);
  map_free(&map);
}

static void exits_and_removes(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, JITSYM_INIT_REMOVE_FILES);
  test_register(session, 0x7000000000, 64, "removed");
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_disable(session, 0));
  dead_dir = test_dir;
  disk_dies();
  exit(0);
}

/* ------------------------------------------------------------------------------------------------ forks */

/* How long a fork may wait for the library, in nanoseconds; and how often a busy machine may be too slow for that. */
enum { PATIENCE = 75000000, FORKS = 50 };

/* A child makes its files elsewhere, so to speak. */
static void forks_in_time(jitsym *session, jitsym_status expected) {
  int in_time = 0;
  for (int i = 0; i < FORKS && !in_time; i++) {
    uint64_t begin = test_now();
    pid_t child = fork();
    in_time = test_now() - begin <= PATIENCE;
    CHECK(child >= 0);
    if (child == 0) {
      test_inherits_threads = 1;
      jitsym_code code = test_code(0x7000001000, 64, "of a child");
      jitsym_status status = jitsym_register(session, &code, NULL);
      /* The writer may not have come to rest. */
      CHECK(status == expected || status == JITSYM_ERR_FORKED);
      _exit(status == expected ? 0 : 3);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3);
    in_time &= WEXITSTATUS(status) == 0;
  }
  CHECK(in_time);
}

static jitsym_status creates(void) {
  jitsym_region_options options = JITSYM_REGION_OPTIONS(1 << 16);
  jitsym_region region = JITSYM_REGION;
  return jitsym_region_create(call.session, &options, &region);
}

static jitsym_status allocates(void) {
  jitsym_region piece = JITSYM_REGION;
  return jitsym_alloc(call.session, 100, 0, 0, &piece);
}

static void *method_memory;

static jitsym_status tells(void) {
  struct method_load load = {7, "method", method_memory, 64, 0, NULL, 0, NULL, NULL};
  return NotifyEvent(LOAD, &load) == 1 ? JITSYM_OK : JITSYM_ERR_INTERNAL;
}

/* A fork beside a call that hangs. In the middle of some calls, there is nothing whole for the child to go on with. */
static void forks_beside(jitsym_status (*function)(void), jitsym_status expected) {
  no_new_files = 1;
  call_elsewhere(function);
  await_waiting();
  forks_in_time(call.session, expected);
  disk_is_back();
  CHECK_OK(await_call());
  CHECK_OK(jitsym_close(call.session));
}

static void forks_beside_create(void) {
  call.session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  disk_dies();
  forks_beside(creates, JITSYM_OK);
}

static void forks_beside_alloc(void) {
  call.session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  disk_dies();
  forks_beside(allocates, JITSYM_ERR_FORKED);
}

static void forks_beside_collector(void) {
  if (Initialize == NULL) {
    return;
  }
  setenv("JITSYM_DIR", test_dir, 1);
  setenv("JITSYM_ADOPT", "1", 1);
  CHECK(Initialize() == 1);
  call.session = test_open_flags(JITSYM_SINK_MAP, 0);
  method_memory = mmap(NULL, 1 << 16, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(method_memory != MAP_FAILED);
  disk_dies();
  forks_beside(tells, JITSYM_ERR_FORKED);
}

/* A child whose files cannot be made in time: it is told so, and goes on without them until they are asked for again. */
static void child_without_files(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  test_register(session, 0x7000001000, 64, "of the parent");
  CHECK_OK(test_flush(session));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    test_inherits_threads = 1;
    no_new_files = 1;
    disk_dies();
    jitsym_code code = test_code(0x7000002000, 64, "of the child");
    (void)jitsym_register(session, &code, NULL);
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
    CHECK(test_stats_now(session).sinks_failed == JITSYM_SINK_MAP);
    disk_is_back();
    CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
    test_register(session, 0x7000000000, 64, "registered when the disk is back");
    CHECK_OK(test_flush(session));
    CHECK_OK(jitsym_close(session));
    exit(0);
  }
  test_wait_ok(child);
  CHECK_OK(jitsym_close(session));
}

static jitsym_status registers(void) {
  jitsym_code code = test_code(0x7000002000, 64, "of the child");
  return jitsym_register(call.session, &code, NULL);
}

/* A child exits while another thread's first call makes its state. It waits for that, writes all, and leaves no spool. */
static void exits_in_first_call(void) {
  call.session = test_open_flags(JITSYM_SINK_MAP, 0);
  test_register(call.session, 0x7000001000, 64, "of the parent");
  CHECK_OK(test_flush(call.session));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    no_new_files = 1;
    disk_dies();
    call_elsewhere(registers);
    await_waiting();
    /* Before the library's own handler. */
    CHECK(atexit(disk_is_back) == 0);
    exit(0);
  }
  test_wait_ok(child);
  struct map map = map_read(test_path_of(child, JITSYM_SINK_MAP).text);
  CHECK(map_name(&map, 0x7000001000) != NULL);
  map_free(&map);
  char prefix[64];
  snprintf(prefix, sizeof prefix, "jitsym-%d-", (int)child);
  DIR *dir = opendir(getenv("JITSYM_SPOOL_DIR"));
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    CHECK(strncmp(entry->d_name, prefix, strlen(prefix)) != 0);
  }
  closedir(dir);
  CHECK_OK(jitsym_close(call.session));
}

/* ------------------------------------------------------------------------------------------------ code memory */

/* A call that makes code memory hangs. Others that change some do nothing, and say so in time. */
static void code_memory_beside(jitsym_status (*function)(void)) {
  jitsym_region_options options = JITSYM_REGION_OPTIONS(1 << 16);
  jitsym_region region = JITSYM_REGION, piece = JITSYM_REGION;
  call.session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  CHECK_OK(jitsym_region_create(call.session, &options, &region));
  no_new_files = 1;
  disk_dies();
  call_elsewhere(function);
  await_waiting();
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_region_release(call.session, region.exec));
  if (function == allocates) {
    CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_alloc(call.session, 100, 0, 0, &piece));
  }
  works(call.session);
  disk_is_back();
  CHECK_OK(await_call());
  CHECK_OK(jitsym_region_release(call.session, region.exec));
  CHECK_OK(jitsym_close(call.session));
}

static void beside_create(void) {
  code_memory_beside(creates);
}

static void beside_alloc(void) {
  code_memory_beside(allocates);
}

/* ------------------------------------------------------------------------------------------------ others' files */

static void is_killed(void) {
  jitsym_options options = test_options();
  jitsym *session = NULL;
  options.map_dir = test_subdir("of_the_killed", 1).text;
  options.jitdump_dir = options.map_dir;
  CHECK_OK(jitsym_init(&options, &session));
  no_writes = 1;
  disk_dies();
  test_register(session, 0x7000000000, 64, "left in the spool");
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush(session, 1));
  kill(getpid(), SIGKILL);
}

/* A session that recovers a dead process's files does not wait for that process's disk. */
static void recovers(void) {
  /* Other scenes also leave spools. */
  struct test_path dir = test_subdir("spools_of_the_killed", 1);
  CHECK(setenv("JITSYM_SPOOL_DIR", dir.text, 1) == 0);
  pid_t dead = fork();
  CHECK(dead >= 0);
  if (dead == 0) {
    is_killed();
  }
  int status;
  CHECK(waitpid(dead, &status, 0) == dead && WIFSIGNALED(status));
  dead_dir = "/of_the_killed";
  disk_dies();
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, JITSYM_INIT_RECOVER);
  CHECK(__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) > 0);
  works(session);
  CHECK(test_stats_now(session).recovered == 0);
  disk_is_back();
  TEST_AWAIT(test_stats_now(session).recovered == 1);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  static void (*const scenes[])(void) = {
      first_session,       late_sinks,           closed_meanwhile,   late_end_of_one,
      late_end_of_all,     opened_after_disable, opened_after_close, opened_before_exit,
      not_removed_at_exit, removed_at_exit,      removed_at_close,   exits,
      exits_and_removes,   forks_beside_create,  forks_beside_alloc, forks_beside_collector,
      child_without_files, exits_in_first_call,  beside_create,      beside_alloc,
      recovers,            stopped_in_its_exit,
  };
  enum { SCENES = sizeof scenes / sizeof scenes[0] };
  pid_t running[SCENES];
  test_begin(argc, argv);
  /* At once: most of them only wait. */
  for (int i = 0; i < SCENES; i++) {
    running[i] = fork();
    CHECK(running[i] >= 0);
    if (running[i] == 0) {
      scenes[i]();
      exit(0);
    }
  }
  for (int i = 0; i < SCENES; i++) {
    test_wait_ok(running[i]);
  }
  return test_end();
}
