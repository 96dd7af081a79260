/*
 * Declares the functions of lj_jitsym.c that LuaJIT's own files call.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef LJ_JITSYM_H
#define LJ_JITSYM_H

#include "lj_jit.h"

LJ_FUNC void lj_jitsym_open(void);
LJ_FUNC void lj_jitsym_recorder(jit_State *J);
LJ_FUNC void lj_jitsym_recins(jit_State *J);
LJ_FUNC void lj_jitsym_copyins(jit_State *J, IRRef ref);
LJ_FUNC void lj_jitsym_asmins(jit_State *J, IRRef ref, MCode *mcode);
LJ_FUNC void lj_jitsym_addtrace(jit_State *J, GCtrace *T);
LJ_FUNC void lj_jitsym_addstubs(ExitNo first, MCode *begin, MCode *end);
LJ_FUNC int lj_jitsym_keeparea(void *area, size_t size);
LJ_FUNC void *lj_jitsym_takearea(size_t size);
LJ_FUNC int lj_jitsym_mprotect(void *area, size_t size, int protection);
LJ_FUNC int lj_jitsym_munmap(void *area, size_t size);

#endif
