/*
 * What runs in namespaces that a test has made: on file systems that are full, read-only or noexec, as process 1 of a container.
 *
 * faults DIR full-and-back    DIR is nearly full; DIR/ballast is removed in the middle
 * faults DIR sinks FAILED     opens a session, of which the sinks FAILED (bits; 4 more: but not at once) cannot run; says why
 * faults DIR hold             the same with all sinks, and stays until its input ends
 */
#define _GNU_SOURCE
#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;

static void put(jitsym *session, unsigned number) {
  char name[64];
  snprintf(name, sizeof name, "code %u", number);
  test_register(session, ADDR + 0x1000 * number, 0x800, name);
}

static void full_and_back(void) {
  jitsym *session = test_open();
  unsigned count = 0;
  /* Until both files have met the end of the disk: the map needs less. */
  for (unsigned failed = 0; failed != (JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP); failed = test_stats_now(session).sinks_failed) {
    for (unsigned i = 0; i < 100; i++) {
      put(session, count++);
    }
    (void)jitsym_flush(session, 0);
    CHECK(count < 10000);
    /* Both are whole at any time. */
    struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
    struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
    CHECK(dump_count(&dump, DUMP_LOAD) == test_stats_now(session).jitdump_records);
    map_free(&map);
    dump_free(&dump);
  }
  char text[4096];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "No space left on device") != NULL && strstr(text, test_dir) != NULL);
  struct test_path ballast = test_subdir("ballast", 0);
  CHECK(unlink(ballast.text) == 0);
  /* Without being asked. */
  TEST_AWAIT(test_stats_now(session).sinks_failed == 0);
  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == count && map.count == count && test_stats_now(session).jitdump_lost == 0);
  for (unsigned i = 0; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, "code %u", i);
    const struct dump_record *load = dump_load(&dump, name, 0);
    CHECK(load != NULL && memcmp(load->code, test_bytes, 0x800) == 0);
    CHECK(strcmp(map_name(&map, ADDR + 0x1000 * i), name) == 0);
  }
  map_free(&map);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void sinks(uint32_t failed) {
  jitsym_options options = test_options();
  jitsym *session = NULL;
  uint32_t all = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP;
  int opens = failed != all;
  /* A living process has both names, and for a jitdump there are others. */
  test_jitdump_is_elsewhere = failed == JITSYM_SINK_MAP;
  failed &= all;
  CHECK_STATUS(!opens ? JITSYM_ERR_NO_SINK : JITSYM_OK, jitsym_init(&options, &session));
  char text[4096];
  CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
  printf("%s\n", text);
  if (session == NULL) {
    return;
  }
  put(session, 1);
  CHECK_STATUS(failed == 0 ? JITSYM_OK : JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.sinks_failed == failed && stats.sinks_running == ((all ^ failed) | JITSYM_SINK_REGION) && stats.registered == 1);
  if ((failed & JITSYM_SINK_MAP) == 0) {
    struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
    CHECK(map.count == 1 && strcmp(map.entries[0].name, "code 1") == 0);
    map_free(&map);
  }
  if ((failed & JITSYM_SINK_JITDUMP) == 0) {
    struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
    CHECK(dump.pid == (uint32_t)getpid() && dump.count == 1);
    dump_free(&dump);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const char *what = argc > 2 ? argv[2] : "";
  if (strcmp(what, "full-and-back") == 0) {
    full_and_back();
  } else if (strcmp(what, "sinks") == 0) {
    sinks((uint32_t)atoi(argv[3]));
  } else {
    CHECK(strcmp(what, "hold") == 0);
    sinks(0);
    jitsym_options options = test_options();
    jitsym *session = NULL;
    CHECK_OK(jitsym_init(&options, &session));
    jitsym_region_options wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.struct_size = sizeof wanted;
    wanted.size = 4096;
    jitsym_region region = {sizeof region, NULL, NULL, 0};
    CHECK_OK(jitsym_region_create(session, &wanted, &region));
    puts("holding");
    fflush(stdout);
    CHECK(getchar() == EOF);
  }
  return test_end();
}
