//! Reserves address space for frame loads (`format::jitdump::frame_load`).
//!
//! Packed code has no free bytes after it, so there is no room for its unwind tables. Therefore the group of packed code has a
//! second LOAD at another address, the frame load, and the tables follow the frame load. This module reserves the address
//! space for frame loads and their tables. Nothing is ever mapped there.

use std::sync::Mutex;

use crate::sys::mapping::{self, reserve_at};

/// Address space is reserved in areas of this many bytes, at most `AREAS` of them.
const AREA: u64 = 16 << 20;
const AREAS: usize = 64;
/// A search for an area below code may fail. After `ATTEMPTS` failed searches for code in one neighbourhood (`NEIGHBOURHOOD`
/// bytes of address space), no further search is made for code in that neighbourhood. After `FAILURES` failed searches in all,
/// no further search is made.
const ATTEMPTS: usize = 8;
const NEIGHBOURHOOD: u64 = 1 << 31;
const FAILURES: usize = 64 * ATTEMPTS;
/// The maximal distance from a frame load up to its code. With this limit, all distances in the tables fit in 32 bits.
const REACH: u64 = 0x7000_0000;

/// The frame loads of the process. Address space stays reserved, because perf remembers each frame load until the recording
/// ends. All sessions share the reserved space, so the space does not grow with each session. Only writers use `ALL`, one
/// writer at a time.
static ALL: Mutex<FrameLoads> = Mutex::new(FrameLoads { areas: Vec::new(), failures: Vec::new() });

/// Returns an address below `addr` at which `len` bytes stay free permanently, or `None` if no such address is available.
/// Always returns `None` in a child that was forked during this call, because nobody in that child releases the lock.
pub fn place(addr: u64, len: u64) -> Option<u64> {
    ALL.try_lock().ok()?.place(addr, len)
}

struct FrameLoads {
    areas: Vec<Area>,
    /// For each failed search, the neighbourhood of the code, as the address divided by `NEIGHBOURHOOD`.
    failures: Vec<u64>,
}

struct Area {
    start: u64,
    used: u64,
}

impl FrameLoads {
    fn place(&mut self, addr: u64, len: u64) -> Option<u64> {
        let fits = |area: &Area| {
            let at = area.start + area.used;
            len <= AREA - area.used && at + len <= addr && addr - at <= REACH
        };
        let index = match self.areas.iter().position(fits) {
            Some(index) => index,
            None if len > AREA || self.areas.len() == AREAS || self.is_hopeless(addr) => return None,
            None => {
                self.areas.try_reserve(1).ok()?;
                self.failures.try_reserve(1).ok()?;
                let Some(start) = reserve_below(addr) else {
                    self.failures.push(addr / NEIGHBOURHOOD);
                    return None;
                };
                self.areas.push(Area { start, used: 0 });
                self.areas.len() - 1
            }
        };
        let area = &mut self.areas[index];
        let at = area.start + area.used;
        area.used = (area.used + len.next_multiple_of(16)).min(AREA);
        Some(at)
    }

    fn is_hopeless(&self, addr: u64) -> bool {
        let in_place = self.failures.iter().filter(|&&place| place == addr / NEIGHBOURHOOD);
        self.failures.len() == FAILURES || in_place.count() == ATTEMPTS
    }
}

/// Reserves the nearest free area that is at least `AREA` bytes below `addr`. The distance leaves room for more code.
fn reserve_below(addr: u64) -> Option<u64> {
    let top = addr / mapping::page_size() as u64 * mapping::page_size() as u64;
    (2..REACH / AREA).find_map(|far| top.checked_sub(far * AREA).and_then(|start| reserve_at(start, AREA)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_below_the_code_and_apart() {
        let page = mapping::page_size();
        let region = mapping::Region::private(page).unwrap();
        let addr = region.start().as_ptr() as u64;
        let mut frame_loads = FrameLoads { areas: Vec::new(), failures: Vec::new() };
        let mut last = 0;
        for _ in 0..100 {
            let at = frame_loads.place(addr, 1000).unwrap();
            assert!(at >= last + 1000 && at + 1000 <= addr && addr - at <= REACH, "{at:x} for {addr:x}");
            last = at;
        }
        assert_eq!(frame_loads.areas.len(), 1);
        // A second area is reserved when the first is full. No area is reserved for a request that is larger than an area. No
        // area is reserved either if no area fits below the code.
        assert!(frame_loads.place(addr, AREA).is_some());
        assert_eq!(
            (frame_loads.place(addr, AREA + 1), frame_loads.place(5000, 100), frame_loads.areas.len()),
            (None, None, 2)
        );
        // Failures in one neighbourhood do not stop attempts elsewhere.
        for _ in 0..2 * ATTEMPTS {
            assert_eq!(frame_loads.place(5000, 100), None);
        }
        assert_eq!(frame_loads.failures, [0; ATTEMPTS]);
        assert!(frame_loads.is_hopeless(5000) && frame_loads.place(addr, AREA).is_some());
    }
}
