/*
 * The static library in a plugin, whose first session has the loader keep the plugin. Two threads open sessions at once, of which one
 * holds the loader's lock, as in the constructor of another plugin. The other one may wait for that lock, and must hold none of the
 * library's. Takes the paths of holder.c's object and of the plugin after the directory.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>

#include "holder.h"
#include "jitsym_control.h"
#include "plugin.h"

#define OK(call) CHECK((call) == JITSYM_OK)

static const struct plugin *plugin;
static int done;
static pid_t other;

static void use(void) {
  jitsym_code code = test_code(0x7000000000, 64, "held");
  jitsym *session = NULL;
  OK(plugin->jitsym_init(NULL, &session));
  OK(plugin->jitsym_register(session, &code, NULL));
  OK(plugin->jitsym_disable(session, 0));
  OK(plugin->jitsym_enable(session, 0));
  OK(plugin->jitsym_close(session));
}

static void *uses(void *unused) {
  __atomic_store_n(&other, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
  use();
  __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
  return unused;
}

/* Whether a thread sleeps, or is gone. */
static int rests(pid_t thread) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return 1;
  }
  size_t len = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[len] = 0;
  const char *end = strrchr(text, ')');
  return end != NULL && end[1] == ' ' && end[2] == 'S';
}

static pthread_t caller;

void while_held(void) {
  static int times;
  if (times++ > 0) {
    return;
  }
  CHECK(pthread_create(&caller, NULL, uses, NULL) == 0);
  TEST_AWAIT(__atomic_load_n(&other, __ATOMIC_SEQ_CST) != 0);
  /* Until it has come as far as it can: one that sleeps for so long waits for the lock. */
  for (int turns = 0; turns < 100 && !__atomic_load_n(&done, __ATOMIC_SEQ_CST);) {
    test_sleep_ms(1);
    turns = rests(other) ? turns + 1 : 0;
  }
  use();
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  test_begin(2, argv);
  setenv("JITSYM_DIR", test_dir, 1);
  void *handle = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != NULL);
  plugin = dlsym(handle, "plugin_functions");
  CHECK(plugin != NULL);
  held_load_and_unload(argv[2]);
  CHECK(pthread_join(caller, NULL) == 0);
  return test_end();
}
