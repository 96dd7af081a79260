/* The two commands of the soak; see soak/soak.h. One program in one piece, as what the tests share is made for. */
#include "child.c"
#include "host.c"
#include "look.c"
#include "space.c"
#include "truth.c"

struct shared *shared;
uint32_t first_number;
uint64_t *named_at;

/* So many numbers a run. */
enum { NUMBERS_LOG = 26 };

static void *map_memory(uint64_t at, size_t size, int flags) {
  void *memory = mmap((void *)(uintptr_t)at, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED && (at == 0 || memory == (void *)(uintptr_t)at));
  return memory;
}

/* How this process is to use the library, from its seed. */
static void choose(struct worker *worker) {
  static const uint32_t forks[] = {0, 0, 0, JITSYM_INIT_FORK_NOW, JITSYM_INIT_FORK_NOW, JITSYM_INIT_FORK_ALONE};
  world.sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP;
  unsigned one = random_below(worker, 8);
  world.sinks = one == 0 ? JITSYM_SINK_MAP : one == 1 ? JITSYM_SINK_JITDUMP : world.sinks;
  world.flags = forks[random_below(worker, 6)];
  world.flags |= random_below(worker, 6) == 0 ? JITSYM_INIT_NO_SPOOL : 0;
  world.flags |= random_below(worker, 6) == 0 ? JITSYM_INIT_NO_UNWIND : 0;
  unsigned memory = random_below(worker, 6);
  world.max_memory = memory < 2 ? 1 << 20 : 0;
  world.flags |= memory == 0 ? JITSYM_INIT_DROP_WHEN_FULL : 0;
}

static uint32_t first_of(uint64_t seed) {
  return (uint32_t)(seed % 60 + 1) << NUMBERS_LOG;
}

_Noreturn static void host(uint64_t seed, double seconds, uint64_t bytes) {
  static struct worker worker;
  worker.random = seed;
  for (int i = 0; i < 8; i++) {
    next_random(&worker);
  }
  pool_begin();
  map_memory(arenas[REAL].start, arenas[REAL].size, MAP_PRIVATE | MAP_FIXED_NOREPLACE);
  named_at = map_memory(0, sizeof *named_at << NUMBERS_LOG, MAP_PRIVATE | MAP_NORESERVE);
  first_number = first_of(seed);
  atomic_store(&shared->next_number, first_number);
  choose(&worker);
  world_locks();
  world_empty();
  paint_begin(&world.paint);
  world_open();
  world_run(&worker, 2 + random_below(&worker, WORKERS_MAX - 1), seconds, bytes);
  world_end(&worker, random_below(&worker, 4) == 0);
}

static int run(uint64_t seed, double seconds, uint64_t bytes) {
  CHECK(seed != 0 && seconds > 0 && bytes > 0);
  shared = map_memory(0, sizeof *shared, MAP_SHARED);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    host(seed, seconds, bytes);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
    fprintf(stderr, "process %d: wait status %#x\n", (int)pid, (unsigned)status);
    return 1;
  }
  /* Pieces of code, children, and those of them that did not take over all that there was. */
  printf("%u %u %u\n", atomic_load(&shared->next_number) - first_of(seed), atomic_load(&shared->forks),
         atomic_load(&shared->children_lost));
  return 0;
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *spools = getenv("JITSYM_SPOOL_DIR");
  char *kept = spools == NULL ? NULL : strdup(spools);
  test_begin(2, argv);
  if (kept != NULL) {
    setenv("JITSYM_SPOOL_DIR", kept, 1);
    free(kept);
  }
  if (strcmp(argv[2], "run") == 0) {
    CHECK(argc == 6);
    return run(strtoull(argv[3], NULL, 0), strtod(argv[4], NULL), strtoull(argv[5], NULL, 0));
  }
  CHECK(strcmp(argv[2], "verify") == 0);
  pool_begin();
  printf("%d\n", verify_all());
  return 0;
}
