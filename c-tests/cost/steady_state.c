/*
 * Registers, moves and unregisters between calls that a tracer recognises: getppid begins a stretch, getppid ends one
 * in which the library has to make no system call, getsid one that does not count. DIR THREADS.
 *
 * A thread makes several chunks full. After each stretch it waits until the writer has caught up, and all threads
 * together have less on the way than the pool holds, so there are always chunks that are free. The writer is not asleep
 * either, and has not given the pool's memory up: it goes on for a second after the last record, so a stretch that ends
 * sooner after the one before cannot meet that. On a machine so busy that it ends later, it does not count, and the
 * memory is made anew.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "testing.h"

enum { THREADS_MAX = 8, STRETCHES = 40, LIVE = 400, SIZE = 64, CHUNKS = 10, BY_ADDRESS = 10, AMPLE = 4 << 20 };
static const uint64_t SOON_NS = 500000000;

static jitsym *session;
static pthread_barrier_t all_live;

static jitsym_id enter(uint64_t addr, const void *bytes) {
  jitsym_line lines[2] = {{0, 1, 1, 0, "/guest/a"}, {32, 2, 0, 0, "/guest/a"}};
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  jitsym_code code = test_code(addr, SIZE, "a function");
  code.bytes = bytes;
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = 2;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

static void calls(uint64_t addr, jitsym_id *ids) {
  static const unsigned char bytes[SIZE];
  for (int i = 0; i < LIVE; i++) {
    ids[i] = enter(addr + (uint64_t)i * SIZE, bytes);
  }
  for (int i = 0; i < LIVE; i += 8) {
    jitsym_move_target target = test_target(addr + (uint64_t)(LIVE + i) * SIZE);
    CHECK_OK(jitsym_move(session, ids[i], &target));
  }
}

static void end_calls(const jitsym_id *ids) {
  for (int i = 0; i < LIVE; i++) {
    CHECK_OK(jitsym_unregister(session, ids[i]));
  }
}

static void *thread(void *number) {
  uint64_t addr = 0x7000000000 + 0x10000000 * (uint64_t)(uintptr_t)number;
  jitsym_id ids[LIVE];
  /* The memory for ids grows with how many are live at a time: as many as ever will be. */
  calls(addr, ids);
  pthread_barrier_wait(&all_live);
  end_calls(ids);
  CHECK_OK(test_flush(session));
  uint64_t last = 0;
  for (int i = 0; i < STRETCHES;) {
    /* The memory for records grows with what threads lay down in it, to 4 MiB. */
    while (test_stats(session).memory_held < AMPLE) {
      calls(addr, ids);
      end_calls(ids);
      last = test_now();
      CHECK_OK(test_flush(session));
    }
    getppid();
    calls(addr, ids);
    end_calls(ids);
    uint64_t now = test_now();
    if (now - last < SOON_NS) {
      getppid();
      i++;
    } else {
      getsid(0);
    }
    last = now;
    CHECK_OK(test_flush(session));
  }
  /* The control: reading at the address goes through the kernel. No other thread takes this place. */
  unsigned char memory[SIZE] = {0};
  getppid();
  for (int i = 0; i < BY_ADDRESS; i++) {
    enter((uint64_t)(uintptr_t)memory, NULL);
  }
  getppid();
  return NULL;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 3);
  int count = atoi(argv[2]);
  CHECK(count >= 1 && count <= THREADS_MAX);
  session = test_open();
  pthread_t threads[THREADS_MAX];
  CHECK(pthread_barrier_init(&all_live, NULL, (unsigned)count) == 0);
  for (intptr_t i = 0; i < count; i++) {
    CHECK(pthread_create(&threads[i], NULL, thread, (void *)i) == 0);
  }
  for (int i = 0; i < count; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK(test_stats(session).jitdump_bytes > (uint64_t)count * CHUNKS * TEST_CHUNK_SIZE);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
