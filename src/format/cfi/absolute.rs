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
pub const FDE_SIZE: usize = 16;

/// Appends the entries of an `.eh_frame` that was made to follow code of this size (rounded up to 8), for that code at an address.
/// `None` if there is no memory, if the entries make no sense, or if there is no FDE. Then nothing is appended.
///
/// What is appended refers to itself only. A zero word has to follow the last of all.
pub fn append(section: &[u8], (addr, size): (u64, u64), out: &mut Vec<u8>) -> Option<()> {
    let begin = out.len();
    let done = try_to_append(section, (addr, size), out).filter(|&fdes| fdes > 0);
    if done.is_none() {
        out.truncate(begin);
    }
    done.map(|_| ())
}

/// Where the FDEs begin in entries that were appended.
pub fn fdes(entries: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut next = 0;
    let all = std::iter::from_fn(move || {
        let at = next;
        next += u32_at(entries, at).filter(|&length| length != 0)? as usize + 4;
        Some(at)
    });
    all.filter(|&at| u32_at(entries, at + 4).is_some_and(|back| back != 0))
}

/// Makes entries that were appended speak of the same code at an address that is so much higher.
pub fn shift(entries: &mut [u8], by: u64) {
    let at: Vec<usize> = fdes(entries).collect();
    for field in at {
        if let Some(field) = entries.get_mut(field + FDE_ADDR..).and_then(|rest| rest.first_chunk_mut()) {
            *field = u64::from_ne_bytes(*field).wrapping_add(by).to_ne_bytes();
        }
    }
}

/// Returns how many FDEs there are.
fn try_to_append(section: &[u8], (addr, size): (u64, u64), out: &mut Vec<u8>) -> Option<usize> {
    let section_addr = addr.checked_add(size.checked_next_multiple_of(8)?)?;
    let (mut cies, mut fdes) = (Vec::new(), 0);
    let mut next = 0;
    while let Some(length) = u32_at(section, next).filter(|&length| length != 0) {
        let at = next;
        next = at.checked_add(length as usize)?.checked_add(4)?;
        let entry = section.get(at..next)?;
        let back = u32_at(entry, 4)?;
        out.try_reserve(entry.len() + MORE as usize).ok()?;
        let to = out.len();
        if back == 0 {
            cies.try_reserve(1).ok()?;
            cies.push((at, to));
            out.extend_from_slice(entry);
            *out.get_mut(to + pointer_encoding(entry)?)? = ABSOLUTE;
            continue;
        }
        let cie = (at + 4).checked_sub(back as usize)?;
        let &(_, cie) = cies.iter().find(|(from, _)| *from == cie)?;
        let distance = i64::from(u32_at(entry, 8)? as i32);
        let start = section_addr.checked_add(at as u64 + 8)?.checked_add_signed(distance)?;
        let range = u64::from(u32_at(entry, 12)?);
        let is_inside = start >= addr && start.checked_add(range)? <= addr.checked_add(size)?;
        if !is_inside || range == 0 {
            continue;
        }
        fdes += 1;
        out.extend_from_slice(&length.checked_add(MORE)?.to_ne_bytes());
        out.extend_from_slice(&u32::try_from(to + 4 - cie).ok()?.to_ne_bytes());
        out.extend_from_slice(&start.to_ne_bytes());
        out.extend_from_slice(&range.to_ne_bytes());
        out.extend_from_slice(&entry[16..]);
    }
    Some(fdes)
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
