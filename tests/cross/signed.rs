//! Code for aarch64 that signs its return addresses.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{address, Target, AARCH64};
use crate::support::{checker, describe, genelf, once, readelf, root, run, shared_dir, stdout, Link};

/// The program that registers code that signs its return addresses.
fn program(target: &Target) -> PathBuf {
    let dir = shared_dir(format!("{}-pieces", target.arch));
    let object = |name: &str, protection: &str| {
        let out = dir.join(name).with_extension("o");
        let mut gcc = Command::new(target.compiler());
        gcc.args(["-c", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]);
        gcc.arg(format!("-mbranch-protection={protection}"));
        gcc.args([format!("-DFUNCTION={name}_begin"), format!("-DSECTION=\"{name}\"")]);
        gcc.arg(root().join("c-tests/cross/signed_piece.c")).arg("-o").arg(&out);
        once(&out, "", || drop(run(&mut gcc)));
        out
    };
    let (a, b) = (object("signed_a", "pac-ret"), object("signed_b", "pac-ret+b-key"));
    target.compile(&[Path::new("c-tests/cross/signed.c"), &a, &b], Link::Shared, false, "signed")
}

/// Code that signs its return addresses: libgcc's unwinder finds the callers at each instruction, and the tables say what gcc
/// says of the same code.
#[test]
fn return_addresses() {
    let target = &AARCH64;
    let program = program(target);
    let dir = target.scratch("signed");
    let mut command = target.emulated(&["-cpu", "max"], &program, &dir);
    let output = run(&mut command);
    assert_eq!(stdout(&output), "ok\n", "{}", describe(&command, &output));
    assert_eq!(checker::assert_all_sound(&dir, &[]), 1);
    // `jitsym check` compares the tables with the instructions.
    let dump = std::fs::read_dir(&dir).expect("directory").flatten().map(|entry| entry.path());
    let dump = dump.into_iter().find(|path| path.extension().is_some_and(|end| end == "dump")).expect("a jitdump");
    let found = checker::problems(&std::fs::read(&dump).expect("read"), &dump, &[]).expect_err("a finding");
    assert!(found.contains("\"unsaid\"") && found.contains("return address not signed, and it is signed"), "{found}");
    assert!(!found.contains("_frame"), "{found}");
    let names = ["a_frame_pointer", "b_frame_pointer", "a_fixed_frame", "b_fixed_frame", "unsaid"];
    let pieces = target.dumped(&dir, |found| names.into_iter().find(|name| *name == found).expect("a known piece"));
    assert_eq!(pieces.len(), names.len());
    for piece in pieces.iter().filter(|piece| piece.name != "unsaid") {
        let (key, mark) = if piece.name.starts_with("a_") { ("a", "zR") } else { ("b", "zRB") };
        let at = address(&program, &format!("signed_{key}_begin"));
        let (ours, original) = (&piece.object, &program);
        assert_eq!(readelf::negations(ours, genelf::TEXT), readelf::negations(original, at), "{}", piece.name);
        assert_eq!(readelf::negations(ours, genelf::TEXT).len(), 2, "{}", piece.name);
        assert_eq!(readelf::augmentation(ours, genelf::TEXT), format!("\"{mark}\""));
        assert_eq!(readelf::augmentation(original, at), format!("\"{mark}\""));
        // gcc counts from the stack pointer.
        if piece.name.ends_with("fixed_frame") {
            assert_eq!(readelf::rows(ours, genelf::TEXT), readelf::rows(original, at), "{}", piece.name);
        }
    }
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}
