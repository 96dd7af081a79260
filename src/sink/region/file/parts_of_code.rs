//! Describes code that lies only partly in a region. The rest of the code lies in another region, or in memory that is not a
//! region.
//!
//! `RegionFile` keeps this data to describe the part again after a `reset`, because the registry treats such code as code
//! outside of regions.

/// The position of a part in the whole code.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// How many bytes of the whole code lie before the part.
    pub before: u64,
    /// The size of the whole code.
    pub size: u64,
}

/// A part of a piece of code, with a copy of the code's name and info.
#[derive(Debug)]
pub struct PartOfCode {
    pub offset: u64,
    pub size: u64,
    pub of: Whole,
    pub name: Vec<u8>,
    pub info: Vec<u8>,
}
