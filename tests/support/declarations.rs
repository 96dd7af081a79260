//! What cbindgen makes of `src/capi`: the declarations of the C interface, each with its comment. The headers and the reference are
//! made of it.

use std::path::Path;

pub use crate::pages::reference::Kind;

/// A declaration and the comment in front of it.
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    pub comment: Comment,
    /// A function, or a type without members, as it is declared.
    pub declaration: String,
    /// Fields or enumerators, as they are declared.
    pub members: Vec<(String, Comment)>,
}

/// The first paragraph is the short form, and those about the result and about threads. The headers have the short form, and the
/// reference all.
#[derive(Default)]
pub struct Comment {
    /// The first paragraph.
    pub about: String,
    /// The paragraph about the result, or nothing.
    pub returns: String,
    /// The paragraph about threads and signal handlers, or nothing.
    pub threads: String,
    /// The other paragraphs.
    pub more: Vec<String>,
}

/// The entries in the order of the sources.
pub fn entries(root: &Path) -> Vec<Entry> {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in ["src/capi/status.rs", "src/capi/types/mod.rs", "src/capi/mod.rs"] {
        builder = builder.with_src(root.join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen").write(&mut text);
    parse(&String::from_utf8(text).expect("UTF-8"))
}

fn parse(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut lines = text.lines();
    let mut comment = Comment::default();
    while let Some(line) = lines.next() {
        match line {
            "/**" => comment = Comment::parse(&mut lines),
            _ if line.starts_with("typedef ") || line.starts_with("JITSYM_API") => {
                entries.push(entry(line, &mut lines, std::mem::take(&mut comment)));
            }
            _ => {}
        }
    }
    entries
}

impl Comment {
    fn parse<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Self {
        let body = lines.map(str::trim).take_while(|line| *line != "*/");
        let body: Vec<&str> = body.map(|line| line.trim_start_matches('*').trim()).collect();
        // What pointers have to be is said once, for all calls; the heading is for Rust.
        let paragraphs = body.split(|line| line.is_empty()).take_while(|lines| lines.first() != Some(&"# Safety"));
        let mut comment = Self::default();
        for text in paragraphs.map(|lines| lines.join(" ")) {
            match text {
                _ if text.starts_with("Returns ") => comment.returns = text,
                _ if text.starts_with("Any thread") => comment.threads = text,
                _ if comment.about.is_empty() => comment.about = text,
                _ => comment.more.push(text),
            }
        }
        comment
    }

    /// The short form, then the long one. The result and the threads come last.
    pub fn paragraphs(&self) -> impl Iterator<Item = &str> {
        let first = [&self.about].into_iter();
        first
            .chain(&self.more)
            .chain([&self.returns, &self.threads])
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }
}

fn entry<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>, comment: Comment) -> Entry {
    assert!(!comment.about.is_empty(), "{first:?} has no comment");
    let mut entry =
        Entry { kind: Kind::Other, name: String::new(), comment, declaration: String::new(), members: Vec::new() };
    if let Some(rest) = first.strip_prefix("JITSYM_API") {
        let mut declaration = rest.trim().to_owned();
        while !declaration.ends_with(';') {
            declaration.extend([if declaration.is_empty() { "" } else { " " }, lines.next().expect("its end").trim()]);
        }
        entry.declaration = without_tags(&declaration);
        let name = entry.declaration.split('(').next().and_then(|head| head.rsplit([' ', '*']).next());
        entry.name = name.expect("a name").to_owned();
        entry.kind = Kind::Function;
        return entry;
    }
    if first.ends_with(';') {
        entry.declaration = first.to_owned();
        entry.name = first.trim_end_matches(';').rsplit(' ').next().expect("a name").to_owned();
        return entry;
    }
    entry.kind = if first.starts_with("typedef enum") { Kind::Enum } else { Kind::Struct };
    let mut comment = Comment::default();
    loop {
        let line = lines.next().expect("the end of the type").trim();
        if let Some(name) = line.strip_prefix("} ") {
            entry.name = name.trim_end_matches(';').to_owned();
            return entry;
        }
        match line {
            "/**" => comment = Comment::parse(lines),
            _ => {
                assert!(!comment.about.is_empty(), "{line:?} has no comment");
                entry.members.push((line.to_owned(), std::mem::take(&mut comment)));
            }
        }
    }
}

/// Every type has a name without its tag.
pub fn without_tags(declaration: &str) -> String {
    declaration.replace("enum ", "").replace("struct ", "")
}
