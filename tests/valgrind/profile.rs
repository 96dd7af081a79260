//! What `callgrind_annotate --tree=both --inclusive=yes` says of functions, and of lines.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// A function: its inclusive cost, and its callers and callees with the number of calls and the inclusive cost of these.
#[derive(Debug, Default)]
pub struct Function {
    pub cost: u64,
    pub callers: BTreeMap<String, (u64, u64)>,
    pub callees: BTreeMap<String, (u64, u64)>,
    pub file: String,
    pub object: String,
}

#[derive(Debug)]
pub struct Profile {
    /// By name. Functions that are there twice, in different files or objects, are in a list.
    functions: BTreeMap<String, Vec<Function>>,
    pub text: String,
}

impl Profile {
    /// Reads `callgrind.out`. From a directory in which no source is: there names would be relative.
    pub fn read(out: &Path) -> Profile {
        let mut annotate = Command::new("callgrind_annotate");
        annotate.current_dir("/").args(["--tree=both", "--inclusive=yes", "--auto=yes", "--threshold=100"]);
        let text = stdout(&run(annotate.arg(out)));
        let mut functions: BTreeMap<String, Vec<Function>> = BTreeMap::new();
        let mut callers = BTreeMap::new();
        let mut last = None;
        for line in text.lines() {
            let Some((kind, cost, place)) = entry(line) else { continue };
            let (place, object) =
                place.strip_suffix(']').and_then(|place| place.rsplit_once(" [")).unwrap_or((place, ""));
            if kind == '*' {
                let (file, name) = place.split_once(':').expect("file and function");
                let callers = std::mem::take(&mut callers);
                let function =
                    Function { cost, callers, file: file.into(), object: object.into(), ..Function::default() };
                functions.entry(name.into()).or_default().push(function);
                last = Some(name.to_string());
                continue;
            }
            let (place, count) = place.strip_suffix("x)").and_then(|place| place.rsplit_once(" (")).expect("calls");
            let name = place.split_once(':').expect("file and function").1.to_string();
            let call = (number(count), cost);
            match kind {
                '<' => _ = callers.insert(name, call),
                _ => {
                    let known = last.as_ref().and_then(|last| functions.get_mut(last)?.last_mut());
                    known.expect("the caller").callees.insert(name, call);
                }
            }
        }
        Profile { functions, text }
    }

    /// A function, which is there once.
    pub fn function(&self, name: &str) -> &Function {
        match self.functions.get(name).map(Vec::as_slice) {
            Some([only]) => only,
            other => panic!("{name} is {other:?}: {}", self.text),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// The inclusive cost of all functions of a name, which may be in several files and go on in each other.
    pub fn sum(&self, name: &str) -> u64 {
        let all = self.functions.get(name).into_iter().flatten();
        all.map(|function| function.cost - function.callees.get(name).map_or(0, |(_, cost)| *cost)).sum()
    }

    /// What a line of the source has cost by itself.
    pub fn line(&self, source: &str) -> u64 {
        let line = self.text.lines().find(|line| line.ends_with(&format!("  {source}")));
        let line = line.unwrap_or_else(|| panic!("no line {source:?}: {}", self.text));
        match line.trim_start().split([' ', '(']).next() {
            Some(".") => 0,
            cost => number(cost.unwrap_or_default()),
        }
    }
}

/// `COST (SHARE%)  *  FILE:FUNCTION`, with `<` for a caller and `>` for a callee.
fn entry(line: &str) -> Option<(char, u64, &str)> {
    let (cost, rest) = line.trim_start().split_once(" (")?;
    let (_, rest) = rest.split_once("%)")?;
    let rest = rest.trim_start();
    let kind = rest.chars().next().filter(|kind| "<*>".contains(*kind))?;
    let place = rest[1..].strip_prefix(' ')?.trim_start();
    Some((kind, number(cost), place))
}

fn number(text: &str) -> u64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}
