//! Checks a line table against the code that it belongs to.

use jitsym::format::jitdump::raw::{RawDebug, RawEntry};

use super::rules::{self, Rule};
use super::{Finding, Place, Report};
use crate::text::{has_control, shortened};

/// The number that V8 and LLVM add to each address.
const BIAS: u64 = 0x40;

/// A line table and the LOAD after it.
pub(super) struct Lines<'a> {
    /// The offset of the record with the table.
    pub offset: usize,
    /// The name in the LOAD.
    pub name: &'a str,
    pub debug: &'a RawDebug<'a>,
    /// The address of the code.
    pub addr: u64,
    pub size: u64,
    /// Whether all addresses may be too high, because nothing in the file excludes this.
    pub may_be_biased: bool,
}

impl Lines<'_> {
    /// Checks the table. Returns whether an entry is so close to the start of the code that the addresses cannot be too high.
    pub fn check(&self, report: &mut dyn Report) -> bool {
        let mut found = |rule: &'static Rule, text: String| {
            let (place, subject) = (Place::Offset(self.offset as u64), format!("DEBUG_INFO of \"{}\"", self.name));
            report.finding(Finding { rule, place, subject, text });
        };
        if self.debug.addr != self.addr {
            found(&rules::DEBUG_ADDRESS, format!("code_addr is {:#x}, not {:#x}", self.debug.addr, self.addr));
        }
        let mut all = self.debug.entries();
        let (count, last) = all.by_ref().fold((0u64, None), |(count, _), entry| (count + 1, Some(entry)));
        if all.rest().0 != 0 {
            found(&rules::DEBUG_TORN, format!("nr_entry is {}, and {count} are there", self.debug.count));
        }
        let Some(last) = last else {
            if self.debug.count == 0 {
                found(&rules::DEBUG_EMPTY, "nr_entry is 0".into());
            }
            return false;
        };

        let end = self.addr.saturating_add(self.size);
        let (low, high) = self.bounds();
        let start = self.addr.saturating_add(BIAS);
        let within = low >= start && high <= end.saturating_add(BIAS);
        let biased = within && (high > end || (low == start && self.may_be_biased));
        let bias = if biased { BIAS } else { 0 };
        if biased {
            let first = self.debug.entries().next().map_or(0, |entry| entry.addr);
            found(&rules::DEBUG_BIAS, format!("the first entry is for {first:#x}, the code for {:#x}", self.addr));
        }
        if last.addr != end.saturating_add(bias) {
            found(&rules::DEBUG_NO_END, format!("the last entry is for {:#x}, the code ends at {end:#x}", last.addr));
        }
        // For each problem, only the first entry is reported.
        let (mut outside, mut unsorted) = (Once::default(), Once::default());
        let (mut zero, mut same, mut empty, mut not_utf8, mut control, mut relative) =
            (Once::default(), Once::default(), Once::default(), Once::default(), Once::default(), Once::default());
        let mut before = 0;
        for (number, entry) in self.debug.entries().enumerate() {
            let RawEntry { addr, line, file, .. } = entry;
            outside.note(!(self.addr..=end).contains(&addr) && !biased, number, &entry);
            unsorted.note(addr < before, number, &entry);
            before = addr;
            zero.note(line == 0, number, &entry);
            same.note(file == b"\xff", number, &entry);
            empty.note(file.is_empty(), number, &entry);
            not_utf8.note(file != b"\xff" && std::str::from_utf8(file).is_err(), number, &entry);
            control.note(has_control(file), number, &entry);
            // Some producers write a word in brackets, or `node:fs`, in place of a path.
            let is_path = !file.contains(&b':') && file.first().is_some_and(|first| !b"<[(\xff".contains(first));
            relative.note(is_path && file[0] != b'/', number, &entry);
        }
        for (rule, once) in [
            (&rules::DEBUG_OUTSIDE, outside),
            (&rules::DEBUG_UNSORTED, unsorted),
            (&rules::DEBUG_LINE_ZERO, zero),
            (&rules::DEBUG_SAME_FILE, same),
            (&rules::DEBUG_FILE_EMPTY, empty),
            (&rules::DEBUG_FILE_NOT_UTF8, not_utf8),
            (&rules::DEBUG_FILE_CONTROL, control),
            (&rules::DEBUG_FILE_RELATIVE, relative),
        ] {
            if let Some((number, text)) = once.first {
                let more = if once.count > 1 { format!(", and {} more", once.count - 1) } else { String::new() };
                found(rule, format!("entry {number}: {text}{more}"));
            }
        }
        (self.addr..start).contains(&low)
    }

    /// The lowest and the highest address in the table.
    fn bounds(&self) -> (u64, u64) {
        self.debug.entries().fold((u64::MAX, 0), |(low, high), entry| (low.min(entry.addr), high.max(entry.addr)))
    }
}

/// The first entry with a problem, and the number of such entries.
#[derive(Default)]
struct Once {
    count: u64,
    first: Option<(usize, String)>,
}

impl Once {
    fn note(&mut self, is: bool, number: usize, entry: &RawEntry) {
        if is {
            self.count += 1;
            self.first
                .get_or_insert_with(|| (number, format!("{:#x} {}:{}", entry.addr, shortened(entry.file), entry.line)));
        }
    }
}
