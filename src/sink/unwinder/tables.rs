//! Which code is in which table.
//!
//! New unwinders take a table for each piece of code. Old ones search a list of tables, and sort a table when they first search it.
//! They get few tables of much code, and small ones for the newest code.

use std::collections::BTreeMap;

use crate::api::code::Unwind;
use crate::format::arch::NATIVE;
use crate::format::cfi::{self, absolute};
use crate::sys::unwinder::{self, Dialect, Registered};

/// A table that others are to be made part of has at most this many pieces of code.
const PIECES_MAX: usize = 8192;
/// So many tables there may be, and two more for each so many pieces.
const TABLES: usize = 16;
/// Between two pieces that come into one table lies at most this: code of others might be there, which has a table of its own.
const GAP: u64 = 64 << 10;

/// Code, with its entries in a table.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// 0 when it has ended.
    id: u64,
    addr: u64,
    size: u64,
    /// Where its entries are.
    at: usize,
    len: usize,
}

/// Code that the unwinder finds by one table. A list has to find all code there that lies between the first piece and the last one.
#[derive(Debug)]
struct Table {
    /// In the order of addresses. At least one.
    pieces: Vec<Piece>,
    registered: Registered,
    dead: usize,
    /// Parts of the code, for libgcc 13 to 14.2: see `Tables::reach_the_end`.
    parts: Vec<Registered>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Tables {
    dialect: Dialect,
    /// By the address of the first piece.
    tables: BTreeMap<u64, Table>,
    /// Where code is that lives, by its id.
    places: BTreeMap<u64, u64>,
    /// Its end, and its id, by its address. No two pieces overlap.
    live: BTreeMap<u64, (u64, u64)>,
}

impl Table {
    fn start(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.addr)
    }

    fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.addr + piece.size)
    }

    fn entries(&self, piece: &Piece) -> &[u8] {
        &self.registered.entries()[piece.at..piece.at + piece.len]
    }

    fn live(&self) -> impl Iterator<Item = (&Piece, &[u8])> + Clone {
        self.pieces.iter().filter(|piece| piece.id != 0).map(|piece| (piece, self.entries(piece)))
    }

    /// A table of these pieces, which the unwinder knows. `None` without memory, or without a piece.
    fn of<'a>(dialect: Dialect, of: impl Iterator<Item = (&'a Piece, &'a [u8])> + Clone) -> Option<Table> {
        let (mut pieces, mut entries): (Vec<Piece>, Vec<u8>) = (Vec::new(), Vec::new());
        pieces.try_reserve_exact(of.clone().count()).ok()?;
        entries
            .try_reserve_exact(of.clone().map(|(_, bytes)| bytes.len()).sum::<usize>() + unwinder::END.len())
            .ok()?;
        for (piece, bytes) in of {
            pieces.push(Piece { at: entries.len(), len: bytes.len(), ..*piece });
            entries.extend_from_slice(bytes);
        }
        if pieces.is_empty() {
            return None;
        }
        let fdes = if dialect == Dialect::Each { absolute::fdes(&entries).collect() } else { Vec::new() };
        Some(Table { pieces, registered: unwinder::register(dialect, entries, fdes)?, dead: 0, parts: Vec::new() })
    }
}

impl Table {
    /// A node of libgcc's tree separates addresses where code once began. Up to version 14.2 it finds no code from there on in code
    /// that lies on both sides (gcc bug 119151). Then the rest of the code gets another table.
    fn reach_the_end(&mut self, addr: u64, end: u64) -> Option<()> {
        let mut from = addr;
        while unwinder::find(end - 1).is_none() && unwinder::find(from).is_some() {
            // The first address that is not found.
            let (mut low, mut high) = (from, end - 1);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                *if unwinder::find(middle).is_some() { &mut low } else { &mut high } = middle;
            }
            from = high;
            let all = Unwind::EhFrame { bytes: self.entries(&self.pieces[0]), addr: 0 };
            let tables = cfi::encode(NATIVE?, &all, from, end - from).ok()??;
            let mut entries = Vec::new();
            absolute::append(&tables.bytes[..tables.eh_frame_size()], (from, end - from), &mut entries)?;
            self.parts.try_reserve(1).ok()?;
            self.parts.push(unwinder::register(Dialect::Tree, entries, Vec::new())?);
        }
        Some(())
    }
}

impl Tables {
    pub fn new(dialect: Dialect) -> Tables {
        Tables { dialect, tables: BTreeMap::new(), places: BTreeMap::new(), live: BTreeMap::new() }
    }

    /// Takes note of code with its entries, as they are laid out to follow it; there may be none. This id is no longer where it was,
    /// and no other code lies there. Without memory the code has no table.
    pub fn add(&mut self, id: u64, place: (u64, u64), eh_frame: &[u8]) {
        let mut entries = Vec::new();
        let has_any = absolute::append(eh_frame, place, &mut entries);
        self.remove(id);
        self.insert(id, place, if has_any.is_some() { &entries } else { &[] });
    }

    /// Code is at another place now.
    pub fn moved(&mut self, id: u64, place: (u64, u64)) {
        let mut entries = Vec::new();
        if let Some((piece, table)) = self.find(id) {
            let old = table.entries(&table.pieces[piece]);
            if entries.try_reserve_exact(old.len()).is_ok() {
                entries.extend_from_slice(old);
                absolute::shift(&mut entries, place.0.wrapping_sub(table.pieces[piece].addr));
            }
        }
        self.remove(id);
        self.insert(id, place, &entries);
    }

    /// Code has ended.
    pub fn remove(&mut self, id: u64) {
        let Some(start) = self.find(id).map(|(_, table)| table.start()) else { return };
        let Some(addr) = self.places.remove(&id) else { return };
        self.live.remove(&addr);
        let Some(table) = self.tables.get_mut(&start) else { return };
        table.dead += 1;
        if table.dead == table.pieces.len() {
            self.tables.remove(&start);
            return;
        }
        if let Some(piece) = table.pieces.iter_mut().rfind(|piece| piece.id == id) {
            piece.id = 0;
            let entries = piece.at..piece.at + piece.len;
            let fdes: Vec<usize> = absolute::fdes(&table.registered.entries()[entries.clone()]).collect();
            fdes.iter().for_each(|fde| table.registered.clear(entries.start + fde + absolute::FDE_SIZE));
        }
        if table.dead > table.pieces.len() / 2 {
            self.renew(start);
        }
    }

    /// Whether this code is known.
    pub fn has(&self, id: u64, (addr, size): (u64, u64)) -> bool {
        self.live.get(&addr) == Some(&(addr + size, id))
    }

    /// How many tables the unwinder searches.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// The table of code, and which piece it is there.
    fn find(&self, id: u64) -> Option<(usize, &Table)> {
        let addr = *self.places.get(&id)?;
        let (_, table) = self.tables.range(..=addr).next_back()?;
        let after = table.pieces.partition_point(|piece| piece.addr <= addr);
        // Dead code may begin there too.
        let piece = table.pieces[..after].iter().rposition(|piece| piece.id == id)?;
        Some((piece, table))
    }

    fn insert(&mut self, id: u64, (addr, size): (u64, u64), entries: &[u8]) {
        let Some(end) = addr.checked_add(size) else { return };
        while let Some((_, &(_, other))) = self.live.range(..end).next_back().filter(|(_, (end, _))| *end > addr) {
            self.remove(other);
        }
        if entries.is_empty() {
            return;
        }
        let is_list = self.dialect == Dialect::List;
        if is_list {
            self.part(addr, end);
        }
        let piece = Piece { id, addr, size, at: 0, len: entries.len() };
        let Some(mut table) = Table::of(self.dialect, std::iter::once((&piece, entries))) else { return };
        if self.dialect == Dialect::Tree {
            table.reach_the_end(addr, end);
        }
        self.tables.insert(addr, table);
        self.places.insert(id, addr);
        self.live.insert(addr, (end, id));
        while is_list && self.tables.len() > TABLES + 2 * self.live.len() / PIECES_MAX && self.merge().is_some() {}
    }

    /// Sees to it that no table reaches from one side of a range to the other, or into it. No code lives there.
    fn part(&mut self, from: u64, to: u64) {
        while let Some((&start, table)) = self.tables.range(..to).next_back().filter(|(_, table)| table.end() > from) {
            let parts = [
                Table::of(self.dialect, table.live().filter(|(piece, _)| piece.addr < from)),
                Table::of(self.dialect, table.live().filter(|(piece, _)| piece.addr >= to)),
            ];
            self.replace(&[start], parts);
        }
    }

    /// Makes a table again without what has ended.
    fn renew(&mut self, start: u64) {
        let Some(fresh) = self.tables.get(&start).and_then(|table| Table::of(self.dialect, table.live())) else {
            return;
        };
        self.replace(&[start], [Some(fresh)]);
    }

    /// Makes one of the two smallest neighbours.
    fn merge(&mut self) -> Option<()> {
        let sum = |(low, high): &(&Table, &Table)| low.pieces.len() + high.pieces.len();
        let pairs = self.tables.values().zip(self.tables.values().skip(1));
        let near = pairs.filter(|pair| pair.1.start() - pair.0.end() <= GAP && sum(pair) <= PIECES_MAX);
        let (low, high) = near.min_by_key(sum)?;
        let starts = [low.start(), high.start()];
        let table = Table::of(self.dialect, low.live().chain(high.live()))?;
        self.replace(&starts, [Some(table)]);
        Some(())
    }

    /// The unwinder knows the new tables already, and forgets the old ones, which say the same of code that lives.
    fn replace<const N: usize>(&mut self, starts: &[u64], tables: [Option<Table>; N]) {
        let old: Vec<_> = starts.iter().map(|start| self.tables.remove(start)).collect();
        self.tables.extend(tables.into_iter().flatten().map(|table| (table.start(), table)));
        drop(old);
    }
}
