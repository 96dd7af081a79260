//! Collects requests and chunks at the start of a writer's round, and gives chunks and ids back at the end of the round.

use std::collections::VecDeque;
use std::sync::Arc;

use super::source::Source;
use super::{Notice, Writer};
use crate::api::Id;
use crate::queue::shared::Message;
use crate::queue::thread_slot::ThreadSlot;
use crate::sys::{barrier, privileges};

impl Writer {
    pub(super) fn look_at_requests(&mut self) {
        if let Some(mut requests) = self.requests() {
            self.asked = requests.asked;
            self.asked_to_write = requests.asked_to_write;
            self.asked_at = requests.asked_at;
            self.exiting = self.shared.signal_flush.has_exit_begun();
            self.stop = requests.stop.take().or(self.stop.take());
            if self.change.is_none() {
                self.change = requests.change.take();
            }
        }
    }

    /// Finds the chunks to read in this round, and reads the callers' requests.
    pub(super) fn collect(&mut self) {
        self.look_at_requests();
        for source in &mut self.sources {
            // The slots are read before the channel is emptied. If a thread has ended, its full chunks are in the channel, and
            // its last chunk is in the slot.
            source.ended = source.slot.is_detached();
            source.current = source.slot.current();
        }
        // The channel is read after the slots. So if a thread replaces its full chunk now, the writer finds the full chunk in
        // the slot, in the channel, or in both. A thread's older chunks are found before its newer chunks.
        while self.sources.try_reserve(1).is_ok() {
            let Some(message) = self.shared.receive() else { return };
            match message {
                Message::Attach(slot) => {
                    // If the thread has full chunks, they follow this message.
                    let ended = slot.is_detached();
                    let current = slot.current();
                    let source = Source { slot, full: VecDeque::new(), current, ended };
                    let Err(at) = self.place_of(source.slot.number) else { continue };
                    self.sources.insert(at, source);
                }
                Message::Full { slot, chunk } => {
                    if let Ok(at) = self.place_of(slot) {
                        self.sources[at].full.push_back(chunk);
                    }
                }
            }
        }
        // Memory is short. The remaining messages stay in the channel, and may contain full chunks of ended threads. So in this
        // round, the writer treats all threads as still running.
        self.sources.iter_mut().for_each(|source| source.ended = false);
        self.short = true;
    }

    fn place_of(&self, slot: u64) -> Result<usize, usize> {
        self.sources.binary_search_by_key(&slot, |source| source.slot.number)
    }

    /// Gives back the chunks that are read to their end and that no thread writes to.
    pub(super) fn recycle(&mut self) {
        let pool = &self.shared.pool;
        self.sources.retain_mut(|source| {
            while let Some(&chunk) = source.full.front() {
                // If the slot still refers to the chunk, the thread has just sent the chunk, and will soon clear the slot.
                let still_in_slot = source.slot.current() == Some(chunk);
                if still_in_slot || chunk.consumed() < chunk.committed() {
                    break;
                }
                source.full.pop_front();
                pool.recycle(chunk);
            }
            if !source.ended {
                return true;
            }
            // Only the writer still uses the slot.
            if let Some(chunk) = source.slot.current().filter(|chunk| chunk.consumed() == chunk.committed()) {
                source.slot.set_current(None);
                pool.recycle(chunk);
            }
            !(source.full.is_empty() && source.slot.current().is_none())
        });
        // Takes back unused chunks before the pool grows.
        let is_cramped = pool.take_cramped();
        if is_cramped || pool.is_scarce() || pool.is_low() && pool.is_ample() {
            self.take_back();
        }
        if is_cramped {
            pool.make_way();
        }
        if !self.off && !self.is_last_round {
            pool.replenish(self.sources.len());
        }
    }

    /// Takes back each chunk whose records are all read, if its thread is not writing a record.
    pub(super) fn take_back(&self) {
        let slots = self.sources.iter().map(|source| &source.slot);
        let idle = |slot: &&Arc<ThreadSlot>| slot.current().is_some_and(|chunk| chunk.consumed() == chunk.committed());
        let wanted: Vec<&Arc<ThreadSlot>> = slots.filter(idle).filter(|slot| slot.want()).collect();
        if wanted.is_empty() {
            return;
        }
        barrier::all_threads();
        for chunk in wanted.iter().filter_map(|slot| slot.take()) {
            self.shared.pool.recycle(chunk);
        }
    }

    /// If the kernel hides the memory of this process from other processes of the same user (`sys/privileges`), the library
    /// must not keep data in files that these processes can open. So the writer removes the files of regions, and moves the
    /// records to private memory.
    pub(super) fn heed_rights(&self) {
        let pool = &self.shared.pool;
        let may_have_files = pool.memory().has_spool() || self.applier.regions.are_watching();
        if !may_have_files || !privileges::is_hidden() {
            return;
        }
        self.applier.regions.remove_files(&self.shared.status);
        if !pool.memory().has_spool() {
            return;
        }
        pool.memory().give_up_spool();
        // Threads no longer write to chunks that they have sent.
        self.sources.iter().flat_map(|source| &source.full).for_each(|&chunk| pool.memory().take_from_spool(chunk));
        let wanted: Vec<&Source> = self.sources.iter().filter(|source| source.slot.want()).collect();
        barrier::all_threads();
        for source in wanted {
            source.slot.wanted().into_iter().for_each(|chunk| pool.memory().take_from_spool(chunk));
            source.slot.keep();
        }
        // A chunk that a thread uses now, or is about to use, is handled in the next round.
        pool.leave_spool();
        if !pool.memory().has_spool() {
            self.host.last_error.set(format!("there is no spool any more: {}", privileges::WHY_NO_FILE));
        }
    }

    /// Updates `Shared::ids` according to the notices of the applier.
    pub(super) fn heed_notices(&mut self) {
        let ids = &self.shared.ids;
        for notice in self.applier.notices.drain(..) {
            match notice {
                // The caller has retired the id, and nothing refers to it now.
                Notice::Unregistered(id) => ids.recycle(Id(id)),
                // If the host has already unregistered the id, `retire` returns false. The id is recycled when the record of
                // the unregistration is applied.
                Notice::FreeLater(id) if ids.retire(Id(id)) => ids.recycle(Id(id)),
                Notice::FreeLater(_) => {}
                Notice::Read(id) => {
                    ids.set_read(Id(id));
                    self.shared.add_unread(-1);
                }
            }
        }
    }
}
