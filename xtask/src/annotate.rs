//! What `perf annotate` prints: at which instructions of a function it shows samples.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};

use crate::score::{Sample, Share};
use crate::truth::Truth;

/// Fewer samples in the hottest function tell nothing.
const ENOUGH: usize = 20;

/// The function with the most samples that perf names rightly, and how many samples there are at each offset. Of samples from a
/// time when nobody had been told of the code, those that perf names all the same.
pub fn hottest(truth: &Truth, samples: &[Sample]) -> Option<(String, BTreeMap<u64, usize>)> {
    let mut offsets: HashMap<&str, BTreeMap<u64, usize>> = HashMap::new();
    for sample in samples {
        let Some(name) = sample.name.as_deref() else { continue };
        let index = truth.code_at(sample.ip, sample.time).or_else(|| truth.code_called(sample.ip, name));
        let Some(code) = index.map(|index| &truth.codes[index]).filter(|code| code.is_named(name)) else { continue };
        *offsets.entry(name).or_default().entry(sample.ip - code.addr).or_default() += 1;
    }
    let hottest = offsets.into_iter().max_by_key(|(name, offsets)| (offsets.values().sum::<usize>(), *name));
    hottest
        .filter(|(_, offsets)| offsets.values().sum::<usize>() >= ENOUGH)
        .map(|(name, offsets)| (name.to_string(), offsets))
}

/// Samples by offset, from all of the functions in the output: code that was moved is there once a place.
pub fn parse(text: &str) -> Result<BTreeMap<u64, usize>> {
    let mut samples = BTreeMap::new();
    let (mut of_function, mut begin) = (0.0, None);
    for line in text.lines() {
        if line.trim_start().starts_with("Percent") && line.contains(" samples, ") {
            let before = line.split(" samples, ").next().unwrap_or_default();
            let count = before.rsplit('(').next().unwrap_or_default();
            of_function = count.parse::<f64>().with_context(|| format!("samples in {line:?}"))?;
            begin = None;
        } else if let Some((percent, address)) = instruction(line) {
            // All instructions are shown, from the first one on.
            let offset = address - *begin.get_or_insert(address);
            let count = (percent * of_function / 100.0).round() as usize;
            if count > 0 {
                *samples.entry(offset).or_default() += count;
            }
        }
    }
    Ok(samples)
}

/// `PERCENT : ADDRESS: INSTRUCTION`; other lines are source and headings.
fn instruction(line: &str) -> Option<(f64, u64)> {
    let (percent, rest) = line.split_once(" : ")?;
    let percent: f64 = percent.trim().parse().ok()?;
    let (address, text) = rest.trim_start().split_once(':')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    (!text.trim().is_empty()).then_some((percent, address))
}

/// How many of the samples are shown where they were taken.
pub fn compare(taken: &BTreeMap<u64, usize>, shown: &BTreeMap<u64, usize>) -> Share {
    let right = taken.iter().map(|(offset, count)| *count.min(shown.get(offset).unwrap_or(&0))).sum();
    Share { counted: taken.values().sum::<usize>().max(shown.values().sum()), right }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
 Percent |\tSource code & Disassembly of jitted-17911-1.so for cpu-clock (160 samples, percent: local hits)
-----------------------------------------------------------------
         : 5  0000000000000080 <leaf>:
         : 6  leaf():
    0.00 :   80:     push   %rbx
   25.00 :   8a:     dec    %rdi // guest.toy:3
   75.00 :   8d:     jne    87 <leaf+0x7>
 Percent |\tSource code & Disassembly of jitted-17911-2.so for cpu-clock (40 samples, percent: local hits)
    0.00 :   201080:     push   %rbx
  100.00 :   20108a:     dec    %rdi
";

    #[test]
    fn samples_are_at_instructions() {
        let shown = parse(TEXT).unwrap();
        assert_eq!(shown, BTreeMap::from([(0xa, 80), (0xd, 120)]));
        assert_eq!(compare(&BTreeMap::from([(0xa, 80), (0xd, 120)]), &shown).percent(), 100.0);
    }

    #[test]
    fn samples_elsewhere_are_wrong() {
        let shown = parse(TEXT).unwrap();
        assert_eq!(compare(&BTreeMap::from([(0xb, 80), (0xd, 120)]), &shown).percent(), 60.0);
        assert_eq!(compare(&BTreeMap::from([(0xd, 120)]), &shown).percent(), 60.0, "some that were not taken");
        assert_eq!(compare(&BTreeMap::from([(0xd, 120)]), &parse("nothing\n").unwrap()).percent(), 0.0);
    }

    #[test]
    fn the_hottest_function_is_found() {
        let truth = Truth::parse("pid\t1\ncode\t1\t1000\t10\t0\t0\ta\ncode\t2\t2000\t10\t5\t0\tb\nend\n").unwrap();
        let sample = |ip, time, name: &str| Sample { tid: 1, time, ip, name: Some(name.into()), frames: Vec::new() };
        let mut samples = vec![sample(0x1001, 7, "a"), sample(0x2004, 7, "b"), sample(0x1002, 7, "b")];
        samples.extend((0..ENOUGH - 2).map(|_| sample(0x2001, 7, "b")));
        assert!(hottest(&truth, &samples).is_none(), "one is missing");
        // Before it was announced; and for what is not code at all.
        samples.extend([sample(0x2001, 4, "b"), sample(0x3001, 4, "b"), sample(0x1001, 4, "b")]);
        let (name, offsets) = hottest(&truth, &samples).unwrap();
        assert_eq!((name.as_str(), offsets), ("b", BTreeMap::from([(1, ENOUGH - 1), (4, 1)])));
    }
}
