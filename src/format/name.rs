//! Names that every reader accepts.
//!
//! One byte that is not UTF-8 makes samply and blazesym give up a whole perf map. A newline in a name splits its line, and
//! blazesym also splits at a carriage return. Other readers show control characters on a terminal. So names are cleaned, never
//! refused.

use std::borrow::Cow;

/// The longest name kept, in bytes: readers have line buffers of 4096 bytes (parca) and less.
pub const MAX: usize = crate::api::limits::NAME_MAX;

/// `~` and eight hexadecimal digits.
const TAIL: usize = 9;

/// Cleans a name: bytes that are not UTF-8 become U+FFFD, control characters `_`, outer white space goes, what is too long is
/// cut and marked with a hash of the whole. A clean name is returned as it is. The result may be empty.
pub fn clean(name: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(name);
    let is_clean = |c: char| !c.is_control() && !is_line_end(c);
    if name.len() <= MAX
        && matches!(text, Cow::Borrowed(_))
        && text.trim().len() == name.len()
        && text.chars().all(is_clean)
    {
        return Cow::Borrowed(name);
    }
    let text: String = text.trim().chars().map(|c| if is_clean(c) { c } else { '_' }).collect();
    if text.len() <= MAX {
        return Cow::Owned(text.into_bytes());
    }
    let hash = hash(name);
    let mut cut = MAX - TAIL;
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    Cow::Owned(format!("{}~{hash:08x}", &text[..cut]).into_bytes())
}

/// Readers drop shorter names of the perf map (perf: linux tools/perf/util/symbol.c, `dso__load_perf_map`), and perf from 6.12
/// on takes those of one letter in a jitdump for mangled types: `f` becomes `float`, `a` `signed char`.
pub const MIN: usize = 3;

/// Makes a name that is not empty long enough, by appending `()`.
pub fn lengthen(name: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if name.len() < MIN {
        Cow::Owned([&name[..], b"()"].concat())
    } else {
        name
    }
}

/// The Unicode line and paragraph separators, which some readers end a line at though they are no control characters.
fn is_line_end(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

/// Whether a name is printable ASCII without outer spaces, and neither too short nor too long: nothing is to be done then,
/// and nearly every name is so.
#[inline]
pub fn is_plain(name: &[u8]) -> bool {
    let (Some(first), Some(last)) = (name.first(), name.last()) else { return false };
    // In pieces, the last one overlapping the one before, so that no byte is left for a loop by bytes.
    let all_printable = match (name.last_chunk::<16>(), name.first_chunk::<8>(), name.last_chunk::<8>()) {
        (Some(last), ..) => {
            name.chunks_exact(16).filter_map(<[u8]>::first_chunk::<16>).all(are_printable) && are_printable(last)
        }
        (None, Some(first), Some(last)) => {
            let mut both = [0; 16];
            both[..8].copy_from_slice(first);
            both[8..].copy_from_slice(last);
            are_printable(&both)
        }
        _ => name.iter().all(|byte| (0x20..0x7f).contains(byte)),
    };
    all_printable && *first != b' ' && *last != b' ' && (MIN..=MAX).contains(&name.len())
}

/// All bytes at once: written with the instructions that every x86-64 processor has, because compilers only make them of a loop
/// when they do not care for size.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn are_printable(bytes: &[u8; 16]) -> bool {
    use std::arch::x86_64::{_mm_and_si128, _mm_cmpgt_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: the load needs no alignment and reads the 16 bytes. All are instructions of SSE2, a part of x86-64.
    unsafe {
        let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
        // Signed: bytes from 0x80 on are less than everything else.
        let from_space = _mm_cmpgt_epi8(bytes, _mm_set1_epi8(0x1f));
        let below_delete = _mm_cmpgt_epi8(_mm_set1_epi8(0x7f), bytes);
        _mm_movemask_epi8(_mm_and_si128(from_space, below_delete)) == 0xffff
    }
}

/// All bytes at once. In ASCII, adding 1 sets the highest bit of 0x7f alone, and adding 0x60 that of everything from 0x20 on;
/// nothing is carried into the next byte then.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn are_printable(bytes: &[u8; 16]) -> bool {
    const EACH: u128 = u128::from_ne_bytes([1; 16]);
    let word = u128::from_ne_bytes(*bytes);
    let too_high = word | word.wrapping_add(EACH);
    let high_enough = word.wrapping_add(0x60 * EACH);
    (too_high | !high_enough) & (0x80 * EACH) == 0
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

    fn cleaned(name: &[u8]) -> String {
        String::from_utf8(clean(name).into_owned()).unwrap()
    }

    #[test]
    fn clean_names_stay() {
        for name in ["foo", "foo::bar<int, 3>(a b)", "größe", "名前", "_ZN3foo3barEv"] {
            assert_eq!(cleaned(name.as_bytes()), name);
            assert!(matches!(clean(name.as_bytes()), Cow::Borrowed(_)), "{name}");
            assert_eq!(is_plain(name.as_bytes()), name.is_ascii(), "{name}");
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

    #[test]
    fn plain_names_are_known_by_every_byte() {
        for len in MIN..70 {
            let mut name = vec![b'x'; len];
            assert!(is_plain(&name));
            for at in 0..len {
                for (byte, inside) in
                    [(b' ', true), (b'~', true), (0x1f, false), (0x7f, false), (0x80, false), (0, false)]
                {
                    name[at] = byte;
                    let outer_space = byte == b' ' && (at == 0 || at == len - 1);
                    assert_eq!(is_plain(&name), inside && !outer_space, "{name:?}");
                }
                name[at] = b'x';
            }
        }
        assert!(
            !is_plain(b"")
                && !is_plain(b"f")
                && !is_plain(b"if")
                && is_plain(&[b'x'; MAX])
                && !is_plain(&[b'x'; MAX + 1])
        );
    }
}
