/*
 * What a call answers while the library's thread is held by a disk: the unwinder does not know of the change yet, and the call says so.
 * The sink is enabled late, so that calls wait whichever unwinder the process has. DIR. Needs libgcc's unwinder.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "failing_disk.h"
#include "jitsym_control.h"
#include "testing.h"

enum { ROOM = 64 };

extern const unsigned char *_Unwind_Find_FDE(const void *addr, uintptr_t *bases);

static unsigned char memory[8 * ROOM];
static jitsym *session;

static int is_known(unsigned place) {
  uintptr_t bases[3];
  return _Unwind_Find_FDE(memory + ROOM * place + 1, bases) != NULL;
}

static jitsym_status announce(unsigned place, uint32_t flags, jitsym_id *id) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = 8;
  jitsym_code code = test_code((uintptr_t)memory + ROOM * place, ROOM, "held");
  code.unwind = &unwind;
  code.flags = flags;
  *id = 0;
  return jitsym_register(session, &code, id);
}

/* From here on the thread is in a write. */
static void hold(unsigned place) {
  jitsym_id id;
  disk_is_slow("/jit-");
  CHECK_OK(announce(place, JITSYM_CODE_MORE, &id));
  disk_begins(1);
}

static void let_go(void) {
  __atomic_store_n(&disk.is_slow, 0, __ATOMIC_SEQ_CST);
  CHECK_OK(test_flush(session));
}

static atomic_int stop;

/* Each write takes longer than a waiting call sleeps at a time. */
static void *lets_go_slowly(void *nothing) {
  while (!atomic_load(&stop)) {
    test_sleep_ms(80);
    __atomic_fetch_add(&disk.allowed, 1, __ATOMIC_SEQ_CST);
  }
  return nothing;
}

/* So that there is something to write all the time. */
static void *goes_on(void *nothing) {
  while (!atomic_load(&stop)) {
    jitsym_id id;
    CHECK_OK(announce(7, JITSYM_CODE_MORE, &id));
    test_sleep_ms(1);
  }
  return nothing;
}

static void slowly(void) {
  disk_is_slow("/jit-");
  pthread_t threads[2];
  CHECK(pthread_create(&threads[0], NULL, lets_go_slowly, NULL) == 0);
  CHECK(pthread_create(&threads[1], NULL, goes_on, NULL) == 0);
  for (unsigned i = 0; i < 10; i++) {
    jitsym_id id;
    CHECK_OK(announce(5, 0, &id));
    CHECK(is_known(5));
    CHECK_OK(jitsym_unregister(session, id));
    CHECK(!is_known(5));
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
  let_go();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  session = test_open_flags(JITSYM_SINK_JITDUMP, 0);
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_UNWINDER));
  jitsym_id first, second;
  CHECK_OK(announce(0, 0, &first));
  CHECK(is_known(0));

  /* The unwinder is told before anything is written. */
  jitsym_id third;
  CHECK_OK(test_flush(session));
  disk_is_slow("/jit-");
  CHECK_OK(announce(6, 0, &third));
  CHECK(is_known(6));
  disk_begins(1);
  let_go();
  disk_is_slow("/jit-");
  CHECK_OK(jitsym_unregister(session, third));
  CHECK(!is_known(6));
  let_go();

  hold(1);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, announce(2, 0, &second));
  CHECK(second != 0 && !is_known(2));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_unregister(session, first));
  CHECK(is_known(0));
  let_go();
  CHECK(is_known(2) && !is_known(0));

  hold(3);
  jitsym_move_target target = test_target((uintptr_t)memory + 4 * ROOM);
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_move(session, second, &target));
  CHECK(is_known(2) && !is_known(4));
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_unregister_range(session, (uintptr_t)memory + ROOM, ROOM, 0));
  CHECK(is_known(1));
  let_go();
  CHECK(is_known(4) && !is_known(2) && !is_known(1));
  CHECK_OK(jitsym_unregister(session, second));
  CHECK(!is_known(4));
  slowly();
  CHECK_OK(jitsym_close(session));
  return test_end();
}
