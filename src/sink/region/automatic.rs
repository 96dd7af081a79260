//! Adopts memory as a region when code is registered in this memory, if a setting asks for it. Memory that is not executable
//! when the code is registered is adopted later, once it is executable.

use std::ops::Range;

use super::candidates::{Wait, FAILED, NOT_NOW};
use super::lookup::MOST;
use super::regions::{refused, Regions};
use super::state::Region;
use crate::api::error::Error;
use crate::queue::status::Status;
use crate::sys::clock::{monotonic_ns, NEVER};
use crate::sys::code_memory::READ_WRITE;
use crate::sys::mapping::page_size;
use crate::sys::maps::{self, overlapping, Mapping};
use crate::sys::panic_guard;
use crate::sys::thread::undisturbed;

impl Regions {
    /// Adopts the mapping that contains the code, if mappings of this kind can be adopted and no recent attempt failed.
    pub(super) fn adopt_around(&self, status: &Status, addr: u64, size: u64, now: u64) -> Option<&'static Region> {
        let end = addr.checked_add(size)?;
        let page = page_size() as u64;
        let pages = addr / page * page..end.checked_next_multiple_of(page)?;
        if self.candidates.has_put_off((addr, end), &pages, now) {
            return None;
        }
        // Nothing is adopted while the process forks; later registrations try again. A wait for the end of the fork could be a
        // deadlock, because the forking thread may be waiting for a lock that the caller holds.
        let _changing = self.begin_change_unless_forking()?;
        if let Some(region) = self.find(addr, size) {
            // Another thread has adopted the memory.
            return Some(region);
        }
        // Before Linux 6.11, `maps::within` reads the whole list of mappings.
        let here = maps::within(pages.start, pages.end).unwrap_or_default();
        if let [it] = &here[..] {
            if let Some(region) = self.join(status, it, (addr, size), status.clock.now()) {
                return Some(region);
            }
            if it.is_plain() && !it.is_executable() && it.start <= addr && end <= it.end {
                self.put_off(status, addr, pages, now);
                return None;
            }
        }
        if self.rests_at_limit(now) {
            let is_adoptable = |it: &Mapping| it.is_plain() && it.is_executable() && it.start <= addr && end <= it.end;
            let declined = match here[..] {
                [it] if is_adoptable(&it) => {
                    status.counters.region_limit.add(1);
                    self.not_adopted(status, it.start, &too_many());
                    it.start..it.end
                }
                _ => pages,
            };
            self.candidates.decline(&declined, now, NOT_NOW);
            return None;
        }
        let maps = self.all_mapped(status).unwrap_or_default();
        // Now that the list of mappings has been read, a check of the memory that waits to become executable costs little.
        if self.candidates.any_waits() {
            self.adopt_waiting(status, &maps, now, NEVER);
            let region = self.find(addr, size);
            if region.is_some() || self.candidates.shows_declined(addr, end, || now) {
                return region;
            }
        }
        let found = overlapping(&maps, addr, end);
        let (start, behind) = match (found.first(), found.last()) {
            (Some(first), Some(last)) => (first.start.min(addr), last.end.max(end)),
            _ => (addr, end),
        };
        let is_whole = !found.is_empty() && found[0].start <= addr && end <= behind;
        let (declined, pause) = match found {
            [it] if is_whole && it.is_plain() && it.is_executable() => match self.adopt_mapping(status, &maps, it) {
                Some(region) => return Some(region),
                None => (start..behind, FAILED),
            },
            [it] if is_whole && !it.is_plain() => {
                // Memory that is not plain is never adopted. So the refusal is not counted as a failure.
                if self.candidates.is_first_refusal(it.start) {
                    let why = why_not_plain(it);
                    status.last_error.set(format!("memory at {:#x} is not adopted: {why}", it.start));
                }
                (start..behind, FAILED)
            }
            _ if is_whole && found.iter().all(Mapping::is_executable) && found.iter().any(|it| !it.is_plain()) => {
                // A part of the code already lies in a region. The mappings that contain the rest of the code are adopted now.
                let rest = found.iter().filter(|it| it.is_plain()).map(|it| self.adopt_mapping(status, &maps, it));
                (start..behind, if rest.filter(Option::is_none).count() == 0 { NOT_NOW } else { FAILED })
            }
            _ if is_whole && found.iter().any(Mapping::is_plain) => {
                // A part of the code may already lie in a region.
                self.put_off(status, addr, pages, now);
                return None;
            }
            _ => {
                status.counters.region_put_off.add(1);
                (start..behind, NOT_NOW)
            }
        };
        self.candidates.decline(&declined, now, pause);
        None
    }

    /// Adopts a mapping that contains registered code, or counts the mapping as refused.
    fn adopt_mapping(&self, status: &Status, maps: &[Mapping], it: &Mapping) -> Option<&'static Region> {
        let stacks_may_lie_in = |it: &Mapping| it.protection & READ_WRITE == READ_WRITE && it.is_executable();
        let has_stacks = stacks_may_lie_in(it) && maps.iter().any(|other| other.special && stacks_may_lie_in(other));
        let why_not = if self.is_full(status) {
            too_many()
        } else if has_stacks {
            "the stacks of this process are executable, and may lie there; see jitsym_region_adopt".into()
        } else {
            match self.adopt_range(status, maps, it.start, it.end) {
                Ok(region) => return Some(region),
                // The function `refused` has already counted this error.
                Err(Error::SinkFailed) => return None,
                Err(error) => error.to_string(),
            }
        };
        self.not_adopted(status, it.start, &why_not);
        None
    }

    /// Counts memory that is not adopted, once for each start address.
    fn not_adopted(&self, status: &Status, start: u64, why: &str) {
        if self.candidates.is_first_refusal(start) {
            refused(status, format!("memory at {start:#x} is not adopted: {why}"));
        }
    }

    /// Remembers that code at `addr` was registered in memory that is not executable yet, to which the host may still be
    /// writing. Only the pages of the code wait to be adopted, because the rest of the mapping may contain no code.
    fn put_off(&self, status: &Status, addr: u64, pages: Range<u64>, now: u64) {
        status.counters.region_put_off.add(1);
        if !self.candidates.wait(addr, &pages, now) {
            self.not_adopted(status, pages.start, "too much other memory with code is not executable");
        }
        self.candidates.decline(&pages, now, NOT_NOW);
    }

    /// Adopts memory that was not executable when code was registered in it, and that is executable now.
    #[cold]
    #[inline(never)]
    pub(super) fn look_again(&self, status: &Status) {
        let now = monotonic_ns();
        if self.candidates.any_is_due(now) && !panic_guard::is_beside_host() {
            undisturbed(|| self.look_again_at(status, now));
        }
    }

    fn look_again_at(&self, status: &Status, now: u64) {
        let Some(_changing) = self.begin_change_unless_forking() else { return };
        if let Some(wait) = self.candidates.take_only(now) {
            // Usually only the memory of one function waits, so only the mappings in this memory are read.
            let here = maps::within(wait.start, wait.end).unwrap_or_default();
            match here.first() {
                Some(it) if self.join_late(status, &wait, it) => {}
                Some(it) if it.is_plain() && !it.is_executable() && it.start <= wait.start => {
                    self.candidates.put_back(wait, now);
                    self.count_long(status, now);
                }
                _ => self.candidates.put_again(wait),
            }
        }
        if self.candidates.any_is_due(now) {
            let maps = self.all_mapped(status).unwrap_or_default();
            self.adopt_waiting(status, &maps, now, now);
        }
    }

    /// Checks all waiting memory whose next check is due at `before` or earlier. Adopts the memory that has become executable.
    fn adopt_waiting(&self, status: &Status, maps: &[Mapping], now: u64, before: u64) {
        for mut wait in self.candidates.take_due(before) {
            while let Some(it) = overlapping(maps, wait.start, wait.end).first() {
                if it.is_plain() && it.start <= wait.start {
                    if !it.is_executable() || it.end < wait.first_end {
                        break;
                    }
                    if !self.join_late(status, &wait, it) && self.adopt_mapping(status, maps, it).is_none() {
                        self.candidates.decline(&(it.start..it.end), now, FAILED);
                    }
                }
                wait.goes_on_at(if it.start > wait.start { it.start } else { it.end });
            }
            if maps.is_empty() || !overlapping(maps, wait.start, wait.end).is_empty() {
                self.candidates.put_back(wait, now);
            }
        }
        self.count_long(status, now);
    }

    /// Adds a mapping to a mapping group, if a single function that was registered earlier fills the mapping.
    fn join_late(&self, status: &Status, wait: &Wait, it: &Mapping) -> bool {
        let is_functions = wait.is_function && (it.start, it.end) == (wait.start, wait.end);
        // Code counts as code of a group only if it was registered after its memory joined the group. This function was
        // registered earlier, so its memory joins at the time 1, the earliest possible time: the time 0 means that memory has
        // not joined.
        let joined = is_functions.then(|| self.join(status, it, (it.start, it.end - it.start), 1)).flatten();
        joined.inspect(|region| self.has_older_code(region)).is_some()
    }

    fn count_long(&self, status: &Status, now: u64) {
        while let Some(start) = self.candidates.next_long(now) {
            let text =
                format!("memory at {start:#x} is not adopted: code was registered in it, and it is not executable");
            refused(status, text);
        }
    }

    /// Counts memory that has waited for a long time and is still not executable.
    pub fn count_waiting(&self, status: &Status) {
        if self.candidates.any_waits() {
            undisturbed(|| self.count_long(status, monotonic_ns()));
        }
    }
}

fn too_many() -> String {
    format!("there are {MOST} regions, and there may be no more")
}

/// Why memory of this kind is not adopted.
fn why_not_plain(it: &Mapping) -> &'static str {
    if it.special {
        "it is a heap or a stack"
    } else if it.shared {
        "it is shared (MAP_SHARED), and only private memory is"
    } else {
        "it is a mapping of a file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::options::Sinks;
    use crate::queue::status::LastError;
    use crate::sys::clock::Clock;
    use crate::sys::code_memory::{self, READ_EXEC};
    use crate::sys::sync::outside::Arc;

    #[test]
    fn what_has_failed_is_tried_again_later() {
        let status = Status::new(std::process::id(), Clock::Monotonic, Arc::new(LastError::default()));
        status.set_sinks(Sinks::REGION, Sinks::NONE);
        let dir = std::env::temp_dir().join(format!("jitsym-declined-{}", std::process::id()));
        let regions = Regions::default();
        regions.configure(dir.clone(), 0o600, true, true);
        let page = page_size() as u64;
        let addr = code_memory::reserve(6 * page).unwrap() + page;
        // SAFETY: the pages were just reserved, and nobody else knows of them.
        unsafe { code_memory::protect(addr, 4 * page, READ_WRITE).unwrap() };
        let adopt_at = |now| regions.adopt_around(&status, addr + 100, 100, now);
        let refused = || status.counters.region_refused.get();
        // Writable memory is not adopted. For the next `NOT_NOW` nanoseconds, the memory is not checked again.
        assert!(adopt_at(0).is_none() && refused() == 0 && status.counters.region_put_off.get() == 1);
        // SAFETY: nobody else knows of the pages.
        unsafe { code_memory::protect(addr, 4 * page, READ_EXEC).unwrap() };
        assert!(adopt_at(NOT_NOW - 1).is_none() && refused() == 0);
        // The adoption fails because the directory does not exist.
        let now = NOT_NOW;
        assert!(adopt_at(now).is_none() && refused() == 1);
        std::fs::create_dir(&dir).unwrap();
        assert!(adopt_at(now + FAILED - 1).is_none() && refused() == 1);
        let region = adopt_at(now + FAILED).unwrap();
        assert!(region.start() == addr && region.len() == 4 * page && refused() == 1);
        regions.release(&status, addr).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        // SAFETY: nobody else knows of the pages.
        unsafe { code_memory::unmap(addr - page, 6 * page) };
    }
}
