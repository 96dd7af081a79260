//! Decides which sink names a piece of code, and moves code between the sinks. Code in a region is named in the region's file,
//! not in the perf map or the jitdump.

use std::sync::atomic::{AtomicBool, Ordering};

use super::applier::{Applier, Notice};
use crate::api::options::Sinks;
use crate::format::code_info::Info;
use crate::format::jitdump::map_tables;
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, CodeBytes, Event, Load};
use crate::registry::{Home, Live, Stored};
use crate::sink::region::{ReadAhead, Region};
use crate::sink::NewCode;
use crate::sink::Origin;
use crate::sys::reserve;

impl Applier {
    /// The region whose file must name code that was registered at `time`. `None` if the perf map and the jitdump must name the
    /// code.
    #[inline(always)]
    pub(super) fn region_of(&mut self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        if self.watching {
            self.look_for_region(addr, size, time)
        } else {
            None
        }
    }

    fn look_for_region(&mut self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        // Only the parent's file names code in an inherited region. The parent's file cannot name new code.
        self.look_for_any(addr, size, time).filter(|region| !region.is_inherited())
    }

    fn look_for_any(&mut self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        if !self.alive || !self.status.sinks().has(Sinks::REGION) {
            return None;
        }
        self.take_in_new();
        self.sinks.region.end_gone(&mut self.registry, time);
        let region = self.regions.find_at(addr, size, time)?;
        self.take_in(region);
        Some(region)
    }

    /// If memory with live code has become a region, moves this code from the perf map and the jitdump to the region sink. From
    /// now on the region's file names the code, because profilers read no other file for that memory.
    fn take_in(&mut self, region: &'static Region) {
        let has_failed = region.has_failed.load(Ordering::Relaxed);
        if !region.is_new.load(Ordering::Relaxed) || region.is_inherited() {
            return;
        }
        if region.takes_over_names() {
            self.take_over_names(region, has_failed);
        }
        if has_failed || !region.is_new.swap(false, Ordering::Relaxed) {
            return;
        }
        // Dead code in this range may belong to an earlier region at the same addresses.
        self.registry.forget_dead_in_regions(region.start(), region.end());
        for id in self.registry.live_in(Home::Plain, region.start(), region.end()) {
            let Some(live) = self.registry.get(id) else { continue };
            if region.is_mapping_group() {
                // The range of a mapping group may contain memory that does not belong to the region.
                if !region.holds(live.addr, live.size) {
                    continue;
                }
            } else if !region.spans(live.addr, live.size) {
                self.take_in_part(region, id, &live);
                continue;
            }
            let (name_len, info_len) = self.lens_of(id);
            if !self.registry.make_room(id, name_len, info_len, true) {
                // Until memory is available, the code stays with the sinks that already name it.
                region.is_new.store(true, Ordering::Relaxed);
                return;
            }
            if let Some((live, name, info)) = self.take_out(id) {
                region.count_live(live.addr, live.size);
                let (live, name, info) = (&Live { home: Home::Region, ..live }, &name, Info::new(&info));
                self.enter(region, &NewCode { id, time: 0, live, name, info, bytes: &[], is_told: false });
            }
        }
    }

    /// In a forked child: adds inherited code to the file of the child's region. If the region has no file, moves the code to
    /// the perf map and the jitdump.
    fn take_over_names(&mut self, region: &'static Region, has_failed: bool) {
        let mut memory = ReadAhead::new(self.status.pid);
        for id in self.registry.live_in(Home::Region, region.start(), region.end()) {
            let Some(live) = self.registry.get(id) else { continue };
            if !region.holds(live.addr, live.size) {
                continue;
            }
            if !has_failed {
                region.mark_live(live.addr, live.size);
                self.sinks.region.inherit(&self.registry, region, id, &mut memory);
                continue;
            }
            let (name_len, info_len) = self.lens_of(id);
            if !self.make_room_for(id, name_len, info_len) {
                continue;
            }
            if let Some((live, name, info)) = self.take_out(id) {
                let origin = Origin::LeftRegion(self.last_time, Info::new(&info));
                self.insert(id, &Live { home: Home::Plain, ..live }, &name, origin);
            }
        }
    }

    /// Adds live code to the file of a new region in which only a part of the code lies.
    fn take_in_part(&mut self, region: &'static Region, id: u64, live: &Live) {
        let Some(Ok(name)) = self.registry.name_of(id).map(reserve::copy_of) else { return };
        let info = self.copy_of_info(id, live.stored, &name);
        region.count_live_part(live.addr, live.size);
        let (name, info) = (&name[..], Info::new(&info));
        self.name_in(region, &NewCode { id, time: 0, live, name, info, bytes: &[], is_told: false });
    }

    /// Adds new code to the file of each region in which only a part of the code lies. The perf map and the jitdump name this
    /// code too.
    pub(super) fn name_parts(&mut self, id: u64, live: &Live, name: &[u8], origin: &Origin<'_>) {
        if !self.alive || !self.status.sinks().has(Sinks::REGION) {
            return;
        }
        let (time, is_told) = match *origin {
            Origin::Registered(_, event, _) | Origin::Moved { event, .. } => {
                (event.timestamp, event.has(flag::REPLACES))
            }
            Origin::LeftRegion(time, _) => (time, false),
        };
        let regions = self.regions.clone();
        for region in regions.parts_at(live.addr, live.size, time) {
            self.take_in(region);
            let bytes = match *origin {
                Origin::Registered(_, _, load) => {
                    if let CodeBytes::Here(bytes) = load.code() {
                        bytes
                    } else {
                        &[]
                    }
                }
                _ => &[],
            };
            let stored = if let Origin::Moved { before, .. } = *origin { before } else { None };
            let read_back = self.copy_of_info(id, stored, name);
            let info = origin.info().unwrap_or(Info::new(&read_back));
            self.name_in(region, &NewCode { id, time, live, name, info, bytes, is_told });
        }
    }

    /// Adds code to the file of `region`. If only a part of the code lies in `region`, adds only this part.
    #[inline(always)]
    fn name_in(&mut self, region: &'static Region, code: &NewCode<'_>) {
        self.sinks.region.enter(&mut self.registry, region, code, &mut self.overwritten);
        self.report_retired();
    }

    /// Calls `take_in` for all new regions. Must be called before code ends: if the code's memory has just become a region, the
    /// region's file must name the code. Also called before code is added, because the code may be new code in a region of a
    /// forked child that has just lost its file, and the other sinks then report the region's older code first.
    pub(super) fn take_in_new(&mut self) {
        if self.regions.has_new() {
            self.take_in_all();
        }
    }

    fn take_in_all(&mut self) {
        if self.status.sinks().has(Sinks::REGION) {
            let regions = self.regions.clone();
            regions.all().for_each(|region| self.take_in(region));
        }
    }

    /// The number of live registrations, in regions and elsewhere.
    pub fn live_count(&self) -> usize {
        self.registry.live_count(Home::Plain) + self.registry.live_count(Home::Region)
    }

    /// Ends a registration. Returns false if there is no such registration.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some(live) = self.registry.remove(id) else { return false };
        self.has_ended(id, live.home);
        true
    }

    /// Ends a registration whose id no call has unregistered: other code has replaced the code, or the host has ended all code
    /// in a range.
    pub(super) fn end_uncalled(&mut self, id: u64) {
        if let Some(live) = self.registry.remove(id) {
            self.has_ended(id, live.home);
            self.regions.no_code(live.addr, live.size);
        }
    }

    /// Reports to the sinks that code has ended.
    fn has_ended(&mut self, id: u64, home: Home) {
        match home {
            Home::Plain => self.sinks.gone(id),
            Home::Region => self.sinks.gone_in_region(id),
        }
    }

    pub(super) fn load_in_region(&mut self, region: &'static Region, chunk: Chunk, event: &Event) {
        self.status.counters.registered.add(1);
        // SAFETY: the chunk is not recycled yet, and nobody writes to this body now.
        let Some(load) = Load::new(event, unsafe { chunk.body(event) }) else { return };
        let (addr, size, index) = (event.addr, event.size, event.index);
        let live = Live { addr, size, index, stored: None, home: Home::Region };
        let bytes = if let CodeBytes::Here(bytes) = load.code() { bytes } else { &[] };
        let (id, time, name, info) = (event.id, event.timestamp, load.name(), load.info());
        let is_told = event.has(flag::REPLACES);
        self.enter(region, &NewCode { id, time, live: &live, name, info, bytes, is_told });
        self.notify_read(event);
    }

    /// Removes code from the registry. The caller inserts the code again: in a region, outside of regions, or at another
    /// address. Returns the code, its name, and the bytes of its info.
    fn take_out(&mut self, id: u64) -> Option<(Live, Vec<u8>, Vec<u8>)> {
        let name = self.registry.name_of(id)?.to_vec();
        let info = self.copy_of_info(id, self.registry.get(id)?.stored, &name);
        let mut live = self.registry.remove(id)?;
        live.stored = None;
        Some((live, name, info))
    }

    /// A copy of the info of live code, from memory or from the jitdump.
    fn copy_of_info(&mut self, id: u64, stored: Option<Stored>, name: &[u8]) -> Vec<u8> {
        if let Some(mut group) = stored.and_then(|stored| self.sinks.dump()?.read_back(stored)) {
            group.truncate(Info::of_group(&group, name).bytes().len());
            return group;
        }
        // If there is no memory for a copy of the code's lines and tables, the code loses its lines and tables.
        reserve::copy_of(self.registry.info_of(id).bytes()).unwrap_or_default()
    }

    /// Applies a move out of a region, into a region, or within a region. Returns false if the move concerns no region.
    pub(super) fn move_by_region(&mut self, event: &Event) -> bool {
        let Some(before) = self.registry.get(event.id) else { return false };
        let to = self.region_of(event.addr, before.size, event.timestamp);
        if to.is_none() && before.home == Home::Plain {
            return false;
        }
        let Some((mut live, name, mut info)) = self.take_out(event.id) else { return false };
        self.status.counters.moved.add(1);
        (live.addr, live.index) = (event.addr, event.index);
        live.home = if to.is_some() { Home::Region } else { Home::Plain };
        map_tables(&mut info, live.size, event.has(flag::GAP));
        match to {
            Some(region) => {
                let (id, time, name, info) = (event.id, event.timestamp, &name, Info::new(&info));
                let is_told = event.has(flag::REPLACES);
                self.enter(region, &NewCode { id, time, live: &live, name, info, bytes: &[], is_told });
            }
            None => self.insert(event.id, &live, &name, Origin::LeftRegion(event.timestamp, Info::new(&info))),
        }
        self.notify_read(event);
        true
    }

    /// Adds code to a region, and ends all other code at the same addresses.
    fn enter(&mut self, region: &'static Region, code: &NewCode<'_>) {
        self.name_in(region, code);
        self.sinks.enter(code);
        let (start, end) = (code.live.addr, code.live.addr + code.live.size);
        if self.registry.may_be_live_in(Home::Plain, start, end) {
            for id in self.registry.live_in(Home::Plain, start, end) {
                self.end_uncalled(id);
                self.report_overwritten(id);
            }
        }
    }

    /// Ends all live code in regions that overlaps `[start, end)`, because code outside of regions is being registered there.
    pub(super) fn retire_in_regions(&mut self, start: u64, end: u64) {
        if self.registry.live_count(Home::Region) > 0 {
            self.sinks.region.retire_in(&mut self.registry, start, end, &mut self.overwritten);
            self.report_retired();
        }
    }

    /// Reports all code in the list `overwritten`. Other code has overwritten this code in its region.
    fn report_retired(&mut self) {
        while let Some(id) = self.overwritten.pop() {
            self.report_overwritten(id);
        }
    }

    fn report_overwritten(&mut self, id: u64) {
        self.sinks.gone_in_region(id);
        self.status.counters.overwritten.add(1);
        self.notify(Notice::FreeLater(id));
    }

    /// Takes over the live code of the parent's regions in a forked child. If a piece of this code lies in a region of the
    /// child, the file of that region names the piece. A piece that lies in no region of the child is named by all sinks except
    /// the region sink. Returns whether all code of the parent's regions lies in regions of the child.
    pub(super) fn inherit_regions(&mut self, time: u64) -> bool {
        let mut are_all_in_regions = true;
        self.watching = self.regions.are_watching();
        for id in self.registry.live_by_place(Some(Home::Region)).into_iter().flatten() {
            let Some(live) = self.registry.get(id) else { continue };
            let region = if self.watching { self.look_for_any(live.addr, live.size, time) } else { None };
            if let Some(region) = region {
                // The registry is not changed, so the child does not copy the registry's pages.
                region.count_live(live.addr, live.size);
                continue;
            }
            are_all_in_regions = false;
            let (name_len, info_len) = self.lens_of(id);
            if !self.make_room_for(id, name_len, info_len) {
                self.registry.remove(id);
                self.status.counters.dropped.add(1);
                continue;
            }
            let Some((live, name, info)) = self.take_out(id) else { continue };
            self.registry.insert(id, &Live { home: Home::Plain, ..live }, &name, &mut Vec::new());
            self.registry.keep_info(id, Info::new(&info));
        }
        // For each piece of code that the loop has moved from `Home::Region` to `Home::Plain`, a dead piece is left in
        // `Home::Region`. These dead pieces are removed here.
        self.registry.forget_dead(Home::Region);
        // `region_code` counts only code registered in this process. A separate counter counts inherited code.
        self.status.counters.region_code.set(0);
        are_all_in_regions
    }

    /// Updates the files of regions. `until`: all records stamped before this time have been read.
    pub(super) fn write_regions(&mut self, now: bool, until: u64) {
        let mut write = || {
            let has_regions = self.sinks.region.tidy(&mut self.registry, until);
            if has_regions {
                self.take_in_all();
            }
            has_regions && self.sinks.region.write_files(&mut self.registry, now, until)
        };
        // The first `write` may find that a failed file can be written again, while some code is in no file yet. A flush must
        // not report success before all code is in a file, so the files are written once more.
        if write() && now {
            write();
        }
        if now {
            self.note_what_no_file_names();
        }
    }

    /// If only the region sink writes files, code outside of regions is in no file. The first flush that finds code in no file
    /// reports this code in `last_error`. While the library adopts unknown memory, no flush reports this code, because its
    /// memory may still become a region.
    fn note_what_no_file_names(&self) {
        static IS_NOTED: AtomicBool = AtomicBool::new(false);
        let (sinks, live) = (self.status.sinks(), self.registry.live_count(Home::Plain));
        let has_file = [Sinks::MAP, Sinks::JITDUMP, Sinks::VALGRIND].into_iter().any(|sink| sinks.has(sink));
        let are_left_out = live > 0 && sinks.has(Sinks::REGION) && !has_file && !self.regions.are_adopting();
        if are_left_out && !IS_NOTED.swap(true, Ordering::Relaxed) {
            self.status.last_error.set(format!(
                "registrations in no file: {live}; their code lies in no region, and only the sink region runs (JITSYM=on adds map and \
                 jitdump, JITSYM_ADOPT=1 makes regions of private code memory)"
            ));
        }
    }

    /// Completes the files of regions when the last session closes, the library is turned off or the process exits.
    pub(super) fn finish_regions(&mut self) {
        self.write_regions(true, u64::MAX);
        self.sinks.region.finish();
    }
}
