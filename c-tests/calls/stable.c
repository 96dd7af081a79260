/*
 * Code that is registered with JITSYM_CODE_STABLE: the library may read its bytes later, up to the end of the next
 * flush, of its unregistration or of its move. Here they are gone, and their memory with them, as soon as that call has
 * returned.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "testing.h"

enum { THREADS = 6, PAGE = 4096 };
static const uint64_t ADDR = 0x7000000000;

static unsigned char byte_of(uint64_t addr, uint64_t at) {
  return (unsigned char)((addr >> 12) * 37 + at * 11 + (at >> 8) * 5 + 1);
}

/* Memory with the bytes that code at this address has. */
static unsigned char *emit(uint64_t addr, size_t size) {
  unsigned char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(bytes != MAP_FAILED);
  for (size_t at = 0; at < size; at++) {
    bytes[at] = byte_of(addr, at);
  }
  return bytes;
}

static jitsym_id register_stable(jitsym *session, uint64_t addr, const void *bytes, size_t size, const char *name) {
  jitsym_code code = test_code(addr, size, name);
  code.bytes = bytes;
  code.flags = JITSYM_CODE_STABLE;
  jitsym_id id = 0;
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id != 0);
  return id;
}

/* That a record has the bytes of code that was made for `addr`. */
static void check_bytes(const struct dump_record *load, uint64_t addr, size_t size) {
  CHECK(load != NULL && load->size == size);
  for (size_t at = 0; at < size; at++) {
    CHECK(load->code[at] == byte_of(addr, at));
  }
}

static void check_dump_of(const char *name, size_t number, uint64_t addr, size_t size) {
  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  check_bytes(dump_load(&dump, name, number), addr, size);
  dump_free(&dump);
}

/* What makes the bytes the caller's again: each way once, with code from a byte to a MiB. */
static const size_t sizes[] = {1, 64, PAGE, 100000, 300000, 1 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void flush_frees(void) {
  jitsym *session = test_open();
  for (unsigned i = 0; i < SIZES; i++) {
    uint64_t addr = ADDR + 0x1000000 * (uint64_t)i;
    unsigned char *bytes = emit(addr, sizes[i]);
    register_stable(session, addr, bytes, sizes[i], "flushed");
    CHECK_OK(jitsym_flush(session, 10000));
    CHECK(munmap(bytes, sizes[i]) == 0);
    check_dump_of("flushed", i, addr, sizes[i]);
  }
  CHECK(test_stats(session).unreadable == 0);
  CHECK_OK(jitsym_close(session));
}

static void unregister_frees(void) {
  jitsym *session = test_open();
  for (unsigned i = 0; i < 4 * SIZES; i++) {
    uint64_t addr = ADDR + 0x1000000 * (uint64_t)i;
    size_t size = sizes[i % SIZES];
    unsigned char *bytes = emit(addr, size);
    jitsym_id id = register_stable(session, addr, bytes, size, "unregistered");
    if (i % 2 == 0) {
      CHECK_OK(jitsym_unregister(session, id));
    } else {
      CHECK_OK(jitsym_unregister_range(session, addr, size, 0));
    }
    /* Written over, or gone. */
    memset(bytes, 0xee, size);
    if (i % 3 != 0) {
      CHECK(munmap(bytes, size) == 0);
    }
  }
  jitsym_stats stats = test_stats(session);
  CHECK(stats.registered == 4 * SIZES && stats.unregistered == 4 * SIZES && stats.live == 0 && stats.unreadable == 0);
  for (unsigned i = 0; i < 4 * SIZES; i++) {
    check_dump_of("unregistered", i, ADDR + 0x1000000 * (uint64_t)i, sizes[i % SIZES]);
  }
  CHECK_OK(jitsym_close(session));
}

/* The record of the new place has what is there at the time of the move; that of the old place what was there. */
static void move_frees(void) {
  jitsym *session = test_open();
  for (unsigned i = 0; i < 4 * SIZES; i++) {
    uint64_t addr = ADDR + 0x1000000 * (uint64_t)i;
    size_t size = sizes[i % SIZES];
    unsigned char *bytes = emit(addr, size), *moved = emit(addr + 0x800000, size);
    jitsym_id id = register_stable(session, addr, bytes, size, "moved");
    jitsym_move_target target = test_target(addr + 0x800000);
    target.bytes = moved;
    CHECK_OK(jitsym_move(session, id, &target));
    memset(bytes, 0xee, size);
    CHECK(munmap(bytes, size) == 0);
    /* At the new place they are the caller's again once it is done with that too. */
    CHECK_OK(i % 2 == 0 ? jitsym_flush(session, 10000) : jitsym_unregister(session, id));
    CHECK(munmap(moved, size) == 0);
  }
  CHECK(test_stats(session).unreadable == 0);
  for (unsigned i = 0; i < 4 * SIZES; i++) {
    uint64_t addr = ADDR + 0x1000000 * (uint64_t)i;
    check_dump_of("moved", 2 * i, addr, sizes[i % SIZES]);
    check_dump_of("moved", 2 * i + 1, addr + 0x800000, sizes[i % SIZES]);
  }
  CHECK_OK(jitsym_close(session));
}

/* Code at its own address, which the caller does not point to. */
static void at_its_address(void) {
  jitsym *session = test_open();
  uint64_t addrs[8];
  for (unsigned i = 0; i < 8; i++) {
    size_t size = 5000 + i;
    unsigned char *place = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    addrs[i] = (uint64_t)(uintptr_t)place;
    for (size_t at = 0; at < size; at++) {
      place[at] = byte_of(addrs[i], at);
    }
    char name[32];
    snprintf(name, sizeof name, "in place %u", i);
    jitsym_id id = register_stable(session, addrs[i], NULL, size, name);
    CHECK_OK(jitsym_unregister(session, id));
    /* Stays mapped, so that the next one gets another address. */
    memset(place, 0xee, 2 * PAGE);
  }
  CHECK(test_stats(session).unreadable == 0);
  for (unsigned i = 0; i < 8; i++) {
    char name[32];
    snprintf(name, sizeof name, "in place %u", i);
    check_dump_of(name, 0, addrs[i], 5000 + i);
  }
  CHECK_OK(jitsym_close(session));
}

/* Runtimes that never free: the end of the session, or of the process, finds the bytes where they were. */
static void never_freed(int by_close) {
  jitsym *session = test_open();
  for (unsigned i = 0; i < 200; i++) {
    uint64_t addr = ADDR + 0x1000000 * (uint64_t)i;
    register_stable(session, addr, emit(addr, 20000 + i), 20000 + i, "kept");
  }
  if (by_close) {
    CHECK_OK(jitsym_close(session));
  }
}

static void kept_to_the_close(void) {
  never_freed(1);
}

static void kept_to_the_exit(void) {
  never_freed(0);
}

static void check_never_freed(pid_t pid) {
  struct dump dump = dump_read(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  size_t loads = 0;
  for (size_t i = 0; i < dump.count; i++) {
    if (dump.records[i].id == DUMP_LOAD) {
      check_bytes(&dump.records[i], ADDR + 0x1000000 * loads, 20000 + loads);
      loads++;
    }
  }
  CHECK(loads == 200);
  dump_free(&dump);
}

/* Without a dump nobody reads the bytes, and nobody has to wait. */
static void map_alone(void) {
  jitsym *session = test_open_flags(JITSYM_SINK_MAP, 0);
  unsigned char *bytes = emit(ADDR, 1 << 20);
  jitsym_id id = register_stable(session, ADDR, bytes, 1 << 20, "map alone");
  CHECK_OK(jitsym_unregister(session, id));
  CHECK(munmap(bytes, 1 << 20) == 0);
  jitsym_stats stats = test_stats(session);
  CHECK(stats.registered == 1 && stats.unreadable == 0 && stats.write_errors == 0);
  struct map map = map_read(test_path(session, JITSYM_SINK_MAP).text);
  CHECK(strcmp(map_name(&map, ADDR + 0xfffff), "map alone") == 0);
  map_free(&map);
  CHECK_OK(jitsym_close(session));
}

/* Many threads that compile and free, with stable code and other code, and little memory allowed. */
static struct {
  jitsym *session;
  unsigned each;
} crowd;

static uint64_t crowd_addr(unsigned thread, unsigned number) {
  return ADDR + ((uint64_t)thread << 36) + 0x1000000 * (uint64_t)number;
}

static size_t crowd_size(unsigned thread, unsigned number) {
  return number % 50 == 49 ? 1 << 20 : 1 + (thread * 7919 + number * 104729) % 30000;
}

static void *crowd_thread(void *argument) {
  unsigned thread = (unsigned)(uintptr_t)argument;
  for (unsigned i = 0; i < crowd.each; i++) {
    uint64_t addr = crowd_addr(thread, i);
    size_t size = crowd_size(thread, i);
    unsigned char *bytes = emit(addr, size);
    char name[32];
    snprintf(name, sizeof name, "crowd %u %u", thread, i);
    jitsym_code code = test_code(addr, size, name);
    code.bytes = bytes;
    code.flags = i % 4 == 3 ? 0 : JITSYM_CODE_STABLE;
    jitsym_id id = 0;
    CHECK_OK(jitsym_register(crowd.session, &code, &id));
    if (i % 4 == 1) {
      CHECK_OK(jitsym_flush(crowd.session, 20000));
    } else if (i % 4 != 3) {
      CHECK_OK(jitsym_unregister(crowd.session, id));
    }
    memset(bytes, 0xee, size < 64 ? size : 64);
    CHECK(munmap(bytes, size) == 0);
  }
  return NULL;
}

static void many_threads(uint64_t max_memory) {
  jitsym_options options = test_options();
  options.max_memory = max_memory;
  /* Nothing may be dropped here, however slow the machine. */
  options.max_wait_ms = 60000;
  CHECK_OK(jitsym_init(&options, &crowd.session));
  crowd.each = test_light ? 20 : 300;
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&threads[i], NULL, crowd_thread, (void *)i) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  jitsym_stats stats = test_stats(crowd.session);
  CHECK(stats.registered == THREADS * (uint64_t)crowd.each && stats.unreadable == 0 && stats.dropped == 0);
  CHECK_OK(jitsym_close(crowd.session));

  struct dump dump = dump_read(test_path_of(getpid(), JITSYM_SINK_JITDUMP).text);
  size_t loads = 0;
  for (size_t i = 0; i < dump.count; i++) {
    const struct dump_record *load = &dump.records[i];
    if (load->id != DUMP_LOAD) {
      continue;
    }
    loads++;
    unsigned thread, number;
    CHECK(sscanf(load->name, "crowd %u %u", &thread, &number) == 2 && thread < THREADS && number < crowd.each);
    CHECK(load->addr == crowd_addr(thread, number));
    check_bytes(load, load->addr, crowd_size(thread, number));
  }
  CHECK(loads == THREADS * (size_t)crowd.each);
  dump_free(&dump);
}

static void many_threads_default(void) {
  many_threads(0);
}

static void many_threads_narrow(void) {
  many_threads(8 << 20);
}

/* Flags that are none are refused. */
static void flags(void) {
  jitsym *session = test_open();
  jitsym_code code = test_code(ADDR, 64, "flags");
  jitsym_id id = 0;
  code.flags = JITSYM_CODE_GAP << 1;
  CHECK_STATUS(JITSYM_ERR_FLAGS, jitsym_register(session, &code, &id));
  code.flags = 0x80000000;
  CHECK_STATUS(JITSYM_ERR_FLAGS, jitsym_register(session, &code, &id));
  CHECK(id == 0);
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_child(flush_frees);
  test_child(unregister_frees);
  test_child(move_frees);
  test_child(at_its_address);
  check_never_freed(test_child(kept_to_the_close));
  check_never_freed(test_child(kept_to_the_exit));
  test_child(map_alone);
  test_child(many_threads_default);
  test_child(many_threads_narrow);
  test_child(flags);
  return test_end();
}
