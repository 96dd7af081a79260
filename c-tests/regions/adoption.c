/*
 * Automatic adoption: which memory becomes a region, when, and what is said of the rest. x86-64 only.
 *
 * Usage: adoption DIR
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "maps.h"
#include "region_code.h"

static int is_in_file(const void *at) {
  return is_of_file(at, "/jit-");
}

static jitsym *open_adopting(void) {
  return test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, JITSYM_INIT_ADOPT);
}

static int file_has(jitsym *session, const char *text) {
  struct test_path path;
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path.text, sizeof path.text));
  size_t size;
  unsigned char *bytes = file_read(path.text, &size);
  int found = memmem(bytes, size, text, strlen(text)) != NULL;
  free(bytes);
  return found;
}

static int last_error_has(jitsym *session, const char *text) {
  char error[1024];
  CHECK_OK(jitsym_last_error(session, error, sizeof error));
  return strstr(error, text) != NULL;
}

static unsigned char *apart_from_neighbours(size_t size, int protection) {
  unsigned char *memory = memory_of(size + 2 * PAGE, PROT_NONE) + PAGE;
  CHECK(mprotect(memory, size, protection) == 0);
  return memory;
}

/* Code that is registered while its page is only writable: the page is a region from the next call on, with the name. */
static void adopted_when_executable(void) {
  jitsym *session = open_adopting();
  enum { PAGES = 3 };
  unsigned char *memory[PAGES];
  jitsym_id ids[PAGES];
  for (uint32_t i = 0; i < PAGES; i++) {
    memory[i] = apart_from_neighbours(PAGE, PROT_READ | PROT_WRITE);
    put_code(memory[i], i);
    ids[i] = announce(session, memory[i], "written_first");
    CHECK(!is_in_file(memory[i]));
    CHECK(mprotect(memory[i], PAGE, PROT_READ | PROT_EXEC) == 0);
    CHECK(i == 0 || is_in_file(memory[i - 1]));
    CHECK(run_code(memory[i]) == i);
  }
  /* The end of code is a call, too, and its file names it. */
  CHECK_OK(jitsym_unregister(session, ids[PAGES - 1]));
  CHECK(is_in_file(memory[PAGES - 1]) && run_code(memory[PAGES - 1]) == PAGES - 1);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == PAGES && stats.region_code == PAGES && stats.region_refused == 0);
  CHECK(file_has(session, "written_first"));
  CHECK_OK(jitsym_close(session));
}

/* A code cache that is writable as a whole whenever code is registered, and executable in between. */
static void adopted_at_the_end_of_code(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(SIZE, PROT_READ | PROT_WRITE);
  jitsym_id first = 0;
  for (uint32_t i = 0; i < 16; i++) {
    CHECK(mprotect(memory, SIZE, PROT_READ | PROT_WRITE) == 0);
    put_code(memory + 64 * i, i);
    jitsym_id id = announce(session, memory + 64 * i, "in_a_cache");
    first = i == 0 ? id : first;
    CHECK(mprotect(memory, SIZE, PROT_READ | PROT_EXEC) == 0);
    CHECK(run_code(memory + 64 * i) == i);
  }
  /* Looks become rare. */
  usleep(50000);
  CHECK_OK(jitsym_unregister(session, first));
  CHECK(is_in_file(memory) && run_code(memory + 64) == 1);
  CHECK(test_stats(session).region_code == 16);
  CHECK_OK(jitsym_close(session));
}

/* Memory that never becomes executable is counted once, with the reason. */
static void never_executable(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(SIZE, PROT_READ | PROT_WRITE);
  for (uint32_t i = 0; i < 10; i++) {
    announce(session, memory + 64 * i, "never_executable");
  }
  CHECK(test_stats(session).region_refused == 0);
  usleep(1200000);
  for (int i = 0; i < 3; i++) {
    CHECK(test_stats(session).region_refused == 1 && last_error_has(session, "not executable"));
    announce(session, memory + 64 * 10, "never_executable");
  }
  /* It goes on waiting. */
  CHECK(mprotect(memory, SIZE, PROT_READ | PROT_EXEC) == 0);
  usleep(1100000);
  announce(session, memory + 64 * 11, "never_executable");
  CHECK(is_in_file(memory) && test_stats(session).region_refused == 1);
  CHECK_OK(jitsym_close(session));
}

/* Code that a thread registers on its own stack. */
static void *register_on_stack(void *argument) {
  volatile unsigned char here[64] __attribute__((aligned(64)));
  unsigned char *code = (unsigned char *)(uintptr_t)here;
  put_code(code, 77);
  for (int i = 0; i < 100; i++) {
    announce(argument, code, "on_the_stack");
    CHECK(run_code(code) == 77 && !is_in_file(code));
  }
  return NULL;
}

static void stacks_stay(void) {
  jitsym *session = open_adopting();
  unsigned char *stack = memory_of(1 << 20, RWX);
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, 1 << 20) == 0);
  CHECK(pthread_create(&thread, &attributes, register_on_stack, session) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(test_stats(session).regions == 0 && test_stats(session).region_refused == 1);
  CHECK_OK(jitsym_close(session));
}

/* Stacks of other threads may lie anywhere in writable memory once a thread's stack is executable by itself. */
static void stacks_of_others_stay(void) {
  unsigned char *here = (unsigned char *)((uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)(PAGE - 1));
  CHECK(mprotect(here, PAGE, RWX) == 0);
  jitsym *session = open_adopting();
  unsigned char *both = apart_from_neighbours(SIZE, RWX), *one = apart_from_neighbours(SIZE, PROT_READ | PROT_EXEC);
  announce(session, both, "may_be_a_stack");
  announce(session, one, "no_stack");
  CHECK(!is_in_file(both) && is_in_file(one));
  CHECK(test_stats(session).region_refused == 1 && last_error_has(session, "stacks"));
  CHECK_OK(jitsym_region_adopt(session, both, SIZE));
  CHECK(is_in_file(both));
  CHECK_OK(jitsym_close(session));
}

/* The user asks for regions of a host that is off until then. */
static void adoption_means_on(void) {
  setenv("JITSYM_ADOPT", "1", 1);
  jitsym_options options = test_options();
  options.flags = JITSYM_INIT_OFF_BY_DEFAULT;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  unsigned char *memory = apart_from_neighbours(SIZE, RWX);
  announce(session, memory, "by_the_user");
  CHECK(is_in_file(memory) && test_stats(session).regions == 1);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(adopted_when_executable);
  test_child(adopted_at_the_end_of_code);
  test_child(never_executable);
  test_child(stacks_stay);
  test_child(stacks_of_others_stay);
  test_child(adoption_means_on);
  return test_end();
}
