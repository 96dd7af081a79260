//! Encodes unwind descriptions as `.eh_frame` and `.eh_frame_hdr` (LSB 5.0 Core, 10.6 "Exception Frames"; DWARF 5, 6.4 and
//! 7.24).
//!
//! The tables have the same layout as in the ELF file that `perf inject --jit` makes of each function (linux
//! tools/perf/util/genelf.c, `jit_add_eh_frame_info`). `.eh_frame` starts at the first multiple of 8 after the code, and
//! `.eh_frame_hdr` follows without a gap. Every pointer in the tables is relative, so the tables are also valid if they are
//! stored after the code in memory.

pub mod absolute;
pub(crate) mod b_key;
pub mod debug_frame;
mod eh_frame;
mod entries;
mod handlers;
mod presets;
pub mod step;
#[cfg(test)]
mod tests;

pub use eh_frame::CIE_MAX;
pub use presets::{resolve_fixed, resolve_frame_pointer};

use gimli::write::{EhFrame, EndianVec, Writer};
use gimli::NativeEndian;

use crate::api::code::Unwind;
use crate::api::error::{Error, Result};
use crate::api::limits::CODE_SIZE_MAX;
use crate::format::arch::Arch;
use crate::format::get::u32_at;
use crate::sys::sort::sort;
use entries::{align8, Entries, Placement};

/// The first bytes of `.eh_frame_hdr`: version 1, `.eh_frame` pointer pcrel|sdata4, count udata4, and table datarel|sdata4 (LSB
/// 5.0 Core, 10.6.2).
pub(super) const HDR_ENCODINGS: [u8; 4] = [0x01, 0x1b, 0x03, 0x3b];

/// Number of bytes of `.eh_frame_hdr` before its table.
const HDR_TABLE: usize = 12;

/// Encoded tables of one piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// `.eh_frame` (CIEs, FDEs, a zero word), directly followed by `.eh_frame_hdr`. The size of `.eh_frame` is a multiple of 4.
    pub bytes: Vec<u8>,
    /// Size of `.eh_frame_hdr`, which is at the end of `bytes`.
    pub hdr_size: usize,
    /// Offset of the FDE that covers the whole code; `None` if the tables were made from an `.eh_frame` section.
    fde: Option<usize>,
}

/// The offsets of the words in the tables that depend on the size of the code.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The distances back to the code, one in the FDE and one in the table of `.eh_frame_hdr`. Each pair contains the offset at
    /// which a distance is stored, and the offset from which the distance is measured.
    pub to_code: [(usize, usize); 2],
    /// Offset of the word that contains the code's size.
    pub size: usize,
}

impl Tables {
    /// Size of `.eh_frame`, which is at the beginning of `bytes`.
    pub fn eh_frame_size(&self) -> usize {
        self.bytes.len() - self.hdr_size
    }

    /// The largest code size, in bytes, for which the tables can be used. The distance from `.eh_frame_hdr` back to the code
    /// must fit in 32 bits. The FDE is closer to the code than `.eh_frame_hdr` is, so the distance from the FDE needs no
    /// separate limit.
    pub fn code_max(&self) -> u64 {
        const FARTHEST: u64 = 1 << 31;
        let farthest = if self.fde.is_some() { FARTHEST - self.eh_frame_size() as u64 } else { FARTHEST };
        CODE_SIZE_MAX.min(farthest & !7)
    }

    /// Checks that the tables can be used for code of this size in bytes.
    pub fn check_size(&self, code_size: u64) -> Result<()> {
        check_code_size(code_size)?;
        if code_size > self.code_max() {
            return Err(Error::TooLarge);
        }
        Ok(())
    }

    /// The words that depend on the size of the code; `None` if the tables were made from an `.eh_frame` section.
    pub fn places(&self) -> Option<Places> {
        let (fde, hdr) = (self.fde?, self.eh_frame_size());
        let is_within = fde + 16 <= hdr && hdr + HDR_TABLE + 4 <= self.bytes.len();
        is_within.then_some(Places { to_code: [(fde + 8, fde + 8), (hdr + HDR_TABLE, hdr)], size: fde + 12 })
    }

    /// Copies the tables to `out`, which must have the same length, and adapts the copy to code of `code_size` bytes.
    /// `check_size` must accept this size. The copy equals the tables that [`encode`] makes for this size. Tables from an
    /// `.eh_frame` section are copied unchanged: they may cover only a part of the code, so the size of the code does not
    /// determine their contents.
    ///
    /// The description must be valid for this size. The rows of an [`Unwind::Rows`] must lie in the code. For an
    /// [`Unwind::FramePointer`], [`resolve_frame_pointer`] must give the same result for `code_size` and for the size with
    /// which the tables were made. For an [`Unwind::FixedFrame`], [`resolve_fixed`] must give the same result for these two
    /// sizes.
    pub fn copy_to(&self, out: &mut [u8], code_size: u64) {
        out.copy_from_slice(&self.bytes);
        let Some(places) = self.places() else { return };
        let mut put = |at: usize, value: u32| out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        for (at, from) in places.to_code {
            put(at, (align8(code_size) as u32).wrapping_add(from as u32).wrapping_neg());
        }
        put(places.size, code_size as u32);
    }

    /// The result of `copy_to` for code of this size.
    #[cfg(test)]
    pub fn copied(&self, code_size: u64) -> Vec<u8> {
        let mut out = vec![0xaa; self.bytes.len()];
        self.copy_to(&mut out, code_size);
        out
    }

    /// Makes tables from bytes that are already encoded. `copy_to` copies these tables unchanged.
    #[cfg(test)]
    pub fn ready(bytes: &[u8], hdr_size: usize) -> Tables {
        Tables { bytes: bytes.to_vec(), hdr_size, fde: None }
    }
}

/// Encodes a description of code of `code_size` bytes; `None` if the description is [`Unwind::None`].
///
/// `code_addr` is only used for [`Unwind::EhFrame`], the only description with absolute addresses. The parts of the section's
/// entries that are outside of the code are cut off.
///
/// Returns `SizeZero` if the code has no bytes, and `TooLarge` if code and tables together exceed 2 GiB. Returns
/// `UnwindOrder` if offsets are not in order or not in the code. Returns `UnwindRegister` if a register number is not valid
/// where it is used. Returns `AddressRange` if the end of the code exceeds 64 bits. Returns `UnwindFormat` if a stack offset
/// is not a multiple of the size of a stack slot, or if a register is saved in two different slots. Also returns `UnwindFormat` if an `.eh_frame`
/// section does not parse or does not cover this code. Returns `NoMemory` if there is no memory.
pub fn encode(arch: Arch, unwind: &Unwind, code_addr: u64, code_size: u64) -> Result<Option<Tables>> {
    if matches!(unwind, Unwind::None) {
        return Ok(None);
    }
    check_code_size(code_size)?;
    let placement = Placement::behind(arch, code_size);
    if let Unwind::EhFrame { bytes, addr } = *unwind {
        let end = code_addr.checked_add(code_size).ok_or(Error::AddressRange)?;
        let entries = eh_frame::entries(bytes, addr, code_addr..end, &placement)?;
        return tables(&entries, code_size).map(Some);
    }
    let entries = presets::entries(unwind, code_size, &placement)?;
    let mut tables = tables(&entries, code_size)?;
    tables.fde = fde_offsets(&tables.bytes).next();
    Ok(Some(tables))
}

/// Returns an error for sizes that no FDE can contain. [`Tables::check_size`] has a slightly lower limit for code with tables.
pub fn check_code_size(code_size: u64) -> Result<()> {
    match code_size {
        0 => Err(Error::SizeZero),
        1..=CODE_SIZE_MAX => Ok(()),
        _ => Err(Error::TooLarge),
    }
}

/// Writes `.eh_frame` and `.eh_frame_hdr`.
fn tables(entries: &Entries, code_size: u64) -> Result<Tables> {
    let mut section = EhFrame::from(EndianVec::new(NativeEndian));
    entries.table.write_eh_frame(&mut section).map_err(write_error)?;
    section.write_u32(0).map_err(write_error)?;
    let mut bytes = section.0.into_vec();
    if entries.b_key {
        b_key::mark(&mut bytes);
    }
    let hdr = bytes.len();

    let mut rows = Vec::with_capacity(entries.fdes.len());
    let fdes: Vec<usize> = fde_offsets(&bytes).collect();
    for (&(start, handler), fde) in entries.fdes.iter().zip(fdes) {
        if let Some((handler, fde)) = handler.zip(bytes.get_mut(fde..)) {
            handler.hide(fde);
        }
        let fde = i64::try_from(fde).and_then(|fde| i32::try_from(fde - hdr as i64)).map_err(|_| Error::TooLarge)?;
        // The result is the distance from `.eh_frame_hdr` back to the entry's code. `start` is at most `CODE_SIZE_MAX`, so the
        // subtraction does not overflow.
        let start = start as i64 - align8(code_size) as i64 - hdr as i64;
        rows.push((i32::try_from(start).map_err(|_| Error::TooLarge)?, fde));
    }
    sort(&mut rows);

    let eh_frame = i64::try_from(hdr).and_then(|hdr| i32::try_from(-hdr - 4)).map_err(|_| Error::TooLarge)?;
    let count = u32::try_from(rows.len()).map_err(|_| Error::TooLarge)?;
    bytes.extend_from_slice(&HDR_ENCODINGS);
    bytes.extend_from_slice(&eh_frame.to_ne_bytes());
    bytes.extend_from_slice(&count.to_ne_bytes());
    for (start, fde) in rows {
        bytes.extend_from_slice(&start.to_ne_bytes());
        bytes.extend_from_slice(&fde.to_ne_bytes());
    }
    Ok(Tables { hdr_size: bytes.len() - hdr, bytes, fde: None })
}

/// Offsets of the FDEs in a section that this module has written. An FDE's second word, the distance to its CIE, is not 0.
fn fde_offsets(section: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || loop {
        let at = next;
        let length = u32_at(section, at).filter(|&length| length != 0)?;
        next = at + 4 + length as usize;
        if u32_at(section, at + 4)? != 0 {
            return Some(at);
        }
    })
}

/// Converts an error of gimli's writer into an error of this library.
fn write_error(error: gimli::write::Error) -> Error {
    match error {
        // The distance from an FDE to its code does not fit in 32 bits.
        gimli::write::Error::ValueTooLarge => Error::TooLarge,
        _ => Error::UnwindFormat,
    }
}
