//! Adds and ends code at random, and compares the code that the unwinder of this process finds with the live code.

use std::collections::BTreeMap;

use gimli::constants::*;
use gimli::read::{BaseAddresses, CfaRule, EhFrame, Pointer, UnwindContext, UnwindSection};
use gimli::write::{
    self, Address, CallFrameInstruction, CommonInformationEntry, EndianVec, FrameDescriptionEntry, FrameTable,
};
use gimli::{Encoding, Format, LittleEndian};

use super::tables::Tables;
use super::{told_in_calls, TOLD};
use crate::api::code::{FixedFrame, Unwind};
use crate::format::arch::Arch;
use crate::format::cfi::{self, absolute};
use crate::registry::ids::{IdPool, Ids};
use crate::sink::test_random::{Random, Seed};
use crate::sys::unwinder::{self, find, Dialect};

fn eh_frame(cfa_offset: i32, size: u64) -> Vec<u8> {
    let unwind = Unwind::FixedFrame(FixedFrame::new(cfa_offset, &[]));
    let tables = cfi::encode(Arch::X86_64, &unwind, 0, size).unwrap().unwrap();
    let eh_frame_size = tables.eh_frame_size();
    let mut bytes = tables.bytes;
    bytes.truncate(eh_frame_size);
    bytes
}

/// Returns tables that have two FDEs. No FDE covers the bytes of the code between the two FDEs, or the last byte.
fn with_gaps(size: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for (start, end) in [(0, size / 3), (size / 2, size - 1)] {
        let frame = absolute::frames(&eh_frame(24, end - start), (1 << 20 | start, end - start)).unwrap().remove(0);
        all.extend_from_slice(&frame.bytes[..frame.bytes.len() - 4]);
    }
    let tables = cfi::encode(Arch::X86_64, &Unwind::EhFrame { bytes: &all, addr: 0 }, 1 << 20, size).unwrap().unwrap();
    let eh_frame_size = tables.eh_frame_size();
    let mut bytes = tables.bytes;
    bytes.truncate(eh_frame_size);
    bytes
}

#[test]
fn entries_have_addresses() {
    const ADDR: u64 = 0x7000_1234_5678;
    let mut frames = absolute::frames(&eh_frame(48, 99), (ADDR - 7, 99)).unwrap();
    assert_eq!(frames.len(), 1);
    let mut frame = frames.remove(0);
    frame.shift(7);
    assert_eq!((frame.start, frame.end), (ADDR, ADDR + 99));
    let (section, bases) = (EhFrame::new(&frame.bytes, LittleEndian), BaseAddresses::default());
    let fde = section.fde_for_address(&bases, ADDR + 98, EhFrame::cie_from_offset).unwrap();
    assert_eq!((fde.initial_address(), fde.len(), fde.offset()), (ADDR, 99, frame.fde));
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(&section, &bases, &mut context, ADDR).unwrap();
    assert!(matches!(row.cfa(), CfaRule::RegisterAndOffset { offset: 48, .. }), "{row:?}");
    // A section that is cut short yields no FDE. A whole section yields no FDE if the given size of the code is wrong.
    let whole = eh_frame(48, 99);
    for len in 0..whole.len() - 4 {
        assert!(absolute::frames(&whole[..len], (ADDR, 99)).is_none_or(|frames| frames.is_empty()), "{len}");
    }
    assert!(absolute::frames(&whole, (ADDR, 98)).is_none_or(|frames| frames.is_empty()));
}

/// The encoding of a pointer in a section, and the address that a reader of the section has to compute from the pointer.
#[derive(Clone, Copy, Debug)]
struct Target {
    encoding: DwEhPe,
    addr: u64,
}

impl Target {
    /// Makes a target. `addr` is near the section, because some encodings have only 32 bits.
    fn new(random: &mut Random, addr: u64) -> Target {
        let format = [DW_EH_PE_absptr, DW_EH_PE_udata8, DW_EH_PE_sdata8, DW_EH_PE_uleb128, DW_EH_PE_sleb128];
        let format =
            [&format[..], &[DW_EH_PE_udata4, DW_EH_PE_sdata4, DW_EH_PE_udata2]].concat()[random.below(8) as usize];
        let base = [DW_EH_PE_absptr, DW_EH_PE_pcrel][random.below(2) as usize];
        let indirect = [DwEhPe(0), DW_EH_PE_indirect][random.below(2) as usize];
        Target { encoding: format | base | indirect, addr }
    }

    /// The address to pass to gimli, which writes the section as if it were at address 0.
    fn written(&self, section: u64) -> Address {
        let base = if self.encoding.application() == DW_EH_PE_pcrel { section } else { 0 };
        Address::Constant(self.addr.wrapping_sub(base))
    }

    fn found(&self, by: u64) -> Pointer {
        let addr = self.addr.wrapping_add(by);
        if self.encoding.is_indirect() {
            Pointer::Indirect(addr)
        } else {
            Pointer::Direct(addr)
        }
    }
}

/// Personality routines and LSDAs are preserved in all encodings. LSDAs inside the code move with the code.
#[test]
fn handlers_at_random() {
    const ADDR: u64 = 0x7000_0000_1000;
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let (mut accepted, mut moving, mut cut) = (0, 0, 0);
    while accepted < if cfg!(miri) { 20 } else { 3000 } {
        // The section does not overlap the code.
        let distance = (16 << 10) + random.below(1 << 20);
        let section_addr = if random.below(2) == 0 { ADDR + distance } else { ADDR - distance };
        let code = ADDR + random.below(200)..ADDR + 300 + random.below(700);
        let mut table = FrameTable::default();
        let mut functions = Vec::new();
        let mut start = ADDR - random.below(100);
        while start < code.end {
            let size = 1 + random.below(400);
            let mut target = |addr| (random.below(4) > 0).then(|| Target::new(&mut random, addr));
            let personality = target(section_addr + 5000);
            let lsda = target(section_addr + 9000);
            let lsda = lsda.map(|lsda| match random.below(3) {
                0 => Target { addr: code.start + random.below(code.end - code.start), ..lsda },
                _ => lsda,
            });
            functions.push((start, size, personality, lsda));
            start += size + random.below(20);
        }
        for &(start, size, personality, lsda) in &functions {
            let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };
            let mut cie = CommonInformationEntry::new(encoding, 1, -8, gimli::X86_64::RA);
            cie.personality = personality.map(|target| (target.encoding, target.written(section_addr)));
            cie.lsda_encoding = lsda.map(|target| target.encoding);
            cie.signal_trampoline = random.below(2) == 0;
            cie.add_instruction(CallFrameInstruction::Cfa(gimli::X86_64::RSP, 8));
            let cie = table.add_cie(cie);
            let mut fde = FrameDescriptionEntry::new(Address::Constant(start), size as u32);
            fde.lsda = lsda.map(|target| target.written(section_addr));
            fde.add_instruction(0, CallFrameInstruction::CfaOffset(16 + 8 * random.below(9) as i32));
            table.add_fde(cie, fde);
        }
        let mut section = write::EhFrame::from(EndianVec::new(LittleEndian));
        // Some encodings are too short for the address.
        if table.write_eh_frame(&mut section).is_err() {
            continue;
        }
        accepted += 1;
        let unwind = Unwind::EhFrame { bytes: section.slice(), addr: section_addr };
        let size = code.end - code.start;
        let tables = cfi::encode(Arch::X86_64, &unwind, code.start, size).unwrap().unwrap();
        // The code may have moved before it is reported to the unwinder.
        let moved = [0, 1 << 44][random.below(2) as usize];
        let eh_frame = &tables.bytes[..tables.eh_frame_size()];
        let mut frames = absolute::frames(eh_frame, (code.start + moved, size)).unwrap();
        let by = random.below(1 << 40);
        frames.iter_mut().for_each(|frame| frame.shift(by));
        let by = by + moved;
        let kept = |&&(start, size, ..): &&(u64, u64, _, _)| start < code.end && start + size > code.start;
        let kept: Vec<_> = functions.iter().filter(kept).collect();
        assert_eq!(frames.len(), kept.len());
        for (frame, &&(start, size, personality, lsda)) in frames.iter().zip(&kept) {
            let range = start.max(code.start)..(start + size).min(code.end);
            assert_eq!((frame.start, frame.end), (range.start + by, range.end + by));
            let (section, bases) = (EhFrame::new(&frame.bytes, LittleEndian), BaseAddresses::default());
            let fde = section.fde_for_address(&bases, frame.start, EhFrame::cie_from_offset).unwrap();
            assert_eq!((fde.initial_address(), fde.len()), (frame.start, frame.end - frame.start));
            let row = fde
                .unwind_info_for_address(&section, &bases, &mut UnwindContext::new(), frame.end - 1)
                .unwrap()
                .clone();
            assert!(matches!(row.cfa(), CfaRule::RegisterAndOffset { offset: 16.., .. }), "{row:?}");
            // Addresses in an LSDA are relative to the start of the entry. So an entry has no LSDA if the entry starts before
            // the code.
            if personality.is_none() && lsda.is_none() || start < code.start {
                assert_eq!((fde.personality(), fde.lsda()), (None, None));
                cut += u32::from(start < code.start);
                continue;
            }
            assert_eq!(fde.personality(), Some(personality.map_or(Pointer::Direct(0), |target| target.found(0))));
            let moves = lsda.is_some_and(|lsda| code.contains(&lsda.addr));
            moving += u32::from(moves);
            let expected = lsda.map_or(Pointer::Direct(0), |target| target.found(if moves { by } else { 0 }));
            assert_eq!(fde.lsda(), Some(expected), "{lsda:?} of {start:#x} in {code:#x?}");
        }
    }
    assert!(moving > 0 && cut > 0);
}

/// Checks that the unwinder finds all live code, and nothing else. `Dialect::Tree` registers single tables. Unwinders that
/// have a list accept single tables too.
fn code_at_random(dialect: Dialect, begin: u64) {
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let mut tables = Tables::new(dialect);
    let mut live: BTreeMap<u64, (u64, u64, bool)> = BTreeMap::new();
    let mut next_id = 0;
    for round in 0..300 {
        for _ in 0..random.below(100) {
            // The addresses fall, rise, or are random.
            let addr = begin
                + match random.below(3) {
                    0 => (1 << 30) - 200 * next_id,
                    1 => (1 << 31) + 200 * next_id,
                    _ => (1 << 32) + 50 * random.below(10_000),
                };
            let size = 1 + random.below(300);
            let moved = live.iter().next().map(|(&old, &code)| (old, code)).filter(|_| random.below(10) == 0);
            next_id += 1;
            let code = moved.map_or((next_id, size, size > 30 && random.below(4) == 0), |(_, code)| code);
            let (id, size, has_gaps) = code;
            if let Some((old, _)) = moved {
                live.remove(&old);
                tables.moved(id, (addr, size));
            } else {
                let plain = eh_frame(16 + 8 * random.below(100) as i32, size);
                tables.add(id, (addr, size), &if has_gaps { with_gaps(size) } else { plain });
            }
            live.retain(|&other, &mut (_, len, _)| other + len <= addr || addr + size <= other);
            live.insert(addr, code);
        }
        for _ in 0..random.below(if round % 30 == 29 { 3000 } else { 80 }) {
            let from = begin + (1 << 29) + random.below(1 << 32);
            let Some((&addr, &(id, ..))) = live.range(from..).next() else { continue };
            live.remove(&addr);
            tables.remove(id);
        }
        for (&addr, &(id, size, has_gaps)) in &live {
            assert!(tables.has(id, (addr, size)));
            assert_eq!(find(addr), Some(addr), "round {round}");
            // The unwinder may find an entry for a part of the code.
            let last = if has_gaps { addr + size - 2 } else { addr + size - 1 };
            let gaps = [addr + size / 3, addr + size - 1].into_iter().filter(|_| has_gaps);
            gaps.for_each(|gap| assert_eq!(find(gap), None, "{gap:#x} in round {round}"));
            assert!(find(last).is_some_and(|found| (addr..=last).contains(&found)), "{last:#x} in round {round}");
            if !live.range(..=addr + size).any(|(&other, &(_, len, _))| other + len > addr + size) {
                assert_eq!(find(addr + size), None, "{addr:#x} + {size} in round {round}");
            }
        }
    }
    assert!(tables.count() < if dialect == Dialect::List { 100 } else { usize::MAX }, "{}", tables.count());
    drop(tables);
    live.keys().for_each(|&addr| assert_eq!(find(addr), None, "{addr:#x}"));
}

#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn code_in_many_tables_at_random() {
    code_at_random(Dialect::Tree, 1 << 45);
}

#[test]
#[ignore = "long: scripts/test.sh runs it"]
fn code_in_few_tables_at_random() {
    // This test needs an unwinder that has a list, because an unwinder that has a tree accepts no overlapping tables.
    if unwinder::dialect() == Some(Dialect::List) {
        code_at_random(Dialect::List, 1 << 46);
    }
}

/// A call has no effect if it reports code that has ended or moved meanwhile, or if the sink has ended. This test also
/// registers single tables with libgcc's list.
#[test]
fn calls_tell_of_code_where_it_lives() {
    const SIZE: u64 = 100;
    const AT: u64 = 1 << 44;
    if !matches!(unwinder::dialect(), Some(Dialect::List | Dialect::Tree)) {
        return;
    }
    let ids: &'static Ids = Box::leak(Box::new(Ids::new()));
    let mut id_pool = IdPool::new();
    let begin = || {
        let mut told = TOLD.try_lock().unwrap();
        (told.tables, told.by_callers) = (vec![Tables::new(Dialect::Tree)], true);
    };
    let put = |id, at| {
        let place = (at, SIZE);
        told_in_calls::put(ids, id, place, told_in_calls::frames(&eh_frame(16, SIZE), place).unwrap()).unwrap();
    };
    let register = |id_pool: &mut IdPool<'static>, at| {
        let id = id_pool.take(ids, at, SIZE, false).unwrap();
        put(id, at);
        id
    };
    let found = |at: u64| find(at).is_some();
    begin();
    let first = register(&mut id_pool, AT);
    assert!(found(AT));
    // The code moves twice, and the moves are reported to the unwinder in reverse order.
    let moves = [AT + 1000, AT + 2000].map(|to| (told_in_calls::Moving::new(ids, first, to).unwrap(), to));
    moves.iter().for_each(|(_, to)| _ = ids.move_to(first, *to, false));
    moves.into_iter().rev().for_each(|(moving, _)| moving.end().unwrap());
    assert_eq!([AT, AT + 1000, AT + 2000].map(found), [false, false, true]);
    // The removal of the code is reported before the move.
    let moving = told_in_calls::Moving::new(ids, first, AT).unwrap();
    ids.move_to(first, AT, false);
    assert!(ids.retire(first));
    told_in_calls::remove(first).unwrap();
    moving.end().unwrap();
    put(first, AT);
    assert!(!found(AT) && !found(AT + 2000));
    // The range has more than `AT_A_TIME` pieces of code, so `remove_in` releases the lock before it has removed all of them.
    // Code outside of the range stays.
    let all: Vec<u64> = (0..200).map(|i| AT + i * SIZE).collect();
    all.iter().for_each(|&at| _ = register(&mut id_pool, at));
    told_in_calls::remove_in(AT + SIZE, AT + 199 * SIZE).unwrap();
    let is_end = |at: u64| at == all[0] || at == all[199];
    assert!(all.iter().all(|&at| found(at) == is_end(at)));
    told_in_calls::end();
    register(&mut id_pool, AT);
    assert!(!all.iter().any(|&at| found(at)));
    // This code has ended before the sink starts again.
    let late = id_pool.take(ids, AT, SIZE, false).unwrap();
    ids.retire(late);
    begin();
    put(late, AT);
    assert!(!found(AT));
    told_in_calls::end();
}
