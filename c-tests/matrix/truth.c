/*
 * The log of what really happened. It is kept in memory and printed at the end, lest the printing shows in the profile. The memory
 * is shared with forked children, so that all write into one log.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "jitsym_control.h"
#include "matrix.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct code_line {
  uint64_t addr, size, from, to;
  char *name;
  /* See truth_popped; an end of 0: nowhere. */
  uint32_t popped, popped_end;
};

struct run_line {
  unsigned long tid;
  uint64_t from, to;
  /* NULL: not to be counted. */
  char *stack;
};

/* Begins the memory that is shared. What is handed out of it is never taken back; pages that are not used are not there. */
static struct log {
  pthread_mutex_t lock;
  size_t used;
  struct code_line *codes;
  size_t code_count, code_room;
  struct run_line *runs;
  size_t run_count, run_room;
} *logged;

enum { LOG_SIZE = 1 << 30 };

static char *extra;
static size_t extra_size;
static FILE *extra_file, *out;
static _Thread_local unsigned long tid;

static uint64_t clock_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t now(void) {
  return clock_ns(CLOCK_MONOTONIC);
}

uint64_t cpu_time(void) {
  return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The thread's id as those outside see it: /proc is that of the outer namespace. */
static unsigned long outer_tid(void) {
  if (tid == 0) {
    char link[64];
    ssize_t size = readlink("/proc/thread-self", link, sizeof link - 1);
    if (size <= 0) {
      fail("cannot read /proc/thread-self");
    }
    link[size] = 0;
    tid = strtoul(strrchr(link, '/') + 1, NULL, 10);
  }
  return tid;
}

uint64_t random_in(uint64_t from, uint64_t to) {
  static _Thread_local uint64_t state;
  if (state == 0) {
    /* The same in each run that is stepped, as far as threads begin in the same order. */
    static unsigned threads;
    state = 0x9e3779b97f4a7c15u * (option.step ? __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED) : outer_tid());
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return from + (state >> 11) % (to - from);
}

static void *shared(size_t size) {
  size_t from = (logged->used + 15) & ~(size_t)15;
  if (size > LOG_SIZE - from) {
    fail("too much has happened");
  }
  logged->used = from + size;
  return (char *)logged + from;
}

static char *copied(const char *text) {
  size_t size = strlen(text) + 1;
  return memcpy(shared(size), text, size);
}

static void *with_room(void *list, size_t count, size_t *room, size_t size) {
  if (count < *room) {
    return list;
  }
  *room = *room * 2 + 1024;
  void *larger = shared(*room * size);
  return count == 0 ? larger : memcpy(larger, list, count * size);
}

static FILE *extra_lines(void) {
  if (!extra_file) {
    extra_file = open_memstream(&extra, &extra_size);
    if (!extra_file) {
      fail("out of memory");
    }
  }
  return extra_file;
}

void truth_open(void) {
  pthread_mutexattr_t of_processes;
  logged = mmap(NULL, LOG_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (logged == MAP_FAILED || pthread_mutexattr_init(&of_processes) != 0 ||
      pthread_mutexattr_setpshared(&of_processes, PTHREAD_PROCESS_SHARED) != 0 ||
      pthread_mutex_init(&logged->lock, &of_processes) != 0) {
    fail("no memory for the truth");
  }
  logged->used = sizeof *logged;
  out = option.truth ? fopen(option.truth, "we") : stdout;
  if (!out) {
    fail("cannot write the truth");
  }
}

void truth_option(const char *key, const char *value) {
  fprintf(out, "option\t%s\t%s\n", key, value);
}

void truth_path(const char *what, const char *path) {
  fprintf(out, "path\t%s\t%s\n", what, path);
}

void truth_begin(void) {
  static const struct {
    uint32_t sink;
    const char *name;
  } sinks[] = {{JITSYM_SINK_MAP, "map"}, {JITSYM_SINK_JITDUMP, "jitdump"}};

  char path[JITSYM_DIR_MAX + 64];

  fprintf(out, "pid\t%lu\n", outer_tid());
  for (unsigned i = 0; i < COUNT(sinks); i++) {
    if (option.sinks & sinks[i].sink) {
      check(jitsym_path(session, sinks[i].sink, path, sizeof path), "jitsym_path");
      truth_path(sinks[i].name, path);
    }
  }
  fflush(out);
}

uint32_t truth_code(uint64_t addr, uint64_t size, uint64_t from, const char *name) {
  pthread_mutex_lock(&logged->lock);
  logged->codes = with_room(logged->codes, logged->code_count, &logged->code_room, sizeof *logged->codes);
  struct code_line *line = &logged->codes[logged->code_count++];
  line->addr = addr;
  line->size = size;
  line->from = from;
  line->to = 0;
  line->name = copied(name);
  line->popped_end = 0;
  uint32_t number = (uint32_t)logged->code_count;
  pthread_mutex_unlock(&logged->lock);
  return number;
}

void truth_code_ends(uint32_t number, uint64_t to) {
  pthread_mutex_lock(&logged->lock);
  logged->codes[number - 1].to = to;
  pthread_mutex_unlock(&logged->lock);
}

void truth_alias(uint32_t number, const char *name) {
  pthread_mutex_lock(&logged->lock);
  fprintf(extra_lines(), "alias\t%u\t%s\n", number, name);
  pthread_mutex_unlock(&logged->lock);
}

void truth_line(uint32_t number, const jitsym_line *line) {
  pthread_mutex_lock(&logged->lock);
  fprintf(extra_lines(), "line\t%u\t%x\t%u\t%s\n", number, line->offset, line->line, line->file);
  pthread_mutex_unlock(&logged->lock);
}

void truth_hot_line(uint32_t number, uint32_t line) {
  pthread_mutex_lock(&logged->lock);
  fprintf(extra_lines(), "hotline\t%u\t%u\n", number, line);
  pthread_mutex_unlock(&logged->lock);
}

void truth_popped(uint32_t number, uint32_t offset, uint32_t end) {
  pthread_mutex_lock(&logged->lock);
  logged->codes[number - 1].popped = offset;
  logged->codes[number - 1].popped_end = end;
  pthread_mutex_unlock(&logged->lock);
}

static void add_run(uint64_t from, uint64_t to, const char *stack) {
  unsigned long thread = outer_tid();
  pthread_mutex_lock(&logged->lock);
  logged->runs = with_room(logged->runs, logged->run_count, &logged->run_room, sizeof *logged->runs);
  struct run_line *line = &logged->runs[logged->run_count++];
  line->tid = thread;
  line->from = from;
  line->to = to;
  line->stack = stack ? copied(stack) : NULL;
  pthread_mutex_unlock(&logged->lock);
}

void truth_run(uint64_t from, uint64_t to, const char *stack) {
  add_run(from, to, stack);
}

void truth_unnamed(uint64_t from, uint64_t to) {
  add_run(from, to, NULL);
}

void truth_forked(void) {
  tid = 0;
}

void truth_end(void) {
  for (size_t i = 0; i < logged->code_count; i++) {
    const struct code_line *line = &logged->codes[i];
    fprintf(out, "code\t%zu\t%" PRIx64 "\t%" PRIx64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\n", i + 1, line->addr, line->size,
            line->from, line->to, line->name);
    if (line->popped_end != 0) {
      fprintf(out, "popped\t%zu\t%x\t%x\n", i + 1, line->popped, line->popped_end);
    }
  }
  if (extra_file) {
    fclose(extra_file);
    fputs(extra, out);
    free(extra);
  }
  for (size_t i = 0; i < logged->run_count; i++) {
    const struct run_line *line = &logged->runs[i];
    if (line->stack) {
      fprintf(out, "run\t%lu\t%" PRIu64 "\t%" PRIu64 "\t%s\n", line->tid, line->from, line->to, line->stack);
    } else {
      fprintf(out, "unnamed\t%lu\t%" PRIu64 "\t%" PRIu64 "\n", line->tid, line->from, line->to);
    }
  }
  fprintf(out, "end\n");
  if (fflush(out) != 0 || ferror(out)) {
    fail("cannot write the truth");
  }
}
