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

/// Lower-case digits without leading zeros, which `write!` does at four times the cost.
fn push_hex(out: &mut Vec<u8>, value: u64) {
    let digits = (64 - (value | 1).leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        let nibble = (value >> (4 * digit) & 0xf) as usize;
        out.push(b"0123456789abcdef"[nibble]);
    }
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
}
