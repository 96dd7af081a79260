//! Determines which data each reader finds in a file: names, call stacks, source lines.

use std::collections::BTreeMap;

use super::{Kind, Rule, Severity, Summary};

/// How much a reader finds of one aspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The reader shows everything.
    Yes,
    /// The reader shows only a part, for this reason.
    Partly(String),
    /// The reader shows nothing, for this reason.
    No(String),
    /// The file has no such data, or the reader does not read them. The text describes the reader's alternative, if there is
    /// one.
    None(&'static str),
}

/// The data that one reader finds in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The reader.
    pub reader: &'static str,
    /// The states of names, stacks and lines. Empty if the reader does not read such files.
    pub states: Vec<(&'static str, State)>,
}

struct Reader {
    name: &'static str,
    /// The names that rules use for this reader begin with one of these texts. Rules may also contain "all".
    called: &'static [&'static str],
    /// The kinds of files that the reader reads.
    kinds: &'static [Kind],
    /// Whether the reader uses unwind tables from the file.
    tables: bool,
}

const READERS: [Reader; 4] = [
    Reader {
        name: "perf 6 (libunwind)",
        called: &["perf 6"],
        kinds: &[Kind::Jitdump, Kind::PerfMap, Kind::Region],
        tables: true,
    },
    Reader {
        name: "perf 7 (libdw)",
        called: &["perf 7"],
        kinds: &[Kind::Jitdump, Kind::PerfMap, Kind::Region],
        tables: true,
    },
    Reader { name: "samply", called: &["samply"], kinds: &[Kind::Jitdump, Kind::PerfMap, Kind::Region], tables: false },
    Reader {
        name: "blazesym, bpftrace",
        called: &["blazesym", "bcc"],
        kinds: &[Kind::PerfMap, Kind::Region],
        tables: false,
    },
];

/// Rules that make a reader lose all data of the file if they are broken once.
const EVERYTHING: &[&str] = &[
    "dump-name",
    "dump-dir",
    "map-dir",
    "dump-name-pid",
    "map-name",
    "bad-magic",
    "header-torn",
    "header-size",
    "header-version",
    "header-flags",
    "time-wall-clock",
    "load-pid",
    "map-0x",
    "map-not-utf8",
    "map-line-long",
];

/// The aspect that a rule concerns.
pub fn aspect(id: &str) -> &'static str {
    match id {
        "dump-dir" => "stacks",
        _ if id.starts_with("debug-") || id.starts_with("inlines-") => "lines",
        _ if ["unwind-", "mapped-", "frame-"].iter().any(|start| id.starts_with(start)) => "stacks",
        _ => "names",
    }
}

impl Reader {
    fn is_affected(&self, rule: &Rule) -> bool {
        // "perf" stands for every version. "perf 6.12" stands for one version of perf 6.
        let perf = self.called[0].starts_with("perf");
        rule.readers.split(", ").any(|called| {
            called == "all" || (perf && called == "perf") || self.called.iter().any(|name| called.starts_with(name))
        })
    }

    fn verdict(&self, kind: Kind, summary: Summary, broken: &BTreeMap<&'static str, (&'static Rule, u64)>) -> Verdict {
        let mut verdict = Verdict { reader: self.name, states: Vec::new() };
        if !self.kinds.contains(&kind) {
            return verdict;
        }
        let state = |about: &str| {
            let rules = broken.values().filter(|(rule, _)| aspect(rule.id) == about && self.is_affected(rule));
            let mut partly: Vec<&str> = Vec::new();
            for (rule, _) in rules.filter(|(rule, _)| rule.severity > Severity::Note) {
                if EVERYTHING.contains(&rule.id) {
                    return State::No(rule.id.into());
                }
                partly.push(rule.id);
            }
            if partly.is_empty() {
                State::Yes
            } else {
                State::Partly(partly.join(", "))
            }
        };
        let names = if summary.pieces == 0 { State::None("") } else { state("names") };
        let lost = matches!(names, State::No(_));
        let stacks = if summary.pieces == 0 {
            State::None("")
        } else if !self.tables || summary.with_tables == 0 {
            State::None("by frame pointers")
        } else if self.name.contains("libunwind") && summary.with_mapped == 0 {
            State::No("use jitsym inject".into())
        } else if self.name.contains("libunwind") && summary.with_mapped < summary.with_tables {
            let left = summary.with_tables - summary.with_mapped;
            State::Partly(format!("{left} of {} need jitsym inject", summary.with_tables))
        } else {
            state("stacks")
        };
        let lines = if summary.with_lines == 0 { State::None("") } else { state("lines") };
        // If a reader loses the names of a file, it loses all data.
        let rest =
            |state: State| if lost && matches!(state, State::Yes | State::Partly(_)) { names.clone() } else { state };
        let (stacks, lines) = (rest(stacks), rest(lines));
        verdict.states = vec![("names", names), ("stacks", stacks), ("lines", lines)];
        verdict
    }
}

/// The verdicts of all readers. `broken` has the broken rules and how often each rule was broken.
pub fn verdicts(kind: Kind, summary: Summary, broken: &BTreeMap<&'static str, (&'static Rule, u64)>) -> Vec<Verdict> {
    READERS.iter().map(|reader| reader.verdict(kind, summary, broken)).collect()
}
