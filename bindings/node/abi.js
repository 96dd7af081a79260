// The C interface as koffi sees it. A test has the C compiler hold every layout and number against jitsym.h.
'use strict';

const koffi = (() => {
  try {
    return require('koffi');
  } catch (error) {
    if (error.code !== 'MODULE_NOT_FOUND') throw error;
    const remedy = 'npm does not install it for a folder that it links to, but with: npm install --install-links';
    throw Object.assign(new Error(`jitsym needs koffi; ${remedy} ${__dirname}`, { cause: error }), { code: error.code });
  }
})();

/** While the major version is 0, a new minor version may change the interface. */
const VERSION = [0, 1];

const Status = Object.freeze({
  OK: 0,
  ERR_NULL: 1,
  ERR_STRUCT_SIZE: 2,
  ERR_STRUCT_TAIL: 3,
  ERR_FLAGS: 4,
  ERR_ENUM: 5,
  ERR_SIZE_ZERO: 6,
  ERR_ADDRESS_RANGE: 7,
  ERR_TOO_LARGE: 8,
  ERR_LINE_OFFSET: 9,
  ERR_LINE_FILE: 10,
  ERR_UNWIND_ORDER: 11,
  ERR_UNWIND_REGISTER: 12,
  ERR_UNWIND_FORMAT: 13,
  ERR_ARCH: 14,
  ERR_SESSION: 15,
  ERR_CLOSED: 16,
  ERR_UNKNOWN_ID: 17,
  ERR_TIMEOUT: 18,
  ERR_DROPPED: 19,
  ERR_NO_MEMORY: 20,
  ERR_NO_SINK: 21,
  ERR_SINK_FAILED: 22,
  ERR_FORKED: 23,
  ERR_THREAD: 24,
  ERR_CONFLICT: 25,
  ERR_TOO_MANY_SESSIONS: 26,
  ERR_PATH: 27,
  ERR_BUFFER: 28,
  ERR_NOT_RUNNING: 29,
  ERR_BUSY: 30,
  ERR_INTERNAL: 31,
  ERR_WRITER: 32,
  ERR_FORBIDDEN: 33,
  ERR_LIBRARY: 34,
  ERR_NOT_PLAIN: 35,
  ERR_LOCKED: 36,
  ERR_REGION: 37,
  ERR_ALIGNMENT: 38,
  ERR_INLINE: 39,
  ERR_NOT_FOUND: 40,
});

const Sink = Object.freeze({ MAP: 1, JITDUMP: 2, REGION: 4, GDB: 8, UNWINDER: 16, VALGRIND: 32, LOOKUP: 64 });

const Init = Object.freeze({
  ENV_WINS: 1,
  OFF_BY_DEFAULT: 2,
  NO_UNWIND: 4,
  DROP_WHEN_FULL: 32,
  NO_SPOOL: 64,
  RECOVER: 128,
  FORK_NOW: 256,
  FORK_ALONE: 512,
  REMOVE_FILES: 1024,
  REMEMBER: 2048,
  ADOPT: 4096,
  BRIDGE: 8192,
  NO_THREADS: 16384,
});

const Want = Object.freeze({ CODE: 1, LINES: 2, UNWIND: 4, ADOPT: 8, REGION: 16 });

const MapDialect = Object.freeze({ PERF: 0, SIMPLEPERF: 1 });
const UnwindKind = Object.freeze({ NONE: 0, FRAME_POINTER: 1, FIXED_FRAME: 2, ROWS: 3, EH_FRAME: 4 });
const UnwindFlag = Object.freeze({ PACIASP: 1, PACIBSP: 2 });
const CodeFlag = Object.freeze({ STABLE: 1, MORE: 2, GAP: 4 });
const RangeFlag = Object.freeze({ UNMAP: 1 });
const RegionFlag = Object.freeze({ ONE_VIEW: 1, HUGE_PAGES: 2 });
const SpoolState = Object.freeze({ NONE: 0, SHARED: 1 });
const Limit = Object.freeze({ NAME_MAX: 1000, DIR_MAX: 1023, CODE_SIZE_MAX: 2147483647, CODE_GAP_SIZE: 256 });

// By the prefixes of the enumerators' names in C.
const numbers = {
  JITSYM_: { ...Status, ...Limit },
  JITSYM_SINK_: Sink,
  JITSYM_INIT_: Init,
  JITSYM_WANT_: Want,
  JITSYM_MAP_: MapDialect,
  JITSYM_UNWIND_: { ...UnwindKind, ...UnwindFlag },
  JITSYM_CODE_: CodeFlag,
  JITSYM_RANGE_: RangeFlag,
  JITSYM_REGION_: RegionFlag,
  JITSYM_SPOOL_: SpoolState,
};

// Types without names, because koffi has one table of names for the whole program. Fields that an object does not have
// are zero.
const structs = {};
structs.jitsym_options = koffi.struct({
  struct_size: 'size_t',
  sinks: 'uint32_t',
  flags: 'uint32_t',
  map_dir: 'const char *',
  jitdump_dir: 'const char *',
  map_dialect: 'uint32_t',
  file_mode: 'uint32_t',
  max_memory: 'uint64_t',
  max_wait_ms: 'uint32_t',
  reserved: 'uint32_t',
  spool_dir: 'const char *',
  map_max: 'uint64_t',
  jitdump_max: 'uint64_t',
});
structs.jitsym_saved_register = koffi.struct({ reg: 'uint32_t', offset: 'int32_t' });
structs.jitsym_unwind_row = koffi.struct({
  offset: 'uint32_t',
  cfa_reg: 'uint32_t',
  cfa_offset: 'int32_t',
  saved_count: 'uint32_t',
  saved: koffi.pointer(structs.jitsym_saved_register),
});
structs.jitsym_unwind = koffi.struct({
  struct_size: 'size_t',
  kind: 'uint32_t',
  flags: 'uint32_t',
  fp_pushed: 'uint32_t',
  fp_set: 'uint32_t',
  epilogue_begin: 'uint32_t',
  epilogue_end: 'uint32_t',
  cfa_offset: 'int32_t',
  saved_count: 'uint32_t',
  saved: koffi.pointer(structs.jitsym_saved_register),
  saved_from: 'uint32_t',
  row_count: 'uint32_t',
  rows: koffi.pointer(structs.jitsym_unwind_row),
  row_size: 'size_t',
  eh_frame: 'const void *',
  eh_frame_size: 'size_t',
  eh_frame_addr: 'uint64_t',
  sp_set: 'uint32_t',
  sp_reset: 'uint32_t',
});
structs.jitsym_line = koffi.struct({
  offset: 'uint32_t',
  line: 'uint32_t',
  column: 'uint32_t',
  reserved: 'uint32_t',
  file: 'const char *',
});
structs.jitsym_inline = koffi.struct({
  begin: 'uint32_t',
  end: 'uint32_t',
  name: 'const char *',
  name_len: 'size_t',
  call_file: 'const char *',
  call_line: 'uint32_t',
  call_column: 'uint32_t',
  parent: 'uint32_t',
  reserved: 'uint32_t',
});
structs.jitsym_code = koffi.struct({
  struct_size: 'size_t',
  addr: 'uint64_t',
  size: 'uint64_t',
  name: 'const char *',
  name_len: 'size_t',
  bytes: 'const void *',
  unwind: koffi.pointer(structs.jitsym_unwind),
  lines: koffi.pointer(structs.jitsym_line),
  line_count: 'size_t',
  line_size: 'size_t',
  flags: 'uint32_t',
  reserved: 'uint32_t',
  inlines: koffi.pointer(structs.jitsym_inline),
  inline_count: 'size_t',
  inline_size: 'size_t',
  file: 'const char *',
  line: 'uint32_t',
  reserved2: 'uint32_t',
});
structs.jitsym_move_target = koffi.struct({
  struct_size: 'size_t',
  addr: 'uint64_t',
  bytes: 'const void *',
  flags: 'uint32_t',
  reserved: 'uint32_t',
});
structs.jitsym_region_options = koffi.struct({
  struct_size: 'size_t',
  size: 'uint64_t',
  max_size: 'uint64_t',
  alignment: 'uint64_t',
  near_addr: 'uint64_t',
  flags: 'uint32_t',
  reserved: 'uint32_t',
});
// Pointers as numbers: JavaScript cannot use them, but code is registered with them.
structs.jitsym_region = koffi.struct({ struct_size: 'size_t', exec: 'uintptr_t', write: 'uintptr_t', size: 'uint64_t' });
structs.jitsym_stats = koffi.struct({
  struct_size: 'size_t',
  sinks_running: 'uint32_t',
  sinks_failed: 'uint32_t',
  registered: 'uint64_t',
  moved: 'uint64_t',
  unregistered: 'uint64_t',
  overwritten: 'uint64_t',
  live: 'uint64_t',
  dropped: 'uint64_t',
  unreadable: 'uint64_t',
  names_changed: 'uint64_t',
  jitdump_bytes: 'uint64_t',
  jitdump_records: 'uint64_t',
  map_bytes: 'uint64_t',
  map_entries: 'uint64_t',
  map_rewrites: 'uint64_t',
  map_forgotten: 'uint64_t',
  write_errors: 'uint64_t',
  memory: 'uint64_t',
  memory_held: 'uint64_t',
  waited: 'uint64_t',
  recovered: 'uint64_t',
  spool: 'uint32_t',
  inherited: 'uint32_t',
  jitdump_lost: 'uint64_t',
  jitdump_held: 'uint64_t',
  jitdump_rewrites: 'uint64_t',
  map_omitted: 'uint64_t',
  regions: 'uint64_t',
  region_code: 'uint64_t',
  region_bytes: 'uint64_t',
  region_generations: 'uint64_t',
  region_late: 'uint64_t',
  region_refused: 'uint64_t',
  region_left_out: 'uint64_t',
  calls_refused: 'uint64_t',
  region_put_off: 'uint64_t',
  region_limit: 'uint64_t',
  threads: 'uint64_t',
  lines_left_out: 'uint64_t',
});

/** The size that a struct begins with. */
const struct_size = Object.fromEntries(Object.entries(structs).map(([name, type]) => [name, koffi.sizeof(type)]));

const session = 'void *';
const id = 'uint64_t';
const pointer = koffi.pointer;

// Result and arguments of each function.
const functions = {
  jitsym_init: ['int', [pointer(structs.jitsym_options), koffi.out(pointer(session))]],
  jitsym_register: ['int', [session, pointer(structs.jitsym_code), koffi.out(pointer(id))]],
  jitsym_move: ['int', [session, id, pointer(structs.jitsym_move_target)]],
  jitsym_unregister: ['int', [session, id]],
  jitsym_unregister_range: ['int', [session, 'uint64_t', 'uint64_t', 'uint32_t']],
  jitsym_flush: ['int', [session, 'uint32_t']],
  jitsym_enable: ['int', [session, 'uint32_t']],
  jitsym_disable: ['int', [session, 'uint32_t']],
  jitsym_close: ['int', [session]],
  jitsym_get_stats: ['int', [session, koffi.inout(pointer(structs.jitsym_stats))]],
  jitsym_wanted: ['uint32_t', [session]],
  jitsym_last_error: ['int', [session, 'void *', 'size_t']],
  jitsym_path: ['int', [session, 'uint32_t', 'void *', 'size_t']],
  jitsym_region_create: ['int', [session, pointer(structs.jitsym_region_options), koffi.inout(pointer(structs.jitsym_region))]],
  jitsym_region_adopt: ['int', [session, 'uintptr_t', 'uint64_t']],
  jitsym_region_grow: ['int', [session, 'uintptr_t', 'uint64_t']],
  jitsym_region_discard: ['int', [session, 'uintptr_t', 'uint64_t']],
  jitsym_region_release: ['int', [session, 'uintptr_t']],
  jitsym_alloc: ['int', [session, 'uint64_t', 'uint64_t', 'uint64_t', koffi.inout(pointer(structs.jitsym_region))]],
  jitsym_shrink: ['int', [session, 'uintptr_t', 'uint64_t']],
  jitsym_free: ['int', [session, 'uintptr_t']],
  jitsym_trampoline: ['int', [session, 'uintptr_t', 'uint32_t', pointer(structs.jitsym_code), koffi.out(pointer('uintptr_t'))]],
  jitsym_trampoline_free: ['int', [session, 'uintptr_t']],
  jitsym_status_text: ['const char *', ['int32_t']],
  jitsym_status_name: ['const char *', ['int32_t']],
  jitsym_version_number: ['uint32_t', []],
};

module.exports = { VERSION, Status, Sink, Init, Want, MapDialect, UnwindKind, UnwindFlag, CodeFlag, RangeFlag, RegionFlag, SpoolState, Limit, numbers, structs, struct_size, functions };
