//! Determines facts about pages of this process (linux Documentation/admin-guide/mm/pagemap.rst): whether a page was ever
//! accessed, and whether a forked child has the same page.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::mapping::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

/// The bit of a `pagemap` entry that means that the page is in memory. The kernel shows this bit and bit 62 to unprivileged
/// processes.
const IN_MEMORY: u64 = 1 << 63;
/// The bits that mean that the page is in memory or in the swap.
const TOUCHED: u64 = IN_MEMORY | 1 << 62;
/// The bit of a `pagemap` entry that means that no other process maps the page. The kernel shows this bit to unprivileged
/// processes too.
const EXCLUSIVE: u64 = 1 << 56;
/// The number of pages that are examined with one read of `pagemap`.
const STEP: usize = 64;

/// Finds the pages that were not accessed since they were mapped. In private memory without a file, such pages are zero.
#[derive(Debug)]
pub struct Untouched(File);

impl Untouched {
    /// `None` if the kernel does not provide `pagemap`, or if `pagemap` describes other memory, as under an emulator.
    pub fn new() -> Option<Untouched> {
        let untouched = Untouched(File::open("/proc/thread-self/pagemap").ok()?);
        let page = OwnedMapping::new(page_size(), READ_WRITE, PRIVATE, None).ok()?;
        let start = page.start().as_ptr() as u64;
        let before = untouched.has_all(start, start + page_size() as u64);
        // SAFETY: the page was just mapped, and nobody else knows of it.
        unsafe { page.start().write_volatile(1) };
        (before && !untouched.has_all(start, start + page_size() as u64)).then_some(untouched)
    }

    /// Whether all pages of a range are untouched. Returns false if this is unknown.
    pub fn has_all(&self, start: u64, end: u64) -> bool {
        let page = page_size() as u64;
        let (mut from, to) = (start / page, end.div_ceil(page));
        while from < to {
            let mut entries = [[0; size_of::<u64>()]; STEP];
            let entries = &mut entries[..STEP.min((to - from) as usize)];
            let is_read = self.0.read_exact_at(entries.as_flattened_mut(), from * size_of::<u64>() as u64).is_ok();
            if !is_read || entries.iter().any(|entry| is_touched(u64::from_ne_bytes(*entry))) {
                return false;
            }
            from += entries.len() as u64;
        }
        true
    }
}

fn is_touched(entry: u64) -> bool {
    entry & TOUCHED != 0
}

/// Detects each child that was made since `new` and still has a copy of this process's memory. Unlike a fork handler of the C
/// library, a witness also detects children of a raw `clone` system call.
#[derive(Debug)]
pub struct Witness(OwnedMapping);

impl Witness {
    pub fn new() -> io::Result<Witness> {
        let page = OwnedMapping::new(page_size(), READ_WRITE, PRIVATE, None)?;
        // The page has a separate mapping, to which nobody writes later. If this process wrote to the page after a fork, the
        // kernel would give the process a private copy of the page, so the process would no longer share the page with its
        // child.
        page.advise(0..page_size(), libc::MADV_NOHUGEPAGE);
        let word = page.start().cast::<usize>();
        // SAFETY: the page was just mapped. The word contains the address of the page, so no other page has the same content,
        // and the kernel does not merge the page with another page.
        unsafe { word.write_volatile(word.as_ptr() as usize) };
        Ok(Witness(page))
    }

    /// Whether a child that was made since `new` still has a copy of this process's memory. `None` if this is unknown.
    pub fn has_child(&self) -> Option<bool> {
        let mut entry = [0; size_of::<u64>()];
        let page = self.0.start().as_ptr() as u64 / page_size() as u64;
        let file = File::open("/proc/thread-self/pagemap").ok()?;
        file.read_exact_at(&mut entry, page * size_of::<u64>() as u64).ok()?;
        let entry = u64::from_ne_bytes(entry);
        // If `IN_MEMORY` is not set, the page is in the swap, or an emulator has shown the entry of another page. In these
        // cases the result is unknown.
        (entry & IN_MEMORY != 0).then_some(entry & EXCLUSIVE == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::code_memory::{self, READ_WRITE};

    #[test]
    fn what_was_written_is_touched() {
        let (page, count) = (page_size() as u64, 3 * STEP as u64);
        let start = code_memory::reserve(count * page).unwrap();
        let untouched = Untouched::new().unwrap();
        let are_untouched = |from, to| untouched.has_all(start + from * page, start + to * page);
        assert!(are_untouched(0, count));
        // SAFETY: the range was just set aside, and nobody else knows of it.
        unsafe {
            code_memory::protect(start, count * page, READ_WRITE).unwrap();
            ((start + (count - 2) * page) as *mut u8).write_volatile(1);
        }
        assert!(are_untouched(0, count - 2) && are_untouched(count - 1, count));
        assert!(!are_untouched(0, count - 1) && !are_untouched(count - 2, count));
        // SAFETY: nobody else knows of the range.
        unsafe { code_memory::unmap(start, count * page) };
        let swapped = 1 << 62;
        assert!(is_touched(IN_MEMORY) && is_touched(swapped) && !is_touched(EXCLUSIVE));
    }

    /// The child is made by a system call, so no fork handler runs.
    #[test]
    fn a_witness_notices_a_child_that_lives() {
        let before = Witness::new().unwrap();
        let mut pipe = [0; 2];
        // SAFETY: without a stack for the child, clone is a fork. The child waits until the parent closes the pipe, and then
        // exits.
        let child = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let child = libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), 0, 0, 0, 0) as libc::pid_t;
            if child == 0 {
                libc::close(pipe[1]);
                libc::read(pipe[0], pipe.as_mut_ptr().cast(), 1);
                libc::_exit(0);
            }
            child
        };
        assert_eq!(before.has_child(), Some(true));
        // SAFETY: these are the descriptors and the child from above.
        unsafe {
            libc::close(pipe[1]);
            libc::close(pipe[0]);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
        // Other tests in this process may have children at this moment, so this test waits until they have ended.
        while before.has_child() == Some(true) {
            std::thread::yield_now();
        }
        assert_eq!(before.has_child(), Some(false));
    }
}
