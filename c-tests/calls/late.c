/* Sinks that are started and stopped in a running process. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

enum { BOTH = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, OFF = JITSYM_INIT_OFF_BY_DEFAULT };
static const uint64_t ADDR = 0x6000000000;

static jitsym *open_off(uint32_t flags) {
  return test_open_flags(0, OFF | flags);
}

/* Files of this process in the directory of the test, or that of spools. */
static int own_files_in(const char *path) {
  char pid[32];
  snprintf(pid, sizeof pid, "-%d", (int)getpid());
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const char *at = strstr(entry->d_name, pid);
    count += at != NULL && strchr(".-", at[strlen(pid)]) != NULL;
  }
  closedir(dir);
  return count;
}

static int own_files(void) {
  return own_files_in(test_dir);
}

static int own_spools(void) {
  return own_files_in(getenv("JITSYM_SPOOL_DIR"));
}

static uint32_t running(jitsym *session) {
  return test_stats_now(session).sinks_running;
}

static uint64_t held(jitsym *session) {
  jitsym_stats stats = test_stats_now(session);
  return stats.memory + stats.memory_held;
}

static struct dump own_dump(void) {
  return dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
}

static struct map own_map(void) {
  return map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
}

/* How many LOADs have a name. */
static size_t loads(const char *name) {
  struct dump dump = own_dump();
  size_t count = 0;
  while (dump_load(&dump, name, count) != NULL) {
    count++;
  }
  dump_free(&dump);
  return count;
}

/* Executable memory with code in it, as a compiler leaves it. */
static unsigned char *compiled(size_t size) {
  unsigned char *code = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(code != MAP_FAILED);
  for (size_t i = 0; i < size; i++) {
    code[i] = (unsigned char)(i * 7 + 1);
  }
  return code;
}

static uint64_t address(const void *code) {
  return (uint64_t)(uintptr_t)code;
}

/* Registers code with all that can be said of it. */
static jitsym_id register_all(jitsym *session, const unsigned char *bytes, uint64_t size, const char *name) {
  jitsym_unwind unwind = test_unwind();
  jitsym_line lines[] = {{0, 7, 3, 0, "/src/late.guest"}, {16, 8, 5, 0, "/src/late.guest"}};
  jitsym_code code = test_code(address(bytes), size, name);
  code.bytes = bytes;
  code.unwind = &unwind;
  code.flags = JITSYM_CODE_GAP;
  code.lines = lines;
  code.line_count = 2;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

/* That a dump has this code once, with everything, at its place. */
static void check_whole(const unsigned char *bytes, uint64_t size, const char *name, size_t number) {
  struct dump dump = own_dump();
  const struct dump_record *load = dump_load(&dump, name, number);
  CHECK(load != NULL && dump_load(&dump, name, number + 1) == NULL);
  CHECK(load->addr == address(bytes) && load->size == size && memcmp(load->code, bytes, size) == 0);
  CHECK(load->unwind != NULL && load->unwind->mapped_size == load->unwind->unwind_size);
  CHECK(load->debug != NULL && load->debug->lines == 3 && load->debug->addr == load->addr);
  struct dump_line line = dump_line(load->debug, 1);
  CHECK(line.addr == load->addr + 16 && line.line == 8 && line.column == 5);
  CHECK(strcmp(line.file, "/src/late.guest") == 0);
  CHECK(dump_line(load->debug, 2).addr == load->addr + size);
  dump_free(&dump);
}

/* Nothing was asked for in advance: the sinks begin empty, and the end leaves nothing behind but the files. */
static void from_off(void) {
  int descriptors = test_files_in("/proc/self/fd");
  jitsym *session = open_off(0);
  jitsym_code code = test_code(ADDR, 64, "before");
  jitsym_id id = 1, other = 1;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id == 0 && own_files() == 0 && own_spools() == 0 && held(session) == 0);
  test_wait_for_end_of_thread();

  for (int round = 0; round < 3; round++) {
    CHECK_OK(jitsym_enable(session, 0));
    /* A map that was there before may be written anew just now. */
    CHECK_OK(test_flush(session));
    CHECK(running(session) == TEST_DEFAULT_SINKS && own_files() == 2 && own_spools() == 1 && held(session) > 0);
    CHECK(test_stats(session).spool == JITSYM_SPOOL_SHARED);
    CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, 0));
    CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, round == 0 ? 99 : other));
    CHECK(loads("before") == (size_t)round && loads("during") == (size_t)round);
    /* The host registers again what it has. */
    id = test_register(session, ADDR, 64, "before");
    other = test_register(session, ADDR + 0x1000, 64, "during");
    uint64_t records = test_stats(session).jitdump_records;
    CHECK_OK(jitsym_enable(session, BOTH));
    CHECK_OK(jitsym_enable(session, JITSYM_SINK_MAP));
    CHECK(test_stats(session).jitdump_records == records && test_stats(session).live == 2);
    CHECK(test_markers(test_path(session, JITSYM_SINK_JITDUMP).text) == 1);

    CHECK_OK(jitsym_disable(session, 0));
    CHECK(running(session) == 0 && own_files() == 2 && own_spools() == 0 && held(session) == 0);
    CHECK(test_stats(session).live == 0 && test_stats(session).spool == JITSYM_SPOOL_NONE);
    test_wait_for_end_of_thread();
    CHECK(test_files_in("/proc/self/fd") == descriptors);
    char path[TEST_PATH_MAX];
    CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
    CHECK_OK(jitsym_disable(session, BOTH));
    /* What comes now is of no use, and does no harm. */
    CHECK_OK(jitsym_unregister(session, other));
    CHECK_OK(jitsym_register(session, &code, &id));
    CHECK(id == 0);
    jitsym_move_target target = test_target(ADDR + 0x2000);
    CHECK_OK(jitsym_move(session, other, &target));
    CHECK_OK(jitsym_unregister_range(session, ADDR, 4096, 0));
    CHECK_OK(jitsym_flush(session, 1000));
  }
  struct map map = own_map();
  CHECK(map.count == 2 && strcmp(map_name(&map, ADDR), "before") == 0);
  map_free(&map);
  CHECK_OK(jitsym_close(session));
  CHECK(loads("before") == 3 && own_files() == 2);
}

/* What lived before is written with all that was said of it, and what died is not; and so on, off and on. */
static void remembered(void) {
  enum { SIZE = 64, PLACE = 1024 };
  unsigned char *memory = compiled(16 * PLACE);
  jitsym *session = open_off(JITSYM_INIT_REMEMBER);
  jitsym_id whole = register_all(session, memory, SIZE, "whole");
  jitsym_id bare = test_register(session, address(memory + PLACE), SIZE, "bare");
  jitsym_id gone = register_all(session, memory + 2 * PLACE, SIZE, "gone");
  jitsym_id moved = register_all(session, memory + 3 * PLACE, SIZE, "moved");
  register_all(session, memory + 4 * PLACE, SIZE, "overwritten");
  jitsym_id newest = register_all(session, memory + 4 * PLACE + 32, SIZE, "newest");
  jitsym_id patched = register_all(session, memory + 5 * PLACE, SIZE, "patched");
  register_all(session, memory + 6 * PLACE, SIZE, "in a range");
  CHECK(whole != 0 && bare != 0 && newest != 0);
  CHECK_OK(jitsym_unregister(session, gone));
  CHECK_OK(jitsym_unregister_range(session, address(memory + 6 * PLACE), PLACE, 0));
  jitsym_move_target target = test_target(address(memory + 7 * PLACE));
  target.bytes = memory + 7 * PLACE;
  target.flags = JITSYM_CODE_GAP;
  CHECK_OK(jitsym_move(session, moved, &target));
  memory[5 * PLACE + 9] ^= 0xff;
  CHECK(test_stats(session).live == 5 && own_files() == 0);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, gone));

  uint64_t enabled = test_now();
  CHECK_OK(jitsym_enable(session, 0));
  check_whole(memory, SIZE, "whole", 0);
  check_whole(memory + 7 * PLACE, SIZE, "moved", 0);
  check_whole(memory + 4 * PLACE + 32, SIZE, "newest", 0);
  check_whole(memory + 5 * PLACE, SIZE, "patched", 0);
  struct dump dump = own_dump();
  CHECK(dump_count(&dump, DUMP_LOAD) == 5 && dump_load(&dump, "bare", 0)->unwind == NULL);
  CHECK(memcmp(dump_load(&dump, "bare", 0)->code, memory + PLACE, SIZE) == 0);
  for (size_t i = 0; i < dump.count; i++) {
    CHECK(dump.records[i].time + TEST_CLOCK_ERROR >= enabled);
  }
  dump_free(&dump);
  struct map map = own_map();
  CHECK(map.count == 5 && strcmp(map_name(&map, address(memory + 7 * PLACE)), "moved") == 0);
  CHECK(map_find(&map, address(memory + 3 * PLACE)) == NULL && map_find(&map, address(memory + 2 * PLACE)) == NULL);
  map_free(&map);

  /* They go on as any other: moved with all they have, and ended. */
  target.addr = address(memory + 8 * PLACE);
  target.bytes = memory + 8 * PLACE;
  CHECK_OK(jitsym_move(session, whole, &target));
  CHECK_OK(jitsym_unregister(session, newest));
  CHECK_OK(test_flush(session));
  check_whole(memory + 8 * PLACE, SIZE, "whole", 1);

  /* While they are off everything is still known. */
  CHECK_OK(jitsym_disable(session, 0));
  CHECK(running(session) == 0 && own_files() == 2);
  struct stat before, after;
  CHECK(stat(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text, &before) == 0);
  target.addr = address(memory + 9 * PLACE);
  target.bytes = memory + 9 * PLACE;
  CHECK_OK(jitsym_move(session, moved, &target));
  CHECK_OK(jitsym_unregister(session, patched));
  register_all(session, memory + 5 * PLACE, SIZE, "in its place");
  register_all(session, memory + 10 * PLACE, SIZE, "short-lived");
  register_all(session, memory + 10 * PLACE + 8, SIZE, "over it");
  CHECK_OK(test_flush(session));
  CHECK(stat(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text, &after) == 0);
  CHECK(after.st_size == before.st_size && test_stats(session).live == 5);

  /* What the file has already is not written again; what is new or has moved is. */
  CHECK_OK(jitsym_enable(session, 0));
  CHECK(stat(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text, &after) == 0);
  CHECK(after.st_ino == before.st_ino);
  CHECK(test_markers(test_path(session, JITSYM_SINK_JITDUMP).text) == 1);
  check_whole(memory + 8 * PLACE, SIZE, "whole", 1);
  check_whole(memory + 9 * PLACE, SIZE, "moved", 1);
  check_whole(memory + 5 * PLACE, SIZE, "in its place", 0);
  check_whole(memory + 10 * PLACE + 8, SIZE, "over it", 0);
  CHECK(loads("bare") == 1 && loads("short-lived") == 0 && loads("patched") == 1);
  map = own_map();
  CHECK(map.count == 5 && strcmp(map_name(&map, address(memory + 9 * PLACE)), "moved") == 0);
  map_free(&map);

  /* Another file, and everything has to be in it. */
  CHECK_OK(jitsym_disable(session, JITSYM_SINK_JITDUMP));
  CHECK(running(session) == (JITSYM_SINK_MAP | JITSYM_SINK_REGION));
  CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) == 0);
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_JITDUMP));
  check_whole(memory + 8 * PLACE, SIZE, "whole", 0);
  dump = own_dump();
  CHECK(dump_count(&dump, DUMP_LOAD) == 5);
  dump_free(&dump);
  CHECK(test_markers(test_path(session, JITSYM_SINK_JITDUMP).text) == 1);
  /* Read back from that file, and from memory again. */
  target.addr = address(memory + 11 * PLACE);
  target.bytes = memory + 11 * PLACE;
  CHECK_OK(jitsym_move(session, whole, &target));
  CHECK_OK(test_flush(session));
  check_whole(memory + 11 * PLACE, SIZE, "whole", 1);
  CHECK(test_stats(session).unreadable == 0 && test_stats(session).write_errors == 0);
  CHECK_OK(jitsym_close(session));
  munmap(memory, 16 * PLACE);
}

/* Bytes that are not there any more are no reason to have no name; stable ones nobody waits for. */
static void unreadable_and_stable(void) {
  jitsym *session = open_off(JITSYM_INIT_REMEMBER);
  test_register(session, ADDR, 64, "nowhere");
  unsigned char *large = compiled(1 << 20);
  jitsym_code code = test_code(address(large), 1 << 20, "large and stable");
  code.bytes = large;
  code.flags = JITSYM_CODE_STABLE;
  jitsym_id id;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_JITDUMP));
  struct dump dump = own_dump();
  CHECK(memcmp(dump_load(&dump, "large and stable", 0)->code, large, 1 << 20) == 0);
  CHECK(dump_load(&dump, "nowhere", 0)->code[0] == 0);
  dump_free(&dump);
  CHECK(test_stats(session).unreadable == 1);
  CHECK_OK(jitsym_unregister(session, id));
  munmap(large, 1 << 20);
  CHECK_OK(jitsym_close(session));
}

/* One sink while the other runs, without having asked for it in advance. */
static void one_after_the_other(void) {
  unsigned char *memory = compiled(4096);
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  jitsym_id first = register_all(session, memory, 64, "first");
  register_all(session, memory + 2048, 64, "dead");
  CHECK_OK(jitsym_unregister_range(session, address(memory + 2048), 1, 0));
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_JITDUMP));
  struct dump dump = own_dump();
  const struct dump_record *load = dump_load(&dump, "first", 0);
  CHECK(dump_count(&dump, DUMP_LOAD) == 1 && load != NULL && load->debug == NULL && load->unwind == NULL);
  CHECK(memcmp(load->code, memory, 64) == 0);
  dump_free(&dump);
  register_all(session, memory + 1024, 64, "second");
  CHECK_OK(jitsym_disable(session, JITSYM_SINK_MAP));
  CHECK(running(session) == JITSYM_SINK_JITDUMP);
  check_whole(memory + 1024, 64, "second", 0);
  struct map map = own_map();
  CHECK(map.count == 3);
  map_free(&map);
  CHECK_OK(jitsym_unregister(session, first));
  register_all(session, memory + 3072, 64, "third");
  CHECK_OK(jitsym_enable(session, 0));
  map = own_map();
  CHECK(map.count == 2 && strcmp(map_name(&map, address(memory + 3072)), "third") == 0);
  map_free(&map);
  check_whole(memory + 3072, 64, "third", 0);
  /* The jitdump is forgotten, but for what the file has. */
  CHECK_OK(jitsym_disable(session, JITSYM_SINK_JITDUMP));
  register_all(session, memory, 64, "fourth");
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_JITDUMP));
  CHECK(loads("second") == 1 && loads("third") == 1 && loads("fourth") == 1 && loads("first") == 1);
  CHECK_OK(jitsym_close(session));
  munmap(memory, 4096);
}

/* A call that was in the middle when the jitdump was started is in it too, though it did not know. */
enum { ROWS = 20000, MIDDLES = 4096 };
static struct {
  jitsym *session;
  atomic_int stop;
  /* None begins while this is set: what a round leaves to be read is what came while the jitdump was started. */
  atomic_int paused;
  atomic_uint done;
} middle;

static void *middle_thread(void *argument) {
  jitsym_line *lines = argument;
  for (unsigned i = 0; !atomic_load(&middle.stop) && i < MIDDLES; i++) {
    while (atomic_load(&middle.paused) && !atomic_load(&middle.stop)) {
      test_sleep_ms(1);
    }
    char name[32];
    snprintf(name, sizeof name, "middle_%u", i);
    jitsym_code code = test_code(ADDR + (uint64_t)i * 2 * ROWS, ROWS, name);
    code.lines = lines;
    code.line_count = ROWS;
    CHECK_OK(jitsym_register(middle.session, &code, NULL));
    atomic_store(&middle.done, i + 1);
    if (i % 4 == 3) {
      test_sleep_ms(1);
    }
  }
  return NULL;
}

static void in_the_middle(void) {
  jitsym_line *lines = calloc(ROWS, sizeof *lines);
  CHECK(lines != NULL);
  for (uint32_t i = 0; i < ROWS; i++) {
    lines[i].offset = i;
    lines[i].line = i + 1;
    lines[i].file = "m";
  }
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP;
  options.max_wait_ms = 60000;
  CHECK_OK(jitsym_init(&options, &middle.session));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, middle_thread, lines) == 0);
  for (unsigned round = 0; round < (test_light ? 3U : 30U); round++) {
    atomic_store(&middle.paused, 0);
    unsigned before = atomic_load(&middle.done);
    TEST_AWAIT(atomic_load(&middle.done) != before);
    CHECK_OK(jitsym_enable(middle.session, JITSYM_SINK_JITDUMP));
    unsigned done = atomic_load(&middle.done);
    /* The one that is under way. */
    TEST_AWAIT(atomic_load(&middle.done) != done);
    atomic_store(&middle.paused, 1);
    done = atomic_load(&middle.done);
    CHECK_OK(test_flush(middle.session));
    CHECK_OK(jitsym_disable(middle.session, JITSYM_SINK_JITDUMP));
    struct dump dump = own_dump();
    char *seen = calloc(MIDDLES, 1);
    CHECK(seen != NULL);
    for (size_t i = 0; i < dump.count; i++) {
      if (dump.records[i].id == DUMP_LOAD) {
        unsigned number = (unsigned)strtoul(dump.records[i].name + strlen("middle_"), NULL, 10);
        CHECK(number < MIDDLES && !seen[number]);
        seen[number] = 1;
      }
    }
    for (unsigned i = 0; i < done; i++) {
      CHECK(seen[i]);
    }
    free(seen);
    dump_free(&dump);
  }
  atomic_store(&middle.stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(jitsym_close(middle.session));
  free(lines);
}

static void statuses(void) {
  jitsym *session = open_off(0);
  CHECK_STATUS(JITSYM_ERR_FLAGS, jitsym_enable(session, 128));
  CHECK_STATUS(JITSYM_ERR_FLAGS, jitsym_disable(session, 1U << 31));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_enable(NULL, 0));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_disable((jitsym *)(uintptr_t)&session, 0));
  CHECK(own_files() == 0);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_enable(session, 0));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_disable(session, 0));

  /* A sink that cannot be started says so, the other one runs, and the first one later. */
  struct test_path missing = test_subdir("missing", 0);
  for (int remember = 0; remember < 2; remember++) {
    jitsym_options options = test_options();
    options.flags = OFF | (remember ? JITSYM_INIT_REMEMBER : 0);
    options.map_dir = missing.text;
    CHECK_OK(jitsym_init(&options, &session));
    jitsym_code code = test_code(ADDR, 64, "early");
    CHECK_OK(jitsym_register(session, &code, NULL));
    jitsym_stats stats;
    stats.struct_size = sizeof stats;
    char text[200];
    CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_enable(session, JITSYM_SINK_MAP));
    CHECK_OK(jitsym_get_stats(session, &stats));
    CHECK(stats.sinks_running == 0 && stats.sinks_failed == JITSYM_SINK_MAP);
    CHECK_OK(jitsym_last_error(session, text, sizeof text));
    CHECK(strstr(text, missing.text) != NULL && own_spools() == remember && (remember || held(session) == 0));
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_enable(session, 0));
    CHECK(running(session) == (JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION) && loads("early") == (size_t)remember);
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
    CHECK(mkdir(missing.text, 0755) == 0);
    CHECK_OK(jitsym_enable(session, 0));
    CHECK_OK(test_flush(session));
    CHECK(running(session) == TEST_DEFAULT_SINKS);
    char path[TEST_PATH_MAX];
    CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
    struct map map = map_read(path);
    CHECK(map.count == (size_t)remember);
    map_free(&map);
    CHECK_OK(jitsym_disable(session, 0));
    CHECK(unlink(path) == 0 && rmdir(missing.text) == 0);
    CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_enable(session, JITSYM_SINK_MAP));
    CHECK_OK(jitsym_disable(session, 0));
    CHECK_OK(test_flush(session));
    CHECK_OK(jitsym_get_stats(session, &stats));
    CHECK(stats.sinks_failed == 0);
    CHECK_OK(jitsym_close(session));
    CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) == 0);
  }
}

/* The user has a say. */
static void environment(void) {
  setenv("JITSYM_LATE", "off", 1);
  jitsym *session = open_off(JITSYM_INIT_REMEMBER);
  CHECK_STATUS(JITSYM_ERR_FORBIDDEN, jitsym_enable(session, 0));
  CHECK(held(session) == 0 && own_files() == 0);
  test_wait_for_end_of_thread();
  CHECK_OK(jitsym_disable(session, 0));
  CHECK_OK(jitsym_close(session));
  setenv("JITSYM_LATE", "remember", 1);
  setenv("JITSYM", "off", 1);
  session = test_open_flags(0, 0);
  test_register(session, ADDR, 64, "remembered");
  CHECK(own_files() == 0);
  CHECK_OK(jitsym_enable(session, 0));
  CHECK(running(session) == TEST_DEFAULT_SINKS && loads("remembered") == 1);
  CHECK_OK(jitsym_close(session));
  /* What the user has chosen is what is started if nothing else is said. */
  setenv("JITSYM", "map", 1);
  session = test_open_flags(0, 0);
  CHECK_OK(jitsym_disable(session, 0));
  CHECK(running(session) == 0);
  CHECK_OK(jitsym_enable(session, 0));
  CHECK(running(session) == JITSYM_SINK_MAP);
  CHECK_OK(jitsym_close(session));
}

/* Sinks belong to the process: whoever starts or stops them does so for all. */
static void several_sessions(void) {
  jitsym *one = open_off(0), *other = open_off(0), *joined = NULL;
  CHECK_OK(jitsym_enable(one, JITSYM_SINK_MAP));
  CHECK(running(other) == JITSYM_SINK_MAP);
  test_register(other, ADDR, 64, "of the other");
  jitsym_options options = test_options();
  options.map_dir = "/nowhere";
  options.flags = OFF;
  CHECK_OK(jitsym_init(&options, &joined));
  CHECK_STATUS(JITSYM_ERR_CONFLICT, jitsym_enable(joined, 0));
  CHECK(running(joined) == JITSYM_SINK_MAP);
  CHECK_OK(jitsym_enable(joined, JITSYM_SINK_JITDUMP));
  CHECK(running(one) == BOTH && loads("of the other") == 1);
  CHECK_OK(jitsym_close(one));
  CHECK(running(other) == BOTH);
  CHECK_OK(jitsym_disable(other, 0));
  CHECK(running(joined) == 0 && held(joined) == 0);
  jitsym_code code = test_code(ADDR, 64, "off");
  jitsym_id id = 1;
  CHECK_OK(jitsym_register(joined, &code, &id));
  CHECK(id == 0);
  CHECK_OK(jitsym_register(other, &code, &id));
  /* A session that asks for sinks starts them, as ever. */
  one = test_open();
  CHECK(running(other) == BOTH);
  test_register(other, ADDR + 0x1000, 64, "on");
  CHECK_OK(jitsym_close(one));
  CHECK_OK(jitsym_close(joined));
  CHECK_OK(jitsym_close(other));

  /* Also while code is only remembered; and one that wants to remember is joined by all. */
  one = open_off(JITSYM_INIT_REMEMBER);
  test_register(one, ADDR + 0x2000, 64, "remembered");
  other = test_open();
  CHECK(running(one) == BOTH && loads("remembered") == 1);
  CHECK_OK(jitsym_close(one));
  CHECK_OK(jitsym_close(other));
  one = test_open_flags(JITSYM_SINK_MAP, 0);
  other = open_off(JITSYM_INIT_REMEMBER);
  test_register(one, ADDR + 0x3000, 64, "since then");
  CHECK_OK(jitsym_disable(one, 0));
  CHECK_OK(jitsym_close(other));
  test_register(one, ADDR + 0x4000, 64, "and then");
  CHECK_OK(jitsym_enable(one, BOTH));
  CHECK(loads("since then") == 1 && loads("and then") == 1);
  CHECK_OK(jitsym_close(one));
}

/* A later session starts the sinks that earlier sessions have not asked for. These sinks run until the last session closes. */
static void later_sessions(void) {
  jitsym *one = test_open_flags(JITSYM_SINK_MAP, 0), *other = test_open_flags(JITSYM_SINK_JITDUMP, 0), *joined = NULL;
  CHECK(running(one) == BOTH);
  test_register(one, ADDR, 64, "with both");
  CHECK_OK(jitsym_close(other));
  test_register(one, ADDR + 0x1000, 64, "after it");
  CHECK(running(one) == BOTH);

  /* What a session has disabled stays so, unless the later session has nothing else. */
  CHECK_OK(jitsym_disable(one, JITSYM_SINK_JITDUMP));
  other = test_open();
  CHECK(running(one) == JITSYM_SINK_MAP);
  CHECK_OK(jitsym_close(other));
  other = test_open_flags(JITSYM_SINK_JITDUMP, 0);
  CHECK(running(one) == BOTH);
  CHECK_OK(jitsym_close(other));
  CHECK_OK(jitsym_close(one));
  CHECK(loads("with both") == 1 && loads("after it") == 1);

  /* A sink that cannot start. The call succeeds if the session has another one, and else has no effect on the sessions before. */
  one = test_open_flags(JITSYM_SINK_MAP, 0);
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_JITDUMP;
  options.jitdump_dir = "/nowhere";
  CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_init(&options, &joined));
  CHECK(running(one) == JITSYM_SINK_MAP && test_stats_now(one).sinks_failed == 0 && test_flush(one) == JITSYM_OK);
  options.sinks = BOTH;
  for (int round = 0; round < 2; round++) {
    CHECK_OK(jitsym_init(&options, &joined));
    CHECK(running(joined) == JITSYM_SINK_MAP && test_stats_now(joined).sinks_failed == JITSYM_SINK_JITDUMP);
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_close(joined));
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_close(one));

  /* The user may forbid it. */
  one = test_open_flags(JITSYM_SINK_MAP, 0);
  CHECK(setenv("JITSYM_LATE", "off", 1) == 0);
  options = test_options();
  CHECK_OK(jitsym_init(&options, &joined));
  CHECK(running(joined) == JITSYM_SINK_MAP);
  CHECK_OK(jitsym_close(joined));
  options.sinks = JITSYM_SINK_JITDUMP;
  CHECK_STATUS(JITSYM_ERR_CONFLICT, jitsym_init(&options, &joined));
  CHECK(unsetenv("JITSYM_LATE") == 0);
  CHECK_OK(jitsym_close(one));
}

static jitsym *in_child;
static unsigned char *child_code;

enum { DISTURBED = 9 };

/* What a child does first. The parent's writer may not have come to rest in time. */
static void register_first(uint64_t addr) {
  jitsym_code code = test_code(addr, 64, "of the child");
  jitsym_status status = jitsym_register(in_child, &code, NULL);
  if (status == JITSYM_ERR_FORKED) {
    _exit(DISTURBED);
  }
  CHECK_OK(status);
}

/* A child that goes on with the parent's session. */
static void test_heir(void (*scenario)(void)) {
  for (int attempts = 0; attempts < 20; attempts++) {
    int status = test_wait(test_start(scenario));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != DISTURBED) {
      CHECK(status == 0);
      return;
    }
  }
  CHECK(!"no child could go on");
}

static void child_of_remembering(void) {
  register_first(ADDR + 0x1000);
  CHECK(running(in_child) == 0 && own_files() == 0);
  CHECK_OK(jitsym_enable(in_child, 0));
  check_whole(child_code, 64, "of the parent", 0);
  CHECK(loads("of the child") == 1);
  struct map map = own_map();
  CHECK(map.count == 2);
  map_free(&map);
  CHECK_OK(jitsym_disable(in_child, 0));
  CHECK_OK(jitsym_close(in_child));
}

static void child_that_inherits(void) {
  register_first(ADDR + 0x2000);
  CHECK(running(in_child) == TEST_DEFAULT_SINKS);
  CHECK_OK(test_flush(in_child));
  check_whole(child_code, 64, "of the parent", 0);
  /* And takes it into memory again. */
  CHECK_OK(jitsym_disable(in_child, 0));
  CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) == 0);
  CHECK_OK(jitsym_enable(in_child, 0));
  check_whole(child_code, 64, "of the parent", 0);
  CHECK_OK(jitsym_close(in_child));
}

static void child_that_only_maps(void) {
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(running(in_child) == JITSYM_SINK_MAP && own_files() == 1);
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_JITDUMP));
  check_whole(child_code, 64, "of the parent", 0);
  CHECK_OK(jitsym_close(session));
  CHECK_OK(jitsym_close(in_child));
}

static void child_of_nothing(void) {
  jitsym_code code = test_code(ADDR, 64, "of the child");
  CHECK_OK(jitsym_register(in_child, &code, NULL));
  CHECK_OK(jitsym_enable(in_child, 0));
  CHECK(own_files() == 2 && running(in_child) == TEST_DEFAULT_SINKS && own_spools() == 1);
  test_register(in_child, ADDR, 64, "of the child");
  CHECK_OK(jitsym_disable(in_child, 0));
  CHECK(loads("of the child") == 1);
  CHECK_OK(jitsym_close(in_child));
}

static void forks(void) {
  child_code = compiled(4096);
  in_child = open_off(JITSYM_INIT_REMEMBER);
  register_all(in_child, child_code, 64, "of the parent");
  CHECK_OK(test_flush(in_child));
  test_inherits_threads = 1;
  test_heir(child_of_remembering);
  CHECK(own_files() == 0);
  CHECK_OK(jitsym_enable(in_child, 0));
  test_heir(child_that_inherits);
  test_child(child_that_only_maps);
  CHECK_OK(jitsym_disable(in_child, 0));
  test_heir(child_of_remembering);
  CHECK(loads("of the parent") == 1 && loads("of the child") == 0);
  CHECK_OK(jitsym_close(in_child));
  in_child = open_off(0);
  test_wait_for_end_of_thread();
  test_child(child_of_nothing);
  CHECK_OK(jitsym_enable(in_child, 0));
  CHECK_OK(jitsym_disable(in_child, 0));
  test_wait_for_end_of_thread();
  test_child(child_of_nothing);
  CHECK_OK(jitsym_close(in_child));
  munmap(child_code, 4096);
}

/* What was published when the process is killed is recovered, though the first session had no sink. */
static void killed(void) {
  for (uint32_t flags = 0; flags <= JITSYM_INIT_REMEMBER; flags += JITSYM_INIT_REMEMBER) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      jitsym *session = open_off(flags);
      CHECK_OK(jitsym_enable(session, 0));
      for (uint64_t i = 0; i < 1000; i++) {
        test_register(session, ADDR + 128 * i, 64, "late");
      }
      kill(getpid(), SIGKILL);
    }
    int status = test_wait(child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    jitsym *session = test_open_flags(JITSYM_SINK_MAP, JITSYM_INIT_RECOVER);
    struct dump dump = dump_read(test_path_of(child, JITSYM_SINK_JITDUMP).text);
    struct map map = map_read(test_path_of(child, JITSYM_SINK_MAP).text);
    CHECK(dump_count(&dump, DUMP_LOAD) == 1000 && map.count == 1000);
    dump_free(&dump);
    map_free(&map);
    CHECK_OK(jitsym_close(session));
  }
  /* One that has only remembered leaves nothing behind for long. */
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    jitsym *session = open_off(JITSYM_INIT_REMEMBER);
    for (uint64_t i = 0; i < 1000; i++) {
      test_register(session, ADDR + 128 * i, 64, "remembered");
    }
    kill(getpid(), SIGKILL);
  }
  test_wait(child);
  CHECK_OK(jitsym_close(test_open_flags(JITSYM_SINK_MAP, JITSYM_INIT_RECOVER)));
  char pid[32];
  snprintf(pid, sizeof pid, "jitsym-%d-", (int)child);
  DIR *dir = opendir(getenv("JITSYM_SPOOL_DIR"));
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    CHECK(strncmp(entry->d_name, pid, strlen(pid)) != 0);
  }
  closedir(dir);
}

static void removes_at_exit(void) {
  /* The parent's last thread may have been about to end. */
  test_inherits_threads = 1;
  jitsym *session = open_off(JITSYM_INIT_REMOVE_FILES | (in_child != NULL ? JITSYM_INIT_REMEMBER : 0));
  CHECK_OK(jitsym_enable(session, 0));
  CHECK_OK(jitsym_disable(session, 0));
  CHECK(own_files() == 2);
}

/* Files that are to be removed are there as long as somebody may want to read them. */
static void removed_in_the_end(void) {
  for (uint32_t flags = 0; flags <= JITSYM_INIT_REMEMBER; flags += JITSYM_INIT_REMEMBER) {
    jitsym *session = open_off(JITSYM_INIT_REMOVE_FILES | flags);
    CHECK_OK(jitsym_enable(session, 0));
    test_register(session, ADDR, 64, "read later");
    CHECK_OK(jitsym_disable(session, 0));
    CHECK(own_files() == 2 && loads("read later") == 1);
    CHECK_OK(jitsym_close(session));
    CHECK(own_files() == 0);
    /* AddressSanitizer does not bear a fork while a thread ends. */
    test_wait_for_end_of_thread();
    in_child = flags != 0 ? session : NULL;
    pid_t child = test_child(removes_at_exit);
    CHECK(!file_exists(test_path_of(child, JITSYM_SINK_MAP).text));
    CHECK(!file_exists(test_path_of(child, JITSYM_SINK_JITDUMP).text));
  }
}

/* Live code that does not fit is left out, and comes when there is room; the file is never too long. */
static void bounded(void) {
  jitsym_options options = test_options();
  options.flags = OFF | JITSYM_INIT_REMEMBER;
  options.jitdump_max = 1 << 16;
  jitsym *session;
  CHECK_OK(jitsym_init(&options, &session));
  jitsym_id ids[60];
  for (uint64_t i = 0; i < 60; i++) {
    ids[i] = test_register(session, ADDR + 4096 * i, 2048, "two kilobytes");
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_enable(session, JITSYM_SINK_JITDUMP));
  CHECK(loads("two kilobytes") > 20);
  for (uint64_t i = 0; i < 40; i++) {
    CHECK_OK(jitsym_unregister(session, ids[i]));
  }
  CHECK_OK(test_flush(session));
  struct dump dump = own_dump();
  CHECK(dump.size <= 1 << 16);
  for (uint64_t i = 40; i < 60; i++) {
    size_t number = 0;
    const struct dump_record *load;
    while ((load = dump_load(&dump, "two kilobytes", number)) != NULL && load->addr != ADDR + 4096 * i) {
      number++;
    }
    CHECK(load != NULL);
  }
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void register_bytes(jitsym *session, uint64_t addr, uint64_t size) {
  static unsigned char bytes[20000];
  CHECK(size <= sizeof bytes);
  jitsym_code code = test_code(addr, size, "with its bytes at hand");
  code.bytes = bytes;
  CHECK_OK(jitsym_register(session, &code, NULL));
}

/* However full a thread's chunk is when its memory goes, the next registration finds another one. */
static void off_at_every_fill(void) {
  jitsym *session = open_off(0);
  unsigned rounds = test_slow ? 20 : test_light ? 50 : 200, step = rounds == 50 ? 28 : 7;
  for (unsigned round = 0; round < rounds; round++) {
    CHECK_OK(jitsym_enable(session, 0));
    for (uint64_t i = 0; i < 40 + step * round; i++) {
      register_bytes(session, ADDR + 64 * i, 64);
    }
    CHECK_OK(jitsym_disable(session, 0));
    CHECK_OK(jitsym_enable(session, 0));
    register_bytes(session, ADDR, 64);
    CHECK_OK(jitsym_disable(session, 0));
  }
  CHECK_OK(jitsym_close(session));
}

/* Code that needs a larger chunk now and then is no reason for much memory. */
static void large_among_small(void) {
  jitsym *session = test_open();
  for (uint64_t i = 0; i < 30; i++) {
    register_bytes(session, ADDR + 0x10000 * i, i % 10 == 9 ? 20000 : 100);
    CHECK_OK(test_flush(session));
  }
  CHECK(held(session) <= 1 << 20);
  CHECK_OK(jitsym_close(session));
}

/*
 * Memory that is in use, in bytes: mappings but for those of files (the records on their way are in one, that of the spool), and what was
 * allocated in the heap. What is free there stays in the process or not as malloc likes.
 */
static uint64_t in_use(void) {
  uint64_t sum = mallinfo2().uordblks, kib;
  FILE *maps = fopen("/proc/self/smaps", "r");
  CHECK(maps != NULL);
  char line[4096];
  int is_heap = 0;
  while (fgets(line, sizeof line, maps) != NULL) {
    if (strchr("0123456789abcdef", line[0]) != NULL) {
      is_heap = strstr(line, "[heap]") != NULL;
    } else if (!is_heap && sscanf(line, "Anonymous: %" SCNu64, &kib) == 1) {
      sum += kib * 1024;
    }
  }
  fclose(maps);
  return sum;
}

static void register_many(jitsym *session, jitsym_id *ids, uint64_t count) {
  jitsym_unwind unwind = test_unwind();
  for (uint64_t i = 0; i < count; i++) {
    char name[80];
    snprintf(name, sizeof name, "LazyCompile:*some_function_of_the_host_%06u vm/module.js:12", (unsigned)i);
    jitsym_code code = test_code(ADDR + 1024 * i, 512, name);
    code.unwind = &unwind;
    while (jitsym_register(session, &code, &ids[i]) == JITSYM_ERR_DROPPED) {
      test_sleep_ms(1);
    }
    CHECK(ids[i] != 0);
  }
  CHECK_OK(test_flush(session));
}

/* Being on costs memory, and being off gives it back to the kernel. */
static void memory(void) {
  /* Otherwise the system may make a page of two megabytes of any part of them that is touched. */
  (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  /* All that is allocated is in the heap. */
  int is_set = mallopt(M_ARENA_MAX, 1);
  /* AddressSanitizer has an allocator of its own; a small workload is not measured. */
  CHECK(is_set == 1 || test_light);
  uint64_t count = test_light ? 2000 : 100000;
  jitsym_id *ids = calloc(count, sizeof *ids);
  CHECK(ids != NULL);
  memset(ids, 1, count * sizeof *ids);
  jitsym *session = open_off(0);
  uint64_t before = in_use(), first = 0;
  for (int round = 0; round < 3; round++) {
    CHECK_OK(jitsym_enable(session, 0));
    register_many(session, ids, count);
    uint64_t on = in_use();
    CHECK_OK(jitsym_disable(session, 0));
    test_wait_for_end_of_thread();
    uint64_t off = in_use();
    CHECK(held(session) == 0);
    if (getenv("TEST_PRINT_MEMORY") != NULL) {
      fprintf(stderr, "on %ld KiB more, off %ld KiB more\n", (long)(on - before) / 1024, (long)(off - before) / 1024);
    }
    /* A slot for each id is kept (16 bytes): no id is ever given out again. Nothing else grows from round to round. */
    first = round == 0 ? off : first;
    CHECK(test_light || (on - before > 12 << 20 && off - before < 3 << 20 && off < first + (64 << 10)));
  }
  CHECK_OK(jitsym_close(session));

  /* What is remembered is bounded by what lives, and goes with it. */
  session = open_off(JITSYM_INIT_REMEMBER);
  CHECK_OK(test_flush(session));
  before = in_use();
  for (int round = 0; round < 3; round++) {
    register_many(session, ids, count);
    uint64_t on = in_use();
    if (getenv("TEST_PRINT_MEMORY") != NULL) {
      fprintf(stderr, "remembered: %ld KiB, %ld bytes for each\n", (long)(on - before) / 1024,
              (long)((on - before) / count));
    }
    CHECK(test_light || (on - before) / count < 500);
    CHECK_OK(jitsym_enable(session, 0));
    CHECK_OK(jitsym_disable(session, 0));
    CHECK(test_stats(session).live == count);
    for (uint64_t i = 0; i < count; i++) {
      while (jitsym_unregister(session, ids[i]) == JITSYM_ERR_DROPPED) {
        test_sleep_ms(1);
      }
    }
    CHECK(test_stats(session).live == 0);
  }
  CHECK_OK(jitsym_close(session));
  if (!test_light) {
    /* 450 MB of records of one kind, of which a small workload leaves some to be checked. */
    CHECK(unlink(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text) == 0);
  }
  free(ids);
}

/* --------------------------------------------------------------------------- threads, and the truth that they know */

enum { THREADS = 4, PLACES = 64, STEP = 512 };

static struct {
  jitsym *session;
  atomic_int stop;
  atomic_int remembers;
  struct place {
    jitsym_id id;
    uint64_t size;
    char name[32];
  } places[THREADS][2 * PLACES];
} storm;

static uint64_t storm_addr(unsigned thread, unsigned place) {
  return ADDR + STEP * (2 * PLACES * (uint64_t)thread + place);
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525 + 1013904223;
  return *state >> 8;
}

static void storm_register(unsigned thread, unsigned number, unsigned serial, uint32_t *random) {
  struct place *place = &storm.places[thread][number];
  jitsym_unwind unwind = test_unwind();
  jitsym_line line = {0, serial % 1000 + 1, 0, 0, "storm.guest"};
  jitsym_code code = test_code(storm_addr(thread, number), 16 + next_random(random) % 300, NULL);
  snprintf(place->name, sizeof place->name, "storm_%u_%u_%u", thread, number, serial);
  place->size = code.size;
  code.name = place->name;
  code.unwind = next_random(random) % 2 ? &unwind : NULL;
  code.lines = &line;
  code.line_count = next_random(random) % 2;
  jitsym_status status;
  while ((status = jitsym_register(storm.session, &code, &place->id)) == JITSYM_ERR_DROPPED) {
    test_sleep_ms(1);
  }
  CHECK_OK(status);
  CHECK(place->id != 0 || !storm.remembers);
}

static void *storm_thread(void *argument) {
  unsigned thread = (unsigned)(uintptr_t)argument;
  uint32_t random = thread + 1;
  for (unsigned serial = 0; !atomic_load(&storm.stop); serial++) {
    unsigned number = next_random(&random) % (2 * PLACES);
    struct place *place = &storm.places[thread][number];
    jitsym_status status = JITSYM_OK;
    if (place->size == 0) {
      storm_register(thread, number, serial, &random);
    } else if (next_random(&random) % 2) {
      do {
        status = jitsym_unregister(storm.session, place->id);
      } while (status == JITSYM_ERR_DROPPED);
      place->size = 0;
    } else {
      unsigned other = next_random(&random) % (2 * PLACES);
      struct place *to = &storm.places[thread][other];
      if (to->size == 0) {
        jitsym_move_target target = test_target(storm_addr(thread, other));
        do {
          status = jitsym_move(storm.session, place->id, &target);
        } while (status == JITSYM_ERR_DROPPED);
        *to = *place;
        place->size = 0;
      }
    }
    /* Ids end with the last sink if nothing is remembered. */
    CHECK(status == JITSYM_OK || (status == JITSYM_ERR_UNKNOWN_ID && !storm.remembers));
    /* The writer makes system calls for each move, and has to keep up on a busy machine too, and under valgrind. */
    if (serial % (test_light ? 2 : 8) == 0) {
      test_sleep_ms(1);
    }
  }
  return NULL;
}

/* That both files say what lives where, and the map nothing else. */
static void storm_check(void) {
  struct map map = own_map();
  struct dump dump = own_dump();
  size_t live = 0;
  for (unsigned thread = 0; thread < THREADS; thread++) {
    for (unsigned number = 0; number < 2 * PLACES; number++) {
      const struct place *place = &storm.places[thread][number];
      uint64_t addr = storm_addr(thread, number);
      const struct map_entry *entry = map_find(&map, addr);
      if (place->size == 0) {
        CHECK(entry == NULL);
        continue;
      }
      live++;
      CHECK(entry != NULL && entry->start == addr && entry->size == place->size);
      CHECK(strcmp(entry->name, place->name) == 0);
      const struct dump_record *last = NULL;
      for (size_t i = 0; i < dump.count; i++) {
        const struct dump_record *record = &dump.records[i];
        if (record->id == DUMP_LOAD && record->addr < addr + place->size && addr < record->addr + record->size) {
          last = record;
        }
      }
      CHECK(last != NULL && last->addr == addr && last->size == place->size && strcmp(last->name, place->name) == 0);
    }
  }
  CHECK(map.count == live && live > PLACES / 4);
  map_free(&map);
  dump_free(&dump);
}

static void storm_run(uint32_t flags) {
  memset(&storm, 0, sizeof storm);
  storm.remembers = flags != 0;
  storm.session = open_off(flags);
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, storm_thread, (void *)i) == 0);
  }
  uint32_t random = 77;
  unsigned rounds = test_light ? 15 : 100;
  for (unsigned i = 0; i < rounds; i++) {
    CHECK_OK(jitsym_enable(storm.session, next_random(&random) % 4));
    test_sleep_ms(next_random(&random) % 4);
    CHECK_OK(jitsym_disable(storm.session, next_random(&random) % 4));
    test_sleep_ms(next_random(&random) % 4);
  }
  CHECK_OK(jitsym_enable(storm.session, 0));
  test_sleep_ms(5);
  atomic_store(&storm.stop, 1);
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  if (!storm.remembers) {
    /* The host says again what it has. */
    CHECK_OK(jitsym_disable(storm.session, 0));
    CHECK(held(storm.session) == 0);
    CHECK_OK(jitsym_enable(storm.session, 0));
    for (unsigned thread = 0; thread < THREADS; thread++) {
      for (unsigned number = 0; number < 2 * PLACES; number++) {
        if (storm.places[thread][number].size != 0) {
          storm_register(thread, number, 1000000 + number, &random);
        }
      }
    }
    CHECK_OK(test_flush(storm.session));
    storm_check();
  } else {
    jitsym_stats stats = test_stats(storm.session);
    CHECK(stats.dropped == 0);
    CHECK_OK(jitsym_disable(storm.session, JITSYM_SINK_MAP));
    CHECK_OK(jitsym_enable(storm.session, JITSYM_SINK_MAP));
    storm_check();
    CHECK_OK(jitsym_disable(storm.session, 0));
    CHECK_OK(jitsym_enable(storm.session, 0));
    storm_check();
    CHECK(test_stats(storm.session).jitdump_records == stats.jitdump_records);
  }
  CHECK_OK(jitsym_close(storm.session));
}

static void storm_remembered(void) {
  storm_run(JITSYM_INIT_REMEMBER);
}

static void storm_from_off(void) {
  storm_run(0);
}

/* --------------------------------------------------------------------------- calls that sinks are stopped and started under */

/* The same calls again with TEST_SEED, though threads make them in another order. */
static uint32_t overtaken_seed(void) {
  const char *given = getenv("TEST_SEED");
  return given != NULL ? (uint32_t)strtoul(given, NULL, 10) : (uint32_t)test_now() ^ (uint32_t)getpid();
}

#define CHECK_SEEDED(condition, seed, what, status)                                                         \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "TEST_SEED=%u: %s: %s\n", (unsigned)(seed), what, jitsym_status_name((int32_t)status)); \
      CHECK(condition);                                                                                     \
    }                                                                                                       \
  } while (0)

static struct {
  uint32_t seed;
  jitsym *session;
  atomic_int stop;
} overtaken;

static jitsym_status any_call(uint32_t *random, unsigned thread, void *region, jitsym_id *id, const char **what) {
  uint64_t addr = ADDR + 0x10000 * thread + 64 * (next_random(random) % 64);
  jitsym_code code = test_code(addr, 64, "overtaken");
  jitsym_move_target target = test_target(addr);
  jitsym_stats stats = {.struct_size = sizeof stats};
  jitsym_region made = {.struct_size = sizeof made};
  jitsym_region_options options = {.struct_size = sizeof options, .size = 4096};
  unsigned char *page;
  char text[TEST_PATH_MAX];
  jitsym_status status;
  switch (next_random(random) % 15) {
    case 0:
      *what = "jitsym_register";
      return jitsym_register(overtaken.session, &code, id);
    case 1:
      *what = "jitsym_move";
      return jitsym_move(overtaken.session, *id, &target);
    case 2:
      *what = "jitsym_unregister";
      return jitsym_unregister(overtaken.session, *id);
    case 3:
      *what = "jitsym_unregister_range";
      return jitsym_unregister_range(overtaken.session, addr, 64, 0);
    case 4:
      *what = "jitsym_get_stats";
      return jitsym_get_stats(overtaken.session, &stats);
    case 5:
      *what = "jitsym_path";
      return jitsym_path(overtaken.session, JITSYM_SINK_JITDUMP, text, sizeof text);
    case 6:
      *what = "jitsym_last_error";
      return jitsym_last_error(overtaken.session, text, sizeof text);
    case 7:
      *what = "jitsym_flush_from_signal";
      return jitsym_flush_from_signal(60000);
    case 8:
      *what = "jitsym_enable";
      return jitsym_enable(overtaken.session, next_random(random) % 8);
    case 9:
      *what = "jitsym_disable";
      return jitsym_disable(overtaken.session, next_random(random) % 8);
    case 10:
      *what = "jitsym_region_grow";
      return jitsym_region_grow(overtaken.session, region, 8192);
    case 11:
      *what = "jitsym_region_discard";
      return jitsym_region_discard(overtaken.session, region, 4096);
    case 12:
      *what = "jitsym_region_create and _release";
      status = jitsym_region_create(overtaken.session, &options, &made);
      return status == JITSYM_OK ? jitsym_region_release(overtaken.session, made.exec) : status;
    case 13:
      *what = "jitsym_alloc and jitsym_free";
      status = jitsym_alloc(overtaken.session, 1 + next_random(random) % 5000, 0, 0, &made);
      return status == JITSYM_OK ? jitsym_free(overtaken.session, made.exec) : status;
    default:
      *what = "jitsym_region_adopt and _release";
      page = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK(page != MAP_FAILED);
      status = jitsym_region_adopt(overtaken.session, page, 4096);
      status = status == JITSYM_OK ? jitsym_region_release(overtaken.session, page) : status;
      munmap(page, 4096);
      return status;
  }
}

static void *overtaken_thread(void *argument) {
  unsigned thread = (unsigned)(uintptr_t)argument;
  uint32_t random = overtaken.seed + thread;
  jitsym_region region = {.struct_size = sizeof region};
  jitsym_region_options options = {.struct_size = sizeof options, .size = 4096, .max_size = 8192};
  CHECK_OK(jitsym_region_create(overtaken.session, &options, &region));
  jitsym_id id = 0;
  while (!atomic_load(&overtaken.stop)) {
    const char *what = "jitsym_flush";
    if (next_random(&random) % 2) {
      jitsym_status status = jitsym_flush(overtaken.session, 60000);
      CHECK_SEEDED(status == JITSYM_OK, overtaken.seed, what, status);
    } else {
      jitsym_status status = any_call(&random, thread, region.exec, &id, &what);
      CHECK_SEEDED(status != JITSYM_ERR_CLOSED && status != JITSYM_ERR_SESSION && status != JITSYM_ERR_INTERNAL,
                   overtaken.seed, what, status);
    }
  }
  CHECK_OK(jitsym_region_release(overtaken.session, region.exec));
  return NULL;
}

/* As long as its session is open no call says that it is closed, however sinks come and go meanwhile. */
static void overtaken_by_disable(void) {
  overtaken.seed = overtaken_seed();
  uint32_t random = overtaken.seed;
  for (unsigned round = 0; round < 2; round++) {
    atomic_store(&overtaken.stop, 0);
    overtaken.session = open_off(round ? JITSYM_INIT_REMEMBER : 0);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
      CHECK(pthread_create(&threads[i], NULL, overtaken_thread, (void *)i) == 0);
    }
    for (unsigned i = 0; i < (test_light ? 20U : 300U); i++) {
      CHECK_OK(jitsym_enable(overtaken.session, next_random(&random) % 8));
      CHECK_OK(jitsym_disable(overtaken.session, 0));
    }
    atomic_store(&overtaken.stop, 1);
    for (unsigned i = 0; i < THREADS; i++) {
      CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK_OK(jitsym_close(overtaken.session));
  }
}

static char flushed[32];

static void *flushes(void *started) {
  atomic_fetch_add((atomic_int *)started, 1);
  while (atomic_load((atomic_int *)started) != 2) {
  }
  jitsym_status status = jitsym_flush(overtaken.session, 60000);
  size_t size;
  char *dump = (char *)file_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text, &size);
  CHECK_SEEDED(status == JITSYM_OK, overtaken.seed, "jitsym_flush", status);
  /* Not all of it may be whole yet. */
  size_t at = 0, len = strlen(flushed);
  while (at + len <= size && memcmp(dump + at, flushed, len) != 0) {
    at++;
  }
  CHECK_SEEDED(at + len <= size, overtaken.seed, flushed, status);
  free(dump);
  return NULL;
}

/* A flush that a disable overtakes says that everything is written, and it is. */
static void flush_overtaken(void) {
  uint32_t random = overtaken.seed = overtaken_seed();
  overtaken.session = open_off(0);
  for (unsigned i = 0; i < (test_light ? 20U : 400U); i++) {
    CHECK_OK(jitsym_enable(overtaken.session, BOTH));
    snprintf(flushed, sizeof flushed, "flushed_%u_", i);
    test_register(overtaken.session, ADDR, 64, flushed);
    pthread_t thread;
    atomic_int started = 0;
    CHECK(pthread_create(&thread, NULL, flushes, &started) == 0);
    while (atomic_load(&started) != 1) {
    }
    atomic_store(&started, 2);
    for (volatile uint32_t spins = next_random(&random) % 30000; spins > 0; spins--) {
    }
    jitsym_status status = jitsym_disable(overtaken.session, 0);
    CHECK_SEEDED(status == JITSYM_OK, overtaken.seed, "jitsym_disable", status);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  CHECK_OK(jitsym_close(overtaken.session));
}

/* How much code each thread has registered that was given an id. */
static atomic_int accepting;
static atomic_uint accepted[THREADS];

static uint64_t accepted_addr(unsigned thread, unsigned number) {
  return ADDR + ((uint64_t)thread << 32) + 64 * (uint64_t)number;
}

/* Registers one piece of code after the other until nothing is wanted any more; every other thread flushes after each. */
static void *registers_until_off(void *argument) {
  unsigned thread = (unsigned)(uintptr_t)argument;
  while (!atomic_load(&accepting)) {
  }
  for (unsigned number = 0;;) {
    char name[32];
    snprintf(name, sizeof name, "accepted_%u_%u", thread, number);
    jitsym_code code = test_code(accepted_addr(thread, number), 64, name);
    jitsym_id id = 0;
    jitsym_status status = jitsym_register(overtaken.session, &code, &id);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
    if (status == JITSYM_OK && id == 0) {
      return NULL;
    }
    if (status == JITSYM_OK) {
      atomic_store(&accepted[thread], ++number);
      CHECK(thread % 2 == 0 || test_flush(overtaken.session) == JITSYM_OK);
    }
  }
}

/* All code that has an id is in both files when the last sink is disabled, however late it came. */
static void accepted_until_off(void) {
  overtaken.session = open_off(0);
  size_t before = 0;
  for (unsigned round = 0; round < (test_light ? 3U : 30U); round++) {
    CHECK_OK(jitsym_enable(overtaken.session, BOTH));
    pthread_t threads[THREADS];
    atomic_store(&accepting, 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
      atomic_store(&accepted[i], 0);
      CHECK(pthread_create(&threads[i], NULL, registers_until_off, (void *)i) == 0);
    }
    atomic_store(&accepting, 1);
    TEST_AWAIT(atomic_load(&accepted[0]) != 0 && atomic_load(&accepted[1]) != 0);
    CHECK_OK(jitsym_disable(overtaken.session, 0));
    /* Otherwise a thread was stopped for seconds within a call. */
    int is_whole = held(overtaken.session) == 0;
    struct map map = own_map();
    struct dump dump = own_dump();
    size_t all = 0;
    for (unsigned i = 0; i < THREADS; i++) {
      CHECK(pthread_join(threads[i], NULL) == 0);
      for (unsigned number = 0; is_whole && number < atomic_load(&accepted[i]); number++) {
        char name[32];
        snprintf(name, sizeof name, "accepted_%u_%u", i, number);
        CHECK(strcmp(map_name(&map, accepted_addr(i, number)), name) == 0);
      }
      all += atomic_load(&accepted[i]);
    }
    size_t loads = dump_count(&dump, DUMP_LOAD);
    CHECK(!is_whole || (map.count == all && loads - before == all));
    before = loads;
    map_free(&map);
    dump_free(&dump);
  }
  CHECK_OK(jitsym_close(overtaken.session));
}

/* Sinks come and go, and sessions too, all at once. */
static _Atomic(jitsym *) shared_session;

static void *chaos_thread(void *argument) {
  uint32_t random = (uint32_t)(uintptr_t)argument;
  while (!atomic_load(&storm.stop)) {
    jitsym *session = atomic_load(&shared_session);
    jitsym_code code = test_code(ADDR + 64 * (next_random(&random) % 4096), 64, "chaos");
    jitsym_id id;
    jitsym_status status = JITSYM_OK;
    switch (next_random(&random) % 8) {
      case 0:
        status = jitsym_enable(session, next_random(&random) % 4);
        break;
      case 1:
        status = jitsym_disable(session, next_random(&random) % 4);
        break;
      case 2:
        status = jitsym_flush(session, 1);
        break;
      default:
        status = jitsym_register(session, &code, &id);
    }
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_DROPPED ||
          status == JITSYM_ERR_TIMEOUT);
    if (status == JITSYM_ERR_CLOSED) {
      test_sleep_ms(0);
    }
  }
  return NULL;
}

static void chaos(void) {
  memset(&storm, 0, sizeof storm);
  pthread_t threads[THREADS];
  unsigned count = test_light ? 2 : THREADS;
  atomic_store(&shared_session, open_off(0));
  for (uintptr_t i = 0; i < count; i++) {
    CHECK(pthread_create(&threads[i], NULL, chaos_thread, (void *)(i + 1)) == 0);
  }
  for (unsigned i = 0; i < (test_light ? 10U : 60U); i++) {
    jitsym *old = atomic_load(&shared_session);
    CHECK_OK(jitsym_close(old));
    atomic_store(&shared_session, open_off(i % 2 ? JITSYM_INIT_REMEMBER : 0));
    test_sleep_ms(3);
  }
  atomic_store(&storm.stop, 1);
  for (unsigned i = 0; i < count; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_OK(jitsym_close(atomic_load(&shared_session)));
}

/* The process ends while sinks come and go. */
static void *restless(void *argument) {
  for (;;) {
    jitsym_enable(argument, 0);
    jitsym_disable(argument, 0);
  }
  return NULL;
}

static void exits(void) {
  jitsym *session = open_off(in_child != NULL ? JITSYM_INIT_REMEMBER : 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, restless, session) == 0);
  for (uint64_t i = 0; i < 2000; i++) {
    jitsym_code code = test_code(ADDR + 64 * i, 64, "restless");
    jitsym_register(session, &code, NULL);
  }
  test_inherits_threads = 1;
}

static void exit_meanwhile(void) {
  for (unsigned i = 0; i < (test_light ? 4U : 20U); i++) {
    in_child = i % 2 ? (jitsym *)(uintptr_t)1 : NULL;
    struct test_path dump = test_path_of(test_child(exits), JITSYM_SINK_JITDUMP);
    /* The end may come between the making of a file and its header. There is no marker then, so perf does not look for it. */
    struct stat status;
    if (stat(dump.text, &status) == 0 && status.st_size == 0) {
      CHECK(unlink(dump.text) == 0);
    }
  }
}

/* A process ends with its last thread, though that has called nothing since it enabled the sinks, and the writer sleeps. */
static void ends_enabled(void) {
  jitsym *session = open_off(0);
  CHECK_OK(jitsym_enable(session, 0));
  test_sleep_ms(1500);
  pthread_exit(NULL);
}

static void *forks_and_waits(void *session) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_OK(test_flush(session));
    test_sleep_ms(1500);
    pthread_exit(NULL);
  }
  test_wait_ok(child);
  return NULL;
}

/* The same of a forked child whose thread has called nothing in the parent. */
static void ends_forked(void) {
  jitsym *session = test_open();
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, forks_and_waits, session) == 0 && pthread_join(thread, NULL) == 0);
}

static void last_thread_ends(void) {
#if !defined(__SANITIZE_ADDRESS__)
  /* Neither an emulator's thread nor AddressSanitizer, which takes frames that pthread_exit leaves behind for live ones. */
  if (test_threads_of_others == 0) {
    test_child(ends_enabled);
    test_child(ends_forked);
  }
#else
  (void)ends_enabled, (void)ends_forked;
#endif
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const struct {
    const char *name;
    void (*run)(void);
  } scenarios[] = {
      {"from_off", from_off},
      {"remembered", remembered},
      {"unreadable_and_stable", unreadable_and_stable},
      {"one_after_the_other", one_after_the_other},
      {"in_the_middle", in_the_middle},
      {"statuses", statuses},
      {"environment", environment},
      {"several_sessions", several_sessions},
      {"later_sessions", later_sessions},
      {"forks", forks},
      {"killed", killed},
      {"removed_in_the_end", removed_in_the_end},
      {"bounded", bounded},
      {"off_at_every_fill", off_at_every_fill},
      {"large_among_small", large_among_small},
      {"memory", memory},
      {"storm_remembered", storm_remembered},
      {"storm_from_off", storm_from_off},
      {"overtaken_by_disable", overtaken_by_disable},
      {"flush_overtaken", flush_overtaken},
      {"accepted_until_off", accepted_until_off},
      {"chaos", chaos},
      {"exit_meanwhile", exit_meanwhile},
      {"last_thread_ends", last_thread_ends},
  };
  const char *only = getenv("TEST_ONLY");
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (only == NULL || strcmp(only, scenarios[i].name) == 0) {
      test_child(scenarios[i].run);
    }
  }
  return test_end();
}
