//! Writes into a chunk the records that `fast_path` does not write.

use crate::api::code::Bytes;
use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::api::Id;
use crate::format::jitdump::{inlines, set_time, Group};
use crate::queue::record::{flag, Event};
use crate::queue::shared::Shared;
use crate::queue::thread_queue::Fill;
use crate::sys::process_memory;

/// A record without a body.
pub struct Bare<F>(pub F);

impl<F: Fn() -> Result<Event>> Fill for Bare<F> {
    const REFERS: bool = true;

    fn fill(&self, _: &mut [u8], timestamp: u64) -> Result<Option<Event>> {
        (self.0)().map(|event| Some(Event { timestamp, ..event }))
    }
}

/// The last part of a record's body: the code, or the address of the code, or nothing.
pub enum Tail<'a> {
    Code { pid: u32, bytes: Bytes<'a>, addr: u64, size: usize },
    Later(u64),
    Nothing,
}

impl<'a> Tail<'a> {
    #[inline]
    pub fn new(shared: &Shared, wanted: Sinks, bytes: &Bytes<'a>, addr: u64, size: u64, stable: bool) -> Tail<'a> {
        match bytes {
            _ if !wanted.has(Sinks::BYTES) => Tail::Nothing,
            Bytes::Here(bytes) if stable => Tail::Later(bytes.as_ptr() as u64),
            Bytes::AtAddress if stable => Tail::Later(addr),
            _ => Tail::Code { pid: shared.status.pid, bytes: *bytes, addr, size: size as usize },
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Tail::Code { size, .. } => *size,
            Tail::Later(_) => 8,
            Tail::Nothing => 0,
        }
    }

    /// Writes the tail to `out`, which has the tail's length, and returns the event flags that describe the tail.
    #[inline]
    fn write(&self, out: &mut [u8]) -> u8 {
        match self {
            Tail::Code { bytes: Bytes::Here(bytes), .. } => {
                out.copy_from_slice(bytes);
                flag::HAS_CODE
            }
            Tail::Code { pid, bytes: Bytes::AtAddress, addr, .. } => {
                let read = process_memory::read(*pid, *addr, out);
                flag::HAS_CODE | if read < out.len() { flag::UNREADABLE } else { 0 }
            }
            Tail::Later(addr) => {
                out.copy_from_slice(&addr.to_ne_bytes());
                flag::STABLE
            }
            Tail::Nothing => 0,
        }
    }
}

/// The record of a registration.
pub struct Load<'a> {
    /// The records of the inlined functions. May be empty.
    pub inlines: Vec<u8>,
    pub group: Group<'a>,
    pub tail: Tail<'a>,
    pub event: Event,
}

impl Fill for Load<'_> {
    const REFERS: bool = false;

    fn least_len(&self) -> usize {
        self.inlines.len() + self.group.fixed_size() + self.tail.len()
    }

    fn exact_len(&self) -> Result<usize> {
        Ok(self.inlines.len() + self.group.size()? + self.tail.len())
    }

    fn fill(&self, room: &mut [u8], timestamp: u64) -> Result<Option<Event>> {
        let Some((first, room)) = room.split_at_mut_checked(self.inlines.len()) else { return Ok(None) };
        first.copy_from_slice(&self.inlines);
        let own = inlines::len(first);
        set_time(&mut first[own..], timestamp);
        let Some(code_at) = self.group.write(timestamp, room, self.tail.len())? else { return Ok(None) };
        let group_len = code_at + self.tail.len();
        let flags = self.event.flags | self.tail.write(&mut room[code_at..group_len]);
        Ok(Some(Event { timestamp, flags, body_len: (first.len() + group_len) as u32, ..self.event }))
    }
}

/// The record of a move.
pub struct Move<'a> {
    pub shared: &'static Shared,
    pub tail: Tail<'a>,
    pub event: Event,
}

impl Fill for Move<'_> {
    const REFERS: bool = true;

    fn least_len(&self) -> usize {
        self.tail.len()
    }

    fn fill(&self, room: &mut [u8], timestamp: u64) -> Result<Option<Event>> {
        let Some(body) = room.get_mut(..self.tail.len()) else { return Ok(None) };
        let flags = self.event.flags | self.tail.write(body);
        // This step comes last, because it fails if the code has been unregistered meanwhile.
        let unread = matches!(self.tail, Tail::Later(_));
        let old_addr = self.shared.ids.move_to(Id(self.event.id), self.event.addr, unread).ok_or(Error::UnknownId)?;
        Ok(Some(Event { timestamp, flags, size: old_addr, body_len: body.len() as u32, ..self.event }))
    }
}
