//! Data races and memory errors inside the library itself: its Rust code is built for ThreadSanitizer, AddressSanitizer,
//! helgrind and drd, and linked with programs of `c-tests/`; and its protocols are run by loom (`tests/models/`), which tries
//! every order of events. Each tool has to find a mistake that is put in for it.
//!
//! The compiler is the stable one: it brings the runtimes of the sanitizers. The standard library is not instrumented, so for
//! the tools that look for races the library's locks are POSIX ones (`src/sys/sync`).

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;
use support::{describe, fresh_dir, root, run, scratch_dir, stdout, try_run, STATIC_LIBS};

/// A build of the static library, and how programs are linked with it.
struct Build {
    name: &'static str,
    opt_level: &'static str,
    /// For the Rust compiler.
    flags: &'static [&'static str],
    /// For the C compiler.
    c_flags: &'static [&'static str],
    /// The sanitizer's runtime, as Rust calls it.
    runtime: Option<&'static str>,
}

const THREAD: Build = Build {
    name: "thread",
    opt_level: "1",
    flags: &["-Zsanitizer=thread", "-Cunsafe-allow-abi-mismatch=sanitizer", "--cfg=jitsym_locks"],
    c_flags: &["-O1", "-fsanitize=thread", "-fno-omit-frame-pointer"],
    runtime: Some("tsan"),
};

const ADDRESS: Build = Build {
    name: "address",
    opt_level: "1",
    flags: &["-Zsanitizer=address", "-Cunsafe-allow-abi-mismatch=sanitizer"],
    c_flags: &["-O1", "-fsanitize=address", "-fno-omit-frame-pointer"],
    runtime: Some("asan"),
};

const VALGRIND: Build = Build {
    name: "valgrind",
    // So that the names of the functions by which atomics are accessed are in the stacks.
    opt_level: "0",
    flags: &["--cfg=jitsym_locks"],
    c_flags: &["-O1"],
    runtime: None,
};

/// helgrind and drd take an access that is atomic for any other, and the order that it gives for none. So they are not shown what
/// rests on such order (`locks` in the program), and accesses that are atomic are left out. Nor do they like that a condition
/// variable is signalled when the lock has just been given back, which POSIX allows.
const VALGRIND_SUPPRESSIONS: &str = "
{
   helgrind: an atomic access
   Helgrind:Race
   fun:*atomic_*
}
{
   drd: an atomic access
   drd:ConflictingAccess
   fun:*atomic_*
}
{
   helgrind: signalled without the lock
   Helgrind:Misc
   obj:*vgpreload_helgrind*
   fun:*Condvar*notify_all*
}
{
   drd: signalled without the lock
   drd:CondRaceErr
   fun:pthread_cond_broadcast*
   fun:*Condvar*notify_all*
}
";

/// What ThreadSanitizer cannot know.
///
/// `Arc`: it orders the end of its value by a fence (`atomic::fence`), which ThreadSanitizer does not understand; the standard
/// library has another way for that, but not in the build that compilers come with.
const THREAD_SUPPRESSIONS: &str = "race:alloc::sync::Arc*drop_slow\n";

const TARGET: &str = "x86_64-unknown-linux-gnu";

impl Build {
    /// Builds the library and returns its path.
    fn library(&self) -> PathBuf {
        let dir = root().join("target").join(format!("races-{}", self.name));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(root()).args(["rustc", "--quiet", "--locked", "--release", "--lib"]);
        cargo
            .args(["--features", "reserve", "--crate-type", "staticlib", "--target", TARGET, "--target-dir"])
            .arg(&dir);
        // Sanitizers are not stable yet.
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", self.flags.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
        // Quick to build, and nothing is inlined that should be seen in a report.
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "4");
        run(cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", self.opt_level));
        dir.join(TARGET).join("release/libjitsym.a")
    }

    /// Compiles a C program with it.
    fn program(&self, library: &Path, source: &str) -> PathBuf {
        let out = scratch_dir("bin").join(format!("{}-{}", source.replace('/', "-"), self.name));
        let object = out.with_extension("o");
        let mut command = Command::new("gcc");
        command.current_dir(root()).args(["-g", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Ic-tests/support"]);
        run(command.args(["-fPIE", "-c"]).args(self.c_flags).arg(format!("c-tests/{source}.c")).arg("-o").arg(&object));
        // Linked with the runtime of the Rust compiler: there can be only one.
        let mut link = Command::new("gcc");
        link.args(["-pie", "-rdynamic"]).arg(&object).arg(library);
        if let Some(name) = self.runtime {
            let sysroot = stdout(&run(Command::new("rustc").current_dir(root()).args(["--print", "sysroot"])));
            let lib = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib");
            let runtime = lib.join(format!("librustc-stable_rt.{name}.a"));
            assert!(runtime.exists(), "this Rust toolchain has no {}", runtime.display());
            link.arg("-Wl,--whole-archive").arg(runtime).arg("-Wl,--no-whole-archive");
        }
        run(link.args(STATIC_LIBS).arg("-o").arg(&out));
        out
    }
}

fn thread_library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| THREAD.library())
}

fn address_library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| ADDRESS.library())
}

/// Runs a program behind `tool` with a directory of its own. That the files in it are right other tests see to.
fn try_program(tool: &[&str], program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> (Command, Output) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let dir = fresh_dir(format!("run-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "1800"]).args(tool).arg(program).arg(&dir).args(arguments);
    let suppressions = scratch_dir("suppressions").join("thread");
    std::fs::write(&suppressions, THREAD_SUPPRESSIONS).expect("write the suppressions");
    command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
    command.env("ASAN_OPTIONS", "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1");
    command.envs(environment.iter().copied());
    let output = try_run(&mut command);
    std::fs::remove_dir_all(&dir).expect("remove the scratch directory");
    (command, output)
}

fn check(tool: &[&str], program: &Path, arguments: &[&str]) {
    let (command, output) = try_program(tool, program, arguments, &[]);
    let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
    assert!(clean, "{}", describe(&command, &output));
}

/// `FILE:LINE` of the one line with this text.
fn place(file: &str, text: &str) -> String {
    let source = std::fs::read_to_string(root().join(file)).expect("source");
    let mut lines = source.lines().zip(1..).filter(|(line, _)| line.contains(text));
    let (_, line) = lines.next().unwrap_or_else(|| panic!("{file} has no line with {text}"));
    assert!(lines.next().is_none(), "{file} has several lines with {text}");
    format!("{file}:{line}")
}

/// The sanitizer uses addresses that the kernel may have put something else at.
const SAME_ADDRESSES: &[&str] = &["setarch", "-R"];

fn thread_sanitizer(source: &str, arguments: &[&str]) {
    check(SAME_ADDRESSES, &THREAD.program(thread_library(), source), arguments);
}

#[test]
fn thread_sanitizer_races() {
    thread_sanitizer("races/races", &["light"]);
}

#[test]
fn thread_sanitizer_threads() {
    thread_sanitizer("calls/threads", &["light"]);
}

#[test]
fn thread_sanitizer_stable() {
    thread_sanitizer("calls/stable", &["light"]);
}

#[test]
fn thread_sanitizer_host() {
    thread_sanitizer("host/host", &["light"]);
}

/// What of the order between threads ThreadSanitizer would miss.
#[test]
fn thread_sanitizer_finds_a_weak_order() {
    let program = THREAD.program(thread_library(), "races/races");
    for (file, text) in [
        // A record is published before it is laid down.
        ("src/queue/chunk.rs", "committed.store(self.events, Ordering::Release)"),
        // A chunk comes back before the writer has read it.
        ("src/queue/pool.rs", "self.top.fetch_update("),
    ] {
        let weak = place(file, text);
        // Which threads meet is chance, so that a run now and then shows nothing, and many do on a single processor.
        let is_found = (0..50).any(|_| {
            let (_, output) = try_program(SAME_ADDRESSES, &program, &["light"], &[("JITSYM_WEAKEN", &weak)]);
            let report = String::from_utf8_lossy(&output.stderr);
            !output.status.success() && report.contains("WARNING: ThreadSanitizer: data race")
        });
        assert!(is_found, "ThreadSanitizer does not find what is wrong at {weak}");
    }
}

fn valgrind(tool: &'static str, program: &Path, mode: &str, environment: &[(&str, &str)]) -> (Command, Output) {
    let suppressions = scratch_dir("suppressions").join(tool);
    std::fs::write(&suppressions, VALGRIND_SUPPRESSIONS).expect("write the suppressions");
    let suppressions = format!("--suppressions={}", suppressions.display());
    let tool = format!("--tool={tool}");
    let valgrind = ["valgrind", "-q", &tool, &suppressions, "--fair-sched=yes", "--error-exitcode=9"];
    try_program(&valgrind, program, &[mode], environment)
}

/// What locks protect: sessions, flush, close, the start and the end of the writer, forks. And that the tools see it if they do
/// not: what goes from thread to thread without a lock.
#[test]
fn helgrind_and_drd() {
    let program = VALGRIND.program(&VALGRIND.library(), "races/races");
    for tool in ["helgrind", "drd"] {
        let (command, output) = valgrind(tool, &program, "locks", &[]);
        let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
        assert!(clean, "{}", describe(&command, &output));
        let (command, output) = valgrind(tool, &program, "light", &[]);
        assert!(!output.status.success(), "{tool} finds nothing\n{}", describe(&command, &output));
    }
}

/// The models hold, and fail if the order is taken away from an access that they depend on.
#[test]
fn models() {
    let dir = root().join("target/models");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["build", "--quiet", "--locked", "--release", "--package", "jitsym-models"]);
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    run(cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "8").arg("--target-dir").arg(&dir));
    let output =
        run(Command::new("timeout").arg("3600").arg(dir.join("release/jitsym-models")).env("RUST_BACKTRACE", "0"));
    println!("{}", stdout(&output));
}

/// The same with more events, for as long as there is time: `cargo test --test races -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn more_of_it() {
    for source in ["races/races", "calls/threads"] {
        thread_sanitizer(source, &[]);
    }
    models();
    let program = root().join("target/models/release/jitsym-models");
    for model in ["publish", "take_back", "pool", "sleep", "flush", "close", "fork"] {
        let output = run(Command::new(&program).arg(model).env("JITSYM_SWITCHES", "2"));
        println!("{}", stdout(&output));
    }
    // Which places in the source the models depend on, one by one.
    println!("{}", stdout(&run(Command::new(&program).arg("sweep").env("JITSYM_SWITCHES", "1"))));
}

fn address_sanitizer(source: &str) {
    check(&[], &ADDRESS.program(address_library(), source), &["light"]);
}

/// The library's own code reads what it must not: the caller has lied to it.
#[test]
fn address_sanitizer_finds_an_overread() {
    let program = ADDRESS.program(address_library(), "races/overread");
    let (command, output) = try_program(&[], &program, &[], &[]);
    let report = String::from_utf8_lossy(&output.stderr);
    let read_by = report.lines().find(|line| line.trim_start().starts_with("#0")).unwrap_or_default();
    assert!(
        // `memcpy` is what code calls that is not instrumented, and `__asan_memcpy` what other code does.
        report.contains("heap-buffer-overflow") && !read_by.contains(" in mem"),
        "AddressSanitizer does not see what Rust code reads\n{}",
        describe(&command, &output)
    );
}

#[test]
fn address_sanitizer_bad_input() {
    address_sanitizer("calls/bad_input");
}

#[test]
fn address_sanitizer_life() {
    address_sanitizer("calls/life");
}

#[test]
fn address_sanitizer_threads() {
    address_sanitizer("calls/threads");
}

#[test]
fn address_sanitizer_files() {
    address_sanitizer("files/files");
}

#[test]
fn address_sanitizer_fork() {
    address_sanitizer("fork/fork_child");
}
