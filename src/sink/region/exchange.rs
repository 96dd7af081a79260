//! Memory and a file change places: a private mapping of a file with the same bytes comes where memory was, and plain memory where
//! such a mapping was.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::sys::code_memory::{self, Sharing};
use crate::sys::fork_lock::Parting;
use crate::sys::mapping::page_size;
use crate::sys::maps::Mapping;
use crate::sys::{file, process_memory};

/// Bytes that are copied at a time: more than the reserve gives, which is not for this.
pub(super) const BLOCK: usize = 128 << 10;

/// Puts a file in the place of a piece of memory, with the same bytes and protection. After an error it is as it was.
///
/// `WouldBlock` if the process was forked meanwhile. Then the child may execute the file, which has to stay as it is.
pub(super) fn exchange(piece: &Mapping, file: &File, base: u64) -> io::Result<()> {
    let (addr, len, offset) = (piece.start, piece.end - piece.start, piece.start - base);
    provide_if_possible(file, offset, len)?;
    let pages = copy_to_file(piece, file, offset)?;
    // From here until the pages are the process's own, a child would see in them what the file has later.
    let parting = Parting::begin().ok_or_else(forked)?;
    // SAFETY: the file has the same bytes there, and the caller of `adopt` has promised that nobody writes.
    unsafe { code_memory::map_over(addr, len, piece.protection, Sharing::Private, file, offset)? };
    code_memory::advise_random(addr, len);
    let mut exchanged = part_from_file(&pages);
    if offset == 0 && pages.first().is_none_or(|&(at, _)| at > addr) {
        // The header page will lie there.
        exchanged = exchanged.and_then(|()| part_from_file(&[(addr, 0)]));
    }
    if !parting.is_undisturbed() {
        exchanged = exchanged.and(Err(forked()));
    }
    drop(parting);
    // Such memory is taken for what is not used again, and swapped out first.
    code_memory::advise_normal(addr, len);
    let offsets = pages.iter().map(|(addr, _)| addr - base);
    exchanged.and_then(|()| clear(file, offset, len, offsets)).inspect_err(|_| take_back(std::slice::from_ref(piece)))
}

/// Has the file system provide room for private memory too. In memory (tmpfs) it takes another page for each touched one, and
/// the kernel raises SIGBUS if there is none. On a disk, and where it cannot provide any, it takes none for that.
pub(super) fn provide_if_possible(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if file::is_on_disk(file) {
        return Ok(());
    }
    match code_memory::provide(file, offset, len) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result,
    }
}

fn forked() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "the process was forked meanwhile")
}

/// Puts plain memory in the place of what has been swapped.
pub(super) fn take_back(pieces: &[Mapping]) {
    for piece in pieces {
        // What cannot be taken back is memory with the right bytes all the same.
        let _ = make_plain(piece);
    }
}

/// Hands out the pages of a mapping that are not all zero.
pub(super) fn for_pages(piece: &Mapping, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    // Unlike other ways this reads memory that may not be read now.
    let memory = File::open("/proc/thread-self/mem")?;
    let mut block = Vec::new();
    block.try_reserve_exact(BLOCK)?;
    block.resize(BLOCK, 0);
    let mut addr = piece.start;
    while addr < piece.end {
        let part = &mut block[..(piece.end - addr).min(BLOCK as u64) as usize];
        if memory.read_exact_at(part, addr).is_err()
            && process_memory::read(std::process::id(), addr, part) < part.len()
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory cannot be read"));
        }
        for (number, bytes) in part.chunks(page_size()).enumerate() {
            if bytes.iter().any(|&byte| byte != 0) {
                each(addr + (number * page_size()) as u64, bytes)?;
            }
        }
        addr += part.len() as u64;
    }
    Ok(())
}

/// Returns which pages are not all zero, and with which byte they begin.
fn copy_to_file(piece: &Mapping, file: &File, offset: u64) -> io::Result<Vec<(u64, u8)>> {
    let mut pages = Vec::new();
    for_pages(piece, |addr, bytes| {
        pages.try_reserve(1)?;
        pages.push((addr, bytes[0]));
        file.write_all_at(bytes, offset + (addr - piece.start))
    })?;
    Ok(pages)
}

/// Gives the process its own copy of pages of a private mapping, with the same bytes. Otherwise it would execute the bytes that are
/// written to the file later. Those are the bytes as registered, which the host may have patched since, and in a forked child its
/// parent's.
fn part_from_file(pages: &[(u64, u8)]) -> io::Result<()> {
    // Unlike other ways this writes to memory that may only be executed now.
    let memory = File::options().write(true).open("/proc/thread-self/mem")?;
    pages.iter().try_for_each(|&(addr, first)| memory.write_all_at(&[first], addr))
}

/// Makes the text of the file zero again, so that pages which the host gives up (`MADV_DONTNEED`) read zero. A file system in
/// memory has to keep their room.
fn clear(file: &File, text: u64, len: u64, mut pages: impl Iterator<Item = u64>) -> io::Result<()> {
    if file::is_on_disk(file) && code_memory::punch(file, text, len).is_ok() {
        return Ok(());
    }
    pages.try_for_each(|offset| write_zeros(file, offset))
}

/// Makes a page of a private mapping zero, and the process's own.
pub(super) fn own_zeros(addr: u64) -> io::Result<()> {
    let memory = File::options().write(true).open("/proc/thread-self/mem")?;
    write_zeros(&memory, addr)
}

fn write_zeros(to: &File, page: u64) -> io::Result<()> {
    let zeros = [0; 4096];
    (page..page + page_size() as u64).step_by(zeros.len()).try_for_each(|at| to.write_all_at(&zeros, at))
}

/// Puts plain memory in the place of a mapping, with the same bytes and protection.
pub(super) fn make_plain(piece: &Mapping) -> io::Result<()> {
    let len = piece.end - piece.start;
    let fresh = code_memory::anonymous(len)?;
    // SAFETY: the new memory is as long and nobody else has it; what it replaces has the same bytes.
    unsafe {
        let moved = for_pages(piece, |addr, bytes| {
            let to = (fresh + (addr - piece.start)) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            Ok(())
        })
        .and_then(|()| code_memory::protect(fresh, len, piece.protection))
        .and_then(|()| code_memory::move_over(fresh, piece.start, len));
        if moved.is_err() {
            code_memory::unmap(fresh, len);
        }
        moved
    }
}
