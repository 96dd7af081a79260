//! Cleans names of functions, so that every reader accepts them.
//!
//! A single byte that is not UTF-8 makes samply and blazesym discard a whole perf map. A newline in a name would split the line
//! of this name in a perf map. blazesym also splits lines at a carriage return. Some readers print control characters on a
//! terminal. This module cleans every name, and refuses none.

use std::borrow::Cow;
use std::str::Utf8Chunk;

/// The maximum length of a cleaned name, in bytes. Some readers have line buffers of only 4096 bytes (parca) or less.
pub const MAX: usize = crate::api::limits::NAME_MAX;

/// Length of the suffix that marks a cut name. The suffix is `~` and eight hexadecimal digits.
const TAIL: usize = 9;

/// Cleans a name. Bytes that are not UTF-8 become U+FFFD, control characters become `_`, and white space at both ends is
/// removed. A name that is too long is cut, and ends with a hash of the whole name. The result may be empty.
///
/// For a longer name, the function allocates no more memory than for a name of length `MAX`. A failed large allocation would
/// end the process, because a `String` cannot report the failure.
pub fn clean(name: &[u8]) -> Cow<'_, [u8]> {
    let is_clean = |c: char| !c.is_control() && !is_line_end(c);
    if let (true, Ok(text)) = (name.len() <= MAX, std::str::from_utf8(name)) {
        if text.trim().len() == name.len() && text.chars().all(is_clean) {
            return Cow::Borrowed(name);
        }
    }
    let invalid = |chunk: &Utf8Chunk<'_>| (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
    let chars = name.utf8_chunks().flat_map(|chunk| chunk.valid().chars().chain(invalid(&chunk)));
    let mut text = String::with_capacity(MAX);
    // `len` is the length of `text` up to the last character that is not white space.
    let (mut len, mut is_full, mut is_long) = (0, false, false);
    for c in chars.skip_while(|c| c.is_whitespace()) {
        let cleaned = if is_clean(c) { c } else { '_' };
        is_full |= text.len() + cleaned.len_utf8() > MAX;
        if !is_full {
            text.push(cleaned);
        }
        if !c.is_whitespace() {
            len = text.len();
            is_long = is_full;
        }
        if is_long {
            break;
        }
    }
    if !is_long {
        text.truncate(len);
        return Cow::Owned(text.into_bytes());
    }
    let hash = hash(name);
    let mut cut = MAX - TAIL;
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    text.truncate(cut);
    Cow::Owned(format!("{text}~{hash:08x}").into_bytes())
}

/// The minimum length of a name, in bytes. Readers drop shorter names in a perf map (perf: linux tools/perf/util/symbol.c,
/// `dso__load_perf_map`). In a jitdump, perf 6.12 and later demangle a one-letter name as a type: `f` becomes `float`, and `a`
/// becomes `signed char`.
pub const MIN: usize = 3;

/// Appends `()` to a name that is too short. The name must not be empty.
pub fn lengthen(name: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if name.len() < MIN {
        Cow::Owned([&name[..], b"()"].concat())
    } else {
        name
    }
}

/// The Unicode line and paragraph separators. They are not control characters, but some readers end a line there.
fn is_line_end(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

/// Makes a name for code without a name, from the address of the code.
pub fn nameless(addr: u64) -> String {
    format!("jit_{addr:x}")
}

/// Copies a name to `to` if the name is plain: printable ASCII without spaces at the ends, and with a length from `MIN` to
/// `MAX`. Nearly all names are plain. If the result is `false`, the bytes at `to` are undefined.
///
/// # Safety
/// `name.len()` bytes are writable at `to`.
#[inline(always)]
pub unsafe fn copy_plain(name: &[u8], to: *mut u8) -> bool {
    let (len, from) = (name.len(), name.as_ptr());
    if !(MIN..=MAX).contains(&len) {
        return false;
    }
    if len < 16 {
        // SAFETY: the caller's promise.
        return unsafe { copy_short_plain(name, to) };
    }
    if len > 64 {
        // SAFETY: as above.
        return unsafe { copy_long_plain(name, to) };
    }
    let mut blocks = Blocks::new();
    // The last block may overlap the block before it, so that every byte of the name is in a block of 16 bytes. The code has no
    // loop, because a compiler would split the loop into a call of `memcpy` and a second loop that checks the bytes.
    // SAFETY: `name` has `len` bytes, and `len` bytes are writable at `to`. `len` is at least 16. So each block of 16 bytes
    // lies within the `len` bytes, and `name` is not empty.
    unsafe {
        if len > 16 {
            blocks.copy(from, to);
        }
        if len > 32 {
            blocks.copy(from.add(16), to.add(16));
        }
        if len > 48 {
            blocks.copy(from.add(32), to.add(32));
        }
        blocks.copy(from.add(len - 16), to.add(len - 16));
        blocks.are_printable() && *from != b' ' && *from.add(len - 1) != b' '
    }
}

/// Like `copy_plain`, for a name with more than 64 bytes.
///
/// # Safety
/// `name.len()` bytes are writable at `to`.
#[inline(never)]
unsafe fn copy_long_plain(name: &[u8], to: *mut u8) -> bool {
    let mut blocks = Blocks::new();
    let starts = (0..name.len() - 16).step_by(16).chain([name.len() - 16]);
    // SAFETY: `name.len()` bytes are writable at `to`. A block of 16 bytes at an offset in `starts` lies within the bytes of
    // `name`, and within the bytes at `to`.
    starts.for_each(|at| unsafe { blocks.copy(name.as_ptr().add(at), to.add(at)) });
    blocks.are_printable() && name.first() != Some(&b' ') && name.last() != Some(&b' ')
}

/// Like `copy_plain`, for a name with fewer than 16 bytes.
///
/// # Safety
/// `name.len()` bytes are writable at `to`.
#[inline(never)]
unsafe fn copy_short_plain(name: &[u8], to: *mut u8) -> bool {
    // SAFETY: the caller's promise. `name` and the bytes at `to` do not overlap, because `name` is a shared reference, and the
    // bytes at `to` are writable.
    unsafe { to.copy_from_nonoverlapping(name.as_ptr(), name.len()) };
    let is_printable = |byte: &u8| (0x20..0x7f).contains(byte);
    name.first() != Some(&b' ') && name.last() != Some(&b' ') && name.iter().all(is_printable)
}

/// Copies blocks of 16 bytes, and records whether all bytes are printable ASCII. Uses vector instructions that every x86-64
/// processor has, because compilers that optimize for size do not make vector instructions from a loop.
#[cfg(target_arch = "x86_64")]
struct Blocks(std::arch::x86_64::__m128i);

#[cfg(target_arch = "x86_64")]
impl Blocks {
    #[inline(always)]
    fn new() -> Blocks {
        // SAFETY: here and below, all instructions are SSE2, which is a part of x86-64.
        Blocks(unsafe { std::arch::x86_64::_mm_setzero_si128() })
    }

    /// Returns a vector of 16 bytes with the value `BYTE`, which the instructions contain as a constant. Without this assembly,
    /// a compiler would load the vector from the library's data, and the first call after a pause would wait for the page that
    /// contains the vector.
    #[inline(always)]
    fn all<const BYTE: u32>() -> std::arch::x86_64::__m128i {
        let all;
        // SAFETY: no memory is touched.
        unsafe {
            std::arch::asm!(
                "mov {number:e}, {bytes}", "movd {all}, {number:e}", "pshufd {all}, {all}, 0",
                number = out(reg) _, all = out(xmm_reg) all, bytes = const BYTE * 0x0101_0101,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        all
    }

    /// # Safety
    /// 16 bytes are readable at `from`, and writable at `to`.
    #[inline(always)]
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_max_epu8, _mm_storeu_si128, _mm_sub_epi8};
        // SAFETY: the caller's promise. `_mm_loadu_si128` and `_mm_storeu_si128` do not need aligned pointers.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            _mm_storeu_si128(to.cast(), bytes);
            // The subtraction turns bytes below 0x20 into large values.
            self.0 = _mm_max_epu8(self.0, _mm_sub_epi8(bytes, Blocks::all::<0x20>()));
        }
    }

    #[inline(always)]
    fn are_printable(&self) -> bool {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_max_epu8, _mm_movemask_epi8};
        // SAFETY: as above.
        unsafe {
            let most = Blocks::all::<{ 0x7e - 0x20 }>();
            _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(self.0, most), most)) == 0xffff
        }
    }
}

/// Copies blocks of 16 bytes, and records whether all bytes are printable ASCII.
#[cfg(not(target_arch = "x86_64"))]
struct Blocks(u128);

#[cfg(not(target_arch = "x86_64"))]
impl Blocks {
    #[inline(always)]
    fn new() -> Blocks {
        Blocks(0)
    }

    /// # Safety
    /// 16 bytes are readable at `from`, and writable at `to`.
    #[inline(always)]
    unsafe fn copy(&mut self, from: *const u8, to: *mut u8) {
        const EACH: u128 = u128::from_ne_bytes([1; 16]);
        // SAFETY: the caller's promise.
        let word = unsafe { from.cast::<u128>().read_unaligned() };
        // SAFETY: as above.
        unsafe { to.cast::<u128>().write_unaligned(word) };
        // In an ASCII byte, adding 1 sets the highest bit only if the byte is 0x7f, and adding 0x60 sets that bit if the byte
        // is 0x20 or more. No addition carries from an ASCII byte into the next byte.
        self.0 |= word | word.wrapping_add(EACH) | !word.wrapping_add(0x60 * EACH);
    }

    #[inline(always)]
    fn are_printable(&self) -> bool {
        self.0 & u128::from_ne_bytes([0x80; 16]) == 0
    }
}

/// FNV-1a, folded to 32 bits.
fn hash(bytes: &[u8]) -> u32 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::test_random::{Random, Seed};

    fn cleaned(name: &[u8]) -> String {
        String::from_utf8(clean(name).into_owned()).unwrap()
    }

    /// Whether `copy_plain` copies the name.
    fn is_copied(name: &[u8]) -> bool {
        let mut out = vec![0; name.len()];
        // SAFETY: `out` is as long as the name.
        let copied = unsafe { copy_plain(name, out.as_mut_ptr()) };
        assert!(!copied || out == name, "{name:?}");
        copied
    }

    #[test]
    fn clean_names_stay() {
        for name in ["foo", "foo::bar<int, 3>(a b)", "größe", "名前", "_ZN3foo3barEv"] {
            assert_eq!(cleaned(name.as_bytes()), name);
            assert!(matches!(clean(name.as_bytes()), Cow::Borrowed(_)), "{name}");
            assert_eq!(is_copied(name.as_bytes()), name.is_ascii(), "{name}");
        }
    }

    #[test]
    fn short_names_are_lengthened() {
        for (name, expected) in [("f", "f()"), ("if", "if()"), ("foo", "foo"), ("ä", "ä()")] {
            assert_eq!(cleaned(name.as_bytes()), name);
            assert_eq!(*lengthen(clean(name.as_bytes())), *expected.as_bytes());
        }
    }

    #[test]
    fn bad_bytes_are_replaced() {
        assert_eq!(cleaned(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(cleaned(b"a\nb\r\tc\x7f"), "a_b__c_");
        assert_eq!(cleaned("a\u{85}b\u{2028}c".as_bytes()), "a_b_c");
        assert_eq!(cleaned(b"a\0b"), "a_b");
        assert_eq!(cleaned(b"  spaces inside stay  "), "spaces inside stay");
        assert_eq!(cleaned(b" \n "), "");
        assert_eq!(cleaned(b""), "");
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let long = "ä".repeat(600_000);
        let (a, b) = (cleaned(format!("{long}a").as_bytes()), cleaned(format!("{long}b").as_bytes()));
        assert!(a.len() <= MAX && a.len() > MAX - 4 && b.len() <= MAX);
        assert_ne!(a, b);
        assert_eq!(&a.as_bytes()[a.len() - TAIL..][..1], b"~");
        assert_eq!(cleaned(&[b'x'; MAX]).len(), MAX);
        assert_eq!(cleaned(&[b'x'; MAX + 1]).len(), MAX);
    }

    /// `clean` gives the same result as a function that first cleans the whole name and then cuts it.
    #[test]
    fn names_at_random() {
        let seed = Seed::new();
        let mut random = Random(seed.0);
        let parts: [&[u8]; 10] = [
            b"a",
            b" ",
            b"\n",
            b"\0",
            b"\xff",
            b"\xe5\x90",
            "ä".as_bytes(),
            "名".as_bytes(),
            "\u{2003}".as_bytes(),
            "\u{2028}".as_bytes(),
        ];
        let clean_first = |name: &[u8]| {
            let text = String::from_utf8_lossy(name);
            let clean = |c: char| if c.is_control() || is_line_end(c) { '_' } else { c };
            let text: String = text.trim().chars().map(clean).collect();
            if text.len() <= MAX {
                return text;
            }
            let cut = (0..=MAX - TAIL).rev().find(|&at| text.is_char_boundary(at)).unwrap();
            format!("{}~{:08x}", &text[..cut], hash(name))
        };
        for _ in 0..2000 {
            let (mut name, few) = (Vec::new(), 1 + random.below(10));
            let len = [20, MAX as u64 - 10, MAX as u64 + 10][random.below(3) as usize];
            while (name.len() as u64) < len {
                // Names consist of only the first `few` elements of `parts`, so that over all rounds some name is cut at each
                // element.
                name.extend_from_slice(parts[random.below(few) as usize]);
            }
            for part in parts {
                assert_eq!(cleaned(&name), clean_first(&name), "{}", name.escape_ascii());
                name.extend_from_slice(part);
            }
        }
    }

    #[test]
    fn plain_names_are_known_by_every_byte() {
        for len in MIN..150 {
            let mut name = vec![b'x'; len];
            assert!(is_copied(&name));
            for at in 0..len {
                for (byte, inside) in
                    [(b' ', true), (b'~', true), (0x1f, false), (0x7f, false), (0x80, false), (0, false)]
                {
                    name[at] = byte;
                    let outer_space = byte == b' ' && (at == 0 || at == len - 1);
                    assert_eq!(is_copied(&name), inside && !outer_space, "{name:?}");
                }
                name[at] = b'x';
            }
        }
        assert!(
            !is_copied(b"")
                && !is_copied(b"f")
                && !is_copied(b"if")
                && is_copied(&[b'x'; MAX])
                && !is_copied(&[b'x'; MAX + 1])
        );
    }
}
