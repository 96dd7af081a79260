//! Writes and reads perf maps, which have one line `START SIZE NAME` for each function (linux
//! tools/perf/Documentation/jit-interface.txt).
//!
//! perf reads two hexadecimal numbers from a line, skips one separator, and uses the rest as the name
//! (tools/perf/util/symbol.c, `dso__load_perf_map`). blazesym and ddprof reject numbers with a prefix `0x`. Android's
//! simpleperf needs this prefix, because it reads the numbers with `strtoull(.., 0)` (simpleperf read_symbol_map.cpp).

use crate::api::options::Dialect;

/// Appends one line for code at `start` with `size` bytes. `name` is cleaned, and has at least `name::MIN` bytes.
pub fn push_line(out: &mut Vec<u8>, dialect: Dialect, start: u64, size: u64, name: &[u8]) {
    let mut numbers = [0; 2 * NUMBER_MAX];
    let len = put_number(&mut numbers, 0, dialect, start);
    let len = put_number(&mut numbers, len, dialect, size);
    // Copies the whole array, and then truncates `out`, because a copy of constant length costs less than half as much as a
    // call of `memcpy`.
    let start = out.len();
    out.extend_from_slice(&numbers);
    out.truncate(start + len);
    out.extend_from_slice(name);
    out.push(b'\n');
}

/// An upper bound for the length of a line with this name.
pub fn line_len(name: &[u8]) -> usize {
    2 * NUMBER_MAX + name.len() + b"()\n".len()
}

/// The maximum length of a number with its prefix and separator.
const NUMBER_MAX: usize = b"0x".len() + HEX_MAX + b" ".len();
/// The number of digits of the largest number.
const HEX_MAX: usize = 16;

/// Writes a number with its prefix and separator at the offset `at`. Returns the offset after the separator.
#[inline(always)]
fn put_number(to: &mut [u8; 2 * NUMBER_MAX], mut at: usize, dialect: Dialect, value: u64) -> usize {
    if dialect == Dialect::Simpleperf {
        to[at..at + 2].copy_from_slice(b"0x");
        at += 2;
    }
    at += put_hex(to, at, value);
    to[at] = b' ';
    at + 1
}

/// Writes a number in lower-case digits without leading zeros, followed by arbitrary bytes. Returns the number of digits.
/// Computes all digits at once, because a loop over the digits would be slow.
#[inline(always)]
fn put_hex(to: &mut [u8; 2 * NUMBER_MAX], at: usize, value: u64) -> usize {
    let count = (u64::BITS - (value | 1).leading_zeros()).div_ceil(4) as usize;
    let value = value << (4 * (HEX_MAX - count));
    to[at..at + 8].copy_from_slice(&digits((value >> 32) as u32));
    if count > 8 {
        to[at + 8..at + 16].copy_from_slice(&digits(value as u32));
    }
    count
}

/// The eight hexadecimal digits of a number.
#[inline(always)]
fn digits(value: u32) -> [u8; 8] {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let halves = (u64::from(value) | u64::from(value) << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (halves | halves << 8) & 0x00ff_00ff_00ff_00ff;
    let digits = (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let are_letters = (digits + 6 * EACH) >> 4 & EACH;
    let letter = u64::from(b'a' - b'0' - 10);
    (digits + u64::from(b'0') * EACH + are_letters * letter).to_be_bytes()
}

/// The length of the complete lines at the start of a text.
pub fn whole_len(text: &[u8]) -> usize {
    text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
}

/// Start, size and name of each complete line, in either dialect. Invalid lines are skipped.
pub fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = (u64, u64, &[u8])> {
    text[..whole_len(text)].split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b' ');
        let (start, size) = (parse_hex(fields.next()?)?, parse_hex(fields.next()?)?);
        let name = fields.next().filter(|name| !name.is_empty())?;
        start.checked_add(size).filter(|&end| end > start)?;
        Some((start, size, name))
    })
}

fn parse_hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// A line of a perf map from any program, without its newline.
#[derive(Clone, Copy, Debug)]
pub struct RawLine<'a> {
    pub bytes: &'a [u8],
    /// Whether a newline follows the line.
    pub ended: bool,
}

/// All lines of a perf map. The last line may lack its newline.
pub fn raw_lines(text: &[u8]) -> impl Iterator<Item = RawLine<'_>> {
    text.split_inclusive(|&byte| byte == b'\n').map(|line| match line.strip_suffix(b"\n") {
        Some(bytes) => RawLine { bytes, ended: true },
        None => RawLine { bytes: line, ended: false },
    })
}

/// The fields of a line, and the form in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFields<'a> {
    /// Where the code starts.
    pub start: u64,
    pub size: u64,
    /// The rest of the line.
    pub name: &'a [u8],
    /// How many characters `start` has in the line.
    pub start_len: usize,
    /// How many characters `size` has in the line.
    pub size_len: usize,
    /// Whether one of the numbers begins with `0x`.
    pub prefixed: bool,
    /// Whether one of the numbers has hexadecimal digits in upper case (`A` to `F`).
    pub upper_case: bool,
    /// Whether there is exactly one space between the fields, and nothing before the first field.
    pub plain_separators: bool,
}

impl<'a> RawLine<'a> {
    /// Splits the line into fields in the same way as perf. Returns `None` if perf would not find two numbers.
    pub fn fields(&self) -> Option<RawFields<'a>> {
        let blanks = |bytes: &[u8]| bytes.iter().take_while(|byte| b" \t".contains(byte)).count();
        let number = |bytes: &'a [u8]| {
            let end = bytes.iter().position(|byte| b" \t\r".contains(byte)).unwrap_or(bytes.len());
            let (digits, rest) = bytes.split_at(end);
            parse_hex_any(digits).map(|value| (value, digits, rest))
        };
        let before = blanks(self.bytes);
        let (start, start_digits, rest) = number(&self.bytes[before..])?;
        let between = blanks(rest);
        let (size, size_digits, rest) = number(&rest[between..])?;
        let name = rest.get(1..).unwrap_or_default();
        let name = if rest.starts_with(b"\r") { rest } else { name };
        let has = |is: fn(&[u8]) -> bool| is(start_digits) || is(size_digits);
        let space = |bytes: &[u8]| bytes.first().is_none_or(|&byte| byte == b' ' || byte == b'\r');
        Some(RawFields {
            start,
            size,
            name,
            start_len: start_digits.len(),
            size_len: size_digits.len(),
            prefixed: has(has_prefix),
            upper_case: has(|digits| digits.iter().any(|byte| (b'A'..=b'F').contains(byte))),
            plain_separators: before == 0
                && between == 1
                && self.bytes[start_digits.len()..].starts_with(b" ")
                && space(rest)
                && blanks(name) == 0,
        })
    }
}

fn has_prefix(digits: &[u8]) -> bool {
    digits.starts_with(b"0x") || digits.starts_with(b"0X")
}

/// Parses a hexadecimal number as `strtoull` does, but refuses signs.
fn parse_hex_any(digits: &[u8]) -> Option<u64> {
    let digits = if has_prefix(digits) { &digits[2..] } else { digits };
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(dialect: Dialect, start: u64, size: u64, name: &str) -> String {
        let mut out = Vec::new();
        push_line(&mut out, dialect, start, size, name.as_bytes());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn golden_lines() {
        assert_eq!(line(Dialect::Perf, 0x7f00_0000_1000, 0x2c, "fib(int) x"), "7f0000001000 2c fib(int) x\n");
        assert_eq!(line(Dialect::Simpleperf, 0x1000, 16, "abc"), "0x1000 0x10 abc\n");
        assert_eq!(line(Dialect::Perf, u64::MAX, u64::MAX, "max"), "ffffffffffffffff ffffffffffffffff max\n");
        assert_eq!(line(Dialect::Perf, 0, 1, "zero"), "0 1 zero\n");
    }

    #[test]
    fn numbers_of_every_length() {
        for shift in 0..64 {
            for value in [0xfedc_ba98_7654_3210 >> shift, 0x0123_4567_89ab_cdef >> shift, 1 << shift] {
                assert_eq!(line(Dialect::Perf, value, 10, "abc"), format!("{value:x} a abc\n"));
            }
        }
    }

    #[test]
    fn lines_come_back() {
        let mut text = Vec::new();
        push_line(&mut text, Dialect::Perf, 0x7f00_0000_1000, 0x2c, b"fib(int) x");
        push_line(&mut text, Dialect::Simpleperf, 16, 1, b"fib");
        text.extend_from_slice(b"nonsense\n10 0 empty\nffffffffffffffff 2 beyond\n20 4 torn");
        let read: Vec<_> = lines(&text).collect();
        assert_eq!(read, [(0x7f00_0000_1000, 0x2c, &b"fib(int) x"[..]), (16, 1, b"fib")]);
        assert_eq!(lines(b"").count() + lines(b"10 1 torn").count(), 0);
    }
}
