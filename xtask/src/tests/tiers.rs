//! Which tests belong to which tier: the list in `tests/tiers.txt`.

use anyhow::{bail, Context, Result};

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Some tests of each kind, in less than a minute.
    Fast,
    /// Each promise once.
    Gate,
    /// All that a machine can run without help.
    All,
    /// Nothing runs these: they need somebody who looks, or files that only somebody has.
    ByHand,
}

impl Tier {
    /// A tier that can be asked for.
    pub fn parse(text: &str) -> Option<Self> {
        [Tier::Fast, Tier::Gate, Tier::All].into_iter().find(|tier| tier.name() == text)
    }

    pub fn name(self) -> &'static str {
        match self {
            Tier::Fast => "fast",
            Tier::Gate => "gate",
            Tier::All => "all",
            Tier::ByHand => "by-hand",
        }
    }
}

/// The list: the first pattern that fits a test says its tier. Tests without one belong to the gate.
pub struct Tiers(Vec<(Tier, String)>);

impl Tiers {
    pub fn parse(text: &str) -> Result<Self> {
        let mut patterns = Vec::new();
        let mut tier = None;
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                let named = |tier: &Tier| tier.name() == name;
                let all = [Tier::Fast, Tier::All, Tier::ByHand];
                tier = Some(all.into_iter().find(named).with_context(|| format!("tests/tiers.txt has {line}"))?);
            } else if !line.is_empty() {
                patterns.push((tier.context("tests/tiers.txt begins without a tier")?, line.to_string()));
            }
        }
        Ok(Tiers(patterns))
    }

    pub fn of(&self, test: &str) -> Tier {
        self.0.iter().find(|(_, pattern)| fits(pattern, test)).map_or(Tier::Gate, |(tier, _)| *tier)
    }

    /// An error for a pattern that none of these tests fits: the test has another name now.
    pub fn check(&self, tests: &[String]) -> Result<()> {
        for (tier, pattern) in &self.0 {
            if !tests.iter().any(|test| fits(pattern, test)) {
                bail!("tests/tiers.txt has {pattern} as {}, but no test is called so", tier.name());
            }
        }
        Ok(())
    }
}

/// Whether a text is what a pattern says, in which `*` stands for anything.
pub fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Of each part the first place leaves the most for those that follow.
    let mut left = text.strip_prefix(start);
    for part in middle.split('*') {
        left = left.and_then(|text| text.split_once(part)).map(|(_, rest)| rest);
    }
    left.is_some_and(|text| text.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_decides() {
        let tiers = Tiers::parse("[fast]\na::b # why\n[all]\na::*\n*::slow_*\n[by-hand]\nc\n").unwrap();
        let names = ["a::b", "a::c", "x::y::slow_z", "slow_z", "c", "d"];
        let expected = [Tier::Fast, Tier::All, Tier::All, Tier::Gate, Tier::ByHand, Tier::Gate];
        assert_eq!(names.map(|name| tiers.of(name)), expected);
        let all = names.map(str::to_string);
        assert!(tiers.check(&all).is_ok() && tiers.check(&all[1..]).is_err(), "a pattern without a test");
        let fitting = ["a*b*c*d", "*", "*c*", "abxbcd*", "*abxbcd", "a**d"];
        assert!(fitting.iter().all(|pattern| fits(pattern, "abxbcd")));
        assert!(!["a*d*d", "abc*", "b*", "*bxbc", "ab*bxbcd", "a*b*b*b*d", ""]
            .iter()
            .any(|pattern| fits(pattern, "abxbcd")));
        assert!(Tiers::parse("a\n").is_err() && Tiers::parse("[some]\n").is_err());
    }
}
