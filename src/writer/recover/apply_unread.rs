//! Applies the records that a dead process has published, but that its writer did not read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::options::Sinks;
use crate::format::jitdump::{is_group_head, GroupPlace};
use crate::format::perf_map;
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, Event, EventKind, Load};
use crate::queue::spool::layout::{Files, Header};
use crate::queue::status::Status;
use crate::registry::{Home, Live, Stored, TOO_LARGE};
use crate::sink::{Announce, Round};
use crate::writer::Applier;

/// The first id, minus 1. The first id has the slot 0, each further id has the next slot, and no slot is used twice.
const BEFORE_IDS: u64 = (1 << 32) - 1;

/// An applier for the records of a dead process.
pub struct Replay {
    applier: Applier,
    /// The last id that was given out. The replay makes new ids, because code that was read from the files no longer has an
    /// id.
    last_id: u64,
    /// The last id that was given to code from the files.
    last_from_files: u64,
    /// Maps the ids of the dead process to the ids of the replay.
    ids: BTreeMap<u64, u64>,
    /// Set if a file could not be taken over, and another attempt may succeed.
    pub lacks_a_file: bool,
    /// Why the jitdump could not be read. In this case, code may be missing. `None` if there was no error.
    unread: Option<String>,
    is_short: bool,
}

impl Replay {
    /// Takes over the files. For each file that cannot be taken over, adds the reason to `problems`. `search`: whether to
    /// read the code in the jitdump too. `may_be_locked`: whether a process with another pid may hold a lock on a file.
    pub fn new(
        status: Arc<Status>,
        files: &Files,
        header: &Header,
        (search, may_be_locked): (bool, bool),
        problems: &mut Vec<String>,
    ) -> Replay {
        let mut applier = Applier::new(status, Arc::default(), false);
        let state = header.state();
        applier.last_time = state.last_time;
        let adopted = applier.sinks.adopt(files, &state, header.next_map(), may_be_locked);
        problems.extend(adopted.problems);
        let mut replay = Replay {
            applier,
            last_id: BEFORE_IDS,
            last_from_files: 0,
            ids: BTreeMap::new(),
            lacks_a_file: adopted.worth_another_try,
            unread: None,
            is_short: false,
        };
        for (addr, size, name) in perf_map::lines(&adopted.map) {
            // The code is added as live code: it may still be live, so its bytes must not count as free.
            if size < TOO_LARGE {
                replay.know(&Live { addr, size, index: 0, stored: None, home: Home::Plain }, name);
            }
        }
        if search {
            replay.search_dump();
        }
        replay.last_from_files = replay.last_id;
        replay
    }

    /// Adds code from a file to the registry.
    fn know(&mut self, live: &Live, name: &[u8]) {
        let id = self.new_id();
        let registry = &mut self.applier.registry;
        if registry.make_room(id, name.len(), 0, false) {
            registry.insert(id, live, name, &mut Vec::new());
        } else {
            self.is_short = true;
        }
    }

    /// A new id, with the next slot.
    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds all code in the jitdump to the registry. There are two reasons: a stale map may lack code, and the record of a move
    /// needs the group of the moved code from the jitdump.
    fn search_dump(&mut self) {
        let mut found = Vec::new();
        if let Some(dump) = self.applier.sinks.dump() {
            let mut note = |place| {
                found.try_reserve(1)?;
                found.push(place);
                Ok(())
            };
            self.unread = dump.read_places(&mut note).err();
        }
        for place in found {
            let GroupPlace { offset, head_len, addr, size, index, name, .. } = place;
            if size > 0 && size < TOO_LARGE && fits(addr, size) && !name.is_empty() {
                let stored = Some(Stored { offset, len: head_len });
                self.know(&Live { addr, size, index, stored, home: Home::Plain }, &name);
            }
        }
    }

    /// Applies one record that `is_sound` has accepted.
    pub fn apply(&mut self, chunk: Chunk, event: &mut Event) {
        event.id = self.our_id(event);
        if event.kind == EventKind::Move && !self.is_sound_move(event) {
            return;
        }
        self.is_short = self.is_short || !self.applier.make_room(event);
        if self.is_short {
            return;
        }
        self.applier.apply(chunk, event);
        self.applier.notices.clear();
        self.applier.registry.tidy();
    }

    /// Whether the parts of a move event that depend on the moved code are valid.
    fn is_sound_move(&self, event: &Event) -> bool {
        let has_code = event.has(flag::HAS_CODE);
        let Some(live) = self.applier.registry.get(event.id) else { return !has_code };
        fits(event.addr, live.size) && (!has_code || live.size == u64::from(event.body_len))
    }

    /// The replay's id for an event's code. 0 if the code is not known.
    fn our_id(&mut self, event: &Event) -> u64 {
        if event.kind == EventKind::Load {
            let id = self.new_id();
            self.ids.insert(event.id, id);
            return id;
        }
        let known = self.ids.get(&event.id).copied().filter(|&id| self.applier.registry.is_live(id));
        if known.is_none() && event.kind == EventKind::Move {
            // The writer has read the registration of this code in an earlier round, so the code is in the files. If this
            // replay has registered newer code at the old address, the newer code has overwritten the moved code.
            let found =
                self.applier.registry.id_at(Home::Plain, event.old_addr()).filter(|&id| id <= self.last_from_files);
            self.ids.extend(found.map(|id| (event.id, id)));
            return found.unwrap_or_default();
        }
        known.unwrap_or_default()
    }

    /// Writes the files. Returns how many records were written, or why writing failed. Calls `announce` with a file before this
    /// file replaces the map.
    pub fn finish(mut self, announce: Announce<'_>) -> Result<u64, String> {
        if self.is_short {
            return Err("no memory for all that the files are to have".into());
        }
        let (sinks, time) = (&mut self.applier.sinks, self.applier.last_time);
        sinks.write(&mut Round { registry: &mut self.applier.registry, now: true, is_last: true, time, announce });
        sinks.trim();
        let status = &self.applier.status;
        if status.sinks_failed() != Sinks::NONE {
            return Err(status.last_error.get().1);
        }
        if let Some(why) = self.unread {
            return Err(why);
        }
        if status.sinks() == Sinks::NONE {
            return Ok(0);
        }
        Ok(status.counters.registered.get() + status.counters.moved.get())
    }
}

/// Whether code lies in the address space.
fn fits(addr: u64, size: u64) -> bool {
    addr != 0 && addr.checked_add(size).is_some()
}

/// Whether an event of a dead process and the body of this event are valid. `is_sound_move` checks the parts of a move that
/// depend on the moved code.
pub fn is_sound(event: &Event, body: &[u8]) -> bool {
    match event.kind {
        EventKind::Load => {
            (1..TOO_LARGE).contains(&event.size)
                && fits(event.addr, event.size)
                && Load::new(event, body)
                    .is_some_and(|load| is_group_head(load.head(), event.size, event.name_len.into()))
        }
        EventKind::Move => !event.has(flag::STABLE) || body.len() == 8,
        EventKind::Unregister => true,
        EventKind::UnregisterRange => event.addr.checked_add(event.size).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::code::Lines;
    use crate::format::jitdump::Group;
    use crate::sys::clock::Clock;

    /// Whether a record of code with this address and size is accepted.
    fn is_taken(addr: u64, size: u64) -> bool {
        let group =
            Group { pid: 1, tid: 1, index: 1, addr, size, name: b"name", lines: Lines::Rows(&[]), unwind: None };
        let mut body = vec![0; group.fixed_size() + size as usize];
        group.write(1, &mut body, size as usize).expect("a sound group").expect("room for it");
        let event = Event {
            timestamp: 1,
            id: 1 << 32,
            index: 1,
            addr,
            size,
            body_len: body.len() as u32,
            tid: 1,
            flags: flag::HAS_CODE,
            name_len: 4,
            ..Event::default()
        };
        is_sound(&event, &body)
    }

    #[test]
    fn a_jitdump_that_cannot_be_read_is_no_success() {
        let status = Arc::new(Status::new(1, Clock::Monotonic, Arc::default()));
        status.set_sinks(Sinks::JITDUMP, Sinks::NONE);
        let applier = Applier::new(status, Arc::default(), false);
        let ids = BTreeMap::new();
        let mut replay = Replay {
            applier,
            last_id: BEFORE_IDS,
            last_from_files: 0,
            ids,
            lacks_a_file: false,
            unread: None,
            is_short: false,
        };
        // The file does not exist.
        replay.search_dump();
        assert!(replay.finish(&|_, _| {}).is_err_and(|why| why.starts_with("cannot read")));
    }

    #[test]
    fn all_of_the_address_space_counts() {
        assert!(is_taken(0x1000, 16));
        assert!(is_taken(u64::MAX - 16, 16));
        assert!(!is_taken(u64::MAX - 15, 16));
        assert!(!is_taken(0, 16));
    }
}
