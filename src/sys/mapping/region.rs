//! Memory for records.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{checked, done, OwnedMapping, PRIVATE, READ_WRITE};
use crate::sys::process_memory;
use crate::sys::thread::uncancelled;

/// Memory for records, zeroed, of which only what was opened may be touched. Not inherited by a forked child.
#[derive(Debug)]
pub struct Region {
    mapping: OwnedMapping,
    /// A forked child has it, because the kernel does not keep it from it.
    is_inherited: AtomicBool,
}

impl Region {
    /// Maps `len` bytes of private memory, all of which may be touched.
    pub fn private(len: usize) -> io::Result<Region> {
        Region::new(len, READ_WRITE, PRIVATE, None)
    }

    /// Maps `len` bytes of private memory, of which what is to be touched has to be opened.
    pub fn closed(len: usize) -> io::Result<Region> {
        Region::new(len, libc::PROT_NONE, PRIVATE, None)
    }

    /// Maps the first `len` bytes of a file, shared with it, of which what is to be touched has to be opened.
    pub fn closed_file(file: &File, len: usize) -> io::Result<Region> {
        Region::new(len, libc::PROT_NONE, libc::MAP_SHARED, Some(file))
    }

    fn new(len: usize, protection: i32, flags: i32, file: Option<&File>) -> io::Result<Region> {
        let mapping = OwnedMapping::unlocked(len, protection, flags | libc::MAP_NORESERVE, file)?;
        let is_inherited = AtomicBool::new(!mapping.heeds(0..len, libc::MADV_DONTFORK));
        Ok(Region { mapping, is_inherited })
    }

    /// In a forked child, which uses nothing of it: it is not there afterwards.
    pub fn leave_in_child(&self) {
        // Once: this child's own children will not have it.
        if self.is_inherited.swap(false, Ordering::Relaxed) {
            self.mapping.unmap();
        }
    }

    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start
    }

    /// Allows a range to be touched.
    pub fn open(&self, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range lies in the region, and its bytes stay as they are.
        done(unsafe { libc::mprotect(self.mapping.at(&range), range.len(), READ_WRITE) })
    }

    /// Has the kernel provide the pages of a range that is open now, if it can.
    pub fn populate(&self, range: Range<usize>) {
        self.mapping.advise(range, libc::MADV_POPULATE_WRITE);
    }

    /// Has the kernel provide the pages of a range of a file that is open. An error where there is no room for them: touching one on a
    /// full file system would be a SIGBUS.
    ///
    /// By address and not by descriptor: whoever needs memory may have another table of these than the thread that has opened the file.
    pub fn provide(&self, range: Range<usize>) -> io::Result<()> {
        match self.mapping.heeds(range.clone(), libc::MADV_POPULATE_WRITE) {
            true => Ok(()),
            false => uncancelled(|| self.write_to_pages(&range)),
        }
    }

    /// The same for kernels before 5.14: the kernel writes to each page, and answers where touching it would be a signal.
    fn write_to_pages(&self, range: &Range<usize>) -> io::Result<()> {
        // An emulator may tell of larger pages than the file system has.
        const SMALLEST_PAGE: usize = 4096;
        let memory = File::options().write(true).open("/proc/thread-self/mem")?;
        for offset in range.clone().step_by(SMALLEST_PAGE) {
            let at = self.mapping.at(&(offset..range.end)) as u64;
            let mut byte = [0];
            // The present bytes stay: nobody else writes to them yet.
            let known = process_memory::read(std::process::id(), at, &mut byte) == 1;
            if !known || memory.write_at(&byte, at)? != 1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }

    /// Puts private memory, which may be touched, in the place of a range that nobody uses.
    pub fn make_private(&self, range: Range<usize>) -> io::Result<()> {
        let flags = PRIVATE | libc::MAP_NORESERVE;
        let part = OwnedMapping::unlocked(range.len(), READ_WRITE, flags, None);
        match part.and_then(|part| self.replace(&range, part.at(&(0..range.len()))).map(|()| part)) {
            // It has another address now.
            Ok(part) => _ = part.leak(),
            // As in `OwnedMapping::unlocked`.
            Err(_) => {
                let (at, flags) = (self.mapping.at(&range), flags | libc::MAP_FIXED);
                // SAFETY: the range lies in the region, and by contract nobody uses it.
                checked(unsafe { libc::mmap(at, range.len(), READ_WRITE, flags, -1, 0) })?;
            }
        }
        self.mapping.advise(range, libc::MADV_DONTFORK);
        Ok(())
    }

    /// Puts private memory with the same bytes in the place of a range that may be touched, and that nobody writes to. After an error
    /// it is as it was.
    pub fn copy_to_private(&self, range: Range<usize>) -> io::Result<()> {
        let part = OwnedMapping::unlocked(range.len(), READ_WRITE, PRIVATE | libc::MAP_NORESERVE, None)?;
        // SAFETY: it was just mapped, is zero, and nobody else has it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(part.start.as_ptr(), range.len()) };
        // By the kernel: somebody may have cut the file.
        if process_memory::read(std::process::id(), self.mapping.at(&range) as u64, bytes) < range.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.replace(&range, part.at(&(0..range.len())))?;
        // It has another address now.
        part.leak();
        self.mapping.advise(range, libc::MADV_DONTFORK);
        Ok(())
    }

    /// Puts private memory in the place of a range that nobody uses, to be made anew before it is touched.
    pub fn close(&self, range: Range<usize>) -> io::Result<()> {
        let (at, flags) = (self.mapping.at(&range), PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED);
        // SAFETY: the range lies in the region, and by contract nobody uses it.
        checked(unsafe { libc::mmap(at, range.len(), libc::PROT_NONE, flags, -1, 0) })?;
        self.mapping.advise(range, libc::MADV_DONTFORK);
        Ok(())
    }

    /// Puts another region that is as long in the place of this one, of which nobody uses more than to look at its first `head` bytes;
    /// they are open in the other one.
    pub fn replace_by(&self, other: Region, head: usize) -> io::Result<()> {
        // In two steps, because what is open and what is not are two mappings.
        let (head, rest) = (0..head, head..self.mapping.len);
        self.replace(&rest, other.mapping.at(&rest))?;
        // A part that has moved must not be unmapped at its old address.
        let from = other.mapping.at(&head);
        other.mapping.leak();
        self.replace(&head, from)
    }

    /// Moves the pages at another address in the place of a range.
    fn replace(&self, range: &Range<usize>, from: *mut libc::c_void) -> io::Result<()> {
        let (len, how) = (range.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: the pages are the caller's, and nobody uses them. Nor the range, which lies in the region; and who only looks at it
        // finds one memory or the other.
        checked(unsafe { libc::mremap(from, len, len, how, self.mapping.at(range)) }).map(drop)
    }

    /// Gives the pages of a range that nobody uses back, of a file too. The range reads zero afterwards.
    pub fn discard(&self, range: Range<usize>) {
        // The first is for the pages of a file, and fails for private ones, for which the second is.
        if !self.mapping.heeds(range.clone(), libc::MADV_REMOVE) {
            self.mapping.advise(range, libc::MADV_DONTNEED);
        }
    }
}
