//! What a running process says of itself to `jitsym doctor PID`, against what it was told to do.

use std::io::{BufRead, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::OnceLock;

use super::{doctor, perf};
use crate::support::*;

/// Runs `c-tests/calls/looked_at.c`, and ends it.
struct LookedAt(Child);

impl LookedAt {
    fn start(link: Link, dir: &Path, variables: &[&str]) -> LookedAt {
        static BUILT: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
        let (cell, name) = match link {
            Link::Static => (&BUILT[0], "looked-at-static"),
            _ => (&BUILT[1], "looked-at"),
        };
        let program = cell.get_or_init(|| compile("gcc", &["c-tests/calls/looked_at.c"], link, &["-O1"], name));
        let mut command = perf::command(program);
        command.arg(dir).args(variables).stdin(Stdio::piped()).stdout(Stdio::piped());
        LookedAt(command.spawn().expect("start"))
    }

    /// Has it do this, and waits until it is done.
    fn run(&mut self, letters: &str) {
        self.0.stdin.as_mut().expect("pipe").write_all(letters.as_bytes()).expect("write");
        let mut done = vec![0; letters.len()];
        self.0.stdout.as_mut().expect("pipe").read_exact(&mut done).expect("it is done");
    }

    fn look(&self) -> Output {
        try_run(&mut doctor(&[&self.0.id().to_string()]))
    }

    fn spool(&self, dir: &Path) -> PathBuf {
        let start = format!("jitsym-{}-", self.0.id());
        let spools = std::fs::read_dir(format!("{}-spools", dir.display())).expect("directory");
        let mut found = spools.map(|entry| entry.expect("entry").path());
        let is_its = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
        found.find(is_its).expect("its spool")
    }
}

impl Drop for LookedAt {
    fn drop(&mut self) {
        self.0.kill().expect("end it");
        self.0.wait().expect("wait");
    }
}

fn seed() -> u64 {
    let given = std::env::var("JITSYM_DOCTOR_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| std::process::id().into())
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The counters are those of the calls that were made, with both libraries; also those of calls that were refused while the writer
/// slept.
#[test]
fn counters_of_a_process() {
    for (link, name) in [(Link::Shared, "counters"), (Link::Static, "counters-static")] {
        let seed = seed();
        let (mut state, dir) = (seed, fresh_dir(name));
        let mut program = LookedAt::start(link, &dir, &[]);
        let (mut registered, mut unregistered) = (0, 0);
        for _ in 0..4 {
            let mut letters = String::new();
            for _ in 0..next(&mut state) % 40 {
                match next(&mut state) % 3 {
                    0 if unregistered < registered => {
                        letters.push('u');
                        unregistered += 1;
                    }
                    _ => {
                        letters.push('r');
                        registered += 1;
                    }
                }
            }
            program.run(&(letters + "f"));
            let text = stdout(&program.look());
            let live = registered - unregistered;
            let expected = match registered {
                0 => "no code registered yet".into(),
                1 => format!("1 piece of code registered, {live} live"),
                _ => format!("{registered} pieces of code registered, {live} live"),
            };
            assert!(text.contains(&expected), "JITSYM_DOCTOR_SEED={seed}: {expected}: {text}");
            assert!(text.contains("sinks that run: map jitdump") && text.contains("nothing is wrong"), "{text}");
            let pid = program.0.id();
            for file in [format!("perf map {}/perf-{pid}.map", dir.display()), format!("/jit-{pid}.dump")] {
                assert!(text.contains(&file), "{file}: {text}");
            }
            let said = if unregistered > 0 { format!("unregistered {unregistered}") } else { "counters".into() };
            assert!(text.contains(&said) || registered == 0, "JITSYM_DOCTOR_SEED={seed}: {said}: {text}");
        }
        // Until the writer sleeps. If it does not yet, this shows less, and is as right.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        program.run("xxx");
        let refused = || {
            let output = program.look();
            let text = stdout(&output);
            let is_told = text.contains("cause: 3 calls were refused because of what the program passed");
            is_told.then(|| assert_eq!(output.status.code(), Some(1), "{text}"))
        };
        assert!((0..100).any(|_| refused().is_some()), "{}", stdout(&program.look()));
    }
}

/// `jitsym top` shows the counters and the names of what was registered, what has changed for a second, and ends with the process.
#[test]
fn top() {
    let dir = fresh_dir("top");
    let mut program = LookedAt::start(Link::Shared, &dir, &[]);
    program.run("rrruf");
    let pid = program.0.id().to_string();
    let top = perf::command(env!("CARGO_BIN_EXE_jitsym")).args(["top", &pid]).stdout(Stdio::piped()).spawn();
    let mut top = top.expect("start");
    let mut lines = std::io::BufReader::new(top.stdout.take().expect("pipe")).lines().map(|line| line.expect("a line"));
    let mut next = || -> Option<Vec<String>> {
        let first = lines.next()?;
        assert_eq!(first, format!("process {pid}"));
        Some(lines.by_ref().take_while(|line| !line.is_empty()).collect())
    };
    let has = |block: &[String], words: &str| {
        block.iter().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(words))
    };
    let block = next().expect("a block");
    for words in ["sinks that run: map jitdump", "registered 3", "unregistered 1", "live 2", "dropped 0"] {
        assert!(has(&block, words), "{words}: {block:?}");
    }
    let map = std::fs::read_to_string(dir.join(format!("perf-{pid}.map"))).expect("the map");
    let names: Vec<&str> = map.lines().map(|line| line.splitn(3, ' ').last().expect("a name")).collect();
    assert!(!names.is_empty() && names.iter().all(|name| has(&block, name)), "{names:?}: {block:?}");
    program.run("rrf");
    let block = std::iter::from_fn(&mut next).find(|block| has(block, "registered 5")).expect("five are registered");
    assert!(has(&block, "registered 5 +") && has(&block, "live 4 +"), "{block:?}");
    drop(program);
    while next().is_some() {}
    assert!(top.wait().expect("wait").success());
}

/// A process without a spool says nothing.
#[test]
fn top_of_nothing() {
    let dir = fresh_dir("top-nothing");
    let program = LookedAt::start(Link::Shared, &dir, &["JITSYM=off"]);
    for (pid, why) in [(program.0.id(), "it has no spool"), (u32::MAX >> 2, "there is no such process")] {
        let output = try_run(perf::command(env!("CARGO_BIN_EXE_jitsym")).args(["top", &pid.to_string()]));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
}

/// A sink that cannot write is the cause, in the library's own words.
#[test]
fn a_sink_that_fails() {
    let dir = fresh_dir("failed");
    let mut program = LookedAt::start(Link::Shared, &dir, &["JITSYM_JITDUMP_MAX=1M"]);
    program.run("rf");
    let map = dir.join(format!("perf-{}.map", program.0.id()));
    // What is no file cannot be replaced by one.
    std::fs::remove_file(&map).expect("the map");
    std::fs::create_dir(&map).expect("directory");
    std::fs::write(map.join("x"), "").expect("file");
    program.run("rf");
    let output = program.look();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let cause = text.lines().find(|line| line.starts_with("cause:")).expect("a cause");
    assert!(cause.contains("the sink map cannot write: ") && cause.contains(".map"), "{text}");
}

/// A process that has the map alone, or a sink without a file, has turned something on.
#[test]
fn sinks_without_a_marker() {
    for (sinks, spool) in [("map", "on"), ("map", "off"), ("gdb", "on")] {
        let mut program = LookedAt::start(
            Link::Shared,
            &fresh_dir(format!("sinks-{sinks}-{spool}")),
            &[&format!("JITSYM={sinks}"), &format!("JITSYM_SPOOL={spool}")],
        );
        program.run("rf");
        let text = stdout(&program.look());
        assert!(text.contains("nothing is wrong"), "{sinks}, spool {spool}: {text}");
        assert!(text.contains(&format!("sinks that run: {sinks}\n")) == (spool == "on"), "{text}");
    }
}

/// Without a spool nothing is said, and that is said.
#[test]
fn without_a_spool() {
    let dir = fresh_dir("no-spool");
    let mut program = LookedAt::start(Link::Shared, &dir, &["JITSYM_SPOOL=off"]);
    program.run("rf");
    let text = stdout(&program.look());
    assert!(text.contains("it has no spool in which it could say what it does"), "{text}");
    assert!(!text.contains("registered"), "{text}");
}

/// Nothing in a spool is believed: another version, another process, damage, and a file that is cut.
#[test]
fn a_spool_that_is_none() {
    let dir = fresh_dir("crafted");
    let mut program = LookedAt::start(Link::Shared, &dir, &[]);
    program.run("rrruf");
    let mut real = vec![0; 1 << 14];
    let mut file = std::fs::File::open(program.spool(&dir)).expect("its spool");
    file.read_exact(&mut real).expect("as long");
    let crafted = dir.join("jitsym-1-1-1.spool");
    let write = |bytes: &[u8]| {
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).write(true).truncate(true).mode(0o600).open(&crafted);
        file.and_then(|mut file| file.write_all(bytes)).expect("write");
    };
    write(&real);
    let mut holder = perf::command("sh");
    holder.args(["-c", "exec 3<\"$0\"; echo; exec sleep 600"]).arg(&crafted).stdout(Stdio::piped());
    let mut holder = LookedAt(holder.spawn().expect("start"));
    holder.0.stdout.as_mut().expect("pipe").read_exact(&mut [0]).expect("it is open");
    let pid = holder.0.id();
    let look = || {
        let output = holder.look();
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        stdout(&output)
    };
    let changed = |at: usize, bytes: &[u8]| {
        let mut changed = real.clone();
        // Its number, or it is another process's.
        changed[24..32].copy_from_slice(&u64::from(pid).to_ne_bytes());
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    assert!(look().contains("is the spool of process"), "{}", look());
    write(&changed(0, b"jitspool"));
    assert!(look().contains("3 pieces of code registered, 2 live"), "{}", look());
    write(&changed(8, &99_u32.to_ne_bytes()));
    assert!(look().contains("3 pieces of code registered, 2 live"), "{}", look());
    for bytes in [changed(8, &6_u32.to_ne_bytes()), changed(0, b"something"), real[..100].to_vec(), Vec::new()] {
        write(&bytes);
        assert!(look().contains("its counters cannot be read: "), "{}", look());
    }
    let seed = seed();
    let mut state = seed;
    for _ in 0..30 {
        let mut bytes = changed(0, b"jitspool");
        for _ in 0..1 + next(&mut state) % 200 {
            let at = 32 + next(&mut state) as usize % 6000;
            bytes[at] = next(&mut state) as u8;
        }
        write(&bytes);
        let text = look();
        let is_clean = text.chars().all(|c| c == '\n' || !c.is_control());
        assert!(is_clean, "JITSYM_DOCTOR_SEED={seed}: {text:?}");
    }
}
