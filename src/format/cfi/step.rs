//! Computes the registers of a caller from the registers of a frame and an unwind table. Nothing here allocates memory, so
//! signal handlers can call this module.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, Encoding, EndianSlice, Evaluation, EvaluationResult, EvaluationStorage, Format,
    NativeEndian, Piece, Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection,
    UnwindTableRow, Value,
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

impl<'a> EvaluationStorage<Bytes<'a>> for OnStack {
    type Stack = [Value; 8];
    type ExpressionStack = [(Bytes<'a>, Bytes<'a>); 1];
    type Result = [Piece<Bytes<'a>>; 1];
}

const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };

/// The maximum number of operations in an expression of a table.
const OPERATIONS_MAX: u32 = 100;

/// The caller's registers, by a table. The frame's code must be described by `section`.
#[inline(never)]
pub fn caller(arch: Arch, section: &Section<'_>, frame: &Registers, read: ReadWord<'_>) -> Result<Registers, End> {
    let abi = arch.abi();
    let mut eh_frame = EhFrame::from(Bytes::new(section.eh_frame, NativeEndian));
    eh_frame.set_address_size(8);
    eh_frame.set_vendor(abi.vendor);
    let bases = BaseAddresses::default().set_eh_frame(section.addr);
    let entry = eh_frame.fde_for_address(&bases, frame.code_addr(), EhFrame::cie_from_offset);
    let entry = entry.map_err(|_| End::NoTable)?;
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row = entry.unwind_info_for_address(&eh_frame, &bases, &mut context, frame.code_addr());
    // A table that cannot be used is not a reason to guess.
    let row = row.map_err(|_| End::Outermost)?;
    let apply = Apply { frame, read, eh_frame: &eh_frame };
    let mut caller = apply.row(abi, row, entry.cie().return_address_register()).ok_or(End::Outermost)?;
    caller.is_return = !entry.is_signal_trampoline();
    // A frame that has made a call lies below its caller's frame, unless a signal came between the two, whose handler may have
    // a stack of its own. So each walk ends, even on a damaged stack.
    let goes_on = caller.get(abi.sp) > frame.get(abi.sp) || !frame.is_return || entry.is_signal_trampoline();
    goes_on.then_some(caller).ok_or(End::Outermost)
}

/// The caller's registers if the frame has a frame pointer (`Abi::fp`), or if a call has jumped to an address without code.
pub fn caller_without_table(arch: Arch, frame: &Registers, read: ReadWord<'_>) -> Result<Registers, End> {
    let by_frame_pointer = || {
        let abi = arch.abi();
        let (fp, sp) = (frame.get(abi.fp)?, frame.get(abi.sp)?);
        let cfa = fp.checked_add_signed(abi.fp_to_cfa.into())?;
        let record = abi.frame_record.map_or(Some(fp), |offset| cfa.checked_add_signed(offset.into()))?;
        if record < sp || record % 8 != 0 {
            return None;
        }
        let mut caller = Registers { pc: read(record.checked_add(8)?)?, is_return: true, ..*frame };
        caller.set(abi.fp, Some(read(record)?));
        caller.set(abi.sp, Some(cfa));
        Some(caller)
    };
    let by_entry = || {
        let abi = arch.abi();
        let sp = frame.get(abi.sp)?;
        let (pc, sp) = match abi.entry_ra {
            Some(_) => (read(sp)?, sp.checked_add(8)?),
            None => (frame.get(abi.ra)?, sp),
        };
        let mut caller = Registers { pc, is_return: true, ..*frame };
        caller.set(abi.sp, Some(sp));
        Some(caller)
    };
    let has_code = frame.is_return || read(frame.pc & !7).is_some();
    let caller = if has_code { by_frame_pointer() } else { by_entry() };
    let unsigned = caller.map(|caller| Registers { pc: without_signature(arch.abi(), caller.pc), ..caller });
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
}

impl Apply<'_, '_> {
    fn row(&self, abi: &Abi, row: &UnwindTableRow<usize, OnStack>, ra: Register) -> Option<Registers> {
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => self.frame.get(register.0)?.wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => self.evaluate(expression, None)?,
        };
        let mut caller = *self.frame;
        caller.set(abi.sp, Some(cfa));
        for (register, rule) in row.registers() {
            caller.set(register.0, self.value(*register, rule, cfa));
        }
        let pc = match row.register(ra) {
            Some(rule) => self.value(ra, &rule, cfa),
            // Without a rule, the return address is still in its register.
            None => self.frame.get(ra.0),
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

    /// Evaluates an expression. This function is separate, because few tables have expressions, and its frame is large.
    #[inline(never)]
    fn evaluate(&self, expression: &UnwindExpression<usize>, first: Option<u64>) -> Option<u64> {
        let bytes = expression.get(self.eh_frame).ok()?.0;
        let mut evaluation = Evaluation::<Bytes<'_>, OnStack>::new_in(bytes, ENCODING);
        evaluation.set_max_iterations(OPERATIONS_MAX);
        if let Some(value) = first {
            evaluation.set_initial_value(value);
        }
        let mut result = evaluation.evaluate().ok()?;
        loop {
            result = match result {
                EvaluationResult::Complete => return evaluation.value_result()?.to_u64(u64::MAX).ok(),
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    evaluation.resume_with_memory(Value::Generic((self.read)(address)?)).ok()?
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(self.frame.get(register.0)?)).ok()?
                }
                _ => return None,
            };
        }
    }
}
