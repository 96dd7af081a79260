//! Tracks which code is live, and in which groups of pages this code is reported to valgrind.
//!
//! A group has one file. A page belongs to at most one group. Usually all pages of a function belong to the same group, so
//! that the function is in one file.
//!
//! Whenever code is registered in a page of a group, valgrind reads the whole group again. So the size of a group has a limit.
//! Two groups that have pages of one function are merged, unless the merged group would be too large. If the groups are not
//! merged, the function is in two files, each with the part of the function that lies in the pages of its group.
//!
//! Every page of a group has code. The host may unmap a page without code at any time, and valgrind would then forget the
//! whole file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::format::code_info::Info;
use crate::format::elf::valgrind_object::Content;
use crate::registry::ids::slot_of;
use crate::sys::sort::sort;

/// A group is extended to all pages of a function that crosses the group's boundary, if the extended group has at most this
/// many functions.
const FUNCTIONS_MAX: usize = 512;
/// A group is extended to the next page if code is registered there, and if the extended group has at most this many functions.
const NEIGHBOURS_MAX: usize = 32;

#[derive(Debug)]
pub struct Function {
    id: u64,
    pub size: u64,
    /// The name and the info of the function.
    text: Box<[u8]>,
    name_len: usize,
}

impl Function {
    /// Returns `None` if there is no memory.
    pub fn new(id: u64, size: u64, name: &[u8], info: Info<'_>) -> Option<Function> {
        let info = info.bytes();
        let mut text = Vec::new();
        text.try_reserve_exact(name.len() + info.len()).ok()?;
        text.extend_from_slice(name);
        text.extend_from_slice(info);
        Some(Function { id, size, text: text.into_boxed_slice(), name_len: name.len() })
    }

    #[cfg(test)]
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn name(&self) -> &[u8] {
        &self.text[..self.name_len]
    }

    pub fn info(&self) -> Info<'_> {
        Info::new(&self.text[self.name_len..])
    }
}

/// A group of pages. One file describes the code in these pages.
struct Group {
    end: u64,
    number: u32,
    /// The content of the group's file. New code is added to this content. `None` if code of the group has ended.
    content: Option<Content>,
}

/// Pages that have to be reported to valgrind, and the number of their file.
pub struct Due {
    pub pages: Range<u64>,
    pub number: u32,
    /// The previous content of the file, to which only the new code has to be added. `None` if all content has to be made
    /// again.
    pub content: Option<Content>,
}

/// All functions, and the groups of pages that they lie in.
pub struct Groups {
    page_size: u64,
    /// The functions by address. No two functions overlap.
    functions: BTreeMap<u64, Function>,
    /// The address of each function, indexed by the slot of its id. 0 if the slot has no function.
    places: Vec<u64>,
    /// The groups by the address of their first page.
    groups: BTreeMap<u64, Group>,
    /// Addresses of new functions that were not reported to valgrind yet. Some of these functions may have ended since.
    fresh: Vec<u64>,
    /// Groups with code that has ended since the group was last reported to valgrind.
    stale: BTreeSet<u64>,
    /// Stale groups that may have a page without code, and failed groups that have to be reported again.
    emptied: BTreeSet<u64>,
    /// Groups that could not be reported to valgrind. valgrind may still know the previous content of these groups.
    failed: BTreeSet<u64>,
    /// The file numbers of groups that no longer exist. valgrind may still know the files with these numbers.
    left: Vec<u32>,
    /// File numbers that can be used again, because valgrind no longer knows the files with these numbers.
    free: Vec<u32>,
    next_number: u32,
}

impl Groups {
    pub fn new(page_size: u64) -> Groups {
        Groups {
            page_size,
            functions: BTreeMap::new(),
            places: Vec::new(),
            groups: BTreeMap::new(),
            fresh: Vec::new(),
            stale: BTreeSet::new(),
            emptied: BTreeSet::new(),
            failed: BTreeSet::new(),
            left: Vec::new(),
            free: Vec::new(),
            next_number: 0,
        }
    }

    /// Forgets all code. The file numbers of all later groups are higher than all numbers used before this call.
    pub fn begin(&mut self) {
        *self = Groups { next_number: self.next_number, ..Groups::new(self.page_size) };
    }

    /// Adds code. If the id of the function has been used before, the caller must already have removed the code that had this
    /// id. If there is no memory, the code is ignored.
    pub fn add(&mut self, addr: u64, function: Function) {
        let Some(end) = addr.checked_add(function.size) else { return };
        let slot = slot_of(function.id);
        let more = (slot + 1).saturating_sub(self.places.len());
        if self.places.try_reserve(more).is_err() || self.fresh.try_reserve(1).is_err() {
            return;
        }
        while let Some(at) = self.overlapped(addr, end) {
            self.take_out(at);
        }
        if more > 0 {
            self.places.resize(slot + 1, 0);
        }
        self.places[slot] = addr;
        self.functions.insert(addr, function);
        self.fresh.push(addr);
    }

    /// The address of live code that overlaps this range.
    fn overlapped(&self, addr: u64, end: u64) -> Option<u64> {
        // Most new code has a higher address than all other code.
        self.functions.last_key_value().filter(|(at, last)| *at + last.size > addr)?;
        let (at, function) = self.functions.range(..end).next_back()?;
        (at + function.size > addr).then_some(*at)
    }

    /// Removes code that has ended. Returns the address of the code, and its function.
    pub fn remove(&mut self, id: u64) -> Option<(u64, Function)> {
        let addr = *self.places.get(slot_of(id)).filter(|&&addr| addr != 0)?;
        let is_it = self.functions.get(&addr).is_some_and(|function| function.id == id);
        is_it.then(|| Some((addr, self.take_out(addr)?))).flatten()
    }

    fn take_out(&mut self, addr: u64) -> Option<Function> {
        let function = self.functions.remove(&addr)?;
        self.places[slot_of(function.id)] = 0;
        let pages = self.pages_of(addr, function.size);
        let is_emptied = pages.clone().step_by(self.page_size as usize).any(|page| !self.has_code(page));
        for start in self.touching(&pages) {
            if let Some(group) = self.groups.get_mut(&start) {
                group.content = None;
                self.stale.insert(start);
                if is_emptied {
                    self.emptied.insert(start);
                }
            }
        }
        Some(function)
    }

    fn has_code(&self, page: u64) -> bool {
        self.within(&(page..page + self.page_size)).next().is_some()
    }

    /// Removes the code of these pages that is no longer in memory, according to `is_there`. If any code is removed, the
    /// remaining code of these pages is treated as new code, so that it is reported again. Returns whether any code was
    /// removed. The pages must be in no group.
    pub fn end_unless(&mut self, pages: &Range<u64>, is_there: impl Fn(u64, u64) -> bool) -> bool {
        if is_there(pages.start, pages.end - pages.start) {
            return false;
        }
        let all: Vec<(u64, bool)> =
            self.within(pages).map(|(addr, function)| (addr, is_there(addr, function.size))).collect();
        let has_ended = all.iter().any(|(_, is_there)| !is_there);
        for (addr, is_there) in all.into_iter().filter(|_| has_ended) {
            match is_there {
                true => self.fresh.push(addr),
                false => drop(self.take_out(addr)),
            }
        }
        has_ended
    }

    /// Whether something has to be reported to valgrind at once: new code, or pages without code.
    pub fn has_urgent(&self) -> bool {
        !self.fresh.is_empty() || !self.emptied.is_empty()
    }

    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Whether some code could not be reported to valgrind.
    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Makes a group of pages that could not be reported to valgrind, so that these pages can be reported later. The group gets
    /// a new number, because valgrind may still know some of the pages by the old number.
    pub fn fail(&mut self, pages: &Range<u64>) {
        self.next_number += 1;
        self.groups.insert(pages.start, Group { end: pages.end, number: self.next_number, content: None });
        self.failed.insert(pages.start);
    }

    /// Makes all failed groups due again. The code of a failed group may have ended since the failure.
    pub fn try_again(&mut self) {
        self.emptied.extend(&self.failed);
    }

    fn pages_of(&self, addr: u64, size: u64) -> Range<u64> {
        let page = self.page_size;
        addr / page * page..(addr + size).checked_next_multiple_of(page).unwrap_or(u64::MAX / page * page)
    }

    /// The first page of each group that contains at least one of these pages.
    fn touching(&self, pages: &Range<u64>) -> Vec<u64> {
        let before = self.groups.range(..pages.end).rev().take_while(|(_, group)| group.end > pages.start);
        before.map(|(&start, _)| start).collect()
    }

    /// The functions that lie in these pages, at least in part, in the order of their addresses.
    pub fn within(&self, pages: &Range<u64>) -> impl Iterator<Item = (u64, &Function)> + Clone {
        let start = pages.start;
        let before = self.functions.range(..start).next_back().filter(|(addr, function)| *addr + function.size > start);
        before.into_iter().chain(self.functions.range(pages.clone())).map(|(&addr, function)| (addr, function))
    }

    /// Those functions at the addresses `addrs` that lie at least partly in `pages`. `addrs` must be sorted.
    pub fn these_within<'a>(
        &'a self,
        addrs: &'a [u64],
        pages: &Range<u64>,
    ) -> impl Iterator<Item = (u64, &'a Function)> + use<'a> {
        let is_one = |addr: &u64| addrs.binary_search(addr).is_ok();
        let (start, end) = (pages.start, pages.end);
        let before = self.within(pages).next().filter(|(addr, _)| *addr < start && is_one(addr));
        let inside = addrs.partition_point(|&addr| addr < start)..addrs.partition_point(|&addr| addr < end);
        let known = |addr: &u64| Some((*addr, self.functions.get(addr)?));
        before.into_iter().chain(addrs[inside].iter().filter_map(known))
    }

    /// Whether these pages have at most `most` functions.
    fn are_few(&self, pages: &Range<u64>, most: usize) -> bool {
        self.within(pages).nth(most).is_none()
    }

    /// Takes the groups that have to be reported to valgrind: groups with new code, and groups with a page without code. If
    /// `with_stale` is true, also takes groups with code that has ended. Returns the groups, and the sorted addresses of the
    /// new code.
    pub fn take_due(&mut self, with_stale: bool) -> (Vec<Due>, Vec<u64>) {
        let mut due: BTreeSet<u64> = BTreeSet::new();
        let mut gone = Vec::new();
        for start in std::mem::take(&mut self.emptied) {
            self.shrink(start, &mut due, &mut gone);
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        sort(&mut fresh);
        fresh.dedup();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for addr in &fresh {
            let Some(function) = self.functions.get(addr) else { continue };
            let pages = self.pages_of(*addr, function.size);
            match ranges.last_mut() {
                // New code in adjacent pages is reported together.
                Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
                _ => ranges.push(pages),
            }
        }
        for range in ranges {
            for part in self.split(range) {
                self.join(part, &fresh, &mut due);
            }
        }
        // The new file of a group replaces what valgrind knows about all pages of the group, so these pages need no separate
        // report.
        gone.retain(|gone: &Due| self.touching(&gone.pages).is_empty());
        if with_stale {
            due.append(&mut self.stale);
        }
        self.stale.retain(|start| !due.contains(start));
        let taken = |start: u64| {
            let group = self.groups.get_mut(&start)?;
            Some(Due { pages: start..group.end, number: group.number, content: group.content.take() })
        };
        gone.extend(due.into_iter().filter_map(taken));
        (gone, fresh)
    }

    /// Splits a group into one group for each run of pages that have code.
    ///
    /// When one page of a file is reported again, valgrind forgets the whole file. So pages without code are added to `gone`,
    /// to be reported separately, only if no page of the group has code, or if the last report of the group failed.
    fn shrink(&mut self, start: u64, due: &mut BTreeSet<u64>, gone: &mut Vec<Due>) {
        let Some(group) = self.groups.remove(&start) else { return };
        self.stale.remove(&start);
        let has_failed = self.failed.remove(&start);
        let mut number = Some(group.number);
        let (mut first, mut has_code) = (start, self.has_code(start));
        let mut empty = Vec::new();
        for page in (start + self.page_size..=group.end).step_by(self.page_size as usize) {
            let has_more = self.has_code(page);
            if page < group.end && has_more == has_code {
                continue;
            }
            if has_code {
                let number = number.take().unwrap_or_else(|| self.new_number());
                self.groups.insert(first, Group { end: page, number, content: None });
                due.insert(first);
            } else {
                empty.push(first..page);
            }
            (first, has_code) = (page, has_more);
        }
        self.left.extend(number);
        if has_failed || number.is_some() {
            gone.extend(empty.into_iter().map(|pages| Due { pages, number: group.number, content: None }));
        }
    }

    fn new_number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next_number += 1;
            self.next_number
        })
    }

    /// Allows the file numbers of removed groups to be used again, if all groups from `take_due` were reported to valgrind
    /// (`is_all`). Otherwise valgrind may still know the old files, and their numbers are never used again: the number is a
    /// part of the file's name, and valgrind must not know two files by one name.
    pub fn all_told(&mut self, is_all: bool) {
        if is_all {
            self.free.append(&mut self.left);
        }
        self.left.clear();
    }

    /// Stores the content with which a group was reported to valgrind.
    pub fn told(&mut self, pages: &Range<u64>, content: Content) {
        self.failed.remove(&pages.start);
        if let Some(group) = self.groups.get_mut(&pages.start) {
            group.content = Some(content);
        }
    }

    /// Splits a range of pages into parts that have a limited number of functions each. If possible, a part ends between two
    /// functions.
    fn split(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        if pages.end - pages.start == self.page_size {
            return vec![pages];
        }
        let mut parts = Vec::new();
        let (mut start, mut count, mut last_end) = (pages.start, 0, 0);
        for (addr, function) in self.within(&pages) {
            let first = addr / self.page_size * self.page_size;
            if count >= FUNCTIONS_MAX && first > start && (last_end <= first || count >= 2 * FUNCTIONS_MAX) {
                parts.push(start..first);
                (start, count) = (first, 0);
            }
            (count, last_end) = (count + 1, addr + function.size);
        }
        parts.push(start..pages.end);
        parts
    }

    /// Makes a group of these pages. Merges the new group with the groups that have some of these pages, unless the merged
    /// group would be too large.
    fn join(&mut self, mut pages: Range<u64>, fresh: &[u64], due: &mut BTreeSet<u64>) {
        let mut joined: Vec<u64> = Vec::new();
        for start in self.touching(&pages) {
            let Some(end) = self.groups.get(&start).map(|group| group.end) else { continue };
            let group = start..end;
            let is_inside = pages.start <= group.start && group.end <= pages.end;
            let is_around = group.start <= pages.start && pages.end <= group.end;
            if is_inside
                || is_around
                || self.are_few(&(group.start.min(pages.start)..group.end.max(pages.end)), FUNCTIONS_MAX)
            {
                pages = pages.start.min(start)..pages.end.max(end);
                joined.push(start);
                continue;
            }
            due.insert(start);
            // The pages outside of `group` lie on one side of `group`.
            if group.start < pages.start {
                pages.start = group.end;
            } else {
                pages.end = group.start;
            }
        }
        if pages.is_empty() {
            return;
        }
        if joined.is_empty() {
            let before = self.groups.range(..pages.start).next_back().filter(|(_, group)| group.end == pages.start);
            let before = before.map(|(&start, _)| start);
            if let Some(start) = before.filter(|start| self.are_few(&(*start..pages.end), NEIGHBOURS_MAX)) {
                pages.start = start;
                joined.push(start);
            }
        }
        // The merged group keeps the file number of its largest old group. The code of the smaller old groups gets a different
        // file number than before, so a profile shows this code in two files.
        let largest =
            joined.iter().copied().max_by_key(|start| self.groups.get(start).map_or(0, |group| group.end - start));
        let number = largest.and_then(|start| self.groups.get(&start)).map(|group| group.number);
        let number = number.unwrap_or_else(|| self.new_number());
        let mut content = None;
        let is_one = joined.len() == 1;
        for start in joined {
            self.stale.remove(&start);
            self.failed.remove(&start);
            due.remove(&start);
            let Some(group) = self.groups.remove(&start) else { continue };
            if group.number != number {
                self.left.push(group.number);
            }
            // If the old group's content is reused, only new code is added to the content. So the content is reused only if all
            // code outside the old group is new. If valgrind refused to read an earlier file, the code of that file may lie
            // outside the old group, and may be in no file now, so it would be missing from the reused content.
            content = group.content.filter(|_| is_one && self.others_are_fresh(&pages, &(start..group.end), fresh));
        }
        self.groups.insert(pages.start, Group { end: pages.end, number, content });
        due.insert(pages.start);
    }

    /// Whether all code that is in `pages` but outside `group` is new.
    fn others_are_fresh(&self, pages: &Range<u64>, group: &Range<u64>, fresh: &[u64]) -> bool {
        let is_fresh = |part: &Range<u64>| self.within(part).all(|(addr, _)| fresh.binary_search(&addr).is_ok());
        [pages.start..group.start, group.end..pages.end].iter().filter(|part| !part.is_empty()).all(is_fresh)
    }

    /// Removes the group of these pages.
    pub fn forget(&mut self, pages: &Range<u64>) {
        self.failed.remove(&pages.start);
        self.groups.remove(&pages.start);
    }
}
