/*
 * Regions and the host's other memory: room for the heap, holes in which the host maps memory, and what the host has asked the kernel
 * to do with code memory (mlock, madvise and the like).
 *
 * Usage: host_memory DIR [PART]: all parts, or `heap` for the heap alone. x86-64 only.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

enum { RX = PROT_READ | PROT_EXEC, RW = PROT_READ | PROT_WRITE };

/* ------------------------------------------------------------------------------------------------ the heap */

/* The first mapping above the heap. */
static uintptr_t above_heap(void) {
  uintptr_t end = (uintptr_t)sbrk(0), next = UINTPTR_MAX;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  for (struct mapping one; next_mapping(maps, &one);) {
    next = one.start >= end && one.start < next ? one.start : next;
  }
  fclose(maps);
  return next;
}

/* Code that is near the program, or near the heap itself, leaves room for the heap. */
static void heap_grows(void) {
  enum { PART = 1 << 29 };
  jitsym *session = open_regions();
  for (int has_heap = 0; has_heap < 2; has_heap++) {
    if (has_heap) {
      CHECK(sbrk(PAGE) != (void *)-1);
    }
    /* The heap begins at a random distance from the program. */
    uintptr_t near[] = {(uintptr_t)heap_grows, (uintptr_t)sbrk(0) - PAGE};
    for (int i = 0; i < 2; i++) {
      jitsym_region piece = JITSYM_REGION;
      CHECK_OK(jitsym_alloc(session, 100, 0, near[i], &piece));
      jitsym_region_options options = JITSYM_REGION_OPTIONS(SIZE);
      options.near_addr = near[i];
      jitsym_region region = JITSYM_REGION;
      CHECK_OK(jitsym_region_create(session, &options, &region));
      int64_t distance = (int64_t)((uintptr_t)region.exec - near[i]);
      CHECK(distance > INT32_MIN && distance + SIZE < INT32_MAX);
    }
    /* A program at a fixed address has too little room below it. */
    size_t room = above_heap() - (uintptr_t)sbrk(0);
    CHECK((uintptr_t)heap_grows < (1u << 30) ? room >= PART : room >= 2ul << 30);
  }
  CHECK(sbrk(PART) != (void *)-1 && sbrk(-PART) != (void *)-1);
  CHECK_OK(jitsym_close(session));
}

/* The tables of adopted memory lie neither where the heap grows nor where the stack does. */
static void heap_and_stack_grow_beside_adopted_memory(void) {
  enum { ARENA = 16 << 20, STACK = 24 << 20 };
  jitsym *session = open_regions();
  unsigned char *end = sbrk(0);
  size_t room = above_heap() - (uintptr_t)end;
  uintptr_t stack = mapping_at(__builtin_frame_address(0)).start / PAGE * PAGE;
  unsigned char *places[] = {end + (room < (1ul << 40) ? room / 2 : 1ul << 38) / PAGE * PAGE,
                             (unsigned char *)(stack - STACK - PAGE * 2048ul - ARENA)};
  for (int i = 0; i < 2; i++) {
    uintptr_t from = (uintptr_t)places[i] / PAGE * PAGE;
    unsigned char *arena =
        mmap((void *)from, ARENA, RWX, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);
    CHECK(arena == (void *)from);
    uintptr_t before = above_heap();
    CHECK_OK(jitsym_region_adopt(session, arena, ARENA));
    CHECK(is_of_file(arena, "/jit"));
    CHECK(before - above_heap() <= 16 * PAGE);
    for (uintptr_t at = stack - STACK; at < stack; at += 64 * PAGE) {
      CHECK(mapping_at((void *)at).end == 0);
    }
  }
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ holes */

enum { HOLE = 16 * PAGE };

/* How many pages of a hole belong to a region: they are reserved, or a mapping of its file. The kernel may also give free pages to
 * malloc, and to tables of the library. */
static int mapped_in(const unsigned char *hole) {
  int count = 0;
  for (size_t at = 0; at < HOLE; at += PAGE) {
    struct mapping found = mapping_at(hole + at);
    count += strstr(found.path, "/jit") != NULL || strcmp(found.flags, "---p") == 0;
  }
  return count;
}

/* Memory of the host right above a hole. The library puts the header page of the region into the hole. */
static unsigned char *adopt_above_hole(jitsym *session, int protection) {
  unsigned char *hole = memory_of(HOLE + SIZE, RWX);
  put_code(hole + HOLE, 400);
  CHECK(munmap(hole, HOLE) == 0 && mprotect(hole + HOLE, SIZE, protection) == 0);
  CHECK_OK(jitsym_region_adopt(session, hole + HOLE, SIZE));
  CHECK(is_of_file(hole + HOLE, "/jit"));
  return hole;
}

/* The host maps its own memory there, whatever was there before. */
static void map_own(unsigned char *at, size_t size, int protection) {
  CHECK(mmap(at, size, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
  memset(at, 0x5a, size);
  CHECK(mprotect(at, size, protection) == 0);
}

static int is_own(unsigned char *at, size_t size) {
  for (size_t i = 0; i < size; i += PAGE) {
    struct mapping found = mapping_at(at + i);
    if (found.end == 0 || found.path[0] != 0) {
      return 0;
    }
  }
  CHECK(mprotect(at, size, PROT_READ) == 0);
  for (size_t i = 0; i < size; i++) {
    if (at[i] != 0x5a) {
      return 0;
    }
  }
  return 1;
}

/* Makes the library read the list of mappings, and end what has gone. */
static void look_around(jitsym *session) {
  unsigned char *other = memory_of(SIZE, RWX);
  CHECK_OK(jitsym_region_adopt(session, other, SIZE));
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_region_release(session, other));
  CHECK_OK(test_flush(session));
}

/* The address of the tables: the lowest mapping of the file above the code. */
static unsigned char *tables_of(unsigned char *memory) {
  struct mapping code = mapping_at(memory), found = {UINTPTR_MAX, 0, "", ""};
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  for (struct mapping one; next_mapping(maps, &one);) {
    if (strcmp(one.path, code.path) == 0 && one.start >= (uintptr_t)memory + SIZE && one.start < found.start) {
      found = one;
    }
  }
  fclose(maps);
  CHECK(found.end != 0);
  return (unsigned char *)found.start;
}

/* The host has given up all of its memory, and has mapped other memory at the same addresses. */
static void host_maps_again(void) {
  static const int protections[] = {RW, PROT_READ, PROT_NONE, RX};
  jitsym *session = open_regions();
  for (int released = 0; released < 2; released++) {
    for (size_t i = 0; i < sizeof protections / sizeof *protections; i++) {
      unsigned char *hole = adopt_above_hole(session, RX), *tables = tables_of(hole + HOLE);
      CHECK(mapped_in(hole) > 0);
      announce(session, hole + HOLE, "in memory that goes");
      CHECK_OK(test_flush(session));
      CHECK(munmap(hole, HOLE + SIZE) == 0);
      map_own(hole, HOLE + SIZE, protections[i]);
      map_own(tables, PAGE, protections[i]);
      if (released) {
        jitsym_region_release(session, hole + HOLE);
      }
      look_around(session);
      CHECK(test_stats(session).regions == 0);
      CHECK(is_own(hole, HOLE + SIZE) && is_own(tables, PAGE));
      CHECK(munmap(hole, HOLE + SIZE) == 0 && munmap(tables, PAGE) == 0);
    }
  }
  CHECK_OK(jitsym_close(session));
}

/* The host uses only the hole again. Neither an epoch nor the end of the region touches the memory there. */
static void host_uses_its_hole(void) {
  jitsym *session = open_regions();
  for (int flips = 0; flips < 2; flips++) {
    unsigned char *hole = adopt_above_hole(session, flips ? RX : RWX), *tables = tables_of(hole + HOLE);
    unsigned char *memory = hole + HOLE;
    CHECK(mapped_in(hole) > 0);
    jitsym_id id = announce(session, memory, "the first one");
    map_own(hole, HOLE, RW);
    map_own(tables, PAGE, RW);
    for (uint32_t i = 0; i < 3; i++) {
      uint64_t epochs = test_stats(session).region_generations;
      test_sleep_ms(11);
      CHECK_OK(jitsym_unregister(session, id));
      CHECK(mprotect(memory, SIZE, RWX) == 0);
      put_code(memory, 401 + i);
      CHECK(!flips || mprotect(memory, SIZE, RX) == 0);
      id = announce(session, memory, "the next one");
      CHECK(test_stats(session).region_generations > epochs);
    }
    CHECK_OK(jitsym_region_release(session, memory));
    CHECK(is_own(hole, HOLE) && is_own(tables, PAGE) && run_code(memory) == 403);
  }
  CHECK_OK(jitsym_close(session));
}

/*
 * The host has unmapped a created region itself, and has mapped other memory there. Without a free descriptor, the library cannot
 * know that.
 */
static void host_unmaps_created_regions(void) {
  jitsym *session = open_regions();
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t flags = i % 2;
    jitsym_region region = test_region(session, SIZE, flags ? JITSYM_REGION_ONE_VIEW : 0);
    unsigned char *views[] = {region.exec, region.write};
    for (uint32_t view = flags; view < 2; view++) {
      CHECK(munmap(views[view], SIZE) == 0);
      map_own(views[view], SIZE, i < 2 ? RW : PROT_NONE);
    }
    if (flags) {
      struct rlimit before, limit;
      CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
      limit = before;
      limit.rlim_cur = 0;
      CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
      CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_region_release(session, region.exec));
      CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
    CHECK_OK(jitsym_region_release(session, region.exec));
    CHECK(is_own(views[0], SIZE) && is_own(views[1], SIZE));
    CHECK(munmap(views[0], SIZE) == 0 && (flags || munmap(views[1], SIZE) == 0));
  }
  CHECK_OK(jitsym_close(session));
}

/* How many mappings the process has. */
static int mappings(void) {
  int count = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  for (struct mapping one; next_mapping(maps, &one);) {
    count++;
  }
  fclose(maps);
  return count;
}

/* The control: what is the library's own goes. */
static void nothing_is_left(void) {
  enum { TIMES = 20 };
  jitsym *session = open_regions();
  int before = 0;
  for (int i = 0; i < TIMES; i++) {
    unsigned char *hole = adopt_above_hole(session, RX);
    CHECK_OK(jitsym_region_release(session, hole + HOLE));
    CHECK(munmap(hole + HOLE, SIZE) == 0);
    CHECK(mapped_in(hole) == 0);
    hole = adopt_above_hole(session, RX);
    CHECK(munmap(hole + HOLE, SIZE) == 0);
    look_around(session);
    CHECK(mapped_in(hole) == 0);
    for (uint32_t flags = 0; flags < 2; flags++) {
      CHECK_OK(jitsym_region_release(session, test_region(session, SIZE, flags ? JITSYM_REGION_ONE_VIEW : 0).exec));
    }
    if (i == 2) {
      before = mappings();
    }
  }
  CHECK(mappings() <= before + 4);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ attributes */

/* Whether all mappings of a range have this flag (linux Documentation/filesystems/proc.rst, VmFlags). */
static int has_flag(const void *at, size_t size, const char *flag) {
  uintptr_t from = (uintptr_t)at, to = from + size;
  int is_inside = 0, has = 1, count = 0;
  FILE *smaps = fopen("/proc/self/smaps", "r");
  CHECK(smaps != NULL);
  char line[4096 + 128], word[8];
  snprintf(word, sizeof word, " %s", flag);
  while (fgets(line, sizeof line, smaps) != NULL) {
    uintptr_t start, end;
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2) {
      is_inside = start < to && from < end;
    } else if (is_inside && strncmp(line, "VmFlags:", 8) == 0) {
      has &= strstr(line, word) != NULL;
      count++;
    }
  }
  fclose(smaps);
  CHECK(count > 0);
  return has;
}

static const struct {
  int advice;
  const char *flag;
} kept[] = {{MADV_DONTDUMP, "dd"}, {MADV_DONTFORK, "dc"}, {MADV_RANDOM, "rr"}};
enum { KEPT = sizeof kept / sizeof *kept };

static void check_kept(const void *at, size_t size) {
  for (size_t i = 0; i < KEPT; i++) {
    CHECK(has_flag(at, size, kept[i].flag));
  }
}

/* Epochs and growth change nothing in what the host has asked for, in the whole view or in a part of it. */
static void created_memory_keeps(void) {
  jitsym *session = open_regions();
  for (size_t part = PAGE; part <= SIZE; part *= 16) {
    jitsym_region_options options = JITSYM_REGION_OPTIONS(SIZE);
    options.max_size = 4 * SIZE;
    jitsym_region region = JITSYM_REGION;
    CHECK_OK(jitsym_region_create(session, &options, &region));
    unsigned char *exec = region.exec;
    /* By the system call: AddressSanitizer makes nothing of mlock. */
    CHECK(syscall(SYS_mlock, exec, part) == 0);
    for (size_t i = 0; i < KEPT; i++) {
      CHECK(madvise(exec, part, kept[i].advice) == 0);
    }
    jitsym_id id = 0;
    for (uint32_t i = 0; i < 3; i++) {
      put_code(region.write, 410 + i);
      put_code((unsigned char *)region.write + SIZE - CODE_SIZE, 420);
      if (i > 0) {
        CHECK_OK(jitsym_unregister(session, id));
      }
      id = announce(session, exec, "replaced");
      CHECK(run_code(exec) == 410 + i && run_code(exec + SIZE - CODE_SIZE) == 420);
    }
    jitsym_stats stats = test_stats(session);
    CHECK(stats.region_generations >= 2 && stats.region_late == 0);
    CHECK(has_flag(exec, part, "lo"));
    check_kept(exec, part);
    CHECK(part == SIZE || !has_flag(exec + SIZE - PAGE, PAGE, "lo"));
    for (int i = 2; i <= 4; i++) {
      CHECK_OK(jitsym_region_grow(session, exec, (uint64_t)i * SIZE));
      CHECK(has_flag(exec, part, "lo"));
      check_kept(exec, part);
      put_code((unsigned char *)region.write + i * SIZE - CODE_SIZE, 430);
      CHECK(run_code(exec + i * SIZE - CODE_SIZE) == 430 && run_code(exec) == 412);
    }
    CHECK_OK(jitsym_unregister(session, id));
    CHECK_OK(jitsym_region_release(session, exec));
  }
  CHECK_OK(jitsym_close(session));
}

static void adopted_memory_keeps(void) {
  jitsym *session = open_regions();
  for (int changes = 0; changes < 2; changes++) {
    unsigned char *memory = memory_of(SIZE, RWX);
    put_code(memory, 440);
    for (size_t i = 0; i < KEPT; i++) {
      CHECK(madvise(memory, SIZE / 2, kept[i].advice) == 0);
    }
    CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
    CHECK(is_of_file(memory, "/jit") && run_code(memory) == 440);
    check_kept(memory, SIZE / 2);
    CHECK(!has_flag(memory + SIZE / 2, SIZE / 2, "dd"));
    if (changes) {
      CHECK(madvise(memory, SIZE / 2, MADV_DODUMP) == 0 && madvise(memory, SIZE / 2, MADV_DOFORK) == 0);
      CHECK(syscall(SYS_mlock, memory + SIZE / 2, PAGE) == 0);
    }
    CHECK_OK(jitsym_region_release(session, memory));
    CHECK(!is_of_file(memory, "/jit") && run_code(memory) == 440);
    CHECK(has_flag(memory, SIZE / 2, "rr") && has_flag(memory, SIZE / 2, "dd") == !changes);
    CHECK(has_flag(memory, SIZE / 2, "dc") == !changes && has_flag(memory + SIZE / 2, PAGE, "lo") == changes);
    CHECK(!has_flag(memory + SIZE / 2 + PAGE, PAGE, "lo"));
    CHECK(munmap(memory, SIZE) == 0);
  }
  CHECK_OK(jitsym_close(session));
}

/* A key stays with its memory: the memory cannot be read while the key forbids this. */
static void adopted_memory_keeps_its_key(void) {
  int key = pkey_alloc(0, 0);
  if (key < 0) {
    return;
  }
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(SIZE, RWX);
  put_code(memory, 450);
  CHECK(pkey_mprotect(memory, SIZE, RWX, key) == 0);
  CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  for (int released = 0; released < 2; released++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      CHECK(pkey_set(key, PKEY_DISABLE_ACCESS) == 0);
      (void)*(volatile unsigned char *)memory;
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(run_code(memory) == 450);
    CHECK_OK(released ? JITSYM_OK : jitsym_region_release(session, memory));
  }
  CHECK_OK(jitsym_close(session));
}

/* Memory that no mapping of a file can replace is not adopted, neither by a call nor by itself. */
static void refused(void) {
  int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
  for (int automatic = 0; automatic < 2; automatic++) {
    jitsym *session = test_open_flags(JITSYM_SINK_REGION, automatic ? JITSYM_INIT_ADOPT : 0);
    for (int kind = 0; kind < 4; kind++) {
      /* Pages without rights at both ends keep the kernel from merging the memory with other memory. */
      unsigned char *memory = memory_of(SIZE + 2 * PAGE, PROT_NONE) + PAGE;
      CHECK(mprotect(memory, SIZE, RWX) == 0);
      put_code(memory + PAGE, 460);
      unsigned long node = 1;
      if (kind == 0) {
        CHECK(madvise(memory + PAGE, PAGE, MADV_WIPEONFORK) == 0);
      } else if (kind == 1) {
        CHECK(syscall(SYS_mlock, memory + PAGE, (size_t)PAGE) == 0);
      } else if (kind == 2) {
        if (syscall(SYS_mbind, memory + PAGE, PAGE, 1 /* MPOL_PREFERRED */, &node, 64, 0) != 0) {
          CHECK(errno == ENOSYS || errno == EPERM);
          continue;
        }
      } else {
        struct uffdio_api api = {UFFD_API, 0, 0};
        struct uffdio_register range = {{(uintptr_t)memory + PAGE, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
        if (faults < 0 || (!automatic && ioctl(faults, UFFDIO_API, &api) != 0)) {
          continue;
        }
        CHECK(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
      }
      if (automatic) {
        announce(session, memory + PAGE, "in memory that is not adopted");
      } else {
        CHECK_STATUS(kind == 1 ? JITSYM_ERR_LOCKED : JITSYM_ERR_NOT_PLAIN, jitsym_region_adopt(session, memory, SIZE));
      }
      CHECK(mapping_at(memory).path[0] == 0 && mapping_at(memory + PAGE).path[0] == 0 && run_code(memory + PAGE) == 460);
      CHECK(munmap(memory + PAGE, PAGE) == 0);
    }
    /* The control: other memory is. */
    unsigned char *plain = memory_of(SIZE + 2 * PAGE, PROT_NONE) + PAGE;
    CHECK(mprotect(plain, SIZE, RWX) == 0);
    put_code(plain, 461);
    if (automatic) {
      announce(session, plain, "in memory that is adopted");
    } else {
      CHECK_OK(jitsym_region_adopt(session, plain, SIZE));
    }
    CHECK(is_of_file(plain, "/jit") && run_code(plain) == 461);
    CHECK_OK(jitsym_close(session));
  }
}

/* ------------------------------------------------------------------------------------------------ failures */

/* A release for which there is no memory has no effect, and succeeds later. */
static void release_fails_whole(void) {
  enum { PARTS = 4, PART = 64 * PAGE, ALL = 16 * PART };
  jitsym *session = open_regions();
  unsigned char *memory = memory_of(ALL, RWX);
  for (uint32_t i = 0; i < PARTS; i++) {
    put_code(memory + i * PART, 470 + i);
    CHECK(mprotect(memory + i * PART, i + 1 < PARTS ? PART : ALL - i * PART, i % 2 ? RX : RWX) == 0);
  }
  CHECK_OK(jitsym_region_adopt(session, memory, ALL));
  announce(session, memory, "before");
  CHECK_OK(test_flush(session));
  size_t size;
  char *text = (char *)file_read("/proc/self/statm", &size);
  struct rlimit before, limit;
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  limit = before;
  /* There is room for all parts but the last one. */
  limit.rlim_cur = strtoul(text, NULL, 10) * PAGE + 8 * PART;
  free(text);
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_region_release(session, memory));
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  uint64_t code = test_stats(session).region_code;
  for (uint32_t i = 0; i < PARTS; i++) {
    CHECK(is_of_file(memory + i * PART, "/jit") && run_code(memory + i * PART) == 470 + i);
    announce_bytes(session, memory + i * PART + 64, memory, "behind");
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.regions == 1 && stats.region_code == code + PARTS);
  CHECK_OK(jitsym_region_release(session, memory));
  for (uint32_t i = 0; i < PARTS; i++) {
    CHECK(!is_of_file(memory + i * PART, "/jit") && run_code(memory + i * PART) == 470 + i);
  }
  CHECK_OK(jitsym_close(session));
}

/* Makes memfd_create fail if one of the bits is set in its flags, or if none is. */
static void forbid_memfd(uint32_t bits, int if_set, uint32_t error) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, if_set ? 0 : 1, if_set ? 1 : 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void has_memory_without_file(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  jitsym_region region = test_region(session, SIZE, 0);
  put_code(region.write, 480);
  CHECK(run_code(region.exec) == 480 && is_of_file(region.exec, "/memfd:jitsym"));
  CHECK_OK(jitsym_close(session));
}

/* With vm.memfd_noexec=2, Linux 6.3 to 6.5 refuse a file that does not say that nobody will execute it as a program. */
static void memfd_noexec(void) {
  forbid_memfd(8 /* MFD_NOEXEC_SEAL */, 0, EACCES);
  has_memory_without_file();
}

/* Linux before 6.3 does not know the flag. */
static void memfd_of_old_kernels(void) {
  forbid_memfd(8 | 16 /* MFD_NOEXEC_SEAL, MFD_EXEC */, 1, EINVAL);
  has_memory_without_file();
}

int main(int argc, char **argv) {
  static void (*const parts[])(void) = {
      heap_grows,
      heap_and_stack_grow_beside_adopted_memory,
      host_maps_again,
      host_uses_its_hole,
      host_unmaps_created_regions,
      nothing_is_left,
      created_memory_keeps,
      adopted_memory_keeps,
      adopted_memory_keeps_its_key,
      refused,
      release_fails_whole,
      memfd_noexec,
      memfd_of_old_kernels,
  };

  test_begin(argc, argv);
  size_t count = argc >= 3 && strcmp(argv[2], "heap") == 0 ? 1 : sizeof parts / sizeof *parts;
  for (size_t i = 0; i < count; i++) {
    test_child(parts[i]);
  }
  return test_end();
}
