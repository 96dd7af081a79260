//! What the tests of the language packages share: their READMEs, tools from other registries, and guests in other languages.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::perf::{self, Recording};
use crate::support::{artifacts, checker, fresh_dir, lock, root, run, scratch_dir, spaceless, stdout};

pub fn package(language: &str) -> PathBuf {
    root().join("bindings").join(language)
}

/// Lets a command find the library.
pub fn with_library(command: &mut Command) -> &mut Command {
    command.env("JITSYM_LIB", artifacts().shared_dir.join("libjitsym.so"))
}

/// A Python environment, shared by all test programs, with these packages of PyPI in it. Its programs are in `bin`.
pub fn python_env(packages: &[&str]) -> PathBuf {
    let env = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-env");
    // Another test program may be about to make it.
    let _lock = lock(&env.with_extension("lock"));
    if !env.join("ready").exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&env));
        std::fs::write(env.join("ready"), "").expect("write");
    }
    run(Command::new(env.join("bin/pip")).args(["install", "--quiet"]).args(packages));
    env
}

/// The commands in the README of a package that begin so, with the place of this tree in them.
pub fn readme_commands(language: &str, start: &str) -> Vec<String> {
    let text = std::fs::read_to_string(package(language).join("README.md")).expect("README");
    let lines = text.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with(start));
    let root = spaceless(root()).display().to_string();
    let commands: Vec<String> = lines.map(|line| line.replace("/path/to/libjitsym", &root)).collect();
    assert!(!commands.is_empty(), "the README for {language} has no {start}");
    commands
}

/// Runs the program in the README of a package, its one block of that kind, which registers `answer`. `command` says how to
/// run the file that it is in.
pub fn run_readme(language: &str, fence: &str, file: &str, command: impl FnOnce(&Path) -> Command) {
    let text = std::fs::read_to_string(package(language).join("README.md")).expect("README");
    for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
        assert!(package(language).join(link).exists(), "the README for {language} leads to {link}");
    }
    let blocks: Vec<&str> = text.split(&format!("```{fence}\n")).skip(1).collect();
    assert_eq!(blocks.len(), 1, "blocks of {fence} in the README for {language}");
    let name = format!("{language}-readme");
    let dir = fresh_dir(&name);
    let program = dir.join(file);
    std::fs::write(&program, blocks[0].split("```").next().expect("end")).expect("write the program");
    run(with_library(&mut command(&program)).env("JITSYM_DIR", &dir));

    assert_eq!(checker::assert_all_sound(&dir, &[]), 2);
    let entries = std::fs::read_dir(&dir).expect("directory").map(|entry| entry.expect("entry").path());
    let maps: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "map")).collect();
    let map = std::fs::read_to_string(&maps[0]).expect("map");
    assert!(map.ends_with(" answer\n") && map.lines().count() == 1, "{map}");
}

/// Records a guest in another language, and holds what perf shows against what the guest says of itself: every name, the
/// share of each function in the time, the stacks out of the guest into its host, and every source line.
pub fn check_guest(name: &str, complete: impl Fn(&mut Command, &Path)) {
    let recording = Recording::of(name, 1.1, perf::WITH_STACKS, |record, dir| {
        with_library(record);
        complete(record, dir);
    });
    let truth = &recording.truth;
    let injected = recording.inject_by_jitsym();
    let mut samples = perf::samples(truth, &injected, false);
    // Only of guest code: it takes perf long to look for lines in a host.
    let guest: Vec<&str> = truth.functions.iter().map(|function| &*function.name).collect();
    let mut script = perf::perf("script");
    script.args(["--ns", "--no-inline", "-F", perf::STACK_FIELDS, "-S", &guest.join(","), "-i"]).arg(&injected);
    perf::add_stacks(truth, &mut samples, &stdout(&run(&mut script)));
    let found = perf::guest_samples(truth, &samples);
    perf::check_names(&found, 500);
    let names: Vec<&str> = found.iter().map(|(sample, _)| &*sample.sym).collect();
    perf::check_shares(truth, &names);
    perf::check_stacks(truth, &found);
    perf::check_lines(truth, &samples, 500);
    perf::check_map(truth, &std::fs::read(&truth.paths["map"]).expect("map"));
    for (counter, value) in [("registered", 4), ("moved", 1), ("unregistered", 1), ("live", 3)] {
        assert_eq!(truth.stats[counter], value, "{counter}");
    }
}

/// What a package claims of the C interface (`struct NAME SIZE`, `field STRUCT NAME OFFSET SIZE`, `number NAME VALUE`), the C
/// compiler finds in the headers; and there is no struct or enumerator that it does not know.
pub fn check_claims(claims: &str) {
    let mut asserts = String::from("#include <jitsym_control.h>\n#include <jitsym_region.h>\n");
    let mut known = BTreeSet::new();
    for line in claims.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let claim = match words[..] {
            ["struct", name, size] => format!("sizeof({name}) == {size}"),
            ["field", name, field, offset, size] => {
                format!("offsetof({name}, {field}) == {offset} && sizeof((({name} *)0)->{field}) == {size}")
            }
            ["number", name, value] => format!("{name} == {value}"),
            _ => panic!("the claim {line:?}"),
        };
        known.extend(["struct", "number"].contains(&words[0]).then_some(words[1]));
        let _ = writeln!(asserts, "_Static_assert({claim}, \"{line}\");");
    }
    let source = scratch_dir("claims").join("claims.c");
    std::fs::write(&source, asserts).expect("write the claims");
    run(Command::new("cc").current_dir(root()).args(["-std=c11", "-fsyntax-only", "-Iinclude"]).arg(&source));

    let header = crate::headers::TEXT;
    let enumerators = header.lines().filter_map(|line| line.strip_prefix("  JITSYM_")?.split_once(" = "));
    let structs = header.lines().filter_map(|line| line.strip_prefix("typedef struct ")?.strip_suffix(" {"));
    let all: BTreeSet<String> =
        enumerators.map(|(name, _)| format!("JITSYM_{name}")).chain(structs.map(String::from)).collect();
    let of_crash_handlers = ["jitsym_function", "jitsym_registers"];
    let is_missing = |name: &&String| !known.contains(&***name) && !of_crash_handlers.contains(&&***name);
    let missing: Vec<&String> = all.iter().filter(is_missing).collect();
    assert!(all.len() > 60 && missing.is_empty(), "of {} not known: {missing:?}", all.len());
}
