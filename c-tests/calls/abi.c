/* The binary interface: sizes, offsets and numbers that compiled programs carry in them and that may never change. */
#include "jitsym_control.h"
#include "jitsym_region.h"
#include "testing.h"

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "sizeof(" #type ")")
#define FIELD(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define NUMBER(name, value) _Static_assert((name) == (value), #name)

/* The numbers are those of machines with 64-bit pointers. */
#if UINTPTR_MAX == UINT64_MAX
SIZE(jitsym_options, 80);
FIELD(jitsym_options, struct_size, 0);
FIELD(jitsym_options, sinks, 8);
FIELD(jitsym_options, flags, 12);
FIELD(jitsym_options, map_dir, 16);
FIELD(jitsym_options, jitdump_dir, 24);
FIELD(jitsym_options, map_dialect, 32);
FIELD(jitsym_options, file_mode, 36);
FIELD(jitsym_options, max_memory, 40);
FIELD(jitsym_options, max_wait_ms, 48);
FIELD(jitsym_options, reserved, 52);
FIELD(jitsym_options, spool_dir, 56);
FIELD(jitsym_options, map_max, 64);
FIELD(jitsym_options, jitdump_max, 72);

SIZE(jitsym_saved_register, 8);
FIELD(jitsym_saved_register, reg, 0);
FIELD(jitsym_saved_register, offset, 4);

SIZE(jitsym_unwind_row, 24);
FIELD(jitsym_unwind_row, offset, 0);
FIELD(jitsym_unwind_row, cfa_reg, 4);
FIELD(jitsym_unwind_row, cfa_offset, 8);
FIELD(jitsym_unwind_row, saved_count, 12);
FIELD(jitsym_unwind_row, saved, 16);

SIZE(jitsym_unwind, 104);
FIELD(jitsym_unwind, struct_size, 0);
FIELD(jitsym_unwind, kind, 8);
FIELD(jitsym_unwind, flags, 12);
FIELD(jitsym_unwind, fp_pushed, 16);
FIELD(jitsym_unwind, fp_set, 20);
FIELD(jitsym_unwind, epilogue_begin, 24);
FIELD(jitsym_unwind, epilogue_end, 28);
FIELD(jitsym_unwind, cfa_offset, 32);
FIELD(jitsym_unwind, saved_count, 36);
FIELD(jitsym_unwind, saved, 40);
FIELD(jitsym_unwind, saved_from, 48);
FIELD(jitsym_unwind, row_count, 52);
FIELD(jitsym_unwind, rows, 56);
FIELD(jitsym_unwind, row_size, 64);
FIELD(jitsym_unwind, eh_frame, 72);
FIELD(jitsym_unwind, eh_frame_size, 80);
FIELD(jitsym_unwind, eh_frame_addr, 88);
FIELD(jitsym_unwind, sp_set, 96);
FIELD(jitsym_unwind, sp_reset, 100);

SIZE(jitsym_line, 24);
FIELD(jitsym_line, offset, 0);
FIELD(jitsym_line, line, 4);
FIELD(jitsym_line, column, 8);
FIELD(jitsym_line, reserved, 12);
FIELD(jitsym_line, file, 16);
SIZE(jitsym_inline, 48);
FIELD(jitsym_inline, begin, 0);
FIELD(jitsym_inline, end, 4);
FIELD(jitsym_inline, name, 8);
FIELD(jitsym_inline, name_len, 16);
FIELD(jitsym_inline, call_file, 24);
FIELD(jitsym_inline, call_line, 32);
FIELD(jitsym_inline, call_column, 36);
FIELD(jitsym_inline, parent, 40);
FIELD(jitsym_inline, reserved, 44);

SIZE(jitsym_code, 128);
FIELD(jitsym_code, struct_size, 0);
FIELD(jitsym_code, addr, 8);
FIELD(jitsym_code, size, 16);
FIELD(jitsym_code, name, 24);
FIELD(jitsym_code, name_len, 32);
FIELD(jitsym_code, bytes, 40);
FIELD(jitsym_code, unwind, 48);
FIELD(jitsym_code, lines, 56);
FIELD(jitsym_code, line_count, 64);
FIELD(jitsym_code, line_size, 72);
FIELD(jitsym_code, flags, 80);
FIELD(jitsym_code, reserved, 84);
FIELD(jitsym_code, inlines, 88);
FIELD(jitsym_code, inline_count, 96);
FIELD(jitsym_code, inline_size, 104);
FIELD(jitsym_code, file, 112);
FIELD(jitsym_code, line, 120);
FIELD(jitsym_code, reserved2, 124);

SIZE(jitsym_move_target, 32);
FIELD(jitsym_move_target, struct_size, 0);
FIELD(jitsym_move_target, addr, 8);
FIELD(jitsym_move_target, bytes, 16);
FIELD(jitsym_move_target, flags, 24);
FIELD(jitsym_move_target, reserved, 28);

SIZE(jitsym_region_options, 48);
FIELD(jitsym_region_options, struct_size, 0);
FIELD(jitsym_region_options, size, 8);
FIELD(jitsym_region_options, max_size, 16);
FIELD(jitsym_region_options, alignment, 24);
FIELD(jitsym_region_options, near_addr, 32);
FIELD(jitsym_region_options, flags, 40);
FIELD(jitsym_region_options, reserved, 44);

SIZE(jitsym_region, 32);
FIELD(jitsym_region, struct_size, 0);
FIELD(jitsym_region, exec, 8);
FIELD(jitsym_region, write, 16);
FIELD(jitsym_region, size, 24);

SIZE(jitsym_stats, 304);
FIELD(jitsym_stats, struct_size, 0);
FIELD(jitsym_stats, sinks_running, 8);
FIELD(jitsym_stats, sinks_failed, 12);
FIELD(jitsym_stats, registered, 16);
FIELD(jitsym_stats, moved, 24);
FIELD(jitsym_stats, unregistered, 32);
FIELD(jitsym_stats, overwritten, 40);
FIELD(jitsym_stats, live, 48);
FIELD(jitsym_stats, dropped, 56);
FIELD(jitsym_stats, unreadable, 64);
FIELD(jitsym_stats, names_changed, 72);
FIELD(jitsym_stats, jitdump_bytes, 80);
FIELD(jitsym_stats, jitdump_records, 88);
FIELD(jitsym_stats, map_bytes, 96);
FIELD(jitsym_stats, map_entries, 104);
FIELD(jitsym_stats, map_rewrites, 112);
FIELD(jitsym_stats, map_forgotten, 120);
FIELD(jitsym_stats, write_errors, 128);
FIELD(jitsym_stats, memory, 136);
FIELD(jitsym_stats, memory_held, 144);
FIELD(jitsym_stats, waited, 152);
FIELD(jitsym_stats, recovered, 160);
FIELD(jitsym_stats, spool, 168);
FIELD(jitsym_stats, inherited, 172);
FIELD(jitsym_stats, jitdump_lost, 176);
FIELD(jitsym_stats, jitdump_held, 184);
FIELD(jitsym_stats, jitdump_rewrites, 192);
FIELD(jitsym_stats, map_omitted, 200);
FIELD(jitsym_stats, regions, 208);
FIELD(jitsym_stats, region_code, 216);
FIELD(jitsym_stats, region_bytes, 224);
FIELD(jitsym_stats, region_generations, 232);
FIELD(jitsym_stats, region_late, 240);
FIELD(jitsym_stats, region_refused, 248);
FIELD(jitsym_stats, region_left_out, 256);
FIELD(jitsym_stats, calls_refused, 264);
FIELD(jitsym_stats, region_put_off, 272);
FIELD(jitsym_stats, region_limit, 280);
FIELD(jitsym_stats, threads, 288);
FIELD(jitsym_stats, lines_left_out, 296);
#endif

/* Foreign function interfaces declare enumerations as int. */
SIZE(jitsym_status, sizeof(int));
SIZE(jitsym_limit, sizeof(int));
SIZE(jitsym_sink, sizeof(int));
SIZE(jitsym_init_flag, sizeof(int));
SIZE(jitsym_map_dialect, sizeof(int));
SIZE(jitsym_unwind_kind, sizeof(int));
SIZE(jitsym_unwind_flag, sizeof(int));
SIZE(jitsym_code_flag, sizeof(int));
SIZE(jitsym_range_flag, sizeof(int));
SIZE(jitsym_region_flag, sizeof(int));
SIZE(jitsym_spool_state, sizeof(int));
SIZE(jitsym_id, 8);

NUMBER(JITSYM_NAME_MAX, 1000);
NUMBER(JITSYM_DIR_MAX, 1023);
NUMBER(JITSYM_CODE_SIZE_MAX, 0x7fffffff);
NUMBER(JITSYM_SINK_MAP, 1);
NUMBER(JITSYM_SINK_JITDUMP, 2);
NUMBER(JITSYM_SINK_REGION, 4);
NUMBER(JITSYM_INIT_ENV_WINS, 1);
NUMBER(JITSYM_INIT_OFF_BY_DEFAULT, 2);
NUMBER(JITSYM_INIT_NO_UNWIND, 4);
NUMBER(JITSYM_INIT_DROP_WHEN_FULL, 32);
NUMBER(JITSYM_INIT_NO_SPOOL, 64);
NUMBER(JITSYM_INIT_RECOVER, 128);
NUMBER(JITSYM_INIT_FORK_NOW, 256);
NUMBER(JITSYM_INIT_FORK_ALONE, 512);
NUMBER(JITSYM_INIT_REMOVE_FILES, 1024);
NUMBER(JITSYM_INIT_REMEMBER, 2048);
NUMBER(JITSYM_INIT_ADOPT, 4096);
NUMBER(JITSYM_INIT_BRIDGE, 8192);
NUMBER(JITSYM_INIT_NO_THREADS, 16384);
NUMBER(JITSYM_CODE_STABLE, 1);
NUMBER(JITSYM_RANGE_UNMAP, 1);
NUMBER(JITSYM_REGION_ONE_VIEW, 1);
NUMBER(JITSYM_REGION_HUGE_PAGES, 2);
NUMBER(JITSYM_SPOOL_NONE, 0);
NUMBER(JITSYM_SPOOL_SHARED, 1);
NUMBER(JITSYM_MAP_PERF, 0);
NUMBER(JITSYM_MAP_SIMPLEPERF, 1);
NUMBER(JITSYM_UNWIND_NONE, 0);
NUMBER(JITSYM_UNWIND_FRAME_POINTER, 1);
NUMBER(JITSYM_UNWIND_FIXED_FRAME, 2);
NUMBER(JITSYM_UNWIND_ROWS, 3);
NUMBER(JITSYM_UNWIND_EH_FRAME, 4);

static const struct {
  int32_t number;
  jitsym_status status;
  const char *name;
} statuses[] = {
#define STATUS(number, name) {number, name, #name}
    STATUS(0, JITSYM_OK),
    STATUS(1, JITSYM_ERR_NULL),
    STATUS(2, JITSYM_ERR_STRUCT_SIZE),
    STATUS(3, JITSYM_ERR_STRUCT_TAIL),
    STATUS(4, JITSYM_ERR_FLAGS),
    STATUS(5, JITSYM_ERR_ENUM),
    STATUS(6, JITSYM_ERR_SIZE_ZERO),
    STATUS(7, JITSYM_ERR_ADDRESS_RANGE),
    STATUS(8, JITSYM_ERR_TOO_LARGE),
    STATUS(9, JITSYM_ERR_LINE_OFFSET),
    STATUS(10, JITSYM_ERR_LINE_FILE),
    STATUS(11, JITSYM_ERR_UNWIND_ORDER),
    STATUS(12, JITSYM_ERR_UNWIND_REGISTER),
    STATUS(13, JITSYM_ERR_UNWIND_FORMAT),
    STATUS(14, JITSYM_ERR_ARCH),
    STATUS(15, JITSYM_ERR_SESSION),
    STATUS(16, JITSYM_ERR_CLOSED),
    STATUS(17, JITSYM_ERR_UNKNOWN_ID),
    STATUS(18, JITSYM_ERR_TIMEOUT),
    STATUS(19, JITSYM_ERR_DROPPED),
    STATUS(20, JITSYM_ERR_NO_MEMORY),
    STATUS(21, JITSYM_ERR_NO_SINK),
    STATUS(22, JITSYM_ERR_SINK_FAILED),
    STATUS(23, JITSYM_ERR_FORKED),
    STATUS(24, JITSYM_ERR_THREAD),
    STATUS(25, JITSYM_ERR_CONFLICT),
    STATUS(26, JITSYM_ERR_TOO_MANY_SESSIONS),
    STATUS(27, JITSYM_ERR_PATH),
    STATUS(28, JITSYM_ERR_BUFFER),
    STATUS(29, JITSYM_ERR_NOT_RUNNING),
    STATUS(30, JITSYM_ERR_BUSY),
    STATUS(31, JITSYM_ERR_INTERNAL),
    STATUS(32, JITSYM_ERR_WRITER),
    STATUS(33, JITSYM_ERR_FORBIDDEN),
    STATUS(34, JITSYM_ERR_LIBRARY),
    STATUS(35, JITSYM_ERR_NOT_PLAIN),
    STATUS(36, JITSYM_ERR_LOCKED),
    STATUS(37, JITSYM_ERR_REGION),
    STATUS(38, JITSYM_ERR_ALIGNMENT),
    STATUS(39, JITSYM_ERR_INLINE),
    STATUS(40, JITSYM_ERR_NOT_FOUND),
};

enum { STATUS_COUNT = sizeof statuses / sizeof statuses[0] };

static void test_versions(void) {
  uint32_t number = jitsym_version_number();
  CHECK(number / 1000000 == JITSYM_VERSION_MAJOR && number / 1000 % 1000 == JITSYM_VERSION_MINOR);
  CHECK(number % 1000 == JITSYM_VERSION_PATCH);
  CHECK(number == JITSYM_VERSION_NUMBER);
}

static void test_statuses(void) {
  for (int i = 0; i < STATUS_COUNT; i++) {
    CHECK(statuses[i].number == i && (int)statuses[i].status == i);
    CHECK(strcmp(jitsym_status_name(i), statuses[i].name) == 0);
    CHECK(jitsym_status_text(i)[0] != 0);
    for (int other = 0; other < i; other++) {
      CHECK(strcmp(jitsym_status_text(i), jitsym_status_text(other)) != 0);
    }
  }
  static const int32_t unknown[] = {-1, -2, STATUS_COUNT, STATUS_COUNT + 1, 255, 256, 65536, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    CHECK(strcmp(jitsym_status_name(unknown[i]), "JITSYM_?") == 0);
    CHECK(jitsym_status_text(unknown[i])[0] != 0);
    CHECK(strcmp(jitsym_status_text(unknown[i]), jitsym_status_text(JITSYM_OK)) != 0);
  }
}

/* What the header declares is what the library takes: the exact size, and not a byte less than the first version had. */
static void test_sizes(void) {
  jitsym *session = NULL;
  jitsym_options options = test_options();
  options.struct_size = offsetof(jitsym_options, map_max) - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_init(&options, &session));
  CHECK(session == NULL);
  options.struct_size = sizeof options;
  CHECK_OK(jitsym_init(&options, &session));

  jitsym_id id = 0;
  jitsym_code code = test_code(0x10000, 64, "sizes");
  code.struct_size = offsetof(jitsym_code, inlines) - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_register(session, &code, &id));
  /* As the first version had it: what lies behind is not looked at. */
  code.struct_size = offsetof(jitsym_code, inlines);
  code.inline_count = 1;
  CHECK_OK(jitsym_register(session, &code, NULL));
  code.inline_count = 0;
  code.struct_size = sizeof code;
  jitsym_inline inlined = {0, 64, "inlined", 0, "file.c", 1, 0, UINT32_MAX, 0};
  code.inlines = &inlined;
  code.inline_count = 1;
  code.inline_size = sizeof inlined - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_register(session, &code, &id));
  code.inline_size = sizeof inlined;
  jitsym_line line = {0, 1, 1, 0, "file.c"};
  code.lines = &line;
  code.line_count = 1;
  code.line_size = sizeof line - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_register(session, &code, &id));
  code.line_size = sizeof line;
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = offsetof(jitsym_unwind, sp_set) - 1;
  code.unwind = &unwind;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_register(session, &code, &id));
  /* As the first version had it. */
  unwind.struct_size = offsetof(jitsym_unwind, sp_set);
  unwind.kind = JITSYM_UNWIND_FIXED_FRAME;
  unwind.cfa_offset = 8;
  unwind.sp_set = 65;
  CHECK_OK(jitsym_register(session, &code, NULL));
  unwind.struct_size = sizeof unwind;
  CHECK_STATUS(JITSYM_ERR_UNWIND_ORDER, jitsym_register(session, &code, &id));
  unwind.kind = JITSYM_UNWIND_ROWS;
  jitsym_unwind_row row = {0, 7, 8, 0, NULL};
  unwind.rows = &row;
  unwind.row_count = 1;
  unwind.row_size = sizeof row - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_register(session, &code, &id));
  unwind.row_size = sizeof row;
  CHECK(id == 0);
  CHECK_OK(jitsym_register(session, &code, &id));
  CHECK(id != 0);

  jitsym_move_target target = test_target(0x20000);
  target.struct_size = sizeof target - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_move(session, id, &target));
  target.struct_size = sizeof target;
  CHECK_OK(jitsym_move(session, id, &target));

  /* Of the counters the library writes as much as it is told there is room for, and as much as it knows. */
  unsigned char room[sizeof(jitsym_stats) + 64];
  memset(room, 0xa5, sizeof room);
  jitsym_stats stats;
  stats.struct_size = offsetof(jitsym_stats, jitdump_lost) - 1;
  memcpy(room, &stats.struct_size, sizeof stats.struct_size);
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_get_stats(session, (jitsym_stats *)(void *)room));
  for (size_t i = sizeof stats.struct_size; i < sizeof room; i++) {
    CHECK(room[i] == 0xa5);
  }
  CHECK_OK(test_flush(session));
  stats.struct_size = sizeof stats;
  memcpy(room, &stats.struct_size, sizeof stats.struct_size);
  CHECK_OK(jitsym_get_stats(session, (jitsym_stats *)(void *)room));
  memcpy(&stats, room, sizeof stats);
  CHECK(stats.struct_size == sizeof stats && stats.registered == 3 && stats.moved == 1 && stats.live == 1);
  CHECK(stats.sinks_running == TEST_DEFAULT_SINKS && stats.sinks_failed == 0);
  CHECK(stats.jitdump_records == 4 && stats.write_errors == 0);
  for (size_t i = sizeof stats; i < sizeof room; i++) {
    CHECK(room[i] == 0xa5);
  }
  /* A program that was compiled before there were regions gets what it knows, and not a byte more. */
  static const size_t older[] = {offsetof(jitsym_stats, jitdump_lost), offsetof(jitsym_stats, regions),
                                 offsetof(jitsym_stats, region_code)};
  for (size_t number = 0; number < sizeof older / sizeof older[0]; number++) {
    jitsym_stats some, later;
    /* The background thread may count meanwhile. */
    do {
      some = test_stats_now(session);
      memset(room, 0xa5, sizeof room);
      memcpy(room, &older[number], sizeof older[number]);
      CHECK_OK(jitsym_get_stats(session, (jitsym_stats *)(void *)room));
      later = test_stats_now(session);
    } while (memcmp(&some, &later, sizeof some) != 0);
    some.struct_size = older[number];
    CHECK(memcmp(room, &some, older[number]) == 0);
    for (size_t i = older[number]; i < sizeof room; i++) {
      CHECK(room[i] == 0xa5);
    }
  }

  jitsym_region_options wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.struct_size = sizeof wanted - 1;
  wanted.size = 1;
  jitsym_region region;
  memset(&region, 0xa5, sizeof region);
  region.struct_size = sizeof region;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_region_create(session, &wanted, &region));
  wanted.struct_size = sizeof wanted;
  region.struct_size = sizeof region - 1;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_region_create(session, &wanted, &region));
  CHECK(region.size == UINT64_C(0xa5a5a5a5a5a5a5a5));
  /* What a newer header has behind the fields that this library knows is left as it was. */
  memset(room, 0xa5, sizeof room);
  region.struct_size = sizeof region + 8;
  memcpy(room, &region.struct_size, sizeof region.struct_size);
  CHECK_OK(jitsym_region_create(session, &wanted, (jitsym_region *)(void *)room));
  memcpy(&region, room, sizeof region);
  CHECK(region.struct_size == sizeof region + 8 && region.size > 0 && region.exec != NULL && region.write != NULL);
  for (size_t i = sizeof region; i < sizeof room; i++) {
    CHECK(room[i] == 0xa5);
  }
  CHECK_OK(jitsym_region_release(session, region.exec));
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_versions();
  test_statuses();
  test_sizes();
  return test_end();
}
