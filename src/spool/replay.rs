//! What the writer of a dead process would have done with the records that it did not come to.

use std::sync::Arc;

use super::layout::{Files, Header};
use crate::chunk::{flag, Chunk, Event, Kind};
use crate::config::Sinks;
use crate::format::jitdump::{is_group_head, Place};
use crate::format::perf_map;
use crate::registry::{Live, Stored};
use crate::status::Status;
use crate::writer::{tail_len, Groups, Ledger};

/// Code known from a file has such an id: no process has given it out, because a registration would need that many.
const FROM_FILE: u64 = 1 << 63;

/// The largest size and the largest distance behind code that are ever added to an address.
const FAR: u64 = 1 << 33;

/// See the module's description.
pub struct Replay {
    ledger: Ledger,
    groups: Groups,
    next_id: u64,
}

impl Replay {
    /// Takes over the files. What cannot be taken over is described in `problems`. `moves`: there are records of moves.
    pub fn new(status: Arc<Status>, files: &Files, header: &Header, moves: bool, problems: &mut Vec<String>) -> Replay {
        let mut ledger = Ledger::new(status, false);
        let state = header.state();
        ledger.last_time = state.last_time;
        let map = ledger.sinks.adopt(files, &state, header.next_map(), problems);
        let mut replay = Replay { ledger, groups: Groups::default(), next_id: FROM_FILE };
        for (addr, size, name) in perf_map::lines(&map) {
            // As live: whether it is, nobody knows any more, and bytes with live code are not free.
            let (reach, name) = (addr + size, name.into());
            replay.know(Live { addr, size, reach, index: 0, name, stored: None, tables_len: 0 });
        }
        if moves {
            replay.search_dump();
        }
        replay
    }

    /// Takes note of code that is in a file.
    fn know(&mut self, live: Live) {
        self.next_id += 1;
        self.ledger.registry.insert(self.next_id, live, &mut Vec::new());
    }

    /// Takes note of all code that is in the jitdump: a move copies the group from there.
    fn search_dump(&mut self) {
        let mut found = Vec::new();
        self.ledger.sinks.read_places(&mut |place| found.push(place));
        for place in found {
            match place {
                Place::Load { offset, head_len, addr, size, index, name, tables_len } => {
                    let sound = size > 0 && addr < u64::MAX - FAR && size < FAR && !name.is_empty();
                    let (reach, name, stored) =
                        (addr.wrapping_add(size), name.into(), Some(Stored { offset, len: head_len }));
                    if sound {
                        self.know(Live { addr, size, reach, index, name, stored, tables_len });
                    }
                }
                Place::Move { old_addr, new_addr } => {
                    self.next_id += 1;
                    if new_addr < u64::MAX - FAR && self.ledger.registry.rename(old_addr, self.next_id) {
                        if let Some(mut live) = self.ledger.registry.remove(self.next_id) {
                            live.addr = new_addr;
                            live.reach = new_addr + live.size;
                            self.know(live);
                        }
                    }
                }
            }
        }
    }

    /// Takes over one record, which is sound.
    pub fn apply(&mut self, chunk: Chunk, event: &mut Event) {
        if event.kind == Kind::Move && !self.ledger.registry.is_live(event.id) {
            // It was registered in an earlier pass.
            self.ledger.registry.rename(event.size, event.id);
        }
        let size = self.ledger.registry.size_of(event.id);
        if event.kind == Kind::Move && event.flags & flag::HAS_CODE != 0 && size != Some(event.body_len.into()) {
            return;
        }
        self.ledger.apply(chunk, event, &mut self.groups);
        self.ledger.notices.clear();
    }

    /// Writes everything. Returns how many records that were, or why it could not be done.
    pub fn finish(mut self, header: &Header) -> Result<u64, String> {
        let sinks = &mut self.ledger.sinks;
        sinks.write_groups(&mut self.groups);
        sinks.write_map(&self.ledger.registry, true, &|file| header.set_next_map(file));
        let status = &self.ledger.status;
        if status.sinks_failed() != Sinks::NONE {
            return Err(status.last_error.get());
        }
        if status.sinks() == Sinks::NONE {
            return Ok(0);
        }
        Ok(status.counters.registered.get() + status.counters.moved.get())
    }
}

/// Whether an event of a dead process makes sense, with its body.
pub fn is_sound(event: &Event, body: &[u8]) -> bool {
    match event.kind {
        Kind::Load => {
            let head_len = body.len().checked_sub(tail_len(event, event.size));
            let tail_is_one = event.flags & (flag::HAS_CODE | flag::STABLE) != flag::HAS_CODE | flag::STABLE;
            (1..FAR).contains(&event.size)
                && event.addr < u64::MAX - FAR
                && tail_is_one
                && head_len.is_some_and(|head_len| {
                    event.unwinding_at as usize <= head_len
                        && is_group_head(&body[..head_len], event.size, event.name_len.into())
                })
        }
        Kind::Move => event.addr < u64::MAX - FAR && (event.flags & flag::STABLE == 0 || body.len() == 8),
        Kind::Unregister => true,
        Kind::UnregisterRange => event.addr.checked_add(event.size).is_some(),
    }
}
