//! Adopts the host's own memory as a region: replaces the memory by a private mapping of a file that has the same bytes.
//! Running threads do not notice the replacement, and the library can undo it.

use std::io;
use std::sync::atomic::Ordering;

use super::address_space::reach_above;
use super::addresses::Placement;
use super::create::SIZE_MAX;
use super::exchange::{self, exchange, take_back};
use super::file::RegionFile;
use super::file_names::can_begin_at_code;
use super::new_file::New;
use super::regions::{refused, Regions};
use super::state::{Backing, Parts, Region};
use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::mapping::{page_size, reserve_at};
use crate::sys::maps::{self, Mapping};
use crate::sys::page_facts::Untouched;
use crate::sys::{debug, reserve, thread};

/// The maximum distance from code to its unwind tables, which contain this distance as a 32-bit number.
pub(super) const TABLES_REACH: u64 = 0x7000_0000;
/// The library maps nothing below this address.
const LOWEST: u64 = 1 << 16;
/// The maximum distance from the header page up to the code, and thus the maximum size of the hole between them in the file.
const HEADER_REACH: u64 = 16 << 20;
/// The header page of the first region at an address lies this number of pages below the code, if these pages are free. If the
/// region ends, the header page of the next region at this address lies nearer to the code.
const APART: u64 = 16;
/// The memory below a range may be an arena only if at least this number of bytes right below the range look unused: see
/// `may_be_arena`.
const ARENA_LEAST: u64 = 64 << 10;
/// The preferred distance between the code and its tables is the length of the code, but at most this number of bytes. The host
/// may later add memory at the end of the code.
const GROWTH_NEAR: u64 = 32 << 20;
/// If the process has more regions than this number, newly adopted regions keep no open descriptor in the host's descriptor
/// table.
const OPEN_MOST: usize = 256;
/// How many times the library calls `swap` for one region if forks disturb `swap`.
pub(super) const ATTEMPTS: u32 = 4;

impl Regions {
    /// Turns memory of the host into a region. During this call, other threads may execute the memory, but must not write to it
    /// or change its protection.
    pub fn adopt(&self, status: &Status, addr: u64, size: u64) -> Result<()> {
        let page = page_size() as u64;
        if size == 0 {
            return Err(Error::SizeZero);
        }
        if !addr.is_multiple_of(page) || !size.is_multiple_of(page) {
            return Err(Error::Alignment);
        }
        let end = addr.checked_add(size).filter(|_| addr != 0).ok_or(Error::AddressRange)?;
        let _changing = self.begin_change()?;
        let maps = self.all_mapped(status).map_err(|_| Error::NoMemory)?;
        self.adopt_range(status, &maps, addr, end).map(drop)
    }

    /// Whether any part of a range belongs to a region, or may belong to a region that grows later.
    pub(super) fn overlap(&self, start: u64, end: u64) -> bool {
        let overlaps = |region: &Region| {
            let (from, to) = (start.max(region.start()), end.min(region.start() + region.place.max_len));
            from < to && !region.pages.all_lost(from, to)
        };
        self.all().any(|region| overlaps(region) && region.gone() == NEVER)
    }

    pub(super) fn adopt_range(
        &self,
        status: &Status,
        maps: &[Mapping],
        start: u64,
        end: u64,
    ) -> Result<&'static Region> {
        if !status.sinks().has(Sinks::REGION) {
            return Err(Error::NotRunning);
        }
        if end - start > SIZE_MAX {
            return Err(Error::TooLarge);
        }
        if reserve::is_short() {
            return Err(Error::NoMemory);
        }
        if self.overlap(start, end) {
            return Err(Error::Region);
        }
        // If the calling thread's own stack lay in the range, the thread would continue with an outdated copy of the stack. The
        // stacks of other threads are not checked, because the kernel does not report their addresses.
        if thread::has_stack_in(start, end) {
            return Err(Error::NotPlain);
        }
        if code_memory::has_locked_memory() {
            return Err(Error::Locked);
        }
        let pieces = pieces(maps, start, end)?;
        if self.is_full(status) {
            return Err(Error::NoMemory);
        }
        let place = self.place_beside(maps, start, end)?;
        self.swap_range(status, &pieces, &place).inspect_err(|_| {
            // SAFETY: the range was reserved for tables, and nobody in this process reads the tables.
            unsafe { place.unmap_tables() };
        })
    }

    /// Reserves address space for the header page below a range, and for the tables above the range. If there is no room above
    /// the range, the header page and the tables both lie below the range.
    fn place_beside(&self, maps: &[Mapping], start: u64, end: u64) -> Result<Placement> {
        let mut again;
        let mut maps = maps;
        let (page, tables_len) = (page_size() as u64, RegionFile::tables_room(end - start));
        let (lowest, highest) =
            (start.saturating_sub(TABLES_REACH - (end - start)).max(LOWEST), reach_above(start, TABLES_REACH));
        for _ in 0..8 {
            let wish = end + (end - start).min(GROWTH_NEAR);
            let tables = maps::gap(maps, end + page, highest, tables_len, page, wish);
            let (base, header_len) = match tables {
                // The host may later add code to the arena below the range, so no header page is placed below the range. If the
                // files are in `/tmp`, the object begins alternately at the code and one page below the code (see
                // `Region::can_begin_at_code`). This page is the last page of the arena.
                Some(_) if may_be_arena(maps, start) => {
                    let can = can_begin_at_code(&self.settings().dir);
                    (if can { start - page } else { start }, 0)
                }
                Some(_) => self.header_below(maps, start, end),
                None => {
                    let wish = start.saturating_sub(page + tables_len);
                    let base = maps::gap(maps, lowest, start, page + tables_len, page, wish).ok_or(Error::NoMemory)?;
                    (base, page)
                }
            };
            let tables = tables.unwrap_or(base + page);
            let (below, above) = match tables > start {
                true => (header_len, tables_len),
                false => (page + tables_len, 0),
            };
            // Another thread may have mapped memory in these ranges since `maps` was read.
            if reserve_both((base, below), (tables, above)) {
                let begins_below = |above: &Region| above.place.header_len == 0 && above.text() > 0;
                let has_object_above = self.all().any(|above| above.start() == end && begins_below(above));
                let tables = tables..tables + tables_len;
                let max_len = end - start;
                return Ok(Placement { start, max_len, base, header_len, tables, has_object_above, marks_hint: 0 });
            }
            again = maps::all().map_err(|_| Error::NoMemory)?;
            maps = &again;
        }
        Err(Error::NoMemory)
    }

    /// Returns the address and the length of the range to reserve for the header page. The range lies below the region's code,
    /// with no other code between them. If there is no room below the code, returns the start of the code and the length 0: the
    /// header page and the first page of the code then have the same address.
    ///
    /// perf 7.2 confuses two objects that begin at the same address. If one object lies inside another object that begins at a
    /// lower address, perf's libdw finds neither object (elfutils libdwfl/segment.c, `reify_segments`).
    fn header_below(&self, maps: &[Mapping], start: u64, end: u64) -> (u64, u64) {
        let page = page_size() as u64;
        // A mapping that begins below the range may reach into the range, because the kernel merges adjacent mappings with the
        // same properties.
        let below = || maps.iter().filter(|mapping| mapping.start < start);
        let code = below().filter(|mapping| mapping.is_executable()).map(|mapping| mapping.end.min(start)).max();
        let regions = self.all().filter(|region| region.start() < start).map(Region::end).max();
        let taken = code.max(regions).max(reach_of_last(maps, start)).unwrap_or(0);
        let low = taken.max(start.saturating_sub(HEADER_REACH)).max(LOWEST);
        let low = self.last_beginning(maps, end - page).map_or(low, |last| low.max(last + page));
        let nearest = start.saturating_sub(APART * page).max(low);
        let free = below().next_back().map_or(nearest, |mapping| nearest.max(mapping.end));
        if free < start {
            // The reserved range ends where the code begins, so that nothing else can be mapped between the header page and the
            // code later.
            return (free, start - free);
        }
        maps::gap(maps, low, nearest, page, page, nearest).map_or((start, 0), |base| (base, page))
    }

    /// Returns the highest address below `end` at which an object begins. Objects of ended regions are included.
    fn last_beginning(&self, maps: &[Mapping], end: u64) -> Option<u64> {
        let objects = maps.iter().filter(|mapping| is_object(mapping));
        let mapped = objects.map(|mapping| mapping.start.saturating_sub(mapping.offset));
        let ended = self.settings().bases.range(..end).next_back().map(|(&base, _)| base);
        mapped.filter(|&begin| begin < end).max().max(ended)
    }

    fn swap_range(&self, status: &Status, pieces: &[Mapping], place: &Placement) -> Result<&'static Region> {
        // The object may begin one page below the code, in memory of the host (see `place_beside`). If the code is a single
        // executable mapping, the object at first begins at the code.
        let is_in_memory_below = (place.base, place.header_len) == (place.start - page_size() as u64, 0);
        let at_code = is_in_memory_below && matches!(pieces, [one] if one.is_executable());
        let mut attempts = 1;
        let (parts, path) = loop {
            let new = self.new_file(status, at_code).map_err(|text| refused(status, text))?;
            let path = new.naming.path.clone();
            match swap(new, place, pieces) {
                Ok(parts) => break (parts, path),
                // A forked child may have mapped this file, so the file must stay unchanged. The next attempt makes another
                // file.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts < ATTEMPTS => attempts += 1,
                Err(error) => return Err(refused(status, describe("map", &path, &error))),
            }
        };
        let region = self.publish_swapped(status, pieces, parts)?;
        if self.all().count() > OPEN_MOST {
            region.naming().let_go();
        }
        let (start, end) = (region.start(), region.end());
        debug::say(format_args!("memory [{start:#x}, {end:#x}) is adopted; its file is {}", path.display()));
        Ok(region)
    }

    /// Publishes a region whose memory `swap` has replaced by mappings of the file. After an error, the memory is plain memory
    /// again, and the file is removed.
    pub(super) fn publish_swapped(&self, status: &Status, pieces: &[Mapping], parts: Parts) -> Result<&'static Region> {
        let path = parts.naming.path.clone();
        self.publish(status, parts).inspect_err(|_| {
            take_back(pieces);
            let _ = std::fs::remove_file(path);
        })
    }
}

/// Reserves two ranges of address space, or neither of them. Each range is given by its start and length.
pub(super) fn reserve_both(one: (u64, u64), other: (u64, u64)) -> bool {
    let reserved = |(at, len): (u64, u64)| len == 0 || reserve_at(at, len).is_some();
    if !reserved(one) {
        return false;
    }
    let both = reserved(other);
    if !both {
        // SAFETY: the range was just reserved, and nobody else uses it.
        unsafe { code_memory::unmap(one.0, one.1) };
    }
    both
}

pub(super) fn is_object(mapping: &Mapping) -> bool {
    mapping.inode != 0 && mapping.is_executable()
}

/// Returns the address at which the last object before `start` ends according to perf 7.2. perf assumes that the distance from
/// an object's beginning to its code is the same in memory and in the file. Some linkers (lld) make the distance in memory
/// larger than the distance in the file. For such an object, perf assumes a beginning and an end that are too high by the
/// difference between the two distances.
fn reach_of_last(maps: &[Mapping], start: u64) -> Option<u64> {
    let at = maps.iter().rposition(|mapping| mapping.start < start && is_object(mapping))?;
    let code = maps[at];
    let first = maps[..=at].iter().rfind(|mapping| mapping.inode == code.inode && mapping.offset == 0);
    let farther = first.map_or(0, |first| (code.start - first.start).saturating_sub(code.offset));
    // The last part of an object may be memory without a file.
    let rest = maps[at..].windows(2).take_while(|pair| pair[0].end == pair[1].start);
    Some(rest.last().map_or(code, |pair| pair[1]).end + farther)
}

/// Whether the memory right below an address looks like an arena, which is memory that the host has reserved for later code. A
/// program with several arenas often maps all of them before it uses the first arena.
fn may_be_arena(maps: &[Mapping], end: u64) -> bool {
    let start = end.saturating_sub(ARENA_LEAST);
    let below = || maps::overlapping(maps, start, end).iter().filter(|mapping| mapping.is_plain());
    let len: u64 = below().map(|mapping| mapping.len_within(start, end)).sum();
    len == ARENA_LEAST
        && below().any(|mapping| mapping.protection != 0)
        && Untouched::new().is_some_and(|untouched| untouched.has_all(start, end))
}

/// Returns the mappings of a range. Fails if the range has a gap, or contains memory that cannot be adopted.
fn pieces(maps: &[Mapping], start: u64, end: u64) -> Result<Vec<Mapping>> {
    let mut pieces = Vec::new();
    let mut next = start;
    for mapping in maps::overlapping(maps, start, end) {
        if mapping.start > next || !mapping.is_plain() {
            return Err(Error::NotPlain);
        }
        next = mapping.end.min(end);
        pieces.try_reserve(1).map_err(|_| Error::NoMemory)?;
        pieces.push(Mapping { start: mapping.start.max(start), end: next, ..*mapping });
    }
    if next < end {
        return Err(Error::NotPlain);
    }
    look_up_attributes(&mut pieces)?;
    Ok(pieces)
}

/// Looks up the attributes of memory that is to be adopted. Fails if a mapping of a file cannot have the same attributes.
pub(super) fn look_up_attributes(pieces: &mut [Mapping]) -> Result<()> {
    maps::look_up_attributes(pieces).map_err(|_| Error::NoMemory)?;
    let suit = pieces.iter().all(|piece| piece.attributes.suit_a_file());
    suit.then_some(()).ok_or(Error::NotPlain)
}

/// Replaces pieces of memory by mappings of a file, with the same bytes and protections, and maps the file's tables.
pub(super) fn swap(new: New, place: &Placement, pieces: &[Mapping]) -> io::Result<Parts> {
    let len = place.max_len;
    let both = READ_WRITE | READ_EXEC;
    let never_flips = pieces.iter().any(|piece| piece.protection == both);
    new.put_in_place(place.clone(), len, |naming, memory| {
        memory.set_len(place.text() + len)?;
        place.mark(memory)?;
        place.check_private_exec(memory, if never_flips { both } else { READ_EXEC })?;
        place.map_tables(Sharing::Private, memory, |_| true)?;
        for (done, piece) in pieces.iter().enumerate() {
            exchange(piece, memory, place.base, true).inspect_err(|_| take_back(&pieces[..done]))?;
        }
        // In the file, the header page may take the place of the first page of the code. The process already has its own copy
        // of the first page of the code, so writing the header does not change the code.
        let file = naming.create_file(memory.clone(), place.layout(len, true)).inspect_err(|_| take_back(pieces))?;
        Ok((Backing::Private { adopted: true, never_flips }, file))
    })
}

impl Region {
    /// Turns those parts of the region that are still mappings of the region's file back into plain memory. If memory is short,
    /// nothing changes.
    pub(super) fn make_plain(&self) -> Result<()> {
        let mut mapped = self.mapped().map_err(|_| Error::NoMemory)?;
        maps::look_up_attributes(&mut mapped).map_err(|_| Error::NoMemory)?;
        exchange::make_plain(&mapped).map_err(|_| Error::NoMemory)?;
        self.has_failed.store(true, Ordering::Relaxed);
        Ok(())
    }
}
