/*
 * A program to be killed. Its threads register code of which every piece says in its name, address, size and bytes
 * which one it is, and note in a shared file what each call came to, right after it returned: what is noted there
 * survives SIGKILL as memory of the kernel does, so that a test knows exactly what the library had accepted. The test
 * that checks the files (tests/durability) makes up the same pieces from the same numbers.
 *
 * Arguments are `name=value`; see `arguments` for what there is.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "testing.h"

enum { THREADS_MAX = 32, CALLS_MAX = 1 << 20, LARGE = 300 * 1024, START_MAX = 4096, RELAY_SLOTS = 50 };

static const uint64_t ADDR = 0x10000000000, STRIDE = 0x80000, MOVED = 1ull << 39;

/* What is known of the process after its end. Calls are noted as 1 + status; 0 has not returned. */
struct truth {
  _Atomic uint64_t pid, opened, spool, child, done;
  uint64_t unused[3];
  _Atomic uint64_t tids[THREADS_MAX];
  unsigned char rest[4096 - 8 * (8 + THREADS_MAX)];
  _Atomic unsigned char calls[THREADS_MAX][CALLS_MAX];
};

static struct {
  const char *dir, *map_dir, *dump_dir, *truth;
  uint64_t threads;
  /* Calls of a thread, then silence. */
  uint64_t calls;
  /* Calls per second of all threads together; 0: as fast as it goes. */
  uint64_t rate;
  /* Largest size; 0: mostly small, now and then up to 4 KiB. One in `large` pieces is larger than a chunk. */
  uint64_t size, large;
  uint64_t seed;
  /* Moves, unregistrations and addresses that are used again are mixed in. */
  uint64_t ops;
  /* The threads take turns and use the same few addresses again and again. */
  uint64_t relay;
  uint64_t stable;
  uint64_t sinks, flags, max_memory, max_wait_ms;
  /* A forked child that outlives this process: 1 does nothing, 2 goes on with the session. */
  uint64_t fork;
  /* After all calls: become the same program again, with the next seed. */
  uint64_t again;
  /* Before this call the first thread removes the jitdump, and waits until there is another one. */
  uint64_t lose;
  uint64_t dump_max;
  /* SIGKILL itself so many microseconds after the session was opened. */
  uint64_t die_us;
  /* At the end of all calls: 0 waits to be killed; 1 and 2 say what became of the session, and 1 closes it. */
  uint64_t close;
} arguments;

static const struct {
  const char *name;
  const char **text;
  uint64_t *number;
} known[] = {
    {"dir", &arguments.dir, NULL},
    {"map_dir", &arguments.map_dir, NULL},
    {"dump_dir", &arguments.dump_dir, NULL},
    {"truth", &arguments.truth, NULL},
    {"threads", NULL, &arguments.threads},
    {"calls", NULL, &arguments.calls},
    {"rate", NULL, &arguments.rate},
    {"size", NULL, &arguments.size},
    {"large", NULL, &arguments.large},
    {"seed", NULL, &arguments.seed},
    {"ops", NULL, &arguments.ops},
    {"relay", NULL, &arguments.relay},
    {"stable", NULL, &arguments.stable},
    {"sinks", NULL, &arguments.sinks},
    {"flags", NULL, &arguments.flags},
    {"max_memory", NULL, &arguments.max_memory},
    {"max_wait_ms", NULL, &arguments.max_wait_ms},
    {"fork", NULL, &arguments.fork},
    {"again", NULL, &arguments.again},
    {"lose", NULL, &arguments.lose},
    {"dump_max", NULL, &arguments.dump_max},
    {"die_us", NULL, &arguments.die_us},
    {"close", NULL, &arguments.close},
};

static void arguments_read(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    size_t length = strcspn(argv[i], "=");
    CHECK(argv[i][length] == '=');
    size_t k = 0;
    while (k < sizeof known / sizeof *known &&
           (strlen(known[k].name) != length || memcmp(known[k].name, argv[i], length) != 0)) {
      k++;
    }
    CHECK(k < sizeof known / sizeof *known);
    if (known[k].text != NULL) {
      *known[k].text = argv[i] + length + 1;
    } else {
      *known[k].number = strtoull(argv[i] + length + 1, NULL, 10);
    }
  }
  CHECK(arguments.truth != NULL && arguments.dir != NULL);
  CHECK(arguments.threads <= THREADS_MAX && arguments.calls <= CALLS_MAX);
}

static struct truth *truth;
static jitsym *session;
static unsigned char pattern[START_MAX + LARGE + 1024];

static uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

static uint64_t size_of(uint64_t number, uint64_t hash) {
  if (arguments.large != 0 && (number + arguments.seed) % arguments.large == 0) {
    return LARGE + (hash >> 16) % 1024;
  }
  static const uint64_t limits[8] = {4096, 1024, 1024, 128, 128, 128, 128, 128};
  uint64_t limit = arguments.size != 0 ? arguments.size : limits[(hash >> 8) % 8];
  return 1 + (hash >> 16) % limit;
}

static uint64_t addr_of(uint64_t thread, uint64_t number) {
  uint64_t slot = number;
  if (arguments.relay) {
    slot = number % RELAY_SLOTS;
  } else if (arguments.ops && number % 6 == 5) {
    slot = number - 2;
  }
  return ADDR + (thread << 40) + STRIDE * slot;
}

/* In a relay, other code lies where code was. */
static uint32_t has_gap(uint64_t number) {
  return number % 4 == 0 && !arguments.relay ? JITSYM_CODE_GAP : 0;
}

static jitsym_status register_piece(uint64_t thread, uint64_t number, jitsym_id *id) {
  uint64_t hash = mixed(arguments.seed ^ (thread << 32) ^ number);
  char name[64], file[64];
  snprintf(name, sizeof name, "kill %u %u", (unsigned)thread, (unsigned)number);
  jitsym_code code;
  memset(&code, 0, sizeof code);
  code.struct_size = sizeof code;
  code.addr = addr_of(thread, number);
  code.size = size_of(number, hash);
  code.name = name;
  code.bytes = pattern + (hash >> 40) % START_MAX;
  code.flags = arguments.stable ? JITSYM_CODE_STABLE : 0;
  jitsym_unwind unwind;
  if (number % 2 == 0) {
    memset(&unwind, 0, sizeof unwind);
    unwind.struct_size = sizeof unwind;
    /* Less has no room for a prologue. */
    unwind.kind = code.size < 8 ? JITSYM_UNWIND_FIXED_FRAME : JITSYM_UNWIND_FRAME_POINTER;
    unwind.cfa_offset = 16;
    code.unwind = &unwind;
    code.flags |= has_gap(number);
  }
  jitsym_line line = {0, (uint32_t)number + 1, (uint32_t)thread + 1, 0, file};
  if (number % 3 == 0) {
    snprintf(file, sizeof file, "/src/%u/%u.c", (unsigned)thread, (unsigned)number);
    code.lines = &line;
    code.line_count = 1;
  }
  return jitsym_register(session, &code, id);
}

/* With `ops`, of eight calls six register; the seventh moves the third piece, and the last one takes back the fifth. */
static jitsym_status call_number(uint64_t thread, uint64_t call, jitsym_id *ids) {
  if (!arguments.ops) {
    return register_piece(thread, call, NULL);
  }
  uint64_t round = call / 8, which = call % 8;
  if (which < 6) {
    return register_piece(thread, 6 * round + which, &ids[which]);
  }
  uint64_t number = 6 * round + (which == 6 ? 2 : 4), hash = mixed(arguments.seed ^ (thread << 32) ^ number);
  if (which == 6) {
    jitsym_move_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.addr = addr_of(thread, 6 * round + 2) + MOVED;
    target.bytes = pattern + (hash >> 40) % START_MAX;
    target.flags = has_gap(number);
    return jitsym_move(session, ids[2], &target);
  }
  if (round % 2 == 0) {
    return jitsym_unregister(session, ids[4]);
  }
  return jitsym_unregister_range(session, addr_of(thread, 6 * round + 4), size_of(number, hash), 0);
}

/* How long the calls took, by number of bits of their nanoseconds and the two bits below the first. */
static _Atomic uint64_t times[64 * 4];

static void note_time(uint64_t ns) {
  unsigned bits = 63 - (unsigned)__builtin_clzll(ns | 4);
  atomic_fetch_add_explicit(&times[4 * bits + ((ns >> (bits - 2)) & 3)], 1, memory_order_relaxed);
}

static void note_call(uint64_t thread, uint64_t call, jitsym_status status) {
  if (status != JITSYM_OK && status != JITSYM_ERR_DROPPED) {
    const char *name = jitsym_status_name((int32_t)status);
    fprintf(stderr, "call %u of thread %u: %s\n", (unsigned)call, (unsigned)thread, name);
  }
  atomic_store_explicit(&truth->calls[thread][call], (unsigned char)(1 + (int)status), memory_order_release);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
}

static void lose_dump(void) {
  char path[4096];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_JITDUMP, path, sizeof path));
  CHECK(unlink(path) == 0);
  /* It says that the file was gone. */
  (void)jitsym_flush(session, 60000);
  CHECK(access(path, F_OK) == 0);
}

static _Atomic uint64_t turn;

static void *thread_main(void *argument) {
  uint64_t thread = (uint64_t)(uintptr_t)argument;
  atomic_store(&truth->tids[thread], (uint64_t)syscall(SYS_gettid));
  jitsym_id ids[8] = {0};
  uint64_t begin = test_now();
  for (uint64_t call = 0; call < arguments.calls; call++) {
    /* Sixteen calls at a time, or the sleeping would be all that there is. */
    if (arguments.rate != 0 && (arguments.rate < 10000 || call % 16 == 0)) {
      uint64_t due = begin + call * 1000000000 / arguments.rate * arguments.threads, now = test_now();
      if (now < due) {
        struct timespec wait = {(time_t)((due - now) / 1000000000), (long)((due - now) % 1000000000)};
        nanosleep(&wait, NULL);
      }
    }
    if (arguments.lose != 0 && thread == 0 && call == arguments.lose) {
      lose_dump();
    }
    if (arguments.relay) {
      if (call % arguments.threads != thread) {
        continue;
      }
      while (atomic_load(&turn) != call) {
        sched_yield();
      }
      note_call(0, call, register_piece(0, call, NULL));
      atomic_store(&turn, call + 1);
      continue;
    }
    uint64_t before = test_now();
    jitsym_status status = call_number(thread, call, ids);
    note_time(test_now() - before);
    note_call(thread, call, status);
  }
  return NULL;
}

static void *die_main(void *unused) {
  (void)unused;
  usleep((useconds_t)arguments.die_us);
  kill(getpid(), SIGKILL);
  return NULL;
}

/* Looks at the bound all the time. */
static _Atomic int watching = 1;
static uint64_t most_held;

static void *watch_main(void *unused) {
  (void)unused;
  while (atomic_load(&watching)) {
    jitsym_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(jitsym_get_stats(session, &stats));
    most_held = stats.memory_held > most_held ? stats.memory_held : most_held;
    CHECK(stats.memory <= stats.memory_held);
    usleep(200);
  }
  return NULL;
}

static void report(void) {
  char error[1024];
  jitsym_status flushed = jitsym_flush(session, 60000);
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  CHECK_OK(jitsym_last_error(session, error, sizeof error));
  uint64_t total = 0, seen = 0;
  for (unsigned i = 0; i < sizeof times / sizeof *times; i++) {
    total += times[i];
  }
  unsigned at = 0;
  while (total != 0 && (seen += times[at]) * 100 < total * 99) {
    at++;
  }
  printf("flushed=%s\n", jitsym_status_name((int32_t)flushed));
  printf("error=%s\n", error);
  printf("p99_ns=%llu\n", at < 8 ? 0 : (5ull + at % 4) << (at / 4 - 2));
  printf("most_held=%llu\n", (unsigned long long)most_held);
#define SAY(field) printf(#field "=%llu\n", (unsigned long long)stats.field)
  SAY(sinks_running);
  SAY(sinks_failed);
  SAY(registered);
  SAY(dropped);
  SAY(waited);
  SAY(jitdump_bytes);
  SAY(jitdump_records);
  SAY(write_errors);
  SAY(memory);
  SAY(memory_held);
  SAY(recovered);
  SAY(spool);
  jitsym_status closed = arguments.close == 1 ? jitsym_close(session) : JITSYM_OK;
  printf("closed=%s\n", jitsym_status_name((int32_t)closed));
}

int main(int argc, char **argv) {
  arguments.threads = 1;
  arguments.calls = CALLS_MAX;
  arguments.max_wait_ms = 60000;
  arguments_read(argc, argv);
  for (size_t i = 0; i < sizeof pattern; i++) {
    pattern[i] = (unsigned char)(mixed(i) >> 56);
  }
  int fd = open(arguments.truth, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  CHECK(fd >= 0 && ftruncate(fd, sizeof *truth) == 0);
  truth = mmap(NULL, sizeof *truth, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(truth != MAP_FAILED);
  atomic_store(&truth->pid, (uint64_t)getpid());

  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.sinks = (uint32_t)arguments.sinks;
  options.flags = (uint32_t)arguments.flags;
  options.map_dir = arguments.map_dir != NULL ? arguments.map_dir : arguments.dir;
  options.jitdump_dir = arguments.dump_dir != NULL ? arguments.dump_dir : arguments.dir;
  options.jitdump_max = arguments.dump_max;
  options.max_memory = arguments.max_memory;
  options.max_wait_ms = (uint32_t)arguments.max_wait_ms;
  CHECK_OK(jitsym_init(&options, &session));
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  atomic_store(&truth->spool, stats.spool);
  if (arguments.fork) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      if (arguments.fork == 2) {
        CHECK_OK(test_flush(session));
      }
      /* Should the test not live to end it. */
      alarm(300);
      for (;;) {
        pause();
      }
    }
    atomic_store(&truth->child, (uint64_t)child);
  }
  atomic_store(&truth->opened, 1);

  pthread_t threads[THREADS_MAX], other, watcher;
  if (arguments.die_us != 0) {
    CHECK(pthread_create(&other, NULL, die_main, NULL) == 0);
  }
  if (arguments.close) {
    CHECK(pthread_create(&watcher, NULL, watch_main, NULL) == 0);
  }
  for (uintptr_t i = 0; i < arguments.threads; i++) {
    CHECK(pthread_create(&threads[i], NULL, thread_main, (void *)i) == 0);
  }
  for (uintptr_t i = 0; i < arguments.threads; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  if (arguments.again) {
    /* The last of several equal names counts. */
    char seed[32], again[] = "again=0";
    snprintf(seed, sizeof seed, "seed=%llu", (unsigned long long)arguments.seed + 1);
    char **words = calloc((size_t)argc + 3, sizeof *words);
    CHECK(words != NULL);
    memcpy(words, argv, (size_t)argc * sizeof *words);
    /* Otherwise the next program's map would continue this one. */
    char map[4096];
    snprintf(map, sizeof map, "%s/perf-%d.map", options.map_dir, (int)getpid());
    CHECK(unlink(map) == 0);
    words[argc] = seed;
    words[argc + 1] = again;
    execv("/proc/self/exe", words);
    CHECK(!"exec failed");
  }
  atomic_store(&truth->done, 1);
  while (!arguments.close) {
    pause();
  }
  atomic_store(&watching, 0);
  CHECK(pthread_join(watcher, NULL) == 0);
  report();
  return 0;
}
