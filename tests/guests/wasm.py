"""Two ways through functions of WebAssembly that wasmtime compiles, which then burn in turn for so many seconds.

usage: wasm.py SECONDS (vtune | debug)
"""
import os
import sys
import time

import wasmtime

from bridged import until_named

print("pid", os.getpid(), flush=True)
config = wasmtime.Config()
if sys.argv[2] == "vtune":
    config.profiler = "vtune"
else:
    config.debug_info = True
engine = wasmtime.Engine(config)
store = wasmtime.Store(engine)


def way(name):
    return f"""
 (func ${name}_leaf (param $n i64) (result i64) (local $a i64)
  (loop $l
   (local.set $a (i64.add (i64.mul (local.get $a) (i64.const 6364136223846793005)) (local.get $n)))
   (local.set $n (i64.sub (local.get $n) (i64.const 1)))
   (br_if $l (i64.gt_s (local.get $n) (i64.const 0))))
  (local.get $a))
 (func ${name}_middle (param i64) (result i64) (i64.add (call ${name}_leaf (local.get 0)) (i64.const 1)))
 (func ${name}_outer (export "{name}") (param i64) (result i64)
  (i64.add (call ${name}_middle (local.get 0)) (i64.const 1)))"""


module = wasmtime.Module(engine, f"(module {way('first')} {way('second')})")
exports = wasmtime.Instance(store, module, []).exports(store)
until_named("second_")
end = time.time() + float(sys.argv[1])
while time.time() < end:
    exports["first"](store, 2_000_000)
    exports["second"](store, 2_000_000)
