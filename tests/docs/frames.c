/*
 * Code with the frames that docs/special-cases.md says LuaJIT and MoarVM have, described by its fragments, for perf to unwind.
 * All of it loops, so that perf finds it at work at its various instructions. Usage: frames SECONDS,
 * of processor time. x86-64.
 */
#include <jitsym.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "fragments.c"

/*
 * The interpreter's part of LuaJIT's frame, and the way into a trace and out of it. The trace is jumped to: it has no return
 * address of its own.
 */
__asm__(".text\n"
        ".globl lj_enter\n"
        ".type lj_enter, @function\n"
        "lj_enter:\n"
        "    .cfi_startproc\n"
        "    push %rbp\n .cfi_def_cfa_offset 16\n .cfi_offset %rbp, -16\n"
        "    push %rbx\n .cfi_def_cfa_offset 24\n .cfi_offset %rbx, -24\n"
        "    push %r15\n .cfi_def_cfa_offset 32\n .cfi_offset %r15, -32\n"
        "    push %r14\n .cfi_def_cfa_offset 40\n .cfi_offset %r14, -40\n"
        "    sub $40, %rsp\n .cfi_def_cfa_offset 80\n"
        "    sub $16, %rsp\n .cfi_def_cfa_offset 96\n"
        "    mov %r12, 16(%rsp)\n .cfi_offset %r12, -80\n"
        "    mov %r13, 8(%rsp)\n .cfi_offset %r13, -88\n"
        "    jmp *%rdi\n"
        ".globl lj_exit\n"
        "lj_exit:\n"
        "    mov 8(%rsp), %r13\n"
        "    mov 16(%rsp), %r12\n"
        "    add $16, %rsp\n .cfi_def_cfa_offset 80\n"
        "    add $40, %rsp\n .cfi_def_cfa_offset 40\n"
        "    pop %r14\n .cfi_def_cfa_offset 32\n"
        "    pop %r15\n .cfi_def_cfa_offset 24\n"
        "    pop %rbx\n .cfi_def_cfa_offset 16\n"
        "    pop %rbp\n .cfi_def_cfa_offset 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size lj_enter, . - lj_enter\n");

void lj_enter(void *trace);
void lj_exit(void);

/*
 * Callers, each of which finds its own frame by another of the registers that belong to it: if the code that it calls says wrongly
 * where it has put that register, the stack ends there.
 */
#define VIA(reg)                                                                                      \
    __asm__(".globl via_" #reg "\n .type via_" #reg ", @function\n via_" #reg ":\n"                   \
            "    .cfi_startproc\n"                                                                    \
            "    push %" #reg "\n .cfi_def_cfa_offset 16\n .cfi_offset %" #reg ", -16\n"              \
            "    mov %rsp, %" #reg "\n .cfi_def_cfa %" #reg ", 16\n"                                  \
            "    call *%rsi\n"                                                                        \
            "    pop %" #reg "\n .cfi_def_cfa %rsp, 8\n"                                              \
            "    ret\n"                                                                               \
            "    .cfi_endproc\n"                                                                      \
            ".size via_" #reg ", . - via_" #reg "\n");                                                \
    void via_##reg(void *argument, void (*function)(void *));

VIA(rbx)
VIA(rbp)
VIA(r12)
VIA(r13)
VIA(r14)
VIA(r15)

static void (*const via[])(void *, void (*)(void *)) = { via_rbx, via_rbp, via_r12, via_r13, via_r14, via_r15 };

static jitsym *session;
static unsigned char *at;

static void emit(const char *bytes, size_t count) {
    memcpy(at, bytes, count);
    at += count;
}

/* Makes garbage of rbp, rbx and r12 to r15, and passes the time: what reads the caller's registers anywhere but in their
 * slots is lost. */
static void emit_work(void) {
    emit("\xbd\x01\x00\x00\x00", 5);                     /* mov ebp, 1 */
    emit("\x89\xeb\x41\x89\xec\x41\x89\xed", 8);         /* mov ebx, ebp; mov r12d, ebp; mov r13d, ebp */
    emit("\x41\x89\xee\x41\x89\xef", 6);                 /* mov r14d, ebp; mov r15d, ebp */
    emit("\xb9\x00\x08\x00\x00\xff\xc9\x75\xfc", 9);     /* mov ecx, 2048; again: dec ecx; jnz again */
}

static void emit_jump(const char *opcode, size_t count, const void *target) {
    emit(opcode, count);
    int32_t distance = (int32_t)((intptr_t)target - (intptr_t)(at + 4));
    emit((const char *)&distance, 4);
}

/* Registers what has been emitted from `start` on, and leaves room for the unwind tables that `perf inject` maps after it. */
static void finish(unsigned char *start, const char *name, const jitsym_unwind *unwind) {
    jitsym_code code = { .struct_size = sizeof code };
    code.addr = (uint64_t)(uintptr_t)start;
    code.size = (uint64_t)(at - start);
    code.bytes = start;
    code.name = name;
    code.unwind = unwind;
    code.flags = JITSYM_CODE_GAP;
    jitsym_status status = jitsym_register(session, &code, NULL);
    if (status != JITSYM_OK) {
        fprintf(stderr, "%s: %s\n", name, jitsym_status_text(status));
        exit(1);
    }
    at += JITSYM_CODE_GAP_SIZE;
}

static void register_trace(unsigned char *start, const char *name, const struct luajit_trace *trace) {
    jitsym_unwind_row rows[3];
    jitsym_unwind unwind = luajit_frame(trace, rows);
    finish(start, name, &unwind);
}

/* A root trace that spills, loops, and leaves by a guard for a side trace, which spills more and gives all back. */
static unsigned char *make_traces(void) {
    static unsigned char counter[8];
    unsigned char *root = at;
    struct luajit_trace trace = { 0, 64, 4, 0 };
    emit("\x48\x83\xc4\xc0", 4); /* add rsp, -64 */
    emit_work();
    unsigned char *loop = at;
    emit("\xb9\x00\x08\x00\x00\xff\xc9\x75\xfc", 9);
    emit("\x48\xb8", 2); /* mov rax, &counter */
    uint64_t where = (uint64_t)(uintptr_t)counter;
    emit((const char *)&where, 8);
    emit("\xff\x00\xf6\x00\x03", 5); /* inc dword [rax]; test byte [rax], 3 */
    emit_jump("\x0f\x85", 2, loop);  /* jnz loop */
    unsigned char *guard = at;
    emit_jump("\xe9", 1, at); /* to be patched, when there is a side trace: after registration, as in LuaJIT */
    register_trace(root, "TRACE_1 root", &trace);

    unsigned char *side = at;
    trace.inherited = 64;
    trace.spadjust = 64 + 32;
    emit("\x48\x8b\x04\x24", 4); /* mov rax, [rsp]: a load from the parent's frame */
    emit_work();
    emit("\x48\x83\xc4\xe0", 4); /* add rsp, -32 */
    trace.head = (uint32_t)(at - side);
    emit_work();
    emit("\x48\x83\xc4\x60", 4); /* add rsp, 96 */
    trace.tail = (uint32_t)(at - side);
    emit_work();
    emit("\x48\xb8", 2); /* mov rax, lj_exit; jmp rax */
    where = (uint64_t)(uintptr_t)lj_exit;
    emit((const char *)&where, 8);
    emit("\xff\xe0", 2);
    register_trace(side, "TRACE_2 side", &trace);

    unsigned char *end = at;
    at = guard;
    emit_jump("\xe9", 1, side);
    at = end;
    return root;
}

/* A trace without a frame of its own, which goes straight back. */
static unsigned char *make_plain_trace(void) {
    unsigned char *start = at;
    struct luajit_trace trace = { 0, 0, 0, 0 };
    emit_work();
    emit("\x48\xb8", 2);
    uint64_t where = (uint64_t)(uintptr_t)lj_exit;
    emit((const char *)&where, 8);
    emit("\xff\xe0", 2);
    register_trace(start, "TRACE_3 plain", &trace);
    return start;
}

static unsigned char *make_moar_code(void) {
    unsigned char *start = at;
    emit("\x55\x48\x89\xe5\x48\x81\xec\x00\x01\x00\x00", 11);                 /* push rbp; mov rbp, rsp; sub rsp, 256 */
    emit("\x4c\x89\x75\xf8\x4c\x89\x6d\xf0\x48\x89\x5d\xe8", 12);             /* r14, r13 and rbx to rbp - 8, - 16, - 24 */
    emit("\x31\xdb\x45\x31\xed\x45\x31\xf6", 8);                             /* they are 0 from here on */
    emit("\xb9\x00\x08\x00\x00\xff\xc9\x75\xfc", 9);
    emit("\x4c\x8b\x75\xf8\x4c\x8b\x6d\xf0\x48\x8b\x5d\xe8\x48\x89\xec\x5d", 16); /* back; mov rsp, rbp; pop rbp */
    jitsym_unwind unwind = moar_frame((uint32_t)(at - start));
    emit("\xc3\x2a\x00\x00\x00\x2a", 6); /* ret; data */
    finish(start, "moar frame", &unwind);
    return start;
}

int main(int argc, char **argv) {
    if (argc != 2 || jitsym_init(NULL, &session) != JITSYM_OK) return 1;
    unsigned char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    at = memory;
    unsigned char *traces = make_traces(), *plain = make_plain_trace(), *moar = make_moar_code();
    if (mprotect(memory, 8192, PROT_READ | PROT_EXEC) != 0) return 1;

    while ((double)clock() < atof(argv[1]) * CLOCKS_PER_SEC)
        for (int i = 0; i < 6; i++) {
            via[i](traces, lj_enter);
            via[i](plain, lj_enter);
            via[i](NULL, (void (*)(void *))(uintptr_t)moar);
        }
    return jitsym_close(session) == JITSYM_OK ? 0 : 1;
}
