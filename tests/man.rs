//! The manual pages: well formed, and `jitsym(1)` says what the program says of itself.

#[path = "../man/mod.rs"]
mod man;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use support::{fresh_dir, root, run, stdout, tool, try_run};

#[test]
fn pages_are_well_formed() {
    let (dir, pages) = (fresh_dir("man"), man::pages());
    assert!(pages.len() > include_str!("exports.txt").lines().count());
    for (name, text) in &pages {
        fs::write(dir.join(name), text).expect("page");
    }
    let mut lint = Command::new("mandoc");
    let output = try_run(lint.current_dir(&dir).args(["-T", "lint", "-W", "warning"]).args(pages.keys()));
    let text = stdout(&output);
    assert!(output.status.success() && text.is_empty(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for (page, text) in &pages {
        let version = format!("\"libjitsym {}\"", env!("CARGO_PKG_VERSION"));
        let title = text.lines().find(|line| line.starts_with(".TH ")).expect("a title");
        assert!(title.contains(&version), "{page}: another version: {title}");
        // What is referred to exists, if it is ours.
        for line in text.lines().filter(|line| line.starts_with(".BR ") && line.contains("jitsym")) {
            let name = line.split(' ').nth(1).expect("a name");
            let section = line.split(['(', ')']).nth(1);
            let Some(section) = section else { continue };
            assert!(pages.contains_key(&format!("{name}.{section}")), "{page}: there is no {name}({section})");
        }
    }
}

/// Commands and options of a text: `--words`, and what follows the program's name.
fn interface(text: &str) -> BTreeSet<String> {
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    let options = words.iter().filter(|word| word.starts_with("--") && word.len() > 2).map(|word| word.to_string());
    let summary =
        text.lines().filter(|line| line.trim_start().starts_with("jitsym ") || line.contains("usage: jitsym "));
    let commands = summary.filter_map(|line| line.split("jitsym ").nth(1)?.split(' ').next().map(str::to_string));
    options.chain(commands).collect()
}

#[test]
fn page_of_the_program_has_all_commands_and_options() {
    let usage = stdout(&run(Command::new(tool()).arg("help")));
    // As somebody reads it, without overstrikes.
    let page = run(Command::new("mandoc").args(["-T", "ascii", "-O", "width=200"]).arg(root().join("man/jitsym.1")));
    let page: String = stdout(&page);
    let plain: Vec<char> = page.chars().collect();
    let struck: String = (0..plain.len())
        .filter(|&at| plain[at] != '\u{8}' && plain.get(at + 1) != Some(&'\u{8}'))
        .map(|at| plain[at])
        .collect();
    let (_, synopsis) = struck.split_once("SYNOPSIS").expect("a synopsis");
    let (synopsis, rest) = synopsis.split_once("DESCRIPTION").expect("a description");
    let (commands, _) = rest.split_once("EXIT STATUS").expect("exit status");
    assert_eq!(interface(synopsis), interface(&usage));
    // Each is explained too.
    for word in interface(&usage) {
        let explained = commands.lines().any(|line| line.trim_start().starts_with(&word));
        assert!(explained, "{word} is not explained");
    }
}
