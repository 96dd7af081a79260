/* The list by which debuggers learn of objects (gdb manual, "JIT Compilation Interface"). */
#ifndef GDB_LIST_H
#define GDB_LIST_H

#include <stdint.h>

struct gdb_entry {
  struct gdb_entry *next, *previous;
  const void *object;
  uint64_t size;
};

struct gdb_descriptor {
  uint32_t version, action;
  struct gdb_entry *relevant, *first;
};

#endif
