//! The rows of an unwind table.

use std::fmt::Write as _;

use gimli::{CfaRule, Register, RegisterRule};

use super::block::Column;
use crate::tables::{readable, Row, TableReader, Target, CODE};

/// The largest code that fits into the object in which tables are laid out.
const SIZE_MAX: u64 = i32::MAX as u64;

/// A text for each row: how to find the CFA (the caller's stack pointer) and the caller's registers from an address on. If the
/// table cannot be decoded, the last text gives the reason.
pub fn rows(eh_frame: &[u8], addr: u64, code_size: u64, target: Target) -> Column {
    let mut column = Column::new();
    if code_size > SIZE_MAX {
        return column;
    }
    let bytes = readable(eh_frame, target);
    let decoded = TableReader::new(target, &bytes, code_size).each_row(&mut |_, row| {
        column.push((addr.wrapping_add(row.start_address().wrapping_sub(CODE)), row_text(row, target)));
        Ok(())
    });
    if let Err(problem) = decoded {
        column.push((addr, format!("cannot be decoded: {problem}")));
    }
    column
}

/// The rules of a row as text.
pub fn row_text(row: &Row, target: Target) -> String {
    let name = |register: Register| match target.register_name(register) {
        Some(name) => name.to_string(),
        None => format!("r{}", register.0),
    };
    let cfa = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => format!("{}{offset:+}", name(register)),
        CfaRule::Expression(_) => "expression".into(),
    };
    let mut text = format!("CFA {cfa}");
    for (register, rule) in row.registers() {
        let rule = match *rule {
            RegisterRule::Undefined => "undefined".into(),
            RegisterRule::SameValue => "same".into(),
            RegisterRule::Offset(offset) => format!("[CFA{offset:+}]"),
            RegisterRule::ValOffset(offset) => format!("CFA{offset:+}"),
            RegisterRule::Register(other) => name(other),
            RegisterRule::Expression(_) => "[expression]".into(),
            RegisterRule::ValExpression(_) => "expression".into(),
            RegisterRule::Architectural => "architectural".into(),
            RegisterRule::Constant(value) => format!("{value:#x}"),
        };
        let _ = write!(text, " {}={rule}", name(*register));
    }
    text
}
