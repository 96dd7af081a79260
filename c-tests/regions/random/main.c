/*
 * The workloads: how code comes, is called, moves and dies.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"

enum { ANY_FLIPS = FLIP_ARENA + 1, ANY_OR_NO_FLIPS };
enum life { COMES, DIES, REUSES };
enum { MOVES = 1, THREADS = 2, SIGNALS = 4, LIBRARIES = 8, FORKS = 16, GROWS = 32, ENDS = 64, SIX_ARENAS = 128, LATE = 256, SHORT = 512 };
enum { MORE_THREADS = 3, ARENAS_MAX = 24, FUNCTIONS_MAX = 20000, STACK_ROOM = 24576, ALL = MOVES | THREADS | SIGNALS | LIBRARIES };

static const struct workload {
  const char *name;
  enum origin origin;
  int flips;
  enum life life;
  /* A death after so many calls. */
  uint32_t period;
  uint32_t features;
} workloads[] = {
    {"created-comes", CREATED_ONE_VIEW, ANY_FLIPS, COMES, 8, SIGNALS | LIBRARIES},
    {"created-dies", CREATED_ONE_VIEW, ANY_FLIPS, DIES, 40, 0},
    {"created-all", CREATED_ONE_VIEW, ANY_FLIPS, REUSES, 40, ALL},
    {"created-rwx-dies", CREATED_ONE_VIEW, NO_FLIPS, DIES, 40, 0},
    {"created-fork", CREATED, NO_FLIPS, DIES, 40, FORKS},
    {"created-grow", CREATED, NO_FLIPS, REUSES, 40, GROWS},
    {"two-views-comes", CREATED, NO_FLIPS, COMES, 8, SIGNALS | LIBRARIES},
    {"two-views-dies", CREATED, NO_FLIPS, DIES, 40, 0},
    {"two-views-all", CREATED, NO_FLIPS, REUSES, 40, ALL},
    {"two-views-ends", CREATED, NO_FLIPS, COMES, 8, ENDS},
    {"adopted-comes", ADOPTED, ANY_OR_NO_FLIPS, COMES, 8, SIGNALS | LIBRARIES},
    {"adopted-dies", ADOPTED, ANY_OR_NO_FLIPS, DIES, 40, 0},
    {"adopted-all", ADOPTED, ANY_OR_NO_FLIPS, REUSES, 40, ALL},
    {"adopted-fork", ADOPTED, ANY_OR_NO_FLIPS, DIES, 40, FORKS},
    {"adopted-arenas", ADOPTED, ANY_OR_NO_FLIPS, COMES, 8, SIX_ARENAS},
    {"adopted-late", ADOPTED, ANY_OR_NO_FLIPS, COMES, 8, LATE},
    {"churn-created", CREATED_ONE_VIEW, ANY_FLIPS, REUSES, 15, SHORT},
    {"churn-two-views", CREATED, NO_FLIPS, REUSES, 15, SHORT},
    {"churn-adopted", ADOPTED, ANY_OR_NO_FLIPS, REUSES, 15, SHORT},
    {"created-flips-page", CREATED_ONE_VIEW, FLIP_PAGES, REUSES, 40, 0},
    {"created-flips-run", CREATED_ONE_VIEW, FLIP_RUN, REUSES, 40, 0},
    {"created-flips-arena", CREATED_ONE_VIEW, FLIP_ARENA, REUSES, 40, 0},
    {"adopted-rwx", ADOPTED, NO_FLIPS, REUSES, 40, 0},
    {"adopted-flips-page", ADOPTED, FLIP_PAGES, REUSES, 40, 0},
    {"adopted-flips-run", ADOPTED, FLIP_RUN, REUSES, 40, 0},
    {"adopted-flips-arena", ADOPTED, FLIP_ARENA, REUSES, 40, 0},
};

struct function {
  struct arena *arena;
  uint64_t at;
  enum shape shape;
  uint32_t size, frame, name, part_count, main, code;
  struct {
    uint32_t at, size;
    jitsym_id id;
  } parts[PARTS_MAX];
};

/* A thread with functions of its own, in arenas that all share. */
struct worker {
  struct rng rng;
  pthread_t thread;
  const char *root;
  uint64_t end;
  uint32_t count;
  struct function functions[FUNCTIONS_MAX];
  /* As it is made. */
  struct piece piece;
};

jitsym *session;
uint32_t sinks = JITSYM_SINK_REGION;

static const struct workload *workload;
static struct arena *arenas[ARENAS_MAX];
static uint32_t arena_count, names;
/* For what there is of arenas. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Code runs while this is held for reading; it is held for writing while memory of code is made writable. */
static pthread_rwlock_t running;
static int is_parent_silent, is_child;

void fail(const char *what) {
  fprintf(stderr, "random_code: %s (%s)\n", what, strerror(errno));
  exit(1);
}

void check(jitsym_status status, const char *what) {
  if (status != JITSYM_OK) {
    char error[512] = "";
    jitsym_last_error(session, error, sizeof error);
    fprintf(stderr, "random_code: %s: %s (%s)\n", what, jitsym_status_name((int32_t)status), error);
    exit(1);
  }
}

static int flips(void) {
  return workload->flips != NO_FLIPS;
}

static void add_arena(struct rng *rng, uint64_t size) {
  int kind = workload->flips;
  if (kind >= ANY_FLIPS) {
    kind = kind == ANY_FLIPS ? FLIP_PAGES + (int)below(rng, 3) : (int)below(rng, 4);
  }
  uint64_t most = workload->features & GROWS ? size * 64 : size;
  arenas[arena_count++] = arena_new(rng, workload->origin, (enum flips)kind, size, most);
}

/* ------------------------------------------------------------------------------------------------ life */

struct put {
  struct worker *worker;
  struct function *function;
};

/* Registers all parts, from where they are now. */
static void announce(void *argument) {
  struct worker *worker = ((struct put *)argument)->worker;
  struct function *function = ((struct put *)argument)->function;
  for (uint32_t i = 0; i < function->part_count; i++) {
    struct part *part = &worker->piece.parts[i];
    char name[64];
    const char *shape = i == function->main ? shape_names[function->shape] : i == 0 ? "entry" : "exit";
    snprintf(name, sizeof name, "%s_%" PRIu32, shape, function->name);
    jitsym_code code = {0};
    code.struct_size = sizeof code;
    code.addr = (uint64_t)(uintptr_t)function->arena->exec + function->at + part->at;
    code.size = part->size;
    code.name = name;
    code.bytes = function->arena->write + function->at + part->at;
    code.unwind = &part->unwind;
    code.flags = sinks & JITSYM_SINK_JITDUMP ? JITSYM_CODE_PACKED : 0;
    part->unwind.eh_frame_addr = code.addr + 0x10000;
    check(jitsym_register(session, &code, &function->parts[i].id), "jitsym_register");
  }
}

static uint32_t truth_of(const struct function *function) {
  uint64_t main = (uint64_t)(uintptr_t)function->arena->exec + function->at + function->parts[function->main].at;
  return truth_code(main, function->parts[function->main].size, function->name, function->shape);
}

/* Whether there was room. */
static int come(struct worker *worker) {
  struct rng *rng = &worker->rng;
  enum shape shape = (enum shape)below(rng, workload->features & ENDS ? SHAPES : ENDS_WITH_CALL);
  struct function *function = &worker->functions[worker->count];
  struct piece *piece = &worker->piece;
  if (worker->count == FUNCTIONS_MAX || truth_is_full()) {
    return 0;
  }
  make_piece(piece, rng, shape, 20480);
  pthread_mutex_lock(&lock);
  function->arena = arenas[below(rng, arena_count)];
  int last = shape == ENDS_WITH_CALL && !function->arena->has_last;
  int has_room = arena_take(function->arena, rng, piece->size, workload->life == REUSES, last, &function->at);
  function->name = names++;
  pthread_mutex_unlock(&lock);
  if (!has_room) {
    return 0;
  }
  worker->count++;
  function->shape = shape;
  function->size = piece->size;
  function->frame = piece->frame;
  function->part_count = piece->part_count;
  function->main = piece->main;
  for (uint32_t i = 0; i < piece->part_count; i++) {
    function->parts[i].at = piece->parts[i].at;
    function->parts[i].size = piece->parts[i].size;
  }
  struct put put = {worker, function};
  /* Some runtimes register code before they make it executable. */
  int early = function->arena->flips != NO_FLIPS && one_in(rng, 4);
  if (flips()) {
    pthread_rwlock_wrlock(&running);
  }
  arena_write(function->arena, rng, function->at, piece->bytes, piece->size, early ? announce : NULL, &put);
  if (!early) {
    announce(&put);
  }
  function->code = truth_of(function);
  if (flips()) {
    pthread_rwlock_unlock(&running);
  }
  return 1;
}

static void leave_place(struct worker *worker, struct arena *arena, uint64_t at, uint32_t size) {
  if (one_in(&worker->rng, 2)) {
    if (flips()) {
      pthread_rwlock_wrlock(&running);
    }
    arena_write(arena, &worker->rng, at, NULL, size, NULL, NULL);
    if (flips()) {
      pthread_rwlock_unlock(&running);
    }
  }
  if (workload->life == REUSES) {
    pthread_mutex_lock(&lock);
    arena_give(arena, at, size);
    pthread_mutex_unlock(&lock);
  }
}

static void die(struct worker *worker) {
  uint32_t index = below(&worker->rng, worker->count);
  struct function function = worker->functions[index];
  worker->functions[index] = worker->functions[--worker->count];
  if (one_in(&worker->rng, 3)) {
    uint64_t addr = (uint64_t)(uintptr_t)function.arena->exec + function.at;
    check(jitsym_unregister_range(session, addr, function.size), "jitsym_unregister_range");
  } else {
    for (uint32_t i = 0; i < function.part_count; i++) {
      check(jitsym_unregister(session, function.parts[i].id), "jitsym_unregister");
    }
  }
  truth_code_ends(function.code);
  leave_place(worker, function.arena, function.at, function.size);
}

/* Within its arena. */
static void move(struct worker *worker) {
  struct function *function = &worker->functions[below(&worker->rng, worker->count)];
  struct arena *arena = function->arena;
  uint64_t from = function->at, to;
  uint8_t bytes[CODE_MAX];
  pthread_mutex_lock(&lock);
  int has_room = arena_take(arena, &worker->rng, function->size, 1, 0, &to);
  pthread_mutex_unlock(&lock);
  if (!has_room) {
    return;
  }
  memcpy(bytes, arena->exec + from, function->size);
  if (flips()) {
    pthread_rwlock_wrlock(&running);
  }
  arena_write(arena, &worker->rng, to, bytes, function->size, NULL, NULL);
  for (uint32_t i = 0; i < function->part_count; i++) {
    jitsym_move_target target = {0};
    target.struct_size = sizeof target;
    target.addr = (uint64_t)(uintptr_t)arena->exec + to + function->parts[i].at;
    target.bytes = arena->write + to + function->parts[i].at;
    check(jitsym_move(session, function->parts[i].id, &target), "jitsym_move");
  }
  truth_code_ends(function->code);
  function->at = to;
  function->code = truth_of(function);
  if (flips()) {
    pthread_rwlock_unlock(&running);
  }
  leave_place(worker, arena, from, function->size);
}

/* ------------------------------------------------------------------------------------------------ running */

typedef void guest(uint64_t rounds, const uint64_t *path);

/*
 * Goes round as guest code does, and keeps all registers but rcx. Its tables say so of rbx, because perf 7 does not know that C
 * functions keep it, and would lose callers whose frame is counted from it.
 */
void native_burn(void);
__asm__(".text\n.globl native_burn\n.type native_burn, @function\nnative_burn:\n.cfi_startproc\n.cfi_same_value %rbx\n"
        "mov %rdi, %rcx\n1: dec %rcx\njnz 1b\nret\n.cfi_endproc\n.size native_burn, . - native_burn\n");

static void on_signal(int number) {
  uint64_t rounds = 60000;
  (void)number;
  __asm__ volatile("1: dec %0\njnz 1b" : "+r"(rounds));
}

static __attribute__((noinline)) void enter_code(uint64_t rounds, const uint64_t *path) {
  ((guest *)(uintptr_t)path[0])(rounds, path + 1);
  __asm__ volatile("" ::: "memory");
}

static __attribute__((noinline)) void run(struct worker *worker) {
  struct rng *rng = &worker->rng;
  uint32_t codes[CHAIN_MAX], count = 0, room = STACK_ROOM, length = 0, wanted = 1 + below(rng, CHAIN_MAX - 1);
  uint64_t path[2 * CHAIN_MAX + 2];
  const struct function *dropper = NULL;
  int is_ended = 0, native = 0;
  for (uint32_t i = 0; i < worker->count && workload->features & ENDS && !dropper; i++) {
    dropper = worker->functions[i].shape == DROPS_FRAME ? &worker->functions[i] : NULL;
  }
  for (uint32_t tried = 0; tried < 4 * CHAIN_MAX && count < wanted && !is_ended; tried++) {
    const struct function *function = &worker->functions[below(rng, worker->count)];
    int is_new = function->shape != DROPS_FRAME && (function->shape != ENDS_WITH_CALL || dropper);
    for (uint32_t i = 0; i < count; i++) {
      is_new &= codes[i] != function->code;
    }
    if (!is_new || function->frame + 8 > room) {
      continue;
    }
    room -= function->frame + 8;
    codes[count++] = function->code;
    path[length++] = (uint64_t)(uintptr_t)function->arena->exec + function->at;
    if (function->shape == ENDS_WITH_CALL) {
      codes[count++] = dropper->code;
      path[length++] = (uint64_t)(uintptr_t)dropper->arena->exec + dropper->at;
      path[length++] = function->frame + 8;
      is_ended = 1;
    }
  }
  if (!is_ended && one_in(rng, 6)) {
    native = 1;
    path[length++] = (uint64_t)(uintptr_t)native_burn;
  }
  path[length] = 0;
  uint64_t duration = (30000 + below(rng, 220000)) / (workload->features & SHORT ? 8 : 1);
  if (flips()) {
    pthread_rwlock_rdlock(&running);
  }
  uint64_t from = now();
  if (count > 0) {
    enter_code(1 + duration * 3 / (2 * count), path);
  }
  uint64_t to = now();
  if (flips()) {
    pthread_rwlock_unlock(&running);
  }
  if (count > 0 && !(is_parent_silent && !is_child)) {
    truth_run(from, to, codes, count, native, worker->root);
  }
}

/* Code comes and dies as the workload says. */
static void live(struct worker *worker) {
  struct rng *rng = &worker->rng;
  uint32_t born = workload->life == COMES || workload->features & GROWS ? 1 + below(rng, 4) : 1;
  if (workload->life != COMES && worker->count > 30) {
    die(worker);
  }
  while (born-- > 0) {
    come(worker);
  }
}

static void load_library(struct rng *rng) {
  /* Of glibc, and used by nobody. */
  static const char *const names_of[] = {"libBrokenLocale.so.1", "libanl.so.1", "libutil.so.1", "libthread_db.so.1"};
  static void *loaded;
  if (loaded) {
    dlclose(loaded);
    loaded = NULL;
    return;
  }
  uint32_t first = below(rng, COUNT(names_of));
  for (uint32_t i = 0; i < COUNT(names_of) && !loaded; i++) {
    loaded = dlopen(names_of[(first + i) % COUNT(names_of)], RTLD_NOW);
  }
  if (!loaded) {
    fail("none of glibc's libraries can be loaded");
  }
}

static void work(struct worker *worker, int calls_library);

static void fork_child(struct worker *worker) {
  pthread_mutex_lock(&lock);
  pid_t child = fork();
  pthread_mutex_unlock(&lock);
  if (child < 0) {
    fail("fork");
  }
  int calls_library = one_in(&worker->rng, 2);
  if (child == 0) {
    is_child = 1;
    truth_process();
    any(&worker->rng);
    worker->end = now() + 400000000;
    work(worker, calls_library);
    if (calls_library) {
      check(jitsym_flush(session, 60000), "jitsym_flush");
    }
    _exit(0);
  }
  int status;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      fail("waitpid");
    }
  }
  if (status != 0) {
    fail("a child has failed");
  }
}

static __attribute__((noinline)) void work(struct worker *worker, int calls_library) {
  for (uint32_t calls = 1; now() < worker->end && !truth_is_full(); calls++) {
    run(worker);
    if (!calls_library) {
      continue;
    }
    if (calls % workload->period == 0) {
      live(worker);
    }
    if (workload->features & MOVES && calls % 50 == 0) {
      move(worker);
    }
    if (workload->features & LIBRARIES && worker->root[0] == 'm' && calls % 100 == 0) {
      load_library(&worker->rng);
    }
    if (workload->features & FORKS && !is_child && calls % 200 == 0) {
      fork_child(worker);
    }
  }
}

static struct worker *worker_new(uint64_t seed, const char *root, uint64_t end) {
  struct worker *worker = calloc(1, sizeof *worker);
  if (!worker) {
    fail("out of memory");
  }
  worker->rng.state = seed;
  worker->root = root;
  worker->end = end;
  return worker;
}

static void put_first(struct worker *worker) {
  for (uint32_t count = 40 + below(&worker->rng, 160); count > 0; count--) {
    come(worker);
  }
}

static void adopt_all(void) {
  for (uint32_t i = 0; i < arena_count; i++) {
    arena_adopt(arenas[i]);
  }
}

/* All memory is there before the first code runs, as nobody else may write to memory that is adopted. */
static void begin(struct worker *worker) {
  struct rng *rng = &worker->rng;
  if (workload->features & SIX_ARENAS) {
    for (uint64_t size = 1 << 20; size <= 64 << 20; size *= size == 8 << 20 ? 4 : 2) {
      add_arena(rng, size);
    }
  } else {
    add_arena(rng, workload->features & GROWS ? 1 << 16 : 1 << 20);
    for (uint32_t count = below(rng, 3); count > 0; count--) {
      add_arena(rng, (uint64_t)1 << (16 + below(rng, 7)));
    }
  }
  if (workload->features & LATE) {
    put_first(worker);
    adopt_all();
  } else {
    adopt_all();
    put_first(worker);
  }
}

static void *thread_main(void *argument) {
  struct worker *worker = argument;
  while (worker->count < 40) {
    come(worker);
  }
  work(worker, 1);
  return NULL;
}

/* An interrupt every three milliseconds of processor time, in whichever thread runs. */
static void start_signals(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  const struct itimerval every = {{0, 3000}, {0, 3000}};
  if (sigaction(SIGPROF, &action, NULL) != 0 || setitimer(ITIMER_PROF, &every, NULL) != 0) {
    fail("cannot have signals");
  }
}

static void say_counters(void) {
  jitsym_stats stats = {.struct_size = sizeof stats};
  check(jitsym_get_stats(session, &stats), "jitsym_get_stats");
  truth_option("counters", "%u functions, regions %" PRIu64 ", generations %" PRIu64 ", late %" PRIu64 ", refused %" PRIu64
               ", dropped %" PRIu64, names, stats.regions, stats.region_generations, stats.region_late,
               stats.region_refused, stats.dropped);
}

int main(int argc, char **argv) {
  for (size_t i = 0; i < COUNT(workloads); i++) {
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
      puts(workloads[i].name);
    } else if (argc == 6 && strcmp(argv[1], workloads[i].name) == 0) {
      workload = &workloads[i];
    }
  }
  if (!workload) {
    return argc == 2 ? 0 : 2;
  }
  uint64_t seed = strtoull(argv[2], NULL, 10), end = now() + (uint64_t)(strtod(argv[3], NULL) * 1e9);
  sinks = strcmp(argv[5], "jitdump") == 0 ? JITSYM_SINK_JITDUMP : JITSYM_SINK_REGION;
  is_parent_silent = (workload->features & FORKS) != 0;
  pthread_rwlockattr_t writers_first;
  pthread_rwlockattr_init(&writers_first);
  pthread_rwlockattr_setkind_np(&writers_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&running, &writers_first);
  truth_open(argv[4]);
  truth_process();
  jitsym_options options = {0};
  options.struct_size = sizeof options;
  options.sinks = sinks;
  check(jitsym_init(&options, &session), "jitsym_init");

  struct worker *first = worker_new(seed, "main", end), *more[MORE_THREADS];
  uint32_t threads = workload->features & THREADS ? MORE_THREADS : 0;
  begin(first);
  for (uint32_t i = 0; i < threads; i++) {
    more[i] = worker_new(any(&first->rng), "thread_main", end);
    if (pthread_create(&more[i]->thread, NULL, thread_main, more[i]) != 0) {
      fail("pthread_create");
    }
  }
  if (workload->features & SIGNALS) {
    start_signals();
  }
  work(first, 1);
  for (uint32_t i = 0; i < threads; i++) {
    pthread_join(more[i]->thread, NULL);
  }
  say_counters();
  check(jitsym_close(session), "jitsym_close");
  truth_close();
  return 0;
}
