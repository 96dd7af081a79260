//! gdb and lldb on programs that register code: what they print, against the stack that the program is known to have.
//!
//! The program (`c-tests/debug/debuggee.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::*;

/// The frames of `bt` from `reached` on, and the lines of the source that they are at.
const STACK: [(&str, &str); 7] = [
    ("reached", "debuggee.c:"),
    ("jit_inner", "chain.toy:31"),
    ("inlined_step", "chain.toy:21"),
    ("jit_middle", "chain.toy:25"),
    ("jit_outer", "chain.toy:11"),
    ("call_through", "debuggee.c:"),
    ("main", "debuggee.c:"),
];

/// Fifteen objects of each of four sizes, in two ranges of addresses, and both ends of the list.
const LISTED_MOST: usize = 2 * 4 * 15 + 2;

/// What `JITSYM_SINK_GDB` is.
const GDB: &str = "8";

struct Debuggee {
    program: PathBuf,
    dir: PathBuf,
}

impl Debuggee {
    fn new(test: &str) -> Debuggee {
        Debuggee::linked(test, Link::Shared, &[], &[])
    }

    fn linked(test: &str, link: Link, options: &[&str], more: &[&str]) -> Debuggee {
        let options = [&["-std=gnu11", "-O0"], options].concat();
        let sources = [&["c-tests/debug/debuggee.c"], more].concat();
        let program = compile("gcc", &sources, link, &options, test);
        Debuggee { program, dir: scratch_dir(test) }
    }

    /// Runs it in gdb with these commands, and returns what that prints.
    fn in_gdb(&self, commands: &[&str], what: &[&str]) -> String {
        let mut gdb = gdb(commands);
        gdb.arg("--args").arg(&self.program).arg(&self.dir).args(what);
        said(&mut gdb)
    }

    /// Starts it, and waits until it stands in `reached`.
    fn waiting(&self, what: &[&str]) -> Waiting {
        let mut command = Command::new(&self.program);
        let mut child = command.arg(&self.dir).args(what).stdout(Stdio::piped()).spawn().expect("program");
        let output = BufReader::new(child.stdout.take().expect("output"));
        assert!(output.lines().any(|line| line.expect("line") == "waiting"), "it has ended");
        Waiting(child)
    }
}

/// A program that is ended in the end.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.kill().expect("end it");
        self.0.wait().expect("its end");
    }
}

fn gdb(commands: &[&str]) -> Command {
    let mut gdb = Command::new("timeout");
    gdb.args(["-k", "5", "1200", "gdb", "-q", "-nx", "-batch"]).env("LC_ALL", "C");
    let settings = [
        "set pagination off",
        "set width 0",
        "set debuginfod enabled off",
        "set breakpoint pending on",
        "set style enabled off",
    ];
    settings.iter().chain(commands).fold(gdb, |mut gdb, command| {
        gdb.args(["-ex", command]);
        gdb
    })
}

fn said(command: &mut Command) -> String {
    let output = try_run(command);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", describe(command, &output));
    text
}

/// The lines of a backtrace: those that begin with `#` in gdb's, or have `frame #` in lldb's.
fn frames(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with('#') || line.contains("frame #")).collect()
}

/// Asserts that a backtrace is that of the chain, from a frame on.
fn assert_stack(text: &str, from: usize, prefix: &str) {
    let found = frames(text);
    let begin = found.iter().rposition(|line| has_function(line, &named(STACK[from].0, prefix)));
    let begin = begin.unwrap_or_else(|| panic!("no {prefix}{}: {text}", STACK[from].0));
    for (index, (function, place)) in STACK[from..].iter().enumerate() {
        let line = found.get(begin + index).unwrap_or_else(|| panic!("no frame for {function}: {text}"));
        assert!(has_function(line, &named(function, prefix)), "{function} in {line}: {text}");
        // In the frame that is looked at the line may be any.
        assert!(index == 0 || line.contains(place), "{place} in {line}: {text}");
    }
}

fn named(function: &str, prefix: &str) -> String {
    if function.starts_with("jit_") {
        format!("{prefix}{function}")
    } else {
        function.to_owned()
    }
}

fn has_function(line: &str, function: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == function)
}

#[test]
fn stacks_names_and_lines() {
    let debuggee = Debuggee::new("stacks");
    let commands = ["break reached", "run", "bt", "info symbol jit_inner", "up", "list", "disassemble", "finish"];
    let text = debuggee.in_gdb(&commands, &["bt"]);
    assert_stack(&text, 0, "");
    for expected in [
        "jit_inner in section .text of ",
        "31\ttoy line 31",
        "Dump of assembler code for function jit_inner:",
        "chain.toy:22",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // Turned off, nobody knows the code.
    let mut gdb = gdb(&["break reached", "run", "bt"]);
    gdb.env("JITSYM_GDB", "0").arg("--args").arg(&debuggee.program).arg(&debuggee.dir).arg("bt");
    assert!(!said(&mut gdb).contains("jit_inner"));
}

/// The breakpoint is set before there is such a function. The first call of the code meets it.
#[test]
fn breakpoints_by_name() {
    let debuggee = Debuggee::new("breakpoints");
    assert_stack(&debuggee.in_gdb(&["break jit_inner", "run", "bt"], &["bt"]), 1, "");
    // Other code comes to the same place.
    let text = debuggee.in_gdb(
        &["break old_jit_inner", "break jit_inner", "run", "bt", "continue", "echo SECOND\\n", "bt", "info symbol $pc"],
        &["reuse"],
    );
    let (first, second) = text.split_once("SECOND").expect("two stops");
    assert_stack(first, 1, "old_");
    assert_stack(second, 1, "");
    assert!(!second.contains("old_"), "{text}");
}

/// At each instruction of the three functions, forth and back.
#[test]
fn every_instruction() {
    let debuggee = Debuggee::new("instructions");
    // Each of the three functions has four instructions up to the end of its call, and three after it.
    const FORTH: usize = 3 * 4;
    const BACK: usize = 3 * 3;
    let step = ["echo STEP\\n", "bt", "stepi"];
    let mut commands = vec!["break jit_outer", "run", "delete"];
    commands.extend(std::iter::repeat_n(step, FORTH).flatten());
    commands.push("finish");
    commands.extend(std::iter::repeat_n(step, BACK).flatten());
    let text = debuggee.in_gdb(&commands, &["bt"]);
    let (mut seen, mut innermost) = (0, std::collections::BTreeSet::new());
    for step in text.split("STEP\n").skip(1) {
        let frames = frames(step);
        let functions = ["jit_inner", "jit_middle", "jit_outer"];
        let is_at = |name: &&str| frames.first().is_some_and(|line| has_function(line, name));
        let Some(at) = functions.iter().position(is_at).or(is_at(&"inlined_step").then_some(1)) else { continue };
        let functions: Vec<&str> = functions[at..].iter().copied().chain(["call_through", "main"]).collect();
        let found: Vec<&str> =
            functions.iter().copied().filter(|name| frames.iter().any(|line| has_function(line, name))).collect();
        assert_eq!(found, functions, "{step}");
        seen += 1;
        innermost.insert(at);
    }
    assert!(seen == FORTH + BACK && innermost.len() == 3, "{seen} {innermost:?}: {text}");
}

/// A debugger that comes later, and 100,000 functions.
#[test]
fn attached_later() {
    let debuggee = Debuggee::new("attached");
    let waiting = debuggee.waiting(&["wait", "100000", GDB]);
    let mut gdb = gdb(&["bt", "info symbol many_77777", "maint info jit"]);
    let text = said(gdb.args(["-p", &waiting.0.id().to_string()]));
    assert_stack(&text, 0, "");
    assert!(text.contains("many_77777 in section"), "{text}");
    let listed = text.lines().filter(|line| line.starts_with("0x")).count();
    assert!((3..=LISTED_MOST).contains(&listed), "{text}");
}

/// One after the other, with gdb's eyes on them.
#[test]
fn many_in_gdb() {
    let debuggee = Debuggee::new("many");
    let commands = ["break reached", "run", "bt", "info symbol many_299", "maint info jit"];
    let text = debuggee.in_gdb(&commands, &["bt", "300"]);
    assert_stack(&text, 0, "");
    assert!(text.contains("many_299 in section"), "{text}");
    let listed = text.lines().filter(|line| line.starts_with("0x")).count();
    assert!((3..=LISTED_MOST).contains(&listed), "{text}");
}

/// Code that ends one by one costs no whole object each, and the sink is started and stopped while the debugger listens.
#[test]
fn ends_and_changes_in_gdb() {
    let debuggee = Debuggee::new("changes");
    let commands = ["break reached", "run", "bt", "info symbol many_8", "info symbol many_7"];
    let text = debuggee.in_gdb(&commands, &["one-by-one", "2000"]);
    assert_stack(&text, 0, "");
    assert!(text.contains("many_7 in section") && !text.contains("many_8 in section"), "{text}");
    let text = debuggee.in_gdb(&commands, &["on-and-off", "20"]);
    assert_stack(&text, 0, "");
    assert!(text.contains("many_8 in section"), "{text}");
    // A session that has it alone, and nobody listens.
    let output = run(Command::new(&debuggee.program).arg(&debuggee.dir).args(["on-and-off", "1000", "9"]));
    assert!(stdout(&output).ends_with("ok\n"), "{output:?}");
}

#[test]
fn core_files() {
    let debuggee = Debuggee::new("core");
    // By gdb, so that it does not matter where the kernel puts them.
    let waiting = debuggee.waiting(&["wait", "100", GDB]);
    let core = debuggee.dir.join("core");
    let write = format!("gcore {}", core.display());
    said(gdb(&[&write]).args(["-p", &waiting.0.id().to_string()]));
    drop(waiting);
    assert_stack(&said(gdb(&["bt"]).arg(&debuggee.program).arg(&core)), 0, "");
    assert_stack(&said(lldb(&["bt"]).arg("-c").arg(&core).arg(&debuggee.program)), 0, "");
}

fn lldb(commands: &[&str]) -> Command {
    let mut lldb = Command::new("timeout");
    lldb.args(["-k", "5", "1200", "lldb", "-b", "--no-lldbinit"]).env("LC_ALL", "C");
    commands.iter().fold(lldb, |mut lldb, command| {
        lldb.args(["-o", command]);
        lldb
    })
}

#[test]
fn in_lldb() {
    let debuggee = Debuggee::new("lldb");
    let mut lldb = lldb(&["breakpoint set -n reached", "run", "bt", "quit"]);
    let text = said(lldb.arg("--").arg(&debuggee.program).arg(&debuggee.dir).arg("bt"));
    assert_stack(&text, 0, "");
}

#[test]
fn forked_children() {
    let debuggee = Debuggee::new("forked");
    let commands = [
        "set follow-fork-mode child",
        "break child_jit_inner",
        "break jit_inner",
        "run",
        "bt",
        "continue",
        "echo SECOND\\n",
        "bt",
    ];
    let text = debuggee.in_gdb(&commands, &["fork"]);
    let (first, second) = text.split_once("SECOND").expect("two stops");
    assert_stack(first, 1, "child_");
    for function in ["jit_inner", "jit_middle", "jit_outer", "call_through", "main"] {
        assert!(frames(second).iter().any(|line| has_function(line, function)), "{function}: {second}");
    }
}

/// Without its symbol table the library is known by its dynamic symbols, and so is a program with the static one, which exports them.
#[test]
fn stripped() {
    let dir = scratch_dir("stripped-library");
    let library = dir.join("libjitsym.so.0.1");
    std::fs::create_dir_all(&dir).expect("directory");
    run(Command::new("strip").arg("-o").arg(&library).arg(artifacts().shared_dir.join("libjitsym.so")));
    let shared = Debuggee::new("stripped-shared");
    let mut gdb_on_shared =
        gdb(&["break jit_inner", &format!("set environment LD_LIBRARY_PATH {}", dir.display()), "run", "bt"]);
    let text = said(gdb_on_shared.arg("--args").arg(&shared.program).arg(&shared.dir).arg("bt"));
    assert_stack(&text, 1, "");

    let fixed = Debuggee::linked("stripped-static", Link::Static, &["-Wl,--export-dynamic-symbol=__jit_debug_*"], &[]);
    let stripped = fixed.dir.join("stripped");
    run(Command::new("strip").arg("-o").arg(&stripped).arg(&fixed.program));
    let text = said(gdb(&["break jit_inner", "run", "bt"]).arg("--args").arg(&stripped).arg(&fixed.dir).arg("bt"));
    let lines = frames(&text);
    assert!(
        ["jit_inner", "jit_middle", "jit_outer"]
            .iter()
            .zip([0, 2, 3])
            .all(|(name, at)| lines.get(at).is_some_and(|line| has_function(line, name))),
        "{text}"
    );
}

/// Files of regions are no objects that gdb knows of.
#[test]
fn in_adopted_memory() {
    let debuggee = Debuggee::new("adopted");
    let text = debuggee.in_gdb(&["break reached", "run", "bt", "info proc mappings"], &["adopted"]);
    assert_stack(&text, 0, "");
    assert!(text.lines().any(|line| line.contains("/jit-") && line.ends_with(".so")), "it is no region: {text}");
}

/// The program has the interface too. Its list is the one that is used, and nothing collides.
#[test]
fn another_definer() {
    for (test, link) in [("definer-shared", Link::Shared), ("definer-static", Link::Static)] {
        let debuggee = Debuggee::linked(test, link, &["-rdynamic"], &["c-tests/debug/definer.c"]);
        let commands =
            ["break reached", "run", "bt", "info symbol &__jit_debug_descriptor", "print __jit_debug_descriptor.first"];
        let text = debuggee.in_gdb(&commands, &["bt"]);
        assert_stack(&text, 0, "");
        assert!(
            text.contains("__jit_debug_descriptor in section .data") && text.contains("(struct entry *) 0x"),
            "{text}"
        );
        assert!(!text.contains("(struct entry *) 0x0"), "{text}");
    }
}

/// The page's transcript is what gdb prints, but for numbers that differ from run to run.
#[test]
fn the_page_shows_what_gdb_prints() {
    let debuggee = Debuggee::new("page");
    let text = debuggee.in_gdb(&["break reached", "run", "bt", "info symbol jit_inner"], &["bt"]);
    let kept = text
        .lines()
        .filter(|line| line.starts_with('#') || line.contains(" in section "))
        .map(|line| as_on_the_page(line, &debuggee.dir));
    let expected = kept.collect::<Vec<_>>().join("\n");
    let page = std::fs::read_to_string(root().join("docs/debugging.md")).expect("page");
    let transcript = page.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("transcript");
    assert_eq!(transcript, expected);
}

/// Addresses are dots, and directories are left out.
fn as_on_the_page(line: &str, dir: &Path) -> String {
    let line = line.replace(&format!("{}/", dir.display()), "");
    let mut pieces = line.split("0x");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        out += "0x...";
        out += piece.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    out
}
