#!/bin/sh
# Makes docs/kcachegrind.png: `kcachegrind.sh GUEST DIRECTORY PICTURE`. GUEST is c-tests/valgrind/guest.c, linked with the library.
# Needs valgrind, kcachegrind, graphviz (for the graph), xvfb, xdotool and imagemagick.
set -eu
guest=$1 dir=$2 picture=$3 size="1040 800"
valgrind -q --tool=callgrind --dump-instr=yes --collect-jumps=yes --callgrind-out-file="$dir/shot.out" "$guest" "$dir" calls 30000
# No tip of the day.
mkdir -p "$dir/home/.config"
printf '[TipOfDay]\nRunOnStart=false\n' >"$dir/home/.config/kcachegrindrc"
export HOME="$dir/home" XDG_RUNTIME_DIR="$dir/home" DISPLAY=:87
Xvfb "$DISPLAY" -screen 0 1040x800x24 >/dev/null 2>&1 &
server=$!
sleep 3
# From a directory without sources.
(cd / && exec kcachegrind "$dir/shot.out" >/dev/null 2>&1) &
viewer=$!
trap 'kill $viewer $server' EXIT
sleep 12
window=$(timeout 5 xdotool search --onlyvisible --class kcachegrind | tail -1)
timeout 5 xdotool windowmove "$window" 0 0 windowsize "$window" $size
# The function jit_middle, its source, and the graph of its callers and callees.
for step in "mousemove 200 90 click 1" "type jit_" "mousemove 60 157 click 1" "mousemove 740 99 click 1" "mousemove 547 757 click 1"; do
    sleep 2
    # shellcheck disable=SC2086 # The words are separate arguments.
    timeout 5 xdotool $step
done
sleep 2
import -window root "$picture"
