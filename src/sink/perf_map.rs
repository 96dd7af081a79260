//! The perf map sink: appends lines while that keeps the file true, else writes it anew.
//!
//! perf and the others read the file at some moment of their own, so each write is of whole lines, and a changed file is put
//! in place by renaming: whoever has the old one open or mapped keeps it as it was.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::format::perf_map::{push_line, Dialect};
use crate::registry::{MapChange, Registry};
use crate::spool::layout::FileState;
use crate::status::Counters;
use crate::sys::file::{self, Held, Identity};

/// The least time between two rewrites, unless somebody asks for a flush.
const REWRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Rewriting takes at most this part of the writer's time.
const REWRITE_SHARE: u32 = 20;

/// The sink.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
    dialect: Dialect,
    mode: u32,
    file: Option<Held>,
    identity: Option<Identity>,
    len: u64,
    /// Lines to append.
    pending: Vec<u8>,
    /// Lines in the file have to change.
    stale: bool,
    not_before: Instant,
}

impl PerfMap {
    /// Where the map of this process goes.
    pub fn path_in(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("perf-{pid}.map"))
    }

    pub fn new(path: PathBuf, dialect: Dialect, mode: u32) -> PerfMap {
        PerfMap {
            path,
            dialect,
            mode,
            file: None,
            identity: None,
            len: 0,
            pending: Vec::new(),
            stale: false,
            not_before: Instant::now(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Opens the file: the one that we wrote before if it is still there, else a new one.
    pub fn open(&mut self) -> io::Result<()> {
        let before = self.identity.and_then(|identity| file::reopen(&self.path, identity).ok());
        let opened = match before {
            Some(opened) => opened,
            None => {
                // One that was lost is written again from the registry.
                self.stale |= self.identity.is_some();
                file::claim(&self.path, self.mode)?
            }
        };
        self.identity = Some(file::identity(&opened)?);
        self.len = opened.metadata()?.len();
        self.file = Some(Held::new(opened)?);
        Ok(())
    }

    /// What a spool has to know of it.
    pub fn state(&self) -> Option<FileState> {
        self.file.as_ref()?;
        self.identity.map(|identity| FileState { identity, len: self.len })
    }

    /// Opens the file of a dead process: the one that is known, or the one that was about to replace it. Returns its lines as of
    /// the end of the last whole pass, or some of the following one.
    pub fn adopt(&mut self, state: &FileState, next: Identity) -> io::Result<Vec<u8>> {
        let known = file::identity_of_name(&self.path)? == state.identity;
        let identity = if known { state.identity } else { next };
        let file = file::reopen(&self.path, identity)?;
        let mut text = Vec::new();
        (&file).read_to_end(&mut text)?;
        if known {
            if (text.len() as u64) < state.len {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "has been cut"));
            }
            text.truncate(state.len as usize);
        }
        self.identity = Some(identity);
        self.file = Some(Held::new(file)?);
        // Whatever follows, it is put into place at once or not at all.
        self.stale = true;
        Ok(text)
    }

    /// Closes the file, which stays.
    pub fn close(&mut self) {
        self.file = None;
        self.stale |= !self.pending.is_empty();
        self.pending.clear();
    }

    /// Takes note of a registration that the registry has just been told of.
    ///
    /// `alone`: if the process is killed, only this file can tell of it. Then its line is appended also if older lines have to
    /// change. Else it waits until the file is written anew: no two lines are to say different things, and from the jitdump it
    /// can be recovered.
    pub fn note(&mut self, change: MapChange, start: u64, size: u64, name: &[u8], alone: bool) {
        match change {
            MapChange::None => return,
            MapChange::Append => {}
            MapChange::Rewrite => self.stale = true,
        }
        if self.file.is_some() && (alone || !self.stale) {
            push_line(&mut self.pending, self.dialect, start, size, name);
        } else {
            // Without a file nothing is collected: a later one is written from the registry.
            self.stale = true;
        }
    }

    /// Entries of dead code have been dropped.
    pub fn note_forgotten(&mut self) {
        self.stale = true;
    }

    /// Whether the file has to be written anew.
    pub fn has_work(&self) -> bool {
        self.stale && self.file.is_some()
    }

    /// Brings the file up to date; a rewrite only if it is due or `now`.
    /// `announce` is told of a file before it takes the name.
    pub fn write(
        &mut self,
        registry: &Registry,
        now: bool,
        counters: &Counters,
        announce: &dyn Fn(Identity),
    ) -> io::Result<()> {
        // Programs that tidy /tmp remove it under long-running processes.
        self.stale |= now && self.file.as_ref().is_some_and(|file| file::is_removed(file));
        if self.stale && (now || Instant::now() >= self.not_before) {
            let begin = Instant::now();
            self.rewrite(registry, counters, announce)?;
            self.not_before = Instant::now() + (begin.elapsed() * REWRITE_SHARE).max(REWRITE_INTERVAL);
            return Ok(());
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotConnected)?.checked()?;
        let size = file::append_whole(file, &mut [IoSlice::new(&self.pending)])?;
        counters.map_bytes.add(size);
        self.len += size;
        self.pending.clear();
        Ok(())
    }

    fn rewrite(&mut self, registry: &Registry, counters: &Counters, announce: &dyn Fn(Identity)) -> io::Result<()> {
        let mut text = Vec::with_capacity(64 * registry.span_count());
        for (start, size, name) in registry.spans() {
            push_line(&mut text, self.dialect, start, size, name);
        }
        // In the same directory, for the rename; hidden, so that nobody takes it for a map.
        let pid_name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fresh_path = self.path.with_file_name(format!(".{pid_name}.new"));
        let mut fresh = file::claim(&fresh_path, self.mode)?;
        let identity = file::identity(&fresh)?;
        announce(identity);
        let renamed =
            fresh.write_all(&text).and_then(|()| self.check_ours()).and_then(|()| fs::rename(&fresh_path, &self.path));
        if let Err(error) = renamed {
            let _ = fs::remove_file(&fresh_path);
            return Err(error);
        }
        self.identity = Some(identity);
        self.len = text.len() as u64;
        self.file = Some(Held::new(fresh)?);
        self.pending.clear();
        self.stale = false;
        counters.map_rewrites.add(1);
        counters.map_bytes.add(text.len() as u64);
        Ok(())
    }

    /// A rename replaces whatever has the name: that must be the file that we made, or nothing.
    fn check_ours(&self) -> io::Result<()> {
        match file::identity_of_name(&self.path) {
            Ok(identity) if Some(identity) == self.identity => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "has been replaced by somebody else")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}
