/*
 * Adopted memory and regions with one view after a fork: a child shares all pages with its parent, and its memory is a mapping of
 * the parent's file, until the child registers code there or the parent's file changes. x86-64 only.
 *
 * Usage: forked_pages DIR
 */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "maps.h"
#include "region_code.h"

enum { PAGES = 32, LENGTH = PAGES * PAGE, OLD_VALUE = 300 };

/* ------------------------------------------------------------------------------------------------ pages and files */

/* How many pages only this process maps. */
static int own_pages(const unsigned char *memory) {
  enum { IS_PRESENT = 63, IS_EXCLUSIVE = 56 };
  int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), count = 0;
  CHECK(file >= 0);
  for (int i = 0; i < PAGES; i++) {
    uint64_t entry;
    /* The read brings the page back if the system has taken it. */
    (void)*(const volatile unsigned char *)(memory + i * PAGE);
    off_t at = (off_t)((uintptr_t)memory / PAGE + i) * (off_t)sizeof entry;
    CHECK(pread(file, &entry, sizeof entry, at) == sizeof entry && entry >> IS_PRESENT & 1);
    count += entry >> IS_EXCLUSIVE & 1;
  }
  close(file);
  return count;
}

static void check_bytes(const unsigned char *memory, int from) {
  for (int i = from; i < PAGES; i++) {
    CHECK(run_code(memory + i * PAGE) == (uint32_t)(OLD_VALUE + i));
  }
}

static int is_of_process(const void *where, pid_t pid) {
  char jit[32], jitted[32];
  snprintf(jit, sizeof jit, "/jit-%d-", (int)pid);
  snprintf(jitted, sizeof jitted, "/jitted-%d-", (int)pid);
  return is_of_file(where, jit) || is_of_file(where, jitted);
}

/* Does not read the holes of the file, which are large. */
static int file_has(const void *where, const char *name) {
  int file = open(mapping_at(where).path, O_RDONLY | O_CLOEXEC), has = 0;
  CHECK(file >= 0);
  for (off_t data = 0, hole; !has && (data = lseek(file, data, SEEK_DATA)) >= 0; data = hole) {
    hole = lseek(file, data, SEEK_HOLE);
    CHECK(hole > data);
    size_t length = (size_t)(hole - data);
    char *part = malloc(length);
    CHECK(part != NULL && pread(file, part, length, data) == (ssize_t)length);
    has = memmem(part, length, name, strlen(name)) != NULL;
    free(part);
  }
  close(file);
  return has;
}

/* The memory is the parent's, and no page is a copy. */
static void check_shared(const unsigned char *memory, pid_t parent) {
  CHECK(is_of_process(memory, parent) && own_pages(memory) == 0);
}

/* The memory is a mapping of this process's own file, with the names of the parent's code. */
static void check_own(jitsym *session, const unsigned char *memory) {
  CHECK_OK(test_flush(session));
  CHECK(is_of_process(memory, getpid()) && own_pages(memory) == PAGES);
  CHECK(file_has(memory, "of the parent 1.") && file_has(memory, "of the parent 31."));
}

/* ------------------------------------------------------------------------------------------------ parent and child */

static struct {
  jitsym *session;
  unsigned char *memory;
  jitsym_id ids[PAGES];
  pid_t parent;
} of;

static void fill(void) {
  for (int i = 0; i < PAGES; i++) {
    put_code(of.memory + i * PAGE, (uint32_t)(OLD_VALUE + i));
  }
}

static void begin(int one_view, uint32_t sinks) {
  of.session = test_open_flags(sinks, 0);
  of.parent = getpid();
  if (one_view) {
    of.memory = test_region(of.session, LENGTH, JITSYM_REGION_ONE_VIEW).write;
    fill();
    CHECK(mprotect(of.memory, LENGTH, RWX) == 0);
  } else {
    of.memory = memory_of(LENGTH, RWX);
    fill();
    CHECK_OK(jitsym_region_adopt(of.session, of.memory, LENGTH));
  }
  for (int i = 0; i < PAGES; i++) {
    char name[32];
    snprintf(name, sizeof name, "of the parent %d.", i);
    of.ids[i] = announce(of.session, of.memory + i * PAGE, name);
  }
  CHECK_OK(test_flush(of.session));
}

static void end(void) {
  CHECK_OK(jitsym_close(of.session));
  munmap(of.memory, LENGTH);
}

static void register_elsewhere(void) {
  unsigned char *other = memory_of(PAGE, RWX);
  put_code(other, 1);
  announce(of.session, other, "elsewhere");
}

static void in_child(void (*body)(void)) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    test_inherits_threads = 1;
    body();
    check_bytes(of.memory, 2);
    _exit(0);
  }
  test_wait_ok(child);
}

/* ------------------------------------------------------------------------------------------------ what copies nothing */

static void calls_copy_nothing(void) {
  CHECK_OK(test_flush(of.session));
  check_shared(of.memory, of.parent);
  jitsym_stats stats = test_stats(of.session);
  CHECK(stats.inherited == PAGES && stats.regions == 0);
  register_elsewhere();
  jitsym_region piece = JITSYM_REGION;
  CHECK_OK(jitsym_alloc(of.session, 100, 0, 0, &piece));
  CHECK_OK(jitsym_unregister(of.session, of.ids[0]));
  CHECK_OK(jitsym_unregister_range(of.session, (uintptr_t)of.memory + PAGE, PAGE, 0));
  CHECK_OK(test_flush(of.session));
  CHECK(test_stats(of.session).live == PAGES - 1);
  check_shared(of.memory, of.parent);
  pid_t parent = of.parent, grandchild = fork();
  CHECK(grandchild >= 0);
  if (grandchild == 0) {
    CHECK_OK(test_flush(of.session));
    check_shared(of.memory, parent);
    put_code(of.memory + PAGE, 2);
    announce(of.session, of.memory + PAGE, "of the grandchild");
    CHECK_OK(test_flush(of.session));
    CHECK(is_of_process(of.memory, getpid()) && own_pages(of.memory) == PAGES);
    CHECK(file_has(of.memory, "of the grandchild") && file_has(of.memory, "of the parent 31."));
    CHECK(!file_has(of.memory, "of the parent 0."));
    _exit(0);
  }
  test_wait_ok(grandchild);
  CHECK_OK(jitsym_close(of.session));
  check_shared(of.memory, of.parent);
}

static void without_a_call(void) {
  pid_t grandchild = fork();
  CHECK(grandchild >= 0);
  if (grandchild == 0) {
    CHECK_OK(test_flush(of.session));
    check_shared(of.memory, of.parent);
    _exit(0);
  }
  test_wait_ok(grandchild);
}

/* ------------------------------------------------------------------------------------------------ what makes an own file */

static void registers(void) {
  put_code(of.memory + 64, 2);
  announce(of.session, of.memory + 64, "of the child");
  check_own(of.session, of.memory);
  CHECK(file_has(of.memory, "of the child") && run_code(of.memory + 64) == 2);
  CHECK(test_stats(of.session).regions == 1 && test_stats(of.session).live == PAGES + 1);
}

static void replaces(void) {
  put_code(of.memory, 2);
  announce(of.session, of.memory, "of the child");
  check_own(of.session, of.memory);
  CHECK(file_has(of.memory, "of the child") && test_stats(of.session).live == PAGES);
}

static void moves(void) {
  unsigned char *other = memory_of(PAGE, RWX);
  put_code(other, 1);
  jitsym_id id = announce(of.session, other, "moved");
  CHECK_OK(test_flush(of.session));
  check_shared(of.memory, of.parent);
  put_code(of.memory + 64, 1);
  jitsym_move_target target = test_target((uintptr_t)of.memory + 64);
  CHECK_OK(jitsym_move(of.session, id, &target));
  check_own(of.session, of.memory);
  CHECK(file_has(of.memory, "moved"));
}

static void in_a_part(void) {
  /* The code ends where the region ends, and begins in memory that no region contains. */
  unsigned char *behind = of.memory + LENGTH - 3;
  announce_bytes(of.session, behind, behind, "half");
  check_own(of.session, of.memory);
  CHECK(file_has(of.memory, "half"));
}

/* ------------------------------------------------------------------------------------------------ what becomes plain */

static void releases(void) {
  CHECK_OK(test_flush(of.session));
  CHECK_OK(jitsym_region_release(of.session, of.memory));
  CHECK(!is_of_file(of.memory, ".so"));
}

static void discards(void) {
  CHECK_OK(test_flush(of.session));
  CHECK_OK(jitsym_unregister(of.session, of.ids[0]));
  CHECK_OK(jitsym_region_discard(of.session, of.memory, PAGE));
  for (int i = 0; i < PAGE; i++) {
    CHECK(of.memory[i] == 0);
  }
  CHECK(own_pages(of.memory) == 1 && is_of_process(of.memory, of.parent));
}

/* If the child can have no file, its code is in its map, and so is its parent's. */
static void without_files(void) {
  struct rlimit limit = {0, RLIM_INFINITY};
  CHECK_OK(test_flush(of.session));
  struct rlimit before;
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0 && setrlimit(RLIMIT_FSIZE, &limit) == 0);
  put_code(of.memory + 64, 2);
  announce(of.session, of.memory + 64, "of the child");
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(!is_of_file(of.memory, ".so"));
  CHECK_OK(test_flush(of.session));
  char path[TEST_PATH_MAX];
  size_t length;
  CHECK_OK(jitsym_path(of.session, JITSYM_SINK_MAP, path, sizeof path));
  char *map = (char *)file_read(path, &length);
  CHECK(strstr(map, "of the child") != NULL && strstr(map, "of the parent 31.") != NULL);
  free(map);
}

/* ------------------------------------------------------------------------------------------------ what the parent does */

static int ready[2], go[2];

static void say(const int ends[2]) {
  CHECK(write(ends[1], "", 1) == 1);
}

static void hear(const int ends[2]) {
  char byte;
  CHECK(read(ends[0], &byte, 1) == 1);
}

/* Registers code where the child runs none: the file that both have suits both. */
static void adds(void) {
  put_code(of.memory + 128, 5);
  announce(of.session, of.memory + 128, "added later");
}

static void exchanges(void) {
  CHECK_OK(jitsym_unregister(of.session, of.ids[0]));
  put_code(of.memory, 5);
  announce(of.session, of.memory, "in its place");
}

static void overwrites(void) {
  put_code(of.memory, 5);
  announce(of.session, of.memory, "in its place");
}

static void ends(void) {
  CHECK_OK(jitsym_region_release(of.session, of.memory));
}

/* The last session closes, and removes the files. */
static void removes(void) {
  CHECK_OK(jitsym_close(of.session));
  of.session = test_open_flags(JITSYM_SINK_REGION, 0);
}

static void changes(int one_view, void (*change)(void), int suits) {
  begin(one_view, JITSYM_SINK_REGION);
  CHECK(pipe(ready) == 0 && pipe(go) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    test_inherits_threads = 1;
    CHECK_OK(test_flush(of.session));
    say(ready);
    hear(go);
    /* A call that registers nothing must not copy memory to which another thread may be writing. */
    CHECK_OK(test_flush(of.session));
    CHECK(is_of_process(of.memory, of.parent));
    register_elsewhere();
    CHECK_OK(test_flush(of.session));
    CHECK(is_of_process(of.memory, suits ? of.parent : getpid()));
    check_bytes(of.memory, 0);
    if (!suits) {
      check_own(of.session, of.memory);
      CHECK(file_has(of.memory, "of the parent 0.") && !file_has(of.memory, "in its place"));
    }
    _exit(0);
  }
  hear(ready);
  change();
  CHECK_OK(test_flush(of.session));
  say(go);
  test_wait_ok(child);
  close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
  end();
}

/* The child of a process that has exited. */
static void exits(void) {
  int done[2];
  CHECK(pipe(done) == 0);
  pid_t middle = fork();
  CHECK(middle >= 0);
  if (middle == 0) {
    begin(0, JITSYM_SINK_REGION);
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      test_inherits_threads = 1;
      CHECK_OK(test_flush(of.session));
      check_shared(of.memory, of.parent);
      say(ready);
      CHECK(close(go[1]) == 0);
      char byte;
      CHECK(read(go[0], &byte, 1) == 0);
      register_elsewhere();
      check_own(of.session, of.memory);
      check_bytes(of.memory, 0);
      say(done);
      _exit(0);
    }
    hear(ready);
    exit(0);
  }
  test_wait_ok(middle);
  CHECK(close(done[1]) == 0);
  hear(done);
  close(done[0]);
}

/* In memory whose protection the parent changes, the file gets another name when the old code dies. */
static void exchanges_in_turn(void) {
  CHECK(mprotect(of.memory, LENGTH, PROT_READ | PROT_EXEC) == 0);
  CHECK_OK(jitsym_unregister(of.session, of.ids[0]));
  CHECK(mprotect(of.memory, LENGTH, PROT_READ | PROT_WRITE) == 0);
  put_code(of.memory, 5);
  CHECK(mprotect(of.memory, LENGTH, PROT_READ | PROT_EXEC) == 0);
  announce(of.session, of.memory, "in its place");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  unsetenv("JITSYM_FORK");
  for (int one_view = 0; one_view < 2; one_view++) {
    begin(one_view, JITSYM_SINK_REGION);
    void (*const bodies[])(void) = {calls_copy_nothing, without_a_call, registers, replaces, moves, discards};
    for (unsigned i = 0; i < sizeof bodies / sizeof *bodies; i++) {
      in_child(bodies[i]);
    }
    end();
  }
  begin(0, JITSYM_SINK_REGION);
  in_child(releases);
  in_child(in_a_part);
  end();
  begin(0, JITSYM_SINK_MAP | JITSYM_SINK_REGION);
  in_child(without_files);
  end();
  changes(0, adds, 1);
  changes(0, exchanges, 0);
  changes(1, exchanges_in_turn, 0);
  changes(0, overwrites, 0);
  changes(0, ends, 0);
  setenv("JITSYM_REMOVE", "1", 1);
  changes(0, removes, 0);
  unsetenv("JITSYM_REMOVE");
  exits();
  return test_end();
}
