"""Holds what the package believes of the C interface against the header as cffi reads it, and uses the header by itself.

Usage: header.py FILE, the header without its preprocessor lines. JITSYM_LIB names the library.
"""

import ctypes
import os
import re
import sys

import cffi

from jitsym import _abi

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
ffi = cffi.FFI()
ffi.cdef(text)
lib = ffi.dlopen(os.environ["JITSYM_LIB"])
failures = []


def check(what, ours, theirs):
    if ours != theirs:
        failures.append(f"{what}: {ours} here, {theirs} in the header")


def signed(ctype):
    return int(ffi.cast(ctype, -1)) < 0


SIMPLE = {
    ctypes.c_int32: ("primitive", True),
    ctypes.c_uint32: ("primitive", False),
    ctypes.c_uint64: ("primitive", False),
    ctypes.c_char_p: ("pointer", None),
    ctypes.c_void_p: ("pointer", None),
}


def check_type(what, ours, theirs):
    """Size, kind and sign."""
    check(f"sizeof {what}", ctypes.sizeof(ours), ffi.sizeof(theirs))
    kind, sign = SIMPLE.get(ours, ("pointer", None))
    if theirs.kind == "enum":
        kind, sign = "enum", None
    check(f"kind of {what}", kind, theirs.kind)
    if sign is not None:
        check(f"sign of {what}", sign, signed(theirs))


declared = [ffi.typeof(name) for name in ffi.list_types()[0]]
with_fields = [ctype.cname for ctype in declared if ctype.kind == "struct" and ctype.fields]
# Python has no use for the functions of crash handlers and their structs.
CRASH = {"flush_from_signal", "print_stack", "lookup", "get_registers", "step", "function", "registers"}
CRASH = {f"jitsym_{name}" for name in CRASH}
check("structs", sorted(struct.__name__ for struct in _abi.STRUCTS), sorted(set(with_fields) - CRASH))
for struct in _abi.STRUCTS:
    theirs = dict(ffi.typeof(struct.__name__).fields)
    check(struct.__name__, [field for field, _ in struct._fields_], list(theirs))
    check(f"sizeof {struct.__name__}", ctypes.sizeof(struct), ffi.sizeof(struct.__name__))
    for field, ctype in struct._fields_:
        check(f"{struct.__name__}.{field}", getattr(struct, field).offset, theirs[field].offset)
        check_type(f"{struct.__name__}.{field}", ctype, theirs[field].type)

numbers = {}
for prefix, classes in _abi.NUMBERS.items():
    for cls in classes:
        numbers.update({prefix + name: int(value) for name, value in cls.__members__.items()})
theirs = {}
for name in set(re.findall(r"^\} (jitsym_\w+);", text, re.MULTILINE)):
    if ffi.typeof(name).kind == "enum":
        theirs.update(ffi.typeof(name).relements)
for name in sorted(numbers.keys() | theirs.keys()):
    check(name, numbers.get(name), theirs.get(name))

functions = set(re.findall(r"\b(jitsym_\w+)\(", text)) - CRASH
check("functions", sorted(_abi.FUNCTIONS), sorted(functions))
for name, (result, arguments) in _abi.FUNCTIONS.items():
    theirs = ffi.typeof(getattr(lib, name))
    check_type(f"{name}()", result, theirs.result)
    check(f"arguments of {name}", len(arguments), len(theirs.args))
    for index, (ours, argument) in enumerate(zip(arguments, theirs.args)):
        check_type(f"argument {index} of {name}", ours, argument)

# The header alone: a program that has nothing else.
out = ffi.new("jitsym **")
assert lib.jitsym_init(ffi.NULL, out) == lib.JITSYM_OK
name, data = ffi.new("char[]", b"by cffi"), ffi.new("char[]", 64)
code = ffi.new("jitsym_code *", {"addr": 0x7E0000000000, "size": 64, "name": name, "bytes": data})
code.struct_size = ffi.sizeof("jitsym_code")
assert lib.jitsym_register(out[0], code, ffi.NULL) == lib.JITSYM_OK
assert lib.jitsym_close(out[0]) == lib.JITSYM_OK

if failures:
    sys.exit("\n".join(failures))
print(len(numbers), "enumerators,", len(_abi.STRUCTS), "structs,", len(functions), "functions")
