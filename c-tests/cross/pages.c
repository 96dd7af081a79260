/*
 * Preloaded, it has a program believe in pages of 64 KiB, as kernels for aarch64 may have: that is what it is told; every
 * mapping whose place it leaves open begins with such a page and fills the last one; and what is done to a part of a page is
 * refused, as such a kernel refuses it, or done to all of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 65536 };

static size_t whole_pages(size_t size) {
  return (size + PAGE - 1) / PAGE * PAGE;
}

/* A system call about memory, unless it is refused. */
static long on_pages(long number, void *at, size_t size, long argument) {
  if ((uintptr_t)at % PAGE != 0) {
    errno = EINVAL;
    return -1;
  }
  return syscall(number, at, whole_pages(size), argument);
}

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

int munmap(void *at, size_t size) {
  return (int)on_pages(SYS_munmap, at, size, 0);
}

int mprotect(void *at, size_t size, int protection) {
  return (int)on_pages(SYS_mprotect, at, size, protection);
}

int madvise(void *at, size_t size, int advice) {
  return (int)on_pages(SYS_madvise, at, size, advice);
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
  if (offset % PAGE != 0 || ((flags & MAP_FIXED) && (uintptr_t)at % PAGE != 0)) {
    errno = EINVAL;
    return MAP_FAILED;
  }
  size_t whole = whole_pages(size);
  if (at != NULL) {
    return map(at, flags & MAP_ANONYMOUS ? whole : size, protection, flags, file, offset);
  }
  char *room = map(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return room;
  }
  char *begin = (char *)whole_pages((uintptr_t)room);
  size_t before = (size_t)(begin - room);
  if (before > 0) {
    syscall(SYS_munmap, room, before);
  }
  syscall(SYS_munmap, begin + whole, PAGE - before);
  void *mapped = map(begin, flags & MAP_ANONYMOUS ? whole : size, protection, flags | MAP_FIXED, file, offset);
  if (mapped == MAP_FAILED) {
    syscall(SYS_munmap, begin, whole);
  }
  return mapped;
}

void *mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset) {
  return mmap(at, size, protection, flags, file, offset);
}
