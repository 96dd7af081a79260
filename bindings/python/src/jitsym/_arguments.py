"""Arguments from Python to C: ctypes itself cuts integers off, and looks at no length."""

from __future__ import annotations

import ctypes
import numbers
import operator
from typing import Any


def unsigned(value: Any, bits: int, what: str) -> int:
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{what} is not an unsigned number of {bits} bits: {number}")
    return number


def signed(value: Any, what: str) -> int:
    number = operator.index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{what} is not a signed number of 32 bits: {number}")
    return number


def milliseconds(seconds: float | None) -> int:
    """None stands for the library's own limit, which is 0."""
    if seconds is None:
        return 0
    return max(1, min(round(seconds * 1000), 0xFFFFFFFF))


def address_of(data: Any, size: int, keep: list[Any]) -> int | None:
    """Where `size` bytes can be read: `data` is None, an address, or an object with a buffer, which goes to `keep`."""
    if data is None:
        return None
    if isinstance(data, numbers.Integral):
        return unsigned(data, 64, "bytes")
    view = memoryview(data)
    if view.nbytes < size:
        raise ValueError(f"{view.nbytes} bytes are given, {size} are needed")
    if view.readonly and not isinstance(data, bytes):
        data = bytes(view)
    if isinstance(data, bytes):
        keep.append(data)
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    array = (ctypes.c_char * view.nbytes).from_buffer(data)
    keep.append(array)
    return ctypes.addressof(array)
