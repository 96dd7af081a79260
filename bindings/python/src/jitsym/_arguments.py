"""Arguments from Python to C: ctypes itself cuts integers off, and looks at no length."""

from __future__ import annotations

import ctypes
import numbers
import operator
from typing import Any


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{what} is no number: {value}")  # it would be the address 1
    return operator.index(value)


def unsigned(value: Any, bits: int, what: str) -> int:
    number = _number(value, what)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{what} is not an unsigned number of {bits} bits: {number}")
    return number


def signed(value: Any, what: str) -> int:
    number = _number(value, what)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{what} is not a signed number of 32 bits: {number}")
    return number


def milliseconds(seconds: float | None) -> int:
    """None stands for the library's own limit, which is 0."""
    if seconds is None:
        return 0
    return round(max(min(seconds * 1000, 0xFFFFFFFF), 1))


class _Buffer(ctypes.Structure):
    """`Py_buffer`: ctypes itself gives the address of a buffer only if that can be written to."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


# Not as attributes of `pythonapi`, which belong to the whole program.
_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)(
    ("PyObject_GetBuffer", ctypes.pythonapi)
)
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.POINTER(_Buffer))(("PyBuffer_Release", ctypes.pythonapi))
_PYBUF_SIMPLE = 0


def address_of(data: Any, size: int, keep: list[Any]) -> int | None:
    """Where `size` bytes can be read: `data` is None, an address, or an object with a buffer, a view of which goes to `keep`."""
    if data is None:
        return None
    if isinstance(data, numbers.Integral):
        return unsigned(data, 64, "bytes")
    view = memoryview(data)
    if view.nbytes < size:
        raise ValueError(f"{view.nbytes} bytes are given, {size} are needed")
    buffer = _Buffer()
    _get_buffer(view, buffer, _PYBUF_SIMPLE)
    address: int | None = buffer.buf
    _release_buffer(buffer)
    # The view itself holds the buffer where it is.
    keep.append(view)
    return address
