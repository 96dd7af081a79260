//! The ledger: what each record does to the registry, and from there to the sinks.
//!
//! The writer has one for its process; recovering the spool of a dead process makes another one for that.

use std::sync::Arc;

use super::live::Reopened;
use super::regions::RegionCode;
use super::shadows;
use crate::api::options::Sinks;
use crate::format::jitdump::{clear_mapped_size, inlines, relocate, set_time, shadow, Relocation};
use crate::format::unwind;
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, CodeBytes, Event, Kind, Load};
use crate::queue::spool::layout::State;
use crate::queue::status::Status;
use crate::registry::{Live, Registry, Stored};
use crate::sink::jitdump::groups::{zeros, Groups};
use crate::sink::region::Regions;
use crate::sink::set::SinkSet;
use crate::sys::process_memory;

/// See the module's description.
pub struct Ledger {
    pub status: Arc<Status>,
    pub registry: Registry,
    pub sinks: SinkSet,
    /// What the owner of the ids has to be told of.
    pub notices: Vec<Notice>,
    /// The process lives, so that the bytes of stable code can be read.
    pub alive: bool,
    /// Time of the last record.
    pub last_time: u64,
    /// The contents of a jitdump that may be continued.
    pub reopened: Reopened,
    /// Code that lies in regions.
    pub region_code: RegionCode,
    /// Code memory that is a mapping of an ELF file.
    pub regions: Arc<Regions>,
    /// For ids that a registration pushes out; empty in between.
    pub(super) overwritten: Vec<u64>,
}

/// What happened to an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Its code was unregistered by a call.
    Unregistered(u64),
    /// Its code was taken out of the registry without one.
    Retired(u64),
    /// The bytes of its stable code have been read.
    Read(u64),
}

impl Ledger {
    pub fn new(status: Arc<Status>, regions: Arc<Regions>, alive: bool) -> Ledger {
        let sinks = SinkSet::new(status.clone(), &regions);
        let registry = Registry::default();
        Ledger {
            status,
            registry,
            sinks,
            notices: Vec::new(),
            alive,
            last_time: 0,
            reopened: Reopened::default(),
            region_code: RegionCode::default(),
            regions,
            overwritten: Vec::new(),
        }
    }

    /// How far everything is written.
    pub fn state(&self) -> State {
        let (map, dump) = (self.sinks.saved(Sinks::MAP), self.sinks.saved(Sinks::JITDUMP));
        State {
            last_time: self.last_time,
            map: map.map(|map| map.file),
            map_is_stale: map.is_some_and(|map| map.is_stale),
            map_is_shared: map.is_some_and(|map| map.is_shared),
            dump: dump.map(|dump| dump.file),
        }
    }

    /// Takes over one record of a chunk that is not recycled before `groups` are written.
    pub fn apply(&mut self, chunk: Chunk, event: &mut Event, groups: &mut Groups) {
        self.keep_order(chunk, event);
        let counters = &self.status.counters;
        if event.has(flag::UNREADABLE) {
            counters.unreadable.add(1);
        }
        if event.has(flag::NAME_CHANGED) {
            counters.names_changed.add(1);
        }
        match event.kind {
            Kind::Load => match self.region_of(event.addr, event.size, event.timestamp, groups) {
                Some(region) => self.load_in_region(region, chunk, event),
                None => {
                    leave_inlines_out(chunk, event);
                    self.load(chunk, event, groups);
                }
            },
            Kind::Move => self.move_code(chunk, event, groups),
            Kind::Unregister => {
                if self.remove(event.id) {
                    self.status.counters.unregistered.add(1);
                }
                self.notify(Notice::Unregistered(event.id));
            }
            Kind::UnregisterRange => loop {
                let (start, end) = (event.addr, event.addr + event.size);
                let mut ids = self.registry.live_in(start, end);
                if ids.is_empty() {
                    ids = self.region_code.registry.live_in(start, end);
                }
                if ids.is_empty() {
                    break;
                }
                for id in ids {
                    self.end_uncalled(id);
                    self.status.counters.unregistered.add(1);
                    self.notify(Notice::Retired(id));
                }
            },
        }
    }

    /// Time must not go back in the file. A record that was stamped before the end of an earlier pass but published after it is
    /// given a time after that of the last record that was written then. That time is as true: its call had not returned yet, so
    /// its code had not run. Nor do two records have the same time: the clock may not advance for some microseconds, and readers
    /// rely on the order of times.
    fn keep_order(&mut self, chunk: Chunk, event: &mut Event) {
        if event.timestamp <= self.last_time {
            event.timestamp = self.last_time.saturating_add(1);
            if event.kind == Kind::Load {
                // SAFETY: the chunk is not recycled yet, and there is no other reference to this body.
                set_time(unsafe { chunk.body_mut(event) }, event.timestamp);
            }
        }
        self.last_time = event.timestamp;
    }

    fn load(&mut self, chunk: Chunk, event: &Event, groups: &mut Groups) {
        self.status.counters.registered.add(1);
        let offset = self.sinks.next_offset(groups);

        let end = event.addr + event.size;
        let claimed = event.has(flag::FREE_BEHIND);
        let mut reach = if claimed { end + unwind::room(event.size, event.tables_len as usize) } else { end };
        if self.is_used(end, reach) {
            if offset.is_some() {
                // SAFETY: the chunk is not recycled yet, and there is no other reference to this body.
                clear_mapped_size(unsafe { chunk.body_mut(event) }, event.unwinding_at as usize);
            }
            reach = end;
        }
        // SAFETY: the chunk is not recycled yet, and nobody writes to this body any more.
        let Some(load) = Load::new(event, unsafe { chunk.body(event) }) else { return };
        let head_len = load.head().len();
        let doubled = if offset.is_some() && reach == end && event.has(flag::PACKED) {
            self.add_shadow(load.head(), event.addr, event.size, event.tables_len)
        } else {
            None
        };
        let (stored_len, tables_len) =
            doubled.as_ref().map_or((head_len, event.tables_len), |(group, tables_len)| (group.len(), *tables_len));
        let stored = offset.map(|offset| Stored { offset, len: stored_len });
        let (addr, size, index) = (event.addr, event.size, event.index);
        let live = Live { addr, size, reach, index, stored, tables_len };
        self.insert(event.id, &live, load.name());
        if self.sinks.keep_info_records() {
            self.registry.keep_info_records(event.id, load.info_records());
        }
        match (offset, load.code(), doubled) {
            (Some(_), CodeBytes::Here(bytes), None) => groups.push(chunk, event, head_len + bytes.len()),
            (Some(_), bytes, doubled) => {
                // Stable, or laid down before the jitdump was started, or with another head.
                let code = match bytes {
                    CodeBytes::Here(bytes) => self.copy_code(bytes),
                    CodeBytes::At(place) => self.read_code(place, size),
                    CodeBytes::InPlace => self.read_code(addr, size),
                };
                match doubled {
                    Some((group, _)) => groups.push_made(group),
                    None => groups.push(chunk, event, head_len),
                }
                groups.push_owned(code, size as usize);
            }
            (None, ..) => {}
        }
        if event.has(flag::STABLE) {
            self.notify(Notice::Read(event.id));
        }
        if groups.are_many() {
            self.sinks.write_groups(groups);
        }
    }

    /// The group that begins with `head`, with a shadow, and the size of its tables then.
    fn add_shadow(&self, head: &[u8], addr: u64, size: u64, tables_len: u32) -> Option<(Vec<u8>, u32)> {
        // In a process that is gone nothing can be set aside.
        if tables_len == 0 || !self.alive {
            return None;
        }
        let place = shadows::place(addr, shadow::room(size, tables_len as usize))?;
        let (group, tables_len) = shadow::add(head, place)?;
        Some((group, tables_len as u32))
    }

    /// The bytes of code, or zeros in their place if there is no memory for them.
    fn copy_code(&self, bytes: &[u8]) -> Vec<u8> {
        copy(bytes).unwrap_or_else(|| {
            self.status.counters.unreadable.add(1);
            Vec::new()
        })
    }

    /// The bytes of code that are not in its record.
    fn read_code(&mut self, addr: u64, size: u64) -> Vec<u8> {
        let mut code = Vec::new();
        if code.try_reserve_exact(size as usize).is_ok() {
            code.resize(size as usize, 0);
            // By the kernel: a host that breaks its promise must not be ended by this thread.
            let read = if self.alive { process_memory::read(self.status.pid, addr, &mut code) } else { 0 };
            if read < code.len() {
                self.status.counters.unreadable.add(1);
            }
        } else {
            // Zeros take its place.
            self.status.counters.unreadable.add(1);
        }
        code
    }

    fn move_code(&mut self, chunk: Chunk, event: &Event, groups: &mut Groups) {
        if self.move_by_region(event, groups) {
            return;
        }
        let name = self.registry.name_of(event.id).map(Vec::from);
        let mut info_records = copy(self.registry.info_records_of(event.id)).unwrap_or_default();
        // If it was unregistered or overwritten meanwhile the move came too late.
        let (Some(mut live), Some(name)) = (self.registry.remove(event.id), name) else {
            if event.has(flag::STABLE) {
                self.notify(Notice::Read(event.id));
            }
            return;
        };
        self.status.counters.moved.add(1);
        // No jitdump runs. The info records kept from a stopped one may have a shadow for the old place.
        if shadow::len(&info_records) > 0 {
            live.tables_len = shadow::remove(&mut info_records).map_or(0, |len| len as u32);
            if live.tables_len == 0 {
                info_records.clear();
            }
        }
        live.addr = event.addr;
        let end = live.addr + live.size;
        let room = unwind::room(live.size, live.tables_len as usize);
        let claimed = live.tables_len > 0 && event.free_after() >= room;
        live.reach = if claimed && !self.is_used(end, end + room) { end + room } else { end };

        // SAFETY: the chunk is not recycled yet.
        let body = unsafe { chunk.body(event) };
        let dumps = self.sinks.running_dump().is_some();
        if dumps && event.has(flag::HAS_CODE) {
            self.dump_move(event, &mut live, body, groups);
        } else if dumps {
            let place = body.try_into().map_or(live.addr, u64::from_ne_bytes);
            let code = self.read_code(place, live.size);
            self.dump_move(event, &mut live, &code, groups);
        } else {
            // A jitdump that has it at the old place has it not at the new one.
            live.index = event.index;
        }
        if event.has(flag::STABLE) {
            self.notify(Notice::Read(event.id));
        }
        self.insert(event.id, &live, &name);
        if self.sinks.keep_info_records() {
            self.registry.keep_info_records(event.id, &info_records);
        }
    }

    fn dump_move(&mut self, event: &Event, live: &mut Live, code: &[u8], groups: &mut Groups) {
        let (timestamp, tid) = (event.timestamp, event.tid);
        // A move is a fresh LOAD: perf 7.2 crashes on MOVE records, and none unwinds through code moved by one.
        live.index = event.index;
        let Some(mut group) = live.stored.and_then(|stored| self.sinks.read_back(groups, stored)) else { return };
        let was_shadowed = shadow::len(&group) > 0;
        if was_shadowed {
            let Some(tables_len) = shadow::remove(&mut group) else { return };
            live.tables_len = tables_len as u32;
        }
        let mapped_size = if live.reach > live.addr + live.size { live.tables_len.into() } else { 0 };
        relocate(&mut group, &Relocation { timestamp, tid, addr: live.addr, index: live.index, mapped_size });
        if was_shadowed && mapped_size == 0 {
            if let Some(doubled) = self.add_shadow(&group, live.addr, live.size, live.tables_len) {
                (group, live.tables_len) = doubled;
            }
        }
        let offset = self.sinks.next_offset(groups);
        live.stored = offset.map(|offset| Stored { offset, len: group.len() });
        let missing = zeros((live.size as usize).saturating_sub(code.len())).map(|piece| piece as &[u8]);
        let pieces: Vec<&[u8]> = [&group[..], code].into_iter().chain(missing).collect();
        self.sinks.write_owned(groups, &pieces);
    }

    /// Remembers what the owner of the ids has to know. Without memory for that an id is never used again.
    pub(super) fn notify(&mut self, notice: Notice) {
        if self.notices.try_reserve(1).is_ok() {
            self.notices.push(notice);
        }
    }

    /// Whether bytes that were said to be free hold live code. Counts the untruth.
    fn is_used(&self, end: u64, reach: u64) -> bool {
        let used = self.registry.live_begins_in(end, reach);
        if used {
            self.status.counters.not_free.add(1);
        }
        used
    }

    /// Adds code to the registry, and to the map what follows from it.
    pub(super) fn insert(&mut self, id: u64, live: &Live, name: &[u8]) {
        self.retire_in(true, live.addr, live.addr + live.size);
        let inserted = self.registry.insert(id, live, name, &mut self.overwritten);
        if inserted.was_refused {
            self.status.counters.dropped.add(1);
            return;
        }
        if inserted.was_claimed {
            // Too late to take the older code's claim back, but not to say it.
            self.status.counters.not_free.add(1);
        }
        let mut overwritten = std::mem::take(&mut self.overwritten);
        for old in overwritten.drain(..) {
            self.status.counters.overwritten.add(1);
            self.sinks.gone(old);
            self.notify(Notice::Retired(old));
        }
        self.overwritten = overwritten;
        self.sinks.load(id, live, name, inserted.change);
    }
}

/// The code has left the region in which it was registered: no other sink can write its inlined functions.
fn leave_inlines_out(chunk: Chunk, event: &mut Event) {
    if event.has(flag::INLINES) {
        // SAFETY: the chunk is not recycled yet, and there is no reference that may write to this body.
        let len = inlines::len(unsafe { chunk.body(event) }) as u32;
        event.flags &= !flag::INLINES;
        event.body_at += len;
        event.body_len -= len;
        event.unwinding_at = event.unwinding_at.saturating_sub(len);
    }
}

/// A copy, unless there is no memory for it.
pub fn copy(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copied = Vec::new();
    copied.try_reserve_exact(bytes.len()).ok()?;
    copied.extend_from_slice(bytes);
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::chunk::tests::event;
    use crate::queue::pool::Pool;
    use crate::sys::clock::Clock;

    #[test]
    fn times_increase_up_to_the_end_of_their_range() {
        let status = Arc::new(Status::new(std::process::id(), Clock::Monotonic, Arc::default()));
        let mut ledger = Ledger::new(status, Arc::default(), false);
        let pool = Pool::new(8 << 20).unwrap();
        pool.open(None);
        pool.replenish();
        let chunk = pool.take().unwrap().chunk();
        let mut last = |timestamp| {
            ledger.apply(chunk, &mut event(Kind::Unregister, timestamp, 0), &mut Groups::default());
            ledger.last_time
        };
        assert_eq!([7, 7, 3, 9, 100].map(&mut last), [7, 8, 9, 10, 100]);
        // A spool may say anything.
        assert_eq!([u64::MAX, u64::MAX, 5].map(&mut last), [u64::MAX; 3]);
    }
}
