/*
 * libjitsym: makes JIT-compiled code visible to perf and other profilers, debuggers, valgrind and unwinders.
 *
 *   jitsym *session;
 *   if (jitsym_init(NULL, &session) == JITSYM_OK) {
 *       jitsym_code code = JITSYM_CODE(entry, length, "my_function");
 *       code.bytes = entry;
 *       jitsym_register(session, &code, NULL);
 *       // ... it runs ...
 *       jitsym_close(session);
 *   }
 *
 * Functions that can fail return a jitsym_status. Output arguments come last and are written only on success. A call
 * that fails has no effect; a function's description names exceptions. Set struct_size to the sizeof of its struct,
 * and every field that you do not use to 0. A pointer must be NULL, or valid as its description requires. A call
 * copies its input before it returns, except for code with JITSYM_CODE_STABLE.
 *
 * jitsym_region.h has calls for code memory in which every profiler finds names. jitsym_control.h has calls for
 * sinks at run time, crash handlers and paths. docs/reference.md and the manual pages describe each item in full.
 * docs/conventions.md has the rules for all calls.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_H
#define JITSYM_H

/* Generated from src/capi by `JITSYM_UPDATE_HEADER=1 cargo test --test tests header`. Do not edit. */

#include <stddef.h>
#include <stdint.h>

#ifndef JITSYM_API
#define JITSYM_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ----------------------------------------------------------------------------------------------------- */

#define JITSYM_VERSION_MAJOR 0
#define JITSYM_VERSION_MINOR 1
#define JITSYM_VERSION_PATCH 0
#define JITSYM_VERSION_NUMBER \
  (JITSYM_VERSION_MAJOR * 1000000 + JITSYM_VERSION_MINOR * 1000 + JITSYM_VERSION_PATCH)

/* The version of the running library: major * 1000000 + minor * 1000 + patch. JITSYM_VERSION_NUMBER is the header's
   version.
   Any thread, and from a signal handler. */
JITSYM_API uint32_t jitsym_version_number(void);

/* ---- Results ----------------------------------------------------------------------------------------------------- */

/* The result of a call. */
typedef enum jitsym_status {
  JITSYM_OK = 0,                     /* Done. */
  JITSYM_ERR_NULL = 1,               /* A required pointer is NULL. */
  JITSYM_ERR_STRUCT_SIZE = 2,        /* A struct_size, or the size of an element, is smaller than in version 0.1. */
  JITSYM_ERR_STRUCT_TAIL = 3,        /* A struct has nonzero bytes after the known fields, or exceeds 4096 bytes. */
  JITSYM_ERR_FLAGS = 4,              /* An unknown flag bit, a nonzero reserved field, or a file mode above 0777. */
  JITSYM_ERR_ENUM = 5,               /* An enum has an unknown value. */
  JITSYM_ERR_SIZE_ZERO = 6,          /* The size of the code or range is 0. */
  JITSYM_ERR_ADDRESS_RANGE = 7,      /* Address plus size exceeds the address space, or the address of code is 0. */
  JITSYM_ERR_TOO_LARGE = 8,          /* A size or alignment exceeds the limit of the function or record. */
  JITSYM_ERR_LINE_OFFSET = 9,        /* A line table row has an offset outside the code. */
  JITSYM_ERR_LINE_FILE = 10,         /* A line table row has no file name. */
  JITSYM_ERR_UNWIND_ORDER = 11,      /* Unwind offsets lie outside the code or are not in order. */
  JITSYM_ERR_UNWIND_REGISTER = 12,   /* An unwind description names an unsuitable register. */
  JITSYM_ERR_UNWIND_FORMAT = 13,     /* An unwind description cannot be converted into unwind tables. */
  JITSYM_ERR_ARCH = 14,              /* Unwind descriptions are not supported on this architecture. */
  JITSYM_ERR_SESSION = 15,           /* This session was never opened. */
  JITSYM_ERR_CLOSED = 16,            /* The session is closed, or another thread is ending the process. */
  JITSYM_ERR_UNKNOWN_ID = 17,        /* No code with this id is registered now. */
  JITSYM_ERR_TIMEOUT = 18,           /* The wait was too long. The operation continues in the background. */
  JITSYM_ERR_DROPPED = 19,           /* The writer could not keep up, and the record was dropped. */
  JITSYM_ERR_NO_MEMORY = 20,         /* Memory is short, or jitsym_options.max_memory is too small. */
  JITSYM_ERR_NO_SINK = 21,           /* No requested sink could start. jitsym_last_error(NULL, ...) gives the reason. */
  JITSYM_ERR_SINK_FAILED = 22,       /* A sink failed and lacks some code. jitsym_last_error gives the reason. */
  JITSYM_ERR_FORKED = 23,            /* This forked child cannot continue its parent's session. */
  JITSYM_ERR_THREAD = 24,            /* The background thread could not start. */
  JITSYM_ERR_CONFLICT = 25,          /* A running sink has another directory or dialect than requested. */
  JITSYM_ERR_TOO_MANY_SESSIONS = 26, /* All session handles are in use. */
  JITSYM_ERR_PATH = 27,              /* A directory's path is too long or not absolute. */
  JITSYM_ERR_BUFFER = 28,            /* The buffer is too small for the result. */
  JITSYM_ERR_NOT_RUNNING = 29,       /* The requested sink does not run, or no sink runs. */
  JITSYM_ERR_BUSY = 30,              /* The calling signal handler has interrupted another call of its thread. */
  JITSYM_ERR_INTERNAL = 31,          /* A bug in the library. The session does nothing from now on. */
  JITSYM_ERR_WRITER = 32,            /* The call came from the writer, or from a signal handler that may have
                                        interrupted the writer. */
  JITSYM_ERR_FORBIDDEN = 33,         /* The variable JITSYM_LATE forbids enabling sinks at run time. */
  JITSYM_ERR_LIBRARY = 34,           /* The shared library is missing or has another ABI (only with jitsym_dl.h). */
  JITSYM_ERR_NOT_PLAIN = 35,         /* The memory cannot be adopted: a part is shared or belongs to a file. */
  JITSYM_ERR_LOCKED = 36,            /* No memory is adopted while the process has locked memory (mlock, mlockall). */
  JITSYM_ERR_REGION = 37,            /* No region or jitsym_alloc memory is at the address. For jitsym_region_adopt:
                                        the address is already in a region. */
  JITSYM_ERR_ALIGNMENT = 38,         /* A value is no multiple of the page size, or an alignment is no power of two. */
  JITSYM_ERR_INLINE = 39,            /* An entry of jitsym_code.inlines is invalid. */
  JITSYM_ERR_NOT_FOUND = 40,         /* No registered code is at the address, or a frame has no caller. */
} jitsym_status;

/* An English sentence for any status, known or unknown. The string is static, never NULL.
   Any thread, concurrently, and from a signal handler. */
JITSYM_API const char *jitsym_status_text(int32_t status);

/* The name of a status, such as "JITSYM_OK", or "JITSYM_?" if unknown. The string is static, never NULL.
   Any thread, concurrently, and from a signal handler. */
JITSYM_API const char *jitsym_status_name(int32_t status);

/* ---- Sessions ---------------------------------------------------------------------------------------------------- */

/* Threads: any thread may call any function at any time. A signal handler may call only functions whose description
   allows this. The process becomes multi-threaded, because the library starts two threads. So a signal handler must
   not call fork: if the handler interrupted malloc, glibc's fork deadlocks on malloc's locks. */

/* A session. The handle is a number, not an address, so calls refuse a closed or wrong handle. */
typedef struct jitsym jitsym;

/* The forms in which symbols are written, as bit flags. */
typedef enum jitsym_sink {
  JITSYM_SINK_MAP = 1,       /* perf-PID.map: names for perf report, bpftrace, samply, blazesym. */
  JITSYM_SINK_JITDUMP = 2,   /* jit-PID.dump, for jitsym inject and perf: names with times, code, lines, call stacks. */
  JITSYM_SINK_REGION = 4,    /* ELF files of regions (jitsym_region.h): names, lines, call stacks in every profiler. */
  JITSYM_SINK_GDB = 8,       /* Objects in memory for gdb and lldb. The sink starts by itself if a debugger listens. */
  JITSYM_SINK_UNWINDER = 16, /* The process's unwinder. C++ exceptions, backtrace and pthread_exit can unwind through
                                registered code. */
  JITSYM_SINK_VALGRIND = 32, /* valgrind's tools: names, lines, call stacks. The sink starts by itself, only under
                                valgrind. */
  JITSYM_SINK_LOOKUP = 64,   /* Memory for jitsym_lookup, jitsym_step and jitsym_print_stack (jitsym_control.h). */
} jitsym_sink;

/* Bit flags of a session. */
typedef enum jitsym_init_flag {
  JITSYM_INIT_ENV_WINS = 1,        /* The environment takes precedence over the options. */
  JITSYM_INIT_OFF_BY_DEFAULT = 2,  /* If sinks is 0, start only the sinks that JITSYM names. */
  JITSYM_INIT_NO_UNWIND = 4,       /* Write no unwinding records to the jitdump (ddprof stops at them). */
  JITSYM_INIT_DROP_WHEN_FULL = 32, /* When memory for records is full, drop records without waiting. */
  JITSYM_INIT_NO_SPOOL = 64,       /* Keep records in private memory. After SIGKILL, unwritten records are lost. */
  JITSYM_INIT_RECOVER = 128,       /* Complete the files of killed processes first, as jitsym recover does. */
  JITSYM_INIT_FORK_NOW = 256,      /* fork writes all code to the child's files. */
  JITSYM_INIT_FORK_ALONE = 512,    /* A forked child inherits nothing. Excludes JITSYM_INIT_FORK_NOW. */
  JITSYM_INIT_REMOVE_FILES = 1024, /* Remove the files at the last close or at exit. */
  JITSYM_INIT_REMEMBER = 2048,     /* Remember live code while no sink runs, for jitsym_enable. */
  JITSYM_INIT_ADOPT = 4096,        /* Private executable memory becomes a region when code is registered in it. */
  JITSYM_INIT_BRIDGE = 8192,       /* Also register the code that other libraries (LLVM, wasmtime) report to gdb. */
  JITSYM_INIT_NO_THREADS = 16384,  /* Start no thread in this process and its children: calls write pending records. */
} jitsym_init_flag;

/* The options of a session. NULL, or a struct with only struct_size set, selects the defaults. */
typedef struct jitsym_options {
  size_t struct_size;      /* sizeof(jitsym_options). */
  uint32_t sinks;          /* JITSYM_SINK_* bits. 0: the sinks in JITSYM, or map, jitdump, region if JITSYM is unset. */
  uint32_t flags;          /* JITSYM_INIT_* bits. */
  const char *map_dir;     /* Absolute directory of the perf map. NULL: JITSYM_DIR, else /tmp. */
  const char *jitdump_dir; /* Absolute directory of jitdump and regions. NULL: JITSYM_DIR, else JITDUMPDIR, else
                              /tmp. */
  uint32_t map_dialect;    /* One of JITSYM_MAP_* (jitsym_control.h). */
  uint32_t file_mode;      /* Permission bits of files before the umask, at most 0777. 0 means 0644. */
  uint64_t max_memory;     /* Bound in bytes for pending records, 1 MiB to 16 GiB. 0 means 64 MiB. */
  uint32_t max_wait_ms;    /* Milliseconds that a call waits if memory for records is full. 0 means 10. */
  uint32_t reserved;       /* Must be 0. */
  const char *spool_dir;   /* Absolute directory of the spool. NULL: JITSYM_SPOOL_DIR, else /dev/shm. */
  uint64_t map_max;        /* Largest perf map in bytes, from 4096. 0 means JITSYM_MAP_MAX, or no limit if that is
                              unset. */
  uint64_t jitdump_max;    /* Largest jitdump in bytes, from 65536. 0 means JITSYM_JITDUMP_MAX, or no limit if that
                              is unset. */
} jitsym_options;

#define JITSYM_OPTIONS \
  { sizeof(jitsym_options), 0, 0, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, 0 }

/* Opens a session. The first session also starts the sinks, and the thread that writes their files. The call
   succeeds if at least one sink starts; jitsym_get_stats and jitsym_last_error report failed sinks.
   Returns JITSYM_OK; JITSYM_ERR_NULL, _STRUCT_SIZE, _STRUCT_TAIL, _FLAGS, _ENUM, _PATH for bad options;
   JITSYM_ERR_CONFLICT, also if the variable JITSYM_LATE forbids a later session's sinks; JITSYM_ERR_TIMEOUT if a
   disk blocks opening or closing sessions or enabling sinks for 10 seconds; JITSYM_ERR_NO_SINK, _NO_MEMORY, _THREAD,
   _TOO_MANY_SESSIONS. Does file I/O. */
JITSYM_API jitsym_status jitsym_init(const jitsym_options *options, jitsym **out);

/* Fork: a child continues its parent's sessions and ids. Its first call (except jitsym_close and jitsym_wanted)
   makes separate files. Two seconds later, the library adds the parent's code to these files; jitsym_flush does not
   wait for this code. fork waits for the library 75 milliseconds at most, 1 second more while memory is adopted or the
   library lacks a processor, and for the child's copy of code memory (jitsym_region.h). In a child that cannot continue
   its parent's sessions, calls return JITSYM_ERR_FORKED, and jitsym_init opens a new session. */

/* Waits until everything registered before the call is in the files. timeout_ms: the longest wait in milliseconds; 0
   means 10 seconds. Call this before _exit and exec, which run no exit handlers.
   Returns JITSYM_OK; JITSYM_ERR_SINK_FAILED if a sink cannot start or write (other sinks are up to date);
   JITSYM_ERR_TIMEOUT, _NO_MEMORY, _SESSION, _CLOSED, _FORKED. */
JITSYM_API jitsym_status jitsym_flush(jitsym *session, uint32_t timeout_ms);

/* Process end: exit writes pending records, for 20 seconds at most. Once exit has begun, calls of other threads return
   JITSYM_ERR_CLOSED or JITSYM_ERR_TIMEOUT. After _exit, abort or a signal, pending records are in the spool. The
   command jitsym recover completes the files from the spool. */

/* Writes everything registered, and closes a session. The files stay. Code stays registered while another session is
   open. The last close ends the background thread.
   Returns JITSYM_OK; JITSYM_ERR_TIMEOUT after 10 seconds, or JITSYM_ERR_SINK_FAILED (the session is closed anyway);
   JITSYM_ERR_SESSION, also for NULL; JITSYM_ERR_CLOSED, _FORKED. */
JITSYM_API jitsym_status jitsym_close(jitsym *session);

/* ---- Unwinding --------------------------------------------------------------------------------------------------- */

/* How to find the caller's frame. */
typedef enum jitsym_unwind_kind {
  JITSYM_UNWIND_NONE = 0,          /* Unknown: readers guess. */
  JITSYM_UNWIND_FRAME_POINTER = 1, /* A frame pointer, as in C code compiled with -fno-omit-frame-pointer. */
  JITSYM_UNWIND_FIXED_FRAME = 2,   /* The CFA is a fixed number of bytes above the stack pointer. */
  JITSYM_UNWIND_ROWS = 3,          /* A table of rows. */
  JITSYM_UNWIND_EH_FRAME = 4,      /* An .eh_frame section that the compiler made. */
} jitsym_unwind_kind;

/* Flags of an unwind description. At most one may be set. */
typedef enum jitsym_unwind_flag {
  JITSYM_UNWIND_PACIASP = 1, /* FRAME_POINTER, FIXED_FRAME on aarch64: paciasp signs the return address. */
  JITSYM_UNWIND_PACIBSP = 2, /* Like JITSYM_UNWIND_PACIASP, but with key B: pacibsp and autibsp. */
} jitsym_unwind_flag;

/* Where a register of the caller is saved: at CFA + offset. */
typedef struct jitsym_saved_register {
  uint32_t reg;   /* DWARF register number (x86-64: rbx is 3, rbp is 6, rsp is 7, r12 to r15 are 12 to 15). */
  int32_t offset; /* Offset from the CFA in bytes: a multiple of the size of an address, usually negative. */
} jitsym_saved_register;

/* One row of JITSYM_UNWIND_ROWS: the whole state from offset up to the next row. */
typedef struct jitsym_unwind_row {
  uint32_t offset;                           /* Offset in the code in bytes, higher than in the row before. */
  uint32_t cfa_reg;                          /* DWARF number of the register from which the CFA is computed. */
  int32_t cfa_offset;                        /* CFA = register + this many bytes. */
  uint32_t saved_count;                      /* Number of entries of saved. */
  const struct jitsym_saved_register *saved; /* Registers saved in this state. */
} jitsym_unwind_row;

/* An unwind description. The library reads only the fields that belong to kind. A field for the end of an
   instruction is an offset from the start of the code, in bytes. */
typedef struct jitsym_unwind {
  size_t struct_size;                        /* sizeof(jitsym_unwind). */
  uint32_t kind;                             /* One of JITSYM_UNWIND_*. */
  uint32_t flags;                            /* 0, or one of JITSYM_UNWIND_PACI*. */
  uint32_t fp_pushed;                        /* FRAME_POINTER, FIXED_FRAME: where push rbp or stp x29, x30, [sp,
                                                #-n]! ends. */
  uint32_t fp_set;                           /* FRAME_POINTER: the end of mov rbp, rsp, which sets the frame pointer. */
  uint32_t epilogue_begin;                   /* FRAME_POINTER, FIXED_FRAME: where pop rbp or leave ends. 0: no
                                                epilogue. */
  uint32_t epilogue_end;                     /* FRAME_POINTER, FIXED_FRAME: where the return instruction ends. 0: the
                                                code's end. */
  int32_t cfa_offset;                        /* FIXED_FRAME: CFA = SP + this. FRAME_POINTER: CFA = FP + this. */
  uint32_t saved_count;                      /* FRAME_POINTER, FIXED_FRAME: number of entries of saved. */
  const struct jitsym_saved_register *saved; /* FRAME_POINTER, FIXED_FRAME: the saved registers. */
  uint32_t saved_from;                       /* From this offset in the code on, the registers in saved are saved. 0
                                                means fp_set or sp_set. */
  uint32_t row_count;                        /* ROWS: number of entries of rows. */
  const struct jitsym_unwind_row *rows;      /* ROWS: the table. */
  size_t row_size;                           /* sizeof(jitsym_unwind_row); 0 stands for the size in version 0.1. */
  const void *eh_frame;                      /* EH_FRAME: the section's bytes. */
  size_t eh_frame_size;                      /* EH_FRAME: the section's size in bytes. */
  uint64_t eh_frame_addr;                    /* EH_FRAME: the section's own address, for its pc-relative pointers. 0
                                                means eh_frame. */
  uint32_t sp_set;                           /* FIXED_FRAME: where sub rsp, n ends. 0: the frame exists from the
                                                start. */
  uint32_t sp_reset;                         /* FIXED_FRAME: end of the add rsp, n before pop rbp. 0: no such add. */
} jitsym_unwind;

/* ---- Code -------------------------------------------------------------------------------------------------------- */

/* Limits, in bytes. */
typedef enum jitsym_limit {
  JITSYM_NAME_MAX = 1000,            /* The longest name of code. A longer name is cut. */
  JITSYM_DIR_MAX = 1023,             /* The longest directory, without the terminating NUL. */
  JITSYM_CODE_SIZE_MAX = 2147483647, /* The largest code: 2 GiB - 1, minus the size of its unwind tables. */
  JITSYM_CODE_GAP_SIZE = 256,        /* The free bytes after code with JITSYM_CODE_GAP. */
} jitsym_limit;

/* One row of a line table. The code from offset up to the next row belongs to this line. */
typedef struct jitsym_line {
  uint32_t offset;   /* Offset in the code in bytes, below the code's size. Rows may be in any order. */
  uint32_t line;     /* Line number, from 1. A row with line 0 is left out (jitsym_stats.lines_left_out). */
  uint32_t column;   /* Column, from 1; 0 if unknown. */
  uint32_t reserved; /* Must be 0. */
  const char *file;  /* Source file, NUL-terminated; preferably an absolute path, for perf annotate. */
} jitsym_line;

/* Bit flags of a piece of code. */
typedef enum jitsym_code_flag {
  JITSYM_CODE_STABLE = 1, /* The call does not copy the bytes: keep them until a flush, move or unregistration. */
  JITSYM_CODE_MORE = 2,   /* The host registers more code before this code runs, so the call waits for no sink. */
  JITSYM_CODE_GAP = 4,    /* While this code is live, the next JITSYM_CODE_GAP_SIZE bytes have no other code. */
} jitsym_code_flag;

struct jitsym_inline;

/* One piece of code. Every field except struct_size, addr and size may be 0. */
typedef struct jitsym_code {
  size_t struct_size;                  /* sizeof(jitsym_code). */
  uint64_t addr;                       /* Address at which the code runs. */
  uint64_t size;                       /* Size in bytes, 1 to JITSYM_CODE_SIZE_MAX. */
  const char *name;                    /* Name in UTF-8: cleaned, never refused. NULL or empty: jit_ADDRESS. */
  size_t name_len;                     /* Length of name in bytes; 0 if a NUL ends name. */
  const void *bytes;                   /* size readable bytes of code, at addr or in a writable view. NULL: the bytes
                                          at addr. */
  const struct jitsym_unwind *unwind;  /* How to unwind; NULL if unknown. */
  const struct jitsym_line *lines;     /* Line table; may be NULL if line_count is 0. */
  size_t line_count;                   /* Number of entries of lines. */
  size_t line_size;                    /* sizeof(jitsym_line); 0 stands for the size in version 0.1. */
  uint32_t flags;                      /* JITSYM_CODE_* bits. */
  uint32_t reserved;                   /* Must be 0. */
  const struct jitsym_inline *inlines; /* Inlined functions (jitsym_region.h); may be NULL if inline_count is 0. */
  size_t inline_count;                 /* Number of entries of inlines. */
  size_t inline_size;                  /* sizeof(jitsym_inline); 0 stands for the size in version 0.1. */
  const char *file;                    /* File where the function begins, NUL-terminated; NULL if unknown. */
  uint32_t line;                       /* Line in file, from 1; 0 if unknown. */
  uint32_t reserved2;                  /* Must be 0. */
} jitsym_code;

/* Initialisers for C and C++: they set the size and the fields that are arguments. All other fields are 0. */
#ifdef __cplusplus
/* A form of cast that -Wold-style-cast allows. */
#define JITSYM_CAST(type, value) type(value)
#else
#define JITSYM_CAST(type, value) ((type)(value))
#endif
#define JITSYM_CODE(addr, size, name)                                                                               \
  { sizeof(jitsym_code), JITSYM_CAST(uintptr_t, addr), JITSYM_CAST(uint64_t, size), (name), 0, NULL, NULL, NULL, 0, \
    0, 0, 0, NULL, 0, 0, NULL, 0, 0 }
#define JITSYM_UNWIND(kind) \
  { sizeof(jitsym_unwind), JITSYM_CAST(uint32_t, kind), 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, NULL, 0, 0, 0, 0 }
#define JITSYM_MOVE_TARGET(addr) \
  { sizeof(jitsym_move_target), JITSYM_CAST(uintptr_t, addr), NULL, 0, 0 }

/* Identifies one registration. A valid id is not 0, and is unique in a process. */
typedef uint64_t jitsym_id;

/* Registers code: from now on, samples in [addr, addr + size) belong to name. Call this when the bytes are final and
   before the code runs. Earlier code that overlaps this range ends. The id is written to out_id, which may be NULL.
   If no sink runs and no code is remembered (JITSYM_INIT_REMEMBER), the id is 0, and code is not read.
   Returns JITSYM_OK; a status for the fault in code; JITSYM_ERR_DROPPED, _NO_MEMORY, _SESSION, _CLOSED, _FORKED,
   _BUSY; for some sinks JITSYM_ERR_TIMEOUT, _SINK_FAILED. If code->bytes is set, the call takes no lock and makes no
   system call in the steady state. */
JITSYM_API jitsym_status jitsym_register(jitsym *session, const jitsym_code *code, jitsym_id *out_id);

/* The new address of code that has moved. */
typedef struct jitsym_move_target {
  size_t struct_size; /* sizeof(jitsym_move_target). */
  uint64_t addr;      /* Address at which the code runs now. The size stays the same. */
  const void *bytes;  /* The code's bytes at the new address; see jitsym_code.bytes. */
  uint32_t flags;     /* JITSYM_CODE_STABLE, JITSYM_CODE_GAP, both or 0. */
  uint32_t reserved;  /* Must be 0. */
} jitsym_move_target;

/* Reports that code now runs at another address. The code keeps its id, name, lines and unwind description. Call
   this after the bytes are copied and before the code runs there.
   Returns JITSYM_ERR_UNKNOWN_ID; a status for the fault in target; or a status of jitsym_register. */
JITSYM_API jitsym_status jitsym_move(jitsym *session, jitsym_id id, const jitsym_move_target *target);

/* Reports that code is no longer in use. Call this before the code's memory is freed or overwritten.
   Returns JITSYM_ERR_UNKNOWN_ID if no code has this id, for example because newer code overwrote it; or a status of
   jitsym_register. */
JITSYM_API jitsym_status jitsym_unregister(jitsym *session, jitsym_id id);

/* Bit flags of a range of code. */
typedef enum jitsym_range_flag {
  JITSYM_RANGE_UNMAP = 1, /* The caller unmaps the memory next (munmap). */
} jitsym_range_flag;

/* Unregisters all sessions' code that has any byte in [addr, addr + size). A range without code is no error. flags:
   0 or JITSYM_RANGE_UNMAP.
   Returns JITSYM_ERR_FLAGS, JITSYM_ERR_SIZE_ZERO, JITSYM_ERR_ADDRESS_RANGE; or a status of jitsym_register. */
JITSYM_API jitsym_status jitsym_unregister_range(jitsym *session, uint64_t addr, uint64_t size, uint32_t flags);

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/* The result of jitsym_wanted: bit flags for information that sinks can use. Later versions may have more flags. */
typedef enum jitsym_want {
  JITSYM_WANT_CODE = 1,    /* Code. Without this bit no other bit is set, and jitsym_register does nothing. */
  JITSYM_WANT_LINES = 2,   /* jitsym_code.lines. */
  JITSYM_WANT_UNWIND = 4,  /* jitsym_code.unwind. */
  JITSYM_WANT_ADOPT = 8,   /* The library adopts code memory. During a call, only the calling thread may write to
                              code memory. */
  JITSYM_WANT_REGION = 16, /* Memory from jitsym_region_create and jitsym_alloc has a file. */
} jitsym_want;

/* Reports which information is useful now, for all sessions: JITSYM_WANT_* bits. 0: registering is useless. Call
   this before each registration, because jitsym_enable and jitsym_disable change the result.
   Any thread, concurrently, and from a signal handler. The call takes no lock and makes no system call. */
JITSYM_API uint32_t jitsym_wanted(jitsym *session);

/* Copies a description of the last failure of a sink or jitsym_init, or of this thread's last call with bad
   arguments, to buf. The NUL-terminated text is cut to fit, and is empty if nothing failed. session may be NULL.
   Returns JITSYM_OK; JITSYM_ERR_NULL; JITSYM_ERR_BUFFER if size is 0; JITSYM_ERR_SESSION, _CLOSED, _FORKED. */
JITSYM_API jitsym_status jitsym_last_error(jitsym *session, char *buf, size_t size);

/* Counters of this process over all sessions. A forked child begins with 0. */
typedef struct jitsym_stats {
  size_t struct_size;          /* sizeof(jitsym_stats), set by the caller: at most this many bytes are written. */
  uint32_t sinks_running;      /* JITSYM_SINK_* bits of the sinks that run and can write. */
  uint32_t sinks_failed;       /* Bits of sinks that could not start, or cannot write now. */
  uint64_t registered;         /* Registrations that reached the writer. */
  uint64_t moved;              /* Moves that reached the writer. */
  uint64_t unregistered;       /* Pieces of code unregistered by id or by range. */
  uint64_t overwritten;        /* Pieces of code that newer code overwrote. */
  uint64_t live;               /* Live pieces of code. */
  uint64_t dropped;            /* Records dropped because the writer could not keep up. */
  uint64_t unreadable;         /* Registrations and moves with unreadable bytes. */
  uint64_t names_changed;      /* Names that were cleaned or cut. */
  uint64_t jitdump_bytes;      /* Bytes written to the jitdump after its header. */
  uint64_t jitdump_records;    /* Code records written to the jitdump. */
  uint64_t map_bytes;          /* Bytes written to the perf map, rewrites included. */
  uint64_t map_entries;        /* Entries in the perf map. */
  uint64_t map_rewrites;       /* Rewrites of the perf map. */
  uint64_t map_forgotten;      /* Entries of dead code that the perf map omitted because of jitsym_options.map_max. */
  uint64_t write_errors;       /* Write errors of all sinks. */
  uint64_t memory;             /* Bytes of records on their way to the writer. */
  uint64_t memory_held;        /* Bytes held for pending records, in use or not; at most jitsym_options.max_memory. */
  uint64_t waited;             /* Records that waited because jitsym_options.max_memory was reached. */
  uint64_t recovered;          /* Records that JITSYM_INIT_RECOVER wrote to files of killed processes. */
  uint32_t spool;              /* One of JITSYM_SPOOL_* (jitsym_control.h). */
  uint32_t inherited;          /* Pieces of code that this forked child inherited; not counted in registered. */
  uint64_t jitdump_lost;       /* Records that could not be written to the jitdump. */
  uint64_t jitdump_held;       /* Bytes of records that wait because the jitdump cannot be written. */
  uint64_t jitdump_rewrites;   /* Rewrites of the jitdump. */
  uint64_t map_omitted;        /* Entries of live code that the perf map omits now. */
  uint64_t regions;            /* Regions that have a file now. */
  uint64_t region_code;        /* Registrations and moves written to regions' files. */
  uint64_t region_bytes;       /* Bytes written to regions' files, earlier generations included. */
  uint64_t region_generations; /* How often a region's file got a new name, to separate new code from dead code. */
  uint64_t region_late;        /* Generations that began late or not at all. Samples may then have wrong names or
                                  stacks. */
  uint64_t region_refused;     /* Regions that got no file, and memory that could not be adopted. */
  uint64_t region_left_out;    /* Names, unwind tables and line tables without room in a region's file now. */
  uint64_t calls_refused;      /* Calls refused for bad arguments (jitsym_last_error). */
  uint64_t region_put_off;     /* How often the adoption of memory was postponed. */
  uint64_t region_limit;       /* How often making or adopting a region failed because 768 regions existed. */
  uint64_t threads;            /* Permanent threads of this library. Under JITSYM_INIT_NO_THREADS, only the bridge's. */
  uint64_t lines_left_out;     /* Rows of line tables that were left out (jitsym_line). */
} jitsym_stats;

#define JITSYM_STATS \
  { sizeof(jitsym_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Copies the counters to out. For exact numbers, call jitsym_flush first.
   Returns JITSYM_OK; JITSYM_ERR_NULL, _STRUCT_SIZE, _SESSION, _CLOSED, _FORKED. */
JITSYM_API jitsym_status jitsym_get_stats(jitsym *session, jitsym_stats *out);

#ifdef __cplusplus
}
#endif

#endif /* JITSYM_H */
