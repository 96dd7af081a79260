/*
 * A function of the guest in the ground-truth programs as it is made: code, lines of source, and unwind description.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef GUEST_FUNCTION_H
#define GUEST_FUNCTION_H

#include <limits.h>

#include "jitsym.h"
#include "jitsym_region.h"
#include "x86_emit.h"

#if !defined(__x86_64__)
#error "this program emits x86-64 code"
#endif

enum { ROWS_MAX = 8, LINES_MAX = 16 };

typedef uint64_t jit_function(uint64_t rounds, const uint64_t *path);

static inline void fail(const char *what) {
  fprintf(stderr, "ground truth: %s\n", what);
  exit(1);
}

/* The source that the guest's functions claim to be compiled from, made up as they are. */
struct source {
  char path[PATH_MAX];
  char text[1 << 16];
  size_t size;
  uint32_t lines;
};

static inline uint32_t source_line(struct source *source, const char *text, const char *name) {
  int room = (int)(sizeof source->text - source->size);
  int size = snprintf(source->text + source->size, (size_t)room, "%s %s\n", text, name);
  if (size >= room) {
    fail("source too long");
  }
  source->size += (size_t)size;
  return ++source->lines;
}

static inline void write_source(const struct source *source) {
  FILE *file = fopen(source->path, "w");
  if (!file || fwrite(source->text, 1, source->size, file) != source->size || fclose(file) != 0) {
    fail("cannot write the guest source");
  }
}

/* What the comparator of qsort finds in place of arguments. */
struct arguments {
  uint64_t rounds;
  const uint64_t *path;
};

enum eh_style { EH_NONE, EH_BARE, EH_COMPILER };

struct function {
  const char *name;
  struct bytes code, eh_frame;
  enum eh_style eh_style;
  /* Offsets for the entry of `.eh_frame`: behind push, behind sub, behind add, behind pop. */
  uint32_t eh_at[4];
  jitsym_line lines[LINES_MAX];
  uint32_t line_count;
  /* Parts of it that are functions which were inlined, two at most. */
  jitsym_inline inlines[2];
  uint32_t inline_count;
  jitsym_unwind unwind;
  jitsym_unwind_row rows[ROWS_MAX];
  jitsym_saved_register saved[ROWS_MAX][3];
  /* Where the lines come from; NULL: it has none. */
  struct source *source;
  /* For a comparator. */
  const struct arguments *arguments;
};

/* The next line of the source belongs to the code from here on. */
static inline void line(struct function *f, const char *text) {
  jitsym_line *row = &f->lines[f->line_count];
  if (!f->source) {
    return;
  }
  if (++f->line_count > LINES_MAX) {
    fail("too many lines");
  }
  memset(row, 0, sizeof *row);
  row->offset = f->code.size;
  row->line = source_line(f->source, text, f->name);
  row->column = 1 + f->line_count;
  row->file = f->source->path;
}

/* From here on CFA = `reg` + `offset`; registers that were saved before stay saved. */
static inline void row(struct function *f, uint32_t reg, int32_t offset) {
  uint32_t index = f->unwind.row_count++;
  jitsym_unwind_row *row = &f->rows[index];
  if (index == ROWS_MAX) {
    fail("too many rows");
  }
  memset(row, 0, sizeof *row);
  row->offset = f->code.size;
  row->cfa_reg = reg;
  row->cfa_offset = offset;
  row->saved = f->saved[index];
  if (index > 0) {
    memcpy(f->saved[index], f->saved[index - 1], sizeof f->saved[index]);
    row->saved_count = f->rows[index - 1].saved_count;
  }
  f->unwind.rows = f->rows;
  f->unwind.row_size = sizeof *row;
}

static inline void row_saved(struct function *f, uint32_t reg, int32_t offset) {
  uint32_t index = f->unwind.row_count - 1;
  jitsym_saved_register *saved = &f->saved[index][f->rows[index].saved_count++];
  saved->reg = reg;
  saved->offset = offset;
}

static inline void row_restored(struct function *f) {
  f->rows[f->unwind.row_count - 1].saved_count--;
}

#endif
