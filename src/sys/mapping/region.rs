//! Memory for records. Parts of this memory can be made accessible, moved and replaced.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{checked, done, without_lock, OwnedMapping, PRIVATE, READ_WRITE};
use crate::sys::process_memory;
use crate::sys::thread::uncancelled;

/// Memory for records. The memory is zero at first. Only parts that were opened may be accessed. Forked children do not inherit
/// the memory.
#[derive(Debug)]
pub struct Region {
    mapping: OwnedMapping,
    /// Whether forked children inherit the memory, because the kernel has ignored `MADV_DONTFORK`. The flag is false in a child
    /// that has unmapped the memory.
    is_inherited: AtomicBool,
}

impl Region {
    /// Maps `len` bytes of private memory, all of which may be accessed.
    pub fn private(len: usize) -> io::Result<Region> {
        Region::private_at(0, len)
    }

    /// Like `private`, but the memory lies at the address `hint` if nothing is mapped there.
    pub fn private_at(hint: u64, len: usize) -> io::Result<Region> {
        Region::new(hint, len, READ_WRITE, PRIVATE, None)
    }

    /// Maps `len` bytes of private memory. Parts must be opened before they are accessed.
    pub fn closed(len: usize) -> io::Result<Region> {
        Region::new(0, len, libc::PROT_NONE, PRIVATE, None)
    }

    fn new(hint: u64, len: usize, protection: i32, flags: i32, file: Option<&File>) -> io::Result<Region> {
        let mapping = OwnedMapping::unlocked_at(hint, len, protection, flags | libc::MAP_NORESERVE, file)?;
        let is_inherited = AtomicBool::new(!mapping.heeds(0..len, libc::MADV_DONTFORK));
        Ok(Region { mapping, is_inherited })
    }

    /// Unmaps the memory in a forked child, if the child has inherited it. The child must not use the memory.
    pub fn leave_in_child(&self) {
        // The children of this child do not inherit the memory. The flag becomes false, so that these children unmap nothing.
        if self.is_inherited.swap(false, Ordering::Relaxed) {
            self.mapping.unmap();
        }
    }

    pub fn start(&self) -> NonNull<u8> {
        self.mapping.start
    }

    /// Makes a range accessible.
    pub fn open(&self, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range lies in the region, and keeps its content.
        done(unsafe { libc::mprotect(self.mapping.at(&range), range.len(), READ_WRITE) })
    }

    /// Makes the kernel provide the pages of a range now, if the kernel can do so on request. The range must be accessible
    /// (`open`).
    pub fn populate(&self, range: Range<usize>) {
        self.mapping.advise(range, libc::MADV_POPULATE_WRITE);
    }

    /// Makes the kernel provide the pages of a range. The range must be a mapping of a file, and must be accessible (`open`).
    /// Fails if the file system has no room for the pages. Without this call, an access to a missing page would raise SIGBUS
    /// on a full file system.
    ///
    /// This function uses no descriptor of the file, because the file need not be open in the descriptor table of the calling
    /// thread.
    pub fn provide(&self, range: Range<usize>) -> io::Result<()> {
        match self.mapping.heeds(range.clone(), libc::MADV_POPULATE_WRITE) {
            true => Ok(()),
            false => uncancelled(|| self.write_to_pages(&range)),
        }
    }

    /// Like `provide`, for kernels before 5.14. Writes to each page by a system call, because a system call returns an error
    /// where an access would raise a signal.
    fn write_to_pages(&self, range: &Range<usize>) -> io::Result<()> {
        // `SMALLEST_PAGE` is not `page_size()`: an emulator may report a page size that is larger than the pages of the file
        // system.
        const SMALLEST_PAGE: usize = 4096;
        let memory = File::options().write(true).open("/proc/thread-self/mem")?;
        for offset in range.clone().step_by(SMALLEST_PAGE) {
            let at = self.mapping.at(&(offset..range.end)) as u64;
            let mut byte = [0];
            // The byte is read, and written back unchanged. Nobody else writes to the page yet.
            let known = process_memory::read(std::process::id(), at, &mut byte) == 1;
            if !known || memory.write_at(&byte, at)? != 1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }

    /// Puts new private memory in the place of a range that nobody uses. The new memory is accessible.
    pub fn make_private(&self, range: Range<usize>) -> io::Result<()> {
        let flags = PRIVATE | libc::MAP_NORESERVE;
        let part = OwnedMapping::unlocked(range.len(), READ_WRITE, flags, None);
        match part.and_then(|part| self.replace(&range, part.at(&(0..range.len()))).map(|()| part)) {
            // The pages have moved, so `part` must not unmap them at their old address.
            Ok(part) => _ = part.leak(),
            // A sandbox may refuse mremap, and an emulator may not implement mremap.
            Err(_) => {
                let (at, flags) = (self.mapping.at(&range), flags | libc::MAP_FIXED);
                // SAFETY: the range lies in the region, and by contract nobody uses it.
                checked(unsafe { libc::mmap(at, range.len(), READ_WRITE, flags, -1, 0) })?;
            }
        }
        self.mapping.advise(range, libc::MADV_DONTFORK);
        Ok(())
    }

    /// Puts private memory with the same bytes in the place of an accessible range. Nobody may write to the range during the
    /// call. After an error the range is unchanged.
    pub fn copy_to_private(&self, range: Range<usize>) -> io::Result<()> {
        let part = OwnedMapping::unlocked(range.len(), READ_WRITE, PRIVATE | libc::MAP_NORESERVE, None)?;
        // SAFETY: the memory was just mapped, is zero, and nobody else has it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(part.start.as_ptr(), range.len()) };
        // A system call reads the bytes. If the file was truncated, the system call returns an error, but a plain access would
        // raise a signal.
        if process_memory::read(std::process::id(), self.mapping.at(&range) as u64, bytes) < range.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.replace(&range, part.at(&(0..range.len())))?;
        // The pages have moved, so `part` must not unmap them at their old address.
        part.leak();
        self.mapping.advise(range, libc::MADV_DONTFORK);
        Ok(())
    }

    /// Puts inaccessible private memory in the place of a range that nobody uses. Before the range is accessed again,
    /// accessible memory must replace the inaccessible memory.
    pub fn close(&self, range: Range<usize>) -> io::Result<()> {
        self.map_closed(range, None)
    }

    /// Replaces the memory of this region with the first bytes of a file, or with zeros in private memory if `file` is `None`.
    /// Only the first `head` bytes are accessible afterwards. If the memory is a file, the kernel provides these bytes now
    /// (`provide`). During the call, other threads may read the first `head` bytes, but not write to these bytes, and may not
    /// access the rest.
    pub fn renew(&self, file: Option<&File>, head: usize) -> io::Result<()> {
        let kind = file.map_or(PRIVATE, |_| libc::MAP_SHARED);
        let first = Region::new(0, head, READ_WRITE, kind, file)?;
        if file.is_some() {
            first.provide(0..head)?;
        }
        self.replace(&(0..head), first.mapping.start.as_ptr().cast())?;
        self.is_inherited.fetch_or(first.is_inherited.load(Ordering::Relaxed), Ordering::Relaxed);
        // The pages have moved, so `first` must not unmap them at their old address.
        first.mapping.leak();
        self.map_closed(head..self.mapping.len, file)
    }

    /// Puts inaccessible memory in the place of a range that nobody uses. The new memory is private, or the same range of a file.
    fn map_closed(&self, range: Range<usize>, file: Option<&File>) -> io::Result<()> {
        let flags = file.map_or(PRIVATE, |_| libc::MAP_SHARED) | libc::MAP_NORESERVE;
        let (at, fixed, number) =
            (self.mapping.at(&range), flags | libc::MAP_FIXED, file.map_or(-1, AsRawFd::as_raw_fd));
        let offset = if file.is_some() { range.start as libc::off_t } else { 0 };
        let directly = || {
            // SAFETY: the range lies in the region, and by contract nobody uses it.
            checked(unsafe { libc::mmap(at, range.len(), libc::PROT_NONE, fixed, number, offset) })?;
            // SAFETY: munlock does not change the content of memory.
            unsafe { libc::munlock(at, range.len()) };
            Ok(())
        };
        let by_growth = || {
            let part = OwnedMapping::closed(0, range.len(), flags, file, offset as usize)?;
            self.replace(&range, part.start.as_ptr().cast())?;
            part.leak();
            Ok(())
        };
        without_lock(range.len(), directly, by_growth)?;
        self.is_inherited.fetch_or(!self.mapping.advise(range, libc::MADV_DONTFORK), Ordering::Relaxed);
        Ok(())
    }

    /// Moves the pages at the address `from` to a range of this region. The moved pages replace the old pages of the range.
    fn replace(&self, range: &Range<usize>, from: *mut libc::c_void) -> io::Result<()> {
        let (len, how) = (range.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: the caller owns the pages at `from`, and nobody uses them. The range lies in the region. Other threads only
        // read the range, and find either the old or the new memory.
        checked(unsafe { libc::mremap(from, len, len, how, self.mapping.at(range)) }).map(drop)
    }

    /// Frees the pages of a range. Nobody may use the range. If the range is a mapping of a file, the pages are also removed
    /// from the file. The range reads as zeros afterwards.
    pub fn discard(&self, range: Range<usize>) {
        // `MADV_REMOVE` frees pages of a file, and fails for private pages. `MADV_DONTNEED` frees private pages.
        if !self.mapping.heeds(range.clone(), libc::MADV_REMOVE) {
            self.mapping.advise(range, libc::MADV_DONTNEED);
        }
    }
}
