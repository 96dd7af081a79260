//! Holds the names and the descriptors of a region's file. The host's threads map the file through a descriptor in the host's
//! descriptor table. The writer has a separate descriptor table, and uses another descriptor.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::code_marks::EPOCH_MOST;
use super::file::{Layout, RegionFile};
use super::file_names::{self, file_name, name_for_child};
use super::old_files::Expected;
use crate::sys::clock::NEVER;
use crate::sys::descriptor_table::DescriptorTable;
use crate::sys::file::{self, Held, Identity};
use crate::sys::held_dir::Dir;
use crate::sys::host_fds;
use crate::sys::sync::lock;
use crate::sys::sync::outside::Mutex;

#[derive(Debug)]
pub struct Naming {
    pub path: PathBuf,
    /// Whether the file has a name, which is `path`.
    is_named: bool,
    identity: Option<Identity>,
    /// The identity of the final copy, once the final copy has taken over the names of the file.
    last: Option<Identity>,
    /// Whether the host's descriptor table has a descriptor of the file only while a thread uses the file.
    is_light: bool,
    host: Open,
    writer: Open,
    /// The pid and the number from which the names of the file are built.
    of: (u32, u32),
    /// Whether the file was made in this process, right after the fork that created the process.
    is_of_child: bool,
    /// Further names of the file, one for each older epoch. The oldest epoch comes first.
    pub(super) names: VecDeque<(u32, OsString)>,
    /// The splits that the writer has not handled yet.
    pub(super) archives: VecDeque<Archive>,
    /// Whether code has replaced dead code since the beginning of the loaded segment last moved.
    pub(super) is_reused: bool,
    /// The last time when an epoch moved the beginning of the loaded segment, or when a check found no reason for a move.
    pub(super) turned_at: u64,
}

/// The descriptors in one descriptor table.
#[derive(Debug, Default)]
struct Open {
    dir: Option<Arc<Dir>>,
    file: Option<Arc<Held>>,
}

/// A split: the contents that the region's file has at `time` describe the epochs before `first`. After the split, the file
/// describes the epoch `first` and later epochs.
#[derive(Debug)]
pub struct Archive {
    /// The time when the split was made, and the time when the split is due. The writer handles the split before any record
    /// with a later time than `due`.
    pub(super) time: u64,
    pub(super) due: u64,
    /// The first epoch that the file itself describes after the split.
    pub first: u32,
    /// The offset in the file at which the loaded segment begins after the split.
    pub begin: u64,
    /// True if the file need not describe dead code after the split, because all code that ran in the epoch `first` or later is
    /// live when the writer handles the split.
    pub is_clean: bool,
    /// Reserves room for the copy of the file.
    pub(super) _expected: Expected,
}

impl Naming {
    /// Creates the `Naming` of a file that the calling thread has opened.
    pub fn new(dir: Arc<Dir>, path: PathBuf, file: Arc<Held>, of: (u32, u32)) -> Naming {
        let mut naming = Naming { path, is_named: true, of, ..Naming::nameless(Some(file)) };
        if DescriptorTable::current().is_host() {
            naming.host.dir = Some(dir);
        }
        naming
    }

    /// Creates the `Naming` of a file that has no name, or of a region that has no file.
    pub fn nameless(file: Option<Arc<Held>>) -> Naming {
        let mut naming = Naming {
            path: PathBuf::new(),
            is_named: false,
            identity: None,
            last: None,
            is_light: false,
            host: Open::default(),
            writer: Open::default(),
            of: (0, 0),
            is_of_child: false,
            names: VecDeque::new(),
            archives: VecDeque::new(),
            is_reused: false,
            turned_at: 0,
        };
        naming.set_file(file);
        naming
    }

    /// In a forked child: the `Naming` of memory that stays a mapping of the parent's file, whose present `Naming` is `parents`.
    /// `None` if there is no file. The child does not open or rename the file.
    pub(super) fn lent(parents: &Naming) -> Option<Naming> {
        let identity = Some(parents.identity?);
        Some(Naming { path: parents.path.clone(), identity, ..Naming::nameless(None) })
    }

    fn here(&mut self) -> &mut Open {
        match DescriptorTable::current().is_host() {
            true => &mut self.host,
            false => &mut self.writer,
        }
    }

    /// Replaces the present file by `file`.
    pub fn set_file(&mut self, file: Option<Arc<Held>>) {
        self.identity = file.as_ref().map(|file| file.identity());
        self.here().file = file;
    }

    /// The name of the file in an epoch.
    pub(super) fn name_of(&self, epoch: u32, begins_at_code: bool) -> OsString {
        file_name(self.of, epoch, begins_at_code)
    }

    /// Whether the loaded segment begins at the code, and not at the start of the file.
    pub(super) fn begins_at_code(&self) -> bool {
        file_names::begins_at_code(self.name())
    }

    /// Turns an empty file into the file of a region that has no code yet. The name of the file decides where its loaded
    /// segment begins.
    pub(super) fn create_file(&self, file: Arc<Held>, layout: Layout) -> io::Result<RegionFile> {
        let mut file = RegionFile::create(file, layout)?;
        if self.begins_at_code() {
            file.set_begin(layout.text);
        }
        Ok(file)
    }

    /// The path of the file that a forked child gets.
    pub(super) fn path_for_child(&self, child: u32) -> Option<PathBuf> {
        // If the file was made at the fork, this process is a child that has not taken over its parent's state, and has no
        // writer. Nobody would remove files of its children, so its children get no files.
        self.named().filter(|_| !self.is_of_child)?;
        Some(self.path.with_file_name(name_for_child(child, self.of, self.begins_at_code())))
    }

    /// In a forked child: sets the file that was made for this child. `path` is `None` if the file has no name.
    pub(super) fn set_file_of_child(&mut self, file: Option<Arc<Held>>, path: Option<PathBuf>) {
        self.set_file(file);
        (self.is_named, self.is_of_child) = (path.is_some(), path.is_some());
        if let Some(path) = path {
            self.path = path;
        }
    }

    /// The path and the identity of the file that was made for this process at its fork, if there is such a file.
    pub(super) fn of_child(&self) -> Option<(PathBuf, Identity)> {
        let identity = self.named().filter(|_| self.is_of_child)?;
        Some((self.path.clone(), identity))
    }

    /// The temporary name of a copy of the file, until the copy is complete.
    pub(super) fn name_of_copy(&self) -> OsString {
        self.name_of(EPOCH_MOST, false)
    }

    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Whether the region's memory is a mapping of a file.
    pub fn has_file(&self) -> bool {
        self.identity.is_some()
    }

    /// The identity of the file that is mapped as the region's memory, or `None` if there is no such file.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// The identity of the file, if the file has a name.
    pub fn named(&self) -> Option<Identity> {
        self.identity.filter(|_| self.is_named)
    }

    /// The identity of the file that has the names now: the final copy, or the region's own file if there is no final copy.
    pub(super) fn last(&self) -> Option<Identity> {
        self.last.or_else(|| self.named())
    }

    /// Gives all names of the file to the final copy. Before this call, the final copy has only the name `copy`. Names that now
    /// belong to other files are not changed.
    pub(super) fn replace_by(&mut self, copy: &OsStr) -> io::Result<()> {
        let (dir, last) = (self.dir()?, self.last());
        let is_own = |name: &OsStr| dir.identity_of(name).is_ok_and(|found| last.is_some_and(|last| last.is(&found)));
        let identity = dir.identity_of(copy)?;
        for (_, name) in self.names.iter().filter(|(_, name)| is_own(name)) {
            // Errors are ignored, because the file has no older names on a file system without hard links.
            let _ = dir.remove(name).and_then(|()| dir.link(copy, name));
        }
        if !is_own(self.name()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        dir.rename(copy, self.name())?;
        self.last = Some(identity);
        Ok(())
    }

    /// Returns a descriptor of the file's directory, in the descriptor table of the calling thread. Reopens the directory if
    /// the host has closed the descriptor in its own table.
    pub fn dir(&mut self) -> io::Result<Arc<Dir>> {
        if !self.is_named {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !DescriptorTable::current().is_host() {
            // The writer needs the directory only once for each epoch, so the writer's descriptor is not kept.
            return Ok(Arc::new(Dir::of(&self.path)?));
        }
        if let Some(dir) = self.host.dir.as_ref().filter(|dir| dir.is_open()) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(Dir::of(&self.path)?);
        Ok(self.host.dir.insert(dir).clone())
    }

    /// Returns a descriptor of the file, in the descriptor table of the calling thread. Reopens the file if the host has closed
    /// the descriptor in its own table.
    pub fn file(&mut self) -> io::Result<Arc<Held>> {
        if let Some(file) = self.here().file.as_ref().filter(|file| file.checked().is_ok()) {
            return Ok(file.clone());
        }
        let identity = self.named().ok_or(file::CLOSED)?;
        let reopened = self.dir().and_then(|dir| file::reopen(&dir, self.name(), identity, file::ANYWHERE));
        let file = reopened.or_else(|error| self.file_of_host(identity).ok_or(error))?;
        let file = Arc::new(Held::new(file)?);
        if self.is_light && DescriptorTable::current().is_host() {
            return Ok(file);
        }
        Ok(self.here().file.insert(file).clone())
    }

    /// For the writer: opens the file through the host's descriptor, even if somebody has removed the file's name or directory.
    fn file_of_host(&self, identity: Identity) -> Option<File> {
        let number = self.host.file.as_ref().filter(|_| !DescriptorTable::current().is_host())?.as_raw_fd();
        let thread = host_fds::tid().unwrap_or_else(std::process::id);
        let path = format!("/proc/self/task/{thread}/fd/{number}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        file::look_at(&file).is_ok_and(|found| found.is(&identity)).then_some(file)
    }

    /// Returns the file, if it is open in the descriptor table of the calling thread.
    pub fn open_file(&mut self) -> Option<Arc<Held>> {
        self.here().file.clone().filter(|file| file.checked().is_ok())
    }

    /// Closes the descriptor in the host's descriptor table, because hosts may have few descriptors. From now on, the table has
    /// a descriptor of the file only while a thread uses the file.
    pub fn let_go(&mut self) {
        self.is_light = true;
        self.host.file = None;
    }

    /// Removes and returns the writer's descriptor, which only the writer can close.
    pub fn take_of_writer(&mut self) -> Option<Arc<Held>> {
        self.writer.file.take()
    }

    /// Removes everything except the path, because the region has ended. A thread that uses the host's descriptor table closes
    /// the host's descriptors.
    pub fn end(&mut self) {
        let path = std::mem::take(&mut self.path);
        let ended = Mutex::new(Some(std::mem::replace(self, Naming { path, ..Naming::nameless(None) })));
        host_fds::run(&|| drop(lock(&ended).take()));
    }

    /// Removes the file after a failure, when no profiler can have seen the file yet.
    pub fn remove(&mut self) {
        if let Ok(dir) = self.dir() {
            let _ = dir.remove(self.name());
        }
    }

    /// Removes and returns the names of the epochs before `first`.
    pub fn take_names(&mut self, first: u32) -> Vec<OsString> {
        let count = self.names.partition_point(|&(epoch, _)| epoch < first);
        self.names.drain(..count).map(|(_, name)| name).collect()
    }

    /// All paths of the file, for the present and the older epochs.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let older = self.names.iter().map(|(_, name)| self.path.with_file_name(name));
        std::iter::once(self.path.clone()).chain(older)
    }

    /// The due time of the first waiting split, or `NEVER`.
    pub(super) fn next_time(&self) -> u64 {
        self.archives.front().map_or(NEVER, |split| split.due)
    }
}
