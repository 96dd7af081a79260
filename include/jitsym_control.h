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

/* Starts sinks for all sessions of a running process. When the call returns JITSYM_OK, all known live code is in the
   files. sinks: JITSYM_SINK_* bits. 0: the sinks that options and environment selected for this session (if none:
   map, jitdump, region).
   Returns JITSYM_OK; JITSYM_ERR_FLAGS for other bits; JITSYM_ERR_FORBIDDEN if the variable JITSYM_LATE is off;
   JITSYM_ERR_CONFLICT, _NO_SINK, _SINK_FAILED, _TIMEOUT (10 seconds), _NO_MEMORY, _THREAD, _SESSION, _CLOSED,
   _FORKED. Does file I/O. */
JITSYM_API jitsym_status jitsym_enable(jitsym *session, uint32_t sinks);

/* Stops sinks for all sessions of a running process. The call first writes everything that was registered before.
   The files stay, and jitsym_enable continues them. sinks: JITSYM_SINK_* bits; 0: all.
   Returns JITSYM_OK, also if the sinks do not run; JITSYM_ERR_FLAGS for other bits; JITSYM_ERR_SINK_FAILED if a sink
   could not write everything (the sink is stopped anyway); JITSYM_ERR_NO_MEMORY; JITSYM_ERR_TIMEOUT as for
   jitsym_enable; JITSYM_ERR_SESSION, _CLOSED, _FORKED. Does file I/O. */
JITSYM_API jitsym_status jitsym_disable(jitsym *session, uint32_t sinks);

/* Copies the NUL-terminated path of a sink's file to buf. JITSYM_DIR_MAX + 64 bytes are always enough.
   Returns JITSYM_OK; JITSYM_ERR_ENUM if sink is not a single JITSYM_SINK_* bit; JITSYM_ERR_NOT_RUNNING if the sink
   does not run or has no file; JITSYM_ERR_NULL; JITSYM_ERR_BUFFER if the path does not fit; JITSYM_ERR_TIMEOUT if
   the path of a region's file is not known within 10 seconds; JITSYM_ERR_SESSION, _CLOSED, _FORKED. */
JITSYM_API jitsym_status jitsym_path(jitsym *session, uint32_t sink, char *buf, size_t size);

/* ---- Crash handlers ---------------------------------------------------------------------------------------------- */

/* Writes everything that was registered before the call, for a crash handler. timeout_ms: the longest wait in
   milliseconds; 0 means 1 second. The call needs no session.
   Returns JITSYM_OK; JITSYM_ERR_TIMEOUT; JITSYM_ERR_NOT_RUNNING or _FORKED if there is nothing to write;
   JITSYM_ERR_WRITER, _SINK_FAILED, _INTERNAL. Any thread, concurrently, and from a signal handler, even on an
   alternate stack. */
JITSYM_API jitsym_status jitsym_flush_from_signal(uint32_t timeout_ms);

/* ---- Values of jitsym_options and jitsym_stats ------------------------------------------------------------------- */

/* The intended reader of the perf map: jitsym_options.map_dialect. */
typedef enum jitsym_map_dialect {
  JITSYM_MAP_PERF = 0,       /* The format for perf and most other readers. A line is START SIZE NAME, hexadecimal
                                without 0x. The default directory is /tmp. */
  JITSYM_MAP_SIMPLEPERF = 1, /* The format for Android's simpleperf. A line is 0xSTART 0xSIZE NAME. The default
                                directory is /data/local/tmp. */
} jitsym_map_dialect;

/* Whether pending records survive SIGKILL (jitsym_stats.spool). */
typedef enum jitsym_spool_state {
  JITSYM_SPOOL_NONE = 0,   /* Records are in private memory: after SIGKILL they are lost. */
  JITSYM_SPOOL_SHARED = 1, /* Records are in a spool. After SIGKILL, jitsym recover writes these records to the
                              files. */
} jitsym_spool_state;

#ifdef __cplusplus
}
#endif

#endif /* JITSYM_CONTROL_H */
