//! Writes the groups (the records) of code that was live before the jitdump was started. Code is live before the jitdump starts
//! in a forked child, or if the sink is enabled late.
//!
//! If the parent's jitdump has the group of the code, the child copies the group through the inherited mapping. The parent may
//! write to its jitdump or truncate it at the same time, so the child checks the copied records. If the group of the code
//! cannot be copied, the group is built from the registry's data and the bytes at the address of the code.

use super::backlog::Contents;
use super::stopped::Reopened;
use super::Jitdump;
use crate::api::code::Lines;
use crate::format::jitdump::{inlines, is_group_of, relocate, set_process};
use crate::format::jitdump::{Group, Relocation};
use crate::registry::{Home, Live, Registry, Stored};
use crate::sys::process_memory;

/// A batch is written when it has this many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// A batch is written when it has this many groups. This limit keeps the list of the batch's groups (`Pending`) small, in case
/// memory is short.
const BATCH_GROUPS: usize = 1024;

/// A group that is about to be written.
struct Pending {
    id: u64,
    stored: Stored,
}

impl Jitdump {
    /// Writes the groups of all live code when the sink is enabled late, or in a forked child. `timestamp` is later than the
    /// times of all records so far. Returns false if there is no memory for the list of the code.
    pub fn write_live(&mut self, registry: &mut Registry, timestamp: u64) -> bool {
        let is_listed = self.list_live(registry);
        if !is_listed {
            self.count(0, 0, registry.live_count(Home::Plain) as u64);
        }
        while self.write_more(registry, timestamp) {}
        is_listed
    }

    /// Makes the list of code for `write_more`: all live code whose groups are not in this file. An existing list is kept.
    /// Returns false if there is no memory for the list.
    pub fn list_live(&mut self, registry: &Registry) -> bool {
        if self.unwritten.is_some() {
            return true;
        }
        self.flush();
        let mut listed = Vec::new();
        let ids = registry.live_by_place(Some(Home::Plain));
        let ids = ids.filter(|_| listed.try_reserve_exact(registry.live_count(Home::Plain)).is_ok());
        let is_listed = ids.is_some();
        listed.extend(ids.into_iter().flatten().filter(|&id| registry.get(id).is_some_and(|live| self.lacks(&live))));
        self.unwritten = is_listed.then(|| listed.into_iter());
        is_listed
    }

    /// Whether the code lies outside of regions, and no group of the code was added to this jitdump.
    fn lacks(&self, live: &Live) -> bool {
        live.home == Home::Plain && live.stored.is_none_or(|stored| self.contents.is_inherited(stored))
    }

    /// Writes groups of the listed code, but not more groups than one system call writes. Returns whether the list still has
    /// code.
    pub fn write_more(&mut self, registry: &mut Registry, timestamp: u64) -> bool {
        self.flush();
        let (mut batch, mut lens, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        let mut left_out = 0;
        while batch.len() < BATCH_BYTES && pending.len() < BATCH_GROUPS {
            let Some(id) = self.unwritten.as_mut().and_then(Iterator::next) else { break };
            // The code may have ended or moved since it was listed.
            let Some(live) = registry.get(id).filter(|live| self.lacks(live)) else { continue };
            if let Some(stored) = self.reopened.find(live.index).filter(|_| self.goes_on) {
                registry.set_stored(id, Some(stored));
                continue;
            }
            if live.stored.is_some_and(|stored| self.contents.is_underway(stored)) {
                // The parent forked while it was writing this group. Only the parent has the lines and tables of the code.
                registry.set_stored(id, None);
                left_out += 1;
                continue;
            }
            let (start, offset) = (batch.len(), self.contents.next + batch.len() as u64);
            let put = self.put_group(&mut batch, registry, id, &live, timestamp);
            let Some(len) = put else {
                batch.truncate(start);
                self.status.counters.unreadable.add(1);
                continue;
            };
            lens.push(batch.len() - start);
            pending.push(Pending { id, stored: Stored { offset, len } });
        }
        self.write_batch(registry, &mut batch, &mut lens, &mut pending);
        self.count(0, 0, left_out);
        if self.unwritten.as_ref().is_some_and(|left| left.len() > 0) {
            return true;
        }
        (self.unwritten, self.reopened) = (None, Reopened::default());
        self.contents.forget_parent();
        registry.tidy();
        false
    }

    /// Writes a group for live code.
    pub(super) fn write_one(&mut self, registry: &mut Registry, id: u64, timestamp: u64) {
        self.flush();
        let Some(live) = registry.get(id) else { return };
        let mut batch = Vec::new();
        match self.put_group(&mut batch, registry, id, &live, timestamp) {
            Some(len) => {
                let stored = Stored { offset: self.contents.next, len };
                self.put(&[&batch], &[batch.len()]);
                registry.set_stored(id, Some(stored));
            }
            None => self.status.counters.unreadable.add(1),
        }
    }

    /// Writes the batch, and only then records the positions of its groups in the registry, because a child may be forked
    /// during the write.
    fn write_batch(
        &mut self,
        registry: &mut Registry,
        batch: &mut Vec<u8>,
        lens: &mut Vec<usize>,
        pending: &mut Vec<Pending>,
    ) {
        if !batch.is_empty() {
            self.put(&[batch], lens);
        }
        for Pending { id, stored } in pending.drain(..) {
            registry.set_stored(id, Some(stored));
        }
        batch.clear();
        lens.clear();
    }

    /// Appends a group with its code bytes to `out`. Returns the length of the group without the code bytes.
    pub(super) fn put_group(
        &self,
        out: &mut Vec<u8>,
        registry: &Registry,
        id: u64,
        live: &Live,
        timestamp: u64,
    ) -> Option<usize> {
        let (name, pid) = (registry.name_of(id)?, self.status.pid);
        let start = out.len();
        let copied = copy_group(out, &self.contents, live, name, timestamp);
        if let Some(len) = copied {
            set_process(&mut out[start..], pid);
            return Some(len);
        }
        out.truncate(start);
        let info = registry.info_of(id).bytes();
        let records = &info[inlines::len(info)..];
        let (whole, len) = make_group(out, pid, live, name, records, timestamp)?;
        set_process(&mut out[start..], pid);
        // A forked child does not count unreadable code here, because the parent has already counted this code.
        if !whole && self.contents.ancestors() == 0 {
            self.status.counters.unreadable.add(1);
        }
        Some(len)
    }
}

/// Copies the code's group, with the code bytes, from the jitdump of an ancestor, and appends the copy to `out`. Returns the
/// length of the group without the code bytes, or `None` if the group cannot be copied.
fn copy_group(out: &mut Vec<u8>, file: &Contents, live: &Live, name: &[u8], timestamp: u64) -> Option<usize> {
    let Stored { offset, len } = live.stored.filter(|&stored| file.is_inherited(stored))?;
    let start = out.len();
    let whole = len.checked_add(live.size as usize)?;
    make_room(out, whole)?;
    let group = &mut out[start..];
    file.read(offset, group).ok()?;
    let head = &mut group[..len];
    if !is_group_of(head, live.size, live.index, name) {
        return None;
    }
    relocate(head, &relocation(live, 0, timestamp));
    Some(len)
}

/// Builds a group from the registry's data and the bytes at the address of the code, and appends the group to `out`. Returns
/// whether all code bytes could be read, and the length of the group without the code bytes.
fn make_group(
    out: &mut Vec<u8>,
    pid: u32,
    live: &Live,
    name: &[u8],
    before_load: &[u8],
    timestamp: u64,
) -> Option<(bool, usize)> {
    let Live { addr, size, index, .. } = *live;
    let group = Group { pid, tid: pid, index, addr, size, name, lines: Lines::Rows(&[]), unwind: None };
    let (start, len) = (out.len(), before_load.len() + group.fixed_size());
    make_room(out, len.checked_add(size as usize)?)?;
    let (records, code) = out[start..].split_at_mut(len);
    records[..before_load.len()].copy_from_slice(before_load);
    group.write(timestamp, &mut records[before_load.len()..], 0).ok()??;
    relocate(records, &relocation(live, pid, timestamp));
    Some((process_memory::read(pid, addr, code) == code.len(), len))
}

fn relocation(live: &Live, tid: u32, timestamp: u64) -> Relocation {
    Relocation { timestamp, tid, addr: live.addr, index: live.index }
}

/// Appends `more` zeros to the buffer. Returns `None` if there is no memory.
fn make_room(out: &mut Vec<u8>, more: usize) -> Option<()> {
    out.try_reserve(more).ok()?;
    out.resize(out.len() + more, 0);
    Some(())
}
