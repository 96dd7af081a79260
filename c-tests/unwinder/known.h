/* Calls after which the unwinder knows of a change. */
#ifndef KNOWN_H
#define KNOWN_H

#include "testing.h"

/*
 * A call that has waited for a second returns though the library's thread has not come to it. On a machine that is as busy as that
 * the program waits by itself.
 */
#define CHECK_KNOWN(session, call)                    \
  do {                                                \
    uint64_t begin_ = test_now();                     \
    CHECK_OK(call);                                   \
    if (test_now() - begin_ > 900000000) {            \
      CHECK_OK(jitsym_flush((session), 600000));      \
    }                                                 \
  } while (0)

#endif
