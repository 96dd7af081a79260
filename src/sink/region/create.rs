//! Makes new regions: code memory that is a mapping of an ELF file, in which profilers find the names of the code. If the file
//! cannot be made, the region has no such file.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::address_space::{place, Room};
use super::addresses::Placement;
use super::exchange::provide_if_possible;
use super::file::RegionFile;
use super::lost_pages::Pages;
use super::naming::Naming;
use super::new_file::New;
use super::regions::{refused, Regions};
use super::state::{Backing, Parts, Region};
use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sys::code_memory::{self, Advice, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::file::Held;
use crate::sys::mapping::page_size;
use crate::sys::{debugger, reserve};

/// The wanted properties of a region of code memory; see `jitsym_region_options` in the C header. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionOptions {
    /// The initial size of the region. The size is rounded up to whole pages, and may be at most 1 GiB.
    pub size: u64,
    /// The largest size that [`Session::grow_region`](crate::Session::grow_region) can give the region. Address space of this
    /// size is reserved. 0 means `size`.
    pub max_size: u64,
    /// The alignment of the start address of the view where code runs. The alignment must be a power of two, and at most 512
    /// MiB. 0 means the page size.
    pub alignment: u64,
    /// A signed 32-bit displacement, as in x86-64 calls and jumps, reaches all code of the region from this address. 0 means
    /// that the region may lie anywhere.
    pub near: u64,
    /// The region is mapped once, as a private mapping that is writable at first. The runtime itself changes the protection of
    /// this mapping.
    pub one_view: bool,
    /// The region is aligned to 2 MiB, and uses huge pages if the kernel has huge pages for this memory.
    pub huge: bool,
}

/// A region of code memory that [`Session::create_region`](crate::Session::create_region) has made. The struct may be copied,
/// and dropping it unmaps nothing. The memory stays mapped until [`Session::release_region`](crate::Session::release_region)
/// unmaps it, or until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRegion {
    /// The address where code runs, and with which code is registered. The memory at this address is readable and executable,
    /// but with [`one_view`](RegionOptions::one_view) it is at first readable and writable.
    pub exec: u64,
    /// The address where code is written. The memory at this address is readable and writable, and contains zeros at first.
    /// With [`one_view`](RegionOptions::one_view), `write` is equal to `exec`.
    pub write: u64,
    /// The size in bytes, a multiple of the page size.
    pub size: u64,
}

const HUGE_PAGE: u64 = 2 << 20;
/// The maximum size of a region. The size is limited because the distances between code and unwind tables are 32-bit numbers.
pub const SIZE_MAX: u64 = 1 << 30;

const ALIGNMENT_MAX: u64 = 512 << 20;

const ONE_VIEW: Backing = Backing::Private { adopted: false, never_flips: false };

impl Regions {
    /// Makes a region with a file that profilers find. If the file cannot be made, the region has no such file, and the other
    /// sinks report the region's code.
    pub fn create(&self, status: &Status, wanted: &RegionOptions) -> Result<CodeRegion> {
        let max_len = wanted.max_size.max(wanted.size);
        if wanted.size == 0 {
            return Err(Error::SizeZero);
        }
        if max_len > SIZE_MAX || wanted.alignment > ALIGNMENT_MAX {
            return Err(Error::TooLarge);
        }
        if wanted.alignment != 0 && !wanted.alignment.is_power_of_two() {
            return Err(Error::Alignment);
        }
        let whole = |len: u64| code_memory::whole_pages(len).ok_or(Error::TooLarge);
        let (len, max_len) = (whole(wanted.size)?, whole(max_len)?);
        let huge = if wanted.huge { HUGE_PAGE } else { 0 };
        let alignment = wanted.alignment.max(page_size() as u64).max(huge);
        let _changing = self.begin_change()?;
        if self.is_full(status) || reserve::is_short() {
            return Err(Error::NoMemory);
        }
        let room = place(RegionFile::tables_room(max_len), max_len, alignment, wanted.near)?;
        let made = self.with_file(status, wanted, &room, len).or_else(|| without_file(wanted, &room, len));
        let Some(parts) = made else {
            // SAFETY: the address space was just reserved, and nobody else knows of it.
            unsafe { room.unmap() };
            return Err(Error::NoMemory);
        };
        let start = parts.place.start;
        let write = if let Backing::TwoViews { write } = parts.kind { write } else { start };
        if wanted.huge {
            code_memory::advise(start, len, Advice::HugePage);
            code_memory::advise(write, len, Advice::HugePage);
        }
        let (named, path) = (parts.file.is_some(), parts.naming.path.clone());
        if let Err(error) = self.publish(status, parts) {
            // SAFETY: the region was not published, so nobody else knows of it.
            unsafe { room.unmap() };
            if named {
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
        if wanted.one_view {
            // SAFETY: the region has no second view, so nobody uses this address space.
            unsafe { code_memory::unmap(room.write, max_len) };
        }
        Ok(CodeRegion { exec: start, write, size: len })
    }

    /// Makes a region with a file that profilers find. If the file cannot be made, records the reason and returns `None`.
    fn with_file(&self, status: &Status, wanted: &RegionOptions, room: &Room, len: u64) -> Option<Parts> {
        let made = match status.sinks().has(Sinks::REGION) {
            true => self.new_file(status, false).and_then(|new| {
                let path = new.naming.path.clone();
                fill(new, wanted, room, len).map_err(|error| describe("map", &path, &error))
            }),
            false => Err("a region has no file: the sink for them does not run".into()),
        };
        self.without_files.store(made.is_err(), Ordering::Relaxed);
        made.map_err(|text| refused(status, text)).ok()
    }
}

impl Regions {
    /// Makes the executable views of regions with two views writable if a debugger listens, and takes away the right to write
    /// otherwise. A debugger can write its breakpoints to a shared mapping only if the mapping is writable (linux mm/gup.c,
    /// `check_vma_flags`). The views cannot be private, because a page with a breakpoint would then no longer show what the
    /// host writes in the other view.
    pub fn heed_debugger(&self) {
        let wanted = READ_EXEC | if debugger::is_watched() { READ_WRITE } else { 0 };
        let differs = |region: &Region| !region.is_private() && region.exec.load(Ordering::Relaxed) != wanted;
        if !self.all().any(differs) {
            return;
        }
        let Some(_changing) = self.begin_change_unless_forking() else { return };
        for region in self.all().filter(|region| differs(region)) {
            let _naming = region.naming();
            let protect = |protection| {
                // SAFETY: this thread holds `_changing`, so no other thread can end the region, and the region stays mapped.
                // The code of the region stays executable.
                unsafe { code_memory::protect(region.start(), region.len(), protection) }
            };
            match protect(wanted) {
                Ok(()) => region.exec.store(wanted, Ordering::Relaxed),
                // The failed call may have changed the protection of a part of the view.
                Err(_) => _ = protect(READ_EXEC),
            }
        }
    }

    /// Whether the executable view of any region is writable now, because a debugger listens.
    pub fn any_writable(&self) -> bool {
        self.all().any(|region| region.exec.load(Ordering::Relaxed) != READ_EXEC)
    }
}

/// Maps the file of a region into the reserved address space.
fn fill(new: New, wanted: &RegionOptions, room: &Room, len: u64) -> io::Result<Parts> {
    let place = &room.place;
    let filled = new.put_in_place(place.clone(), len, |naming, text| {
        let file = naming.create_file(text.clone(), place.layout(len, wanted.one_view))?;
        if wanted.one_view {
            place.check_private_exec(text, READ_WRITE)?;
            provide_if_possible(text, place.text(), len)?;
            place.map_tables(Sharing::Private, text, |_| true)?;
            // SAFETY: the room was reserved for this mapping, and nobody else knows of it.
            unsafe { code_memory::map_over(place.start, len, READ_WRITE, Sharing::Private, text, place.text())? };
            return Ok((ONE_VIEW, file));
        }
        code_memory::provide(text, place.text(), len)?;
        map_two_views(text, place, room.write, len)?;
        Ok((Backing::TwoViews { write: room.write }, file))
    });
    filled.inspect_err(|_| {
        // SAFETY: nobody else knows of this address space.
        let _ = unsafe { code_memory::reserve_over(place.base, place.tables.end - place.base) };
    })
}

/// Maps a file twice, for the two views of a region. The new mappings replace reserved address space, or the mappings of the
/// region's earlier file. A forked child must not write to its parent's file, so the writable view is replaced first.
pub(super) fn map_two_views(file: &File, place: &Placement, write: u64, len: u64) -> io::Result<()> {
    let (start, text) = (place.start, place.text());
    // SAFETY: both ranges belong to the region. If the region is new, nobody else knows of the ranges. If the process was just
    // forked, it has only one thread. In all other cases, the file has the same bytes as the memory, so threads that run code
    // notice nothing.
    unsafe {
        code_memory::map_over(write, len, READ_WRITE, Sharing::Shared, file, text)?;
        // If the tables cannot be mapped, the second view is mapped nevertheless, because both views must show the same file.
        // Few readers look for the unwind tables in memory.
        let _ = place.map_tables(Sharing::Shared, file, |_| true);
        code_memory::map_over(start, len, READ_EXEC, Sharing::Shared, file, text)
    }
}

/// Makes a region without a file for profilers.
fn without_file(wanted: &RegionOptions, room: &Room, len: u64) -> Option<Parts> {
    let place = &room.place;
    let (kind, held) = if wanted.one_view {
        // SAFETY: the room was reserved for this memory, and nobody else knows of it.
        unsafe { code_memory::move_over(code_memory::anonymous(len).ok()?, place.start, len).ok()? };
        (ONE_VIEW, None)
    } else {
        let file = code_memory::nameless_file().ok()?;
        file.set_len(place.text() + place.max_len).ok()?;
        // A sandbox may forbid `fallocate`. The kernel then provides each page at the first access.
        let provided = code_memory::provide(&file, place.text(), len);
        provided.or_else(|error| if is_full(&error) { Err(error) } else { Ok(()) }).ok()?;
        map_two_views(&file, place, room.write, len).ok()?;
        (Backing::TwoViews { write: room.write }, Some(Arc::new(Held::new(file).ok()?)))
    };
    let pages = Pages::new(place.start, place.max_len);
    Some(Parts { place: place.clone(), kind, len, pages, naming: Naming::nameless(held), file: None, inherited: None })
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM))
}
