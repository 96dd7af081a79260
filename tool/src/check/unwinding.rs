//! Checks unwind tables. The tables are laid out as in the object that perf makes for a LOAD, and decoded as by an unwinder.

use std::borrow::Cow;
use std::collections::HashMap;

use jitsym::format::jitdump::raw::RawUnwinding;

use super::frames::{self, Rows};
use super::rules::{self, Rule};
use super::{Finding, Place, Report};
use crate::tables::{readable, terminator, TableReader, Target, CODE};

/// The first bytes of `.eh_frame_hdr`: version and encodings, in the only form that producers use.
const HDR_START: [u8; 4] = [0x01, 0x1b, 0x03, 0x3b];

/// Unwind tables and the LOAD after them.
pub(super) struct Tables<'a> {
    /// The offset of the record with the tables.
    pub offset: usize,
    /// The name in the LOAD.
    pub name: &'a str,
    pub unwinding: &'a RawUnwinding<'a>,
    pub size: u64,
    pub target: Target,
    /// The part of the code that the file contains.
    pub code: &'a [u8],
}

impl Tables<'_> {
    pub fn check(&self, report: &mut dyn Report) {
        let mut found = |rule: &'static Rule, text: String| {
            let (place, subject) = (Place::Offset(self.offset as u64), format!("UNWINDING_INFO of \"{}\"", self.name));
            report.finding(Finding { rule, place, subject, text });
        };
        let RawUnwinding { size, hdr_size, mapped_size, tail } = *self.unwinding;
        let Some((eh_frame, hdr)) = self.unwinding.tables() else {
            let there = tail.len();
            found(
                &rules::UNWIND_SIZE,
                format!("unwinding_size is {size}, eh_frame_hdr_size {hdr_size}, and {there} bytes are there"),
            );
            return;
        };
        if (tail.len() as u64) > size {
            found(&rules::UNWIND_PADDING, format!("{} bytes are behind the tables", tail.len() as u64 - size));
        }
        if hdr_size == 0 {
            found(&rules::UNWIND_HDR_ZERO, "eh_frame_hdr_size is 0".into());
        }
        if mapped_size != 0 && mapped_size < size {
            found(&rules::UNWIND_MAPPED_SHORT, format!("mapped_size is {mapped_size}, unwinding_size {size}"));
        }
        if eh_frame.starts_with(&HDR_START) && !hdr.starts_with(&HDR_START) {
            found(&rules::UNWIND_ORDER, "the tables begin with the first bytes of an .eh_frame_hdr".into());
            return;
        }
        if eh_frame.is_empty() {
            found(&rules::UNWIND_EMPTY, ".eh_frame is empty".into());
            return;
        }
        if eh_frame.len() % 4 != 0 {
            found(&rules::UNWIND_LENGTH, format!(".eh_frame has {} bytes", eh_frame.len()));
        }
        match terminator(eh_frame, self.target) {
            Some(at) if at + 4 < eh_frame.len() => {
                let text = format!("it ends at {at}, and has {} bytes", eh_frame.len());
                found(&rules::UNWIND_BEHIND_TERMINATOR, text);
            }
            Some(_) => {}
            None => found(&rules::UNWIND_NO_TERMINATOR, format!("none of its {} bytes ends it", eh_frame.len())),
        }
        // Larger code does not fit into the object that is examined here, and was already reported.
        if self.size > i32::MAX as u64 {
            return;
        }
        let bytes = readable(eh_frame, self.target);
        if matches!(bytes, Cow::Owned(_)) {
            found(&rules::UNWIND_LSDA, "the CIE has an encoding for pointers to language-specific data, 0xff".into());
        }
        let tables = TableReader::new(self.target, &bytes, self.size);
        let (fdes, rows) = match decode(&tables, self.size) {
            Ok(decoded) => decoded,
            Err(error) => {
                found(&rules::UNWIND_CFI, error);
                return;
            }
        };
        if fdes.is_empty() {
            found(&rules::UNWIND_EMPTY, ".eh_frame has no entry for any code".into());
            return;
        }
        if mapped_size == 0 {
            found(&rules::UNWIND_NOT_MAPPED, "mapped_size is 0".into());
        }
        if let Some((rule, text)) = self.ranges(&fdes) {
            found(rule, text);
        }
        if hdr_size != 0 {
            if let Err(text) = search_table(hdr, &tables, &fdes) {
                found(&rules::UNWIND_HDR, text);
            } else if !hdr.starts_with(&HDR_START) {
                found(&rules::UNWIND_HDR_FORM, format!("it begins with {:02x?}", &hdr[..4]));
            } else if tables.header_pointer(hdr) != Some(tables.address()) {
                found(&rules::UNWIND_HDR_FORM, "it does not point to .eh_frame".into());
            }
        }
        if self.code.len() as u64 == self.size {
            let compared = frames::check(rows, self.code, self.target, &mut found);
            report.frames(compared);
        }
    }

    /// Finds entries with wrong code addresses.
    fn ranges(&self, fdes: &[Entry]) -> Option<(&'static Rule, String)> {
        let end = CODE + self.size;
        let from_code = |addr: u64| addr.wrapping_sub(CODE) as i64;
        if let Some(fde) = fdes.iter().find(|fde| fde.start < CODE || fde.start >= end) {
            let text = format!(
                "an entry begins {} bytes from the start of the code, which has {}",
                from_code(fde.start),
                self.size
            );
            return Some((&rules::UNWIND_FDE_BASE, text));
        }
        let mut sorted: Vec<(u64, u64)> =
            fdes.iter().map(|fde| (fde.start, fde.start.saturating_add(fde.len))).collect();
        sorted.sort_unstable();
        let mut covered = CODE;
        for (start, until) in sorted {
            if start > covered {
                return Some((&rules::UNWIND_FDE_RANGE, format!("no entry for offset {}", from_code(covered))));
            }
            covered = covered.max(until);
        }
        let text = format!("the entries reach to offset {}, and the code to {}", from_code(covered), self.size);
        (covered != end).then_some((&rules::UNWIND_FDE_RANGE, text))
    }
}

/// Checks the search table. The search table must find each entry by the entry's address, and the rows of the table must be
/// sorted.
fn search_table(hdr: &[u8], tables: &TableReader, fdes: &[Entry]) -> Result<(), String> {
    // perf reads the encodings of the first two fields, and assumes the encoding of the third field.
    if hdr.get(1..3) != Some(&HDR_START[1..3]) {
        return Err(format!("it begins with {:02x?}", &hdr[..hdr.len().min(4)]));
    }
    let by_start: HashMap<u64, u64> = fdes.iter().map(|fde| (fde.start, fde.at)).collect();
    let (mut count, mut before) = (0, None);
    for row in tables.search_table(hdr) {
        let (start, at) = row.ok_or_else(|| format!("it ends within row {count}"))?;
        if before.is_some_and(|before| start <= before) {
            return Err("it is not sorted".into());
        }
        before = Some(start);
        if by_start.get(&start) != Some(&at) {
            return Err(format!("row {count} does not lead to the entry for its address"));
        }
        count += 1;
    }
    if count != fdes.len() {
        return Err(format!("it has {count} rows for {} entries", fdes.len()));
    }
    Ok(())
}

/// The relevant parts of an FDE.
struct Entry {
    /// The offset in the section.
    at: u64,
    start: u64,
    len: u64,
}

/// Decodes all entries, with the rows for code of this size.
fn decode(tables: &TableReader, size: u64) -> Result<(Vec<Entry>, Rows), String> {
    let (mut entries, mut rows): (Vec<Entry>, Rows) = (Vec::new(), Rows::new(size));
    tables.each_row(&mut |fde, row| {
        let at = fde.offset() as u64;
        if entries.last().is_none_or(|last| last.at != at) {
            entries.push(Entry { at, start: fde.initial_address(), len: fde.len() });
        }
        rows.push(CODE, fde, row);
        Ok(())
    })?;
    Ok((entries, rows))
}
