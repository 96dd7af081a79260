//! `.eh_frame_hdr` of a region: the sorted table in which unwinders look for the FDE of an address.

use crate::format::cfi::HDR_ENCODINGS;

/// Size of the section before its table.
pub const HEAD_SIZE: usize = 12;
/// Size of a row of the table.
pub const ROW_SIZE: usize = 8;
/// Where in the section the number of rows is.
pub const COUNT_AT: u64 = 8;

/// A row: both as offsets, so that it does not depend on where the table lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where the code begins, from the start of `.text`; of the rows of one function, from its start.
    pub start: u32,
    /// Where its FDE is in `.eh_frame`.
    pub fde: u32,
}

/// Where the sections lie. All of it is below 2 GiB.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The section itself.
    pub hdr: u64,
    pub eh_frame: u64,
    pub text: u64,
}

impl Places {
    /// The header before the table.
    pub fn head(&self, count: u32) -> [u8; HEAD_SIZE] {
        let mut head = [0; HEAD_SIZE];
        head[..4].copy_from_slice(&HDR_ENCODINGS);
        head[4..8].copy_from_slice(&distance(self.hdr + 4, self.eh_frame).to_ne_bytes());
        head[8..].copy_from_slice(&count.to_ne_bytes());
        head
    }

    /// A row of the table.
    pub fn row(&self, row: &Row) -> [u8; ROW_SIZE] {
        let mut bytes = [0; ROW_SIZE];
        bytes[..4].copy_from_slice(&distance(self.hdr, self.text + u64::from(row.start)).to_ne_bytes());
        bytes[4..].copy_from_slice(&distance(self.hdr, self.eh_frame + u64::from(row.fde)).to_ne_bytes());
        bytes
    }
}

fn distance(from: u64, to: u64) -> i32 {
    to.wrapping_sub(from) as i32
}
