//! CPython's own tests: with the library, each of them passes that passes without.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{python, with_library};
use crate::perf;
use crate::support::{describe, fetched, fresh_dir, try_run};

/// The tests of these modules that pass. `perf` is the one that they use, `options` are CPython's.
fn passed(modules: &[&str], perf: &Path, library: bool, options: &[&str]) -> BTreeSet<String> {
    let dir = fresh_dir(format!("own-tests-{library}"));
    let report = dir.join("report.xml");
    let mut command = perf::command(python());
    if perf.is_absolute() {
        let path = std::env::var("PATH").expect("PATH");
        command.env("PATH", format!("{}:{path}", perf.parent().expect("directory").display()));
    }
    if library {
        with_library(&mut command);
    } else {
        command.env("JITSYM_LIB", "/nowhere");
    }
    command.current_dir(&dir).args(options).args(["-m", "test", "--junit-xml"]).arg(&report).args(modules);
    let output = try_run(&mut command);
    let text =
        std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {}", describe(&command, &output)));
    let cases = text.split("<testcase ").skip(1);
    let passed = cases.filter(|case| !["<failure", "<error", "<skipped"].iter().any(|end| case.contains(end)));
    passed.map(|case| case.split('"').nth(1).expect("name").to_string()).collect()
}

/// With the library too, of which at least so many.
fn compare(modules: &[&str], perf: &Path, options: &[&str], at_least: usize) {
    let (with, without) = (passed(modules, perf, true, options), passed(modules, perf, false, options));
    println!("{modules:?} with {}: {} pass, {} without the library", perf.display(), with.len(), without.len());
    let missing: Vec<&String> = without.difference(&with).collect();
    assert!(missing.is_empty(), "only without the library: {missing:?}");
    assert!(with.len() >= at_least, "{with:?}");
}

/// Those of the trampolines need a newer perf for a jitdump.
#[test]
fn own_tests_of_perf() {
    let perfs: Vec<PathBuf> = vec!["perf".into(), fetched("perf")];
    for (perf, at_least) in perfs.iter().zip([10, 12]) {
        compare(&["test_perf_profiler", "test_perfmaps"], perf, &[], at_least);
    }
}

/// Others, also with trampolines in the process that runs them.
#[test]
fn own_tests_of_processes() {
    compare(&["test_gdb"], Path::new("perf"), &[], 10);
    for options in [&[][..], &["-X", "perf"], &["-X", "perf_jit"]] {
        compare(&["test_os", "test_fork1", "test_threading"], Path::new("perf"), options, 300);
    }
}
