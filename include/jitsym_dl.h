/*
 * libjitsym for programs on machines that may lack the library.
 *
 * Include this file instead of jitsym.h, jitsym_region.h and jitsym_control.h, in C or C++. The three headers describe all
 * functions. Do not link with the library; only glibc before 2.34 needs -ldl.
 *
 * The first call of jitsym_init looks for the library. If the library is not found, and options and environment select the
 * map, the calls write the map themselves (docs/linking.md). If no map is written, every other function does nothing and
 * returns JITSYM_ERR_LIBRARY, at the cost of one load and one branch; jitsym_wanted returns 0, and jitsym_trampoline hands back
 * its target. Later calls of jitsym_init do not look for the library again, but jitsym_dl_load does. Any thread may make the
 * first call.
 *
 *   - The environment variable JITSYM_LIB names the library's file. Programs that run with more rights than their caller ignore
 *     JITSYM_LIB. Without the variable, the dynamic linker looks for libjitsym.so.0.1 in its usual directories (DT_RPATH and
 *     DT_RUNPATH of the program, LD_LIBRARY_PATH, the system's directories). To load a library from another directory, call
 *     jitsym_dl_load(path) first.
 *   - If the library cannot be loaded, JITSYM_DEBUG=1 prints the reason to standard error. JITSYM_DEBUG=PATH writes the reason
 *     to a file, if PATH is absolute.
 *   - Static programs (-static) cannot use this file, because dlopen does not work properly without a dynamic linker.
 *   - A library of another ABI version is not used. The library is never unloaded.
 *   - All source files of a program, or of a shared library, share one state. Another shared library that includes this file
 *     has its own state, and uses the same libjitsym. Such a library must call jitsym_dl_load before it uses a session that is
 *     passed to it.
 *   - Once the library is loaded, a signal handler may call the functions that the three headers allow in signal handlers.
 *
 * While the library is not loaded, jitsym_version_number returns 0. jitsym_last_error with a NULL session gives the reason why
 * loading failed. jitsym_status_name and jitsym_status_text support only JITSYM_ERR_LIBRARY.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_DL_H
#define JITSYM_DL_H

#include "jitsym.h"
#include "jitsym_control.h"
#include "jitsym_map.h"
#include "jitsym_region.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All functions of the three headers. The functions of the map come first. */
#define JITSYM_DL_FUNCTIONS(FUNCTION)  \
  FUNCTION(jitsym_init)                \
  FUNCTION(jitsym_register)            \
  FUNCTION(jitsym_move)                \
  FUNCTION(jitsym_unregister)          \
  FUNCTION(jitsym_unregister_range)    \
  FUNCTION(jitsym_flush)               \
  FUNCTION(jitsym_enable)              \
  FUNCTION(jitsym_close)               \
  FUNCTION(jitsym_get_stats)           \
  FUNCTION(jitsym_wanted)              \
  FUNCTION(jitsym_path)                \
  FUNCTION(jitsym_flush_from_signal)   \
  FUNCTION(jitsym_disable)             \
  FUNCTION(jitsym_print_stack)         \
  FUNCTION(jitsym_lookup)              \
  FUNCTION(jitsym_get_registers)       \
  FUNCTION(jitsym_step)                \
  FUNCTION(jitsym_last_error)          \
  FUNCTION(jitsym_region_create)       \
  FUNCTION(jitsym_region_adopt)        \
  FUNCTION(jitsym_region_grow)         \
  FUNCTION(jitsym_region_discard)      \
  FUNCTION(jitsym_region_release)      \
  FUNCTION(jitsym_alloc)               \
  FUNCTION(jitsym_shrink)              \
  FUNCTION(jitsym_free)                \
  FUNCTION(jitsym_trampoline)          \
  FUNCTION(jitsym_trampoline_free)     \
  FUNCTION(jitsym_status_text)         \
  FUNCTION(jitsym_status_name)         \
  FUNCTION(jitsym_version_number)

typedef struct jitsym_dl_functions {
#define JITSYM_DL_MEMBER(name) __typeof__(name) *name##_;
  JITSYM_DL_FUNCTIONS(JITSYM_DL_MEMBER)
#undef JITSYM_DL_MEMBER
} jitsym_dl_functions;

/*
 * The functions of the library or of jitsym_map.h; NULL until jitsym_init or jitsym_dl_load has found them. The variable is
 * weak, so that all source files of a program share it, and hidden, so that other libraries do not.
 */
__attribute__((weak, visibility("hidden"))) const jitsym_dl_functions *jitsym_dl_loaded;

static inline const jitsym_dl_functions *jitsym_dl_get(void) {
  return __atomic_load_n(&jitsym_dl_loaded, __ATOMIC_ACQUIRE);
}

/* Tells whether `functions` write the map, instead of calling the library. */
static inline int jitsym_dl_is_map(const jitsym_dl_functions *functions) {
  return functions->jitsym_version_number_ == NULL;
}

/*
 * The reason why the last attempt to load the library failed. The thread that has set `busy` owns the text. If jitsym_init
 * finds no library, it sets `missing`, and does not look again.
 */
typedef struct jitsym_dl_reason {
  unsigned char busy, missing;
  char text[1000];
} jitsym_dl_reason;

__attribute__((weak, visibility("hidden"))) jitsym_dl_reason jitsym_dl_why;

/* Locks the text. The wait is limited: after a fork, the holder may be a thread that exists only in the parent process. */
static inline void jitsym_dl_take_why(void) {
  const long nap[2] = {0, 100000};
  int tries = 1000;
  while (__atomic_exchange_n(&jitsym_dl_why.busy, (unsigned char)1, __ATOMIC_ACQUIRE) && --tries > 0)
    syscall(SYS_nanosleep, nap, NULL);
}

static inline void jitsym_dl_give_why(void) {
  __atomic_store_n(&jitsym_dl_why.busy, (unsigned char)0, __ATOMIC_RELEASE);
}

/* Prints the reason, if the user has set JITSYM_DEBUG. */
static inline void jitsym_dl_say_why(void) {
  const char *to = getauxval(AT_SECURE) == 0 ? getenv("JITSYM_DEBUG") : NULL;
  char text[sizeof jitsym_dl_why.text];
  FILE *file;
  if (to == NULL || to[0] == 0 || strcmp(to, "0") == 0 || strcmp(to, "off") == 0) return;
  file = to[0] == '/' ? fopen(to, "ae") : stderr;
  if (file == NULL) return;
  /* The copy lets other threads use the text during the output. */
  jitsym_dl_take_why();
  memcpy(text, jitsym_dl_why.text, sizeof text);
  jitsym_dl_give_why();
  fprintf(file, "jitsym %ld: the library cannot be loaded: %s\n", (long)getpid(), text);
  if (file != stderr) fclose(file);
}

/* Stores and prints the text of dlerror, followed by `more`. */
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
 * Loads the library if it is not loaded yet. `path` is the library's file, or a name for the dynamic linker. If `path` is
 * NULL, the call looks where jitsym_init looks. Any thread may call this function at any time, but no signal handler may. The
 * call does file I/O.
 *
 * Returns JITSYM_OK, also if the library was loaded before; JITSYM_ERR_LIBRARY if no library of this version is found
 * (jitsym_last_error gives the reason, and the call can be repeated); JITSYM_ERR_CONFLICT while a map-only session is
 * open; JITSYM_ERR_NO_MEMORY.
 */
static inline jitsym_status jitsym_dl_load(const char *path) {
  jitsym_dl_functions *functions;
  const jitsym_dl_functions *before = jitsym_dl_get();
  const char *hint = "";
  void *library, *symbol;
  uint32_t version;

  if (before != NULL && !jitsym_dl_is_map(before)) return JITSYM_OK;
  if (JITSYM_MAP_GET(sessions) != 0) return JITSYM_ERR_CONFLICT;
  if (path == NULL && getauxval(AT_SECURE) == 0) path = getenv("JITSYM_LIB");
  /* The library's soname, which every minor version changes while the major version is 0. */
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
  /* ISO C cannot convert a pointer to an object into a pointer to a function, so memcpy copies the pointer. */
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
  if (!__atomic_compare_exchange_n(&jitsym_dl_loaded, &before, functions, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    /* Another thread has stored its functions first. A second dlopen only raises the library's reference count. */
    free(functions);
    if (jitsym_dl_is_map(before)) return JITSYM_ERR_CONFLICT;
  }
  return JITSYM_OK;

other:
  free(functions);
  dlclose(library);
  return JITSYM_ERR_LIBRARY;
}

/* ---- Calls without the library, which write the map ---- */

/* The handle of all sessions. No handle of the library ends in 0x6b. */
#define JITSYM_MAP_SESSION ((jitsym *)0x6b)

static inline jitsym_status jitsym_map_check(const jitsym *session) {
  if (session != JITSYM_MAP_SESSION) return JITSYM_ERR_SESSION;
  return JITSYM_MAP_GET(sessions) != 0 ? JITSYM_OK : JITSYM_ERR_CLOSED;
}

/* The caller was compiled with this header, so its structs have this version's size. */
static inline jitsym_status jitsym_map_check_struct(const void *from, size_t expected) {
  size_t size = expected;
  if (from == NULL) return JITSYM_ERR_NULL;
  memcpy(&size, from, sizeof size);
  return size == expected ? JITSYM_OK : size < expected ? JITSYM_ERR_STRUCT_SIZE : JITSYM_ERR_STRUCT_TAIL;
}

/* Tells whether a value of the variable JITSYM asks for the map. */
static inline int jitsym_map_is_named(const char *value) {
  static const char *const words[] = {"map",    "on",  "1",        "true",     "yes",   "jitdump",
                                      "region", "gdb", "unwinder", "valgrind", "bridge"};
  unsigned found = 0, i;
  for (;; value++) {
    size_t length = strcspn(value += strspn(value, " \t\n\f\r"), ","), size = length;
    while (size > 0 && strchr(" \t\n\f\r", value[size - 1]) != NULL) size--;
    for (i = 0; i < 11; i++)
      if (strlen(words[i]) == size && strncasecmp(value, words[i], size) == 0) found |= i < 5 ? 1 : i < 10 ? 2 : 4;
    if (*(value += length) == 0) return (found & 1) != 0 || found == 4;
  }
}

/* Opens a session, if options and environment ask for the map (src/session/config.rs). */
static inline jitsym_status jitsym_map_init(const jitsym_options *options, jitsym **out) {
  const char *sinks = getenv("JITSYM"), *dir = getenv("JITSYM_DIR");
  const unsigned forks = JITSYM_INIT_FORK_NOW | JITSYM_INIT_FORK_ALONE;
  jitsym_options given = JITSYM_OPTIONS;
  jitsym_status status = out == NULL ? JITSYM_ERR_NULL : JITSYM_OK;
  char start[sizeof jitsym_map.start];
  size_t length, end = 0;
  int wins;
  if (status == JITSYM_OK && options != NULL) status = jitsym_map_check_struct(options, sizeof given);
  if (status != JITSYM_OK) return status;
  if (options != NULL) given = *options;
  if ((given.flags & ~0x7fe7U) != 0 || (given.flags & forks) == forks || (given.sinks & ~127U) != 0) return JITSYM_ERR_FLAGS;
  if ((given.file_mode & ~0777U) != 0 || given.reserved != 0) return JITSYM_ERR_FLAGS;
  if (given.map_dialect > JITSYM_MAP_SIMPLEPERF) return JITSYM_ERR_ENUM;
  wins = (given.flags & JITSYM_INIT_ENV_WINS) != 0;
  if (sinks != NULL && sinks[0] != 0 && (wins || given.sinks == 0)) given.sinks = jitsym_map_is_named(sinks) ? 1 : 2;
  if (given.sinks == 0 && (given.flags & JITSYM_INIT_OFF_BY_DEFAULT) == 0) given.sinks = JITSYM_SINK_MAP;
  if (dir == NULL || dir[0] == 0 || (!wins && given.map_dir != NULL)) dir = given.map_dir != NULL ? given.map_dir : "/tmp";
  length = strlen(dir);
  if (dir[0] != '/' || length > JITSYM_DIR_MAX) return JITSYM_ERR_PATH;
  if ((given.sinks & JITSYM_SINK_MAP) == 0 || given.map_dialect != JITSYM_MAP_PERF || getauxval(AT_SECURE) != 0)
    return JITSYM_ERR_LIBRARY;
  while (length > 0 && dir[length - 1] == '/') length--;
  snprintf(start, sizeof start, "%.*s/perf-", (int)length, dir);

  jitsym_dl_take_why();
  /* Once a map was opened, threads may read its path, so the path stays. */
  if (JITSYM_MAP_GET(pid) == 0) memcpy(jitsym_map.start, start, sizeof start);
  else if (strcmp(start, jitsym_map.start) != 0) status = JITSYM_ERR_CONFLICT;
  if (JITSYM_MAP_GET(sessions) == 0) JITSYM_MAP_SET(mode, given.file_mode != 0 ? given.file_mode | 0600 : 0644);
  if (status == JITSYM_OK && jitsym_map_use(start, 0, &end) < 0) status = JITSYM_ERR_NO_SINK;
  if (status == JITSYM_OK) JITSYM_MAP_ADD(sessions, 1), *out = JITSYM_MAP_SESSION;
  jitsym_dl_give_why();
  return status;
}

static inline jitsym_status jitsym_map_register(jitsym *session, const jitsym_code *code, jitsym_id *out) {
  char name[JITSYM_NAME_MAX + 1];
  jitsym_status status = jitsym_map_check(session);
  if (status == JITSYM_OK) status = jitsym_map_check_struct(code, sizeof *code);
  if (status != JITSYM_OK) return status;
  if ((code->flags & ~7U) != 0 || code->reserved != 0 || code->reserved2 != 0) return JITSYM_ERR_FLAGS;
  status = jitsym_map_line(code->addr, code->size, name, jitsym_map_name(name, code), out);
  JITSYM_MAP_ADD(registered, status == JITSYM_OK);
  return status;
}

/* Finds the line of the id, and writes a line with the same name for the new address. */
static inline jitsym_status jitsym_map_move(jitsym *session, jitsym_id id, const jitsym_move_target *target) {
  char text[JITSYM_MAP_ROOM], *line, *at, *name, *stop;
  size_t end = (size_t)(id >> 16);
  uint64_t size;
  jitsym_status status = jitsym_map_check(session);
  long got = status == JITSYM_OK ? jitsym_map_use(text, 0, &end) : 0;
  if (status != JITSYM_OK) return status;
  if (got <= 0 || text[got - 1] != '\n') return JITSYM_ERR_UNKNOWN_ID;
  for (line = stop = text + got - 1; line > text && line[-1] != '\n';) line--;
  at = (char *)memchr(line, ' ', (size_t)(stop - line));
  if (at == NULL || ((jitsym_map_hash(line, (size_t)(stop + 1 - line)) ^ id) & 0xffff) != 0) return JITSYM_ERR_UNKNOWN_ID;
  size = strtoull(at, &name, 16);
  if (name >= stop) return JITSYM_ERR_UNKNOWN_ID;
  status = jitsym_map_check_struct(target, sizeof *target);
  if (status == JITSYM_OK && ((target->flags & ~5U) != 0 || target->reserved != 0)) status = JITSYM_ERR_FLAGS;
  if (status == JITSYM_OK) status = jitsym_map_line(target->addr, size, name + 1, (size_t)(stop - name - 1), NULL);
  JITSYM_MAP_ADD(moved, status == JITSYM_OK);
  return status;
}

/* Ended code keeps its line, because profiles are read later. */
static inline jitsym_status jitsym_map_unregister(jitsym *session, jitsym_id id) {
  (void)id;
  return jitsym_map_check(session);
}

static inline jitsym_status jitsym_map_unregister_range(jitsym *session, uint64_t addr, uint64_t size, uint32_t flags) {
  (void)addr, (void)size, (void)flags;
  return jitsym_map_check(session);
}

/* Calls write their lines at once, so a flush only makes a forked child's file. */
static inline jitsym_status jitsym_map_flush(jitsym *session, uint32_t timeout_ms) {
  char unused[1];
  size_t end = 0;
  jitsym_status status = jitsym_map_check(session);
  (void)timeout_ms;
  if (status == JITSYM_OK && JITSYM_MAP_GET(pid) != (int)getpid()) jitsym_map_use(unused, 0, &end);
  return status == JITSYM_OK && JITSYM_MAP_GET(error) != 0 ? JITSYM_ERR_SINK_FAILED : status;
}

static inline jitsym_status jitsym_map_enable(jitsym *session, uint32_t sinks) {
  return (sinks & ~1U) == 0 ? jitsym_map_flush(session, 0) : JITSYM_ERR_LIBRARY;
}

static inline uint32_t jitsym_map_wanted(jitsym *session) {
  return jitsym_map_check(session) == JITSYM_OK ? JITSYM_WANT_CODE : 0;
}

static inline jitsym_status jitsym_map_close(jitsym *session) {
  jitsym_status status = jitsym_map_check(session);
  size_t open = JITSYM_MAP_GET(sessions);
  while (status == JITSYM_OK && open != 0 && !__sync_bool_compare_and_swap(&jitsym_map.sessions, open, open - 1))
    open = JITSYM_MAP_GET(sessions);
  return status;
}

static inline jitsym_status jitsym_map_get_stats(jitsym *session, jitsym_stats *out) {
  jitsym_status status = jitsym_map_check(session);
  if (status == JITSYM_OK) status = jitsym_map_check_struct(out, sizeof *out);
  if (status != JITSYM_OK) return status;
  memset(out, 0, sizeof *out);
  out->struct_size = sizeof *out;
  *(JITSYM_MAP_GET(error) == 0 ? &out->sinks_running : &out->sinks_failed) = JITSYM_SINK_MAP;
  out->registered = JITSYM_MAP_GET(registered);
  out->moved = JITSYM_MAP_GET(moved);
  out->write_errors = JITSYM_MAP_GET(errors);
  return JITSYM_OK;
}

static inline jitsym_status jitsym_map_path(jitsym *session, uint32_t sink, char *buffer, size_t size) {
  jitsym_status status = jitsym_map_check(session);
  char path[JITSYM_DIR_MAX + 32];
  if (status != JITSYM_OK) return status;
  if (sink == 0 || (sink & (sink - 1)) != 0 || sink > 127) return JITSYM_ERR_ENUM;
  if (sink != JITSYM_SINK_MAP) return JITSYM_ERR_NOT_RUNNING;
  if (buffer == NULL) return JITSYM_ERR_NULL;
  if ((size_t)snprintf(path, sizeof path, "%s%d.map", jitsym_map.start, (int)getpid()) >= size) return JITSYM_ERR_BUFFER;
  memcpy(buffer, path, strlen(path) + 1);
  return JITSYM_OK;
}

static inline const jitsym_dl_functions *jitsym_map_functions(void) {
  static const jitsym_dl_functions functions = {
    jitsym_map_init, jitsym_map_register, jitsym_map_move, jitsym_map_unregister, jitsym_map_unregister_range, jitsym_map_flush,
    jitsym_map_enable, jitsym_map_close, jitsym_map_get_stats, jitsym_map_wanted, jitsym_map_path,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
  return &functions;
}

/* ---- Calls with or without the library ---- */

/* The functions that a program calls instead of the functions of the three headers. */
#define JITSYM_DL_CALL(name, otherwise, arguments)         \
  const jitsym_dl_functions *functions = jitsym_dl_get();  \
  return functions == NULL || functions->name##_ == NULL ? (otherwise) : functions->name##_ arguments

static inline jitsym_status jitsym_dl_init(const jitsym_options *options, jitsym **out) {
  const jitsym_dl_functions *functions = jitsym_dl_get();
  jitsym_status status;
  int error = errno;
  if (functions == NULL && !__atomic_load_n(&jitsym_dl_why.missing, __ATOMIC_RELAXED)) {
    status = jitsym_dl_load(NULL);
    if (status != JITSYM_OK && status != JITSYM_ERR_LIBRARY) return status;
    if (status == JITSYM_ERR_LIBRARY) __atomic_store_n(&jitsym_dl_why.missing, (unsigned char)1, __ATOMIC_RELAXED);
    functions = jitsym_dl_get();
    errno = error;
  }
  if (functions != NULL) return functions->jitsym_init_(options, out);
  status = jitsym_map_init(options, out);
  if (status != JITSYM_OK) return status;
  __atomic_compare_exchange_n(&jitsym_dl_loaded, &functions, jitsym_map_functions(), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  /* Another thread may have loaded the library meanwhile. */
  return functions == NULL || jitsym_dl_is_map(functions) ? status : functions->jitsym_init_(options, out);
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

/* Inlined, so that the stack begins with the function that calls. */
__attribute__((always_inline)) static inline jitsym_status jitsym_dl_print_stack(int32_t fd, const void *context) {
  JITSYM_DL_CALL(jitsym_print_stack, JITSYM_ERR_LIBRARY, (fd, context));
}

__attribute__((always_inline)) static inline jitsym_status jitsym_dl_get_registers(const void *context, jitsym_registers *out) {
  JITSYM_DL_CALL(jitsym_get_registers, JITSYM_ERR_LIBRARY, (context, out));
}

static inline jitsym_status jitsym_dl_step(jitsym_registers *registers) {
  JITSYM_DL_CALL(jitsym_step, JITSYM_ERR_LIBRARY, (registers));
}

static inline jitsym_status jitsym_dl_lookup(const void *pc, uint32_t number, jitsym_function *out) {
  JITSYM_DL_CALL(jitsym_lookup, JITSYM_ERR_LIBRARY, (pc, number, out));
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
  jitsym_status status = session == NULL ? JITSYM_OK : functions == NULL ? JITSYM_ERR_LIBRARY : jitsym_map_check(session);
  char text[sizeof jitsym_dl_why.text + 1200];
  int error = JITSYM_MAP_GET(error), is_open = JITSYM_MAP_GET(sessions) != 0, length;
  if (functions != NULL && !jitsym_dl_is_map(functions)) return functions->jitsym_last_error_(session, buffer, size);
  if (status != JITSYM_OK) return status;
  if (buffer == NULL) return JITSYM_ERR_NULL;
  if (size == 0) return JITSYM_ERR_BUFFER;
  jitsym_dl_take_why();
  length = snprintf(text, sizeof text, "%s%s", jitsym_dl_why.text, is_open ? "; a map is written without it" : "");
  if (error != 0) snprintf(text + length, 1100, "; %s%d.map: error %d", jitsym_map.start, (int)getpid(), error);
  jitsym_dl_give_why();
  if (strlen(text) >= size) text[size - 1] = 0;
  memcpy(buffer, text, strlen(text) + 1);
  return JITSYM_OK;
}

static inline jitsym_status jitsym_dl_path(jitsym *session, uint32_t sink, char *buffer, size_t size) {
  JITSYM_DL_CALL(jitsym_path, JITSYM_ERR_LIBRARY, (session, sink, buffer, size));
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

/* Without the library, every entry is the target. */
static inline jitsym_status jitsym_dl_trampoline(jitsym *session, void *target, uint32_t stack_words, const jitsym_code *code,
                                                 void **out_entry) {
  const jitsym_dl_functions *functions = jitsym_dl_get();
  if (functions != NULL && functions->jitsym_trampoline_ != NULL)
    return functions->jitsym_trampoline_(session, target, stack_words, code, out_entry);
  if (out_entry == NULL) return JITSYM_ERR_NULL;
  *out_entry = target;
  return JITSYM_OK;
}

static inline jitsym_status jitsym_dl_trampoline_free(jitsym *session, void *entry) {
  JITSYM_DL_CALL(jitsym_trampoline_free, JITSYM_OK, (session, entry));
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
#define jitsym_print_stack jitsym_dl_print_stack
#define jitsym_get_registers jitsym_dl_get_registers
#define jitsym_step jitsym_dl_step
#define jitsym_lookup jitsym_dl_lookup
#define jitsym_enable jitsym_dl_enable
#define jitsym_disable jitsym_dl_disable
#define jitsym_close jitsym_dl_close
#define jitsym_get_stats jitsym_dl_get_stats
#define jitsym_wanted jitsym_dl_wanted
#define jitsym_last_error jitsym_dl_last_error
#define jitsym_path jitsym_dl_path
#define jitsym_region_create jitsym_dl_region_create
#define jitsym_region_adopt jitsym_dl_region_adopt
#define jitsym_region_grow jitsym_dl_region_grow
#define jitsym_region_discard jitsym_dl_region_discard
#define jitsym_region_release jitsym_dl_region_release
#define jitsym_alloc jitsym_dl_alloc
#define jitsym_shrink jitsym_dl_shrink
#define jitsym_free jitsym_dl_free
#define jitsym_trampoline jitsym_dl_trampoline
#define jitsym_trampoline_free jitsym_dl_trampoline_free
#define jitsym_status_text jitsym_dl_status_text
#define jitsym_status_name jitsym_dl_status_name
#define jitsym_version_number jitsym_dl_version_number

#endif /* JITSYM_DL_H */
