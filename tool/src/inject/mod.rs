//! `jitsym inject`: writes a copy of a recording, with objects for the code in jitdumps.

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

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clock::Clock;
use code::{Code, Contents};
use cover::{Cover, Covers};
use dumps::{Dump, Finder};
pub use dumps::{Given, Problem};
use family::Families;
use hits::{Filter, Hits};
pub use output::usual;
use output::{Failure, Output};
use regions::{Regions, Replaced, Tracker};
use survey::Survey;
use write::{Insert, New};

use crate::objects::{self, Epochs, Load, Loads, Mapping, Object, FILES_MAX};
use crate::open;
use crate::perf_data::attributes::Forms;
use crate::perf_data::Layout;

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub input: PathBuf,
    pub output: PathBuf,
    /// The directory of the objects, if the user has chosen one.
    pub objects: Option<PathBuf>,
    pub given: Given,
    /// Users whose jitdumps are used, in addition to the user of the recording.
    pub users: Vec<u32>,
    /// Whether the new recording may replace the recording that is read.
    pub replaces: bool,
}

/// The maximum size of all objects, in bytes: `TIMES` times the size of all jitdumps, plus `MORE`, plus `FORKED` for each
/// process, because forked processes have separate objects with the same code. Without a limit, a hostile program could fill
/// the disk.
const TIMES: u64 = 4;
const MORE: u64 = 64 << 20;
const FORKED: u64 = 256 << 10;

/// The results of an injection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many processes have compiled code in samples.
    pub processes: usize,
    /// How many pieces of code all dumps have, and how many of them are used. A piece is used if it is in samples, or if all
    /// code counts as used. Code that several processes have inherited counts once.
    pub pieces: usize,
    pub used: usize,
    /// How many functions in files of regions are used.
    pub used_in_regions: usize,
    /// Whether all code counts as used. This is the case if perf derives the samples from data of the processor when it reads
    /// the recording.
    pub uses_all: bool,
    pub objects: usize,
    /// The directory of the objects. `None` if there are no objects.
    pub dir: Option<PathBuf>,
    /// How many jitdumps the recording refers to.
    pub dumps: usize,
    /// The jitdumps that were read, with the number of pieces of code that can be used.
    pub read: Vec<Read>,
    /// How many files of regions can be used.
    pub regions: usize,
    /// How many uses of code are in no object, because there are too many objects.
    pub left_out: usize,
    /// The jitdumps that were used only in part or not at all.
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

/// Receives the progress: the bytes done, and all bytes. An error stops the work, and all output is removed.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> io::Result<()>;

/// Writes the new recording. After success it is complete, and after an error it does not exist.
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
    let contents = Contents::read(&dumps);
    let code = Code::of(&dumps, &contents, Clock::of(&layout.attributes), &survey);
    problems.extend(code.problems.iter().cloned());
    let summary = Summary {
        dumps: survey.markers.values().map(Vec::len).sum::<usize>().max(dumps.len()),
        read: code.read.clone(),
        pieces: code.pieces,
        uses_all: survey.has_aux,
        problems,
        ..Summary::default()
    };
    let regions = Regions::find(&finder, &survey.mappings);
    let ranges = code.all.iter().map(Load::range).chain(regions.ranges());
    let filter = Filter::of(ranges.collect());
    if let (0, Some(why)) = (summary.good() + regions.good(), &code.clock) {
        return Err(refused(format!("cannot be used: {why}")));
    }
    let made = Made { summary, ..Made::default() };
    let of_dumps = dumps.values().flatten().map(Dump::len).fold(0, u64::saturating_add);
    let mut injection =
        Injection { survey: &survey, code: &code, finder: &finder, filter: &filter, regions, output: &output, made };
    injection.objects(of_dumps, &file, &layout, &forms, &mut |done| progress(len + done, total)).map_err(
        |failure| match failure {
            (None, error) => about_input(error),
            (Some(path), error) => (path, error),
        },
    )?;
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

/// Drops the processes whose code is already in the recording. Returns an error if this is the code of all processes.
fn already(survey: &mut Survey) -> Result<Vec<Problem>, String> {
    let Survey { markers, injected, .. } = survey;
    let why = |path: &str, by: &str| {
        format!("has objects of `{by}` already, such as {path}: inject into the recording of `perf record`")
    };
    // `perf inject` removes the mappings of jitdumps from the recording.
    match injected.values().min() {
        Some((path, by)) if markers.keys().all(|pid| injected.contains_key(pid)) => return Err(why(path, by)),
        _ => {}
    }
    // Any program can map a file with such a name, so the other processes are not affected.
    let mut problems = Vec::new();
    markers.retain(|&pid, markers| {
        let Some((path, by)) = injected.get(&pid) else { return true };
        let new = |marker: &survey::Marker| Problem { pid, path: marker.path.clone(), why: why(path, by) };
        problems.extend(markers.iter().map(new));
        false
    });
    Ok(problems)
}

/// The output for the dumps.
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
    /// The functions that are used: pieces of dumps, and functions in files of regions.
    used: HashSet<usize>,
    used_in_regions: HashSet<(usize, usize)>,
}

struct Injection<'a> {
    survey: &'a Survey,
    code: &'a Code<'a>,
    finder: &'a Finder<'a>,
    filter: &'a Filter,
    regions: Regions<'a>,
    output: &'a Output,
    made: Made<'a>,
}

impl<'a> Injection<'a> {
    /// Makes the objects of all processes that have compiled code in samples. `of_dumps` is the size of all dumps in bytes.
    fn objects(
        &mut self,
        of_dumps: u64,
        file: &File,
        layout: &Layout,
        forms: &Forms<'_>,
        progress: &mut dyn FnMut(u64) -> io::Result<()>,
    ) -> Result<(), (Option<PathBuf>, io::Error)> {
        let code = self.code;
        let place = |load: usize| code.all.get(load).map_or(0..0, Load::range);
        let families = Families::new(&self.survey.begins, &code.own, &place);
        let pids = families.with_children(code.own.keys().copied().chain(self.regions.pids()).collect());
        let new = |pid| (pid, Hits::new(families.changes(pid, &self.regions.own)));
        let mut hits: HashMap<u32, Hits> = pids.into_iter().map(new).collect();
        hits::read(file, layout, forms, self.filter, &mut hits, progress).map_err(|error| (None, error))?;
        hits.retain(|_, hits| self.survey.has_aux || !hits.is_empty());
        let mut pids: Vec<u32> = hits.keys().copied().collect();
        pids.sort_unstable();
        let most = of_dumps.saturating_mul(TIMES).saturating_add(MORE).saturating_add(FORKED * pids.len() as u64);
        self.made.left = (most, FILES_MAX);
        for pid in pids {
            progress(layout.len).map_err(|error| (None, error))?;
            let own = hits.remove(&pid).unwrap_or_default();
            let made = self.process(pid, &families, &own, &place);
            made.map_err(|error| (Some(self.output.dir.path().to_owned()), error))?;
        }
        if families.is_exhausted() {
            let why = "was forked so often that some children lack the code of their parents".to_owned();
            let first = self.survey.begins.keys().min().copied().unwrap_or(0);
            self.made.summary.problems.push(Problem { pid: first, path: "the process".into(), why });
        }
        (self.made.summary.used, self.made.summary.used_in_regions) =
            (self.made.used.len(), self.made.used_in_regions.len());
        self.made.inserts.sort_by_key(|insert| insert.mapping.time);
        Ok(())
    }

    /// Makes the objects of a process.
    fn process(
        &mut self,
        pid: u32,
        families: &Families<'_>,
        hits: &Hits,
        place: &dyn Fn(usize) -> Range<u64>,
    ) -> io::Result<()> {
        let taken = &self.survey.taken;
        let life = families.life(pid, &self.regions.own);
        let mut tracker = Tracker::new(&mut self.regions, self.finder, self.filter, &self.code.all);
        let groups = resolve::resolve(place, &life, hits, self.survey.has_aux, &mut tracker);
        let (pieces, machine) = tracker.finish();
        let mut used: Vec<usize> = groups.iter().flat_map(|group| group.loads.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        if used.is_empty() {
            return Ok(());
        }
        let mut loads = Loads { pid, machine, ..Loads::default() };
        for &index in &used {
            match (self.code.all.get(index), index.checked_sub(self.code.all.len()).and_then(|at| pieces.get(at))) {
                (Some(load), _) => {
                    loads.all.push(*load);
                    loads.machine =
                        Some(self.code.machine(index)).filter(|&machine| machine != 0).unwrap_or(loads.machine);
                    self.made.used.insert(index);
                }
                (None, Some(piece)) => {
                    loads.all.push(piece.load());
                    self.made.used_in_regions.insert(piece.function);
                }
                (None, None) => {}
            }
        }
        let mut epochs = Epochs::new(&loads.all, taken);
        (epochs.bytes_left, epochs.files_left) = self.made.left;
        for group in groups {
            if group.is_after_clear {
                epochs.end();
            }
            for load in group.loads.iter().filter_map(|load| used.binary_search(load).ok()) {
                // The object is mapped before the sample. The time is not 0, because 0 would mean that the event has no time.
                epochs.hit(group.time.saturating_sub(1).max(1), load);
            }
            group.unknown.into_iter().for_each(|addr| epochs.hit_unknown(addr));
        }
        self.made.replaced.extend(self.regions.replaced(pid));
        self.made.left = (epochs.bytes_left, epochs.files_left);
        self.made.summary.left_out += epochs.left_out;
        self.made.summary.processes += 1;
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
