//! Makes and reads the project's own record for inlined functions, for the files of regions and for debuggers.
//!
//! No jitdump contains this record, because perf's format has no inlined functions. The record that samply reads in a
//! jitdump, `debug_info2`, is made from this record.
//!
//! If the region sink or the sink for debuggers may read this record, the code's group in memory begins with it. The record
//! must be removed before the group is written to a jitdump.

use super::raw::{c_string, RawRecord};
use super::record::{id, put_prefix, raw, PREFIX_SIZE};
use crate::api::code::Inline;
use crate::api::error::{Error, Result};
use crate::format::get::u32_at;
use crate::format::name;
use crate::format::put::Put;
use crate::sys::sort::sort;

/// Size of an entry before its name.
const ENTRY_FIXED_SIZE: usize = 20;

/// Checks the inlined functions of code of this size, and makes their record. The record's time stamp is 0.
pub fn record(inlines: &[Inline<'_>], code_size: u64) -> Result<Vec<u8>> {
    check(inlines, code_size)?;
    let mut record = Vec::new();
    let mut put = |bytes: &[u8]| {
        record.try_reserve(bytes.len()).map_err(|_| Error::NoMemory)?;
        record.extend_from_slice(bytes);
        Ok(())
    };
    put(&[0; PREFIX_SIZE])?;
    for inline in inlines {
        let parent = inline.parent.unwrap_or(u32::MAX);
        for word in [inline.begin, inline.end, parent, inline.call_line, inline.call_column] {
            put(&word.to_ne_bytes())?;
        }
        put(&name::lengthen(name::clean(inline.name)))?;
        put(&[0])?;
        put(inline.call_file)?;
        put(&[0])?;
    }
    // Record sizes are 32 bits wide.
    let size = u32::try_from(record.len()).map_err(|_| Error::TooLarge)?;
    put_prefix(&mut Put::new(&mut record[..PREFIX_SIZE]), 0, id::INLINES, size as usize);
    Ok(record)
}

/// Checks the inlined functions. If the functions are invalid, the error is the same as that of [`record`].
pub fn check(inlines: &[Inline<'_>], code_size: u64) -> Result<()> {
    // Parent, begin and end of each function, which the code below sorts in this order. Functions without a parent come first.
    let mut places: Vec<(Option<u32>, u32, u32)> = Vec::new();
    places.try_reserve_exact(inlines.len()).map_err(|_| Error::NoMemory)?;
    for (index, inline) in inlines.iter().enumerate() {
        let (begin, end) = match inline.parent.map(|parent| inlines.get(..index)?.get(parent as usize)) {
            None => (0, code_size),
            Some(Some(parent)) => (parent.begin.into(), parent.end.into()),
            Some(None) => return Err(Error::Inline.because("inlines[{}].parent is not before it", [index as u64])),
        };
        let is_within = u64::from(inline.begin) >= begin && u64::from(inline.end) <= end;
        let file = inline.call_file;
        if inline.begin >= inline.end || !is_within || file.is_empty() || file.contains(&0) || inline.call_line == 0 {
            let text = "inlines[{}] is [{}, {}): not within its parent, or with no file or line of its call";
            return Err(Error::Inline.because(text, [index as u64, inline.begin.into(), inline.end.into()]));
        }
        places.push((inline.parent, inline.begin, inline.end));
    }
    sort(&mut places);
    let overlap = |two: &[(Option<u32>, u32, u32)]| two[0].0 == two[1].0 && two[0].2 > two[1].1;
    if places.windows(2).any(overlap) {
        return Err(Error::Inline.because("two of the inlined functions with the same parent overlap", []));
    }
    match inlines.iter().position(|inline| name::clean(inline.name).is_empty()) {
        Some(index) => Err(Error::Inline.because("inlines[{}] has no name", [index as u64])),
        None => Ok(()),
    }
}

/// The size of the record of inlined functions at the beginning of a group, or 0 if the group begins with another record.
pub fn len(group: &[u8]) -> usize {
    let record = raw(group, 0).filter(|record| record.id == id::INLINES && record.total_size <= group.len());
    record.map_or(0, |record| record.total_size)
}

/// The entries, up to the first incomplete entry.
pub fn entries<'a>(record: &RawRecord<'a>) -> impl Iterator<Item = Inline<'a>> {
    let mut rest = record.tail(PREFIX_SIZE);
    std::iter::from_fn(move || {
        let word = |number: usize| u32_at(rest, 4 * number);
        let (begin, end, parent, call_line, call_column) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
        let name = c_string(rest.get(ENTRY_FIXED_SIZE..)?)?;
        let call_file = c_string(rest.get(ENTRY_FIXED_SIZE + name.len() + 1..)?)?;
        rest = rest.get(ENTRY_FIXED_SIZE + name.len() + call_file.len() + 2..)?;
        let parent = (parent != u32::MAX).then_some(parent);
        Some(Inline { begin, end, name, call_file, call_line, call_column, parent })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::jitdump::raw::RawRecords;

    const GOOD: Inline<'_> =
        Inline { begin: 8, end: 40, name: b"outer", call_file: b"a.js", call_line: 3, call_column: 0, parent: None };

    #[test]
    fn what_is_laid_down_is_read() {
        let all = [
            GOOD,
            Inline { begin: 8, end: 9, name: b" a\n", parent: Some(0), ..GOOD },
            Inline { begin: 40, end: 64, call_file: b"b.js", call_line: u32::MAX, call_column: 7, ..GOOD },
            Inline { begin: 9, end: 40, parent: Some(0), ..GOOD },
            Inline { begin: 9, end: 40, parent: Some(3), ..GOOD },
        ];
        let record = record(&all, 64).unwrap();
        assert_eq!((len(&record), len(&record[1..]), len(&record[..record.len() - 1])), (record.len(), 0, 0));
        let read = RawRecords::from(&record, 0).next().unwrap();
        let expected =
            all.map(|inline| if inline.name == b" a\n" { Inline { name: b"a()", ..inline } } else { inline });
        assert_eq!(entries(&read).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |all: &[Inline<'_>]| assert_eq!(record(all, 64), Err(Error::Inline), "{all:?}");
        assert!(record(&[GOOD], 40).is_ok());
        assert_eq!(record(&[GOOD], 39), Err(Error::Inline));
        let inner = Inline { begin: 10, end: 20, parent: Some(0), ..GOOD };
        for bad in [
            Inline { end: 8, ..GOOD },
            Inline { end: 7, ..GOOD },
            Inline { name: b"", ..GOOD },
            Inline { name: b" \t", ..GOOD },
            Inline { call_file: b"", ..GOOD },
            Inline { call_file: b"a\0b", ..GOOD },
            Inline { call_line: 0, ..GOOD },
            // A function that is its own parent, and a function whose parent comes later.
            inner,
            Inline { parent: Some(1), ..inner },
        ] {
            refused(&[bad, GOOD]);
        }
        for bad in [
            Inline { begin: 7, ..inner },
            Inline { end: 41, ..inner },
            Inline { parent: Some(u32::MAX - 1), ..inner },
            Inline { begin: 39, end: 64, ..GOOD },
            GOOD,
        ] {
            refused(&[GOOD, bad]);
        }
        // The record may contain two functions with adjacent ranges, and two functions with the same range but different
        // parents.
        assert!(record(
            &[GOOD, inner, Inline { begin: 20, end: 21, ..inner }, Inline { parent: Some(1), ..inner }],
            64
        )
        .is_ok());
        refused(&[GOOD, inner, Inline { begin: 19, end: 21, ..inner }]);
    }
}
