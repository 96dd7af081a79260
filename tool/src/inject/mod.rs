//! `jitsym inject`: writes a recording anew, with objects for the code in jitdumps.

mod clock;
mod cover;
mod dumps;
mod output;
mod survey;
mod write;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use clock::{Clock, Times};
use cover::{Cover, Covers};
use dumps::{Dump, Finder};
pub use dumps::{Given, Problem};
use output::{Failure, Output};
pub use output::usual;
use survey::Survey;
use write::{Insert, New};

use crate::objects::{make, Loads, Object, Taken};
use crate::open;
use crate::perf_data::attributes::Forms;
use crate::perf_data::Layout;
use output::is_object as is_own_object;

/// What is to be done.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub input: PathBuf,
    pub output: PathBuf,
    /// The directory of the objects, if the user has chosen one.
    pub objects: Option<PathBuf>,
    pub given: Given,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many processes have compiled code now.
    pub processes: usize,
    /// How many pieces of code were put in.
    pub pieces: usize,
    pub objects: usize,
    /// The directory of the objects, if there are any.
    pub dir: Option<PathBuf>,
    /// Mappings of memory that would have hidden code.
    pub dropped: u64,
    /// How many jitdumps the recording names.
    pub dumps: usize,
    /// Dumps that were not used, or not completely.
    pub problems: Vec<Problem>,
}

/// How far the work is: bytes done, and all bytes.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

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
    // The events are read twice.
    let (len, total) = (layout.len, layout.len.saturating_mul(2));
    let survey = Survey::read(&file, &layout, &forms, &mut |done| progress(done, total)).map_err(about_input)?;
    if let Some((path, by)) = &survey.injected {
        return Err(refused(format!("has objects of `{by}` already, such as {path}: inject into the recording of perf record")));
    }
    let output = Output::new(&options.output, options.objects.as_deref(), &data)?;
    let finder = Finder { given: &options.given, user: data.uid() };
    let mut injection = Injection { survey: &survey, finder, output: &output, made: Made::default() };
    injection.all(&layout)?;
    let made = injection.made;
    if let (true, Some(why)) = (made.objects.is_empty(), &made.clock) {
        return Err(refused(format!("cannot be used: {why}")));
    }
    let new = New { inserts: made.inserts, objects: &made.objects, covers: made.covers };
    let copied = write::write(&file, &layout, &forms, &new, &output.file, &mut |done| progress(len + done, total));
    let copied = copied.map_err(about_input)?;
    let objects = made.objects.len();
    Ok(Summary {
        processes: made.processes,
        pieces: made.pieces,
        objects,
        dropped: copied.dropped,
        dumps: survey.markers.values().map(Vec::len).sum(),
        problems: made.problems,
        dir: output.finish(objects > 0)?,
    })
}

/// What was made of the dumps.
#[derive(Default)]
struct Made {
    inserts: Vec<Insert>,
    objects: Vec<Object>,
    covers: Covers,
    processes: usize,
    pieces: usize,
    problems: Vec<Problem>,
    /// Why the times of a dump cannot be compared with those of the recording.
    clock: Option<String>,
}

struct Injection<'a> {
    survey: &'a Survey,
    finder: Finder<'a>,
    output: &'a Output,
    made: Made,
}

impl Injection<'_> {
    /// Makes the objects of all processes.
    fn all(&mut self, layout: &Layout) -> Result<(), Failure> {
        let clock = Clock::of(&layout.attributes);
        let mut taken = Taken::new();
        self.survey.mapped.iter().for_each(|range| taken.add(range.clone()));
        let (dumps, problems) = self.finder.all(self.survey);
        self.made.problems = problems;
        for (pid, dumps) in dumps {
            self.process(pid, &dumps, clock, &taken)?;
        }
        self.made.inserts.sort_by_key(|insert| insert.mapping.time);
        self.made.covers.begins.clone_from(&self.survey.begins);
        Ok(())
    }

    fn problem(&mut self, pid: u32, dump: &Dump, why: impl Into<String>) {
        self.made.problems.push(Problem { pid, path: dump.name.clone(), why: why.into() });
    }

    /// Makes the objects of a process.
    fn process(&mut self, pid: u32, dumps: &[Dump], clock: Clock, taken: &Taken) -> Result<(), Failure> {
        let mut read = Vec::new();
        for dump in dumps {
            match self.finder.read(pid, dump) {
                Ok((bytes, cut)) => {
                    if let Some(cut) = cut {
                        self.problem(pid, dump, cut);
                    }
                    read.push((dump, bytes));
                }
                Err(error) => self.problem(pid, dump, error.to_string()),
            }
        }
        let mut loads = Loads::new();
        for (dump, bytes) in &read {
            if let Err(why) = self.add(&mut loads, dump, bytes, clock) {
                self.problem(pid, dump, why);
            }
        }
        if loads.all.is_empty() {
            return Ok(());
        }
        // In a namespace, the dump has another pid.
        loads.pid = pid;
        loads.finish();
        let made = make(&loads, &self.output.dir, taken);
        let made = made.map_err(|error| (self.output.dir.path().to_owned(), error))?;
        let first = self.made.objects.len();
        let mappings = made.mappings.iter().map(|mapping| (mapping.time, mapping.start..mapping.start.saturating_add(mapping.len)));
        self.made.covers.by_pid.insert(pid, Cover::of(mappings));
        self.made.inserts.extend(made.mappings.into_iter().map(|mut mapping| {
            mapping.object += first;
            Insert { pid, mapping }
        }));
        self.made.pieces += loads.all.len() - made.left_out.min(loads.all.len());
        self.made.processes += 1;
        let objects = made.objects.into_iter();
        self.made.objects.extend(objects.map(|object| Object { path: self.output.object(&object.path), ..object }));
        if made.left_out > 0 {
            let why = format!("{} pieces of code are left out: there are too many", made.left_out);
            self.made.problems.push(Problem { pid, path: dumps[0].name.clone(), why });
        }
        Ok(())
    }

    /// Adds the code of a dump, with times of the recording. The error tells why the dump is not used.
    fn add<'d>(&mut self, loads: &mut Loads<'d>, dump: &Dump, bytes: &'d [u8], clock: Clock) -> Result<(), String> {
        let mut own = Loads::new();
        own.add_jitdump(bytes).map_err(|error| error.to_string())?;
        if own.all.is_empty() {
            return Err("has no code".into());
        }
        let times = Times::between(clock, own.by_counter, self.survey.conversion).inspect_err(|why| {
            self.made.clock.get_or_insert_with(|| format!("{}: {why}", dump.name));
        })?;
        own.all.iter_mut().for_each(|load| load.time = times.convert(load.time));
        if let Some(until) = dump.until {
            own.all.retain(|load| load.time <= until);
        }
        let last = self.survey.times.as_ref().map_or(0, |times| times.end);
        let before = own.all.len();
        own.all.retain(|load| load.time <= last);
        if own.all.is_empty() {
            return match before {
                0 => Ok(()),
                _ => Err("has only code that is newer than the recording".into()),
            };
        }
        (loads.machine, loads.pid) = (own.machine, own.pid);
        loads.impossible += own.impossible;
        loads.all.append(&mut own.all);
        Ok(())
    }
}
