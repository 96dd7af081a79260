//! Where stand-ins for code without room behind it are put (`format::jitdump::stand_in`): address space that is set aside, in
//! which nothing is ever mapped.

use crate::sys::mem::{self, Reserved};

/// Address space that is asked for at a time.
const AREA: u64 = 16 << 20;
/// How many such areas there may be.
const AREAS: usize = 64;
/// How far below the code a stand-in may lie, so that all distances fit 32 bits.
const REACH: u64 = 0x7000_0000;

/// See the module's description. What has been set aside stays so: perf knows of each stand-in until the recording ends.
#[derive(Default)]
pub struct StandIns {
    areas: Vec<Area>,
}

struct Area {
    reserved: Reserved,
    used: u64,
}

impl StandIns {
    /// An address below `addr` from which on `len` bytes are free. `None` if there is none to be had.
    pub fn place(&mut self, addr: u64, len: u64) -> Option<u64> {
        let fits = |area: &Area| {
            let at = area.reserved.start() + area.used;
            len <= AREA - area.used && at + len <= addr && addr - at <= REACH
        };
        let index = match self.areas.iter().position(fits) {
            Some(index) => index,
            None if len > AREA || self.areas.len() == AREAS => return None,
            None => {
                self.areas.try_reserve(1).ok()?;
                let page = mem::page_size() as u64;
                // Doubling the distance each time, for address spaces that are full near the code.
                let reserved = (0..6).find_map(|far: u32| {
                    let below = addr.checked_sub((2 * AREA) << far)?;
                    Reserved::at(below / page * page, AREA)
                })?;
                self.areas.push(Area { reserved, used: 0 });
                self.areas.len() - 1
            }
        };
        let area = &mut self.areas[index];
        if !fits(area) {
            return None;
        }
        let at = area.reserved.start() + area.used;
        area.used += len.next_multiple_of(16);
        area.used = area.used.min(AREA);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_below_the_code_and_apart() {
        let page = mem::page_size();
        let region = mem::Region::private(page).unwrap();
        let addr = region.start().as_ptr() as u64;
        let mut stand_ins = StandIns::default();
        let mut last = 0;
        for _ in 0..100 {
            let at = stand_ins.place(addr, 1000).unwrap();
            assert!(at >= last + 1000 && at + 1000 <= addr && addr - at <= REACH, "{at:x} for {addr:x}");
            last = at;
        }
        assert_eq!(stand_ins.areas.len(), 1);
        // Another area when the first one is full, and none for what fits none.
        assert!(stand_ins.place(addr, AREA).is_some());
        assert_eq!(
            (stand_ins.place(addr, AREA + 1), stand_ins.place(5000, 100), stand_ins.areas.len()),
            (None, None, 2)
        );
    }
}
