/*
 * What the writer costs: some system calls while it is busy, none while there is nothing to do. The stretches that a
 * tracer is to look at lie between calls of getppid; one that getsid ends does not count. DIR MODE.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>

#include "testing.h"

enum { RATE_PER_MS = 100, SIZE = 512, COUNT = 10000, CACHE = 2000, FOLLOWING = 100, IDLE_PERIODS = 2 };
static const uint64_t MS = 1000000, SOON = 500000000;

/* Fills a code cache over and over again; one that never gets full; moves what is in it; and has no bytes to copy from. */
enum mode { CYCLE, GROW, MOVE, BY_ADDRESS };

static jitsym *session;
static unsigned entered;
static jitsym_id ids[CACHE];

static void enter(enum mode mode) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  uint64_t addr = 0x7000000000 + SIZE * (uint64_t)(mode == CYCLE ? entered % CACHE : entered);
  jitsym_id *id = &ids[entered % CACHE];
  if (mode == MOVE && entered >= CACHE) {
    entered++;
    jitsym_move_target target = test_target(addr);
    CHECK_OK(jitsym_move(session, *id, &target));
    return;
  }
  jitsym_code code = test_code(addr, SIZE, "a function with a name of about fifty bytes(int, int)");
  entered++;
  code.unwind = &unwind;
  if (mode == BY_ADDRESS) {
    code.addr = (uint64_t)(uintptr_t)test_bytes;
    code.bytes = NULL;
  }
  CHECK_OK(jitsym_register(session, &code, mode == MOVE ? id : NULL));
}

/*
 * 100 registrations a millisecond. Those that are overdue are made up for, so that the rate is right on average also
 * where the pauses are longer than asked for, as under a tracer or on a busy machine.
 */
static void busy(enum mode mode) {
  for (unsigned i = 0; i < CACHE; i++) {
    enter(mode);
  }
  CHECK_OK(test_flush(session));
  getppid();
  uint64_t begin = test_now();
  for (unsigned done = 0; done < COUNT;) {
    uint64_t due = RATE_PER_MS + (test_now() - begin) * RATE_PER_MS / MS;
    for (; done < due && done < COUNT; done++) {
      enter(mode);
    }
    /* Not nanosleep, so that the tracer can tell this pause from one of the library's. */
    poll(NULL, 0, 1);
  }
  CHECK_OK(test_flush(session));
  getppid();
}

/* A small file below /proc. Returns 0 if it is not there. */
static int read_small(const char *path, char *text, size_t size) {
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return 0;
  }
  text[fread(text, 1, size - 1, file)] = 0;
  fclose(file);
  return 1;
}

/* How many times the writer has gone off a processor: each wake-up is followed by one. */
static unsigned long long switches(void) {
  DIR *tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  unsigned found = 0;
  unsigned long long sum = 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
    char path[300], text[8192];
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    if (!read_small(path, text, sizeof text) || strcmp(text, "jitsym-writer\n") != 0) {
      continue;
    }
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    CHECK(read_small(path, text, sizeof text));
    const char *fields[] = {"\nvoluntary_ctxt_switches:", "\nnonvoluntary_ctxt_switches:"};
    for (int i = 0; i < 2; i++) {
      const char *field = strstr(text, fields[i]);
      CHECK(field != NULL);
      sum += strtoull(field + strlen(fields[i]), NULL, 10);
    }
    found++;
  }
  closedir(tasks);
  CHECK(found == 1);
  return sum;
}

/*
 * Waits for three seconds in which the writer was not woken once, and gives it a minute for it. Looked at often: where
 * nothing runs for a while, this does not either.
 */
static void wait_for_silence(void) {
  uint64_t begin = test_now();
  unsigned long long before = switches();
  for (int silent = 0; silent < 30; silent++) {
    test_sleep_ms(100);
    unsigned long long now = switches();
    if (now != before) {
      silent = 0;
      before = now;
    }
    if (test_now() - begin > 60000 * MS) {
      fprintf(stderr, "the writer goes on waking up with nothing to do: %llu times so far\n", now);
      _exit(1);
    }
  }
}

/* Whoever registers first wakes the writer; those that follow do not. */
static void idle(void) {
  /* As many as make the memory for records grow to its usual size, some of which stays. */
  for (int i = 0; i < 10 * FOLLOWING; i++) {
    enter(CYCLE);
  }
  /* An answer from the writer: so its thread has got as far as to have its name. */
  CHECK_OK(test_flush(session));
  for (int period = 0; period < IDLE_PERIODS;) {
    wait_for_silence();
    unsigned long long before = switches();
    uint64_t begin = test_now();
    getppid();
    for (int i = 0; i <= FOLLOWING; i++) {
      enter(CYCLE);
    }
    /* Where that took so long that the writer can have gone to sleep again, it does not count. */
    if (test_now() - begin < SOON) {
      getppid();
      period++;
    } else {
      getsid(0);
    }
    /* The control: a writer that is woken is seen to be. */
    CHECK_OK(test_flush(session));
    CHECK(switches() > before);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 3);
  /* Memory for all records: none is dropped, however slow the disk is. */
  jitsym_options options = test_options();
  options.max_memory = 1 << 30;
  session = test_init(&options);
  const char *modes[] = {"cycle", "grow", "move", "by-address"};
  int mode = 0;
  while (mode <= BY_ADDRESS && strcmp(argv[2], modes[mode]) != 0) {
    mode++;
  }
  if (mode <= BY_ADDRESS) {
    busy((enum mode)mode);
  } else {
    CHECK(strcmp(argv[2], "idle") == 0);
    idle();
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
