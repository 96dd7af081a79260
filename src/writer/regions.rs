//! Code in regions: what the ledger does with it. Its names, lines and tables go to the file that the code lies in, and neither to
//! the map nor to the jitdump.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ledger::{copy, Ledger, Notice};
use crate::api::options::Sinks;
use crate::format::jitdump::{shadow, LOAD_FIXED_SIZE};
use crate::queue::chunk::Chunk;
use crate::queue::record::{flag, CodeBytes, Event, Load};
use crate::registry::{Live, Registry};
use crate::sink::again::Again;
use crate::sink::region::file::{Code, RegionFile};
use crate::sink::region::{Region, Split};
use crate::sink::{describe, Origin};
use crate::sys::dir::Dir;
use crate::sys::sync::outside::PoisonError;
use crate::sys::{file, process_memory, thread};

/// What the end of a generation may cost the writer, in nanoseconds of its processor's time, for callers to begin the next one at
/// any time. Beyond that they do so only if it takes at most this part of the writer's time. Of two ends the cheaper one counts: on
/// a busy machine a single end sometimes looks expensive.
const CHEAP_SWITCH: u64 = 2_000_000;
const SWITCH_SHARE: u64 = 8;

/// Live code of a region up to this size is copied to the files of older generations, for `perf annotate`.
const COPIED_MOST: u64 = 256 << 10;

/// What the writer knows of code in regions.
#[derive(Default)]
pub struct RegionCode {
    /// Which of it is live, and what is named where in the file of the generation.
    pub registry: Registry,
    /// Something waits to be written.
    pub have_work: bool,
    /// When to try again what could not be.
    again: Option<Instant>,
    /// What the end of the last generation cost.
    last_cost: u64,
}

impl RegionCode {
    /// How long it is until something that has failed is to be tried again.
    pub fn again_in(&self) -> Option<Duration> {
        self.again.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

impl Ledger {
    /// The region that code goes to that was registered at a time.
    pub(super) fn region_of(&mut self, addr: u64, size: u64, time: u64) -> Option<&'static Region> {
        if !self.alive || !self.regions.are_watching() || !self.status.sinks().has(Sinks::REGION) {
            return None;
        }
        self.end_gone(time);
        let region = self.regions.find_at(addr, size, time)?;
        self.take_in(region);
        Some(region)
    }

    /// Code that was registered before its memory became a region is named by the region's file from now on: profilers look at
    /// no other one there.
    fn take_in(&mut self, region: &'static Region) {
        if !region.is_new.load(Ordering::Relaxed) || !region.is_new.swap(false, Ordering::Relaxed) {
            return;
        }
        // Of another region that was there.
        self.region_code.registry.forget_dead_in(region.start, region.end());
        for id in self.registry.live_in(region.start, region.end()) {
            let is_inside =
                |live: &Live| live.addr >= region.start && live.addr.saturating_add(live.size) <= region.end();
            if !self.registry.get(id).is_some_and(|live| is_inside(&live)) {
                continue;
            }
            if let Some((live, name, info_records)) = self.take_out(id, false) {
                region.count_live(live.addr, live.size);
                self.enter(region, id, 0, &live, &name, &info_records, &[]);
            }
        }
    }

    /// Before code ends: the memory that it lies in may have become a region just now, whose file is to name it.
    pub(super) fn take_in_new(&mut self) {
        if self.regions.has_new() && self.status.sinks().has(Sinks::REGION) {
            let regions = self.regions.clone();
            regions
                .all()
                .filter(|region| !region.is_unwell.load(Ordering::Relaxed))
                .for_each(|region| self.take_in(region));
        }
    }

    /// Regions that the host had unmapped before some time, of which everything has been seen.
    fn end_gone(&mut self, before: u64) {
        for region in self.regions.gone(before) {
            self.close_all(region, || region.next_split_made(before));
            self.regions.end_gone(&self.status, region);
            self.region_code.registry.forget_dead_in(region.start, region.end());
        }
    }

    /// How much code is live, in regions or not.
    pub fn live_count(&self) -> usize {
        self.registry.live_count() + self.region_code.registry.live_count()
    }

    /// Ends a registration, wherever its code lies.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        if self.registry.remove(id).is_some() {
            self.sinks.gone(id);
            return true;
        }
        self.region_code.registry.remove(id).is_some()
    }

    /// Ends a registration of which the host has not said itself that it ends.
    pub(super) fn end_uncalled(&mut self, id: u64) {
        if self.registry.is_live(id) {
            self.sinks.gone(id);
        }
        if let Some(live) = self.registry.remove(id).or_else(|| self.region_code.registry.remove(id)) {
            self.regions.no_code(live.addr, live.size);
        }
    }

    pub(super) fn load_in_region(&mut self, region: &'static Region, chunk: Chunk, event: &Event) {
        self.status.counters.registered.add(1);
        // SAFETY: the chunk is not recycled yet, and there is no reference that may write to this body.
        let Some(load) = Load::new(event, unsafe { chunk.body(event) }) else { return };
        let (addr, size, index) = (event.addr, event.size, event.index);
        let live = Live { addr, size, reach: addr + size, index, stored: None, tables_len: event.tables_len };
        let code = if let CodeBytes::Here(bytes) = load.code() { bytes } else { &[] };
        self.end_replaced(region, event, size);
        self.enter(region, event.id, event.timestamp, &live, load.name(), load.info_records(), code);
        self.notify_read(event);
    }

    /// Ends a registration that goes on elsewhere: returns it, its name, and the records before its LOAD.
    fn take_out(&mut self, id: u64, is_in_region: bool) -> Option<(Live, Vec<u8>, Vec<u8>)> {
        let from = if is_in_region { &mut self.region_code.registry } else { &mut self.registry };
        let name = from.name_of(id).unwrap_or_default().to_vec();
        // Without memory the code goes on without lines and tables, which may be large.
        let mut info_records = copy(from.info_records_of(id)).unwrap_or_default();
        let mut live = from.remove(id)?;
        if !is_in_region {
            self.sinks.gone(id);
        }
        if let Some(group) = live.stored.take().and_then(|stored| self.sinks.dump()?.read_back(stored)) {
            info_records = group;
            info_records.truncate(info_records.len().saturating_sub(LOAD_FIXED_SIZE + name.len() + 1));
        }
        if shadow::len(&info_records) > 0 {
            live.tables_len = shadow::remove(&mut info_records).map_or(0, |len| len as u32);
        }
        Some((live, name, info_records))
    }

    /// Code moves out of a region, into one, or within one. False if no region has to do with it.
    pub(super) fn move_by_region(&mut self, event: &Event) -> bool {
        let is_in_region = self.region_code.registry.is_live(event.id);
        let from = if is_in_region { &mut self.region_code.registry } else { &mut self.registry };
        let Some(size) = from.size_of(event.id) else { return false };
        let to = self.region_of(event.addr, size, event.timestamp);
        if to.is_none() && !is_in_region {
            return false;
        }
        // Its memory may have become a region just now.
        let is_in_region = is_in_region || self.region_code.registry.is_live(event.id);
        let Some((mut live, name, info_records)) = self.take_out(event.id, is_in_region) else { return false };
        self.status.counters.moved.add(1);
        (live.addr, live.index, live.reach) = (event.addr, event.index, event.addr + live.size);
        match to {
            Some(region) => {
                self.end_replaced(region, event, live.size);
                self.enter(region, event.id, event.timestamp, &live, &name, &info_records, &[]);
            }
            None => self.insert(event.id, &live, &name, Origin::LeftRegion(event.timestamp, &info_records)),
        }
        self.notify_read(event);
        true
    }

    /// Ends what live code of the other registry, in regions or not, lies where code begins to live.
    pub(super) fn retire_in(&mut self, in_regions: bool, start: u64, end: u64) {
        let registry = if in_regions { &mut self.region_code.registry } else { &mut self.registry };
        if registry.live_count() == 0 || !registry.is_known_in(start, end) {
            return;
        }
        for id in registry.live_in(start, end) {
            self.end_uncalled(id);
            self.status.counters.overwritten.add(1);
            self.notify(Notice::Retired(id));
        }
    }

    /// Ends code in whose place other code begins to live, if the caller has begun a generation for that.
    fn end_replaced(&mut self, region: &'static Region, event: &Event, size: u64) {
        if event.has(flag::REPLACES) {
            self.close_all(region, || region.next_split(event.timestamp));
            self.retire_in(true, event.addr, event.addr + size);
        }
    }

    /// Code begins to live in a region.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn enter(
        &mut self,
        region: &'static Region,
        id: u64,
        time: u64,
        live: &Live,
        name: &[u8],
        info_records: &[u8],
        code: &[u8],
    ) {
        self.close_all(region, || region.next_split(time));
        if self.region_code.registry.has_live_in(live.addr, live.addr + live.size) {
            // Live code is overwritten: samples so far are of the old code. If the host has begun another generation since, the end
            // of the old one has to wait until all code from before the new one is known.
            self.status.counters.region_late.add(1);
            self.close_all(region, || region.next_split_made(time));
            self.retire_in(true, live.addr, live.addr + live.size);
            let replaced = if region.is_splitting() { None } else { region.replace_live(&self.status) };
            if let Some(split) = replaced.and_then(|time| region.next_split(time)) {
                self.close_generations(region, &split);
            }
        }
        self.retire_in(false, live.addr, live.addr + live.size);
        if self.region_code.registry.insert(id, live, name, &mut Vec::new()).was_refused {
            self.status.counters.dropped.add(1);
            return;
        }
        self.status.counters.region_code.add(1);
        self.region_code.registry.keep_info_records(id, info_records);
        let mut file = region.opened();
        if let Some(file) = file.as_mut() {
            let offset = live.addr - region.start;
            file.add(&Code { offset, size: live.size, name, info_records });
            if region.is_private() {
                // What the host writes is not in the file by itself.
                let read = if code.is_empty() { read(self.status.pid, live) } else { Vec::new() };
                let _ = file.write_code(offset, if code.is_empty() { &read } else { code });
            }
        }
    }

    /// In a forked child: live code in its parent's regions goes to its own files, or where there are none to the other sinks.
    pub(super) fn inherit_regions(&mut self, code: Registry, time: u64) {
        for id in code.live_by_place().into_iter().flatten() {
            let (Some(live), Some(name)) = (code.get(id), code.name_of(id)) else { continue };
            let info_records = code.info_records_of(id);
            match self.region_of(live.addr, live.size, time) {
                Some(region) => {
                    region.count_live(live.addr, live.size);
                    self.enter(region, id, time, &live, name, info_records, &[]);
                }
                None => {
                    self.registry.insert(id, &live, name, &mut Vec::new());
                    self.registry.keep_info_records(id, info_records);
                }
            }
        }
        // Inherited code is counted elsewhere.
        self.status.counters.region_code.set(0);
    }

    /// Sees to one split after the other.
    fn close_all(&mut self, region: &'static Region, next: impl Fn() -> Option<Split>) {
        while let Some(split) = next() {
            self.close_generations(region, &split);
        }
    }

    /// What the file of a region says goes under its names of older generations. The file keeps what it knows: code that has died
    /// since is named until other code takes its place.
    fn close_generations(&mut self, region: &'static Region, split: &Split) {
        let begin = thread::cpu_time();
        let mut guard = region.opened();
        let Some(file) = guard.as_mut() else { return };
        let result = self.put_aside(region, file, split.first);
        self.region_code.registry.forget_dead_in(region.start, region.end());
        file.set_begin(split.begin);
        // Copies have everything that the tables have.
        if result.is_ok() && split.is_clean && file.is_wasteful(150) {
            self.write_anew(region, file);
        }
        drop(guard);
        if let Err(error) = result {
            self.status.counters.write_errors.add(1);
            let path = region.naming.lock().unwrap_or_else(PoisonError::into_inner).path.clone();
            self.status.last_error.set(describe("write an older generation of", &path, &error));
        }
        let last = thread::cpu_time() - begin;
        let cost = last.min(std::mem::replace(&mut self.region_code.last_cost, last));
        if cost > CHEAP_SWITCH {
            region.not_before.fetch_max(self.status.clock.now() + cost * SWITCH_SHARE, Ordering::Relaxed);
        }
    }

    /// Writes what the file says under the names that it had before a generation.
    fn put_aside(&mut self, region: &Region, file: &mut RegionFile, first: u32) -> io::Result<()> {
        let mut naming = region.naming.lock().unwrap_or_else(PoisonError::into_inner);
        let (names, path, own) = (naming.take_names(first), naming.path.clone(), naming.named());
        let dir = naming.dir()?;
        drop(naming);
        // A name that is left is one of the file that is written to: no file is better than one with other code.
        let is_own = |name: &OsStr| dir.identity_of(name).is_ok_and(|found| own.is_some_and(|own| own.is(&found)));
        let free = |name: &OsStr| if is_own(name) { dir.remove(name) } else { Ok(()) };
        let result = file.write(true).and_then(|()| self.copy_to(region, file, &dir, &names, &path, &free));
        let freed = names.iter().try_for_each(|name| free(name));
        result.and(freed)
    }

    /// Writes what the file says under names.
    fn copy_to(
        &self,
        region: &Region,
        file: &RegionFile,
        dir: &Dir,
        names: &[OsString],
        path: &Path,
        free: &impl Fn(&OsStr) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some((name, others)) = names.split_first() else { return Ok(()) };
        free(name)?;
        let to = file::claim(dir, name, self.regions.mode(), file::ANYWHERE)?;
        let (written, identity) = (to.try_clone()?, file::look_at(&to)?);
        // A profile finds live code in newer files too. Where code has died the host may have written other code already, which a
        // private mapping keeps to itself.
        let (registry, start) = (&self.region_code.registry, region.start);
        let (is_private, with_live) = (region.is_private(), region.len() <= COPIED_MOST && self.regions.old_are_few());
        let has_bytes = |offset| match registry.id_at(start + offset) {
            Some(_) => with_live,
            None => is_private,
        };
        let result = file.snapshot(to, has_bytes, region.build_id());
        let bytes = written.metadata().map_or(0, |data| data.blocks() * 512);
        let pause = self.regions.pause_after(bytes, self.status.clock.now());
        region.pause.store(pause, Ordering::Relaxed);
        self.status.counters.region_bytes.add(bytes);
        self.regions.keep_old(path.with_file_name(name), identity, bytes);
        for other in others {
            if free(other).and_then(|()| dir.link(name, other)).is_ok() {
                self.regions.keep_old(path.with_file_name(other), identity, 0);
            }
        }
        result
    }

    /// Rewrites a file: live code, and the names of the code that was there last.
    fn write_anew(&self, region: &Region, file: &mut RegionFile) {
        file.reset();
        let registry = &self.region_code.registry;
        let (start, end) = (region.start, region.end());
        for (addr, size, name, id) in registry.spans_in(start, end) {
            if addr < start || addr + size > end {
                continue;
            }
            let info_records = if id == 0 { &[] } else { registry.info_records_of(id) };
            file.add(&Code { offset: addr - start, size, name, info_records });
        }
    }

    /// Brings the files of regions up to date. `until`: everything that was stamped before has been seen.
    pub(super) fn write_regions(&mut self, now: bool, until: u64) {
        self.regions.close_ended();
        self.regions.tidy_children();
        if !self.regions.are_watching() {
            return;
        }
        let (status, regions) = (self.status.clone(), self.regions.clone());
        let (mut have_work, mut left_out) = (false, 0);
        self.region_code.again = None;
        let mut are_well = true;
        self.end_gone(until);
        for region in regions.all() {
            if status.sinks().has(Sinks::REGION) && !region.is_unwell.load(Ordering::Relaxed) {
                self.take_in(region);
            }
            self.close_all(region, || if now { region.next_split_made(until) } else { region.next_split(until) });
            have_work |= region.is_splitting();
            let mut guard = region.opened();
            let Some(file) = guard.as_mut() else { continue };
            if file.is_wasteful(400) || file.is_nearly_full() {
                self.write_anew(region, file);
            }
            let left = file.left_out();
            left_out += left.names + left.tables + left.lines;
            let waits = !now && file.again.as_ref().is_some_and(|again| !again.is_due());
            if !waits {
                let result = status.write_gate.pass(|| file.write(now));
                status.counters.region_bytes.add(file.take_written());
                let was_unwell = region.is_unwell.swap(result.is_err(), Ordering::Relaxed);
                match &result {
                    Err(error) if !was_unwell => {
                        status.counters.write_errors.add(1);
                        let path = region.naming.lock().unwrap_or_else(PoisonError::into_inner).path.clone();
                        status.last_error.set(describe("write", &path, error));
                    }
                    // Code that was registered meanwhile is in the other sinks.
                    Ok(()) if was_unwell => {
                        region.is_new.store(true, Ordering::Relaxed);
                        have_work = true;
                    }
                    _ => {}
                }
                file.again = result.is_err().then(|| Again::after(file.again.as_ref()));
            }
            match &file.again {
                None => have_work |= file.has_work(),
                Some(again) => {
                    are_well = false;
                    let at = Instant::now() + again.remaining();
                    self.region_code.again = Some(self.region_code.again.map_or(at, |other| other.min(at)));
                }
            }
        }
        match are_well {
            true => status.sink_goes_on(Sinks::REGION),
            false => status.sink_stalled(Sinks::REGION),
        }
        self.region_code.have_work = have_work;
        status.counters.region_left_out.set(left_out);
        self.region_code.registry.tidy();
    }

    /// The files of regions are final for now: the last session closes, or the process exits. Those of private memory are not
    /// before its end: see [`Regions::write_last`](crate::sink::region::Regions::write_last).
    pub(super) fn finish_regions(&mut self) {
        self.write_regions(true, u64::MAX);
        for region in self.regions.all() {
            let build_id = if region.is_private() { None } else { region.build_id() };
            let _ = region.opened().as_mut().map(|file| file.finish(build_id));
        }
    }
}

/// The code's bytes in memory, or nothing if the code has gone. Without a jitdump not every record has the bytes.
fn read(pid: u32, code: &Live) -> Vec<u8> {
    match process_memory::copy(pid, code.addr, code.size) {
        Ok((bytes, true)) => bytes,
        _ => Vec::new(),
    }
}
