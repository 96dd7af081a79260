/* What a host may do that has nothing to do with the library: it must not hurt the host then. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;
enum { MOST = 64 };

/* ------------------------------------------------------------------------------------------------ descriptors */

/* Numbers that follow from the seed, which a failure names. */
static uint64_t seed, state;

static uint64_t random_below(uint64_t bound) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % bound;
}

/* What the host has open: a file that it has written to, or a directory. */
static struct {
  int number;
  size_t size;
  ino_t inode;
} own[MOST];
static size_t owns;

/* The byte at a place in the host's file of this number. */
static unsigned char own_byte(size_t number, size_t at) {
  return (unsigned char)(number * 31 + at * 7 + 1);
}

static void host_opens(void) {
  CHECK(owns < MOST);
  char path[TEST_PATH_MAX + 32];
  int number;
  size_t size = 0;
  switch (random_below(4)) {
    case 0:
      number = open(test_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      break;
    case 1:
      number = open("/dev/shm", O_PATH | O_DIRECTORY | O_CLOEXEC);
      break;
    default:
      snprintf(path, sizeof path, "%s-own-%zu", test_dir, owns);
      number = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      CHECK(number >= 0 && unlink(path) == 0);
      size = random_below(5000);
      unsigned char bytes[5000];
      for (size_t i = 0; i < size; i++) {
        bytes[i] = own_byte(owns, i);
      }
      CHECK(write(number, bytes, size) == (ssize_t)size);
  }
  struct stat data;
  CHECK(number >= 0 && fstat(number, &data) == 0);
  own[owns].number = number;
  own[owns].size = size;
  own[owns++].inode = data.st_ino;
}

/* What it has open is what it has opened. */
static void check_own(void) {
  for (size_t i = 0; i < owns; i++) {
    struct stat data;
    int is_open = fstat(own[i].number, &data) == 0 && data.st_ino == own[i].inode;
    if (is_open && S_ISREG(data.st_mode)) {
      unsigned char bytes[5000];
      is_open = data.st_size == (off_t)own[i].size && pread(own[i].number, bytes, sizeof bytes, 0) == data.st_size;
      for (size_t at = 0; is_open && at < own[i].size; at++) {
        is_open = bytes[at] == own_byte(i, at);
      }
    }
    if (!is_open) {
      fprintf(stderr, "seed %" PRIu64 ": descriptor %d of the host is not what it has opened\n", seed, own[i].number);
      _exit(1);
    }
  }
}

/* As daemons do. Standard error stays, for those who run the test. */
static void close_all(void) {
  for (int number = 3; number < 128; number++) {
    close(number);
  }
  owns = 0;
}

/* Regions, for which the library keeps descriptors in the host's table: of their files, and of the directory. */
static jitsym_region regions[4];
static size_t has_regions;

static void use_regions(jitsym *session) {
  if (has_regions < 4 && random_below(4) == 0) {
    jitsym_region_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.size = 1 << 16;
    options.max_size = 1 << 20;
    jitsym_region *region = &regions[has_regions++];
    memset(region, 0, sizeof *region);
    region->struct_size = sizeof *region;
    CHECK_OK(jitsym_region_create(session, &options, region));
  }
  for (size_t i = 0; i < has_regions; i++) {
    /* Code in the place of other code, so that the file gets other names. */
    jitsym_code code = test_code((uint64_t)(uintptr_t)regions[i].exec + random_below(64) * 64, 64, "in a region");
    code.bytes = regions[i].write;
    jitsym_id id;
    CHECK_OK(jitsym_register(session, &code, &id));
    if (random_below(2) == 0) {
      CHECK_OK(jitsym_unregister(session, id));
    }
    check_own();
    if (random_below(8) == 0) {
      CHECK_OK(jitsym_region_grow(session, regions[i].exec, (1 << 16) + random_below(1 << 19)));
    }
    if (random_below(8) == 0) {
      CHECK_OK(jitsym_region_discard(session, regions[i].exec, 1 << 16));
    }
    check_own();
  }
  if (has_regions > 0 && random_below(8) == 0) {
    CHECK_OK(jitsym_region_release(session, regions[--has_regions].exec));
  }
}

static void release_regions(jitsym *session) {
  while (has_regions > 0) {
    CHECK_OK(jitsym_region_release(session, regions[--has_regions].exec));
    check_own();
  }
}

/* In a table that both share, a descriptor may go while the library uses it: then it tries again. */
static int shares_table;

/* Everything is in the files. */
static void check_written(jitsym *session, unsigned round) {
  jitsym_status status = test_flush(session);
  for (unsigned turns = 0; shares_table && status != JITSYM_OK; status = test_flush(session)) {
    CHECK(test_turn_of(&turns, TEST_TURNS));
  }
  jitsym_stats stats = test_stats_now(session);
  if (status != JITSYM_OK || stats.sinks_failed != 0 || (!shares_table && stats.write_errors != 0)) {
    char text[4096];
    jitsym_last_error(session, text, sizeof text);
    fprintf(stderr, "seed %" PRIu64 ", round %u: %s\n", seed, round, text);
    _exit(1);
  }
}

static jitsym *open_all_sinks(void) {
  return test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
}

/* The host closes all and opens others, at any time between two calls. */
static void closed_and_opened(void) {
  uint64_t registered = 0;
  jitsym *session = open_all_sinks();
  unsigned rounds = test_light ? 20 : 200;
  for (unsigned round = 0; round < rounds; round++) {
    close_all();
    for (uint64_t count = random_below(12); count > 0; count--) {
      host_opens();
    }
    if (random_below(8) == 0) {
      check_written(session, round);
      CHECK_OK(jitsym_close(session));
      check_own();
      session = open_all_sinks();
      registered = 0;
    }
    for (uint64_t count = random_below(40); count > 0; count--) {
      test_register(session, ADDR + registered++ * 0x100, 0x40, "any");
    }
    use_regions(session);
    if (random_below(4) == 0) {
      /* A line of the map that has to change. */
      test_register(session, ADDR, 0x40, "the first one again");
      registered += registered == 0;
    }
    check_written(session, round);
    check_own();
    if (random_below(8) == 0) {
      CHECK_OK(jitsym_disable(session, 0));
      check_own();
      CHECK_OK(jitsym_enable(session, 0));
      check_written(session, round);
      registered = 0;
    }
    check_own();
  }
  test_register(session, ADDR + (1 << 20), 0x40, "the last one");
  check_written(session, rounds);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_load(&dump, "the last one", 0) != NULL);
  dump_free(&dump);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, ADDR + (1 << 20)), "the last one") == 0);
  map_free(&map);
  release_regions(session);
  CHECK_OK(jitsym_close(session));
  check_own();
}

/* The same while other threads register, so that the library is at work all the time: no byte of it comes into a file of the host. */
static atomic_int stops;
static jitsym *busy_session;

static void *busy_thread(void *number) {
  for (uint64_t i = 0; !atomic_load(&stops); i++) {
    jitsym_code code = test_code(ADDR + ((uint64_t)(uintptr_t)number << 32) + i % 1000 * 0x1000, 0x1000, "busy");
    jitsym_status status = jitsym_register(busy_session, &code, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
  }
  return NULL;
}

static void closed_while_it_writes(void) {
  enum { THREADS = 2 };
  pthread_t threads[THREADS];
  busy_session = test_open();
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, busy_thread, (void *)i) == 0);
  }
  for (unsigned round = test_light ? 100 : 5000; round > 0; round--) {
    close_all();
    for (uint64_t count = random_below(12); count > 0; count--) {
      host_opens();
    }
    check_own();
  }
  atomic_store(&stops, 1);
  for (size_t i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  jitsym_stats stats = test_stats(busy_session);
  CHECK(stats.sinks_failed == 0 && stats.write_errors == 0);
  CHECK_OK(jitsym_close(busy_session));
  check_own();
}

/* Where a sandbox refuses the library its own table, it shares the host's: what it uses and closes there is its own. */
static void in_one_table(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    /* valgrind does not pass it on, nor does qemu. */
    CHECK(test_light);
    return;
  }
  jitsym *session = test_open();
  CHECK_OK(test_flush(session));
  close_all();
  unsigned lost = 0;
  for (int number = 3; number < 32; number++) {
    lost += fcntl(number, F_GETFD) == -1;
  }
  CHECK(lost == 29);
  (void)jitsym_close(session);
  shares_table = 1;
  closed_and_opened();
}

/* How many descriptors there are in the host's table and in the writer's. */
static int all_descriptors(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int count = test_files_in("/proc/self/fd");
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE *comm = fopen(path, "r");
    char name[32] = "";
    int is_writer = comm != NULL && fgets(name, sizeof name, comm) != NULL && strcmp(name, "jitsym-writer\n") == 0;
    if (comm != NULL) {
      fclose(comm);
    }
    if (is_writer) {
      snprintf(path, sizeof path, "/proc/self/task/%s/fd", task->d_name);
      count += test_files_in(path);
    }
  }
  closedir(tasks);
  return count;
}

/* Regions that come and go leave nothing open, in no table, whoever ends them. */
static void regions_leave_none(void) {
  jitsym *session = open_all_sinks();
  int before = 0;
  for (int round = 0; round < 40; round++) {
    use_regions(session);
    CHECK_OK(test_flush(session));
    release_regions(session);
    int now = all_descriptors();
    before = round <= 4 ? now : before;
    /* What ended last is closed with the next pass. */
    if (now > before + 10) {
      fprintf(stderr, "round %d: %d descriptors, and %d before\n", round, now, before);
      _exit(1);
    }
    if (test_light) {
      /* valgrind has mappings of its own all over the place. */
      continue;
    }
    unsigned char *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 0x90, 1 << 16);
    CHECK_OK(jitsym_region_adopt(session, memory, 1 << 16));
    test_register(session, (uint64_t)(uintptr_t)memory, 64, "adopted");
    CHECK_OK(test_flush(session));
    CHECK(munmap(memory, 1 << 16) == 0);
    /* With the next registrations it is noticed that the region is gone. */
    unsigned char *other = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(other != MAP_FAILED);
    CHECK_OK(jitsym_region_adopt(session, other, 1 << 16));
    CHECK_OK(jitsym_region_release(session, other));
    CHECK(munmap(other, 1 << 16) == 0);
    CHECK_OK(test_flush(session));
    CHECK_OK(test_flush(session));
  }
  CHECK_OK(jitsym_close(session));
}

/* A child of a child of a child has as many descriptors as its parent. */
static void generations_leave_none(void) {
  jitsym *session = open_all_sinks();
  jitsym_region_options options = JITSYM_REGION_OPTIONS(1 << 16);
  jitsym_region region = JITSYM_REGION;
  CHECK_OK(jitsym_region_create(session, &options, &region));
  int before = 0, is_child = 0;
  for (int generation = 0; generation < 5; generation++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
      test_wait_ok(child);
      break;
    }
    is_child = 1;
    test_register(session, (uintptr_t)region.exec, 64, "of a child");
    CHECK_OK(test_flush(session));
    int now = all_descriptors();
    CHECK(generation == 0 || now == before);
    before = now;
  }
  CHECK_OK(jitsym_close(session));
  if (is_child) {
    /* So does LeakSanitizer, at exits. */
    _exit(0);
  }
}

/*
 * A program that ends by the end of its last thread, just after the library's threads have ended: what it has printed is not lost,
 * because it does not end on one of these.
 */
static void last_words(void) {
  static const char words[] = "last words";
  for (int round = 0; round < (test_light ? 20 : 200); round++) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      CHECK(dup2(pipes[1], 1) == 1 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
      jitsym *session = test_open();
      test_register(session, ADDR, 0x40, "any");
      printf("%s", words);
      if (round % 2 == 0) {
        CHECK_OK(jitsym_close(session));
      } else {
        CHECK_OK(jitsym_disable(session, 0));
      }
      pthread_exit(NULL);
    }
    CHECK(close(pipes[1]) == 0);
    char text[64] = "";
    ssize_t size = 0;
    for (ssize_t more; (more = read(pipes[0], text + size, sizeof text - 1 - (size_t)size)) > 0;) {
      size += more;
    }
    CHECK(close(pipes[0]) == 0 && strcmp(text, words) == 0);
    test_wait_ok(child);
  }
}

/* Nothing is left open in the host's table, wherever the library has failed. */
static void none_is_left(void) {
  int before = test_files_in("/proc/self/fd");
  for (int round = 0; round < 20; round++) {
    jitsym *session = test_open();
    test_register(session, ADDR, 0x40, "any");
    CHECK(test_files_in("/proc/self/fd") == before);
    CHECK_OK(jitsym_close(session));
    CHECK(test_files_in("/proc/self/fd") == before);
    session = test_open_flags(0, JITSYM_INIT_REMOVE_FILES);
    CHECK_OK(jitsym_disable(session, 0));
    CHECK_OK(jitsym_close(session));
    CHECK(test_files_in("/proc/self/fd") == before);
  }
}

/* A cancellation that is pending strikes in the host's code, not within a call, from where nothing could be unwound. */
static jitsym *cancelled_session;
static atomic_int returned;

static void *cancelled_thread(void *unused) {
  (void)unused;
  static unsigned char code[400000];
  CHECK(pthread_cancel(pthread_self()) == 0);
  for (uint64_t i = 0; i < 40; i++) {
    /* Memory is made on this thread, for large pieces and for many small ones. */
    jitsym_code large = test_code(ADDR + 0x100000 * i, sizeof code, "large");
    large.bytes = code;
    CHECK_OK(jitsym_register(cancelled_session, &large, NULL));
    jitsym_code unread = test_code(ADDR + 0x100000 * i + 0x80000, 0x40, "at its address");
    unread.bytes = NULL;
    CHECK_OK(jitsym_register(cancelled_session, &unread, NULL));
  }
  CHECK_OK(test_flush(cancelled_session));
  atomic_store(&returned, 1);
  pthread_testcancel();
  return NULL;
}

static void cancellation(void) {
  jitsym_options options = test_options();
  options.max_wait_ms = 60000;
  CHECK_OK(jitsym_init(&options, &cancelled_session));
  pthread_t thread;
  void *result;
  CHECK(pthread_create(&thread, NULL, cancelled_thread, NULL) == 0 && pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED && atomic_load(&returned));
  test_register(cancelled_session, ADDR + 0x10000000, 0x40, "after");
  jitsym_stats stats = test_stats(cancelled_session);
  CHECK(stats.registered == 81 && stats.dropped == 0);
  CHECK_OK(jitsym_close(cancelled_session));
}

/* Signals that the host has blocked stay so, also those that the library does not block itself, and those that wait are not
 * taken. */
static volatile sig_atomic_t delivered;

static void is_delivered(int number) {
  (void)number;
  delivered++;
}

static void blocked_signals(void) {
  static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGXFSZ};
  sigset_t blocked, pending;
  sigemptyset(&blocked);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    CHECK(signal(numbers[i], is_delivered) != SIG_ERR);
    sigaddset(&blocked, numbers[i]);
  }
  CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    CHECK(raise(numbers[i]) == 0);
  }
  jitsym *session = test_open();
  test_register(session, ADDR, 0x40, "blocked");
  CHECK_OK(jitsym_close(session));
  CHECK(delivered == 0 && sigpending(&pending) == 0);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    CHECK(sigismember(&pending, numbers[i]) == 1);
    CHECK(signal(numbers[i], SIG_IGN) != SIG_ERR);
  }
}

/* The last moment of a thread: its own values are gone, and the library's, and still it calls. */
static pthread_key_t last_moment;
static jitsym *late_session;

static void late_calls(void *number) {
  if ((uintptr_t)number < 3) {
    /* Once more, behind the destructors of everybody else. */
    CHECK(pthread_setspecific(last_moment, (void *)((uintptr_t)number + 1)) == 0);
  }
  test_register(late_session, ADDR + 0x1000 * (uintptr_t)number, 0x40, "late");
  CHECK_OK(test_flush(late_session));
  if ((uintptr_t)number == 3) {
    CHECK_OK(jitsym_close(late_session));
  }
}

static void *late_thread(void *unused) {
  (void)unused;
  test_register(late_session, ADDR + 0x100000, 0x40, "early");
  CHECK_OK(test_flush(late_session));
  CHECK(pthread_setspecific(last_moment, (void *)1) == 0);
  return NULL;
}

static void thread_ends(void) {
  CHECK(pthread_key_create(&last_moment, late_calls) == 0);
  late_session = test_open();
  struct test_path path = test_path(late_session, JITSYM_SINK_JITDUMP);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, late_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  struct dump dump = dump_read(path.text);
  CHECK(dump_load(&dump, "early", 0) != NULL && dump_load(&dump, "late", 2) != NULL);
  dump_free(&dump);
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(late_session));
  late_session = test_open();
  CHECK_OK(jitsym_close(late_session));
}

static pthread_key_t all_rounds;

/* In each round of the destructors, the last one too, after which nobody is told any more that the thread ends. */
static void calls_in_a_round(void *round) {
  CHECK(pthread_setspecific(all_rounds, (char *)round + 1) == 0);
  jitsym_id id = test_register(late_session, ADDR, 0x40, "late");
  CHECK_OK(jitsym_unregister(late_session, id));
}

static void *calls_until_the_end(void *unused) {
  (void)unused;
  jitsym_id id = test_register(late_session, ADDR, 0x40, "early");
  CHECK_OK(jitsym_unregister(late_session, id));
  CHECK(pthread_setspecific(all_rounds, &all_rounds) == 0);
  return NULL;
}

/* What the library keeps for a thread goes with it: some 990 bytes of the heap. */
static void ended_threads_leave_nothing(void) {
  enum { THREADS = 100, KEPT = 990 };
  size_t used[3];
  /* AddressSanitizer has an allocator of its own. */
  CHECK(mallopt(M_ARENA_MAX, 1) == 1 || test_light);
  late_session = test_open_flags(JITSYM_SINK_MAP, 0);
  /* The library's own key comes first, and so does its destructor in each round. */
  test_register(late_session, ADDR + 0x1000, 0x40, "first");
  CHECK(pthread_key_create(&all_rounds, calls_in_a_round) == 0);
  for (int times = 0; times < 3; times++) {
    for (int i = 0; i < THREADS; i++) {
      pthread_t thread;
      CHECK(pthread_create(&thread, NULL, calls_until_the_end, NULL) == 0 && pthread_join(thread, NULL) == 0);
      /* Else the writer's table of threads is as long as the most that it has seen at once. */
      CHECK_OK(test_flush(late_session));
    }
    used[times] = mallinfo2().uordblks;
  }
  /* The control is what a leak would be. */
  CHECK(used[2] < used[1] + THREADS * KEPT / 2);
  CHECK_OK(jitsym_close(late_session));
}

/*
 * A thread that hardly gets any time opens a session, or one with a real-time priority: the library's threads are ordinary ones, on
 * the processors of the process's first thread.
 */
static int of_opener[3];
static cpu_set_t all_processors;

static void *open_as_it_is(void *unused) {
  (void)unused;
  cpu_set_t last;
  CPU_ZERO(&last);
  for (int i = 0; i < CPU_SETSIZE; i++) {
    if (CPU_ISSET(i, &all_processors)) {
      CPU_ZERO(&last);
      CPU_SET(i, &last);
    }
  }
  struct sched_param priority = {.sched_priority = of_opener[1]};
  CHECK(sched_setaffinity(0, sizeof last, &last) == 0 && sched_setscheduler(0, of_opener[0], &priority) == 0);
  CHECK(setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), of_opener[2]) == 0);
  late_session = test_open();
  return NULL;
}

static void ordinary_threads(void) {
  CHECK(sched_getaffinity(0, sizeof all_processors, &all_processors) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, open_as_it_is, NULL) == 0 && pthread_join(thread, NULL) == 0);
  CHECK_OK(test_flush(late_session));
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  int ours = 0;
  for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
    pid_t task = atoi(entry->d_name);
    if (task == 0 || task == getpid()) {
      continue;
    }
    cpu_set_t processors;
    /* The opener's may be about to end. */
    int policy = sched_getscheduler(task);
    if (policy < 0 || sched_getaffinity(task, sizeof processors, &processors) != 0) {
      continue;
    }
    ours++;
    CHECK(policy == SCHED_OTHER && getpriority(PRIO_PROCESS, (id_t)task) == 0);
    CHECK(CPU_EQUAL(&processors, &all_processors));
  }
  closedir(tasks);
  CHECK(ours == 2);
  CHECK_OK(jitsym_close(late_session));
}

static void schedules(void) {
  static const int openers[][3] = {{SCHED_FIFO, 50, 0}, {SCHED_IDLE, 0, 0}, {SCHED_OTHER, 0, 10}};
  for (size_t i = 0; i < sizeof openers / sizeof openers[0]; i++) {
    memcpy(of_opener, openers[i], sizeof of_opener);
    test_child(ordinary_threads);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const char *given = getenv("JITSYM_TEST_SEED");
  seed = given != NULL ? strtoull(given, NULL, 10) : test_now();
  state = seed;
  if (test_threads_of_others == 0 && getenv("TSAN_OPTIONS") == NULL) {
    /* qemu has descriptors in the table. In builds for ThreadSanitizer the library shares it, and a forked child cannot start threads. */
    test_child(closed_and_opened);
    test_child(closed_while_it_writes);
    test_child(in_one_table);
    test_child(none_is_left);
    test_child(regions_leave_none);
    if (!test_slow) {
      /* valgrind finds in children what threads of their parents have had. */
      test_child(generations_leave_none);
    }
    test_child(last_words);
  }
  test_child(cancellation);
  if (!test_light) {
    /* valgrind and the sanitizers have these signals for themselves. */
    test_child(blocked_signals);
  }
  test_child(thread_ends);
  test_child(ended_threads_leave_nothing);
  if (!test_light && geteuid() == 0) {
    /* Without tools, which have threads and processors of their own. Only root can take these back. */
    schedules();
  }
  return test_end();
}
