//! Tracks which code is in which of the objects that debuggers read. New code is put into small objects, which are merged
//! later.
//!
//! For each address, a debugger searches all objects. So the more objects there are, the longer a debugger takes to read a new
//! object.

use std::io;
use std::time::{Duration, Instant};

use super::group::{exchange, Entry, Group, WAYS, WINDOW};
use crate::format::code_info::Info;
use crate::format::elf::object::{self, FUNCTIONS_MAX, SPAN_MAX};
use crate::format::name_and_file::without_place;
use crate::registry::ids::slot_of;
use crate::sys::debugger::Listed;
use crate::sys::mapping::Table;
use crate::sys::reserve;
use crate::sys::sort::{sort, sort_by_key};

/// Objects of at most this many functions are not split.
const PART_LEAST: usize = 64;
/// How long the parts of a split object stay separate.
const PARTED: Duration = Duration::from_secs(5);
/// Fresh code is put into an object at once if it has this many functions, or this many bytes of names and records.
const ENOUGH: usize = 4096;
const ENOUGH_BYTES: usize = 2 << 20;
/// After the fresh code is put into objects, each of its buffers that takes at most this many bytes is kept for later code. All
/// buffers are freed if no more code is expected, or if the fresh code had fewer than `ENOUGH / 8` functions and fewer than
/// `ENOUGH_BYTES / 8` bytes.
const KEPT_BYTES: usize = 4 << 20;

/// Code that became live.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    pub id: u64,
    pub addr: u64,
    pub size: u64,
    pub name: &'a [u8],
    /// `None` if the code has moved and keeps its former info.
    pub info: Option<Info<'a>>,
}

#[derive(Debug, Default)]
pub struct Objects {
    /// Fresh code: code that is in no object yet.
    fresh: Group,
    groups: Vec<Option<Group>>,
    /// Where the entry of each id is. The index in `places` is the slot of the id.
    places: Table<Place>,
    /// The number of live functions, in objects and in the fresh code.
    live: usize,
    dead: usize,
    /// Whether an object was removed from the list, and no object has been added since.
    has_lost: bool,
}

/// Where the entry of an id is: the number of the group, and the number of the entry in the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// The id, or 0 if there is no entry.
    id: u64,
    group: u32,
    number: u32,
}

/// The number of the group of fresh code.
const FRESH: u32 = u32::MAX;

impl Objects {
    /// Adds code to the fresh code. If the id already has an entry, removes this entry. If there is no memory, debuggers do not
    /// find the code.
    pub fn add(&mut self, code: &Code<'_>) {
        let old = code.info.is_none().then(|| self.info_of(code.id)).flatten();
        self.remove(code.id);
        let info = code.info.or(old.as_deref().map(Info::new)).unwrap_or_default();
        if code.addr % WINDOW + code.size > SPAN_MAX {
            // The code is too large for an object.
            return;
        }
        let slot = slot_of(code.id);
        if let Some(other) = self.places.get(slot).filter(|place| place.id != 0) {
            self.remove(other.id);
        }
        if slot >= self.places.len() {
            if self.places.try_reserve(slot + 1 - self.places.len()).is_err() {
                return;
            }
            (self.places.len()..=slot).for_each(|_| self.places.push(Place::default()));
        }
        let number = self.fresh.entries.len() as u32;
        let Code { id, addr, size, name, .. } = *code;
        // A name may end with a file and a line. Debuggers get only the part before the file, because users of a debugger type
        // only this part after `break`. The line table has the file and the line.
        let name = without_place(name, info);
        let entry = Entry { id, addr, size, at: 0, name_len: 0, info_len: 0, is_apart: false };
        if self.fresh.push(entry, name, info).is_some() {
            self.places[slot] = Place { id, group: FRESH, number };
            self.live += 1;
        }
    }

    pub fn live_count(&self) -> usize {
        self.live
    }

    /// The address of the code with this id. `None` if the id is unknown.
    pub fn addr_of(&self, id: u64) -> Option<u64> {
        self.entry_of(id).map(|(_, entry)| entry.addr)
    }

    fn place_of(&self, id: u64) -> Option<Place> {
        self.places.get(slot_of(id)).copied().filter(|place| place.id == id)
    }

    /// Whether the id's current entry is in `group` and has this `number`.
    fn is_at(&self, id: u64, group: u32, number: usize) -> bool {
        self.place_of(id) == Some(Place { id, group, number: number as u32 })
    }

    fn entry_of(&self, id: u64) -> Option<(&Group, &Entry)> {
        let Place { group, number, .. } = self.place_of(id)?;
        let group = if group == FRESH { &self.fresh } else { self.groups.get(group as usize)?.as_ref()? };
        Some((group, group.entries.get(number as usize)?))
    }

    fn info_of(&self, id: u64) -> Option<Vec<u8>> {
        let (group, entry) = self.entry_of(id)?;
        let (_, info) = group.text_of(entry);
        reserve::copy_of(info.bytes()).ok()
    }

    /// Removes code that has ended.
    pub fn remove(&mut self, id: u64) {
        let Some(place) = self.place_of(id) else { return };
        self.places[slot_of(id)] = Place::default();
        self.live -= 1;
        if place.group == FRESH {
            self.fresh.dead += 1;
        } else if let Some(group) = self.groups.get_mut(place.group as usize).and_then(Option::as_mut) {
            group.dead += 1;
            self.dead += 1;
        }
    }

    /// The contents of the objects in the list.
    #[cfg(test)]
    pub fn images(&self) -> impl Iterator<Item = &[u8]> {
        self.groups.iter().flatten().filter_map(|group| Some(group.listed.as_ref()?.image()))
    }

    /// The number of functions that are in no object yet. The number includes ended functions that `forget_dead_fresh` has not
    /// removed yet.
    pub fn fresh_count(&self) -> usize {
        self.fresh.entries.len()
    }

    /// Whether the present amount of fresh code, multiplied by `times`, is enough for an object.
    pub fn is_fresh_enough(&self, times: usize) -> bool {
        self.fresh.entries.len() * times >= ENOUGH || self.fresh.texts.len() * times >= ENOUGH_BYTES
    }

    /// Whether more than half of the fresh code has ended.
    pub fn is_fresh_dead(&self) -> bool {
        2 * self.fresh.dead > self.fresh.entries.len()
    }

    /// Removes ended functions from the fresh code, and returns their number.
    pub fn forget_dead_fresh(&mut self) -> usize {
        let (count, mut live, mut text_end) = (self.fresh.entries.len(), 0, 0);
        for number in 0..count {
            let entry = self.fresh.entries[number];
            if !self.is_at(entry.id, FRESH, number) {
                continue;
            }
            let text = entry.at..entry.at + (entry.name_len + entry.info_len) as usize;
            let len = text.len();
            self.fresh.texts.copy_within(text, text_end);
            self.fresh.entries[live] = Entry { at: text_end, ..entry };
            self.places[slot_of(entry.id)].number = live as u32;
            (live, text_end) = (live + 1, text_end + len);
        }
        self.fresh.entries.truncate(live);
        self.fresh.texts.truncate(text_end);
        debug_assert_eq!(count - live, self.fresh.dead);
        self.fresh.dead = 0;
        count - live
    }

    /// Whether objects contain code that has ended.
    pub fn have_dead(&self) -> bool {
        self.dead > 0
    }

    /// Replaces each object that contains ended code by an object without the ended code. If `in_parts` is true, splits large
    /// objects, so that only a small object has to be replaced when more code ends. The host waits while a debugger reads the
    /// new object.
    pub fn take_out_dead(&mut self, in_parts: bool) -> io::Result<()> {
        for number in 0..self.groups.len() {
            if self.groups[number].as_ref().is_some_and(|group| group.dead > 0) {
                self.replace(&[number], if in_parts { WAYS } else { 1 })?;
            }
        }
        Ok(())
    }

    /// Removes all objects from the list.
    pub fn clear(&mut self) {
        let had_any = self.groups.iter().any(Option::is_some);
        *self = Objects { has_lost: had_any, ..Objects::default() };
    }

    /// Makes objects from the fresh code, and merges objects if there are many. Returns how many functions were put into
    /// objects. If `expects_more` is true, the buffers of the fresh code may be kept for the code that comes next.
    pub fn list_fresh(&mut self, expects_more: bool) -> io::Result<usize> {
        let is_live = |(number, entry): &(usize, &Entry)| self.is_at(entry.id, FRESH, *number);
        let mut live = Vec::new();
        live.try_reserve(self.fresh.entries.len())?;
        live.extend(self.fresh.entries.iter().enumerate().filter(is_live).map(|(_, entry)| *entry));
        sort_by_key(&mut live, |entry| entry.addr);
        for part in live.chunk_by(|one, next| one.addr / WINDOW == next.addr / WINDOW) {
            for part in part.chunks(FUNCTIONS_MAX) {
                let group = Group::of(part.iter().map(|entry| (&self.fresh, entry)))?;
                self.make_way_for(&group)?;
                self.put(group)?;
            }
        }
        let kept = if expects_more && self.is_fresh_enough(8) { KEPT_BYTES } else { 0 };
        self.fresh.entries.clear(kept);
        self.fresh.texts.clear(kept);
        self.fresh.dead = 0;
        self.merge()?;
        Ok(live.len())
    }

    /// Merges objects, as long as `WAYS` objects have about the same size.
    fn merge(&mut self) -> io::Result<()> {
        let now = Instant::now();
        loop {
            // After the sort, groups with the same window and the same level are neighbours, and the smallest of these groups
            // come first.
            let mut all = Vec::new();
            all.try_reserve(self.groups.len())?;
            for (number, group) in self.groups.iter().enumerate() {
                if let Some(group) = group.as_ref().filter(|group| group.whole_from.is_none_or(|from| now >= from)) {
                    all.push((group.window(), group.level(), group.entries.len(), number));
                }
            }
            sort(&mut all);
            let mut merged = false;
            let same_size = all.chunk_by(|one, next| (one.0, one.1) == (next.0, next.1));
            for same in same_size.filter(|same| same.len() >= WAYS) {
                let mut sum = 0;
                let fitting = same.iter().take_while(|(_, _, len, _)| {
                    sum += len;
                    sum <= FUNCTIONS_MAX
                });
                let numbers: Vec<usize> = fitting.map(|&(_, _, _, number)| number).collect();
                if numbers.len() >= WAYS / 2 {
                    self.replace(&numbers, 1)?;
                    merged = true;
                }
            }
            if !merged {
                return Ok(());
            }
        }
    }

    /// Adds an empty object and removes it again. gdb removes breakpoints from the code of a removed object only when another
    /// object is added.
    pub fn settle_breakpoints(&mut self) {
        if std::mem::take(&mut self.has_lost) {
            if let Some(listed) = Listed::new(&object::empty()) {
                exchange(Vec::new(), std::iter::once(&listed));
                exchange(vec![listed], [].iter());
            }
        }
    }

    /// Replaces some groups by one group that has their live code, or by up to `parts` groups if there is much live code.
    fn replace(&mut self, numbers: &[usize], parts: usize) -> io::Result<()> {
        let mut live = Vec::new();
        for &number in numbers {
            let Some(group) = &self.groups[number] else { continue };
            live.try_reserve(group.entries.len())?;
            let mut is_apart = false;
            for (at, entry) in group.entries.iter().enumerate() {
                if self.is_at(entry.id, number as u32, at) {
                    live.push((number, Entry { is_apart: entry.is_apart || is_apart, ..*entry }));
                }
                // If this code has ended, other code may be registered at the same address. So no section may span the gap
                // before the next function (`is_apart`).
                is_apart = !self.is_at(entry.id, number as u32, at);
            }
        }
        sort_by_key(&mut live, |(_, entry)| entry.addr);
        let mut made = Vec::new();
        for part in live.chunks(live.len().div_ceil(parts).max(PART_LEAST)) {
            let of = |number: usize| self.groups[number].as_ref();
            let mut group = Group::of(part.iter().filter_map(|(number, entry)| Some((of(*number)?, entry))))?;
            self.part(&mut group, numbers)?;
            group.whole_from = (parts > 1).then(|| Instant::now() + PARTED);
            let image = group.object().ok_or(io::ErrorKind::OutOfMemory)?;
            group.listed = Some(Listed::new(&image).ok_or(io::ErrorKind::OutOfMemory)?);
            made.try_reserve(1)?;
            made.push(group);
        }
        let mut old = Vec::new();
        old.try_reserve_exact(numbers.len())?;
        self.groups.try_reserve(made.len())?;
        // From here on nothing can fail.
        for &number in numbers {
            if let Some(mut group) = self.groups[number].take() {
                self.dead -= group.dead;
                old.extend(group.listed.take());
            }
        }
        let heard_of_new = exchange(old, made.iter().filter_map(|group| group.listed.as_ref()));
        self.has_lost = !heard_of_new;
        made.into_iter().for_each(|group| self.settle(group));
        Ok(())
    }

    /// Makes sure that no section of a new group spans code of other groups. `without` lists the groups that the new group
    /// replaces, and whose code is ignored.
    fn part(&self, group: &mut Group, without: &[usize]) -> io::Result<()> {
        let range = group.range();
        let is_near = |other: &Group| other.range().start < range.end && range.start < other.range().end;
        let near = self.groups.iter().enumerate().filter(|(number, _)| !without.contains(number));
        let near = near.filter_map(|(_, other)| other.as_ref()).filter(|other| is_near(other));
        let mut others: Vec<&Group> = Vec::new();
        others.try_reserve(near.clone().count())?;
        others.extend(near);
        if others.is_empty() {
            return Ok(());
        }
        for number in 1..group.entries.len() {
            // Most functions follow each other without a gap.
            let Some(gap) = group.gap_before(number) else { continue };
            let has_code = |other: &&Group| other.range().start < gap.end && !other.within(&gap).is_empty();
            group.entries[number].is_apart = others.iter().any(has_code);
        }
        Ok(())
    }

    /// Makes sure that no section of the existing groups spans code of a new group.
    fn make_way_for(&mut self, group: &Group) -> io::Result<()> {
        let range = group.range();
        for number in 0..self.groups.len() {
            let Some(other) = &mut self.groups[number] else { continue };
            let (other_range, mut is_changed) = (other.range(), false);
            if range.start < other_range.end && other_range.start < range.end {
                group.within(&other_range).iter().for_each(|code| is_changed |= other.makes_way_for(code));
            }
            if is_changed {
                self.replace(&[number], 1)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, mut group: Group) -> io::Result<()> {
        self.part(&mut group, &[])?;
        let Some(image) = group.object() else {
            // There is no memory, or the code is too large for one object, so debuggers do not find the code.
            group.entries.iter().for_each(|entry| self.remove(entry.id));
            return Ok(());
        };
        group.listed = Some(Listed::new(&image).ok_or(io::ErrorKind::OutOfMemory)?);
        self.groups.try_reserve(1)?;
        exchange(Vec::new(), group.listed.iter());
        self.has_lost = false;
        self.settle(group);
        Ok(())
    }

    /// Adds a group. The caller must have reserved room for one more group in `groups`.
    fn settle(&mut self, group: Group) {
        let number = self.groups.iter().position(Option::is_none).unwrap_or(self.groups.len());
        if number == self.groups.len() {
            self.groups.push(None);
        }
        for (at, entry) in group.entries.iter().enumerate() {
            let place = &mut self.places[slot_of(entry.id)];
            // The group of fresh code has a copy of this entry until `list_fresh` clears that group. If `list_fresh` runs out
            // of memory first, the copy stays, so it is counted as dead.
            self.fresh.dead += usize::from(place.group == FRESH);
            *place = Place { id: entry.id, group: number as u32, number: at as u32 };
        }
        self.groups[number] = Some(group);
    }
}
