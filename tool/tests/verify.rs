//! `jitsym verify` on programs that register their code rightly, and with one mistake each; and on other producers.
#![cfg(target_arch = "x86_64")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use support::*;

/// Two functions, one of which calls the other, with the mistake that the argument names.
fn mistakes() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["tool/tests/verify/mistakes.c"], Link::Shared, &["-O1"], "mistakes"))
}

fn verify(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jitsym"));
    command.arg("verify").args(words).env("JITSYM_DIR", scratch_dir("dumps"));
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is found, by kind, function and offset, and all that is said.
fn found(output: &Output) -> (BTreeSet<(String, String, u64)>, Value) {
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = all["findings"].as_array().expect("findings").iter();
    let text = |finding: &Value, name: &str| finding[name].as_str().expect("text").to_owned();
    let one = |it: &Value| (text(it, "kind"), text(it, "function"), it["offset"].as_u64().expect("a number"));
    (findings.map(one).collect(), all)
}

/// Runs the program with a mistake. It computes what it computes by itself.
#[track_caller]
fn of_mistake(mistake: &str) -> (BTreeSet<(String, String, u64)>, Value) {
    let output = try_run(verify(&["--json", "--"]).arg(mistakes()).arg(mistake));
    assert_eq!(stderr(&output), "35\n", "{mistake}");
    let (findings, all) = found(&output);
    assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{mistake}");
    assert_eq!(all["ended"], "ended well");
    (findings, all)
}

#[track_caller]
fn assert_found(mistake: &str, kind: &str, function: &str, offsets: &[u64]) -> Value {
    let (findings, all) = of_mistake(mistake);
    let expected = offsets.iter().map(|&offset| (kind.into(), function.into(), offset)).collect();
    assert_eq!(findings, expected, "{mistake}");
    all["findings"][0].clone()
}

/// The tables are in the file of a region alone: code that the library has adopted.
#[test]
fn in_a_region() {
    for (mistake, offsets) in [("none", &[][..]), ("cfa", &[1, 5, 8])] {
        let mut command = verify(&["--json", "--"]);
        let output = try_run(command.envs([("JITSYM", "region"), ("JITSYM_ADOPT", "1")]).arg(mistakes()).arg(mistake));
        let (findings, all) = found(&output);
        assert!(findings.iter().all(|(kind, function, _)| kind == "cfa" && function == "inner"), "{findings:?}");
        assert_eq!(findings.iter().map(|(_, _, offset)| *offset).collect::<Vec<_>>(), offsets);
        assert_eq!(["with_tables", "instructions"].map(|name| all[name].as_u64()), [2, 17].map(Some), "{mistake}");
    }
}

/// Nothing is found where all is right, and each instruction was compared.
#[test]
fn nothing_wrong() {
    for right in ["none", "raw"] {
        let (findings, all) = of_mistake(right);
        assert!(findings.is_empty(), "{right}: {findings:?}");
        let counts = ["registered", "with_tables", "entered", "instructions", "proved", "jumps"];
        assert_eq!(counts.map(|name| all[name].as_u64()), [2, 2, 2, 17, 17, 0].map(Some), "{right}");
    }
}

#[test]
fn wrong_cfa() {
    let first = assert_found("cfa", "cfa", "inner", &[1, 5, 8]);
    assert_eq!(first["instruction"], "lea rbx,[rdi+0x1]");
    assert_eq!(first["said"], "the CFA is rsp+24, which is 8 too high");
    assert_eq!(first["is"], "the CFA is rsp+16");
}

/// A register that is kept on the stack, of which the tables say nothing, and one of which they say something wrong.
#[test]
fn wrong_registers() {
    let first = assert_found("saved-register", "saved-register", "inner", &[5, 8]);
    assert_eq!(first["said"], "the caller's rbx is still in rbx");
    assert_eq!(first["is"], "it is at CFA-16");
    let first = assert_found("saved-place", "saved-register", "outer", &[5, 9, 12, 22, 24, 27, 31]);
    assert_eq!(first["said"], "the caller's rbx is at CFA-32");
    assert_eq!(first["is"], "it is at CFA-24");
    let first = assert_found("return-address", "return-address", "inner", &[0, 1, 5, 8, 9]);
    assert_eq!(first["said"], "the return address is at CFA-16");
    assert_eq!(first["is"], "it is at CFA-8");
}

#[test]
fn tables_of_a_part() {
    assert_found("no-row", "no-row", "inner", &[5, 8, 9]);
}

#[test]
fn other_bytes() {
    let first = assert_found("bytes", "bytes", "inner", &[0, 1, 5, 8, 9]);
    assert_eq!(first["said"], "nop (90)");
    assert_eq!(first["is"], "push rbx (53)");
}

#[test]
fn another_address() {
    let first = assert_found("address", "address", "inner", &[0]);
    assert_eq!(first["change"], "give the address at which it runs, 64 bytes lower");
}

/// Too large by a function, too small by the end of one.
#[test]
fn another_size() {
    let first = assert_found("size", "size", "inner", &[0]);
    assert_eq!(first["is"], "outer begins at +0x40, and runs there");
    let first = assert_found("short", "size", "outer", &[22]);
    assert_eq!(first["said"], "the size is 0x16");
}

#[test]
fn never_registered() {
    let (findings, all) = of_mistake("unregistered");
    let kinds: Vec<&str> = findings.iter().map(|(kind, _, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["unregistered"]);
    assert_eq!(all["findings"][0]["is"], "it is executed after outer+0x16");
}

#[test]
fn registered_late() {
    assert_found("late", "late", "inner", &[0]);
}

/// Only functions that are asked for.
#[test]
fn chosen_functions() {
    let choose = |name: &str| try_run(verify(&["--json", "--function", name, "--"]).arg(mistakes()).arg("cfa"));
    let (findings, all) = found(&choose("out*"));
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!((all["registered"].as_u64(), all["instructions"].as_u64()), (Some(1), Some(12)));
    assert_eq!(found(&choose("inner")).0.len(), 3);
    let output = choose("nobody");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no function was registered"), "{}", stderr(&output));
}

/// What people read.
#[test]
fn text() {
    let output = try_run(verify(&["--"]).arg(mistakes()).arg("cfa"));
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "35");
    assert!(lines[1].starts_with("cfa: inner+0x1 (0x") && lines[1].ends_with("): lea rbx,[rdi+0x1]"), "{text}");
    assert_eq!(lines[4], "    do:   a row from 0x1 on has the CFA at rsp+16");
    let end = &lines[lines.len() - 2..];
    assert!(end[0].starts_with("3 findings; functions registered: 2 (with tables: 2), entered: 2;"), "{text}");
    assert_eq!(end[1], "the command ended well");
}

/// What cannot be run, and what registers nothing.
#[test]
fn could_not() {
    let output = try_run(&mut verify(&["--", "no-such-program"]));
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(2), "jitsym: there is no command no-such-program\n".into())
    );
    let output = try_run(&mut verify(&["--", "sh", "-c", "exit 7"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).ends_with("the command ended with 7\n"), "{}", stdout(&output));
    assert!(stderr(&output).contains("no function was registered"), "{}", stderr(&output));
}

/// It leaves no file behind.
const PYTHON: &str = "import os

def f(n):
    return n + 1

for i in range(5):
    print(f(i))
os.unlink(f'/tmp/jit-{os.getpid()}.dump')
";

/// Trampolines of CPython: each instruction of all that were called.
#[test]
fn of_cpython() {
    let python = fetched("python3.13");
    let script = scratch_dir("python").join("script.py");
    std::fs::write(&script, PYTHON).expect("a script");
    let output = try_run(verify(&["--json", "--"]).arg(python).args(["-X", "perf_jit"]).arg(&script));
    let (findings, all) = found(&output);
    assert_eq!(output.status.code(), Some(0), "{findings:?} {}", stderr(&output));
    assert_eq!(stderr(&output), "1\n2\n3\n4\n5\n");
    assert_eq!(all["registered"], all["with_tables"]);
    assert_eq!(all["instructions"], all["proved"]);
    assert!(all["instructions"].as_u64() >= Some(4), "{all}");
}

/// Optimized code of V8, which is called by jumps from its built-in code.
#[test]
fn of_node() {
    let dir = fresh_dir("node");
    let script = dir.join("script.js");
    // V8 writes 4096 bytes at a time.
    let text = "const all = []\n\
                for (let k = 0; k < 30; k++) all.push(eval(`(function f${k}(n) {\n\
                  let s = ${k}; for (let i = 0; i < n; i++) s = (s * 3 + i) % 1000003; return s })`))\n\
                let t = 0\n\
                for (let round = 0; round < 200; round++) for (const f of all) t += f(4000)\n\
                console.log(t)\n";
    std::fs::write(&script, text).expect("a script");
    let node = |command: &mut Command| stdout(&run(command.arg(&script).current_dir(&dir)));
    let printed = node(&mut Command::new("node"));
    let mut command = verify(&["--json", "--function", "JS:*f*", "--", "node", "--perf-prof"]);
    let output = try_run(command.arg("--perf-prof-unwinding-info").arg(&script).current_dir(&dir));
    let (findings, all) = found(&output);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), printed), "{all}");
    assert!(all["proved"].as_u64() >= Some(10), "{all}");
}

/// Traces of an unmodified LuaJIT. It patches their jumps later, and executes stubs of which it tells nobody.
#[test]
fn of_luajit() {
    let binding = root().join("bindings/luajit");
    // Traces are known before they run for the second time, however late the library's thread writes them.
    let script = scratch_dir("luajit").join("twice.lua");
    let text =
        "local run = assert(loadfile(arg[1]))\narg[1] = arg[2]\nrun()\nassert(require('jitsym').flush(60000))\nrun()\n";
    std::fs::write(&script, text).expect("script");
    let mut command = verify(&["--json", "--function", "TRACE_*", "--", "luajit", "-ljitsym"]);
    command.arg(script).arg(binding.join("nbody.lua")).arg("200000");
    command.env("LUA_PATH", format!("{};;", binding.join("?.lua").display()));
    let output = try_run(command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so")));
    let (findings, all) = found(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let kinds: BTreeSet<&str> = findings.iter().map(|(kind, _, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["bytes", "unregistered"].into(), "{findings:?}");
    // The tables: the interpreter, which the trace belongs to, has returned to where they say.
    assert!(all["proved"].as_u64() >= Some(100), "{all}");
    assert!(all["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .any(|it| it["is"].as_str().expect("text").starts_with('j')));
}
