//! Where the parts of a region lie in its file.

use std::ops::Range;

/// Each search table has this part of the room that `.eh_frame` has: an FDE has about 40 bytes, a row 8.
pub(super) const HDR_SHARE: u64 = 4;

/// Where the parts of a region lie in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the code, a multiple of the page size. With 0 the header page lies where the first code would: then nothing of
    /// that page is the code's.
    pub text: u64,
    /// How long the code is.
    pub text_len: u64,
    /// How long it may become: the parts after it begin after that room.
    pub text_room: u64,
    /// Offset of the tables, after the text or before it, and their size; see [`RegionFile::tables_room`].
    pub tables: u64,
    pub tables_len: u64,
    /// The mapping of the text is private.
    pub is_private: bool,
    /// For libdw the object of the memory above may begin in the last page of the text.
    pub has_object_above: bool,
}

/// The room for `.eh_frame`, and for each of the two search tables.
pub(super) fn split(begin: u64, len: u64) -> Option<(Range<u64>, [Range<u64>; 2])> {
    let hdr = len / (HDR_SHARE + 2) / 16 * 16;
    let first = begin.checked_add(len)? / 16 * 16 - 2 * hdr;
    let second = first + hdr;
    // Both slots with at least one row.
    (hdr >= 32).then_some((begin..first, [first..second, second..second + hdr]))
}
