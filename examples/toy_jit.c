/*
 * A complete just-in-time compiler for a language with two statements. The example shows how a compiler registers its code
 * with libjitsym.
 *
 *     fn NAME          begins a function
 *         spin N       counts to N
 *         call NAME    calls a function that was defined before
 *
 * Usage: toy_jit PROGRAM [SECONDS]. Runs the function `start` of the program for this number of seconds of processor time.
 * x86-64 only.
 */
#define _GNU_SOURCE
#include <jitsym.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MEMORY = 1 << 16, FUNCTIONS = 64, LINES = 1024 };

struct function {
    char name[64];
    unsigned char *code;
    size_t size, line_count;
    jitsym_line *lines;
};

static struct function functions[FUNCTIONS];
static int function_count;
static jitsym_line lines[LINES]; /* of all functions */
static size_t line_count;
static unsigned char *memory, *at; /* where the next byte of code goes */
static jitsym *session;

static void emit(const void *bytes, size_t count) {
    memcpy(at, bytes, count);
    at += count;
}

static void emit32(int value) {
    emit(&value, sizeof value);
}

static struct function *find(const char *name) {
    for (int i = 0; i < function_count; i++)
        if (strcmp(functions[i].name, name) == 0) return &functions[i];
    fprintf(stderr, "toy_jit: no function %s\n", name);
    exit(1);
}

static void end_function(struct function *function) {
    emit("\x5d\xc3", 2); /* pop rbp; ret */
    function->size = (size_t)(at - function->code);
    function->line_count = (size_t)(lines + line_count - function->lines);
    /* Free bytes after the code let `perf inject` of older builds of perf unwind through the code. */
    at += JITSYM_CODE_GAP_SIZE;
    at = (unsigned char *)(((uintptr_t)at + 15) & ~(uintptr_t)15);
}

/* Registers a function. Called when the function's memory is executable, and before the function runs. */
static void announce(const struct function *function) {
    /* The function begins with push rbp; mov rbp, rsp, which are the defaults. */
    jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FRAME_POINTER);
    unwind.epilogue_begin = (uint32_t)(function->size - 1);

    jitsym_code code = JITSYM_CODE(function->code, function->size, function->name);
    code.bytes = function->code;
    code.unwind = &unwind;
    code.lines = function->lines;
    code.line_count = function->line_count;
    code.flags = JITSYM_CODE_GAP;
    jitsym_status status = jitsym_register(session, &code, NULL);
    if (status != JITSYM_OK) fprintf(stderr, "toy_jit: %s: %s\n", function->name, jitsym_status_text(status));
}

static void compile(FILE *source, const char *path) {
    char text[256], word[64], argument[64];
    struct function *current = NULL;

    for (int number = 1; fgets(text, sizeof text, source); number++) {
        if (sscanf(text, "%63s %63s", word, argument) != 2 || word[0] == '#') continue;
        if (strcmp(word, "fn") == 0) {
            if (current) end_function(current);
            if (function_count == FUNCTIONS) exit(1);
            current = &functions[function_count++];
            strcpy(current->name, argument);
            current->code = at;
            current->lines = lines + line_count;
        } else if (!current) {
            continue;
        }
        if (line_count == LINES || at + 2 * JITSYM_CODE_GAP_SIZE > memory + MEMORY) exit(1);
        lines[line_count++] = (jitsym_line){(uint32_t)(at - current->code), (uint32_t)number, 0, 0, path};
        if (strcmp(word, "fn") == 0) {
            emit("\x55\x48\x89\xe5", 4); /* push rbp; mov rbp, rsp */
        } else if (strcmp(word, "spin") == 0) {
            emit("\xb9", 1); /* mov ecx, N */
            emit32(atoi(argument));
            emit("\xff\xc9\x75\xfc", 4); /* again: dec ecx; jnz again */
        } else if (strcmp(word, "call") == 0) {
            unsigned char *callee = find(argument)->code;
            emit("\xe8", 1); /* call rel32 */
            emit32((int)(callee - (at + 4)));
        }
    }
    if (current) end_function(current);
}

int main(int argc, char **argv) {
    char *path = argc > 1 ? realpath(argv[1], NULL) : NULL;
    FILE *source = path ? fopen(path, "r") : NULL;
    if (!source) {
        fprintf(stderr, "usage: toy_jit PROGRAM [SECONDS]\n");
        return 1;
    }
    jitsym_status status = jitsym_init(NULL, &session);
    if (status != JITSYM_OK) {
        /* A runtime would continue without symbols: every call with this session returns an error and does no harm. */
        fprintf(stderr, "toy_jit: %s\n", jitsym_status_text(status));
    }

    at = memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    compile(source, path);
    fclose(source);
    if (mprotect(memory, MEMORY, PROT_READ | PROT_EXEC) != 0) return 1;
    for (int i = 0; i < function_count; i++) announce(&functions[i]);

    void (*entry)(void) = (void (*)(void))(uintptr_t)find("start")->code;
    clock_t end = clock() + (clock_t)((argc > 2 ? atof(argv[2]) : 2) * CLOCKS_PER_SEC);
    while (clock() < end)
        for (int i = 0; i < 100; i++) entry();

    status = jitsym_close(session);
    if (status != JITSYM_OK) fprintf(stderr, "toy_jit: %s\n", jitsym_status_text(status));
    free(path);
    return 0;
}
