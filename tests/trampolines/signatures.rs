//! Functions of random types, called directly and through a trampoline that copies as many words of the stack as the ABI puts
//! there (System V psABI for AMD64, 3.2.3). On other machines, the trampoline copies as many words as it can.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::perf;
use crate::support::{artifacts, describe, fresh_dir, root, run, try_run};

const FUNCTIONS: usize = 300;
const ARGUMENTS_MAX: u64 = 14;
pub const WORDS_MAX: u32 = 32;

/// Where an argument of a type goes.
enum Class {
    /// In this many general registers and vector registers, if so many are left, and otherwise on the stack.
    Registers(u32, u32),
    Memory,
}
use Class::{Memory, Registers};

pub struct Type {
    /// The name of the type in C, and that of its functions.
    name: &'static str,
    class: Class,
    /// Size in words, and alignment.
    words: u32,
    align: u32,
    /// Whether it can be an argument after `...`.
    is_promoted: bool,
}

const fn of(name: &'static str, class: Class, words: u32, align: u32, is_promoted: bool) -> Type {
    Type { name, class, words, align, is_promoted }
}

const TYPES: [Type; 15] = [
    of("schar", Registers(1, 0), 1, 1, false),
    of("short", Registers(1, 0), 1, 1, false),
    of("int", Registers(1, 0), 1, 1, true),
    of("long", Registers(1, 0), 1, 1, true),
    of("pointer", Registers(1, 0), 1, 1, true),
    of("float", Registers(0, 1), 1, 1, false),
    of("double", Registers(0, 1), 1, 1, true),
    of("huge", Registers(2, 0), 2, 2, false),
    of("precise", Memory, 2, 2, true),
    of("complex", Registers(0, 2), 2, 1, false),
    of("two_ints", Registers(1, 0), 1, 1, true),
    of("two_doubles", Registers(0, 2), 2, 1, true),
    of("mixed", Registers(1, 1), 2, 1, true),
    of("three_floats", Registers(0, 2), 2, 1, false),
    of("large", Memory, 3, 1, true),
];

/// Makes a value of each type from a number, and a number from all bits that a value has.
const PRELUDE: &str = r#"
#include <stdarg.h>
#include "testing.h"
typedef signed char schar;
typedef void *pointer;
typedef __int128 huge;
typedef long double precise;
typedef _Complex double complex;
typedef struct { int a, b; } two_ints;
typedef struct { double a, b; } two_doubles;
typedef struct { long a; double b; } mixed;
typedef struct { float a, b, c; } three_floats;
typedef struct { long a, b, c; } large;
static uint64_t mix(uint64_t h, const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3;
  return h;
}
static uint64_t next(uint64_t h) { return mix(h, &h, sizeof h); }
#define NUMBER(type) \
  static type make_##type(uint64_t h) { return (type)(int64_t)(next(h) >> 7); } \
  static uint64_t fold_##type(uint64_t h, type v) { return mix(h, &v, sizeof v > 10 ? 10 : sizeof v); }
NUMBER(schar) NUMBER(short) NUMBER(int) NUMBER(long) NUMBER(float) NUMBER(double) NUMBER(precise) NUMBER(complex)
static pointer make_pointer(uint64_t h) { return (pointer)(uintptr_t)next(h); }
static uint64_t fold_pointer(uint64_t h, pointer v) { return mix(h, &v, sizeof v); }
static huge make_huge(uint64_t h) { return (huge)next(h) << 64 | next(h + 1); }
static uint64_t fold_huge(uint64_t h, huge v) { return mix(h, &v, sizeof v); }
#define STRUCT(type, size, ...) \
  static type make_##type(uint64_t h) { type v = {__VA_ARGS__}; return v; } \
  static uint64_t fold_##type(uint64_t h, type v) { return mix(h, &v, size); }
STRUCT(two_ints, 8, make_int(h), make_int(h + 1))
STRUCT(two_doubles, 16, make_double(h), make_double(h + 1))
STRUCT(mixed, 16, make_long(h), make_double(h + 1))
STRUCT(three_floats, 12, make_float(h), make_float(h + 1), make_float(h + 2))
STRUCT(large, 24, make_long(h), make_long(h + 1), make_long(h + 2))
static jitsym *session;
static void *entry(void *target, uint32_t words, const char *name) {
  jitsym_code code = JITSYM_CODE(NULL, 0, name);
  void *made = NULL;
  CHECK_OK(jitsym_trampoline(session, target, words, &code, &made));
  CHECK(made != target);
  return made;
}
"#;

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % end
    }
}

/// The words that the arguments take on the stack.
fn stack_words(arguments: &[&Type], result: &Type) -> u32 {
    // The address of a result in memory is an argument.
    let (mut general, mut vector) = (if result.name == "large" { 5 } else { 6 }, 8);
    let mut words: u32 = 0;
    for argument in arguments {
        match argument.class {
            Registers(g, v) if g <= general && v <= vector => (general, vector) = (general - g, vector - v),
            _ => words = words.next_multiple_of(argument.align) + argument.words,
        }
    }
    words
}

/// A function, and a check of it.
fn function(
    number: usize,
    random: &mut Random,
    stack_words: fn(&[&Type], &Type) -> u32,
    functions: &mut String,
    checks: &mut String,
) {
    let (arguments, result, is_variadic, words) = loop {
        let (is_variadic, count) = (random.below(4) == 0, random.below(ARGUMENTS_MAX + 1));
        let mut pick = |is_any: bool| loop {
            let picked = &TYPES[random.below(TYPES.len() as u64) as usize];
            if is_any || picked.is_promoted {
                break picked;
            }
        };
        let (result, first) = (pick(true), pick(!is_variadic));
        let mut arguments = vec![first];
        arguments.extend((0..count).map(|_| pick(!is_variadic)));
        let words = stack_words(&arguments, result);
        if words <= WORDS_MAX {
            break (arguments, result, is_variadic, words);
        }
    };
    let fixed = if is_variadic { &arguments[..1] } else { &arguments[..] };
    let names = |arguments: &[&Type]| arguments.iter().map(|argument| argument.name).collect::<Vec<_>>().join(", ");
    let dots = if is_variadic { ", ..." } else { "" };
    let result = result.name;
    let parameters: Vec<String> =
        fixed.iter().enumerate().map(|(i, argument)| format!("{} a{i}", argument.name)).collect();
    let _ = writeln!(functions, "__attribute__((noipa)) static {result} f{number}({}{dots}) {{", parameters.join(", "));
    let _ = writeln!(functions, "  uint64_t h = {number};");
    for (i, argument) in fixed.iter().enumerate() {
        let _ = writeln!(functions, "  h = fold_{}(h, a{i});", argument.name);
    }
    if is_variadic {
        let _ = writeln!(functions, "  va_list list;\n  va_start(list, a0);");
        for argument in &arguments[1..] {
            let _ = writeln!(functions, "  h = fold_{0}(h, va_arg(list, {0}));", argument.name);
        }
        let _ = writeln!(functions, "  va_end(list);");
    }
    let _ = writeln!(functions, "  return make_{result}(h);\n}}");
    let values: Vec<String> =
        arguments.iter().map(|argument| format!("make_{}({}u)", argument.name, random.below(1 << 32))).collect();
    let values = values.join(", ");
    let _ = writeln!(checks, "  {result} (*g{number})({}{dots}) =", names(fixed));
    let _ = writeln!(checks, "      ({result} (*)({}{dots}))", names(fixed));
    let _ = writeln!(checks, "      (uintptr_t)entry((void *)(uintptr_t)f{number}, {words}, \"f{number}\");");
    let calls = ["f", "g"].map(|function| format!("fold_{result}(1, {function}{number}({values}))"));
    let _ = writeln!(checks, "  CHECK({} ==\n        {});", calls[0], calls[1]);
}

/// A program that checks functions. `stack_words` tells how many words the arguments and the result take on the stack.
fn source(seed: u64, stack_words: fn(&[&Type], &Type) -> u32) -> String {
    let mut random = Random(seed);
    let (mut functions, mut checks) = (String::from(PRELUDE), String::new());
    for number in 0..FUNCTIONS {
        function(number, &mut random, stack_words, &mut functions, &mut checks);
    }
    let main = "int main(int argc, char **argv) {\n  test_begin(argc, argv);\n  session = test_open();\n";
    format!("{functions}{main}{checks}  CHECK_OK(jitsym_close(session));\n  return test_end();\n}}\n")
}

/// Writes the source of a program, has `built` compile it and make the command that runs it, and runs it. `JITSYM_TEST_SEED`
/// repeats a run.
pub fn check(stack_words: fn(&[&Type], &Type) -> u32, dir: &Path, built: impl FnOnce(&Path, &Path) -> Command) {
    let given = std::env::var("JITSYM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let time = || u64::from(std::time::UNIX_EPOCH.elapsed().expect("time").subsec_nanos()) + 1;
    let seed = given.unwrap_or_else(time);
    let (file, program) = (dir.join("signatures.c"), dir.join("signatures"));
    std::fs::write(&file, source(seed, stack_words)).expect("source");
    let mut command = built(&file, &program);
    let output = try_run(&mut command);
    assert!(output.status.success() && output.stdout == b"ok\n", "seed {seed}: {}", describe(&command, &output));
    std::fs::remove_dir_all(dir).expect("remove the directory");
}

#[test]
fn random_functions() {
    let dir = fresh_dir("trampolines-signatures");
    check(stack_words, &dir, |file, program| {
        let libraries = artifacts().shared_dir.display().to_string();
        let mut gcc = Command::new("gcc");
        gcc.current_dir(root()).args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Iinclude", "-Ic-tests/support"]);
        gcc.arg(file).arg("-o").arg(program).args([format!("-L{libraries}"), "-ljitsym".into()]);
        run(gcc.arg(format!("-Wl,--disable-new-dtags,-rpath,{libraries}")));
        let mut command = perf::command(program);
        command.arg(&dir);
        command
    });
}
