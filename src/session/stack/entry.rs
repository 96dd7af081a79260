//! Finds the unwind entry of an address in the tables of a program or library, and copies the entry. Another thread may unload
//! the library, and its file may have been cut, so memory is only read by system calls (LSB 5.0 Core, 10.6).

use crate::format::cfi::step::Section;
use crate::sys::process_memory;

/// The maximum sizes of a CIE and of an FDE. Larger entries are not used.
const CIE_MAX: usize = 128;
const FDE_MAX: usize = 2048;
/// The first bytes of `.eh_frame_hdr` in the usual form: version 1, and the encodings pcrel|sdata4, udata4 and datarel|sdata4.
const HEADER: [u8; 4] = [1, 0x1b, 3, 0x3b];

/// A copy of a CIE, followed by its FDE.
pub struct Entry {
    bytes: [u8; CIE_MAX + FDE_MAX],
    len: usize,
    /// The address at which the copy would have to be, so that the FDE has its own address.
    addr: u64,
}

/// The memory of this process.
#[derive(Clone, Copy)]
pub struct Memory {
    pub pid: u32,
}

impl Memory {
    fn read(self, addr: u64, out: &mut [u8]) -> Option<()> {
        (process_memory::read(self.pid, addr, out) == out.len()).then_some(())
    }

    fn word(self, addr: u64) -> Option<u32> {
        let mut word = [0; 4];
        self.read(addr, &mut word)?;
        Some(u32::from_ne_bytes(word))
    }

    /// The address that is stored as a distance from `base`.
    fn relative(self, addr: u64, base: u64) -> Option<u64> {
        Some(base.wrapping_add_signed(i64::from(self.word(addr)? as i32)))
    }

    pub fn pointer(self, addr: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        Some(u64::from_ne_bytes(word))
    }
}

impl Entry {
    /// The entry of an address, by the search table in the `.eh_frame_hdr` at `header`.
    pub fn by_search(memory: Memory, header: u64, addr: u64) -> Option<Entry> {
        let mut start = [0; 4];
        memory.read(header, &mut start).filter(|()| start == HEADER)?;
        let table = header.checked_add(12)?;
        let start_of = |number: u32| memory.relative(table.checked_add(u64::from(number) * 8)?, header);
        // The first `low` entries begin at the address or below it, and those from `high` on begin above it.
        let (mut low, mut high) = (0, memory.word(header.checked_add(8)?)?);
        while low < high {
            let middle = low + (high - low) / 2;
            match start_of(middle)? <= addr {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let number = u64::from(low.checked_sub(1)?);
        Entry::copy(memory, memory.relative(table.checked_add(number * 8 + 4)?, header)?)
    }

    /// The entry of an address, by reading all entries of an `.eh_frame` section.
    pub fn by_scan(memory: Memory, (section, size): (u64, u64), addr: u64) -> Option<Entry> {
        let (mut at, end) = (section, section.checked_add(size)?);
        while at < end {
            let len = u64::from(memory.word(at).filter(|len| *len != 0)?);
            let is_fde = memory.word(at.checked_add(4)?)? != 0;
            let field = at.checked_add(8)?;
            if is_fde && addr.wrapping_sub(memory.relative(field, field)?) < memory.word(at.checked_add(12)?)?.into() {
                return Entry::copy(memory, at);
            }
            at = at.checked_add(4 + len)?;
        }
        None
    }

    /// Copies the FDE at an address, and its CIE.
    fn copy(memory: Memory, fde: u64) -> Option<Entry> {
        let cie = (fde.checked_add(4)?).checked_sub(memory.word(fde.checked_add(4)?)?.into())?;
        let len_of = |entry| Some(memory.word(entry)? as usize).and_then(|len| len.checked_add(4));
        let (cie_len, fde_len) = (len_of(cie)?, len_of(fde)?);
        if cie_len > CIE_MAX || !(8..=FDE_MAX).contains(&fde_len) {
            return None;
        }
        let mut entry =
            Entry { bytes: [0; CIE_MAX + FDE_MAX], len: cie_len + fde_len, addr: fde.wrapping_sub(cie_len as u64) };
        let (cie_bytes, rest) = entry.bytes.split_at_mut(cie_len);
        memory.read(cie, cie_bytes)?;
        let fde_bytes = rest.get_mut(..fde_len)?;
        memory.read(fde, fde_bytes)?;
        // The CIE is now right before the FDE.
        fde_bytes.get_mut(4..8)?.copy_from_slice(&(cie_len as u32 + 4).to_ne_bytes());
        Some(entry)
    }

    pub fn section(&self) -> Section<'_> {
        Section { eh_frame: self.bytes.get(..self.len).unwrap_or_default(), addr: self.addr }
    }
}
