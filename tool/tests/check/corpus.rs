//! What is said of files that other producers have written: `tool/tests/corpus`, where the expected texts are too.
//!
//! With `JITSYM_BLESS=1` in the environment the texts are written anew; look at the difference before it is committed.

use std::path::{Path, PathBuf};
use std::process::Command;

use jitsym_tool::check::report::{Printer, Style};
use jitsym_tool::check::{check, Facts};
use jitsym_tool::show::{dump, stat, Dump, Look};

use crate::support::{root, run};

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("tool/tests/corpus")).expect("corpus");
    let paths = entries.map(|entry| entry.expect("entry of the corpus").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "dump" || end == "map")).collect();
    files.sort();
    assert!(files.len() >= 11, "{files:?}");
    files
}

fn expect(path: &Path, what: &str, text: &[u8]) {
    let text = String::from_utf8(text.to_vec()).expect("text");
    let expected_path = path.with_file_name(format!("{}.{what}", path.file_name().expect("name").display()));
    if std::env::var_os("JITSYM_BLESS").is_some() {
        std::fs::write(&expected_path, &text).expect("write the expected text");
    }
    let expected = std::fs::read_to_string(&expected_path).unwrap_or_default();
    assert!(text == expected, "{} is not as in {}:\n{text}", path.display(), expected_path.display());
}

/// What the three commands print.
pub fn check_text(file: &[u8], style: Style, notes: bool) -> Vec<u8> {
    let (mut out, mut progress) = (Vec::new(), |_| {});
    let mut printer = Printer::new(&mut out, style, &[], &mut progress).with(notes, false);
    let mut printed = printer.file("FILE");
    let kind = check(file, &Facts::default(), &mut printed);
    printed.finish(kind);
    printer.finish().expect("written to memory");
    out
}

pub fn dump_text(file: &[u8]) -> Vec<u8> {
    let (mut out, mut progress) = (Vec::new(), |_| {});
    let mut how = Dump { disassembler: None, name: None, progress: &mut progress };
    dump(file, &Facts::default(), &mut how, &mut out).expect("printed");
    out
}

pub fn stat_text(file: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let look = Look { width: 80, terminal: false };
    stat(file, &Facts::default(), look, 0, &mut |_| {}, &mut out).expect("printed");
    out
}

/// All three commands on whole files of many producers, packed or not: run with `JITSYM_CORPUS=DIR cargo test --test check --
/// --ignored`.
#[test]
#[ignore = "wants a directory of files, in JITSYM_CORPUS"]
fn a_whole_directory() {
    let dir = std::env::var_os("JITSYM_CORPUS").expect("JITSYM_CORPUS");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("corpus").flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let file = match name.strip_suffix(".gz") {
            Some(_) => run(Command::new("gzip").arg("-dc").arg(&path)).stdout,
            None => std::fs::read(&path).expect("file"),
        };
        let name = name.trim_end_matches(".gz");
        if name.ends_with(".dump") || name.ends_with(".map") {
            count += 1;
            let checked = String::from_utf8(check_text(&file, Style::Text, true)).expect("text");
            println!("{name}:\n{checked}");
            let pieces = dump_text(&file).split(|&byte| byte == b'\n').count();
            assert!(pieces > 10 && stat_text(&file).len() > 100 && checked.contains(" note"), "{name}");
        }
    }
    assert!(count > 0, "no dumps and no maps");
}

#[test]
fn findings() {
    for path in files() {
        expect(&path, "check", &check_text(&std::fs::read(&path).expect("file"), Style::Text, true));
    }
}

#[test]
fn printed() {
    for path in files() {
        let file = std::fs::read(&path).expect("file");
        let dumped = dump_text(&file);
        assert!(dumped.len() > 100);
        // The others are long.
        if ["cpython-3.13.dump", "llvm-14.dump", "moarvm-killed.dump", "mono-6.8.map"]
            .iter()
            .any(|name| path.ends_with(name))
        {
            expect(&path, "text", &dumped);
        }
    }
}

#[test]
fn numbers() {
    for path in files() {
        let counted = stat_text(&std::fs::read(&path).expect("file"));
        assert!(counted.len() > 100);
        if ["bun-1.4.dump", "erlang-25.dump", "mono-6.8.map"].iter().any(|name| path.ends_with(name)) {
            expect(&path, "stat", &counted);
        }
    }
}
