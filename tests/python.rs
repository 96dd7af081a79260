//! `bindings/python`, installed with pip, with the real Python and the real perf.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::bindings::{check_guest, package, python_env, readme_commands, run_readme, with_library};
use crate::headers;
use crate::perf;
use crate::support::{fresh_dir, is_root, plain_headers, run, run_privileged, scratch_dir, stdout};

/// A Python that has the package as it stands.
fn python() -> Command {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    let env = INSTALLED.get_or_init(|| {
        let env = python_env(&["cffi==2.0.0"]);
        crate::support::once(&env.with_extension("package"), "", || {
            let mut pip = Command::new(env.join("bin/pip"));
            pip.args(["install", "--quiet", "--force-reinstall", "--no-deps"]).arg(package("python"));
            run(&mut pip);
        });
        env
    });
    let mut python = perf::command(env.join("bin/python"));
    // Nothing but what was installed there, and nothing is left in the source tree.
    python.args(["-I", "-B"]);
    python
}

fn script(file: &str) -> PathBuf {
    package("python").join("tests").join(file)
}

#[test]
fn the_package_passes_its_own_tests() {
    let mut tests = python();
    tests.args(["-m", "unittest", "discover", "--start-directory"]).arg(package("python").join("tests"));
    run(with_library(&mut tests));
}

/// The program in the README, as it stands, in both ways that the README names, in a directory that has nothing else.
#[test]
fn the_readme_tells_the_truth() {
    let install = readme_commands("python", "python3 -m venv ").concat();
    let without = readme_commands("python", "PYTHONPATH=").concat();
    for commands in [format!("{install}\nv/bin/python program.py"), without] {
        run_readme("python", "python", "program.py", |program| {
            let mut shell = perf::command("sh");
            shell.current_dir(program.parent().expect("directory")).args(["-euc", &commands]);
            // Nothing is left in the source tree.
            shell.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
            shell
        });
    }
}

#[test]
fn the_versions_are_one() {
    let program = "import importlib.metadata, jitsym; \
                   print(importlib.metadata.version('jitsym'), jitsym.__version__, jitsym.version())";
    let mut versions = python();
    versions.args(["-c", program]);
    let expected = [env!("CARGO_PKG_VERSION"); 3].join(" ") + "\n";
    assert_eq!(stdout(&run(with_library(&mut versions))), expected);
}

/// A program with the rights of another user does not load what its user names.
#[test]
fn a_privileged_program_chooses_its_library_itself() {
    if !is_root("give a program to another group") {
        return;
    }
    let file = Path::new("/usr/bin/python3");
    let program = "import os, sys; sys.path.insert(0, sys.argv[1]); import jitsym; jitsym.available(); \
                   print(os.environ['JITSYM_LIB'] in open('/proc/self/maps').read())";
    let complete = |command: &mut Command| {
        with_library(command).args(["-I", "-B", "-c", program]).arg(package("python").join("src"));
    };
    assert_eq!(stdout(&run_privileged(file, complete)), "False\n");
    // The control: so it is found without other rights.
    let mut plain = Command::new(file);
    complete(&mut plain);
    assert_eq!(stdout(&run(&mut plain)), "True\n");
}

/// ctypes has the layouts, numbers and signatures that cffi finds in the header; with which a program can also do without
/// the package.
#[test]
fn the_package_has_the_c_interface_right() {
    let mut command = python();
    command.arg(script("header.py")).arg(plain_headers(&headers::NAMES)).env("JITSYM_DIR", scratch_dir("cffi"));
    println!("{}", stdout(&run(with_library(&mut command))));
}

/// Machine code that Python makes and runs: names, shares, stacks down to the interpreter, lines.
#[cfg(target_arch = "x86_64")]
#[test]
fn perf_sees_what_python_compiles() {
    let python = python();
    check_guest("guest", |record, dir| {
        record.arg(python.get_program()).args(python.get_args()).arg(script("guest.py")).arg(dir);
    });
}

/// Python 3.12 and later warn at a fork if the process has a second thread.
#[test]
fn a_program_without_threads_may_fork() {
    let dir = fresh_dir("python-no-threads");
    let program = "import jitsym, os, sys, warnings\n\
                   flags = jitsym.Init.NO_THREADS if sys.argv[1] == 'none' else jitsym.Init(0)\n\
                   session = jitsym.Session(sinks=jitsym.Sink.MAP, flags=flags, map_dir=sys.argv[2])\n\
                   session.register(0x7000000000, 16, 'before_the_fork', bytes=bytes(16))\n\
                   threads = len(os.listdir('/proc/self/task'))\n\
                   with warnings.catch_warnings(record=True) as caught:\n\
                   \x20   warnings.simplefilter('always')\n\
                   \x20   child = os.fork()\n\
                   if child == 0:\n\
                   \x20   session.register(0x7000001000, 16, 'in_the_child', bytes=bytes(16))\n\
                   \x20   session.flush()\n\
                   else:\n\
                   \x20   assert os.waitpid(child, 0)[1] == 0\n\
                   \x20   warns = sys.version_info >= (3, 12) and threads > 1\n\
                   \x20   assert len(caught) == int(warns), caught\n\
                   \x20   print(threads, session.stats().threads)\n";
    for (mode, threads) in [("none", "1 0\n"), ("some", "3 2\n")] {
        let dir = dir.join(mode);
        std::fs::create_dir_all(&dir).expect("a directory");
        let mut python = python();
        python.args(["-c", program, mode]).arg(&dir);
        assert_eq!(stdout(&run(with_library(&mut python))), threads);
        let maps: Vec<String> = std::fs::read_dir(&dir)
            .expect("directory")
            .map(|entry| std::fs::read_to_string(entry.expect("entry").path()).expect("a map"))
            .collect();
        assert!(maps.len() == 2 && maps.iter().any(|map| map.contains("in_the_child")), "{maps:?}");
    }
}
