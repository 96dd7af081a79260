//! Bringing a jitdump back that could not be written for a while, was lost, or is as long as it may be.
//!
//! Waiting groups are written first. Live code that found no room to wait is then written from the registry's data and the bytes at
//! its address. It has its name, but no lines and unwind tables.

use std::collections::HashSet;

use super::ledger::Ledger;
use crate::api::code::Lines;
use crate::api::options::Sinks;
use crate::format::jitdump::Group;
use crate::queue::spool::layout::FileState;
use crate::registry::Stored;
use crate::sink::jitdump::Written;
use crate::sys::process_memory;

impl Ledger {
    /// Sets right what is wrong with the jitdump, if that is due or wanted `now`. To be called between two passes, when all
    /// groups are written that came before. `announce` is told of a file before it replaces the jitdump. Returns whether
    /// anything was done.
    pub fn repair(&mut self, now: bool, announce: &dyn Fn(FileState)) -> bool {
        let Some(dump) = self.sinks.running_dump() else { return false };
        if dump.is_tight() {
            self.forget_dead_backlog();
        }
        let dump = self.sinks.running_dump();
        let is_due = dump.and_then(|dump| dump.again()).is_some_and(|again| now || again.is_due());
        if !is_due {
            return false;
        }
        let status = self.status.clone();
        let result = status.write_gate.pass(|| self.try_to_repair(announce));
        let Some(dump) = self.sinks.running_dump_mut() else { return true };
        match result {
            Ok(()) => {
                dump.set_well();
                status.sink_goes_on(Sinks::JITDUMP);
            }
            Err(error) => {
                dump.failed_again();
                self.sinks.stalled(Sinks::JITDUMP, "write", &error);
            }
        }
        self.sinks.count(&Written::default());
        true
    }

    /// What waits is worth its memory only if the code lives.
    fn forget_dead_backlog(&mut self) {
        let mut live = HashSet::new();
        if live.try_reserve(self.registry.live_count()).is_err() {
            return;
        }
        live.extend(self.registry.stored().map(|(_, stored, _)| stored.offset));
        let Some(dump) = self.sinks.running_dump_mut() else { return };
        let forgotten = dump.forget_but(|order| live.contains(&order));
        self.status.counters.jitdump_lost.add(forgotten as u64);
    }

    fn try_to_repair(&mut self, announce: &dyn Fn(FileState)) -> std::io::Result<()> {
        if self.sinks.running_dump().is_some_and(|dump| dump.is_spoiled()) {
            self.rewrite(announce)?;
        }
        let Some(dump) = self.sinks.running_dump_mut() else { return Ok(()) };
        let (written, result) = dump.catch_up();
        self.sinks.count(&written);
        result?;
        self.write_lost()
    }

    /// Rewrites the file with live code alone.
    fn rewrite(&mut self, announce: &dyn Fn(FileState)) -> std::io::Result<()> {
        let refuse = |why| std::io::Error::new(std::io::ErrorKind::StorageFull, why);
        let mut groups: Vec<(u64, usize)> = Vec::new();
        groups.try_reserve_exact(self.registry.live_count())?;
        groups.extend(self.registry.stored().map(|(_, stored, size)| (stored.offset, stored.len + size as usize)));
        groups.sort_unstable();
        let Some(dump) = self.sinks.running_dump_mut() else { return Ok(()) };
        let total: u64 = groups.iter().map(|&(_, len)| len as u64).sum();
        if total > dump.rewrite_most() {
            return Err(refuse("is as long as it may be, and live code takes most of it"));
        }
        let forgotten = dump.rewrite(&groups, announce)?;
        self.status.counters.jitdump_lost.add(forgotten as u64);
        self.status.counters.jitdump_rewrites.add(1);
        Ok(())
    }

    /// Writes live code again that has found no room to wait, or whose group was lost with the file.
    fn write_lost(&mut self) -> std::io::Result<()> {
        let Some(dump) = self.sinks.running_dump().filter(|dump| dump.has_lost() && self.alive) else { return Ok(()) };
        let mut lost: Vec<u64> = Vec::new();
        lost.try_reserve_exact(self.registry.live_count())?;
        lost.extend(self.registry.stored().filter(|(_, stored, _)| dump.is_lost(stored.offset)).map(|(id, ..)| id));
        for id in lost {
            let (Some(live), Some(name)) = (self.registry.get(id), self.registry.name_of(id)) else { continue };
            let (addr, size, index, pid) = (live.addr, live.size, live.index, self.status.pid);
            let group = Group { pid, tid: pid, index, addr, size, name, lines: Lines::Rows(&[]), unwind: None };
            let mut head = vec![0; group.fixed_size()];
            // It lives at the time of the last record that was applied; and time must not go back in the file.
            if !matches!(group.write(self.last_time, &mut head, 0), Ok(Some(_))) {
                continue;
            }
            let (code, is_whole) = process_memory::copy(pid, addr, size)?;
            if !is_whole {
                self.status.counters.unreadable.add(1);
            }
            let Some(dump) = self.sinks.running_dump_mut() else { return Ok(()) };
            let order = dump.next();
            let written = dump.write_again(&[&head, &code])?;
            self.sinks.count(&written);
            self.registry.set_stored(id, Some(Stored { offset: order, len: head.len() }), 0);
        }
        Ok(())
    }
}
