//! The library on other machines than this one: it is built for them, the C tests run under qemu's emulation, and code is
//! registered whose call stacks a debugger then finds by the tables in the jitdump, at each instruction.
//!
//! The compiler and the emulator are fetched by `cargo xtask tool`; the C and C++ compilers are those of the Debian packages
//! `gcc-aarch64-linux-gnu` and `g++-aarch64-linux-gnu`. aarch64 belongs to all tests. riscv64 is for those who have
//! `gcc-riscv64-linux-gnu` and `g++-riscv64-linux-gnu`: `cargo xtask test cross::`.

mod signed;
mod trampolines;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::cfi;
use object::{Object, ObjectSymbol};

use crate::support::{
    cargo, checker, describe, fetched, genelf, once, readelf, root, run, scratch_dir, shared_dir, stdout, try_run,
    Link, STATIC_LIBS,
};

/// A machine that is emulated.
struct Target {
    /// As qemu calls it.
    arch: &'static str,
    triple: &'static str,
    /// What the names of the C compiler's programs and of its directory begin with.
    gnu: &'static str,
    /// `e_machine`.
    machine: u16,
    /// For code as those compilers make it that know no compressed instructions.
    flags: &'static [&'static str],
    built: OnceLock<Built>,
}

/// What programs for it are made with and run by.
struct Built {
    qemu: PathBuf,
    libraries: PathBuf,
}

static AARCH64: Target = Target {
    arch: "aarch64",
    triple: "aarch64-unknown-linux-gnu",
    gnu: "aarch64-linux-gnu",
    machine: 183,
    flags: &[],
    built: OnceLock::new(),
};
static RISCV64: Target = Target {
    arch: "riscv64",
    triple: "riscv64gc-unknown-linux-gnu",
    gnu: "riscv64-linux-gnu",
    machine: 243,
    flags: &["-march=rv64g"],
    built: OnceLock::new(),
};
static S390X: Target = Target {
    arch: "s390x",
    triple: "s390x-unknown-linux-gnu",
    gnu: "s390x-linux-gnu",
    machine: 22,
    flags: &[],
    built: OnceLock::new(),
};
static I386: Target = Target {
    arch: "i386",
    triple: "i686-unknown-linux-gnu",
    gnu: "i686-linux-gnu",
    machine: 3,
    flags: &[],
    built: OnceLock::new(),
};
static ARMHF: Target = Target {
    arch: "arm",
    triple: "armv7-unknown-linux-gnueabihf",
    gnu: "arm-linux-gnueabihf",
    machine: 40,
    flags: &["-marm", "-g"],
    built: OnceLock::new(),
};
static PPC64LE: Target = Target {
    arch: "ppc64le",
    triple: "powerpc64le-unknown-linux-gnu",
    gnu: "powerpc64le-linux-gnu",
    machine: 21,
    flags: &[],
    built: OnceLock::new(),
};

impl Target {
    fn built(&self) -> &Built {
        self.built.get_or_init(|| {
            let qemu = fetched(&format!("qemu-{}", self.arch));
            let dir = root().join("target/c-cross");
            let libraries = dir.join(self.triple).join("release");
            std::fs::create_dir_all(&dir).expect("directory of the libraries");
            once(&dir.join(self.triple).with_extension("libraries"), "", || {
                let mut cargo = cargo();
                cargo.env("RUSTC", qemu.with_file_name("rustc"));
                let linker = format!("CARGO_TARGET_{}_LINKER", self.triple.replace('-', "_").to_uppercase());
                cargo.env(linker, self.compiler());
                cargo.args(["rustc", "--quiet", "--locked", "--release", "--lib", "--features", "reserve"]);
                // In one go, which takes two thirds of the time.
                cargo.args(["--crate-type", "cdylib,staticlib", "--target", self.triple, "--target-dir"]).arg(&dir);
                run(&mut cargo);
                // As it is installed: see scripts/seal.sh.
                let tool = |name: &str| format!("{}-{name}", self.gnu);
                let mut seal = Command::new("sh");
                seal.env("LD", tool("ld")).env("OBJCOPY", tool("objcopy")).env("AR", tool("ar"));
                seal.arg(root().join("scripts/seal.sh")).arg(libraries.join("libjitsym.a"));
                run(seal.arg(libraries.join("libjitsym-sealed.a")));
                let _ = std::os::unix::fs::symlink("libjitsym.so", libraries.join("libjitsym.so.0.1"));
            });
            Built { qemu, libraries }
        })
    }

    fn is_big_endian(&self) -> bool {
        self.machine == 22
    }

    /// `jitsym check` finds nothing in the files of a directory, except what is allowed.
    fn assert_sound(&self, dir: &Path, allowed: &[&str]) -> usize {
        let order: &[&str] = if self.is_big_endian() { &["byte-order"] } else { &[] };
        checker::assert_all_sound(dir, &[allowed, order].concat())
    }

    /// A number of 32 bits as the machine stores it.
    fn number(&self, value: u16) -> [u8; 4] {
        if self.is_big_endian() {
            u32::from(value).to_be_bytes()
        } else {
            u32::from(value).to_le_bytes()
        }
    }

    fn compiler(&self) -> String {
        format!("{}-gcc", self.gnu)
    }

    /// Where the loader and the libraries of the C compiler's packages lie.
    fn sysroot(&self) -> String {
        format!("/usr/{}", self.gnu)
    }

    fn scratch(&self, name: &str) -> PathBuf {
        scratch_dir(format!("{}-{name}", self.arch))
    }

    /// Compiles a program. `whole`: without any shared library.
    fn compile(&self, sources: &[&Path], link: Link, whole: bool, name: &str) -> PathBuf {
        let out = shared_dir(format!("{}-bin", self.arch)).join(name);
        let mut gcc = self.compilation(sources, link, whole, &out);
        once(&out, &format!("{gcc:?}"), || drop(run(&mut gcc)));
        out
    }

    /// The command that compiles a program.
    fn compilation(&self, sources: &[&Path], link: Link, whole: bool, out: &Path) -> Command {
        let libraries = self.built().libraries.display().to_string();
        let mut gcc = Command::new(self.compiler());
        gcc.current_dir(root()).args(["-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]);
        // On 32-bit machines, directories of some file systems cannot be read otherwise.
        gcc.args(["-D_FILE_OFFSET_BITS=64", "-Iinclude", "-Ic-tests/support"]).args(sources).arg("-o").arg(out);
        match link {
            Link::Shared => {
                gcc.args([format!("-L{libraries}"), "-ljitsym".into()]);
                gcc.arg(format!("-Wl,--disable-new-dtags,-rpath,{libraries}"));
            }
            _ => {
                gcc.arg(format!("{libraries}/libjitsym-sealed.a"));
                gcc.args(whole.then_some("-static")).args(STATIC_LIBS);
            }
        }
        // Which gcc asks for by itself, but not on armhf.
        gcc.args(["-Wl,--eh-frame-hdr", "-lpthread"]);
        gcc
    }

    /// A program, with an end, and a directory for its files as its argument.
    fn emulated(&self, options: &[&str], program: &Path, dir: &Path) -> Command {
        empty(dir);
        let mut command = Command::new(&self.built().qemu);
        // This machine's own configuration may lead the loader to other libraries of the emulated machine.
        command.args(["-L", &self.sysroot(), "-E", &format!("LD_LIBRARY_PATH={}/lib", self.sysroot())]);
        command.args(options).arg(program).arg(dir);
        command
    }

    /// The same program without an emulator: Linux on x86-64 runs programs of i386. `whole` as for `compile`.
    fn native(&self, program: &Path, whole: bool, dir: &Path) -> Command {
        empty(dir);
        if whole {
            let mut command = Command::new(program);
            command.arg(dir);
            return command;
        }
        let libraries = format!("{}/lib", self.sysroot());
        let mut command = Command::new(format!("{libraries}/ld-linux.so.2"));
        command.args(["--library-path", &libraries]).arg(program).arg(dir);
        command
    }

    /// Runs one of the C tests, with its small workload.
    fn check(&self, test: &str, link: Link, whole: bool, allowed: &[&str]) {
        let name = format!("{}-{link:?}{}", test.replace('/', "-"), if whole { "-whole" } else { "" });
        let source = PathBuf::from(format!("c-tests/{test}.c"));
        let program = self.compile(&[&source], link, whole, &name);
        let dir = self.scratch(&name);
        // qemu fails for programs of i386 that cancel a thread, and the library cannot read its own memory there.
        let command =
            if self.arch == "i386" { self.native(&program, whole, &dir) } else { self.emulated(&[], &program, &dir) };
        self.succeeds(command, &dir, allowed);
    }

    /// Runs a C test, and looks at its files.
    fn succeeds(&self, mut command: Command, dir: &Path, allowed: &[&str]) {
        let output = try_run(command.arg("slow"));
        let clean = output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty();
        assert!(clean, "{}", describe(&command, &output));
        self.assert_sound(dir, allowed);
        std::fs::remove_dir_all(dir).expect("remove the directory");
    }

    /// The program that registers code of its own machine.
    fn jit(&self) -> PathBuf {
        let dir = shared_dir(format!("{}-pieces", self.arch));
        let object = |source: &str, flags: &[&str]| {
            let out = dir.join(source).with_extension("o");
            let mut gcc = Command::new(self.compiler());
            gcc.args(["-c", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]).args(flags);
            gcc.arg(root().join("c-tests/cross").join(source)).arg("-o").arg(&out);
            once(&out, "", || drop(run(&mut gcc)));
            out
        };
        let (pieces, compiled) = (object("pieces.S", &[]), object("compiled.c", self.flags));
        self.compile(&[Path::new("c-tests/cross/main.c"), &pieces, &compiled], Link::Shared, false, "jit")
    }

    /// The code in the only jitdump of a directory. `name` gives each piece its name.
    fn dumped(&self, dir: &Path, name: impl Fn(&str) -> &'static str) -> Vec<Piece> {
        let mut files = std::fs::read_dir(dir).expect("directory").flatten().map(|entry| entry.path());
        let dump = files.find(|path| path.extension().is_some_and(|extension| extension == "dump"));
        let bytes = std::fs::read(dump.expect("a jitdump")).expect("read");
        // linux tools/perf/Documentation/jitdump-specification.txt: magic, version, size, elf_mach.
        assert_eq!(bytes[12..16], self.number(self.machine));
        let pieces = cfi::read_dump(&bytes[..]).into_iter().map(|dumped| {
            let name = name(&dumped.name);
            let (eh_frame, hdr, _) = dumped.tables.as_ref().expect("tables");
            let path = dir.join(format!("{name}.so"));
            let object = genelf::object(self.machine, &dumped.code, eh_frame, hdr, name);
            std::fs::write(&path, object).expect("written");
            Piece { name, object: path, range: dumped.range() }
        });
        pieces.collect()
    }

    /// The same of the program `jit`.
    fn dumped_pieces(&self, dir: &Path) -> Vec<Piece> {
        let known = |found: &str| PIECES.iter().find(|(_, name)| found == *name).expect("a known piece").1;
        let pieces = self.dumped(dir, known);
        assert_eq!(pieces.len(), PIECES.len());
        pieces
    }
}

/// Makes a directory, or takes away what is in it.
fn empty(dir: &Path) {
    if dir.exists() {
        std::fs::remove_dir_all(dir).expect("empty the directory");
    }
    std::fs::create_dir_all(dir).expect("directory");
}

/// Where a symbol of a program is.
fn address(program: &Path, symbol: &str) -> u64 {
    let bytes = std::fs::read(program).expect("read");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let symbol = file.symbols().find(|found| found.name() == Ok(symbol));
    symbol.unwrap_or_else(|| panic!("no symbol")).address()
}

/// Where pages are larger than 4 KiB.
fn large_pages(target: &Target) {
    let shim = target.scratch("bin").join("pages.so");
    let mut gcc = Command::new(target.compiler());
    gcc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
    run(gcc.arg(root().join("c-tests/cross/pages.c")).arg("-o").arg(&shim).arg("-ldl"));
    let variable = format!("LD_PRELOAD={}", crate::support::spaceless(&shim).display());
    for test in ["files/files", "calls/late"] {
        let name = format!("{}-large-pages", test.replace('/', "-"));
        let source = PathBuf::from(format!("c-tests/{test}.c"));
        let program = target.compile(&[&source], Link::Shared, false, &name);
        let dir = target.scratch(&name);
        target.succeeds(target.emulated(&["-E", &variable], &program, &dir), &dir, &[]);
    }
}

/// Code of a jitdump, and the file that perf would make of it.
struct Piece {
    name: &'static str,
    object: PathBuf,
    range: Range<u64>,
}

/// In the order in which they call each other: what they are called in the program, and as registered code.
const PIECES: [(&str, &str); 6] = [
    ("compiled", "jit_compiled"),
    ("framed", "jit_framed"),
    // The same once more, with the tables of the assembler.
    ("framed", "jit_ready"),
    ("rows", "jit_rows"),
    ("entry", "jit_entry"),
    ("fixed", "jit_fixed"),
];

/// What of the CIE has to be the same, whoever has made it. In which units it counts is each producer's own affair, and where the
/// CFA is in the beginning is to be seen in the rows.
fn common(path: &Path) -> Vec<String> {
    let output = readelf::tool("readelf", "--debug-dump=frames", path);
    let cie = output.lines().skip_while(|line| !line.ends_with(" CIE")).take_while(|line| !line.contains(" FDE "));
    let common = cie.filter(|line| line.contains("Augmentation:") || line.contains("Return address column:"));
    common.take(2).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The tables of registered code say what the assembler says of the same code, and `llvm-dwarfdump` reads them.
fn tables(target: &Target) {
    let program = target.jit();
    let dir = target.scratch("tables");
    let mut command = target.emulated(&[], &program, &dir);
    let output = run(&mut command);
    assert_eq!(stdout(&output), "ok\n", "{}", describe(&command, &output));
    assert_eq!(target.assert_sound(&dir, &[]), 2);

    for piece in target.dumped_pieces(&dir) {
        let (original, _) = PIECES.iter().find(|(_, name)| *name == piece.name).expect("a known piece");
        assert_eq!(common(&piece.object), common(&program), "{}", piece.name);
        assert_eq!(common(&piece.object).len(), 2);
        let rows = readelf::rows(&piece.object, genelf::TEXT);
        assert!(rows.len() >= 2, "{}: {rows:?}", piece.name);
        // Of frame pointers on riscv64 the library knows less: see `jitsym_unwind.fp_pushed`. gcc counts from the stack
        // pointer on aarch64, which comes to the same: the debugger will see.
        let is_told_so = *original != "compiled" && !(piece.name == "jit_framed" && target.machine == 243);
        if is_told_so {
            let expected = readelf::rows(&program, address(&program, &format!("{original}_begin")));
            assert_eq!(rows, expected, "{}", piece.name);
        }
        let output = readelf::tool("llvm-dwarfdump", "--eh-frame", &piece.object);
        assert!(output.contains("FDE cie=00000000 pc=00000080..."), "{output}");
    }
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// A debugger in a conversation.
struct Debugger {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Debugger {
    fn start(program: &Path) -> Debugger {
        let mut command = Command::new("gdb-multiarch");
        command.args(["-nx", "-q", "-ex", "set prompt"]).arg(program);
        command.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("gdb-multiarch");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Debugger { child, output }
    }

    /// Gives commands, and returns what has been printed until they were done.
    fn say(&mut self, commands: &str) -> String {
        let input = self.child.stdin.as_mut().expect("its input");
        writeln!(input, "{commands}\necho \\n@said\\n").expect("gdb listens");
        let mut printed = String::new();
        while self.output.read_line(&mut printed).expect("gdb answers") > 0 {
            if printed.ends_with("\n@said\n") {
                return printed;
            }
        }
        panic!("gdb has ended: {printed}");
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that ends with this.
struct Emulated {
    child: Child,
    socket: PathBuf,
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The names of the functions of a `bt`, the innermost first.
fn functions(backtrace: &str) -> Vec<&str> {
    fn name(line: &str) -> Option<&str> {
        let rest = line.split_once(' ')?.1.trim_start();
        let rest = if rest.starts_with("0x") { rest.split_once(" in ")?.1 } else { rest };
        Some(&rest[..rest.find(" (")?])
    }
    backtrace.lines().filter(|line| line.starts_with('#')).map(|line| name(line).unwrap_or("?")).collect()
}

/// The address in a line of `disassemble`.
fn listed_address(line: &str) -> Option<u64> {
    let text = line.trim_start_matches("=>").trim_start().strip_prefix("0x")?;
    u64::from_str_radix(text.split([' ', ':']).next()?, 16).ok()
}

/// Who is to be on the stack when a function is the innermost: what `fixed` does is done in the frame of `entry`.
fn expected(innermost: &str) -> Vec<&str> {
    let mut stack = vec!["main", "run"];
    stack.extend(PIECES.map(|(_, name)| name));
    stack.push("reached");
    let depth = stack.iter().position(|name| *name == innermost).expect("a known function");
    stack.truncate(depth + 1);
    if depth > 6 {
        stack.remove(6);
    }
    stack.reverse();
    stack
}

/// Where gdb gets names and tables of registered code from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The files that perf would make of the jitdump.
    Files,
    /// The objects of the library's sink for gdb.
    Sink,
}

/// Starts a program under a debugger, which stops the program at its first instruction. The debugger finds our library only if
/// `source` is the sink in it.
fn debugged(
    target: &Target,
    program: &Path,
    dir: &Path,
    source: Source,
    prepare: impl FnOnce(&mut Command),
) -> (Emulated, Debugger) {
    // A socket's name has to be short.
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name");
    let socket = format!("jitsym-{}-{name}-{source:?}-{}.gdb", target.arch, std::process::id());
    let socket = std::env::temp_dir().join(socket);
    let mut command = target.emulated(&["-g", socket.to_str().expect("path")], program, dir);
    prepare(&mut command);
    let emulated = Emulated { child: command.stdout(Stdio::piped()).spawn().expect("started"), socket: socket.clone() };
    crate::support::wait_until("a socket of qemu", || socket.exists());
    let mut gdb = Debugger::start(program);
    gdb.say("set pagination off\nset confirm off\nset width 0\nset debuginfod enabled off\nset style enabled off");
    let libraries = target.built().libraries.display().to_string();
    let beside = if source == Source::Sink { libraries } else { String::new() };
    gdb.say(&format!("set sysroot /nonexistent\nset solib-search-path {}/lib:{beside}", target.sysroot()));
    gdb.say(&format!("target remote {}", socket.display()));
    (emulated, gdb)
}

/// Gives gdb the files that perf would make of a dump. Only the code is moved to its address: the tables of a trampoline's file
/// would otherwise cover the next trampoline.
fn add_symbols(gdb: &mut Debugger, pieces: &[Piece]) -> String {
    let add = |piece: &Piece| gdb.say(&format!("add-symbol-file {} {:#x}", piece.object.display(), piece.range.start));
    pieces.iter().map(add).collect()
}

/// gdb finds the way from each instruction of the registered code to `main`, with one source and with nothing else.
fn debugger(target: &Target, source: Source) {
    let program = target.jit();
    let dir = target.scratch(if source == Source::Files { "debugger" } else { "sink" });
    let (mut emulated, mut gdb) = debugged(target, &program, &dir, source, |command| {
        if source == Source::Sink {
            command.arg("gdb");
        }
    });
    let printed = gdb.say("break ready\nbreak reached\ncontinue");
    assert!(printed.contains("ready ("), "{printed}");
    let printed = gdb.say("continue\nbt\ncontinue");
    // By itself it does not find the way.
    let finds_the_way = functions(&printed).contains(&"run");
    assert!(printed.contains("reached (") && finds_the_way == (source == Source::Sink), "{printed}");

    let pieces = target.dumped_pieces(&dir);
    let mut printed = match source {
        Source::Files => add_symbols(&mut gdb, &pieces),
        Source::Sink => String::new(),
    };
    let first = pieces.iter().map(|piece| piece.range.start).min().expect("pieces");
    let last = pieces.iter().map(|piece| piece.range.end).max().expect("pieces");
    printed += &gdb.say(&format!("delete\ntbreak *{first:#x}\ncontinue"));
    printed += &gdb.say(&format!(
        "set $steps = 0\nwhile $steps < 200\nprintf \"@step %lx\\n\", $pc\nbt\nstepi\n\
         if (unsigned long)$pc == (unsigned long)&reached\nprintf \"@step %lx\\n\", $pc\nbt\nfinish\nend\n\
         if $pc < {first:#x} || $pc >= {last:#x}\nloop_break\nend\nset $steps = $steps + 1\nend"
    ));
    let mut seen = BTreeSet::new();
    for step in printed.split("@step ").skip(1) {
        let pc = u64::from_str_radix(step.lines().next().unwrap_or_default(), 16).expect("an address");
        let found = functions(step);
        let innermost = pieces.iter().find(|piece| piece.range.contains(&pc)).map_or("reached", |piece| piece.name);
        assert_eq!(found, expected(innermost), "at {pc:#x}: {step}");
        seen.insert(pc);
    }
    // No instruction is left out, and `reached` was.
    let listed = |piece: &Piece| format!("disassemble {:#x},{:#x}", piece.range.start, piece.range.end);
    let listed: Vec<String> = pieces.iter().map(|piece| gdb.say(&listed(piece))).collect();
    let code: Vec<u64> = listed.iter().flat_map(|text| text.lines().filter_map(listed_address)).collect();
    assert!(code.len() >= 6 * pieces.len(), "{listed:?}");
    assert_eq!(seen.len(), code.len() + 1, "{printed}");
    assert!(code.iter().all(|pc| seen.contains(pc)), "{printed}");

    gdb.say("delete\ncontinue");
    let status = emulated.child.wait().expect("waited for");
    assert!(status.success(), "{status}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// The tests of a machine.
macro_rules! machine {
    ($machine:ident, $target:ident, $(#[$ignored:meta])?) => {
        mod $machine {
            use super::*;

            machine! { @programs $target, [$(#[$ignored])?]
                abi, "calls/abi", Shared, false, &[];
                abi_static, "calls/abi", Static, false, &[];
                // Tables for a part of the code only.
                bad_input, "calls/bad_input", Shared, false, &["unwind-fde-range"];
                // MOVE records and Android's dialect, which have to be asked for.
                life, "calls/life", Shared, false, &["code-move", "map-0x"];
                life_static, "calls/life", Static, true, &["code-move", "map-0x"];
                threads, "calls/threads", Shared, false, &[];
                stable, "calls/stable", Shared, false, &[];
                files, "files/files", Shared, false, &[];
                host, "host/host", Shared, false, &[];
                panics, "host/panic", Shared, false, &[];
                late, "calls/late", Shared, false, &[];
                fork, "fork/fork", Shared, false, &[];
                // MOVE records, which have to be asked for.
                fork_child, "fork/fork_child", Shared, false, &["code-move"];
                ends, "ends/ends", Shared, false, &[];
            }

            #[test]
            $(#[$ignored])?
            fn tables() {
                super::tables(&$target);
            }
        }
    };
    (@programs $target:ident, $ignored:tt $($name:ident, $test:literal, $link:ident, $whole:literal, $allowed:expr;)*) => {$(
        machine! { @program $target, $ignored, $name, $test, $link, $whole, $allowed }
    )*};
    (@program $target:ident, [$(#[$ignored:meta])?], $name:ident, $test:literal, $link:ident, $whole:literal, $allowed:expr) => {
        #[test]
        $(#[$ignored])?
        fn $name() {
            $target.check($test, Link::$link, $whole, $allowed);
        }
    };
}

/// The tests with gdb. On ppc64le, gdb goes from frame to frame without tables, and leaves out instructions of single steps.
macro_rules! debuggers {
    ($machine:ident, $target:ident, $(#[$ignored:meta])?) => {
        mod $machine {
            use super::*;

            #[test]
            $(#[$ignored])?
            fn debugger() {
                super::debugger(&$target, Source::Files);
            }

            #[test]
            $(#[$ignored])?
            fn gdb_sink() {
                super::debugger(&$target, Source::Sink);
            }
        }
    };
}

/// The tests of trampolines, where the library makes them.
macro_rules! trampolines {
    ($machine:ident, $target:ident, $(#[$ignored:meta])?) => {
        mod $machine {
            use super::*;

            #[test]
            $(#[$ignored])?
            fn trampolines() {
                $target.check("trampolines/calls", Link::Shared, false, &[]);
            }

            #[test]
            $(#[$ignored])?
            fn trampolines_in_gdb() {
                super::trampolines::in_gdb(&$target);
            }

            #[test]
            $(#[$ignored])?
            fn exceptions_through_trampolines() {
                super::trampolines::exceptions(&$target);
            }

            #[test]
            $(#[$ignored])?
            fn random_functions() {
                super::trampolines::random_functions(&$target);
            }
        }
    };
}

/// The tests of machines whose pages may be larger than 4 KiB.
macro_rules! large_pages {
    ($machine:ident, $target:ident, $(#[$ignored:meta])?) => {
        mod $machine {
            #[test]
            $(#[$ignored])?
            fn large_pages() {
                super::large_pages(&super::$target);
            }
        }
    };
}

machine! { aarch64, AARCH64, }
debuggers! { aarch64_debuggers, AARCH64, }
trampolines! { aarch64_trampolines, AARCH64, }
large_pages! { aarch64_pages, AARCH64, }
machine! { s390x, S390X, }
debuggers! { s390x_debuggers, S390X, }
machine! { i386, I386, }
debuggers! { i386_debuggers, I386, }
machine! { armhf, ARMHF, #[ignore = "wants gcc-arm-linux-gnueabihf; for those who change what depends on the machine"] }
debuggers! { armhf_debuggers, ARMHF, #[ignore = "wants gcc-arm-linux-gnueabihf; for those who change what depends on the machine"] }
machine! { ppc64le, PPC64LE, #[ignore = "wants gcc-powerpc64le-linux-gnu; for those who change what depends on the machine"] }
large_pages! { ppc64le_pages, PPC64LE, #[ignore = "wants gcc-powerpc64le-linux-gnu; for those who change what depends on the machine"] }
machine! { riscv64, RISCV64, #[ignore = "wants gcc-riscv64-linux-gnu; for those who change what depends on the machine"] }
debuggers! { riscv64_debuggers, RISCV64, #[ignore = "wants gcc-riscv64-linux-gnu; for those who change what depends on the machine"] }
trampolines! { riscv64_trampolines, RISCV64, #[ignore = "wants gcc-riscv64-linux-gnu; for those who change what depends on the machine"] }
