//! An instruction below a breakpoint, so changed that it can be executed elsewhere.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register};

use crate::Registers;

/// Decodes the first instruction of some bytes.
pub fn decode(bytes: &[u8], addr: u64) -> Option<Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
    let instruction = decoder.decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// What is to be put right after it.
#[derive(Clone, Copy, Debug)]
pub struct Displaced {
    /// Where it belongs, and where it is executed.
    pub addr: u64,
    pub slot: u64,
    len: u64,
    flow: FlowControl,
    /// A register that takes the place of the instruction pointer, and its value.
    borrowed: Option<(Register, u64)>,
}

/// Registers that can take the place of the instruction pointer, in the order of their numbers.
const BASES: [(u8, Register); 6] = [
    (0, Register::RAX),
    (1, Register::RCX),
    (2, Register::RDX),
    (3, Register::RBX),
    (6, Register::RSI),
    (7, Register::RDI),
];

fn value(registers: &mut Registers, register: Register) -> &mut u64 {
    match register {
        Register::RAX => &mut registers.rax,
        Register::RCX => &mut registers.rcx,
        Register::RDX => &mut registers.rdx,
        Register::RBX => &mut registers.rbx,
        Register::RSI => &mut registers.rsi,
        _ => &mut registers.rdi,
    }
}

impl Displaced {
    /// The bytes to be executed elsewhere; `None` if that is not possible. The slot is filled in later.
    pub fn prepare(instruction: &Instruction, bytes: &[u8]) -> Option<(Displaced, Vec<u8>)> {
        let len = instruction.len();
        let mut code = bytes.get(..len)?.to_vec();
        let flow = instruction.flow_control();
        let is_fit = match flow {
            FlowControl::Next
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::ConditionalBranch
            | FlowControl::Return
            | FlowControl::Call
            | FlowControl::IndirectCall => !matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter),
            FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Exception => false,
        };
        if !is_fit || instruction.is_jmp_far() || instruction.is_call_far() {
            return None;
        }
        let mut borrowed = None;
        if instruction.is_ip_rel_memory_operand() {
            let base = replace_ip(instruction, &mut code)?;
            borrowed = Some((base, instruction.next_ip()));
        }
        Some((Displaced { addr: instruction.ip(), slot: 0, len: len as u64, flow, borrowed }, code))
    }

    /// Before it.
    pub fn enter(&mut self, slot: u64, registers: &mut Registers) {
        self.slot = slot;
        registers.rip = slot;
        if let Some((register, new)) = &mut self.borrowed {
            std::mem::swap(value(registers, *register), new);
        }
    }

    /// At the next stop: whether or not it was executed. Returns the word to be stored at the stack pointer.
    pub fn leave(&self, registers: &mut Registers) -> Option<u64> {
        if let Some((register, old)) = self.borrowed {
            *value(registers, register) = old;
        }
        let is_at_slot = (self.slot..self.slot + self.len).contains(&registers.rip);
        let is_absolute =
            matches!(self.flow, FlowControl::IndirectBranch | FlowControl::Return | FlowControl::IndirectCall);
        if is_at_slot || !is_absolute {
            registers.rip = registers.rip.wrapping_sub(self.slot).wrapping_add(self.addr);
        }
        let is_call = matches!(self.flow, FlowControl::Call | FlowControl::IndirectCall);
        (is_call && !is_at_slot).then_some(self.addr + self.len)
    }
}

/// Makes the address of the operand count from a register instead, which the instruction does not use.
fn replace_ip(instruction: &Instruction, code: &mut [u8]) -> Option<Register> {
    let mut decoder = Decoder::with_ip(64, code, instruction.ip(), DecoderOptions::NONE);
    let original = decoder.decode();
    let offsets = decoder.get_constant_offsets(&original);
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let is_used = |base| info.used_registers().iter().any(|used| used.register().full_register() == base);
    let &(number, base) = BASES.iter().find(|(_, base)| !is_used(*base))?;
    // ModRM is before the displacement.
    let at = offsets.displacement_offset().checked_sub(1)?;
    code[at] = code[at] & 0b0011_1000 | 0b1000_0000 | number;
    let changed = decode(code, instruction.ip())?;
    let is_right = changed.len() == instruction.len()
        && changed.memory_base() == base
        && changed.code() == instruction.code()
        && instruction.next_ip().wrapping_add(changed.memory_displacement64()) == instruction.memory_displacement64();
    is_right.then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fit() {
        // cmp byte [rip + 0x10], 1; mov rax, [rip - 8]; a VEX instruction; call [rip + 1]
        let relative: [&[u8]; 4] = [
            &[0x80, 0x3d, 0x10, 0, 0, 0, 1],
            &[0x48, 0x8b, 0x05, 0xf8, 0xff, 0xff, 0xff],
            &[0xc5, 0xfb, 0x10, 0x05, 4, 0, 0, 0],
            &[0xff, 0x15, 1, 0, 0, 0],
        ];
        for bytes in relative {
            let instruction = decode(bytes, 0x7f00_0000_0000).expect("an instruction");
            assert!(instruction.is_ip_rel_memory_operand());
            let (displaced, code) = Displaced::prepare(&instruction, bytes).expect("can be displaced");
            let (register, value) = displaced.borrowed.expect("a register");
            assert_eq!((value, code.len()), (instruction.next_ip(), bytes.len()));
            assert!(bytes[0] != 0x48 || register == Register::RCX, "rax is used");
        }
        let unfit: [&[u8]; 2] = [&[0x0f, 0x05], &[0xcc]];
        for bytes in unfit {
            let instruction = decode(bytes, 0x1000).expect("an instruction");
            assert!(Displaced::prepare(&instruction, bytes).is_none());
        }
    }
}
