/*
 * Arenas: memory for code of all origins, and how it is written.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "jitsym_region.h"
#include "random.h"

struct arena *arena_new(struct rng *rng, enum origin origin, enum flips flips, uint64_t size, uint64_t max_size) {
  struct arena *arena = calloc(1, sizeof *arena);
  if (!arena) {
    fail("out of memory");
  }
  arena->origin = origin;
  arena->flips = flips;
  arena->layout = (enum layout)below(rng, 3);
  arena->size = size;
  arena->max_size = max_size > size ? max_size : size;
  if (origin == ADOPTED) {
    int protection = PROT_READ | PROT_WRITE | (flips == NO_FLIPS ? PROT_EXEC : 0);
    arena->exec = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena->exec == MAP_FAILED) {
      fail("no memory");
    }
    arena->write = arena->exec;
    return arena;
  }
  jitsym_region_options options = {0};
  options.struct_size = sizeof options;
  options.size = size;
  options.max_size = max_size;
  options.flags = origin == CREATED_ONE_VIEW ? JITSYM_REGION_ONE_VIEW : 0;
  jitsym_region region = {.struct_size = sizeof region};
  check(jitsym_region_create(session, &options, &region), "jitsym_region_create");
  arena->exec = region.exec;
  arena->write = region.write;
  /* Most programs begin with memory that is executable as a whole. Others leave pages between code that are not. */
  int has_gaps = workload->life == REUSES ? (workload->features & HAS_GAPS) != 0 : one_in(rng, 2);
  int protection = PROT_READ | PROT_EXEC | (flips == NO_FLIPS ? PROT_WRITE : 0);
  if (origin == CREATED_ONE_VIEW && (flips == NO_FLIPS || !has_gaps) && mprotect(arena->exec, size, protection) != 0) {
    fail("mprotect");
  }
  return arena;
}

void arena_adopt(struct arena *arena, int is_automatic) {
  if (arena->origin != ADOPTED) {
    return;
  }
  if (arena->flips != NO_FLIPS && mprotect(arena->exec, arena->size, PROT_READ | PROT_EXEC) != 0) {
    fail("mprotect");
  }
  if (sinks & JITSYM_SINK_REGION && !is_automatic) {
    check(jitsym_region_adopt(session, arena->exec, arena->size), "jitsym_region_adopt");
  }
}

static void grow(struct arena *arena, struct rng *rng) {
  uint64_t size = arena->size + PAGE * (1 + (uint64_t)below(rng, arena->size / PAGE));
  arena->size = size < arena->max_size ? size : arena->max_size;
  check(jitsym_region_grow(session, arena->exec, arena->size), "jitsym_region_grow");
}

static void add_hole(struct arena *arena, uint64_t at, uint64_t size) {
  if (size == 0) {
    return;
  }
  if (arena->hole_count == arena->hole_room) {
    arena->hole_room = 2 * arena->hole_room + 64;
    arena->holes = realloc(arena->holes, arena->hole_room * sizeof *arena->holes);
    if (!arena->holes) {
      fail("out of memory");
    }
  }
  arena->holes[arena->hole_count++] = (struct hole){at, size};
}

static int take_hole(struct arena *arena, struct rng *rng, uint32_t size, uint64_t *at) {
  uint32_t first = arena->hole_count > 0 ? below(rng, arena->hole_count) : 0;
  for (uint32_t tried = 0; tried < arena->hole_count; tried++) {
    uint32_t index = (first + tried) % arena->hole_count;
    struct hole hole = arena->holes[index];
    if (hole.size >= size) {
      arena->holes[index] = arena->holes[--arena->hole_count];
      *at = hole.at;
      add_hole(arena, hole.at + size, hole.size - size);
      return 1;
    }
  }
  return 0;
}

int arena_take(struct arena *arena, struct rng *rng, uint32_t size, int reuses, int last, uint64_t *at) {
  if (last) {
    if (arena->has_last || arena->size - arena->fresh < size) {
      return 0;
    }
    arena->has_last = 1;
    arena->max_size = arena->size - size;
    *at = arena->max_size;
    arena->size = arena->max_size;
    return 1;
  }
  if (reuses && !one_in(rng, 4) && take_hole(arena, rng, size, at)) {
    return 1;
  }
  uint64_t from = arena->fresh;
  if (arena->layout == ALIGNED) {
    from = (from + 15) & ~(uint64_t)15;
  } else if (arena->layout == GAPS) {
    from += below(rng, 300);
  }
  /* Large arenas are not filled from their beginning alone. */
  if (one_in(rng, 64)) {
    from += below(rng, arena->size / 32);
  }
  while (from + size > arena->size) {
    if (arena->size >= arena->max_size) {
      return reuses && take_hole(arena, rng, size, at);
    }
    grow(arena, rng);
  }
  arena->fresh = from + size;
  *at = from;
  return 1;
}

void arena_give(struct arena *arena, uint64_t at, uint32_t size) {
  add_hole(arena, at, size);
}

void arena_write(struct arena *arena, struct rng *rng, uint64_t at, const uint8_t *bytes, uint32_t size,
                 void (*while_writable)(void *), void *argument) {
  uint64_t from = at & ~(uint64_t)(PAGE - 1), to = (at + size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
  uint64_t end = (arena->size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
  if (arena->flips == FLIP_ARENA) {
    from = 0;
    to = end;
  } else if (arena->flips == FLIP_RUN) {
    uint64_t before = PAGE * (uint64_t)below(rng, 16), after = PAGE * (uint64_t)below(rng, 16);
    from = before < from ? from - before : 0;
    to = after < end - to ? to + after : end;
  }
  if (arena->flips != NO_FLIPS && mprotect(arena->exec + from, to - from, PROT_READ | PROT_WRITE) != 0) {
    fail("mprotect");
  }
  if (bytes) {
    memcpy(arena->write + at, bytes, size);
  } else {
    memset(arena->write + at, 0xcc, size);
  }
  if (while_writable) {
    while_writable(argument);
  }
  if (arena->flips != NO_FLIPS && mprotect(arena->exec + from, to - from, PROT_READ | PROT_EXEC) != 0) {
    fail("mprotect");
  }
}
