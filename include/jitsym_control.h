/*
 * libjitsym: calls to start and stop sinks in a running process, to find the paths of files, to write in crash
 * handlers, and to look up code and walk stacks in the process itself. Few hosts need these calls.
 *
 * Any thread may call all functions of this file at any time. jitsym_enable, jitsym_disable and jitsym_path must not
 * be called from a signal handler.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_CONTROL_H
#define JITSYM_CONTROL_H

/* Generated from src/capi by `JITSYM_UPDATE_HEADER=1 cargo test --test tests header`. Do not edit. */

#include "jitsym.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Sinks in a running process ---------------------------------------------------------------------------------- */

/* Starts sinks for all sessions of a running process. On JITSYM_OK, all known live code is in the files. sinks:
   JITSYM_SINK_* bits. 0: the sinks that options and environment selected for this session (if none: map, jitdump,
   region).
   Returns JITSYM_OK; JITSYM_ERR_FORBIDDEN if the variable JITSYM_LATE is off; JITSYM_ERR_SINK_FAILED if only some
   sinks can start and write; JITSYM_ERR_TIMEOUT after 10 seconds, or if the process exits; JITSYM_ERR_FLAGS,
   _CONFLICT, _NO_SINK, _NO_MEMORY, _THREAD, _SESSION, _CLOSED, _FORKED. Does file I/O. */
JITSYM_API jitsym_status jitsym_enable(jitsym *session, uint32_t sinks);

/* Stops sinks for all sessions of a running process, after writing everything registered before. The files stay, and
   jitsym_enable continues them. sinks: JITSYM_SINK_* bits; 0: all.
   Returns JITSYM_OK, also if the sinks do not run; JITSYM_ERR_SINK_FAILED if a sink could not write everything (it
   is stopped anyway); JITSYM_ERR_TIMEOUT as for jitsym_enable; JITSYM_ERR_FLAGS, _NO_MEMORY, _SESSION, _CLOSED,
   _FORKED. Does file I/O. */
JITSYM_API jitsym_status jitsym_disable(jitsym *session, uint32_t sinks);

/* Copies the NUL-terminated path of a sink's file to buf. JITSYM_DIR_MAX + 64 bytes are always enough.
   Returns JITSYM_OK; JITSYM_ERR_ENUM if sink is not a single JITSYM_SINK_* bit; JITSYM_ERR_NOT_RUNNING if the sink
   does not run or has no file; JITSYM_ERR_TIMEOUT if a region's path is not known within 10 seconds;
   JITSYM_ERR_NULL, _BUFFER, _SESSION, _CLOSED, _FORKED. */
JITSYM_API jitsym_status jitsym_path(jitsym *session, uint32_t sink, char *buf, size_t size);

/* ---- Crash handlers ---------------------------------------------------------------------------------------------- */

/* Writes everything registered before the call, for a crash handler. timeout_ms: the longest wait in milliseconds; 0
   means 1 second.
   Returns JITSYM_OK; JITSYM_ERR_NOT_RUNNING if there is nothing to write; JITSYM_ERR_FORKED if this forked child has
   not continued its parent's sessions yet; JITSYM_ERR_TIMEOUT, _WRITER, _SINK_FAILED, _INTERNAL. Any thread,
   concurrently, and from a signal handler, even on an alternate stack. */
JITSYM_API jitsym_status jitsym_flush_from_signal(uint32_t timeout_ms);

/* Writes the stack as text to the descriptor fd, as far as it takes the text, a line for each function: registered
   code, its inlined functions, and functions of programs and libraries. context: as for jitsym_get_registers; NULL
   for the stack of the caller.
   Returns JITSYM_OK; JITSYM_ERR_ARCH, _NOT_FOUND as jitsym_get_registers. Any thread, concurrently, and from a
   signal handler that has 32 KiB of stack. The call takes no lock, allocates nothing and does not change errno. */
JITSYM_API jitsym_status jitsym_print_stack(int32_t fd, const void *context);

/* ---- Names and stacks in the process itself ---------------------------------------------------------------------- */

/* A function that jitsym_lookup has found. */
typedef struct jitsym_function {
  size_t struct_size;  /* sizeof(jitsym_function), set by the caller. */
  uint64_t addr;       /* Address of the registered code that contains the function. */
  uint64_t size;       /* Size of this code in bytes. */
  uint32_t line;       /* Line at the address; 0 if unknown. If an inlined function is at the address: the line of
                          its call. */
  uint32_t column;     /* Column in this line; 0 if unknown. */
  uint32_t is_inlined; /* 1 if the function is inlined into the function with the next number, otherwise 0. */
  uint32_t reserved;   /* 0. */
  char *name;          /* Receives the name, with a NUL. A longer name is cut. May be NULL. */
  size_t name_size;    /* Bytes at name. */
  size_t name_length;  /* Length of the whole name, without a NUL. */
  char *file;          /* Receives the file of line, which is empty if unknown, like name. May be NULL. */
  size_t file_size;    /* Bytes at file. */
  size_t file_length;  /* Length of the whole file name, without a NUL. */
} jitsym_function;

#define JITSYM_FUNCTION(name, name_size, file, file_size) \
  { sizeof(jitsym_function), 0, 0, 0, 0, 0, 0, name, name_size, 0, file, file_size, 0 }

/* Looks up the function at an address in registered code. number: 0 for the innermost inlined function at the
   address, and so on, up to the function that is not inlined. The struct out is written, and the buffers that it
   names.
   Returns JITSYM_OK; JITSYM_ERR_NOT_FOUND if no registered code is at the address, or no function has this number;
   JITSYM_ERR_NULL, _STRUCT_SIZE. Any thread, concurrently, and from a signal handler. The call takes no lock,
   allocates nothing and makes no system call. */
JITSYM_API jitsym_status jitsym_lookup(const void *pc, uint32_t number, jitsym_function *out);

/* The registers of a frame. */
typedef struct jitsym_registers {
  size_t struct_size;  /* sizeof(jitsym_registers), set by the caller. */
  uint64_t pc;         /* The instruction of the frame. */
  uint32_t is_return;  /* 1 if pc is the address after a call: look up pc - 1. 0 if a signal interrupted the frame at
                          pc. */
  uint32_t known;      /* Bit n is set if values[n] is known. */
  uint64_t values[32]; /* Indexed by the DWARF numbers of the registers. */
} jitsym_registers;

#define JITSYM_REGISTERS \
  { sizeof(jitsym_registers), 0, 0, 0, { 0 } }

/* Stores the registers of the caller of this function. If context is not NULL, stores the registers of the frame
   that a signal has interrupted. context: the third argument of a signal handler (SA_SIGINFO), a ucontext_t.
   Returns JITSYM_OK; JITSYM_ERR_ARCH if the library cannot unwind on this processor; JITSYM_ERR_NOT_FOUND if the
   caller's frame cannot be found; JITSYM_ERR_NULL, _STRUCT_SIZE. Any thread, concurrently, and from a signal
   handler. */
JITSYM_API jitsym_status jitsym_get_registers(const void *context, jitsym_registers *out);

/* Changes the registers of a frame to those of the frame's caller. Uses the unwind description of registered code
   (JITSYM_SINK_LOOKUP), and the unwind tables of programs and libraries. Code without either must keep a frame
   pointer.
   Returns JITSYM_OK; JITSYM_ERR_NOT_FOUND if the frame has no caller, or if the caller cannot be found: registers is
   unchanged; JITSYM_ERR_ARCH, _NULL, _STRUCT_SIZE. Any thread, concurrently, and from a signal handler that has 32
   KiB of stack. The call takes no lock and allocates nothing. It reads memory of the stack by system calls, so a
   damaged stack raises no signal. */
JITSYM_API jitsym_status jitsym_step(jitsym_registers *registers);

/* ---- Values of jitsym_options and jitsym_stats ------------------------------------------------------------------- */

/* The intended reader of the perf map: jitsym_options.map_dialect. */
typedef enum jitsym_map_dialect {
  JITSYM_MAP_PERF = 0,       /* For perf and most other readers: lines START SIZE NAME, hexadecimal without 0x, by
                                default in /tmp. */
  JITSYM_MAP_SIMPLEPERF = 1, /* For Android's simpleperf: lines 0xSTART 0xSIZE NAME, by default in /data/local/tmp. */
} jitsym_map_dialect;

/* Whether pending records survive SIGKILL (jitsym_stats.spool). */
typedef enum jitsym_spool_state {
  JITSYM_SPOOL_NONE = 0,   /* Records are in private memory: after SIGKILL they are lost. */
  JITSYM_SPOOL_SHARED = 1, /* Records are in a spool. After SIGKILL, jitsym recover writes them to the files. */
} jitsym_spool_state;

#ifdef __cplusplus
}
#endif

#endif /* JITSYM_CONTROL_H */
