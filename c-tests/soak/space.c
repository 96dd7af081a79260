/* The address space: what lived where last, and what is free. */
#include "soak.h"

/* So small that the lines of dead code in a map stay below the number at which the library drops the oldest. */
const struct arena arenas[ARENAS] = {
  {0x200000000000, 1 << 20},
  {0x7000000000, 2 << 20},
  {UINT64_MAX - (1 << 19) + 1, (1 << 19) - 1},
};

int arena_of(uint64_t addr) {
  for (int i = 0; i < ARENAS; i++) {
    if (addr - arenas[i].start < arenas[i].size) {
      return i;
    }
  }
  return -1;
}

void paint_begin(struct paint *paint) {
  for (int i = 0; i < ARENAS; i++) {
    size_t size = arenas[i].size * sizeof(uint32_t);
    paint->at[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(paint->at[i] != MAP_FAILED);
  }
}

void paint_end(struct paint *paint) {
  for (int i = 0; i < ARENAS; i++) {
    CHECK(munmap(paint->at[i], arenas[i].size * sizeof(uint32_t)) == 0);
  }
}

uint32_t *paint_place(const struct paint *paint, uint64_t addr, uint64_t size) {
  int arena = arena_of(addr);
  CHECK(arena >= 0 && size <= arenas[arena].size - (addr - arenas[arena].start));
  return paint->at[arena] + (addr - arenas[arena].start);
}

void paint_over(const struct paint *paint, uint64_t addr, uint64_t size, uint32_t number) {
  uint32_t *place = paint_place(paint, addr, size);
  for (uint64_t i = 0; i < size; i++) {
    place[i] = number;
  }
}

void room_begin(struct room *room) {
  for (int i = 0; i < ARENAS; i++) {
    room->count[i] = 0;
    room_give(room, arenas[i].start, arenas[i].size);
  }
}

void room_give(struct room *room, uint64_t start, uint64_t size) {
  int i = arena_of(start);
  CHECK(i >= 0);
  if (room->count[i] == room->capacity[i]) {
    room->capacity[i] = room->capacity[i] * 2 + 64;
    room->ranges[i] = realloc(room->ranges[i], room->capacity[i] * sizeof(struct range));
    CHECK(room->ranges[i] != NULL);
  }
  room->ranges[i][room->count[i]++] = (struct range){start, size};
}

static int range_compare(const void *a, const void *b) {
  uint64_t x = ((const struct range *)a)->start, y = ((const struct range *)b)->start;
  return (x > y) - (x < y);
}

/* Makes one of ranges that touch each other. */
static void room_join(struct room *room, int arena) {
  struct range *ranges = room->ranges[arena];
  size_t count = room->count[arena], kept = 0;
  qsort(ranges, count, sizeof *ranges, range_compare);
  for (size_t i = 0; i < count; i++) {
    if (kept > 0 && ranges[kept - 1].start + ranges[kept - 1].size == ranges[i].start) {
      ranges[kept - 1].size += ranges[i].size;
    } else {
      CHECK(kept == 0 || ranges[kept - 1].start + ranges[kept - 1].size < ranges[i].start);
      ranges[kept++] = ranges[i];
    }
  }
  room->count[arena] = kept;
}

uint64_t room_take(struct room *room, int arena, uint64_t size) {
  for (int pass = 0; pass < 2; pass++) {
    struct range *ranges = room->ranges[arena];
    for (size_t i = room->count[arena]; i-- > 0;) {
      if (ranges[i].size >= size) {
        uint64_t start = ranges[i].start;
        ranges[i].start += size;
        ranges[i].size -= size;
        if (ranges[i].size == 0) {
          memmove(&ranges[i], &ranges[i + 1], (--room->count[arena] - i) * sizeof *ranges);
        }
        return start;
      }
    }
    room_join(room, arena);
  }
  return 0;
}
