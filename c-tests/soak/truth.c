/* What a process leaves written down of itself, and what its files are held against. */
#include "soak.h"

void truth_path(char *out, size_t size, pid_t pid, const char *what) {
  snprintf(out, size, "%s/%d.%s", test_dir, (int)pid, what);
}

static FILE *truth_open(const char *what) {
  char path[TEST_PATH_MAX + 64];
  truth_path(path, sizeof path, getpid(), what);
  FILE *file = fopen(path, "wbx");
  CHECK(file != NULL);
  return file;
}

static void put_line(FILE *file, uint64_t start, uint64_t size, uint32_t number) {
  char name[SOAK_NAME_MAX] = "wild";
  if (number != WILD) {
    struct look look = look_of(number, SIZE_MAX_CODE);
    name_written(&look, number, named_at[number - first_number], name);
  }
  CHECK(fprintf(file, "%llx %llx %s\n", (unsigned long long)start, (unsigned long long)size, name) > 0);
}

void write_truth(int exact, int killed) {
  struct truth truth;
  memset(&truth, 0, sizeof truth);
  truth.pid = (uint32_t)getpid();
  truth.sinks = world.sinks;
  truth.flags = world.flags;
  truth.killed = (uint32_t)killed;
  truth.exact = (uint32_t)exact;
  truth.live = atomic_load(&world.live);
  if (exact) {
    truth.stats = test_stats(any_session());
  }
  FILE *file = truth_open("painted");
  for (int i = 0; i < ARENAS; i++) {
    const uint32_t *at = world.paint.at[i];
    for (uint64_t from = 0, to; from < arenas[i].size; from = to) {
      for (to = from + 1; to < arenas[i].size && at[to] == at[from]; to++) {
      }
      if (at[from] != 0) {
        put_line(file, arenas[i].start + from, to - from, at[from]);
      }
    }
  }
  CHECK(fclose(file) == 0);
  file = truth_open("live");
  for (unsigned i = 0; i < BLOCKS; i++) {
    for (unsigned k = 0; world.blocks[i].state == IDLE && k < world.blocks[i].count; k++) {
      const struct code *code = &world.blocks[i].codes[k];
      put_line(file, code->addr, code->size, code->number);
    }
  }
  CHECK(fclose(file) == 0);
  file = truth_open("truth");
  CHECK(fwrite(&truth, sizeof truth, 1, file) == 1 && fclose(file) == 0);
}

/* What a file says of every address: numbers of its entries, from 1 on. */
struct reading {
  const char *what;
  struct paint paint;
  const char **names;
};

static struct reading reading_of_map(const struct map *map, const char *what) {
  struct reading reading = {what, {{NULL}}, calloc(map->count + 1, sizeof(char *))};
  CHECK(reading.names != NULL);
  paint_begin(&reading.paint);
  for (uint32_t i = 0; i < map->count; i++) {
    paint_over(&reading.paint, map->entries[i].start, map->entries[i].size, i + 1);
    reading.names[i + 1] = map->entries[i].name;
  }
  return reading;
}

static const struct dump_record *load_with_index(const struct dump *dump, size_t before, uint64_t index) {
  for (size_t i = before; i-- > 0;) {
    if (dump->records[i].id == DUMP_LOAD && dump->records[i].index == index) {
      return &dump->records[i];
    }
  }
  CHECK(!"a move of code that was never loaded");
  return NULL;
}

/* Replays a jitdump: the newest wins. */
static struct reading reading_of_dump(const struct dump *dump) {
  struct reading reading = {"jitdump", {{NULL}}, calloc(dump->count + 1, sizeof(char *))};
  CHECK(reading.names != NULL);
  paint_begin(&reading.paint);
  for (uint32_t i = 0; i < dump->count; i++) {
    const struct dump_record *record = &dump->records[i];
    if (record->id == DUMP_LOAD) {
      paint_over(&reading.paint, record->addr, record->size, i + 1);
      reading.names[i + 1] = record->name;
    } else if (record->id == DUMP_MOVE) {
      paint_over(&reading.paint, record->new_addr, record->size, i + 1);
      reading.names[i + 1] = load_with_index(dump, i, record->index)->name;
    }
  }
  return reading;
}

static void reading_free(struct reading *reading) {
  paint_end(&reading->paint);
  free(reading->names);
}

static void compare(const struct truth *truth, const struct reading *painted, const struct reading *file) {
  for (int i = 0; i < ARENAS; i++) {
    const uint32_t *expected = painted->paint.at[i], *found = file->paint.at[i];
    uint32_t same = 0, same_as = 0;
    for (uint64_t at = 0; at < arenas[i].size; at++) {
      if ((expected[at] == same && found[at] == same_as) || (expected[at] | found[at]) == 0) {
        continue;
      }
      const char *name = expected[at] == 0 ? "" : painted->names[expected[at]];
      const char *its_name = found[at] == 0 ? "" : file->names[found[at]];
      if (strcmp(name, its_name) != 0 && strcmp(name, "wild") != 0) {
        fprintf(stderr, "%s of %u (killed %u): %llx is \"%s\", and should be \"%s\"\n", file->what, truth->pid, truth->killed,
                (unsigned long long)(arenas[i].start + at), its_name, name);
        _exit(1);
      }
      same = expected[at], same_as = found[at];
    }
  }
}

/* All of a live code is where it should be, from its first byte to its last, in one record. */
static void compare_live(const struct map *live, const struct dump *dump, const struct reading *reading) {
  for (size_t i = 0; i < live->count; i++) {
    const struct map_entry *code = &live->entries[i];
    const uint32_t *place = paint_place(&reading->paint, code->start, code->size);
    CHECK(place[0] != 0);
    const struct dump_record *record = &dump->records[place[0] - 1];
    CHECK((record->id == DUMP_MOVE ? record->new_addr : record->addr) == code->start && record->size == code->size);
    for (uint64_t k = 0; k < code->size; k++) {
      CHECK(place[k] == place[0]);
    }
  }
}

static int all_zero(const unsigned char *bytes, uint64_t size) {
  return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

/* That a record holds what its number says. */
static void check_record(const struct truth *truth, const struct dump_record *record) {
  uint32_t number = name_number(record->name);
  if (number == 0) {
    return;
  }
  struct look look = look_of(number, record->size);
  int at_address = look.bytes == BYTES_AT_ADDRESS, is_real = arena_of(record->addr) == REAL;
  int may_be_there = !at_address || is_real;
  /* The bytes of stable code go with a process that is killed. */
  int may_be_zero = at_address ? !is_real : look.bytes != BYTES_GIVEN && truth->killed;
  int good = (may_be_there && memcmp(record->code, look_content(&look), record->size) == 0) ||
             (may_be_zero && all_zero(record->code, record->size));
  if (!good) {
    uint64_t same = 0;
    for (uint64_t i = 0; i < record->size; i++) {
      same += record->code[i] == look_content(&look)[i];
    }
    fprintf(stderr, "jit-%u.dump: %s at %llx, %llu of its %llu bytes are right (kind %u)\n", truth->pid, record->name,
            (unsigned long long)record->addr, (unsigned long long)same, (unsigned long long)record->size, look.bytes);
    _exit(1);
  }
  uint64_t lines = look.lines == 0 ? 0 : look.lines + 1;
  int unwind = look.unwind != JITSYM_UNWIND_NONE && !(truth->flags & JITSYM_INIT_NO_UNWIND);
  if ((record->debug == NULL ? 0 : record->debug->lines) != lines || (record->unwind != NULL) != unwind) {
    fprintf(stderr, "%s: its lines or tables are not right\n", record->name);
    _exit(1);
  }
}

static void verify_dump(const struct truth *truth, const struct reading *painted, const struct map *live) {
  struct dump dump = dump_read(test_path_of((pid_t)truth->pid, JITSYM_SINK_JITDUMP).text);
  CHECK(dump.pid == truth->pid);
  struct reading reading = reading_of_dump(&dump);
  compare(truth, painted, &reading);
  compare_live(live, &dump, &reading);
  CHECK(dump_count(&dump, DUMP_MOVE) == 0 && dump_count(&dump, DUMP_CLOSE) == 0);
  for (size_t i = 0; i < dump.count; i++) {
    if (dump.records[i].id == DUMP_LOAD) {
      check_record(truth, &dump.records[i]);
    }
  }
  if (truth->exact) {
    CHECK(truth->stats.jitdump_records == dump_count(&dump, DUMP_LOAD));
    CHECK(truth->stats.jitdump_bytes == dump.size - DUMP_HEADER);
  }
  reading_free(&reading);
  dump_free(&dump);
}

static void verify_map(const struct truth *truth, const struct reading *painted) {
  struct map map = map_read(test_path_of((pid_t)truth->pid, JITSYM_SINK_MAP).text);
  struct reading reading = reading_of_map(&map, "perf map");
  compare(truth, painted, &reading);
  CHECK(!truth->exact || truth->stats.map_entries == map.count);
  reading_free(&reading);
  map_free(&map);
}

static void verify(pid_t pid) {
  char path[TEST_PATH_MAX + 64];
  struct truth truth;
  size_t size;
  truth_path(path, sizeof path, pid, "truth");
  unsigned char *bytes = file_read(path, &size);
  CHECK(size == sizeof truth);
  memcpy(&truth, bytes, sizeof truth);
  free(bytes);
  CHECK(truth.pid == (uint32_t)pid);
  truth_path(path, sizeof path, pid, "painted");
  struct map painted = map_read(path);
  truth_path(path, sizeof path, pid, "live");
  struct map live = map_read(path);
  CHECK(live.count == truth.live);
  struct reading reading = reading_of_map(&painted, "truth");
  int has_map = file_exists(test_path_of(pid, JITSYM_SINK_MAP).text);
  int has_dump = file_exists(test_path_of(pid, JITSYM_SINK_JITDUMP).text);
  CHECK(has_map == !!(truth.sinks & JITSYM_SINK_MAP) && has_dump == !!(truth.sinks & JITSYM_SINK_JITDUMP));
  if (has_map) {
    verify_map(&truth, &reading);
  }
  if (has_dump) {
    verify_dump(&truth, &reading, &live);
  }
  reading_free(&reading);
  map_free(&painted);
  map_free(&live);
}

/* Every file in the directory is what it should be. Returns of how many processes there are files. */
int verify_all(void) {
  DIR *dir = opendir(test_dir);
  CHECK(dir != NULL);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char path[TEST_PATH_MAX + 64];
    int pid = 0, length = 0;
    if (sscanf(entry->d_name, "%d.truth%n", &pid, &length) == 1 && length > 0) {
      verify(pid);
      count++;
    } else if (sscanf(entry->d_name, "perf-%d.map", &pid) == 1 || sscanf(entry->d_name, "jit-%d.dump", &pid) == 1) {
      truth_path(path, sizeof path, pid, "truth");
      if (!file_exists(path)) {
        fprintf(stderr, "%s: of a process that should have none\n", entry->d_name);
        _exit(1);
      }
    } else if (sscanf(entry->d_name, "%d.", &pid) != 1 && entry->d_name[0] != '.') {
      fprintf(stderr, "%s: left over\n", entry->d_name);
      _exit(1);
    }
  }
  closedir(dir);
  return count;
}
