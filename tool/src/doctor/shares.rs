//! Prints the shares of samples with names and whole stacks, for `jitsym doctor` and `jitsym record`.

use super::stacks::Quality;
use super::{Mark, Report};
use crate::record::stacks::percent;
use crate::text::count;

/// The minimum number of samples for a judgement.
pub const ENOUGH: u64 = 10;
/// The percentage below which a share is a problem.
pub const FEW: f64 = 90.0;
/// The minimum percentage of all samples for a cause.
pub const SOME: f64 = 1.0;
/// The percentage below which a note is printed. A few stacks are cut off while a frame is made or removed.
const NEARLY_ALL: f64 = 99.0;

/// How much of the compiled code has names and stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    pub samples: u64,
    /// Samples in compiled code.
    pub compiled: u64,
    pub named: u64,
    /// `None` without call stacks.
    pub whole: Option<u64>,
    /// Whether a name hides another name.
    pub wrong_names: bool,
}

impl Shares {
    pub fn of(quality: &Quality, has_stacks: bool) -> Shares {
        let Quality { samples, jit, named, whole, .. } = *quality;
        Shares { samples, compiled: jit, named, whole: has_stacks.then_some(whole), wrong_names: false }
    }

    /// The mark of a share, and the line about it.
    fn line(&self, number: u64, what: &str) -> (Mark, String) {
        let share = percent(number, self.compiled);
        let line =
            format!("{number} of {} in compiled code have {what} ({share:.0} %)", count(self.compiled, "sample"));
        match share {
            ..FEW => (Mark::Bad, line),
            ..NEARLY_ALL => (Mark::Note, line),
            _ => (Mark::Good, line),
        }
    }

    pub fn names(&self) -> (Mark, String) {
        let (mark, line) = self.line(self.named, "names");
        match (self.wrong_names, mark) {
            (true, Mark::Good) => (Mark::Note, line + ", but some names are wrong: see the cause"),
            (true, _) => (mark, line + ", and some names are wrong: see the cause"),
            _ => (mark, line),
        }
    }

    pub fn stacks(&self) -> Option<(Mark, String)> {
        self.whole.map(|whole| self.line(whole, "whole stacks"))
    }

    /// Whether nothing is missing.
    pub fn are_good(&self) -> bool {
        let lines = [Some(self.line(self.named, "names")), self.stacks()];
        self.compiled >= ENOUGH && lines.iter().flatten().all(|(mark, _)| *mark == Mark::Good)
    }

    /// Adds a line. Returns whether the line reports a problem.
    pub fn tell((mark, line): (Mark, String), report: &mut Report) -> bool {
        match mark {
            Mark::Good => report.good(line),
            Mark::Note => report.note(line),
            Mark::Bad => report.bad(line),
        }
        mark == Mark::Bad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let of = |named| Shares { samples: 2000, compiled: 1000, named, ..Shares::default() }.names();
        assert_eq!(of(1000), (Mark::Good, "1000 of 1000 samples in compiled code have names (100 %)".into()));
        assert_eq!([of(990).0, of(989).0, of(900).0, of(899).0], [Mark::Good, Mark::Note, Mark::Note, Mark::Bad]);
        let wrong = Shares { wrong_names: true, compiled: 20, named: 20, ..Shares::default() };
        assert!(wrong.names().1.ends_with("(100 %), but some names are wrong: see the cause") && wrong.are_good());
        let shares = Shares { samples: 10, compiled: 10, named: 10, whole: Some(9), wrong_names: false };
        assert!(!shares.are_good() && Shares { whole: None, ..shares }.are_good());
        assert!(!Shares { compiled: 9, named: 9, whole: None, ..shares }.are_good());
    }
}
