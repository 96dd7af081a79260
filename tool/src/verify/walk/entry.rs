//! Begins the steps of a thread at the entry of code that was called or entered by a jump.

use std::io;

use iced_x86::Mnemonic;
use jitsym_step::{Frame, Kind as FrameKind, Tid, KEPT, RSP};

use super::{Call, Mode, Walk};
use crate::check::frames::Where;
use crate::verify::truth::{number, numbered};

impl Walk<'_> {
    /// Begins to step a thread that is at the entry of code.
    pub(super) fn begin(&mut self, tid: Tid, addr: u64) -> io::Result<()> {
        let id = self.next_call;
        self.next_call += 1;
        let how = self.how_entered(tid, addr)?;
        if self.threads.entry(tid).or_default().mode == Mode::Free {
            self.clear(tid);
        }
        if how != Some(true) {
            let claim = self.claim(tid, addr)?.filter(|claim| how.is_none() || claim.cfa != self.rsp(tid) + 8);
            if let Some(claim) = claim {
                return self.jumped(tid, claim, id);
            }
        }
        if how.is_none() && self.threads.entry(tid).or_default().mode != Mode::Free {
            // The code was entered by a jump from unknown code.
            return self.go(tid);
        }
        self.forget_through(tid);
        let thread = self.threads.entry(tid).or_default();
        if thread.calls.is_empty() {
            thread.ran_on = 0;
        }
        thread.dull = 0;
        if how.is_some() {
            thread.shadow.entered(&mut self.tracer, tid)?;
        }
        if how == Some(false) {
            self.unsure.insert(id, Vec::new());
        }
        let len = thread.shadow.frames().len();
        // Earlier calls at this depth are no longer known.
        thread.truncate(len.saturating_sub(1));
        thread.calls.resize(len, Call { id, is_apart: true });
        thread.mode = Mode::Steps;
        self.look_and_go(tid)
    }

    pub(super) fn rsp(&mut self, tid: Tid) -> u64 {
        self.tracer.registers(tid).map_or(0, |registers| registers.rsp)
    }

    /// Handles code that was entered by a jump from code that was not stepped. The tables of the code describe the call to
    /// which the code belongs. The tables are right if the thread returns to that call's return address later.
    pub(super) fn jumped(&mut self, tid: Tid, claim: Frame, id: u64) -> io::Result<()> {
        let thread = self.threads.entry(tid).or_default();
        let is_same = |frame: &Frame| (frame.cfa, frame.return_address) == (claim.cfa, claim.return_address);
        let is_known = thread.shadow.frames().last().is_some_and(is_same);
        if !is_known && !thread.calls.is_empty() {
            return self.go(tid);
        }
        self.forget_through(tid);
        let thread = self.threads.entry(tid).or_default();
        if !is_known {
            thread.shadow.push(&mut self.tracer, tid, claim)?;
            thread.calls.push(Call { id, is_apart: true });
            thread.ran_on = 0;
            self.unsure.insert(id, Vec::new());
            self.claims.insert(id, None);
        } else {
            thread.shadow.returned(&mut self.tracer, tid)?;
        }
        (thread.mode, thread.dull) = (Mode::Steps, 0);
        self.look_and_go(tid)
    }

    /// The call to which code belongs according to its tables for the first instruction. `None` if no call instruction can
    /// have made this call.
    pub(super) fn claim(&mut self, tid: Tid, addr: u64) -> io::Result<Option<Frame>> {
        let home = self.home(tid);
        let registers = numbered(&self.tracer.registers(tid)?);
        let process = self.processes.get(&home);
        let rows = process.and_then(|it| it.book.pieces[it.book.at(addr)?].rows.as_ref());
        let Some(row) = rows.and_then(|rows| rows.at(0)) else { return Ok(None) };
        let Some((from, by)) = row.cfa else { return Ok(None) };
        let Some(base) = registers.get(usize::from(from)) else { return Ok(None) };
        let cfa = base.wrapping_add_signed(by);
        let value = |number: u16| match row.rule(number) {
            Where::At(at) => self.tracer.word(home, cfa.wrapping_add_signed(at)).ok(),
            Where::Same => Some(registers[usize::from(number)]),
            Where::In(_) | Where::Elsewhere => None,
        };
        let Some(return_address) = value(16) else { return Ok(None) };
        let mut kept = [0; 16];
        kept[usize::from(RSP)] = cfa;
        for number in KEPT {
            let Some(value) = value(number) else { return Ok(None) };
            kept[usize::from(number)] = value;
        }
        let frame = Frame { kind: FrameKind::Call, cfa, return_address, entry: addr, registers: kept };
        Ok(Some(frame).filter(|_| !self.calls_before(home, return_address).is_empty()))
    }

    /// The call instructions that may precede a return address.
    pub(super) fn calls_before(&self, home: Tid, back: u64) -> Vec<iced_x86::Instruction> {
        let mut before = [0; 7];
        let at = back.wrapping_sub(before.len() as u64);
        if self.tracer.read(home, at, &mut before).unwrap_or(0) != before.len() {
            return Vec::new();
        }
        let decoded = (2..=before.len()).map(|len| {
            let bytes = &before[before.len() - len..];
            (iced_x86::Decoder::with_ip(64, bytes, back - len as u64, 0).decode(), len)
        });
        let calls = decoded.filter(|(call, len)| call.len() == *len && call.mnemonic() == Mnemonic::Call);
        calls.map(|(call, _)| call).filter(|call| !call.is_invalid()).collect()
    }

    /// Whether code was entered by a call: certainly (`true`), possibly (`false`), or not (`None`).
    pub(super) fn how_entered(&mut self, tid: Tid, addr: u64) -> io::Result<Option<bool>> {
        let registers = self.tracer.registers(tid)?;
        let home = self.home(tid);
        let Ok(back) = self.tracer.word(home, registers.rsp) else { return Ok(None) };
        let calls = self.calls_before(home, back);
        for call in &calls {
            if call.is_call_near() && call.near_branch_target() == addr {
                return Ok(Some(true));
            }
            if call.is_call_near_indirect() {
                let register = call.op0_register().full_register();
                let all = numbered(&registers);
                let target = match call.op0_kind() {
                    iced_x86::OpKind::Register => number(register).map(|number| all[number]),
                    _ if call.is_ip_rel_memory_operand() => self.tracer.word(home, call.ip_rel_memory_address()).ok(),
                    _ => None,
                };
                if target == Some(addr) {
                    return Ok(Some(true));
                }
            }
        }
        Ok((!calls.is_empty()).then_some(false))
    }
}
