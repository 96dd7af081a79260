//! Tests the unwind tables for those parts of the text that have no code.

use std::collections::BTreeSet;

use gimli::read::{BaseAddresses, CfaRule, EhFrame, UnwindContext, UnwindSection as _};
use gimli::LittleEndian;

use super::*;

const PART: u64 = 64 << 10;

/// Reads `.eh_frame` from its start to its end, as continuous profilers do. Returns the offset in the text and the size of each
/// entry. Checks that each long entry describes code with a frame pointer, and that no empty entry begins at code.
fn entries(region: &Region) -> BTreeSet<(u64, u64)> {
    let bytes = region.bytes();
    let elf = ElfFile64::<object::Endianness>::parse(&bytes[..]).unwrap();
    let section = elf.section_by_name(".eh_frame").unwrap();
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let section = EhFrame::new(section.data().unwrap(), LittleEndian);
    let mut found = BTreeSet::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        if fde.len() == 0 {
            // Some profilers do not look at the length.
            assert_eq!(fde.initial_address(), 0);
            continue;
        }
        if fde.len() > PART / 4 {
            let at = fde.initial_address() + fde.len() / 2;
            let mut context = UnwindContext::new();
            let row = fde.unwind_info_for_address(&section, &bases, &mut context, at).unwrap();
            let frame = NATIVE.unwrap().abi().frame.as_ref().unwrap();
            let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { panic!("{row:?}") };
            assert_eq!((register.0, offset), (frame.fp, frame.fp_to_cfa.into()));
        }
        assert!(found.insert((fde.initial_address() - region.file.text().start, fde.len())));
    }
    found
}

#[test]
fn room_without_code_has_tables() {
    let mut region = Region::mapped(unnamed(), 1 << 20, false);
    let all: BTreeSet<_> = (0..2 << 20).step_by(PART as usize).map(|start| (start, PART)).collect();
    assert_eq!(entries(&region), all);
    let mut expected = all.clone();
    let mut add = |region: &mut Region, number, code: (u64, u64), old: &[(u64, u64)], new: &[(u64, u64)]| {
        region.add(code.0, Truth::new(number, code.1));
        region.file.write(true).unwrap();
        region.check();
        expected.retain(|entry| !old.contains(entry));
        expected.extend(new.iter().chain([&code]));
        assert_eq!(entries(region), expected);
    };
    // Code that is added upwards, code below the rest, and code that begins in one part and ends in the next.
    add(&mut region, 1, (PART + 100, 10), &[(PART, PART)], &[(PART + 110, PART - 110)]);
    add(&mut region, 2, (PART + 110, 30), &[(PART + 110, PART - 110)], &[(PART + 140, PART - 140)]);
    add(&mut region, 3, (PART, 100), &[], &[]);
    let rests = [(2 * PART, PART - 50), (3 * PART + 50, PART - 50)];
    add(&mut region, 5, (3 * PART - 50, 100), &[(2 * PART, PART), (3 * PART, PART)], &rests);
    // A part that is full of code has no entry.
    let rest = |quarters| (5 * PART + (4 - quarters) * PART / 4, quarters * PART / 4);
    for (number, quarters) in [(6, 4), (7, 3), (8, 2)] {
        add(&mut region, number, (rest(quarters).0, PART / 4), &[rest(quarters)], &[rest(quarters - 1)]);
    }
    add(&mut region, 10, rest(1), &[], &[]);
    assert_eq!(region.file.stand_ins.entries[5].range, 6 * PART..6 * PART);
    // Code that replaces other code.
    add(&mut region, 11, (PART, 120), &[(PART, 100), (PART + 100, 10), (PART + 110, 30)], &[]);
    region.file.reset();
    region.file.write(true).unwrap();
    assert_eq!(entries(&region), all);
}
