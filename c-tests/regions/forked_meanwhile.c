/*
 * Forks in the middle of an adoption, when memory shows its new file, and its pages are not the process's own yet. Such a fork waits for
 * nobody here. The child executes what the file has, so that the library leaves that file alone and takes another one. x86-64 only.
 *
 * Usage: forked_meanwhile DIR
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

/* ------------------------------------------------------------------------------------------------ the fork */

/* A child, and which code it runs in each page of some memory when it may go on. */
static struct {
  const unsigned char *memory;
  size_t size;
  uint32_t value;
  int go[2];
  pid_t process;
  /* Whether the child is made by a system call, so that no handler for forks runs. */
  int is_raw;
} child;

/* Where the library has just mapped a file when the process is to be forked, and how often it has done so. */
static struct {
  const void *at;
  unsigned mapped;
} caught;

static int has_code(const unsigned char *at, uint32_t value) {
  unsigned char code[CODE_SIZE];
  put_code(code, value);
  return memcmp(at, code, sizeof code) == 0 && run_code(at) == value;
}

static int has_code_in_pages(const unsigned char *memory, size_t size, uint32_t value) {
  for (size_t at = 0; at < size; at += PAGE) {
    if (!has_code(memory + at, value)) {
      return 0;
    }
  }
  return 1;
}

static void prepare_child(const unsigned char *memory, size_t size, uint32_t value) {
  child.memory = memory;
  child.size = size;
  child.value = value;
  child.process = 0;
  CHECK(pipe(child.go) == 0);
}

static void fork_child(void) {
  child.process = child.is_raw ? test_clone() : fork();
  CHECK(child.process >= 0);
  if (child.process == 0) {
    await_close(child.go);
    CHECK(has_code_in_pages(child.memory, child.size, child.value));
    _exit(0);
  }
}

/* The child runs its code now, after all that the parent has done since. */
static void let_child_go(void) {
  CHECK(child.process > 0);
  CHECK(close(child.go[0]) == 0 && close(child.go[1]) == 0);
  test_wait_ok(child.process);
}

/*
 * Stands in front of the C library's function. The process is forked as a signal handler may do it that comes at this moment: the thread
 * is in the library, so that the fork cannot wait for it.
 */
void *mmap(void *addr, size_t size, int protection, int flags, int file, off_t offset) {
  void *mapped = (void *)syscall(SYS_mmap, addr, size, protection, flags, file, offset);
  if (addr != NULL && addr == caught.at && file >= 0 && (flags & MAP_FIXED) != 0) {
    CHECK(mapped == addr);
    if (caught.mapped++ == 0) {
      fork_child();
    }
  }
  return mapped;
}

static void fork_when_mapped(const unsigned char *memory, size_t size, uint32_t value) {
  prepare_child(memory, size, value);
  caught.at = memory;
  caught.mapped = 0;
}

/* ------------------------------------------------------------------------------------------------ adoption */

static void while_adopted(void) {
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  for (size_t at = 0; at < SIZE; at += PAGE) {
    put_code(memory + at, 300);
  }
  fork_when_mapped(memory, SIZE, 300);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  CHECK(caught.mapped == 2 && is_of_file(memory, "/jit-") && has_code_in_pages(memory, SIZE, 300));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 1 && stats.region_refused == 0);
  for (size_t at = 0; at < SIZE; at += PAGE) {
    put_code(memory + at, 301);
    announce(session, memory + at, "new");
  }
  CHECK_OK(test_flush(session));
  let_child_go();
  CHECK(has_code_in_pages(memory, SIZE, 301));
  CHECK_OK(jitsym_close(session));
}

/* The library cannot know of a child that a system call makes, and notices this child all the same. */
static void while_adopted_raw(void) {
  child.is_raw = 1;
  while_adopted();
}

/* Maps a function. */
static void map_function(unsigned char *at, uint32_t value) {
  CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
  put_code(at, value);
  CHECK(mprotect(at, PAGE, PROT_READ | PROT_EXEC) == 0);
}

static int is_in_same_file(const void *one, const void *other) {
  struct mapping first = mapping_at(one), second = mapping_at(other);
  return strstr(first.path, "/jit-") != NULL && strcmp(first.path, second.path) == 0;
}

/* Functions with mappings of their own share a file. The one that is adopted while the process is forked gets another. */
static void while_joined(void) {
  enum { BELOW = 8 << 20, HERE = 64 * PAGE, ABOVE = 512 << 20 };
  /* Free address space below is for a header page, and above for tables. */
  unsigned char *space = memory_of((size_t)BELOW + HERE + ABOVE, PROT_NONE), *start = space + BELOW;
  CHECK(munmap(space, BELOW) == 0 && munmap(start + HERE, ABOVE) == 0);
  unsigned char *first = start + PAGE, *second = start + 3 * PAGE, *third = start + 5 * PAGE;
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, JITSYM_INIT_ADOPT);
  map_function(first, 310);
  announce(session, first, "first");
  /* The control: without a fork it shares the file. */
  map_function(second, 311);
  announce(session, second, "second");
  CHECK(is_in_same_file(first, second) && test_stats(session).regions == 1);
  map_function(third, 312);
  fork_when_mapped(third, PAGE, 312);
  announce(session, third, "third");
  CHECK(caught.mapped == 2 && is_of_file(third, "/jit-") && !is_in_same_file(first, third) && has_code(third, 312));
  CHECK(test_stats(session).regions == 2);
  /* Nor does the file of the child get what is mapped there later. */
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)third, PAGE, JITSYM_RANGE_UNMAP));
  map_function(third, 313);
  announce(session, third, "fourth");
  CHECK(is_of_file(third, "/jit-") && !is_in_same_file(first, third) && has_code(third, 313));
  CHECK_OK(test_flush(session));
  let_child_go();
  CHECK(has_code(first, 310) && has_code(second, 311) && has_code(third, 313));
  CHECK_OK(jitsym_close(session));
}

static void while_joined_raw(void) {
  child.is_raw = 1;
  while_joined();
}

/* ------------------------------------------------------------------------------------------------ a fork that takes long */

static struct {
  jitsym *session;
  unsigned char *memory;
  jitsym_status status;
} other;

static void *adopts(void *unused) {
  (void)unused;
  other.status = jitsym_region_adopt(other.session, other.memory, SIZE);
  return NULL;
}

/* A handler that was registered before the library's runs after that: the fork has begun, and ends when this returns. */
static void adopt_elsewhere(void) {
  pthread_t thread;
  if (other.session != NULL) {
    CHECK(pthread_create(&thread, NULL, adopts, NULL) == 0 && pthread_join(thread, NULL) == 0);
  }
}

/* Nothing is exchanged while a fork leaves no time for it. The memory stays what it was, and can be adopted later. */
static void while_a_fork_waits(void) {
  CHECK(pthread_atfork(adopt_elsewhere, NULL, NULL) == 0);
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  for (size_t at = 0; at < SIZE; at += PAGE) {
    put_code(memory + at, 320);
  }
  prepare_child(memory, SIZE, 320);
  other.memory = memory;
  other.session = session;
  fork_child();
  other.session = NULL;
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, other.status);
  CHECK(!is_of_file(memory, "/jit-") && test_stats(session).region_refused == 1);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  CHECK(is_of_file(memory, "/jit-") && has_code_in_pages(memory, SIZE, 320));
  put_code(memory, 321);
  announce(session, memory, "new");
  CHECK_OK(test_flush(session));
  let_child_go();
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(while_adopted);
  test_child(while_joined);
  test_child(while_adopted_raw);
  test_child(while_joined_raw);
  test_child(while_a_fork_waits);
  return test_end();
}
