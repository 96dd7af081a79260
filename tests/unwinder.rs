//! The unwinders that processes have, and code that was registered: who finds its callers, and whom an exception passes.
//!
//! The program (`c-tests/unwinder/unwinder.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use support::*;

const SOURCES: [&str; 3] = ["c-tests/unwinder/unwinder.c", "c-tests/unwinder/exceptions.cc", "-lstdc++"];
/// Comes before libgcc, whose functions it has too.
const LLVM: &str = "/usr/lib/llvm-14/lib/libunwind.so.1";

fn program(test: &str, link: Link, options: &[&str]) -> PathBuf {
    compile("gcc", &SOURCES, link, &[&["-O1", "-fexceptions"], options].concat(), test)
}

fn check(program: &PathBuf, test: &str, preload: Option<&str>, what: &[&str]) {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "1200"]).arg(program).arg(scratch_dir(test)).args(what);
    if let Some(library) = preload {
        assert!(PathBuf::from(library).exists(), "{library}");
        command.env("LD_PRELOAD", library);
    }
    let output = run(&mut command);
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("ok\n"), "{what:?}: {output:?}");
}

/// A seed that a failure names.
fn seed() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("time");
    (now.subsec_nanos() / 2).to_string()
}

/// All that holds whichever unwinder the process has.
fn everything(test: &str, link: Link, options: &[&str], preload: Option<&str>) {
    let program = program(test, link, options);
    for what in ["off", "call", "move", "late", "fork", "adopted"] {
        check(&program, test, preload, &[what]);
    }
    if preload.is_none() {
        // The C library goes to libgcc for that, which is one unwinder too many for C++ without this library, too.
        check(&program, test, preload, &["exit"]);
        check(&program, test, preload, &["cancel"]);
    }
    for count in ["3000", "3001"] {
        check(&program, test, preload, &["many", count]);
    }
    check(&program, test, preload, &["reuse", &seed()]);
    check(&program, test, preload, &["storm", "100"]);
}

#[test]
fn libgcc() {
    everything("libgcc", Link::Shared, &[], None);
}

#[test]
fn statically_linked() {
    everything("unwinder-static", Link::Static, &[], None);
}

#[test]
fn in_a_static_program() {
    everything("unwinder-whole", Link::Static, &["-static"], None);
}

#[test]
fn llvm() {
    everything("unwinder-llvm", Link::Shared, &[], Some(LLVM));
}
