//! Describes where the parts of a region lie in the region's file.

use std::ops::Range;

/// The room of each search table is the room of `.eh_frame` divided by this number. The ratio fits because an FDE has about 40
/// bytes, and a row of a search table has 8 bytes.
pub(super) const HDR_SHARE: u64 = 4;

/// The offsets and the lengths of a region's parts in the region's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The offset of the text, which is a multiple of the page size. If the offset is 0, the header page is also the first page
    /// of the text, and the file has no code bytes in this page.
    pub text: u64,
    pub text_len: u64,
    /// The maximum length of the text. The file has this room for the text.
    pub text_room: u64,
    /// The offset and the size of the tables, which lie after the text or before it. For the size, see
    /// [`RegionFile::tables_room`].
    pub tables: u64,
    pub tables_len: u64,
    /// Whether the mapping of the text is private.
    pub is_private: bool,
    /// Whether libdw may assume that the object right above the text already begins in the last page of the text.
    pub has_object_above: bool,
}

/// Divides the range of the tables into three ranges: the range of `.eh_frame`, and the ranges of the two search tables.
pub(super) fn split(begin: u64, len: u64) -> (Range<u64>, [Range<u64>; 2]) {
    let hdr = len / (HDR_SHARE + 2) / 16 * 16;
    let first = (begin + len) / 16 * 16 - 2 * hdr;
    let second = first + hdr;
    (begin..first, [first..second, second..second + hdr])
}
