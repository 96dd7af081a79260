/*
 * Adoption: which memory becomes a region by itself, when, and what is said of the rest; and that it stays the memory that it was.
 * x86-64 only.
 *
 * Usage: adoption DIR
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

static int is_in_file(const void *at) {
  return is_of_file(at, "/jit-");
}

static jitsym *open_adopting(void) {
  return test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, JITSYM_INIT_ADOPT);
}

static int is_text_in(const char *path, const char *text) {
  size_t size;
  unsigned char *bytes = file_read(path, &size);
  int found = memmem(bytes, size, text, strlen(text)) != NULL;
  free(bytes);
  return found;
}

static int file_has(jitsym *session, const char *text) {
  struct test_path path;
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path.text, sizeof path.text));
  return is_text_in(path.text, text);
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

/* Code that is registered while its page is only writable: the page is in a region from the next call on, with the name. Pages that
 * have been mapped for one function each share a region. */
static void adopted_when_executable(void) {
  jitsym *session = open_adopting();
  enum { PAGES = 20, BELOW = 8 << 20, ABOVE = 512 << 20 };
  unsigned char *memory[PAGES];
  jitsym_id ids[PAGES];
  /* Free address space below is for a header page, and above for tables. */
  unsigned char *space = memory_of((size_t)BELOW + 3 * PAGES * PAGE + ABOVE, PROT_NONE), *start = space + BELOW;
  CHECK(munmap(space, BELOW) == 0 && munmap(start + 3 * PAGES * PAGE, ABOVE) == 0);
  for (uint32_t i = 0; i < PAGES; i++) {
    memory[i] = start + (3 * i + 1) * PAGE;
    CHECK(mprotect(memory[i], PAGE, PROT_READ | PROT_WRITE) == 0);
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
  CHECK(stats.regions == 1 && stats.region_code == PAGES && stats.region_refused == 0);
  CHECK(stats.region_put_off == PAGES && stats.region_limit == 0);
  CHECK(file_has(session, "written_first"));
  CHECK_OK(jitsym_close(session));
}

/* What was said of code before its memory could be adopted comes to the file as well, also long after. */
static void adopted_with_all_that_is_known(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, JITSYM_INIT_ADOPT);
  unsigned char *memory = apart_from_neighbours(PAGE, PROT_READ | PROT_WRITE);
  put_code(memory + 64, 1);
  announce_whole(session, memory + 64, memory + 64, "known_before");
  CHECK_OK(test_flush(session));
  CHECK(mprotect(memory, PAGE, PROT_READ | PROT_EXEC) == 0);
  unsigned char *other = apart_from_neighbours(PAGE, PROT_READ | PROT_WRITE);
  put_code(other, 2);
  announce(session, other, "of_a_later_call");
  CHECK(is_in_file(memory));
  CHECK_OK(test_flush(session));
  CHECK(file_has(session, "known_before") && file_has(session, "/left.toy") && file_has(session, "inlined"));
  CHECK(file_has(session, ".eh_frame_hdr"));
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
  /* Looks become rare: one a second. */
  usleep(1100000);
  CHECK_OK(jitsym_unregister(session, first));
  CHECK(is_in_file(memory) && run_code(memory + 64) == 1);
  CHECK(test_stats(session).region_code == 16);
  CHECK_OK(jitsym_close(session));
}

/* A page of an arena: code, and a byte at one end of the page. */
static void fill_page(unsigned char *page, size_t number) {
  put_code(page + 1024, (uint32_t)number);
  page[number % 2 == 0 ? 0 : PAGE - 1] = 1;
}

/* In a large arena only what somebody has touched is read. Each page keeps its bytes, wherever it lies, and in a forked child, too. The
 * other pages are zero. */
static void arena_with_few_pages(void) {
  enum { PAGES = 64 << 8 };
  static const size_t touched[] = {0, 1, 30, 31, 32, 33, 63, 64, 500, 511, 512, 1000, 8191, 8192, 12345, PAGES - 33, PAGES - 1};
  enum { TOUCHED = sizeof touched / sizeof *touched };
  unsigned char *memory = apart_from_neighbours(PAGES * PAGE, RWX), expected[PAGE];
  for (size_t i = 0; i < TOUCHED; i++) {
    fill_page(memory + touched[i] * PAGE, touched[i]);
  }
  /* A page that was only read, and a page that was given up. */
  CHECK(memory[600 * PAGE] == 0);
  memory[700 * PAGE] = 1;
  CHECK(madvise(memory + 700 * PAGE, PAGE, MADV_DONTNEED) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  jitsym *session = open_adopting();
  announce(session, memory + 1024, "in_an_arena");
  CHECK(is_in_file(memory) && is_in_file(memory + (PAGES - 1) * PAGE));
  for (size_t page = 0, next = 0; page < PAGES; page++) {
    memset(expected, 0, PAGE);
    if (next < TOUCHED && page == touched[next]) {
      fill_page(expected, page);
      CHECK(run_code(memory + page * PAGE + 1024) == page);
      next++;
    }
    CHECK(memcmp(memory + page * PAGE, expected, PAGE) == 0);
  }
  CHECK_OK(jitsym_close(session));
  if (child == 0) {
    _exit(0);
  }
  test_wait_ok(child);
}

/* An epoch has begun, but perf cannot learn where its tables are: that is counted. */
static void tables_not_mapped(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(SIZE, RWX);
  struct rlimit before, none = {0, 0};
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  none.rlim_max = before.rlim_max;
  for (uint32_t i = 0; i < 3; i++) {
    CHECK(test_stats(session).region_late == 0);
    put_code(memory, i);
    CHECK(i < 2 || setrlimit(RLIMIT_AS, &none) == 0);
    jitsym_id id = announce(session, memory, "replaced");
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK_OK(jitsym_unregister(session, id));
  }
  jitsym_stats stats = test_stats(session);
  CHECK(is_in_file(memory) && stats.region_generations == 2 && stats.region_late == 1);
  CHECK_OK(jitsym_close(session));
}

/* Memory that never becomes executable is counted once, with the reason. */
static void never_executable(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(SIZE, PROT_READ | PROT_WRITE);
  uint64_t begin = test_now();
  for (uint32_t i = 0; i < 10; i++) {
    announce(session, memory + 64 * i, "never_executable");
  }
  CHECK(test_stats(session).region_refused == 0 || test_now() - begin > 1000000000);
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

static uint64_t address(const void *at) {
  return (uint64_t)(uintptr_t)at;
}

static unsigned char *map_there(unsigned char *at, size_t size, int sharing) {
  unsigned char *memory = mmap(at, size, RWX, sharing | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(memory == at);
  return memory;
}

/* Unmaps memory. The library's own memory cannot take its place before `map_there`. */
static void unmap_there(unsigned char *at, size_t size) {
  CHECK(mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

/* A region of which the program says that it unmaps it next ends at once; and what it maps there is another one. */
static void unmapped_next(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(SIZE, RWX);
  struct test_path first;
  put_code(memory, 1);
  announce(session, memory, "first_there");
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, first.text, sizeof first.text));
  /* The control: as long as nothing is said of its memory, the region stays. */
  CHECK_OK(jitsym_unregister_range(session, address(memory), SIZE, 0));
  CHECK_OK(test_flush(session));
  CHECK(test_stats(session).regions == 1 && test_stats(session).live == 0);
  announce(session, memory, "first_there");
  /* A part of it goes. Less than a page stays. */
  CHECK_OK(jitsym_unregister_range(session, address(memory) + SIZE / 2, SIZE / 2, JITSYM_RANGE_UNMAP));
  unmap_there(memory + SIZE / 2, SIZE / 2);
  CHECK_OK(jitsym_unregister_range(session, address(memory) + 64, PAGE, JITSYM_RANGE_UNMAP));
  CHECK_OK(test_flush(session));
  CHECK(test_stats(session).regions == 1 && test_stats(session).live == 1 && run_code(memory) == 1);
  CHECK_OK(jitsym_unregister_range(session, address(memory), SIZE / 2, JITSYM_RANGE_UNMAP));
  CHECK_OK(test_flush(session));
  CHECK(test_stats(session).regions == 0 && test_stats(session).live == 0);
  unmap_there(memory, SIZE / 2);
  size_t size;
  unsigned char *bytes = file_read(first.text, &size);
  CHECK(memmem(bytes, size, "first_there", 11) != NULL);
  free(bytes);
  for (uint32_t i = 0; i < 20; i++) {
    map_there(memory, SIZE, MAP_PRIVATE);
    put_code(memory + PAGE, i);
    announce(session, memory + PAGE, "second_there");
    CHECK(is_in_file(memory) && run_code(memory + PAGE) == i);
    CHECK_OK(test_flush(session));
    CHECK(file_has(session, "second_there") && test_stats(session).regions == 1);
    CHECK_OK(jitsym_unregister_range(session, address(memory), SIZE, JITSYM_RANGE_UNMAP));
    unmap_there(memory, SIZE);
  }
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 0 && stats.live == 0 && stats.region_code == 22 && stats.region_refused == 0);
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_unregister_range(session, address(memory), 0, JITSYM_RANGE_UNMAP));
  CHECK_STATUS(JITSYM_ERR_ADDRESS_RANGE, jitsym_unregister_range(session, UINT64_MAX, 2, JITSYM_RANGE_UNMAP));
  CHECK_OK(jitsym_close(session));
}

/* What was found out of memory is not held against the memory that comes there. */
static void other_memory_there(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(SIZE, RWX);
  for (int told = 0; told < 2; told++) {
    map_there(memory, SIZE, MAP_SHARED);
    announce(session, memory, "shared");
    CHECK(!is_in_file(memory));
    if (told) {
      CHECK_OK(jitsym_unregister_range(session, address(memory), SIZE, JITSYM_RANGE_UNMAP));
    }
    unmap_there(memory, SIZE);
    map_there(memory, SIZE, MAP_PRIVATE);
    uint64_t begin = test_now();
    announce(session, memory, "private");
    /* The control: nobody looks again for some seconds. */
    CHECK(told ? is_in_file(memory) : !is_in_file(memory) || test_now() - begin > 1000000000);
  }
  /* Nor does memory wait that is gone. */
  unsigned char *waiting = apart_from_neighbours(SIZE, PROT_READ | PROT_WRITE);
  announce(session, waiting, "never_executable");
  CHECK(test_stats(session).region_put_off > 0);
  CHECK_OK(jitsym_unregister_range(session, address(waiting), SIZE, JITSYM_RANGE_UNMAP));
  CHECK(munmap(waiting, SIZE) == 0);
  usleep(1200000);
  CHECK(test_stats(session).region_refused == 0);
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
  /* The kernel calls one mapping `[stack]`, somewhere from this frame up. */
  for (int pages = 0; pages < 64 && mprotect(here, PAGE, RWX) == 0; pages++) {
    here += PAGE;
  }
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

/* Executable memory right below makes the header page lie over the first page of the code. */
static unsigned char *with_code_below(void) {
  unsigned char *memory = apart_from_neighbours(SIZE + PAGE, RWX);
  CHECK(mprotect(memory, PAGE, PROT_READ | PROT_EXEC) == 0);
  return memory + PAGE;
}

static int is_zero(const unsigned char *at, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (at[i] != 0) {
      return 0;
    }
  }
  return 1;
}

/* A page of which only code was registered, since nobody in this process has written to it. */
static int has_breakpoints(const unsigned char *page) {
  static const unsigned char breakpoints[CODE_SIZE] = {0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc};
  return memcmp(page, breakpoints, CODE_SIZE) == 0 && is_zero(page + CODE_SIZE, PAGE - CODE_SIZE);
}

/* Memory that has room on either side, where its tables lie. */
static unsigned char *in_open_space(size_t size, size_t number) {
  void *wish = (void *)(uintptr_t)((UINT64_C(1) << 44) + (number << 32));
  unsigned char *memory = mmap(wish, size, RWX, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

/* Memory that was zero at a fork stays so in the child, but for breakpoints where the parent registers code. The child's code stays
   what it was. */
static void no_foreign_bytes(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, SIZE, JITSYM_REGION_ONE_VIEW);
  enum { ALL = 3 };
  unsigned char *all[ALL] = {in_open_space(SIZE, 0), with_code_below(), region.write};
  for (int i = 0; i < ALL; i++) {
    /* The second page has bytes at adoption, the first and the others have none. */
    put_code(all[i] + PAGE, 1);
    if (i < 2) {
      CHECK_OK(jitsym_region_adopt(session, all[i], SIZE));
    }
    CHECK(is_in_file(all[i]));
  }
  int go[2];
  CHECK(pipe(go) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    await_close(go);
    for (int i = 0; i < ALL; i++) {
      /* The process has its own copy of the page that the header page lies over. */
      CHECK((i == 1 ? is_zero(all[i], PAGE) : has_breakpoints(all[i])) && all[i][PAGE + 1] == 1);
      for (unsigned page = 2; page < SIZE / PAGE; page++) {
        CHECK(has_breakpoints(all[i] + page * PAGE));
      }
    }
    _exit(0);
  }
  for (int i = 0; i < ALL; i++) {
    for (unsigned page = 0; page < SIZE / PAGE; page++) {
      put_code(all[i] + page * PAGE, 0x12345678);
      announce(session, all[i] + page * PAGE, "of the parent");
    }
  }
  CHECK_OK(test_flush(session));
  close(go[0]);
  close(go[1]);
  test_wait_ok(child);
  CHECK_OK(jitsym_close(session));
}

/* Pages that the program gives up read zero, except where code was registered, until the program discards the memory. */
static void given_up(void) {
  jitsym *session = open_regions();
  unsigned char *memory = in_open_space(SIZE, 0);
  memset(memory, 0xcc, SIZE);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  for (int i = 0; i < 2; i++) {
    put_code(memory, 5);
    announce(session, memory, "given up");
    CHECK_OK(test_flush(session));
    CHECK(run_code(memory) == 5 && memory[CODE_SIZE] == (i == 0 ? 0xcc : 0));
    CHECK(madvise(memory, SIZE, MADV_DONTNEED) == 0 && is_zero(memory + CODE_SIZE, SIZE - CODE_SIZE));
    for (int at = 0; at < CODE_SIZE; at++) {
      CHECK(memory[at] == 0xcc);
    }
  }
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, SIZE, 0));
  CHECK_OK(jitsym_region_discard(session, memory, SIZE));
  CHECK(is_zero(memory, SIZE) && madvise(memory, SIZE, MADV_DONTNEED) == 0 && is_zero(memory, SIZE));
  unsigned char *below = with_code_below();
  put_code(below, 5);
  CHECK_OK(jitsym_region_adopt(session, below, SIZE));
  jitsym_id id = announce(session, below, "below the header");
  CHECK_OK(test_flush(session));
  CHECK(madvise(below + PAGE, SIZE - PAGE, MADV_DONTNEED) == 0 && is_zero(below + PAGE, SIZE - PAGE));
  CHECK_OK(jitsym_unregister(session, id));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(jitsym_region_discard(session, below, SIZE));
    CHECK(is_zero(below, SIZE) && file_has(session, "ELF") && file_has(session, "below the header"));
  }
  CHECK_OK(jitsym_close(session));
}

/*
 * A linker may place an object's code farther from its beginning than it lies in the file (lld does). perf 7 takes such an object to
 * begin, and to end, by as much later. The header page lies beyond that.
 */
static void beyond_the_seeming_end_of_an_object(void) {
  jitsym *session = open_regions();
  enum { FARTHER = 2, END = 3 + FARTHER, START = END + 5 };
  unsigned char *object = in_open_space(START * PAGE + SIZE, 0), *memory = object + START * PAGE;
  int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0);
  unsigned char *code = object + (1 + FARTHER) * PAGE;
  CHECK(mmap(object, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == object);
  CHECK(mmap(code, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, PAGE) == code);
  CHECK(mprotect(code + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
  CHECK(munmap(object + END * PAGE, (START - END) * PAGE) == 0 && close(file) == 0);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  for (int page = END; page < START; page++) {
    CHECK((is_in_file(object + page * PAGE) && has_flags(object + page * PAGE, "r-xp")) == (page == END + FARTHER));
  }
  CHECK_OK(jitsym_close(session));
}

/*
 * Pages that are made writable and executable again one by one are one mapping with the others then: perf is told of all of it, and
 * the program does not come near the limit on mappings.
 */
static void one_mapping(void) {
  jitsym *session = open_regions();
  unsigned char *memory = apart_from_neighbours(SIZE, PROT_READ | PROT_EXEC);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  for (uint32_t i = 0; i < 2 * SIZE / PAGE; i++) {
    unsigned char *page = memory + i * 7 * PAGE % SIZE;
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
    put_code(page, i);
    CHECK(mprotect(page, PAGE, PROT_READ | PROT_EXEC) == 0 && run_code(page) == i);
    announce(session, page, "flipped");
    struct mapping mapping = mapping_at(page);
    CHECK(mapping.start == (uintptr_t)memory && mapping.end == (uintptr_t)memory + SIZE);
  }
  CHECK_OK(jitsym_close(session));
}

/* Made longer by the program, the memory has zeros at its end, which are the program's own. */
static void made_longer(void) {
  jitsym *session = open_regions();
  static const size_t sizes[] = {PAGE, SIZE, 8 << 20};
  jitsym_unwind unwind = {.struct_size = sizeof unwind, .kind = JITSYM_UNWIND_FRAME_POINTER};
  for (size_t i = 0; i < 12; i++) {
    size_t size = sizes[i / 4];
    unsigned char *memory = i % 2 == 0 ? apart_from_neighbours(size, RWX) : in_open_space(size, i);
    put_code(memory, 6);
    CHECK_OK(jitsym_region_adopt(session, memory, size));
    if (i / 2 % 2 == 0) {
      jitsym_code code = test_code((uintptr_t)memory, CODE_SIZE, "made longer");
      code.unwind = &unwind;
      CHECK_OK(jitsym_register(session, &code, NULL));
      CHECK_OK(test_flush(session));
    }
    unsigned char *longer = mremap(memory, size, 2 * size, MREMAP_MAYMOVE);
    CHECK(longer != MAP_FAILED && run_code(longer) == 6 && is_zero(longer + size, size));
    put_code(longer + 2 * size - CODE_SIZE, 7);
    CHECK(run_code(longer + 2 * size - CODE_SIZE) == 7);
    announce(session, longer, "elsewhere");
    CHECK_OK(test_flush(session));
    CHECK(run_code(longer) == 6 && run_code(longer + 2 * size - CODE_SIZE) == 7);
    CHECK(is_zero(longer + size, size - CODE_SIZE));
  }
  CHECK_OK(jitsym_close(session));
}

/* A limit on the size of files leaves no room to grow. */
static void in_short_files(void) {
  struct rlimit limit;
  CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  limit.rlim_cur = 4 << 20;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  jitsym *session = open_regions();
  unsigned char *memory = in_open_space(SIZE, 0);
  put_code(memory, 8);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  announce(session, memory, "in a short file");
  CHECK_OK(test_flush(session));
  CHECK(file_has(session, "in a short file") && run_code(memory) == 8);
  CHECK_OK(jitsym_close(session));
}

/* After the exit, and after the end of a region, there is one file with the bytes where readers look for them, and without the room
 * to grow. */
static void bytes_in_the_end(void) {
  unsigned char *code = memory_of(PAGE, PROT_READ | PROT_WRITE);
  put_code(code, 0x23456789);
  struct test_path *path = mmap(NULL, sizeof *path, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(path != MAP_FAILED);
  enum { AT_EXIT, CLOSED, RELEASED, UNMAPPED, UNDER_HEADER, WAYS };
  for (int way = 0; way < WAYS; way++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      jitsym *session = open_regions();
      /* Above memory that can be executed, the header page lies over the first page. */
      unsigned char *memory = in_open_space(2 * SIZE, 0) + (way == UNDER_HEADER ? SIZE : 0);
      unsigned char *at = memory + (way == UNDER_HEADER ? 64 : PAGE);
      memcpy(at, code, CODE_SIZE);
      CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
      announce(session, at, "in the end");
      CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path->text, sizeof path->text));
      if (way == CLOSED) {
        CHECK_OK(jitsym_close(session));
      } else if (way == RELEASED) {
        CHECK_OK(jitsym_region_release(session, memory));
      } else if (way == UNMAPPED) {
        CHECK_OK(test_flush(session));
        CHECK(munmap(memory, SIZE) == 0);
      }
      exit(0);
    }
    test_wait_ok(child);
    size_t size;
    unsigned char *bytes = file_read(path->text, &size);
    CHECK(size < 1 << 20 && memmem(bytes, size, "in the end", 10) != NULL);
    CHECK(memmem(bytes, size, code, CODE_SIZE) != NULL);
    free(bytes);
  }
}

/* Code that lies in two regions has its name in both files. If other code replaces it, both files get another name. */
static void across_two_regions(void) {
  jitsym *session = open_regions();
  unsigned char *parts[2] = {in_open_space(2 * SIZE, 0), NULL};
  parts[1] = parts[0] + SIZE;
  unsigned char *code = parts[1] - CODE_SIZE / 2;
  struct mapping old[2];
  put_code(code, 1);
  jitsym_id id = announce_whole(session, code, code, "known_before");
  for (int i = 0; i < 2; i++) {
    CHECK_OK(jitsym_region_adopt(session, parts[i], SIZE));
    CHECK_OK(test_flush(session));
    old[i] = mapping_at(parts[i]);
    CHECK(is_text_in(old[i].path, "known_before") && is_text_in(old[i].path, "/left.toy"));
  }
  CHECK_OK(jitsym_unregister(session, id));
  put_code(code, 2);
  announce_whole(session, code, code, "replaces_both");
  CHECK_OK(test_flush(session));
  for (int i = 0; i < 2; i++) {
    struct mapping now = mapping_at(parts[i]);
    CHECK(strcmp(now.path, old[i].path) != 0 && is_text_in(now.path, "replaces_both"));
    CHECK(is_text_in(old[i].path, "known_before") && !is_text_in(old[i].path, "replaces_both"));
  }
  CHECK(run_code(code) == 2 && test_stats(session).region_late == 0);
  CHECK_OK(jitsym_close(session));
}

/* Code that begins in a region and ends in other executable memory: the other memory becomes a region too, after some calls. */
static void beside_a_region(void) {
  jitsym *session = open_adopting();
  unsigned char *memory = apart_from_neighbours(2 * SIZE, PROT_READ | PROT_WRITE), *code = memory + SIZE - CODE_SIZE / 2;
  put_code(code, 1);
  CHECK(mprotect(memory, 2 * SIZE, PROT_READ | PROT_EXEC) == 0);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  announce(session, code, "over_the_edge");
  unsigned char *other = apart_from_neighbours(PAGE, PROT_READ | PROT_WRITE);
  while (!is_in_file(memory + SIZE)) {
    announce(session, other, "of_a_later_call");
  }
  CHECK_OK(test_flush(session));
  CHECK(is_text_in(mapping_at(memory).path, "over_the_edge"));
  CHECK(is_text_in(mapping_at(memory + SIZE).path, "over_the_edge"));
  CHECK_OK(jitsym_close(session));
}

/* Free addresses for many mappings, which go down from the result, and above them for the tables of some mapping groups. */
static unsigned char *room_for_mappings(size_t below) {
  enum { ABOVE = 256 << 20 };
  unsigned char *space = memory_of(below + ABOVE, PROT_NONE);
  CHECK(munmap(space, below + ABOVE) == 0);
  return space + below;
}

/* Maps the next free page below. */
static unsigned char *page_below(unsigned char *at) {
  for (;;) {
    at -= PAGE;
    void *got = mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == at) {
      return at;
    }
    CHECK(got == MAP_FAILED && errno == EEXIST);
  }
}

/* Each of many functions has a mapping of its own. All get a file, and few files serve them. */
static void many_mappings(void) {
  enum { FUNCTIONS = 20000 };
  jitsym *session = open_adopting();
  unsigned char *first = NULL, *last = room_for_mappings((FUNCTIONS + 10000ul) * PAGE);
  for (uint32_t i = 0; i < FUNCTIONS; i++) {
    last = page_below(last);
    first = first == NULL ? last : first;
    put_code(last, i);
    CHECK(mprotect(last, PAGE, PROT_READ | PROT_EXEC) == 0);
    announce(session, last, "one_of_many");
  }
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_code == FUNCTIONS && stats.region_limit == 0 && stats.region_refused == 0 && stats.regions <= 100);
  CHECK(is_in_file(first) && run_code(first) == 0 && is_in_file(last) && run_code(last) == FUNCTIONS - 1);
  CHECK_OK(jitsym_close(session));
}

/* Each of many mappings has many functions. If the unwind tables of a mapping group fill their room, the next mapping joins another
 * group. */
static void many_in_each_mapping(void) {
  enum { MAPPINGS = 1200, IN_EACH = PAGE / 64, AT_ONCE = 50 };
  jitsym *session = open_adopting();
  unsigned char *memory = room_for_mappings((MAPPINGS + 10000ul) * PAGE);
  for (uint32_t i = 0; i < MAPPINGS; i++) {
    memory = page_below(memory);
    for (uint32_t at = 0; at < IN_EACH; at++) {
      put_code(memory + 64 * at, at);
    }
    CHECK(mprotect(memory, PAGE, PROT_READ | PROT_EXEC) == 0);
    for (uint32_t at = 0; at < IN_EACH; at++) {
      jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FIXED_FRAME);
      unwind.cfa_offset = 8;
      jitsym_code code = test_code((uintptr_t)memory + 64 * at, CODE_SIZE, "one_of_many");
      code.unwind = &unwind;
      CHECK_OK(jitsym_register(session, &code, NULL));
    }
    if (i % AT_ONCE == 0) {
      CHECK_OK(test_flush(session));
    }
  }
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_code == MAPPINGS * IN_EACH && stats.region_left_out == 0 && stats.region_limit == 0);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(adopted_when_executable);
  test_child(many_in_each_mapping);
  test_child(many_mappings);
  test_child(adopted_with_all_that_is_known);
  test_child(adopted_at_the_end_of_code);
  test_child(arena_with_few_pages);
  test_child(tables_not_mapped);
  test_child(never_executable);
  test_child(unmapped_next);
  test_child(other_memory_there);
  test_child(stacks_stay);
  test_child(stacks_of_others_stay);
  test_child(adoption_means_on);
  test_child(no_foreign_bytes);
  test_child(given_up);
  test_child(beyond_the_seeming_end_of_an_object);
  test_child(one_mapping);
  test_child(made_longer);
  test_child(in_short_files);
  test_child(bytes_in_the_end);
  test_child(across_two_regions);
  test_child(beside_a_region);
  return test_end();
}
