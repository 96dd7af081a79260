//! What each record does: to the registry, and from there to the sinks.

use std::sync::Arc;

use super::sinks::Groups;
use super::Writer;
use crate::chunk::{flag, Chunk, Event, Kind};
use crate::format::jitdump::{clear_mapped_size, relocate, Move, Relocation};
use crate::registry::{Live, Stored};
use crate::{unwind, Id};

impl Writer {
    pub(super) fn apply(&mut self, chunk: Chunk, event: &Event, groups: &mut Groups) {
        let counters = &self.engine.counters;
        if event.flags & flag::UNREADABLE != 0 {
            counters.unreadable.add(1);
        }
        if event.flags & flag::NAME_CHANGED != 0 {
            counters.names_changed.add(1);
        }
        match event.kind {
            Kind::Load => self.load(chunk, event, groups),
            Kind::Move => self.move_code(chunk, event, groups),
            Kind::Unregister => {
                if self.registry.remove(event.id).is_some() {
                    counters.unregistered.add(1);
                }
                // The caller has retired the id; nothing refers to it any more.
                self.recycler.add(&self.engine.ids, Id(event.id));
            }
            Kind::UnregisterRange => {
                for id in self.registry.live_in(event.addr, event.addr + event.size) {
                    self.registry.remove(id);
                    self.engine.counters.unregistered.add(1);
                    self.retire(id);
                }
            }
        }
    }

    fn load(&mut self, chunk: Chunk, event: &Event, groups: &mut Groups) {
        self.engine.counters.registered.add(1);
        // SAFETY: this pass recycles the chunk at its end, and there is no other reference to this body yet.
        let body = unsafe { chunk.body_mut(event) };
        let with_code = event.flags & flag::HAS_CODE != 0;
        let head_len = body.len() - if with_code { event.size as usize } else { 0 };
        // The head ends with the name and its NUL.
        let name: Arc<[u8]> = body[head_len - 1 - usize::from(event.name_len)..head_len - 1].into();

        let end = event.addr + event.size;
        let claimed = event.flags & flag::FREE_BEHIND != 0;
        let mut reach = if claimed { end + unwind::room(event.size, event.tables_len as usize) } else { end };
        if self.is_used(end, reach) {
            if with_code {
                clear_mapped_size(body, event.unwinding_at as usize);
            }
            reach = end;
        }
        let offset = self.sinks.next_offset(groups).filter(|_| with_code);
        let stored = offset.map(|offset| Stored { offset, len: head_len });
        let (addr, size, index, tables_len) = (event.addr, event.size, event.index, event.tables_len);
        self.insert(event.id, Live { addr, size, reach, index, name, stored, tables_len });
        if with_code {
            groups.push(chunk, event);
            if groups.are_many() {
                self.sinks.write_groups(groups);
            }
        }
    }

    fn move_code(&mut self, chunk: Chunk, event: &Event, groups: &mut Groups) {
        // If it was unregistered or overwritten meanwhile the move came too late.
        let Some(mut live) = self.registry.remove(event.id) else { return };
        self.engine.counters.moved.add(1);
        let old_addr = std::mem::replace(&mut live.addr, event.addr);
        let end = live.addr + live.size;
        let room = unwind::room(live.size, live.tables_len as usize);
        let claimed = live.tables_len > 0 && u64::from(event.unwinding_at) >= room;
        live.reach = if claimed && !self.is_used(end, end + room) { end + room } else { end };

        if event.flags & flag::HAS_CODE != 0 {
            // SAFETY: the chunk is recycled at the end of this pass.
            let code = unsafe { chunk.body(event) };
            self.dump_move(event, old_addr, &mut live, code, groups);
        }
        self.insert(event.id, live);
    }

    fn dump_move(&mut self, event: &Event, old_addr: u64, live: &mut Live, code: &[u8], groups: &mut Groups) {
        let (timestamp, tid) = (event.timestamp, event.tid);
        if self.sinks.move_records {
            let (pid, size, index) = (self.engine.pid, live.size, live.index);
            let record = Move { timestamp, pid, tid, old_addr, new_addr: live.addr, size, index };
            self.sinks.write_owned(groups, &[&record.to_bytes()]);
            return;
        }
        // A move is a fresh LOAD: perf 7.2 crashes on MOVE records, and none unwinds through code moved by one.
        live.index = event.index;
        let Some(mut group) = live.stored.and_then(|stored| self.sinks.read_back(groups, stored)) else { return };
        let mapped_size = if live.reach > live.addr + live.size { live.tables_len.into() } else { 0 };
        relocate(&mut group, &Relocation { timestamp, tid, addr: live.addr, index: live.index, mapped_size });
        let offset = self.sinks.next_offset(groups);
        live.stored = offset.map(|offset| Stored { offset, len: group.len() });
        self.sinks.write_owned(groups, &[&group, code]);
    }

    /// Whether bytes that were said to be free hold live code. Counts the untruth.
    fn is_used(&self, end: u64, reach: u64) -> bool {
        let used = self.registry.live_begins_in(end, reach);
        if used {
            self.engine.counters.not_free.add(1);
        }
        used
    }

    /// Adds code to the registry, and to the map what follows from it.
    fn insert(&mut self, id: u64, live: Live) {
        if self.registry.claimed_free(live.addr) {
            // Too late to take the older code's claim back, but not to say it.
            self.engine.counters.not_free.add(1);
        }
        let (addr, size, name) = (live.addr, live.size, live.name.clone());
        let mut overwritten = Vec::new();
        let change = self.registry.insert(id, live, &mut overwritten);
        for old in overwritten {
            self.engine.counters.overwritten.add(1);
            self.retire(old);
        }
        self.sinks.note(change, addr, size, &name);
    }
}
