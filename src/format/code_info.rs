//! The inlined functions, lines and unwind tables of a piece of code: all its data except address, name and bytes.
//!
//! The data have the form of jitdump records: first a record of inlined functions (`jitdump::inlines`), then the records that
//! precede the code's LOAD record in a jitdump. Only this file and the jitdump module read this form.

use super::get::u32_at;
use super::jitdump::raw::{RawDebug, RawRecord, RawRecords};
use super::jitdump::{id, LOAD_FIXED_SIZE};

/// The records of one piece of code, possibly none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info<'a>(&'a [u8]);

/// The records of an `Info`; `None` for each record that is missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'a> {
    pub inlines: Option<RawRecord<'a>>,
    pub lines: Option<RawRecord<'a>>,
    pub tables: Option<RawRecord<'a>>,
}

impl<'a> Info<'a> {
    pub const NOTHING: Info<'static> = Info(&[]);

    pub fn new(bytes: &'a [u8]) -> Info<'a> {
        Info(bytes)
    }

    /// Returns the records in a jitdump group that precede its LOAD record. `group` is the group without its code bytes.
    /// `name` is the name of the code in the group.
    pub fn of_group(group: &'a [u8], name: &[u8]) -> Info<'a> {
        Info(&group[..group.len().saturating_sub(LOAD_FIXED_SIZE + name.len() + 1)])
    }

    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns only the lines. This function is faster than `parts` for code whose only record contains no lines. Most code is
    /// of this kind.
    #[inline]
    pub fn lines(self) -> Option<RawDebug<'a>> {
        let (first, size) = (u32_at(self.0, 0)?, u32_at(self.0, 4)?);
        if first != id::DEBUG_INFO && size as usize == self.0.len() {
            return None;
        }
        self.parts().lines?.debug_info()
    }

    #[inline]
    pub fn records(self) -> RawRecords<'a> {
        RawRecords::from(self.0, 0)
    }

    /// Splits the information into its records.
    pub fn parts(self) -> Parts<'a> {
        let mut parts = Parts::default();
        for record in self.records() {
            match record.id {
                id::INLINES => parts.inlines = Some(record),
                id::DEBUG_INFO => parts.lines = Some(record),
                id::UNWINDING_INFO => parts.tables = Some(record),
                _ => {}
            }
        }
        parts
    }
}

impl<'a> Parts<'a> {
    /// The `.eh_frame` section. `None` if there are no unwind tables, or if the record is invalid.
    pub fn eh_frame(&self) -> Option<&'a [u8]> {
        Some(self.tables?.unwinding_info()?.tables()?.0)
    }
}
