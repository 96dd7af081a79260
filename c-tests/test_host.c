/* What a host may do that has nothing to do with the library: it must not hurt the host then. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "testing.h"

static const uint64_t ADDR = 0x7000000000;
enum { HOST_FILE = 3 << 20, MOST = 64 };

static char *host_bytes(void) {
  char *bytes = malloc(HOST_FILE);
  CHECK(bytes != NULL);
  memset(bytes, 'x', HOST_FILE);
  return bytes;
}

/* Closes all descriptors of the library's files, as daemons close all there are, and opens files of its own in their places. */
static size_t replace_descriptors(int *own) {
  char link[TEST_PATH_MAX], name[64];
  size_t count = 0;
  for (int number = 3; number < 256; number++) {
    snprintf(name, sizeof name, "/proc/self/fd/%d", number);
    ssize_t len = readlink(name, link, sizeof link - 1);
    if (len < 0) {
      continue;
    }
    link[len] = 0;
    if (strstr(link, ".spool") || strstr(link, "/perf-") || strstr(link, "/jit-")) {
      CHECK(close(number) == 0 && count < MOST);
      char path[TEST_PATH_MAX + 16];
      snprintf(path, sizeof path, "%s-own-%zu", test_dir, count);
      own[count] = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      CHECK(own[count++] == number && unlink(path) == 0);
    }
  }
  return count;
}

static void descriptors(void) {
  jitsym *session = test_open();
  test_register(session, ADDR, 0x40, "before");
  CHECK_OK(jitsym_flush(session, 60000));
  int own[MOST];
  size_t count = replace_descriptors(own);
  CHECK(count >= 3);
  char *expected = host_bytes(), *found = host_bytes();
  for (size_t i = 0; i < count; i++) {
    CHECK(write(own[i], expected, HOST_FILE) == HOST_FILE);
  }
  /* More than there is memory for: it has to grow, and large pieces come and go. */
  static unsigned char code[400000];
  for (uint64_t i = 1; i <= 60; i++) {
    jitsym_code large = test_code(ADDR + 0x100000 * i, sizeof code, "large");
    large.bytes = code;
    jitsym_status status = jitsym_register(session, &large, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_DROPPED);
    CHECK_OK(jitsym_register(session, &(jitsym_code){.struct_size = sizeof large, .addr = ADDR + i, .size = 1,
                                                     .bytes = code, .name = "small"}, NULL));
  }
  /* The files are opened again, and everything is in them. */
  jitsym_stats stats = test_stats(session);
  CHECK(stats.sinks_failed == 0 && stats.registered > 60);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_count(&dump, DUMP_LOAD) == stats.registered && dump_load(&dump, "before", 0) != NULL);
  dump_free(&dump);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, ADDR + 60), "small") == 0);
  map_free(&map);
  CHECK_OK(jitsym_close(session));
  for (size_t i = 0; i < count; i++) {
    struct stat data;
    CHECK(fstat(own[i], &data) == 0 && data.st_size == HOST_FILE);
    CHECK(pread(own[i], found, HOST_FILE, 0) == HOST_FILE && memcmp(found, expected, HOST_FILE) == 0);
  }
  free(expected);
  free(found);
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
  CHECK_OK(jitsym_flush(cancelled_session, 60000));
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

/* Signals that the host has blocked stay so, also those that the library does not block itself. */
static volatile sig_atomic_t delivered;

static void is_delivered(int number) {
  (void)number;
  delivered++;
}

static void blocked_signals(void) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  sigset_t blocked, pending;
  sigemptyset(&blocked);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    CHECK(signal(faults[i], is_delivered) != SIG_ERR);
    sigaddset(&blocked, faults[i]);
  }
  CHECK(pthread_sigmask(SIG_BLOCK, &blocked, NULL) == 0);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    CHECK(raise(faults[i]) == 0);
  }
  jitsym *session = test_open();
  test_register(session, ADDR, 0x40, "blocked");
  CHECK_OK(jitsym_close(session));
  CHECK(delivered == 0 && sigpending(&pending) == 0);
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    CHECK(sigismember(&pending, faults[i]) == 1);
    CHECK(signal(faults[i], SIG_IGN) != SIG_ERR);
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
  CHECK_OK(jitsym_flush(late_session, 0));
  if ((uintptr_t)number == 3) {
    CHECK_OK(jitsym_close(late_session));
  }
}

static void *late_thread(void *unused) {
  (void)unused;
  test_register(late_session, ADDR + 0x100000, 0x40, "early");
  CHECK_OK(jitsym_flush(late_session, 0));
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

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(descriptors);
  test_child(cancellation);
  if (!test_light) {
    /* valgrind and the sanitizers have these signals for themselves. */
    test_child(blocked_signals);
  }
  test_child(thread_ends);
  return test_end();
}
