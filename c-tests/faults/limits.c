/*
 * A process that is hemmed in: by resource limits, in another root, as another user. The host goes on, no signal reaches it,
 * and what can be written is. (Sandboxes are in sandbox.c.)
 */
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "jitsym_region.h"
#include "testing.h"

static const uint64_t ADDR = 0x7000000000;

static void put(jitsym *session, unsigned number, const char *kind) {
  char name[64];
  snprintf(name, sizeof name, "%s %u", kind, number);
  test_register(session, ADDR + 0x1000 * number, 0x400, name);
}

/* Both files are whole, and have codes [0, count). */
static void check_files(unsigned count, const char *kind) {
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  for (unsigned i = 0; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, "%s %u", kind, i);
    CHECK(dump_load(&dump, name, 0) != NULL && strcmp(map_name(&map, ADDR + 0x1000 * i), name) == 0);
  }
  map_free(&map);
  dump_free(&dump);
}

static void limit(int what, rlim_t soft) {
  struct rlimit limits;
  CHECK(getrlimit(what, &limits) == 0);
  limits.rlim_cur = soft == RLIM_INFINITY ? limits.rlim_max : soft;
  CHECK(setrlimit(what, &limits) == 0);
}

/* RLIMIT_FSIZE: writing beyond it raises SIGXFSZ, which ends a process. */
static void file_size_after(void) {
  jitsym *session = test_open();
  put(session, 0, "size");
  CHECK_OK(test_flush(session));
  limit(RLIMIT_FSIZE, 20000);
  for (unsigned i = 1; i < 1000; i++) {
    put(session, i, "size");
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  CHECK(test_stats_now(session).sinks_failed == (JITSYM_SINK_JITDUMP | JITSYM_SINK_MAP));
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  /* Up to the last whole record below the limit. */
  CHECK(dump.size <= 20000 && dump.size > 20000 - 2000);
  dump_free(&dump);
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  map_free(&map);
  limit(RLIMIT_FSIZE, RLIM_INFINITY);
  CHECK_OK(test_flush(session));
  check_files(1000, "size");
  CHECK_OK(jitsym_close(session));
}

/* No signal for a line of JITSYM_DEBUG either, which the calling thread writes. */
static void file_size_of_lines(void) {
  char log[TEST_PATH_MAX];
  snprintf(log, sizeof log, "%s/lines", test_dir);
  CHECK(setenv("JITSYM_DEBUG", log, 1) == 0);
  jitsym *session = test_open();
  limit(RLIMIT_FSIZE, 0);
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_register(session, NULL, NULL));
  limit(RLIMIT_FSIZE, RLIM_INFINITY);
  put(session, 0, "after");
  CHECK_OK(test_flush(session));
  check_files(1, "after");
  CHECK_OK(jitsym_close(session));
  CHECK(file_exists(log) && unlink(log) == 0);
}

static void file_size_before(void) {
  static const rlim_t limits[] = {0, 1, 40, 4096, 100000};
  for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
    limit(RLIMIT_FSIZE, limits[i]);
    jitsym_options options = test_options();
    jitsym *session = NULL;
    jitsym_status status = jitsym_init(&options, &session);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_NO_SINK);
    CHECK(status == JITSYM_OK || limits[i] < 40);
    for (unsigned code = 0; session != NULL && code < 500; code++) {
      put(session, code, "small");
    }
    if (session != NULL) {
      (void)jitsym_flush(session, 0);
      (void)jitsym_close(session);
    }
  }
  limit(RLIMIT_FSIZE, RLIM_INFINITY);
  jitsym *session = test_open();
  for (unsigned i = 0; i < 100; i++) {
    put(session, i, "large");
  }
  CHECK_OK(test_flush(session));
  check_files(100, "large");
  CHECK_OK(jitsym_close(session));
}

/* RLIMIT_NOFILE: the map is written anew by way of another file, and there is no descriptor for that. */
static void descriptors(void) {
  jitsym *session = test_open();
  put(session, 0, "few");
  CHECK_OK(test_flush(session));
  limit(RLIMIT_NOFILE, 3);
  for (unsigned i = 0; i < 50; i++) {
    put(session, i, "few");
    put(session, i, "next");
  }
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.sinks_failed == JITSYM_SINK_MAP && stats.jitdump_records == 101);
  char text[4096];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, "Too many open files") != NULL);
  limit(RLIMIT_NOFILE, RLIM_INFINITY);
  CHECK_OK(test_flush(session));
  check_files(50, "next");
  CHECK_OK(jitsym_close(session));
}

static void no_descriptors(void) {
  for (rlim_t most = 3; most < 12; most++) {
    limit(RLIMIT_NOFILE, most);
    jitsym_options options = test_options();
    jitsym *session = NULL;
    jitsym_status status = jitsym_init(&options, &session);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_NO_SINK);
    CHECK(status == JITSYM_OK || most < 12);
    if (status == JITSYM_OK) {
      put(session, 0, "few");
      (void)jitsym_flush(session, 0);
      (void)jitsym_close(session);
    } else {
      char text[4096];
      CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
      CHECK(strstr(text, "Too many open files") != NULL && strstr(text, test_dir) != NULL);
    }
  }
  limit(RLIMIT_NOFILE, RLIM_INFINITY);
  jitsym *session = test_open();
  put(session, 0, "enough");
  CHECK_OK(test_flush(session));
  check_files(1, "enough");
  CHECK_OK(jitsym_close(session));
}

static jitsym *inherited;

/* Now there are descriptors, and the child goes on: with all code of its parent, and with its own. */
static void goes_on(int is_flushed) {
  jitsym_code code = test_code(ADDR + 0x1000 * 10, 0x400, "kept 10");
  limit(RLIMIT_NOFILE, RLIM_INFINITY);
  if (is_flushed) {
    CHECK_OK(test_flush(inherited));
  }
  /* A registration tries again after a while. */
  jitsym_status status;
  while ((status = jitsym_register(inherited, &code, NULL)) == JITSYM_ERR_SINK_FAILED && !is_flushed) {
    test_sleep_ms(1);
  }
  CHECK_OK(status);
  jitsym_stats stats = test_stats(inherited);
  CHECK(stats.sinks_failed == 0 && stats.inherited == 10 && stats.live == 11);
  check_files(11, "kept");
  CHECK_OK(jitsym_close(inherited));
}

static void goes_on_by_flush(void) {
  goes_on(1);
}

static void goes_on_by_registration(void) {
  goes_on(0);
}

static void begins_without(void) {
  limit(RLIMIT_NOFILE, 3);
  jitsym_code code = test_code(ADDR, 0x400, "refused");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_register(inherited, &code, NULL));
  CHECK(jitsym_wanted(inherited) & JITSYM_WANT_CODE);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(inherited, 0));
  CHECK(test_stats_now(inherited).sinks_failed == (JITSYM_SINK_JITDUMP | JITSYM_SINK_MAP));
  /* A child of its own takes over what it could not. */
  test_child(goes_on_by_flush);
  test_child(goes_on_by_registration);
}

static void begins_and_flushes(void) {
  begins_without();
  goes_on_by_flush();
}

static void begins_and_registers(void) {
  begins_without();
  goes_on_by_registration();
}

/* A forked child that has no descriptors at its first call loses nothing of its parent. */
static void no_descriptors_in_a_child(void) {
  inherited = test_open();
  for (unsigned i = 0; i < 10; i++) {
    put(inherited, i, "kept");
  }
  CHECK_OK(test_flush(inherited));
  test_child(begins_and_flushes);
  test_child(begins_and_registers);
  CHECK_OK(jitsym_close(inherited));
}

static rlim_t address_space(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  unsigned long pages;
  CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
  return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* RLIMIT_AS: no address space for the library's memory, or for its thread. */
static rlim_t room;

static void no_memory_before(void) {
  limit(RLIMIT_AS, address_space() + room);
  jitsym_options options = test_options();
  jitsym *session = NULL;
  jitsym_status status = jitsym_init(&options, &session);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_NO_MEMORY || status == JITSYM_ERR_THREAD);
  for (unsigned i = 0; session != NULL && i < 2000; i++) {
    jitsym_code code = test_code(ADDR + 0x10000 * i, 0x8000, "much");
    status = jitsym_register(session, &code, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_NO_MEMORY || status == JITSYM_ERR_DROPPED);
  }
  if (session != NULL) {
    status = jitsym_flush(session, 0);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED || status == JITSYM_ERR_NO_MEMORY);
    status = jitsym_close(session);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED || status == JITSYM_ERR_NO_MEMORY);
  }
  limit(RLIMIT_AS, RLIM_INFINITY);
  session = test_open();
  put(session, 0, "enough");
  CHECK_OK(test_flush(session));
  check_files(1, "enough");
  CHECK_OK(jitsym_close(session));
}

static void *registers(void *session) {
  for (unsigned i = 0; i < 500; i++) {
    jitsym_code code = test_code(ADDR + 0x100000 * i, i % 50 == 0 ? 0x10000 : 0x800, "beside");
    jitsym_status status = jitsym_register(session, &code, NULL);
    CHECK(status == JITSYM_OK || status == JITSYM_ERR_NO_MEMORY || status == JITSYM_ERR_DROPPED);
  }
  return NULL;
}

static void no_memory_after(void) {
  jitsym *session = test_open();
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) {
    /* Some begin before there is no more, and some find none. */
    CHECK(pthread_create(&threads[i], NULL, registers, session) == 0);
    if (i == 0) {
      test_sleep_ms(1);
    }
  }
  limit(RLIMIT_AS, address_space() + room);
  registers(session);
  for (int i = 0; i < 3; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  jitsym_status status = jitsym_flush(session, 0);
  CHECK(status == JITSYM_OK || status == JITSYM_ERR_SINK_FAILED || status == JITSYM_ERR_NO_MEMORY);
  limit(RLIMIT_AS, RLIM_INFINITY);
  put(session, 0, "enough");
  CHECK_OK(test_flush(session));
  check_files(1, "enough");
  CHECK_OK(jitsym_close(session));
}

/* The same while the host's calls are checked: that table has no room for twice as much. */
static void no_memory_when_checked(void) {
  enum { BEFORE = 65000, ALL = 70000 };
  char log[TEST_PATH_MAX], value[TEST_PATH_MAX + 8];
  snprintf(log, sizeof log, "%s/checked", test_dir);
  snprintf(value, sizeof value, "check,%s", log);
  CHECK(setenv("JITSYM_DEBUG", value, 1) == 0);
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  for (unsigned i = 0; i < ALL; i++) {
    char name[64];
    snprintf(name, sizeof name, "checked %u", i);
    jitsym_code code = test_code(ADDR + 64 * (uint64_t)i, 64, name);
    if (i == BEFORE) {
      CHECK_OK(test_flush(session));
      limit(RLIMIT_AS, address_space() + (3 << 20));
    }
    jitsym_status status = jitsym_register(session, &code, NULL);
    CHECK(status == JITSYM_OK || (i >= BEFORE && (status == JITSYM_ERR_NO_MEMORY || status == JITSYM_ERR_DROPPED)));
  }
  limit(RLIMIT_AS, RLIM_INFINITY);
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
  CHECK(unlink(log) == 0);
}

/* Input of any size: it is taken, or there is a status. */
static void no_memory_for_input(void) {
  enum { LARGE = 64 << 20, ROWS = 1 << 20, SECTION = 1 << 20 };
  char *name = malloc(LARGE);
  jitsym_unwind_row *rows = calloc(ROWS, sizeof *rows);
  unsigned char *section = calloc(SECTION, 1);
  CHECK(name && rows && section);
  memset(name, 0xff, LARGE);
  /* Nobody reads inlined functions. */
  setenv("JITSYM_GDB", "0", 1);
  jitsym *session = test_open();
  put(session, 0, "before");
  limit(RLIMIT_AS, address_space() + (4 << 20));
  jitsym_code code = test_code(ADDR + 0x10000, 16, name);
  code.name_len = LARGE;
  CHECK_OK(jitsym_register(session, &code, NULL));
  code.file = name;
  name[LARGE - 1] = 0;
  CHECK_OK(jitsym_register(session, &code, NULL));
  name[0] = '/';
  jitsym_inline inlined[] = {{.end = 8, .parent = UINT32_MAX}, {.begin = 8, .end = 16, .parent = UINT32_MAX}};
  for (int i = 0; i < 2; i++) {
    inlined[i].name = inlined[i].call_file = name;
    inlined[i].call_line = 1;
  }
  code.inlines = inlined;
  code.inline_count = 2;
  code.inline_size = sizeof *inlined;
  CHECK_OK(jitsym_register(session, &code, NULL));
  jitsym_options options = test_options();
  options.map_dir = name;
  jitsym *other = NULL;
  CHECK_STATUS(JITSYM_ERR_PATH, jitsym_init(&options, &other));

  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_ROWS;
  unwind.rows = rows;
  unwind.row_count = ROWS;
  unwind.row_size = sizeof *rows;
  for (uint32_t i = 0; i < ROWS; i++) {
    rows[i] = (jitsym_unwind_row){i, 7, 8 + 8 * (int32_t)(i % 2), 0, NULL};
  }
  code = test_code(ADDR + 0x20000, ROWS, "many rows");
  code.bytes = name;
  code.unwind = &unwind;
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_register(session, &code, NULL));

  /* A CIE, and an FDE with as many instructions as it has bytes. */
  static const unsigned char cie[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0, 0, 0, 0};
  uint32_t words[] = {SECTION - sizeof cie - 8, sizeof cie + 4};
  uint64_t places[] = {ADDR, 16};
  memcpy(section, cie, sizeof cie);
  memcpy(section + sizeof cie, words, sizeof words);
  memcpy(section + sizeof cie + 8, places, sizeof places);
  memset(section + sizeof cie + 25, 0xc3, SECTION - sizeof cie - 25 - 4);
  unwind.kind = JITSYM_UNWIND_EH_FRAME;
  unwind.eh_frame = section;
  unwind.eh_frame_size = SECTION;
  code = test_code(ADDR, 16, "many instructions");
  code.unwind = &unwind;
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_register(session, &code, NULL));
  limit(RLIMIT_AS, RLIM_INFINITY);
  CHECK_OK(test_flush(session));
  check_files(1, "before");
  CHECK_OK(jitsym_close(session));
}

static void memory(void) {
  test_child(no_memory_for_input);
  static const rlim_t rooms[] = {0, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 5 << 20, 70 << 20, 80 << 20, 200 << 20};
  for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
    room = rooms[i];
    test_child(no_memory_before);
    test_child(no_memory_after);
  }
  test_child(no_memory_when_checked);
}

/* No memory for the tables of what is known: an amount of data, or a number of mappings. */
static uint64_t data_size(void) {
  size_t size;
  char *status = (char *)file_read("/proc/self/status", &size), *line = strstr(status, "VmData:");
  CHECK(line != NULL);
  uint64_t kib = strtoull(line + strlen("VmData:"), NULL, 10);
  free(status);
  return kib * 1024;
}

/* Registers until a flush says that there is no memory, and returns how much code has an id. */
static unsigned fill(jitsym *session) {
  unsigned count = 0;
  jitsym_status status = JITSYM_OK;
  while (count < 30000 && status == JITSYM_OK) {
    char name[64];
    snprintf(name, sizeof name, "fills %u", count);
    jitsym_code code = test_code(ADDR + 0x1000 * (uint64_t)count, 0x100, name);
    status = jitsym_register(session, &code, NULL);
    count += status == JITSYM_OK;
    if (count % 200 == 0 && status == JITSYM_OK) {
      status = test_flush(session);
    }
  }
  return count;
}

/* When there is memory again, all code is in both files. */
static void check_filled(jitsym *session, unsigned count) {
  CHECK_OK(test_flush(session));
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  for (unsigned i = 0; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, "fills %u", i);
    CHECK(strcmp(map_name(&map, ADDR + 0x1000 * (uint64_t)i), name) == 0);
  }
  CHECK(map.count == count && dump_count(&dump, DUMP_LOAD) == count);
  map_free(&map);
  dump_free(&dump);
  /* The control: memory had run out. */
  CHECK(count < 30000);
  CHECK_OK(jitsym_close(session));
}

static void no_data(void) {
  jitsym *session = test_open();
  CHECK_OK(test_flush(session));
  limit(RLIMIT_DATA, data_size() + room);
  unsigned count = fill(session);
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, test_flush(session));
  limit(RLIMIT_DATA, RLIM_INFINITY);
  check_filled(session, count);
}

/* Sometimes a table is the first that finds none, and sometimes malloc. */
static void data(void) {
  for (room = 128 << 10; room <= 2 << 20; room *= 4) {
    test_child(no_data);
  }
}

/* The last thread of a program ends while there is no memory for what it has registered: the process ends, and its exit handlers run. */
static jitsym *last;
static unsigned last_count, *last_seen;

static void give_data_back(void) {
  limit(RLIMIT_DATA, RLIM_INFINITY);
  check_filled(last, last_count);
  *last_seen = last_count;
}

static void *exits(void *unused) {
  pthread_exit(unused);
}

static void no_data_for_the_last_thread(void) {
  pthread_t thread;
  /* The C library loads the unwinder for that. */
  CHECK(pthread_create(&thread, NULL, exits, NULL) == 0 && pthread_join(thread, NULL) == 0);
  last = test_open();
  CHECK_OK(test_flush(last));
  CHECK(atexit(give_data_back) == 0);
  limit(RLIMIT_DATA, data_size() + room);
  last_count = fill(last);
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, test_flush(last));
  pthread_exit(NULL);
}

static void last_thread(void) {
  last_seen = mmap(NULL, sizeof *last_seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(last_seen != MAP_FAILED);
  for (room = 128 << 10; room <= 2 << 20; room *= 4) {
    *last_seen = 0;
    test_child(no_data_for_the_last_thread);
    CHECK(*last_seen != 0);
  }
}

/* As many mappings as a process may have. */
static char *many;
static size_t many_size;

static void take_mappings(void) {
  FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
  unsigned long most;
  CHECK(file != NULL && fscanf(file, "%lu", &most) == 1 && fclose(file) == 0);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  many_size = most * page;
  many = mmap(NULL, many_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(many != MAP_FAILED);
  for (size_t at = page; at < many_size && mprotect(many + at, page, PROT_READ) == 0; at += 2 * page) {
  }
  /* Each of these makes two of one. What is left is one that does not. */
  for (int i = 0; i < 16; i++) {
    (void)!mmap(NULL, page, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
}

static void give_mappings_back(void) {
  CHECK(munmap(many, many_size) == 0);
}

static void mappings(void) {
  jitsym *session = test_open();
  CHECK_OK(test_flush(session));
  take_mappings();
  unsigned count = fill(session);
  jitsym_status status = test_flush(session);
  give_mappings_back();
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, status);
  check_filled(session, count);
}

/* Memory for records that could not be had is there when it can be. */
static void room_for_large_code(void) {
  static unsigned char bytes[1 << 20];
  jitsym_options options = test_options();
  options.flags = JITSYM_INIT_DROP_WHEN_FULL;
  options.max_memory = 16 << 20;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  put(session, 0, "small");
  CHECK_OK(test_flush(session));
  jitsym_code code = test_code(ADDR + 0x100000, sizeof bytes, "large");
  code.bytes = bytes;
  take_mappings();
  for (int i = 0; i < 100; i++) {
    CHECK_STATUS(JITSYM_ERR_DROPPED, jitsym_register(session, &code, NULL));
  }
  give_mappings_back();
  CHECK_OK(jitsym_register(session, &code, NULL));
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
}

/* Another root, after the session was opened: the files stay where they were, and are written anew there. */
static void other_root(void) {
  struct test_path root = test_subdir("root", 1), inside = test_subdir("root/inside", 1);
  (void)inside;
  jitsym *session = test_open();
  put(session, 0, "first");
  CHECK_OK(test_flush(session));
  int outside = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CHECK(outside >= 0 && chroot(root.text) == 0 && chdir("/") == 0);
  for (unsigned i = 0; i < 100; i++) {
    put(session, i, "old");
    put(session, i, "new");
  }
  CHECK_OK(test_flush(session));
  CHECK(fchdir(outside) == 0 && chroot(".") == 0);
  check_files(100, "new");
  CHECK(test_files_in(root.text) == 1);
  CHECK_OK(jitsym_close(session));
}

static void become(uid_t user) {
  CHECK(setgroups(0, NULL) == 0 && setgid(user) == 0 && setuid(user) == 0);
}

/* Another user afterwards, in a directory like /tmp: what has to be written anew cannot be, but what can be appended is. */
static void other_user(void) {
  struct test_path dir = test_subdir("sticky", 1);
  CHECK(chmod(dir.text, 01777) == 0);
  test_dir = dir.text;
  jitsym *session = test_open();
  put(session, 0, "user");
  CHECK_OK(test_flush(session));
  become(65534);
  for (unsigned i = 1; i < 100; i++) {
    put(session, i, "user");
  }
  CHECK_OK(test_flush(session));
  check_files(100, "user");
  put(session, 0, "again");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  jitsym_stats stats = test_stats_now(session);
  CHECK(stats.sinks_failed == JITSYM_SINK_MAP && stats.sinks_running == JITSYM_SINK_JITDUMP);
  struct dump dump = dump_read(test_path(session, JITSYM_SINK_JITDUMP).text);
  CHECK(dump_load(&dump, "again 0", 0) != NULL && dump_count(&dump, DUMP_LOAD) == 101);
  dump_free(&dump);
  struct map map = map_read(test_path_of(getpid(), JITSYM_SINK_MAP).text);
  map_free(&map);
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_close(session));
}

/* Locks a range for reading, except what somebody has locked for writing. `end` 0: to the last byte that there can be. */
static void lock_to_read(int file, off_t start, off_t end) {
  struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = end == 0 ? 0 : end - start};
  if (fcntl(file, F_OFD_SETLK, &lock) == 0) {
    return;
  }
  CHECK(fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_len != 0);
  if (lock.l_start > start) {
    lock_to_read(file, start, lock.l_start);
  }
  if (end == 0 || lock.l_start + lock.l_len < end) {
    lock_to_read(file, lock.l_start + lock.l_len, end);
  }
}

/* Another user, who may only read the files, locks them in each way that this allows, until its parent closes the socket. */
static void lock_as_reader(int parent) {
  if (geteuid() == 0) {
    become(65534);
  }
  static const uint32_t sinks[] = {JITSYM_SINK_MAP, JITSYM_SINK_JITDUMP};
  for (int i = 0; i < 2; i++) {
    int file = open(test_path_of(getppid(), sinks[i]).text, O_RDONLY);
    CHECK(file >= 0);
    (void)flock(file, LOCK_EX | LOCK_NB);
    lock_to_read(file, 0, 0);
  }
  char byte = 0;
  CHECK(write(parent, &byte, 1) == 1 && read(parent, &byte, 1) == 0);
  _exit(0);
}

/* Nothing changes for the library because somebody who reads its files has locked them. */
static void locked_by_reader(void) {
  enum { TIMES = 1000 };
  jitsym_options options = test_options();
  options.sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP;
  options.flags = JITSYM_INIT_REMOVE_FILES;
  options.map_max = 4096;
  options.jitdump_max = 1 << 16;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  put(session, 0, "first");
  CHECK_OK(test_flush(session));
  int sockets[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  fflush(NULL);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(sockets[1]);
    lock_as_reader(sockets[0]);
  }
  close(sockets[0]);
  char byte;
  CHECK(read(sockets[1], &byte, 1) == 1);
  struct test_path map_path = test_path(session, JITSYM_SINK_MAP), dump_path = test_path(session, JITSYM_SINK_JITDUMP);
  for (unsigned i = 0; i < TIMES; i++) {
    char name[64];
    snprintf(name, sizeof name, "code %u in the place of the one before", i);
    test_register(session, ADDR, 0x400, name);
    if (i % 100 == 0) {
      CHECK_OK(test_flush(session));
    }
  }
  CHECK_OK(test_flush(session));
  struct map map = map_read(map_path.text);
  CHECK(map.count == 1 && strcmp(map_name(&map, ADDR), "code 999 in the place of the one before") == 0);
  map_free(&map);
  struct stat data;
  CHECK(stat(dump_path.text, &data) == 0 && data.st_size <= 1 << 16);
  CHECK_OK(jitsym_close(session));
  CHECK(access(map_path.text, F_OK) != 0 && access(dump_path.text, F_OK) != 0);
  close(sockets[1]);
  test_wait_ok(child);
}

/* What another user takes for itself in a directory like /tmp, before this process has made its files. */
static const char *taken[2];

static struct test_path taken_path(int index) {
  struct test_path path;
  CHECK(snprintf(path.text, sizeof path.text, taken[index], test_dir, (int)getppid()) > 0);
  return path;
}

static void take_names(void) {
  become(65534);
  for (int i = 0; i < 2; i++) {
    file_write(taken_path(i).text, "somebody else's\n");
    CHECK(chmod(taken_path(i).text, 0666) == 0);
  }
}

/* They are as they were. */
static void check_taken(void) {
  for (int i = 0; i < 2; i++) {
    file_check(taken_path(i).text, "somebody else's\n");
    struct stat status;
    CHECK(stat(taken_path(i).text, &status) == 0 && status.st_uid == 65534);
  }
}

static void take(const char *one, const char *other) {
  static struct test_path dir;
  dir = test_subdir("taken", 1);
  CHECK(chmod(dir.text, 01777) == 0);
  test_dir = dir.text;
  taken[0] = one;
  taken[1] = other;
  test_child(take_names);
  become(65533);
}

/* The names of the files that are to replace ours: others do. */
static void fresh_names_taken(void) {
  take("%s/.perf-%d.map.new", "%s/.jit-%d.dump.new");
  jitsym *session = test_open();
  put(session, 0, "first");
  CHECK_OK(test_flush(session));
  put(session, 0, "second");
  CHECK(unlink(test_path(session, JITSYM_SINK_JITDUMP).text) == 0);
  CHECK_OK(test_flush(session));
  check_files(1, "second");
  CHECK_OK(jitsym_close(session));
  test_child(check_taken);
  /* And no other one is left: two of this process, two of the other user. */
  DIR *files = opendir(test_dir);
  CHECK(files != NULL);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(files)) != NULL;) {
    count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  }
  closedir(files);
  CHECK(count == 4);
}

/* The only name that there is for a map: the reason says so. */
static void map_taken(void) {
  take("%s/perf-%d.map", "%s/something-%d");
  jitsym *session = test_open();
  put(session, 0, "alone");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  CHECK(test_stats_now(session).sinks_failed == JITSYM_SINK_MAP);
  char text[4096];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(strstr(text, test_path_of(getpid(), JITSYM_SINK_MAP).text) != NULL);
  CHECK(strstr(text, "another user") != NULL && strstr(text, "no other name") != NULL);
  (void)jitsym_close(session);
  test_child(check_taken);
}

/* A directory in which nothing can be made any more: the reason says what could not be made there. */
static void nothing_new(void) {
  struct test_path dir = test_subdir("nothing new", 1);
  if (geteuid() == 0) {
    CHECK(chown(dir.text, 65533, 65533) == 0);
    become(65533);
  }
  test_dir = dir.text;
  jitsym *session = test_open();
  put(session, 0, "first");
  CHECK_OK(test_flush(session));
  CHECK(chmod(dir.text, 0500) == 0);
  put(session, 0, "second");
  CHECK_STATUS(JITSYM_ERR_SINK_FAILED, jitsym_flush(session, 0));
  char text[4096], fresh[128];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  snprintf(fresh, sizeof fresh, "cannot create .perf-%d.map.new: Permission denied", (int)getpid());
  CHECK(strstr(text, dir.text) != NULL && strstr(text, fresh) != NULL);
  CHECK(chmod(dir.text, 0700) == 0);
  CHECK_OK(test_flush(session));
  check_files(1, "second");
  CHECK_OK(jitsym_close(session));
}

/* A directory that the user may not write to. */
static void not_writable(void) {
  struct test_path dir = test_subdir("closed", 1);
  CHECK(chmod(dir.text, 0555) == 0);
  if (geteuid() == 0) {
    become(65534);
  }
  jitsym_options options = test_options();
  options.map_dir = options.jitdump_dir = dir.text;
  jitsym *session = NULL;
  CHECK_STATUS(JITSYM_ERR_NO_SINK, jitsym_init(&options, &session));
  char text[4096];
  CHECK_OK(jitsym_last_error(NULL, text, sizeof text));
  CHECK(strstr(text, dir.text) != NULL && strstr(text, "Permission denied") != NULL);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  /* A world that other users may pass through, for those tests that become one. */
  CHECK(chmod(test_dir, 0755) == 0);
  test_child(file_size_after);
  test_child(file_size_before);
  test_child(file_size_of_lines);
  test_child(descriptors);
  test_child(no_descriptors);
  test_child(no_descriptors_in_a_child);
  if (!test_light) {
    /* Sanitizers and valgrind want address space of their own. */
    memory();
    data();
    last_thread();
    test_child(mappings);
    test_child(room_for_large_code);
  }
  if (geteuid() == 0) {
    test_child(other_root);
    test_child(other_user);
    test_child(fresh_names_taken);
    test_child(map_taken);
  }
  test_child(locked_by_reader);
  test_child(nothing_new);
  test_child(not_writable);
  return test_end();
}
