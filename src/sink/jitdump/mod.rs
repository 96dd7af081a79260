//! The jitdump sink writes a jitdump, and maps the marker by which perf finds this file. The file consists of groups. A group
//! consists of the records of one piece of code.
//!
//! No group can be written while the disk is full, or while the file is missing or at its size limit. Until groups can be
//! written, they wait in a bounded backlog in memory, and the writer tries again from time to time.

mod append;
pub mod backlog;
mod copy_live;
mod foreign_records;
mod groups;
mod load;
mod own_file;
mod repair;
mod rewrite;
pub mod stopped;

use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::api::options::{Config, DumpDir, Sinks};
use crate::format::arch::ELF_MACHINE;
use crate::format::file_names::FileKind;
use crate::format::jitdump::{places, GroupPlace, Header, HEADER_SIZE};
use crate::queue::spool::layout::FileState;
use crate::queue::status::Status;
use crate::registry::Registry;
use crate::sink::owned_file::OwnedFile;
use crate::sink::retry::Retry;
use crate::sink::{Close, Kind, Loaded, Round, Saved, Sink};
use crate::sys::clock::Clock;
use crate::sys::file::{self, Held};
use crate::sys::marker::Marker;
use backlog::{Backlog, Contents, Places};
use groups::Groups;
use stopped::{forget_places, Reopened};

pub static KIND: Kind = Kind {
    bit: Sinks::JITDUMP,
    word: "jitdump",
    wants: Sinks::GROUPS.with(Sinks::BYTES),
    is_default: true,
    make: None,
};

#[derive(Debug)]
pub struct Jitdump {
    /// The configured directory. `None` until the sink is opened for the first time.
    wanted: Option<DumpDir>,
    status: Arc<Status>,
    header: [u8; HEADER_SIZE],
    /// Where the last whole group in the file ends. If a write fails, the file is cut back to this length.
    len: u64,
    /// The maximal length of the file.
    most: u64,
    /// Disk space was allocated in advance for the file up to this offset. If a file system gains nothing by such an allocation
    /// (`file::gains_by_reserve`), no space is allocated, but `reserved` is set as if space had been allocated.
    reserved: u64,
    /// Set when the sink is opened: whether the sink continues its earlier file, and this file still has everything that the
    /// sink had written.
    goes_on: bool,
    /// Whether a partial group may lie after the last whole group.
    torn: bool,
    /// Whether the file has to be rewritten, because it was removed, truncated or overwritten, or has reached its size limit.
    spoiled: bool,
    contents: Contents,
    /// How many groups are lost, because the backlog had no room for them, or a rewrite could not read them. For code that is
    /// still live, `write_lost` later builds new groups.
    lost: u64,
    /// Groups collected since the last write.
    groups: Groups,
    /// The live code that the file contained when the sink was stopped.
    reopened: Reopened,
    /// The ids of live code whose groups `write_more` still has to write. `None` if no code is listed.
    unwritten: Option<std::vec::IntoIter<u64>>,
    /// Whether this process recovers the file of a dead process.
    dead: bool,
}

impl Jitdump {
    pub fn new(status: Arc<Status>) -> Jitdump {
        Jitdump::at(PathBuf::new(), 0, status)
    }

    /// Makes a sink whose file lies at `path`, or under another name in the same directory.
    pub fn at(path: PathBuf, mode: u32, status: Arc<Status>) -> Jitdump {
        let (pid, clock) = (status.pid, status.clock);
        let header = Header { machine: ELF_MACHINE, pid, timestamp: clock.now(), arch_timestamp: clock == Clock::Arch };
        Jitdump {
            wanted: None,
            status,
            header: header.to_bytes(),
            len: 0,
            most: u64::MAX,
            reserved: 0,
            goes_on: false,
            torn: false,
            spoiled: false,
            contents: Contents::new(OwnedFile::at(path, mode), HEADER_SIZE as u64),
            lost: 0,
            groups: Groups::default(),
            reopened: Reopened::default(),
            unwritten: None,
            dead: false,
        }
    }

    /// Opens the file that the sink wrote before. If that file is gone, makes a new file.
    fn open_file(&mut self) -> io::Result<()> {
        self.contents.own.close_dir();
        if let Ok(len) = self.contents.own.reopen() {
            // Another runtime may have mistaken the file for its own, and overwritten it.
            self.spoiled |= !self.is_ours(self.contents.own.held()?);
            self.goes_on = !self.spoiled && len >= self.len;
            if self.spoiled {
                self.contents.own.trouble.get_or_insert_with(Retry::at_once);
            }
            self.contents.show(self.len);
            return Ok(());
        }
        let created = self.make()?;
        match (&created).write_all(&self.header).and_then(|()| Marker::new(&created)) {
            // If an earlier file was lost, this call also replaces the marker of the lost file. That marker is useless, because
            // perf finds a file by the name of the marker mapping, and the lost file no longer has a name.
            Ok(marker) => self.contents.own.set_marker(Some(marker)),
            Err(error) => {
                // No marker refers to the new file, so perf would never read it.
                let _ = self.contents.own.place().and_then(|(dir, name)| dir.remove(name));
                return Err(error);
            }
        }
        self.len = HEADER_SIZE as u64;
        (self.torn, self.spoiled, self.goes_on) = (false, false, false);
        self.contents.places = Places::default();
        self.contents.hold(created)
    }

    /// Fails, and plans a rewrite, if the file was removed or overwritten.
    fn check(&mut self) -> io::Result<()> {
        // If the host has closed the descriptor, nothing is checked here, because the next write reopens the file.
        let open = self.contents.own.held().and_then(Held::checked).ok();
        if !self.spoiled && open.is_some_and(|file| file::is_removed(file) || !self.is_ours(file)) {
            self.spoiled = true;
            self.contents.own.trouble.get_or_insert_with(Retry::at_once);
            return Err(io::Error::new(io::ErrorKind::NotFound, "it has been removed or overwritten"));
        }
        Ok(())
    }

    /// Continues the file of a dead process. Keeps the groups of the committed rounds, and all groups that other runtimes have
    /// appended. `file::take_over` checks the identity of the file, because the spool is not trusted.
    pub fn adopt(&mut self, state: &FileState, may_be_locked: bool) -> io::Result<()> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let (file, _) = self.contents.own.take_over(&[state.identity], may_be_locked)?;
        file.read_exact_at(&mut self.header, 0)?;
        if Header::read(&self.header).is_none_or(|header| header.pid != self.status.pid) {
            return refuse("is not the jitdump of this process");
        }
        if !(HEADER_SIZE as u64..=file.metadata()?.len()).contains(&state.len) {
            return refuse("has been cut");
        }
        let len = foreign_records::keep_after(&file, state.len)?;
        (self.len, self.contents.next) = (len, len);
        self.contents.places.set(HEADER_SIZE as u64, len - HEADER_SIZE as u64, HEADER_SIZE as u64);
        self.contents.hold(file)?;
        self.dead = true;
        Ok(())
    }

    /// Returns the contents of the parent's jitdump, from which a forked child reads groups. Afterwards this sink writes
    /// nothing.
    pub fn let_go(&mut self) -> Contents {
        std::mem::take(&mut self.contents)
    }

    /// Keeps the contents of the parent's jitdump in a forked child until the live groups are copied (`write_more`).
    pub fn inherit(&mut self, parent: Option<Contents>) {
        parent.into_iter().for_each(|parent| self.contents.inherit(parent));
    }

    pub fn ancestors(&self) -> usize {
        self.contents.ancestors()
    }

    /// Forgets the collected groups, because their chunks are about to be recycled.
    pub fn drop_groups(&mut self) {
        self.groups = Groups::default();
    }

    /// Forgets the code that the file contained when the sink was stopped.
    pub fn forget(&mut self) {
        self.reopened = Reopened::default();
    }

    /// Searches the file for groups. Calls `found` with the position of each group.
    pub fn read_places(&self, found: &mut dyn FnMut(GroupPlace) -> io::Result<()>) -> Result<(), String> {
        let read =
            self.contents.own.held().and_then(|file| {
                places(HEADER_SIZE as u64..self.len, |bytes, at| file.read_exact_at(bytes, at), found)
            });
        read.map_err(|error| self.contents.own.describe("read", &error))
    }
}

impl Sink for Jitdump {
    /// Keeps the earlier file if the configured directory is the same as before. With `DumpDir::CacheBelow`, this file lies in
    /// a new directory that an earlier call has made below the configured directory.
    fn open(&mut self, config: &Config) -> Result<(), String> {
        if self.wanted.as_ref() != Some(&config.dump_dir) {
            *self = Jitdump::new(self.status.clone());
            let no_dir = |error| format!("cannot make a directory for the jitdump: {error}");
            let dir = match &config.dump_dir {
                DumpDir::Exactly(dir) => dir.clone(),
                DumpDir::CacheBelow(base) => file::make_jit_cache_dir(base).map_err(no_dir)?,
            };
            let name = FileKind::Jitdump { zeros: 0 }.name(self.status.pid);
            *self = Jitdump::at(dir.join(name), config.file_mode, self.status.clone());
            self.wanted = Some(config.dump_dir.clone());
        }
        self.most = config.jitdump_max;
        if self.contents.backlog.is_empty() {
            self.contents.backlog = Backlog::new(config.max_memory / 4);
        }
        self.open_file().map_err(|error| self.contents.own.describe("create", &error))
    }

    fn load(&mut self, code: &Loaded<'_>, registry: &mut Registry) {
        self.add(code, registry);
    }

    fn write(&mut self, round: &mut Round<'_>) -> io::Result<()> {
        if round.now {
            self.check()
        } else {
            Ok(())
        }
    }

    fn leave(&mut self, registry: &mut Registry, keep: bool) {
        self.flush();
        let mut reopened = forget_places(registry, keep, |stored| self.contents.group(stored).ok());
        reopened.retain(|stored| self.contents.places.get(stored.offset).is_some());
        self.reopened = reopened;
        self.unwritten = None;
        self.contents.forget_parent();
    }

    fn is_ok(&self) -> bool {
        self.contents.own.trouble.is_none()
    }

    fn wake_in(&self) -> Option<Duration> {
        self.contents.own.again().map(Retry::remaining)
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        match how {
            // The file and the marker stay. perf opens every dump whose marker it has recorded. If one of these dumps is
            // missing, perf fails as a whole.
            Close::Stay => {
                let trimmed = self.trim();
                self.contents.close();
                return trimmed;
            }
            // Waiting groups are discarded, and counted as lost.
            Close::Leave => {
                self.contents.own.close_dir();
                (self.contents.own.trouble, self.lost) = (None, 0);
                let left = std::mem::take(&mut self.contents.backlog).len();
                self.count(0, 0, left as u64);
            }
            Close::Remove => self.contents.own.remove(),
            Close::LetGo => drop(self.let_go()),
        }
        Ok(())
    }

    fn path(&self) -> Option<&Path> {
        self.contents.own.path()
    }

    fn saved(&self) -> Option<Saved> {
        Some(Saved { file: self.contents.own.state(self.len)?, is_stale: false, is_shared: false })
    }
}
