//! The C API as C and C++ programs see it: the programs in `c-tests/` are compiled and run with the shared and with the
//! static library, under AddressSanitizer and UndefinedBehaviorSanitizer, and under valgrind; and the header is compiled as
//! every language version that it promises.
//!
//! A program succeeds if it prints "ok" and nothing else: the library prints nothing, and the tools print only findings.
//!
//! AddressSanitizer sees the library's own code too. valgrind is slow, and finds little more than reads of uninitialised bytes, so
//! that programs run under it in `sh scripts/test.sh all`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::headers;
use crate::instrumented::{ADDRESS, SANITIZE};
use crate::support::{
    artifacts, checker, compile, describe, fresh_dir, root, run, scratch_dir, spaceless, stdout, thorough, try_run,
    Link,
};

const VALGRIND: &[&str] = &[
    "-q",
    "--error-exitcode=9",
    "--leak-check=full",
    // Not those "possibly lost": so valgrind calls whatever only pointers into its middle lead to, as those of Rust's hash
    // tables and reference counts, and glibc's to the TLS of a running thread, do. What is leaked is "definitely lost".
    "--errors-for-leak-kinds=definite",
    "--show-leak-kinds=definite",
    "--child-silent-after-fork=no",
    // One thread runs at a time; without this a thread that spins can starve the one that it waits for.
    "--fair-sched=yes",
];

/// Runs a program behind `tool` with a directory of its own and checks that it has succeeded and printed only "ok".
fn check(tool: &[&str], program: &Path, name: &str, arguments: &[&str]) {
    check_allowing(&[], tool, program, name, arguments);
}

/// The same for a program that breaks some rules of `jitsym check` on purpose.
fn check_allowing(allowed: &[&str], tool: &[&str], program: &Path, name: &str, arguments: &[&str]) {
    let dir = fresh_dir(name);
    let mut command = Command::new("env");
    command.args(tool).arg(program).arg(&dir).args(arguments);
    // The machine that runs the tests has no say in them.
    for variable in [
        "JITSYM",
        "JITSYM_DIR",
        "JITSYM_SPOOL",
        "JITSYM_SPOOL_DIR",
        "JITSYM_THREADS",
        "JITSYM_RECOVER",
        "JITSYM_FORK",
        "JITSYM_REMOVE",
        "JITSYM_LATE",
        "JITSYM_ADOPT",
        "JITSYM_MAP_MAX",
        "JITSYM_JITDUMP_MAX",
        "JITDUMPDIR",
        "JITDUMP_USE_ARCH_TIMESTAMP",
    ] {
        command.env_remove(variable);
    }
    command.env("ASAN_OPTIONS", "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1");
    command.env("UBSAN_OPTIONS", "print_stacktrace=1");
    let mut output = try_run(&mut command);
    for _ in 0..3 {
        // An assertion of its own that valgrind 3.19 now and then does not hold.
        if !String::from_utf8_lossy(&output.stderr).contains("aspacem assertion failed") {
            break;
        }
        fresh_dir(name);
        output = try_run(&mut command);
    }
    let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
    assert!(clean, "{}", describe(&command, &output));
    checker::assert_all_sound(&dir, allowed);
    // Dumps are large, and of interest only after a failure.
    std::fs::remove_dir_all(&dir).expect("remove the scratch directory");
}

/// These need room below their mappings, where the Rust compiler's AddressSanitizer has reserved all addresses.
const WANT_ROOM: &[&str] = &["c-tests/calls/late.c", "c-tests/regions/region.c"];

/// Compiles with the sanitizers, together with the library if that is possible.
fn compile_sanitized(compiler: &str, source: &str, name: &str) -> PathBuf {
    if WANT_ROOM.contains(&source) {
        compile_sanitized_alone(compiler, source, Link::Shared, name)
    } else {
        check_sanitized(ADDRESS.program(compiler, &[source]))
    }
}

/// The same for the program alone.
fn compile_sanitized_alone(compiler: &str, source: &str, link: Link, name: &str) -> PathBuf {
    check_sanitized(compile(compiler, &[source], link, SANITIZE, name))
}

/// Makes sure that the sanitizers are in a program: a flag that is lost on the way would make every program pass.
fn check_sanitized(program: PathBuf) -> PathBuf {
    let symbols = stdout(&run(Command::new("nm").arg(&program)));
    for symbol in ["__asan_init", "__ubsan_handle_"] {
        assert!(symbols.contains(symbol), "{} has no {symbol}", program.display());
    }
    program
}

/// valgrind with our options, and with those of one test.
fn valgrind(extra: &[&'static str]) -> Vec<&'static str> {
    [&["valgrind"], VALGRIND, extra].concat()
}

/// The four ways to run each program of one source: with a large workload once in a thorough run, with a small one otherwise. An
/// attribute is for the run under valgrind.
macro_rules! programs {
    ($($(#[$ignored:meta])? $name:ident, $compiler:literal, $source:literal, $valgrind:expr, $allowed:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn shared() {
                let name = concat!(stringify!($name), "-shared");
                let workload: &[&str] = if thorough() { &[] } else { &["light"] };
                check_allowing($allowed, &[], &compile($compiler, &[$source], Link::Shared, &["-O1"], name), name, workload);
            }

            #[test]
            fn statically_linked() {
                let name = concat!(stringify!($name), "-static");
                check_allowing($allowed, &[], &compile($compiler, &[$source], Link::Static, &["-O2"], name), name, &["light"]);
            }

            #[test]
            fn sanitized() {
                let name = concat!(stringify!($name), "-sanitized");
                check_allowing($allowed, &[], &compile_sanitized($compiler, $source, name), name, &["light"]);
            }

            #[test]
            $(#[$ignored])?
            fn under_valgrind() {
                let name = concat!(stringify!($name), "-valgrind");
                check_allowing($allowed, &valgrind($valgrind), &compile($compiler, &[$source], Link::Shared, &["-O1"], name), name, &["slow"]);
            }
        }
    )*};
}

programs! {
    abi, "gcc", "c-tests/calls/abi.c", &[], &[];
    // Tables for a part of the code only.
    bad_input, "gcc", "c-tests/calls/bad_input.c", &[], &["unwind-fde-range"];
    bridge, "gcc", "c-tests/calls/bridge.c", &[], &[];
    // Android's dialect, which has to be asked for.
    life, "gcc", "c-tests/calls/life.c", &[], &["map-0x"];
    // Threads that do not know of each other take the same place, sometimes in the same nanosecond.
    #[ignore = "slow"] threads, "gcc", "c-tests/calls/threads.c", &[], &["load-overlap-same-time"];
    #[ignore = "slow"] stable, "gcc", "c-tests/calls/stable.c", &[], &[];
    // Bounded files.
    #[ignore = "slow"] files, "gcc", "c-tests/files/files.c", &[], &[];
    #[ignore = "slow"] host, "gcc", "c-tests/host/host.c", &[], &[];
    // Programs that end without a word.
    #[ignore = "slow"] spool, "gcc", "c-tests/files/spool.c", &["--leak-check=no"], &[];
    wanted, "gcc", "c-tests/calls/wanted.c", &["--leak-check=no"], &[];
    large_tls, "gcc", "c-tests/host/large_tls.c", &[], &[];
    // A forked child has the memory of the parent's threads, but not the registers that hold on to it.
    #[ignore = "slow"] cancel, "gcc", "c-tests/host/cancel.c", &["--leak-check=no"], &[];
    // What the library has when it stops is not given back.
    panic, "gcc", "c-tests/host/panic.c", &["--leak-check=no"], &[];
    // Its children have that of the parent's thread too.
    #[ignore = "slow"] late, "gcc", "c-tests/calls/late.c", &["--leak-check=no"], &[];
    // Programs that are killed, and children.
    #[ignore = "slow"] no_threads, "gcc", "c-tests/calls/no_threads.c", &["--leak-check=no"], &[];
    #[ignore = "slow"] fork, "gcc", "c-tests/fork/fork.c", &["--leak-check=no"], &[];
    #[ignore = "slow"] fork_child, "gcc", "c-tests/fork/fork_child.c", &["--leak-check=no"], &[];
    #[ignore = "slow"] inherit_late, "gcc", "c-tests/fork/inherit_late.c", &["--leak-check=no"], &[];
    #[ignore = "slow"] ends, "gcc", "c-tests/ends/ends.c", &["--leak-check=no"], &[];
    // Code changes in mappings of files, where valgrind expects that least. Children have the memory of the parent's threads.
    #[ignore = "slow"] region, "gcc", "c-tests/regions/region.c", &["--smc-check=all", "--leak-check=no"], &[];
    // Children have the memory of the parent's thread.
    #[ignore = "slow"] lookup, "gcc", "c-tests/stack/lookup.c", &["--leak-check=no"], &[];
    cxx, "g++", "c-tests/calls/cxx.cc", &[], &[];
    objects, "g++", "c-tests/calls/objects.cc", &[], &[];
}

/// What glibc makes a cancellation point (its manual, and its sources for what is of Linux alone).
const CANCELLATION_POINTS: &str = "accept accept4 clock_nanosleep close connect copy_file_range creat creat64 epoll_pwait \
    epoll_wait fallocate fallocate64 fcntl fcntl64 fdatasync fsync getrandom lockf lockf64 msgrcv msgsnd msync nanosleep open \
    open64 openat openat64 pause poll ppoll pread pread64 preadv preadv2 preadv64 preadv64v2 pselect pthread_cond_clockwait \
    pthread_cond_timedwait pthread_cond_wait pthread_join pthread_testcancel pwrite pwrite64 pwritev pwritev2 pwritev64 \
    pwritev64v2 read readv recv recvfrom recvmmsg recvmsg select sem_clockwait sem_timedwait sem_wait send sendmmsg sendmsg \
    sendto sigpause sigsuspend sigtimedwait sigwait sigwaitinfo sleep splice sync_file_range system tcdrain tee usleep \
    vmsplice wait wait3 wait4 waitid waitpid write writev";

/// Wherever the library calls one of them on a thread of the host, that cannot be cancelled.
#[test]
fn cancellation_points() {
    let preloaded = scratch_dir("bin").join("cancellation_points.so");
    let mut compiler = Command::new("gcc");
    compiler.current_dir(root()).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    run(compiler.args(["c-tests/host/cancellation_points.c", "-o"]).arg(&preloaded).arg("-ldl"));
    let symbols = |kind: &str, object: &Path| -> Vec<String> {
        let output = stdout(&run(Command::new("nm").args(["-D", "-P", kind]).arg(object)));
        let name = |line: &str| line.split([' ', '@']).next().map(String::from);
        output.lines().filter_map(name).collect()
    };
    let called = symbols("--undefined-only", &artifacts().shared_dir.join("libjitsym.so"));
    let watched = symbols("--defined-only", &preloaded);
    let points = called.iter().filter(|name| CANCELLATION_POINTS.split_ascii_whitespace().any(|point| point == **name));
    let missing: Vec<&String> = points.filter(|name| !watched.contains(name)).collect();
    assert!(missing.is_empty(), "c-tests/host/cancellation_points.c does not watch {missing:?}");

    let preload = format!("LD_PRELOAD={}", spaceless(&preloaded).display());
    let others = if thorough() { &["files/files", "calls/late"][..] } else { &[] };
    for source in ["host/host", "host/cancel", "fork/fork_child", "ends/ends", "regions/region"].iter().chain(others) {
        let name = format!("{}-cancellation", source.replace('/', "-"));
        let program = compile("gcc", &[&format!("c-tests/{source}.c")], Link::Shared, &["-O1"], &name);
        let allowed = &["code-move"];
        let seen = fresh_dir(format!("{name}-seen")).join("seen");
        check_allowing(
            allowed,
            &["env", &preload, &format!("TEST_SEEN={}", seen.display())],
            &program,
            &name,
            &["light"],
        );
        assert!(seen.exists(), "no call of the library was watched in {name}");
    }
}

#[test]
fn dlopen() {
    let source = "c-tests/loader/dlopen.c";
    let library = artifacts().shared_dir.join("libjitsym.so");
    let library = library.to_str().expect("path");
    let program = compile("gcc", &[source], Link::None, &["-O1"], "dlopen");
    let sanitized = compile_sanitized_alone("gcc", source, Link::None, "dlopen-sanitized");
    for mode in ["now", "lazy"] {
        check(&[], &program, &format!("dlopen-{mode}"), &[library, mode]);
        check(&[], &sanitized, &format!("dlopen-sanitized-{mode}"), &[library, mode]);
    }
    // Its code is nowhere, which is a failure to report for the sink that tells valgrind of code.
    let alone = [&["env", "JITSYM_VALGRIND=0"], &valgrind(&[])[..]].concat();
    check(&alone, &program, "dlopen-valgrind", &[library, "now"]);
}

#[test]
fn cxx_versions() {
    for version in ["c++11", "c++17", "c++20"] {
        for exceptions in ["-fexceptions", "-fno-exceptions"] {
            let name = format!("cxx-{version}{exceptions}");
            let flags = ["-pedantic", &format!("-std={version}"), exceptions];
            check(&[], &compile("g++", &["c-tests/calls/cxx.cc"], Link::Shared, &flags, &name), &name, &[]);
        }
    }
}

#[test]
fn double_include() {
    for link in [Link::Shared, Link::Static] {
        let name = format!("double_include-{link:?}");
        let sources = ["c-tests/calls/double_include_a.cc", "c-tests/calls/double_include_b.cc"];
        check(&[], &compile("g++", &sources, link, &["-pedantic"], &name), &name, &[]);
    }
}

/// What strict C++ programs are compiled with.
const STRICT_CXX: &[&str] =
    &["-Wold-style-cast", "-Wzero-as-null-pointer-constant", "-Wconversion", "-Wsign-conversion"];

/// Each header by itself, and all together, in both orders.
#[test]
fn headers_compile_alone_and_together() {
    let dir = scratch_dir("header");
    let [host, region, control] = headers::NAMES;
    let orders: [&[&str]; 6] =
        [&[host], &[region], &[control], &[host, region, control], &[control, region, host], &["jitsym.hpp"]];
    let sources = orders.map(|names| {
        let source = dir.join(format!("{}.c", names.join("+")));
        let text: String = names.iter().map(|name| format!("#include \"{name}\"\n")).collect();
        std::fs::write(&source, text).expect("write the source");
        source
    });
    let compiles = |compiler: &str, language: &str, version: &str, extra: &[&str]| {
        let mut command = Command::new(compiler);
        command.current_dir(root()).args(["-x", language, &format!("-std={version}"), "-Iinclude"]);
        command.args(["-fsyntax-only", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wundef", "-Wconversion"]);
        let in_c = sources.len() - usize::from(language == "c");
        run(command.args(extra).args(&sources[..in_c]));
    };
    for compiler in ["gcc", "clang"] {
        for version in ["c99", "c11", "c17", "c2x", "gnu2x"] {
            compiles(compiler, "c", version, &["-Wstrict-prototypes", "-Wmissing-prototypes"]);
            // As a program that has its own attribute for imported functions.
            compiles(compiler, "c", version, &["-DJITSYM_API=extern __attribute__((visibility(\"default\")))"]);
        }
    }
    for compiler in ["g++", "clang++"] {
        for version in ["c++11", "c++14", "c++17", "c++20", "c++2b"] {
            compiles(compiler, "c++", version, STRICT_CXX);
            compiles(compiler, "c++", version, &["-fno-exceptions", "-fno-rtti"]);
        }
    }
}

/// In each version of both languages, without a warning, and by both compilers.
#[test]
fn initialisers() {
    let source = root().join("c-tests/calls/initialisers.c");
    let dir = scratch_dir("initialisers");
    let check = |compiler: &str, language: &str, version: &str| {
        let program = dir.join(format!("{compiler}-{version}"));
        let mut command = Command::new(compiler);
        command.current_dir(root()).args([
            "-x",
            language,
            &format!("-std={version}"),
            "-Iinclude",
            "-pedantic",
            "-Wall",
        ]);
        command.args(if language == "c++" { STRICT_CXX } else { &[] });
        run(command.args(["-Wextra", "-Werror", "-Wmissing-field-initializers", "-o"]).arg(&program).arg(&source));
        assert_eq!(stdout(&run(&mut Command::new(&program))), "ok\n", "{compiler} {version}");
    };
    for compiler in ["gcc", "clang"] {
        ["c99", "c11", "c17", "c2x"].iter().for_each(|version| check(compiler, "c", version));
    }
    for compiler in ["g++", "clang++"] {
        ["c++11", "c++14", "c++17", "c++20", "c++2b"].iter().for_each(|version| check(compiler, "c++", version));
    }
}

/// That the tools find here what they are used to find: a sanitizer or a leak checker that does not work, as in a sandbox
/// without ptrace, would let everything pass.
#[test]
fn tools_find_mistakes() {
    let dir = scratch_dir("mistakes");
    let mistakes = [
        // Of many, because one may still be found in a register, or in what a function has left on the stack.
        ("leak", "char *volatile p; for (int i = 0; i < 64; i++) p = malloc(64); p = 0; return p != 0;", true),
        ("overrun", "volatile char *p = malloc(64); p[64] = 1; free((void *)p); return 0;", true),
        // valgrind does not look at signed overflow.
        ("overflow", "volatile int i = 2147483647; i = i + 1; return 0;", false),
    ];
    for (name, body, for_valgrind) in mistakes {
        let source = dir.join(format!("{name}.c"));
        let text = format!("#include <stdlib.h>\nint main(void) {{ {body} }}\n");
        std::fs::write(&source, text).expect("write the source");
        let source = source.to_str().expect("path");
        let alone = compile("gcc", &[source], Link::None, SANITIZE, &format!("mistake-{name}-sanitized"));
        for sanitized in [alone, ADDRESS.program("gcc", &[source])] {
            let mut command = Command::new(&sanitized);
            let output = try_run(&mut command);
            let is_found = !output.status.success() && !output.stderr.is_empty();
            assert!(is_found, "the sanitizers do not find a {name}\n{}", describe(&command, &output));
        }
        if for_valgrind {
            let plain = compile("gcc", &[source], Link::None, &["-O0"], &format!("mistake-{name}"));
            let output = try_run(Command::new("valgrind").args(VALGRIND).arg(&plain));
            assert_eq!(output.status.code(), Some(9), "valgrind does not find a {name}");
        }
    }
}

/// The library's own code reads what it must not: the caller has lied to it.
#[test]
fn address_sanitizer_finds_an_overread() {
    let program = ADDRESS.program("gcc", &["c-tests/calls/overread.c"]);
    let mut command = Command::new(program);
    let output = try_run(command.arg(scratch_dir("overread")));
    let report = String::from_utf8_lossy(&output.stderr);
    let read_by = report.lines().find(|line| line.trim_start().starts_with("#0")).unwrap_or_default();
    assert!(
        // `memcpy` is what code calls that is not instrumented, and `__asan_memcpy` what other code does.
        report.contains("heap-buffer-overflow") && !read_by.contains(" in mem"),
        "AddressSanitizer does not see what Rust code reads\n{}",
        describe(&command, &output)
    );
}
