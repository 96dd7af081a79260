//! What can be wrong with a name, and how names are shown.

use std::fmt;

use jitsym::format::jitdump::id;

/// The kinds of records by name, in the order in which they are listed.
pub const RECORDS: [(u32, &str); 5] = [
    (id::LOAD, "LOAD"),
    (id::DEBUG_INFO, "DEBUG_INFO"),
    (id::UNWINDING_INFO, "UNWINDING_INFO"),
    (id::MOVE, "MOVE"),
    (id::CLOSE, "CLOSE"),
];

/// Text of unknown origin as it can be shown on a terminal: what is not printable is escaped.
pub struct Printable<'a> {
    bytes: &'a [u8],
    /// The most characters.
    max: usize,
}

/// All of it.
pub fn printable(bytes: &[u8]) -> Printable<'_> {
    Printable { bytes, max: usize::MAX }
}

/// Characters in messages.
const SHORT: usize = 60;
/// As many bytes as they can have, and a character more, which shows that there are more.
pub const SHORT_BYTES: usize = 4 * (SHORT + 1);

/// The start of it, for messages. What is behind [`SHORT_BYTES`] is not looked at.
pub fn shortened(bytes: &[u8]) -> Printable<'_> {
    Printable { bytes: &bytes[..bytes.len().min(SHORT_BYTES)], max: SHORT }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let mut left = self.max;
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                if left == 0 {
                    return f.write_str("...");
                }
                left -= 1;
                if is_bad(c) {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    f.write_char(c)?;
                }
            }
            for byte in chunk.invalid() {
                if left == 0 {
                    return f.write_str("...");
                }
                left -= 1;
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Control characters, and what turns the direction of a line or ends it.
fn is_bad(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether there is a character in it that tears lines or acts on terminals.
pub fn has_control(name: &[u8]) -> bool {
    // Bytes below 0x20 are control characters in UTF-8 as in ASCII; so is U+0085, which needs no more bytes than two.
    name.iter().any(|&byte| byte < 0x20 || byte == 0x7f)
        || name.utf8_chunks().any(|chunk| chunk.valid().chars().any(is_bad))
}

/// Whether perf's demanglers take it for one of theirs: C++, Rust, OCaml, or a Java method's descriptor.
pub fn is_mangled(name: &[u8]) -> bool {
    let (start, rest) = name.split_at(name.len().min(2));
    let itanium = matches!(start, b"_Z" | b"_R") && !rest.is_empty();
    let ocaml = name.strip_prefix(b"caml").is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_uppercase));
    let java = name.first() == Some(&b'L') && name.contains(&b';') && name.contains(&b'(');
    itanium || ocaml || java
}

/// Whether it is a type as the C++ ABI for Itanium writes it in short: pointers, references and qualifiers before a letter that
/// stands for a type of the language or of the library. perf from 6.12 on demangles that, too.
pub fn is_type_code(name: &[u8]) -> bool {
    let before = name.iter().take_while(|byte| b"PROKV".contains(byte)).count();
    match name[before..] {
        [letter] => b"vwbcahstijlmxynofdegz".contains(&letter),
        [b'S', letter] => b"absiod".contains(&letter),
        [b'D', letter] => b"defhisuacn".contains(&letter),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever the bytes are cut, the cut is behind what is shown.
    #[test]
    fn the_start_of_a_name() {
        for c in ["a", "é", "€", "😀"] {
            for before in 0..4 {
                let name = "x".repeat(before) + &c.repeat(SHORT - before);
                assert_eq!(shortened(name.as_bytes()).to_string(), name);
                assert_eq!(shortened((name.clone() + &c.repeat(200)).as_bytes()).to_string(), name + "...");
            }
        }
        assert_eq!(shortened(&[0xff; 61]).to_string(), "\\xff".repeat(SHORT) + "...");
    }
}
