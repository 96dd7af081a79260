//! The machine code of trampolines, and how unwinders find the caller's frame in this code.
//!
//! A trampoline makes a frame with a frame pointer, copies the stack arguments of its caller, calls its target, and returns.
//! The code changes no register that can contain an argument or a result. Before the call, it changes only a register that the
//! ABI leaves to linkers: r11, x16 or t1.

#[cfg(test)]
mod tests;

use super::arch::Arch;
use crate::api::code::{FramePointer, SavedRegister, SigningKey, Unwind, UnwindRow};

/// The largest number of words of stack arguments.
pub const WORDS_MAX: u32 = 32;

/// No trampoline has more bytes.
const LEN_MAX: usize = 320;

/// One trampoline.
pub struct Trampoline {
    bytes: [u8; LEN_MAX],
    /// The number of bytes, including the address of the target after the code.
    len: usize,
    /// Size of the code in bytes.
    size: usize,
    frame: Frame,
}

enum Frame {
    Pointer(FramePointer<'static>),
    Rows([UnwindRow<'static>; 7]),
}

impl Trampoline {
    /// A trampoline that calls `target` with `words` words of stack arguments. `words` is at most `WORDS_MAX`.
    pub fn new(arch: Arch, target: u64, words: u32) -> Trampoline {
        let mut code = Code { bytes: [0; LEN_MAX], len: 0 };
        let frame = match arch {
            Arch::X86_64 => x86_64(&mut code, target, words),
            Arch::Aarch64 => aarch64(&mut code, target, words),
            Arch::Riscv64 => riscv64(&mut code, words),
        };
        let size = code.len;
        if arch == Arch::Riscv64 {
            code.len = literal(size);
            code.put(&target.to_le_bytes());
        }
        Trampoline { bytes: code.bytes, len: code.len, size, frame }
    }

    /// What has to be in memory. The code begins at a multiple of eight bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The instructions. These are the first of the bytes.
    pub fn code(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    pub fn unwind(&self) -> Unwind<'_> {
        match &self.frame {
            Frame::Pointer(frame) => Unwind::FramePointer(*frame),
            Frame::Rows(rows) => Unwind::Rows(rows),
        }
    }
}

/// Code that is being made.
struct Code {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Code {
    /// Appends bytes. Bytes that do not fit are left out.
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
    }

    /// Appends instructions of four bytes.
    fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.put(&word.to_le_bytes()));
    }

    fn at(&self) -> u32 {
        self.len as u32
    }
}

fn x86_64(code: &mut Code, target: u64, words: u32) -> Frame {
    code.put(&[0xf3, 0x0f, 0x1e, 0xfa]); // endbr64
    code.put(&[0x55]); // push rbp
    let pushed = code.at();
    code.put(&[0x48, 0x89, 0xe5]); // mov rbp, rsp
    let set = code.at();
    if words % 2 == 1 {
        code.put(&[0x48, 0x83, 0xec, 0x08]); // sub rsp, 8
    }
    for offset in (0..words).rev().map(|word| 16 + 8 * word) {
        match i8::try_from(offset) {
            Ok(short) => code.put(&[0xff, 0x75, short as u8]), // push qword ptr [rbp + offset]
            Err(_) => {
                code.put(&[0xff, 0xb5]); // the same
                code.put(&offset.to_le_bytes());
            }
        }
    }
    code.put(&[0x49, 0xbb]); // movabs r11, target
    code.put(&target.to_le_bytes());
    code.put(&[0x41, 0xff, 0xd3]); // call r11
    code.put(&[if words == 0 { 0x5d } else { 0xc9 }]); // pop rbp, or leave
    let epilogue_begin = code.at();
    code.put(&[0xc3]); // ret
    Frame::Pointer(FramePointer { pushed, set, epilogue_begin, ..FramePointer::default() })
}

/// The code begins with `paciasp`, which is also a landing pad for calls and jumps by x16 or x17 (BTI).
fn aarch64(code: &mut Code, target: u64, words: u32) -> Frame {
    code.words(&[
        0xd503_233f, // paciasp
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
        0x9100_03fd, // mov x29, sp
    ]);
    if words != 0 {
        code.words(&[0xd100_03ff | stack(words) << 10]); // sub sp, sp, #stack
    }
    for word in 0..words {
        code.words(&[
            0xf940_03b0 | (word + 2) << 10, // ldr x16, [x29, #(16 + 8 * word)]
            0xf900_03f0 | word << 10,       // str x16, [sp, #(8 * word)]
        ]);
    }
    let part = |number: u32| (target >> (16 * number)) as u32 & 0xffff;
    code.words(&[0xd280_0010 | part(0) << 5]); // movz x16, #part
    for number in 1..4 {
        code.words(&[0xf280_0010 | number << 21 | part(number) << 5]); // movk x16, #part, lsl #(16 * number)
    }
    code.words(&[0xd63f_0200]); // blr x16
    if words != 0 {
        code.words(&[0x9100_03bf]); // mov sp, x29
    }
    code.words(&[0xa8c1_7bfd]); // ldp x29, x30, [sp], #16
    let epilogue_begin = code.at();
    code.words(&[
        0xd503_23bf, // autiasp
        0xd65f_03c0, // ret
    ]);
    Frame::Pointer(FramePointer { epilogue_begin, signed: Some(SigningKey::A), ..FramePointer::default() })
}

/// The offset of the address of the target on riscv64, where the code loads this address from memory.
fn literal(size: usize) -> usize {
    size.next_multiple_of(8)
}

fn riscv64(code: &mut Code, words: u32) -> Frame {
    const SP: u32 = 2;
    const S0: u32 = 8;
    const RA_SAVED: SavedRegister = SavedRegister { reg: 1, offset: -8 };
    const S0_SAVED: SavedRegister = SavedRegister { reg: S0, offset: -16 };

    code.words(&[
        0xff01_0113, // addi sp, sp, -16
        0x0011_3423, // sd ra, 8(sp)
        0x0081_3023, // sd s0, 0(sp)
        0x0101_0413, // addi s0, sp, 16
    ]);
    if words != 0 {
        code.words(&[stack(words).wrapping_neg() << 20 | 0x0001_0113]); // addi sp, sp, -stack
    }
    for offset in (0..words).map(|word| 8 * word) {
        code.words(&[
            offset << 20 | 0x0004_3303,                             // ld t1, offset(s0)
            (offset >> 5) << 25 | (offset & 31) << 7 | 0x0061_3023, // sd t1, offset(sp)
        ]);
    }
    let rest = if words == 0 { 7 } else { 8 };
    let distance = literal(code.len + 4 * rest) - code.len;
    code.words(&[
        0x0000_0317,                           // auipc t1, 0
        (distance as u32) << 20 | 0x0003_3303, // ld t1, distance(t1)
        0x0003_00e7,                           // jalr ra, 0(t1)
    ]);
    if words != 0 {
        code.words(&[0xff04_0113]); // addi sp, s0, -16
    }
    code.words(&[0x0081_3083]); // ld ra, 8(sp)
    let end = code.at();
    code.words(&[
        0x0001_3403, // ld s0, 0(sp)
        0x0101_0113, // addi sp, sp, 16
        0x0000_8067, // ret
    ]);
    let row = |offset, cfa_register, cfa_offset, saved| UnwindRow { offset, cfa_register, cfa_offset, saved };
    Frame::Rows([
        row(4, SP, 16, &[]),
        row(8, SP, 16, &[RA_SAVED]),
        row(12, SP, 16, &[RA_SAVED, S0_SAVED]),
        row(16, S0, 0, &[RA_SAVED, S0_SAVED]),
        row(end, S0, 0, &[S0_SAVED]),
        row(end + 4, SP, 16, &[]),
        row(end + 8, SP, 0, &[]),
    ])
}

/// The bytes that `words` take on a stack whose pointer is a multiple of 16.
fn stack(words: u32) -> u32 {
    (8 * words).next_multiple_of(16)
}
