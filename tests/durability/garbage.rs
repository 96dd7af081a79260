//! Spools with damage of every kind: a recovery may complete less, and must not crash, hang, or touch anybody's files.

use super::crafted::identity;
use super::plan::{rounds, Plan, Random};
use super::recover::{recover, Report};
use super::run::{Run, SpoolDir};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Output;

/// All files of a directory.
fn contents(dir: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry"));
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("file"))).collect()
}

/// Damages a spool. Most of it is empty, and most of the rest code: half of the damage is put where numbers are.
fn damage(spool: &mut Vec<u8>, used: &[usize], random: &mut Random) -> String {
    let length = spool.len() as u64;
    let mut what = Vec::new();
    for _ in 0..1 + random.below(4) {
        let at = match random.below(8) {
            0 => random.below(length.min(4096)),
            1 => random.below(length),
            // Heads of chunks are at round offsets.
            2 | 3 => (random.below(length) & !0xfff) + random.below(64),
            _ => random.pick(used) as u64 + random.below(64),
        };
        let at = at.min(length - 1) as usize;
        let end = |size: usize| (at + size).min(spool.len());
        match random.below(7) {
            0 => {
                what.push(format!("bit at {at}"));
                spool[at] ^= 1 << random.below(8);
            }
            1 | 2 => {
                let words =
                    [0, 1, u64::MAX, 1 << 63, 0xffff_ffff, length, length - 8, random.number(), i64::MAX as u64];
                let word = random.pick(&words);
                let at = at & !7;
                what.push(format!("{word:#x} at {at}"));
                let end = (at + 8).min(spool.len());
                spool[at..end].copy_from_slice(&word.to_ne_bytes()[..end - at]);
            }
            3 => {
                let end = end(1 + random.below(10_000) as usize);
                what.push(format!("zeros from {at} to {end}"));
                spool[at..end].fill(0);
            }
            4 => {
                let end = end(1 + random.below(5000) as usize);
                what.push(format!("noise from {at} to {end}"));
                spool[at..end].fill_with(|| random.number() as u8);
            }
            5 => {
                let from = random.pick(used);
                let size = (1 + random.below(8192) as usize).min(spool.len() - from).min(spool.len() - at);
                what.push(format!("{size} bytes from {from} to {at}"));
                spool.copy_within(from..from + size, at);
            }
            _ if random.chance(3) => {
                what.push(format!("cut off at {at}"));
                spool.truncate(at.max(1));
                return what.join(", ");
            }
            _ => {}
        }
    }
    what.join(", ")
}

/// A name as long as another one.
fn forged_name(name: &str) -> String {
    format!("x{}", &name[1..])
}

/// A killed process with its files, to be damaged again and again.
struct Victim {
    run: Run,
    spool: Vec<u8>,
    name: OsString,
    files: BTreeMap<OsString, Vec<u8>>,
    place: SpoolDir,
    /// Which file the map was, as the spool has it. A recovery replaces it.
    map: [u64; 3],
}

impl Victim {
    fn new(random: &mut Random) -> Victim {
        // All calls together write more than that.
        let (seed, slow_disk) = (random.number() >> 1, "block_at=20000".into());
        // Small, but with room for all of it.
        let max_memory = 8 << 20;
        let plan = Plan { calls: 300, large: 300, ops: true, seed, slow_disk, max_memory, ..Plan::default() };
        let mut run = Run::start("victim", plan);
        run.wait_until("the end of the calls", |truth| truth.done);
        run.wait_until_the_disk_hangs();
        run.kill();
        // Which the spool may come to name by damage.
        for path in [run.dump(), run.map()] {
            let name = forged_name(path.file_name().and_then(|name| name.to_str()).expect("name"));
            std::fs::write(run.dir.join(name), "somebody's text\n".repeat(50_000)).expect("write");
        }
        std::fs::remove_file(run.dir.join("log")).expect("remove the log");
        let [path] = run.spool.spools().try_into().expect("one spool");
        let spool = std::fs::read(&path).expect("spool");
        let name = path.file_name().expect("name").into();
        let map = identity(&run.map());
        let files = contents(&run.dir);
        Victim { run, spool, name, files, place: SpoolDir::new("garbage"), map }
    }

    /// Recovers from this spool, and puts the files back. The map is another one then: the spool, if it still says which one it
    /// was, is made to say that.
    fn try_spool(&self, spool: &[u8], what: &str) -> Output {
        let mut spool = spool.to_vec();
        let bytes_of = |words: [u64; 3]| words.map(u64::to_ne_bytes).concat();
        let (old, new) = (bytes_of(self.map), bytes_of(identity(&self.run.map())));
        for at in (0..spool.len().min(4096)).step_by(8) {
            if spool[at..].starts_with(&old) {
                spool[at..at + new.len()].copy_from_slice(&new);
            }
        }
        let path = self.place.0.join(&self.name);
        // One that others may read is none.
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).expect("spool");
        file.write_all(&spool).expect("spool");
        drop(file);
        let output = recover(&self.place.0, &[]);
        let _ = std::fs::remove_file(&path);
        let after = contents(&self.run.dir);
        let own = [self.run.dump(), self.run.map()].map(|path| path.file_name().map(OsString::from));
        for (name, bytes) in &after {
            let before = self.files.get(name);
            if own.contains(&Some(name.clone())) {
                let limit = before.map_or(0, Vec::len) + 2 * self.spool.len();
                assert!(bytes.len() <= limit, "{what}: {name:?} has {} bytes: {output:?}", bytes.len());
            } else {
                assert!(before == Some(bytes), "{what}: {name:?} was touched: {output:?}");
            }
        }
        assert_eq!(after.len(), self.files.len(), "{what}: files have gone: {output:?}");
        for (name, bytes) in &self.files {
            if after.get(name) != Some(bytes) {
                std::fs::write(self.run.dir.join(name), bytes).expect("put the file back");
            }
        }
        output
    }
}

#[test]
fn damaged_spools() {
    let mut random = Random::new("damaged_spools");
    let victim = Victim::new(&mut random);
    // Code is noise; where some bytes are zero and not all, there are numbers.
    let zeros = |at: usize| victim.spool[at..].iter().take(64).filter(|&&byte| byte == 0).count();
    let used: Vec<usize> = (0..victim.spool.len()).step_by(64).filter(|&at| (12..64).contains(&zeros(at))).collect();
    // Without damage both files are completed, also once the map is another one.
    for _ in 0..2 {
        let output = victim.try_spool(&victim.spool, "no damage");
        assert!(Report::parse(&output)[0].complaints.is_empty(), "{output:?}");
    }
    for _ in 0..rounds(300) {
        let mut spool = victim.spool.clone();
        let what = damage(&mut spool, &used, &mut random);
        victim.try_spool(&spool, &what);
    }
}

/// Files with the name of a spool that never were one.
#[test]
fn no_spools_at_all() {
    let mut random = Random::new("no_spools_at_all");
    let victim = Victim::new(&mut random);
    let noise: Vec<u8> = (0..100_000).map(|_| random.number() as u8).collect();
    for spool in [&b""[..], b"x", &[0; 4096], &[0xff; 8192], &noise, &victim.spool[..4096], &victim.spool[..64]] {
        victim.try_spool(spool, &format!("{} bytes", spool.len()));
    }
}

/// A spool that was made to name other files than those of its process.
#[test]
fn forged_paths() {
    let mut random = Random::new("forged_paths");
    let victim = Victim::new(&mut random);
    for path in [victim.run.dump(), victim.run.map()] {
        let from = path.file_name().and_then(|name| name.to_str()).expect("name");
        let to = forged_name(from);
        let mut spool = victim.spool.clone();
        // The header, and some more.
        let found = (0..65536).filter(|&at| spool[at..].starts_with(from.as_bytes())).collect::<Vec<usize>>();
        for at in found {
            spool[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
        victim.try_spool(&spool, &format!("{from} replaced by {to:?}"));
    }
}
