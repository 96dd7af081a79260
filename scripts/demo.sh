#!/bin/sh
# Builds the library and a small just-in-time compiler, records it with perf, and prints who burned the time and who called
# them. Where perf may not be used it shows what the library wrote instead.
set -eu

usage() {
    cat <<'END'
usage: demo.sh
Builds the library and a small just-in-time compiler (examples/toy_jit.c),
records it with perf, and prints who burned the time and who called them. The
recording stays in target/demo. Debian packages that are missing are named, and
then installed where that is allowed.
END
}

case ${1-} in
    --help | -h) usage; exit 0 ;;
esac
[ $# = 0 ] || {
    echo "demo.sh: no such option: $1" >&2
    usage >&2
    exit 2
}
cd "$(dirname "$0")/.."
. scripts/packages.sh

command -v cargo >/dev/null || { echo "demo.sh: Rust 1.88 or newer is needed, and there is no cargo" >&2; exit 1; }
need cc=gcc /usr/include/stdio.h=libc6-dev
# Both builds use one processor most of the time.
cargo rustc --quiet --release --locked --lib --features reserve --crate-type cdylib,staticlib --target-dir target/c &
library=$!
cargo build --quiet --locked --package jitsym-tool
wait "$library"
lib=$PWD/target/c/release
ln -sf libjitsym.so "$lib/libjitsym.so.0.1"

work=target/demo
mkdir -p "$work"
# The files of the last demonstration, to which its recording referred.
if [ -f "$work/pid" ]; then
    pid=$(cat "$work/pid")
    rm -f "/tmp/perf-$pid.map" "/tmp/jit-$pid.dump" "$work/pid"
    rm -rf "$work/jit.data.objects"
fi

cc -std=c11 -O1 -g -Iinclude examples/toy_jit.c -o "$work/toy_jit" -L"$lib" -ljitsym "-Wl,-rpath,$lib"

# perf's own messages are kept for the case that it fails.
if need perf=linux-perf objdump=binutils &&
    perf record -k 1 -F 499 --call-graph dwarf,8192 -o "$work/perf.data" \
        sh -c 'echo $$ >"$0/pid"; exec "$0/toy_jit" examples/hello.toy 2' "$work" >"$work/perf.log" 2>&1 &&
    target/debug/jitsym inject -i "$work/perf.data" -o "$work/jit.data" >>"$work/perf.log" 2>&1
then
    pid=$(cat "$work/pid")
    echo "The program examples/hello.toy under perf: who burned the time, and who called them"
    perf report -i "$work/jit.data" --stdio --no-children -g caller,0.5,callee --percent-limit 1 2>/dev/null |
        grep -v '^#' | cat -s
    echo "The hottest function, source and code"
    perf annotate -i "$work/jit.data" --stdio -s pixel 2>/dev/null | cat -s | head -40
    cat <<END

The recording is kept. To look at it again:
    perf report -i $work/jit.data --no-children
    target/debug/jitsym doctor $work/jit.data
To record a program of your own in one step: target/debug/jitsym record -- COMMAND
END
else
    echo "perf cannot be used here:"
    sed 's/^/    /' "$work/perf.log" 2>/dev/null || true
    echo "So this is what the library wrote for it."
    sh -c 'echo $$ >"$0/pid"; exec "$0/toy_jit" examples/hello.toy 1' "$work"
    pid=$(cat "$work/pid")
    echo
    echo "/tmp/perf-$pid.map:"
    cat "/tmp/perf-$pid.map"
    echo
    echo "/tmp/jit-$pid.dump, decoded:"
    target/debug/jitsym dump "/tmp/jit-$pid.dump"
fi
