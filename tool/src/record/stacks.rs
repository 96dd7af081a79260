//! Adds up samples: the hottest functions with their callers, and a flame graph.

use std::collections::HashMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{BasicPalette, MultiPalette, Palette};
use inferno::flamegraph::{self, Options};

use super::script::{Kind, Sample};
use crate::text::{is_bad, printable};

/// The number of functions that are printed, and of callers for each.
const FUNCTIONS: usize = 10;
const CALLERS: usize = 3;

/// Sums of samples.
#[derive(Default)]
pub struct Stacks {
    total: u64,
    jit: u64,
    /// For each name and kind, the samples of a function, and the samples for each caller.
    functions: HashMap<(String, Kind), (u64, HashMap<String, u64>)>,
    /// Stacks with the outermost frame first, separated by `;`, in the format of programs for flame graphs.
    folded: HashMap<String, u64>,
    /// Whether `folded` is needed.
    fold: bool,
}

impl Stacks {
    /// Makes empty sums. `fold` is true if a flame graph will be made.
    pub fn new(fold: bool) -> Self {
        Stacks { fold, ..Stacks::default() }
    }

    pub fn add(&mut self, sample: &Sample) {
        let Some(innermost) = sample.frames.first() else { return };
        self.total += 1;
        self.jit += u64::from(innermost.kind().is_jit());
        let (count, callers) = self.functions.entry((innermost.shown(), innermost.kind())).or_default();
        *count += 1;
        if let Some(caller) = sample.frames.get(1) {
            *callers.entry(caller.shown()).or_default() += 1;
        }
        if self.fold {
            let mut stack = String::new();
            for frame in sample.frames.iter().rev() {
                if !stack.is_empty() {
                    stack.push(';');
                }
                stack
                    .extend(frame.shown().chars().map(|c| if c == ';' || is_bad(c) || is_no_xml(c) { ':' } else { c }));
                stack.push_str(match frame.kind() {
                    Kind::Kernel => "_[k]",
                    kind if kind.is_jit() => "_[j]",
                    _ => "",
                });
            }
            *self.folded.entry(stack).or_default() += 1;
        }
    }

    /// The number of samples, and of samples in JIT-compiled code.
    pub fn counts(&self) -> (u64, u64) {
        (self.total, self.jit)
    }

    /// Prints the hottest functions.
    pub fn top(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut functions: Vec<_> = self.functions.iter().collect();
        functions.sort_by(|(a, (count, _)), (b, (other, _))| other.cmp(count).then(a.cmp(b)));
        writeln!(out, "{:>6}  function, and its callers", "self")?;
        for ((name, kind), (count, callers)) in functions.into_iter().take(FUNCTIONS) {
            let of_whom = if kind.is_jit() { "  [JIT]" } else { "" };
            writeln!(out, "{:>5.1}%  {}{of_whom}", percent(*count, self.total), printable(name.as_bytes()))?;
            let mut callers: Vec<_> = callers.iter().collect();
            callers.sort_by(|(a, count), (b, other)| other.cmp(count).then(a.cmp(b)));
            for (caller, calls) in callers.iter().take(CALLERS) {
                writeln!(out, "{:>11.0}%  {}", percent(**calls, *count), printable(caller.as_bytes()))?;
            }
            if callers.len() > CALLERS {
                writeln!(out, "{:>13} {} others", "", callers.len() - CALLERS)?;
            }
        }
        Ok(())
    }

    /// Writes the flame graph: JIT-compiled code is green, the kernel orange, and other code red and yellow.
    pub fn flamegraph(&self, title: &str, out: impl Write) -> io::Result<()> {
        let mut lines: Vec<String> = self.folded.iter().map(|(stack, count)| format!("{stack} {count}")).collect();
        lines.sort_unstable();
        let mut options = Options::default();
        options.title = title.into();
        options.colors = Palette::Multi(MultiPalette::Java);
        if self.jit == 0 {
            options.colors = Palette::Basic(BasicPalette::Hot);
        }
        // The same recording always gives the same picture.
        options.deterministic = true;
        flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(io::Error::other)
    }
}

/// Whether XML excludes the character, although it is not a control character.
fn is_no_xml(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// A percentage. 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hottest_functions_and_a_flame_graph() {
        let mut stacks = Stacks::new(true);
        for _ in 0..3 {
            stacks.add(&Sample::of(&[
                ("leaf; (a)", "/tmp/jitted-7-1.so"),
                ("caller", "/tmp/jit-7-0.so"),
                ("main", "/vm"),
            ]));
        }
        stacks.add(&Sample::of(&[("", "/vm")]));
        stacks.add(&Sample::of(&[]));
        assert_eq!(stacks.counts(), (4, 3));
        let mut text = Vec::new();
        stacks.top(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(" 75.0%  leaf; (a)  [JIT]\n        100%  caller\n 25.0%  [vm]\n"), "{text}");
        let mut svg = Vec::new();
        stacks.flamegraph("a <title>", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains("<svg") && svg.contains("leaf: (a)") && svg.contains("a &lt;title&gt;"), "{svg}");
        assert!(!svg.contains("_[j]"), "the mark is for the colour only");
    }
}
