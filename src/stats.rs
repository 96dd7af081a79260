//! Counters that the writer keeps and anybody may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($name:ident)*) => {
        /// One atomic per counter of `jitsym_stats`; the meanings are there.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub $name: Counter,)*
        }
    };
}

counters! {
    registered moved unregistered overwritten live dropped unreadable names_changed not_free
    jitdump_bytes jitdump_records map_bytes map_entries map_rewrites map_forgotten write_errors
}

/// A counter. Exactness between counters is not promised, so relaxed order is enough.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
