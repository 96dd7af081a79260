"""Finds and loads libjitsym.so."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from pathlib import Path

from . import _abi
from ._errors import LibraryNotFound

_AT_SECURE = 23
_WANTED = "{}.{}".format(*_abi.VERSION)
#: What a wheel has of the library, beside this file.
BUNDLED = Path(__file__).parent / "lib" / f"libjitsym.so.{_WANTED}"


def _given() -> str | None:
    """What `JITSYM_LIB` names, unless the process has the rights of another user than the one who runs it."""
    getauxval = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_ulong)(("getauxval", ctypes.CDLL(None)))
    return None if getauxval(_AT_SECURE) else os.environ.get("JITSYM_LIB")


@functools.cache
def load() -> ctypes.CDLL:
    """The library, from `JITSYM_LIB`, this package or the system's loader; raises LibraryNotFound. A failure is not remembered.

    A CDLL gives the interpreter's lock back for each call, so a call that waits for the writer stops no other thread.
    """
    given = _given()
    bundled = [str(BUNDLED)] if BUNDLED.exists() else []
    names = [given] if given else [*bundled, f"libjitsym.so.{_WANTED}", "libjitsym.so"]
    problems = []
    if not given:
        # A program that contains the library has one already, and a second copy would not know of its sessions.
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"libjitsym.so.{_WANTED}", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            names.insert(0, f"libjitsym.so.{_WANTED}")
    for name in names:
        try:
            library = ctypes.CDLL(name)
            for function, (result, arguments) in _abi.FUNCTIONS.items():
                getattr(library, function).restype = result
                getattr(library, function).argtypes = arguments
        except (OSError, AttributeError) as error:
            problems.append(str(error))
            continue
        number: int = library.jitsym_version_number()
        if (number // 1000000, number // 1000 % 1000) == _abi.VERSION:
            return library
        problems.append(f"{name} is version {_version_text(number)}, not {_WANTED}")
    hint = "" if given else "; the variable JITSYM_LIB may name the file"
    raise LibraryNotFound("; ".join(problems) + hint)


def available() -> bool:
    """Whether the library can be loaded. Without it only what needs it raises LibraryNotFound, not the import."""
    try:
        load()
    except LibraryNotFound:
        return False
    return True


def version() -> str:
    """The version of the library that is running."""
    return _version_text(load().jitsym_version_number())


def _version_text(number: int) -> str:
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
