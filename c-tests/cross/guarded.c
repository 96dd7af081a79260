/*
 * Trampolines in pages with PROT_BTI, in which a processor accepts calls of landing pads only. The trampolines' return addresses
 * are signed. aarch64. See tests/cross/trampolines.rs.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#include "jitsym_region.h"
#include "testing.h"

#ifndef PROT_BTI
#define PROT_BTI 0x10
#endif

/* What gcc makes of a function that calls another (signed_piece.c). Named by the linker. */
extern const unsigned char __start_guarded[], __stop_guarded[];
static const unsigned char *volatile guarded_end = __stop_guarded;

enum { INSTRUCTION = 4, SAME = 3 * INSTRUCTION, SIZE = 11 * INSTRUCTION, DEPTHS = 32, NINTH = 900 };

typedef long function(long, long, long, long, long, long, long, long, long);

static sigjmp_buf before_call;
static const unsigned char *refused;
static int signed_addresses;

/* Allows calls of landing pads only. */
static void guard(const void *code) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  CHECK(mprotect((void *)((uintptr_t)code / page * page), page, PROT_READ | PROT_EXEC | PROT_BTI) == 0);
}

static void on_illegal(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  refused = info->si_addr;
  siglongjmp(before_call, 1);
}

/* The return address of the trampoline, which is the caller, without its signature. */
static uintptr_t stripped(uintptr_t address) {
  register uintptr_t link __asm__("x30") = address;
  __asm__("hint #7" : "+r"(link)); /* xpaclri */
  return link;
}

__attribute__((noinline)) long called(long a, long b, long c, long d, long e, long f, long g, long h, long i) {
  const uintptr_t *frame = __builtin_frame_address(0);
  const uintptr_t *of_trampoline = (const uintptr_t *)frame[0];
  signed_addresses += of_trampoline[1] != stripped(of_trampoline[1]);
  return a + b + c + d + e + f + g + h + i;
}

/* Whether a call of an instruction is refused. */
__attribute__((noinline)) int is_refused(const unsigned char *at) {
  refused = NULL;
  if (sigsetjmp(before_call, 1) == 0) {
    ((function *)(uintptr_t)at)(1, 2, 3, 4, 5, 6, 7, 8, NINTH);
  }
  return refused == at;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK((getauxval(AT_HWCAP2) & HWCAP2_BTI) != 0 && (getauxval(AT_HWCAP) & HWCAP_PACA) != 0);
  struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
  CHECK(sigaction(SIGILL, &action, NULL) == 0);
  jitsym *session = test_open();
  for (uint32_t words = 0; words < 3; words++) {
    jitsym_code code = JITSYM_CODE(NULL, 0, "guarded");
    void *entry;
    CHECK_OK(jitsym_trampoline(session, (void *)(uintptr_t)called, words, &code, &entry));
    const unsigned char *bytes = entry;
    if (words == 0) {
      CHECK(memcmp(bytes, __start_guarded, SAME) == 0);
      CHECK(memcmp(bytes + SIZE - SAME, guarded_end - SAME, SAME) == 0);
    }
    guard(entry);
    signed_addresses = 0;
    /* Each stack pointer gives another signature, and some signatures do not change the address. */
    for (int depth = 1; depth <= DEPTHS; depth++) {
      char room[16 * depth];
      __asm__ volatile("" ::"r"(room) : "memory");
      long result = ((function *)(uintptr_t)entry)(1, 2, 3, 4, 5, 6, 7, 8, NINTH);
      CHECK(words == 0 || result == 36 + NINTH);
    }
    CHECK(signed_addresses > 0);
    /* The second instruction is no landing pad. */
    CHECK(!is_refused(bytes) && is_refused(bytes + INSTRUCTION));
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
