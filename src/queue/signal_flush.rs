//! The flush that a signal handler requests from the writer, before the process ends.
//!
//! The handler may have interrupted any code: this library, the allocator, the writer itself. So the request uses only atomic
//! words and a futex: no lock, no allocation, no thread-local storage. If the writer needs a lock that the interrupted thread
//! holds, the handler's timeout ends the wait. The unwritten records stay in the spool.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::sys::clock::monotonic_ns;
use crate::sys::{futex, thread};

#[derive(Debug, Default)]
pub struct SignalFlush {
    /// The tid of the writer; 0 if no writer exists, `STARTING` until the writer runs.
    writer: AtomicU32,
    /// The tid of the thread that exits the process; 0 if no thread exits it. The exit may end the writer at any moment, so
    /// the writer writes only while the exiting thread waits.
    exiting: AtomicU32,
    exit_over: AtomicBool,
    /// Number of the last request, and the thread that made it.
    asked: AtomicU32,
    asker: AtomicU32,
    /// Number of the last answered request, and the answer: 0 for success, or the number of an error.
    answered: AtomicU32,
    result: AtomicU32,
    /// This word changes with every answer, and when the writer ends.
    news: AtomicU32,
}

const STARTING: u32 = u32::MAX;

impl SignalFlush {
    /// If no writer runs, notes that a writer is about to run. The writer must be able to run without further action by the
    /// caller.
    pub fn begin(&self) {
        let _ = self.writer.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Notes that the calling thread is the writer.
    pub fn run(&self) {
        self.writer.store(thread::id(), Ordering::SeqCst);
    }

    /// Notes that the writer has ended. If `error` is `None`, everything is written.
    pub fn end(&self, error: Option<Error>) {
        self.result.store(error.map_or(0, |error| error as u32), Ordering::Relaxed);
        self.writer.store(0, Ordering::SeqCst);
        self.tell();
    }

    /// Notes that the calling thread exits the process. Returns false if another thread is already exiting the process.
    pub fn exit(&self) -> bool {
        let own = thread::id();
        let before = self.exiting.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst);
        before.unwrap_or_else(|exiting| exiting ^ own) == 0
    }

    /// Whether a thread exits the process (`SignalFlush::exit`).
    pub fn has_exit_begun(&self) -> bool {
        self.exiting.load(Ordering::SeqCst) != 0
    }

    /// Notes that the exiting thread has written pending records, or cannot write them.
    pub fn exit_is_over(&self) {
        self.exit_over.store(true, Ordering::SeqCst);
    }

    /// Whether a thread other than `tid` exits the process and is still writing pending records.
    pub fn is_exit_under_way(&self, tid: u32) -> bool {
        self.exits_elsewhere(tid) && !self.exit_over.load(Ordering::SeqCst)
    }

    /// Whether a thread other than `tid` exits the process.
    pub fn exits_elsewhere(&self, tid: u32) -> bool {
        let exiting = self.exiting.load(Ordering::SeqCst);
        exiting != 0 && exiting != tid
    }

    /// For the writer: returns the number of the request that the writer has to answer. While the process exits (`exiting`),
    /// the writer serves only requests of the exiting thread. If the request does not come from the exiting thread, this
    /// function answers the request with `Timeout`.
    pub fn pending(&self, exiting: bool) -> Option<u32> {
        let asked = self.asked.load(Ordering::SeqCst);
        if asked == self.answered.load(Ordering::Relaxed) {
            return None;
        }
        if exiting && self.asker.load(Ordering::Relaxed) != self.exiting.load(Ordering::Relaxed) {
            self.answer(asked, Some(Error::Timeout));
            return None;
        }
        Some(asked)
    }

    pub fn is_pending(&self) -> bool {
        self.asked.load(Ordering::SeqCst) != self.answered.load(Ordering::Relaxed)
    }

    /// For the writer: answers a request. If `error` is `None`, everything that was published before the request has been
    /// written.
    pub fn answer(&self, number: u32, error: Option<Error>) {
        self.result.store(error.map_or(0, |error| error as u32), Ordering::Relaxed);
        self.answered.store(number, Ordering::Release);
        self.tell();
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.news, futex::ALL);
    }

    /// Makes a request and waits for the answer, in a signal handler. `wake` has to wake the writer.
    pub fn flush(&self, timeout: Duration, wake: impl FnOnce()) -> Result<()> {
        let (writer, own) = (self.writer.load(Ordering::SeqCst), thread::id());
        if writer == 0 {
            return Err(Error::NotRunning);
        }
        if writer == own {
            return Err(Error::Writer);
        }
        if self.exits_elsewhere(own) {
            return Err(Error::Timeout);
        }
        self.asker.store(own, Ordering::Relaxed);
        let mine = self.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        wake();
        let end = monotonic_ns().saturating_add(timeout.as_nanos() as u64);
        loop {
            let news = self.news.load(Ordering::SeqCst);
            let missing = mine.wrapping_sub(self.answered.load(Ordering::Acquire)) as i32;
            // The writer stores a result before it ends. If this result is no error, the writer has written everything that was
            // registered before the last session was closed.
            if missing <= 0 || self.writer.load(Ordering::SeqCst) == 0 {
                return self.answer_given();
            }
            let left = end.saturating_sub(monotonic_ns());
            if left == 0 {
                return Err(Error::Timeout);
            }
            futex::wait(&self.news, news, Some(Duration::from_nanos(left)));
        }
    }

    fn answer_given(&self) -> Result<()> {
        let number = self.result.load(Ordering::Relaxed);
        Error::ALL.iter().find(|error| **error as u32 == number).map_or(Ok(()), |&error| Err(error))
    }
}
