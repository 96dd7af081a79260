//! Entries for the unwinders of the process itself: they lie anywhere in memory, so they have the addresses of code in place of
//! distances to it, which may not fit 32 bits.

use crate::format::jitdump::raw::u32_at;

/// As in `format/cfi`: a CIE's pointers to code are distances of 32 bits (DW_EH_PE_pcrel | DW_EH_PE_sdata4).
const RELATIVE: u8 = 0x1b;
/// DW_EH_PE_absptr.
const ABSOLUTE: u8 = 0;
/// Bytes by which an FDE becomes longer: its address and its size have 8 bytes.
const MORE: u32 = 8;

/// Where in an FDE its address is.
const FDE_ADDR: usize = 8;
/// Where the size of its code is. Sizes have 31 bits. With four zero bytes there it speaks of no code.
const FDE_SIZE: usize = 16;
/// What is after the last entry of a table.
const END: [u8; 4] = [0; 4];

/// A table with one FDE, after its CIE.
#[derive(Debug)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Where the FDE is.
    pub fde: usize,
    /// The code.
    pub start: u64,
    pub end: u64,
}

impl Frame {
    /// Where the four bytes are that are zero in an FDE that speaks of no code.
    pub fn size_at(&self) -> usize {
        self.fde + FDE_SIZE
    }

    /// Makes it speak of the same code at an address that is so much higher.
    pub fn shift(&mut self, by: u64) {
        (self.start, self.end) = (self.start.wrapping_add(by), self.end.wrapping_add(by));
        if let Some(field) = self.bytes.get_mut(self.fde + FDE_ADDR..).and_then(|rest| rest.first_chunk_mut()) {
            *field = self.start.to_ne_bytes();
        }
    }
}

/// The entries of an `.eh_frame` that was made to follow code of this size (rounded up to 8), for that code at an address. `None` if
/// there is no memory, or the entries make no sense.
pub fn frames(section: &[u8], (addr, size): (u64, u64)) -> Option<Vec<Frame>> {
    let section_addr = addr.checked_add(size.checked_next_multiple_of(8)?)?;
    let end = addr.checked_add(size)?;
    let mut frames = Vec::new();
    let mut next = 0;
    while let Some(length) = u32_at(section, next).filter(|&length| length != 0) {
        let at = next;
        next = at.checked_add(length as usize)?.checked_add(4)?;
        let entry = section.get(at..next)?;
        let back = u32_at(entry, 4)?;
        if back == 0 {
            continue;
        }
        let cie_at = (at + 4).checked_sub(back as usize)?;
        let cie_len = (u32_at(section, cie_at)? as usize).checked_add(4)?;
        let cie = section.get(cie_at..cie_at.checked_add(cie_len)?).filter(|cie| u32_at(cie, 4) == Some(0))?;
        let distance = i64::from(u32_at(entry, 8)? as i32);
        let start = section_addr.checked_add(at as u64 + 8)?.checked_add_signed(distance)?;
        let range = u64::from(u32_at(entry, 12)?);
        let code = start..start.checked_add(range)?;
        if code.is_empty() || code.start < addr || code.end > end {
            continue;
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(cie.len() + entry.len() + MORE as usize + END.len()).ok()?;
        bytes.extend_from_slice(cie);
        *bytes.get_mut(pointer_encoding(cie)?)? = ABSOLUTE;
        bytes.extend_from_slice(&length.checked_add(MORE)?.to_ne_bytes());
        bytes.extend_from_slice(&u32::try_from(cie.len() + 4).ok()?.to_ne_bytes());
        bytes.extend_from_slice(&start.to_ne_bytes());
        bytes.extend_from_slice(&range.to_ne_bytes());
        bytes.extend_from_slice(entry.get(16..)?);
        bytes.extend_from_slice(&END);
        frames.try_reserve(1).ok()?;
        frames.push(Frame { bytes, fde: cie.len(), start: code.start, end: code.end });
    }
    Some(frames)
}

/// Where a CIE says how its FDEs point to code.
fn pointer_encoding(cie: &[u8]) -> Option<usize> {
    // Length, a zero, and the version.
    const AUGMENTATION: usize = 9;
    let len = cie.get(AUGMENTATION..)?.iter().position(|&byte| byte == 0)?;
    let letters = cie[AUGMENTATION..AUGMENTATION + len].strip_prefix(b"z")?;
    // Alignment of code, of data, return address, and how long the rest is: four numbers that end with a byte below 0x80. Version 1
    // has one byte for the return address, which `format/cfi` keeps below that too.
    let mut at = AUGMENTATION + len + 1;
    for _ in 0..4 {
        at += cie.get(at..)?.iter().position(|&byte| byte < 0x80)? + 1;
    }
    for letter in letters {
        match letter {
            b'R' => return (*cie.get(at)? == RELATIVE).then_some(at),
            b'L' => at += 1,
            // An encoding, and an address.
            b'P' => at += 1 + 8,
            b'S' | b'B' => {}
            _ => return None,
        }
    }
    None
}
