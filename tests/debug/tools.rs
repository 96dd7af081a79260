//! The debuggers that the tests run, the program that they run in them, and what they print of a stack.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::support::*;

/// The frames of `bt` from `reached` on, and the lines of the source that they are at.
pub const STACK: [(&str, &str); 7] = [
    ("reached", "debuggee.c:"),
    ("jit_inner", "chain.toy:31"),
    ("inlined_step", "chain.toy:21"),
    ("jit_middle", "chain.toy:25"),
    ("jit_outer", "chain.toy:11"),
    ("call_through", "debuggee.c:"),
    ("main", "debuggee.c:"),
];

/// What `JITSYM_SINK_GDB` is.
pub const GDB: &str = "8";

/// gdb or lldb.
pub struct Debugger {
    program: PathBuf,
    /// Where it comes from, for messages.
    name: String,
    pub is_installed: bool,
}

/// The gdb that is installed, and newer ones.
pub fn gdbs() -> &'static [Debugger] {
    static ALL: OnceLock<Vec<Debugger>> = OnceLock::new();
    ALL.get_or_init(|| debuggers("gdb"))
}

/// The same of lldb.
pub fn lldbs() -> &'static [Debugger] {
    static ALL: OnceLock<Vec<Debugger>> = OnceLock::new();
    ALL.get_or_init(|| debuggers("lldb"))
}

fn debuggers(command: &str) -> Vec<Debugger> {
    let debugger = |program: PathBuf| {
        let name = program.display().to_string();
        Debugger { is_installed: name == command, program, name }
    };
    versions(command).into_iter().map(debugger).collect()
}

impl Debugger {
    /// With these commands; what is debugged is to be added.
    pub fn commands(&self, commands: &[&str]) -> Command {
        let mut debugger = Command::new(&self.program);
        debugger.env("LC_ALL", "C");
        let (options, settings, option): (&[&str], &[&str], &str) = if self.name.ends_with("lldb") {
            (&["-b", "--no-lldbinit"], &[], "-o")
        } else {
            let settings = &[
                "set pagination off",
                "set width 0",
                "set debuginfod enabled off",
                "set breakpoint pending on",
                "set style enabled off",
            ];
            (&["-q", "-nx", "-batch"], settings, "-ex")
        };
        debugger.args(options);
        for command in settings.iter().chain(commands) {
            debugger.args([option, command]);
        }
        debugger
    }

    /// The arguments that come next are a program and its arguments.
    pub fn start<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.arg(if self.name.ends_with("lldb") { "--" } else { "--args" })
    }

    /// What it prints, with its name before that.
    pub fn said(&self, command: &mut Command) -> String {
        let output = try_run(command);
        let text = stdout(&output);
        assert!(output.status.success(), "{}", describe(command, &output));
        format!("{}:\n{text}", self.name)
    }

    /// What it prints of a process that lives.
    pub fn attached(&self, process: &Waiting, commands: &[&str]) -> String {
        self.said(self.commands(commands).args(["-p", &process.0.id().to_string()]))
    }
}

pub struct Debuggee {
    pub program: PathBuf,
    pub dir: PathBuf,
}

impl Debuggee {
    pub fn new(test: &str) -> Debuggee {
        Debuggee::linked(test, Link::Shared, &[], &[])
    }

    pub fn linked(test: &str, link: Link, options: &[&str], more: &[&str]) -> Debuggee {
        let options = [&["-std=gnu11", "-O0"], options].concat();
        let sources = [&["c-tests/debug/debuggee.c"], more].concat();
        let program = compile("gcc", &sources, link, &options, test);
        Debuggee { program, dir: scratch_dir(test) }
    }

    /// The same program without its symbol table.
    pub fn stripped(mut self) -> Debuggee {
        self.program = stripped(&self.program, &self.dir.join("stripped"));
        self
    }

    /// Runs it in a debugger with these commands, and returns what that prints.
    pub fn run_in(&self, debugger: &Debugger, commands: &[&str], what: &[&str]) -> String {
        self.run_with(debugger, debugger.commands(commands), what)
    }

    /// The same, with a debugger that was prepared.
    pub fn run_with(&self, debugger: &Debugger, mut command: Command, what: &[&str]) -> String {
        debugger.start(&mut command).arg(&self.program).arg(&self.dir).args(what);
        debugger.said(&mut command)
    }

    /// Starts it, and waits until it stands in `reached`.
    pub fn waiting(&self, what: &[&str]) -> Waiting {
        let mut command = Command::new(&self.program);
        let mut child = command.arg(&self.dir).args(what).stdout(Stdio::piped()).spawn().expect("program");
        let output = BufReader::new(child.stdout.take().expect("output"));
        assert!(output.lines().any(|line| line.expect("line") == "waiting"), "it has ended");
        Waiting(child)
    }
}

/// A file without its symbol table.
pub fn stripped(file: &Path, out: &Path) -> PathBuf {
    run(Command::new("strip").arg("-o").arg(out).arg(file));
    out.to_owned()
}

/// The library without its symbol table. It has the name of the one that programs are linked with, and takes its place where it is
/// loaded first.
pub fn stripped_library(test: &str) -> PathBuf {
    spaceless(&stripped(&artifacts().shared_dir.join("libjitsym.so"), &scratch_dir(test).join("libjitsym.so.0.1")))
}

/// The lines that end with the path of a library of ours. The folders on that path may be called like it.
pub fn libraries(text: &str) -> Vec<&str> {
    let file = |line: &str| line.rsplit('/').next().is_some_and(|file| file.starts_with("libjitsym.so"));
    text.lines().filter(|line| line.contains('/') && file(line)).collect()
}

/// Links the static library so that debuggers find it in a stripped program.
pub const EXPORTED: &[&str] = &["-Wl,--export-dynamic-symbol=__jit_debug_*"];

/// A program that is ended in the end.
pub struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.kill().expect("end it");
        self.0.wait().expect("its end");
    }
}

/// The lines of a backtrace: those that begin with `#` in gdb's, or have `frame #` in lldb's.
pub fn frames(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with('#') || line.contains("frame #")).collect()
}

/// Asserts that a backtrace is that of the chain, from a frame on.
pub fn assert_stack(text: &str, from: usize, prefix: &str) {
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

/// Asserts that it is that of the chain from `jit_inner` on, without inlined functions: the jitdump has none, which the rest of the
/// code is read from.
pub fn assert_functions(text: &str) {
    let found = frames(text);
    let begin = found.iter().rposition(|line| has_function(line, "jit_inner"));
    let begin = begin.unwrap_or_else(|| panic!("no jit_inner: {text}"));
    for (index, function) in ["jit_inner", "jit_middle", "jit_outer", "call_through", "main"].iter().enumerate() {
        let line = found.get(begin + index).unwrap_or_else(|| panic!("no frame for {function}: {text}"));
        assert!(has_function(line, function), "{function} in {line}: {text}");
    }
}

fn named(function: &str, prefix: &str) -> String {
    if function.starts_with("jit_") {
        format!("{prefix}{function}")
    } else {
        function.to_owned()
    }
}

pub fn has_function(line: &str, function: &str) -> bool {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == function)
}

/// How many steps of single instructions the three functions have up to the end of their calls, and after these.
pub const FORTH: usize = 3 * 4;
pub const BACK: usize = 3 * 3;

/// Asserts that the stack of each step, which begins with the word STEP, reaches `main` from the function that it is in.
pub fn assert_steps(text: &str) {
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

/// Asserts that each text is there.
pub fn assert_has(text: &str, expected: &[&str]) {
    for expected in expected {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Addresses are dots, and directories are left out.
pub fn as_on_the_page(line: &str, dir: &Path) -> String {
    let line = line.replace(&format!("{}/", dir.display()), "");
    let mut pieces = line.split("0x");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        out += "0x...";
        out += piece.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    // gdb 16 says where an object ends, too.
    out.replace("-0x...>", ">")
}
