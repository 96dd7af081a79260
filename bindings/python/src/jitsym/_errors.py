"""Exceptions: one class for each way in which a caller may want to react, with the exact status in each."""

from __future__ import annotations

import ctypes
from typing import Any

from ._abi import Status


class JitsymError(Exception):
    """A call that failed. It has had no effect."""

    def __init__(self, status: int, name: str, text: str, detail: str = ""):
        super().__init__(f"{text} ({name}){': ' if detail else ''}{detail}")
        try:
            status = Status(status)
        except ValueError:
            pass  # from a newer library
        #: A `Status`.
        self.status = status
        #: Its name in C, for instance "JITSYM_ERR_UNKNOWN_ID".
        self.name = name
        self._arguments: tuple[Any, ...] = (status, name, text, detail)

    def __reduce__(self) -> tuple[Any, ...]:
        # What exceptions do by themselves is to call the class with `args`, which holds the message alone.
        return type(self), self._arguments, self.__dict__


class LibraryNotFound(JitsymError, ImportError):
    """libjitsym.so cannot be loaded."""

    def __init__(self, detail: str):
        super().__init__(Status.ERR_LIBRARY, "JITSYM_ERR_LIBRARY", "no libjitsym", detail)
        self._arguments = (detail,)


class InvalidArgument(JitsymError, ValueError):
    """An argument is refused."""


class ClosedError(JitsymError):
    """The session is closed, or another thread has ended the process."""


class UnknownId(JitsymError, LookupError):
    """The code was unregistered, or newer code was registered over it."""


class TimedOut(JitsymError, TimeoutError):
    """The time allowed ran out; the work goes on in the background."""


class DroppedError(JitsymError):
    """The writer could not keep up."""


class OutOfMemory(JitsymError, MemoryError):
    """There was no memory, or not within `max_memory`."""


class SinkError(JitsymError, OSError):
    """A sink could not be started, cannot write, or does not run."""


class ForkedError(JitsymError):
    """The session belongs to the parent process, and this one cannot go on with it."""


_CLASSES = {
    InvalidArgument: [
        *range(Status.ERR_NULL, Status.ERR_ARCH + 1),
        Status.ERR_PATH,
        Status.ERR_NOT_PLAIN,
        Status.ERR_ALIGNMENT,
        Status.ERR_INLINE,
    ],
    ClosedError: [Status.ERR_SESSION, Status.ERR_CLOSED],
    UnknownId: [Status.ERR_UNKNOWN_ID],
    TimedOut: [Status.ERR_TIMEOUT],
    DroppedError: [Status.ERR_DROPPED],
    OutOfMemory: [Status.ERR_NO_MEMORY],
    SinkError: [Status.ERR_NO_SINK, Status.ERR_SINK_FAILED, Status.ERR_NOT_RUNNING],
    ForkedError: [Status.ERR_FORKED],
}
_BY_STATUS = {status: cls for cls, statuses in _CLASSES.items() for status in statuses}


def error_for(library: ctypes.CDLL, status: int, detail: str = "") -> JitsymError:
    name = library.jitsym_status_name(status).decode()
    text = library.jitsym_status_text(status).decode()
    return _BY_STATUS.get(status, JitsymError)(status, name, text, detail)
