//! Parses the fields of samples, and selects the fields for a bundle.

use std::ops::Range;

use crate::perf_data::{u32_at, u64_at};

/// Bits of `sample_type` (include/uapi/linux/perf_event.h), in the order of the fields before the call chain.
mod field {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const STACK_USER: u64 = 1 << 13;
    pub const IDENTIFIER: u64 = 1 << 16;
}

/// The fields before the call chain, each of 8 bytes.
const BEFORE: u64 = field::IDENTIFIER
    | field::IP
    | field::TID
    | field::TIME
    | field::ADDR
    | field::ID
    | field::STREAM_ID
    | field::CPU
    | field::PERIOD;
/// The fields that the samples of a bundle have. All other fields are left out: stacks, registers, data of tracepoints,
/// branches.
const KEPT: u64 = BEFORE | field::CALLCHAIN;

/// Offsets in `perf_event_attr`.
const TYPE: usize = 0;
const SAMPLE_TYPE: usize = 24;
const READ_FORMAT: usize = 32;
const FLAGS: usize = 40;
const BRANCHES: usize = 72;
const REGS_USER: usize = 80;
const STACK_USER: usize = 88;
const REGS_INTR: usize = 96;
const END: usize = 104;

const TRACEPOINT: u32 = 2;
/// Flags that make the kernel write no callers in kernel or user mode.
const EXCLUDE_CHAINS: u64 = 3 << 21;
/// The bit for branches that are recorded for call chains.
const CALL_STACK: u64 = 1 << 11;

/// Bits of `read_format`.
const READ_TIMES: u64 = 3;
const READ_ID: u64 = 1 << 2;
const READ_GROUP: u64 = 1 << 3;
const READ_LOST: u64 = 1 << 4;

/// In a call chain, the addresses after this mark are of user mode.
pub const CONTEXT_USER: u64 = -512i64 as u64;
/// Like `CONTEXT_USER`, but the kernel adds the addresses later.
const CONTEXT_USER_DEFERRED: u64 = -640i64 as u64;
/// Higher addresses are marks.
pub const ADDRESS_MAX: u64 = -4096i64 as u64;

/// The form of the samples of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    kind: u32,
    sample_type: u64,
    read_format: u64,
    /// Whether perf determines the callers in user mode after the recording.
    pub is_unwound: bool,
    /// The attribute in the form that a bundle has.
    pub attribute: Vec<u8>,
}

/// The parts of a sample that a bundle has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The fields before the call chain that a bundle has.
    pub before: Range<usize>,
    pub chain: Vec<u64>,
}

impl Form {
    /// The form of an attribute.
    pub fn of(attribute: &[u8]) -> Form {
        let (sample_type, branches) = (u64_at(attribute, SAMPLE_TYPE), u64_at(attribute, BRANCHES));
        let by_branches = sample_type & field::BRANCH_STACK != 0 && branches & CALL_STACK != 0;
        let is_unwound = sample_type & field::STACK_USER != 0 || by_branches;
        let mut kept = attribute.to_vec();
        let mut set = |at: usize, bytes: &[u8]| {
            if let Some(place) = kept.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        let chain = if is_unwound { field::CALLCHAIN } else { 0 };
        set(SAMPLE_TYPE, &(sample_type & KEPT | chain).to_ne_bytes());
        set(FLAGS, &(u64_at(attribute, FLAGS) & !EXCLUDE_CHAINS).to_ne_bytes());
        for at in [READ_FORMAT, BRANCHES, REGS_USER, REGS_INTR] {
            set(at, &[0; 8]);
        }
        set(STACK_USER, &[0; 4]);
        let read_format = u64_at(attribute, READ_FORMAT);
        Form { kind: u32_at(attribute, TYPE), sample_type, read_format, is_unwound, attribute: kept }
    }

    /// Whether the attribute has all fields that are changed.
    pub fn is_whole(attribute: &[u8]) -> bool {
        attribute.len() >= END
    }

    pub fn is_tracepoint(&self) -> bool {
        self.kind == TRACEPOINT
    }

    pub fn has_identifier(&self) -> bool {
        self.sample_type & field::IDENTIFIER != 0
    }

    /// Whether samples of both forms have the same fields.
    pub fn is_like(&self, other: &Form) -> bool {
        (self.sample_type, self.read_format, self.is_unwound)
            == (other.sample_type, other.read_format, other.is_unwound)
    }

    /// Whether the samples of the bundle have call chains.
    pub fn has_chain(&self) -> bool {
        self.is_unwound || self.sample_type & field::CALLCHAIN != 0
    }

    /// Process and thread of a sample.
    pub fn ids(&self, sample: &[u8]) -> Option<(u32, u32)> {
        let at = 8 + 8 * (self.sample_type & (field::IDENTIFIER | field::IP)).count_ones() as usize;
        let has = self.sample_type & field::TID != 0 && at + 8 <= sample.len();
        has.then(|| (u32_at(sample, at), u32_at(sample, at + 4)))
    }

    /// The parts of a sample. `None` if the sample is shorter than its fields.
    pub fn parts(&self, sample: &[u8]) -> Option<Parts> {
        let mut at = 8 + 8 * (self.sample_type & BEFORE).count_ones() as usize;
        let before = 8..at;
        if self.sample_type & field::READ != 0 {
            at = at.checked_add(self.read_len(sample, at)?)?;
        }
        let mut chain = Vec::new();
        if self.sample_type & field::CALLCHAIN != 0 {
            let count = usize::try_from(word(sample, at)?).ok()?;
            let addresses = sample.get(at + 8..(at + 8).checked_add(count.checked_mul(8)?)?)?;
            chain = addresses.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
        }
        (at <= sample.len()).then_some(Parts { before, chain })
    }

    /// The number of bytes of the counters.
    fn read_len(&self, sample: &[u8], at: usize) -> Option<usize> {
        let has = |bits: u64| (self.read_format & bits).count_ones() as usize;
        let each = 1 + has(READ_ID) + has(READ_LOST);
        let words = match has(READ_GROUP) {
            0 => each + has(READ_TIMES),
            _ => usize::try_from(word(sample, at)?).ok()?.checked_mul(each)?.checked_add(1 + has(READ_TIMES))?,
        };
        words.checked_mul(8)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    (at.checked_add(8)? <= bytes.len()).then(|| u64_at(bytes, at))
}

/// The part of a call chain in the kernel.
pub fn of_kernel(chain: &[u64]) -> &[u64] {
    let end = chain.iter().position(|&entry| entry == CONTEXT_USER || entry == CONTEXT_USER_DEFERRED);
    &chain[..end.unwrap_or(chain.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(sample_type: u64, read_format: u64) -> Vec<u8> {
        let mut attribute = vec![0xff; 136];
        for (at, value) in [(SAMPLE_TYPE, sample_type), (READ_FORMAT, read_format), (BRANCHES, 0)] {
            attribute[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        attribute
    }

    fn sample(words: &[u64]) -> Vec<u8> {
        [&[0], words].concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn stacks_and_registers_are_left_out() {
        let form = Form::of(&attribute(field::IP | field::TID | field::STACK_USER | 1 << 12 | 1 << 10, 0));
        assert!(form.is_unwound && form.has_chain());
        let kept = &form.attribute;
        assert_eq!(u64_at(kept, SAMPLE_TYPE), field::IP | field::TID | field::CALLCHAIN);
        assert_eq!((u64_at(kept, REGS_USER), u32_at(kept, STACK_USER), u64_at(kept, REGS_INTR)), (0, 0, 0));
        assert_eq!(u64_at(kept, FLAGS) & EXCLUDE_CHAINS, 0);
        assert!(!form.is_tracepoint() && Form::of(&TRACEPOINT.to_ne_bytes()).is_tracepoint());
    }

    #[test]
    fn the_chain_is_behind_the_counters() {
        let of = |read_format| Form::of(&attribute(field::TID | field::READ | field::CALLCHAIN, read_format));
        let parts = |form: &Form, words: &[u64]| form.parts(&sample(words));
        let expected = |chain: &[u64]| Some(Parts { before: 8..16, chain: chain.to_vec() });
        assert_eq!(parts(&of(0), &[7, 1, 2, 5, 6]), expected(&[5, 6]));
        assert_eq!(parts(&of(READ_TIMES | READ_ID), &[7, 1, 2, 3, 4, 1, 6]), expected(&[6]));
        assert_eq!(parts(&of(READ_GROUP | READ_ID | READ_LOST), &[7, 2, 1, 2, 3, 1, 2, 3, 1, 6]), expected(&[6]));
        for words in [&[7][..], &[7, 1], &[7, 1, 3, 5, 6], &[7, 1, u64::MAX], &[7, 1, u64::MAX / 8]] {
            assert_eq!(parts(&of(0), words), None, "{words:?}");
        }
        for words in [&[7, u64::MAX, 0][..], &[7, 1 << 60, 0]] {
            assert_eq!(parts(&of(READ_GROUP), words), None, "{words:?}");
        }
        assert_eq!(of(0).ids(&sample(&[7 | 9 << 32])), cfg!(target_endian = "little").then_some((7, 9)));
        assert_eq!(of_kernel(&[1, 2, CONTEXT_USER, 3]), [1, 2]);
    }
}
