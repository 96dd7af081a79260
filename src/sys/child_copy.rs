//! Lets the parent of a fork wait until the child has its own copy of the memory that the two processes share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use errno::Errno;

use super::futex::keeping_errno;
use super::mapping::{page_size, OwnedMapping, READ_WRITE};
use super::{code_memory, thread};

/// The values of the word that parent and child share. `NOTHING`: the child does not run yet. `RUNS`: the child runs.
/// `COPIED`: the child has its copy. `LEFT`: the parent no longer waits for the copy.
const NOTHING: u32 = 0;
const RUNS: u32 = 1;
const COPIED: u32 = 2;
const LEFT: u32 = 3;

/// How long the parent waits for the first sign of a child if `errno` indicates that the fork has failed. A child may exist
/// even if `errno` is set, because a fork handler of the host may have set `errno`.
const NO_CHILD: Duration = Duration::from_millis(75);

/// A page that a process shares with the child that it is about to fork. The child may itself fork before its parent's fork is
/// complete. So each fork has a separate page.
#[derive(Clone, Copy, Debug)]
pub struct ChildCopy {
    word: &'static AtomicU32,
    /// The value that `errno` had before the fork. During the fork, `errno` is 0 until a call fails.
    errno: i32,
}

impl ChildCopy {
    /// Makes the shared page, before the fork. `errno` is the value that the host gets after the fork. `None` if there is no
    /// memory.
    pub fn new(errno: Errno) -> Option<ChildCopy> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let page = OwnedMapping::new(page_size(), READ_WRITE, flags, None).ok()?;
        // SAFETY: the page is aligned and stays mapped until `end`, and any value is a valid atomic.
        let word = unsafe { page.leak().cast::<AtomicU32>().as_ref() };
        errno::set_errno(Errno(0));
        Some(ChildCopy { word, errno: errno.0 })
    }

    /// In the parent: waits, for at most `limit`, until the child has copied the shared memory.
    pub fn wait(self, limit: Duration) {
        // The C library calls the parent's fork handlers even if the fork has failed. In this case `errno` contains the reason
        // of the failure.
        let (begin, has_failed) = (Instant::now(), matches!(errno::errno().0, libc::EAGAIN | libc::ENOMEM));
        loop {
            let state = self.word.load(Ordering::Acquire);
            let limit = if state == NOTHING && has_failed { limit.min(NO_CHILD) } else { limit };
            if state == COPIED || begin.elapsed() > limit {
                break;
            }
            keeping_errno(|| thread::sleep_micros(20));
        }
        self.word.store(LEFT, Ordering::Release);
    }

    /// In the child: tells the parent that the child exists.
    pub fn begin(self) {
        // The parent may have stopped waiting already.
        let _ = self.word.compare_exchange(NOTHING, RUNS, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// In the child: tells the parent that the child has copied the shared memory. Returns false if the parent has stopped
    /// waiting.
    pub fn copied(self) -> bool {
        self.word.swap(COPIED, Ordering::AcqRel) != LEFT
    }

    /// Ends the fork, in the parent or in the child.
    pub fn end(self) {
        // SAFETY: each process calls this function once, and does not use the page afterwards.
        unsafe { code_memory::unmap(std::ptr::from_ref(self.word) as u64, page_size() as u64) };
        if errno::errno().0 == 0 {
            errno::set_errno(Errno(self.errno));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_waits_for_a_child_that_exists() {
        const HOUR: Duration = Duration::from_secs(3600);
        let fork = || ChildCopy::new(Errno(libc::ENOENT)).unwrap();
        let copy = fork();
        copy.begin();
        std::thread::scope(|scope| {
            let parent = scope.spawn(|| copy.wait(HOUR));
            std::thread::sleep(Duration::from_millis(10));
            assert!(!parent.is_finished() && copy.copied());
        });
        let late = fork();
        late.begin();
        late.wait(Duration::ZERO);
        assert!(!late.copied());
        // The parent does not wait long for a child that does not exist. If the child does exist, `copied` returns false in the
        // child.
        let failed = fork();
        errno::set_errno(Errno(libc::EAGAIN));
        failed.wait(HOUR);
        assert_eq!(errno::errno(), Errno(libc::EAGAIN));
        failed.begin();
        assert!(!failed.copied());
        errno::set_errno(Errno(0));
        [copy, late, failed].into_iter().for_each(ChildCopy::end);
        assert_eq!(errno::errno(), Errno(libc::ENOENT));
    }
}
