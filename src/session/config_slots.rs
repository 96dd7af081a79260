//! The options of each session, stored so that forked children can read them too.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::api::options::Config;

/// The maximum number of sessions that a process may have open at a time.
pub const SESSIONS: usize = 256;

/// The options of each session, with the same indices as `Process::sessions`. Each change is atomic, so even a child that is
/// forked during a change finds complete options.
#[derive(Debug)]
pub struct Configs([AtomicPtr<Config>; SESSIONS]);

impl Default for Configs {
    fn default() -> Configs {
        Configs([const { AtomicPtr::new(ptr::null_mut()) }; SESSIONS])
    }
}

impl Configs {
    /// Stores the options of the session that has the index `place` in `Process::sessions`. Callers of all functions of
    /// `Configs` hold the lock of the lifecycle. Only a forked child reads its parent's options without this lock, because no
    /// thread of the child changes them.
    pub fn set(&self, place: usize, config: Config) {
        let old = self.0[place].swap(Box::into_raw(Box::new(config)), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the pointer was made here, and no thread uses it now.
            drop(unsafe { Box::from_raw(old) });
        }
    }

    pub fn get(&self, place: usize) -> Option<Config> {
        // SAFETY: only `set` frees the options.
        unsafe { self.0[place].load(Ordering::Acquire).as_ref() }.cloned()
    }

    pub fn first(&self) -> Option<Config> {
        (0..SESSIONS).find_map(|place| self.get(place))
    }

    /// Copies the options of a parent.
    pub fn inherit(&self, parent: &Configs) {
        let known = (0..SESSIONS).filter_map(|place| Some((place, parent.get(place)?)));
        known.for_each(|(place, config)| self.set(place, config));
    }
}
