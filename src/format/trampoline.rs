//! The machine code of trampolines, and how unwinders find the caller's frame in this code.
//!
//! A trampoline makes a frame with a frame pointer, copies the stack arguments of its caller, calls its target, and returns.
//! The code changes no register that can contain an argument or a result. Before the call, it changes only a register that the
//! ABI leaves to linkers: r11, x16 or t1.
//!
//! The CFA is at a fixed distance from the stack pointer, although there is a frame pointer. The tables that gcc makes for an
//! epilogue do not say that the frame pointer has the caller's value again, and perf cannot read the slot below the stack
//! pointer that these tables name. So perf would lose the stack if the CFA depended on the frame pointer.

#[cfg(test)]
mod tests;

use super::arch::Arch;
use crate::api::code::{FixedFrame, SavedRegister, SigningKey, Unwind, UnwindRow};

/// The largest number of words of stack arguments.
pub const WORDS_MAX: u32 = 32;

/// No trampoline has more bytes.
const LEN_MAX: usize = 448;

/// One trampoline.
pub struct Trampoline {
    bytes: [u8; LEN_MAX],
    /// The number of bytes, including the address of the target after the code.
    len: usize,
    /// Size of the code in bytes.
    size: usize,
    frame: Frame,
}

#[allow(clippy::large_enum_variant, reason = "a trampoline lives on the stack of one call")]
enum Frame {
    Fixed(FixedFrame<'static>),
    Rows([UnwindRow<'static>; 8]),
}

impl Trampoline {
    /// A trampoline that calls `target` with `words` words of stack arguments. `words` is at most `WORDS_MAX`. `None` if there
    /// are no trampolines for the architecture.
    pub fn new(arch: Arch, target: u64, words: u32) -> Option<Trampoline> {
        let mut code = Code { bytes: [0; LEN_MAX], len: 0 };
        let frame = match arch {
            Arch::X86_64 => x86_64(&mut code, target, words),
            Arch::Aarch64 => aarch64(&mut code, target, words),
            Arch::Riscv64 => riscv64(&mut code, words),
            Arch::S390x | Arch::I386 | Arch::Arm | Arch::Ppc64le => return None,
        };
        let size = code.len;
        if arch == Arch::Riscv64 {
            code.len = literal(size);
            code.put(&target.to_le_bytes());
        }
        Some(Trampoline { bytes: code.bytes, len: code.len, size, frame })
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
            Frame::Fixed(frame) => Unwind::FixedFrame(*frame),
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

    /// Appends an x86-64 instruction that ends with a number. The instruction has one form for numbers of one byte, and one for
    /// numbers of four bytes.
    fn with_number(&mut self, short: &[u8], long: &[u8], number: u32) {
        match i8::try_from(number) {
            Ok(number) => {
                self.put(short);
                self.put(&number.to_le_bytes());
            }
            Err(_) => {
                self.put(long);
                self.put(&number.to_le_bytes());
            }
        }
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
    let mut sp_set = pushed;
    if words != 0 {
        code.with_number(&[0x48, 0x83, 0xec], &[0x48, 0x81, 0xec], stack(words)); // sub rsp, stack
        sp_set = code.at();
    }
    for offset in (0..words).map(|word| 8 * word) {
        code.with_number(&[0x4c, 0x8b, 0x5d], &[0x4c, 0x8b, 0x9d], 16 + offset); // mov r11, [rbp + 16 + offset]
        code.with_number(&[0x4c, 0x89, 0x5c, 0x24], &[0x4c, 0x89, 0x9c, 0x24], offset);
        // mov [rsp + offset], r11
    }
    code.put(&[0x49, 0xbb]); // movabs r11, target
    code.put(&target.to_le_bytes());
    code.put(&[0x41, 0xff, 0xd3]); // call r11
    code.put(&[if words == 0 { 0x5d } else { 0xc9 }]); // pop rbp, or leave
    let epilogue_begin = code.at();
    code.put(&[0xc3]); // ret
    Frame::Fixed(FixedFrame { pushed, sp_set, epilogue_begin, ..FixedFrame::new(cfa_offset(words), &[]) })
}

/// The code begins with `paciasp`, which is also a landing pad for calls and jumps by x16 or x17 (BTI).
fn aarch64(code: &mut Code, target: u64, words: u32) -> Frame {
    code.words(&[
        0xd503_233f, // paciasp
        0xa9bf_7bfd, // stp x29, x30, [sp, #-16]!
    ]);
    let pushed = code.at();
    code.words(&[0x9100_03fd]); // mov x29, sp
    let (mut sp_set, mut sp_reset) = (pushed, 0);
    if words != 0 {
        code.words(&[0xd100_03ff | stack(words) << 10]); // sub sp, sp, #stack
        sp_set = code.at();
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
        sp_reset = code.at();
    }
    code.words(&[0xa8c1_7bfd]); // ldp x29, x30, [sp], #16
    let epilogue_begin = code.at();
    code.words(&[
        0xd503_23bf, // autiasp
        0xd65f_03c0, // ret
    ]);
    let frame = FixedFrame::new(cfa_offset(words), &[]);
    Frame::Fixed(FixedFrame { pushed, sp_set, sp_reset, epilogue_begin, signed: Some(SigningKey::A), ..frame })
}

/// The offset of the address of the target on riscv64, where the code loads this address from memory.
fn literal(size: usize) -> usize {
    size.next_multiple_of(8)
}

/// The code begins with a landing pad for calls and jumps by a register (Zicfilp). The pad has no label, so it accepts each
/// caller's label, and the target gets this label. Processors without landing pads ignore the instruction.
fn riscv64(code: &mut Code, words: u32) -> Frame {
    const SP: u32 = 2;
    const FRAME: i32 = 16;
    const RA_SAVED: SavedRegister = SavedRegister { reg: 1, offset: -8 };
    const S0_SAVED: SavedRegister = SavedRegister { reg: 8, offset: -16 };

    code.words(&[
        0x0000_0017, // lpad 0
        0xff01_0113, // addi sp, sp, -16
        0x0011_3423, // sd ra, 8(sp)
        0x0081_3023, // sd s0, 0(sp)
        0x0101_0413, // addi s0, sp, 16
    ]);
    if words != 0 {
        code.words(&[stack(words).wrapping_neg() << 20 | 0x0001_0113]); // addi sp, sp, -stack
    }
    let sp_set = code.at();
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
    let sp_reset = code.at();
    code.words(&[0x0081_3083]); // ld ra, 8(sp)
    code.words(&[
        0x0001_3403, // ld s0, 0(sp)
        0x0101_0113, // addi sp, sp, 16
        0x0000_8067, // ret
    ]);
    let both = &[RA_SAVED, S0_SAVED];
    let row = |offset, cfa_offset, saved| UnwindRow { offset, cfa_register: SP, cfa_offset, saved };
    Frame::Rows([
        row(8, FRAME, &[]),
        row(12, FRAME, &[RA_SAVED]),
        row(16, FRAME, both),
        row(sp_set, cfa_offset(words), both),
        row(sp_reset, FRAME, both),
        row(sp_reset + 4, FRAME, &[S0_SAVED]),
        row(sp_reset + 8, FRAME, &[]),
        row(sp_reset + 12, 0, &[]),
    ])
}

/// The distance of the CFA from the stack pointer at the call.
fn cfa_offset(words: u32) -> i32 {
    16 + stack(words) as i32
}

/// The bytes that `words` take on a stack whose pointer is a multiple of 16.
fn stack(words: u32) -> u32 {
    (8 * words).next_multiple_of(16)
}
