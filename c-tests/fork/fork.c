/*
 * fork with JITSYM_INIT_FORK_ALONE: the parent goes on undisturbed, the child is told that the session is not its own, and can
 * have its own files. (What a child takes over otherwise is in fork_child.c.)
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "jitsym_control.h"
#include "testing.h"

static const uint64_t PARENT = 0x7000000000, CHILD = 0x7100000000;
static jitsym *session;
static jitsym_id inherited;

static jitsym *open_alone(void) {
  return test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, JITSYM_INIT_FORK_ALONE);
}

/* Every call on the inherited session says so, and touches nothing. */
static void check_forked(jitsym *handle) {
  test_inherits_threads = 1;
  jitsym_id id = 0x5555;
  jitsym_code code = test_code(CHILD, 64, "of the child");
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_register(handle, &code, &id));
  CHECK(id == 0x5555);
  jitsym_move_target target = test_target(CHILD);
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_move(handle, inherited, &target));
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_unregister(handle, inherited));
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_unregister_range(handle, PARENT, 64, 0));
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_flush(handle, 0));
  jitsym_stats stats;
  memset(&stats, 0x55, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_get_stats(handle, &stats));
  CHECK(stats.registered == 0x5555555555555555);
  char text[TEST_PATH_MAX] = "untouched";
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_last_error(handle, text, sizeof text));
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_path(handle, JITSYM_SINK_MAP, text, sizeof text));
  CHECK(strcmp(text, "untouched") == 0);
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_close(handle));
  CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_close(handle));
}

/* The child's own session, with files that are named after the child. */
static void own_files(int keep) {
  jitsym *own = open_alone();
  CHECK(own != session);
  jitsym_id id = test_register(own, CHILD, 64, "of the child");
  jitsym_move_target target = test_target(CHILD + 0x1000);
  CHECK_OK(jitsym_move(own, id, &target));
  CHECK_OK(test_flush(own));
  struct test_path map_path = test_path(own, JITSYM_SINK_MAP), dump_path = test_path(own, JITSYM_SINK_JITDUMP);
  struct map map = map_read(map_path.text);
  CHECK(strcmp(map_name(&map, CHILD), "of the child") == 0);
  CHECK(strcmp(map_name(&map, CHILD + 0x1000), "of the child") == 0);
  map_free(&map);
  struct dump dump = dump_read(dump_path.text);
  CHECK(dump.pid == (uint32_t)getpid() && dump_load(&dump, "of the child", 1) != NULL);
  dump_free(&dump);
  check_forked(session);
  CHECK_OK(jitsym_close(own));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(own));
  if (!keep) {
    CHECK(unlink(map_path.text) == 0 && unlink(dump_path.text) == 0);
  }
}

/* The parent's files: its own records alone. */
static void check_parent(pid_t pid) {
  struct map map = map_read(test_path_of(pid, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  CHECK(dump.pid == (uint32_t)pid);
  CHECK(dump_load(&dump, "of the child", 0) == NULL && map_find(&map, CHILD) == NULL);
  CHECK(strcmp(map_name(&map, PARENT), "of the parent") == 0);
  map_free(&map);
  dump_free(&dump);
}

static void grandchild(void) {
  check_forked(session);
  jitsym *own = open_alone();
  test_register(own, CHILD, 64, "of the child");
  CHECK_OK(test_flush(own));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_forked(session);
    check_forked(own);
    own_files(1);
    exit(0);
  }
  test_wait_ok(child);
  CHECK_OK(test_flush(own));
  struct dump dump = dump_read(test_path(own, JITSYM_SINK_JITDUMP).text);
  CHECK(dump.pid == (uint32_t)getpid() && dump_count(&dump, DUMP_LOAD) == 1);
  dump_free(&dump);
  /* It leaves with its session open: what is pending is written. */
  test_register(own, CHILD + 0x2000, 64, "pending");
}

static void child_forked(void) {
  check_forked(session);
}

static void child_own_files(void) {
  own_files(0);
}

static void child_nothing(void) {
  test_inherits_threads = 1;
}

/* One fork after the other, nothing else going on; the files are compared to the byte. */
static void quiet(void) {
  session = open_alone();
  inherited = test_register(session, PARENT, 64, "of the parent");
  jitsym_stats before = test_stats(session);
  static void (*const children[])(void) = {child_forked, child_own_files, child_nothing, grandchild};
  for (size_t i = 0; i < sizeof children / sizeof children[0]; i++) {
    size_t sizes[2][2];
    unsigned char *bytes[2][2];
    static const uint32_t sinks[] = {JITSYM_SINK_MAP, JITSYM_SINK_JITDUMP};
    for (int file = 0; file < 2; file++) {
      bytes[file][0] = file_read(test_path(session, sinks[file]).text, &sizes[file][0]);
    }
    pid_t child = test_child(children[i]);
    for (int file = 0; file < 2; file++) {
      bytes[file][1] = file_read(test_path(session, sinks[file]).text, &sizes[file][1]);
      CHECK(sizes[file][0] == sizes[file][1] && memcmp(bytes[file][0], bytes[file][1], sizes[file][0]) == 0);
      free(bytes[file][0]);
      free(bytes[file][1]);
    }
    if (children[i] == grandchild) {
      struct dump dump = dump_read(test_path_of(child, JITSYM_SINK_JITDUMP).text);
      CHECK(dump_load(&dump, "pending", 0) != NULL);
      dump_free(&dump);
    } else {
      CHECK(!file_exists(test_path_of(child, JITSYM_SINK_MAP).text));
      CHECK(!file_exists(test_path_of(child, JITSYM_SINK_JITDUMP).text));
    }
  }
  jitsym_stats after = test_stats(session);
  CHECK(before.registered == after.registered && before.jitdump_bytes == after.jitdump_bytes);
  CHECK(after.live == 1 && after.write_errors == 0 && after.sinks_failed == 0);
  /* Pending records are the parent's business: a child that exits does not write them, the parent does. */
  for (unsigned i = 0; i < 50; i++) {
    test_register(session, PARENT + 0x1000 + 0x100 * i, 64, "pending in the parent");
  }
  test_child(child_nothing);
  CHECK_OK(jitsym_unregister(session, inherited));
  CHECK(test_stats(session).registered == 51);
  check_parent(getpid());
  CHECK_OK(jitsym_close(session));
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == 51);
  dump_free(&dump);
}

static atomic_int stop;
static atomic_uint registered;

static void *storm(void *unused) {
  (void)unused;
  for (unsigned i = 0; !atomic_load(&stop); i++) {
    jitsym_code code = test_code(PARENT + 0x1000 + 0x100 * (i % 10000), 128, "storm");
    jitsym_id id = 0;
    jitsym_status status = jitsym_register(session, &code, &id);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
    atomic_fetch_add(&registered, status == JITSYM_OK);
    if (i % 16 == 15) {
      CHECK_OK(test_flush(session));
    }
    if (id != 0 && i % 8 == 7) {
      CHECK_OK(jitsym_unregister(session, id));
    }
  }
  return NULL;
}

/* Sessions come and go: a fork may find the library in the middle of it, and init must work in the child all the same. */
static void *doors(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    jitsym *other = open_alone();
    jitsym_stats stats;
    stats.struct_size = sizeof stats;
    CHECK_OK(jitsym_get_stats(other, &stats));
    CHECK_OK(jitsym_close(other));
  }
  return NULL;
}

/*
 * Whether a child of a process with busy threads can allocate memory. In glibc it can; but what gcc 12 has of
 * AddressSanitizer takes no care of a fork: a lock of its allocator that another thread holds then is never released.
 */
#if defined(__SANITIZE_ADDRESS__)
enum { CHILD_CAN_ALLOCATE = 0 };
#else
enum { CHILD_CAN_ALLOCATE = 1 };
#endif

static void storm_child(unsigned number) {
  switch (number % 4) {
    case 0:
      check_forked(session);
      _exit(0);
    case 1:
      if (CHILD_CAN_ALLOCATE) {
        own_files(0);
      }
      _exit(0);
    case 2:
      execl("/bin/true", "true", (char *)NULL);
      _exit(1);
    default:
      test_inherits_threads = 1;
      exit(0);
  }
}

static void forks(void *(*thread_function)(void *), unsigned count) {
  session = open_alone();
  inherited = test_register(session, PARENT, 64, "of the parent");
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, thread_function, NULL) == 0);
  for (unsigned i = 0; i < count; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      storm_child(i);
    }
    test_wait_ok(child);
    CHECK(!file_exists(test_path_of(child, JITSYM_SINK_MAP).text));
    CHECK(!file_exists(test_path_of(child, JITSYM_SINK_JITDUMP).text));
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.registered == 1 + atomic_load(&registered) && stats.write_errors == 0 && stats.sinks_failed == 0);
  CHECK(stats.jitdump_records == stats.registered);
  check_parent(getpid());
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == stats.registered && dump.size == DUMP_HEADER + stats.jitdump_bytes);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void forks_in_storm(void) {
  forks(storm, test_light ? 12 : 300);
}

static void forks_at_doors(void) {
  forks(doors, test_light ? 12 : 200);
}

/* A session that was closed before the fork is closed, not the parent's; one that never was, was not. */
static void closed_before(void) {
  session = open_alone();
  CHECK_OK(jitsym_close(session));
  /* Then nothing but the library's own state leads to what the child inherits, and LeakSanitizer is to find all of it. */
  test_wait_for_end_of_thread();
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    jitsym_status status = jitsym_flush(session, 0);
    CHECK(status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_FORKED);
    CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_flush(NULL, 0));
    CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_flush((jitsym *)&session, 0));
    jitsym *own = open_alone();
    test_register(own, CHILD, 64, "of the child");
    CHECK_OK(jitsym_close(own));
    struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
    CHECK(dump.pid == (uint32_t)getpid() && dump_count(&dump, DUMP_LOAD) == 1);
    dump_free(&dump);
    exit(0);
  }
  test_wait_ok(child);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(quiet);
  test_child(forks_in_storm);
  test_child(forks_at_doors);
  test_child(closed_before);
  return test_end();
}
