//! A runtime that knows nothing of this library: Debian's `raku`, whose MoarVM writes a perf map.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::plain::Profile;
use crate::real::{assert_same, valgrinds};
use crate::support::*;

/// A loop and a function that run often enough to be compiled. The map has names, files and lines.
const SCRIPT: &str = "\
sub step(int $n) { my int $sum = 0; my int $i = 0; while $i < $n { $sum = $sum + $i * 3 % 7; $i = $i + 1 }; $sum }
my $sum = 0;
$sum = $sum + step(20) + step(21) for ^3000;
say $sum > 0;
";

#[test]
fn a_perf_map_of_moarvm() {
    for valgrind in valgrinds() {
        named(valgrind);
    }
}

fn named(valgrind: &Path) {
    let dir = fresh_dir("raku");
    fs::write(dir.join("hot.raku"), SCRIPT).expect("a script");
    let mut raku = Command::new(valgrind);
    raku.current_dir(&dir).args(["-q", "--tool=callgrind", "--callgrind-out-file=out", "raku", "hot.raku"]);
    // Its compiler works in turns with the program, so that the same is compiled each time.
    raku.env("MVM_JIT_PERF_MAP", "1").env("MVM_SPESH_BLOCKING", "1");
    assert_eq!(stdout(&run(&mut raku)), "True\n");
    let before = fs::read_to_string(dir.join("out")).expect("a recording");
    let pid = before.lines().find_map(|line| line.strip_prefix("pid: ")).expect("a pid");
    let map = format!("/tmp/perf-{pid}.map");
    let said =
        stdout(&run(Command::new(tool()).current_dir(&dir).args(["callgrind", "out", "-o", "named", "--map", &map])));
    fs::remove_file(&map).expect("the map of that process");
    assert!(said.contains(" functions named by /tmp/perf-"), "{said}");

    let before = Profile::read(&before);
    let after = Profile::read(&fs::read_to_string(dir.join("named")).expect("its copy"));
    assert_same(&before, &after);
    // The function, and the loop that calls it.
    for name in ["step(hot.raku:1)", "<unit>(hot.raku:1)"] {
        let ((own, _), (own_after, calls_after)) = (before.costs(name), after.costs(name));
        assert!(
            own == 0 && own_after > 100_000 && calls_after > own_after / 2,
            "{name}, {own_after}, {calls_after}: {said}"
        );
    }
}
