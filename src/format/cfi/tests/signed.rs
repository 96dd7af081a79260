//! Tests of AArch64 code that signs its return addresses.

use super::eh_frame::by_hand;
use super::*;
use crate::api::code::{FixedFrame, FramePointer, SigningKey};

/// The code of a trampoline: `paciasp; stp x29, x30, [sp, #-16]!; mov x29, sp; ...; ldp x29, x30, [sp], #16; autiasp; ret`.
const SIGNED: FramePointer =
    FramePointer { epilogue_begin: 88, signed: Some(SigningKey::A), ..frame_pointer_defaults() };

const fn frame_pointer_defaults() -> FramePointer<'static> {
    FramePointer {
        pushed: 0,
        set: 0,
        epilogue_begin: 0,
        epilogue_end: 0,
        cfa_offset: 0,
        saved: &[],
        saved_from: 0,
        signed: None,
    }
}

#[test]
fn signed_frame_pointer_golden() {
    let tables = tables_of(Arch::Aarch64, &Unwind::FramePointer(SIGNED), 100);
    // DW_CFA_AARCH64_negate_ra_state is 2d (DWARF for the Arm 64-bit Architecture, "Call frame instructions").
    let fde = "24 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  44 2d  44 0e 10  9d 02  9e 01  44 0d 1d
         02 4c 0c 1f 00  dd de  44 2d  00 00
         00 00 00 00
         01 1b 03 3b  b8 ff ff ff  01 00 00 00  54 ff ff ff  d4 ff ff ff";
    let cie = "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 1e  01 1b  0c 1f 00  00 00 00 00 ";
    golden(&tables, 20, &format!("{cie}{fde}"));
    let b_key = FramePointer { signed: Some(SigningKey::B), ..SIGNED };
    let cie = "14 00 00 00  00 00 00 00  01 7a 52 42 00  01 78 1e  01 1b  0c 1f 00  00 00 00 ";
    golden(&tables_of(Arch::Aarch64, &Unwind::FramePointer(b_key), 100), 20, &format!("{cie}{fde}"));
}

/// The pseudo-register RA_SIGN_STATE appears as a saved register with the slot 1 if the return address is signed.
const SIGN: (u16, i64) = (34, 1);

#[test]
fn signed_frame_pointer_rows() {
    let record = [(29, -16), (30, -8), SIGN];
    let mut steps = vec![
        (0, row(31, 0, [])),
        (4, row(31, 0, [SIGN])),
        (8, row(31, 16, record)),
        (12, row(29, 16, record)),
        (88, row(31, 0, [SIGN])),
        (92, row(31, 0, [])),
    ];
    check(Arch::Aarch64, &Unwind::FramePointer(SIGNED), 100, &steps);
    // `retaa` ends the code.
    check(Arch::Aarch64, &Unwind::FramePointer(SIGNED), 92, &steps[..5]);
    // Code follows the epilogue.
    steps.push((96, row(29, 16, record)));
    check(Arch::Aarch64, &Unwind::FramePointer(FramePointer { epilogue_end: 96, ..SIGNED }), 100, &steps);
    steps.splice(5.., [(92, row(29, 16, record))]);
    check(Arch::Aarch64, &Unwind::FramePointer(FramePointer { epilogue_end: 92, ..SIGNED }), 100, &steps);
    // An instruction such as `bti c` precedes `paciasp`.
    let later = FramePointer { pushed: 12, set: 16, epilogue_begin: 0, ..SIGNED };
    let steps: Vec<_> = steps[..4].iter().map(|(at, row)| (if *at == 0 { 0 } else { at + 4 }, row.clone())).collect();
    check(Arch::Aarch64, &Unwind::FramePointer(later), 100, &steps);
}

#[test]
fn signed_fixed_frame_rows() {
    let signed = |cfa_offset, saved| FixedFrame { signed: Some(SigningKey::A), ..FixedFrame::new(cfa_offset, saved) };
    // The frame exists from the start.
    let saved = regs([(30, -8)]);
    let whole = [(0, row(31, 32, [(30, -8), SIGN]))];
    check(Arch::Aarch64, &Unwind::FixedFrame(signed(32, &saved)), 40, &whole);
    // paciasp; sub sp, sp, #32; str x30, [sp, #24]; ...; add sp, sp, #32; autiasp; ret
    let lowered = FixedFrame { sp_set: 8, saved_from: 12, epilogue_begin: 28, ..signed(32, &saved) };
    let steps = [
        (0, row(31, 0, [])),
        (4, row(31, 0, [SIGN])),
        (8, row(31, 32, [SIGN])),
        (12, row(31, 32, [(30, -8), SIGN])),
        (28, row(31, 0, [SIGN])),
        (32, row(31, 0, [])),
    ];
    check(Arch::Aarch64, &Unwind::FixedFrame(lowered), 36, &steps);
    // paciasp; stp x29, x30, [sp, #-16]!; sub sp, sp, #48; ...; add sp, sp, #48; ldp x29, x30, [sp], #16; autiasp; ret
    let reset = FixedFrame { pushed: 8, sp_set: 12, sp_reset: 24, epilogue_begin: 28, ..signed(64, &[]) };
    let record = [(29, -16), (30, -8), SIGN];
    let steps = [
        (0, row(31, 0, [])),
        (4, row(31, 0, [SIGN])),
        (8, row(31, 16, record)),
        (12, row(31, 64, record)),
        (24, row(31, 16, record)),
        (28, row(31, 0, [SIGN])),
        (32, row(31, 0, [])),
    ];
    check(Arch::Aarch64, &Unwind::FixedFrame(reset), 36, &steps);
}

#[test]
fn signed_frames_refused() {
    for arch in [Arch::X86_64, Arch::Riscv64] {
        assert_eq!(refused(arch, &Unwind::FramePointer(SIGNED), 100), Error::UnwindFormat);
        let fixed = FixedFrame { signed: Some(SigningKey::B), ..FixedFrame::new(16, &[]) };
        assert_eq!(refused(arch, &Unwind::FixedFrame(fixed), 100), Error::UnwindFormat);
    }
    // These frames leave no room for `paciasp` before the `stp`, or no room for `autiasp` after the `ldp`.
    let refused = |frame| refused(Arch::Aarch64, &frame, 100);
    assert_eq!(refused(Unwind::FramePointer(FramePointer { pushed: 4, ..SIGNED })), Error::UnwindOrder);
    assert_eq!(refused(Unwind::FramePointer(FramePointer { epilogue_begin: 97, ..SIGNED })), Error::UnwindOrder);
    let fixed = FixedFrame { sp_set: 4, signed: Some(SigningKey::A), ..FixedFrame::new(16, &[]) };
    assert_eq!(refused(Unwind::FixedFrame(fixed)), Error::UnwindOrder);
}

/// On AArch64, the CIE keeps the letter `B`, which stands for key B. Other architectures refuse a CIE with this letter.
#[test]
fn eh_frame_key_b() {
    let frame = FramePointer { signed: Some(SigningKey::B), ..FramePointer::default() };
    let made = tables_of(Arch::Aarch64, &Unwind::FramePointer(frame), 100);
    let unwind = Unwind::EhFrame { bytes: &made.bytes[..made.eh_frame_size()], addr: CODE + 104 };
    assert_eq!(tables_of(Arch::Aarch64, &unwind, 100).bytes, made.bytes);
    assert_eq!(refused(Arch::X86_64, &unwind, 100), Error::UnwindFormat);
    // The CIE for the unwinder of the process contains the letter `B`.
    let frames = absolute::frames(&made.bytes[..made.eh_frame_size()], (CODE, 100)).unwrap();
    assert_eq!(frames[0].bytes[9..13], *b"zRB\0");

    // `both` makes a section of two entries with different CIEs. The first CIE is for key B. If the second CIE is for key A,
    // both CIEs keep their marks. If the second CIE is for a signal trampoline, the section is refused.
    let half = |cie: &[u8; 4], start: u64| {
        let mut half = by_hand(0x78, 30, 31, &[0x44, 0x2d]);
        half[0] += cie.iter().filter(|&&letter| letter != 0).count() as u8 - 2;
        half.splice(9..12, cie.iter().copied().take_while(|&letter| letter != 0).chain([0]));
        let fde = 4 + usize::from(half[0]);
        half[fde + 4] = fde as u8 + 4;
        half[fde + 8..fde + 16].copy_from_slice(&(CODE + start).to_le_bytes());
        half[fde + 16..fde + 24].copy_from_slice(&50u64.to_le_bytes());
        half
    };
    let both = |second| [half(b"zRB\0", 0), half(second, 50)].concat();
    let marks = |bytes: &[u8], mark: &[u8]| bytes.windows(mark.len()).filter(|found| *found == mark).count();
    let a_and_b = both(b"zR\0\0");
    let tables = tables_of(Arch::Aarch64, &Unwind::EhFrame { bytes: &a_and_b, addr: 0 }, 100);
    assert_eq!((marks(&tables.bytes, b"zRB\0"), marks(&tables.bytes, b"zR\0")), (1, 1));
    let b_and_signal = both(b"zRS\0");
    assert_eq!(refused(Arch::Aarch64, &Unwind::EhFrame { bytes: &b_and_signal, addr: 0 }, 100), Error::UnwindFormat);
    // If the two entries belong to separate pieces of code, each piece keeps its own mark.
    let piece = |from: u64| {
        encode(Arch::Aarch64, &Unwind::EhFrame { bytes: &b_and_signal, addr: 0 }, CODE + from, 50).unwrap().unwrap()
    };
    assert_eq!((marks(&piece(0).bytes, b"zRB\0"), marks(&piece(50).bytes, b"zRS\0")), (1, 1));
}
