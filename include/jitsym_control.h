/*
 * libjitsym: calls to start and stop sinks in a running process, to write in crash handlers, and to find the paths
 * of files. Few hosts need these calls.
 *
 * Any thread may call all functions of this file at any time. Only jitsym_flush_from_signal may be called from a
 * signal handler.
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
