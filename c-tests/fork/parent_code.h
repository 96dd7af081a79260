/*
 * The code of a parent, of every kind, and the comparison of a child's files with it.
 */
#ifndef PARENT_CODE_H
#define PARENT_CODE_H

#include "failing_disk.h"
#include "testing.h"

enum { CODES = 400, SLOT = 0x400, SINKS = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP };

static const uint64_t PARENT = 0x7000000000, MOVED = 0x7080000000, CHILD = 0x7100000000;
static jitsym *session;
static uint64_t before_fork;
static int disk_dies;

/* The parent's code, as it is when it forks. */
static struct {
  jitsym_id id;
  uint64_t addr, size;
  int live;
} codes[CODES];

static const char *code_name(unsigned number) {
  static char text[64];
  snprintf(text, sizeof text, "code of the parent, number %u", number);
  return text;
}

/* Every kind of record: with lines, with unwind tables, with free bytes behind it, with nothing. */
static void register_code(unsigned number) {
  jitsym_line lines[3] = {{0, 10, 1, 0, "/src/a.guest"}, {4, 11 + number, 2, 0, "/src/a.guest"}, {8, 13, 0, 0, "/src/b"}};
  jitsym_unwind unwind = test_unwind();
  unsigned char bytes[256];
  memset(bytes, (int)number, sizeof bytes);
  jitsym_code code = test_code(PARENT + SLOT * number, 16 + number % 200, code_name(number));
  code.bytes = bytes;
  if (number % 2 == 0) {
    code.unwind = &unwind;
    code.flags = number % 4 == 0 ? JITSYM_CODE_GAP : 0;
  }
  if (number % 3 == 0) {
    code.lines = lines;
    code.line_count = 3;
  }
  CHECK_OK(jitsym_register(session, &code, &codes[number].id));
  codes[number].addr = code.addr;
  codes[number].size = code.size;
  codes[number].live = 1;
}

/* Registered, moved, unregistered, overwritten; the last of it so late that nothing of it is written when the process forks. */
static void fill(void) {
  for (unsigned i = 0; i < CODES; i++) {
    register_code(i);
    if (i == CODES / 2) {
      CHECK_OK(test_flush(session));
      if (disk_dies) {
        disk_fails("/jit-", ENOSPC, 40);
      }
    }
  }
  for (unsigned i = 0; i < CODES; i += 5) {
    jitsym_move_target target = test_target(MOVED + SLOT * i);
    target.flags = i % 10 == 0 ? JITSYM_CODE_GAP : 0;
    CHECK_OK(jitsym_move(session, codes[i].id, &target));
    codes[i].addr = target.addr;
  }
  for (unsigned i = 1; i < CODES; i += 5) {
    CHECK_OK(jitsym_unregister(session, codes[i].id));
    codes[i].live = 0;
  }
  CHECK_OK(jitsym_unregister_range(session, codes[2].addr, 1, 0));
  codes[2].live = 0;
  codes[3].live = 0;
  register_code(3);
  if (test_light) {
    /* A fork does not wait for the writer as long as that takes under valgrind. */
    CHECK_STATUS(disk_dies ? JITSYM_ERR_SINK_FAILED : JITSYM_OK, jitsym_flush(session, 60000));
  }
}

static unsigned live_codes(void) {
  unsigned count = 0;
  for (unsigned i = 0; i < CODES; i++) {
    count += (unsigned)codes[i].live;
  }
  return count;
}

/* The exit codes of children whose fork has not waited for the writer, as may be on a machine that is busy with something else. */
enum { PARTIAL = 8, DISTURBED = 9 };

static int is_partial(void) {
  char text[256] = "";
  jitsym_status status = jitsym_last_error(session, text, sizeof text);
  return status == JITSYM_ERR_FORKED || strstr(text, "did not wait") != NULL;
}

/* Whether this process was forked without waiting. A child finds out, so that this one has not made any call yet. */
static int was_disturbed(void) {
  if (file_exists(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text)) {
    return is_partial();
  }
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    int partial = is_partial();
    (void)unlink(test_path_of(getpid(), JITSYM_SINK_MAP).text);
    (void)unlink(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
    _exit(partial ? DISTURBED : 0);
  }
  return test_wait(pid) != 0;
}

static const struct dump_record *find_index(const struct dump *dump, uint64_t index) {
  for (size_t i = 0; i < dump->count; i++) {
    if (dump->records[i].id == DUMP_LOAD && dump->records[i].index == index) {
      return &dump->records[i];
    }
  }
  return NULL;
}

static void check_same_group(const struct dump_record *mine, const struct dump_record *theirs) {
  CHECK(theirs != NULL && strcmp(mine->name, theirs->name) == 0);
  CHECK(mine->addr == theirs->addr && mine->size == theirs->size && memcmp(mine->code, theirs->code, mine->size) == 0);
  CHECK((mine->debug == NULL) == (theirs->debug == NULL) && (mine->unwind == NULL) == (theirs->unwind == NULL));
  if (mine->debug != NULL) {
    size_t size = (size_t)(mine->debug->line_end - mine->debug->line_bytes);
    CHECK(size == (size_t)(theirs->debug->line_end - theirs->debug->line_bytes));
    CHECK(memcmp(mine->debug->line_bytes, theirs->debug->line_bytes, size) == 0);
  }
  if (mine->unwind != NULL) {
    CHECK(mine->unwind->unwind_size == theirs->unwind->unwind_size && mine->unwind->hdr_size == theirs->unwind->hdr_size);
    CHECK(mine->unwind->mapped_size == theirs->unwind->mapped_size);
    CHECK(memcmp(mine->unwind->unwind_bytes, theirs->unwind->unwind_bytes, mine->unwind->unwind_size) == 0);
  }
}

/* Overwrites what a jitdump has after its header with something else of the same length. */
static void overwrite_groups(const char *path) {
  size_t size;
  unsigned char *bytes = file_read(path, &size);
  memset(bytes + 60, 0x41, size - 60);
  FILE *file = fopen(path, "r+b");
  CHECK(file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
  free(bytes);
}

#endif
