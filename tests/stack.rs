//! Stacks that a program writes when it crashes in compiled code without frame pointers.
//!
//! The program (`c-tests/stack/crash.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The compiled functions: each calls the one before, and `each` is inlined into `map`.
const COMPILED: [&str; 3] = ["each (inlined) at prog.js:12", "map+0x11 at main.js:7", "script+0x11 at prog.js:12"];

/// Runs the program, and checks the functions of the stack up to `main`. Returns the lines from `main` on.
fn check(program: &Path, how: &str, innermost: &[&str], last: [&str; 2]) -> Vec<String> {
    let dir = fresh_dir(format!("stack-{how}"));
    let output = stdout(&run(Command::new(program).arg(&dir).arg(how)));
    let expected: Vec<&str> = innermost.iter().chain(&COMPILED).chain(&last).copied().collect();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() >= expected.len(), "{output}");
    for (number, (line, expected)) in lines.iter().zip(&expected).enumerate() {
        let (place, text) = line.split_at(24);
        assert!(place.starts_with(&format!("#{number:<3} 0x")) && text.starts_with(expected), "{expected}: {output}");
    }
    lines[expected.len() - 1..].iter().map(|line| (*line).to_owned()).collect()
}

fn check_all(program: &Path, last: [&str; 2]) -> Vec<String> {
    check(program, "call", &["??", "add+0x11 at prog.js:12"], last);
    check(program, "read", &["add+0xf at prog.js:12"], last)
}

const NAMED: [&str; 2] = ["run_compiled_code+0x", "main+0x"];

#[test]
fn crashes_to_main() {
    for link in [Link::Shared, Link::Static] {
        let program = compile("gcc", &["c-tests/stack/crash.c"], link, &["-O1"], &format!("stack-crash-{link:?}"));
        check_all(&program, NAMED);
        check(&program, "caller", &["on_call+0x", "add+0x11 at prog.js:12"], NAMED);
    }
}

/// The handler goes on if nobody reads the stack.
#[test]
fn nobody_reads() {
    let program = compile("gcc", &["c-tests/stack/crash.c"], Link::Shared, &["-O1"], "stack-crash-unread");
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let status =
        Command::new(program).arg(fresh_dir("stack-unread")).arg("read").stdout(writer).status().expect("program");
    assert_eq!(status.code(), Some(0), "{status}");
}

/// In a program without a loader, and without symbols: addr2line then finds the function in the program with symbols.
#[test]
fn programs_without_a_loader_or_symbols() {
    let program = compile("gcc", &["c-tests/stack/crash.c"], Link::Static, &["-O1", "-static"], "stack-crash-alone");
    check_all(&program, NAMED);
    let program = compile("gcc", &["c-tests/stack/crash.c"], Link::Shared, &["-O1"], "stack-crash-whole");
    let stripped = program.with_extension("stripped");
    run(Command::new("strip").arg(&program).arg("-o").arg(&stripped));
    let of_program = format!("in {}+0x", stripped.display());
    let rest = check_all(&stripped, [&of_program, &of_program]);
    let offset = rest[0].rsplit('+').next().expect("offset");
    let found = stdout(&run(Command::new("addr2line").arg("-fe").arg(&program).arg(offset)));
    assert!(found.starts_with("main\n"), "{found}");
}
