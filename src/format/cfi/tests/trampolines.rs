//! The tables of trampolines, at every offset. The offsets are those of the instructions in `format/trampoline/tests.rs`.

use super::*;
use crate::format::trampoline::Trampoline;

fn check_words(arch: Arch, words: u32, steps: &[(u64, Row)]) {
    let made = Trampoline::new(arch, CODE, words).unwrap();
    check(arch, &made.unwind(), made.code().len() as u64, steps);
}

#[test]
fn x86_64() {
    let (entry, saved) = (|| row(7, 8, [(16, -8)]), [(16, -8), (6, -16)]);
    check_words(Arch::X86_64, 0, &[(0, entry()), (5, row(7, 16, saved)), (22, entry())]);
    let frame = [(0, entry()), (5, row(7, 16, saved)), (12, row(7, 48, saved)), (53, entry())];
    check_words(Arch::X86_64, 3, &frame);
}

#[test]
fn aarch64() {
    for (words, epilogue) in [(0, 36), (3, 68)] {
        // The register 34 is RA_SIGN_STATE.
        let (signed, saved) = ([(34, 1)], [(29, -16), (30, -8), (34, 1)]);
        let mut steps = vec![(0, row(31, 0, [])), (4, row(31, 0, signed)), (8, row(31, 16, saved))];
        if words != 0 {
            steps.extend([(16, row(31, 48, saved)), (64, row(31, 16, saved))]);
        }
        steps.extend([(epilogue, row(31, 0, signed)), (epilogue + 4, row(31, 0, []))]);
        check_words(Arch::Aarch64, words, &steps);
    }
}

#[test]
fn riscv64() {
    for (words, restored) in [(0, 36), (3, 68)] {
        let (ra, both) = ([(1, -8)], [(1, -8), (8, -16)]);
        let mut steps = vec![(0, row(2, 0, [])), (8, row(2, 16, [])), (12, row(2, 16, ra)), (16, row(2, 16, both))];
        if words != 0 {
            steps.extend([(24, row(2, 48, both)), (64, row(2, 16, both))]);
        }
        let end = [(restored, row(2, 16, [(8, -16)])), (restored + 4, row(2, 16, [])), (restored + 8, row(2, 0, []))];
        steps.extend(end);
        check_words(Arch::Riscv64, words, &steps);
    }
}
