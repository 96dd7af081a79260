#!/usr/bin/env python3
"""Draws a flame graph of a recording, compiled code in orange.

usage: perf script -F comm,ip,sym,dso --no-inline | flame.py COMMAND >flame.svg

COMMAND is the thread's name; others are left out. docs/flame.svg was drawn from bindings/luajit/strings.lua, recorded with
JITSYM_ADOPT=1 and --call-graph dwarf.
"""
import re
import sys
from html import escape

WIDTH, ROW, LETTER, SMALLEST = 900, 17, 6.2, 4


def stacks(lines, command):
    """Each sample's frames, outermost first, as (name, whether a compiler made the code at run time)."""
    stack = []
    for line in [*lines, ""]:
        frame = re.match(r"\s+[0-9a-f]+ (.*) \((.*)\)$", line)
        if frame:
            name, file = frame[1], frame[2].rsplit("/", 1)[-1].strip("[]")
            stack.append((f"[{file}]" if name == "[unknown]" else name, file.startswith(("jit-", "jitted-", "JIT"))))
        elif line.strip():
            stack, wanted = [], line.strip() == command
        elif stack and wanted:
            # Frames without names are one, as far as anybody can tell.
            yield [f for f, inner in zip(stack[::-1], [None, *stack[::-1]]) if f != inner or f[0][0] != "["]
            stack = []


def add(node, stack):
    node["count"] = node.get("count", 0) + 1
    if stack:
        add(node.setdefault("callees", {}).setdefault(stack[0], {}), stack[1:])


def draw(node, left, depth, scale, out):
    for (name, compiled), callee in sorted(node.get("callees", {}).items()):
        width = callee["count"] * scale
        if width >= SMALLEST:
            fill = "#f5a04c" if compiled else "#c9d3dd"
            room = int((width - 6) / LETTER)
            shown = name if len(name) <= room else name[: room - 1] + "…"
            text = f'<text x="{left + 3:.0f}" y="{-depth * ROW - 5}">{escape(shown)}</text>' if room > 3 else ""
            box = f'<rect x="{left:.1f}" y="{-(depth + 1) * ROW}" width="{width - 0.5:.1f}" height="{ROW - 1}" fill="{fill}"/>'
            out.append((depth, f"<g><title>{escape(name)}: {callee['count']}</title>{box}{text}</g>"))
            draw(callee, left, depth + 1, scale, out)
        left += width


def main():
    root, out = {}, []
    for stack in stacks(sys.stdin.read().split("\n"), sys.argv[1]):
        add(root, stack)
    draw(root, 0, 0, WIDTH / root["count"], out)
    height = (max(depth for depth, _ in out) + 1) * ROW
    box = f'width="{WIDTH}" height="{height}" viewBox="0 {-height} {WIDTH} {height}"'
    print(f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="monospace" font-size="10">')
    print(*(box for _, box in out), "</svg>", sep="\n")


main()
