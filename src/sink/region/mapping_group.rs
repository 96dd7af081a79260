//! Makes mapping groups: regions that many small mappings share, for runtimes that map each function separately.
//!
//! A mapping group is a range of address space that contains no other object. The file of a mapping group has room for the
//! whole range. The first mapping is adopted like any other memory, and the rest of the range counts as lost. Later mappings
//! *join*: their pages become a mapping of the group's file, at the offset for their address, and no longer count as lost. So
//! all mappings share one header page, one set of tables and one descriptor. When a mapping joins, no region is made, and the
//! list of all mappings is not read.
//!
//! Each page joins a mapping group only once. If the host later maps other memory at the address of the page, the new mapping
//! joins a second group for the same range of addresses. So a mapping group has no epochs, and its file keeps one name. perf
//! with libunwind computes the addresses of the tables from the lowest mapping of the file with this name. perf finds the
//! tables only if the lowest mapping is the mapping of the header page. In a mapping group, the mapping of the header page is
//! always the lowest mapping of the file, and all mappings of the file have the same name.

use std::iter;
use std::sync::atomic::Ordering;

use super::address_space::reach_above;
use super::addresses::Placement;
use super::adopt::{is_object, look_up_attributes, reserve_both, swap, TABLES_REACH};
use super::code_marks::Marks;
use super::exchange::{exchange, take_back};
use super::file::RegionFile;
use super::lost_pages::Pages;
use super::regions::Regions;
use super::state::{Parts, Region};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sys::clock::{monotonic_ns, NEVER};
use crate::sys::code_memory::{self, READ_EXEC};
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, Mapping};
use crate::sys::panic_guard;
use crate::sys::thread::{self, undisturbed};
use crate::sys::{debug, reserve};

/// How far a mapping group reaches in both directions from its first mapping. The limit exists because perf may copy the
/// group's file, holes included.
const REACH: u64 = 4 << 20;
/// How far the marks of a mapping group may lie beyond the reach of its tables.
const MARKS_REACH: u64 = 64 << 30;
/// A mapping larger than this becomes a separate region.
const MAPPING_MOST: u64 = 1 << 20;
/// The room for tables is this many times smaller than that of other regions of the same size, because most functions of a
/// mapping group have a page of their own. The tables must lie near the group, where few addresses may be free.
const TABLES_SHARE: u64 = 4;

impl Regions {
    /// Adds the mapping `it`, which contains a single function, to a mapping group. The function was registered at the time
    /// `since` or later. Returns `None` if memory of this kind cannot join a mapping group, or if there is no room.
    pub(super) fn join(
        &self,
        status: &Status,
        it: &Mapping,
        (addr, size): (u64, u64),
        since: u64,
    ) -> Option<&'static Region> {
        let page = page_size() as u64;
        let end = addr.checked_add(size)?.checked_next_multiple_of(page)?;
        if !addr.is_multiple_of(page) || end - addr > MAPPING_MOST || !status.sinks().has(Sinks::REGION) {
            return None;
        }
        // Memory that is also writable, or that the kernel merged with its neighbours, does not join a group, but is adopted as
        // a separate region.
        let is_functions = it.is_plain() && it.protection == READ_EXEC && (it.start, it.end) == (addr, end);
        if !is_functions
            || reserve::is_short()
            || thread::has_stack_in(addr, end)
            || code_memory::has_locked(addr, end - addr)
        {
            return None;
        }
        let can_take = |region: &Region| {
            region.gone() == NEVER
                && !region.has_failed.load(Ordering::Relaxed)
                && !region.has_little_room.load(Ordering::Relaxed)
                && region.spans(addr, end - addr)
                && region.pages.are_unused(addr, end)
        };
        let joined = self.all().filter(|region| can_take(region)).find(|region| {
            self.part_now(status, region);
            can_take(region) && region.take_in(status, it, since).is_some()
        });
        joined.or_else(|| self.open_mapping_group(status, it, since))
    }

    /// Makes a new mapping group around a mapping.
    fn open_mapping_group(&self, status: &Status, it: &Mapping, since: u64) -> Option<&'static Region> {
        // `mlockall` may have asked for locked memory, and would then also lock the tables of the group.
        if self.rests_at_limit(monotonic_ns()) || code_memory::has_locked_memory() {
            return None;
        }
        let maps = self.all_mapped(status).ok()?;
        if self.overlap(it.start, it.end) || self.is_full(status) {
            return None;
        }
        let mut it = *it;
        look_up_attributes(std::slice::from_mut(&mut it)).ok()?;
        let place = self.place_mapping_group(maps, &it)?;
        let (start, end) = (place.start, place.start + place.max_len);
        let made = (|| {
            let pages = Pages::of_group(start, end - start).ok()?;
            if !pages.lose(start, end, iter::empty(), 0) {
                return None;
            }
            let new = self.new_file(status, false).ok()?;
            let path = new.naming.path.clone();
            let parts = swap(new, &place, &[it]).ok()?;
            pages.join(it.start, it.end, since);
            self.publish_swapped(status, &[it], Parts { pages, ..parts }).ok().map(|region| (region, path))
        })();
        let Some((region, path)) = made else {
            // SAFETY: the range was reserved for tables, and nobody in this process reads the tables.
            unsafe { place.unmap_tables() };
            return None;
        };
        debug::say(format_args!("mappings in [{start:#x}, {end:#x}) are adopted; their file is {}", path.display()));
        Some(region)
    }

    /// Reserves address space for the header page, which lies right below a mapping group, and for the group's tables.
    fn place_mapping_group(&self, mut maps: Vec<Mapping>, it: &Mapping) -> Option<Placement> {
        let page = page_size() as u64;
        let mapping_groups = self.all().filter(|region| region.is_mapping_group());
        let mapping_groups: Vec<u64> = mapping_groups.filter_map(Region::inode).collect();
        // perf 7 confuses an object with an earlier object that began at the same address, so the base addresses of ended
        // regions are avoided.
        let is_known = |base: u64| self.settings().bases.contains_key(&base);
        for _ in 0..8 {
            let (low, high) = around(&maps, it, &mapping_groups);
            let end = high.min(it.end.saturating_add(REACH));
            let mut wish = low.max(it.start.saturating_sub(REACH));
            let base = loop {
                let base = maps::gap(&maps, wish, it.start, page, page, wish)?;
                if !is_known(base) {
                    break base;
                }
                wish = base + page;
            };
            let (start, max_len) = (base + page, end - (base + page));
            let len = RegionFile::tables_room(max_len / TABLES_SHARE);
            let reach = reach_above(end, TABLES_REACH);
            let at = maps::gap(&maps, end, reach, len, page, end)?;
            // The marks neither take room from tables, nor lie where the kernel would map the next functions of the group.
            let far = reach_above(reach, MARKS_REACH);
            let marks_hint = maps::gap(&maps, reach, far, Marks::size_for(max_len), page, reach).unwrap_or(0);
            // Another thread may have mapped memory in these ranges since `maps` was read.
            if reserve_both((base, page), (at, len)) {
                let (header_len, tables, has_object_above) = (page, at..at + len, false);
                return Some(Placement { start, max_len, base, header_len, tables, has_object_above, marks_hint });
            }
            maps = maps::all().ok()?;
        }
        None
    }

    /// Called before new code replaces other code in a mapping group: turns the memory of the new code into plain memory, which
    /// no longer belongs to the group. While the bridge registers code, the memory is not changed.
    #[cold]
    pub(super) fn part_from_mapping_group(&self, status: &Status, region: &Region, addr: u64, size: u64) {
        let page = page_size() as u64;
        let (start, end) = (addr / page * page, (addr + size).next_multiple_of(page).min(region.end()));
        undisturbed(|| {
            let Some(_changing) = self.begin_change_unless_forking() else { return };
            let Ok(maps) = maps::within(start, end) else { return };
            let own = region.mapped_in(&maps);
            let inside = own.map(|it| Mapping { start: it.start.max(start), end: it.end.min(end), ..it });
            let mut left: Vec<Mapping> = inside.collect();
            if !panic_guard::is_beside_host() {
                take_back(&std::mem::take(&mut left));
            }
            self.lose(status, region, start, end, left.iter().map(|it| (it.start, it.end)));
        });
    }
}

impl Region {
    /// Makes the mapping `it` join this group, by replacing its memory with a mapping of the group's file. Returns `None` if
    /// the memory cannot be replaced.
    fn take_in(&self, status: &Status, it: &Mapping, since: u64) -> Option<()> {
        let file = self.naming().file().ok()?;
        if exchange(it, &file, self.place.base, false).is_err() {
            // This part of the file may now contain bytes that a forked child executes, so this part is never used again. The
            // memory can join another mapping group whose pages at these addresses are still unused.
            self.pages.use_up(it.start, it.end, status.clock.now());
            return None;
        }
        let naming = self.naming();
        // During the exchange, another thread may have marked the group as gone, because the group had no mapping left.
        if self.gone() != NEVER || naming.identity().is_none() {
            drop(naming);
            take_back(&[*it]);
            return None;
        }
        self.pages.join(it.start, it.end, since);
        Some(())
    }

    /// Whether code at this address would replace other code in a mapping group.
    #[inline]
    pub(super) fn is_used_up(&self, addr: u64, size: u64) -> bool {
        self.is_mapping_group() && self.has_had_code(addr - self.start(), size)
    }

    #[cold]
    fn has_had_code(&self, offset: u64, size: u64) -> bool {
        self.marks.any(offset, size) || self.marks.after(offset, size, 0).is_some()
    }
}

/// Returns the largest range around the mapping `it` that overlaps no object and no special mapping, because libdw finds
/// nothing in objects that overlap. Mapping groups do not count as objects here.
fn around(maps: &[Mapping], it: &Mapping, mapping_groups: &[u64]) -> (u64, u64) {
    let objects = maps.iter().filter(|mapping| is_object(mapping) && !mapping_groups.contains(&mapping.inode));
    let objects: Vec<u64> = objects.map(|mapping| mapping.inode).collect();
    let is_taken = |mapping: &Mapping| mapping.special || objects.contains(&mapping.inode);
    let at = maps.partition_point(|mapping| mapping.end <= it.start);
    let below = maps[..at].iter().rposition(is_taken);
    let low = below.map_or(1 << 16, |below| {
        // The last part of an object may be memory without a file.
        let last =
            maps.get(below + 1).filter(|next| next.start == maps[below].end && next.end < it.start && next.is_plain());
        last.map_or(maps[below].end, |last| last.end)
    });
    let above = maps[at..].iter().find(|mapping| mapping.start >= it.end && is_taken(mapping));
    (low, above.map_or(it.end, |above| above.start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::status::LastError;
    use crate::sys::clock::Clock;
    use crate::sys::sync::outside::{Arc, Mutex, MutexGuard, PoisonError};
    use crate::sys::thread::sleep_micros;

    /// The setup of a test: a `Regions` that adopts memory, and address space for the test's mappings.
    struct Host {
        status: Status,
        regions: Regions,
        dir: std::path::PathBuf,
        start: u64,
        /// Only one of these tests runs at a time, because mapping groups of several tests would limit each other's range.
        _alone: MutexGuard<'static, ()>,
    }

    impl Host {
        fn new(name: &str) -> Host {
            static ONE: Mutex<()> = Mutex::new(());
            let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
            let status = Status::new(std::process::id(), Clock::Monotonic, Arc::new(LastError::default()));
            status.set_sinks(Sinks::REGION, Sinks::NONE);
            let dir = std::env::temp_dir().join(format!("jitsym-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            let regions = Regions::default();
            regions.configure(dir.clone(), 0o600, true, true);
            // The free address space below the mappings is for header pages, and the free space above the mappings is for
            // tables.
            let (free, len, above) = (8 << 20, 64 * page_size() as u64, 512 << 20);
            let start = code_memory::reserve(free + len + above).unwrap() + free;
            // SAFETY: the range was just reserved, and nobody else knows of it.
            unsafe {
                code_memory::unmap(start - free, free);
                code_memory::unmap(start + len, above);
            }
            Host { status, regions, dir, start, _alone: alone }
        }

        /// The address of the mapping with this number. Each mapping has two pages, and no two mappings are neighbours.
        fn addr(&self, number: u64) -> u64 {
            self.start + (3 * number + 1) * page_size() as u64
        }

        /// Makes a mapping that contains a function, all of whose bytes are `byte`.
        fn map(&self, number: u64, byte: u8) -> u64 {
            let (addr, len) = (self.addr(number), 2 * page_size() as u64);
            // SAFETY: the range was reserved, and nobody else uses it.
            unsafe {
                code_memory::reserve_over(addr, len).unwrap();
                code_memory::protect(addr, len, code_memory::READ_WRITE).unwrap();
                std::ptr::write_bytes(addr as *mut u8, byte, SIZE as usize);
                code_memory::protect(addr, len, READ_EXEC).unwrap();
            }
            addr
        }

        fn register(&self, addr: u64) -> Option<&'static Region> {
            self.regions.before_code(&self.status, addr, SIZE);
            self.regions.find(addr, SIZE)
        }

        fn unmap(&self, number: u64) {
            let (addr, len) = (self.addr(number), 2 * page_size() as u64);
            self.regions.after_range(&self.status, addr, len);
            self.regions.before_unmapping(&self.status, addr, len);
            // SAFETY: nobody uses the range.
            unsafe { code_memory::reserve_over(addr, len).unwrap() };
        }

        fn inode(&self, addr: u64) -> u64 {
            maps::within(addr, addr + 1).unwrap()[0].inode
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    const SIZE: u64 = 4096 + 100;

    fn bytes(addr: u64) -> Vec<u8> {
        // SAFETY: the test has mapped these bytes as readable memory.
        unsafe { std::slice::from_raw_parts(addr as *const u8, SIZE as usize) }.to_vec()
    }

    #[test]
    fn mappings_share_a_file() {
        let host = Host::new("mapping-group-shared");
        let first = host.register(host.map(0, 1)).unwrap();
        for number in 1..20 {
            let region = host.register(host.map(number, number as u8)).unwrap();
            assert!(std::ptr::eq(region, first));
            assert_eq!(host.inode(host.addr(number)), host.inode(host.addr(0)));
            assert_eq!(bytes(host.addr(number)), [number as u8; SIZE as usize]);
        }
        assert_eq!((host.status.counters.regions.get(), host.regions.all().count()), (1, 1));
        // Memory between the mappings does not belong to the mapping group.
        assert!(host.regions.find(host.addr(0) - 10, 20).is_none());
        // The group ends when its last mapping is unmapped.
        (0..20).for_each(|number| host.unmap(number));
        assert!(first.gone() != NEVER && host.regions.find(host.addr(3), SIZE).is_none());
    }

    #[test]
    fn a_page_joins_once() {
        let host = Host::new("mapping-group-once");
        let (status, regions) = (&host.status, &host.regions);
        let first = host.register(host.map(0, 1)).unwrap();
        assert!(host.register(host.map(1, 2)).is_some_and(|region| std::ptr::eq(region, first)));
        let addr = host.addr(1);
        let before = status.clock.now();
        // The sleeps make sure that the clock advances.
        sleep_micros(100);
        host.unmap(1);
        sleep_micros(100);
        let second = host.register(host.map(1, 3)).unwrap();
        assert!(!std::ptr::eq(second, first) && second.spans(host.addr(0), SIZE) && bytes(addr) == [3; SIZE as usize]);
        let at = |time| regions.find_at(addr, SIZE, time).map(|region| region.place.base);
        assert_eq!((at(before), at(status.clock.now())), (Some(first.place.base), Some(second.place.base)));
        // The host has unmapped the memory without a call to the library.
        let third = host.register(host.map(1, 4)).unwrap();
        assert!(!std::ptr::eq(third, second) && bytes(addr) == [4; SIZE as usize]);
        // The code at `addr` ends, and new code replaces the ended code in the same mapping.
        regions.after_code(status, addr, SIZE);
        let fourth = host.register(addr).unwrap();
        assert!(!std::ptr::eq(fourth, third) && host.inode(addr) != 0 && bytes(addr) == [4; SIZE as usize]);
        assert!(host.register(host.addr(0) + SIZE).is_none());
        assert!(first.gone() == NEVER && third.gone() != NEVER);
    }

    /// A mapping of a file would not be locked.
    #[test]
    fn locked_memory_does_not_join() {
        let host = Host::new("mapping-group-locked");
        assert!(host.register(host.map(0, 1)).is_some());
        let addr = host.map(1, 2);
        // SAFETY: locking changes no memory.
        assert_eq!(unsafe { libc::mlock(addr as *const _, 1) }, 0);
        assert!(host.register(addr).is_none() && host.inode(addr) == 0);
        // SAFETY: as above.
        unsafe { libc::munlock(addr as *const _, 1) };
        assert!(host.register(host.map(1, 2)).is_some());
    }

    /// While the bridge registers code, the library cannot know how the host uses the memory.
    #[test]
    fn the_bridge_exchanges_nothing() {
        let host = Host::new("mapping-group-bridge");
        let register = |addr| panic_guard::beside_host(|| host.register(addr));
        let is_plain = |addr, byte| host.inode(addr) == 0 && bytes(addr) == [byte; SIZE as usize];
        let unknown = host.map(0, 1);
        assert!(register(unknown).is_none() && is_plain(unknown, 1));
        assert!(host.register(host.map(1, 2)).is_some() && host.register(host.map(2, 3)).is_some());
        // The host replaces a mapping of the group by other memory, without a call to the library.
        let other = host.map(2, 4);
        assert!(register(other).is_none() && is_plain(other, 4));
        assert!(host.inode(host.addr(1)) != 0);
    }
}
