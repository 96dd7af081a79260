"""Two functions of LLVM that llvmlite compiles, which then burn in turn for so many seconds. A module that was compiled before them
is gone by then.

usage: llvm.py SECONDS
"""
import ctypes
import os
import sys
import time

import llvmlite.binding as llvm

from bridged import until_named

print("pid", os.getpid(), flush=True)
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


def way(name):
    """The leaf is called, and pushes registers, so that nobody finds its caller without tables."""
    return f"""
define internal i64 @{name}_leaf(i64 %n) noinline uwtable {{
entry: br label %l
l: %i = phi i64 [0, %entry], [%i2, %l]
 %a = phi i64 [1, %entry], [%a2, %l]
 call void asm sideeffect "", "~{{rbx}},~{{r12}},~{{r13}}"()
 %m = mul i64 %a, 6364136223846793005
 %a2 = add i64 %m, %i
 %i2 = add i64 %i, 1
 %c = icmp ult i64 %i2, %n
 br i1 %c, label %l, label %x
x: ret i64 %a2
}}
define i64 @{name}_outer(i64 %n) noinline uwtable {{
 %r = call i64 @{name}_leaf(i64 %n)
 %s = add i64 %r, 1
 ret i64 %s
}}"""


def compiled(text):
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.enable_jit_events()
    engine.finalize_object()
    return engine


def function(engine, name):
    return ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(engine.get_function_address(name))


gone = compiled(way("gone"))
function(gone, "gone_outer")(1000)
gone.close()
engine = compiled(way("first") + way("second"))
first, second = function(engine, "first_outer"), function(engine, "second_outer")
until_named("second_")
end = time.time() + float(sys.argv[1])
while time.time() < end:
    first(2_000_000)
    second(2_000_000)
