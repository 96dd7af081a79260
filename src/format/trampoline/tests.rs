//! The instructions are those of `llvm-mc -show-encoding`.

use super::*;
use crate::format::cfi;

const TARGET: u64 = 0x1122_3344_5566_7788;

#[rustfmt::skip]
const X86_64_0: &[&[u8]] = &[
    &[0xf3, 0x0f, 0x1e, 0xfa], // endbr64
    &[0x55], // push rbp
    &[0x48, 0x89, 0xe5], // mov rbp, rsp
    &[0x49, 0xbb, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11], // movabs r11, 0x1122334455667788
    &[0x41, 0xff, 0xd3], // call r11
    &[0x5d], // pop rbp
    &[0xc3], // ret
];

#[rustfmt::skip]
const AARCH64_0: &[&[u8]] = &[
    &[0x3f, 0x23, 0x03, 0xd5], // paciasp
    &[0xfd, 0x7b, 0xbf, 0xa9], // stp x29, x30, [sp, #-16]!
    &[0xfd, 0x03, 0x00, 0x91], // mov x29, sp
    &[0x10, 0xf1, 0x8e, 0xd2], // movz x16, #0x7788
    &[0xd0, 0xac, 0xaa, 0xf2], // movk x16, #0x5566, lsl #16
    &[0x90, 0x68, 0xc6, 0xf2], // movk x16, #0x3344, lsl #32
    &[0x50, 0x24, 0xe2, 0xf2], // movk x16, #0x1122, lsl #48
    &[0x00, 0x02, 0x3f, 0xd6], // blr x16
    &[0xfd, 0x7b, 0xc1, 0xa8], // ldp x29, x30, [sp], #16
    &[0xbf, 0x23, 0x03, 0xd5], // autiasp
    &[0xc0, 0x03, 0x5f, 0xd6], // ret
];

#[rustfmt::skip]
const RISCV64_0: &[&[u8]] = &[
    &[0x13, 0x01, 0x01, 0xff], // addi sp, sp, -16
    &[0x23, 0x34, 0x11, 0x00], // sd ra, 8(sp)
    &[0x23, 0x30, 0x81, 0x00], // sd s0, 0(sp)
    &[0x13, 0x04, 0x01, 0x01], // addi s0, sp, 16
    &[0x17, 0x03, 0x00, 0x00], // auipc t1, 0
    &[0x03, 0x33, 0x03, 0x02], // ld t1, 32(t1)
    &[0xe7, 0x00, 0x03, 0x00], // jalr ra, 0(t1)
    &[0x83, 0x30, 0x81, 0x00], // ld ra, 8(sp)
    &[0x03, 0x34, 0x01, 0x00], // ld s0, 0(sp)
    &[0x13, 0x01, 0x01, 0x01], // addi sp, sp, 16
    &[0x67, 0x80, 0x00, 0x00], // ret
];

#[rustfmt::skip]
const X86_64_3: &[&[u8]] = &[
    &[0xf3, 0x0f, 0x1e, 0xfa], // endbr64
    &[0x55], // push rbp
    &[0x48, 0x89, 0xe5], // mov rbp, rsp
    &[0x48, 0x83, 0xec, 0x08], // sub rsp, 8
    &[0xff, 0x75, 0x20], // push qword ptr [rbp + 32]
    &[0xff, 0x75, 0x18], // push qword ptr [rbp + 24]
    &[0xff, 0x75, 0x10], // push qword ptr [rbp + 16]
    &[0x49, 0xbb, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11], // movabs r11, 0x1122334455667788
    &[0x41, 0xff, 0xd3], // call r11
    &[0xc9], // leave
    &[0xc3], // ret
];

#[rustfmt::skip]
const AARCH64_3: &[&[u8]] = &[
    &[0x3f, 0x23, 0x03, 0xd5], // paciasp
    &[0xfd, 0x7b, 0xbf, 0xa9], // stp x29, x30, [sp, #-16]!
    &[0xfd, 0x03, 0x00, 0x91], // mov x29, sp
    &[0xff, 0x83, 0x00, 0xd1], // sub sp, sp, #32
    &[0xb0, 0x0b, 0x40, 0xf9], // ldr x16, [x29, #16]
    &[0xf0, 0x03, 0x00, 0xf9], // str x16, [sp]
    &[0xb0, 0x0f, 0x40, 0xf9], // ldr x16, [x29, #24]
    &[0xf0, 0x07, 0x00, 0xf9], // str x16, [sp, #8]
    &[0xb0, 0x13, 0x40, 0xf9], // ldr x16, [x29, #32]
    &[0xf0, 0x0b, 0x00, 0xf9], // str x16, [sp, #16]
    &[0x10, 0xf1, 0x8e, 0xd2], // movz x16, #0x7788
    &[0xd0, 0xac, 0xaa, 0xf2], // movk x16, #0x5566, lsl #16
    &[0x90, 0x68, 0xc6, 0xf2], // movk x16, #0x3344, lsl #32
    &[0x50, 0x24, 0xe2, 0xf2], // movk x16, #0x1122, lsl #48
    &[0x00, 0x02, 0x3f, 0xd6], // blr x16
    &[0xbf, 0x03, 0x00, 0x91], // mov sp, x29
    &[0xfd, 0x7b, 0xc1, 0xa8], // ldp x29, x30, [sp], #16
    &[0xbf, 0x23, 0x03, 0xd5], // autiasp
    &[0xc0, 0x03, 0x5f, 0xd6], // ret
];

#[rustfmt::skip]
const RISCV64_3: &[&[u8]] = &[
    &[0x13, 0x01, 0x01, 0xff], // addi sp, sp, -16
    &[0x23, 0x34, 0x11, 0x00], // sd ra, 8(sp)
    &[0x23, 0x30, 0x81, 0x00], // sd s0, 0(sp)
    &[0x13, 0x04, 0x01, 0x01], // addi s0, sp, 16
    &[0x13, 0x01, 0x01, 0xfe], // addi sp, sp, -32
    &[0x03, 0x33, 0x04, 0x00], // ld t1, 0(s0)
    &[0x23, 0x30, 0x61, 0x00], // sd t1, 0(sp)
    &[0x03, 0x33, 0x84, 0x00], // ld t1, 8(s0)
    &[0x23, 0x34, 0x61, 0x00], // sd t1, 8(sp)
    &[0x03, 0x33, 0x04, 0x01], // ld t1, 16(s0)
    &[0x23, 0x38, 0x61, 0x00], // sd t1, 16(sp)
    &[0x17, 0x03, 0x00, 0x00], // auipc t1, 0
    &[0x03, 0x33, 0x43, 0x02], // ld t1, 36(t1)
    &[0xe7, 0x00, 0x03, 0x00], // jalr ra, 0(t1)
    &[0x13, 0x01, 0x04, 0xff], // addi sp, s0, -16
    &[0x83, 0x30, 0x81, 0x00], // ld ra, 8(sp)
    &[0x03, 0x34, 0x01, 0x00], // ld s0, 0(sp)
    &[0x13, 0x01, 0x01, 0x01], // addi sp, sp, 16
    &[0x67, 0x80, 0x00, 0x00], // ret
];

#[test]
fn instructions() {
    let all = [
        (Arch::X86_64, [X86_64_0, X86_64_3]),
        (Arch::Aarch64, [AARCH64_0, AARCH64_3]),
        (Arch::Riscv64, [RISCV64_0, RISCV64_3]),
    ];
    assert_eq!(all.map(|(arch, _)| arch), Arch::ALL);
    for (arch, expected) in all {
        for (words, expected) in [0, 3].into_iter().zip(expected) {
            let made = Trampoline::new(arch, TARGET, words);
            assert_eq!(made.code(), expected.concat(), "{arch:?}, {words} words");
            let rest = &made.bytes()[made.code().len()..];
            match arch {
                Arch::Riscv64 => assert_eq!(rest, [&[0; 4][..], &TARGET.to_le_bytes()].concat()),
                _ => assert!(rest.is_empty()),
            }
        }
    }
}

/// Without stack arguments, a trampoline fits into 64 bytes. With any number of words, the code is complete, and its unwind
/// description is accepted.
#[test]
fn every_number_of_words() {
    for &arch in Arch::ALL {
        assert!(Trampoline::new(arch, TARGET, 0).bytes().len() <= 64);
        for words in 0..=WORDS_MAX {
            let made = Trampoline::new(arch, TARGET, words);
            let last: &[u8] = match arch {
                Arch::X86_64 => X86_64_0[X86_64_0.len() - 1],
                Arch::Aarch64 => AARCH64_0[AARCH64_0.len() - 1],
                Arch::Riscv64 => RISCV64_0[RISCV64_0.len() - 1],
            };
            assert!(made.code().ends_with(last), "{arch:?}, {words} words");
            assert!(made.code().len() <= made.bytes().len() && made.bytes().len() <= LEN_MAX);
            let size = made.code().len() as u64;
            assert!(cfi::encode(arch, &made.unwind(), 4096, size).is_ok(), "{arch:?}, {words} words");
        }
    }
}

/// The displacements of `push` on x86-64, of one byte and of four.
#[test]
fn distant_words() {
    let made = Trampoline::new(Arch::X86_64, TARGET, 16);
    let pushes = [
        &[0xff, 0xb5, 0x88, 0, 0, 0][..], // push qword ptr [rbp + 136]
        &[0xff, 0xb5, 0x80, 0, 0, 0],     // push qword ptr [rbp + 128]
        &[0xff, 0x75, 0x78],              // push qword ptr [rbp + 120]
    ];
    assert!(made.code()[8..].starts_with(&pushes.concat()));
}
