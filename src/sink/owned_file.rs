//! A file that a sink owns under a name by which readers find it: made or taken over, opened again, replaced, closed, removed. Its
//! contents, and the judgement whether it is still good, are the sink's.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};

use super::retry::Retry;
use crate::format::file_names::replacement_of;
use crate::queue::spool::layout::FileState;
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held, Identity};
use crate::sys::marker::Marker;
use crate::sys::other_writers;

/// See the module's description.
#[derive(Debug, Default)]
pub struct OwnedFile {
    /// Empty before it is opened for the first time.
    path: PathBuf,
    pub mode: u32,
    dir: Option<Dir>,
    file: Option<Held>,
    /// Of the file that was opened last.
    pub identity: Option<Identity>,
    marker: Option<Marker>,
    /// Something could not be written.
    pub trouble: Option<Retry>,
}

impl OwnedFile {
    pub fn at(path: PathBuf, mode: u32) -> OwnedFile {
        OwnedFile { path, mode, ..OwnedFile::default() }
    }

    pub fn path(&self) -> Option<&Path> {
        Some(self.path.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Another name in the same directory.
    pub fn set_name(&mut self, name: &OsStr) {
        self.path.set_file_name(name);
    }

    /// The directory that the file lies in, opened again if the host has closed it, and the file's name.
    pub fn place(&mut self) -> io::Result<(&Dir, &OsStr)> {
        let held = self.dir.take().filter(Dir::is_open);
        let dir = held.map_or_else(|| Dir::of(&self.path), Ok)?;
        Ok((self.dir.insert(dir), self.path.file_name().unwrap_or_default()))
    }

    /// Opens the file that was opened last, if it still has the name: it was closed, by the sink or by the host. Returns its length.
    pub fn reopen(&mut self) -> io::Result<u64> {
        let known = self.identity.ok_or(io::ErrorKind::NotFound)?;
        let (dir, name) = self.place()?;
        let file = file::reopen(dir, name, known, file::APPEND)?;
        self.hold(file)
    }

    /// Makes the file, in the place of one that a dead process has left. See [`file::claim`].
    pub fn claim(&mut self) -> io::Result<File> {
        let mode = self.mode;
        let (dir, name) = self.place()?;
        file::claim(dir, name, mode, file::APPEND)
    }

    /// The file of a dead process, which is to be one of these. See [`file::take_over`].
    pub fn take_over(&mut self, known: &[Identity], may_be_locked: bool) -> io::Result<(File, Identity)> {
        let (dir, name) = self.place()?;
        file::take_over(dir, name, known, may_be_locked)
    }

    /// From now on it is this file. Returns its length.
    pub fn hold(&mut self, file: File) -> io::Result<u64> {
        let (identity, len) = file::identity_and_len(&file)?;
        self.identity = Some(identity);
        self.file = Some(Held::new(file)?);
        Ok(len)
    }

    /// The file, while it is open.
    pub fn held(&self) -> io::Result<&Held> {
        Ok(self.file.as_ref().ok_or(file::CLOSED)?)
    }

    /// What a spool has to know of the file while it is open. `len`: how far it is written.
    pub fn state(&self, len: u64) -> Option<FileState> {
        self.file.as_ref()?;
        Some(FileState { identity: self.identity?, len })
    }

    /// When the next attempt is to be made, if the last one has failed and the file is open.
    pub fn again(&self) -> Option<&Retry> {
        self.trouble.as_ref().filter(|_| self.file.is_some())
    }

    /// Makes a file that is to replace the present one, in the same directory. Returns its name too.
    ///
    /// The first choice of a name is always the same, so that the file of a killed process is replaced by the next one with its pid.
    /// Others may have taken that name to prevent it, so the next choices cannot be foreseen.
    pub fn make_replacement(&mut self) -> io::Result<(OsString, File)> {
        const ATTEMPTS: usize = 4;
        let mode = self.mode;
        let (dir, own) = self.place()?;
        let (mut name, mut attempt) = (replacement_of(own, None), 1);
        loop {
            match file::claim(dir, &name, mode, file::APPEND) {
                Ok(file) => return Ok((name, file)),
                Err(error) if attempt == ATTEMPTS || !file::is_anothers(&error) => {
                    let text = format!("cannot create {}: {error}", Path::new(&name).display());
                    return Err(io::Error::new(error.kind(), text));
                }
                Err(_) => name = replacement_of(own, Some(RandomState::new().hash_one(attempt))),
            }
            attempt += 1;
        }
    }

    /// Removes such a file: it does not replace the present one after all.
    pub fn remove_replacement(&mut self, name: &OsStr) {
        let _ = self.place().and_then(|(dir, _)| dir.remove(name));
    }

    /// The mapping by which others find the file; that of the file before it ends.
    pub fn set_marker(&mut self, marker: Option<Marker>) {
        std::mem::replace(&mut self.marker, marker).into_iter().for_each(Marker::end);
    }

    /// Closes the file, which stays, and returns it.
    pub fn close(&mut self) -> Option<Held> {
        let file = self.file.take()?;
        let _ = file.checked().map(|file| other_writers::note(file, false));
        Some(file)
    }

    /// Closes the directory. The next one is the directory that has the path then.
    pub fn close_dir(&mut self) {
        self.dir = None;
    }

    /// In a forked child: lets go of the parent's file.
    pub fn let_go(&mut self) {
        self.file = None;
    }

    /// Removes the file, which is closed. Not by way of the directory that is held: this may be a thread of the host, and another
    /// descriptor table.
    pub fn remove(&self) {
        let _ = Dir::of(&self.path).map(|dir| file::remove_ours(&dir, self.name(), self.identity));
    }
}
