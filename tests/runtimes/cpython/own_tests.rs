//! CPython's own tests: each of them passes that passes in a stock CPython.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::stock::stock;
use super::{newer, python, with_library};
use crate::perf;
use crate::support::{describe, fetched, fresh_dir, try_run};

/// A run of CPython's tests.
struct Run<'a> {
    python: &'a Path,
    modules: &'a [&'a str],
    /// For the tests to use.
    perf: &'a Path,
    variables: &'a [(&'a str, &'a str)],
}

impl Run<'_> {
    /// The tests that pass, of all, or of those with these names.
    fn passed(&self, python: &Path, names: &[&String]) -> BTreeSet<String> {
        let dir = fresh_dir("own-tests");
        let report = dir.join("report.xml");
        let mut command = perf::command(python);
        if self.perf.is_absolute() {
            let path = std::env::var("PATH").expect("PATH");
            command.env("PATH", format!("{}:{path}", self.perf.parent().expect("directory").display()));
        }
        with_library(&mut command).envs(self.variables.iter().copied()).current_dir(&dir);
        command.args(["-m", "test", "--junit-xml"]).arg(&report).args(self.modules);
        for name in names {
            command.args(["-m", name]);
        }
        let output = try_run(&mut command);
        let text = std::fs::read_to_string(&report);
        let text = text.unwrap_or_else(|error| panic!("{error}: {}", describe(&command, &output)));
        let cases = text.split("<testcase ").skip(1);
        let passed = cases.filter(|case| !["<failure", "<error", "<skipped"].iter().any(|end| case.contains(end)));
        passed.map(|case| case.split('"').nth(1).expect("name").to_string()).collect()
    }

    /// At least so many pass.
    fn check(&self, at_least: usize) {
        let (passed, in_stock) = (self.passed(self.python, &[]), self.passed(&stock(self.python), &[]));
        println!("{}: {:?}, {:?}, {}", self.python.display(), self.modules, self.variables, self.perf.display());
        println!("{} pass, {} in a stock CPython", passed.len(), in_stock.len());
        let mut missing: Vec<&String> = in_stock.difference(&passed).collect();
        // Some of them measure time, and fail now and then on a busy machine.
        for _ in 0..5 {
            if !missing.is_empty() {
                println!("only in a stock CPython: {missing:?}");
                let again = self.passed(self.python, &missing);
                missing.retain(|name| !again.contains(*name));
            }
        }
        assert!(missing.is_empty(), "only in a stock CPython: {missing:?}");
        assert!(passed.len() >= at_least, "{passed:?}");
    }
}

/// Those with a jitdump need a newer perf.
fn check_tests_of_perf(python: &Path) {
    let perfs: [PathBuf; 2] = ["perf".into(), fetched("perf")];
    for (perf, at_least) in perfs.iter().zip([10, 12]) {
        Run { python, modules: &["test_perf_profiler", "test_perfmaps"], perf, variables: &[] }.check(at_least);
    }
}

#[test]
fn own_tests_of_perf() {
    check_tests_of_perf(python());
}

#[test]
fn own_tests_of_perf_of_a_newer_one() {
    check_tests_of_perf(newer());
}

/// Those of other things, with trampolines in all processes.
#[test]
fn own_tests_with_trampolines() {
    let (python, perf) = (python().as_path(), Path::new("perf"));
    Run { python, modules: &["test_gdb"], perf, variables: &[("PYTHONPERFSUPPORT", "1")] }.check(20);
    Run { python, modules: &["test_os", "test_fork1"], perf, variables: &[("PYTHON_PERF_JIT_SUPPORT", "1")] }
        .check(300);
}
