//! What the integration tests share: the built C libraries, compilers, child processes, scratch directories.
//!
//! A tool that is missing fails the test that needs it; nothing is skipped.
#![allow(dead_code)]

pub mod checker;
pub mod genelf;
pub mod readelf;
mod spaceless;
mod tmp_files;
mod wait;

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

// Not every test profiles a process, preloads a library, or waits.
#[allow(unused_imports)]
pub use spaceless::spaceless;
#[allow(unused_imports)]
pub use tmp_files::TmpFiles;
#[allow(unused_imports)]
pub use wait::{run_to_its_end, wait_until};

/// The root of the source tree, for the tests of the library and for those in `tool/`.
pub fn root() -> &'static Path {
    let above = |dir: &&Path| dir.join("include/jitsym.h").is_file();
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(above).expect("source tree")
}

/// The two C libraries, built as they are shipped: release profile, without the Rust library.
pub struct Artifacts {
    /// Directory of `libjitsym.so`, with its soname link.
    pub shared_dir: PathBuf,
    /// `libjitsym.a`.
    pub static_lib: PathBuf,
}

/// Makes something that several tests use, once in a run of all tests: `cargo xtask test` gives each test a process, and names the
/// run in `JITSYM_TEST_RUN`. Without that name the run is this process. `made` is a path below the target directory; what was made
/// in another way, `how`, is made again.
pub fn once(made: &Path, how: &str, make: impl FnOnce()) {
    let beside = |end: &str| {
        let mut path = made.as_os_str().to_owned();
        path.push(end);
        PathBuf::from(path)
    };
    let run = std::env::var("JITSYM_TEST_RUN").unwrap_or_else(|_| std::process::id().to_string());
    let this = format!("{run} {how}");
    let _lock = lock(&beside(".lock"));
    let stamp = beside(".made");
    if std::fs::read_to_string(&stamp).is_ok_and(|last| last == this) {
        return;
    }
    let _ = std::fs::remove_file(&stamp);
    make();
    std::fs::write(&stamp, this).expect("note what was made");
}

/// Whether all is run, and not each promise once: older and newer versions of a tool too, and long searches.
pub fn thorough() -> bool {
    std::env::var("JITSYM_TEST_TIER").is_ok_and(|tier| tier == "all")
}

/// The installed version of a tool; in a thorough run those of newer suites of Debian too, which `cargo xtask tool` knows.
pub fn versions(command: &str) -> Vec<PathBuf> {
    let newer = ["trixie", "sid"].into_iter().filter(|_| thorough());
    std::iter::once(command.into()).chain(newer.map(|suite| fetched(&format!("{suite}/{command}")))).collect()
}

/// Held until it is dropped, by one thread of one process.
pub fn lock(path: &Path) -> File {
    let file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // SAFETY: the descriptor is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(locked, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
    file
}

/// Locks all of a file for writing as the library does, or for reading, as everybody may who can read it (fcntl(2), `F_OFD_SETLK`).
pub fn lock_range(file: &File, kind: i32) -> bool {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    let range = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open, and the pointer valid.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}

/// Builds the C libraries; cargo decides whether there is anything to do.
pub fn artifacts() -> &'static Artifacts {
    static BUILT: OnceLock<Artifacts> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = root().join("target/c");
        let shared_dir = dir.join("release");
        let static_lib = shared_dir.join("sealed/libjitsym.a");
        std::fs::create_dir_all(shared_dir.join("sealed")).expect("directory of the static library");
        once(&shared_dir.join("libraries"), "", || {
            let mut cargo = cargo();
            cargo.args(["rustc", "--quiet", "--locked", "--release", "--lib", "--features", "reserve"]);
            run(cargo.args(["--crate-type", "cdylib,staticlib", "--target-dir"]).arg(&dir));
            let _ = std::os::unix::fs::symlink("libjitsym.so", shared_dir.join("libjitsym.so.0.1"));
            // As it is installed: see scripts/seal.sh.
            run(Command::new("sh")
                .arg(root().join("scripts/seal.sh"))
                .arg(shared_dir.join("libjitsym.a"))
                .arg(&static_lib));
        });
        Artifacts { shared_dir, static_lib }
    })
}

/// cargo, in the source tree.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root());
    cargo
}

/// The program `jitsym`. `cargo xtask test` has built it, and says where it is.
pub fn tool() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = std::env::var_os("JITSYM_TEST_TOOL") {
            return built.into();
        }
        let dir = root().join("target/tool");
        run(cargo().args(["build", "--quiet", "--locked", "--package", "jitsym-tool", "--target-dir"]).arg(&dir));
        dir.join("debug/jitsym")
    })
}

/// A program that `cargo xtask tool` prepares, or the directory where it unpacks packages.
pub fn fetched(name: &str) -> PathBuf {
    let mut command = match std::env::var_os("JITSYM_TEST_XTASK") {
        Some(built) => Command::new(built),
        None => {
            let mut cargo = cargo();
            cargo.arg("xtask");
            cargo
        }
    };
    PathBuf::from(stdout(&run(command.args(["tool", name]))).trim())
}

/// System libraries that a program needs beside `libjitsym.a`.
pub const STATIC_LIBS: &[&str] = &["-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// How a C program is linked with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Shared,
    Static,
    /// Not at all: the program uses `dlopen`.
    None,
}

/// Compiles C or C++ sources (below the root) to a program that all tests share.
pub fn compile(compiler: &str, sources: &[&str], link: Link, flags: &[&str], name: &str) -> PathBuf {
    let how = format!("{compiler} {sources:?} {link:?} {flags:?}");
    // Another test may call another program so.
    let dir = shared_dir(format!("bin/{:016x}", BuildHasherDefault::<DefaultHasher>::default().hash_one(&how)));
    let (program, out) = (dir.join("program"), dir.join(name));
    // And this one otherwise.
    once(&program, &how, || compile_to(&program, compiler, sources, link, flags));
    once(&out, &how, || {
        let _ = std::fs::remove_file(&out);
        std::fs::hard_link(&program, &out).expect("another name of the program");
    });
    out
}

fn compile_to(out: &Path, compiler: &str, sources: &[&str], link: Link, flags: &[&str]) {
    let mut command = Command::new(compiler);
    command.current_dir(root()).args(["-g", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Ic-tests/support"]);
    command.args(flags).args(sources).arg("-o").arg(out);
    match link {
        Link::Shared => {
            let dir = artifacts().shared_dir.display().to_string();
            // The old kind of rpath wins over LD_LIBRARY_PATH, in which cargo names directories with other builds.
            command.args([format!("-L{dir}"), "-ljitsym".into(), format!("-Wl,--disable-new-dtags,-rpath,{dir}")]);
        }
        Link::Static => {
            command.arg(&artifacts().static_lib).args(STATIC_LIBS);
        }
        Link::None => {
            command.arg("-ldl");
        }
    }
    command.args(["-lpthread"]);
    run(&mut command);
}

/// A plugin with the static library inside (c-tests/support/plugin.c), which shows nothing of it.
pub fn plugin(out: &Path) {
    let mut compiler = Command::new("gcc");
    compiler.current_dir(root()).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-fPIC", "-shared"]);
    compiler.args(["-fvisibility=hidden", "-Wl,--exclude-libs,ALL", "c-tests/support/plugin.c"]);
    run(compiler.arg(&artifacts().static_lib).args(STATIC_LIBS).arg("-o").arg(out));
}

/// Runs a command to its end and returns its output; anything but success fails the test with all that it printed.
pub fn run(command: &mut Command) -> Output {
    let output = try_run(command);
    assert!(output.status.success(), "{}", describe(command, &output));
    output
}

/// Runs a command to its end, whatever its exit status. A command that cannot be started fails the test.
pub fn try_run(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("cannot start {:?}: {error}", command.get_program()),
    }
}

/// Whether the tests run as root. A test that needs that returns if not, and is counted as skipped: the runner looks for this line.
pub fn is_root(to_do_what: &str) -> bool {
    // SAFETY: a system call without arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("skipped: needs root to {to_do_what}");
    }
    is_root
}

/// Whether namespaces of these kinds (options of `unshare`) are to be had; the same otherwise.
pub fn may_unshare(kinds: &[&str]) -> bool {
    let allowed = try_run(Command::new("unshare").args(kinds).arg("true")).status.success();
    if !allowed {
        println!("skipped: needs root to make namespaces");
    }
    allowed
}

/// Runs a program (its file) with the rights of another group, as one does that is installed setgid. That takes root.
pub fn run_privileged(program: &Path, complete: impl FnOnce(&mut Command)) -> Output {
    let copy = scratch_dir("privileged").join(program.file_name().expect("program"));
    std::fs::copy(program, &copy).expect("copy the program");
    chown(&copy, None, Some(65534)).expect("give the program to another group");
    std::fs::set_permissions(&copy, Permissions::from_mode(0o2755)).expect("setgid");
    let mut command = Command::new(&copy);
    complete(&mut command);
    let output = run(&mut command);
    std::fs::remove_file(copy).expect("remove the copy");
    output
}

/// What `env` is given for perf. perf 6.1 writes to an addr2line that may have ended: it cannot read a mapping such as `//anon`.
pub fn perf_words(subcommand: &str) -> &'static [&'static str] {
    if subcommand == "script" {
        &["--ignore-signal=PIPE", "perf"]
    } else {
        &["perf"]
    }
}

/// Command, status and everything printed, for messages.
pub fn describe(command: &Command, output: &Output) -> String {
    format!(
        "{command:?}: {}\n--- stdout\n{}\n--- stderr\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Headers as parsers of FFI libraries take them: declarations alone.
pub fn plain_headers(names: &[&str]) -> PathBuf {
    let header = scratch_dir("header").join(names.join("+"));
    let mut shell = Command::new("sh");
    shell.current_dir(root().join("include")).args(["-euc", "cat \"$@\" | grep -v '^#include' | cc -E -P -", "sh"]);
    std::fs::write(&header, stdout(&run(shell.args(names)))).expect("write the header");
    header
}

/// A directory for the tests of this program, for what they make `once`.
pub fn shared_dir(name: impl AsRef<OsStr>) -> PathBuf {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_stem()).unwrap_or(OsStr::new("test"));
    below(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(program), name)
}

/// A directory for this test: `cargo xtask test` says where, and removes it. Otherwise the test's thread says which test it is.
pub fn scratch_dir(name: impl AsRef<OsStr>) -> PathBuf {
    match std::env::var_os("JITSYM_TEST_DIR") {
        Some(dir) => below(Path::new(&dir), name),
        None => {
            let thread = std::thread::current();
            below(&shared_dir(thread.name().unwrap_or("test").replace("::", "-")), name)
        }
    }
}

fn below(dir: &Path, name: impl AsRef<OsStr>) -> PathBuf {
    let dir = dir.join(name.as_ref());
    std::fs::create_dir_all(&dir).expect("scratch directory");
    dir
}

/// The same, without what a run before has left in it.
pub fn fresh_dir(name: impl AsRef<OsStr>) -> PathBuf {
    let dir = scratch_dir(name);
    std::fs::remove_dir_all(&dir).expect("empty the scratch directory");
    std::fs::create_dir_all(&dir).expect("scratch directory");
    dir
}

/// In the environment of a program that is recorded: how many times as long as usual it burns.
pub const PACE: &str = "TEST_PACE";

/// Makes a recording with enough samples. Their number depends on the machine: on its clock, its speed, and its other work. So a
/// recording with too few is made again of a program that runs longer: `record` is given how many times as long, and returns the
/// number of samples too.
pub fn until_enough<T>(wanted: usize, mut record: impl FnMut(u32) -> (T, usize)) -> T {
    let mut pace = 1;
    loop {
        let (recording, count) = record(pace);
        if count >= wanted {
            return recording;
        }
        println!("{count} samples at pace {pace}, {wanted} wanted");
        assert!(pace < 100, "{count} samples at pace {pace}, {wanted} wanted");
        pace *= (2 * wanted).div_ceil(count.max(1)).clamp(2, 10) as u32;
    }
}

/// Tests that measure time shares hold this, so that they do not disturb each other.
pub fn serial() -> File {
    lock(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("serial.lock"))
}
