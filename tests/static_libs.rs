//! The libraries that a static link needs are the ones that we say: `-l` flags in `support::STATIC_LIBS`, from where the C
//! tests have them.

mod support;

use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn static_libs() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(support::root());
    cargo.args(["rustc", "--release", "--lib", "--features", "reserve", "--crate-type", "staticlib", "--target-dir"]);
    // Not the directory of the library that the other tests link: other arguments would make cargo build it anew.
    cargo.arg(support::root().join("target/native-static-libs"));
    // The list does not depend on it, and the build takes half as long.
    cargo.args(["--config", "profile.release.lto=\"off\"", "--config", "profile.release.opt-level=0"]);
    let output = support::run(cargo.args(["--", "--print", "native-static-libs"]));
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find_map(|line| line.split_once("native-static-libs: ")).expect("native-static-libs").1;
    let printed: BTreeSet<&str> = line.split_whitespace().collect();
    let promised: BTreeSet<&str> = support::STATIC_LIBS.iter().copied().collect();
    assert_eq!(printed, promised, "support::STATIC_LIBS and what is written about static linking must change");
}
