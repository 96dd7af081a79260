/*
 * Allocations and mappings that fail, one by one: the first, the second, and so on, alone or with all that follow, while a session is
 * opened, used and closed. Each call answers with a status, and afterwards, when there is memory again, all works. Code memory that
 * is adopted lies in a process that has thousands of mappings.
 *
 * Counted and refused by standing in for the C library's allocator and its mmap, from which the library has its memory.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "jitsym_region.h"
#include "testing.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

/* Allocations since the start of what is tested; from which on they fail, and how many. Those of all threads. */
static unsigned long counted, fail_from, fail_count;
static int armed;

static int fails(void) {
  if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST)) {
    return 0;
  }
  unsigned long number = __atomic_fetch_add(&counted, 1, __ATOMIC_SEQ_CST);
  int failed = number >= fail_from && number - fail_from < fail_count;
  if (failed) {
    errno = ENOMEM;
  }
  return failed;
}

void *malloc(size_t size) {
  return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  return fails() ? NULL : __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size) {
  return fails() ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out == NULL ? ENOMEM : 0;
}

void *mmap(void *addr, size_t size, int protection, int flags, int fd, off_t offset) {
  int failed = flags & MAP_ANONYMOUS && fails();
  return failed ? MAP_FAILED : (void *)syscall(SYS_mmap, addr, size, protection, flags, fd, offset);
}

void *mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset) {
  return mmap(addr, size, protection, flags, fd, offset);
}

void *mremap(void *old, size_t old_size, size_t size, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
  va_end(rest);
  return fails() ? MAP_FAILED : (void *)syscall(SYS_mremap, old, old_size, size, flags, to);
}

static void arm(int on) {
  __atomic_store_n(&armed, on, __ATOMIC_SEQ_CST);
}

static const uint64_t ADDR = 0x7000000000;
enum { LIVE = 100 };
static jitsym *session;
static jitsym_id ids[LIVE];

/* What a call may answer while there is no memory. */
static int is_expected(jitsym_status status) {
  return status == JITSYM_OK || status == JITSYM_ERR_NO_MEMORY || status == JITSYM_ERR_DROPPED ||
         status == JITSYM_ERR_THREAD || status == JITSYM_ERR_NO_SINK || status == JITSYM_ERR_SINK_FAILED ||
         status == JITSYM_ERR_UNKNOWN_ID || status == JITSYM_ERR_SESSION || status == JITSYM_ERR_REGION;
}

#define TRY(call)                                                                         \
  do {                                                                                    \
    jitsym_status status_ = call;                                                         \
    if (!is_expected(status_)) {                                                          \
      arm(0);                                                                             \
      fprintf(stderr, "%lu, %lu: %s is %s\n", fail_from, fail_count, #call, jitsym_status_name((int)status_)); \
      _exit(1);                                                                           \
    }                                                                                     \
  } while (0)

static void open_session(void) {
  jitsym_options options = test_options();
  session = NULL;
  TRY(jitsym_init(&options, &session));
}

static void use(void) {
  static const jitsym_line lines[] = {{0, 10, 3, 0, "/src/first.js"}, {0x20, 11, 0, 0, "/src/second.js"}};
  static unsigned char large[400000];
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  for (unsigned i = 0; i < LIVE; i++) {
    jitsym_code code = test_code(ADDR + 0x1000 * (i % 200), 0x800, i % 3 ? "plain" : "odd\tname \xff");
    unwind.kind = i % 4;
    unwind.cfa_offset = (int32_t)(16 + 8 * (i % 20));
    code.unwind = i % 4 == 3 ? NULL : &unwind;
    code.lines = lines;
    code.line_count = i % 3;
    if (i % 50 == 49) {
      code.bytes = large;
      code.size = sizeof large;
    }
    ids[i] = 0;
    TRY(jitsym_register(session, &code, &ids[i]));
    if (i % 10 == 9) {
      jitsym_move_target target = test_target(ADDR + 0x10000000 + 0x1000 * i);
      target.bytes = large;
      TRY(jitsym_move(session, ids[i], &target));
      TRY(jitsym_unregister(session, ids[i - 1]));
    }
    if (i % 50 == 49) {
      TRY(jitsym_flush(session, 0));
    }
  }
  TRY(jitsym_unregister_range(session, ADDR, 0x1000 * 100, 0));
}

static void *use_on_thread(void *unused) {
  use();
  return unused;
}

static void whole_life(void) {
  open_session();
  use();
  TRY(jitsym_flush(session, 0));
  TRY(jitsym_close(session));
  open_session();
  TRY(jitsym_close(session));
}

/* With memory again everything works. */
static void check_works(void) {
  session = test_open();
  test_register(session, ADDR - 0x1000, 0x80, "after all");
  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(dump_load(&dump, "after all", 0) != NULL && strcmp(map_name(&map, ADDR - 0x1000), "after all") == 0);
  map_free(&map);
  dump_free(&dump);
  CHECK_OK(jitsym_close(session));
}

static void fails_in_life(void) {
  arm(1);
  whole_life();
  arm(0);
  check_works();
}

/* A session that has been at work, and then there is no more; for a thread of old, and for one that begins. */
static void fails_at_work(void) {
  session = test_open();
  pthread_t thread;
  CHECK_OK(test_flush(session));
  arm(1);
  use();
  arm(0);
  CHECK(pthread_create(&thread, NULL, use_on_thread, NULL) == 0);
  arm(1);
  pthread_join(thread, NULL);
  TRY(jitsym_flush(session, 0));
  arm(0);
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
  check_works();
}

enum { OTHERS = 600, PIECES = 4 };
static size_t page;

static unsigned char *code_memory(size_t size) {
  unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  memset(memory, 0xc3, size);
  CHECK(mprotect(memory, size, PROT_READ | PROT_EXEC) == 0);
  return memory;
}

static void register_in(unsigned char *memory) {
  jitsym_code code = test_code((uintptr_t)memory, 16, "in a region");
  TRY(jitsym_register(session, &code, &ids[0]));
}

/* Memory that becomes a region by a call and by itself, of which a part is unmapped, and that is given back. */
static void fails_with_regions(void) {
  unsigned char *adopted = code_memory(PIECES * page), *by_itself = code_memory(4 * page);
  for (size_t i = 0; i < PIECES; i += 2) {
    CHECK(mprotect(adopted + i * page, page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
  }
  session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, JITSYM_INIT_ADOPT);
  arm(1);
  register_in(by_itself);
  TRY(jitsym_region_adopt(session, adopted, PIECES * page));
  register_in(adopted);
  CHECK(munmap(adopted + PIECES * page / 2, page) == 0);
  TRY(jitsym_unregister_range(session, (uintptr_t)adopted, PIECES * page, 0));
  register_in(adopted);
  TRY(jitsym_region_release(session, adopted));
  TRY(jitsym_region_release(session, by_itself));
  TRY(jitsym_flush(session, 0));
  arm(0);
  for (size_t i = 0; i < PIECES * page; i++) {
    CHECK(i / page == PIECES / 2 || adopted[i] == 0xc3);
  }
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
  CHECK(munmap(adopted, PIECES * page) == 0);
  check_works();
}

/* How many allocations a scenario makes if none fails. */
static unsigned long *total;

static void count(void (*scenario)(void)) {
  fail_from = (unsigned long)-1;
  scenario();
  *total = counted;
}

static void count_life(void) {
  count(fails_in_life);
}

static void count_work(void) {
  count(fails_at_work);
}

static void count_regions(void) {
  count(fails_with_regions);
}

static int is_light;

static void sweep(void (*counting)(void), void (*scenario)(void), const char *name, unsigned long first) {
  test_child(counting);
  unsigned long most = *total, tried = 0;
  CHECK(most > 50);
  if (getenv("OUT_OF_MEMORY_REPORT") != NULL) {
    fprintf(stderr, "%s: %lu allocations\n", name, most);
  }
  static const unsigned long counts[] = {1, (unsigned long)-1};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    /* All of the first ones, where the least is ready; then some. A small workload has every second one in each of the two ways. */
    unsigned long step = is_light ? 2 : 1;
    for (fail_from = is_light ? i : 0; fail_from < most; fail_from += step * (fail_from < first ? 1 : 1 + most / 40)) {
      fail_count = counts[i];
      uint64_t begin = test_now();
      test_child(scenario);
      if (getenv("OUT_OF_MEMORY_REPORT") != NULL && test_now() - begin > 100000000) {
        fprintf(stderr, "%lu, %lu: %u ms\n", fail_from, fail_count, (unsigned)((test_now() - begin) / 1000000));
      }
      tried++;
    }
  }
  if (getenv("OUT_OF_MEMORY_REPORT") != NULL) {
    fprintf(stderr, "%s: %lu allocations, %lu runs\n", name, most, tried);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  is_light = argc > 2 && strcmp(argv[2], "light") == 0;
  total = mmap(NULL, sizeof *total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(total != MAP_FAILED);
  sweep(count_life, fails_in_life, "the life of a session", 120);
  sweep(count_work, fails_at_work, "a session at work", 120);
  page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned char *others = code_memory(2 * OTHERS * page);
  for (size_t i = 0; i < OTHERS; i++) {
    CHECK(mprotect(others + 2 * i * page, page, PROT_READ) == 0);
  }
  sweep(count_regions, fails_with_regions, "regions", 40);
  return test_end();
}
