//! Makes `docs/reference.md`: an entry for each function and type by header, with the short and the long form of its comment.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::declarations::{without_tags, Entry, Kind};
use crate::headers::{folded, Header};

const KINDS: [(Kind, &str); 4] = [
    (Kind::Function, "Functions"),
    (Kind::Struct, "Structs"),
    (Kind::Enum, "Enumerations"),
    (Kind::Other, "Other types"),
];

const INTRODUCTION: &str = "\
# Reference

<!-- Made from src/capi by `JITSYM_UPDATE_HEADER=1 cargo test --test tests header`. Do not edit. -->

All of the C interface, header by header. [conventions.md](conventions.md) has what holds for all calls (results, pointers, threads,
signals, fork, process end), and [integration.md](integration.md) says what to call when.
";

/// The whole document.
pub fn of_headers(headers: &[Header<'_>]) -> String {
    let all = headers.iter().flat_map(|header| &header.entries);
    let names: BTreeSet<&str> = all.map(|entry| &*entry.name).collect();
    let mut out = String::from(INTRODUCTION);
    for Header { name, entries, .. } in headers {
        let _ = writeln!(out, "\n## {name}\n\nIn [{name}](../include/{name}):\n");
        for (kind, title) in KINDS {
            let of_kind = entries.iter().filter(|entry| entry.kind == kind);
            let links: Vec<String> = of_kind.map(|entry| link(&entry.name)).collect();
            if !links.is_empty() {
                let _ = writeln!(out, "- {title}: {}.", links.join(", "));
            }
        }
        entries.iter().for_each(|entry| write_entry(entry, &names, &mut out));
    }
    out
}

fn write_entry(entry: &Entry, names: &BTreeSet<&str>, out: &mut String) {
    let _ = writeln!(out, "\n### {}", entry.name);
    match entry.kind {
        Kind::Function => {
            let _ = write!(out, "\n<!-- test: declarations -->\n```c\n{}\n```\n", folded(&entry.declaration));
        }
        Kind::Other => drop(writeln!(out, "\n`{}`", entry.declaration)),
        Kind::Struct | Kind::Enum => {}
    }
    for paragraph in entry.comment.paragraphs() {
        let _ = writeln!(out, "\n{}", linked(paragraph, names, &entry.name));
    }
    for (index, (member, comment)) in entry.members.iter().enumerate() {
        let text = comment.paragraphs().collect::<Vec<_>>().join(" ");
        let member = without_tags(member.trim_end_matches([',', ';']));
        let _ =
            writeln!(out, "{}- `{member}`: {}", if index == 0 { "\n" } else { "" }, linked(&text, names, &entry.name));
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
            _ if names.contains(name) && name != here && !part.ends_with(".h") => format!("[`{part}`](#{name})"),
            _ => format!("`{part}`"),
        }
    });
    parts.collect()
}
