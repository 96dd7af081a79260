#!/bin/sh
# Runs every test; with arguments, those that `cargo test` then runs of the library. Installs the Debian packages that the tests
# need where it may.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh

need cc=gcc g++=g++ clang=clang /usr/include/stdio.h=libc6-dev perf=linux-perf objdump=binutils valgrind=valgrind \
    luajit=luajit node=nodejs python3=python3 /usr/share/python-wheels=python3-venv pip3=python3-pip go=golang-go \
    llvm-dwarfdump=llvm eu-readelf=elfutils pkg-config=pkg-config cmake=cmake make=make meson=meson strace=strace mandoc=mandoc \
    dpkg-shlibdeps=dpkg-dev lintian=lintian abidiff=abigail-tools \
    aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h=libc6-dev-arm64-cross \
    gdb-multiarch=gdb-multiarch \
    /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring

# Those that take long, and sleep for half of it, run beside all others. What they say comes when they are done.
beside="c_tests cross races soak"

if [ $# -gt 0 ]; then
    cargo test --locked "$@"
else
    here="--lib --bins" there=""
    for file in tests/*.rs; do
        name=${file##*/} name=${name%.rs}
        case " $beside " in
            *" $name "*) there="$there --test $name" ;;
            *) here="$here --test $name" ;;
        esac
    done
    cargo test --locked --no-run
    said=$(mktemp)
    # A group of its own, so that it can be ended with all that it has started.
    # shellcheck disable=SC2086 # The words of $there and $here are separate arguments.
    setsid cargo test --locked --no-fail-fast $there >"$said" 2>&1 &
    pid=$!
    trap 'kill -- -$pid 2>/dev/null || :; rm -f "$said"' EXIT
    trap 'exit 1' HUP INT TERM
    failed=""
    # shellcheck disable=SC2086
    cargo test --locked --no-fail-fast $here || failed=yes
    cargo test --locked --doc || failed=yes
    wait $pid || failed=yes
    cat "$said"
    [ -z "$failed" ] || exit 1
fi
# Old and new perf, held against the ground truth: see docs/compatibility.md. The newer one is fetched, but not installed.
cargo test --locked --package xtask --package jitsym-cranelift
cargo xtask matrix --quick
