//! Memory pages by which a process determines, without a system call, whether it is a forked child and what it has inherited.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

/// Maps a page that the kernel should clear in the child of every kind of fork. Returns the page, and whether this kernel
/// really clears the page.
pub fn zero_in_child() -> io::Result<(OwnedMapping, bool)> {
    let page = OwnedMapping::new(page_size(), READ_WRITE, PRIVATE, None)?;
    let is_kept = page.heeds(0..page_size(), libc::MADV_WIPEONFORK);
    Ok((page, is_kept))
}

/// Maps a page of counters that the process shares with its forked children. The page stays mapped until the process ends.
pub fn shared_with_children() -> io::Result<&'static [AtomicU32]> {
    let page = OwnedMapping::new(page_size(), READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None)?.leak();
    // SAFETY: the page is mapped until the process ends and is aligned, and any value is a valid atomic.
    Ok(unsafe { std::slice::from_raw_parts(page.cast().as_ptr(), page_size() / size_of::<AtomicU32>()) })
}

/// Two pages. In forked children, the kernel clears the first page (`zero_in_child`). The parent shares the second page with
/// its forked children.
#[derive(Debug)]
pub struct ForkPage {
    pub words: &'static Words,
    pub shared: &'static WithChildren,
    /// Whether the kernel clears the page of `words` in every forked child, whatever system call made the child.
    pub kept_by_kernel: bool,
}

/// The content of the page that is cleared in children. `same_process` shows whether the process is a child. Every word after
/// `same_process` contains one fact that a child has stored about itself.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    /// 1 in the process that made the page, 0 in forked children.
    same_process: AtomicU32,
    /// 0 until a thread of the child begins to take over the inherited state.
    pub taking: AtomicU32,
    /// How much of the inherited state the child can use: a value of the type `queue::quiesce::Rest`, as a number.
    pub state: AtomicU32,
    /// The time stamp of the fork.
    pub forked_at: AtomicU64,
    /// The address of the state of the writer that the child has inherited.
    pub writer: AtomicPtr<()>,
}

impl Words {
    /// Whether the calling process is the process that made the page, and not a forked child.
    #[inline(always)]
    pub fn same_process(&self) -> bool {
        self.same_process.load(Ordering::Relaxed) == 1
    }
}

/// The content of the shared page. A child reads the parent's current values, and not the values at the time of the fork.
#[derive(Debug)]
#[repr(C)]
pub struct WithChildren {
    /// How often the writer has stopped waiting for a fork that was under way.
    pub writer_went_on: AtomicU32,
    /// How often a registering thread has stopped waiting for a fork that was under way.
    pub thread_went_on: AtomicU32,
}

impl ForkPage {
    /// Makes the two pages. The pages stay mapped until the process ends, because calls of the library may read them at any
    /// time.
    pub fn new() -> io::Result<ForkPage> {
        let (words, kept_by_kernel) = zero_in_child()?;
        let shared = OwnedMapping::new(page_size(), READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None)?;
        // SAFETY: the pages are mapped until the process ends and are aligned, and any value is a valid atomic.
        let (words, shared) =
            unsafe { (words.leak().cast::<Words>().as_ref(), shared.leak().cast::<WithChildren>().as_ref()) };
        words.same_process.store(1, Ordering::Relaxed);
        Ok(ForkPage { words, shared, kept_by_kernel })
    }

    /// Clears the words that a forked child reads before it sets them. Must be called in the child if the kernel does not clear
    /// the page. The child itself sets the words that this function does not clear, before it reads them.
    pub fn clear(&self) {
        let Words { same_process, taking, state, .. } = self.words;
        for word in [same_process, taking, state] {
            word.store(0, Ordering::Relaxed);
        }
    }
}
