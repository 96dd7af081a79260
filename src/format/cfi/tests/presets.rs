//! Tests of the unwind descriptions `FramePointer`, `FixedFrame` and `Rows`.

use super::*;
use crate::api::code::{FixedFrame, FramePointer, UnwindRow};

/// MoarVM's frame: push rbp; mov rbp,rsp; sub rsp,0x100; three registers stored; ...; leave; ret; data.
const MOAR_SAVED: [SavedRegister; 3] = [
    SavedRegister { reg: 14, offset: -24 },
    SavedRegister { reg: 13, offset: -32 },
    SavedRegister { reg: 3, offset: -40 },
];
pub const MOAR: Unwind = Unwind::FramePointer(FramePointer {
    pushed: 0,
    set: 0,
    epilogue_begin: 90,
    epilogue_end: 91,
    cfa_offset: 0,
    saved: &MOAR_SAVED,
    saved_from: 23,
    signed: None,
});

/// The saved registers of a LuaJIT trace: the registers that the interpreter has saved, and two more.
pub const LUA_SAVED: [SavedRegister; 6] = [
    SavedRegister { reg: 6, offset: -16 },
    SavedRegister { reg: 3, offset: -24 },
    SavedRegister { reg: 15, offset: -32 },
    SavedRegister { reg: 14, offset: -40 },
    SavedRegister { reg: 13, offset: -80 },
    SavedRegister { reg: 12, offset: -88 },
];

pub const fn lua_row(offset: u32, cfa_offset: i32) -> UnwindRow<'static> {
    UnwindRow { offset, cfa_register: 7, cfa_offset, saved: &LUA_SAVED }
}

/// A trace that allocates 96 more bytes at its beginning and frees them before its last jump.
pub const LUA_ROWS: [UnwindRow; 3] = [lua_row(0, 96), lua_row(4, 192), lua_row(90, 96)];

fn lua(cfa_offset: i64) -> Row {
    row(7, cfa_offset, [(6, -16), (3, -24), (15, -32), (14, -40), (13, -80), (12, -88), (16, -8)])
}

#[test]
fn frame_pointer_golden_x86_64() {
    let tables = tables_of(Arch::X86_64, &Unwind::FramePointer(FramePointer::default()), 100);
    golden(
        &tables,
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 10  01 1b  08 03  0c 07 08  90 01
         1c 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  41 0e 10  86 02  43 0d 06  00 00 00 00 00 00 00
         00 00 00 00
         01 1b 03 3b  c0 ff ff ff  01 00 00 00  5c ff ff ff  dc ff ff ff",
    );
}

#[test]
fn frame_pointer_golden_aarch64() {
    let tables = tables_of(Arch::Aarch64, &Unwind::FramePointer(FramePointer::default()), 100);
    golden(
        &tables,
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 1e  01 1b  0c 1f 00  00 00 00 00
         1c 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  44 0e 10  9d 02  9e 01  44 0d 1d  00 00 00 00 00
         00 00 00 00
         01 1b 03 3b  c0 ff ff ff  01 00 00 00  5c ff ff ff  dc ff ff ff",
    );
}

#[test]
fn frame_pointer_golden_riscv64() {
    let tables = tables_of(Arch::Riscv64, &Unwind::FramePointer(FramePointer::default()), 100);
    golden(
        &tables,
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 01  01 1b  0c 02 00  00 00 00 00
         1c 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  4c 0e 10  44 0c 08 00  81 01  88 02  00 00 00 00
         00 00 00 00
         01 1b 03 3b  c0 ff ff ff  01 00 00 00  5c ff ff ff  dc ff ff ff",
    );
}

#[test]
fn moarvm_golden() {
    golden(
        &tables_of(Arch::X86_64, &MOAR, 100),
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 10  01 1b  08 03  0c 07 08  90 01
         2c 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  41 0e 10  86 02  43 0d 06
         53 83 05  8d 04  8e 03  02 43 0a 0c 07 08  c3 c6 cd ce  41 0b 0c 06 10  00
         00 00 00 00
         01 1b 03 3b  b0 ff ff ff  01 00 00 00  4c ff ff ff  cc ff ff ff",
    );
}

#[test]
fn fixed_frame_golden() {
    let unwind = Unwind::FixedFrame(FixedFrame::new(96, &LUA_SAVED));
    golden(
        &tables_of(Arch::X86_64, &unwind, 100),
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 10  01 1b  08 03  0c 07 08  90 01
         1c 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  0e 60  83 03  86 02  8c 0b  8d 0a  8e 05  8f 04  00
         00 00 00 00
         01 1b 03 3b  c0 ff ff ff  01 00 00 00  5c ff ff ff  dc ff ff ff",
    );
}

#[test]
fn rows_golden() {
    golden(
        &tables_of(Arch::X86_64, &Unwind::Rows(&LUA_ROWS), 100),
        20,
        "14 00 00 00  00 00 00 00  01 7a 52 00  01 78 10  01 1b  08 03  0c 07 08  90 01
         24 00 00 00  1c 00 00 00  78 ff ff ff  64 00 00 00  00  0e 60  83 03  86 02  8c 0b  8d 0a  8e 05  8f 04
         44 0e c0 01  02 56 0e 60  00
         00 00 00 00
         01 1b 03 3b  b8 ff ff ff  01 00 00 00  54 ff ff ff  d4 ff ff ff",
    );
}

#[test]
fn frame_pointer_rows_x86_64() {
    let standing = || row(6, 16, [(6, -16), (16, -8)]);
    let steps = [(0, row(7, 8, [(16, -8)])), (1, row(7, 16, [(6, -16), (16, -8)])), (4, standing())];
    check(Arch::X86_64, &Unwind::FramePointer(FramePointer::default()), 40, &steps);
}

#[test]
fn moarvm_rows() {
    let steps = [
        (0, row(7, 8, [(16, -8)])),
        (1, row(7, 16, [(6, -16), (16, -8)])),
        (4, row(6, 16, [(6, -16), (16, -8)])),
        (23, row(6, 16, [(6, -16), (16, -8), (14, -24), (13, -32), (3, -40)])),
        (90, row(7, 8, [(16, -8)])),
        (91, row(6, 16, [(6, -16), (16, -8), (14, -24), (13, -32), (3, -40)])),
    ];
    check(Arch::X86_64, &MOAR, 100, &steps);
    // The same code, without the data after the epilogue.
    check(Arch::X86_64, &MOAR, 91, &steps[..5]);
}

#[test]
fn frame_pointer_epilogue_to_the_end() {
    let fp = FramePointer { epilogue_begin: 20, ..FramePointer::default() };
    let steps = [
        (0, row(7, 8, [(16, -8)])),
        (1, row(7, 16, [(6, -16), (16, -8)])),
        (4, row(6, 16, [(6, -16), (16, -8)])),
        (20, row(7, 8, [(16, -8)])),
    ];
    check(Arch::X86_64, &Unwind::FramePointer(fp), 30, &steps);
    let same = FramePointer { epilogue_end: 30, ..fp };
    let (a, b) = (Unwind::FramePointer(fp), Unwind::FramePointer(same));
    assert_eq!(tables_of(Arch::X86_64, &a, 30), tables_of(Arch::X86_64, &b, 30));
}

#[test]
fn frame_pointer_saved_before_it_is_set() {
    // nop; stp x29,x30,[sp,#-64]!; stp x20,x19,[sp,#32]; mov x29,sp
    let saved = regs([(20, -32), (19, -24)]);
    let fp = FramePointer { pushed: 4, saved_from: 8, set: 12, cfa_offset: 64, saved: &saved, ..Default::default() };
    let steps = [
        (0, row(31, 0, [])),
        (4, row(31, 64, [(29, -64), (30, -56)])),
        (8, row(31, 64, [(29, -64), (30, -56), (20, -32), (19, -24)])),
        (12, row(29, 64, [(29, -64), (30, -56), (20, -32), (19, -24)])),
    ];
    check(Arch::Aarch64, &Unwind::FramePointer(fp), 40, &steps);
}

#[test]
fn frame_pointer_rows_aarch64() {
    // stp x29,x30,[sp,#-64]!; mov x29,sp; stp d8,d9,[sp,#16]; ...; ldp d8,d9,..; ldp x29,x30,[sp],#64; ret; data
    let saved = regs([(72, -48), (73, -40)]);
    let fp = FramePointer {
        cfa_offset: 64,
        saved: &saved,
        saved_from: 12,
        epilogue_begin: 40,
        epilogue_end: 44,
        ..Default::default()
    };
    let standing = || row(29, 64, [(29, -64), (30, -56), (72, -48), (73, -40)]);
    let steps = [
        (0, row(31, 0, [])),
        (4, row(31, 64, [(29, -64), (30, -56)])),
        (8, row(29, 64, [(29, -64), (30, -56)])),
        (12, standing()),
        (40, row(31, 0, [])),
        (44, standing()),
    ];
    check(Arch::Aarch64, &Unwind::FramePointer(fp), 48, &steps);
}

#[test]
fn frame_pointer_rows_riscv64() {
    let fp = FramePointer { epilogue_begin: 32, ..FramePointer::default() };
    let entry = || row(2, 0, []);
    let steps = [(0, entry()), (12, row(2, 16, [])), (16, row(8, 0, [(1, -8), (8, -16)])), (32, entry())];
    check(Arch::Riscv64, &Unwind::FramePointer(fp), 36, &steps);
    // Cranelift and V8 point s0 to the saved pair.
    let fp = FramePointer { cfa_offset: 16, ..fp };
    let steps = [(0, entry()), (12, row(2, 16, [])), (16, row(8, 16, [(1, -8), (8, -16)])), (32, entry())];
    check(Arch::Riscv64, &Unwind::FramePointer(fp), 36, &steps);
}

#[test]
fn fixed_frame_rows() {
    check(Arch::X86_64, &Unwind::FixedFrame(FixedFrame::new(96, &LUA_SAVED)), 10, &[(0, lua(96))]);
    check(Arch::X86_64, &Unwind::FixedFrame(FixedFrame::new(8, &[])), 1, &[(0, row(7, 8, [(16, -8)]))]);
    let saved = regs([(30, -8), (72, -16)]);
    let unwind = Unwind::FixedFrame(FixedFrame::new(4096, &saved));
    check(Arch::Aarch64, &unwind, 4, &[(0, row(31, 4096, [(30, -8), (72, -16)]))]);
    let saved = regs([(1, -8), (63, -16)]);
    let unwind = Unwind::FixedFrame(FixedFrame::new(16, &saved));
    check(Arch::Riscv64, &unwind, 4, &[(0, row(2, 16, [(1, -8), (63, -16)]))]);
}

/// MoarVM's frame, described relative to the stack pointer, so that the value of rbp does not matter.
pub const MOAR_BY_SP: FixedFrame<'static> = FixedFrame {
    pushed: 1,
    sp_set: 11,
    saved_from: 23,
    sp_reset: 89,
    epilogue_begin: 90,
    epilogue_end: 91,
    ..FixedFrame::new(0x110, &MOAR_SAVED)
};

#[test]
fn fixed_frame_between_prologue_and_epilogue() {
    let fixed = |frame: FixedFrame<'static>| Unwind::FixedFrame(frame);
    let entry = || row(7, 8, [(16, -8)]);
    let pushed = || row(7, 16, [(6, -16), (16, -8)]);
    let standing = || row(7, 0x110, [(6, -16), (16, -8)]);
    let saved = || row(7, 0x110, [(3, -40), (6, -16), (13, -32), (14, -24), (16, -8)]);
    let head = || vec![(0, entry()), (1, pushed()), (11, standing()), (23, saved())];
    let with = |more: Vec<(u64, _)>| head().into_iter().chain(more).collect::<Vec<_>>();
    let whole = with(vec![(89, pushed()), (90, entry()), (91, saved())]);
    check(Arch::X86_64, &fixed(MOAR_BY_SP), 100, &whole);
    // The code ends with the return instruction. A description can express an epilogue at the end of the code in two ways:
    // `epilogue_end` is the size of the code, or 0.
    let to_end = with(vec![(89, pushed()), (90, entry())]);
    check(Arch::X86_64, &fixed(MOAR_BY_SP), 91, &to_end);
    check(Arch::X86_64, &fixed(FixedFrame { epilogue_end: 0, ..MOAR_BY_SP }), 91, &to_end);
    // `leave` removes the whole frame at once. `for_ever` describes code that does not return.
    check(
        Arch::X86_64,
        &fixed(FixedFrame { sp_reset: 0, ..MOAR_BY_SP }),
        100,
        &with(vec![(90, entry()), (91, saved())]),
    );
    check(
        Arch::X86_64,
        &fixed(FixedFrame { sp_reset: 90, ..MOAR_BY_SP }),
        100,
        &with(vec![(90, entry()), (91, saved())]),
    );
    let for_ever = FixedFrame { sp_reset: 0, epilogue_begin: 0, epilogue_end: 0, ..MOAR_BY_SP };
    check(Arch::X86_64, &fixed(for_ever), 100, &head());
    // A frame that has no frame pointer: `sub rsp, 24`, `add rsp, 24`, `ret`.
    let plain = FixedFrame { sp_set: 4, epilogue_begin: 30, ..FixedFrame::new(32, &[]) };
    check(Arch::X86_64, &fixed(plain), 31, &[(0, entry()), (4, row(7, 32, [(16, -8)])), (30, entry())]);

    // `stp x29, x30, [sp, -64]!` allocates the whole frame at once. `stp x29, x30, [sp, -16]!` allocates a part of the frame,
    // and `sub sp, sp, 48` allocates the rest.
    let entry = || row(31, 0, []);
    let all = FixedFrame { pushed: 4, sp_set: 4, epilogue_begin: 32, ..FixedFrame::new(64, &[]) };
    check(Arch::Aarch64, &fixed(all), 36, &[(0, entry()), (4, row(31, 64, [(29, -64), (30, -56)])), (32, entry())]);
    let part = FixedFrame { sp_set: 12, sp_reset: 28, ..all };
    let pushed = || row(31, 16, [(29, -16), (30, -8)]);
    let steps = [(0, entry()), (4, pushed()), (12, row(31, 64, [(29, -16), (30, -8)])), (28, pushed()), (32, entry())];
    check(Arch::Aarch64, &fixed(part), 36, &steps);
    // RISC-V has no instruction that stores the frame pointer and the return address together.
    let listed = regs([(1, -8), (8, -16)]);
    let riscv = FixedFrame { sp_set: 4, saved_from: 12, epilogue_begin: 32, ..FixedFrame::new(16, &listed) };
    let steps = [(0, row(2, 0, [])), (4, row(2, 16, [])), (12, row(2, 16, [(1, -8), (8, -16)])), (32, row(2, 0, []))];
    check(Arch::Riscv64, &Unwind::FixedFrame(riscv), 36, &steps);
    assert_eq!(refused(Arch::Riscv64, &Unwind::FixedFrame(FixedFrame { pushed: 4, ..riscv }), 36), Error::UnwindFormat);
}

#[test]
fn places_of_a_fixed_frame_are_checked() {
    for (frame, size) in [
        (FixedFrame { pushed: 12, ..MOAR_BY_SP }, 100),
        (FixedFrame { sp_set: 24, ..MOAR_BY_SP }, 100),
        (FixedFrame { saved_from: 10, ..MOAR_BY_SP }, 100),
        (FixedFrame { sp_reset: 22, ..MOAR_BY_SP }, 100),
        (FixedFrame { sp_reset: 91, ..MOAR_BY_SP }, 100),
        (FixedFrame { pushed: 0, ..MOAR_BY_SP }, 100),
        (FixedFrame { epilogue_begin: 0, epilogue_end: 0, ..MOAR_BY_SP }, 100),
        (FixedFrame { epilogue_begin: 0, sp_reset: 0, ..MOAR_BY_SP }, 100),
        (FixedFrame { epilogue_end: 89, ..MOAR_BY_SP }, 100),
        (MOAR_BY_SP, 90),
        (FixedFrame { sp_set: 0, pushed: 1, ..FixedFrame::new(16, &[]) }, 100),
    ] {
        assert_eq!(refused(Arch::X86_64, &Unwind::FixedFrame(frame), size), Error::UnwindOrder, "{frame:?} {size}");
    }
}

#[test]
fn luajit_rows() {
    check(Arch::X86_64, &Unwind::Rows(&LUA_ROWS), 100, &[(0, lua(96)), (4, lua(192)), (90, lua(96))]);
    // A side trace starts with the frame of its parent.
    let rows = [lua_row(0, 192), lua_row(31, 224)];
    check(Arch::X86_64, &Unwind::Rows(&rows), 60, &[(0, lua(192)), (31, lua(224))]);
}

#[test]
fn rows_change_everything() {
    let (a, b) = (regs([(3, -16), (6, -24)]), regs([(6, -32), (12, -40), (20, 16)]));
    let row_of = |offset, cfa_register, cfa_offset, saved| UnwindRow { offset, cfa_register, cfa_offset, saved };
    let rows = [
        row_of(3, 7, 24, &a[..]),
        row_of(70, 6, 24, &a),
        row_of(400, 12, 40, &b),
        row_of(401, 12, 40, &b),
        row_of(70_000, 7, -16, &[]),
    ];
    let steps = [
        (0, row(7, 8, [(16, -8)])),
        (3, row(7, 24, [(3, -16), (6, -24), (16, -8)])),
        (70, row(6, 24, [(3, -16), (6, -24), (16, -8)])),
        (400, row(12, 40, [(6, -32), (12, -40), (20, 16), (16, -8)])),
        (70_000, row(7, -16, [(16, -8)])),
    ];
    let tables = tables_of(Arch::X86_64, &Unwind::Rows(&rows), 70_001);
    let image = Image::new(Arch::X86_64, &tables, 70_001);
    for offset in [0, 2, 3, 69, 70, 399, 400, 401, 69_999, 70_000] {
        let expected = &steps.iter().rev().find(|step| step.0 <= offset).unwrap().1;
        assert_eq!(&plain(&image.find(offset).unwrap()), expected, "at {offset}");
    }
    // If there are no rows, the state is the same as at entry.
    check(Arch::X86_64, &Unwind::Rows(&[]), 5, &[(0, row(7, 8, [(16, -8)]))]);
}
