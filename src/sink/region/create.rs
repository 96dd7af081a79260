//! Regions that the library makes: where they are placed, how they grow, what is given back, and their end.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::{lock, slides, Kind, Naming, Parts, Region, Regions, Settings, NEVER};
use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::queue::apart;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sink::region::file::{Place, RegionFile};
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held};
use crate::sys::maps;
use crate::sys::mem::{page_size, Reserved};
use crate::sys::memory;

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
pub(super) const SIZE_MAX: u64 = 1 << 30;
const ALIGNMENT_MAX: u64 = 512 << 20;
/// How far a 32-bit displacement reaches, from anywhere in an instruction.
const REACH: u64 = (1 << 31) - (1 << 16);
/// Files that have a larger hole between tables and text have no build-id.
const HOLE_MOST: u64 = 64 << 20;
/// Nothing is mapped below.
const LOWEST: u64 = 1 << 16;
const HIGHEST: u64 = 1 << 47;

impl Regions {
    /// Makes a region. If its file cannot be had it is plain memory, and what is registered in it goes to the other sinks.
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
        let _changing = self.changing.begin();
        if self.is_full() || memory::is_short() {
            return Err(Error::NoMemory);
        }
        // So that the text is aligned in the file as it is in memory.
        let tables_len = (RegionFile::tables_room(max_len) + slides::spare(max_len)).next_multiple_of(alignment);
        let (base, write) = place(tables_len, max_len, alignment, wanted.near)?;
        let room = Room { base, tables_len, len, max_len, write };
        let made = self.with_file(status, wanted, &room).or_else(|| without_file(wanted, &room));
        let Some(parts) = made else {
            // SAFETY: it was just set aside, and nobody has it.
            unsafe { unmap_all(&room) };
            return Err(Error::NoMemory);
        };
        let start = parts.start;
        let write = if let Kind::TwoViews { write } = parts.kind { write } else { start };
        if wanted.huge {
            // All of a mapping, which is not to fall into two.
            code_memory::advise_huge(if wanted.one_view { start } else { base }, start + len - base);
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
            true => self.new_file(status, !wanted.one_view).and_then(|new| {
                let path = new.naming.path.clone();
                fill(new, wanted, room).map_err(|error| describe("map", &path, &error))
            }),
            false => Err("a region has no file: the sink for them does not run".into()),
        };
        made.map_err(|text| {
            status.counters.region_refused.add(1);
            status.last_error.set(text);
        })
        .ok()
    }

    /// A new file for a region, with a name of its own. `slides`: its generations can begin at different places.
    pub(super) fn new_file(&self, status: &Status, slides: bool) -> std::result::Result<New, String> {
        const ATTEMPTS: u32 = 1000;
        let mut settings = lock(&self.settings);
        let dir = settings.open_dir().map_err(|error| describe("open", &settings.dir, &error))?;
        let mut attempt = 0;
        loop {
            let number = settings.next_number;
            settings.next_number += 1;
            let stem = match slides && settings.dir == Path::new("/tmp") {
                true => format!("jitted-{}-r{number}", status.pid),
                false => format!("jit-{}-{number}", status.pid),
            };
            let name = OsString::from(format!("{stem}.so"));
            let path = settings.dir.join(&name);
            match file::claim_to_place(&dir, &name, settings.mode) {
                Ok(file) => {
                    let file = Held::new(file).map_err(|error| describe("open", &path, &error))?;
                    let file = Arc::new(file);
                    let naming = Naming::new(dir, path, file.clone(), stem);
                    return Ok(New { naming, file });
                }
                Err(error) if attempt < ATTEMPTS && file::is_anothers(&error) => attempt += 1,
                Err(error) => return Err(describe("create", &path, &error)),
            }
        }
    }

    /// Makes a region larger, at its end.
    pub fn grow(&self, start: u64, size: u64) -> Result<()> {
        let _changing = self.changing.begin();
        let region = self.starting(start)?;
        let Kind::TwoViews { write } = region.kind else { return Err(Error::Region) };
        let (old, new) = (region.len(), code_memory::whole_pages(size).ok_or(Error::TooLarge)?);
        if new > region.max_len {
            return Err(Error::TooLarge);
        }
        if new <= old {
            return Ok(());
        }
        let file = lock(&region.naming).file().map_err(|_| Error::SinkFailed)?;
        let (offset, more) = (region.text() + old, new - old);
        let grown = code_memory::provide(&file, offset, more).and_then(|()| {
            // SAFETY: both ranges were set aside for this, and nobody uses them yet.
            unsafe {
                code_memory::map_over(write + old, more, READ_WRITE, Sharing::Shared, &file, offset)?;
                code_memory::map_over(start + old, more, READ_EXEC, Sharing::Shared, &file, offset)
            }
        });
        grown.map_err(|_| Error::NoMemory)?;
        if let Some(file) = region.opened().as_mut() {
            file.set_text_len(new).map_err(|_| Error::NoMemory)?;
        }
        region.len.store(new, Ordering::Release);
        Ok(())
    }

    /// Gives whole pages back; they read zero afterwards.
    pub fn discard(&self, addr: u64, size: u64) -> Result<()> {
        let page = page_size() as u64;
        if size == 0 {
            return Err(Error::SizeZero);
        }
        if !addr.is_multiple_of(page) || !size.is_multiple_of(page) {
            return Err(Error::Alignment);
        }
        let region = self.all().find(|region| region.holds(addr, size)).ok_or(Error::Region)?;
        let mut naming = lock(&region.naming);
        // Without the descriptor, which a host may have closed, the file would be shown again.
        if naming.has_file() {
            let file = naming.file().map_err(|_| Error::SinkFailed)?;
            if region.is_of_parent {
                return Err(Error::SinkFailed);
            }
            code_memory::punch(&file, addr - region.base, size).map_err(|_| Error::NoMemory)?;
        }
        if matches!(region.kind, Kind::Private { .. }) {
            // SAFETY: the caller gives these pages up.
            unsafe { code_memory::drop_pages(addr, size) }.map_err(|_| Error::NoMemory)?;
        }
        Ok(())
    }

    fn starting(&self, start: u64) -> Result<&'static Region> {
        let mut all = self.all().filter(|region| region.start == start && region.gone() == NEVER);
        // What begins where a part of another one was lost is meant before that.
        let first = all.next();
        all.find(|region| !region.lost.any(start, start + 1)).or(first).ok_or(Error::Region)
    }

    /// Ends a region: a created one is unmapped, an adopted one becomes plain memory again, with the same bytes. What is
    /// registered in it should have been written before.
    pub fn release(&self, status: &Status, start: u64) -> Result<()> {
        let _changing = self.changing.begin();
        let region = self.starting(start)?;
        let had_file = lock(&region.naming).has_file();
        // Where the host has mapped something else since, that is not ours to unmap.
        let mapped = match region.kind {
            Kind::Private { adopted: false, .. } if had_file => region.mapped().map_err(|_| Error::NoMemory)?,
            _ => Vec::new(),
        };
        if let Kind::Private { adopted: true, .. } = region.kind {
            region.make_plain()?;
        }
        if !self.end(status, region) {
            // The host had unmapped it, and the writer was faster.
            return Ok(());
        }
        let Region { base, tables_len, max_len, kind, .. } = *region;
        match kind {
            // SAFETY: the caller gives the memory up, or it holds our tables, which nobody reads there.
            Kind::Private { adopted: true, .. } => unsafe { code_memory::unmap(base, tables_len) },
            // SAFETY: as above.
            Kind::Private { .. } if had_file => unsafe {
                code_memory::unmap(base, tables_len);
                mapped.iter().for_each(|piece| code_memory::unmap(piece.start, piece.end - piece.start));
                if region.len() < max_len {
                    code_memory::unmap(region.end(), max_len - region.len());
                }
            },
            // SAFETY: as above.
            Kind::Private { .. } => unsafe { code_memory::unmap(base, tables_len + max_len) },
            // SAFETY: as above.
            Kind::TwoViews { write } => unsafe {
                unmap_all(&Room { base, tables_len, len: region.len(), max_len, write })
            },
        }
        Ok(())
    }

    /// The host has unmapped a region, and all code of it has been seen: ends it.
    pub fn end_gone(&self, status: &Status, region: &'static Region) {
        if self.end(status, region) {
            // SAFETY: these are the tables, which nobody reads there, and of which the host does not know.
            unsafe { code_memory::unmap(region.base, region.tables_len) };
        }
    }

    /// The region is none any more; its file is final. False if another thread has ended it.
    fn end(&self, status: &Status, region: &'static Region) -> bool {
        if !self.forget(region) {
            return false;
        }
        let left = lock(&region.naming).take_of_writer();
        lock(&self.settings).to_close.extend(left);
        let had_file = apart::run(|| {
            let Some(mut file) = region.opened().take() else { return false };
            let _ = file.write(true).and_then(|()| file.finish(region.build_id()));
            file.give_text_back();
            true
        });
        if had_file {
            status.counters.regions_ended.add(1);
            self.keep_last(region);
        }
        // The region stays for ever, but need not take much.
        lock(&region.naming).end();
        true
    }
}

/// A file that was made for a region.
pub(super) struct New {
    pub naming: Naming,
    pub file: Arc<Held>,
}

impl Settings {
    /// The directory, which regions share as long as it is the same one: a host has few descriptors.
    fn open_dir(&mut self) -> io::Result<Arc<Dir>> {
        let now = Dir::open(&self.dir)?;
        match &self.last_dir {
            Some(last) if last.is(&now) => Ok(last.clone()),
            _ => Ok(self.last_dir.insert(Arc::new(now)).clone()),
        }
    }
}

/// Address space that was set aside.
struct Room {
    base: u64,
    tables_len: u64,
    len: u64,
    max_len: u64,
    /// For a second view. It lies above all that is executable: perf with libunwind counts from the lowest mapping of a file.
    write: u64,
}

/// Sets address space aside: first the tables, then the text, and somewhere behind it as much again for a second view. Returns
/// where the first and the last begins.
fn place(tables_len: u64, max_len: u64, alignment: u64, near: u64) -> Result<(u64, u64)> {
    let code = tables_len + max_len;
    if near == 0 {
        let total = code + max_len;
        let found = code_memory::reserve(total + alignment).map_err(|_| Error::NoMemory)?;
        let base = found.next_multiple_of(alignment);
        // SAFETY: it was just set aside, and nobody has it.
        unsafe {
            if base > found {
                code_memory::unmap(found, base - found);
            }
            if found + alignment > base {
                code_memory::unmap(base + total, found + alignment - base);
            }
        }
        return Ok((base, base + code));
    }
    for _ in 0..8 {
        let maps = maps::all().map_err(|_| Error::NoMemory)?;
        let low = near.saturating_sub(REACH).max(LOWEST + tables_len) - tables_len;
        let high = near.saturating_add(REACH).min(HIGHEST);
        let Some(base) = maps::gap(&maps, low, high, code, alignment, near) else { break };
        let end = base + code;
        let Some(write) = maps::gap(&maps, end, HIGHEST, max_len, page_size() as u64, end) else { break };
        // Another thread may map something there meanwhile.
        if Reserved::at(base, code).is_none() {
            continue;
        }
        if Reserved::at(write, max_len).is_some() {
            return Ok((base, write));
        }
        // SAFETY: it was just set aside, and nobody has it.
        unsafe { code_memory::unmap(base, code) };
    }
    Err(Error::NoMemory)
}

/// Puts a region's file in its place.
fn fill(new: New, wanted: &RegionOptions, room: &Room) -> io::Result<Parts> {
    let New { mut naming, file } = new;
    let &Room { base, tables_len, len, max_len, .. } = room;
    let start = base + tables_len;
    let filled = (|| {
        let text = file.clone();
        let file = RegionFile::create(
            file,
            Place { text: tables_len, text_len: len, text_room: max_len, tables_len, spare: slides::spare(max_len) },
        )?;
        if wanted.one_view {
            check_private_exec(&text, tables_len, READ_WRITE)?;
            provide_if_possible(&text, tables_len, len)?;
            // SAFETY: the room was set aside for this, and nobody has it.
            unsafe {
                code_memory::map_over(base, tables_len, READ_EXEC, Sharing::Private, &text, 0)?;
                code_memory::map_over(start, len, READ_WRITE, Sharing::Private, &text, tables_len)?;
            }
            return Ok((Kind::Private { adopted: false, never_flips: false }, file));
        }
        code_memory::provide(&text, tables_len, len)?;
        map_two_views(&text, room)?;
        Ok((Kind::TwoViews { write: room.write }, file))
    })();
    match filled {
        Ok((kind, file)) => Ok(Parts { start, len, max_len, base, tables_len, kind, naming, file: Some(file) }),
        Err(error) => {
            // SAFETY: nobody has it.
            let _ = unsafe { code_memory::reserve_over(base, tables_len + max_len) };
            naming.remove();
            Err(error)
        }
    }
}

/// Maps a file for a region with two views.
fn map_two_views(file: &File, room: &Room) -> io::Result<()> {
    let &Room { base, tables_len, len, write, .. } = room;
    // SAFETY: both ranges were set aside for this, and nobody has them.
    unsafe {
        code_memory::map_over(write, len, READ_WRITE, Sharing::Shared, file, tables_len)?;
        code_memory::map_over(base, tables_len + len, READ_EXEC, Sharing::Shared, file, 0)
    }
}

/// The same memory without a file that profilers could open.
fn without_file(wanted: &RegionOptions, room: &Room) -> Option<Parts> {
    let &Room { base, tables_len, len, max_len, write } = room;
    let start = base + tables_len;
    let (kind, held) = if wanted.one_view {
        // SAFETY: the room was set aside for this, and nobody has it.
        unsafe { code_memory::move_over(code_memory::anonymous(len).ok()?, start, len).ok()? };
        (Kind::Private { adopted: false, never_flips: false }, None)
    } else {
        let file = code_memory::nameless_file().ok()?;
        file.set_len(tables_len + max_len).ok()?;
        // A sandbox may forbid that; what is touched is memory as any other then.
        let provided = code_memory::provide(&file, tables_len, len);
        provided.or_else(|error| if is_full(&error) { Err(error) } else { Ok(()) }).ok()?;
        map_two_views(&file, room).ok()?;
        (Kind::TwoViews { write }, Some(Arc::new(Held::new(file).ok()?)))
    };
    let naming = Naming::nameless(held);
    Some(Parts { start, len, max_len, base, tables_len, kind, naming, file: None })
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM))
}

/// # Safety
/// Nobody uses the memory.
unsafe fn unmap_all(room: &Room) {
    // SAFETY: the caller's promise.
    unsafe {
        code_memory::unmap(room.base, room.tables_len + room.max_len);
        code_memory::unmap(room.write, room.max_len);
    }
}

/// Whether memory of this file that has been written to may be executed: not on a file system mounted `noexec`, and not where a
/// security policy forbids it (SELinux `execmod`). A host whose own `mprotect` failed for that would not survive it.
pub(super) fn check_private_exec(file: &File, offset: u64, protection: i32) -> io::Result<()> {
    let page = page_size() as u64;
    let probe = code_memory::reserve(page)?;
    // SAFETY: the page was just set aside, and nobody has it.
    unsafe {
        let checked = code_memory::map_over(probe, page, READ_WRITE, Sharing::Private, file, offset).and_then(|()| {
            (probe as *mut u8).write_volatile(1);
            code_memory::protect(probe, page, protection | READ_EXEC)?;
            code_memory::protect(probe, page, READ_EXEC)
        });
        code_memory::unmap(probe, page);
        checked
    }
}

/// Has the file system provide room for private memory too: in memory (tmpfs) it takes a page of its own for each one that is touched,
/// and the kernel raises SIGBUS if there is none. On a disk, and where it cannot provide any, it takes none for that.
pub(super) fn provide_if_possible(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if file::is_on_disk(file) {
        return Ok(());
    }
    match code_memory::provide(file, offset, len) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result,
    }
}

impl Region {
    /// A name for the contents of its file, which are final.
    pub fn build_id(&self) -> Option<[u8; 20]> {
        // perf keeps a copy of each file that has one, holes and all, unless it can link to it.
        if self.text() - self.tables_len > HOLE_MOST {
            return None;
        }
        let mut id = [0; 20];
        let random = File::open("/dev/urandom").and_then(|source| source.read_at(&mut id, 0));
        if random.is_err() {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            id[..16].copy_from_slice(&now.as_nanos().to_le_bytes());
            id[16..].copy_from_slice(&std::process::id().to_le_bytes());
        }
        Some(id)
    }
}
