//! gdb and lldb on programs that register code: what they print, against the stack that the program is known to have. Those that
//! are installed, and those of newer suites of Debian.
//!
//! The program (`c-tests/debug/debuggee.c`) has machine code of x86-64 in it.
#![cfg(target_arch = "x86_64")]

mod copies;
mod cores;
mod killed;
mod kinds;
mod lldb;
mod luajit;
mod tools;

use crate::support::*;
use std::process::Command;
use tools::*;

/// Fifteen objects of each of four sizes, in two ranges of addresses, and both ends of the list.
const LISTED_MOST: usize = 2 * 4 * 15 + 2;

#[test]
fn stacks_names_and_lines() {
    let debuggee = Debuggee::new("stacks");
    for gdb in gdbs() {
        let commands = ["break reached", "run", "bt", "info symbol jit_inner", "up", "list", "disassemble", "finish"];
        let text = debuggee.run_in(gdb, &commands, &["bt"]);
        assert_stack(&text, 0, "");
        assert_has(
            &text,
            &[
                "jit_inner in section .text of ",
                "31\ttoy line 31",
                "Dump of assembler code for function jit_inner:",
                "chain.toy:22",
            ],
        );
        // Turned off, nobody knows the code.
        let mut command = gdb.commands(&["break reached", "run", "bt"]);
        command.env("JITSYM_GDB", "0");
        let text = debuggee.run_with(gdb, command, &["bt"]);
        assert!(!text.contains("jit_inner"), "{text}");
    }
}

/// The breakpoint is set before there is such a function. The first call of the code meets it.
#[test]
fn breakpoints_by_name() {
    let debuggee = Debuggee::new("breakpoints");
    for gdb in gdbs() {
        assert_stack(&debuggee.run_in(gdb, &["break jit_inner", "run", "bt"], &["bt"]), 1, "");
        // Other code comes to the same place.
        let commands = [
            "break old_jit_inner",
            "break jit_inner",
            "run",
            "bt",
            "continue",
            "echo SECOND\\n",
            "bt",
            "info symbol $pc",
        ];
        let text = debuggee.run_in(gdb, &commands, &["reuse"]);
        let (first, second) = text.split_once("SECOND").expect("two stops");
        assert_stack(first, 1, "old_");
        assert_stack(second, 1, "");
        assert!(!second.contains("old_"), "{text}");
    }
}

/// Names with a tier, a file and a line. Users type none of these, before the code is there or after.
#[test]
fn breakpoints_by_bare_name() {
    let debuggee = Debuggee::new("tiers");
    for gdb in gdbs() {
        let commands = ["break jit_inner", "run", "bt", "info symbol $pc", "break jit_outer", "info breakpoints"];
        let text = debuggee.run_in(gdb, &commands, &["tiers"]);
        assert_stack(&text, 1, "");
        let expected = ["Breakpoint 1 (jit_inner) pending.", "jit_inner [opt] in section", "in jit_outer at "];
        assert_has(&text, &expected);
    }
}

/// Breakpoints in memory of two views stop the program at each call, and code beside them that is new or was replaced runs as it
/// was written.
#[test]
fn breakpoints_in_two_views() {
    let debuggee = Debuggee::new("two-views");
    for gdb in gdbs() {
        let commands = ["break jit_inner", "run", "bt", "echo FINISH\\n", "finish", "bt"];
        let text = debuggee.run_in(gdb, &commands, &["two-views"]);
        let (stopped, finished) = text.split_once("FINISH").expect("finish");
        assert_stack(stopped, 1, "");
        assert_stack(finished, 3, "");
        let counted =
            ["break jit_inner", "break more_jit_inner", "ignore 1 1000", "ignore 2 1000", "run", "info breakpoints"];
        let text = debuggee.run_in(gdb, &counted, &["two-views-calls"]);
        assert_has(&text, &["exited normally", "already hit 21 times", "already hit 10 times"]);
        // A child that no debugger follows has none of its parent's breakpoints.
        let text = debuggee.run_in(gdb, &["break jit_inner", "ignore 1 1000", "run"], &["two-views-fork"]);
        assert_has(&text, &["exited normally"]);
    }
}

/// A debugger that attaches sets breakpoints in memory of two views once the program has registered something.
#[test]
fn breakpoints_in_two_views_of_one_that_is_attached() {
    let debuggee = Debuggee::new("two-views-attached");
    for gdb in gdbs() {
        let waiting = debuggee.waiting(&["two-views-later", "5"]);
        // When the second flush is answered, the writer has done all of the round of the first.
        let flush = "call (int)jitsym_flush(session, 10000)";
        let commands = [flush, flush, "break jit_inner", "continue", "bt"];
        assert_stack(&gdb.attached(&waiting, &commands), 1, "");
    }
}

/// At each instruction of the three functions, forth and back.
#[test]
fn every_instruction() {
    let debuggee = Debuggee::new("instructions");
    let step = ["echo STEP\\n", "bt", "stepi"];
    let mut commands = vec!["break jit_outer", "run", "delete"];
    commands.extend(std::iter::repeat_n(step, FORTH).flatten());
    commands.push("finish");
    commands.extend(std::iter::repeat_n(step, BACK).flatten());
    for gdb in gdbs() {
        assert_steps(&debuggee.run_in(gdb, &commands, &["bt"]));
    }
}

/// A debugger that comes later: nothing was set, or there are 100,000 functions.
#[test]
fn attached_later() {
    let debuggee = Debuggee::new("attached");
    for gdb in gdbs() {
        for what in [&["wait", "5000"][..], &["wait", "100000", GDB]] {
            let waiting = debuggee.waiting(what);
            let text = gdb.attached(&waiting, &["bt", "info symbol many_4999", "maint info jit"]);
            assert_stack(&text, 0, "");
            assert_has(&text, &["many_4999 in section"]);
            assert_short_list(&text);
        }
    }
}

/// Of more functions than it knows unasked, a debugger hears of the rest when the program registers something next.
#[test]
fn attached_beyond_the_limit() {
    let debuggee = Debuggee::new("later");
    for gdb in gdbs() {
        let waiting = debuggee.waiting(&["later", "20000"]);
        let commands = ["info symbol many_9", "break jit_inner", "continue", "bt", "info symbol many_19999"];
        let text = gdb.attached(&waiting, &commands);
        assert_functions(&text);
        assert_has(&text, &["many_9 in section", "Breakpoint 1 (jit_inner) pending", "many_19999 in section"]);
    }
}

/// A thread stands below code while another one registers more. Whenever gdb hears of a change, and so wherever else it stops the
/// process, that thread's stack is whole: from the moment that gdb comes, and while small objects become large ones.
#[test]
fn whole_stacks_all_the_time() {
    let debuggee = Debuggee::new("beside");
    // Sixteen small objects become one.
    const STOPS: usize = 60;
    let stop = ["continue", "echo STOP\\n", "thread apply 1 -q bt"];
    let mut commands = vec!["bt", "break __jit_debug_register_code"];
    commands.extend(std::iter::repeat_n(stop, STOPS).flatten());
    for gdb in gdbs() {
        let waiting = debuggee.waiting(&["beside"]);
        let text = gdb.attached(&waiting, &commands);
        let stops: Vec<&str> = text.split("STOP\n").collect();
        assert_eq!(stops.len(), 1 + STOPS, "{text}");
        stops.iter().for_each(|stop| assert_stack(stop, 0, ""));
    }
}

/// One after the other, with gdb's eyes on them.
#[test]
fn many_in_gdb() {
    let debuggee = Debuggee::new("many");
    for gdb in gdbs() {
        let commands = ["break reached", "run", "bt", "info symbol many_299", "maint info jit"];
        let text = debuggee.run_in(gdb, &commands, &["bt", "300"]);
        assert_stack(&text, 0, "");
        assert_has(&text, &["many_299 in section"]);
        assert_short_list(&text);
    }
}

/// Functions with small gaps between them are in one section of each object, and nothing has a name in a gap.
#[test]
fn gaps_in_gdb() {
    let debuggee = Debuggee::new("gaps");
    for gdb in gdbs() {
        let commands = [
            "break reached",
            "run",
            "bt",
            "info symbol (char *) &many_7 + 47",
            "echo GAP\\n",
            "info symbol (char *) &many_7 + 48",
            "info symbol (char *) &many_7 + 63",
            "print (void *) ((char *) &many_7 + 50)",
            "echo SECTIONS\\n",
            "maint info sections -all-objects",
        ];
        let text = debuggee.run_in(gdb, &commands, &["gaps", "300"]);
        assert_stack(&text, 0, "");
        let (before, rest) = text.split_once("GAP\n").expect("gap");
        let (gap, sections) = rest.split_once("SECTIONS\n").expect("sections");
        assert_has(before, &["many_7 + 47 in section .text of"]);
        assert_eq!(gap.matches("No symbol matches").count(), 2, "{gap}");
        assert!(!gap.contains("<many_") && gap.contains("= (void *) 0x"), "{gap}");
        assert!(sections.contains(".text ") && !sections.contains(".text.0"), "{sections}");
    }
}

/// Of `maint info jit`.
fn assert_short_list(text: &str) {
    let listed = text.lines().filter(|line| line.starts_with("0x")).count();
    assert!((3..=LISTED_MOST).contains(&listed), "{text}");
}

/// Code that ends one by one costs no whole object each, and the sink is started and stopped while the debugger listens.
#[test]
fn ends_and_changes_in_gdb() {
    let debuggee = Debuggee::new("changes");
    let commands = ["break reached", "run", "bt", "info symbol many_8", "info symbol many_7"];
    for gdb in gdbs() {
        // gdb takes time for each.
        let text = debuggee.run_in(gdb, &commands, &["one-by-one", if thorough() { "2000" } else { "100" }]);
        assert_stack(&text, 0, "");
        assert!(text.contains("many_7 in section") && !text.contains("many_8 in section"), "{text}");
        let text = debuggee.run_in(gdb, &commands, &["on-and-off", if thorough() { "20" } else { "10" }]);
        assert_stack(&text, 0, "");
        assert_has(&text, &["many_8 in section"]);
    }
    // A session that has it alone, and nobody listens.
    let rounds = if thorough() { "1000" } else { "100" };
    let output = run(Command::new(&debuggee.program).arg(&debuggee.dir).args(["on-and-off", rounds, "9"]));
    assert!(stdout(&output).ends_with("ok\n"), "{output:?}");
}

#[test]
fn forked_children() {
    let debuggee = Debuggee::new("forked");
    let commands = [
        "set follow-fork-mode child",
        "break child_jit_inner",
        "break jit_inner",
        "run",
        "bt",
        "continue",
        "echo SECOND\\n",
        "bt",
    ];
    for gdb in gdbs() {
        let text = debuggee.run_in(gdb, &commands, &["fork"]);
        let (first, second) = text.split_once("SECOND").expect("two stops");
        assert_stack(first, 1, "child_");
        assert_stack(second, 1, "");
    }
}

/// Without its symbol table the library is known by its dynamic symbols, and so is a program with the static one, which exports them.
#[test]
fn stripped() {
    let library = stripped_library("stripped-library");
    let shared = Debuggee::new("stripped-shared");
    let environment = format!("set environment LD_PRELOAD {}", library.display());
    let fixed = Debuggee::linked("stripped-static", Link::Static, EXPORTED, &[]).stripped();
    for gdb in gdbs() {
        let text = shared.run_in(gdb, &["break jit_inner", &environment, "run", "bt", "info sharedlibrary"], &["bt"]);
        assert_stack(&text, 1, "");
        let libraries = libraries(&text);
        assert!(libraries.len() == 1 && libraries[0].contains(&*library.to_string_lossy()), "{text}");
        let text = fixed.run_in(gdb, &["break jit_inner", "run", "bt"], &["bt"]);
        let lines = frames(&text);
        let is_at = |(name, at): (&str, usize)| lines.get(at).is_some_and(|line| has_function(line, name));
        assert!([("jit_inner", 0), ("jit_middle", 2), ("jit_outer", 3)].into_iter().all(is_at), "{text}");
    }
}

/// Files of regions are no objects that gdb knows of.
#[test]
fn in_adopted_memory() {
    let debuggee = Debuggee::new("adopted");
    for gdb in gdbs() {
        let text = debuggee.run_in(gdb, &["break reached", "run", "bt", "info proc mappings"], &["adopted"]);
        assert_stack(&text, 0, "");
        assert!(
            text.lines().any(|line| line.contains("/jit-") && line.trim_end().ends_with(".so")),
            "it is no region: {text}"
        );
    }
}

/// The program has the interface too. Its list is the one that is used, and nothing collides.
#[test]
fn another_definer() {
    let commands =
        ["break reached", "run", "bt", "info symbol &__jit_debug_descriptor", "print __jit_debug_descriptor.first"];
    for (test, link) in [("definer-shared", Link::Shared), ("definer-static", Link::Static)] {
        let debuggee = Debuggee::linked(test, link, &["-rdynamic"], &["c-tests/debug/definer.c"]);
        for gdb in gdbs() {
            let text = debuggee.run_in(gdb, &commands, &["bt"]);
            assert_stack(&text, 0, "");
            assert_has(&text, &["__jit_debug_descriptor in section .data", "(struct entry *) 0x"]);
            assert!(!text.contains("(struct entry *) 0x0"), "{text}");
        }
    }
}

/// The page's transcript is what gdb prints, except for numbers that differ from run to run.
#[test]
fn the_page_shows_what_gdb_prints() {
    let debuggee = Debuggee::new("page");
    for gdb in gdbs() {
        let text = debuggee.run_in(gdb, &["break reached", "run", "bt", "info symbol jit_inner"], &["bt"]);
        let kept = text
            .lines()
            .filter(|line| line.starts_with('#') || line.contains(" in section "))
            .map(|line| as_on_the_page(line, &debuggee.dir));
        let expected = kept.collect::<Vec<_>>().join("\n");
        let page = std::fs::read_to_string(root().join("docs/debugging.md")).expect("page");
        let transcript = page.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next());
        assert_eq!(transcript.expect("transcript"), expected, "{text}");
    }
}
