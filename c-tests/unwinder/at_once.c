/*
 * The calling thread tells the unwinder of its code. The unwinder knows the right tables when a call returns, while a disk holds the
 * library's thread. It knows them also when that thread has read the records later. x86-64. Needs libgcc 13 or newer, or LLVM libunwind.
 *
 * Usage: at_once DIR PART..., with a session for each part
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "chain.h"
#include "exceptions.h"
#include "failing_disk.h"
#include "jitsym_region.h"
#include "testing.h"

enum { ROOM = 64, PLACES = 4096 };

extern const unsigned char *_Unwind_Find_FDE(const void *addr, uintptr_t *bases);

static unsigned char *memory;
static jitsym *session;
/* How much code has been registered in the session. */
static uint64_t registered;

static unsigned char *place(unsigned number) {
  return memory + ROOM * number;
}

static int reached(int number) {
  throw_number(number);
  return 0;
}

static int is_known(unsigned number) {
  uintptr_t bases[3];
  return _Unwind_Find_FDE(place(number) + 1, bases) != NULL;
}

/* Of this thread, allocations of so many bytes and more fail. */
static _Thread_local size_t least_refused = SIZE_MAX;
/* Each of its allocations is interrupted. */
static _Thread_local int is_interrupted;
/* This one stands still in its next allocation. */
static _Thread_local int stands_still;
static int is_still, may_go_on;

void *__libc_malloc(size_t size);

void *malloc(size_t size) {
  if (is_interrupted) {
    raise(SIGUSR1);
  }
  while (stands_still && !__atomic_load_n(&may_go_on, __ATOMIC_SEQ_CST)) {
    __atomic_store_n(&is_still, 1, __ATOMIC_SEQ_CST);
    test_sleep_ms(1);
  }
  return size >= least_refused ? NULL : __libc_malloc(size);
}

/* An exception goes through the code. */
static void check_passes(unsigned number) {
  int left = 0;
  CHECK(is_known(number));
  CHECK(call_and_catch((int (*)(int))(uintptr_t)place(number), 5, &left) == 1005 && left == 1);
}

static jitsym_status announce_at(unsigned char *at, uint32_t flags, jitsym_id *id) {
  jitsym_unwind_row rows[4];
  jitsym_unwind unwind = chain_unwind(rows);
  jitsym_code code = test_code((uintptr_t)at, chain_emit(at, (uintptr_t)reached), "at once");
  code.bytes = at;
  code.unwind = &unwind;
  code.flags = flags;
  *id = 0;
  jitsym_status status = jitsym_register(session, &code, id);
  registered += status == JITSYM_OK;
  return status;
}

static jitsym_id announce(unsigned number) {
  jitsym_id id;
  CHECK_OK(announce_at(place(number), 0, &id));
  check_passes(number);
  return id;
}

static void hold(void) {
  /* Not where memory becomes a region, of which the jitdump has nothing. */
  static unsigned char elsewhere[ROOM];
  jitsym_id id;
  disk_is_slow("/jit-");
  CHECK_OK(announce_at(elsewhere, 0, &id));
  disk_begins(1);
}

static void let_go(void) {
  __atomic_store_n(&disk.is_slow, 0, __ATOMIC_SEQ_CST);
  CHECK_OK(test_flush(session));
}

/* The child's first call takes over what its parent had, or finds that it cannot. */
static void forks(jitsym_id lives, jitsym_id ended) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_passes(1);
    CHECK(!is_known(2));
    jitsym_id id;
    jitsym_status status = announce_at(place(20), 0, &id);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_FORKED);
    if (status == JITSYM_OK) {
      check_passes(20);
      CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, ended));
      /* Of code that was registered just before the fork the child may know nothing. */
      status = jitsym_unregister(session, lives);
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_UNKNOWN_ID);
      CHECK(!is_known(1) && !is_known(2));
      CHECK_OK(jitsym_unregister(session, id));
      CHECK(!is_known(20));
      CHECK_OK(jitsym_close(session));
    }
    _exit(0);
  }
  test_wait_ok(child);
}

static void held(void) {
  jitsym_id before = announce(30), id, other;
  CHECK_OK(test_flush(session));
  hold();
  jitsym_id lives = announce(1), ended = announce(2);
  CHECK_OK(jitsym_unregister(session, ended));
  CHECK(!is_known(2));
  CHECK_OK(jitsym_unregister(session, before));
  CHECK(!is_known(30));

  /* Other code is where code has ended. */
  id = announce(3);
  CHECK_OK(jitsym_unregister(session, id));
  announce(3);

  /* Other code takes the place of code, without a word about that, and ends. */
  announce(4);
  CHECK_OK(announce_at(place(4) + 8, 0, &other));
  CHECK_OK(jitsym_unregister(session, other));
  CHECK(!is_known(4));
  announce(5);
  CHECK_OK(announce_at(place(5) + 8, 0, &other));
  CHECK(!is_known(5));

  /* Code moves, and moves on. */
  id = announce(6);
  for (unsigned to = 7; to < 9; to++) {
    memcpy(place(to), place(6), ROOM);
    jitsym_move_target target = test_target((uintptr_t)place(to));
    target.bytes = place(to);
    CHECK_OK(jitsym_move(session, id, &target));
    CHECK(!is_known(to - 1));
    check_passes(to);
  }

  /* A range, and a burst. */
  for (unsigned i = 9; i < 12; i++) {
    announce(i);
  }
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)place(10), 2 * ROOM, 0));
  CHECK(is_known(9) && !is_known(10) && !is_known(11));
  for (unsigned i = 12; i < 15; i++) {
    CHECK_OK(announce_at(place(i), JITSYM_CODE_MORE, &id));
    check_passes(i);
  }

  forks(lives, ended);

  /* The library's thread comes to the records. */
  let_go();
  static const unsigned known[] = {1, 3, 8, 9, 12, 13, 14}, unknown[] = {2, 4, 5, 6, 7, 10, 11, 30};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    check_passes(known[i]);
  }
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    CHECK(!is_known(unknown[i]));
  }
  forks(lives, ended);
}

/* More than the library's thread reads between two writes. */
static void announce_much(void) {
  enum { PIECES = 16, SIZE = 200000 };
  static unsigned char much[SIZE];
  for (unsigned i = 0; i < PIECES; i++) {
    jitsym_code code = test_code((uintptr_t)much, SIZE, "much");
    code.bytes = much;
    CHECK_OK(jitsym_register(session, &code, NULL));
    registered++;
  }
}

/* The library's thread has come to the records of registrations, and not to those of what ended the code. */
static void in_between(void) {
  registered = test_stats(session).registered;
  hold();
  jitsym_id ended = announce(1), other;
  announce(2);
  CHECK_OK(announce_at(place(2) + 8, 0, &other));
  uint64_t first = registered;
  announce_much();
  CHECK_OK(jitsym_unregister(session, ended));
  CHECK_OK(jitsym_unregister(session, other));
  announce(3);
  unsigned times = 0;
  uint64_t read;
  for (unsigned write = 2; (read = test_stats_now(session).registered) < registered; write++) {
    times += read >= first;
    CHECK(!is_known(1) && !is_known(2));
    check_passes(3);
    disk_begins(write);
  }
  CHECK(times > 0);
  let_go();
  CHECK(!is_known(1) && !is_known(2));
  check_passes(3);
}

/* A call for which there is no room changes nothing of what the unwinder knows. */
static void full(void) {
  hold();
  jitsym_id id, first = announce(1);
  jitsym_status status = JITSYM_OK;
  unsigned i = 2;
  for (; i < PLACES && status == JITSYM_OK; i++) {
    status = announce_at(place(i), 0, &id);
    CHECK(is_known(i) == (status == JITSYM_OK));
  }
  CHECK_STATUS(JITSYM_ERR_DROPPED, status);
  CHECK_STATUS(JITSYM_ERR_DROPPED, jitsym_unregister(session, first));
  check_passes(1);
  jitsym_move_target target = test_target((uintptr_t)place(i + 1));
  CHECK_STATUS(JITSYM_ERR_DROPPED, jitsym_move(session, first, &target));
  CHECK_STATUS(JITSYM_ERR_DROPPED, jitsym_unregister_range(session, (uintptr_t)memory, ROOM * PLACES, 0));
  check_passes(1);
  CHECK(!is_known(i + 1));
  let_go();
  check_passes(1);
  CHECK_OK(jitsym_unregister(session, first));
  CHECK(!is_known(1));
}

/* Nor does one for which there is no memory. */
static void without_memory(void) {
  enum { LEAST = 4096 };
  jitsym_id id, lives = announce(1);
  jitsym_move_target target = test_target((uintptr_t)place(2));
  least_refused = LEAST;
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, announce_at(place(3), 0, &id));
  CHECK(id == 0);
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_move(session, lives, &target));
  least_refused = SIZE_MAX;
  CHECK(!is_known(2) && !is_known(3));
  check_passes(1);
  announce(3);
  CHECK_OK(jitsym_move(session, lives, &target));
  CHECK(is_known(2) && !is_known(1));
}

static _Thread_local unsigned interruptions;

static void looks_for_callers(int signal) {
  (void)signal;
  interruptions++;
  CHECK(is_known(0));
}

/* A handler may look for callers whatever it interrupts: the unwinder too, in which a thread has its locks. */
static void interrupted(void) {
  enum { PATIENCE = 60 };
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = looks_for_callers;
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  announce(0);
  alarm(PATIENCE);
  is_interrupted = 1;
  for (unsigned i = 1; i < PLACES; i++) {
    announce(i);
  }
  is_interrupted = 0;
  alarm(0);
  CHECK(interruptions >= PLACES - 1);
}

/* Memory with code becomes a region. The code lives on, and the unwinder knows it all the time. */
static void adopted(void) {
  jitsym_id ids[PLACES];
  for (unsigned i = 0; i < PLACES; i++) {
    CHECK_OK(announce_at(place(i), 0, &ids[i]));
  }
  for (unsigned round = 0; round < 2; round++) {
    CHECK_OK(test_flush(session));
    for (unsigned i = 0; i < PLACES; i++) {
      check_passes(i);
    }
    if (round == 0) {
      CHECK_OK(jitsym_region_adopt(session, memory, ROOM * PLACES));
    }
  }
  hold();
  for (unsigned i = 0; i < PLACES; i++) {
    check_passes(i);
    if (i % 2 == 0) {
      CHECK_OK(jitsym_unregister(session, ids[i]));
      CHECK(!is_known(i));
    }
  }
  let_go();
  for (unsigned i = 0; i < PLACES; i++) {
    CHECK(is_known(i) == (i % 2 != 0));
  }
}

/* A table of the host's own, for code that never runs. */
static struct {
  uint32_t cie_length, cie_id;
  unsigned char cie[8];
  uint32_t length, cie_pointer;
  uint64_t begin, size;
  uint32_t end;
} __attribute__((packed)) table = {12, 0, {1, 0, 1, 0x78, 16}, 20, 20, 0x10000, 16, 0};

enum { TABLES = 1000 };

/* LLVM libunwind takes memory for its list now and then, under its lock. */
static void *fills_list(void *add) {
  stands_still = 1;
  for (int i = 0; i < TABLES; i++) {
    ((void (*)(void *))add)(&table.length);
  }
  return NULL;
}

/* LLVM libunwind's lock is nobody's in a child. The child is told that it has no such sink, and goes on. */
static void forked_under_lock(void) {
  void *add = dlsym(RTLD_DEFAULT, "__register_frame"), *remove = dlsym(RTLD_DEFAULT, "__deregister_frame");
  pthread_t thread;
  if (dlsym(RTLD_DEFAULT, "__unw_add_dynamic_fde") == NULL) {
    return;
  }
  announce(1);
  CHECK_OK(test_flush(session));
  CHECK(pthread_create(&thread, NULL, fills_list, add) == 0);
  TEST_AWAIT(__atomic_load_n(&is_still, __ATOMIC_SEQ_CST));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    jitsym_id id;
    CHECK_OK(announce_at(place(20), 0, &id));
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
    CHECK(test_stats_now(session).sinks_failed == JITSYM_SINK_UNWINDER);
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_close(session));
    _exit(0);
  }
  test_wait_ok(child);
  __atomic_store_n(&may_go_on, 1, __ATOMIC_SEQ_CST);
  CHECK(pthread_join(thread, NULL) == 0);
  for (int i = 0; i < TABLES; i++) {
    ((void (*)(void *))remove)(&table.length);
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*part)(void);
    uint32_t sinks, flags;
    uint64_t max_memory;
  } parts[] = {
    {"full", full, 0, JITSYM_INIT_DROP_WHEN_FULL, 1 << 20},
    {"held", held, 0, 0, 0},
    {"memory", without_memory, 0, 0, 0},
    {"between", in_between, 0, 0, 0},
    {"interrupted", interrupted, 0, 0, 0},
    {"adopted", adopted, JITSYM_SINK_REGION, 0, 0},
    {"forked", forked_under_lock, 0, 0, 0},
  };
  test_begin(argc, argv);
  memory = mmap(NULL, ROOM * PLACES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  for (int at = 2; at < argc; at++) {
    size_t i = 0;
    while (i < sizeof parts / sizeof *parts && strcmp(argv[at], parts[i].name) != 0) {
      i++;
    }
    CHECK(i < sizeof parts / sizeof *parts);
    jitsym_options options = test_options();
    options.sinks = JITSYM_SINK_UNWINDER | JITSYM_SINK_JITDUMP | parts[i].sinks;
    options.flags = parts[i].flags;
    options.max_memory = parts[i].max_memory;
    CHECK_OK(jitsym_init(&options, &session));
    parts[i].part();
    CHECK_OK(jitsym_close(session));
    for (unsigned k = 0; k < PLACES; k++) {
      CHECK(!is_known(k));
    }
  }
  return test_end();
}
