/*
 * Checks that stop the program: file and line on standard error, exit status 1. Usable from C99 on and from C++11 on.
 *
 * _exit, not exit: a check may fail in a forked child or while other threads run, where handlers registered by the library
 * under test must not get the chance to hang or to repair what was found broken.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <unistd.h>

#include "jitsym.h"

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: pid %d: CHECK(%s)\n", __FILE__, __LINE__, (int)getpid(), #condition); \
      _exit(1);                                                                                 \
    }                                                                                           \
  } while (0)

/* That a call comes to a status; says which one it was. */
#define CHECK_STATUS(expected, call)                                                                          \
  do {                                                                                                        \
    jitsym_status check_status_ = (call);                                                                     \
    if (check_status_ != (expected)) {                                                                        \
      fprintf(stderr, "%s:%d: pid %d: %s is %s, expected %s\n", __FILE__, __LINE__, (int)getpid(), #call,     \
              jitsym_status_name((int32_t)check_status_), jitsym_status_name((int32_t)(expected)));           \
      _exit(1);                                                                                               \
    }                                                                                                         \
  } while (0)

#define CHECK_OK(call) CHECK_STATUS(JITSYM_OK, call)

#endif
