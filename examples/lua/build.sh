#!/bin/sh
# Builds Lua 5.4 so that Lua functions are frames in profilers and debuggers. No file of Lua is copied: lines are inserted at
# lines of its source.
set -eu

usage="usage: sh examples/lua/build.sh SOURCE PREFIX
Builds Lua from SOURCE, which is not changed, and puts PREFIX/bin/lua there."
. "$(dirname "$0")/../insert.sh"
set_up src/lvm.c "$@"

add src "$here/lua_jitsym.c" "$here/lua_jitsym.h" "$include"/jitsym*.h

begin src/lobject.h
after '  TString  *source;  /* used for debug information */' '  void *jitsym;  /* the trampoline, or NULL */'
end

begin src/lfunc.c
after '#include "lfunc.h"' '#include "lua_jitsym.h"'
after '  f->source = NULL;' '  f->jitsym = NULL;'
before '  luaM_freearray(L, f->code, f->sizecode);' '  lua_jitsym_free(f);'
end

begin src/ldo.c
after '#include "lvm.h"' '#include "lua_jitsym.h"' '#define luaV_execute lua_jitsym_execute'
end

begin src/lvm.c
after '#include "lvm.h"' '#include "lua_jitsym.h"'
before '          ci = newci;' '          if (lua_jitsym_call(L, newci)) { updatetrap(ci); vmbreak; }'
end

# Debian's Makefile builds the library and the program for Debian's directories, so the compiler is called here. The file is one
# that Debian's package makes.
echo "#define DEB_HOST_MULTIARCH \"$("${CC:-cc}" -print-multiarch)\"" >"$build/src/lua5.4-deb-multiarch.h"
rm -f "$build/src/luac.c"
"${CC:-cc}" ${LUA_CFLAGS--O2} -std=gnu99 -DLUA_USE_POSIX -DLUA_USE_DLOPEN -Wl,-E -o "$prefix/bin/lua" "$build"/src/*.c \
    -lm -ldl -lpthread >"$prefix/cc.log" 2>&1 || { cat "$prefix/cc.log" >&2; exit 1; }
