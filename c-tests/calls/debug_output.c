/*
 * A program that makes mistakes, for what the library says of them: DIR [NAME=VALUE]... Some mistakes twice, because the first one is
 * said. It sets these variables.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "testing.h"

static char said[512];

/* What the library says of the last call that it has refused on this thread. */
static const char *why(jitsym *session) {
  CHECK_OK(jitsym_last_error(session, said, sizeof said));
  return said;
}

static void expect_why(jitsym *session, const char *expected) {
  if (strcmp(why(session), expected) != 0) {
    printf("expected: %s\nfound:    %s\n", expected, said);
  }
  CHECK(strcmp(said, expected) == 0);
}

static uint64_t refused(jitsym *session) {
  return test_stats(session).calls_refused;
}

static void *other_thread(void *session) {
  jitsym_code code = test_code(0x7000000000, 12, "other");
  code.size = 0;
  CHECK_STATUS(jitsym_register(session, &code, NULL), JITSYM_ERR_SIZE_ZERO);
  expect_why(session, "JITSYM_ERR_SIZE_ZERO: code.size is 0 (code `other`)");
  return NULL;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  for (int i = 2; i < argc; i++) {
    CHECK(putenv(argv[i]) == 0);
  }
  /* Before there is any session. */
  CHECK_STATUS(jitsym_flush((jitsym *)(uintptr_t)0x123456, 0), JITSYM_ERR_SESSION);
  expect_why(NULL, "JITSYM_ERR_SESSION: the session was never opened (jitsym_init opens one)");

  /* Those of the environment, if it asks for these. */
  jitsym *session = test_open_flags(getenv("SINKS") != NULL ? 0 : JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, 0);
  uint64_t before = refused(session);
  for (int i = 0; i < 2; i++) {
    jitsym_code code = test_code(0x7000000000, 12, "mistakes");
    jitsym_line lines[4] = {{0, 1, 0, 0, "a"}, {1, 2, 0, 0, "a"}, {2, 3, 0, 0, "a"}, {50, 4, 0, 0, "a"}};
    code.lines = lines;
    code.line_count = 4;
    CHECK_STATUS(jitsym_register(session, &code, NULL), JITSYM_ERR_LINE_OFFSET);
    expect_why(session, "JITSYM_ERR_LINE_OFFSET: lines[3].offset is 50, the code has 12 bytes (code `mistakes`)");
    code.struct_size = 0;
    CHECK_STATUS(jitsym_register(session, &code, NULL), JITSYM_ERR_STRUCT_SIZE);
    expect_why(session, "JITSYM_ERR_STRUCT_SIZE: jitsym_code.struct_size is 0: set it to sizeof(jitsym_code), or use JITSYM_CODE()");
  }
  CHECK_STATUS(jitsym_unregister(session, 77), JITSYM_ERR_UNKNOWN_ID);
  expect_why(session, "JITSYM_ERR_UNKNOWN_ID: the id 0x4d was never given, or its code has been unregistered or replaced");
  /* Each thread hears of its own calls. */
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, other_thread, session) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(strstr(why(session), "JITSYM_ERR_UNKNOWN_ID") == said);
  CHECK(refused(session) == before + 6);
  /* What succeeds is no refusal. */
  test_register(session, 0x7000000000, 12, "right");
  CHECK(refused(session) == before + 6);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
