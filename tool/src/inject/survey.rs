//! What a recording has: its processes with the jitdumps that they map, its forks, its clock.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;

use super::mappings::{is_region, Mappings};
use crate::objects::Taken;
use crate::perf_data::attributes::Forms;
use crate::perf_data::events::{kind, mapping, Event, Events, Mapped};
use crate::perf_data::{u32_at, u64_at, Layout};
use crate::record::script::{injector, is_memory, jitdump_pid};

/// Bits of an event's `misc`: the mode of the processor, and that a program was executed (COMM), that the child's mappings follow
/// in events of their own (FORK), that a build-id is in the place of device and inode (MMAP2).
const MODE: u16 = 7;
pub const MODE_USER: u16 = 2;
const MODE_GUEST: Range<u16> = 4..6;
pub const COMM_EXEC: u16 = 1 << 13;
const FORK_EXEC: u16 = 1 << 13;
pub const HAS_BUILD_ID: u16 = 1 << 14;

/// The file system and the inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Major and minor number.
    pub device: (u32, u32),
    pub inode: u64,
}

/// The mappings of a jitdump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub path: String,
    /// The number in the name: the pid that the process has in its own namespace.
    pub number: u32,
    /// `None` if the process had the mapping when the recording began.
    pub time: Option<u64>,
    /// The files that the process had mapped by this path, if the events have their device and inode.
    pub files: Vec<Identity>,
}

/// From a time on, a process has the mappings of its parent at that time, or none if it executes another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    pub time: u64,
    pub parent: Option<u32>,
}

/// How the processor's counter becomes the kernel's time (PERF_RECORD_TIME_CONV).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    pub shift: u64,
    pub mult: u64,
    pub zero: u64,
    pub cycles: u64,
    pub mask: u64,
    pub is_short: bool,
}

#[derive(Debug, Default)]
pub struct Survey {
    /// The jitdumps of each process, in the order of the file, each path once.
    pub markers: BTreeMap<u32, Vec<Marker>>,
    /// When each process was forked and executed a program, ascending by time.
    pub begins: HashMap<u32, Vec<Begin>>,
    /// The parent of each process that was forked, even before the recording.
    pub parents: HashMap<u32, u32>,
    /// The first and the last time of an event.
    pub times: Option<Range<u64>>,
    pub conversion: Option<Conversion>,
    /// The processes with an object of an earlier `perf inject` or `jitsym inject`: an object, and the program.
    pub injected: HashMap<u32, (String, &'static str)>,
    /// Everything that is mapped in any process, outside of virtual machines.
    pub taken: Taken,
    /// The names of each process, ascending by time.
    names: HashMap<u32, Vec<(u64, Vec<u8>)>>,
    /// The mappings of processes with regions.
    pub mappings: Mappings,
}

impl Survey {
    /// Reads all events. `progress` gets the offset in the file.
    pub fn read(
        file: &File,
        layout: &Layout,
        forms: &Forms<'_>,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> io::Result<Survey> {
        let mut survey = Survey::default();
        Events::new(file, layout)?.each(progress, &mut |event| {
            survey.add(event, forms.time(event));
            Ok(())
        })?;
        survey.begins.values_mut().for_each(|begins| begins.sort_by_key(|begin| begin.time));
        survey.mappings.finish();
        survey.names.values_mut().for_each(|names| names.sort_by_key(|name| name.0));
        Ok(survey)
    }

    fn add(&mut self, event: &Event<'_>, time: Option<u64>) {
        if let Some(time) = time {
            let times = self.times.get_or_insert(time..time);
            (times.start, times.end) = (times.start.min(time), times.end.max(time));
        }
        match event.kind() {
            kind::MMAP | kind::MMAP2 => {
                if let Some(mapped) = user_mapping(event) {
                    self.add_mapping(event, &mapped, time);
                }
            }
            kind::FORK if event.bytes.len() >= 24 => {
                let (pid, parent) = (u32_at(event.bytes, 8), u32_at(event.bytes, 12));
                // A new thread has the pid of its process.
                if pid != parent {
                    self.parents.insert(pid, parent);
                    let parent = (event.misc() & FORK_EXEC == 0).then_some(parent);
                    self.begins.entry(pid).or_default().push(Begin { time: time.unwrap_or(0), parent });
                }
            }
            kind::COMM => {
                let (pid, tid, time) = (u32_at(event.bytes, 8), u32_at(event.bytes, 12), time.unwrap_or(0));
                if event.misc() & COMM_EXEC != 0 {
                    self.begins.entry(pid).or_default().push(Begin { time, parent: None });
                }
                let name = event.bytes.get(16..).and_then(|rest| rest.split(|&byte| byte == 0).next());
                if let Some(name) = name.filter(|_| pid == tid) {
                    self.names.entry(pid).or_default().push((time, name.to_vec()));
                }
            }
            kind::TIME_CONV => {
                let word = |at| u64_at(event.bytes, at);
                let has = |at: usize| event.bytes.get(at).is_some_and(|&byte| byte != 0);
                let (shift, mult, zero, cycles, mask) = (word(8), word(16), word(24), word(32), word(40));
                // The conversion holds only if the kernel says that it does.
                if has(48) && mult != 0 && shift < 64 {
                    self.conversion = Some(Conversion { shift, mult, zero, cycles, mask, is_short: has(49) });
                }
            }
            _ => {}
        }
    }

    fn add_mapping(&mut self, event: &Event<'_>, mapped: &Mapped<'_>, time: Option<u64>) {
        let path = String::from_utf8_lossy(mapped.name);
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        self.mappings.add(event, mapped, path, time);
        let is_code = is_memory_or_heap(mapped.name) || is_region(path);
        match is_code {
            true => self.taken.add(mapped.range.clone()),
            false => self.taken.add_file(mapped.range.clone()),
        }
        if let Some(number) = jitdump_pid(path) {
            let file = identity(event);
            let markers = self.markers.entry(mapped.pid).or_default();
            match markers.iter_mut().find(|marker| marker.path == path) {
                Some(marker) => marker.files.extend(file.filter(|file| !marker.files.contains(file))),
                None => {
                    let files = file.into_iter().collect();
                    markers.push(Marker { path: path.to_owned(), number, time, files });
                }
            }
        } else if let Some(by) = injector(path) {
            self.injected.entry(mapped.pid).or_insert_with(|| (path.to_owned(), by.program()));
        }
    }

    /// The name of a process at a time.
    pub fn name(&self, pid: u32, time: u64) -> Option<&[u8]> {
        let mut at = pid;
        for _ in 0..=self.parents.len() {
            let names = self.names.get(&at).map_or(&[][..], Vec::as_slice);
            match names[..names.partition_point(|name| name.0 <= time)].last() {
                Some((_, name)) => return Some(name),
                // A child has the name of its parent.
                None => at = *self.parents.get(&at)?,
            }
        }
        None
    }

    /// Whether one process descends from the other one.
    pub fn descends(&self, pid: u32, from: u32) -> bool {
        let mut at = pid;
        // Each process is visited once, even if the recording names a circle of parents.
        for _ in 0..self.parents.len() {
            match self.parents.get(&at) {
                Some(&parent) if parent == from => return true,
                Some(&parent) => at = parent,
                None => return false,
            }
        }
        false
    }
}

/// The mapping of an event, if it is one of a process outside of virtual machines.
pub fn user_mapping<'a>(event: &Event<'a>) -> Option<Mapped<'a>> {
    let is_guest = MODE_GUEST.contains(&(event.misc() & MODE));
    mapping(event.bytes).filter(|mapped| !is_guest && mapped.pid != u32::MAX)
}

/// Whether a mapping is memory without a file, in which a program may have code.
pub fn is_memory_or_heap(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| is_memory(name) || name == "[heap]")
}

/// The mapped file. Only MMAP2 events without a build-id tell it.
fn identity(event: &Event<'_>) -> Option<Identity> {
    let has_inode = event.kind() == kind::MMAP2 && event.misc() & HAS_BUILD_ID == 0;
    let device = (u32_at(event.bytes, 40), u32_at(event.bytes, 44));
    let inode = u64_at(event.bytes, 48);
    (has_inode && inode != 0).then_some(Identity { device, inode })
}
