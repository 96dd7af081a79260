//! The sink for regions, which tracks the live code in regions and writes it to the regions' ELF files. The writer's applier
//! decides which code belongs to a region.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file::{Code, RegionFile, Whole};
use super::read_ahead::ReadAhead;
use super::regions::Regions;
use super::state::Region;
use crate::api::options::{Config, DumpDir, Fork, Sinks};
use crate::format::code_info::Info;
use crate::queue::status::Status;
use crate::registry::{Home, Live, Registry};
use crate::sink::retry::Retry;
use crate::sink::{describe, Close, Kind, NewCode, Sink};

/// `make` is `None` because `SinkSet` has a separate field for this sink, and the writer's applier calls methods of this field.
pub static KIND: Kind = Kind { bit: Sinks::REGION, word: "region", wants: Sinks::GROUPS, is_default: true, make: None };

/// The files of existing regions are kept up to date even if the sink for regions does not run.
pub struct RegionSink {
    pub(super) status: Arc<Status>,
    pub(super) regions: Arc<Regions>,
    /// Whether data waits to be written to the file of any region.
    have_work: bool,
    /// The time of the next attempt after a failed write.
    again: Option<Instant>,
}

impl Sink for RegionSink {
    fn open(&mut self, config: &Config) -> Result<(), String> {
        let (DumpDir::Exactly(dir) | DumpDir::CacheBelow(dir)) = &config.dump_dir;
        self.regions.configure(dir.clone(), config.file_mode, config.adopt, config.fork == Fork::Late);
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.have_work
    }

    fn wake_in(&self) -> Option<Duration> {
        let again = self.again.map(|at| at.saturating_duration_since(Instant::now()));
        again.into_iter().chain(self.regions.children.due_in()).min()
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        if how == Close::Remove {
            self.regions.remove_files(&self.status);
        }
        Ok(())
    }
}

impl RegionSink {
    pub fn new(status: Arc<Status>, regions: Arc<Regions>) -> RegionSink {
        RegionSink { status, regions, have_work: false, again: None }
    }

    /// Adds new code to the file of the region. If only a part of the code lies in the region, adds only this part, and the
    /// registry treats the code as code outside of regions. If all of the code lies in the region, the caller must make sure
    /// that the registry has room for the code. The ids of live code that the new code replaces are pushed to `retired`.
    pub fn enter(
        &mut self,
        registry: &mut Registry,
        region: &'static Region,
        code: &NewCode<'_>,
        retired: &mut Vec<u64>,
    ) {
        let NewCode { id, time, live, name, info, bytes, is_told } = *code;
        let Range { start, end } = region.part_of(live.addr, live.size);
        self.close_all(registry, region, time, false);
        let is_late = !is_told && registry.has_live_in(Home::Region, start, end);
        if is_late {
            // Handles all splits that were made before the record of the code, even splits that are not due yet. Later splits
            // have to wait until the writer has read all records from before these splits.
            self.status.counters.region_late.add(1);
            self.close_all(registry, region, time, true);
        }
        if is_late || is_told {
            self.retire_in(registry, start, end, retired);
        }
        if is_late && !region.is_archiving() {
            if let Some(split_at) = region.replace_live(&self.status) {
                self.close_all(registry, region, split_at, false);
            }
        }
        if live.home == Home::Region {
            registry.insert(id, live, name, retired);
            self.status.counters.region_code.add(1);
            registry.keep_info(id, info);
        }
        let mut memory = None;
        add_to_file(region, live, name, info, |before, size| {
            let part = bytes.get(before as usize..(before + size) as usize);
            part.unwrap_or_else(|| memory.insert(ReadAhead::new(self.status.pid)).read(live.addr + before, size))
        });
    }

    /// In a forked child: adds inherited live code to the file of the child's region.
    pub fn inherit(&self, registry: &Registry, region: &Region, id: u64, memory: &mut ReadAhead) {
        if let (Some(live), Some(name)) = (registry.get(id), registry.name_of(id)) {
            add_to_file(region, &live, name, registry.info_of(id), |before, size| {
                memory.read(live.addr + before, size)
            });
        }
    }

    /// Ends all live code in regions that overlaps a range, and pushes the ids of the ended code to `retired`.
    pub fn retire_in(&self, registry: &mut Registry, start: u64, end: u64, retired: &mut Vec<u64>) {
        for id in registry.live_in(Home::Region, start, end) {
            if retired.try_reserve(1).is_err() {
                return;
            }
            if let Some(live) = registry.remove(id) {
                self.regions.no_code(live.addr, live.size);
            }
            retired.push(id);
        }
    }

    /// Ends the regions that the host unmapped at the time `before` or earlier. The writer must already have handled all
    /// records that were made before this time.
    pub fn end_gone(&mut self, registry: &mut Registry, before: u64) {
        for region in self.regions.gone(before) {
            self.close_all(registry, region, before, true);
            self.regions.end_gone(&self.status, region);
            registry.forget_dead_in_regions(region.start(), region.end());
        }
    }

    /// Rewrites the file of a region. The new contents describe the live code, and name the last dead code at addresses without
    /// live code.
    pub(super) fn write_anew(registry: &Registry, region: &Region, file: &mut RegionFile) {
        let (start, end) = (region.start(), region.end());
        file.reset_to(|file| {
            for (addr, size, name, id) in registry.region_spans_in(start, end) {
                if addr < start || addr + size > end {
                    continue;
                }
                let info = if id == 0 { Info::NOTHING } else { registry.info_of(id) };
                file.add(&Code { offset: addr - start, size, name, info });
            }
        });
    }

    /// Closes the files of ended regions, and removes the unneeded files of forked children. Ends the regions that the host has
    /// unmapped. Returns true if regions exist, or if the library adopts unknown memory. The writer must already have handled
    /// all records that were made before the time `until`.
    pub fn tidy(&mut self, registry: &mut Registry, until: u64) -> bool {
        self.regions.close_ended();
        let keep = |path, identity, bytes| self.regions.keep_old(path, identity, bytes);
        if self.regions.children.are_due() {
            // A fork need not wait for the removal of files, which can be slow. No child takes over what `tidy` changes.
            self.status.aside(|| self.regions.children.tidy(|| self.regions.settings().dir.clone(), keep));
        }
        let are_watching = self.regions.are_watching();
        if are_watching {
            self.end_gone(registry, until);
        } else {
            (self.have_work, self.again) = (false, None);
        }
        are_watching
    }

    /// Brings the files of all regions up to date. Returns whether a file can be written again after an error. This file still
    /// lacks the code that was registered after the error; the other sinks have reported this code.
    pub fn write_files(&mut self, registry: &mut Registry, now: bool, until: u64) -> bool {
        let (status, regions) = (self.status.clone(), self.regions.clone());
        let (mut have_work, mut is_ok_again, mut left_out) = (false, false, 0);
        self.again = None;
        for region in regions.all() {
            self.close_all(registry, region, until, now);
            have_work |= region.is_archiving();
            let mut guard = region.opened();
            let Some(file) = guard.as_mut() else { continue };
            // The file of a mapping group is never rewritten, because code that replaces dead code of a group joins another
            // group.
            if region.is_mapping_group() {
                region.has_little_room.fetch_or(file.has_little_room(), Ordering::Relaxed);
            } else if file.is_wasteful(400, 512) || file.is_nearly_full() {
                Self::write_anew(registry, region, file);
            }
            left_out += file.left_out();
            let waits = !now && file.again.as_ref().is_some_and(|again| !again.is_due());
            if !waits {
                let result = status.write_gate.pass(|| status.aside(|| file.write(now)));
                status.counters.region_bytes.add(file.take_written());
                let had_failed = region.has_failed.swap(result.is_err(), Ordering::Relaxed);
                match &result {
                    Err(error) if !had_failed => self.report("write", region, error),
                    Ok(()) if had_failed => {
                        region.is_new.store(true, Ordering::Relaxed);
                        (have_work, is_ok_again) = (true, true);
                    }
                    _ => {}
                }
                file.again = result.is_err().then(|| Retry::after(file.again.as_ref()));
            }
            match &file.again {
                None => have_work |= file.has_work(),
                Some(again) => {
                    let at = Instant::now() + again.remaining();
                    self.again = Some(self.again.map_or(at, |other| other.min(at)));
                }
            }
        }
        match self.again {
            None => status.sink_goes_on(Sinks::REGION),
            Some(_) => status.sink_is_behind(Sinks::REGION),
        }
        self.have_work = have_work;
        status.counters.region_left_out.set(left_out);
        is_ok_again
    }

    /// Makes the files of regions final when the last session closes or the process exits. The files must already be up to
    /// date. The files of private memory become final only when the process exits or the region ends: see
    /// [`Regions::write_last`].
    pub fn finish(&self) {
        for region in self.regions.all() {
            let build_id = if region.is_private() { None } else { region.build_id() };
            let _ = region.opened().as_mut().map(|file| file.finish(build_id));
        }
    }

    /// Counts a file error, and sets the last error to its description.
    pub(super) fn report(&self, what: &str, region: &Region, error: &io::Error) {
        self.status.counters.write_errors.add(1);
        let path = region.naming().path.clone();
        self.status.last_error.set(describe(what, &path, error));
    }
}

/// Adds the part of the code that lies in the region to the region's file. `bytes` returns the bytes of the part. The arguments
/// of `bytes` are the number of code bytes before the part, and the size of the part.
#[inline(always)]
fn add_to_file<'b>(
    region: &Region,
    live: &Live,
    name: &[u8],
    info: Info<'_>,
    bytes: impl FnOnce(u64, u64) -> &'b [u8],
) {
    if let Some(file) = region.opened().as_mut() {
        let Range { start, end } = region.part_of(live.addr, live.size);
        let (before, size, offset) = (start - live.addr, end - start, start - region.start());
        file.add_part(&Code { offset, size, name, info }, Whole { before, size: live.size });
        if region.is_private() {
            // The host's writes to private memory do not reach the file, so the library writes the bytes of the code to the
            // file.
            let _ = file.write_code(offset, bytes(before, size));
        }
    }
}
