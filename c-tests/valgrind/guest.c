/*
 * Runs known machine code under valgrind. DIR WHAT [NUMBER [NUMBER]]. x86-64.
 *
 * Pieces of the chain call each other, and the innermost one calls a loop: each call of a piece is 7 instructions and what it calls,
 * and each call of the loop is 2 * ROUNDS + 3. Each piece has lines of DIR/chain.toy. Prints what it has run, and "ok".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chain.h"
#include "jitsym_region.h"
#include "testing.h"

enum { LINES = 60, PIECES = 3, ROOM = 64, MEMORY = 16 << 20, PAGE = 4096, ROUNDS = 50 };

static jitsym *session;
static unsigned char *memory;
static char source[600];
static const char *const names[PIECES] = {"jit_outer", "jit_middle", "jit_inner"};
static unsigned more;
static _Thread_local int bytes_are_given, is_stable;
/* What a registration answers. */
static enum jitsym_status expected = JITSYM_OK;

static unsigned char *map(int protection, int flags, int file, size_t size) {
  unsigned char *at = mmap(NULL, size, protection, flags, file, 0);
  CHECK(at != MAP_FAILED);
  return at;
}

static jitsym_id announce_at(const unsigned char *at, size_t size, const char *name, unsigned line, int is_piece) {
  jitsym_unwind_row rows[4];
  jitsym_unwind unwind = chain_unwind(rows);
  if (!is_piece) {
    memset(&unwind, 0, sizeof unwind);
    unwind.struct_size = sizeof unwind;
    unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
    unwind.cfa_offset = 8;
  }
  jitsym_line lines[] = {{0, line, 1, 0, source}, {CHAIN_WHOLE, line + 1, 1, 0, source},
                         {CHAIN_RETURNED, line + 2, 1, 0, source}};
  jitsym_code code = test_code((uintptr_t)at, size, name);
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = is_piece ? 3 : 1;
  code.flags = more | (is_stable ? JITSYM_CODE_STABLE : 0);
  code.bytes = bytes_are_given ? at : NULL;
  jitsym_id id = 0;
  CHECK_STATUS(expected, jitsym_register(session, &code, &id));
  CHECK(expected == JITSYM_OK || id != 0);
  return id;
}

/* mov ecx, ROUNDS; dec ecx; jnz; xor eax, eax; ret */
static size_t emit_loop(unsigned char *at) {
  static const unsigned char loop[] = {0xb9, ROUNDS, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0x31, 0xc0, 0xc3};
  memcpy(at, loop, sizeof loop);
  return sizeof loop;
}

/* mov rcx, rdi; mov rax, [rcx]; ret. valgrind takes an error of the first instruction for one of the call. */
static size_t emit_read(unsigned char *at) {
  static const unsigned char read_it[] = {0x48, 0x89, 0xf9, 0x48, 0x8b, 0x01, 0xc3};
  memcpy(at, read_it, sizeof read_it);
  return sizeof read_it;
}

/* mov eax, value; ret */
static size_t emit_value(unsigned char *at, uint32_t value) {
  at[0] = 0xb8;
  memcpy(at + 1, &value, 4);
  at[5] = 0xc3;
  return 6;
}

/* The pieces, from `at` on, `step` bytes apart; the innermost one calls `last`. */
static void make_chain(unsigned char *at, size_t step, const char *prefix, const void *last) {
  uint64_t next = (uintptr_t)last;
  for (int i = PIECES - 1; i >= 0; i--) {
    char name[100];
    snprintf(name, sizeof name, "%s%s", prefix, names[i]);
    unsigned char *place = at + step * (size_t)i;
    size_t size = chain_emit(place, next);
    announce_at(place, size, name, 10 * (unsigned)(i + 1), 1);
    next = (uintptr_t)place;
  }
}

__attribute__((noinline)) static uint64_t call(const void *at, const void *argument) {
  uint64_t result = ((uint64_t (*)(const void *))(uintptr_t)at)(argument);
  __asm__ volatile("" : "+r"(result));
  return result;
}

static void call_often(const void *at, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    call(at, NULL);
  }
}

static void run_calls(unsigned count) {
  unsigned char *loop = memory + PIECES * ROOM;
  announce_at(loop, emit_loop(loop), "jit_loop", 40, 0);
  make_chain(memory, ROOM, "", loop);
  call_often(memory, count);
}

static uint64_t allocates(void) {
  void *volatile allocated = malloc(1000000);
  free(allocated);
  return 0;
}

/* The chain, whose innermost piece calls a function that allocates memory. */
static void run_allocations(unsigned count) {
  make_chain(memory, ROOM, "", (const void *)(uintptr_t)allocates);
  call_often(memory, count);
}

/* A chain over several pages: each of the pieces lies in two of them. */
static void run_straddling(unsigned count) {
  unsigned char *loop = memory + 4 * PAGE - 4, *first = memory + PAGE - 9;
  announce_at(loop, emit_loop(loop), "jit_loop", 40, 0);
  make_chain(first, PAGE, "", loop);
  call_often(first, count);
}

/* NUMBER loops, packed, so that some lie in two pages; each runs as often as its number says, once more. */
static void run_packed(unsigned count, unsigned burst) {
  enum { STEP = 13 };
  for (unsigned i = 0; i < count; i++) {
    unsigned char *at = memory + (size_t)STEP * i;
    char name[100];
    snprintf(name, sizeof name, "packed_%u", i);
    emit_loop(at);
    more = burst > 1 && (i + 1) % burst != 0 && i + 1 < count ? JITSYM_CODE_MORE : 0;
    announce_at(at, STEP, name, 41, 0);
    for (unsigned done = more ? i + 1 : i - i % burst; done <= i; done++) {
      call_often(memory + (size_t)STEP * done, 1 + done % 3);
    }
  }
}

/* One to a page, or 64. Prints the processor time of each. */
static void run_many(unsigned count, unsigned burst, size_t step) {
  struct timespec begin, end;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  for (unsigned i = 0; i < count; i++) {
    unsigned char *at = memory + step * i;
    char name[100];
    snprintf(name, sizeof name, "many_%u", i);
    size_t size = emit_loop(at);
    more = burst > 1 && (i + 1) % burst != 0 && i + 1 < count ? JITSYM_CODE_MORE : 0;
    announce_at(at, size, name, 41, 0);
    for (unsigned done = more ? i + 1 : i - i % burst; done <= i; done++) {
      call(memory + step * done, NULL);
    }
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  printf("%.1f us\n", ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / 1e3 / count);
}

/* Code moves, and other code takes its place; that ends, and more code comes. */
static void run_moves(void) {
  unsigned char *here = memory, *there = memory + 8 * PAGE + 100;
  size_t size = emit_loop(here);
  jitsym_id id = announce_at(here, size, "jit_moving", 40, 0);
  call_often(here, 100);
  memcpy(there, here, size);
  jitsym_move_target target;
  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  target.addr = (uintptr_t)there;
  CHECK_OK(jitsym_move(session, id, &target));
  call_often(there, 200);
  jitsym_id second = announce_at(here, emit_loop(here), "jit_second", 40, 0);
  call_often(here, 30);
  CHECK_OK(jitsym_unregister(session, second));
  announce_at(here, emit_loop(here), "jit_third", 40, 0);
  call_often(here, 7);
  /* Nobody says of this one that it ends. */
  announce_at(here, emit_loop(here), "jit_fourth", 40, 0);
  call_often(here, 5);
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, PAGE, 0));
}

static void run_invalid(void) {
  unsigned char *reader = memory + PIECES * ROOM;
  announce_at(reader, emit_read(reader), "jit_reader", 50, 0);
  make_chain(memory, ROOM, "", reader);
  uint64_t *block = malloc(sizeof *block);
  CHECK(block != NULL);
  call(memory, block + 1);
  free(block);
}

/* Memory of the allocator, of which only the code is written. It is registered with the padding after it. */
static void run_padding(void) {
  unsigned char *at = aligned_alloc(PAGE, 4 * PAGE);
  CHECK(at != NULL);
  CHECK(mprotect(at, 4 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
  emit_loop(at + 100);
  bytes_are_given = 1;
  jitsym_id id = announce_at(at + 100, 2 * PAGE, "jit_padded", 40, 0);
  call_often(at + 100, 10);
  unsigned char *there = at + 2 * PAGE + 500;
  memcpy(there, at + 100, 1000);
  jitsym_move_target target;
  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  target.addr = (uintptr_t)at;
  CHECK_OK(jitsym_move(session, id, &target));
}

/* Memory as it was: its protection, its contents, its sharing. Code that changes itself, and code that is written elsewhere. */
static void run_memory(void) {
  int file = memfd_create("guest", 0);
  CHECK(file >= 0 && ftruncate(file, 4 * PAGE) == 0);
  unsigned char *writable = map(PROT_READ | PROT_WRITE, MAP_SHARED, file, 4 * PAGE);
  unsigned char *executable = map(PROT_READ | PROT_EXEC, MAP_SHARED, file, 4 * PAGE);
  for (uint32_t i = 0; i < 20; i++) {
    jitsym_id id = announce_at(executable + 40, emit_value(writable + 40, i), "jit_dual", 40, 0);
    CHECK(call(executable + 40, NULL) == i);
    memset(writable + PAGE, (int)i, PAGE);
    CHECK(executable[PAGE + 5] == i && executable[PAGE - 1] == 0);
    CHECK_OK(jitsym_unregister(session, id));
  }
  /* Read and execute, read and write, one beside the other. */
  unsigned char *mixed = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 4 * PAGE);
  size_t size = emit_value(mixed + PAGE - 3, 77);
  mixed[3 * PAGE] = 9;
  CHECK(mprotect(mixed, 2 * PAGE, PROT_READ | PROT_EXEC) == 0);
  announce_at(mixed + PAGE - 3, 2 * PAGE + 5, "jit_mixed", 40, 0);
  CHECK(call(mixed + PAGE - 3, NULL) == 77 && size == 6);
  mixed[3 * PAGE] += 1;
  CHECK(mixed[3 * PAGE] == 10);
  /* Code that is changed where it is, and nobody says so. */
  announce_at(memory, emit_value(memory, 0), "jit_patched", 40, 0);
  for (uint32_t i = 0; i < 20; i++) {
    memcpy(memory + 1, &i, 4);
    CHECK(call(memory, NULL) == i);
  }
  /* Not written yet when it is registered, and not executable. */
  unsigned char *later = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, PAGE);
  announce_at(later, 6, "jit_later", 40, 0);
  emit_value(later, 5);
  CHECK(mprotect(later, PAGE, PROT_READ | PROT_EXEC) == 0);
  CHECK(call(later, NULL) == 5);
  /* No memory, memory of the program, of its heap and its stack, and memory that goes while it is registered. */
  static unsigned char in_program[8 * PAGE];
  unsigned char on_stack[100];
  unsigned char *in_heap = malloc(100);
  unsigned char *gone = map(PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, PAGE);
  const unsigned char *others[] = {(const unsigned char *)0x10000, in_program + 5000, (unsigned char *)(uintptr_t)run_memory,
                                   in_heap, on_stack, gone};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char bytes[50] = {0};
    jitsym_code code = test_code((uintptr_t)others[i], 50, "jit_elsewhere");
    code.bytes = bytes;
    CHECK_OK(jitsym_register(session, &code, NULL));
  }
  CHECK(munmap(gone, PAGE) == 0);
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)gone, PAGE, 0));
  free(in_heap);
}

/* Memory is unmapped whose code has ended, or was not unregistered at all. Code beside it stays known. */
static void run_unmapped(void) {
  const size_t sizes[] = {PAGE, 16 * PAGE, 256 * PAGE};
  const char *const ways[] = {"unregistered", "mapping", "silent"};
  for (size_t i = 0; i < 9; i++) {
    size_t size = sizes[i / 3], way = i % 3;
    unsigned char *at = map(PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, size + PAGE), *kept = at + size;
    jitsym_id id = announce_at(at, emit_loop(at), "jit_freed", 40, 0);
    char name[100];
    snprintf(name, sizeof name, "kept_%zu_%s", size / PAGE, ways[way]);
    announce_at(kept, emit_loop(kept), name, 41, 0);
    call_often(at, 2);
    if (way == 0) {
      CHECK_OK(jitsym_unregister(session, id));
    } else if (way == 1) {
      CHECK_OK(jitsym_unregister_range(session, (uintptr_t)at, size, JITSYM_RANGE_UNMAP));
    }
    CHECK(munmap(at, size) == 0);
    usleep(100000);
    if (way == 2) {
      announce_at(kept + 100, emit_loop(kept + 100), "jit_later", 42, 0);
    }
    call_often(kept, 3);
  }
}

static atomic_int stop;

static void *runs_on(void *at) {
  while (!stop) {
    CHECK(call(at, NULL) == 0);
  }
  return NULL;
}

/* Threads run code of the pages of which valgrind is told. */
static void run_threads(unsigned count) {
  pthread_t threads[4];
  unsigned char *loop = memory + 100;
  announce_at(loop, emit_loop(loop), "jit_loop", 40, 0);
  make_chain(memory + 200, ROOM, "", loop);
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_create(&threads[i], NULL, runs_on, i % 2 ? loop : memory + 200) == 0);
  }
  for (unsigned i = 0; i < count; i++) {
    unsigned char *at = memory + 500 + (size_t)100 * i;
    char name[100];
    snprintf(name, sizeof name, "among_%u", i);
    announce_at(at, emit_loop(at), name, 41, 0);
    call_often(at, 3);
  }
  stop = 1;
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

static atomic_int delay;

/* The library's, which is this slow where threads of a busy machine run one at a time. */
void *mremap(void *from, size_t old_size, size_t new_size, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  void *to = flags & MREMAP_FIXED ? va_arg(arguments, void *) : NULL;
  va_end(arguments);
  unsigned seconds = (unsigned)atomic_exchange(&delay, 0);
  if (seconds != 0) {
    /* Any wait, be it for no time, is a turn for other threads. */
    sleep(seconds);
  }
  return (void *)syscall(SYS_mremap, from, old_size, new_size, flags, to);
}

/* The library's thread needs seconds for a function. */
static void run_late(void) {
  delay = 3;
  announce_at(memory, emit_loop(memory), "jit_late", 40, 0);
  CHECK(delay == 0);
  call_often(memory, 3);
}

/* Directories stand where the file of the code is to be made. The call says so, and valgrind knows the code when they are gone: after a
 * while, or after a flush. */
static void run_failing(const char *dir) {
  enum { PLANTED = 100 };
  for (unsigned i = 0; i < 2; i++) {
    unsigned char *at = memory + 64 * PAGE * i;
    char name[100], file[700];
    for (unsigned number = 1; number <= PLANTED; number++) {
      snprintf(file, sizeof file, "%s/jit-%d-v%u.so", dir, (int)getpid(), number);
      CHECK(mkdir(file, 0700) == 0 || errno == EEXIST);
    }
    snprintf(name, sizeof name, "failing_%u", i);
    expected = JITSYM_ERR_SINK_FAILED;
    announce_at(at, emit_loop(at), name, 40, 0);
    jitsym_stats stats = test_stats_now(session);
    CHECK(stats.sinks_failed == JITSYM_SINK_VALGRIND && stats.write_errors > 0);
    for (unsigned number = 1; number <= PLANTED; number++) {
      snprintf(file, sizeof file, "%s/jit-%d-v%u.so", dir, (int)getpid(), number);
      CHECK(rmdir(file) == 0 || errno == ENOTDIR || errno == ENOENT);
    }
    expected = JITSYM_OK;
    if (i == 0) {
      while (test_stats_now(session).sinks_failed != 0) {
        usleep(1000);
      }
    } else {
      CHECK_OK(test_flush(session));
    }
    call_often(at, 5);
  }
}

static int unlocked, is_planted;
static pthread_mutex_t planting = PTHREAD_MUTEX_INITIALIZER;

/* One of several threads that register, move, end and write over code, in pages that they share. It keeps no order with the others. */
static void *registers_on(void *argument) {
  unsigned char *own = memory + 300 * (size_t)(uintptr_t)argument;
  for (unsigned i = 0; i < 12; i++) {
    unsigned char *at = own + 100 * (i % 2), *there = own + 16 * PAGE;
    bytes_are_given = i % 4 < 2;
    is_stable = i % 5 == 1;
    char name[100];
    snprintf(name, sizeof name, "own_%u", i);
    jitsym_id id = announce_at(at, emit_loop(at), name, 41, 0);
    call_often(at, 3);
    if (i % 3 == 0) {
      memcpy(there, at, 100);
      jitsym_move_target target;
      memset(&target, 0, sizeof target);
      target.struct_size = sizeof target;
      target.addr = (uintptr_t)there;
      CHECK_OK(jitsym_move(session, id, &target));
      call_often(there, 3);
    }
    if (i % 2) {
      CHECK_OK(jitsym_unregister(session, id));
      memset(at, 0xcc, 100);
    }
    CHECK(jitsym_wanted(session) != 0);
    jitsym_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(jitsym_get_stats(session, &stats));
  }
  CHECK_OK(test_flush(session));
  return NULL;
}

/* The same, and then an access without the lock that others have, if that is wanted. */
static void *plants(void *argument) {
  registers_on(argument);
  if (is_planted) {
    unlocked++;
    return NULL;
  }
  CHECK(pthread_mutex_lock(&planting) == 0);
  unlocked++;
  CHECK(pthread_mutex_unlock(&planting) == 0);
  return NULL;
}

/* Threads that keep no order, except that a variable has a lock; with a number other than 0 not even that one. */
static void run_races(unsigned number) {
  pthread_t threads[4];
  is_planted = number != 0;
  for (uintptr_t i = 0; i < 4; i++) {
    CHECK(pthread_create(&threads[i], NULL, plants, (void *)i) == 0);
  }
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK(unlocked <= 4);
}

/* Memory that the library gives, and memory that becomes a region. */
static void run_regions(void) {
  jitsym_region region = test_region(session, 4 * PAGE, 0);
  unsigned char *at = (unsigned char *)region.exec + PAGE - 5, *write_at = (unsigned char *)region.write + PAGE - 5;
  announce_at(at, emit_loop(write_at), "jit_in_region", 40, 0);
  call_often(at, 11);
  memset(&region, 0, sizeof region);
  region.struct_size = sizeof region;
  CHECK_OK(jitsym_alloc(session, 1000, 0, 0, &region));
  announce_at(region.exec, emit_loop(region.write), "jit_allocated", 40, 0);
  call_often(region.exec, 13);
  CHECK(jitsym_region_adopt(session, memory, MEMORY) == JITSYM_ERR_NOT_RUNNING);
  announce_at(memory, emit_loop(memory), "jit_not_adopted", 40, 0);
  call_often(memory, 17);
}

__attribute__((noinline)) static void reached(void) {
  __asm__ volatile("");
}

static void run_debugger(void) {
  make_chain(memory, ROOM, "", (const void *)(uintptr_t)reached);
  call(memory, NULL);
}

static void run_child(void) {
  run_calls(10);
  /* A fork waits a while for the background thread, and not for ever. */
  CHECK_OK(test_flush(session));
  pid_t child = fork();
  CHECK(child >= 0);
  unsigned char *at = memory + 1000;
  const char *name = child == 0 ? "jit_of_child" : "jit_of_parent";
  announce_at(at, emit_loop(at), name, 40, 0);
  call_often(at, 20);
  call_often(memory, 10);
  if (child != 0) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
}

int main(int argc, char **argv) {
  CHECK(argc >= 3);
  const char *what = argv[2];
  unsigned number = argc > 3 ? (unsigned)atoi(argv[3]) : 0, burst = argc > 4 ? (unsigned)atoi(argv[4]) : 1;
  snprintf(source, sizeof source, "%s/chain.toy", argv[1]);
  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.map_dir = options.jitdump_dir = argv[1];
  options.sinks = strcmp(what, "debugger") == 0 ? JITSYM_SINK_GDB | JITSYM_SINK_MAP : 0;
  FILE *file = fopen(source, "w");
  CHECK(file != NULL);
  for (int i = 1; i <= LINES; i++) {
    fprintf(file, "toy line %d\n", i);
  }
  fclose(file);
  session = test_init(&options);
  memory = map(PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, MEMORY);
  if (strcmp(what, "calls") == 0) {
    run_calls(number);
  } else if (strcmp(what, "allocations") == 0) {
    run_allocations(number);
  } else if (strcmp(what, "straddling") == 0) {
    run_straddling(number);
  } else if (strcmp(what, "packed") == 0) {
    run_packed(number, burst);
  } else if (strcmp(what, "pages") == 0) {
    run_many(number, burst, PAGE);
  } else if (strcmp(what, "many") == 0) {
    run_many(number, burst, PAGE / 64);
  } else if (strcmp(what, "moves") == 0) {
    run_moves();
  } else if (strcmp(what, "invalid") == 0) {
    run_invalid();
  } else if (strcmp(what, "padding") == 0) {
    run_padding();
  } else if (strcmp(what, "memory") == 0) {
    run_memory();
  } else if (strcmp(what, "unmapped") == 0) {
    run_unmapped();
  } else if (strcmp(what, "threads") == 0) {
    run_threads(number);
  } else if (strcmp(what, "late") == 0) {
    run_late();
  } else if (strcmp(what, "failing") == 0) {
    run_failing(argv[1]);
  } else if (strcmp(what, "races") == 0) {
    run_races(number);
  } else if (strcmp(what, "regions") == 0) {
    run_regions();
  } else if (strcmp(what, "debugger") == 0) {
    run_debugger();
  } else if (strcmp(what, "child") == 0) {
    run_child();
  } else {
    CHECK(!"WHAT is known");
  }
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_OK(jitsym_get_stats(session, &stats));
  printf("sinks %u failed %u\n", stats.sinks_running, stats.sinks_failed);
  char error[500] = "";
  jitsym_last_error(session, error, sizeof error);
  /* That of a start that has taken long, and was finished by the next call. */
  int is_of_start = strcmp(error, jitsym_status_text(JITSYM_ERR_TIMEOUT)) == 0;
  printf("error %s\n", is_of_start ? "" : error);
  enum jitsym_status closed = jitsym_close(session);
  CHECK(closed == (stats.sinks_failed != 0 ? JITSYM_ERR_SINK_FAILED : JITSYM_OK));
  puts("ok");
  return 0;
}
