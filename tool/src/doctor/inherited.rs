//! Finds code of forked children for which perf shows names from the map of the parent: perf reads the map of the process that
//! has mapped the memory.

use std::collections::HashMap;
use std::path::Path;

use jitsym::format::file_names::FileKind;
use jitsym::format::perf_map;

use super::producers;
use super::shares::Shares;
use super::{Rank, Report};
use crate::record::script::{of_path, Kind, Sample};
use crate::record::stacks::percent;
use crate::record::PROC;
use crate::text::{count, printable};

/// The most bytes of a map that are read.
const MOST: u64 = 64 << 20;
/// The percentage of all samples from which on something is reported as a cause.
const SOME: f64 = 1.0;

/// Start, end and name of the code in a map.
type Map = Vec<(u64, u64, Vec<u8>)>;

/// Counts samples that have the name of the parent's code, although the map of the child has another name there.
#[derive(Default)]
pub struct Inherited {
    maps: HashMap<u32, Map>,
    samples: u64,
    /// The names in the maps of the parent and of the child, for the first of these samples.
    first: Option<(Vec<u8>, Vec<u8>)>,
}

impl Inherited {
    pub fn add(&mut self, sample: &Sample) {
        let Some(frame) = sample.compiled().filter(|frame| frame.kind() == Kind::Map) else { return };
        let Some((parent, FileKind::PerfMap)) = of_path(&frame.object) else { return };
        if parent == sample.pid {
            return;
        }
        let mut name = |pid| name_at(self.maps.entry(pid).or_insert_with(|| read(pid)), frame.address);
        if let (Some(of_parent), Some(of_child)) = (name(parent), name(sample.pid)) {
            if of_parent != of_child {
                self.samples += 1;
                self.first.get_or_insert((of_parent, of_child));
            }
        }
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
            "a forked child runs {}, and perf shows {}: for memory that was mapped before the fork, perf reads the parent's map. A \
             jitdump has the right names (JITSYM=on), and so has new memory for the child's code",
            printable(of_child),
            printable(of_parent)
        );
        report.cause(line, Rank::Quality, text, "JITSYM=on jitsym record -- COMMAND");
    }
}

fn read(pid: u32) -> Map {
    let (text, _) = producers::map_text(pid, Path::new(PROC), MOST).unwrap_or_default();
    let mut map: Map = perf_map::lines(&text).map(|(start, size, name)| (start, start + size, name.to_vec())).collect();
    map.sort();
    map
}

fn name_at(map: &Map, address: u64) -> Option<Vec<u8>> {
    let below = map.partition_point(|(start, ..)| *start <= address);
    map[..below].last().filter(|(_, end, _)| address < *end).map(|(.., name)| name.clone())
}
