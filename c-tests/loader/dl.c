/*
 * The loader jitsym_dl.h: without the library nothing happens if no map is wanted (map_alone.c has the map), everything with it,
 * in all files of a program, and whichever thread comes first. Takes the library's path and a mode after the directory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

/* How often the loader has looked for a library. The library itself calls dlopen too. */
static int looks;

static void *counted_dlopen(const char *path, int flags) {
  __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED);
  return dlopen(path, flags);
}

#define dlopen counted_dlopen
#include "jitsym_dl.h"
#undef dlopen

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "dl.h"

static jitsym_options options;

static jitsym_code some_code(void) {
  static const unsigned char bytes[16];
  jitsym_code code;
  memset(&code, 0, sizeof code);
  code.struct_size = sizeof code;
  code.addr = 0x10000;
  code.size = sizeof bytes;
  code.bytes = bytes;
  code.name = "dl_code";
  return code;
}

/* What each function does without the library: nothing, and it says so. */
static void test_absent(void) {
  jitsym *session = NULL;
  jitsym_code code = some_code();
  jitsym_id id = 17;
  jitsym_stats stats;
  char buffer[64] = "untouched";
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_init(&options, &session));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_register(session, &code, &id));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_move(session, id, NULL));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_unregister(session, id));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_unregister_range(session, code.addr, code.size, 0));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_unregister_range(session, code.addr, code.size, JITSYM_RANGE_UNMAP));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_flush(session, 0));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_flush_from_signal(0));
  jitsym_registers registers = JITSYM_REGISTERS;
  jitsym_function function = JITSYM_FUNCTION(buffer, sizeof buffer, NULL, 0);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_print_stack(1, NULL));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_get_registers(NULL, &registers));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_step(&registers));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_lookup(buffer, 0, &function));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_enable(session, 0));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_disable(session, 0));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_get_stats(session, &stats));
  CHECK(jitsym_wanted(session) == 0);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_last_error((jitsym *)&code, buffer, sizeof buffer));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_path(session, JITSYM_SINK_MAP, buffer, sizeof buffer));
  jitsym_region_options wanted;
  jitsym_region region;
  memset(&wanted, 0, sizeof wanted);
  memset(&region, 0, sizeof region);
  wanted.struct_size = sizeof wanted;
  wanted.size = 4096;
  region.struct_size = sizeof region;
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_create(session, &wanted, &region));
  CHECK(region.exec == NULL && region.write == NULL && region.size == 0);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_adopt(session, buffer, 4096));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_grow(session, buffer, 4096));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_discard(session, buffer, 4096));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_region_release(session, buffer));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_alloc(session, 64, 0, 0, &region));
  CHECK(region.exec == NULL);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_shrink(session, buffer, 64));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_free(session, buffer));
  void *entry = NULL;
  CHECK_OK(jitsym_trampoline(session, buffer, 0, &code, &entry));
  CHECK(entry == buffer);
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_trampoline(session, buffer, 0, &code, NULL));
  CHECK_OK(jitsym_trampoline_free(session, entry));
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_close(session));
  CHECK(session == NULL && id == 17 && strcmp(buffer, "untouched") == 0);
  CHECK(strcmp(jitsym_status_name(JITSYM_ERR_LIBRARY), "JITSYM_ERR_LIBRARY") == 0);
  CHECK(strstr(jitsym_status_text(JITSYM_ERR_LIBRARY), "not found") != NULL);
  CHECK(jitsym_status_name(JITSYM_ERR_NULL)[0] != 0 && jitsym_status_text(JITSYM_ERR_NULL)[0] != 0);
  CHECK(jitsym_version_number() == 0);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, other_file_registers(session, &code));
}

/* A runtime that opens a session for each of its states looks once, and again when it says so. */
static void test_once(const char *library) {
  jitsym *session = NULL;
  for (int i = 0; i < 10; i++) CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_init(&options, &session));
  CHECK(looks == 1);
  char why[512];
  CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
  CHECK(strstr(why, "libjitsym") != NULL);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_dl_load(NULL));
  CHECK(looks == 2);
  CHECK_OK(jitsym_dl_load(library));
  CHECK(looks == 3);
  for (int i = 0; i < 10; i++) {
    CHECK_OK(jitsym_init(&options, &session));
    CHECK_OK(jitsym_close(session));
  }
  CHECK(looks == 3);
}

/* Why there is no library: nothing is said before somebody has looked for it. */
static void test_why(void) {
  jitsym *session = NULL;
  char why[2000] = "untouched", cut[8];
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_last_error(NULL, NULL, sizeof why));
  CHECK_STATUS(JITSYM_ERR_BUFFER, jitsym_last_error(NULL, why, 0));
  CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
  CHECK(why[0] == 0);
  CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_init(&options, &session));
  CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
  CHECK_OK(jitsym_last_error(NULL, cut, sizeof cut));
  CHECK(strlen(cut) == sizeof cut - 1 && memcmp(cut, why, sizeof cut - 1) == 0);
  memset(cut, 1, sizeof cut);
  CHECK_OK(other_file_asks_why(cut, sizeof cut));
  CHECK(memcmp(cut, why, sizeof cut - 1) == 0);
  puts(why);
}

static void *fail_and_ask(void *barrier) {
  pthread_barrier_wait((pthread_barrier_t *)barrier);
  for (size_t i = 0; i < 200; i++) {
    /* A letter, as often as it stands behind the first. */
    char path[256] = "/nowhere/", why[512];
    size_t length = 8 * (i % 20 + 1);
    memset(path + 9, (int)('a' + i % 20), length);
    CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_dl_load(path));
    CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
    /* Of one thread or another, but whole. */
    const char letters[] = {why[9], 0};
    length = 8 * (size_t)(why[9] - 'a' + 1);
    CHECK(strncmp(why, "/nowhere/", 9) == 0 && strspn(why + 9, letters) == length);
    CHECK(strcmp(why + 9 + length, ": cannot open shared object file: No such file or directory") == 0);
  }
  return NULL;
}

/* Memory from the library, and taken back. */
static void use_region(jitsym *session) {
  jitsym_region_options wanted;
  jitsym_region region;
  memset(&wanted, 0, sizeof wanted);
  wanted.struct_size = sizeof wanted;
  wanted.size = 1;
  wanted.max_size = 1 << 20;
  region.struct_size = sizeof region;
  CHECK_OK(jitsym_region_create(session, &wanted, &region));
  CHECK(region.size > 0 && region.exec != region.write);
  memcpy(region.write, "region", 7);
  CHECK(strcmp((const char *)region.exec, "region") == 0);
  CHECK_OK(jitsym_region_grow(session, region.exec, 1 << 16));
  CHECK_OK(jitsym_region_discard(session, region.exec, region.size));
  CHECK(*(const char *)region.exec == 0);
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_adopt(session, region.exec, region.size));
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK_OK(jitsym_alloc(session, 100, 0, 0, &region));
  CHECK_OK(jitsym_shrink(session, region.exec, 10));
  CHECK_OK(jitsym_free(session, region.exec));
}

/* The functions by their names in jitsym.h, through pointers too, and in another file, which is in C++. */
static void test_present(void) {
  jitsym *session = NULL;
  jitsym_code code = some_code();
  CHECK_OK(jitsym_init(&options, &session));
  CHECK(jitsym_version_number() == JITSYM_VERSION_NUMBER);
  CHECK(strcmp(jitsym_status_name(JITSYM_ERR_LIBRARY), "JITSYM_ERR_LIBRARY") == 0);
  CHECK(strcmp(jitsym_status_name(JITSYM_ERR_NULL), "JITSYM_ERR_NULL") == 0);
  jitsym_id id = 0;
  jitsym_status (*pointer)(jitsym *, const jitsym_code *, jitsym_id *) = jitsym_register;
  CHECK_OK(pointer(session, &code, &id));
  CHECK(id != 0 && (jitsym_wanted(session) & JITSYM_WANT_CODE) != 0);
  code.addr += 0x1000;
  CHECK_OK(other_file_registers(session, &code));
  CHECK_OK(jitsym_flush(session, 60000));
  char path[JITSYM_DIR_MAX + 64];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
  struct map map = map_read(path);
  CHECK(strcmp(map_name(&map, 0x10000), "dl_code") == 0 && strcmp(map_name(&map, 0x11000), "dl_code") == 0);
  map_free(&map);
  use_region(session);
  CHECK_OK(jitsym_close(session));
}

static void *open_and_close(void *barrier) {
  pthread_barrier_wait((pthread_barrier_t *)barrier);
  jitsym *session = NULL;
  jitsym_code code = some_code();
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(jitsym_close(session));
  return NULL;
}

static void test_threads(void *(*run)(void *)) {
  enum { COUNT = 8 };
  pthread_t threads[COUNT];
  pthread_barrier_t barrier;
  CHECK(pthread_barrier_init(&barrier, NULL, COUNT) == 0);
  for (int i = 0; i < COUNT; i++) CHECK(pthread_create(&threads[i], NULL, run, &barrier) == 0);
  for (int i = 0; i < COUNT; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* For a tool that counts its instructions. */
__attribute__((noinline)) jitsym_status one_call(jitsym *session, const jitsym_code *code);
jitsym_status one_call(jitsym *session, const jitsym_code *code) {
  return jitsym_register(session, code, NULL);
}

int main(int argc, char **argv) {
  CHECK(argc == 4 && argv[1][0] == '/');
  const char *library = argv[2], *mode = argv[3];
  options.struct_size = sizeof options;
  options.map_dir = options.jitdump_dir = options.spool_dir = argv[1];
  if (strcmp(mode, "present") != 0 && strcmp(mode, "threads") != 0) options.sinks = JITSYM_SINK_JITDUMP;
  if (strcmp(mode, "absent") == 0) {
    test_absent();
  } else if (strcmp(mode, "present") == 0) {
    test_present();
  } else if (strcmp(mode, "late") == 0) {
    /* A program that has a place of its own for the library, and finds it there at the second attempt. */
    test_absent();
    CHECK_STATUS(JITSYM_ERR_LIBRARY, jitsym_dl_load("/nowhere/libjitsym.so"));
    char why[256];
    CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
    CHECK(strstr(why, "/nowhere/libjitsym.so: ") == why && strstr(why, "JITSYM_LIB") == NULL);
    CHECK_OK(jitsym_dl_load(library));
    CHECK_OK(jitsym_last_error(NULL, why, sizeof why));
    CHECK(why[0] == 0);
    CHECK_OK(jitsym_dl_load("/nowhere/libjitsym.so"));
    options.sinks = 0;
    test_present();
  } else if (strcmp(mode, "threads") == 0) {
    test_threads(fail_and_ask);
    test_threads(open_and_close);
  } else if (strcmp(mode, "once") == 0) {
    test_once(library);
  } else if (strcmp(mode, "why") == 0) {
    test_why();
  } else {
    jitsym_code code = some_code();
    for (int calls = atoi(mode); calls > 0; calls--) CHECK(one_call(NULL, &code) == JITSYM_ERR_LIBRARY);
  }
  puts("ok");
  return 0;
}
