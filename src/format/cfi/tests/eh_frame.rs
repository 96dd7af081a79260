//! Tests of `.eh_frame` sections like those of compilers, and of invalid sections.

use gimli::constants::*;
use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, Expression, FrameDescriptionEntry, FrameTable,
};
use gimli::{Encoding, Format, Register};

use super::*;

const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };

/// The address of the section. The section is above the code, within the reach of a distance of 32 bits.
pub(super) const SECTION: u64 = CODE + 0x10_0000;

/// Options for a section.
#[derive(Clone)]
pub(super) struct Input {
    pointers: DwEhPe,
    personality: bool,
    signal: bool,
    factors: (u8, i8),
    terminator: bool,
    /// Start and length of each function.
    functions: Vec<(u64, u32)>,
}

impl Default for Input {
    fn default() -> Self {
        Input {
            pointers: DW_EH_PE_pcrel | DW_EH_PE_sdata4,
            personality: false,
            signal: false,
            factors: (1, -8),
            terminator: true,
            functions: vec![(CODE, 100)],
        }
    }
}

/// A section in which each function has the rows of [`compiled_rows`].
pub(super) fn compiled(input: &Input) -> Vec<u8> {
    let mut table = FrameTable::default();
    let (code_factor, data_factor) = input.factors;
    let mut cie = CommonInformationEntry::new(ENCODING, code_factor, data_factor, Register(16));
    cie.fde_address_encoding = input.pointers;
    cie.signal_trampoline = input.signal;
    // gimli writes pc-relative pointers as if the section were at address 0.
    let relative = |addr: u64| {
        let base = if input.pointers.application() == DW_EH_PE_pcrel { SECTION } else { 0 };
        Address::Constant(addr.wrapping_sub(base))
    };
    if input.personality {
        cie.personality = Some((DW_EH_PE_indirect | input.pointers, relative(SECTION + 0x5000)));
        cie.lsda_encoding = Some(input.pointers);
    }
    cie.add_instruction(CallFrameInstruction::Cfa(Register(7), 8));
    cie.add_instruction(CallFrameInstruction::Offset(Register(16), -8));
    let cie = table.add_cie(cie);
    for &(start, len) in &input.functions {
        let mut fde = FrameDescriptionEntry::new(relative(start), len);
        fde.lsda = input.personality.then(|| relative(SECTION + 0x6000));
        for (offset, instruction) in [
            (4, CallFrameInstruction::CfaOffset(16)),
            (4, CallFrameInstruction::Offset(Register(6), -16)),
            (8, CallFrameInstruction::CfaRegister(Register(6))),
            (12, CallFrameInstruction::Offset(Register(3), -24)),
            (60, CallFrameInstruction::RememberState),
            (60, CallFrameInstruction::Restore(Register(3))),
            (60, CallFrameInstruction::Cfa(Register(7), 8)),
            (64, CallFrameInstruction::RestoreState),
        ] {
            fde.add_instruction(offset, instruction);
        }
        table.add_fde(cie, fde);
    }
    let mut section = EhFrame::from(EndianVec::new(NativeEndian));
    table.write_eh_frame(&mut section).unwrap();
    if input.terminator {
        section.write_u32(0).unwrap();
    }
    section.0.into_vec()
}

/// The rows of a function in [`compiled`].
fn compiled_rows() -> Vec<(u64, Row)> {
    let standing = || row(6, 16, [(3, -24), (6, -16), (16, -8)]);
    vec![
        (0, row(7, 8, [(16, -8)])),
        (4, row(7, 16, [(6, -16), (16, -8)])),
        (8, row(6, 16, [(6, -16), (16, -8)])),
        (12, standing()),
        (60, row(7, 8, [(6, -16), (16, -8)])),
        (64, standing()),
    ]
}

#[test]
fn eh_frame_golden() {
    let bytes = compiled(&Input { personality: true, terminator: false, ..Input::default() });
    golden(
        &tables_of(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, 100),
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 10  01 1b  08 03  0c 07 08  90 01
         3c 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00
         2e 84 00  2e 80 90 9b a3 a3 e2 9f 80 80 00  2e 80 b0 9b a3 a3 e2 9f 80 80 00  2e 00
         44 0e 10  86 02  44 0d 06  44 83 03  70 0a c3 0c 07 08  44 0b  00
         00 00 00 00
         01 1b 03 3b  a0 ff ff ff  01 00 00 00  3c ff ff ff  bc ff ff ff",
    );
}

#[test]
fn eh_frame_pointer_encodings() {
    let pcrel = [DW_EH_PE_sdata4, DW_EH_PE_sdata8, DW_EH_PE_absptr, DW_EH_PE_udata8].map(|it| DW_EH_PE_pcrel | it);
    let absolute = [DW_EH_PE_absptr, DW_EH_PE_udata8, DW_EH_PE_sdata8, DW_EH_PE_uleb128];
    let reference = compiled(&Input::default());
    let reference = tables_of(Arch::X86_64, &Unwind::EhFrame { bytes: &reference, addr: SECTION }, 100);
    for pointers in pcrel.into_iter().chain(absolute) {
        for terminator in [false, true] {
            let bytes = compiled(&Input { pointers, terminator, ..Input::default() });
            let unwind = Unwind::EhFrame { bytes: &bytes, addr: SECTION };
            assert_eq!(tables_of(Arch::X86_64, &unwind, 100), reference, "{pointers} {terminator}");
            check(Arch::X86_64, &unwind, 100, &compiled_rows());
            let bytes = compiled(&Input { pointers, personality: true, terminator, ..Input::default() });
            check(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, 100, &compiled_rows());
        }
    }
    // Bytes after the terminator are ignored.
    let mut bytes = compiled(&Input::default());
    bytes.extend_from_slice(&[0xff; 30]);
    assert_eq!(tables_of(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, 100), reference);
}

#[test]
fn eh_frame_keeps_what_matters() {
    for factors in [(1, -8), (4, -8), (4, -4), (1, -1), (2, 8)] {
        let bytes = compiled(&Input { factors, ..Input::default() });
        check(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, 100, &compiled_rows());
    }
    let bytes = compiled(&Input { signal: true, personality: true, ..Input::default() });
    let tables = tables_of(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, 100);
    assert_eq!(tables.bytes[9..13], *b"zRS\0");
}

#[test]
fn eh_frame_selects_and_cuts() {
    let functions = vec![(CODE + 0x2000, 80), (CODE - 100, 100), (CODE + 100, 64), (CODE, 100), (CODE + 0x3000, 0)];
    let bytes = compiled(&Input { functions, ..Input::default() });
    let unwind = Unwind::EhFrame { bytes: &bytes, addr: SECTION };
    check(Arch::X86_64, &unwind, 100, &compiled_rows());

    // The two functions are registered as one piece of code. The table of `.eh_frame_hdr` is sorted by address.
    let tables = tables_of(Arch::X86_64, &unwind, 164);
    assert_eq!(tables.hdr_size, HDR_TABLE + 2 * 8);
    let image = Image::new(Arch::X86_64, &tables, 164);
    assert_eq!(image.ranges(), [(100, 64), (0, 100)]);
    for offset in 0..164 {
        let within = if offset < 100 { offset } else { offset - 100 };
        let expected = compiled_rows().into_iter().rev().find(|step| step.0 <= within).unwrap().1;
        assert_eq!(plain(&image.find(offset).unwrap()), expected, "at {offset}");
    }

    // In this section, the function is larger than the registered code. The loop tries code that begins at different offsets in
    // the function.
    let functions = vec![(CODE - 50, 100)];
    for code_factor in [1, 4] {
        let bytes = compiled(&Input { functions: functions.clone(), factors: (code_factor, -8), ..Input::default() });
        let unwind = Unwind::EhFrame { bytes: &bytes, addr: SECTION };
        for before in 0..99 {
            let start = CODE - 50 + before;
            let tables = encode(Arch::X86_64, &unwind, start, 7).unwrap().unwrap();
            // The test reads the tables as if the code were at CODE, because the tables do not depend on the code's address.
            let image = Image::new(Arch::X86_64, &tables, 7);
            assert_eq!(image.ranges(), [(0, 7.min(100 - before))]);
            for offset in 0..7.min(100 - before) {
                let expected = compiled_rows().into_iter().rev().find(|step| step.0 <= before + offset).unwrap().1;
                assert_eq!(plain(&image.find(offset).unwrap()), expected, "at {before} + {offset}");
            }
        }
    }
}

#[test]
fn eh_frame_expressions_and_the_rest() {
    let raw = |bytes: &[u8]| Expression::raw(bytes.to_vec());
    // The CFA of a PLT: rsp + 8 + ((rip & 15) >= 11) * 8.
    let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    let sent = [
        (0, CallFrameInstruction::Cfa(Register(7), -16)),
        (1, CallFrameInstruction::CfaOffset(-24)),
        (2, CallFrameInstruction::CfaExpression(raw(&plt))),
        (2, CallFrameInstruction::Expression(Register(3), raw(&[0x77, 16]))),
        (2, CallFrameInstruction::ValExpression(Register(7), raw(&[0x77, 24]))),
        (3, CallFrameInstruction::ValOffset(Register(11), -16)),
        (3, CallFrameInstruction::ValOffset(Register(12), 16)),
        (3, CallFrameInstruction::Register(Register(13), Register(0))),
        (3, CallFrameInstruction::Undefined(Register(14))),
        (3, CallFrameInstruction::SameValue(Register(15))),
        (3, CallFrameInstruction::ArgsSize(16)),
        (4, CallFrameInstruction::Offset(Register(40), 24)),
        (4, CallFrameInstruction::Offset(Register(70), -24)),
    ];
    let mut table = FrameTable::default();
    let cie = table.add_cie(CommonInformationEntry::new(ENCODING, 1, -8, Register(16)));
    let mut fde = FrameDescriptionEntry::new(Address::Constant(CODE), 10);
    for (offset, instruction) in sent {
        fde.add_instruction(offset, instruction);
    }
    table.add_fde(cie, fde);
    let mut section = EhFrame::from(EndianVec::new(NativeEndian));
    table.write_eh_frame(&mut section).unwrap();
    let bytes = section.0.into_vec();

    let tables = tables_of(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: 0 }, 10);
    let image = Image::new(Arch::X86_64, &tables, 10);
    assert_eq!(plain(&image.find(0).unwrap()), row(7, -16, []));
    assert_eq!(plain(&image.find(1).unwrap()), row(7, -24, []));
    let last = image.find(5).unwrap();
    let bytes_of = |at: &read::UnwindExpression<usize>| at.get(&image.frame).unwrap().0.slice().to_vec();
    assert!(matches!(last.cfa(), CfaRule::Expression(at) if bytes_of(at) == plt));
    let rule = |reg| last.register(Register(reg));
    assert!(matches!(rule(3), Some(RegisterRule::Expression(at)) if bytes_of(&at) == [0x77, 16]));
    assert!(matches!(rule(7), Some(RegisterRule::ValExpression(at)) if bytes_of(&at) == [0x77, 24]));
    assert!(matches!(rule(11), Some(RegisterRule::ValOffset(-16))));
    assert!(matches!(rule(12), Some(RegisterRule::ValOffset(16))));
    assert!(matches!(rule(13), Some(RegisterRule::Register(Register(0)))));
    assert!(matches!(rule(14), None | Some(RegisterRule::Undefined)));
    assert!(matches!(rule(15), Some(RegisterRule::SameValue)));
    assert!(matches!(rule(40), Some(RegisterRule::Offset(24))));
    assert!(matches!(rule(70), Some(RegisterRule::Offset(-24))));
    assert_eq!(last.saved_args_size(), 16);
}

/// A section with absolute pointers and one FDE for 100 bytes at [`CODE`]. The FDE has the given `instructions`.
pub(super) fn by_hand(data_factor: u8, return_address: u8, sp: u8, instructions: &[u8]) -> Vec<u8> {
    let parts = [
        &[0x10, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, data_factor, return_address, 1, 0, 0x0c, sp, 0][..],
        &[4 + 16 + 1 + instructions.len() as u8, 0, 0, 0, 0x18, 0, 0, 0],
        &CODE.to_le_bytes(),
        &100u64.to_le_bytes(),
        &[0],
        instructions,
    ];
    parts.concat()
}

#[test]
fn eh_frame_signed_return_addresses() {
    let bytes = by_hand(0x78, 30, 31, &[0x44, 0x2d, 0x44, 0x0e, 16, 0x9e, 2]);
    let unwind = Unwind::EhFrame { bytes: &bytes, addr: 0 };
    let tables = tables_of(Arch::Aarch64, &unwind, 100);
    let image = Image::new(Arch::Aarch64, &tables, 100);
    // A pseudo-register shows whether the return address is signed (AADWARF64, 4.1). Only aarch64 has this register.
    let signed = |offset| image.find(offset).unwrap().register(Register(34));
    assert!(!matches!(signed(3), Some(RegisterRule::Constant(1))));
    assert!(matches!(signed(4), Some(RegisterRule::Constant(1))));
    assert_eq!(image.find(8).unwrap().register(Register(30)), Some(RegisterRule::Offset(-16)));
    assert_eq!(refused(Arch::X86_64, &unwind, 100), Error::UnwindFormat);
}

#[test]
fn eh_frame_set_loc() {
    let section = |to: u64| by_hand(0x78, 16, 7, &[&[0x44, 1][..], &to.to_le_bytes(), &[0x0e, 16]].concat());
    let bytes = section(CODE + 9);
    let steps = [(0, row(7, 0, [])), (9, row(7, 16, []))];
    check(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: 0 }, 100, &steps);
    let bytes = section(CODE + 3);
    assert_eq!(refused(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: 0 }, 100), Error::UnwindFormat);
}

#[test]
fn eh_frame_numbers_too_large() {
    // The instruction is `DW_CFA_def_cfa_offset_sf`, with the data alignment factor -1. The third offset is the lowest `i32`,
    // which cannot be divided by -1.
    for (factored, accepted) in [
        (&[0x10][..], true),
        (&[0xff, 0xff, 0xff, 0xff, 0x07], true),
        (&[0x80, 0x80, 0x80, 0x80, 0x08], false),
        (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f], false),
    ] {
        let bytes = by_hand(0x7f, 16, 7, &[&[0x13][..], factored].concat());
        let result = encode(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: 0 }, CODE, 100);
        assert_eq!(result.err(), (!accepted).then_some(Error::UnwindFormat), "{factored:02x?}");
    }
}

/// Some instructions are valid only in a certain state. In any other state, unwinders reject such an instruction, so the
/// library refuses it.
#[test]
fn eh_frame_instructions_out_of_place() {
    let expression = &[0x0f, 1, 0x57][..];
    let (advance, offset, register) = (&[0x44][..], &[0x0e, 16][..], &[0x0d, 6][..]);
    let (remember, restore, both) = (&[0x0a][..], &[0x0b][..], &[0x0c, 7, 16][..]);
    for (instructions, accepted) in [
        (vec![restore], false),
        (vec![remember, restore], true),
        (vec![remember, restore, restore], false),
        (vec![remember; 63], true),
        (vec![remember; 64], false),
        (vec![expression, advance], true),
        (vec![expression, advance, offset], false),
        (vec![expression, advance, register], false),
        (vec![expression, advance, both, advance, offset], true),
        (vec![remember, expression, advance, restore, offset], true),
        (vec![expression, remember, both, restore, advance, offset], false),
    ] {
        let bytes = by_hand(0x78, 16, 7, &instructions.concat());
        let result = encode(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: 0 }, CODE, 100);
        assert_eq!(result.err(), (!accepted).then_some(Error::UnwindFormat), "{instructions:02x?}");
    }
}

#[test]
fn eh_frame_refused() {
    let bytes = compiled(&Input::default());
    let unwind = Unwind::EhFrame { bytes: &bytes, addr: SECTION };
    let at = |addr, size| encode(Arch::X86_64, &unwind, addr, size).map(|_| ());
    assert_eq!(at(CODE, 100), Ok(()));
    assert_eq!(at(CODE + 100, 100), Err(Error::UnwindFormat), "other code");
    assert_eq!(at(CODE - 100, 100), Err(Error::UnwindFormat), "other code");
    assert_eq!(at(u64::MAX - 5, 100), Err(Error::AddressRange));
    for cut in 1..bytes.len() - 4 {
        let unwind = Unwind::EhFrame { bytes: &bytes[..cut], addr: SECTION };
        assert_eq!(refused(Arch::X86_64, &unwind, 100), Error::UnwindFormat, "cut to {cut}");
    }
    for bytes in [&[][..], &[0; 4], &[0xff; 64]] {
        let unwind = Unwind::EhFrame { bytes, addr: SECTION };
        assert_eq!(refused(Arch::X86_64, &unwind, 100), Error::UnwindFormat);
    }
    // The first patch leaves the CIE valid, and each other patch makes the CIE invalid. A data alignment factor of 0 is
    // refused, because gimli divides by this factor. The return address column 128 is refused, because gimli would write this
    // number as two bytes.
    let patch = |at: usize, to: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        encode(Arch::X86_64, &Unwind::EhFrame { bytes: &bytes, addr: SECTION }, CODE, 100).map(|_| ())
    };
    assert_eq!(patch(13, &[0x78]), Ok(()));
    assert_eq!(patch(13, &[0]), Err(Error::UnwindFormat), "data alignment factor 0");
    assert_eq!(patch(14, &[0x80]), Err(Error::UnwindRegister), "return address column 128");
    assert_eq!(patch(20, &[0x41]), Err(Error::UnwindFormat), "a CIE that advances");
    assert_eq!(patch(20, &[0xc3]), Err(Error::UnwindFormat), "a CIE that restores");
}

/// Bytes that are likely to provoke errors: opcodes, limits, and the ends of LEB128 numbers.
const NASTY: [u8; 16] = [0, 1, 0x0a, 0x0b, 0x12, 0x13, 0x16, 0x2d, 0x2f, 0x41, 0x50, 0x78, 0x7f, 0x80, 0xfe, 0xff];

#[test]
fn eh_frame_hostile_bytes() {
    let functions = vec![(CODE - 50, 100), (CODE + 50, 70)];
    let encodings = [DW_EH_PE_pcrel | DW_EH_PE_sdata4, DW_EH_PE_absptr, DW_EH_PE_uleb128];
    let samples = encodings.map(|pointers| {
        let factors = (4, -8);
        compiled(&Input {
            pointers,
            personality: pointers != DW_EH_PE_absptr,
            factors,
            functions: functions.clone(),
            ..Input::default()
        })
    });
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let mut bytes = samples[round % samples.len()].clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(6) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.below(256) as u8,
                2 => {
                    let len = (random.below(11) as usize).min(bytes.len() - at);
                    bytes[at..at + len].fill(0xff);
                }
                3 if bytes.len() > 1 => drop(bytes.remove(at)),
                4 => bytes.insert(at, NASTY[random.below(16) as usize]),
                _ => bytes[at] = NASTY[random.below(16) as usize],
            }
        }
        let arch = WITH_ALL_PRESETS[random.below(3) as usize];
        let unwind = Unwind::EhFrame { bytes: &bytes, addr: SECTION };
        let Ok(Some(tables)) = encode(arch, &unwind, CODE, 100) else { continue };
        accepted += 1;
        let image = Image::new(arch, &tables, 100);
        for (start, len) in image.ranges() {
            assert!(start + len <= 100 && len > 0, "{bytes:02x?}");
        }
    }
    // Some changes are harmless, so some inputs must be accepted. Otherwise the test would not reach the code after the parser.
    assert!(accepted > ROUNDS / 100, "{accepted} accepted");
}

/// Two entries that must be refused. The CIE of the first entry lies inside another entry of the section. The CIE of the second
/// entry is too long.
#[test]
fn cies_that_no_compiler_makes() {
    let plain = compiled(&Input::default());
    let unwind = |bytes: &[u8]| encode(Arch::X86_64, &Unwind::EhFrame { bytes, addr: SECTION }, CODE, 100).map(drop);
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let cie_len = 4 + word(&plain, 0) as usize;
    // `around` is an FDE whose instructions are the bytes of a CIE.
    let (cie, fde) = plain.split_at(cie_len);
    let mut around = Vec::from(&fde[..17]);
    around.extend_from_slice(cie);
    let len = around.len() as u32 - 4;
    around[..4].copy_from_slice(&len.to_le_bytes());
    let with = |back: usize| {
        let mut section = [cie, &around, fde].concat();
        for at in [cie_len, cie_len + around.len()] {
            let pointer = if at == cie_len { at + 4 } else { back };
            section[at + 4..at + 8].copy_from_slice(&(pointer as u32).to_le_bytes());
            // The field with the code's address is pc-relative. The section is longer now, so the field's value must change.
            let shift = if at == cie_len { 1 << 20 } else { around.len() as u32 };
            let start = word(&section, at + 8).wrapping_sub(shift);
            section[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        }
        section
    };
    let fde_at = cie_len + around.len();
    assert_eq!(unwind(&with(fde_at + 4)), Ok(()));
    assert_eq!(unwind(&with(around.len() - 17 + 4)), Err(Error::UnwindFormat));
    for (extra, expected) in [(CIE_MAX - word(&plain, 0) as usize, Ok(())), (CIE_MAX, Err(Error::UnwindFormat))] {
        let mut section = [cie, &vec![0; extra], fde].concat();
        section[..4].copy_from_slice(&(word(cie, 0) + extra as u32).to_le_bytes());
        let at = cie_len + extra;
        section[at + 4..at + 8].copy_from_slice(&(at as u32 + 4).to_le_bytes());
        let start = word(&section, at + 8).wrapping_sub(extra as u32);
        section[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        assert_eq!(unwind(&section), expected, "{extra}");
    }
}
