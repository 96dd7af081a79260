//! Code that lies only partly in the region. The other part lies in another region, or in memory that is no region.
//!
//! For the registry, such code lies outside of regions. So the file keeps what it needs to describe the part again after a
//! `reset`.

use super::{Code, RegionFile};
use crate::format::info::Info;
use crate::sys::reserve;

/// The place of a part in the whole code.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// How many bytes of the code lie before the part.
    pub before: u64,
    /// The size of the whole code.
    pub size: u64,
}

/// A part of some code, with a copy of the code's name and info.
#[derive(Debug)]
pub struct PartOfCode {
    pub(super) offset: u64,
    size: u64,
    of: Whole,
    name: Vec<u8>,
    info: Vec<u8>,
}

impl RegionFile {
    pub(super) fn keep_part(&mut self, code: &Code<'_>, of: Whole) -> Option<()> {
        let (name, info) = (reserve::copy_of(code.name).ok()?, reserve::copy_of(code.info.bytes()).ok()?);
        self.parts_of_code.try_reserve(1).ok()?;
        self.parts_of_code.push(PartOfCode { offset: code.offset, size: code.size, of, name, info });
        Some(())
    }

    /// Forgets all code, and then adds the code that `add` adds. The parts of code that lies only partly in the region are added
    /// again, because they are newer than all other code at their places.
    pub fn reset_to(&mut self, add: impl FnOnce(&mut RegionFile)) {
        let parts = std::mem::take(&mut self.parts_of_code);
        self.reset();
        add(self);
        for PartOfCode { offset, size, of, name, info } in parts {
            self.add_part(&Code { offset, size, name: &name, info: Info::new(&info) }, of);
        }
    }
}
