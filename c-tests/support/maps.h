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

/* Its end is 0 if nothing is mapped there. */
static inline struct mapping mapping_at(const void *where) {
  struct mapping found = {0, 0, "none", ""};
  uintptr_t addr = (uintptr_t)where;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  char line[4096 + 128];
  while (fgets(line, sizeof line, maps) != NULL) {
    struct mapping one = {0, 0, "", ""};
    CHECK(sscanf(line, "%lx-%lx %4s %*s %*s %*s %4095[^\n]", &one.start, &one.end, one.flags, one.path) >= 3);
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
