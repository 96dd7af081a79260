//! Functions for AArch64 as compilers make them, at random, with the rows that are right for them.

use std::collections::BTreeMap;

use super::{Function, Row};
use crate::rng::Random;

const FP: u32 = 29;
const LR: u32 = 30;
const SP: u32 = 31;
const RET: u32 = 0xd65f_03c0;

struct Maker<'a> {
    random: &'a mut Random,
    out: Function,
    /// CFA minus stack pointer.
    depth: i32,
    saved: BTreeMap<u32, i32>,
    frame_pointer: bool,
    /// Bytes of the frame record and of what is saved above it.
    frame: i32,
    /// Pairs of registers from x19 on that are saved.
    pairs: u32,
    locals: i32,
}

/// One function. `frame_pointer`: its frame is counted from x29 once that is set; else x29 keeps the caller's value.
pub fn function(random: &mut Random, frame_pointer: bool) -> Function {
    let pairs = random.below(4) as u32;
    let locals = 16 * random.below(20) as i32;
    let frame = 16 + 16 * pairs as i32 + 16 * random.below(3) as i32;
    let (out, saved) = (Function::default(), BTreeMap::new());
    let mut maker = Maker { random, out, depth: 0, saved, frame_pointer, frame, pairs, locals };
    maker.row((SP, 0));
    if !frame_pointer && maker.random.one_in(8) {
        // It has no frame.
        for _ in 0..=maker.random.below(4) {
            maker.put(0xf940_0000);
        }
        maker.put(RET);
        return maker.out;
    }
    maker.prologue();
    for _ in 0..maker.random.below(6) {
        maker.piece();
    }
    maker.epilogue();
    maker.out
}

impl Maker<'_> {
    fn row(&mut self, cfa: (u32, i32)) {
        let saved = self.saved.iter().map(|(&register, &at)| (register, at)).collect();
        self.out.row(Row { offset: self.out.code.len() as u32, cfa, saved });
    }

    fn put(&mut self, word: u32) {
        self.out.instruction(&word.to_le_bytes());
    }

    /// A load or store of two registers at a distance from the stack pointer.
    fn pair(&mut self, operation: u32, first: u32, second: u32, distance: i32) {
        self.put(operation | ((distance / 8) as u32 & 0x7f) << 15 | second << 10 | SP << 5 | first);
    }

    fn prologue(&mut self) {
        if self.random.one_in(4) {
            // bti c
            self.put(0xd503_245f);
        }
        self.pair(0xa980_0000, FP, LR, -self.frame);
        self.depth = self.frame;
        self.saved.extend([(FP, -self.frame), (LR, 8 - self.frame)]);
        self.row((SP, self.depth));
        if self.frame_pointer {
            self.put(0x9100_03fd);
            self.row((FP, self.frame));
        }
        for pair in 0..self.pairs {
            let (register, at) = (19 + 2 * pair, 16 + 16 * pair as i32);
            self.pair(0xa900_0000, register, register + 1, at);
            self.saved.extend([(register, at - self.frame), (register + 1, at + 8 - self.frame)]);
            self.row(self.cfa());
        }
        if self.locals > 0 {
            self.put(0xd100_03ff | (self.locals as u32) << 10);
            self.depth += self.locals;
            self.row(self.cfa());
        }
        for pair in 0..self.pairs {
            // mov x19, x0
            self.put(0xaa00_03e0 | (19 + 2 * pair));
        }
    }

    fn cfa(&self) -> (u32, i32) {
        if self.frame_pointer {
            (FP, self.frame)
        } else {
            (SP, self.depth)
        }
    }

    /// Up to the return instruction, and the state before it again.
    fn epilogue(&mut self) {
        let (depth, saved) = (self.depth, self.saved.clone());
        if self.locals > 0 {
            if self.frame_pointer && self.random.one_in(2) {
                // mov sp, x29
                self.put(0x9100_03bf);
            } else {
                self.put(0x9100_03ff | (self.locals as u32) << 10);
            }
            self.depth -= self.locals;
            self.row(self.cfa());
        }
        for pair in (0..self.pairs).rev() {
            let register = 19 + 2 * pair;
            self.pair(0xa940_0000, register, register + 1, 16 + 16 * pair as i32);
        }
        self.pair(0xa8c0_0000, FP, LR, self.frame);
        self.depth = 0;
        self.saved.clear();
        self.row((SP, 0));
        self.put(RET);
        (self.depth, self.saved) = (depth, saved);
    }

    /// Something that leaves the frame as it is in the end.
    fn piece(&mut self) {
        match self.random.below(4) {
            // ldr x0, [x0]
            0 => self.put(0xf940_0000),
            // bl, far away
            1 => self.put(0x9410_0000),
            // str x0, [sp, #8]
            2 if self.locals > 0 => self.put(0xf900_07e0),
            // cmp x0, #1
            2 => self.put(0xf100_041f),
            // It returns here, and a branch (cbz) leads around that.
            _ => {
                let at = self.out.code.len();
                self.put(0xb400_0000);
                self.epilogue();
                let distance = (self.out.code.len() - at) as u32 / 4;
                self.out.code[at..at + 4].copy_from_slice(&(0xb400_0000 | distance << 5).to_le_bytes());
                self.row(self.cfa());
            }
        }
    }
}
