"""How to find the caller's frame: the library's unwind descriptions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from . import _abi
from ._arguments import address_of, signed, unsigned

Saved = Mapping[int, int]


@dataclass(frozen=True)
class FramePointer:
    """Code that keeps a frame pointer. Zeros stand for the usual prologue.

    `saved` maps DWARF register numbers to bytes from the CFA: where the caller's registers are. `flags` is an `UnwindFlag`.
    """

    epilogue_begin: int = 0
    epilogue_end: int = 0
    pushed: int = 0
    set: int = 0
    cfa_offset: int = 0
    saved: Saved = field(default_factory=dict)
    saved_from: int = 0
    flags: int = 0

    def _fill(self, unwind: _abi.jitsym_unwind, keep: list[Any]) -> None:
        unwind.kind = _abi.UnwindKind.FRAME_POINTER
        unwind.flags = unsigned(self.flags, 32, "flags")
        unwind.fp_pushed = unsigned(self.pushed, 32, "pushed")
        unwind.fp_set = unsigned(self.set, 32, "set")
        unwind.epilogue_begin = unsigned(self.epilogue_begin, 32, "epilogue_begin")
        unwind.epilogue_end = unsigned(self.epilogue_end, 32, "epilogue_end")
        unwind.cfa_offset = signed(self.cfa_offset, "cfa_offset")
        unwind.saved_count, unwind.saved = _saved(self.saved)
        unwind.saved_from = unsigned(self.saved_from, 32, "saved_from")


@dataclass(frozen=True)
class FixedFrame:
    """The CFA lies `cfa_offset` bytes above the stack pointer: in all of the code, or from `sp_set` to the epilogue."""

    cfa_offset: int
    saved: Saved = field(default_factory=dict)
    pushed: int = 0
    sp_set: int = 0
    saved_from: int = 0
    sp_reset: int = 0
    epilogue_begin: int = 0
    epilogue_end: int = 0
    flags: int = 0

    def _fill(self, unwind: _abi.jitsym_unwind, keep: list[Any]) -> None:
        unwind.kind = _abi.UnwindKind.FIXED_FRAME
        unwind.flags = unsigned(self.flags, 32, "flags")
        unwind.cfa_offset = signed(self.cfa_offset, "cfa_offset")
        unwind.saved_count, unwind.saved = _saved(self.saved)
        unwind.fp_pushed = unsigned(self.pushed, 32, "pushed")
        unwind.sp_set = unsigned(self.sp_set, 32, "sp_set")
        unwind.saved_from = unsigned(self.saved_from, 32, "saved_from")
        unwind.sp_reset = unsigned(self.sp_reset, 32, "sp_reset")
        unwind.epilogue_begin = unsigned(self.epilogue_begin, 32, "epilogue_begin")
        unwind.epilogue_end = unsigned(self.epilogue_end, 32, "epilogue_end")


@dataclass(frozen=True)
class Row:
    """The whole state from `offset` on: CFA = register `cfa_reg` + `cfa_offset`."""

    offset: int
    cfa_reg: int
    cfa_offset: int
    saved: Saved = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """A table of rows, in rising order."""

    rows: Sequence[Row]

    def _fill(self, unwind: _abi.jitsym_unwind, keep: list[Any]) -> None:
        table = (_abi.jitsym_unwind_row * len(self.rows))()
        for entry, row in zip(table, self.rows):
            entry.offset = unsigned(row.offset, 32, "offset")
            entry.cfa_reg = unsigned(row.cfa_reg, 32, "cfa_reg")
            entry.cfa_offset = signed(row.cfa_offset, "cfa_offset")
            entry.saved_count, entry.saved = _saved(row.saved)
        unwind.kind = _abi.UnwindKind.ROWS
        unwind.row_count = len(table)
        unwind.rows = table
        unwind.row_size = ctypes.sizeof(_abi.jitsym_unwind_row)


@dataclass(frozen=True)
class EhFrame:
    """A ready `.eh_frame` section; `addr` is what its pc-relative pointers count from (0: where `data` is)."""

    data: Any
    addr: int = 0

    def _fill(self, unwind: _abi.jitsym_unwind, keep: list[Any]) -> None:
        size = memoryview(self.data).nbytes
        unwind.kind = _abi.UnwindKind.EH_FRAME
        unwind.eh_frame = address_of(self.data, size, keep)
        unwind.eh_frame_size = size
        unwind.eh_frame_addr = unsigned(self.addr, 64, "addr")


Unwind = Union[FramePointer, FixedFrame, Rows, EhFrame]


def _saved(saved: Saved) -> tuple[int, Any]:
    # A ctypes array that is assigned to a field lives as long as the struct does.
    table = (_abi.jitsym_saved_register * len(saved))()
    for entry, (register, offset) in zip(table, saved.items()):
        entry.reg = unsigned(register, 32, "register")
        entry.offset = signed(offset, "offset")
    return len(table), table


def described(unwind: Unwind, keep: list[Any]) -> _abi.jitsym_unwind:
    """The C struct of a description; `keep` holds what it points to."""
    struct = _abi.jitsym_unwind(struct_size=ctypes.sizeof(_abi.jitsym_unwind))
    unwind._fill(struct, keep)
    return struct
