/*
 * Everything that threads may do at the same time, little of each: for the tools that look for races, which are slow. That what
 * is written is right, other programs check.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "gdb_list.h"
#include "jitsym_control.h"
#include "testing.h"

enum { THREADS = 3, STORM_THREADS = 8 };

static const uint64_t ADDR = 0x7000000000;

static struct {
  _Atomic(jitsym *) session;
  atomic_int stop;
  unsigned rounds;
  /* Code that is passed on from thread to thread. */
  _Atomic jitsym_id passed[16];
} shared;

/* What a call comes to whose session may be closed meanwhile. */
static void allowed(jitsym_status status) {
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_UNKNOWN_ID ||
        status == JITSYM_ERR_DROPPED || status == JITSYM_ERR_TIMEOUT);
}

static void *registers(void *argument) {
  uint64_t number = (uint64_t)(uintptr_t)argument;
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  for (unsigned i = 0; i < shared.rounds; i++) {
    jitsym *session = atomic_load(&shared.session);
    /* Some of it large, so that chunks fill. */
    jitsym_code code = test_code(ADDR + (number << 32) + 0x20000 * (uint64_t)i, i % 8 == 0 ? 0x8000 : 0x40, "raced");
    code.unwind = i % 2 ? &unwind : NULL;
    jitsym_id id = 0;
    allowed(jitsym_register(session, &code, &id));
    id = atomic_exchange(&shared.passed[(i + number) % 16], id);
    jitsym_move_target target = test_target(code.addr + 0x10000);
    switch (i % 8) {
      case 1:
      case 3:
        allowed(jitsym_unregister(session, id));
        break;
      case 5:
        allowed(jitsym_move(session, id, &target));
        break;
      case 7:
        allowed(jitsym_unregister_range(session, code.addr, 0x100, 0));
        break;
      default:
        break;
    }
    if (i % 64 == 63) {
      allowed(jitsym_flush(session, 20000));
    }
  }
  return NULL;
}

/* Threads that come and go all the time. */
static void *brief(void *unused) {
  (void)unused;
  while (!atomic_load(&shared.stop)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, registers, (void *)(uintptr_t)8) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  return NULL;
}

/* So many threads at once. */
static void register_at_once(uintptr_t count, unsigned rounds, void (*meanwhile)(void)) {
  pthread_t threads[STORM_THREADS];
  shared.rounds = rounds;
  for (uintptr_t i = 0; i < count; i++) {
    CHECK(pthread_create(&threads[i], NULL, registers, (void *)i) == 0);
  }
  meanwhile();
  for (uintptr_t i = 0; i < count; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

static void run(unsigned rounds, void (*meanwhile)(void)) {
  atomic_store(&shared.session, test_open());
  register_at_once(THREADS, rounds, meanwhile);
  jitsym_stats stats = test_stats(atomic_load(&shared.session));
  CHECK(stats.sinks_failed == 0 && stats.write_errors == 0);
  CHECK_OK(jitsym_close(atomic_load(&shared.session)));
}

static void nothing(void) {
}

static void plain(void) {
  run(test_light ? 300 : 3000, nothing);
}

static void opens_and_closes(void) {
  for (unsigned i = 0; i < (test_light ? 12 : 100); i++) {
    jitsym *old = atomic_load(&shared.session), *new = NULL;
    if (i % 2 == 0) {
      CHECK_OK(jitsym_close(old));
      new = test_open();
    } else {
      new = test_open();
      CHECK_OK(jitsym_close(old));
    }
    atomic_store(&shared.session, new);
  }
}

static void closes(void) {
  run(test_light ? 300 : 3000, opens_and_closes);
}

/* The parent's side of fork. The tools give up on the children of a process with threads, which end at once. */
static void fork_often(void) {
  for (unsigned i = 0; i < (test_light ? 6 : 60); i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      _exit(0);
    }
    test_wait_ok(child);
  }
}

static void forks(void) {
  run(test_light ? 300 : 3000, fork_often);
}

static void with_brief_threads(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, brief, NULL) == 0);
  test_sleep_ms(test_light ? 200 : 1000);
  atomic_store(&shared.stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
}

static void comes_and_goes(void) {
  run(test_light ? 40 : 400, with_brief_threads);
}

/* What debuggers look for. */
extern struct gdb_descriptor __jit_debug_descriptor;

/* How many objects the list has that debuggers read. Nothing may be on its way. */
static unsigned listed(void) {
  unsigned count = 0;
  const struct gdb_entry *before = NULL;
  for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry != NULL; entry = entry->next) {
    CHECK(entry->previous == before && entry->size >= 64 && memcmp(entry->object, "\177ELF", 4) == 0);
    before = entry;
    count++;
  }
  return count;
}

static void starts_and_stops(void) {
  jitsym *session = atomic_load(&shared.session);
  for (unsigned i = 0; i < (test_light ? 6 : 60); i++) {
    test_sleep_ms(10);
    CHECK_OK(jitsym_disable(session, JITSYM_SINK_GDB));
    CHECK_OK(jitsym_enable(session, JITSYM_SINK_GDB));
  }
}

/* Code that comes, moves and goes, for a debugger that may come, too. Both ends of the list stay. */
static void storm(void) {
  enum { ENDS = 2 };
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_GDB, 0);
  atomic_store(&shared.session, session);
  for (int i = 0; i < 2; i++) {
    register_at_once(STORM_THREADS, test_light ? 300 : 3000, i == 0 ? nothing : starts_and_stops);
    jitsym_stats stats = test_stats(session);
    CHECK(stats.sinks_failed == 0 && stats.write_errors == 0 && stats.live > 0 && listed() > ENDS);
    CHECK_OK(jitsym_unregister_range(session, 0, UINT64_MAX, 0));
    CHECK_OK(test_flush(session));
    CHECK_OK(jitsym_disable(session, JITSYM_SINK_GDB));
    CHECK(listed() == ENDS);
    CHECK_OK(jitsym_enable(session, JITSYM_SINK_GDB));
  }
  CHECK_OK(jitsym_close(session));
  CHECK(listed() == ENDS);
}

/* The writer goes to sleep, and whoever registers next wakes it. */
static void sleeps(void) {
  run(1, nothing);
  atomic_store(&shared.session, test_open());
  for (unsigned i = 0; i < 2; i++) {
    test_sleep_ms(2500);
    registers((void *)(uintptr_t)i);
  }
  CHECK_OK(jitsym_close(atomic_load(&shared.session)));
}

/* A process that exits while its threads go on. */
static void *registers_for_ever(void *argument) {
  for (;;) {
    registers(argument);
  }
  return NULL;
}

static void exits(void) {
  shared.rounds = 20;
  atomic_store(&shared.session, test_open());
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, registers_for_ever, NULL) == 0);
  test_sleep_ms(50);
}

/*
 * Only what locks protect: sessions, flushes, statistics, the writer's start and end, and forks. For tools that know locks, and
 * no other order between threads: nothing is registered, because records go from thread to thread without locks.
 */
static void *comes_to_rest(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 6; i++) {
    jitsym *session = test_open();
    CHECK_OK(test_flush(session));
    jitsym_stats stats = test_stats(session);
    CHECK(stats.registered == 0);
    char text[TEST_PATH_MAX];
    CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
    CHECK_OK(jitsym_last_error(session, text, sizeof text));
    CHECK_OK(jitsym_close(session));
  }
  return NULL;
}

static void locks(void) {
  /* What a process has once is published without a lock too. */
  CHECK_OK(jitsym_close(test_open()));
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, comes_to_rest, NULL) == 0);
  }
  fork_often();
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  if (argc >= 3 && (strcmp(argv[2], "locks") == 0 || strcmp(argv[2], "registering") == 0)) {
    test_light = 1;
    test_child(strcmp(argv[2], "locks") == 0 ? locks : plain);
    return test_end();
  }
  test_child(plain);
  test_child(closes);
  test_child(forks);
  test_child(comes_and_goes);
  test_child(storm);
  test_child(sleeps);
  test_child(exits);
  return test_end();
}
