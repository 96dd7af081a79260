//! What the unwinder of this process finds, against what was added and ended at random.

use std::collections::BTreeMap;

use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, UnwindContext, UnwindSection};

use super::tables::Tables;
use crate::api::code::Unwind;
use crate::format::arch::Arch;
use crate::format::cfi::{self, absolute};
use crate::sink::random::{Random, Seed};
use crate::sys::unwinder::{self, find, Dialect};

fn eh_frame(cfa_offset: i32, size: u64) -> Vec<u8> {
    let unwind = Unwind::FixedFrame { cfa_offset, saved: &[] };
    let tables = cfi::encode(Arch::X86_64, &unwind, 0, size).unwrap().unwrap();
    let eh_frame_size = tables.eh_frame_size();
    let mut bytes = tables.bytes;
    bytes.truncate(eh_frame_size);
    bytes
}

/// Code with two FDEs, and bytes between and after them that none speaks of.
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
    // No part of it has an FDE, and it is for no other code.
    let whole = eh_frame(48, 99);
    for len in 0..whole.len() - 4 {
        assert!(absolute::frames(&whole[..len], (ADDR, 99)).is_none_or(|frames| frames.is_empty()), "{len}");
    }
    assert!(absolute::frames(&whole, (ADDR, 98)).is_none_or(|frames| frames.is_empty()));
}

/// The unwinder finds each piece of code that lives, and nothing else. libgcc's list takes single tables, too.
fn code_at_random(dialect: Dialect, begin: u64) {
    let seed = Seed::new();
    let mut random = Random(seed.0);
    let mut tables = Tables::new(dialect);
    let mut live: BTreeMap<u64, (u64, u64, bool)> = BTreeMap::new();
    let mut next_id = 0;
    for round in 0..300 {
        for _ in 0..random.below(100) {
            // Downwards, upwards, and anywhere.
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
            // What it finds may be a part of the code.
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
fn code_in_many_tables_at_random() {
    code_at_random(Dialect::Tree, 1 << 45);
}

#[test]
fn code_in_few_tables_at_random() {
    // A tree takes no tables that overlap.
    if unwinder::dialect() == Some(Dialect::List) {
        code_at_random(Dialect::List, 1 << 46);
    }
}
