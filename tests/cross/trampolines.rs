//! Trampolines for aarch64 and riscv64.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{add_symbols, debugged, functions, Source, Target, AARCH64};
use crate::support::{checker, describe, fresh_dir, once, root, run, shared_dir, stdout, try_run, Link};
use crate::trampolines::signatures;

/// The functions on the stack of the interpreter (`c-tests/trampolines/interpreter.c`), the outermost first. Each second one
/// from the third on is a trampoline.
const CHAIN: [&str; 15] = [
    "main",
    "run",
    "module",
    "enter",
    "outer",
    "interpret",
    "middle",
    "interpret",
    "inner",
    "interpret",
    "inner",
    "interpret",
    "inner",
    "interpret",
    "reached",
];

fn interpreter(target: &Target) -> PathBuf {
    target.compile(&[Path::new("c-tests/trampolines/interpreter.c")], Link::Shared, false, "interpreter")
}

/// gdb finds the way from each instruction of each trampoline to `main`, by the tables of the jitdump.
pub fn in_gdb(target: &Target) {
    let program = interpreter(target);
    let dir = target.scratch("trampolines-gdb");
    let (mut emulated, mut gdb) = debugged(target, &program, &dir, Source::Files, |command| {
        command.arg("once").env("JITSYM_DIR", &dir).env("JITSYM", "jitdump");
    });
    let printed = gdb.say("break run\ncontinue");
    assert!(printed.contains("run ("), "{printed}");
    let bare =
        |name: &str| CHAIN.into_iter().find(|known| name.split(' ').next() == Some(known)).expect("a known name");
    let pieces = target.dumped(&dir, bare);
    assert_eq!(pieces.len(), 4, "{printed}");
    add_symbols(&mut gdb, &pieces);
    let mut expected = BTreeSet::new();
    for (depth, name) in CHAIN.into_iter().enumerate() {
        let of_name = pieces.iter().filter(|piece| piece.name == name);
        expected.extend(of_name.flat_map(|piece| piece.range.clone().step_by(4)).map(|pc| (pc, depth)));
    }
    for piece in &pieces {
        piece.range.clone().step_by(4).for_each(|pc| _ = gdb.say(&format!("break *{pc:#x}")));
    }
    let mut seen = BTreeSet::new();
    let all = expected.len();
    let printed =
        gdb.say(&format!("set $stop = 0\nwhile $stop++ < {all}\ncontinue\nprintf \"@stop %lx\\n\", $pc\nbt\nend"));
    for stop in printed.split("@stop ").skip(1) {
        let pc = u64::from_str_radix(stop.lines().next().unwrap_or_default(), 16).expect("an address");
        let mut found = functions(stop);
        found.reverse();
        assert!(CHAIN.starts_with(&found), "at {pc:#x}: {stop}");
        assert!(seen.insert((pc, found.len() - 1)), "at {pc:#x}: {stop}");
    }
    assert_eq!(seen, expected, "{printed}");
    gdb.say("delete\ncontinue");
    let status = emulated.child.wait().expect("waited for");
    assert!(status.success(), "{status}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// C++ exceptions pass through trampolines if the unwinder has the tables. On aarch64, the unwinder meets signed return addresses.
pub fn exceptions(target: &Target) {
    let sources = ["c-tests/trampolines/interpreter.c", "c-tests/unwinder/exceptions.cc", "-lstdc++", "-DTHROWS"];
    let sources = sources.map(Path::new);
    let flags = [Path::new("-fexceptions")];
    let program = target.compile(&[&sources[..], &flags].concat(), Link::Shared, false, "throwing-interpreter");
    let dir = target.scratch("trampolines-throw");
    let run_with = |sinks: &str| {
        let mut command = target.emulated(&[], &program, &dir);
        command.arg("throw").env("JITSYM_DIR", &dir).env("JITSYM", sinks);
        (try_run(&mut command), command)
    };
    let (output, command) = run_with("jitdump,unwinder");
    assert!(output.status.success() && stdout(&output).ends_with("ok\n"), "{}", describe(&command, &output));
    // Without the tables, the exception ends the program.
    let (output, _) = run_with("jitdump");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("terminate called"), "{output:?}");
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}

/// Functions of random types get the same arguments through a trampoline as directly.
pub fn random_functions(target: &Target) {
    let dir = fresh_dir(format!("{}-signatures", target.arch));
    signatures::check(
        |_, _| signatures::WORDS_MAX,
        &dir,
        |file, program| {
            run(&mut target.compilation(&[file], Link::Shared, false, program));
            let files = dir.join("files");
            target.emulated(&[], program, &files)
        },
    );
}

/// aarch64: trampolines begin with a landing pad, so they can be called in pages that allow calls of landing pads only. They
/// sign their return addresses. Their first and last instructions are those that gcc makes.
#[test]
fn guarded_pages() {
    let target = &AARCH64;
    let piece = shared_dir(format!("{}-pieces", target.arch)).join("guarded.o");
    let mut gcc = Command::new(target.compiler());
    gcc.args(["-c", "-O1", "-fno-omit-frame-pointer", "-mbranch-protection=standard", "-DFUNCTION=guarded_begin"]);
    gcc.arg("-DSECTION=\"guarded\"").arg(root().join("c-tests/cross/signed_piece.c")).arg("-o").arg(&piece);
    once(&piece, "", || drop(run(&mut gcc)));
    let program = target.compile(&[Path::new("c-tests/cross/guarded.c"), &piece], Link::Shared, false, "guarded");
    let dir = target.scratch("guarded");
    let mut command = target.emulated(&["-cpu", "max"], &program, &dir);
    let output = run(&mut command);
    assert_eq!(stdout(&output), "ok\n", "{}", describe(&command, &output));
    checker::assert_all_sound(&dir, &[]);
    std::fs::remove_dir_all(&dir).expect("remove the directory");
}
