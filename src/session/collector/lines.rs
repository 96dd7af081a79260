//! Line tables of a method and of the functions that were inlined into it: each has its own in Intel's API, and here all become one.

use crate::api::code::{Inline, Line};
use crate::api::error::{Error, Result};

/// `LineNumberInfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub offset: u32,
    pub line: u32,
}

/// The lines of a method or an inlined function: in a file, from offsets on that count from the start of the code.
#[derive(Debug, Default)]
pub struct Source {
    file: Vec<u8>,
    rows: Vec<Row>,
}

impl Source {
    /// `table` counts from `begin`. The description of the API has rows that end at their offset, and the first one begins where the
    /// code does. LLVM and others hand over rows that begin there, the first of them at 0, where none can end.
    pub fn new(table: &[Row], begin: u32, end: u32, file: &[u8]) -> Result<Source> {
        let mut source = Source::default();
        if file.is_empty() || table.is_empty() {
            return Ok(source);
        }
        let mut sorted: Vec<Row> = Vec::new();
        sorted.try_reserve_exact(table.len()).map_err(|_| Error::NoMemory)?;
        sorted.extend_from_slice(table);
        // Of several rows at one place the first counts.
        sorted.sort_by_key(|row| row.offset);
        sorted.dedup_by_key(|row| row.offset);
        if sorted[0].offset != 0 {
            let mut start = 0;
            for row in &mut sorted {
                start = std::mem::replace(&mut row.offset, start);
            }
        }
        for row in &mut sorted {
            row.offset = row.offset.saturating_add(begin);
        }
        // Line 0 stands for no line.
        sorted.retain(|row| row.line != 0 && row.offset < end);
        (source.file, source.rows) = (file.to_vec(), sorted);
        Ok(source)
    }

    /// The row of a place.
    fn at(&self, offset: u32) -> Option<Line<'_>> {
        let after = self.rows.partition_point(|row| row.offset <= offset);
        let row = self.rows.get(after.checked_sub(1)?)?;
        Some(Line { offset, line: row.line, column: 0, file: &self.file })
    }
}

/// A function that was inlined, with the range of it in the code.
#[derive(Debug)]
pub struct Inlined {
    pub id: u32,
    pub parent: u32,
    pub begin: u32,
    pub end: u32,
    pub name: Vec<u8>,
    pub source: Source,
}

/// One table for code of this size: each place has the line of the innermost function that has lines.
pub fn merged<'a>(size: u32, method: &'a Source, inlined: &'a [Inlined]) -> Result<Vec<Line<'a>>> {
    let mut places: Vec<u32> = Vec::new();
    let sources = || inlined.iter().map(|inlined| &inlined.source).chain([method]);
    let count: usize = sources().map(|source| source.rows.len()).sum();
    places.try_reserve(count + 2 * inlined.len()).map_err(|_| Error::NoMemory)?;
    places.extend(sources().flat_map(|source| source.rows.iter().map(|row| row.offset)));
    places.extend(inlined.iter().flat_map(|inlined| [inlined.begin, inlined.end]));
    places.retain(|&place| place < size);
    places.sort_unstable();
    places.dedup();
    let mut rows: Vec<Line<'_>> = Vec::new();
    rows.try_reserve(places.len()).map_err(|_| Error::NoMemory)?;
    for place in places {
        let within = inlined.iter().filter(|inlined| (inlined.begin..inlined.end).contains(&place));
        let row = within
            .filter_map(|inlined| Some((inlined.end - inlined.begin, inlined.source.at(place)?)))
            .min_by_key(|(len, _)| *len)
            .map(|(_, row)| row)
            .or_else(|| method.at(place));
        let is_new = |row: &Line<'_>| rows.last().is_none_or(|last| (last.line, last.file) != (row.line, row.file));
        rows.extend(row.filter(is_new));
    }
    Ok(rows)
}

/// The inlined functions whose callers have been told of, and whose calls have a line. Each comes after the one that it is in.
/// `method`: the number of the method that all of them are in.
pub fn placed<'a>(method: u32, source: &'a Source, inlined: &'a [Inlined]) -> Vec<Inline<'a>> {
    let mut placed: Vec<Inline<'a>> = Vec::new();
    let mut of: Vec<&Inlined> = Vec::new();
    loop {
        let before = placed.len();
        for entry in inlined {
            if of.iter().any(|known| std::ptr::eq(*known, entry)) {
                continue;
            }
            let is_around = |known: &&Inlined| known.begin <= entry.begin && entry.end <= known.end;
            let parent = of.iter().position(|known| known.id == entry.parent && is_around(known));
            let call = match parent {
                Some(parent) => of[parent].source.at(entry.begin),
                None if entry.parent == method => source.at(entry.begin),
                None => None,
            };
            let Some(Line { line: call_line, file: call_file, .. }) = call else { continue };
            let (begin, end, name) = (entry.begin, entry.end, &*entry.name);
            let parent = parent.map(|parent| parent as u32);
            placed.push(Inline { begin, end, name, call_file, call_line, call_column: 0, parent });
            of.push(entry);
        }
        if placed.len() == before {
            return placed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::random::{Random, Seed};

    fn source(rows: &[(u32, u32)], begin: u32, end: u32) -> Source {
        let rows: Vec<Row> = rows.iter().map(|&(offset, line)| Row { offset, line }).collect();
        Source::new(&rows, begin, end, b"file").unwrap()
    }

    fn lines(source: &Source, places: impl IntoIterator<Item = u32>) -> Vec<u32> {
        places.into_iter().map(|place| source.at(place).map_or(0, |row| row.line)).collect()
    }

    #[test]
    fn rows_begin_or_end_at_their_offset() {
        // The example of the API's description.
        let ends = source(&[(1, 2), (12, 4), (15, 2), (18, 1), (21, 30)], 0, 21);
        assert_eq!(lines(&ends, [0, 1, 11, 12, 14, 15, 17, 18, 20]), [2, 4, 4, 2, 2, 1, 1, 30, 30]);
        let begins = source(&[(0, 7), (12, 4), (12, 5), (15, 0), (3, 9)], 0, 21);
        assert_eq!(lines(&begins, [0, 2, 3, 11, 12, 20]), [7, 7, 9, 9, 4, 4]);
        let inlined = source(&[(0, 7), (4, 8)], 100, 110);
        assert_eq!(lines(&inlined, [99, 100, 103, 104]), [0, 7, 7, 8]);
        assert!(Source::new(&[Row { offset: 0, line: 1 }], 0, 9, b"").unwrap().rows.is_empty());
    }

    #[test]
    fn functions_within_functions_at_random() {
        let seed = Seed::new();
        let mut random = Random(seed.0);
        for _ in 0..200 {
            let size = 1 + random.below(60) as u32;
            let table = |random: &mut Random, begin: u32, end: u32| {
                let rows: Vec<(u32, u32)> =
                    (0..random.below(4)).map(|at| (at as u32 * 3, 1 + random.below(100) as u32)).collect();
                source(&rows, begin, end)
            };
            let method = table(&mut random, 0, size);
            // Each in the one before, or in the method.
            let (mut inlined, mut order): (Vec<Inlined>, Vec<u32>) = (Vec::new(), Vec::new());
            let mut around = (1000, 0, size);
            for id in 1..random.below(6) as u32 {
                let begin = around.1 + random.below(u64::from(around.2 - around.1)) as u32;
                let end = begin + 1 + random.below(u64::from(around.2 - begin)) as u32;
                if (begin, end) == (around.1, around.2) {
                    continue;
                }
                let source = table(&mut random, begin, end);
                inlined.push(Inlined { id, parent: around.0, begin, end, name: id.to_string().into(), source });
                order.push(id);
                around = (id, begin, end);
                if end - begin < 2 {
                    break;
                }
            }
            // Events come in any order.
            for at in 1..inlined.len() {
                inlined.swap(at, random.below(at as u64 + 1) as usize);
            }
            let rows = merged(size, &method, &inlined).unwrap();
            for place in 0..size {
                let innermost = inlined
                    .iter()
                    .filter(|one| (one.begin..one.end).contains(&place))
                    .filter(|one| one.source.at(place).is_some())
                    .min_by_key(|one| one.end - one.begin);
                let expected = innermost.map_or(&method, |one| &one.source).at(place).map(|row| row.line);
                let found = rows.iter().rev().find(|row| row.offset <= place).map(|row| row.line);
                assert!(expected.is_none() || found == expected, "{place}: {found:?}, {expected:?}");
            }
            for (at, one) in placed(1000, &method, &inlined).iter().enumerate() {
                assert!(one.parent.is_none_or(|parent| (parent as usize) < at) && one.call_line > 0);
            }
        }
    }
}
