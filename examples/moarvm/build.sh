#!/bin/sh
# Builds MoarVM so that it registers compiled code with libjitsym. No file of MoarVM is copied: calls are inserted at lines of
# its source.
set -eu

usage="usage: sh examples/moarvm/build.sh SOURCE PREFIX
Builds MoarVM from SOURCE, which is not changed, and installs it in PREFIX.
PREFIX/bin/raku then runs Debian's Rakudo on it."
case ${1-} in
    --help | -h) echo "$usage"; exit 0 ;;
esac
if [ $# != 2 ] || [ ! -f "$1/src/jit/compile.c" ]; then
    echo "$usage" >&2
    exit 2
fi

here=$(cd "$(dirname "$0")" && pwd)
include=$(cd "$here/../../include" && pwd)
source=$(cd "$1" && pwd)
mkdir -p "$2"
prefix=$(cd "$2" && pwd)
build=$prefix/build

if [ ! -f "$build/Makefile" ]; then
    rm -rf "$build"
    cp -R "$source" "$build"
    (cd "$build" && perl Configure.pl --optimize --no-mimalloc --has-libtommath --has-libuv --has-libatomic_ops --has-libffi \
        --prefix="$prefix") >"$prefix/configure.log" 2>&1 || { cat "$prefix/configure.log" >&2; exit 1; }
fi

. "$here/../insert.sh"

add src/jit "$here/jitsym_moarvm.c" "$here/jitsym_moarvm.h" "$include"/jitsym*.h

begin src/jit/compile.h
after '    AO_t ref_cnt;' '    MVMuint8 jitsym_memory;'
end

begin src/jit/compile.c
after '#include "platform/mmap.h"' '#define JITSYM_MOARVM_MEMORY' '#include "jit/jitsym_moarvm.h"'
after '    code = MVM_jit_compiler_assemble(tc, &cl, jg);' '    if (code) MVM_jitsym_compiled(tc, jg, code);'
at_the_end '#include "jit/jitsym_moarvm.c"'
# The next line removes MoarVM's own writer of a perf map. Without the library, jitsym_dl.h writes the same map.
between '#if linux' '#endif'
end

begin src/moar.c
after '#include "platform/time.h"' '#include "jit/jitsym_moarvm.h"'
before '    /* JIT environment/logging setup. */' '    MVM_jitsym_init();'
between '#if linux' '#endif'
before '    /* Close any spesh or jit log. */' '    MVM_jitsym_close();'
before '    /* Clean up spesh mutexes and close any log. */' '    MVM_jitsym_close();'
end

(cd "$build" && make -j"$(getconf _NPROCESSORS_ONLN)" install) >"$prefix/make.log" 2>&1 || { cat "$prefix/make.log" >&2; exit 1; }

# `raku` is not a script: perf 6.1 and 6.12 keep the mappings of programs that the process executed earlier, and use the
# lowest mapping of a library for the mapping in use. A static program maps no library. Some systems have no static C library,
# so `raku` may also be a dynamic program.
set -- -O1 -DMOAR="\"$prefix/bin/moar\"" -o "$prefix/bin/raku" "$here/raku.c"
cc -static "$@" 2>>"$prefix/make.log" || cc "$@"
