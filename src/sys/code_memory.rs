//! Maps, moves, protects and unmaps the memory that holds machine code.
//!
//! No type in this file unmaps memory when a value is dropped, because code may run in the memory until the process ends.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

pub use memmap2::Advice;
use rustix::fs::{fallocate, seek, FallocateFlags, SeekFrom};
use rustix::io::{retry_on_intr, Errno};

pub use super::mapping::READ_WRITE;
use super::mapping::{checked, done, page_size, OwnedMapping, PRIVATE};

pub const READ_EXEC: i32 = libc::PROT_READ | libc::PROT_EXEC;

/// Whether writes to a mapping change its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Writes go to the file, and show in every other mapping of the file.
    Shared,
    /// Writes stay private to this process.
    Private,
}

/// Maps part of a file at `[addr, addr + len)`, and replaces whatever is mapped there.
///
/// # Safety
/// The caller owns the range, and may replace its content.
pub unsafe fn map_over(
    addr: u64,
    len: u64,
    protection: i32,
    sharing: Sharing,
    file: &File,
    offset: u64,
) -> io::Result<()> {
    // Without `MAP_NORESERVE`, the kernel charges private pages to the commit limit once they have been writable. The kernel
    // never merges two mappings if only one of them is charged.
    let private = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    let flags = if sharing == Sharing::Shared { libc::MAP_SHARED } else { private };
    // SAFETY: the caller's promise.
    unsafe { map(addr, len, protection, flags, file.as_raw_fd(), offset) }
}

/// Reserves `len` bytes of address space, at an address that the kernel picks. Returns the address.
pub fn reserve(len: u64) -> io::Result<u64> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mapping = OwnedMapping::unlocked(len, libc::PROT_NONE, PRIVATE | libc::MAP_NORESERVE, None)?;
    Ok(mapping.leak().as_ptr() as u64)
}

/// Replaces whatever is mapped in a range with reserved address space, which cannot be accessed.
///
/// # Safety
/// Nobody uses the memory in the range.
pub unsafe fn reserve_over(addr: u64, len: u64) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { map(addr, len, libc::PROT_NONE, PRIVATE | libc::MAP_NORESERVE, -1, 0) }
}

/// Maps private writable memory, at an address that the kernel picks. Returns the address.
pub fn anonymous(len: u64) -> io::Result<u64> {
    Ok(OwnedMapping::new(len as usize, READ_WRITE, PRIVATE, None)?.leak().as_ptr() as u64)
}

/// Moves a mapping to `to`, and replaces whatever is mapped there. Other threads never find `to` unmapped.
///
/// # Safety
/// The caller owns both ranges, and nobody needs the old content of the range at `to`.
pub unsafe fn move_over(from: u64, to: u64, len: u64) -> io::Result<()> {
    let (len, flags) = (len as usize, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    // SAFETY: the caller's promise.
    checked(unsafe { libc::mremap(from as *mut _, len, len, flags, to as *mut libc::c_void) }).map(drop)
}

/// Replaces whatever is mapped in a range with writable memory that forked children share. The memory needs no descriptor.
///
/// # Safety
/// The caller owns the range, and may replace its content.
pub unsafe fn share_over(addr: u64, len: u64) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the caller's promise.
    unsafe { map(addr, len, READ_WRITE, flags, -1, 0) }
}

/// Maps shared memory a second time, at `to`, and replaces whatever is mapped there. The old and the new mapping show the
/// same memory.
///
/// # Safety
/// The caller owns both ranges, and may replace the content of the range at `to`.
pub unsafe fn duplicate_over(from: u64, to: u64, len: u64) -> io::Result<()> {
    let (len, flags) = (len as usize, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    // SAFETY: the caller's promise. Because the old length is 0, the kernel does not unmap the memory at `from`.
    checked(unsafe { libc::mremap(from as *mut _, 0, len, flags, to as *mut libc::c_void) }).map(drop)
}

/// Changes the protection of memory.
///
/// # Safety
/// Nobody accesses the memory in a way that the new protection forbids.
pub unsafe fn protect(addr: u64, len: u64, protection: i32) -> io::Result<()> {
    // SAFETY: the caller's promise.
    done(unsafe { libc::mprotect(addr as *mut _, len as usize, protection) })
}

/// # Safety
/// Nobody uses the memory in the range.
pub unsafe fn unmap(addr: u64, len: u64) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(addr as *mut _, len as usize) };
}

/// # Safety
/// The caller owns the range, and may replace its content.
unsafe fn map(addr: u64, len: u64, protection: i32, flags: i32, file: i32, offset: u64) -> io::Result<()> {
    let (at, flags) = (addr as *mut libc::c_void, flags | libc::MAP_FIXED);
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the caller's promise.
    checked(unsafe { libc::mmap(at, len as usize, protection, flags, file, offset) }).map(drop)
}

/// Makes new instructions visible to all processors, in the memory where these instructions will run. x86-64 processors do this
/// by themselves.
///
/// # Safety
/// The memory is mapped and readable.
#[cfg(target_arch = "aarch64")]
pub unsafe fn clear_instruction_cache(addr: u64, len: u64) {
    use std::arch::asm;
    let types: u64;
    // SAFETY: the register describes the caches, and may be read by every program (Linux traps and emulates a read if needed).
    unsafe { asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags)) };
    let lines = |shift: u32| {
        let size = 4_u64 << (types >> shift & 15);
        ((addr & !(size - 1))..addr + len).step_by(size as usize)
    };
    for line in lines(16) {
        // SAFETY: the line lies in the caller's memory. The instruction writes changed data to the memory behind the cache.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers change nothing.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in lines(0) {
        // SAFETY: the line lies in the caller's memory. The processors read its instructions again.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers change nothing.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// The same. Only the kernel can tell the other processors.
///
/// # Safety
/// The memory is mapped and readable.
#[cfg(target_arch = "riscv64")]
pub unsafe fn clear_instruction_cache(addr: u64, len: u64) {
    /// `riscv_flush_icache` (linux arch/riscv/include/uapi/asm/unistd.h).
    const FLUSH: libc::c_long = 259;
    // SAFETY: the call has no effect on the contents of memory. With the flags 0, it serves all threads of the process.
    unsafe { libc::syscall(FLUSH, addr, addr + len, 0) };
}

/// The same. Only the kernel may do it.
///
/// # Safety
/// The memory is mapped and readable.
#[cfg(target_arch = "arm")]
pub unsafe fn clear_instruction_cache(addr: u64, len: u64) {
    /// `__ARM_NR_cacheflush` (linux arch/arm/include/uapi/asm/unistd.h).
    const FLUSH: libc::c_long = 0x0f_0002;
    // SAFETY: the call has no effect on the contents of memory.
    unsafe { libc::syscall(FLUSH, addr as usize, (addr + len) as usize, 0) };
}

/// The same, by the steps of the Power ISA (book II, 1.8).
///
/// # Safety
/// The memory is mapped and readable.
#[cfg(target_arch = "powerpc64")]
pub unsafe fn clear_instruction_cache(addr: u64, len: u64) {
    use std::arch::asm;
    /// No processor has smaller lines.
    const LINE: u64 = 32;
    let lines = || ((addr & !(LINE - 1))..addr + len).step_by(LINE as usize);
    for line in lines() {
        // SAFETY: the line lies in the caller's memory. The instruction writes changed data to the memory behind the cache.
        unsafe { asm!("dcbst 0, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers change nothing.
    unsafe { asm!("sync", options(nostack, preserves_flags)) };
    for line in lines() {
        // SAFETY: the line lies in the caller's memory. The processors read its instructions again.
        unsafe { asm!("icbi 0, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers change nothing.
    unsafe { asm!("sync", "isync", options(nostack, preserves_flags)) };
}

/// The same, where nothing has to be done.
///
/// # Safety
/// None is needed.
#[cfg(not(any(target_arch = "aarch64", target_arch = "riscv64", target_arch = "arm", target_arch = "powerpc64")))]
pub unsafe fn clear_instruction_cache(_: u64, _: u64) {}

/// Whether a range is a single VMA of the kernel. All pages of a VMA have the same attributes. The range must begin where a VMA
/// begins. The page after the range must belong to the caller, and must have other access rights than the range.
pub fn is_one_mapping(addr: u64, len: u64) -> bool {
    let page = page_size() as u64;
    // The kernel first checks that the range lies in one VMA, and otherwise fails with `EFAULT`. If the range lies in one VMA,
    // the kernel then fails because it has no room to extend the VMA in place (`ENOMEM`).
    // SAFETY: the call has no flags, so it can only extend the mapping in place.
    match checked(unsafe { libc::mremap(addr as *mut _, len as usize, (len + page) as usize, 0) }) {
        Ok(_) => {
            // SAFETY: nobody uses this page, because it became part of the mapping by this call.
            unsafe { unmap(addr + len, page) };
            true
        }
        // The limit of locked memory may also prevent the extension (`EAGAIN`).
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)),
    }
}

/// Whether any page of a range is locked (mlock(2)).
pub fn has_locked(addr: u64, len: u64) -> bool {
    // SAFETY: with the flag `MS_INVALIDATE` alone, msync changes nothing. If a mapping in the range is locked, msync returns
    // EBUSY.
    let told = done(unsafe { libc::msync(addr as *mut _, len as usize, libc::MS_INVALIDATE) });
    told.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Makes a file in memory, without a path. The pages of this file can be mapped twice, unlike pages of private memory.
pub fn nameless_file() -> io::Result<File> {
    // The setting `vm.memfd_noexec=2` requires the flag `MFD_NOEXEC_SEAL`, which forbids executing the file as a program. The
    // flag does not forbid executable mappings of the file.
    let created = memfd(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL);
    // Linux before 6.3 does not support `MFD_NOEXEC_SEAL`.
    created.or_else(|_| memfd(libc::MFD_CLOEXEC))
}

fn memfd(flags: libc::c_uint) -> io::Result<File> {
    // The system call is made by number, because older C libraries have no wrapper function, and rustix would ask the loader
    // for a wrapper function.
    // SAFETY: the name ends with a NUL.
    let created = unsafe { libc::syscall(libc::SYS_memfd_create, c"jitsym".as_ptr(), flags) };
    let descriptor = RawFd::try_from(created).ok().filter(|descriptor| *descriptor >= 0);
    // SAFETY: the descriptor was just made, and nobody else has it.
    descriptor
        .map_or_else(|| Err(io::Error::last_os_error()), |descriptor| Ok(unsafe { File::from_raw_fd(descriptor) }))
}

/// Makes the file system provide room for a part of a file. Afterwards no access to a mapping of this part fails for lack of
/// room.
pub fn provide(file: &File, offset: u64, len: u64) -> io::Result<()> {
    allocate(file, FallocateFlags::empty(), offset, len)
}

/// Frees the room that a part of a file takes. Afterwards the part of the file reads as zeros.
pub fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    allocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

fn allocate(file: &File, how: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| fallocate(file, how, offset, len))?)
}

/// Finds the first part of `range` in which the file has data. The part ends at the next hole, or at the end of `range`. `None`
/// if the whole range is a hole.
pub fn data_in(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    // `seek` moves the file position, which nobody uses for writing.
    match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) if start < range.end => Ok(Some(start..seek(file, SeekFrom::Hole(start))?.min(range.end))),
        Ok(_) | Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes memory to a file. Unreadable memory causes an error and not a signal.
pub fn write_from(addr: u64, len: u64, file: &File, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let (from, to) = ((addr + done) as *const libc::c_void, (offset + done) as libc::off_t);
        // SAFETY: the descriptor is open, and the kernel itself checks whether it can read the memory.
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

/// Writes parts of memory to a file. The file offset of each part is the part's memory address plus `beyond` (the sum wraps).
/// The parts must be in the order of their addresses. One write call can contain many parts. A write call that reaches
/// unreadable memory leaves its remaining parts unwritten. If a write call can write nothing, this function fails.
pub fn write_parts(parts: impl Iterator<Item = Range<u64>>, file: &File, beyond: u64) -> io::Result<()> {
    static ZEROS: [u8; GAP] = [0; GAP];
    /// A gap between two parts is filled with zeros if it has at most this many bytes. A gap of more than `GAP` bytes becomes a
    /// hole in the file.
    const GAP: usize = 4096;
    /// A write call is made when at least this many vectors have been collected. The kernel accepts at most 1024 vectors in one
    /// call.
    const MOST: usize = 512;
    let mut vectors: Vec<libc::iovec> = Vec::new();
    let (mut start, mut end) = (0, 0);
    let write = |vectors: &mut Vec<libc::iovec>, start: u64| {
        let at = start.wrapping_add(beyond) as libc::off_t;
        // SAFETY: the descriptor is open, and the kernel itself checks whether it can read the memory.
        let written = unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as libc::c_int, at) };
        vectors.clear();
        if written < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    for part in parts {
        let gap = part.start.wrapping_sub(end) as usize;
        if !vectors.is_empty() && (gap > GAP || vectors.len() >= MOST) {
            write(&mut vectors, start)?;
        }
        vectors.try_reserve(2)?;
        if vectors.is_empty() {
            start = part.start;
        } else if gap > 0 {
            vectors.push(libc::iovec { iov_base: ZEROS.as_ptr().cast_mut().cast(), iov_len: gap });
        }
        let iov_len = (part.end - part.start) as usize;
        vectors.push(libc::iovec { iov_base: part.start as *mut libc::c_void, iov_len });
        end = part.end;
    }
    if vectors.is_empty() {
        Ok(())
    } else {
        write(&mut vectors, start)
    }
}

/// Discards all writes to private memory. Afterwards, a mapping of a file shows the content of the file. Memory without a file
/// reads as zeros.
///
/// # Safety
/// Nobody uses the memory in the range.
pub unsafe fn drop_pages(addr: u64, len: u64) -> io::Result<()> {
    // SAFETY: the caller's promise.
    done(unsafe { libc::madvise(addr as *mut _, len as usize, libc::MADV_DONTNEED) })
}

/// Gives advice about memory (madvise(2)). The memory also works if the kernel ignores the advice.
pub fn advise(addr: u64, len: u64, advice: Advice) {
    // SAFETY: the crate memmap2 lets safe code give any advice of this type. Among the values of `Advice`, only `HwPoison`
    // changes the content of memory. `HwPoison` requires root, and exists to test how the kernel handles broken memory.
    unsafe { libc::madvise(addr as *mut _, len as usize, advice as i32) };
}

/// The end of the heap that `brk` extends.
pub fn heap_end() -> u64 {
    // SAFETY: an increment of 0 changes nothing.
    unsafe { libc::sbrk(0) as u64 }
}

/// `len` in bytes, rounded up to whole pages. `None` if the result is too large.
pub fn whole_pages(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(page_size() as u64)
}

/// Whether the process has locked memory (mlock(2)). If a file mapping replaces locked memory, the file mapping is not locked.
/// So callers call this function before they replace memory with a file mapping.
pub fn has_locked_memory() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|size| size.trim() != "0 kB")
}
