#!/bin/sh
# Builds LuaJIT so that it registers compiled code with libjitsym. No file of LuaJIT is copied: calls are inserted at lines of
# its source.
set -eu

usage="usage: sh examples/luajit/build.sh SOURCE PREFIX
Builds LuaJIT from SOURCE, which is not changed, and puts PREFIX/bin/luajit
there."
. "$(dirname "$0")/../insert.sh"
set_up src/lj_trace.c "$@"

add src "$here/lj_jitsym.c" "$here/lj_jitsym.h" "$include"/jitsym*.h

begin src/lj_trace.c
after '#include "lj_trace.h"' '#include "lj_jitsym.h"'
after '  lj_gdbjit_addtrace(J, T);' '  lj_jitsym_addtrace(J, T);'
before '  lj_record_setup(J);' '  lj_jitsym_recorder(J);'
before '      lj_record_ins(J);' '      lj_jitsym_recins(J);'
before '  /* Initialize aligned SIMD constants. */' '  lj_jitsym_open();'
before '/* Free everything associated with the JIT compiler state. */' '#include "lj_jitsym.c"'
# The next line removes LuaJIT's own writer of a perf map. Without the library, jitsym_dl.h writes the same map.
without LUAJIT_USE_PERFTOOLS
end

begin src/lj_mcode.c
after '#include "lj_mcode.h"' '#include "lj_jitsym.h"'
after '#include <sys/mman.h>' '#define mprotect lj_jitsym_mprotect' '#define munmap lj_jitsym_munmap'
after '    lj_err_deregister_mcode(mc, sz, (uint8_t *)mc + sizeof(MCLink));' \
    '    if (lj_jitsym_keeparea(mc, sz)) { mc = next; continue; }'
# This is mcode_alloc for machines where jumps reach 2 GiB. A kept area is in reach, because it was in reach before.
after '  const uintptr_t range = (1u << (LJ_TARGET_JUMPRANGE-1)) - (1u << 21);' \
    '  { void *kept = lj_jitsym_takearea(sz); if (kept) return kept; }'
end

begin src/lj_asm.c
after '#include "lj_asm.h"' '#include "lj_jitsym.h"'
after '      asm_ir(as, ir);' '      lj_jitsym_asmins(as->J, as->curins, as->mcp);'
end

begin src/lj_opt_loop.c
after '#include "lj_iropt.h"' '#include "lj_jitsym.h"'
before '    /* Substitute instruction operands. */' '    lj_jitsym_copyins(J, ins);'
end

begin src/lj_asm_x86.h
after '  lj_mcode_commitbot(as->J, mxp);' '  lj_jitsym_addstubs(group*EXITSTUBS_PER_GROUP, mxpstart, mxp);'
end

(cd "$build" && make -j"$(getconf _NPROCESSORS_ONLN)" -C src luajit) >"$prefix/make.log" 2>&1 || { cat "$prefix/make.log" >&2; exit 1; }
cp "$build/src/luajit" "$prefix/bin/"
ln -sfn "$build/src/jit" "$prefix/bin/jit"
