/*
 * A disk that fails, or is slow: stands in front of the C library's function. Of a write that is to fail some bytes are written
 * before, as a full disk does; and then an error comes. A slow write has written everything, and does not return yet.
 */
#ifndef FAILING_DISK_H
#define FAILING_DISK_H

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static struct {
  const char *name;
  int error;
  size_t partly;
  unsigned failed;
  /* A slow one, which is not slow for a child: how many writes have begun, and how many of them may end. */
  pid_t is_slow;
  unsigned begun, allowed;
} disk;

static int disk_is_meant(int file) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/thread-self/fd/%d", file);
  ssize_t len = readlink(link, path, sizeof path - 1);
  path[len > 0 ? len : 0] = 0;
  return strstr(path, disk.name) != NULL;
}

static int disk_is_slow_here(void) {
  return __atomic_load_n(&disk.is_slow, __ATOMIC_SEQ_CST) == getpid();
}

/* A write that has been made returns when it may. */
static void disk_waits(void) {
  unsigned number = __atomic_add_fetch(&disk.begun, 1, __ATOMIC_SEQ_CST);
  while (disk_is_slow_here() && number > __atomic_load_n(&disk.allowed, __ATOMIC_SEQ_CST)) {
    usleep(1000);
  }
}

ssize_t pwrite64(int file, const void *bytes, size_t size, __off64_t offset) {
  /* By the call that takes the offset in two halves on every machine. */
  struct iovec part = {(void *)(uintptr_t)bytes, size};
  ssize_t written = syscall(SYS_pwritev, file, &part, 1, (long)offset, (long)(offset >> 32));
  if (disk_is_slow_here() && disk_is_meant(file)) {
    disk_waits();
  }
  return written;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
  if (disk_is_slow_here() && disk_is_meant(file)) {
    ssize_t written = syscall(SYS_writev, file, parts, count);
    disk_waits();
    return written;
  }
  if (__atomic_load_n(&disk.error, __ATOMIC_SEQ_CST) != 0 && disk_is_meant(file)) {
    disk.failed++;
    size_t partly = disk.partly;
    disk.partly = 0;
    for (int i = 0; i < count && partly > 0; i++) {
      size_t size = parts[i].iov_len < partly ? parts[i].iov_len : partly;
      if (size > 0) {
        return syscall(SYS_write, file, parts[i].iov_base, size);
      }
    }
    errno = disk.error;
    return -1;
  }
  return syscall(SYS_writev, file, parts, count);
}

static inline void disk_fails(const char *name, int error, size_t partly) {
  disk.name = name;
  disk.partly = partly;
  __atomic_store_n(&disk.error, error, __ATOMIC_SEQ_CST);
}

/* From now on a write to such a file ends only when it is allowed, or the disk is not slow any more. */
static inline void disk_is_slow(const char *name) {
  disk.name = name;
  disk.begun = disk.allowed = 0;
  __atomic_store_n(&disk.is_slow, getpid(), __ATOMIC_SEQ_CST);
}

/* Waits for a write to begin, the one of this number. All before it may end. */
static inline void disk_begins(unsigned number) {
  __atomic_store_n(&disk.allowed, number - 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&disk.begun, __ATOMIC_SEQ_CST) < number) {
    usleep(1000);
  }
}

#endif
