//! Describes code that lies only partly in the region. The rest of the code lies in another region, or in memory that is no
//! region.
//!
//! The registry treats code that lies only partly in a region as code outside of regions. So `RegionFile` keeps the data to
//! describe the part again after a `reset`.

/// The position of a part in the whole code.
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
    pub offset: u64,
    pub size: u64,
    pub of: Whole,
    pub name: Vec<u8>,
    pub info: Vec<u8>,
}
