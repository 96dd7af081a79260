//! Tests the encoded unwind tables: compares them with golden bytes, and reads them with `gimli::read`.

mod bounds;
mod eh_frame;
mod machines;
mod presets;
mod signed;
mod trampolines;

use std::collections::BTreeMap;

use gimli::read::{self, BaseAddresses, CfaRule, EhFrameHdr, RegisterRule};
use gimli::read::{UnwindContext, UnwindSection, UnwindTableRow};
use gimli::Vendor;

use super::*;
use crate::api::code::SavedRegister;

/// The architectures with addresses of 64 bits and all presets.
const WITH_ALL_PRESETS: [Arch; 3] = [Arch::X86_64, Arch::Aarch64, Arch::Riscv64];

/// The address of the code in these tests.
const CODE: u64 = 0x7f12_3456_7800;

fn regs<const N: usize>(list: [(u32, i32); N]) -> [SavedRegister; N] {
    list.map(|(reg, offset)| SavedRegister { reg, offset })
}

/// A row: the CFA as register and offset, and the slots of the caller's registers as distances from the CFA.
type Row = (u16, i64, BTreeMap<u16, i64>);

fn row<const N: usize>(cfa: u16, offset: i64, saved: [(u16, i64); N]) -> Row {
    (cfa, offset, saved.into_iter().collect())
}

fn plain(row: &UnwindTableRow<usize>) -> Row {
    let (reg, offset) = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => (register.0, *offset),
        other => panic!("CFA is {other:?}"),
    };
    let saved = row.registers().filter_map(|(register, rule)| match rule {
        RegisterRule::Offset(offset) => Some((register.0, *offset)),
        // Every CIE for x86-64 contains the rule that rbx keeps its value.
        RegisterRule::SameValue if *register == gimli::X86_64::RBX => None,
        RegisterRule::Undefined | RegisterRule::Constant(0) => None,
        // If the return address is signed, the value of RA_SIGN_STATE is the constant 1.
        RegisterRule::Constant(1) => Some((register.0, 1)),
        other => panic!("{register:?} is {other:?}"),
    });
    (reg, offset, saved.collect())
}

/// The unwind tables in a form that gimli can read. The tables have the addresses at which perf places them: after the code.
struct Image<'a> {
    frame: read::EhFrame<gimli::EndianSlice<'a, NativeEndian>>,
    hdr: &'a [u8],
    bases: BaseAddresses,
}

impl<'a> Image<'a> {
    fn new(arch: Arch, tables: &'a Tables, code_size: u64) -> Self {
        let (frame, hdr) = tables.bytes.split_at(tables.eh_frame_size());
        assert_eq!(frame.len() % 4, 0);
        assert_eq!(frame[frame.len() - 4..], [0; 4], "terminator");
        let addr = CODE + code_size.div_ceil(8) * 8;
        let bases = BaseAddresses::default().set_eh_frame(addr).set_eh_frame_hdr(addr + frame.len() as u64);
        let mut frame = read::EhFrame::new(frame, NativeEndian);
        if arch == Arch::Aarch64 {
            frame.set_vendor(Vendor::AArch64);
        }
        Image { frame, hdr, bases }
    }

    /// The row for an offset in the code. Searches the table of `.eh_frame_hdr`, as libunwind does.
    fn find(&self, offset: u64) -> Option<UnwindTableRow<usize>> {
        let hdr = EhFrameHdr::new(self.hdr, NativeEndian).parse(&self.bases, 8).unwrap();
        assert_eq!(hdr.eh_frame_ptr(), read::Pointer::Direct(self.bases.eh_frame.section.unwrap()));
        let (table, mut context) = (hdr.table().unwrap(), UnwindContext::new());
        let found = table.unwind_info_for_address(
            &self.frame,
            &self.bases,
            &mut context,
            CODE + offset,
            UnwindSection::cie_from_offset,
        );
        match found {
            Ok(row) => Some(row.clone()),
            Err(gimli::Error::NoUnwindInfoForAddress) => None,
            Err(error) => panic!("{error} at {offset:#x}"),
        }
    }

    /// Returns the range of each FDE: the offset of the range in the code, and the length of the range. Reads all entries, as
    /// libdw does.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let fdes = self.frame.entries(&self.bases).filter_map(|entry| match entry.unwrap() {
            read::CieOrFde::Cie(_) => None,
            read::CieOrFde::Fde(fde) => Some(fde.parse(read::EhFrame::cie_from_offset).unwrap()),
        });
        fdes.map(|fde| {
            let steps = fde.instructions(&self.frame, &self.bases).map(|instruction| match instruction.unwrap() {
                read::CallFrameInstruction::AdvanceLoc { delta } => u64::from(delta),
                _ => 0,
            });
            assert!(steps.sum::<u64>() <= fde.len(), "something is said of places behind the end");
            (fde.initial_address().wrapping_sub(CODE), fde.len())
        })
        .collect()
    }
}

fn tables_of(arch: Arch, unwind: &Unwind, code_size: u64) -> Tables {
    encode(arch, unwind, CODE, code_size).unwrap().expect("tables")
}

fn refused(arch: Arch, unwind: &Unwind, code_size: u64) -> Error {
    encode(arch, unwind, CODE, code_size).expect_err("refused")
}

/// Checks the rows of a description at every offset. `steps` has the rows in order, each with the first offset to which the row
/// applies.
fn check(arch: Arch, unwind: &Unwind, code_size: u64, steps: &[(u64, Row)]) {
    let tables = tables_of(arch, unwind, code_size);
    let image = Image::new(arch, &tables, code_size);
    assert_eq!(image.ranges(), [(0, code_size)]);
    for offset in 0..code_size {
        let expected = &steps.iter().rev().find(|step| step.0 <= offset).expect("a step from 0").1;
        let found = image.find(offset).map(|row| plain(&row));
        assert_eq!(found.as_ref(), Some(expected), "at {offset} of {unwind:?}");
    }
    assert!(image.find(code_size).is_none());
}

fn golden(tables: &Tables, hdr_size: usize, expected: &str) {
    let bytes: Vec<u8> = expected.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(tables.hdr_size, hdr_size);
    assert_eq!(format!("{:02x?}", tables.bytes), format!("{bytes:02x?}"));
}

/// Random numbers for the tests that try many inputs; xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// How many inputs a test of random inputs tries.
#[cfg(not(miri))]
const ROUNDS: usize = 20_000;
/// How many inputs a test of random inputs tries.
#[cfg(miri)]
const ROUNDS: usize = 100;
