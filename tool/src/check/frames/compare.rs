//! Compares the rows of an unwind table with the effects of the instructions.

use super::rows::{Row, Rows, Where};
use super::state::{State, Value};
use super::walk::{Flow, Machine};
use super::Difference;
use crate::check::rules::{self, Rule};
use crate::tables::Target;

/// The tables that instructions are compared with.
pub(super) struct Compare<'a> {
    pub rows: &'a Rows,
    pub target: Target,
    /// Whether the first row describes a function that has just been called.
    pub plain: bool,
    /// The distance of the stack pointer from the CFA at the start, if it is known.
    pub entry_sp: Option<i64>,
    /// The first row.
    pub entry: &'a Row,
}

/// The result of comparing a row with the code.
enum Verdict {
    Same,
    Unknown,
    /// The third value is the number of bytes by which the CFA is too high, if the CFA differs.
    Differs(&'static Rule, String, Option<i64>),
}

impl Compare<'_> {
    /// Compares the row with the code at one instruction, and adds the differences. Returns `None` if a value is unknown.
    pub fn at<M: Machine>(&self, offset: u64, flow: Flow, state: &State, found: &mut Vec<Difference>) -> Option<()> {
        let row = self.rows.at(offset)?;
        let mut known = Some(());
        match self.cfa::<M>(row, flow, state) {
            Verdict::Same => {}
            Verdict::Unknown => return None,
            Verdict::Differs(rule, text, shift) => {
                // All other rules depend on the CFA.
                found.push(Difference { rule, text, shift });
                return known;
            }
        }
        match state.signed {
            Some(signed) if signed == row.signed => {}
            None => known = None,
            Some(signed) => {
                let text = |signed| if signed { "signed" } else { "not signed" };
                let text = format!("the row has the return address {}, and it is {}", text(row.signed), text(signed));
                found.push(Difference { rule: &rules::UNWIND_RETURN_ADDRESS, text, shift: None });
            }
        }
        let said: Vec<u16> = row.rules().map(|(register, _)| register).collect();
        let required = [M::FP, self.rows.return_address];
        let others = required.iter().filter(|register| !said.contains(register));
        for &register in said.iter().chain(others) {
            if register == M::SP {
                continue;
            }
            match self.saved::<M>(register, row, state, required.contains(&register)) {
                Verdict::Same => {}
                Verdict::Unknown => known = None,
                Verdict::Differs(rule, text, shift) => found.push(Difference { rule, text, shift }),
            }
        }
        known
    }

    fn cfa<M: Machine>(&self, row: &Row, flow: Flow, state: &State) -> Verdict {
        let Some((from, offset)) = row.cfa else { return Verdict::Unknown };
        let sp = state.get(M::SP);
        let (text, shift) = match state.get(from) {
            Value::Cfa(at) if at == -offset => return self.returns::<M>(row, flow, state),
            Value::Cfa(at) => {
                let wrong = offset.saturating_add(at);
                let way = if wrong > 0 { "high" } else { "low" };
                (format!("{} too {way}: it is {}", wrong.unsigned_abs(), self.truth::<M>(state)), Some(wrong))
            }
            // In code that is entered with a frame, registers may have any values.
            Value::Callers(_) if self.plain => {
                let name = self.name(from);
                (format!("wrong, {name} is the caller's: it is {}", self.truth::<M>(state)), None)
            }
            _ => return Verdict::Unknown,
        };
        let back = self.plain && row.cfa == self.entry.cfa && self.rows.differs_before(row);
        let gone = match (sp, self.entry_sp) {
            (Value::Cfa(sp), Some(entry)) => sp > entry || self.plain && state.framed && sp == entry,
            _ => false,
        };
        // During a call, the frame is in the middle of a stack, so the call is not part of an epilogue.
        let rule =
            if (back || gone) && flow != Flow::Call { &rules::UNWIND_EPILOGUE } else { &rules::UNWIND_CFA_WRONG };
        Verdict::Differs(rule, format!("the row has the CFA at {}, which is {text}", self.sum(from, offset)), shift)
    }

    /// Finds code whose first row describes a frame that the code does not have, because the code returns without removing a
    /// frame.
    fn returns<M: Machine>(&self, row: &Row, flow: Flow, state: &State) -> Verdict {
        let (Flow::Return, false, Value::Cfa(sp), Some((from, offset))) = (flow, self.plain, state.get(M::SP), row.cfa)
        else {
            return Verdict::Same;
        };
        let ra = self.rows.return_address;
        let untouched = if M::ENTRY == 0 { state.get(ra) == Value::Callers(ra) } else { state.slot(sp).is_none() };
        if sp == -M::ENTRY || !untouched {
            return Verdict::Same;
        }
        let wrong = -sp - M::ENTRY;
        let way = if wrong > 0 { "high" } else { "low" };
        let (said, is) = (self.sum(from, offset), self.sum(M::SP, M::ENTRY));
        // All values so far are relative to the first row.
        let text = format!(
            "the row has the CFA at {said}, which is {} too {way}: it is {is}; earlier rows may be wrong too",
            wrong.unsigned_abs()
        );
        Verdict::Differs(&rules::UNWIND_CFA_WRONG, text, None)
    }

    fn saved<M: Machine>(&self, register: u16, row: &Row, state: &State, required: bool) -> Verdict {
        let own = Value::Callers(register);
        let in_place = state.get(register) == own;
        let said = match row.rule(register) {
            Where::At(at) => match state.slot(at) {
                Some(value) if value == own => return Verdict::Same,
                Some(Value::Unknown) => return Verdict::Unknown,
                // The caller has written this word.
                None if self.entry_sp.is_none_or(|sp| at >= sp) => return Verdict::Unknown,
                _ => format!("at {}", distance(at)),
            },
            Where::In(other) if state.get(other) == own => return Verdict::Same,
            Where::Same if in_place || !required => return Verdict::Same,
            Where::Same => "where it was".into(),
            Where::In(_) | Where::Elsewhere => return Verdict::Unknown,
        };
        let is = match state.slots_of(register).next() {
            _ if in_place && register != self.rows.return_address => "still in its register".into(),
            _ if in_place => format!("in {}", self.name(register)),
            Some(at) => format!("at {}", distance(at)),
            None => return Verdict::Unknown,
        };
        let return_address = register == self.rows.return_address;
        let what = if return_address { "the return address".into() } else { self.name(register) };
        let rule = if return_address { &rules::UNWIND_RETURN_ADDRESS } else { &rules::UNWIND_SAVED_REGISTER };
        Verdict::Differs(rule, format!("the row has {what} {said}, and it is {is}"), None)
    }

    /// The register and offset by which the CFA can really be computed, as text.
    fn truth<M: Machine>(&self, state: &State) -> String {
        let ways = [M::SP, M::FP].into_iter().find_map(|from| match state.get(from) {
            Value::Cfa(at) => Some(self.sum(from, at.wrapping_neg())),
            _ => None,
        });
        ways.unwrap_or_else(|| "elsewhere".into())
    }

    fn sum(&self, register: u16, offset: i64) -> String {
        format!("{}{offset:+}", self.name(register))
    }

    fn name(&self, register: u16) -> String {
        let name = self.target.register_name(gimli::Register(register));
        name.map_or_else(|| format!("r{register}"), str::to_lowercase)
    }
}

fn distance(at: i64) -> String {
    format!("CFA{at:+}")
}
