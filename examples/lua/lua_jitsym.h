/*
 * Lua functions as frames: the interpreter enters each Lua function through a trampoline with the function's name.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef LUA_JITSYM_H
#define LUA_JITSYM_H

#include "lstate.h"

/* Runs the function of `ci`, as luaV_execute does, through the function's trampoline. */
void lua_jitsym_execute(lua_State *L, CallInfo *ci);
/* Runs a Lua function that a Lua function has called. Returns 0 if the caller has to run the function itself. */
int lua_jitsym_call(lua_State *L, CallInfo *ci);
/* Frees the trampoline of a function. */
void lua_jitsym_free(Proto *f);

#endif
