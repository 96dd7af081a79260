//! Tells a thread when it can free memory that other threads read without a lock. Reading never waits, so signal handlers may
//! read.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the threads that read. A reader is counted in the counter of the phase in which the reader begins.
#[derive(Debug, Default)]
pub struct Readers {
    phase: AtomicUsize,
    inside: [AtomicUsize; 2],
}

/// A thread that reads. The memory that the thread finds stays valid until this value is dropped.
pub struct Reader<'a>(&'a AtomicUsize);

impl Readers {
    pub const fn new() -> Readers {
        Readers { phase: AtomicUsize::new(0), inside: [AtomicUsize::new(0), AtomicUsize::new(0)] }
    }

    /// Begins to read. The thread must load the address of the memory after this call.
    pub fn enter(&self) -> Reader<'_> {
        let counter = &self.inside[self.phase.load(Ordering::SeqCst) % 2];
        counter.fetch_add(1, Ordering::SeqCst);
        Reader(counter)
    }

    /// The current phase. If new readers can no longer find some memory, and the phase was `n` at that time, no thread reads
    /// the memory in phase `n + 2`.
    pub fn phase(&self) -> usize {
        self.phase.load(Ordering::SeqCst)
    }

    /// Begins the next phase if no reader of the phase before is left. Only one thread at a time may call this function.
    pub fn advance(&self) {
        let phase = self.phase();
        if self.inside[(phase + 1) % 2].load(Ordering::SeqCst) == 0 {
            self.phase.store(phase.wrapping_add(1), Ordering::SeqCst);
        }
    }

    /// Forgets the parent's readers in a forked child, where they do not exist. The child must have no other thread yet.
    pub fn begin_in_child(&self) {
        self.inside.iter().for_each(|counter| counter.store(0, Ordering::SeqCst));
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // In a child that a signal handler has forked during a lookup, the counter is 0.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_outlives_its_readers() {
        let readers = Readers::new();
        let early = readers.enter();
        let unpublished = readers.phase();
        readers.advance();
        assert_eq!(readers.phase(), unpublished + 1, "the reader began in the current phase");
        let late = readers.enter();
        readers.advance();
        assert_eq!(readers.phase(), unpublished + 1, "the early reader may still read the memory");
        drop(early);
        readers.advance();
        assert_eq!(readers.phase(), unpublished + 2, "the late reader could not find the memory");
        readers.advance();
        assert_eq!(readers.phase(), unpublished + 2);
        drop(late);
        readers.advance();
        assert_eq!(readers.phase(), unpublished + 3);
    }

    #[test]
    fn a_child_has_none_of_its_parents_readers() {
        let readers = Readers::new();
        std::mem::forget(readers.enter());
        readers.begin_in_child();
        (0..3).for_each(|_| readers.advance());
        assert_eq!(readers.phase(), 3);
    }
}
