/*
 * Registers, for a tool that counts instructions: DIR COUNT SIZE LINES NAME-LENGTH IN-REGION FILE. With 1 for IN-REGION the code lies
 * in a region. FILE says where each function begins; it may be empty.
 */
#define _GNU_SOURCE
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "jitsym_region.h"
#include "testing.h"

enum { LINES_MAX = 64 };

/*
 * The first write after `hold` waits until all is registered. The writer then has everything at once, however the machine divides its
 * time: what a record costs it depends on how many it finds.
 */
static int holds;
static sem_t held, may_go_on;

static void wait_for(sem_t *what) {
  while (sem_wait(what) != 0) {
  }
}

static void hold(void) {
  if (__atomic_exchange_n(&holds, 0, __ATOMIC_SEQ_CST)) {
    sem_post(&held);
    wait_for(&may_go_on);
  }
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at) {
  hold();
  return syscall(SYS_pwrite64, file, bytes, size, at);
}

ssize_t pwrite(int file, const void *bytes, size_t size, off_t at) {
  return pwrite64(file, bytes, size, at);
}

ssize_t pwritev(int file, const struct iovec *pieces, int count, off_t at) {
  hold();
  return syscall(SYS_pwritev, file, pieces, (long)count, (long)at, 0L);
}

ssize_t write(int file, const void *bytes, size_t size) {
  hold();
  return syscall(SYS_write, file, bytes, size);
}

ssize_t writev(int file, const struct iovec *pieces, int count) {
  hold();
  return syscall(SYS_writev, file, pieces, (long)count);
}

static uint64_t argument(char **argv, int index, uint64_t max) {
  char *end;
  uint64_t value = strtoull(argv[index], &end, 10);
  CHECK(*end == 0 && value <= max);
  return value;
}

int main(int argc, char **argv) {
  CHECK(argc == 8);
  test_dir = argv[1];
  uint64_t count = argument(argv, 2, 1 << 20), size = argument(argv, 3, TEST_CODE_MAX);
  size_t line_count = argument(argv, 4, LINES_MAX), name_len = argument(argv, 5, JITSYM_NAME_MAX);
  uint64_t in_region = argument(argv, 6, 1);

  CHECK(sem_init(&held, 0, 0) == 0 && sem_init(&may_go_on, 0, 0) == 0);
  /* Memory for all records at once: what a registration costs must not depend on how far the writer has got. */
  jitsym_options options = test_options();
  options.max_memory = 1 << 30;
  jitsym *session = test_init(&options);

  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_FRAME_POINTER;
  char name[JITSYM_NAME_MAX];
  memset(name, 'n', sizeof name);
  jitsym_line lines[LINES_MAX];
  for (uint32_t i = 0; i < LINES_MAX; i++) {
    jitsym_line line = {i, i + 1, 1, 0, "/guest/a_source_file"};
    lines[i] = line;
  }
  uint64_t addr = 0x7000000000;
  if (in_region) {
    jitsym_region region;
    region.struct_size = sizeof region;
    jitsym_region_options wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.struct_size = sizeof wanted;
    wanted.size = (count * size | 0xffff) + 1;
    CHECK_OK(jitsym_region_create(session, &wanted, &region));
    addr = (uint64_t)(uintptr_t)region.exec;
  }
  jitsym_code code = test_code(addr, size, name);
  code.name_len = name_len;
  code.unwind = &unwind;
  code.lines = lines;
  code.line_count = line_count;
  if (argv[7][0] != 0) {
    code.file = argv[7];
    code.line = 1234;
  }
  for (uint64_t i = 0; i < count; i++) {
    jitsym_id id;
    code.size = size - i % 8; /* no two functions of a program have one size */
    int is_first = i == 0 && jitsym_wanted(session) != 0;
    if (is_first) {
      CHECK_OK(test_flush(session));
      __atomic_store_n(&holds, 1, __ATOMIC_SEQ_CST);
    }
    CHECK_OK(jitsym_register(session, &code, &id));
    code.addr += size;
    if (is_first) {
      wait_for(&held);
    }
  }
  CHECK(sem_post(&may_go_on) == 0);
  /* A close waits for no more than ten seconds, which a busy machine may take for that under a tool. */
  CHECK_OK(test_flush(session));
  CHECK_OK(jitsym_close(session));
  return test_end();
}
