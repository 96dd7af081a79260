/*
 * The soak: threads and forked processes do all that the library is for, at random, and a model knows what must come of it.
 *
 *   soak DIR run SEED SECONDS BYTES    makes a process that does so, and about so many bytes of jitdump, and waits for it
 *   soak DIR verify                    holds the files in DIR against what the processes have left written down
 *
 * The model is exact because memory has owners. A block of the address space belongs to one thread at a time, which makes the
 * calls about the code in it; once a call has returned, the model paints every address with the number of the code that lives
 * there. Blocks go from thread to thread, and what is freed is used again at once, by whoever comes first.
 */
#ifndef SOAK_H
#define SOAK_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "testing.h"

/* ---- the address space (space.c) ---- */

/* REAL is mapped memory; in FREE there is none; TOP are the last addresses that there are. */
enum { REAL, FREE, TOP, ARENAS };

struct arena {
  uint64_t start, size;
};
extern const struct arena arenas[ARENAS];

/* What lived at each address last: a number, 0 for nothing. */
struct paint {
  uint32_t *at[ARENAS];
};

/* What a child cannot know, because it was forked while another thread made a call about it. */
#define WILD UINT32_MAX

/* The arena that an address lies in; -1 for none. */
int arena_of(uint64_t addr);
void paint_begin(struct paint *paint);
void paint_end(struct paint *paint);
/* Where the paint of `[addr, addr + size)` is. All of it lies in one arena. */
uint32_t *paint_place(const struct paint *paint, uint64_t addr, uint64_t size);
void paint_over(const struct paint *paint, uint64_t addr, uint64_t size, uint32_t number);

/* Ranges that nobody has, those freed last on top. */
struct room {
  struct range {
    uint64_t start, size;
  } *ranges[ARENAS];
  size_t count[ARENAS], capacity[ARENAS];
};
void room_begin(struct room *room);
void room_give(struct room *room, uint64_t start, uint64_t size);
/* 0 if there is none. */
uint64_t room_take(struct room *room, int arena, uint64_t size);

/* ---- what a number says of its code (look.c) ---- */

enum { BYTES_GIVEN, BYTES_AT_ADDRESS, BYTES_STABLE, BYTES_STABLE_THERE };
enum { EH_ROOM = 128, ROWS_MAX = 8, LINES_MAX = 300, SOAK_NAME_MAX = 4096, SIZE_MAX_CODE = 1 << 19 };

/* All that can be known from a record in a file: its name has the number in it. */
struct look {
  unsigned name_kind;
  unsigned bytes;
  unsigned lines;
  unsigned unwind;
  size_t content;
};
struct look look_of(uint32_t number, uint64_t size);
/* What all code is a part of. */
extern unsigned char *pool;
void pool_begin(void);
const unsigned char *look_content(const struct look *look);

/* The name as it is given to the library; -1 if NULL is given. */
long name_given(const struct look *look, uint32_t number, char *out);
/* The name as it must be in the files. Returns whether it was cleaned. `addr`: where the code was registered. */
int name_written(const struct look *look, uint32_t number, uint64_t addr, char *out);
/* The number that a name in a file says; 0 if it says none. */
uint32_t name_number(const char *name);

/* Memory for a description. */
struct described {
  jitsym_unwind unwind;
  jitsym_unwind_row rows[ROWS_MAX];
  jitsym_saved_register saved[2];
  jitsym_line lines[LINES_MAX];
  unsigned char eh_frame[EH_ROOM];
};
void look_describe(const struct look *look, jitsym_code *code, struct described *described);

/* ---- what a process leaves written down (truth.c) ---- */

struct truth {
  uint32_t pid;
  uint32_t sinks;
  /* Of the session. */
  uint32_t flags;
  uint32_t killed;
  /* The following are exact only if everything was flushed. */
  uint32_t exact;
  uint64_t live;
  jitsym_stats stats;
};
void truth_path(char *out, size_t size, pid_t pid, const char *what);
int verify_all(void);

/* ---- the process under test (host.c, child.c) ---- */

struct code {
  jitsym_id id;
  uint64_t addr, size;
  uint32_t number;
  int stable_there;
};

enum { BLOCKS = 4096, CODES_MAX = 8, SESSIONS = 6, WORKERS_MAX = 6, DEAD_IDS = 16 };

struct block {
  enum { UNUSED, IDLE, BUSY } state;
  uint64_t start, size;
  /* The highest code has been said to have the rest of the block for itself. */
  int claimed;
  unsigned count;
  struct code codes[CODES_MAX];
};

struct open_session {
  jitsym *handle;
  unsigned users;
};

/* What is known of a process. */
struct world {
  /* Whoever makes calls holds it for reading; held for writing, no call is on its way. */
  pthread_rwlock_t calls;
  /* For everything below that is not atomic. */
  pthread_mutex_t lock;
  struct paint paint;
  struct room room;
  struct block blocks[BLOCKS];
  struct block *idle[BLOCKS], *unused[BLOCKS];
  unsigned idle_count, unused_count;
  struct open_session sessions[SESSIONS];
  /* Sessions that are being opened or closed. */
  unsigned in_flux;
  /* There are sessions that nobody knows: the process was forked while one was opened. */
  int unknown_sessions;
  /* The number of live codes in `stats` is not known exactly; see `child.c`. */
  int wild;
  pid_t children[64];
  int children_killed[64];
  unsigned child_count;
  atomic_ullong registered, moved, unregistered, overwritten, names_changed, unreadable, dropped, live, issued_bytes;
  atomic_uint stop;
  /* There may be another child. */
  atomic_uint may_fork;
  /* Forks deep. */
  unsigned depth;
  uint32_t sinks, flags;
  uint64_t max_memory;
  uint64_t seed;
  double seconds;
};
extern struct world world;

/* What all processes share: numbers, so that no two pieces of code in any of them have the same. */
struct shared {
  atomic_uint next_number;
  atomic_uint forks, children_lost;
};
extern struct shared *shared;
extern uint32_t first_number;
/* Where code without a name was registered, by its number from `first_number` on. */
extern uint64_t *named_at;

struct worker {
  uint64_t random;
  unsigned dead_count;
  struct {
    jitsym_id id;
    /* `jitsym_unregister` has ended it, so that it is unknown from then on. */
    int certain;
  } dead[DEAD_IDS];
  struct described described;
};

uint64_t next_random(struct worker *worker);
unsigned random_below(struct worker *worker, unsigned limit);

void world_locks(void);
jitsym *world_open(void);
jitsym *any_session(void);
/* Forgets all code and all sessions: as in a process that has not begun. */
void world_empty(void);
/* Threads that do everything until the time is over or so many bytes are registered. */
void world_run(struct worker *main_thread, unsigned workers, double seconds, uint64_t bytes);
/* With no call on its way: all counters are what the model says. */
void check_counters(jitsym *session);
/* Closes all sessions. */
void close_all(void);
/* Ends the process in one of many ways, after its truth is written down. `kill`: by SIGKILL. */
_Noreturn void world_end(struct worker *worker, int kill);
void write_truth(int exact, int killed);

/* Forks. `quiet`: no call is on its way. Only the parent returns. */
void fork_child(struct worker *worker, int quiet);
void wait_for_children(unsigned at_most);

#endif
