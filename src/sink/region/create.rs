//! Regions that the library makes: plain memory, or the mapping of a new file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::address_space::{place, unmap_all, Room};
use super::naming::file_name;
use super::state::{Backing, Parts, Region};
use super::{lock, Naming, Regions, Settings};
use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sink::region::file::RegionFile;
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held};
use crate::sys::mapping::page_size;
use crate::sys::{debug, reserve, rights};

/// What a region of code memory is to be like; see `jitsym_region_options` in the C header. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionOptions {
    /// How large it is at first, rounded up to whole pages; at most 1 GiB.
    pub size: u64,
    /// How large it can become by [`Session::grow_region`](crate::Session::grow_region); address space for that is set aside.
    /// 0: `size`.
    pub max_size: u64,
    /// A power of two, at most 512 MiB, of which the address where code runs is a multiple. 0: that of a page.
    pub alignment: u64,
    /// An address from which all of it can be reached by a displacement of 32 bits with sign, as x86-64 calls and jumps have it. 0:
    /// anywhere.
    pub near: u64,
    /// One private view, writable at first; the runtime changes its protection itself.
    pub one_view: bool,
    /// Aligned to 2 MiB, in huge pages where the file system has them.
    pub huge: bool,
}

/// A region of code memory that [`Session::create_region`](crate::Session::create_region) has made. It is memory as a system call
/// gives it: nothing ends with this struct, which may be copied, but with
/// [`Session::release_region`](crate::Session::release_region) or the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRegion {
    /// Where code runs: readable and executable. This is the address to register code with.
    pub exec: u64,
    /// Where code is written: the same memory, readable and writable, zero at first. With
    /// [`one_view`](RegionOptions::one_view) the same address as `exec`.
    pub write: u64,
    /// Its size in bytes: whole pages.
    pub size: u64,
}

const HUGE_PAGE: u64 = 2 << 20;
/// The largest region, and what it can be aligned to: distances between code and tables are 32-bit numbers.
pub const SIZE_MAX: u64 = 1 << 30;

/// A header page lies at most so many pages below the code where these are free. Those of later regions at the same address lie
/// nearer.
pub(super) const APART: u64 = 16;
const ALIGNMENT_MAX: u64 = 512 << 20;

impl Regions {
    /// Makes a region. If there can be no file it is plain memory, and code in it goes to the other sinks.
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
        let room = place(RegionFile::tables_room(max_len), len, max_len, alignment, wanted.near)?;
        let made = self.with_file(status, wanted, &room).or_else(|| without_file(wanted, &room));
        let Some(parts) = made else {
            // SAFETY: it was just set aside, and nobody has it.
            unsafe { unmap_all(&room) };
            return Err(Error::NoMemory);
        };
        let start = parts.start;
        let write = if let Backing::TwoViews { write } = parts.kind { write } else { start };
        if wanted.huge {
            code_memory::advise_huge(start, len);
            code_memory::advise_huge(write, len);
        }
        let (named, path) = (parts.file.is_some(), parts.naming.path.clone());
        let region = self.marks_for(max_len).and_then(|marks| Region::new(parts, marks));
        if let Err(error) = region.and_then(|region| self.publish(region)) {
            // SAFETY: as above.
            unsafe { unmap_all(&room) };
            if named {
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
        if wanted.one_view {
            // SAFETY: there is no other view.
            unsafe { code_memory::unmap(room.write, max_len) };
        }
        status.counters.regions.add(named.into());
        Ok(CodeRegion { exec: start, write, size: len })
    }

    /// A region with a file that profilers find; `None` if that cannot be, which is noted.
    fn with_file(&self, status: &Status, wanted: &RegionOptions, room: &Room) -> Option<Parts> {
        let made = match status.sinks().has(Sinks::REGION) {
            true => self.new_file(status, false).and_then(|new| {
                let path = new.naming.path.clone();
                fill(new, wanted, room).map_err(|error| describe("map", &path, &error))
            }),
            false => Err("a region has no file: the sink for them does not run".into()),
        };
        self.without_files.store(made.is_err(), Ordering::Relaxed);
        made.map_err(|text| {
            status.counters.region_refused.add(1);
            status.last_error.set(text);
        })
        .ok()
    }

    /// The directory, which regions share as long as it is the same one: a host has few descriptors.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<Dir>> {
        let now = Dir::open(path)?;
        let last = lock(&self.settings).last_dir.clone();
        match last {
            Some(last) if last.is(&now) => Ok(last),
            _ => Ok(lock(&self.settings).last_dir.insert(Arc::new(now)).clone()),
        }
    }

    /// A new file for a region, under an unused name. `at_code`: one of a file whose loaded segment begins at the code.
    pub(super) fn new_file(&self, status: &Status, at_code: bool) -> std::result::Result<New, String> {
        const ATTEMPTS: u32 = 1000;
        if rights::are_more() {
            return Err(format!("a region has no file: {}", rights::WHY_NO_FILE));
        }
        let (dir_path, mode) = {
            let settings = lock(&self.settings);
            (settings.dir.clone(), settings.mode)
        };
        // Nobody who needs the settings waits for the disk.
        let dir = self.open_dir(&dir_path).map_err(|error| describe("open", &dir_path, &error))?;
        let mut attempt = 0;
        loop {
            let number = lock(&self.settings).take_number();
            let name = file_name((status.pid, number), "", at_code);
            let path = dir_path.join(&name);
            match file::claim(&dir, &name, mode, file::ANYWHERE) {
                Ok(file) => {
                    let file = Held::new(file).map_err(|error| describe("open", &path, &error))?;
                    let file = Arc::new(file);
                    let naming = Naming::new(dir, path, file.clone(), (status.pid, number));
                    return Ok(New { naming, file });
                }
                Err(error) if attempt < ATTEMPTS && file::is_anothers(&error) => attempt += 1,
                Err(error) => return Err(describe("create", &path, &error)),
            }
        }
    }
}

/// A file that was made for a region.
pub(super) struct New {
    pub naming: Naming,
    pub file: Arc<Held>,
}

impl Settings {
    /// The number of the next file.
    fn take_number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}

/// Puts a region's file in its place.
fn fill(new: New, wanted: &RegionOptions, room: &Room) -> io::Result<Parts> {
    let New { mut naming, file } = new;
    let &Room { base, start, len, max_len, .. } = room;
    let filled = (|| {
        let text = file.clone();
        let file = RegionFile::create(file, room.layout(wanted.one_view))?;
        if wanted.one_view {
            check_private_exec(&text, room.tables.start, room.tables.start - base, READ_WRITE)?;
            provide_if_possible(&text, start - base, len)?;
            map_tables((base, room.header_len()), start, &room.tables, Sharing::Private, &text)?;
            // SAFETY: the room was set aside for this, and nobody has it.
            unsafe { code_memory::map_over(start, len, READ_WRITE, Sharing::Private, &text, start - base)? };
            return Ok((Backing::Private { adopted: false, never_flips: false }, file));
        }
        code_memory::provide(&text, start - base, len)?;
        map_two_views(&text, room)?;
        Ok((Backing::TwoViews { write: room.write }, file))
    })();
    match filled {
        Ok((kind, file)) => {
            let (header_len, tables) = (room.header_len(), room.tables.clone());
            let (file, has_object_above) = (Some(file), false);
            Ok(Parts {
                start,
                len,
                max_len,
                base,
                header_len,
                has_object_above,
                tables,
                kind,
                mapping_group: None,
                naming,
                file,
            })
        }
        Err(error) => {
            // SAFETY: nobody has it.
            let _ = unsafe { code_memory::reserve_over(base, room.tables.end - base) };
            naming.remove();
            Err(error)
        }
    }
}

/// Maps a file for a region with two views.
fn map_two_views(file: &File, room: &Room) -> io::Result<()> {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let &Room { base, start, len, write, .. } = room;
    if debug::is_on() && !IS_SAID.swap(true, Ordering::Relaxed) {
        debug::say(format_args!(
            "code memory at {start:#x} has two views: gdb and lldb cannot set a breakpoint in it; type hbreak in gdb"
        ));
    }
    map_tables((base, room.header_len()), start, &room.tables, Sharing::Shared, file)?;
    // SAFETY: both ranges were set aside for this, and nobody has them.
    unsafe {
        code_memory::map_over(write, len, READ_WRITE, Sharing::Shared, file, start - base)?;
        code_memory::map_over(start, len, READ_EXEC, Sharing::Shared, file, start - base)
    }
}

/// Maps the header page, if it has address space, and the tables. perf with libunwind looks for tables in the mapping of the file
/// that the code is in, and counts from where the lowest one begins (linux tools/perf/util/unwind-libunwind-local.c,
/// `read_unwind_spec_eh_frame`). The ranges are the caller's.
pub(super) fn map_tables(
    (base, header_len): (u64, u64),
    start: u64,
    tables: &Range<u64>,
    sharing: Sharing,
    file: &File,
) -> io::Result<()> {
    let header_len = header_len.min(page_size() as u64);
    // SAFETY: the caller's; they show the same parts of the same file, or nothing yet, and nobody reads there.
    tables_of(base, start, header_len, tables).into_iter().filter(|range| !range.is_empty()).try_for_each(
        |range| unsafe {
            code_memory::map_over(range.start, range.end - range.start, READ_EXEC, sharing, file, range.start - base)
        },
    )
}

/// # Safety
/// The ranges are the caller's still.
pub(super) unsafe fn unmap_tables((base, header_len): (u64, u64), start: u64, tables: &Range<u64>) {
    // SAFETY: the caller's promise.
    tables_of(base, start, header_len, tables).into_iter().filter(|range| !range.is_empty()).for_each(|range| unsafe {
        code_memory::unmap(range.start, range.end - range.start);
    });
}

/// The header page, or its address space, and the tables. Where they lie below the code they are one.
fn tables_of(base: u64, start: u64, header_len: u64, tables: &Range<u64>) -> [Range<u64>; 2] {
    match tables.start < start {
        true => [base..tables.end, 0..0],
        false => [base..base + header_len, tables.clone()],
    }
}

/// The same memory without a file that profilers could open.
fn without_file(wanted: &RegionOptions, room: &Room) -> Option<Parts> {
    let &Room { base, start, len, max_len, write, .. } = room;
    let (kind, held) = if wanted.one_view {
        // SAFETY: the room was set aside for this, and nobody has it.
        unsafe { code_memory::move_over(code_memory::anonymous(len).ok()?, start, len).ok()? };
        (Backing::Private { adopted: false, never_flips: false }, None)
    } else {
        let file = code_memory::nameless_file().ok()?;
        file.set_len(start - base + max_len).ok()?;
        // A sandbox may forbid that; what is touched is memory as any other then.
        let provided = code_memory::provide(&file, start - base, len);
        provided.or_else(|error| if is_full(&error) { Err(error) } else { Ok(()) }).ok()?;
        map_two_views(&file, room).ok()?;
        (Backing::TwoViews { write }, Some(Arc::new(Held::new(file).ok()?)))
    };
    let naming = Naming::nameless(held);
    let (header_len, tables) = (room.header_len(), room.tables.clone());
    Some(Parts {
        start,
        len,
        max_len,
        base,
        header_len,
        has_object_above: false,
        tables,
        kind,
        mapping_group: None,
        naming,
        file: None,
    })
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM))
}

/// Whether memory of this file that has been written to may be executed: not on a file system mounted `noexec`, and not where a
/// security policy forbids it (SELinux `execmod`). A host whose own `mprotect` failed for that would not survive it.
///
/// The page is where the tables are to be mapped next. perf is told of it, and not that a mapping goes: it takes the
/// lowest mapping of a file for the file's beginning, so that there may be none elsewhere.
pub(super) fn check_private_exec(file: &File, at: u64, offset: u64, protection: i32) -> io::Result<()> {
    let page = page_size() as u64;
    if file.metadata()?.len() < offset + page {
        file.set_len(offset + page)?;
    }
    // SAFETY: the page is for the tables, which nobody reads in this process.
    unsafe {
        code_memory::map_over(at, page, READ_WRITE, Sharing::Private, file, offset)?;
        code_memory::advise_random(at, page);
        let checked = (|| {
            (at as *mut u8).write_volatile(1);
            code_memory::protect(at, page, protection | READ_EXEC)?;
            code_memory::protect(at, page, READ_EXEC)
        })();
        checked.or_else(|error| code_memory::reserve_over(at, page).and(Err(error)))
    }
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
