//! Two copies of the library in one process, however the loader binds their names: gdb sees the code of both.

use std::path::Path;
use std::process::Command;

use super::tools::*;
use crate::support::*;

/// How a plugin is linked: with `-Bsymbolic-functions` it calls its own functions, and shares the data of what was loaded first.
const BINDINGS: [&str; 3] = ["-Wl,--as-needed", "-Wl,-Bsymbolic-functions", "-Wl,-Bsymbolic"];

/// A plugin with the static library inside, and with its symbols in plain sight.
fn plugin(out: &Path, binding: &str) {
    let mut compiler = Command::new("gcc");
    compiler.current_dir(root()).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Iinclude", "-fPIC", "-shared"]);
    compiler.args([binding, "c-tests/support/plugin.c"]).arg(&artifacts().static_lib).args(STATIC_LIBS);
    run(compiler.arg("-o").arg(out));
}

#[test]
fn each_has_names_in_gdb() {
    let dir = scratch_dir("copies");
    let host = compile("gcc", &["c-tests/debug/copies.c"], Link::None, &["-std=gnu11", "-O1"], "copies");
    let shared = artifacts().shared_dir.join("libjitsym.so");
    let mut wrong = Vec::new();
    for (number, binding) in BINDINGS.into_iter().enumerate() {
        let (one, other) = (dir.join("one.so"), dir.join("other.so"));
        plugin(&one, binding);
        std::fs::copy(&one, &other).expect("copy of the plugin");
        let mut orders = vec![[&shared, &one], [&one, &other], [&one, &shared]];
        // Each order with one of the bindings.
        if !thorough() {
            orders = vec![orders[number]];
        }
        for order in orders {
            for gdb in gdbs() {
                let mut command = gdb.commands(&[
                    "break reached",
                    "run",
                    "info symbol 0x7100000000",
                    "info symbol 0x7100100000",
                    "continue",
                ]);
                let text = gdb.said(gdb.start(&mut command).arg(&host).arg(&dir).args(order));
                assert_has(&text, &["Breakpoint 1, reached", "exited normally"]);
                let unseen = (0..2).filter(|copy| !text.contains(&format!("code_of_{copy} in section .text")));
                wrong.extend(unseen.map(|copy| format!("{binding} {order:?}: copy {copy}")));
            }
        }
    }
    assert!(wrong.is_empty(), "not seen: {wrong:#?}");
}
