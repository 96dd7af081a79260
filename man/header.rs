//! The declarations of the header, each with its comment.
#![allow(dead_code)]

/// A declaration and the comment in front of it.
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    /// Lines of the comment, without its stars.
    pub comment: Vec<String>,
    /// Where the declaration begins.
    pub first: String,
    /// A function as it is declared.
    pub declaration: String,
    /// Fields or enumerators, each with its comment.
    pub members: Vec<(String, Vec<String>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Function,
    Struct,
    Enum,
    Other,
}

/// What the comment at the top says of every call.
pub fn conventions(header: &str) -> String {
    let comment = header.split("*/").next().unwrap_or_default();
    let (_, text) = comment.split_once(" * Conventions.").expect("conventions");
    let lines = text.lines().map(|line| line.trim_start_matches(" *").trim()).filter(|line| !line.starts_with("SPDX"));
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// The entries in the order of the header.
pub fn parse(header: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut lines = header.lines();
    let mut comment = Vec::new();
    while let Some(line) = lines.next() {
        match line {
            "/**" => comment = comment_lines(&mut lines),
            _ if line.starts_with("typedef ") || line.starts_with("JITSYM_API") => {
                entries.push(entry(line, &mut lines, std::mem::take(&mut comment)));
            }
            _ => {}
        }
    }
    entries
}

fn comment_lines<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let body = lines.take_while(|line| line.trim() != "*/");
    body.map(|line| line.trim().trim_start_matches('*').trim().to_owned()).collect()
}

fn entry<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>, comment: Vec<String>) -> Entry {
    assert!(!comment.is_empty(), "{first:?} has no comment");
    let mut entry = Entry {
        kind: Kind::Other,
        name: String::new(),
        comment,
        first: first.to_owned(),
        declaration: String::new(),
        members: Vec::new(),
    };
    if let Some(rest) = first.strip_prefix("JITSYM_API") {
        let mut declaration = rest.trim().to_owned();
        while !declaration.ends_with(';') {
            declaration.extend([if declaration.is_empty() { "" } else { "\n" }, lines.next().expect("the end of it")]);
        }
        let name = declaration.split('(').next().and_then(|head| head.rsplit([' ', '*']).next());
        entry.name = name.expect("a name").to_owned();
        entry.kind = Kind::Function;
        // Shorter, without the tags that every type has a name for; what follows the first line moves with its parenthesis.
        let plain = declaration.replace("enum ", "").replace("struct ", "");
        let arguments: Vec<&str> = plain.lines().map(str::trim).collect();
        let indent = format!("\n{}", " ".repeat(arguments[0].find('(').expect("arguments") + 1));
        entry.declaration = arguments.join(&indent);
        return entry;
    }
    if first.ends_with(';') {
        entry.name = first.trim_end_matches(';').rsplit(' ').next().expect("a name").to_owned();
        return entry;
    }
    entry.kind = if first.starts_with("typedef enum") { Kind::Enum } else { Kind::Struct };
    let mut comment = Vec::new();
    loop {
        let line = lines.next().expect("the end of the type").trim();
        if let Some(name) = line.strip_prefix("} ") {
            entry.name = name.trim_end_matches(';').to_owned();
            return entry;
        }
        match line {
            "/**" => comment = comment_lines(lines),
            _ => {
                let member = line.trim_end_matches([',', ';']).replace("struct ", "");
                assert!(!comment.is_empty(), "{member:?} has no comment");
                entry.members.push((member, std::mem::take(&mut comment)));
            }
        }
    }
}
