/*
 * Code regions as the program that has them sees them: what each call refuses and by which status, what memory they are, and that
 * memory which was adopted is what it was before. What profilers see there is held against the truth in tests/regions.rs.
 *
 * Usage: region_calls DIR [PART]: `no-file` for a directory where files cannot be had, `leave-one` for an end in the middle.
 * x86-64 only.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "failing_disk.h"
#include "jitsym_control.h"
#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

enum { RX = PROT_READ | PROT_EXEC };

static void check_protection(const void *address, const char *protection) {
  struct mapping found = mapping_at(address);
  if (strcmp(found.flags, protection) != 0) {
    fprintf(stderr, "%p is %s (%s), expected %s\n", address, found.flags, found.path, protection);
  }
  CHECK(strcmp(found.flags, protection) == 0);
}

/* Whether the file of a region is mapped there. */
static int is_in_file(const void *address) {
  const char *path = mapping_at(address).path, *name = strrchr(path, '/');
  size_t size = strlen(path);
  return name != NULL && strncmp(name, "/jit", 4) == 0 && size > 3 && strcmp(path + size - 3, ".so") == 0;
}

static void fill(unsigned char *memory, size_t size) {
  for (size_t i = 0; i < size; i++) {
    memory[i] = (unsigned char)(i / PAGE * 31 + i * 7);
  }
}

/* How many bytes are not those of `fill`. */
static size_t changed(const unsigned char *memory, size_t size) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) {
    count += memory[i] != (unsigned char)(i / PAGE * 31 + i * 7);
  }
  return count;
}

static jitsym_region_options wanted(uint64_t size) {
  jitsym_region_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.size = size;
  return options;
}

static jitsym_region create(jitsym *session, const jitsym_region_options *options) {
  jitsym_region region;
  memset(&region, 0, sizeof region);
  region.struct_size = sizeof region;
  CHECK_OK(jitsym_region_create(session, options, &region));
  return region;
}

/* ------------------------------------------------------------------------------------------------ refusals */

static void create_refuses(void) {
  jitsym *session = open_regions();
  jitsym_region_options good = wanted(SIZE), bad;
  jitsym_region region, untouched;
  memset(&region, 0, sizeof region);
  region.struct_size = sizeof region;
  region.exec = &bad;
  untouched = region;

  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_create(NULL, &good, &region));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_region_create(session, NULL, &region));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_region_create(session, &good, NULL));
#define REFUSED(status, field, value)                                             \
  do {                                                                            \
    bad = good;                                                                   \
    bad.field = (value);                                                          \
    CHECK_STATUS(status, jitsym_region_create(session, &bad, &region));           \
  } while (0)
  REFUSED(JITSYM_ERR_STRUCT_SIZE, struct_size, 0);
  REFUSED(JITSYM_ERR_STRUCT_SIZE, struct_size, sizeof good - 8);
  REFUSED(JITSYM_ERR_STRUCT_TAIL, struct_size, 5000);
  REFUSED(JITSYM_ERR_FLAGS, flags, 4);
  REFUSED(JITSYM_ERR_FLAGS, flags, 1u << 31);
  REFUSED(JITSYM_ERR_FLAGS, reserved, 1);
  REFUSED(JITSYM_ERR_SIZE_ZERO, size, 0);
  REFUSED(JITSYM_ERR_TOO_LARGE, size, (UINT64_C(1) << 30) + 1);
  REFUSED(JITSYM_ERR_TOO_LARGE, size, UINT64_MAX);
  REFUSED(JITSYM_ERR_TOO_LARGE, max_size, UINT64_MAX);
  REFUSED(JITSYM_ERR_TOO_LARGE, alignment, UINT64_C(1) << 30);
  REFUSED(JITSYM_ERR_ALIGNMENT, alignment, 3);
  REFUSED(JITSYM_ERR_ALIGNMENT, alignment, 3 * PAGE);
#undef REFUSED

  struct {
    jitsym_region_options known;
    uint64_t unknown;
  } longer = {good, 1};
  longer.known.struct_size = sizeof longer;
  CHECK_STATUS(JITSYM_ERR_STRUCT_TAIL, jitsym_region_create(session, &longer.known, &region));
  region.struct_size = 8;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_region_create(session, &good, &region));
  region.struct_size = sizeof region;
  CHECK(memcmp(&region, &untouched, sizeof region) == 0);
  CHECK(test_stats(session).regions == 0);

  longer.unknown = 0;
  CHECK_OK(jitsym_region_create(session, &longer.known, &region));
  CHECK(test_stats(session).regions == 1);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_create(session, &good, &region));
}

static void adopt_refuses(void) {
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  fill(memory, SIZE);

  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_adopt(NULL, memory, SIZE));
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_region_adopt(session, memory, 0));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_adopt(session, memory + 1, PAGE));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_adopt(session, memory, PAGE + 1));
  CHECK_STATUS(JITSYM_ERR_ADDRESS_RANGE, jitsym_region_adopt(session, NULL, PAGE));
  CHECK_STATUS(JITSYM_ERR_ADDRESS_RANGE, jitsym_region_adopt(session, memory, UINT64_MAX - PAGE + 1));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_adopt(session, memory, (UINT64_C(1) << 30) + PAGE));

  /* A hole in it, or behind it. */
  unsigned char *holes = memory_of(4 * PAGE, RWX);
  CHECK(munmap(holes + PAGE, PAGE) == 0);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, holes, 4 * PAGE));
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, holes, 2 * PAGE));
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, holes + PAGE, PAGE));
  CHECK(!is_in_file(holes));

  void *shared = mmap(NULL, PAGE, RWX, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, shared, PAGE));
  uintptr_t text = (uintptr_t)adopt_refuses & ~(uintptr_t)(PAGE - 1);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, (void *)text, PAGE));
  uintptr_t stack = (uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)(PAGE - 1);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, (void *)stack, PAGE));

  /* By the system call: AddressSanitizer makes nothing of mlock. */
  CHECK(syscall(SYS_mlock, memory, (size_t)PAGE) == 0);
  CHECK_STATUS(JITSYM_ERR_LOCKED, jitsym_region_adopt(session, memory, SIZE));
  CHECK(syscall(SYS_munlock, memory, (size_t)PAGE) == 0);
  CHECK(!is_in_file(memory) && changed(memory, SIZE) == 0);
  CHECK(test_stats(session).regions == 0);

  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, memory, SIZE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, memory + PAGE, PAGE));
  jitsym_region_options options = wanted(SIZE);
  jitsym_region created = create(session, &options);
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, created.exec, SIZE));
  CHECK(test_stats(session).regions == 2);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_adopt(session, memory, SIZE));

  session = test_open_flags(JITSYM_SINK_MAP, 0);
  unsigned char *other = memory_of(SIZE, RWX);
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_region_adopt(session, other, SIZE));
  CHECK(!is_in_file(other));
  CHECK_OK(jitsym_close(session));
}

static void others_refuse(void) {
  jitsym *session = open_regions();
  jitsym_region_options options = wanted(SIZE);
  options.max_size = 2 * SIZE;
  jitsym_region region = create(session, &options);
  unsigned char *exec = region.exec, *plain = memory_of(SIZE, RWX);
  options.flags = JITSYM_REGION_ONE_VIEW;
  jitsym_region one = create(session, &options);

  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_grow(NULL, exec, SIZE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, plain, 2 * SIZE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, exec + PAGE, 2 * SIZE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, NULL, 2 * SIZE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, one.exec, 2 * SIZE));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_grow(session, exec, 2 * SIZE + 1));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_grow(session, exec, UINT64_MAX));
  CHECK_OK(jitsym_region_grow(session, exec, PAGE));

  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_discard(NULL, exec, PAGE));
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_region_discard(session, exec, 0));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_discard(session, exec + 1, PAGE));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_discard(session, exec, PAGE + 1));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, plain, PAGE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, exec, SIZE + PAGE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, exec + SIZE, PAGE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, exec, UINT64_MAX - PAGE + 1));

  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_release(NULL, exec));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, plain));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, exec + PAGE));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, NULL));
  CHECK_OK(jitsym_region_release(session, exec));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, exec));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, exec, 2 * SIZE));
  CHECK(test_stats(session).regions == 1);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_grow(session, one.exec, SIZE));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_discard(session, one.exec, PAGE));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_release(session, one.exec));
}

/* ------------------------------------------------------------------------------------------------ created regions */

static void two_views(void) {
  jitsym *session = open_regions();
  jitsym_region_options options = wanted(SIZE - 100);
  options.max_size = 3 * SIZE;
  jitsym_region region = create(session, &options);
  unsigned char *exec = region.exec, *write = region.write;
  CHECK(region.size == SIZE && exec != write && (uintptr_t)exec % PAGE == 0);
  check_protection(exec, "r-xs");
  check_protection(exec + SIZE - 1, "r-xs");
  check_protection(write, "rw-s");
  CHECK(is_in_file(exec));
  for (size_t i = 0; i < SIZE; i++) {
    CHECK(exec[i] == 0 && write[i] == 0);
  }
  put_code(write, 17);
  put_code(write + SIZE - CODE_SIZE, 18);
  jitsym_id first = announce(session, exec, "first");
  announce(session, exec + SIZE - CODE_SIZE, "last");
  CHECK(run_code(exec) == 17 && run_code(exec + SIZE - CODE_SIZE) == 18);
  CHECK(test_stats(session).region_code == 2);

  char path[TEST_PATH_MAX];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  CHECK(strcmp(path, mapping_at(exec).path) == 0);

  CHECK_OK(jitsym_region_grow(session, exec, 2 * SIZE + 1));
  CHECK(run_code(exec) == 17 && run_code(exec + SIZE - CODE_SIZE) == 18);
  put_code(write + 2 * SIZE, 19);
  announce(session, exec + 2 * SIZE, "behind");
  CHECK(run_code(exec + 2 * SIZE) == 19);
  check_protection(exec + 2 * SIZE, "r-xs");
  check_protection(write + 2 * SIZE, "rw-s");
  CHECK_OK(jitsym_region_grow(session, exec, 3 * SIZE));
  CHECK(write[3 * SIZE - 1] == 0 && run_code(exec + 2 * SIZE) == 19);

  CHECK_OK(jitsym_unregister(session, first));
  CHECK_OK(jitsym_region_discard(session, exec, PAGE));
  CHECK(exec[0] == 0 && write[5] == 0 && run_code(exec + SIZE - CODE_SIZE) == 18);
  put_code(write, 20);
  announce(session, exec, "another");
  CHECK(run_code(exec) == 20);

  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_code == 4 && stats.regions == 1 && stats.region_refused == 0 && stats.write_errors == 0);
  CHECK(stats.region_bytes > 0);
  CHECK_OK(jitsym_region_release(session, exec));
  CHECK(mapping_at(exec).end == 0 && mapping_at(write).end == 0 && mapping_at(exec + 3 * SIZE - 1).end == 0);
  CHECK(file_exists(path) && test_stats(session).regions == 0);
  CHECK_OK(jitsym_close(session));
  CHECK(file_exists(path));
}

static void one_view(void) {
  jitsym *session = open_regions();
  jitsym_region_options options = wanted(SIZE);
  options.flags = JITSYM_REGION_ONE_VIEW;
  jitsym_region region = create(session, &options);
  unsigned char *exec = region.exec;
  CHECK(region.write == exec && region.size == SIZE);
  check_protection(exec, "rw-p");
  put_code(exec + 100, 21);
  CHECK(mprotect(exec, SIZE, RX) == 0);
  announce(session, exec + 100, "in one view");
  CHECK(run_code(exec + 100) == 21);
  CHECK(mprotect(exec, PAGE, PROT_READ | PROT_WRITE) == 0);
  put_code(exec + 200, 22);
  CHECK(mprotect(exec, PAGE, RX) == 0);
  announce(session, exec + 200, "in one view, later");
  CHECK(run_code(exec + 100) == 21 && run_code(exec + 200) == 22);
  CHECK_OK(jitsym_region_discard(session, exec, PAGE));
  check_protection(exec, "r-xp");
  CHECK(exec[100] == 0 && exec[200] == 0);
  CHECK_OK(jitsym_region_release(session, exec));
  CHECK(mapping_at(exec).end == 0);
  CHECK_OK(jitsym_close(session));
}

static void places(void) {
  jitsym *session = open_regions();
  jitsym_region_options options = wanted(SIZE);
  options.near_addr = (uintptr_t)places;
  unsigned char *exec = create(session, &options).exec;
  int64_t reach = INT32_MAX, first = exec - (unsigned char *)(uintptr_t)places, last = first + SIZE;
  CHECK(first > -reach && last < reach);

  options = wanted(PAGE);
  options.alignment = 1 << 20;
  CHECK((uintptr_t)create(session, &options).exec % (1 << 20) == 0);
  options.alignment = 16;
  CHECK((uintptr_t)create(session, &options).exec % PAGE == 0);

  options = wanted(4 << 20);
  options.flags = JITSYM_REGION_HUGE_PAGES;
  jitsym_region huge = create(session, &options);
  CHECK((uintptr_t)huge.exec % (2 << 20) == 0);
  memset(huge.write, 0xc3, 4 << 20);
  CHECK(*((unsigned char *)huge.exec + (4 << 20) - 1) == 0xc3);
  CHECK(test_stats(session).regions == 4);
  CHECK_OK(jitsym_close(session));
}

/* There is a bound, and what is released makes room. */
static void many_regions(void) {
  enum { MANY = 1000 };

  static void *regions[MANY];
  jitsym *session = open_regions();
  jitsym_region_options options = wanted(PAGE);
  for (int round = 0; round < 2; round++) {
    int count = 0;
    for (; count < MANY; count++) {
      jitsym_region region;
      region.struct_size = sizeof region;
      jitsym_status status = jitsym_region_create(session, &options, &region);
      if (status != JITSYM_OK) {
        CHECK_STATUS(JITSYM_ERR_NO_MEMORY, status);
        break;
      }
      regions[count] = region.exec;
      put_code(region.write, (uint32_t)count);
      announce(session, region.exec, "one of many");
    }
    CHECK(count == 768);
    for (int i = 0; i < count; i++) {
      CHECK(run_code(regions[i]) == (uint32_t)i);
      CHECK_OK(jitsym_unregister_range(session, (uintptr_t)regions[i], PAGE, 0));
      CHECK_OK(jitsym_region_release(session, regions[i]));
    }
    CHECK(test_stats(session).regions == 0);
  }
  CHECK_OK(jitsym_close(session));
}

/* Code that moves out of a region, and whether it has a gap at its new place. */
static void gap_at_the_new_place(jitsym *session, const unsigned char *inside, const unsigned char *outside) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  jitsym_code code = test_code((uintptr_t)inside, 64, "with_gap");
  code.bytes = outside;
  code.unwind = &unwind;
  code.flags = JITSYM_CODE_GAP;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  for (uint32_t number = 0; number < 3; number++) {
    jitsym_move_target target = test_target((uintptr_t)outside + 512 * number);
    target.bytes = outside;
    target.flags = number == 1 ? JITSYM_CODE_GAP : 0;
    CHECK_OK(jitsym_move(session, id, &target));
    target.addr = (uintptr_t)inside;
    target.flags = number == 1 ? 0 : JITSYM_CODE_GAP;
    CHECK_OK(jitsym_move(session, id, &target));
  }
  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  for (uint32_t number = 0; number < 3; number++) {
    const struct dump_record *load = dump_load(&dump, "with_gap", number);
    CHECK(load != NULL && load->unwind != NULL && (load->unwind->mapped_size > 0) == (number == 1));
  }
  dump_free(&dump);
  CHECK_OK(jitsym_unregister(session, id));
}

/* Code in a region is in no other file, and code elsewhere is in those alone. */
static void beside_other_sinks(void) {
  jitsym *session =
      test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
  jitsym_region_options options = wanted(SIZE);
  jitsym_region region = create(session, &options);
  unsigned char *outside = memory_of(PAGE, RWX), *adopted = memory_of(SIZE, RWX);
  CHECK_OK(jitsym_region_adopt(session, adopted, SIZE));
  put_code(region.write, 1);
  put_code(outside, 2);
  put_code(adopted, 3);
  announce(session, region.exec, "code_inside");
  announce(session, adopted, "code_in_adopted");
  jitsym_id id = announce(session, outside, "code_outside");
  CHECK(test_stats(session).region_code == 2);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(map_find(&map, (uintptr_t)region.exec) == NULL && map_find(&map, (uintptr_t)adopted) == NULL);
  CHECK(strcmp(map_name(&map, (uintptr_t)outside), "code_outside") == 0);
  map_free(&map);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_load(&dump, "code_outside", 0) != NULL);
  CHECK(dump_load(&dump, "code_inside", 0) == NULL && dump_load(&dump, "code_in_adopted", 0) == NULL);
  dump_free(&dump);

  /* It moves in, and out again. */
  jitsym_move_target target = test_target((uintptr_t)region.exec + 64);
  put_code((unsigned char *)region.write + 64, 2);
  target.bytes = (unsigned char *)region.write + 64;
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK(test_stats(session).region_code == 3);
  target = test_target((uintptr_t)outside + 64);
  put_code(outside + 64, 2);
  target.bytes = outside + 64;
  CHECK_OK(jitsym_move(session, id, &target));
  CHECK_OK(test_flush(session));
  map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, (uintptr_t)outside + 64), "code_outside") == 0);
  map_free(&map);
  gap_at_the_new_place(session, (unsigned char *)region.exec + 1024, outside + 1024);
  CHECK_OK(jitsym_close(session));
}

/* Without the sink a region is memory, and its code is in the other files. */
static void without_sink(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  jitsym_region_options options = wanted(SIZE);
  options.max_size = 2 * SIZE;
  jitsym_region region = create(session, &options);
  unsigned char *exec = region.exec, *write = region.write;
  char path[TEST_PATH_MAX];
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  CHECK(!is_in_file(exec));
  put_code(write, 30);
  announce(session, exec, "in plain memory");
  CHECK(run_code(exec) == 30);
  CHECK_OK(jitsym_region_grow(session, exec, 2 * SIZE));
  put_code(write + SIZE, 31);
  announce(session, exec + SIZE, "in grown plain memory");
  CHECK(run_code(exec) == 30 && run_code(exec + SIZE) == 31);
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, (uintptr_t)exec), "in plain memory") == 0);
  CHECK(strcmp(map_name(&map, (uintptr_t)exec + SIZE), "in grown plain memory") == 0);
  map_free(&map);
  CHECK(test_stats(session).region_code == 0 && test_stats(session).regions == 0);
  CHECK_OK(jitsym_region_discard(session, exec + SIZE, PAGE));
  CHECK(exec[SIZE] == 0);
  CHECK_OK(jitsym_region_release(session, exec));
  CHECK(mapping_at(exec).end == 0);

  /* One view of it. */
  options.flags = JITSYM_REGION_ONE_VIEW;
  exec = create(session, &options).exec;
  put_code(exec, 32);
  CHECK(mprotect(exec, SIZE, RX) == 0 && run_code(exec) == 32);
  CHECK_OK(jitsym_region_release(session, exec));
  CHECK_OK(jitsym_close(session));
}

/* The memory outlives sessions; the next one goes on with it. */
static void sessions_end(void) {
  jitsym *session = open_regions(), *second = open_regions();
  jitsym_region_options options = wanted(SIZE);
  jitsym_region region = create(second, &options);
  unsigned char *exec = region.exec, *write = region.write;
  put_code(write, 40);
  announce(second, exec, "of the second");
  CHECK_OK(jitsym_close(second));
  CHECK(run_code(exec) == 40);
  put_code(write + 16, 41);
  announce(session, exec + 16, "of the first");
  CHECK_OK(jitsym_close(session));
  CHECK(run_code(exec) == 40 && run_code(exec + 16) == 41);
  session = open_regions();
  put_code(write + 32, 42);
  announce(session, exec + 32, "of the third");
  CHECK(run_code(exec + 32) == 42);
  CHECK_OK(jitsym_region_release(session, exec));
  CHECK(mapping_at(exec).end == 0);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ adopted memory */

/* Pages of every protection, which stay what they are, with what is in them. */
static void adopted_is_the_same(void) {
  static const int protections[] = {RWX, RX, PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE, RX};
  static const char *const shown[] = {"rwxp", "r-xp", "r--p", "---p", "rw-p", "r-xp"};
  enum { COUNT = sizeof protections / sizeof *protections };

  jitsym *session = open_regions();
  unsigned char *memory = memory_of(COUNT * PAGE, PROT_READ | PROT_WRITE);
  fill(memory, COUNT * PAGE);
  for (int i = 0; i < COUNT; i++) {
    CHECK(mprotect(memory + i * PAGE, PAGE, protections[i]) == 0);
  }
  CHECK_OK(jitsym_region_adopt(session, memory, COUNT * PAGE));
  for (int i = 0; i < COUNT; i++) {
    check_protection(memory + i * PAGE, shown[i]);
    CHECK(is_in_file(memory + i * PAGE));
  }
  CHECK(mprotect(memory, COUNT * PAGE, PROT_READ | PROT_WRITE) == 0);
  CHECK(changed(memory, COUNT * PAGE) == 0);
  put_code(memory + 3 * PAGE, 50);
  CHECK(mprotect(memory + 3 * PAGE, PAGE, RX) == 0);
  announce(session, memory + 3 * PAGE, "where nothing was allowed");
  CHECK(run_code(memory + 3 * PAGE) == 50);

  put_code(memory, 51);
  CHECK_OK(jitsym_region_release(session, memory));
  for (int i = 0; i < COUNT; i++) {
    check_protection(memory + i * PAGE, i == 3 ? "r-xp" : "rw-p");
    CHECK(!is_in_file(memory + i * PAGE));
  }
  CHECK(run_code(memory + 3 * PAGE) == 50);
  CHECK(changed(memory, PAGE) == CODE_SIZE && changed(memory + PAGE, 0) == 0);
  memory[4 * PAGE] = 1;
  CHECK(memory[4 * PAGE] == 1);
  CHECK_OK(jitsym_close(session));
}

/* What the host does with its memory goes on: writing, protecting, giving pages back, forking. */
static void adopted_is_used(void) {
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  fill(memory, SIZE);
  put_code(memory, 60);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  CHECK(run_code(memory) == 60);
  announce(session, memory, "there before");
  put_code(memory + PAGE, 61);
  jitsym_id id = announce(session, memory + PAGE, "put behind");
  CHECK(run_code(memory + PAGE) == 61);
  /* A patched jump needs no call. */
  put_code(memory + PAGE, 62);
  CHECK(run_code(memory + PAGE) == 62);
  CHECK_OK(test_flush(session));

  /* Pages that are given up read zero, but for breakpoints where code was registered. */
  CHECK(madvise(memory + PAGE, PAGE, MADV_DONTNEED) == 0);
  for (int i = 0; i < PAGE; i++) {
    CHECK(memory[PAGE + i] == (i < CODE_SIZE ? 0xcc : 0));
  }
  CHECK(run_code(memory) == 60);
  CHECK(changed(memory + 2 * PAGE, 0) == 0 && memory[2 * PAGE] == (unsigned char)(2 * 31 + 2 * PAGE * 7));
  put_code(memory + PAGE, 65);
  CHECK_OK(jitsym_unregister(session, id));
  CHECK_OK(jitsym_region_discard(session, memory + PAGE, PAGE));
  for (int i = 0; i < PAGE; i++) {
    CHECK(memory[PAGE + i] == 0);
  }
  check_protection(memory + PAGE, "rwxp");
  CHECK(madvise(memory + PAGE, PAGE, MADV_DONTNEED) == 0 && memory[PAGE] == 0);

  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(run_code(memory) == 60);
    put_code(memory, 63);
    CHECK(run_code(memory) == 63);
    _exit(0);
  }
  test_wait_ok(child);
  CHECK(run_code(memory) == 60);
  CHECK_OK(jitsym_close(session));
  put_code(memory, 64);
  CHECK(run_code(memory) == 64);
}

/*
 * The host gives its memory back, wholly and in part, moves it, and takes memory anew where it was. 0 if somebody else has
 * taken the place before, as the library's thread may.
 */
static int adopted_goes_once(void) {
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  put_code(memory, 70);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  announce(session, memory, "first");
  CHECK(munmap(memory + SIZE / 2, SIZE / 2) == 0);
  CHECK(run_code(memory) == 70);
  put_code(memory + PAGE, 71);
  announce(session, memory + PAGE, "in what is left");
  CHECK(run_code(memory + PAGE) == 71);

  /* Elsewhere it is the file still, and code there is for other sinks. */
  unsigned char *target = memory_of(SIZE, PROT_NONE);
  CHECK(mremap(memory, SIZE / 2, SIZE / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
  if (mmap(memory, SIZE, RWX, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != memory) {
    CHECK(errno == EEXIST);
    CHECK_OK(jitsym_close(session));
    return 0;
  }
  CHECK(run_code(target) == 70 && run_code(target + PAGE) == 71);
  announce(session, target, "moved by the kernel");
  CHECK_OK(test_flush(session));

  /* It is adopted anew. */
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, SIZE, 0));
  CHECK(memory[0] == 0 && !is_in_file(memory));
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  put_code(memory, 72);
  announce(session, memory, "anew");
  CHECK(run_code(memory) == 72 && is_in_file(memory));

  CHECK(munmap(memory, SIZE) == 0);
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, SIZE, 0));
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.write_errors == 0 && stats.sinks_failed == 0);
  CHECK_OK(jitsym_close(session));
  return 1;
}

static void adopted_goes(void) {
  int turns = 0;
  while (!adopted_goes_once()) {
    CHECK(++turns < 20);
  }
}

static struct {
  unsigned char *memory;
  int stop;
  uint32_t wrong;
  uint64_t calls;
} runner;

static void *run_on(void *nothing) {
  while (!__atomic_load_n(&runner.stop, __ATOMIC_RELAXED)) {
    runner.wrong += run_code(runner.memory) != 80;
    runner.wrong += run_code(runner.memory + SIZE - CODE_SIZE) != 81;
    __atomic_fetch_add(&runner.calls, 1, __ATOMIC_RELAXED);
  }
  return nothing;
}

/* Adopted and released again and again, while a thread runs in it. */
static void adopted_while_it_runs(void) {
  jitsym *session = open_regions();
  int rounds = test_light ? 5 : 100;
  runner.memory = memory_of(SIZE, RWX);
  put_code(runner.memory, 80);
  put_code(runner.memory + SIZE - CODE_SIZE, 81);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, run_on, NULL) == 0);
  for (int i = 0; i < rounds; i++) {
    uint64_t calls = __atomic_load_n(&runner.calls, __ATOMIC_RELAXED);
    CHECK_OK(jitsym_region_adopt(session, runner.memory, SIZE));
    CHECK(is_in_file(runner.memory));
    announce(session, runner.memory, "runs on");
    CHECK_OK(jitsym_unregister_range(session, (uintptr_t)runner.memory, SIZE, 0));
    CHECK_OK(jitsym_region_release(session, runner.memory));
    CHECK(!is_in_file(runner.memory));
    TEST_AWAIT(__atomic_load_n(&runner.calls, __ATOMIC_RELAXED) != calls);
  }
  __atomic_store_n(&runner.stop, 1, __ATOMIC_RELAXED);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(runner.wrong == 0);
  CHECK_OK(jitsym_close(session));
}

static int adopts(uint32_t flags, const char *variable) {
  if (variable != NULL) {
    setenv("JITSYM_ADOPT", variable, 1);
  }
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, flags);
  unsigned char *memory = memory_of(SIZE, PROT_READ | PROT_WRITE), *readable = memory_of(PAGE, PROT_READ);
  put_code(memory + 100, 90);
  CHECK(mprotect(memory, SIZE, RX) == 0);
  announce(session, memory + 100, "by itself");
  announce(session, readable, "not executable");
  CHECK(run_code(memory + 100) == 90 && !is_in_file(readable));
  int is_adopted = is_in_file(memory);
  check_protection(memory, "r-xp");
  CHECK_OK(jitsym_close(session));
  unsetenv("JITSYM_ADOPT");
  return is_adopted;
}

static void adopts_by_itself(void) {
  CHECK(adopts(JITSYM_INIT_ADOPT, NULL) && adopts(0, "1") && adopts(JITSYM_INIT_ADOPT, "1"));
  CHECK(!adopts(0, NULL) && !adopts(0, "0") && !adopts(JITSYM_INIT_ADOPT, "0"));
}

/* ------------------------------------------------------------------------------------------------ processes and files */

/* Forks. Afterwards the disk is fast, in the child too. */
static pid_t fork_beside_disk(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  disk.is_slow = 0;
  test_inherits_threads |= child == 0;
  return child;
}

/* A child that uses the session has a region of its own, at the same addresses. The disk may be slow when it is forked. */
static void forks(uint32_t flags, int is_slow) {
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, flags);
  jitsym_region_options options = wanted(SIZE);
  jitsym_region region = create(session, &options);
  unsigned char *exec = region.exec, *write = region.write;
  put_code(write, 100);
  announce(session, exec, "inherited");
  CHECK_OK(test_flush(session));
  if (is_slow) {
    disk_is_slow("/jit-");
    put_code(write + 128, 103);
    announce(session, exec + 128, "written slowly");
    CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush(session, 1));
    disk_begins(1);
  }
  pid_t child = fork_beside_disk();
  if (child == 0) {
    if (flags == 0) {
      CHECK_OK(test_flush(session));
    }
    CHECK(run_code(exec) == 100);
    put_code(write, 101);
    CHECK_OK(jitsym_unregister_range(session, (uintptr_t)exec, PAGE, 0));
    announce(session, exec, "of the child");
    CHECK(run_code(exec) == 101);
    check_protection(exec, "r-xs");
    char number[32];
    snprintf(number, sizeof number, "/jit-%d-", (int)getpid());
    CHECK(strstr(mapping_at(exec).path, number) != NULL);
    CHECK_OK(jitsym_close(session));
    CHECK(run_code(exec) == 101);
    /* Not by exit: LeakSanitizer would miss what the stack of the parent's writer holds on to. */
    _exit(0);
  }
  test_wait_ok(child);
  CHECK(run_code(exec) == 100);
  put_code(write + 64, 102);
  announce(session, exec + 64, "of the parent");
  CHECK(run_code(exec + 64) == 102);
  CHECK_OK(jitsym_close(session));
}

static jitsym *session_of_thread;

static void *flushes(void *has_flushed) {
  CHECK_OK(test_flush(session_of_thread));
  __atomic_store_n((int *)has_flushed, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static int is_elf(const char *path) {
  char magic[4] = {0};
  FILE *file = fopen(path, "r");
  CHECK(file != NULL);
  size_t read = fread(magic, 1, sizeof magic, file);
  return fclose(file) == 0 && read == sizeof magic && memcmp(magic, "\177ELF", sizeof magic) == 0;
}

/* Memory whose protection the host changes, adopted, with code in it that the file knows. */
static unsigned char *adopted_with_code(jitsym *session, int number, const char *name) {
  unsigned char *memory = memory_of(SIZE, RWX);
  put_code(memory, number);
  CHECK(mprotect(memory, SIZE, RX) == 0);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  announce(session, memory, name);
  CHECK_OK(test_flush(session));
  return memory;
}

/* The name of an older generation leads to a whole file after each write that makes it one of its own. */
static void splits_slowly(void) {
  jitsym *session = session_of_thread = test_open_flags(JITSYM_SINK_REGION, 0);
  unsigned char *memory = adopted_with_code(session, 61, "old");
  struct mapping old = mapping_at(memory);
  struct stat before, after;
  CHECK(stat(old.path, &before) == 0);
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, PAGE, 0));
  disk_is_slow("/jit");
  announce(session, memory, "new");
  int has_flushed = 0;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, flushes, &has_flushed) == 0);
  for (unsigned writes = 1; !__atomic_load_n(&has_flushed, __ATOMIC_SEQ_CST); usleep(1000)) {
    if (__atomic_load_n(&disk.begun, __ATOMIC_SEQ_CST) >= writes) {
      CHECK(is_elf(old.path));
      __atomic_store_n(&disk.allowed, writes++, __ATOMIC_SEQ_CST);
    }
  }
  disk.is_slow = 0;
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(is_elf(old.path) && stat(old.path, &after) == 0 && before.st_ino != after.st_ino);
  CHECK_OK(jitsym_close(session));
}

/* A thread that is forked away from while it gives a file another name, which takes as long as it is to. */
static pid_t linking_is_slow;
static int links;

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
  long result = syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
  __atomic_store_n(&links, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&linking_is_slow, __ATOMIC_SEQ_CST) == getpid()) {
    usleep(1000);
  }
  return (int)result;
}

static void *unregisters(void *exec) {
  CHECK_OK(jitsym_unregister_range(session_of_thread, (uintptr_t)exec, PAGE, 0));
  return NULL;
}

/* The child's part of adopted memory is a mapping of its own file all the same. */
static void forks_during_a_rename(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, 0);
  unsigned char *memory = adopted_with_code(session, 60, "gone soon");
  linking_is_slow = getpid();
  links = 0;
  session_of_thread = session;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, unregisters, memory) == 0);
  while (__atomic_load_n(&links, __ATOMIC_SEQ_CST) == 0) {
    usleep(1000);
  }
  pid_t child = fork();
  CHECK(child >= 0);
  __atomic_store_n(&linking_is_slow, 0, __ATOMIC_SEQ_CST);
  if (child == 0) {
    test_inherits_threads = 1;
    announce(session, memory, "of the child");
    CHECK_OK(test_flush(session));
    char number[32];
    snprintf(number, sizeof number, "-%d-", (int)getpid());
    CHECK(run_code(memory) == 60 && strstr(mapping_at(memory).path, number) != NULL);
    CHECK_OK(jitsym_close(session));
    _exit(0);
  }
  CHECK(pthread_join(thread, NULL) == 0);
  test_wait_ok(child);
  CHECK(run_code(memory) == 60);
  CHECK_OK(jitsym_close(session));
}

/* A process is forked while its writer copies the file of an adopted region for older generations. The child goes on all the same. */
static void forks_during_a_copy(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, 0);
  unsigned char *memory = adopted_with_code(session, 62, "old");
  CHECK_OK(jitsym_unregister_range(session, (uintptr_t)memory, PAGE, 0));
  disk_is_slow("/jit");
  announce(session, memory, "new");
  CHECK_STATUS(JITSYM_ERR_TIMEOUT, jitsym_flush(session, 1));
  disk_begins(1);
  pid_t child = fork_beside_disk();
  if (child == 0) {
    announce(session, memory + PAGE, "of the child");
    CHECK_OK(test_flush(session));
    char number[32];
    snprintf(number, sizeof number, "-%d-", (int)getpid());
    CHECK(run_code(memory) == 62 && strstr(mapping_at(memory).path, number) != NULL);
    CHECK_OK(jitsym_close(session));
    _exit(0);
  }
  test_wait_ok(child);
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
}

static void forks_later(void) {
  forks(0, 0);
}

static void forks_now(void) {
  forks(JITSYM_INIT_FORK_NOW, 0);
}

static void forks_during_a_write(void) {
  forks(0, 1);
}

/* What lies where the file is to be: a leftover is replaced or passed by, a link is not followed. */
static void meets_leftovers(void) {
  char leftover[TEST_PATH_MAX], link[TEST_PATH_MAX], victim[TEST_PATH_MAX], path[TEST_PATH_MAX];
  snprintf(victim, sizeof victim, "%s/victim", test_dir);
  file_write(victim, "not to be touched");
  for (int number = 0; number < 3; number++) {
    snprintf(leftover, sizeof leftover, "%s/jit-%d-%d.so", test_dir, (int)getpid(), number);
    file_write(leftover, "of a dead process");
    snprintf(link, sizeof link, "%s/jit-%d-%d.so", test_dir, (int)getpid(), number + 3);
    CHECK(symlink(victim, link) == 0);
  }
  jitsym *session = open_regions();
  for (int i = 0; i < 8; i++) {
    jitsym_region_options options = wanted(SIZE);
    jitsym_region region = create(session, &options);
    put_code(region.write, 110);
    announce(session, region.exec, "among leftovers");
    CHECK(run_code(region.exec) == 110 && is_in_file(region.exec));
    CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
    CHECK(strcmp(path, mapping_at(region.exec).path) == 0);
  }
  CHECK_OK(jitsym_close(session));
  file_check(victim, "not to be touched");
}

static void removes_files(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, JITSYM_INIT_REMOVE_FILES);
  jitsym_region_options options = wanted(SIZE);
  jitsym_region region = create(session, &options);
  char path[TEST_PATH_MAX];
  put_code(region.write, 120);
  announce(session, region.exec, "removed in the end");
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  CHECK(file_exists(path));
  CHECK_OK(jitsym_close(session));
  CHECK(!file_exists(path) && run_code(region.exec) == 120);
}

/* A directory without room, or whose files must not be executed: memory of the same kind all the same, and a word of it. */
static void no_file(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_REGION, 0);
  jitsym_region_options options = wanted(16 << 20);
  jitsym_region region = create(session, &options);
  CHECK(region.size == 16 << 20);
  memset(region.write, 0xc3, region.size);
  put_code(region.write, 130);
  announce(session, region.exec, "without a file");
  CHECK(run_code(region.exec) == 130 && ((unsigned char *)region.exec)[region.size - 1] == 0xc3);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_refused == 1 && stats.regions == 0 && stats.region_code == 0);
  char text[512] = "";
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "jit-") != NULL);

  unsigned char *memory = memory_of(16 << 20, RWX);
  memset(memory, 0xc3, 16 << 20);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_region_adopt(session, memory, 16 << 20));
  CHECK(!is_in_file(memory) && memory[(16 << 20) - 1] == 0xc3);
  CHECK(test_stats(session).region_refused == 2);
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK_OK(jitsym_close(session));
  CHECK(test_files_in(test_dir) == 1);
}

/* Ends at once, with code of a region on its way to the writer, for `jitsym recover`. Says who it was. */
static void leaves_one(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
  jitsym_region_options options = wanted(SIZE);
  jitsym_region region = create(session, &options);
  CHECK_OK(test_flush(session));
  put_code(region.write, 1);
  printf("%ld\n", (long)getpid());
  fflush(stdout);
  announce_whole(session, region.exec, region.write, "left_behind");
  _exit(0);
}

int main(int argc, char **argv) {
  static void (*const parts[])(void) = {
      create_refuses,       adopt_refuses,         others_refuse,         two_views,    one_view,
      places,               many_regions,          without_sink,          sessions_end, adopted_is_the_same,
      adopted_is_used,      beside_other_sinks,    adopts_by_itself,      forks_later,  forks_now,
      forks_during_a_write, forks_during_a_rename, forks_during_a_copy, meets_leftovers,       adopted_while_it_runs,
      removes_files,        adopted_goes,          splits_slowly,
  };

  test_begin(argc, argv);
  unsetenv("JITSYM_ADOPT");
  if (argc >= 3 && strcmp(argv[2], "no-file") == 0) {
    test_child(no_file);
    return test_end();
  }
  if (argc >= 3 && strcmp(argv[2], "leave-one") == 0) {
    leaves_one();
  }
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    test_child(parts[i]);
  }
  return test_end();
}
