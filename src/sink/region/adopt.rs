//! Regions that were the host's own memory: a private mapping of a file with the same bytes takes its place, in one step that
//! running threads do not notice, and can be taken back.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::create::{check_private_exec, map_tables, unmap_tables, New, APART, SIZE_MAX};
use super::epoch::can_begin_at_code;
use super::exchange::{exchange, make_plain, take_back};
use super::{lock, Backing, Parts, Region, Regions};
use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sink::region::file::{Layout, RegionFile};
use crate::sys::code_memory::{self, Sharing, READ_EXEC, READ_WRITE};
use crate::sys::mapping::{page_size, Reserved};
use crate::sys::maps::{self, Mapping};
use crate::sys::{debug, reserve, thread, untouched_pages};

/// How far below the code its tables may lie: distances are 32-bit numbers.
const REACH: u64 = 0x7000_0000;
/// Nothing is mapped below.
const LOWEST: u64 = 1 << 16;
/// How far below the code the header page may lie: the file has a hole of that size.
const HEADER_REACH: u64 = 16 << 20;
/// An arena is at least so long.
const ARENA_LEAST: u64 = 64 << 10;
/// Tables lie so far after the code, or as far as it is long: what the host adds to its memory at the end shows the file there.
const GROWTH_NEAR: u64 = 32 << 20;
/// For so many regions the host has a descriptor all the time.
const OPEN_MOST: usize = 256;
/// So often memory is swapped if forks come in between.
const ATTEMPTS: u32 = 4;

impl Regions {
    /// Makes memory of the host a region. Other threads may execute it meanwhile, but not write to it, and nobody may change its
    /// protection.
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

    /// Everything that is mapped. It is held against the regions at once, because those that are made later are not in it.
    pub(super) fn all_mapped(&self, status: &Status) -> io::Result<Vec<Mapping>> {
        let maps = maps::all()?;
        self.check_all(status, &maps);
        Ok(maps)
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
        // The thread would go on with the stack as it was copied. The kernel does not tell where the stacks of others are.
        if thread::has_stack_in(start, end) {
            return Err(Error::NotPlain);
        }
        let pieces = pieces(maps, start, end)?;
        if self.is_full(status) {
            return Err(Error::NoMemory);
        }
        if code_memory::has_locked_memory() {
            return Err(Error::Locked);
        }
        let (header, tables) = self.place_beside(maps, start, end)?;
        let swapped = self.swap_range(status, &pieces, header, tables.clone());
        if swapped.is_err() {
            // SAFETY: it was set aside for tables, which nobody reads there.
            unsafe {
                unmap_tables(header, start, &tables);
            }
        }
        swapped
    }

    /// Sets address space aside for the header page right below a range, and for tables after it. Where there is no room for these,
    /// both lie below. Returns where the file's first byte would be mapped, how much of a header page is, and the tables.
    fn place_beside(&self, maps: &[Mapping], start: u64, end: u64) -> Result<((u64, u64), Range<u64>)> {
        let mut again;
        let mut maps = maps;
        let (page, tables_len) = (page_size() as u64, RegionFile::tables_room(end - start));
        let (lowest, highest) = (start.saturating_sub(REACH - (end - start)).max(LOWEST), start + REACH);
        for _ in 0..8 {
            let wish = end + (end - start).min(GROWTH_NEAR);
            let tables = maps::gap(maps, end + page, highest, tables_len, page, wish);
            let (base, header_len) = match tables {
                // Generations need two beginnings, of which one is in the memory below.
                Some(_) if may_be_arena(maps, start) => {
                    let can = can_begin_at_code(&lock(&self.settings).dir);
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
            // Another thread may map something there meanwhile.
            if reserve_both((base, below), (tables, above)) {
                return Ok(((base, header_len), tables..tables + tables_len));
            }
            again = maps::all().map_err(|_| Error::NoMemory)?;
            maps = &again;
        }
        Err(Error::NoMemory)
    }

    /// Where the header page of a range goes: below it, with nothing between them that is or may become code, or over its first
    /// page where there is no room. perf 7.2 takes an object for another one if they begin at the same address. If one object begins
    /// before another that lies in it, perf's libdw finds neither (elfutils libdwfl/segment.c, `reify_segments`).
    fn header_below(&self, maps: &[Mapping], start: u64, end: u64) -> (u64, u64) {
        let page = page_size() as u64;
        // The kernel makes one mapping of neighbours that are alike.
        let below = || maps.iter().filter(|mapping| mapping.start < start);
        let code = below().filter(|mapping| mapping.is_executable()).map(|mapping| mapping.end.min(start)).max();
        let regions = self.all().filter(|region| region.start < start).map(|region| region.end()).max();
        let taken = code.max(regions).max(reach_of_last(maps, start)).unwrap_or(0);
        let low = taken.max(start.saturating_sub(HEADER_REACH)).max(LOWEST);
        let low = self.last_beginning(maps, end - page).map_or(low, |last| low.max(last + page));
        let nearest = start.saturating_sub(APART * page).max(low);
        let free = below().next_back().map_or(nearest, |mapping| nearest.max(mapping.end));
        if free < start {
            // All of it, so that nothing is mapped between page and code later.
            return (free, start - free);
        }
        maps::gap(maps, low, nearest, page, page, nearest).map_or((start, 0), |base| (base, page))
    }

    /// Where the last of the objects begins that there are, or were, before some address.
    fn last_beginning(&self, maps: &[Mapping], end: u64) -> Option<u64> {
        let objects = maps.iter().filter(|mapping| is_object(mapping));
        let mapped = objects.map(|mapping| mapping.start.saturating_sub(mapping.offset));
        let ended = lock(&self.settings).bases.range(..end).next_back().map(|(&base, _)| base);
        mapped.filter(|&begin| begin < end).max().max(ended)
    }

    fn swap_range(
        &self,
        status: &Status,
        pieces: &[Mapping],
        header: (u64, u64),
        tables: Range<u64>,
    ) -> Result<&'static Region> {
        let range = pieces.first().map_or(0, |first| first.start)..pieces.last().map_or(0, |last| last.end);
        // If it can, the object does not begin in the memory below.
        let at_code = header == (range.start - page_size() as u64, 0) && matches!(pieces, [one] if one.is_executable());
        let begins_below = |above: &Region| above.header_len == 0 && above.base < above.start;
        let has_object_above = self.all().any(|above| above.start == range.end && begins_below(above));
        let mut attempts = 1;
        let (parts, path) = loop {
            let new = self.new_file(status, at_code).map_err(|text| refused(status, text))?;
            let path = new.naming.path.clone();
            match swap(new, range.clone(), pieces, header, tables.clone(), has_object_above) {
                Ok(parts) => break (parts, path),
                // A child may have the file, which stays as it is. The next one is another file.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempts < ATTEMPTS => attempts += 1,
                Err(error) => return Err(refused(status, describe("map", &path, &error))),
            }
        };
        let region = self.make_known(status, pieces, parts, &path, |_| true)?;
        if self.all().count() > OPEN_MOST {
            lock(&region.naming).let_go();
        }
        let (start, end) = (region.start, region.start + region.len());
        debug::say(format_args!("memory [{start:#x}, {end:#x}) is adopted; its file is {}", path.display()));
        Ok(region)
    }

    /// Makes a region of what has been swapped. `prepare` comes before anybody else knows of it; false if there is no memory. After an
    /// error the memory is plain again, and the file is gone.
    pub(super) fn make_known(
        &self,
        status: &Status,
        pieces: &[Mapping],
        parts: Parts,
        path: &Path,
        prepare: impl FnOnce(&Region) -> bool,
    ) -> Result<&'static Region> {
        let made = self.marks_for(parts.max_len).and_then(|marks| Region::new(parts, marks));
        let prepared = made.and_then(|region| if prepare(&region) { Ok(region) } else { Err(Error::NoMemory) });
        let region = prepared.and_then(|region| self.publish(region)).inspect_err(|_| {
            take_back(pieces);
            let _ = std::fs::remove_file(path);
        })?;
        status.counters.regions.add(1);
        Ok(region)
    }
}

pub(super) fn refused(status: &Status, text: String) -> Error {
    status.counters.region_refused.add(1);
    status.last_error.set(text);
    Error::SinkFailed
}

/// Sets two ranges of address space aside, each by its start and length, or neither of them.
pub(super) fn reserve_both(one: (u64, u64), other: (u64, u64)) -> bool {
    let reserved = |(at, len): (u64, u64)| len == 0 || Reserved::at(at, len).is_some();
    if !reserved(one) {
        return false;
    }
    let both = reserved(other);
    if !both {
        // SAFETY: it was just set aside, and nobody has it.
        unsafe { code_memory::unmap(one.0, one.1) };
    }
    both
}

pub(super) fn is_object(mapping: &Mapping) -> bool {
    mapping.inode != 0 && mapping.is_executable()
}

/// Where the last object before an address ends for perf 7.2, which takes code to be as far from an object's beginning as it is in
/// the file. Linkers (lld) may place it farther away. Then the object seems to begin, and to end, by as much later.
fn reach_of_last(maps: &[Mapping], start: u64) -> Option<u64> {
    let at = maps.iter().rposition(|mapping| mapping.start < start && is_object(mapping))?;
    let code = maps[at];
    let first = maps[..=at].iter().rfind(|mapping| mapping.inode == code.inode && mapping.offset == 0);
    let farther = first.map_or(0, |first| (code.start - first.start).saturating_sub(code.offset));
    // An object's last part may be memory without a file.
    let rest = maps[at..].windows(2).take_while(|pair| pair[0].end == pair[1].start);
    Some(rest.last().map_or(code, |pair| pair[1]).end + farther)
}

/// Whether the memory right below looks like an arena that waits for code: programs that have several often map them before they
/// use any.
fn may_be_arena(maps: &[Mapping], end: u64) -> bool {
    let start = end.saturating_sub(ARENA_LEAST);
    let below = || maps::overlapping(maps, start, end).iter().filter(|mapping| mapping.is_plain());
    let len: u64 = below().map(|mapping| mapping.len_within(start, end)).sum();
    len == ARENA_LEAST
        && below().any(|mapping| mapping.protection != 0)
        && untouched_pages::is_all(start, end).is_ok_and(|is_all| is_all)
}

/// The mappings of a range without gap, all of them memory that can be adopted.
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
    Ok(pieces)
}

/// Puts a file in the place of memory, with the same bytes and protections, and its tables where nothing else is. `pieces` are what
/// of the range is to be a mapping of it.
pub(super) fn swap(
    new: New,
    range: Range<u64>,
    pieces: &[Mapping],
    (base, header_len): (u64, u64),
    tables: Range<u64>,
    has_object_above: bool,
) -> io::Result<Parts> {
    let New { mut naming, file } = new;
    let (start, len) = (range.start, range.end - range.start);
    let text = start - base;
    let both = READ_WRITE | READ_EXEC;
    let never_flips = pieces.iter().any(|piece| piece.protection == both);
    let swapped = (|| {
        let memory = file.clone();
        file.set_len(text + len)?;
        check_private_exec(&memory, tables.start, tables.start - base, if never_flips { both } else { READ_EXEC })?;
        map_tables((base, header_len), start, &tables, Sharing::Private, &memory)?;
        for (done, piece) in pieces.iter().enumerate() {
            exchange(piece, &memory, base).inspect_err(|_| take_back(&pieces[..done]))?;
        }
        // The header page may lie over the first page of the code, which is the process's own now.
        let layout = Layout { has_object_above, ..Layout::of_memory(base, start, (len, len), &tables, true) };
        naming.create_file(file, layout).inspect_err(|_| take_back(pieces))
    })();
    match swapped {
        Ok(file) => {
            let kind = Backing::Private { adopted: true, never_flips };
            let file = Some(file);
            Ok(Parts {
                start,
                len,
                max_len: len,
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
            naming.remove();
            Err(error)
        }
    }
}

impl Region {
    /// Makes it plain memory again, what of it still is a mapping of its file.
    pub(super) fn make_plain(&self) -> Result<()> {
        let mapped = self.mapped().map_err(|_| Error::NoMemory)?;
        self.has_failed.store(true, Ordering::Relaxed);
        mapped.iter().try_for_each(make_plain).map_err(|_| Error::NoMemory)
    }
}
