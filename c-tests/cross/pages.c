/*
 * Preloaded, it has a program believe in pages of 64 KiB, as kernels for aarch64 may have: that is what it is told, and every
 * mapping whose place it leaves open begins with such a page and fills the last one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 65536 };

static void *map(void *at, size_t size, int protection, int flags, int file, off_t offset) {
  return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

long sysconf(int name) {
  long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return name == _SC_PAGESIZE ? PAGE : real(name);
}

int getpagesize(void) {
  return PAGE;
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
  if (at != NULL) {
    return map(at, size, protection, flags, file, offset);
  }
  size_t whole = (size + PAGE - 1) / PAGE * PAGE;
  char *room = map(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return room;
  }
  char *begin = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
  size_t before = (size_t)(begin - room);
  if (before > 0) {
    munmap(room, before);
  }
  munmap(begin + whole, PAGE - before);
  void *mapped = map(begin, flags & MAP_ANONYMOUS ? whole : size, protection, flags | MAP_FIXED, file, offset);
  if (mapped == MAP_FAILED) {
    munmap(begin, whole);
  }
  return mapped;
}

void *mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset) {
  return mmap(at, size, protection, flags, file, offset);
}
