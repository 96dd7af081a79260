/*
 * Machine code whose instructions are counted by construction, for callgrind to count them again. DIR. x86-64.
 *
 * A loop of n rounds takes 1 + 2 n instructions. Each piece of code has lines of DIR/counted.toy: one for its first instruction, the
 * next one from the second instruction on.
 */
#include <sys/mman.h>

#include "testing.h"
#include "x86_emit.h"

enum { MEMORY = 1 << 16, INNER = 0, MIDDLE = 0x100, OUTER = 0x200, TAIL = 0x300, RECURSIVE = 0x400, TWICE = 0x500, PLACE = 0x600 };

typedef void function(void);
typedef void counting(int);

static jitsym *session;
static unsigned char *memory;
static char source[600];

/* A function of C that compiled code calls. */
__attribute__((noinline)) void helper(void) {
  __asm__ volatile("nop; nop; nop");
}

static void loop(struct bytes *out, uint32_t rounds) {
  PUT(out, 0xb9), put_u32(out, rounds);
  PUT(out, 0xff, 0xc9, 0x75, 0xfc);
}

/* A call or jump from code that lies at `from`. */
static void go(struct bytes *out, unsigned from, uint8_t how, unsigned to) {
  PUT(out, how), put_u32(out, to - (from + out->size + 4));
}

static void place(const struct bytes *code, unsigned at, const char *name, uint32_t line, uint32_t first) {
  memcpy(memory + at, code->data, code->size);
  jitsym_line lines[] = {{0, line, 1, 0, source}, {first, line + 1, 1, 0, source}};
  jitsym_code piece = test_code((uintptr_t)memory + at, code->size, name);
  piece.bytes = memory + at;
  piece.lines = lines;
  piece.line_count = 2;
  CHECK_OK(jitsym_register(session, &piece, NULL));
}

static void run(unsigned at) {
  ((function *)(uintptr_t)(memory + at))();
}

static void place_loop(unsigned at, uint32_t rounds, const char *name, uint32_t line) {
  struct bytes code = {.size = 0};
  loop(&code, rounds), x_ret(&code);
  place(&code, at, name, line, 5);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  snprintf(source, sizeof source, "%s/counted.toy", argv[1]);
  FILE *file = fopen(source, "w");
  CHECK(file != NULL);
  for (int i = 1; i <= 100; i++) {
    fprintf(file, "toy line %d\n", i);
  }
  CHECK(fclose(file) == 0);
  memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  session = test_open();

  place_loop(INNER, 100, "jit_inner", 10);
  struct bytes middle = {.size = 0};
  go(&middle, MIDDLE, 0xe8, INNER), go(&middle, MIDDLE, 0xe8, INNER), x_ret(&middle);
  place(&middle, MIDDLE, "jit_middle", 20, 5);
  struct bytes outer = {.size = 0};
  go(&outer, OUTER, 0xe8, MIDDLE), x_sub_rsp(&outer, 8), PUT(&outer, 0x48, 0xb8), put_u64(&outer, (uintptr_t)helper);
  PUT(&outer, 0xff, 0xd0), x_add_rsp(&outer, 8), x_ret(&outer);
  place(&outer, OUTER, "jit_outer", 30, 5);
  struct bytes tail = {.size = 0};
  loop(&tail, 10), go(&tail, TAIL, 0xe9, INNER);
  place(&tail, TAIL, "jit_tail", 40, 5);
  /* dec edi; jz to the end; call itself; ret */
  struct bytes recursive = {.size = 0};
  PUT(&recursive, 0xff, 0xcf, 0x74, 0x05), go(&recursive, RECURSIVE, 0xe8, RECURSIVE), x_ret(&recursive);
  place(&recursive, RECURSIVE, "jit_recursive", 50, 2);
  /* It can be entered at its second loop, too. */
  struct bytes twice = {.size = 0};
  loop(&twice, 20);
  unsigned second = TWICE + twice.size;
  loop(&twice, 30), x_ret(&twice);
  place(&twice, TWICE, "jit_twice", 60, 5);
  place_loop(PLACE, 40, "jit_old", 70);

  for (int i = 0; i < 3; i++) {
    run(OUTER);
  }
  run(TAIL);
  ((counting *)(uintptr_t)(memory + RECURSIVE))(5);
  run(TWICE);
  run(second);
  run(PLACE);
  place_loop(PLACE, 70, "jit_new", 80);
  run(PLACE);
  CHECK_OK(jitsym_close(session));
  return test_end();
}
