/*
 * Loads two copies of the library into one process, in the order of the arguments after DIR: each a library that shows the
 * interface, or a plugin that has a table of it (c-tests/support/plugin.c). Each registers code, with a session of its own if the
 * loader lets it. Prints where the code is, and then stands in `reached`.
 */
#include <dlfcn.h>

#include "plugin.h"
#include "testing.h"

/* check.h names statuses by a function of the library, which is not linked here. */
#define OK(call) CHECK((call) == JITSYM_OK)

enum { COPIES = 2 };

/* Where a debugger has a breakpoint. */
__attribute__((noinline)) void reached(void) {
  __asm__ volatile("");
}

/* What of an object can be called: of its own table, if it has one, or by names. */
static struct plugin functions_of(void *object) {
  const struct plugin *table = (const struct plugin *)dlsym(object, "plugin_functions");
  if (table != NULL) {
    return *table;
  }
  struct plugin found;
#define FIND(name)                                 \
  *(void **)(void *)&found.name = dlsym(object, #name); \
  CHECK(found.name != NULL);
  PLUGIN_FUNCTIONS(FIND)
  return found;
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 2 + COPIES);
  struct plugin copies[COPIES];
  jitsym *sessions[COPIES];
  for (int i = 0; i < COPIES; i++) {
    void *object = dlopen(argv[2 + i], RTLD_LAZY | RTLD_GLOBAL);
    if (object == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    copies[i] = functions_of(object);
  }
  for (int i = 0; i < COPIES; i++) {
    jitsym_options options = test_options();
    options.sinks = JITSYM_SINK_GDB;
    OK(copies[i].jitsym_init(&options, &sessions[i]));
    char name[20];
    snprintf(name, sizeof name, "code_of_%d", i);
    jitsym_code code = test_code(0x7100000000 + 0x100000 * (uint64_t)i, 64, name);
    OK(copies[i].jitsym_register(sessions[i], &code, NULL));
    OK(copies[i].jitsym_flush(sessions[i], UINT32_MAX));
  }
  reached();
  for (int i = 0; i < COPIES; i++) {
    OK(copies[i].jitsym_close(sessions[i]));
  }
  printf("ok\n");
  return 0;
}
