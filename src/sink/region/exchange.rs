//! Replaces plain memory by a private mapping of a file that has the same bytes, and turns such a mapping into plain memory
//! again.

use std::cell::LazyCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::sys::code_memory::{self, Advice, Sharing};
use crate::sys::fork_lock::Parting;
use crate::sys::mapping::page_size;
use crate::sys::maps::Mapping;
use crate::sys::page_facts::{Untouched, Witness};
use crate::sys::{file, process_memory};

/// How many bytes are copied at a time.
pub(super) const BLOCK: usize = 128 << 10;

/// Replaces a piece of memory by a mapping of the file, with the same bytes, protection and attributes. After an error, the
/// memory is plain memory with the bytes and the protection that it had before.
///
/// Returns `WouldBlock` if the process was forked during the call. The child may execute the bytes of the file, so the caller
/// must no longer change the file.
///
/// `are_attributes_known` is true if `look_up_attributes` has accepted the piece. The contents of the piece then do not come
/// from a userfaultfd, so untouched pages are zero, and are not read.
pub(super) fn exchange(piece: &Mapping, file: &File, base: u64, are_attributes_known: bool) -> io::Result<()> {
    let (addr, len, offset) = (piece.start, piece.end - piece.start, piece.start - base);
    provide_if_possible(file, offset, len)?;
    let pages = copy_to_file(piece, file, offset, are_attributes_known)?;
    // A child that is forked before the process has its own copies of the pages would see later changes of the file in these
    // pages.
    let (parting, witness) = (Parting::begin().ok_or_else(forked)?, Witness::new()?);
    // SAFETY: this part of the file has the same bytes as the memory, and the caller of `adopt` has promised that nobody writes
    // to the memory.
    unsafe { code_memory::map_over(addr, len, piece.protection, Sharing::Private, file, offset)? };
    // Until the advice `Normal` is given, the kernel reads only pages that are touched, and does not read ahead.
    code_memory::advise(addr, len, Advice::Random);
    let mut exchanged = part_from_file(&pages);
    if offset == 0 && pages.first().is_none_or(|&(at, _)| at > addr) {
        // The header page of the file is written to this page later, so the process needs its own copy of the page.
        exchanged = exchanged.and_then(|()| part_from_file(&[(addr, 0)]));
    }
    // `Parting` does not notice a fork by a raw `clone` system call, because no fork handler runs. The witness notices the
    // child.
    if !parting.is_undisturbed() || witness.has_child() == Some(true) {
        exchanged = exchanged.and(Err(forked()));
    }
    drop(parting);
    // With the advice `Random`, the kernel would expect no further use of the memory, and would swap it out first.
    code_memory::advise(addr, len, Advice::Normal);
    piece.attributes.give(addr, len, piece.protection);
    let offsets = pages.iter().map(|(addr, _)| addr - base);
    exchanged.and_then(|()| clear(file, offset, len, offsets)).inspect_err(|_| take_back(std::slice::from_ref(piece)))
}

/// Makes the file system provide room for a private mapping of the file. A file system in memory (tmpfs) needs an additional
/// page for each page of the mapping that is touched, and the kernel raises SIGBUS if no page is left. A file system on a disk
/// needs no additional pages. If the file system does not support the operation, does nothing.
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

/// Turns pieces of memory that `exchange` has replaced into plain memory again.
pub(super) fn take_back(pieces: &[Mapping]) {
    for piece in pieces {
        // An error is ignored: the piece then stays a mapping of the file, with the bytes that plain memory would have.
        let _ = make_plain(std::slice::from_ref(piece));
    }
}

/// Calls `each` for all pages of a range, except for pages that contain only zeros.
pub(super) fn for_pages(range: Range<u64>, each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
    for_pages_unless(range, |_, _| false, each)
}

/// Like `for_pages`, but does not read blocks for which `is_zero` returns true.
fn for_pages_unless(
    range: Range<u64>,
    is_zero: impl Fn(u64, u64) -> bool,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    // `/proc/thread-self/mem` also shows memory whose protection forbids reading. A process without a free descriptor cannot
    // open this file.
    let memory = LazyCell::new(|| File::open("/proc/thread-self/mem").ok());
    let mut block = Vec::new();
    let len = (range.end - range.start).min(BLOCK as u64) as usize;
    block.try_reserve_exact(len)?;
    block.resize(len, 0);
    let mut addr = range.start;
    while addr < range.end {
        let part = &mut block[..(range.end - addr).min(BLOCK as u64) as usize];
        if is_zero(addr, addr + part.len() as u64) {
            addr += part.len() as u64;
            continue;
        }
        if process_memory::read(std::process::id(), addr, part) < part.len()
            && memory.as_ref().is_none_or(|memory| memory.read_exact_at(part, addr).is_err())
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory cannot be read"));
        }
        for (number, bytes) in part.chunks(page_size()).enumerate() {
            if has_bits(bytes) {
                each(addr + (number * page_size()) as u64, bytes)?;
            }
        }
        addr += part.len() as u64;
    }
    Ok(())
}

/// Whether any byte is not zero. The inner loop has no early exit, so that compilers vectorize it.
fn has_bits(bytes: &[u8]) -> bool {
    bytes.chunks(256).any(|part| part.iter().fold(0, |all, byte| all | byte) != 0)
}

/// Copies a mapping to the file. Returns the address and the first byte of each page that is not all zero. If `skips_untouched`
/// is true, does not read untouched pages.
fn copy_to_file(piece: &Mapping, file: &File, offset: u64, skips_untouched: bool) -> io::Result<Vec<(u64, u8)>> {
    let mut pages = Vec::new();
    // The look-up of untouched blocks pays for large memory, such as a mostly unused arena. Reading a single block is faster
    // than looking up whether it is untouched.
    let is_large = piece.end - piece.start > BLOCK as u64;
    let untouched = if is_large && skips_untouched { Untouched::new() } else { None };
    let is_zero = |from, to| untouched.as_ref().is_some_and(|untouched| untouched.has_all(from, to));
    for_pages_unless(piece.start..piece.end, is_zero, |addr, bytes| {
        pages.try_reserve(1)?;
        pages.push((addr, bytes[0]));
        file.write_all_at(bytes, offset + (addr - piece.start))
    })?;
    Ok(pages)
}

/// Gives the process its own copies of pages of a private mapping, with the same bytes. Without its own copies, the process
/// would execute the zeros (see `clear`) or the header page that the library later writes to these pages of the file.
fn part_from_file(pages: &[(u64, u8)]) -> io::Result<()> {
    // A write to `/proc/thread-self/mem` also changes memory whose protection forbids writing.
    let memory = File::options().write(true).open("/proc/thread-self/mem")?;
    pages.iter().try_for_each(|&(addr, first)| memory.write_all_at(&[first], addr))
}

/// Makes the text of the file zero again, so that pages which the host later gives up (`MADV_DONTNEED`) contain zeros. On a
/// file system in memory, the pages are overwritten and not freed, because the provided pages must stay (see
/// `provide_if_possible`).
pub(super) fn clear(file: &File, text: u64, len: u64, mut pages: impl Iterator<Item = u64>) -> io::Result<()> {
    if file::is_on_disk(file) && code_memory::punch(file, text, len).is_ok() {
        return Ok(());
    }
    pages.try_for_each(|offset| write_zeros(file, offset))
}

/// Gives the process its own copies of pages of a private mapping, filled with zeros.
pub(super) fn own_zeros(addr: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let memory = File::options().write(true).open("/proc/thread-self/mem")?;
    (addr..addr + len).step_by(page_size()).try_for_each(|page| write_zeros(&memory, page))
}

fn write_zeros(to: &File, page: u64) -> io::Result<()> {
    let zeros = [0; 4096];
    (page..page + page_size() as u64).step_by(zeros.len()).try_for_each(|at| to.write_all_at(&zeros, at))
}

/// Replaces mappings by plain memory with the same bytes, protections and attributes. If memory is short, nothing changes. If
/// the kernel cannot move the copy of a piece to the piece's address, only the pieces before this piece are replaced.
pub(super) fn make_plain(pieces: &[Mapping]) -> io::Result<()> {
    let mut copies = Vec::new();
    copies.try_reserve(pieces.len())?;
    let copied = pieces.iter().try_for_each(|piece| copy_of(piece).map(|copy| copies.push(copy)));
    let mut pairs = pieces.iter().zip(&copies);
    let moved = copied.and_then(|()| {
        pairs.by_ref().try_for_each(|(piece, &copy)| {
            let len = piece.end - piece.start;
            // SAFETY: the new memory has the same length, nobody else uses it, and it has the same bytes as the memory that it
            // replaces.
            unsafe { code_memory::move_over(copy, piece.start, len).inspect_err(|_| code_memory::unmap(copy, len))? };
            piece.attributes.give(piece.start, len, piece.protection);
            Ok(())
        })
    });
    // SAFETY: these copies have not been moved, and nobody else knows of them.
    pairs.for_each(|(piece, &copy)| unsafe { code_memory::unmap(copy, piece.end - piece.start) });
    moved
}

/// Makes a copy of memory, with the same protection. Returns the address of the copy.
fn copy_of(piece: &Mapping) -> io::Result<u64> {
    let len = piece.end - piece.start;
    let copy = code_memory::anonymous(len)?;
    // SAFETY: the copy is as long as the piece, and nobody else uses the copy.
    unsafe {
        let copied = for_pages(piece.start..piece.end, |addr, bytes| {
            let to = (copy + (addr - piece.start)) as *mut u8;
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            Ok(())
        });
        let done = copied.and_then(|()| code_memory::protect(copy, len, piece.protection));
        done.inspect_err(|_| code_memory::unmap(copy, len)).map(|()| copy)
    }
}
