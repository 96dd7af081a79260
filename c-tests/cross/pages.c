/*
 * Preloaded, it has a program believe in pages of 64 KiB, as kernels for aarch64 may have: that is what it is told; every
 * mapping whose place it leaves open begins with such a page and fills the last one; and what is done to the last page is
 * done to all of it. Such a kernel refuses what begins within a page. The library might not mind; but it should never come to
 * that, so it ends the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 65536 };

static size_t whole_pages(size_t size) {
  return (size + PAGE - 1) / PAGE * PAGE;
}

static void begins_with_page(uint64_t at) {
  if (at % PAGE != 0) {
    static const char message[] = "not the begin of a page\n";
    syscall(SYS_write, 2, message, sizeof message - 1);
    abort();
  }
}

/* A system call about memory. */
static long on_pages(long number, void *at, size_t size, long argument) {
  begins_with_page((uintptr_t)at);
  return syscall(number, at, whole_pages(size), argument);
}

static void *map(void *at, size_t size, int protection, int flags, int file, off_t offset) {
#if defined(__s390x__)
  unsigned long arguments[] = {(unsigned long)at,    size, (unsigned long)protection, (unsigned long)flags,
                               (unsigned long)file, (unsigned long)offset};
  return (void *)syscall(SYS_mmap, arguments);
#elif defined(SYS_mmap2)
  return (void *)syscall(SYS_mmap2, at, size, protection, flags, file, offset / 4096);
#else
  return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
#endif
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
  begins_with_page((uint64_t)offset);
  if (flags & MAP_FIXED) {
    begins_with_page((uintptr_t)at);
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

/* As the library uses it: for memory that may move, or is to move to a place. */
void *mremap(void *at, size_t from, size_t to, int flags, ...) {
  begins_with_page((uintptr_t)at);
  if (flags & MREMAP_FIXED) {
    va_list rest;
    va_start(rest, flags);
    void *to_place = va_arg(rest, void *);
    va_end(rest);
    begins_with_page((uintptr_t)to_place);
    return (void *)syscall(SYS_mremap, at, whole_pages(from), whole_pages(to), flags, to_place);
  }
  if (whole_pages(to) == whole_pages(from)) {
    return at;
  }
  void *place = mmap(NULL, to, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) {
    return place;
  }
  flags |= MREMAP_MAYMOVE | MREMAP_FIXED;
  return (void *)syscall(SYS_mremap, at, whole_pages(from), whole_pages(to), flags, place);
}
