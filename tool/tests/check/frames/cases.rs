//! The smallest functions whose tables break a rule, and others that are as near as can be.

use jitsym::format::arch::Arch;
use jitsym::{FramePointer, SavedRegister, SigningKey, Unwind, UnwindRow};
use jitsym_tool::check::Frames;

use crate::build::{described, described_by};
use crate::cases::{case, Case};

/// All of them.
pub fn cases() -> Vec<Case> {
    let saved = |reg, offset| SavedRegister { reg, offset };
    fn row(offset: u32, cfa_register: u32, cfa_offset: i32, saved: &[SavedRegister]) -> UnwindRow<'_> {
        UnwindRow { offset, cfa_register, cfa_offset, saved }
    }
    let (rbx, rbp, rsp) = (3, 6, 7);
    let of_rbp = [saved(rbp, -16)];
    let with_rbp = [row(0, rsp, 8, &[]), row(1, rsp, 16, &of_rbp), row(4, rbp, 16, &of_rbp), row(5, rsp, 8, &[])];
    // push rbp; mov rbp, rsp; pop rbp; ret
    let pushes = b"\x55\x48\x89\xe5\x5d\xc3";
    // xor eax, eax; four times nop; ret
    let pushes_none = b"\x31\xc0\x90\x90\x90\x90\xc3";
    // sub rsp, 8; add rsp, 8; ret
    let moves = b"\x48\x83\xec\x08\x48\x83\xc4\x08\xc3";
    let sized =
        |size| described(Arch::X86_64, moves, &[row(0, rsp, 8, &[]), row(4, rsp, size, &[]), row(8, rsp, 8, &[])]);
    // push rbx; pop rbx; ret
    let rbx_at = |at| {
        let of_rbx = [saved(rbx, at)];
        let rows = [row(0, rsp, 8, &[]), row(1, rsp, 16, &of_rbx), row(2, rsp, 8, &[])];
        described(Arch::X86_64, b"\x53\x5b\xc3", &rows)
    };
    // stp x29, x30, [sp, #-16]!; mov x29, sp; ldp x29, x30, [sp], #16; ret
    let arm = b"\xfd\x7b\xbf\xa9\xfd\x03\x00\x91\xfd\x7b\xc1\xa8\xc0\x03\x5f\xd6";
    let lr_at = |at| {
        let both = [saved(29, -16), saved(30, at)];
        described(Arch::Aarch64, arm, &[row(0, 31, 0, &[]), row(4, 31, 16, &both), row(12, 31, 0, &[])])
    };
    // paciasp; stp x29, x30, [sp, #-16]!; mov x29, sp; ldp x29, x30, [sp], #16; autiasp; ret. The same with key B.
    let signed_arm = |sign: u8, check: u8, key| {
        let code = [&[sign, 0x23, 3, 0xd5], &arm[..12], &[check, 0x23, 3, 0xd5], &arm[12..]].concat();
        let frame = FramePointer { pushed: 8, set: 12, epilogue_begin: 16, signed: key, ..FramePointer::default() };
        described_by(Arch::Aarch64, &code, &Unwind::FramePointer(frame))
    };
    let leaves = |rows: &[UnwindRow]| described(Arch::X86_64, b"\x90\x48\x83\xc4\x10\xe9\0\x10\0\0", rows);
    let fixed = |size| described(Arch::X86_64, pushes_none, &[row(0, rsp, size, &[])]);
    vec![
        case(
            "unwind-frame-pointer",
            described(Arch::X86_64, pushes_none, &with_rbp[..3]),
            described(Arch::X86_64, pushes, &with_rbp),
        ),
        case("unwind-cfa-wrong", sized(24), sized(16)),
        case("unwind-cfa-wrong", fixed(16), fixed(8)),
        case(
            "unwind-epilogue",
            described(Arch::X86_64, pushes, &with_rbp[..3]),
            described(Arch::X86_64, pushes, &with_rbp),
        ),
        // The row for the end is there, and one instruction early.
        case(
            "unwind-epilogue",
            described(Arch::X86_64, b"\x55\x48\x89\xe5\x90\x5d\xc3", &with_rbp),
            described(Arch::X86_64, pushes, &with_rbp),
        ),
        // A trace that leaves for another one with a smaller frame: nop; add rsp, 16; jmp, far away.
        case("unwind-epilogue", leaves(&[row(0, rsp, 48, &[])]), leaves(&[row(0, rsp, 48, &[]), row(5, rsp, 32, &[])])),
        case("unwind-return-address", lr_at(-24), lr_at(-8)),
        case("unwind-return-address", signed_arm(0x3f, 0xbf, None), signed_arm(0x3f, 0xbf, Some(SigningKey::A))),
        case("unwind-return-address", signed_arm(0x7f, 0xff, None), signed_arm(0x7f, 0xff, Some(SigningKey::B))),
        case("unwind-saved-register", rbx_at(-24), rbx_at(-16)),
    ]
}

/// What it is, the code, its rows as offset, register and distance, and what comes of the comparison.
type NotFound = (&'static str, &'static [u8], &'static [(u32, u32, i32)], Frames);

/// Code whose tables are wrong in places that its instructions tell nothing of, or that only look wrong.
pub const NOT_FOUND: &[NotFound] = &[
    ("nothing but nop, to the end", &[0x90; 8], &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("traps", &[0xcc; 8], &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("returns", &[0xc3; 8], &[(0, 7, 16)], Frames::NotKnown),
    ("no instruction", b"\x90\x06\xc3", &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("half an instruction", b"\x90\x48\x81\xec", &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("a privileged instruction", b"\x90\xf4\xc3", &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("a loop without an end", b"\x90\xeb\xfd", &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("a jump over a prefix", b"\x90\x74\x01\xf0\x0f\xb1\x0f\xc3", &[(0, 7, 8), (1, 7, 16)], Frames::NotKnown),
    ("an aligned stack: and rsp, -64; ret", b"\x48\x83\xe4\xc0\xc3", &[(0, 7, 8), (4, 7, 72)], Frames::Partly),
    (
        "ways that do not agree: jz; push rax; nop; jmp rdx",
        b"\x74\x01\x50\x90\xff\xe2",
        &[(0, 7, 8), (3, 7, 16)],
        Frames::Partly,
    ),
    (
        "a callee that takes its argument: sub rsp, 8; push rax; call rdx; add rsp, 8; ret",
        b"\x48\x83\xec\x08\x50\xff\xd2\x48\x83\xc4\x08\xc3",
        &[(0, 7, 8), (4, 7, 16), (5, 7, 24), (7, 7, 16), (11, 7, 8)],
        Frames::Partly,
    ),
    (
        "what only an indirect jump reaches: nop; jmp rax; push rbx; ret",
        b"\x90\xff\xe0\x53\xc3",
        &[(0, 7, 8)],
        Frames::Proved,
    ),
    ("the end of a trace: add rsp, 40; ret", b"\x48\x83\xc4\x28\xc3", &[(0, 7, 48), (4, 7, 8)], Frames::Proved),
    ("a stub within a frame: nop; ret", b"\x90\xc3", &[(0, 6, 16)], Frames::Partly),
    (
        "a call that does not come back: push rax; call rdx; nop",
        b"\x74\x01\xc3\x50\xff\xd2\x66\x90",
        &[(0, 7, 8), (4, 7, 16)],
        Frames::Proved,
    ),
];
