//! Makes the `.eh_frame_hdr` of a region: the sorted table in which unwinders search for the FDE of an address.

use crate::format::cfi::HDR_ENCODINGS;

/// Number of bytes of `.eh_frame_hdr` before its table.
pub const HEAD_SIZE: usize = 12;
pub const ROW_SIZE: usize = 8;
/// Offset of the field for the number of rows.
pub const COUNT_AT: u64 = 8;

/// A row of the table. The two fields of a row are offsets, so that the row does not depend on the table's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Start of the code. In the section's table, `start` is an offset in `.text`. In the rows of one function, `start` is an
    /// offset in the function.
    pub start: u32,
    /// Offset of the FDE in `.eh_frame`.
    pub fde: u32,
}

/// The offsets of the sections in the file. All sections are below 2 GiB.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Offset of `.eh_frame_hdr`, the section that contains the table.
    pub hdr: u64,
    pub eh_frame: u64,
    pub text: u64,
}

impl Places {
    /// The bytes of `.eh_frame_hdr` before its table.
    pub fn head(&self, count: u32) -> [u8; HEAD_SIZE] {
        let mut head = [0; HEAD_SIZE];
        head[..4].copy_from_slice(&HDR_ENCODINGS);
        head[4..8].copy_from_slice(&distance(self.hdr + 4, self.eh_frame).to_ne_bytes());
        head[8..].copy_from_slice(&count.to_ne_bytes());
        head
    }

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
