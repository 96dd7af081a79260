//! Makes, takes over, replaces, closes and removes a file that a sink owns. Readers find the file by its name.
//!
//! The sink itself writes the contents, and decides whether the file is still usable.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};

use super::interface::describe;
use super::retry::Retry;
use crate::format::file_names::replacement_of;
use crate::queue::spool::layout::FileState;
use crate::sys::file::{self, Held, Identity};
use crate::sys::held_dir::Dir;
use crate::sys::marker::Marker;
use crate::sys::other_writers;

#[derive(Debug, Default)]
pub struct OwnedFile {
    /// Empty until the sink is opened for the first time.
    path: PathBuf,
    pub mode: u32,
    dir: Option<Dir>,
    file: Option<Held>,
    /// The identity of the last opened file.
    pub identity: Option<Identity>,
    marker: Option<Marker>,
    /// When to write again, if the last write failed.
    pub trouble: Option<Retry>,
}

impl OwnedFile {
    pub fn at(path: PathBuf, mode: u32) -> OwnedFile {
        OwnedFile { path, mode, ..OwnedFile::default() }
    }

    pub fn path(&self) -> Option<&Path> {
        Some(self.path.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    pub fn describe(&self, what: &str, error: &io::Error) -> String {
        describe(what, &self.path, error)
    }

    pub fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Sets the last part of `path`. Renames no file.
    pub fn set_name(&mut self, name: &OsStr) {
        self.path.set_file_name(name);
    }

    /// Returns the directory and the name of the file. Reopens the directory if the host has closed it.
    pub fn place(&mut self) -> io::Result<(&Dir, &OsStr)> {
        let held = self.dir.take().filter(Dir::is_open);
        let dir = held.map_or_else(|| Dir::of(&self.path), Ok)?;
        Ok((self.dir.insert(dir), self.path.file_name().unwrap_or_default()))
    }

    /// Reopens the last opened file, after the sink or the host has closed it. Fails if the path no longer leads to this file.
    /// Returns the length of the file.
    pub fn reopen(&mut self) -> io::Result<u64> {
        let known = self.identity.ok_or(io::ErrorKind::NotFound)?;
        let (dir, name) = self.place()?;
        let file = file::reopen(dir, name, known, file::APPEND)?;
        self.hold(file)
    }

    /// Makes a new file. Replaces a file that an earlier process with the same pid has left. See [`file::claim`].
    pub fn claim(&mut self) -> io::Result<File> {
        let mode = self.mode;
        let (dir, name) = self.place()?;
        file::claim(dir, name, mode, file::APPEND)
    }

    /// Opens a file that a dead process has left, if the identity of the file is one of `known`. See [`file::take_over`].
    pub fn take_over(&mut self, known: &[Identity], may_be_locked: bool) -> io::Result<(File, Identity)> {
        let (dir, name) = self.place()?;
        file::take_over(dir, name, known, may_be_locked)
    }

    /// Makes `file` the owned file. Returns the file's length.
    pub fn hold(&mut self, file: File) -> io::Result<u64> {
        let (identity, len) = file::identity_and_len(&file)?;
        self.identity = Some(identity);
        self.file = Some(Held::new(file)?);
        Ok(len)
    }

    /// Returns the file, or an error if the file is not open.
    pub fn held(&self) -> io::Result<&Held> {
        Ok(self.file.as_ref().ok_or(file::CLOSED)?)
    }

    /// Returns the state of the file, for the spool. `len` is the length of the written part. `None` if the file is not open.
    pub fn state(&self, len: u64) -> Option<FileState> {
        self.file.as_ref()?;
        Some(FileState { identity: self.identity?, len })
    }

    /// When to write again, if the last write failed and the file is open.
    pub fn again(&self) -> Option<&Retry> {
        self.trouble.as_ref().filter(|_| self.file.is_some())
    }

    /// Makes a new file that is to replace the present file, in the same directory. Returns the new file and its name.
    ///
    /// The first attempt always uses the same name, so that a later process with the same pid replaces the file of a killed
    /// process. An attacker may have taken this name, so later attempts use random names.
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

    /// Removes an unneeded file that `make_replacement` made.
    pub fn remove_replacement(&mut self, name: &OsStr) {
        let _ = self.place().and_then(|(dir, _)| dir.remove(name));
    }

    /// Sets the marker, which is the mapping by which other programs find the file. Unmaps the previous marker.
    pub fn set_marker(&mut self, marker: Option<Marker>) {
        std::mem::replace(&mut self.marker, marker).into_iter().for_each(Marker::end);
    }

    /// Returns the open file, whose descriptor is closed when the caller drops the file. The file is not removed.
    pub fn close(&mut self) -> Option<Held> {
        let file = self.file.take()?;
        let _ = file.checked().map(|file| other_writers::note(file, false));
        Some(file)
    }

    /// Closes the directory. The next use opens the path again, which may then lead to another directory.
    pub fn close_dir(&mut self) {
        self.dir = None;
    }

    /// In a forked child: closes the parent's file, and removes nothing.
    pub fn let_go(&mut self) {
        self.file = None;
    }

    /// Removes the closed file. Opens the directory again, because the caller may be a thread of the host, and the descriptor
    /// `dir` is not in the host's descriptor table.
    pub fn remove(&self) {
        let _ = Dir::of(&self.path).map(|dir| file::remove_ours(&dir, self.name(), self.identity));
    }
}
