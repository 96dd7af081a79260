//! Adds the groups of newly registered code and of moved code to the jitdump. Most groups are written without a change, because
//! the record already contains the whole group.

use super::Jitdump;
use crate::format::jitdump::{is_group_named, map_tables, relocate, set_process, Relocation};
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, CodeBytes, Event, Load};
use crate::registry::{Live, Registry, Stored};
use crate::sink::{Loaded, Origin};
use crate::sys::{process_memory, reserve};

impl Jitdump {
    /// Collects the group of the code for the next write, and records in the registry where the group will be.
    pub(super) fn add(&mut self, code: &Loaded<'_>, registry: &mut Registry) {
        let stored = match code.origin {
            Origin::Registered(chunk, event, load) => Some(self.add_record(code.live, chunk, event, load)),
            Origin::Moved { event, body, before } => match self.add_moved(code, event, body, before) {
                None if before.is_some_and(|stored| self.contents.is_inherited(stored)) => {
                    return self.write_one(registry, code.id, event.timestamp);
                }
                moved => moved.or(before),
            },
            Origin::LeftRegion(time, _) => return self.write_one(registry, code.id, time),
        };
        registry.set_stored(code.id, stored);
        if self.groups.are_many() {
            self.flush();
        }
    }

    #[inline]
    fn add_record(&mut self, live: &Live, chunk: Chunk, event: &Event, load: &Load<'_>) -> Stored {
        let (head_len, at) = (load.head().len(), event.body_at as usize + load.inlines_len());
        let stored = Stored { offset: self.next_place(), len: head_len };
        let CodeBytes::Here(bytes) = load.code() else {
            self.groups.push(chunk, at, head_len);
            self.add_code(live, load.code());
            return stored;
        };
        self.groups.push(chunk, at, head_len + bytes.len());
        stored
    }

    /// Adds the code bytes to the last group, if the record does not contain them. A record has no code bytes if the flag
    /// `STABLE` is set, or if the code was registered before the jitdump was started.
    #[cold]
    #[inline(never)]
    fn add_code(&mut self, live: &Live, code: CodeBytes<'_>) {
        let place = if let CodeBytes::At(place) = code { place } else { live.addr };
        self.groups.add(self.read_code(place, live.size), live.size as usize);
    }

    /// Adds a new LOAD record for code that has moved. MOVE records are not used: perf 7.2 crashes on MOVE records, and no
    /// version of perf unwinds through code that a MOVE record has moved. `None` if the group of the code cannot be read.
    #[cold]
    #[inline(never)]
    fn add_moved(&mut self, code: &Loaded<'_>, event: &Event, body: &[u8], before: Option<Stored>) -> Option<Stored> {
        let (live, before) = (code.live, before?);
        let mut group = self.read_back(before)?;
        // The parent may have changed its file since the fork.
        let is_inherited = self.contents.is_inherited(before);
        if is_inherited && !is_group_named(&group, live.size, code.name) {
            return None;
        }
        let (timestamp, tid) = (event.timestamp, event.tid);
        if is_inherited {
            set_process(&mut group, self.status.pid);
        }
        let place = Relocation { timestamp, tid, addr: live.addr, index: live.index };
        relocate(&mut group, &place);
        map_tables(&mut group, live.size, event.has(flag::GAP));
        let code = if event.has(flag::HAS_CODE) {
            self.copy_code(body)
        } else {
            self.read_code(body.try_into().map_or(live.addr, u64::from_ne_bytes), live.size)
        };
        let stored = Stored { offset: self.next_place(), len: group.len() };
        self.groups.push_owned(group);
        self.groups.add(code, live.size as usize);
        Some(stored)
    }

    /// Returns the position that the next group gets in the order of all groups. Groups that are collected, but not written
    /// yet, are counted too.
    pub(super) fn next_place(&self) -> u64 {
        self.contents.next + self.groups.bytes() as u64
    }

    /// Reads a group back from the file. When code moves, its tables and lines are needed again. Tables and lines are not kept
    /// in memory, because moves are rare, and every host would pay for the memory.
    pub fn read_back(&mut self, stored: Stored) -> Option<Vec<u8>> {
        self.write_until(stored);
        let read = self.contents.group(stored);
        // A failure to read the parent's file is not counted, because the forked child's own file has not failed.
        if let Some(error) = read.as_ref().err().filter(|_| !self.contents.is_inherited(stored)) {
            self.status.counters.write_errors.add(1);
            self.status.last_error.set(self.contents.own.describe("read back", error));
        }
        read.ok()
    }

    /// Writes the collected groups if this group is among them.
    pub fn write_until(&mut self, stored: Stored) {
        // When code moves, its group was usually written long ago, so a flush is rare here, and batches stay large.
        if self.contents.is_underway(stored) {
            self.flush();
        }
    }

    /// Copies code bytes. If there is no memory, returns no bytes, and the caller writes zeros instead.
    fn copy_code(&self, bytes: &[u8]) -> Vec<u8> {
        reserve::copy_of(bytes).unwrap_or_else(|_| {
            self.status.counters.unreadable.add(1);
            Vec::new()
        })
    }

    /// Reads code bytes that are not in the record. The caller writes zeros for bytes that cannot be read.
    fn read_code(&self, addr: u64, size: u64) -> Vec<u8> {
        // The bytes are read by a system call, because the host may have unmapped the code too early, and a direct access would
        // then end the process.
        let read = if self.dead { None } else { process_memory::copy(self.status.pid, addr, size).ok() };
        let (code, is_whole) = read.unwrap_or_default();
        if !is_whole {
            self.status.counters.unreadable.add(1);
        }
        code
    }
}
