/*
 * The files in a hostile world: disks that fill up and fail, files that vanish or are cut, bounds on their size, and what
 * somebody else has planted under their names. What is in them is true afterwards, and the other sink never notices.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "failing_disk.h"
#include "failing_names.h"
#include "testing.h"

enum { BOTH = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, CODES = 2048, SIZE = 256 };

/* Code that really lies where it is said to: written again from there, it has its bytes. */
static unsigned char *memory;
static jitsym_id ids[CODES];

static void make_memory(void) {
  memory = mmap(NULL, CODES * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  for (size_t i = 0; i < CODES * SIZE; i++) {
    memory[i] = (unsigned char)(i / SIZE * 7 + i);
  }
}

static void name_of(unsigned number, unsigned generation, char name[64]) {
  snprintf(name, 64, "code %u of %u", number, generation);
}

static void put(jitsym *session, unsigned number, unsigned generation) {
  static const jitsym_line lines[] = {{0, 10, 3, 0, "/src/first.js"}, {0x20, 11, 0, 0, "/src/second.js"}};
  char name[64];
  name_of(number, generation, name);
  jitsym_code code = test_code((uintptr_t)memory + number * SIZE, SIZE, name);
  code.bytes = memory + number * SIZE;
  code.lines = lines;
  code.line_count = 2;
  CHECK_OK(jitsym_register(session, &code, &ids[number]));
}

/* That both files are whole and say what lives: codes [from, to) of a generation. */
static void check_live(jitsym *session, unsigned from, unsigned to, unsigned generation) {
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  for (unsigned i = from; i < to; i++) {
    char name[64];
    name_of(i, generation, name);
    const struct dump_record *load = dump_load(&dump, name, 0);
    if (load == NULL || strcmp(map_name(&map, (uintptr_t)memory + i * SIZE), name) != 0) {
      fprintf(stderr, "%s is missing in the %s\n", name, load == NULL ? "dump" : "map");
    }
    CHECK(load != NULL && load->addr == (uintptr_t)memory + i * SIZE && load->size == SIZE);
    CHECK(memcmp(load->code, memory + i * SIZE, SIZE) == 0);
    CHECK(strcmp(map_name(&map, (uintptr_t)memory + i * SIZE), name) == 0);
  }
  map_free(&map);
  dump_free(&dump);
}

static void wait_until_well(jitsym *session) {
  TEST_AWAIT(test_stats_now(session).sinks_failed == 0);
}

static struct {
  int error;
  size_t partly;
  uint64_t max_memory;
} failure;

/* In the middle of a record: the file ends with the last whole one, and when the disk works again all is in it. */
static void dump_fails(void) {
  make_memory();
  jitsym_options options = test_options();
  options.max_memory = failure.max_memory;
  options.max_wait_ms = 60000;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  put(session, 0, 1);
  CHECK_OK(test_flush(session));
  disk_fails("/jit-", failure.error, failure.partly);
  unsigned count = test_light ? 1000 : CODES;
  for (unsigned i = 1; i < count; i++) {
    put(session, i, 1);
    if (i % 16 == 0) {
      /* Some do not live to see the end of it. */
      CHECK_OK(jitsym_unregister(session, ids[i]));
    }
    if (i % 500 == 499) {
      CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
      struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
      CHECK(dump_load(&dump, "code 0 of 1", 0) != NULL && dump.count < i);
      dump_free(&dump);
      /* The other sink has all of it. */
      struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
      CHECK(map.count == i + 1);
      map_free(&map);
    }
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.sinks_failed == JITSYM_SINK_JITDUMP && stats.sinks_running == (JITSYM_SINK_MAP | JITSYM_SINK_REGION));
  CHECK(stats.write_errors > 0 && stats.dropped == 0 && disk.failed > 0);
  /* The memory in which records wait is bounded; what finds no room there is counted. */
  uint64_t most = failure.max_memory == 0 ? 16 << 20 : failure.max_memory / 4;
  CHECK(stats.jitdump_held <= most && (stats.jitdump_lost > 0) == (failure.max_memory != 0));
  char text[4096];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) != NULL && strstr(text, strerror(failure.error)));

  disk_fails("/jit-", 0, 0);
  /* By itself, or when somebody asks. */
  if (failure.partly % 2 == 0) {
    wait_until_well(session);
  }
  put(session, 0, 2);
  stats = test_stats(session);
  CHECK(stats.sinks_failed == 0 && stats.sinks_running == TEST_DEFAULT_SINKS && stats.jitdump_held == 0);
  check_live(session, 0, 1, 2);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == stats.jitdump_records);
  char name[64];
  unsigned with_lines = 0;
  for (unsigned i = 1; i < count; i++) {
    name_of(i, 1, name);
    const struct dump_record *load = dump_load(&dump, name, 0);
    /* Those that have died may be missing, if they found no room. */
    CHECK(load != NULL || (i % 16 == 0 && failure.max_memory != 0));
    CHECK(load == NULL || memcmp(load->code, memory + i * SIZE, SIZE) == 0);
    CHECK(dump_load(&dump, name, 1) == NULL);
    with_lines += load != NULL && load->debug != NULL;
  }
  CHECK(failure.max_memory != 0 ? with_lines > 0 && with_lines < count - 1 : with_lines == count - 1);
  dump_free(&dump);
  /* A move finds the group of code that waited. */
  jitsym_move_target target = test_target((uintptr_t)memory + CODES * SIZE);
  target.bytes = memory;
  CHECK_OK(jitsym_move(session, ids[count - 1], &target));
  CHECK_OK(jitsym_move(session, ids[1], &target));
  CHECK_OK(test_flush(session));
  dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  name_of(1, 1, name);
  const struct dump_record *moved = dump_load(&dump, name, 1);
  CHECK(moved != NULL && moved->addr == target.addr && moved->debug != NULL);
  name_of(count - 1, 1, name);
  CHECK(dump_load(&dump, name, 1) != NULL);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void dump_failures(void) {
  static const int errors[] = {ENOSPC, EIO, EDQUOT, ENOMEM};
  static const size_t parts[] = {0, 1, 40, 333, 500, 100001};
  for (unsigned i = 0; i < (test_light ? 2 : 8); i++) {
    failure.error = errors[i % 4];
    failure.partly = parts[(i + i / 4) % 6];
    failure.max_memory = i % 2 ? 1 << 20 : 0;
    test_child(dump_fails);
  }
}

/* The same for the map: lines wait, or it is written anew. */
static void map_fails(void) {
  make_memory();
  jitsym *session = test_open();
  put(session, 0, 1);
  CHECK_OK(test_flush(session));
  disk_fails("/perf-", EIO, 11);
  for (unsigned i = 1; i < 1000; i++) {
    put(session, i, 1);
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  CHECK(map.count == 1);
  map_free(&map);
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.sinks_failed == JITSYM_SINK_MAP && stats.sinks_running == JITSYM_SINK_JITDUMP);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump.count == 2 * 1000);
  dump_free(&dump);
  disk_fails("/perf-", 0, 0);
  wait_until_well(session);
  CHECK_OK(test_flush(session));
  check_live(session, 0, 1000, 1);
  CHECK_OK(jitsym_close(session));
}

static struct test_path new_map(void) {
  char name[64];
  snprintf(name, sizeof name, ".perf-%d.map.new", (int)getpid());
  return test_subdir(name, 0);
}

/* Gives all of the code other names: the map is written anew. */
static void put_generation(jitsym *session, unsigned generation) {
  for (unsigned i = 0; i < 20; i++) {
    put(session, i, generation);
  }
}

/* A new map has the name already when the old one cannot be removed. That is no failure, and the next new map removes it. */
static void old_map_stays(void) {
  make_memory();
  jitsym *session = test_open();
  put_generation(session, 1);
  CHECK_OK(test_flush(session));
  names.removals = 1;
  put_generation(session, 2);
  CHECK_OK(test_flush(session));
  CHECK(names.removals == 0);
  CHECK(test_stats(session).map_rewrites > 1 || access(new_map().text, F_OK) == 0);
  check_live(session, 0, 20, 2);
  put_generation(session, 3);
  CHECK_OK(test_flush(session));
  check_live(session, 0, 20, 3);
  CHECK(test_stats(session).map_rewrites >= 2 && access(new_map().text, F_OK) != 0);
  CHECK_OK(jitsym_close(session));
}

static const char line_of_others[] = "7fff00000000 10 of somebody else\n";

/* Somebody has opened the map just before another one got its name. */
static void append_to_old(const char *fresh) {
  CHECK(strcmp(strrchr(new_map().text, '/') + 1, fresh) == 0);
  FILE *file = fopen(new_map().text, "a");
  CHECK(file != NULL && fputs(line_of_others, file) >= 0 && fclose(file) == 0);
}

static int has_line(const char *path, const char *part) {
  FILE *file = fopen(path, "r");
  char line[200];
  int found = 0;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    found |= strstr(line, part) != NULL;
  }
  CHECK(file == NULL || fclose(file) == 0);
  return found;
}

/* The old map is to have its name back, and cannot get it in one way or in both. */
static unsigned failing_renames;

static void old_map_comes_back(void) {
  make_memory();
  jitsym *session = test_open();
  put_generation(session, 1);
  CHECK_OK(test_flush(session));
  struct test_path path = test_path(session, JITSYM_SINK_MAP);
  names.exchanges = 1;
  names.renames = failing_renames;
  names.exchanged = append_to_old;
  put_generation(session, 2);
  CHECK_OK(test_flush(session));
  CHECK_OK(test_flush(session));
  CHECK(names.exchanges == 0 && names.renames == 0);
  if (failing_renames > 0 && test_stats(session).map_rewrites == 1) {
    /* The next one removes it, if nobody has it open. */
    CHECK(has_line(new_map().text, line_of_others));
  }
  put(session, 20, 3);
  CHECK_OK(test_flush(session));
  if (failing_renames == 0) {
    /* What is missing is appended. */
    CHECK(has_line(path.text, line_of_others) && access(new_map().text, F_OK) != 0);
    CHECK(has_line(path.text, " code 19 of 2\n") && has_line(path.text, " code 20 of 3\n"));
  } else {
    check_live(session, 0, 20, 2);
    check_live(session, 20, 21, 3);
  }
  CHECK(test_stats(session).sinks_failed == 0);
  CHECK_OK(jitsym_close(session));
  /* Not a file to be checked: in a map of others, lines that should change stay. */
  CHECK(failing_renames > 0 || unlink(path.text) == 0);
}

static void old_map_comes_back_or_not(void) {
  for (failing_renames = 0; failing_renames < 2; failing_renames++) {
    test_child(old_map_comes_back);
  }
}

/* A disk that fails to the end, and one that works again only in the next session. */
static void fails_at_close(void) {
  make_memory();
  jitsym *session = test_open();
  put(session, 0, 1);
  CHECK_OK(test_flush(session));
  disk_fails("/jit-", ENOSPC, 100);
  for (unsigned i = 1; i < 100; i++) {
    put(session, i, 1);
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_close(session));
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == 1);
  dump_free(&dump);
  session = test_open();
  CHECK(test_stats_now(session).sinks_failed == JITSYM_SINK_JITDUMP);
  put(session, 100, 1);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  disk_fails("/jit-", 0, 0);
  CHECK_OK(test_flush(session));
  check_live(session, 0, 101, 1);
  CHECK_OK(jitsym_close(session));
}

/* Files that somebody removes or cuts are made again, with all that lives. */
static void lost(void) {
  make_memory();
  jitsym *session = test_open();
  struct test_path map = test_path(session, JITSYM_SINK_MAP), dump = test_path(session, JITSYM_SINK_JITDUMP);
  unsigned count = 0;
  for (unsigned round = 0; round < 8; round++) {
    for (unsigned i = 0; i < 50; i++) {
      put(session, count++, 1);
    }
    CHECK_OK(test_flush(session));
    switch (round) {
      case 0: CHECK(unlink(map.text) == 0); break;
      case 1: CHECK(unlink(dump.text) == 0); break;
      case 2: CHECK(truncate(map.text, 100) == 0); break;
      case 3: CHECK(truncate(dump.text, 5000) == 0); break;
      case 4: CHECK(truncate(map.text, 0) == 0 && truncate(dump.text, 0) == 0); break;
      case 5: CHECK(unlink(map.text) == 0 && unlink(dump.text) == 0); break;
      case 6: CHECK(truncate(dump.text, 30) == 0); break;
      case 7: break;
    }
    /* What was registered before and after. */
    put(session, count++, 1);
    for (int tries = 0; jitsym_flush(session, 0) != JITSYM_OK; tries++) {
      CHECK(tries < 2);
    }
    check_live(session, 0, count, 1);
    CHECK(test_markers(test_path(session, JITSYM_SINK_JITDUMP).text) == 1);
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.jitdump_rewrites == 5 && stats.sinks_failed == 0);
  /* What was only removed keeps its lines; they are lost with the bytes of a file that was cut. */
  CHECK(unlink(dump.text) == 0);
  CHECK_OK(test_flush(session));
  struct dump again = dump_read(dump.text);
  CHECK(dump_load(&again, "code 400 of 1", 0)->debug != NULL && dump_load(&again, "code 0 of 1", 0)->debug == NULL);
  dump_free(&again);
  check_live(session, 0, count, 1);
  CHECK_OK(jitsym_close(session));
}

/* A file of somebody else that has taken the name is left alone, and when it goes ours is back. */
static void replaced(void) {
  make_memory();
  jitsym *session = test_open();
  struct test_path paths[] = {test_path(session, JITSYM_SINK_MAP), test_path(session, JITSYM_SINK_JITDUMP)};
  put(session, 0, 1);
  CHECK_OK(test_flush(session));
  for (int i = 0; i < 2; i++) {
    CHECK(unlink(paths[i].text) == 0);
    file_write(paths[i].text, "1000 10 somebody else's\n");
    put(session, 1, 1);
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
    file_check(paths[i].text, "1000 10 somebody else's\n");
    CHECK(unlink(paths[i].text) == 0);
    CHECK_OK(test_flush(session));
    check_live(session, 0, 2, 1);
  }
  CHECK_OK(jitsym_close(session));
}

static off_t size_of(const char *path) {
  struct stat status;
  CHECK(lstat(path, &status) == 0 && S_ISREG(status.st_mode));
  return status.st_size;
}

/* Code that comes and goes: the files stay within their bounds, and what lives is in them. */
static void bounded(uint64_t map_max, uint64_t jitdump_max) {
  make_memory();
  jitsym_options options = test_options();
  options.map_max = map_max;
  options.jitdump_max = jitdump_max;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  struct test_path map = test_path(session, JITSYM_SINK_MAP), dump = test_path(session, JITSYM_SINK_JITDUMP);
  const off_t map_bound = 8192, dump_bound = 128 << 10;
  enum { LIVE = 40 };
  unsigned generations = test_light ? 40 : 200;
  for (unsigned generation = 0; generation < generations; generation++) {
    unsigned at = generation * LIVE % (CODES - LIVE);
    for (unsigned i = 0; i < LIVE; i++) {
      put(session, at + i, generation);
    }
    CHECK_OK(test_flush(session));
    CHECK(size_of(map.text) <= map_bound && size_of(dump.text) <= dump_bound);
    check_live(session, at, at + LIVE, generation);
    for (unsigned i = 0; i < LIVE; i++) {
      CHECK_OK(jitsym_unregister(session, ids[at + i]));
    }
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.jitdump_rewrites > 0 && stats.map_forgotten > 0 && stats.map_omitted == 0 && stats.sinks_failed == 0);
  CHECK(test_markers(test_path(session, JITSYM_SINK_JITDUMP).text) == 1);

  /* More than there is room for: what was registered first has it, and the files stay as they should be. */
  enum { MANY = 400 };
  for (unsigned i = 0; i < MANY; i++) {
    put(session, i, 1000);
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  CHECK(size_of(map.text) <= map_bound && size_of(dump.text) <= dump_bound);
  stats = test_stats_now(session);
  CHECK(stats.map_omitted > 0 && stats.sinks_failed == JITSYM_SINK_JITDUMP && stats.live == MANY);
  struct map few = map_read(map.text);
  CHECK(few.count == MANY - stats.map_omitted && stats.map_entries == few.count);
  CHECK(strcmp(map_name(&few, (uintptr_t)memory), "code 0 of 1000") == 0);
  map_free(&few);
  struct dump some = dump_read(dump.text);
  CHECK(dump_load(&some, "code 0 of 1000", 0) != NULL && dump_load(&some, "code 399 of 1000", 0) == NULL);
  dump_free(&some);

  /* When most of it has gone the rest is in the files. */
  for (unsigned i = 0; i < MANY - LIVE; i++) {
    CHECK_OK(jitsym_unregister(session, ids[i]));
  }
  CHECK_OK(test_flush(session));
  check_live(session, MANY - LIVE, MANY, 1000);
  CHECK(size_of(map.text) <= map_bound && size_of(dump.text) <= dump_bound);
  stats = test_stats(session);
  CHECK(stats.sinks_failed == 0 && stats.map_omitted == 0);
  CHECK_OK(jitsym_close(session));
}

static void bounds_in_options(void) {
  setenv("JITSYM_MAP_MAX", "1g", 1);
  bounded(8192, 128 << 10);
}

static void bounds_in_environment(void) {
  setenv("JITSYM_MAP_MAX", "8k", 1);
  setenv("JITSYM_JITDUMP_MAX", "131072", 1);
  bounded(0, 0);
}

/* Without a bound nothing is left out, and the dump keeps its history. */
static void unbounded(void) {
  make_memory();
  jitsym *session = test_open();
  for (unsigned i = 0; i < 1000; i++) {
    put(session, i % 10, i);
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.jitdump_records == 1000 && stats.jitdump_rewrites == 0 && stats.jitdump_lost == 0 && stats.live == 10);
  CHECK_OK(jitsym_close(session));
}

static struct {
  uint32_t flags;
  const char *variable;
  int close;
} ending;

static void removes(void) {
  if (ending.variable != NULL) {
    setenv("JITSYM_REMOVE", ending.variable, 1);
  }
  make_memory();
  jitsym *session = test_open_flags(0, ending.flags);
  put(session, 0, 1);
  CHECK_OK(test_flush(session));
  check_live(session, 0, 1, 1);
  if (ending.close) {
    CHECK_OK(jitsym_close(session));
    CHECK(!file_exists(test_path_of(getpid(), JITSYM_SINK_MAP).text));
    /* Another session makes them again. */
    session = test_open_flags(0, ending.flags);
    put(session, 1, 1);
    CHECK_OK(test_flush(session));
    check_live(session, 1, 2, 1);
    if (ending.close == 2) {
      /* Files of somebody else are none of ours. */
      struct test_path map = test_path(session, JITSYM_SINK_MAP);
      CHECK(unlink(map.text) == 0);
      file_write(map.text, "1000 10 somebody else's\n");
    }
    (void)jitsym_close(session);
  }
}

/* Files that are removed in the end, by whichever way that comes. */
static void removals(void) {
  static const struct {
    uint32_t flags;
    const char *variable;
    int close;
    int files;
  } all[] = {{JITSYM_INIT_REMOVE_FILES, NULL, 0, 0}, {JITSYM_INIT_REMOVE_FILES, NULL, 1, 0}, {0, "1", 0, 0},
             {0, "0", 0, 2},                         {JITSYM_INIT_REMOVE_FILES, NULL, 2, 1}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    ending.flags = all[i].flags;
    ending.variable = all[i].variable;
    ending.close = all[i].close;
    pid_t child = test_child(removes);
    int files = file_exists(test_path_of(child, JITSYM_SINK_MAP).text) + file_exists(test_path_of(child, JITSYM_SINK_JITDUMP).text);
    CHECK(files == all[i].files);
  }
}

/* What may lie under the name of a file. */
enum plant { SYMLINK, DANGLING, HARD_LINK, FIFO, DIRECTORY, SOCKET, OTHERS, PLANTS };
static struct {
  enum plant what;
  uint32_t sink;
} planted;

static void plant(const char *path, const char *victim) {
  file_write(victim, "precious\n");
  switch (planted.what) {
    case SYMLINK: CHECK(symlink(victim, path) == 0); break;
    case DANGLING: CHECK(unlink(victim) == 0 && symlink(victim, path) == 0); break;
    case HARD_LINK: CHECK(link(victim, path) == 0); break;
    case FIFO: CHECK(mkfifo(path, 0666) == 0); break;
    case DIRECTORY: CHECK(mkdir(path, 0777) == 0); break;
    case SOCKET: CHECK(mknod(path, S_IFSOCK | 0666, 0) == 0); break;
    case OTHERS:
      file_write(path, "precious\n");
      CHECK(chmod(path, 0666) == 0 && chown(path, 65534, 65534) == 0);
      break;
    case PLANTS: break;
  }
}

/*
 * It is not written, not followed, not removed. A jitdump gets another name. A map cannot: the reason names it, and the other sink
 * goes on.
 */
static void meets_plant(void) {
  test_jitdump_is_elsewhere = planted.sink == JITSYM_SINK_JITDUMP;
  struct test_path path = test_path_of(getpid(), planted.sink), victim = test_subdir("victim", 0);
  unlink(victim.text);
  plant(path.text, victim.text);
  struct stat before, after;
  CHECK(lstat(path.text, &before) == 0);
  make_memory();
  jitsym *session = test_open();
  put(session, 0, 1);
  if (planted.sink == JITSYM_SINK_JITDUMP) {
    CHECK_OK(test_flush(session));
    check_live(session, 0, 1, 1);
    CHECK_OK(jitsym_close(session));
  } else {
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
    jitsym_stats stats = test_stats_now(session);
    CHECK(stats.sinks_running == JITSYM_SINK_JITDUMP && stats.sinks_failed == JITSYM_SINK_MAP);
    char text[4096];
    CHECK_OK(jitsym_last_error(session, text, sizeof text));
    CHECK(strstr(text, path.text) != NULL);
    struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
    CHECK(dump_count(&dump, DUMP_LOAD) == 1);
    dump_free(&dump);
    (void)jitsym_close(session);
    /* Alone it cannot run at all, and that is said. */
    jitsym_options options = test_options();
    options.sinks = JITSYM_SINK_MAP;
    CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_init(&options, &session));
  }
  CHECK(lstat(path.text, &after) == 0 && before.st_ino == after.st_ino && before.st_size == after.st_size);
  CHECK(before.st_mode == after.st_mode && before.st_mtime == after.st_mtime);
  if (planted.what == DANGLING) {
    CHECK(!file_exists(victim.text));
  } else {
    file_check(victim.text, "precious\n");
  }
  CHECK((planted.what == DIRECTORY ? rmdir(path.text) : unlink(path.text)) == 0);
}

static void plants(void) {
  for (planted.what = 0; planted.what < PLANTS; planted.what++) {
    for (planted.sink = JITSYM_SINK_MAP; planted.sink <= JITSYM_SINK_JITDUMP; planted.sink++) {
      if (planted.what != OTHERS || geteuid() == 0) {
        test_child(meets_plant);
      }
    }
  }
}

/* The same under the name of the file that is to replace ours: that gets another name, and all goes on. */
static void meets_plant_beside(void) {
  make_memory();
  jitsym *session = test_open();
  put(session, 0, 1);
  CHECK_OK(test_flush(session));
  struct test_path fresh, victim = test_subdir("victim", 0), path = test_path(session, planted.sink);
  const char *name = strrchr(path.text, '/') + 1;
  CHECK(snprintf(fresh.text, sizeof fresh.text, "%s/.%s.new", test_dir, name) > 0);
  unlink(victim.text);
  plant(fresh.text, victim.text);
  struct stat before, after;
  CHECK(lstat(fresh.text, &before) == 0);
  /* Both are written anew: lines of the map change, and the dump is gone. */
  put(session, 0, 2);
  CHECK(unlink(test_path(session, JITSYM_SINK_JITDUMP).text) == 0);
  CHECK_OK(test_flush(session));
  check_live(session, 0, 1, 2);
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.map_rewrites > 0 && stats.jitdump_rewrites == 1);
  CHECK(lstat(fresh.text, &after) == 0 && before.st_ino == after.st_ino && before.st_size == after.st_size);
  CHECK(before.st_mode == after.st_mode && before.st_mtime == after.st_mtime && before.st_uid == after.st_uid);
  if (planted.what == DANGLING) {
    CHECK(!file_exists(victim.text));
  } else {
    file_check(victim.text, "precious\n");
  }
  CHECK((planted.what == DIRECTORY ? rmdir(fresh.text) : unlink(fresh.text)) == 0);
  CHECK_OK(jitsym_close(session));
}

static void plants_beside(void) {
  for (planted.what = 0; planted.what < PLANTS; planted.what++) {
    for (planted.sink = JITSYM_SINK_MAP; planted.sink <= JITSYM_SINK_JITDUMP; planted.sink++) {
      if (planted.what != OTHERS || geteuid() == 0) {
        test_child(meets_plant_beside);
      }
    }
  }
}

/* The flags that every file is opened with. The library's thread has its own descriptor table, and the program's has nothing of it. */
static void descriptors_end_with_exec(void) {
  jitsym *session = test_open();
  CHECK_OK(test_flush(session));
  int found = 0, here = 0;
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    for (int file = 0; file < 64; file++) {
      char link[300], path[TEST_PATH_MAX];
      snprintf(link, sizeof link, "/proc/self/task/%s/fd/%d", task->d_name, file);
      ssize_t len = readlink(link, path, sizeof path - 1);
      path[len > 0 ? len : 0] = 0;
      if (strstr(path, test_dir) != NULL) {
        snprintf(link, sizeof link, "/proc/self/task/%s/fdinfo/%d", task->d_name, file);
        size_t size;
        char *info = (char *)file_read(link, &size), *flags = strstr(info, "flags:");
        CHECK(flags != NULL && (strtoul(flags + 6, NULL, 8) & O_CLOEXEC) != 0);
        free(info);
        found++;
        here += atoi(task->d_name) == getpid();
      }
    }
  }
  closedir(tasks);
  CHECK(found >= 2 && here == 0);
  CHECK_OK(jitsym_close(session));
}

/* Code that vanishes while it is registered: by threads that unmap it, make it unreadable, or write to it. */
enum { PAGES = 64 };
static unsigned char *vanishing;
/* Somebody else's memory has come where a page was unmapped: it is left to them, and what is read there is not ours. */
static int vanish_over, taken;

static void *vanish(void *first) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned random = 1;
  while (!__atomic_load_n(&vanish_over, __ATOMIC_SEQ_CST) && !__atomic_load_n(&taken, __ATOMIC_SEQ_CST)) {
    random = random * 1664525 + 1013904223;
    unsigned char *at = (unsigned char *)first + (random >> 8) % (PAGES / 2) * page;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    switch (random >> 24 & 3) {
      case 0: CHECK(mprotect(at, page, PROT_NONE) == 0); break;
      case 1:
        CHECK(munmap(at, page) == 0);
        flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        break;
      case 2: CHECK(madvise(at, page, MADV_DONTNEED) == 0); break;
      case 3: memset(at, 0xcc, page / 2); break;
    }
    if (test_light) {
      /* valgrind runs one thread at a time: the others would hardly ever find it gone. */
      test_sleep_ms(1);
    }
    if (mmap(at, page, PROT_READ | PROT_WRITE, flags, -1, 0) != at) {
      __atomic_store_n(&taken, 1, __ATOMIC_SEQ_CST);
    } else {
      memset(at, 0xcc, page);
    }
  }
  return NULL;
}

static void on_signal(int number) {
  fprintf(stderr, "signal %d\n", number);
  _exit(1);
}

static void vanishes(void) {
  CHECK(signal(SIGSEGV, on_signal) != SIG_ERR && signal(SIGBUS, on_signal) != SIG_ERR);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  vanishing = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(vanishing != MAP_FAILED);
  jitsym_options options = test_options();
  options.max_wait_ms = 60000;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    CHECK(pthread_create(&threads[i], NULL, vanish, vanishing + PAGES / 2 * page * (size_t)i) == 0);
  }
  unsigned count = test_light ? 300 : 20000, refused = 0;
  for (unsigned i = 0; i < count || (test_stats_now(session).unreadable == 0 && !taken); i++) {
    uint64_t size = 1 + i * 7919 % (3 * page);
    jitsym_code code = test_code((uintptr_t)vanishing + i * 4099 % ((PAGES - 3) * page), size, "vanishing");
    code.bytes = NULL;
    /* Also as code whose bytes the writer reads later. */
    code.flags = i % 3 == 0 ? JITSYM_CODE_STABLE : 0;
    jitsym_id id;
    CHECK_OK(jitsym_register(session, &code, &id));
    if (i % 5 == 0) {
      jitsym_move_target target = test_target((uintptr_t)vanishing + i * 131 % ((PAGES - 3) * page));
      target.bytes = NULL;
      jitsym_status status = jitsym_move(session, id, &target);
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_UNKNOWN_ID);
      refused += status != JITSYM_OK;
    }
    if (i >= count) {
      test_sleep_ms(1);
    }
  }
  __atomic_store_n(&vanish_over, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 2; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  jitsym_stats stats = test_stats(session);
  CHECK((stats.unreadable > 0 || taken) && stats.registered >= count && stats.dropped == 0);
  /* Well formed, each of them, and nothing in them but what was there, or zeros. */
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == stats.jitdump_records);
  for (size_t i = 0; i < dump.count; i++) {
    for (uint64_t at = 0; dump.records[i].id == DUMP_LOAD && !taken && at < dump.records[i].size; at++) {
      CHECK(dump.records[i].code[at] == 0xcc || dump.records[i].code[at] == 0);
    }
  }
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  dump_failures();
  test_child(map_fails);
  test_child(old_map_stays);
  old_map_comes_back_or_not();
  test_child(fails_at_close);
  test_child(lost);
  test_child(replaced);
  test_child(bounds_in_options);
  test_child(bounds_in_environment);
  test_child(unbounded);
  removals();
  plants();
  plants_beside();
  test_child(descriptors_end_with_exec);
  test_child(vanishes);
  return test_end();
}
