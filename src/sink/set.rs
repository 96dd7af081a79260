//! The sinks as the writer has them: opened by configuration, isolated from each other's failures.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Dialect, Sinks};
use crate::format::file_names::{parse, FileKind, JITDUMPS};
use crate::queue::spool::layout::{Files, Progress};
use crate::queue::status::Status;
use crate::registry::Registry;
use crate::sink::jitdump::backlog::Contents;
use crate::sink::jitdump::left::forget_places;
use crate::sink::jitdump::{self, Jitdump};
use crate::sink::perf_map::PerfMap;
use crate::sink::region::{self, RegionSink, Regions};
use crate::sink::{
    any_must_wait, describe, gdb, stall, unwinder, with_wants, Close, Kind, Loaded, NewCode, Round, Saved, Sink, KINDS,
};
use crate::sys::clock::Clock;
use crate::sys::file::Identity;

/// All sinks of a process.
pub struct SinkSet {
    status: Arc<Status>,
    /// Forks and recovery read from it.
    dump: Jitdump,
    /// The applier sends code to it.
    pub region: RegionSink,
    others: Vec<(&'static Kind, Box<dyn Sink>)>,
    /// The files are removed in the end.
    remove_files: bool,
    /// Sinks that did not run when code was loaded.
    missed: Sinks,
    /// Those that hear of code in regions too. Nobody reads these sinks' files, and calls may wait for them.
    told_of_regions: Sinks,
}

impl SinkSet {
    pub fn new(status: Arc<Status>, regions: &Arc<Regions>) -> SinkSet {
        let make = |kind: &&'static Kind| kind.make.map(|make| (*kind, make(&status)));
        let others = KINDS.iter().filter_map(make).collect();
        let (dump, region) = (Jitdump::new(status.clone()), RegionSink::new(status.clone(), regions.clone()));
        let told = KINDS.iter().filter(|kind| kind.is_told_of_regions);
        let told_of_regions = told.fold(Sinks::NONE, |all, kind| all.with(kind.bit));
        SinkSet { dump, region, others, status, remove_files: false, missed: Sinks::NONE, told_of_regions }
    }

    fn each(&mut self) -> impl Iterator<Item = (&'static Kind, &mut (dyn Sink + 'static))> {
        let others = self.others.iter_mut().map(|(kind, sink)| (*kind, &mut **sink));
        let own: [(_, &mut (dyn Sink + 'static)); 2] =
            [(&region::KIND, &mut self.region), (&jitdump::KIND, &mut self.dump)];
        others.chain(own)
    }

    fn of(&self, bit: Sinks) -> Option<&dyn Sink> {
        match bit {
            Sinks::JITDUMP => Some(&self.dump),
            Sinks::REGION => Some(&self.region),
            _ => self.others.iter().find(|(kind, _)| kind.bit == bit).map(|(_, sink)| &**sink),
        }
    }

    /// Opens the sinks that the configuration asks for. One that fails is reported, and the others run.
    pub fn open(&mut self, config: &Config) -> Sinks {
        let remember = if config.remember { Sinks::REMEMBER } else { Sinks::NONE };
        self.status.set_sinks(remember, Sinks::NONE);
        let mut started = self.start(config, config.sinks);
        // Not when it is enabled late: calls that have begun before know nothing of it.
        if started.has(Sinks::UNWINDER) && unwinder::by_callers::begin() {
            started = started.with(Sinks::BY_CALLERS);
        }
        self.announce(config.sinks, started);
        started
    }

    /// Opens sinks that do not run, and returns those. They run when they are announced.
    pub fn start(&mut self, config: &Config, sinks: Sinks) -> Sinks {
        self.remove_files = config.remove_files;
        let status = self.status.clone();
        let mut started = Sinks::NONE;
        for is_silent in [false, true] {
            for (kind, sink) in self.each().filter(|(kind, _)| kind.is_silent == is_silent && sinks.has(kind.bit)) {
                // If everything else fails, a silent one is not what was asked for.
                if is_silent && started == Sinks::NONE && sinks != kind.bit {
                    continue;
                }
                match sink.open(config) {
                    Ok(()) => started = started.with(kind.bit),
                    Err(why) => status.last_error.set(why),
                }
            }
        }
        started
    }

    /// Of the sinks that were asked for, those that have been opened run from now on.
    pub fn announce(&mut self, sinks: Sinks, started: Sinks) {
        let status = self.status.clone();
        status.add_sinks(sinks, with_wants(started));
        let missed = self.missed;
        self.missed = missed.without(started);
        for (kind, sink) in self.each().filter(|(kind, _)| started.has(kind.bit)) {
            if missed.has(kind.bit) {
                // It may have the file that it had.
                sink.changed();
            }
            if !sink.is_ok() {
                // From the last session.
                status.sink_is_behind(kind.bit);
            }
        }
    }

    /// Closes sinks whose files are up to date, and which stay. `live`: code goes on living.
    pub fn stop(&mut self, sinks: Sinks, live: Option<&mut Registry>) {
        let keep = self.remember();
        if let Some(registry) = live {
            self.running(sinks).for_each(|(_, sink)| sink.leave(registry, keep));
        }
        self.close_each(sinks, Close::Stay);
        self.close_each(sinks, Close::Leave);
        self.status.remove_sinks(sinks, with_wants);
    }

    fn close_each(&mut self, sinks: Sinks, how: Close) {
        let status = self.status.clone();
        for (kind, sink) in self.each().filter(|(kind, _)| sinks.has(kind.bit)) {
            // A file may be removed by a thread of the host, which must not wait for one that writes.
            let closed =
                if how == Close::Remove { sink.close(how) } else { status.write_gate.pass(|| sink.close(how)) };
            if let Err(error) = closed {
                stall(&status, kind.bit, sink.path(), "write", &error);
            }
        }
    }

    /// Whether live code is remembered for sinks that are started later.
    pub fn remember(&self) -> bool {
        self.status.wanted().has(Sinks::REMEMBER)
    }

    /// Whether the map runs.
    pub fn map_runs(&self) -> bool {
        self.status.sinks().has(Sinks::MAP)
    }

    /// Whether what live code has before its LOAD is kept in memory: because no jitdump has it, and one may be started later, or
    /// the memory of the code may become a region.
    pub fn keep_info(&self) -> bool {
        let sinks = self.status.sinks();
        let are_of_use = self.remember()
            || sinks.0 & Sinks::REGION.with(Sinks::GDB).with(Sinks::UNWINDER).with(Sinks::VALGRIND).0 != 0;
        are_of_use && !sinks.has(Sinks::JITDUMP)
    }

    /// Takes over the files of a dead process. They are not made: they have the modes that they have.
    pub fn adopt(&mut self, files: &Files, state: &Progress, next_map: Identity, may_be_locked: bool) -> Adopted {
        let mut running = Sinks::NONE;
        let mut adopted = Adopted::default();
        let pid = self.status.pid;
        if let Some(state_of_map) = state.map {
            let path = path_of(&files.map_path);
            let dialect = if files.simpleperf { Dialect::Simpleperf } else { Dialect::Perf };
            let mut map = PerfMap::at(path.clone(), dialect, 0, self.status.clone());
            let lines = check_name(&path, |(of, kind)| (of, kind) == (pid, FileKind::PerfMap))
                .and_then(|()| map.adopt(&state_of_map, next_map, state.map_is_shared, may_be_locked));
            match lines {
                Ok(lines) => (adopted.map, running) = (lines, running.with(Sinks::MAP)),
                Err(error) => adopted.refused(&path, &error),
            }
            if let Some((_, sink)) = self.others.iter_mut().find(|(kind, _)| kind.bit == Sinks::MAP) {
                *sink = Box::new(map);
            }
        }
        if let Some(state) = state.dump {
            let path = path_of(&files.dump_path);
            self.dump = Jitdump::at(path.clone(), 0, self.status.clone());
            let is_own = |(of, kind)| of == pid && matches!(kind, FileKind::Jitdump { zeros } if zeros < JITDUMPS);
            let result = check_name(&path, is_own).and_then(|()| self.dump.adopt(&state, may_be_locked));
            match result {
                Ok(()) => running = running.with(Sinks::JITDUMP),
                Err(error) => adopted.refused(&path, &error),
            }
        }
        self.status.set_sinks(running, Sinks::NONE);
        adopted
    }

    /// Says where the files are.
    pub fn announce_paths(&self) {
        let path_of = |kind: &&Kind| Some((kind.bit, self.of(kind.bit)?.path()?.to_owned()));
        self.status.set_paths(KINDS.iter().filter_map(path_of).collect());
    }

    /// What a spool has to say of the files.
    pub fn files(&self, config: &Config) -> Files {
        let path = |bit| {
            let path = self.of(bit).and_then(|sink| sink.path());
            path.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec())
        };
        Files {
            map_path: path(Sinks::MAP),
            dump_path: path(Sinks::JITDUMP),
            simpleperf: config.dialect == Dialect::Simpleperf,
            arch_timestamps: self.status.clock == Clock::Arch,
        }
    }

    /// How far a file is written, while its sink runs.
    pub fn saved(&self, bit: Sinks) -> Option<Saved> {
        self.of(bit).filter(|_| self.status.sinks().has(bit)).and_then(|sink| sink.saved())
    }

    /// In a forked child: lets go of the parent's files, and hands over the jitdump, which groups are read from.
    pub fn let_go(&mut self) -> Option<Contents> {
        self.others.iter_mut().for_each(|(_, sink)| drop(sink.close(Close::LetGo)));
        self.dump.path().is_some().then(|| self.dump.let_go())
    }

    /// In a forked child: takes over what the parent's sinks have let go of. `registry`: the parent's.
    pub fn inherit(&mut self, dump: Option<Contents>, registry: &mut Registry) {
        let in_regions = &self.region.registry;
        unwinder::end_inherited(|id| registry.is_live(id) || in_regions.is_live(id));
        gdb::end_inherited();
        if self.status.sinks().has(Sinks::JITDUMP) {
            self.dump.inherit(dump);
        } else {
            forget_places(registry, self.keep_info(), |stored| dump.as_ref()?.group(stored).ok());
        }
    }

    /// The jitdump, if it runs.
    pub fn dump(&mut self) -> Option<&mut Jitdump> {
        self.status.sinks().has(Sinks::JITDUMP).then_some(&mut self.dump)
    }

    /// Whether there is something to write that has to wait a little.
    pub fn have_work(&mut self) -> bool {
        let running = self.status.sinks().with(Sinks::REGION);
        self.each().any(|(kind, sink)| running.has(kind.bit) && sink.has_work())
    }

    /// How long it is until something that has failed is to be tried again.
    pub fn again_in(&self) -> Option<Duration> {
        // Files of regions are seen to whether their sink runs or not.
        let running = self.status.sinks().with(Sinks::REGION);
        KINDS.iter().filter(|kind| running.has(kind.bit)).filter_map(|kind| self.of(kind.bit)?.wake_in()).min()
    }

    /// Whether everything asked for has been written so far.
    pub fn result(&self) -> Result<()> {
        match self.status.sinks_failed() {
            Sinks::NONE => Ok(()),
            _ => Err(Error::SinkFailed),
        }
    }

    /// The sinks of a set that run.
    fn running(&mut self, set: Sinks) -> impl Iterator<Item = (&'static Kind, &mut (dyn Sink + 'static))> {
        let running = self.status.sinks();
        self.each().filter(move |(kind, _)| running.has(kind.bit) && set.has(kind.bit))
    }

    /// Code begins to live.
    pub fn load(&mut self, code: &Loaded<'_>, registry: &mut Registry) {
        self.status.counters.told.add(1);
        let running = self.status.sinks();
        for (kind, sink) in &mut self.others {
            if running.has(kind.bit) {
                sink.load(code, registry);
            }
        }
        if running.has(Sinks::JITDUMP) {
            self.dump.load(code, registry);
        }
        self.missed = self.missed.with(Sinks::ANY.without(running));
    }

    /// Code begins to live in a region.
    #[inline]
    pub fn enter(&mut self, code: &NewCode<'_>) {
        if self.status.sinks().0 & self.told_of_regions.0 != 0 {
            self.status.counters.told.add(1);
            self.running(self.told_of_regions).for_each(|(_, sink)| sink.enter(code));
        }
    }

    /// Code has ended that may have been in a region.
    #[inline]
    pub fn gone_in_region(&mut self, id: u64) {
        if self.status.sinks().0 & self.told_of_regions.0 != 0 {
            self.status.counters.told.add(1);
            self.running(self.told_of_regions).for_each(|(_, sink)| sink.gone(id));
        }
    }

    /// Tells sinks that have just started of the code that lives. False if there is no memory for that.
    pub fn load_live(&mut self, started: Sinks, registry: &mut Registry, time: u64) -> bool {
        let running = Sinks(self.status.sinks().0 & started.0);
        let mut has_all = true;
        // Before the jitdump, which in a forked child writes the groups of its parent's anew.
        for (kind, sink) in self.others.iter_mut().filter(|(kind, _)| running.has(kind.bit)) {
            let dump = &mut self.dump;
            let mut group_of = |stored| dump.group_before(stored);
            has_all &= sink.load_live(registry, time, &mut group_of);
            if kind.is_told_of_regions {
                has_all &= sink.load_live(&mut self.region.registry, time, &mut |_| None);
            }
        }
        for (_, sink) in self.running(Sinks(started.0 & Sinks::JITDUMP.0)) {
            has_all &= sink.load_live(registry, time, &mut |_| None);
        }
        has_all
    }

    /// Code has ended.
    pub fn gone(&mut self, id: u64) {
        self.status.counters.told.add(1);
        self.running(Sinks::ANY).for_each(|(_, sink)| sink.gone(id));
    }

    /// Code goes on in a region.
    pub fn leaves(&mut self, id: u64) {
        self.status.counters.told.add(1);
        self.running(Sinks::ANY).for_each(|(_, sink)| sink.leaves(id));
    }

    /// The registry has changed in ways that were not announced.
    pub fn changed(&mut self) {
        self.each().for_each(|(_, sink)| sink.changed());
    }

    /// All code has ended, and none that is known lives again.
    pub fn forget(&mut self) {
        self.dump.forget();
        self.changed();
    }

    /// Gives room ahead of files back, at the end of the process.
    pub fn trim(&mut self) {
        if let Some(Err(error)) = self.dump().map(Jitdump::trim) {
            stall(&self.status, Sinks::JITDUMP, self.dump.path(), "write", &error);
        }
    }

    /// Has all sinks write what they have collected. Slow work waits until it is due, unless it is wanted `now`.
    pub fn write(&mut self, round: &mut Round<'_>) {
        let status = self.status.clone();
        // The jitdump first: on a full disk the map needs less room.
        self.dump().into_iter().for_each(Jitdump::flush);
        self.dump.drop_groups();
        for (kind, sink) in self.running(Sinks::ANY).filter(|(kind, _)| !kind.is_silent) {
            write_one(&status, kind, sink, round);
        }
    }

    /// Has those sinks know what they were told that calls wait for.
    pub fn tell(&mut self, round: &mut Round<'_>) {
        let status = self.status.clone();
        for (kind, sink) in self.running(self.told_of_regions) {
            write_one(&status, kind, sink, round);
        }
    }

    /// Why one of them does not know everything.
    pub fn not_told(&self) -> Option<Error> {
        any_must_wait(self.status.sinks_failed_now()).then_some(Error::SinkFailed)
    }

    /// Sets right what is wrong with files, if that is due or wanted now. To be called before what was written is noted in the spool:
    /// it may wait in memory alone until then. Returns whether anything was done.
    pub fn repair(&mut self, round: &mut Round<'_>) -> bool {
        let status = self.status.clone();
        let mut was_due = false;
        for (kind, sink) in self.running(Sinks::ANY) {
            let Some(result) = sink.repair(round) else { continue };
            was_due = true;
            match result {
                Ok(()) => status.sink_goes_on(kind.bit),
                Err(error) => stall(&status, kind.bit, sink.path(), "write", &error),
            }
        }
        was_due
    }

    /// Closes the files, which stay unless they are to be removed.
    pub fn close(&mut self) {
        self.close_each(Sinks::ANY, Close::Stay);
        self.remove_files();
    }

    /// Removes the files, which are closed, if that is asked for.
    pub fn remove_files(&mut self) {
        if self.remove_files {
            self.close_each(Sinks::ANY, Close::Remove);
        }
    }

    /// Whether files are removed in the end.
    pub fn are_files_removed(&self) -> bool {
        self.remove_files
    }

    /// Closes the files at the end of the process, if they are to be removed.
    pub fn close_to_remove(&mut self) {
        if self.remove_files {
            self.close();
            self.status.stop_sinks();
        }
    }
}

fn write_one(status: &Status, kind: &Kind, sink: &mut dyn Sink, round: &mut Round<'_>) {
    match sink.write(round) {
        Ok(()) if sink.is_ok() => status.sink_goes_on(kind.bit),
        Ok(()) => {}
        Err(error) => stall(status, kind.bit, sink.path(), "write", &error),
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
        // The file is gone permanently or is another file, but not if its directory is missing or no descriptor is left.
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
fn check_name(path: &Path, is_own: impl Fn((u32, FileKind)) -> bool) -> io::Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let name = bytes.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if path.is_absolute() && parse(OsStr::from_bytes(name)).is_some_and(is_own) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "is not the name of a file of this process"))
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
