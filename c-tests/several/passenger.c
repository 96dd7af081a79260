/*
 * A runtime of its own inside of another one's process: loaded, it starts a thread that compiles, announces and runs code.
 *
 * PASSENGER in the environment: milliseconds until it begins, and a file. To that it writes the lives of its code, as `several.c`
 * prints them, and at last the status of the library. x86-64 only.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "jitsym_control.h"
#include "pace.h"
#include "testing.h"

enum { PLACE = 512, SIZE = 18, CODES = 8, LAP_NS = 60000000 };

static unsigned delay_ms;
static char out_path[1024];

static uint64_t time_spent(void) {
  struct timespec time;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void *ride(void *nothing) {
  /* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; nop; pop rbp; ret */
  static const unsigned char bytes[SIZE] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,    0,
                                            0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3, 0xcc, 0xcc};
  (void)nothing;
  test_sleep_ms(delay_ms);
  unsigned char *memory = mmap(NULL, PLACE * CODES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  jitsym *session;
  CHECK_OK(jitsym_init(NULL, &session));
  FILE *out = fopen(out_path, "w");
  CHECK(out != NULL);
  for (int i = 0; i < CODES; i++) {
    unsigned char *at = memory + PLACE * i;
    char name[64];
    memcpy(at, bytes, SIZE);
    snprintf(name, sizeof name, "passenger_code_%d", i);
    jitsym_code code = test_code((uint64_t)(uintptr_t)at, SIZE, name);
    code.bytes = at;
    jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FRAME_POINTER);
    unwind.epilogue_begin = 15;
    unwind.epilogue_end = 16;
    code.unwind = &unwind;
    code.flags = JITSYM_CODE_GAP;
    CHECK_OK(jitsym_register(session, &code, NULL));
    uint64_t from = test_now();
    for (uint64_t end = time_spent() + (uint64_t)(LAP_NS * test_pace()); time_spent() < end;) {
      ((void (*)(void))(uintptr_t)at)();
    }
    fprintf(out, "life %d %llx %d %llu %llu %s\n", (int)getpid(), (unsigned long long)(uintptr_t)at, SIZE,
            (unsigned long long)from, (unsigned long long)test_now(), name);
    test_sleep_ms(20);
  }
  (void)jitsym_flush(session, 60000);
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  char map[1100] = "-", dump[1100] = "-", error[2048] = "";
  (void)jitsym_path(session, JITSYM_SINK_MAP, map, sizeof map);
  (void)jitsym_path(session, JITSYM_SINK_JITDUMP, dump, sizeof dump);
  CHECK_OK(jitsym_last_error(session, error, sizeof error));
  fprintf(out, "copy\tpassenger\t%u\t%u\t%s\t%s\t%s\nend\n", stats.sinks_running, stats.sinks_failed, map, dump, error);
  CHECK(fclose(out) == 0);
  return NULL;
}

__attribute__((constructor)) static void board(void) {
  const char *text = getenv("PASSENGER");
  if (text == NULL) {
    return;
  }
  CHECK(sscanf(text, "%u %1023[^\n]", &delay_ms, out_path) == 2);
  unsetenv("PASSENGER");
  unsetenv("LD_PRELOAD");
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, ride, NULL) == 0);
  pthread_detach(thread);
}
