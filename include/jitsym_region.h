/*
 * libjitsym: code memory in which every profiler finds the names of code, and descriptions of inlined functions.
 *
 * docs/regions.md describes regions and their limits. Any thread may call all functions of this file at any time. No
 * function of this file may be called from a signal handler.
 *
 * Fork: memory of jitsym_alloc and regions with two views are shared memory. Before fork returns in the parent and
 * in the child, the child makes its own copy. fork waits for this copy 1 second at most, and 1 second more for each
 * 256 MiB. In a child without a complete copy, calls return JITSYM_ERR_FORKED. If memory is short, the child cannot
 * access the views. If fork did not wait long enough, the child may have code that the parent wrote after the fork.
 * A child of clone or _Fork, which run no fork handlers, still shares the memory, so it must not write there.
 * Other regions' pages stay shared until they are written. A child's first registration in such a region copies the
 * region: no other thread may write there meanwhile (docs/regions.md).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_REGION_H
#define JITSYM_REGION_H

/* Generated from src/capi by `JITSYM_UPDATE_HEADER=1 cargo test --test tests header`. Do not edit. */

#include "jitsym.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Memory for pieces of code ----------------------------------------------------------------------------------- */

/* A region of code memory, or memory from jitsym_alloc. */
typedef struct jitsym_region {
  size_t struct_size; /* sizeof(jitsym_region), set by the caller. */
  void *exec;         /* Where code runs: readable and executable. Register code at this address. */
  void *write;        /* Where code is written: the same memory, readable and writable. */
  uint64_t size;      /* Size in bytes. */
} jitsym_region;

#define JITSYM_REGION \
  { sizeof(jitsym_region), NULL, NULL, 0 }

/* Allocates memory for one piece of code. Write the code at out->write; register and run it at out->exec. The memory
   stays until jitsym_free, even if the session is closed. size: in bytes, at most 1 GiB, rounded up to a multiple of
   64. alignment: a power of two up to 4096, or 0; values below 64 count as 64. near_addr: all of the memory is
   within 2 GiB of this address; 0: anywhere.
   Returns JITSYM_OK; JITSYM_ERR_NULL, _STRUCT_SIZE, _SIZE_ZERO, _TOO_LARGE, _ALIGNMENT, _NO_MEMORY, _SESSION,
   _CLOSED, _FORKED, _BUSY, _TIMEOUT. Does file I/O at times. */
JITSYM_API jitsym_status jitsym_alloc(jitsym *session, uint64_t size, uint64_t alignment, uint64_t near_addr,
                                      jitsym_region *out);

/* Makes memory from jitsym_alloc smaller, and frees the rest. Call this before the code is registered. exec: start
   of the memory in the executable view. size: bytes still needed, at most the memory's size; rounded up to a
   multiple of 64.
   Returns JITSYM_OK; JITSYM_ERR_SIZE_ZERO, _TOO_LARGE, _REGION, _SESSION, _CLOSED, _FORKED, _BUSY, _TIMEOUT. */
JITSYM_API jitsym_status jitsym_shrink(jitsym *session, void *exec, uint64_t size);

/* Unregisters all code in memory from jitsym_alloc, and frees the memory. No thread may still run this code. exec:
   start of the memory in the executable view. session: any open session.
   Returns JITSYM_OK; JITSYM_ERR_REGION, _SESSION, _CLOSED, _FORKED, _BUSY, _TIMEOUT. Does file I/O at times. */
JITSYM_API jitsym_status jitsym_free(jitsym *session, void *exec);

/* ---- Trampolines ------------------------------------------------------------------------------------------------- */

/* Makes a function that calls target with the same arguments, and returns the same result. Stacks show this function
   with the name, file, line and lines of code (JITSYM_CODE(NULL, 0, name); flags may be JITSYM_CODE_MORE, other
   fields must be 0). target: a function of any type. stack_words: how many words (8 bytes) of arguments the caller
   passes on the stack; at most 32. out_entry: gets the function's address. If session is NULL, no sink runs and no
   code is remembered, or the library makes no code for this machine, it gets target.
   Returns JITSYM_OK; JITSYM_ERR_NULL, _STRUCT_SIZE, _STRUCT_TAIL, _FLAGS, also for a field that must be 0;
   JITSYM_ERR_TOO_LARGE for too many words; or a status of jitsym_alloc or jitsym_register. After an error, no
   function was made. Does file I/O at times. */
JITSYM_API jitsym_status jitsym_trampoline(jitsym *session, void *target, uint32_t stack_words, const jitsym_code *code,
                                           void **out_entry);

/* Unregisters and frees a function from jitsym_trampoline. No thread may still run it, or its target below it.
   entry: the function's address. Another address, such as a target that jitsym_trampoline has handed back, is left
   alone. session: any open session. If it is NULL, the call does nothing.
   Returns JITSYM_OK; JITSYM_ERR_SESSION, _CLOSED, _FORKED, _BUSY, _TIMEOUT. Does file I/O at times. */
JITSYM_API jitsym_status jitsym_trampoline_free(jitsym *session, void *entry);

/* ---- Regions ----------------------------------------------------------------------------------------------------- */

/* Bit flags of a region. */
typedef enum jitsym_region_flag {
  JITSYM_REGION_ONE_VIEW = 1,   /* One view of private memory. The runtime changes the memory's protection
                                   (mprotect). */
  JITSYM_REGION_HUGE_PAGES = 2, /* Alignment to 2 MiB, and huge pages if the kernel has them for this memory. */
} jitsym_region_flag;

/* The options of a region of code memory. */
typedef struct jitsym_region_options {
  size_t struct_size; /* sizeof(jitsym_region_options). */
  uint64_t size;      /* Size in bytes, rounded up to whole pages; at most 1 GiB. */
  uint64_t max_size;  /* Largest size in bytes, for jitsym_region_grow; at most 1 GiB. 0 means size. */
  uint64_t alignment; /* Alignment of the executable view: a power of two, at most 512 MiB. 0: a page. */
  uint64_t near_addr; /* All of the executable view is within 2 GiB of this address. 0: anywhere. */
  uint32_t flags;     /* JITSYM_REGION_* bits. */
  uint32_t reserved;  /* Must be 0. */
} jitsym_region_options;

#define JITSYM_REGION_OPTIONS(size) \
  { sizeof(jitsym_region_options), JITSYM_CAST(uint64_t, size), 0, 0, 0, 0, 0 }

/* Makes a region of code memory: a mapping of an ELF file that the library writes. The memory stays until
   jitsym_region_release, even if the session is closed.
   Returns JITSYM_OK; JITSYM_ERR_NULL, _STRUCT_SIZE, _STRUCT_TAIL, _FLAGS, _SIZE_ZERO, _TOO_LARGE, _ALIGNMENT,
   _NO_MEMORY, _SESSION, _CLOSED, _FORKED, _TIMEOUT. Does file I/O. */
JITSYM_API jitsym_status jitsym_region_create(jitsym *session, const jitsym_region_options *options,
                                              jitsym_region *out);

/* Adds memory at the end of a region with two views, up to jitsym_region_options.max_size. Existing memory does not
   move. exec: where the region begins. size: the new size in bytes, rounded up to whole pages; a smaller size
   changes nothing.
   Returns JITSYM_OK; JITSYM_ERR_REGION, also if the region has one view; JITSYM_ERR_SINK_FAILED if the host has
   closed the region's file, and the library cannot reopen it; JITSYM_ERR_TOO_LARGE, _NO_MEMORY, _SESSION, _CLOSED,
   _FORKED, _TIMEOUT. Does file I/O. */
JITSYM_API jitsym_status jitsym_region_grow(jitsym *session, void *exec, uint64_t size);

/* Frees the memory of whole pages of a region. The pages then read as zero. No code in the pages may still be
   registered or run. addr, size: the pages, in the executable view.
   Returns JITSYM_OK; JITSYM_ERR_NO_MEMORY if the file system cannot discard pages, or some pages are unmapped;
   JITSYM_ERR_SINK_FAILED if the host has closed the file and the library cannot reopen it, or this forked child has
   no file for the region; JITSYM_ERR_SIZE_ZERO, _ALIGNMENT, _REGION, _SESSION, _CLOSED, _FORKED. Does file I/O. */
JITSYM_API jitsym_status jitsym_region_discard(jitsym *session, void *addr, uint64_t size);

/* Ends a region. A created region is unmapped. An adopted region becomes plain memory with the same bytes,
   protections, locks and advice. exec: where the region begins. During the call, other threads may execute adopted
   memory, but must not write to it or change its protection. The call unregisters no code.
   Returns JITSYM_OK; JITSYM_ERR_REGION, _NO_MEMORY, _SESSION, _CLOSED, _FORKED, _TIMEOUT. Does file I/O. */
JITSYM_API jitsym_status jitsym_region_release(jitsym *session, void *exec);

/* ---- Memory of the runtime --------------------------------------------------------------------------------------- */

/* Turns existing memory into a region: a private mapping of an ELF file with the same bytes and protections replaces
   the memory. addr, size: whole pages, at most 1 GiB. During the call, other threads may execute the memory, but
   must not write to it or change its protection. After a failure the memory is unchanged.
   Returns JITSYM_OK; JITSYM_ERR_SINK_FAILED if the file cannot be made or must not be executed (noexec, SELinux
   execmod); JITSYM_ERR_SIZE_ZERO, _ALIGNMENT, _ADDRESS_RANGE, _TOO_LARGE, _NOT_PLAIN, _LOCKED, _REGION, _NO_MEMORY,
   _NOT_RUNNING, _SESSION, _CLOSED, _FORKED, _TIMEOUT. Does file I/O. */
JITSYM_API jitsym_status jitsym_region_adopt(jitsym *session, void *addr, uint64_t size);

/* ---- Inlined functions ------------------------------------------------------------------------------------------- */

/* A range of code that was inlined from another function. */
typedef struct jitsym_inline {
  uint32_t begin;        /* Offset in the code, in bytes, of the first byte of the range. */
  uint32_t end;          /* Offset in the code, in bytes, of the first byte after the range. */
  const char *name;      /* Name of the inlined function, cleaned like jitsym_code.name. The cleaned name must not be
                            empty. */
  size_t name_len;       /* Length of name in bytes; 0 if a NUL ends name. */
  const char *call_file; /* Source file of the call, NUL-terminated; see jitsym_line.file. */
  uint32_t call_line;    /* Line of the call, from 1. */
  uint32_t call_column;  /* Column of the call, from 1; 0 if unknown. */
  uint32_t parent;       /* Index of the earlier entry that contains this entry. UINT32_MAX: none. */
  uint32_t reserved;     /* Must be 0. */
} jitsym_inline;

#ifdef __cplusplus
}
#endif

#endif /* JITSYM_REGION_H */
