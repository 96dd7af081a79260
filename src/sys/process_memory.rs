//! Reads this process's own memory by system calls, which return an error for an unreadable page where a plain access would
//! fault.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::mapping::page_size;
use super::thread::{id, uncancelled};

/// Reads this process's memory at `addr` into `out` without ever faulting. Returns how many bytes could be read. Unreadable
/// bytes become zero. `pid` is the pid of this process. The caller passes the pid, so this function need not ask the kernel for
/// it.
pub fn read(pid: u32, addr: u64, out: &mut [u8]) -> usize {
    let mut read = 0;
    let mut done = 0;
    while done < out.len() {
        let from = addr.wrapping_add(done as u64);
        let count = read_some(pid, from, &mut out[done..]);
        read += count;
        done += count;
        if count == 0 {
            // The page at `from` cannot be read, so the loop continues after this page.
            let skip = (page_size() - (from as usize) % page_size()).min(out.len() - done);
            out[done..done + skip].fill(0);
            done += skip;
        }
    }
    read
}

/// Whether the byte at `addr` can be read.
pub fn is_readable(pid: u32, addr: u64) -> bool {
    read_some(pid, addr, &mut [0]) == 1
}

/// Like `read`, but allocates the memory for the bytes. Returns the bytes, and whether all of them could be read.
pub fn copy(pid: u32, addr: u64, size: u64) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size as usize)?;
    bytes.resize(size as usize, 0);
    let is_whole = read(pid, addr, &mut bytes) == bytes.len();
    Ok((bytes, is_whole))
}

/// Copies `size` bytes. Returns `None` if any of these bytes cannot be read. The copy is filled in steps of `STEP` bytes. So if
/// `size` is far too large, the function fills at most `STEP` bytes of the copy in vain.
pub fn copy_whole(pid: u32, addr: u64, size: u64) -> io::Result<Option<Vec<u8>>> {
    const STEP: usize = 1 << 20;
    let Some(size) = usize::try_from(size).ok().filter(|_| addr.checked_add(size).is_some()) else { return Ok(None) };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size)?;
    while bytes.len() < size {
        let done = bytes.len();
        bytes.resize(size.min(done + STEP), 0);
        let mut from = done;
        while from < bytes.len() {
            match read_some(pid, addr + from as u64, &mut bytes[from..]) {
                0 => return Ok(None),
                count => from += count,
            }
        }
    }
    Ok(Some(bytes))
}

/// Reads from `addr` up to the first byte that cannot be read.
fn read_some(pid: u32, addr: u64, out: &mut [u8]) -> usize {
    match readv(pid, addr, out).map_err(|error| error.raw_os_error()) {
        Ok(count) => count,
        Err(Some(libc::EFAULT)) => 0,
        // The process's first thread has ended, so the kernel finds no process with this pid. The calling thread has the same
        // memory, so the call is repeated with the id of the calling thread.
        Err(Some(libc::ESRCH)) if pid != id() => read_some(id(), addr, out),
        // A sandbox refuses the system call, or this kernel is built without it.
        Err(_) => uncancelled(|| {
            File::open("/proc/thread-self/mem").and_then(|memory| memory.read_at(out, addr)).unwrap_or(0)
        }),
    }
}

/// Calls process_vm_readv(2) for the process that has a thread with this id.
fn readv(thread: u32, addr: u64, out: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: addr as usize as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: the kernel writes at most `out.len()` bytes to `out`, and returns EFAULT for remote memory that does not exist.
    let count = unsafe { libc::process_vm_readv(thread as libc::pid_t, &local, 1, &remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::sys::mapping::Region;

    #[test]
    fn reads_around_unreadable_pages() {
        let page = page_size();
        let region = Region::private(3 * page).unwrap();
        let start = region.start().as_ptr();
        // SAFETY: the region belongs to this test. The middle page of the region is made unreadable.
        unsafe {
            ptr::write_bytes(start, 0xaa, 3 * page);
            assert_eq!(libc::mprotect(start.add(page).cast(), page, libc::PROT_NONE), 0);
        }
        let mut out = vec![0xff; 2 * page];
        assert_eq!(read(std::process::id(), start as u64 + page as u64 / 2, &mut out), page);
        assert!(out[..page / 2].iter().all(|&byte| byte == 0xaa));
        assert!(out[page / 2..page / 2 + page].iter().all(|&byte| byte == 0));
        assert!(out[page / 2 + page..].iter().all(|&byte| byte == 0xaa));
    }

    #[test]
    fn reads_nothing_where_nothing_is() {
        let mut out = [1u8; 64];
        assert_eq!(read(std::process::id(), 0x10, &mut out), 0);
        assert_eq!(out, [0; 64]);
    }
}
