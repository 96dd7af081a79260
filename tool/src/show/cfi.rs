//! The rows of an unwind table.

use std::fmt::Write as _;
use std::io::{self, Write};

use gimli::{CfaRule, Register, RegisterRule};

use crate::tables::{readable, Row, TableReader, Target, CODE};

/// More code than this has no place in the objects that tables are laid out in.
const SIZE_MAX: u64 = i32::MAX as u64;

/// One line a row: the offset into the code, how the caller's stack pointer (CFA) is found, and where its registers are.
pub fn write_rows(eh_frame: &[u8], code_size: u64, target: Target, out: &mut dyn Write) -> io::Result<()> {
    if code_size > SIZE_MAX {
        return Ok(());
    }
    let bytes = readable(eh_frame, target);
    let mut failed = Ok(());
    let decoded = TableReader::new(target, &bytes, code_size).each_row(&mut |_, row| {
        failed = writeln!(out, "    {}", row_text(row, target));
        failed.as_ref().map_err(|_| String::new()).copied()
    });
    failed?;
    match decoded {
        Ok(()) => Ok(()),
        Err(problem) => writeln!(out, "    cannot be decoded: {problem}"),
    }
}

fn row_text(row: &Row, target: Target) -> String {
    let name = |register: Register| match target.register_name(register) {
        Some(name) => name.to_string(),
        None => format!("r{}", register.0),
    };
    let offset = row.start_address().wrapping_sub(CODE) as i64;
    let cfa = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => format!("{}{offset:+}", name(register)),
        CfaRule::Expression(_) => "expression".into(),
    };
    let sign = if offset < 0 { '-' } else { '+' };
    let mut text = format!("{sign}{:#x} CFA {cfa}", offset.unsigned_abs());
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
