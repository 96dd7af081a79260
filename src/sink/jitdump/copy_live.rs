//! Writes the code that is already live when a jitdump is started: in a forked child, or when the sink is enabled late.
//!
//! If the parent's jitdump has the group of the code, the child copies the group through the inherited mapping. The parent may
//! write to its jitdump or cut it at the same time, so the copied records are checked. If no group can be copied, the group is
//! built from the registry's data and the bytes at the address of the code.

use super::backlog::Contents;
use super::Jitdump;
use crate::api::code::Lines;
use crate::format::jitdump::{inlines, is_group_of, relocate, set_process};
use crate::format::jitdump::{Group, Relocation};
use crate::registry::{Home, Live, Registry, Stored};
use crate::sys::process_memory;

/// A batch is written when it has this many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// A batch is written when it has this many groups, so that the list of pending groups stays small when memory is short.
const BATCH_GROUPS: usize = 1024;

/// A group that is about to be written.
struct Pending {
    id: u64,
    stored: Option<Stored>,
    tables_len: u32,
}

impl Jitdump {
    /// Writes the groups of all live code when the sink is enabled late, or in a forked child. `timestamp` is later than the times
    /// of all records so far. Returns false if there is no memory for this.
    pub fn write_live(&mut self, registry: &mut Registry, timestamp: u64) -> bool {
        self.flush();
        let (left, parent) = (std::mem::take(&mut self.reopened), self.parent.take());
        let Some(ids) = registry.live_by_place(Some(Home::Plain)) else {
            self.count(0, 0, registry.live_count(Home::Plain) as u64);
            return false;
        };
        let (mut batch, mut lens, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        let mut left_out = 0;
        for id in ids {
            if batch.len() >= BATCH_BYTES || pending.len() >= BATCH_GROUPS {
                self.write_batch(registry, &mut batch, &mut lens, &mut pending);
            }
            let Some(live) = registry.get(id) else { continue };
            if let Some(stored) = left.find(live.index).filter(|_| self.goes_on) {
                registry.set_stored(id, Some(stored), live.tables_len);
                continue;
            }
            if live.stored.is_some_and(|stored| parent.as_ref().is_some_and(|parent| parent.is_underway(stored))) {
                // The parent forked while it was writing this group. Only the parent has the lines and tables of the code.
                registry.set_stored(id, None, live.tables_len);
                left_out += 1;
                continue;
            }
            let (start, offset) = (batch.len(), self.contents.next + batch.len() as u64);
            let put = self.put_group(&mut batch, registry, id, &live, parent.as_ref(), timestamp);
            let (len, tables_len) = put.unzip();
            if len.is_some() {
                lens.push(batch.len() - start);
            } else {
                batch.truncate(start);
                self.status.counters.unreadable.add(1);
            }
            let stored = len.map(|len| Stored { offset, len });
            pending.push(Pending { id, stored, tables_len: tables_len.unwrap_or(0) });
        }
        self.write_batch(registry, &mut batch, &mut lens, &mut pending);
        self.count(0, 0, left_out);
        registry.tidy();
        true
    }

    /// Writes the group of live code whose info records are in the registry.
    pub(super) fn write_one(&mut self, registry: &mut Registry, id: u64, timestamp: u64) {
        self.flush();
        let Some(live) = registry.get(id) else { return };
        let mut batch = Vec::new();
        match self.put_group(&mut batch, registry, id, &live, None, timestamp) {
            Some((len, tables_len)) => {
                let stored = Stored { offset: self.contents.next, len };
                self.put(&[&batch], &[batch.len()]);
                registry.set_stored(id, Some(stored), tables_len);
            }
            None => self.status.counters.unreadable.add(1),
        }
    }

    /// Writes the batch, and only then records the places of its groups in the registry, because a child may be forked during
    /// the write.
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
        for Pending { id, stored, tables_len } in pending.drain(..) {
            registry.set_stored(id, stored, tables_len);
        }
        batch.clear();
        lens.clear();
    }

    /// Appends a group with its code bytes to `out`. Returns the group's length without the code bytes, and its unwind tables'
    /// length.
    pub(super) fn put_group(
        &self,
        out: &mut Vec<u8>,
        registry: &Registry,
        id: u64,
        live: &Live,
        parent: Option<&Contents>,
        timestamp: u64,
    ) -> Option<(usize, u32)> {
        let (name, pid) = (registry.name_of(id)?, self.status.pid);
        let start = out.len();
        let copied = parent.and_then(|file| copy_group(out, file, live, name, timestamp));
        if let Some((len, tables_len)) = copied {
            set_process(&mut out[start..], pid);
            return Some((len, tables_len));
        }
        out.truncate(start);
        let info = registry.info_of(id).bytes();
        let records = &info[inlines::len(info)..];
        let (whole, len) = make_group(out, pid, live, name, records, timestamp)?;
        set_process(&mut out[start..], pid);
        // In a forked child, nothing is counted here, because the parent has already counted the code that it could not read.
        if !whole && parent.is_none() {
            self.status.counters.unreadable.add(1);
        }
        Some((len, if records.is_empty() { 0 } else { live.tables_len }))
    }
}

/// Appends a copy of the parent's group of this code, with the code bytes. Returns the same as `put_group`, or `None` if the
/// parent has no such group.
fn copy_group(out: &mut Vec<u8>, file: &Contents, live: &Live, name: &[u8], timestamp: u64) -> Option<(usize, u32)> {
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
    relocate(head, &relocation(live, 0, timestamp));
    Some((len, live.tables_len))
}

/// Appends a group built from the registry's data and the code bytes at the address. Returns whether all code bytes could be
/// read, and the length of the group without them.
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
    let mapped_size = if live.reach > live.addr + live.size { live.tables_len.into() } else { 0 };
    Relocation { timestamp, tid, addr: live.addr, index: live.index, mapped_size }
}

/// Appends `more` zeros to the buffer. Returns `None` if there is no memory.
fn make_room(out: &mut Vec<u8>, more: usize) -> Option<()> {
    out.try_reserve(more).ok()?;
    out.resize(out.len() + more, 0);
    Some(())
}
