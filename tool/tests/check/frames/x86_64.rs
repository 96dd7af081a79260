//! Functions for x86-64 as compilers make them, at random, with the rows that are right for them.

use std::collections::BTreeMap;

use super::{Function, Row};
use crate::rng::Random;

const RBP: u32 = 6;
const RSP: u32 = 7;
/// A DWARF number, and the instructions `push`, `pop` and `xor REG, REG`.
type Kept = (u32, &'static [u8], &'static [u8], &'static [u8]);
/// The registers that a function has to keep, without rbp.
const KEPT: [Kept; 5] = [
    (3, &[0x53], &[0x5b], &[0x31, 0xdb]),
    (12, &[0x41, 0x54], &[0x41, 0x5c], &[0x45, 0x31, 0xe4]),
    (13, &[0x41, 0x55], &[0x41, 0x5d], &[0x45, 0x31, 0xed]),
    (14, &[0x41, 0x56], &[0x41, 0x5e], &[0x45, 0x31, 0xf6]),
    (15, &[0x41, 0x57], &[0x41, 0x5f], &[0x45, 0x31, 0xff]),
];
const PUSH_RBP: &[u8] = &[0x55];
const POP_RBP: &[u8] = &[0x5d];
const RET: &[u8] = &[0xc3];

/// What is true between two instructions.
#[derive(Clone)]
struct Now {
    depth: i32,
    frame_pointer: bool,
    saved: BTreeMap<u32, i32>,
}

struct Maker<'a> {
    random: &'a mut Random,
    out: Function,
    now: Now,
    frame_pointer: bool,
    /// In the order in which they were pushed.
    pushed: Vec<usize>,
    locals: i32,
}

/// One function. `frame_pointer`: it has one; else it leaves rbp alone.
pub fn function(random: &mut Random, frame_pointer: bool) -> Function {
    let now = Now { depth: 8, frame_pointer: false, saved: BTreeMap::new() };
    let mut maker = Maker { random, out: Function::default(), now, frame_pointer, pushed: Vec::new(), locals: 0 };
    maker.row();
    if !frame_pointer && maker.random.one_in(8) {
        // It has no frame.
        for _ in 0..=maker.random.below(4) {
            maker.out.instruction(&[0x48, 0x8b, 0x07]);
        }
        maker.out.instruction(RET);
        return maker.out;
    }
    maker.prologue();
    for _ in 0..=maker.random.below(5) {
        maker.piece(2);
    }
    maker.epilogue();
    maker.out
}

impl Maker<'_> {
    /// The state after an instruction.
    fn row(&mut self) {
        let Now { depth, frame_pointer, saved } = self.now.clone();
        let cfa = if frame_pointer { (RBP, 16) } else { (RSP, depth) };
        self.out.row(Row { offset: self.out.code.len() as u32, cfa, saved: saved.into_iter().collect() });
    }

    /// An instruction that moves the stack pointer down so far.
    fn moves(&mut self, bytes: &[u8], down: i32) {
        self.out.instruction(bytes);
        self.now.depth += down;
        self.row();
    }

    fn rsp(&mut self, down: i32) {
        let (operation, size) = if down > 0 { (0xec, down) } else { (0xc4, -down) };
        if size < 128 && self.random.one_in(2) {
            self.moves(&[0x48, 0x83, operation, size as u8], down);
        } else {
            self.moves(&[&[0x48, 0x81, operation][..], &size.to_le_bytes()].concat(), down);
        }
    }

    fn prologue(&mut self) {
        if self.random.one_in(4) {
            self.out.instruction(&[0xf3, 0x0f, 0x1e, 0xfa]);
        }
        if self.frame_pointer {
            self.now.saved.insert(RBP, -16);
            self.moves(PUSH_RBP, 8);
            let to_rbp: &[u8] = if self.random.one_in(2) { &[0x48, 0x89, 0xe5] } else { &[0x48, 0x8b, 0xec] };
            self.now.frame_pointer = true;
            self.moves(to_rbp, 0);
        }
        for (number, (register, push, ..)) in KEPT.into_iter().enumerate() {
            if self.random.one_in(2) {
                self.now.saved.insert(register, -self.now.depth - 8);
                self.moves(push, 8);
                self.pushed.push(number);
            }
        }
        self.locals = 8 * self.random.below(40) as i32;
        if self.locals > 0 {
            self.rsp(self.locals);
        }
        for number in self.pushed.clone() {
            self.out.instruction(KEPT[number].3);
        }
    }

    /// Up to the return instruction, and the state before it again.
    fn epilogue(&mut self) {
        let before = self.now.clone();
        // Distances from rbp: its own slot is 16 below the CFA.
        let lowest = -8 * self.pushed.len() as i32;
        if self.frame_pointer && self.random.one_in(2) {
            self.moves(&[0x48, 0x8d, 0x65, lowest as u8], -self.locals);
        } else if self.frame_pointer && self.pushed.is_empty() && self.random.one_in(2) {
            self.now = Now { depth: 8, frame_pointer: false, saved: BTreeMap::new() };
            self.moves(&[0xc9], 0);
        } else if self.locals > 0 {
            self.rsp(-self.locals);
        }
        if self.now.depth > 8 {
            for number in self.pushed.clone().into_iter().rev() {
                // The word keeps the value until it is overwritten, and either may be said.
                if self.random.one_in(2) {
                    self.now.saved.remove(&KEPT[number].0);
                }
                self.moves(KEPT[number].2, -8);
            }
            if self.frame_pointer {
                self.now.frame_pointer = false;
                self.now.saved.remove(&RBP);
                self.moves(POP_RBP, -8);
            }
        }
        self.out.instruction(RET);
        self.now = before;
    }

    /// Something that leaves the frame as it is in the end.
    fn piece(&mut self, nested: usize) {
        match self.random.below(if nested == 0 { 4 } else { 7 }) {
            0 => self.out.instruction(&[0x48, 0x8b, 0x07]),
            1 if self.locals >= 16 => {
                let at = 8 * self.random.below(self.locals as usize / 8) as i32;
                self.out.instruction(&[&[0x48, 0x89, 0x84, 0x24][..], &at.to_le_bytes()].concat());
            }
            1 => self.out.instruction(&[0x48, 0xff, 0xc0]),
            2 => {
                self.moves(&[0x50], 8);
                self.moves(&[0x59], -8);
            }
            3 => self.call(),
            // `test rax, rax; jz` over it.
            4 => {
                self.out.instruction(&[0x48, 0x85, 0xc0]);
                self.around(&[0x0f, 0x84], nested);
            }
            // A loop: `dec rcx; jnz`.
            5 => {
                let start = self.out.code.len();
                self.piece(nested - 1);
                self.out.instruction(&[0x48, 0xff, 0xc9]);
                let back = start as i32 - self.out.code.len() as i32 - 6;
                self.out.instruction(&[&[0x0f, 0x85][..], &back.to_le_bytes()].concat());
            }
            // It returns here, and a branch leads around that.
            _ => {
                let at = self.out.code.len();
                self.out.instruction(&[0x0f, 0x85, 0, 0, 0, 0]);
                self.epilogue();
                self.land(at + 2);
                self.row();
            }
        }
    }

    fn around(&mut self, branch: &[u8], nested: usize) {
        let at = self.out.code.len() + branch.len();
        self.out.instruction(&[branch, &[0; 4]].concat());
        self.piece(nested - 1);
        self.land(at);
    }

    /// The branch with its distance there leads here.
    fn land(&mut self, at: usize) {
        let distance = (self.out.code.len() - at - 4) as i32;
        self.out.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// With some arguments on the stack.
    fn call(&mut self) {
        let arguments = self.random.below(4) as i32;
        for number in 0..arguments {
            let push: &[u8] = if number % 2 == 0 { &[0x57] } else { &[0x6a, 7] };
            self.moves(push, 8);
        }
        match self.random.below(2) {
            0 => self.out.instruction(&[0xff, 0xd0]),
            _ => self.out.instruction(&[0xe8, 0, 0, 0x10, 0]),
        }
        if arguments > 0 {
            self.rsp(-8 * arguments);
        }
    }
}
