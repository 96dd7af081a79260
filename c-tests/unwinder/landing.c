/*
 * Compiled code that catches C++ exceptions and cleans up after them, with `.eh_frame` sections that are encoded in all ways.
 * DIR WHAT [SEED]. x86-64.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>

#include "exceptions.h"
#include "jitsym_control.h"
#include "testing.h"
#include "known.h"

/* What comes after the section, in a piece's room: its pointers, its LSDA, its code, and its LSDA again. */
enum { SLOTS = 512, LSDA = 1024, CODE = 1536, PIECE_ROOM = 2048 };
enum { PIECES = 3, CHAIN_ROOM = PIECES * PIECE_ROOM, CHAINS = 20, THREADS = 8, MANY_CHAINS = 60 };

/* What code does with an exception: `CLEANS` has a landing pad that goes on, `BARE` has no LSDA. */
enum kind { CATCHES, CLEANS, BARE, PLAIN, KINDS };

/* DW_EH_PE_*. */
enum { ABSPTR, ULEB128, UDATA2, UDATA4, UDATA8, SLEB128 = 9, SDATA2, SDATA4, SDATA8, PCREL = 0x10, FUNCREL = 0x40, INDIRECT = 0x80 };

extern char _ZTIi[];
extern void __gxx_personality_v0(void);

static jitsym *session;
static unsigned char *memory;
static _Thread_local int cleaned;

static unsigned next_random(unsigned *seed, unsigned below) {
  *seed = *seed * 1664525 + 1013904223;
  return (*seed >> 8) % below;
}

static int reached(int number) {
  if (number < 0) {
    throw_number(-number);
  }
  return number;
}

static void clean(void) { cleaned++; }

struct bytes {
  unsigned char *at;
  /* Addresses in the section are counted as if it lay so much higher. */
  uint64_t shift;
};

static void put(struct bytes *out, const void *from, size_t size) {
  memcpy(out->at, from, size);
  out->at += size;
}

static void put_u8(struct bytes *out, unsigned value) { *out->at++ = (unsigned char)value; }

static void put_u32(struct bytes *out, uint32_t value) { put(out, &value, sizeof value); }

static void put_u64(struct bytes *out, uint64_t value) { put(out, &value, sizeof value); }

/* Whether a value can be written so. */
static int fits(unsigned format, int64_t value) {
  switch (format) {
    case UDATA2: return value >= 0 && value <= UINT16_MAX;
    case UDATA4: return value >= 0 && value <= UINT32_MAX;
    case SDATA2: return value >= INT16_MIN && value <= INT16_MAX;
    case SDATA4: return value >= INT32_MIN && value <= INT32_MAX;
    default: return 1;
  }
}

static void put_value(struct bytes *out, unsigned format, int64_t value) {
  static const unsigned char sizes[] = {8, 0, 2, 4, 8, 0, 0, 0, 0, 0, 2, 4, 8};
  if (sizes[format] != 0) {
    put(out, &value, sizes[format]);
    return;
  }
  int more = 1;
  while (more) {
    unsigned byte = value & 0x7f;
    value = format == ULEB128 ? (int64_t)((uint64_t)value >> 7) : value >> 7;
    more = format == ULEB128 ? value != 0 : !((value == 0 && !(byte & 0x40)) || (value == -1 && (byte & 0x40)));
    put_u8(out, byte | (more ? 0x80 : 0));
  }
}

/* An encoding that a pointer can have at this place. `slot` has room for the pointer itself. */
static unsigned choose(unsigned *seed, uint64_t target, uint64_t *slot, uint64_t at, uint64_t function) {
  static const unsigned formats[] = {ABSPTR, ULEB128, UDATA2, UDATA4, UDATA8, SLEB128, SDATA2, SDATA4, SDATA8};
  static const unsigned bases[] = {0, PCREL, FUNCREL};
  *slot = target;
  for (;;) {
    unsigned format = formats[next_random(seed, 9)], base = bases[next_random(seed, function != 0 ? 3 : 2)];
    unsigned indirect = next_random(seed, 2) ? INDIRECT : 0;
    uint64_t value = (indirect ? (uintptr_t)slot : target) - (base == PCREL ? at : base == FUNCREL ? function : 0);
    if (value != 0 && fits(format, (int64_t)value)) {
      return base | format | indirect;
    }
  }
}

static void put_pointer(struct bytes *out, unsigned encoding, uint64_t target, const uint64_t *slot, uint64_t function) {
  uint64_t value = encoding & INDIRECT ? (uintptr_t)slot : target;
  value -= (encoding & 0x70) == PCREL ? (uintptr_t)out->at + out->shift : (encoding & 0x70) == FUNCREL ? function : 0;
  put_value(out, encoding & 0xf, target == 0 ? 0 : (int64_t)value);
}

/* Fills an entry up, and writes its length. */
static void end_entry(struct bytes *out, unsigned char *begin) {
  while ((out->at - begin) % 8 != 0) {
    put_u8(out, 0);
  }
  uint32_t length = (uint32_t)(out->at - begin - 4);
  memcpy(begin, &length, sizeof length);
}

/* push rbx; mov rax, next; call rax; pop rbx; ret. After that comes what catches, or cleans. */
enum { CALL_END = 13, RETURNED = 14, LANDING = 15, CODE_MAX = 47 };

static size_t emit(unsigned char *code, enum kind kind, uint64_t next) {
  struct bytes out = {code, 0};
  put(&out, "\x53\x48\xb8", 3), put_u64(&out, next), put(&out, "\xff\xd0\x5b\xc3", 4);
  if (kind == CATCHES) {
    /* mov rdi, rax; mov rax, caught; call rax; pop rbx; ret */
    put(&out, "\x48\x89\xc7\x48\xb8", 5), put_u64(&out, (uintptr_t)caught), put(&out, "\xff\xd0\x5b\xc3", 4);
  } else if (kind == CLEANS) {
    /* mov rbx, rax; mov rax, clean; call rax; mov rdi, rbx; mov rax, _Unwind_Resume; call rax; ud2 */
    put(&out, "\x48\x89\xc3\x48\xb8", 5), put_u64(&out, (uintptr_t)clean);
    put(&out, "\xff\xd0\x48\x89\xdf\x48\xb8", 7), put_u64(&out, (uintptr_t)_Unwind_Resume), put(&out, "\xff\xd0\x0f\x0b", 4);
  }
  return (size_t)(out.at - code);
}

/* What catches an `int`, or any exception. */
static size_t emit_lsda(unsigned char *lsda, enum kind kind, size_t code_size) {
  struct bytes out = {lsda, 0};
  /* No start of landing pads but the function's; types by their addresses; distance to the end of the types. */
  put_u8(&out, 0xff), put_u8(&out, ABSPTR), put_u8(&out, 1 + 1 + 8 + 2 + 8);
  /* Calls: where, how long, where the landing pad is, what it is for. */
  put_u8(&out, ULEB128), put_u8(&out, 8);
  put_u8(&out, 0), put_u8(&out, LANDING), put_u8(&out, LANDING), put_u8(&out, kind == CATCHES ? 1 : 0);
  put_u8(&out, LANDING), put_u8(&out, (unsigned)code_size - LANDING), put_u8(&out, 0), put_u8(&out, 0);
  put_u8(&out, 1), put_u8(&out, 0);
  put_u64(&out, (uintptr_t)_ZTIi);
  return (size_t)(out.at - lsda);
}

/* A piece that calls `next`. `bad` is an encoding for the personality routine, or for the LSDA, that there is not. */
struct piece {
  enum kind kind;
  unsigned char *at, *code;
  jitsym_id id;
  int lsda_is_in_code;
  /* As `code`, while the unwinder has to find it. */
  unsigned char *found;
};

static jitsym_status announce(struct piece *piece, uint64_t next, unsigned *seed, const unsigned bad[2]) {
  unsigned char *at = piece->at;
  memset(at, 0xcc, PIECE_ROOM);
  uint64_t *slots = (uint64_t *)(void *)(at + SLOTS), function = (uintptr_t)at + CODE;
  piece->code = at + CODE;
  size_t size = emit(piece->code, piece->kind, next), registered = size;
  piece->lsda_is_in_code = piece->kind < BARE && next_random(seed, 2);
  unsigned char *lsda = at + LSDA;
  if (piece->kind < BARE) {
    lsda = piece->lsda_is_in_code ? piece->code + size : lsda;
    size_t lsda_size = emit_lsda(lsda, piece->kind, size);
    registered += piece->lsda_is_in_code ? lsda_size : 0;
  }
  unsigned char section[SLOTS];
  int is_elsewhere = (int)next_random(seed, 2);
  struct bytes out = {is_elsewhere ? section : at, 0};
  unsigned char *begin = out.at;
  out.shift = (uintptr_t)at - (uintptr_t)begin;
  memset(out.at, 0, 4);
  out.at += 4, put_u32(&out, 0), put_u8(&out, 1);
  int has_handler = piece->kind != PLAIN;
  /* The letters may come in any order. */
  unsigned order = next_random(seed, 2);
  put(&out, has_handler ? order ? "zPLR" : "zRLP" : "zR", has_handler ? 5 : 3);
  put_u8(&out, 1), put_u8(&out, 0x78), put_u8(&out, 16);
  unsigned char *length = out.at++;
  uint64_t target = piece->kind == PLAIN ? 0 : (uintptr_t)__gxx_personality_v0, lsda_addr = piece->kind < BARE ? (uintptr_t)lsda : 0;
  uint64_t end = (uintptr_t)at + SLOTS / 2;
  unsigned lsda_encoding = choose(seed, lsda_addr ? lsda_addr : 1, &slots[1], end, function);
  lsda_encoding = bad && bad[1] ? bad[1] : lsda_encoding;
  for (unsigned i = 0; i < 3; i++) {
    switch ("PLRRLP"[3 * (has_handler ? !order : 1) + i]) {
      case 'P':
        if (has_handler) {
          unsigned encoding = choose(seed, target, &slots[0], (uintptr_t)out.at + 1 + out.shift, 0);
          put_u8(&out, bad && bad[0] ? bad[0] : encoding);
          put_pointer(&out, encoding, target, &slots[0], 0);
        }
        break;
      case 'L':
        if (has_handler) {
          put_u8(&out, lsda_encoding);
        }
        break;
      default: put_u8(&out, PCREL | SDATA4);
    }
  }
  *length = (unsigned char)(out.at - length - 1);
  /* CFA = rsp + 8; the return address is there. */
  put(&out, "\x0c\x07\x08\x90\x01", 5);
  end_entry(&out, begin);
  unsigned char *fde = out.at;
  out.at += 4;
  put_u32(&out, (uint32_t)(out.at - begin));
  put_u32(&out, (uint32_t)(function - ((uintptr_t)out.at + out.shift)));
  put_u32(&out, (uint32_t)size);
  length = out.at++;
  if (has_handler) {
    put_pointer(&out, bad ? ABSPTR : lsda_encoding, lsda_addr, &slots[1], function);
  }
  *length = (unsigned char)(out.at - length - 1);
  /* From the push on CFA = rsp + 16, and rbx is there; not from the pop to the landing pad. */
  put(&out, "\x41\x0e\x10\x83\x02\x4d\x0e\x08\xc3\x41\x0e\x10\x83\x02", 14);
  if (piece->kind == CATCHES) {
    put(&out, "\x50\x0e\x08", 3);
  }
  end_entry(&out, fde);
  CHECK(out.at - begin <= SLOTS);

  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_EH_FRAME;
  unwind.eh_frame = begin;
  unwind.eh_frame_size = (size_t)(out.at - begin);
  unwind.eh_frame_addr = is_elsewhere ? (uintptr_t)at : 0;
  jitsym_code code = test_code((uintptr_t)piece->code, registered, "piece");
  code.bytes = piece->code;
  code.unwind = &unwind;
  return jitsym_register(session, &code, &piece->id);
}

struct chain {
  struct piece pieces[PIECES];
};

/* Those of the only thread that registers, which waits while the unwinder is told. */
static struct chain *watched;
/* Code that the unwinder has not found then. The library's thread, which sees that, can print nothing. */
static unsigned char *lost;

/* The unwinder finds all code between two steps, too: another thread may throw then. */
static void look(void) {
  /* As a throw by C++ does. Now libgcc has looked into all tables. */
  (void)_Unwind_FindEnclosingFunction(memory);
  for (unsigned i = 0; watched != NULL && i < MANY_CHAINS * PIECES; i++) {
    unsigned char *code = watched[i / PIECES].pieces[i % PIECES].found;
    lost = code == NULL || _Unwind_FindEnclosingFunction(code + 1) == code ? lost : code;
  }
}

/* libgcc's functions, by way of this program. A program that is static has libgcc's own. */
__attribute__((weak)) void __register_frame_info_table(const void *begin, void *object);
__attribute__((weak)) void *__deregister_frame_info(const void *begin);

void __register_frame_info_table(const void *begin, void *object) {
  void (*real)(const void *, void *) = NULL;
  *(void **)&real = dlsym(RTLD_NEXT, "__register_frame_info_table");
  if (real != NULL) {
    real(begin, object);
  }
  look();
}

void *__deregister_frame_info(const void *begin) {
  void *(*real)(const void *) = NULL;
  *(void **)&real = dlsym(RTLD_NEXT, "__deregister_frame_info");
  void *object = real != NULL ? real(begin) : NULL;
  look();
  return object;
}

static void make_chain(struct chain *chain, unsigned char *at, unsigned *seed) {
  uint64_t next = (uintptr_t)reached;
  for (int i = PIECES - 1; i >= 0; i--) {
    struct piece *piece = &chain->pieces[i];
    *piece = (struct piece){next_random(seed, KINDS), at + PIECE_ROOM * i, NULL, 0, 0, NULL};
    CHECK_KNOWN(session, announce(piece, next, seed, NULL));
    piece->found = piece->code;
    next = (uintptr_t)piece->code;
  }
}

static void end_chain(struct chain *chain) {
  for (int i = 0; i < PIECES; i++) {
    struct piece *piece = &chain->pieces[i];
    CHECK(_Unwind_FindEnclosingFunction(piece->code + 1) == piece->code);
    piece->found = NULL;
    CHECK_KNOWN(session, jitsym_unregister(session, piece->id));
    CHECK(_Unwind_FindEnclosingFunction(piece->code + 1) == NULL);
  }
}

/* The innermost piece that catches is the one, and all below it clean up. */
static void check(const struct chain *chain) {
  int expected_cleaned = 0, catcher = PIECES - 1, left = 0, number = 1 + rand() % 900;
  while (catcher >= 0 && chain->pieces[catcher].kind != CATCHES) {
    expected_cleaned += chain->pieces[catcher--].kind == CLEANS;
  }
  int (*function)(int) = (int (*)(int))(uintptr_t)chain->pieces[0].code;
  cleaned = 0;
  CHECK(call_and_catch(function, number, &left) == number);
  CHECK(cleaned == 0 && left == 1);
  CHECK(call_and_catch(function, -number, &left) == (catcher >= 0 ? 2000 : 1000) + number);
  CHECK(cleaned == expected_cleaned && left == 2);
}

/* Code comes, goes and moves, and other code with other tables takes its place. */
static void reuse(unsigned seed, unsigned char *from, unsigned rounds, unsigned count) {
  struct chain *chains = calloc(count, sizeof *chains);
  int live[MANY_CHAINS] = {0}, is_alone = count == MANY_CHAINS;
  CHECK(chains != NULL);
  watched = is_alone ? chains : NULL;
  for (unsigned round = 0; round < rounds; round++) {
    unsigned i = next_random(&seed, count);
    if (live[i]) {
      end_chain(&chains[i]);
    }
    /* Each chain has room for two. */
    unsigned char *at = from + (size_t)CHAIN_ROOM * 2 * i;
    make_chain(&chains[i], at + 16 * next_random(&seed, PIECE_ROOM / 32), &seed);
    live[i] = 1;
    check(&chains[i]);
    CHECK(lost == NULL);
    /* The outermost one, which nobody calls by its address. What was there is no code and no table any more. */
    if (next_random(&seed, 2)) {
      struct piece *moving = &chains[i].pieces[0];
      unsigned char *to = at + CHAIN_ROOM + PIECE_ROOM + 16 * next_random(&seed, PIECE_ROOM / 32);
      memcpy(to, moving->code, PIECE_ROOM - CODE);
      memset(moving->code, 0xcc, PIECE_ROOM - CODE);
      jitsym_move_target target;
      memset(&target, 0, sizeof target);
      target.struct_size = sizeof target;
      target.addr = (uintptr_t)to;
      target.bytes = to;
      if (moving->lsda_is_in_code) {
        /* A pointer to what has moved is changed by the runtime. */
        ((uint64_t *)(void *)(moving->at + SLOTS))[1] += (uint64_t)(to - moving->code);
      }
      moving->found = NULL;
      CHECK_KNOWN(session, jitsym_move(session, moving->id, &target));
      CHECK(_Unwind_FindEnclosingFunction(moving->code + 1) == NULL);
      moving->found = moving->code = to;
      check(&chains[i]);
    }
    i = next_random(&seed, count);
    if (live[i]) {
      check(&chains[i]);
    }
    if (is_alone && round % 100 == 99) {
      /* What the sink learns late is the same. */
      watched = NULL;
      CHECK_OK(jitsym_disable(session, JITSYM_SINK_UNWINDER));
      CHECK_KNOWN(session, jitsym_enable(session, JITSYM_SINK_UNWINDER));
      watched = chains;
    }
  }
  for (unsigned i = 0; i < count; i++) {
    if (live[i]) {
      check(&chains[i]);
      end_chain(&chains[i]);
    }
  }
  watched = NULL;
  free(chains);
}

struct storm {
  unsigned seed, rounds;
  unsigned char *memory;
};

static void *storm(void *argument) {
  const struct storm *part = argument;
  reuse(part->seed, part->memory, part->rounds, CHAINS);
  return NULL;
}

static void storms(unsigned seed) {
  pthread_t threads[THREADS];
  struct storm parts[THREADS];
  for (unsigned i = 0; i < THREADS; i++) {
    parts[i] = (struct storm){seed + i, 200, memory + (size_t)CHAIN_ROOM * 2 * CHAINS * i};
    CHECK(pthread_create(&threads[i], NULL, storm, &parts[i]) == 0);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

/* Encodings that count from what there is not, or that there are not, are refused, and nothing of the code is known. */
static void bad(unsigned seed) {
  static const unsigned encodings[] = {0x05, 0x08, 0x0d, 0x0f, 0x20, 0x30, 0x2b, 0x50, 0x60, 0x70, 0xa0, 0xff};
  for (unsigned i = 0; i < 2 * sizeof encodings / sizeof *encodings; i++) {
    struct chain chain;
    make_chain(&chain, memory, &seed);
    struct piece piece = {CATCHES, memory + CHAIN_ROOM, NULL, 0, 0, NULL};
    unsigned both[2] = {0, 0};
    both[i % 2] = encodings[i / 2];
    CHECK(announce(&piece, (uintptr_t)chain.pieces[0].code, &seed, both) == JITSYM_ERR_UNWIND_FORMAT);
    check(&chain);
    CHECK(_Unwind_FindEnclosingFunction(piece.code + 1) == NULL);
    end_chain(&chain);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 4);
  unsigned seed = (unsigned)atoi(argv[3]);
  session = test_open_flags(JITSYM_SINK_UNWINDER | JITSYM_SINK_JITDUMP, 0);
  size_t size = (size_t)CHAIN_ROOM * 2 * CHAINS * (THREADS + 1);
  memory = mmap(NULL, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  if (strcmp(argv[2], "storm") == 0) {
    storms(seed);
  } else if (strcmp(argv[2], "bad") == 0) {
    bad(seed);
  } else {
    reuse(seed, memory, 3000, MANY_CHAINS);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
