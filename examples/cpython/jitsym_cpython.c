/*
 * Gives each Python function a trampoline of libjitsym, for the perf map of -X perf, the jitdump of -X perf_jit, and regions.
 *
 * build.sh compiles this file with CPython. The functions whose names begin with _PyPerfTrampoline take the place of CPython's
 * own functions, which run only without the library. CPython's own code then makes the trampolines, jitsym_dl.h writes the
 * same map, and CPython writes its own jitdump.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "Python.h"
#include "pycore_ceval.h"
#include "pycore_interp.h"
#if PY_VERSION_HEX >= 0x030e0000
#include "pycore_interpframe.h"
#else
#include "pycore_frame.h"
#endif
#include "pycore_runtime.h"

#include "jitsym_cpython.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "jitsym_dl.h"

#define perf_state _PyRuntime.ceval.perf

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

/* False if only jitsym_dl.h writes, and only the map. */
static int
has_library(void)
{
    return jitsym_version_number() != 0;
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

/* -- Trampolines --------------------------------------------------------- */

/* Code objects have extra fields for those who ask for one. The trampoline is in the field to which this function belongs. It
 * is called when the code object ends. */
static void
free_trampoline(void *entry)
{
    /* A forked child gets no files and threads only because a code object of its parent ends. */
    if (!untouched) {
        jitsym_trampoline_free(session, entry);
    }
}

/* Returns the index of the field, or -1. Each interpreter has its own index. */
static Py_ssize_t
field_of(PyInterpreterState *interp)
{
    static Py_ssize_t last;
    if (interp->co_extra_freefuncs[last] != free_trampoline) {
        for (Py_ssize_t i = 0; i < interp->co_extra_user_count; i++) {
            if (interp->co_extra_freefuncs[i] == free_trampoline) {
                return last = i;
            }
        }
        return -1;
    }
    return last;
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

static void *
make_trampoline(PyCodeObject *co)
{
    void *entry = _PyEval_EvalFrameDefault; /* stays after a failure */
    const char *file = utf8(co->co_filename);
    char name[JITSYM_NAME_MAX + 1];
    jitsym_code code = JITSYM_CODE(NULL, 0, name);
    jitsym_line line = {0, co->co_firstlineno, 0, 0, file};

    snprintf(name, sizeof name, "py::%s:%s", utf8(co->co_qualname), file);
    /* The file names <string> and <frozen importlib._bootstrap> do not refer to files. */
    if (*file != '<' && co->co_firstlineno > 0) {
        code.lines = &line;
        code.line_count = 1;
        code.line_size = sizeof line;
    }
    untouched = 0;
    jitsym_trampoline(session, entry, 0, &code, &entry);
    return entry;
}

/* Returns the trampoline of a code object, or CPython's interpreter if there is no trampoline. */
static _PyFrameEvalFunction
trampoline_of(PyInterpreterState *interp, PyObject *code)
{
    void *entry = NULL;
    Py_ssize_t field = field_of(interp);
    PyUnstable_Code_GetExtra(code, field, &entry);
    if (entry == NULL && (jitsym_wanted(session) & JITSYM_WANT_CODE)) {
        /* A generator may be about to raise an exception. */
        PyObject *raised = PyErr_GetRaisedException();
        entry = make_trampoline((PyCodeObject *)code);
        if (PyUnstable_Code_SetExtra(code, field, entry) < 0) {
            jitsym_trampoline_free(session, entry);
            entry = NULL;
        }
        PyErr_SetRaisedException(raised);
    }
    return entry != NULL ? (_PyFrameEvalFunction)entry : _PyEval_EvalFrameDefault;
}

/* Runs each Python function while trampolines are active. */
static PyObject *
py_trampoline_evaluator(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throw)
{
    /* This reference keeps the trampoline: a function may delete itself while it runs. */
    PyObject *code = Py_NewRef(_PyFrame_GetCode(frame));
    PyObject *result = trampoline_of(ts->interp, code)(ts, frame, throw);
    Py_DECREF(code);
    return result;
}

/* -- In place of CPython's own functions --------------------------------- */

int
_PyIsPerfTrampolineActive(void)
{
    return PyInterpreterState_Get()->eval_frame == py_trampoline_evaluator || _PyJitsym_OwnIsActive();
}

/* Activates or deactivates the trampolines of an interpreter. Trampolines stay until their code objects end. */
int
_PyPerfTrampoline_Init(int activate)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    int is_jitdump = perf_state.trampoline_api.init_state == _Py_perfmap_jit_callbacks.init_state;
    int is_free = interp->eval_frame == NULL || interp->eval_frame == py_trampoline_evaluator;
    if (!is_free || (activate && !open_session(is_jitdump ? JITSYM_SINK_JITDUMP : JITSYM_SINK_MAP)) || !has_library()) {
        return _PyJitsym_OwnInit(activate);
    }
    if (activate && field_of(interp) < 0 && PyUnstable_Eval_RequestCodeExtraIndex(free_trampoline) < 0) {
        return -1;
    }
    _PyInterpreterState_SetEvalFrameFunc(interp, activate ? py_trampoline_evaluator : NULL);
    return 0;
}

int
PyUnstable_PerfTrampoline_CompileCode(PyCodeObject *co)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (interp->eval_frame != py_trampoline_evaluator) {
        return _PyJitsym_OwnCompileCode(co);
    }
    trampoline_of(interp, (PyObject *)co);
    return 0;
}

/* Called in a forked child. The child keeps its parent's trampolines, whose names perf has from the parent. If
 * `persist_after_fork` is set, the child's files must also contain these names. */
PyStatus
_PyPerfTrampoline_AfterFork_Child(void)
{
    if (session == NULL || !has_library()) {
        return _PyJitsym_OwnAfterFork();
    }
    untouched = 1;
    if (perf_state.persist_after_fork && jitsym_wanted(session) != 0) {
        untouched = 0;
        jitsym_enable(session, 0);
    }
    return PyStatus_Ok();
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
