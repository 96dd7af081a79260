#!/bin/sh
# Builds CPython so that each Python function runs through a trampoline of libjitsym. No file of CPython is copied: lines are
# inserted at lines of its source.
set -eu

usage="usage: sh examples/cpython/build.sh SOURCE PREFIX
Builds CPython 3.13 or 3.14 from SOURCE, which is not changed, and puts
PREFIX/bin/python3 there."
. "$(dirname "$0")/../insert.sh"
set_up Python/perf_trampoline.c "$@"

begin Makefile.pre.in
after '		Python/perf_jit_trampoline.o \' '		Python/jitsym_cpython.o \'
end

add Python "$here/jitsym_cpython.c" "$here/jitsym_cpython.h" "$include"/jitsym*.h
[ $changed = no ] || touch "$build/Python/jitsym_cpython.c"

# CPython's own functions get other names.
begin Python/perf_trampoline.c
after '#include "Python.h"' '#define JITSYM_CPYTHON_OWN' '#include "jitsym_cpython.h"'
end

begin Python/sysmodule.c
# CPython 3.13 refuses the name `perf_jit`.
before '    if (strcmp(backend, "perf") == 0) {' '    if (strcmp(backend, "perf_jit") == 0) {' \
    '        if (_PyPerfTrampoline_SetCallbacks(&_Py_perfmap_jit_callbacks) < 0) return NULL;' '    }' '    else'
# The next line removes CPython's own writer of a perf map. Without the library, jitsym_dl.h writes the same map.
between 'static PerfMapState perf_map_state;' 'static PyMethodDef sys_methods[] = {'
# In CPython 3.14, this line is in an #ifndef whose end was removed.
case $(grep -B1 -Fx 'static PerfMapState perf_map_state;' "$file.new") in
    '#ifndef'*) after 'static PerfMapState perf_map_state;' '#endif' ;;
esac
end

begin Modules/posixmodule.c
after '#include "pycore_typeobject.h"    // _PyType_AddMethod()' '#include "Python/jitsym_cpython.h"'
before '    if (num_python_threads > 1) {' '    num_python_threads -= _PyJitsym_CountThreads();'
before '    _exit(status);' '    _PyJitsym_Flush();'
before '    if (PySys_Audit("os.exec", "OOO", path->object, argv, Py_None) < 0) {' '    _PyJitsym_Flush();'
before '    if (PySys_Audit("os.exec", "OOO", path->object, argv, env) < 0) {' '    _PyJitsym_Flush();'
end

# Frame pointers, for perf record --call-graph fp.
if [ ! -f "$build/Makefile" ]; then
    (cd "$build" && ./configure --prefix="$prefix" CFLAGS="-O2 -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer") \
        >"$prefix/configure.log" 2>&1 || { cat "$prefix/configure.log" >&2; exit 1; }
fi
(cd "$build" && make -j"$(getconf _NPROCESSORS_ONLN)") >"$prefix/make.log" 2>&1 || { cat "$prefix/make.log" >&2; exit 1; }
ln -sfn "$build/python" "$prefix/bin/python3"
