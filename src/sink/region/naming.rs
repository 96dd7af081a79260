//! What the file of a region is called, and the descriptors of it: one for the threads of the host, which map it, and one for the
//! writer, which has another table of them.

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
use crate::sys::clock::NEVER;
use crate::sys::descriptors::DescriptorTable;
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held, Identity};
use crate::sys::host_fds;
use crate::sys::sync::lock;
use crate::sys::sync::outside::Mutex;

/// See the module's description.
#[derive(Debug)]
pub struct Naming {
    pub path: PathBuf,
    /// The file has that name; else it has none.
    is_named: bool,
    identity: Option<Identity>,
    /// Its final copy, which has the names in its place.
    last: Option<Identity>,
    /// The host's descriptor is only open while it is used.
    is_light: bool,
    host: Open,
    writer: Open,
    /// The process and the number of the file, of which its names are made.
    of: (u32, u32),
    /// The file was made when this process was forked.
    is_of_child: bool,
    /// Names that it has besides, of older epochs; oldest first.
    pub(super) names: VecDeque<(u32, OsString)>,
    /// For the writer.
    pub(super) archives: VecDeque<Archive>,
    /// Code has taken the place of dead code since the file began to begin where it does.
    pub(super) is_reused: bool,
    /// When an epoch began last that begins at another place than the one before, or there was no reason for one.
    pub(super) turned_at: u64,
}

/// The descriptors in one table.
#[derive(Debug, Default)]
struct Open {
    dir: Option<Arc<Dir>>,
    file: Option<Arc<Held>>,
}

/// What the file of a region said until now is for older epochs.
#[derive(Debug)]
pub struct Archive {
    /// When that was, and before which records the writer sees to it at last.
    pub(super) time: u64,
    pub(super) due: u64,
    /// The first of the epochs for which the file goes on.
    pub first: u32,
    /// Where the segment that is loaded begins from now on.
    pub begin: u64,
    /// No code that is dead when the writer sees to it ran in `first` or later.
    pub is_clean: bool,
}

impl Naming {
    /// That of a file which the calling thread has opened.
    pub fn new(dir: Arc<Dir>, path: PathBuf, file: Arc<Held>, of: (u32, u32)) -> Naming {
        let mut naming = Naming { path, is_named: true, of, ..Naming::nameless(Some(file)) };
        if DescriptorTable::current().is_host() {
            naming.host.dir = Some(dir);
        }
        naming
    }

    /// That of a file without a name, or of none at all.
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

    fn here(&mut self) -> &mut Open {
        match DescriptorTable::current().is_host() {
            true => &mut self.host,
            false => &mut self.writer,
        }
    }

    /// Another file takes the place of the one before.
    pub fn set_file(&mut self, file: Option<Arc<Held>>) {
        self.identity = file.as_ref().map(|file| file.identity());
        self.here().file = file;
    }

    /// Its name in an epoch.
    pub(super) fn name_of(&self, epoch: u32, begins_at_code: bool) -> OsString {
        file_name(self.of, &format!(".{epoch}"), begins_at_code)
    }

    /// Whether the segment that is loaded begins at the code, and not with the file.
    pub(super) fn begins_at_code(&self) -> bool {
        file_names::begins_at_code(self.name())
    }

    /// Makes of an empty file of this name one of a region that has no code yet.
    pub(super) fn create_file(&self, file: Arc<Held>, layout: Layout) -> io::Result<RegionFile> {
        let mut file = RegionFile::create(file, layout)?;
        if self.begins_at_code() {
            file.set_begin(layout.text);
        }
        Ok(file)
    }

    /// The path of the file that a forked child gets.
    pub(super) fn path_for_child(&self, child: u32) -> Option<PathBuf> {
        // Nobody would tidy up after a child of a child that has not taken over.
        self.named().filter(|_| !self.is_of_child)?;
        Some(self.path.with_file_name(name_for_child(child, self.of, self.begins_at_code())))
    }

    /// In a forked child: its own file, which may have a name.
    pub(super) fn set_file_of_child(&mut self, file: Option<Arc<Held>>, path: Option<PathBuf>) {
        self.set_file(file);
        self.is_of_child = path.is_some();
        if let Some(path) = path {
            self.path = path;
        }
    }

    /// Path and identity of such a file.
    pub(super) fn of_child(&self) -> Option<(PathBuf, Identity)> {
        let identity = self.named().filter(|_| self.is_of_child)?;
        Some((self.path.clone(), identity))
    }

    /// What a copy of the file is called until it is whole and gets another name.
    pub(super) fn name_of_copy(&self) -> OsString {
        self.name_of(EPOCH_MOST, false)
    }

    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Whether the memory is a mapping of a file.
    pub fn has_file(&self) -> bool {
        self.identity.is_some()
    }

    /// Which file that is.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// The same, if it has a name.
    pub fn named(&self) -> Option<Identity> {
        self.identity.filter(|_| self.is_named)
    }

    /// What the names are of: the file, or its final copy.
    pub(super) fn last(&self) -> Option<Identity> {
        self.last.or_else(|| self.named())
    }

    /// A final copy under another name takes all names of the file. One that somebody has taken since stays.
    pub(super) fn replace_by(&mut self, copy: &OsStr) -> io::Result<()> {
        let (dir, last) = (self.dir()?, self.last());
        let is_own = |name: &OsStr| dir.identity_of(name).is_ok_and(|found| last.is_some_and(|last| last.is(&found)));
        let identity = dir.identity_of(copy)?;
        for (_, name) in self.names.iter().filter(|(_, name)| is_own(name)) {
            // Without links there are no such names.
            let _ = dir.remove(name).and_then(|()| dir.link(copy, name));
        }
        if !is_own(self.name()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        dir.rename(copy, self.name())?;
        self.last = Some(identity);
        Ok(())
    }

    /// The directory that the file has its name in, for the calling thread; opened again if the host has closed it.
    pub fn dir(&mut self) -> io::Result<Arc<Dir>> {
        if !self.is_named {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !DescriptorTable::current().is_host() {
            // The writer needs it once an epoch.
            return Ok(Arc::new(Dir::of(&self.path)?));
        }
        if let Some(dir) = self.host.dir.as_ref().filter(|dir| dir.is_open()) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(Dir::of(&self.path)?);
        Ok(self.host.dir.insert(dir).clone())
    }

    /// The file, for the calling thread; opened again if the host has closed it.
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

    /// The file as the host's table has it, for the writer: somebody may have removed its name, or the directory.
    fn file_of_host(&self, identity: Identity) -> Option<File> {
        let number = self.host.file.as_ref().filter(|_| !DescriptorTable::current().is_host())?.as_raw_fd();
        let thread = host_fds::tid().unwrap_or_else(std::process::id);
        let path = format!("/proc/self/task/{thread}/fd/{number}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        file::look_at(&file).is_ok_and(|found| found.is(&identity)).then_some(file)
    }

    /// The file, if it is open for the calling thread.
    pub fn open_file(&mut self) -> Option<Arc<Held>> {
        self.here().file.clone().filter(|file| file.checked().is_ok())
    }

    /// From now on the host, whose descriptors may be few, has the file open only while it is used.
    pub fn let_go(&mut self) {
        self.is_light = true;
        self.host.file = None;
    }

    /// What the writer has open, for it to close.
    pub fn take_of_writer(&mut self) -> Option<Arc<Held>> {
        self.writer.file.take()
    }

    /// The region ends: nothing stays but the path. Descriptors in the host's table are closed there.
    pub fn end(&mut self) {
        let path = std::mem::take(&mut self.path);
        let ended = Mutex::new(Some(std::mem::replace(self, Naming { path, ..Naming::nameless(None) })));
        host_fds::run(&|| drop(lock(&ended).take()));
    }

    /// In case of failure: nobody has seen the file.
    pub fn remove(&mut self) {
        if let Ok(dir) = self.dir() {
            let _ = dir.remove(self.name());
        }
    }

    /// Takes the names of the epochs before one.
    pub fn take_names(&mut self, first: u32) -> Vec<OsString> {
        let count = self.names.partition_point(|&(epoch, _)| epoch < first);
        self.names.drain(..count).map(|(_, name)| name).collect()
    }

    /// All paths that the file has.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let older = self.names.iter().map(|(_, name)| self.path.with_file_name(name));
        std::iter::once(self.path.clone()).chain(older)
    }

    /// When the first of the archives is due that the writer has not seen to.
    pub(super) fn next_time(&self) -> u64 {
        self.archives.front().map_or(NEVER, |split| split.due)
    }
}
