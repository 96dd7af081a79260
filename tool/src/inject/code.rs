//! Reads the code of processes from their dumps, with the times of the recording.

use std::collections::HashMap;

use super::clock::{Clock, Times};
use super::dumps::{is_cut, Dump, Finder};
use super::survey::Survey;
use crate::objects::Loads;

/// Reads dumps.
pub struct Reader<'a> {
    pub clock: Clock,
    pub survey: &'a Survey,
}

/// The contents of a dump.
pub struct Contents<'a> {
    pid: u32,
    dump: &'a Dump,
    bytes: Vec<u8>,
}

/// Why a dump is not used, or not completely.
pub enum Refused {
    /// Its times cannot be compared with those of the recording.
    Clock(String),
    Other(String),
}

/// The code of a process and of those from which it can have inherited code.
#[derive(Default)]
pub struct Code<'b> {
    pub loads: Loads<'b>,
    /// The own code of each process: times and indices, ascending.
    pub own: HashMap<u32, Vec<(u64, usize)>>,
}

impl<'a> Reader<'a> {
    pub fn open(&self, pid: u32, dump: &'a Dump) -> Result<Contents<'a>, String> {
        let bytes = Finder::read(dump).map_err(|error| error.to_string())?;
        Ok(Contents { pid, dump, bytes })
    }

    /// Adds the code of a dump.
    pub fn add<'b>(&self, code: &mut Code<'b>, contents: &'b Contents<'_>) -> Result<(), Refused> {
        let other = |why: &str| Err(Refused::Other(why.into()));
        let mut new = Loads::new();
        new.add_jitdump(&contents.bytes);
        // All code of a process can be in regions.
        if new.all.is_empty() {
            return Ok(());
        }
        let times = Times::between(self.clock, new.by_counter, self.survey.conversion).map_err(Refused::Clock)?;
        new.all.iter_mut().for_each(|load| load.time = times.convert(load.time));
        // A dump that was mapped after a fork has code of the time after the fork, even if the child describes what it has
        // inherited, with the old times.
        let begins = self.survey.begins.get(&contents.pid).map_or(&[][..], Vec::as_slice);
        let mapped = contents.dump.mapped.unwrap_or(0);
        if let Some(begin) = begins.iter().rfind(|begin| begin.time <= mapped) {
            new.all.iter_mut().for_each(|load| load.time = load.time.max(begin.time));
        }
        let last = self.survey.times.as_ref().map_or(0, |times| times.end);
        if new.all.iter().all(|load| load.time > last) {
            return other("has only code that is newer than the recording");
        }
        let until = contents.dump.until.unwrap_or(u64::MAX).min(last);
        new.all.retain(|load| load.time <= until);
        let first = code.loads.all.len();
        let own = code.own.entry(contents.pid).or_default();
        own.extend(new.all.iter().enumerate().map(|(number, load)| (load.time, first + number)));
        // Of the same time, the code that comes later in the file is newer.
        own.sort_by_key(|&(time, _)| time);
        // Some producers write 0.
        if new.machine != 0 {
            code.loads.machine = new.machine;
        }
        code.loads.all.append(&mut new.all);
        match is_cut(&contents.bytes) {
            true => other("is cut: the code in whole records is used"),
            false => Ok(()),
        }
    }
}
