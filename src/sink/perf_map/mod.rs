//! The perf map sink: appends lines to the file, or rewrites the file when existing lines have to change.
//!
//! perf and other readers may read the file at any moment. So each write consists of whole lines, and a rewritten file replaces
//! the old one by renaming. A reader that has the old file open or mapped still reads the old contents. If other libraries in
//! this process write to the same file, the map is `shared`, and the sink only appends to the file.

mod earlier;
mod known_contents;
mod shared;

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::known_contents::{Marks, REWRITE_INTERVAL, REWRITE_SHARE};
use crate::api::options::{Config, Dialect, Sinks};
use crate::format::file_names::FileKind;
use crate::format::perf_map::{line_len, push_line, raw_lines, whole_len, RawLine};
use crate::queue::spool::layout::FileState;
use crate::queue::status::{Counters, Status};
use crate::registry::{Home, MapChange, Registry};
use crate::sink::owned_file::OwnedFile;
use crate::sink::retry::Retry;
use crate::sink::{Announce, Close, Kind, Loaded, Round, Saved, Sink};
use crate::sys::file::{self, Held, Identity};
use crate::sys::marker::Marker;

/// The maximal total size, in bytes, of the lines that wait while the file cannot be written. If the lines exceed this size,
/// they are dropped, and the file is rewritten later.
const PENDING_MAX: usize = 1 << 20;

pub static KIND: Kind = Kind {
    bit: Sinks::MAP,
    word: "map",
    wants: Sinks::NONE,
    is_default: true,
    make: Some(|status| Box::new(PerfMap::at(PathBuf::new(), Dialect::Perf, 0, status.clone()))),
};

#[derive(Debug)]
pub struct PerfMap {
    status: Arc<Status>,
    /// The sink's file. When the sink closes the file, it maps the file's marker, so that other copies of this library see that
    /// the file is still in use.
    own: OwnedFile,
    dialect: Dialect,
    /// The maximal length of the file.
    most: u64,
    len: u64,
    marks: Marks,
    /// Whether other libraries in this process write to the file. The lines of a shared file cannot be changed.
    shared: bool,
    /// Whether the current process recovers the map of a dead process. The map of a dead process has no other writers.
    dead: bool,
    /// Lines of an earlier program of this process that are not in the registry yet.
    earlier: Vec<u8>,
    pending: Vec<u8>,
    /// Whether lines in the file have to change. For a shared map: whether lines may be missing from the file.
    stale: bool,
    /// Whether the file still lacks the lines of code that this forked child has inherited.
    lacks_inherited: bool,
    not_before: Instant,
    /// Whether the file lacks lines of live code because of its size limit.
    omits: bool,
}

impl PerfMap {
    pub fn at(path: PathBuf, dialect: Dialect, mode: u32, status: Arc<Status>) -> PerfMap {
        PerfMap {
            status,
            own: OwnedFile::at(path, mode),
            dialect,
            most: u64::MAX,
            len: 0,
            marks: Marks::default(),
            shared: false,
            dead: false,
            earlier: Vec::new(),
            pending: Vec::new(),
            stale: false,
            lacks_inherited: false,
            not_before: Instant::now(),
            omits: false,
        }
    }

    /// Opens the file that the sink wrote before, if that file is still there. Otherwise makes a new file, or opens the file
    /// that another library in this process has made under the same name. `is_first`: whether the sink opens a file for the
    /// first time. The sink may continue the file of an earlier program of this process only if `is_first` is true.
    fn open_file(&mut self, is_first: bool) -> io::Result<()> {
        self.own.close_dir();
        if let Ok(len) = self.own.reopen() {
            self.shared |= len > self.len;
            self.len = len;
            return Ok(());
        }
        // If the earlier file was lost, the new file is written from the registry.
        self.stale |= self.own.identity.is_some();
        self.marks = Marks::default();
        let claimed = match is_first.then(|| self.continue_earlier()) {
            Some(Ok(Some(file))) => Ok(file),
            _ => self.own.claim(),
        };
        self.shared = claimed.as_ref().is_err_and(|error| error.kind() == file::TAKEN);
        let file = match claimed {
            Err(_) if self.shared => self.own.place().and_then(|(dir, name)| file::join(dir, name))?,
            Err(error) if file::is_anothers(&error) => {
                let text = format!("{error}, and profilers look for a map under no other name");
                return Err(io::Error::new(error.kind(), text));
            }
            claimed => claimed?,
        };
        self.len = self.own.hold(file)?;
        Ok(())
    }

    /// Opens the map of a dead process: the file described by `state`, or the file `next` that was about to replace it. Returns
    /// the whole lines of the file. The file has at least the text of the last committed round. Other writers in the dead
    /// process may have added lines. The identity in `state` and the identity `next` are not trusted (see `file::take_over`).
    pub fn adopt(
        &mut self,
        state: &FileState,
        next: Identity,
        shared: bool,
        may_be_locked: bool,
    ) -> io::Result<Vec<u8>> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let (file, identity) = self.own.take_over(&[state.identity, next], may_be_locked)?;
        let mut text = Vec::new();
        (&file).read_to_end(&mut text)?;
        if identity == state.identity && (text.len() as u64) < state.len {
            return refuse("has been cut");
        }
        // The last line may be incomplete.
        text.truncate(whole_len(&text));
        let is_line = |line: RawLine<'_>| line.fields().is_some();
        // Names that other writers wrote may contain newlines. So only the first line of a shared map is checked.
        let is_map = if shared { raw_lines(&text).next().is_none_or(is_line) } else { raw_lines(&text).all(is_line) };
        if !is_map {
            return refuse("is not a perf map");
        }
        // Lines after `state.len` are from an uncommitted round, whose records are applied again later. Of two lines for one
        // address, readers of `text` use the last line. So the lines of the uncommitted round are moved to the beginning of
        // `text`.
        let committed = usize::try_from(state.len).unwrap_or(usize::MAX);
        if !shared && identity == state.identity && text.get(..committed).is_some_and(|text| text.ends_with(b"\n")) {
            text.rotate_left(committed);
        }
        self.own.mode = file.metadata()?.mode() & 0o777;
        self.len = self.own.hold(file)?;
        (self.shared, self.dead) = (shared, true);
        // The next write of an unshared map has to replace the whole file atomically, instead of appending to it.
        self.stale = true;
        Ok(text)
    }

    /// Closes the file without removing it.
    fn close_file(&mut self) {
        if let Some(file) = self.own.close() {
            self.own.set_marker(file.checked().and_then(Marker::of_map).ok());
        }
        self.stale |= !self.pending.is_empty();
        self.pending.clear();
    }

    fn is_stale(&self) -> bool {
        self.stale && self.own.held().is_ok()
    }

    fn try_to_write(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        let Round { registry, now, announce, .. } = round;
        let (now, status) = (*now, &*self.status.clone());
        if !self.earlier.is_empty() {
            self.learn_earlier(registry);
        }
        let is_as_left = self.look_around(now)?;
        if self.shared {
            return self.write_shared(registry, now, status);
        }
        let is_whole =
            |file: &Held| file.checked_len().is_ok_and(|(_, len)| len >= self.len) && !file::is_removed(file);
        // If the file is no longer whole, it is rewritten. Programs that clean up /tmp remove the files of long-running
        // processes. The host may have closed the descriptor, and anybody with write access may have truncated the file.
        self.stale |= now && self.own.held().is_ok_and(|file| !is_whole(file));
        // If new lines would exceed the size limit, the file has to be rewritten without some of its old lines.
        self.stale |= self.len + self.pending.len() as u64 > self.most;
        // If the registry has lines of dead code, a rewrite can drop them, to make room for the live code that was left out.
        self.stale |= self.omits && registry.live_count(Home::Plain) < registry.span_count();
        if self.stale && (now || Instant::now() >= self.not_before) {
            let begin = Instant::now();
            self.rewrite(registry, status, announce)?;
            self.not_before = Instant::now() + (begin.elapsed() * REWRITE_SHARE).max(REWRITE_INTERVAL);
            return Ok(());
        }
        if self.pending.is_empty() || self.len + self.pending.len() as u64 > self.most {
            return Ok(());
        }
        let file = self.own.held()?;
        if !is_as_left && !file.checked_len().is_ok_and(|(_, len)| len >= self.len) {
            self.stale = true;
            return Ok(());
        }
        let appended = status.aside(|| file::append_whole(file, &mut [IoSlice::new(&self.pending)]));
        let size =
            appended.inspect_err(|_| self.len = file::identity_and_len(file).map_or(self.len, |(_, len)| len))?;
        status.counters.map_bytes.add(size);
        self.len += size;
        self.marks.note(&self.pending, self.len);
        self.pending.clear();
        Ok(())
    }

    fn rewrite(&mut self, registry: &mut Registry, status: &Status, announce: Announce<'_>) -> io::Result<()> {
        let counters = &status.counters;
        let text = self.text(registry, counters)?;
        let (name, file) = self.own.make_replacement()?;
        let replaced = file::look_at(&file).and_then(|identity| {
            announce(Sinks::MAP, FileState { identity, len: text.len() as u64 });
            status.aside(|| (&file).write_all(&text))?;
            let is_in_place = self.put_in_place(&name)?;
            if is_in_place {
                // From here on the map's name belongs to the new file, even if a later step fails.
                self.own.identity = Some(identity);
            }
            Ok(is_in_place)
        });
        if !matches!(replaced, Ok(true)) {
            self.own.remove_replacement(&name);
            // If the old file was kept because other libraries write to it, the next round appends the missing lines to the old
            // file.
            return replaced.map(drop);
        }
        self.len = self.own.hold(file)?;
        self.marks.note(&text, self.len);
        self.pending.clear();
        (self.stale, self.lacks_inherited) = (false, false);
        self.omits = counters.map_omitted.get() > 0;
        counters.map_rewrites.add(1);
        counters.map_bytes.add(text.len() as u64);
        Ok(())
    }

    /// All lines for which the file has room. If the file is too small for all lines, the lines of dead code are left out
    /// first, beginning with the oldest. If this is not enough, the lines of the live code that was registered last are left
    /// out.
    fn text(&self, registry: &mut Registry, counters: &Counters) -> io::Result<Vec<u8>> {
        let len_of = |name: &[u8]| line_len(name) as u64;
        let mut total: u64 = registry.spans().map(|(_, _, name)| len_of(name)).sum();
        let fits = total <= self.most;
        if !fits {
            // Forgets dead code until an eighth of the file's maximal length is free, so that no code has to be forgotten again
            // soon.
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
}

impl Sink for PerfMap {
    fn open(&mut self, config: &Config) -> Result<(), String> {
        let path = config.map_dir.join(FileKind::PerfMap.name(self.status.pid));
        let is_first = self.own.identity.is_none();
        if self.path() != Some(path.as_path()) || self.dialect != config.dialect {
            // The marker of a shared file stays, to tell other copies of this library that the file is in use. Without the
            // marker, another copy could replace the file, and the lines of other writers would be lost.
            if !self.shared {
                self.own.set_marker(None);
            }
            let stale = self.stale;
            *self = PerfMap::at(path, config.dialect, config.file_mode, self.status.clone());
            // Code may have been registered before the file was opened.
            self.stale = stale;
        }
        // The first write after opening is attempted at once.
        self.own.trouble = None;
        self.most = config.map_max;
        self.open_file(is_first).map_err(|error| self.own.describe("create", &error))
    }

    /// Appends the line of the code. If older lines have to change, the new line may contradict an older line. So the new line
    /// waits for the next rewrite if the jitdump sink runs. If the process is killed before the rewrite, recovery can restore
    /// the new line from the jitdump. Without a jitdump, the new line is appended at once, because no other file would name the
    /// code if the process were killed before the rewrite.
    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        let Loaded { live, name, change, .. } = *code;
        match change {
            MapChange::None if !self.lacks_inherited => return,
            MapChange::None | MapChange::Append => {}
            MapChange::Rewrite => self.stale |= !self.shared,
        }
        let alone = self.shared || !self.status.sinks().has(Sinks::JITDUMP);
        if self.pending.len() > PENDING_MAX && self.own.trouble.is_some() {
            self.pending = Vec::new();
            self.stale = true;
        }
        let waits_for_rewrite = self.stale && (!alone || self.own.trouble.is_some());
        if self.own.held().is_ok() && !waits_for_rewrite && self.pending.try_reserve(line_len(name)).is_ok() {
            push_line(&mut self.pending, self.dialect, live.addr, live.size, name);
        } else {
            // Without an open file, no lines are collected. The next file is written from the registry.
            self.stale = true;
        }
    }

    fn changed(&mut self) {
        self.stale = true;
    }

    fn inherit_later(&mut self) {
        self.lacks_inherited = true;
    }

    /// Rewrites the file only if a rewrite is due or the round asks for it.
    fn write(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        let waits = !round.now && self.own.again().is_some_and(|again| !again.is_due());
        let status = self.status.clone();
        let result = if waits { Ok(()) } else { status.write_gate.pass(|| self.try_to_write(round)) };
        if !waits {
            self.own.trouble = result.is_err().then(|| Retry::after(self.own.trouble.as_ref()));
        }
        let entries = round.registry.span_count() as u64;
        let counters = &self.status.counters;
        counters.map_entries.set(entries.saturating_sub(counters.map_omitted.get()));
        result
    }

    fn is_ok(&self) -> bool {
        self.own.again().is_none()
    }

    fn has_work(&self) -> bool {
        self.is_stale() && self.own.trouble.is_none()
    }

    fn wake_in(&self) -> Option<Duration> {
        self.own.again().map(Retry::remaining)
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        match how {
            Close::Stay => self.close_file(),
            Close::Leave => self.own.close_dir(),
            // The marker need not be unmapped, because a forked child does not inherit the marker's mapping.
            Close::LetGo => self.own.let_go(),
            Close::Remove if !self.shared => self.own.remove(),
            Close::Remove => {}
        }
        Ok(())
    }

    fn path(&self) -> Option<&Path> {
        self.own.path()
    }

    fn saved(&self) -> Option<Saved> {
        Some(Saved { file: self.own.state(self.len)?, is_stale: self.is_stale(), is_shared: self.shared })
    }
}
