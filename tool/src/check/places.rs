//! Tracks the addresses of code over time, and reports when a new mapping covers older mappings.
//!
//! perf makes a mapping for each LOAD, from the time of the LOAD's record on. The mapping is as long as the code. If the
//! LOAD has a `mapped_size`, the code's end is rounded up to 8, and the mapping continues from there for `mapped_size` bytes. A
//! later mapping replaces the parts of earlier mappings that it covers. Records count in the order of their times, not in the
//! order of the file.

use std::collections::BTreeMap;

use jitsym::format::jitdump::raw::{RawHeader, RawRecords};

use super::rules;
use super::{Finding, Place, Report};
use crate::text::{shortened, SHORT_BYTES};

/// The relevant parts of a LOAD.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub time: u64,
    pub addr: u64,
    pub size: u64,
    pub mapped_size: u64,
    pub offset: usize,
}

impl Load {
    fn code_end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }

    fn mapped_end(&self) -> u64 {
        match self.mapped_size {
            0 => self.code_end(),
            more => self.addr.saturating_add(self.size.saturating_add(7) & !7).saturating_add(more),
        }
    }
}

/// All LOADs of a file.
#[derive(Default)]
pub(super) struct Places {
    loads: Vec<Load>,
}

/// The remaining part of a mapping: its end, and the index of its LOAD.
#[derive(Clone, Copy)]
struct Piece {
    end: u64,
    owner: usize,
}

impl Places {
    pub fn is_empty(&self) -> bool {
        self.loads.is_empty()
    }

    pub fn len(&self) -> usize {
        self.loads.len()
    }

    pub fn push(&mut self, load: Load) {
        self.loads.push(load);
    }

    pub fn check(mut self, file: &[u8], header: &RawHeader, report: &mut dyn Report) {
        self.loads.sort_by_key(|load| load.time);
        let mut pieces: BTreeMap<u64, Piece> = BTreeMap::new();
        for (number, load) in self.loads.iter().enumerate() {
            let (start, end) = (load.addr, load.mapped_end());
            if start >= end {
                continue;
            }
            while let Some((at, piece)) = last_overlapping(&pieces, start, end) {
                pieces.remove(&at);
                let common = at.max(start)..piece.end.min(end);
                meet(file, header, &self.loads[piece.owner], load, common, report);
                if at < start {
                    pieces.insert(at, Piece { end: start, ..piece });
                }
                if piece.end > end {
                    pieces.insert(end, piece);
                }
            }
            pieces.insert(start, Piece { end, owner: number });
        }
    }
}

/// The highest piece that overlaps the range.
fn last_overlapping(pieces: &BTreeMap<u64, Piece>, start: u64, end: u64) -> Option<(u64, Piece)> {
    let (&at, &piece) = pieces.range(..end).next_back()?;
    (piece.end > start).then_some((at, piece))
}

/// Reports that a new mapping covers `common` of an older one.
fn meet(
    file: &[u8],
    header: &RawHeader,
    old: &Load,
    new: &Load,
    common: std::ops::Range<u64>,
    report: &mut dyn Report,
) {
    let over_old_code = common.start < old.code_end();
    let over_new_code = common.start < new.code_end();
    let other = format!("\"{}\" at {:#x}, of the record at {:#x}", name_at(file, header, old), old.addr, old.offset);
    let range = format!("{:#x}+{:#x}", new.addr, new.size);
    let (rule, text) = match (over_old_code, over_new_code) {
        (true, true) if old.time == new.time => {
            (&rules::LOAD_OVERLAP_SAME_TIME, format!("{range} overlaps {other}, of the same time"))
        }
        (true, true) if swallows(file, header, old, new) => {
            let (name, swallowed) = (name_at(file, header, new), name_at(file, header, old));
            let at = old.addr - new.addr;
            let text = format!(
                "registered with a size of {:#x}, but \"{swallowed}\" begins at +{at:#x}: give \"{name}\" at most {at:#x} \
                 (jitsym_code.size)",
                new.size
            );
            (&rules::LOAD_SWALLOWS, text)
        }
        (true, true) => (&rules::LOAD_OVERLAP, format!("{range} overlaps {other}")),
        (true, false) => {
            (&rules::MAPPED_OVER_EARLIER, format!("{range} is mapped up to {:#x}, over {other}", new.mapped_end()))
        }
        (false, true) => (
            &rules::MAPPED_OVER_LATER,
            format!("{range} lies in what is mapped up to {:#x} for {other}", old.mapped_end()),
        ),
        // Only unused bytes overlap.
        (false, false) => return,
    };
    let (place, subject) = (Place::Offset(new.offset as u64), format!("LOAD \"{}\"", name_at(file, header, new)));
    report.finding(Finding { rule, place, subject, text });
}

/// The minimum number of equal bytes. Fewer bytes may be equal by chance.
const FEWEST: usize = 6;

/// Whether the older code still exists unchanged inside the newer code, which has another name.
fn swallows(file: &[u8], header: &RawHeader, old: &Load, new: &Load) -> bool {
    let load_at = |load: &Load| RawRecords::at(file, load.offset, header).next()?.load();
    let Some((old_load, new_load)) = load_at(old).zip(load_at(new)) else { return false };
    let Some((old_code, new_code)) = old_load.code().zip(new_load.code()) else { return false };
    // This is true only if the older code begins after the start of the newer code.
    let at = old.addr.checked_sub(new.addr).filter(|&at| at > 0).and_then(|at| usize::try_from(at).ok());
    let inside = at.and_then(|at| new_code.get(at..)?.get(..old_code.len()));
    old_code.len() >= FEWEST
        && inside == Some(old_code)
        && old_code.windows(2).any(|pair| pair[0] != pair[1])
        && old_load.name() != new_load.name()
}

/// Returns the name in a record that was read before. The end of a long name is not searched, because this function is called
/// for each mapping over this mapping.
fn name_at(file: &[u8], header: &RawHeader, load: &Load) -> String {
    let record = RawRecords::at(file, load.offset, header).next();
    let tail = record.and_then(|record| record.load()).map_or(&[][..], |load| load.tail);
    let start = &tail[..tail.len().min(SHORT_BYTES)];
    shortened(start.split(|&byte| byte == 0).next().unwrap_or_default()).to_string()
}
