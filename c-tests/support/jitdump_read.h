/*
 * A reader of jitdump files that knows nothing of the library: written from the specification in the perf sources
 * (tools/perf/Documentation/jitdump-specification.txt). It checks all that holds for any dump, so that every test that
 * reads one checks it too.
 */
#ifndef JITDUMP_READ_H
#define JITDUMP_READ_H

#include "files.h"

enum { DUMP_LOAD = 0, DUMP_MOVE = 1, DUMP_DEBUG = 2, DUMP_CLOSE = 3, DUMP_UNWIND = 4 };

/* Bytes of the file's header, which jitsym_stats.jitdump_bytes does not count. */
enum { DUMP_HEADER = 40 };

struct dump_record {
  uint32_t id;
  uint64_t time;
  /* LOAD and MOVE */
  uint32_t pid;
  uint32_t tid;
  uint64_t vma;
  /* LOAD and DEBUG: where the code is. MOVE: where it was. */
  uint64_t addr;
  uint64_t new_addr;
  uint64_t size;
  uint64_t index;
  /* LOAD */
  const char *name;
  const unsigned char *code;
  /* The records that stand before a LOAD and describe it; NULL if there are none. */
  const struct dump_record *debug;
  const struct dump_record *unwind;
  /* DEBUG */
  uint64_t lines;
  const unsigned char *line_bytes;
  const unsigned char *line_end;
  /* UNWIND */
  uint64_t unwind_size;
  uint64_t hdr_size;
  uint64_t mapped_size;
  const unsigned char *unwind_bytes;
};

struct dump_line {
  uint64_t addr;
  int32_t line;
  int32_t column;
  const char *file;
};

struct dump {
  unsigned char *bytes;
  size_t size;
  uint32_t machine;
  uint32_t pid;
  uint64_t time;
  uint64_t flags;
  size_t count;
  struct dump_record *records;
};

static inline uint32_t dump_u32(const unsigned char *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static inline uint64_t dump_u64(const unsigned char *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

/* Reads the line at `*at`, which must end before `end`, and goes on to the next one. */
static inline struct dump_line dump_next_line(const unsigned char **at, const unsigned char *end) {
  CHECK(end - *at > 16);
  struct dump_line line = {dump_u64(*at), (int32_t)dump_u32(*at + 8), (int32_t)dump_u32(*at + 12), (const char *)*at + 16};
  const unsigned char *nul = memchr(*at + 16, 0, (size_t)(end - *at - 16));
  CHECK(nul != NULL);
  *at = nul + 1;
  return line;
}

/* One line of a DEBUG record. */
static inline struct dump_line dump_line(const struct dump_record *debug, uint64_t number) {
  CHECK(number < debug->lines);
  const unsigned char *at = debug->line_bytes;
  struct dump_line line;
  do {
    line = dump_next_line(&at, debug->line_end);
  } while (number-- > 0);
  return line;
}

static inline void dump_record_read(struct dump_record *record, const unsigned char *at, size_t size) {
  const unsigned char *end = at + size;
  record->id = dump_u32(at);
  record->time = dump_u64(at + 8);
  switch (record->id) {
    case DUMP_LOAD: {
      CHECK(size > 56);
      record->pid = dump_u32(at + 16);
      record->tid = dump_u32(at + 20);
      record->vma = dump_u64(at + 24);
      record->addr = dump_u64(at + 32);
      record->size = dump_u64(at + 40);
      record->index = dump_u64(at + 48);
      record->name = (const char *)at + 56;
      const unsigned char *nul = memchr(at + 56, 0, size - 56);
      CHECK(nul != NULL);
      record->code = nul + 1;
      CHECK(record->size > 0 && (uint64_t)(end - record->code) == record->size);
      break;
    }
    case DUMP_MOVE:
      CHECK(size == 64);
      record->pid = dump_u32(at + 16);
      record->tid = dump_u32(at + 20);
      record->vma = dump_u64(at + 24);
      record->addr = dump_u64(at + 32);
      record->new_addr = dump_u64(at + 40);
      record->size = dump_u64(at + 48);
      record->index = dump_u64(at + 56);
      break;
    case DUMP_DEBUG: {
      CHECK(size > 32);
      record->addr = dump_u64(at + 16);
      record->lines = dump_u64(at + 24);
      record->line_bytes = at + 32;
      record->line_end = end;
      const unsigned char *line = at + 32;
      uint64_t before = 0;
      for (uint64_t i = 0; i < record->lines; i++) {
        uint64_t addr = dump_next_line(&line, end).addr;
        CHECK(addr >= before && addr >= record->addr);
        before = addr;
      }
      /* Records may be padded to 8 bytes, and not more. */
      CHECK(end - line < 8);
      break;
    }
    case DUMP_CLOSE:
      CHECK(size == 16);
      break;
    case DUMP_UNWIND:
      CHECK(size >= 40);
      record->unwind_size = dump_u64(at + 16);
      record->hdr_size = dump_u64(at + 24);
      record->mapped_size = dump_u64(at + 32);
      record->unwind_bytes = at + 40;
      CHECK(record->hdr_size <= record->unwind_size && record->unwind_size <= size - 40);
      CHECK(size - 40 - record->unwind_size < 8);
      break;
    default:
      fprintf(stderr, "record of kind %u\n", record->id);
      CHECK(0);
  }
}

static inline int dump_compare_index(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/*
 * Reads a dump and checks: the header; whole records that fill the file; that the records which describe code stand
 * directly before its LOAD (perf gives them to the next LOAD, whatever that is); that every LOAD has an index of its own;
 * that time never goes back; that CLOSE is last (perf stops there).
 */
static inline struct dump dump_read(const char *path) {
  struct dump dump;
  memset(&dump, 0, sizeof dump);
  dump.bytes = file_read(path, &dump.size);
  CHECK(dump.size >= DUMP_HEADER);
  CHECK(dump_u32(dump.bytes) == 0x4a695444);
  CHECK(dump_u32(dump.bytes + 4) == 1);
  CHECK(dump_u32(dump.bytes + 8) == DUMP_HEADER);
  dump.machine = dump_u32(dump.bytes + 12);
  CHECK(dump_u32(dump.bytes + 16) == 0);
  dump.pid = dump_u32(dump.bytes + 20);
  dump.time = dump_u64(dump.bytes + 24);
  dump.flags = dump_u64(dump.bytes + 32);
  CHECK(dump.flags <= 1);

  for (size_t at = DUMP_HEADER; at < dump.size; dump.count++) {
    CHECK(dump.size - at >= 16);
    uint32_t size = dump_u32(dump.bytes + at + 4);
    CHECK(size >= 16 && size <= dump.size - at);
    at += size;
  }
  dump.records = calloc(dump.count + 1, sizeof *dump.records);
  uint64_t *indices = calloc(dump.count + 1, sizeof *indices);
  CHECK(dump.records != NULL && indices != NULL);
  size_t loads = 0;
  uint64_t time = 0;
  const struct dump_record *debug = NULL, *unwind = NULL;
  size_t at = DUMP_HEADER;
  for (size_t i = 0; i < dump.count; i++) {
    struct dump_record *record = &dump.records[i];
    uint32_t size = dump_u32(dump.bytes + at + 4);
    dump_record_read(record, dump.bytes + at, size);
    at += size;
    CHECK(record->time >= time);
    time = record->time;
    switch (record->id) {
      case DUMP_DEBUG:
        CHECK(debug == NULL && unwind == NULL);
        debug = record;
        break;
      case DUMP_UNWIND:
        CHECK(unwind == NULL);
        unwind = record;
        break;
      case DUMP_LOAD:
        CHECK(record->pid == dump.pid && record->vma == record->addr);
        CHECK(debug == NULL || debug->addr == record->addr);
        record->debug = debug;
        record->unwind = unwind;
        debug = unwind = NULL;
        CHECK(record->unwind == NULL || record->unwind->mapped_size == 0 ||
              record->unwind->mapped_size == record->unwind->unwind_size);
        indices[loads++] = record->index;
        break;
      default:
        CHECK(debug == NULL && unwind == NULL);
        CHECK(record->id != DUMP_CLOSE || i + 1 == dump.count);
        CHECK(record->id != DUMP_MOVE || record->pid == dump.pid);
    }
  }
  CHECK(debug == NULL && unwind == NULL);
  qsort(indices, loads, sizeof *indices, dump_compare_index);
  for (size_t i = 1; i < loads; i++) {
    CHECK(indices[i - 1] != indices[i]);
  }
  free(indices);
  return dump;
}

static inline size_t dump_count(const struct dump *dump, uint32_t id) {
  size_t count = 0;
  for (size_t i = 0; i < dump->count; i++) {
    count += dump->records[i].id == id;
  }
  return count;
}

/* The number-th LOAD (from 0) with a name, or NULL. */
static inline const struct dump_record *dump_load(const struct dump *dump, const char *name, size_t number) {
  for (size_t i = 0; i < dump->count; i++) {
    const struct dump_record *record = &dump->records[i];
    if (record->id == DUMP_LOAD && strcmp(record->name, name) == 0 && number-- == 0) {
      return record;
    }
  }
  return NULL;
}

static inline void dump_free(struct dump *dump) {
  free(dump->bytes);
  free(dump->records);
}

#endif
