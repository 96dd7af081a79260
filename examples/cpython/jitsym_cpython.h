/*
 * Declares the functions of jitsym_cpython.c that CPython's own files call after build.sh has changed them.
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

/* CPython's own writers. The jitdump is written on a machine without the library. The map is not used. */
extern _PyPerf_Callbacks _PyJitsym_own_map_callbacks, _PyJitsym_own_jit_callbacks;

#ifndef JITSYM_CPYTHON_GLUE
#define _Py_perfmap_callbacks _PyJitsym_own_map_callbacks
#define _Py_perfmap_jit_callbacks _PyJitsym_own_jit_callbacks
#endif

#endif
