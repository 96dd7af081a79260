//! The manual pages. `jitsym(1)` is made from jitsym.1.in by a test of the program. Those of section 3 are generated
//! from docs/reference.md and docs/conventions.md: a page for each function and type, and `libjitsym(3)` for all of them. The build script of the C libraries writes them.

pub mod reference;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use reference::{Entry, Kind};

const HEADER: &str = include_str!("../include/jitsym.h");
const REFERENCE: &str = include_str!("../docs/reference.md");
const CONVENTIONS: &str = include_str!("../docs/conventions.md");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// When the text last changed in more than words; the same on all pages.
const DATE: &str = "2026-11-22";

/// All pages by file name.
pub fn pages() -> BTreeMap<String, String> {
    let entries = reference::parse(REFERENCE);
    let names: BTreeSet<&str> = entries.iter().map(|entry| &*entry.name).collect();
    let mut pages: BTreeMap<String, String> =
        entries.iter().map(|entry| (format!("{}.3", entry.name), page(entry, &names))).collect();
    pages.insert("libjitsym.3".into(), overview(&entries));
    pages.insert("jitsym.1".into(), include_str!("jitsym.1").into());
    pages
}

fn head(name: &str, about: &str) -> String {
    format!(
        ".\\\" Made from docs/reference.md.\n\
         .TH {name} 3 {DATE} \"libjitsym {VERSION}\" \"libjitsym\"\n\
         .SH NAME\n{name} \\- {}\n",
        spans(about)
    )
}

/// What the page is about: the first sentence, as a phrase.
fn about(entry: &Entry) -> String {
    let text = &entry.paragraphs[0];
    let sentence = text.split_once(". ").map_or(text.trim_end_matches('.'), |(first, _)| first);
    let sentence = sentence.split(": ").next().unwrap_or(sentence);
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_lowercase().collect::<String>() + letters.as_str()).unwrap_or_default()
}

fn page(entry: &Entry, names: &BTreeSet<&str>) -> String {
    let mut out = head(&entry.name, &about(entry));
    out += ".SH LIBRARY\nlibjitsym (\\-ljitsym)\n.SH SYNOPSIS\n.nf\n";
    let _ = writeln!(out, ".B #include <{}>", entry.header);
    let declaration = match entry.kind {
        Kind::Function | Kind::Other => entry.declaration.clone(),
        Kind::Struct => format!("typedef struct {0} {{ ... }} {0};", entry.name),
        Kind::Enum => format!("typedef enum {0} {{ ... }} {0};", entry.name),
    };
    let _ = writeln!(out, "\n{}\n.fi\n.SH DESCRIPTION", verbatim(&declaration));
    let (text, returns) = parts(&entry.paragraphs);
    out += &text;
    for (index, (member, comment)) in entry.members.iter().enumerate() {
        if index == 0 {
            out += if entry.kind == Kind::Enum { ".SS Values\n" } else { ".SS Fields\n" };
        }
        let _ = write!(out, ".TP\n.B {}\n{}\n", verbatim(member), line(comment));
    }
    if !returns.is_empty() {
        let _ = writeln!(out, ".SH RETURN VALUE\n{}", line(&returns));
    }
    let mut also: BTreeSet<&str> = named(entry).filter(|name| names.contains(name)).collect();
    also.remove(&*entry.name);
    out += ".SH SEE ALSO\n";
    for name in also {
        let _ = writeln!(out, ".BR {name} (3),");
    }
    out += ".BR libjitsym (3)\n";
    out
}

/// All words in code of an entry, declaration included.
fn named(entry: &Entry) -> impl Iterator<Item = &str> {
    let comments = entry.members.iter().flat_map(|(member, comment)| [member, comment]);
    let texts = entry.paragraphs.iter().chain(comments).chain([&entry.declaration]);
    texts.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
}

/// The text of an entry in two parts: the paragraph about the result is the second.
fn parts(paragraphs: &[String]) -> (String, String) {
    let (mut text, mut returns) = (String::new(), String::new());
    for paragraph in paragraphs {
        if paragraph.starts_with("Returns ") {
            returns.clone_from(paragraph);
            continue;
        }
        text += match paragraph.starts_with("Any thread") {
            true => ".SS Threads\n",
            false if text.is_empty() => "",
            false => ".PP\n",
        };
        text = text + &line(paragraph) + "\n";
    }
    (text, returns)
}

fn overview(entries: &[Entry]) -> String {
    let mut out = head("libjitsym", "JIT-compiled code made visible to perf and other profilers");
    out += ".SH LIBRARY\nlibjitsym (\\-ljitsym)\n.SH SYNOPSIS\n.nf\n";
    let mut header = "";
    for entry in entries.iter().filter(|entry| entry.kind == Kind::Function) {
        if entry.header != header {
            header = &entry.header;
            let _ = writeln!(out, ".B #include <{header}>");
        }
        let _ = writeln!(out, "\n{}", verbatim(&entry.declaration));
    }
    out += ".fi\n.SH DESCRIPTION\n";
    out += "A just-in-time compiler registers the code that it makes, and a background thread writes it down in the forms that\n\
            Linux tools read: the perf map (names), the jitdump (names over time, code, source lines and call stacks, through\n\
            .BR \"perf inject \\-\\-jit\" ),\nand ELF files for code in regions, which need no further step. gdb, lldb and the unwinder\n\
             read tables in memory, and so do lookups in the process itself. valgrind reads a file.\n";
    let comment = HEADER.split("*/").next().unwrap_or_default();
    let lines = comment.lines().map(|line| line.strip_prefix(" *   ")).skip_while(Option::is_none);
    let example: Vec<&str> = lines.map_while(|line| line).collect();
    let _ = writeln!(out, ".PP\n.nf\n{}\n.fi", verbatim(&example.join("\n")));
    for title in ["Errors", "Pointers", "Threads and signals", "Memory", "Durability and process end", "Fork"] {
        let _ = writeln!(out, ".SS {title}");
        for (index, block) in section(title).trim().split("\n\n").enumerate() {
            let start = if index == 0 { "" } else { ".PP\n" };
            let _ = match block.strip_prefix("### ") {
                Some(title) => writeln!(out, "{start}.B {}", escaped(title)),
                None if block.starts_with('|') => write!(out, "{}", table(block)),
                None => writeln!(out, "{start}{}", line(&block.replace('\n', " "))),
            };
        }
    }
    for (kind, title) in [(Kind::Function, "Functions"), (Kind::Struct, "Structs"), (Kind::Enum, "Enumerations")] {
        let _ = writeln!(out, ".SS {title}");
        for entry in entries.iter().filter(|entry| entry.kind == kind) {
            let _ = write!(out, ".TP\n.BR {} (3)\n{}\n", entry.name, line(&about(entry)));
        }
    }
    out += ".SH ENVIRONMENT\nOptions that are given in code win, unless the host wants it otherwise.\n";
    let variables = section("Environment");
    out += &table(variables.split("\n\n").find(|block| block.starts_with('|')).expect("the variables"));
    out += ".SH FILES\n.TP\n.I /tmp/perf\\-PID.map\nThe perf map.\n\
            .TP\n.I /tmp/jit\\-PID.dump\nThe jitdump.\n\
            .TP\n.I /tmp/jit\\-PID\\-N.so\nA region.\n\
            .TP\n.I /dev/shm/jitsym\\-*.spool\nRecords on their way to the files; what a killed process leaves behind there,\n\
            .B jitsym recover\nputs into its files.\n\
            .PP\nNo file is written for gdb, the unwinder and lookups. Under valgrind there are also files for it,\n.IR jit-PID-vN.so .\n";
    out += ".SH SEE ALSO\n.BR jitsym (1),\n.BR perf (1),\n.BR perf\\-inject (1)\n";
    out
}

/// A section of docs/conventions.md, without links. Each item of a list is a paragraph.
fn section(title: &str) -> String {
    let (_, section) = CONVENTIONS.split_once(&format!("\n## {title}\n")).expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    reference::unlinked(section).replace("\n- ", "\n\n").replace("**", "")
}

/// A table as a list: the first cell of a row is the term. If there are more than two columns, the heading of each other column
/// stands before its cell.
fn table(rows: &str) -> String {
    let mut rows = rows.lines().map(|row| row.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>());
    let headings = rows.next().unwrap_or_default();
    let mut out = String::new();
    for row in rows.skip(1) {
        let (term, cells) = row.split_first().expect("a cell");
        let cells: Vec<String> = match cells {
            [cell] => vec![line(cell)],
            _ => cells.iter().zip(&headings[1..]).map(|(cell, heading)| line(&format!("{heading}: {cell}."))).collect(),
        };
        let _ = write!(out, ".TP\n{}\n{}\n", line(term), cells.join("\n"));
    }
    out
}

/// Running text. A full stop or an apostrophe at the start of a line would be a request.
fn line(text: &str) -> String {
    let mut words = spans(text);
    if words.starts_with(['.', '\'']) {
        words.insert_str(0, "\\&");
    }
    // Each sentence begins a line: the formatter finds the ends of sentences that way.
    let mut out = String::new();
    for (index, sentence) in words.split(". ").enumerate() {
        out += if index == 0 { "" } else { ".\n" };
        out += sentence;
    }
    out
}

/// Text with what is between backquotes in bold type.
fn spans(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 0 { escaped(part) } else { format!("\\fB{}\\fR", verbatim(part)) })
        .collect()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e")
}

/// Text in which every character stands for itself, as in code.
fn verbatim(text: &str) -> String {
    let text = escaped(text).replace('-', "\\-").replace('~', "\\(ti").replace('^', "\\(ha").replace('\'', "\\(aq");
    text.replace("\n.", "\n\\&.")
}
