//! Packages that users install by pip, npm, cargo and Conan, with nothing else of the project on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bindings::{python_env, with_library};
use crate::installed::*;
use crate::perf;
use crate::support::{
    cargo, checker, fresh_dir, is_root, root, run, run_privileged, spaceless, stdout, until_enough, TmpFiles, PACE,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The time of all files in a package.
const TIME: &str = "1700000000";

/// What an archive of a release contains. (The licences of the crates are in archives only.)
fn archive(dir: &Path) -> PathBuf {
    let tree = dir.join("an archive");
    run(Command::new("cp").arg("-a").arg(plain().path(plain().prefix)).arg(&tree));
    let licences = tree.join("share/doc/jitsym");
    fs::create_dir_all(&licences).expect("directory");
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(root().join(name), licences.join(name)).expect("licence");
    }
    fs::write(licences.join("LICENSES-CRATES"), "the crates\n").expect("licences");
    tree
}

/// Has a script of `scripts` make a package twice, and expects the same bytes.
fn made(dir: &Path, script: &str, file: &str, complete: impl Fn(&mut Command, &Path)) -> PathBuf {
    let [one, other] = [("one", "022"), ("the other", "077")].map(|(name, umask)| {
        let out = dir.join(name);
        fs::create_dir(&out).expect("directory");
        let mut shell = consumer("sh");
        shell.args(["-euc", "umask $1; shift; sh \"$@\"", "sh", umask]).arg(root().join("scripts").join(script));
        complete(&mut shell, &out);
        run(shell.env("SOURCE_DATE_EPOCH", TIME).current_dir("/"));
        out.join(file)
    });
    assert!(fs::read(&one).expect("package") == fs::read(other).expect("package"), "{file}: other bytes");
    one
}

/// perf shows the name of a function that a program in another language registers. The program prints its process id, and which
/// libjitsym it has loaded.
fn perf_shows(name: &str, loaded: &Path, program: impl Fn() -> Command) {
    let data = fresh_dir(format!("{name}-perf")).join("perf.data");
    until_enough(10, |pace| {
        let mut record = perf::perf("record");
        record.args(["-q", "-e", "cpu-clock", "-F", "999", "-o"]).arg(&data).arg("--");
        let program = program();
        record.arg(program.get_program()).args(program.get_args()).current_dir(data.parent().expect("directory"));
        let output = stdout(&run(record.env(PACE, pace.to_string()).env_remove("LD_LIBRARY_PATH")));
        let (pid, library) = output.trim().split_once(' ').expect("two words");
        let _files = TmpFiles(pid.parse().expect("process id"));
        assert_eq!(Path::new(library), loaded);
        let script = stdout(&run(perf::perf("script").args(["-F", "ip,sym", "-i"]).arg(&data)));
        ((), script.lines().filter(|line| line.split_whitespace().nth(1) == Some(name)).count())
    });
}

/// `JITSYM_LIB` names the library, but not for a program with the rights of another user. `complete` makes a program print
/// which library it loads.
fn variable_comes_first(program: &Path, bundled: &Path, complete: impl Fn(&mut Command)) {
    let complete = |command: &mut Command| {
        complete(command.env_remove("LD_LIBRARY_PATH"));
        with_library(command);
    };
    let mut plain = Command::new(program);
    complete(&mut plain);
    let named = plain.get_envs().find(|(name, _)| *name == "JITSYM_LIB").and_then(|(_, value)| value).expect("library");
    let named = Path::new(named).canonicalize().expect("library");
    assert_eq!(Path::new(stdout(&run(&mut plain)).trim()), named);
    if is_root("give a program to another group") {
        assert_eq!(Path::new(stdout(&run_privileged(program, complete)).trim()), bundled);
    }
}

const PYTHON: &str = r#"
import ctypes, mmap, os, struct
import jitsym
code = b"\xb9" + struct.pack("<I", 100_000_000) + b"\xff\xc9\x75\xfc\xc3"  # mov ecx, N; again: dec ecx; jnz again; ret
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory[: len(code)] = code
addr = ctypes.addressof(ctypes.c_char.from_buffer(memory))
with jitsym.Session() as session:
    session.register(addr, len(code), "by_the_wheel", bytes=addr)
    for _ in range(int(os.environ["TEST_PACE"])):
        ctypes.CFUNCTYPE(None)(addr)()
print(os.getpid(), *{line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/libjitsym.so" in line})
"#;

/// A wheel in a new environment: the Python package finds its library, C programs are built with it, and the program is there.
pub fn wheel_works(name: &str, wheel: &Path) {
    // What it prints is split into words.
    let env = spaceless(&fresh_dir(format!("{name}-env")));
    run(Command::new("python3").args(["-m", "venv"]).arg(&env));
    let mut pip = Command::new(env.join("bin/pip"));
    run(pip.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(wheel));

    let says = |options: &[&str]| -> Vec<String> {
        let mut python = consumer(env.join("bin/python"));
        let output = stdout(&run(python.args(["-I", "-m", "jitsym"]).args(options)));
        output.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(says(&["--version"]), [VERSION]);
    let library = says(&["--lib"]).concat();
    assert!(Path::new(&library).starts_with(&env) && library.ends_with("/libjitsym.so.0.1"), "{library}");
    let bundled = Path::new(&library).canonicalize().expect("library");

    let program = env.join("program.py");
    fs::write(&program, PYTHON).expect("program");
    perf_shows("by_the_wheel", &bundled, || {
        let mut python = Command::new(env.join("bin/python"));
        python.args(["-I", "-B"]).arg(&program);
        python
    });
    let packages = bundled.ancestors().nth(3).expect("directory");
    variable_comes_first(Path::new("/usr/bin/python3"), &bundled, |command| {
        let program = "import sys; sys.path.insert(0, sys.argv[1]); import jitsym; jitsym.version(); \
                       print(*{line.split(maxsplit=5)[5].strip() for line in open('/proc/self/maps') if '/libjitsym.so' in line})";
        command.args(["-I", "-B", "-c", program]).arg(packages);
    });

    let mut pkg_config = consumer("pkg-config");
    pkg_config.env("PKG_CONFIG_PATH", says(&["--pkgconfig"]).concat()).args(["--cflags", "--libs", "jitsym"]);
    let mut with_pkg_config: Vec<String> =
        stdout(&run(&mut pkg_config)).split_whitespace().map(str::to_owned).collect();
    with_pkg_config.push(format!("-Wl,-rpath,{}", bundled.parent().expect("directory").display()));
    for (flags, shared) in [(says(&["--cflags", "--libs"]), false), (with_pkg_config, true)] {
        let program = env.join("hello");
        let source = root().join("c-tests/consumers/hello.c");
        run(consumer("cc").args(["-Wall", "-Wextra", "-Werror"]).arg(source).arg("-o").arg(&program).args(flags));
        assert_linked(&program, shared);
        let files = fresh_dir(format!("{name}-files"));
        run(consumer(&program).arg(&files));
        assert!(checker::assert_all_sound(&files, &[]) > 0);
    }

    let said = stdout(&run(consumer(env.join("bin/jitsym")).arg("version")));
    assert_eq!(said, format!("jitsym {VERSION}\n"));
    run(Command::new(env.join("bin/pip")).args(["uninstall", "--quiet", "--yes", "jitsym"]));
    assert!(!env.join("bin/jitsym").exists() && !bundled.parent().expect("directory").exists());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn wheel() {
    let dir = fresh_dir("wheel");
    let tree = archive(&dir);
    let file = format!("jitsym-{VERSION}-py3-none-linux_x86_64.whl");
    let wheel = made(&dir, "wheel.sh", &file, |script, out| {
        script.arg(&tree).arg("linux_x86_64").arg(out);
    });
    wheel_works("wheel", &wheel);
}

const NODE: &str = r#"
const koffi = require('koffi');
const { Session } = require('jitsym');
const mmap = koffi.load('libc.so.6').func('void *mmap(void *, size_t, int, int, int, long)');
const addr = mmap(null, 4096, 7, 0x22, -1, 0);
const code = Buffer.from([0xb9, 0, 0xe1, 0xf5, 5, 0xff, 0xc9, 0x75, 0xfc, 0xc3]); // mov ecx, N; again: dec ecx; jnz again; ret
new Uint8Array(koffi.view(addr, 4096)).set(code);
const session = new Session();
session.register({ addr, size: code.length, name: 'by_the_package', bytes: code });
const call = koffi.decode(addr, koffi.proto('void f()'));
for (let times = 0; times < Number(process.env.TEST_PACE); times++) call();
session.close();
const maps = require('node:fs').readFileSync('/proc/self/maps', 'utf8').split('\n');
console.log(process.pid, ...new Set(maps.map((line) => /[/].*[/]libjitsym[.]so.*/.exec(line)?.[0]).filter(Boolean)));
"#;

/// An npm package in a new project: the binding finds its library.
pub fn npm_package_works(name: &str, package: &Path) {
    let dir = fresh_dir(format!("{name}-project"));
    fs::write(dir.join("package.json"), "{}").expect("project");
    let npm = python_env(&[crate::node::NEWER]).join("bin/npm");
    let mut install = Command::new(npm);
    install.current_dir(&dir).env("NODE_DISABLE_COMPILE_CACHE", "1");
    run(install.args(["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]).arg(package));
    let bundled = dir.join("node_modules/jitsym/lib/x64/libjitsym.so.0.1").canonicalize().expect("library");

    let program = dir.join("program.js");
    fs::write(&program, NODE).expect("program");
    perf_shows("by_the_package", &bundled, || {
        let mut node = Command::new("node");
        node.arg(&program);
        node
    });
    let node = stdout(&run(Command::new("sh").args(["-c", "command -v node"])));
    variable_comes_first(Path::new(node.trim()), &bundled, |command| {
        let program = "require('jitsym').version(); \
                       const maps = require('fs').readFileSync('/proc/self/maps', 'utf8').split('\\n'); \
                       console.log(...new Set(maps.map((line) => /[/].*[/]libjitsym[.]so.*/.exec(line)?.[0]).filter(Boolean)))";
        command.current_dir(&dir).args(["-e", program]);
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn npm_package() {
    let dir = fresh_dir("npm");
    let tree = archive(&dir);
    let package = made(&dir, "npm.sh", &format!("jitsym-{VERSION}.tgz"), |script, out| {
        script.arg(out).arg(format!("x64={}", tree.display()));
    });
    npm_package_works("npm", &package);
}

/// The crates of the library and of the program are complete for a registry, and their documentation has no broken link.
#[test]
fn crates() {
    let mut package = cargo();
    package.args(["package", "--locked", "--offline", "--allow-dirty", "--no-verify", "--target-dir"]);
    package.arg(fresh_dir("crates")).args([
        "--package",
        "jitsym",
        "--package",
        "jitsym-step",
        "--package",
        "jitsym-tool",
    ]);
    let said = String::from_utf8_lossy(&run(&mut package).stderr).into_owned();
    // The project has no address, and tests stay in the sources.
    let expected = ["warning: manifest has no documentation, homepage or repository", "warning: ignoring "];
    let warns = |line: &&str| line.starts_with("warning: ") && !expected.iter().any(|start| line.starts_with(start));
    assert_eq!(said.lines().filter(warns).collect::<Vec<_>>(), [""; 0], "{said}");
    let mut doc = cargo();
    doc.args(["doc", "--quiet", "--locked", "--no-deps", "--lib", "--package", "jitsym"])
        .env("RUSTDOCFLAGS", "-Dwarnings");
    run(&mut doc);
}

/// cargo builds the crates as they are packaged, and installs the program.
#[test]
fn crates_are_built() {
    // Quick to build: no program of these is measured.
    let quick = |cargo: &mut Command| {
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        run(cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "8"));
    };
    let mut package = cargo();
    package.args(["package", "--quiet", "--locked", "--allow-dirty"]);
    quick(package.args(["--package", "jitsym", "--package", "jitsym-step", "--package", "jitsym-tool"]));
    let dir = fresh_dir("installed program");
    let mut install = cargo();
    install.args(["install", "--quiet", "--locked", "--path", "tool", "--root"]).arg(&dir);
    quick(&mut install);
    assert_eq!(stdout(&run(Command::new(dir.join("bin/jitsym")).arg("version"))), format!("jitsym {VERSION}\n"));
}
