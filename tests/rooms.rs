//! The library's inside: each folder of `src` is a room, and a room imports only from those that are listed after it.

mod circles;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use circles::Modules;

/// The rooms, from the C interface down to the operating system.
const ROOMS: &[&str] =
    &["capi", "session", "code_alloc", "writer", "sink", "queue", "registry", "format", "api", "sys"];

/// All source files, by path from `src`.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    let text = |path: &PathBuf| std::fs::read_to_string(path).expect("source");
    let name = |path: &Path| path.strip_prefix(&root).expect("below src").to_str().expect("name").to_string();
    files.iter().map(|path| (name(path), text(path))).collect()
}

/// Without comments, and without what is compiled for tests and models alone: these may look anywhere.
fn code(name: &str, text: &str) -> String {
    let is_test = name.split(['/', '.']).any(|part| part == "tests" || part == "models");
    let before = |text, line| str::split(text, line).next().unwrap_or_default();
    let text =
        if is_test { "" } else { before(before(text, "#[cfg(test)]\nmod tests {"), "#[cfg(test)]\npub mod tests {") };
    let lines = text.lines().filter(|line| !line.contains("#[doc"));
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The rooms that are named after `crate::`.
fn imports(code: &str) -> Vec<String> {
    let first =
        |text: &str| text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            None => found.push(first(rest)),
            // `crate::{a::{b, c}, d}`: the names at the first level.
            Some(group) => {
                let mut depth = 0;
                let mut item = String::new();
                for c in group.chars() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => found.push(first(&std::mem::take(&mut item))),
                        _ => {}
                    }
                    if c != ',' || depth > 0 {
                        item.push(c);
                    }
                }
                found.push(first(&item));
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// The arrows that lead up, or to no room, of a file.
fn wrong(name: &str, text: &str) -> Vec<String> {
    let place = |room: &str| ROOMS.iter().position(|known| *known == room);
    let Some((room, _)) = name.split_once('/') else { return Vec::new() };
    let Some(here) = place(room) else { return vec![format!("{name}: {room} is no room")] };
    let is_wrong = |target: &String| place(target).is_none_or(|there| there < here);
    imports(&code(name, text)).iter().filter(|target| is_wrong(target)).map(|to| format!("{name} -> {to}")).collect()
}

#[test]
fn imports_go_down() {
    let sources = sources();
    let mut rooms: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (name, text) in &sources {
        found.extend(wrong(name, text));
        *rooms.entry(name.split('/').next().unwrap_or_default()).or_default() += 1;
    }
    assert!(found.is_empty(), "{found:#?}");
    for room in ROOMS {
        assert!(rooms.contains_key(room), "{room} is gone");
    }
    assert!(rooms.len() <= ROOMS.len() + 1, "beside lib.rs and the rooms there is something else: {rooms:?}");
}

#[test]
fn an_arrow_up_is_found() {
    let found = |text| wrong("queue/chunk.rs", text);
    assert_eq!(found("use crate::sys::mapping;\nuse crate::queue::pool;\n"), [""; 0]);
    assert_eq!(found("// use crate::writer::Writer;\n"), [""; 0]);
    assert_eq!(found("fn f() { crate::writer::run() }"), ["queue/chunk.rs -> writer"]);
    assert_eq!(
        found("use crate::{api::{error, code}, sys::mapping, session::Session};"),
        ["queue/chunk.rs -> session"]
    );
    assert_eq!(found("use crate::cellar::wine;"), ["queue/chunk.rs -> cellar"]);
    assert_eq!(found("use a;\n#[cfg(test)]\nmod tests {\n    use crate::capi::types;\n}"), [""; 0]);
}

#[test]
fn no_file_imports_another_in_a_circle() {
    let sources = sources().into_iter().map(|(name, text)| (name.clone(), code(&name, &text)));
    let circles = Modules::new(sources.filter(|(_, code)| !code.is_empty())).circles();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn the_documents_name_modules_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for document in ["docs/design.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(document)).expect("document");
        let is_module = |word: &&str| {
            let room = word.split_once('/').is_some_and(|(room, _)| ROOMS.contains(&room));
            room && word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '/')
        };
        for module in text.split('`').filter(is_module) {
            let path = root.join("src").join(module);
            assert!(path.is_dir() || path.with_extension("rs").is_file(), "{document}: {module} is gone");
            named += 1;
        }
    }
    assert!(named > 10, "only {named} modules are found");
}

/// The tests are one program: a file that it does not name would not even be compiled.
#[test]
fn every_file_of_tests_is_compiled() {
    let main = include_str!("main.rs");
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")).expect("tests") {
        let path = entry.expect("entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8");
        let is_suite = path.extension().is_some_and(|extension| extension == "rs") && name != "main";
        assert!(!is_suite || main.contains(&format!("\nmod {name};\n")), "tests/main.rs does not name {name}");
    }
}
