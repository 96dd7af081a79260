/*
 * Stands in front of the C library's cancellation points, for a program that is started with it (LD_PRELOAD): none may be
 * called by the library on a thread of the host that can be cancelled there. tests/c_tests.rs sees to it that none is missing.
 * The first call of the library makes the file TEST_SEEN (an environment variable): without it nothing was watched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void check(const char *name, const void *caller) {
  static int seen;
  Dl_info object;
  char thread[16];
  int state;
  if (dladdr(caller, &object) == 0) {
    return;
  }
  /* The name alone: the program may lie in a folder that is called like the library. */
  const char *file = strrchr(object.dli_fname, '/');
  if (file == NULL || strncmp(file, "/libjitsym.so", strlen("/libjitsym.so")) != 0) {
    return;
  }
  if (!seen) {
    seen = 1;
    int made = (int)syscall(SYS_openat, AT_FDCWD, getenv("TEST_SEEN"), O_CREAT | O_WRONLY, 0600);
    syscall(SYS_close, made);
  }
  prctl(PR_GET_NAME, thread);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  pthread_setcancelstate(state, NULL);
  if (state == PTHREAD_CANCEL_ENABLE && strncmp(thread, "jitsym-", 7) != 0) {
    char text[128];
    int size = snprintf(text, sizeof text, "%s on a thread that can be cancelled\n", name);
    syscall(SYS_write, 2, text, size);
    abort();
  }
}

#define POINT(result, name, parameters, ...)                                   \
  result name parameters {                                                     \
    check(#name, __builtin_return_address(0));                                 \
    result (*next) parameters = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
    return next(__VA_ARGS__);                                                  \
  }

POINT(int, close, (int file), file)
POINT(int, msync, (void *start, size_t size, int flags), start, size, flags)
POINT(int, pthread_join, (pthread_t thread, void **result), thread, result)
POINT(ssize_t, read, (int file, void *to, size_t size), file, to, size)
POINT(ssize_t, write, (int file, const void *from, size_t size), file, from, size)
POINT(ssize_t, writev, (int file, const struct iovec *parts, int count), file, parts, count)
POINT(ssize_t, pread64, (int file, void *to, size_t size, off64_t at), file, to, size, at)
POINT(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), file, from, size, at)
POINT(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), file, from, size, at)
POINT(ssize_t, pwritev, (int file, const struct iovec *parts, int count, off_t at), file, parts, count, at)
POINT(int, fallocate64, (int file, int mode, off64_t at, off64_t size), file, mode, at, size)
POINT(ssize_t, getrandom, (void *to, size_t size, unsigned flags), to, size, flags)
POINT(int, clock_nanosleep, (clockid_t clock, int flags, const struct timespec *time, struct timespec *rest), clock, flags,
      time, rest)
POINT(int, sigtimedwait, (const sigset_t *set, siginfo_t *info, const struct timespec *time), set, info, time)

POINT(int, poll, (struct pollfd *files, nfds_t count, int milliseconds), files, count, milliseconds)
POINT(int, select, (int count, fd_set *in, fd_set *out, fd_set *other, struct timeval *time), count, in, out, other, time)

/* Those with as many arguments as the caller has: reading one more than there are does no harm. */
#define POINT_WITH_MORE(name, last, parameters, ...)                                     \
  int name parameters {                                                                  \
    check(#name, __builtin_return_address(0));                                           \
    va_list rest;                                                                        \
    va_start(rest, last);                                                                \
    void *more = va_arg(rest, void *);                                                   \
    va_end(rest);                                                                        \
    int (*next) parameters = (int (*) parameters)dlsym(RTLD_NEXT, #name);                \
    return next(__VA_ARGS__, more);                                                      \
  }

POINT_WITH_MORE(open64, flags, (const char *path, int flags, ...), path, flags)
POINT_WITH_MORE(open, flags, (const char *path, int flags, ...), path, flags)
POINT_WITH_MORE(openat64, flags, (int dir, const char *path, int flags, ...), dir, path, flags)
POINT_WITH_MORE(fcntl, command, (int file, int command, ...), file, command)
