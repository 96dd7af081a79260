//! `jitsym inject` on recordings of regions. The code of each epoch gets an object that begins at another address, so that perf 7
//! finds stacks that it does not find by the files of regions.

use super::recorded::{for_tables, Recorded, STACKS, TABLES};
use crate::support::fetched;

/// All names and stacks are right in perf 7 and in the installed perf after the injection. Returns the share of whole stacks that
/// perf 7 showed before, in percent.
fn right_after(mut recorded: Recorded) -> f64 {
    recorded.read_with(Some(fetched("sid/perf")));
    let [names, stacks] = recorded.shares();
    assert!(names >= 99.0, "{names} % of the names before");
    let said = recorded.inject();
    assert!(said.contains("of regions in samples of"), "{said}");
    recorded.check();
    recorded.read_with(None);
    recorded.check();
    stacks
}

fn stepped(scenario: &str, memory: &str) -> f64 {
    right_after(Recorded::of(for_tables(), scenario, &[&format!("memory={memory}")], TABLES))
}

/// All code goes at once, and other code takes its place.
#[test]
fn reused() {
    let before = stepped("cache-flush", "adopted");
    // perf 7 uses the tables of the code that was there before.
    assert!(before < 99.0, "{before} % of the stacks before");
    stepped("region-reused", "created");
}

/// perf takes the samples.
#[test]
fn reused_and_sampled() {
    right_after(Recorded::sampled(for_tables(), "cache-flush", &["memory=adopted"], STACKS));
}

/// Groups of mappings overlap, and perf 7 reads none of two objects that overlap.
#[test]
fn windows() {
    let before = stepped("region-windows", "created");
    assert!(before < 99.0, "{before} % of the stacks before");
}

/// Children have the code of their parent. Their own code is in other files.
#[test]
fn forked() {
    stepped("region-forked", "created");
    stepped("region-forked", "adopted");
}

/// Lines and inlined functions are those of the files, in a forked child too. The child's first call has removed the file with the
/// code that the child inherited.
#[test]
fn lines_and_inlined_functions() {
    let mut recorded = Recorded::sampled(for_tables(), "region-inlined", &["memory=created"], STACKS);
    // An object has other addresses than the file of a region.
    let all = |recorded: &Recorded| {
        let text = recorded.perf("script", &["--max-stack", "1", "-F", "ip,sym,srcline"]);
        let is_address = |word: &str| word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let line = |line: &str| line.split_whitespace().filter(|word| !is_address(word)).collect::<Vec<_>>().join(" ");
        text.lines().map(line).collect::<Vec<_>>()
    };
    let before = all(&recorded);
    let inlined = before.iter().filter(|line| line.contains(".toy:") && line.contains("(inlined)")).count();
    assert!(inlined > 500, "{inlined} inlined frames");
    recorded.inject();
    assert!(before == all(&recorded));
}

/// Code has no name only where its file is gone, and no other code has a wrong one.
#[test]
fn files_that_are_gone() {
    let mut recorded = Recorded::of(for_tables(), "region-reused", &["memory=created"], TABLES);
    let files = recorded.files();
    let gone = files.get(files.len() / 2).expect("a file of a region");
    let before = recorded.right_outside(gone);
    std::fs::remove_file(gone).expect("remove the file");
    let said = recorded.inject_with_status(1);
    assert!(said.contains(&format!("{gone} is gone")), "{said}");
    let after = recorded.right_outside(gone);
    assert!(
        before.len() > 1000 && before.is_subset(&after),
        "{} of {}",
        before.intersection(&after).count(),
        before.len()
    );
    let wrong = recorded.wrong_names();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Files of regions may contain any bytes: the command ends, and perf can read the new recording.
#[test]
fn damaged_files() {
    let mut recorded = Recorded::sampled(for_tables(), "region-inlined", &["memory=created"], STACKS);
    let files: Vec<(String, Vec<u8>)> = recorded.files().into_iter().map(|path| (path.clone(), read(&path))).collect();
    assert!(!files.is_empty());
    // Tables are small parts of a file, which is mostly a hole.
    let used: Vec<Vec<usize>> =
        files.iter().map(|(_, bytes)| (0..bytes.len()).filter(|&at| bytes[at] != 0).collect()).collect();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for round in 0..12 {
        for ((path, bytes), used) in files.iter().zip(&used) {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random(30) {
                let at = if random(3) == 0 { random(1024) } else { used[random(used.len())] };
                damaged[at] = if random(2) == 0 { 0xff } else { random(256) as u8 };
            }
            damaged.truncate(if random(8) == 0 { random(damaged.len()) } else { damaged.len() });
            std::fs::write(path, damaged).expect("damage the file");
        }
        recorded.inject_damaged(round);
    }
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
