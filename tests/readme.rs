//! What the README promises in code and numbers is true.

mod support;

use std::process::Command;
use support::*;

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("README.md")
}

/// The C program of the README, as it stands there.
fn program() -> String {
    let readme = readme();
    let (_, rest) = readme.split_once("```c\n").expect("a C program");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn the_program_compiles_and_runs() {
    let dir = scratch_dir("readme");
    std::fs::write(dir.join("readme.c"), program()).expect("write the program");
    let source = dir.join("readme.c");
    let source = source.to_str().expect("UTF-8");
    for (link, name) in [(Link::Shared, "shared"), (Link::Static, "static")] {
        let program = compile("gcc", &[source], link, &[], name);
        let mut command = Command::new(program);
        command.env("JITSYM_DIR", &dir);
        let child = command.spawn().expect("start");
        let pid = child.id();
        assert!(child.wait_with_output().expect("wait").status.success(), "{name}");
        support::checker::assert_all_sound(&dir, &[]);
        let map = std::fs::read_to_string(dir.join(format!("perf-{pid}.map"))).expect("map");
        assert!(map.ends_with(" 6 answer\n") && map.lines().count() == 1, "{map}");
    }
}

#[test]
fn the_link_line_for_static_libraries_is_the_tested_one() {
    assert!(readme().contains(&format!("libjitsym.a {}`", STATIC_LIBS.join(" "))));
}

#[test]
fn every_variable_of_the_environment_is_documented() {
    let source = std::fs::read_to_string(root().join("src/config.rs")).expect("source");
    let mut variables: Vec<&str> = source.split("env(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    variables.sort_unstable();
    variables.dedup();
    assert!(variables.len() >= 5, "{variables:?}");
    for variable in variables {
        assert!(readme().contains(&format!("| `{variable}` |")), "{variable}");
    }
}
