/*
 * Makes every call of the library on a thread, while another one holds the loader's lock and waits for that thread. A plugin's
 * constructor may do that. So nothing here may ask the loader. Takes the path of holder.c's object after the directory.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "../sources/runtime.h"
#include "holder.h"
#include "../regions/region_code.h"

/* Not in the header, and hidden in the static library. */
__attribute__((weak)) unsigned Initialize(void);
__attribute__((weak)) unsigned NotifyEvent(unsigned event, void *data);

#define CALL(call) (held_call = #call, call)
#define OK(call) CHECK_OK(CALL(call))

static void code(jitsym *session, uint64_t addr) {
  jitsym_line line = {0, 7, 1, 0, "/held.toy"};
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  jitsym_code whole = test_code(addr, 64, "whole");
  whole.lines = &line;
  whole.line_count = 1;
  whole.unwind = &unwind;
  jitsym_code plain = test_code(addr + 64, 64, "plain");
  jitsym_id id = 0, other = 0;
  OK(jitsym_register(session, &whole, &id));
  OK(jitsym_register(session, &plain, &other));
  jitsym_move_target target = test_target(addr + 128);
  OK(jitsym_move(session, id, &target));
  OK(jitsym_unregister(session, id));
  OK(jitsym_unregister_range(session, addr, 128, 0));
  OK(jitsym_unregister_range(session, addr, 4096, JITSYM_RANGE_UNMAP));
}

static void regions(jitsym *session) {
  jitsym_region_options options = JITSYM_REGION_OPTIONS(SIZE);
  jitsym_region region = JITSYM_REGION;
  options.max_size = 2 * SIZE;
  OK(jitsym_region_create(session, &options, &region));
  OK(jitsym_region_grow(session, region.exec, 2 * SIZE));
  put_code(region.write, 1);
  announce(session, region.exec, "in a region");
  OK(jitsym_region_discard(session, (unsigned char *)region.exec + SIZE, PAGE));
  OK(jitsym_region_release(session, region.exec));
  unsigned char *memory = memory_of(SIZE, RWX);
  OK(jitsym_region_adopt(session, memory, SIZE));
  OK(jitsym_region_release(session, memory));
  OK(jitsym_alloc(session, 1000, 0, 0, &region));
  OK(jitsym_shrink(session, region.exec, 100));
  OK(jitsym_free(session, region.exec));
  /* As code is registered in it. */
  unsigned char *adopted = memory_of(SIZE, RWX);
  put_code(adopted, 2);
  announce(session, adopted, "adopted");
}

static void events(void) {
  if (Initialize == NULL) {
    return;
  }
  unsigned char *memory = memory_of(PAGE, RWX);
  struct method_load load = {7, "method", memory, 64, 0, NULL, 0, NULL, NULL};
  struct method_inline_load inlined = {8, 7, "inlined", memory + 8, 8, 0, NULL, NULL, NULL};
  struct method_update update = {memory, 64, 0, NULL};
  unsigned number = 7;
  CHECK(CALL(Initialize()) == 1);
  CHECK(CALL(NotifyEvent(LOAD, &load)) == 1);
  CHECK(CALL(NotifyEvent(INLINE_LOAD, &inlined)) == 1);
  CHECK(CALL(NotifyEvent(UPDATE_V2, &update)) == 1);
  CHECK(CALL(NotifyEvent(UNLOAD, &number)) == 1);
  CHECK(CALL(NotifyEvent(SHUTDOWN, NULL)) == 1);
}

static void answers(jitsym *session) {
  char text[TEST_PATH_MAX];
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  OK(jitsym_get_stats(session, &stats));
  OK(jitsym_last_error(session, text, sizeof text));
  OK(jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
  OK(jitsym_path(session, JITSYM_SINK_REGION, text, sizeof text));
}

static void forks(jitsym *session) {
  held_call = "fork";
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    test_inherits_threads = 1;
    jitsym_code of_child = test_code(0x7000000000, 64, "of a child");
    jitsym_status status = jitsym_register(session, &of_child, NULL);
    /* The fork does not wait long for the writer. */
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_FORKED);
    exit(0);
  }
  held_call = "what a child does";
  test_wait_ok(child);
}

static int done;
static pid_t program;

static void *calls(void *unused) {
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION | JITSYM_SINK_GDB | JITSYM_SINK_UNWINDER;
  options.flags = JITSYM_INIT_ADOPT;
  jitsym *session = NULL, *second = NULL;
  OK(jitsym_init(&options, &session));
  OK(jitsym_init(&options, &second));
  code(session, 0x7000000000);
  regions(session);
  events();
  answers(session);
  OK(jitsym_flush(session, UINT32_MAX));
  CHECK(CALL(jitsym_flush_from_signal(UINT32_MAX)) == JITSYM_OK);
  forks(session);
  OK(jitsym_disable(session, 0));
  OK(jitsym_enable(session, 0));
  code(session, 0x7000000000);
  OK(jitsym_close(second));
  OK(jitsym_close(session));
  __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
  return unused;
}

void while_held(void) {
  if (getpid() != program) {
    /* A child that exits. */
    return;
  }
  pthread_t asker = held_begin(), caller;
  done = 0;
  CHECK(pthread_create(&caller, NULL, calls, NULL) == 0);
  held_await(&done);
  CHECK(pthread_join(caller, NULL) == 0);
  held_end(asker);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  test_begin(2, argv);
  setenv("JITSYM_DIR", test_dir, 1);
  program = getpid();
  held_load_and_unload(argv[2]);
  return test_end();
}
