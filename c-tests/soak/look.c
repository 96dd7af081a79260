/* What a number says of its code: name, bytes, lines, unwind description; and so what a record with this number must hold. */
#include "soak.h"

unsigned char *pool;
enum { POOL = 4 << 20 };

void pool_begin(void) {
  pool = malloc(POOL);
  CHECK(pool != NULL);
  uint64_t random = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < POOL; i += sizeof random) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    memcpy(pool + i, &random, sizeof random);
  }
}

struct look look_of(uint32_t number, uint64_t size) {
  uint64_t hash = (number + UINT64_C(1)) * 0x9e3779b97f4a7c15;
  hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93;
  hash ^= hash >> 32;
  struct look look;
  look.name_kind = hash % 24;
  unsigned bytes = hash >> 8 & 15;
  look.bytes = bytes < 9 ? BYTES_GIVEN : bytes < 12 ? BYTES_AT_ADDRESS : bytes < 14 ? BYTES_STABLE : BYTES_STABLE_THERE;
  unsigned lines = hash >> 12 & 31;
  look.lines = lines < 16 ? 0 : lines == 31 ? LINES_MAX : lines - 15;
  if (look.lines > size) {
    look.lines = 0;
  }
  look.unwind = size < 16 ? JITSYM_UNWIND_NONE : (unsigned)(hash >> 20 & 7) % 5;
  look.content = hash >> 24 & ((POOL >> 1) - 1);
  return look;
}

const unsigned char *look_content(const struct look *look) {
  return pool + look->content;
}

static size_t put_text(char *out, const char *text, size_t size) {
  memcpy(out, text, size);
  return size;
}

/* Behind the number: what is given, and what is to be made of it. */
#define TAIL(given, written) {given, sizeof(given) - 1, written, sizeof(written) - 1}
static const struct {
  const char *given;
  size_t given_size;
  const char *written;
  size_t written_size;
} tails[] = {
  TAIL("gr\xc3\xb6\xc3\x9f" "e\xe5\x90\x8d", "gr\xc3\xb6\xc3\x9f" "e\xe5\x90\x8d"),
  TAIL(" \xff\xfe!", " \xef\xbf\xbd\xef\xbf\xbd!"),
  TAIL(" a\n\tb\x01\x7f", " a__b__"),
  TAIL(" a\r\nPWNED \n", " a__PWNED"),
  TAIL(" nul\0inside", " nul_inside"),
  TAIL(" line\xe2\x80\xa8" "end\xc2\x85.", " line_end_."),
  TAIL("::f<int, 3>(char const*) [clone]", "::f<int, 3>(char const*) [clone]"),
  TAIL("   ", ""),
  TAIL(" 0x10 20 x", " 0x10 20 x"),
};
enum { TAILS = sizeof tails / sizeof *tails, NAME_NULL = TAILS, NAME_SHORT, NAME_LONG, NAME_LONGEST, NAME_BEGIN_SPACE };

long name_given(const struct look *look, uint32_t number, char *out) {
  size_t size = 0;
  switch (look->name_kind) {
    case NAME_NULL:
      return -1;
    case NAME_SHORT:
      return (long)put_text(out, "f", 1);
    case NAME_BEGIN_SPACE:
      out[size++] = ' ';
      break;
    default:;
  }
  size += (size_t)sprintf(out + size, "n%x", number);
  if (look->name_kind < TAILS) {
    size += put_text(out + size, tails[look->name_kind].given, tails[look->name_kind].given_size);
  }
  size_t whole = look->name_kind == NAME_LONG ? 3000 : look->name_kind == NAME_LONGEST ? JITSYM_NAME_MAX : size;
  memset(out + size, 'y', whole - size);
  return (long)whole;
}

/* What a name is cut to ends in this, of the whole of it. */
static uint32_t name_hash(const char *name, size_t size) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; i++) {
    hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3;
  }
  return (uint32_t)(hash ^ hash >> 32);
}

int name_written(const struct look *look, uint32_t number, uint64_t addr, char *out) {
  long size = name_given(look, number, out);
  switch (look->name_kind) {
    case NAME_NULL:
      sprintf(out, "jit_%llx", (unsigned long long)addr);
      return 1;
    case NAME_SHORT:
      strcpy(out, "f()");
      return 0;
    case NAME_LONG: {
      uint32_t hash = name_hash(out, (size_t)size);
      sprintf(out + JITSYM_NAME_MAX - 9, "~%08x", hash);
      return 1;
    }
    case NAME_BEGIN_SPACE:
      memmove(out, out + 1, (size_t)size - 1);
      out[size - 1] = 0;
      return 1;
    default:
      out[size] = 0;
  }
  if (look->name_kind >= TAILS) {
    return 0;
  }
  size -= (long)tails[look->name_kind].given_size;
  put_text(out + size, tails[look->name_kind].written, tails[look->name_kind].written_size + 1);
  return strcmp(tails[look->name_kind].given, tails[look->name_kind].written) != 0;
}

uint32_t name_number(const char *name) {
  char *end;
  return *name == 'n' ? (uint32_t)strtoul(name + 1, &end, 16) : 0;
}

#if defined __x86_64__
enum { SP = 7, FIRST_CFA = 8, SAVED = 3, FRAME = 6, RETURN = 16 };
#elif defined __aarch64__
enum { SP = 31, FIRST_CFA = 0, SAVED = 19, FRAME = 29, RETURN = 30 };
#else
enum { SP = 2, FIRST_CFA = 0, SAVED = 9, FRAME = 8, RETURN = 1 };
#endif

static void put_u32(unsigned char *out, size_t at, uint32_t value) {
  memcpy(out + at, &value, sizeof value);
}

/* A section as a compiler makes it, right behind the code. */
static size_t make_eh_frame(unsigned char *out, uint64_t size, unsigned frame) {
  static const unsigned char cie[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, RETURN, 1, 0x1b, 0x0c, SP, FIRST_CFA,
                                      0, 0, 0, 0};
  memcpy(out, cie, sizeof cie);
  size_t fde = sizeof cie;
  put_u32(out, fde, 20);
  put_u32(out, fde + 4, (uint32_t)fde + 4);
  put_u32(out, fde + 8, (uint32_t) - (int64_t)(size + fde + 8));
  put_u32(out, fde + 12, (uint32_t)size);
  unsigned char program[] = {0, 0x41, 0x0e, (unsigned char)frame, 0, 0, 0, 0};
  memcpy(out + fde + 16, program, sizeof program);
  put_u32(out, fde + 24, 0);
  return fde + 28;
}

void look_describe(const struct look *look, jitsym_code *code, struct described *described) {
  static const char *const files[] = {"/src/a.guest", "/src/some/where/b.guest", "c"};
  for (unsigned i = 0; i < look->lines; i++) {
    uint32_t offset = (uint32_t)(code->size * i / look->lines);
    described->lines[i] = (jitsym_line){offset, i + 1, i % 3, 0, files[i * 3 / look->lines]};
  }
  code->lines = described->lines;
  code->line_count = look->lines;
  if (look->unwind == JITSYM_UNWIND_NONE) {
    return;
  }
  jitsym_unwind *unwind = &described->unwind;
  memset(unwind, 0, sizeof *unwind);
  unwind->struct_size = sizeof *unwind;
  unwind->kind = look->unwind;
  described->saved[0] = (jitsym_saved_register){FRAME, -16};
  described->saved[1] = (jitsym_saved_register){SAVED, -24};
  unsigned variant = (unsigned)(look->content >> 3);
  switch (look->unwind) {
    case JITSYM_UNWIND_FRAME_POINTER:
      if (code->size > 32) {
        unwind->saved = described->saved + 1;
        unwind->saved_count = variant % 2;
        unwind->epilogue_begin = variant % 4 < 2 ? 0 : (uint32_t)code->size - 1;
      } else if (code->size < 20) {
        unwind->fp_pushed = 1, unwind->fp_set = 4;
      }
      break;
    case JITSYM_UNWIND_FIXED_FRAME:
      unwind->cfa_offset = 8 * (int32_t)(variant % 100) + 24;
      unwind->saved = described->saved;
      unwind->saved_count = variant % 3;
      break;
    case JITSYM_UNWIND_ROWS:
      unwind->rows = described->rows;
      unwind->row_count = 1 + variant % ROWS_MAX;
      for (unsigned i = 0; i < unwind->row_count; i++) {
        described->rows[i] =
            (jitsym_unwind_row){1 + i, SP, FIRST_CFA + 8 * (int32_t)(i % 5) + 16, i > 2 ? 2 : 0, described->saved};
      }
      break;
    case JITSYM_UNWIND_EH_FRAME:
      unwind->eh_frame = described->eh_frame;
      unwind->eh_frame_size = make_eh_frame(described->eh_frame, code->size, 16 + 8 * (variant % 10));
      unwind->eh_frame_addr = code->addr + code->size;
      break;
    default:
      CHECK(0);
  }
  code->unwind = unwind;
}
