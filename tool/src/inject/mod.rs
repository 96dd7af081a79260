//! `jitsym inject`: writes a recording anew, with objects for the code in jitdumps.

mod clock;
mod code;
mod cover;
mod dumps;
mod family;
mod hits;
mod mappings;
mod output;
mod region_debug;
mod region_file;
mod regions;
mod resolve;
mod survey;
mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clock::Clock;
use code::{Code, Reader, Refused};
use cover::{Cover, Covers};
use dumps::{Dump, Finder};
pub use dumps::{Given, Problem};
use family::Families;
use hits::{Filter, Hit};
pub use output::usual;
use output::{Failure, Output};
use regions::{Piece, Regions, Replaced, Tracker};
use resolve::Event;
use survey::Survey;
use write::{Insert, New};

use crate::objects::{self, Epochs, Load, Mapping, Object, Taken, FILES_MAX};
use crate::open;
use crate::perf_data::attributes::Forms;
use crate::perf_data::Layout;

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub input: PathBuf,
    pub output: PathBuf,
    /// The directory of the objects, if the user has chosen one.
    pub objects: Option<PathBuf>,
    pub given: Given,
    /// Users whose jitdumps are used, in addition to the user of the recording.
    pub users: Vec<u32>,
    /// Whether the new recording may take the place of the one that is read.
    pub replaces: bool,
}

/// The most bytes in objects: so many times the bytes of all jitdumps, so many more, and so many more for each process, because
/// processes that were forked have objects of their own with the same code. A hostile program could fill the disk.
const TIMES: u64 = 4;
const MORE: u64 = 64 << 20;
const FORKED: u64 = 256 << 10;

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many processes have compiled code in samples.
    pub processes: usize,
    /// How many pieces of code all dumps have, and how many of them are in samples.
    pub pieces: usize,
    pub used: usize,
    pub objects: usize,
    /// The directory of the objects, if there are any.
    pub dir: Option<PathBuf>,
    /// How many jitdumps the recording names.
    pub dumps: usize,
    /// The jitdumps that were read, with the number of pieces of code that can be used.
    pub read: Vec<Read>,
    /// How many files of regions can be used.
    pub regions: usize,
    /// Uses of code that is in no object, because there are too many objects.
    pub left_out: usize,
    /// Dumps that were not used, or not completely.
    pub problems: Vec<Problem>,
}

impl Summary {
    /// How many jitdumps have code that can be used.
    pub fn good(&self) -> usize {
        self.read.iter().filter(|read| read.pieces > 0).count()
    }
}

/// A jitdump that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub pid: u32,
    /// The path in the recording.
    pub path: String,
    pub pieces: usize,
}

/// How far the work is: bytes done, and all bytes. An error stops the work, and nothing is left of it.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> io::Result<()>;

/// Writes the new recording. Without an error it is whole, and after an error it does not exist.
pub fn inject(options: &Options, progress: Progress<'_>) -> Result<Summary, Failure> {
    let about_input = |error| (options.input.clone(), error);
    let refused = |why: String| about_input(io::Error::new(io::ErrorKind::InvalidData, why));
    if options.input.is_dir() {
        return Err(refused("is a directory: record without `--threads`".into()));
    }
    let file = open::named(&options.input).map_err(about_input)?;
    let data = file.metadata().map_err(about_input)?;
    let layout = Layout::read(&file).map_err(about_input)?;
    let forms = Forms::new(&layout.attributes).map_err(about_input)?;
    // The events are read three times.
    let (len, total) = (layout.len, layout.len.saturating_mul(3));
    let mut survey = Survey::read(&file, &layout, &forms, &mut |done| progress(done, total)).map_err(about_input)?;
    let before = already(&mut survey).map_err(refused)?;
    let output = Output::new(options, &data)?;
    let users = options.users.iter().copied().chain([data.uid()]).collect();
    let finder = Finder { given: &options.given, users };
    let (dumps, mut problems) = finder.all(&survey);
    problems.extend(before);
    let reader = Reader { clock: Clock::of(&layout.attributes), survey: &survey };
    let summary = Summary {
        dumps: survey.markers.values().map(Vec::len).sum::<usize>().max(dumps.len()),
        problems,
        ..Summary::default()
    };
    let regions = Regions::find(&finder, &survey.mappings);
    let mut injection = Injection {
        reader,
        finder: &finder,
        dumps: &dumps,
        regions,
        output: &output,
        made: Made { summary, ..Made::default() },
    };
    let filter = injection.all_code();
    let good = injection.made.summary.good() + injection.regions.good();
    if let (0, Some(why)) = (good, &injection.made.clock) {
        return Err(refused(format!("cannot be used: {why}")));
    }
    injection.objects(&file, &layout, &forms, &filter, &mut |done| progress(len + done, total)).map_err(|failure| {
        match failure {
            (None, error) => about_input(error),
            (Some(path), error) => (path, error),
        }
    })?;
    let Made { inserts, objects, covers, replaced, mut summary, .. } = injection.made;
    summary.regions = injection.regions.good();
    summary.problems.append(&mut injection.regions.problems);
    let covers = Covers { by_pid: covers, begins: &survey.begins };
    let new = New { inserts, objects: &objects, covers, survey: &survey, replaced };
    let copied = write::write(&file, &layout, &forms, &new, &output.file, &mut |done| progress(2 * len + done, total));
    copied.and_then(|()| progress(total, total)).map_err(about_input)?;
    summary.dir = output.finish(!objects.is_empty())?;
    summary.objects = objects.len();
    Ok(summary)
}

/// Leaves out the processes whose code is in the recording already. The error tells that all of them are such.
fn already(survey: &mut Survey) -> Result<Vec<Problem>, String> {
    let Survey { markers, injected, .. } = survey;
    let why = |path: &str, by: &str| {
        format!("has objects of `{by}` already, such as {path}: inject into the recording of `perf record`")
    };
    // `perf inject` takes the mappings of jitdumps out of the recording.
    match injected.values().min() {
        Some((path, by)) if markers.keys().all(|pid| injected.contains_key(pid)) => return Err(why(path, by)),
        _ => {}
    }
    // Any program can map a file of such a name, so the other processes are not affected.
    let mut problems = Vec::new();
    markers.retain(|&pid, markers| {
        let Some((path, by)) = injected.get(&pid) else { return true };
        let new = |marker: &survey::Marker| Problem { pid, path: marker.path.clone(), why: why(path, by) };
        problems.extend(markers.iter().map(new));
        false
    });
    Ok(problems)
}

/// What was made of the dumps.
#[derive(Default)]
struct Made<'a> {
    /// Ascending by time.
    inserts: Vec<Insert>,
    objects: Vec<Object>,
    /// By process.
    covers: HashMap<u32, Cover>,
    replaced: Replaced<'a>,
    summary: Summary,
    /// How many bytes of code and how many files the objects of further processes may have.
    left: (u64, usize),
    /// Why the times of a dump cannot be compared with those of the recording.
    clock: Option<String>,
}

struct Injection<'a> {
    reader: Reader<'a>,
    finder: &'a Finder<'a>,
    dumps: &'a BTreeMap<u32, Vec<Dump>>,
    regions: Regions<'a>,
    output: &'a Output,
    made: Made<'a>,
}

impl<'a> Injection<'a> {
    fn problem(&mut self, pid: u32, dump: &Dump, why: String) {
        self.made.summary.problems.push(Problem { pid, path: dump.name.clone(), why });
    }

    /// Reads all dumps once, and finds out where code is.
    fn all_code(&mut self) -> Filter {
        let mut ranges = Vec::new();
        for (&pid, dump) in self.dumps.iter().flat_map(|(pid, dumps)| dumps.iter().map(move |dump| (pid, dump))) {
            let mut code = Code::default();
            let contents = match self.reader.open(pid, dump) {
                Ok(contents) => contents,
                Err(why) => {
                    self.problem(pid, dump, why);
                    continue;
                }
            };
            match self.reader.add(&mut code, &contents) {
                Ok(()) => {}
                Err(Refused::Other(why)) => self.problem(pid, dump, why),
                Err(Refused::Clock(why)) => {
                    self.made.clock.get_or_insert_with(|| format!("{}: {why}", dump.name));
                    self.problem(pid, dump, why);
                }
            }
            let pieces = code.loads.all.len();
            self.made.summary.read.push(Read { pid, path: dump.name.clone(), pieces });
            self.made.summary.pieces += pieces;
            ranges.extend(code.loads.all.iter().map(Load::range));
        }
        ranges.extend(self.regions.ranges());
        Filter::of(ranges)
    }

    /// Makes the objects of all processes that have compiled code in samples.
    fn objects(
        &mut self,
        file: &File,
        layout: &Layout,
        forms: &Forms<'_>,
        filter: &Filter,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> Result<(), (Option<PathBuf>, io::Error)> {
        let survey = self.reader.survey;
        let families = Families { begins: &survey.begins };
        let has_code: HashSet<u32> = self.dumps.keys().copied().chain(self.regions.pids()).collect();
        let forked =
            survey.begins.keys().copied().filter(|&pid| families.line(pid).iter().any(|one| has_code.contains(one)));
        let pids: HashSet<u32> = has_code.iter().copied().chain(forked).collect();
        let hits = hits::read(file, layout, forms, filter, &pids, progress).map_err(|error| (None, error))?;
        let mut pids: Vec<u32> = hits.keys().copied().collect();
        pids.sort_unstable();
        let dumps: u64 = self.dumps.values().flatten().map(Dump::len).fold(0, u64::saturating_add);
        let most = dumps.saturating_mul(TIMES).saturating_add(MORE).saturating_add(FORKED * pids.len() as u64);
        self.made.left = (most, FILES_MAX);
        for pid in pids {
            progress(layout.len).map_err(|error| (None, error))?;
            let made = self.process(pid, &families, hits.get(&pid).map_or(&[], Vec::as_slice), &survey.taken);
            made.map_err(|error| (Some(self.output.dir.path().to_owned()), error))?;
        }
        self.made.inserts.sort_by_key(|insert| insert.mapping.time);
        Ok(())
    }

    /// Makes the objects of a process.
    fn process(&mut self, pid: u32, families: &Families<'_>, hits: &[Hit], taken: &Taken) -> io::Result<()> {
        let line = families.line(pid);
        let dumps = line.iter().flat_map(|one| self.dumps.get(one).into_iter().flatten().map(move |dump| (*one, dump)));
        // What is wrong with a dump was said when all code was read.
        let contents: Vec<_> = dumps.filter_map(|(one, dump)| self.reader.open(one, dump).ok()).collect();
        let mut code = Code::default();
        for contents in &contents {
            let _ = self.reader.add(&mut code, contents);
        }
        let Code { mut loads, own } = code;
        loads.pid = pid;
        let mut life = families.life(pid, &own);
        life.extend(families.life(pid, &self.regions.own).into_iter().map(|(time, event)| match event {
            Event::Load(mapping) => (time, Event::Map(mapping)),
            other => (time, other),
        }));
        // Of the same time, the code of a process is gone before it has other code.
        life.sort_by_key(|&(time, event)| (time, event != Event::Clear));
        let place = |load: usize| loads.all.get(load).map_or(0..0, Load::range);
        let mut tracker = Tracker::new(&mut self.regions, self.finder, &loads);
        let groups = resolve::resolve(&place, &life, hits, &mut tracker);
        let (pieces, machine) = tracker.finish();
        loads.machine = machine;
        loads.all.extend(pieces.iter().map(Piece::load));
        let mut epochs = Epochs::new(&loads.all, taken);
        (epochs.bytes_left, epochs.files_left) = self.made.left;
        let mut used: BTreeSet<usize> = BTreeSet::new();
        for group in groups {
            if group.is_after_clear {
                epochs.end();
            }
            for load in &group.loads {
                // Mapped before the sample. 0 would mean that the event has no time.
                epochs.hit(group.time.saturating_sub(1).max(1), *load);
            }
            used.extend(group.loads);
        }
        if used.is_empty() {
            return Ok(());
        }
        self.made.replaced.extend(self.regions.replaced(pid));
        self.made.left = (epochs.bytes_left, epochs.files_left);
        self.made.summary.left_out += epochs.left_out;
        self.made.summary.processes += 1;
        self.made.summary.used += used.len();
        let made = objects::write(&loads, &epochs.all, &self.output.dir, Some(taken))?;
        let first = self.made.objects.len();
        let end = |mapping: &Mapping| mapping.start.saturating_add(mapping.len);
        let ranges = made.mappings.iter().map(|mapping| (mapping.time, mapping.start..end(mapping)));
        self.made.covers.insert(pid, Cover::of(ranges));
        self.made.inserts.extend(made.mappings.into_iter().map(|mut mapping| {
            mapping.object += first;
            Insert { pid, mapping }
        }));
        let objects = made.objects.into_iter();
        self.made.objects.extend(objects.map(|object| Object { path: self.output.object(&object.path), ..object }));
        Ok(())
    }
}
