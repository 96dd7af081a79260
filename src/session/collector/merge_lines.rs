//! Merges the line tables of a method and of its inlined functions. In Intel's API, the method and each inlined function have
//! separate line tables.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::api::code::{Inline, Line};
use crate::api::error::{Error, Result};
use crate::sys::reserve;
use crate::sys::sort::{sort, sort_by_key};

/// The struct `LineNumberInfo` of the API.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub offset: u32,
    pub line: u32,
}

/// An empty list with room for this many elements.
fn room_for<T>(count: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| Error::NoMemory)?;
    Ok(room)
}

/// A copy of a text of any length.
pub fn copy_of(text: &[u8]) -> Result<Vec<u8>> {
    reserve::copy_of(text).map_err(|_| Error::NoMemory)
}

/// The lines of a method or an inlined function: the file, and the rows. Offsets count from the start of the method's code.
#[derive(Debug, Default)]
pub struct Source {
    file: Vec<u8>,
    rows: Vec<Row>,
}

impl Source {
    /// Reads the rows of `table`, whose offsets count from `begin`. In the API's description, a row ends at its offset, and the
    /// first row begins at the start of the code. But LLVM and some other runtimes pass the start of each row as the offset of
    /// the row. If the smallest offset is 0, the offsets must be the starts of the rows, because a row that ends at 0 would be
    /// empty.
    pub fn new(table: &[Row], begin: u32, end: u32, file: &[u8]) -> Result<Source> {
        let mut source = Source::default();
        if file.is_empty() || table.is_empty() {
            return Ok(source);
        }
        let (mut order, mut sorted) = (room_for::<(u32, usize)>(table.len())?, room_for::<Row>(table.len())?);
        order.extend(table.iter().enumerate().map(|(number, row)| (row.offset, number)));
        sort(&mut order);
        // If several rows have the same offset, only the first of these rows counts.
        order.dedup_by_key(|(offset, _)| *offset);
        sorted.extend(order.iter().map(|&(_, number)| table[number]));
        if sorted[0].offset != 0 {
            let mut start = 0;
            for row in &mut sorted {
                start = std::mem::replace(&mut row.offset, start);
            }
        }
        for row in &mut sorted {
            row.offset = row.offset.saturating_add(begin);
        }
        // A row with line 0 has no source line.
        sorted.retain(|row| row.line != 0 && row.offset < end);
        (source.file, source.rows) = (copy_of(file)?, sorted);
        Ok(source)
    }

    /// The row that covers an offset.
    fn at(&self, offset: u32) -> Option<Line<'_>> {
        let after = self.rows.partition_point(|row| row.offset <= offset);
        let row = self.rows.get(after.checked_sub(1)?)?;
        Some(Line { offset, line: row.line, column: 0, file: &self.file })
    }
}

/// A function that was inlined, with its range in the code.
#[derive(Debug)]
pub struct Inlined {
    pub id: u32,
    pub parent: u32,
    pub begin: u32,
    pub end: u32,
    pub name: Vec<u8>,
    pub source: Source,
}

/// Merges the line tables of a method of `size` bytes and of its inlined functions. Each offset gets the line of the innermost
/// function that has a line for this offset.
pub fn merged<'a>(size: u32, method: &'a Source, inlined: &'a [Inlined]) -> Result<Vec<Line<'a>>> {
    let sources = || inlined.iter().map(|inlined| &inlined.source).chain([method]);
    let count: usize = sources().map(|source| source.rows.len()).sum();
    let mut places: Vec<u32> = room_for(count + 2 * inlined.len())?;
    places.extend(sources().flat_map(|source| source.rows.iter().map(|row| row.offset)));
    places.extend(inlined.iter().flat_map(|inlined| [inlined.begin, inlined.end]));
    places.retain(|&place| place < size);
    sort(&mut places);
    places.dedup();
    let mut rows: Vec<Line<'_>> = room_for(places.len())?;
    // `begins` has the offset of each function's first line, sorted by offset. `open` has the functions whose lines have begun,
    // with the shortest function first.
    let mut begins: Vec<(u32, usize)> = room_for(inlined.len())?;
    let first = |(number, inlined): (usize, &Inlined)| Some((inlined.source.rows.first()?.offset, number));
    begins.extend(inlined.iter().enumerate().filter_map(first));
    sort(&mut begins);
    let mut begins = begins.into_iter().peekable();
    let mut open = BinaryHeap::from(room_for(inlined.len())?);
    for place in places {
        while let Some((_, number)) = begins.next_if(|(begin, _)| *begin <= place) {
            open.push(Reverse((inlined[number].end - inlined[number].begin, number)));
        }
        while open.peek().is_some_and(|Reverse((_, number))| inlined[*number].end <= place) {
            open.pop();
        }
        let source = open.peek().map_or(method, |Reverse((_, number))| &inlined[*number].source);
        let is_new = |row: &Line<'_>| rows.last().is_none_or(|last| (last.line, last.file) != (row.line, row.file));
        rows.extend(source.at(place).filter(is_new));
    }
    Ok(rows)
}

/// Returns the inlined functions for which both the caller and the line of the call are known. In the returned list, each
/// function follows its caller. `method` is the number of the method that contains all these functions.
///
/// Runtimes report functions in any order. A function may have the same range as its caller. Several functions may have the
/// same `id`.
pub fn placed<'a>(method: u32, source: &'a Source, inlined: &'a [Inlined]) -> Result<Vec<Inline<'a>>> {
    let count = inlined.len();
    let (mut placed, mut open) = (room_for::<Inline<'a>>(count)?, Open::new(count)?);
    // Sorted by range, so that each function precedes the functions inside it. Functions with the same range are sorted by
    // their callers.
    let mut order: Vec<&Inlined> = room_for(count)?;
    order.extend(inlined);
    sort_by_key(&mut order, |entry| (entry.begin, Reverse(entry.end), entry.parent));
    // `same` contains functions with the same range, sorted by caller. A caller is known if the caller is the method or is
    // already in the list `placed`. For each known caller, the first function in `same` that has this caller is added to
    // `ready`. `is_done` keeps a function from being added to `ready` twice.
    let (mut ready, mut is_done) = (room_for::<usize>(count)?, room_for::<bool>(count)?);
    is_done.resize(count, false);
    let mut at = 0;
    while let Some(first) = order.get(at) {
        let rest = &order[at..];
        let len = rest.partition_point(|entry| (entry.begin, Reverse(entry.end)) <= (first.begin, Reverse(first.end)));
        let same = &rest[..len];
        for (number, entry) in same.iter().enumerate() {
            let is_first = number == 0 || same[number - 1].parent != entry.parent;
            if is_first && (entry.parent == method || open.around(entry).is_some()) {
                is_done[at + number] = true;
                ready.push(number);
            }
        }
        while let Some(first) = ready.pop() {
            let parent = open.around(same[first]);
            let caller = parent.map_or(source, |parent| &open.of[parent as usize].source);
            for entry in same[first..].iter().take_while(|entry| entry.parent == same[first].parent) {
                let Some(Line { line: call_line, file: call_file, .. }) = caller.at(entry.begin) else { continue };
                let (begin, end, name) = (entry.begin, entry.end, &*entry.name);
                placed.push(Inline { begin, end, name, call_file, call_line, call_column: 0, parent });
                open.push(entry);
                let waiting = same.partition_point(|other| other.parent < entry.id);
                if same.get(waiting).is_some_and(|other| other.parent == entry.id) && !is_done[at + waiting] {
                    is_done[at + waiting] = true;
                    ready.push(waiting);
                }
            }
        }
        at += len;
    }
    Ok(placed)
}

/// The functions that are already in the result of `placed`, ordered by their start offsets.
struct Open<'a> {
    of: Vec<&'a Inlined>,
    /// For each function in `of`, this list has the value that `last` had for the function's `id` before the function was
    /// added, or `None` if `last` had no such value.
    before: Vec<Option<u32>>,
    /// Maps each `id` to the latest function with this `id`. `around` removes functions that end at or before the start of its
    /// argument `entry`.
    last: HashMap<u32, Option<u32>>,
}

impl<'a> Open<'a> {
    fn new(count: usize) -> Result<Open<'a>> {
        let mut last = HashMap::new();
        last.try_reserve(count).map_err(|_| Error::NoMemory)?;
        Ok(Open { of: room_for(count)?, before: room_for(count)?, last })
    }

    /// The caller of an entry: the innermost function with the `id` `entry.parent` that encloses the entry.
    fn around(&mut self, entry: &Inlined) -> Option<u32> {
        let last = self.last.get_mut(&entry.parent)?;
        while let Some(number) = last.filter(|number| self.of[*number as usize].end <= entry.begin) {
            *last = self.before[number as usize];
        }
        last.filter(|number| entry.end <= self.of[*number as usize].end)
    }

    fn push(&mut self, entry: &'a Inlined) {
        let number = self.of.len() as u32;
        let before = self.last.insert(entry.id, Some(number));
        self.before.push(before.flatten());
        self.of.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::test_random::{Random, Seed};

    fn source(rows: &[(u32, u32)], begin: u32, end: u32) -> Source {
        let rows: Vec<Row> = rows.iter().map(|&(offset, line)| Row { offset, line }).collect();
        Source::new(&rows, begin, end, b"file").unwrap()
    }

    fn lines(source: &Source, places: impl IntoIterator<Item = u32>) -> Vec<u32> {
        places.into_iter().map(|place| source.at(place).map_or(0, |row| row.line)).collect()
    }

    #[test]
    fn rows_begin_or_end_at_their_offset() {
        // The example in the API's description.
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
            // Each function lies in the previous function. The first function is inlined into the method.
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
            // The runtime reports the functions in random order.
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
            for (at, one) in placed(1000, &method, &inlined).unwrap().iter().enumerate() {
                assert!(one.parent.is_none_or(|parent| (parent as usize) < at) && one.call_line > 0);
            }
        }
    }

    /// The test reports the innermost function first, and then each function's caller. The functions have either nested ranges
    /// or one common range, and either separate `id`s or one common `id`. The test covers all four combinations.
    #[test]
    fn functions_whose_callers_come_later() {
        for (is_same_place, is_same_number) in [(false, false), (true, false), (false, true), (true, true)] {
            let size = 100;
            let number = |depth: u32| if is_same_number { 7 } else { depth };
            let at = |depth: u32| if is_same_place { (0, 2 * size) } else { (depth, 2 * size - depth) };
            let method = source(&[(0, 1)], 0, 2 * size);
            let functions = (1..size).rev().map(|depth| {
                let (begin, end) = at(depth);
                let parent = if depth == 1 { 1000 } else { number(depth - 1) };
                let source = source(&[(0, 1 + depth)], begin, end);
                Inlined { id: number(depth), parent, begin, end, name: depth.to_string().into(), source }
            });
            let inlined: Vec<Inlined> = functions.collect();
            let placed = placed(1000, &method, &inlined).unwrap();
            // If all functions have the same range and the same `id`, their nesting is unknown.
            let is_known = !(is_same_place && is_same_number);
            assert_eq!(placed.len(), inlined.len());
            for (index, function) in placed.iter().enumerate().filter(|_| is_known) {
                assert_eq!(function.name, (index + 1).to_string().as_bytes());
                assert_eq!(function.parent, index.checked_sub(1).map(|parent| parent as u32));
                assert_eq!(function.call_line, index as u32 + 1);
            }
        }
    }
}
