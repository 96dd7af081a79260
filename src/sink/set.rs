//! Opens and closes the sinks that the configuration selects, and passes the writer's events to the sinks that run. A failure
//! of one sink does not affect the other sinks.

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
use crate::sink::jitdump::stopped::forget_places;
use crate::sink::jitdump::{self, Jitdump};
use crate::sink::perf_map::PerfMap;
use crate::sink::region::{self, RegionSink, Regions};
use crate::sink::{
    any_must_wait, describe, gdb, lookup, stall, unwinder, with_wants, Close, Kind, Loaded, NewCode, Round, Saved,
    Sink, KINDS,
};
use crate::sys::clock::Clock;
use crate::sys::debugger;
use crate::sys::file::Identity;

pub struct SinkSet {
    status: Arc<Status>,
    /// The jitdump is not in `others`, because a forked child and recovery call methods of the jitdump that the trait `Sink`
    /// does not have.
    dump: Jitdump,
    /// The sink for regions is not in `others`, because the writer's applier calls methods of this sink that the trait `Sink`
    /// does not have.
    pub region: RegionSink,
    others: Vec<(&'static Kind, Box<dyn Sink>)>,
    /// Whether the configuration asks to remove the files at the end.
    remove_files: bool,
    /// Sinks that were not running when some code became live. The files of these sinks may lack the code.
    missed: Sinks,
    /// The sinks to which code in regions is also reported: the sinks whose output is not for profilers. Calls that register
    /// code may wait for these sinks.
    told_of_regions: Sinks,
}

impl SinkSet {
    pub fn new(status: Arc<Status>, regions: &Arc<Regions>) -> SinkSet {
        let make = |kind: &&'static Kind| kind.make.map(|make| (*kind, make(&status)));
        let others = KINDS.iter().filter_map(make).collect();
        let (dump, region) = (Jitdump::new(status.clone()), RegionSink::new(status.clone(), regions.clone()));
        let told = KINDS.iter().filter(|kind| !kind.is_default);
        let told_of_regions = told.fold(Sinks::NONE, |all, kind| all.with(kind.bit));
        SinkSet { dump, region, others, status, remove_files: false, missed: Sinks::NONE, told_of_regions }
    }

    /// All sinks. The sink for regions comes last.
    fn each(&mut self) -> impl Iterator<Item = (&'static Kind, &mut (dyn Sink + 'static))> {
        let others = self.others.iter_mut().map(|(kind, sink)| (*kind, &mut **sink));
        let own: [(_, &mut (dyn Sink + 'static)); 2] =
            [(&jitdump::KIND, &mut self.dump), (&region::KIND, &mut self.region)];
        others.chain(own)
    }

    fn of(&self, bit: Sinks) -> Option<&dyn Sink> {
        match bit {
            Sinks::JITDUMP => Some(&self.dump),
            Sinks::REGION => Some(&self.region),
            _ => self.others.iter().find(|(kind, _)| kind.bit == bit).map(|(_, sink)| &**sink),
        }
    }

    /// Opens the sinks that the configuration asks for, and returns the sinks that run. If a sink cannot be opened, its error
    /// becomes the last error, and the other sinks run.
    pub fn open(&mut self, config: &Config) -> Sinks {
        let remember = if config.remember { Sinks::REMEMBER } else { Sinks::NONE };
        self.status.set_sinks(remember, Sinks::NONE);
        let mut started = self.start(config, config.sinks);
        // Calls that register code may themselves report this code to the unwinder only if the unwinder's sink runs from the
        // start. A call that began before the sink was enabled would not report its code.
        if started.has(Sinks::UNWINDER) && unwinder::told_in_calls::begin() {
            started = started.with(Sinks::BY_CALLERS);
        }
        self.announce(config.sinks, started);
        started
    }

    /// Opens sinks that do not run yet. Returns the sinks that could be opened. The returned sinks do not run until `announce`
    /// is called for them.
    pub fn start(&mut self, config: &Config, sinks: Sinks) -> Sinks {
        self.remove_files = config.remove_files;
        let status = self.status.clone();
        let mut started = Sinks::NONE;
        for (kind, sink) in self.each().filter(|(kind, _)| sinks.has(kind.bit)) {
            // Opening the sink for regions cannot fail, because this sink has no output to open. If other sinks were also
            // requested and none of them could start, and no sink runs yet, the sink for regions does not start either.
            if kind.bit == Sinks::REGION && started.with(status.sinks()) == Sinks::NONE && sinks != kind.bit {
                continue;
            }
            match sink.open(config) {
                Ok(()) => started = started.with(kind.bit),
                Err(why) => status.last_error.set(why),
            }
        }
        started
    }

    /// Marks the sinks in `started` as running. `sinks` has all sinks that were requested.
    pub fn announce(&mut self, sinks: Sinks, started: Sinks) {
        let status = self.status.clone();
        status.add_sinks(sinks, with_wants(started));
        if started.has(Sinks::GDB) {
            // A debugger may already listen, and the first code may be registered before the sink's first round.
            status.set_watched(debugger::is_watched());
        }
        let missed = self.missed;
        self.missed = missed.without(started);
        for (kind, sink) in self.each().filter(|(kind, _)| started.has(kind.bit)) {
            if missed.has(kind.bit) {
                // The sink may continue its old file, which lacks the code that became live while the sink did not run.
                sink.changed();
            }
            if !sink.is_ok() {
                // The sink failed in an earlier session, and has not recovered.
                status.sink_is_behind(kind.bit);
            }
        }
    }

    /// Closes sinks whose files are up to date, and keeps the files. `live` is the registry if code stays live, and `None`
    /// otherwise.
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
            // A removal (`Close::Remove`) bypasses the write gate, because a call of the host may wait for the removal. If the
            // write gate were shut, the call would wait until the process ends.
            let closed =
                if how == Close::Remove { sink.close(how) } else { status.write_gate.pass(|| sink.close(how)) };
            if let Err(error) = closed {
                stall(&status, kind.bit, sink.path(), &error);
            }
        }
    }

    /// Whether live code is remembered for sinks that are started later.
    pub fn remember(&self) -> bool {
        self.status.wanted().has(Sinks::REMEMBER)
    }

    pub fn map_runs(&self) -> bool {
        self.status.sinks().has(Sinks::MAP)
    }

    /// Whether the registry keeps the info records of live code (the records before the LOAD record). The info records are kept
    /// only while no jitdump runs. The sinks for regions, debuggers, the unwinder and valgrind need the info records. If live
    /// code is remembered, sinks that are started later may need the info records too.
    pub fn keep_info(&self) -> bool {
        let sinks = self.status.sinks();
        let of_use = Sinks::REGION.with(Sinks::GDB).with(Sinks::UNWINDER).with(Sinks::VALGRIND).with(Sinks::LOOKUP);
        !sinks.has(Sinks::JITDUMP) && (sinks.0 & of_use.0 != 0 || self.remember())
    }

    /// Takes over the files of a dead process. No file is created, and the files keep their modes.
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

    pub fn announce_paths(&self) {
        let path_of = |kind: &&Kind| Some((kind.bit, self.of(kind.bit)?.path()?.to_owned()));
        self.status.set_paths(KINDS.iter().filter_map(path_of).collect());
    }

    /// Returns the paths and formats of the sinks' files, for the spool.
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

    /// Returns the state of a sink's file, for the spool. `None` if the sink does not run.
    pub fn saved(&self, bit: Sinks) -> Option<Saved> {
        self.of(bit).filter(|_| self.status.sinks().has(bit)).and_then(|sink| sink.saved())
    }

    /// Closes the parent's files in a forked child. Returns the contents of the parent's jitdump, because the child still reads
    /// groups from that jitdump.
    pub fn let_go(&mut self) -> Option<Contents> {
        self.others.iter_mut().for_each(|(_, sink)| drop(sink.close(Close::LetGo)));
        self.dump.path().is_some().then(|| self.dump.let_go())
    }

    /// A forked child calls this method after its sinks are open. Removes code from the unwinder if the child does not take
    /// over the code. If the child does not run the sink for debuggers, empties the list of objects that debuggers read. If the
    /// child's jitdump runs, passes the contents of the parent's jitdump to the child's jitdump. `dump` is the value that
    /// `let_go` returned. `registry` is the parent's registry.
    pub fn inherit(&mut self, dump: Option<Contents>, registry: &mut Registry) {
        unwinder::end_inherited(|id| registry.is_live(id));
        gdb::end_inherited();
        lookup::end_inherited();
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

    pub fn have_work(&mut self) -> bool {
        let running = self.status.sinks().with(Sinks::REGION);
        self.each().any(|(kind, sink)| running.has(kind.bit) && sink.has_work())
    }

    /// How long to wait until a failed sink tries to write again.
    pub fn again_in(&self) -> Option<Duration> {
        // The files of regions are maintained even if the sink for regions does not run.
        let running = self.status.sinks().with(Sinks::REGION);
        KINDS.iter().filter(|kind| running.has(kind.bit)).filter_map(|kind| self.of(kind.bit)?.wake_in()).min()
    }

    /// Returns an error if a requested sink could not start, or if a sink cannot write at present.
    pub fn result(&self) -> Result<()> {
        match self.status.sinks_failed() {
            Sinks::NONE => Ok(()),
            _ => Err(Error::SinkFailed),
        }
    }

    /// The sinks in `set` that run.
    fn running(&mut self, set: Sinks) -> impl Iterator<Item = (&'static Kind, &mut (dyn Sink + 'static))> {
        let running = self.status.sinks();
        self.each().filter(move |(kind, _)| running.has(kind.bit) && set.has(kind.bit))
    }

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

    #[inline]
    pub fn enter(&mut self, code: &NewCode<'_>) {
        if self.status.sinks().0 & self.told_of_regions.0 != 0 {
            self.status.counters.told.add(1);
            self.running(self.told_of_regions).for_each(|(_, sink)| sink.enter(code));
        }
    }

    /// Like `gone`, but reports only to the sinks to which code in regions is reported.
    #[inline]
    pub fn gone_in_region(&mut self, id: u64) {
        if self.status.sinks().0 & self.told_of_regions.0 != 0 {
            self.status.counters.told.add(1);
            self.running(self.told_of_regions).for_each(|(_, sink)| sink.gone(id));
        }
    }

    /// Tells the sinks of a forked child that `write_inherited` will write the inherited code later.
    pub fn inherit_later(&mut self) {
        self.each().for_each(|(_, sink)| sink.inherit_later());
    }

    /// Writes a part of the inherited code to the files of a forked child. `is_first` is true for the first part. `time` is
    /// later than the times of all records so far. Returns whether more code is left to write, or `None` if the jitdump cannot
    /// be written now.
    pub fn write_inherited(&mut self, is_first: bool, registry: &mut Registry, time: u64) -> Option<bool> {
        if is_first {
            self.changed();
        }
        let Some(dump) = self.dump() else { return Some(false) };
        (dump.is_ok() && dump.list_live(registry)).then(|| dump.write_more(registry, time))
    }

    /// Reports all live code to sinks that have just started. `time` is later than the times of all records so far. Returns
    /// false if memory is short.
    pub fn load_live(&mut self, started: Sinks, registry: &mut Registry, time: u64) -> bool {
        let running = Sinks(self.status.sinks().0 & started.0);
        let mut has_all = true;
        // In a forked child, sinks read groups from the parent's jitdump. The child's jitdump comes last, because `write_live`
        // closes the parent's jitdump.
        for (_, sink) in self.others.iter_mut().filter(|(kind, _)| running.has(kind.bit)) {
            let dump = &mut self.dump;
            let mut group_of = |stored| dump.read_back(stored);
            has_all &= sink.load_live(registry, &mut group_of);
        }
        if running.has(Sinks::JITDUMP) {
            has_all &= self.dump.write_live(registry, time);
        }
        has_all
    }

    pub fn gone(&mut self, id: u64) {
        self.status.counters.told.add(1);
        self.running(Sinks::ANY).for_each(|(_, sink)| sink.gone(id));
    }

    pub fn changed(&mut self) {
        self.each().for_each(|(_, sink)| sink.changed());
    }

    /// Reports to the sinks that all code has ended.
    pub fn forget(&mut self) {
        self.dump.forget();
        self.changed();
    }

    /// Frees the disk space that is reserved after the end of the jitdump. Called when the process exits, and in recovery.
    pub fn trim(&mut self) {
        if let Some(Err(error)) = self.dump().map(Jitdump::trim) {
            stall(&self.status, Sinks::JITDUMP, self.dump.path(), &error);
        }
    }

    /// Makes all sinks write the changes that they have collected. A sink does slow work only when the work is due, or if
    /// `Round::now` is true.
    pub fn write(&mut self, round: &mut Round<'_>) {
        let status = self.status.clone();
        // The jitdump is written first, because it needs more room than the perf map. If the jitdump does not fit on the disk,
        // the perf map may still fit.
        self.dump().into_iter().for_each(Jitdump::flush);
        self.dump.drop_groups();
        // The files of regions are written by `RegionSink::write_files`.
        for (kind, sink) in self.running(Sinks::ANY).filter(|(kind, _)| kind.bit != Sinks::REGION) {
            write_one(&status, kind, sink, round);
        }
    }

    /// Makes the sinks for the unwinder, debuggers and valgrind write. Calls that register code may wait for these sinks.
    pub fn tell(&mut self, round: &mut Round<'_>) {
        let status = self.status.clone();
        for (kind, sink) in self.running(self.told_of_regions) {
            write_one(&status, kind, sink, round);
        }
    }

    /// Returns the error for calls that wait until a sink has reported their code. `None` if all such sinks could report all
    /// code.
    pub fn not_told(&self) -> Option<Error> {
        any_must_wait(self.status.sinks_failed_now()).then_some(Error::SinkFailed)
    }

    /// Repairs a running jitdump that could not be written, if a repair is due or `Round::now` is true. Returns whether a
    /// repair was attempted.
    ///
    /// The caller must call this method before the spool records that the round is written. Until this call, groups that could
    /// not be written may exist only in memory.
    pub fn repair(&mut self, round: &mut Round<'_>) -> bool {
        let Some(result) = self.dump().and_then(|dump| dump.repair_if_due(round)) else { return false };
        match result {
            Ok(()) => self.status.sink_goes_on(Sinks::JITDUMP),
            Err(error) => stall(&self.status, Sinks::JITDUMP, self.dump.path(), &error),
        }
        true
    }

    /// Closes the files. Removes the files if the configuration asks for that.
    pub fn close(&mut self) {
        self.close_each(Sinks::ANY, Close::Stay);
        self.remove_files();
    }

    /// Removes the closed files if the configuration asks for that.
    pub fn remove_files(&mut self) {
        if self.remove_files {
            self.close_each(Sinks::ANY, Close::Remove);
        }
    }

    pub fn are_files_removed(&self) -> bool {
        self.remove_files
    }

    /// Closes and removes the files at the end of the process, if the configuration asks for that.
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
        Err(error) => stall(status, kind.bit, sink.path(), &error),
    }
}

/// The result of taking over the files of a dead process.
#[derive(Default)]
pub struct Adopted {
    /// The text of the perf map that was taken over.
    pub map: Vec<u8>,
    /// Which files could not be taken over, and why.
    pub problems: Vec<String>,
    /// Whether a file that could not be taken over may be available later.
    pub worth_another_try: bool,
}

impl Adopted {
    fn refused(&mut self, path: &Path, error: &io::Error) {
        // If the file was removed or replaced, another attempt is useless. If only the file's directory is missing, or no
        // descriptor is free, the file may be available later.
        let is_gone = match error.kind() {
            io::ErrorKind::NotFound => path.parent().is_some_and(Path::is_dir),
            kind => matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
        };
        self.worth_another_try |= !is_gone;
        self.problems.push(describe("complete", path, error));
    }
}

/// Checks that a path is absolute, and that its last part is a name that the process gives to this kind of file (`is_own`). The
/// directory and the links that lead to it are not checked, because the host chooses them.
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
