/*
 * What a forked child takes over: with its first call it has files of its own, with all that was live at the fork, and goes on
 * with its parent's sessions and ids. One that makes no call leaves nothing. The parent does not notice either.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "jitsym_control.h"
#include "parent_code.h"

static uint64_t after_fork;

/* A child that is forked without waiting is forked anew, unless that is the rule. */
static pid_t fork_now(void (*child)(void)) {
  const char *mode = getenv("JITSYM_FORK");
  int may_inherit = mode == NULL || strcmp(mode, "off") != 0;
  for (unsigned turns = 0;;) {
    if (test_slow) {
      /* Until the writer sleeps: a fork does not wait for it as long as a pass may take under valgrind. */
      test_sleep_ms(1300);
    }
    before_fork = test_now();
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      after_fork = test_now();
      test_inherits_threads = 1;
      if (may_inherit && was_disturbed()) {
        _exit(DISTURBED);
      }
      child();
      exit(0);
    }
    int status = test_wait(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != DISTURBED) {
      test_ended_well(pid, status);
      return pid;
    }
    CHECK(test_turn_of(&turns, TEST_TURNS));
  }
}

/* The files of this process begin with the live code of the parent, and nothing else of it. `more`: what came after. */
static void check_files(pid_t parent, size_t more) {
  CHECK_OK(test_flush(session));
  struct dump mine = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct dump theirs = dump_read(test_path_of(parent, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  unsigned live = live_codes();
  CHECK(mine.pid == (uint32_t)getpid() && theirs.pid == (uint32_t)parent);
  CHECK(dump_count(&mine, DUMP_LOAD) == live + more);
  unsigned found = 0;
  for (size_t i = 0; i < mine.count; i++) {
    const struct dump_record *record = &mine.records[i];
    if (record->id == DUMP_LOAD && strncmp(record->name, "code of the parent", 18) == 0) {
      unsigned number = (unsigned)atoi(strrchr(record->name, ' '));
      CHECK(number < CODES && codes[number].live && record->addr == codes[number].addr);
      CHECK(record->size == codes[number].size && record->tid == (uint32_t)getpid());
      CHECK(record->time + TEST_CLOCK_ERROR >= before_fork && record->time <= after_fork + TEST_CLOCK_ERROR);
      check_same_group(record, find_index(&theirs, record->index));
      found++;
    }
  }
  CHECK(found == live && map.count == live + more);
  for (unsigned i = 0; i < CODES; i++) {
    if (codes[i].live) {
      CHECK(strcmp(map_name(&map, codes[i].addr), code_name(i)) == 0);
    }
  }
  dump_free(&mine);
  dump_free(&theirs);
  map_free(&map);
}

/* Nothing of this process is there, and nobody works for it. */
static void check_no_trace(void) {
  CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_MAP).text));
  CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text));
  CHECK(test_threads() == 1);
}

/* How many of the open files and mappings of this process have a text in their names. */
static unsigned holds(const char *text) {
  unsigned count = 0;
  DIR *dir = opendir("/proc/self/fd");
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char path[300], target[4200] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    count += length > 0 && strstr(target, text) != NULL;
  }
  closedir(dir);
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  for (char line[4200]; fgets(line, sizeof line, maps) != NULL;) {
    count += (unsigned)test_maps_line_is_of(line, text);
  }
  fclose(maps);
  return count;
}

/* Of the parent's, under qemu, the mapping of the jitdump: there MADV_DONTFORK does nothing. */
static unsigned inherited_files(void) {
  return test_threads_of_others != 0;
}

static unsigned holds_files_of(pid_t pid) {
  char spool[64];
  snprintf(spool, sizeof spool, "/jitsym-%d-", (int)pid);
  return holds(test_path_of(pid, JITSYM_SINK_MAP).text) + holds(test_path_of(pid, JITSYM_SINK_JITDUMP).text) + holds(spool);
}

/* ---------------------------------------------------------------------------------------------- first calls */

static void first_register(void) {
  check_no_trace();
  pid_t parent = getppid();
  test_register(session, CHILD, 64, "of the child");
  check_files(parent, 1);
  CHECK(holds_files_of(parent) == inherited_files() && holds_files_of(getpid()) >= 4);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.inherited == live_codes() && stats.live == live_codes() + 1 && stats.registered == 1);
  CHECK(stats.sinks_running == SINKS && stats.sinks_failed == 0 && stats.write_errors == 0 && stats.unreadable == 0);
  /* Nothing has failed but perhaps a jitsym_init that was refused before. */
  char text[64] = "?";
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(text[0] == 0 || strstr(text, "JITSYM_ERR_PATH: ") == text);
}

static void first_move(void) {
  jitsym_move_target target = test_target(CHILD);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, codes[1].id, &target));
  CHECK_OK(jitsym_move(session, codes[4].id, &target));
  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  const struct dump_record *before = dump_load(&dump, code_name(4), 0), *after = dump_load(&dump, code_name(4), 1);
  CHECK(before != NULL && after != NULL && before->addr == codes[4].addr && after->addr == CHILD);
  CHECK(after->pid == (uint32_t)getpid() && after->unwind != NULL && before->unwind != NULL);
  dump_free(&dump);
  CHECK_OK(jitsym_unregister(session, codes[4].id));
}

/* All ids of live code can be ended once; others are as unknown as they were; new ones are others. */
static void first_unregister(void) {
  for (unsigned i = 0; i < CODES; i++) {
    CHECK_STATUS(codes[i].live ? JITSYM_OK : JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, codes[i].id));
  }
  CHECK(test_stats(session).live == 0 && test_stats(session).inherited == live_codes());
  for (unsigned i = 0; i < 2 * CODES; i++) {
    jitsym_id id = test_register(session, CHILD + SLOT * i, 64, "of the child");
    for (unsigned k = 0; k < CODES; k++) {
      CHECK(id != codes[k].id);
    }
  }
  check_files(getppid(), 2 * CODES);
}

static void first_range(void) {
  CHECK_OK(jitsym_unregister_range(session, PARENT, UINT64_C(1) << 32, 0));
  CHECK(test_stats(session).live == 0);
  check_files(getppid(), 0);
}

static void first_flush(void) {
  CHECK_OK(test_flush(session));
  check_files(getppid(), 0);
}

static void first_stats(void) {
  jitsym_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  CHECK(stats.live == live_codes() && stats.registered == 0);
  check_files(getppid(), 0);
}

static void first_path(void) {
  CHECK(file_exists(test_path(session, JITSYM_SINK_JITDUMP).text));
  check_files(getppid(), 0);
}

/* A session of the child's own: with the same files as what it has inherited, whatever options that was opened with. */
static void first_init(void) {
  jitsym *own = test_open();
  CHECK(own != session);
  check_files(getppid(), 0);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_flush(session, 0));
  CHECK_OK(jitsym_unregister(own, codes[4].id));
  CHECK_OK(jitsym_close(own));
}

static void first_init_elsewhere(void) {
  struct test_path dir = test_subdir("elsewhere", 1);
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP;
  options.map_dir = dir.text;
  jitsym *own = NULL;
  CHECK_OK(jitsym_init(&options, &own));
  CHECK_OK(test_flush(session));
  struct test_path path;
  CHECK_OK(jitsym_path(own, JITSYM_SINK_MAP, path.text, sizeof path.text));
  CHECK(strncmp(path.text, dir.text, strlen(dir.text)) == 0);
  struct map map = map_read(path.text);
  CHECK(map.count == live_codes());
  map_free(&map);
  CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_MAP).text));
  CHECK(unlink(path.text) == 0);
}

/* A refused session leaves everything as it was. */
static void first_init_bad(void) {
  jitsym_options options = test_options();
  options.map_dir = "relative";
  jitsym *own = NULL;
  CHECK_STATUS(JITSYM_ERR_PATH, jitsym_init(&options, &own));
  check_no_trace();
  first_register();
}

/* Several threads of the child, each with its first call. */
static atomic_int go;

static void *register_at_go(void *number) {
  while (!atomic_load(&go)) {
  }
  test_register(session, CHILD + SLOT * (uint64_t)(uintptr_t)number, 64, "of the child");
  return NULL;
}

static void first_at_once(void) {
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++) {
    CHECK(pthread_create(&threads[i], NULL, register_at_go, (void *)i) == 0);
  }
  atomic_store(&go, 1);
  for (unsigned i = 0; i < 4; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  check_files(getppid(), 4);
}

/* So often that each of them meets the others everywhere on its way. Nothing is lost on it: the child can give memory back. */
static jitsym_region inherited_piece;

static void many_at_once_child(void) {
  test_inherits_threads = 1;
  pthread_t threads[8];
  for (uintptr_t i = 0; i < 8; i++) {
    CHECK(pthread_create(&threads[i], NULL, register_at_go, (void *)i) == 0);
  }
  atomic_store(&go, 1);
  for (unsigned i = 0; i < 8; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_OK(jitsym_free(session, inherited_piece.exec));
  CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_MAP).text) == 0);
  _exit(0);
}

static void many_first_calls(void) {
  session = test_open_flags(JITSYM_SINK_MAP, 0);
  inherited_piece.struct_size = sizeof inherited_piece;
  CHECK_OK(jitsym_alloc(session, 4096, 0, 0, &inherited_piece));
  for (int i = 0; i < (test_slow ? 10 : 300); i++) {
    fork_now(many_at_once_child);
  }
  CHECK_OK(jitsym_free(session, inherited_piece.exec));
  CHECK_OK(jitsym_close(session));
}

/* What the child cannot write to is a failed sink, as in any process, and no failure of its calls. */
static void first_without_room(void) {
  file_write(test_path_of(getpid(), JITSYM_SINK_MAP).text, "");
  CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_MAP).text) == 0);
  CHECK(mkdir(test_path_of(getpid(), JITSYM_SINK_MAP).text, 0700) == 0);
  jitsym_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  CHECK(stats.sinks_running == JITSYM_SINK_JITDUMP && stats.sinks_failed == JITSYM_SINK_MAP);
  test_register(session, CHILD, 64, "of the child");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == live_codes() + 1);
  dump_free(&dump);
  CHECK(rmdir(test_path_of(getpid(), JITSYM_SINK_MAP).text) == 0);
}

/* A jitdump has ten names. */
static struct test_path name_of_jitdump(int zeros) {
  struct test_path path;
  CHECK(snprintf(path.text, sizeof path.text, "%s/jit-%.*s%d.dump", test_dir, zeros, "000000000", (int)getpid()) > 0);
  return path;
}

static void first_without_any_room(void) {
  CHECK(mkdir(test_path_of(getpid(), JITSYM_SINK_MAP).text, 0700) == 0);
  for (int zeros = 0; zeros < 10; zeros++) {
    CHECK(mkdir(name_of_jitdump(zeros).text, 0700) == 0);
  }
  jitsym_code code = test_code(CHILD, 64, "of the child");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_register(session, &code, NULL));
  jitsym_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  CHECK(stats.sinks_running == 0 && stats.sinks_failed == SINKS);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  char text[4096];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "all other names for it are taken") != NULL);
  CHECK_OK(jitsym_close(session));
  CHECK(rmdir(test_path_of(getpid(), JITSYM_SINK_MAP).text) == 0);
  for (int zeros = 0; zeros < 10; zeros++) {
    CHECK(rmdir(name_of_jitdump(zeros).text) == 0);
  }
}

/* ------------------------------------------------------------------------------------- children without a call */

static void no_call(void) {
  check_no_trace();
  char spool[64];
  snprintf(spool, sizeof spool, "/jitsym-%d-", (int)getppid());
  CHECK(holds(spool) == 0);
}

static void only_exec(void) {
  execl("/bin/true", "true", (char *)NULL);
  _exit(1);
}

/* Calls that are about no inherited code. */
static void only_close(void) {
  char text[64] = "?";
  CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_flush(NULL, 0));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_flush((jitsym *)&session, 0));
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(session));
  jitsym_code code = test_code(CHILD, 64, "of the child");
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_register(session, &code, NULL));
  check_no_trace();
}

/* --------------------------------------------------------------------------------------- children of children */

static pid_t first_process;

static void grandchild_first(void) {
  /* Its parent has no files: the groups are read from those of the first process. */
  test_register(session, CHILD, 64, "of the child");
  check_files(first_process, 1);
  CHECK(test_stats(session).inherited == live_codes());
}

static void child_forks_first(void) {
  uint64_t forked[] = {before_fork, after_fork};
  first_process = getppid();
  fork_now(grandchild_first);
  check_no_trace();
  before_fork = forked[0];
  after_fork = forked[1];
  first_register();
}

static void grandchild_second(void) {
  check_files(getppid(), 1);
  CHECK(test_stats(session).inherited == live_codes() + 1);
  CHECK_OK(jitsym_unregister(session, codes[4].id));
}

static void child_forks_later(void) {
  uint64_t forked[] = {before_fork, after_fork};
  test_register(session, CHILD, 64, "of the child");
  check_files(getppid(), 1);
  fork_now(grandchild_second);
  before_fork = forked[0];
  after_fork = forked[1];
  check_files(getppid(), 1);
}

/* ------------------------------------------------------------------------------------------------ scenarios */

static void (*const children[])(void) = {
    first_register, first_move, first_unregister, first_range, first_flush, first_stats, first_path, first_init,
    first_init_elsewhere, first_init_bad, first_at_once, first_without_room, first_without_any_room, no_call, only_exec,
    only_close, child_forks_first, child_forks_later,
};

/* The parent's files are the same to the byte before and after each child, whatever that does. */
static void all_children(void) {
  session = test_open();
  fill();
  for (size_t i = 0; i < sizeof children / sizeof children[0]; i++) {
    if (i > 0) {
      CHECK_OK(test_flush(session));
    }
    size_t sizes[2][2];
    unsigned char *bytes[2][2];
    static const uint32_t sinks[] = {JITSYM_SINK_MAP, JITSYM_SINK_JITDUMP};
    for (int file = 0; file < 2; file++) {
      bytes[file][0] = file_read(test_path(session, sinks[file]).text, &sizes[file][0]);
    }
    fork_now(children[i]);
    for (int file = 0; file < 2; file++) {
      bytes[file][1] = file_read(test_path(session, sinks[file]).text, &sizes[file][1]);
      /* The first child was forked with records pending, which the parent has written since. */
      CHECK(i == 0 || (sizes[file][0] == sizes[file][1] && memcmp(bytes[file][0], bytes[file][1], sizes[file][0]) == 0));
      free(bytes[file][0]);
      free(bytes[file][1]);
    }
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.live == live_codes() && stats.inherited == 0 && stats.write_errors == 0);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == stats.jitdump_records && dump_load(&dump, "of the child", 0) == NULL);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

/* Files before any call, by option and by environment. */
static void at_once_child(void) {
  CHECK(file_exists(test_path_of(getpid(), JITSYM_SINK_MAP).text));
  CHECK(file_exists(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text));
  check_files(getppid(), 0);
}

static void at_once(void) {
  session = test_open_flags(SINKS, JITSYM_INIT_FORK_NOW);
  fill();
  fork_now(at_once_child);
  CHECK_OK(jitsym_close(session));
  fork_now(check_no_trace);
}

static void at_once_by_environment(void) {
  setenv("JITSYM_FORK", "now", 1);
  session = test_open();
  fill();
  fork_now(at_once_child);
}

static void alone_child(void) {
  jitsym_code code = test_code(CHILD, 64, "of the child");
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_register(session, &code, NULL));
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_close(session));
  check_no_trace();
}

static void alone_by_environment(void) {
  setenv("JITSYM_FORK", "off", 1);
  session = test_open();
  fill();
  fork_now(alone_child);
}

/* One sink alone: what the child has it from is the registry, or memory. */
static void map_child(void) {
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(map.count == live_codes());
  map_free(&map);
  CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text));
}

static void dump_child(void) {
  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == live_codes());
  dump_free(&dump);
  CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_MAP).text));
}

static void one_sink(void) {
  session = test_open_flags(JITSYM_SINK_MAP, 0);
  fill();
  fork_now(map_child);
  CHECK_OK(jitsym_close(session));
  session = test_open_flags(JITSYM_SINK_JITDUMP, 0);
  fill();
  fork_now(dump_child);
  CHECK_OK(jitsym_close(session));
  session = test_open_flags(JITSYM_SINK_JITDUMP, JITSYM_INIT_NO_SPOOL);
  fill();
  fork_now(dump_child);
}

/* A jitdump that was cut or removed: names and bytes, which are in memory. */
static unsigned char *code_in_memory;

static void child_of_cut_dump(void) {
  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  const struct dump_record *load = dump_load(&dump, "in memory", 0);
  CHECK(load != NULL && load->addr == (uint64_t)(uintptr_t)code_in_memory && load->size == 100);
  CHECK(memcmp(load->code, code_in_memory, 100) == 0 && dump_count(&dump, DUMP_LOAD) == 1);
  dump_free(&dump);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(map.count == 1);
  map_free(&map);
}

static void cut_dump(void) {
  code_in_memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(code_in_memory != MAP_FAILED);
  memset(code_in_memory, 0xc3, 100);
  for (int way = 0; way < 3; way++) {
    session = test_open();
    jitsym_code code = test_code((uint64_t)(uintptr_t)code_in_memory, 100, "in memory");
    code.bytes = code_in_memory;
    CHECK_OK(jitsym_register(session, &code, NULL));
    CHECK_OK(test_flush(session));
    struct test_path path = test_path(session, JITSYM_SINK_JITDUMP);
    if (way == 0) {
      CHECK(truncate(path.text, 50) == 0);
    } else if (way == 1) {
      overwrite_groups(path.text);
    } else {
      /* The open file is still there. */
      CHECK(unlink(path.text) == 0);
    }
    fork_now(child_of_cut_dump);
    (void)jitsym_close(session);
    unlink(path.text);
  }
}

/* Groups that wait in the parent, because its disk is full, are in the child's files as well. */
static void child_with_another_disk(void) {
  disk_fails("/jit-", 0, 0);
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.inherited == live_codes() && stats.jitdump_held == 0 && stats.unreadable == 0);
  _exit(0);
}

static void full_disk(void) {
  session = test_open();
  disk_dies = 1;
  fill();
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
  pid_t child = fork_now(child_with_another_disk);
  disk_fails("/jit-", 0, 0);
  CHECK_OK(test_flush(session));
  struct dump mine = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct dump theirs = dump_read(test_path_of(child, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&theirs, DUMP_LOAD) == live_codes());
  for (size_t i = 0; i < theirs.count; i++) {
    if (theirs.records[i].id == DUMP_LOAD) {
      check_same_group(&theirs.records[i], find_index(&mine, theirs.records[i].index));
    }
  }
  dump_free(&mine);
  dump_free(&theirs);
  CHECK_OK(jitsym_close(session));
}

/* Nothing runs that a child could go on with. */
static void off_child(void) {
  jitsym_code code = test_code(CHILD, 64, "of the child");
  jitsym_id id = 1;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id == 0);
  CHECK_OK(test_flush(session));
  check_no_trace();
}

/* A session that is closed in a child is closed there, also if nothing was to be done for it before. */
static void closes_off_child(void) {
  jitsym_code code = test_code(CHILD, 16, "nobody's");
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_register(session, &code, NULL));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(session));
  check_no_trace();
}

static void off(void) {
  setenv("JITSYM", "off", 1);
  session = test_open_flags(0, 0);
  fork_now(closes_off_child);
  jitsym *second = test_open_flags(0, 0);
  fork_now(off_child);
  CHECK_OK(jitsym_close(second));
  fork_now(off_child);
  CHECK_OK(jitsym_close(session));
}

/* The parent ends at once, as that of a daemon does, and the child goes on. */
static void daemon_like(void) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  pid_t parent = fork();
  CHECK(parent >= 0);
  if (parent == 0) {
    session = test_open();
    fill();
    CHECK_OK(test_flush(session));
    before_fork = test_now();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) {
      _exit(0);
    }
    after_fork = test_now();
    while (getppid() != 1 && getppid() == parent) {
      test_sleep_ms(1);
    }
    test_register(session, CHILD, 64, "of the child");
    CHECK(test_stats(session).live == live_codes() + 1);
    struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
    CHECK(dump_count(&dump, DUMP_LOAD) == live_codes() + 1);
    dump_free(&dump);
    CHECK_OK(jitsym_close(session));
    CHECK(write(ends[1], "k", 1) == 1);
    _exit(0);
  }
  close(ends[1]);
  char answer = 0;
  CHECK(read(ends[0], &answer, 1) == 1 && answer == 'k');
  test_wait_ok(parent);
}

/* ------------------------------------------------------------------------------------- other ways than fork */

static void other_ways(void) {
  session = test_open();
  fill();
  for (int i = 0; i < 20; i++) {
    pid_t pid = vfork();
    if (pid == 0) {
      execl("/bin/true", "true", (char *)NULL);
      _exit(1);
    }
    test_wait_ok(pid);
    char *arguments[] = {"true", NULL};
    CHECK(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, NULL) == 0);
    test_wait_ok(pid);
    CHECK(system("true") == 0);
    /* No handler runs, so nobody knows in what state its memory is. */
    pid = test_clone();
    CHECK(pid >= 0);
    if (pid == 0) {
      alone_child();
      if (i % 4 == 0) {
        jitsym *own = test_open();
        test_register(own, CHILD, 64, "of the child");
        CHECK_OK(test_flush(own));
        struct dump dump = dump_read(test_path(own, JITSYM_SINK_JITDUMP).text);
        CHECK(dump.pid == (uint32_t)getpid() && dump_count(&dump, DUMP_LOAD) == 1);
        dump_free(&dump);
        CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_flush(session, 0));
      }
      _exit(0);
    }
    test_wait_ok(pid);
    register_code(4);
  }
  CHECK(test_stats(session).live == live_codes());
  fork_now(first_register);
  CHECK_OK(jitsym_close(session));
}

/* --------------------------------------------------------------------------------------------- under load */

/* Whether a child of a process with busy threads can allocate memory: see fork.c. */
#if defined(__SANITIZE_ADDRESS__)
enum { CHILD_CAN_ALLOCATE = 0 };
#else
enum { CHILD_CAN_ALLOCATE = 1 };
#endif

enum { STORM_THREADS = 3, STORM_SPAN = 20000 };

static atomic_int stop;
/* How much each thread has registered: what it has counted it has been told of. */
static atomic_uint counted[STORM_THREADS];

static uint64_t storm_addr(uintptr_t thread, unsigned number) {
  return 0x6000000000 + thread * 0x100000000 + 0x80 * (uint64_t)(number % STORM_SPAN);
}

static void *storm(void *thread) {
  for (unsigned i = 0; !atomic_load(&stop); i++) {
    char name[64];
    snprintf(name, sizeof name, "storm %u %u", (unsigned)(uintptr_t)thread, i);
    jitsym_code code = test_code(storm_addr((uintptr_t)thread, i), 100, name);
    jitsym_status status = jitsym_register(session, &code, NULL);
    CHECK_OK(status);
    atomic_store(&counted[(uintptr_t)thread], i + 1);
    if (i % 8 == 0) {
      test_sleep_ms(1);
    }
  }
  return NULL;
}

/*
 * Whatever was registered before the fork is in the child's files, and the newest of each place. Unless the fork has not waited
 * for the writer, which the child is told: on a machine that is busy with something else that may be so. Returns that.
 */
static int check_storm(const unsigned *least) {
  jitsym_stats stats = test_stats(session);
  char text[256] = "";
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  int partial = strstr(text, "did not wait") != NULL;
  CHECK(partial || strcmp(text, "") == 0);
  CHECK(stats.sinks_failed == 0 && stats.write_errors == 0 && stats.unreadable == 0);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  /* What the parent was writing at a fork that did not wait is lost to the child's jitdump, and counted. */
  CHECK(stats.jitdump_lost == 0 || partial);
  CHECK(dump_count(&dump, DUMP_LOAD) + stats.jitdump_lost == stats.inherited + stats.registered);
  CHECK(map.count == stats.live);
  for (uintptr_t thread = 0; thread < STORM_THREADS && !partial; thread++) {
    unsigned from = least[thread] > STORM_SPAN ? least[thread] - STORM_SPAN : 0;
    for (unsigned i = from; i < least[thread]; i += 1 + (least[thread] - from) / 50) {
      unsigned owner, number;
      CHECK(sscanf(map_name(&map, storm_addr(thread, i)), "storm %u %u", &owner, &number) == 2);
      CHECK(owner == thread && number % STORM_SPAN == i % STORM_SPAN && number >= i);
    }
  }
  map_free(&map);
  dump_free(&dump);
  return partial;
}

static void storm_child(unsigned number, const unsigned *least, unsigned checks) {
  test_inherits_threads = 1;
  int partial = 0;
  if (number % checks == 0 && CHILD_CAN_ALLOCATE) {
    jitsym_code code = test_code(CHILD, 64, "of the child");
    jitsym_status status = jitsym_register(session, &code, NULL);
    if (status == JITSYM_ERR_FORKED) {
      _exit(DISTURBED);
    }
    CHECK_OK(status);
    partial = check_storm(least);
    CHECK(unlink(test_path(session, JITSYM_SINK_MAP).text) == 0);
    CHECK(unlink(test_path(session, JITSYM_SINK_JITDUMP).text) == 0);
  }
  _exit(partial ? PARTIAL : 0);
}

struct forks {
  unsigned count, checks;
};

/* So often, and then until most children that were looked at had everything: on a busy machine those are few. */
static void *fork_on(void *argument) {
  const struct forks *forks = argument;
  unsigned whole = 0, wanted = test_light ? 0 : forks->count / forks->checks * 4 / 5;
  unsigned turns = 0;
  for (unsigned i = 1; i <= forks->count || whole < wanted; i++) {
    CHECK(i <= forks->count || test_turn_of(&turns, TEST_TURNS));
    unsigned least[STORM_THREADS];
    for (unsigned thread = 0; thread < STORM_THREADS; thread++) {
      least[thread] = atomic_load(&counted[thread]);
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      storm_child(i, least, forks->checks);
    }
    int status = test_wait(child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == PARTIAL || WEXITSTATUS(status) == DISTURBED);
    whole += i % forks->checks == 0 && WEXITSTATUS(status) == 0;
    CHECK(!file_exists(test_path_of(child, JITSYM_SINK_JITDUMP).text));
  }
  return NULL;
}

/* Pids are used again: what children of earlier scenes have left is not for the next one to be found. */
static void remove_files_of_others(void) {
  char own[32];
  snprintf(own, sizeof own, "-%d.", (int)getpid());
  DIR *dir = opendir(test_dir);
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    int is_file = strncmp(entry->d_name, "jit-", 4) == 0 || strncmp(entry->d_name, "perf-", 5) == 0;
    CHECK(!is_file || strstr(entry->d_name, own) != NULL || unlinkat(dirfd(dir), entry->d_name, 0) == 0);
  }
  closedir(dir);
}

/* Threads register, others fork. The parent loses nothing and writes nothing that is not its own. */
static void fork_in_storm(unsigned forking_threads, struct forks forks) {
  remove_files_of_others();
  session = test_open();
  pthread_t threads[STORM_THREADS], forking[8];
  atomic_store(&stop, 0);
  for (uintptr_t i = 0; i < STORM_THREADS; i++) {
    atomic_store(&counted[i], 0);
    CHECK(pthread_create(&threads[i], NULL, storm, (void *)i) == 0);
  }
  for (unsigned i = 0; i < forking_threads; i++) {
    CHECK(pthread_create(&forking[i], NULL, fork_on, &forks) == 0);
  }
  for (unsigned i = 0; i < forking_threads; i++) {
    CHECK(pthread_join(forking[i], NULL) == 0);
  }
  atomic_store(&stop, 1);
  uint64_t registered = 0;
  for (unsigned i = 0; i < STORM_THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    registered += atomic_load(&counted[i]);
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.registered == registered && stats.write_errors == 0 && stats.sinks_failed == 0);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == registered && dump.size == DUMP_HEADER + stats.jitdump_bytes);
  CHECK(dump_load(&dump, "of the child", 0) == NULL);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void ten_thousand(void) {
  fork_in_storm(1, test_light ? (struct forks){20, 10} : (struct forks){10000, 100});
}

static void many_at_once(void) {
  fork_in_storm(4, test_light ? (struct forks){10, 5} : (struct forks){300, 30});
}

/* Sessions open and close while the process forks; a child goes on with what it has found open, or is told that it cannot. */
static _Atomic(jitsym *) latest;

static void *doors(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    jitsym *own = test_open();
    test_register(own, PARENT, 64, "between doors");
    atomic_store(&latest, own);
    CHECK_OK(jitsym_close(own));
  }
  return NULL;
}

static void fork_at_doors(void) {
  pthread_t thread;
  atomic_store(&stop, 0);
  CHECK(pthread_create(&thread, NULL, doors, NULL) == 0);
  for (unsigned i = 0; i < (test_light ? 20 : 400); i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      test_inherits_threads = 1;
      jitsym *found = atomic_load(&latest);
      if (found == NULL || !CHILD_CAN_ALLOCATE) {
        _exit(0);
      }
      jitsym_code code = test_code(CHILD, 64, "of the child");
      jitsym_status status = jitsym_register(found, &code, NULL);
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_FORKED);
      if (status == JITSYM_OK) {
        CHECK_OK(test_flush(found));
        CHECK_OK(jitsym_close(found));
      }
      jitsym *own = test_open();
      test_register(own, CHILD + SLOT, 64, "of the child");
      CHECK_OK(jitsym_close(own));
      CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_MAP).text) == 0);
      CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) == 0);
      _exit(0);
    }
    test_wait_ok(child);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
}

static void *doors_without_files(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    CHECK_OK(jitsym_close(test_open_flags(0, 0)));
  }
  return NULL;
}

/* Sessions that are off open and close while the process forks; a child enables another one as that one's options say. */
static void options_at_doors(void) {
  setenv("JITSYM", "off", 1);
  char dir[TEST_PATH_MAX];
  CHECK(snprintf(dir, sizeof dir, "%s/private", test_dir) < (int)sizeof dir && mkdir(dir, 0700) == 0);
  jitsym_options options = test_options();
  options.map_dir = options.jitdump_dir = dir;
  options.file_mode = 0600;
  CHECK_OK(jitsym_init(&options, &session));
  pthread_t thread;
  atomic_store(&stop, 0);
  CHECK(pthread_create(&thread, NULL, doors_without_files, NULL) == 0);
  for (unsigned i = 0; i < (test_light ? 50 : 400) && CHILD_CAN_ALLOCATE; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      test_inherits_threads = 1;
      CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
      struct test_path path = test_path_in(session, JITSYM_SINK_MAP, dir);
      struct stat file;
      CHECK(stat(path.text, &file) == 0 && (file.st_mode & 0777) == 0600 && unlink(path.text) == 0);
      _exit(0);
    }
    test_wait_ok(child);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(jitsym_close(session));
}

/* A signal handler that forks while its thread is in the library. */
static volatile sig_atomic_t signals;

/* One signal at a time: a handler that takes longer than the time between two would never let its thread go on. */
static void next_signal(void) {
  struct itimerval timer = {{0, 0}, {0, 2000}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

static void fork_in_handler(int signal) {
  (void)signal;
  signals++;
  pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    abort();
  }
  next_signal();
}

static void fork_in_signal_handler(void) {
  session = test_open();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = fork_in_handler;
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(SIGALRM, &action, NULL) == 0);
  uint64_t registered = 0;
  /* First what allocates: in a handler that interrupts the allocator, glibc's fork would wait for the allocator's lock for ever. */
  for (; registered < 1100; registered++) {
    test_register(session, PARENT + SLOT * (registered % 1000), 64, "x of y");
  }
  CHECK_OK(test_flush(session));
  next_signal();
  for (; signals < (test_light ? 5 : 200); registered++) {
    test_register(session, PARENT + SLOT * (registered % 1000), 64, "x of y");
    if (registered % 16 == 0) {
      CHECK_OK(test_flush(session));
    }
  }
  CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR);
  CHECK(test_stats(session).registered == registered);
  CHECK_OK(jitsym_close(session));
}

/*
 * A signal handler that starts a child while its thread is in the allocator, with the allocator's lock. fork would wait for that
 * lock for ever (glibc), because the library's thread makes the process one with threads: without the library it would not.
 */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
enum { PIECES = 64, PIECE = 65000, GUARDED = 1 << 20 };
static unsigned char *guarded;
static pid_t (*start_child)(void);
static volatile sig_atomic_t interrupted;

#define BY(name, start)   \
  static pid_t name(void) { \
    pid_t child = start;  \
    if (child == 0) {     \
      _exit(0);           \
    }                     \
    return child;         \
  }
BY(by_fork_alone, _Fork())
BY(by_vfork, vfork())
BY(by_clone, test_clone())

static pid_t by_spawn(void) {
  static char *const arguments[] = {"true", NULL};
  pid_t child;
  return posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0 ? child : -1;
}

static void start_in_handler(int signal) {
  (void)signal;
  if (mprotect(guarded, GUARDED, PROT_READ | PROT_WRITE) != 0) {
    abort();
  }
  interrupted++;
  int status = 0;
  pid_t child = start_child();
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    abort();
  }
}

static void interrupted_allocation(void) {
  session = test_open();
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = start_in_handler;
  CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
  /* A free piece of the heap, in which the allocator notes something when it takes a part of it. */
  void *pieces[PIECES], *end;
  for (int i = 0; i < PIECES; i++) {
    CHECK((pieces[i] = malloc(PIECE)) != NULL);
  }
  CHECK((end = malloc(PIECE)) != NULL);
  for (int i = 0; i < PIECES; i++) {
    free(pieces[i]);
  }
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  guarded = (unsigned char *)(((uintptr_t)pieces[1] + page) & ~(page - 1));
  CHECK(mprotect(guarded, GUARDED, PROT_NONE) == 0);
  for (int i = 0; i < PIECES / 4 && interrupted == 0; i++) {
    CHECK((pieces[i] = malloc(PIECE)) != NULL);
  }
  CHECK(interrupted == 1);
  free(end);
  test_register(session, PARENT, 64, "after it");
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
}

static void interrupted_allocations(void) {
  static pid_t (*const ways[])(void) = {by_fork_alone, by_vfork, by_clone, by_spawn};
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    start_child = ways[i];
    test_child(interrupted_allocation);
  }
}
#else
static void interrupted_allocations(void) {
}
#endif

/*
 * The host's own handler for forks waits for a lock that a thread holds while it is in the library. It was registered earlier, so
 * it runs later, when threads are kept from registering already: nobody may be kept for ever.
 */
static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_host(void) {
  CHECK(pthread_mutex_lock(&host_lock) == 0);
}

static void unlock_host(void) {
  CHECK(pthread_mutex_unlock(&host_lock) == 0);
}

static void *work_with_lock(void *unused) {
  (void)unused;
  for (unsigned i = 0; !atomic_load(&stop); i++) {
    lock_host();
    for (unsigned k = 0; k < 20; k++) {
      test_register(session, PARENT + SLOT * (i % 1000), 64, "with a lock");
      if (k % 10 == 9 && i % 2 == 1) {
        CHECK_OK(test_flush(session));
      }
    }
    unlock_host();
    test_sleep_ms(1);
  }
  return NULL;
}

static void fork_with_host_lock(void) {
  CHECK(pthread_atfork(lock_host, unlock_host, unlock_host) == 0);
  session = test_open();
  test_register(session, PARENT + SLOT * 2000, 64, "of the parent");
  CHECK_OK(test_flush(session));
  pthread_t thread;
  atomic_store(&stop, 0);
  CHECK(pthread_create(&thread, NULL, work_with_lock, NULL) == 0);
  for (unsigned i = 0; i < (test_light ? 3 : 30); i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      test_inherits_threads = 1;
      jitsym_code code = test_code(CHILD, 64, "of the child");
      jitsym_status status = CHILD_CAN_ALLOCATE ? jitsym_register(session, &code, NULL) : JITSYM_ERR_FORKED;
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_FORKED);
      if (status == JITSYM_OK) {
        CHECK_OK(test_flush(session));
        struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
        CHECK(strcmp(map_name(&map, PARENT + SLOT * 2000), "of the parent") == 0);
        map_free(&map);
      }
      _exit(0);
    }
    test_wait_ok(child);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(jitsym_close(session));
}

/* Each group of this process is one of the parent's, in whole. Returns how many there are. */
static size_t check_groups(pid_t parent) {
  struct dump mine = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct dump theirs = dump_read(test_path_of(parent, JITSYM_SINK_JITDUMP).text);
  size_t count = 0;
  for (size_t i = 0; i < mine.count; i++) {
    if (mine.records[i].id == DUMP_LOAD) {
      check_same_group(&mine.records[i], find_index(&theirs, mine.records[i].index));
      count++;
    }
  }
  dump_free(&mine);
  dump_free(&theirs);
  return count;
}

/*
 * A fork waits only a while for a slow write. What is written then may be missing in the child's jitdump, and is not there
 * without its lines, tables and bytes. `moves`: the write is that before a move.
 */
static void during_a_write(int moves) {
  enum { WRITTEN = CODES / 2 };

  session = test_open();
  for (unsigned i = 0; i < WRITTEN; i++) {
    register_code(i);
  }
  CHECK_OK(test_flush(session));
  /* While it writes this one, the others come, so that they are read together. */
  disk_is_slow("/jit-");
  register_code(WRITTEN);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush(session, 1));
  disk_begins(1);
  for (unsigned i = WRITTEN + 1; i < CODES; i++) {
    register_code(i);
  }
  jitsym_move_target target = test_target(MOVED);
  CHECK_OK(moves ? jitsym_move(session, codes[CODES - 1].id, &target) : JITSYM_OK);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush(session, 1));
  disk_begins(2);
  int written[2];
  CHECK(pipe(written) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  disk.is_slow = 0;
  close(written[child == 0]);
  if (child == 0) {
    test_inherits_threads = 1;
    CHECK_OK(test_flush(session));
    char nothing;
    CHECK(read(written[0], &nothing, 1) == 0);
    size_t groups = check_groups(getppid());
    jitsym_stats stats = test_stats(session);
    CHECK(groups >= WRITTEN && groups + stats.jitdump_lost == stats.inherited);
    CHECK(stats.unreadable == 0 && stats.write_errors == 0);
    CHECK_OK(jitsym_close(session));
    _exit(0);
  }
  CHECK_OK(test_flush(session));
  close(written[1]);
  test_wait_ok(child);
  CHECK_OK(jitsym_close(session));
}

static void during_a_pass(void) {
  during_a_write(0);
}

static void during_a_move(void) {
  during_a_write(1);
}

/* A fork while the process exits. */
static void fork_late(void) {
  pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  test_wait_ok(child);
}

static void fork_at_exit(void) {
  CHECK(atexit(fork_late) == 0);
  session = test_open();
  fill();
  exit(0);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(all_children);
  test_child(many_first_calls);
  test_child(at_once);
  test_child(at_once_by_environment);
  test_child(alone_by_environment);
  test_child(one_sink);
  test_child(cut_dump);
  test_child(full_disk);
  test_child(during_a_pass);
  test_child(during_a_move);
  test_child(off);
  test_child(daemon_like);
  test_child(other_ways);
  test_child(ten_thousand);
  test_child(many_at_once);
  test_child(fork_at_doors);
  test_child(options_at_doors);
  test_child(fork_in_signal_handler);
  if (!test_light) {
    /* With the C library's own allocator. */
    interrupted_allocations();
  }
  test_child(fork_with_host_lock);
  test_child(fork_at_exit);
  return test_end();
}
