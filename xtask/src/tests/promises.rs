//! Holds the promises (docs/guarantees.md) against the tests: each test that is named there exists, and "(all)" or "(by hand)" follows
//! the name of a test that the gate does not run.

use anyhow::{bail, Result};

use super::tiers::{fits, Tier, Tiers};

/// An error that names each line where the document is wrong. `is_in_c`: whether that is a file, or in the text of a C program.
pub fn check(document: &str, tests: &[String], tiers: &Tiers, is_in_c: impl Fn(&str) -> bool) -> Result<()> {
    let mut wrong = String::new();
    for (line, name, follows) in names(document) {
        let patterns = patterns(name);
        let named: Vec<&String> = tests.iter().filter(|test| patterns.iter().any(|it| fits(it, test))).collect();
        // C programs run in the gate, with the shared library.
        if named.is_empty() && (is_in_c(name) || is_in_c(name.rsplit("::").next().unwrap_or(name))) {
            continue;
        }
        let is_marked = [" (all)", " (by hand)"].iter().any(|mark| follows.starts_with(mark));
        let problem = match named.iter().map(|test| tiers.of(test)).min() {
            None => "no test is called so",
            Some(tier) if (tier > Tier::Gate) == is_marked => continue,
            Some(_) if is_marked => "the gate runs it",
            Some(_) => "the gate does not run it",
        };
        wrong += &format!("\ndocs/guarantees.md:{line}: `{name}`: {problem}");
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.trim_start());
    }
    Ok(())
}

/// The names in the columns of tests: their lines, and what follows them.
fn names(document: &str) -> Vec<(usize, &str, &str)> {
    let mut names = Vec::new();
    let mut is_of_tests = false;
    for (number, line) in (1..).zip(document.lines()) {
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            is_of_tests &= line.starts_with('|');
            continue;
        };
        let cell = row.rsplit(" | ").next().unwrap_or_default();
        if cell == "test" {
            is_of_tests = true;
        } else if is_of_tests {
            let mut parts = cell.split('`').skip(1);
            while let (Some(name), Some(follows)) = (parts.next(), parts.next()) {
                names.push((number, name, follows));
            }
        }
    }
    names
}

/// The names that tests may have which are called so in the document.
fn patterns(name: &str) -> Vec<String> {
    if let Some(subcommand) = name.strip_prefix("cargo xtask ") {
        // As the runner calls them.
        return vec![if subcommand == "regions" { "random".into() } else { subcommand.into() }];
    }
    if let Some((_, file)) = name.split_once("tests/") {
        let suite = file.split(['/', '.']).next().unwrap_or_default();
        return vec![format!("{suite}::*")];
    }
    if let Some(file) = name.strip_prefix("src/") {
        let module = file.trim_end_matches(".rs").trim_end_matches("/tests").replace('/', "::");
        return vec![format!("lib::{module}::*")];
    }
    let name = name.replace("...", "*");
    ["", "*::"].iter().flat_map(|before| ["", "::*"].map(|after| format!("{before}{name}{after}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(row: &str) -> String {
        let tests = ["files::a", "files::b", "lib::sink::gdb::tests::c", "random"].map(str::to_string);
        let tiers = Tiers::parse("[all]\n*::b\n").unwrap();
        let document =
            format!("| other | words |\n|---|---|\n| x | `nothing` |\n\n| promise | test |\n|---|---|\n{row}\n");
        match check(&document, &tests, &tiers, |name| name == "in_c") {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn tests_exist_and_have_their_tier() {
        for right in [
            "| x `y` | `a`, `files::b` (all), `files::*` |",
            "| x | `tests/files.rs`; `cargo xtask regions` |",
            "| x | `src/sink/gdb/tests.rs`, `host::in_c` |",
        ] {
            assert_eq!(checked(right), "");
        }
        assert_eq!(checked("| x | `d` |"), "docs/guarantees.md:7: `d`: no test is called so");
        assert_eq!(checked("| x | `b` |"), "docs/guarantees.md:7: `b`: the gate does not run it");
        assert_eq!(checked("| x | `a` (all) |"), "docs/guarantees.md:7: `a`: the gate runs it");
    }
}
