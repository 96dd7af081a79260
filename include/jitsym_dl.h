/*
 * libjitsym for programs on machines that may lack the library.
 *
 * Include this file instead of jitsym.h, jitsym_region.h and jitsym_control.h, in C or C++. Do not link with the library. No
 * source file and no linker option is needed (except for -ldl with glibc before 2.34). The three headers describe all
 * functions.
 *
 * The first call of jitsym_init looks for the library. Until the library is loaded, every other function does nothing and
 * returns JITSYM_ERR_LIBRARY, at the cost of one load and one branch; jitsym_wanted returns 0. If the library is not found,
 * later calls of jitsym_init do not look for it again, but jitsym_dl_load does. Any thread may make the first call. If several
 * threads make the first call at the same time, each of them may look for the library.
 *
 *   - The environment variable JITSYM_LIB names the library's file. Programs that run with more rights than their caller ignore
 *     JITSYM_LIB. Without the variable, the dynamic linker looks for libjitsym.so.0.1 in its usual places (DT_RPATH and
 *     DT_RUNPATH of the program, LD_LIBRARY_PATH, the system's directories). A program that has the library elsewhere calls
 *     jitsym_dl_load(path) first.
 *   - If the library cannot be loaded, JITSYM_DEBUG=1 prints the reason to standard error. JITSYM_DEBUG=PATH writes the reason
 *     to a file, if PATH is absolute.
 *   - Programs without a dynamic linker (-static) cannot use this file, because dlopen does not work properly in them.
 *   - A library of another ABI version is not used. The library is never unloaded.
 *   - All source files of a program, or of a shared library, share one state. Another shared library that includes this file
 *     has its own state, and uses the same libjitsym. Such a library has to call jitsym_dl_load before it uses a session that
 *     was passed to it.
 *   - Once the library is loaded, a signal handler may call the functions that the three headers allow in signal handlers.
 *
 * While the library is not loaded, jitsym_status_name and jitsym_status_text know only JITSYM_ERR_LIBRARY, jitsym_last_error
 * with a NULL session gives the reason why the library could not be loaded, and jitsym_version_number returns 0.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_DL_H
#define JITSYM_DL_H

#include "jitsym.h"
#include "jitsym_control.h"
#include "jitsym_region.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every function of the three headers. */
#define JITSYM_DL_FUNCTIONS(FUNCTION)  \
  FUNCTION(jitsym_init)                \
  FUNCTION(jitsym_register)            \
  FUNCTION(jitsym_move)                \
  FUNCTION(jitsym_unregister)          \
  FUNCTION(jitsym_unregister_range)    \
  FUNCTION(jitsym_flush)               \
  FUNCTION(jitsym_flush_from_signal)   \
  FUNCTION(jitsym_enable)              \
  FUNCTION(jitsym_disable)             \
  FUNCTION(jitsym_close)               \
  FUNCTION(jitsym_get_stats)           \
  FUNCTION(jitsym_wanted)              \
  FUNCTION(jitsym_last_error)          \
  FUNCTION(jitsym_path)                \
  FUNCTION(jitsym_unwind_size)         \
  FUNCTION(jitsym_region_create)       \
  FUNCTION(jitsym_region_adopt)        \
  FUNCTION(jitsym_region_grow)         \
  FUNCTION(jitsym_region_discard)      \
  FUNCTION(jitsym_region_release)      \
  FUNCTION(jitsym_alloc)               \
  FUNCTION(jitsym_shrink)              \
  FUNCTION(jitsym_free)                \
  FUNCTION(jitsym_status_text)         \
  FUNCTION(jitsym_status_name)         \
  FUNCTION(jitsym_version_number)

typedef struct jitsym_dl_functions {
#define JITSYM_DL_MEMBER(name) __typeof__(name) *name##_;
  JITSYM_DL_FUNCTIONS(JITSYM_DL_MEMBER)
#undef JITSYM_DL_MEMBER
} jitsym_dl_functions;

/*
 * The library's functions, or NULL. The variable is weak, so that all source files of a program share it. It is hidden, so that
 * nothing else shares it.
 */
__attribute__((weak, visibility("hidden"))) const jitsym_dl_functions *jitsym_dl_loaded;

static inline const jitsym_dl_functions *jitsym_dl_get(void) {
  return __atomic_load_n(&jitsym_dl_loaded, __ATOMIC_ACQUIRE);
}

/*
 * The reason why the last attempt to load the library failed. The text belongs to the thread that has set `busy`. `missing` is
 * set once jitsym_init has found no library; jitsym_init then does not look again.
 */
typedef struct jitsym_dl_reason {
  unsigned char busy, missing;
  char text[1000];
} jitsym_dl_reason;

__attribute__((weak, visibility("hidden"))) jitsym_dl_reason jitsym_dl_why;

/*
 * Waits until no other thread holds the text, and takes it. The wait is limited: after a fork, the holder may be a thread of
 * the parent process, which does not exist in this process.
 */
static inline void jitsym_dl_take_why(void) {
  int tries = 100000;
  while (__atomic_exchange_n(&jitsym_dl_why.busy, (unsigned char)1, __ATOMIC_ACQUIRE) && --tries > 0) sched_yield();
}

static inline void jitsym_dl_give_why(void) {
  __atomic_store_n(&jitsym_dl_why.busy, (unsigned char)0, __ATOMIC_RELEASE);
}

/* Writes the reason, if the user has asked for it (JITSYM_DEBUG). */
static inline void jitsym_dl_say_why(void) {
  const char *to = getauxval(AT_SECURE) == 0 ? getenv("JITSYM_DEBUG") : NULL;
  char text[sizeof jitsym_dl_why.text];
  FILE *file;
  if (to == NULL || to[0] == 0 || strcmp(to, "0") == 0 || strcmp(to, "off") == 0) return;
  file = to[0] == '/' ? fopen(to, "ae") : stderr;
  if (file == NULL) return;
  /* Copies the text, so that no thread waits for the text during the output. */
  jitsym_dl_take_why();
  memcpy(text, jitsym_dl_why.text, sizeof text);
  jitsym_dl_give_why();
  fprintf(file, "jitsym %ld: the library cannot be loaded: %s\n", (long)getpid(), text);
  if (file != stderr) fclose(file);
}

/* Notes the text of dlerror, and `more`. */
static inline void jitsym_dl_note_error(const char *more) {
  const char *error = dlerror();
  jitsym_dl_take_why();
  snprintf(jitsym_dl_why.text, sizeof jitsym_dl_why.text, "%s%s", error != NULL ? error : "", more);
  jitsym_dl_give_why();
  jitsym_dl_say_why();
}

static inline void jitsym_dl_note_version(const char *path, uint32_t version) {
  jitsym_dl_take_why();
  snprintf(jitsym_dl_why.text, sizeof jitsym_dl_why.text, "%s is version %u.%u.%u, and not %d.%d", path,
           (unsigned)(version / 1000000), (unsigned)(version / 1000 % 1000), (unsigned)(version % 1000),
           JITSYM_VERSION_MAJOR, JITSYM_VERSION_MINOR);
  jitsym_dl_give_why();
  jitsym_dl_say_why();
}

/*
 * Loads the library, unless it is loaded already. `path` is the library's file, or a name for the dynamic linker. If `path` is
 * NULL, the call looks where jitsym_init looks. The call does file I/O. Any thread may call this function at any time, but a
 * signal handler may not.
 *
 * Returns JITSYM_OK, also if the library was loaded before; JITSYM_ERR_LIBRARY if no library of this version is found
 * (jitsym_last_error gives the reason, and the call can be repeated); JITSYM_ERR_NO_MEMORY.
 */
static inline jitsym_status jitsym_dl_load(const char *path) {
  jitsym_dl_functions *functions;
  const jitsym_dl_functions *none = NULL;
  const char *hint = "";
  void *library, *symbol;
  uint32_t version;

  if (jitsym_dl_get() != NULL) return JITSYM_OK;
  if (path == NULL && getauxval(AT_SECURE) == 0) path = getenv("JITSYM_LIB");
  /* The library's soname: while the major version is 0, every minor version has its own soname. */
  if (path == NULL || path[0] == 0) {
    path = "libjitsym.so.0.1";
    hint = "; the variable JITSYM_LIB may name the file";
  }
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    jitsym_dl_note_error(hint);
    return JITSYM_ERR_LIBRARY;
  }
  functions = (jitsym_dl_functions *)malloc(sizeof *functions);
  if (functions == NULL) {
    dlclose(library);
    return JITSYM_ERR_NO_MEMORY;
  }
  /* ISO C cannot convert a pointer to an object into a pointer to a function. So memcpy copies the pointer. */
#define JITSYM_DL_RESOLVE(name)                          \
  symbol = dlsym(library, #name);                        \
  if (symbol == NULL) {                                  \
    jitsym_dl_note_error(hint);                          \
    goto other;                                          \
  }                                                      \
  memcpy(&functions->name##_, &symbol, sizeof symbol);
  JITSYM_DL_FUNCTIONS(JITSYM_DL_RESOLVE)
#undef JITSYM_DL_RESOLVE
  version = functions->jitsym_version_number_();
  if (version / 1000 != JITSYM_VERSION_NUMBER / 1000) {
    jitsym_dl_note_version(path, version);
    goto other;
  }
  if (!__atomic_compare_exchange_n(&jitsym_dl_loaded, &none, functions, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    /* Another thread was faster. The library stays open, because dlopen counts how often the library was opened. */
    free(functions);
  }
  return JITSYM_OK;

other:
  free(functions);
  dlclose(library);
  return JITSYM_ERR_LIBRARY;
}

/* The functions that a program calls instead of the functions of the three headers. */
#define JITSYM_DL_CALL(name, otherwise, arguments)         \
  const jitsym_dl_functions *functions = jitsym_dl_get();  \
  return functions == NULL ? (otherwise) : functions->name##_ arguments

static inline jitsym_status jitsym_dl_init(const jitsym_options *options, jitsym **out) {
  jitsym_status status = JITSYM_ERR_LIBRARY;
  if (jitsym_dl_get() != NULL || !__atomic_load_n(&jitsym_dl_why.missing, __ATOMIC_RELAXED)) {
    status = jitsym_dl_load(NULL);
    if (status == JITSYM_ERR_LIBRARY) __atomic_store_n(&jitsym_dl_why.missing, (unsigned char)1, __ATOMIC_RELAXED);
  }
  return status != JITSYM_OK ? status : jitsym_dl_get()->jitsym_init_(options, out);
}

static inline jitsym_status jitsym_dl_register(jitsym *session, const jitsym_code *code, jitsym_id *out) {
  JITSYM_DL_CALL(jitsym_register, JITSYM_ERR_LIBRARY, (session, code, out));
}

static inline jitsym_status jitsym_dl_move(jitsym *session, jitsym_id id, const jitsym_move_target *target) {
  JITSYM_DL_CALL(jitsym_move, JITSYM_ERR_LIBRARY, (session, id, target));
}

static inline jitsym_status jitsym_dl_unregister(jitsym *session, jitsym_id id) {
  JITSYM_DL_CALL(jitsym_unregister, JITSYM_ERR_LIBRARY, (session, id));
}

static inline jitsym_status jitsym_dl_unregister_range(jitsym *session, uint64_t addr, uint64_t size, uint32_t flags) {
  JITSYM_DL_CALL(jitsym_unregister_range, JITSYM_ERR_LIBRARY, (session, addr, size, flags));
}

static inline jitsym_status jitsym_dl_flush(jitsym *session, uint32_t timeout_ms) {
  JITSYM_DL_CALL(jitsym_flush, JITSYM_ERR_LIBRARY, (session, timeout_ms));
}

static inline jitsym_status jitsym_dl_flush_from_signal(uint32_t timeout_ms) {
  JITSYM_DL_CALL(jitsym_flush_from_signal, JITSYM_ERR_LIBRARY, (timeout_ms));
}

static inline jitsym_status jitsym_dl_enable(jitsym *session, uint32_t sinks) {
  JITSYM_DL_CALL(jitsym_enable, JITSYM_ERR_LIBRARY, (session, sinks));
}

static inline jitsym_status jitsym_dl_disable(jitsym *session, uint32_t sinks) {
  JITSYM_DL_CALL(jitsym_disable, JITSYM_ERR_LIBRARY, (session, sinks));
}

static inline jitsym_status jitsym_dl_close(jitsym *session) {
  JITSYM_DL_CALL(jitsym_close, JITSYM_ERR_LIBRARY, (session));
}

static inline jitsym_status jitsym_dl_get_stats(jitsym *session, jitsym_stats *out) {
  JITSYM_DL_CALL(jitsym_get_stats, JITSYM_ERR_LIBRARY, (session, out));
}

static inline uint32_t jitsym_dl_wanted(jitsym *session) {
  JITSYM_DL_CALL(jitsym_wanted, 0, (session));
}

static inline jitsym_status jitsym_dl_last_error(jitsym *session, char *buffer, size_t size) {
  const jitsym_dl_functions *functions = jitsym_dl_get();
  size_t length;
  if (functions != NULL) return functions->jitsym_last_error_(session, buffer, size);
  if (session != NULL) return JITSYM_ERR_LIBRARY;
  if (buffer == NULL) return JITSYM_ERR_NULL;
  if (size == 0) return JITSYM_ERR_BUFFER;
  jitsym_dl_take_why();
  length = strlen(jitsym_dl_why.text);
  if (length >= size) length = size - 1;
  memcpy(buffer, jitsym_dl_why.text, length);
  jitsym_dl_give_why();
  buffer[length] = 0;
  return JITSYM_OK;
}

static inline jitsym_status jitsym_dl_path(jitsym *session, uint32_t sink, char *buffer, size_t size) {
  JITSYM_DL_CALL(jitsym_path, JITSYM_ERR_LIBRARY, (session, sink, buffer, size));
}

static inline jitsym_status jitsym_dl_unwind_size(const jitsym_unwind *unwind, uint64_t code_size, uint64_t *out) {
  JITSYM_DL_CALL(jitsym_unwind_size, JITSYM_ERR_LIBRARY, (unwind, code_size, out));
}

static inline jitsym_status jitsym_dl_region_create(jitsym *session, const jitsym_region_options *options, jitsym_region *out) {
  JITSYM_DL_CALL(jitsym_region_create, JITSYM_ERR_LIBRARY, (session, options, out));
}

static inline jitsym_status jitsym_dl_region_adopt(jitsym *session, void *addr, uint64_t size) {
  JITSYM_DL_CALL(jitsym_region_adopt, JITSYM_ERR_LIBRARY, (session, addr, size));
}

static inline jitsym_status jitsym_dl_region_grow(jitsym *session, void *exec, uint64_t size) {
  JITSYM_DL_CALL(jitsym_region_grow, JITSYM_ERR_LIBRARY, (session, exec, size));
}

static inline jitsym_status jitsym_dl_region_discard(jitsym *session, void *addr, uint64_t size) {
  JITSYM_DL_CALL(jitsym_region_discard, JITSYM_ERR_LIBRARY, (session, addr, size));
}

static inline jitsym_status jitsym_dl_region_release(jitsym *session, void *exec) {
  JITSYM_DL_CALL(jitsym_region_release, JITSYM_ERR_LIBRARY, (session, exec));
}

static inline jitsym_status jitsym_dl_alloc(jitsym *session, uint64_t size, uint64_t alignment, uint64_t near_addr,
                                            jitsym_region *out) {
  JITSYM_DL_CALL(jitsym_alloc, JITSYM_ERR_LIBRARY, (session, size, alignment, near_addr, out));
}

static inline jitsym_status jitsym_dl_shrink(jitsym *session, void *exec, uint64_t size) {
  JITSYM_DL_CALL(jitsym_shrink, JITSYM_ERR_LIBRARY, (session, exec, size));
}

static inline jitsym_status jitsym_dl_free(jitsym *session, void *exec) {
  JITSYM_DL_CALL(jitsym_free, JITSYM_ERR_LIBRARY, (session, exec));
}

static inline const char *jitsym_dl_status_text(int32_t status) {
  JITSYM_DL_CALL(jitsym_status_text, status == JITSYM_ERR_LIBRARY ? "the shared library was not found, or is another version"
                                                                 : "unknown, because the shared library is not loaded",
                 (status));
}

static inline const char *jitsym_dl_status_name(int32_t status) {
  JITSYM_DL_CALL(jitsym_status_name, status == JITSYM_ERR_LIBRARY ? "JITSYM_ERR_LIBRARY" : "JITSYM_?", (status));
}

static inline uint32_t jitsym_dl_version_number(void) {
  JITSYM_DL_CALL(jitsym_version_number, 0, ());
}

#undef JITSYM_DL_CALL

#ifdef __cplusplus
}
#endif

#define jitsym_init jitsym_dl_init
#define jitsym_register jitsym_dl_register
#define jitsym_move jitsym_dl_move
#define jitsym_unregister jitsym_dl_unregister
#define jitsym_unregister_range jitsym_dl_unregister_range
#define jitsym_flush jitsym_dl_flush
#define jitsym_flush_from_signal jitsym_dl_flush_from_signal
#define jitsym_enable jitsym_dl_enable
#define jitsym_disable jitsym_dl_disable
#define jitsym_close jitsym_dl_close
#define jitsym_get_stats jitsym_dl_get_stats
#define jitsym_wanted jitsym_dl_wanted
#define jitsym_last_error jitsym_dl_last_error
#define jitsym_path jitsym_dl_path
#define jitsym_unwind_size jitsym_dl_unwind_size
#define jitsym_region_create jitsym_dl_region_create
#define jitsym_region_adopt jitsym_dl_region_adopt
#define jitsym_region_grow jitsym_dl_region_grow
#define jitsym_region_discard jitsym_dl_region_discard
#define jitsym_region_release jitsym_dl_region_release
#define jitsym_alloc jitsym_dl_alloc
#define jitsym_shrink jitsym_dl_shrink
#define jitsym_free jitsym_dl_free
#define jitsym_status_text jitsym_dl_status_text
#define jitsym_status_name jitsym_dl_status_name
#define jitsym_version_number jitsym_dl_version_number

#endif /* JITSYM_DL_H */
