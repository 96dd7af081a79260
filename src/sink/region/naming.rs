//! What the file of a region is called, and the descriptors of it: one for the threads of the host, which map it, and one for the
//! writer, which has another table of them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::NEVER;
use crate::sys::delegate;
use crate::sys::descriptors::DescriptorTable;
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held, Identity};

/// See the module's description.
#[derive(Debug)]
pub struct Naming {
    pub path: PathBuf,
    /// The file has that name; else it has none.
    is_named: bool,
    identity: Option<Identity>,
    /// The host's descriptor is only open while it is used.
    is_light: bool,
    host: Open,
    writer: Open,
    /// What all its names begin with.
    pub(super) stem: String,
    pub(super) generation: u32,
    /// Names that it had, for the writer.
    pub(super) switches: VecDeque<Switch>,
}

/// The descriptors in one table.
#[derive(Debug, Default)]
struct Open {
    dir: Option<Arc<Dir>>,
    file: Option<Arc<Held>>,
}

/// The file of a region got another name.
#[derive(Debug)]
pub struct Switch {
    pub(super) time: u64,
    /// The name that it had before, which the writer has to give to what it said then.
    pub old: OsString,
    /// Where the segment that is loaded begins from now on.
    pub begin: u64,
}

impl Naming {
    /// That of a file which the calling thread has opened.
    pub fn new(dir: Arc<Dir>, path: PathBuf, file: Arc<Held>, stem: String) -> Naming {
        let mut naming = Naming { path, is_named: true, stem, ..Naming::nameless(Some(file)) };
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
            is_light: false,
            host: Open::default(),
            writer: Open::default(),
            stem: String::new(),
            generation: 0,
            switches: VecDeque::new(),
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

    /// The directory that the file has its name in, for the calling thread; opened again if the host has closed it.
    pub fn dir(&mut self) -> io::Result<Arc<Dir>> {
        if !self.is_named {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !DescriptorTable::current().is_host() {
            // The writer needs it once a generation.
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
        let thread = delegate::tid().unwrap_or_else(std::process::id);
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
        delegate::run(&|| drop(ended.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// In case of failure: nobody has seen the file.
    pub fn remove(&mut self) {
        if let Ok(dir) = self.dir() {
            let _ = dir.remove(self.name());
        }
    }

    /// When the file got the first name of those that the writer has not seen to.
    pub(super) fn next_time(&self) -> u64 {
        self.switches.front().map_or(NEVER, |switch| switch.time)
    }
}
