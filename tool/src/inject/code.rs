//! Reads the code of processes from their jitdumps, and converts the times to those of the recording.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::clock::{Clock, Times};
use super::dumps::{is_cut, Dump, Finder, Problem};
use super::family::Own;
use super::survey::{Identity, Survey};
use super::Read;
use crate::objects::{Load, Loads};

/// The contents of each dump, or the reason why the dump cannot be read.
pub struct Contents(HashMap<Identity, Result<Vec<u8>, String>>);

impl Contents {
    /// Reads each file once, even if several processes have mapped it.
    pub fn read(dumps: &BTreeMap<u32, Vec<Dump>>) -> Contents {
        let mut contents = HashMap::new();
        for dump in dumps.values().flatten() {
            let read = || Finder::read(dump).map_err(|error| error.to_string());
            contents.entry(dump.identity()).or_insert_with(read);
        }
        Contents(contents)
    }
}

/// The code of all processes.
#[derive(Default)]
pub struct Code<'b> {
    /// All pieces. Pieces of the same dump follow each other.
    pub all: Vec<Load<'b>>,
    /// The code that each process has loaded itself.
    pub own: Own,
    /// The first piece of each dump, and the machine of its code, in ascending order.
    machines: Vec<(usize, u32)>,
    /// The dumps that were read.
    pub read: Vec<Read>,
    /// The number of pieces that at least one process has.
    pub pieces: usize,
    pub problems: Vec<Problem>,
    /// The reason why the times of a dump cannot be compared with those of the recording.
    pub clock: Option<String>,
}

/// The code in a dump.
struct Parsed {
    /// The index of its first piece, and the index after its last piece.
    first: usize,
    end: usize,
    times: Times,
    is_cut: bool,
}

impl<'b> Code<'b> {
    pub fn of(dumps: &BTreeMap<u32, Vec<Dump>>, contents: &'b Contents, clock: Clock, survey: &Survey) -> Code<'b> {
        let mut code = Code::default();
        let mut parsed: HashMap<Identity, Result<Option<Parsed>, String>> = HashMap::new();
        let mut used = HashSet::new();
        for (&pid, dump) in dumps.iter().flat_map(|(pid, dumps)| dumps.iter().map(move |dump| (pid, dump))) {
            let problem = |why: String| Problem { pid, path: dump.name.clone(), why };
            let bytes = match contents.0.get(&dump.identity()) {
                Some(Ok(bytes)) => bytes,
                Some(Err(why)) => {
                    code.problems.push(problem(why.clone()));
                    continue;
                }
                None => continue,
            };
            let parsed = parsed.entry(dump.identity()).or_insert_with(|| code.parse(bytes, clock, survey));
            let pieces = match parsed {
                Ok(Some(parsed)) => {
                    let found = code.add(pid, dump, parsed, survey, &mut used);
                    let is_cut = parsed.is_cut.then(|| "is cut: the code in whole records is used".to_owned());
                    code.problems.extend(found.err().map(str::to_owned).or(is_cut).map(problem));
                    found.unwrap_or(0)
                }
                // All code of a process can be in regions.
                Ok(None) => 0,
                Err(why) => {
                    code.clock.get_or_insert_with(|| format!("{} {why}", dump.name));
                    code.problems.push(problem(why.clone()));
                    0
                }
            };
            code.read.push(Read { pid, path: dump.name.clone(), pieces });
        }
        code.pieces = used.len();
        // If two pieces have the same time, the piece that comes later in the file is newer.
        code.own.values_mut().for_each(|own| own.sort_by_key(|&(time, _)| time));
        code
    }

    /// Reads the code of a dump. `None` if the dump has no code. The error is the reason why its times cannot be compared
    /// with those of the recording.
    fn parse(&mut self, bytes: &'b [u8], clock: Clock, survey: &Survey) -> Result<Option<Parsed>, String> {
        let mut new = Loads::new();
        new.add_jitdump(bytes);
        if new.all.is_empty() {
            return Ok(None);
        }
        let times = Times::between(clock, new.by_counter, survey.conversion)?;
        let first = self.all.len();
        self.machines.push((first, new.machine));
        self.all.append(&mut new.all);
        Ok(Some(Parsed { first, end: self.all.len(), times, is_cut: is_cut(bytes) }))
    }

    /// Adds the code of a dump to the processes that have loaded it. Returns the number of pieces that this process and its
    /// children have loaded in time.
    fn add(
        &mut self,
        pid: u32,
        dump: &Dump,
        parsed: &Parsed,
        survey: &Survey,
        used: &mut HashSet<usize>,
    ) -> Result<usize, &'static str> {
        // A dump that was mapped after a fork has code of the time after the fork, even if the child describes inherited code
        // with the old times.
        let begins = survey.begins.get(&pid).map_or(&[][..], Vec::as_slice);
        let mapped = dump.mapped.unwrap_or(0);
        let since = begins.iter().rfind(|begin| begin.time <= mapped).map_or(0, |begin| begin.time);
        let last = survey.times.as_ref().map_or(0, |times| times.end);
        let until = dump.until.unwrap_or(u64::MAX).min(last);
        let (mut count, mut is_newer) = (0, true);
        for (index, load) in self.all.iter().enumerate().take(parsed.end).skip(parsed.first) {
            let time = parsed.times.convert(load.time).max(since);
            is_newer &= time > last;
            if time <= until {
                let writer = survey.writer(pid, (load.pid, load.tid), time);
                self.own.entry(writer).or_default().push((time, index));
                used.insert(index);
                count += 1;
            }
        }
        if is_newer {
            return Err("has only code that is newer than the recording");
        }
        Ok(count)
    }

    /// The machine of the code with this index. 0 if it is unknown, because some producers write 0.
    pub fn machine(&self, load: usize) -> u32 {
        let dump = self.machines.partition_point(|&(first, _)| first <= load);
        dump.checked_sub(1).and_then(|dump| self.machines.get(dump)).map_or(0, |&(_, machine)| machine)
    }
}
