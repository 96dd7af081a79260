//! Memory: anonymous regions, a page that fork clears, and reads that survive unreadable pages.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::thread::{id, uncancelled};

/// The size of a page.
pub fn page_size() -> usize {
    // SAFETY: sysconf only answers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps memory, as mmap(2) does, that is not locked: not even in a process that wants all it maps to be
/// (mlockall(2), `MCL_FUTURE`). The kernel would provide every page of it at once, or refuse it for `RLIMIT_MEMLOCK`.
///
/// # Safety
/// With `MAP_FIXED` in the flags, the range at `at` is the caller's and nobody uses it.
pub unsafe fn map_unlocked(
    at: *mut libc::c_void,
    len: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
) -> io::Result<*mut libc::c_void> {
    let page = page_size();
    let fixed = flags & libc::MAP_FIXED != 0;
    // SAFETY: a new mapping at an address that the kernel picks touches nothing that exists. It is ours to unlock, to make larger and
    // to move to the range that is the caller's.
    let grown = unsafe {
        let first = libc::mmap(ptr::null_mut(), page, protection, flags & !libc::MAP_FIXED, file, 0);
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munlock(first, page);
        let how = libc::MREMAP_MAYMOVE | if fixed { libc::MREMAP_FIXED } else { 0 };
        let grown = libc::mremap(first, page, len, how, at);
        if grown == libc::MAP_FAILED {
            libc::munmap(first, page);
        }
        grown
    };
    if grown != libc::MAP_FAILED {
        return Ok(grown);
    }
    // A sandbox may refuse that, and an emulator may not know it.
    // SAFETY: the caller's promise.
    match unsafe { libc::mmap(at, len, protection, flags, file, 0) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        mapped => Ok(mapped),
    }
}

/// Memory for records, zeroed, of which only what was opened may be touched. Not inherited by a forked child.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// A forked child has it, because the kernel does not keep it from it.
    is_inherited: AtomicBool,
}

// SAFETY: a region is plain memory; who may touch which part of it is for its user to say.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes of private memory, all of which may be touched.
    pub fn private(len: usize) -> io::Result<Region> {
        // SAFETY: a new mapping at an address that the kernel picks touches nothing that exists.
        unsafe { Region::map(ptr::null_mut(), len, READ_WRITE, PRIVATE, -1) }
    }

    /// Maps `len` bytes of private memory, of which what is to be touched has to be opened.
    pub fn closed(len: usize) -> io::Result<Region> {
        // SAFETY: as above.
        unsafe { Region::map(ptr::null_mut(), len, libc::PROT_NONE, PRIVATE, -1) }
    }

    /// Maps the first `len` bytes of a file, shared with it, of which what is to be touched has to be opened.
    pub fn closed_file(file: &File, len: usize) -> io::Result<Region> {
        // SAFETY: as above.
        unsafe { Region::map(ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd()) }
    }

    /// # Safety
    /// With `MAP_FIXED` in the flags, the range at `at` is the caller's and nobody uses it.
    unsafe fn map(
        at: *mut libc::c_void,
        len: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        file: libc::c_int,
    ) -> io::Result<Region> {
        // SAFETY: the caller's promise.
        let start = unsafe { map_unlocked(at, len, protection, flags | libc::MAP_NORESERVE, file)? };
        // SAFETY: the range was just mapped.
        let is_inherited = AtomicBool::new(!unsafe { is_heeded(start, len, libc::MADV_DONTFORK) });
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Region { start, len, is_inherited })
    }

    /// In a forked child, which uses nothing of it: it is not there afterwards.
    pub fn leave_in_child(&self) {
        // Once: this child's own children will not have it.
        if self.is_inherited.swap(false, Ordering::Relaxed) {
            // SAFETY: the mapping was inherited, and nobody in this process uses it.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }

    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn at(&self, range: &Range<usize>) -> *mut libc::c_void {
        debug_assert!(range.end <= self.len);
        // SAFETY: inside the region.
        unsafe { self.start.as_ptr().add(range.start).cast() }
    }

    /// Allows a range to be touched, and has the kernel provide its pages now if it can.
    pub fn open(&self, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range lies in the region, and its bytes stay as they are.
        unsafe {
            if libc::mprotect(self.at(&range), range.len(), READ_WRITE) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(self.at(&range), range.len(), MADV_POPULATE_WRITE);
        }
        Ok(())
    }

    /// Has the kernel provide the pages of a range of a file that is open. An error where there is no room for them: touching one on a
    /// full file system would be a SIGBUS.
    ///
    /// By address and not by descriptor: whoever needs memory may have another table of these than the thread that has opened the file.
    pub fn provide(&self, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range lies in the region, and its bytes stay as they are.
        match unsafe { is_heeded(self.at(&range), range.len(), MADV_POPULATE_WRITE) } {
            true => Ok(()),
            false => uncancelled(|| self.write_to_pages(&range)),
        }
    }

    /// The same for kernels before 5.14: the kernel writes to each page, and answers where touching it would be a signal.
    fn write_to_pages(&self, range: &Range<usize>) -> io::Result<()> {
        let memory = File::options().write(true).open("/proc/thread-self/mem")?;
        for offset in range.clone().step_by(page_size()) {
            let at = self.at(&(offset..range.end)) as u64;
            let mut byte = [0];
            // The present bytes stay: nobody else writes to them yet.
            let known = read_self(std::process::id(), at, &mut byte) == 1;
            if !known || memory.write_at(&byte, at)? != 1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }

    /// Puts private memory, which may be touched, in the place of a range that nobody uses.
    pub fn make_private(&self, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range lies in the region, and by contract nobody uses it.
        let part = unsafe { Region::map(self.at(&range), range.len(), READ_WRITE, PRIVATE | libc::MAP_FIXED, -1)? };
        std::mem::forget(part);
        Ok(())
    }

    /// Puts another region that is as long in the place of this one, of which nobody uses more than to look at its first `head` bytes;
    /// they are open in the other one.
    pub fn replace_by(&self, other: Region, head: usize) -> io::Result<()> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // In two steps, because what is open and what is not are two mappings. A part that has moved must not be unmapped at its
        // old address.
        let mut other = ManuallyDrop::new(other);
        for range in [head..self.len, 0..head] {
            let (from, to, len) = (other.at(&range), self.at(&range), range.len());
            // SAFETY: both ranges lie in the regions; nobody uses the first, and who only looks at the second finds one memory or
            // the other.
            if unsafe { libc::mremap(from, len, len, how, to) } == libc::MAP_FAILED {
                let error = io::Error::last_os_error();
                if range.start > 0 {
                    // SAFETY: nothing of it has moved, and it is no longer used.
                    unsafe { ManuallyDrop::drop(&mut other) };
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives the pages of a range that nobody uses back, of a file too. The range reads zero afterwards.
    pub fn discard(&self, range: Range<usize>) {
        // The first is for the pages of a file, and fails for private ones, for which the second is.
        for advice in [libc::MADV_REMOVE, libc::MADV_DONTNEED] {
            // SAFETY: the range lies in the region, and by contract nobody uses it.
            unsafe { libc::madvise(self.at(&range), range.len(), advice) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Linux 5.14; not in every version of the bindings.
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// Address space in which nothing is to be mapped, for the rest of the process.
#[derive(Debug)]
pub struct Reserved {
    start: u64,
}

impl Reserved {
    /// Sets `len` bytes at this address aside, if nothing is mapped there.
    pub fn at(start: u64, len: u64) -> Option<Reserved> {
        let (start, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
        let flags = PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // A page first, which is to be locked neither (see `map_unlocked`), and then the rest of it in its place.
        let first = page_size().min(len);
        let map = |len| {
            // SAFETY: a mapping that replaces none touches nothing that exists.
            let found = unsafe { libc::mmap(start as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
            if found != libc::MAP_FAILED && found as usize != start {
                // A kernel that does not know the flag (before 4.17) takes the address for a wish.
                // SAFETY: the range was just mapped.
                unsafe { libc::munmap(found, len) };
                return libc::MAP_FAILED;
            }
            found
        };
        let found = map(first);
        if found == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the page was just mapped, and grows into free space or not at all.
        let has_grown = unsafe {
            libc::munlock(found, first);
            let has_grown = libc::mremap(found, first, len, 0) != libc::MAP_FAILED;
            if !has_grown {
                libc::munmap(found, first);
            }
            has_grown
        };
        // Under valgrind and qemu mappings do not grow where they are.
        (has_grown || map(len) != libc::MAP_FAILED).then_some(Reserved { start: start as u64 })
    }

    /// Its first byte.
    pub fn start(&self) -> u64 {
        self.start
    }
}

/// Gives advice that is no mere hint, and returns whether the kernel follows it.
///
/// # Safety
/// The range is the caller's, and what the advice does to it is what the caller wants.
unsafe fn is_heeded(start: *mut libc::c_void, len: usize, advice: libc::c_int) -> bool {
    // No kernel knows it, but qemu 7.2 running a program of another architecture agrees to any advice, and does nothing.
    const NO_ADVICE: libc::c_int = libc::c_int::MAX;
    // SAFETY: the caller's promise.
    let agrees = |advice| unsafe { libc::madvise(start, len, advice) } == 0;
    agrees(advice) && !agrees(NO_ADVICE)
}

/// A page that is all zero in a forked child, without a system call at either time. Its first word is 1 in the process that
/// made it; the others are for what a child is to know of itself, and begin as 0 in each.
#[derive(Debug)]
pub struct ForkPage {
    words: NonNull<Words>,
    shared: NonNull<Shared>,
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

/// What a child reads as it is in the parent now, and not as it was when the child was forked.
#[derive(Debug)]
#[repr(C)]
pub struct Shared {
    /// How often the writer has moved though a fork was under way.
    pub writer_went_on: AtomicU32,
    /// How often a thread has registered something though a fork was under way.
    pub thread_went_on: AtomicU32,
}

// SAFETY: the words are atomic and are never unmapped.
unsafe impl Send for ForkPage {}
// SAFETY: as above.
unsafe impl Sync for ForkPage {}

impl ForkPage {
    /// Maps the pages, for ever: calls may look at them at any time until the process ends.
    pub fn new() -> io::Result<ForkPage> {
        let page = map_page(libc::MAP_PRIVATE)?;
        // SAFETY: the page was just mapped, and nobody else knows it.
        let kept_by_kernel = unsafe { is_heeded(page.as_ptr(), page_size(), libc::MADV_WIPEONFORK) };
        let this = ForkPage { words: page.cast(), shared: map_page(libc::MAP_SHARED)?.cast(), kept_by_kernel };
        this.words().same_process.store(1, Ordering::Relaxed);
        Ok(this)
    }

    /// Its content.
    #[inline]
    pub fn words(&self) -> &Words {
        // SAFETY: the page is mapped until the process ends, aligned, and any value is a valid atomic.
        unsafe { self.words.as_ref() }
    }

    /// What it shares with its children.
    pub fn shared(&self) -> &Shared {
        // SAFETY: as above.
        unsafe { self.shared.as_ref() }
    }

    /// Whether this is still the process that made the page.
    #[inline]
    pub fn same_process(&self) -> bool {
        self.words().same_process.load(Ordering::Relaxed) == 1
    }

    /// Does in a forked child what the kernel would have done.
    pub fn clear(&self) {
        let Words { same_process, taking, state, .. } = self.words();
        for word in [same_process, taking, state] {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Maps a page of zeros.
fn map_page(sharing: libc::c_int) -> io::Result<NonNull<libc::c_void>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, sharing | libc::MAP_ANONYMOUS);
    // SAFETY: as in `Region::private`.
    let page = unsafe { libc::mmap(ptr::null_mut(), page_size(), protection, flags, -1, 0) };
    NonNull::new(page).filter(|_| page != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)
}

/// Reads this process's memory at `addr` into `out` without ever faulting, and returns how many bytes could be read. Unreadable
/// bytes become zero. `pid` is this process, known to the caller without a system call.
pub fn read_self(pid: u32, addr: u64, out: &mut [u8]) -> usize {
    let mut read = 0;
    let mut done = 0;
    while done < out.len() {
        let from = addr + done as u64;
        let count = read_some(pid, from, &mut out[done..]);
        read += count;
        done += count;
        if count == 0 {
            // The page at `from` cannot be read: continue after it.
            let skip = (page_size() - (from as usize) % page_size()).min(out.len() - done);
            out[done..done + skip].fill(0);
            done += skip;
        }
    }
    read
}

/// As `read_self`, into newly allocated memory. Returns the bytes and whether all of them could be read.
pub fn copy_self(pid: u32, addr: u64, size: u64) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size as usize)?;
    bytes.resize(size as usize, 0);
    let is_whole = read_self(pid, addr, &mut bytes) == bytes.len();
    Ok((bytes, is_whole))
}

/// Reads from `addr` up to the first byte that cannot be read.
fn read_some(pid: u32, addr: u64, out: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: addr as usize as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: the kernel writes at most `out.len()` bytes to `out`, and answers EFAULT for remote memory that is not there.
    let count = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    if count >= 0 {
        return count as usize;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EFAULT) => 0,
        // The process's first thread has ended, by which it goes for the kernel. The memory is this one's too.
        Some(libc::ESRCH) if pid != id() => read_some(id(), addr, out),
        // Filtered by a sandbox, or not built into this kernel.
        _ => uncancelled(|| {
            File::open("/proc/thread-self/mem").and_then(|memory| memory.read_at(out, addr)).unwrap_or(0)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_around_unreadable_pages() {
        let page = page_size();
        let region = Region::private(3 * page).unwrap();
        let start = region.start().as_ptr();
        // SAFETY: the region is ours; its middle page is made unreadable.
        unsafe {
            ptr::write_bytes(start, 0xaa, 3 * page);
            assert_eq!(libc::mprotect(start.add(page).cast(), page, libc::PROT_NONE), 0);
        }
        let mut out = vec![0xff; 2 * page];
        assert_eq!(read_self(std::process::id(), start as u64 + page as u64 / 2, &mut out), page);
        assert!(out[..page / 2].iter().all(|&byte| byte == 0xaa));
        assert!(out[page / 2..page / 2 + page].iter().all(|&byte| byte == 0));
        assert!(out[page / 2 + page..].iter().all(|&byte| byte == 0xaa));
    }

    #[test]
    fn reads_nothing_where_nothing_is() {
        let mut out = [1u8; 64];
        assert_eq!(read_self(std::process::id(), 0x10, &mut out), 0);
        assert_eq!(out, [0; 64]);
    }
}
