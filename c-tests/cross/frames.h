/*
 * How the frames of the code in pieces.S and compiled.c are described: the rows of `rows` and `entry`, the frame of `fixed`, and,
 * where there is a preset for frame pointers, those of `compiled` and `framed`. Registers have DWARF's numbers.
 */
#ifndef FRAMES_H
#define FRAMES_H

#include "jitsym.h"
#include "pieces.h"

#define PLACE(name) extern const unsigned char name[]
/* Begin and end of the pieces, and the places in them. */
#define PIECE(name) \
  PLACE(name##_begin); \
  PLACE(name##_end)
PIECE(framed);
PIECE(rows);
PIECE(entry);
PIECE(fixed);
PLACE(framed_saved);
PLACE(framed_epilogue);
PLACE(rows_lowered);
PLACE(rows_return);
PLACE(rows_saved);
PLACE(rows_other);
PLACE(rows_restored);
PLACE(rows_in_register);
PLACE(rows_raised);
PLACE(entry_lowered);
PLACE(entry_saved);
PLACE(entry_restored);
PLACE(entry_raised);

/* HAS_PRESET: SAVED, the slot of the register that `framed` saves; FRAMED, its distance from the frame pointer to the CFA, 0 for
 * the usual one; LEFT, bytes behind the place where the frame of compiled.c is taken down. */
#if defined(__aarch64__)
enum { FP = 29, RETURN = 30, OTHER = 19, SP = 31, SAVED = -16, FRAMED = 32, LEFT = 4 };
#define HAS_PRESET
#elif defined(__riscv)
enum { FP = 8, RETURN = 1, OTHER = 9, SP = 2, SAVED = -24, FRAMED = 0, LEFT = 8 };
#define HAS_PRESET
#elif defined(__i386__)
enum { FP = 5, OTHER = 3, SP = 4, SAVED = -12, FRAMED = 0, LEFT = 1 };
#define HAS_PRESET
#elif defined(__arm__)
enum { FP = 11, RETURN = 14, OTHER = 4, SP = 13 };
#elif defined(__powerpc64__)
enum { FP = 31, RETURN = 65, OTHER = 30, SP = 1 };
#elif defined(__s390x__)
enum { FP = 11, RETURN = 14, OTHER = 10, SP = 15 };
#endif

#define ROW(place, begin, reg, offset, count, saved) {(uint32_t)((place) - (begin)), (reg), (offset), (count), (saved)}
#define IN_ROWS(place, reg, offset, count) ROW(rows_##place, rows_begin, reg, offset, count, saved)
#define IN_ENTRY(place, offset, count) ROW(entry_##place, entry_begin, SP, offset, count, saved)

enum { MOST_ROWS = 7 };
struct frames {
  jitsym_unwind_row rows[MOST_ROWS], entry[MOST_ROWS];
  uint32_t row_count, entry_count;
  /* `fixed` has the frame that `entry` has made. */
  int32_t fixed_offset;
  uint32_t fixed_count;
};

#if defined(__s390x__)

/* The stack pointer does not follow from the CFA. */
static const jitsym_saved_register saved[] = {{RETURN, -48}, {SP, -40}, {OTHER, -208}, {FP, -200}};
static inline struct frames frames(void) {
  struct frames frames = {
      {IN_ROWS(return, SP, 160, 2), IN_ROWS(lowered, SP, 368, 2), IN_ROWS(saved, SP, 368, 4), IN_ROWS(other, OTHER, 368, 4),
       IN_ROWS(restored, SP, 368, 2), IN_ROWS(raised, SP, 160, 0)},
      {IN_ENTRY(saved, 160, 2), IN_ENTRY(lowered, 336, 2), IN_ENTRY(raised, 160, 0)},
      6, 3, 336, 2};
  return frames;
}

#elif defined(__i386__)

/* The call has stored the return address. */
static const jitsym_saved_register saved[] = {{OTHER, -20}, {FP, -16}};
static inline struct frames frames(void) {
  struct frames frames = {
      {IN_ROWS(lowered, SP, 24, 0), IN_ROWS(saved, SP, 24, 2), IN_ROWS(other, OTHER, 24, 2), IN_ROWS(restored, SP, 24, 0),
       IN_ROWS(raised, SP, 4, 0)},
      {IN_ENTRY(lowered, 16, 0), IN_ENTRY(raised, 4, 0)},
      5, 2, 16, 0};
  return frames;
}

#elif defined(__powerpc64__)

static const jitsym_saved_register saved[] = {{RETURN, 16}, {OTHER, -24}, {FP, -16}};
static inline struct frames frames(void) {
  struct frames frames = {
      {IN_ROWS(return, SP, 0, 1), IN_ROWS(lowered, SP, 80, 1), IN_ROWS(saved, SP, 80, 3), IN_ROWS(other, OTHER, 80, 3),
       IN_ROWS(restored, SP, 80, 1), IN_ROWS(raised, SP, 0, 1), IN_ROWS(in_register, SP, 0, 0)},
      {IN_ENTRY(saved, 0, 1), IN_ENTRY(lowered, 64, 1), IN_ENTRY(raised, 0, 1), IN_ENTRY(restored, 0, 0)},
      7, 4, 64, 1};
  return frames;
}

#else

enum { WORD = sizeof(void *) };
static const jitsym_saved_register saved[] = {{RETURN, -WORD}, {OTHER, -5 * WORD}, {FP, -4 * WORD}};
static inline struct frames frames(void) {
  struct frames frames = {
      {IN_ROWS(lowered, SP, 6 * WORD, 0), IN_ROWS(return, SP, 6 * WORD, 1), IN_ROWS(saved, SP, 6 * WORD, 3),
       IN_ROWS(other, OTHER, 6 * WORD, 3), IN_ROWS(restored, SP, 6 * WORD, 1), IN_ROWS(in_register, SP, 6 * WORD, 0),
       IN_ROWS(raised, SP, 0, 0)},
      {IN_ENTRY(lowered, 4 * WORD, 0), IN_ENTRY(saved, 4 * WORD, 1), IN_ENTRY(restored, 4 * WORD, 0), IN_ENTRY(raised, 0, 0)},
      7, 4, 4 * WORD, 1};
  return frames;
}

#endif

#endif
