/*
 * Registers CPython's trampolines with libjitsym: for the perf map of -X perf, the jitdump of -X perf_jit, and regions.
 *
 * build.sh compiles this file with CPython. Unwind tables are for x86-64. Without the library, jitsym_dl.h writes the same
 * map, and CPython writes its own jitdump as before.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "Python.h"
#include "pycore_ceval.h"
#include "pycore_runtime.h"

#define JITSYM_CPYTHON_GLUE
#include "jitsym_cpython.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "jitsym_dl.h"

#define trampoline_api _PyRuntime.ceval.perf.trampoline_api

/* -- Session ------------------------------------------------------------- */

/* The session that was opened last, or NULL if no sink could start. Sessions stay open: the library completes its files at
 * the exit. */
static jitsym *session;

/* The sinks for which a session was opened. */
static uint32_t asked;

/* Set in a forked child that has not called the library yet. In such a child the library has no thread and no file. */
static int untouched;

/* The sinks that could not start. Without the library, only the map can start. */
static uint32_t missing;

static void *map_init(void);

static int
has_threads(void)
{
    return session != NULL && !untouched && jitsym_wanted(session) != 0;
}

/* Starts a sink. If the user's JITSYM names sinks, starts those instead. */
static int
open_session(uint32_t sink)
{
    jitsym_options options = JITSYM_OPTIONS;
    if (((asked | missing) & sink) == 0) {
        options.sinks = sink;
        options.flags = JITSYM_INIT_ENV_WINS;
        if (jitsym_init(&options, &session) == JITSYM_OK) {
            asked |= sink;
            untouched = 0;
        }
        else {
            missing |= sink;
        }
    }
    return session != NULL;
}

/* Writes everything that is registered. Called before the process ends without exit handlers. */
void
_PyJitsym_Flush(void)
{
    if (has_threads()) {
        jitsym_flush(session, 1000);
    }
}

/* Returns the number of threads of the library. os.fork does not warn about these threads, because a fork is safe while they
 * run. */
int
_PyJitsym_CountThreads(void)
{
    jitsym_stats stats = JITSYM_STATS;
    return has_threads() && jitsym_get_stats(session, &stats) == JITSYM_OK ? (int)stats.threads : 0;
}

/*
 * Called in a forked child. The child keeps its parent's trampolines, whose names perf has from the parent. If `persist` is
 * set, the child's files must also contain these names. Returns 0 if CPython has to handle the fork as it does without the
 * library.
 */
int
_PyJitsym_AfterFork(int persist)
{
    if (session == NULL) {
        return trampoline_api.init_state == map_init;
    }
    untouched = 1;
    if (persist && jitsym_wanted(session) != 0) {
        untouched = 0;
        jitsym_enable(session, 0);
    }
    return 1;
}

/* -- Frames -------------------------------------------------------------- */

extern const unsigned char _Py_trampoline_func_start[], _Py_trampoline_func_end[];

enum { RBP = 6, RSP = 7 };

static const jitsym_saved_register saved_rbp = {RBP, -16};
static jitsym_unwind_row rows[3];
static jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);

/* Describes the frame of the trampolines, which are all copies of Python/asm_trampoline.S. Other instructions get no
 * description. */
static void
describe_frame(void)
{
    static const unsigned char branch_target[] = {0xf3, 0x0f, 0x1e, 0xfa};
    static const struct {
        unsigned char code[11];
        uint32_t size, pushed, popped, saved_count;
    } bodies[] = {
        /* sub rsp, 8; call rcx; add rsp, 8; ret: in CPython 3.13.5 */
        {{0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3}, 11, 4, 10, 0},
        /* push rbp; mov rbp, rsp; call rcx; pop rbp; ret: in CPython 3.13.15 and 3.14 */
        {{0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3}, 8, 1, 7, 1},
    };
    const unsigned char *code = _Py_trampoline_func_start;
    uint32_t before = memcmp(code, branch_target, sizeof branch_target) == 0 ? sizeof branch_target : 0;
    size_t size = _Py_trampoline_func_end - code - before;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies && unwind.row_count == 0; i++) {
        if (size == bodies[i].size && memcmp(code + before, bodies[i].code, size) == 0) {
            rows[0] = (jitsym_unwind_row){0, RSP, 8, 0, NULL};
            rows[1] = (jitsym_unwind_row){before + bodies[i].pushed, RSP, 16, bodies[i].saved_count, &saved_rbp};
            rows[2] = (jitsym_unwind_row){before + bodies[i].popped, RSP, 8, 0, NULL};
            unwind.rows = rows;
            unwind.row_size = sizeof *rows;
            unwind.row_count = 3;
        }
    }
}

/* -- Trampolines --------------------------------------------------------- */

/* Appends `text` to the name in `to`, which has JITSYM_NAME_MAX bytes. A longer text is cut, as the library would do. Returns
 * the new length. */
static size_t
append(char *to, size_t length, const char *text)
{
    size_t room = JITSYM_NAME_MAX - length, size = strlen(text);
    size = size < room ? size : room;
    memcpy(to + length, text, size);
    return length + size;
}

static const char *
utf8(PyObject *text)
{
    const char *bytes = text == NULL ? "" : PyUnicode_AsUTF8(text);
    if (bytes == NULL) {
        PyErr_Clear();
        bytes = "?";
    }
    return bytes;
}

static void
announce(const void *addr, unsigned int size, PyCodeObject *co)
{
    uint32_t wanted = jitsym_wanted(session);
    char name[JITSYM_NAME_MAX];
    const char *file;
    jitsym_code code = JITSYM_CODE(addr, size, name);
    jitsym_line line = {0};

    if ((wanted & JITSYM_WANT_CODE) == 0) {
        return;
    }
    file = utf8(co->co_filename);
    code.name_len = append(name, 0, "py::");
    code.name_len = append(name, code.name_len, utf8(co->co_qualname));
    code.name_len = append(name, code.name_len, ":");
    code.name_len = append(name, code.name_len, file);
    code.bytes = addr;
    code.flags = trampoline_api.code_padding != 0 ? JITSYM_CODE_GAP : 0;
    if (unwind.row_count != 0) {
        code.unwind = &unwind;
    }
    /* The file names <string> and <frozen importlib._bootstrap> do not refer to files. */
    if ((wanted & JITSYM_WANT_LINES) && *file != '<' && co->co_firstlineno > 0) {
        line.line = co->co_firstlineno;
        line.file = file;
        code.lines = &line;
        code.line_count = 1;
        code.line_size = sizeof line;
    }
    untouched = 0;
    jitsym_register(session, &code, NULL);
}

static void *
map_init(void)
{
    return session;
}

static void *
jit_init(void)
{
    return session != NULL ? session : _PyJitsym_own_jit_callbacks.init_state();
}

static void
map_write(void *Py_UNUSED(state), const void *addr, unsigned int size, PyCodeObject *co)
{
    if (session != NULL) {
        announce(addr, size, co);
    }
}

static void
jit_write(void *state, const void *addr, unsigned int size, PyCodeObject *co)
{
    if (session != NULL) {
        announce(addr, size, co);
    }
    else {
        _PyJitsym_own_jit_callbacks.write_state(state, addr, size, co);
    }
}

static int
map_free(void *Py_UNUSED(state))
{
    return 0;
}

static int
jit_free(void *state)
{
    return session != NULL ? 0 : _PyJitsym_own_jit_callbacks.free_state(state);
}

_PyPerf_Callbacks _Py_perfmap_callbacks = {map_init, map_write, map_free};
_PyPerf_Callbacks _Py_perfmap_jit_callbacks = {jit_init, jit_write, jit_free};

/* Called before the trampolines are activated and have memory, because this memory depends on the sinks. */
void
_PyJitsym_Begin(void)
{
    jitsym_stats stats = JITSYM_STATS;
    if (!open_session(trampoline_api.init_state == jit_init ? JITSYM_SINK_JITDUMP : JITSYM_SINK_MAP)) {
        return;
    }
    describe_frame();
    /* Room after the trampolines is made only if a jitdump is written from the start. */
    bool has_gap = jitsym_get_stats(session, &stats) == JITSYM_OK && (stats.sinks_running & JITSYM_SINK_JITDUMP) != 0;
    trampoline_api.code_padding = has_gap ? JITSYM_CODE_GAP_SIZE : 0;
}

/* -- Memory -------------------------------------------------------------- */

/* Called for new executable memory that is full of trampolines and is no longer written to. */
void
_PyJitsym_AddArena(void *memory, size_t size)
{
    if (session != NULL && (jitsym_wanted(session) & (JITSYM_WANT_REGION | JITSYM_WANT_ADOPT)) != 0) {
        untouched = 0;
        jitsym_region_adopt(session, memory, size);
    }
}

void
_PyJitsym_FreeArena(void *memory, size_t size)
{
    if (has_threads()) {
        jitsym_unregister_range(session, (uint64_t)(uintptr_t)memory, size, JITSYM_RANGE_UNMAP);
    }
}

/* -- Perf map API -------------------------------------------------------- */

/* Opens the perf map. The library only appends to a map that already exists. Like CPython, it then changes no entry that a
 * later entry overlaps. */
static int
open_map(void)
{
    if (((asked | missing) & JITSYM_SINK_MAP) == 0) {
        char path[64];
        snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(fd);
        }
        open_session(JITSYM_SINK_MAP);
    }
    return session != NULL;
}

int
PyUnstable_PerfMapState_Init(void)
{
    return open_map() ? 0 : -1;
}

/* Writes an entry. The entry is in the file when the call returns, as with CPython's own function. */
int
PyUnstable_WritePerfMapEntry(const void *code_addr, unsigned int code_size, const char *entry_name)
{
    jitsym_code code = JITSYM_CODE(code_addr, code_size, entry_name);
    if (!open_map()) {
        return -1;
    }
    untouched = 0;
    if (jitsym_register(session, &code, NULL) != JITSYM_OK) {
        return -1;
    }
    return jitsym_flush(session, 1000) == JITSYM_OK ? 0 : -1;
}

void
PyUnstable_PerfMapState_Fini(void)
{
    _PyJitsym_Flush();
}

/* Called in a forked child. The child's map gets all entries of the parent, so the parent's file need not be read. */
int
PyUnstable_CopyPerfMapFile(const char *Py_UNUSED(parent_filename))
{
    if (!open_map()) {
        return -1;
    }
    untouched = 0;
    return jitsym_enable(session, JITSYM_SINK_MAP) == JITSYM_OK ? 0 : -1;
}
