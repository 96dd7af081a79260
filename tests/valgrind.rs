//! Programs that register code, under valgrind: what its tools say of the code, held against the instructions that the program is
//! known to run. The installed valgrind, and those of two newer Debian suites.
//!
//! The program (`c-tests/valgrind/guest.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

mod cost;
mod profile;
mod trampolines;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::support::*;
use profile::Profile;

/// Instructions of a call of the loop, and of a piece of the chain without what it calls.
const LOOP: u64 = 103;
const PIECE: u64 = 7;
/// `JITSYM_SINK_VALGRIND`, and the other sinks that run by themselves beside it.
const VALGRIND: u32 = 32;
const BESIDE: u32 = 3;
const REGION: u32 = 4;

/// The valgrinds that there are, the installed one first.
fn valgrinds() -> &'static [PathBuf] {
    static ALL: OnceLock<Vec<PathBuf>> = OnceLock::new();
    ALL.get_or_init(|| versions("valgrind"))
}

fn installed() -> &'static Path {
    &valgrinds()[0]
}

fn guest() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/valgrind/guest.c"], Link::Shared, &["-std=gnu11", "-O1"], "guest"))
}

/// A run of the program.
struct Guest {
    dir: PathBuf,
    command: Command,
}

impl Guest {
    /// With a tool of valgrind, or natively.
    fn new(valgrind: Option<(&Path, &str)>, name: &str, what: &[&str]) -> Guest {
        let dir = fresh_dir(name);
        let path = dir.clone();
        Guest::with_path(valgrind, dir, &path, what)
    }

    /// `path` is by what the program finds `dir`.
    fn with_path(valgrind: Option<(&Path, &str)>, dir: PathBuf, path: &Path, what: &[&str]) -> Guest {
        let mut command = Command::new("env");
        if let Some((valgrind, tool)) = valgrind {
            command.arg(valgrind).arg(format!("--tool={tool}")).args(["-q", "--error-exitcode=9"]);
            if !matches!(tool, "memcheck" | "helgrind" | "drd" | "none") {
                command.arg(format!("--{tool}-out-file={}", dir.join("out").display()));
            }
        }
        command.arg(guest()).arg(path).args(what);
        for variable in ["JITSYM", "JITSYM_DIR", "JITSYM_VALGRIND", "JITSYM_GDB", "JITSYM_ADOPT", "JITSYM_LATE"] {
            command.env_remove(variable);
        }
        Guest { dir, command }
    }

    /// Runs it. It says that all was well, and which sinks ran.
    fn run(&mut self) -> Output {
        let output = try_run(&mut self.command);
        assert!(stdout(&output).ends_with("ok\n"), "{}", describe(&self.command, &output));
        output
    }

    /// Runs it, and nobody complains of anything.
    fn run_clean(&mut self) -> Output {
        let output = self.run();
        let is_clean = output.status.success() && output.stderr.is_empty();
        assert!(is_clean && stdout(&output).contains("\nerror \n"), "{}", describe(&self.command, &output));
        output
    }

    /// The files that valgrind was shown.
    fn files(&self) -> usize {
        let is_shown = |name: &OsStr| name.to_string_lossy().contains("-v") && name.to_string_lossy().ends_with(".so");
        std::fs::read_dir(&self.dir)
            .expect("files")
            .filter(|file| is_shown(&file.as_ref().expect("file").file_name()))
            .count()
    }
}

fn callgrind(valgrind: &Path, name: &str, what: &[&str]) -> (Profile, Guest) {
    let mut guest = Guest::new(Some((valgrind, "callgrind")), name, what);
    let output = guest.run_clean();
    assert!(stdout(&output).contains(&format!("sinks {} failed 0\n", VALGRIND | BESIDE)), "{output:?}");
    (Profile::read(&guest.dir.join("out")), guest)
}

/// Each function by name and file, its callers and callees, and inclusive costs, which are known. On one page, and where each
/// function lies in two of them.
#[test]
fn callgrind_has_names_calls_costs_and_lines() {
    const COUNT: u64 = 200;
    for (number, valgrind) in valgrinds().iter().enumerate() {
        for what in ["calls", "straddling"] {
            let (profile, guest) = callgrind(valgrind, &format!("{what}-{number}"), &[what, &COUNT.to_string()]);
            let chain = ["call", "jit_outer", "jit_middle", "jit_inner", "jit_loop"];
            let mut object = None;
            for (depth, names) in chain.windows(2).enumerate() {
                let [caller, name] = names else { unreachable!() };
                let function = profile.function(name);
                let cost = COUNT * (LOOP + PIECE * (3 - depth as u64));
                assert_eq!((function.cost, function.callers.len()), (cost, 1), "{name}: {}", profile.text);
                assert_eq!(function.callers.get(*caller), Some(&(COUNT, cost)), "{name}: {}", profile.text);
                let callee = chain.get(depth + 2).map(|callee| (callee.to_string(), (COUNT, cost - COUNT * PIECE)));
                assert_eq!(function.callees, callee.into_iter().collect(), "{name}: {}", profile.text);
                assert_eq!(Path::new(&function.file), guest.dir.join("chain.toy"), "{}", profile.text);
                assert_eq!(*object.get_or_insert(&function.object), &function.object, "{}", profile.text);
            }
            for (first, piece) in [10, 20, 30].iter().zip(&chain[1..]) {
                let costs = [0, 1, 2, 3].map(|more| profile.line(&format!("toy line {}", first + more)));
                assert_eq!(costs, [2 * COUNT, 2 * COUNT, 3 * COUNT, 0], "{piece}: {}", profile.text);
            }
            assert_eq!(profile.line("toy line 40"), COUNT * LOOP);
            assert_eq!(guest.files(), 1, "a chain of pages is one file");
        }
    }
}

/// The control: without the sink valgrind knows nothing of the same code.
#[test]
fn without_the_sink_callgrind_has_no_names() {
    let mut guest = Guest::new(Some((installed(), "callgrind")), "off", &["calls", "20"]);
    guest.command.env("JITSYM_VALGRIND", "0");
    let output = guest.run();
    assert!(!stdout(&output).contains(&format!("sinks {}", VALGRIND | BESIDE)), "{output:?}");
    let profile = Profile::read(&guest.dir.join("out"));
    assert!(!profile.has("jit_outer") && !profile.has("jit_loop") && guest.files() == 0, "{}", profile.text);
}

/// Code that lies in two pages, hundreds of functions in a row, one by one and in bursts. Each function runs a number of times that
/// is known.
#[test]
fn packed_code_and_bursts() {
    const COUNT: usize = 700;
    for burst in ["1", "64"] {
        let (profile, _) = callgrind(installed(), &format!("packed-{burst}"), &["packed", &COUNT.to_string(), burst]);
        for number in 0..COUNT {
            let name = format!("packed_{number}");
            assert_eq!(profile.sum(&name), LOOP * (1 + number as u64 % 3), "{name}, bursts of {burst}");
        }
    }
}

/// Costs of code are under the name that it had when it ran: after a move, and where other code was.
#[test]
fn moved_and_ended_code() {
    let known = [("jit_moving", 300), ("jit_second", 30), ("jit_third", 7), ("jit_fourth", 5)];
    for (number, valgrind) in valgrinds().iter().enumerate() {
        let (profile, _) = callgrind(valgrind, &format!("moves-{number}"), &["moves"]);
        for (name, count) in known {
            assert_eq!(profile.sum(name), count * LOOP, "{name}: {}", profile.text);
        }
    }
}

/// Memory of regions and of the allocator, and memory that a host would have adopted, is plain under valgrind, and has its names.
#[test]
fn memory_of_the_library() {
    let mut guest = Guest::new(Some((installed(), "callgrind")), "regions", &["regions"]);
    guest.run();
    let profile = Profile::read(&guest.dir.join("out"));
    for (name, count) in [("jit_in_region", 11), ("jit_allocated", 13), ("jit_not_adopted", 17)] {
        assert_eq!(profile.sum(name), count * LOOP, "{name}: {}", profile.text);
    }
}

/// A forked child goes on by itself, with files of its own.
#[test]
fn forked_children() {
    let mut guest = Guest::new(Some((installed(), "callgrind")), "child", &["child"]);
    let out = format!("--callgrind-out-file={}", guest.dir.join("out.%p").display());
    let mut command = Command::new(installed());
    command.args(["--tool=callgrind", "-q", &out]).arg(self::guest()).arg(&guest.dir).arg("child");
    guest.command = command;
    guest.run_clean();
    let outs = std::fs::read_dir(&guest.dir).expect("files").map(|file| file.expect("file").path());
    let outs = outs.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("out.")));
    let mut seen: Vec<(u64, u64, u64)> = Vec::new();
    for out in outs {
        let profile = Profile::read(&out);
        seen.push((profile.sum("jit_of_parent"), profile.sum("jit_of_child"), profile.sum("jit_loop")));
    }
    seen.sort_unstable();
    // The child's profile has what ran before the fork, too.
    assert_eq!(seen, [(0, 20 * LOOP, 20 * LOOP), (20 * LOOP, 0, 20 * LOOP)]);
}

/// The whole stack, through code without frame pointers, by name and line.
#[test]
fn memcheck_has_whole_stacks() {
    let stack = [
        ("jit_reader", "chain.toy:50"),
        ("jit_inner", "chain.toy:31"),
        ("jit_middle", "chain.toy:21"),
        ("jit_outer", "chain.toy:11"),
        ("call", "guest.c:"),
    ];
    for (number, valgrind) in valgrinds().iter().enumerate() {
        let mut guest = Guest::new(Some((valgrind, "memcheck")), &format!("invalid-{number}"), &["invalid"]);
        let output = guest.run();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut lines = text.lines().skip_while(|line| !line.contains("Invalid read of size 8")).skip(1);
        for (name, place) in stack {
            let line = lines.next().unwrap_or_default();
            assert!(line.contains(&format!(": {name} (")) && line.contains(place), "{name}, {place}: {text}");
        }
        assert!(text.contains("main (guest.c:") && text.matches("Invalid read").count() == 1, "{text}");
        assert_eq!(output.status.code(), Some(9), "{text}");
    }
    let mut guest = Guest::new(Some((installed(), "memcheck")), "invalid-off", &["invalid"]);
    guest.command.env("JITSYM_VALGRIND", "0");
    let output = guest.run();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("jit_"), "{output:?}");
}

/// Registered padding that nobody has written is no error of the program.
#[test]
fn padding_is_not_reported() {
    Guest::new(Some((installed(), "memcheck")), "padding", &["padding"]).run_clean();
    // The control: the same bytes, which the jitdump has.
    let mut guest = Guest::new(Some((installed(), "memcheck")), "padding-off", &["padding"]);
    guest.command.env("JITSYM_VALGRIND", "0");
    let output = guest.run();
    assert!(String::from_utf8_lossy(&output.stderr).contains("uninitialised byte(s)"), "{output:?}");
}

/// Protection, contents and sharing stay. Code that changes itself or is written elsewhere, and code where there is none, do as
/// natively.
#[test]
fn memory_is_as_it_was() {
    Guest::new(None, "memory-natively", &["memory"]).run();
    for (number, valgrind) in valgrinds().iter().enumerate() {
        for tool in ["callgrind", "memcheck"] {
            let output = Guest::new(Some((valgrind, tool)), &format!("memory-{tool}-{number}"), &["memory"]).run();
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        }
    }
}

/// Memory whose code has ended is unmapped. valgrind lives, says nothing, and knows the code beside it.
#[test]
fn memory_is_unmapped() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        Guest::new(Some((valgrind, "memcheck")), &format!("unmapped-memcheck-{number}"), &["unmapped"]).run_clean();
        let (profile, guest) = callgrind(valgrind, &format!("unmapped-{number}"), &["unmapped"]);
        for (pages, way) in
            [1, 16, 256].iter().flat_map(|pages| ["unregistered", "mapping", "silent"].map(|way| (pages, way)))
        {
            assert_eq!(profile.sum(&format!("kept_{pages}_{way}")), 3 * LOOP, "{}", profile.text);
        }
        // One for each of the pages that are left, and not one more for each of those that are gone.
        assert!(guest.files() < 15, "{} files", guest.files());
    }
}

/// The other tools find nothing wrong, and those that have functions in what they write have ours.
#[test]
fn the_other_tools() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        for tool in ["cachegrind", "massif", "dhat", "none"] {
            let mut guest = Guest::new(Some((valgrind, tool)), &format!("{tool}-{number}"), &["allocations", "20"]);
            let output = guest.run();
            let errors = String::from_utf8_lossy(&output.stderr);
            // cachegrind speaks of the processor's caches.
            let is_clean = output.status.success() && errors.lines().all(|line| line.contains(" cache"));
            assert!(is_clean && stdout(&output).contains("\nerror \n"), "{}", describe(&guest.command, &output));
            let has = |parts: &[&str]| {
                let text = std::fs::read_to_string(guest.dir.join("out")).expect("what the tool has written");
                assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            };
            match tool {
                "cachegrind" => has(&["fn=jit_inner", "chain.toy"]),
                // The stacks of allocations go through compiled code.
                "massif" | "dhat" => has(&["jit_inner (chain.toy:31)", "jit_outer (chain.toy:11)"]),
                _ => {}
            }
        }
    }
}

/// Threads of a host keep no order in what they do with the library and its memory. The tools that look for races report nothing of
/// that, with the sink and without. A race of the host's own, in the same threads, is reported.
#[test]
fn race_checkers() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        for tool in ["helgrind", "drd"] {
            let guest = |name: &str, planted| {
                Guest::new(Some((valgrind, tool)), &format!("{tool}-{name}-{number}"), &["races", planted])
            };
            guest("clean", "0").run_clean();
            let mut without = guest("without", "0");
            without.command.env("JITSYM_VALGRIND", "0");
            without.run_clean();
            let output = guest("planted", "1").run();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let mut lines = text.lines();
            let mut found = 0;
            while lines.any(|line| line.contains("Possible data race") || line.contains("Conflicting")) {
                let place = lines.find(|line| line.contains(" at 0x")).unwrap_or_default();
                assert!(place.contains(": plants (guest.c:"), "{text}");
                found += 1;
            }
            assert!(found > 0 && output.status.code() == Some(9), "{text}");
        }
    }
}

/// Threads run code of the pages of which valgrind is told meanwhile.
fn threads(valgrind: &Path, tool: &str, name: &str) {
    let functions = if thorough() { 40 } else { 10 };
    let mut guest = Guest::new(Some((valgrind, tool)), name, &["threads", &functions.to_string()]);
    guest.command.env("JITSYM", "map");
    let output = guest.run();
    assert!(output.status.success(), "{}", describe(&guest.command, &output));
    if tool == "callgrind" {
        let profile = Profile::read(&guest.dir.join("out"));
        for number in 0..functions {
            assert_eq!(profile.sum(&format!("among_{number}")), 3 * LOOP, "{}", profile.text);
        }
    }
}

#[test]
fn threads_that_run_the_code() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        threads(valgrind, "callgrind", &format!("threads-callgrind-{number}"));
        threads(valgrind, "memcheck", &format!("threads-memcheck-{number}"));
    }
}

#[test]
#[ignore = "takes minutes"]
fn fifty_times_as_often() {
    for number in 0..50 {
        threads(installed(), "callgrind", &format!("threads-{number}"));
    }
}

/// The library's thread may be slow under valgrind, where one thread runs at a time: a call waits for it all the same.
#[test]
fn a_call_waits_until_it_is_known() {
    let (profile, _) = callgrind(installed(), "late", &["late"]);
    assert_eq!(profile.sum("jit_late"), 3 * LOOP, "{}", profile.text);
}

/// Where the file of some code cannot be made, the call says so, and valgrind is told of the code as soon as that is possible.
#[test]
fn code_of_which_valgrind_could_not_be_told() {
    let mut guest = Guest::new(Some((installed(), "callgrind")), "failing", &["failing"]);
    guest.command.env("JITSYM", "valgrind");
    let said = stdout(&guest.run());
    assert!(said.contains(&format!("sinks {VALGRIND} failed 0\nerror cannot tell valgrind of code: ")), "{said}");
    let profile = Profile::read(&guest.dir.join("out"));
    for number in 0..2 {
        assert_eq!(profile.sum(&format!("failing_{number}")), 5 * LOOP, "{}", profile.text);
    }
}

/// Natively pages are never exchanged: the threads would run into nothing. The sink does not run, even if it is asked for.
#[test]
fn natively_the_sink_does_not_run() {
    for number in 0..5 {
        let mut guest = Guest::new(None, &format!("natively-{number}"), &["threads", "80"]);
        guest.command.env("JITSYM", "map,valgrind").env("JITSYM_VALGRIND", "1");
        let output = guest.run();
        let said = stdout(&output);
        assert!(said.contains("sinks 1 failed 32\n") && said.contains("does not run under valgrind"), "{said}");
        assert_eq!(guest.files(), 0);
    }
    let mut guest = Guest::new(None, "natively", &["calls", "20"]);
    let said = stdout(&guest.run_clean());
    assert!(said.contains(&format!("sinks {} failed 0\n", BESIDE | REGION)) && guest.files() == 0, "{said}");
}

/// gdb on a program that valgrind runs, by way of valgrind's own server for it.
#[test]
fn gdb_by_way_of_valgrind() {
    for tool in ["none", "memcheck"] {
        gdb_by_way_of(tool);
    }
}

fn gdb_by_way_of(tool: &str) {
    let mut guest = Guest::new(Some((installed(), tool)), &format!("vgdb-{tool}"), &["debugger"]);
    let prefix = format!("--vgdb-prefix={}", guest.dir.join("vgdb").display());
    let mut command = Command::new(installed());
    command.arg(format!("--tool={tool}")).args(["-q", "--vgdb=yes", "--vgdb-error=0", &prefix]);
    guest.command = command;
    guest.command.arg(self::guest()).arg(&guest.dir).arg("debugger").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = guest.command.spawn().expect("valgrind");
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-nx", "-batch"]).env("LC_ALL", "C");
    let target = format!("target remote | vgdb --wait=60 {prefix} --pid={}", child.id());
    let settings = ["set pagination off", "set width 0", "set debuginfod enabled off", "set breakpoint pending on"];
    for command in settings.into_iter().chain([&*target, "break reached", "continue", "bt", "delete", "continue"]) {
        gdb.args(["-ex", command]);
    }
    let text = stdout(&run(gdb.arg(self::guest())));
    let _ = child.kill();
    child.wait().expect("its end");
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    for (number, name) in ["reached", "jit_inner", "jit_middle", "jit_outer", "call", "run_debugger"].iter().enumerate()
    {
        let is_it = |frame: &&&str| frame.contains(&format!("{name} ("));
        assert!(frames.get(number).filter(is_it).is_some(), "{tool}, {name}: {text}");
    }
    assert!(frames[1].contains("chain.toy:31"), "{tool}: {text}");
}

/// LuaJIT as Debian has it, with our module: its traces have their names.
#[test]
fn traces_of_luajit() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        let dir = fresh_dir(format!("luajit-{number}"));
        let out = dir.join("out");
        let mut command = Command::new(valgrind);
        command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", out.display()));
        command.env("LUA_PATH", format!("{};;", root().join("bindings/luajit/?.lua").display()));
        command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so")).env("JITSYM_DIR", &dir);
        let script = root().join("tests/valgrind/luajit.lua");
        let output = run(command.env_remove("JITSYM").args(["luajit", "-ljitsym"]).arg(script));
        assert!(stdout(&output) == "true\n" && output.stderr.is_empty(), "{output:?}");
        let profile = Profile::read(&out);
        // LuaJIT counts by addresses, so chance decides whether the loop or the function that it calls is compiled first.
        let is_loop =
            |line: &&str| line.contains("  *  ") && line.contains(":TRACE_") && line.contains(" luajit.lua:7 ");
        let mut lines = profile.text.lines().filter(is_loop);
        assert!(lines.any(|line| line.contains("-v")), "{}", profile.text);
    }
}

/// KCachegrind shows flat profile, source, call graph and machine code. With `JITSYM_BLESS`, the picture becomes that of
/// docs/valgrind.md. Needs what is named in the script, and tesseract, which reads it.
#[test]
#[ignore = "opens a window, and needs many packages"]
fn kcachegrind() {
    let dir = Path::new("/tmp/jitsym-kcachegrind");
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir(dir).expect("directory");
    let picture = dir.join("picture.png");
    run(Command::new("sh").arg(root().join("tests/valgrind/kcachegrind.sh")).arg(guest()).arg(dir).arg(&picture));
    let large = dir.join("large.png");
    run(Command::new("convert").arg(&picture).args(["-resize", "300%"]).arg(&large));
    let text = stdout(&run(Command::new("tesseract").arg(&large).args(["-", "--psm", "11"])));
    let is_read = |part: &str, times| text.matches(part).count() >= times;
    // The functions, a line, a call of it, what it calls by machine code, the calls in the graph, and instructions.
    let parts = [("jit_outer", 1), ("toy line", 5), ("calls to", 2), ("30 000 x", 1), ("movabs", 1), ("$0x20,%rsp", 2)];
    assert!(parts.iter().all(|&(part, times)| is_read(part, times)), "{text}");
    if std::env::var_os("JITSYM_BLESS").is_some() {
        std::fs::copy(&picture, root().join("docs/kcachegrind.png")).expect("the picture in the documents");
    }
    std::fs::remove_dir_all(dir).expect("directory");
}
