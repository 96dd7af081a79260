//! The entries of docs/reference.md.

/// A function or type.
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    /// The header that it is in.
    pub header: String,
    /// A function, or a type without members, as it is declared.
    pub declaration: String,
    pub paragraphs: Vec<String>,
    /// Fields or enumerators, each with what is said of it.
    pub members: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Function,
    Struct,
    Enum,
    Other,
}

/// The entries in the order of the headers.
pub fn parse(reference: &str) -> Vec<Entry> {
    let headers = reference.split("\n## ").skip(1);
    let entries = headers.flat_map(|section| {
        let (header, section) = section.split_once('\n').expect("a header's name");
        section.split("\n### ").skip(1).map(move |text| entry(header, text))
    });
    entries.collect()
}

fn entry(header: &str, text: &str) -> Entry {
    let (name, text) = text.split_once('\n').expect("a name");
    let mut entry = Entry {
        kind: Kind::Other,
        name: name.to_owned(),
        header: header.to_owned(),
        declaration: String::new(),
        paragraphs: Vec::new(),
        members: Vec::new(),
    };
    for paragraph in text.trim().split("\n\n") {
        if let Some((_, code)) = paragraph.split_once("```c\n") {
            entry.kind = Kind::Function;
            code.trim_end_matches("\n```").clone_into(&mut entry.declaration);
        } else if paragraph.starts_with("`typedef ") {
            paragraph.trim_matches('`').clone_into(&mut entry.declaration);
        } else if paragraph.starts_with("- `") {
            for member in paragraph.lines() {
                let (name, text) = member.trim_start_matches("- `").split_once("`: ").expect("a member");
                entry.members.push((name.to_owned(), unlinked(text)));
            }
            entry.kind = if entry.members[0].0.starts_with("JITSYM_") { Kind::Enum } else { Kind::Struct };
        } else {
            entry.paragraphs.push(unlinked(paragraph));
        }
    }
    entry
}

/// Text without links to other places: what is a link stays.
pub fn unlinked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, target)) = rest.split_once("](") {
        let link = before.rfind('[').expect("the start of a link");
        out = out + &before[..link] + &before[link + 1..];
        rest = target.split_once(')').expect("the end of a link").1;
    }
    out + rest
}
