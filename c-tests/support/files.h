/* Whole files, and a strict reader of perf maps. */
#ifndef FILES_H
#define FILES_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"

/* The bytes of a file, with a NUL behind them; the caller frees them. */
static inline unsigned char *file_read(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
  }
  CHECK(file != NULL);
  size_t capacity = 1 << 16;
  unsigned char *bytes = malloc(capacity + 1);
  CHECK(bytes != NULL);
  *size = 0;
  for (size_t got; (got = fread(bytes + *size, 1, capacity - *size, file)) > 0;) {
    *size += got;
    if (*size == capacity) {
      capacity *= 2;
      bytes = realloc(bytes, capacity + 1);
      CHECK(bytes != NULL);
    }
  }
  CHECK(ferror(file) == 0);
  fclose(file);
  bytes[*size] = 0;
  return bytes;
}

static inline int file_exists(const char *path) {
  struct stat status;
  return lstat(path, &status) == 0;
}

static inline void file_write(const char *path, const char *text) {
  FILE *file = fopen(path, "wb");
  CHECK(file != NULL);
  CHECK(fputs(text, file) >= 0);
  CHECK(fclose(file) == 0);
}

struct map_entry {
  uint64_t start;
  uint64_t size;
  const char *name;
};

struct map {
  unsigned char *text;
  size_t count;
  /* In order of their addresses. */
  struct map_entry *entries;
};

static inline int map_compare(const void *a, const void *b) {
  uint64_t x = ((const struct map_entry *)a)->start, y = ((const struct map_entry *)b)->start;
  return (x > y) - (x < y);
}

/* A number as the strictest reader takes it: lower-case hexadecimal digits, no needless zero in front. */
static inline uint64_t map_number(char **at, const char *prefix) {
  CHECK(strncmp(*at, prefix, strlen(prefix)) == 0);
  *at += strlen(prefix);
  CHECK(strchr("0123456789abcdef", **at) != NULL && **at != 0);
  size_t digits = strspn(*at, "0123456789abcdef");
  CHECK(digits <= 16 && (**at != '0' || digits == 1));
  uint64_t number = strtoull(*at, at, 16);
  CHECK(**at == ' ');
  *at += 1;
  return number;
}

/*
 * Reads a perf map and checks that every reader would: whole lines `START SIZE NAME`, names of at least 3 bytes (perf
 * skips shorter ones) without control characters, and no address that two lines claim (readers differ in which they take).
 */
static inline struct map map_read_dialect(const char *path, const char *prefix) {
  struct map map;
  size_t size;
  map.text = file_read(path, &size);
  map.count = 0;
  CHECK(strlen((char *)map.text) == size);
  CHECK(size == 0 || map.text[size - 1] == '\n');
  size_t lines = 0;
  for (size_t i = 0; i < size; i++) {
    lines += map.text[i] == '\n';
  }
  map.entries = calloc(lines + 1, sizeof *map.entries);
  CHECK(map.entries != NULL);
  for (char *at = (char *)map.text; *at != 0;) {
    struct map_entry *entry = &map.entries[map.count++];
    entry->start = map_number(&at, prefix);
    entry->size = map_number(&at, prefix);
    CHECK(entry->size != 0);
    entry->name = at;
    for (; *at != '\n'; at++) {
      CHECK((unsigned char)*at >= ' ' && *at != 0x7f);
    }
    CHECK(at - entry->name >= 3 && at - entry->name <= JITSYM_NAME_MAX);
    *at++ = 0;
  }
  qsort(map.entries, map.count, sizeof *map.entries, map_compare);
  for (size_t i = 1; i < map.count; i++) {
    CHECK(map.entries[i - 1].start + map.entries[i - 1].size <= map.entries[i].start);
  }
  return map;
}

static inline struct map map_read(const char *path) {
  return map_read_dialect(path, "");
}

/* The entry that an address belongs to, or NULL. */
static inline const struct map_entry *map_find(const struct map *map, uint64_t addr) {
  size_t low = 0, high = map->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (map->entries[middle].start <= addr) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0 || addr - map->entries[low - 1].start >= map->entries[low - 1].size) {
    return NULL;
  }
  return &map->entries[low - 1];
}

/* The name of an address; "" if it has none. */
static inline const char *map_name(const struct map *map, uint64_t addr) {
  const struct map_entry *entry = map_find(map, addr);
  return entry == NULL ? "" : entry->name;
}

static inline void map_free(struct map *map) {
  free(map->text);
  free(map->entries);
}

/* That a file holds this text and nothing else. */
static inline void file_check(const char *path, const char *text) {
  size_t size;
  unsigned char *bytes = file_read(path, &size);
  CHECK(strcmp((char *)bytes, text) == 0);
  free(bytes);
}

#endif
