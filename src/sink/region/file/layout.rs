//! Where the parts of a region lie in its file.

use std::ops::Range;

/// Each search table has this part of the room of `.eh_frame`, because an FDE has about 40 bytes and a row has 8.
pub(super) const HDR_SHARE: u64 = 4;

/// Where the parts of a region lie in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the code, a multiple of the page size. If the offset is 0, the header page lies over the first page of the
    /// text. In that case the file has no code bytes in that page.
    pub text: u64,
    /// The length of the code.
    pub text_len: u64,
    /// The maximum length of the code. The parts of the file after the code begin after this room.
    pub text_room: u64,
    /// Offset of the tables, after the text or before it, and their size; see [`RegionFile::tables_room`].
    pub tables: u64,
    pub tables_len: u64,
    /// Whether the mapping of the text is private.
    pub is_private: bool,
    /// Whether libdw may take the last page of the text for the beginning of the object above.
    pub has_object_above: bool,
}

/// Divides the room of the tables: `.eh_frame`, and the two search tables.
pub(super) fn split(begin: u64, len: u64) -> (Range<u64>, [Range<u64>; 2]) {
    let hdr = len / (HDR_SHARE + 2) / 16 * 16;
    let first = (begin + len) / 16 * 16 - 2 * hdr;
    let second = first + hdr;
    (begin..first, [first..second, second..second + hdr])
}
