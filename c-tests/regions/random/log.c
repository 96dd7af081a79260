/*
 * The truth: code with its address and time. It is kept in memory that forked children share, and printed at the end.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "random.h"

enum { CODES_MAX = 1 << 20 };

struct code_entry {
  uint64_t addr, from, to;
  uint32_t size, name;
  const char *prefix;
  /* Who has made it. */
  pid_t pid;
};

/* Pages that are not used are not there. */
static struct log {
  uint32_t code_count;
  struct code_entry codes[CODES_MAX];
} *logged;

static FILE *out;
static pid_t pid;

uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void truth_open(const char *path) {
  logged = mmap(NULL, sizeof *logged, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  out = fopen(path, "we");
  if (logged == MAP_FAILED || !out) {
    fail("cannot write the truth");
  }
}

void truth_option(const char *key, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(out, "option\t%s\t", key);
  vfprintf(out, format, arguments);
  fputc('\n', out);
  va_end(arguments);
}

/* A child writes at once, because its copy of the stream is lost with it. */
void truth_process(void) {
  pid = getpid();
  fprintf(out, "pid\t%d\n", pid);
  fflush(out);
}

uint32_t truth_code(uint64_t addr, uint32_t size, const char *prefix, uint32_t name) {
  uint32_t index = __atomic_fetch_add(&logged->code_count, 1, __ATOMIC_RELAXED);
  if (index >= CODES_MAX) {
    fail("too much code");
  }
  logged->codes[index] = (struct code_entry){addr, now(), 0, size, name, prefix, pid};
  return index;
}

/* What a child has inherited lives on in its parent, and in children that come later. */
void truth_code_ends(uint32_t code) {
  if (logged->codes[code].pid == pid) {
    logged->codes[code].to = now();
  }
}

void truth_process_ends(void) {
  for (uint32_t i = 0; i < logged->code_count; i++) {
    if (logged->codes[i].to == 0) {
      truth_code_ends(i);
    }
  }
}

int truth_is_full(void) {
  return logged->code_count > CODES_MAX - 65536;
}

void truth_close(void) {
  for (uint32_t i = 0; i < logged->code_count; i++) {
    const struct code_entry *code = &logged->codes[i];
    fprintf(out, "code\t%" PRIu32 "\t%" PRIx64 "\t%" PRIx32 "\t%" PRIu64 "\t%" PRIu64 "\t%s_%" PRIu32 "\n", i,
            code->addr, code->size, code->from, code->to, code->prefix, code->name);
  }
  fputs("end\n", out);
  if (fclose(out) != 0) {
    fail("cannot write the truth");
  }
}
