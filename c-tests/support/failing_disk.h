/*
 * A disk that fails: stands in front of the C library's function. Of a write that is to fail some bytes are written before,
 * as a full disk does; and then an error comes.
 */
#ifndef FAILING_DISK_H
#define FAILING_DISK_H

#include <errno.h>
#include <limits.h>
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
} disk;

ssize_t writev(int file, const struct iovec *parts, int count) {
  if (__atomic_load_n(&disk.error, __ATOMIC_SEQ_CST) != 0) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/thread-self/fd/%d", file);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len > 0 ? len : 0] = 0;
    if (strstr(path, disk.name) != NULL) {
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
  }
  return syscall(SYS_writev, file, parts, count);
}

static void disk_fails(const char *name, int error, size_t partly) {
  disk.name = name;
  disk.partly = partly;
  __atomic_store_n(&disk.error, error, __ATOMIC_SEQ_CST);
}

#endif
