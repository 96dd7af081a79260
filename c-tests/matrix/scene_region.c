/*
 * Scenarios of code regions: what there is to be seen in one that the library has made or adopted, as it changes.
 *
 * In all of them code is packed, and most of it has no frame pointer.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jitsym_region.h"
#include "matrix.h"

enum { PAGE = 4096, REGION_SIZE = 1 << 16, CODES = 16 };

static const enum kind mixed[] = {
    MID_ROWS, LEAF_ROWS, MID_FP, LEAF_FIXED, MID_EH, LEAF_EH, MID_REALIGN, STEPS_ROWS,
};

static enum kind kind_of(unsigned i) {
  return mixed[i % COUNT(mixed)];
}

/* One behind the other from there on, named after `name`. Returns the offset behind them. */
static size_t put_some(struct code *codes, unsigned count, const char *name, const struct region *region, size_t at) {
  for (unsigned i = 0; i < count; i++) {
    at = put_code(&codes[i], kind_of(i), i + 1, name_of(name, i), region, at, NO_GAP);
  }
  return at;
}

/* ------------------------------------------------------------------------------------------------ adopted */

/* Another thread, which runs code all the while, and is held against the truth from when `is_known` is set. */
static struct runner {
  pthread_t thread;
  struct code *codes;
  unsigned count;
  double seconds;
  int is_running, is_known;
} runner;

static void *run_all_the_while(void *nothing) {
  const uint64_t caller = runner.codes[0].addr;
  while (!__atomic_load_n(&runner.is_known, __ATOMIC_ACQUIRE)) {
    const uint64_t path[] = {caller, runner.codes[1].addr};
    call_guest(rounds_of(20000), path);
    __atomic_store_n(&runner.is_running, 1, __ATOMIC_RELEASE);
  }
  /* With speeds of its own. */
  struct code codes[CODES];
  memcpy(codes, runner.codes, runner.count * sizeof *codes);
  run_any(codes, runner.count, runner.seconds);
  return nothing;
}

/* The codes are there, and nobody knows of them: they are told when the library has the memory, in which the thread runs. */
static void start_runner(struct code *codes, unsigned count, double seconds) {
  runner.codes = codes;
  runner.count = count;
  runner.seconds = seconds;
  if (pthread_create(&runner.thread, NULL, run_all_the_while, NULL) != 0) {
    fail("pthread_create");
  }
  while (!__atomic_load_n(&runner.is_running, __ATOMIC_ACQUIRE)) {
    usleep(1000);
  }
}

static void announce_to_runner(void) {
  for (unsigned i = 0; i < runner.count; i++) {
    announce(&runner.codes[i]);
  }
  __atomic_store_n(&runner.is_known, 1, __ATOMIC_RELEASE);
}

static size_t write_some(struct code *codes, unsigned count, const char *name, const struct region *region, size_t at) {
  for (unsigned i = 0; i < count; i++) {
    struct function *function = compile(kind_of(i), i + 1, name_of(name, i), NULL);
    write_code(&codes[i], function, kind_of(i), function->name, region, at);
    at += function->code.size;
  }
  return at;
}

/* The runtime's own memory, writable and executable, is adopted while a thread runs in it. Both go on then. */
static void adopted(void) {
  static struct code before[CODES], behind[CODES];
  struct region region = plain_region(REGION_RWX, REGION_SIZE);
  size_t at = write_some(before, CODES, "ran_before", &region, 0);
  start_runner(before, CODES, option.seconds / 2);
  adopt_region(&region);
  announce_to_runner();
  put_some(behind, CODES, "put_behind", &region, at);
  run_any(behind, CODES, option.seconds / 2);
  pthread_join(runner.thread, NULL);
}

/* The same for memory that is writable or executable, never both: pages of it, as code is added. */
static void adopted_flips(void) {
  enum { ADDED = 24 };

  static struct code before[CODES], behind[ADDED];
  struct region region = plain_region(REGION_W_XOR_X, REGION_SIZE);
  write_some(before, CODES, "ran_before", &region, 0);
  protect(&region, 0);
  start_runner(before, CODES, option.seconds / 2);
  adopt_region(&region);
  announce_to_runner();
  struct region rest = region;
  rest.run += REGION_SIZE / 2;
  rest.write += REGION_SIZE / 2;
  rest.size -= REGION_SIZE / 2;
  size_t at = 0;
  for (unsigned i = 0; i < ADDED; i++) {
    protect(&rest, 1);
    struct function *function = compile(kind_of(i), i + 1, name_of("added", i), NULL);
    write_code(&behind[i], function, kind_of(i), function->name, &rest, at);
    at += function->code.size;
    protect(&rest, 0);
    announce(&behind[i]);
    if (i % 4 == 3) {
      run_any(behind, i + 1, option.seconds / 2 * 4 / ADDED);
    }
  }
  pthread_join(runner.thread, NULL);
}

/*
 * A runtime that registers its code and says nothing of memory, of which it has several pieces; one is given back and taken anew.
 * The first one may only be written to as long as its code is registered, and executed when that of the next one is.
 */
static void automatic(void) {
  enum { PIECES = 4 };

  static struct code codes[PIECES][CODES];
  struct region regions[PIECES];
  for (unsigned i = 0; i < PIECES; i++) {
    regions[i] = plain_region(i == 0 ? REGION_W_XOR_X : REGION_RWX, REGION_SIZE);
    put_some(codes[i], CODES, name_of("of_piece", i), &regions[i], 32 * i);
    if (i == 0) {
      /* The library has read what was registered by the time that it adopts the memory. */
      check(jitsym_flush(session, 60000), "jitsym_flush");
      protect(&regions[i], 0);
      continue;
    }
    run_any(&codes[0][0], (i + 1) * CODES, option.seconds / (PIECES + 1));
  }
  remove_all(codes[1], CODES, &regions[1]);
  map_anew(&regions[1]);
  put_some(codes[1], CODES, "of_new_piece", &regions[1], 64);
  run_any(&codes[0][0], PIECES * CODES, option.seconds / (PIECES + 1));
}

/* Arenas of a runtime, from small to large, with code at two places in each. */
static void arenas(void) {
  static const size_t mebibytes[] = {1, 2, 4, 8, 32, 64};
  static struct code codes[COUNT(mebibytes)][2 * CODES];
  struct region regions[COUNT(mebibytes)];
  for (unsigned i = 0; i < COUNT(mebibytes); i++) {
    regions[i] = plain_region(REGION_RWX, mebibytes[i] << 20);
    adopt_region(&regions[i]);
  }
  for (unsigned i = 0; i < COUNT(mebibytes); i++) {
    put_some(codes[i], CODES, name_of("of_arena", i), &regions[i], PAGE + 64 * i);
    put_some(codes[i] + CODES, CODES, name_of("amid_arena", i), &regions[i], regions[i].size / 2);
    run_any(&codes[0][0], (i + 1) * 2 * CODES, option.seconds / COUNT(mebibytes));
  }
}

/* A runtime that maps memory for each function. */
static void mappings(void) {
  enum { FUNCTIONS = 500, STEP = 50 };

  static struct code codes[FUNCTIONS];
  for (unsigned i = 0; i < FUNCTIONS; i++) {
    struct region region = plain_region(REGION_RWX, 2 * PAGE);
    adopt_region(&region);
    put_code(&codes[i], kind_of(i), i + 1, name_of("of_mapping", i), &region, PAGE, NO_GAP);
    /* Stepped, all that is there runs each time. */
    if (i % STEP == STEP - 1 && (!option.step || i % (4 * STEP) == STEP - 1)) {
      run_any(codes, i + 1, option.seconds * STEP / FUNCTIONS);
    }
  }
}

/* Given back by the library: what is there stays there, and runs on, without a name. */
static void released(void) {
  static struct code codes[CODES];
  static uint8_t bytes[REGION_SIZE];
  struct region region = plain_region(REGION_RWX, REGION_SIZE);
  adopt_region(&region);
  put_some(codes, CODES, "until_release", &region, 0);
  run_any(codes, CODES, option.seconds);
  memcpy(bytes, region.run, REGION_SIZE);
  uint64_t path[] = {codes[0].addr, codes[1].addr}, before = call_guest(rounds_of(1000), path);
  uint64_t to = now();
  for (unsigned i = 0; i < CODES; i++) {
    truth_code_ends(codes[i].number, to);
  }
  check(jitsym_region_release(session, region.run), "jitsym_region_release");
  if (memcmp(bytes, region.run, REGION_SIZE) != 0) {
    fail("a region has other bytes when it is released");
  }
  region.run[REGION_SIZE - 1] = 0xcc;
  if (call_guest(rounds_of(1000), path) != before) {
    fail("code of a released region does something else");
  }
}

/* ------------------------------------------------------------------------------------------------ changes */

/*
 * A place holds one piece of code after another, each for a slice, a thousand in a second: other names, other sizes, other
 * frames. Which place is next nobody knows, so that dead code lies there for a long time or none.
 */
static void reused(void) {
  enum { PLACES = 64, ROOM = 256, NONE = -1 };

  static const enum kind kinds[] = {LEAF_FP, LEAF_ROWS, LEAF_FIXED, STEPS_ROWS, LEAF_EH, STEPS_FP};
  static struct function *functions[COUNT(kinds)];
  static struct code at[PLACES];
  static double speed[COUNT(kinds)];
  struct region region = create_region(REGION_SIZE, 0, 0);
  struct code caller;
  uint64_t end = cpu_time() + (uint64_t)(option.seconds * 1e9);

  truth_option("stale-frames", "yes");
  put_code(&caller, MID_ROWS, 1, "caller_of_reused", &region, 0, NO_GAP);
  for (unsigned i = 0; i < COUNT(kinds); i++) {
    functions[i] = compile(kinds[i], i + 2, "", NULL);
  }
  for (unsigned n = 0; goes_on(end, n, 6 * PLACES); n++) {
    unsigned place = (unsigned)random_in(0, PLACES), which = (unsigned)random_in(0, COUNT(kinds));
    struct code *code = &at[place];
    if (code->function) {
      remove_code(code);
    }
    write_code(code, functions[which], kinds[which], name_of("reused", n), &region, 1024 + place * ROOM);
    code->speed = speed[which];
    announce(code);
    const struct stack stack = STACK(&caller, code);
    run_stack(&stack, random_in(500000, 1300000));
    speed[which] = code->speed;
  }
}

/* In memory that is writable or executable, never both. */
static void put_in_turn(struct code *code, enum kind kind, unsigned number, const struct region *region, size_t at) {
  struct function *function = compile(kind, number + 1, name_of("in_turn", number), NULL);
  protect(region, 1);
  write_code(code, function, kind, function->name, region, at);
  protect(region, 0);
  announce(code);
}

/* Other code of the same kind, so that frames keep their form. */
static void put_in_place(struct code *code, unsigned number, const struct region *region) {
  put_in_turn(code, code->kind, number, region, code->addr - (uintptr_t)region->run);
}

/* Two die at a time. The place of the second one is used again first, and that of the other one after the next `mprotect`. */
static void flips_reused(void) {
  enum { ROUNDS = 32, ROOM = 256, LAST = CODES - 1 };

  static struct code codes[CODES];
  struct region region = create_region(REGION_SIZE, 0, JITSYM_REGION_ONE_VIEW);
  unsigned number = 0;
  for (; number < CODES; number++) {
    put_in_turn(&codes[number], kind_of(number), number, &region, number * ROOM);
  }
  for (unsigned round = 0; round < ROUNDS; round++) {
    struct code *first = &codes[random_in(0, CODES)], other = *first, *second = &codes[random_in(0, LAST)];
    *first = codes[LAST];
    codes[LAST] = other;
    remove_code(&codes[LAST]);
    remove_code(second);
    put_in_place(second, number++, &region);
    run_any(codes, LAST, option.seconds / ROUNDS / 2);
    put_in_place(&codes[LAST], number++, &region);
    run_any(codes, CODES, option.seconds / ROUNDS / 2);
  }
}

/* Code dies and comes, and no byte is used twice. */
static void flips_died(void) {
  enum { ALL = 100 };

  static struct code codes[CODES];
  struct region region = create_region(REGION_SIZE, 0, JITSYM_REGION_ONE_VIEW);
  size_t at = 0;
  for (unsigned number = 0; number < ALL; number++) {
    struct code *code = &codes[number < CODES ? number : random_in(0, CODES)];
    if (number >= CODES) {
      remove_code(code);
    }
    put_in_turn(code, number < CODES ? kind_of(number) : code->kind, number, &region, at);
    at += code->size;
    if (number >= CODES) {
      run_any(codes, CODES, option.seconds / (ALL - CODES));
    }
  }
}

/* Copies of all that lives would soon be more than what is kept of old generations. */
static void large(void) {
  enum { ROUNDS = 16, EACH = 2 << 20 };

  static struct code live[CODES], replaced[CODES];
  struct region region = create_region((CODES + 1) * EACH, 0, JITSYM_REGION_ONE_VIEW);
  for (unsigned i = 0; i < CODES; i++) {
    struct function *function = compile(kind_of(i), i + 1, name_of("large", i), NULL);
    memset(region.write + (size_t)i * EACH, 0xcc, EACH);
    write_code(&live[i], function, kind_of(i), function->name, &region, (size_t)i * EACH);
    live[i].size = EACH;
  }
  protect(&region, 0);
  for (unsigned i = 0; i < CODES; i++) {
    announce(&live[i]);
    put_in_turn(&replaced[i], kind_of(i), i, &region, (size_t)CODES * EACH + i * 256);
  }
  for (unsigned round = 0; round < ROUNDS; round++) {
    run_any(live, CODES, option.seconds / ROUNDS / 2);
    run_any(replaced, CODES, option.seconds / ROUNDS / 2);
    struct code *code = &replaced[random_in(0, CODES)];
    remove_code(code);
    put_in_place(code, CODES + round, &region);
  }
}

/* Other code of the same kind. */
static void replace(struct code *code, unsigned number, const struct region *region) {
  struct function *function = compile(code->kind, 0, name_of("in_place", number), NULL);
  remove_code(code);
  write_code(code, function, code->kind, function->name, region, code->addr - (uintptr_t)region->run);
  announce(code);
}

/* Two pieces of code are replaced, and another one comes. So no sample is in every second generation. */
static void replaced_in_pairs(void) {
  enum { ROUNDS = 64 };

  static struct code codes[CODES + ROUNDS];
  struct region region = create_region(REGION_SIZE, 0, 0);
  size_t at = put_some(codes, CODES, "first", &region, 0);
  for (unsigned round = 0; round < ROUNDS; round++) {
    replace(&codes[0], 2 * round, &region);
    replace(&codes[1], 2 * round + 1, &region);
    at = put_code(&codes[CODES + round], kind_of(round), round + 1, name_of("came", round), &region, at, NO_GAP);
    run_any(codes, CODES + round + 1, option.seconds / ROUNDS);
  }
}

/* Made small, and larger as it fills. In between a generation may begin. */
static void grow(int is_reused) {
  enum { STEPS = 4, STEP = 4 * PAGE };

  static struct code codes[STEPS][CODES];
  struct region region = create_region(STEP, STEPS * STEP, 0);
  for (unsigned i = 0; i < STEPS; i++) {
    if (i > 0) {
      region.size = (i + 1) * STEP;
      check(jitsym_region_grow(session, region.run, region.size), "jitsym_region_grow");
    }
    /* Across what was the end. */
    put_some(codes[i], CODES, name_of("of_step", i), &region, i == 0 ? 0 : i * STEP - 512);
    run_any(&codes[0][0], (i + 1) * CODES, option.seconds / STEPS);
    if (is_reused) {
      replace(&codes[i][0], i, &region);
    }
  }
}

static void grown(void) {
  grow(0);
}

static void grown_reused(void) {
  grow(1);
}

/* Pages that are given back to the system, and used again. */
static void discarded(void) {
  enum { ROUNDS = 8, FIRST = 4 * PAGE, PAGES = 4 };

  static struct code kept[CODES], gone[CODES];
  struct region region = create_region(REGION_SIZE, 0, 0);
  put_some(kept, CODES, "kept", &region, 0);
  struct region pages = region;
  pages.run += FIRST;
  pages.write += FIRST;
  pages.size = PAGES * PAGE;
  for (unsigned round = 0; round < ROUNDS; round++) {
    put_some(gone, CODES, name_of("of_round", round), &pages, 0);
    run_any(kept, CODES, option.seconds / ROUNDS / 2);
    run_any(gone, CODES, option.seconds / ROUNDS / 2);
    remove_all(gone, CODES, &pages);
    check(jitsym_region_discard(session, pages.run, pages.size), "jitsym_region_discard");
    for (size_t i = 0; i < pages.size; i += 64) {
      if (pages.run[i] != 0) {
        fail("pages that were given back are not 0");
      }
    }
  }
}

static void huge_pages(void) {
  static struct code codes[4 * CODES];
  struct region region = create_region(4 << 20, 0, JITSYM_REGION_HUGE_PAGES);
  if ((uintptr_t)region.run % (2 << 20) != 0) {
    fail("the region is not aligned to 2 MiB");
  }
  for (unsigned i = 0; i < 4; i++) {
    put_some(codes + i * CODES, CODES, name_of("of_mebibyte", i), &region, ((size_t)i << 20) + 128);
  }
  run_any(codes, COUNT(codes), option.seconds);
}

/* Regions of all kinds, and two sessions that have made them, with code of all of them in one stack. */
static void several(void) {
  enum { ALL = 6 };

  static struct code codes[ALL][CODES];
  struct region regions[ALL];
  jitsym *first = session, *second = NULL;
  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.sinks = option.sinks;
  options.map_dir = option.dir;
  options.jitdump_dir = option.dir;
  check(jitsym_init(&options, &second), "jitsym_init");
  for (unsigned i = 0; i < ALL; i++) {
    session = i % 2 ? second : first;
    if (i < ALL / 2) {
      regions[i] = create_region(REGION_SIZE, 0, i == 2 ? JITSYM_REGION_ONE_VIEW : 0);
    } else {
      regions[i] = plain_region(i == ALL - 1 ? REGION_W_XOR_X : REGION_RWX, REGION_SIZE);
      protect(&regions[i], 0);
      adopt_region(&regions[i]);
      protect(&regions[i], 1);
    }
    write_some(codes[i], CODES, name_of("of_region", i), &regions[i], 512 * i);
    if (regions[i].run == regions[i].write) {
      protect(&regions[i], 0);
    }
    for (unsigned n = 0; n < CODES; n++) {
      announce(&codes[i][n]);
    }
    run_any(&codes[0][0], (i + 1) * CODES, option.seconds / ALL);
  }
  check(jitsym_close(second), "jitsym_close");
  session = first;
  run_any(&codes[0][0], ALL * CODES, option.seconds / ALL);
}

/* ------------------------------------------------------------------------------------------------ processes */

enum { CHILDREN = 2, SHARE = REGION_SIZE / (CHILDREN + 2) };

static struct code of_all[CODES], of_one[CODES];

/* 0 in the child, as of fork. */
static pid_t fork_one(void) {
  /* A fork waits a while for the background thread, and not for ever. */
  check(jitsym_flush(session, 60000), "jitsym_flush");
  pid_t child = fork();
  if (child < 0) {
    fail("fork");
  }
  if (child == 0) {
    truth_forked();
  }
  return child;
}

static void wait_for(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child || status != 0) {
    fail("a child has failed");
  }
}

/* What all have inherited, and what this process has made, each in turn. */
static void run_both(double seconds) {
  run_any(of_all, CODES, seconds / 2);
  run_any(of_one, CODES, seconds / 2);
}

/*
 * Children go on with the region that they have inherited, each in a part of it that is nobody else's, so that time and address
 * tell the code; the parent does so, too. Or they run what is there, and call nothing of the library.
 */
static void fork_children(int is_silent) {
  struct region region = create_region(REGION_SIZE, 0, 0);
  pid_t children[CHILDREN];
  put_some(of_all, CODES, "of_all", &region, 0);
  run_any(of_all, CODES, option.seconds / 4);
  for (unsigned i = 0; i < CHILDREN; i++) {
    children[i] = fork_one();
    if (children[i] == 0) {
      if (is_silent) {
        run_any(of_all, CODES, option.seconds / 4);
        _exit(0);
      }
      put_some(of_one, CODES, name_of("of_child", i), &region, (i + 1) * SHARE);
      run_both(option.seconds / 4);
      check(jitsym_flush(session, 60000), "jitsym_flush");
      _exit(0);
    }
  }
  put_some(of_one, CODES, "of_parent", &region, (CHILDREN + 1) * SHARE);
  run_both(option.seconds / 4);
  for (unsigned i = 0; i < CHILDREN; i++) {
    wait_for(children[i]);
  }
}

static void forked(void) {
  fork_children(0);
}

static void forked_silent(void) {
  fork_children(1);
}

static void map_writable(const struct region *region) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  if (mmap(region->run, region->size, PROT_READ | PROT_WRITE, flags, -1, 0) != region->run) {
    fail("cannot map memory at this place");
  }
}

/* A function in a mapping that is writable first, and then executable. It reaches into the last page. */
static void put_mapping(struct code *code, unsigned number, const char *name, const struct region *region) {
  struct function *function = compile(kind_of(number), number + 1, name, NULL);
  write_code(code, function, kind_of(number), name, region, 0);
  if (region->size > PAGE) {
    code->size = region->size - 100;
  }
  protect(region, 0);
  announce(code);
}

/* A function ends, and with it its mapping. Another one comes, with other code. */
static void exchange_mapping(struct code *code, unsigned number, const char *name, const struct region *region) {
  truth_code_ends(code->number, now());
  check(jitsym_unregister_range(session, (uintptr_t)region->run, region->size, JITSYM_RANGE_UNMAP),
        "jitsym_unregister_range");
  if (munmap(region->run, region->size) != 0) {
    fail("munmap");
  }
  map_writable(region);
  put_mapping(code, number, name, region);
}

enum { WINDOWED = 4 * CODES, GROUPS = CHILDREN + 2 };

static struct code of_group[GROUPS][WINDOWED];
static struct region places[GROUPS][WINDOWED];

/* Each function has its own mapping. Every third one is exchanged. */
static void fill_and_exchange(unsigned group, const char *name, double seconds) {
  struct code *codes = of_group[group];
  for (unsigned i = 0; i < WINDOWED; i++) {
    put_mapping(&codes[i], i, name_of(name, i), &places[group][i]);
  }
  run_any(codes, WINDOWED, seconds / 2);
  for (unsigned i = 0; i < WINDOWED; i += 3) {
    exchange_mapping(&codes[i], i + WINDOWED + 1, name_of(name, WINDOWED + i), &places[group][i]);
  }
  run_any(codes, WINDOWED, seconds / 2);
}

/* A runtime that maps each function by itself, and says nothing of memory. Its children do the same beside what they inherit. */
static void windows(void) {
  pid_t children[CHILDREN];
  truth_option("stale-frames", "yes");
  /* With room between them, and below and above. What comes to lie there meanwhile takes the highest free place. */
  const struct region room = plain_region(REGION_W_XOR_X, 64 << 20);
  if (munmap(room.run, room.size) != 0) {
    fail("munmap");
  }
  uint8_t *at = room.run + room.size / 2;
  for (unsigned i = 0; i < WINDOWED; i++) {
    for (unsigned group = 0; group < GROUPS; group++, at += 3 * PAGE) {
      places[group][i] = (struct region){.run = at, .write = at, .size = (1 + i % 2) * PAGE};
      map_writable(&places[group][i]);
    }
  }
  fill_and_exchange(0, "of_all", option.seconds / 4);
  for (unsigned i = 0; i < CHILDREN; i++) {
    children[i] = fork_one();
    if (children[i] == 0) {
      fill_and_exchange(1 + i, name_of("of_child", i), option.seconds / 8);
      run_any(of_group[0], WINDOWED, option.seconds / 8);
      /* Files get the bytes of the code only at an exit. */
      exit(0);
    }
  }
  fill_and_exchange(GROUPS - 1, "of_parent", option.seconds / 8);
  run_any(of_group[0], WINDOWED, option.seconds / 8);
  for (unsigned i = 0; i < CHILDREN; i++) {
    wait_for(children[i]);
  }
}

/* ------------------------------------------------------------------------------------------------ inlined functions */

/* The hot loop of a leaf, its last line, is a function `inner_N` that has been inlined into `outer_N`, and that into the leaf. */
static void put_inlining(struct code *code, unsigned number, const struct region *region, size_t at,
                         struct source *source) {
  struct function *f = compile(LAST_LINE_HOT, number + 1, name_of("holder", number), source);
  const jitsym_line *begin = &f->lines[f->line_count - 2], *hot = begin + 1;
  for (unsigned level = 0; level < 2; level++) {
    jitsym_inline *entry = &f->inlines[f->inline_count++];
    entry->begin = level == 0 ? begin->offset : hot->offset;
    entry->end = f->code.size;
    entry->name = name_of(level == 0 ? "outer" : "inner", number);
    entry->call_file = begin->file;
    /* The lines of the function itself, and of the outer one. */
    entry->call_line = f->lines[level == 0 ? 1 : 2].line;
    entry->call_column = 3;
    entry->parent = level == 0 ? UINT32_MAX : 0;
  }
  write_code(code, f, LAST_LINE_HOT, f->name, region, at);
  announce(code);
}

/*
 * Code with inlined functions in it, which lives through all that changes a file: a new generation, a move, and a fork.
 */
static void inlined(void) {
  enum { LEAVES = 4, ALL = LEAVES + 1, ROOM = 256 };

  static struct source source;
  static struct code codes[ALL], dead;
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  snprintf(source.path, sizeof source.path, "%s/matrix-%ld.toy", option.dir ? option.dir : "/tmp", (long)getpid());
  truth_path("source", source.path);
  put_code(&codes[LEAVES], MID_ROWS, 1, "caller_of_holders", &region, 0, NO_GAP);
  for (unsigned i = 0; i < LEAVES; i++) {
    put_inlining(&codes[i], i, &region, (i + 2) * ROOM, &source);
  }
  write_source(&source);
  run_any(codes, ALL, option.seconds / 4);

  put_code(&dead, LEAF_FIXED, 1, "dead", &region, PAGE, NO_GAP);
  remove_code(&dead);
  put_code(&dead, LEAF_FIXED, 2, "in_its_place", &region, PAGE, NO_GAP);
  run_any(codes, ALL, option.seconds / 4);

  move_code(&codes[0], &region, 2 * PAGE);
  run_any(codes, ALL, option.seconds / 4);

  pid_t child = fork_one();
  if (child == 0) {
    /* With its first function it has a file of its own. */
    put_code(&dead, LEAF_FIXED, 3, "of_the_child", &region, 3 * PAGE, NO_GAP);
    check(jitsym_flush(session, 60000), "jitsym_flush");
    run_any(codes, ALL, option.seconds / 4);
    remove_code(&dead);
    _exit(0);
  }
  wait_for(child);
}

const struct scenario region_scenarios[] = {
    {"region-adopted", adopted, "dwarf", NO_GAP, 0},
    {"region-adopted-flips", adopted_flips, "dwarf", NO_GAP, 0},
    {"region-automatic", automatic, "dwarf", NO_GAP, ADOPTS_ALL},
    {"region-arenas", arenas, "dwarf", NO_GAP, 0},
    {"region-mappings", mappings, "dwarf", NO_GAP, 0},
    {"region-released", released, "dwarf", NO_GAP, 0},
    {"region-reused", reused, "dwarf", NO_GAP, 0},
    {"region-flips-reused", flips_reused, "dwarf", NO_GAP, 0},
    {"region-flips-died", flips_died, "dwarf", NO_GAP, 0},
    {"region-replaced-in-pairs", replaced_in_pairs, "dwarf", NO_GAP, 0},
    {"region-large", large, "dwarf", NO_GAP, 0},
    {"region-grown", grown, "dwarf", NO_GAP, 0},
    {"region-grown-reused", grown_reused, "dwarf", NO_GAP, 0},
    {"region-discarded", discarded, "dwarf", NO_GAP, 0},
    {"region-huge-pages", huge_pages, "dwarf", NO_GAP, 0},
    {"region-several", several, "dwarf", NO_GAP, 0},
    {"region-forked", forked, "dwarf", NO_GAP, 0},
    {"region-forked-silent", forked_silent, "dwarf", NO_GAP, 0},
    {"region-windows", windows, "dwarf", NO_GAP, ADOPTS_ALL},
    {"region-inlined", inlined, "dwarf", NO_GAP, 0},
    SCENARIOS_END,
};
