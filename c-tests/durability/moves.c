/*
 * Moves code so that its old places name other code then, all at once, and waits to be killed. Arguments: the directory of the map, and
 * whether to flush at the end, which writes the map anew, or not, which appends to it.
 */
#include "testing.h"

static const uint64_t A = 0x10000, B = 0x20000, C = 0x30000, D = 0x40000, E = 0x50000, F = 0x60000, G = 0x70000, H = 0x80000;
enum { SIZE = 16 };

static jitsym *session;

static void move(jitsym_id id, uint64_t addr) {
  static const unsigned char bytes[SIZE];
  jitsym_move_target target;
  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  target.addr = addr;
  target.bytes = bytes;
  CHECK_OK(jitsym_move(session, id, &target));
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.sinks = JITSYM_SINK_MAP;
  options.map_dir = argv[1];
  CHECK_OK(jitsym_init(&options, &session));
  jitsym_id one = test_register(session, A, SIZE, "one"), other = test_register(session, B, SIZE, "other");
  jitsym_id twice = test_register(session, C, SIZE, "twice"), left = test_register(session, D, SIZE, "left");
  /* Has the map be written anew, so that this is not due again at once. */
  test_register(session, E, SIZE, "first");
  test_register(session, E, SIZE, "second");
  CHECK_OK(test_flush(session));
  /* Two that change places, by way of a third one. */
  move(one, F);
  move(other, A);
  move(one, B);
  move(twice, G);
  move(twice, H);
  move(left, C);
  test_register(session, D, SIZE, "new");
  test_register(session, H + SIZE, SIZE, "last");
  if (strcmp(argv[2], "flush") == 0) {
    CHECK_OK(test_flush(session));
  }
  puts("done");
  fflush(stdout);
  for (;;) {
    pause();
  }
}
