//! The blocks of code in the documents, and what is to be done with each.

use std::path::PathBuf;

use crate::support::root;

/// A fenced block of code.
pub struct Block {
    /// The document's path below the root.
    pub document: String,
    /// The line of the document in which the block's first line stands.
    pub line: usize,
    pub language: String,
    /// What the comment in front of it says behind `test: `.
    mark: Option<String>,
    pub text: String,
}

/// What a test does with a block.
#[derive(PartialEq, Eq)]
pub enum Use<'a> {
    /// With the names that it registers.
    Program(Vec<&'a str>),
    Fragment(&'a str),
    Shell {
        container: bool,
        expect: Option<&'a str>,
    },
    /// A program that a signal ends, with what it writes to standard error.
    Crash(&'a str),
    NotRun,
}

impl Block {
    pub fn place(&self) -> String {
        format!("{}:{}", self.document, self.line)
    }

    pub fn used(&self) -> Use<'_> {
        let mark = self.mark.as_deref();
        if mark.and_then(|mark| mark.strip_prefix("not run, ")).is_some_and(|reason| !reason.trim().is_empty()) {
            return Use::NotRun;
        }
        match (&*self.language, mark) {
            ("c", Some(mark)) if mark.starts_with("registers ") => Use::Program(mark.split(' ').skip(1).collect()),
            ("c", Some(mark)) if mark.starts_with("crashes, expect ") => {
                Use::Crash(mark.strip_prefix("crashes, expect ").unwrap_or_default())
            }
            ("c", Some(name)) if harness(name).exists() => Use::Fragment(name),
            ("sh", None) => Use::Shell { container: false, expect: None },
            ("sh", Some(mark)) if mark.starts_with("expect ") => {
                Use::Shell { container: false, expect: mark.strip_prefix("expect ") }
            }
            ("sh", Some(mark)) if mark.starts_with("container, expect ") => {
                Use::Shell { container: true, expect: mark.strip_prefix("container, expect ") }
            }
            _ => panic!("{}: nobody tests this block, and it does not say why: {mark:?}", self.place()),
        }
    }
}

pub fn harness(name: &str) -> PathBuf {
    root().join(format!("tests/docs/{name}.c"))
}

/// The documents, by their paths below the root.
pub fn documents() -> Vec<String> {
    let mut documents = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).to_vec();
    for entry in std::fs::read_dir(root().join("docs")).expect("docs") {
        let name = entry.expect("entry").file_name().into_string().expect("UTF-8");
        if name.ends_with(".md") {
            documents.push(format!("docs/{name}"));
        }
    }
    documents.sort();
    documents
}

pub fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).expect("document")
}

pub fn blocks() -> Vec<Block> {
    documents().iter().flat_map(|document| blocks_of(document)).collect()
}

fn blocks_of(document: &str) -> Vec<Block> {
    let text = read(document);
    let mut blocks: Vec<Block> = Vec::new();
    let (mut mark, mut open, mut list, mut blank) = (None, false, false, true);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.strip_prefix("```") {
            open = !open;
            if open {
                let (document, language) = (document.to_owned(), language.trim().to_owned());
                blocks.push(Block { document, line: number + 1, language, mark: mark.take(), text: String::new() });
            }
        } else if open {
            let block = blocks.last_mut().expect("an open block");
            block.text.extend([line, "\n"]);
        } else if let Some(rest) = line.strip_prefix("<!-- test: ") {
            let said = rest.strip_suffix(" -->").unwrap_or_else(|| panic!("{document}:{number}: {line}"));
            assert_eq!(mark.replace(said.to_owned()), None, "{document}:{number}: the mark before has no block");
        } else {
            assert!(mark.is_none(), "{document}:{number}: a mark without a block");
            // Indented code would be overlooked. What is indented below the item of a list belongs to it.
            assert!(!(blank && !list && line.starts_with("    ")), "{document}:{number}: code without a fence");
            if !line.is_empty() && !line.starts_with(' ') {
                list = line.starts_with(['-', '*']) || line.starts_with(|c: char| c.is_ascii_digit());
            }
        }
        blank = line.is_empty();
    }
    assert!(!open && mark.is_none(), "{document}: the end of a block is missing");
    blocks
}
