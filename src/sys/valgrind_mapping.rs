//! Makes valgrind read a file's debugging information for pages that are already mapped. For a moment, the file is mapped in
//! place of the pages.
//!
//! valgrind reads a file's debugging information when a program maps the file, and drops the information when the program
//! unmaps the file. When a program moves pages (`mremap`), valgrind neither reads nor drops debugging information. So the pages
//! are moved away, the file is mapped, and the pages are moved back over the file. The pages have the same contents, protection
//! and sharing as before, and valgrind keeps the information that it has read.
//!
//! During the exchange the pages are not mapped at their addresses. So the exchange works only under valgrind, where one thread
//! runs at a time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use super::mapping::page_size;
use super::valgrind;

/// `data_page` reserves address space in pieces of this size.
const ROOM: u64 = 16 << 20;

/// Returns a page of address space for the data of a file. Never returns the same page twice. valgrind remembers the address
/// of a file's data, and drops the file's information when other memory is mapped at that address.
pub fn data_page() -> io::Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static END: AtomicU64 = AtomicU64::new(0);
    let page = NEXT.load(Ordering::Relaxed);
    let (page, end) = match page == END.load(Ordering::Relaxed) {
        true => {
            let room = code_memory::reserve(ROOM)?;
            (room, room + ROOM)
        }
        false => (page, END.load(Ordering::Relaxed)),
    };
    NEXT.store(page + page_size() as u64, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    Ok(page)
}

/// A file, and the position of the code in it.
#[derive(Debug)]
pub struct Origin<'a> {
    pub file: &'a File,
    pub text_at: u64,
    /// The address of an additional mapping, which contains the file's first page. valgrind treats this page as the file's
    /// data.
    pub data: u64,
}

/// Makes valgrind drop the information that it has read for some pages. If `origin` is given, valgrind then reads the file in
/// `origin`. `pieces` lists the pages, in order and without gaps. Each piece is a mapping or a part of one mapping. If the
/// function fails, the pages are unchanged.
///
/// # Safety
/// The process runs under valgrind, and the data page is from `data_page`.
pub unsafe fn exchange(pieces: &[Range<u64>], origin: Option<&Origin<'_>>) -> io::Result<()> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
    let (start, len) = (first.start, last.end - first.start);
    let mut resident = Vec::new();
    resident.try_reserve_exact(len as usize / page_size())?;
    resident.resize(len as usize / page_size(), 0_u8);
    let aside = code_memory::reserve(len)?;
    let place = |piece: &Range<u64>| piece.start - start + aside;
    valgrind::begin_turn();
    // The kernel would refuse to move unmapped pages, and valgrind does not survive a refused move.
    // SAFETY: `resident` has a byte for each page.
    if unsafe { libc::mincore(start as *mut _, len as usize, resident.as_mut_ptr()) } != 0 {
        // SAFETY: nobody else knows the range.
        unsafe { code_memory::unmap(aside, len) };
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    // SAFETY: no other thread runs before the pages are back, and the range that begins at `aside` is private to this
    // function.
    unsafe {
        let mut result = Ok(());
        let mut away = 0;
        for piece in pieces {
            result = code_memory::move_over(piece.start, place(piece), piece.end - piece.start);
            if result.is_err() {
                break;
            }
            away += 1;
        }
        if away == pieces.len() {
            code_memory::unmap(start, len);
            result = origin.map_or(Ok(()), |origin| show(start, len, origin));
        }
        for piece in &pieces[..away] {
            result = code_memory::move_over(place(piece), piece.start, piece.end - piece.start).and(result);
        }
        if let Some(rest) = pieces.get(away) {
            code_memory::unmap(place(rest), aside + len - place(rest));
        }
        result
    }
}

/// Maps the file in `origin` into a range where nothing is mapped, so that valgrind reads the file.
///
/// # Safety
/// The range belongs to the caller.
unsafe fn show(start: u64, len: u64, origin: &Origin<'_>) -> io::Result<()> {
    let page = page_size() as u64;
    // SAFETY: the caller owns the range, and `exchange` requires valgrind and a page from `data_page`.
    unsafe {
        code_memory::map_over(origin.data, page, READ_WRITE, Sharing::Private, origin.file, 0)?;
        let mapped = code_memory::map_over(start, len, READ_EXEC, Sharing::Private, origin.file, origin.text_at);
        code_memory::reserve_over(origin.data, page).and(mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `data_page` never returns the same page twice, even when it begins a new piece of address space.
    #[test]
    fn data_pages_are_new() {
        let count = 2 * ROOM as usize / page_size() + 3;
        let mut pages: Vec<u64> = (0..count).map(|_| data_page().unwrap()).collect();
        pages.sort_unstable();
        assert!(pages.windows(2).all(|pair| pair[0] + page_size() as u64 <= pair[1]));
    }
}
