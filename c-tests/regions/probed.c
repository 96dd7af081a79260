/*
 * Code in regions on which somebody sets a probe (uprobe): the host lives, and runs its code as it wrote it, also where other code
 * takes the place of the probed code.
 *
 * Usage: probed DIR KIND. Prints the file that has the function `probed`, waits until somebody writes to the fifo DIR/go, and
 * writes to the fifo DIR/done when it has made its calls. x86-64 only.
 */
#define _GNU_SOURCE
#include "jitsym_control.h"
#include "region_code.h"

enum { CALLS = 1000 };

/* What a probe does where the kernel takes it. */
__attribute__((noinline)) uint32_t control(void) {
  __asm__ volatile("");
  return 1;
}

static const char *dir;
static char go[600], done[600];

static void in_dir(char *path, const char *name) {
  snprintf(path, 600, "%s/%s", dir, name);
  CHECK(mkfifo(path, 0600) == 0);
}

static void announce_file(const char *path) {
  in_dir(go, "go");
  in_dir(done, "done");
  printf("%s\n", path);
  fflush(stdout);
  FILE *file = fopen(go, "r");
  CHECK(file != NULL && fgetc(file) == '\n');
  CHECK(fclose(file) == 0);
}

static void say_done(void) {
  FILE *file = fopen(done, "w");
  CHECK(file != NULL && fputc('\n', file) == '\n' && fclose(file) == 0);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  CHECK(argc == 3);
  dir = argv[1];
  const char *kind = argv[2];
  if (strcmp(kind, "program") == 0) {
    char path[600];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    CHECK(length > 0);
    path[length] = 0;
    announce_file(path);
    for (int i = 0; i < CALLS; i++) {
      CHECK(control() == 1);
    }
    say_done();
    return test_end();
  }
  jitsym *session = open_regions();
  unsigned char *memory, *to_write;
  int flips = 1;
  if (strcmp(kind, "adopted") == 0 || strcmp(kind, "writable") == 0) {
    memory = to_write = memory_of(SIZE, RWX);
    flips = strcmp(kind, "adopted") == 0;
    CHECK_OK(jitsym_region_adopt(session, memory, SIZE));
  } else {
    int has_one_view = strcmp(kind, "one-view") == 0;
    jitsym_region region = test_region(session, SIZE, has_one_view ? JITSYM_REGION_ONE_VIEW : 0);
    memory = region.exec;
    to_write = region.write;
    flips = has_one_view;
  }
  /* In the file, the header page may replace the first page (docs/regions.md, "Probes"). So the code lies in the second page. */
  unsigned char *code = memory + PAGE;
  to_write += PAGE;
  put_code(to_write, 1);
  CHECK(!flips || mprotect(memory, SIZE, PROT_READ | PROT_EXEC) == 0);
  jitsym_id id = announce_whole(session, code, code, "probed");
  CHECK_OK(test_flush(session));
  char path[600];
  CHECK_OK(jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path));
  announce_file(path);
  for (int i = 0; i < CALLS; i++) {
    CHECK(run_code(code) == 1);
  }
  CHECK_OK(jitsym_unregister(session, id));
  for (uint32_t value = 0x12345678; value < 0x12345680; value++) {
    /* The kernel looks for probes whenever it maps the file, or makes one mapping of two. */
    CHECK(!flips || mprotect(code, PAGE, PROT_READ | PROT_WRITE) == 0);
    to_write[0] = 0x90;
    put_code(to_write + 1, value);
    CHECK(!flips || mprotect(code, PAGE, PROT_READ | PROT_EXEC) == 0);
    id = announce(session, code, "other code");
    for (int i = 0; i < CALLS; i++) {
      CHECK(run_code(code) == value);
    }
    CHECK_OK(jitsym_unregister(session, id));
  }
  say_done();
  CHECK_OK(jitsym_close(session));
  return test_end();
}
