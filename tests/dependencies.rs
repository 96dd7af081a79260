//! What the library is made of: docs/dependencies.md says it all, and deny.toml accepts it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support::{fetched, root, run, stdout, STATIC_LIBS};

const DOCUMENT: &str = include_str!("../docs/dependencies.md");

/// The cells of the rows of a table, by its heading.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rows) = DOCUMENT.split_once(&format!("{heading}\n")).expect("the table");
    let rows = rows.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Each crate that is built into the library or the program, with those that ask for it. (`cargo metadata` would say this of the
/// whole workspace, whose other members want more of the same crates.)
fn built() -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["tree", "--locked", "--package", "jitsym", "--package", "jitsym-tool"]);
    let tree = stdout(&run(cargo.args(["--edges", "normal,build", "--prefix", "depth", "--color", "never"])));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // From the root to the crate of the line before.
    let mut path: Vec<String> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let name = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let depth: usize = line[..line.len() - name.len()].parse().expect("depth");
        let name = name.split(' ').next().expect("name").to_owned();
        path.truncate(depth);
        if let Some(asker) = path.last() {
            found.entry(name.clone()).or_default().insert(asker.clone());
        }
        path.push(name);
    }
    // Not by somebody else.
    found.remove("jitsym");
    found
}

#[test]
fn every_crate_is_in_the_table() {
    let mut told = BTreeMap::new();
    for row in table("| crate | asked for by | why |") {
        assert!(!row[2].is_empty(), "{row:?}");
        let askers = row[1].split(", ").map(str::to_owned).collect();
        told.insert(row[0].to_owned(), askers);
    }
    assert_eq!(told, built(), "docs/dependencies.md and what cargo builds differ");
}

#[test]
fn every_system_library_is_in_the_table() {
    let rows = table("| flag | for |");
    let told: Vec<&str> = rows.iter().flat_map(|row| row[0].trim_matches('`').split(' ')).collect();
    let (told, promised): (BTreeSet<&str>, BTreeSet<&str>) =
        (told.into_iter().collect(), STATIC_LIBS.iter().copied().collect());
    assert_eq!(told, promised);
}

/// Licences, crates that are there twice, and where crates come from: see deny.toml.
#[test]
fn cargo_deny() {
    let mut deny = Command::new(fetched("cargo-deny"));
    deny.current_dir(root()).args(["--locked", "--workspace", "--color=never", "check", "licenses", "bans", "sources"]);
    run(&mut deny);
}
