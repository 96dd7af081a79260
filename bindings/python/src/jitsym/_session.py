"""Sessions, and the code that is registered with them."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import numbers
import operator
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _abi
from ._abi import Init, MapDialect, Sink, SpoolState, Status, Want
from ._arguments import address_of, milliseconds, unsigned
from ._errors import error_for
from ._library import load
from ._unwind import Unwind, described


class Line(NamedTuple):
    """From `offset` on the code belongs to this place in the source. A tuple in the same order will do."""

    offset: int
    line: int
    file: str | bytes | os.PathLike[str]
    column: int = 0


class Inline(NamedTuple):
    """The code from `begin` to `end` is a function that was inlined, and where the call stood that is gone.

    It was inlined into the entry with the index `parent`, or into the function itself.
    """

    begin: int
    end: int
    name: str
    call_file: str | bytes | os.PathLike[str]
    call_line: int
    call_column: int = 0
    parent: int | None = None


@dataclasses.dataclass(frozen=True)
class Stats:
    """The counters of the process; the reference says what each counts."""

    sinks_running: Sink
    sinks_failed: Sink
    registered: int
    moved: int
    unregistered: int
    overwritten: int
    live: int
    dropped: int
    unreadable: int
    names_changed: int
    jitdump_bytes: int
    jitdump_records: int
    map_bytes: int
    map_entries: int
    map_rewrites: int
    map_forgotten: int
    write_errors: int
    memory: int
    memory_held: int
    waited: int
    recovered: int
    spool: SpoolState
    inherited: int
    jitdump_lost: int
    jitdump_held: int
    jitdump_rewrites: int
    map_omitted: int
    regions: int
    region_code: int
    region_bytes: int
    region_generations: int
    region_late: int
    region_refused: int
    region_left_out: int
    calls_refused: int
    region_put_off: int
    region_limit: int
    threads: int
    lines_left_out: int


class Code:
    """A piece of registered code. Nothing happens when the object goes: code is gone when it is unregistered."""

    __slots__ = ("id", "session", "size")

    def __init__(self, session: Session, id: int, size: int):
        self.session = session
        #: Known to all sessions of the process. 0: no sink runs and nothing is remembered, and there is nothing to do.
        self.id = id
        self.size = size

    def move(self, addr: int, bytes: Any = None, *, stable: bool = False) -> None:
        """The code now runs at `addr`. `bytes` and `stable` are as in `Session.register`."""
        if self.id == 0:
            return
        keep: list[Any] = []
        target = _abi.jitsym_move_target(struct_size=ctypes.sizeof(_abi.jitsym_move_target))
        target.addr = unsigned(addr, 64, "addr")
        target.bytes = _code_bytes(bytes, self.size, stable, keep)
        target.flags = _abi.CodeFlag.STABLE if stable else 0
        self.session._call("jitsym_move", self.id, target)

    def unregister(self) -> None:
        """The code is gone: to be called before its memory is used for something else. The second time is harmless."""
        if self.id != 0:
            self.session._call("jitsym_unregister", self.id)
            self.id = 0

    def __repr__(self) -> str:
        return f"<jitsym.Code {self.id} of {self.size} bytes>"


class Region:
    """Code memory that is a mapping of an ELF file. It ends with `release`, and not when the object goes."""

    __slots__ = ("exec", "session", "size", "write")

    def __init__(self, session: Session, exec: int, write: int | None, size: int):
        self.session = session
        #: The address where code runs: the one to register it with.
        self.exec = exec
        #: The address where code is written. None for memory that was adopted, which the program writes to as before.
        self.write = write
        self.size = size

    def put(self, offset: int, code: Any) -> int:
        """Writes code (any object with a buffer) at `offset`, and returns the address where it runs."""
        view = memoryview(code)
        if self.write is None:
            raise ValueError("adopted memory is written to where it is")
        if not 0 <= operator.index(offset) <= self.size - view.nbytes:
            raise ValueError(f"{view.nbytes} bytes at {offset} are not in {self.size}")
        ctypes.memmove(self.write + offset, view.tobytes(), view.nbytes)
        return self.exec + offset

    def grow(self, size: int) -> None:
        """It is `size` bytes large from now on, in whole pages, unless it was larger. Nothing moves."""
        size = unsigned(size, 64, "size")
        self.session._call("jitsym_region_grow", self.exec, size)
        self.size = max(self.size, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)

    def discard(self, offset: int, size: int) -> None:
        """Gives whole pages back, in which no code lives any more. They read zero from now on."""
        if not 0 <= operator.index(offset) <= self.size:
            raise ValueError(f"{offset} is not in {self.size} bytes")
        self.session._call("jitsym_region_discard", self.exec + offset, unsigned(size, 64, "size"))

    def release(self) -> None:
        """Ends it: memory that was created is gone, memory that was adopted is plain memory again. Only once."""
        self.session._call("jitsym_region_release", self.exec)
        self.size = 0

    def __repr__(self) -> str:
        return f"<jitsym.Region of {self.size} bytes at {self.exec:#x}>"


class Piece:
    """Memory for one piece of code, from `Session.alloc`. It ends with `free`, and not when the object goes."""

    __slots__ = ("exec", "session", "size", "write")

    def __init__(self, session: Session, exec: int, write: int, size: int):
        self.session = session
        #: The address where code runs: the one to register it with.
        self.exec = exec
        #: The address where code is written.
        self.write = write
        self.size = size

    def put(self, code: Any) -> int:
        """Writes code (any object with a buffer), and returns the address where it runs."""
        view = memoryview(code)
        if view.nbytes > self.size:
            raise ValueError(f"{view.nbytes} bytes are not in {self.size}")
        ctypes.memmove(self.write, view.tobytes(), view.nbytes)
        return self.exec

    def shrink(self, size: int) -> None:
        """Gives back all but the first `size` bytes, before code is registered there."""
        size = unsigned(size, 64, "size")
        self.session._call("jitsym_shrink", self.exec, size)
        self.size = min(self.size, -(-size // 64) * 64)

    def free(self) -> None:
        """Gives the memory back, and ends the registrations of code in it. Only once."""
        self.session._call("jitsym_free", self.exec)
        self.size = 0

    def __repr__(self) -> str:
        return f"<jitsym.Piece of {self.size} bytes at {self.exec:#x}>"


class Session:
    """An open session. Keyword arguments are the library's options; 0 and None leave the choice to it.

    It ends with `close`, a `with` block, or the process, and not when the object goes. Any thread may use it.
    `adopt` makes memory that code is registered in a region by itself; what is asked for that is said of `adopt_region`.
    """

    def __init__(
        self,
        *,
        sinks: Sink | int = 0,
        flags: Init | int = 0,
        adopt: bool = False,
        map_dir: str | bytes | os.PathLike[str] | None = None,
        jitdump_dir: str | bytes | os.PathLike[str] | None = None,
        spool_dir: str | bytes | os.PathLike[str] | None = None,
        map_dialect: MapDialect | int = MapDialect.PERF,
        file_mode: int = 0,
        max_memory: int = 0,
        max_wait_ms: int = 0,
        map_max: int = 0,
        jitdump_max: int = 0,
    ):
        self._library = load()
        self._closed = False
        options = _abi.jitsym_options(struct_size=ctypes.sizeof(_abi.jitsym_options))
        options.sinks = unsigned(sinks, 32, "sinks")
        options.flags = unsigned(flags, 32, "flags") | (Init.ADOPT if adopt else 0)
        options.map_dir = _path(map_dir)
        options.jitdump_dir = _path(jitdump_dir)
        options.spool_dir = _path(spool_dir)
        options.map_dialect = unsigned(map_dialect, 32, "map_dialect")
        options.file_mode = unsigned(file_mode, 32, "file_mode")
        options.max_memory = unsigned(max_memory, 64, "max_memory")
        options.max_wait_ms = unsigned(max_wait_ms, 32, "max_wait_ms")
        options.map_max = unsigned(map_max, 64, "map_max")
        options.jitdump_max = unsigned(jitdump_max, 64, "jitdump_max")
        handle = ctypes.c_void_p()
        self._handle: int | None = None
        self._check(self._library.jitsym_init(options, handle))
        self._handle = handle.value

    def register(
        self,
        addr: int,
        size: int,
        name: str,
        bytes: Any = None,
        *,
        unwind: Unwind | None = None,
        file: str | bytes | os.PathLike[str] | None = None,
        line: int = 0,
        lines: Iterable[Line | tuple[Any, ...]] = (),
        inlines: Iterable[Inline | tuple[Any, ...]] = (),
        stable: bool = False,
    ) -> Code:
        """Registers code: from now on samples in `size` bytes from `addr` on belong to `name`.

        `bytes` is where the code can be read: an address (which is believed), or any object with a buffer, such as a
        writable mapping of the same memory, or the bytes that were copied there. Without it the library asks the kernel
        to read at `addr`. With `stable` the bytes stay where they are until the code is unregistered, and are not copied now;
        `bytes` is an address then. `inlines` are frames where the code lies in a region. `file` and `line` are where the
        function begins: the end of its name, and its only line without `lines`.
        """
        keep: list[Any] = []
        text = name.encode("utf-8", "surrogatepass")
        code = _abi.jitsym_code(struct_size=ctypes.sizeof(_abi.jitsym_code))
        code.addr = unsigned(addr, 64, "addr")
        code.size = unsigned(size, 64, "size")
        code.name = text
        code.name_len = len(text)
        code.file = _path(file)
        code.line = unsigned(line, 32, "line")
        code.bytes = _code_bytes(bytes, code.size, stable, keep)
        if unwind is not None:
            code.unwind = _abi.unwind_pointer(described(unwind, keep))
        rows = [Line(*row) for row in lines]
        if rows:
            code.lines = _lines(rows)
            code.line_count = len(rows)
            code.line_size = ctypes.sizeof(_abi.jitsym_line)
        entries = [Inline(*entry) for entry in inlines]
        if entries:
            code.inlines = _inlines(entries)
            code.inline_count = len(entries)
            code.inline_size = ctypes.sizeof(_abi.jitsym_inline)
        code.flags = _abi.CodeFlag.STABLE * bool(stable)
        id = ctypes.c_uint64()
        self._call("jitsym_register", code, id)
        return Code(self, id.value, code.size)

    def unregister_range(self, addr: int, size: int, *, unmap: bool = False) -> None:
        """All code that the range touches is gone, whoever has registered it.

        `unmap`: the memory is unmapped next. Until then nobody reads, writes or runs what is there.
        """
        flags = _abi.RangeFlag.UNMAP * bool(unmap)
        self._call("jitsym_unregister_range", unsigned(addr, 64, "addr"), unsigned(size, 64, "size"), flags)

    def create_region(
        self,
        size: int,
        *,
        max_size: int = 0,
        alignment: int = 0,
        near: int = 0,
        one_view: bool = False,
        huge_pages: bool = False,
    ) -> Region:
        """Makes code memory that every profiler which reads ELF files finds names in, with no further step.

        It can grow to `max_size`, begins at a multiple of `alignment`, and can be reached from the address `near` by a
        displacement of 32 bits. With `one_view` code is written where it runs, and the program changes the protection of the
        memory itself. If its file cannot be had it is there all the same, and code in it goes to the other sinks.
        """
        options = _abi.jitsym_region_options(struct_size=ctypes.sizeof(_abi.jitsym_region_options))
        options.size = unsigned(size, 64, "size")
        options.max_size = unsigned(max_size, 64, "max_size")
        options.alignment = unsigned(alignment, 64, "alignment")
        options.near_addr = unsigned(near, 64, "near")
        options.flags = _abi.RegionFlag.ONE_VIEW * bool(one_view) | _abi.RegionFlag.HUGE_PAGES * bool(huge_pages)
        region = _abi.jitsym_region(struct_size=ctypes.sizeof(_abi.jitsym_region))
        self._call("jitsym_region_create", options, region)
        return Region(self, region.exec, region.write, region.size)

    def adopt_region(self, addr: int, size: int) -> Region:
        """Makes memory of the program a region, whole pages of it, with the same bytes and protections.

        During the call no other thread may write to it or change its protection; others may run code there. Memory of an
        `mmap.mmap` has to be private for that (`flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS`).
        """
        addr, size = unsigned(addr, 64, "addr"), unsigned(size, 64, "size")
        self._call("jitsym_region_adopt", addr, size)
        return Region(self, addr, None, size)

    def alloc(self, size: int, *, alignment: int = 0, near: int = 0) -> Piece:
        """Code memory of at least `size` bytes, in a region that the library makes and shares out.

        It begins at a multiple of `alignment`, and can be reached from the address `near` by a displacement of 32 bits.
        """
        piece = _abi.jitsym_region(struct_size=ctypes.sizeof(_abi.jitsym_region))
        size, alignment = unsigned(size, 64, "size"), unsigned(alignment, 64, "alignment")
        self._call("jitsym_alloc", size, alignment, unsigned(near, 64, "near"), piece)
        return Piece(self, piece.exec, piece.write, piece.size)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until all that was registered is in the files; `timeout` in seconds."""
        self._call("jitsym_flush", milliseconds(timeout))

    def enable(self, sinks: Sink | int = 0) -> None:
        """Starts sinks in the running process."""
        self._call("jitsym_enable", unsigned(sinks, 32, "sinks"))

    def disable(self, sinks: Sink | int = 0) -> None:
        """Stops sinks in the running process."""
        self._call("jitsym_disable", unsigned(sinks, 32, "sinks"))

    def stats(self) -> Stats:
        """The counters. `flush` first for exact ones."""
        struct = _abi.jitsym_stats(struct_size=ctypes.sizeof(_abi.jitsym_stats))
        self._call("jitsym_get_stats", struct)
        values = {field.name: getattr(struct, field.name) for field in dataclasses.fields(Stats)}
        for sinks in ("sinks_running", "sinks_failed"):
            values[sinks] = Sink(values[sinks])
        values["spool"] = SpoolState(values["spool"])
        return Stats(**values)

    @property
    def wanted(self) -> Want:
        """What the library wants to be told at present: nothing if a registration would be of no use. Cheap to ask for."""
        return Want(self._library.jitsym_wanted(self._handle))

    def last_error(self) -> str:
        """The text of the last failure of a sink; empty if there was none."""
        buffer = ctypes.create_string_buffer(4096)
        self._call("jitsym_last_error", buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def path(self, sink: Sink) -> str:
        """The file that a sink writes."""
        buffer = ctypes.create_string_buffer(_abi.Limit.DIR_MAX + 64)
        self._call("jitsym_path", unsigned(sink, 32, "sink"), buffer, len(buffer))
        return os.fsdecode(buffer.value)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Writes what is pending. The files stay, to be read after the recording. The second time is harmless."""
        if not self._closed:
            self._closed = True
            self._call("jitsym_close")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: str, *arguments: Any) -> None:
        self._check(getattr(self._library, function)(self._handle, *arguments))

    def _check(self, status: int) -> None:
        if status == Status.OK:
            return
        detail = ""
        if status in (Status.ERR_NO_SINK, Status.ERR_SINK_FAILED):
            # The last failure is that of the process, and can be asked for when this session is closed.
            buffer = ctypes.create_string_buffer(4096)
            if self._library.jitsym_last_error(None, buffer, len(buffer)) == Status.OK:
                detail = buffer.value.decode("utf-8", "replace")
        raise error_for(self._library, status, detail)


def _path(path: Any) -> bytes | None:
    if path is None:
        return None
    text = os.fsencode(path)
    if b"\0" in text:
        raise ValueError("a path with a NUL")
    return text


def _code_bytes(data: Any, size: int, stable: bool, keep: list[Any]) -> int | None:
    if stable and data is not None and not isinstance(data, numbers.Integral):
        raise ValueError("stable code wants the address of its bytes: nobody keeps a buffer")
    return address_of(data, size, keep)


def _lines(rows: list[Line]) -> Any:
    table = (_abi.jitsym_line * len(rows))()
    files: dict[Any, bytes | None] = {}
    for entry, row in zip(table, rows):
        if row.file not in files:
            files[row.file] = _path(row.file)
        entry.offset = unsigned(row.offset, 32, "offset")
        entry.line = unsigned(row.line, 32, "line")
        entry.column = unsigned(row.column, 32, "column")
        entry.file = files[row.file]
    return table


def _inlines(entries: list[Inline]) -> Any:
    table = (_abi.jitsym_inline * len(entries))()
    for struct, entry in zip(table, entries):
        struct.begin = unsigned(entry.begin, 32, "begin")
        struct.end = unsigned(entry.end, 32, "end")
        text = entry.name.encode("utf-8", "surrogatepass")
        struct.name = text
        struct.name_len = len(text)
        struct.call_file = _path(entry.call_file)
        struct.call_line = unsigned(entry.call_line, 32, "call_line")
        struct.call_column = unsigned(entry.call_column, 32, "call_column")
        struct.parent = 0xFFFFFFFF if entry.parent is None else unsigned(entry.parent, 31, "parent")
    return table
