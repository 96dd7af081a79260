/*
 * A program that makes random code in regions, runs it, and writes down which code lay where and when. Code comes, runs and dies at
 * full speed. Now and then a call of it goes through `enter_code`, from where on somebody steps.
 *
 *     random_code WORKLOAD SEED CALLS TRUTH region|jitdump
 *     random_code list
 *
 * It has its own generator of code, so that it shares no error with the programs of c-tests/matrix.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jitsym.h"

#if !defined(__x86_64__)
#error "this program emits x86-64 code"
#endif

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { PAGE = 4096, CHAIN_MAX = 10 };

extern jitsym *session;
extern uint32_t sinks;

_Noreturn void fail(const char *what);
void check(jitsym_status status, const char *what);

/* ------------------------------------------------------------------------------------------------ chance */

struct rng {
  uint64_t state;
};

/* splitmix64 */
static inline uint64_t any(struct rng *rng) {
  uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static inline uint32_t below(struct rng *rng, uint64_t end) {
  return (uint32_t)(any(rng) % end);
}

static inline int one_in(struct rng *rng, uint32_t n) {
  return below(rng, n) == 0;
}

/* ------------------------------------------------------------------------------------------------ code */

enum shape { BARE, POINTER, FIXED, ROWS, REALIGNED, EXPRESSION, ENDS_WITH_CALL, DROPS_FRAME, SHAPES };

enum { CODE_MAX = 8192, PARTS_MAX = 3, ROWS_MAX = 16, SAVED_MAX = 6, EH_MAX = 128 };

/* A part of a piece that is registered by itself. */
struct part {
  uint32_t at, size;
  jitsym_unwind unwind;
  jitsym_unwind_row rows[ROWS_MAX];
  jitsym_saved_register saved[ROWS_MAX][SAVED_MAX];
  uint8_t eh_frame[EH_MAX];
};

/* Code as it is made. Its parts lie one after the other; time is spent in part `main`, and callers enter at offset 0. */
struct piece {
  enum shape shape;
  /* Bytes of stack, without the return address. */
  uint32_t frame;
  uint32_t size, part_count, main;
  struct part parts[PARTS_MAX];
  uint8_t bytes[CODE_MAX];
};

/*
 * The bytes of a frame are at most `room`, unless the shape needs more by itself (176). Code runs anywhere.
 *
 * All code takes `rdi`, how often to go round, and `rsi`, the addresses of the functions to call next. It goes round, calls the
 * next one unless that is 0, and goes round again.
 */
void make_piece(struct piece *piece, struct rng *rng, enum shape shape, uint32_t room);

/* ------------------------------------------------------------------------------------------------ memory */

enum origin { CREATED, CREATED_ONE_VIEW, ADOPTED };
enum flips { NO_FLIPS, FLIP_PAGES, FLIP_RUN, FLIP_ARENA };
enum layout { PACKED, ALIGNED, GAPS };

struct hole {
  uint64_t at, size;
};

struct arena {
  enum origin origin;
  enum flips flips;
  enum layout layout;
  uint8_t *exec, *write;
  uint64_t size, max_size;
  /* Nothing was ever put there or above it. */
  uint64_t fresh;
  /* Memory that may be used again. */
  struct hole *holes;
  uint32_t hole_count, hole_room;
  int has_last;
};

struct arena *arena_new(struct rng *rng, enum origin origin, enum flips flips, uint64_t size, uint64_t max_size);
/* Turns memory of the program's own into a region before code in it runs, unless the library does that by itself. */
void arena_adopt(struct arena *arena, int is_automatic);
/* Whether there is room for `size` bytes, at `*at` then. `last`: right at the end of the arena, where there is nothing yet. */
int arena_take(struct arena *arena, struct rng *rng, uint32_t size, int reuses, int last, uint64_t *at);
void arena_give(struct arena *arena, uint64_t at, uint32_t size);
/* Writes bytes (NULL: breakpoints). Nobody runs code in an arena that is flipped meanwhile. */
void arena_write(struct arena *arena, struct rng *rng, uint64_t at, const uint8_t *bytes, uint32_t size,
                 void (*while_writable)(void *), void *argument);

/* ------------------------------------------------------------------------------------------------ life */

enum { ANY_FLIPS = FLIP_ARENA + 1, ANY_OR_NO_FLIPS };
enum life { COMES, DIES, REUSES };
enum { MORE_THREADS = 3, ARENAS_MAX = 8, FUNCTIONS_MAX = 20000 };

/* Features of a workload. */
enum {
  MOVES = 1 << 0,
  THREADS = 1 << 1,
  SIGNALS = 1 << 2,
  /* Libraries are loaded and unloaded meanwhile. */
  LIBRARIES = 1 << 3,
  FORKS = 1 << 4,
  GROWS = 1 << 5,
  /* Functions whose last instruction is a call, one of them at the end of its arena. */
  ENDS = 1 << 6,
  SIX_ARENAS = 1 << 7,
  /* Memory is adopted when there is code in it. */
  LATE = 1 << 8,
  /* Calls are short, so that code comes and dies more often. */
  SHORT = 1 << 9,
  /* Nobody tells the library that code is dead. */
  SILENT = 1 << 10,
  /* The library adopts memory by itself. */
  AUTOMATIC = 1 << 11,
  /* All code is registered while it is still writable; otherwise, a quarter. */
  EARLY = 1 << 12,
  /* Memory between code is writable, and not executable. */
  HAS_GAPS = 1 << 13,
  ALL = MOVES | THREADS | SIGNALS | LIBRARIES,
};

struct workload {
  const char *name;
  enum origin origin;
  int flips;
  enum life life;
  /* Calls between two deaths. */
  uint32_t period;
  uint32_t features;
};

struct function {
  struct arena *arena;
  uint64_t at;
  enum shape shape;
  uint32_t size, frame, name, part_count, main;
  struct {
    uint32_t at, size, code;
    jitsym_id id;
  } parts[PARTS_MAX];
};

/* A thread with its own functions, in arenas that all share. */
struct worker {
  struct rng rng;
  pthread_t thread;
  const char *root;
  /* How many calls it makes at least, and until when; and how many it has made. */
  uint32_t wanted, calls;
  uint64_t until;
  uint32_t count;
  struct function functions[FUNCTIONS_MAX];
  /* As it is made. */
  struct piece piece;
};

extern const struct workload *workload;
extern struct arena *arenas[ARENAS_MAX];
extern uint32_t arena_count, names, step_every;
/* For `names` and the arenas. */
extern pthread_mutex_t lock;
/* In workloads that fork, only children are stepped, because the truth does not tell one process's code from that of another. */
extern int is_logged;

/* Whether there was room for another function. */
int come(struct worker *worker);
void move(struct worker *worker);
/* Code comes and dies as the workload says. */
void live(struct worker *worker);
/* Calls a random chain of functions. */
void run(struct worker *worker);

/* ------------------------------------------------------------------------------------------------ truth */

uint64_t now(void);
void truth_open(const char *path);
void truth_option(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* This process begins, or has been forked. */
void truth_process(void);
/* Returns the number of the entry. */
uint32_t truth_code(uint64_t addr, uint32_t size, const char *prefix, uint32_t name);
void truth_code_ends(uint32_t code);
/* Of a child: its parent waits for it. */
void truth_process_ends(void);
/* Whether there is no more room. */
int truth_is_full(void);
void truth_close(void);

extern const char *const shape_names[SHAPES];

#endif
