//! Live code, sorted by address, in immutable runs that any thread can search without a lock.
//!
//! New code becomes a new run. Runs of similar size are merged, so a search visits few runs. Code that ends is only marked, and
//! disappears when its run is merged.

use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::format::code_info::Info;
use crate::sys::mapping::Table;
use crate::sys::readers::Readers;
use crate::sys::reserve;

/// Two neighbouring runs are merged if the older run has less than `GROWTH` times as many functions as the newer run.
const GROWTH: usize = 4;

/// The runs that threads search, the newest first.
type List = Vec<Arc<Run>>;

/// The list that threads search now. The pointer owns the list. After the last session has closed, the list stays.
static PUBLISHED: AtomicPtr<List> = AtomicPtr::new(ptr::null_mut());
static READERS: Readers = Readers::new();

/// Forgets threads that were searching in the parent at the time of a fork.
pub fn begin_in_child() {
    READERS.begin_in_child();
}

/// A piece of code that a search has found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub addr: u64,
    pub size: u64,
    pub name: &'a [u8],
    pub info: Info<'a>,
}

/// Calls `body` with the live code that contains the address. `None` if no code contains it. A signal handler may call this
/// function, if `body` may run in a signal handler.
pub fn at<T>(addr: u64, body: impl FnOnce(Found<'_>) -> T) -> Option<T> {
    let _reader = READERS.enter();
    // SAFETY: a list that was published stays valid until no reader is left that could have loaded its address.
    let list = unsafe { PUBLISHED.load(Ordering::SeqCst).as_ref() }?;
    list.iter().find_map(|run| run.at(addr)).map(body)
}

#[derive(Debug)]
struct Entry {
    addr: u64,
    size: u64,
    /// The id, or 0 once the code has ended.
    id: AtomicU64,
    /// Where the name begins in `Run::texts`. The info follows the name.
    at: usize,
    name_len: u32,
    info_len: u32,
}

/// Functions in the order of their addresses.
#[derive(Debug, Default)]
struct Run {
    entries: Vec<Entry>,
    texts: Vec<u8>,
    ended: AtomicUsize,
}

impl Run {
    fn push(&mut self, (addr, size): (u64, u64), id: u64, name: &[u8], info: Info<'_>) -> io::Result<()> {
        let info = info.bytes();
        self.entries.try_reserve(1)?;
        self.texts.try_reserve(name.len() + info.len())?;
        let (at, name_len, info_len) = (self.texts.len(), name.len() as u32, info.len() as u32);
        self.entries.push(Entry { addr, size, id: AtomicU64::new(id), at, name_len, info_len });
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(info);
        Ok(())
    }

    fn found(&self, entry: &Entry) -> Option<Found<'_>> {
        let name_end = entry.at + entry.name_len as usize;
        let name = self.texts.get(entry.at..name_end)?;
        let info = Info::new(self.texts.get(name_end..name_end + entry.info_len as usize)?);
        Some(Found { addr: entry.addr, size: entry.size, name, info })
    }

    fn at(&self, addr: u64) -> Option<Found<'_>> {
        let after = self.entries.partition_point(|entry| entry.addr <= addr);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let is_here = addr - entry.addr < entry.size && entry.id.load(Ordering::Acquire) != 0;
        is_here.then(|| self.found(entry)).flatten()
    }

    fn of_id(&self, id: u64, addr: u64) -> Option<&Entry> {
        let first = self.entries.partition_point(|entry| entry.addr < addr);
        let same = self.entries.get(first..)?.iter().take_while(|entry| entry.addr == addr);
        same.into_iter().find(|entry| entry.id.load(Ordering::Relaxed) == id)
    }

    /// The entries of code that has not ended.
    fn live(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.id.load(Ordering::Relaxed) != 0)
    }

    fn live_count(&self) -> usize {
        self.entries.len() - self.ended.load(Ordering::Relaxed)
    }

    /// Marks the code as ended. Returns false if this run does not have the code.
    fn end(&self, id: u64, addr: u64) -> bool {
        let entry = self.of_id(id, addr);
        entry.into_iter().for_each(|entry| entry.id.store(0, Ordering::Release));
        self.ended.fetch_add(usize::from(entry.is_some()), Ordering::Relaxed);
        entry.is_some()
    }

    /// Makes one run from the live code of several runs.
    fn merged(runs: &[&Run]) -> io::Result<Run> {
        let mut order: Vec<(u64, &Run, &Entry)> = Vec::new();
        order.try_reserve_exact(runs.iter().map(|run| run.live_count()).sum())?;
        for run in runs {
            for entry in run.live() {
                order.try_reserve(1)?;
                order.push((entry.addr, run, entry));
            }
        }
        order.sort_unstable_by_key(|&(addr, ..)| addr);
        let mut merged = Run::default();
        merged.entries.try_reserve_exact(order.len())?;
        let len = |entry: &Entry| (entry.name_len + entry.info_len) as usize;
        merged.texts.try_reserve_exact(order.iter().map(|(_, _, entry)| len(entry)).sum())?;
        for (addr, run, entry) in order {
            let Some(Found { size, name, info, .. }) = run.found(entry) else { continue };
            merged.push((addr, size), entry.id.load(Ordering::Relaxed), name, info)?;
        }
        Ok(merged)
    }
}

/// Where the writer finds the code with an id. The index in `Runs::slots` is the slot of the id.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The id, or 0 if no code has this slot.
    id: u64,
    addr: u64,
    /// The number of the code's entry in the fresh code, or `IN_RUN`.
    fresh: u32,
}

const IN_RUN: u32 = u32::MAX;

/// The slot of an id (`registry::ids`). Free slots are used again, so their numbers stay small.
fn slot_of(id: u64) -> usize {
    id as u32 as usize
}

/// The writer's view of the runs.
#[derive(Debug, Default)]
pub struct Runs {
    /// Code that no list contains yet, in the order of its registration.
    fresh: Run,
    /// The newest run first.
    runs: List,
    slots: Table<Slot>,
    /// Lists that threads may still be searching, each with the phase of `READERS` in which the list was replaced.
    replaced: VecDeque<(usize, Box<List>)>,
}

impl Runs {
    /// Adds code, which must not have an entry yet. If memory is short, the code is not added.
    pub fn add(&mut self, place: (u64, u64), id: u64, name: &[u8], info: Info<'_>) -> io::Result<()> {
        let slot = slot_of(id);
        if let Some(other) = self.slots.get(slot).filter(|slot| slot.id != 0) {
            self.end(other.id);
        }
        if slot >= self.slots.len() {
            self.slots.try_reserve(slot + 1 - self.slots.len())?;
            (self.slots.len()..=slot).for_each(|_| self.slots.push(Slot::default()));
        }
        let fresh = u32::try_from(self.fresh.entries.len()).ok().filter(|number| *number != IN_RUN);
        self.fresh.push(place, id, name, info)?;
        self.slots[slot] = Slot { id, addr: place.0, fresh: fresh.ok_or(io::ErrorKind::OutOfMemory)? };
        Ok(())
    }

    fn slot_with(&self, id: u64) -> Option<Slot> {
        self.slots.get(slot_of(id)).copied().filter(|slot| slot.id == id)
    }

    /// The address of code that has not ended. `None` if the id is unknown.
    pub fn addr_of(&self, id: u64) -> Option<u64> {
        self.slot_with(id).map(|slot| slot.addr)
    }

    /// Marks code as ended.
    pub fn end(&mut self, id: u64) {
        let Some(Slot { addr, fresh, .. }) = self.slot_with(id) else { return };
        self.slots[slot_of(id)] = Slot::default();
        match self.fresh.entries.get(fresh as usize) {
            Some(entry) => {
                entry.id.store(0, Ordering::Relaxed);
                self.fresh.ended.fetch_add(1, Ordering::Relaxed);
            }
            None => _ = self.runs.iter().any(|run| run.end(id, addr)),
        }
    }

    /// A copy of the info of code that has not ended.
    pub fn info_of(&self, id: u64) -> Option<Vec<u8>> {
        let Slot { addr, fresh, .. } = self.slot_with(id)?;
        let found = match self.fresh.entries.get(fresh as usize) {
            Some(entry) => self.fresh.found(entry),
            None => self.runs.iter().find_map(|run| run.found(run.of_id(id, addr)?)),
        };
        reserve::copy_of(found?.info.bytes()).ok()
    }

    pub fn has_fresh(&self) -> bool {
        !self.fresh.entries.is_empty()
    }

    /// Lets threads find the fresh code. If memory is short, the code stays fresh.
    pub fn publish(&mut self) -> io::Result<()> {
        self.free_replaced();
        let is_sparse = |run: &Arc<Run>| 2 * run.live_count() < run.entries.len();
        if !self.has_fresh() && !self.runs.iter().any(is_sparse) {
            return Ok(());
        }
        // The fresh code, and as many runs as are merged with it.
        let (mut live, mut taken) = (self.fresh.live_count(), 0);
        for (number, run) in self.runs.iter().enumerate() {
            if run.live_count() < GROWTH * live || is_sparse(run) {
                live = self.fresh.live_count() + self.runs[..=number].iter().map(|run| run.live_count()).sum::<usize>();
                taken = number + 1;
            }
        }
        let mut parts = Vec::new();
        parts.try_reserve_exact(1 + taken)?;
        parts.push(&self.fresh);
        parts.extend(self.runs[..taken].iter().map(|run| &**run));
        let merged = Run::merged(&parts)?;
        let mut list = List::new();
        list.try_reserve_exact(1 + self.runs.len() - taken)?;
        if !merged.entries.is_empty() {
            list.push(Arc::new(merged));
        }
        list.extend(self.runs[taken..].iter().cloned());
        let mut published = List::new();
        published.try_reserve_exact(list.len())?;
        published.extend(list.iter().cloned());
        self.replaced.try_reserve(1)?;
        self.replace(Box::into_raw(Box::new(published)));
        let slots = &mut self.slots;
        self.fresh.live().for_each(|entry| slots[slot_of(entry.id.load(Ordering::Relaxed))].fresh = IN_RUN);
        (self.runs, self.fresh) = (list, Run::default());
        Ok(())
    }

    /// Forgets all code.
    pub fn clear(&mut self) {
        (self.runs, self.fresh, self.slots) = (List::new(), Run::default(), Table::default());
        self.replace(ptr::null_mut());
    }

    fn replace(&mut self, list: *mut List) {
        let old = PUBLISHED.swap(list, Ordering::SeqCst);
        if !old.is_null() {
            // SAFETY: `publish` has made the pointer from a box, and the swap has given this thread the only ownership.
            self.replaced.push_back((READERS.phase(), unsafe { Box::from_raw(old) }));
        }
    }

    /// Frees the lists that no thread searches any more.
    fn free_replaced(&mut self) {
        if !self.replaced.is_empty() {
            READERS.advance();
        }
        let phase = READERS.phase();
        while self.replaced.front().is_some_and(|(then, _)| phase.wrapping_sub(*then) >= 2) {
            self.replaced.pop_front();
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        (0..2).for_each(|_| self.free_replaced());
        // Threads may still be searching the lists that are left.
        self.replaced.drain(..).for_each(|(_, list)| std::mem::forget(list));
    }
}
