/*
 * C code is called through three pieces of code without frame pointers, and the process's own unwinder finds its callers. DIR
 * WHAT [NUMBER]. x86-64.
 */
#define _GNU_SOURCE
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "chain.h"
#include "exceptions.h"
#include "jitsym_control.h"
#include "testing.h"
#include "known.h"

enum { PIECES = 3, PIECE_ROOM = 64, CHAIN_ROOM = PIECES * PIECE_ROOM, MEMORY = 1 << 25, THREADS = 8, STORM_ROOM = 16384 };

typedef int jit_function(int);

static jitsym *session;
static unsigned char *memory;
static const char *what;
static _Thread_local const unsigned char *running;
static _Thread_local const void *caller;
static uint32_t sinks = JITSYM_SINK_UNWINDER | JITSYM_SINK_MAP;

#ifdef UNW_STEP
#define UNW_LOCAL_ONLY
#include <libunwind.h>

/* nongnu libunwind's own interface. */
static int walk(void **found, int most) {
  unw_context_t context;
  unw_cursor_t cursor;
  CHECK(unw_getcontext(&context) == 0 && unw_init_local(&cursor, &context) == 0);
  int count = 0;
  do {
    unw_word_t at;
    CHECK(unw_get_reg(&cursor, UNW_REG_IP, &at) == 0);
    found[count++] = (void *)(uintptr_t)at;
  } while (count < most && unw_step(&cursor) > 0);
  return count;
}
#define backtrace walk
#endif

/* Whether all callers are found: the three pieces, innermost first, and then `through`'s caller. */
static int all_are_found(void) {
  void *found[100];
  int count = backtrace(found, 100), at = 0;
  const void *last = NULL;
  for (int piece = PIECES - 1; piece >= 0; piece--) {
    const unsigned char *start = running + PIECE_ROOM * piece;
    while (at < count && !((unsigned char *)found[at] > start && (unsigned char *)found[at] < start + PIECE_ROOM)) {
      at++;
    }
    last = at < count ? found[at] : NULL;
    CHECK(last == NULL || (piece == PIECES - 1 || found[at - 1] != last));
    at++;
  }
  while (at < count && found[at] != caller) {
    at++;
  }
  return at < count;
}

/* What the innermost piece calls. */
__attribute__((noinline)) int reached(int number) {
  if (strcmp(what, "exit") == 0) {
    pthread_exit(NULL);
  } else if (strcmp(what, "cancel") == 0) {
    for (;;) {
      pause();
    }
  } else if (number < 0) {
    throw_number(-number);
  }
  return all_are_found();
}

__attribute__((noinline)) static int through(const unsigned char *at, int argument) {
  running = at;
  caller = __builtin_return_address(0);
  int left = 0, result = call_and_catch((jit_function *)(uintptr_t)at, argument, &left);
  CHECK(left == 1);
  return result;
}

static jitsym_id announce(const unsigned char *at, size_t size) {
  jitsym_unwind_row rows[4];
  jitsym_unwind unwind = chain_unwind(rows);
  jitsym_code code = test_code((uintptr_t)at, size, "piece");
  code.bytes = at;
  code.unwind = &unwind;
  jitsym_id id = 0;
  CHECK_KNOWN(session, jitsym_register(session, &code, &id));
  return id;
}

static void make_chain(unsigned char *at, jitsym_id *ids) {
  uint64_t next = (uintptr_t)reached;
  for (int i = PIECES - 1; i >= 0; i--) {
    unsigned char *place = at + PIECE_ROOM * i;
    ids[i] = announce(place, chain_emit(place, next));
    next = (uintptr_t)place;
  }
}

/* libgcc's, which not all unwinders have: the FDE of an address, and what it is counted from. */
extern const unsigned char *_Unwind_Find_FDE(const void *addr, uintptr_t *bases) __attribute__((weak));

/* Nobody knows code that has ended. */
static void check_unknown(const unsigned char *at) {
  uintptr_t bases[3];
  CHECK(_Unwind_Find_FDE == NULL || _Unwind_Find_FDE(at, bases) == NULL);
#ifdef UNW_STEP
  unw_proc_info_t info;
  CHECK(unw_get_proc_info_by_ip(unw_local_addr_space, (uintptr_t)at, &info, NULL) != 0);
#endif
}

static void end_chain(const jitsym_id *ids, const unsigned char *at) {
  for (int i = 0; i < PIECES; i++) {
    CHECK_KNOWN(session, jitsym_unregister(session, ids[i]));
    check_unknown(at + PIECE_ROOM * i + 1);
  }
}

/* Reads what the unwinder reads, where tools see it: sanitizers are in this program and in the library, and not in the unwinder. */
static void read_entries(const unsigned char *at) {
  uintptr_t bases[3], start;
  for (int i = 0; i < PIECES && _Unwind_Find_FDE != NULL; i++) {
    const unsigned char *piece = at + PIECE_ROOM * i, *entry = _Unwind_Find_FDE(piece + 1, bases);
    CHECK(entry != NULL);
    unsigned sum = 0;
    uint32_t size;
    memcpy(&size, entry, sizeof size);
    for (uint32_t k = 0; k < size; k++) {
      sum += entry[sizeof size + k];
    }
    /* After its size and the distance to its CIE. */
    memcpy(&start, entry + 2 * sizeof size, sizeof start);
    CHECK(sum > 0 && start == (uintptr_t)piece);
  }
}

static void check(const unsigned char *at) {
  CHECK(through(at, 1) == 1);
  CHECK(through(at, -5) == 1005);
  read_entries(at);
}

static void *runs_and_ends(void *left) {
  running = memory;
  call_and_clean((jit_function *)(uintptr_t)memory, 1, left);
  return left;
}

/* The thread ends in the midst of the code: what C++ has to clean up above it is cleaned up. */
static void thread_ends(void) {
  pthread_t thread;
  int left = 0;
  void *result;
  CHECK(pthread_create(&thread, NULL, runs_and_ends, &left) == 0);
  if (strcmp(what, "cancel") == 0) {
    CHECK(pthread_cancel(thread) == 0);
  }
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result == (strcmp(what, "cancel") == 0 ? PTHREAD_CANCELED : NULL) && left == 1);
}

static void forks(void) {
  jitsym_id ids[PIECES];
  pid_t child = fork();
  CHECK(child >= 0);
  check(memory);
  if (child == 0) {
    make_chain(memory + CHAIN_ROOM, ids);
    check(memory + CHAIN_ROOM);
    check(memory);
    end_chain(ids, memory + CHAIN_ROOM);
    make_chain(memory + CHAIN_ROOM + 8, ids);
    check(memory + CHAIN_ROOM + 8);
    CHECK_OK(jitsym_close(session));
    _exit(0);
  }
  test_wait_ok(child);
}

/* A child that takes nothing over puts other code where its parent's was, which the unwinder has known since before the fork. */
static void forks_alone(void) {
  check(memory);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    jitsym_id ids[PIECES];
    session = test_open_flags(sinks, 0);
    make_chain(memory + 8, ids);
    check(memory + 8);
    CHECK_OK(jitsym_close(session));
    _exit(0);
  }
  test_wait_ok(child);
  check(memory);
}

/* Memory is used again, at other places in it. `count` chains at a time. */
static void reuse(unsigned seed, unsigned char *from, unsigned count, unsigned rounds) {
  jitsym_id (*ids)[PIECES] = calloc(count, sizeof *ids);
  unsigned char **places = calloc(count, sizeof *places);
  CHECK(ids != NULL && places != NULL);
  for (unsigned round = 0; round < rounds; round++) {
    seed = seed * 1664525 + 1013904223;
    unsigned i = (seed >> 8) % count;
    if (places[i] != NULL) {
      end_chain(ids[i], places[i]);
    }
    places[i] = from + (size_t)(2 * CHAIN_ROOM) * i + (seed >> 24) % CHAIN_ROOM;
    make_chain(places[i], ids[i]);
    check(places[i]);
    i = (seed >> 4) % count;
    if (places[i] != NULL) {
      check(places[i]);
    }
  }
  for (unsigned i = 0; i < count; i++) {
    if (places[i] != NULL) {
      check(places[i]);
      end_chain(ids[i], places[i]);
    }
  }
  free(ids);
  free(places);
}

#ifdef UNW_STEP
extern unw_word_t _U_dyn_info_list_addr(void);

static int is_there(const unw_dyn_info_t *entry, unw_word_t ip) {
  return entry->start_ip <= ip && ip < entry->end_ip;
}

/* nongnu libunwind walks through its list without a lock. A walk to the entry of code that lives, which waits for a processor somewhere
 * on its way, gets there whatever comes and goes meanwhile. */
static void interrupted_walks(unsigned seed) {
  enum { PLACES = 200, ROUNDS = 3000, CHANGES = 8 };
  const unw_dyn_info_list_t *list = (const unw_dyn_info_list_t *)(uintptr_t)_U_dyn_info_list_addr();
  jitsym_id ids[PLACES] = {0};
  unw_word_t ip = (uintptr_t)memory + 1;
  for (int round = 0; round < ROUNDS; round++) {
    seed = seed * 1664525 + 1013904223;
    const unw_dyn_info_t *at = list->first;
    for (unsigned steps = (seed >> 8) % 24; steps > 0 && !is_there(at, ip); steps--) {
      at = at->next;
    }
    for (unsigned changes = (seed >> 16) % CHANGES; changes > 0; changes--) {
      seed = seed * 1664525 + 1013904223;
      unsigned place = (seed >> 8) % PLACES;
      unsigned char *code = memory + CHAIN_ROOM + 2 * PIECE_ROOM * place;
      if (ids[place] != 0) {
        CHECK_KNOWN(session, jitsym_unregister(session, ids[place]));
        ids[place] = 0;
      } else {
        ids[place] = announce(code, chain_emit(code, 0));
      }
    }
    while (at != NULL && !is_there(at, ip)) {
      at = at->next;
    }
    if (at == NULL) {
      fprintf(stderr, "round %d\n", round);
    }
    CHECK(at != NULL);
  }
}
#endif

struct storm {
  unsigned number, count, rounds;
};

static _Atomic unsigned running_storms;

static void *storm(void *argument) {
  const struct storm *part = argument;
  /* Near each other, for tables that all share. */
  reuse(part->number, memory + 4096 + (size_t)STORM_ROOM * part->number, part->count, part->rounds);
  running_storms--;
  return NULL;
}

/* Exceptions go through code that lives all the time, while tables come and go around it. */
static void storms(unsigned rounds) {
  pthread_t threads[THREADS];
  struct storm parts[THREADS];
  running_storms = THREADS;
  for (unsigned i = 0; i < THREADS; i++) {
    parts[i] = (struct storm){i, 20, rounds};
    CHECK(pthread_create(&threads[i], NULL, storm, &parts[i]) == 0);
  }
  while (running_storms > 0) {
    check(memory);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

/* From high addresses to low ones, or the other way. */
static void many(unsigned count, int downwards) {
  unsigned char *at = memory + CHAIN_ROOM;
  for (unsigned i = 0; i < count; i++) {
    unsigned char *place = at + PIECE_ROOM * (size_t)(downwards ? count - i : i);
    announce(place, chain_emit(place, 0));
  }
}

/* Nanoseconds of a throw: the median of some. */
static uint64_t throw_takes(void) {
  enum { TIMES = 201 };
  uint64_t took[TIMES];
  for (int i = 0; i < TIMES; i++) {
    uint64_t begin = test_now();
    CHECK(through(memory, -5) == 1005);
    took[i] = test_now() - begin;
    for (int k = i; k > 0 && took[k] < took[k - 1]; k--) {
      uint64_t other = took[k];
      took[k] = took[k - 1];
      took[k - 1] = other;
    }
  }
  return took[TIMES / 2];
}

/* A throw with few pieces of code, with many, and so on: the medians, and their ratio. */
static void cost(unsigned count) {
  enum { ROUNDS = 3, PATIENCE_MS = 60000 };
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t few = throw_takes(), begin = test_now();
    many(count, 0);
    begin = test_now() - begin;
    uint64_t first = test_now();
    CHECK(through(memory, -5) == 1005);
    first = test_now() - first;
    uint64_t with_many = throw_takes();
    printf("throw %llu ns, with %u pieces more %llu (%.2f times, first %llu); register %llu ns each\n", (unsigned long long)few, count,
           (unsigned long long)with_many, (double)with_many / (double)few, (unsigned long long)first,
           (unsigned long long)(begin / count));
    fflush(stdout);
    uint64_t size = (uint64_t)PIECE_ROOM * (count + 1);
    CHECK_KNOWN(session, jitsym_unregister_range(session, (uintptr_t)memory + CHAIN_ROOM, size, 0));
    /* LLVM libunwind takes its time for that. */
    CHECK_OK(jitsym_flush(session, PATIENCE_MS));
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc >= 3);
  what = argv[2];
  unsigned number = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
  struct rlimit none = {0, 0};
  CHECK(setrlimit(RLIMIT_CORE, &none) == 0);
  uint32_t flags = strcmp(what, "adopted") == 0 ? JITSYM_INIT_ADOPT : 0;
  sinks |= flags != 0 ? JITSYM_SINK_REGION : 0;
  flags |= strcmp(what, "alone") == 0 ? JITSYM_INIT_FORK_ALONE : 0;
  session = test_open_flags(strcmp(what, "late") == 0 || strcmp(what, "off") == 0 ? JITSYM_SINK_JITDUMP : sinks, flags);
  memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  jitsym_id ids[PIECES];
  make_chain(memory, ids);
  if (strcmp(what, "off") == 0) {
    /* The unwinder stops at the first piece. */
    CHECK(through(memory, 1) == 0);
  } else if (strcmp(what, "exit") == 0 || strcmp(what, "cancel") == 0) {
    thread_ends();
  } else if (strcmp(what, "fork") == 0) {
    forks();
  } else if (strcmp(what, "alone") == 0) {
    forks_alone();
  } else if (strcmp(what, "reuse") == 0) {
    reuse(number, memory, 200, 2000);
#ifdef UNW_STEP
  } else if (strcmp(what, "walk") == 0) {
    interrupted_walks(number);
#endif
  } else if (strcmp(what, "storm") == 0) {
    storms(number);
  } else if (strcmp(what, "many") == 0) {
    many(number, number % 2);
    check(memory);
  } else if (strcmp(what, "cost") == 0) {
    cost(number);
  } else if (strcmp(what, "again") == 0) {
    for (int i = 0; i < 3; i++) {
      check(memory);
      CHECK_OK(jitsym_disable(session, JITSYM_SINK_UNWINDER));
      CHECK(through(memory, 1) == 0);
      CHECK_KNOWN(session, jitsym_enable(session, JITSYM_SINK_UNWINDER));
    }
    check(memory);
  } else if (strcmp(what, "late") == 0) {
    CHECK(through(memory, 1) == 0);
    CHECK_KNOWN(session, jitsym_enable(session, JITSYM_SINK_UNWINDER));
    check(memory);
    CHECK_OK(jitsym_disable(session, JITSYM_SINK_UNWINDER));
    CHECK(through(memory, 1) == 0);
  } else {
    check(memory);
    /* The outermost piece. */
    unsigned char *moved = memory + CHAIN_ROOM;
    memcpy(moved, memory, PIECE_ROOM);
    jitsym_move_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.addr = (uintptr_t)moved;
    target.bytes = moved;
    CHECK_KNOWN(session, jitsym_move(session, ids[0], &target));
    CHECK(through(moved, -5) == 1005);
    announce(memory, chain_emit(memory, (uintptr_t)memory + PIECE_ROOM));
    check(memory);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
