/*
 * Declares the functions of jitsym_cpython.c that CPython's own files call after build.sh has changed them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_CPYTHON_H
#define JITSYM_CPYTHON_H

int _PyJitsym_CountThreads(void);
void _PyJitsym_Flush(void);

/* CPython's own functions, which run without the library. */
int _PyJitsym_OwnIsActive(void);
int _PyJitsym_OwnInit(int activate);
int _PyJitsym_OwnCompileCode(PyCodeObject *co);
PyStatus _PyJitsym_OwnAfterFork(void);

#ifdef JITSYM_CPYTHON_OWN
#define _PyIsPerfTrampolineActive _PyJitsym_OwnIsActive
#define _PyPerfTrampoline_Init _PyJitsym_OwnInit
#define PyUnstable_PerfTrampoline_CompileCode _PyJitsym_OwnCompileCode
#define _PyPerfTrampoline_AfterFork_Child _PyJitsym_OwnAfterFork
#endif

#endif
