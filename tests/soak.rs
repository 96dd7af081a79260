//! The soak: `c-tests/soak/soak.c` does for a while at random whatever a runtime may do, with threads and forked processes, some
//! of which are killed. A model knows what must come of it, and the files of every process are held against that.
//!
//! Ten seconds, a minute in a thorough run; `JITSYM_SOAK_SECONDS=3600 cargo test --test tests soak` for an hour. A failure says its seed, and
//! `JITSYM_SOAK_SEED` repeats it: the same calls, though threads make them in another order.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{checker, compile, describe, scratch_dir, stdout, thorough, tool, try_run, Link};

/// How long if nobody says it: with the end of it, and with building the program.
fn usual_seconds() -> f64 {
    if thorough() {
        60.0
    } else {
        10.0
    }
}

/// A process that is not the long one.
const ROUND: f64 = 4.0;
/// After that it hangs.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Bytes of jitdump that it makes, in about.
const ROUND_BYTES: u64 = 20_000_000;

/// MOVE records are asked for now and then. A jitdump does not say when code ends, so that code which was freed before its
/// place was used as a gap looks as if it were there.
const ALLOWED: [&str; 3] = ["code-move", "mapped-over-earlier", "mapped-over-later"];

/// What `soak run` prints.
#[derive(Debug, Default)]
struct Counts {
    codes: u64,
    children: u64,
    /// They did not take over all that the parent had, because it was not at rest when it forked. That is allowed, and rare where
    /// nothing else runs.
    poor_children: u64,
}

/// Directories of one run, removed if it ends well: one for the files, one for the spools, in memory if there is enough.
struct Dirs {
    files: PathBuf,
    spools: PathBuf,
}

impl Dirs {
    fn new(name: &str) -> Dirs {
        let files = scratch_dir(name);
        let df = try_run(Command::new("df").args(["--output=avail", "-B1M", "/dev/shm"]));
        let free = stdout(&df).lines().last().and_then(|megabytes| megabytes.trim().parse().ok()).unwrap_or(0u64);
        let in_memory = Path::new("/dev/shm").join(format!("jitsym-soak-{}-{name}", std::process::id()));
        let spools = if free >= 1024 { in_memory } else { scratch_dir(format!("{name}-spools")) };
        for dir in [&files, &spools] {
            let _ = std::fs::remove_dir_all(dir);
            std::fs::create_dir_all(dir).expect("directory");
        }
        Dirs { files, spools }
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.spools);
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.files);
        }
    }
}

/// Runs a command that must end well and print nothing but its result.
fn must(dirs: &Dirs, seed: u64, words: &[&str]) -> String {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    for variable in
        ["JITSYM", "JITSYM_DIR", "JITSYM_SPOOL", "JITSYM_RECOVER", "JITSYM_FORK", "JITSYM_UNWIND", "JITDUMPDIR"]
    {
        command.env_remove(variable);
    }
    command.env_remove("JITDUMP_USE_ARCH_TIMESTAMP").env("JITSYM_SPOOL_DIR", &dirs.spools);
    let output = try_run(&mut command);
    let well = output.status.success() && output.stderr.is_empty();
    assert!(well, "JITSYM_SOAK_SEED={seed}: {}", describe(&command, &output));
    stdout(&output)
}

/// One process with its children, and all that is checked of it.
fn soak(program: &Path, name: &str, seed: u64, seconds: f64, bytes: u64) -> Counts {
    let dirs = Dirs::new(name);
    let program = program.to_str().expect("path");
    let files = dirs.files.to_str().expect("path");
    let must = |words: &[&str]| must(&dirs, seed, words);
    let said = must(&[program, files, "run", &seed.to_string(), &seconds.to_string(), &bytes.to_string()]);
    let numbers: Vec<u64> = said.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    let (tool, spools) = (tool().to_str().expect("path"), dirs.spools.to_str().expect("path"));
    must(&[tool, "recover", "--dir", spools]);
    must(&[program, files, "verify"]);
    let sound = std::panic::catch_unwind(|| checker::assert_all_sound(&dirs.files, &ALLOWED));
    assert!(sound.is_ok(), "JITSYM_SOAK_SEED={seed}");
    let spools = std::fs::read_dir(&dirs.spools).expect("directory").count();
    assert_eq!(spools, 0, "JITSYM_SOAK_SEED={seed}: spools are left");
    Counts { codes: numbers[0], children: numbers[1], poor_children: numbers[2] }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

#[test]
fn what_is_in_the_files_is_what_was_done() {
    let program = compile("gcc", &["c-tests/soak/soak.c"], Link::Shared, &["-O1"], "soak");
    let seconds = number_from("JITSYM_SOAK_SECONDS").map_or_else(usual_seconds, |seconds| seconds as f64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let given = number_from("JITSYM_SOAK_SEED");
    let first = given.unwrap_or(now.as_nanos() as u64 | 1);
    let begin = Instant::now();
    let mut all = Counts::default();
    let mut add = |counts: Counts| {
        all.codes += counts.codes;
        all.children += counts.children;
        all.poor_children += counts.poor_children;
    };
    std::thread::scope(|scope| {
        // One process lives all the time, and others besides do more in less.
        let long = scope.spawn(|| soak(&program, "long", first, seconds, ROUND_BYTES + 100_000 * seconds as u64));
        let end = begin + Duration::from_secs_f64((seconds - 2.0 * ROUND).max(0.0));
        let (mut seed, mut codes, mut rich_children) = (first, 0.0, 0.0);
        // On a slow machine for longer, until enough has happened.
        while Instant::now() < end || codes < 100.0 * seconds || rich_children < seconds / 2.0 {
            seed = if given.is_some() { first } else { seed.wrapping_add(2) };
            let counts = soak(&program, "round", seed, ROUND, ROUND_BYTES);
            codes += counts.codes as f64;
            rich_children += (counts.children - counts.poor_children) as f64;
            add(counts);
            assert!(begin.elapsed() < PATIENCE + 2 * (end - begin), "too little happens: {codes} and {rich_children}");
        }
        match long.join() {
            Ok(counts) => add(counts),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    println!("{all:?}");
}
