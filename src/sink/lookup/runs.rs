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
use crate::registry::ids::slot_of;
use crate::sys::mapping::Table;
use crate::sys::readers::Readers;
use crate::sys::reserve;
use crate::sys::sort::sort_by_key;

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
    run: &'a Run,
    entry: &'a Entry,
}

impl<'a> Found<'a> {
    pub fn addr(&self) -> u64 {
        self.entry.addr
    }

    pub fn size(&self) -> u64 {
        self.entry.size.into()
    }

    pub fn name(&self) -> &'a [u8] {
        let at = self.entry.name_at as usize;
        self.run.names.get(at..at + usize::from(self.entry.name_len)).unwrap_or_default()
    }

    pub fn info(&self) -> Info<'a> {
        let with_len = self.run.infos.get(self.entry.info_at as usize * INFO_ALIGN..);
        let parts = with_len.and_then(|bytes| bytes.split_first_chunk());
        let info = parts.and_then(|(len, rest)| rest.get(..u32::from_ne_bytes(*len) as usize));
        Info::new(info.unwrap_or_default())
    }

    /// Whether the info contains lines or inlined functions.
    pub fn has_source(&self) -> bool {
        self.entry.has_source
    }
}

/// Calls `body` with the live code that contains the address. `None` if no code contains it. A signal handler may call this
/// function, if `body` may run in a signal handler.
pub fn at<T>(addr: u64, body: impl FnOnce(Found<'_>) -> T) -> Option<T> {
    let _reader = READERS.enter();
    // SAFETY: a list that was published stays valid until no reader is left that could have loaded its address.
    let list = unsafe { PUBLISHED.load(Ordering::SeqCst).as_ref() }?;
    list.iter().find_map(|run| run.at(addr)).map(body)
}

/// An entry takes half a cache line. A search among much code reads only entries and names, so that these stay in the
/// processor's caches.
#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    id: u64,
    size: u32,
    name_at: u32,
    /// Where the length of the info begins in `Run::infos`, in units of `INFO_ALIGN`. The info follows.
    info_at: u32,
    name_len: u16,
    has_source: bool,
}

const INFO_ALIGN: usize = 16;

/// Functions in the order of their addresses.
#[derive(Debug, Default)]
struct Run {
    entries: Table<Entry>,
    names: Table<u8>,
    infos: Table<u8>,
    /// A bit for each entry, which is set once the code has ended. Empty in the fresh code.
    ended: Vec<AtomicU64>,
    ended_count: AtomicUsize,
    /// For each part of the run's addresses, the number of the first entry in this part or after it. A part has
    /// `1 << part_bits` bytes, so that most parts have few entries. Empty in the fresh code.
    parts: Table<u32>,
    part_bits: u32,
}

impl Run {
    fn push(&mut self, (addr, size): (u64, u64), id: u64, name: &[u8], info: Info<'_>) -> io::Result<()> {
        let no_room = |_| io::ErrorKind::OutOfMemory;
        let parts = info.parts();
        let entry = Entry {
            addr,
            id,
            size: size.try_into().map_err(no_room)?,
            name_at: self.names.len().try_into().map_err(no_room)?,
            info_at: (self.infos.len() / INFO_ALIGN).try_into().map_err(no_room)?,
            name_len: name.len().try_into().map_err(no_room)?,
            has_source: parts.lines.is_some() || parts.inlines.is_some(),
        };
        let info = info.bytes();
        let info_len = u32::try_from(info.len()).map_err(no_room)?;
        let room = room_for(info);
        self.entries.try_reserve(1)?;
        self.names.try_reserve(name.len())?;
        self.infos.try_reserve(room)?;
        self.entries.push(entry);
        self.names.extend_from_slice(name);
        let padding = room - size_of::<u32>() - info.len();
        for bytes in [&info_len.to_ne_bytes()[..], info, &[0; INFO_ALIGN][..padding]] {
            self.infos.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Divides the addresses of the run into as many parts as it has entries, or fewer.
    fn divide(&mut self) -> io::Result<()> {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else { return Ok(()) };
        let (first, span) = (first.addr, last.addr - first.addr);
        self.part_bits = (0..u64::BITS).find(|bits| span >> bits <= self.entries.len() as u64).unwrap_or_default();
        let count = (span >> self.part_bits) as usize + 2;
        self.parts.try_reserve(count)?;
        for (number, entry) in self.entries.iter().enumerate() {
            let part = ((entry.addr - first) >> self.part_bits) as usize;
            (self.parts.len()..=part).for_each(|_| self.parts.push(number as u32));
        }
        (self.parts.len()..count).for_each(|_| self.parts.push(self.entries.len() as u32));
        let words = self.entries.len().div_ceil(64);
        self.ended.try_reserve_exact(words)?;
        self.ended.resize_with(words, AtomicU64::default);
        Ok(())
    }

    fn at(&self, addr: u64) -> Option<Found<'_>> {
        let offset = addr.checked_sub(self.entries.first()?.addr)?;
        let part = usize::try_from(offset >> self.part_bits).ok()?.min(self.parts.len().checked_sub(2)?);
        let (from, to) = (*self.parts.get(part)? as usize, *self.parts.get(part + 1)? as usize);
        let number = (from + self.entries.get(from..to)?.partition_point(|entry| entry.addr <= addr)).checked_sub(1)?;
        let entry = self.entries.get(number)?;
        let is_here = addr - entry.addr < entry.size.into() && !self.has_ended(number);
        is_here.then_some(Found { run: self, entry })
    }

    fn has_ended(&self, number: usize) -> bool {
        self.ended.get(number / 64).is_some_and(|word| word.load(Ordering::Acquire) >> (number % 64) & 1 != 0)
    }

    /// The entry of code that has not ended, and its number.
    fn of_id(&self, id: u64, addr: u64) -> Option<(usize, Found<'_>)> {
        let number = self.entries.partition_point(|entry| entry.addr < addr);
        let entry = self.entries.get(number).filter(|entry| entry.id == id && !self.has_ended(number))?;
        Some((number, Found { run: self, entry }))
    }

    fn live_count(&self) -> usize {
        self.entries.len() - self.ended_count.load(Ordering::Relaxed)
    }

    /// Whether more than half of the code has ended.
    fn is_sparse(&self) -> bool {
        2 * self.live_count() < self.entries.len()
    }

    /// Marks the code as ended. Returns false if this run does not have the code.
    fn end(&self, id: u64, addr: u64) -> bool {
        let Some((number, _)) = self.of_id(id, addr) else { return false };
        self.ended[number / 64].fetch_or(1 << (number % 64), Ordering::Release);
        self.ended_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Makes one run from several runs, of the entries for which `is_live` is true.
    fn merged(runs: &[&Run], is_live: impl Fn(&Run, usize) -> bool) -> io::Result<Run> {
        let mut order: Vec<(u64, Found<'_>)> = Vec::new();
        order.try_reserve_exact(runs.iter().map(|run| run.entries.len()).sum())?;
        for run in runs {
            let live = run.entries.iter().enumerate().filter(|(number, _)| is_live(run, *number));
            order.extend(live.map(|(_, entry)| (entry.addr, Found { run, entry })));
        }
        sort_by_key(&mut order, |(addr, _)| *addr);
        let mut merged = Run::default();
        merged.entries.try_reserve(order.len())?;
        merged.names.try_reserve(order.iter().map(|(_, found)| usize::from(found.entry.name_len)).sum())?;
        merged.infos.try_reserve(order.iter().map(|(_, found)| room_for(found.info().bytes())).sum())?;
        for (addr, found) in order {
            merged.push((addr, found.size()), found.entry.id, found.name(), found.info())?;
        }
        merged.divide()?;
        Ok(merged)
    }
}

/// How many bytes an info takes in `Run::infos`.
fn room_for(info: &[u8]) -> usize {
    (size_of::<u32>() + info.len()).next_multiple_of(INFO_ALIGN)
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
            Some(_) => _ = self.fresh.ended_count.fetch_add(1, Ordering::Relaxed),
            None => _ = self.runs.iter().any(|run| run.end(id, addr)),
        }
    }

    /// A copy of the info of code that has not ended.
    pub fn info_of(&self, id: u64) -> Option<Vec<u8>> {
        let Slot { addr, fresh, .. } = self.slot_with(id)?;
        let found = match self.fresh.entries.get(fresh as usize) {
            Some(entry) => Found { run: &self.fresh, entry },
            None => self.runs.iter().find_map(|run| run.of_id(id, addr))?.1,
        };
        reserve::copy_of(found.info().bytes()).ok()
    }

    /// Whether the entry with this number in the fresh code is the entry of live code.
    fn is_fresh(&self, id: u64, number: usize) -> bool {
        self.slot_with(id).is_some_and(|slot| slot.fresh == number as u32)
    }

    /// Whether there is code that threads cannot find yet, or much ended code.
    pub fn has_changes(&self) -> bool {
        !self.fresh.entries.is_empty() || self.runs.iter().any(|run| run.is_sparse())
    }

    /// Lets threads find the fresh code. If memory is short, the code stays fresh.
    pub fn publish(&mut self) -> io::Result<()> {
        // The fresh code, and as many runs as are merged with it.
        let (mut live, mut taken) = (self.fresh.live_count(), 0);
        for (number, run) in self.runs.iter().enumerate() {
            if run.live_count() < GROWTH * live || run.is_sparse() {
                live = self.fresh.live_count() + self.runs[..=number].iter().map(|run| run.live_count()).sum::<usize>();
                taken = number + 1;
            }
        }
        let mut parts = Vec::new();
        parts.try_reserve_exact(1 + taken)?;
        parts.push(&self.fresh);
        parts.extend(self.runs[..taken].iter().map(|run| &**run));
        let merged = Run::merged(&parts, |run, number| match ptr::eq(run, &self.fresh) {
            true => self.is_fresh(run.entries[number].id, number),
            false => !run.has_ended(number),
        })?;
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
        for (number, entry) in self.fresh.entries.iter().enumerate() {
            let slot =
                slots.get_mut(slot_of(entry.id)).filter(|slot| (slot.id, slot.fresh) == (entry.id, number as u32));
            slot.into_iter().for_each(|slot| slot.fresh = IN_RUN);
        }
        (self.runs, self.fresh) = (list, Run::default());
        self.free_replaced();
        Ok(())
    }

    /// Forgets all code.
    pub fn clear(&mut self) {
        (self.runs, self.fresh, self.slots) = (List::new(), Run::default(), Table::default());
        self.replace(ptr::null_mut());
        self.free_replaced();
    }

    /// Marks the code as ended for which `lives` is false.
    pub fn retain(&mut self, lives: impl Fn(u64, u64) -> bool) {
        for slot in 0..self.slots.len() {
            let Slot { id, addr, .. } = self.slots[slot];
            if id != 0 && !lives(id, addr) {
                self.end(id);
            }
        }
    }

    fn replace(&mut self, list: *mut List) {
        let old = PUBLISHED.swap(list, Ordering::SeqCst);
        if !old.is_null() {
            // SAFETY: `publish` has made the pointer from a box, and the swap has given this thread the only ownership.
            self.replaced.push_back((READERS.phase(), unsafe { Box::from_raw(old) }));
        }
    }

    /// Whether there are lists that threads may still be searching.
    pub fn has_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Frees the lists that no thread searches any more.
    pub fn free_replaced(&mut self) {
        if self.has_replaced() {
            (0..2).for_each(|_| READERS.advance());
        }
        let phase = READERS.phase();
        while self.replaced.front().is_some_and(|(then, _)| phase.wrapping_sub(*then) >= 2) {
            self.replaced.pop_front();
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.free_replaced();
        // Threads may still be searching the lists that are left.
        self.replaced.drain(..).for_each(|(_, list)| std::mem::forget(list));
    }
}
