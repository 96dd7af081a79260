//! Collects data about a recording: its processes with the jitdumps that they map, its forks, and its clock.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;

use super::family::GENERATIONS;
use super::mappings::{is_region, Mappings};
use crate::objects::Taken;
use crate::perf_data::attributes::Forms;
use crate::perf_data::events::{kind, misc, user_mapping, Event, Events, Mapped};
use crate::perf_data::{u32_at, u64_at, Layout};
use crate::record::script::{injector, is_memory, jitdump_pid};

/// The minimum size of an event that contains whether the conversion is valid.
const TIME_CONV_SIZE: usize = 56;
/// The maximum number of files that are recorded for one path of a process.
const FILES_MOST: usize = 64;

/// The file system and the inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The major and the minor number.
    pub device: (u32, u32),
    pub inode: u64,
}

/// The mappings of a jitdump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub path: String,
    /// The number in the name: the pid of the process in its own namespace.
    pub number: u32,
    /// `None` if the process had the mapping when the recording began.
    pub time: Option<u64>,
    /// The files that the process had mapped by this path, if the events have their device and inode.
    pub files: Vec<Identity>,
}

/// A fork or an execution of a program. After a fork, the process has the mappings of its parent at that time. After an
/// execution, it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    pub time: u64,
    pub parent: Option<u32>,
}

/// The conversion from the processor's counter to the kernel's time (PERF_RECORD_TIME_CONV).
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
    /// The jitdumps of each process, in the order of the file, with each path once.
    pub markers: BTreeMap<u32, Vec<Marker>>,
    /// The times at which each process was forked or executed a program, ascending.
    pub begins: HashMap<u32, Vec<Begin>>,
    /// The parent of each process that was forked, even before the recording.
    pub parents: HashMap<u32, u32>,
    /// The first and the last time of an event.
    pub times: Option<Range<u64>>,
    pub conversion: Option<Conversion>,
    /// The processes with an object of an earlier `perf inject` or `jitsym inject`, with the path of an object and the
    /// program.
    pub injected: HashMap<u32, (String, &'static str)>,
    /// Whether the recording has data of the processor, such as Intel PT data, from which perf makes samples when it reads
    /// the recording.
    pub has_aux: bool,
    /// All address ranges that are mapped in any process outside of virtual machines.
    pub taken: Taken,
    /// The names of each process, ascending by time.
    names: HashMap<u32, Vec<(u64, Vec<u8>)>>,
    /// The indices of paths in `markers`.
    marked: HashMap<(u32, String), usize>,
    /// The pids of threads whose tid differs from the pid.
    threads: HashMap<u32, u32>,
    /// For each process with children, the child if it is the only one.
    only_child: HashMap<u32, Option<u32>>,
    /// The time at which a thread of each process has ended, and whether this was the first thread.
    ended: HashMap<u32, (u64, bool)>,
    /// The mappings of processes with regions.
    pub mappings: Mappings,
}

impl Survey {
    /// Reads all events. `progress` is called with the offset in the file.
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
        survey.mappings.finish(!survey.markers.is_empty());
        for (&child, &parent) in &survey.parents {
            survey.only_child.entry(parent).and_modify(|only| *only = None).or_insert(Some(child));
        }
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
                if pid == parent {
                    self.threads.insert(u32_at(event.bytes, 16), pid);
                } else {
                    self.parents.insert(pid, parent);
                    let parent = (event.misc() & misc::FORK_EXEC == 0).then_some(parent);
                    self.begins.entry(pid).or_default().push(Begin { time: time.unwrap_or(0), parent });
                }
            }
            kind::COMM => {
                let (pid, tid, time) = (u32_at(event.bytes, 8), u32_at(event.bytes, 12), time.unwrap_or(0));
                if event.misc() & misc::COMM_EXEC != 0 {
                    self.begins.entry(pid).or_default().push(Begin { time, parent: None });
                }
                let name = event.bytes.get(16..).and_then(|rest| rest.split(|&byte| byte == 0).next());
                if let Some(name) = name.filter(|_| pid == tid) {
                    self.names.entry(pid).or_default().push((time, name.to_vec()));
                }
            }
            kind::EXIT => {
                let (pid, tid) = (u32_at(event.bytes, 8), u32_at(event.bytes, 16));
                let (last, is_first) = self.ended.entry(pid).or_default();
                (*last, *is_first) = ((*last).max(time.unwrap_or(0)), *is_first || pid == tid);
            }
            kind::AUXTRACE => self.has_aux = true,
            kind::TIME_CONV => {
                let word = |at| u64_at(event.bytes, at);
                let has = |at: usize| event.bytes.get(at).is_some_and(|&byte| byte != 0);
                let (shift, mult, zero, cycles, mask) = (word(8), word(16), word(24), word(32), word(40));
                // The conversion is valid only if the kernel reports this. The event of perf 5.9 and older ends before this
                // field.
                let is_valid = has(48) || event.bytes.len() < TIME_CONV_SIZE;
                if is_valid && mult != 0 && shift < 64 {
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
            let place = *self.marked.entry((mapped.pid, path.to_owned())).or_insert(markers.len());
            match markers.get_mut(place) {
                Some(Marker { files, .. }) => {
                    files.extend(file.filter(|file| files.len() < FILES_MOST && !files.contains(file)));
                }
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
        for _ in 0..GENERATIONS {
            let names = self.names.get(&at).map_or(&[][..], Vec::as_slice);
            match names[..names.partition_point(|name| name.0 <= time)].last() {
                Some((_, name)) => return Some(name),
                // A child has the name of its parent.
                None => at = *self.parents.get(&at)?,
            }
        }
        None
    }

    /// The ancestors of a process, the nearest first. In a damaged recording, parents can form a circle.
    pub fn ancestors(&self, pid: u32) -> impl Iterator<Item = u32> + use<'_> {
        std::iter::successors(self.parents.get(&pid), |parent| self.parents.get(parent)).copied().take(GENERATIONS)
    }

    /// The process that has written a record of a jitdump. `mapped_by` is the process to which the jitdump belongs. `numbers`
    /// are the process and the thread in the record. A child continues the jitdump of its parent, if its runtime does not
    /// make a new jitdump.
    pub fn writer(&self, mapped_by: u32, numbers: (u32, u32), time: u64) -> u32 {
        let (pid, tid) = numbers;
        let thread = self.threads.get(&tid).copied().unwrap_or(tid);
        let is_child = |pid: u32| pid != mapped_by && self.ancestors(pid).any(|one| one == mapped_by);
        // Some runtimes keep the pid that they had before the fork.
        if let Some(child) = [pid, thread].into_iter().find(|&pid| is_child(pid)) {
            return child;
        }
        let has_ended = self.ended.get(&mapped_by).is_some_and(|&(end, is_first)| is_first && end < time);
        let only = self.only_child.get(&mapped_by).copied().flatten();
        only.filter(|_| has_ended).unwrap_or(mapped_by)
    }
}

/// Whether a mapping is memory without a file, in which a program may have code.
pub fn is_memory_or_heap(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| is_memory(name) || name == "[heap]")
}

/// The identity of the mapped file. Only MMAP2 events without a build-id contain it.
fn identity(event: &Event<'_>) -> Option<Identity> {
    let has_inode = event.kind() == kind::MMAP2 && event.misc() & misc::HAS_BUILD_ID == 0;
    let device = (u32_at(event.bytes, 40), u32_at(event.bytes, 44));
    let inode = u64_at(event.bytes, 48);
    (has_inode && inode != 0).then_some(Identity { device, inode })
}
