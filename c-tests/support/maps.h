/* What the kernel says of the page at an address. */
#ifndef MAPS_H
#define MAPS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

struct mapping {
  uintptr_t start, end;
  char flags[5];
  char path[4096];
};

/* Reads the next mapping from /proc/self/maps. Returns 0 after the last mapping. */
static inline int next_mapping(FILE *maps, struct mapping *one) {
  char line[4096 + 128];
  if (fgets(line, sizeof line, maps) == NULL) {
    return 0;
  }
  memset(one, 0, sizeof *one);
  CHECK(sscanf(line, "%lx-%lx %4s %*s %*s %*s %4095[^\n]", &one->start, &one->end, one->flags, one->path) >= 3);
  return 1;
}

/* Its end is 0 if nothing is mapped there. */
static inline struct mapping mapping_at(const void *where) {
  struct mapping found = {0, 0, "none", ""};
  uintptr_t addr = (uintptr_t)where;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  for (struct mapping one; next_mapping(maps, &one);) {
    if (one.start <= addr && addr < one.end) {
      found = one;
    }
  }
  fclose(maps);
  return found;
}

static inline int has_flags(const void *where, const char *flags) {
  return strcmp(mapping_at(where).flags, flags) == 0;
}

/* Whether the page at an address shows a file whose path has this in it. */
static inline int is_of_file(const void *where, const char *part) {
  return strstr(mapping_at(where).path, part) != NULL;
}

#endif
