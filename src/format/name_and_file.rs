//! Composes names of the form `NAME FILE:LINE`, and removes the parts of a name that debuggers do not need.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use super::code_info::Info;
use super::name::{self, MAX};

/// Room for a name and a file of the maximum length, a space, a colon and a line.
const ROOM: usize = 2 * MAX + " :4294967295".len();

/// A name that is composed of several parts. The parts are cleaned separately, and the whole name may be longer than [`MAX`].
/// Plain parts (see [`name::copy_plain`]) need no allocation.
pub struct Composed {
    bytes: [MaybeUninit<u8>; ROOM],
    /// The number of bytes that have been written.
    len: usize,
    file: Range<usize>,
    is_changed: bool,
}

impl Default for Composed {
    #[inline(always)]
    fn default() -> Composed {
        Composed { bytes: [MaybeUninit::uninit(); ROOM], len: 0, file: 0..0, is_changed: false }
    }
}

impl Composed {
    /// Composes the name of code at `addr`. If `line` is 0, the composed name has no line. If `file` is empty after cleaning,
    /// the composed name has no file and no line. Writes to `self`, because a returned value would have to be copied.
    pub fn compose(&mut self, name: &[u8], addr: u64, file: &[u8], line: u32) {
        if !self.put(name) {
            self.append(name::nameless(addr).as_bytes());
            self.is_changed = true;
        }
        let without_file = self.len;
        self.append(b" ");
        if !self.put(file) {
            self.len = without_file;
            return;
        }
        self.file = without_file + 1..self.len;
        if line != 0 {
            self.put_line(line);
        }
    }

    pub fn get(&self) -> &[u8] {
        // SAFETY: `len` bytes are written.
        unsafe { slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }

    /// The file in the name. Empty if the name has no file.
    pub fn file(&self) -> &[u8] {
        &self.get()[self.file.clone()]
    }

    /// Whether cleaning has changed a part of the name.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Cleans a part and appends it. Returns `false` if the cleaned part is empty.
    fn put(&mut self, part: &[u8]) -> bool {
        let room = &mut self.bytes[self.len..];
        // SAFETY: `room` is at least as long as `part`.
        if part.len() <= room.len() && unsafe { name::copy_plain(part, room.as_mut_ptr().cast()) } {
            self.len += part.len();
            return true;
        }
        let clean = name::clean(part);
        self.append(&clean);
        self.is_changed |= *clean != *part;
        !clean.is_empty()
    }

    fn put_line(&mut self, mut line: u32) {
        let mut digits = [0; 11];
        let mut at = digits.len();
        while line != 0 {
            at -= 1;
            digits[at] = b'0' + (line % 10) as u8;
            line /= 10;
        }
        digits[at - 1] = b':';
        self.append(&digits[at - 1..]);
    }

    fn append(&mut self, bytes: &[u8]) {
        for (place, &byte) in self.bytes[self.len..].iter_mut().zip(bytes) {
            place.write(byte);
            self.len += 1;
        }
    }
}

/// Removes the file and the line from a name of the form `NAME FILE:LINE` or `NAME FILE`, but only if the code's line table
/// has a line in this file.
pub fn without_place<'n>(name: &'n [u8], info: Info<'_>) -> &'n [u8] {
    let Some(lines) = info.lines() else { return name };
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let without_line = match &name[..name.len() - digits] {
        [before @ .., b':'] if digits > 0 => before,
        _ => name,
    };
    let before_file = |file: &[u8]| match without_line.strip_suffix(file)? {
        [before @ .., b' '] if !before.is_empty() && !file.is_empty() => Some(before.len()),
        _ => None,
    };
    lines.entries().find_map(|entry| before_file(entry.file)).map_or(name, |len| &name[..len])
}

/// Removes the tier from a name of the form `NAME [TIER]`.
pub fn without_tier(name: &[u8]) -> &[u8] {
    let Some(inner) = name.strip_suffix(b"]") else { return name };
    match inner.iter().rposition(|byte| matches!(byte, b'[' | b']')) {
        Some(at) if at > 1 && inner[at] == b'[' && inner[at - 1] == b' ' && at + 1 < inner.len() => &name[..at - 1],
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers() {
        let bare = |name: &'static str| std::str::from_utf8(without_tier(name.as_bytes())).unwrap();
        assert_eq!(["fib [opt]", "a b [tier 2]", "fib [a] [b]"].map(bare), ["fib", "a b", "fib [a]"]);
        for name in ["fib", "fib[]", "fib []", "fib[opt]", " [opt]", "[opt]", "x [a]]", "a [[b]]", "fib [opt] "] {
            assert_eq!(bare(name), name);
        }
    }
}
