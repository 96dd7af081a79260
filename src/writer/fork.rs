//! The writer and forks: how it comes to rest for one, and what the writer of the child takes over: the live code, and a copy of
//! each piece's group for the child's own jitdump.
//!
//! Groups are read back from the parent's jitdump, by way of the descriptor that the child has inherited: only there are line
//! tables and unwind tables. The parent may be writing to it at the same time, or cut it, and nothing in it is believed. Code
//! whose group is not there (the parent writes no jitdump, or it was cut) gets one of name and bytes alone, which are read
//! from the memory that the child has inherited.

use std::time::Duration;

use super::{Groups, Source, Writer};
use crate::code::Lines;
use crate::config::Config;
use crate::format::jitdump::{is_group_of, relocate, set_process, Group, Relocation};
use crate::registry::{Live, Registry, Stored};
use crate::sink::backlog::Kept;
use crate::standstill::Standstill;
use crate::sys::sync::Instant;
use crate::sys::{barrier, mem, thread};

/// Bytes that come together before they are written.
const BATCH_BYTES: usize = 1 << 20;

/// How long a fork waits for threads that lay down a record.
const HALT_PATIENCE: Duration = Duration::from_millis(10);

/// What a parent has left to a child.
pub struct Inheritance {
    /// Its live code.
    pub registry: Registry,
    dump: Option<Kept>,
    /// When the child was forked, by the clock of its records.
    pub forked_at: u64,
}

impl Writer {
    pub(super) fn standstill(&self) -> &'static Standstill {
        &self.engine.status.standstill
    }

    /// Comes to rest for a fork, with everything written that was registered before.
    pub(super) fn stand_still(&mut self) {
        let still = self.standstill();
        if self.exiting || !still.begin_halt() {
            // The end of the process may interrupt any write.
            still.answer(false);
            return;
        }
        barrier::all_threads();
        self.collect();
        if !still.halt(self.sources.values().map(|source| source.slot.clone())) {
            return;
        }
        barrier::all_threads();
        let end = Instant::now() + HALT_PATIENCE;
        let mut quiet = still.is_quiet();
        while !quiet && Instant::now() < end {
            thread::sleep_micros(20);
            quiet = still.is_quiet();
        }
        if still.enter_last() {
            self.pass_inside(false);
            still.answer(quiet && !self.sources.values().any(Source::has_unread));
        }
    }

    /// What the sinks were opened with, while they are.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Tells forks where a child finds what it takes over. The writer stays where it is until it has finished.
    pub fn announce(&mut self) {
        let still = self.standstill();
        still.begin((&raw mut *self).cast(), self.process.page.shared());
    }

    /// In a forked child: takes from the parent's writer what the child goes on with. Its files are closed, but for the
    /// jitdump, which is read from.
    pub fn bequeath(&mut self, forked_at: u64) -> Inheritance {
        let registry = std::mem::take(&mut self.ledger.registry);
        Inheritance { registry, dump: self.ledger.sinks.let_go(), forked_at }
    }

    /// In a forked child, when the sinks are open: goes on with what the parent has left.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        let Inheritance { mut registry, dump, forked_at } = inheritance;
        // It has never run in the child.
        registry.forget_dead();
        self.ledger.registry = registry;
        self.ledger.last_time = forked_at;
        self.write_groups(dump.as_ref(), forked_at);
        let ledger = &mut self.ledger;
        let memory = self.engine.pool.memory();
        // The map is empty: written anew is the same as written.
        ledger.sinks.note_forgotten();
        ledger.sinks.write_map(&mut ledger.registry, true, &|file| memory.header().set_next_map(file));
        let live = ledger.registry.live_count() as u64;
        ledger.status.counters.inherited.add(live);
        ledger.status.counters.live.set(live);
        self.committed = ledger.state();
        memory.commit(&self.committed);
    }

    fn write_groups(&mut self, from: Option<&Kept>, timestamp: u64) {
        let pid = self.engine.status.pid;
        let ledger = &mut self.ledger;
        let (mut batch, mut lens, none) = (Vec::new(), Vec::new(), Groups::default());
        for id in ledger.registry.live_by_place() {
            // What follows may fail, and then there is no place.
            let place = ledger.sinks.next_offset(&none).map(|end| end + batch.len() as u64);
            let (Some(offset), Some(live), Some(name)) = (place, ledger.registry.get(id), ledger.registry.name_of(id))
            else {
                ledger.registry.set_stored(id, None, 0);
                continue;
            };
            let start = batch.len();
            let copied = from.and_then(|file| copy_group(&mut batch, file, &live, name, timestamp));
            let len = copied.or_else(|| {
                batch.truncate(start);
                bare_group(&mut batch, pid, &live, name, timestamp)
            });
            match len {
                Some(_) => set_process(&mut batch[start..], pid),
                None => {
                    batch.truncate(start);
                    ledger.status.counters.unreadable.add(1);
                }
            }
            let tables_len = copied.map_or(0, |_| live.tables_len);
            ledger.registry.set_stored(id, len.map(|len| Stored { offset, len }), tables_len);
            lens.extend(len.map(|_| batch.len() - start));
            if batch.len() >= BATCH_BYTES {
                ledger.sinks.write_inherited(&batch, &lens);
                batch.clear();
                lens.clear();
            }
        }
        if !batch.is_empty() {
            ledger.sinks.write_inherited(&batch, &lens);
        }
    }
}

/// Appends the group of this code with its bytes, as the parent has it. Returns its length without the bytes.
fn copy_group(out: &mut Vec<u8>, file: &Kept, live: &Live, name: &[u8], timestamp: u64) -> Option<usize> {
    let Stored { offset, len } = live.stored?;
    let start = out.len();
    let whole = len.checked_add(live.size as usize)?;
    make_room(out, whole)?;
    let group = &mut out[start..];
    file.read(offset, group).ok()?;
    let head = &mut group[..len];
    if !is_group_of(head, live.size, live.index, name) {
        return None;
    }
    let mapped_size = if live.reach > live.addr + live.size { live.tables_len.into() } else { 0 };
    // Where the parent has written a move as such, the group has the address that the code had before.
    relocate(head, &Relocation { timestamp, tid: 0, addr: live.addr, index: live.index, mapped_size });
    Some(len)
}

/// Appends a group that says what is known without the parent's jitdump.
fn bare_group(out: &mut Vec<u8>, pid: u32, live: &Live, name: &[u8], timestamp: u64) -> Option<usize> {
    let Live { addr, size, index, .. } = *live;
    let group = Group { pid, tid: pid, index, addr, size, name, lines: Lines::Rows(&[]), unwind: None };
    let (start, len) = (out.len(), group.fixed_size());
    make_room(out, len.checked_add(size as usize)?)?;
    group.write(timestamp, &mut out[start..], size as usize).ok()??;
    mem::read_self(pid, addr, &mut out[start + len..]);
    Some(len)
}

/// Makes the buffer longer, if there is memory for it.
fn make_room(out: &mut Vec<u8>, more: usize) -> Option<()> {
    out.try_reserve(more).ok()?;
    out.resize(out.len() + more, 0);
    Some(())
}
