//! The effect of each x86-64 instruction on the stack and the registers.

use iced_x86::{Code, Decoder, DecoderOptions, FastFormatter, FlowControl, Instruction, InstructionInfoFactory};
use iced_x86::{Mnemonic, OpAccess, OpKind, Register};

use super::state::{State, Value, WORD};
use super::walk::{Flow, Machine};

/// The decoder's tables.
pub(super) struct X86_64 {
    info: InstructionInfoFactory,
    formatter: FastFormatter,
}

const RBP: u16 = 6;
const RSP: u16 = 7;
/// The registers that callees preserve: rbx, rbp, rsp, r12 to r15.
const KEPT: [u16; 7] = [3, RBP, RSP, 12, 13, 14, 15];

impl X86_64 {
    pub fn new() -> X86_64 {
        let mut formatter = FastFormatter::new();
        formatter.options_mut().set_use_hex_prefix(true);
        X86_64 { info: InstructionInfoFactory::new(), formatter }
    }

    /// Handles all other instructions. A register or word that they write gets an unknown value.
    fn other(&mut self, instruction: &Instruction, state: &mut State) {
        let info = self.info.info(instruction);
        let written = |access| {
            matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
        };
        for memory in info.used_memory().iter().filter(|memory| written(memory.access())) {
            if memory.index() == Register::None {
                let base = number(memory.base()).map_or(Value::Unknown, |base| state.get(base));
                let size = i64::try_from(memory.memory_size().size()).unwrap_or(WORD).max(WORD);
                state.overwrite(base.plus(memory.displacement() as i64), size);
            }
        }
        let sp = state.get(RSP);
        for register in info.used_registers().iter().filter(|register| written(register.access())) {
            if let Some(register) = number(register.register().full_register()) {
                state.set(register, Value::Unknown);
            }
        }
        if instruction.is_stack_instruction() && instruction.mnemonic() != Mnemonic::Enter {
            state.set(RSP, sp.plus(instruction.stack_pointer_increment().into()));
        }
    }
}

impl Machine for X86_64 {
    type Instruction = Instruction;
    const SP: u16 = RSP;
    const FP: u16 = RBP;
    const ENTRY: i64 = 8;

    fn decode(&mut self, code: &[u8], at: u64) -> Option<(Instruction, u64, Flow)> {
        let rest = code.get(usize::try_from(at).ok()?..)?;
        let instruction = Decoder::with_ip(64, rest, at, DecoderOptions::NONE).decode();
        if instruction.is_invalid() || instruction.is_privileged() {
            return None;
        }
        let near = matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
        let target = instruction.near_branch_target();
        let flow = match instruction.flow_control() {
            FlowControl::UnconditionalBranch if near => Flow::Jump(target),
            FlowControl::ConditionalBranch if near => Flow::Branch(target),
            FlowControl::XbeginXabortXend if near => Flow::Branch(target),
            // This is a call of the next instruction, by which code determines its own address.
            FlowControl::Call if near && target == instruction.next_ip() => Flow::Next,
            FlowControl::Call if near => Flow::Call,
            FlowControl::IndirectCall => Flow::Call,
            FlowControl::IndirectBranch => Flow::Leave,
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => Flow::Return,
            FlowControl::Exception => Flow::Trap,
            FlowControl::Interrupt if instruction.mnemonic() != Mnemonic::Int => Flow::Trap,
            FlowControl::Next | FlowControl::Interrupt | FlowControl::XbeginXabortXend => Flow::Next,
            _ => return None,
        };
        Some((instruction, instruction.len() as u64, flow))
    }

    fn apply(&mut self, instruction: &Instruction, state: &mut State) {
        let register = |operand| match instruction.op_kind(operand) {
            OpKind::Register => number(instruction.op_register(operand)),
            _ => None,
        };
        let amount = || match instruction.op1_kind() {
            OpKind::Immediate8to64 | OpKind::Immediate32to64 => Some(instruction.immediate(1) as i64),
            _ => None,
        };
        // The address of a memory operand, if it is a known address in the frame.
        let address = |state: &State| match number(instruction.memory_base()) {
            Some(base) if instruction.memory_index() == Register::None && !other_segment(instruction) => {
                state.get(base).plus(instruction.memory_displacement64() as i64)
            }
            _ => Value::Unknown,
        };
        let operand = |state: &State, which| match (instruction.op_kind(which), register(which)) {
            (_, Some(register)) => state.get(register),
            (OpKind::Memory, _) => state.load(address(state)),
            _ => Value::Unknown,
        };
        match (instruction.mnemonic(), instruction.code()) {
            (Mnemonic::Push, _) if instruction.stack_pointer_increment() == -8 => {
                let value = operand(state, 0);
                let sp = state.get(RSP).plus(-WORD);
                state.set(RSP, sp);
                state.store(sp, value);
            }
            (Mnemonic::Pop, _) if register(0).is_some() => {
                let sp = state.get(RSP);
                let value = state.load(sp);
                state.set(RSP, sp.plus(WORD));
                register(0).into_iter().for_each(|register| state.set(register, value));
            }
            (Mnemonic::Leave, Code::Leaveq) => {
                let frame = state.get(RBP);
                let value = state.load(frame);
                state.set(RSP, frame.plus(WORD));
                state.set(RBP, value);
            }
            (Mnemonic::Mov, Code::Mov_r64_rm64 | Code::Mov_rm64_r64) => {
                let value = operand(state, 1);
                match register(0) {
                    Some(register) => state.set(register, value),
                    None => state.store(address(state), value),
                }
            }
            (Mnemonic::Lea, Code::Lea_r64_m) => {
                let value = address(state);
                register(0).into_iter().for_each(|register| state.set(register, value));
            }
            (operation @ (Mnemonic::Add | Mnemonic::Sub), _) if register(0).is_some() && amount().is_some() => {
                let bytes = amount().unwrap_or_default();
                let bytes = if operation == Mnemonic::Add { Some(bytes) } else { bytes.checked_neg() };
                if let (Some(register), Some(bytes)) = (register(0), bytes) {
                    state.set(register, state.get(register).plus(bytes));
                }
            }
            (Mnemonic::Call, _) if instruction.near_branch_target() != instruction.next_ip() => {
                (0..16)
                    .filter(|register| !KEPT.contains(register))
                    .for_each(|register| state.set(register, Value::Unknown));
            }
            (Mnemonic::Ret, _) => {}
            _ => self.other(instruction, state),
        }
    }

    fn is_no_op(&self, instruction: &Instruction) -> bool {
        instruction.mnemonic() == Mnemonic::Nop
    }

    fn text(&mut self, instruction: &Instruction) -> String {
        let mut text = String::new();
        self.formatter.format(instruction, &mut text);
        text
    }
}

/// Whether the operand is thread-local data.
fn other_segment(instruction: &Instruction) -> bool {
    matches!(instruction.segment_prefix(), Register::FS | Register::GS)
}

/// The DWARF number of a whole general register.
fn number(register: Register) -> Option<u16> {
    Some(match register {
        Register::RAX => 0,
        Register::RDX => 1,
        Register::RCX => 2,
        Register::RBX => 3,
        Register::RSI => 4,
        Register::RDI => 5,
        Register::RBP => RBP,
        Register::RSP => RSP,
        Register::R8 => 8,
        Register::R9 => 9,
        Register::R10 => 10,
        Register::R11 => 11,
        Register::R12 => 12,
        Register::R13 => 13,
        Register::R14 => 14,
        Register::R15 => 15,
        _ => return None,
    })
}
