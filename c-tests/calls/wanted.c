/* Whether anything is wanted: in each state of a session, and without consequences. */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "testing.h"

enum { CODE = JITSYM_WANT_CODE, TABLES = JITSYM_WANT_LINES | JITSYM_WANT_UNWIND };
enum { ADOPT = JITSYM_WANT_ADOPT, REGION = JITSYM_WANT_REGION };
enum { MAP = JITSYM_SINK_MAP, DUMP = JITSYM_SINK_JITDUMP, OFF = JITSYM_INIT_OFF_BY_DEFAULT };

/* A session that nobody has, whatever its handle looks like. */
static jitsym *invented(uint64_t handle) {
  return (jitsym *)(uintptr_t)handle;
}

static void check_no_session(void) {
  CHECK(jitsym_wanted(NULL) == 0 && jitsym_wanted(invented(0x6a)) == 0 && jitsym_wanted(invented(UINT64_MAX)) == 0);
  CHECK(jitsym_wanted(invented(0x1016a)) == 0);
}

/* What a session with these options wants; and it does not want anything when it is closed. */
static void check_options(uint32_t sinks, uint32_t flags, uint32_t wants) {
  jitsym *session = test_open_flags(sinks, flags);
  CHECK(jitsym_wanted(session) == wants);
  check_no_session();
  CHECK_OK(jitsym_close(session));
  CHECK(jitsym_wanted(session) == 0);
}

static void check_all_options(void) {
  check_options(0, OFF, 0);
  check_options(MAP, 0, CODE);
  check_options(DUMP, 0, CODE | TABLES);
  check_options(MAP | DUMP, JITSYM_INIT_NO_UNWIND, CODE | JITSYM_WANT_LINES);
  check_options(0, OFF | JITSYM_INIT_REMEMBER, CODE | TABLES);
  check_options(JITSYM_SINK_REGION, 0, CODE | TABLES | REGION);
  check_options(MAP | JITSYM_SINK_REGION, JITSYM_INIT_ADOPT, CODE | TABLES | ADOPT | REGION);
  /* No file, no region. */
  check_options(MAP, JITSYM_INIT_ADOPT, CODE);
  setenv("JITSYM_ADOPT", "1", 1);
  check_options(0, OFF, CODE | TABLES | ADOPT | REGION);
  setenv("JITSYM_ADOPT", "0", 1);
  check_options(MAP | JITSYM_SINK_REGION, JITSYM_INIT_ADOPT, CODE | TABLES | REGION);
  unsetenv("JITSYM_ADOPT");
}

/* Sinks come and go: for all sessions. */
static void check_late(void) {
  jitsym *session = test_open_flags(0, OFF), *other = test_open_flags(0, OFF);
  CHECK(jitsym_wanted(session) == 0 && jitsym_wanted(other) == 0);
  CHECK_OK(jitsym_enable(other, MAP));
  CHECK(jitsym_wanted(session) == CODE && jitsym_wanted(other) == CODE);
  CHECK_OK(jitsym_enable(session, DUMP));
  CHECK(jitsym_wanted(session) == (CODE | TABLES));
  CHECK_OK(jitsym_disable(session, DUMP));
  CHECK(jitsym_wanted(session) == CODE);
  CHECK_OK(jitsym_disable(session, 0));
  CHECK(jitsym_wanted(session) == 0 && jitsym_wanted(other) == 0);
  CHECK_OK(jitsym_close(session));
  CHECK_OK(jitsym_enable(other, MAP));
  CHECK(jitsym_wanted(session) == 0 && jitsym_wanted(other) == CODE);
  CHECK_OK(jitsym_close(other));
}

/* The answer of a child, which it gives without a system call: with one, the kernel would kill it. */
static void check_child(jitsym *session, uint32_t wants, int uses) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    test_inherits_threads = 1;
    if (uses) CHECK_OK(test_flush(session));
    errno = 77;
    if (!test_slow) CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    int right = jitsym_wanted(session) == wants && jitsym_wanted(NULL) == 0 && errno == 77;
    syscall(SYS_exit, right ? 0 : 9);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK((access(test_path_of(child, DUMP).text, F_OK) == 0) == (uses && (wants & JITSYM_WANT_UNWIND) != 0));
}

static void check_children(void) {
  jitsym *session = test_open();
  check_child(session, CODE | TABLES, 0);
  check_child(session, CODE | TABLES, 1);
  CHECK_OK(jitsym_close(session));
  /* It is closed in the child too. */
  check_child(session, 0, 0);
  session = test_open_flags(0, OFF);
  check_child(session, 0, 0);
  CHECK_OK(jitsym_close(session));
  /* One that gets nothing of its parent's. */
  session = test_open_flags(MAP | DUMP, JITSYM_INIT_FORK_ALONE);
  CHECK(jitsym_wanted(session) == (CODE | TABLES));
  check_child(session, 0, 0);
  CHECK_OK(jitsym_close(session));
}

static uint32_t answers[2];
static jitsym *asked;

static void ask(int signal) {
  (void)signal;
  answers[0] = jitsym_wanted(asked);
  answers[1] = jitsym_wanted(NULL) + 1;
}

static void check_signal(void) {
  asked = test_open();
  CHECK(signal(SIGUSR1, ask) != SIG_ERR && raise(SIGUSR1) == 0);
  CHECK(answers[0] == (CODE | TABLES) && answers[1] == 1);
  CHECK_OK(jitsym_close(asked));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  check_no_session();
  check_all_options();
  check_late();
  check_children();
  check_signal();
  return test_end();
}
