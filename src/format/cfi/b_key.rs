//! Reads and writes the letter `B` in the augmentation string of a CIE. This letter means that the code signs its return
//! addresses with key B (DWARF for the Arm 64-bit Architecture, "Common information entries").
//!
//! gimli cannot read or write the letter `B`. So `B` is replaced by `S` before gimli reads a CIE, and `S` by `B` after gimli
//! has written a CIE. The letter `S` marks signal trampolines. `B` and `S` have no augmentation data.

use std::borrow::Cow;

use crate::api::error::{Error, Result};
use crate::format::arch::Arch;
use crate::format::get::u32_at;
use crate::sys::reserve;

/// Offset of the augmentation string in a CIE, after the length, a zero word, and the version.
const AUGMENTATION: usize = 9;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Offset of the `B` in the section.
    pub b_key: Option<usize>,
    pub signal_trampoline: bool,
}

impl Marks {
    /// Returns the marks of the CIE at the offset `at` of a section, and no marks for a CIE in the 64-bit format.
    pub fn of(section: &[u8], at: usize) -> Marks {
        let string = at.checked_add(AUGMENTATION).and_then(|begin| section.get(begin..)).unwrap_or_default();
        let string = string.split(|&byte| byte == 0).next().unwrap_or_default();
        if u32_at(section, at) == Some(u32::MAX) || !string.starts_with(b"z") {
            return Marks::default();
        }
        let find = |letter| string.iter().position(|&byte| byte == letter);
        Marks { b_key: find(b'B').map(|index| at + AUGMENTATION + index), signal_trampoline: find(b'S').is_some() }
    }
}

/// The section in a form that gimli can read, with `S` in the place of each `B`.
pub fn readable(section: &[u8], arch: Arch) -> Result<Cow<'_, [u8]>> {
    let mut readable = Cow::Borrowed(section);
    if arch.abi().sign.is_none() {
        return Ok(readable);
    }
    for at in cies(section) {
        let Some(letter) = Marks::of(section, at).b_key else { continue };
        if let Cow::Borrowed(section) = readable {
            readable = Cow::Owned(reserve::copy_of(section).map_err(|_| Error::NoMemory)?);
        }
        readable.to_mut()[letter] = b'S';
    }
    Ok(readable)
}

/// Puts `B` in the place of each `S` in a section that gimli has written.
pub fn mark(section: &mut [u8]) {
    let letters: Vec<usize> = cies(section).map(|at| at + AUGMENTATION).collect();
    for string in letters {
        if let Some(letter) = section[string..].iter_mut().take_while(|byte| **byte != 0).find(|byte| **byte == b'S') {
            *letter = b'B';
        }
    }
}

/// Offsets of the CIEs of a section, up to the first entry that is incomplete, or has the 64-bit format.
fn cies(section: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || loop {
        let at = next;
        let length = u32_at(section, at)? as usize;
        next = at.checked_add(4)?.checked_add(length).filter(|&end| end <= section.len())?;
        if length >= AUGMENTATION && u32_at(section, at + 4) == Some(0) {
            return Some(at);
        }
    })
}
