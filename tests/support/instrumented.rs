//! The library itself, and not only the programs that call it, built for the tools that look for races and memory errors.
//!
//! The compiler is the stable one: it brings the runtimes of the sanitizers. The standard library is not instrumented.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::{cargo, once, root, run, scratch_dir, shared_dir, stdout, STATIC_LIBS};

/// A build of the static library, and how programs are linked with it.
pub struct Build {
    name: &'static str,
    opt_level: &'static str,
    /// For the Rust compiler.
    flags: &'static [&'static str],
    /// For the C compiler.
    c_flags: &'static [&'static str],
    /// The sanitizer's runtime, as Rust calls it.
    runtime: Option<&'static str>,
    built: OnceLock<PathBuf>,
}

pub static THREAD: Build = Build {
    name: "thread",
    opt_level: "1",
    flags: &["-Zsanitizer=thread", "-Cunsafe-allow-abi-mismatch=sanitizer", "--cfg=jitsym_locks"],
    // An exception leaves functions, of which ThreadSanitizer keeps a stack.
    c_flags: &["-O1", "-fsanitize=thread", "-fno-omit-frame-pointer", "-fexceptions"],
    runtime: Some("tsan"),
    built: OnceLock::new(),
};

/// The runtime contains that of UndefinedBehaviorSanitizer.
pub static ADDRESS: Build = Build {
    name: "address",
    // In half the time.
    opt_level: "0",
    flags: &["-Zsanitizer=address", "-Cunsafe-allow-abi-mismatch=sanitizer"],
    c_flags: SANITIZE,
    runtime: Some("asan"),
    built: OnceLock::new(),
};

pub static VALGRIND: Build = Build {
    name: "valgrind",
    // So that the names of the functions by which atomics are accessed are in the stacks.
    opt_level: "0",
    flags: &["--cfg=jitsym_locks"],
    c_flags: &["-O1"],
    runtime: None,
    built: OnceLock::new(),
};

/// Before a program. ThreadSanitizer uses addresses that the kernel may have put something else at.
pub const SAME_ADDRESSES: &[&str] = &["setarch", "-R"];

/// What ThreadSanitizer cannot know.
///
/// `Arc`: it orders the end of its value by a fence (`atomic::fence`), which ThreadSanitizer does not understand; the standard
/// library has another way for that, but not in the build that compilers come with.
const THREAD_SUPPRESSIONS: &str = "race:alloc::sync::Arc*drop_slow\n";

/// `TSAN_OPTIONS`.
pub fn thread_options() -> String {
    let suppressions = scratch_dir("suppressions").join("thread");
    std::fs::write(&suppressions, THREAD_SUPPRESSIONS).expect("write the suppressions");
    format!("suppressions='{}'", suppressions.display())
}

/// Makes undefined behaviour end the program, with a stack that is worth reading.
pub const SANITIZE: &[&str] =
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

/// Sanitizers are for a target that is named.
fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

impl Build {
    /// Builds the library and returns its path.
    fn library(&self) -> &Path {
        self.built.get_or_init(|| {
            let dir = root().join("target").join(format!("races-{}", self.name));
            let library = dir.join(target()).join("release/libjitsym.a");
            std::fs::create_dir_all(&dir).expect("directory of the library");
            once(&dir.join("library"), "", || {
                let mut cargo = cargo();
                cargo.args(["rustc", "--quiet", "--locked", "--release", "--lib"]);
                // The feature that is for an archive as rustc writes it.
                cargo
                    .args(["--features", "capi", "--crate-type", "staticlib", "--target", &target(), "--target-dir"])
                    .arg(&dir);
                // Sanitizers are not stable yet.
                cargo
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("RUSTFLAGS", self.flags.join(" "))
                    .env_remove("CARGO_ENCODED_RUSTFLAGS");
                // Quick to build, and nothing is inlined that should be seen in a report.
                cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "4");
                run(cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", self.opt_level));
            });
            library
        })
    }

    /// Compiles a C or C++ program (below the root) with it, of sources and of libraries (`-lNAME`, or a path).
    pub fn program(&self, compiler: &str, sources: &[&str]) -> PathBuf {
        let program = self.path(sources[0]);
        let library = self.library();
        once(&program, &format!("{compiler} {sources:?}"), || self.link(compiler, sources, library, &program));
        program
    }

    fn path(&self, source: &str) -> PathBuf {
        shared_dir("bin").join(format!("{}-{}", source.replace('/', "-"), self.name))
    }

    fn link(&self, compiler: &str, sources: &[&str], library: &Path, program: &Path) {
        // Linked with the runtime of the Rust compiler: there can be only one.
        let mut link = Command::new(compiler);
        link.args(["-pie", "-rdynamic"]);
        let (libraries, sources): (Vec<&str>, Vec<&str>) =
            sources.iter().partition(|word| word.starts_with("-l") || word.contains(".so"));
        for source in &sources {
            let object = program.with_extension(format!("{}.o", source.replace('/', "-")));
            let mut command = Command::new(compiler);
            command.current_dir(root()).args(["-g", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-Ic-tests/support"]);
            run(command.args(["-fPIE", "-c"]).args(self.c_flags).arg(source).arg("-o").arg(&object));
            link.arg(object);
        }
        link.arg(library).args(libraries);
        if let Some(name) = self.runtime {
            let sysroot = stdout(&run(Command::new("rustc").current_dir(root()).args(["--print", "sysroot"])));
            let lib = Path::new(sysroot.trim()).join("lib/rustlib").join(target()).join("lib");
            let runtime = lib.join(format!("librustc-stable_rt.{name}.a"));
            assert!(runtime.exists(), "this Rust toolchain has no {}", runtime.display());
            link.arg("-Wl,--whole-archive").arg(runtime).arg("-Wl,--no-whole-archive");
        }
        run(link.args(STATIC_LIBS).arg("-o").arg(program));
    }
}
