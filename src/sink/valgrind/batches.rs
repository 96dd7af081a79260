//! Which code lives, and in which groups of pages valgrind is told of it. A group has one file. A page belongs to one group at
//! most.
//!
//! Code that is on both sides of a page boundary brings both pages into one group, so that a function is in one file. Groups are
//! read anew as a whole whenever code comes to one of their pages, so they do not grow without bound: the function that would make
//! one too large is in two files, in each with the part that lies there.
//!
//! A group has no page without code: the host may unmap such a page at any time, and valgrind then forgets the whole file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::format::elf::executable::Content;
use crate::format::info::Info;
use crate::sys::sort::sort;

/// The most functions of a group that grows because a function lies in two of its pages.
const FUNCTIONS_MAX: usize = 512;
/// The most functions of a group that grows because the next page follows.
const NEIGHBOURS_MAX: usize = 32;

/// A function.
#[derive(Debug)]
pub struct Function {
    id: u64,
    pub size: u64,
    /// Its name and info.
    text: Box<[u8]>,
    name_len: usize,
}

impl Function {
    /// `None` without memory.
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

/// Pages that valgrind was told of.
struct Group {
    end: u64,
    number: u32,
    /// What the file says, as long as no code has ended: code that comes is added to that.
    content: Option<Content>,
}

/// Pages of which valgrind is to be told, and the number of the file for that.
pub struct Due {
    pub pages: Range<u64>,
    pub number: u32,
    /// What the file said before, to which the code that has come is to be added.
    pub content: Option<Content>,
}

/// See the module's description.
pub struct Groups {
    page_size: u64,
    /// By address. No two overlap.
    functions: BTreeMap<u64, Function>,
    /// Where they are, by the slots of ids. 0 for none.
    places: Vec<u64>,
    /// By the first page.
    groups: BTreeMap<u64, Group>,
    /// Addresses of functions that valgrind was not told of, and of some that have ended since.
    fresh: Vec<u64>,
    /// Groups of which code has ended since valgrind was told.
    stale: BTreeSet<u64>,
    /// Those of them that may have a page without code.
    emptied: BTreeSet<u64>,
    /// Groups of which valgrind could not be told. It may know them as they were before.
    failed: BTreeSet<u64>,
    /// Numbers of groups that are no more: those that valgrind may still know, and those to be used again.
    left: Vec<u32>,
    free: Vec<u32>,
    next_number: u32,
}

/// An id is `generation << 32 | slot`, and the lowest free slot is used first.
fn slot_of(id: u64) -> usize {
    id as u32 as usize
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

    /// Nothing is known any more. Numbers are not given out again.
    pub fn begin(&mut self) {
        *self = Groups { next_number: self.next_number, ..Groups::new(self.page_size) };
    }

    /// Code begins to live. This id is no longer elsewhere. Without memory nothing is known of it.
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

    /// Code with a byte in this range.
    fn overlapped(&self, addr: u64, end: u64) -> Option<u64> {
        // Most code comes after all other.
        self.functions.last_key_value().filter(|(at, last)| *at + last.size > addr)?;
        let (at, function) = self.functions.range(..end).next_back()?;
        (at + function.size > addr).then_some(*at)
    }

    /// Code has ended. Returns where it was, and what was known of it.
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

    /// Code of pages of no group has ended, unless it is still there. If some has, the rest is to be told of again. Returns whether some
    /// has.
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

    /// Whether valgrind is to be told at once: of code that has come, or of pages without code.
    pub fn has_urgent(&self) -> bool {
        !self.fresh.is_empty() || !self.emptied.is_empty()
    }

    pub fn has_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Whether valgrind could not be told of some code.
    pub fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Valgrind could not be told of these pages. They are a group all the same, of which it is to be told another time. By the old
    /// number it may still know some of them.
    pub fn fail(&mut self, pages: &Range<u64>) {
        self.next_number += 1;
        self.groups.insert(pages.start, Group { end: pages.end, number: self.next_number, content: None });
        self.failed.insert(pages.start);
    }

    /// Whatever has failed is due again. Code may have ended since.
    pub fn try_again(&mut self) {
        self.emptied.extend(&self.failed);
    }

    fn pages_of(&self, addr: u64, size: u64) -> Range<u64> {
        let page = self.page_size;
        addr / page * page..(addr + size).checked_next_multiple_of(page).unwrap_or(u64::MAX / page * page)
    }

    /// The groups that have one of these pages.
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

    /// Of some functions, those that lie in these pages. `addrs`: where they are, in order.
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

    /// Whether there is no more than this number of functions.
    fn are_few(&self, pages: &Range<u64>, most: usize) -> bool {
        self.within(pages).nth(most).is_none()
    }

    /// Groups for the code that has come, those without code in a page, and those of which code has ended if `with_stale`; and the
    /// addresses of what has come, in order.
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
                // What has come together is told of together.
                Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
                _ => ranges.push(pages),
            }
        }
        for range in ranges {
            for part in self.split(range) {
                self.join(part, &fresh, &mut due);
            }
        }
        // A file with other code in a page replaces the one that valgrind knows for it.
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

    /// Makes groups of those of its pages that have code, one for each run of them. `gone`: the pages without code that valgrind may still
    /// know. It forgets a file with each page of it, so of a group that it was told of the new files suffice, if there are any.
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

    /// valgrind was told of all that was due, or of some of it alone. It must not know two files by one name.
    pub fn all_told(&mut self, is_all: bool) {
        if is_all {
            self.free.append(&mut self.left);
        }
        self.left.clear();
    }

    /// valgrind was told of a group, in this way.
    pub fn told(&mut self, pages: &Range<u64>, content: Content) {
        self.failed.remove(&pages.start);
        if let Some(group) = self.groups.get_mut(&pages.start) {
            group.content = Some(content);
        }
    }

    /// Cuts pages where the functions in them become too many, if possible between two functions.
    fn split(&self, pages: Range<u64>) -> Vec<Range<u64>> {
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

    /// Makes pages a group, together with the groups that they touch as far as these do not become too large.
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
            // The rest lies on one side of it.
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
        // The file of the largest stays: in a profile, code of the others is then in two files.
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
            // Code beside the group may be known to nobody: valgrind has refused it.
            content = group.content.filter(|_| is_one && self.others_are_fresh(&pages, &(start..group.end), fresh));
        }
        self.groups.insert(pages.start, Group { end: pages.end, number, content });
        due.insert(pages.start);
    }

    /// Whether all code in these pages, but outside of those of a group, has just come.
    fn others_are_fresh(&self, pages: &Range<u64>, group: &Range<u64>, fresh: &[u64]) -> bool {
        let is_fresh = |part: &Range<u64>| self.within(part).all(|(addr, _)| fresh.binary_search(&addr).is_ok());
        [pages.start..group.start, group.end..pages.end].iter().filter(|part| !part.is_empty()).all(is_fresh)
    }

    /// These pages are no longer a group: valgrind knows nothing of them.
    pub fn forget(&mut self, pages: &Range<u64>) {
        self.failed.remove(&pages.start);
        self.groups.remove(&pages.start);
    }
}
