//! Applies the records of registering threads: changes the registry, and reports the changes to the sinks.
//!
//! The writer has one applier for its process. The recovery of a dead process's spool makes another applier for that
//! process.

use std::sync::Arc;

use crate::api::options::Sinks;
use crate::format::code_info::Info;
use crate::format::jitdump::{map_tables, set_time};
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, Event, EventKind, Load};
use crate::queue::spool::layout::Progress;
use crate::queue::status::Status;
use crate::registry::{Home, Live, Registry};
use crate::sink::region::Regions;
use crate::sink::set::SinkSet;
use crate::sink::{Loaded, Origin};
use crate::sys::reserve;

/// The registry and the sinks of one process, to which records are applied.
pub struct Applier {
    pub status: Arc<Status>,
    pub registry: Registry,
    pub sinks: SinkSet,
    /// Notices about ids. The writer updates `Shared::ids` according to these notices.
    pub notices: Vec<Notice>,
    /// Whether the process is alive. Only a live process can have regions.
    pub alive: bool,
    /// The time of the last applied record.
    pub last_time: u64,
    /// The regions: code memory that is a mapping of an ELF file.
    pub regions: Arc<Regions>,
    /// Whether the code of the present record may lie in a region. If so, `make_room` has made room in the registry for code in
    /// a region and for code outside of regions.
    pub(super) watching: bool,
    /// The ids of overwritten code that is not reported yet. Empty between two records.
    pub(super) overwritten: Vec<u64>,
}

/// What happened to an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A call unregistered the code.
    Unregistered(u64),
    /// The code left the registry without a call to unregister it.
    FreeLater(u64),
    /// The writer has read the bytes of the code, which the registering call did not copy (`flag::STABLE`).
    Read(u64),
}

impl Applier {
    pub fn new(status: Arc<Status>, regions: Arc<Regions>, alive: bool) -> Applier {
        let sinks = SinkSet::new(status.clone(), &regions);
        let registry = Registry::default();
        Applier {
            status,
            registry,
            sinks,
            notices: Vec::new(),
            alive,
            last_time: 0,
            regions,
            watching: false,
            overwritten: Vec::new(),
        }
    }

    /// The progress of all files.
    pub fn state(&self) -> Progress {
        let (map, dump) = (self.sinks.saved(Sinks::MAP), self.sinks.saved(Sinks::JITDUMP));
        Progress {
            last_time: self.last_time,
            map: map.map(|map| map.file),
            map_is_stale: map.is_some_and(|map| map.is_stale),
            map_is_shared: map.is_some_and(|map| map.is_shared),
            dump: dump.map(|dump| dump.file),
        }
    }

    /// Makes room for a record's additions to the registry. Returns false if memory is short.
    #[inline]
    pub fn make_room(&mut self, event: &Event) -> bool {
        if event.kind != EventKind::Load {
            return self.make_room_for_move(event);
        }
        let code_len = if event.has(flag::HAS_CODE) { event.size as usize } else { 0 };
        self.make_room_for(event.id, event.name_len.into(), (event.body_len as usize).saturating_sub(code_len))
    }

    #[inline]
    pub(super) fn make_room_for(&mut self, id: u64, name_len: usize, info_len: usize) -> bool {
        let kept_len = if self.sinks.keep_info() { info_len } else { 0 };
        self.watching = self.regions.are_watching();
        self.registry.make_room(id, name_len, if self.watching { info_len } else { kept_len }, self.watching)
    }

    #[cold]
    fn make_room_for_move(&mut self, event: &Event) -> bool {
        if event.kind != EventKind::Move {
            return true;
        }
        let (name_len, info_len) = self.lens_of(event.id);
        self.make_room_for(event.id, name_len, info_len)
    }

    /// For live code, returns the length of the name, and an upper bound for the total length of the records that precede the
    /// LOAD record.
    pub(super) fn lens_of(&self, id: u64) -> (usize, usize) {
        let in_dump = self.registry.get(id).and_then(|live| live.stored).map_or(0, |stored| stored.len);
        let name = self.registry.name_of(id).unwrap_or_default();
        (name.len(), in_dump.max(self.registry.info_of(id).bytes().len()))
    }

    /// Applies one record, for which `make_room` must have returned true. The record's chunk must not be recycled before the
    /// sinks have written the record.
    pub fn apply(&mut self, chunk: Chunk, event: &mut Event) {
        self.keep_order(chunk, event);
        let counters = &self.status.counters;
        if event.has(flag::UNREADABLE) {
            counters.unreadable.add(1);
        }
        if event.has(flag::NAME_CHANGED) {
            counters.names_changed.add(1);
        }
        if event.kind == EventKind::Load && event.has(flag::GAP) {
            // SAFETY: the chunk is not recycled yet, and there is no other reference to this body.
            map_tables(unsafe { chunk.body_mut(event) }, event.size, true);
        }
        match event.kind {
            EventKind::Load => match self.region_of(event.addr, event.size, event.timestamp) {
                Some(region) => self.load_in_region(region, chunk, event),
                None => self.load(chunk, event),
            },
            EventKind::Move => self.move_code(chunk, event),
            EventKind::Unregister => {
                self.take_in_new();
                if self.remove(event.id) {
                    self.status.counters.unregistered.add(1);
                }
                self.notify(Notice::Unregistered(event.id));
            }
            EventKind::UnregisterRange => loop {
                self.take_in_new();
                let (start, end) = (event.addr, event.addr + event.size);
                let mut ids = self.registry.live_in(Home::Plain, start, end);
                if ids.is_empty() {
                    ids = self.registry.live_in(Home::Region, start, end);
                }
                if ids.is_empty() {
                    break;
                }
                for id in ids {
                    self.end_uncalled(id);
                    self.status.counters.unregistered.add(1);
                    self.notify(Notice::FreeLater(id));
                }
            },
        }
    }

    /// Times in a file must increase. A record that was stamped before the end of a round, but published after this end, gets a
    /// new time, which is later than the time of the last applied record. The new time is correct: when the round ended, the
    /// registering call had not returned yet, so the code had not run yet. A record with the same time as the last applied
    /// record also gets a new time, because the clock may stand still for some microseconds, but readers rely on the order.
    fn keep_order(&mut self, chunk: Chunk, event: &mut Event) {
        if event.timestamp <= self.last_time {
            event.timestamp = self.last_time.saturating_add(1);
            if event.kind == EventKind::Load {
                // SAFETY: the chunk is not recycled yet, and there is no other reference to this body.
                set_time(unsafe { chunk.body_mut(event) }, event.timestamp);
            }
        }
        self.last_time = event.timestamp;
    }

    fn load(&mut self, chunk: Chunk, event: &Event) {
        self.status.counters.registered.add(1);
        let (addr, size, index) = (event.addr, event.size, event.index);
        // SAFETY: the chunk is not recycled yet, and nobody writes to this body now.
        let Some(load) = Load::new(event, unsafe { chunk.body(event) }) else { return };
        let live = Live { addr, size, index, stored: None, home: Home::Plain };
        self.insert(event.id, &live, load.name(), Origin::Registered(chunk, event, &load));
        if self.sinks.keep_info() {
            self.registry.keep_info(event.id, load.info());
        }
        self.notify_read(event);
    }

    fn move_code(&mut self, chunk: Chunk, event: &Event) {
        if self.move_by_region(event) {
            return;
        }
        // If the code's group is not in the jitdump's file yet, the group is written now. A child that is forked meanwhile must
        // find the code at its old address, or not at all.
        if let Some(stored) = self.registry.get(event.id).and_then(|live| live.stored) {
            self.sinks.dump().into_iter().for_each(|dump| dump.write_until(stored));
        }
        let name = self.registry.name_of(event.id).map(Vec::from);
        let mut info = reserve::copy_of(self.registry.info_of(event.id).bytes()).unwrap_or_default();
        // A move of code that was unregistered or overwritten meanwhile is ignored.
        let (Some(mut live), Some(name)) = (self.registry.remove(event.id), name) else {
            return self.notify_read(event);
        };
        self.status.counters.moved.add(1);
        // The group in the jitdump describes the code at its old address, so `stored` is removed below.
        (live.addr, live.index) = (event.addr, event.index);
        map_tables(&mut info, live.size, event.has(flag::GAP));
        // SAFETY: the chunk is not recycled yet.
        let (body, before) = (unsafe { chunk.body(event) }, live.stored.take());
        self.insert(event.id, &live, &name, Origin::Moved { event, body, before });
        if self.sinks.keep_info() {
            self.registry.keep_info(event.id, Info::new(&info));
        }
        self.notify_read(event);
    }

    /// If the code is stable, notes that the sinks have read its bytes.
    pub(super) fn notify_read(&mut self, event: &Event) {
        if event.has(flag::STABLE) {
            self.notify(Notice::Read(event.id));
        }
    }

    /// Keeps a notice until the writer updates `Shared::ids`. If there is no memory for the notice, the id is never used again.
    pub(super) fn notify(&mut self, notice: Notice) {
        if self.notices.try_reserve(1).is_ok() {
            self.notices.push(notice);
        }
    }

    /// Adds code outside of regions to the registry, and reports the code to the sinks. The registry must have room for the
    /// code.
    pub(super) fn insert(&mut self, id: u64, live: &Live, name: &[u8], origin: Origin<'_>) {
        if self.watching {
            self.name_parts(id, live, name, &origin);
        }
        self.retire_in_regions(live.addr, live.addr + live.size);
        let change = self.registry.insert(id, live, name, &mut self.overwritten);
        let code = Loaded { id, live, name, change, origin };
        while let Some(old) = self.overwritten.pop() {
            self.status.counters.overwritten.add(1);
            self.sinks.gone(old);
            self.notify(Notice::FreeLater(old));
        }
        if let Origin::LeftRegion(_, info) = code.origin {
            self.registry.keep_info(id, info);
        }
        self.sinks.load(&code, &mut self.registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::chunk::tests::event;
    use crate::queue::chunk::FIRST_SIZE;
    use crate::queue::pool::Pool;
    use crate::sys::clock::Clock;

    #[test]
    fn times_increase_up_to_the_end_of_their_range() {
        let status = Arc::new(Status::new(std::process::id(), Clock::Monotonic, Arc::default()));
        let mut applier = Applier::new(status, Arc::default(), false);
        let pool = Pool::new(8 << 20).unwrap();
        pool.open(None);
        pool.replenish(1);
        let chunk = pool.take(FIRST_SIZE).unwrap().chunk();
        let mut last = |timestamp| {
            applier.apply(chunk, &mut event(EventKind::Unregister, timestamp, 0));
            applier.last_time
        };
        assert_eq!([7, 7, 3, 9, 100].map(&mut last), [7, 8, 9, 10, 100]);
        // A spool may contain any values.
        assert_eq!([u64::MAX, u64::MAX, 5].map(&mut last), [u64::MAX; 3]);
    }
}
