//! Holds what the region of a parent and the same region in its forked children tell each other: how often the parent has changed
//! its file so that the file no longer suits the children.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

use crate::sys::fork_lock;
use crate::sys::mapping;

/// The number of forks while a fork is under way.
const UNKNOWN: u64 = u64::MAX;

/// The counters of a process, in memory that the process shares with its forked children.
#[derive(Debug, Default)]
pub struct Counters {
    /// `None` if there was no memory.
    words: OnceLock<Option<&'static [AtomicU32]>>,
    used: AtomicUsize,
}

impl Counters {
    /// The counter for a new region. If a process makes very many regions, some regions have the same counter, and a change of
    /// one region's file then seems to be a change of the other's too.
    pub fn for_region(&self) -> Option<&'static AtomicU32> {
        let words = (*self.words.get_or_init(|| mapping::shared_with_children().ok()))?;
        words.get(self.used.fetch_add(1, Ordering::Relaxed) % words.len())
    }
}

/// Counts how often the file of a region was changed so that it no longer suits a child that was forked earlier.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    count: &'static AtomicU32,
    /// The count at the last fork, or a little earlier.
    at_fork: u32,
}

impl Changes {
    pub fn are_any(self) -> bool {
        self.count.load(Ordering::Acquire) != self.at_fork
    }
}

/// What a region has to do with forks.
#[derive(Debug)]
pub struct Sharing {
    count: Option<&'static AtomicU32>,
    at_fork: AtomicU32,
    /// The changes of the parent's file.
    of_parent: Option<Changes>,
    /// The number of forks when the file got its present name.
    named_after: AtomicU64,
    is_inherited: AtomicBool,
    /// Whether the region's own file lacks the names of the code that the process has inherited.
    lacks_names: AtomicBool,
}

impl Sharing {
    pub fn new(count: Option<&'static AtomicU32>, of_parent: Option<Changes>) -> Sharing {
        let at_fork = count.map_or(0, |count| count.load(Ordering::Relaxed));
        let is_inherited = of_parent.is_some();
        Sharing {
            count,
            at_fork: AtomicU32::new(at_fork),
            of_parent,
            named_after: AtomicU64::new(fork_lock::forks().unwrap_or(UNKNOWN)),
            is_inherited: AtomicBool::new(is_inherited),
            lacks_names: AtomicBool::new(false),
        }
    }

    /// Called before a fork.
    pub fn note_fork(&self) {
        let count = self.count.map_or(0, |count| count.load(Ordering::Acquire));
        self.at_fork.store(count, Ordering::Relaxed);
    }

    /// Records that the file has got a new name.
    pub fn is_renamed(&self) {
        self.named_after.store(fork_lock::forks().unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Whether a child may have been forked since the file got its present name.
    pub fn has_forked(&self) -> bool {
        fork_lock::forks().is_none_or(|forks| forks != self.named_after.load(Ordering::Relaxed))
    }

    /// Records that the file no longer suits children that were forked earlier.
    pub fn is_changed(&self) {
        self.count.inspect(|count| _ = count.fetch_add(1, Ordering::Release));
    }

    /// The changes that a child of this process has to heed.
    pub fn for_child(&self) -> Option<Changes> {
        let own = || Some(Changes { count: self.count?, at_fork: self.at_fork.load(Ordering::Relaxed) });
        self.of_parent.filter(|_| self.is_inherited()).or_else(own)
    }

    pub fn is_inherited(&self) -> bool {
        self.is_inherited.load(Ordering::Acquire)
    }

    /// Whether the memory is a mapping of the parent's file, and this file no longer suits the process.
    pub fn is_outdated(&self) -> bool {
        self.is_inherited() && self.of_parent.is_some_and(Changes::are_any)
    }

    /// Records that the memory is no longer a mapping of the parent's file.
    pub fn is_parted(&self) {
        self.is_inherited.store(false, Ordering::Release);
    }

    pub fn begin_without_names(&self) {
        self.lacks_names.store(true, Ordering::Relaxed);
    }

    pub fn takes_over_names(&self) -> bool {
        self.lacks_names.load(Ordering::Relaxed) && self.lacks_names.swap(false, Ordering::Relaxed)
    }
}
