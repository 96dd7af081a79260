/*
 * The log of what really happened. It is kept in memory and printed at the end, lest the printing shows in the profile.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "matrix.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

struct code_line {
  uint64_t addr, size, from, to;
  char *name;
};

struct run_line {
  unsigned long tid;
  uint64_t from, to;
  /* NULL: not to be counted. */
  char *stack;
};

static struct code_line *codes;
static size_t code_count, code_room;
static struct run_line *runs;
static size_t run_count, run_room;
static char *extra;
static size_t extra_size;
static FILE *extra_file, *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
  static _Thread_local unsigned long tid;
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
    state = 0x9e3779b97f4a7c15u * outer_tid();
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return from + (state >> 11) % (to - from);
}

static char *copied(const char *text) {
  char *copy = strdup(text);
  if (!copy) {
    fail("out of memory");
  }
  return copy;
}

static void *with_room(void *list, size_t count, size_t *room, size_t size) {
  if (count == *room) {
    *room = *room * 2 + 1024;
    list = realloc(list, *room * size);
    if (!list) {
      fail("out of memory");
    }
  }
  return list;
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
  pthread_mutex_lock(&lock);
  codes = with_room(codes, code_count, &code_room, sizeof *codes);
  struct code_line *line = &codes[code_count++];
  line->addr = addr;
  line->size = size;
  line->from = from;
  line->to = 0;
  line->name = copied(name);
  uint32_t number = (uint32_t)code_count;
  pthread_mutex_unlock(&lock);
  return number;
}

void truth_code_ends(uint32_t number, uint64_t to) {
  pthread_mutex_lock(&lock);
  codes[number - 1].to = to;
  pthread_mutex_unlock(&lock);
}

void truth_alias(uint32_t number, const char *name) {
  pthread_mutex_lock(&lock);
  fprintf(extra_lines(), "alias\t%u\t%s\n", number, name);
  pthread_mutex_unlock(&lock);
}

void truth_line(uint32_t number, const jitsym_line *line) {
  pthread_mutex_lock(&lock);
  fprintf(extra_lines(), "line\t%u\t%x\t%u\t%s\n", number, line->offset, line->line, line->file);
  pthread_mutex_unlock(&lock);
}

void truth_hot_line(uint32_t number, uint32_t line) {
  pthread_mutex_lock(&lock);
  fprintf(extra_lines(), "hotline\t%u\t%u\n", number, line);
  pthread_mutex_unlock(&lock);
}

static void add_run(uint64_t from, uint64_t to, const char *stack) {
  unsigned long tid = outer_tid();
  pthread_mutex_lock(&lock);
  runs = with_room(runs, run_count, &run_room, sizeof *runs);
  struct run_line *line = &runs[run_count++];
  line->tid = tid;
  line->from = from;
  line->to = to;
  line->stack = stack ? copied(stack) : NULL;
  pthread_mutex_unlock(&lock);
}

void truth_run(uint64_t from, uint64_t to, const char *stack) {
  add_run(from, to, stack);
}

void truth_unnamed(uint64_t from, uint64_t to) {
  add_run(from, to, NULL);
}

void truth_end(void) {
  for (size_t i = 0; i < code_count; i++) {
    const struct code_line *line = &codes[i];
    fprintf(out, "code\t%zu\t%" PRIx64 "\t%" PRIx64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\n", i + 1, line->addr, line->size,
            line->from, line->to, line->name);
    free(line->name);
  }
  if (extra_file) {
    fclose(extra_file);
    fputs(extra, out);
    free(extra);
  }
  for (size_t i = 0; i < run_count; i++) {
    const struct run_line *line = &runs[i];
    if (line->stack) {
      fprintf(out, "run\t%lu\t%" PRIu64 "\t%" PRIu64 "\t%s\n", line->tid, line->from, line->to, line->stack);
    } else {
      fprintf(out, "unnamed\t%lu\t%" PRIu64 "\t%" PRIu64 "\n", line->tid, line->from, line->to);
    }
    free(line->stack);
  }
  fprintf(out, "end\n");
  free(codes);
  free(runs);
  if (fflush(out) != 0 || ferror(out)) {
    fail("cannot write the truth");
  }
}
