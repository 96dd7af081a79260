/*
 * Code that comes in bursts (JITSYM_CODE_MORE), and calls that wait for all of it. DIR COUNT. Needs libgcc's unwinder.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "known.h"
#include "testing.h"

enum { ROOM = 32, CALLS = 50, OTHERS = 20000 };

extern const unsigned char *_Unwind_Find_FDE(const void *addr, uintptr_t *bases);

static unsigned char *memory, *others;
static jitsym *session;
static atomic_int stop;

static int is_known(const unsigned char *at) {
  uintptr_t bases[3];
  return _Unwind_Find_FDE(at + 1, bases) != NULL;
}

static jitsym_status announce(const unsigned char *at, uint32_t flags, jitsym_id *id) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = 8;
  jitsym_code code = test_code((uintptr_t)at, ROOM, "burst");
  code.unwind = &unwind;
  code.bytes = at;
  code.flags = flags;
  return jitsym_register(session, &code, id);
}

/* New code all the time, as long as there is room. */
static void *only_bursts(void *nothing) {
  for (size_t i = 0; i < OTHERS && !atomic_load(&stop); i++) {
    CHECK_OK(announce(others + ROOM * i, JITSYM_CODE_MORE, NULL));
    if (i % 100 == 0) {
      test_sleep_ms(1);
    }
  }
  return nothing;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  size_t count = argc > 2 ? (size_t)atoi(argv[2]) : 1000;
  memory = calloc(count + CALLS, ROOM);
  others = calloc(OTHERS, ROOM);
  CHECK(memory != NULL && others != NULL);
  session = test_open_flags(JITSYM_SINK_UNWINDER | JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, 0);

  for (size_t i = 0; i + 1 < count; i++) {
    CHECK_OK(announce(memory + ROOM * i, JITSYM_CODE_MORE, NULL));
  }
  CHECK_KNOWN(session, announce(memory + ROOM * (count - 1), 0, NULL));
  for (size_t i = 0; i < count; i++) {
    CHECK(is_known(memory + ROOM * i));
  }

  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, only_bursts, NULL) == 0);
  for (size_t i = 0; i < CALLS; i++) {
    unsigned char *at = memory + ROOM * (count + i);
    jitsym_id id;
    CHECK_KNOWN(session, announce(at, 0, &id));
    CHECK(is_known(at));
    CHECK_KNOWN(session, jitsym_unregister(session, id));
    CHECK(!is_known(at));
  }
  CHECK_KNOWN(session, jitsym_unregister_range(session, (uintptr_t)memory, ROOM * count, 0));
  for (size_t i = 0; i < count; i++) {
    CHECK(!is_known(memory + ROOM * i));
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
