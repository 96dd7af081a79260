//! Owned memory mappings: maps memory from the kernel, and unmaps it when the owning value is dropped.

mod fork_page;
mod region;
mod reserved;
mod table;
mod view;

pub use fork_page::{shared_with_children, zero_in_child, ForkPage, WithChildren, Words};
pub use region::Region;
pub use reserved::reserve_at;
pub use rustix::param::page_size;
pub use table::Table;
pub use view::View;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sys::process::limit;

pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Flags for private memory without a file.
pub const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Converts the result of mmap(2) or mremap(2).
pub(super) fn checked(start: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    let found = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
    found.ok_or_else(io::Error::last_os_error)
}

/// Converts the result of a call that returns 0 for success.
pub(super) fn done(result: libc::c_int) -> io::Result<()> {
    (result == 0).then_some(()).ok_or_else(io::Error::last_os_error)
}

/// Maps `len` bytes of memory that does not stay locked. `directly` maps the memory and unlocks it. `by_growth` maps and unlocks
/// a single page, which then grows by mremap.
///
/// In a process that has asked for locked memory (mlockall(2), `MCL_FUTURE`), a mapping counts towards `RLIMIT_MEMLOCK` until it
/// is unlocked. If the limit is below `len`, the kernel refuses the mapping. If the limit is higher, calls of other threads could
/// fail in the meantime. In both cases, the memory is mapped by growth. However, a sandbox may refuse mremap, and an emulator may
/// not implement mremap.
fn without_lock<T>(
    len: usize,
    directly: impl Fn() -> io::Result<T>,
    by_growth: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    /// A shorter mapping is like any mapping of the host.
    const FEW: usize = 1 << 20;
    if len > FEW && limit(libc::RLIMIT_MEMLOCK).is_some_and(|most| most >= len as u64) {
        return by_growth().or_else(|_| directly());
    }
    match directly() {
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => by_growth(),
        result => result,
    }
}

/// A mapping that is unmapped when this value is dropped.
///
/// This type calls the C library directly. The crate memmap2, which `marker` uses, cannot map inaccessible memory, or memory
/// that forked children share. The crate rustix 1.1.6 calls `posix_madvise` instead of `madvise` for all kinds of advice except
/// one. rustix 1.1.6 also passes `MAP_FIXED` instead of `MREMAP_FIXED` to mremap, so the kernel refuses the call.
#[derive(Debug)]
pub struct OwnedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this is plain memory, and its user decides which thread may access which part.
unsafe impl Send for OwnedMapping {}
// SAFETY: this is plain memory, and its user decides which thread may access which part.
unsafe impl Sync for OwnedMapping {}

impl OwnedMapping {
    /// Maps memory at an address that the kernel picks (mmap(2)).
    pub fn new(len: usize, protection: i32, flags: i32, file: Option<&File>) -> io::Result<OwnedMapping> {
        let file = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping at an address that the kernel picks changes no existing mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, 0) };
        Ok(OwnedMapping { start: checked(start)?, len })
    }

    /// Maps memory like `new`. The memory is not locked, even if the process has asked the kernel to lock all new mappings
    /// (mlockall(2), `MCL_FUTURE`). For locked memory, the kernel would provide every page at once, or refuse the mapping
    /// because of `RLIMIT_MEMLOCK`.
    pub fn unlocked(len: usize, protection: i32, flags: i32, file: Option<&File>) -> io::Result<OwnedMapping> {
        OwnedMapping::unlocked_at(0, len, protection, flags, file)
    }

    /// Like `unlocked`, but the memory lies at the address `hint` if nothing is mapped there.
    fn unlocked_at(
        hint: u64,
        len: usize,
        protection: i32,
        flags: i32,
        file: Option<&File>,
    ) -> io::Result<OwnedMapping> {
        // The kernel provides no pages for inaccessible memory, even if the memory is locked.
        let mapping = OwnedMapping::closed(hint, len, flags, file, 0)?;
        if protection != libc::PROT_NONE {
            // SAFETY: this value owns the mapping.
            done(unsafe { libc::mprotect(mapping.start.as_ptr().cast(), len, protection) })?;
        }
        Ok(mapping)
    }

    /// Maps inaccessible memory that is not locked (see `unlocked`). The memory lies at the address `hint` if nothing is mapped
    /// there. A file is mapped from `offset` on.
    fn closed(hint: u64, len: usize, flags: i32, file: Option<&File>, offset: usize) -> io::Result<OwnedMapping> {
        let file = file.map_or(-1, AsRawFd::as_raw_fd);
        let map = |len| -> io::Result<OwnedMapping> {
            let (at, offset) = (hint as *mut libc::c_void, offset as libc::off_t);
            // SAFETY: a new mapping touches nothing that exists. Without `MAP_FIXED`, the address is only a hint.
            let start = unsafe { libc::mmap(at, len, libc::PROT_NONE, flags, file, offset) };
            Ok(OwnedMapping { start: checked(start)?, len })
        };
        let by_growth = || {
            let mut mapping = map(page_size())?;
            mapping.unlock();
            mapping.resize(len, libc::MREMAP_MAYMOVE)?;
            Ok(mapping)
        };
        without_lock(len, || map(len).inspect(OwnedMapping::unlock), by_growth)
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Keeps the mapping until the process ends. Returns the address of the mapping's first byte.
    pub fn leak(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).start
    }

    /// Gives advice about a range (madvise(2)). Returns whether the kernel accepts the advice.
    pub fn advise(&self, range: Range<usize>, advice: i32) -> bool {
        // SAFETY: the range lies in the mapping, and the caller wants the effect of the advice.
        unsafe { libc::madvise(self.at(&range), range.len(), advice) == 0 }
    }

    /// Gives advice, and returns whether the kernel really follows the advice.
    fn heeds(&self, range: Range<usize>, advice: i32) -> bool {
        self.advise(range.clone(), advice) && !self.agrees_to_anything(range)
    }

    /// Whether `madvise` succeeds even for advice that does not exist. Linux refuses unknown advice, but qemu 7.2 accepts and
    /// ignores any advice when it runs a program of another architecture.
    fn agrees_to_anything(&self, range: Range<usize>) -> bool {
        const NO_ADVICE: i32 = i32::MAX;
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        match KNOWN.load(Ordering::Relaxed) {
            0 => {
                let agrees = self.advise(range, NO_ADVICE);
                KNOWN.store(1 + u8::from(agrees), Ordering::Relaxed);
                agrees
            }
            known => known == 2,
        }
    }

    fn at(&self, range: &Range<usize>) -> *mut libc::c_void {
        debug_assert!(range.end <= self.len);
        self.start.as_ptr().wrapping_add(range.start).cast()
    }

    fn unlock(&self) {
        // SAFETY: munlock does not change the content of memory.
        unsafe { libc::munlock(self.start.as_ptr().cast(), self.len) };
    }

    /// Changes the length of the mapping to `len` bytes. With `MREMAP_MAYMOVE` the address of the mapping may change.
    fn resize(&mut self, len: usize, flags: i32) -> io::Result<()> {
        // SAFETY: this value owns the mapping, and nobody else has its address.
        let start = unsafe { libc::mremap(self.start.as_ptr().cast(), self.len, len, flags) };
        (self.start, self.len) = (checked(start)?, len);
        Ok(())
    }

    fn unmap(&self) {
        // SAFETY: this value owns the mapping, and nobody uses it any longer.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Drop for OwnedMapping {
    fn drop(&mut self) {
        self.unmap();
    }
}
