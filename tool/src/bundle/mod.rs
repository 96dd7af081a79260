//! `jitsym bundle`: puts a recording into one file, with all data that its reports need on another machine, but without
//! copies of stacks.

pub mod archive;
mod chains;
mod names;
mod object;
mod recording;
mod sample;
mod sources;
mod space;
mod symbols;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use archive::Writer;
use chains::{perf_map, Chains, Printed};
use recording::{map_path, Recording, VDSO, VDSO_PATH};

use crate::objects::OutDir;
use crate::open;
use crate::private::PrivateDir;
use crate::record::perf::Perf;
use crate::record::script::{injector, is_region};
use crate::record::view::View;
use crate::record::Step;
use crate::region::Region;
use crate::text::Shown;

/// The parts of a bundle.
pub const RECORDING: &str = "perf.data";
pub const KALLSYMS: &str = "kallsyms";
pub const SYMBOLS: &str = "symbols";
pub const SOURCES: &str = "sources";
const README: &str = "README";

const ABOUT: &str = "\
A recording of perf, made by `jitsym bundle`. It has no copies of stacks, no registers, and no command line.

jitsym shows the file from which this directory was unpacked:

    jitsym report FILE
    jitsym top FILE
    jitsym flamegraph FILE

perf alone shows this directory:

    perf report --symfs symbols --kallsyms kallsyms -i perf.data --no-children

Lines and code of a compiled function, from the directory sources:

    perf annotate --symfs ../symbols --prefix $PWD -i ../perf.data --stdio -s FUNCTION
";

/// The contents of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub samples: u64,
    /// The number of objects of compiled code.
    pub objects: usize,
    /// The number of programs, libraries and perf maps whose symbols are in the bundle.
    pub tables: usize,
    pub sources: Vec<String>,
    /// The number of files that do not fit into the bundle.
    pub left_out: usize,
    /// The size of the bundle.
    pub bytes: u64,
}

/// Makes a bundle of a recording. The file appears when it is complete.
pub fn make(
    perf: &Perf,
    data: &Path,
    out: &Path,
    has_sources: bool,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<Summary, String> {
    let about = |path: &Path| {
        let path = path.shown().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    let view = View::open(perf, data, tell)?;
    if view.is_bundle() {
        return Err(format!("{}: is a bundle already", data.shown()));
    }
    let file = open::named(view.data()).map_err(about(data))?;
    let recording = Recording::open(&file).map_err(about(data))?;
    let mut printed = Printed::read(perf, &view.arguments())?;
    let found = recording.survey(&mut printed.names).map_err(about(data))?;
    let mut chains = Chains::new(&printed, &found.changes);

    let name = match out.file_name().and_then(|name| name.to_str()) {
        Some(name) => name,
        None => return Err(format!("{}: is no name of a file", out.shown())),
    };
    let identity = |file: &fs::Metadata| (file.dev(), file.ino());
    let is_recording = |there: &fs::Metadata| fs::metadata(data).is_ok_and(|it| identity(&it) == identity(there));
    if fs::symlink_metadata(out).is_ok_and(|there| is_recording(&there) || !there.is_file() && !there.is_symlink()) {
        return Err(format!("{}: is the recording, or no plain file", out.shown()));
    }
    let parent = out.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let work = PrivateDir::beside(out).map_err(about(out))?;
    let place = work.path().join(RECORDING);
    let create = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&place);
    let new = create.map_err(about(out))?;
    let mut summary =
        Summary { samples: recording.write(&mut chains, &new).map_err(about(data))?, ..Summary::default() };
    let mut objects = Objects { printed: &printed, chains: &chains, found: &found, lines: BTreeSet::new() };
    let dir = OutDir::new(parent).map_err(about(parent))?;
    let write = |bundle: &File| {
        let mut bundle = Writer::new(bundle);
        bundle.add_bytes(Path::new(README), ABOUT.as_bytes())?;
        let file = File::open(&place)?;
        if !bundle.add(Path::new(RECORDING), file.metadata()?.len(), &file)? {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the recording is too large for a bundle"));
        }
        objects.add(&mut bundle, &mut summary)?;
        if has_sources {
            // Line tables may contain several spellings of a file's path.
            let mut places = BTreeSet::new();
            sources::read(&objects.lines, |path, contents| {
                let place: PathBuf = Path::new(SOURCES).join(path.trim_start_matches('/')).components().collect();
                if places.insert(place.clone()) && bundle.add_bytes(&place, contents)? {
                    summary.sources.push(path.to_owned());
                }
                Ok::<_, io::Error>(())
            })?;
        }
        summary.left_out = bundle.left_out;
        bundle.finish()
    };
    let made = dir.put(name, write).map_err(about(out))?;
    summary.bytes = made.metadata().map_err(about(out))?.len();
    Ok(summary)
}

/// The files in which a report finds symbols.
struct Objects<'a> {
    printed: &'a Printed,
    chains: &'a Chains,
    found: &'a recording::Found,
    /// The source files in line tables.
    lines: BTreeSet<String>,
}

impl Objects<'_> {
    fn add(&mut self, bundle: &mut Writer<'_>, summary: &mut Summary) -> io::Result<()> {
        let names = &self.printed.names;
        // The list of kernel symbols is written even if the recording has no samples in the kernel. perf refuses `--kallsyms`
        // if the file does not exist.
        let text = symbols::kallsyms(&self.chains.kernel, &self.found.kernel, names);
        bundle.add_bytes(Path::new(KALLSYMS), text.as_bytes())?;
        // The objects are in the order of their names, so that the same recording has the same bundle.
        let mut all: Vec<_> = self.chains.symbols.iter().map(|(&id, symbols)| (names.name(id), symbols)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let mut taken: BTreeSet<PathBuf> = BTreeSet::new();
        for (name, symbols) in all {
            let path = match perf_map(name) {
                Some(number) => map_path(number),
                None if name == VDSO => VDSO_PATH.into(),
                None => name.to_owned(),
            };
            let Some(below) = path.strip_prefix('/').map(Path::new).filter(|path| archive::is_plain(path)) else {
                continue;
            };
            // A path cannot belong to both a file and a directory.
            let next = taken.range(below.to_owned()..).next();
            let is_dir = next.is_some_and(|next| next.starts_with(below));
            if is_dir || below.ancestors().any(|above| taken.contains(above)) {
                continue;
            }
            taken.insert(below.to_owned());
            let place = Path::new(SYMBOLS).join(below);
            let is_code = injector(name).is_some() || is_region(name);
            let file = if is_code { open::of_anyone(Path::new(name)).ok() } else { None };
            let object = file.and_then(|file| object::contents(&file));
            match object {
                Some(bytes) => {
                    if let Ok(region) = Region::read(&bytes) {
                        self.lines.extend(region.lines.iter().filter_map(|(_, line)| Some(line.as_ref()?.0.clone())));
                    }
                    summary.objects += usize::from(bundle.add_bytes(&place, &bytes)?);
                }
                None => {
                    let id = self.found.build_ids.get(name).map(Vec::as_slice);
                    summary.tables += usize::from(bundle.add_bytes(&place, &symbols::elf(symbols, names, id))?);
                }
            }
        }
        Ok(())
    }
}
