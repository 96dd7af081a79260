/*
 * A panic inside the library, on the caller's thread and on its own: C sees a status, nothing is printed, and the process goes
 * on. Rust's standard library panics when the clock cannot be read, which never happens on Linux: so this program has a clock
 * of its own that can fail.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>

#include "testing.h"

enum fails { FAILS_NOT, FAILS_HERE, FAILS_ELSEWHERE };

static _Atomic int clock_fails;
static _Thread_local int is_here;

#if defined(__i386__) || defined(__arm__)
/* What Rust's library calls where `time_t` has 32 bits. The time begins with 64 bits for the seconds. */
int __clock_gettime64(clockid_t clock, void *time);
#define clock_gettime __clock_gettime64
#define TIME void
#define NUMBER SYS_clock_gettime64
#else
#define TIME struct timespec
#define NUMBER SYS_clock_gettime
#endif

/* In place of the C library's. On other threads it fails now and then: the library itself can do without it. */
int clock_gettime(clockid_t clock, TIME *time) {
  static _Atomic unsigned state = 1;
  int fails = atomic_load(&clock_fails);
  if (fails == FAILS_ELSEWHERE && (atomic_fetch_add(&state, 1) * 2654435769u) >> 31 != 0) {
    fails = FAILS_NOT;
  }
  if (fails == FAILS_NOT || (fails == FAILS_HERE) != is_here) {
    return (int)syscall(NUMBER, clock, time);
  }
  errno = EINVAL;
  return -1;
}

static void check_broken(jitsym *session) {
  /* Nothing is known of what the library was doing: it stays out of the way, and says so. */
  jitsym_code code = test_code(0x2000, 16, "late");
  jitsym_id id = 77;
  CHECK_STATUS(JITSYM_ERR_INTERNAL, jitsym_register(session, &code, &id));
  CHECK_STATUS(JITSYM_ERR_INTERNAL, jitsym_flush(session, 0));
  CHECK_STATUS(JITSYM_ERR_INTERNAL, jitsym_close(session));
  jitsym_options options = test_options();
  CHECK_STATUS(JITSYM_ERR_INTERNAL, jitsym_init(&options, &session));
}

static jitsym *open_with_code(void) {
  is_here = 1;
  /* The times in a jitdump would be those of a clock that fails. */
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  test_register(session, 0x1000, 16, "early");
  CHECK_OK(test_flush(session));
  return session;
}

static void caller(void) {
  jitsym *session = open_with_code();
  atomic_store(&clock_fails, FAILS_HERE);
  jitsym_status status = jitsym_flush(session, 100);
  atomic_store(&clock_fails, FAILS_NOT);
  CHECK_STATUS(JITSYM_ERR_INTERNAL, status);
  check_broken(session);
}

static void writer(void) {
  jitsym *session = open_with_code();
  jitsym_status status = JITSYM_OK;
  for (int i = 0; i < 10000 && status == JITSYM_OK; i++) {
    char name[32];
    snprintf(name, sizeof name, "name %d", i);
    /* A line of the map has to change, and the time of that is taken. */
    test_register(session, 0x1000, 16, name);
    atomic_store(&clock_fails, FAILS_ELSEWHERE);
    status = jitsym_flush(session, 60000);
    atomic_store(&clock_fails, FAILS_NOT);
  }
  CHECK_STATUS(JITSYM_ERR_INTERNAL, status);
  check_broken(session);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  /* What the library has when it stops is not given back: nobody knows in what state it is. */
  test_inherits_threads = 1;
  test_child(caller);
  test_child(writer);
  return test_end();
}
