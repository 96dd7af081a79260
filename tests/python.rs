//! `bindings/python`, installed with pip, with the real Python and the real perf.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::bindings::{check_guest, package, python_env, readme_commands, run_readme, with_library};
use crate::headers;
use crate::perf;
use crate::support::{is_root, plain_headers, run, run_privileged, scratch_dir, stdout};

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
