//! The writer and forks: how the writer quiesces, and how the child's writer takes over data. The data is the live code, and
//! a copy of each piece's jitdump group for the child's own jitdump.

use std::time::Duration;

use super::{Source, Writer};
use crate::api::options::{Config, Sinks};
use crate::queue::quiesce::Quiesce;
use crate::queue::spool::layout::FileState;
use crate::registry::{Home, Registry};
use crate::sink::jitdump::backlog::Contents;
use crate::sink::region::Regions;
use crate::sink::Round;
use crate::sys::sync::Instant;
use crate::sys::{barrier, thread};

/// How long a fork waits for threads that are writing a record.
const THREADS_TIMEOUT: Duration = Duration::from_millis(10);

/// The data that a child inherits from its parent.
pub struct Inheritance {
    /// The live code.
    pub registry: Registry,
    /// The parent's regions.
    pub regions: Option<&'static Regions>,
    pub dump: Option<Contents>,
    /// When the child was forked, by the clock of its records.
    pub forked_at: u64,
}

impl Writer {
    pub(super) fn quiesce(&self) -> &'static Quiesce {
        &self.shared.status.quiesce
    }

    /// Quiesces the writer for a fork, once the registrations of earlier calls are written.
    pub(super) fn be_quiescent(&mut self) {
        let still = self.quiesce();
        if self.exiting || !still.begin_hold() {
            // During an exit the writer cannot quiesce, because the end of the process may interrupt any write.
            still.answer(false);
            return;
        }
        barrier::all_threads();
        self.collect();
        if !still.hold_threads(self.sources.iter().map(|source| source.slot.clone())) {
            return;
        }
        barrier::all_threads();
        let end = Instant::now() + THREADS_TIMEOUT;
        let mut quiet = still.is_quiet();
        while !quiet && Instant::now() < end {
            thread::sleep_micros(20);
            quiet = still.is_quiet();
        }
        if still.enter_last() {
            self.round_inside(false);
            still.answer(quiet && !self.sources.iter().any(Source::has_unread));
        }
    }

    /// The options with which the sinks were opened, while they are open.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// Tells forks where a child finds the writer. The writer stays at that address until it has finished.
    pub fn announce(&mut self) {
        let still = self.quiesce();
        still.begin((&raw mut *self).cast(), self.host.page.shared);
    }

    /// In a forked child: the parent's writer, at the address that `announce` has published.
    ///
    /// # Safety
    /// `place` is NULL or the address from `announce`. The writer was quiescent at the fork, and nobody else in the child
    /// uses it.
    pub unsafe fn of_parent(place: *mut ()) -> Option<&'static mut Writer> {
        // SAFETY: the caller's promise.
        unsafe { place.cast::<Writer>().as_mut() }
    }

    /// In a forked child: takes, from the parent's writer, the data with which the child continues. The parent's files are
    /// closed, except for the jitdump, which the child reads.
    pub fn hand_down(&mut self, forked_at: u64) -> Inheritance {
        let registry = std::mem::take(&mut self.applier.registry);
        Inheritance { registry, regions: None, dump: self.applier.sinks.let_go(), forked_at }
    }

    /// In a forked child, once the sinks are open: continues with the parent's data.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        let Inheritance { mut registry, dump, forked_at, .. } = inheritance;
        // Dead code has never run in the child.
        registry.forget_dead(Home::Plain);
        registry.forget_dead(Home::Region);
        let applier = &mut self.applier;
        applier.registry = registry;
        applier.inherit_regions(forked_at);
        applier.last_time = forked_at;
        applier.sinks.inherit(dump, &mut applier.registry);
        applier.sinks.load_live(Sinks::ANY, &mut applier.registry, forked_at);
        // The child's map is still empty, so a rewrite has the same result as appending.
        applier.sinks.changed();
        let memory = self.shared.pool.memory();
        let announce = |_, file: FileState| memory.header().set_next_map(file.identity);
        let registry = &mut applier.registry;
        applier.sinks.write(&mut Round { registry, now: true, time: forked_at, announce: &announce });
        applier.write_regions(true, forked_at);
        let live = applier.live_count() as u64;
        applier.status.counters.inherited.add(live);
        applier.status.counters.live.set(live);
        self.committed = applier.state();
        memory.commit(&self.committed);
    }
}
