/*
 * Between CPython and jitsym_cpython.c: the functions that build.sh makes CPython's own files call.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_CPYTHON_H
#define JITSYM_CPYTHON_H

#include "pycore_ceval.h"

void _PyJitsym_Begin(void);
void _PyJitsym_AddArena(void *memory, size_t size);
void _PyJitsym_FreeArena(void *memory, size_t size);
int _PyJitsym_AfterFork(int persist);
int _PyJitsym_CountThreads(void);
void _PyJitsym_Flush(void);

/* What CPython has itself, for a machine without the library. */
extern _PyPerf_Callbacks _PyJitsym_own_map_callbacks, _PyJitsym_own_jit_callbacks;
int _PyJitsym_OwnPerfMapState_Init(void);
int _PyJitsym_OwnWritePerfMapEntry(const void *code_addr, unsigned int code_size, const char *entry_name);
void _PyJitsym_OwnPerfMapState_Fini(void);
int _PyJitsym_OwnCopyPerfMapFile(const char *parent_filename);

#ifndef JITSYM_CPYTHON_GLUE
#define _Py_perfmap_callbacks _PyJitsym_own_map_callbacks
#define _Py_perfmap_jit_callbacks _PyJitsym_own_jit_callbacks
#define PyUnstable_PerfMapState_Init _PyJitsym_OwnPerfMapState_Init
#define PyUnstable_WritePerfMapEntry _PyJitsym_OwnWritePerfMapEntry
#define PyUnstable_PerfMapState_Fini _PyJitsym_OwnPerfMapState_Fini
#define PyUnstable_CopyPerfMapFile _PyJitsym_OwnCopyPerfMapFile
#endif

#endif
