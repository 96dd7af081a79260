/* Many threads at once: every call comes to a documented status, nothing is lost and nothing is mixed up. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;
enum { THREADS = 8 };

static uint32_t thread_id(void) {
  return (uint32_t)syscall(SYS_gettid);
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525 + 1013904223;
  return *state >> 8;
}

static struct {
  _Atomic(jitsym *) session;
  atomic_int stop;
} chaos;

/* What a call on a session may come to that another thread may close meanwhile. After that, there is nothing to do for a moment. */
static void allowed(jitsym_status status, jitsym_status also) {
  if (status != JITSYM_OK && status != JITSYM_ERR_CLOSED && status != also) {
    fprintf(stderr, "unexpected: %s\n", jitsym_status_name((int32_t)status));
  }
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == also);
  if (status == JITSYM_ERR_CLOSED) {
    test_sleep_ms(0);
  }
}

static void *chaos_thread(void *argument) {
  uint32_t random = (uint32_t)(uintptr_t)argument;
  jitsym_unwind unwind = test_unwind();
  jitsym_line line = {0, 1, 0, 0, "chaos.c"};
  jitsym_id ids[16] = {0};
  while (!atomic_load(&chaos.stop)) {
    jitsym *session = atomic_load(&chaos.session);
    jitsym_id *id = &ids[next_random(&random) % 16];
    uint64_t addr = ADDR + 0x40 * (next_random(&random) % 4096);
    switch (next_random(&random) % 16) {
      default: {
        jitsym_code code = test_code(addr, 0x10 + next_random(&random) % 0x100, "chaos");
        code.unwind = next_random(&random) % 2 ? &unwind : NULL;
        code.lines = &line;
        code.line_count = next_random(&random) % 2;
        jitsym_id got = 0x5555;
        jitsym_status status = jitsym_register(session, &code, &got);
        allowed(status, JITSYM_ERR_DROPPED);
        CHECK(status == JITSYM_OK ? got != 0 && got != 0x5555 : got == 0x5555);
        *id = status == JITSYM_OK ? got : *id;
        break;
      }
      case 0:
      case 1: {
        jitsym_move_target target = test_target(addr);
        jitsym_status status = jitsym_move(session, *id, &target);
        allowed(status == JITSYM_ERR_DROPPED ? JITSYM_OK : status, JITSYM_ERR_UNKNOWN_ID);
        break;
      }
      case 2:
      case 3:
      case 4: {
        jitsym_status status = jitsym_unregister(session, *id);
        allowed(status == JITSYM_ERR_DROPPED ? JITSYM_OK : status, JITSYM_ERR_UNKNOWN_ID);
        break;
      }
      case 5:
        allowed(jitsym_unregister_range(session, addr, 0x400, 0), JITSYM_ERR_DROPPED);
        break;
      case 6:
        allowed(jitsym_flush(session, next_random(&random) % 20), JITSYM_ERR_TIMEOUT);
        break;
      case 7: {
        jitsym_stats stats;
        stats.struct_size = sizeof stats;
        allowed(jitsym_get_stats(session, &stats), JITSYM_OK);
        char text[TEST_PATH_MAX];
        allowed(jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text), JITSYM_OK);
        allowed(jitsym_last_error(session, text, sizeof text), JITSYM_OK);
        break;
      }
    }
  }
  return NULL;
}

/* Threads do all there is to do while sessions are closed and opened under them. */
static void chaos_run(void) {
  atomic_store(&chaos.session, test_open());
  pthread_t threads[THREADS];
  /* They never pause; under valgrind, where one thread runs at a time, many would leave the writer too little of it. */
  unsigned count = test_light ? 2 : THREADS;
  for (uintptr_t i = 0; i < count; i++) {
    CHECK(pthread_create(&threads[i], NULL, chaos_thread, (void *)(i + 1)) == 0);
  }
  unsigned rounds = test_light ? 20 : 120;
  for (unsigned i = 0; i < rounds; i++) {
    jitsym *old = atomic_load(&chaos.session), *new = NULL;
    /* Half of the time the last session closes, and writer and files with it, before the next one opens. */
    if (i % 2 == 0) {
      CHECK_OK(jitsym_close(old));
      CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(old));
      new = test_open();
    } else {
      new = test_open();
      CHECK_OK(jitsym_close(old));
    }
    CHECK(new != old);
    atomic_store(&chaos.session, new);
    test_sleep_ms(i % 4);
  }
  atomic_store(&chaos.stop, 1);
  for (unsigned i = 0; i < count; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  jitsym *last = atomic_load(&chaos.session);
  test_register(last, ADDR + 0x1000000, 0x40, "after the chaos");
  jitsym_stats stats = test_stats(last);
  CHECK(stats.sinks_failed == 0 && stats.write_errors == 0 && stats.registered > 0);
  struct dump dump = dump_read(test_path(last, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path(last, JITSYM_SINK_MAP).text);
  CHECK(dump_load(&dump, "after the chaos", 0) != NULL);
  CHECK(strcmp(map_name(&map, ADDR + 0x1000000), "after the chaos") == 0);
  CHECK(dump.size == DUMP_HEADER + stats.jitdump_bytes && map.count == stats.map_entries);
  map_free(&map);
  dump_free(&dump);
  CHECK_OK(jitsym_close(last));
}

/*
 * Sessions that come and go on many threads at once: whoever closes one learns how that went, and not that another thread
 * was the last to close one; and whoever flushes one that is closed meanwhile does not wait for an answer that never comes.
 */
static void *comes_and_goes(void *argument) {
  uint64_t addr = ADDR + 0x1000 * (uint64_t)(uintptr_t)argument;
  for (unsigned i = 0; i < (test_light ? 10 : 200); i++) {
    jitsym *session = test_open();
    test_register(session, addr, 0x40, "comes and goes");
    CHECK_OK(jitsym_close(session));
    CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(session));
  }
  return NULL;
}

static void *flushes(void *unused) {
  (void)unused;
  while (!atomic_load(&chaos.stop)) {
    allowed(jitsym_flush(atomic_load(&chaos.session), 60000), JITSYM_OK);
  }
  return NULL;
}

static void coming_and_going(void) {
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, comes_and_goes, (void *)i) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  atomic_store(&chaos.session, test_open());
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, flushes, NULL) == 0);
  }
  for (unsigned i = 0; i < (test_light ? 10 : 200); i++) {
    CHECK_OK(jitsym_close(atomic_load(&chaos.session)));
    atomic_store(&chaos.session, test_open());
  }
  atomic_store(&chaos.stop, 1);
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_OK(jitsym_close(atomic_load(&chaos.session)));
}

/*
 * Calls that lose the race with the end of their session say so, and not what follows from it: that the code is unknown, or
 * that nobody made room.
 */
static struct {
  jitsym *session;
  jitsym_id ids[64];
  atomic_int go;
} losing;

static void *loses(void *argument) {
  (void)argument;
  while (!atomic_load(&losing.go)) {
  }
  jitsym_move_target target = test_target(ADDR + 0x100000);
  for (unsigned i = 0; i < 64; i++) {
    allowed(jitsym_move(losing.session, losing.ids[i], &target), JITSYM_OK);
    target.addr += 0x100;
  }
  for (unsigned i = 0; i < 64; i++) {
    allowed(jitsym_unregister(losing.session, losing.ids[i]), JITSYM_OK);
  }
  return NULL;
}

static void losers(void) {
  for (unsigned round = 0; round < (test_light ? 10 : 200); round++) {
    losing.session = test_open();
    for (unsigned i = 0; i < 64; i++) {
      losing.ids[i] = test_register(losing.session, ADDR + 0x100 * i, 0x40, "loses");
    }
    atomic_store(&losing.go, 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, loses, NULL) == 0);
    atomic_store(&losing.go, 1);
    if (round % 2 == 0) {
      test_sleep_ms(0);
    }
    CHECK_OK(jitsym_close(losing.session));
    CHECK(pthread_join(thread, NULL) == 0);
  }
}

/* Every registration of the storm says in its address, name, size and bytes which one it is. */
static struct {
  jitsym *session;
  unsigned each;
  uint32_t tids[256];
} storm;

static uint64_t storm_addr(unsigned thread, unsigned number) {
  return ADDR + ((uint64_t)thread << 24) + 0x200 * (uint64_t)number;
}

static uint64_t storm_size(unsigned thread, unsigned number) {
  return 16 + (thread * 31 + number * 7) % 400;
}

static unsigned char storm_byte(unsigned thread, unsigned number, unsigned at) {
  return (unsigned char)(thread * 101 + number * 13 + at * 3);
}

static void storm_register(unsigned thread, unsigned number) {
  unsigned char bytes[512];
  char name[64], file[64];
  jitsym_code code = test_code(storm_addr(thread, number), storm_size(thread, number), name);
  snprintf(name, sizeof name, "storm %u %u", thread, number);
  snprintf(file, sizeof file, "/src/%u/%u.c", thread, number);
  for (unsigned at = 0; at < code.size; at++) {
    bytes[at] = storm_byte(thread, number, at);
  }
  code.bytes = bytes;
  jitsym_line line = {number % 16, number + 1, thread + 1, 0, file};
  jitsym_unwind unwind = test_unwind();
  if (number % 3 == 0) {
    code.lines = &line;
    code.line_count = 1;
  }
  if (number % 2 == 0) {
    code.unwind = &unwind;
  }
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(storm.session, &code, &id));
  CHECK(id != 0);
  /* What was handed over is the caller's again. */
  memset(bytes, 0xee, sizeof bytes);
  memset(name, 'e', sizeof name - 1);
  memset(file, 'e', sizeof file - 1);
}

/* That all of the storm is in both files, each piece whole and with its own. */
static void storm_check(unsigned threads) {
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  size_t loads = 0;
  unsigned char *seen = calloc(threads, storm.each);
  CHECK(seen != NULL);
  for (size_t i = 0; i < dump.count; i++) {
    const struct dump_record *load = &dump.records[i];
    if (load->id != DUMP_LOAD) {
      continue;
    }
    loads++;
    unsigned thread, number;
    char name[64], file[64];
    CHECK(sscanf(load->name, "storm %u %u", &thread, &number) == 2 && thread < threads && number < storm.each);
    snprintf(name, sizeof name, "storm %u %u", thread, number);
    CHECK(strcmp(load->name, name) == 0);
    CHECK(!seen[thread * storm.each + number]);
    seen[thread * storm.each + number] = 1;
    CHECK(load->addr == storm_addr(thread, number) && load->size == storm_size(thread, number));
    CHECK(load->tid == storm.tids[thread]);
    for (unsigned at = 0; at < load->size; at++) {
      CHECK(load->code[at] == storm_byte(thread, number, at));
    }
    CHECK((load->unwind != NULL) == (number % 2 == 0));
    CHECK((load->debug != NULL) == (number % 3 == 0));
    if (load->debug != NULL) {
      struct dump_line line = dump_line(load->debug, 0);
      snprintf(file, sizeof file, "/src/%u/%u.c", thread, number);
      CHECK(line.addr == load->addr + number % 16 && line.line == (int)number + 1 && line.column == (int)thread + 1);
      CHECK(strcmp(line.file, file) == 0);
    }
    const struct map_entry *entry = map_find(&map, load->addr);
    CHECK(entry != NULL && entry->start == load->addr && entry->size == load->size && strcmp(entry->name, name) == 0);
  }
  CHECK(loads == (size_t)threads * storm.each && map.count == loads);
  free(seen);
  map_free(&map);
  dump_free(&dump);
}

static void *storm_thread(void *argument) {
  unsigned thread = (unsigned)(uintptr_t)argument;
  storm.tids[thread] = thread_id();
  for (unsigned i = 0; i < storm.each; i++) {
    storm_register(thread, i);
    if (i % 997 == 996) {
      CHECK_OK(test_flush(storm.session));
    }
  }
  return NULL;
}

static void storm_open(unsigned each, uint64_t max_memory) {
  jitsym_options options = test_options();
  options.max_memory = max_memory;
  /* Nothing may be dropped here, however slow the machine. */
  options.max_wait_ms = 20000;
  CHECK_OK(jitsym_init(&options, &storm.session));
  storm.each = each;
}

static void storm_run(void) {
  storm_open(test_light ? 150 : 3000, 0);
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, storm_thread, (void *)i) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_OK(test_flush(storm.session));
  storm_check(THREADS);
  jitsym_stats stats = test_stats(storm.session);
  uint64_t expected = (uint64_t)THREADS * storm.each;
  CHECK(stats.registered == expected && stats.live == expected && stats.jitdump_records == expected);
  CHECK(stats.map_entries == expected && stats.dropped == 0 && stats.overwritten == 0 && stats.map_rewrites == 0);
  CHECK_OK(jitsym_close(storm.session));
  storm_check(THREADS);
}

/* The same with little memory allowed: callers wait for the writer, and nothing is lost. */
static void storm_narrow(void) {
  storm_open(test_light ? 50 : 1500, 1);
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, storm_thread, (void *)i) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_OK(jitsym_close(storm.session));
  storm_check(THREADS);
}

/* Threads that end at once, with what they registered still on its way. */
static void brief(int by_close) {
  storm_open(3, 0);
  unsigned count = test_light ? 40 : 200;
  for (unsigned first = 0; first < count; first += THREADS) {
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
      CHECK(pthread_create(&threads[i], NULL, storm_thread, (void *)(uintptr_t)(first + i)) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
      CHECK(pthread_join(threads[i], NULL) == 0);
    }
  }
  CHECK_OK(by_close ? jitsym_close(storm.session) : jitsym_flush(storm.session, 60000));
  storm_check(count);
  if (!by_close) {
    CHECK_OK(jitsym_close(storm.session));
  }
}

static void brief_flush(void) {
  brief(0);
}

static void brief_close(void) {
  brief(1);
}

/* Threads that registered something once and stay: what they keep must not take from the others what these need. */
static pthread_barrier_t gathering;

static void *crowd_thread(void *argument) {
  pthread_barrier_wait(&gathering);
  storm_thread(argument);
  pthread_barrier_wait(&gathering);
  return NULL;
}

static void crowd(void) {
  enum { CROWD = 250 };
  jitsym_options options = test_options();
  /* Not the bounds that are set elsewhere: this is what a program gets that sets none. */
  CHECK_OK(jitsym_init(&options, &storm.session));
  storm.each = 2;
  CHECK(pthread_barrier_init(&gathering, NULL, CROWD) == 0);
  pthread_t threads[CROWD];
  for (uintptr_t i = 0; i < CROWD; i++) {
    CHECK(pthread_create(&threads[i], NULL, crowd_thread, (void *)i) == 0);
  }
  for (int i = 0; i < CROWD; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  pthread_barrier_destroy(&gathering);
  CHECK_OK(test_flush(storm.session));
  storm_check(CROWD);
  CHECK_OK(jitsym_close(storm.session));
}

/* A flush waits for the records of all threads that came before it, not only for those of its own. */
static pthread_barrier_t turn;

static void *other_thread(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < storm.each; i++) {
    storm.tids[0] = thread_id();
    storm_register(0, i);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
  }
  return NULL;
}

static void flush_of_others(void) {
  storm_open(test_light ? 10 : 100, 0);
  CHECK(pthread_barrier_init(&turn, NULL, 2) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
  for (unsigned i = 0; i < storm.each; i++) {
    pthread_barrier_wait(&turn);
    CHECK_OK(test_flush(storm.session));
    struct dump dump = dump_read(test_path(storm.session, JITSYM_SINK_JITDUMP).text);
    CHECK(dump_count(&dump, DUMP_LOAD) == i + 1);
    dump_free(&dump);
    pthread_barrier_wait(&turn);
  }
  CHECK(pthread_join(thread, NULL) == 0);
  pthread_barrier_destroy(&turn);
  CHECK_OK(jitsym_close(storm.session));
}

/* One code that all threads want to give back: exactly one of them does. */
static atomic_uint freed;
static jitsym_id shared_ids[512];

static void *free_thread(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < 512; i++) {
    jitsym_status status = jitsym_unregister(storm.session, shared_ids[i]);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_UNKNOWN_ID);
    atomic_fetch_add(&freed, status == JITSYM_OK);
  }
  return NULL;
}

static void free_once(void) {
  storm_open(512, 0);
  for (unsigned i = 0; i < 512; i++) {
    shared_ids[i] = test_register(storm.session, ADDR + 0x100 * i, 0x40, "wanted");
  }
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, free_thread, NULL) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK(atomic_load(&freed) == 512);
  jitsym_stats stats = test_stats(storm.session);
  CHECK(stats.unregistered == 512 && stats.live == 0);
  CHECK_OK(jitsym_close(storm.session));
}

/*
 * Code that one thread registers and another one unregisters: what comes first happens first, also for threads that the
 * writer has never heard of before, and also if the second one has ended and the first one has not.
 */
static pthread_barrier_t passing;
static jitsym_id passed;

static void *gives(void *argument) {
  passed = test_register(storm.session, ADDR + 0x100 * (uint64_t)(uintptr_t)argument, 0x40, "passed on");
  pthread_barrier_wait(&passing);
  pthread_barrier_wait(&passing);
  return NULL;
}

static void *takes(void *unused) {
  (void)unused;
  CHECK_OK(jitsym_unregister(storm.session, passed));
  return NULL;
}

static void pass_on(void) {
  unsigned rounds = test_light ? 30 : 1500;
  storm_open(1, 0);
  CHECK(pthread_barrier_init(&passing, NULL, 2) == 0);
  for (unsigned i = 0; i < rounds; i++) {
    pthread_t giver, taker;
    CHECK(pthread_create(&giver, NULL, gives, (void *)(uintptr_t)i) == 0);
    pthread_barrier_wait(&passing);
    CHECK(pthread_create(&taker, NULL, takes, NULL) == 0);
    CHECK(pthread_join(taker, NULL) == 0);
    pthread_barrier_wait(&passing);
    CHECK(pthread_join(giver, NULL) == 0);
  }
  pthread_barrier_destroy(&passing);
  jitsym_stats stats = test_stats(storm.session);
  CHECK(stats.registered == rounds);
  CHECK(stats.unregistered == rounds);
  CHECK(stats.live == 0);
  CHECK_OK(jitsym_close(storm.session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(chaos_run);
  test_child(coming_and_going);
  test_child(losers);
  test_child(storm_run);
  test_child(storm_narrow);
  test_child(brief_flush);
  test_child(brief_close);
  test_child(crowd);
  test_child(flush_of_others);
  test_child(free_once);
  test_child(pass_on);
  return test_end();
}
