//! The effect of each AArch64 instruction on the stack and the registers.

use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction, Opcode, Operand, SIMDSizeCode, SizeCode};

use super::state::{State, Value, WORD};
use super::walk::{Flow, Machine};

pub(super) struct Aarch64 {
    decoder: InstDecoder,
}

/// The size of an instruction in bytes.
const SIZE: u64 = 4;
const FP: u16 = 29;
const LR: u16 = 30;
const SP: u16 = 31;
/// Registers that callees may change. Callees get the return address in x30.
const LOST: [std::ops::RangeInclusive<u16>; 2] = [0..=18, LR..=LR];

impl Aarch64 {
    pub fn new() -> Aarch64 {
        Aarch64 { decoder: InstDecoder::default() }
    }
}

impl Machine for Aarch64 {
    type Instruction = Instruction;
    const SP: u16 = SP;
    const FP: u16 = FP;
    const ENTRY: i64 = 0;

    fn decode(&mut self, code: &[u8], at: u64) -> Option<(Instruction, u64, Flow)> {
        let from = usize::try_from(at).ok()?;
        let bytes = code.get(from..from.checked_add(SIZE as usize)?)?;
        let instruction = self.decoder.decode(&mut U8Reader::new(bytes)).ok()?;
        let target = || {
            let distance = instruction.operands.iter().find_map(|operand| match operand {
                Operand::PCOffset(distance) => Some(*distance),
                _ => None,
            });
            // A target before the start of the code wraps to a large number, which is also outside of the code.
            distance.map(|distance| at.wrapping_add_signed(distance))
        };
        let flow = match instruction.opcode {
            Opcode::B => Flow::Jump(target()?),
            Opcode::Bcc(_) | Opcode::CBZ | Opcode::CBNZ | Opcode::TBZ | Opcode::TBNZ => Flow::Branch(target()?),
            Opcode::BL | Opcode::BLR | Opcode::BLRAA | Opcode::BLRAAZ | Opcode::BLRAB | Opcode::BLRABZ => Flow::Call,
            Opcode::BR | Opcode::BRAA | Opcode::BRAAZ | Opcode::BRAB | Opcode::BRABZ => Flow::Leave,
            Opcode::RET if !matches!(instruction.operands[0], Operand::Register(_, LR) | Operand::Nothing) => {
                Flow::Leave
            }
            Opcode::RET | Opcode::RETAA | Opcode::RETAB => Flow::Return,
            Opcode::UDF | Opcode::BRK | Opcode::HLT => Flow::Trap,
            Opcode::Invalid
            | Opcode::ERET
            | Opcode::ERETAA
            | Opcode::ERETAB
            | Opcode::DRPS
            | Opcode::HVC
            | Opcode::SMC => return None,
            _ => Flow::Next,
        };
        Some((instruction, SIZE, flow))
    }

    fn apply(&mut self, instruction: &Instruction, state: &mut State) {
        let operands = &instruction.operands;
        match instruction.opcode {
            Opcode::ADD | Opcode::SUB => {
                let from = register(&operands[1]).map_or(Value::Unknown, |from| state.get(from));
                let bytes = amount(&operands[2]);
                let value = bytes.map_or(Value::Unknown, |bytes| {
                    from.plus(if instruction.opcode == Opcode::ADD { bytes } else { -bytes })
                });
                set(state, &operands[0], value);
            }
            // A copy of a register is an OR with zero.
            Opcode::ORR => {
                let value = match (&operands[1], &operands[2]) {
                    (Operand::Register(SizeCode::X, SP), Operand::RegShift(_, 0, SizeCode::X, from)) if *from < SP => {
                        state.get(*from)
                    }
                    _ => Value::Unknown,
                };
                set(state, &operands[0], value);
            }
            Opcode::STP
            | Opcode::STNP
            | Opcode::STR
            | Opcode::STUR
            | Opcode::LDP
            | Opcode::LDNP
            | Opcode::LDR
            | Opcode::LDUR => {
                moves(instruction, state);
            }
            Opcode::BL | Opcode::BLR | Opcode::BLRAA | Opcode::BLRAAZ | Opcode::BLRAB | Opcode::BLRABZ => {
                LOST.into_iter().flatten().for_each(|register| state.set(register, Value::Unknown));
            }
            Opcode::B | Opcode::Bcc(_) | Opcode::CBZ | Opcode::CBNZ | Opcode::TBZ | Opcode::TBNZ => {}
            Opcode::STRB | Opcode::STRH | Opcode::STURB | Opcode::STURH | Opcode::PRFM | Opcode::PRFUM => {
                overwritten(instruction, state);
            }
            Opcode::PACIASP | Opcode::PACIBSP => state.signed = Some(true),
            Opcode::AUTIASP | Opcode::AUTIBSP => state.signed = Some(false),
            // No table can describe a signature that does not depend on the stack pointer.
            Opcode::PACIAZ | Opcode::PACIBZ | Opcode::AUTIAZ | Opcode::AUTIBZ => state.signed = None,
            Opcode::RET | Opcode::CCMP | Opcode::CCMN | Opcode::MSR => {}
            // Other instructions write to their first operand. Instructions with memory operands may also write to the next
            // two operands.
            _ => {
                overwritten(instruction, state);
                let memory = operands.iter().any(|operand| address(operand, state).is_some());
                for operand in operands.iter().take(if memory { 3 } else { 1 }) {
                    match operand {
                        Operand::RegisterPair(_, first) => {
                            (*first..=first + 1).for_each(|register| state.set(register, Value::Unknown));
                        }
                        operand => set(state, operand, Value::Unknown),
                    }
                }
            }
        }
    }

    fn is_no_op(&self, instruction: &Instruction) -> bool {
        instruction.opcode == Opcode::HINT
    }

    fn text(&mut self, instruction: &Instruction) -> String {
        instruction.to_string()
    }
}

/// Loads and stores of one or two registers, and their effects on the base.
fn moves(instruction: &Instruction, state: &mut State) {
    let store = matches!(instruction.opcode, Opcode::STP | Opcode::STNP | Opcode::STR | Opcode::STUR);
    let operands = &instruction.operands;
    let place = operands.iter().find_map(|operand| address(operand, state));
    let (at, base) = place.unwrap_or((Value::Unknown, None));
    let mut distance = 0;
    for operand in operands.iter().take_while(|operand| size(operand).is_some()) {
        let bytes = size(operand).unwrap_or_default();
        let word = at.plus(distance);
        match (store, register(operand), bytes) {
            (true, Some(from), WORD) => state.store(word, state.get(from)),
            (true, ..) => state.overwrite(word, bytes),
            (false, Some(to), WORD) => state.set(to, state.load(word)),
            (false, ..) => set(state, operand, Value::Unknown),
        }
        distance += bytes;
    }
    if let Some((register, value)) = base {
        state.set(register, value);
    }
}

/// Applies an instruction that may write to memory and change its base.
fn overwritten(instruction: &Instruction, state: &mut State) {
    if let Some((at, base)) = instruction.operands.iter().find_map(|operand| address(operand, state)) {
        // The largest size that one instruction writes: four vectors.
        state.overwrite(at, 64);
        if let Some((register, value)) = base {
            state.set(register, value);
        }
    }
}

/// The address of a memory operand, and the new value of its base if the base changes.
fn address(operand: &Operand, state: &State) -> Option<(Value, Option<(u16, Value)>)> {
    Some(match *operand {
        Operand::RegPreIndex(base, offset, back) => {
            let at = state.get(base).plus(offset.into());
            (at, back.then_some((base, at)))
        }
        Operand::RegPostIndex(base, offset) => {
            let at = state.get(base);
            (at, Some((base, at.plus(offset.into()))))
        }
        Operand::RegPostIndexReg(base, _) => (state.get(base), Some((base, Value::Unknown))),
        Operand::RegRegOffset(..) => (Value::Unknown, None),
        _ => return None,
    })
}

/// The size of a register that is loaded or stored.
fn size(operand: &Operand) -> Option<i64> {
    Some(match operand {
        Operand::Register(SizeCode::X, _) => 8,
        Operand::Register(SizeCode::W, _) => 4,
        Operand::SIMDRegister(SIMDSizeCode::Q, _) => 16,
        Operand::SIMDRegister(..) => 8,
        _ => return None,
    })
}

/// The number of a whole general register. `None` for the zero register.
fn register(operand: &Operand) -> Option<u16> {
    match *operand {
        Operand::Register(SizeCode::X, number) if number != SP => Some(number),
        Operand::RegisterOrSP(SizeCode::X, number) => Some(number),
        _ => None,
    }
}

/// Writes to a whole register or to half of it.
fn set(state: &mut State, operand: &Operand, value: Value) {
    match *operand {
        Operand::Register(SizeCode::W, number) if number != SP => state.set(number, Value::Unknown),
        Operand::RegisterOrSP(SizeCode::W, number) => state.set(number, Value::Unknown),
        ref operand => register(operand).into_iter().for_each(|number| state.set(number, value)),
    }
}

/// The number that is added or subtracted.
fn amount(operand: &Operand) -> Option<i64> {
    Some(match *operand {
        Operand::Immediate(value) => value.into(),
        Operand::Imm16(value) => value.into(),
        Operand::ImmShift(value, shift @ 0..=12) => i64::from(value) << shift,
        _ => return None,
    })
}
