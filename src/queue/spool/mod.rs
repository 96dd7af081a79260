//! The memory for records on their way to the writer. If possible, this memory outlives the process.
//!
//! The memory consists of a header and a range of units. Each unit has the size of a full-size chunk. If possible, the memory
//! is a shared mapping of a file, usually in `/dev/shm`. The file is called the spool. Published records and the writer's
//! progress in a spool survive SIGKILL, and [`recover`] continues from them. Without a spool, and before a writer opens a
//! spool, the memory is private. Private memory has the same layout as a spool, and lies at the same addresses.

pub mod file;
pub mod layout;
pub mod published_status;
pub mod read_living;
mod text_cell;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::queue::chunk::{Chunk, CHUNK_SIZE, FIRST_SIZE};
use crate::queue::status::SpoolState;
use crate::sys::mapping::{page_size, Region};
use crate::sys::owner_process::Owner;
use file::{NamedSpool, SpoolFile};
use layout::{header_len, Header, Progress, INSIDE};

#[derive(Debug)]
pub struct Memory {
    region: Region,
    units: usize,
    /// The offset of the first unit.
    start: usize,
    /// The spool, or `None` if there is no spool. The lock is held only for short moments.
    spool: Mutex<Option<Arc<NamedSpool>>>,
    /// Which units are private memory, because the file system had too little free space or because chunks are being moved
    /// out of the spool.
    private: Box<[AtomicBool]>,
}

impl Memory {
    /// Reserves private address space for `units` units. No unit has memory yet.
    pub fn new(units: usize) -> io::Result<Memory> {
        let start = header_len(units);
        let region = Region::closed(start + units * CHUNK_SIZE)?;
        region.open(0..start)?;
        let private = (0..units).map(|_| AtomicBool::new(false)).collect();
        Ok(Memory { region, units, start, spool: Mutex::default(), private })
    }

    /// Replaces the private memory with a spool in `dir`. The memory must contain no chunk at the time of this call.
    pub fn attach(&self, dir: &Path) -> io::Result<()> {
        let owner = Owner::this_process();
        let len = self.start + self.units * CHUNK_SIZE;
        let file = SpoolFile::create(dir, &owner, len)?;
        let named = file.named().inspect_err(|_| file.remove())?;
        // Includes memory for the first chunk, because a spool without room for a chunk is useless.
        let head = (self.start + FIRST_SIZE).next_multiple_of(page_size());
        if let Err(error) = self.region.renew(Some(file.file()), head) {
            file.remove();
            return Err(error);
        }
        self.header().describe(&owner, self.units);
        // From here on, the mapping keeps the file locked, and no descriptor is needed.
        *self.spool() = Some(Arc::new(named));
        Ok(())
    }

    pub fn has_spool(&self) -> bool {
        self.spool().is_some()
    }

    /// Removes the spool, before the caller moves chunks out of it. From now on, no process completes files from this spool.
    pub fn give_up_spool(&self) {
        self.header().void();
        self.remove_spool();
    }

    /// Moves a chunk out of the spool into private memory. No thread may write to the chunk during the call.
    pub fn take_from_spool(&self, chunk: Chunk) {
        let units = self.units_of(chunk);
        let bytes = self.bytes(units.start, chunk.size());
        // If the copy fails, the next round tries again.
        if !units.clone().all(|unit| self.is_private(unit)) && self.region.copy_to_private(bytes).is_ok() {
            self.set_private(units);
        }
    }

    /// Ends the use of the spool if it contains no chunk. Later chunks are private memory in any case. No other thread may
    /// make or free chunks during the call.
    pub fn leave_spool(&self) {
        let directory = self.header().directory(self.units);
        let is_empty = |&unit: &usize| directory[unit].load(Ordering::Relaxed) == 0;
        (0..self.units).filter(is_empty).for_each(|unit| self.set_private(unit..unit + 1));
        let is_left = (0..self.units).all(|unit| self.is_private(unit));
        if is_left && self.close_between_chunks().is_ok() && self.region.copy_to_private(0..self.start).is_ok() {
            *self.spool() = None;
        }
    }

    /// Makes the gaps between chunks inaccessible. The gaps may contain accessible pages of chunks that existed earlier.
    fn close_between_chunks(&self) -> io::Result<()> {
        let close = |gap: Range<usize>| if gap.is_empty() { Ok(()) } else { self.region.close(gap) };
        let mut end = self.start;
        for (unit, chunk) in self.chunks() {
            let bytes = self.bytes(unit, chunk.size());
            close(end..bytes.start)?;
            end = bytes.end.next_multiple_of(page_size());
        }
        close(end..self.start + self.units * CHUNK_SIZE)
    }

    fn set_private(&self, units: Range<usize>) {
        units.for_each(|unit| self.private[unit].store(true, Ordering::Relaxed));
    }

    /// Frees all memory, and removes the spool. The memory must contain no chunk at the time of this call.
    pub fn detach(&self) {
        let spool = self.spool().take();
        // If there is no memory for the new mappings, the old mapping or a part of it stays.
        let _ = self.region.renew(None, self.start);
        spool.inspect(|spool| spool.remove());
        self.private.iter().for_each(|private| private.store(false, Ordering::Relaxed));
    }

    fn spool(&self) -> MutexGuard<'_, Option<Arc<NamedSpool>>> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_spool(&self) -> Option<Arc<NamedSpool>> {
        self.spool().clone()
    }

    /// Whether the spool was removed. A removed spool cannot be found after the end of the process.
    pub fn is_spool_lost(&self) -> bool {
        self.known_spool().is_some_and(|spool| spool.is_lost())
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the region begins with a header, all of whose fields are atomics for which zero is a valid value.
        unsafe { self.region.start().cast::<Header>().as_ref() }
    }

    pub fn units(&self) -> usize {
        self.units
    }

    /// Whether all of the memory outlives the process.
    pub fn state(&self) -> SpoolState {
        let is_kept = self.known_spool().is_some_and(|spool| !spool.is_lost());
        match is_kept && (0..self.units).all(|unit| !self.is_private(unit)) {
            true => SpoolState::Shared,
            false => SpoolState::None,
        }
    }

    fn bytes(&self, first: usize, len: usize) -> Range<usize> {
        let start = self.start + first * CHUNK_SIZE;
        start..start + len
    }

    /// Whether a unit is private memory that replaces a part of the spool.
    pub fn is_private(&self, unit: usize) -> bool {
        self.private[unit].load(Ordering::Relaxed)
    }

    /// Makes one chunk in units that nobody uses, and provides memory for its `size` bytes. A chunk in a single unit may be
    /// smaller than the unit, and a later call may enlarge it.
    pub fn make_chunk(&self, units: &Range<usize>, size: usize) -> io::Result<Chunk> {
        let bytes = self.bytes(units.start, size);
        let provide = || match self.known_spool() {
            Some(spool) if !spool.may_take(size) => Err(io::ErrorKind::StorageFull.into()),
            Some(_) => self.region.provide(bytes.clone()),
            None => {
                self.region.populate(bytes.clone());
                Ok(())
            }
        };
        // A private unit stays private. The addresses of a private unit no longer map the file. If a chunk in this unit used
        // memory of the file, this memory could not be freed later.
        let is_private = units.clone().any(|unit| self.is_private(unit));
        if is_private || self.region.open(bytes.clone()).and_then(|()| provide()).is_err() {
            // With private memory, the host can continue to register code, but records in this chunk are lost if the host is
            // killed.
            self.region.make_private(bytes.clone())?;
            self.set_private(units.clone());
        }
        // SAFETY: the range lies in the region, which is never unmapped. By contract, nobody uses the range.
        let chunk = unsafe { Chunk::init(self.region.start().add(bytes.start), bytes.len()) };
        let directory = self.header().directory(self.units);
        for unit in units.clone().skip(1) {
            directory[unit].store(INSIDE, Ordering::Relaxed);
        }
        // This word makes the chunk visible to readers of the directory, so this word is stored last.
        directory[units.start].store(units.len() as u32, Ordering::Release);
        Ok(chunk)
    }

    /// Frees the memory of adjacent chunks that are no longer used. Together these chunks have `len` bytes.
    pub fn unmake_chunks(&self, units: &Range<usize>, len: usize) {
        let directory = self.header().directory(self.units);
        // The directory is cleared first, so that no reader uses the chunks once their memory is freed.
        for unit in units.clone() {
            directory[unit].store(0, Ordering::Release);
        }
        self.region.discard(self.bytes(units.start, len));
    }

    /// The chunk that begins in this unit.
    ///
    /// # Safety
    /// `make_chunk` has made this chunk, and `unmake_chunks` has not removed it.
    pub unsafe fn chunk_of(&self, unit: usize) -> Chunk {
        // SAFETY: the range lies in the region, and by contract a chunk begins there.
        unsafe { Chunk::at(self.region.start().add(self.start + unit * CHUNK_SIZE)) }
    }

    /// Whether the memory contains a published record that the writer has not consumed yet. This function may miss chunks that
    /// another thread makes or frees during the call.
    pub fn has_unread(&self) -> bool {
        self.chunks().any(|(_, chunk)| chunk.consumed() < chunk.committed())
    }

    /// All chunks, each with its first unit.
    fn chunks(&self) -> impl Iterator<Item = (usize, Chunk)> + '_ {
        let begins = |word: &AtomicU32| !matches!(word.load(Ordering::Acquire), 0 | INSIDE);
        let directory = self.header().directory(self.units).iter().enumerate();
        // SAFETY: a chunk begins there. If another thread frees the chunk at this moment, the chunk's memory still exists and
        // reads as an empty chunk.
        directory.filter(move |(_, word)| begins(word)).map(|(unit, _)| (unit, unsafe { self.chunk_of(unit) }))
    }

    pub fn units_of(&self, chunk: Chunk) -> Range<usize> {
        let first = (chunk.as_ptr() as usize - self.region.start().as_ptr() as usize - self.start) / CHUNK_SIZE;
        first..first + chunk.size().div_ceil(CHUNK_SIZE)
    }

    /// Number of the writer's round that will be committed next.
    pub fn next_round(&self) -> u64 {
        self.header().committed() + 1
    }

    /// Commits a round of the writer: from now on, the records that the round has marked as consumed count as written.
    pub fn commit(&self, state: &Progress) {
        self.header().commit(self.next_round(), state);
    }

    /// In a forked child: unmaps the memory if the child has inherited it, because the child would otherwise keep the spool
    /// locked.
    pub fn leave_in_child(&self) {
        self.region.leave_in_child();
    }

    /// Removes the name of the spool. Called when all records in the spool are written, or when the spool is void
    /// (`Header::void`).
    pub fn remove_spool(&self) {
        if let Some(spool) = self.known_spool() {
            spool.remove();
        }
    }
}
