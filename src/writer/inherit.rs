//! Takes over the data of the parent's writer in a forked child, and writes inherited code to the child's files.

use std::time::{Duration, Instant};

use super::Writer;
use crate::api::options::{Fork, Sinks};
use crate::queue::spool::layout::FileState;
use crate::registry::{Home, Registry};
use crate::sink::jitdump::backlog::Contents;
use crate::sink::region::Regions;
use crate::sink::Round;
use crate::sys::reserve;

/// The time between a child's first call and the first write of inherited code to the child's files. A child that ends earlier
/// does not write the inherited code. A profiler whose recording covers the fork then finds the names of the inherited code in
/// the parent's files.
const INHERIT_AFTER: Duration = Duration::from_secs(2);
/// The child writes the inherited code in parts, with a pause after each part. The duration of the pause is this number times
/// the duration of the write.
const INHERIT_PAUSE: u32 = 4;
/// How long the child waits if the jitdump cannot be written, or if memory is short.
const INHERIT_AGAIN: Duration = Duration::from_secs(1);
/// The maximum number of ancestors whose jitdumps a child reads. Each of these jitdumps needs a mapping.
const ANCESTORS_MOST: usize = 4;

/// The data that a child inherits from its parent.
pub struct Inheritance {
    pub registry: Registry,
    pub regions: Option<&'static Regions>,
    pub dump: Option<Contents>,
    /// The sinks that ran in the parent.
    pub sinks: Sinks,
    /// The time of the fork, by the clock that stamps the child's records.
    pub forked_at: u64,
}

impl Writer {
    /// Called in a forked child, on the copy of the parent's writer. Returns the data with which the child continues. Closes
    /// the parent's files, except for the jitdump, which the child reads.
    pub fn hand_down(&mut self, forked_at: u64) -> Inheritance {
        let registry = std::mem::take(&mut self.applier.registry);
        let sinks = self.shared.status.sinks();
        Inheritance { registry, regions: None, dump: self.applier.sinks.let_go(), sinks, forked_at }
    }

    /// Continues with the parent's data in a forked child. The child's sinks must already be open.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        let Inheritance { mut registry, dump, forked_at, sinks: of_parent, .. } = inheritance;
        // Code that ended before the fork never runs in the child, so the child does not need its name.
        registry.forget_dead(Home::Plain);
        registry.forget_dead(Home::Region);
        let applier = &mut self.applier;
        applier.registry = registry;
        let are_all_in_regions = applier.inherit_regions(forked_at);
        applier.last_time = forked_at;
        applier.sinks.inherit(dump, &mut applier.registry);
        applier.sinks.load_live(Sinks::ANY.without(Sinks::JITDUMP), &mut applier.registry, forked_at);
        // If the parent's files contain the inherited code, the child can write this code later.
        let wanted = self.config.as_ref().is_some_and(|config| config.fork == Fork::Late);
        let files = Sinks(self.shared.status.sinks().0 & Sinks::MAP.with(Sinks::JITDUMP).0);
        let may_wait = wanted && of_parent.has(files) && are_all_in_regions && {
            let registry = &applier.registry;
            applier.sinks.dump().is_none_or(|dump| dump.ancestors() <= ANCESTORS_MOST && registry.are_all_stored())
        };
        self.inherit_at = may_wait.then(|| Instant::now() + INHERIT_AFTER);
        if may_wait {
            applier.sinks.inherit_later();
        } else {
            applier.sinks.load_live(Sinks::JITDUMP, &mut applier.registry, forked_at);
            // The child's perf map is still empty, so a rewrite has the same result as appending.
            applier.sinks.changed();
        }
        let memory = self.shared.pool.memory();
        let announce = |_, file: FileState| memory.header().set_next_map(file.identity);
        let registry = &mut applier.registry;
        applier.sinks.write(&mut Round { registry, now: true, is_last: false, time: forked_at, announce: &announce });
        applier.write_regions(true, forked_at);
        let live = applier.live_count() as u64;
        applier.status.counters.inherited.add(live);
        applier.status.counters.live.set(live);
        self.committed = applier.state();
        memory.commit(&self.committed);
    }

    /// Writes a part of the inherited code to the map and the jitdump of a forked child, if this work is due.
    pub(super) fn write_inherited(&mut self) {
        if self.inherits_in().is_some_and(|left| left.is_zero()) {
            self.quiesce().enter();
            self.write_inherited_part();
            self.quiesce().leave();
        }
    }

    /// Writes all inherited code to the map and the jitdump of a forked child. Stops if the jitdump cannot be written.
    pub(super) fn write_all_inherited(&mut self) {
        while self.inherit_at.is_some() && self.write_inherited_part() {}
    }

    /// Writes a part of the inherited code. Returns false if nothing could be written.
    fn write_inherited_part(&mut self) -> bool {
        let (begin, applier) = (Instant::now(), &mut self.applier);
        let time = self.until.max(applier.last_time);
        let written = applier.sinks.write_inherited(!self.is_inheriting, &mut applier.registry, time);
        // The time stamp of the inherited code is `time`. A record that is published late may have a time stamp below `time`,
        // and may register code that overlaps the inherited code. Because of the new `last_time`, the applier gives this late
        // record a time stamp above `time`.
        applier.last_time = time + 1;
        self.round_inside(false);
        let pause = match written {
            Some(true) => Some(begin.elapsed() * INHERIT_PAUSE),
            Some(false) => None,
            None => Some(INHERIT_AGAIN),
        };
        self.inherit_at = pause.map(|pause| Instant::now() + pause);
        self.is_inheriting = true;
        written.is_some()
    }

    /// How long to wait until `write_inherited` has work. `None` if there is no work, or no work is possible now.
    pub(super) fn inherits_in(&self) -> Option<Duration> {
        let at = self.inherit_at.filter(|_| !self.exiting && !reserve::is_short())?;
        Some(at.saturating_duration_since(Instant::now()))
    }
}
