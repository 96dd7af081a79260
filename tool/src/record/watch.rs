//! Compares registered code with the memory of processes while they run. Only this comparison shows wrong addresses or code in
//! a jitdump.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use jitsym::format::jitdump::raw::{RawHeader, RawRecords};
use jitsym::format::jitdump::HEADER_SIZE;

use super::script::jitdump_pid;
use crate::open;
use crate::text::shortened;

/// The time between two comparisons: at first, and the later maximum.
const FIRST: Duration = Duration::from_millis(30);
const LAST: Duration = Duration::from_secs(1);
/// The limits for one comparison: bytes of a jitdump, and pieces of code.
const BYTES: usize = 16 << 20;
const PIECES: usize = 2000;
/// The maximum number of pieces that wait for a comparison.
const KEPT: usize = 20_000;
/// The minimum and the maximum number of bytes of a piece that are compared.
const SHORTEST: usize = 6;
const LONGEST: usize = 256;
/// The number of bytes of a piece that are reported.
const SHOWN: usize = 8;
/// The maximum distance from its address at which code is searched for.
const FAR: u64 = 4096;

/// A piece of code that differs from memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Odd {
    pub name: String,
    pub how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// The bytes are at this distance from the address.
    Elsewhere(i64),
    /// Most bytes differ. The value has the first registered bytes, and the bytes in memory.
    Other { registered: Vec<u8>, there: Vec<u8> },
}

/// The number of compared pieces, and the pieces that differ.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub compared: usize,
    pub odd: Vec<Odd>,
    /// The users of the processes.
    pub users: BTreeSet<u32>,
}

pub struct Mapping {
    pub range: Range<u64>,
    pub executable: bool,
    pub path: String,
}

/// The mappings in the text of `/proc/PID/maps`: `START-END PROTECTION OFFSET DEVICE INODE   PATH`
pub fn mappings(text: &str) -> impl Iterator<Item = Mapping> + '_ {
    text.lines().filter_map(|line| {
        let mut rest = line;
        let mut fields = [""; 5];
        for field in &mut fields {
            (*field, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        }
        let bound = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = fields[0].split_once('-')?;
        let range = bound(start)?..bound(end)?;
        Some(Mapping { range, executable: fields[1].contains('x'), path: rest.trim_start().to_owned() })
    })
}

struct Piece {
    name: String,
    bytes: Vec<u8>,
    size: u64,
    /// The bytes that the previous comparison has found instead.
    instead: Option<Vec<u8>>,
}

#[derive(Default)]
struct Process {
    /// For each jitdump, the number of bytes that were read.
    read: HashMap<String, u64>,
    /// The pieces to be compared, by address.
    pieces: BTreeMap<u64, Piece>,
}

impl Process {
    fn look(&mut self, pid: u32, seen: &mut Seen) -> io::Result<()> {
        let text = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/maps"))?).into_owned();
        let maps: Vec<Mapping> = mappings(&text).filter(|mapping| mapping.executable).collect();
        for path in maps.iter().map(|mapping| &mapping.path).filter(|path| jitdump_pid(path).is_some()) {
            let _ = self.read_on(pid, path);
        }
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let code: Vec<&Range<u64>> = maps.iter().map(|mapping| &mapping.range).collect();
        for addr in self.pieces.keys().copied().take(PIECES).collect::<Vec<_>>() {
            let Some(piece) = self.pieces.get_mut(&addr) else { continue };
            let mut now = vec![0; piece.bytes.len()];
            let is_there = memory.read_exact_at(&mut now, addr).is_ok();
            let differ = now.iter().zip(&piece.bytes).filter(|(now, then)| now != then).count();
            // A few bytes may differ: programs patch jumps and fill in constants.
            if is_there && differ * 2 <= now.len() {
                seen.compared += 1;
                self.pieces.remove(&addr);
                continue;
            }
            if piece.instead.as_ref() != Some(&now) {
                piece.instead = Some(now);
                continue;
            }
            let how = match elsewhere(&memory, &code, addr, &piece.bytes) {
                Some(from) => Some(How::Elsewhere(from)),
                None if is_there && code.iter().any(|range| range.contains(&addr)) => {
                    let first = |bytes: &[u8]| bytes[..bytes.len().min(SHOWN)].to_vec();
                    Some(How::Other { registered: first(&piece.bytes), there: first(&now) })
                }
                // The code was freed.
                None => None,
            };
            seen.compared += usize::from(how.is_some());
            seen.odd.extend(how.map(|how| Odd { name: piece.name.clone(), how }));
            self.pieces.remove(&addr);
        }
        Ok(())
    }

    /// Reads the new records of a jitdump.
    fn read_on(&mut self, pid: u32, path: &str) -> io::Result<()> {
        let [here, inside] = open::places(pid, path);
        let file = open::of_process(&here, pid).or_else(|_| open::of_process(&inside, pid))?;
        let mut header = [0; HEADER_SIZE];
        file.read_exact_at(&mut header, 0)?;
        if RawHeader::read(&header).is_none_or(|header| {
            header.swapped || header.pid != pid && Some(header.pid) != inner(Path::new(&format!("/proc/{pid}")))
        }) {
            return Ok(());
        }
        let at = self.read.entry(path.to_owned()).or_insert(HEADER_SIZE as u64);
        let len = file.metadata()?.len().saturating_sub(*at).min(BYTES as u64) as usize;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, *at)?;
        let mut records = RawRecords::from(&bytes, 0);
        let mut end = 0;
        while let Some(record) = records.next() {
            end = records.offset();
            let Some((load, code)) = record.load().and_then(|load| Some((load, load.code()?))) else { continue };
            // Earlier code that the new code overlaps no longer exists.
            let below = self.pieces.range(..load.addr.saturating_add(load.size)).rev();
            let over = below.take_while(|(&addr, piece)| addr + piece.size > load.addr);
            let over: Vec<u64> = over.map(|(&addr, _)| addr).collect();
            over.iter().for_each(|addr| drop(self.pieces.remove(addr)));
            if code.len() >= SHORTEST && self.pieces.len() < KEPT {
                let name = shortened(load.name().unwrap_or_default()).to_string();
                let bytes = code[..code.len().min(LONGEST)].to_vec();
                self.pieces.insert(load.addr, Piece { name, bytes, size: load.size, instead: None });
            }
        }
        *at += end as u64;
        Ok(())
    }
}

/// The pid of a process in its own pid namespace. `dir` is its directory in `/proc`.
pub fn inner(dir: &Path) -> Option<u32> {
    let status = fs::read_to_string(dir.join("status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NStgid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// The distance of code from its address, if the code is found at exactly one other address nearby.
fn elsewhere(memory: &File, code: &[&Range<u64>], addr: u64, bytes: &[u8]) -> Option<i64> {
    let near = addr.saturating_sub(FAR)..addr.saturating_add(FAR + bytes.len() as u64);
    let mut places = Vec::new();
    for range in code {
        let part = range.start.max(near.start)..range.end.min(near.end);
        let mut there = vec![0; part.end.saturating_sub(part.start) as usize];
        if there.len() >= bytes.len() && memory.read_exact_at(&mut there, part.start).is_ok() {
            let found = there.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes);
            places.extend(found.map(|(at, _)| (part.start + at as u64).wrapping_sub(addr) as i64));
        }
    }
    (places.len() == 1).then(|| places[0])
}

/// Watches several processes.
#[derive(Default)]
pub struct Watched {
    processes: HashMap<u32, Process>,
    pub seen: Seen,
}

impl Watched {
    pub fn look(&mut self, pids: &BTreeSet<u32>) {
        for &pid in pids {
            self.seen.users.extend(open::users(pid).into_iter().flatten());
            // A process may end at any time, so errors are ignored.
            let _ = self.processes.entry(pid).or_default().look(pid, &mut self.seen);
        }
    }
}

/// Watches processes from a separate thread.
pub struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<Seen>,
}

impl Watch {
    /// `pids` returns the processes to watch at present.
    pub fn start(pids: impl Fn() -> BTreeSet<u32> + Send + 'static) -> Watch {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let (mut watched, mut wait) = (Watched::default(), FIRST);
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                watched.look(&pids());
                wait = (2 * wait).min(LAST);
            }
            watched.seen
        });
        Watch { stop, thread }
    }

    pub fn end(self) -> Seen {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_a_process() {
        let text = "7f00-7f10 r-xp 00001000 fe:00 12   /a b\n10-20 rw-p 0 0:0 0 \nx\n";
        let found: Vec<_> = mappings(text).map(|it| (it.range, it.executable, it.path)).collect();
        assert_eq!(found, [(0x7f00..0x7f10, true, "/a b".to_owned()), (0x10..0x20, false, String::new())]);
    }

    #[test]
    fn code_is_found_where_it_lies() {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut bytes = vec![0u8; 600];
        bytes[300..308].copy_from_slice(b"\x55\x48\x89\xe5\x90\x90\x5d\xc3");
        let start = bytes.as_ptr() as u64;
        let range = start..start + 600;
        let at = |addr| elsewhere(&memory, &[&range], addr, b"\x55\x48\x89\xe5\x90\x90\x5d\xc3");
        assert_eq!((at(start + 364), at(start + 100)), (Some(-64), Some(200)));
        bytes.copy_within(300..308, 500);
        assert_eq!(at(start + 364), None, "it is there twice");
    }
}
