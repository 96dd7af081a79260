/*
 * Declares the functions of jitsym_moarvm.c, and redirects the calls in src/jit/compile.c that handle memory for code to
 * them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_MOARVM_H
#define JITSYM_MOARVM_H

void MVM_jitsym_init(void);
void MVM_jitsym_close(void);
void MVM_jitsym_compiled(MVMThreadContext *tc, MVMJitGraph *jg, MVMJitCode *code);
void * MVM_jitsym_alloc_pages(size_t size, int mode);
void * MVM_jitsym_writable(void *memory);
int MVM_jitsym_set_page_mode(void *memory, size_t size, int mode);
int MVM_jitsym_free_pages(void *memory, size_t size, int is_region);

#ifdef JITSYM_MOARVM_MEMORY
#define MVM_platform_alloc_pages(size, mode) MVM_jitsym_alloc_pages(size, mode)
#define MVM_platform_set_page_mode(memory, size, mode) MVM_jitsym_set_page_mode(memory, size, mode)
#define MVM_platform_free_pages(memory, size) MVM_jitsym_free_pages(memory, size, code->jitsym_memory)
#define dasm_encode(compiler, memory) dasm_encode(compiler, MVM_jitsym_writable(memory))
#endif

#endif
