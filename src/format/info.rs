//! What is known of code beside its place, its name and its bytes: inlined functions, lines and unwind tables.
//!
//! The bytes are those records that a jitdump has before the LOAD of the code, and before them one of inlined functions
//! (`jitdump::inlines`). Only this file and the jitdump know that.

use super::jitdump::raw::{RawRecord, RawRecords};
use super::jitdump::{frame_load, id, LOAD_FIXED_SIZE};

/// See the module's description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info<'a>(&'a [u8]);

/// The parts, as far as there are any.
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

    /// That of code with this name. `group`: what the jitdump has of the code, up to its bytes.
    pub fn of_group(group: &'a [u8], name: &[u8]) -> Info<'a> {
        Info(&group[..group.len().saturating_sub(LOAD_FIXED_SIZE + name.len() + 1)])
    }

    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// A frame load is none of the parts.
    pub fn parts(self) -> Parts<'a> {
        let mut parts = Parts::default();
        for record in RawRecords::from(self.0, frame_load::len(self.0)) {
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
    /// `None` if there are no unwind tables, or if they make no sense.
    pub fn eh_frame(&self) -> Option<&'a [u8]> {
        Some(self.tables?.unwinding_info()?.tables()?.0)
    }
}

/// Takes the frame load out of the bytes of an `Info`, for code that goes on at another place. Returns the size of the unwind tables
/// then, 0 if they made no sense; `None` if there is no frame load.
pub fn remove_frame_load(info: &mut Vec<u8>) -> Option<u32> {
    if frame_load::len(info) == 0 {
        return None;
    }
    let left = frame_load::remove(info);
    if left.is_none() {
        info.clear();
    }
    Some(left.map_or(0, |len| len as u32))
}
