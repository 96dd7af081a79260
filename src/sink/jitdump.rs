//! The jitdump sink: a file that holds whole groups only, and the marker by which perf finds it.

use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::config::{Config, DumpDir};
use crate::format::jitdump::{close_record, places, Header, Place, HEADER_SIZE};
use crate::registry::Stored;
use crate::spool::layout::FileState;
use crate::sys::arch::ELF_MACHINE;
use crate::sys::clock::Clock;
use crate::sys::file::{self, Held, Identity};
use crate::sys::marker::Marker;

/// A file that grows beyond this gets room ahead: as much as it is long already, up to a bound.
const RESERVE_FROM: u64 = 1 << 20;
const RESERVE_MOST: u64 = 16 << 20;

/// The sink.
#[derive(Debug)]
pub struct Jitdump {
    path: PathBuf,
    mode: u32,
    pid: u32,
    clock: Clock,
    close_record: bool,
    file: Option<Held>,
    identity: Option<Identity>,
    marker: Option<Marker>,
    /// Where the last whole group ends. Everything behind it is taken back if a write fails.
    len: u64,
    /// Up to where the file system has provided room.
    reserved: u64,
    /// The last record is JIT_CODE_CLOSE.
    closed: bool,
}

impl Jitdump {
    /// Where the dump of this process goes. Makes the directory below `JITDUMPDIR` if that is what is asked for.
    pub fn path_for(dir: &DumpDir, pid: u32) -> io::Result<PathBuf> {
        let dir = match dir {
            DumpDir::Exactly(dir) => dir.clone(),
            DumpDir::CacheBelow(base) => file::make_jit_cache_dir(base)?,
        };
        // perf accepts no other name (linux tools/perf/util/jitdump.c, `jit_detect`).
        Ok(dir.join(format!("jit-{pid}.dump")))
    }

    pub fn new(path: PathBuf, mode: u32, pid: u32, clock: Clock) -> Jitdump {
        Jitdump {
            path,
            mode,
            pid,
            clock,
            close_record: false,
            file: None,
            identity: None,
            marker: None,
            len: 0,
            reserved: 0,
            closed: false,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes over what a later session may choose anew.
    pub fn configure(&mut self, config: &Config) {
        self.close_record = config.close_record;
    }

    /// Opens the file: the one that we wrote before if it is still there, else a new one.
    pub fn open(&mut self) -> io::Result<()> {
        if let Some(known) = self.identity.and_then(|identity| file::reopen(&self.path, identity).ok()) {
            if self.closed {
                // perf reads nothing behind a CLOSE record.
                known.set_len(self.len)?;
                self.closed = false;
            }
            self.file = Some(Held::new(known)?);
            return Ok(());
        }
        let mut created = file::claim(&self.path, self.mode)?;
        let made = self.write_header(&mut created).and_then(|()| self.map_marker(&created));
        if let Err(error) = made {
            // No marker refers to it.
            let _ = fs::remove_file(&self.path);
            return Err(error);
        }
        self.identity = Some(file::identity(&created)?);
        self.len = HEADER_SIZE as u64;
        self.closed = false;
        self.file = Some(Held::new(created)?);
        Ok(())
    }

    fn write_header(&self, file: &mut File) -> io::Result<()> {
        let header = Header {
            machine: ELF_MACHINE,
            pid: self.pid,
            timestamp: self.clock.now(),
            arch_timestamp: self.clock == Clock::Arch,
        };
        file.write_all(&header.to_bytes())
    }

    /// perf reads the dump by its name, once for each mapping of it, so one mapping serves a file that replaces a lost one.
    fn map_marker(&mut self, file: &File) -> io::Result<()> {
        if self.marker.is_none() {
            self.marker = Some(Marker::new(file).map_err(|error| {
                let why = format!("mapping it executable failed ({error}); is the file system mounted noexec?");
                io::Error::new(error.kind(), why)
            })?);
        }
        Ok(())
    }

    /// Appends whole groups, or nothing.
    pub fn write(&mut self, groups: &mut [IoSlice<'_>]) -> io::Result<u64> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotConnected)?.checked()?;
        let size = file::append_whole(file, groups)?;
        self.len += size;
        if self.len > self.reserved && self.len > RESERVE_FROM {
            let more = self.len.min(RESERVE_MOST);
            if file::gains_by_reserve(file) {
                file::reserve(file, self.len, more);
            }
            self.reserved = self.len + more;
        }
        Ok(size)
    }

    /// Gives the room ahead back.
    pub fn trim(&mut self) -> io::Result<()> {
        match &self.file {
            Some(file) if self.reserved > self.len => {
                self.reserved = 0;
                file.checked()?.set_len(self.len)
            }
            _ => Ok(()),
        }
    }

    /// Fails if the file has been removed, so that nobody takes what was written for kept.
    pub fn check(&self) -> io::Result<()> {
        match &self.file {
            Some(file) if file::is_removed(file) => Err(io::Error::new(io::ErrorKind::NotFound, "it has been removed")),
            _ => Ok(()),
        }
    }

    /// The size of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What a spool has to know of it.
    pub fn state(&self) -> Option<FileState> {
        self.file.as_ref()?;
        self.identity.map(|identity| FileState { identity, len: self.len })
    }

    /// Goes on with the file of a dead process, from where its last whole pass ended.
    pub fn adopt(&mut self, state: &FileState) -> io::Result<()> {
        let file = file::reopen(&self.path, state.identity)?;
        if file.metadata()?.len() < state.len {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "has been cut"));
        }
        file.set_len(state.len)?;
        self.identity = Some(state.identity);
        self.len = state.len;
        self.file = Some(Held::new(file)?);
        Ok(())
    }

    /// The file, which is written to no more.
    pub fn let_go(&mut self) -> Option<Held> {
        self.file.take()
    }

    /// Reads what was written before.
    pub fn read_back(&self, place: Stored) -> io::Result<Vec<u8>> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut bytes = vec![0; place.len];
        file.read_exact_at(&mut bytes, place.offset)?;
        Ok(bytes)
    }

    /// Hands out what is in it.
    pub fn read_places(&self, found: &mut dyn FnMut(Place)) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        places(self.len, |bytes, offset| file.read_exact_at(bytes, offset), found)
    }

    /// Closes the file after a failure. What is in it stays valid.
    pub fn give_up(&mut self) {
        let _ = self.trim();
        self.file = None;
    }

    /// Closes the file. It stays, and so does the marker: perf opens every dump whose marker it saw, and gives up altogether
    /// if one is missing.
    pub fn close(&mut self) -> io::Result<()> {
        self.trim()?;
        let Some(file) = self.file.take() else { return Ok(()) };
        if self.close_record {
            file::append_whole(file.checked()?, &mut [IoSlice::new(&close_record(self.clock.now()))])?;
            self.closed = true;
        }
        Ok(())
    }
}
