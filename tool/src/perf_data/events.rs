//! Reads the events of a recording, in the order of the file. Compressed events are returned decompressed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

use super::compressed::Inflater;
use super::{invalid, u16_at, u32_at, u64_at, Layout};

/// Kinds of events: kinds of the kernel (include/uapi/linux/perf_event.h), and kinds of perf from 64 on
/// (tools/lib/perf/include/perf/event.h).
pub mod kind {
    pub const MMAP: u32 = 1;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const CALLCHAIN_DEFERRED: u32 = 22;
    pub const FIRST_OF_USER: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE: u32 = 71;
    pub const TIME_CONV: u32 = 79;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// Bits of an event's `misc`.
pub mod misc {
    use std::ops::Range;

    /// The mode of the processor.
    pub const MODE: u16 = 7;
    pub const MODE_USER: u16 = 2;
    pub const MODE_GUEST: Range<u16> = 4..6;
    /// A mapping is not executable (MMAP, MMAP2).
    pub const DATA: u16 = 1 << 13;
    /// A program was executed (COMM).
    pub const COMM_EXEC: u16 = 1 << 13;
    /// The child's mappings follow in separate events (FORK).
    pub const FORK_EXEC: u16 = 1 << 13;
    /// The event has a build-id in place of device and inode (MMAP2).
    pub const HAS_BUILD_ID: u16 = 1 << 14;
    /// An entry of the table of build-ids has the size of the build-id.
    pub const HAS_SIZE: u16 = 1 << 15;
}

/// The offset, in the event of a mapping, of the field with the offset in the file.
pub const OFFSET: usize = 32;

/// An event without the data after it.
#[derive(Debug)]
pub struct Event<'a> {
    /// All bytes, header included.
    pub bytes: &'a [u8],
    /// Where the event begins in the file. 0 for an event that was compressed.
    pub offset: u64,
    /// The range of the data that belongs to the event but is not part of the event's size.
    pub behind: Range<u64>,
}

impl Event<'_> {
    pub fn kind(&self) -> u32 {
        u32_at(self.bytes, 0)
    }

    pub fn misc(&self) -> u16 {
        u16_at(self.bytes, 4)
    }
}

/// A mapping that an event describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped<'a> {
    pub pid: u32,
    pub range: Range<u64>,
    pub name: &'a [u8],
    /// The range of the name in the event, with its padding.
    pub name_at: Range<usize>,
}

/// The mapping in an MMAP or MMAP2 event.
pub fn mapping(event: &[u8]) -> Option<Mapped<'_>> {
    let start = match u32_at(event, 0) {
        kind::MMAP => 40,
        kind::MMAP2 => 72,
        _ => return None,
    };
    let rest = event.get(start..)?;
    let name = &rest[..rest.iter().position(|&byte| byte == 0)?];
    let end = start + (name.len() + 1).next_multiple_of(8);
    let from = u64_at(event, 16);
    let range = from..from.saturating_add(u64_at(event, 24));
    (end <= event.len()).then_some(Mapped { pid: u32_at(event, 8), range, name, name_at: start..end })
}

/// The mapping in an event, if it is a mapping of a process. A virtual machine has its own mappings, and their events contain
/// the process which runs the virtual machine.
pub fn user_mapping<'a>(event: &Event<'a>) -> Option<Mapped<'a>> {
    let is_guest = misc::MODE_GUEST.contains(&(event.misc() & misc::MODE));
    mapping(event.bytes).filter(|mapped| !is_guest && mapped.pid != u32::MAX)
}

/// Reads the next event without the data after it. `None` if the event is incomplete.
pub fn read_event(input: &mut impl Read, event: &mut Vec<u8>) -> io::Result<Option<()>> {
    let mut whole = |event: &mut Vec<u8>, len: usize| {
        let before = event.len();
        input.by_ref().take((len - before) as u64).read_to_end(event)?;
        io::Result::Ok((event.len() == len).then_some(()))
    };
    event.clear();
    if whole(event, 8)?.is_none() {
        return Ok(None);
    }
    let size = usize::from(u16_at(event, 6));
    if size < 8 {
        return Ok(None);
    }
    whole(event, size)
}

/// The number of bytes of data after an event.
pub fn len_behind(event: &[u8], is_pipe: bool) -> u64 {
    match u32_at(event, 0) {
        kind::AUXTRACE => u64_at(event, 8),
        kind::TRACING_DATA if is_pipe => u64::from(u32_at(event, 8)).next_multiple_of(8),
        _ => 0,
    }
}

const CUT: &str = "has an event that is not whole";

/// A part of the stream that waits, because compressed events before it are not decompressed yet.
enum Waiting {
    /// An event that was not compressed.
    Plain { bytes: Vec<u8>, offset: u64, behind: Range<u64> },
    /// A number of decompressed bytes.
    Inflated(u64),
}

/// Progress is reported after this number of events.
const PROGRESS: u32 = 4096;

/// Reads the events of a recording.
pub struct Events<'f> {
    input: BufReader<&'f File>,
    at: u64,
    end: u64,
    is_pipe: bool,
    /// The event that was returned last.
    current: Vec<u8>,
    inflater: Option<Inflater>,
    waiting: VecDeque<Waiting>,
    /// How many decompressed bytes may be taken now.
    allowed: u64,
}

impl<'f> Events<'f> {
    pub fn new(file: &'f File, layout: &Layout) -> io::Result<Events<'f>> {
        let mut input = BufReader::with_capacity(1 << 18, file);
        input.seek(SeekFrom::Start(layout.events.start))?;
        Ok(Events {
            input,
            at: layout.events.start,
            end: layout.events.end,
            is_pipe: layout.is_pipe(),
            current: Vec::new(),
            inflater: None,
            waiting: VecDeque::new(),
            allowed: 0,
        })
    }

    /// Passes all further events to `each`. `progress` is called regularly with the offset in the file.
    pub fn each(
        &mut self,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
        each: &mut dyn FnMut(&Event<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut count = 0u32;
        while let Some(event) = self.next_event()? {
            each(&event)?;
            count = count.wrapping_add(1);
            if count.is_multiple_of(PROGRESS) {
                progress(self.at)?;
            }
        }
        Ok(())
    }

    /// The next event. Fails if an event is incomplete.
    pub fn next_event(&mut self) -> io::Result<Option<Event<'_>>> {
        let mut current = std::mem::take(&mut self.current);
        let found = self.next_into(&mut current);
        self.current = current;
        Ok(found?.map(|(offset, behind)| Event { bytes: &self.current, offset, behind }))
    }

    fn next_into(&mut self, event: &mut Vec<u8>) -> io::Result<Option<(u64, Range<u64>)>> {
        loop {
            let is_at_end = self.at >= self.end;
            if let Some(inflater) = &mut self.inflater {
                match inflater.take_event(self.allowed, event)? {
                    Some(len) => {
                        self.allowed -= len;
                        return Ok(Some((0, 0..0)));
                    }
                    // The bytes of the next event are known to exist, and are returned later.
                    None if inflater.is_behind(self.allowed) && !is_at_end => {}
                    None => match self.waiting.pop_front() {
                        Some(Waiting::Inflated(len)) => {
                            self.allowed += len;
                            continue;
                        }
                        Some(Waiting::Plain { bytes, offset, behind }) => {
                            *event = bytes;
                            return Ok(Some((offset, behind)));
                        }
                        None if is_at_end && self.allowed > 0 => return invalid(CUT),
                        None => {}
                    },
                }
            }
            if is_at_end {
                return Ok(None);
            }
            let (offset, behind) = self.read_raw(event)?;
            let payload = match u32_at(event, 0) {
                kind::COMPRESSED => event.get(8..),
                kind::COMPRESSED2 => {
                    let len = usize::try_from(u64_at(event, 8)).unwrap_or(usize::MAX);
                    let payload = event.get(16..).and_then(|rest| rest.get(..len));
                    if payload.is_none() {
                        return invalid("has a compressed event that is not whole");
                    }
                    payload
                }
                _ => None,
            };
            let is_last = self.at >= self.end;
            match (payload, &mut self.inflater) {
                (Some(payload), inflater) => {
                    let len = inflater.get_or_insert_with(Inflater::default).add(payload)?;
                    self.waiting.push_back(Waiting::Inflated(len));
                }
                (None, Some(_)) => {
                    self.waiting.push_back(Waiting::Plain { bytes: event.clone(), offset, behind });
                }
                (None, None) => return Ok(Some((offset, behind))),
            }
            if let Some(inflater) = self.inflater.as_mut().filter(|_| is_last) {
                inflater.finish()?;
            }
        }
    }

    /// Reads an event from the file, and skips the data after it.
    fn read_raw(&mut self, event: &mut Vec<u8>) -> io::Result<(u64, Range<u64>)> {
        let offset = self.at;
        if read_event(&mut self.input, event)?.is_none() {
            return invalid(CUT);
        }
        let start = offset + event.len() as u64;
        let len = len_behind(event, self.is_pipe);
        let Some(end) = start.checked_add(len).filter(|&end| end <= self.end) else { return invalid(CUT) };
        if len > 0 {
            self.input.seek_relative(i64::try_from(len).map_err(|_| io::ErrorKind::InvalidData)?)?;
        }
        self.at = end;
        Ok((offset, start..end))
    }
}
