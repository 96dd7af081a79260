//! Lists the functions that a DEBUG_INFO2 record contains for each code offset.

use jitsym::format::jitdump::debug_info2::{RawDebug2, RawPosition};

use super::block::Column;
use crate::text::shortened;

/// A text is cut when it has this number of bytes. Each code offset may refer to all functions of the record, and these
/// functions may call each other in a circle.
const TEXT_MAX: usize = 200;
/// The maximum number of bytes of all texts. Each text counts as at least `TEXT_LEAST` bytes.
const BYTES_MAX: usize = 64 << 20;
const TEXT_LEAST: usize = 64;

/// The innermost function at each code offset, and its callers. Each function has its current line.
pub fn frames(debug: &RawDebug2, addr: u64) -> Column {
    let strings: Vec<&[u8]> = debug.strings().collect();
    let frame = |position: &RawPosition| {
        let name = strings.get(position.function as usize).copied().unwrap_or(b"?");
        format!("{}:{}", shortened(name), position.line)
    };
    let text = |index: u32| {
        let mut next = i32::try_from(index).ok();
        let mut text = String::new();
        while let Some(position) = next.and_then(|index| debug.position(usize::try_from(index).ok()?)) {
            if !text.is_empty() {
                text += " < ";
            }
            if text.len() >= TEXT_MAX {
                text += "...";
                break;
            }
            text += &frame(&position);
            next = Some(position.caller);
        }
        text
    };
    let (mut column, mut left) = (Column::new(), BYTES_MAX);
    for (offset, index) in debug.offsets() {
        let at = addr.wrapping_add(offset.into());
        let text = text(index);
        match left.checked_sub(text.len().max(TEXT_LEAST)) {
            Some(less) => left = less,
            None => {
                column.push((at, "and more".into()));
                break;
            }
        }
        column.push((at, text));
    }
    column
}
