#!/bin/sh
# Makes docs/kcachegrind.png: `kcachegrind.sh GUEST DIRECTORY PICTURE`. GUEST is c-tests/valgrind/guest.c, linked with the library.
# Needs valgrind, kcachegrind, graphviz (for the graph), xvfb, xdotool and imagemagick.
set -eu
guest=$1 dir=$2 picture=$3 width=1500 height=800
valgrind -q --tool=callgrind --dump-instr=yes --collect-jumps=yes --callgrind-out-file="$dir/shot.out" "$guest" "$dir" calls 30000
# The function jit_middle: its source, the graph of its callers and callees, and its machine code; and no tip of the day.
mkdir -p "$dir/home/.config"
cat >"$dir/home/.config/kcachegrindrc" <<END
[TipOfDay]
RunOnStart=false

[MainView-TabView-1]
ActiveItemName=jit_middle
ActiveItemType=Function
TopTabs=SourceView,CallerView,AllCallerView
ActiveTop=SourceView
BottomTabs=CallGraphView,CalleeView,AllCalleeView
ActiveBottom=CallGraphView
RightTabs=InstrView
ActiveRight=InstrView
TopSize=40
RightSize=54
END
export HOME="$dir/home" XDG_RUNTIME_DIR="$dir/home"
# Xvfb chooses a display that is free, and says which.
mkfifo "$dir/display"
Xvfb -displayfd 3 -screen 0 "${width}x${height}x24" 3>"$dir/display" >/dev/null 2>&1 &
server=$!
trap 'kill $server' EXIT
read -r number <"$dir/display"
export DISPLAY=":$number"
# From a directory without sources.
(cd / && exec kcachegrind "$dir/shot.out" >/dev/null 2>&1) &
viewer=$!
trap 'kill $viewer $server' EXIT
window=$(timeout 120 xdotool search --sync --onlyvisible --class kcachegrind | tail -1)
timeout 20 xdotool windowmove "$window" 0 0 windowsize "$window" $width $height
sleep 5
# Of the flat profile, these functions.
timeout 20 xdotool mousemove 200 90 click 1 type jit_
sleep 5
import -window root "$picture"
