#!/bin/sh
# Makes of the static library of rustc one that shows only the functions of the headers, and what debuggers look for. rustc's
# library has symbols of Rust's runtime library (rust_eh_personality for one), and a second Rust library in the same program
# defines them again. Here everything becomes one object, in which those names are local.
set -eu

usage() {
    cat <<'END'
usage: seal.sh ARCHIVE OUT
Makes of the static library ARCHIVE, as rustc has written it, the library OUT,
which shows the functions of the headers and what debuggers look for. Environment:
  LD, OBJCOPY, AR  the programs to use, for another architecture
END
}

. "$(dirname -- "$0")/packages.sh"
options "$@"
[ $# = 2 ] || refuse "two files are needed"
archive=$1 out=$2
functions=$(dirname "$0")/../tests/exports.txt
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# The objects may have LLVM's bitcode beside the machine code. GNU ld loads all plugins that it finds, and that of an older LLVM
# aborts when it reads the bitcode.
"${OBJCOPY:-objcopy}" --remove-section=.llvmbc --remove-section=.llvmcmd "$archive" "$work/archive.a"
# The linker takes what the functions need, and leaves the rest of the compiler's helpers. Sections stay apart, so that a
# program can still drop what it does not use. Groups of sections go: two of them whose names are local would be taken for
# the same one, and the second be thrown away.
# shellcheck disable=SC2046 # One argument for each name.
"${LD:-ld}" -r --force-group-allocation -o "$work/jitsym.o" $(sed 's/^/--undefined=/' "$functions") "$work/archive.a"
# Debuggers know these names, which other libraries in the same program may define too.
set --
for name in __jit_debug_register_code __jit_debug_descriptor; do
    set -- "$@" --keep-global-symbol=$name --weaken-symbol=$name
done
"${OBJCOPY:-objcopy}" --keep-global-symbols="$functions" "$@" "$work/jitsym.o"
"${AR:-ar}" rcsD "$work/libjitsym.a" "$work/jitsym.o"
# Of an object with code that it does not know, objcopy drops all symbols without an error. The archive begins with its index.
head -c 4096 "$work/libjitsym.a" | grep -aq jitsym_register || {
    echo "seal.sh: ${OBJCOPY:-objcopy} has left no symbols in $out" >&2
    exit 1
}
# Whoever links it has nothing to do if it is the same.
cmp -s "$work/libjitsym.a" "$out" || mv -f "$work/libjitsym.a" "$out"
