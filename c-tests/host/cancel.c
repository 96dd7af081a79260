/*
 * Threads with a cancellation pending: it strikes in the host's code, and never within a call, in the handlers that the library has
 * for fork and exit, or in what it does when a thread ends. From there nothing could be unwound. (More in host.c.)
 *
 * What the test itself waits for is a place to be cancelled at.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;
static uint32_t flags;
static atomic_int returned;
/* A process that ends because its only thread is cancelled answers 0. */
enum { NOT_CANCELLED = 7 };

static void every_call(jitsym *session) {
  size_t size = (size_t)sysconf(_SC_PAGESIZE);
  jitsym_id id = test_register(session, ADDR, 0x40, "everything");
  jitsym_move_target target = test_target(ADDR + 0x1000);
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK_OK(jitsym_unregister(session, id));
  CHECK_OK(jitsym_unregister_range(session, ADDR, 0x1000, 0));
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_flush_from_signal(60000));
  CHECK_OK(jitsym_disable(session, 0));
  CHECK_OK(jitsym_enable(session, 0));
  CHECK(test_stats_now(session).sinks_failed == 0);
  char text[TEST_PATH_MAX];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK_OK(jitsym_path(session, JITSYM_SINK_JITDUMP, text, sizeof text));
  jitsym_region_options options = {.struct_size = sizeof options, .size = size, .max_size = 2 * size};
  jitsym_region region = {.struct_size = sizeof region};
  CHECK_OK(jitsym_region_create(session, &options, &region));
  CHECK_OK(jitsym_region_grow(session, region.exec, 2 * size));
  CHECK_OK(jitsym_region_discard(session, region.exec, size));
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK_OK(jitsym_alloc(session, size, 0, 0, &region));
  CHECK_OK(jitsym_shrink(session, region.exec, 64));
  CHECK_OK(jitsym_free(session, region.exec));
  jitsym_code name = JITSYM_CODE(NULL, 0, "trampoline");
  void *entry;
  CHECK_OK(jitsym_trampoline(session, (void *)(uintptr_t)&getpid, 0, &name, &entry));
  CHECK_OK(jitsym_trampoline_free(session, entry));
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  if (jitsym_region_adopt(session, memory, size) == JITSYM_OK) {
    CHECK_OK(jitsym_region_release(session, memory));
  }
  CHECK(munmap(memory, size) == 0);
}

static jitsym *open_cancelled(void) {
  return test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, flags);
}

static void *cancelled_thread(void *unused) {
  int state;
  CHECK(pthread_cancel(pthread_self()) == 0);
  jitsym *session = open_cancelled();
  every_call(session);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (flags & JITSYM_INIT_FORK_ALONE) {
      CHECK_STATUS(JITSYM_ERR_FORKED, jitsym_flush(session, 0));
    } else {
      every_call(session);
    }
    if (flags & JITSYM_INIT_REMOVE_FILES) {
      /* The thread that exits removes the files of sinks that were stopped before. */
      CHECK_OK(jitsym_disable(session, 0));
    }
    /* The exit handlers run here. */
    exit(NOT_CANCELLED);
  }
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state) == 0);
  CHECK(test_wait(child) == W_EXITCODE(NOT_CANCELLED, 0));
  CHECK(pthread_setcancelstate(state, NULL) == 0);
  CHECK_OK(jitsym_close(session));
  session = open_cancelled();
  test_register(session, ADDR, 0x40, "pending at the end");
  atomic_store(&returned, 1);
  /* What the library does when a thread ends is done with the cancellation still pending. */
  return unused;
}

static void cancelled(void) {
  test_inherits_threads = 1;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, cancelled_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(atomic_load(&returned));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const uint32_t all[] = {0, JITSYM_INIT_FORK_NOW, JITSYM_INIT_FORK_ALONE | JITSYM_INIT_NO_SPOOL,
                                 JITSYM_INIT_REMEMBER | JITSYM_INIT_RECOVER, JITSYM_INIT_REMOVE_FILES};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    flags = all[i];
    test_child(cancelled);
  }
  return test_end();
}
