/*
 * Functions that sign their return addresses with the keys A and B are copied to where compiled code would lie, registered with
 * each kind of unwind description that can say this, and run. At each of their instructions, and in a function that they call,
 * libgcc's unwinder finds their callers. If the description does not say it, the unwinder does not find the callers, and may
 * fault. aarch64. See tests/cross.rs.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unwind.h>

#include "testing.h"
#include "pieces.h"

/* Named by the linker. */
#define ENDS(section) extern const unsigned char __start_##section[], __stop_##section[]
ENDS(signed_a);
ENDS(signed_b);

enum { ROOM = 512, PIECES = 5, UNSAID = 4, DEPTHS = 32, FRAMES = 64 };
enum { INSTRUCTION = 4, TRAP = (int)0xd4200000, EPILOGUE = 2 * INSTRUCTION };

int main(int argc, char **argv);

/* The piece that runs, the instruction behind its trap, and how many of its instructions have been reached. */
static unsigned char *running, *running_end;
static uint32_t hidden;
static unsigned reached_instructions;
/* How often the called function has not found its callers. */
static unsigned missed;
static sigjmp_buf before_walk;

struct walk {
  int count;
  uintptr_t at[FRAMES];
};

static _Unwind_Reason_Code note(struct _Unwind_Context *context, void *argument) {
  struct walk *walk = argument;
  if (walk->count < FRAMES) {
    walk->at[walk->count++] = _Unwind_GetIP(context);
  }
  return _URC_NO_REASON;
}

__attribute__((noinline)) long run(const piece *table);

static int is_call_in(uintptr_t at, const void *function) {
  return _Unwind_FindEnclosingFunction((void *)(at - 1)) == function;
}

static int callers_are_found(void) {
  struct walk walk = {0};
  _Unwind_Backtrace(note, &walk);
  int i = 0;
  while (i < walk.count && !(walk.at[i] >= (uintptr_t)running && walk.at[i] < (uintptr_t)running_end)) {
    i++;
  }
  CHECK(i < walk.count);
  return i + 2 < walk.count && is_call_in(walk.at[i + 1], (const void *)run) &&
         is_call_in(walk.at[i + 2], (const void *)main);
}

/* Puts a trap in the place of an instruction, or the instruction back. */
static uint32_t exchange(unsigned char *at, uint32_t instruction) {
  uint32_t before;
  memcpy(&before, at, sizeof before);
  memcpy(at, &instruction, sizeof instruction);
  __builtin___clear_cache((char *)at, (char *)at + sizeof instruction);
  return before;
}

static void trapped(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  unsigned char *at = (unsigned char *)(uintptr_t)((ucontext_t *)context)->uc_mcontext.pc;
  CHECK(at == running + reached_instructions * INSTRUCTION);
  CHECK(callers_are_found());
  exchange(at, hidden);
  reached_instructions++;
  if (at + INSTRUCTION < running_end) {
    hidden = exchange(at + INSTRUCTION, TRAP);
  }
}

static void faulted(int number) {
  (void)number;
  siglongjmp(before_walk, 1);
}

static long reached(const piece *next) {
  (void)next;
  missed += sigsetjmp(before_walk, 1) != 0 || !callers_are_found();
  return 100;
}

long run(const piece *table) {
  return table->call(table + 1) + 1;
}

static void describe(jitsym *session, const char *name, unsigned char *at, size_t size, jitsym_unwind unwind) {
  unwind.struct_size = sizeof unwind;
  unwind.epilogue_begin = (uint32_t)size - EPILOGUE;
  jitsym_code code = test_code((uintptr_t)at, size, name);
  code.bytes = at;
  code.unwind = &unwind;
  jitsym_id id;
  CHECK_OK(jitsym_register(session, &code, &id));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK((getauxval(AT_HWCAP) & HWCAP_PACA) != 0);
  jitsym *session = test_open_flags(JITSYM_SINK_UNWINDER | JITSYM_SINK_JITDUMP, 0);
  struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
  CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
  unsigned char *memory =
      mmap(NULL, PIECES * ROOM, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);

  const unsigned char *const begins[] = {__start_signed_a, __start_signed_b};
  const unsigned char *const ends[] = {__stop_signed_a, __stop_signed_b};
  const char *const names[PIECES] = {"a_frame_pointer", "b_frame_pointer", "a_fixed_frame", "b_fixed_frame", "unsaid"};
  for (int i = 0; i < PIECES; i++) {
    int key = i % 2;
    size_t size = (size_t)(ends[key] - begins[key]);
    running = memory + i * ROOM;
    running_end = running + size;
    memcpy(running, begins[key], size);
    jitsym_unwind unwind = {0};
    if (i != UNSAID) {
      unwind.flags = key == 0 ? JITSYM_UNWIND_PACIASP : JITSYM_UNWIND_PACIBSP;
    }
    unwind.kind = i < 2 ? JITSYM_UNWIND_FRAME_POINTER : JITSYM_UNWIND_FIXED_FRAME;
    if (unwind.kind == JITSYM_UNWIND_FIXED_FRAME) {
      unwind.fp_pushed = unwind.sp_set = 2 * INSTRUCTION;
      unwind.cfa_offset = 16;
    }
    describe(session, names[i], running, size, unwind);
    CHECK_OK(test_flush(session));

    const piece table[] = {{.call = (long (*)(const piece *))(uintptr_t)running}, {.call = reached}};
    if (i == UNSAID) {
      CHECK(signal(SIGSEGV, faulted) != SIG_ERR && signal(SIGBUS, faulted) != SIG_ERR);
      /* Each stack pointer gives another signature, and some signatures do not change the address. */
      for (int depth = 1; depth <= DEPTHS; depth++) {
        char room[16 * depth];
        __asm__ volatile("" ::"r"(room) : "memory");
        CHECK(run(table) == 102);
      }
      CHECK(missed > 0);
      break;
    }
    reached_instructions = 0;
    hidden = exchange(running, TRAP);
    CHECK(run(table) == 102);
    CHECK(reached_instructions == size / INSTRUCTION && missed == 0);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
