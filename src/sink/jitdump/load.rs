//! Code that begins to live, on its way to the jitdump: its group, most often as it lies in its record, and its bytes.

use std::path::Path;

use super::{frame_load_space, Jitdump};
use crate::format::jitdump::{frame_load, relocate, Relocation};
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, CodeBytes, Event, Load};
use crate::registry::{Live, Registry, Stored};
use crate::sink::{describe, Loaded, Origin, Sink};
use crate::sys::{process_memory, reserve};

impl Jitdump {
    /// Takes code over, and notes in the registry where its group will be.
    pub(super) fn add(&mut self, code: &Loaded<'_>, registry: &mut Registry) {
        let (stored, tables_len) = match code.origin {
            Origin::Registered(chunk, event, load) => self.add_record(code.live, chunk, event, load),
            Origin::Moved { event, body, before } => self.add_moved(code.live, event, body, before),
            Origin::LeftRegion(time, _) => return self.write_one(registry, code.id, time),
        };
        registry.set_stored(code.id, stored, tables_len);
        if self.groups.are_many() {
            self.flush();
        }
    }

    #[inline]
    fn add_record(&mut self, live: &Live, chunk: Chunk, event: &Event, load: &Load<'_>) -> (Option<Stored>, u32) {
        let (head, at) = (load.head(), event.body_at as usize + load.inlines_len());
        let is_packed = event.has(flag::PACKED) && live.reach == live.addr + live.size;
        let (CodeBytes::Here(bytes), false) = (load.code(), is_packed) else {
            return self.add_in_parts(live, chunk, at, load, is_packed);
        };
        let stored = Stored { offset: self.next_place(), len: head.len() };
        self.groups.push(chunk, at, head.len() + bytes.len());
        (Some(stored), live.tables_len)
    }

    /// The code is stable, or was laid down before the jitdump was started, or gets another head.
    #[cold]
    #[inline(never)]
    fn add_in_parts(
        &mut self,
        live: &Live,
        chunk: Chunk,
        at: usize,
        load: &Load<'_>,
        is_packed: bool,
    ) -> (Option<Stored>, u32) {
        let (head, offset) = (load.head(), self.next_place());
        let frame_load_at = if is_packed { self.place_frame_load(live) } else { None };
        let doubled = frame_load_at.and_then(|addr| self.groups.push_made(|made| frame_load::add(head, addr, made)));
        let (len, tables_len) = match doubled {
            Some((len, tables_len)) => (len, tables_len as u32),
            None => {
                self.groups.push(chunk, at, head.len());
                (head.len(), live.tables_len)
            }
        };
        let place = match load.code() {
            CodeBytes::Here(bytes) => {
                self.groups.add_in_chunk(chunk, at + head.len(), bytes.len());
                return (Some(Stored { offset, len }), tables_len);
            }
            CodeBytes::At(place) => place,
            CodeBytes::InPlace => live.addr,
        };
        self.groups.add(self.read_code(place, live.size), live.size as usize);
        (Some(Stored { offset, len }), tables_len)
    }

    /// A move is a fresh LOAD: perf 7.2 crashes on MOVE records, and none unwinds through code moved by one.
    #[cold]
    #[inline(never)]
    fn add_moved(&mut self, live: &Live, event: &Event, body: &[u8], before: Option<Stored>) -> (Option<Stored>, u32) {
        let mut live = *live;
        let Some(mut group) = before.and_then(|stored| self.read_back(stored)) else {
            return (before, live.tables_len);
        };
        let had_frame_load = frame_load::len(&group) > 0;
        if had_frame_load {
            let Some(tables_len) = frame_load::remove(&mut group) else { return (before, live.tables_len) };
            live.tables_len = tables_len as u32;
        }
        let mapped_size = if live.reach > live.addr + live.size { live.tables_len.into() } else { 0 };
        let (timestamp, tid) = (event.timestamp, event.tid);
        relocate(&mut group, &Relocation { timestamp, tid, addr: live.addr, index: live.index, mapped_size });
        if had_frame_load && mapped_size == 0 {
            let mut doubled = Vec::new();
            let frame_load_at = self.place_frame_load(&live);
            if let Some(tables_len) = frame_load_at.and_then(|addr| frame_load::add(&group, addr, &mut doubled)) {
                (group, live.tables_len) = (doubled, tables_len as u32);
            }
        }
        let code = if event.has(flag::HAS_CODE) {
            self.copy_code(body)
        } else {
            self.read_code(body.try_into().map_or(live.addr, u64::from_ne_bytes), live.size)
        };
        let stored = Stored { offset: self.next_place(), len: group.len() };
        self.groups.push_owned(group);
        self.groups.add(code, live.size as usize);
        (Some(stored), live.tables_len)
    }

    /// Where in the order of all groups the next one will be.
    pub(super) fn next_place(&self) -> u64 {
        self.contents.next + self.groups.bytes() as u64
    }

    /// Sets a place aside for the frame load of packed code, permanently. `None` if the code has no tables, or there is no room.
    fn place_frame_load(&self, live: &Live) -> Option<u64> {
        // In a process that is gone nothing can be set aside.
        if live.tables_len == 0 || self.dead {
            return None;
        }
        frame_load_space::place(live.addr, frame_load::room(live.size, live.tables_len as usize))
    }

    /// Reads a group back that was taken over before: keeping the tables and lines of all live code in memory for a move that
    /// hardly ever comes would cost every host more than this.
    pub fn read_back(&mut self, stored: Stored) -> Option<Vec<u8>> {
        self.write_until(stored);
        let read = self.contents.group(stored);
        if let Err(error) = &read {
            self.status.counters.write_errors.add(1);
            self.status.last_error.set(describe("read back", self.path().unwrap_or(Path::new("")), error));
        }
        read.ok()
    }

    /// Writes a group if it has not been written yet.
    pub fn write_until(&mut self, stored: Stored) {
        // Most moves are of code whose group was written long ago; those that come together are written together.
        if self.contents.is_underway(stored) {
            self.flush();
        }
    }

    /// The same as `read_back`, also of the parent's jitdump in a forked child that has not written anything yet.
    pub fn group_before(&mut self, stored: Stored) -> Option<Vec<u8>> {
        match &self.parent {
            Some(parent) => parent.group(stored).ok(),
            None => self.read_back(stored),
        }
    }

    /// A copy of code bytes, or zeros in their place if there is no memory for them.
    fn copy_code(&self, bytes: &[u8]) -> Vec<u8> {
        reserve::copy_of(bytes).unwrap_or_else(|_| {
            self.status.counters.unreadable.add(1);
            Vec::new()
        })
    }

    /// The bytes of code that are not in its record, or zeros in their place.
    fn read_code(&self, addr: u64, size: u64) -> Vec<u8> {
        // By the kernel: a host that breaks its promise must not be ended by this thread.
        let read = if self.dead { None } else { process_memory::copy(self.status.pid, addr, size).ok() };
        let (code, is_whole) = read.unwrap_or_default();
        if !is_whole {
            self.status.counters.unreadable.add(1);
        }
        code
    }
}
