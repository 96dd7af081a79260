//! Tracks the mappings of all processes of a recording over time, in the same way as perf.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::names::Names;
use crate::perf_data::events::{kind, misc, user_mapping, Event, Mapped, OFFSET};
use crate::perf_data::{u32_at, u64_at};
use crate::spans::Spans;

/// A change of mappings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A mapping. `origin` is the address of the file's first byte, modulo 2^64.
    Map { pid: u32, range: Range<u64>, origin: u64, name: u32 },
    /// A process begins, with the mappings of its parent or none.
    Begin { pid: u32, parent: Option<u32> },
}

impl Change {
    pub fn of(event: &Event<'_>, names: &mut Names) -> Option<Change> {
        if event.kind() == kind::FORK {
            let (pid, parent) = (u32_at(event.bytes, 8), u32_at(event.bytes, 12));
            let parent_of = (event.misc() & misc::FORK_EXEC == 0).then_some(parent);
            return (pid != parent).then_some(Change::Begin { pid, parent: parent_of });
        }
        let Mapped { pid, range, name, .. } = user_mapping(event)?;
        let origin = range.start.wrapping_sub(u64_at(event.bytes, OFFSET));
        Some(Change::Map { pid, range, origin, name: names.id(&String::from_utf8_lossy(name)) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub origin: u64,
    pub name: u32,
    /// The process that has made the mapping. The children of this process have the mapping too.
    pub maker: u32,
}

/// The mappings of a process.
#[derive(Clone, Debug, Default)]
struct Space {
    areas: Spans<Area>,
    /// All mappings that a file has had, in the order of time: addresses and origin.
    of_files: HashMap<u32, Vec<(Range<u64>, u64)>>,
}

impl Space {
    fn map(&mut self, range: &Range<u64>, origin: u64, name: u32, maker: u32) {
        if range.is_empty() {
            return;
        }
        self.areas.cut(range);
        self.areas.add(range, Area { origin, name, maker });
        self.of_files.entry(name).or_default().push((range.clone(), origin));
    }

    /// The address of an offset in a file.
    fn address(&self, name: u32, offset: u64) -> Option<u64> {
        self.of_files.get(&name)?.iter().rev().find_map(|(range, origin)| {
            let address = origin.wrapping_add(offset);
            let is_there = |area: Area| (area.name, area.origin) == (name, *origin);
            (range.contains(&address) && self.areas.at(address).is_some_and(is_there)).then_some(address)
        })
    }
}

/// The mappings of all processes.
#[derive(Debug, Default)]
pub struct Spaces {
    all: HashMap<u32, Rc<Space>>,
}

impl Spaces {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Map { pid, range, origin, name } => {
                Rc::make_mut(self.all.entry(*pid).or_default()).map(range, *origin, *name, *pid);
            }
            Change::Begin { pid, parent } => {
                let space = parent.and_then(|parent| self.all.get(&parent)).cloned();
                self.all.insert(*pid, space.unwrap_or_default());
            }
        }
    }

    /// The mapping that contains an address of a process.
    pub fn at(&self, pid: u32, address: u64) -> Option<Area> {
        self.all.get(&pid)?.areas.at(address)
    }

    /// The address of an offset in a file that a process has mapped.
    pub fn address(&self, pid: u32, name: u32, offset: u64) -> Option<u64> {
        self.all.get(&pid)?.address(name, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel and virtual machines have their own mappings, at addresses that a process may use for other mappings.
    #[test]
    fn only_mappings_of_processes() {
        let change = |misc: u16, pid: u32| {
            let mut bytes = [&kind::MMAP.to_ne_bytes()[..], &misc.to_ne_bytes(), &48u16.to_ne_bytes()].concat();
            bytes.extend([pid, pid].map(u32::to_ne_bytes).concat());
            bytes.extend([0x1000u64, 0x2000, 0x3000].map(u64::to_ne_bytes).concat());
            bytes.extend(b"/a/b\0\0\0\0");
            Change::of(&Event { bytes: &bytes, offset: 0, behind: 0..0 }, &mut Names::default())
        };
        assert!(matches!(change(misc::MODE_USER, 7), Some(Change::Map { pid: 7, origin: 0xffff_ffff_ffff_e000, .. })));
        assert_eq!(change(misc::MODE_USER, u32::MAX), None);
        misc::MODE_GUEST.for_each(|mode| assert_eq!(change(mode, 7), None));
    }

    #[test]
    fn mappings_replace_mappings() {
        let mut spaces = Spaces::default();
        let mut map = |pid, range, origin, name| spaces.apply(&Change::Map { pid, range, origin, name });
        map(7, 0x1000..0x5000, 0x1000, 1);
        map(7, 0x2000..0x3000, 0, 2);
        map(7, 0x9000..0xa000, 0x8000, 1);
        spaces.apply(&Change::Begin { pid: 8, parent: Some(7) });
        spaces.apply(&Change::Map { pid: 7, range: 0x9000..0xa000, origin: 0, name: 3 });
        let at = |pid, address| spaces.at(pid, address).map(|area| (area.name, area.origin));
        assert_eq!([at(7, 0x1fff), at(7, 0x2000), at(7, 0x3000)], [Some((1, 0x1000)), Some((2, 0)), Some((1, 0x1000))]);
        assert_eq!((at(7, 0xfff), at(7, 0x5000), at(9, 0x1000)), (None, None, None));
        assert_eq!((at(7, 0x9000), at(8, 0x9000)), (Some((3, 0)), Some((1, 0x8000))));
        assert_eq!((spaces.address(7, 1, 0x100), spaces.address(7, 1, 0x1100)), (Some(0x1100), None));
        assert_eq!((spaces.address(8, 1, 0x1100), spaces.address(7, 2, 0x2010)), (Some(0x9100), Some(0x2010)));
        spaces.apply(&Change::Begin { pid: 8, parent: None });
        assert_eq!(spaces.at(8, 0x1000), None);
    }
}
