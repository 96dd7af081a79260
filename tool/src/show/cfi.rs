//! Converts the rows of an unwind table to text.

use std::fmt::Write as _;

use gimli::{CfaRule, Register, RegisterRule};

use super::block::Column;
use crate::tables::{readable, Row, TableReader, Target, CODE};

/// The largest code that fits into the object in which tables are laid out.
const SIZE_MAX: u64 = i32::MAX as u64;

/// Returns a text for each row: how to compute the CFA (the caller's stack pointer) and the caller's registers from an
/// address on. If the table cannot be decoded, the last text is the reason.
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
    let mut signed = "";
    for (register, rule) in row.registers() {
        if target.is_aarch64() && *register == gimli::AArch64::RA_SIGN_STATE {
            signed = match *rule {
                RegisterRule::Constant(0) => "",
                RegisterRule::Constant(_) => ", return address signed",
                _ => ", return address perhaps signed",
            };
            continue;
        }
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
    text + signed
}

#[cfg(test)]
mod tests {
    use jitsym::format::arch::Arch;
    use jitsym::format::cfi::encode;
    use jitsym::{FramePointer, SigningKey, Unwind};

    use super::*;

    #[test]
    fn signed_return_addresses() {
        for key in [SigningKey::A, SigningKey::B] {
            let frame = FramePointer { epilogue_begin: 16, signed: Some(key), ..FramePointer::default() };
            let tables = encode(Arch::Aarch64, &Unwind::FramePointer(frame), 0, 24).expect("encoded").expect("tables");
            let rows = rows(&tables.bytes[..tables.eh_frame_size()], 0x1000, 24, Target::of(183, true));
            let rows: Vec<_> = rows.iter().map(|(addr, text)| (*addr, text.as_str())).collect();
            assert_eq!(
                rows,
                [
                    (0x1000, "CFA SP+0"),
                    (0x1004, "CFA SP+0, return address signed"),
                    (0x1008, "CFA SP+16 X29=[CFA-16] X30=[CFA-8], return address signed"),
                    (0x100c, "CFA X29+16 X29=[CFA-16] X30=[CFA-8], return address signed"),
                    (0x1010, "CFA SP+0, return address signed"),
                    (0x1014, "CFA SP+0"),
                ]
            );
        }
    }
}
