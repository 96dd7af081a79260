/*
 * Names of files that cannot be removed or changed: stands in front of the C library's functions. Only new files that are about to
 * replace others are meant, and what these have been.
 */
#ifndef FAILING_NAMES_H
#define FAILING_NAMES_H

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How many calls are to fail, of each kind. */
static struct {
  unsigned removals, renames, exchanges;
  /* Called once, when two files have got each other's names. */
  void (*exchanged)(const char *fresh);
} names;

static int name_is_new(const char *name) {
  size_t len = strlen(name);
  return len > 4 && strcmp(name + len - 4, ".new") == 0;
}

static int name_fails(unsigned *count) {
  if (*count == 0) {
    return 0;
  }
  --*count;
  errno = EIO;
  return 1;
}

long syscall(long number, ...) {
  static long (*original)(long, ...);
  long parts[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) {
    parts[i] = va_arg(list, long);
  }
  va_end(list);
  if (__atomic_load_n(&original, __ATOMIC_RELAXED) == NULL) {
    long (*found)(long, ...);
    *(void **)&found = dlsym(RTLD_NEXT, "syscall");
    __atomic_store_n(&original, found, __ATOMIC_RELAXED);
  }
  int is_exchange = number == SYS_renameat2 && parts[4] != 0 && name_is_new((const char *)parts[1]);
  if (is_exchange && names.exchanged == NULL && name_fails(&names.exchanges)) {
    return -1;
  }
  long result = original(number, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]);
  if (is_exchange && result == 0 && names.exchanged != NULL) {
    void (*exchanged)(const char *) = names.exchanged;
    names.exchanged = NULL;
    exchanged((const char *)parts[1]);
  }
  return result;
}

int unlinkat(int dir, const char *name, int flags) {
  if (name_is_new(name) && name_fails(&names.removals)) {
    return -1;
  }
  return (int)syscall(SYS_unlinkat, dir, name, flags);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
  if (name_is_new(from) && name_fails(&names.renames)) {
    return -1;
  }
  return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

#endif
