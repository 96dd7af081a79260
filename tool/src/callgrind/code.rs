//! Finds the code at an address in a jitdump or perf map. The result has several pieces of code if they had the address one
//! after the other.

use std::ops::Range;

use jitsym::format::perf_map::raw_lines;

use super::text::{Text, Texts};
use crate::objects::Loads;
use crate::text::printable;

#[derive(Clone, Debug)]
struct Piece {
    time: u64,
    start: u64,
    end: u64,
    name: Text,
    rows: Range<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    /// The offset of the row from the start of the code.
    offset: u64,
    file: Text,
    line: u32,
}

/// The code of one file.
struct Source {
    object: Text,
    /// Sorted by start, and then by time.
    pieces: Vec<Piece>,
    /// A binary tree of the highest ends: the children of node n are the nodes 2n and 2n + 1, and the leaves are the ends of
    /// the pieces.
    ends: Vec<u64>,
    rows: Vec<Row>,
}

impl Source {
    /// The pieces that contain an address. Examines only these pieces and a few others, however long some pieces are.
    fn around(&self, address: u64) -> Vec<usize> {
        let begun = self.pieces.partition_point(|piece| piece.start <= address);
        let leaves = self.ends.len() / 2;
        let (mut found, mut open) = (Vec::new(), vec![1]);
        while let Some(node) = open.pop() {
            let first = (node << (leaves.ilog2() - usize::ilog2(node))) - leaves;
            if first >= begun || self.ends[node] <= address {
                continue;
            }
            if node >= leaves {
                found.push(first);
            } else {
                open.extend([2 * node, 2 * node + 1]);
            }
        }
        found
    }
}

/// The code of a process. If several files have code at an address, the first file is used.
#[derive(Default)]
pub struct Code {
    sources: Vec<Source>,
}

/// The code at an address: one or several pieces, the last piece first.
#[derive(Clone, Debug)]
pub struct Found {
    source: usize,
    pieces: Vec<usize>,
    /// All pieces have the same name.
    pub is_one: bool,
}

impl Code {
    pub fn is_empty(&self) -> bool {
        self.sources.iter().all(|source| source.pieces.is_empty())
    }

    /// Adds the code in a perf map. In the output, the code is a part of the object `object`.
    pub fn add_map(&mut self, map: &[u8], object: Text, texts: &mut Texts) {
        let mut pieces = Vec::new();
        for (time, line) in raw_lines(map).enumerate() {
            let Some(fields) = line.fields().filter(|fields| !fields.name.is_empty()) else { continue };
            let name = texts.add(printable(fields.name).to_string().trim_end().as_bytes());
            let end = fields.start.saturating_add(fields.size);
            pieces.push(Piece { time: time as u64, start: fields.start, end, name, rows: 0..0 });
        }
        self.add(object, pieces, Vec::new());
    }

    /// Adds the code in a jitdump. Returns false if the file is not a jitdump.
    pub fn add_jitdump(&mut self, dump: &[u8], object: Text, texts: &mut Texts) -> bool {
        let (mut loads, mut pieces, mut rows) = (Loads::new(), Vec::new(), Vec::new());
        if !loads.add_jitdump(dump) {
            return false;
        }
        for load in &loads.all {
            let first = rows.len();
            for (offset, entry) in load.rows() {
                let file = texts.add(printable(entry.file).to_string().as_bytes());
                rows.push(Row { offset, file, line: entry.line });
            }
            rows[first..].sort_by_key(|row| row.offset);
            let name = if load.name.is_empty() { b"without a name" } else { load.name };
            let name = texts.add(printable(name).to_string().as_bytes());
            let (start, end) = (load.addr, load.addr.saturating_add(load.size));
            pieces.push(Piece { time: load.time, start, end, name, rows: first..rows.len() });
        }
        self.add(object, pieces, rows);
        true
    }

    fn add(&mut self, object: Text, mut pieces: Vec<Piece>, rows: Vec<Row>) {
        pieces.sort_by_key(|piece| (piece.start, piece.time));
        let leaves = pieces.len().next_power_of_two();
        let mut ends = vec![0; leaves];
        ends.extend(pieces.iter().map(|piece| piece.end));
        ends.resize(2 * leaves, 0);
        for node in (1..leaves).rev() {
            ends[node] = ends[2 * node].max(ends[2 * node + 1]);
        }
        self.sources.push(Source { object, pieces, ends, rows });
    }

    pub fn at(&self, address: u64) -> Option<Found> {
        self.sources.iter().enumerate().find_map(|(source, code)| {
            let mut pieces = code.around(address);
            pieces.sort_by_key(|&number| std::cmp::Reverse(code.pieces[number].time));
            let name = code.pieces[*pieces.first()?].name;
            let is_one = pieces.iter().all(|&number| code.pieces[number].name == name);
            Some(Found { source, pieces, is_one })
        })
    }

    /// The code that was entered at an address: the code that begins there, or otherwise the code that contains the address.
    pub fn entered(&self, address: u64) -> Option<Found> {
        let mut found = self.at(address)?;
        let pieces = &self.sources[found.source].pieces;
        if found.pieces.iter().any(|&number| pieces[number].start == address) {
            found.pieces.retain(|&number| pieces[number].start == address);
            found.is_one = found.pieces.iter().all(|&number| pieces[number].name == pieces[found.pieces[0]].name);
        }
        Some(found)
    }

    pub fn object(&self, found: &Found) -> Text {
        self.sources[found.source].object
    }

    /// The names of the pieces, the last piece first, each name only once.
    pub fn names(&self, found: &Found) -> Vec<Text> {
        let mut names = Vec::new();
        for &number in &found.pieces {
            let name = self.sources[found.source].pieces[number].name;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    pub fn has(&self, found: &Found, address: u64) -> bool {
        self.piece(found, address).is_some()
    }

    fn piece(&self, found: &Found, address: u64) -> Option<&Piece> {
        let pieces = found.pieces.iter().map(|&number| &self.sources[found.source].pieces[number]);
        pieces.into_iter().find(|piece| (piece.start..piece.end).contains(&address))
    }

    /// The file in which the code begins, if only one piece of code is possible.
    pub fn file(&self, found: &Found) -> Option<Text> {
        let code = &self.sources[found.source];
        let first = code.rows.get(code.pieces[*found.pieces.first()?].rows.clone())?.first()?;
        found.is_one.then_some(first.file)
    }

    /// The file and line of an address, if only one piece of code is possible.
    pub fn line(&self, found: &Found, address: u64) -> Option<(Text, u64)> {
        let piece = self.piece(found, address).filter(|_| found.is_one)?;
        let rows = self.sources[found.source].rows.get(piece.rows.clone())?;
        let after = rows.partition_point(|row| row.offset <= address - piece.start);
        rows.get(after.checked_sub(1)?).map(|row| (row.file, row.line.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exactly the pieces that contain an address are found, even if pieces overlap.
    #[test]
    fn pieces_around_an_address() {
        for count in 0..70 {
            let (mut texts, mut code) = (Texts::default(), Code::default());
            let name = texts.add(b"name");
            // Some pieces are long, some are empty, and several have the same start.
            let piece = |number: u64| {
                let start = number * number * 7 % 97;
                let len = if number.is_multiple_of(9) { 60 } else { number * 5 % 11 };
                Piece { time: number, start, end: start + len, name, rows: 0..0 }
            };
            code.add(name, (0..count).map(piece).collect(), Vec::new());
            let source = &code.sources[0];
            for address in 0..170 {
                let mut found = source.around(address);
                found.sort_unstable();
                let is_around = |&number: &usize| {
                    let piece = &source.pieces[number];
                    (piece.start..piece.end).contains(&address)
                };
                assert_eq!(found, (0..source.pieces.len()).filter(is_around).collect::<Vec<_>>(), "{count} {address}");
            }
        }
    }
}
