/*
 * What code regions may never do to the program that has them: change bytes that it executes, end it by a signal, keep it waiting,
 * or take its descriptors. What each call refuses is in region_calls.c.
 *
 * Usage: region_host DIR [PART]: all parts, or `full` for a directory on a file system in memory of 2 MiB. x86-64 only.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

/* ------------------------------------------------------------------------------------------------ bytes */

/* The program has linked its code since it wrote the bytes that it registers: what runs stays what it is. */
static void bytes_are_the_hosts(void) {
  jitsym *session = open_regions();
  for (int protection = 0; protection < 2; protection++) {
    unsigned char *memory = memory_of(SIZE, RWX), unlinked[CODE_SIZE];
    put_code(memory, 200);
    put_code(memory + PAGE, 201);
    CHECK(mprotect(memory, SIZE, protection ? RWX : PROT_READ | PROT_EXEC) == 0);
    CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
    put_code(unlinked, 0);
    announce_bytes(session, memory, unlinked, "linked");
    CHECK_OK(test_flush(session));
    CHECK(run_code(memory) == 200 && run_code(memory + PAGE) == 201);
  }
  CHECK_OK(jitsym_close(session));
}

/* A forked child executes what its parent had, whatever that puts in its place, also if it never uses the library. */
static void bytes_are_the_childs(void) {
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  put_code(memory, 210);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  jitsym_region one = test_region(session, SIZE, JITSYM_REGION_ONE_VIEW);
  unsigned char *view = one.write;
  put_code(view, 211);
  CHECK(mprotect(view, SIZE, PROT_READ | PROT_EXEC) == 0);
  jitsym_id ids[] = {announce(session, memory, "old"), announce(session, view, "old too")};
  int go[2];
  CHECK(pipe(go) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    await_close(go);
    CHECK(run_code(memory) == 210 && run_code(view) == 211);
    _exit(0);
  }
  CHECK_OK(jitsym_unregister(session, ids[0]));
  CHECK_OK(jitsym_unregister(session, ids[1]));
  put_code(memory, 212);
  CHECK(mprotect(view, SIZE, PROT_READ | PROT_WRITE) == 0);
  put_code(view, 213);
  CHECK(mprotect(view, SIZE, PROT_READ | PROT_EXEC) == 0);
  announce(session, memory, "new");
  announce(session, view, "new too");
  CHECK_OK(test_flush(session));
  close(go[0]);
  close(go[1]);
  test_wait_ok(child);
  CHECK_OK(jitsym_close(session));
}

static struct {
  jitsym *session;
  unsigned char *memory;
  int is_adopted;
} large;
enum { LARGE = 8192 * PAGE };

static void *adopt_large(void *argument) {
  CHECK_OK(jitsym_region_adopt(large.session, large.memory, LARGE));
  __atomic_store_n(&large.is_adopted, 1, __ATOMIC_RELAXED);
  return argument;
}

/* Another thread forks while memory is being adopted. */
static void forks_while_adopted(void) {
  enum { MOST = 64 };
  large.session = open_regions();
  large.memory = memory_of(LARGE, RWX);
  for (size_t at = 0; at < LARGE; at += PAGE) {
    put_code(large.memory + at, 214);
  }
  int go[2];
  CHECK(pipe(go) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, adopt_large, NULL) == 0);
  pid_t children[MOST];
  int count = 0;
  for (; count < MOST && !__atomic_load_n(&large.is_adopted, __ATOMIC_RELAXED); count++) {
    children[count] = fork();
    CHECK(children[count] >= 0);
    if (children[count] == 0) {
      await_close(go);
      for (size_t at = 0; at < LARGE; at += PAGE) {
        CHECK(run_code(large.memory + at) == 214);
      }
      _exit(0);
    }
    test_sleep_ms(2);
  }
  CHECK(pthread_join(thread, NULL) == 0);
  for (size_t at = 0; at < LARGE; at += PAGE) {
    put_code(large.memory + at, 215);
    announce(large.session, large.memory + at, "new");
  }
  CHECK_OK(test_flush(large.session));
  close(go[0]);
  close(go[1]);
  for (int i = 0; i < count; i++) {
    test_wait_ok(children[i]);
  }
  CHECK_OK(jitsym_close(large.session));
}

/* ------------------------------------------------------------------------------------------------ signals */

/* Fills the disk that the files are on. */
static void fill_disk(void) {
  char path[TEST_PATH_MAX];
  static const char zeros[4096];
  snprintf(path, sizeof path, "%s/filler", test_dir);
  int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  CHECK(file >= 0);
  for (; write(file, zeros, sizeof zeros) > 0;) {
  }
  CHECK(errno == ENOSPC);
  close(file);
}

/* Memory stays memory when the disk of its file is full. */
static void full_disk(void) {
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  put_code(memory, 220);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  unsigned char *one = test_region(session, SIZE, JITSYM_REGION_ONE_VIEW).write;
  unsigned char *two = test_region(session, SIZE, 0).write;
  CHECK(test_stats(session).regions == 3);
  fill_disk();
  for (int i = 0; i < SIZE; i += PAGE) {
    CHECK(one[i] == 0 && two[i] == 0 && (i == 0 || memory[i] == 0));
    put_code(memory + i, 221);
    put_code(one + i, 222);
    put_code(two + i, 223);
    CHECK(run_code(memory + i) == 221);
  }
  CHECK_OK(jitsym_close(session));
}

/* A child of a process whose files may not grow is none of the library's business. */
static void limited_forks(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, SIZE, 0);
  put_code(region.write, 230);
  struct rlimit limit = {PAGE, RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(run_code(region.exec) == 230);
    _exit(0);
  }
  test_wait_ok(child);
  limit.rlim_cur = RLIM_INFINITY;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ what the files say */

/* How often bytes are in the file of the last region. */
static int in_file(jitsym *session, const void *bytes, size_t size) {
  char path[TEST_PATH_MAX];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  size_t length;
  unsigned char *content = file_read(path, &length);
  int count = 0;
  const unsigned char *end = content + length, *at = content;
  while ((at = memmem(at, (size_t)(end - at), bytes, size)) != NULL) {
    count++;
    at++;
  }
  free(content);
  return count;
}

/* Code that was registered before its memory became a region: profilers look for its name in the region's file alone. */
static void known_before(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
  unsigned char *memory = memory_of(SIZE, RWX);
  put_code(memory, 1);
  jitsym_id id = announce(session, memory, "known before");
  announce_bytes(session, memory + PAGE, memory, "overwritten at once");
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  announce_bytes(session, memory + PAGE, memory, "its heir");
  CHECK_OK(test_flush(session));
  CHECK(in_file(session, "known before", 13) == 1 && in_file(session, "its heir", 9) == 1);
  CHECK(test_stats(session).live == 2);
  CHECK_OK(jitsym_unregister(session, id));
  CHECK(test_stats(session).live == 1);
  CHECK_OK(jitsym_close(session));
}

/* The bytes of code in memory that is not the file itself, however they are registered. */
static void bytes_are_in_the_file(void) {
  jitsym *session = open_regions();
  unsigned char *memory = test_region(session, SIZE, JITSYM_REGION_ONE_VIEW).write;
  for (int i = 0; i < 5; i++) {
    put_code(memory + i * PAGE, 0x12345000 + i);
  }
  announce(session, memory, "plain");
  announce_bytes(session, memory + PAGE, NULL, "found at its address");
  announce(session, memory + 2 * PAGE, "a name that is cl\x01""eaned");
  jitsym_code code = test_code((uintptr_t)memory + 3 * PAGE, CODE_SIZE, "stable");
  code.bytes = memory + 3 * PAGE;
  code.flags = JITSYM_CODE_STABLE;
  CHECK_OK(jitsym_register(session, &code, NULL));
  unsigned char elsewhere[CODE_SIZE];
  put_code(elsewhere, 0x12345004);
  jitsym_move_target target = test_target((uintptr_t)memory + 4 * PAGE);
  target.bytes = memory + 4 * PAGE;
  CHECK_OK(jitsym_move(session, announce(session, elsewhere, "moved"), &target));
  CHECK_OK(test_flush(session));
  for (int i = 0; i < 5; i++) {
    CHECK(in_file(session, memory + i * PAGE, CODE_SIZE) == 1);
  }
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ descriptors */

/* One for each region, and none that stays when it ends, here or in a child that has got regions of its own. */
static void descriptors(void) {
  enum { COUNT = 10 };
  jitsym *session = open_regions();
  CHECK_OK(jitsym_region_release(session, test_region(session, SIZE, 0).exec));
  int before = test_files_in("/proc/self/fd");
  void *all[2 * COUNT];
  for (int i = 0; i < 2 * COUNT; i++) {
    all[i] = test_region(session, SIZE, i % 2 ? JITSYM_REGION_ONE_VIEW : 0).exec;
  }
  CHECK(test_files_in("/proc/self/fd") <= before + 2 * COUNT);
  CHECK_OK(test_flush(session));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK_OK(test_flush(session));
    CHECK(test_stats(session).regions == 2 * COUNT);
    CHECK(test_files_in("/proc/self/fd") <= before + 2 * COUNT + 2);
    _exit(0);
  }
  test_wait_ok(child);
  for (int i = 0; i < 2 * COUNT; i++) {
    CHECK_OK(jitsym_region_release(session, all[i]));
  }
  CHECK(test_files_in("/proc/self/fd") == before);
  CHECK_OK(jitsym_close(session));
}

/* Without any left, memory that is still a region is not taken for none. Code that is registered after the library has noticed is in
 * the region's file as soon as a flush says that all is written. */
static void no_descriptors(void) {
  for (int is_noticed = 0; is_noticed < 2; is_noticed++) {
    jitsym *session = open_regions();
    unsigned char *memory = memory_of(SIZE, RWX);
    CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
    put_code(memory, 240);
    put_code(memory + 64, 241);
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    limit = before;
    limit.rlim_cur = 3;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_OK(jitsym_unregister(session, announce(session, memory, "the first one")));
    if (is_noticed) {
      CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
    }
    announce(session, memory + 64, "the next one");
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    jitsym_stats stats = test_stats(session);
    CHECK(stats.regions == 1 && in_file(session, "the next one", 12) == 1);
    CHECK(test_stats(session).region_code == stats.region_code);
    CHECK_OK(jitsym_close(session));
    CHECK(munmap(memory, SIZE) == 0);
  }
}

/* A host that closes all descriptors, as daemons do, and opens files of its own: the region goes on. */
static void closed_descriptors(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, SIZE, 0);
  unsigned char *exec = region.exec;
  put_code(region.write, 250);
  announce(session, exec, "before they are closed");
  CHECK_OK(test_flush(session));
  for (int i = 3; i < 100; i++) {
    close(i);
  }
  char path[TEST_PATH_MAX];
  snprintf(path, sizeof path, "%s/of-the-host", test_dir);
  file_write(path, "");
  for (int i = 3; i < 100; i++) {
    CHECK(open(path, O_RDWR | O_CLOEXEC) == i);
  }
  announce_bytes(session, exec + PAGE, exec, "after they were closed");
  CHECK_OK(test_flush(session));
  announce(session, exec, "a new generation");
  CHECK_OK(test_flush(session));
  CHECK(in_file(session, "after they were closed", 23) && in_file(session, "a new generation", 17));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.sinks_failed == 0 && stats.region_code == 3 && stats.region_generations == 1);
  file_check(path, "");
  CHECK_OK(jitsym_close(session));
}

/* While the disk is full this is said; when there is room again all names are there. */
static void full_disk_and_back(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  unsigned char *exec = test_region(session, SIZE * 16, 0).exec;
  char path[TEST_PATH_MAX], name[64];
  fill_disk();
  for (int i = 0; i < 2000; i++) {
    snprintf(name, sizeof name, "registered on a full disk %d", i);
    announce_bytes(session, exec + i * 16, exec, name);
    if (i == 1000) {
      CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
    }
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, test_flush(session));
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.sinks_failed & JITSYM_SINK_REGION && stats.write_errors > 0 && stats.write_errors < 100);
  snprintf(path, sizeof path, "%s/filler", test_dir);
  CHECK(unlink(path) == 0);
  jitsym_flush(session, 60000);
  CHECK_OK(test_flush(session));
  CHECK(test_stats(session).sinks_failed == 0);
  CHECK(in_file(session, "registered on a full disk 0", 28) && in_file(session, "registered on a full disk 1999", 31));
  CHECK_OK(jitsym_close(session));
}

/* Files of regions that have been released stay, with names and code, and take no room for the rest. */
static void released_files(void) {
  jitsym *session = open_regions();
  struct test_path paths[3];
  for (int i = 0; i < 3; i++) {
    jitsym_region region = test_region(session, 32 << 20, 0);
    put_code((unsigned char *)region.write + (16 << 20), 0x23456000);
    jitsym_id id = announce_bytes(session, (unsigned char *)region.exec + (16 << 20), region.exec, "of a large region");
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, paths[i].text, sizeof paths[i].text));
    CHECK_OK(jitsym_region_release(session, region.exec));
  }
  /* They lie at one address: what lived in one is nothing to the next. */
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_code == 3 && stats.region_generations == 0 && stats.region_late == 0);
  unsigned char code[CODE_SIZE];
  put_code(code, 0x23456000);
  for (int i = 0; i < 3; i++) {
    struct stat stat;
    CHECK(lstat(paths[i].text, &stat) == 0 && stat.st_blocks < 2048);
    int file = open(paths[i].text, O_RDONLY | O_CLOEXEC);
    unsigned char *content = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(content != MAP_FAILED && memmem(content, (size_t)stat.st_size, code, CODE_SIZE) != NULL);
    CHECK(memmem(content, (size_t)stat.st_size, "of a large region", 18) != NULL);
    munmap(content, (size_t)stat.st_size);
    close(file);
  }
  CHECK_OK(jitsym_close(session));
}

/* Takes new memory at an address. */
static void map_anew(unsigned char *at, size_t size) {
  CHECK(mmap(at, size, RWX, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

/* The map has this name for the code at an address. */
static void check_in_map(jitsym *session, const unsigned char *at, const char *name) {
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, (uintptr_t)at), name) == 0);
  map_free(&map);
}

/* The program gives part of a region back, takes other memory there, and goes on in the rest. */
static void partly_unmapped(void) {
  enum { HALF = 1 << 16 };
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  for (int adopted = 0; adopted < 2; adopted++) {
    unsigned char *memory;
    if (adopted) {
      memory = memory_of(2 * HALF, RWX);
      CHECK_OK(jitsym_region_adopt(session, memory, 2 * HALF));
    } else {
      memory = test_region(session, 2 * HALF, JITSYM_REGION_ONE_VIEW).write;
      CHECK(mprotect(memory, 2 * HALF, RWX) == 0);
    }
    jitsym_id id = announce(session, memory, "in the part that goes");
    put_code(memory + HALF, 260);
    announce_bytes(session, memory + HALF, memory, "in the part that stays");
    CHECK_OK(jitsym_unregister(session, id));
    /* That this part is there still says nothing of the other one. */
    announce_bytes(session, memory + HALF + 32, memory, "in between");
    map_anew(memory, HALF);
    put_code(memory, 261);
    announce(session, memory, "in other memory");
    announce_bytes(session, memory + HALF + 64, memory, "in what is left");
    CHECK_OK(test_flush(session));
    CHECK(!in_file(session, "in other memory", 16) && in_file(session, "in what is left", 16));
    check_in_map(session, memory, "in other memory");
    /* It may become a region too. */
    if (adopted) {
      CHECK_OK(jitsym_region_adopt(session, memory, HALF));
      CHECK_OK(test_flush(session));
      CHECK(in_file(session, "in other memory", 16));
      CHECK_OK(jitsym_region_release(session, memory));
    }
    CHECK_OK(jitsym_region_release(session, memory));
    CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, memory));
    CHECK(run_code(memory) == 261);
    CHECK(!adopted || run_code(memory + HALF) == 260);
  }
  CHECK_OK(jitsym_close(session));
}

/* However many holes the program makes, what is left is the region. */
static void many_holes(void) {
  enum { HOLES = 40 };
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  unsigned char *memory = memory_of(2 * HOLES * PAGE, RWX);
  CHECK_OK(jitsym_region_adopt(session, memory, 2 * HOLES * PAGE));
  for (int i = 0; i < HOLES; i++) {
    unsigned char *goes = memory + (2 * i + 1) * PAGE, *stays = goes - PAGE;
    announce_bytes(session, goes, memory, "in a page that goes");
    CHECK_OK(jitsym_unregister_range(session, (uintptr_t)goes, PAGE, 0));
    CHECK(munmap(goes, PAGE) == 0);
    char name[32];
    snprintf(name, sizeof name, "beside %d holes", i + 1);
    announce_bytes(session, stays, memory, name);
    CHECK_OK(test_flush(session));
    CHECK(in_file(session, name, strlen(name)));
  }
  /* The holes are none of the region's. */
  unsigned char *other = memory + (2 * HOLES - 1) * PAGE;
  map_anew(other, PAGE);
  announce_bytes(session, other, memory, "in a hole");
  CHECK_OK(test_flush(session));
  check_in_map(session, other, "in a hole");
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 1 && stats.region_code >= HOLES);
  CHECK_OK(jitsym_close(session));
}

/* A program may map one module after the other for ever. */
static void little_is_left(void) {
  enum { TIMES = 300 };
  jitsym *session = open_regions();
  size_t before = 0;
  for (int i = 0; i < 2 * TIMES; i++) {
    if (i == TIMES) {
      before = mallinfo2().uordblks;
    }
    unsigned char *memory = memory_of(SIZE, RWX);
    CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
    announce(session, memory, "one of many");
    CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, SIZE, 0));
    CHECK_OK(jitsym_region_release(session, memory));
    CHECK(munmap(memory, SIZE) == 0);
  }
  size_t left = (mallinfo2().uordblks - before) / TIMES;
  if (left > 1500) {
    fprintf(stderr, "%zu bytes for each\n", left);
    _exit(1);
  }
  CHECK_OK(jitsym_close(session));
}

/* How often this thread has read from a file. */
static unsigned long reads(void) {
  size_t size;
  char *text = (char *)file_read("/proc/thread-self/io", &size), *found = strstr(text, "syscr: ");
  CHECK(found != NULL);
  unsigned long count = strtoul(found + 7, NULL, 10);
  free(text);
  return count;
}

/* Where nothing can be adopted now, registrations do not look what is mapped each time. */
static void not_adopted(void) {
  enum { TIMES = 5000, ALL = 768 };
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, JITSYM_INIT_ADOPT);
  unsigned char *memory = memory_of(SIZE, PROT_READ | PROT_WRITE);
  /* Memory that is being written to; that nobody has; part of it, and what lies behind. */
  unsigned char *places[] = {memory + 100, (unsigned char *)0x10000, memory + SIZE / 2 - 2};
  CHECK(mprotect(memory + SIZE / 2, SIZE / 2, PROT_READ | PROT_EXEC) == 0);
  for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
    uint64_t begin = test_now();
    unsigned long before = reads();
    announce_bytes(session, places[place], memory, "not adopted");
    unsigned long one = reads() - before;
    for (int i = 0; i < TIMES; i++) {
      announce_bytes(session, places[place], memory, "not adopted");
    }
    /* One look in 5 ms. */
    uint64_t looks = (test_now() - begin) / 5000000 + 2;
    CHECK(reads() - before <= 2 * one * looks && test_stats(session).regions == 0);
  }
  usleep(20000);
  CHECK(mprotect(memory, SIZE, PROT_READ | PROT_EXEC) == 0);
  announce(session, memory, "adopted now");
  CHECK(test_stats(session).regions == 1 && in_file(session, "adopted now", 11));
  /* What has waited for a second is counted, now or later. */
  uint64_t refused = test_stats(session).region_refused;

  /* There are as many as there may be. */
  unsigned char *other = memory_of(SIZE, RWX);
  for (int i = 1; i < ALL; i++) {
    test_region(session, PAGE, 0);
  }
  unsigned long before = reads();
  announce_bytes(session, other, memory, "one too many");
  unsigned long one = reads() - before, two = reads();
  two = reads() - two;
  before = reads();
  for (int i = 0; i < TIMES; i++) {
    announce_bytes(session, other, memory, "one too many");
  }
  CHECK(reads() - before <= two + one && test_stats(session).regions == ALL);
  /* It is counted, with the reason. */
  char error[1024];
  CHECK_OK(jitsym_last_error(session, error, sizeof error));
  uint64_t more = test_stats(session).region_refused - refused;
  CHECK(more >= 1 && more <= 2 && strstr(error, "768 regions") != NULL);
  CHECK_OK(jitsym_close(session));
}

/* A session that is closed while memory is adopted: the memory is what it was. */
struct adopted {
  jitsym *session;
  unsigned char *memory;
  size_t size;
  jitsym_status status;
};

static void *adopt_it(void *argument) {
  struct adopted *it = argument;
  it->status = jitsym_region_adopt(it->session, it->memory, it->size);
  return NULL;
}

static void closed_meanwhile(void) {
  enum { MUCH = 32 << 20 };
  struct adopted it = {NULL, memory_of(MUCH, RWX), MUCH, JITSYM_OK};
  memset(it.memory, 0xc3, MUCH);
  for (int round = 0; round < 100 && it.status != JITSYM_ERR_CLOSED; round++) {
    it.session = open_regions();
    int files = test_files_in(test_dir);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, adopt_it, &it) == 0);
    while (test_files_in(test_dir) == files) {
    }
    CHECK_OK(jitsym_close(it.session));
    CHECK(pthread_join(thread, NULL) == 0);
    if (it.status == JITSYM_OK) {
      it.session = open_regions();
      CHECK_OK(jitsym_region_release(it.session, it.memory));
      CHECK_OK(jitsym_close(it.session));
    }
  }
  CHECK(it.status == JITSYM_ERR_CLOSED);
  size_t size;
  char *maps = (char *)file_read("/proc/self/maps", &size);
  CHECK(memmem(maps, size, "/jit-", 5) == NULL);
  free(maps);
  for (size_t i = 0; i < MUCH; i++) {
    CHECK(it.memory[i] == 0xc3);
  }
}

/* As `partly_unmapped`, where code has been overwritten, could not be registered or moved, or there never was any. */
static void nothing_lives_there(void) {
  enum { HALF = 1 << 16 };
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  for (int ended = 0; ended < 6; ended++) {
    unsigned char *memory = memory_of(2 * HALF, RWX);
    CHECK_OK(jitsym_region_adopt(session, memory, 2 * HALF));
    if (ended == 5) {
      /* Nothing was registered in it at all. */
      map_anew(memory, 2 * HALF);
      CHECK_OK(jitsym_region_adopt(session, memory, 2 * HALF));
      CHECK_OK(jitsym_region_release(session, memory));
      break;
    }
    jitsym_id stays = announce_bytes(session, memory + HALF, memory, "in the part that stays"), id = 0;
    if (ended == 4) {
      CHECK_OK(jitsym_unregister(session, stays));
    } else {
      id = announce(session, memory, "in the part that goes");
    }
    if (ended == 0) {
      jitsym_line line = {CODE_SIZE, 1, 0, 0, "/src/refused"};
      jitsym_code code = test_code((uintptr_t)memory + 64, CODE_SIZE, "refused");
      code.lines = &line;
      code.line_count = 1;
      CHECK_STATUS(JITSYM_ERR_LINE_OFFSET, jitsym_register(session, &code, NULL));
      CHECK_OK(jitsym_unregister(session, id));
    } else if (ended == 1) {
      id = announce(session, memory, "over it");
      CHECK_OK(test_flush(session));
      CHECK_OK(jitsym_unregister(session, id));
    } else if (ended == 2) {
      CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, HALF, 0));
    } else if (ended == 3) {
      jitsym_move_target target = test_target(UINT64_MAX);
      CHECK_STATUS(JITSYM_ERR_ADDRESS_RANGE, jitsym_move(session, stays, &target));
      CHECK_OK(jitsym_unregister(session, id));
    }
    map_anew(memory, HALF);
    announce(session, memory, "in other memory");
    CHECK_OK(test_flush(session));
    check_in_map(session, memory, "in other memory");
    CHECK_OK(jitsym_region_release(session, memory));
  }
  CHECK_OK(jitsym_close(session));
}

/* Children of a process with a region of which a part is gone: one has a file of its own, and one cannot have it. */
static void forked_in_part(void) {
  enum { HALF = 1 << 16 };
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  unsigned char *memory = memory_of(2 * HALF, RWX);
  put_code(memory + HALF, 0x12345678);
  CHECK_OK(jitsym_region_adopt(session, memory, 2 * HALF));
  announce(session, memory + HALF, "of the parent");
  CHECK_OK(test_flush(session));
  CHECK(munmap(memory, HALF) == 0);
  for (int limited = 0; limited < 2; limited++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      struct rlimit limit = {PAGE, RLIM_INFINITY};
      CHECK(!limited || setrlimit(RLIMIT_FSIZE, &limit) == 0);
      unsigned char *at = memory + HALF + 4 * PAGE;
      put_code(at, 216);
      announce(session, at, "of the child");
      CHECK_OK(test_flush(session));
      CHECK(is_of_file(at, ".so") == !limited && run_code(memory + HALF) == 0x12345678 && run_code(at) == 216);
      if (limited) {
        check_in_map(session, at, "of the child");
        check_in_map(session, memory + HALF, "of the parent");
        CHECK_OK(jitsym_region_discard(session, memory + HALF, PAGE));
        CHECK(memory[HALF] == 0);
      } else {
        CHECK(in_file(session, "of the child", 12) == 1 && in_file(session, "of the parent", 13) == 1);
      }
      CHECK_OK(jitsym_region_release(session, memory));
      CHECK(!is_of_file(at, ".so") && run_code(at) == 216);
      exit(0);
    }
    test_wait_ok(child);
  }
  CHECK(in_file(session, memory + HALF, CODE_SIZE) == 1);
  CHECK_OK(jitsym_close(session));
}

/* Code that was registered while the sink did not run is in the file when it runs again. */
static void enabled_again(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  unsigned char *exec = test_region(session, SIZE, 0).exec;
  announce(session, exec, "before");
  CHECK_OK(jitsym_disable(session, JITSYM_SINK_REGION));
  announce_bytes(session, exec + PAGE, exec, "in between");
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_REGION));
  announce_bytes(session, exec + 2 * PAGE, exec, "behind");
  CHECK_OK(test_flush(session));
  CHECK(in_file(session, "before", 7) && in_file(session, "in between", 11) && in_file(session, "behind", 7));
  CHECK(test_stats(session).live == 3);
  CHECK_OK(jitsym_close(session));
}

/* A sandbox that knows nothing of fallocate. */
static void sandboxed(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  jitsym *session = open_regions();
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  for (uint32_t flags = 0; flags < 2; flags++) {
    unsigned char *write = test_region(session, SIZE, flags).write;
    memset(write, 0xc3, SIZE);
  }
  CHECK_OK(jitsym_close(session));
}

/* Regions that come and go leave nothing behind in the address space. */
static void address_space(void) {
  enum { GIB = 1 << 30 };
  jitsym *session = open_regions();
  for (int i = 0; i < 100; i++) {
    jitsym_region_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.size = SIZE;
    options.max_size = GIB - i * SIZE;
    options.flags = i % 2 ? JITSYM_REGION_ONE_VIEW : 0;
    jitsym_region region;
    memset(&region, 0, sizeof region);
    region.struct_size = sizeof region;
    CHECK_OK(jitsym_region_create(session, &options, &region));
    announce_bytes(session, region.exec, region.write, "short-lived");
    CHECK_OK(jitsym_region_release(session, region.exec));
    if (i == 10) {
      struct rlimit limit;
      size_t size;
      char *text = (char *)file_read("/proc/self/statm", &size);
      limit.rlim_cur = limit.rlim_max = (rlim_t)strtoul(text, NULL, 10) * PAGE + 4 * (rlim_t)GIB;
      free(text);
      CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    }
  }
  CHECK_OK(jitsym_close(session));
}

/* What a forked child copies of a region is what there is in it, not what there is room for. */
static void forks_cost_little(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, 256 << 20, 0);
  put_code((unsigned char *)region.write + (100 << 20), 270);
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      CHECK(run_code((unsigned char *)region.exec + (100 << 20)) == 270);
      int found = 0;
      for (int number = 3; number < 100; number++) {
        char link[64], path[TEST_PATH_MAX] = "";
        struct stat stat;
        snprintf(link, sizeof link, "/proc/self/fd/%d", number);
        if (readlink(link, path, sizeof path - 1) > 0 && (strstr(path, ".f") != NULL || strstr(path, "memfd:jitsym") != NULL)) {
          /* What the system has read ahead counts as there: on some machines that is 8 MiB at a time. */
          CHECK(fstat(number, &stat) == 0 && stat.st_blocks < (128 << 20) / 512);
          found++;
        }
      }
      CHECK(found == 1);
      _exit(0);
    }
    test_wait_ok(child);
  }
  CHECK_OK(jitsym_close(session));
}

static int has_file_of(const char *path_of_parent, pid_t child) {
  char path[TEST_PATH_MAX];
  snprintf(path, sizeof path, "%.*s/jit-%d-0.f%d.so", (int)(strrchr(path_of_parent, '/') - path_of_parent), path_of_parent,
           (int)child, (int)getpid());
  return access(path, F_OK) == 0;
}

static void run_true(const char *path_of_parent) {
  int has_gone = 0;
  /* On a busy machine a child may execute the program late. Then it has run for a while itself, and another one is tried. */
  for (unsigned turn = 0; !has_gone; turn++) {
    CHECK(turn < 20);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      execlp("true", "true", (char *)NULL);
      _exit(1);
    }
    test_wait_ok(child);
    for (unsigned wait = 0; !has_gone && wait < 5000; wait++) {
      usleep(1000);
      has_gone = !has_file_of(path_of_parent, child);
    }
  }
}

/* The file of a child that has run for a while stays, because a profile needs it. That of one that executes another program goes. */
static void files_of_children(void) {
  jitsym *session = open_regions();
  test_region(session, 1 << 16, 0);
  struct test_path path;
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path.text, sizeof path.text));
  int ends[2];
  CHECK(pipe(ends) == 0);
  pid_t worker = fork();
  CHECK(worker >= 0);
  if (worker == 0) {
    await_close(ends);
    _exit(0);
  }
  while (!has_file_of(path.text, worker)) {
    usleep(1000);
  }
  usleep(100000);
  /* The writer may come to the worker's file after that of the first one. */
  run_true(path.text);
  run_true(path.text);
  CHECK(close(ends[1]) == 0);
  test_wait_ok(worker);
  run_true(path.text);
  CHECK(has_file_of(path.text, worker));
  CHECK_OK(jitsym_close(session));
}

/* Code of a region that has gone is retired by code that comes to lie there later, as everywhere. */
static void overwritten_later(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  unsigned char *memory = memory_of(SIZE, RWX);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  jitsym_id id = announce(session, memory, "in the region");
  CHECK_OK(jitsym_region_release(session, memory));
  announce(session, memory, "where it was");
  jitsym_stats stats = test_stats(session);
  CHECK(stats.live == 1 && stats.overwritten == 1);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, id));
  CHECK_OK(jitsym_close(session));
}

/* A process that had this one's id has left files that are called like the next generations. */
static void left_over(void) {
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, 1 << 16, 0);
  struct test_path first, now;
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, first.text, sizeof first.text));
  *strrchr(first.text, '.') = 0;
  for (int generation = 1; generation <= 2; generation++) {
    snprintf(now.text, sizeof now.text, "%.200s.%d.so", first.text, generation);
    close(open(now.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  }
  for (uint32_t i = 0; i < 2; i++) {
    put_code(region.write, 0x23456000 + i);
    jitsym_id id = announce(session, region.exec, i == 0 ? "before" : "behind");
    if (i == 0) {
      CHECK_OK(jitsym_unregister(session, id));
    }
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_generations == 1 && stats.region_late == 0);
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, now.text, sizeof now.text));
  CHECK(strlen(now.text) == strlen(first.text) + 5 && strcmp(now.text + strlen(first.text), ".3.so") == 0);
  CHECK_OK(jitsym_close(session));
  struct stat stat;
  snprintf(now.text, sizeof now.text, "%.200s.1.so", first.text);
  CHECK(lstat(now.text, &stat) == 0 && stat.st_size == 0);
}

static size_t count_in(const char *path, const char *text) {
  struct stat stat;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  CHECK(file >= 0 && fstat(file, &stat) == 0);
  char *content = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  CHECK(content != MAP_FAILED && close(file) == 0);
  size_t count = 0;
  for (const char *at = content; (at = memmem(at, (size_t)(content + stat.st_size - at), text, strlen(text))); at++) {
    count++;
  }
  munmap(content, (size_t)stat.st_size);
  return count;
}

/* However often code has been replaced, the file of a generation says little of what is gone. */
static void copies_are_small(void) {
  enum { LIVE = 64, REPLACED = 2000, EACH = 100 };
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, 1 << 16, 0);
  unsigned char *write = region.write;
  unsigned char *exec = region.exec;
  for (uint32_t i = 0; i < LIVE; i++) {
    put_code(write + i * CODE_SIZE, i);
    announce(session, exec + i * CODE_SIZE, "lives on");
  }
  static struct test_path paths[REPLACED / EACH];
  jitsym_id id = 0;
  for (uint32_t i = 0; i < REPLACED; i++) {
    if (i > 0) {
      CHECK_OK(jitsym_unregister(session, id));
    }
    put_code(write + LIVE * CODE_SIZE, i);
    id = announce(session, exec + LIVE * CODE_SIZE, "is replaced");
    CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, paths[i / EACH].text, sizeof paths[0].text));
    if (i % EACH == EACH - 1) {
      CHECK_OK(test_flush(session));
    }
  }
  /* The last path is that of the file itself, and others may be. */
  struct stat own, stat;
  CHECK(lstat(paths[REPLACED / EACH - 1].text, &own) == 0);
  unsigned copies = 0;
  for (unsigned i = 0; i < REPLACED / EACH; i++) {
    if (lstat(paths[i].text, &stat) == 0 && stat.st_ino != own.st_ino) {
      CHECK(count_in(paths[i].text, "lives on") == LIVE);
      size_t replaced = count_in(paths[i].text, "is replaced");
      CHECK(replaced > 0 && replaced < 1000);
      copies++;
    }
  }
  CHECK(copies > 0);
  CHECK_OK(jitsym_close(session));
}

/* Nor do the unwind tables of what is gone leave no room for others, where the host changes the protection. */
static void tables_have_room(void) {
  enum { LIVE = 900, REPLACED = 4000, EACH = 100 };
  jitsym *session = open_regions();
  unsigned char *memory = test_region(session, 1 << 16, JITSYM_REGION_ONE_VIEW).write;
  static jitsym_id ids[LIVE];
  for (uint32_t i = 0; i < REPLACED; i++) {
    unsigned char *at = memory + (i % LIVE) * 64;
    if (i >= LIVE) {
      CHECK_OK(jitsym_unregister(session, ids[i % LIVE]));
    }
    CHECK(mprotect(memory, 1 << 16, PROT_READ | PROT_WRITE) == 0);
    put_code(at, i);
    CHECK(mprotect(memory, 1 << 16, PROT_READ | PROT_EXEC) == 0);
    ids[i % LIVE] = announce_whole(session, at, at, "is replaced");
    if (i % EACH == 0) {
      CHECK_OK(test_flush(session));
      CHECK(test_stats(session).region_left_out == 0);
    }
  }
  CHECK_OK(jitsym_close(session));
}

/* However fast code is replaced, the files of all epochs of the last minute stay, and have a bound. */
static void files_of_the_last_minute(void) {
  enum { LIVE = 5000, REPLACED = 160, MIB = 1 << 20 };
  static struct test_path paths[REPLACED];
  static uint64_t times[REPLACED];
  static char name[900];
  jitsym *session = open_regions();
  jitsym_region region = test_region(session, 1 << 17, 0);
  unsigned char *exec = region.exec;
  memset(name, 'n', sizeof name - 1);
  for (uint32_t i = 0; i < LIVE; i++) {
    memcpy(name, &(char[]){(char)('a' + i / 26 / 26 % 26), (char)('a' + i / 26 % 26), (char)('a' + i % 26)}, 3);
    announce_bytes(session, exec + i * 16, region.write, name);
  }
  CHECK_OK(test_flush(session));
  jitsym_id id = 0;
  for (int i = 0; i < REPLACED; i++) {
    if (i > 0) {
      CHECK_OK(jitsym_unregister(session, id));
    }
    id = announce_bytes(session, exec + LIVE * 16, region.write, "is replaced");
    CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, paths[i].text, sizeof paths[i].text));
    times[i] = test_now();
  }
  CHECK_OK(test_flush(session));
  uint64_t bytes = 0, last = 0, now = test_now(), copies = 0;
  for (int i = 0; i < REPLACED; i++) {
    struct stat stat;
    int is_there = lstat(paths[i].text, &stat) == 0;
    CHECK(is_there || now - times[i] > UINT64_C(60000000000));
    if (is_there && stat.st_ino != last) {
      last = stat.st_ino;
      bytes += (uint64_t)stat.st_blocks * 512;
      copies++;
    }
  }
  /* The last file is the region's own. */
  CHECK(copies > 20 && bytes > 128 * MIB && bytes < 512 * MIB);
  CHECK_OK(jitsym_close(session));
  for (int i = 0; i < REPLACED; i++) {
    unlink(paths[i].text);
  }
}

int main(int argc, char **argv) {
  static void (*const parts[])(void) = {
      files_of_the_last_minute,
      tables_have_room,
      copies_are_small,
      bytes_are_the_hosts,
      bytes_are_the_childs,
      forks_while_adopted,
      limited_forks,
      known_before,
      bytes_are_in_the_file,
      descriptors,
      no_descriptors,
      closed_descriptors,
      overwritten_later,
      released_files,
      partly_unmapped,
      many_holes,
      closed_meanwhile,
      little_is_left,
      not_adopted,
      nothing_lives_there,
      forked_in_part,
      forks_cost_little,
      files_of_children,
      address_space,
      enabled_again,
      sandboxed,
      left_over,
  };

  test_begin(argc, argv);
  if (argc >= 3 && strcmp(argv[2], "full") == 0) {
    test_child(full_disk);
    char path[TEST_PATH_MAX];
    snprintf(path, sizeof path, "rm '%s'/*", test_dir);
    CHECK(system(path) == 0);
    test_child(full_disk_and_back);
    return test_end();
  }
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    test_child(parts[i]);
  }
  return test_end();
}
