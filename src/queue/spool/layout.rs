//! The layout of a spool: a header with the owner and the writer's progress, a directory of the units, and the units.
//!
//! ```text
//! | header | directory: one word per unit |  (to the next page)  | unit 0 | unit 1 | ...
//! ```
//!
//! The writer commits round by round. The data of a round says how many events of each chunk are consumed, and how long the
//! files are. The writer stores this data next to the data of the last committed round. A process may be killed between any two
//! stores. So the last store, which stores the round's number, makes all new data valid at once.
//!
//! A round that replaces a file is committed by renaming the new file. The writer stores the data of this round before it
//! renames the new file. The data becomes valid once the new file has its final name.

use std::fs::File;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use super::file;
use super::published_status::{self, Published};
use super::text_cell::TextCell;
use crate::api::options::Sinks;
use crate::queue::chunk::CHUNK_SIZE;
use crate::sys::file::Identity;
use crate::sys::mapping::{page_size, Region};
use crate::sys::owner_process::Owner;

const MAGIC: u64 = u64::from_ne_bytes(file::START);
const VERSION: u32 = 10;

/// This word in the directory means that the unit is part of a chunk that begins in an earlier unit. If a chunk begins in the
/// unit, the word is the number of units of the chunk. The word 0 means that the unit is not part of a chunk.
pub const INSIDE: u32 = u32::MAX;

/// This value of `Header::awaited` is not the number of a round. The value means that a recovery has written all records to a
/// new map. The records count as written once this map has its final name.
pub const ALL: u64 = u64::MAX;

/// The maximum length of a path in bytes. A path consists of a configured directory, which has at most `DIR_MAX` bytes, and the
/// part that the library appends.
pub const PATH_ROOM: usize = 1024 + 64;

/// The first bytes of a spool. The fields up to `published` have the same offsets in all versions.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// Stored last when a spool is made.
    magic: AtomicU64,
    version: AtomicU32,
    unit_size: AtomicU32,
    units: AtomicU64,
    pid: AtomicU64,
    start_time: AtomicU64,
    pid_namespace: AtomicU64,
    mount_namespace: AtomicU64,
    /// Number of the last round that was committed.
    committed: AtomicU64,
    published: Published,
    /// Two cells with the progress after a round. One cell is for the last committed round. The second cell is for the round
    /// before the last committed round, or for the next round. The lowest bit of a round's number tells which of the two cells
    /// has the progress of this round.
    states: [StateCell; 2],
    /// The file that is about to replace the map.
    next_map: FileCell,
    /// Number of the last round for which a commit by renaming was prepared (`prepare`), or `ALL`.
    awaited: AtomicU64,
    /// How often `files` was set. The lowest bit of this count is the index of the valid cell.
    files_set: AtomicU64,
    files: [FilesCell; 2],
}

const _: () = assert!(offset_of!(Header, published) == published_status::PLACE && VERSION >= published_status::SINCE);

/// The data that the writer has written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Time stamp of the last record that was written.
    pub last_time: u64,
    /// The perf map, if it is written.
    pub map: Option<FileState>,
    /// Whether the map has outdated lines that have to change. An outdated map lacks no line.
    pub map_is_stale: bool,
    /// Whether other code in the process also writes to the map. If this field is true, the library only appends to the map.
    pub map_is_shared: bool,
    /// The jitdump, if it is written.
    pub dump: Option<FileState>,
}

/// A file, and how many bytes of it belong to the committed rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    pub identity: Identity,
    pub len: u64,
}

/// Properties of the files. The properties stay the same while a session is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub map_path: Vec<u8>,
    pub dump_path: Vec<u8>,
    /// Whether the map is for simpleperf.
    pub simpleperf: bool,
    /// Whether time stamps are raw counter values.
    pub arch_timestamps: bool,
}

#[derive(Debug)]
#[repr(C)]
struct FileCell {
    device: AtomicU64,
    inode: AtomicU64,
    born: AtomicU64,
}

/// The form in which a spool stores [`Files`].
#[derive(Debug)]
#[repr(C)]
struct FilesCell {
    flags: AtomicU64,
    map_path: TextCell<{ PATH_ROOM / 8 }>,
    dump_path: TextCell<{ PATH_ROOM / 8 }>,
}

#[derive(Debug)]
#[repr(C)]
struct StateCell {
    last_time: AtomicU64,
    map_is_stale: AtomicU64,
    map_is_shared: AtomicU64,
    map: FileStateCell,
    dump: FileStateCell,
}

#[derive(Debug)]
#[repr(C)]
struct FileStateCell {
    /// All fields are 0 if the file is not written. If the file is written, its device and inode are not 0.
    file: FileCell,
    len: AtomicU64,
}

/// Returns an offset in the spool, and the bytes that the caller has to write there. The bytes announce the file that is
/// about to replace the map. For `awaited`, see `Header::awaited`.
pub fn next_map_cell(identity: Identity, awaited: u64) -> (u64, Vec<u8>) {
    const { assert!(offset_of!(Header, awaited) == offset_of!(Header, next_map) + size_of::<FileCell>()) }
    let words = [identity.device, identity.inode, identity.born, awaited];
    (offset_of!(Header, next_map) as u64, words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

/// Returns an offset in the spool, and the bytes that the caller has to write there. These bytes are the number of the last
/// committed round.
pub fn committed_cell(round: u64) -> (u64, Vec<u8>) {
    (offset_of!(Header, committed) as u64, round.to_ne_bytes().into())
}

/// Bytes before the first unit.
pub fn header_len(units: usize) -> usize {
    (size_of::<Header>() + 4 * units).next_multiple_of(page_size().max(4096))
}

impl FileCell {
    fn set(&self, identity: Identity) {
        self.device.store(identity.device, Ordering::Relaxed);
        self.inode.store(identity.inode, Ordering::Relaxed);
        self.born.store(identity.born, Ordering::Relaxed);
    }

    fn get(&self) -> Identity {
        Identity {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
            born: self.born.load(Ordering::Relaxed),
        }
    }
}

const NO_FILE: Identity = Identity { device: 0, inode: 0, born: 0 };

impl FileStateCell {
    fn set(&self, state: Option<FileState>) {
        self.file.set(state.map_or(NO_FILE, |state| state.identity));
        self.len.store(state.map_or(0, |state| state.len), Ordering::Relaxed);
    }

    fn get(&self) -> Option<FileState> {
        let identity = self.file.get();
        (identity != NO_FILE).then(|| FileState { identity, len: self.len.load(Ordering::Relaxed) })
    }
}

impl Header {
    /// Stores the owner of the spool. Before this call, readers do not recognize the file as a spool.
    pub fn describe(&self, owner: &Owner, units: usize) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.unit_size.store(CHUNK_SIZE as u32, Ordering::Relaxed);
        self.units.store(units as u64, Ordering::Relaxed);
        self.pid.store(owner.pid.into(), Ordering::Relaxed);
        self.start_time.store(owner.start_time, Ordering::Relaxed);
        self.pid_namespace.store(owner.pid_namespace, Ordering::Relaxed);
        self.mount_namespace.store(owner.mount_namespace, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Makes the spool void, so that no process completes files from it.
    pub fn void(&self) {
        self.magic.store(0, Ordering::Release);
    }

    /// The owner of the spool, and the number of its units. `None` if the file is no spool, or a spool of another version.
    pub fn description(&self) -> Option<(Owner, usize)> {
        let known = self.magic.load(Ordering::Acquire) == MAGIC
            && self.is_of_this_version()
            && self.unit_size.load(Ordering::Relaxed) as usize == CHUNK_SIZE;
        let owner = Owner {
            pid: self.pid.load(Ordering::Relaxed).try_into().ok()?,
            start_time: self.start_time.load(Ordering::Relaxed),
            pid_namespace: self.pid_namespace.load(Ordering::Relaxed),
            mount_namespace: self.mount_namespace.load(Ordering::Relaxed),
        };
        known.then_some((owner, usize::try_from(self.units.load(Ordering::Relaxed)).ok()?))
    }

    pub fn is_of_this_version(&self) -> bool {
        self.version.load(Ordering::Relaxed) == VERSION
    }

    /// Returns the directory of the spool that begins with this header. The spool must have `units` units.
    pub fn directory(&self, units: usize) -> &[AtomicU32] {
        // SAFETY: the directory lies after the header in the same mapping (`header_len`); zero is a valid value.
        unsafe { std::slice::from_raw_parts((&raw const *self).add(1).cast(), units) }
    }

    /// The pid, if the spool has version `first` or a later version.
    pub fn pid_of_any_version(&self, first: u32) -> Option<u32> {
        let known = self.magic.load(Ordering::Acquire) == MAGIC && self.version.load(Ordering::Relaxed) >= first;
        self.pid.load(Ordering::Relaxed).try_into().ok().filter(|_| known)
    }

    pub fn published(&self) -> &Published {
        &self.published
    }

    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Stores `state` as the progress after `round`. From now on, everything that was stored for this round is valid.
    pub fn commit(&self, round: u64, state: &Progress) {
        self.store(round, state);
        self.committed.store(round, Ordering::Release);
        // The stores for the next round must not come before the store of `committed`.
        fence(Ordering::SeqCst);
    }

    /// Prepares a round that is committed by renaming a new file. `state` contains the identity of the new file. The state of
    /// the last committed round does not contain this identity. Everything that was stored for `round` becomes valid once the
    /// new file gets its final name. After the rename, the round still has to be committed.
    pub fn prepare(&self, round: u64, state: &Progress) {
        self.store(round, state);
        self.awaited.store(round, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    fn store(&self, round: u64, state: &Progress) {
        let cell = &self.states[(round & 1) as usize];
        cell.last_time.store(state.last_time, Ordering::Relaxed);
        cell.map_is_stale.store(state.map_is_stale.into(), Ordering::Relaxed);
        cell.map_is_shared.store(state.map_is_shared.into(), Ordering::Relaxed);
        cell.map.set(state.map);
        cell.dump.set(state.dump);
    }

    /// The progress after the last committed round.
    pub fn state(&self) -> Progress {
        self.state_of(self.committed())
    }

    fn state_of(&self, round: u64) -> Progress {
        let cell = &self.states[(round & 1) as usize];
        Progress {
            last_time: cell.last_time.load(Ordering::Relaxed),
            map: cell.map.get(),
            map_is_stale: cell.map_is_stale.load(Ordering::Relaxed) != 0,
            map_is_shared: cell.map_is_shared.load(Ordering::Relaxed) != 0,
            dump: cell.dump.get(),
        }
    }

    /// Announces the file that is about to replace the map.
    pub fn set_next_map(&self, identity: Identity) {
        self.next_map.set(identity);
        fence(Ordering::SeqCst);
    }

    pub fn next_map(&self) -> Identity {
        self.next_map.get()
    }

    /// Commits a prepared round (`prepare`) in the spool of a dead process, if a new file of this round already has its final
    /// name. `has_name` returns whether the map or jitdump with the given identity has its final name. Returns whether this
    /// call has committed a round.
    pub fn settle(&self, has_name: impl Fn(Sinks, Identity) -> bool) -> bool {
        let (committed, awaited) = (self.committed(), self.awaited.load(Ordering::Acquire));
        if awaited.checked_sub(1) != Some(committed) {
            return false;
        }
        let (old, new) = (self.state(), self.state_of(awaited));
        let files = [(Sinks::MAP, old.map, new.map), (Sinks::JITDUMP, old.dump, new.dump)];
        let is_new = |old: Option<FileState>, new: FileState| old.is_none_or(|old| old.identity != new.identity);
        let is_there = |&(sink, old, new): &(Sinks, Option<FileState>, Option<FileState>)| {
            new.is_some_and(|new| is_new(old, new) && has_name(sink, new.identity))
        };
        let is_committed = files.iter().any(is_there);
        if is_committed {
            self.committed.store(awaited, Ordering::Release);
        }
        is_committed
    }

    /// Returns an offset in the spool, and the bytes that the caller has to write there. After this write, the file with the
    /// given identity counts as the map of the last committed round. The length of this file is unknown, and is stored as 0.
    pub fn map_cell(&self, identity: Identity) -> (u64, Vec<u8>) {
        const { assert!(offset_of!(FileStateCell, file) == 0 && offset_of!(FileStateCell, len) == size_of::<FileCell>()) }
        let state = (self.committed() & 1) as usize * size_of::<StateCell>();
        let at = offset_of!(Header, states) + state + offset_of!(StateCell, map);
        let words = [identity.device, identity.inode, identity.born, 0];
        (at as u64, words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    /// Whether a recovery has announced a new map, and has written all records to this map. The records count as written once
    /// the new map has its final name.
    pub fn awaits_all(&self) -> bool {
        self.awaited.load(Ordering::Acquire) == ALL
    }

    /// Stores the properties of the files. The last store makes all new properties valid. Must be called while no file is
    /// written.
    pub fn set_files(&self, files: &Files) {
        let Files { map_path, dump_path, simpleperf, arch_timestamps } = files;
        let set = self.files_set.load(Ordering::Relaxed).wrapping_add(1);
        let cell = &self.files[(set & 1) as usize];
        cell.map_path.set(map_path);
        cell.dump_path.set(dump_path);
        let bits = [simpleperf, arch_timestamps];
        let flags = bits.iter().enumerate().fold(0, |flags, (at, &&bit)| flags | u64::from(bit) << at);
        cell.flags.store(flags, Ordering::Relaxed);
        self.files_set.store(set, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The properties of the files. `None` if the data is invalid.
    pub fn files(&self) -> Option<Files> {
        let cell = &self.files[(self.files_set.load(Ordering::Acquire) & 1) as usize];
        let flags = cell.flags.load(Ordering::Relaxed);
        let bit = |at: u32| flags >> at & 1 == 1;
        Some(Files {
            map_path: cell.map_path.get()?,
            dump_path: cell.dump_path.get()?,
            simpleperf: bit(0),
            arch_timestamps: bit(1),
        })
    }
}

/// A copy of the header and the directory of a spool. A copy is needed because another process may change or truncate the
/// spool at any time.
pub struct HeaderCopy(Region);

impl HeaderCopy {
    /// Reads the header and the directory of a spool with `units` units. `None` if the file is too short.
    pub fn read(file: &File, units: usize) -> Option<HeaderCopy> {
        let len = header_len(units);
        let copy = Region::private(len).ok()?;
        // SAFETY: the region has `len` bytes, and nobody else uses it yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(copy.start().as_ptr(), len) };
        file.read_exact_at(bytes, 0).ok()?;
        Some(HeaderCopy(copy))
    }
}

impl Deref for HeaderCopy {
    type Target = Header;

    fn deref(&self) -> &Header {
        // SAFETY: the region is at least as long as a header, all of whose fields are atomics.
        unsafe { self.0.start().cast::<Header>().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Forks a child that has the shared memory of this process. The child calls `body` again and again until it is killed.
    fn fork(body: impl Fn()) -> libc::pid_t {
        // Makes the system call directly, because the C library's `fork` would run fork handlers.
        // SAFETY: without a stack for the child, `clone` acts like `fork`. Until the child is killed, the child does nothing
        // but write to the spool.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
        assert!(child >= 0);
        if child == 0 {
            loop {
                body();
            }
        }
        child
    }

    /// A process that is killed in `set_files` leaves either the old data about the files or the new data.
    #[test]
    fn files_change_at_once() {
        let (len, how) = (header_len(0), libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0) };
        assert!(start != libc::MAP_FAILED);
        // SAFETY: the mapping has room for a header, all of whose fields are atomics for which zero is a valid value.
        let header = unsafe { &*start.cast::<Header>() };
        let files = |byte, len| Files { map_path: vec![byte; len], dump_path: vec![byte; len], ..Files::default() };
        let (one, other) = (files(b'1', 1000), Files { simpleperf: true, ..files(b'2', 900) });
        for _ in 0..200 {
            let before = Files::default();
            header.set_files(&before);
            let child = fork(|| {
                header.set_files(&one);
                header.set_files(&other);
            });
            while header.files().is_some_and(|files| files == before) {
                std::thread::yield_now();
            }
            // SAFETY: this process has not waited for the child yet, so the pid still belongs to the child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, ptr::null_mut(), 0);
            }
            let found = header.files();
            assert!(found.as_ref() == Some(&one) || found.as_ref() == Some(&other), "{found:?}");
        }
    }
}
