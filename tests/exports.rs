//! What the shared library offers to and asks of the dynamic linker.

use crate::support::{artifacts, run, stdout};
use std::collections::BTreeSet;
use std::process::Command;

/// The dynamic section: tag and value of each entry, for instance `("NEEDED", "Shared library: [libc.so.6]")`.
fn dynamic_section() -> Vec<(String, String)> {
    let library = artifacts().shared_dir.join("libjitsym.so");
    // Wide, and in English.
    let output = run(Command::new("readelf").env("LC_ALL", "C").args(["-d", "-W"]).arg(library));
    let entries: Vec<_> = stdout(&output)
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once('(')?;
            let (tag, value) = rest.split_once(')')?;
            Some((tag.to_string(), value.trim().to_string()))
        })
        .collect();
    assert!(entries.iter().any(|(tag, _)| tag == "SYMTAB"), "not the output that was expected: {output:?}");
    entries
}

/// The names in brackets of all entries with a tag.
fn names(tag: &str) -> Vec<String> {
    let entries = dynamic_section();
    let names = entries.iter().filter(|(found, _)| found == tag);
    names.filter_map(|(_, value)| Some(value.split_once('[')?.1.strip_suffix(']')?.to_string())).collect()
}

/// Flags of a tag, as words.
fn flags(tag: &str) -> Vec<String> {
    let entries = dynamic_section();
    let words = entries.iter().filter(|(found, _)| found == tag).flat_map(|(_, value)| value.split_whitespace());
    words.map(str::to_string).collect()
}

/// The names by which debuggers find code. They have no declaration, because no program calls them.
const DEBUGGERS: [&str; 2] = ["__jit_debug_register_code", "__jit_debug_descriptor"];

/// The functions of a collector for Intel's JIT profiling API, which runtimes look up themselves.
const COLLECTOR: [&str; 2] = ["Initialize", "NotifyEvent"];

/// A function that the library looks up itself.
const OWN: &str = "jitsym_start_bridge";

/// No function more than the list says, which would be one that cannot be taken back, and none less. A new function is added
/// to the list; a name never leaves it without a new soname.
#[test]
fn exported_symbols() {
    let library = artifacts().shared_dir.join("libjitsym.so");
    let output = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library));
    let text = stdout(&output);
    let mut exported = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (name, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if DEBUGGERS.contains(&name) {
            continue;
        }
        assert_eq!(kind, "T", "{name} is no function");
        exported.insert(name);
    }
    assert!(COLLECTOR.iter().all(|name| exported.remove(name)), "{COLLECTOR:?} in {text}");
    assert!(exported.remove(OWN), "{OWN} in {text}");
    for name in DEBUGGERS {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {text}");
    }
    let expected: BTreeSet<&str> = include_str!("exports.txt").lines().collect();
    assert_eq!(exported, expected, "exported symbols differ from tests/exports.txt");
}

/// The list and the headers name the same functions.
#[test]
fn declared_functions() {
    let mut rest = crate::headers::TEXT;
    let mut declared = BTreeSet::new();
    while let Some((before, after)) = rest.split_once(");") {
        let open = before.rfind("JITSYM_API").map(|at| &before[at..]);
        let name = open.and_then(|declaration| declaration.split_once('(')).map(|(left, _)| left);
        let words = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        declared.extend(name.and_then(|left| words(left).next_back()));
        rest = after;
    }
    let expected: BTreeSet<&str> = include_str!("exports.txt").lines().collect();
    assert_eq!(declared, expected, "functions of the headers differ from tests/exports.txt");
}

/// Nothing that a machine might not have. libgcc_s unwinds panics to the boundary where they become a status.
#[test]
fn needed_libraries() {
    for name in names("NEEDED") {
        let allowed = ["libc.so.", "libgcc_s.so.", "ld-linux-"].iter().any(|start| name.starts_with(start));
        assert!(allowed, "the library needs {name}");
    }
    assert!(names("RPATH").is_empty() && names("RUNPATH").is_empty());
}

#[test]
fn soname() {
    assert_eq!(names("SONAME"), ["libjitsym.so.0.1"]);
}

/// A library with static TLS cannot be loaded by `dlopen` once the reserve is used up ("cannot allocate memory in static TLS
/// block").
#[test]
fn no_static_tls() {
    assert!(!flags("FLAGS").iter().any(|flag| flag == "STATIC_TLS"), "{:?}", flags("FLAGS"));
}

/// The background thread and the exit handler run code of the library: it may not go away under them.
#[test]
fn not_unloadable() {
    assert!(flags("FLAGS_1").iter().any(|flag| flag == "NODELETE"), "{:?}", flags("FLAGS_1"));
}

/// No text relocations, no executable stack: hardened programs refuse to load such libraries.
#[test]
fn hardened() {
    assert!(dynamic_section().iter().all(|(tag, _)| tag != "TEXTREL"));
    assert!(!flags("FLAGS").iter().any(|flag| flag == "TEXTREL"));
    let stack = segment("GNU_STACK", "RW");
    assert!(!stack.contains("RWE"), "{stack}");
}

/// perf 7 takes code to be as far from an object's beginning as it is in the file.
#[test]
fn code_is_where_it_is_in_the_file() {
    let code = segment("LOAD", "R E");
    let numbers: Vec<_> = code.split_whitespace().filter_map(|word| word.strip_prefix("0x")).collect();
    let number = |at: usize| u64::from_str_radix(numbers[at], 16).unwrap();
    assert_eq!(number(0), number(1), "{code}");
}

/// The line about the segment of this type with these flags.
fn segment(kind: &str, flags: &str) -> String {
    let library = artifacts().shared_dir.join("libjitsym.so");
    let output = stdout(&run(Command::new("readelf").env("LC_ALL", "C").args(["-l", "-W"]).arg(library)));
    let mut lines = output.lines().map(str::trim_start);
    lines.find(|line| line.starts_with(kind) && line.contains(flags)).expect(kind).to_string()
}
