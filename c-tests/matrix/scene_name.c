/*
 * Scenarios of what code is called.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "matrix.h"

enum { REGION_SIZE = 1 << 16, CODES = 24, CALLERS = 3 };

static struct code codes[CODES + CALLERS];

/* Leaves of these names, since the innermost function is what most readers show; one of their callers has one, too. */
static void put_named(const char *const *names, unsigned count) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < count + CALLERS; i++) {
    const char *name = i < count ? names[i] : i == count ? names[count / 2] : name_of("caller", i);
    at = put_code(&codes[i], i < count ? LEAF_FP : MID_FP, i + 1, name, &region, at, WITH_GAP);
  }
}

static void run_named(const char *const *names, unsigned count) {
  put_named(names, count);
  run_any(codes, count + CALLERS, option.seconds);
}

/* perf drops names of one and two bytes from a perf map, so that the library puts "()" behind them there. */
static void short_names(void) {
  static const char *const names[] = {"f", "g", "a", "i", "x", "_", "ab", "cd", "$", "7", "\xc3\xa9", "+"};
  truth_option("short-names", "()");
  run_named(names, COUNT(names));
}

static void odd_names(void) {
  static const char *const names[] = {
      "with some spaces in it",
      "caller of (anonymous namespace)",
      "guest::Vector<int, std::less<int>>::push(int const&) const",
      "operator<< <char>",
      "größe_berechnen",
      "名前::関数",
      "Интерпретатор.шаг",
      "<module>",
      "py::fib:/src/fib.py",
      "Array.prototype.map /srv/app/main.js:17:3",
      "*optimised* [trace 12]",
      "a+b-c*d/e%f^g&h|i~j!k?l:m;n,o.p",
      "\"quoted\" 'names' `too`",
      "#!@$ (unlikely) {brace}",
      "🚀 launch",
      "deadbeef 20 looks_like_a_line",
  };
  run_named(names, COUNT(names));
}

/* Look like what C++ and Rust make of names, and are not. */
static void mangled_lookalikes(void) {
  static const char *const names[] = {
      "_Zoom_in", "_Result", "_Z", "_ZN", "_R", "_RNv", "_Zen::garden", "_R2D2", "_ZZ_top", "_Runtime_call",
  };
  truth_option("short-names", "()");
  run_named(names, COUNT(names));
}

/* Of runtimes for Java and OCaml, which perf demangles too. */
static void java_ocaml_names(void) {
  static const char *const names[] = {
      "Lcom/foo/Bar;baz(I)V",     "Ljava/lang/String;hashCode()I", "Lguest;", "camlFoo__bar_1",
      "camlStdlib__List__map_42", "caml_call_gc",                  "camlX",
  };
  run_named(names, COUNT(names));
}

/* Are such names. Readers may show what they stand for. */
static void mangled_names(void) {
  static const char *const names[] = {
      "_ZN5guest4leafEv", "_ZN5guest5otherEi", "_RNvC5guest4leaf", "_RNvNtC5guest5outer5other",
  };
  static const struct {
    unsigned name;
    const char *shown;
  } aliases[] = {
      {0, "guest::leaf"}, {0, "guest::leaf()"}, {1, "guest::other"},
      {1, "guest::other(int)"}, {2, "guest::leaf"}, {3, "guest::outer::other"},
  };
  put_named(names, COUNT(names));
  for (unsigned i = 0; i < COUNT(aliases); i++) {
    truth_alias(codes[aliases[i].name].number, aliases[i].shown);
    if (aliases[i].name == COUNT(names) / 2) {
      /* The caller that is called the same. */
      truth_alias(codes[COUNT(names)].number, aliases[i].shown);
    }
  }
  run_any(codes, COUNT(names) + CALLERS, option.seconds);
}

/* Several thousand bytes, the same up to the last few. The library cuts them and keeps them apart. */
static void long_names(void) {
  enum { NAMES = 12 };
  static char text[NAMES][6000];
  const char *names[NAMES];
  for (unsigned i = 0; i < NAMES; i++) {
    size_t size = i < 2 ? JITSYM_NAME_MAX : 1500 + 400 * i, at = 0;
    const char *part = i % 3 == 0 ? "größe<" : "std::pair<int, ";
    while (at + strlen(part) < size - 8) {
      at += (size_t)snprintf(text[i] + at, sizeof text[i] - at, "%s", part);
    }
    memset(text[i] + at, '.', size - at);
    snprintf(text[i] + size - 4, 5, "_%03u", i);
    names[i] = text[i];
  }
  run_named(names, NAMES);
}

static void one_name(void) {
  const char *names[CODES];
  for (unsigned i = 0; i < CODES; i++) {
    names[i] = "one name for all";
  }
  run_named(names, CODES);
}

/* The same bytes again and again, each time under another name. */
static void identical_code(void) {
  struct region region = new_region(REGION_RWX, REGION_SIZE);
  size_t at = 0;
  for (unsigned i = 0; i < CODES; i++) {
    const char *name = name_of(i % 2 ? "twin_caller" : "twin_leaf", i);
    at = put_code(&codes[i], i % 2 ? MID_FP : LEAF_FP, 0, name, &region, at, WITH_GAP);
  }
  run_any(codes, CODES, option.seconds);
}

const struct scenario name_scenarios[] = {
    {"short-names", short_names, "fp", WITH_GAP, 0},
    {"odd-names", odd_names, "fp", WITH_GAP, 0},
    {"mangled-lookalikes", mangled_lookalikes, "fp", WITH_GAP, 0},
    {"java-ocaml-names", java_ocaml_names, "fp", WITH_GAP, 0},
    {"mangled-names", mangled_names, "fp", WITH_GAP, 0},
    {"long-names", long_names, "fp", WITH_GAP, 0},
    {"one-name", one_name, "fp", WITH_GAP, 0},
    {"identical-code", identical_code, "fp", WITH_GAP, 0},
    SCENARIOS_END,
};
