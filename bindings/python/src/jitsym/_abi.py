"""The C interface as ctypes sees it. A test holds every layout and number against jitsym.h."""

from __future__ import annotations

import enum
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

# While the major version is 0, a new minor version may change the interface.
VERSION = (0, 1)


class Status(enum.IntEnum):
    """What a call came to."""

    OK = 0
    ERR_NULL = 1
    ERR_STRUCT_SIZE = 2
    ERR_STRUCT_TAIL = 3
    ERR_FLAGS = 4
    ERR_ENUM = 5
    ERR_SIZE_ZERO = 6
    ERR_ADDRESS_RANGE = 7
    ERR_TOO_LARGE = 8
    ERR_LINE_OFFSET = 9
    ERR_LINE_FILE = 10
    ERR_UNWIND_ORDER = 11
    ERR_UNWIND_REGISTER = 12
    ERR_UNWIND_FORMAT = 13
    ERR_ARCH = 14
    ERR_SESSION = 15
    ERR_CLOSED = 16
    ERR_UNKNOWN_ID = 17
    ERR_TIMEOUT = 18
    ERR_DROPPED = 19
    ERR_NO_MEMORY = 20
    ERR_NO_SINK = 21
    ERR_SINK_FAILED = 22
    ERR_FORKED = 23
    ERR_THREAD = 24
    ERR_CONFLICT = 25
    ERR_TOO_MANY_SESSIONS = 26
    ERR_PATH = 27
    ERR_BUFFER = 28
    ERR_NOT_RUNNING = 29
    ERR_BUSY = 30
    ERR_INTERNAL = 31
    ERR_WRITER = 32
    ERR_FORBIDDEN = 33
    ERR_LIBRARY = 34
    ERR_NOT_PLAIN = 35
    ERR_LOCKED = 36
    ERR_REGION = 37
    ERR_ALIGNMENT = 38
    ERR_INLINE = 39
    ERR_NOT_FOUND = 40


class Sink(enum.IntFlag):
    """Where symbols can be written."""

    MAP = 1
    JITDUMP = 2
    REGION = 4
    GDB = 8
    UNWINDER = 16
    VALGRIND = 32
    LOOKUP = 64


class Init(enum.IntFlag):
    """Flags of a session; the reference says what each does."""

    ENV_WINS = 1
    OFF_BY_DEFAULT = 2
    NO_UNWIND = 4
    DROP_WHEN_FULL = 32
    NO_SPOOL = 64
    RECOVER = 128
    FORK_NOW = 256
    FORK_ALONE = 512
    REMOVE_FILES = 1024
    REMEMBER = 2048
    ADOPT = 4096
    BRIDGE = 8192
    NO_THREADS = 16384


class Want(enum.IntFlag):
    """What the library wants to be told, as `Session.wanted` returns it."""

    CODE = 1
    LINES = 2
    UNWIND = 4
    ADOPT = 8
    REGION = 16


class MapDialect(enum.IntEnum):
    """Who is to read the perf map."""

    PERF = 0
    SIMPLEPERF = 1


class UnwindKind(enum.IntEnum):
    NONE = 0
    FRAME_POINTER = 1
    FIXED_FRAME = 2
    ROWS = 3
    EH_FRAME = 4


class UnwindFlag(enum.IntFlag):
    """How AArch64 code signs its return address: at most one."""

    PACIASP = 1
    PACIBSP = 2


class CodeFlag(enum.IntFlag):
    STABLE = 1
    MORE = 2
    GAP = 4


class RangeFlag(enum.IntFlag):
    UNMAP = 1


class RegionFlag(enum.IntFlag):
    ONE_VIEW = 1
    HUGE_PAGES = 2


class SpoolState(enum.IntEnum):
    """Whether records on their way to the writer outlive the process."""

    NONE = 0
    SHARED = 1


class Limit(enum.IntEnum):
    NAME_MAX = 1000
    DIR_MAX = 1023
    CODE_SIZE_MAX = 2147483647
    CODE_GAP_SIZE = 256


class jitsym_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("sinks", c_uint32),
        ("flags", c_uint32),
        ("map_dir", c_char_p),
        ("jitdump_dir", c_char_p),
        ("map_dialect", c_uint32),
        ("file_mode", c_uint32),
        ("max_memory", c_uint64),
        ("max_wait_ms", c_uint32),
        ("reserved", c_uint32),
        ("spool_dir", c_char_p),
        ("map_max", c_uint64),
        ("jitdump_max", c_uint64),
    ]


class jitsym_saved_register(Structure):
    _fields_ = [("reg", c_uint32), ("offset", c_int32)]


class jitsym_unwind_row(Structure):
    _fields_ = [
        ("offset", c_uint32),
        ("cfa_reg", c_uint32),
        ("cfa_offset", c_int32),
        ("saved_count", c_uint32),
        ("saved", POINTER(jitsym_saved_register)),
    ]


class jitsym_unwind(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("fp_pushed", c_uint32),
        ("fp_set", c_uint32),
        ("epilogue_begin", c_uint32),
        ("epilogue_end", c_uint32),
        ("cfa_offset", c_int32),
        ("saved_count", c_uint32),
        ("saved", POINTER(jitsym_saved_register)),
        ("saved_from", c_uint32),
        ("row_count", c_uint32),
        ("rows", POINTER(jitsym_unwind_row)),
        ("row_size", c_size_t),
        ("eh_frame", c_void_p),
        ("eh_frame_size", c_size_t),
        ("eh_frame_addr", c_uint64),
        ("sp_set", c_uint32),
        ("sp_reset", c_uint32),
    ]


class jitsym_line(Structure):
    _fields_ = [
        ("offset", c_uint32),
        ("line", c_uint32),
        ("column", c_uint32),
        ("reserved", c_uint32),
        ("file", c_char_p),
    ]


class jitsym_inline(Structure):
    _fields_ = [
        ("begin", c_uint32),
        ("end", c_uint32),
        ("name", c_char_p),
        ("name_len", c_size_t),
        ("call_file", c_char_p),
        ("call_line", c_uint32),
        ("call_column", c_uint32),
        ("parent", c_uint32),
        ("reserved", c_uint32),
    ]


# One type for good: ctypes makes another one when a subinterpreter has imported it.
unwind_pointer = POINTER(jitsym_unwind)


class jitsym_code(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("addr", c_uint64),
        ("size", c_uint64),
        ("name", c_char_p),
        ("name_len", c_size_t),
        ("bytes", c_void_p),
        ("unwind", unwind_pointer),
        ("lines", POINTER(jitsym_line)),
        ("line_count", c_size_t),
        ("line_size", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("inlines", POINTER(jitsym_inline)),
        ("inline_count", c_size_t),
        ("inline_size", c_size_t),
        ("file", c_char_p),
        ("line", c_uint32),
        ("reserved2", c_uint32),
    ]


class jitsym_move_target(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("addr", c_uint64),
        ("bytes", c_void_p),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class jitsym_region_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("size", c_uint64),
        ("max_size", c_uint64),
        ("alignment", c_uint64),
        ("near_addr", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class jitsym_region(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("exec", c_void_p),
        ("write", c_void_p),
        ("size", c_uint64),
    ]


class jitsym_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("sinks_running", c_uint32),
        ("sinks_failed", c_uint32),
        ("registered", c_uint64),
        ("moved", c_uint64),
        ("unregistered", c_uint64),
        ("overwritten", c_uint64),
        ("live", c_uint64),
        ("dropped", c_uint64),
        ("unreadable", c_uint64),
        ("names_changed", c_uint64),
        ("jitdump_bytes", c_uint64),
        ("jitdump_records", c_uint64),
        ("map_bytes", c_uint64),
        ("map_entries", c_uint64),
        ("map_rewrites", c_uint64),
        ("map_forgotten", c_uint64),
        ("write_errors", c_uint64),
        ("memory", c_uint64),
        ("memory_held", c_uint64),
        ("waited", c_uint64),
        ("recovered", c_uint64),
        ("spool", c_uint32),
        ("inherited", c_uint32),
        ("jitdump_lost", c_uint64),
        ("jitdump_held", c_uint64),
        ("jitdump_rewrites", c_uint64),
        ("map_omitted", c_uint64),
        ("regions", c_uint64),
        ("region_code", c_uint64),
        ("region_bytes", c_uint64),
        ("region_generations", c_uint64),
        ("region_late", c_uint64),
        ("region_refused", c_uint64),
        ("region_left_out", c_uint64),
        ("calls_refused", c_uint64),
        ("region_put_off", c_uint64),
        ("region_limit", c_uint64),
        ("threads", c_uint64),
        ("lines_left_out", c_uint64),
    ]


STRUCTS = (
    jitsym_options,
    jitsym_saved_register,
    jitsym_unwind_row,
    jitsym_unwind,
    jitsym_line,
    jitsym_inline,
    jitsym_code,
    jitsym_move_target,
    jitsym_region_options,
    jitsym_region,
    jitsym_stats,
)

# By the prefixes of the enumerators' names in C.
NUMBERS = {
    "JITSYM_": (Status, Limit),
    "JITSYM_SINK_": (Sink,),
    "JITSYM_INIT_": (Init,),
    "JITSYM_WANT_": (Want,),
    "JITSYM_MAP_": (MapDialect,),
    "JITSYM_UNWIND_": (UnwindKind, UnwindFlag),
    "JITSYM_CODE_": (CodeFlag,),
    "JITSYM_RANGE_": (RangeFlag,),
    "JITSYM_REGION_": (RegionFlag,),
    "JITSYM_SPOOL_": (SpoolState,),
}

_session = c_void_p
_id = c_uint64

# Result and arguments of each function.
FUNCTIONS = {
    "jitsym_init": (c_int, [POINTER(jitsym_options), POINTER(_session)]),
    "jitsym_register": (c_int, [_session, POINTER(jitsym_code), POINTER(_id)]),
    "jitsym_move": (c_int, [_session, _id, POINTER(jitsym_move_target)]),
    "jitsym_unregister": (c_int, [_session, _id]),
    "jitsym_unregister_range": (c_int, [_session, c_uint64, c_uint64, c_uint32]),
    "jitsym_flush": (c_int, [_session, c_uint32]),
    "jitsym_enable": (c_int, [_session, c_uint32]),
    "jitsym_disable": (c_int, [_session, c_uint32]),
    "jitsym_close": (c_int, [_session]),
    "jitsym_get_stats": (c_int, [_session, POINTER(jitsym_stats)]),
    "jitsym_wanted": (c_uint32, [_session]),
    "jitsym_last_error": (c_int, [_session, c_void_p, c_size_t]),
    "jitsym_path": (c_int, [_session, c_uint32, c_void_p, c_size_t]),
    "jitsym_region_create": (c_int, [_session, POINTER(jitsym_region_options), POINTER(jitsym_region)]),
    "jitsym_region_adopt": (c_int, [_session, c_void_p, c_uint64]),
    "jitsym_region_grow": (c_int, [_session, c_void_p, c_uint64]),
    "jitsym_region_discard": (c_int, [_session, c_void_p, c_uint64]),
    "jitsym_region_release": (c_int, [_session, c_void_p]),
    "jitsym_alloc": (c_int, [_session, c_uint64, c_uint64, c_uint64, POINTER(jitsym_region)]),
    "jitsym_shrink": (c_int, [_session, c_void_p, c_uint64]),
    "jitsym_free": (c_int, [_session, c_void_p]),
    "jitsym_trampoline": (c_int, [_session, c_void_p, c_uint32, POINTER(jitsym_code), POINTER(c_void_p)]),
    "jitsym_trampoline_free": (c_int, [_session, c_void_p]),
    "jitsym_status_text": (c_char_p, [c_int32]),
    "jitsym_status_name": (c_char_p, [c_int32]),
    "jitsym_version_number": (c_uint32, []),
}
