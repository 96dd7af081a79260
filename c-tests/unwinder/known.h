/* Calls after which the unwinder knows of a change. */
#ifndef KNOWN_H
#define KNOWN_H

#include "testing.h"

/* A call may say that the library's thread has not come to it, for instance on a busy machine. A flush waits for that. */
#define CHECK_KNOWN(session, call)                     \
  do {                                                 \
    jitsym_status known_ = (call);                     \
    if (known_ == JITSYM_ERR_TIMEOUT) {                \
      known_ = test_flush(session);                   \
    }                                                  \
    CHECK_STATUS(JITSYM_OK, known_);                   \
  } while (0)

#endif
