//! The C headers: templates (`src/capi/headers`) in which a line `@NAME@` stands for a declaration.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::declarations::{Entry, Kind};

/// The headers in the order in which they can be put one after the other.
pub const NAMES: [&str; 3] = ["jitsym.h", "jitsym_region.h", "jitsym_control.h"];

/// The text of all headers as they are checked in, for those who look for a declaration.
pub const TEXT: &str = concat!(
    include_str!("../../include/jitsym.h"),
    include_str!("../../include/jitsym_region.h"),
    include_str!("../../include/jitsym_control.h")
);

/// No line is longer.
const WIDTH: usize = 120;

/// What holds where a function says nothing of threads; `jitsym.h` says it for all.
const THREADS: &str = "Any thread, concurrently; not from a signal handler.";

/// A header, and the entries that are in it, in its order.
pub struct Header<'a> {
    pub name: &'static str,
    pub text: String,
    pub entries: Vec<&'a Entry>,
}

/// All headers. Each entry is in one of them.
pub fn make<'a>(root: &Path, entries: &'a [Entry]) -> Vec<Header<'a>> {
    let mut left: BTreeMap<&str, &Entry> = entries.iter().map(|entry| (&*entry.name, entry)).collect();
    let headers = NAMES.map(|name| {
        let template = std::fs::read_to_string(root.join(format!("src/capi/headers/{name}.in"))).expect("template");
        let mut header = Header { name, text: String::new(), entries: Vec::new() };
        for line in template.lines() {
            match line.strip_prefix('@').and_then(|line| line.strip_suffix('@')) {
                Some(name) => {
                    let entry = left.remove(name).unwrap_or_else(|| panic!("{name} is not there, or there already"));
                    write_entry(entry, &mut header.text);
                    header.entries.push(entry);
                }
                None => drop(writeln!(header.text, "{line}")),
            }
        }
        header
    });
    assert!(left.is_empty(), "in no header: {:?}", left.keys());
    headers.into()
}

fn write_entry(entry: &Entry, out: &mut String) {
    let comment = &entry.comment;
    let threads = comment.threads.strip_prefix(THREADS).unwrap_or(&comment.threads);
    write_comment("/* ", &[&comment.about, &format!("{} {threads}", comment.returns)], out);
    match entry.kind {
        Kind::Function => drop(writeln!(out, "{}", folded(&format!("JITSYM_API {}", entry.declaration)))),
        Kind::Other => drop(writeln!(out, "{}", entry.declaration)),
        Kind::Struct | Kind::Enum => {
            let keyword = if entry.kind == Kind::Enum { "enum" } else { "struct" };
            let _ = writeln!(out, "typedef {keyword} {0} {{", entry.name);
            let column = entry.members.iter().map(|(member, _)| member.len()).max().unwrap_or_default() + 3;
            for (member, comment) in &entry.members {
                write_comment(&format!("{:column$}/* ", format!("  {member}")), &[&comment.about], out);
            }
            let _ = writeln!(out, "}} {};", entry.name);
        }
    }
}

/// A comment without what marks code, from `start` on, in lines that are not too long. Each paragraph begins a line.
fn write_comment(start: &str, paragraphs: &[&str], out: &mut String) {
    let indent = " ".repeat(start.trim_end().len());
    let mut line = start.trim_end().to_owned();
    for (number, paragraph) in paragraphs.iter().enumerate() {
        for (index, word) in paragraph.replace('`', "").split_whitespace().enumerate() {
            // The last word has the end of the comment after it.
            if line.len() + 1 + word.len() + 3 > WIDTH || (number > 0 && index == 0) {
                let _ = writeln!(out, "{line}");
                line.clone_from(&indent);
            }
            line = line + " " + word;
        }
    }
    let _ = writeln!(out, "{line} */");
}

/// A declaration in lines that are not too long.
pub fn folded(declaration: &str) -> String {
    let indent = declaration.find('(').expect("arguments") + 1;
    let mut lines = vec![String::new()];
    for part in declaration.split_inclusive(", ") {
        if lines.last().is_some_and(|line| line.len() + part.trim_end().len() > WIDTH) {
            lines.push(" ".repeat(indent));
        }
        lines.last_mut().expect("a line").push_str(part);
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}
