/*
 * libjitsym: JIT-compiled code made visible to perf and other profilers.
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
 * Conventions. Functions that can fail return a jitsym_status; outputs come last and are written only on success; a call
 * that fails has no effect. Every struct starts with its size, so that it can grow: set it to sizeof, and every field that
 * you do not use to 0. Input is copied before the call returns (but see JITSYM_CODE_STABLE). Integers go in, enumerators
 * come out: an unknown number is refused with a status.
 *
 * Threads. Every function may be called by any thread at any time. None may be called from a signal handler unless its
 * description says so. The library starts two threads with the first session that writes or remembers, or with jitsym_enable:
 * one writes, in its own descriptor table, and one sleeps. They take no signals but those of their own faults (SIGSEGV,
 * SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS). They make the process one with threads: a signal handler that has interrupted the
 * allocator must not call fork, which glibc has wait for the allocator's locks then.
 *
 * Stack. A call that registers, moves, unregisters, flushes or asks needs up to 24 KiB of its thread's stack. Each other call needs up
 * to 32 KiB. The loader may need more for the first call of a function, unless the program is linked with `-z now`.
 *
 * Processes. After fork the parent goes on undisturbed. The child goes on with its parent's sessions and ids: its first call
 * with a session other than jitsym_close (or jitsym_init) makes files of the child's own, in which all code is that was live
 * at the fork, and a background thread; with JITSYM_INIT_FORK_NOW fork does that itself. A child that makes no
 * such call leaves nothing. For this, fork waits until the library is at rest, usually for some tens of microseconds; it goes
 * on after 75 milliseconds at most. If the library was not at rest then, or its handlers did not run (a raw clone system call,
 * a signal handler that forks while its thread is in the library), calls on an inherited session return JITSYM_ERR_FORKED
 * and touch nothing, as they always do with JITSYM_INIT_FORK_ALONE; jitsym_init then begins with empty files. (Calls for which
 * there is nothing to do, because no sink runs, return JITSYM_OK.) If none of the child's sinks can start, because a descriptor
 * or a thread is missing, calls return JITSYM_ERR_SINK_FAILED and change nothing. jitsym_flush, jitsym_enable and jitsym_init try
 * again, other calls after 0.1 to 10 seconds. A child of vfork may call nothing here, as elsewhere.
 *
 * The shared library is never unloaded (dlclose leaves it in place), nor is a plugin with the static one inside after a
 * session that writes, or that asks for the bridge, was opened in it.
 *
 * Process end. At an exit with a session open (exit, return from main, quick_exit, or the end of the program's last thread)
 * what is pending is written, which takes 20 seconds at most. Time in which the process is stopped does not count. After that,
 * only the exiting thread can still write, by calling flush or close in a later exit handler. Other threads are told so: what they
 * register is refused with JITSYM_ERR_CLOSED, and flushing and closing return JITSYM_ERR_TIMEOUT at once, so that the end of the
 * process finds no record half written. After any other end (_exit, abort, an uncaught exception, a signal) what was pending is in the spool, for the
 * command `jitsym recover`, unless a crash handler calls jitsym_flush_from_signal.
 *
 * The library prints nothing, installs no signal handler, and does nothing when it is loaded but to remember to write at
 * exit, and to look at the lists of debuggers if the variable JITSYM has the word bridge. Nothing that fails in it ends the process, not even a process that is out of memory, unless one call
 * needs more than 1 MiB of it in small pieces.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */


#ifndef JITSYM_H
#define JITSYM_H

/* Generated from src/capi by `JITSYM_UPDATE_HEADER=1 cargo test --test tests header`. Do not edit. */

#include <stddef.h>
#include <stdint.h>
#define JITSYM_VERSION_MAJOR 0
#define JITSYM_VERSION_MINOR 1
#define JITSYM_VERSION_PATCH 0
#define JITSYM_VERSION_NUMBER \
  (JITSYM_VERSION_MAJOR * 1000000 + JITSYM_VERSION_MINOR * 1000 + JITSYM_VERSION_PATCH)

#ifndef JITSYM_API
#define JITSYM_API extern
#endif

#ifdef __cplusplus
/* The form of a cast that -Wold-style-cast allows. */
#define JITSYM_CAST(type, value) type(value)
#else
#define JITSYM_CAST(type, value) ((type)(value))
#endif

/*
 * Initialisers for C and C++. A struct that is defined with one has its size, what is named here, and 0 in all other fields. The
 * address of the code is a pointer or a number.
 */
#define JITSYM_CODE(addr, size, name)                                                                          \
  {                                                                                                            \
    sizeof(jitsym_code), JITSYM_CAST(uintptr_t, addr), JITSYM_CAST(uint64_t, size), (name), 0, NULL, NULL, NULL, 0, \
        0, 0, 0, 0, NULL, 0, 0, NULL, 0, 0                                                                     \
  }
#define JITSYM_UNWIND(kind) \
  { sizeof(jitsym_unwind), JITSYM_CAST(uint32_t, kind), 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, NULL, 0, 0, 0, 0 }
#define JITSYM_MOVE_TARGET(addr) \
  { sizeof(jitsym_move_target), JITSYM_CAST(uintptr_t, addr), NULL, 0, 0, 0 }
#define JITSYM_OPTIONS \
  { sizeof(jitsym_options), 0, 0, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, 0 }
#define JITSYM_REGION_OPTIONS(size) \
  { sizeof(jitsym_region_options), JITSYM_CAST(uint64_t, size), 0, 0, 0, 0, 0 }
#define JITSYM_REGION \
  { sizeof(jitsym_region), NULL, NULL, 0 }
#define JITSYM_STATS \
  { sizeof(jitsym_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }



/**
 * The result of a call. Every function that can fail returns one of these.
 *
 * `JITSYM_OK` is 0 and every failure is positive. The numbers never change their meaning. A call that does not return
 * `JITSYM_OK` has had no effect on what was registered before, and has written none of its outputs. (`JITSYM_ERR_CLOSED` from
 * a call that ran while its session was closed leaves open whether the record was still written.)
 */
typedef enum jitsym_status {
  /**
   * Done.
   */
  JITSYM_OK = 0,
  /**
   * A pointer that must not be NULL is NULL.
   */
  JITSYM_ERR_NULL = 1,
  /**
   * A `struct_size` (or an element size) is smaller than that of the first version of the struct.
   */
  JITSYM_ERR_STRUCT_SIZE = 2,
  /**
   * A struct is larger than this library knows, and the part that it does not know is not all zero; or its size is above
   * 4096, which is taken for garbage.
   */
  JITSYM_ERR_STRUCT_TAIL = 3,
  /**
   * A flag bit that this library does not know is set, a reserved field is not zero, or a file mode is above 0777.
   */
  JITSYM_ERR_FLAGS = 4,
  /**
   * A field or argument that takes an enumerator holds a number that is none.
   */
  JITSYM_ERR_ENUM = 5,
  /**
   * The size of the code, or of the range, is 0.
   */
  JITSYM_ERR_SIZE_ZERO = 6,
  /**
   * Address plus size (plus free bytes) does not fit the address space; or the address of code is 0, where none can lie.
   */
  JITSYM_ERR_ADDRESS_RANGE = 7,
  /**
   * The code is larger than `JITSYM_CODE_SIZE_MAX` (2 GiB - 1), or the record exceeds the format's limit.
   */
  JITSYM_ERR_TOO_LARGE = 8,
  /**
   * A line table entry lies outside the code.
   */
  JITSYM_ERR_LINE_OFFSET = 9,
  /**
   * A line table entry has no file name, or line number 0.
   */
  JITSYM_ERR_LINE_FILE = 10,
  /**
   * Offsets in an unwind description lie outside the code or are not in order.
   */
  JITSYM_ERR_UNWIND_ORDER = 11,
  /**
   * An unwind description names a register that the architecture does not have, or counts the CFA from one that holds no
   * address.
   */
  JITSYM_ERR_UNWIND_REGISTER = 12,
  /**
   * An unwind description cannot be expressed: `.eh_frame` bytes that do not parse or say nothing of the code, a stack offset
   * that is not a multiple of 8, or two places for one register.
   */
  JITSYM_ERR_UNWIND_FORMAT = 13,
  /**
   * Unwind descriptions are not supported on this architecture.
   */
  JITSYM_ERR_ARCH = 14,
  /**
   * This session was never opened.
   */
  JITSYM_ERR_SESSION = 15,
  /**
   * This session is closed, or was closed while the call ran, or another thread has ended the process.
   */
  JITSYM_ERR_CLOSED = 16,
  /**
   * No code with this id is registered: the id was never given out, or its code was unregistered or overwritten.
   */
  JITSYM_ERR_UNKNOWN_ID = 17,
  /**
   * The time allowed ran out; the work goes on in the background. A call that makes, changes or ends code memory has changed
   * nothing: another such call has taken more than 10 seconds, because its disk hangs.
   */
  JITSYM_ERR_TIMEOUT = 18,
  /**
   * The writer could not keep up and the record was dropped. It is counted in `jitsym_stats.dropped`.
   */
  JITSYM_ERR_DROPPED = 19,
  /**
   * Memory was not available, or the code is larger than `jitsym_options.max_memory` allows.
   */
  JITSYM_ERR_NO_MEMORY = 20,
  /**
   * No requested sink could be started; `jitsym_last_error` with a NULL session gives the reason.
   */
  JITSYM_ERR_NO_SINK = 21,
  /**
   * A sink failed, so that not all registered code is in its file; `jitsym_last_error` gives the reason.
   */
  JITSYM_ERR_SINK_FAILED = 22,
  /**
   * The session belongs to the parent process, and this process cannot continue it. It was forked with
   * `JITSYM_INIT_FORK_ALONE`, by a raw system call, by a signal handler that interrupted this library, or while the writer was
   * at work and did not become quiescent in time. `jitsym_init` opens a new session.
   */
  JITSYM_ERR_FORKED = 23,
  /**
   * The background thread could not be started.
   */
  JITSYM_ERR_THREAD = 24,
  /**
   * Another session of this process is open that writes to other directories, in another dialect, or not to a sink that
   * this one asks for.
   */
  JITSYM_ERR_CONFLICT = 25,
  /**
   * All session handles are in use.
   */
  JITSYM_ERR_TOO_MANY_SESSIONS = 26,
  /**
   * A directory is not an absolute path, or too long.
   */
  JITSYM_ERR_PATH = 27,
  /**
   * The buffer is too small for the result.
   */
  JITSYM_ERR_BUFFER = 28,
  /**
   * The sink that was asked about is not running, or none is.
   */
  JITSYM_ERR_NOT_RUNNING = 29,
  /**
   * The call was made from a signal handler that interrupted another call of the same thread.
   */
  JITSYM_ERR_BUSY = 30,
  /**
   * The library failed in a way that it should not have; the process goes on, the session does nothing more.
   */
  JITSYM_ERR_INTERNAL = 31,
  /**
   * `jitsym_flush_from_signal` was called on the library's own thread: no thread is left that could write. Records that are
   * not in the files are in the spool; `jitsym recover` completes the files when the process has ended.
   */
  JITSYM_ERR_WRITER = 32,
  /**
   * The variable `JITSYM_LATE` forbids to enable sinks at run time.
   */
  JITSYM_ERR_FORBIDDEN = 33,
  /**
   * From `jitsym_dl.h` alone: the shared library was not found, or is of a version with another ABI; `jitsym_last_error` with
   * a NULL session gives the reason.
   */
  JITSYM_ERR_LIBRARY = 34,
  /**
   * Memory cannot be adopted as a region because not all of it is private memory without a file: it is shared, mapped from a
   * file, a heap or a stack, or not mapped.
   */
  JITSYM_ERR_NOT_PLAIN = 35,
  /**
   * Memory cannot be adopted as a region because the process has locked memory (`mlock`, `mlockall`), which a region would not
   * be.
   */
  JITSYM_ERR_LOCKED = 36,
  /**
   * There is no region at this address; or, for a new one, there is one already; or regions of this kind cannot do that. Or
   * `jitsym_alloc` has handed out no memory that begins there.
   */
  JITSYM_ERR_REGION = 37,
  /**
   * An address or size is no multiple of the size of a page, or an alignment no power of two.
   */
  JITSYM_ERR_ALIGNMENT = 38,
  /**
   * An entry of `jitsym_code.inlines` has an empty range, one that is not within that of its parent (or of the code), or one
   * that shares bytes with another entry of the same parent. Or its parent does not come before it, or it lacks a name, or the
   * file or line of the call.
   */
  JITSYM_ERR_INLINE = 39,
} jitsym_status;

/**
 * Limits, in bytes.
 */
typedef enum jitsym_limit {
  /**
   * The longest function name kept. A longer one is cut, and ends in `~` and eight hexadecimal digits that are computed from
   * the whole name, so that names that differ only after the cut stay different.
   */
  JITSYM_NAME_MAX = 1000,
  /**
   * The longest directory, without the terminating NUL.
   */
  JITSYM_DIR_MAX = 1023,
  /**
   * The largest code size. With an unwind description it is smaller by the size of the tables.
   */
  JITSYM_CODE_SIZE_MAX = 2147483647,
} jitsym_limit;

/**
 * Where symbols can be written. Bits, to be combined.
 */
typedef enum jitsym_sink {
  /**
   * The perf map `perf-PID.map`: names for `perf report` with no further step, bpftrace, samply, blazesym.
   */
  JITSYM_SINK_MAP = 1,
  /**
   * The jitdump `jit-PID.dump`: names over time, code bytes, source lines and call stacks, for `perf inject --jit`. If
   * another library in the process has a file of that name, the number has zeros before it, which perf reads as well.
   */
  JITSYM_SINK_JITDUMP = 2,
  /**
   * The ELF files (`jit-PID-N.so`, `jitted-PID-rN.so`) that regions of code memory are mappings of (`jitsym_region_create`,
   * `jitsym_region_adopt`, `JITSYM_INIT_ADOPT`), in the directory of the jitdump: names, lines and call stacks in every
   * profiler, with no further step. Code that is registered in a region goes to its file, and not to map and jitdump. Without
   * regions this sink does nothing.
   */
  JITSYM_SINK_REGION = 4,
  /**
   * Objects in memory that gdb and lldb read through `__jit_debug_descriptor`, also those of a core file: names, lines, inlined
   * functions and call stacks of code that lives, in regions or not. Not among the sinks that run where nobody says which: it
   * runs by itself (unless the variable `JITSYM_GDB` is `0`) where a debugger listens and any other sink runs, and, for at most
   * 8192 live functions, where a jitdump or a region is written. While nobody listens and nobody has asked for it, it is not
   * among `jitsym_stats.sinks_running`.
   */
  JITSYM_SINK_GDB = 8,
  /**
   * The unwinder of the process (libgcc, or LLVM libunwind): C++ exceptions and `backtrace` pass through code that has an unwind
   * description, in regions or not, and so does what runs when a thread is cancelled or calls `pthread_exit`. Not among the
   * sinks that run where nobody says which. While it runs, a call that registers, moves or ends code returns when the unwinder knows
   * that. The call tells libgcc 13 and later and LLVM libunwind itself, if the sink was not enabled late. Otherwise it waits until
   * the library's thread has told the unwinder.
   */
  JITSYM_SINK_UNWINDER = 16,
  /**
   * valgrind: callgrind, memcheck and the others show names, lines and call stacks of code that lives. It runs by itself in a process
   * that valgrind runs, whenever a session is open, unless the variable `JITSYM_VALGRIND` is `0` or `JITSYM` turns everything off; in
   * any other process it cannot run. While it runs, a call that registers, moves or ends code waits until valgrind knows, and
   * there are no regions with files: `JITSYM_SINK_REGION` does not run.
   */
  JITSYM_SINK_VALGRIND = 32,
} jitsym_sink;

/**
 * Flags of a session. Bits, to be combined.
 */
typedef enum jitsym_init_flag {
  /**
   * The environment decides what the options say too. Without this flag the options win where they are not 0 or NULL.
   */
  JITSYM_INIT_ENV_WINS = 1,
  /**
   * With `sinks` 0: no sink unless the variable `JITSYM` names one. Without this flag, map, jitdump and region.
   */
  JITSYM_INIT_OFF_BY_DEFAULT = 2,
  /**
   * Write no unwinding records to the jitdump. One reader (ddprof) stops at the first one.
   */
  JITSYM_INIT_NO_UNWIND = 4,
  /**
   * When the writer cannot keep up and all memory allowed is full, drop records at once instead of waiting first.
   */
  JITSYM_INIT_DROP_WHEN_FULL = 32,
  /**
   * Keep records on their way to the writer in private memory, not in a spool: what is not written yet when the process is
   * killed is lost.
   */
  JITSYM_INIT_NO_SPOOL = 64,
  /**
   * Before anything else, complete the files of this user's processes that were killed, from the spools that they left, as the
   * command `jitsym recover` does.
   */
  JITSYM_INIT_RECOVER = 128,
  /**
   * A forked child takes over its parent's sessions and live code, and makes its files, before `fork` returns in it, and not
   * with its first call. Every child pays for that, also one that only executes another program.
   */
  JITSYM_INIT_FORK_NOW = 256,
  /**
   * A forked child takes over nothing: calls on its parent's sessions return `JITSYM_ERR_FORKED`, and `jitsym_init` begins
   * with empty files. Not together with `JITSYM_INIT_FORK_NOW`. The options of the session that has started the sinks decide.
   */
  JITSYM_INIT_FORK_ALONE = 512,
  /**
   * Remove map, jitdump and the files of regions when the last session closes, or when the process exits with one open. For files
   * that are read while the process lives: `perf report` finds no names afterwards, and `perf inject` gives up altogether if a jitdump is
   * missing that was there during the recording. A process that is killed leaves its files (`jitsym clean` removes them).
   */
  JITSYM_INIT_REMOVE_FILES = 1024,
  /**
   * Remember live code, so that `jitsym_enable` can write it when it starts a sink: with its lines and unwind tables, but not
   * its bytes, which are read at its address then. Without a sink registering then costs as much as with one, and live code
   * takes memory (docs/design.md gives figures), as long as any session is open. The variable `JITSYM_LATE` can forbid it, or
   * ask for it.
   */
  JITSYM_INIT_REMEMBER = 2048,
  /**
   * Code that is registered in private executable memory which is not known becomes the beginning of a region: the mapping
   * that it lies in is adopted, as by `jitsym_region_adopt`. Memory that is not executable yet is adopted by a later call that
   * registers, moves or unregisters code. The calling thread must be the only one that writes to such memory, or changes its
   * protection, during these calls; others may execute it. The kernel makes one mapping of neighbouring
   * memory with the same protection, so this applies to every writer of code in the process. If there are others, adopt your
   * own range by `jitsym_region_adopt`, or create regions. Memory that cannot be adopted is left as it is, and looked at again
   * later. The options of the session that has started the sinks decide. The variable `JITSYM_ADOPT` can ask for it, which turns
   * a session on that is off by default, or forbid it.
   */
  JITSYM_INIT_ADOPT = 4096,
  /**
   * Code that other libraries in the process tell gdb of (`__jit_debug_descriptor`: LLVM, wasmtime) is registered too,
   * with names, lines and unwind tables, from this session on until the process ends. A thread looks at their lists every few
   * milliseconds. The options of the first session with this flag decide where it is written, unless other files are being
   * written already. While the sinks are off nothing is written. Sinks that start later get the code that is in the lists then,
   * as `jitsym_enable` says. The variable `JITSYM` can ask for it by the word `bridge`, and then the library looks from the time
   * on when it is loaded. The sink for debuggers does not start by itself then.
   */
  JITSYM_INIT_BRIDGE = 8192,
} jitsym_init_flag;

/**
 * What the library wants to be told, as `jitsym_wanted` returns it. Bits; a later version may have more.
 */
typedef enum jitsym_want {
  /**
   * Code: a sink runs, or live code is remembered for one. Without this bit there is no other one, and `jitsym_register` looks at
   * nothing.
   */
  JITSYM_WANT_CODE = 1,
  /**
   * `jitsym_code.lines`.
   */
  JITSYM_WANT_LINES = 2,
  /**
   * `jitsym_code.unwind`.
   */
  JITSYM_WANT_UNWIND = 4,
  /**
   * Private executable memory that code is registered in becomes a region (`JITSYM_INIT_ADOPT`, `JITSYM_ADOPT`): the registering
   * thread must be the only one that writes to it meanwhile.
   */
  JITSYM_WANT_ADOPT = 8,
  /**
   * Memory from `jitsym_create_region` and `jitsym_alloc` has a file. Without this bit a runtime that has memory of its own gains
   * nothing by them. The bit goes when the file of a region cannot be made, so ask after the call too.
   */
  JITSYM_WANT_REGION = 16,
} jitsym_want;

/**
 * The intended reader of the perf map.
 */
typedef enum jitsym_map_dialect {
  /**
   * perf and all others: `START SIZE NAME` in hexadecimal digits without prefix, in `/tmp`.
   */
  JITSYM_MAP_PERF = 0,
  /**
   * Android's simpleperf: numbers with the prefix `0x`, in `/data/local/tmp`.
   */
  JITSYM_MAP_SIMPLEPERF = 1,
} jitsym_map_dialect;

/**
 * How to find the caller's frame.
 */
typedef enum jitsym_unwind_kind {
  /**
   * Not known. Readers fall back to what they can guess.
   */
  JITSYM_UNWIND_NONE = 0,
  /**
   * The code keeps a frame pointer as compiled C does with `-fno-omit-frame-pointer`.
   */
  JITSYM_UNWIND_FRAME_POINTER = 1,
  /**
   * The canonical frame address (CFA) lies a fixed number of bytes above the stack pointer: in all of the code, or between a
   * prologue and an epilogue. Also for code with a frame pointer whose stack pointer stays where it is: readers find the frame by
   * the stack pointer then, whatever the frame pointer has.
   */
  JITSYM_UNWIND_FIXED_FRAME = 2,
  /**
   * A table of rows.
   */
  JITSYM_UNWIND_ROWS = 3,
  /**
   * An `.eh_frame` section that the compiler made.
   */
  JITSYM_UNWIND_EH_FRAME = 4,
} jitsym_unwind_kind;

/**
 * Flags of a piece of code. Bits, to be combined.
 */
typedef enum jitsym_code_flag {
  /**
   * The bytes stay as they are, where they are, until the next `jitsym_flush`, `jitsym_unregister` or `jitsym_move` of
   * this code has returned. The writer reads them there later, so that the call copies none: for large code, and for
   * runtimes that never free. `jitsym_unregister`, `jitsym_move` and `jitsym_unregister_range` wait for the writer if it has
   * not read them yet, 10 seconds at most. If the process is killed before, the record is recovered without them.
   */
  JITSYM_CODE_STABLE = 1,
  /**
   * Other code follows this, or will. Builds of perf with libunwind find unwind tables only after the code. With this flag, where
   * `free_after` is 0 or less than `jitsym_unwind_size`, the jitdump has another small record, for an unused place below the
   * code, and the tables follow that place. `perf inject` then makes each object twice, and the process has some address space
   * less, 1 GiB at most. When that is used up, or there is none within 1.75 GiB below the code, the flag does nothing. Nor does it
   * without an unwind description. Not for `jitsym_move_target`: packed code stays packed, unless it moves while no jitdump is written.
   */
  JITSYM_CODE_PACKED = 2,
  /**
   * Other code is registered next, before any of it runs. Sinks that have to know of code before it runs (`JITSYM_SINK_VALGRIND`,
   * `JITSYM_SINK_UNWINDER`, and `JITSYM_SINK_GDB` while a debugger listens) then make the call wait for nothing: the
   * next call without this flag waits for all of the code, and so does `jitsym_flush`. Without such a sink no call waits, and the
   * flag does nothing. Not for `jitsym_move_target`.
   */
  JITSYM_CODE_MORE = 4,
} jitsym_code_flag;

/**
 * Flags of a range of code. Bits, to be combined.
 */
typedef enum jitsym_range_flag {
  /**
   * The caller unmaps the memory next: for a runtime that maps each function by itself, or gives whole caches back. Call it in the
   * place of `jitsym_unregister`, before `munmap`. The library keeps nothing of regions that the range covers, and has not to find
   * out that they are gone, which takes a look at everything that is mapped. From the call until whole pages in the range are
   * unmapped, nobody reads, writes or runs what is there. In memory of `jitsym_alloc`, and in regions with two views, the flag does
   * nothing: the library unmaps them.
   */
  JITSYM_RANGE_UNMAP = 1,
} jitsym_range_flag;

/**
 * Whether records on their way to the writer outlive the process.
 */
typedef enum jitsym_spool_state {
  /**
   * They are in private memory: SIGKILL loses those of the last 50 milliseconds at most, while the writer keeps up. Where the file
   * system of the spool is full, that holds for the records that had no room there.
   */
  JITSYM_SPOOL_NONE = 0,
  /**
   * They are in a spool, from which `jitsym recover` completes the files.
   */
  JITSYM_SPOOL_SHARED = 1,
} jitsym_spool_state;

/**
 * Flags of a region. Bits, to be combined.
 */
typedef enum jitsym_region_flag {
  /**
   * One view of private memory, first readable and writable, whose protection the runtime changes itself (`mprotect`), for
   * instance to readable and executable before code in it runs. A forked child has its own copy, as of any private memory.
   * Without this flag there are two views of shared memory, whose protections must stay as they are.
   */
  JITSYM_REGION_ONE_VIEW = 1,
  /**
   * Aligned to 2 MiB, and with huge pages where the kernel has them for such memory.
   */
  JITSYM_REGION_HUGE_PAGES = 2,
} jitsym_region_flag;

/**
 * A session: what `jitsym_init` opens and `jitsym_close` closes.
 *
 * The handle is a name, not an address: the library recognises a handle that is closed or was never opened, and answers with a
 * status. A forked child continues its parent's (see `jitsym_init_flag`).
 */
typedef struct jitsym jitsym;

/**
 * The options of a session. A struct of zero bytes with `struct_size` set asks for the defaults, as NULL does.
 */
typedef struct jitsym_options {
  /**
   * `sizeof(jitsym_options)`.
   */
  size_t struct_size;
  /**
   * `JITSYM_SINK_*` bits. 0: what the variable `JITSYM` says, else map, jitdump and region.
   */
  uint32_t sinks;
  /**
   * `JITSYM_INIT_*` bits.
   */
  uint32_t flags;
  /**
   * Directory of the perf map, absolute. NULL: `JITSYM_DIR`, else `/tmp`, which is where perf looks.
   */
  const char *map_dir;
  /**
   * Directory of the jitdump, absolute. NULL: `JITSYM_DIR`, else below `JITDUMPDIR`, else `/tmp`. perf builds with the
   * libdw unwinder (perf 7 for one) unwind through code of a dump only if the dump lies directly in `/tmp`.
   */
  const char *jitdump_dir;
  /**
   * One of `JITSYM_MAP_*`.
   */
  uint32_t map_dialect;
  /**
   * Permission bits of the files, before the umask, at most 0777. 0: 0644, so that a profiler of another user can read
   * names. With 0600 only the same user (and root) can.
   */
  uint32_t file_mode;
  /**
   * Bound in bytes of the memory that holds records on their way to the writer, from 1 MiB to 16 GiB (other values are moved
   * into that range). 0: 64 MiB. It starts with 16 KiB, takes 4 MiB (or half of the bound, if that is less) when many are
   * registered, and grows beyond that when the writer cannot keep up. Code whose record does not fit into the bound less these
   * 4 MiB is refused with `JITSYM_ERR_NO_MEMORY`. It takes 256 MiB of address space at least, if there is as much. The first session
   * of a process decides.
   */
  uint64_t max_memory;
  /**
   * How long a registration may wait when that memory is full, in milliseconds, before its record is dropped. 0: 10.
   */
  uint32_t max_wait_ms;
  /**
   * Must be 0.
   */
  uint32_t reserved;
  /**
   * Directory of the spool, absolute, on a file system in memory. NULL: `JITSYM_SPOOL_DIR`, else `/dev/shm`. The session that
   * first starts a sink, or remembers, decides, until all are disabled.
   */
  const char *spool_dir;
  /**
   * The most bytes that the perf map may take; at least 4096. 0: `JITSYM_MAP_MAX`, else no bound. When it would become longer,
   * dead code is left out first, the oldest first; then live code, the newest first (`jitsym_stats.map_omitted`), until there
   * is room again.
   */
  uint64_t map_max;
  /**
   * The most bytes that the jitdump may take; at least 65536. 0: `JITSYM_JITDUMP_MAX`, else no bound. When it would become
   * longer, it is rewritten with live code alone. If that takes more than three quarters of the bound, code that is registered
   * from then on is left out (`jitsym_stats.jitdump_lost`), until enough other code has been unregistered. Code that lives
   * then is in the file again. During a rewrite there are two files.
   */
  uint64_t jitdump_max;
} jitsym_options;

/**
 * Where a register of the caller was saved: at the address CFA + `offset`.
 *
 * The CFA is the value that the stack pointer had in the caller, just before the call instruction (x86-64: the address
 * above the return address).
 */
typedef struct jitsym_saved_register {
  /**
   * DWARF register number. On x86-64: rbx 3, rbp 6, rsp 7, r12 to r15 12 to 15. On aarch64: x0 to x30 0 to 30, sp 31, d8 to
   * d15 72 to 79. On riscv64: x0 to x31 0 to 31, f0 to f31 32 to 63.
   */
  uint32_t reg;
  /**
   * Bytes from the CFA, a multiple of 8, mostly negative.
   */
  int32_t offset;
} jitsym_saved_register;

/**
 * One row of `JITSYM_UNWIND_ROWS`: the whole state from `offset` on, up to the next row.
 */
typedef struct jitsym_unwind_row {
  /**
   * Bytes from the start of the code. Rows are in strictly rising order. Before the first row the state is the one at a
   * call's target: CFA = SP + 8 on x86-64 and SP + 0 elsewhere, nothing saved.
   */
  uint32_t offset;
  /**
   * DWARF number of the register that the CFA is counted from.
   */
  uint32_t cfa_reg;
  /**
   * CFA = register + this many bytes.
   */
  int32_t cfa_offset;
  /**
   * Number of entries of `saved`.
   */
  uint32_t saved_count;
  /**
   * The registers that are saved here, the return address left out on x86-64, where it always lies at CFA - 8. On other
   * architectures the return address register is listed where it has been saved.
   */
  const struct jitsym_saved_register *saved;
} jitsym_unwind_row;

/**
 * An unwind description. Only the fields of its kind are looked at.
 *
 * It is copied before the call returns, as all input is.
 */
typedef struct jitsym_unwind {
  /**
   * `sizeof(jitsym_unwind)`.
   */
  size_t struct_size;
  /**
   * One of `JITSYM_UNWIND_*`.
   */
  uint32_t kind;
  /**
   * Must be 0.
   */
  uint32_t flags;
  /**
   * FRAME_POINTER: bytes from the start of the code to the end of the instruction that stores the caller's frame pointer
   * (x86-64 `push rbp`; aarch64 `stp x29, x30, [sp, #-n]!`). 0: 1 on x86-64, 4 on aarch64, 12 on riscv64. FIXED_FRAME: the same
   * place; 0: no instruction does that. `n` is `cfa_offset` if this is equal to `sp_set`, and else 16. Must be 0 on riscv64, where
   * `saved` can have both registers.
   */
  uint32_t fp_pushed;
  /**
   * FRAME_POINTER: bytes to the end of the instruction that sets the frame pointer (x86-64 `mov rbp, rsp`). 0: 4 on x86-64, 8
   * on aarch64, 16 on riscv64. If something stands before the usual prologue (`endbr64`), give both.
   */
  uint32_t fp_set;
  /**
   * FRAME_POINTER, FIXED_FRAME: bytes to the end of the instruction that takes the frame down (x86-64 `pop rbp` or `leave`). From there to
   * `epilogue_end` the frame is as at entry. 0: no such place, for code that leaves by other ways. Code with several epilogues
   * is described by ROWS.
   */
  uint32_t epilogue_begin;
  /**
   * FRAME_POINTER, FIXED_FRAME: bytes to the end of the return instruction; from there to the end of the code the frame is set up again. 0:
   * the end of the code.
   */
  uint32_t epilogue_end;
  /**
   * FIXED_FRAME: CFA = SP + this from `sp_set` on, taken as it is. FRAME_POINTER: CFA = FP + this once the frame pointer is set; 0: 16 on
   * x86-64 and aarch64, 0 on riscv64.
   */
  int32_t cfa_offset;
  /**
   * FRAME_POINTER, FIXED_FRAME: saved from `saved_from` on, beyond the frame pointer and the return address that the instruction at
   * `fp_pushed` stores. Number of entries of `saved`.
   */
  uint32_t saved_count;
  /**
   * See `saved_count`.
   */
  const struct jitsym_saved_register *saved;
  /**
   * Bytes to the end of the instruction that stores the last of `saved`. FRAME_POINTER: not before `fp_pushed`; 0: `fp_set`.
   * FIXED_FRAME: not before `sp_set`; 0: `sp_set`.
   */
  uint32_t saved_from;
  /**
   * ROWS: number of entries of `rows`.
   */
  uint32_t row_count;
  /**
   * ROWS: the table.
   */
  const struct jitsym_unwind_row *rows;
  /**
   * `sizeof(jitsym_unwind_row)`; 0 stands for that of version 0.1.
   */
  size_t row_size;
  /**
   * EH_FRAME: the section's bytes; a terminating zero word may be there or not. Entries for other code are left out; an entry
   * that extends beyond the code is cut to it. A CIE is an entry of the section, before its FDEs, and has at most 1024
   * bytes. Personality routines and LSDAs are for `JITSYM_SINK_UNWINDER` alone (see docs/exceptions.md).
   */
  const void *eh_frame;
  /**
   * EH_FRAME: their number.
   */
  size_t eh_frame_size;
  /**
   * EH_FRAME: the address that pc-relative pointers in it are counted from, which is the section's own. 0: where it is now.
   */
  uint64_t eh_frame_addr;
  /**
   * FIXED_FRAME: bytes to the end of the instruction that takes the frame (x86-64 `sub rsp, n`), not before `fp_pushed`. Until
   * there the frame is as at entry, but for what `fp_pushed` says. 0: the frame is there from the start.
   */
  uint32_t sp_set;
  /**
   * FIXED_FRAME: bytes to the end of the instruction that gives the frame back and leaves only what was stored at `fp_pushed`
   * (x86-64 `mov rsp, rbp` or `add rsp, n`, with `pop rbp` after it). The registers of `saved` have their values again. 0: no such
   * place, for code that takes all down at `epilogue_begin`, as by `leave`.
   */
  uint32_t sp_reset;
} jitsym_unwind;

/**
 * One row of a line table: from `offset` on, up to the next row, the code belongs to this place in the source.
 */
typedef struct jitsym_line {
  /**
   * Bytes from the start of the code, less than its size. Rows may be in any order, and cost least in order of it. Of two rows
   * with the same offset the one that comes later in the table counts.
   */
  uint32_t offset;
  /**
   * Line number, from 1.
   */
  uint32_t line;
  /**
   * Column, from 1; 0 if unknown.
   */
  uint32_t column;
  /**
   * Must be 0.
   */
  uint32_t reserved;
  /**
   * File name, NUL-terminated. `perf annotate` opens it unchanged, so an absolute path is best.
   */
  const char *file;
} jitsym_line;

/**
 * A range of code that comes from another function, which the compiler has inlined.
 */
typedef struct jitsym_inline {
  /**
   * Bytes from the start of the code to the first byte of the range.
   */
  uint32_t begin;
  /**
   * Bytes from the start of the code to the end of the range; more than `begin`, at most the size of the code. The range lies
   * within that of `parent`. Two ranges with the same parent have no byte in common.
   */
  uint32_t end;
  /**
   * Name of the inlined function, UTF-8, cleaned as `jitsym_code.name` is. The cleaned name must not be empty.
   */
  const char *name;
  /**
   * Length of `name` in bytes. 0: it ends at its NUL.
   */
  size_t name_len;
  /**
   * File of the call in whose place the function stands, NUL-terminated; as `jitsym_line.file`.
   */
  const char *call_file;
  /**
   * Line of that call, from 1.
   */
  uint32_t call_line;
  /**
   * Column of that call, from 1; 0 if unknown.
   */
  uint32_t call_column;
  /**
   * Index of the entry that this is inlined into, which comes earlier. `UINT32_MAX`: the function itself.
   */
  uint32_t parent;
  /**
   * Must be 0.
   */
  uint32_t reserved;
} jitsym_inline;

/**
 * One piece of code. Zero in every field but `struct_size`, `addr` and `size` is a valid choice.
 */
typedef struct jitsym_code {
  /**
   * `sizeof(jitsym_code)`.
   */
  size_t struct_size;
  /**
   * Where the code runs.
   */
  uint64_t addr;
  /**
   * Its size in bytes, 1 to `JITSYM_CODE_SIZE_MAX`.
   */
  uint64_t size;
  /**
   * Name, UTF-8. It is cleaned, not refused: bytes that are not UTF-8 become U+FFFD, control characters become `_`, white
   * space at both ends goes. A name with nothing left, or NULL, becomes `jit_ADDRESS`. A name of one or two bytes gets `()`
   * appended: perf drops such names in a perf map, and takes some in a jitdump for mangled types.
   */
  const char *name;
  /**
   * Length of `name` in bytes. 0: it ends at its NUL.
   */
  size_t name_len;
  /**
   * Where the bytes of the code can be read: `size` bytes that stay readable during the call, as for any pointer argument in
   * C. Give it if you can: right after emitting, `addr` itself or the writable view of it. NULL: the library asks the kernel
   * to read at `addr`, which costs a system call and survives memory that cannot be read. Unreadable bytes are zero in the
   * record, and `jitsym_stats.unreadable` counts the call.
   */
  const void *bytes;
  /**
   * How to unwind; NULL: not known.
   */
  const struct jitsym_unwind *unwind;
  /**
   * Line table; may be NULL if `line_count` is 0.
   */
  const struct jitsym_line *lines;
  /**
   * Number of entries of `lines`.
   */
  size_t line_count;
  /**
   * `sizeof(jitsym_line)`; 0 stands for that of version 0.1.
   */
  size_t line_size;
  /**
   * How many bytes after the code hold no other code, and will not while this code lives. If they are at least as many as
   * `jitsym_unwind_size` reports, perf builds with the libunwind unwinder (up to 6.x in most distributions) unwind through
   * this code. Never declare bytes that are not free: the name of the code that lies there would be lost.
   */
  uint64_t free_after;
  /**
   * `JITSYM_CODE_*` bits.
   */
  uint32_t flags;
  /**
   * Must be 0.
   */
  uint32_t reserved;
  /**
   * Inlined functions, for call stacks; may be NULL if `inline_count` is 0. A function that is inlined in several ranges has
   * an entry for each. `lines` gives the innermost place, as for all code. Only code in regions has inline frames: jitdump and
   * map cannot express them.
   */
  const struct jitsym_inline *inlines;
  /**
   * Number of entries of `inlines`.
   */
  size_t inline_count;
  /**
   * `sizeof(jitsym_inline)`; 0 stands for that of version 0.1.
   */
  size_t inline_size;
  /**
   * File in which the function begins, NUL-terminated. The name becomes `NAME FILE:LINE` then, for every reader but
   * debuggers. Without a line
   * table, file and line are also its only row, at offset 0, so an absolute path is best. The file is cleaned as the name is, and
   * `JITSYM_NAME_MAX` holds for all of the name. NULL, or a file with nothing left after cleaning: not known.
   */
  const char *file;
  /**
   * Line in `file`, from 1. 0: not known; the name becomes `NAME FILE`, and there is no row.
   */
  uint32_t line;
  /**
   * Must be 0.
   */
  uint32_t reserved2;
} jitsym_code;

/**
 * The name of one registration, for `jitsym_move` and `jitsym_unregister`. Never 0, and not used again within a process.
 */
typedef uint64_t jitsym_id;

/**
 * Where code has been moved to.
 */
typedef struct jitsym_move_target {
  /**
   * `sizeof(jitsym_move_target)`.
   */
  size_t struct_size;
  /**
   * Where the code runs now. Its size stays.
   */
  uint64_t addr;
  /**
   * As `jitsym_code.bytes`, for the new place.
   */
  const void *bytes;
  /**
   * As `jitsym_code.free_after`, for the new place.
   */
  uint64_t free_after;
  /**
   * `JITSYM_CODE_*` bits, for the new place.
   */
  uint32_t flags;
  /**
   * Must be 0.
   */
  uint32_t reserved;
} jitsym_move_target;

/**
 * Counters of this process (a forked child begins with 0), over all sessions. All but the sinks, `live`, `map_entries`,
 * `memory`, `memory_held`, `spool`, `jitdump_held`, `map_omitted`, `regions` and `region_left_out` only grow.
 */
typedef struct jitsym_stats {
  /**
   * `sizeof(jitsym_stats)`, set by the caller; that many bytes are written at most. Fields of a newer header after those that
   * this library knows are left as they were.
   */
  size_t struct_size;
  /**
   * `JITSYM_SINK_*` bits of the sinks that are running and can write.
   */
  uint32_t sinks_running;
  /**
   * `JITSYM_SINK_*` bits of the sinks that could not start, or cannot write at present. Those that cannot write try again, at each
   * flush and by themselves at least every ten seconds. Those that could not start wait for `jitsym_enable`, except in a forked
   * child, which tries to start them again at each flush.
   */
  uint32_t sinks_failed;
  /**
   * Registrations that reached the writer.
   */
  uint64_t registered;
  /**
   * Moves that reached the writer.
   */
  uint64_t moved;
  /**
   * Codes retired by `jitsym_unregister` and its range form.
   */
  uint64_t unregistered;
  /**
   * Codes retired because newer code was registered over them.
   */
  uint64_t overwritten;
  /**
   * Codes that are live now.
   */
  uint64_t live;
  /**
   * Records dropped because the writer could not keep up.
   */
  uint64_t dropped;
  /**
   * Registrations and moves whose code bytes could not all be read.
   */
  uint64_t unreadable;
  /**
   * Names that were cleaned or cut.
   */
  uint64_t names_changed;
  /**
   * Declarations of `free_after` that were not true and have been ignored.
   */
  uint64_t not_free;
  /**
   * Bytes written to the jitdump after its header.
   */
  uint64_t jitdump_bytes;
  /**
   * Code records written to the jitdump.
   */
  uint64_t jitdump_records;
  /**
   * Bytes written to the perf map, rewrites included.
   */
  uint64_t map_bytes;
  /**
   * Entries in the perf map.
   */
  uint64_t map_entries;
  /**
   * Times that the perf map was rewritten because an entry had to change.
   */
  uint64_t map_rewrites;
  /**
   * Entries of dead code that were dropped from the perf map to keep it bounded.
   */
  uint64_t map_forgotten;
  /**
   * Write errors, over all sinks.
   */
  uint64_t write_errors;
  /**
   * Bytes of memory in use for records on their way to the writer.
   */
  uint64_t memory;
  /**
   * Bytes of memory that are held for that purpose, in use or not; at most `jitsym_options.max_memory`.
   */
  uint64_t memory_held;
  /**
   * Records that had to wait because `jitsym_options.max_memory` was reached.
   */
  uint64_t waited;
  /**
   * Records of killed processes that `JITSYM_INIT_RECOVER` has put into their files.
   */
  uint64_t recovered;
  /**
   * One of `JITSYM_SPOOL_*`.
   */
  uint32_t spool;
  /**
   * Number of codes that this process, being a forked child, has taken over from its parent. They are not in `registered`.
   */
  uint32_t inherited;
  /**
   * Records that could not be written to the jitdump (no room on the disk or within `jitsym_options.jitdump_max`, and none in
   * the memory in which they wait). Also records that waited and were left out when it was rewritten. Code among them that
   * lives when writing is possible again is written then, without lines and unwind tables. In a forked child also code whose
   * record the parent was just writing, if the fork did not wait for that.
   */
  uint64_t jitdump_lost;
  /**
   * Bytes of records that wait in memory because the jitdump cannot be written at present; at most a quarter of
   * `jitsym_options.max_memory`.
   */
  uint64_t jitdump_held;
  /**
   * Times that the jitdump was rewritten, because somebody else removed or cut it, or it had reached its bound.
   */
  uint64_t jitdump_rewrites;
  /**
   * Entries of live code that the perf map has no room for at present.
   */
  uint64_t map_omitted;
  /**
   * Regions with a file, adopted ones included, that there are now.
   */
  uint64_t regions;
  /**
   * Registrations and moves that went to the file of a region, and not to the map and the jitdump.
   */
  uint64_t region_code;
  /**
   * Bytes written to the files of regions, older generations included.
   */
  uint64_t region_bytes;
  /**
   * Times that the file of a region got another name, so that code in the place of dead code has its own name.
   */
  uint64_t region_generations;
  /**
   * Times that this came too late, or could not be done: samples in the old code may have the name of the new, or the reverse.
   */
  uint64_t region_late;
  /**
   * Regions that are plain memory because they could not have a file, and memory with code that could not be adopted, though it
   * is of the kind.
   */
  uint64_t region_refused;
  /**
   * Names, unwind tables and line tables of code that have no room in the files of regions as they are now.
   */
  uint64_t region_left_out;
  /**
   * Calls that were refused because of what the caller gave: `jitsym_last_error` says what was wrong with the last one of a thread.
   */
  uint64_t calls_refused;
  /**
   * Times that the adoption of memory with code was put off, because it was not executable yet, or its mapping did not hold all of
   * the code. Later calls try again. `region_refused` counts what has waited for more than a second.
   */
  uint64_t region_put_off;
  /**
   * Times that memory was not adopted, or a region not made, because there were as many as there may be: 768.
   */
  uint64_t region_limit;
} jitsym_stats;

/**
 * A region of code memory, or a piece of one from `jitsym_alloc`.
 */
typedef struct jitsym_region {
  /**
   * `sizeof(jitsym_region)`, set by the caller.
   */
  size_t struct_size;
  /**
   * Where code runs: readable and executable. This is the address to register code with.
   */
  void *exec;
  /**
   * Where code is written: the same memory, readable and writable. A region reads zero at first; with
   * `JITSYM_REGION_ONE_VIEW` it has the same address as `exec`.
   */
  void *write;
  /**
   * Bytes.
   */
  uint64_t size;
} jitsym_region;

/**
 * The options of a region of code memory.
 */
typedef struct jitsym_region_options {
  /**
   * `sizeof(jitsym_region_options)`.
   */
  size_t struct_size;
  /**
   * Bytes, rounded up to whole pages; at most 1 GiB.
   */
  uint64_t size;
  /**
   * Bytes that it can grow to by `jitsym_region_grow`; address space for that is set aside. 0: `size`.
   */
  uint64_t max_size;
  /**
   * A power of two, at most 512 MiB, of which the address of the executable view is a multiple. 0: that of a page.
   */
  uint64_t alignment;
  /**
   * An address from which all of the executable view can be reached by a displacement of 32 bits with sign, as x86-64 calls and
   * jumps have it. 0: anywhere.
   */
  uint64_t near_addr;
  /**
   * `JITSYM_REGION_*` bits.
   */
  uint32_t flags;
  /**
   * Must be 0.
   */
  uint32_t reserved;
} jitsym_region_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Opens a session, and with the first one starts the sinks and the background thread that writes them.
 *
 * Sinks that cannot start are reported by `jitsym_get_stats` and `jitsym_last_error`; the call fails only if none could.
 * Sessions of one process share files and writer: a second session joins the first, whose options count. After the last one was
 * closed, a new session may have new options; if its directories are the same it continues the same files. If this is the first
 * call in a forked child, the child continues its parent's sessions too, all of them with these options.
 *
 * Parameters:
 * - `options`: NULL for the defaults and the environment.
 * - `out`: receives the session.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`, `_ENUM`, `_PATH` for bad options.
 * `JITSYM_ERR_CONFLICT` if an open session has other directories, another dialect, or lacks a sink that this one asks for.
 * `JITSYM_ERR_TIMEOUT` after 10 seconds, if files cannot be opened because a disk hangs, or if another thread's call to open, close or
 * enable waits for that, or an earlier close. Also `JITSYM_ERR_NO_SINK`, `JITSYM_ERR_NO_MEMORY`,
 * `JITSYM_ERR_THREAD`, `JITSYM_ERR_TOO_MANY_SESSIONS`.
 *
 * Any thread; not from a signal handler. Does file I/O. Does not keep `options`.
 *
 * # Safety
 * `options` is NULL or points to `struct_size` readable bytes; `out` is NULL or points to a writable pointer.
 */
JITSYM_API
enum jitsym_status jitsym_init(const struct jitsym_options *options,
                               struct jitsym **out);

/**
 * Registers code: from this moment on samples in `[addr, addr + size)` belong to `name`.
 *
 * Call it when the bytes are final and before the code runs: the name holds from the time of the call. Everything is copied;
 * nothing that `code` points to is needed afterwards. Code that is registered over live code retires that code: the newest wins.
 *
 * Parameters:
 * - `code`: what to register.
 * - `out_id`: receives the id for `jitsym_move` and `jitsym_unregister`; may be NULL. 0 if no sink is running and code is not
 *   remembered for one.
 *
 * Returns `JITSYM_OK`, also without a look at `code` if the id is 0; a status that names what is wrong with `code`;
 * `JITSYM_ERR_DROPPED` or `JITSYM_ERR_NO_MEMORY` if there was no room; `JITSYM_ERR_SESSION`, `JITSYM_ERR_CLOSED`,
 * `JITSYM_ERR_FORKED`, `JITSYM_ERR_BUSY`. With the sinks for the unwinder and for valgrind also `JITSYM_ERR_TIMEOUT`, if the library's
 * thread has told no sink of anything for a second (under valgrind: a minute), and `JITSYM_ERR_SINK_FAILED` if valgrind could not be
 * told of some code. The code is registered then and `out_id` is written, and `jitsym_flush` waits until they know of it. Where calls
 * tell the unwinder themselves, `JITSYM_ERR_TIMEOUT` says that another thread has stood still in the midst of that for 10 seconds.
 * Then nothing is registered. Nor is it with `JITSYM_ERR_SINK_FAILED` in a forked child whose sinks could not start yet ("Processes"
 * above).
 *
 * Any thread, concurrently; not from a signal handler. With `code->bytes` set it takes no lock and makes no system call in
 * the steady state.
 *
 * # Safety
 * `code` is NULL or points to `struct_size` readable bytes, and every pointer in it is valid for what it says.
 */
JITSYM_API
enum jitsym_status jitsym_register(struct jitsym *session,
                                   const struct jitsym_code *code,
                                   jitsym_id *out_id);

/**
 * Tells that registered code now runs at another address: it keeps its id, name, lines and unwind description.
 *
 * Call it after the bytes were copied and before they run there. The old place keeps its name for samples taken before.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_UNKNOWN_ID`; a status that names what is wrong with `target`; and as `jitsym_register`.
 *
 * Any thread, concurrently; not from a signal handler.
 *
 * # Safety
 * `target` is NULL or points to `struct_size` readable bytes, and `target->bytes` is NULL or points to as many readable
 * bytes as the code has.
 */
JITSYM_API
enum jitsym_status jitsym_move(struct jitsym *session,
                               jitsym_id id,
                               const struct jitsym_move_target *target);

/**
 * Tells that code is gone. Call it before its memory is given back or written over.
 *
 * The perf map goes on naming the bytes until they are used again, because profiles are read after the fact.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_UNKNOWN_ID`, also for code that newer code was registered over; and as `jitsym_register`.
 *
 * Any thread, concurrently; not from a signal handler.
 */
JITSYM_API
enum jitsym_status jitsym_unregister(struct jitsym *session,
                                     jitsym_id id);

/**
 * Tells that all code that starts or ends in, or covers, `[addr, addr + size)` is gone: one call for a whole code cache.
 *
 * The ids of that code are unknown from the next `jitsym_flush` on at the latest; until then `jitsym_unregister` may still
 * answer `JITSYM_OK` for them, without effect. Code of all sessions is meant. A range without code is no error.
 *
 * Parameters:
 * - `flags`: 0, or `JITSYM_RANGE_UNMAP`.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_FLAGS`, `JITSYM_ERR_SIZE_ZERO`, `JITSYM_ERR_ADDRESS_RANGE`; and as `jitsym_register`.
 *
 * Any thread, concurrently; not from a signal handler.
 */
JITSYM_API
enum jitsym_status jitsym_unregister_range(struct jitsym *session,
                                           uint64_t addr,
                                           uint64_t size,
                                           uint32_t flags);

/**
 * Waits until everything that was registered before the call is in the files, where it survives even SIGKILL.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after `timeout_ms` milliseconds (0 waits for one pass of the writer, 10 seconds at
 * most). `JITSYM_ERR_SINK_FAILED` if a sink could not start or cannot write, even now; the others are up to date.
 * `JITSYM_ERR_NO_MEMORY` if the writer has none. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread, concurrently; not from a signal handler.
 */
JITSYM_API
enum jitsym_status jitsym_flush(struct jitsym *session,
                                uint32_t timeout_ms);

/**
 * Writes everything that was registered before, from a signal handler: for a host's crash handler, before it lets the process
 * end.
 *
 * The handler may have interrupted anything: this library, `malloc`, another handler. The call takes no lock, allocates nothing
 * and leaves `errno` as it was; it asks the background thread and waits for its answer. If that needs something that the
 * interrupted thread holds, for instance the lock of `malloc`, the time runs out. Without `JITSYM_OK`, registered code may be in
 * the spool, if there is one, and not in the files: `jitsym recover` completes the files when the process has ended.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` after `timeout_ms` milliseconds (0: one second), or at once if the process exits by
 * another thread. `JITSYM_ERR_NOT_RUNNING` if no sink is running, with nothing to be written. `JITSYM_ERR_WRITER` at once on the
 * background thread itself, where no descriptor of the host is open. `JITSYM_ERR_FORKED` in a child that has not used its
 * parent's sessions, with nothing to be written. Also `JITSYM_ERR_SINK_FAILED`, `JITSYM_ERR_INTERNAL`.
 *
 * Needs no session. Any thread, concurrently, and from a signal handler, on an alternate stack too.
 */
JITSYM_API
enum jitsym_status jitsym_flush_from_signal(uint32_t timeout_ms);

/**
 * Starts sinks in a running process, for all sessions: they belong to the process.
 *
 * When this has returned `JITSYM_OK`, all code that is live and known is in the files, and everything that is registered from
 * then on, each piece once. Code is known if it was registered while a sink ran or with `JITSYM_INIT_REMEMBER`. Other code that
 * was registered before has to be registered again (its registration returned id 0). Code that was registered while only the
 * perf map ran, without `JITSYM_INIT_REMEMBER`, comes without lines and unwind tables. The bytes are those that lie at the
 * address of the code now.
 *
 * A sink that runs already is left as it is. Directories, bounds and so on are those that this session was opened with, where no
 * running sink has others. A file that was written before and is still there is continued.
 *
 * Parameters:
 * - `sinks`: `JITSYM_SINK_*` bits. 0: those that this session would have started when it was opened, or if that were none,
 *   all.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_FORBIDDEN` if the variable `JITSYM_LATE` is `off`.
 * `JITSYM_ERR_CONFLICT` if one of the sinks runs with another directory or dialect. `JITSYM_ERR_NO_SINK` if none of them could
 * be started. `JITSYM_ERR_SINK_FAILED` if one could not, or cannot write at present, and another runs (`jitsym_get_stats` and
 * `jitsym_last_error` say more). `JITSYM_ERR_TIMEOUT` after 10 seconds, while the work continues in the background, or if the
 * process exits. Also `JITSYM_ERR_NO_MEMORY`, `JITSYM_ERR_THREAD`, `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread, concurrently; not from a signal handler. Does file I/O.
 */
JITSYM_API
enum jitsym_status jitsym_enable(struct jitsym *session,
                                 uint32_t sinks);

/**
 * Stops sinks in a running process, for all sessions, also those that have asked for them. Everything that was registered before
 * is written first. The files stay (but see `JITSYM_INIT_REMOVE_FILES`), and `jitsym_enable` continues them.
 *
 * Stopping the last sink ends everything that costs the process anything. The background thread, the memory for records and the
 * spool are given back, and calls return at once as in a session that has no sink. All ids end (`jitsym_enable` makes later
 * calls answer `JITSYM_ERR_UNKNOWN_ID` for them). With `JITSYM_INIT_REMEMBER` only the files are closed, and ids live on.
 *
 * Parameters:
 * - `sinks`: `JITSYM_SINK_*` bits. 0: all.
 *
 * Returns `JITSYM_OK`, also if they do not run; `JITSYM_ERR_FLAGS` for other bits; `JITSYM_ERR_SINK_FAILED` if one could not
 * write everything (it is stopped all the same); `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_TIMEOUT` as `jitsym_enable`;
 * `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread, concurrently; not from a signal handler. Does file I/O.
 */
JITSYM_API
enum jitsym_status jitsym_disable(struct jitsym *session,
                                  uint32_t sinks);

/**
 * Closes a session: everything registered is written, and with the last session the background thread ends.
 *
 * The files stay, because they are read after the recording (but see `JITSYM_INIT_REMOVE_FILES`). Code registered through this
 * session stays registered as long as another session is open. Calls on other threads that race with this one finish, or
 * return `JITSYM_ERR_CLOSED`. A forked child that has not used its parent's sessions closes its copy, and makes no files for
 * that.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_TIMEOUT` if the writer did not finish within 10 seconds (the session is closed all the
 * same); `JITSYM_ERR_SINK_FAILED`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`. NULL is no session: `JITSYM_ERR_SESSION`.
 *
 * Any thread; not from a signal handler.
 */
JITSYM_API
enum jitsym_status jitsym_close(struct jitsym *session);

/**
 * Reads the counters.
 *
 * At most `out->struct_size` bytes are written. Registrations still on their way are not counted yet: call `jitsym_flush` first
 * for exact numbers.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `JITSYM_ERR_STRUCT_SIZE`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread, concurrently; not from a signal handler.
 *
 * # Safety
 * `out` is NULL or points to `out->struct_size` writable bytes.
 */
JITSYM_API
enum jitsym_status jitsym_get_stats(struct jitsym *session,
                                    struct jitsym_stats *out);

/**
 * Copies the text of the last failure to `buf`, of whichever came later. One is that of a sink, or of opening a session: what was
 * tried, on which file, and what the system said. The other one is the last call of this thread that was refused because of what
 * the caller gave: the status, and the field, index and value that are wrong. An empty text if there was none. The text is cut to
 * fit and always NUL-terminated.
 *
 * `session` may be NULL, and is how to ask why `jitsym_init` failed.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if `size` is 0; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread, concurrently; not from a signal handler.
 *
 * # Safety
 * `buf` is NULL or points to `size` writable bytes.
 */
JITSYM_API
enum jitsym_status jitsym_last_error(struct jitsym *session,
                                     char *buf,
                                     size_t size);

/**
 * Copies the path of the file that a sink writes to `buf`, NUL-terminated.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_ENUM` if `sink` is not one `JITSYM_SINK_*` bit; `JITSYM_ERR_NOT_RUNNING`, and for a sink
 * without a file too; `JITSYM_ERR_NULL`; `JITSYM_ERR_BUFFER` if it does not fit (`JITSYM_DIR_MAX` + 64 bytes always do);
 * `JITSYM_ERR_TIMEOUT` if the path of a region is not known within 10 seconds; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread, concurrently; not from a signal handler.
 *
 * # Safety
 * `buf` is NULL or points to `size` writable bytes.
 */
JITSYM_API
enum jitsym_status jitsym_path(struct jitsym *session,
                               uint32_t sink,
                               char *buf,
                               size_t size);

/**
 * Tells how many bytes after code of `code_size` bytes must be free for perf builds with the libunwind unwinder to unwind
 * through it: leave them free, and declare them in `jitsym_code.free_after`.
 *
 * It is the size of the encoded tables, 80 to 120 bytes for most code, plus up to 7 bytes of alignment. Ask with the
 * `code_size` that will be registered, or with 0 for a number that is enough for any size. Of an `.eh_frame` section all
 * entries are counted, because which ones are for the code depends on its address.
 *
 * Returns `JITSYM_OK` (with 0 in `out` for `JITSYM_UNWIND_NONE` or a NULL description); a status that names what is wrong
 * with `unwind`; `JITSYM_ERR_NULL`, `JITSYM_ERR_TOO_LARGE`.
 *
 * Needs no session. Any thread, concurrently; not from a signal handler.
 *
 * # Safety
 * `unwind` is NULL or points to `struct_size` readable bytes, and every pointer in it is valid for what it says; `out` is
 * NULL or writable.
 */
JITSYM_API
enum jitsym_status jitsym_unwind_size(const struct jitsym_unwind *unwind,
                                      uint64_t code_size,
                                      uint64_t *out);

/**
 * Hands out memory for one piece of code, as `malloc` does for data: a piece of a region that the library makes, grows and gives
 * back (see `jitsym_region_create`). Code in it has its name and stacks in every profiler that reads ELF files. Write it at
 * `out->write`, register it with `out->exec`, run it there. No memory is ever writable and executable at the same address, and no
 * protection changes.
 *
 * The memory is the caller's until `jitsym_free`, also after the session is closed. It may have the bytes of other code. Memory of
 * dead code is used again, as late as little is wasted: `jitsym_stats.region_generations` counts how often that cost a generation.
 * Code may fill all of it, and needs no room after it (`jitsym_code.free_after`).
 *
 * If there can be no file, the memory is there all the same, as with `jitsym_region_create`. A sink for regions that starts later
 * names code in memory that is handed out after that. Without a session there is no memory: open one that writes nothing
 * (`JITSYM_INIT_OFF_BY_DEFAULT`), or map memory yourself if `jitsym_init` fails. When `fork` returns, the child has a copy of all
 * memory; what was handed out in the parent is the child's too.
 *
 * Parameters:
 * - `size`: bytes that are needed, at most 1 GiB.
 * - `alignment`: a power of two up to 4096, of which the address is a multiple. At least 64, also if it is 0.
 * - `near_addr`: an address from which all of the memory can be reached by a displacement of 32 bits with sign, and back. 0:
 *   anywhere. For code that calls other pieces directly, pass the address of one of them.
 * - `out`: receives the addresses and the size, which is rounded up to 64; `out->struct_size` is set by the caller.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`; `JITSYM_ERR_SIZE_ZERO`, `_TOO_LARGE`, `_ALIGNMENT`;
 * `JITSYM_ERR_NO_MEMORY`, also if nothing is free near the address, or there are 256 regions. Also `JITSYM_ERR_SESSION`,
 * `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
 *
 * Any thread, concurrently; not from a signal handler. Does file I/O at times.
 *
 * # Safety
 * `out` is NULL or points to `out->struct_size` writable bytes.
 */
JITSYM_API
enum jitsym_status jitsym_alloc(struct jitsym *session,
                                uint64_t size,
                                uint64_t alignment,
                                uint64_t near_addr,
                                struct jitsym_region *out);

/**
 * Takes back the end of memory from `jitsym_alloc`: for code whose size is known only when it is made. To be called before the
 * code is registered; no code may be registered in the part that is taken back, which other code may get at once.
 *
 * Parameters:
 * - `exec`: where the memory begins, in the executable view.
 * - `size`: bytes that are still needed, rounded up to 64.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`; `JITSYM_ERR_TOO_LARGE` if that is more than there is; `JITSYM_ERR_REGION` if no
 * such memory begins there. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
 *
 * Any thread, concurrently; not from a signal handler.
 */
JITSYM_API
enum jitsym_status jitsym_shrink(struct jitsym *session,
                                 void *exec,
                                 uint64_t size);

/**
 * Takes back memory from `jitsym_alloc`, when no thread runs code there any more. Code that is registered there is unregistered
 * first, as by `jitsym_unregister_range`. So one call is enough for the end of code and its memory.
 *
 * Any session will do, not only the one that the memory is from. Pages without code go back to the system, and so do regions
 * without code but one.
 *
 * Parameters:
 * - `exec`: where the memory begins, in the executable view.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_REGION` if no such memory begins there, for instance because it was freed. Also
 * `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_BUSY`, `_TIMEOUT`.
 *
 * Any thread, concurrently; not from a signal handler. Does file I/O at times.
 */
JITSYM_API
enum jitsym_status jitsym_free(struct jitsym *session,
                               void *exec);

/**
 * Tells what the library wants to be told at present, for all sessions: for a runtime that would make names and tables only to have
 * them thrown away. Ask before each registration, because `jitsym_enable` and `jitsym_disable` change the answer.
 *
 * Returns `JITSYM_WANT_*` bits; 0 if a registration would be of no use. 0 also for a session that is NULL, closed or was never
 * opened, and in a forked child that cannot continue it. In other forked children the answer is the parent's at the time of the
 * fork, until the child makes another call; the child takes nothing over for this one.
 *
 * Takes no lock, makes no system call, and leaves `errno` and `jitsym_last_error` as they were. Any thread, concurrently, and from
 * a signal handler.
 */
JITSYM_API
uint32_t jitsym_wanted(struct jitsym *session);

/**
 * A sentence in English for a status; for an unknown number a text that says so. Static, never NULL.
 *
 * Any thread, and from a signal handler.
 */
JITSYM_API
const char *jitsym_status_text(int32_t status);

/**
 * The name of a status, for instance "JITSYM_OK"; "JITSYM_?" for an unknown number. Static, never NULL.
 *
 * Any thread, and from a signal handler.
 */
JITSYM_API
const char *jitsym_status_name(int32_t status);

/**
 * The version of the library that is running, to be compared with `JITSYM_VERSION_NUMBER` of the header that the
 * program was compiled with: major * 1000000 + minor * 1000 + patch.
 *
 * Any thread, and from a signal handler.
 */
JITSYM_API
uint32_t jitsym_version_number(void);

/**
 * Makes a region of code memory: a mapping of an ELF file that the library writes. Every profiler that reads ELF files, such as
 * perf, names the code in it, and unwinds through it, with no further step. Code in it is registered as elsewhere, by
 * `jitsym_register` with its executable address.
 *
 * If the file is not available (no sink `JITSYM_SINK_REGION`, a directory mounted `noexec`, no room), the memory is there all
 * the same. Code that is registered in it goes to the other sinks, and `jitsym_stats.region_refused` and `jitsym_last_error`
 * report it. The memory stays when the session is closed, until `jitsym_region_release` or the end of the process.
 *
 * When `fork` returns, the child has a copy of a region with two views. If there is no memory for that, or after a system call
 * that runs no handlers, both see what the other writes. The child also has a file for the region after its first call that uses
 * a session of its parent, or at once with `JITSYM_INIT_FORK_NOW`.
 *
 * Parameters:
 * - `out`: receives the region; `out->struct_size` is set by the caller.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_NULL`, `_STRUCT_SIZE`, `_STRUCT_TAIL`, `_FLAGS`; `JITSYM_ERR_SIZE_ZERO`;
 * `JITSYM_ERR_TOO_LARGE` above 1 GiB, or an alignment of 512 MiB; `JITSYM_ERR_ALIGNMENT`. `JITSYM_ERR_NO_MEMORY`, also if
 * nothing is free near the address, or there are 768 regions. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
 *
 * Any thread, concurrently; not from a signal handler. Does file I/O.
 *
 * # Safety
 * `options` is NULL or points to `struct_size` readable bytes; `out` is NULL or points to `out->struct_size` writable bytes.
 */
JITSYM_API
enum jitsym_status jitsym_region_create(struct jitsym *session,
                                        const struct jitsym_region_options *options,
                                        struct jitsym_region *out);

/**
 * Turns existing memory of the runtime into a region: a private mapping of an ELF file with the same bytes and protections takes
 * its place.
 *
 * During the call other threads may execute the memory, but nobody may write to it or change its protection. Afterwards the runtime
 * may write to it, change protections, unmap parts, give pages up (`madvise`) and fork as before, and let it grow by `mremap` to
 * twice its size, or by 32 MiB.
 *
 * The file takes room for the bytes that are there and for registered code, in addition to the memory that these take. On a file
 * system in memory (tmpfs), or of an unknown kind, it takes as much room as the memory has. Earlier advice about the memory
 * (`madvise`) and its protection key are lost.
 *
 * Code that is registered there already is named by the file from now on.
 *
 * Code that replaces dead code has its own name. The library tells perf of it through a change of protection. Where the runtime
 * makes the memory executable again each time it has written to it (W^X), that change serves. In memory that is writable and
 * executable at once, the library changes the protection of the pages of code that is about to be registered, and changes it
 * back; they stay writable and executable.
 *
 * Parameters:
 * - `addr`, `size`: whole pages.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`, `_ADDRESS_RANGE`; `JITSYM_ERR_TOO_LARGE` above 1 GiB.
 * `JITSYM_ERR_NOT_PLAIN` (also for a stack of the calling thread), `JITSYM_ERR_LOCKED`, `JITSYM_ERR_REGION` if the memory cannot be
 * adopted. `JITSYM_ERR_NO_MEMORY`, also
 * if no address space is free below it, or there are 768 regions. `JITSYM_ERR_NOT_RUNNING` without `JITSYM_SINK_REGION`.
 * `JITSYM_ERR_SINK_FAILED` if the file cannot be made, or must not be executed (`noexec`, SELinux `execmod`):
 * `jitsym_last_error` says more. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`. After a failure the memory is as it was.
 *
 * Any thread; not from a signal handler. Does file I/O.
 */
JITSYM_API
enum jitsym_status jitsym_region_adopt(struct jitsym *session,
                                       void *addr,
                                       uint64_t size);

/**
 * Makes a region with two views larger, at its end, up to `jitsym_region_options.max_size`. Nothing that is there moves.
 *
 * Parameters:
 * - `exec`: where the region begins.
 * - `size`: its new size in bytes, rounded up to whole pages. A smaller one than it has changes nothing.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_REGION` if none begins there, or it has one view; `JITSYM_ERR_TOO_LARGE`;
 * `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_SINK_FAILED` if the host has closed its file; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
 *
 * Any thread; not from a signal handler. Does file I/O.
 */
JITSYM_API
enum jitsym_status jitsym_region_grow(struct jitsym *session,
                                      void *exec,
                                      uint64_t size);

/**
 * Gives pages of a region back, when no code in them is registered or runs any more. They read zero afterwards, and take memory
 * again when they are written to; for that there has to be room where the file is, or the kernel raises `SIGBUS`.
 *
 * Parameters:
 * - `addr`, `size`: whole pages of the executable view.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_SIZE_ZERO`, `_ALIGNMENT`; `JITSYM_ERR_REGION` if they do not lie in a region.
 * `JITSYM_ERR_NO_MEMORY` if the file system cannot do that, or pages are unmapped. `JITSYM_ERR_SINK_FAILED` if the host has
 * closed the file. Also `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`.
 *
 * Any thread; not from a signal handler. Does file I/O.
 */
JITSYM_API
enum jitsym_status jitsym_region_discard(struct jitsym *session,
                                         void *addr,
                                         uint64_t size);

/**
 * Ends a region. One that was created is unmapped; one that was adopted becomes plain memory again, with the same bytes and
 * protections, under the same conditions as `jitsym_region_adopt`. Code that was registered in it is written before; its file
 * stays, for profiles that are read later. Unregister the code in it as usual. Code that continues to run in adopted memory has
 * to be registered again, to have a name there.
 *
 * Parameters:
 * - `exec`: where the region begins.
 *
 * Returns `JITSYM_OK`; `JITSYM_ERR_REGION`; `JITSYM_ERR_NO_MEMORY`; `JITSYM_ERR_SESSION`, `_CLOSED`, `_FORKED`, `_TIMEOUT`.
 *
 * Any thread; not from a signal handler. Does file I/O.
 */
JITSYM_API
enum jitsym_status jitsym_region_release(struct jitsym *session,
                                         void *exec);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* JITSYM_H */
