//! Tests the unwind tables for those parts of the text that have no code.

use std::collections::BTreeSet;

use gimli::read::{BaseAddresses, CfaRule, EhFrame, UnwindContext, UnwindSection as _};
use gimli::LittleEndian;

use super::*;

const PART: u64 = 64 << 10;

/// Reads `.eh_frame` from its start to its end, as continuous profilers do. Returns the offset in the text and the size of each
/// entry. Checks that each entry of `PART` bytes describes code with a frame pointer.
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
            continue;
        }
        if fde.len() == PART {
            let at = fde.initial_address() + PART / 2;
            let mut context = UnwindContext::new();
            let row = fde.unwind_info_for_address(&section, &bases, &mut context, at).unwrap();
            let abi = NATIVE.unwrap().abi();
            let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { panic!("{row:?}") };
            assert_eq!((register.0, offset), (abi.fp, abi.fp_to_cfa.into()));
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
    // The second function begins in one part and ends in the next.
    for (offset, size, number) in [(PART + 100, 10, 1), (3 * PART - 50, 100, 3)] {
        region.add(offset, Truth::new(number, size));
        expected.retain(|&(start, _)| start + PART <= offset || offset + size <= start);
        expected.insert((offset, size));
    }
    region.file.write(true).unwrap();
    region.check();
    assert_eq!(entries(&region), expected);
    assert_eq!(expected.len(), 29 + 2);
    region.file.reset();
    region.file.write(true).unwrap();
    assert_eq!(entries(&region), all);
}
