//! Describes at which addresses the parts of a region lie, and maps the region's header page and tables.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::file::Layout;
use crate::sys::code_memory::{self, Advice, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};

/// The addresses of a region, which do not change during the life of the region.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The start of the executable memory, and its maximum length.
    pub start: u64,
    pub max_len: u64,
    /// The address at which the first byte of the file is or would be mapped.
    pub base: u64,
    /// The length of the address space that is reserved at `base` for the header page. 0 if the header page is not mapped.
    pub header_len: u64,
    /// The address range where the tables are mapped.
    pub tables: Range<u64>,
    /// Whether libdw may assume that the object right above this region already begins in the last page of the region.
    pub has_object_above: bool,
    /// Where the marks of the region should lie; 0 if the kernel may choose.
    pub marks_hint: u64,
}

impl Placement {
    /// The offset of the text in the file.
    pub fn text(&self) -> u64 {
        self.start - self.base
    }

    /// The offsets of the parts in the file if the code has the length `text_len`.
    pub fn layout(&self, text_len: u64, is_private: bool) -> Layout {
        Layout {
            text: self.text(),
            text_len,
            text_room: self.max_len,
            tables: self.tables.start - self.base,
            tables_len: self.tables.end - self.tables.start,
            is_private,
            has_object_above: self.has_object_above,
        }
    }

    /// Maps the file, without access rights, over the address space that is reserved beside adopted memory. By these mappings,
    /// the library later distinguishes this address space from memory that the host has mapped: see `unmap_own`. The address
    /// space must belong to the caller.
    pub fn mark(&self, file: &File) -> io::Result<()> {
        self.reserved().try_for_each(|range| {
            let (len, offset) = (range.end - range.start, range.start - self.base);
            // SAFETY: the range belongs to the caller, and nobody reads there.
            unsafe { code_memory::map_over(range.start, len, libc::PROT_NONE, Sharing::Private, file, offset) }
        })
    }

    /// Maps the tables, and also the header page if address space is reserved for it. These mappings are for perf with
    /// libunwind, which looks for tables in the mappings of the code's file. perf computes the addresses of the tables from the
    /// beginning of the file's lowest mapping (linux tools/perf/util/unwind-libunwind-local.c, `read_unwind_spec_eh_frame`).
    /// The ranges for which `is_own` is true must belong to the caller. Ranges for which `is_own` is false are not changed.
    pub fn map_tables(&self, sharing: Sharing, file: &File, is_own: impl Fn(&Range<u64>) -> bool) -> io::Result<()> {
        let header_len = self.header_len.min(page_size() as u64);
        self.beside_code(header_len).filter(is_own).try_for_each(|range| {
            // SAFETY: the range belongs to the caller, and nobody reads there. The range is only reserved, or shows the header
            // page or the tables of this file or of an earlier file of the region.
            unsafe {
                code_memory::map_over(
                    range.start,
                    range.end - range.start,
                    READ_EXEC,
                    sharing,
                    file,
                    range.start - self.base,
                )
            }
        })
    }

    /// # Safety
    /// The ranges must still belong to the caller.
    pub unsafe fn unmap_tables(&self) {
        // SAFETY: the caller promises that the ranges still belong to it.
        self.reserved().for_each(|range| unsafe {
            code_memory::unmap(range.start, range.end - range.start);
        });
    }

    /// The address space that is reserved beside adopted memory.
    pub fn reserved(&self) -> impl Iterator<Item = Range<u64>> {
        self.beside_code(self.header_len)
    }

    /// Returns the range of the tables, and the range of the header page, whose length is `header_len`. If the tables lie below
    /// the code, the header page and the tables are one range. In an epoch, the code is mapped after these ranges. The header
    /// page comes last, because samples have no callers in perf 6 between the mapping of the header page and of the code.
    fn beside_code(&self, header_len: u64) -> impl Iterator<Item = Range<u64>> {
        let both = match self.tables.start < self.start {
            true => [self.base..self.tables.end, 0..0],
            false => [self.tables.clone(), self.base..self.base + header_len],
        };
        both.into_iter().filter(|range| !range.is_empty())
    }

    /// The address space of a created region, from the header page to the tables. The tables must lie after the code.
    pub fn whole(&self) -> Range<u64> {
        self.base..self.tables.end
    }

    /// Checks that a private mapping of this file may be executed after a write to the mapping. A file system that is mounted
    /// `noexec` forbids all executable mappings. Some security policies (SELinux `execmod`) forbid executing a mapping after a
    /// write. Without this check, the host's own `mprotect` could fail later.
    ///
    /// perf assumes that a file begins at the lowest recorded mapping of the file. perf records each new mapping, but not that
    /// a mapping is removed. So a test page below all later mappings would mislead perf, even after the test page is unmapped.
    /// Therefore the test page lies where the tables are mapped later.
    pub fn check_private_exec(&self, file: &File, protection: i32) -> io::Result<()> {
        let (at, offset, page) = (self.tables.start, self.tables.start - self.base, page_size() as u64);
        if file.metadata()?.len() < offset + page {
            file.set_len(offset + page)?;
        }
        // SAFETY: the page is meant for the tables, which nobody reads in this process.
        unsafe {
            code_memory::map_over(at, page, READ_WRITE, Sharing::Private, file, offset)?;
            code_memory::advise(at, page, Advice::Random);
            let checked = (|| {
                (at as *mut u8).write_volatile(1);
                code_memory::protect(at, page, protection | READ_EXEC)?;
                code_memory::protect(at, page, READ_EXEC)
            })();
            checked.or_else(|error| code_memory::reserve_over(at, page).and(Err(error)))
        }
    }
}

/// Unmaps the mappings of a file in a range. The file has the inode number `inode`, and its first byte is or would be mapped at
/// `base`. Also unmaps reserved address space in the ranges `beside`. Other mappings stay, because they may belong to the host.
///
/// # Safety
/// Nobody may use these mappings of the file any longer. The library itself reserved the ranges `beside`.
pub unsafe fn unmap_own(range: Range<u64>, inode: Option<u64>, base: u64, beside: &[Range<u64>]) -> io::Result<()> {
    let maps = maps::within(range.start, range.end)?;
    let is_reserved = |mapping: &&Mapping| mapping.is_plain() && mapping.protection == libc::PROT_NONE;
    // The kernel may have merged reserved address space with address space of the host.
    let reserved = maps
        .iter()
        .filter(is_reserved)
        .flat_map(|mapping| beside.iter().map(|part| mapping.start.max(part.start)..mapping.end.min(part.end)));
    let own = own_parts(&maps, inode, base, range).map(|part| part.start..part.end);
    for part in own.chain(reserved).filter(|part| !part.is_empty()) {
        // SAFETY: the caller promises that nobody uses these mappings any longer, and that the library reserved `beside`.
        unsafe { code_memory::unmap(part.start, part.end - part.start) };
    }
    Ok(())
}

/// Returns the parts of a range that are mappings of the file with the inode number `inode`. `maps` is a list of mappings that
/// the caller has read.
///
/// The comparison with `base` excludes a file of another file system that has the same inode number.
pub fn own_parts(
    maps: &[Mapping],
    inode: Option<u64>,
    base: u64,
    range: Range<u64>,
) -> impl Iterator<Item = Mapping> + use<'_> {
    let Range { start, end } = range;
    let is_own = move |mapping: &&Mapping| {
        let begin = mapping.start.checked_sub(mapping.offset);
        mapping.start < end && start < mapping.end && Some(mapping.inode) == inode && begin == Some(base)
    };
    let part = move |mapping: &Mapping| {
        let from = mapping.start.max(start);
        let offset = mapping.offset + (from - mapping.start);
        Mapping { start: from, end: mapping.end.min(end), offset, ..*mapping }
    };
    maps.iter().filter(is_own).map(part)
}
