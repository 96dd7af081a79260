/*
 * The workloads, and the processes and threads that they run in.
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

static const struct workload workloads[] = {
    {"created-comes", CREATED_ONE_VIEW, ANY_FLIPS, COMES, 8, SIGNALS | LIBRARIES},
    {"created-dies", CREATED_ONE_VIEW, ANY_FLIPS, DIES, 40, 0},
    {"created-all", CREATED_ONE_VIEW, ANY_FLIPS, REUSES, 40, ALL},
    {"created-gaps", CREATED_ONE_VIEW, ANY_FLIPS, REUSES, 40, ALL | HAS_GAPS},
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
    {"automatic-comes", ADOPTED, ANY_OR_NO_FLIPS, COMES, 8, AUTOMATIC},
    {"automatic-dies", ADOPTED, ANY_OR_NO_FLIPS, DIES, 40, AUTOMATIC},
    {"automatic-early", ADOPTED, ANY_FLIPS, COMES, 8, AUTOMATIC | EARLY},
    {"two-views-over", CREATED, NO_FLIPS, REUSES, 40, SILENT},
    {"adopted-over", ADOPTED, ANY_OR_NO_FLIPS, REUSES, 40, SILENT},
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

jitsym *session;
uint32_t sinks;
const struct workload *workload;
struct arena *arenas[ARENAS_MAX];
uint32_t arena_count, names, step_every = 50;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int is_logged = 1;

static int is_child;

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

static void add_arena(struct rng *rng, uint64_t size) {
  int kind = workload->flips;
  if (kind >= ANY_FLIPS) {
    kind = kind == ANY_FLIPS ? FLIP_PAGES + (int)below(rng, 3) : (int)below(rng, 4);
  }
  uint64_t most = workload->features & GROWS ? size * 64 : size;
  arenas[arena_count++] = arena_new(rng, workload->origin, (enum flips)kind, size, most);
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
  int calls_library = one_in(&worker->rng, 2);
  pthread_mutex_lock(&lock);
  if (calls_library) {
    /* A fork waits a while for the background thread, and not for ever. */
    check(jitsym_flush(session, 60000), "jitsym_flush");
  }
  pid_t child = fork();
  pthread_mutex_unlock(&lock);
  if (child < 0) {
    fail("fork");
  }
  if (child == 0) {
    is_child = is_logged = 1;
    truth_process();
    worker->calls = 0;
    worker->wanted = 250;
    /* The parent removes files of children that end at once. */
    worker->until = now() + 400000000;
    if (calls_library) {
      jitsym_status status = jitsym_flush(session, 60000);
      /* The background thread was not in time for the fork. */
      calls_library = status != JITSYM_ERR_FORKED;
      check(calls_library ? status : JITSYM_OK, "jitsym_flush");
    }
    work(worker, calls_library);
    if (calls_library) {
      check(jitsym_flush(session, 60000), "jitsym_flush");
    }
    truth_process_ends();
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
  for (uint32_t calls = 1; (calls <= worker->wanted || now() < worker->until) && !truth_is_full(); calls++) {
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

static struct worker *worker_new(uint64_t seed, const char *root, uint32_t calls) {
  struct worker *worker = calloc(1, sizeof *worker);
  if (!worker) {
    fail("out of memory");
  }
  worker->rng.state = seed;
  worker->root = root;
  worker->wanted = calls;
  return worker;
}

static void put_first(struct worker *worker) {
  for (uint32_t count = 40 + below(&worker->rng, 160); count > 0; count--) {
    come(worker);
  }
}

static void adopt_all(void) {
  for (uint32_t i = 0; i < arena_count; i++) {
    arena_adopt(arenas[i], (workload->features & AUTOMATIC) != 0);
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

static void on_signal(int number) {
  uint64_t rounds = 2;
  (void)number;
  __asm__ volatile("1: dec %0\njnz 1b" : "+r"(rounds));
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
  truth_option("counters",
               "%u functions, regions %" PRIu64 ", generations %" PRIu64 ", late %" PRIu64 ", refused %" PRIu64
               ", dropped %" PRIu64,
               names, stats.regions, stats.region_generations, stats.region_late, stats.region_refused, stats.dropped);
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
  uint64_t seed = strtoull(argv[2], NULL, 10);
  uint32_t calls = (uint32_t)strtoul(argv[3], NULL, 10);
  sinks = strcmp(argv[5], "jitdump") == 0 ? JITSYM_SINK_JITDUMP : JITSYM_SINK_REGION;
  is_logged = !(workload->features & FORKS);
  truth_open(argv[4]);
  truth_process();
  jitsym_options options = {0};
  options.struct_size = sizeof options;
  options.sinks = sinks;
  options.flags = workload->features & AUTOMATIC ? JITSYM_INIT_ADOPT : 0;
  check(jitsym_init(&options, &session), "jitsym_init");

  struct worker *first = worker_new(seed, "main", calls), *more[MORE_THREADS];
  uint32_t threads = workload->features & THREADS ? MORE_THREADS : 0;
  step_every *= 1 + threads;
  begin(first);
  for (uint32_t i = 0; i < threads; i++) {
    more[i] = worker_new(any(&first->rng), "thread_main", calls);
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
