//! The perf map: one line `START SIZE NAME` a function (linux tools/perf/Documentation/jit-interface.txt).
//!
//! As read by perf (tools/perf/util/symbol.c, `dso__load_perf_map`): two hexadecimal numbers, one separator, the rest is the
//! name; a name shorter than three bytes is dropped. blazesym and ddprof take no `0x`; Android's simpleperf reads the numbers
//! with `strtoull(.., 0)` and so needs it (simpleperf read_symbol_map.cpp).

/// Who is to read the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// perf and all others.
    #[default]
    Perf,
    /// Android's simpleperf.
    Simpleperf,
}

/// Appends one line for code at `start`, `size` bytes long. `name` has been cleaned and is not empty.
pub fn push_line(out: &mut Vec<u8>, dialect: Dialect, start: u64, size: u64, name: &[u8]) {
    let prefix: &[u8] = if dialect == Dialect::Simpleperf { b"0x" } else { b"" };
    out.reserve(line_len(name));
    out.extend_from_slice(prefix);
    push_hex(out, start);
    out.push(b' ');
    out.extend_from_slice(prefix);
    push_hex(out, size);
    out.push(b' ');
    out.extend_from_slice(name);
    if name.len() < 3 {
        out.extend_from_slice(b"()");
    }
    out.push(b'\n');
}

/// The most bytes that a line with this name takes.
pub fn line_len(name: &[u8]) -> usize {
    2 * (b"0x".len() + HEX_MAX + b" ".len()) + name.len() + b"()\n".len()
}

/// Digits of the largest number.
const HEX_MAX: usize = 16;

/// Lower-case digits without leading zeros, which `write!` does at four times the cost.
fn push_hex(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; HEX_MAX];
    let mut first = HEX_MAX;
    while first == HEX_MAX || value != 0 {
        first -= 1;
        digits[first] = b"0123456789abcdef"[(value & 0xf) as usize];
        value >>= 4;
    }
    out.extend_from_slice(&digits[first..]);
}

/// Start, size and name of all whole lines in either dialect. Lines that make no sense are passed over.
pub fn lines(text: &[u8]) -> impl Iterator<Item = (u64, u64, &[u8])> {
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    text[..whole].split(|&byte| byte == b'\n').filter_map(|line| {
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
    fn short_names_reach_three_bytes() {
        assert_eq!(line(Dialect::Perf, 16, 1, "f"), "10 1 f()\n");
        assert_eq!(line(Dialect::Perf, 16, 1, "ab"), "10 1 ab()\n");
        assert_eq!(line(Dialect::Perf, 16, 1, "abc"), "10 1 abc\n");
    }

    #[test]
    fn lines_come_back() {
        let mut text = Vec::new();
        push_line(&mut text, Dialect::Perf, 0x7f00_0000_1000, 0x2c, b"fib(int) x");
        push_line(&mut text, Dialect::Simpleperf, 16, 1, b"f");
        text.extend_from_slice(b"nonsense\n10 0 empty\nffffffffffffffff 2 beyond\n20 4 torn");
        let read: Vec<_> = lines(&text).collect();
        assert_eq!(read, [(0x7f00_0000_1000, 0x2c, &b"fib(int) x"[..]), (16, 1, b"f()")]);
        assert_eq!(lines(b"").count() + lines(b"10 1 torn").count(), 0);
    }
}
