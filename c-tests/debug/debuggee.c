/*
 * Calls C code through three pieces of code without frame pointers, for a debugger to look at. DIR WHAT [NUMBER [SINKS]]. x86-64.
 *
 * The stack is known: main, call_through, jit_outer, jit_middle (and in it the inlined function inlined_step), jit_inner,
 * reached. Each piece has lines of DIR/chain.toy.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "chain.h"
#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

enum { LINES = 60, PIECES = 3, PIECE_ROOM = 64, MEMORY = 1 << 24, CALLS = 10, SINK_GDB = JITSYM_SINK_GDB };

static jitsym *session;
static unsigned char *memory;
/* From there to where it can be written to. */
static ptrdiff_t to_write;
static char source[600];
static const char *what;
static const char *const names[PIECES] = {"jit_outer", "jit_middle", "jit_inner"};

/* Where a debugger has a breakpoint. */
__attribute__((noinline)) int reached(int value) {
  if (strcmp(what, "crash") == 0 || strcmp(what, "crash-at-once") == 0) {
    raise(SIGSEGV);
  } else if (strcmp(what, "wait") == 0 || strcmp(what, "beside") == 0) {
    printf("waiting\n");
    fflush(stdout);
    pause();
  }
  __asm__ volatile("" : "+r"(value));
  return value + 1;
}

static jitsym_id announce(const unsigned char *at, size_t size, const char *name, unsigned line_number, int has_inlined) {
  jitsym_unwind_row rows[4];
  jitsym_unwind unwind = chain_unwind(rows);
  jitsym_line lines[] = {{0, line_number, 1, 0, source}, {CHAIN_WHOLE, line_number + 1, 1, 0, source},
                         {CHAIN_RETURNED, line_number + 2, 1, 0, source}};
  jitsym_inline inlined = {CHAIN_WHOLE, CHAIN_RETURNED, "inlined_step", 0, source, line_number + 5, 1, UINT32_MAX, 0};
  jitsym_code code = test_code((uintptr_t)at, size, name);
  code.bytes = at;
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = 3;
  code.inlines = &inlined;
  code.inline_count = has_inlined ? 1 : 0;
  if (strcmp(what, "tiers") == 0) {
    /* Names have a tier, a file and a line. One piece has no other lines. */
    code.file = source;
    code.line = line_number + 1;
    code.line_count = line_number == 30 ? 0 : 3;
  }
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

/* Puts the pieces there and names them, each with a prefix. */
static void make_chain(unsigned char *at, const char *prefix, jitsym_id *ids) {
  uint64_t next = (uintptr_t)reached;
  for (int i = PIECES - 1; i >= 0; i--) {
    char name[100];
    snprintf(name, sizeof name, "%s%s%s", prefix, names[i], strcmp(what, "tiers") == 0 ? " [opt]" : "");
    unsigned char *place = at + PIECE_ROOM * i;
    size_t size = chain_emit(place + to_write, next);
    ids[i] = announce(place, size, name, 10 * (unsigned)(i + 1), i == 1);
    next = (uintptr_t)place;
  }
}

__attribute__((noinline)) int call_through(const void *at) {
  int result = ((int (*)(int))(uintptr_t)at)(41);
  __asm__ volatile("" : "+r"(result));
  return result;
}

static void register_some(unsigned from, unsigned to) {
  for (unsigned i = from; i < to; i++) {
    unsigned char *at = memory + 4096 + (size_t)PIECE_ROOM * i;
    char name[100];
    snprintf(name, sizeof name, "many_%u", i);
    jitsym_unwind unwind;
    memset(&unwind, 0, sizeof unwind);
    unwind.struct_size = sizeof unwind;
    unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
    unwind.cfa_offset = 8;
    jitsym_code code = test_code((uintptr_t)at, strcmp(what, "gaps") == 0 ? PIECE_ROOM - 16 : PIECE_ROOM, name);
    code.unwind = &unwind;
    CHECK_OK(jitsym_register(session, &code, NULL));
  }
}

static void register_many(unsigned count) {
  register_some(0, count);
}

static void start_sink(void) {
  /* On a busy machine a debugger may take longer than that waits. */
  jitsym_status status = jitsym_enable(session, SINK_GDB);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_TIMEOUT);
  CHECK_OK(test_flush(session));
  CHECK(test_stats_now(session).sinks_running & SINK_GDB);
}

/* Until the process is ended. */
static void *registers_on(void *nothing) {
  for (unsigned i = 0;; i = (i + 1) % 1000) {
    register_some(i, i + 1);
    test_sleep_ms(1);
  }
  return nothing;
}

/* The crash handler of a host. The default action of the signal comes after it. */
static void crashed(int number) {
  (void)jitsym_flush_from_signal(10000);
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc >= 3);
  what = argv[2];
  /* Any debugger of this user may come. */
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  snprintf(source, sizeof source, "%s/chain.toy", argv[1]);
  FILE *file = fopen(source, "w");
  CHECK(file != NULL);
  for (int i = 1; i <= LINES; i++) {
    fprintf(file, "toy line %d\n", i);
  }
  CHECK(fclose(file) == 0);
  memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  uint32_t flags = strcmp(what, "adopted") == 0 ? JITSYM_INIT_ADOPT : 0;
  session = test_open_flags(argc > 4 ? (uint32_t)atoi(argv[4]) : 0, flags);
  int has_two_views = strncmp(what, "two-views", strlen("two-views")) == 0;
  if (has_two_views) {
    jitsym_region_options options = JITSYM_REGION_OPTIONS(MEMORY);
    jitsym_region region = JITSYM_REGION;
    CHECK_OK(jitsym_region_create(session, &options, &region));
    memory = region.exec;
    to_write = (unsigned char *)region.write - memory;
  }
  jitsym_id ids[PIECES];
  unsigned number = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
  if (strcmp(what, "reuse") == 0) {
    make_chain(memory, "old_", ids);
    CHECK(call_through(memory) == 42);
    for (int i = 0; i < PIECES; i++) {
      CHECK_OK(jitsym_unregister(session, ids[i]));
    }
  } else if (strcmp(what, "one-by-one") == 0) {
    /* What is ended one by one was in large objects. */
    CHECK_OK(jitsym_disable(session, SINK_GDB));
    register_many(number);
    start_sink();
    for (unsigned i = 0; i < number; i += 2) {
      CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory + 4096 + (uint64_t)PIECE_ROOM * i, PIECE_ROOM, 0));
    }
  } else if (strcmp(what, "on-and-off") == 0) {
    for (unsigned i = 0; i < number && i < 20; i++) {
      register_many(number);
      CHECK_OK(jitsym_disable(session, SINK_GDB));
      CHECK(!(test_stats_now(session).sinks_running & SINK_GDB));
      start_sink();
    }
    if (argc > 4) {
      /* Without a jitdump, which would have its bytes. No object can describe it, and it takes no name from others. */
      jitsym_code large = test_code(0x7000000000, 0x7fff0000, "large");
      CHECK_OK(jitsym_register(session, &large, NULL));
    }
  } else if (number > 0) {
    uint64_t begin = test_now();
    register_many(number);
    printf("registered=%u ns\n", (unsigned)((test_now() - begin) / number));
  }
  make_chain(memory, "", ids);
  if (strcmp(what, "crash-at-once") == 0) {
    CHECK(signal(SIGSEGV, crashed) != SIG_ERR);
  } else {
    CHECK_OK(test_flush(session));
  }
  if (strcmp(what, "fork") == 0 || strcmp(what, "two-views-fork") == 0) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) {
      int status;
      CHECK(waitpid(child, &status, 0) == child && status == 0);
      CHECK_OK(jitsym_close(session));
      return test_end();
    }
    jitsym_id more[PIECES];
    make_chain(memory + 2048, "child_", more);
    CHECK(call_through(memory + 2048) == 42);
  }
  if (strcmp(what, "two-views-calls") == 0) {
    /* Between the calls, code comes and goes in the same page, also without a word to the library. */
    for (int i = 0; i < CALLS; i++) {
      CHECK(call_through(memory) == 42);
      jitsym_id more[PIECES];
      make_chain(memory + 2048, "more_", more);
      CHECK(call_through(memory + 2048) == 42);
      for (int piece = 0; piece < PIECES; piece++) {
        CHECK_OK(jitsym_unregister(session, more[piece]));
      }
      unsigned char *silent = memory + 3072;
      size_t size = chain_emit(silent + to_write, (uintptr_t)memory);
      CHECK(size < 512 && call_through(silent) == 42);
      (void)chain_emit(silent + to_write, (uintptr_t)reached);
      CHECK(call_through(silent) == 42);
    }
  }
  if (strcmp(what, "later") == 0 || strcmp(what, "two-views-later") == 0) {
    /* Until a debugger comes, and ends it; or its parent has ended. */
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0);
    printf("waiting\n");
    fflush(stdout);
    for (;;) {
      test_sleep_ms(10);
      register_many(1);
      CHECK(call_through(memory) == 42);
    }
  }
  if (strcmp(what, "beside") == 0) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, registers_on, NULL) == 0);
  }
  CHECK(call_through(memory) == 42);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
