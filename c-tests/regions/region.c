/* Code memory that is a mapping of an ELF file: made by the library, or the program's own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "maps.h"
#include "testing.h"

enum { ALL_SINKS = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION };
static const uint64_t MIB = 1 << 20, GIB = 1 << 30;
static uint64_t page;

static jitsym *open_all(uint32_t flags) {
  return test_open_flags(ALL_SINKS, flags);
}

/* Code that returns a number below 2048. */
enum { CODE_SIZE = 16 };
static void emit(void *to, void *exec, unsigned number) {
#if defined(__x86_64__)
  const unsigned char code[CODE_SIZE] = {0xb8, (unsigned char)number, (unsigned char)(number >> 8), 0, 0, 0xc3};
#elif defined(__aarch64__)
  const uint32_t code[CODE_SIZE / 4] = {UINT32_C(0x52800000) | number << 5, UINT32_C(0xd65f03c0)};
#elif defined(__riscv)
  const uint32_t code[CODE_SIZE / 4] = {number << 20 | 10 << 7 | 0x13, 0x00008067};
#endif
  memcpy(to, code, CODE_SIZE);
  __builtin___clear_cache((char *)exec, (char *)exec + CODE_SIZE);
}

static unsigned call(const void *exec) {
  unsigned (*function)(void);
  memcpy(&function, &exec, sizeof function);
  return function();
}

static jitsym_id register_at(jitsym *session, const void *exec, const char *name) {
  jitsym_code code = test_code((uint64_t)(uintptr_t)exec, CODE_SIZE, name);
  code.bytes = exec;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  return id;
}

static jitsym_region_options wanted_size(uint64_t size) {
  jitsym_region_options wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.struct_size = sizeof wanted;
  wanted.size = size;
  return wanted;
}

static jitsym_region create(jitsym *session, const jitsym_region_options *wanted) {
  jitsym_region region = {sizeof region, NULL, NULL, 0};
  CHECK_OK(jitsym_region_create(session, wanted, &region));
  CHECK(region.struct_size == sizeof region && region.exec != NULL && region.write != NULL);
  return region;
}

static jitsym_region create_size(jitsym *session, uint64_t size) {
  jitsym_region_options wanted = wanted_size(size);
  return create(session, &wanted);
}

static struct test_path region_path(jitsym *session) {
  struct test_path path;
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path.text, sizeof path.text));
  return path;
}

static int file_has(const char *path, const char *text) {
  size_t size;
  unsigned char *bytes = file_read(path, &size);
  int found = memmem(bytes, size, text, strlen(text)) != NULL;
  free(bytes);
  return found;
}

static uint64_t blocks_of(const char *path) {
  struct stat data;
  CHECK(stat(path, &data) == 0);
  return (uint64_t)data.st_blocks;
}

static int all_zero(const void *bytes, uint64_t size) {
  const unsigned char *at = bytes;
  for (uint64_t i = 0; i < size; i++) {
    if (at[i] != 0) {
      return 0;
    }
  }
  return 1;
}

static unsigned char *map_anonymous(uint64_t size, int protection) {
  void *found = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(found != MAP_FAILED);
  return found;
}

static void *at_offset(const void *start, uint64_t offset) {
  return (char *)(uintptr_t)start + offset;
}

/* What is wrong with a call has a name, and a call that fails does nothing. */
static void bad_arguments(void) {
  jitsym *session = open_all(0);
  jitsym_region region = {sizeof region, NULL, NULL, 0};
  jitsym_region_options wanted = wanted_size(page);
  int files = test_files_in(test_dir);

  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_region_create(session, NULL, &region));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_region_create(session, &wanted, NULL));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_create(NULL, &wanted, &region));
  wanted.struct_size = 4097;
  CHECK_STATUS(JITSYM_ERR_STRUCT_TAIL, jitsym_region_create(session, &wanted, &region));
  struct {
    jitsym_region_options known;
    uint64_t later;
  } longer = {wanted_size(page), 1};
  longer.known.struct_size = sizeof longer;
  CHECK_STATUS(JITSYM_ERR_STRUCT_TAIL, jitsym_region_create(session, &longer.known, &region));
  longer.later = 0;
  CHECK_OK(jitsym_region_create(session, &longer.known, &region));
  CHECK_OK(jitsym_region_release(session, region.exec));
  files += 1;
  static const struct {
    uint64_t size, max_size, alignment, near_addr;
    uint32_t flags, reserved;
    jitsym_status expected;
  } cases[] = {
      {0, 0, 0, 0, 0, 0, JITSYM_ERR_SIZE_ZERO},
      {0, 4096, 0, 0, 0, 0, JITSYM_ERR_SIZE_ZERO},
      {1, 0, 0, 0, 4, 0, JITSYM_ERR_FLAGS},
      {1, 0, 0, 0, UINT32_C(1) << 31, 0, JITSYM_ERR_FLAGS},
      {1, 0, 0, 0, 0, 1, JITSYM_ERR_FLAGS},
      {1, 0, 3, 0, 0, 0, JITSYM_ERR_ALIGNMENT},
      {1, 0, 4095, 0, 0, 0, JITSYM_ERR_ALIGNMENT},
      {1, 0, (1 << 20) + 4096, 0, 0, 0, JITSYM_ERR_ALIGNMENT},
      {1, 0, UINT64_C(1) << 30, 0, 0, 0, JITSYM_ERR_TOO_LARGE},
      {(1 << 30) + 1, 0, 0, 0, 0, 0, JITSYM_ERR_TOO_LARGE},
      {1, (1 << 30) + 1, 0, 0, 0, 0, JITSYM_ERR_TOO_LARGE},
      {UINT64_MAX, 0, 0, 0, 0, 0, JITSYM_ERR_TOO_LARGE},
      {1, UINT64_MAX, 0, 0, 0, 0, JITSYM_ERR_TOO_LARGE},
      /* There is no user memory that could be reached from here. */
      {1, 0, 0, UINT64_MAX, 0, 0, JITSYM_ERR_NO_MEMORY},
  };
  region = (jitsym_region){sizeof region, NULL, NULL, 0};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    wanted = wanted_size(cases[i].size);
    wanted.max_size = cases[i].max_size;
    wanted.alignment = cases[i].alignment;
    wanted.near_addr = cases[i].near_addr;
    wanted.flags = cases[i].flags;
    wanted.reserved = cases[i].reserved;
    CHECK_STATUS(cases[i].expected, jitsym_region_create(session, &wanted, &region));
  }
  CHECK(region.exec == NULL && region.write == NULL && region.size == 0);

  unsigned char *memory = map_anonymous(4 * page, PROT_READ | PROT_EXEC);
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_region_adopt(session, memory, 0));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_adopt(session, memory + 1, page));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_adopt(session, memory, page + 1));
  CHECK_STATUS(JITSYM_ERR_ADDRESS_RANGE, jitsym_region_adopt(session, NULL, page));
  CHECK_STATUS(JITSYM_ERR_ADDRESS_RANGE, jitsym_region_adopt(session, memory, -page));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_adopt(session, memory, GIB + page));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_region_adopt(NULL, memory, page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, memory, page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, NULL, page));
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_region_discard(session, memory, 0));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_discard(session, memory + 1, page));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_discard(session, memory, page - 1));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, memory, page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, memory, -page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, memory));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, NULL));
  CHECK(has_flags(memory, "r-xp") && mapping_at(memory).path[0] == 0);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 0 && stats.region_refused == 0 && stats.write_errors == 0);
  CHECK(test_files_in(test_dir) == files);

  CHECK_OK(jitsym_close(session));
  wanted = wanted_size(page);
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_create(session, &wanted, &region));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_adopt(session, memory, page));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_grow(session, memory, page));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_discard(session, memory, page));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_region_release(session, memory));
  CHECK(munmap(memory, 4 * page) == 0);
}

/* Both views show the same memory, code runs in one and is written by the other, and its name is in the file. */
static void two_views(void) {
  jitsym *session = open_all(0);
  char path[64];
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  CHECK(test_stats(session).sinks_running == ALL_SINKS);
  static const uint64_t sizes[] = {1, 4095, 4096, 4097, 100000};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    jitsym_region region = create_size(session, sizes[i]);
    unsigned char *exec = region.exec, *write = region.write;
    CHECK(region.size == (sizes[i] + page - 1) / page * page && exec != write);
    CHECK(has_flags(exec, "r-xs") && has_flags(write, "rw-s"));
    CHECK(has_flags(exec + region.size - 1, "r-xs") && has_flags(write + region.size - 1, "rw-s"));
    CHECK(all_zero(exec, region.size) && all_zero(write, region.size));
    for (uint64_t at = 0; at + CODE_SIZE <= region.size; at += page / 2) {
      emit(write + at, exec + at, 100 + (unsigned)(at / page));
      CHECK(memcmp(exec + at, write + at, CODE_SIZE) == 0);
      CHECK(call(exec + at) == 100 + at / page);
    }
    write[region.size - 1] = 7;
    CHECK(exec[region.size - 1] == 7);
    /* And the other way round, for a runtime that has its own ideas. */
    CHECK(mprotect(exec, region.size, PROT_READ | PROT_WRITE) == 0);
    exec[region.size - 1] = 8;
    CHECK(write[region.size - 1] == 8);
    CHECK(mprotect(exec, region.size, PROT_READ | PROT_EXEC) == 0);

    char name[32];
    snprintf(name, sizeof name, "two_views_%d", (int)i);
    register_at(session, exec, name);
    CHECK_OK(test_flush(session));
    struct test_path file = region_path(session);
    struct test_path expected;
    snprintf(expected.text, sizeof expected.text, "%s/jit-%d-%d.so", test_dir, (int)getpid(), (int)i);
    CHECK(strcmp(file.text, expected.text) == 0 && file_has(file.text, name));
    CHECK(is_of_file(exec, file.text) && is_of_file(write, file.text));
    struct stat data;
    CHECK(stat(file.text, &data) == 0 && (data.st_mode & 0777) == 0644);
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 5 && stats.region_code == 5 && stats.registered == 5 && stats.live == 5);
  CHECK(stats.sinks_running == ALL_SINKS && stats.region_bytes > 0 && stats.region_refused == 0);
  /* What is in a region is nowhere else. */
  CHECK(stats.jitdump_records == 0 && stats.map_entries == 0);
  CHECK_OK(jitsym_close(session));
}

/* Code that has to be in the search table of the region's file. */
static void register_with_tables(jitsym *session, void *exec) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  jitsym_code code = test_code((uint64_t)(uintptr_t)exec, CODE_SIZE, "far away");
  code.unwind = &unwind;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  CHECK(test_stats(session).region_left_out == 0);
}

/* Where regions lie. */
static void places(void) {
  jitsym *session = open_all(0);
  for (uint64_t alignment = 1; alignment <= 64 * MIB; alignment *= 8) {
    jitsym_region_options wanted = wanted_size(3 * page);
    wanted.alignment = alignment;
    jitsym_region region = create(session, &wanted);
    CHECK((uintptr_t)region.exec % alignment == 0 && (uintptr_t)region.exec % page == 0 && region.size == 3 * page);
    CHECK_OK(jitsym_region_release(session, region.exec));
  }
  /* As near as a call reaches, from all of it, with room to grow. */
  uint64_t nears[] = {(uint64_t)(uintptr_t)&emit, (uint64_t)(uintptr_t)&memcpy, (uint64_t)(uintptr_t)&page, 1, 0x10000};
  for (size_t i = 0; i < sizeof nears / sizeof nears[0]; i++) {
    jitsym_region_options wanted = wanted_size(page + 1);
    wanted.max_size = 64 * MIB;
    wanted.near_addr = nears[i];
    wanted.alignment = 2 * page;
    jitsym_region region = create(session, &wanted);
    uint64_t start = (uint64_t)(uintptr_t)region.exec, end = start + wanted.max_size;
    CHECK(region.size == 2 * page && start % (2 * page) == 0);
    CHECK((start > nears[i] ? start - nears[i] : nears[i] - start) < 2 * GIB - 16);
    CHECK((end > nears[i] ? end - nears[i] : nears[i] - end) < 2 * GIB - 16);
    emit(region.write, region.exec, 5);
    CHECK(call(region.exec) == 5);
    CHECK_OK(jitsym_region_release(session, region.exec));
  }
  /* Nothing is free there; and then something is. */
  uint64_t room = 8 * GIB;
  void *taken = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (taken != MAP_FAILED) {
    jitsym_region_options wanted = wanted_size(page);
    wanted.near_addr = (uint64_t)(uintptr_t)taken + room / 2;
    jitsym_region region = {sizeof region, NULL, NULL, 0};
    CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_region_create(session, &wanted, &region));
    CHECK(region.exec == NULL);
    CHECK(munmap(at_offset(taken, room / 2 + GIB), 64 * MIB) == 0);
    region = create(session, &wanted);
    CHECK((char *)region.exec > (char *)taken + room / 2 + GIB);
    CHECK((char *)region.exec + region.size <= (char *)taken + room / 2 + GIB + 64 * MIB);
    CHECK_OK(jitsym_region_release(session, region.exec));
    /* Not what the hole was given to meanwhile. */
    CHECK(munmap(taken, room / 2 + GIB) == 0);
    CHECK(munmap(at_offset(taken, room / 2 + GIB + 64 * MIB), room / 2 - GIB - 64 * MIB) == 0);
  }
  /* For huge pages. */
  jitsym_region_options wanted = wanted_size(2 * MIB);
  wanted.flags = JITSYM_REGION_HUGE_PAGES;
  jitsym_region region = create(session, &wanted);
  CHECK((uintptr_t)region.exec % (2 * MIB) == 0 && region.size == 2 * MIB);
  emit(at_offset(region.write, MIB), at_offset(region.exec, MIB), 6);
  CHECK(call(at_offset(region.exec, MIB)) == 6);
  CHECK_OK(jitsym_region_release(session, region.exec));
  /* The largest. Nothing of it takes memory before it is used, but the disk has to have the room. */
  wanted = wanted_size(page);
  wanted.max_size = GIB;
  region = create(session, &wanted);
  CHECK_OK(jitsym_region_grow(session, region.exec, 2 * MIB));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_grow(session, region.exec, GIB + 1));
  CHECK_OK(jitsym_region_release(session, region.exec));
  /* And the farthest from its tables, which reach to its end. */
  wanted.alignment = 512 * MIB;
  region = create(session, &wanted);
  CHECK((uintptr_t)region.exec % wanted.alignment == 0);
  CHECK_OK(jitsym_region_grow(session, region.exec, GIB));
  register_with_tables(session, at_offset(region.exec, GIB - CODE_SIZE));
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK(test_stats(session).regions == 0 && test_stats(session).region_refused == 0);
  CHECK_OK(jitsym_close(session));
}

static void growing(void) {
  jitsym *session = open_all(0);
  jitsym_region_options wanted = wanted_size(page);
  wanted.max_size = 16 * page;
  jitsym_region region = create(session, &wanted);
  CHECK(region.size == page);
  emit(region.write, region.exec, 1);
  jitsym_id id = register_at(session, region.exec, "before_growth");
  uint64_t sizes[] = {page, page + 1, 4 * page, 3 * page, 1, 16 * page};
  uint64_t size = page;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    CHECK_OK(jitsym_region_grow(session, region.exec, sizes[i]));
    uint64_t before = size, now = (sizes[i] + page - 1) / page * page;
    size = now > size ? now : size;
    CHECK(all_zero(at_offset(region.exec, before), size - before));
    emit(at_offset(region.write, size - CODE_SIZE), at_offset(region.exec, size - CODE_SIZE), 50 + (unsigned)i);
    CHECK(call(at_offset(region.exec, size - CODE_SIZE)) == 50 + i && call(region.exec) == 1);
    CHECK(has_flags(at_offset(region.exec, size - 1), "r-xs") && has_flags(at_offset(region.write, size - 1), "rw-s"));
    CHECK(size == 16 * page || (!has_flags(at_offset(region.exec, size), "r-xs") && !has_flags(at_offset(region.write, size), "rw-s")));
  }
  register_at(session, at_offset(region.exec, 16 * page - CODE_SIZE), "after_growth");
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_grow(session, region.exec, 16 * page + 1));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_grow(session, region.exec, UINT64_MAX));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, at_offset(region.exec, page), 17 * page));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 1 && stats.region_code == 2 && stats.live == 2);
  struct test_path path = region_path(session);
  CHECK(file_has(path.text, "before_growth") && file_has(path.text, "after_growth"));
  CHECK_OK(jitsym_unregister(session, id));

  jitsym_region fixed = create_size(session, page);
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_region_grow(session, fixed.exec, page + 1));
  wanted.flags = JITSYM_REGION_ONE_VIEW;
  jitsym_region one = create(session, &wanted);
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, one.exec, 2 * page));
  CHECK_OK(jitsym_close(session));
}

/* ext4, XFS, Btrfs; on others it is not known what a file takes, but for tmpfs, and overlayfs, which has that of another one. */
enum kind { ON_DISK, IN_MEMORY, UNKNOWN };

static enum kind kind_of_file_system(void) {
  struct statfs system;
  CHECK(statfs(test_dir, &system) == 0);
  switch ((uint32_t)system.f_type) {
    case 0xef53:
    case 0x58465342:
    case 0x9123683e:
      return ON_DISK;
    case 0x01021994:
    case 0x794c7630:
      return IN_MEMORY;
    default:
      return UNKNOWN;
  }
}

/* What a file takes: room for all of the memory where touching it might fail else, or what is in it. */
static void room_in_file(void) {
  jitsym *session = open_all(0);
  enum kind kind = kind_of_file_system();
  for (int i = 0; i < 3; i++) {
    jitsym_region_options wanted = wanted_size(8 * MIB);
    wanted.flags = i == 1 ? JITSYM_REGION_ONE_VIEW : 0;
    unsigned char *memory = i == 2 ? map_anonymous(8 * MIB, PROT_READ | PROT_WRITE) : create(session, &wanted).write;
    if (i == 2) {
      CHECK_OK(jitsym_region_adopt(session, memory, 8 * MIB));
    }
    for (int used = 0; used < 2; used++) {
      uint64_t room = 512 * blocks_of(region_path(session).text);
      CHECK(kind == UNKNOWN || (i > 0 && kind == ON_DISK ? room < MIB : room >= 8 * MIB));
      memset(memory, 1, 8 * MIB);
    }
  }
  CHECK_OK(jitsym_close(session));
}

static void discarding(void) {
  jitsym *session = open_all(0);
  for (int one_view = 0; one_view < 2; one_view++) {
    jitsym_region_options wanted = wanted_size(64 * page);
    wanted.flags = one_view ? JITSYM_REGION_ONE_VIEW : 0;
    jitsym_region region = create(session, &wanted);
    struct test_path path = region_path(session);
    memset(region.write, 0xcc, region.size);
    uint64_t before = blocks_of(path.text);
    if (one_view) {
      /* With the bytes of code that was registered there, which the file has. */
      register_at(session, at_offset(region.exec, 16 * page), "to_be_discarded");
      CHECK_OK(test_flush(session));
    }
    CHECK_OK(jitsym_region_discard(session, at_offset(region.exec, page), 60 * page));
    CHECK(all_zero(at_offset(region.exec, page), 60 * page) && all_zero(at_offset(region.write, page), 60 * page));
    CHECK(*(unsigned char *)region.exec == 0xcc && *(unsigned char *)at_offset(region.exec, 61 * page) == 0xcc);
    CHECK(one_view || kind_of_file_system() == UNKNOWN || blocks_of(path.text) + 60 * page / 512 <= before);
    /* Once more, and used again. */
    CHECK_OK(jitsym_region_discard(session, at_offset(region.exec, page), page));
    memset(at_offset(region.write, page), 1, page);
    CHECK(*(unsigned char *)at_offset(region.exec, page) == 1 && *(unsigned char *)at_offset(region.exec, 2 * page) == 0);
    CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, region.exec, 65 * page));
    CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, at_offset(region.exec, -page), page));
    CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_region_discard(session, at_offset(region.exec, 16), page));
    CHECK(one_view || jitsym_region_discard(session, region.write, page) == JITSYM_ERR_REGION);
    CHECK_OK(jitsym_region_release(session, region.exec));
  }
  CHECK(test_stats(session).write_errors == 0);
  CHECK_OK(jitsym_close(session));
}

/* What is released is gone but for its file. What is not stays beyond the session. */
static void releasing(void) {
  jitsym *session = open_all(0);
  jitsym_region_options wanted = wanted_size(2 * page);
  wanted.max_size = 8 * page;
  jitsym_region region = create(session, &wanted), kept = create_size(session, page);
  struct test_path path;
  snprintf(path.text, sizeof path.text, "%s/jit-%d-0.so", test_dir, (int)getpid());
  emit(region.write, region.exec, 1);
  emit(kept.write, kept.exec, 2);
  register_at(session, region.exec, "released");
  register_at(session, kept.exec, "kept_one");
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, at_offset(region.exec, page)));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, region.write));
  CHECK(test_stats(session).regions == 2);
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK(test_stats(session).regions == 1);
  CHECK(!is_of_file(region.exec, path.text) && !is_of_file(region.write, path.text));
  size_t size;
  unsigned char *maps = file_read("/proc/self/maps", &size);
  CHECK(strstr((char *)maps, path.text) == NULL);
  free(maps);
  CHECK(file_exists(path.text) && file_has(path.text, "released"));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, region.exec));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, region.exec, 4 * page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_discard(session, region.exec, page));
  CHECK(call(kept.exec) == 2);
  CHECK_OK(jitsym_close(session));
  CHECK(call(kept.exec) == 2);
  *(unsigned char *)kept.write = *(unsigned char *)kept.exec;
  session = open_all(0);
  CHECK(call(kept.exec) == 2);
  CHECK_OK(jitsym_region_release(session, kept.exec));
  CHECK_OK(jitsym_close(session));
}

/* All that there may be, again and again. */
static void many(void) {
  jitsym *session = open_all(0);
  enum { MOST = 768 };
  static jitsym_region regions[MOST];
  for (int round = 0; round < 2 - test_light; round++) {
    for (int i = 0; i < MOST; i++) {
      regions[i] = create_size(session, page);
    }
    int files = test_files_in(test_dir);
    jitsym_region_options wanted = wanted_size(page);
    jitsym_region more = {sizeof more, NULL, NULL, 0};
    CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_region_create(session, &wanted, &more));
    unsigned char *memory = map_anonymous(page, PROT_READ | PROT_EXEC);
    CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_region_adopt(session, memory, page));
    CHECK(mapping_at(memory).path[0] == 0 && has_flags(memory, "r-xp"));
    CHECK(munmap(memory, page) == 0);
    CHECK(test_files_in(test_dir) == files);
    CHECK(test_stats(session).regions == MOST && test_stats(session).region_limit == 2 * (uint64_t)(round + 1));
    for (int i = 0; i < MOST; i++) {
      emit(regions[i].write, regions[i].exec, (unsigned)i);
      CHECK(call(regions[i].exec) == (unsigned)i);
      CHECK_OK(jitsym_region_release(session, regions[i].exec));
    }
  }
  CHECK_OK(jitsym_close(session));
}

/* One private view, whose protection the runtime changes. */
static void one_view(void) {
  jitsym *session = open_all(0);
  jitsym_region_options wanted = wanted_size(4 * page);
  wanted.flags = JITSYM_REGION_ONE_VIEW;
  jitsym_region region = create(session, &wanted);
  CHECK(region.exec == region.write && region.size == 4 * page);
  CHECK(has_flags(region.exec, "rw-p") && all_zero(region.exec, region.size));
  struct test_path first = region_path(session);
  for (unsigned round = 0; round < 4; round++) {
    CHECK(mprotect(region.exec, region.size, PROT_READ | PROT_WRITE) == 0);
    emit(region.write, region.exec, round);
    CHECK(mprotect(region.exec, region.size, PROT_READ | PROT_EXEC) == 0);
    CHECK(call(region.exec) == round);
    char name[32];
    snprintf(name, sizeof name, "one_view_%u", round);
    jitsym_id id = register_at(session, region.exec, name);
    CHECK_OK(test_flush(session));
    struct test_path path = region_path(session);
    CHECK(is_of_file(region.exec, "/jit-") && file_has(path.text, name));
    CHECK(call(region.exec) == round);
    CHECK_OK(jitsym_unregister(session, id));
  }
  CHECK(test_stats(session).region_code == 4 && file_exists(first.text));
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK(!is_of_file(region.exec, "/jit-"));
  CHECK_OK(jitsym_close(session));
}

/* Memory without a file: everything works, and code in it goes to the sinks that run. */
static void check_plain(jitsym *session, uint64_t refused, const char *why) {
  jitsym_region_options wanted = wanted_size(page);
  wanted.max_size = 4 * page;
  jitsym_region region = create(session, &wanted);
  CHECK(region.exec != region.write && has_flags(region.exec, "r-xs") && has_flags(region.write, "rw-s"));
  CHECK(!is_of_file(region.exec, test_dir) && all_zero(region.exec, region.size));
  emit(region.write, region.exec, 3);
  CHECK(call(region.exec) == 3);
  CHECK_OK(jitsym_region_grow(session, region.exec, 2 * page));
  emit(at_offset(region.write, page), at_offset(region.exec, page), 4);
  CHECK(call(at_offset(region.exec, page)) == 4 && call(region.exec) == 3);
  register_at(session, region.exec, "in_plain_memory");
  CHECK_OK(jitsym_region_discard(session, at_offset(region.exec, page), page));
  CHECK(all_zero(at_offset(region.exec, page), page) && all_zero(at_offset(region.write, page), page));
  wanted.flags = JITSYM_REGION_ONE_VIEW;
  jitsym_region one = create(session, &wanted);
  CHECK(one.exec == one.write && has_flags(one.exec, "rw-p") && !is_of_file(one.exec, test_dir));
  emit(one.write, one.exec, 5);
  CHECK(mprotect(one.exec, one.size, PROT_READ | PROT_EXEC) == 0);
  CHECK(call(one.exec) == 5);
  CHECK_OK(jitsym_region_discard(session, one.exec, page));
  CHECK(all_zero(one.exec, page));

  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.regions == 0 && stats.region_code == 0 && stats.region_refused == refused + 2);
  char text[512], path[TEST_PATH_MAX];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  if (strstr(text, why) == NULL) {
    fprintf(stderr, "%s\n", text);
  }
  CHECK(strstr(text, why) != NULL);
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  CHECK_OK(jitsym_region_release(session, one.exec));
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK(strcmp(mapping_at(region.exec).path, "") == 0 && strcmp(mapping_at(region.write).path, "") == 0);
}

static void no_file(void) {
  unsigned char *memory = map_anonymous(page, PROT_READ | PROT_EXEC);
  setenv("JITSYM", "off", 1);
  jitsym_options options = test_options();
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(test_stats_now(session).sinks_running == 0);
  check_plain(session, 0, "does not run");
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_region_adopt(session, memory, page));
  CHECK(test_files_in(test_dir) == 0);
  CHECK_OK(jitsym_close(session));
  unsetenv("JITSYM");

  /* Other sinks run, and have the code. */
  session = test_open();
  check_plain(session, 2, "does not run");
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_region_adopt(session, memory, page));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(map.count == 1 && strcmp(map.entries[0].name, "in_plain_memory") == 0);
  map_free(&map);
  CHECK_OK(jitsym_close(session));

  /* The directory is not there. */
  options.jitdump_dir = test_subdir("gone", 1).text;
  struct test_path gone = test_subdir("gone", 1);
  options.jitdump_dir = gone.text;
  options.sinks = JITSYM_SINK_REGION;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(rmdir(gone.text) == 0);
  check_plain(session, 4, "gone");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_region_adopt(session, memory, page));
  CHECK(test_stats_now(session).region_refused == 7 && has_flags(memory, "r-xp") && mapping_at(memory).path[0] == 0);
  CHECK_OK(jitsym_close(session));
}

/* A directory in which nothing may be executed, in a mount namespace of this child's own; where that is not allowed this is not
 * looked at. */
static void no_exec(void) {
  struct test_path dir = test_subdir("noexec", 1);
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, "") != 0 ||
      mount("jitsym-test", dir.text, "tmpfs", MS_NOEXEC, "size=1m") != 0) {
    return;
  }
  jitsym_options options = test_options();
  options.jitdump_dir = dir.text;
  options.sinks = JITSYM_SINK_REGION;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK((jitsym_wanted(session) & JITSYM_WANT_REGION) != 0);
  check_plain(session, 0, "noexec/jit-");
  CHECK((jitsym_wanted(session) & JITSYM_WANT_REGION) == 0);
  unsigned char *memory = map_anonymous(2 * page, PROT_READ | PROT_WRITE | PROT_EXEC);
  emit(memory, memory, 9);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_region_adopt(session, memory, 2 * page));
  CHECK(call(memory) == 9 && mapping_at(memory).path[0] == 0 && has_flags(memory, "rwxp"));
  CHECK(test_stats_now(session).region_refused == 3 && test_files_in(dir.text) == 0);
  CHECK_OK(jitsym_close(session));
}

/* Memory that does not lend itself to it is left as it is. */
static void refusals(void) {
  jitsym *session = open_all(0);
  int files = test_files_in(test_dir);
  char name[TEST_PATH_MAX + 16];
  snprintf(name, sizeof name, "%s/mapped", test_dir);
  int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(file >= 0 && ftruncate(file, (off_t)(4 * page)) == 0);
  void *of_file = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  CHECK(of_file != MAP_FAILED);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, of_file, 4 * page));
  void *shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, shared, page));
  /* The heap proper, and the stack. */
  uintptr_t heap = ((uintptr_t)sbrk((intptr_t)(4 * page)) + page - 1) / page * page;
  CHECK(heap != 0);
  if (is_of_file((void *)heap, "[heap]")) {
    memset((void *)heap, 1, page);
    CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, (void *)heap, page));
  }
  uintptr_t stack = (uintptr_t)&file / page * page;
  if (is_of_file((void *)stack, "[stack]")) {
    CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, (void *)stack, page));
  }
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, (void *)((uintptr_t)&emit / page * page), page));

  /* A hole, at either end and in the middle, and a piece that is something else. */
  unsigned char *memory = map_anonymous(8 * page, PROT_READ | PROT_WRITE);
  memset(memory, 0x5a, 8 * page);
  CHECK(munmap(memory + 4 * page, page) == 0);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, memory, 8 * page));
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, memory, 5 * page));
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, memory + 4 * page, 4 * page));
  CHECK(mmap(memory + 5 * page, page, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == memory + 5 * page);
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, memory + 5 * page, 3 * page));
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, memory + 5 * page, page));
  CHECK(mapping_at(memory).path[0] == 0 && memory[0] == 0x5a && memory[8 * page - 1] == 0x5a);

  /* Twice, also in part. */
  CHECK_OK(jitsym_region_adopt(session, memory, 4 * page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, memory, 4 * page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, memory + 3 * page, page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, memory + 3 * page, 2 * page));
  jitsym_region created = create_size(session, 2 * page);
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, created.exec, page));
  CHECK_STATUS(JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, created.write, page));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, memory, 5 * page));
  CHECK_OK(jitsym_region_release(session, created.exec));
  CHECK_OK(jitsym_region_release(session, memory));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, memory));
  CHECK(memory[0] == 0x5a && memory[4 * page - 1] == 0x5a && mapping_at(memory).path[0] == 0);

  /* Locked memory anywhere. By the system call: AddressSanitizer makes nothing of mlock. */
  unsigned char *locked = map_anonymous(page, PROT_READ | PROT_WRITE);
  if (syscall(SYS_mlock, locked, (size_t)page) == 0) {
    CHECK_STATUS(JITSYM_ERR_LOCKED, jitsym_region_adopt(session, memory, 4 * page));
    CHECK(syscall(SYS_munlock, locked, (size_t)page) == 0);
    CHECK_OK(jitsym_region_adopt(session, memory, 4 * page));
    CHECK_OK(jitsym_region_release(session, memory));
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 0 && stats.region_refused == 0 && stats.write_errors == 0);
  /* The mapped file, that of the created region, and two of adopted ones. */
  CHECK(test_files_in(test_dir) <= files + 4);
  close(file);
  CHECK_OK(jitsym_close(session));
}

/* The largest memory that can be adopted, with just so much room below it that its tables can reach all of it. */
static void adopting_most(void) {
  jitsym *session = open_all(0);
  uint64_t room = 7 * GIB / 4;
  void *memory = NULL;
  jitsym_status status = JITSYM_ERR_NO_MEMORY;
  for (int tries = 0; status != JITSYM_OK; tries++) {
    /* Another thread may find a use for that room first. */
    CHECK(status == JITSYM_ERR_NO_MEMORY && tries < 10);
    void *taken = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(taken != MAP_FAILED);
    memory = at_offset(taken, room - GIB);
    CHECK(mprotect(memory, GIB, PROT_READ | PROT_EXEC) == 0);
    CHECK(munmap(taken, 400 * MIB) == 0);
    status = jitsym_region_adopt(session, memory, GIB);
    if (status != JITSYM_OK) {
      CHECK(munmap(at_offset(taken, 400 * MIB), room - 400 * MIB) == 0);
    }
  }
  register_with_tables(session, at_offset(memory, GIB - CODE_SIZE));
  CHECK(test_stats(session).region_code == 1);
  CHECK_OK(jitsym_close(session));
}

/* Runs code in memory that is being swapped. */
struct runner {
  const unsigned char *code;
  atomic_int stop;
  atomic_ulong calls;
};

static void *run_all_the_time(void *argument) {
  struct runner *runner = argument;
  while (!atomic_load(&runner->stop)) {
    CHECK(call(runner->code) == 1234 % 2048);
    atomic_fetch_add(&runner->calls, 1);
  }
  return NULL;
}

static void wait_for_calls(struct runner *runner) {
  unsigned long calls = atomic_load(&runner->calls);
  TEST_AWAIT(atomic_load(&runner->calls) >= calls + 10);
}

/* The same bytes and protections before, in between and after, while a thread runs there. */
static void adopting(void) {
  jitsym *session = open_all(0);
  enum { PAGES = 64 };
  static const int protections[] = {PROT_NONE, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC,
                                    PROT_READ | PROT_WRITE, PROT_READ, PROT_EXEC};
  static const char *const flags[] = {"---p", "r-xp", "rwxp", "rw-p", "r--p", "--xp"};
  unsigned char *memory = map_anonymous(PAGES * page, PROT_READ | PROT_WRITE);
  unsigned char *expected = malloc(PAGES * page);
  CHECK(expected != NULL);
  for (unsigned i = 0; i < PAGES; i++) {
    /* Some pages have never been touched. */
    if (i % 7 != 6) {
      memset(memory + i * page, (int)(i + 1), page);
      emit(memory + i * page, memory + i * page, i == 1 ? 1234 % 2048 : i);
    }
  }
  memcpy(expected, memory, PAGES * page);
  for (int i = 0; i < PAGES; i++) {
    CHECK(mprotect(memory + (uint64_t)i * page, page, protections[i % 6]) == 0);
  }
  struct runner runner = {memory + page, 0, 0};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, run_all_the_time, &runner) == 0);
  wait_for_calls(&runner);
  for (int round = 0; round < (test_light ? 1 : 3); round++) {
    for (int swapped = 0; swapped < 2; swapped++) {
      if (!swapped) {
        CHECK_OK(jitsym_region_adopt(session, memory, PAGES * page));
        CHECK(is_of_file(memory, region_path(session).text));
        CHECK(test_stats(session).regions == 1);
        register_at(session, memory + page, "adopted_code");
        CHECK_OK(test_flush(session));
        CHECK(file_has(region_path(session).text, "adopted_code"));
      } else {
        CHECK_OK(jitsym_region_release(session, memory));
        CHECK(!is_of_file(memory, "jit-") && test_stats(session).regions == 0);
        CHECK(file_has(region_path(session).text, "adopted_code"));
      }
      wait_for_calls(&runner);
      for (int i = 0; i < PAGES; i++) {
        unsigned char *at = memory + (uint64_t)i * page;
        CHECK(has_flags(at, flags[i % 6]) && is_of_file(at, "jit-") == !swapped);
        if (i % 6 == 0 || i % 6 == 5) {
          CHECK(mprotect(at, page, PROT_READ | PROT_EXEC) == 0);
        }
        CHECK(memcmp(at, expected + (uint64_t)i * page, page) == 0);
        CHECK(i < 2 || i % 7 == 6 || protections[i % 6] == (PROT_READ | PROT_WRITE) || protections[i % 6] == PROT_READ ||
              call(at) == (unsigned)i);
        CHECK(mprotect(at, page, protections[i % 6]) == 0);
      }
    }
  }
  atomic_store(&runner.stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(munmap(memory, PAGES * page) == 0);
  free(expected);
  CHECK_OK(jitsym_close(session));
}

/* The program does with its memory what it did before. */
static void host_goes_on(void) {
  jitsym *session = open_all(0);
  unsigned char *memory = map_anonymous(16 * page, PROT_READ | PROT_WRITE | PROT_EXEC);
  for (unsigned i = 0; i < 16; i++) {
    emit(memory + i * page, memory + i * page, 100 + i);
  }
  CHECK_OK(jitsym_region_adopt(session, memory, 16 * page));
  unsigned char *file_bytes;
  size_t size;
  struct test_path path = region_path(session);

  /* What is written is the program's own, and does not change the file. */
  CHECK(memory[5 * page + 100] == 0);
  memcpy(memory + 5 * page + 100, "not in the file", 16);
  file_bytes = file_read(path.text, &size);
  CHECK(memmem(file_bytes, size, "not in the file", 16) == NULL);
  free(file_bytes);
  /* W^X from now on. */
  CHECK(mprotect(memory, 16 * page, PROT_READ | PROT_EXEC) == 0);
  CHECK(call(memory) == 100 && call(memory + 15 * page) == 115);
  CHECK(mprotect(memory + page, page, PROT_READ | PROT_WRITE) == 0);
  emit(memory + page, memory + page, 7);
  CHECK(mprotect(memory + page, page, PROT_READ | PROT_EXEC) == 0);
  CHECK(call(memory + page) == 7 && is_of_file(memory + page, path.text));
  register_at(session, memory + page, "patched");
  /* Unmapped in the middle and at the end, moved, and something else in its place. */
  unsigned char *target = map_anonymous(page, PROT_NONE);
  CHECK(munmap(memory + 9 * page, page) == 0);
  CHECK(munmap(memory + 15 * page, page) == 0);
  unsigned char *elsewhere = mremap(memory + 10 * page, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, target);
  CHECK(elsewhere != MAP_FAILED && call(elsewhere) == 110);
  CHECK(mmap(memory + 8 * page, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory + 8 * page);
  memory[8 * page] = 0x77;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(call(memory) == 100 && call(memory + page) == 7 && call(memory + 14 * page) == 114 && memory[8 * page] == 0x77);
    _exit(0);
  }
  test_wait_ok(child);
  CHECK_OK(test_flush(session));
  CHECK(file_has(region_path(session).text, "patched"));

  /* Released, what is left of it is plain; the rest is let be. */
  CHECK_OK(jitsym_region_release(session, memory));
  for (unsigned i = 0; i < 8; i++) {
    CHECK(!is_of_file(memory + i * page, "jit-") && has_flags(memory + i * page, "r-xp"));
    CHECK(call(memory + i * page) == (i == 1 ? 7 : 100 + i));
  }
  CHECK(strcmp((char *)memory + 5 * page + 100, "not in the file") == 0);
  CHECK(memory[8 * page] == 0x77 && has_flags(memory + 8 * page, "rw-p"));
  CHECK(call(memory + 11 * page) == 111 && call(memory + 14 * page) == 114 && call(elsewhere) == 110);
  /* Not what has come to lie in the holes. */
  CHECK(munmap(memory, 9 * page) == 0 && munmap(memory + 11 * page, 4 * page) == 0 && munmap(elsewhere, page) == 0);

  /* Unmapped as a whole without a word: there is none any more when somebody comes to it. */
  memory = map_anonymous(4 * page, PROT_READ | PROT_WRITE | PROT_EXEC);
  emit(memory, memory, 1);
  CHECK_OK(jitsym_region_adopt(session, memory, 4 * page));
  jitsym_id id = register_at(session, memory, "first_life");
  CHECK_OK(jitsym_unregister(session, id));
  CHECK(test_stats(session).regions == 1);
  CHECK(mmap(memory, 4 * page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
  emit(memory, memory, 2);
  register_at(session, memory, "second_life");
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 0);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, (uint64_t)(uintptr_t)memory), "second_life") == 0);
  map_free(&map);
  CHECK_OK(jitsym_region_adopt(session, memory, 4 * page));
  CHECK(call(memory) == 2);
  CHECK_OK(jitsym_region_release(session, memory));
  CHECK_OK(jitsym_close(session));
}

/* Where code is registered memory is adopted, if that is asked for, and only what can be. */
static void adopts_by_itself(void) {
  unsigned char *memory = map_anonymous(8 * page, PROT_READ | PROT_WRITE | PROT_EXEC);
  unsigned char *data = map_anonymous(8 * page, PROT_READ | PROT_WRITE);
  CHECK(mprotect(data + 7 * page, page, PROT_NONE) == 0);
  static const unsigned char constant[CODE_SIZE] = {1};
  uint64_t adopted = 0;
  for (unsigned way = 0; way < 4; way++) {
    /* By an option, by the user, not at all, and against the user's word. */
    const char *variable[] = {NULL, "1", NULL, "0"};
    const int adopts[] = {1, 1, 0, 0};
    if (variable[way] != NULL) {
      setenv("JITSYM_ADOPT", variable[way], 1);
    } else {
      unsetenv("JITSYM_ADOPT");
    }
    jitsym *session = open_all(way == 0 || way == 3 ? JITSYM_INIT_ADOPT : 0);
    emit(memory + page, memory + page, way);
    jitsym_id id = register_at(session, memory + page, "adopted_by_itself");
    register_at(session, data, "not_executable");
    register_at(session, constant, "in_the_program");
    jitsym_code nowhere = test_code(0x10000, CODE_SIZE, "nowhere_mapped");
    CHECK_OK(jitsym_register(session, &nowhere, NULL));
    jitsym_stats stats = test_stats(session);
    adopted += (uint64_t)adopts[way];
    CHECK(stats.regions == (uint64_t)adopts[way] && stats.region_code == adopted);
    /* Memory with code in it that nobody makes executable is given up after a while. */
    CHECK(stats.live == 4 && stats.region_refused <= way + 1);
    CHECK(is_of_file(memory, "jit-") == adopts[way] && is_of_file(memory + 8 * page - 1, "jit-") == adopts[way]);
    CHECK(!is_of_file(data, "jit-") && call(memory + page) == way);
    struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
    CHECK(strcmp(map_name(&map, 0x10000), "nowhere_mapped") == 0);
    CHECK(strcmp(map_name(&map, (uint64_t)(uintptr_t)(memory + page)), adopts[way] ? "" : "adopted_by_itself") == 0);
    map_free(&map);
    if (adopts[way]) {
      CHECK(file_has(region_path(session).text, "adopted_by_itself"));
      CHECK_OK(jitsym_unregister(session, id));
      CHECK_OK(jitsym_region_release(session, memory));
    }
    CHECK(call(memory + page) == way);
    CHECK_OK(jitsym_close(session));
  }
  unsetenv("JITSYM_ADOPT");
}

/* Any thread, at any time: nobody gets somebody else's memory, and nothing is adopted twice. */
static unsigned char *common;
static jitsym *common_session;

static void *make_and_end(void *argument) {
  unsigned number = (unsigned)(uintptr_t)argument;
  for (int round = 0; round < (test_light ? 5 : 50); round++) {
    jitsym_region_options wanted = wanted_size(page);
    wanted.max_size = 8 * page;
    jitsym_region region = create(common_session, &wanted);
    for (unsigned pages = 1; pages <= 8; pages++) {
      CHECK_OK(jitsym_region_grow(common_session, region.exec, pages * page));
      uint64_t at = (pages - 1) * page;
      emit(at_offset(region.write, at), at_offset(region.exec, at), number);
      CHECK(call(at_offset(region.exec, at)) == number);
    }
    jitsym_id id = register_at(common_session, region.exec, "common_code");
    CHECK_OK(jitsym_unregister(common_session, id));
    CHECK_OK(jitsym_region_release(common_session, region.exec));
  }
  return NULL;
}

static void *register_in_common(void *argument) {
  uint64_t number = (uint64_t)(uintptr_t)argument;
  register_at(common_session, common + number * page, "common_memory");
  return NULL;
}

static void threads(void) {
  enum { COUNT = 6 };
  pthread_t ids[COUNT];
  common_session = open_all(JITSYM_INIT_ADOPT);
  for (uintptr_t i = 0; i < COUNT; i++) {
    CHECK(pthread_create(&ids[i], NULL, make_and_end, (void *)i) == 0);
  }
  for (int i = 0; i < COUNT; i++) {
    CHECK(pthread_join(ids[i], NULL) == 0);
  }
  CHECK(test_stats(common_session).regions == 0);
  for (int round = 0; round < (test_light ? 3 : 20); round++) {
    common = map_anonymous(COUNT * page, PROT_READ | PROT_EXEC);
    for (uintptr_t i = 0; i < COUNT; i++) {
      CHECK(pthread_create(&ids[i], NULL, register_in_common, (void *)i) == 0);
    }
    for (int i = 0; i < COUNT; i++) {
      CHECK(pthread_join(ids[i], NULL) == 0);
    }
    jitsym_stats stats = test_stats(common_session);
    struct mapping mapping = mapping_at(common);
    CHECK(stats.regions == 1 && strstr(mapping.path, "/jit-") != NULL);
    /* Tables that lie right below are one mapping with it for the kernel. */
    CHECK(mapping.start <= (uintptr_t)common && mapping.end == (uintptr_t)common + COUNT * page);
    CHECK_OK(jitsym_unregister_range(common_session, (uint64_t)(uintptr_t)common, COUNT * page, 0));
    CHECK_OK(jitsym_region_release(common_session, common));
    CHECK(munmap(common, COUNT * page) == 0);
  }
  CHECK_OK(jitsym_close(common_session));
}

/* In the end nothing is left, if that is asked for: neither of what was released nor of what the program still has. */
static void removes(void) {
  jitsym *session = open_all(JITSYM_INIT_REMOVE_FILES);
  jitsym_region kept = create_size(session, page), released = create_size(session, page);
  jitsym_region_options wanted = wanted_size(page);
  wanted.flags = JITSYM_REGION_ONE_VIEW;
  jitsym_region one = create(session, &wanted);
  emit(kept.write, kept.exec, 3);
  for (int round = 0; round < 3; round++) {
    jitsym_id id = register_at(session, kept.exec, "to_be_removed");
    CHECK_OK(test_flush(session));
    CHECK_OK(jitsym_unregister(session, id));
    id = register_at(session, one.exec, "to_be_removed");
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_OK(test_flush(session));
  }
  CHECK_OK(jitsym_region_release(session, released.exec));
  CHECK(test_files_in(test_dir) >= 5);
  CHECK_OK(jitsym_close(session));
  CHECK(test_files_in(test_dir) == 0);
  CHECK(call(kept.exec) == 3);
}

/* The same at an exit with the session open. */
static void removes_at_exit(void) {
  jitsym *session = open_all(JITSYM_INIT_REMOVE_FILES);
  jitsym_region region = create_size(session, page);
  register_at(session, region.exec, "to_be_removed");
  CHECK_OK(test_flush(session));
  CHECK(test_files_in(test_dir) == 3);
}

/* The environment asks for regions alone. */
static void by_environment(void) {
  setenv("JITSYM", "region", 1);
  jitsym_options options = test_options();
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  jitsym_region region = create_size(session, page);
  register_at(session, region.exec, "by_environment");
  /* There is nowhere else to go. */
  test_register(session, 0x10000, 16, "elsewhere");
  jitsym_stats stats = test_stats(session);
  CHECK(stats.sinks_running == JITSYM_SINK_REGION && stats.registered == 2 && stats.region_code == 1);
  CHECK(file_has(region_path(session).text, "by_environment"));
  char path[TEST_PATH_MAX];
  CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
  CHECK_STATUS(JITSYM_ERR_ENUM, jitsym_path(session, JITSYM_SINK_MAP | JITSYM_SINK_REGION, path, sizeof path));
  CHECK_OK(jitsym_close(session));
  unsetenv("JITSYM");
}

/* Each scenario finds an empty directory. */
static void run(void (*scenario)(void)) {
  test_child(scenario);
  DIR *dir = opendir(test_dir);
  CHECK(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    if (entry->d_name[0] != '.' && unlinkat(dirfd(dir), entry->d_name, 0) != 0) {
      CHECK(errno == EISDIR && unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR) == 0);
    }
  }
  closedir(dir);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  page = (uint64_t)sysconf(_SC_PAGESIZE);
  run(bad_arguments);
  run(two_views);
  run(places);
  run(growing);
  run(room_in_file);
  run(discarding);
  run(releasing);
  run(many);
  /*
   * valgrind (3.19) ends when pieces of one file that lie side by side are known to it by different names of that file, and
   * become alike by a mprotect.
   */
  const char *preloaded = getenv("LD_PRELOAD");
  if (preloaded == NULL || strstr(preloaded, "vgpreload") == NULL) {
    run(one_view);
  }
  run(no_file);
  run(no_exec);
  run(refusals);
  run(adopting);
  /* A gigabyte is looked through. */
  if (!test_light) {
    run(adopting_most);
  }
  run(host_goes_on);
  run(adopts_by_itself);
  run(threads);
  run(removes);
  run(removes_at_exit);
  run(by_environment);
  return test_end();
}
