//! A program whose instructions are counted by construction (`c-tests/callgrind/profiled.c`), under real callgrind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::plain::{Profile, Spot};
use crate::support::*;

/// Own cost and cost of all calls. `jit_tail` jumps to `jit_inner`, which callgrind counts as a part of it.
const COSTS: [(&str, u64, u64); 7] = [
    ("jit_inner", 6 * 202, 6 * 202),
    ("jit_middle", 3 * 3, 3 * (3 + 2 * 202)),
    ("jit_tail", 22 + 202, 22 + 202),
    ("jit_recursive", 4, 19),
    ("jit_recursive'2", 15, 15 + 11 + 7 + 3),
    ("jit_twice", 103 + 62, 103 + 62),
    ("jit_new or jit_old", 82 + 142, 82 + 142),
];
/// The cost of each line of the source.
const LINES: [(u64, u64); 12] = [
    (10, 7),
    (11, 7 * 201),
    (20, 3),
    (21, 6),
    (30, 3),
    (31, 15),
    (40, 1),
    (41, 21),
    (50, 5),
    (51, 14),
    (60, 1),
    (61, 102 + 62),
];

/// The valgrind that is installed, and newer ones.
pub fn valgrinds() -> &'static [PathBuf] {
    static ALL: OnceLock<Vec<PathBuf>> = OnceLock::new();
    ALL.get_or_init(|| versions("valgrind"))
}

fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile("gcc", &["c-tests/callgrind/profiled.c"], Link::Shared, &["-std=gnu11"], "profiled"))
}

/// A recording, in a directory with the files of the process.
struct Recording {
    dir: PathBuf,
    file: PathBuf,
    pid: String,
}

impl Recording {
    fn new(test: &str, valgrind: &Path, options: &[&str]) -> Recording {
        let dir = fresh_dir(test);
        let mut command = Command::new(valgrind);
        command.args(["-q", "--tool=callgrind", "--callgrind-out-file=callgrind.out.%p"]).args(options);
        // The library can name code by itself there.
        command.arg(program()).arg(&dir).current_dir(&dir).env("JITSYM_VALGRIND", "0");
        assert!(stdout(&run(&mut command)).ends_with("ok\n"));
        let names = fs::read_dir(&dir).expect("directory").map(|entry| entry.expect("entry").file_name());
        let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let pid = names.iter().find_map(|name| name.strip_prefix("jit-")?.strip_suffix(".dump")).expect("a jitdump");
        Recording { file: dir.join(format!("callgrind.out.{pid}")), pid: pid.to_owned(), dir: dir.clone() }
    }

    fn named(&self) -> PathBuf {
        self.dir.join(format!("callgrind.out.named.{}", self.pid))
    }

    /// Runs the program on it, and returns what that prints.
    fn name(&self, options: &[&str]) -> String {
        let mut jitsym = Command::new(tool());
        stdout(&run(jitsym.arg("callgrind").arg(&self.file).args(options).env("JITSYM_DIR", &self.dir)))
    }
}

fn read(path: &Path) -> Profile {
    Profile::read(&fs::read_to_string(path).expect("a file of callgrind"))
}

/// What `callgrind_annotate` lists, by name: costs of `file:function`. It runs elsewhere, because it shortens the names of files in the
/// working directory.
fn listing(file: &Path, options: &[&str]) -> String {
    let mut annotate = Command::new("callgrind_annotate");
    stdout(&run(annotate.args(["--threshold=100", "--auto=no"]).args(options).arg(file).current_dir("/")))
}

fn costs(listing: &str) -> BTreeMap<String, u64> {
    let mut costs = BTreeMap::new();
    for line in listing.lines() {
        let Some((cost, rest)) = line.trim_start().split_once(" (") else { continue };
        let (Ok(cost), Some((_, name))) = (cost.replace(',', "").parse::<u64>(), rest.split_once(")  ")) else {
            continue;
        };
        *costs.entry(name.split(" [").next().expect("name").to_owned()).or_default() += cost;
    }
    costs
}

fn assert_costs(profile: &Profile) {
    for (name, own, calls) in COSTS {
        assert_eq!(profile.costs(name), (own, calls), "{name}");
    }
    let helper = profile.costs("helper").1;
    assert_eq!(profile.costs("jit_outer"), (3 * 6, 3 * 6 + 3 * (3 + 2 * 202) + helper));
}

/// Everything that is not compiled code stays as it is, and all of that has names.
pub fn assert_same(before: &Profile, after: &Profile) {
    let is_known = |spot: &Spot| spot.0 .0 != "???" && !spot.0 .0.ends_with(".dump") && !spot.0 .0.ends_with(".map");
    let own =
        |profile: &Profile| profile.own.clone().into_iter().filter(|(spot, _)| is_known(spot)).collect::<Vec<_>>();
    assert_eq!(own(before), own(after));
    assert_eq!(before.totals, after.totals);
    let sum = |profile: &Profile| profile.own.values().map(|costs| costs[0]).sum::<u64>();
    assert_eq!(sum(before), sum(after));
    let sums = |profile: &Profile| {
        let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (call, costs) in profile.calls.iter().filter(|(call, _)| is_known(&call.0)) {
            let of_call = sums.entry(call.0.clone()).or_default();
            (of_call.0, of_call.1) = (of_call.0 + costs[0], of_call.1 + costs[1]);
        }
        sums
    };
    assert_eq!(sums(before), sums(after));
}

#[test]
fn names_and_costs() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        let recording = Recording::new(&format!("costs-{number}"), valgrind, &[]);
        let said = recording.name(&[]);
        assert!(said.contains("8 functions named by ") && said.contains("one sum: jit_new or jit_old\n"), "{said}");
        let (before, after) = (read(&recording.file), read(&recording.named()));
        assert_costs(&after);
        assert_same(&before, &after);
        let inclusive = listing(&recording.named(), &["--inclusive=yes", "--tree=both"]);
        let source = recording.dir.join("counted.toy");
        let listed = costs(&listing(&recording.named(), &["--inclusive=yes"]));
        for (name, _, cost) in COSTS.into_iter().filter(|(name, ..)| !name.contains(" or ")) {
            let name = format!("{}:{name}", source.display());
            assert_eq!(listed[&name], cost, "{name}: {inclusive}");
        }
        let has = |start: &str, end: &str| inclusive.lines().any(|line| line.contains(start) && line.contains(end));
        assert!(has("  < ", "counted.toy:jit_outer (3x)") && has("  > ", "counted.toy:jit_inner (6x)"), "{inclusive}");
        assert!(has("  > ", "profiled.c:helper (3x)") && has("  < ", "profiled.c:run ("), "{inclusive}");
    }
}

/// The same listing as before, but for the names.
#[test]
fn listings_are_the_same() {
    for (number, valgrind) in valgrinds().iter().enumerate() {
        let options = ["--dump-instr=yes", "--collect-jumps=yes"];
        let recording = Recording::new(&format!("listings-{number}"), valgrind, &options);
        let said = recording.name(&[]);
        assert!(said.contains("by jit_inner counts as that of jit_tail, which jumps to it\n"), "{said}");
        let (before, after) = (read(&recording.file), read(&recording.named()));
        assert_costs(&after);
        assert_same(&before, &after);
        assert!(!before.jumps.is_empty());
        for inclusive in ["--inclusive=yes", "--inclusive=no"] {
            let list = |file: &Path| {
                let is_compiled = |name: &str| name.contains("counted.toy:") || name.starts_with("???:");
                costs(&listing(file, &[inclusive]))
                    .into_iter()
                    .partition::<BTreeMap<_, _>, _>(|(name, _)| is_compiled(name))
            };
            let ((compiled, others), (named, same)) = (list(&recording.file), list(&recording.named()));
            assert_eq!(others, same);
            assert_eq!(compiled.values().sum::<u64>(), named.values().sum::<u64>());
        }
        let lines = |line| {
            let of_line = after.own.iter().filter(|(spot, _)| spot.1.ends_with("counted.toy") && spot.3 == line);
            of_line.map(|(_, costs)| costs[0]).sum::<u64>()
        };
        assert_eq!(LINES.map(|(line, _)| (line, lines(line))), LINES);
        let source = listing(&recording.named(), &["--auto=yes"]);
        let line = source.lines().find(|line| line.ends_with("toy line 11")).unwrap_or_else(|| panic!("{source}"));
        assert!(line.trim_start().starts_with("1,407 "), "{line}");
    }
}

/// With the options that change names and positions.
#[test]
fn options_of_callgrind() {
    let valgrind = &valgrinds()[0];
    let recording =
        Recording::new("map", valgrind, &["--compress-strings=no", "--compress-pos=no", "--dump-instr=yes"]);
    let map = recording.dir.join(format!("perf-{}.map", recording.pid)).display().to_string();
    let out = recording.dir.join("out");
    recording.name(&["--map", &map, "-o", out.to_str().expect("UTF-8")]);
    let after = read(&out);
    assert_same(&read(&recording.file), &after);
    // The map has no lines, and what is there in the end.
    assert_eq!((after.costs("jit_twice"), after.costs("jit_new")), ((165, 165), (224, 224)));
    assert!(after.own.keys().all(|spot| !spot.1.ends_with("counted.toy")));

    let recording = Recording::new("separate", valgrind, &["--separate-callers=3", "--separate-recs=3"]);
    recording.name(&[]);
    let after = read(&recording.named());
    assert_same(&read(&recording.file).renamed(&caller), &after.renamed(&caller));
    assert_eq!(after.costs("jit_inner'jit_middle'jit_outer'run").0, 6 * 202);
    assert_eq!(after.costs("jit_recursive'3'main'(below main)'__libc_start_main@@GLIBC_2.34").0, 11);
    assert!(after.own.keys().any(|spot| spot.0 .2 == "helper'jit_outer'run'main"));

    // A file for each thread, the program's and the library's.
    let mut recording = Recording::new("threads", valgrind, &["--separate-threads=yes"]);
    recording.pid += "-01";
    recording.file = recording.dir.join(format!("callgrind.out.{}", recording.pid));
    recording.name(&[]);
    let after = read(&recording.named());
    assert_same(&read(&recording.file), &after);
    assert_costs(&after);

    let options = ["--combine-dumps=yes", "--dump-before=helper", "--dump-instr=yes"];
    let recording = Recording::new("parts", valgrind, &options);
    recording.name(&[]);
    let (before, after) = (read(&recording.file), read(&recording.named()));
    assert_same(&before, &after);
    assert_eq!((before.totals.len(), after.costs("jit_inner").0), (8, 6 * 202));
}

/// Without the names of callers, which are addresses before.
fn caller(spot: &Spot, _: bool) -> Spot {
    let mut spot = spot.clone();
    spot.0 .2 = spot.0 .2.split('\'').next().expect("name").to_owned();
    spot
}
