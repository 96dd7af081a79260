//! The unwinders that processes have, and code that was registered: who finds its callers, and whom an exception passes.
//!
//! The program (`c-tests/unwinder/unwinder.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::instrumented::{thread_options, Build, ADDRESS, SAME_ADDRESSES, THREAD};
use crate::support::*;

const SOURCES: [&str; 3] = ["c-tests/unwinder/unwinder.c", "c-tests/unwinder/exceptions.cc", "-lstdc++"];
/// Code with landing pads.
const LANDING: [&str; 3] = ["c-tests/unwinder/landing.c", SOURCES[1], SOURCES[2]];
/// Comes before libgcc, whose functions it has too.
const LLVM: &str = "/usr/lib/llvm-14/lib/libunwind.so.1";
/// In the packages of Debian 13.
const NEWER_LLVM: &str = "usr/lib/llvm-19/lib/libunwind.so.1";
const NEWER_NONGNU: &str = "usr/lib/x86_64-linux-gnu/libunwind.so.8";
const LIBGCC: &str = "usr/lib/x86_64-linux-gnu/libgcc_s.so.1";

mod rust {
    //! Rust's own backtraces, in this process.

    use std::backtrace::Backtrace;

    use jitsym::{Code, FixedFrame, Options, Session, Sinks, Unwind};

    /// push rbx; call rdi; pop rbx; ret.
    const CODE: [u8; 5] = [0x53, 0xff, 0xd7, 0x5b, 0xc3];

    extern "C" fn looks_around() -> bool {
        Backtrace::force_capture().to_string().contains("rust::backtraces")
    }

    #[test]
    fn backtraces() {
        let mut memory = memmap2::MmapMut::map_anon(4096).expect("memory");
        memory[..CODE.len()].copy_from_slice(&CODE);
        let memory = memory.make_exec().expect("executable memory");
        // SAFETY: this is such a function.
        let function: extern "C" fn(extern "C" fn() -> bool) -> bool = unsafe { std::mem::transmute(memory.as_ptr()) };
        assert!(!function(looks_around), "found without help");
        let dir = super::scratch_dir("rust");
        let sinks = Some(Sinks::UNWINDER);
        let options = Options { sinks, map_dir: Some(dir.clone()), jitdump_dir: Some(dir), ..Options::default() };
        let session = Session::open(&options).expect("session");
        let unwind = Unwind::FixedFrame(FixedFrame::new(16, &[]));
        let code = Code { unwind, ..Code::new(memory.as_ptr() as u64, CODE.len() as u64, "code") };
        session.register(&code).expect("registered");
        assert!(function(looks_around), "not found");
        session.close().expect("closed");
    }
}

fn program(sources: &[&str], test: &str, link: Link, options: &[&str]) -> PathBuf {
    compile("gcc", sources, link, &[&["-O1", "-fexceptions"], options].concat(), test)
}

fn check(program: &PathBuf, test: &str, preload: Option<&Path>, what: &[&str]) {
    let mut command = Command::new(program);
    command.arg(scratch_dir(test)).args(what);
    // What is freed is no table any more.
    command.env("MALLOC_PERTURB_", "165");
    if let Some(library) = preload {
        assert!(library.exists(), "{library:?}");
        command.env("LD_PRELOAD", spaceless(library));
    }
    let output = run(&mut command);
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("ok\n"), "{what:?}: {output:?}");
}

/// A seed that a failure names.
fn seed() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("time");
    (now.subsec_nanos() / 2).to_string()
}

/// Calls tell an unwinder that takes tables one by one themselves, and wait for nobody.
fn at_once(test: &str, unwinder: &Path) {
    let sources = [&["c-tests/unwinder/at_once.c"], &SOURCES[1..]].concat();
    let test = format!("{test}-at-once");
    let program = program(&sources, &test, Link::Shared, &[]);
    // The memory for records is what the first session of a process has asked for, and LLVM's list has its first size.
    for parts in [&["full"][..], &["forked"], &["held", "memory", "between", "interrupted", "adopted"]] {
        check(&program, &test, Some(unwinder), parts);
    }
}

/// All that holds whichever unwinder the process has. glibc goes to libgcc for the end of a thread, which is one unwinder too many for
/// C++ where that has another one, without this library, too.
fn everything(test: &str, link: Link, options: &[&str], preload: Option<&Path>) {
    let is_libgcc = preload.is_none_or(|library| !library.ends_with("libunwind.so.1")) && !options.ends_with(&NONGNU);
    let landing = program(&LANDING, &format!("{test}-landing"), link, options);
    for what in ["bad", "reuse", "storm"] {
        check(&landing, test, preload, &[what, &seed()]);
    }
    let program = program(&SOURCES, test, link, options);
    for what in ["off", "call", "move", "late", "again", "fork", "alone", "adopted"] {
        check(&program, test, preload, &[what]);
    }
    if is_libgcc {
        check(&program, test, preload, &["exit"]);
        check(&program, test, preload, &["cancel"]);
    }
    for count in ["3000", "3001"] {
        check(&program, test, preload, &["many", count]);
    }
    check(&program, test, preload, &["reuse", &seed()]);
    check(&program, test, preload, &["storm", if thorough() { "100" } else { "30" }]);
    if options.contains(&WALKS) {
        check(&program, test, preload, &["walk", &seed()]);
    }
}

#[test]
fn libgcc() {
    everything("libgcc", Link::Shared, &[], None);
}

/// A call that waits for the unwinder does so as long as the library's thread gets on, and says so if that is held.
#[test]
fn a_thread_that_is_held_or_slow() {
    let program = program(&["c-tests/unwinder/held.c", "-lgcc_s"], "held", Link::Shared, &[]);
    check(&program, "held", None, &[]);
}

/// The unwinder knows all code of a burst after the call that ends it, and what a call was about while another thread only bursts.
#[test]
fn bursts() {
    let program = program(&["c-tests/unwinder/bursts.c", "-lgcc_s"], "bursts", Link::Shared, &[]);
    check(&program, "bursts", None, &[if thorough() { "50000" } else { "5000" }]);
}

/// A library of Debian 13.
fn newer(library: &str) -> PathBuf {
    fetched("unwinders").join(library)
}

/// libgcc 14. It keeps a tree in which it loses code sometimes, as long as nothing is done about that.
#[test]
fn libgcc_with_a_tree() {
    at_once("libgcc-14", &newer(LIBGCC));
    everything("libgcc-14", Link::Shared, &[], Some(&newer(LIBGCC)));
}

#[test]
fn statically_linked() {
    everything("unwinder-static", Link::Static, &[], None);
}

#[test]
fn in_a_static_program() {
    everything("unwinder-whole", Link::Static, &["-static"], None);
}

#[test]
fn llvm() {
    at_once("unwinder-llvm", Path::new(LLVM));
    everything("unwinder-llvm", Link::Shared, &[], Some(Path::new(LLVM)));
}

#[test]
fn newer_llvm() {
    at_once("unwinder-llvm-19", &newer(NEWER_LLVM));
    everything("unwinder-llvm-19", Link::Shared, &[], Some(&newer(NEWER_LLVM)));
}

/// What programs are compiled with that walk by nongnu libunwind's own interface.
const WALKS: &str = "-DUNW_STEP";
/// What programs are linked with that have nongnu libunwind.
const NONGNU: [&str; 2] = ["-Wl,--no-as-needed", "-lunwind"];

/// nongnu libunwind walks the stack by its own interface, and libgcc throws.
#[test]
fn nongnu_beside_libgcc() {
    let options = [WALKS, "-Wl,--no-as-needed", "-lgcc_s", "-lunwind", "-Wl,--as-needed"];
    everything("unwinder-nongnu-beside", Link::Shared, &options, None);
}

/// It throws, too. The functions of libgcc have the same names, and come later.
#[test]
fn nongnu() {
    let options = [&[WALKS], &NONGNU[..]].concat();
    everything("unwinder-nongnu", Link::Shared, &options, None);
}

/// 1.8
#[test]
fn newer_nongnu() {
    let options = [&[WALKS], &NONGNU[..]].concat();
    everything("unwinder-nongnu-1.8", Link::Shared, &options, Some(&newer(NEWER_NONGNU)));
}

/// Code is registered, passed by exceptions and unregistered by eight threads. The sanitizers see the library and the program,
/// which reads the entries that the unwinder finds. The unwinder itself is not instrumented.
fn storms(build: &Build, test: &str) {
    let llvm = |library: PathBuf| (Some(library), Some(LLVM));
    for (preload, linked) in [(None, None), (Some(newer(LIBGCC)), None), llvm(LLVM.into()), llvm(newer(NEWER_LLVM))] {
        for (sources, what) in [(SOURCES, ["storm", "100"]), (LANDING, ["storm", &seed()])] {
            // A weak reference of a static library is to what the program is linked with, or to nothing.
            let words: Vec<&str> = sources[..2].iter().copied().chain(linked).chain([sources[2]]).collect();
            let mut command = Command::new(SAME_ADDRESSES[0]);
            command.args(&SAME_ADDRESSES[1..]).arg("env");
            command.args(preload.iter().map(|library| format!("LD_PRELOAD={}", spaceless(library).display())));
            command.arg(build.program("gcc", &words)).arg(scratch_dir(test)).args(what);
            // The library's thread has no standard error.
            let reports = fresh_dir(format!("{test}-reports"));
            let log = format!("log_path='{}'", reports.join("report").display());
            command.env("TSAN_OPTIONS", format!("{}:{log}", thread_options()));
            // What is freed is no table any more.
            command.env("ASAN_OPTIONS", format!("detect_leaks=1:max_free_fill_size=65536:free_fill_byte=165:{log}"));
            let output = try_run(&mut command);
            let mut report = String::new();
            for file in std::fs::read_dir(&reports).expect("reports") {
                report += &std::fs::read_to_string(file.expect("report").path()).expect("report");
            }
            let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
            assert!(clean && report.is_empty(), "{}\n{report}", describe(&command, &output));
        }
    }
}

#[test]
fn storms_under_thread_sanitizer() {
    storms(&THREAD, "storm-thread");
}

#[test]
fn storms_under_address_sanitizer() {
    storms(&ADDRESS, "storm-address");
}
