//! Makes the `.eh_frame` of a region from the entries that `format/cfi` has made for each piece of code. The pointers of the
//! entries are adapted to the file. Equal CIEs are written once.
//!
//! The section only grows at its end. If the section ended with a zero word, the next entry would overwrite this word while
//! other programs read the section. So the section has no zero word at its end, and only the section header states the size of
//! the section.

use super::eh_frame_hdr::Row;
use crate::format::cfi::absolute::each_entry;
use crate::format::cfi::debug_frame::CIES_MAX;
use crate::sys::reserve;

/// Offset of the distance to the code in an FDE. The distance begins at this field.
pub const FDE_BEGIN: u64 = 8;
/// Offset of the code's size in an FDE. An FDE with size 0 covers no code.
pub const FDE_RANGE: u64 = 12;

/// The CIEs in a section: the bytes and the offset of each CIE.
#[derive(Debug, Default)]
pub struct Frames {
    cies: Vec<(Vec<u8>, u32)>,
}

/// The code that the new entries describe, and the offset of the new entries in the section.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub code_size: u64,
    /// Distance from the start of the section to the code.
    pub code: i64,
    /// Size of the section so far.
    pub at: u64,
    /// The maximum size of the section.
    pub room: u64,
}

impl Frames {
    /// Appends the entries of an `.eh_frame` to `out`, and their rows for the search table to `rows`. The `.eh_frame` must have
    /// been made for the address of the code plus `to.code_size`, with `to.code_size` rounded up to a multiple of 8. Entries
    /// for other code are skipped. Returns `None` and changes nothing if there is no room or no memory, or if a distance does
    /// not fit.
    pub fn append(&mut self, section: &[u8], to: &Target, out: &mut Vec<u8>, rows: &mut Vec<Row>) -> Option<()> {
        let (out_len, rows_len) = (out.len(), rows.len());
        let done = self.try_to_append(section, to, out, rows, out_len);
        if done.is_none() {
            out.truncate(out_len);
            rows.truncate(rows_len);
            self.cies.retain(|&(_, at)| u64::from(at) < to.at);
        }
        done
    }

    fn try_to_append(
        &mut self,
        section: &[u8],
        to: &Target,
        out: &mut Vec<u8>,
        rows: &mut Vec<Row>,
        begin: usize,
    ) -> Option<()> {
        out.try_reserve(section.len()).ok()?;
        each_entry(section, (0, to.code_size), |entry| {
            let cie = self.cie(entry.cie, to, out, begin)?;
            let start = u32::try_from(entry.start).ok()?;
            let fde = u32::try_from(to.at + (out.len() - begin) as u64).ok()?;
            // The reservation above may be too small: only `CIES_MAX` CIEs are remembered, and any other CIE is written once
            // for each of its FDEs.
            out.try_reserve(entry.bytes.len()).ok()?;
            rows.try_reserve(1).ok()?;
            let copy = out.len();
            out.extend_from_slice(entry.bytes);
            let field = i64::from(fde) + FDE_BEGIN as i64;
            let code = to.code.checked_add(i64::from(start))?;
            let code = i32::try_from(code - field).ok()?;
            out.get_mut(copy + 4..copy + 8)?.copy_from_slice(&(fde + 4 - cie).to_ne_bytes());
            out.get_mut(copy + 8..copy + 12)?.copy_from_slice(&code.to_ne_bytes());
            rows.push(Row { start, fde });
            Some(())
        })?;
        (to.at + (out.len() - begin) as u64 <= to.room).then_some(())
    }

    /// Returns the offset of a CIE in the section. Appends the CIE if the section does not contain it yet.
    fn cie(&mut self, cie: &[u8], to: &Target, out: &mut Vec<u8>, begin: usize) -> Option<u32> {
        if let Some((_, at)) = self.cies.iter().find(|(known, _)| known == cie) {
            return Some(*at);
        }
        let at = u32::try_from(to.at + (out.len() - begin) as u64).ok()?;
        out.try_reserve(cie.len()).ok()?;
        out.extend_from_slice(cie);
        if self.cies.len() < CIES_MAX {
            let key = reserve::copy_of(cie).ok()?;
            self.cies.try_reserve(1).ok()?;
            self.cies.push((key, at));
        }
        Some(at)
    }
}
