"""Makes machine code, registers and runs it, and prints the truth about it, which a test holds against perf.

Usage: guest.py DIRECTORY. x86-64. `outer` calls `middle`, which calls one of two leaves: `hot` has a frame pointer, `cold`
has none and is described by rows, and moved half-way.
"""

import ctypes
import dataclasses
import mmap
import os
import struct
import sys
import time

import jitsym

RBX, RSP = 3, 7
SPIN = 200_000


def spin(count):
    return b"\xb9" + struct.pack("<I", count) + b"\xff\xc9\x75\xfc"  # mov ecx, count; again: dec ecx; jnz again


class Memory:
    """Pages that can be written and executed."""

    def __init__(self, size):
        self.map = mmap.mmap(-1, size, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.size, self.used = size, 0
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def place(self, code):
        """Copies code behind the last, and returns its address and its bytes there."""
        at = self.used
        self.map[at : at + len(code)] = code
        self.used = (at + len(code) + 15) & ~15
        return self.addr + at, memoryview(self.map)[at : at + len(code)]


class Function:
    def __init__(self, name, code, unwind, rows):
        self.name, self.code, self.unwind, self.rows = name, code, unwind, rows
        self.places = []

    def put(self, memory):
        before = time.monotonic_ns()
        self.addr, data = memory.place(self.code)
        return before, data

    def noted(self, before, how):
        self.places.append([self.addr, before, time.monotonic_ns(), 0, how])

    def register(self, session, memory, source):
        before, data = self.put(memory)
        where = {"lines": [jitsym.Line(offset, line, source, column=1) for offset, line in self.rows]}
        if len(self.rows) == 1:
            where = {"file": source, "line": self.rows[0][1]}
        self.registered = session.register(
            self.addr, len(self.code), self.name, data, unwind=self.unwind, **where
        )
        if len(self.rows) == 1:
            self.name = f"{self.name} {source}:{self.rows[0][1]}"
        self.noted(before, "register")

    def move(self, memory):
        before, data = self.put(memory)
        self.registered.move(self.addr, data)
        self.noted(before, "move")
        self.places[-2][3] = before

    def unregister(self):
        self.places[-1][3] = time.monotonic_ns()
        self.registered.unregister()


def main():
    source = sys.argv[1] + "/guest.toy"
    session = jitsym.Session()
    memory = Memory(1 << 16)

    # push rbp; mov rbp, rsp; BODY; pop rbp; ret
    def framed(name, body, rows):
        code = b"\x55\x48\x89\xe5" + body + b"\x5d\xc3"
        return Function(name, code, jitsym.FramePointer(epilogue_begin=len(code) - 1), rows)

    hot = framed("hot λ", spin(SPIN) + spin(2 * SPIN), [(0, 10), (4, 11), (13, 12)])
    # push rbx; sub rsp, 32; mov ebx, 1; spin; add rsp, 32; pop rbx; ret
    code = b"\x53\x48\x83\xec\x20\xbb\x01\x00\x00\x00" + spin(SPIN) + b"\x48\x83\xc4\x20\x5b\xc3"
    saved = {RBX: -16}
    rows = [
        jitsym.Row(0, RSP, 8),
        jitsym.Row(1, RSP, 16, saved),
        jitsym.Row(5, RSP, 48, saved),
        jitsym.Row(len(code) - 2, RSP, 16, saved),
        jitsym.Row(len(code) - 1, RSP, 8),
    ]
    cold = Function("cold", code, jitsym.Rows(rows), [(0, 20)])
    middle = framed("middle", b"\xff\xd7", [(0, 30), (4, 31)])  # call rdi
    functions = [hot, cold, middle]
    for function in functions:
        function.register(session, memory, source)
    # mov rax, middle; call rax
    outer = framed("outer", b"\x48\xb8" + struct.pack("<Q", middle.addr) + b"\xff\xd0", [(0, 40), (4, 41)])
    outer.register(session, memory, source)
    functions.append(outer)

    run = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(outer.addr)
    stacks = []

    # Longer where perf takes few samples.
    pace = float(os.environ.get("TEST_PACE", "1"))

    def work(leaf, seconds):
        begin = time.thread_time_ns()
        while time.thread_time_ns() < begin + seconds * pace * 1e9:
            run(leaf.addr)
        stacks.append((leaf.name, time.thread_time_ns() - begin))

    work(hot, 0.5)
    work(cold, 0.3)
    cold.move(memory)
    work(cold, 0.3)
    hot.unregister()
    session.flush(60)

    out = [("pid", os.getpid()), ("source", source), ("arena", f"{memory.addr:x}", memory.size)]
    for name, sink in ("map", jitsym.Sink.MAP), ("jitdump", jitsym.Sink.JITDUMP):
        out.append(("path", name, session.path(sink)))
    for index, function in enumerate(functions):
        out.append(("function", index, function.name, len(function.code)))
        out += [("row", index, offset, line, 1) for offset, line in function.rows]
        out.append(("code", index, function.code.hex()))
        for addr, before, done, gone, how in function.places:
            fields = (f"{addr:x}", len(function.code), before, done, gone, how)
            out.append(("place", index, function.name, *fields))
    for leaf, nanoseconds in stacks:
        out.append(("stack", "main", nanoseconds, leaf, "middle", "outer", "@ffi", "@ctypes", "@python"))
    out += [("stat", name, int(value)) for name, value in dataclasses.asdict(session.stats()).items()]
    session.close()
    for line in [*out, ("end",)]:
        print(*line, sep="\t")


if __name__ == "__main__":
    main()
