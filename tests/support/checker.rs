//! What the library writes is held against the rules of `jitsym check`: no error, no warning, but for what a test does on
//! purpose and names.

use std::path::{Path, PathBuf};

use jitsym_tool::check::report::{Printer, Style};
use jitsym_tool::check::{check, Facts, Rule};

/// A test that has a directory of its own is not where profilers look.
const ALLOWED: [&str; 2] = ["dump-dir", "map-dir"];

/// For tests that give descriptions of all kinds to the same few bytes, as if they were code.
pub const OTHER_CODE: [&str; 5] =
    ["unwind-frame-pointer", "unwind-cfa-wrong", "unwind-epilogue", "unwind-return-address", "unwind-saved-register"];

/// What is wrong with a file that lies, or is to lie, there.
pub fn problems(bytes: &[u8], path: &Path, allowed: &[&str]) -> Result<(), String> {
    let rule = |id: &&str| jitsym_tool::check::rules::find(id).unwrap_or_else(|| panic!("there is no rule {id}"));
    let allowed: Vec<&'static Rule> = allowed.iter().chain(&ALLOWED).map(rule).collect();
    let facts = Facts { path: Some(path.into()), ..Facts::default() };
    let (mut out, mut progress) = (Vec::new(), |_| {});
    let mut printer = Printer::new(&mut out, Style::Text, &allowed, &mut progress);
    let mut printed = printer.file(&path.display().to_string());
    let kind = check(bytes, &facts, &mut printed);
    let counts = printed.finish(kind);
    printer.finish().expect("written to memory");
    if counts.found() {
        return Err(format!("what the library has written is not right:\n{}", String::from_utf8_lossy(&out)));
    }
    Ok(())
}

/// Fails the test if there is something wrong with a file.
pub fn assert_sound(path: &Path, allowed: &[&str]) {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    problems(&bytes, path, allowed).unwrap_or_else(|problems| panic!("{problems}"));
}

/// The same for all jitdumps and perf maps below a directory, of code that unwind tables need not fit. Returns how many there
/// are.
pub fn assert_all_sound(dir: &Path, allowed: &[&str]) -> usize {
    assert_each_sound(dir, &[allowed, &OTHER_CODE].concat())
}

/// The same for code that does what its unwind tables say.
pub fn assert_all_described(dir: &Path) -> usize {
    assert_each_sound(dir, &[])
}

fn assert_each_sound(dir: &Path, allowed: &[&str]) -> usize {
    let files = files_below(dir);
    for file in &files {
        assert_sound(file, allowed);
    }
    files.len()
}

/// `jit-PID.dump` and `perf-PID.map`, at any depth.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_one = |start, end| name.starts_with(start) && name.ends_with(end);
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&path)),
            Ok(kind) if kind.is_file() && (is_one("jit-", ".dump") || is_one("perf-", ".map")) => files.push(path),
            _ => {}
        }
    }
    files
}
