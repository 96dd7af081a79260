/*
 * What a forked child does by default: with its first call its files have its own code, and two seconds later also the code that was
 * live at the fork.
 */
#define _GNU_SOURCE
#include "jitsym_control.h"
#include "parent_code.h"

/* Less than the library waits, in nanoseconds. */
enum { BEFORE_IT_IS_TIME = 1900000000 };
/* The exit code of a child that the machine has not let work before it was time. */
enum { TOO_SLOW = 7 };

static unsigned inherited_in(const struct dump *dump) {
  unsigned count = 0;
  for (size_t i = 0; i < dump->count; i++) {
    count += dump->records[i].id == DUMP_LOAD && strncmp(dump->records[i].name, "code of the parent", 18) == 0;
  }
  return count;
}

/* How much of the parent's code is in the files of a process: in the jitdump, and in the map. */
struct inherited {
  unsigned dump, map;
};

static unsigned inherited_in_map(pid_t pid) {
  struct map map = map_read(test_path_of(pid, JITSYM_SINK_MAP).text);
  unsigned count = 0;
  for (size_t i = 0; i < map.count; i++) {
    count += strncmp(map.entries[i].name, "code of the parent", 18) == 0;
  }
  map_free(&map);
  return count;
}

/* While nothing is written. */
static struct inherited inherited_by(pid_t pid) {
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  struct inherited found = {inherited_in(&dump), inherited_in_map(pid)};
  dump_free(&dump);
  return found;
}

/* Whether the jitdump has so many groups, and the map so much of the parent's code. */
static int has_written(uint64_t groups, unsigned inherited) {
  jitsym_stats stats;
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  return stats.jitdump_records >= groups && inherited_in_map(getpid()) >= inherited;
}

/*
 * Waits for the parent's code, and compares the files with what is live. `more`: own code in the jitdump. `failures`: writes of the
 * jitdump that have failed, at least.
 */
static void await_inherited(pid_t parent, size_t more, uint64_t failures) {
  unsigned live = live_codes(), found = 0;
  TEST_AWAIT(has_written(live + more, live));
  struct dump mine = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct dump theirs = dump_read(test_path_of(parent, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(mine.pid == (uint32_t)getpid() && dump_count(&mine, DUMP_LOAD) == live + more);
  for (size_t i = 0; i < mine.count; i++) {
    const struct dump_record *record = &mine.records[i];
    if (record->id == DUMP_LOAD && strncmp(record->name, "code of the parent", 18) == 0) {
      unsigned number = (unsigned)atoi(strrchr(record->name, ' '));
      CHECK(number < CODES && codes[number].live && record->addr == codes[number].addr);
      CHECK(record->pid == (uint32_t)getpid() && record->time > before_fork);
      const struct dump_record *before = find_index(&theirs, record->index);
      if (before != NULL) {
        check_same_group(record, before);
      } else if (record->addr >= CHILD) {
        /* The child has moved it. */
        CHECK((record->debug != NULL) == (number % 3 == 0) && record->unwind != NULL);
      }
      found++;
    }
  }
  CHECK(found == live && map.count >= live);
  for (unsigned i = 0; i < CODES; i++) {
    CHECK(!codes[i].live || strcmp(map_name(&map, codes[i].addr), code_name(i)) == 0);
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.sinks_failed == 0 && stats.unreadable == 0 && stats.jitdump_lost == 0);
  CHECK(failures == 0 ? stats.write_errors == 0 : stats.write_errors >= failures);
  dump_free(&mine);
  dump_free(&theirs);
  map_free(&map);
}

static void own_code_first(void) {
  pid_t parent = getppid();
  uint64_t begin = test_now();
  test_register(session, CHILD, 64, "of the child");
  CHECK_OK(test_flush(session));
  struct inherited found = inherited_by(getpid());
  if (test_now() - begin > BEFORE_IT_IS_TIME) {
    _exit(TOO_SLOW);
  }
  CHECK(found.dump == 0 && found.map == 0 && test_stats(session).inherited == live_codes());
  await_inherited(parent, 1, 0);
}

/* Code that the child registers at the place of its parent's, under the same name, is the child's own. */
static void same_code_again(void) {
  uint64_t begin = test_now();
  pid_t parent = getppid();
  test_register(session, codes[4].addr, codes[4].size, code_name(4));
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, codes[4].addr), code_name(4)) == 0);
  if (test_now() - begin > BEFORE_IT_IS_TIME) {
    _exit(TOO_SLOW);
  }
  CHECK(map.count == 1);
  map_free(&map);
  await_inherited(parent, 0, 0);
}

/* The disk is full when it is time: the code waits where it is. */
static void full_disk_for_a_while(void) {
  pid_t parent = getppid();
  disk_fails("/jit-", ENOSPC, 0);
  test_register(session, CHILD, 64, "of the child");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
  unsigned live = live_codes();
  /* The map does not wait for the jitdump. */
  TEST_AWAIT(inherited_in_map(getpid()) >= live);
  CHECK(inherited_by(getpid()).dump == 0 && test_stats_now(session).jitdump_held < 1024);
  disk_fails("/jit-", 0, 0);
  await_inherited(parent, 1, 1);
}

/* What is moved or ended before it is time. */
static void changes_first(void) {
  uint64_t begin = test_now();
  pid_t parent = getppid();
  jitsym_move_target target = test_target(CHILD);
  CHECK_OK(jitsym_move(session, codes[12].id, &target));
  codes[12].addr = CHILD;
  CHECK_OK(jitsym_unregister(session, codes[4].id));
  codes[4].live = 0;
  CHECK_OK(test_flush(session));
  if (test_now() - begin > BEFORE_IT_IS_TIME) {
    _exit(TOO_SLOW);
  }
  await_inherited(parent, 0, 0);
}

static pid_t first_process;

static void grandchild(void) {
  test_inherits_threads = 1;
  test_register(session, CHILD + 0x1000, 64, "of the grandchild");
  await_inherited(first_process, 2, 0);
}

/* A child that has written its own code forks a child in its turn, which has the code of both. */
static void forks_first(void) {
  first_process = getppid();
  test_register(session, CHILD, 64, "of the child");
  CHECK_OK(test_flush(session));
  uint64_t forked = before_fork;
  pid_t pid = test_start(grandchild);
  before_fork = forked;
  await_inherited(first_process, 1, 0);
  test_wait_ok(pid);
}

/* So many processes that each forks the next that the last one does not wait. */
static void chain(unsigned left) {
  test_register(session, CHILD + 0x1000 * left, 64, "of a link");
  CHECK_OK(test_flush(session));
  if (left == 0) {
    await_inherited(first_process, 8, 0);
    return;
  }
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    test_inherits_threads = 1;
    chain(left - 1);
    exit(0);
  }
  test_wait_ok(pid);
}

static void forks_a_chain(void) {
  first_process = getppid();
  chain(7);
}

/* A call that changes sinks does not wait until it is time. */
static void sinks_come_and_go(void) {
  pid_t parent = getppid();
  test_register(session, CHILD, 64, "of the child");
  CHECK_OK(jitsym_disable(session, JITSYM_SINK_JITDUMP));
  CHECK(has_written(live_codes() + 1, live_codes()));
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_JITDUMP));
  await_inherited(parent, 1, 0);
}

static void enabled_again(void) {
  pid_t parent = getppid();
  test_register(session, CHILD, 64, "of the child");
  CHECK_OK(jitsym_enable(session, SINKS));
  CHECK(has_written(live_codes() + 1, live_codes()));
  await_inherited(parent, 1, 0);
}

static void ends_at_once(void) {
  uint64_t begin = test_now();
  test_register(session, CHILD, 64, "of the child");
  CHECK_OK(test_flush(session));
  _exit(test_now() - begin > BEFORE_IT_IS_TIME ? TOO_SLOW : 0);
}

static void by_default(void) {
  static void (*const children[])(void) = {
      own_code_first, same_code_again, full_disk_for_a_while, changes_first, forks_first,
      forks_a_chain,  ends_at_once,    sinks_come_and_go,     enabled_again,
  };
  enum { COUNT = sizeof children / sizeof children[0] };
  pid_t pids[COUNT];
  unsigned tries[COUNT] = {0};
  setenv("JITSYM_FORK", "late", 1);
  session = test_open();
  fill();
  CHECK_OK(test_flush(session));
  before_fork = test_now();
  for (unsigned i = 0; i < COUNT; i++) {
    pids[i] = 0;
  }
  for (unsigned left = COUNT; left > 0;) {
    for (unsigned i = 0; i < COUNT; i++) {
      if (pids[i] == 0) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
          test_inherits_threads = 1;
          if (was_disturbed()) {
            _exit(DISTURBED);
          }
          children[i]();
          exit(0);
        }
      }
    }
    for (unsigned i = 0; i < COUNT; i++) {
      if (pids[i] > 0) {
        int status = test_wait(pids[i]);
        if (WIFEXITED(status) && (WEXITSTATUS(status) == DISTURBED || WEXITSTATUS(status) == TOO_SLOW)) {
          pids[i] = 0;
          CHECK(test_turn_of(&tries[i], TEST_TURNS));
          continue;
        }
        test_ended_well(pids[i], status);
        if (children[i] == ends_at_once) {
          struct inherited found = inherited_by(pids[i]);
          CHECK(found.dump == 0 && found.map == 0);
        }
        pids[i] = -1;
        left--;
      }
    }
  }
  CHECK_OK(jitsym_close(session));
}

/* The parent removes its jitdump: the child still reads it. */
static int removed[2];

static void after_the_removal(void) {
  test_inherits_threads = 1;
  char nothing;
  CHECK_OK(test_flush(session));
  CHECK(read(removed[0], &nothing, 1) == 1);
  unsigned lines = 0, tables = 0, live = live_codes();
  TEST_AWAIT(has_written(live, live));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  for (size_t i = 0; i < dump.count; i++) {
    lines += dump.records[i].debug != NULL;
    tables += dump.records[i].unwind != NULL;
  }
  CHECK(lines > live / 4 && tables > live / 4);
  dump_free(&dump);
}

static void removed_by_the_parent(void) {
  setenv("JITSYM_FORK", "late", 1);
  CHECK(pipe(removed) == 0);
  session = test_open_flags(SINKS, JITSYM_INIT_REMOVE_FILES);
  fill();
  CHECK_OK(test_flush(session));
  pid_t pid = test_start(after_the_removal);
  CHECK_OK(jitsym_close(session));
  CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) && write(removed[1], "", 1) == 1);
  test_wait_ok(pid);
}

/* Another runtime in the parent takes the parent's jitdump for its own file. */
static void after_the_damage(void) {
  test_inherits_threads = 1;
  char nothing;
  CHECK_OK(test_flush(session));
  CHECK(read(removed[0], &nothing, 1) == 1);
  jitsym_move_target target = test_target(CHILD);
  CHECK_OK(jitsym_move(session, codes[4].id, &target));
  test_register(session, CHILD + 0x1000, 64, "of the child");
  CHECK_OK(test_flush(session));
  unsigned live = live_codes();
  TEST_AWAIT(has_written(live + 1, live));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_load(&dump, code_name(4), 0)->addr == CHILD && dump_load(&dump, "of the child", 0) != NULL);
  CHECK(dump_count(&dump, DUMP_LOAD) == live + 1);
  dump_free(&dump);
}

static void damaged_in_the_parent(void) {
  setenv("JITSYM_FORK", "late", 1);
  CHECK(pipe(removed) == 0);
  session = test_open();
  fill();
  CHECK_OK(test_flush(session));
  pid_t pid = test_start(after_the_damage);
  struct test_path path = test_path(session, JITSYM_SINK_JITDUMP);
  overwrite_groups(path.text);
  CHECK(write(removed[1], "", 1) == 1);
  test_wait_ok(pid);
  CHECK_OK(jitsym_close(session));
  CHECK(unlink(path.text) == 0);
}

/* The parent has no files, so no recording has its code by them. */
static void remembered_child(void) {
  test_inherits_threads = 1;
  jitsym *own = test_open();
  CHECK_OK(test_flush(own));
  CHECK(inherited_by(getpid()).dump == live_codes() && inherited_by(getpid()).map == live_codes());
}

static void remembered(void) {
  setenv("JITSYM_FORK", "late", 1);
  session = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT | JITSYM_INIT_REMEMBER);
  fill();
  CHECK_OK(test_flush(session));
  pid_t pid = test_start(remembered_child);
  test_wait_ok(pid);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(by_default);
  test_child(removed_by_the_parent);
  test_child(damaged_in_the_parent);
  test_child(remembered);
  return test_end();
}
