//! The perf map sink: appends lines while that keeps the file true, else writes it anew.
//!
//! perf and the others read the file at some moment of their own, so each write is of whole lines, and a changed file is put
//! in place by renaming: whoever has the old one open or mapped keeps it as it was.

use std::ffi::OsStr;
use std::io::{self, IoSlice, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::backlog::Again;
use crate::format::perf_map::{line_len, push_line, Dialect};
use crate::registry::{MapChange, Registry};
use crate::spool::layout::FileState;
use crate::status::{Counters, Status};
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held, Identity};

/// The least time between two rewrites, unless somebody asks for a flush.
const REWRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Rewriting takes at most this part of the writer's time.
const REWRITE_SHARE: u32 = 20;
/// Lines that wait for a file that cannot be written. With more of them it is written anew once it can be.
const PENDING_MAX: usize = 1 << 20;

/// The sink.
#[derive(Debug)]
pub struct PerfMap {
    path: PathBuf,
    dir: Option<Dir>,
    dialect: Dialect,
    mode: u32,
    /// How long the file may become.
    most: u64,
    file: Option<Held>,
    identity: Option<Identity>,
    len: u64,
    /// Lines to append.
    pending: Vec<u8>,
    /// Lines in the file have to change.
    stale: bool,
    not_before: Instant,
    /// Live code is left out.
    omits: bool,
    /// It could not be written.
    trouble: Option<Again>,
}

impl PerfMap {
    /// Where the map of this process goes.
    pub fn path_in(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("perf-{pid}.map"))
    }

    pub fn new(path: PathBuf, dialect: Dialect, mode: u32) -> PerfMap {
        PerfMap {
            path,
            dir: None,
            dialect,
            mode,
            most: u64::MAX,
            file: None,
            identity: None,
            len: 0,
            pending: Vec::new(),
            stale: false,
            not_before: Instant::now(),
            omits: false,
            trouble: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// The directory that the file lies in; again, if the host has closed it.
    fn dir(&mut self) -> io::Result<&Dir> {
        let held = self.dir.take().filter(Dir::is_open);
        let dir = held.map_or_else(|| Dir::of(&self.path), Ok)?;
        Ok(self.dir.insert(dir))
    }

    /// Opens the file: the one that we wrote before if it is still there, else a new one. `most`: how long it may become.
    pub fn open(&mut self, most: u64) -> io::Result<()> {
        self.most = most;
        let name = self.name().to_owned();
        let dir = self.dir.insert(Dir::of(&self.path)?);
        let before = self.identity.and_then(|identity| file::reopen(dir, &name, identity).ok());
        let opened = match before {
            Some(opened) => opened,
            None => {
                // One that was lost is written again from the registry.
                self.stale |= self.identity.is_some();
                file::claim(dir, &name, self.mode)?
            }
        };
        self.identity = Some(file::look_at(&opened)?);
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
        let name = self.name().to_owned();
        let dir = self.dir()?;
        let known = dir.identity_of(&name)?.is(&state.identity);
        let identity = if known { state.identity } else { next };
        let file = file::reopen(dir, &name, identity)?;
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

    /// Closes the directory too.
    pub fn leave(&mut self) {
        self.dir = None;
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
        if self.pending.len() > PENDING_MAX && self.trouble.is_some() {
            self.pending = Vec::new();
            self.stale = true;
        }
        let waits_for_rewrite = self.stale && (!alone || self.trouble.is_some());
        if self.file.is_some() && !waits_for_rewrite && self.pending.try_reserve(line_len(name)).is_ok() {
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
    pub fn is_stale(&self) -> bool {
        self.stale && self.file.is_some()
    }

    /// Whether that is to happen soon.
    pub fn has_work(&self) -> bool {
        self.is_stale() && self.trouble.is_none()
    }

    /// When the next attempt is to be made, if the last one has failed.
    pub fn again(&self) -> Option<&Again> {
        self.trouble.as_ref().filter(|_| self.file.is_some())
    }

    /// Brings the file up to date; a rewrite only if it is due or `now`.
    /// `announce` is told of a file before it takes the name.
    pub fn write(
        &mut self,
        registry: &mut Registry,
        now: bool,
        status: &Status,
        announce: &dyn Fn(Identity),
    ) -> io::Result<()> {
        if !now && self.again().is_some_and(|again| !again.is_due()) {
            return Ok(());
        }
        let result = self.try_to_write(registry, now, status, announce);
        self.trouble = result.is_err().then(|| Again::after(self.trouble.as_ref()));
        result
    }

    fn try_to_write(
        &mut self,
        registry: &mut Registry,
        now: bool,
        status: &Status,
        announce: &dyn Fn(Identity),
    ) -> io::Result<()> {
        let is_whole =
            |file: &Held| file.checked_len().is_ok_and(|(_, len)| len >= self.len) && !file::is_removed(file);
        // Programs that tidy /tmp remove it under long-running processes. A host may have closed it, and anybody who may write
        // to it may have cut it.
        self.stale |= now && self.file.as_ref().is_some_and(|file| !is_whole(file));
        // What does not fit in the end only a rewrite can say.
        self.stale |= self.len + self.pending.len() as u64 > self.most;
        // When code dies there is room for what was left out.
        self.stale |= self.omits && registry.live_count() < registry.span_count();
        if self.stale && (now || Instant::now() >= self.not_before) {
            let begin = Instant::now();
            self.rewrite(registry, status, announce)?;
            self.not_before = Instant::now() + (begin.elapsed() * REWRITE_SHARE).max(REWRITE_INTERVAL);
            return Ok(());
        }
        if self.pending.is_empty() || self.len + self.pending.len() as u64 > self.most {
            return Ok(());
        }
        let file = self.file.as_ref().ok_or(file::CLOSED)?;
        let file = match file.checked_len() {
            Ok((file, len)) if len >= self.len => file,
            _ => {
                self.stale = true;
                return Ok(());
            }
        };
        let size = status.aside(|| file::append_whole(file, &mut [IoSlice::new(&self.pending)]))?;
        status.counters.map_bytes.add(size);
        self.len += size;
        self.pending.clear();
        Ok(())
    }

    fn rewrite(&mut self, registry: &mut Registry, status: &Status, announce: &dyn Fn(Identity)) -> io::Result<()> {
        let counters = &status.counters;
        let text = self.text(registry, counters)?;
        // In the same directory, for the rename.
        let name = self.name().to_owned();
        let fresh_name = file::name_of_new(&name);
        let (mode, ours) = (self.mode, self.identity);
        let dir = self.dir()?;
        let fresh = file::claim(dir, &fresh_name, mode)?;
        let renamed = file::look_at(&fresh).and_then(|identity| {
            announce(identity);
            status.aside(|| (&fresh).write_all(&text))?;
            file::put_in_place(dir, &fresh_name, &name, ours)?;
            Ok(identity)
        });
        let identity = match renamed {
            Ok(identity) => identity,
            Err(error) => {
                let _ = dir.remove(&fresh_name);
                return Err(error);
            }
        };
        self.identity = Some(identity);
        self.len = text.len() as u64;
        self.file = Some(Held::new(fresh)?);
        self.pending.clear();
        (self.stale, self.omits) = (false, counters.map_omitted.get() > 0);
        counters.map_rewrites.add(1);
        counters.map_bytes.add(text.len() as u64);
        Ok(())
    }

    /// All lines that there is room for: dead code goes first, the oldest first; then the live code that was registered last.
    fn text(&self, registry: &mut Registry, counters: &Counters) -> io::Result<Vec<u8>> {
        let len_of = |name: &[u8]| line_len(name) as u64;
        let mut total: u64 = registry.spans().map(|(_, _, name)| len_of(name)).sum();
        let fits = total <= self.most;
        if !fits {
            // Some more than needed, so that it happens rarely.
            let wanted = self.most / 8 * 7;
            let before = registry.span_count();
            registry.forget_while(|name| {
                let too_long = total > wanted;
                total -= if too_long { len_of(name) } else { 0 };
                too_long
            });
            counters.map_forgotten.add((before - registry.span_count()) as u64);
        }
        let mut text = Vec::new();
        text.try_reserve(total.min(self.most) as usize)?;
        let mut omitted = 0;
        let mut push = |(start, size, name): (u64, u64, &[u8])| {
            if text.len() as u64 + len_of(name) <= self.most {
                push_line(&mut text, self.dialect, start, size, name);
            } else {
                omitted += 1;
            }
        };
        if fits || total <= self.most {
            registry.spans().for_each(&mut push);
        } else {
            registry.spans_by_age().ok_or(io::ErrorKind::OutOfMemory)?.for_each(&mut push);
        }
        counters.map_omitted.set(omitted);
        Ok(text)
    }

    /// Removes the file, if it still is the one that we have written.
    pub fn remove(&mut self) {
        let (name, identity) = (self.name().to_owned(), self.identity);
        let _ = self.dir().map(|dir| file::remove_ours(dir, &name, identity));
    }
}
