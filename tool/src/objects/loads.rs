//! Collects the code that the jitdumps and perf maps of a process describe, in the order of time.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use crate::tables::{EM_386, EM_ARM};
use jitsym::format::jitdump::id;
use jitsym::format::jitdump::raw::{RawDebug, RawEntry, RawHeader, RawMove, RawRecord, RawRecords};

/// The number that V8 and LLVM add to each address in a line table.
const BIAS: u64 = 0x40;

/// A piece of code, as a file describes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load<'a> {
    /// The process in the record, or 0 if the file does not contain it.
    pub pid: u32,
    /// The thread in the record.
    pub tid: u32,
    /// The time at which the code was registered.
    pub time: u64,
    /// The address of the code.
    pub addr: u64,
    /// The number of bytes.
    pub size: u64,
    /// The name, unchanged. The name may be empty.
    pub name: &'a [u8],
    /// The bytes of the code. `None` if the file does not contain them, for example a perf map.
    pub code: Option<&'a [u8]>,
    /// The line table. The addresses in the table count from the table's own `addr`.
    pub lines: Option<RawDebug<'a>>,
    /// The number by which the addresses in the line table are too high.
    pub bias: u64,
    /// The section `.eh_frame` for the address right after the code. Empty if there are no tables.
    pub eh_frame: &'a [u8],
    /// The record of the inlined functions, if the file has one: DEBUG_INFO2 of a jitdump, or the library's own record
    /// (`id::INLINES`) of a region.
    pub inlines: Option<RawRecord<'a>>,
}

impl<'a> Load<'a> {
    /// Whether the code has bytes, and all of its addresses are valid.
    pub(super) fn is_possible(&self) -> bool {
        self.size > 0 && self.addr.checked_add(self.size).is_some()
    }

    /// The code at another address. If the record moves more bytes than the code has, it moves the code. If it moves fewer
    /// bytes, it moves the first part of the code.
    fn moved(&self, to: &RawMove, time: u64) -> Load<'a> {
        let size = self.size.min(to.size);
        let code = self.code.and_then(|code| code.get(..usize::try_from(size).ok()?));
        Load { pid: to.pid, tid: to.tid, time, addr: to.new_addr, size, code, ..*self }
    }

    /// The addresses of the code.
    pub fn range(&self) -> Range<u64> {
        self.addr..self.addr.saturating_add(self.size)
    }

    /// The rows of the line table that are in the code, with their offsets in the code.
    pub fn rows(&self) -> impl Iterator<Item = (u64, RawEntry<'a>)> + use<'_, 'a> {
        self.lines.iter().flat_map(move |lines| {
            let mut last: &[u8] = b"";
            lines.entries().filter_map(move |entry| {
                // perf's agent writes this byte in place of the file name of the previous row.
                let file = if entry.file == b"\xff" { last } else { entry.file };
                last = file;
                let offset = entry.addr.checked_sub(lines.addr)?.checked_sub(self.bias)?;
                (offset < self.size).then_some((offset, RawEntry { file, ..entry }))
            })
        })
    }

    /// The size of this piece in the file.
    pub(super) fn bytes(&self) -> usize {
        let lines = self.lines.as_ref().map_or(0, |lines| lines.entries().rest().1.len());
        let inlines = self.inlines.as_ref().map_or(0, |record| record.size());
        self.code.map_or(0, <[u8]>::len) + self.eh_frame.len() + self.name.len() + lines + inlines
    }
}

/// All code of a process.
#[derive(Clone, Debug, Default)]
pub struct Loads<'a> {
    /// The `e_machine` of the code, or 0 if only perf maps were added, which do not contain it.
    pub machine: u32,
    /// The pid in the file, which in a container differs from the pid outside.
    pub pid: u32,
    /// Whether a jitdump has the other byte order.
    pub is_swapped: bool,
    /// Whether the times are values of the processor's counter, instead of CLOCK_MONOTONIC.
    pub by_counter: bool,
    /// The pieces. [`Loads::finish`] sorts them by time.
    pub all: Vec<Load<'a>>,
    /// The number of records that describe invalid code.
    pub impossible: usize,
}

impl<'a> Loads<'a> {
    /// Makes an empty collection.
    pub fn new() -> Self {
        Loads::default()
    }

    /// Adds the code in a jitdump, which may be torn. Returns false if the file is not a jitdump.
    pub fn add_jitdump(&mut self, dump: &'a [u8]) -> bool {
        let Some(header) = RawHeader::read(dump) else { return false };
        self.is_swapped |= header.swapped;
        (self.machine, self.pid, self.by_counter) = (header.machine, header.pid, header.arch_timestamp());
        let first = self.all.len();
        let mut by_index: HashMap<u64, usize> = HashMap::new();
        let (mut debug, mut unwinding, mut inlines) = (None, None, None);
        // A short record can move much code, so the records of a file could require more bytes than any disk has.
        let mut moves_left = MOVED_MORE + MOVED_TIMES * dump.len();
        for record in RawRecords::new(dump, &header) {
            match record.id {
                id::DEBUG_INFO => debug = record.debug_info(),
                id::UNWINDING_INFO => unwinding = record.unwinding_info(),
                id::DEBUG_INFO2 => inlines = Some(record),
                id::LOAD => {
                    let (lines, tables, inlines) = (debug.take(), unwinding.take(), inlines.take());
                    let Some(load) = record.load() else { continue };
                    let piece = Load {
                        pid: load.pid,
                        tid: load.tid,
                        time: record.timestamp,
                        addr: load.addr,
                        size: load.size,
                        name: load.name().unwrap_or_default(),
                        code: load.code(),
                        lines: lines.filter(|lines: &RawDebug| lines.addr == load.addr),
                        bias: 0,
                        eh_frame: tables.and_then(|tables| tables.tables()).map_or(&[][..], |(eh_frame, _)| eh_frame),
                        inlines: inlines.filter(|record: &RawRecord<'_>| {
                            record.debug_info2().is_some_and(|debug| debug.addr == load.addr)
                        }),
                    };
                    if piece.code.is_some() && self.push(piece) {
                        by_index.insert(load.index, self.all.len() - 1);
                    } else if piece.code.is_none() {
                        self.impossible += 1;
                    }
                }
                id::MOVE => {
                    let Some(moved) = record.code_move() else { continue };
                    let Some(&old) = by_index.get(&moved.index) else { continue };
                    let piece = self.all[old].moved(&moved, record.timestamp);
                    let Some(left) = moves_left.checked_sub(piece.bytes()) else {
                        self.impossible += 1;
                        continue;
                    };
                    moves_left = left;
                    if self.push(piece) {
                        by_index.insert(moved.index, self.all.len() - 1);
                    }
                }
                _ => {}
            }
        }
        if is_biased(&self.all[first..]) {
            self.all[first..].iter_mut().for_each(|load| load.bias = BIAS);
        }
        true
    }

    /// Fails if no ELF file of this code can be made here.
    pub fn check_machine(&self) -> io::Result<()> {
        let why = match self.machine {
            _ if self.is_swapped => "a jitdump of the other byte order",
            machine if is_32_bit(machine) => "code of a 32-bit machine",
            _ => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("no files can be made of {why}")))
    }

    fn push(&mut self, load: Load<'a>) -> bool {
        let is_possible = load.is_possible();
        match is_possible {
            true => self.all.push(load),
            false => self.impossible += 1,
        }
        is_possible
    }

    /// Sorts the pieces by time. Pieces of the same time stay in the order in which they were added.
    pub fn finish(&mut self) {
        self.all.sort_by_key(|load| load.time);
    }
}

/// The limits for the bytes of moved code: `MOVED_MORE`, plus `MOVED_TIMES` times the size of the jitdump.
const MOVED_MORE: usize = 16 << 20;
const MOVED_TIMES: usize = 4;

/// Whether this is the `e_machine` of a 32-bit machine, for whose code no files can be made.
pub fn is_32_bit(machine: u32) -> bool {
    [EM_386, EM_ARM].contains(&machine)
}

/// Whether the addresses in all line tables of a file are too high. A table with correct addresses begins at the start of its
/// code, or ends in its code.
fn is_biased(loads: &[Load<'_>]) -> bool {
    let mut is_beyond = false;
    for load in loads {
        let Some(lines) = load.lines.as_ref() else { continue };
        let offsets = || lines.entries().map(|entry| entry.addr.wrapping_sub(lines.addr));
        let Some(lowest) = offsets().min() else { continue };
        if lowest < BIAS {
            return false;
        }
        is_beyond |= offsets().max().is_some_and(|highest| highest > load.size);
    }
    is_beyond
}
