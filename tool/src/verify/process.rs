//! The state of a process: its code, its files, its mappings, and the breakpoints in it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use jitsym_step::{find, Mapping, Tid, Tracer};

use super::code::Book;
use super::pattern::Patterns;
use super::sources::{self, Sources};

/// The distance from its registered address within which missing code is searched for.
const NEAR: u64 = 4096;
/// The minimum size of code that is searched for. The bytes of shorter code could be found by chance.
const SEARCHED_MIN: usize = 8;
/// A breakpoint is set at an address only if this number of bytes are as registered.
const FIRST: usize = 8;

/// Memory that is not executable after this number of checks is treated as data.
const LOOKS_MAX: u32 = 20;

/// The kind of code at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Registered code.
    Piece(usize),
    /// A program or library.
    Native,
    /// Memory for code that is not registered so far.
    Unknown,
}

#[derive(Default)]
pub struct Process {
    pub book: Book,
    pub sources: Sources,
    maps: Vec<Mapping>,
    /// The number of users of the breakpoint at each address.
    wanted: BTreeMap<u64, u32>,
    /// Pieces by the address at which they are entered.
    entries: HashMap<u64, usize>,
    /// Pieces for which no hardware breakpoint was free.
    waiting: Vec<(usize, bool)>,
    /// Pieces whose memory was not executable when they were registered, because it was still being written, with the number
    /// of checks so far.
    not_yet: Vec<(usize, u32)>,
    /// ELF files that were searched for symbols.
    files: HashSet<(String, u64)>,
    /// The functions that report code to debuggers. These functions have a breakpoint, because the library has written all
    /// its files when it calls these functions.
    pub tellers: HashSet<u64>,
}

impl Process {
    pub fn remap(&mut self, tracer: &Tracer, pid: Tid) {
        self.maps = tracer.maps(pid).unwrap_or_default();
    }

    /// The kind of code at an address.
    pub fn place(&mut self, tracer: &Tracer, pid: Tid, addr: u64) -> Place {
        if let Some(piece) = self.book.at(addr) {
            return Place::Piece(piece);
        }
        if find(&self.maps, addr).is_none() {
            self.remap(tracer, pid);
        }
        match find(&self.maps, addr) {
            Some(mapping) if sources::is_native(mapping) => Place::Native,
            Some(_) => Place::Unknown,
            // Executing this address will fault.
            None => Place::Native,
        }
    }

    /// Reads new files and new records, and sets breakpoints at the entries of new code.
    pub fn follow(&mut self, tracer: &mut Tracer, pid: Tid, is_remapped: bool, wanted: &Patterns, calls: u32) {
        let mut added = Vec::new();
        if !is_remapped && self.sources.has_regions() {
            added = self.sources.regions(pid, &self.maps, &mut self.book, wanted);
        } else if is_remapped {
            self.remap(tracer, pid);
            added = self.sources.discover(pid, &self.maps, &mut self.book, wanted);
            let tellers = sources::symbol(pid, &self.maps, "__jit_debug_register_code", &mut self.files);
            for addr in tellers {
                if self.want(tracer, pid, addr, false).is_ok() {
                    self.tellers.insert(addr);
                }
            }
        }
        added.extend(self.sources.read(pid, &mut self.book, wanted));
        if !is_remapped && added.is_empty() && !self.not_yet.is_empty() {
            self.remap(tracer, pid);
            for (index, looks) in std::mem::take(&mut self.not_yet) {
                self.enter(tracer, pid, index, looks + 1);
            }
        }
        for index in added {
            let piece = &self.book.pieces[index];
            if piece.wanted && piece.calls < piece.most(calls) {
                self.enter(tracer, pid, index, 0);
            }
        }
    }

    /// Sets a breakpoint at the entry of a piece, even if the piece is not at its registered address.
    fn enter(&mut self, tracer: &mut Tracer, pid: Tid, index: usize, looks: u32) {
        let piece = &self.book.pieces[index];
        if !find(&self.maps, piece.addr).is_some_and(|mapping| mapping.executable) {
            if looks < LOOKS_MAX {
                self.not_yet.push((index, looks));
            }
            return;
        }
        let (start, bytes) = (piece.addr, &piece.bytes);
        if piece.size == 0 {
            return;
        }
        let mut there = vec![0; bytes.len()];
        let len = tracer.read(pid, start, &mut there).unwrap_or(0);
        let first = bytes.len().min(FIRST);
        let is_right = len >= first && there[..first] == bytes[..first] && self.book.at(start) == Some(index);
        if is_right && !bytes.is_empty() {
            self.stop_at(tracer, pid, index, false);
            return;
        }
        if let Some(shift) = self.elsewhere(tracer, pid, index) {
            self.book.shift(index, shift);
            self.stop_at(tracer, pid, index, false);
            return;
        }
        // There may be no instruction at this address, so its bytes must not be changed.
        self.stop_at(tracer, pid, index, true);
    }

    /// The distance of code from its registered address, if the code is found nearby.
    fn elsewhere(&self, tracer: &Tracer, pid: Tid, index: usize) -> Option<i64> {
        let piece = &self.book.pieces[index];
        let bytes = &piece.bytes;
        if bytes.len() < SEARCHED_MIN {
            return None;
        }
        let from = piece.addr.saturating_sub(NEAR);
        let mapping = find(&self.maps, piece.addr).or_else(|| find(&self.maps, from))?;
        let from = from.max(mapping.range.start);
        let mut around = vec![0; 2 * NEAR as usize + bytes.len()];
        let len = tracer.read(pid, from, &mut around).ok()?;
        let mut places = around[..len].windows(bytes.len()).enumerate().filter(|(_, window)| window == bytes);
        let (at, _) = places.next()?;
        let start = from + at as u64;
        // Code that is found twice is ambiguous. If registered code begins at the address, the address belongs to that code.
        let is_registered = self.book.at(start).is_some_and(|other| self.book.pieces[other].range().start == start);
        let shift = start.wrapping_sub(piece.addr) as i64;
        (places.next().is_none() && !is_registered && shift != 0).then_some(shift)
    }

    fn stop_at(&mut self, tracer: &mut Tracer, pid: Tid, index: usize, by_hardware: bool) {
        let start = self.book.pieces[index].range().start;
        if self.entries.insert(start, index).is_some() {
            return;
        }
        if let Err(error) = self.want(tracer, pid, start, by_hardware) {
            self.entries.remove(&start);
            if error.kind() == io::ErrorKind::QuotaExceeded {
                self.waiting.push((index, by_hardware));
            }
        }
    }

    /// The piece whose entry has this breakpoint.
    pub fn entry(&self, addr: u64) -> Option<usize> {
        self.entries.get(&addr).copied()
    }

    /// Removes the breakpoint at the entry of a piece, because it is no longer needed.
    pub fn leave_entry(&mut self, tracer: &mut Tracer, pid: Tid, addr: u64) {
        if self.entries.remove(&addr).is_none() {
            return;
        }
        self.release(tracer, pid, addr);
        // A waiting piece gets the free breakpoint.
        if let Some((index, by_hardware)) = self.waiting.pop() {
            self.stop_at(tracer, pid, index, by_hardware);
        }
    }

    /// Sets a breakpoint for one more user.
    pub fn want(&mut self, tracer: &mut Tracer, pid: Tid, addr: u64, by_hardware: bool) -> io::Result<()> {
        if !self.wanted.contains_key(&addr) {
            if find(&self.maps, addr).is_none() {
                self.remap(tracer, pid);
            }
            let mapping = find(&self.maps, addr).filter(|mapping| mapping.executable);
            let mapping = mapping.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no code is there"))?;
            // A software breakpoint in shared memory would also affect other processes.
            match by_hardware || mapping.shared {
                true => tracer.set_hardware_breakpoint(pid, addr)?,
                false => tracer.set_software_breakpoint(pid, addr)?,
            }
        }
        *self.wanted.entry(addr).or_default() += 1;
        Ok(())
    }

    /// Removes one user of the breakpoint.
    pub fn release(&mut self, tracer: &mut Tracer, pid: Tid, addr: u64) {
        if let Some(count) = self.wanted.get_mut(&addr) {
            *count -= 1;
            if *count == 0 {
                self.wanted.remove(&addr);
                // The process may have ended.
                let _ = tracer.remove_breakpoint(pid, addr);
            }
        }
    }
}
