//! A disk that does not answer: calls end in their time, forks and exits too, and what waits goes on when the disk is back.

use std::process::Command;

use crate::support::{compile, describe, fresh_dir, try_run, Link};

#[test]
fn nobody_waits_for_ever() {
    let program = compile("gcc", &["c-tests/durability/dead_disk.c"], Link::Shared, &["-O1"], "dead_disk");
    let mut command = Command::new(program);
    command.env_clear().arg(fresh_dir("dead_disk"));
    let output = try_run(&mut command);
    assert!(
        output.status.success() && output.stdout == b"ok\n" && output.stderr.is_empty(),
        "{}",
        describe(&command, &output)
    );
}
