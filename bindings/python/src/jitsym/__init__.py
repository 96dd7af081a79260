"""JIT-compiled code made visible to perf and other profilers, through libjitsym.

    with jitsym.Session() as session:
        code = session.register(addr, size, "my_function", bytes=addr)
        ...
        code.unregister()

What each call promises is in the library's reference; this package passes on what it answers.
"""

from ._abi import Init, MapDialect, Sink, SpoolState, Status, UnwindFlag, Want
from ._errors import (
    ClosedError,
    DroppedError,
    ForkedError,
    InvalidArgument,
    JitsymError,
    LibraryNotFound,
    OutOfMemory,
    SinkError,
    TimedOut,
    UnknownId,
)
from ._library import available, version
from ._session import Code, Inline, Line, Piece, Region, Session, Stats
from ._unwind import EhFrame, FixedFrame, FramePointer, Row, Rows, Unwind

__version__ = "0.1.0"

__all__ = [
    "ClosedError",
    "Code",
    "DroppedError",
    "EhFrame",
    "FixedFrame",
    "ForkedError",
    "FramePointer",
    "Init",
    "Inline",
    "InvalidArgument",
    "JitsymError",
    "LibraryNotFound",
    "Line",
    "MapDialect",
    "OutOfMemory",
    "Piece",
    "Region",
    "Row",
    "Rows",
    "Session",
    "Sink",
    "SinkError",
    "SpoolState",
    "Stats",
    "Status",
    "TimedOut",
    "UnknownId",
    "Unwind",
    "UnwindFlag",
    "Want",
    "available",
    "version",
]
