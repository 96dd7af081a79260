/*
 * A program that unloads a plugin in which nobody has written anything, while threads that have called it live on. Takes the
 * plugin's path after the directory: plugin.c, with the static library inside. Nothing of it is left: its memory is given to
 * nobody, so that whatever would call into it crashes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include "jitsym_control.h"
#include "maps.h"
#include "plugin.h"
#include "testing.h"

/* check.h names statuses by a function of the library, which is not linked here. */
#define OK(call) CHECK((call) == JITSYM_OK)

enum { THREADS = 3, CYCLES = PTHREAD_KEYS_MAX + 16 };

static const char *plugin_path;

static const struct plugin *load(void **handle) {
  *handle = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
  if (*handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  }
  CHECK(*handle != NULL);
  const struct plugin *plugin = dlsym(*handle, "plugin_functions");
  CHECK(plugin != NULL);
  return plugin;
}

/* Unloads it, and sees to it that nothing else comes to lie where it was. */
static void unload(void *handle, const struct plugin *plugin) {
  struct mapping object = mapping_at(plugin), part;
  while ((part = mapping_at((void *)(object.start - 1))).end != 0 && strcmp(part.path, object.path) == 0) {
    object.start = part.start;
  }
  CHECK(dlclose(handle) == 0);
  CHECK(dlopen(plugin_path, RTLD_NOW | RTLD_NOLOAD) == NULL);
  size_t size = object.end - object.start;
  void *start = mmap((void *)object.start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK((uintptr_t)start == object.start);
}

/* ------------------------------------------------------------------------------------------------ what was called */

static void texts(const struct plugin *plugin) {
  jitsym_stats stats = {.struct_size = sizeof stats};
  char text[256];
  CHECK(plugin->jitsym_version_number() == JITSYM_VERSION_NUMBER);
  CHECK(plugin->jitsym_last_error(NULL, text, sizeof text) != JITSYM_ERR_NULL);
  CHECK(plugin->jitsym_get_stats(NULL, &stats) == JITSYM_ERR_SESSION);
  CHECK(plugin->jitsym_flush_from_signal(0) == JITSYM_ERR_NOT_RUNNING);
  CHECK(plugin->jitsym_close(NULL) == JITSYM_ERR_SESSION);
}

static jitsym *open_off(const struct plugin *plugin) {
  jitsym *session = NULL;
  OK(plugin->jitsym_init(NULL, &session));
  return session;
}

static void use(const struct plugin *plugin, jitsym *session) {
  static const unsigned char bytes[16] = {0xc3};
  jitsym_code code = {.struct_size = sizeof code, .addr = 0x7000000000, .size = sizeof bytes, .bytes = bytes, .name = "off"};
  jitsym_move_target target = {.struct_size = sizeof target, .addr = 0x7000001000, .bytes = bytes};
  jitsym_stats stats = {.struct_size = sizeof stats};
  jitsym_id id = 1;
  char text[256];
  OK(plugin->jitsym_register(session, &code, &id));
  CHECK(id == 0);
  OK(plugin->jitsym_move(session, id, &target));
  OK(plugin->jitsym_unregister(session, id));
  OK(plugin->jitsym_unregister_range(session, code.addr, code.size, 0));
  OK(plugin->jitsym_flush(session, 0));
  OK(plugin->jitsym_get_stats(session, &stats));
  OK(plugin->jitsym_last_error(session, text, sizeof text));
  CHECK(plugin->jitsym_path(session, JITSYM_SINK_MAP, text, sizeof text) == JITSYM_ERR_NOT_RUNNING);
  CHECK(plugin->jitsym_enable(session, 0) == JITSYM_ERR_FORBIDDEN);
  OK(plugin->jitsym_disable(session, 0));
}

static void open_and_close(const struct plugin *plugin) {
  jitsym *session = open_off(plugin);
  use(plugin, session);
  OK(plugin->jitsym_close(session));
}

/* Of two sessions that are off only one is known without a look at it. */
static void leave_open(const struct plugin *plugin) {
  jitsym *one = open_off(plugin), *other = open_off(plugin);
  use(plugin, one);
  use(plugin, other);
}

static void bad_arguments(const struct plugin *plugin) {
  jitsym_options options = {.struct_size = 1};
  jitsym *session = NULL;
  CHECK(plugin->jitsym_init(&options, &session) == JITSYM_ERR_STRUCT_SIZE);
  CHECK(plugin->jitsym_init(NULL, NULL) == JITSYM_ERR_NULL);
}

static void fork_with_it(const struct plugin *plugin) {
  jitsym *session = open_off(plugin);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    use(plugin, session);
    _exit(0);
  }
  test_wait_ok(child);
}

static void (*const uses[])(const struct plugin *) = {texts, open_and_close, leave_open, bad_arguments, fork_with_it};
enum { USES = sizeof uses / sizeof uses[0] };

/* ------------------------------------------------------------------------------------------------ who called, and what comes after */

static void (*used)(const struct plugin *);
static const struct plugin *shared_plugin;
static pthread_barrier_t together;

/* Has called it when it is unloaded, and ends later. */
static void *outlives(void *unused) {
  used(shared_plugin);
  pthread_barrier_wait(&together);
  pthread_barrier_wait(&together);
  return unused;
}

static void (*how_it_ends)(void);

static void ends_by_exit(void) {
  exit(0);
}

static void ends_quickly(void) {
  quick_exit(0);
}

/* The C library ends the process with its last thread. */
static void ends_with_thread(void) {
  pthread_exit(NULL);
}

static void scenario(void) {
  void *handle;
  pthread_t threads[THREADS];
  shared_plugin = load(&handle);
  CHECK(pthread_barrier_init(&together, NULL, THREADS + 1) == 0);
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, outlives, NULL) == 0);
  }
  used(shared_plugin);
  pthread_barrier_wait(&together);
  unload(handle, shared_plugin);
  pthread_barrier_wait(&together);
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    _exit(0);
  }
  test_wait_ok(child);
  how_it_ends();
}

/* A plugin whose session is off and has asked for the bridge stays, as does the bridge's thread. */
static void bridge_stays(void) {
  void *handle;
  const struct plugin *plugin = load(&handle);
  jitsym_options options = {.struct_size = sizeof options, .flags = JITSYM_INIT_BRIDGE};
  jitsym *session = NULL;
  OK(plugin->jitsym_init(&options, &session));
  OK(plugin->jitsym_close(session));
  CHECK(dlclose(handle) == 0);
  CHECK(dlopen(plugin_path, RTLD_NOW | RTLD_NOLOAD) != NULL);
}

/* A host that loads and unloads plugins all day has all that it had. */
static void again_and_again(void) {
  for (int i = 0; i < CYCLES; i++) {
    void *handle;
    leave_open(load(&handle));
    CHECK(dlclose(handle) == 0);
    CHECK(dlopen(plugin_path, RTLD_NOW | RTLD_NOLOAD) == NULL);
  }
  pthread_key_t key;
  CHECK(pthread_key_create(&key, NULL) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  plugin_path = argv[2];
  test_begin(2, argv);
  setenv("JITSYM", "off", 1);
  setenv("JITSYM_LATE", "off", 1);
  setenv("JITSYM_DIR", test_dir, 1);
  static void (*const ends[])(void) = {ends_by_exit, ends_quickly, ends_with_thread};
  for (int i = 0; i < USES; i++) {
    for (int end = 0; end < 3; end++) {
      used = uses[i];
      how_it_ends = ends[end];
      test_child(scenario);
    }
  }
  test_child(again_and_again);
  test_child(bridge_stays);
  CHECK(test_files_in(test_dir) == 0);
  return test_end();
}
