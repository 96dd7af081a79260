/*
 * Lua functions as frames (lua_jitsym.h).
 *
 * Lua runs a Lua function that another Lua function calls in the same frame of C. Here, such a call is a call of luaV_execute
 * through a trampoline, so that both functions are on the stack. A function that is called last (OP_TAILCALL) still runs in
 * the frame of its caller, under the caller's name.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "jitsym_dl.h"

#include "ldebug.h"
#include "lvm.h"
#include "lua_jitsym.h"

/* A script that calls deeper than this many bytes of stack continues without trampolines, because the stack of C is limited. */
#define LUA_JITSYM_STACK (4 << 20)

typedef void (*lua_jitsym_entry)(lua_State *, CallInfo *);

static jitsym *lua_jitsym_session;

/* The session stays NULL without the library, or if the user does not turn it on: then nothing changes. */
__attribute__((constructor)) static void lua_jitsym_open(void) {
  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.flags = JITSYM_INIT_OFF_BY_DEFAULT;
  if (jitsym_init(&options, &lua_jitsym_session) != JITSYM_OK) lua_jitsym_session = NULL;
}

/* The function's trampoline. It is made when the function is first called, because only a call tells the function's name. */
static lua_jitsym_entry lua_jitsym_entry_of(lua_State *L, CallInfo *ci) {
  Proto *f = clLvalue(s2v(ci->func))->p;
  if (f->jitsym == NULL && (jitsym_wanted(lua_jitsym_session) & JITSYM_WANT_CODE)) {
    void *entry = (void *)(uintptr_t)luaV_execute;
    lua_Debug call;
    memset(&call, 0, sizeof call);
    call.i_ci = ci;
    lua_getinfo(L, "nS", &call);
    const char *name = f->linedefined == 0 ? "chunk" : call.name != NULL ? call.name : "function";
    jitsym_code code = JITSYM_CODE(NULL, 0, name);
    code.file = call.source[0] == '@' ? call.source + 1 : call.short_src;
    code.line = f->linedefined > 0 ? (uint32_t)f->linedefined : 1;
    jitsym_trampoline(lua_jitsym_session, entry, 0, &code, &entry);
    f->jitsym = entry;
  }
  return f->jitsym != NULL ? (lua_jitsym_entry)(uintptr_t)f->jitsym : luaV_execute;
}

void lua_jitsym_execute(lua_State *L, CallInfo *ci) {
  lua_jitsym_entry_of(L, ci)(L, ci);
}

int lua_jitsym_call(lua_State *L, CallInfo *ci) {
  static __thread char *bottom;
  char here;
  if (bottom == NULL || &here > bottom) bottom = &here;
  if (lua_jitsym_session == NULL || bottom - &here > LUA_JITSYM_STACK) return 0;
  lua_jitsym_entry entry = lua_jitsym_entry_of(L, ci);
  if (entry == luaV_execute) return 0;
  /* luaV_execute returns when this function returns. */
  ci->callstatus |= CIST_FRESH;
  entry(L, ci);
  return 1;
}

void lua_jitsym_free(Proto *f) {
  if (f->jitsym != NULL) jitsym_trampoline_free(lua_jitsym_session, f->jitsym);
}
