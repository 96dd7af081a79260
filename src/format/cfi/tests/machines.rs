//! Tests the tables of architectures that have other sizes, other initial rules, or fewer presets.

use super::*;
use crate::api::code::{FixedFrame, FramePointer, UnwindRow};

/// The rows of the only FDE, with the offsets at which they begin. The code is at address 0.
fn rows(arch: Arch, unwind: &Unwind, size: u64) -> Vec<(u64, Row)> {
    let tables = encode(arch, unwind, 0, size).unwrap().unwrap();
    let (bytes, hdr) = tables.bytes.split_at(tables.eh_frame_size());
    let mut section = read::EhFrame::new(bytes, NativeEndian);
    section.set_address_size(arch.abi().word);
    let at = size.next_multiple_of(8);
    let bases = BaseAddresses::default().set_eh_frame(at).set_eh_frame_hdr(at + bytes.len() as u64);
    let parsed = EhFrameHdr::new(hdr, NativeEndian).parse(&bases, arch.abi().word).unwrap();
    let fde = parsed.table().unwrap().fde_for_address(&section, &bases, 0, read::EhFrame::cie_from_offset).unwrap();
    assert_eq!((fde.initial_address(), fde.len()), (0, size), "{arch:?}");
    assert_eq!(u32::from(fde.cie().return_address_register().0), u32::from(arch.abi().ra));
    let (mut context, mut found) = (UnwindContext::new(), Vec::new());
    let mut table = fde.rows(&section, &bases, &mut context).unwrap();
    while let Some(row) = table.next_row().unwrap() {
        found.push((row.start_address(), plain(row)));
    }
    found
}

/// On i386, the presets have slots of four bytes: `push ebp; mov ebp, esp` and `leave`.
#[test]
fn i386() {
    let frame = FramePointer { epilogue_begin: 19, ..FramePointer::default() };
    let entry = row(4, 4, [(8, -4)]);
    let expected =
        [(0, entry.clone()), (1, row(4, 8, [(8, -4), (5, -8)])), (3, row(5, 8, [(8, -4), (5, -8)])), (19, entry)];
    assert_eq!(rows(Arch::I386, &Unwind::FramePointer(frame), 20), expected);
    let saved = regs([(3, -12)]);
    let fixed = FixedFrame::new(20, &saved);
    assert_eq!(rows(Arch::I386, &Unwind::FixedFrame(fixed), 9), [(0, row(4, 20, [(8, -4), (3, -12)]))]);
    let refused = |offset| encode(Arch::I386, &Unwind::FixedFrame(FixedFrame::new(offset, &[])), 0, 9).err();
    assert_eq!((refused(20), refused(22)), (None, Some(Error::UnwindFormat)));
}

/// Before the first row, the CFA is where the ABI has it at a function's entry.
#[test]
fn entry() {
    for (arch, sp, cfa) in [(Arch::S390x, 15, 160), (Arch::Arm, 13, 0), (Arch::Ppc64le, 1, 0)] {
        let saved = regs([(arch.abi().ra.into(), 16)]);
        let described = [UnwindRow { offset: 4, cfa_register: sp, cfa_offset: cfa + 64, saved: &saved }];
        let expected =
            [(0, row(sp as u16, cfa.into(), [])), (4, row(sp as u16, (cfa + 64).into(), [(arch.abi().ra, 16)]))];
        assert_eq!(rows(arch, &Unwind::Rows(&described), 32), expected, "{arch:?}");
    }
}

#[test]
fn no_frame_pointer() {
    let fp = Unwind::FramePointer(FramePointer::default());
    let pushed = Unwind::FixedFrame(FixedFrame { pushed: 4, sp_set: 8, ..FixedFrame::new(32, &[]) });
    for arch in [Arch::S390x, Arch::Arm, Arch::Ppc64le] {
        for unwind in [&fp, &pushed] {
            assert_eq!(encode(arch, unwind, 0, 100).err(), Some(Error::Arch), "{arch:?}");
        }
    }
}
