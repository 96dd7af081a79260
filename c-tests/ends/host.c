/*
 * A program that unloads a plugin with a session open. Takes the plugin's path after the directory: ends.c as a shared
 * object, with the library linked into it or beside it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"

static char *dir;
static void (*run)(char *dir, uint32_t thread);
static pthread_barrier_t together;

static void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void *load(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  }
  CHECK(handle != NULL);
  void *symbol = dlsym(handle, "ends_plugin");
  CHECK(symbol != NULL);
  memcpy(&run, &symbol, sizeof symbol);
  return handle;
}

/* Has registered something when the plugin is unloaded, and ends later. */
static void *outlives(void *unused) {
  (void)unused;
  run(dir, 1);
  pthread_barrier_wait(&together);
  pthread_barrier_wait(&together);
  return NULL;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  dir = argv[1];
  void *handle = load(argv[2]);
  run(dir, 0);
  pthread_t thread;
  CHECK(pthread_barrier_init(&together, NULL, 2) == 0);
  CHECK(pthread_create(&thread, NULL, outlives, NULL) == 0);
  pthread_barrier_wait(&together);
  CHECK(dlclose(handle) == 0);
  /* Some passes of the writer. */
  sleep_ms(150);
  pthread_barrier_wait(&together);
  CHECK(pthread_join(thread, NULL) == 0);
  /* Nobody but the writer holds it now, if that does. */
  CHECK(dlclose(load(argv[2])) == 0);
  sleep_ms(1500);
  return 0;
}
