/*
 * A program whose calls are checked (JITSYM_DEBUG=check): DIR. Names that begin with `bad` are those of mistakes, and are in one finding
 * each. There are 25 more of the first kind.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "testing.h"

enum { SIZE = 4096, CODE = 64, MORE = 25, THREADS = 3, FORKS = 40 };

static jitsym *session;
static const unsigned char other_bytes[CODE] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

static unsigned char *memory(void) {
  unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static jitsym_id named(const unsigned char *at, const unsigned char *bytes, const char *name) {
  jitsym_code code = JITSYM_CODE(at, CODE, name);
  code.bytes = bytes;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

static void end(jitsym_id id) {
  CHECK_OK(jitsym_unregister(session, id));
}

static int forks_are_over;

static void *calls(void *nothing) {
  while (!__atomic_load_n(&forks_are_over, __ATOMIC_SEQ_CST)) {
    (void)jitsym_unregister_range(session, 1 << 20, 1, 0);
  }
  return nothing;
}

/* Children that are forked in the middle of other threads' calls are checked too, and wait for nobody. */
static void children(void) {
  pthread_t threads[THREADS];
  unsigned char *at = memory();
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, calls, NULL) == 0);
  }
  for (int i = 0; i < FORKS; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      jitsym_code code = JITSYM_CODE(at, CODE, "good_child");
      code.bytes = at;
      jitsym_status status = jitsym_register(session, &code, NULL);
      _exit(status == JITSYM_OK || status == JITSYM_ERR_FORKED ? 0 : 1);
    }
    test_wait_ok(child);
  }
  __atomic_store_n(&forks_are_over, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  session = test_open();
  children();
  /* Registered before it is in its place: it is there when it runs. The memory that can be written to may be filled later. */
  unsigned char *at = memory();
  jitsym_id good = named(at, test_bytes, "good");
  (void)named(at + CODE, test_bytes, "late");
  jitsym_id wrong = named(at + 2 * CODE, test_bytes, "bad_flushed");
  CHECK_OK(test_flush(session));
  memcpy(at, test_bytes, CODE);
  memcpy(at + CODE, test_bytes, CODE);
  memcpy(at + 2 * CODE, other_bytes, CODE);
  CHECK(mprotect(at, SIZE, PROT_READ | PROT_EXEC) == 0);
  CHECK_OK(test_flush(session));
  /* Patched after that, which is no mistake. */
  CHECK(mprotect(at, SIZE, PROT_READ | PROT_WRITE) == 0);
  at[0] ^= 1;
  end(good);
  end(wrong);
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)at, 2 * CODE, 0));
  /* Other code in the place of code that has ended. */
  end(named(at, at, "good_again"));

  /* Never flushed in its place. */
  jitsym_id id = named(at, test_bytes, "bad_ended");
  end(id);
  /* Moved, with its bytes: where it was there is other code. */
  id = named(at, at, "good_moved");
  jitsym_move_target target = JITSYM_MOVE_TARGET(at + 10 * CODE);
  memcpy(at + 10 * CODE, other_bytes, CODE);
  target.bytes = other_bytes;
  CHECK_OK(jitsym_move(session, id, &target));
  memset(at, 0xcc, CODE);
  end(id);
  id = named(at, at, "bad_moved");
  target.addr = (uintptr_t)(at + 11 * CODE);
  CHECK_OK(jitsym_move(session, id, &target));
  end(id);

  (void)named(at, at, "bad_replaced");
  id = named(at + CODE / 2, at + CODE / 2, "good_replacing");
  end(id);
  for (int i = 0; i <= MORE; i++) {
    id = named(at, at, "again");
  }
  end(id);

  unsigned char *short_lived = memory();
  id = named(short_lived, short_lived, "bad_unmapped");
  CHECK(munmap(short_lived, SIZE) == 0);
  end(id);

  (void)named(at, test_bytes, "bad_at_exit");
  return test_end();
}
