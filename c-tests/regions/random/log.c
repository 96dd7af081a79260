/*
 * The truth: code with its address and time, and what each thread ran when. It is kept in memory that forked children share, and
 * printed at the end, so that the printing is not in the profile.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "random.h"

enum { CODES_MAX = 1 << 20, RUNS_MAX = 1 << 20 };

struct code_entry {
  uint64_t addr, from, to;
  uint32_t size, name;
  enum shape shape;
};

struct run_entry {
  uint64_t from, to;
  const char *root;
  uint32_t tid, count;
  int native;
  uint32_t codes[CHAIN_MAX];
};

/* Pages that are not used are not there. */
static struct log {
  uint32_t code_count, run_count;
  struct code_entry codes[CODES_MAX];
  struct run_entry runs[RUNS_MAX];
} *logged;

static FILE *out;
static _Thread_local uint32_t tid;

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
  tid = 0;
  fprintf(out, "pid\t%d\n", getpid());
  fflush(out);
}

uint32_t truth_code(uint64_t addr, uint32_t size, uint32_t name, enum shape shape) {
  uint32_t index = __atomic_fetch_add(&logged->code_count, 1, __ATOMIC_RELAXED);
  if (index >= CODES_MAX) {
    fail("too much code");
  }
  logged->codes[index] = (struct code_entry){addr, now(), 0, size, name, shape};
  return index;
}

void truth_code_ends(uint32_t code) {
  logged->codes[code].to = now();
}

void truth_run(uint64_t from, uint64_t to, const uint32_t *codes, uint32_t count, int native, const char *root) {
  if (tid == 0) {
    tid = (uint32_t)gettid();
  }
  uint32_t index = __atomic_fetch_add(&logged->run_count, 1, __ATOMIC_RELAXED);
  if (index >= RUNS_MAX) {
    fail("too many runs");
  }
  struct run_entry *run = &logged->runs[index];
  *run = (struct run_entry){from, to, root, tid, count, native, {0}};
  memcpy(run->codes, codes, count * sizeof *codes);
}

int truth_is_full(void) {
  return logged->code_count > CODES_MAX - 65536 || logged->run_count > RUNS_MAX - 65536;
}

void truth_close(void) {
  for (uint32_t i = 0; i < logged->code_count; i++) {
    const struct code_entry *code = &logged->codes[i];
    fprintf(out, "code\t%" PRIu32 "\t%" PRIx64 "\t%" PRIx32 "\t%" PRIu64 "\t%" PRIu64 "\t%s_%" PRIu32 "\n", i,
            code->addr, code->size, code->from, code->to, shape_names[code->shape], code->name);
    if (code->shape == FIXED) {
      /* A signal may come while another part of it makes the frame. */
      fprintf(out, "alias\t%" PRIu32 "\tentry_%" PRIu32 "\nalias\t%" PRIu32 "\texit_%" PRIu32 "\n", i, code->name, i,
              code->name);
    }
  }
  for (uint32_t i = 0; i < logged->run_count; i++) {
    const struct run_entry *run = &logged->runs[i];
    fprintf(out, "run\t%" PRIu32 "\t%" PRIu64 "\t%" PRIu64 "\t%s", run->tid, run->from, run->to,
            run->native ? "*native_burn," : "");
    for (uint32_t n = run->count; n > 0; n--) {
      fprintf(out, "%" PRIu32 ",", run->codes[n - 1]);
    }
    fprintf(out, "*enter_code,?,*%s,?\n", run->root);
  }
  fputs("end\n", out);
  if (fclose(out) != 0) {
    fail("cannot write the truth");
  }
}
