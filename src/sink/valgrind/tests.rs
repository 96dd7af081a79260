//! Adds and ends code at random, and checks the reports with a model of what valgrind knows.
//!
//! A mapping over pages replaces everything that valgrind knew about these pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::page_groups::{Function, Groups};
use crate::format::code_info::Info;
use crate::format::elf::valgrind_object::Content;
use crate::sink::test_random::{Random, Seed};

const PAGE: u64 = 4096;
const PAGES: u64 = 200;
const BEGIN: u64 = 0x7000_0000;

/// The files that valgrind knows. The key is the address of a file's first page. The value has the end of the last page, the
/// file's number, and the ids of the file's functions.
#[derive(Default)]
struct Known(BTreeMap<u64, (u64, u32, BTreeSet<u64>)>);

impl Known {
    /// Does the same as `Valgrind::bring_up_to_date`. `fails` returns, for each group, whether valgrind refuses the group.
    /// `refused` collects the ids of functions whose groups were refused. When a function is reported later, its id is removed
    /// from `refused`.
    fn tell(
        &mut self,
        groups: &mut Groups,
        with_stale: bool,
        refused: &mut BTreeSet<u64>,
        mut fails: impl FnMut() -> bool,
    ) {
        let (due, fresh) = groups.take_due(with_stale);
        let mut told: Vec<Range<u64>> = Vec::new();
        let mut is_all = true;
        for due in due {
            let pages = due.pages;
            assert!(pages.start % PAGE == 0 && pages.end % PAGE == 0 && pages.start < pages.end);
            assert!(told.iter().all(|other| other.end <= pages.start || pages.end <= other.start), "told twice");
            told.push(pages.clone());
            let within: Vec<(u64, u64)> = groups.within(&pages).map(|(addr, function)| (addr, function.id())).collect();
            let is_inside =
                |(addr, function): &(u64, &Function)| pages.start <= *addr && addr + function.size <= pages.end;
            let whole = groups.within(&pages).filter(is_inside).map(|(_, function)| function.id());
            let whole: BTreeSet<u64> = whole.collect();
            let ids: BTreeSet<u64> = within.iter().map(|(_, id)| *id).collect();
            if due.content.is_some() {
                let fresh = within.iter().filter(|(addr, _)| fresh.binary_search(addr).is_ok()).map(|(_, id)| *id);
                let old = self.0.values().filter(|(end, ..)| *end <= pages.end);
                let old: BTreeSet<u64> = old.flat_map(|(.., ids)| ids).copied().filter(|id| ids.contains(id)).collect();
                assert_eq!(old.into_iter().chain(fresh).collect::<BTreeSet<u64>>(), ids, "a file that lacks something");
            }
            if fails() {
                is_all = false;
                refused.extend(ids);
                groups.forget(&pages);
                groups.fail(&pages);
                continue;
            }
            self.0.retain(|&start, (end, ..)| *end <= pages.start || pages.end <= start);
            if ids.is_empty() {
                groups.forget(&pages);
            } else {
                refused.retain(|id| !whole.contains(id));
                assert!(self.0.values().all(|(_, number, _)| *number != due.number), "two files with one name");
                self.0.insert(pages.start, (pages.end, due.number, ids));
                groups.told(&pages, Content::default());
            }
        }
        groups.all_told(is_all);
    }

    /// Unmaps pages as the host does: valgrind forgets every file with one of these pages.
    fn unmap(&mut self, pages: &Range<u64>) {
        self.0.retain(|&start, (end, ..)| *end <= pages.start || pages.end <= start);
    }

    /// Whether valgrind knows that all bytes of `code` belong to the function with this id. If `in_one` is true, one file must
    /// have all of these bytes.
    fn has(&self, id: u64, code: &Range<u64>, in_one: bool) -> bool {
        let mut at = code.start;
        let mut places = 0;
        while at < code.end {
            let Some((_, (end, _, ids))) = self.0.range(..=at).next_back() else { return false };
            if *end <= at || !ids.contains(&id) {
                return false;
            }
            places += 1;
            at = *end;
        }
        !in_one || places == 1
    }
}

fn function(id: u64, size: u64) -> Function {
    Function::new(id, size, b"", Info::NOTHING).unwrap()
}

/// Adds and ends code at random, and checks what valgrind knows. If `refusals` is true, valgrind refuses some groups at first.
fn run(random: &mut Random, longest: u64, most: usize, in_one: bool, refusals: bool) {
    let (mut groups, mut known) = (Groups::new(PAGE), Known::default());
    let mut refused = BTreeSet::new();
    let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut next_id = 1;
    for _ in 0..600 {
        for _ in 0..1 + random.below(4) {
            if live.len() >= most || random.below(4) == 0 {
                let Some((&addr, &(_, id))) = live.range(BEGIN + random.below(PAGES * PAGE)..).next() else { continue };
                assert!(groups.remove(id).is_some_and(|(found, _)| found == addr));
                assert!(groups.remove(id).is_none());
                live.remove(&addr);
                continue;
            }
            let addr = BEGIN + random.below(PAGES * PAGE - longest);
            let size = 1 + random.below(longest);
            // The address range may have held other code whose end was not reported.
            live.retain(|&at, (end, _)| *end <= addr || addr + size <= at);
            groups.add(addr, function(next_id, size));
            live.insert(addr, (addr + size, next_id));
            next_id += 1;
        }
        let with_stale = random.below(5) == 0;
        if random.below(5) == 0 {
            groups.try_again();
        }
        known.tell(&mut groups, with_stale, &mut refused, || refusals && random.below(10) == 0);
        assert!(!groups.has_urgent());
        if !refusals && random.below(3) == 0 {
            // Unmaps a page without code, as the host may do.
            let page = BEGIN + PAGE * random.below(PAGES);
            if !live.iter().any(|(&addr, &(end, _))| addr < page + PAGE && page < end) {
                known.unmap(&(page..page + PAGE));
            }
        }
        for (&addr, &(end, id)) in &live {
            let is_ok = refused.contains(&id) || known.has(id, &(addr..end), in_one);
            assert!(is_ok, "{id} at {addr:x} to {end:x}: {:x?}", known.0);
        }
    }
    groups.try_again();
    known.tell(&mut groups, true, &mut refused, || false);
    assert!(!groups.has_stale() && !groups.has_failed());
    let all: BTreeSet<u64> = known.0.values().flat_map(|(.., ids)| ids).copied().collect();
    let all_live: BTreeSet<u64> = live.values().map(|(_, id)| *id).collect();
    assert_eq!(all, all_live, "exactly what lives is known");
    let ids: Vec<u64> = live.values().map(|(_, id)| *id).collect();
    ids.into_iter().for_each(|id| _ = groups.remove(id));
    known.tell(&mut groups, false, &mut refused, || false);
    assert!(known.0.is_empty());
}

/// As long as no group becomes too large, each function is in one file.
#[test]
fn code_at_random() {
    let seed = Seed::new();
    let mut random = Random(seed.0);
    for longest in [50, 3000, 20_000] {
        run(&mut random, longest, 300, true, false);
        run(&mut random, longest, 300, false, true);
    }
}

/// Runs with so much code that groups have to be split.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn much_code_at_random() {
    let seed = Seed::new();
    run(&mut Random(seed.0), 900, 5000, false, false);
    // Adds code without gaps, first in one burst and then one function at a time. No group gets too large, and all code is
    // known.
    let (mut groups, mut known) = (Groups::new(PAGE), Known::default());
    let add = |groups: &mut Groups, id: u64| groups.add(BEGIN + 37 * id, function(id, 37));
    (0..3000).for_each(|id| add(&mut groups, id));
    known.tell(&mut groups, false, &mut BTreeSet::new(), || false);
    for id in 3000..5000 {
        add(&mut groups, id);
        known.tell(&mut groups, false, &mut BTreeSet::new(), || false);
    }
    for id in 0..5000 {
        assert!(known.has(id, &(BEGIN + 37 * id..BEGIN + 37 * (id + 1)), false), "{id}");
    }
    let largest = known.0.values().map(|(.., ids)| ids.len()).max().unwrap();
    assert!((500..1300).contains(&largest), "{largest}");
}
