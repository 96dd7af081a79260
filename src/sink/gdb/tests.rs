//! Adds and ends code at random, and checks that readers of ELF and DWARF find exactly the live code in the objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::objects::{Code, Objects};
use super::{Gdb, BATCH_TIME, LONGEST_BATCH_TIME};
use crate::api::code::{FixedFrame, Line, Lines, Unwind};
use crate::format::arch::Arch;
use crate::format::cfi;
use crate::format::code_info::Info;
use crate::format::jitdump::{Group, LOAD_FIXED_SIZE};
use crate::queue::status::Status;
use crate::sink::test_random::{Random, Seed};
use crate::sink::{Close, Sink};
use crate::sys::clock::Clock;
use crate::sys::debugger;

/// A process has one list of objects, which only one writer uses, so the tests run one after another.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An object's data about a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    pub size: u64,
    pub name: String,
    pub cfa_offset: i64,
    pub line: Option<u64>,
}

pub fn info(addr: u64, truth: &Truth) -> Vec<u8> {
    let unwind = Unwind::FixedFrame(FixedFrame::new(truth.cfa_offset as i32, &[]));
    let tables = cfi::encode(Arch::X86_64, &unwind, 0, truth.size).unwrap().unwrap();
    let line = truth.line.map(|line| Line { offset: 0, line: line as u32, column: 0, file: b"/a.toy" });
    let (size, name) = (truth.size, truth.name.as_bytes());
    let lines = Lines::Rows(line.as_slice());
    let group = Group { pid: 1, tid: 1, index: 1, addr, size, name, lines, unwind: Some(&tables) };
    let mut out = vec![0; group.size().unwrap()];
    let code_at = group.write(1, &mut out, 0).unwrap().unwrap();
    out.truncate(code_at - LOAD_FIXED_SIZE - name.len() - 1);
    out
}

fn is_text(section: &str) -> bool {
    section.starts_with(".text")
}

/// All functions in the objects, sorted by address.
fn said(objects: &Objects) -> BTreeMap<u64, Truth> {
    let (mut all, mut texts) = (BTreeMap::new(), Vec::new());
    for image in objects.images() {
        let elf = object::File::parse(image).unwrap();
        let data = |name: &str| elf.section_by_name(name).map_or(&[][..], |section| section.data().unwrap());
        let eh_frame_at = elf.section_by_name(".eh_frame").map_or(0, |section| section.address());
        let eh_frame = EhFrame::new(data(".eh_frame"), LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(eh_frame_at);
        let lines = lines(&data);
        let names: Vec<&str> = elf.sections().map(|section| section.name().unwrap()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "lldb 14 goes by names: {names:?}");
        let sections = elf.sections().filter(|section| is_text(section.name().unwrap()));
        texts.extend(sections.map(|section| section.address()..section.address() + section.size()));
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let (addr, size) = (symbol.address(), symbol.size());
            let section = elf.section_by_index(symbol.section_index().unwrap()).unwrap();
            let text = section.address()..section.address() + section.size();
            assert!(is_text(section.name().unwrap()) && text.contains(&addr) && addr + size <= text.end);
            let mut context = UnwindContext::new();
            let at = addr + size - 1;
            let row = eh_frame.unwind_info_for_address(&bases, &mut context, at, EhFrame::cie_from_offset).unwrap();
            let CfaRule::RegisterAndOffset { offset: cfa_offset, .. } = *row.cfa() else { panic!("{row:?}") };
            let truth =
                Truth { size, name: symbol.name().unwrap().into(), cfa_offset, line: lines.get(&addr).copied() };
            assert_eq!(all.insert(addr, truth), None, "two objects speak of {addr:#x}");
        }
    }
    // If an address lies in two objects, a debugger uses only one of the objects.
    texts.sort_unstable_by_key(|text| text.start);
    let overlap = texts.windows(2).find(|pair| pair[0].end > pair[1].start);
    assert!(overlap.is_none(), "{overlap:?}");
    all
}

/// The line at the first instruction of each function that has lines.
fn lines<'a>(data: &dyn Fn(&str) -> &'a [u8]) -> BTreeMap<u64, u64> {
    let section = |id: gimli::SectionId| Ok(gimli::EndianSlice::new(data(id.name()), LittleEndian));
    let dwarf = gimli::Dwarf::load(section).map_err(|error: gimli::Error| error).unwrap();
    let (mut units, mut found) = (dwarf.units(), BTreeMap::new());
    while let Some(header) = units.next().unwrap() {
        let unit = dwarf.unit(header).unwrap();
        let mut rows = unit.line_program.clone().unwrap().rows();
        let (_, row) = rows.next_row().unwrap().unwrap();
        found.insert(row.address(), row.line().unwrap().get());
    }
    found
}

#[test]
fn code_at_random() {
    let _alone = alone();
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let (mut objects, mut truth, mut ids) = (Objects::default(), BTreeMap::new(), BTreeMap::new());
    // The code lies in two windows (ranges of `WINDOW` bytes). Some of the code is dense, and some has gaps.
    const PLACES: u64 = 3000;
    let place =
        |number: u64| [0x7000_0000_0000, 0x7000_8000_0000][(number % 2) as usize] + number * (16 + number % 3 * 64);
    let mut next_id = 1;
    for round in 0..100 {
        for _ in 0..random.below(60) {
            let addr = place(random.below(PLACES));
            if let Some(id) = ids.remove(&addr) {
                let old: Truth = truth.remove(&addr).unwrap();
                let to = place(random.below(PLACES));
                // Moved code keeps its records. Lines contain addresses, so only code without lines is moved here.
                if random.below(4) == 0 && !truth.contains_key(&to) && old.line.is_none() {
                    let name = old.name.clone();
                    let code = Code { id, addr: to, size: old.size, name: name.as_bytes(), info: None };
                    objects.add(&code);
                    ids.insert(to, id);
                    truth.insert(to, old);
                } else {
                    objects.remove(id);
                }
                continue;
            }
            let code = Truth {
                size: 1 + random.below(15),
                name: format!("f{next_id}"),
                cfa_offset: 8 + 8 * random.below(8) as i64,
                line: (random.below(2) == 0).then(|| 1 + random.below(1000)),
            };
            let (size, name, records) = (code.size, code.name.as_bytes(), info(addr, &code));
            objects.add(&Code { id: next_id, addr, size, name, info: Some(Info::new(&records)) });
            ids.insert(addr, next_id);
            truth.insert(addr, code);
            next_id += 1;
        }
        objects.take_out_dead(random.below(2) == 0).unwrap();
        if random.below(2) == 0 {
            objects.forget_dead_fresh();
            assert_eq!(objects.forget_dead_fresh(), 0, "the others live");
        }
        if round % 10 != 0 && random.below(2) == 0 {
            continue;
        }
        objects.list_fresh(true).unwrap();
        if round % 10 == 0 {
            let said = said(&objects);
            let wrong = said.iter().find(|(addr, found)| truth.get(addr) != Some(found));
            assert!(
                wrong.is_none() && said.len() == truth.len(),
                "round {round}: {wrong:?}, {} of {}",
                said.len(),
                truth.len()
            );
            let count = objects.images().count();
            assert!(count <= 2 * 6 * 16, "{count} objects");
        }
    }
    ids.values().for_each(|&id| objects.remove(id));
    assert!(objects.have_dead());
    objects.take_out_dead(false).unwrap();
    assert!(!objects.have_dead() && objects.images().count() == 0);
}

/// If most code ends before it is put into an object, the writer waits longer for the next code.
#[test]
fn what_ends_soon_is_listed_later() {
    let _alone = alone();
    let status = Status::new(std::process::id(), Clock::Monotonic, Arc::default());
    let mut gdb = Gdb::new(Arc::new(status));
    let mut next = 1 << 32;
    // Adds `count` functions, of which `ended` end at once.
    let mut add_some = |gdb: &mut Gdb, count: u64, ended: u64| {
        for id in next..next + count {
            gdb.add(&Code { id, addr: id << 8, size: 16, name: b"short", info: Some(Info::NOTHING) });
        }
        (next..next + ended).for_each(|id| gdb.gone(id));
        next += count;
    };
    let mut add = |gdb: &mut Gdb, ended: u64| add_some(gdb, 3, ended);
    let is_listed_after = |gdb: &mut Gdb, waited: Duration| {
        gdb.fresh_since = Some(Instant::now().checked_sub(waited).unwrap());
        gdb.bring_up_to_date(false).unwrap();
        let is_listed = gdb.objects.fresh_count() == 0;
        assert_eq!(gdb.fresh_since.is_none(), is_listed, "the time counts anew for what comes later");
        is_listed
    };
    add(&mut gdb, 0);
    assert!(is_listed_after(&mut gdb, BATCH_TIME));
    assert_eq!((gdb.objects.images().count(), gdb.batch_time), (1, BATCH_TIME));
    for longer in [2, 4, 8, 8] {
        let waited = gdb.batch_time;
        add(&mut gdb, 2);
        assert!(is_listed_after(&mut gdb, waited));
        assert_eq!(gdb.batch_time, (longer * BATCH_TIME).min(LONGEST_BATCH_TIME));
    }
    gdb.batch_time = Duration::from_secs(60);
    add(&mut gdb, 0);
    assert!(!is_listed_after(&mut gdb, LONGEST_BATCH_TIME));
    assert!(is_listed_after(&mut gdb, Duration::from_secs(60)));
    assert_eq!(gdb.batch_time, BATCH_TIME, "nothing has ended");
    // A large amount of live code is put into an object immediately.
    gdb.batch_time = Duration::from_secs(60);
    add_some(&mut gdb, 5000, 4990);
    assert!(!is_listed_after(&mut gdb, Duration::ZERO));
    assert_eq!(gdb.objects.fresh_count(), 10, "code that has ended is forgotten");
    assert!(is_listed_after(&mut gdb, Duration::from_secs(60)));
    assert_eq!(gdb.batch_time, LONGEST_BATCH_TIME);
    gdb.batch_time = Duration::from_secs(60);
    add_some(&mut gdb, 5000, 2000);
    assert!(is_listed_after(&mut gdb, Duration::ZERO));
    gdb.close(Close::Leave).unwrap();
}

/// How many sections of code each object has.
fn sections(objects: &Objects) -> Vec<usize> {
    let count = |image| {
        let elf = object::File::parse(image).unwrap();
        elf.sections().filter(|section| is_text(section.name().unwrap())).count()
    };
    objects.images().map(count).collect()
}

/// Debuggers look through all sections whenever an object is reported. So that there are few sections, one section spans small
/// gaps. Once other code is registered in a gap, no section spans that gap.
#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn one_section_spans_small_gaps() {
    let _alone = alone();
    let mut objects = Objects::default();
    let add = |objects: &mut Objects, id: u64, addr: u64| {
        let truth = Truth { size: 48, name: format!("f{id}"), cfa_offset: 8, line: None };
        let records = info(addr, &truth);
        let (size, name) = (truth.size, truth.name.as_bytes());
        objects.add(&Code { id, addr, size, name, info: Some(Info::new(&records)) });
    };
    const FUNCTIONS: u64 = 1000;
    const AT: u64 = 0x7000_0000_0000;
    (0..FUNCTIONS).for_each(|number| add(&mut objects, 1 + number, AT + 128 * number));
    add(&mut objects, 1 + FUNCTIONS, AT + 128 * FUNCTIONS + (1 << 20));
    objects.list_fresh(true).unwrap();
    assert_eq!(sections(&objects), [2], "one, and one far away");
    // A host that puts code into one gap will put code into other gaps too, so the object is replaced only once, for all gaps.
    let told = debugger::times_told();
    for number in 0..10 {
        add(&mut objects, 2 + FUNCTIONS + number, AT + 128 * (100 + number) + 64);
        objects.list_fresh(true).unwrap();
        let said = said(&objects);
        assert_eq!(said.len() as u64, FUNCTIONS + 2 + number);
    }
    assert_eq!(debugger::times_told() - told, 10 + 2);
    // Other code may replace ended code, so no section spans the addresses of ended code.
    objects.clear();
    (0..FUNCTIONS).for_each(|number| add(&mut objects, 1 + number, AT + 64 * number));
    objects.list_fresh(true).unwrap();
    objects.remove(1 + FUNCTIONS / 2);
    objects.take_out_dead(false).unwrap();
    assert_eq!(sections(&objects), [2]);
    objects.clear();
}
