/*
 * Stands between a program and its disk (LD_PRELOAD): writes to a jitdump are made slow, blocked, or cut off in the
 * middle, as SLOW_DISK says:
 *
 *   rate=N       no more than N bytes per second
 *   pause_ms=N   once in 16 MiB, so long nothing at all
 *   block_at=N   the write that would pass offset N is never made
 *   hang_new=1   no write is ever made to a file that is to replace the jitdump
 *   tear_at=N    of the write that would pass offset N only what lies before N is made, and it never returns
 *
 * Numbers are decimal. Writes to other files pass. SLOW_DISK_HANGS names a file that is made when a write hangs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t due, until_pause;

static uint64_t setting(const char *name) {
  const char *all = getenv("SLOW_DISK");
  const char *at = all == NULL ? NULL : strstr(all, name);
  return at == NULL ? 0 : strtoull(at + strlen(name), NULL, 10);
}

/* Whether a file's name begins so. */
static int is_named(int fd, const char *begin) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  return strstr(path, begin) != NULL;
}

static void sleep_ns(uint64_t ns) {
  struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  nanosleep(&time, NULL);
}

/* How many of these bytes may be written now; -1 if the write is to hang after that. */
static size_t admit(int fd, off_t offset, size_t size, int *hang) {
  *hang = setting("hang_new=") != 0 && is_named(fd, "/.jit-");
  if (*hang || !is_named(fd, "/jit-")) {
    return *hang ? 0 : size;
  }
  uint64_t at = offset >= 0 ? (uint64_t)offset : (uint64_t)lseek(fd, 0, SEEK_END);
  uint64_t block = setting("block_at="), tear = setting("tear_at=");
  uint64_t rate = setting("rate="), pause = setting("pause_ms=");
  uint64_t limit = block != 0 ? block : tear;
  if (limit != 0 && at + size > limit) {
    *hang = 1;
    return tear != 0 && at < limit ? (size_t)(limit - at) : 0;
  }
  pthread_mutex_lock(&lock);
  if (pause != 0 && until_pause <= size) {
    until_pause = 16 << 20;
    sleep_ns(pause * 1000000);
  } else {
    until_pause -= size;
  }
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  if (rate != 0) {
    due = due > ns ? due : ns;
    due += (uint64_t)size * 1000000000 / rate;
  }
  uint64_t wait = due > ns ? due - ns : 0;
  pthread_mutex_unlock(&lock);
  sleep_ns(wait);
  return size;
}

static void hang_for_ever(void) {
  const char *told = getenv("SLOW_DISK_HANGS");
  if (told != NULL) {
    close(open(told, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }
  for (;;) {
    pause();
  }
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *bytes, size_t size) {
  int hang;
  size_t part = admit(fd, -1, size, &hang);
  ssize_t written = hang && part == 0 ? 0 : NEXT(write)(fd, bytes, part);
  if (hang) {
    hang_for_ever();
  }
  return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
  int hang;
  size_t part = admit(fd, offset, size, &hang);
  ssize_t written = hang && part == 0 ? 0 : NEXT(pwrite)(fd, bytes, part, offset);
  if (hang) {
    hang_for_ever();
  }
  return written;
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) {
  return pwrite(fd, bytes, size, (off_t)offset);
}

static size_t sum(const struct iovec *pieces, int count) {
  size_t size = 0;
  for (int i = 0; i < count; i++) {
    size += pieces[i].iov_len;
  }
  return size;
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
  int hang;
  size_t part = admit(fd, -1, sum(pieces, count), &hang);
  if (!hang) {
    return NEXT(writev)(fd, pieces, count);
  }
  for (int i = 0; i < count && part > 0; i++) {
    size_t size = pieces[i].iov_len < part ? pieces[i].iov_len : part;
    if (NEXT(write)(fd, pieces[i].iov_base, size) != (ssize_t)size) {
      abort();
    }
    part -= size;
  }
  hang_for_ever();
  return -1;
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
  int hang;
  size_t part = admit(fd, offset, sum(pieces, count), &hang);
  if (!hang) {
    return NEXT(pwritev)(fd, pieces, count, offset);
  }
  for (int i = 0; i < count && part > 0; i++) {
    size_t size = pieces[i].iov_len < part ? pieces[i].iov_len : part;
    if (NEXT(pwrite)(fd, pieces[i].iov_base, size, offset) != (ssize_t)size) {
      abort();
    }
    part -= size;
    offset += (off_t)size;
  }
  hang_for_ever();
  return -1;
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) {
  return pwritev(fd, pieces, count, (off_t)offset);
}
