//! Types and a function that the writers of DWARF units and line programs share.

use crate::format::jitdump::raw::RawEntry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// The function's name, without NUL.
    pub name: &'a [u8],
    /// The address of the function. In the ELF file of a region, the address counts from the start of the file. In other ELF
    /// objects, the address is the address at run time.
    pub addr: u64,
    pub size: u64,
}

/// A line, and its first offset in the code. The offset is `None` if the line's address is before the code.
pub type Row<'a> = (Option<u64>, RawEntry<'a>);

/// Writes the length of a structure to the first four bytes of the structure. The structure begins at the offset `begin` of
/// `out`, and ends at the end of `out`. The length does not include the four bytes in which the length is stored.
pub(super) fn set_length(out: &mut [u8], begin: usize) -> Option<()> {
    let len = u32::try_from(out.len() - begin - 4).ok()?;
    out.get_mut(begin..begin + 4)?.copy_from_slice(&len.to_ne_bytes());
    Some(())
}
