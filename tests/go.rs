//! `bindings/go` with the real Go and the real perf.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::bindings::{check_guest, package, readme_commands, run_readme, with_library};
use crate::headers;
use crate::perf;
use crate::support::{root, run, scratch_dir, spaceless};

/// Go with the library as it was built here, and nothing from the network.
fn go(dir: &Path) -> Command {
    let mut go = perf::command("go");
    go.current_dir(dir).env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"))
        .env("CGO_CFLAGS", "-g -O2 -Wall -Werror");
    with_library(&mut go);
    go
}

#[test]
fn the_package_passes_its_own_tests() {
    run(go(&package("go")).args(["vet", "./..."]));
    run(go(&package("go")).args(["test", "-count=1", "./..."]));
}

/// The program in the README, as it stands, in a module that is made as the README says.
#[test]
fn the_readme_tells_the_truth() {
    run_readme("go", "go", "main.go", |program| {
        let dir = program.parent().expect("directory");
        run(go(dir).args(["mod", "init", "program"]));
        let edit = readme_commands("go", "go mod edit ").concat();
        run(go(dir).args(edit.split(' ').skip(1)));
        run(go(dir).args(["build", "-o", "program"]));
        // A copy of the package alone needs to be told where the headers are.
        run(go(dir).args(["mod", "vendor"]));
        run(go(dir)
            .args(["build", "-o", "vendored"])
            .env("CGO_CFLAGS", format!("-I{}", spaceless(&root().join("include")).display())));
        perf::command(dir.join("program"))
    });
}

/// Every number and every field of the headers is used, but for what the package has no use for.
#[test]
fn the_package_has_all_of_the_c_interface() {
    let sources =
        ["jitsym.go", "abi.go", "arena.go", "region.go", "unwind.go", "shim.h"].map(|file| package("go").join(file));
    let text = sources.map(|path| std::fs::read_to_string(path).expect("source")).concat();
    let used: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let unused = [
        "JITSYM_NAME_MAX",
        "JITSYM_CODE_SIZE_MAX",
        "JITSYM_CODE_GAP",
        "JITSYM_CODE_GAP_SIZE",
        "JITSYM_UNWIND_NONE",
        "reserved",
        "reserved2",
        // The structs of crash handlers.
        "is_inlined",
        "name_size",
        "name_length",
        "file_size",
        "file_length",
        "pc",
        "is_return",
        "known",
        "values[32]",
    ];
    let mut count = 0;
    // Deeper in there is only what comments have.
    let members =
        headers::TEXT.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    for line in members {
        let enumerator = line.split_once(" = ").map(|(name, _)| name).filter(|name| name.starts_with("JITSYM_"));
        let line = line.split(" /* ").next().unwrap_or_default().trim_end();
        let field = line
            .strip_suffix(';')
            .filter(|line| !line.contains(['(', ')']))
            .and_then(|line| line.rsplit([' ', '*']).next());
        if let Some(name) = enumerator.or(field) {
            count += 1;
            assert!(unused.contains(&name) || used.contains(name), "{name} is in a header and not in the package");
        }
    }
    assert!(count > 130, "{count}");
}

/// Machine code that Go makes and runs: names, shares, stacks down to C, lines.
#[cfg(target_arch = "x86_64")]
#[test]
fn perf_sees_what_go_compiles() {
    let guest = scratch_dir("bin").join("guest");
    run(go(&package("go")).args(["build", "-o"]).arg(&guest).arg("./internal/guest"));
    check_guest("guest", |record, dir| {
        record.arg(&guest).arg(dir);
    });
}
