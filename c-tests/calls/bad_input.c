/*
 * Bad input: every mistake has a status of its own, nothing of the call happens, and everything that was there before goes
 * on. Input that only looks bad (odd names, memory that cannot be read) is taken.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

#if defined(__x86_64__)
enum { REGISTER_SP = 7, REGISTER_FP = 6, REGISTER_SAVED = 3, REGISTER_OTHER = 12 };
#elif defined(__aarch64__)
enum { REGISTER_SP = 31, REGISTER_FP = 29, REGISTER_SAVED = 19, REGISTER_OTHER = 20 };
#elif defined(__riscv)
enum { REGISTER_SP = 2, REGISTER_FP = 8, REGISTER_SAVED = 9, REGISTER_OTHER = 18 };
#elif defined(__s390x__)
enum { REGISTER_SP = 15, REGISTER_FP = 11, REGISTER_SAVED = 10, REGISTER_OTHER = 9 };
#elif defined(__i386__)
enum { REGISTER_SP = 4, REGISTER_FP = 5, REGISTER_SAVED = 3, REGISTER_OTHER = 6 };
#elif defined(__arm__)
enum { REGISTER_SP = 13, REGISTER_FP = 11, REGISTER_SAVED = 4, REGISTER_OTHER = 5 };
#elif defined(__powerpc64__)
enum { REGISTER_SP = 1, REGISTER_FP = 31, REGISTER_SAVED = 30, REGISTER_OTHER = 29 };
#else
#define NO_TABLES
#endif
enum { REGISTER_NONE = 500, WORD = sizeof(void *) };

static const uint64_t KEEPER = 0x70000000, ADDR = 0x71000000;
static jitsym *session;
static jitsym_id keeper;

static jitsym_stats known(void) {
  jitsym_stats stats = test_stats(session);
  /* Buffers come and go with the writer's timing. */
  stats.memory = 0;
  stats.memory_held = 0;
  /* This is what a refused call may change. */
  stats.calls_refused = 0;
  return stats;
}

/* That a call is refused with a status, and that the counters say that nothing has happened. */
#define REFUSED(status, call)                                \
  do {                                                       \
    jitsym_stats before_ = known();                          \
    CHECK_STATUS(status, call);                              \
    jitsym_stats after_ = known();                           \
    CHECK(memcmp(&before_, &after_, sizeof before_) == 0);   \
  } while (0)

/* As REFUSED, for a code; and the id is left alone. */
#define CODE_REFUSED(status, code)                                  \
  do {                                                              \
    jitsym_id id_ = 0x5555;                                         \
    REFUSED(status, jitsym_register(session, code, &id_));          \
    CHECK(id_ == 0x5555);                                           \
  } while (0)

static void begin(void) {
  session = test_open();
  keeper = test_register(session, KEEPER, 64, "keeper");
}

/* The process and what was registered first are unharmed: both files still say so, and new code is taken. */
static void end(void) {
  CHECK(test_register(session, KEEPER + 0x1000, 64, "after all") != 0);
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, KEEPER), "keeper") == 0);
  CHECK(strcmp(map_name(&map, KEEPER + 0x1000), "after all") == 0);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_load(&dump, "keeper", 0) != NULL && dump_load(&dump, "keeper", 1) == NULL);
  CHECK(dump_load(&dump, "after all", 0) != NULL);
  CHECK(dump_load(&dump, "refused", 0) == NULL);
  map_free(&map);
  dump_free(&dump);
  CHECK_OK(jitsym_unregister(session, keeper));
  CHECK_OK(jitsym_close(session));
}

/* A struct with more behind it than this version of the library knows. */
#define LONGER(type)     \
  struct {               \
    type known;          \
    unsigned char tail[40]; \
  }

static void codes(void) {
  begin();
  jitsym_code code = test_code(ADDR, 64, "refused");
  CODE_REFUSED(JITSYM_ERR_NULL, NULL);

  static const size_t small[] = {0, 1, 8, offsetof(jitsym_code, inlines) - 8, offsetof(jitsym_code, inlines) - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    code.struct_size = small[i];
    CODE_REFUSED(JITSYM_ERR_STRUCT_SIZE, &code);
  }
  code.struct_size = sizeof code;

  code.size = 0;
  CODE_REFUSED(JITSYM_ERR_SIZE_ZERO, &code);
  code.size = 64;
  code.addr = 0;
  CODE_REFUSED(JITSYM_ERR_ADDRESS_RANGE, &code);
  code.addr = UINT64_MAX;
  CODE_REFUSED(JITSYM_ERR_ADDRESS_RANGE, &code);
  code.addr = UINT64_MAX - 62;
  CODE_REFUSED(JITSYM_ERR_ADDRESS_RANGE, &code);
  code.addr = ADDR;

  code.bytes = NULL;
  code.size = (uint64_t)JITSYM_CODE_SIZE_MAX + 1;
  CODE_REFUSED(JITSYM_ERR_TOO_LARGE, &code);
  code.size = (uint64_t)1 << 32 | 64;
  CODE_REFUSED(JITSYM_ERR_TOO_LARGE, &code);
  code.size = (uint64_t)1 << 63;
  CODE_REFUSED(JITSYM_ERR_TOO_LARGE, &code);
  code = test_code(ADDR, 64, "refused");

  for (int bit = 3; bit < 32; bit++) {
    code.flags = (uint32_t)1 << bit;
    CODE_REFUSED(JITSYM_ERR_FLAGS, &code);
  }
  code.flags = 0;
  code.reserved = 1;
  CODE_REFUSED(JITSYM_ERR_FLAGS, &code);
  code.reserved = 0x80000000;
  CODE_REFUSED(JITSYM_ERR_FLAGS, &code);

  LONGER(jitsym_code) longer;
  memset(&longer, 0, sizeof longer);
  longer.known = test_code(ADDR, 64, "refused");
  longer.known.struct_size = sizeof longer;
  static const size_t places[] = {0, 1, 7, 8, 39};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    longer.tail[places[i]] = 1;
    CODE_REFUSED(JITSYM_ERR_STRUCT_TAIL, &longer.known);
    longer.tail[places[i]] = 0;
  }
  longer.known.name = "longer";
  for (size_t size = sizeof longer.known; size <= sizeof longer; size++) {
    longer.known.struct_size = size;
    jitsym_id id = 0;
    CHECK_OK(jitsym_register(session, &longer.known, &id));
    CHECK(id != 0);
  }
  /* A caller of a far future version. */
  enum { FAR = 4096 };
  unsigned char *far = calloc(1, FAR);
  CHECK(far != NULL);
  longer.known.struct_size = FAR;
  memcpy(far, &longer.known, sizeof longer.known);
  CHECK_OK(jitsym_register(session, (jitsym_code *)(void *)far, NULL));
  far[FAR - 1] = 0x80;
  CODE_REFUSED(JITSYM_ERR_STRUCT_TAIL, (jitsym_code *)(void *)far);
  free(far);
  end();
}

static void lines(void) {
  begin();
  jitsym_code code = test_code(ADDR, 64, "refused");
  jitsym_line line[3] = {{0, 1, 1, 0, "a.c"}, {8, 2, 0, 0, "b.c"}, {8, 3, 0, 0, "c.c"}};
  code.lines = line;
  code.line_count = 3;

  code.lines = NULL;
  CODE_REFUSED(JITSYM_ERR_NULL, &code);
  code.lines = line;
  for (size_t i = 0; i < 3; i++) {
    jitsym_line good = line[i];
    line[i].file = NULL;
    CODE_REFUSED(JITSYM_ERR_LINE_FILE, &code);
    line[i] = good;
    line[i].reserved = 1;
    CODE_REFUSED(JITSYM_ERR_FLAGS, &code);
    line[i] = good;
  }
  line[2].offset = 64;
  CODE_REFUSED(JITSYM_ERR_LINE_OFFSET, &code);
  line[2].offset = UINT32_MAX;
  CODE_REFUSED(JITSYM_ERR_LINE_OFFSET, &code);
  /* Rows may be in any order, and what is wrong with one is found wherever it belongs. */
  line[2].offset = 1;
  line[2].file = "";
  CODE_REFUSED(JITSYM_ERR_LINE_FILE, &code);
  line[2].offset = 8;
  line[2].file = "c.c";

  static const size_t small[] = {1, 8, sizeof line[0] - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    code.line_size = small[i];
    CODE_REFUSED(JITSYM_ERR_STRUCT_SIZE, &code);
  }

  LONGER(jitsym_line) longer[3];
  memset(longer, 0, sizeof longer);
  for (size_t i = 0; i < 3; i++) {
    longer[i].known = line[i];
  }
  code.lines = &longer[0].known;
  code.line_size = sizeof longer[0];
  for (size_t i = 0; i < 3; i++) {
    longer[i].tail[39] = 1;
    CODE_REFUSED(JITSYM_ERR_STRUCT_TAIL, &code);
    longer[i].tail[39] = 0;
    longer[i].tail[0] = 1;
    CODE_REFUSED(JITSYM_ERR_STRUCT_TAIL, &code);
    longer[i].tail[0] = 0;
  }
  code.name = "longer lines";
  CHECK_OK(jitsym_register(session, &code, NULL));
  code.lines = line;
  code.line_size = 0;
  code.name = "lines";
  CHECK_OK(jitsym_register(session, &code, NULL));
  /* Rows with line 0 are left out, with or without a file. */
  jitsym_line zero[3] = {{0, 0, 9, 0, "a.c"}, {4, 12, 0, 0, "d.c"}, {20, 0, 0, 0, NULL}};
  code.lines = zero;
  code.name = "without lines";
  code.line_count = 1;
  uint64_t left_out = test_stats_now(session).lines_left_out;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK(test_stats_now(session).lines_left_out == left_out + 1);
  code.name = "one line";
  code.line_count = 3;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK(test_stats_now(session).lines_left_out == left_out + 3);
  /* On the way of unusual registrations too, but not if the call fails. */
  code.flags = JITSYM_CODE_STABLE;
  code.addr += 0x1000;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK(test_stats_now(session).lines_left_out == left_out + 5);
  zero[2].line = 5;
  CODE_REFUSED(JITSYM_ERR_LINE_FILE, &code);
  CHECK(test_stats_now(session).lines_left_out == left_out + 5);
  CHECK_OK(test_flush(session));

  /* Both tables came to the same, with the later one of two rows for the same place. */
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  static const char *const names[] = {"longer lines", "lines"};
  for (size_t i = 0; i < 2; i++) {
    const struct dump_record *load = dump_load(&dump, names[i], 0);
    CHECK(load != NULL && load->debug != NULL && load->debug->lines >= 2);
    struct dump_line got = dump_line(load->debug, 0);
    CHECK(got.addr == ADDR && got.line == 1 && got.column == 1 && strcmp(got.file, "a.c") == 0);
    uint64_t last = 0;
    for (uint64_t number = 1; number < load->debug->lines; number++) {
      struct dump_line next = dump_line(load->debug, number);
      last = next.addr == ADDR + 8 ? number : last;
    }
    got = dump_line(load->debug, last);
    CHECK(got.line == 3 && strcmp(got.file, "c.c") == 0);
  }
  const struct dump_record *without = dump_load(&dump, "without lines", 0), *one = dump_load(&dump, "one line", 0);
  CHECK(without != NULL && without->debug == NULL && one != NULL && one->debug != NULL && one->debug->lines == 2);
  struct dump_line only = dump_line(one->debug, 0);
  CHECK(only.addr == ADDR + 4 && only.line == 12 && strcmp(only.file, "d.c") == 0);
  dump_free(&dump);
  end();
}

/* The same in plain memory and in a region, which alone can say what is right. */
static void inlines_at(uint64_t addr) {
  jitsym_code code = test_code(addr, 64, "refused");
  jitsym_inline entry[3] = {{8, 40, "outer", 0, "a.c", 1, 0, UINT32_MAX, 0},
                            {8, 20, "inner", 0, "a.c", 7, 3, 0, 0},
                            {20, 40, "in", 2, "b.c", 9, 0, 0, 0}};
  code.inlines = entry;
  code.inline_count = 3;
#define ENTRY_REFUSED(status, number, field, value) \
  do {                                              \
    jitsym_inline good_ = entry[number];            \
    entry[number].field = (value);                  \
    CODE_REFUSED(status, &code);                    \
    entry[number] = good_;                          \
  } while (0)
  code.inlines = NULL;
  CODE_REFUSED(JITSYM_ERR_NULL, &code);
  code.inlines = entry;
  for (size_t i = 0; i < 3; i++) {
    ENTRY_REFUSED(JITSYM_ERR_FLAGS, i, reserved, 1);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, name, NULL);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, name, " \n");
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, call_file, NULL);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, call_file, "");
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, call_line, 0);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, end, entry[i].begin);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, end, 0);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, end, 65);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, end, UINT32_MAX);
    /* Itself, one that comes later, and one that is not there. */
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, parent, (uint32_t)i);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, parent, 3);
    ENTRY_REFUSED(JITSYM_ERR_INLINE, i, parent, UINT32_MAX - 1);
  }
  /* Outside of the parent, or not alone there. */
  ENTRY_REFUSED(JITSYM_ERR_INLINE, 1, begin, 7);
  ENTRY_REFUSED(JITSYM_ERR_INLINE, 2, end, 41);
  ENTRY_REFUSED(JITSYM_ERR_INLINE, 1, end, 21);
  ENTRY_REFUSED(JITSYM_ERR_INLINE, 2, begin, 8);
  ENTRY_REFUSED(JITSYM_ERR_INLINE, 2, parent, UINT32_MAX);
  ENTRY_REFUSED(JITSYM_ERR_INLINE, 2, parent, 1);
  code.size = 39;
  CODE_REFUSED(JITSYM_ERR_INLINE, &code);
  code.size = 64;

  static const size_t small[] = {1, 8, sizeof entry[0] - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    code.inline_size = small[i];
    CODE_REFUSED(JITSYM_ERR_STRUCT_SIZE, &code);
  }
  LONGER(jitsym_inline) longer[3];
  memset(longer, 0, sizeof longer);
  for (size_t i = 0; i < 3; i++) {
    longer[i].known = entry[i];
  }
  code.inlines = &longer[0].known;
  code.inline_size = sizeof longer[0];
  for (size_t i = 0; i < 3; i++) {
    longer[i].tail[39] = 1;
    CODE_REFUSED(JITSYM_ERR_STRUCT_TAIL, &code);
    longer[i].tail[39] = 0;
  }
  code.name = "longer inlines";
  CHECK_OK(jitsym_register(session, &code, NULL));
  code.inlines = entry;
  code.inline_size = 0;
  code.name = "inlines";
  CHECK_OK(jitsym_register(session, &code, NULL));
}

static void inlines(void) {
  session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP | JITSYM_SINK_REGION, 0);
  keeper = test_register(session, KEEPER, 64, "keeper");
  inlines_at(ADDR);
  jitsym_region region = test_region(session, 4096, 0);
  inlines_at((uintptr_t)region.exec);
  CHECK_OK(test_flush(session));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_code == 2 && stats.region_left_out == 0);

  /* The jitdump has what its readers know, as without. */
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  static const char *const names[] = {"longer inlines", "inlines"};
  for (size_t i = 0; i < 2; i++) {
    const struct dump_record *load = dump_load(&dump, names[i], 0);
    CHECK(load != NULL && load->debug == NULL && dump_load(&dump, names[i], 1) == NULL);
  }
  dump_free(&dump);
  end();
}

static jitsym_unwind unwind_of(uint32_t kind) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = kind;
  if (kind == JITSYM_UNWIND_FIXED_FRAME) {
    unwind.cfa_offset = 32;
  }
  return unwind;
}

/* That code with this description is refused. */
#define UNWIND_REFUSED(status, unwind_)                 \
  do {                                                  \
    jitsym_code code_ = test_code(ADDR, 64, "refused"); \
    code_.unwind = (unwind_);                           \
    CODE_REFUSED(status, &code_);                       \
  } while (0)

static void unwind_taken(const jitsym_unwind *unwind, const char *name) {
  jitsym_code code = test_code(ADDR, 64, name);
  code.unwind = unwind;
  CHECK_OK(jitsym_register(session, &code, NULL));
}

static void unwind_common(void) {
  begin();
  static const uint32_t unknown[] = {5, 6, 255, 256, 0x80000000, UINT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    jitsym_unwind unwind = unwind_of(unknown[i]);
    UNWIND_REFUSED(JITSYM_ERR_ENUM, &unwind);
  }
  for (uint32_t kind = JITSYM_UNWIND_NONE; kind <= JITSYM_UNWIND_ROWS; kind++) {
    jitsym_unwind unwind = unwind_of(kind);
    if (kind == JITSYM_UNWIND_FRAME_POINTER && test_unwind().kind != kind) {
      continue;
    }
    unwind_taken(&unwind, "taken");
    static const size_t small[] = {0, 8, offsetof(jitsym_unwind, sp_set) - 1};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
      unwind.struct_size = small[i];
      UNWIND_REFUSED(JITSYM_ERR_STRUCT_SIZE, &unwind);
    }
    unwind.struct_size = sizeof unwind;
    unwind.flags = JITSYM_UNWIND_PACIASP | JITSYM_UNWIND_PACIBSP;
    UNWIND_REFUSED(JITSYM_ERR_FLAGS, &unwind);
    if (kind == JITSYM_UNWIND_NONE || kind == JITSYM_UNWIND_ROWS) {
      unwind.flags = JITSYM_UNWIND_PACIASP;
      UNWIND_REFUSED(JITSYM_ERR_FLAGS, &unwind);
    }
    unwind.flags = 4;
    UNWIND_REFUSED(JITSYM_ERR_FLAGS, &unwind);
    unwind.flags = 0x80000000;
    UNWIND_REFUSED(JITSYM_ERR_FLAGS, &unwind);

    LONGER(jitsym_unwind) longer;
    memset(&longer, 0, sizeof longer);
    longer.known = unwind_of(kind);
    longer.known.struct_size = sizeof longer;
    unwind_taken(&longer.known, "taken");
    longer.tail[0] = 1;
    UNWIND_REFUSED(JITSYM_ERR_STRUCT_TAIL, &longer.known);
    longer.tail[0] = 0;
    longer.tail[39] = 1;
    UNWIND_REFUSED(JITSYM_ERR_STRUCT_TAIL, &longer.known);
  }
  end();
}

#ifndef NO_TABLES

/* Saved registers: what is wrong with them is wrong with every kind that has them. */
static void unwind_saved(jitsym_unwind *unwind, const jitsym_saved_register **saved, uint32_t *count) {
  jitsym_saved_register list[2] = {{REGISTER_SAVED, -24}, {REGISTER_OTHER, -32}};
  *saved = NULL;
  *count = 2;
  UNWIND_REFUSED(JITSYM_ERR_NULL, unwind);
  *saved = list;
  unwind_taken(unwind, "taken");
  list[1].reg = REGISTER_NONE;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_REGISTER, unwind);
  list[1].reg = UINT32_MAX;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_REGISTER, unwind);
  list[1].reg = REGISTER_OTHER;
  static const int32_t odd[] = {-31, WORD / 2 - 32, 1, WORD / 2, INT32_MAX, INT32_MIN + 1};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    list[1].offset = odd[i];
    UNWIND_REFUSED(JITSYM_ERR_UNWIND_FORMAT, unwind);
  }
  /* One register in two places. */
  list[1].reg = REGISTER_SAVED;
  list[1].offset = -40;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_FORMAT, unwind);
  *saved = NULL;
  *count = 0;
}

/* A signed return address, which only aarch64 has. */
static void unwind_signed(void) {
  for (uint32_t kind = JITSYM_UNWIND_FRAME_POINTER; kind <= JITSYM_UNWIND_FIXED_FRAME; kind++) {
    for (uint32_t flags = JITSYM_UNWIND_PACIASP; flags <= JITSYM_UNWIND_PACIBSP; flags++) {
      jitsym_unwind unwind = unwind_of(kind);
      unwind.flags = flags;
#ifdef __aarch64__
      unwind_taken(&unwind, "signed");
      unwind.epilogue_begin = 61;
      UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
      unwind.epilogue_begin = 0;
      unwind.fp_pushed = 4;
      unwind.fp_set = unwind.sp_set = 8;
      UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
#else
      int has_preset = kind != JITSYM_UNWIND_FRAME_POINTER || test_unwind().kind == kind;
      UNWIND_REFUSED(has_preset ? JITSYM_ERR_UNWIND_FORMAT : JITSYM_ERR_ARCH, &unwind);
#endif
    }
  }
}

/* Where compilers have no frame pointer that the presets describe. */
static void unwind_no_frame_pointer(void) {
  jitsym_unwind unwind = unwind_of(JITSYM_UNWIND_FRAME_POINTER);
  UNWIND_REFUSED(JITSYM_ERR_ARCH, &unwind);
  unwind.fp_pushed = 4;
  unwind.fp_set = 8;
  UNWIND_REFUSED(JITSYM_ERR_ARCH, &unwind);
  unwind = unwind_of(JITSYM_UNWIND_FIXED_FRAME);
  unwind.fp_pushed = 4;
  unwind.sp_set = 8;
  UNWIND_REFUSED(JITSYM_ERR_ARCH, &unwind);
  unwind.fp_pushed = 0;
  unwind_taken(&unwind, "taken");
}

static void unwind_frame_pointer(void) {
  jitsym_unwind unwind = unwind_of(JITSYM_UNWIND_FRAME_POINTER);
  unwind_saved(&unwind, &unwind.saved, &unwind.saved_count);
  unwind.fp_pushed = 65;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.fp_pushed = 12;
  unwind.fp_set = 8;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.fp_pushed = 8;
  unwind.fp_set = 65;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.fp_set = UINT32_MAX;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.fp_set = 12;
  unwind_taken(&unwind, "taken");
  unwind.epilogue_begin = 65;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.epilogue_begin = 8;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.epilogue_begin = 60;
  unwind.epilogue_end = 56;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.epilogue_end = 65;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.epilogue_end = 64;
  unwind_taken(&unwind, "taken");
  jitsym_saved_register saved = {REGISTER_SAVED, -24};
  unwind.saved = &saved;
  unwind.saved_count = 1;
  unwind.saved_from = 65;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  unwind.saved_from = 16;
  unwind_taken(&unwind, "taken");
}

static void unwind_frames(void) {
  begin();
  unwind_signed();
  if (test_unwind().kind == JITSYM_UNWIND_FRAME_POINTER) {
    unwind_frame_pointer();
  } else {
    unwind_no_frame_pointer();
  }
  jitsym_unwind unwind = unwind_of(JITSYM_UNWIND_FIXED_FRAME);
  unwind_saved(&unwind, &unwind.saved, &unwind.saved_count);
  end();
}

static void unwind_rows(void) {
  begin();
  jitsym_unwind_row row[3] = {{1, REGISTER_SP, 16, 0, NULL}, {4, REGISTER_FP, 16, 0, NULL}, {60, REGISTER_SP, 8, 0, NULL}};
  jitsym_unwind unwind = unwind_of(JITSYM_UNWIND_ROWS);
  unwind.row_count = 3;
  UNWIND_REFUSED(JITSYM_ERR_NULL, &unwind);
  unwind.rows = row;
  unwind_taken(&unwind, "taken");
  for (size_t i = 0; i < 3; i++) {
    unwind_saved(&unwind, &row[i].saved, &row[i].saved_count);
    jitsym_unwind_row good = row[i];
    row[i].cfa_reg = REGISTER_NONE;
    UNWIND_REFUSED(JITSYM_ERR_UNWIND_REGISTER, &unwind);
    row[i].cfa_reg = UINT32_MAX;
    UNWIND_REFUSED(JITSYM_ERR_UNWIND_REGISTER, &unwind);
    row[i] = good;
  }
  /* Strictly rising, and inside the code. */
  row[1].offset = 1;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  row[1].offset = 0;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  row[1].offset = 61;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  row[1].offset = 4;
  row[2].offset = 65;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  row[2].offset = UINT32_MAX;
  UNWIND_REFUSED(JITSYM_ERR_UNWIND_ORDER, &unwind);
  row[2].offset = 60;

  static const size_t small[] = {1, 8, sizeof row[0] - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    unwind.row_size = small[i];
    UNWIND_REFUSED(JITSYM_ERR_STRUCT_SIZE, &unwind);
  }
  LONGER(jitsym_unwind_row) longer[3];
  memset(longer, 0, sizeof longer);
  for (size_t i = 0; i < 3; i++) {
    longer[i].known = row[i];
  }
  unwind.rows = &longer[0].known;
  unwind.row_size = sizeof longer[0];
  unwind_taken(&unwind, "longer rows");
  for (size_t i = 0; i < 3; i++) {
    longer[i].tail[0] = 1;
    UNWIND_REFUSED(JITSYM_ERR_STRUCT_TAIL, &unwind);
    longer[i].tail[0] = 0;
    longer[i].tail[39] = 1;
    UNWIND_REFUSED(JITSYM_ERR_STRUCT_TAIL, &unwind);
    longer[i].tail[39] = 0;
  }
  unwind.rows = row;
  unwind.row_size = 0;
  unwind_taken(&unwind, "rows");

  CHECK_OK(test_flush(session));
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  const struct dump_record *rows = dump_load(&dump, "rows", 0), *same = dump_load(&dump, "longer rows", 0);
  CHECK(rows != NULL && rows->unwind != NULL && same != NULL && same->unwind != NULL);
  CHECK(rows->unwind->unwind_size == same->unwind->unwind_size);
  CHECK(memcmp(rows->unwind->unwind_bytes, same->unwind->unwind_bytes, rows->unwind->unwind_size) == 0);
  dump_free(&dump);
  end();
}

static void put(unsigned char **at, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; i++) {
    int place = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? (int)i : (int)(size - 1 - i);
    (*at)[i] = (unsigned char)(value >> (8 * place));
  }
  *at += size;
}

/* An .eh_frame as a compiler makes it, for code at an address: one CIE, one FDE with absolute addresses, the end. */
static size_t eh_frame_make(unsigned char *bytes, uint64_t addr, uint64_t size) {
  unsigned char *at = bytes;
  put(&at, 20, 4);
  put(&at, 0, 4);
  put(&at, 1, 1);          /* version */
  put(&at, 'z', 1);        /* augmentation "zR" */
  put(&at, 'R', 1);
  put(&at, 0, 1);
  put(&at, 1, 1);          /* code alignment */
  put(&at, 0x78, 1);       /* data alignment -8 */
  put(&at, 16, 1);         /* return address */
  put(&at, 1, 1);
  put(&at, 0, 1);          /* DW_EH_PE_absptr */
  put(&at, 0x0c, 1);       /* DW_CFA_def_cfa */
  put(&at, REGISTER_SP, 1);
  put(&at, 8, 1);
  put(&at, 0x90, 1);       /* DW_CFA_offset, return address at CFA - 8 */
  put(&at, 1, 1);
  put(&at, 0, 2);
  put(&at, 8 + 2 * WORD, 4);
  put(&at, (uint64_t)(at - bytes), 4);
  put(&at, addr, WORD);
  put(&at, size, WORD);
  put(&at, 0, 4);          /* no augmentation data; DW_CFA_nop */
  put(&at, 0, 4);
  return (size_t)(at - bytes);
}

static void unwind_eh_frame(void) {
  begin();
  unsigned char bytes[128] = {0};
  jitsym_unwind unwind = unwind_of(JITSYM_UNWIND_EH_FRAME);
  unwind.eh_frame_size = eh_frame_make(bytes, ADDR, 64);
  UNWIND_REFUSED(JITSYM_ERR_NULL, &unwind);
  unwind.eh_frame = bytes;
  /* The size is asked for without the address of the code, so that this one is only registered. */
  jitsym_code code = test_code(ADDR, 64, "eh_frame");
  code.unwind = &unwind;
  CHECK_OK(jitsym_register(session, &code, NULL));
  /* Without the end mark, too. */
  size_t whole = unwind.eh_frame_size;
  unwind.eh_frame_size = whole - 4;
  CHECK_OK(jitsym_register(session, &code, NULL));

  code.name = "refused";
  for (size_t cut = 1; cut < whole - 4; cut++) {
    unwind.eh_frame_size = cut;
    CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  }
  unwind.eh_frame_size = 0;
  CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  unwind.eh_frame_size = whole;

  /* Tables for other code. Those for a part of the code are taken: constants may lie behind the instructions. */
  eh_frame_make(bytes, ADDR + 64, 64);
  CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  eh_frame_make(bytes, ADDR - 64, 64);
  CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  /* Lengths that lead out of the section, an FDE whose CIE is nowhere, an unknown version and augmentation. */
  static const struct {
    size_t at;
    unsigned char byte;
  } broken[] = {{0, 0xff}, {1, 1}, {3, 0x7f}, {24, 200}, {27, 0x80}, {28, 1}, {28, 0xf0}, {30, 1}, {8, 77}, {9, 'q'}};
  for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
    eh_frame_make(bytes, ADDR, 64);
    bytes[broken[i].at] = broken[i].byte;
    CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  }
  memset(bytes, 0, sizeof bytes);
  CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  memset(bytes, 0xff, sizeof bytes);
  CODE_REFUSED(JITSYM_ERR_UNWIND_FORMAT, &code);
  /* Random bytes may be taken for tables only if they are some; what counts is that nothing breaks. */
  uint32_t random = 1;
  for (int round = 0; round < 300; round++) {
    eh_frame_make(bytes, ADDR, 64);
    for (int change = 0; change < 1 + round % 4; change++) {
      random = random * 1664525 + 1013904223;
      bytes[(random >> 8) % whole] = (unsigned char)(random >> 16);
    }
    jitsym_status status = jitsym_register(session, &code, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_UNWIND_FORMAT || status == JITSYM_ERR_UNWIND_REGISTER ||
          status == JITSYM_ERR_UNWIND_ORDER);
    code.name = "changed";
  }
  end();
}

#endif

static void moves(void) {
  begin();
  jitsym_id id = test_register(session, ADDR, 64, "mover");
  REFUSED(JITSYM_ERR_NULL, jitsym_move(session, id, NULL));
  jitsym_move_target target = test_target(ADDR + 0x1000);
  static const size_t small[] = {0, 8, sizeof target - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    target.struct_size = small[i];
    REFUSED(JITSYM_ERR_STRUCT_SIZE, jitsym_move(session, id, &target));
  }
  target.struct_size = sizeof target;
  target.flags = JITSYM_CODE_MORE;
  REFUSED(JITSYM_ERR_FLAGS, jitsym_move(session, id, &target));
  target.flags = 8;
  REFUSED(JITSYM_ERR_FLAGS, jitsym_move(session, id, &target));
  target.flags = 0;
  target.reserved = 1;
  REFUSED(JITSYM_ERR_FLAGS, jitsym_move(session, id, &target));
  target.reserved = 0;
  target.addr = 0;
  REFUSED(JITSYM_ERR_ADDRESS_RANGE, jitsym_move(session, id, &target));
  target.addr = UINT64_MAX - 62;
  REFUSED(JITSYM_ERR_ADDRESS_RANGE, jitsym_move(session, id, &target));
  target.addr = ADDR + 0x1000;

  LONGER(jitsym_move_target) longer;
  memset(&longer, 0, sizeof longer);
  longer.known = target;
  longer.known.struct_size = sizeof longer;
  longer.tail[39] = 1;
  REFUSED(JITSYM_ERR_STRUCT_TAIL, jitsym_move(session, id, &longer.known));
  longer.tail[39] = 0;
  longer.tail[0] = 1;
  REFUSED(JITSYM_ERR_STRUCT_TAIL, jitsym_move(session, id, &longer.known));
  longer.tail[0] = 0;

  static const jitsym_id unknown[] = {0, 0x5555555555, UINT64_MAX, UINT64_MAX - 1, (jitsym_id)1 << 63, (jitsym_id)3 << 32 | 7};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, unknown[i], &target));
    REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, unknown[i]));
  }
  REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id + 1000000, &target));
  REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, id + 1000000));
  CHECK_OK(jitsym_move(session, id, &longer.known));
  CHECK_OK(jitsym_unregister(session, id));
  REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, id));
  REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_move(session, id, &target));
  /* The same place again is another code with another id. */
  jitsym_id again = test_register(session, ADDR + 0x1000, 64, "mover");
  CHECK(again != id);
  REFUSED(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, id));
  CHECK_OK(jitsym_unregister(session, again));

  REFUSED(JITSYM_ERR_SIZE_ZERO, jitsym_unregister_range(session, ADDR, 0, 0));
  REFUSED(JITSYM_ERR_FLAGS, jitsym_unregister_range(session, ADDR, 64, JITSYM_RANGE_UNMAP << 1));
  REFUSED(JITSYM_ERR_FLAGS, jitsym_unregister_range(session, ADDR, 64, UINT32_C(1) << 31 | JITSYM_RANGE_UNMAP));
  REFUSED(JITSYM_ERR_SIZE_ZERO, jitsym_unregister_range(session, 0, 0, 0));
  REFUSED(JITSYM_ERR_ADDRESS_RANGE, jitsym_unregister_range(session, UINT64_MAX, 2, 0));
  REFUSED(JITSYM_ERR_ADDRESS_RANGE, jitsym_unregister_range(session, ADDR, UINT64_MAX, 0));
  REFUSED(JITSYM_ERR_ADDRESS_RANGE, jitsym_unregister_range(session, 2, UINT64_MAX, 0));
  end();
}

static void buffers(void) {
  begin();
  REFUSED(JITSYM_ERR_NULL, jitsym_get_stats(session, NULL));
  jitsym_stats stats;
  memset(&stats, 0x55, sizeof stats);
  static const size_t small[] = {0, 8, offsetof(jitsym_stats, jitdump_lost) - 8, offsetof(jitsym_stats, jitdump_lost) - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    stats.struct_size = small[i];
    REFUSED(JITSYM_ERR_STRUCT_SIZE, jitsym_get_stats(session, &stats));
    CHECK(stats.struct_size == small[i] && stats.registered == 0x5555555555555555);
  }

  char buffer[TEST_PATH_MAX];
  memset(buffer, 0x55, sizeof buffer);
  static const uint32_t unknown[] = {0, 3, 5, 6, 7, 128, 0x80000000, UINT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    REFUSED(JITSYM_ERR_ENUM, jitsym_path(session, unknown[i], buffer, sizeof buffer));
  }
  REFUSED(JITSYM_ERR_NULL, jitsym_path(session, JITSYM_SINK_MAP, NULL, sizeof buffer));
  struct test_path path = test_path(session, JITSYM_SINK_MAP);
  REFUSED(JITSYM_ERR_BUFFER, jitsym_path(session, JITSYM_SINK_MAP, buffer, 0));
  REFUSED(JITSYM_ERR_BUFFER, jitsym_path(session, JITSYM_SINK_MAP, buffer, 1));
  REFUSED(JITSYM_ERR_BUFFER, jitsym_path(session, JITSYM_SINK_MAP, buffer, strlen(path.text)));
  REFUSED(JITSYM_ERR_BUFFER, jitsym_last_error(session, buffer, 0));
  REFUSED(JITSYM_ERR_BUFFER, jitsym_last_error(NULL, buffer, 0));
  REFUSED(JITSYM_ERR_NULL, jitsym_last_error(session, NULL, sizeof buffer));
  REFUSED(JITSYM_ERR_NULL, jitsym_last_error(NULL, NULL, sizeof buffer));
  for (size_t i = 0; i < sizeof buffer; i++) {
    CHECK(buffer[i] == 0x55);
  }
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, buffer, strlen(path.text) + 1));
  CHECK(strcmp(buffer, path.text) == 0 && buffer[strlen(path.text) + 1] == 0x55);
  end();
}

/* Every function answers with `status` for a handle, and writes nothing. */
static void session_refused(jitsym *handle, jitsym_status status) {
  jitsym_id id = 0x5555;
  jitsym_code code = test_code(ADDR, 64, "refused");
  CHECK_STATUS(status, jitsym_register(handle, &code, &id));
  CHECK(id == 0x5555);
  jitsym_move_target target = test_target(ADDR + 0x1000);
  CHECK_STATUS(status, jitsym_move(handle, keeper, &target));
  CHECK_STATUS(status, jitsym_unregister(handle, keeper));
  CHECK_STATUS(status, jitsym_unregister_range(handle, KEEPER, 64, 0));
  CHECK_STATUS(status, jitsym_flush(handle, 10));
  jitsym_stats stats;
  memset(&stats, 0x55, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_STATUS(status, jitsym_get_stats(handle, &stats));
  CHECK(stats.registered == 0x5555555555555555);
  char buffer[TEST_PATH_MAX] = "untouched";
  if (handle != NULL) {
    CHECK_STATUS(status, jitsym_last_error(handle, buffer, sizeof buffer));
  }
  CHECK_STATUS(status, jitsym_path(handle, JITSYM_SINK_MAP, buffer, sizeof buffer));
  CHECK(strcmp(buffer, "untouched") == 0);
  CHECK_STATUS(status, jitsym_close(handle));
}

static void sessions(void) {
  /* Before there was any. */
  session_refused(NULL, JITSYM_ERR_SESSION);
  session_refused((jitsym *)(uintptr_t)1, JITSYM_ERR_SESSION);
  begin();
  jitsym_stats before = known();
  int on_stack = 0;
  void *on_heap = malloc(64);
  CHECK(on_heap != NULL);
  uintptr_t wild[] = {0, 1, 2, 4096, UINTPTR_MAX, UINTPTR_MAX - 1, (uintptr_t)&on_stack, (uintptr_t)on_heap,
                      (uintptr_t)&session, (uintptr_t)0xdeadbeef, (uintptr_t)0xdeadbeefdeadbeef,
                      (uintptr_t)0x5555555555555555, (uintptr_t)0xaaaaaaaaaaaaaaaa};
  for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++) {
    session_refused((jitsym *)wild[i], JITSYM_ERR_SESSION);
  }
  /* One bit off: not this session, whatever it is taken for. */
  for (unsigned bit = 0; bit < 8 * sizeof(uintptr_t); bit++) {
    jitsym *near = (jitsym *)((uintptr_t)session ^ (uintptr_t)1 << bit);
    jitsym_status status = jitsym_flush(near, 0);
    CHECK(status == JITSYM_ERR_SESSION || status == JITSYM_ERR_CLOSED || status == JITSYM_ERR_FORKED);
    CHECK(jitsym_close(near) != JITSYM_OK);
  }
  free(on_heap);
  jitsym_stats after = known();
  CHECK(memcmp(&before, &after, sizeof before) == 0);

  /* Closed ones stay closed, also when their place has been given to others. */
  jitsym *closed[40];
  for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++) {
    closed[i] = test_open();
    CHECK(closed[i] != session);
    CHECK_OK(jitsym_close(closed[i]));
    for (size_t other = 0; other <= i; other++) {
      CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(closed[other]));
    }
    session_refused(closed[i], JITSYM_ERR_CLOSED);
  }
  after = known();
  CHECK(memcmp(&before, &after, sizeof before) == 0);
  jitsym *first = session;
  end();
  session_refused(first, JITSYM_ERR_CLOSED);
  begin();
  CHECK(session != first);
  session_refused(first, JITSYM_ERR_CLOSED);
  CHECK_OK(jitsym_close(session));
}

static void init_refused(jitsym_status status, const jitsym_options *options) {
  jitsym *out = (jitsym *)&session;
  CHECK_STATUS(status, jitsym_init(options, &out));
  CHECK(out == (jitsym *)&session);
}

/* Bad options are refused alike whether a session is running or not. */
static void bad_options(void) {
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_init(NULL, NULL));
  jitsym_options options = test_options();
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_init(&options, NULL));
  static const size_t small[] = {0, 8, offsetof(jitsym_options, map_max) - 1};
  for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
    options.struct_size = small[i];
    init_refused(JITSYM_ERR_STRUCT_SIZE, &options);
  }
  /* One of the first version: what it does not have counts as 0. */
  options = test_options();
  options.sinks = JITSYM_SINK_MAP;
  memset(&options.map_max, 0xff, sizeof options - offsetof(jitsym_options, map_max));
  options.struct_size = offsetof(jitsym_options, map_max);
  jitsym *opened = NULL;
  jitsym_status first = jitsym_init(&options, &opened);
  CHECK(first == JITSYM_OK);
  CHECK_OK(jitsym_close(opened));
  LONGER(jitsym_options) longer;
  memset(&longer, 0, sizeof longer);
  longer.known = test_options();
  longer.known.struct_size = sizeof longer;
  longer.tail[0] = 1;
  init_refused(JITSYM_ERR_STRUCT_TAIL, &longer.known);
  longer.tail[0] = 0;
  longer.tail[39] = 1;
  init_refused(JITSYM_ERR_STRUCT_TAIL, &longer.known);

  for (int bit = 7; bit < 32; bit++) {
    options = test_options();
    options.sinks = (uint32_t)1 << bit;
    init_refused(JITSYM_ERR_FLAGS, &options);
    options.sinks |= JITSYM_SINK_MAP;
    init_refused(JITSYM_ERR_FLAGS, &options);
  }
  for (int bit = 15; bit < 32; bit++) {
    options = test_options();
    options.flags = (uint32_t)1 << bit;
    init_refused(JITSYM_ERR_FLAGS, &options);
  }
  options = test_options();
  options.flags = JITSYM_INIT_FORK_NOW | JITSYM_INIT_FORK_ALONE;
  init_refused(JITSYM_ERR_FLAGS, &options);
  /* Permission bits only: nobody needs the others on these files. */
  for (int bit = 9; bit < 32; bit++) {
    options = test_options();
    options.file_mode = 0600 | (uint32_t)1 << bit;
    init_refused(JITSYM_ERR_FLAGS, &options);
  }
  options = test_options();
  options.reserved = 1;
  init_refused(JITSYM_ERR_FLAGS, &options);
  static const uint32_t dialects[] = {2, 3, 256, 0x80000000, UINT32_MAX};
  for (size_t i = 0; i < sizeof dialects / sizeof dialects[0]; i++) {
    options = test_options();
    options.map_dialect = dialects[i];
    init_refused(JITSYM_ERR_ENUM, &options);
  }

  char too_long[JITSYM_DIR_MAX + 2];
  memset(too_long, 'x', sizeof too_long);
  too_long[0] = '/';
  too_long[JITSYM_DIR_MAX + 1] = 0;
  const char *const paths[] = {"", ".", "tmp", "./tmp", "../tmp", " /tmp", too_long};
  for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
    options = test_options();
    options.map_dir = paths[i];
    init_refused(JITSYM_ERR_PATH, &options);
    options = test_options();
    options.jitdump_dir = paths[i];
    init_refused(JITSYM_ERR_PATH, &options);
  }
}

static void init(void) {
  bad_options();
  begin();
  jitsym_stats before = known();
  bad_options();
  /* What runs has the test's directory. */
  struct test_path other = test_subdir("other", 1);
  jitsym_options options = test_options();
  options.map_dir = other.text;
  init_refused(JITSYM_ERR_CONFLICT, &options);
  options = test_options();
  options.jitdump_dir = other.text;
  init_refused(JITSYM_ERR_CONFLICT, &options);
  options = test_options();
  options.map_dialect = JITSYM_MAP_SIMPLEPERF;
  init_refused(JITSYM_ERR_CONFLICT, &options);
  jitsym_stats after = known();
  CHECK(memcmp(&before, &after, sizeof before) == 0);

  LONGER(jitsym_options) longer;
  memset(&longer, 0, sizeof longer);
  longer.known = test_options();
  longer.known.struct_size = sizeof longer;
  jitsym *joined = NULL;
  CHECK_OK(jitsym_init(&longer.known, &joined));
  CHECK(joined != NULL && joined != session);
  CHECK_OK(jitsym_close(joined));
  end();
}

/* That no sink can be started in a directory, that the reason names it, and that a good directory works after it. */
static void directory_refused(const char *dir) {
  char text[4096];
  jitsym_options options = test_options();
  options.map_dir = options.jitdump_dir = dir;
  init_refused(JITSYM_ERR_NO_SINK, &options);
  CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
  CHECK(strstr(text, dir) != NULL);
}

static void directories(void) {
  char longest[JITSYM_DIR_MAX + 1];
  memset(longest, 'x', JITSYM_DIR_MAX);
  longest[0] = '/';
  longest[JITSYM_DIR_MAX] = 0;
  /* Just not too long: but one component of a path holds no more than 255 bytes. */
  directory_refused(longest);
  struct test_path missing = test_subdir("missing", 0);
  directory_refused(missing.text);
  CHECK(!file_exists(missing.text));
  struct test_path file = test_subdir("file", 0);
  file_write(file.text, "a file");
  directory_refused(file.text);

  /* One sink of two: the session opens, says what is missing and why, and the other sink goes on. */
  for (int map_fails = 0; map_fails < 2; map_fails++) {
    uint32_t bad = map_fails ? JITSYM_SINK_MAP : JITSYM_SINK_JITDUMP;
    uint32_t good = map_fails ? JITSYM_SINK_JITDUMP : JITSYM_SINK_MAP;
    jitsym_options options = test_options();
    *(map_fails ? &options.map_dir : &options.jitdump_dir) = file.text;
    jitsym *half = NULL;
    CHECK_OK(jitsym_init(&options, &half));
    jitsym_id id = test_register(half, KEEPER, 64, "half");
    CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(half, 0));
    jitsym_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(jitsym_get_stats(half, &stats));
    CHECK(stats.sinks_running == (good | JITSYM_SINK_REGION) && stats.sinks_failed == bad);
    char text[4096];
    CHECK_OK(jitsym_last_error(half, text, sizeof text));
    CHECK(strstr(text, file.text) != NULL);
    char short_text[8];
    CHECK_OK(jitsym_last_error(half, short_text, sizeof short_text));
    CHECK(strlen(short_text) == 7 && memcmp(short_text, text, 7) == 0);
    CHECK_OK(jitsym_last_error(half, short_text, 1));
    CHECK(short_text[0] == 0);
    strcpy(text, "untouched");
    CHECK_STATUS(JITSYM_ERR_NOT_RUNNING, jitsym_path(half, bad, text, sizeof text));
    CHECK(strcmp(text, "untouched") == 0);
    struct test_path path = test_path(half, good);
    if (map_fails) {
      struct dump dump = dump_read(path.text);
      CHECK(dump_load(&dump, "half", 0) != NULL);
      dump_free(&dump);
    } else {
      struct map map = map_read(path.text);
      CHECK(strcmp(map_name(&map, KEEPER), "half") == 0);
      map_free(&map);
    }
    CHECK_OK(jitsym_unregister(half, id));
    jitsym_status status = jitsym_close(half);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED);
  }
  struct stat status;
  CHECK(stat(file.text, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 6);
}

/* The name that a name becomes, in both files. */
static void name_becomes(const char *name, size_t length, const char *expected) {
  static uint64_t addr = 0x7200000000;
  addr += 0x1000;
  jitsym_code code = test_code(addr, 16, name);
  code.name_len = length;
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  const char *mapped = map_name(&map, addr);
  char by_address[64];
  if (expected == NULL) {
    snprintf(by_address, sizeof by_address, "jit_%llx", (unsigned long long)addr);
    expected = by_address;
  }
  if (strcmp(mapped, expected) != 0) {
    fprintf(stderr, "\"%s\" became \"%s\", expected \"%s\"\n", name == NULL ? "NULL" : name, mapped, expected);
  }
  CHECK(strcmp(mapped, expected) == 0);
  CHECK(dump_load(&dump, expected, 0) != NULL);
  map_free(&map);
  dump_free(&dump);
}

static void names(void) {
  begin();
  name_becomes("plain", 0, "plain");
  name_becomes("with a space", 0, "with a space");
  name_becomes("void f<int>(x::y const&)", 0, "void f<int>(x::y const&)");
  name_becomes("gr\xc3\xbc\xc3\x9f", 0, "gr\xc3\xbc\xc3\x9f");
  name_becomes("plainly", 5, "plain");
  CHECK(known().names_changed == 0);

  name_becomes(NULL, 0, NULL);
  name_becomes("", 0, NULL);
  name_becomes("   ", 0, NULL);
  name_becomes(" \t\n ", 0, NULL);
  name_becomes("  trimmed\t", 0, "trimmed");
  name_becomes("two\nlines", 0, "two_lines");
  name_becomes("cr\rtab\tesc\033del\177", 0, "cr_tab_esc_del_");
  name_becomes("c1\xc2\x85next", 0, "c1_next");
  name_becomes("nul\0inside", 10, "nul_inside");
  name_becomes("bad\xff", 0, "bad\xef\xbf\xbd");
  name_becomes("cut\xe2\x82", 0, "cut\xef\xbf\xbd");
  name_becomes("half\xe2\x82\xacway", 6, "half\xef\xbf\xbd");
  CHECK(known().names_changed >= 10);

  /* perf does not see names of one or two bytes: something must have been added to them. */
  static const char *const tiny[] = {"x", "xy"};
  for (size_t i = 0; i < 2; i++) {
    uint64_t addr = 0x7300000000 + 0x1000 * i;
    jitsym_code code = test_code(addr, 16, tiny[i]);
    CHECK_OK(jitsym_register(session, &code, NULL));
    CHECK_OK(test_flush(session));
    struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
    const char *name = map_name(&map, addr);
    CHECK(strlen(name) >= 3 && memcmp(name, tiny[i], strlen(tiny[i])) == 0);
    map_free(&map);
  }

  /* A megabyte of name: cut, and names that differ only behind the cut stay different. */
  enum { LONG = 1 << 20 };
  char *name = malloc(LONG + 1);
  CHECK(name != NULL);
  memset(name, 'n', LONG);
  name[LONG] = 0;
  char kept[2][JITSYM_NAME_MAX + 1];
  for (size_t i = 0; i < 2; i++) {
    uint64_t addr = 0x7400000000 + 0x1000 * i;
    jitsym_code code = test_code(addr, 16, name);
    code.name_len = i == 0 ? 0 : LONG;
    name[LONG - 1] = (char)('a' + i);
    CHECK_OK(jitsym_register(session, &code, NULL));
    CHECK_OK(test_flush(session));
    struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
    CHECK(strlen(map_name(&map, addr)) <= JITSYM_NAME_MAX);
    strcpy(kept[i], map_name(&map, addr));
    map_free(&map);
    size_t length = strlen(kept[i]);
    CHECK(length > JITSYM_NAME_MAX - 8 && kept[i][length - 9] == '~');
    CHECK(strspn(kept[i] + length - 8, "0123456789abcdef") == 8);
    CHECK(strspn(kept[i], "n") == length - 9);
  }
  CHECK(strcmp(kept[0], kept[1]) != 0);
  /* The longest name that is kept as it is, and a character that would straddle the cut. */
  name[JITSYM_NAME_MAX] = 0;
  name_becomes(name, 0, name);
  for (size_t i = 0; i + 1 < JITSYM_NAME_MAX; i += 2) {
    memcpy(name + i, "\xc3\xbc", 2);
  }
  memcpy(name + JITSYM_NAME_MAX, "xy", 3);
  for (size_t shift = 0; shift < 2; shift++) {
    uint64_t addr = 0x7500000000 + 0x1000 * shift;
    memmove(name + 1, name, JITSYM_NAME_MAX + 3);
    name[0] = 'x';
    jitsym_code code = test_code(addr, 16, name);
    CHECK_OK(jitsym_register(session, &code, NULL));
    CHECK_OK(test_flush(session));
    struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
    const char *got = map_name(&map, addr);
    CHECK(strlen(got) <= JITSYM_NAME_MAX && strstr(got, "\xef\xbf\xbd") == NULL);
    const char *at = got;
    while (*at == 'x') {
      at++;
    }
    for (; at[0] == '\xc3'; at += 2) {
      CHECK(at[1] == '\xbc');
    }
    CHECK(*at == '~' && strlen(at) == 9);
    map_free(&map);
  }
  free(name);

  /* A name at the end of what can be read, with no NUL behind it. */
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
  memcpy(pages + page - 7, "no_nul!", 7);
  name_becomes(pages + page - 7, 7, "no_nul!");
  CHECK(munmap(pages, 2 * page) == 0);
  end();
}

/* The name that name, file and line become, in both files, and the file of the row in the jitdump: "" if there is none, "/own.c" if
 * the code has a table, NULL for any. Returns the name. */
static const char *source_becomes(const char *name, const char *file, uint32_t line, const char *expected, const char *row) {
  static uint64_t addr = 0x7600000000;
  static char got[JITSYM_NAME_MAX + 1];
  addr += 0x1000;
  jitsym_line own = {4, 77, 3, 0, "/own.c"};
  jitsym_code code = test_code(addr, 16, name);
  code.file = file;
  code.line = line;
  int has_own = row != NULL && strcmp(row, "/own.c") == 0;
  if (has_own) {
    code.lines = &own;
    code.line_count = 1;
  }
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  snprintf(got, sizeof got, "%s", map_name(&map, addr));
  if (expected != NULL && strcmp(got, expected) != 0) {
    fprintf(stderr, "\"%s\" became \"%s\", expected \"%s\"\n", name == NULL ? "NULL" : name, got, expected);
    CHECK(0);
  }
  const struct dump_record *load = dump_load(&dump, got, 0);
  CHECK(load != NULL && load->addr == addr);
  CHECK((load->debug != NULL) == (row == NULL || row[0] != 0));
  if (load->debug != NULL) {
    /* The last one closes the table. */
    CHECK(load->debug->lines == 2);
    struct dump_line first = dump_line(load->debug, 0);
    CHECK(strcmp(first.file, row == NULL ? first.file : row) == 0 && first.line == (has_own ? 77 : (int32_t)line));
    CHECK(first.addr == addr + (has_own ? 4 : 0) && first.column == (has_own ? 3 : 0));
  }
  map_free(&map);
  dump_free(&dump);
  return got;
}

/* Where a function begins is the end of its name, and its only line if there is no table. */
static void sources(void) {
  begin();
  source_becomes("function", "/src/a.c", 12, "function /src/a.c:12", "/src/a.c");
  source_becomes("function", "/src/a.c", UINT32_MAX >> 1, "function /src/a.c:2147483647", "/src/a.c");
  source_becomes("function", "/src/b.c", 12, "function /src/b.c:12", "/own.c");
  source_becomes("function", "/src/c.c", 0, "function /src/c.c", "");
  source_becomes("function", "/src/d.c", 0, "function /src/d.c", "/own.c");
  source_becomes("no file", NULL, 12, "no file", "");
  source_becomes("empty file", "", 12, "empty file", "");
  source_becomes("gr\xc3\xbc\xc3\x9f", "/\xc3\xbc.c", 3, "gr\xc3\xbc\xc3\x9f /\xc3\xbc.c:3", "/\xc3\xbc.c");
  /* No `()`: the name is long enough. */
  source_becomes("f", "g", 7, "f g:7", "g");
  CHECK(known().names_changed == 0);

  source_becomes("blank file", " \t", 12, "blank file", "");
  source_becomes("x", "\n", 12, "x()", "");
  source_becomes(" trimmed ", "\t/src/a.c ", 5, "trimmed /src/a.c:5", "/src/a.c");
  source_becomes("two\nlines", "/a\r/\xff.c", 6, "two_lines /a_/\xef\xbf\xbd.c:6", "/a_/\xef\xbf\xbd.c");
  CHECK(known().names_changed == 4);
  char by_address[64];
  const char *got = source_becomes(NULL, "/src/e.c", 8, NULL, "/src/e.c");
  CHECK(sscanf(got, "jit_%63[0-9a-f]", by_address) == 1 && strcmp(got + 4 + strlen(by_address), " /src/e.c:8") == 0);
  CHECK(known().names_changed == 5);

  /* The limit holds for all of it, and what differs behind the cut stays different: the name, the file or the line. */
  enum { LONG = 3000 };
  static char names[2][LONG], files[2][LONG];
  for (size_t i = 0; i < 2; i++) {
    memset(names[i], 'n', LONG - 1);
    memset(files[i], 'f', LONG - 1);
    names[i][LONG - 2] = files[i][LONG - 2] = (char)('a' + i);
  }
  const struct {
    const char *name, *file;
    uint32_t line;
  } cut[] = {{names[0], "/a.c", 1}, {names[1], "/a.c", 1}, {names[0], "/b.c", 1}, {names[0], "/a.c", 2},
             {"short", files[0], 1}, {"short", files[1], 1}, {names[0], files[0], 1}, {names[0], files[0], 2}};
  enum { CUT = sizeof cut / sizeof cut[0] };
  static char kept[CUT][JITSYM_NAME_MAX + 1];
  for (size_t i = 0; i < CUT; i++) {
    /* A file that is cut itself is so in the row too. */
    const char *row = strlen(cut[i].file) > JITSYM_NAME_MAX ? NULL : cut[i].file;
    strcpy(kept[i], source_becomes(cut[i].name, cut[i].file, cut[i].line, NULL, row));
    CHECK(strlen(kept[i]) == JITSYM_NAME_MAX && kept[i][JITSYM_NAME_MAX - 9] == '~');
    for (size_t other = 0; other < i; other++) {
      CHECK(strcmp(kept[i], kept[other]) != 0);
    }
  }
  CHECK(known().names_changed == 5 + CUT);
  /* The longest that is kept. */
  char longest[JITSYM_NAME_MAX + 16], name[JITSYM_NAME_MAX];
  memset(name, 'n', sizeof name);
  name[JITSYM_NAME_MAX - 8] = 0;
  snprintf(longest, sizeof longest, "%s /a.c:12", name);
  source_becomes(name, "/a.c", 1, NULL, "/a.c");
  source_becomes(name, "/a.c", 12, longest, "/a.c");
  CHECK(strlen(longest) == JITSYM_NAME_MAX && known().names_changed == 5 + CUT);

  /* Of a struct as it was before, the fields are not looked at. */
  jitsym_code code = test_code(0x7700000000, 16, "older");
  code.file = (const char *)1;
  code.reserved2 = 1;
  CODE_REFUSED(JITSYM_ERR_FLAGS, &code);
  code.struct_size = offsetof(jitsym_code, file);
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, code.addr), "older") == 0);
  map_free(&map);
  end();
}

static void on_signal(int number) {
  fprintf(stderr, "signal %d\n", number);
  _exit(1);
}

/* Code that cannot be read is registered all the same: the name is worth more than the bytes. */
static void unreadable(void) {
  static const int signals[] = {SIGSEGV, SIGBUS, SIGPIPE, SIGILL};
  for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
    CHECK(signal(signals[i], on_signal) != SIG_ERR);
  }
  begin();
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned char *pages = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED);
  memset(pages, 0xab, 4 * page);
  CHECK(mprotect(pages + page, page, PROT_NONE) == 0 && mprotect(pages + 3 * page, page, PROT_NONE) == 0);
  CHECK(known().unreadable == 0);

  struct {
    const char *name;
    uint64_t addr;
    uint64_t size;
    /* How many of the first bytes can be read. */
    uint64_t read;
  } ranges[] = {
      {"readable", (uintptr_t)pages, 100, 100},
      {"no access", (uintptr_t)pages + page + 64, 64, 0},
      {"half readable", (uintptr_t)pages + 2 * page + 100, page, page - 100},
      /* Where nothing is mapped unless asked for. What was just unmapped may be taken by the next allocation. */
      {"unmapped", 0x20000, 64, 0},
      {"first page", 64, 64, 0},
      {"not canonical", (uint64_t)0x8000000000000000, 64, 0},
      {"end of memory", UINT64_MAX - 128, 64, 0},
  };
  enum { RANGES = sizeof ranges / sizeof ranges[0] };
  jitsym_id ids[RANGES];
  /* Where the system call is missing (qemu), the library reads /proc/self/mem, which has what is there, accessible or not. */
  char byte;
  struct iovec part = {&byte, 1};
  int knows_access = process_vm_readv(getpid(), &part, 1, &part, 1, 0) == 1;
  if (!knows_access) {
    ranges[1].read = ranges[1].size;
    ranges[2].read = ranges[2].size;
  }
  for (size_t i = 0; i < RANGES; i++) {
    uint64_t before = known().unreadable;
    jitsym_code code = test_code(ranges[i].addr, ranges[i].size, ranges[i].name);
    code.bytes = NULL;
    CHECK_OK(jitsym_register(session, &code, &ids[i]));
    /* The emulator of a 32-bit machine reserves all memory of that machine, so that unmapped memory has bytes too. */
    int may_be_there = sizeof(void *) == 4 && !knows_access && strcmp(ranges[i].name, "unmapped") == 0;
    CHECK(may_be_there || known().unreadable == before + (ranges[i].read < ranges[i].size));
  }
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  for (size_t i = 0; i < RANGES; i++) {
    CHECK(strcmp(map_name(&map, ranges[i].addr), ranges[i].name) == 0);
    const struct dump_record *load = dump_load(&dump, ranges[i].name, 0);
    CHECK(load != NULL && load->addr == ranges[i].addr && load->size == ranges[i].size);
    for (uint64_t at = 0; at < load->size; at++) {
      CHECK(load->code[at] == (at < ranges[i].read ? 0xab : 0));
    }
  }
  map_free(&map);
  dump_free(&dump);

  /* The same for a move. */
  jitsym_move_target target = test_target((uintptr_t)pages + page + 512);
  target.bytes = NULL;
  uint64_t before = known().unreadable;
  CHECK_OK(jitsym_move(session, ids[0], &target));
  CHECK(known().unreadable == before + (knows_access ? 1 : 0));
  dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  const struct dump_record *moved = dump_load(&dump, "readable", 1);
  CHECK(moved != NULL && moved->addr == target.addr && moved->size == 100);
  for (uint64_t at = 0; at < moved->size; at++) {
    CHECK(moved->code[at] == (knows_access ? 0 : 0xab));
  }
  dump_free(&dump);
  for (size_t i = 0; i < RANGES; i++) {
    CHECK_OK(jitsym_unregister(session, ids[i]));
  }
  CHECK(munmap(pages, 4 * page) == 0);
  end();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(codes);
  test_child(lines);
  test_child(inlines);
  test_child(unwind_common);
#ifndef NO_TABLES
  test_child(unwind_frames);
  test_child(unwind_rows);
  test_child(unwind_eh_frame);
#endif
  test_child(moves);
  test_child(buffers);
  test_child(sessions);
  test_child(init);
  test_child(directories);
  test_child(names);
  test_child(sources);
  test_child(unreadable);
  return test_end();
}
