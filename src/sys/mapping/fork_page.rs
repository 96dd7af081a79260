//! What a process knows of its forks without a system call.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

/// A page that is all zero in a forked child, without a system call at either time, and whether the kernel keeps that promise, for
/// every kind of fork.
pub fn zero_in_child() -> io::Result<(OwnedMapping, bool)> {
    let page = OwnedMapping::new(page_size(), READ_WRITE, PRIVATE, None)?;
    let is_kept = page.heeds(0..page_size(), libc::MADV_WIPEONFORK);
    Ok((page, is_kept))
}

/// Such a page. Its first word is 1 in the process that made it; the others are for what a child is to know of itself, and begin as 0
/// in each.
#[derive(Debug)]
pub struct ForkPage {
    words: &'static Words,
    shared: &'static WithChildren,
    /// The kernel clears it, for every kind of fork.
    pub kept_by_kernel: bool,
}

/// The content of the page.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    same_process: AtomicU32,
    /// How far a child is with taking over what it has inherited.
    pub taking: AtomicU32,
    /// How the child found what it has inherited.
    pub state: AtomicU32,
    /// When it was forked.
    pub forked_at: AtomicU64,
    /// Where the writer's state is that it has inherited.
    pub writer: AtomicPtr<()>,
}

impl Words {
    /// See `ForkPage::same_process`.
    #[inline(always)]
    pub fn same_process(&self) -> bool {
        self.same_process.load(Ordering::Relaxed) == 1
    }
}

/// What a child reads as it is in the parent now, and not as it was when the child was forked.
#[derive(Debug)]
#[repr(C)]
pub struct WithChildren {
    /// How often the writer has moved though a fork was under way.
    pub writer_went_on: AtomicU32,
    /// How often a thread has registered something though a fork was under way.
    pub thread_went_on: AtomicU32,
}

impl ForkPage {
    /// Maps the pages, for ever: calls may look at them at any time until the process ends.
    pub fn new() -> io::Result<ForkPage> {
        let (words, kept_by_kernel) = zero_in_child()?;
        let shared = OwnedMapping::new(page_size(), READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None)?;
        // SAFETY: the pages are mapped until the process ends, aligned, and any value is a valid atomic.
        let (words, shared) =
            unsafe { (words.leak().cast::<Words>().as_ref(), shared.leak().cast::<WithChildren>().as_ref()) };
        words.same_process.store(1, Ordering::Relaxed);
        Ok(ForkPage { words, shared, kept_by_kernel })
    }

    /// Its content.
    #[inline]
    pub fn words(&self) -> &'static Words {
        self.words
    }

    /// What it shares with its children.
    pub fn shared(&self) -> &WithChildren {
        self.shared
    }

    /// Whether this is still the process that made the page.
    #[inline]
    pub fn same_process(&self) -> bool {
        self.words().same_process()
    }

    /// Does in a forked child what the kernel would have done.
    pub fn clear(&self) {
        let Words { same_process, taking, state, .. } = self.words();
        for word in [same_process, taking, state] {
            word.store(0, Ordering::Relaxed);
        }
    }
}
