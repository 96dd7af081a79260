//! The sinks as the writer has them: opened by configuration, isolated from each other's failures.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::chunk::{Chunk, Event};
use crate::config::{Config, DumpDir, Sinks};
use crate::error::{Error, Result};
use crate::format::jitdump::Place;
use crate::format::perf_map::Dialect;
use crate::registry::{MapChange, Registry, Stored};
use crate::sink::{describe, jitdump::Jitdump, perf_map::PerfMap};
use crate::spool::layout::{FileState, Files, State};
use crate::status::Status;
use crate::sys::clock::Clock;
use crate::sys::file::{Held, Identity};

/// Pieces and bytes that may come together before they are written.
const BATCH_PIECES: usize = 512;
const BATCH_BYTES: usize = 1 << 20;

/// Both sinks.
pub struct SinkSet {
    status: Arc<Status>,
    map: Option<PerfMap>,
    dump: Option<(DumpDir, Jitdump)>,
    /// Moves are written as JIT_CODE_MOVE.
    pub move_records: bool,
}

impl SinkSet {
    pub fn new(status: Arc<Status>) -> SinkSet {
        SinkSet { status, map: None, dump: None, move_records: false }
    }

    /// Opens the sinks that the configuration asks for. One that fails is reported, and the other runs.
    pub fn open(&mut self, config: &Config) -> Sinks {
        self.move_records = config.move_records;
        let mut running = Sinks::NONE;
        if config.sinks.has(Sinks::MAP) && self.open_map(config) {
            running = running.with(Sinks::MAP);
        }
        if config.sinks.has(Sinks::JITDUMP) && self.open_dump(config) {
            running = running.with(Sinks::JITDUMP);
        }
        self.status.set_sinks(running, Sinks(config.sinks.0 & !running.0));
        running
    }

    fn open_map(&mut self, config: &Config) -> bool {
        let path = PerfMap::path_in(&config.map_dir, self.status.pid);
        let known = self.map.take().filter(|map| map.path() == path && map.dialect() == config.dialect);
        let map = self.map.insert(known.unwrap_or_else(|| PerfMap::new(path, config.dialect, config.file_mode)));
        if let Err(error) = map.open() {
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
                Ok(path) => Jitdump::new(path, config.file_mode, self.status.pid, self.status.clock),
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

    /// Takes over the files of a dead process.
    pub fn adopt(&mut self, files: &Files, state: &State, next_map: Identity) -> Adopted {
        self.move_records = files.move_records;
        let mut running = Sinks::NONE;
        let mut adopted = Adopted::default();
        if let Some(state) = state.map {
            let dialect = if files.simpleperf { Dialect::Simpleperf } else { Dialect::Perf };
            let map = self.map.insert(PerfMap::new(path_of(&files.map_path), dialect, files.file_mode));
            match map.adopt(&state, next_map) {
                Ok(lines) => (adopted.map, running) = (lines, running.with(Sinks::MAP)),
                Err(error) => adopted.refused(map.path(), &error),
            }
        }
        if let Some(state) = state.dump {
            let path = path_of(&files.dump_path);
            let dump = Jitdump::new(path.clone(), files.file_mode, self.status.pid, self.status.clock);
            let (_, dump) = self.dump.insert((DumpDir::Exactly(path), dump));
            match dump.adopt(&state) {
                Ok(()) => running = running.with(Sinks::JITDUMP),
                Err(error) => adopted.refused(dump.path(), &error),
            }
        }
        self.status.set_sinks(running, Sinks::NONE);
        adopted
    }

    /// Hands out what is in the jitdump.
    pub fn read_places(&mut self, found: &mut dyn FnMut(Place)) {
        if let Some(Err(error)) = self.running_dump().map(|dump| dump.read_places(found)) {
            self.failed(Sinks::JITDUMP, &error);
        }
    }

    /// Where the files are.
    pub fn paths(&self) -> Vec<(Sinks, PathBuf)> {
        let map = self.map.iter().map(|map| (Sinks::MAP, map.path().to_owned()));
        map.chain(self.dump.iter().map(|(_, dump)| (Sinks::JITDUMP, dump.path().to_owned()))).collect()
    }

    /// What a spool has to say of the files.
    pub fn files(&self, config: &Config) -> Files {
        let path = |path: Option<&Path>| path.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec());
        Files {
            map_path: path(self.map.as_ref().map(PerfMap::path)),
            dump_path: path(self.dump.as_ref().map(|(_, dump)| dump.path())),
            simpleperf: config.dialect == Dialect::Simpleperf,
            move_records: self.move_records,
            arch_timestamps: self.status.clock == Clock::Arch,
            file_mode: config.file_mode,
        }
    }

    /// How far the files are written, those that are.
    pub fn file_states(&self) -> (Option<FileState>, Option<FileState>) {
        let map = self.map.as_ref().filter(|_| self.status.sinks().has(Sinks::MAP));
        (map.and_then(PerfMap::state), self.running_dump().and_then(Jitdump::state))
    }

    /// In a forked child: lets go of the parent's files, and hands over the jitdump, which groups are read from.
    pub fn let_go(&mut self) -> Option<Held> {
        if let Some(map) = &mut self.map {
            map.close();
        }
        self.dump.as_mut().and_then(|(_, dump)| dump.let_go())
    }

    /// Groups that a forked child has inherited. Their code is in the registry already.
    pub fn write_inherited(&mut self, groups: &[u8], records: u64) {
        self.write_dump(&mut [IoSlice::new(groups)], records);
    }

    /// Where in the jitdump the next group will be.
    pub fn next_offset(&self, groups: &Groups) -> Option<u64> {
        self.running_dump().map(|dump| dump.len() + groups.bytes as u64)
    }

    fn running_dump(&self) -> Option<&Jitdump> {
        let running = self.status.sinks().has(Sinks::JITDUMP);
        self.dump.as_ref().filter(|_| running).map(|(_, dump)| dump)
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

    /// Whether there is something to write that has to wait a little.
    pub fn have_work(&self) -> bool {
        self.map.as_ref().is_some_and(PerfMap::has_work)
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
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        self.write_dump(&mut slices, 1);
    }

    /// Writes what has come together.
    pub fn write_groups(&mut self, groups: &mut Groups) {
        if groups.pieces.is_empty() {
            return;
        }
        // SAFETY: the pieces are committed bodies in chunks that are recycled later, and nobody writes to them any more; or
        // they are owned until the end of this function.
        let slice = |&piece: &*const [u8]| IoSlice::new(unsafe { &*piece });
        let mut slices: Vec<IoSlice<'_>> = groups.pieces.iter().map(slice).collect();
        self.write_dump(&mut slices, groups.records);
        drop(slices);
        // What it holds memory for is needed again.
        groups.pieces.clear();
        groups.owned.clear();
        (groups.records, groups.bytes) = (0, 0);
    }

    fn write_dump(&mut self, slices: &mut [IoSlice<'_>], records: u64) {
        let running = self.status.sinks().has(Sinks::JITDUMP);
        let Some((_, dump)) = self.dump.as_mut().filter(|_| running) else { return };
        match self.status.write_file(|| dump.write(slices)) {
            Ok(bytes) => {
                self.status.counters.jitdump_bytes.add(bytes);
                self.status.counters.jitdump_records.add(records);
            }
            Err(error) => self.failed(Sinks::JITDUMP, &error),
        }
    }

    /// Gives room ahead of files back, at the end of the process.
    pub fn trim(&mut self) {
        if let Some(Err(error)) = self.dump.as_mut().map(|(_, dump)| dump.trim()) {
            self.failed(Sinks::JITDUMP, &error);
        }
    }

    /// Notices that the jitdump is gone.
    pub fn check_dump(&mut self) {
        if let Some(Err(error)) = self.running_dump().map(Jitdump::check) {
            self.failed(Sinks::JITDUMP, &error);
        }
    }

    /// Brings the map up to date; what has to be written anew waits until it is due, unless it is wanted `now`.
    /// `announce` is told of a file before it replaces the map.
    pub fn write_map(&mut self, registry: &Registry, now: bool, announce: &dyn Fn(Identity)) {
        let running = self.status.sinks().has(Sinks::MAP);
        let Some(map) = self.map.as_mut().filter(|_| running) else { return };
        let status = &self.status;
        if let Err(error) = status.write_file(|| map.write(registry, now, &status.counters, announce)) {
            self.failed(Sinks::MAP, &error);
        }
        self.status.counters.map_entries.set(registry.span_count() as u64);
    }

    /// A sink that cannot write is given up: what is in its file is whole, and the other one goes on.
    fn failed(&mut self, sink: Sinks, error: &io::Error) {
        self.status.counters.write_errors.add(1);
        self.status.sink_failed(sink);
        let path = self.paths().into_iter().find(|(found, _)| *found == sink).map(|(_, path)| path);
        self.status.last_error.set(describe("write", &path.unwrap_or_default(), error));
        match (&mut self.map, &mut self.dump) {
            (Some(map), _) if sink == Sinks::MAP => map.close(),
            (_, Some((_, dump))) if sink == Sinks::JITDUMP => dump.give_up(),
            _ => {}
        }
    }

    /// Closes the files, which stay.
    pub fn close(&mut self) {
        if let Some(map) = &mut self.map {
            map.close();
        }
        let gate = &self.status.gate;
        if let Some(Err(error)) = self.dump.as_mut().map(|(_, dump)| gate.pass(|| dump.close())) {
            self.failed(Sinks::JITDUMP, &error);
        }
    }
}

/// That many zeros, in pieces.
pub fn zeros(mut len: usize) -> impl Iterator<Item = &'static [u8]> {
    static ZEROS: [u8; 2048] = [0; 2048];
    std::iter::from_fn(move || {
        let piece = &ZEROS[..len.min(ZEROS.len())];
        len -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
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
            kind => kind == io::ErrorKind::InvalidData,
        };
        self.worth_another_try |= !is_gone;
        self.problems.push(describe("complete", path, error));
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Groups on their way to the jitdump in few system calls. Most lie in chunks.
#[derive(Default)]
pub struct Groups {
    pieces: Vec<*const [u8]>,
    /// Pieces that lie in no chunk.
    owned: Vec<Vec<u8>>,
    records: u64,
    bytes: usize,
}

impl Groups {
    /// Adds the group that is the body of this event, or as much of it as is in the body. The chunk is not recycled before the
    /// groups are written.
    pub fn push(&mut self, chunk: Chunk, event: &Event, len: usize) {
        let group = std::ptr::slice_from_raw_parts(chunk.body_ptr(event).cast::<u8>(), len);
        self.records += 1;
        self.bytes += len;
        if let Some(last) = self.pieces.last_mut() {
            // A chunk begins with its head, never where a body of another one ends: both lie in the same chunk.
            if last.cast::<u8>().wrapping_add(last.len()) == group.cast() {
                *last = std::ptr::slice_from_raw_parts(last.cast(), last.len() + len);
                return;
            }
        }
        self.pieces.push(group);
    }

    /// Adds the code bytes of the last group, with zeros for those that are missing.
    pub fn push_owned(&mut self, code: Vec<u8>, size: usize) {
        self.bytes += size;
        self.pieces.push(&raw const code[..]);
        self.pieces.extend(zeros(size - code.len()).map(|piece| &raw const *piece));
        self.owned.push(code);
    }

    /// Whether it is time to write them.
    pub fn are_many(&self) -> bool {
        self.pieces.len() >= BATCH_PIECES || self.bytes >= BATCH_BYTES
    }
}
