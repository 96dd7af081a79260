#!/bin/sh
# Runs every test, and says at the end which suites failed. `test.sh fast` runs some of each kind, in less than a minute if all
# is built. Other arguments are those of `cargo test`, which then runs tests of the library.
# Installs the Debian packages that the tests need where it may.
set -eu
cd "$(dirname "$0")/.."

# Suites run in two lanes, because many sleep for half of their time. A lane begins with these suites, long ones first, and then
# helps the other one.
here="lib tool faults luajit install regions"
# The output of this lane comes when both are done.
beside="c_tests cross races soak matrix random"

run_suite() {
    case $1 in
        lib) cargo test --locked --lib -- --include-ignored ;;
        tool) cargo test --locked --no-fail-fast --package jitsym-tool --package jitsym-step ;;
        # Parts of suites, for `test.sh fast`.
        short) cargo test --locked --lib ;;
        rules) cargo test --locked --package jitsym-tool rules ;;
        c) cargo test --locked --test c_tests -- statically_linked stable::shared region::shared --skip late ;;
        perf) cargo test --locked --test perf_map live_code ;;
        doc) cargo test --locked --doc ;;
        xtask) cargo test --locked --no-fail-fast --package xtask --package jitsym-cranelift ;;
        # Old and new perf, held against the ground truth: see docs/compatibility.md. The newer one is fetched, but not installed.
        matrix) cargo xtask matrix --quick ;;
        # Random code in regions, with the same two.
        random) cargo xtask regions --quick ;;
        *) cargo test --locked --test "$1" ;;
    esac
}

# `run_suites WORK HOW ALL SUITE...`: one after the other, except those that the other lane has begun. Failed suites are listed in
# WORK/failed. HOW is `live`, or `kept`: then the output of each goes to a file, and only its end is reported here.
run_suites() {
    work=$1 how=$2 all=$3
    shift 3
    for suite in "$@"; do
        # Only one of two lanes can make it.
        mkdir "$work/$suite" 2>/dev/null || continue
        number=$(find "$work" -mindepth 1 -type d | wc -l) ended=ok
        if [ "$how" = live ]; then
            echo "[$number/$all] $suite ..."
            # Not through a pipe: a process that a failed test has left behind would keep it open.
            : >"$work/$suite/said"
            run_suite "$suite" >>"$work/$suite/said" 2>&1 &
            tail -n +1 -f --pid=$! "$work/$suite/said" || :
            wait $! || echo "$suite" >>"$work/failed"
        else
            echo "[$number/$all] $suite, beside the others ..."
            run_suite "$suite" >"$work/$suite/said" 2>&1 || ended=failed
            echo "[$number/$all] $suite: $ended; its output comes later"
            [ $ended = ok ] || echo "$suite" >>"$work/failed"
            mv "$work/$suite/said" "$work/$suite/kept"
        fi
    done
}

# How this script calls itself.
if [ "${1-}" = --suites ]; then
    shift
    run_suites "$@"
    exit
fi

. scripts/packages.sh

need cc=gcc g++=g++ clang=clang /usr/include/stdio.h=libc6-dev perf=linux-perf objdump=binutils valgrind=valgrind \
    luajit=luajit node=nodejs python3=python3 /usr/share/python-wheels=python3-venv pip3=python3-pip go=golang-go \
    llvm-dwarfdump=llvm eu-readelf=elfutils pkg-config=pkg-config cmake=cmake make=make meson=meson strace=strace mandoc=mandoc \
    zsh=zsh fish=fish zstd=zstd \
    rakudo=rakudo perl=perl /usr/include/tommath.h=libtommath-dev /usr/include/uv.h=libuv1-dev \
    /usr/include/atomic_ops.h=libatomic-ops-dev /usr/include/x86_64-linux-gnu/ffi.h=libffi-dev \
    dpkg-shlibdeps=dpkg-dev lintian=lintian abidiff=abigail-tools \
    aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h=libc6-dev-arm64-cross \
    gdb-multiarch=gdb-multiarch gdb=gdb lldb=lldb /usr/lib/llvm-14/lib/libunwind.so.1=libunwind-14 /usr/share/doc/libunwind-dev=libunwind-dev \
    lli=llvm /usr/include/dnnl.h=libdnnl-dev /usr/lib/postgresql=postgresql \
    /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring

work=$(mktemp -d)
groups=""
trap 'for group in $groups; do kill -- "-$group" 2>/dev/null || :; done; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Each in a group of its own, so that it can be ended with all that it has started.
start() {
    setsid "$@" &
    group=$!
    groups="$groups $group"
}

# Waits for one that was started, and lists it under this name if it has failed.
await() {
    wait "$1" || echo "$2" >>"$work/failed"
    left=""
    for group in $groups; do
        [ "$group" = "$1" ] || left="$left $group"
    done
    groups=$left
}

build() {
    echo "Building $1 ..."
    shift
    start "$@"
    await "$group" "the build: $*"
}

if [ "${1-}" = fast ]; then
    start sh scripts/test.sh --suites "$work" live 4 short rules c perf
    await "$group" "the fast suites"
elif [ $# -gt 0 ]; then
    start cargo test --locked "$@"
    await "$group" "cargo test $*"
    start sh scripts/test.sh --suites "$work" live 3 xtask matrix random
    await "$group" "xtask, matrix, random"
else
    for file in tests/*.rs; do
        name=${file##*/} name=${name%.rs}
        case " $beside $here " in
            *" $name "*) ;;
            *) here="$here $name" ;;
        esac
    done
    here="$here doc xtask" backwards="" all=0
    for suite in $beside $here; do
        backwards="$suite $backwards" all=$((all + 1))
    done
    build "the library and the tests" cargo test --locked --no-run
    build "the program" cargo build --locked --package jitsym-tool --target-dir target/tool
    build "the C libraries" \
        cargo rustc --locked --release --lib --features reserve --crate-type cdylib,staticlib --target-dir target/c
    # shellcheck disable=SC2086 # The words are separate arguments.
    start sh scripts/test.sh --suites "$work" kept "$all" $beside $backwards
    other=$group
    # shellcheck disable=SC2086
    start sh scripts/test.sh --suites "$work" live "$all" $here $backwards
    await "$group" "the first lane"
    echo "Waiting for the second lane ..."
    await "$other" "the second lane"
    for kept in "$work"/*/kept; do
        suite=${kept%/kept}
        echo "The output of ${suite##*/}:"
        cat "$kept"
    done
fi

if [ -e "$work/failed" ]; then
    # The failures are printed again: a log that keeps only its end should have them.
    while read -r suite; do
        for said in "$work/$suite/said" "$work/$suite/kept"; do
            [ -e "$said" ] || continue
            echo "How $suite failed:"
            if grep -q '^failures:$' "$said"; then sed -n '/^failures:$/,$p' "$said"; else tail -n 40 "$said"; fi
        done
    done <"$work/failed"
    echo "These failed:"
    sed 's/^/    /' "$work/failed"
    exit 1
fi
echo "All passed."
