//! CPython's own tests: with the library, each of them passes that passes without.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{python, with_library};
use crate::perf;
use crate::support::{describe, fetched, fresh_dir, try_run};

/// A run of CPython's tests.
struct Run<'a> {
    modules: &'a [&'a str],
    /// For the tests to use.
    perf: &'a Path,
    variables: &'a [(&'a str, &'a str)],
}

impl Run<'_> {
    /// The tests that pass, of all, or of those with these names.
    fn passed(&self, library: bool, names: &[&String]) -> BTreeSet<String> {
        let dir = fresh_dir("own-tests");
        let report = dir.join("report.xml");
        let mut command = perf::command(python());
        if self.perf.is_absolute() {
            let path = std::env::var("PATH").expect("PATH");
            command.env("PATH", format!("{}:{path}", self.perf.parent().expect("directory").display()));
        }
        if library {
            with_library(&mut command);
        } else {
            command.env("JITSYM_LIB", "/nowhere");
        }
        command.envs(self.variables.iter().copied()).current_dir(&dir);
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

    /// At least so many pass with the library.
    fn check(&self, at_least: usize) {
        let (with, without) = (self.passed(true, &[]), self.passed(false, &[]));
        println!("{:?}, {:?}, {}", self.modules, self.variables, self.perf.display());
        println!("{} pass, {} without the library", with.len(), without.len());
        let mut missing: Vec<&String> = without.difference(&with).collect();
        // Some of them measure time, and fail now and then on a busy machine.
        for _ in 0..5 {
            if !missing.is_empty() {
                println!("only without the library: {missing:?}");
                let again = self.passed(true, &missing);
                missing.retain(|name| !again.contains(*name));
            }
        }
        assert!(missing.is_empty(), "only without the library: {missing:?}");
        assert!(with.len() >= at_least, "{with:?}");
    }
}

/// Those with a jitdump need a newer perf.
#[test]
fn own_tests_of_perf() {
    let perfs: [PathBuf; 2] = ["perf".into(), fetched("perf")];
    for (perf, at_least) in perfs.iter().zip([10, 12]) {
        Run { modules: &["test_perf_profiler", "test_perfmaps"], perf, variables: &[] }.check(at_least);
    }
}

/// Those of other things, with trampolines in all processes.
#[test]
fn own_tests_with_trampolines() {
    let perf = Path::new("perf");
    Run { modules: &["test_gdb"], perf, variables: &[("PYTHONPERFSUPPORT", "1")] }.check(20);
    Run { modules: &["test_os", "test_fork1"], perf, variables: &[("PYTHON_PERF_JIT_SUPPORT", "1")] }.check(300);
}
