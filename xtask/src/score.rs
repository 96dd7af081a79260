//! How right a reader is: its samples held against the truth.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use crate::truth::{Moment, Part, Truth};

/// A frame as a reader shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// As printed; `None` if the reader has no name for it.
    pub name: Option<String>,
    /// What the reader takes it for. If it knows nothing of it, the truth says.
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Guest,
    Native,
}

/// A sample as a reader shows it.
#[derive(Clone, Debug)]
pub struct Sample {
    pub tid: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// In memory.
    pub ip: u64,
    /// The innermost frame.
    pub name: Option<String>,
    /// Innermost first; empty if no stack was asked for.
    pub frames: Vec<Frame>,
}

/// How many samples counted, and how many were right.
#[derive(Clone, Debug, Default)]
pub struct Share {
    pub counted: usize,
    pub right: usize,
}

impl Share {
    pub fn add(&mut self, right: bool) {
        self.counted += 1;
        self.right += usize::from(right);
    }

    /// In percent; of nothing, nothing is right.
    pub fn percent(&self) -> f64 {
        if self.counted == 0 {
            return 0.0;
        }
        self.right as f64 * 100.0 / self.counted as f64
    }
}

/// The verdict on one reader in one scenario.
#[derive(Clone, Debug, Default)]
pub struct Score {
    pub names: Share,
    pub stacks: Share,
    /// Where in their code those are that have a wrong stack, if the program was stepped.
    pub wrong_offsets: BTreeSet<u64>,
    /// Some of the samples that are wrong, for people.
    pub wrong: Vec<String>,
}

/// How many wrong samples are kept of each kind.
const EXAMPLES: usize = 12;

/// Scores a reader's samples; stacks only where the reader was asked for whole ones.
pub fn score(truth: &Truth, samples: &[Sample], with_stacks: bool) -> Score {
    if let Some(moments) = &truth.moments {
        return score_moments(truth, moments, samples, with_stacks);
    }
    let mut score = Score::default();
    let (mut wrong_names, mut wrong_stacks) = (Vec::new(), Vec::new());
    for sample in samples {
        let Some(index) = truth.code_at(sample.ip, sample.time) else { continue };
        if truth.is_unnamed(sample.tid, sample.time) {
            continue;
        }
        let code = &truth.codes[index];
        let right = sample.name.as_deref().is_some_and(|name| code.is_named(name));
        score.names.add(right);
        if !right && wrong_names.len() < EXAMPLES {
            wrong_names.push(format!(
                "name {:?} instead of {:?} at {:x} (offset {:x}), {} ns after its registration",
                sample.name,
                code.name,
                sample.ip,
                sample.ip - code.addr,
                sample.time - code.from
            ));
        }
        if !with_stacks {
            continue;
        }
        let Some(stack) = truth.stack_at(sample.tid, sample.time) else { continue };
        if stack.first() != Some(&Part::Code(index)) {
            continue;
        }
        let right = is_stack(truth, stack, &sample.frames);
        score.stacks.add(right);
        if !right && wrong_stacks.len() < EXAMPLES {
            wrong_stacks.push(format!(
                "at offset {:x}, time {}: {} instead of {}",
                sample.ip - code.addr,
                sample.time,
                shown(&sample.frames),
                expected(truth, stack)
            ));
        }
    }
    score.wrong = wrong_names;
    score.wrong.append(&mut wrong_stacks);
    score
}

/// The same of a program that was stepped: each moment has to be there, and has one right answer.
fn score_moments(truth: &Truth, moments: &[Moment], samples: &[Sample], with_stacks: bool) -> Score {
    let mut score = Score::default();
    let shown_at: HashMap<(u32, u64), &Sample> = samples.iter().map(|s| ((s.tid, s.time), s)).collect();
    // One example for each instruction.
    let (mut wrong_names, mut wrong_stacks) = (HashMap::new(), HashMap::new());
    for moment in moments {
        let Some(index) = truth.code_at(moment.ip, moment.time) else { continue };
        if truth.is_unnamed(moment.tid, moment.time) {
            continue;
        }
        let code = &truth.codes[index];
        let at = (code.name.as_str(), moment.ip - code.addr);
        let sample = shown_at.get(&(moment.tid, moment.time));
        let name = sample.and_then(|sample| sample.name.as_deref());
        let right = name.is_some_and(|name| code.is_named(name));
        score.names.add(right);
        if !right {
            let example = || format!("{name:?} instead of {:?} at {:x}", code.name, moment.ip);
            wrong_names.entry(at).or_insert_with(|| (0, example())).0 += 1;
        }
        let Some(stack) = moment.stack.as_ref().filter(|_| with_stacks) else { continue };
        let frames = sample.map(|sample| &*sample.frames).unwrap_or_default();
        let offset = moment.ip - code.addr;
        let is_popped = code.popped.iter().any(|range| range.contains(&offset));
        let right = is_stack(truth, stack, frames) || is_popped && is_cut(truth, stack, frames);
        score.stacks.add(right);
        if !right {
            score.wrong_offsets.insert(offset);
            let example = || format!("{} instead of {}", shown(frames), expected(truth, stack));
            wrong_stacks.entry(at).or_insert_with(|| (0, example())).0 += 1;
        }
    }
    for (what, wrong) in [("names", wrong_names), ("stacks", wrong_stacks)] {
        let mut wrong: Vec<_> = wrong.into_iter().collect();
        wrong.sort();
        let instructions = wrong.len();
        let text = |((name, offset), (count, example))| {
            format!("{count} {what} at {name:?}+{offset:x}, of {instructions} instructions: {example}")
        };
        score.wrong.extend(wrong.into_iter().take(EXAMPLES).map(text));
    }
    score
}

/// Whether the frames are those of the stack: each one, in its order, and no other.
pub fn is_stack(truth: &Truth, stack: &[Part], frames: &[Frame]) -> bool {
    match stack.split_first() {
        None => frames.is_empty(),
        Some((Part::AnyNative, rest)) => {
            let skipped = frames.iter().take_while(|frame| may_be_native(frame)).count();
            (0..=skipped).rev().any(|skip| is_stack(truth, rest, &frames[skip..]))
        }
        Some((part, rest)) => {
            let Some((frame, outer)) = frames.split_first() else { return false };
            let name = frame.name.as_deref();
            let right = match part {
                Part::Code(index) => {
                    frame.kind == Kind::Guest && name.is_some_and(|name| truth.codes[*index].is_named(name))
                }
                // Compilers give a suffix to parts and copies of functions.
                Part::Native(native) => {
                    frame.kind == Kind::Native && name.is_some_and(|name| name.split(['.', '@']).next() == Some(native))
                }
                Part::OneNative => frame.kind == Kind::Native,
                Part::AnyNative => false,
            };
            right && is_stack(truth, rest, outer)
        }
    }
}

/// Whether the frames are a part of the stack, from the innermost on, which ends at code.
fn is_cut(truth: &Truth, stack: &[Part], frames: &[Frame]) -> bool {
    let ends_at_code = frames.last().is_some_and(|frame| frame.kind == Kind::Guest);
    ends_at_code && (1..stack.len()).any(|end| is_stack(truth, &stack[..end], frames))
}

fn may_be_native(frame: &Frame) -> bool {
    frame.kind == Kind::Native
}

pub fn shown(frames: &[Frame]) -> String {
    let mut text = String::new();
    for frame in frames {
        let mark = if frame.kind == Kind::Native { "*" } else { "" };
        let _ = write!(text, "{mark}{} < ", frame.name.as_deref().unwrap_or("[unknown]"));
    }
    text + "end"
}

pub fn expected(truth: &Truth, stack: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Code(index) => truth.codes[*index].name.clone(),
        Part::Native(name) => format!("*{name}"),
        Part::OneNative => "*".into(),
        Part::AnyNative => "?".into(),
    };
    stack.iter().map(part).collect::<Vec<_>>().join(" < ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> Truth {
        Truth::parse(
            "pid\t7\ncode\t1\t1000\t100\t0\t0\tleaf\ncode\t2\t2000\t100\t0\t0\tmid one\ncode\t3\t3000\t100\t50\t60\tshort\n\
             alias\t1\tleaf()\nrun\t7\t10\t20\t1,2,*qsort,2,?\nunnamed\t7\t30\t40\nend\n",
        )
        .unwrap()
    }

    fn frames(text: &str) -> Vec<Frame> {
        let frame = |part: &str| {
            let (kind, name) = match part.strip_prefix('*') {
                Some(name) => (Kind::Native, name),
                None => (Kind::Guest, part),
            };
            Frame { name: (!name.is_empty()).then(|| name.into()), kind }
        };
        text.split(',').map(frame).collect()
    }

    fn sample(time: u64, ip: u64, text: &str) -> Sample {
        let frames = frames(text);
        Sample { tid: 7, time, ip, name: frames[0].name.clone(), frames }
    }

    fn of_one(sample: Sample) -> (f64, f64) {
        let score = score(&truth(), &[sample], true);
        assert_eq!((score.names.counted, score.stacks.counted), (1, 1));
        (score.names.percent(), score.stacks.percent())
    }

    #[test]
    fn a_right_sample_is_right() {
        assert_eq!(of_one(sample(15, 0x1004, "leaf,mid one,*qsort,mid one,*main,*_start")), (100.0, 100.0));
        assert_eq!(of_one(sample(15, 0x1004, "leaf(),mid one,*qsort.part.0,mid one")), (100.0, 100.0));
        assert_eq!(of_one(sample(15, 0x1004, "leaf,mid one,*qsort,mid one,*")), (100.0, 100.0));
    }

    #[test]
    fn a_wrong_name_is_wrong() {
        assert_eq!(of_one(sample(15, 0x1004, "other,mid one,*qsort,mid one")), (0.0, 0.0));
        assert_eq!(of_one(sample(15, 0x1004, ",mid one,*qsort,mid one")), (0.0, 0.0));
        assert_eq!(of_one(sample(15, 0x1004, "leaf,mid,*qsort,mid one")), (100.0, 0.0));
        assert_eq!(of_one(sample(15, 0x1004, "leaf,mid one,*bsearch,mid one")), (100.0, 0.0));
    }

    #[test]
    fn a_missing_frame_is_wrong() {
        for stack in
            ["leaf", "leaf,mid one", "leaf,mid one,*qsort", "leaf,*qsort,mid one", "leaf,mid one,mid one,*main"]
        {
            assert_eq!(of_one(sample(15, 0x1004, stack)), (100.0, 0.0), "{stack}");
        }
    }

    #[test]
    fn an_extra_frame_is_wrong() {
        for stack in [
            "leaf,mid one,mid one,*qsort,mid one",
            "leaf,*main,mid one,*qsort,mid one",
            "leaf,mid one,*other,*qsort,mid one",
            "leaf,mid one,*qsort,mid one,mid one",
            "leaf,mid one,*qsort,mid one,*main,leaf",
            // Code of the guest without a name is no native function.
            "leaf,mid one,*qsort,mid one,",
        ] {
            assert_eq!(of_one(sample(15, 0x1004, stack)), (100.0, 0.0), "{stack}");
        }
    }

    #[test]
    fn native_functions_do_not_pass_for_code_nor_code_for_them() {
        assert_eq!(of_one(sample(15, 0x1004, "leaf,*mid one,*qsort,mid one")), (100.0, 0.0));
        assert_eq!(of_one(sample(15, 0x1004, "leaf,mid one,qsort,mid one")), (100.0, 0.0));
    }

    #[test]
    fn only_what_the_truth_knows_is_counted() {
        let counted = |sample: Sample| {
            let score = score(&truth(), &[sample], true);
            (score.names.counted, score.stacks.counted)
        };
        assert_eq!(counted(sample(15, 0x5000, "leaf")), (0, 0), "no code there");
        assert_eq!(counted(sample(35, 0x1000, "leaf")), (0, 0), "not named yet");
        assert_eq!(counted(sample(25, 0x1000, "leaf")), (1, 0), "no stack is known");
        assert_eq!(counted(sample(15, 0x2000, "mid one")), (1, 0), "not in the innermost function");
        assert_eq!(counted(sample(55, 0x3000, "short")), (1, 0));
        assert_eq!(counted(sample(60, 0x3000, "short")), (0, 0), "the code is gone");
        let mut other = sample(15, 0x1000, "leaf");
        other.tid = 8;
        assert_eq!(counted(other), (1, 0), "another thread's stack");
    }

    #[test]
    fn each_moment_of_a_program_that_was_stepped_is_counted() {
        let code = |index| Part::Code(index);
        let stack = || Some(vec![code(0), code(1), Part::OneNative, Part::AnyNative]);
        let moment = |time, ip| Moment { tid: 7, time, ip, callers: Vec::new(), stack: stack() };
        let mut truth = truth();
        truth.codes[0].popped.push(4..6);
        truth.moments = Some(vec![moment(11, 0x1000), moment(12, 0x1004), moment(13, 0x5000), moment(35, 0x1000)]);
        let of = |samples: &[Sample]| {
            let score = score(&truth, samples, true);
            let offsets: Vec<u64> = score.wrong_offsets.iter().copied().collect();
            (score.names.right, score.names.counted, score.stacks.right, score.stacks.counted, offsets)
        };
        let whole = |time, ip| sample(time, ip, "leaf,mid one,*qsort,*main");
        assert_eq!(of(&[whole(11, 0x1000), whole(12, 0x1004)]), (2, 2, 2, 2, vec![]));
        assert_eq!(of(&[whole(12, 0x1004)]), (1, 2, 1, 2, vec![0]), "one is missing");
        let cut = |time, ip| sample(time, ip, "leaf");
        assert_eq!(of(&[whole(11, 0x1000), cut(12, 0x1004)]), (2, 2, 2, 2, vec![]), "where a register was popped");
        assert_eq!(of(&[cut(11, 0x1000), whole(12, 0x1004)]), (2, 2, 1, 2, vec![0]));
        assert_eq!(of(&[whole(11, 0x1000), sample(12, 0x1004, "leaf,leaf")]), (2, 2, 1, 2, vec![4]));
    }

    #[test]
    fn shares_are_of_what_was_counted() {
        let right = sample(15, 0x1004, "leaf,mid one,*qsort,mid one");
        let wrong = sample(15, 0x1004, "leaf,mid one");
        let score = score(&truth(), &[right.clone(), wrong, right.clone(), right], true);
        assert_eq!((score.names.percent(), score.stacks.percent()), (100.0, 75.0));
        assert_eq!(score.wrong.len(), 1);
        assert_eq!(Share::default().percent(), 0.0, "of nothing, nothing is right");
    }
}
