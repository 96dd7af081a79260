//! The tables of trampolines, at every offset. The offsets are those of the instructions in `format/trampoline/tests.rs`.

use super::*;
use crate::format::trampoline::Trampoline;

fn check_words(arch: Arch, words: u32, steps: &[(u64, Row)]) {
    let made = Trampoline::new(arch, CODE, words);
    check(arch, &made.unwind(), made.code().len() as u64, steps);
}

#[test]
fn x86_64() {
    for (words, epilogue) in [(0, 22), (3, 35)] {
        let saved = [(16, -8), (6, -16)];
        let entry = || row(7, 8, [(16, -8)]);
        let steps = [(0, entry()), (5, row(7, 16, saved)), (8, row(6, 16, saved)), (epilogue, entry())];
        check_words(Arch::X86_64, words, &steps);
    }
}

#[test]
fn aarch64() {
    for (words, epilogue) in [(0, 36), (3, 68)] {
        // The register 34 is RA_SIGN_STATE.
        let (signed, saved) = ([(34, 1)], [(29, -16), (30, -8), (34, 1)]);
        let steps = [
            (0, row(31, 0, [])),
            (4, row(31, 0, signed)),
            (8, row(31, 16, saved)),
            (12, row(29, 16, saved)),
            (epilogue, row(31, 0, signed)),
            (epilogue + 4, row(31, 0, [])),
        ];
        check_words(Arch::Aarch64, words, &steps);
    }
}

#[test]
fn riscv64() {
    for (words, epilogue) in [(0, 32), (3, 64)] {
        let (ra, both) = ([(1, -8)], [(1, -8), (8, -16)]);
        let steps = [
            (0, row(2, 0, [])),
            (4, row(2, 16, [])),
            (8, row(2, 16, ra)),
            (12, row(2, 16, both)),
            (16, row(8, 0, both)),
            (epilogue, row(8, 0, [(8, -16)])),
            (epilogue + 4, row(2, 16, [])),
            (epilogue + 8, row(2, 0, [])),
        ];
        check_words(Arch::Riscv64, words, &steps);
    }
}
