//! Tracks which code is in which table of the unwinder.
//!
//! libgcc from version 13 on and LLVM libunwind get a separate table for each FDE. libgcc before version 13 searches a list of
//! tables, and sorts a table when the table is searched for the first time. So libgcc before version 13 gets few large tables,
//! plus small tables for the newest code. nongnu libunwind gets few large tables too, but with copies of the entries.
//!
//! An unwinder takes no lock to read entries that it has found. So the entries of a piece of code stay at their address in
//! memory until the code has ended, even if the piece moves to another table.

use std::collections::BTreeMap;

use crate::format::cfi::absolute::{self, Frame};
use crate::sys::unwinder::{self, Dialect, Registered};
use crate::sys::{libunwind, reserve};

/// Two tables are merged only if the merged table has at most this many pieces of code.
const PIECES_MAX: usize = 8192;
/// An unwinder with a list may have this many tables, and two more tables for every `PIECES_MAX` pieces of live code. If there
/// are more tables, some tables are merged.
const TABLES: usize = 16;
/// Two tables are merged only if at most this many bytes lie between them. In a larger gap, other libraries may have code, and
/// may have registered tables for this code.
const GAP: u64 = 64 << 10;
/// How many bytes of memory an unwinder may need to register a table. `is_room` allocates this many bytes, and frees them. The
/// value is below 64 KiB, because glibc tidies up its heap when a piece of at least 64 KiB is freed.
const NOTES: usize = 48 << 10;

/// The code of one registration.
#[derive(Debug)]
struct Piece {
    /// 0 if the code has ended.
    id: u64,
    addr: u64,
    size: u64,
    frames: Vec<Frame>,
}

/// The data that the unwinder has for the code of one `Table`.
#[derive(Debug, Default)]
struct Known {
    registered: Vec<Registered>,
    /// Copies of the entries, for nongnu libunwind. Used only for `Dialect::Offsets`.
    copy: Option<libunwind::Table>,
}

/// Pieces of code. The unwinder has either one table for all these pieces, or one table for each of their FDEs. A table in a
/// list must contain all code between its first piece and its last piece.
#[derive(Debug)]
struct Table {
    /// This field refers to the pieces and must be dropped first, so it stands before the field `pieces`.
    known: Known,
    /// The pieces, in the order of addresses. There is at least one piece.
    pieces: Vec<Piece>,
    dead: usize,
}

/// All tables of one unwinder.
#[derive(Debug)]
pub struct Tables {
    dialect: Dialect,
    /// The tables, by the address of their first piece.
    tables: BTreeMap<u64, Table>,
    /// The addresses of the live code in the tables, by id.
    places: BTreeMap<u64, u64>,
    /// The live code by address: its end and its id. No two pieces overlap.
    live: BTreeMap<u64, (u64, u64)>,
    /// After a failed merge, tables are merged again only if there are more than `apart` tables. `apart` is 0 if the last merge
    /// succeeded.
    apart: usize,
}

impl Table {
    fn start(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.addr)
    }

    fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.addr + piece.size)
    }
}

/// Whether an unwinder has memory to register a table. The unwinder does not check its allocations, and cannot use this
/// library's reserve of memory (`sys/reserve`).
pub fn is_room() -> bool {
    reserve::is_there(NOTES) && !reserve::is_short()
}

/// Registers pieces as one table, with an unwinder that has a list of tables. Returns `None` if there is no memory.
fn listed<'a>(dialect: Dialect, pieces: impl Iterator<Item = &'a Piece> + Clone) -> Option<Known> {
    let frames = pieces.flat_map(|piece| &piece.frames);
    let mut known = Known::default();
    if dialect == Dialect::Offsets {
        let entry = |frame: &'a Frame| {
            let &Frame { start, end, ref bytes, fde, .. } = frame;
            libunwind::Entry { start, end, bytes, fde }
        };
        known.copy = Some(libunwind::Table::new(frames.map(entry))?);
        return Some(known);
    }
    known.registered.try_reserve_exact(1).ok()?;
    // SAFETY: a `Table` drops its field `known` before its field `pieces`. Pieces that move to a new table are freed only after
    // the field `known` of the new table is dropped.
    known.registered.push(unsafe { Registered::all(frames.map(|frame| &*frame.bytes)) }?);
    Some(known)
}

/// Searches once in a new table of an unwinder that has a list of tables, because the first search sorts the table. Without
/// this call, the host would have to wait for the sorting when the host throws an exception. The unwinder must already know the
/// table, and no other table may have this code.
fn search_once(dialect: Dialect, pieces: &[Piece]) {
    if dialect == Dialect::Offsets {
        // For `Dialect::Offsets`, `libunwind::Table::new` has already sorted the table.
        return;
    }
    if let Some(frame) = pieces.iter().find_map(|piece| piece.frames.first()) {
        let _ = unwinder::find(frame.start);
    }
}

/// Registers an FDE with an unwinder that has a tree.
///
/// The nodes of the tree divide the address space at addresses where code once began. New code may lie on both sides of a
/// dividing address. Up to version 14.2, libgcc then does not find the part above the dividing address (gcc bug 119151), so
/// this part gets another table.
fn in_tree(frames: &mut Vec<Frame>, frame: Frame, registered: &mut Vec<Registered>) -> Option<()> {
    let (mut from, last) = (frame.start, frame.end - 1);
    // The host itself may have registered the code with the unwinder. No address may be in two tables.
    if unwinder::find(from).is_some() || unwinder::find(last).is_some() {
        return None;
    }
    // Landing pads are relative to the start address of the FDE. So if an FDE needs several tables, each table gets a copy of
    // the whole FDE.
    let mut next = Some(frame);
    while let Some(mut frame) = next.take() {
        frames.try_reserve(1).ok()?;
        registered.try_reserve(1).ok()?;
        let addr_at = frame.addr_at();
        // SAFETY: a `Table` drops its field `known` before its field `pieces` (see `listed`).
        registered.push(unsafe { Registered::part(&mut frame.bytes, addr_at, (from, last + 1 - from)) }?);
        frames.push(frame);
        if unwinder::find(from).is_none() || unwinder::find(last).is_some() {
            break;
        }
        // Searches for the first address that the unwinder does not find.
        let mut high = last;
        while high - from > 1 {
            let middle = from + (high - from) / 2;
            *if unwinder::find(middle).is_some() { &mut from } else { &mut high } = middle;
        }
        from = high;
        next = frames.last().and_then(Frame::copy);
    }
    Some(())
}

impl Tables {
    pub fn new(dialect: Dialect) -> Tables {
        let (tables, places, live) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Tables { dialect, tables, places, live, apart: 0 }
    }

    /// Whether threads of the host may change these tables. False for an unwinder that has a list: a change of a list may merge
    /// small tables into a large table, and a call of the host should not wait for the merge.
    pub fn are_for_callers(&self) -> bool {
        matches!(self.dialect, Dialect::Tree | Dialect::Each)
    }

    /// Adds code with its entries (`eh_frame`), which may be empty. The entries are encoded for a section that directly follows
    /// the code. If the id already has code at other addresses, that code is removed. Other code in the range `place` is
    /// removed too. If there is no memory, the code has no table.
    pub fn add(&mut self, id: u64, place: (u64, u64), eh_frame: &[u8]) {
        let _ = self.put(id, place, absolute::frames(eh_frame, place).unwrap_or_default());
    }

    /// Does the same as `add`, but the entries are already relocated to `place`. Returns `None` if there is no memory.
    pub fn put(&mut self, id: u64, place: (u64, u64), frames: Vec<Frame>) -> Option<()> {
        self.remove(id);
        self.insert(id, place, frames)
    }

    /// Moves the entries of code that has moved to the address range `place`.
    pub fn moved(&mut self, id: u64, place: (u64, u64)) {
        let frames = self.frames_at(id, place.0).unwrap_or_default();
        let _ = self.put(id, place, frames);
    }

    /// Copies the unwind entries of the code with this id, and relocates the copies to the address `to`. Returns `None` if
    /// there is no memory.
    pub fn frames_at(&self, id: u64, to: u64) -> Option<Vec<Frame>> {
        let mut frames = Vec::new();
        if let Some((piece, table)) = self.find(id) {
            let Piece { addr, frames: old, .. } = &table.pieces[piece];
            for frame in old {
                let mut frame = frame.copy()?;
                frames.try_reserve(1).ok()?;
                frame.shift(to.wrapping_sub(*addr));
                // If the unwinder has a tree (`Dialect::Tree`), several tables may have copies of one entry.
                if !frames.iter().any(|other: &Frame| other.start == frame.start) {
                    frames.push(frame);
                }
            }
        }
        Some(frames)
    }

    /// Removes code that has ended.
    pub fn remove(&mut self, id: u64) {
        let start = self.find(id).map(|(_, table)| table.start());
        let Some(addr) = self.places.remove(&id) else { return };
        self.live.remove(&addr);
        let Some((start, table)) = start.and_then(|start| Some((start, self.tables.get_mut(&start)?))) else { return };
        table.dead += 1;
        if table.dead == table.pieces.len() {
            self.tables.remove(&start);
            return;
        }
        if let Some(piece) = table.pieces.iter_mut().rfind(|piece| piece.id == id) {
            piece.id = 0;
            for frame in &mut piece.frames {
                let at = frame.size_at();
                match &mut table.known.copy {
                    Some(copy) => copy.end(frame.start, at - frame.fde),
                    None => unwinder::clear(&mut frame.bytes, at),
                }
            }
        }
        if table.dead > table.pieces.len() / 2 {
            self.part(start, start, start);
        }
    }

    /// Removes the code in a range, beginning at the highest address. Stops after `most` pieces, and then returns false,
    /// because the range may still have code.
    pub fn remove_in(&mut self, addr: u64, end: u64, most: usize) -> bool {
        for _ in 0..most {
            let last = self.live.range(..end).next_back();
            let Some((_, &(_, id))) = last.filter(|(_, (end, _))| *end > addr) else { return true };
            self.remove(id);
        }
        false
    }

    /// Removes all code with an id for which `lives` returns false.
    pub fn retain(&mut self, lives: impl Fn(u64) -> bool) {
        let ended: Vec<u64> = self.places.keys().copied().filter(|&id| !lives(id)).collect();
        ended.into_iter().for_each(|id| self.remove(id));
    }

    /// Whether the tables have code with this id at exactly this address range.
    pub fn has(&self, id: u64, (addr, size): (u64, u64)) -> bool {
        self.live.get(&addr) == Some(&(addr + size, id))
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// Finds the table that has the code with this id, and the index of the code's piece in the table.
    fn find(&self, id: u64) -> Option<(usize, &Table)> {
        let addr = *self.places.get(&id)?;
        let (_, table) = self.tables.range(..=addr).next_back()?;
        let after = table.pieces.partition_point(|piece| piece.addr <= addr);
        let piece = table.pieces[..after].iter().rposition(|piece| piece.id == id)?;
        Some((piece, table))
    }

    fn insert(&mut self, id: u64, (addr, size): (u64, u64), frames: Vec<Frame>) -> Option<()> {
        let end = addr.checked_add(size)?;
        self.remove_in(addr, end, usize::MAX);
        if frames.is_empty() {
            return Some(());
        }
        if !is_room() {
            return None;
        }
        let mut piece = Piece { id, addr, size, frames };
        let mut known = Known::default();
        match self.dialect {
            Dialect::List | Dialect::Offsets => {
                while let Some((&start, _)) =
                    self.tables.range(..end).next_back().filter(|(_, table)| table.end() > addr)
                {
                    self.part(start, addr, end)?;
                }
                known = listed(self.dialect, std::iter::once(&piece))?;
                search_once(self.dialect, std::slice::from_ref(&piece));
            }
            Dialect::Tree => {
                for frame in std::mem::take(&mut piece.frames) {
                    let _ = in_tree(&mut piece.frames, frame, &mut known.registered);
                }
            }
            Dialect::Each => {
                for frame in &piece.frames {
                    // SAFETY: a `Table` drops its field `known` before its field `pieces` (see `listed`).
                    known.registered.extend(unsafe { Registered::fde(&frame.bytes, frame.fde) });
                }
            }
        }
        self.tables.insert(addr, Table { known, pieces: vec![piece], dead: 0 });
        self.places.insert(id, addr);
        self.live.insert(addr, (end, id));
        if matches!(self.dialect, Dialect::List | Dialect::Offsets) {
            let most = TABLES + 2 * self.live.len() / PIECES_MAX;
            while self.tables.len() > most.max(self.apart) {
                self.apart = if self.merge().is_some() { 0 } else { 2 * self.tables.len() };
            }
        }
        Some(())
    }

    /// Splits a table in two. The lower table gets the pieces that begin below `from`, and the upper table gets the pieces that
    /// begin at or above `to`. Ended code is left out. Returns `None` if there is no memory.
    fn part(&mut self, start: u64, from: u64, to: u64) -> Option<()> {
        let table = self.tables.get_mut(&start)?;
        let live = table.pieces.iter().filter(|piece| piece.id != 0);
        let below = live.clone().filter(|piece| piece.addr < from);
        let above = live.filter(|piece| piece.addr >= to);
        let counts = [below.clone().count(), above.clone().count()];
        // The upper table is registered first. For an address, libgcc searches only the table that begins closest below the
        // address. Ended code is left out, so the lower table may begin at a higher address than the old table. Once the lower
        // table is registered, libgcc no longer searches the old table, not even for the code of the upper table.
        let high = if counts[1] > 0 { listed(self.dialect, above)? } else { Known::default() };
        let low = if counts[0] > 0 { listed(self.dialect, below)? } else { Known::default() };
        let mut pieces = [Vec::new(), Vec::new()];
        for (pieces, count) in pieces.iter_mut().zip(counts) {
            pieces.try_reserve_exact(count).ok()?;
        }
        // From here on nothing can fail. The unwinder already knows the new tables. The unwinder forgets the old table before
        // the entries of ended code are freed.
        let Table { known: old, pieces: all, .. } = self.tables.remove(&start)?;
        drop(old);
        for piece in all.into_iter().filter(|piece| piece.id != 0) {
            pieces[usize::from(piece.addr >= to)].push(piece);
        }
        for (pieces, known) in pieces.into_iter().zip([low, high]).filter(|(pieces, _)| !pieces.is_empty()) {
            search_once(self.dialect, &pieces);
            self.tables.insert(pieces[0].addr, Table { known, pieces, dead: 0 });
        }
        Some(())
    }

    /// Merges the two neighbouring tables that have the fewest pieces in total. Returns `None` if no two tables can be merged,
    /// or there is no memory.
    fn merge(&mut self) -> Option<()> {
        let sum = |(low, high): &(&Table, &Table)| low.pieces.len() + high.pieces.len();
        let pairs = self.tables.values().zip(self.tables.values().skip(1));
        let near = pairs.filter(|pair| pair.1.start() - pair.0.end() <= GAP && sum(pair) <= PIECES_MAX);
        let (low, high) = near.min_by_key(sum)?;
        let live = low.pieces.iter().chain(&high.pieces).filter(|piece| piece.id != 0);
        let mut pieces = Vec::new();
        pieces.try_reserve_exact(live.clone().count()).ok()?;
        let known = listed(self.dialect, live)?;
        let starts = [low.start(), high.start()];
        // The unwinder already knows the new table. The unwinder forgets the old tables before the entries of ended code are
        // freed.
        for table in starts.map(|start| self.tables.remove(&start)).into_iter().flatten() {
            drop(table.known);
            pieces.extend(table.pieces.into_iter().filter(|piece| piece.id != 0));
        }
        search_once(self.dialect, &pieces);
        self.tables.insert(pieces.first()?.addr, Table { known, pieces, dead: 0 });
        Some(())
    }
}
