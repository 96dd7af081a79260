//! The files of a killed process held against what it had registered.
//!
//! What a call had returned for must be there once the files are complete, exactly once and as it was registered. The
//! one call of each thread that had not returned may have left its record or not. Nothing else may be there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, LittleEndian, Pointer, UnwindSection};
use jitsym::format::jitdump::raw::{RawLoad, RawRecords};
use jitsym::format::jitdump::{id, Header, HEADER_SIZE};
use linux_perf_data::jitdump::JitDumpReader;

use super::plan::{mixed, Plan};
use super::run::Truth;
use crate::perf;
use crate::support::checker;

const ADDR: u64 = 0x100_0000_0000;
const STRIDE: u64 = 0x8_0000;
const MOVED: u64 = 1 << 39;
const LARGE: u64 = 300 * 1024;
const START_MAX: u64 = 4096;
const RELAY_SLOTS: u64 = 50;
/// The map keeps as many lines of dead code, less than which this is by far enough.
const DEAD_MAX: u64 = 60_000;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// What to expect of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As the process left them: of what each thread registered, the last part may be missing.
    Left,
    /// After a recovery: everything is there.
    Complete,
    /// After a recovery that could not know all: anything may be missing.
    Partial,
}

/// One call of a thread.
#[derive(Clone, Copy)]
enum Call {
    Register(u64),
    Move(u64),
    Retire,
}

/// A piece of code, as the program makes it up from its numbers.
struct Piece {
    size: u64,
    start: u64,
}

impl Plan {
    fn piece(&self, thread: u64, number: u64) -> Piece {
        let hash = mixed(self.seed ^ (thread << 32) ^ number);
        let limits = [4096, 1024, 1024, 128, 128, 128, 128, 128];
        let size = if self.large != 0 && (number + self.seed).is_multiple_of(self.large) {
            LARGE + (hash >> 16) % 1024
        } else {
            1 + (hash >> 16) % if self.size == 0 { limits[(hash >> 8) as usize % 8] } else { self.size }
        };
        Piece { size, start: (hash >> 40) % START_MAX }
    }

    /// The number by which an address is counted; several pieces may have the same.
    fn slot(&self, number: u64) -> u64 {
        match number {
            _ if self.relay => number % RELAY_SLOTS,
            _ if self.ops && number % 6 == 5 => number - 2,
            _ => number,
        }
    }

    fn call(&self, call: u64) -> Call {
        match (call / 8, call % 8) {
            _ if !self.ops => Call::Register(call),
            (round, which @ 0..=5) => Call::Register(6 * round + which),
            (round, 6) => Call::Move(6 * round + 2),
            _ => Call::Retire,
        }
    }

    /// The call that registered a piece, or moved it.
    fn call_of(&self, number: u64, moved: bool) -> Option<u64> {
        match (self.ops, moved) {
            (false, false) => Some(number),
            (true, false) => Some(8 * (number / 6) + number % 6),
            (true, true) if number % 6 == 2 => Some(8 * (number / 6) + 6),
            _ => None,
        }
    }

    /// Threads that note calls: when they take turns, all calls are noted as if they were one thread's.
    fn noting(&self) -> u64 {
        if self.relay {
            1
        } else {
            self.threads
        }
    }
}

/// Whether a record may, must or must not be there.
fn expected(plan: &Plan, truth: &Truth, thread: u64, call: u64) -> (bool, bool) {
    match truth.accepted(thread, call) {
        Some(accepted) => (accepted, accepted),
        None => (false, thread < plan.noting() && call == truth.returned(thread)),
    }
}

/// The bytes of all code lie in this pattern.
fn pattern() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| (0..START_MAX + LARGE + 1024).map(|at| (mixed(at) >> 56) as u8).collect())
}

/// `kill THREAD NUMBER`
fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (thread, number) = name.strip_prefix("kill ")?.split_once(' ')?;
    let plain = |text: &str| text.parse().ok().filter(|value: &u64| value.to_string() == text);
    Some((plain(thread)?, plain(number)?))
}

/// Whether a file ends where the kernel has cut off the last write of a process that was killed within it: which it
/// does at page boundaries only. What the library hands to the kernel is always whole.
pub fn cut_by_kernel(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.len().is_multiple_of(4096)
}

/// Checks a jitdump from its first to its last byte. Returns how many of the accepted records are missing.
pub fn check_dump(plan: &Plan, truth: &Truth, bytes: &[u8], state: State) -> Result<u64, String> {
    if bytes.is_empty() && !truth.opened {
        return Ok(0);
    }
    let header = Header::read(bytes).ok_or("no header")?;
    ensure!(u64::from(header.pid) == truth.pid, "header {header:?}");
    let mut time = header.timestamp;
    let mut seen: HashMap<(u64, u64), u32> = HashMap::new();
    let mut last_turn = None;
    let mut lines = None;
    let mut unwind = None;
    let mut mapped = false;
    let mut count = 0;
    let mut records = RawRecords::from(bytes, HEADER_SIZE);
    for record in records.by_ref() {
        count += 1;
        let stamp = record.timestamp;
        ensure!(stamp >= time, "time goes back to {stamp} from {time}");
        time = stamp;
        match record.id {
            id::DEBUG_INFO => {
                ensure!(lines.is_none() && unwind.is_none(), "lines of no code");
                let debug = record.debug_info().ok_or("a short record of lines")?;
                let mut all = debug.entries();
                let entries = all.by_ref().map(|entry| (entry.addr, entry.line, entry.column, entry.file)).collect();
                ensure!(all.rest().0 == 0, "{} lines are missing", all.rest().0);
                lines = Some((debug.addr, entries));
            }
            id::UNWINDING_INFO => {
                let unwinding = record.unwinding_info().ok_or("a short record of tables")?;
                ensure!(unwind.is_none(), "unwinding of no code");
                unwind = Some(unwinding.tables().ok_or("sizes of tables")?);
                mapped = unwinding.mapped_size > 0;
            }
            id::LOAD => {
                let load = record.load().ok_or("a short record of code")?;
                let (thread, call, number) = check_load(plan, truth, &load, lines.take(), unwind.take(), state)?;
                // The program declares a gap for each second function that has tables, also when it moves.
                ensure!(mapped == (number % 4 == 0 && !plan.relay), "mapped: {mapped}, of number {number}");
                mapped = false;
                *seen.entry((thread, call)).or_default() += 1;
                ensure!(!plan.relay || last_turn.is_none_or(|last| last < number), "{number} is behind {last_turn:?}");
                last_turn = Some(number);
            }
            other => return Err(format!("record {other:?}")),
        }
    }
    ensure!(records.offset() == bytes.len(), "{} bytes are no whole record", bytes.len() - records.offset());
    ensure!(lines.is_none() && unwind.is_none(), "a group without code");
    other_opinion(bytes, count)?;
    checker::problems(bytes, Path::new(&format!("/tmp/jit-{}.dump", truth.pid)), &checker::OTHER_CODE)?;

    let mut missing = 0;
    for thread in 0..plan.noting() {
        let mut gap = None;
        for call in 0..=truth.returned(thread) {
            let times = seen.remove(&(thread, call)).unwrap_or(0);
            let (must, may) = expected(plan, truth, thread, call);
            if matches!(plan.call(call), Call::Retire) {
                continue;
            }
            ensure!(times <= u32::from(may), "call {call} of thread {thread} is there {times} times");
            if must && times == 0 {
                missing += 1;
                gap = gap.or(Some(call));
                ensure!(state != State::Complete, "call {call} of thread {thread} is missing");
            }
            let late = state == State::Left && times != 0 && gap.is_some();
            ensure!(!late, "thread {thread}: {call} is there, but not {gap:?}, which was before");
        }
    }
    ensure!(seen.is_empty(), "records of calls that were never made: {seen:?}");
    Ok(missing)
}

/// linux-perf-data reads as much.
fn other_opinion(bytes: &[u8], count: u64) -> Result<(), String> {
    let mut reader = JitDumpReader::new(std::io::Cursor::new(bytes)).map_err(|error| error.to_string())?;
    let mut read = 0;
    while reader.next_record().map_err(|error| error.to_string())?.is_some() {
        read += 1;
    }
    let end = reader.next_record_offset();
    ensure!(
        read == count && end == bytes.len() as u64,
        "linux-perf-data reads {read} of {count} records, up to {end} of {}",
        bytes.len()
    );
    Ok(())
}

type Lines<'a> = (u64, Vec<(u64, u32, u32, &'a [u8])>);

/// Checks a group against what was registered. Thread and call that it is of, and its number.
fn check_load(
    plan: &Plan,
    truth: &Truth,
    load: &RawLoad<'_>,
    lines: Option<Lines<'_>>,
    unwind: Option<(&[u8], &[u8])>,
    state: State,
) -> Result<(u64, u64, u64), String> {
    let (name, code) = load.name().zip(load.code()).ok_or("a record without name or code")?;
    let name = std::str::from_utf8(name).map_err(|error| error.to_string())?;
    let (thread, number) = parse_name(name).ok_or_else(|| format!("name {name:?}"))?;
    let base = ADDR + (thread << 40) + STRIDE * plan.slot(number);
    let moved = load.addr == base + MOVED;
    ensure!(moved || load.addr == base, "{name}: address {:#x}", load.addr);
    let call = plan.call_of(number, moved).ok_or_else(|| format!("{name}: never moved"))?;
    let tid = truth.tids[if plan.relay { number % plan.threads } else { thread } as usize];
    ensure!((u64::from(load.pid), u64::from(load.tid)) == (truth.pid, tid), "{name}: process or thread");

    let Piece { size, start } = plan.piece(thread, number);
    ensure!(code.len() as u64 == size, "{name}: {} bytes and not {size}", code.len());
    // Code that was to be read later is not there when its process is gone.
    let gone = plan.stable && state != State::Left && code.iter().all(|&byte| byte == 0);
    let right = code == &pattern()[start as usize..(start + size) as usize];
    ensure!(right || gone, "{name}: wrong bytes");

    ensure!(lines.is_some() == number.is_multiple_of(3), "{name}: lines");
    if let Some((addr, entries)) = lines {
        ensure!(addr == load.addr, "{name}: lines for {addr:#x}");
        let file = format!("/src/{thread}/{number}.c");
        let at = |addr| (addr, number as u32 + 1, thread as u32 + 1, file.as_bytes());
        ensure!(entries == [at(load.addr), at(load.addr + size)], "{name}: lines {entries:?}");
    }
    ensure!(unwind.is_some() == number.is_multiple_of(2), "{name}: unwinding");
    if let Some((eh_frame, eh_frame_hdr)) = unwind {
        check_tables(size, eh_frame, eh_frame_hdr).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok((thread, call, number))
}

/// Unwind tables count from their own place, so that they depend on the size of the code alone: those for one size are
/// read once, and compared from then on.
fn check_tables(size: u64, eh_frame: &[u8], eh_frame_hdr: &[u8]) -> Result<(), String> {
    static KNOWN: Mutex<Option<HashMap<u64, Vec<u8>>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = known.get_or_insert_default();
    let tables = [eh_frame, eh_frame_hdr].concat();
    if let Some(known) = known.get(&size) {
        ensure!(*known == tables, "tables that differ from others for code of {size} bytes");
        return Ok(());
    }
    let text = 0x10_0000;
    let at = text + size.next_multiple_of(8);
    let hdr_at = at + eh_frame.len() as u64;
    let bases = BaseAddresses::default().set_text(text).set_eh_frame(at).set_eh_frame_hdr(hdr_at);
    let section = EhFrame::new(eh_frame, LittleEndian);
    let mut ranges = Vec::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().map_err(|error| error.to_string())? {
        if let CieOrFde::Fde(partial) = entry {
            let entry = partial.parse(EhFrame::cie_from_offset).map_err(|error| error.to_string())?;
            ranges.push((entry.initial_address(), entry.len()));
        }
    }
    ensure!(ranges == [(text, size)], "tables for {ranges:x?}");
    let header = EhFrameHdr::new(eh_frame_hdr, LittleEndian).parse(&bases, 8).map_err(|error| error.to_string())?;
    ensure!(header.eh_frame_ptr() == Pointer::Direct(at), "header of the tables");
    known.insert(size, tables);
    Ok(())
}

/// Checks a map: every address that was registered carries the code that lived there last. Returns how many of the
/// accepted records are missing.
pub fn check_map(plan: &Plan, truth: &Truth, bytes: &[u8], state: State) -> Result<u64, String> {
    let mut found: HashMap<Place, Vec<(u64, u64, u64)>> = HashMap::new();
    // A process that is killed between appending a line and taking the older one back leaves both.
    let lines = if state == State::Left { perf::parse_map_lines(bytes) } else { perf::parse_map(bytes) };
    let allowed: &[&str] = if state == State::Left { &["map-overlap"] } else { &[] };
    checker::problems(bytes, Path::new(&format!("/tmp/perf-{}.map", truth.pid)), allowed)?;
    for line in lines? {
        let (thread, number) = parse_name(&line.name).ok_or_else(|| format!("name {:?}", line.name))?;
        let base = ADDR + (thread << 40) + STRIDE * plan.slot(number);
        let moved = line.start >= base + MOVED;
        let place = Place { thread, slot: plan.slot(number), moved };
        found.entry(place).or_default().push((line.start - place.addr(), line.end - place.addr(), number));
    }
    // What was registered where, in this order.
    let mut layers: HashMap<Place, Vec<(u64, bool)>> = HashMap::new();
    let mut dead = 0;
    for thread in 0..plan.noting() {
        for call in 0..=truth.returned(thread) {
            let (must, may) = expected(plan, truth, thread, call);
            let (number, moved) = match plan.call(call) {
                Call::Register(number) => (number, false),
                Call::Move(number) => (number, true),
                Call::Retire => (0, false),
            };
            dead += u64::from(!matches!(plan.call(call), Call::Register(_)));
            if may && !matches!(plan.call(call), Call::Retire) {
                let place = Place { thread, slot: plan.slot(number), moved };
                layers.entry(place).or_default().push((number, must));
            }
        }
    }
    let forgets = dead > DEAD_MAX;
    let mut missing = 0;
    for (place, layers) in &layers {
        let mut lines = found.remove(place).unwrap_or_default();
        lines.sort_unstable();
        let newest = lines.iter().map(|line| line.2).max();
        let reached = newest.and_then(|newest| layers.iter().rposition(|layer| layer.0 == newest));
        ensure!(newest.is_none() || reached.is_some(), "{place:?}: {lines:?}");
        let reached = reached.map_or(0, |at| at + 1);
        let certain = layers.iter().filter(|layer| layer.1).count();
        if reached < certain {
            missing += (certain - reached) as u64;
            ensure!(state != State::Complete || forgets, "{place:?}: {lines:?} of {layers:?}");
        }
        if state == State::Left {
            let known = |line: &(u64, u64, u64)| {
                let size = plan.piece(place.thread, line.2).size;
                layers.iter().any(|layer| layer.0 == line.2) && line.0 < line.1 && line.1 == size
            };
            ensure!(lines.iter().all(known), "{place:?}: {lines:?} of {layers:?}");
            continue;
        }
        let right = lines_of(plan, place.thread, &layers[..reached]);
        let all = forgets || state == State::Partial || lines.len() == right.len();
        ensure!(all && lines.iter().all(|line| right.contains(line)), "{place:?}: {lines:?} and not {right:?}");
    }
    ensure!(found.is_empty(), "lines of calls that were never made: {found:?}");
    Ok(missing)
}

/// Where code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    thread: u64,
    slot: u64,
    moved: bool,
}

impl Place {
    fn addr(&self) -> u64 {
        ADDR + (self.thread << 40) + STRIDE * self.slot + if self.moved { MOVED } else { 0 }
    }
}

/// What is left of pieces that were put over each other: of each what lies behind all that came later.
fn lines_of(plan: &Plan, thread: u64, layers: &[(u64, bool)]) -> Vec<(u64, u64, u64)> {
    let mut covered = 0;
    let mut lines = Vec::new();
    for &(number, _) in layers.iter().rev() {
        let size = plan.piece(thread, number).size;
        if size > covered {
            lines.push((covered, size, number));
            covered = size;
        }
    }
    lines
}

/// A header, and nothing behind it.
pub fn is_empty_dump(bytes: &[u8]) -> bool {
    bytes.is_empty() || (bytes.len() == HEADER_SIZE && Header::read(bytes).is_some())
}
