/* Has something run while another thread, in a constructor and then in a destructor, holds the loader's lock (holder.c). */
#ifndef HOLDER_H
#define HOLDER_H

#include <dlfcn.h>
#include <pthread.h>

#include "testing.h"

/* Called by the thread that has the lock. */
void while_held(void);

/* What the other thread is about to do, for a message if it never comes to its end. */
static const char *held_call;

/* The control: what asks the loader does not come back. */
static int held_asks, held_answered;

static inline void *held_ask(void *unused) {
  __atomic_store_n(&held_asks, 1, __ATOMIC_SEQ_CST);
  CHECK(dlsym(RTLD_DEFAULT, "malloc") != NULL);
  __atomic_store_n(&held_answered, 1, __ATOMIC_SEQ_CST);
  return unused;
}

static inline pthread_t held_begin(void) {
  pthread_t asker;
  held_asks = held_answered = 0;
  CHECK(pthread_create(&asker, NULL, held_ask, NULL) == 0);
  TEST_AWAIT(__atomic_load_n(&held_asks, __ATOMIC_SEQ_CST));
  return asker;
}

/* The thread that asks goes on when the lock is free. */
static inline void held_end(pthread_t asker) {
  CHECK(!__atomic_load_n(&held_answered, __ATOMIC_SEQ_CST));
  CHECK(pthread_detach(asker) == 0);
}

/* Waits for what the other thread does. */
static inline void held_await(const int *done) {
  for (unsigned turns = 0; !__atomic_load_n(done, __ATOMIC_SEQ_CST);) {
    if (!test_turn_of(&turns, TEST_TURNS)) {
      fprintf(stderr, "never came back: %s\n", held_call);
      _exit(1);
    }
  }
}

static inline void held_load_and_unload(const char *object) {
  void *handle = dlopen(object, RTLD_NOW);
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  }
  CHECK(handle != NULL && dlclose(handle) == 0);
}

#endif
