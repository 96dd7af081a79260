/*
 * Calls whose results must be the same with the library and with jitsym_map.h. Prints the status of each call, and the lines of
 * the map. Takes a directory, a mode and a seed; JITSYM_LIB decides who writes the map.
 */
#define _GNU_SOURCE
#include "jitsym_dl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "check.h"

static const unsigned char bytes[1 << 16];
static uint64_t state, next_address = 0x7f0000001000;
static jitsym *session;

static uint64_t below(uint64_t bound) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (state >> 11) % bound;
}

/* Pieces of names that readers, terminals or parsers of UTF-8 do not like. */
static const struct {
  const char *text;
  size_t size;
} pieces[] = {
  {"a", 1}, {"fib(int)", 8}, {" ", 1}, {"\n", 1}, {"\t", 1}, {"\r", 1}, {"\x7f", 1}, {"\x1b[2J", 4}, {"\xff", 1},
  {"\xc3\xa4", 2}, {"\xe5\x90\x8d", 3}, {"\xe5\x90", 2}, {"\xed\xa0\x80", 3}, {"\xf0\x9f\x98\x80", 4}, {"\xf0\x9f\x98", 3},
  {"\xf4\x90\x80\x80", 4}, {"\xc0\xaf", 2}, {"\xe0\x80\x80", 3}, {"\xf8\x88\x80\x80\x80", 5}, {"\xc2\x85", 2}, {"\xc2\xa0", 2},
  {"\xe2\x80\x83", 3}, {"\xe2\x80\xa8", 3}, {"\xe3\x80\x80", 3}, {"\xef\xbf\xbd", 3}, {"\xef\xbb\xbf", 3}, {"_", 1}, {"\0", 1},
  {"\x80", 1}, {"\xc2", 1}, {"\xe1\x9a\x80", 3}, {"\xe2\x81\x9f", 3}, {"\xe2\x80\x8b", 3}, {"\xf0\x80\x80\x80", 4}, {"~", 1},
};

/* A text of some kinds of pieces, which ends with a NUL. */
static size_t text(char *to, size_t most) {
  const size_t lengths[] = {0, 1, 2, 3, 12, 80, 990, 1001, 1500};
  size_t size = 0, length = lengths[below(sizeof lengths / sizeof *lengths)], kinds = 1 + below(6), first = below(1000);
  while (size < length && size + 8 < most) {
    size_t piece = (first + below(kinds)) % (sizeof pieces / sizeof *pieces);
    memcpy(to + size, pieces[piece].text, pieces[piece].size);
    size += pieces[piece].size;
  }
  to[size] = 0;
  return size;
}

static void print(const char *what, jitsym_status status) {
  printf("%s %d\n", what, (int)status);
}

/* The lines of this process's map. */
static void print_map(void) {
  char path[JITSYM_DIR_MAX + 64], line[4096];
  print("flush", jitsym_flush(session, 60000));
  CHECK_OK(jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
  CHECK(strstr(path, "/perf-") != NULL);
  FILE *file = fopen(path, "rb");
  CHECK(file != NULL);
  while (fgets(line, sizeof line, file) != NULL) printf("map %s", line);
  fclose(file);
  fflush(stdout);
}

enum { IDS = 64 };
static jitsym_id ids[IDS];

/* Code at a new place, or, if `again` is set, often at a place that had code before. */
static jitsym_code some_code(char *name, char *file, int again) {
  jitsym_code code = JITSYM_CODE(next_address, 1 + below(5000), name);
  uint64_t gap = 16 * below(4);
  code.bytes = bytes;
  if (again && next_address > 0x7f0000001000 && below(2)) code.addr = 0x7f0000001000 + below(next_address - 0x7f0000001000);
  else next_address += code.size + gap;
  size_t size = text(name, 2000);
  if (below(3) == 0) code.name = NULL;
  else if (below(2)) code.name_len = size;
  if (below(3) == 0) {
    text(file, 2000);
    code.file = file;
    code.line = (uint32_t)(below(2) ? below(1 << 20) : below(2) ? UINT32_MAX : 0);
  }
  return code;
}

static void bad_calls(void) {
  char name[2008], file[2008];
  jitsym_code code = some_code(name, file, 0);
  jitsym_options options = JITSYM_OPTIONS;
  jitsym *other = NULL;
  switch (below(18)) {
    case 0: code.size = 0; break;
    case 1: code.addr = 0; break;
    case 2: code.addr = UINT64_MAX - 5, code.size = 6; break;
    case 3: code.size = JITSYM_CODE_SIZE_MAX + UINT64_C(1); break;
    case 4: code.flags = 1U << 31; break;
    case 5: code.reserved = 1; break;
    case 6: code.reserved2 = 1; break;
    case 7: code.struct_size = 16; break;
    case 8: code.struct_size = 5000; break;
    case 9: print("null", jitsym_register(session, NULL, NULL)); return;
    case 10: print("session", jitsym_register(NULL, &code, NULL)); return;
    case 11: print("session", jitsym_flush((jitsym *)name, 0)); return;
    case 12: print("path", jitsym_path(session, 3, name, sizeof name)); return;
    case 13: print("path", jitsym_path(session, JITSYM_SINK_JITDUMP, name, sizeof name)); return;
    case 14: print("path", jitsym_path(session, JITSYM_SINK_MAP, NULL, 4)); return;
    case 15: print("path", jitsym_path(session, JITSYM_SINK_MAP, name, 4)); return;
    case 16: print("move", jitsym_move(session, 12345678, NULL)); return;
    case 17:
      switch (below(10)) {
        case 0: options.struct_size = 8; break;
        case 1: options.struct_size = 9999; break;
        case 2: options.flags = 8; break;
        case 3: options.flags = 1U << 20; break;
        case 4: options.sinks = 128; break;
        case 5: options.map_dialect = 2; break;
        case 6: options.file_mode = 01000; break;
        case 7: options.map_dir = "relative"; break;
        case 8: options.flags = JITSYM_INIT_FORK_NOW | JITSYM_INIT_FORK_ALONE; break;
        case 9: options.map_dir = "/somewhere/else", options.sinks = JITSYM_SINK_MAP; break;
      }
      print("init", jitsym_init(&options, &other));
      return;
  }
  print("bad", jitsym_register(session, &code, NULL));
}

static void some_calls(int count, int again) {
  char name[2008], file[2008];
  for (; count > 0; count--) {
    size_t place = below(IDS);
    uint64_t kind = below(20);
    jitsym *other = NULL;
    errno = 77;
    if (kind < 11) {
      jitsym_code code = some_code(name, file, again);
      jitsym_id id = 0;
      print("register", jitsym_register(session, &code, below(4) ? &id : NULL));
      if (id != 0) ids[place] = id;
    } else if (kind < 14 && ids[place] != 0) {
      jitsym_move_target target = JITSYM_MOVE_TARGET(next_address);
      target.bytes = bytes;
      if (below(4) == 0) target.flags = below(2) == 0 ? JITSYM_CODE_MORE : 64;
      else if (below(4) == 0) target.struct_size = 8;
      else if (below(4) == 0) target.addr = 0;
      /* Code over which other code was registered is gone. */
      if (!again) print("move", jitsym_move(session, ids[place], &target));
      next_address += 5000;
    } else if (kind < 16 && ids[place] != 0) {
      jitsym_status status = jitsym_unregister(session, ids[place]);
      if (!again) print("unregister", status);
      ids[place] = 0;
    } else if (kind < 19) {
      bad_calls();
    } else {
      jitsym_options options = JITSYM_OPTIONS;
      print("second", jitsym_init(below(2) ? &options : NULL, &other));
      print("wanted", (jitsym_wanted(other) & JITSYM_WANT_CODE) != 0 ? JITSYM_OK : JITSYM_ERR_NULL);
      print("close", jitsym_close(other));
    }
  }
}

/* Each character that may be white space or a control character, at both ends of a name and inside. */
static void test_characters(void) {
  for (unsigned c = 1; c < 0x3100; c++) {
    char one[4] = {0}, name[32];
    if (c < 0x80) one[0] = (char)c;
    else if (c < 0x800) one[0] = (char)(0xc0 | c >> 6), one[1] = (char)(0x80 | (c & 0x3f));
    else one[0] = (char)(0xe0 | c >> 12), one[1] = (char)(0x80 | (c >> 6 & 0x3f)), one[2] = (char)(0x80 | (c & 0x3f));
    snprintf(name, sizeof name, "%sab%scd%s", one, one, one);
    jitsym_code code = JITSYM_CODE(0x10000 + 64 * (uint64_t)c, 48, name);
    code.bytes = bytes;
    CHECK_OK(jitsym_register(session, &code, NULL));
  }
}

static void *register_some(void *number) {
  char name[64];
  for (unsigned i = 0; i < 500; i++) {
    snprintf(name, sizeof name, "thread %u function %u", *(const unsigned *)number, i);
    jitsym_code code = JITSYM_CODE(0x10000 + (*(const unsigned *)number * 1000 + i) * 64, 48, name);
    jitsym_id id = 0;
    code.bytes = bytes;
    CHECK_OK(jitsym_register(session, &code, &id));
    CHECK(id != 0);
    jitsym_move_target target = JITSYM_MOVE_TARGET(0x10000000 + code.addr);
    target.bytes = bytes;
    if (i % 8 == 0) CHECK_OK(jitsym_move(session, id, &target));
  }
  return NULL;
}

static void test_threads(void) {
  enum { COUNT = 4 };
  pthread_t threads[COUNT];
  unsigned numbers[COUNT];
  for (unsigned i = 0; i < COUNT; i++) {
    numbers[i] = i;
    CHECK(pthread_create(&threads[i], NULL, register_some, &numbers[i]) == 0);
  }
  for (int i = 0; i < COUNT; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* A child has its parent's code, and moves it. A grandchild has both. */
static void test_fork(int depth) {
  char name[2008], file[2008];
  for (int i = 0; i < 20; i++) {
    jitsym_code code = some_code(name, file, 0);
    print("register", jitsym_register(session, &code, &ids[i]));
  }
  print("flush", jitsym_flush(session, 60000));
  fflush(stdout);
  if (depth == 0) return;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    jitsym_code code = JITSYM_CODE(next_address, 16, "of the child");
    code.bytes = bytes;
    print("child", jitsym_register(session, &code, NULL));
    next_address += 16;
    test_fork(depth - 1);
    print_map();
    print("close", jitsym_close(session));
    fflush(stdout);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  const char *mode = argv[2];
  jitsym_options options = JITSYM_OPTIONS;
  state = strtoull(argv[3], NULL, 10) * 2654435761U + 88172645463325252U;
  options.map_dir = options.jitdump_dir = options.spool_dir = argv[1];
  setenv("JITSYM_DIR", argv[1], 1);
  setenv("JITSYM", "map", 1);
  options.sinks = JITSYM_SINK_MAP;
  if (strcmp(mode, "shared") == 0) {
    /* Another runtime has made the map, and keeps it open. */
    char path[JITSYM_DIR_MAX + 64];
    snprintf(path, sizeof path, "%s/perf-%d.map", argv[1], (int)getpid());
    FILE *another = fopen(path, "ab");
    CHECK(another != NULL && fprintf(another, "1000 10 another runtime\n") > 0 && fflush(another) == 0);
  }
  CHECK_OK(jitsym_init(&options, &session));
  if (strcmp(mode, "threads") == 0) test_threads();
  else if (strcmp(mode, "characters") == 0) test_characters();
  else if (strcmp(mode, "fork") == 0) test_fork(2);
  else some_calls(400, strcmp(mode, "shared") == 0);
  print_map();
  jitsym_stats stats = JITSYM_STATS;
  print("stats", jitsym_get_stats(session, &stats));
  printf("registered %llu moved %llu sinks %u errors %llu\n", (unsigned long long)stats.registered,
         (unsigned long long)stats.moved, stats.sinks_running, (unsigned long long)stats.write_errors);
  print("close", jitsym_close(session));
  print("closed", jitsym_close(session));
  return 0;
}
