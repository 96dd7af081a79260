//! Makes `docs/reference.md` of the header: an entry for each function and type, its comment as the text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::pages::header::{conventions, parse, Entry, Kind};

const SECTIONS: [(Kind, &str); 4] = [
    (Kind::Function, "Functions"),
    (Kind::Struct, "Structs"),
    (Kind::Enum, "Enumerations"),
    (Kind::Other, "Other types"),
];

const INTRODUCTION: &str = "\
# Reference

<!-- Made from include/jitsym.h by `JITSYM_UPDATE_HEADER=1 cargo test --test tests header`. Do not edit. -->

All of [jitsym.h](../include/jitsym.h). What to call when is in [integration.md](integration.md).
";

/// The whole document.
pub fn from_header(header: &str) -> String {
    let entries = parse(header);
    let names: BTreeSet<&str> = entries.iter().map(|entry| &*entry.name).collect();
    let mut out = String::from(INTRODUCTION);
    for (kind, title) in SECTIONS {
        let links = entries.iter().filter(|entry| entry.kind == kind).map(|entry| link(&entry.name));
        let _ = writeln!(out, "\n{title}: {}.", links.collect::<Vec<_>>().join(", "));
    }
    let _ = writeln!(out, "\n## Conventions\n\n{}", conventions(header));
    for (kind, title) in SECTIONS {
        let _ = writeln!(out, "\n## {title}");
        for entry in entries.iter().filter(|entry| entry.kind == kind) {
            entry.write(&names, &mut out);
        }
    }
    out
}

impl Entry {
    fn write(&self, names: &BTreeSet<&str>, out: &mut String) {
        let _ = writeln!(out, "\n### {}\n", self.name);
        if !self.declaration.is_empty() {
            let _ = writeln!(out, "<!-- test: declarations -->\n```c\n{}\n```\n", self.declaration);
        }
        for line in &self.comment {
            match &**line {
                "# Safety" => out.push_str("**Pointers.**\n"),
                line => drop(writeln!(out, "{}", linked(line, names, &self.name))),
            }
        }
        if !self.members.is_empty() {
            out.push('\n');
        }
        for (member, comment) in &self.members {
            let _ = writeln!(out, "- `{member}`: {}", linked(&comment.join(" "), names, &self.name));
        }
    }
}

fn link(name: &str) -> String {
    format!("[`{name}`](#{name})")
}

/// The text, with links in place of the names that have an entry, but for the one at hand; `name.field` is one as well.
fn linked(text: &str, names: &BTreeSet<&str>, here: &str) -> String {
    let parts = text.split('`').enumerate().map(|(index, part)| {
        let name = part.split('.').next().unwrap_or_default();
        match index % 2 {
            0 => part.to_owned(),
            _ if names.contains(name) && name != here => format!("[`{part}`](#{name})"),
            _ => format!("`{part}`"),
        }
    });
    parts.collect()
}
