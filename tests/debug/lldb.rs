//! lldb on the same programs.

use super::tools::*;
use crate::support::*;

#[test]
fn stacks_names_and_lines() {
    let debuggee = Debuggee::new("lldb");
    let commands = [
        "breakpoint set -n reached",
        "run",
        "up",
        "source list -a $pc",
        "image lookup -a $pc",
        "disassemble -n jit_inner",
        "frame select 0",
        "bt",
        "finish",
    ];
    for lldb in lldbs() {
        let text = debuggee.run_in(lldb, &commands, &["bt"]);
        let (before, finished) = text.split_once("(lldb) finish").expect("its echo");
        assert_stack(before, 0, "");
        assert_has(before, &["`jit_inner + 17 at chain.toy:", "toy line 31", "`jit_inner:\n"]);
        assert_has(finished, &["stop reason = step out", "`jit_inner at chain.toy:32"]);
    }
}

#[test]
fn breakpoints_by_name() {
    let debuggee = Debuggee::new("lldb-breakpoints");
    for lldb in lldbs() {
        assert_stack(&debuggee.run_in(lldb, &["breakpoint set -n jit_inner", "run", "bt"], &["bt"]), 1, "");
        let commands = [
            "breakpoint set -n old_jit_inner",
            "breakpoint set -n jit_inner",
            "run",
            "bt",
            "continue",
            "bt",
            "image lookup -a $pc",
        ];
        let text = debuggee.run_in(lldb, &commands, &["reuse"]);
        let (first, second) = text.split_once("(lldb) continue").expect("two stops");
        assert_stack(first, 1, "old_");
        assert_stack(second, 1, "");
        assert!(!second.contains("old_"), "{text}");
    }
}

#[test]
fn breakpoints_by_bare_name() {
    let debuggee = Debuggee::new("lldb-tiers");
    for lldb in lldbs() {
        let commands = ["breakpoint set -n jit_inner", "run", "bt", "breakpoint set -n jit_outer"];
        let text = debuggee.run_in(lldb, &commands, &["tiers"]);
        assert_stack(&text, 1, "");
        assert_has(&text, &["`jit_outer + "]);
        assert!(!text.contains("[opt]"), "{text}");
    }
}

#[test]
fn every_instruction() {
    let debuggee = Debuggee::new("lldb-instructions");
    let step = ["bt", "thread step-inst"];
    // lldb's breakpoint is after the prologue unless it is told otherwise.
    let mut commands = vec!["breakpoint set -n jit_outer -K false", "run", "breakpoint delete -f"];
    commands.extend(std::iter::repeat_n(step, FORTH).flatten());
    commands.push("thread step-out");
    commands.extend(std::iter::repeat_n(step, BACK).flatten());
    for lldb in lldbs() {
        let text = debuggee.run_in(lldb, &commands, &["bt"]);
        assert_steps(&text.replace("(lldb) bt\n", "STEP\n"));
    }
}

/// lldb 14 finds the list only in the executable.
#[test]
fn attached_later() {
    for (test, link) in [("lldb-attached-static", Link::Static), ("lldb-attached", Link::Shared)] {
        let debuggee = Debuggee::linked(test, link, &[], &[]);
        for lldb in lldbs().iter().filter(|lldb| link == Link::Static || !lldb.is_installed) {
            for what in [&["wait", "5000"][..], &["wait", "100000", GDB]] {
                let waiting = debuggee.waiting(what);
                let text = lldb.attached(&waiting, &["bt", "image lookup -s many_4999"]);
                assert_stack(&text, 0, "");
                assert_has(&text, &["`many_4999"]);
            }
        }
    }
}

/// Of more functions than it knows unasked, a debugger hears of the rest when the program registers something next.
#[test]
fn attached_beyond_the_limit() {
    let debuggee = Debuggee::linked("lldb-later", Link::Static, &[], &[]);
    for lldb in lldbs() {
        let waiting = debuggee.waiting(&["later", "20000"]);
        assert_functions(&lldb.attached(&waiting, &["breakpoint set -n jit_inner", "continue", "bt"]));
    }
}

#[test]
fn forked_children() {
    let debuggee = Debuggee::new("lldb-forked");
    let commands = [
        "settings set target.process.follow-fork-mode child",
        "breakpoint set -n child_jit_inner",
        "breakpoint set -n jit_inner",
        "run",
        "bt",
        "continue",
        "bt",
    ];
    for lldb in lldbs() {
        let text = debuggee.run_in(lldb, &commands, &["fork"]);
        let (first, second) = text.split_once("(lldb) continue").expect("two stops");
        assert_stack(first, 1, "child_");
        assert_stack(second, 1, "");
    }
}

#[test]
fn stripped() {
    let library = stripped_library("lldb-stripped-library");
    let shared = Debuggee::new("lldb-stripped-shared");
    let environment = format!("settings set target.env-vars LD_PRELOAD={}", library.display());
    let fixed = Debuggee::linked("lldb-stripped", Link::Static, EXPORTED, &[]).stripped();
    for lldb in lldbs() {
        let commands = [&environment, "breakpoint set -n jit_inner", "run", "bt", "image list"];
        let text = shared.run_in(lldb, &commands, &["bt"]);
        assert_stack(&text, 1, "");
        let (_, listed) = text.split_once("(lldb) image list").expect("its echo");
        let libraries = libraries(listed);
        assert!(libraries.len() == 1 && libraries[0].contains(&*library.to_string_lossy()), "{text}");
        let text = fixed.run_in(lldb, &["breakpoint set -n jit_inner", "run", "bt"], &["bt"]);
        let lines = frames(&text);
        for function in ["jit_inner", "inlined_step", "jit_middle", "jit_outer"] {
            assert!(lines.iter().any(|line| has_function(line, function)), "{function}: {text}");
        }
    }
}

/// The program has the interface too.
#[test]
fn another_definer() {
    let debuggee = Debuggee::linked("lldb-definer", Link::Shared, &["-rdynamic"], &["c-tests/debug/definer.c"]);
    for lldb in lldbs() {
        assert_stack(&debuggee.run_in(lldb, &["breakpoint set -n reached", "run", "bt"], &["bt"]), 0, "");
    }
}

#[test]
fn in_adopted_memory() {
    let debuggee = Debuggee::new("lldb-adopted");
    for lldb in lldbs() {
        assert_stack(&debuggee.run_in(lldb, &["breakpoint set -n reached", "run", "bt"], &["adopted"]), 0, "");
    }
}
