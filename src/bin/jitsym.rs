//! The command-line program. `jitsym dump FILE` prints a jitdump as text.
fn main() {}
