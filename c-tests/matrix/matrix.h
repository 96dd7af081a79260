/*
 * What the parts of the ground-truth program of the matrix share; see main.c for what it is.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef MATRIX_H
#define MATRIX_H

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest_function.h"

#define NOINLINE __attribute__((noinline))
#define COUNT(array) ((unsigned)(sizeof(array) / sizeof *(array)))

/* ------------------------------------------------------------------------------------------------- main.c */

/* What code lies in where a scenario does not say: memory of its own, or regions of the library. */
enum memory { PLAIN_MEMORY, CREATED_REGIONS, ADOPTED_REGIONS, RESERVED_REGIONS };

struct options {
  const char *truth, *dir;
  uint32_t sinks;
  enum memory memory;
  double seconds;
  unsigned count;
  int wait, hold, step;
  uint32_t code_flags; /* JITSYM_CODE_GAP if all code of the scenario has a gap behind it */
};

extern struct options option;
extern jitsym *session;

/* No call of this program has a reason to fail, so that the truth holds only if none does. */
void check(enum jitsym_status status, const char *call);

/* Says that it is ready, and waits until it may go on, if a profiler is to attach. */
void ready(void);

void hold(void);

/* ------------------------------------------------------------------------------------------------ truth.c */

uint64_t now(void);

/* The thread's own CPU time. */
uint64_t cpu_time(void);

/* By a generator of the thread's own, in [from, to). */
uint64_t random_in(uint64_t from, uint64_t to);

void truth_option(const char *key, const char *value);
void truth_path(const char *what, const char *path);

/* Opens the output: to be called before the file system changes. */
void truth_open(void);

/* Prints what readers need before anything runs: process and files. */
void truth_begin(void);

/* Code lies there from `from` on. Returns its number. */
uint32_t truth_code(uint64_t addr, uint64_t size, uint64_t from, const char *name);
void truth_code_ends(uint32_t number, uint64_t to);
/* Another name under which readers may show it. */
void truth_alias(uint32_t number, const char *name);
void truth_line(uint32_t number, const jitsym_line *line);
void truth_hot_line(uint32_t number, uint32_t line);
/* Between these offsets a register that is described as saved in memory was taken off the stack. */
void truth_popped(uint32_t number, uint32_t offset, uint32_t end);
void truth_run(uint64_t from, uint64_t to, const char *stack);
void truth_unnamed(uint64_t from, uint64_t to);
/* To be called first in a forked child. It goes on with the log, which is one for all processes. */
void truth_forked(void);
void truth_end(void);

/* ------------------------------------------------------------------------------------------------ guest.c */

enum kind {
  LEAF_FP,
  LEAF_FIXED,
  LEAF_ROWS,
  LEAF_EH,
  STEPS_FP,
  STEPS_ROWS,
  LAST_LINE_HOT,
  LEAF_KINDS,
  MID_FP = LEAF_KINDS,
  MID_FP_EARLY,
  MID_FP_SAVES,
  MID_ROWS,
  MID_REALIGN,
  MID_EH,
  MID_KINDS,
  /* A stub that makes the frame and jumps, so that it does not appear in the stack; what follows it is a trace. */
  TRACE_ENTRY = MID_KINDS,
  TRACE_LEAF,
  TRACE_MID,
  COMPARE,
  BARE_RET,
  CALLS_IN_LOOP,
  ENDS_WITH_CALL,
  /* To be called by such a function, to which it does not return. */
  DROPS_FRAME,
  KINDS
};

/*
 * A function to be placed. `salt` makes its bytes and its size differ from others of its kind; 0: it is as they are.
 * `source`: where it gets lines, or NULL.
 */
struct function *compile(enum kind kind, unsigned salt, const char *name, struct source *source);

/* C functions for stacks: qsort with the next of the path as its comparator, and a plain call. */
uint64_t sort_in_c(uint64_t rounds, const uint64_t *path);
uint64_t call_in_c(uint64_t rounds, const uint64_t *path);

/* ------------------------------------------------------------------------------------------------- code.c */

/* Memory for code: where it runs and where it can be written, which differ in a dual mapping. */
struct region {
  uint8_t *run, *write;
  size_t size;
  /* Whether it is of the library. */
  int created;
};

enum region_kind { REGION_RWX, REGION_W_XOR_X, REGION_MEMFD };

struct region new_region(enum region_kind kind, size_t size);
/* From the library, whatever the options say; `max_size` and `flags` as in jitsym_region_options. */
struct region create_region(size_t size, size_t max_size, uint32_t flags);
/* Memory of the guest's own, whatever the options say. */
struct region plain_region(enum region_kind kind, size_t size);
void adopt_region(const struct region *region);
/* Gives the memory back and takes new memory at the same place. */
void map_anew(const struct region *region);
/* Of memory that is writable or executable, never both. */
void protect(const struct region *region, int writable);

enum handing_over { AS_BYTES, BY_ADDRESS, STABLE };

/* A function at a place, or one of C. */
struct code {
  struct function *function;
  enum kind kind;
  const char *name;
  uint64_t addr, size;
  /* Where it can be read and written now. */
  uint8_t *bytes;
  jitsym_id id;
  /* In the truth. */
  uint32_t number;
  /* Rounds in a nanosecond, when it is the innermost. */
  double speed;
  /* Whether the library is to read the bytes by itself, at once or later. */
  enum handing_over handing_over;
  /* For one of C: whether there are functions of the C library between it and the one that it calls. */
  int is_c, calls_by_libc;
};

enum gap { NO_GAP, WITH_GAP };

/*
 * At least JITSYM_CODE_GAP_SIZE. With 256, `moves` puts a call where other code had another frame, and libunwind remembers the
 * first frame at an address.
 */
enum { GAP_SIZE = 272 };

/* How many bytes behind the code stay free: 0 for NO_GAP, and in regions. */
size_t gap_behind(enum gap gap);

/* Writes the code, of which nobody is told yet. The name is not copied. */
void write_bytes(struct code *code, struct function *function, const void *bytes, size_t size, const char *name,
                 const struct region *region, size_t offset);
void write_code(struct code *code, struct function *function, enum kind kind, const char *name,
                const struct region *region, size_t offset);
/* Tells the library and the truth. */
void announce(struct code *code);
/* Both, for a new function of that kind. Returns the offset behind the code and its gap. */
size_t put_code(struct code *code, enum kind kind, unsigned salt, const char *name, const struct region *region,
                size_t offset, enum gap gap);
/* Copies it to where it may overlap its old place, and tells. */
void move_code(struct code *code, const struct region *region, size_t offset);
void remove_code(struct code *code);
/* All of these, which are all that there is in the region, by one call. */
void remove_all(struct code *codes, unsigned count, const struct region *region);

/* "PREFIX_NUMBER", kept for ever. */
const char *name_of(const char *prefix, unsigned number);

/* -------------------------------------------------------------------------------------------------- run.c */

enum { PATH_LEN = 128 };

/* From the outermost function to the innermost, up to the first NULL. */
struct stack {
  struct code *path[PATH_LEN];
};

#define STACK(...) {{__VA_ARGS__, NULL}}

/* The C functions of guest.c. */
extern struct code sort_code, call_code;

/* Calls the first function of the path. Noted nowhere. */
uint64_t call_guest(uint64_t rounds, const uint64_t *path);
/* Rounds for guest code that is called again and again: so many, or two if it is stepped. */
uint64_t rounds_of(uint64_t rounds);
/* Whether a loop goes round once more that has done so `turns` times: until that CPU time of the thread, or, if code is stepped,
   until that many turns. */
int goes_on(uint64_t end, unsigned turns, unsigned stepped);
/* Runs it for about that time, or two rounds if it is stepped, and notes it. */
void run_stack(const struct stack *stack, uint64_t ns);
/* Slices of 0.5 to 3 ms, each of a stack picked at random, for that much CPU time of the thread. Stepped: each of them once. */
void run_stacks(const struct stack *stacks, unsigned count, double seconds);
/* The same, of stacks made at random from those of the codes that are leaves and those that call. Stepped: each code is in one. */
void run_any(struct code *codes, unsigned count, double seconds);

/* ------------------------------------------------------------------------------------------------ scene_*.c */

struct scenario {
  const char *name;
  void (*run)(void);
  /* `fp`: a reader that follows frame pointers sees the whole stack, if the C part has them too. `dwarf`: only one that
     reads the tables. `none`: there are none. */
  const char *unwind;
  /* Whether the code has the free bytes behind it that readers with libunwind need. */
  enum gap gap;
  unsigned flags;
};

enum {
  /* It is to run in namespaces of its own. */
  IN_NAMESPACE = 1,
  /* It calls `ready` by itself. */
  READY_LATER = 2,
  /* The library is to adopt memory by itself. */
  ADOPTS_ALL = 4
};

#define SCENARIOS_END \
  { NULL, NULL, NULL, NO_GAP, 0 }

extern const struct scenario layout_scenarios[], stack_scenarios[], life_scenarios[], name_scenarios[], size_scenarios[],
    process_scenarios[], region_scenarios[], alloc_scenarios[];

/* ------------------------------------------------------------------------------------------------ namespace.c */

/* Goes on in a child with pid and mount namespaces and a /tmp of its own. The parent waits for it, and ends as it does. */
void enter_namespace(void);

#endif
