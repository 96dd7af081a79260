//! Finds and opens the jitdumps of a recording. Any user who can write to the directory of a jitdump may have replaced the
//! file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use jitsym::format::jitdump::raw::{End, RawHeader, RawRecords};
use jitsym::format::jitdump::HEADER_SIZE;
use jitsym::sys::process;

use super::region_file::Header;
use super::survey::{Identity, Marker, Survey};
use crate::objects::is_32_bit;
use crate::open;
use crate::record::script::{file_name, jitdump_pid};

/// The newest version of the format.
const VERSION: u32 = 1;

/// The dumps that the user has named.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// A file, and the pid of its process if the user has given one.
    pub dumps: Vec<(Option<u32>, PathBuf)>,
    /// Directories in which dumps are searched by name.
    pub search: Vec<PathBuf>,
}

/// A dump that a process maps.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The path in the recording.
    pub name: String,
    /// The present path of the file.
    pub path: PathBuf,
    /// Whether the user has named this file.
    is_given: bool,
    identity: Identity,
    /// The length when the dump was found. A living process may write more.
    len: u64,
    /// The time at which the process has mapped the dump, if that was during the recording.
    pub mapped: Option<u64>,
    /// If this is set, only code up to this time belongs to this process, which has inherited the code.
    pub until: Option<u64>,
}

/// A dump that is not used, or not completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// 0 if the process is unknown.
    pub pid: u32,
    pub path: String,
    pub why: String,
}

/// Opens dumps.
pub struct Finder<'a> {
    pub given: &'a Given,
    /// The users whose dumps are used. Dumps of root and of this process's user are also used.
    pub users: Vec<u32>,
}

/// An open dump with its header.
struct Opened {
    file: File,
    header: RawHeader,
    identity: Identity,
    len: u64,
    owner: u32,
}

fn refuse<T>(why: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why.into()))
}

fn identity(data: &Metadata) -> Identity {
    Identity { device: (libc::major(data.dev()), libc::minor(data.dev())), inode: data.ino() }
}

impl Dump {
    /// The length when the dump was found.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }
}

impl Finder<'_> {
    /// The owner of a file, if it is not root, not the recording's user, and not the user of this program.
    fn stranger(&self, data: &Metadata) -> Option<u32> {
        Some(data.uid()).filter(|owner| !self.users.contains(owner) && *owner != 0 && *owner != process::user())
    }

    /// Opens the file of a region, and checks that it is one.
    fn open_region(&self, path: &Path, pid: u32) -> io::Result<(File, Identity)> {
        let file = open::of_process(path, pid)?;
        let data = file.metadata()?;
        if let Some(owner) = self.stranger(&data) {
            return refuse(format!("belongs to another user (uid {owner})"));
        }
        Header::read(&file)?;
        Ok((file, identity(&data)))
    }

    /// Finds the file of a region that a process had mapped, and returns its path. The inode does not identify the file,
    /// because the library replaces files.
    pub fn region(&self, pid: u32, name: &str) -> Result<(PathBuf, Identity), String> {
        let mut problem = None;
        let searched = self.given.search.iter().map(|dir| dir.join(file_name(name)));
        let recorded = name.starts_with('/').then(|| open::places(pid, name));
        for path in searched.chain(recorded.into_iter().flatten()) {
            match self.open_region(&path, pid) {
                Ok((_, identity)) => return Ok((path, identity)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    problem.get_or_insert(error.to_string());
                }
            }
        }
        Err(problem.unwrap_or_else(|| "is gone: give its place with --search if there is a copy".into()))
    }

    /// Opens the file of a region again.
    pub fn reopen(&self, pid: u32, path: &Path, identity: Identity) -> io::Result<File> {
        let (file, found) = self.open_region(path, pid)?;
        if found != identity {
            return refuse("was replaced meanwhile");
        }
        Ok(file)
    }

    /// Opens a file, and checks that it is a dump.
    fn open(path: &Path, is_given: bool) -> io::Result<Opened> {
        let file = if is_given { open::unlinked(path)? } else { open::of_anyone(path)? };
        let data = file.metadata()?;
        let mut start = [0; HEADER_SIZE];
        if data.len() < HEADER_SIZE as u64 {
            return refuse("is empty or cut: it has no whole header");
        }
        file.read_exact_at(&mut start, 0)?;
        let Some(header) = RawHeader::read(&start) else { return refuse("is no jitdump") };
        if header.swapped {
            return refuse("is of a machine with the other byte order");
        }
        if is_32_bit(header.machine) {
            return refuse("is of a 32-bit machine");
        }
        if header.version > VERSION || header.unknown_flags() != 0 {
            return refuse("is a jitdump of an unknown version");
        }
        Ok(Opened { file, header, identity: identity(&data), len: data.len(), owner: data.uid() })
    }

    /// Opens the dump of a process by its path. The file that the process had mapped is used, whoever owns it. Another file,
    /// or a file whose inode is not in the recording, is used only if it belongs to a user who can change the profile anyway.
    /// `is_copy` is true if the file may differ from the mapped file.
    fn open_of(&self, path: &Path, pid: u32, marker: &Marker, is_copy: bool) -> io::Result<Opened> {
        let opened = Self::open(path, false)?;
        // In some file systems, mappings show a different device than other calls.
        let is_inode = |file: &Identity| file.inode == opened.identity.inode;
        if !is_copy && !marker.files.is_empty() && !marker.files.iter().any(is_inode) {
            return refuse("is another file than the process had: name it with --dump if its contents are the same");
        }
        let owner = opened.owner;
        let of_process = || fs::metadata(format!("/proc/{pid}")).is_ok_and(|data| data.uid() == owner);
        let is_trusted = marker.files.contains(&opened.identity)
            || self.users.contains(&owner)
            || [0, process::user()].contains(&owner)
            || of_process();
        if !is_trusted {
            return refuse(format!(
                "belongs to another user (uid {owner}), and is not the file that the process had mapped: name it with \
                 --dump if you trust its contents"
            ));
        }
        Ok(opened)
    }

    /// The file that a process had mapped, and its header.
    fn find(&self, pid: u32, marker: &Marker) -> Result<(Dump, RawHeader), String> {
        let mut problem = None;
        let mut note = |path: &Path, error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                problem.get_or_insert(match path == Path::new(&marker.path) {
                    true => error.to_string(),
                    false => format!("{error} ({})", path.display()),
                });
            }
        };
        let dump = |path: PathBuf, is_given, opened: &Opened| {
            let (name, identity, len) = (marker.path.clone(), opened.identity, opened.len);
            (Dump { name, path, is_given, identity, len, mapped: marker.time, until: None }, opened.header)
        };
        for (of, path) in &self.given.dumps {
            if of.is_some_and(|of| of != pid) {
                continue;
            }
            match Self::open(path, true) {
                // Without a pid, the number in the name or in the file determines the process.
                Ok(opened) => {
                    let numbers = [jitdump_pid(&path.to_string_lossy()), Some(opened.header.pid)];
                    if of.is_some() || numbers.contains(&Some(marker.number)) {
                        return Ok(dump(path.clone(), true, &opened));
                    }
                }
                Err(error) => note(path, error),
            }
        }
        for dir in &self.given.search {
            let path = dir.join(file_name(&marker.path));
            match self.open_of(&path, pid, marker, true) {
                Ok(opened) => return Ok(dump(path, false, &opened)),
                Err(error) => note(&path, error),
            }
        }
        if marker.path.starts_with('/') {
            let [here, below] = open::places(pid, &marker.path);
            // In a pid namespace, the process has another pid, and probably another root directory.
            let is_elsewhere = marker.number != pid;
            for path in if is_elsewhere { [below, here] } else { [here, below] } {
                match self.open_of(&path, pid, marker, false) {
                    Ok(opened) => return Ok(dump(path, false, &opened)),
                    Err(error) => note(&path, error),
                }
            }
        }
        Err(problem.unwrap_or_else(|| "is gone: give its place with --dump or --search if there is a copy".into()))
    }

    /// The dumps of each process, and the problems of the unusable dumps.
    pub fn all(&self, survey: &Survey) -> (BTreeMap<u32, Vec<Dump>>, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut found: Vec<(u32, &Marker, Dump, u32)> = Vec::new();
        let mut all_markers = survey.markers.clone();
        for (pid, path) in self.given.dumps.iter().filter_map(|(pid, path)| Some(((*pid)?, path))) {
            // A dump that the user has named takes precedence over the recording.
            all_markers.entry(pid).or_insert_with(|| {
                let path = path.to_string_lossy().into_owned();
                vec![Marker { path, number: pid, time: None, files: Vec::new() }]
            });
        }
        for (&pid, markers) in &all_markers {
            let mut files = HashSet::new();
            for marker in markers {
                match self.find(pid, marker) {
                    Ok((dump, header)) => {
                        if files.insert(dump.identity) {
                            found.push((pid, marker, dump, header.pid));
                        }
                    }
                    Err(why) => problems.push(Problem { pid, path: marker.path.clone(), why }),
                }
            }
        }
        for (pid, path) in &self.given.dumps {
            let is_used = |(_, _, dump, _): &(u32, &Marker, Dump, u32)| dump.is_given && dump.path == *path;
            if !found.iter().any(is_used) && pid.is_none() {
                let why = Self::open(path, true).err().map(|error| error.to_string());
                let why = why.unwrap_or_else(|| "is of no process that has a jitdump: give it as PID=FILE".into());
                problems.push(Problem { pid: 0, path: path.to_string_lossy().into_owned(), why });
            }
        }
        let mut users: HashMap<Identity, Vec<(u32, u32)>> = HashMap::new();
        for (pid, _, dump, number) in &found {
            users.entry(dump.identity).or_default().push((*pid, *number));
        }
        let owners: HashMap<Identity, u32> =
            users.iter().filter_map(|(&file, users)| Some((file, owner(users, survey)?))).collect();
        let mut all: BTreeMap<u32, Vec<Dump>> = BTreeMap::new();
        for (pid, marker, mut dump, _) in found {
            if owners.get(&dump.identity) != Some(&pid) {
                // This process was forked before the recording began, with the mapping of the parent's dump.
                dump.until = marker.time.or(survey.times.as_ref().map(|times| times.start));
            }
            all.entry(pid).or_default().push(dump);
        }
        (all, problems)
    }

    /// Reads the part of a dump that existed when the dump was found.
    pub fn read(dump: &Dump) -> io::Result<Vec<u8>> {
        let opened = Self::open(&dump.path, dump.is_given)?;
        if opened.identity != dump.identity || opened.len < dump.len {
            return refuse("was replaced meanwhile");
        }
        let mut bytes = open::read(&opened.file)?;
        bytes.truncate(usize::try_from(dump.len).unwrap_or(usize::MAX));
        Ok(bytes)
    }
}

/// Whether a dump ends within a record.
pub fn is_cut(dump: &[u8]) -> bool {
    let Some(header) = RawHeader::read(dump) else { return true };
    let mut records = RawRecords::new(dump, &header);
    records.by_ref().for_each(drop);
    !matches!(records.end(), End::Clean | End::Zeros)
}

/// Returns the process that has begun a dump, among the processes that map it. Each process is given with the pid in the
/// dump's header.
fn owner(users: &[(u32, u32)], survey: &Survey) -> Option<u32> {
    let by_number = users.iter().find(|(pid, number)| pid == number).map(|&(pid, _)| pid);
    // In a namespace the number differs, but parents exist before their children.
    let oldest = || {
        let pids: HashSet<u32> = users.iter().map(|&(pid, _)| pid).collect();
        let &(first, _) = users.first()?;
        survey.ancestors(first).filter(|pid| pids.contains(pid)).last().or(Some(first))
    };
    by_number.or_else(oldest)
}
