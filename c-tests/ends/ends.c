/*
 * How a process ends, and what is in its files then. Threads register code and note with write(2), right after each call, what it
 * came to; however the process ends, these notes are there, and the files are held against them.
 *
 * With a directory alone all ways are gone in which the library gets to run; they leave complete files. `end WAY` behind the directory
 * goes one way in this very process, `end-unwritten WAY` with a disk that takes hardly anything; `check PID` holds the files of a dead process against its notes (tests/ends.rs, which has them
 * completed by `jitsym recover` before where the library did not get to run).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "jitsym_control.h"
#include "testing.h"

#ifdef ENDS_CXX
void ends_throw(void);
#endif

enum {
  THREADS = 4,
  /* Registered by the first thread before anything else. */
  KNOWN = 300,
  SHORT_THREADS = 60,
  THREADS_MAX = THREADS + SHORT_THREADS,
  NUMBERS_MAX = 1 << 17,
  /* How a handler ends the process under valgrind, which prints something about one that is killed by a signal. */
  HANDLED = 42,
};

static const uint64_t ADDR = 0x600000000000, STRIDE = 0x100;

/* One for each call that has returned, and one for the crash handler that is about to have everything written. */
struct note {
  uint32_t thread;
  uint32_t number;
  uint32_t status;
};

enum { HANDLER = UINT32_MAX };

static int notes = -1;
static struct test_path own_notes;
static jitsym *session;

static struct test_path notes_path(pid_t pid) {
  struct test_path path;
  snprintf(path.text, sizeof path.text, "%s/notes-%d", test_dir, (int)pid);
  return path;
}

static void open_notes(void) {
  own_notes = notes_path(getpid());
  notes = open(own_notes.text, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  CHECK(notes >= 0);
}

static uint64_t addr_of(uint32_t thread, uint32_t number) {
  return ADDR + ((uint64_t)thread << 32) + STRIDE * number;
}

static uint32_t size_of(uint32_t thread, uint32_t number) {
  return 16 + (7 * thread + number) % 0xe0;
}

static const unsigned char *bytes_of(uint32_t number) {
  return test_bytes + number % 16;
}

static jitsym_status register_piece(uint32_t thread, uint32_t number) {
  char name[32];
  snprintf(name, sizeof name, "end %u %u", thread, number);
  jitsym_code code = test_code(addr_of(thread, number), size_of(thread, number), name);
  code.bytes = bytes_of(number);
  jitsym_status status = jitsym_register(session, &code, NULL);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_DROPPED);
  struct note note = {thread, number, (uint32_t)status};
  CHECK(write(notes, &note, sizeof note) == sizeof note);
  return status;
}

static void register_pieces(uint32_t thread, uint32_t from, uint32_t to) {
  for (uint32_t number = from; number < to; number++) {
    register_piece(thread, number);
  }
}

/* Stands in front of the C library's function, through which the library's thread writes the jitdump. */
static struct {
  int dies_in;
  unsigned slow_ms;
} disk;

/* From the first pieces on nothing is written any more. */
static int leaves_unwritten;

static void begin(void) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  open_notes();
  jitsym_options options = test_options();
  options.max_wait_ms = 60000;
  CHECK_OK(jitsym_init(&options, &session));
  register_pieces(0, 0, KNOWN);
  __atomic_store_n(&disk.slow_ms, leaves_unwritten ? 60000 : 0, __ATOMIC_SEQ_CST);
}

/* Registers until the process ends. */
static void *registers(void *thread) {
  for (uint32_t number = 0; number < NUMBERS_MAX; number++) {
    register_piece((uint32_t)(uintptr_t)thread, number);
    if (test_light) {
      /* The sanitizer measures the rest of the text for each word of it that is read. */
      usleep(200);
    }
  }
  return NULL;
}

static pthread_t start(void *(*body)(void *), uint32_t thread) {
  pthread_t started;
  CHECK(pthread_create(&started, NULL, body, (void *)(uintptr_t)thread) == 0);
  return started;
}

/* Threads that register until the process ends. */
static void start_threads(unsigned count) {
  for (uint32_t thread = 1; thread <= count; thread++) {
    CHECK(pthread_detach(start(registers, thread)) == 0);
  }
  test_sleep_ms(30);
}

static void begin_busy(void) {
  begin();
  start_threads(THREADS - 1);
}

/* The checks. */

static const struct note *notes_read(pid_t pid, size_t *count) {
  size_t size;
  unsigned char *bytes = file_read(notes_path(pid).text, &size);
  /* The last one of a process that was killed while it wrote it. */
  *count = size / sizeof(struct note);
  return (const struct note *)(const void *)bytes;
}

static void count_piece(unsigned char *seen, const char *name, uint64_t addr, uint64_t size) {
  unsigned thread, number;
  char again[32];
  CHECK(sscanf(name, "end %u %u", &thread, &number) == 2);
  snprintf(again, sizeof again, "end %u %u", thread, number);
  CHECK(strcmp(again, name) == 0 && thread < THREADS_MAX && number < NUMBERS_MAX);
  CHECK(addr == addr_of(thread, number) && size == size_of(thread, number));
  seen[(size_t)thread * NUMBERS_MAX + number]++;
}

/*
 * What was accepted is there once; what was not, or had not returned, once at most; and nothing else. Threads go on while a crash
 * handler has everything written: what they register then is only there after a recovery.
 */
static void compare(pid_t pid, unsigned char *seen, int recovered) {
  uint32_t next[THREADS_MAX] = {0};
  int handled = 0;
  size_t count;
  const struct note *all = notes_read(pid, &count);
  CHECK(count >= KNOWN);
  for (size_t i = 0; i < count; i++) {
    const struct note *note = &all[i];
    if (note->thread == HANDLER) {
      handled = !recovered;
      continue;
    }
    CHECK(note->thread < THREADS_MAX && note->number == next[note->thread]);
    next[note->thread]++;
    unsigned char *times = &seen[(size_t)note->thread * NUMBERS_MAX + note->number];
    int must = note->status == JITSYM_OK && !handled;
    if (must && *times != 1) {
      fprintf(stderr, "process %d: piece %u of thread %u is there %u times\n", (int)pid, note->number, note->thread, *times);
    }
    CHECK(*times == 1 || (!must && *times == 0));
    *times = 0;
  }
  for (uint32_t thread = 0; thread < THREADS_MAX; thread++) {
    unsigned char *last = &seen[(size_t)thread * NUMBERS_MAX + next[thread]];
    CHECK(next[thread] == NUMBERS_MAX || *last <= 1);
    for (uint32_t number = next[thread] + 1; number < NUMBERS_MAX; number++) {
      CHECK(seen[(size_t)thread * NUMBERS_MAX + number] == 0);
    }
  }
  free((void *)(uintptr_t)all);
}

static void check_files(pid_t pid, int recovered) {
  unsigned char *seen = calloc(THREADS_MAX, NUMBERS_MAX);
  CHECK(seen != NULL);
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  CHECK(dump.pid == (uint32_t)pid);
  for (size_t i = 0; i < dump.count; i++) {
    const struct dump_record *load = &dump.records[i];
    CHECK(load->id == DUMP_LOAD);
    if (strcmp(load->name, "read at its place") == 0) {
      CHECK(load->size == 64 && memcmp(load->code, test_bytes, 64) == 0);
      continue;
    }
    count_piece(seen, load->name, load->addr, load->size);
    CHECK(memcmp(load->code, bytes_of((uint32_t)((load->addr & 0xffffffff) / STRIDE)), load->size) == 0);
  }
  compare(pid, seen, recovered);
  dump_free(&dump);
  memset(seen, 0, (size_t)THREADS_MAX * NUMBERS_MAX);
  struct map map = map_read(test_path_of(pid, JITSYM_SINK_MAP).text);
  for (size_t i = 0; i < map.count; i++) {
    if (strcmp(map.entries[i].name, "read at its place") != 0) {
      count_piece(seen, map.entries[i].name, map.entries[i].start, map.entries[i].size);
    }
  }
  compare(pid, seen, recovered);
  map_free(&map);
  free(seen);
}

/* Whether a process has left its spool, which it removes when it has written everything. */
static int has_left_spool(pid_t pid) {
  char prefix[32];
  int length = snprintf(prefix, sizeof prefix, "jitsym-%d-", (int)pid);
  DIR *dir = opendir(getenv("JITSYM_SPOOL_DIR"));
  CHECK(dir != NULL);
  int found = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    found |= strncmp(entry->d_name, prefix, (size_t)length) == 0;
  }
  closedir(dir);
  return found;
}

/* Completes the files of processes that have left their spool. */
static void recovers(void) {
  CHECK_OK(jitsym_close(test_open_flags(0, JITSYM_INIT_RECOVER)));
}

/* The ways in which exit handlers run. What a way returns, main returns. */

static int returns(void) {
  begin_busy();
  return 0;
}

static int exits(void) {
  begin_busy();
  exit(0);
}

static int exits_quickly(void) {
  begin_busy();
  quick_exit(0);
}

static void exit_again(void) {
  register_pieces(0, KNOWN, KNOWN + 20);
  exit(0);
}

static int exits_in_handler(void) {
  begin_busy();
  CHECK(atexit(exit_again) == 0);
  return 0;
}

static int exits_at_end;

/* Behind the library's own handler, if that is linked in: the exiting thread can still have something written. */
__attribute__((destructor)) static void at_end(void) {
  if (exits_at_end) {
    register_pieces(0, KNOWN, KNOWN + 20);
    CHECK_OK(test_flush(session));
    exit(0);
  }
}

static int exits_in_destructor(void) {
  begin_busy();
  exits_at_end = 1;
  return 0;
}

/* No other thread has any memory for records. */
static int exits_alone_in_destructor(void) {
  begin();
  exits_at_end = 1;
  return 0;
}

static pthread_barrier_t together;

static void *exits_together(void *quickly) {
  pthread_barrier_wait(&together);
  if (quickly != NULL) {
    quick_exit(0);
  }
  exit(0);
}

static int end_together(unsigned count, uint32_t quickly) {
  begin_busy();
  CHECK(pthread_barrier_init(&together, NULL, count) == 0);
  for (unsigned i = 1; i < count; i++) {
    start(exits_together, quickly);
  }
  exits_together(NULL);
  return 1;
}

static int exits_twice(void) {
  return end_together(2, 0);
}

static int exits_often(void) {
  return end_together(8, 0);
}

static int exits_in_two_ways(void) {
  return end_together(2, 1);
}

/* The calling thread exits, and is held as soon as the library's exit handler makes its first call. */
static _Thread_local int is_to_be_held;
static int is_held;

/* Stands in front of the C library's function, with which each of the library's exit handlers begins. */
int pthread_setcancelstate(int state, int *before) {
  static int (*next)(int, int *);
  if (is_to_be_held) {
    __atomic_store_n(&is_held, 1, __ATOMIC_SEQ_CST);
    for (;;) {
      pause();
    }
  }
  if (next == NULL) {
    next = (int (*)(int, int *))dlsym(RTLD_NEXT, "pthread_setcancelstate");
  }
  return next(state, before);
}

static void *exits_and_is_held(void *unused) {
  (void)unused;
  is_to_be_held = 1;
  exit(0);
}

/*
 * The thread that has the library's exit handler does not come to run it, and another thread exits. From 2.41 on, the C library lets
 * one thread exit at a time.
 */
static int exits_overtaken(void) {
  begin_busy();
  if (strverscmp(gnu_get_libc_version(), "2.41") < 0) {
    start(exits_and_is_held, 0);
    TEST_AWAIT(__atomic_load_n(&is_held, __ATOMIC_SEQ_CST));
  }
  exit(0);
}

static void *flushes(void *unused) {
  (void)unused;
  for (;;) {
    jitsym_status status = jitsym_flush(session, 0);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_TIMEOUT);
  }
  return NULL;
}

static int exits_beside_flush(void) {
  begin_busy();
  start(flushes, 0);
  start(flushes, 0);
  test_sleep_ms(20);
  exit(0);
}

/* Sessions open and close; of the first one, too. */
static void *opens_and_closes(void *unused) {
  (void)unused;
  jitsym *own = session;
  for (;;) {
    jitsym_status status = jitsym_close(own);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_TIMEOUT || status == JITSYM_ERR_CLOSED);
    jitsym_options options = test_options();
    status = jitsym_init(&options, &own);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_TIMEOUT);
    if (status == JITSYM_OK) {
      __atomic_store_n(&session, own, __ATOMIC_SEQ_CST);
    }
  }
  return NULL;
}

static int exits_beside_close(void) {
  begin();
  start_threads(1);
  start(opens_and_closes, 0);
  test_sleep_ms(20);
  exit(0);
}

static void *is_short(void *thread) {
  register_pieces((uint32_t)(uintptr_t)thread, 0, 7);
  return NULL;
}

/* Each ends with a chunk that is hardly used. The last of them end with the process, or shortly before. */
static void run_short_threads(void) {
  begin();
  pthread_t threads[SHORT_THREADS];
  for (uint32_t i = 0; i < SHORT_THREADS; i++) {
    threads[i] = start(is_short, THREADS + i);
  }
  for (uint32_t i = 0; i < SHORT_THREADS / 2; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

static int short_threads(void) {
  run_short_threads();
  return 0;
}

/* Cancellation comes when a thread asks for it, or in the write(2) of its note: never inside the library. */
static int cancelled(void) {
  begin();
  for (int round = 0; round < 4; round++) {
    pthread_t threads[THREADS - 1];
    for (uint32_t i = 0; i < THREADS - 1; i++) {
      threads[i] = start(round % 2 == 0 ? registers : flushes, THREADS + 3 * (uint32_t)round + i);
    }
    test_sleep_ms(10);
    for (int i = 0; i < THREADS - 1; i++) {
      void *result = NULL;
      CHECK(pthread_cancel(threads[i]) == 0);
      if (round % 2 != 0) {
        /* A flush is none either: it goes on as if nothing had happened, until the process ends. */
        CHECK(pthread_detach(threads[i]) == 0);
        continue;
      }
      CHECK(pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED);
    }
  }
  return 0;
}

/* Without a first thread /proc/self shows nothing of the process, and its memory cannot be read by its pid. */
static void goes_on(pthread_t first) {
  CHECK(pthread_join(first, NULL) == 0);
  /* The kernel may take a moment to see it. */
  test_sleep_ms(20);
  jitsym_code code = test_code((uint64_t)(uintptr_t)test_bytes, 64, "read at its place");
  code.bytes = NULL;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK(test_stats(session).unreadable == 0);
  register_pieces(1, 0, 500);
}

static void *goes_on_and_exits(void *first) {
  goes_on(*(pthread_t *)first);
  exit(0);
}

/* The last thread of the program ends, and only the library's is left. */
static void *goes_on_and_ends(void *first) {
  goes_on(*(pthread_t *)first);
  return NULL;
}

static int end_first(void *(*body)(void *)) {
  static pthread_t first;
  first = pthread_self();
  begin();
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, body, &first) == 0 && pthread_detach(thread) == 0);
  pthread_exit(NULL);
}

static int first_thread_ends(void) {
  return end_first(goes_on_and_exits);
}

/* For a recovery that must leave it alone. */
static void *goes_on_and_stays(void *first) {
  goes_on(*(pthread_t *)first);
  alarm(300);
  test_sleep_ms(600000);
  return NULL;
}

static int first_thread_ends_early(void) {
  return end_first(goes_on_and_stays);
}

static int all_threads_end(void) {
  return end_first(goes_on_and_ends);
}

/* Crash handlers, which have what is pending written. */

static volatile jitsym_status expected = JITSYM_OK;
/* Enough for any machine that writes at all. */
enum { LONG_MS = 120000 };

static volatile uint32_t allowed_ms = LONG_MS;

static void handle(int number) {
  struct note note = {HANDLER, 0, 0};
  if (write(notes, &note, sizeof note) != sizeof note) {
    /* On the library's own thread, which has none of the program's descriptors. */
    CHECK(errno == EBADF && expected == JITSYM_ERR_WRITER);
    int file = open(own_notes.text, O_WRONLY | O_APPEND | O_CLOEXEC);
    CHECK(write(file, &note, sizeof note) == sizeof note && close(file) == 0);
  }
  errno = 1234;
  jitsym_status status = jitsym_flush_from_signal(allowed_ms);
  CHECK(status == expected || (status == JITSYM_ERR_TIMEOUT && allowed_ms < LONG_MS));
  CHECK(errno == 1234);
  if (test_light) {
    _exit(HANDLED);
  }
  signal(number, SIG_DFL);
  raise(number);
}

/* On a stack of its own, as handlers of stack overflows run. */
static void install(int number) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handle;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  CHECK(sigaction(number, &action, NULL) == 0);
}

static void use_other_stack(void) {
  stack_t stack;
  memset(&stack, 0, sizeof stack);
  stack.ss_size = 16384;
  CHECK((stack.ss_sp = malloc(stack.ss_size)) != NULL);
  CHECK(sigaltstack(&stack, NULL) == 0);
}

static void fault(void) {
  if (test_light) {
    raise(SIGSEGV);
  }
  int *volatile nowhere = (int *)8;
  *nowhere = 0;
}

static int segfault(void) {
  begin_busy();
  fault();
  return 1;
}

static int segfault_handled(void) {
  install(SIGSEGV);
  use_other_stack();
  return segfault();
}

static int aborts(void) {
  begin_busy();
  abort();
}

static int aborts_handled(void) {
  install(SIGABRT);
  use_other_stack();
  return aborts();
}

static int is_terminated(void) {
  begin_busy();
  kill(getpid(), SIGTERM);
  test_sleep_ms(60000);
  return 1;
}

/* A thread is hit wherever it is in its registering. */
static int terminated_handled(void) {
  install(SIGTERM);
  begin_busy();
  pthread_t thread = start(registers, THREADS);
  test_sleep_ms(5 + (unsigned)getpid() % 7);
  CHECK(pthread_kill(thread, SIGTERM) == 0);
  test_sleep_ms(60000);
  return 1;
}

/*
 * The C library aborts inside malloc, with its lock held, when it finds that the program has written over the heap's end. If the
 * library's thread needs that lock, the handler waits no longer than it is allowed to.
 */
static int heap_is_broken(void) {
  install(SIGABRT);
  begin_busy();
  allowed_ms = 500;
  CHECK(freopen("/dev/null", "w", stderr) != NULL);
  enum { SIZE = 72 };
  uintptr_t last = 0;
  for (int i = 0; i < 100000; i++) {
    uintptr_t next = (uintptr_t)malloc(SIZE);
    last = next > last ? next : last;
  }
  /* The size of what is left behind the last piece; there is none that large. */
  volatile uintptr_t top = last + SIZE;
  *(volatile size_t *)top = (size_t)-1 / 2;
  for (;;) {
    CHECK(malloc(4096 - 64) != NULL);
  }
}

static int is_killed(void) {
  begin_busy();
  kill(getpid(), SIGKILL);
  return 1;
}

static int exits_at_once(void) {
  begin_busy();
  _exit(0);
}

static int short_threads_at_once(void) {
  run_short_threads();
  _exit(0);
}

#ifdef ENDS_CXX
static int throws(void) {
  begin_busy();
  ends_throw();
  return 1;
}

static int throws_handled(void) {
  install(SIGABRT);
  return throws();
}
#endif

static void (*die)(void) = abort;

ssize_t writev(int file, const struct iovec *parts, int count) {
  int left = __atomic_load_n(&disk.dies_in, __ATOMIC_SEQ_CST);
  if (left != 0 && __atomic_sub_fetch(&disk.dies_in, 1, __ATOMIC_SEQ_CST) == 0) {
    die();
  }
  for (unsigned ms = 0; ms < __atomic_load_n(&disk.slow_ms, __ATOMIC_SEQ_CST); ms++) {
    test_sleep_ms(1);
  }
  return syscall(SYS_writev, file, parts, count);
}

/* As when the C library finds the heap broken in the library's own thread. */
static int writer_aborts(void) {
  install(SIGABRT);
  begin_busy();
  expected = JITSYM_ERR_WRITER;
  __atomic_store_n(&disk.dies_in, 3, __ATOMIC_SEQ_CST);
  test_sleep_ms(60000);
  return 1;
}

static void handle_fault(int number) {
  (void)number;
  CHECK_STATUS(JITSYM_ERR_WRITER, jitsym_flush_from_signal(20000));
  signal(SIGABRT, SIG_DFL);
  abort();
}

/* A fault there reaches the host's crash handler too, by which the process ends in another way. */
static int writer_faults(void) {
  CHECK(signal(SIGSEGV, handle_fault) != SIG_ERR);
  die = fault;
  return writer_aborts();
}

/* What the call from a signal handler comes to elsewhere. */

static void says_what_is_so(void) {
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_flush_from_signal(0));
  jitsym *off = NULL;
  setenv("JITSYM", "off", 1);
  CHECK_OK(jitsym_init(NULL, &off));
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_flush_from_signal(0));
  CHECK_OK(jitsym_close(off));
  unsetenv("JITSYM");
  begin();
  CHECK_OK(jitsym_flush_from_signal(0));
  /* It waits no longer than it is allowed to. */
  __atomic_store_n(&disk.slow_ms, LONG_MS, __ATOMIC_SEQ_CST);
  register_pieces(0, KNOWN, KNOWN + 1);
  uint64_t before = test_now();
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush_from_signal(20));
  CHECK(test_now() - before >= 20000000);
  __atomic_store_n(&disk.slow_ms, 0, __ATOMIC_SEQ_CST);
  /* What was left then is not in the way of the next. */
  CHECK_OK(jitsym_flush_from_signal(LONG_MS));
  /* A child that has not used what it has inherited has nothing to be written, and one that goes on with it has. */
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_flush_from_signal(0));
    test_register(session, ADDR - 0x1000, 0x40, "of the child");
    CHECK_OK(jitsym_flush_from_signal(LONG_MS));
    struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
    CHECK(dump_load(&dump, "of the child", 0) != NULL);
    dump_free(&dump);
    test_inherits_threads = 1;
    exit(0);
  }
  test_wait_ok(child);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_flush_from_signal(0));
  check_files(getpid(), 0);
}

static _Atomic unsigned interrupted, in_vain;

static void flush_in_handler(int number) {
  (void)number;
  errno = 4321;
  jitsym_status status = jitsym_flush_from_signal(test_light ? 5000 : 1000);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_NOT_RUNNING || status == JITSYM_ERR_TIMEOUT);
  CHECK(errno == 4321);
  in_vain += status == JITSYM_ERR_TIMEOUT;
  interrupted++;
}

static _Atomic int enough;

static void *opens_and_closes_often(void *thread) {
  while (!enough) {
    jitsym *own = test_open();
    test_register(own, ADDR + 0x1000 * (uintptr_t)thread, 0x40, "interrupted");
    CHECK_OK(test_flush(own));
    CHECK_OK(jitsym_close(own));
  }
  return NULL;
}

/* Handlers interrupt every call of the library, the opening and closing of sessions too, and go on. */
static void interrupts_everything(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = flush_in_handler;
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
  pthread_t threads[2] = {start(opens_and_closes_often, 0), start(opens_and_closes_often, 1)};
  unsigned rounds = test_light ? 50 : 2000;
  for (unsigned i = 0; i < rounds; i++) {
    unsigned before = interrupted;
    CHECK(pthread_kill(threads[i % 2], SIGUSR1) == 0);
    usleep(i % 3 * 50);
    TEST_AWAIT(interrupted != before);
  }
  /* The thread may have been in malloc, and the writer may have had to wait for that. */
  CHECK(in_vain <= rounds / 20);
  enough = 1;
  CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
}

#if defined(__SANITIZE_ADDRESS__)
/* AddressSanitizer takes the frames that pthread_exit and cancellation leave behind for live ones. */
enum { LEAVES_FRAMES = 1 };
#else
enum { LEAVES_FRAMES = 0 };
#endif

/* All ways; those where the library gets to run leave complete files. */
static const struct way {
  const char *name;
  int (*body)(void);
  /* 0: exits well; else the signal by which it ends. */
  int signal;
  int complete;
  /* Not under valgrind and the sanitizers, which end a program in their own way. */
  int plain_only;
} ways[] = {
    {"return", returns, 0, 1, 0},
    {"exit", exits, 0, 1, 0},
    {"quick_exit", exits_quickly, 0, 1, 0},
    {"exit_in_handler", exits_in_handler, 0, 1, 0},
    {"exit_in_destructor", exits_in_destructor, 0, 1, 0},
    {"exit_alone_in_destructor", exits_alone_in_destructor, 0, 1, 0},
    {"exit_twice", exits_twice, 0, 1, 1},
    {"exit_often", exits_often, 0, 1, 1},
    {"exit_in_two_ways", exits_in_two_ways, 0, 1, 1},
    {"exit_overtaken", exits_overtaken, 0, 1, 1},
    {"exit_beside_flush", exits_beside_flush, 0, 1, 0},
    {"exit_beside_close", exits_beside_close, 0, 1, 0},
    {"short_threads", short_threads, 0, 1, 0},
    {"cancelled", cancelled, 0, 1, LEAVES_FRAMES},
    {"first_thread_ends", first_thread_ends, 0, 1, LEAVES_FRAMES},
    {"all_threads_end", all_threads_end, 0, 1, LEAVES_FRAMES},
    {"segfault_handled", segfault_handled, SIGSEGV, 1, 0},
    {"abort_handled", aborts_handled, SIGABRT, 1, 0},
    {"sigterm_handled", terminated_handled, SIGTERM, 1, 0},
    {"heap_handled", heap_is_broken, SIGABRT, 0, 1},
#ifdef ENDS_CXX
    {"throw_handled", throws_handled, SIGABRT, 1, 0},
    {"throw", throws, SIGABRT, 0, 1},
#endif
    {"writer_aborts", writer_aborts, SIGABRT, 0, 1},
    {"writer_faults", writer_faults, SIGABRT, 0, 1},
    {"_exit", exits_at_once, 0, 0, 1},
    {"short_threads_at_once", short_threads_at_once, 0, 0, 1},
    {"abort", aborts, SIGABRT, 0, 1},
    {"segfault", segfault, SIGSEGV, 0, 1},
    {"sigterm", is_terminated, SIGTERM, 0, 1},
    {"sigkill", is_killed, SIGKILL, 0, 1},
    {"first_thread_ends_early", first_thread_ends_early, SIGKILL, 0, 1},
};

enum { WAYS = sizeof ways / sizeof ways[0] };

static const struct way *way_of(const char *name) {
  for (size_t i = 0; i < WAYS; i++) {
    if (strcmp(ways[i].name, name) == 0) {
      return &ways[i];
    }
  }
  CHECK(!"no such way");
  return NULL;
}

/*
 * Goes a way in a child. What it returns is for main to return in the child; -1 in the parent. A thread that is kept from running
 * for a second in the middle of a record keeps the spool there, which has that record. Such a way is gone again.
 */
static int go(const struct way *way, int tries) {
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    return way->body();
  }
  int status = test_wait(child);
  int is_right = way->signal == 0 ? status == 0
                 : test_light     ? WIFEXITED(status) && WEXITSTATUS(status) == HANDLED
                                  : WIFSIGNALED(status) && WTERMSIG(status) == way->signal;
  if (!is_right) {
    fprintf(stderr, "%s: wait status %#x\n", way->name, (unsigned)status);
  }
  CHECK(is_right);
  int left = way->signal == 0 && has_left_spool(child);
  if (left) {
    test_child(recovers);
  }
  check_files(child, left);
  if (!left) {
    return -1;
  }
  if (tries == 0) {
    fprintf(stderr, "%s: leaves its spool\n", way->name);
    CHECK(0);
  }
  return go(way, tries - 1);
}

/* For a program that loads all this as a plugin (host.c): the first call begins. */
void ends_plugin(char *dir, uint32_t thread);
void ends_plugin(char *dir, uint32_t thread) {
  if (thread == 0) {
    char *arguments[] = {dir, dir};
    test_begin(2, arguments);
    begin();
  } else {
    register_pieces(thread, 0, 100);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  leaves_unwritten = argc == 4 && strcmp(argv[2], "end-unwritten") == 0;
  if (argc == 4 && (leaves_unwritten || strcmp(argv[2], "end") == 0)) {
    return way_of(argv[3])->body();
  }
  if (argc == 4 && strcmp(argv[2], "check") == 0) {
    check_files((pid_t)atoi(argv[3]), 1);
    return test_end();
  }
  test_child(says_what_is_so);
  test_child(interrupts_everything);
  for (size_t i = 0; i < WAYS; i++) {
    /* The last thread of the program is never alone with an emulator's. */
    int possible = test_threads_of_others == 0 || ways[i].body != all_threads_end;
    if (ways[i].complete && possible && !(test_light && ways[i].plain_only)) {
      int status = go(&ways[i], 2);
      if (status >= 0) {
        return status;
      }
    }
  }
  return test_end();
}
