//! Checks names for problems, and escapes names for display. All output of the program goes through [`Safe`].

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use jitsym::format::jitdump::id;

/// The kinds of records by name, in the order in which they are listed.
pub const RECORDS: [(u32, &str); 6] = [
    (id::LOAD, "LOAD"),
    (id::DEBUG_INFO, "DEBUG_INFO"),
    (id::UNWINDING_INFO, "UNWINDING_INFO"),
    (id::MOVE, "MOVE"),
    (id::CLOSE, "CLOSE"),
    (id::DEBUG_INFO2, "DEBUG_INFO2"),
];

/// Text of unknown origin, made safe for a terminal: characters that are not printable are escaped.
pub struct Printable<'a> {
    bytes: &'a [u8],
    /// The maximum number of characters that are shown.
    max: usize,
}

/// The whole text.
pub fn printable(bytes: &[u8]) -> Printable<'_> {
    Printable { bytes, max: usize::MAX }
}

/// Paths and other strings of the system, made safe for display.
pub trait Shown {
    /// The whole string, in one line.
    fn shown(&self) -> Printable<'_>;
}

impl Shown for OsStr {
    fn shown(&self) -> Printable<'_> {
        printable(self.as_bytes())
    }
}

impl Shown for Path {
    fn shown(&self) -> Printable<'_> {
        self.as_os_str().shown()
    }
}

/// A number with its noun: `1 file`, `2 files`, `2 processes`.
pub fn count<N: fmt::Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let end = match noun {
        _ if number == N::from(1) => "",
        _ if noun.ends_with("ss") => "es",
        _ => "s",
    };
    format!("{number} {noun}{end}")
}

/// The maximum number of characters of a name in a message.
const SHORT: usize = 60;
/// The maximum number of bytes that these characters and one more character can have. The additional character shows that the
/// name is longer.
pub const SHORT_BYTES: usize = 4 * (SHORT + 1);

/// The start of a text, for messages. Bytes after [`SHORT_BYTES`] are not examined.
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

/// Whether a character is a control character, or changes the direction of a line or ends it.
pub(crate) fn is_bad(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The colours in which this program prints.
pub const RED: &str = "\x1b[1;31m";
/// See [`RED`].
pub const YELLOW: &str = "\x1b[33m";
/// See [`RED`].
pub const GREEN: &str = "\x1b[32m";
/// See [`RED`].
pub const CYAN: &str = "\x1b[36m";
/// The end of a colour.
pub const PLAIN: &str = "\x1b[0m";
const COLOURS: [&str; 5] = [RED, YELLOW, GREEN, CYAN, PLAIN];

/// Passes text to a terminal or a file, so that nothing in the text controls the terminal. All control characters are escaped
/// as in [`printable`], except for line ends, tabs and the colours above. A character must not be split between two calls.
pub struct Safe<W>(pub W);

impl<W: Write> Write for Safe<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let is_plain = |&byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
        let mut rest = text;
        while !rest.is_empty() {
            let plain = rest.iter().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
            self.0.write_all(&rest[..plain])?;
            rest = &rest[plain..];
            if let Some(colour) = COLOURS.iter().find(|colour| rest.starts_with(colour.as_bytes())) {
                self.0.write_all(colour.as_bytes())?;
                rest = &rest[colour.len()..];
                continue;
            }
            // At least one byte is consumed, so that the loop ends.
            let end =
                rest.iter().skip(1).position(|byte| is_plain(byte) || *byte == 0x1b).map_or(rest.len(), |at| at + 1);
            write!(self.0, "{}", printable(&rest[..end]))?;
            rest = &rest[end..];
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a name contains a character that breaks lines or controls terminals.
pub fn has_control(name: &[u8]) -> bool {
    // Bytes below 0x20 are control characters in UTF-8 as in ASCII. U+0085 is also a control character, and has two bytes in
    // UTF-8.
    name.iter().any(|&byte| byte < 0x20 || byte == 0x7f)
        || name.utf8_chunks().any(|chunk| chunk.valid().chars().any(is_bad))
}

/// Whether perf's demanglers treat the name as mangled: C++, Rust, OCaml, or the descriptor of a Java method.
pub fn is_mangled(name: &[u8]) -> bool {
    let (start, rest) = name.split_at(name.len().min(2));
    let itanium = matches!(start, b"_Z" | b"_R") && !rest.is_empty();
    let ocaml = name.strip_prefix(b"caml").is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_uppercase));
    let java = name.first() == Some(&b'L') && name.contains(&b';') && name.contains(&b'(');
    itanium || ocaml || java
}

/// Whether the name is a type in the short notation of the Itanium C++ ABI: pointers, references and qualifiers before a letter
/// that stands for a type. perf from 6.12 on demangles these names, too.
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

    /// Wherever the bytes are cut, the cut is after the part that is shown.
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

    /// Whatever is printed, only the program's own colours reach the terminal.
    #[test]
    fn nothing_acts_on_a_terminal() {
        let safe = |text: &[u8]| {
            let mut out = Safe(Vec::new());
            out.write_all(text).unwrap();
            String::from_utf8(out.0).unwrap()
        };
        let plain = "é €\t😀: a line\n";
        assert_eq!(safe(plain.as_bytes()), plain);
        assert_eq!(safe(b""), "");
        let coloured = format!("{RED}error{PLAIN} {YELLOW}x{PLAIN}{GREEN}");
        assert_eq!(safe(coloured.as_bytes()), coloured);
        assert_eq!(safe(b"\x1b]0;title\x07\x1b[2J\x1b[0"), "\\u{1b}]0;title\\u{7}\\u{1b}[2J\\u{1b}[0");
        assert_eq!(safe("\u{9b}2J\u{202e}x\u{2066}\r".as_bytes()), "\\u{9b}2J\\u{202e}x\\u{2066}\\r");
        assert_eq!(safe(b"\x1b\x1b[0m\x9b\xff"), format!("\\u{{1b}}{PLAIN}\\x9b\\xff"));
        assert_eq!(Path::new("a\n\x1b").shown().to_string(), "a\\n\\u{1b}");
    }
}
