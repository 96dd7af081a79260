/*
 * The library loaded by hand, as language bindings and plug-ins do it: with local symbols, with no work done at load time,
 * and unloaded and loaded again with a session open. Takes the library's path and "now" or "lazy" after the directory.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"
#include "jitsym_control.h"
#include "jitsym_region.h"

/* The declarations are used for their types alone: the program is not linked with the library. */
#define FUNCTIONS(FUNCTION)          \
  FUNCTION(jitsym_init)              \
  FUNCTION(jitsym_register)          \
  FUNCTION(jitsym_move)              \
  FUNCTION(jitsym_unregister)        \
  FUNCTION(jitsym_unregister_range)  \
  FUNCTION(jitsym_flush)             \
  FUNCTION(jitsym_close)             \
  FUNCTION(jitsym_get_stats)         \
  FUNCTION(jitsym_last_error)        \
  FUNCTION(jitsym_path)              \
  FUNCTION(jitsym_region_create)     \
  FUNCTION(jitsym_region_adopt)      \
  FUNCTION(jitsym_region_grow)       \
  FUNCTION(jitsym_region_discard)    \
  FUNCTION(jitsym_region_release)    \
  FUNCTION(jitsym_alloc)             \
  FUNCTION(jitsym_shrink)            \
  FUNCTION(jitsym_free)              \
  FUNCTION(jitsym_print_stack)       \
  FUNCTION(jitsym_lookup)            \
  FUNCTION(jitsym_get_registers)     \
  FUNCTION(jitsym_step)              \
  FUNCTION(jitsym_trampoline)        \
  FUNCTION(jitsym_trampoline_free)   \
  FUNCTION(jitsym_status_text)       \
  FUNCTION(jitsym_status_name)       \
  FUNCTION(jitsym_version_number)

static struct {
#define MEMBER(name) __typeof__(name) *name;
  FUNCTIONS(MEMBER)
} lib;

static void *load(const char *path, int mode) {
  void *handle = dlopen(path, mode);
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  }
  CHECK(handle != NULL);
  void *symbol;
  /* By way of memcpy, because ISO C does not convert between object and function pointers. */
#define RESOLVE(name)               \
  symbol = dlsym(handle, #name);    \
  CHECK(symbol != NULL);            \
  memcpy(&lib.name, &symbol, sizeof symbol);
  FUNCTIONS(RESOLVE)
  return handle;
}

static int entries(const char *path) {
  DIR *dir = opendir(path);
  CHECK(dir != NULL);
  int count = 0;
  while (readdir(dir) != NULL) {
    count++;
  }
  closedir(dir);
  return count;
}

/* check.h names statuses by a function of the library, which is not linked here. */
#define OK(call) CHECK((call) == JITSYM_OK)

static void use(jitsym *session, uint64_t addr) {
  static const unsigned char bytes[64] = {0xc3};
  jitsym_code code;
  memset(&code, 0, sizeof code);
  code.struct_size = sizeof code;
  code.addr = addr;
  code.size = sizeof bytes;
  code.bytes = bytes;
  code.name = "loaded";
  jitsym_id id = 0;
  OK(lib.jitsym_register(session, &code, &id));
  CHECK(id != 0);
  jitsym_move_target target;
  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  target.addr = addr + 0x100;
  target.bytes = bytes;
  OK(lib.jitsym_move(session, id, &target));
  OK(lib.jitsym_flush(session, 60000));
  OK(lib.jitsym_unregister(session, id));
  OK(lib.jitsym_unregister_range(session, addr, 0x1000, 0));
  OK(lib.jitsym_flush(session, 60000));
  jitsym_stats stats;
  stats.struct_size = sizeof stats;
  OK(lib.jitsym_get_stats(session, &stats));
  CHECK(stats.live == 0 && stats.registered > 0 && stats.registered == stats.moved);
  char text[JITSYM_DIR_MAX + 33];
  OK(lib.jitsym_last_error(session, text, sizeof text));
  CHECK(text[0] == 0);
  OK(lib.jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text));
  struct stat status;
  CHECK(stat(text, &status) == 0 && status.st_size > 0);
  jitsym_region_options wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.struct_size = sizeof wanted;
  wanted.size = 1;
  wanted.max_size = 1 << 20;
  jitsym_region region = {sizeof region, NULL, NULL, 0};
  OK(lib.jitsym_region_create(session, &wanted, &region));
  memcpy(region.write, bytes, sizeof bytes);
  CHECK(memcmp(region.exec, bytes, sizeof bytes) == 0);
  OK(lib.jitsym_region_grow(session, region.exec, 1 << 16));
  OK(lib.jitsym_region_discard(session, region.exec, region.size));
  CHECK(lib.jitsym_region_adopt(session, region.exec, region.size) == JITSYM_ERR_REGION);
  OK(lib.jitsym_region_release(session, region.exec));
  OK(lib.jitsym_alloc(session, 100, 0, 0, &region));
  OK(lib.jitsym_shrink(session, region.exec, 10));
  OK(lib.jitsym_free(session, region.exec));
  CHECK(lib.jitsym_version_number() == JITSYM_VERSION_NUMBER);
  CHECK(strcmp(lib.jitsym_status_name(JITSYM_OK), "JITSYM_OK") == 0 && lib.jitsym_status_text(JITSYM_OK)[0] != 0);
}

int main(int argc, char **argv) {
  CHECK(argc >= 4);
  setenv("JITSYM_DIR", argv[1], 1);
  unsetenv("JITSYM");
  const char *path = argv[2];
  int mode = RTLD_LOCAL | (strcmp(argv[3], "lazy") == 0 ? RTLD_LAZY : RTLD_NOW);

  /* Loading does nothing that can be seen: no thread, no open file, no file in the directory. */
  int files = entries("/proc/self/fd"), threads = entries("/proc/self/task"), left = entries(argv[1]);
  void *handle = load(path, mode);
  CHECK(entries("/proc/self/fd") == files && entries("/proc/self/task") == threads && entries(argv[1]) == left);
  CHECK(dlsym(RTLD_DEFAULT, "jitsym_init") == NULL);

  /* Loaded and unloaded unused: even then it stays, because its exit handler does. */
  CHECK(dlclose(handle) == 0);
  CHECK((handle = dlopen(path, mode | RTLD_NOLOAD)) != NULL);
  CHECK(dlclose(handle) == 0);
  handle = load(path, mode);

  jitsym *session = NULL;
  OK(lib.jitsym_init(NULL, &session));
  use(session, 0x7000000000);
  /* It stays in memory when it is unloaded: the session goes on, and who loads it again gets the same library. */
  CHECK(dlclose(handle) == 0);
  use(session, 0x7000001000);
  CHECK((handle = dlopen(path, mode | RTLD_NOLOAD)) != NULL);
  CHECK(dlclose(handle) == 0);
  __typeof__(lib.jitsym_init) before = lib.jitsym_init;
  handle = load(path, mode);
  CHECK(lib.jitsym_init == before);
  use(session, 0x7000002000);
  jitsym *second = NULL;
  OK(lib.jitsym_init(NULL, &second));
  OK(lib.jitsym_close(session));
  use(second, 0x7000003000);
  CHECK(lib.jitsym_flush(session, 0) == JITSYM_ERR_CLOSED);
  /* Unloaded with a session open, which is finished at exit. */
  CHECK(dlclose(handle) == 0);
  puts("ok");
  return 0;
}
