//! Compares unwind tables with the code that they describe.
//!
//! This module follows the instructions along the control flow, to determine where the CFA, the return address and the
//! caller's registers are. An unsupported instruction makes values unknown. Unknown values are not compared.

mod aarch64;
mod compare;
mod rows;
mod state;
#[cfg(test)]
mod tests;
mod walk;
mod x86_64;

use std::rc::Rc;

use jitsym::format::jitdump::raw::RawLoad;

use self::compare::Compare;
pub(crate) use self::rows::{Row, Rows, Where};
use self::state::{State, Value};
use self::walk::{Graph, Machine};
use super::rules::{self, Rule};
use crate::tables::Target;

/// The outcome of the comparison for one piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// The tables are right at each reachable instruction.
    Proved,
    /// The tables are right at each instruction whose effect is known.
    Partly,
    /// The tables are wrong.
    Wrong,
    /// The bytes do not look like a function, or the architecture is not supported.
    NotKnown,
}

/// A difference between a row and the code.
struct Difference {
    rule: &'static Rule,
    text: String,
    /// If the CFA differs: the number of bytes by which it is too high.
    shift: Option<i64>,
}

/// The code bytes of a LOAD. If the record has padding, the bytes may be before or after the padding. `None` if the record is
/// too short.
pub(crate) fn code_of<'a>(load: &RawLoad<'a>) -> Option<&'a [u8]> {
    let behind_name = load.tail.get(load.name()?.len() + 1..)?;
    let size = usize::try_from(load.size).ok()?;
    let (code, padding) = behind_name.split_at_checked(size)?;
    let after = padding.iter().all(|&byte| byte == 0) && behind_name.iter().take(padding.len()).any(|&byte| byte != 0);
    if after {
        Some(code)
    } else {
        load.code()
    }
}

/// Compares the tables with the code. For each rule, only the first difference is reported.
pub(super) fn check(rows: Rows, code: &[u8], target: Target, found: &mut dyn FnMut(&'static Rule, String)) -> Frames {
    let Some(rows) = rows.complete() else { return Frames::NotKnown };
    let target = target.with_column(rows.return_address);
    let differences = if target.is_x86_64() {
        compare(&mut x86_64::X86_64::new(), code, &rows, target)
    } else if target.is_aarch64() {
        compare(&mut aarch64::Aarch64::new(), code, &rows, target)
    } else {
        None
    };
    let Some((known, differences)) = differences else { return Frames::NotKnown };
    let mut told: Vec<&'static Rule> = Vec::new();
    for Difference { rule, text, shift } in &differences {
        if !told.contains(rule) {
            told.push(rule);
            let is_same = |other: &&Difference| shift.is_some() && other.shift == *shift && other.rule == *rule;
            found(rule, text.clone() + &and_more(differences.iter().filter(is_same).count()));
        }
    }
    match (told.is_empty(), known) {
        (false, _) => Frames::Wrong,
        (true, true) => Frames::Proved,
        (true, false) => Frames::Partly,
    }
}

/// The number of other instructions with the same difference.
fn and_more(same: usize) -> String {
    match same {
        0 | 1 => String::new(),
        2 => "; the difference is the same at 1 other instruction".into(),
        _ => format!("; the difference is the same at {} other instructions", same - 1),
    }
}

/// Returns whether all values are known, and the differences. `None` if the bytes are not a function.
fn compare<M: Machine>(machine: &mut M, code: &[u8], rows: &Rows, target: Target) -> Option<(bool, Vec<Difference>)> {
    let entry = rows.at(0)?;
    let plain = is_plain::<M>(entry, rows.return_address);
    let plain_at = |at: u64| rows.at(at).is_some_and(|row| is_plain::<M>(row, rows.return_address));
    let graph = Graph::new(machine, code, &rows.entries, &plain_at)?;
    let named = Rc::new(rows.places());
    let start = |at: u64| {
        let row = rows.at(at).filter(|_| at == 0 || plain_at(at))?;
        entered::<M>(row, State::new(named.clone()))
    };
    let entry_sp = entry.cfa.filter(|&(from, _)| from == M::SP).and_then(|(_, offset)| offset.checked_neg());
    // Without the first row, all values are unknown.
    start(0)?;
    let comparison = Compare { rows, target, plain, entry_sp, entry };
    let (mut known, mut sets_fp, mut differences) = (true, false, Vec::new());
    graph.states(machine, rows, &start, &mut |machine, at, instruction, flow, state| {
        sets_fp |= !matches!(state.get(M::FP), Value::Callers(_));
        let before = differences.len();
        known &= comparison.at::<M>(at, flow, state, &mut differences).is_some();
        for difference in &mut differences[before..] {
            difference.text = format!("at +{at:#x}, {}: {}", machine.text(instruction), difference.text);
        }
    })?;
    if plain && !sets_fp && rows.count_from(M::FP) {
        // The first difference is enough: the tables describe other code.
        differences.truncate(1);
        for difference in &mut differences {
            difference.rule = &rules::UNWIND_FRAME_POINTER;
        }
    }
    Some((known, differences))
}

/// Whether a row describes a function that has just been called.
fn is_plain<M: Machine>(row: &Row, return_address: u16) -> bool {
    row.cfa == Some((M::SP, M::ENTRY))
        && !row.signed
        && row.rules().all(|(register, place)| match place {
            Where::At(at) => register == return_address && M::ENTRY != 0 && at == -M::ENTRY,
            place => place == Where::Same,
        })
}

/// The state that the first row describes.
fn entered<M: Machine>(row: &Row, mut state: State) -> Option<State> {
    let (from, offset) = row.cfa?;
    for (register, place) in row.rules() {
        if place != Where::Same {
            state.set(register, Value::Unknown);
        }
        match place {
            Where::At(at) => state.store(Value::Cfa(at), Value::Callers(register)),
            Where::In(other) => state.set(other, Value::Callers(register)),
            Where::Same | Where::Elsewhere => {}
        }
    }
    state.signed = Some(row.signed);
    state.set(M::SP, Value::Unknown);
    state.set(from, Value::Cfa(offset.checked_neg()?));
    Some(state)
}
