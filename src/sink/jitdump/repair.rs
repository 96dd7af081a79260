//! Repairs the jitdump after a failed write: rewrites the file if needed, then writes the waiting groups, and new groups for
//! live code whose group was lost.
//!
//! The new groups are built from the registry's data and the bytes at the address of the code, so they have the name of the
//! code, but no lines and no unwind tables.

use std::io;

use super::backlog::Contents;
use super::Jitdump;
use crate::registry::{Home, Registry, Stored};
use crate::sink::retry::Retry;
use crate::sink::Round;
use crate::sys::sort::sort;

impl Jitdump {
    /// Repairs the file after a failure, if a retry is due or `Round::now` is true. Returns `None` if no repair was attempted.
    pub fn repair_if_due(&mut self, round: &mut Round<'_>) -> Option<io::Result<()>> {
        if self.contents.own.trouble.is_some() && self.contents.backlog.is_tight() {
            self.forget_dead_backlog(round.registry);
        }
        self.contents.own.again().filter(|again| round.now || again.is_due())?;
        let status = self.status.clone();
        let result = status.write_gate.pass(|| self.try_to_repair(round));
        match &result {
            Ok(()) => (self.contents.own.trouble, self.lost) = (None, 0),
            Err(_) => self.contents.own.trouble = Some(Retry::after(self.contents.own.trouble.as_ref())),
        }
        Some(result)
    }

    /// Drops the waiting groups of dead code, so that the backlog has room for live code.
    fn forget_dead_backlog(&mut self, registry: &Registry) {
        let mut live: Vec<u64> = Vec::new();
        if live.try_reserve_exact(registry.live_count(Home::Plain)).is_err() {
            return;
        }
        live.extend(registry.stored().map(|(_, stored, _)| stored.offset));
        sort(&mut live);
        let forgotten = self.contents.backlog.retain(|order| live.binary_search(&order).is_ok());
        self.count(0, 0, forgotten as u64);
    }

    fn try_to_repair(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        if self.spoiled {
            self.rewrite_live(round)?;
        }
        self.catch_up()?;
        if self.lost > 0 && !self.dead {
            self.write_lost(round.registry, round.time)?;
        }
        Ok(())
    }

    fn rewrite_live(&mut self, round: &Round<'_>) -> io::Result<()> {
        let registry = &*round.registry;
        let mut groups: Vec<(u64, usize)> = Vec::new();
        groups.try_reserve_exact(registry.live_count(Home::Plain))?;
        let own = registry.stored().filter(|&(_, stored, _)| !self.contents.is_inherited(stored));
        groups.extend(own.map(|(_, stored, size)| (stored.offset, stored.len + size as usize)));
        sort(&mut groups);
        let total: u64 = groups.iter().map(|&(_, len)| len as u64).sum();
        if total > self.rewrite_most() {
            let why = "is as long as it may be, and live code takes most of it";
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        let forgotten = self.rewrite(&groups, round.announce)?;
        self.count(0, 0, forgotten as u64);
        self.status.counters.jitdump_rewrites.add(1);
        Ok(())
    }

    /// Writes new groups for live code whose group did not fit into the backlog, or was lost with the file.
    fn write_lost(&mut self, registry: &mut Registry, time: u64) -> io::Result<()> {
        let Contents { places, backlog, .. } = &self.contents;
        let is_lost = |stored: Stored| {
            let (place, waits) = (places.get(stored.offset), backlog.get(stored.offset));
            place.is_none() && waits.is_none() && !self.contents.is_inherited(stored)
        };
        let mut lost: Vec<u64> = Vec::new();
        lost.try_reserve_exact(registry.live_count(Home::Plain))?;
        lost.extend(registry.stored().filter(|&(_, stored, _)| is_lost(stored)).map(|(id, ..)| id));
        for id in lost {
            let Some(live) = registry.get(id) else { continue };
            let mut group = Vec::new();
            // `time` is the time of the last applied record. The new group gets `time` as its timestamp, because the code is
            // live at `time`, and timestamps in the file must not decrease.
            let put = self.put_group(&mut group, registry, id, &live, time);
            let len = put.ok_or(io::ErrorKind::OutOfMemory)?;
            let stored = Stored { offset: self.contents.next, len };
            self.put_again(&group)?;
            registry.set_stored(id, Some(stored));
        }
        Ok(())
    }
}
