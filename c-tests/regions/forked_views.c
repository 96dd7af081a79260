/*
 * Memory with two views after a fork: the child has the bytes of the moment of the fork, even if the parent's next instruction writes
 * others, and neither process sees what the other writes. x86-64 only.
 *
 * Usage: forked_views DIR
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

/* ------------------------------------------------------------------------------------------------ mappings that fail */

/* In a child, the C library's functions refuse some mappings, once this is set. */
static struct {
  int of_files;
  int of_memory;
} refused;

void *mmap(void *addr, size_t size, int protection, int flags, int file, off_t offset) {
  if ((flags & MAP_SHARED) != 0 && (file >= 0 ? refused.of_files : refused.of_memory)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return (void *)syscall(SYS_mmap, addr, size, protection, flags, file, offset);
}

/* ------------------------------------------------------------------------------------------------ the parent runs on */

static void put_in_pages(const jitsym_region *region, uint32_t value) {
  for (size_t at = 0; at < region->size; at += PAGE) {
    put_code((unsigned char *)region->write + at, value);
  }
}

static void check_pages(const jitsym_region *region, uint32_t value) {
  for (size_t at = 0; at < region->size; at += PAGE) {
    CHECK(run_code((unsigned char *)region->exec + at) == value);
  }
}

/* How often `name` is in the only file of a child of this process. */
static int in_file_of_child(jitsym *session, pid_t child, const char *name) {
  char of_parent[TEST_PATH_MAX], path[TEST_PATH_MAX];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, of_parent, sizeof of_parent));
  snprintf(path, sizeof path, "%.*s/jit-%d-0.f%d.so", (int)(strrchr(of_parent, '/') - of_parent), of_parent, (int)child,
           (int)getpid());
  size_t length;
  unsigned char *content = file_read(path, &length);
  int count = 0;
  for (const unsigned char *at = content; (at = memmem(at, length - (size_t)(at - content), name, strlen(name))) != NULL; at++) {
    count++;
  }
  free(content);
  return count;
}

static void parent_runs_on(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, 4 << 20, 0);
  announce(session, region.exec, "of the fork");
  CHECK_OK(test_flush(session));
  for (uint32_t turn = 0; turn < 40; turn++) {
    put_in_pages(&region, 2 * turn);
    int go[2], ready[2];
    CHECK(pipe(go) == 0 && pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      check_pages(&region, 2 * turn);
      put_code(region.write, 7);
      close(ready[0]);
      close(ready[1]);
      await_close(go);
      CHECK(run_code(region.exec) == 7 && run_code((unsigned char *)region.exec + PAGE) == 2 * turn);
      _exit(0);
    }
    put_in_pages(&region, 2 * turn + 1);
    if (turn == 0) {
      announce(session, (unsigned char *)region.exec + PAGE, "of the parent");
      CHECK_OK(test_flush(session));
    }
    await_close(ready);
    close(ready[0]);
    if (turn == 0) {
      /* The file of a child that ends soon is removed. So the child still runs when its file is read. */
      CHECK(in_file_of_child(session, child, "of the fork") == 1);
      CHECK(in_file_of_child(session, child, "of the parent") == 0);
    }
    close(go[0]);
    close(go[1]);
    test_wait_ok(child);
    check_pages(&region, 2 * turn + 1);
  }
  CHECK_OK(jitsym_close(session));
}

/* A fork that fails leaves no child to wait for, and the next one succeeds. */
static void no_child(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, SIZE, 0);
  put_in_pages(&region, 30);
  struct rlimit limit, none;
  CHECK(setgid(1) == 0 && setuid(1) == 0 && getrlimit(RLIMIT_NPROC, &limit) == 0);
  none = limit;
  none.rlim_cur = 0;
  CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
  errno = 0;
  CHECK(fork() == -1 && errno == EAGAIN);
  put_in_pages(&region, 31);
  CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check_pages(&region, 31);
    _exit(0);
  }
  put_in_pages(&region, 32);
  test_wait_ok(child);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ no descriptor, no room */

static void limit_files(int which, rlim_t most) {
  struct rlimit limit;
  CHECK(getrlimit(which, &limit) == 0);
  limit.rlim_cur = most;
  CHECK(setrlimit(which, &limit) == 0);
}

static void without_descriptors(void) {
  limit_files(RLIMIT_NOFILE, 0);
}

static void with_a_full_table(void) {
  limit_files(RLIMIT_NOFILE, 64);
  while (dup(0) >= 0) {
  }
  CHECK(errno == EMFILE);
}

static void with_short_files(void) {
  limit_files(RLIMIT_FSIZE, 0);
}

static void without_files(void) {
  without_descriptors();
  refused.of_files = 1;
}

static void do_nothing(void) {
}

/*
 * Two processes that write to their memory in turn: neither sees what the other writes, and each executes its own. `uses`: whether the
 * child calls the library too.
 */
static void shares_nothing(void (*limits)(void), int uses) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, SIZE, 0);
  put_in_pages(&region, 40);
  put_code((unsigned char *)region.write + 2 * PAGE, 41);
  int to_child[2], to_parent[2];
  char byte = 0;
  CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
  limits();
  pid_t child = fork();
  CHECK(child >= 0);
  /* A process that reads what the other no longer writes is to notice its end. */
  CHECK(close(child == 0 ? to_child[1] : to_child[0]) == 0 && close(child == 0 ? to_parent[0] : to_parent[1]) == 0);
  if (child == 0) {
    CHECK(run_code((unsigned char *)region.exec + 2 * PAGE) == 41);
    put_code((unsigned char *)region.write + PAGE, 42);
    put_code(region.write, 42);
    CHECK(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1);
    CHECK(run_code(region.exec) == 42 && run_code((unsigned char *)region.exec + PAGE) == 42);
    CHECK(run_code((unsigned char *)region.exec + 2 * PAGE) == 41);
    if (uses) {
      jitsym_code code = test_code((uintptr_t)region.exec, CODE_SIZE, "of the child");
      jitsym_status status = jitsym_register(session, &code, NULL);
      CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED);
      put_code(region.write, 43);
      CHECK(run_code(region.exec) == 43 && run_code((unsigned char *)region.exec + PAGE) == 42);
      /* A child of the child. */
      pid_t next = fork();
      CHECK(next >= 0);
      if (next == 0) {
        put_code(region.write, 44);
        CHECK(run_code(region.exec) == 44 && run_code((unsigned char *)region.exec + PAGE) == 42);
        _exit(0);
      }
      test_wait_ok(next);
      CHECK(run_code(region.exec) == 43);
    }
    _exit(0);
  }
  CHECK(read(to_parent[0], &byte, 1) == 1);
  CHECK(run_code(region.exec) == 40 && run_code((unsigned char *)region.exec + PAGE) == 40);
  put_in_pages(&region, 45);
  CHECK(write(to_child[1], &byte, 1) == 1);
  test_wait_ok(child);
  check_pages(&region, 45);
}

static void nothing_is_shared(void) {
  static void (*const limits[])(void) = {do_nothing, without_descriptors, with_a_full_table, with_short_files, without_files};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    for (int uses = 0; uses < 2; uses++) {
      pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        shares_nothing(limits[i], uses);
        _exit(0);
      }
      test_wait_ok(child);
    }
  }
}

/* A child for which nothing can be mapped has no memory in common with its parent either: its views cannot be accessed, and calls say
   that it cannot continue. */
static void nothing_can_be_mapped(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, SIZE, 0);
  put_in_pages(&region, 50);
  refused.of_files = refused.of_memory = 1;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_STATUS(JITSYM_ERR_FORKED, test_flush(session));
    CHECK(has_flags(region.exec, "---s") && has_flags(region.write, "---s"));
    _exit(0);
  }
  test_wait_ok(child);
  refused.of_files = refused.of_memory = 0;
  check_pages(&region, 50);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(parent_runs_on);
  test_child(no_child);
  test_child(nothing_is_shared);
  test_child(nothing_can_be_mapped);
  return test_end();
}
