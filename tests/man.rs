//! The manual pages: well formed, and `jitsym(1)` says what the program says of itself.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::pages;
use crate::support::{fresh_dir, root, run, stdout, tool, try_run};

#[test]
fn pages_are_well_formed() {
    let (dir, pages) = (fresh_dir("man"), pages::pages());
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

/// The lines of a help text below a heading: commands or options.
fn listed(help: &str, heading: &str) -> BTreeSet<String> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.is_empty());
    // What goes on in the next line is farther to the right.
    let near = lines.filter(|line| line.find(|c| c != ' ').is_some_and(|at| at <= 6));
    let words =
        near.flat_map(|line| line.split_whitespace().find(|word| !word.starts_with('-') || word.starts_with("--")));
    words.map(str::to_owned).collect()
}

#[test]
fn page_of_the_program_has_all_commands_and_options() {
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
    let (_, commands) = rest.split_once("COMMANDS").expect("commands");
    let (commands, _) = commands.split_once("EXIT STATUS").expect("exit status");
    let names = listed(&stdout(&run(Command::new(tool()).arg("help"))), "Commands:");
    assert!(names.len() > 5, "{names:?}");
    for name in names.iter().filter(|name| *name != "help") {
        assert!(synopsis.contains(&format!("jitsym {name}")), "{name} is not in the synopsis");
        let (_, section) =
            commands.split_once(&format!("\n   {name}\n")).unwrap_or_else(|| panic!("{name} is not there"));
        let section: String = section.lines().take_while(|line| line.is_empty() || line.starts_with("    ")).collect();
        let options = listed(&stdout(&run(Command::new(tool()).args([name, "--help"]))), "Options:");
        for option in options.iter().filter(|option| *option != "--help") {
            assert!(section.contains(option.as_str()), "{name} {option} is not explained");
        }
    }
}
