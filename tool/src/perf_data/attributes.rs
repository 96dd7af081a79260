//! Reads the attributes of a recording, which determine the fields of its events and their offsets.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use super::events::{kind, Event};
use super::{invalid, u32_at, u64_at};

/// Bits of `sample_type` (include/uapi/linux/perf_event.h).
mod field {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const IDENTIFIER: u64 = 1 << 16;
}

const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCKID: u64 = 1 << 25;

/// One `perf_event_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribute {
    sample_type: u64,
    flags: u64,
    clock: i32,
    pub ids: Vec<u64>,
    /// The range of the ids in the file.
    pub ids_at: Option<Range<u64>>,
}

impl Attribute {
    pub fn read(bytes: &[u8], ids: &[u64]) -> Attribute {
        Attribute {
            sample_type: u64_at(bytes, 24),
            flags: u64_at(bytes, 40),
            clock: u32_at(bytes, 92) as i32,
            ids: ids.to_vec(),
            ids_at: None,
        }
    }

    /// The clock that the user has chosen for the recording. `None` for the kernel's default clock.
    pub fn clock(&self) -> Option<i32> {
        (self.flags & USE_CLOCKID != 0).then_some(self.clock)
    }

    fn has(&self, field: u64) -> bool {
        self.sample_type & field != 0
    }

    /// Offset of the pid in a sample.
    fn pid_in_sample(&self) -> Option<usize> {
        let before = [field::IDENTIFIER, field::IP];
        self.has(field::TID).then(|| 8 + 8 * before.iter().filter(|&&field| self.has(field)).count())
    }

    /// Offset of the time in a sample.
    fn time_in_sample(&self) -> Option<usize> {
        let before = [field::IDENTIFIER, field::IP, field::TID];
        self.has(field::TIME).then(|| 8 + 8 * before.iter().filter(|&&field| self.has(field)).count())
    }

    /// Distance of the time from the end of another event of the kernel.
    fn time_from_end(&self) -> Option<usize> {
        let from = [field::TIME, field::ID, field::STREAM_ID, field::CPU, field::IDENTIFIER];
        let has_time = self.has(field::TIME) && self.flags & SAMPLE_ID_ALL != 0;
        has_time.then(|| 8 * from.iter().filter(|&&field| self.has(field)).count())
    }

    /// Distance of the pid from the end of another event of the kernel. The pid precedes the time.
    fn pid_from_end(&self) -> Option<usize> {
        self.time_from_end().filter(|_| self.has(field::TID)).map(|time| time + 8)
    }

    /// The fields at the end of an event that is not a sample.
    fn end_of_event(&self, pid: u32, time: u64) -> Vec<u8> {
        let id = self.ids.first().copied().unwrap_or(0);
        let thread = u64::from(pid) | u64::from(pid) << 32;
        let thread = if cfg!(target_endian = "little") { thread } else { thread.rotate_left(32) };
        let fields = [
            (field::TID, thread),
            (field::TIME, time),
            (field::ID, id),
            (field::STREAM_ID, id),
            (field::CPU, 0),
            (field::IDENTIFIER, id),
        ];
        let present = fields.iter().filter(|(field, _)| self.flags & SAMPLE_ID_ALL != 0 && self.has(*field));
        present.flat_map(|(_, value)| value.to_ne_bytes()).collect()
    }
}

/// The offsets of the fields in the events of a recording.
#[derive(Debug)]
pub struct Forms<'a> {
    attributes: &'a [Attribute],
    first: &'a Attribute,
    /// The attribute of each id. Empty if all attributes have the same form.
    by_id: HashMap<u64, usize>,
}

impl<'a> Forms<'a> {
    /// Fails if events have no time, or if the attribute of an event cannot be determined.
    pub fn new(attributes: &'a [Attribute]) -> io::Result<Forms<'a>> {
        let Some(first) = attributes.first() else { return invalid("has no attributes of events") };
        if attributes.iter().any(|attribute| attribute.time_from_end().is_none()) {
            return invalid("has events without times: record with `perf record -k 1`");
        }
        let form =
            |attribute: &Attribute| (attribute.pid_in_sample(), attribute.time_in_sample(), attribute.time_from_end());
        if attributes.iter().all(|attribute| form(attribute) == form(first)) {
            return Ok(Forms { attributes, first, by_id: HashMap::new() });
        }
        if !attributes.iter().all(|attribute| attribute.has(field::IDENTIFIER)) {
            return invalid("has several kinds of events that cannot be told apart");
        }
        let ids =
            attributes.iter().enumerate().flat_map(|(at, attribute)| attribute.ids.iter().map(move |&id| (id, at)));
        Ok(Forms { attributes, first, by_id: ids.collect() })
    }

    /// The attribute that an event belongs to.
    fn of(&self, event: &Event<'_>) -> &'a Attribute {
        if self.by_id.is_empty() {
            return self.first;
        }
        let at = if event.kind() == kind::SAMPLE { Some(8) } else { event.bytes.len().checked_sub(8) };
        let id = at.map_or(0, |at| u64_at(event.bytes, at));
        self.by_id.get(&id).and_then(|&at| self.attributes.get(at)).unwrap_or(self.first)
    }

    /// The process of a sample or of another event of the kernel.
    pub fn pid(&self, event: &Event<'_>) -> Option<u32> {
        let (attribute, len) = (self.of(event), event.bytes.len());
        let at = match event.kind() {
            kind::SAMPLE => attribute.pid_in_sample()?,
            _ => len.checked_sub(attribute.pid_from_end()?)?,
        };
        (at >= 8 && at + 4 <= len).then(|| u32_at(event.bytes, at))
    }

    /// The time of an event. `None` if the event has no time. perf writes such events itself, and they apply from the
    /// beginning.
    pub fn time(&self, event: &Event<'_>) -> Option<u64> {
        let (bytes, kind) = (event.bytes, event.kind());
        if kind >= kind::FIRST_OF_USER {
            return None;
        }
        let is_sample = kind == kind::SAMPLE;
        let attribute = self.of(event);
        let at = if is_sample {
            attribute.time_in_sample()?
        } else {
            bytes.len().checked_sub(attribute.time_from_end()?)?
        };
        // The time must be after the header of the event.
        let is_there = at >= 8 && at + 8 <= bytes.len();
        Some(u64_at(bytes, at)).filter(|&time| is_there && time != 0 && time != u64::MAX)
    }

    /// The fields at the end of a new event of a process.
    pub fn end_of_event(&self, pid: u32, time: u64) -> Vec<u8> {
        self.first.end_of_event(pid, time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(sample_type: u64, id: u64) -> Attribute {
        Attribute { sample_type, flags: SAMPLE_ID_ALL, ids: vec![id], ..Attribute::default() }
    }

    fn event(kind: u32, words: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * words.len() as u64;
        let head = u64::from(kind) | size << 48;
        [&[head], words].concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn time(forms: &Forms<'_>, bytes: &[u8]) -> Option<u64> {
        forms.time(&Event { bytes, offset: 0, behind: 0..0 })
    }

    #[test]
    fn one_form() {
        let all = [attribute(field::IP | field::TID | field::TIME | field::CPU, 0)];
        let forms = Forms::new(&all).unwrap();
        assert_eq!(time(&forms, &event(kind::SAMPLE, &[1, 2, 77, 4])), Some(77));
        assert_eq!(time(&forms, &event(3, &[1, 2, 3, 88, 5])), Some(88));
        let sample = event(kind::SAMPLE, &[1, 2, 77, 4]);
        assert_eq!(forms.pid(&Event { bytes: &sample, offset: 0, behind: 0..0 }), Some(2));
        let other = event(kind::CALLCHAIN_DEFERRED, &[1, 2, 33, 88, 5]);
        assert_eq!(forms.pid(&Event { bytes: &other, offset: 0, behind: 0..0 }), Some(33));
        assert_eq!(forms.pid(&Event { bytes: &event(3, &[1, 2]), offset: 0, behind: 0..0 }), None, "too short");
        assert_eq!(time(&forms, &event(3, &[1, 2, 3, 0, 5])), None, "made by perf");
        assert_eq!(time(&forms, &event(kind::FINISHED_ROUND, &[1, 2, 3, 4, 5])), None);
        for len in 0..4 {
            assert_eq!(time(&forms, &event(kind::SAMPLE, &[9; 4][..len.min(2)])), None, "too short");
            assert_eq!(time(&forms, &event(3, &[9; 4][..len.min(1)])), None, "too short");
        }
        assert_eq!(forms.end_of_event(7, 9).len(), 24);
        assert_eq!(time(&forms, &[event(3, &[]), forms.end_of_event(7, 99)].concat()), Some(99));
    }

    #[test]
    fn several_forms() {
        let plain = field::IP | field::TIME;
        assert!(Forms::new(&[attribute(plain, 1), attribute(plain | field::CPU, 2)]).is_err(), "no identifier");
        assert!(Forms::new(&[attribute(field::IP, 1)]).is_err(), "no time");
        assert!(Forms::new(&[]).is_err());
        let all = [attribute(plain | field::IDENTIFIER, 1), attribute(field::TIME | field::IDENTIFIER | field::CPU, 2)];
        let forms = Forms::new(&all).unwrap();
        assert_eq!(time(&forms, &event(kind::SAMPLE, &[1, 5, 77])), Some(77));
        assert_eq!(time(&forms, &event(kind::SAMPLE, &[2, 66, 5])), Some(66));
        assert_eq!(time(&forms, &event(3, &[0, 0, 55, 1])), Some(55));
        assert_eq!(time(&forms, &event(3, &[0, 44, 0, 2])), Some(44));
        assert_eq!(time(&forms, &[event(3, &[]), forms.end_of_event(7, 99)].concat()), Some(99));
    }
}
