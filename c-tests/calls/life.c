/* The life of sessions, code and files: what is in the files, when, and what the options and the environment make of it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "jitsym_control.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;

static struct map map_of(jitsym *session) {
  return map_read(test_path(session, JITSYM_SINK_MAP).text);
}

static struct dump dump_of(jitsym *session) {
  return dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
}

static off_t size_of(const char *path) {
  struct stat status;
  CHECK(lstat(path, &status) == 0 && S_ISREG(status.st_mode));
  return status.st_size;
}

/* After the last session is closed a new one goes on with the same files, and with indices and ids that were not used. */
static void continues(void) {
  jitsym_id ids[3][4];
  char name[32];
  for (unsigned round = 0; round < 3; round++) {
    jitsym *session = test_open();
    for (unsigned i = 0; i < 4; i++) {
      snprintf(name, sizeof name, "round %u, %u", round, i);
      ids[round][i] = test_register(session, ADDR + 0x1000 * round + 0x100 * i, 0x80, name);
    }
    /* What an earlier session registered ended with it. */
    if (round > 0) {
      CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, ids[round - 1][0]));
    }
    CHECK_OK(jitsym_close(session));

    struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
    struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
    CHECK(dump.pid == (uint32_t)getpid());
    CHECK(dump_count(&dump, DUMP_LOAD) == 4 * (round + 1) && dump.count == 4 * (round + 1));
    CHECK(map.count == 4 * (round + 1));
    uint64_t index = 0;
    for (unsigned earlier = 0; earlier <= round; earlier++) {
      for (unsigned i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "round %u, %u", earlier, i);
        const struct dump_record *load = dump_load(&dump, name, 0);
        CHECK(load != NULL && load->size == 0x80 && memcmp(load->code, test_bytes, 0x80) == 0);
        CHECK(load->addr == ADDR + 0x1000 * earlier + 0x100 * i);
        CHECK((earlier == 0 && i == 0) || load->index > index);
        index = load->index;
        CHECK(strcmp(map_name(&map, load->addr + 0x7f), name) == 0);
        CHECK(map_find(&map, load->addr + 0x80) == NULL);
      }
    }
    map_free(&map);
    dump_free(&dump);
  }
  for (unsigned i = 0; i < 12; i++) {
    for (unsigned other = 0; other < i; other++) {
      CHECK(ids[i / 4][i % 4] != ids[other / 4][other % 4]);
    }
  }
}

/* Two sessions share files, ids and code; the files are finished only with the last. */
static void two_sessions(void) {
  setenv("JITSYM_DIR", test_dir, 1);
  jitsym *first = test_open(), *second = NULL, *third = NULL;
  jitsym_options options = test_options();
  CHECK_OK(jitsym_init(&options, &second));
  CHECK_OK(jitsym_init(NULL, &third));
  CHECK(first != second && second != third && third != first);
  CHECK(strcmp(test_path(first, JITSYM_SINK_MAP).text, test_path(third, JITSYM_SINK_MAP).text) == 0);

  jitsym_id a = test_register(first, ADDR, 0x100, "of the first");
  jitsym_id b = test_register(second, ADDR + 0x1000, 0x100, "of the second");
  jitsym_id c = test_register(first, ADDR + 0x2000, 0x100, "also of the first");
  CHECK(a != b && b != c && a != c);
  CHECK_OK(jitsym_close(first));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_flush(first, 0));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(first));

  /* Code outlives the session that registered it. */
  CHECK(test_stats(second).live == 3);
  CHECK_OK(jitsym_unregister(second, a));
  jitsym_move_target target = test_target(ADDR + 0x3000);
  CHECK_OK(jitsym_move(third, c, &target));
  jitsym_stats stats = test_stats(third);
  CHECK(stats.live == 2 && stats.registered == 3 && stats.moved == 1 && stats.unregistered == 1);
  CHECK_OK(jitsym_close(second));
  test_register(third, ADDR + 0x4000, 0x100, "of the third");
  CHECK_OK(jitsym_close(third));

  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == 5 && dump_load(&dump, "of the third", 0) != NULL);
  dump_free(&dump);
  /* Many at once, and no handle twice. */
  enum { MANY = 16 };
  jitsym *many[MANY];
  for (int i = 0; i < MANY; i++) {
    many[i] = test_open();
    for (int other = 0; other < i; other++) {
      CHECK(many[i] != many[other]);
    }
  }
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(test_flush(many[MANY - 1]));
    CHECK_OK(jitsym_close(many[i]));
  }
}

/* After a flush the bytes are in the files, whatever happens to the process then. */
static void flush_leaves(void) {
  jitsym *session = test_open();
  uint32_t timeouts[] = {0, 60000, UINT32_MAX, 100000};
  char name[32];
  for (unsigned i = 0; i < 200; i++) {
    snprintf(name, sizeof name, "flushed %u", i);
    uint64_t before = test_now();
    test_register(session, ADDR + 0x100 * i, 0x40 + i % 64, name);
    uint64_t after = test_now();
    if (i % 10 == 0) {
      CHECK_OK(jitsym_flush(session, timeouts[i / 10 % 4]));
      struct dump dump = dump_of(session);
      const struct dump_record *load = dump_load(&dump, name, 0);
      CHECK(load != NULL && load->tid == (uint32_t)getpid() && load->size == 0x40 + i % 64);
      CHECK(load->time + TEST_CLOCK_ERROR >= before && load->time <= after + TEST_CLOCK_ERROR && dump.flags == 0);
      CHECK(dump_count(&dump, DUMP_LOAD) == i + 1);
      struct map map = map_of(session);
      CHECK(strcmp(map_name(&map, ADDR + 0x100 * i), name) == 0 && map.count == i + 1);
      jitsym_stats stats = test_stats(session);
      CHECK(stats.registered == i + 1 && stats.live == i + 1 && stats.jitdump_records == i + 1);
      CHECK(stats.map_entries == i + 1 && stats.jitdump_bytes == dump.size - DUMP_HEADER && stats.dropped == 0);
      CHECK((off_t)stats.map_bytes >= size_of(test_path(session, JITSYM_SINK_MAP).text));
      map_free(&map);
      dump_free(&dump);
    }
  }
  CHECK_OK(test_flush(session));
  kill(getpid(), SIGKILL);
}

static void flush_survives_kill(void) {
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    flush_leaves();
  }
  int status = test_wait(child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  struct dump dump = dump_read(test_path_of(child, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path_of(child, JITSYM_SINK_MAP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == 200 && map.count == 200);
  dump_free(&dump);
  map_free(&map);
}

/* A flush with a short time allowed either is done or says that it is not; the work goes on in any case. */
static void flush_times_out(void) {
  jitsym_options options = test_options();
  options.max_wait_ms = 20000;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  unsigned count = test_light ? 200 : 2000;
  for (unsigned i = 0; i < count; i++) {
    test_register(session, ADDR + 0x10000 * i, 0x4000, "big");
  }
  jitsym_status status = jitsym_flush(session, 1);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_TIMEOUT);
  CHECK_OK(test_flush(session));
  struct dump dump = dump_of(session);
  CHECK(dump_count(&dump, DUMP_LOAD) == count);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void name_is(jitsym *session, uint64_t addr, const char *name) {
  CHECK_OK(test_flush(session));
  struct map map = map_of(session);
  if (strcmp(map_name(&map, addr), name) != 0) {
    fprintf(stderr, "%#llx is \"%s\", expected \"%s\"\n", (unsigned long long)addr, map_name(&map, addr), name);
  }
  CHECK(strcmp(map_name(&map, addr), name) == 0);
  map_free(&map);
}

/* With memory for a few records only: what finds no room is refused and counted, and all that was taken is written. */
static void drops(uint32_t flags) {
  jitsym_options options = test_options();
  options.flags = flags;
  options.max_memory = 1;
  options.max_wait_ms = 1;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  unsigned taken = 0, dropped = 0, count = test_light ? 300 : 3000;
  char name[32];
  for (unsigned i = 0; i < count; i++) {
    snprintf(name, sizeof name, "number %u", i);
    jitsym_code code = test_code(ADDR + 0x10000 * i, 0x8000, name);
    jitsym_id id = 0x5555;
    jitsym_status status = jitsym_register(session, &code, &id);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
    CHECK((id == 0x5555) == (status == JITSYM_ERR_DROPPED));
    taken += status == JITSYM_OK;
    dropped += status == JITSYM_ERR_DROPPED;
    if (status == JITSYM_OK && i % 2 == 0) {
      status = jitsym_unregister(session, id);
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
      dropped += status == JITSYM_ERR_DROPPED;
    }
  }
  jitsym_stats stats = test_stats(session);
  CHECK(taken > 0 && stats.registered == taken && stats.dropped == dropped && stats.jitdump_records == taken);
  struct dump dump = dump_of(session);
  CHECK(dump_count(&dump, DUMP_LOAD) == taken);
  dump_free(&dump);
  /* There is room again. */
  test_register(session, ADDR, 0x40, "after the flood");
  CHECK_OK(jitsym_close(session));
}

static void drops_after_waiting(void) {
  drops(0);
}

static void drops_at_once(void) {
  drops(JITSYM_INIT_DROP_WHEN_FULL);
}

/* Code over live code: the newest wins, the older is gone, and every address has one name (map_read checks that). */
static void overlaps(void) {
  jitsym *session = test_open();
  jitsym_id old = test_register(session, ADDR, 0x100, "old");
  CHECK(test_stats(session).overwritten == 0);
  jitsym_id upper = test_register(session, ADDR + 0x80, 0x100, "upper");
  jitsym_stats stats = test_stats(session);
  CHECK(stats.overwritten == 1 && stats.live == 1 && stats.unregistered == 0 && stats.registered == 2);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, old));
  jitsym_move_target target = test_target(ADDR + 0x9000);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, old, &target));
  /* What is not used again of the old code keeps its name, for the samples that were taken in it. */
  name_is(session, ADDR, "old");
  name_is(session, ADDR + 0x7f, "old");
  name_is(session, ADDR + 0x80, "upper");
  name_is(session, ADDR + 0x17f, "upper");
  name_is(session, ADDR + 0x180, "");

  /* In the middle of other code, which is split. */
  jitsym_id inner = test_register(session, ADDR + 0xc0, 0x10, "inner");
  CHECK(test_stats(session).overwritten == 2);
  name_is(session, ADDR + 0xbf, "upper");
  name_is(session, ADDR + 0xc0, "inner");
  name_is(session, ADDR + 0xcf, "inner");
  name_is(session, ADDR + 0xd0, "upper");
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, upper));

  /* Over all of it, from before to behind. */
  jitsym_id cover = test_register(session, ADDR - 0x100, 0x1000, "cover");
  stats = test_stats(session);
  CHECK(stats.overwritten == 3 && stats.live == 1);
  struct map map = map_of(session);
  CHECK(map.count == 1 && strcmp(map.entries[0].name, "cover") == 0);
  map_free(&map);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, inner));

  /* Code that was unregistered is not overwritten: it was gone before. Its name stays until the bytes are used. */
  CHECK_OK(jitsym_unregister(session, cover));
  name_is(session, ADDR, "cover");
  test_register(session, ADDR, 0x1000, "next");
  stats = test_stats(session);
  CHECK(stats.overwritten == 3 && stats.unregistered == 1 && stats.live == 1);
  name_is(session, ADDR - 1, "cover");
  name_is(session, ADDR, "next");

  /* Neighbours that touch do not overlap. */
  test_register(session, ADDR + 0x1000, 0x10, "behind");
  CHECK(test_stats(session).overwritten == 3 && test_stats(session).live == 2);

  /* The same place over and over, as a cache does: the last one has it, and the dump has them all. */
  char name[32];
  for (unsigned i = 0; i < 50; i++) {
    snprintf(name, sizeof name, "generation %u", i);
    test_register(session, ADDR + 0x20000, 0x20, name);
  }
  name_is(session, ADDR + 0x20000, "generation 49");
  struct dump dump = dump_of(session);
  for (unsigned i = 0; i < 50; i++) {
    snprintf(name, sizeof name, "generation %u", i);
    CHECK(dump_load(&dump, name, 0) != NULL);
  }
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static const jitsym_line two_lines[] = {{0, 10, 3, 0, "/src/first.js"}, {0x20, 11, 0, 0, "/src/second.js"}};

/* Code with all that can be said of it. */
static jitsym_code full_code(uint64_t addr, const char *name, const jitsym_unwind *unwind) {
  jitsym_code code = test_code(addr, 0x40, name);
  code.unwind = unwind;
  code.lines = two_lines;
  code.line_count = 2;
  return code;
}

/* A LOAD with its line table and its unwind tables before it. */
static void check_full(const struct dump_record *load, uint64_t addr) {
  CHECK(load != NULL && load->addr == addr && load->size == 0x40);
  CHECK(load->debug != NULL && load->debug->lines == 3);
  struct dump_line line = dump_line(load->debug, 0);
  CHECK(line.addr == addr && line.line == 10 && line.column == 3 && strcmp(line.file, "/src/first.js") == 0);
  line = dump_line(load->debug, 1);
  CHECK(line.addr == addr + 0x20 && line.line == 11 && line.column == 0 && strcmp(line.file, "/src/second.js") == 0);
  /* A closing row, because readers give the last row to all that follows. */
  line = dump_line(load->debug, 2);
  CHECK(line.addr == addr + 0x40);
  CHECK(load->unwind != NULL && load->unwind->hdr_size > 0 && load->unwind->unwind_size > load->unwind->hdr_size);
  /* .eh_frame first, then .eh_frame_hdr, version 1: what perf reads, other than its specification says. */
  CHECK(load->unwind->unwind_bytes[load->unwind->unwind_size - load->unwind->hdr_size] == 1);
}

/* A move is a fresh LOAD with the same name, lines and unwind tables; the id stays. */
static void moves(void) {
  jitsym *session = test_open();
  jitsym_unwind unwind = test_unwind();
  jitsym_code code = full_code(ADDR, "mover", &unwind);
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  unsigned char other[0x40];
  memset(other, 0x77, sizeof other);
  jitsym_move_target target = test_target(ADDR + 0x1000);
  target.bytes = other;
  CHECK_OK(jitsym_move(session, id, &target));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.moved == 1 && stats.live == 1 && stats.registered == 1 && stats.overwritten == 0);
  struct dump dump = dump_of(session);
  CHECK(dump_count(&dump, DUMP_LOAD) == 2 && dump_count(&dump, DUMP_MOVE) == 0);
  const struct dump_record *before = dump_load(&dump, "mover", 0), *after = dump_load(&dump, "mover", 1);
  check_full(before, ADDR);
  check_full(after, ADDR + 0x1000);
  CHECK(memcmp(before->code, test_bytes, 0x40) == 0 && memcmp(after->code, other, 0x40) == 0);
  CHECK(after->index > before->index);
  dump_free(&dump);
  name_is(session, ADDR, "mover");
  name_is(session, ADDR + 0x1000, "mover");

  /* The old place is free for others. */
  test_register(session, ADDR, 0x40, "tenant");
  CHECK(test_stats(session).overwritten == 0);
  name_is(session, ADDR, "tenant");
  name_is(session, ADDR + 0x1000, "mover");

  /* Onto itself, a little further, and over other code. */
  target = test_target(ADDR + 0x1010);
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK(test_stats(session).overwritten == 0 && test_stats(session).live == 2);
  name_is(session, ADDR + 0x104f, "mover");
  target = test_target(ADDR + 0x20);
  CHECK_OK(jitsym_move(session, id, &target));
  stats = test_stats(session);
  CHECK(stats.overwritten == 1 && stats.live == 1 && stats.moved == 3);
  name_is(session, ADDR + 0x1f, "tenant");
  name_is(session, ADDR + 0x20, "mover");
  /* Where it already is. */
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK(test_stats(session).live == 1);
  CHECK_OK(jitsym_unregister(session, id));
  stats = test_stats(session);
  CHECK(stats.live == 0 && stats.unregistered == 1);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id, &target));
  CHECK_OK(jitsym_close(session));
}

/* A whole cache in one call: what starts or ends in the range, or covers it. */
static void ranges(void) {
  jitsym *session = test_open();
  jitsym_id left = test_register(session, ADDR, 0x100, "left");
  jitsym_id ends_in = test_register(session, ADDR + 0x100, 0x101, "ends in it");
  jitsym_id inside = test_register(session, ADDR + 0x300, 0x100, "inside");
  jitsym_id starts_in = test_register(session, ADDR + 0x4ff, 0x101, "starts in it");
  jitsym_id right = test_register(session, ADDR + 0x600, 0x100, "right");
  jitsym_id covers = test_register(session, ADDR + 0x10000, 0x1000, "covers");
  CHECK_OK(jitsym_unregister_range(session, ADDR + 0x200, 0x300, 0));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.unregistered == 3 && stats.live == 3 && stats.overwritten == 0);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, ends_in));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, inside));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, starts_in));
  CHECK_OK(jitsym_unregister_range(session, ADDR + 0x10800, 1, 0));
  CHECK(test_stats(session).unregistered == 4);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, covers));
  /* Nothing is there: no error, and nothing happens. */
  CHECK_OK(jitsym_unregister_range(session, ADDR + 0x200, 0x300, 0));
  CHECK_OK(jitsym_unregister_range(session, 1, 1, 0));
  CHECK(test_stats(session).unregistered == 4);
  /* Names stay until the bytes are used again. */
  name_is(session, ADDR + 0x300, "inside");
  name_is(session, ADDR + 0x10000, "covers");
  CHECK_OK(jitsym_unregister(session, left));
  CHECK_OK(jitsym_unregister(session, right));
  /* A moved code is where it moved to. */
  jitsym_id mover = test_register(session, ADDR + 0x20000, 0x100, "mover");
  jitsym_move_target target = test_target(ADDR + 0x30000);
  CHECK_OK(jitsym_move(session, mover, &target));
  CHECK_OK(jitsym_unregister_range(session, ADDR + 0x20000, 0x100, 0));
  CHECK(test_stats(session).live == 1);
  CHECK_OK(jitsym_unregister_range(session, ADDR + 0x30000, 0x100, 0));
  CHECK(test_stats(session).live == 0);
  /* All that there is. */
  for (unsigned i = 0; i < 100; i++) {
    test_register(session, ADDR + 0x100 * i, 0x100, "cache");
  }
  CHECK_OK(jitsym_unregister_range(session, 0, UINT64_MAX, 0));
  stats = test_stats(session);
  CHECK(stats.live == 0 && stats.unregistered == 107);
  CHECK_OK(jitsym_close(session));
}

static void texts(void) {
  char text[256] = "something";
  CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
  CHECK(text[0] == 0);
  jitsym *session = test_open();
  strcpy(text, "something");
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(text[0] == 0);
  /* The buffer that the header promises is enough, and one that just fits. */
  char path[JITSYM_DIR_MAX + 33];
  static const uint32_t sinks[] = {JITSYM_SINK_MAP, JITSYM_SINK_JITDUMP};
  for (int i = 0; i < 2; i++) {
    CHECK_OK(jitsym_path(session, sinks[i], path, sizeof path));
    CHECK(file_exists(path));
    CHECK_OK(jitsym_path(session, sinks[i], path, strlen(path) + 1));
    CHECK_STATUS(JITSYM_ERR_BUFFER, jitsym_path(session, sinks[i], path, strlen(path)));
  }
  CHECK_OK(jitsym_close(session));
}

/* Opens with options and environment as they are, and checks that these sinks run in these directories, and no others. */
static void runs(jitsym_options *options, uint32_t sinks, const char *map_dir, const char *jitdump_dir) {
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(options, &session));
  jitsym_id id = 0x5555;
  jitsym_code code = test_code(ADDR, 0x40, "sinks");
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK((id == 0) == (sinks == 0) && id != 0x5555);
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.sinks_running == sinks && stats.sinks_failed == 0);
  CHECK(stats.registered == (sinks != 0));
  char path[TEST_PATH_MAX];
  if (sinks & JITSYM_SINK_MAP) {
    struct map map = map_read(test_path_in(session, JITSYM_SINK_MAP, map_dir).text);
    CHECK(map.count == 1);
    map_free(&map);
  } else {
    CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
  }
  if (sinks & JITSYM_SINK_JITDUMP) {
    struct dump dump = dump_read(test_path_in(session, JITSYM_SINK_JITDUMP, jitdump_dir).text);
    CHECK(dump.count == 1);
    dump_free(&dump);
  } else {
    CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_JITDUMP, path, sizeof path));
  }
  if (sinks == 0) {
    jitsym_move_target target = test_target(ADDR + 0x1000);
    CHECK_OK(jitsym_move(session, id, &target));
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_OK(jitsym_unregister_range(session, ADDR, 0x40, 0));
  }
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_flush(session, 0));
}

enum { BOTH = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP };

/* One choice of sinks. Every one is tried in a process of its own, with a directory of its own. */
static struct choice {
  /* From the options. */
  uint32_t sinks;
  uint32_t flags;
  /* JITSYM in the environment. */
  const char *env;
  uint32_t expected;
} choice;

static void choose(void) {
  struct test_path dir = test_subdir("choice", 1);
  test_dir = dir.text;
  int files = test_files_in(test_dir);
  if (choice.env != NULL) {
    setenv("JITSYM", choice.env, 1);
  }
  jitsym_options options = test_options();
  options.sinks = choice.sinks;
  options.flags = choice.flags;
  runs(&options, choice.expected, test_dir, test_dir);
  CHECK(test_files_in(test_dir) == files + !!(choice.expected & JITSYM_SINK_MAP) + !!(choice.expected & JITSYM_SINK_JITDUMP));
  /* Off, nothing was started either. */
  CHECK(choice.expected != 0 || test_threads() == 1);
}

static void choices(void) {
  static const struct choice all[] = {
      {0, 0, NULL, TEST_DEFAULT_SINKS},
      {JITSYM_SINK_MAP, 0, NULL, JITSYM_SINK_MAP},
      {JITSYM_SINK_JITDUMP, 0, NULL, JITSYM_SINK_JITDUMP},
      {BOTH, 0, NULL, BOTH},
      {0, 0, "map", JITSYM_SINK_MAP},
      {0, 0, "jitdump", JITSYM_SINK_JITDUMP},
      {0, 0, "map,jitdump", BOTH},
      {0, 0, "jitdump,map", BOTH},
      {0, 0, "off", 0},
      /* The options win where they say something. */
      {JITSYM_SINK_MAP, 0, "jitdump", JITSYM_SINK_MAP},
      {JITSYM_SINK_JITDUMP, 0, "off", JITSYM_SINK_JITDUMP},
      /* Unless the environment is to win. */
      {JITSYM_SINK_MAP, JITSYM_INIT_ENV_WINS, "jitdump", JITSYM_SINK_JITDUMP},
      {BOTH, JITSYM_INIT_ENV_WINS, "off", 0},
      {JITSYM_SINK_MAP, JITSYM_INIT_ENV_WINS, NULL, JITSYM_SINK_MAP},
      {0, JITSYM_INIT_OFF_BY_DEFAULT, NULL, 0},
      {0, JITSYM_INIT_OFF_BY_DEFAULT, "map", JITSYM_SINK_MAP},
      {0, JITSYM_INIT_OFF_BY_DEFAULT, "map,jitdump", BOTH},
      {0, JITSYM_INIT_OFF_BY_DEFAULT, "off", 0},
      {JITSYM_SINK_JITDUMP, JITSYM_INIT_OFF_BY_DEFAULT, NULL, JITSYM_SINK_JITDUMP},
      {JITSYM_SINK_MAP, JITSYM_INIT_OFF_BY_DEFAULT | JITSYM_INIT_ENV_WINS, "off", 0},
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    choice = all[i];
    test_child(choose);
  }
}

static void directory_from_environment(void) {
  struct test_path dir = test_subdir("env", 1);
  setenv("JITSYM_DIR", dir.text, 1);
  runs(NULL, TEST_DEFAULT_SINKS, dir.text, dir.text);
}

static void directory_from_options(void) {
  struct test_path dir = test_subdir("env", 1);
  setenv("JITSYM_DIR", dir.text, 1);
  jitsym_options options = test_options();
  options.jitdump_dir = NULL;
  runs(&options, TEST_DEFAULT_SINKS, test_dir, dir.text);
}

static void directory_environment_wins(void) {
  struct test_path dir = test_subdir("env", 1);
  setenv("JITSYM_DIR", dir.text, 1);
  jitsym_options options = test_options();
  options.flags = JITSYM_INIT_ENV_WINS;
  runs(&options, TEST_DEFAULT_SINKS, dir.text, dir.text);
}

/* JITDUMPDIR is what perf's own agents look at; it has no say over the map. */
static void directory_jitdumpdir(void) {
  struct test_path dir = test_subdir("jitdumpdir", 1);
  setenv("JITDUMPDIR", dir.text, 1);
  jitsym_options options = test_options();
  options.jitdump_dir = NULL;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  test_register(session, ADDR, 0x40, "below");
  CHECK_OK(test_flush(session));
  test_path(session, JITSYM_SINK_MAP);
  char path[TEST_PATH_MAX], file[64];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_JITDUMP, path, sizeof path));
  CHECK(strncmp(path, dir.text, strlen(dir.text)) == 0 && path[strlen(dir.text)] == '/');
  snprintf(file, sizeof file, "/jit-%d.dump", (int)getpid());
  CHECK(strcmp(strrchr(path, '/'), file) == 0);
  struct dump dump = dump_read(path);
  CHECK(dump.count == 1);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void no_unwind(void) {
  jitsym *session = test_open_flags(0, JITSYM_INIT_NO_UNWIND);
  jitsym_unwind unwind = test_unwind();
  jitsym_code code = full_code(ADDR, "no tables", &unwind);
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  struct dump dump = dump_of(session);
  CHECK(dump_count(&dump, DUMP_UNWIND) == 0 && dump_count(&dump, DUMP_DEBUG) == 1);
  CHECK(dump_load(&dump, "no tables", 0) != NULL);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void simpleperf(void) {
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP;
  options.map_dialect = JITSYM_MAP_SIMPLEPERF;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  test_register(session, ADDR, 0x40, "first");
  test_register(session, ADDR + 0x20, 0x40, "second");
  CHECK_OK(test_flush(session));
  char path[TEST_PATH_MAX];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
  CHECK(strncmp(path, test_dir, strlen(test_dir)) == 0);
  struct map map = map_read_dialect(path, "0x");
  CHECK(map.count == 2 && strcmp(map_name(&map, ADDR + 0x1f), "first") == 0);
  CHECK(strcmp(map_name(&map, ADDR + 0x20), "second") == 0);
  map_free(&map);
  CHECK_OK(jitsym_close(session));
}

static struct {
  uint32_t file_mode;
  mode_t mask;
  mode_t expected;
} mode;

static void file_mode_is(void) {
  umask(mode.mask);
  jitsym_options options = test_options();
  options.file_mode = mode.file_mode;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  /* The map is written anew for the second one: the new file is no more open than the first. */
  test_register(session, ADDR, 0x40, "first");
  CHECK_OK(test_flush(session));
  test_register(session, ADDR, 0x40, "second");
  CHECK_OK(test_flush(session));
  static const uint32_t sinks[] = {JITSYM_SINK_MAP, JITSYM_SINK_JITDUMP};
  for (int i = 0; i < 2; i++) {
    struct stat status;
    CHECK(stat(test_path(session, sinks[i]).text, &status) == 0);
    /* The sticky bit says that it is ours. */
    CHECK((status.st_mode & 07777) == (S_ISVTX | mode.expected));
  }
  name_is(session, ADDR, "second");
  CHECK_OK(jitsym_close(session));
}

static void file_modes(void) {
  static const mode_t all[][3] = {{0, 022, 0644}, {0600, 022, 0600}, {0640, 022, 0640}, {0, 077, 0600}, {0664, 022, 0644}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    mode.file_mode = all[i][0];
    mode.mask = all[i][1];
    mode.expected = all[i][2];
    test_child(file_mode_is);
  }
}

#if defined(__x86_64__)
/* perf sets this variable when it records with Intel PT: the clock is then the time stamp counter. */
static void arch_timestamp(void) {
  setenv("JITDUMP_USE_ARCH_TIMESTAMP", "1", 1);
  uint64_t begin = __rdtsc();
  jitsym *session = test_open();
  uint64_t before = __rdtsc();
  test_register(session, ADDR, 0x40, "counted");
  uint64_t after = __rdtsc();
  CHECK_OK(test_flush(session));
  struct dump dump = dump_of(session);
  CHECK(dump.flags == 1);
  const struct dump_record *load = dump_load(&dump, "counted", 0);
  CHECK(load != NULL && load->time >= before && load->time <= after);
  CHECK(dump.time >= begin && dump.time <= before);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}
#endif

/*
 * The end of a process cuts the write that it meets, but seldom visibly. So the writes themselves are watched: this stands in
 * front of the C library's function, and behind all exit handlers, the library's too, none may be under way or begin.
 */
static struct {
  int watched;
  int under_way;
  int over;
  unsigned slow_ms;
} disk;

ssize_t writev(int file, const struct iovec *parts, int count) {
  __atomic_fetch_add(&disk.under_way, 1, __ATOMIC_SEQ_CST);
  CHECK(!__atomic_load_n(&disk.over, __ATOMIC_SEQ_CST));
  if (disk.slow_ms != 0) {
    test_sleep_ms(disk.slow_ms);
  }
  ssize_t written = syscall(SYS_writev, file, parts, count);
  __atomic_fetch_sub(&disk.under_way, 1, __ATOMIC_SEQ_CST);
  return written;
}

static void after_all_handlers(int status, void *unused) {
  (void)status, (void)unused;
  if (disk.watched) {
    __atomic_store_n(&disk.over, 1, __ATOMIC_SEQ_CST);
    CHECK(__atomic_load_n(&disk.under_way, __ATOMIC_SEQ_CST) == 0);
    /* For one that begins too late, so that it is found. */
    test_sleep_ms(20);
  }
}

/* What is registered first runs last, and the library registers its handler when it is loaded: this is earlier. */
static void before_all_constructors(void) {
  on_exit(after_all_handlers, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const at_start)(void) = before_all_constructors;

/* A program that ends with its session open: what is pending is written. */
static void ends_open(void) {
  disk.watched = 1;
  jitsym *session = test_open();
  char name[32];
  for (unsigned i = 0; i < 500; i++) {
    snprintf(name, sizeof name, "at exit %u", i);
    test_register(session, ADDR + 0x100 * i, 0x80, name);
  }
}

/* Each thread has its own place: what two of them register there at the same time nobody could tell apart. */
static uint64_t own_place(void) {
  static _Atomic unsigned threads;
  return ADDR + 0x1000000 * (uint64_t)++threads;
}

static void *registers_forever(void *session) {
  uint64_t place = own_place();
  for (unsigned i = 0;; i++) {
    jitsym_code code = test_code(place + 0x100 * (i % 4096), 0x80, "forever");
    jitsym_status status = jitsym_register(session, &code, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_DROPPED);
  }
  return NULL;
}

static void *flushes_forever(void *session) {
  uint64_t place = own_place();
  for (unsigned i = 0;; i++) {
    jitsym_code code = test_code(place + 0x100 * (i % 4096), 0x80, "flushed");
    jitsym_status status = jitsym_register(session, &code, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_DROPPED);
    status = jitsym_flush(session, 0);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_TIMEOUT);
  }
  return NULL;
}

static void ends_beside(void *(*body)(void *)) {
  disk.watched = 1;
  jitsym *session = test_open();
  char name[32];
  for (unsigned i = 0; i < 50; i++) {
    snprintf(name, sizeof name, "at exit %u", i);
    test_register(session, ADDR + 0x100 * i, 0x80, name);
  }
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, session) == 0);
    CHECK(pthread_detach(thread) == 0);
  }
  test_sleep_ms(30);
}

/* The same while other threads register: they may come too late, but no record is torn and none of before is lost. */
static void ends_busy(void) {
  ends_beside(registers_forever);
}

/* The same while other threads also flush: the exit does not wait for what they ask for. */
static void ends_flushing(void) {
  ends_beside(flushes_forever);
}

/* With a disk too slow for the time that an exit may take: what is in the file then is whole. */
static void ends_slowly(void) {
  disk.watched = 1;
  disk.slow_ms = 3000;
  jitsym *session = test_open();
  for (unsigned i = 0; i < 200; i++) {
    test_register(session, ADDR + 0x10000 * i, TEST_CODE_MAX, "slowly");
  }
}

static void exits(void) {
  static void (*const ends[])(void) = {ends_open, ends_busy, ends_flushing};
  for (int busy = 0; busy < 3; busy++) {
    pid_t child = test_child(ends[busy]);
    unsigned expected = busy ? 50 : 500;
    char name[32];
    struct dump dump = dump_read(test_path_of(child, JITSYM_SINK_JITDUMP).text);
    struct map map = map_read(test_path_of(child, JITSYM_SINK_MAP).text);
    CHECK(dump.pid == (uint32_t)child);
    for (unsigned i = 0; i < expected; i++) {
      snprintf(name, sizeof name, "at exit %u", i);
      const struct dump_record *load = dump_load(&dump, name, 0);
      CHECK(load != NULL && load->addr == ADDR + 0x100 * i);
      CHECK(strcmp(map_name(&map, load->addr), name) == 0);
    }
    CHECK(busy || (dump.count == expected && map.count == expected));
    map_free(&map);
    dump_free(&dump);
  }
  if (!test_light) {
    /* The rest is left in the spool, which goes with the test's directory. */
    setenv("JITSYM_SPOOL_DIR", test_dir, 1);
    pid_t child = test_child(ends_slowly);
    unsetenv("JITSYM_SPOOL_DIR");
    struct dump dump = dump_read(test_path_of(child, JITSYM_SINK_JITDUMP).text);
    CHECK(dump.count < 200 && dump.count == dump_count(&dump, DUMP_LOAD));
    dump_free(&dump);
  }
}

static volatile sig_atomic_t handled, handled_elsewhere;

static void note_signal(int number) {
  (void)number;
  handled++;
  handled_elsewhere += syscall(SYS_gettid) != getpid();
}

/*
 * The library's threads take no signal from the program, so that a handler never runs where the program does not expect
 * it: signals to the process that the program's only thread does not take wait until it does.
 */
static void signals_blocked(void) {
  static const int numbers[] = {SIGUSR1, SIGPROF, SIGALRM, SIGINT, SIGTERM, SIGCHLD, SIGHUP};
  jitsym *session = test_open();
  CHECK_OK(test_flush(session));
  CHECK(test_threads() == 3);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    CHECK(signal(numbers[i], note_signal) != SIG_ERR);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, numbers[i]);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    CHECK(kill(getpid(), numbers[i]) == 0);
    test_register(session, ADDR, 0x40, "wakes the writer");
    CHECK_OK(test_flush(session));
    test_sleep_ms(5);
    CHECK(handled == (int)i);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    TEST_AWAIT(handled != (int)i);
    CHECK(handled == (int)i + 1 && handled_elsewhere == 0);
  }
  CHECK_OK(jitsym_close(session));
  test_wait_for_end_of_thread();
}

/* Rows of a line table may come as the compiler has them: those of the paths that are seldom taken last, and corrected later. */
static void lines_in_any_order(void) {
  jitsym *session = test_open();
  enum { COUNT = 40 };
  jitsym_line lines[COUNT];
  memset(lines, 0, sizeof lines);
  for (uint32_t i = 0; i < COUNT; i++) {
    lines[i].offset = i * 7 % 20;
    lines[i].line = i + 1;
    lines[i].file = i % 3 == 0 ? "/src/first.js" : "/src/second.js";
  }
  jitsym_code code = test_code(0x10000, 64, "shuffled");
  code.lines = lines;
  code.line_count = COUNT;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK(test_stats_now(session).lines_left_out == 20);
  CHECK_OK(jitsym_close(session));
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  const struct dump_record *load = dump_load(&dump, "shuffled", 0);
  CHECK(load != NULL && load->debug != NULL && load->debug->lines == 21);
  for (uint32_t offset = 0; offset < 20; offset++) {
    /* Each offset comes twice, and the second time counts. */
    uint32_t last = 20;
    while (last * 7 % 20 != offset) {
      last++;
    }
    struct dump_line line = dump_line(load->debug, offset);
    CHECK(line.addr == 0x10000 + offset && line.line == (int32_t)last + 1 && strcmp(line.file, lines[last].file) == 0);
  }
  CHECK(dump_line(load->debug, 20).addr == 0x10000 + 64);
  dump_free(&dump);
}

/* The marker by which perf finds the dump: an executable mapping of its file, made by init and kept while the process is. */
static void marker(void) {
  struct test_path path = test_path_of(getpid(), JITSYM_SINK_JITDUMP);
  jitsym *session = test_open();
  for (int closed = 0; closed < 2; closed++) {
    CHECK(test_markers(path.text) == 1);
    if (!closed) {
      CHECK_OK(jitsym_close(session));
    }
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(continues);
  test_child(two_sessions);
  flush_survives_kill();
  test_child(flush_times_out);
  test_child(drops_after_waiting);
  test_child(drops_at_once);
  test_child(overlaps);
  test_child(moves);
  test_child(ranges);
  test_child(texts);
  test_child(lines_in_any_order);
  choices();
  test_child(directory_from_environment);
  test_child(directory_from_options);
  test_child(directory_environment_wins);
  test_child(directory_jitdumpdir);
  test_child(no_unwind);
  test_child(simpleperf);
  file_modes();
#if defined(__x86_64__)
  test_child(arch_timestamp);
#endif
  exits();
  test_child(signals_blocked);
  test_child(marker);
  return test_end();
}
