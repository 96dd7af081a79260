//! Allocates pieces of code memory from regions with two views, and trampolines outside of regions.
//!
//! A piece has the same offset in both views. The allocator's data is outside of code memory, where writes of the host cannot
//! damage it. During a call, the thread holds one lock, and its signals are blocked. `fork` waits for the end of the call.

mod arena;
mod copies;
#[cfg(test)]
mod tests;

use crate::api::error::{Error, Result};
use crate::sink::region::{CodeRegion, RegionOptions, REACH, SIZE_MAX};
use crate::sys::sync::outside::Mutex;
use crate::sys::timed_lock::{Locked, TimedLock};
use crate::sys::{fork_lock, reserve};
use arena::{Arena, CHUNK, GRANULE};
use copies::Copies;
pub use copies::Kind;

/// The largest alignment, in bytes. Regions begin at page boundaries, and no page is smaller than this.
const ALIGNMENT_MAX: u64 = 4096;

/// `FIRST_LEN` is the minimum size of a new region in bytes. When a region grows, it doubles its size or adds `GROWTH_MAX`
/// bytes, whichever is less. If a new piece needs more than that, the region grows by as much as the piece needs.
const FIRST_LEN: u64 = 256 << 10;
const GROWTH_MAX: u64 = 4 << 20;

/// The sizes in bytes to which a region may grow. A new region gets the first of these sizes for which there is address space.
const MAX_LENS: [u64; 3] = [64 << 20, 4 << 20, FIRST_LEN];

/// The number of pieces that are kept for later trampolines of one kind, and of all kinds.
const SPARES: usize = 31;
const SPARES_MAX: usize = 4 * SPARES;

/// The regions of this allocator, divided into pieces.
#[derive(Debug, Default)]
pub struct Allocator {
    pub arenas: TimedLock<Vec<Arena>>,
    copies: TimedLock<Copies>,
    /// Pieces for trampolines. A thread never waits for this lock, and does not block signals while it holds
    /// the lock.
    spares: Mutex<Vec<Spare>>,
}

/// A piece that no caller owns yet.
#[derive(Debug)]
struct Spare {
    piece: CodeRegion,
    /// See `Wanted::named`.
    named: bool,
    /// The kind of the trampoline that the piece contains already.
    copy: Option<Kind>,
}

impl Spare {
    fn is_for(&self, wanted: Wanted) -> bool {
        let is_alike = self.named == wanted.named && self.piece.size == wanted.len;
        is_alike && (self.copy.is_none() || self.copy == wanted.copy)
    }
}

/// A caller's request. `len` is a multiple of `GRANULE`.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    len: u64,
    alignment: u64,
    near: u64,
    /// Whether the sink for regions runs.
    named: bool,
    /// Whether the piece is for a trampoline of the library.
    trampoline: bool,
    /// Outside of regions, the piece may be a copy of this trampoline.
    copy: Option<Kind>,
}

/// The source of memory: the regions of the process.
pub trait Source {
    fn create(&self, wanted: &RegionOptions) -> Result<CodeRegion>;
    fn grow(&self, exec: u64, size: u64) -> Result<()>;
    fn discard(&self, exec: u64, size: u64) -> Result<()>;
    /// Provides memory again for a range that was discarded.
    fn provide(&self, exec: u64, size: u64) -> Result<()>;
    /// Unregisters all code in a range.
    fn unregister(&self, exec: u64, size: u64);
}

impl Wanted {
    pub fn new(size: u64, alignment: u64, near: u64, named: bool) -> Result<Wanted> {
        if size == 0 {
            return Err(Error::SizeZero);
        }
        if size > SIZE_MAX || alignment > ALIGNMENT_MAX {
            return Err(Error::TooLarge);
        }
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Error::Alignment);
        }
        Ok(Wanted {
            len: size.next_multiple_of(GRANULE),
            alignment: alignment.max(GRANULE),
            near,
            named,
            trampoline: false,
            copy: None,
        })
    }

    pub fn for_trampoline(size: u64, named: bool, kind: Kind) -> Result<Wanted> {
        Ok(Wanted { trampoline: true, copy: Some(kind), ..Wanted::new(size, 0, 0, named)? })
    }

    /// Whether the region suits the request: `near` reaches the whole region, and the region has a file if the sink for regions
    /// runs.
    fn is_met_by(&self, arena: &Arena) -> bool {
        let (start, end) = (arena.exec, arena.exec + arena.max_len);
        let is_near = start >= self.near.saturating_sub(REACH) && end <= self.near.saturating_add(REACH);
        (self.near == 0 || is_near) && (arena.named || !self.named)
    }
}

impl Allocator {
    /// Takes the lock. The wait is limited, because the thread that holds the lock may be waiting for a disk.
    fn lock(&self) -> Result<Locked<'_, Vec<Arena>>> {
        self.arenas.lock_in_time().ok_or(Error::Timeout)
    }

    /// Whether a region belongs to this allocator. Only the allocator may change such a region.
    pub fn has(&self, exec: u64) -> Result<bool> {
        let _inside = fork_lock::enter();
        Ok(self.lock()?.iter().any(|arena| arena.exec == exec))
    }

    pub fn alloc(&self, source: &impl Source, wanted: Wanted) -> Result<CodeRegion> {
        if reserve::is_short() {
            return Err(Error::NoMemory);
        }
        let _inside = fork_lock::enter();
        if let Some(kind) = wanted.copy.filter(|_| !wanted.named) {
            let copy = self.copies.lock_in_time().ok_or(Error::Timeout)?.take(kind, wanted.len);
            // A system that lets no memory become executable may still allow two views.
            if let Ok(exec) = copy {
                return Ok(CodeRegion { exec, write: exec, size: wanted.len });
            }
        }
        let mut arenas = self.lock()?;
        if let Some(piece) = found(source, &mut arenas, wanted) {
            return Ok(piece);
        }
        created(source, &mut arenas, wanted).or_else(|error| {
            arenas.iter_mut().for_each(|arena| arena.rest_no_more(0));
            found(source, &mut arenas, Wanted { named: false, ..wanted }).ok_or(error)
        })
    }

    /// Takes over the pieces of the parent, in a forked child. No other thread of the child uses this allocator yet.
    pub fn take_over(&self, parent: &Allocator) {
        self.arenas.take_over(&parent.arenas);
        self.copies.take_over(&parent.copies);
        if let Some(mut copies) = self.copies.try_lock() {
            copies.leave_to_parent();
        }
        if let (Ok(mut own), Ok(mut of_parent)) = (self.spares.try_lock(), parent.spares.try_lock()) {
            *own = std::mem::take(&mut of_parent);
            own.retain(|spare| spare.copy.is_none());
        }
    }

    /// Returns a piece that was allocated ahead for a trampoline. A piece with one view contains the trampoline already. The
    /// call takes no lock for which a thread waits.
    pub fn spare(&self, wanted: Wanted) -> Option<CodeRegion> {
        let mut spares = self.spares.try_lock().ok()?;
        let found = spares.iter().rposition(|spare| spare.is_for(wanted))?;
        Some(spares.swap_remove(found).piece)
    }

    /// Whether a piece was allocated ahead and has no owner yet.
    fn is_spare(&self, exec: u64) -> bool {
        self.spares.try_lock().is_ok_and(|spares| spares.iter().any(|spare| spare.piece.exec == exec))
    }

    /// Allocates a piece for a trampoline, and further pieces for `spare`.
    pub fn alloc_ahead(&self, source: &impl Source, wanted: Wanted) -> Result<CodeRegion> {
        let piece = self.alloc(source, wanted)?;
        let Ok(mut spares) = self.spares.try_lock() else { return Ok(piece) };
        let fitting = spares.iter().filter(|spare| spare.is_for(wanted)).count();
        let is_small = wanted.len == GRANULE || piece.write == piece.exec;
        let missing = if is_small { SPARES.saturating_sub(fitting) } else { 0 };
        let missing = missing.min(SPARES_MAX.saturating_sub(spares.len()));
        if spares.try_reserve(missing).is_ok() {
            let more = (0..missing).map_while(|_| self.alloc(source, wanted).ok());
            let is_copy = |piece: &CodeRegion| piece.write == piece.exec;
            let copy = |piece: &CodeRegion| wanted.copy.filter(|_| is_copy(piece));
            spares.extend(more.map(|piece| Spare { piece, named: wanted.named, copy: copy(&piece) }));
        }
        Ok(piece)
    }

    pub fn shrink(&self, exec: u64, size: u64) -> Result<()> {
        if size == 0 {
            return Err(Error::SizeZero);
        }
        let _inside = fork_lock::enter();
        let mut arenas = self.lock()?;
        let (number, place, len) = find(&arenas, exec)?;
        if arenas[number].is_trampoline(place) {
            return Err(Error::Region);
        }
        let new = size.checked_next_multiple_of(GRANULE).filter(|new| *new <= len).ok_or(Error::TooLarge)?;
        arenas[number].shrink(place, new);
        Ok(())
    }

    /// Frees a piece. If the allocator no longer needs the piece's region, returns the region's address, and the caller must
    /// release the region.
    pub fn free(&self, source: &impl Source, exec: u64) -> Result<Option<u64>> {
        if self.is_spare(exec) {
            return Err(Error::Region);
        }
        let _inside = fork_lock::enter();
        let mut arenas = self.lock()?;
        free_in(source, &mut arenas, exec)
    }

    /// Does the same if the piece has a trampoline. Otherwise, the call has no effect.
    pub fn free_trampoline(&self, source: &impl Source, exec: u64) -> Result<Option<u64>> {
        if self.is_spare(exec) {
            return Ok(None);
        }
        let _inside = fork_lock::enter();
        let mut copies = self.copies.lock_in_time().ok_or(Error::Timeout)?;
        if let Some(len) = copies.owned_len(exec) {
            source.unregister(exec, len);
            copies.free(exec);
            return Ok(None);
        }
        drop(copies);
        let mut arenas = self.lock()?;
        let is_trampoline = |arena: &Arena| arena.place(exec).is_some_and(|place| arena.is_trampoline(place));
        match arenas.iter().any(is_trampoline) {
            true => free_in(source, &mut arenas, exec),
            false => Ok(None),
        }
    }
}

/// Frees the piece that begins at an address: see `Allocator::free`.
fn free_in(source: &impl Source, arenas: &mut Vec<Arena>, exec: u64) -> Result<Option<u64>> {
    let (number, place, len) = find(arenas, exec)?;
    source.unregister(exec, len);
    let arena = &mut arenas[number];
    arena.end(place);
    if arena.is_empty() {
        // One empty region is kept for later code. Only a region with the usual maximum length is kept.
        let is_spare = |other: &Arena| other.is_empty() && other.max_len == MAX_LENS[0];
        if !is_spare(arena) || arenas.iter().filter(|other| is_spare(other)).count() > 1 {
            return Ok(Some(arenas.remove(number).exec));
        }
    }
    let arena = &mut arenas[number];
    for range in arena.unused() {
        if source.discard(arena.exec + range.start, range.end - range.start).is_ok() {
            arena.give_back(range);
        }
    }
    Ok(None)
}

/// Finds the piece that begins at an address. Returns the index of its region, its offset in the region, and its length.
fn find(arenas: &[Arena], exec: u64) -> Result<(usize, u64, u64)> {
    let of = |(number, arena): (usize, &Arena)| {
        let place = arena.place(exec)?;
        Some((number, place, arena.len_of(place)?))
    };
    arenas.iter().enumerate().find_map(of).ok_or(Error::Region)
}

/// Takes a piece from an existing region.
fn found(source: &impl Source, arenas: &mut [Arena], wanted: Wanted) -> Option<CodeRegion> {
    let attempts = [Arena::reuse, Arena::begin];
    let found = attempts.into_iter().find_map(|attempt| take(source, arenas, wanted, attempt));
    found.or_else(|| grown(source, arenas, wanted))
}

/// Takes a piece from the first region for which `attempt` succeeds.
fn take(
    source: &impl Source,
    arenas: &mut [Arena],
    wanted: Wanted,
    attempt: impl Fn(&mut Arena, u64, u64) -> Option<u64>,
) -> Option<CodeRegion> {
    arenas.iter_mut().filter(|arena| wanted.is_met_by(arena)).find_map(|arena| {
        let place = attempt(arena, wanted.len, wanted.alignment)?;
        for chunk in arena.missing(place, wanted.len) {
            if source.provide(arena.exec + chunk, CHUNK).is_err() {
                arena.end(place);
                return None;
            }
            arena.restored(chunk);
        }
        if wanted.trampoline {
            arena.mark_trampoline(place);
        }
        Some(CodeRegion { exec: arena.exec + place, write: arena.write + place, size: wanted.len })
    })
}

/// Makes a region larger, and takes a piece from this region.
fn grown(source: &impl Source, arenas: &mut [Arena], wanted: Wanted) -> Option<CodeRegion> {
    take(source, arenas, wanted, |arena, len, alignment| {
        let needed = arena.len_for(len, alignment)?.next_multiple_of(CHUNK).min(arena.max_len);
        let generous = needed.max(arena.len + arena.len.min(GROWTH_MAX)).min(arena.max_len);
        let to = [generous, needed].into_iter().find(|to| source.grow(arena.exec, *to).is_ok())?;
        arena.len = to;
        arena.begin(len, alignment)
    })
}

/// Makes a region, and takes a piece from this region.
fn created(source: &impl Source, arenas: &mut Vec<Arena>, wanted: Wanted) -> Result<CodeRegion> {
    let mut made = Err(Error::NoMemory);
    for max_len in MAX_LENS {
        let (size, max_size) = (wanted.len.max(FIRST_LEN), max_len.max(wanted.len.next_multiple_of(CHUNK)));
        let options = RegionOptions { size, max_size, near: wanted.near, ..RegionOptions::default() };
        let pieces = Arena::no_pieces(max_size).map_err(|_| Error::NoMemory);
        made = pieces.and_then(|pieces| {
            let region = source.create(&options)?;
            Ok(Arena::new(region, max_size, wanted.named, pieces))
        });
        if made.is_ok() {
            break;
        }
    }
    arenas.push(made?);
    let last = arenas.len() - 1;
    take(source, &mut arenas[last..], wanted, Arena::begin).ok_or(Error::NoMemory)
}
