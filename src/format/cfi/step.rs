//! Computes the registers of a caller from the registers of a frame and an unwind table. Nothing here allocates memory, so
//! signal handlers can call this module.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, Encoding, EndianSlice, Format, NativeEndian, Operation, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow,
};

use crate::format::arch::{Abi, Arch};
use crate::sys::registers::Registers;

/// Why there is no caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The table does not describe the code.
    NoTable,
    /// The frame is the outermost frame, or memory that the table refers to cannot be read.
    Outermost,
}

/// Reads a word of memory. `None` if the word cannot be read.
pub type ReadWord<'a> = &'a dyn Fn(u64) -> Option<u64>;

type Bytes<'a> = EndianSlice<'a, NativeEndian>;

/// An `.eh_frame` section, and the address for which the section was made.
pub struct Section<'a> {
    pub eh_frame: &'a [u8],
    pub addr: u64,
}

/// The memory that gimli needs, which lies on the stack. An alternate stack for signals may be small.
struct OnStack;

/// The maximum number of rules in a row. Compilers save fewer registers. The kernel's frame for a signal saves all registers of
/// x86-64.
const RULES_MAX: usize = 28;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); RULES_MAX];
    type Stack = [UnwindTableRow<usize, OnStack>; 3];
}

const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: size_of::<usize>() as u8 };

/// The maximum number of values on the stack of an expression.
const STACK_MAX: usize = 8;

/// The caller's registers, by a table. The frame's code must be described by `section`.
#[inline(never)]
pub fn caller(arch: Arch, section: &Section<'_>, frame: &Registers, read: ReadWord<'_>) -> Result<Registers, End> {
    let abi = arch.abi();
    let mut eh_frame = EhFrame::from(Bytes::new(section.eh_frame, NativeEndian));
    eh_frame.set_address_size(abi.word);
    eh_frame.set_vendor(abi.vendor);
    let bases = BaseAddresses::default().set_eh_frame(section.addr);
    let entry = eh_frame.fde_for_address(&bases, frame.code_addr(), EhFrame::cie_from_offset);
    let entry = entry.map_err(|_| End::NoTable)?;
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row = entry.unwind_info_for_address(&eh_frame, &bases, &mut context, frame.code_addr());
    // A table that cannot be used is not a reason to guess.
    let row = row.map_err(|_| End::Outermost)?;
    let apply = Apply { frame, read, eh_frame: &eh_frame, ra: entry.cie().return_address_register() };
    let mut caller = apply.row(abi, row).ok_or(End::Outermost)?;
    caller.is_return = !entry.is_signal_trampoline();
    // A frame that has made a call lies below its caller's frame, unless a signal came between the two, whose handler may have
    // a stack of its own. So each walk ends, even on a damaged stack.
    let goes_on = caller.get(abi.sp) > frame.get(abi.sp) || !frame.is_return || entry.is_signal_trampoline();
    goes_on.then_some(caller).ok_or(End::Outermost)
}

/// The caller's registers if the frame has a frame pointer (`FrameAbi::fp`), or if a call has jumped to an address without code.
pub fn caller_without_table(arch: Arch, frame: &Registers, read: ReadWord<'_>) -> Result<Registers, End> {
    let abi = arch.abi();
    let word = u64::from(abi.word);
    let by_frame_pointer = || {
        let usual = abi.frame.as_ref()?;
        let (fp, sp) = (frame.get(usual.fp)?, frame.get(abi.sp)?);
        let cfa = fp.checked_add_signed(usual.fp_to_cfa.into())?;
        let record = usual.record.map_or(Some(fp), |offset| cfa.checked_add_signed(offset.into()))?;
        if record < sp || record % word != 0 {
            return None;
        }
        let mut caller = Registers { pc: read(record.checked_add(word)?)?, is_return: true, ..*frame };
        caller.set(usual.fp, Some(read(record)?));
        caller.set(abi.sp, Some(cfa));
        Some(caller)
    };
    let by_entry = || {
        let sp = frame.get(abi.sp)?;
        let (pc, sp) = match abi.entry_ra {
            Some(_) => (read(sp)?, sp.checked_add(word)?),
            None => (frame.get(abi.ra)?, sp),
        };
        let mut caller = Registers { pc, is_return: true, ..*frame };
        caller.set(abi.sp, Some(sp));
        Some(caller)
    };
    let has_code = frame.is_return || read(frame.pc & !7).is_some();
    let caller = if has_code { by_frame_pointer() } else { by_entry() };
    let unsigned = caller.map(|caller| Registers { pc: without_signature(abi, caller.pc), ..caller });
    unsigned.filter(|caller| caller.pc != 0).ok_or(End::Outermost)
}

/// Removes the signature from a return address that may be signed (aarch64). The address then has 48 bits, unless the program
/// has asked for a larger address space.
fn without_signature(abi: &Abi, addr: u64) -> u64 {
    addr & if abi.sign.is_some() { (1 << 48) - 1 } else { u64::MAX }
}

/// Applies the rules of a table's row to a frame.
struct Apply<'a, 'b> {
    frame: &'b Registers,
    read: ReadWord<'b>,
    eh_frame: &'b EhFrame<Bytes<'a>>,
    /// The column of the return address.
    ra: Register,
}

impl Apply<'_, '_> {
    fn row(&self, abi: &Abi, row: &UnwindTableRow<usize, OnStack>) -> Option<Registers> {
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => self.frame.get(register.0)?.wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => self.evaluate(expression, None)?,
        };
        let mut caller = *self.frame;
        caller.set(abi.sp, Some(cfa));
        for (register, rule) in row.registers() {
            caller.set(register.0, self.value(*register, rule, cfa));
        }
        let pc = match row.register(self.ra) {
            Some(rule) => self.value(self.ra, &rule, cfa),
            // Without a rule, the return address is still in its register.
            None => self.frame.get(self.ra.0),
        };
        caller.pc = without_signature(abi, pc.filter(|pc| *pc != 0)?);
        Some(caller)
    }

    fn value(&self, register: Register, rule: &RegisterRule<usize>, cfa: u64) -> Option<u64> {
        match rule {
            RegisterRule::SameValue => self.frame.get(register.0),
            RegisterRule::Offset(offset) => (self.read)(cfa.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => self.frame.get(other.0),
            RegisterRule::Expression(expression) => (self.read)(self.evaluate(expression, Some(cfa))?),
            RegisterRule::ValExpression(expression) => self.evaluate(expression, Some(cfa)),
            _ => None,
        }
    }

    /// Evaluates an expression, with the operations that compilers and C libraries use in unwind tables: in procedure linkage
    /// tables and signal frames. gimli's evaluator supports all operations, and is seven times as large.
    #[inline(never)]
    fn evaluate(&self, expression: &UnwindExpression<usize>, first: Option<u64>) -> Option<u64> {
        let (mut stack, mut len) = ([0_u64; STACK_MAX], 0);
        let push = |stack: &mut [u64; STACK_MAX], len: &mut usize, value| {
            *stack.get_mut(*len)? = value;
            *len += 1;
            Some(())
        };
        first.map_or(Some(()), |value| push(&mut stack, &mut len, value))?;
        let mut operations = expression.get(self.eh_frame).ok()?.operations(ENCODING);
        while let Some(operation) = operations.next().ok()? {
            let two = len.checked_sub(2).map(|at| (stack[at], stack[at + 1]));
            let top = len.checked_sub(1).map(|at| stack[at]);
            let (taken, value) = match operation {
                Operation::UnsignedConstant { value } => (0, value),
                Operation::SignedConstant { value } => (0, value as u64),
                Operation::RegisterOffset { register, offset, .. } => {
                    // A column that is not a register is the column of the return address (x86-64).
                    let value = self.frame.get(register.0);
                    let pc = (register == self.ra).then_some(self.frame.pc);
                    (0, value.or(pc)?.wrapping_add_signed(offset))
                }
                Operation::Deref { size: 8, space: false, .. } => (1, (self.read)(top?)?),
                Operation::PlusConstant { value } => (1, top?.wrapping_add(value)),
                Operation::Plus => (2, two.map(|(a, b)| a.wrapping_add(b))?),
                Operation::Minus => (2, two.map(|(a, b)| a.wrapping_sub(b))?),
                Operation::And => (2, two.map(|(a, b)| a & b)?),
                Operation::Shl => (2, two.map(|(a, b)| a.checked_shl(b as u32).unwrap_or_default())?),
                Operation::Ge => (2, two.map(|(a, b)| (a as i64 >= b as i64).into())?),
                Operation::Nop => continue,
                _ => return None,
            };
            len -= taken;
            push(&mut stack, &mut len, value)?;
        }
        len.checked_sub(1).map(|at| stack[at])
    }
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    /// An entry of a procedure linkage table pushes a word at its offset 6. binutils describes all entries by one expression,
    /// which depends on the last four bits of the address.
    #[test]
    fn procedure_linkage_tables() {
        // Version 1, no augmentation, code alignment 1, data alignment -8, return address 16; the CFA is rsp + 8, and the return
        // address is at CFA - 8.
        let cie = [0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0];
        let expression = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let mut fde = [&20_u32.to_le_bytes()[..], &0x1000_u64.to_le_bytes(), &0x100_u64.to_le_bytes()].concat();
        fde[..4].copy_from_slice(&24_u32.to_le_bytes());
        fde.extend([0x0f, expression.len() as u8]);
        fde.extend(expression);
        fde.resize(fde.len().next_multiple_of(4), 0);
        let mut section = [&(cie.len() as u32).to_le_bytes()[..], &cie].concat();
        section.extend((fde.len() as u32).to_le_bytes());
        section.extend(fde);
        section.extend([0; 4]);
        let section = Section { eh_frame: &section, addr: 0x5000 };
        for (pc, depth) in [(0x1020, 8), (0x102a, 8), (0x102b, 16), (0x102f, 16), (0x1030, 8)] {
            let mut frame = Registers { pc, ..Registers::default() };
            frame.set(7, Some(0x8000));
            let read = |addr| Some(addr + 1);
            let caller = caller(Arch::X86_64, &section, &frame, &read).unwrap();
            assert_eq!((caller.get(7), caller.pc), (Some(0x8000 + depth), 0x8000 + depth - 8 + 1), "{pc:#x}");
        }
    }
}
