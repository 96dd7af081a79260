//! What `perf report` prints: samples by symbol, held against `perf script`.

use std::collections::HashMap;

use anyhow::{Context, Result};

use crate::score::Share;

/// Between the fields. Names hold no control characters.
pub const SEPARATOR: &str = "\t";

/// Samples by symbol; those without one are under the empty name.
pub fn parse(text: &str) -> Result<HashMap<String, usize>> {
    let mut samples = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (count, symbol) = line.split_once(SEPARATOR).with_context(|| format!("report line {line:?}"))?;
        let count: usize = count.trim().parse().with_context(|| format!("samples in {line:?}"))?;
        // `[.]`, `[k]` and the like come first.
        let symbol = symbol.trim();
        let name = match symbol.split_once("] ") {
            Some((mark, name)) if mark.starts_with('[') && mark.len() == 2 => name.trim_start(),
            _ => symbol,
        };
        // Without a symbol: the address, each its own line.
        let is_address = name.strip_prefix("0x").is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok());
        let name = if is_address || name == "[unknown]" { "" } else { name };
        *samples.entry(name.to_string()).or_default() += count;
    }
    Ok(samples)
}

/// How many of the samples are given to the same symbols by both; what only the report has counts as wrong too.
pub fn compare(scripted: &HashMap<String, usize>, reported: &HashMap<String, usize>) -> Share {
    let right = scripted.iter().map(|(name, count)| *count.min(reported.get(name).unwrap_or(&0))).sum();
    let counted = scripted.values().sum::<usize>().max(reported.values().sum());
    Share { counted, right }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_counted() {
        let text = "         750\t[.] two words\n      20\t[.] 0x00007f0000001000\n  5\t[.] 0x00007f0000001010\n\
            # comment\n\n   3\t[k] finish_task_switch.isra.0\n   2\t[.] two words\n";
        let samples = parse(text).unwrap();
        let expected = [("two words", 752), ("", 25), ("finish_task_switch.isra.0", 3)];
        assert_eq!(samples, expected.map(|(name, count)| (name.to_string(), count)).into());
        assert!(parse("what\n").is_err());
    }

    #[test]
    fn what_differs_is_wrong() {
        let of = |pairs: &[(&str, usize)]| pairs.iter().map(|(name, count)| (name.to_string(), *count)).collect();
        let scripted = of(&[("a", 90), ("b", 10)]);
        assert_eq!(compare(&scripted, &scripted).percent(), 100.0);
        assert_eq!(compare(&scripted, &of(&[("a", 90), ("c", 10)])).percent(), 90.0);
        assert_eq!(compare(&scripted, &of(&[("a", 90)])).percent(), 90.0, "a missing symbol");
        assert_eq!(compare(&scripted, &of(&[("a", 100), ("b", 100)])).percent(), 50.0, "more than there were");
        assert_eq!(compare(&scripted, &of(&[])).percent(), 0.0);
    }
}
