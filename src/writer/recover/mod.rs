//! Completes the files of processes that were killed, from the spools that these processes left.
//!
//! Recovery begins at the last round that the writer has committed. Recovery truncates the jitdump to its length at that round,
//! and rewrites the perf map. Then recovery applies all records that were published but not consumed, as the writer would have
//! done. The spool is removed last. So if this recovery is interrupted, another recovery can begin at the same round.
//!
//! A spool is the memory of a process that may have been killed because it misbehaved. Somebody may even have forged the spool,
//! to make recovery write files. So recovery trusts no data in a spool. Recovery reads the spool instead of mapping it, because
//! an access to a mapping raises a signal if somebody has truncated the file.

mod apply_unread;
pub mod clean;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::options::{Config, DumpDir, Sinks};
use crate::queue::chunk::{is_size_in, Chunk, CHUNK_SIZE, HEAD};
use crate::queue::file_thread;
use crate::queue::record::EventKind;
use crate::queue::spool::file::{list, Listed, SpoolFile};
use crate::queue::spool::layout::{committed_cell, header_len, next_map_cell, HeaderCopy, ALL, INSIDE};
use crate::queue::status::{LastError, Status};
use crate::sys::clock::{self, Clock};
use crate::sys::file::{self, Identity};
use crate::sys::held_dir::Dir;
use crate::sys::mapping::Region;
use crate::sys::owner_process::Owner;
use crate::sys::process;
use crate::sys::sort::sort;
use crate::sys::thread;
use crate::writer::Merge;
use apply_unread::{is_sound, Replay};

/// The result of recovery for one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The pid of the process.
    pub pid: u32,
    /// How many records were missing from the process's files, and are now in these files.
    pub records: u64,
    /// The steps that failed, and why.
    pub problems: Vec<String>,
    /// Whether the spool was kept. A spool is kept if another attempt may succeed.
    pub kept: bool,
}

/// A session that does not ask for recovery leaves at most this many spools with unwritten records untouched. Each spool takes
/// some MiB of memory. If there are more spools than `LEFT_ALONE`, the session recovers the oldest spools, or removes spools
/// that no process can recover. If the directory has less free space than `FOR_OTHERS`, every spool is recovered.
const LEFT_ALONE: usize = 16;
/// Spools may belong to processes that seem to be alive. A session that does not ask for recovery opens these spools only if
/// there are more than `LEFT_OPEN` of them, or if the directory has less free space than `FOR_OTHERS`. A process of an ended
/// container may seem to be alive, because a living process has the same pid.
const LEFT_OPEN: usize = 64;
/// How long to wait for another process that recovers a spool.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the start of a session may wait for the files of other processes. These files may lie on a disk that hangs.
const TIDY_TIMEOUT: Duration = Duration::from_secs(5);

/// Completes the files of each dead process of this user that has a spool in `dir`, if `wanted` returns true for its pid.
pub fn recover(dir: &Path, wanted: &dyn Fn(u32) -> bool) -> io::Result<Vec<Report>> {
    let mut reports = Vec::new();
    for listed in list(dir)?.iter().filter(|listed| wanted(listed.pid)) {
        match Dead::wait_for(&listed.path) {
            Opened::Dead(dead) => reports.push(dead.recover()),
            Opened::Locked => reports.push(Report {
                pid: listed.pid,
                problems: vec!["somebody else recovers it".into()],
                kept: true,
                ..Report::default()
            }),
            // A spool of another version is left to a program of that version.
            Opened::Elsewhere(_) | Opened::Outdated(_) | Opened::Other => {}
        }
    }
    Ok(reports)
}

/// Cleans up the spools of dead processes when a session opens. `all`: whether the options or the environment ask for recovery.
/// If `all` is true, removes the empty spools, and recovers the spools with unwritten records. If `all` is false, cleans up
/// only if other processes have too many spools (`excess`), and then recovers only the oldest spools.
///
/// If an earlier program of this process (before `exec`) has left a spool, the files of this spool are completed. However, if
/// `all` is false, and the session's files replace or continue the files of this spool, the spool is removed without recovery.
/// If the recovery takes too long for a session, the recovery continues in the background.
pub fn tidy(status: &Arc<Status>, config: &Config, all: bool) {
    let dir = &*config.spool_dir;
    let (mut own, mut full, mut elsewhere, mut outdated) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut all_listed = list(dir).unwrap_or_default();
    if !all {
        // Opening the spools of others would cost more than everything else that a session does when it opens.
        let are_too_many = |listed: &[Listed], most| {
            excess(dir, listed.len(), most) > 0
                && excess(dir, listed.iter().filter(|listed| listed.is_of_this_user()).count(), most) > 0
        };
        let (own, others): (Vec<_>, Vec<_>) = all_listed.into_iter().partition(|listed| listed.is_own);
        let (living, dead): (Vec<_>, Vec<_>) = others.into_iter().partition(Listed::seems_alive);
        all_listed = own;
        if are_too_many(&living, LEFT_OPEN) {
            all_listed.extend(living.into_iter().filter(|listed| !listed.is_fresh()));
        }
        if are_too_many(&dead, LEFT_ALONE) {
            all_listed.extend(dead);
        }
        // The oldest come first.
        sort(&mut all_listed);
    }
    for listed in all_listed {
        match Dead::open(&listed.path) {
            Opened::Dead(dead) if listed.is_own && !all && dead.is_replaced_by(config) => dead.file.remove(),
            Opened::Dead(dead) if dead.is_empty() => _ = dead.recover(),
            Opened::Dead(_) if listed.is_own => own.push(listed.path),
            // The spool is not kept locked, because another process may want to recover it.
            Opened::Dead(_) => full.push(listed.path),
            Opened::Elsewhere(_) => elsewhere.push(listed.path),
            Opened::Outdated(_) => outdated.push(listed.path),
            Opened::Locked | Opened::Other => {}
        }
    }
    // Spools of other namespaces count too, because the namespace of a spool is not certain: the kernel may reuse the number of
    // an ended namespace.
    let both = full.len() + elsewhere.len();
    outdated.truncate(excess(dir, both + outdated.len(), LEFT_ALONE));
    remove_outdated(&outdated);
    let orphans = excess(dir, both, LEFT_ALONE).min(elsewhere.len());
    let left = elsewhere.len() - remove_orphans(&elsewhere[..orphans]);
    let count = if all { full.len() } else { excess(dir, full.len() + left, LEFT_ALONE).min(full.len()) };
    full.truncate(count);
    let paths = [own, full].concat();
    if paths.is_empty() {
        return;
    }
    let for_thread = status.clone();
    let recovered = file_thread::run_for(TIDY_TIMEOUT, move || {
        for path in paths {
            if let Opened::Dead(dead) = Dead::open(&path) {
                for_thread.counters.recovered.add(dead.recover().records);
            }
        }
    });
    if recovered.is_none() {
        status.last_error.set("the files of other processes are still being recovered: their disk is slow".into());
    }
}

/// Removes each spool of a dead process that contains no unwritten records. For example, a forked child leaves an empty spool
/// if it flushes and then ends without exit handlers.
pub fn remove_empty(dir: &Path) {
    for listed in list(dir).unwrap_or_default().iter().filter(|listed| !process::is_alive(listed.pid)) {
        match Dead::open(&listed.path) {
            Opened::Dead(dead) if dead.is_empty() => dead.file.remove(),
            _ => {}
        }
    }
}

/// How many of `count` spools must be removed. If the directory has too little free space for another spool, all spools must be
/// removed. Otherwise up to `most` spools may stay.
fn excess(dir: &Path, count: usize, most: usize) -> usize {
    if count == 0 {
        return 0;
    }
    match file::free_space(dir) {
        Some(free) if free < file::FOR_OTHERS => count,
        _ => count.saturating_sub(most),
    }
}

/// Removes spools of another version of the library. If these spools stayed, each start of a session would open them, until the
/// system restarts.
fn remove_outdated(paths: &[PathBuf]) {
    for path in paths {
        if let Opened::Outdated(file) = Dead::open(path) {
            file.remove();
        }
    }
}

/// Removes the spools whose mount namespace has no visible process, because the files of these spools can never be
/// completed. Returns the number of removed spools.
fn remove_orphans(paths: &[PathBuf]) -> usize {
    if paths.is_empty() {
        return 0;
    }
    let Some(namespaces) = process::mount_namespaces() else { return 0 };
    let mut removed = 0;
    for path in paths {
        match Dead::open(path) {
            Opened::Elsewhere(dead) if !namespaces.contains(&dead.owner.mount_namespace) => {
                dead.file.remove();
                removed += 1;
            }
            _ => {}
        }
    }
    removed
}

/// The kinds of files whose name looks like the name of a spool.
enum Opened {
    Dead(Dead),
    /// The spool of a process in another mount namespace, in which paths lead to other files.
    Elsewhere(Dead),
    /// The spool of a dead process that had another version of the library.
    Outdated(SpoolFile),
    /// A spool of a living process, or a spool that another process is recovering.
    Locked,
    /// A file of another user, or a file that is no spool.
    Other,
}

/// A locked spool of a dead process.
struct Dead {
    file: SpoolFile,
    /// A copy of the header and the directory.
    header: HeaderCopy,
    owner: Owner,
    units: usize,
    /// How many bytes of the file are backed by memory. The file may be sparse.
    backed: u64,
}

/// A copy of a chunk, or only of its head.
struct Copied {
    /// Owns the memory to which `chunk` points.
    _memory: Region,
    chunk: Chunk,
}

impl Dead {
    fn open(path: &Path) -> Opened {
        match SpoolFile::open_dead(path) {
            Ok(Some(file)) if is_of_another_version(&file) => Opened::Outdated(file),
            Ok(Some(file)) => match Dead::take(file) {
                Some(dead) if dead.owner.has_our_paths() => Opened::Dead(dead),
                Some(dead) => Opened::Elsewhere(dead),
                None => Opened::Other,
            },
            Ok(None) => Opened::Locked,
            Err(_) => Opened::Other,
        }
    }

    /// Does the same as `open`. If another process has locked the spool, waits for that process, which most likely finishes
    /// soon.
    fn wait_for(path: &Path) -> Opened {
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Dead::open(path) {
                Opened::Locked if !is_dead_ones(path) => return Opened::Other,
                Opened::Locked if Instant::now() < end => thread::sleep_micros(5000),
                other => return other,
            }
        }
    }

    fn take(file: SpoolFile) -> Option<Dead> {
        let data = file.file().metadata().ok()?;
        let (len, backed) = (usize::try_from(data.len()).ok()?, data.blocks() * 512);
        let mut magic = [0; 8];
        match file.file().read_exact_at(&mut magic, 0) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return None,
            Ok(()) if magic != [0; 8] => {}
            _ => {
                // The process was killed while it made the spool.
                file.remove();
                return None;
            }
        }
        let (owner, units) = read_description(file.file())?;
        if units.checked_mul(CHUNK_SIZE)?.checked_add(header_len(units))? != len || header_len(units) as u64 > backed {
            return None;
        }
        let header = HeaderCopy::read(file.file(), units)?;
        Some(Dead { file, header, owner, units, backed })
    }

    /// Whether all records of the spool are in the files. Reads only the heads of the chunks, because the start of a session
    /// must not take long.
    fn is_empty(&self) -> bool {
        !self.header.state().map_is_stale
            && !self.places().any(|(offset, room)| !matches!(self.read_chunk(offset, room, HEAD), Ok(None)))
    }

    /// Whether a session with these options replaces or continues all the files of this spool.
    fn is_replaced_by(&self, config: &Config) -> bool {
        let (state, files) = (self.header.state(), self.header.files().unwrap_or_default());
        let is_in = |path: &[u8], dir: &Path| Path::new(OsStr::from_bytes(path)).parent() == Some(dir);
        let is_dump_in = |path: &[u8]| matches!(&config.dump_dir, DumpDir::Exactly(dir) if is_in(path, dir));
        let map = state.map.is_none() || config.sinks.has(Sinks::MAP) && is_in(&files.map_path, &config.map_dir);
        let dump = state.dump.is_none() || config.sinks.has(Sinks::JITDUMP) && is_dump_in(&files.dump_path);
        map && dump
    }

    /// The offset of each chunk in the file, and the number of bytes that are reserved for the chunk.
    fn places(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let units = self.units;
        let directory = self.header.directory(units);
        let mut unit = 0;
        std::iter::from_fn(move || {
            while let Some(word) = directory.get(unit) {
                let count = match word.load(Ordering::Relaxed) {
                    0 | INSIDE => {
                        unit += 1;
                        continue;
                    }
                    count => (count as usize).min(units - unit),
                };
                let offset = (header_len(units) + unit * CHUNK_SIZE) as u64;
                unit += count;
                return Some((offset, count * CHUNK_SIZE));
            }
            None
        })
    }

    /// A copy of the first `len` bytes of a chunk, if the chunk has unread records.
    fn read_chunk(&self, offset: u64, room: usize, len: usize) -> io::Result<Option<Copied>> {
        match self.try_to_read_chunk(offset, room, len) {
            // Somebody has truncated the spool, so the missing bytes will never come.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            result => result,
        }
    }

    fn try_to_read_chunk(&self, offset: u64, room: usize, len: usize) -> io::Result<Option<Copied>> {
        let memory = Region::private(len)?;
        // SAFETY: the region is `len` bytes long, and there is no other reference to the region yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), len) };
        self.file.file().read_exact_at(&mut bytes[..HEAD], offset)?;
        // SAFETY: the region has at least `HEAD` bytes, and any bytes are a valid head of a chunk.
        let chunk = unsafe { Chunk::at(memory.start()) };
        let unread = chunk.consumed_up_to(self.header.committed());
        if !is_size_in(chunk.size(), room) || unread >= chunk.committed() {
            return Ok(None);
        }
        if len > HEAD {
            // An earlier call has already read the head of this chunk, and somebody may have changed the chunk since then.
            if chunk.size() != len {
                return Ok(None);
            }
            self.file.file().read_exact_at(&mut bytes[HEAD..], offset + HEAD as u64)?;
            chunk.make_sound(unread, is_sound);
        }
        Ok((unread < chunk.committed()).then_some(Copied { _memory: memory, chunk }))
    }

    fn recover(self) -> Report {
        let mut report = Report { pid: self.owner.pid, ..Report::default() };
        if self.header.settle(|sink, identity| self.has_name(sink, identity)) {
            // Records the commit in the spool, so that another recovery finds the commit. The only other proof of the commit is
            // an announcement in the spool, which `announce` overwrites later.
            self.note(committed_cell(self.header.committed()));
        }
        if self.is_completed() {
            self.file.remove();
            return report;
        }
        // A long sparse file may need little memory, but a copy of this file would need memory for its whole length. So the
        // number of bytes to read is limited to the number of bytes that are backed by memory.
        let mut backed = self.backed;
        let mut chunks = Vec::new();
        for (offset, room) in self.places() {
            let read = self.read_chunk(offset, room, HEAD).and_then(|found| {
                let Some(size) = found.map(|head| head.chunk.size()) else { return Ok(None) };
                let Some(left) = backed.checked_sub(size as u64) else { return Ok(None) };
                backed = left;
                self.read_chunk(offset, room, size)
            });
            match read {
                Ok(found) => chunks.extend(found),
                Err(error) => {
                    report.problems.push(format!("cannot read the spool: {error}"));
                    report.kept = true;
                    return report;
                }
            }
        }
        if !chunks.is_empty() || self.header.state().map_is_stale {
            self.complete_files(&chunks, &mut report);
        }
        if !report.kept {
            self.file.remove();
        }
        report
    }

    /// Whether the file at a sink's path has this identity.
    fn has_name(&self, sink: Sinks, identity: Identity) -> bool {
        let Some(files) = self.header.files() else { return false };
        let path = if sink == Sinks::MAP { files.map_path } else { files.dump_path };
        let path = Path::new(OsStr::from_bytes(&path));
        let found = path.file_name().and_then(|name| Dir::of(path).ok()?.identity_of(name).ok());
        found.is_some_and(|found| found == identity)
    }

    /// Whether an interrupted recovery has done everything except removing the spool. If the process has a jitdump, an
    /// interrupted recovery is always repeated.
    fn is_completed(&self) -> bool {
        let is_alone = self.header.state().dump.is_none();
        is_alone && self.header.awaits_all() && self.has_name(Sinks::MAP, self.header.next_map())
    }

    /// Stores in the spool the identity of the file that is about to replace the map. If this recovery is interrupted or fails,
    /// the next recovery recognizes the old map and the new map.
    fn announce(&self, identity: Identity) {
        let (known, next) = (self.header.state().map, self.header.next_map());
        if known.is_none_or(|known| known.identity != next) && self.has_name(Sinks::MAP, next) {
            self.note(self.header.map_cell(next));
        }
        self.note(next_map_cell(identity, ALL));
    }

    fn note(&self, (at, bytes): (u64, Vec<u8>)) {
        // A failure to write is ignored. If the spool lacks `bytes`, the next recovery does not recognize the new map, and
        // leaves it as it is. The new map is incomplete only if this recovery is interrupted.
        let _ = self.file.write_at(&bytes, at);
    }

    fn complete_files(&self, copies: &[Copied], report: &mut Report) {
        let header = &*self.header;
        let Some(files) = header.files() else {
            report.problems.push("the spool does not say where the files are".into());
            return;
        };
        let clock = if files.arch_timestamps { Clock::Arch } else { Clock::Monotonic };
        clock::find_host();
        let status = Status::new(self.owner.pid, clock, Arc::new(LastError::default()));
        // The chunks are sorted by serial number. So of two records with the same time, the record in the older chunk comes
        // first.
        let mut order: Vec<_> = copies.iter().enumerate().map(|(at, copied)| (copied.chunk.serial(), at)).collect();
        sort(&mut order);
        let chunks: Vec<Chunk> = order.iter().map(|&(_, at)| copies[at].chunk).collect();
        let unread = |chunk: &Chunk| chunk.consumed()..chunk.committed();
        let moves = || chunks.iter().any(|chunk| unread(chunk).any(|event| chunk.event(event).kind == EventKind::Move));
        // The replay needs the code in the jitdump in two cases, which `Replay::search_dump` explains.
        let search = header.state().map_is_stale || moves();
        // Children of a dead process may still hold its locks.
        let may_be_locked = self.owner.is_visible() && !process::is_alive(self.owner.pid);
        let mut replay = Replay::new(Arc::new(status), &files, header, (search, may_be_locked), &mut report.problems);
        let mut merge = Merge::new(chunks.iter().map(|&chunk| std::iter::once(chunk)));
        while let Some((chunk, mut event)) = merge.next(u64::MAX) {
            replay.apply(chunk, &mut event);
        }
        report.kept = replay.lacks_a_file;
        match replay.finish(&|_, file| self.announce(file.identity)) {
            Ok(records) => report.records = records,
            Err(why) => {
                report.problems.push(why);
                report.kept = true;
            }
        }
    }
}

/// Whether a spool belongs to a dead process that would be visible here if it were alive.
fn is_dead_ones(path: &Path) -> bool {
    let described = SpoolFile::open_to_look(path).ok().and_then(|file| read_description(&file));
    described.is_some_and(|(owner, _)| owner.is_visible() && !owner.is_visibly_alive())
}

fn is_of_another_version(spool: &SpoolFile) -> bool {
    HeaderCopy::read(spool.file(), 0)
        .is_some_and(|header| header.pid_of_any_version(0).is_some() && !header.is_of_this_version())
}

/// Reads which process a spool belongs to, and how many units it has.
fn read_description(file: &File) -> Option<(Owner, usize)> {
    HeaderCopy::read(file, 0)?.description()
}
