//! What the library is made of: docs/dependencies.md says it all, and deny.toml accepts it.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use support::{root, run, stdout, STATIC_LIBS};

const DOCUMENT: &str = include_str!("../docs/dependencies.md");

/// The cells of the rows of a table, by its heading.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let (_, rows) = DOCUMENT.split_once(&format!("{heading}\n")).expect("the table");
    let rows = rows.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Each crate that is built into the library or the program, with those that ask for it.
fn built() -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["metadata", "--locked", "--format-version=1", "--filter-platform"]);
    let metadata = stdout(&run(cargo.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))));
    let metadata: Value = serde_json::from_str(&metadata).expect("metadata");
    let array = |value: &Value| value.as_array().expect("array").clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let names: BTreeMap<String, String> =
        array(&metadata["packages"]).iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
    let nodes = array(&metadata["resolve"]["nodes"]);
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (first, _) = names.iter().find(|(_, name)| *name == "jitsym").expect("the library itself");
    let mut open = vec![first.clone()];
    while let Some(id) = open.pop() {
        let node = nodes.iter().find(|node| node["id"] == *id).expect("node");
        for dependency in array(&node["deps"]) {
            if array(&dependency["dep_kinds"]).iter().all(|kind| kind["kind"] == "dev") {
                continue;
            }
            let package = text(&dependency["pkg"]);
            let askers = found.entry(names[&package].clone()).or_default();
            if askers.is_empty() {
                open.push(package);
            }
            askers.insert(names[&id].clone());
        }
    }
    found
}

#[test]
fn every_crate_is_in_the_table() {
    let mut told = BTreeMap::new();
    for row in table("| crate | asked for by | why |") {
        assert!(!row[2].is_empty(), "{row:?}");
        let askers = row[1].split(", ").filter(|asker| *asker != "the program only").map(str::to_owned).collect();
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
    let tool = run(Command::new(env!("CARGO")).current_dir(root()).args(["xtask", "tool", "cargo-deny"]));
    let mut deny = Command::new(stdout(&tool).trim());
    deny.current_dir(root()).args(["--locked", "--workspace", "--color=never", "check", "licenses", "bans", "sources"]);
    run(&mut deny);
}
