/*
 * The ground truth for the matrix of readers: a small JIT that runs known stacks of known code at known times, and prints
 * what a reader of its profile ought to find.
 *
 *   matrix_jit list
 *   matrix_jit SCENARIO [truth=FILE] [dir=DIR] [sinks=map|jitdump|both|region] [memory=plain|created|adopted|reserved] [seconds=S]
 *              [count=N] [wait=0|1] [hold=0|1] [step=0|1]
 *
 *   truth    where the truth goes; standard output
 *   dir      directory of the library's files; what the library takes by itself
 *   memory   what code lies in, where the scenario leaves it open: plain, or with sinks=region regions that the library has
 *            made or adopted, or adopted while it was only reserved
 *   seconds  CPU time to burn, 2
 *   count    functions of the scenario `many`, 50000
 *   wait     1: prints "ready" and waits for a byte on standard input before it runs anything
 *   hold     1: prints "done" behind the whole truth and waits for a byte, or the end, of standard input before it ends
 *   step     1: somebody steps through `call_guest`, so each stack is run once, and `seconds` means nothing
 *
 * The truth is lines of fields separated by tabs. Times are CLOCK_MONOTONIC in nanoseconds; addresses, sizes and offsets
 * lower-case hexadecimal.
 *   pid N | path map|jitdump|source FILE | option KEY VALUE      first, and flushed before "ready"
 *   path region FILE                                             of the last region; behind all that ran
 *   code ID ADDR SIZE FROM TO NAME                               TO 0: to the end
 *   alias ID NAME | line ID OFFSET LINE FILE | hotline ID LINE
 *   popped ID OFFSET END                                         there a register that is described as saved was taken off the stack
 *   run TID FROM TO STACK                                        innermost first: ID, `*C-FUNCTION`, `?`
 *   unnamed TID FROM TO
 *   end
 * pid and TID are those that a profiler outside sees. Exit status 77: there may be no namespaces here, and nothing was run.
 *
 * Readers that follow the tables need it compiled with
 *   -O2 -fomit-frame-pointer -fno-optimize-sibling-calls
 * and those that follow frame pointers with
 *   -O2 -fno-omit-frame-pointer -fno-optimize-sibling-calls -DFRAME_POINTERS
 * where the `option unwind` says `both` for code that keeps them all the way.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "jitsym_control.h"
#include "pace.h"
#include "matrix.h"

struct options option = {
    .sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP,
    .seconds = 2,
    .count = 50000,
};
jitsym *session;

static const struct scenario *const groups[] = {
    layout_scenarios, stack_scenarios, life_scenarios, name_scenarios, size_scenarios, process_scenarios, region_scenarios,
    alloc_scenarios,
};

void check(enum jitsym_status status, const char *call) {
  char text[512] = "";
  if (status == JITSYM_OK) {
    return;
  }
  jitsym_last_error(session, text, sizeof text);
  fprintf(stderr, "ground truth: %s: %s; %s\n", call, jitsym_status_name(status), text);
  exit(1);
}

/* Who steps through the program ends here, when the truth is whole and the program lives. */
NOINLINE void hold(void) {
  __asm__ volatile("" ::: "memory");
}

static void say_and_wait(const char *word) {
  printf("%s\n", word);
  fflush(stdout);
  getchar();
}

void ready(void) {
  if (option.wait) {
    say_and_wait("ready");
  }
}

static const struct scenario *find(const char *name) {
  for (unsigned i = 0; i < COUNT(groups); i++) {
    for (const struct scenario *scenario = groups[i]; scenario->name; scenario++) {
      if (strcmp(scenario->name, name) == 0) {
        return scenario;
      }
    }
  }
  fail("unknown scenario");
  return NULL;
}

static void list(void) {
  for (unsigned i = 0; i < COUNT(groups); i++) {
    for (const struct scenario *scenario = groups[i]; scenario->name; scenario++) {
      puts(scenario->name);
    }
  }
}

static int is_option(const char *argument, const char *name, const char **value) {
  size_t size = strlen(name);
  if (strncmp(argument, name, size) != 0 || argument[size] != '=') {
    return 0;
  }
  *value = argument + size + 1;
  return 1;
}

static uint32_t sinks_of(const char *value) {
  if (strcmp(value, "map") == 0) {
    return JITSYM_SINK_MAP;
  }
  if (strcmp(value, "jitdump") == 0) {
    return JITSYM_SINK_JITDUMP;
  }
  if (strcmp(value, "region") == 0) {
    return JITSYM_SINK_REGION;
  }
  if (strcmp(value, "both") != 0) {
    fail("unknown sink");
  }
  return JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP;
}

static enum memory memory_of(const char *value) {
  static const char *const names[] = {"plain", "created", "adopted", "reserved"};
  for (unsigned i = 0; i < COUNT(names); i++) {
    if (strcmp(value, names[i]) == 0) {
      return (enum memory)i;
    }
  }
  fail("unknown memory");
  return PLAIN_MEMORY;
}

static void parse_options(int argc, char **argv) {
  const char *value;
  for (int i = 2; i < argc; i++) {
    if (is_option(argv[i], "truth", &option.truth) || is_option(argv[i], "dir", &option.dir)) {
      continue;
    }
    if (is_option(argv[i], "sinks", &value)) {
      option.sinks = sinks_of(value);
    } else if (is_option(argv[i], "memory", &value)) {
      option.memory = memory_of(value);
    } else if (is_option(argv[i], "seconds", &value)) {
      option.seconds = strtod(value, NULL) * test_pace();
    } else if (is_option(argv[i], "count", &value)) {
      option.count = (unsigned)strtoul(value, NULL, 10);
    } else if (is_option(argv[i], "wait", &value)) {
      option.wait = *value == '1';
    } else if (is_option(argv[i], "hold", &value)) {
      option.hold = *value == '1';
    } else if (is_option(argv[i], "step", &value)) {
      option.step = *value == '1';
    } else {
      fail("unknown option");
    }
  }
}

static void open_session(void) {
  jitsym_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.sinks = option.sinks;
  options.map_dir = option.dir;
  options.jitdump_dir = option.dir;
  check(jitsym_init(&options, &session), "jitsym_init");
}

/* Nothing may have been lost on the way, lest readers be blamed for it. */
static void check_stats(void) {
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  check(jitsym_flush(session, 60000), "jitsym_flush");
  check(jitsym_get_stats(session, &stats), "jitsym_get_stats");
  if (stats.sinks_failed || stats.dropped || stats.unreadable || stats.write_errors) {
    fail("the library has lost something");
  }
  if (stats.region_late > 0) {
    char late[24];
    snprintf(late, sizeof late, "%" PRIu64, stats.region_late);
    truth_option("late", late);
  }
}

static void say_what_readers_can_do(const struct scenario *scenario) {
#ifdef FRAME_POINTERS
  const char *with_frame_pointers = "both";
#else
  const char *with_frame_pointers = "dwarf";
#endif
  truth_option("unwind", strcmp(scenario->unwind, "fp") == 0 ? with_frame_pointers : scenario->unwind);
  truth_option("gap", option.code_flags != 0 ? "yes" : "no");
  if (scenario->flags & IN_NAMESPACE) {
    truth_option("namespace", "pid");
  }
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fail("usage: matrix_jit list | SCENARIO [KEY=VALUE ...]");
  }
  if (strcmp(argv[1], "list") == 0) {
    list();
    return 0;
  }
  const struct scenario *scenario = find(argv[1]);
  parse_options(argc, argv);
  if (scenario->gap == WITH_GAP && option.sinks != JITSYM_SINK_REGION) {
    option.code_flags = JITSYM_CODE_GAP;
  }
  truth_open();
  if (scenario->flags & IN_NAMESPACE) {
    enter_namespace();
  }
  if (scenario->flags & ADOPTS_ALL) {
    setenv("JITSYM_ADOPT", "1", 1);
  }
  open_session();
  say_what_readers_can_do(scenario);
  truth_begin();
  if (!(scenario->flags & READY_LATER)) {
    ready();
  }
  scenario->run();
  check_stats();
  if (option.sinks & JITSYM_SINK_REGION) {
    char path[JITSYM_DIR_MAX + 64];
    check(jitsym_path(session, JITSYM_SINK_REGION, path, sizeof path), "jitsym_path");
    truth_path("region", path);
  }
  truth_end();
  if (option.hold) {
    hold();
    say_and_wait("done");
  }
  check(jitsym_close(session), "jitsym_close");
  return 0;
}
