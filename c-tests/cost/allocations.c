/*
 * No memory is allocated or freed on a registering thread once it is under way. Counted, per thread, by standing in for
 * the C library's allocator, from which Rust's has its memory.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>

#include "testing.h"

enum { THREADS = 3, LIVE = 1000, WARM_UP = 3, ROUNDS = 20, SIZE = 64, CHUNKS = 10 };

static _Thread_local struct counts {
  unsigned allocations, frees;
} counts;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *old);

void *malloc(size_t size) {
  counts.allocations++;
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  counts.allocations++;
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  counts.allocations++;
  return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size) {
  counts.allocations++;
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out == NULL ? ENOMEM : 0;
}

void free(void *old) {
  counts.frees += old != NULL;
  __libc_free(old);
}

static jitsym *session;
static struct counts sums[THREADS];
static pthread_barrier_t all_live;

/* Registers as much as fills a chunk, with unwinding and lines, moves some of it and unregisters it. */
static void round_of_calls(uint64_t addr, int warm_up) {
  static const jitsym_line lines[] = {{0, 1, 1, 0, "/guest/a"}, {32, 2, 0, 0, "/guest/b"}};
  jitsym_saved_register saved = {3, -16};
  jitsym_unwind unwinds[2];
  memset(unwinds, 0, sizeof unwinds);
  unwinds[0].struct_size = unwinds[1].struct_size = sizeof unwinds[0];
  unwinds[0].kind = JITSYM_UNWIND_FRAME_POINTER;
  unwinds[1].kind = JITSYM_UNWIND_FIXED_FRAME;
  unwinds[1].cfa_offset = 48;
  unwinds[1].saved = &saved;
  unwinds[1].saved_count = 1;
  jitsym_id ids[LIVE];
  for (int i = 0; i < LIVE; i++) {
    jitsym_code code = test_code(addr + (uint64_t)i * SIZE, SIZE, "a function with a name of middling length");
    code.unwind = i % 4 == 3 ? NULL : &unwinds[i % 2];
    code.lines = lines;
    code.line_count = (size_t)i % 3;
    code.file = i % 2 == 0 ? NULL : "/guest/a";
    code.line = (uint32_t)i;
    CHECK_OK(jitsym_register(session, &code, &ids[i]));
  }
  if (warm_up) {
    /* All threads together never have more registrations than here. */
    pthread_barrier_wait(&all_live);
  }
  for (int i = 0; i < LIVE; i += 4) {
    jitsym_move_target target = test_target(addr + (uint64_t)(LIVE + i) * SIZE);
    CHECK_OK(jitsym_move(session, ids[i], &target));
  }
  for (int i = 0; i < LIVE; i++) {
    CHECK_OK(jitsym_unregister(session, ids[i]));
  }
  CHECK_OK(jitsym_unregister_range(session, addr, LIVE * SIZE, 0));
}

static void *thread(void *sum) {
  struct counts *out = sum;
  uint64_t addr = 0x7000000000 + 0x10000000 * (uint64_t)(out - sums);
  for (int i = 0; i < WARM_UP + ROUNDS; i++) {
    struct counts before = counts;
    round_of_calls(addr, i < WARM_UP);
    if (i >= WARM_UP) {
      out->allocations += counts.allocations - before.allocations;
      out->frees += counts.frees - before.frees;
    }
    /* Until the ids can be used again; otherwise their number grows, and memory with it. */
    CHECK_OK(test_flush(session));
  }
  return NULL;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);

  /* The control: what the library allocates and frees is counted. */
  struct counts before = counts;
  session = test_open();
  CHECK(counts.allocations > before.allocations && counts.frees > before.frees);

  pthread_t threads[THREADS];
  CHECK(pthread_barrier_init(&all_live, NULL, THREADS) == 0);
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, thread, &sums[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(sums[i].allocations == 0);
    /* What another thread has allocated is freed under the lock of that thread's part of the heap. */
    CHECK(sums[i].frees == 0);
  }
  /* Enough that every thread has changed chunks many times. */
  CHECK(test_stats(session).jitdump_bytes > THREADS * (uint64_t)CHUNKS * TEST_CHUNK_SIZE);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
