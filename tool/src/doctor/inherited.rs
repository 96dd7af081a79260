//! Finds code of forked children for which perf shows names from the map of the parent: perf reads the map of the process that
//! has mapped the memory.

use std::collections::HashMap;
use std::path::Path;

use jitsym::format::file_names::FileKind;
use jitsym::format::perf_map;

use super::producers;
use super::shares::{Shares, SOME};
use super::{Rank, Report};
use crate::record::script::{of_path, Kind, Sample};
use crate::record::stacks::percent;
use crate::record::PROC;
use crate::text::{count, printable};

/// The most bytes of all maps together that are read.
const MOST: u64 = 64 << 20;

/// Start, end and name of the code in a map.
type Map = Vec<(u64, u64, Box<str>)>;

/// Counts samples that have the name of the parent's code, although the map of the child has another name there.
#[derive(Default)]
pub struct Inherited {
    maps: HashMap<u32, Map>,
    /// The number of bytes in the maps that were read.
    bytes: u64,
    samples: u64,
    /// The names in the maps of the parent and of the child, for the first of these samples.
    first: Option<(String, String)>,
}

impl Inherited {
    pub fn add(&mut self, sample: &Sample) {
        let Some(frame) = sample.compiled().filter(|frame| frame.kind() == Kind::Map) else { return };
        let Some((parent, FileKind::PerfMap)) = of_path(&frame.object) else { return };
        let Some(shown) = frame.symbol.as_deref().filter(|_| parent != sample.pid) else { return };
        if self.name_at(parent, frame.address).is_none_or(|of_parent| of_parent != shown) {
            return;
        }
        if let Some(of_child) = self.name_at(sample.pid, frame.address).filter(|of_child| *of_child != shown) {
            let both = (shown.to_owned(), of_child.to_owned());
            self.first.get_or_insert(both);
            self.samples += 1;
        }
    }

    /// The name in the map of a process.
    fn name_at(&mut self, pid: u32, address: u64) -> Option<&str> {
        let map = self.maps.entry(pid).or_insert_with(|| read(pid, &mut self.bytes));
        let below = map.partition_point(|(start, ..)| *start <= address);
        map[..below].last().filter(|(_, end, _)| address < *end).map(|(.., name)| &**name)
    }

    /// Reports the samples.
    pub fn tell(&self, shares: &Shares, report: &mut Report) {
        let Some((of_parent, of_child)) = &self.first else { return };
        let line = format!("{} in a forked child with names of its parent's code", count(self.samples, "sample"));
        if percent(self.samples, shares.compiled) < SOME {
            report.note(line);
            return;
        }
        let text = format!(
            "a forked child has registered {} where its parent has {}, and perf shows the parent's name: for memory that was mapped \
             before the fork, perf reads the parent's map. A jitdump has the right names (JITSYM=on), and so has new memory for the \
             child's code",
            printable(of_child.as_bytes()),
            printable(of_parent.as_bytes())
        );
        report.cause(line, Rank::Quality, text, "JITSYM=on jitsym record -- COMMAND");
    }
}

fn read(pid: u32, bytes: &mut u64) -> Map {
    let (text, _) = producers::map_text(pid, Path::new(PROC), MOST - *bytes).unwrap_or_default();
    *bytes += text.len() as u64;
    let owned = |(start, size, name)| (start, start + size, String::from_utf8_lossy(name).into());
    let mut map: Map = perf_map::lines(&text).map(owned).collect();
    map.sort();
    map
}
