//! Memory that code runs in: mappings of a file at chosen addresses.
//!
//! Plain system calls and not memmap2, because each mapping here takes the place of another one at its address, or lies in
//! space that was set aside for it. Nothing is unmapped by being dropped: code may run there as long as the process lives.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use super::mem::{map_unlocked, page_size};

pub const READ_EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;
pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// How a mapping of a file is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Writes go to the file, and show in every other mapping of it.
    Shared,
    /// Writes stay private to this process.
    Private,
}

/// Maps part of a file in the place of whatever lies at `[addr, addr + len)`.
///
/// # Safety
/// The range is the caller's to replace, with what the file has there.
pub unsafe fn map_over(
    addr: u64,
    len: u64,
    protection: i32,
    sharing: Sharing,
    file: &File,
    offset: u64,
) -> io::Result<()> {
    let flags = libc::MAP_FIXED | if sharing == Sharing::Shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    // SAFETY: the caller's promise.
    unsafe { map(addr, len, protection, flags, file.as_raw_fd(), offset) }.map(drop)
}

/// Sets address space aside, anywhere.
pub fn reserve(len: u64) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: a new mapping at an address that the kernel picks touches nothing that exists.
    unsafe { map_unlocked(ptr::null_mut(), len, libc::PROT_NONE, flags, -1) }.map(|start| start as u64)
}

/// Makes a range address space in which nothing is.
///
/// # Safety
/// Nobody uses what lies there.
pub unsafe fn reserve_over(addr: u64, len: u64) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe { map(addr, len, libc::PROT_NONE, flags, -1, 0) }.map(drop)
}

/// Private memory with these bytes, writable, anywhere.
pub fn anonymous(len: u64) -> io::Result<u64> {
    // SAFETY: as in `reserve`.
    unsafe { map(0, len, READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }
}

/// Moves one mapping in the place of whatever lies at `to`, in one step that running threads do not notice.
///
/// # Safety
/// Both ranges are the caller's, and what lies at `to` is to go.
pub unsafe fn move_over(from: u64, to: u64, len: u64) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    let moved = unsafe { libc::mremap(from as *mut _, len as usize, len as usize, flags, to as *mut libc::c_void) };
    if moved == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Changes what may be done with memory.
///
/// # Safety
/// Nobody does what is no longer allowed.
pub unsafe fn protect(addr: u64, len: u64, protection: i32) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::mprotect(addr as *mut _, len as usize, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// Nobody uses what lies there.
pub unsafe fn unmap(addr: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(addr as *mut _, len as usize) };
}

/// # Safety
/// As `map_over`, with `MAP_FIXED` in the flags.
unsafe fn map(addr: u64, len: u64, protection: i32, flags: i32, file: i32, offset: u64) -> io::Result<u64> {
    let at = if addr == 0 { ptr::null_mut() } else { addr as *mut libc::c_void };
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the caller's promise.
    let found = unsafe { libc::mmap(at, len as usize, protection, flags, file, offset) };
    if found == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(found as u64)
}

/// A file that has no name, for memory that is mapped twice.
pub fn nameless_file() -> io::Result<File> {
    // SAFETY: the name ends with a NUL.
    let descriptor = unsafe { libc::memfd_create(c"jitsym".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(descriptor) })
}

/// Has the file system provide room for part of a file, so that touching a mapping of it never fails for want of that.
pub fn provide(file: &File, offset: u64, len: u64) -> io::Result<()> {
    allocate(file, 0, offset, len)
}

/// Gives the room of part of a file back; it reads zero then.
pub fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    allocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
}

/// The next part of a range of a file that is no hole.
pub fn data_in(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let seek = |from: u64, what| {
        // SAFETY: lseek takes a descriptor, which is open. Nobody writes where that stands.
        let found = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, what) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error())
    };
    match seek(range.start, libc::SEEK_DATA) {
        Ok(start) if start < range.end => Ok(Some(start..seek(start, libc::SEEK_HOLE)?.min(range.end))),
        Ok(_) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes memory to a file. Where there is none that is an error, and no signal.
pub fn write_from(addr: u64, len: u64, file: &File, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let (from, to) = ((addr + done) as *const libc::c_void, (offset + done) as libc::off_t);
        // SAFETY: pwrite takes a descriptor, which is open, and looks itself at whether it can read there.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), from, (len - done) as usize, to) };
        match u64::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

fn allocate(file: &File, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: fallocate takes a descriptor, which is open.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, len as libc::off_t) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Gives up what was written to private memory: it shows its file again, or zero if it has none.
///
/// # Safety
/// Nobody uses what lies there.
pub unsafe fn drop_pages(addr: u64, len: u64) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::madvise(addr as *mut _, len as usize, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks for huge pages, where the kernel has them for such memory. That is advice: without them nothing is wrong.
pub fn advise_huge(addr: u64, len: u64) {
    // SAFETY: the advice changes no contents, wherever it points.
    unsafe { libc::madvise(addr as *mut _, len as usize, libc::MADV_HUGEPAGE) };
}

/// Asks that nothing be read ahead of what is touched.
pub fn advise_random(addr: u64, len: u64) {
    // SAFETY: as above.
    unsafe { libc::madvise(addr as *mut _, len as usize, libc::MADV_RANDOM) };
}

/// `len` in whole pages.
pub fn whole_pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(page_size() as u64)
}

/// Whether the process has memory locked, which a mapping of a file would not be.
pub fn has_locked_memory() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|size| size.trim() != "0 kB")
}
