//! The sinks as the writer has them: opened by configuration, isolated from each other's failures.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::options::Dialect;
use crate::api::options::{Config, DumpDir, Sinks};
use crate::format::jitdump::Place;
use crate::queue::spool::layout::{FileState, Files, State};
use crate::queue::status::Status;
use crate::registry::{MapChange, Registry, Stored};
use crate::sink::again::Again;
use crate::sink::jitdump::backlog::Kept;
use crate::sink::jitdump::groups::Groups;
use crate::sink::jitdump::names::is_name_of;
use crate::sink::jitdump::{Jitdump, Written};
use crate::sink::region::Regions;
use crate::sink::{describe, perf_map::PerfMap};
use crate::sys::clock::Clock;
use crate::sys::file::Identity;

/// Both sinks.
pub struct SinkSet {
    status: Arc<Status>,
    regions: Arc<Regions>,
    map: Option<PerfMap>,
    dump: Option<(DumpDir, Jitdump)>,
    /// The files are removed in the end.
    remove_files: bool,
}

impl SinkSet {
    pub fn new(status: Arc<Status>, regions: Arc<Regions>) -> SinkSet {
        SinkSet { status, regions, map: None, dump: None, remove_files: false }
    }

    /// Opens the sinks that the configuration asks for. One that fails is reported, and the other runs.
    pub fn open(&mut self, config: &Config) -> Sinks {
        let remember = if config.remember { Sinks::REMEMBER } else { Sinks::NONE };
        self.status.set_sinks(remember, Sinks::NONE);
        let started = self.start(config, config.sinks);
        self.announce(config.sinks, started);
        started
    }

    /// Opens sinks that do not run, and says which ones that were. They run when they are announced.
    pub fn start(&mut self, config: &Config, sinks: Sinks) -> Sinks {
        self.remove_files = config.remove_files;
        let mut started = Sinks::NONE;
        if sinks.has(Sinks::MAP) && self.open_map(config) {
            started = started.with(Sinks::MAP);
        }
        if sinks.has(Sinks::JITDUMP) && self.open_dump(config) {
            started = started.with(Sinks::JITDUMP);
        }
        // It has nothing to open. If everything else fails it is not what was asked for.
        if sinks.has(Sinks::REGION) && (started != Sinks::NONE || sinks == Sinks::REGION) {
            started = started.with(Sinks::REGION);
            let dir = match &config.dump_dir {
                DumpDir::Exactly(dir) => dir,
                DumpDir::CacheBelow(base) => base,
            };
            self.regions.configure(dir.clone(), config.file_mode, config.adopt);
        }
        started
    }

    /// Of the sinks that were asked for, those that have been opened run from now on.
    pub fn announce(&mut self, sinks: Sinks, started: Sinks) {
        self.status.add_sinks(sinks, started);
        if started.has(Sinks::JITDUMP) && self.running_dump().is_some_and(Jitdump::is_in_trouble) {
            // From the last session.
            self.status.sink_stalled(Sinks::JITDUMP);
        }
    }

    /// Closes sinks whose files are up to date, and which stay.
    pub fn stop(&mut self, sinks: Sinks) {
        if sinks.has(Sinks::MAP) {
            self.map.iter_mut().for_each(|map| {
                map.close();
                map.leave();
            });
        }
        if sinks.has(Sinks::JITDUMP) {
            self.close_dump();
            let left: usize = self.dump.iter_mut().map(|(_, dump)| dump.leave()).sum();
            self.status.counters.jitdump_lost.add(left as u64);
        }
        self.status.remove_sinks(sinks);
        self.count(&Written::default());
    }

    /// Whether live code is remembered for sinks that are started later.
    pub fn remember(&self) -> bool {
        self.status.wanted().has(Sinks::REMEMBER)
    }

    /// Whether the map runs.
    pub fn map_runs(&self) -> bool {
        self.status.sinks().has(Sinks::MAP)
    }

    /// Whether what live code has before its LOAD is kept in memory: because no jitdump has it, and one may be started later.
    pub fn keep_prefaces(&self) -> bool {
        self.remember() && self.running_dump().is_none()
    }

    fn open_map(&mut self, config: &Config) -> bool {
        let path = PerfMap::path_in(&config.map_dir, self.status.pid);
        let known = match self.map.take() {
            Some(map) if map.path() == path && map.dialect() == config.dialect => Some(map),
            other => {
                other.into_iter().for_each(PerfMap::end);
                None
            }
        };
        let map = self.map.insert(known.unwrap_or_else(|| PerfMap::new(path, config.dialect, config.file_mode)));
        if let Err(error) = map.open(config.map_max) {
            self.status.last_error.set(describe("create", map.path(), &error));
            return false;
        }
        true
    }

    fn open_dump(&mut self, config: &Config) -> bool {
        // The same directory again means the same file, also where the directory was made for it.
        let known = self.dump.take().filter(|(dir, _)| *dir == config.dump_dir);
        let dump = match known {
            Some((_, dump)) => dump,
            None => match Jitdump::path_for(&config.dump_dir, self.status.pid) {
                Ok(path) => Jitdump::new(path, config.file_mode, self.status.clone()),
                Err(error) => {
                    self.status.last_error.set(format!("cannot make a directory for the jitdump: {error}"));
                    return false;
                }
            },
        };
        let (_, dump) = self.dump.insert((config.dump_dir.clone(), dump));
        dump.configure(config);
        if let Err(error) = dump.open() {
            self.status.last_error.set(describe("create", dump.path(), &error));
            return false;
        }
        true
    }

    /// Takes over the files of a dead process. They are not made: they have the modes that they have.
    pub fn adopt(
        &mut self,
        files: &Files,
        state: &State,
        (next_map, next_dump): (Identity, Option<FileState>),
        may_be_locked: bool,
    ) -> Adopted {
        let mut running = Sinks::NONE;
        let mut adopted = Adopted::default();
        let pid = self.status.pid;
        if let Some(state_of_map) = state.map {
            let path = path_of(&files.map_path);
            let dialect = if files.simpleperf { Dialect::Simpleperf } else { Dialect::Perf };
            let map = self.map.insert(PerfMap::new(path.clone(), dialect, 0));
            let lines = check_name(&path, |name| name == OsStr::new(&PerfMap::name_of(pid)))
                .and_then(|()| map.adopt(&state_of_map, next_map, state.map_is_shared, may_be_locked));
            match lines {
                Ok(lines) => (adopted.map, running) = (lines, running.with(Sinks::MAP)),
                Err(error) => adopted.refused(&path, &error),
            }
        }
        if let Some(state) = state.dump {
            let path = path_of(&files.dump_path);
            let dump = Jitdump::new(path.clone(), 0, self.status.clone());
            let (_, dump) = self.dump.insert((DumpDir::Exactly(path.clone()), dump));
            let result = check_name(&path, |name| is_name_of(name, pid))
                .and_then(|()| dump.adopt(&state, next_dump, may_be_locked));
            match result {
                Ok(()) => running = running.with(Sinks::JITDUMP),
                Err(error) => adopted.refused(&path, &error),
            }
        }
        self.status.set_sinks(running, Sinks::NONE);
        adopted
    }

    /// Hands out what is in the jitdump.
    pub fn read_places(&mut self, found: &mut dyn FnMut(Place)) {
        if let Some(Err(error)) = self.running_dump().map(|dump| dump.read_places(found)) {
            self.stalled(Sinks::JITDUMP, "read", &error);
        }
    }

    /// Says where the files are.
    pub fn announce_paths(&self) {
        let map = self.map.iter().map(|map| (Sinks::MAP, map.path().to_owned()));
        let dump = self.dump.iter().map(|(_, dump)| (Sinks::JITDUMP, dump.path().to_owned()));
        self.status.set_paths(map.chain(dump).collect());
    }

    /// What a spool has to say of the files.
    pub fn files(&self, config: &Config) -> Files {
        let path = |path: Option<&Path>| path.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec());
        Files {
            map_path: path(self.map.as_ref().map(PerfMap::path)),
            dump_path: path(self.dump.as_ref().map(|(_, dump)| dump.path())),
            simpleperf: config.dialect == Dialect::Simpleperf,
            arch_timestamps: self.status.clock == Clock::Arch,
        }
    }

    /// How far the files are written, those that are.
    pub fn file_states(&self) -> (Option<FileState>, Option<FileState>) {
        let map = self.map.as_ref().filter(|_| self.status.sinks().has(Sinks::MAP));
        (map.and_then(PerfMap::state), self.running_dump().and_then(Jitdump::state))
    }

    /// In a forked child: lets go of the parent's files, and hands over the jitdump, which groups are read from.
    pub fn let_go(&mut self) -> Option<Kept> {
        if let Some(map) = &mut self.map {
            map.let_go();
        }
        self.dump.as_mut().map(|(_, dump)| dump.let_go())
    }

    /// Groups that a forked child has inherited. Their code is in the registry already.
    pub fn write_inherited(&mut self, groups: &[u8], lens: &[usize]) {
        self.write_dump(&[groups], lens);
    }

    /// Where in the order of all groups the next one will be.
    pub fn next_offset(&self, groups: &Groups) -> Option<u64> {
        self.running_dump().map(|dump| dump.next() + groups.bytes() as u64)
    }

    pub fn running_dump(&self) -> Option<&Jitdump> {
        let running = self.status.sinks().has(Sinks::JITDUMP);
        self.dump.as_ref().filter(|_| running).map(|(_, dump)| dump)
    }

    pub fn running_dump_mut(&mut self) -> Option<&mut Jitdump> {
        let running = self.status.sinks().has(Sinks::JITDUMP);
        self.dump.as_mut().filter(|_| running).map(|(_, dump)| dump)
    }

    /// Reads a group back: keeping the tables and lines of all live code in memory for a move that hardly ever comes would
    /// cost every host more than this.
    pub fn read_back(&mut self, groups: &mut Groups, stored: Stored) -> Option<Vec<u8>> {
        self.write_groups(groups);
        let read = self.running_dump()?.read_back(stored);
        if let Err(error) = &read {
            self.status.counters.write_errors.add(1);
            let path = self.running_dump()?.path();
            self.status.last_error.set(describe("read back", path, error));
        }
        read.ok()
    }

    /// Whether others in the process write to the map.
    pub fn map_is_shared(&self) -> bool {
        self.map.as_ref().is_some_and(PerfMap::is_shared)
    }

    /// Whether lines of the map have to change.
    pub fn map_is_stale(&self) -> bool {
        self.map.as_ref().is_some_and(PerfMap::is_stale)
    }

    /// Whether there is something to write that has to wait a little.
    pub fn have_work(&self) -> bool {
        self.map.as_ref().is_some_and(PerfMap::has_work)
    }

    /// How long it is until something that has failed is to be tried again.
    pub fn again_in(&self) -> Option<Duration> {
        let dump = self.running_dump().and_then(Jitdump::again);
        let map = self.map.as_ref().and_then(PerfMap::again);
        dump.into_iter().chain(map).map(Again::remaining).min()
    }

    /// Whether everything asked for has been written so far.
    pub fn result(&self) -> Result<()> {
        match self.status.sinks_failed() {
            Sinks::NONE => Ok(()),
            _ => Err(Error::SinkFailed),
        }
    }

    /// A registration has changed the registry.
    pub fn note(&mut self, change: MapChange, start: u64, size: u64, name: &[u8]) {
        let alone = !self.status.sinks().has(Sinks::JITDUMP);
        if let Some(map) = &mut self.map {
            map.note(change, start, size, name, alone);
        }
    }

    /// Dead code has been forgotten.
    pub fn note_forgotten(&mut self) {
        if let Some(map) = &mut self.map {
            map.note_forgotten();
        }
    }

    /// Writes pieces of one record or group that are not in a chunk, behind all that came before.
    pub fn write_owned(&mut self, groups: &mut Groups, pieces: &[&[u8]]) {
        self.write_groups(groups);
        self.write_dump(pieces, &[pieces.iter().map(|piece| piece.len()).sum()]);
    }

    /// Writes what has come together.
    pub fn write_groups(&mut self, groups: &mut Groups) {
        groups.drain(|pieces, lens| self.write_dump(pieces, lens));
    }

    fn write_dump(&mut self, pieces: &[&[u8]], lens: &[usize]) {
        let status = self.status.clone();
        let Some(dump) = self.running_dump_mut() else { return };
        let written = status.gate.pass(|| dump.write(pieces, lens));
        self.count(&written);
        if let Some(error) = &written.error {
            self.stalled(Sinks::JITDUMP, "write", error);
        }
    }

    /// Counts what was written to the jitdump.
    pub fn count(&self, written: &Written) {
        let counters = &self.status.counters;
        counters.jitdump_bytes.add(written.bytes);
        counters.jitdump_records.add(written.groups);
        counters.jitdump_lost.add(written.lost);
        counters.jitdump_held.set(self.running_dump().map_or(0, |dump| dump.backlog_bytes() as u64));
    }

    /// Gives room ahead of files back, at the end of the process.
    pub fn trim(&mut self) {
        if let Some(Err(error)) = self.running_dump_mut().map(Jitdump::trim) {
            self.stalled(Sinks::JITDUMP, "write", &error);
        }
    }

    /// Notices that the jitdump is gone.
    pub fn check_dump(&mut self) {
        if let Some(Err(error)) = self.running_dump_mut().map(Jitdump::check) {
            self.stalled(Sinks::JITDUMP, "write", &error);
        }
    }

    /// Brings the map up to date; what has to be written anew waits until it is due, unless it is wanted `now`.
    /// `announce` is told of a file before it replaces the map.
    pub fn write_map(&mut self, registry: &mut Registry, now: bool, announce: &dyn Fn(Identity)) {
        let running = self.status.sinks().has(Sinks::MAP);
        let Some(map) = self.map.as_mut().filter(|_| running) else { return };
        let status = &self.status;
        match status.gate.pass(|| map.write(registry, now, status, announce)) {
            Ok(()) if map.again().is_none() => status.sink_goes_on(Sinks::MAP),
            Ok(()) => {}
            Err(error) => self.stalled(Sinks::MAP, "write", &error),
        }
        let counters = &self.status.counters;
        counters.map_entries.set((registry.span_count() as u64).saturating_sub(counters.map_omitted.get()));
    }

    /// A sink cannot write. What is in its file is whole, the other sink goes on, and this one tries again.
    pub fn stalled(&self, sink: Sinks, what: &str, error: &io::Error) {
        self.status.counters.write_errors.add(1);
        self.status.sink_stalled(sink);
        let path = match sink {
            Sinks::MAP => self.map.as_ref().map(PerfMap::path),
            _ => self.dump.as_ref().map(|(_, dump)| dump.path()),
        };
        self.status.last_error.set(describe(what, path.unwrap_or(Path::new("")), error));
    }

    /// Closes the files, which stay unless they are to be removed.
    pub fn close(&mut self) {
        if let Some(map) = &mut self.map {
            map.close();
        }
        self.close_dump();
        self.remove_files();
    }

    fn close_dump(&mut self) {
        let gate = &self.status.gate;
        if let Some(Err(error)) = self.dump.as_mut().map(|(_, dump)| gate.pass(|| dump.close())) {
            self.stalled(Sinks::JITDUMP, "write", &error);
        }
    }

    /// Removes the files, which are closed, if that is asked for.
    pub fn remove_files(&mut self) {
        if self.remove_files {
            self.map.iter_mut().for_each(PerfMap::remove);
            self.dump.iter_mut().for_each(|(_, dump)| dump.remove());
            self.regions.remove_files(&self.status);
        }
    }

    /// Closes the files at the end of the process, if they are to be removed.
    pub fn close_to_remove(&mut self) {
        if self.remove_files {
            self.close();
            self.status.stop_sinks();
        }
    }
}

/// What came of taking over the files of a dead process.
#[derive(Default)]
pub struct Adopted {
    /// The text of the map.
    pub map: Vec<u8>,
    /// Which file could not be taken over, and why.
    pub problems: Vec<String>,
    /// One of them may be there another time.
    pub worth_another_try: bool,
}

impl Adopted {
    fn refused(&mut self, path: &Path, error: &io::Error) {
        // Gone for good, or another file: but not if there is no directory where it was, or no descriptor left.
        let is_gone = match error.kind() {
            io::ErrorKind::NotFound => path.parent().is_some_and(Path::is_dir),
            kind => matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
        };
        self.worth_another_try |= !is_gone;
        self.problems.push(describe("complete", path, error));
    }
}

/// Whether a path can be that of a file of a process: where its directory lies, and by which links it is found, is for its host to
/// choose, and its name is not.
fn check_name(path: &Path, is_own: impl Fn(&OsStr) -> bool) -> io::Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let name = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if path.is_absolute() && is_own(OsStr::from_bytes(name)) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "is not the name of a file of this process"))
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
